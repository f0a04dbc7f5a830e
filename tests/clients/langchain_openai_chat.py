# SPDX-License-Identifier: MIT
"""The langchain-openai package against a server of both demo models: python langchain_openai_chat.py URL"""
import os
import sys

os.environ["LANGSMITH_TRACING"] = "false"
import langchain_core.exceptions
import openai
import pydantic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

TABLE = [SystemMessage("Be brief."),
         HumanMessage("Make a table: Tom 43 Oslo; Ana 88 Kyiv; Zoe 47 Seoul; Kim 19 Paris")]


class Person(pydantic.BaseModel):
    """A person."""
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=99)


@tool
def find(name: str) -> str:
    """Finds a person."""
    return "not found"


def chat(model, **more):
    fields = dict(model=model, base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0, temperature=0, seed=5,
                  max_tokens=96)
    fields.update(more)
    return ChatOpenAI(**fields)


for model in ("weft-demo", "weft-demo-ar"):
    whole = chat(model).invoke(TABLE)
    assert "Zoe" in whole.content and whole.response_metadata["finish_reason"] == "stop", whole
    assert whole.usage_metadata["output_tokens"] > 0
    parts = list(chat(model, stream_usage=True).stream(TABLE))
    assert "".join(part.content for part in parts) == whole.content
    used = [part.usage_metadata for part in parts if part.usage_metadata]
    assert used[-1]["output_tokens"] == whole.usage_metadata["output_tokens"]
    assert [answer.content for answer in chat(model).batch([TABLE, TABLE])] == [whole.content] * 2
    answers = chat(model, use_responses_api=True, seed=None, extra_body=dict(seed=5)).invoke(TABLE)
    assert answers.text == whole.content, answers
    assert chat(model, stop=["Seoul"]).invoke(TABLE).content == whole.content.split("Seoul")[0]

    by_tokens = chat(model, extra_body=dict(mode="autoregressive"))  # what must be of a form is written so
    for choice in ("any", "find"):
        bound = by_tokens.bind_tools([find], tool_choice=choice, parallel_tool_calls=False)
        called = bound.invoke(TABLE)
        assert len(called.tool_calls) == 1 and called.tool_calls[0]["name"] == "find", called
        assert isinstance(called.tool_calls[0]["args"]["name"], str)
        streamed = None
        for part in bound.stream(TABLE):
            streamed = part if streamed is None else streamed + part
        assert [call["args"] for call in streamed.tool_calls] == [called.tool_calls[0]["args"]], streamed
    result = ToolMessage(find.invoke(called.tool_calls[0]["args"]), tool_call_id=called.tool_calls[0]["id"])
    told = chat(model).bind_tools([find]).invoke(TABLE + [called, result])
    assert told.usage_metadata["input_tokens"] > whole.usage_metadata["input_tokens"]
    for method in ("json_schema", "function_calling"):
        assert isinstance(by_tokens.with_structured_output(Person, method=method).invoke(TABLE), Person)
    assert isinstance(by_tokens.with_structured_output(Person, method="json_schema", strict=True).invoke(TABLE), Person)

for wrong, kind in ((dict(model="nobody"), openai.NotFoundError), (dict(temperature=-1), openai.BadRequestError)):
    try:
        chat(**dict(dict(model="weft-demo"), **wrong)).invoke(TABLE)
        raise SystemExit("no error")
    except kind as error:
        assert error.body["message"]
try:
    chat("weft-demo").invoke("many words " * 4000)
    raise SystemExit("no error")
except langchain_core.exceptions.ContextOverflowError:  # by which its agents know that they have to shorten
    pass
print("langchain-openai: invoke, stream, batch, responses, tools, structured output, usage, errors")
