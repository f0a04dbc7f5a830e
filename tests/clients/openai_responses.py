# SPDX-License-Identifier: MIT
"""The openai package's responses against a server of both demo models: python openai_responses.py URL"""
import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
TABLE = "Make a table: Tom 43 Oslo; Ana 88 Kyiv; Zoe 47 Seoul; Kim 19 Paris"
SAMPLING = dict(temperature=0, extra_body=dict(seed=5))

for model in ("weft-demo", "weft-demo-ar"):
    whole = client.responses.create(model=model, input=TABLE, instructions="Be brief.", max_output_tokens=96, **SAMPLING)
    assert whole.status == "completed" and whole.output_text and whole.usage.output_tokens > 0

    events = list(client.responses.create(model=model, input=TABLE, instructions="Be brief.", stream=True,
                                          max_output_tokens=96, **SAMPLING))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[-1].type == "response.completed" and events[-1].response.output_text == whole.output_text
    with client.responses.stream(model=model, input=TABLE, instructions="Be brief.", max_output_tokens=96,
                                 **SAMPLING) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == whole.output_text

    short = client.responses.create(model=model, input=TABLE, max_output_tokens=4, **SAMPLING)
    assert short.status == "incomplete" and short.incomplete_details.reason == "max_output_tokens"

    first = client.responses.create(model=model, input="What is 58 + 37?", **SAMPLING)
    second = client.responses.create(model=model, input="Say 5.", previous_response_id=first.id, **SAMPLING)
    history = [{"role": "user", "content": "What is 58 + 37?"}] + first.output
    again = client.responses.create(model=model, input=history + [{"role": "user", "content": "Say 5."}], **SAMPLING)
    assert second.output_text == again.output_text and second.usage.input_tokens == again.usage.input_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    for call in (lambda: client.responses.retrieve(first.id),
                 lambda: client.responses.create(model=model, input="x", previous_response_id=first.id)):
        try:
            call()
            raise SystemExit("no error")
        except openai.NotFoundError as error:
            assert error.code in ("response_not_found", "previous_response_not_found"), error

SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
held = client.responses.create(model="weft-demo-ar", input="a?", **SAMPLING,
                               text={"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}})
assert json.loads(held.output_text)["a"] in (True, False), held.output_text
scored = client.responses.create(model="weft-demo-ar", input="Say 5.", top_logprobs=2, max_output_tokens=5,
                                 include=["message.output_text.logprobs"], **SAMPLING)
assert len(scored.output[0].content[0].logprobs) == scored.usage.output_tokens
print("openai", openai.__version__, "responses, streams, previous responses, formats, logprobs, errors")
