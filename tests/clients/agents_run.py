# SPDX-License-Identifier: MIT
"""The openai-agents package against a server of both demo models: python agents_run.py URL"""
import asyncio
import sys

import agents
import openai
import pydantic

agents.set_tracing_disabled(True)  # else it sends what it did to the network
client = openai.AsyncOpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
TABLE = "Make a table: Tom 43 Oslo; Ana 88 Kyiv; Zoe 47 Seoul; Kim 19 Paris"
SAMPLING = dict(temperature=0, max_tokens=96, include_usage=True)
SETTINGS = agents.ModelSettings(extra_body=dict(seed=5), **SAMPLING)
TOKENS = dict(SAMPLING, extra_body=dict(seed=5, mode="autoregressive"))  # what must be of a form is written so
asked = []


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=99)


@agents.function_tool
def find(name: str) -> str:
    """Finds a person."""
    asked.append(name)
    return "not found"


async def stream(agent, text):
    """The run of a stream of events, the text of its pieces, and the names of what happened."""
    run, text, names = agents.Runner.run_streamed(agent, text), "", []
    async for event in run.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
        if event.type == "run_item_stream_event":
            names.append(event.name)
    return run, text, names


async def call(model):
    """A call that must be, its result, and what the model says of it, whole and streamed."""
    for choice in ("required", "find"):
        # after one call the package leaves the choice to the model, which answers in text
        agent = agents.Agent("finder", model=model, tools=[find], model_settings=agents.ModelSettings(
            tool_choice=choice, parallel_tool_calls=False, **TOKENS))
        asked.clear()
        whole = await agents.Runner.run(agent, "Who is Dan?")
        kinds = [item.type for item in whole.new_items]
        assert kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"], kinds
        assert whole.new_items[0].raw_item.name == "find" and whole.new_items[1].output == "not found", whole.new_items
        first, second = whole.raw_responses
        assert second.usage.input_tokens > first.usage.input_tokens  # the prompt has the call and its result
        run, text, names = await stream(agent, "Who is Dan?")
        assert text == run.final_output == whole.final_output, (text, run.final_output, whole.final_output)
        assert [name for name in names if name.startswith("tool_")] == ["tool_called", "tool_output"], names
        assert len(asked) == 2 and asked[0] == asked[1], asked


async def main():
    for name in ("weft-demo", "weft-demo-ar"):
        for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
            model = kind(name, client)
            agent = agents.Agent("writer", instructions="Be brief.", model=model, model_settings=SETTINGS)
            whole = await agents.Runner.run(agent, TABLE)
            usage = whole.context_wrapper.usage
            assert "Zoe" in whole.final_output and usage.requests == 1 and usage.output_tokens > 0, whole
            run, text, _ = await stream(agent, TABLE)
            assert text == run.final_output == whole.final_output, text
            assert run.context_wrapper.usage.output_tokens == usage.output_tokens
            more = await agents.Runner.run(agent, whole.to_input_list() + [{"role": "user", "content": "Say 5."}])
            assert more.context_wrapper.usage.input_tokens > usage.input_tokens
            await call(model)
            held = agents.Agent("former", model=model, output_type=Person,
                                model_settings=agents.ModelSettings(**TOKENS))
            assert isinstance((await agents.Runner.run(held, "Who is Dan?")).final_output, Person)

    for wrong, error, code in (("nobody", openai.NotFoundError, "model_not_found"),
                               ("weft-demo", openai.BadRequestError, "context_length_exceeded")):
        model = agents.OpenAIChatCompletionsModel(wrong, client)
        try:
            await agents.Runner.run(agents.Agent("writer", model=model), "many words " * 4000)
            raise SystemExit("no error")
        except error as found:
            assert found.code == code, found


asyncio.run(main())
print("openai-agents: chat and responses, streams, histories, tools, structured output, usage, errors")
