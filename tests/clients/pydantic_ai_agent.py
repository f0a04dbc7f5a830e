# SPDX-License-Identifier: MIT
"""The pydantic-ai package against a server of both demo models: python pydantic_ai_agent.py URL"""
import asyncio
import sys

import pydantic
from pydantic_ai import Agent, NativeOutput, ToolOutput, UsageLimits
from pydantic_ai.exceptions import ModelContextWindowExceededError, ModelHTTPError, UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

TABLE = "Make a table: Tom 43 Oslo; Ana 88 Kyiv; Zoe 47 Seoul; Kim 19 Paris"
provider = OpenAIProvider(base_url=sys.argv[1] + "/v1", api_key="none")
SETTINGS = dict(temperature=0, max_tokens=96, extra_body=dict(seed=5))
TOKENS = dict(SETTINGS, extra_body=dict(seed=5, mode="autoregressive"))  # what must be of a form is written so


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=99)


async def stream_of(agent):
    async with agent.run_stream(TABLE, model_settings=SETTINGS) as run:
        return await run.get_output()


for name in ("weft-demo", "weft-demo-ar"):
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        model = kind(name, provider=provider)
        agent = Agent(model, instructions="Be brief.")
        run = agent.run_sync(TABLE, model_settings=SETTINGS)
        assert "Zoe" in run.output and run.usage.output_tokens > 0, run
        assert asyncio.run(stream_of(agent)) == run.output
        more = agent.run_sync("Say 5.", message_history=run.all_messages(), model_settings=SETTINGS)
        assert more.usage.input_tokens > run.usage.input_tokens

        for output in (NativeOutput(Person), ToolOutput(Person)):
            held = Agent(model, output_type=output, retries=0).run_sync("Who is Dan?", model_settings=TOKENS)
            assert isinstance(held.output, Person)

        seen = []
        caller = Agent(model, output_type=ToolOutput(Person), retries=0)

        @caller.tool_plain
        def find(name: str) -> str:
            """Finds a person."""
            seen.append(name)
            return "not found"

        try:  # one of the two is called each time: a demo model may choose to find for ever
            last = caller.run_sync("Who is Dan?", model_settings=TOKENS, usage_limits=UsageLimits(request_limit=4))
            assert isinstance(last.output, Person)
        except UsageLimitExceeded:
            assert len(seen) == 4

for wrong, kind, code in (("nobody", ModelHTTPError, 404), ("weft-demo", ModelContextWindowExceededError, 400)):
    try:
        Agent(OpenAIChatModel(wrong, provider=provider)).run_sync("many words " * 4000)
        raise SystemExit("no error")
    except kind as error:
        assert error.status_code == code, error
print("pydantic-ai: chat and responses, streams, histories, tools, structured output, usage, errors")
