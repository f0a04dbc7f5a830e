# SPDX-License-Identifier: MIT
"""The ollama package against a server of both demo models: python ollama_chat.py URL"""
import json
import sys

import ollama

client = ollama.Client(host=sys.argv[1])
TABLE = "Make a table: Tom 43 Oslo; Ana 88 Kyiv; Zoe 47 Seoul; Kim 19 Paris"
OPTIONS = dict(temperature=0, seed=5, num_predict=96)



def find(name: str) -> str:
    """Finds a person.

    Args:
        name: Who is looked for.
    """
    return "not found"


names = [card.model for card in client.list().models]
assert names == ["weft-demo", "weft-demo-ar"], names
assert [card.model for card in client.ps().models] == names

for model in names:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TABLE}]
    whole = client.chat(model=model, messages=messages, options=OPTIONS, keep_alive="5m")
    assert whole.done and whole.done_reason == "stop" and whole.message.role == "assistant"
    assert whole.eval_count > 0 and whole.prompt_eval_count > 0 and whole.total_duration > 0
    parts = list(client.chat(model=model, messages=messages, options=OPTIONS, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert parts[-1].done and parts[-1].eval_count == whole.eval_count and not parts[0].done

    one = client.generate(model=model, prompt=TABLE, system="Be brief.", options=OPTIONS)
    assert one.response == whole.message.content
    lines = list(client.generate(model=model, prompt=TABLE, system="Be brief.", options=OPTIONS, stream=True))
    assert "".join(line.response for line in lines) == one.response

    cut = client.chat(model=model, messages=messages, options=dict(OPTIONS, stop=["Seoul"]))
    assert "Seoul" not in cut.message.content and "Zoe" in cut.message.content
    short = client.chat(model=model, messages=messages, options=dict(OPTIONS, num_predict=3))
    assert short.done_reason == "length" and short.eval_count == 3

    # its API cannot ask for a call: whether there is one is the model's to decide
    who = [{"role": "user", "content": "Who is Dan?"}]
    plain = client.chat(model=model, messages=who, options=OPTIONS)
    asked = client.chat(model=model, messages=who, tools=[find], options=OPTIONS)
    assert asked.message.content or asked.message.tool_calls, asked
    assert asked.prompt_eval_count > plain.prompt_eval_count  # the prompt has the declaration
    parts = list(client.chat(model=model, messages=who, tools=[find], options=OPTIONS, stream=True))
    assert "".join(part.message.content for part in parts) == asked.message.content
    made = {"role": "assistant", "tool_calls": [{"function": {"name": "find", "arguments": {"name": "Dan"}}}]}
    result = {"role": "tool", "tool_name": "find", "content": find("Dan")}
    told = client.chat(model=model, messages=who + [made, result], tools=[find], options=OPTIONS)
    assert told.prompt_eval_count > asked.prompt_eval_count and told.done

    card = client.show(model)
    assert card.modelinfo["general.architecture"] == card.details.family and "completion" in card.capabilities
    assert client.generate(model=model, prompt="").done_reason == "load"

SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
held = client.chat(model="weft-demo-ar", messages=[{"role": "user", "content": "a?"}], format=SCHEMA, options=OPTIONS)
assert json.loads(held.message.content)["a"] in (True, False), held.message.content
scored = client.chat(model="weft-demo-ar", messages=messages, options=OPTIONS, logprobs=True, top_logprobs=2)
assert len(scored.logprobs) == scored.eval_count and len(scored.logprobs[0].top_logprobs) == 2

for call in (lambda: client.chat(model="nobody", messages=messages), lambda: client.pull("gemma3"),
             lambda: client.chat(model="weft-demo", messages=[made | {"role": "user"}], tools=[find]),
             lambda: client.embed(model="weft-demo", input="a")):
    try:
        call()
        raise SystemExit(f"no error: {call.__code__.co_consts}")
    except ollama.ResponseError as error:
        assert error.status_code in (400, 404, 501) and error.error, error
print("ollama chat, generate, streams, tools, options, formats, logprobs, models, errors")
