# SPDX-License-Identifier: MIT
"""The langchain-anthropic package against a server of both demo models: python langchain_anthropic_messages.py URL"""
import os
import sys
import typing

os.environ["LANGSMITH_TRACING"] = "false"
import anthropic
import pydantic
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool

TABLE = [SystemMessage("Be brief."),
         HumanMessage("Make a table: Tom 43 Oslo; Ana 88 Kyiv; Zoe 47 Seoul; Kim 19 Paris")]


class Person(pydantic.BaseModel):
    """A person."""
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=99)


class City(pydantic.BaseModel):
    """A city."""
    name: typing.Literal["Oslo", "Kyiv", "Seoul", "Paris"]
    large: bool


@tool
def find(name: str) -> str:
    """Finds a person."""
    return "not found"


def chat(model, body=dict(seed=5), **more):
    fields = dict(model=model, base_url=sys.argv[1], api_key="none", max_retries=0, max_tokens=96, temperature=0,
                  model_kwargs=dict(extra_body=body))
    fields.update(more)
    return ChatAnthropic(**fields)


def sum_of(parts):
    whole = None
    for part in parts:
        whole = part if whole is None else whole + part
    return whole


for model in ("weft-demo", "weft-demo-ar"):
    whole = chat(model).invoke(TABLE)
    assert "Zoe" in whole.text and whole.response_metadata["stop_reason"] == "end_turn", whole
    parts = list(chat(model).stream(TABLE))
    assert "".join(part.text for part in parts) == whole.text, parts
    assert sum_of(parts).usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"] > 0
    assert [answer.text for answer in chat(model).batch([TABLE, TABLE])] == [whole.text] * 2
    cut = chat(model, stop_sequences=["Seoul"]).invoke(TABLE)
    assert cut.text == whole.text.split("Seoul")[0] and cut.response_metadata["stop_sequence"] == "Seoul", cut
    more = chat(model).invoke(TABLE + [whole, HumanMessage("Say 5.")])
    assert more.usage_metadata["input_tokens"] > whole.usage_metadata["input_tokens"]
    assert chat(model).get_num_tokens_from_messages(TABLE) == whole.usage_metadata["input_tokens"]

    by_tokens = chat(model, dict(seed=5, mode="autoregressive"))  # what must be of a form is written so
    for choice in ("any", "find"):
        bound = by_tokens.bind_tools([find], tool_choice=choice, parallel_tool_calls=False)
        called = bound.invoke(TABLE)
        assert len(called.tool_calls) == 1 and called.tool_calls[0]["name"] == "find", called
        assert isinstance(called.tool_calls[0]["args"]["name"], str)
        assert called.response_metadata["stop_reason"] == "tool_use"
        streamed = sum_of(bound.stream(TABLE))
        assert [call["args"] for call in streamed.tool_calls] == [called.tool_calls[0]["args"]], streamed
    result = ToolMessage(find.invoke(called.tool_calls[0]["args"]), tool_call_id=called.tool_calls[0]["id"])
    told = chat(model).bind_tools([find]).invoke(TABLE + [called, result])
    assert told.usage_metadata["input_tokens"] > called.usage_metadata["input_tokens"]
    # with json_schema the package sends bounds as descriptions, and values alone as they are
    for form, method in ((Person, "function_calling"), (City, "function_calling"), (City, "json_schema")):
        assert isinstance(by_tokens.with_structured_output(form, method=method).invoke(TABLE), form)

for wrong, kind in ((dict(model="nobody"), anthropic.NotFoundError), (dict(temperature=-1), anthropic.BadRequestError)):
    try:
        chat(**dict(dict(model="weft-demo"), **wrong)).invoke(TABLE)
        raise SystemExit("no error")
    except kind as error:
        assert error.body["error"]["message"], error
print("langchain-anthropic: invoke, stream, batch, stop sequences, tools, structured output, counts, usage, errors")
