# SPDX-License-Identifier: MIT
"""The openai package's chat and completions against a server of both demo models: python openai_chat.py URL"""
import json
import sys

import openai
import pydantic

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
TABLE = [{"role": "system", "content": "Be brief."},
         {"role": "user", "content": "Make a table: Tom 43 Oslo; Ana 88 Kyiv; Zoe 47 Seoul; Kim 19 Paris"}]
SAMPLING = dict(temperature=0, seed=5)
TOKENS = dict(extra_body=dict(mode="autoregressive"))  # what must be of a form is written token by token


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=99)


FIND = openai.pydantic_function_tool(Person, name="find", description="Finds a person.")


def pieces_of(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


for model in ("weft-demo", "weft-demo-ar"):
    ask = dict(model=model, messages=TABLE, max_tokens=96, **SAMPLING)
    whole = client.chat.completions.create(**ask)
    text = whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "stop" and "Zoe" in text and whole._request_id, whole
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(client.chat.completions.create(stream=True, stream_options=dict(include_usage=True), **ask))
    assert pieces_of(chunks) == text and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    with client.chat.completions.stream(**ask) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content == text
    canvases = client.chat.completions.create(stream=True, extra_body=dict(stream_canvas=True), **ask)
    assert pieces_of(canvases) == text  # events that the package does not know are chunks without choices

    cut = client.chat.completions.create(**dict(ask, stop=["Seoul"]))
    assert cut.choices[0].finish_reason == "stop" and text.startswith(cut.choices[0].message.content)
    short = client.chat.completions.create(**dict(ask, max_tokens=4))
    assert short.choices[0].finish_reason == "length" and short.usage.completion_tokens == 4

    # formats and calls
    held = client.chat.completions.parse(response_format=Person, **dict(ask, **TOKENS))
    assert isinstance(held.choices[0].message.parsed, Person)
    any_json = client.chat.completions.create(response_format={"type": "json_object"}, **dict(ask, **TOKENS))
    assert isinstance(json.loads(any_json.choices[0].message.content), dict)
    for choice in ("required", {"type": "function", "function": {"name": "find"}}):
        tools = dict(ask, tools=[FIND], tool_choice=choice, parallel_tool_calls=False, **TOKENS)
        answer = client.chat.completions.create(**tools).choices[0]
        call = answer.message.tool_calls[0]
        assert answer.finish_reason == "tool_calls" and call.function.name == "find" and answer.message.content is None
        Person.model_validate_json(call.function.arguments)
        with client.chat.completions.stream(**tools) as stream:
            for _ in stream:
                pass
            again = stream.get_final_completion().choices[0].message.tool_calls
        assert len(again) == 1 and again[0].function.arguments == call.function.arguments, again
        result = {"role": "tool", "tool_call_id": call.id, "content": "not found"}
        told = client.chat.completions.create(**dict(ask, messages=TABLE + [answer.message, result], tools=[FIND], **TOKENS))
        assert told.usage.prompt_tokens > whole.usage.prompt_tokens
    free = client.chat.completions.create(**dict(ask, tools=[FIND], tool_choice="none"))
    assert free.choices[0].message.content == text and free.choices[0].message.tool_calls is None

    plain = dict(model=model, prompt="Tom is 43 years", max_tokens=12, **SAMPLING)
    once = client.completions.create(**plain)
    assert once.usage.completion_tokens <= 12 and once.choices[0].finish_reason in ("stop", "length")
    assert "".join(part.choices[0].text for part in client.completions.create(stream=True, **plain)) == once.choices[0].text

scored = client.chat.completions.create(**dict(ask, model="weft-demo-ar", logprobs=True, top_logprobs=2))
assert len(scored.choices[0].logprobs.content) == scored.usage.completion_tokens
assert len(scored.choices[0].logprobs.content[0].top_logprobs) == 2
assert [card.id for card in client.models.list()] == ["weft-demo", "weft-demo-ar"]

LONG = [{"role": "user", "content": "many words " * 4000}]
for wrong, kind, code in ((dict(temperature=-1), openai.BadRequestError, "invalid_value"),
                          (dict(model="nobody"), openai.NotFoundError, "model_not_found"),
                          (dict(messages=LONG), openai.BadRequestError, "context_length_exceeded")):
    try:
        client.chat.completions.create(**dict(ask, **wrong))
        raise SystemExit("no error")
    except kind as error:
        assert error.code == code and error.request_id, error
print("openai", openai.__version__, "chat, streams, canvases, formats, tools, completions, logprobs, errors")
