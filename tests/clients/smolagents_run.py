# SPDX-License-Identifier: MIT
"""The smolagents package against a server of both demo models: python smolagents_run.py URL"""
import json
import sys

import openai
import smolagents
from smolagents import tool  # by this name, else it warns of a decorator it does not know

TABLE = [{"role": "system", "content": "Be brief."},
         {"role": "user", "content": "Make a table: Tom 43 Oslo; Ana 88 Kyiv; Zoe 47 Seoul; Kim 19 Paris"}]
FORM = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": {
    "type": "object", "properties": {"name": {"type": "string", "maxLength": 8},
                                     "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"], "additionalProperties": False}}}
asked = []


@tool
def find(name: str) -> str:
    """Finds a person.

    Args:
        name: Who is looked for.
    """
    asked.append(name)
    return "not found"


def model_of(name, **more):
    body = dict(seed=5, **more)
    return smolagents.OpenAIModel(name, api_base=sys.argv[1] + "/v1", api_key="none", retry=False, temperature=0,
                                  max_tokens=96, client_kwargs=dict(max_retries=0), extra_body=body)


for name in ("weft-demo", "weft-demo-ar"):
    model = model_of(name)
    whole = model.generate(TABLE)
    assert "Zoe" in whole.content and whole.token_usage.output_tokens > 0, whole
    parts = list(model.generate_stream(TABLE))
    assert len(parts) > 1 and smolagents.models.agglomerate_stream_deltas(parts).content == whole.content, parts
    assert parts[-1].token_usage.output_tokens == whole.token_usage.output_tokens
    assert model.generate(TABLE, stop_sequences=["Seoul"]).content == whole.content.split("Seoul")[0]

    by_tokens = model_of(name, mode="autoregressive")  # what must be of a form is written so
    called = by_tokens.generate(TABLE, tools_to_call_from=[find])  # the package asks for "required"
    assert called.tool_calls and {call.function.name for call in called.tool_calls} == {"find"}, called
    parts = list(by_tokens.generate_stream(TABLE, tools_to_call_from=[find]))
    again = smolagents.models.agglomerate_stream_deltas(parts)
    assert [call.function.arguments for call in again.tool_calls] == [
        call.function.arguments for call in called.tool_calls], again
    assert len(json.loads(by_tokens.generate(TABLE, response_format=FORM).content)["name"]) <= 8

    # a demo model may choose to find for ever: after three steps the package asks for an answer in text
    for streamed in (False, True):
        asked.clear()
        agent = smolagents.ToolCallingAgent([find], by_tokens, max_steps=3, stream_outputs=streamed,
                                            verbosity_level=smolagents.LogLevel.OFF)
        agent.prompt_templates["system_prompt"] = "Be brief."  # its own is longer than their context
        run = agent.run("Who is Dan?", return_full_result=True)
        steps = [step for step in agent.memory.steps if isinstance(step, smolagents.ActionStep)]
        calls = [call for step in steps for call in step.tool_calls or []]
        assert calls and {call.name for call in calls} <= {"find", "final_answer"}, calls
        assert len([call for call in calls if call.name == "find"]) == len(asked)
        assert asked and any("not found" in (step.observations or "") for step in steps), steps
        assert run.output and run.token_usage.output_tokens > 0, run

for wrong, text, kind, code in (("nobody", "Hello", openai.NotFoundError, "model_not_found"),
                                ("weft-demo", "many words " * 4000, openai.BadRequestError, "context_length_exceeded")):
    try:
        model_of(wrong).generate([{"role": "user", "content": text}])
        raise SystemExit("no error")
    except kind as error:
        assert error.code == code, error
print("smolagents: models whole and streamed, stop strings, tools, agents, structured output, usage, errors")
