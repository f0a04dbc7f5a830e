# SPDX-License-Identifier: MIT
"""The litellm package, over three of its routes, against a server of both demo models: python litellm_completion.py URL"""
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for prices
import litellm
import pydantic

litellm.telemetry = False
TABLE = [{"role": "system", "content": "Be brief."},
         {"role": "user", "content": "Make a table: Tom 43 Oslo; Ana 88 Kyiv; Zoe 47 Seoul; Kim 19 Paris"}]
FIND = {"type": "function", "function": {"name": "find", "description": "Finds a person.", "parameters": {
    "type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"],
    "additionalProperties": False}}}


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=99)


def ask(model, route="openai", **more):
    base = sys.argv[1] + ("/v1" if route in ("openai", "hosted_vllm") else "")
    fields = dict(model=route + "/" + model, api_base=base, api_key="none", messages=TABLE, temperature=0, max_tokens=96,
                  num_retries=0, max_retries=0, seed=5, allowed_openai_params=["seed"])
    fields.update(more)
    return litellm.completion(**fields)


for model in ("weft-demo", "weft-demo-ar"):
    for route in ("openai", "hosted_vllm", "anthropic", "ollama_chat"):
        whole = ask(model, route)
        assert "Zoe" in whole.choices[0].message.content and whole.choices[0].finish_reason == "stop", whole
        assert whole.usage.completion_tokens > 0 and whole.usage.prompt_tokens > 0
        parts = list(ask(model, route, stream=True))
        text = "".join(part.choices[0].delta.content or "" for part in parts)
        assert text == whole.choices[0].message.content, (route, text)
        assert parts[-1].choices[0].finish_reason == "stop"
    counted = list(ask(model, stream=True, stream_options=dict(include_usage=True)))
    assert counted[-1].usage.completion_tokens > 0

    tokens = dict(extra_body=dict(mode="autoregressive"))  # what must be of a form is written token by token
    tools = dict(tools=[FIND], tool_choice="required", parallel_tool_calls=False, **tokens)
    answer = ask(model, **tools)
    call = answer.choices[0].message.tool_calls[0]
    assert answer.choices[0].finish_reason == "tool_calls" and call.function.name == "find", answer
    again = litellm.stream_chunk_builder(list(ask(model, stream=True, **tools))).choices[0].message.tool_calls
    assert again[0].function.arguments == call.function.arguments, again
    result = {"role": "tool", "tool_call_id": call.id, "content": "not found"}
    told = ask(model, messages=TABLE + [answer.choices[0].message, result], tools=[FIND])
    assert told.usage.prompt_tokens > answer.usage.prompt_tokens
    held = ask(model, response_format=Person, **tokens)
    Person.model_validate_json(held.choices[0].message.content)

for wrong, kind in ((dict(model="nobody"), litellm.NotFoundError), (dict(temperature=-1), litellm.BadRequestError),
                    (dict(messages=[{"role": "user", "content": "many words " * 4000}]),
                     litellm.ContextWindowExceededError)):
    try:
        ask(**dict(dict(model="weft-demo"), **wrong))
        raise SystemExit("no error")
    except kind:
        pass
print("litellm: openai, hosted_vllm, anthropic and ollama_chat, streams, tools, structured output, usage, errors")
