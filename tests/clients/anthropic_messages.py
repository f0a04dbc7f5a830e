# SPDX-License-Identifier: MIT
"""The anthropic package against a server of both demo models: python anthropic_messages.py URL"""
import sys

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
TABLE = "Make a table: Tom 43 Oslo; Ana 88 Kyiv; Zoe 47 Seoul; Kim 19 Paris"


def ask(model, **more):
    fields = dict(model=model, max_tokens=96, messages=[{"role": "user", "content": TABLE}])
    fields["extra_body"] = dict(temperature=0, seed=5)
    fields.update(more)
    return fields


for model in ("weft-demo", "weft-demo-ar"):
    whole = client.messages.create(**ask(model, system="Be brief."))
    assert whole.type == "message" and whole.role == "assistant" and whole.model == model
    assert whole.content[0].type == "text" and whole.stop_reason == "end_turn", whole
    assert whole._request_id and whole.id == "msg_" + whole._request_id

    with client.messages.stream(**ask(model, system=[{"type": "text", "text": "Be brief."}])) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert final.content[0].text == whole.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.stop_reason == "end_turn" and kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds

    cut = client.messages.create(**ask(model, stop_sequences=["Seoul"]))
    assert cut.stop_reason == "stop_sequence" and cut.stop_sequence == "Seoul" and "Zoe" in cut.content[0].text
    short = client.messages.create(**ask(model, max_tokens=4))
    assert short.stop_reason == "max_tokens" and short.usage.output_tokens == 4

    count = client.messages.count_tokens(model=model, messages=[{"role": "user", "content": TABLE}])
    used = client.messages.create(**ask(model, max_tokens=1)).usage
    assert count.input_tokens == used.input_tokens + used.cache_read_input_tokens

    talk = [{"role": "user", "content": "What is 58 + 37?"}]
    first = client.messages.create(**ask(model, messages=talk))
    talk += [{"role": "assistant", "content": first.content}, {"role": "user", "content": "Write 4711 backwards."}]
    assert client.messages.create(**ask(model, messages=talk)).content[0].text

    # calls are of a form, and so written token by token
    find = {"name": "find", "description": "Finds a person.", "input_schema": {
        "type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"],
        "additionalProperties": False}}
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "find"}):
        tools = ask(model, tools=[find], tool_choice=choice, extra_body=dict(seed=5, mode="autoregressive"))
        called = client.messages.create(**tools)
        assert called.stop_reason == "tool_use" and len(called.content) == 1 and called.content[0].name == "find", called
        assert len(called.content[0].input["name"]) <= 8
        with client.messages.stream(**tools) as stream:
            assert stream.get_final_message().content[0].input == called.content[0].input
        result = {"type": "tool_result", "tool_use_id": called.content[0].id, "content": "not found"}
        talk = tools["messages"] + [{"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
        more = client.messages.count_tokens(model=model, messages=talk, tools=[find]).input_tokens
        assert more > client.messages.count_tokens(model=model, messages=tools["messages"], tools=[find]).input_tokens

for wrong, kind in ((dict(extra_body=dict(temperature=-1)), anthropic.BadRequestError), (dict(model="nobody"), anthropic.NotFoundError)):
    try:
        client.messages.create(**ask(wrong.pop("model", "weft-demo"), **wrong))
        raise SystemExit("no error")
    except kind as error:
        assert error.body["type"] == "error" and error.body["error"]["type"].endswith("_error"), error.body
        assert error.request_id == error.body["request_id"]
print("anthropic", anthropic.__version__, "messages, streams, tools, stop sequences, count_tokens, errors")
