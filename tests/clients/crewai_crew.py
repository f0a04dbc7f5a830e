# SPDX-License-Identifier: MIT
"""The crewai package against a server of both demo models: python crewai_crew.py URL"""
import logging
import os
import sys
import tempfile

folder = tempfile.TemporaryDirectory()  # it makes settings, keys and a database in the home of its user
os.environ.update(CREWAI_DISABLE_TELEMETRY="true", CREWAI_TRACING_ENABLED="false", OTEL_SDK_DISABLED="true",
                  CREWAI_TESTING="true", HOME=folder.name, XDG_DATA_HOME=folder.name)
import crewai
import pydantic
from crewai.events import LLMStreamChunkEvent, crewai_event_bus
from crewai.tools import tool
from crewai.utilities.exceptions.context_window_exceeding_exception import LLMContextLengthExceededError

logging.getLogger().setLevel(logging.CRITICAL)  # of the errors that are wanted
TABLE = [{"role": "system", "content": "Be brief."},
         {"role": "user", "content": "Make a table: Tom 43 Oslo; Ana 88 Kyiv; Zoe 47 Seoul; Kim 19 Paris"}]
FIND = {"type": "function", "function": {"name": "find", "description": "Finds a person.", "parameters": {
    "type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"],
    "additionalProperties": False}}}
asked, pieces = [], []


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=99)


@tool("find", result_as_answer=True)
def find(name: str) -> str:
    """Finds a person."""
    asked.append(name)
    return "not found"


@crewai_event_bus.on(LLMStreamChunkEvent)
def keep(_, event):
    pieces.append((event.emission_sequence, event.chunk))  # handlers run in threads


def llm(model, stream=False, **body):
    """The package always leaves the choice of a tool to the model: what has to be called is said in the body."""
    return crewai.LLM(model=model, provider="openai", base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0,
                      temperature=0, max_tokens=96, seed=5, stream=stream, additional_params=dict(extra_body=body))


def crew(llm):
    agent = crewai.Agent(role="Finder", goal="Find people", backstory="Brief.", llm=llm, tools=[find], max_iter=3)
    task = crewai.Task(description="Who is Dan?", expected_output="A person.", agent=agent)
    return crewai.Crew(agents=[agent], tasks=[task], tracing=False).kickoff()


for model in ("weft-demo", "weft-demo-ar"):
    plain = llm(model)
    whole = plain.call(TABLE)
    assert "Zoe" in whole and plain.get_token_usage_summary().completion_tokens > 0, whole
    asked.clear()
    pieces.clear()
    again = llm(model, True).call(TABLE)
    crewai_event_bus.flush()
    assert again == whole and len(pieces) > 1 and "".join(chunk for _, chunk in sorted(pieces)) == whole, pieces

    form = dict(mode="autoregressive")  # what must be of a form is written token by token
    calls = dict(form, tool_choice="required", parallel_tool_calls=False)
    called = llm(model, **calls).call(TABLE, tools=[FIND])
    assert [call.function.name for call in called] == ["find"], called
    ran = llm(model, **calls).call(TABLE, tools=[FIND], available_functions={"find": find.func})
    assert ran == "not found" and len(asked) == 1, (ran, asked)
    result = {"role": "tool", "tool_call_id": called[0].id, "content": "not found"}
    made = {"role": "assistant", "content": None, "tool_calls": [called[0].model_dump()]}
    told = llm(model)
    assert isinstance(told.call(TABLE + [made, result]), str)
    assert told.get_token_usage_summary().prompt_tokens > plain.get_token_usage_summary().prompt_tokens
    held = llm(model, **form).call(TABLE, response_model=Person)
    assert isinstance(held, Person), held

    asked.clear()
    done = crew(llm(model, **calls))
    assert done.raw == "not found" and asked and done.token_usage.completion_tokens > 0, done
    streamed = crew(llm(model, True, **calls))
    assert streamed.raw == "not found" and len(asked) == 2 and asked[0] == asked[1], asked

for wrong, text, kind, word in (
        ("nobody", "Hello", ValueError, "model_not_found"),
        ("weft-demo", "many words " * 4000, LLMContextLengthExceededError, "context_length_exceeded")):
    try:
        llm(wrong).call(text)
        raise SystemExit("no error")
    except kind as error:
        assert word in str(error), error
print("crewai: models whole and streamed, tools, crews of an agent, structured output, usage, errors")
