# SPDX-License-Identifier: MIT
"""The langchain-ollama package against a server of both demo models: python langchain_ollama_chat.py URL"""
import os
import sys

os.environ["LANGSMITH_TRACING"] = "false"
import ollama
import pydantic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaLLM

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


def chat(model, kind=ChatOllama, **more):
    fields = dict(model=model, base_url=sys.argv[1], temperature=0, seed=5, num_predict=96)
    fields.update(more)
    return kind(**fields)


for model in ("weft-demo", "weft-demo-ar"):
    whole = chat(model, validate_model_on_init=True).invoke(TABLE)
    assert "Zoe" in whole.content and whole.response_metadata["done_reason"] == "stop", whole
    parts = list(chat(model).stream(TABLE))
    assert len(parts) > 1 and "".join(part.content for part in parts) == whole.content, parts
    used = [part.usage_metadata for part in parts if part.usage_metadata]
    assert used[-1]["output_tokens"] == whole.usage_metadata["output_tokens"] > 0
    assert [answer.content for answer in chat(model).batch([TABLE, TABLE])] == [whole.content] * 2
    assert chat(model, stop=["Seoul"]).invoke(TABLE).content == whole.content.split("Seoul")[0]
    prompt = TABLE[1].content
    assert "".join(chat(model, OllamaLLM).stream(prompt)) == chat(model, OllamaLLM).invoke(prompt) != ""

    # its API cannot ask for a call: whether there is one is the model's to decide
    who = [HumanMessage("Who is Dan?")]
    plain = chat(model).invoke(who)
    bound = chat(model).bind_tools([find])
    asked = bound.invoke(who)
    assert asked.content or asked.tool_calls, asked
    assert asked.usage_metadata["input_tokens"] > plain.usage_metadata["input_tokens"]  # the prompt has the declaration
    made = AIMessage("", tool_calls=[{"name": "find", "args": {"name": "Dan"}, "id": "1"}])
    told = bound.invoke(who + [made, ToolMessage(find.invoke({"name": "Dan"}), tool_call_id="1")])
    assert told.usage_metadata["input_tokens"] > asked.usage_metadata["input_tokens"]
    assert isinstance(chat(model).with_structured_output(Person, method="json_schema").invoke(TABLE), Person)

for wrong, code in ((dict(model="nobody"), 404), (dict(temperature=-1), 400)):
    try:
        chat(**dict(dict(model="weft-demo"), **wrong)).invoke(TABLE)
        raise SystemExit("no error")
    except ollama.ResponseError as error:
        assert error.status_code == code and error.error, error
print("langchain-ollama: invoke, stream, batch, stop strings, tools, structured output, usage, errors")
