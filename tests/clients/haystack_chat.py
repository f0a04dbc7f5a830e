# SPDX-License-Identifier: MIT
"""The haystack-ai package against a server of both demo models: python haystack_chat.py URL"""
import os
import sys

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
import openai
import pydantic
from haystack import Pipeline
from haystack.components.agents import Agent
from haystack.components.builders import ChatPromptBuilder
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack.utils import Secret

TABLE = [ChatMessage.from_system("Be brief."),
         ChatMessage.from_user("Make a table: Tom 43 Oslo; Ana 88 Kyiv; Zoe 47 Seoul; Kim 19 Paris")]


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=99)


@tool
def find(name: str) -> str:
    """Finds a person."""
    return "not found"


def generator(kind, model, body=dict(seed=5), streaming_callback=None, **more):
    length = {OpenAIChatGenerator: "max_tokens", OpenAIResponsesChatGenerator: "max_output_tokens"}[kind]
    return kind(model=model, api_key=Secret.from_token("none"), api_base_url=sys.argv[1] + "/v1", max_retries=0,
                timeout=300, streaming_callback=streaming_callback,
                generation_kwargs={"temperature": 0, length: 96, "extra_body": body, **more})


def answer(generator, messages=TABLE, **more):
    replies = generator.run(messages, **more)["replies"]
    assert len(replies) == 1, replies
    return replies[0]


for model in ("weft-demo", "weft-demo-ar"):
    for kind in (OpenAIChatGenerator, OpenAIResponsesChatGenerator):
        usage = {OpenAIChatGenerator: ("prompt_tokens", "completion_tokens"),
                 OpenAIResponsesChatGenerator: ("input_tokens", "output_tokens")}[kind]
        whole = answer(generator(kind, model))
        assert "Zoe" in whole.text and whole.meta["usage"][usage[1]] > 0, whole
        pieces = []
        streamed = answer(generator(kind, model, streaming_callback=lambda chunk: pieces.append(chunk.content or "")))
        assert "".join(pieces) == streamed.text == whole.text and len(pieces) > 1, pieces
        more = answer(generator(kind, model), TABLE + [whole, ChatMessage.from_user("Say 5.")])
        assert more.meta["usage"][usage[0]] > whole.meta["usage"][usage[0]], more

        tokens = dict(seed=5, mode="autoregressive")  # what must be of a form is written so
        called = answer(generator(kind, model, tokens, tool_choice="required", parallel_tool_calls=False), tools=[find])
        assert [call.tool_name for call in called.tool_calls] == ["find"], called
        again = answer(generator(kind, model, tokens, streaming_callback=lambda chunk: None, tool_choice="required",
                                 parallel_tool_calls=False), tools=[find])
        assert [call.arguments for call in again.tool_calls] == [call.arguments for call in called.tool_calls], again
        result = ChatMessage.from_tool("not found", origin=called.tool_calls[0])
        told = answer(generator(kind, model), TABLE + [called, result], tools=[find])
        assert told.meta["usage"][usage[0]] > called.meta["usage"][usage[0]], told

        agent = Agent(chat_generator=generator(kind, model, tokens, tool_choice="required", parallel_tool_calls=False),
                      tools=[find], exit_conditions=["find"])
        last = agent.run([ChatMessage.from_user("Who is Dan?")])["messages"][-1]
        assert [result.result for result in last.tool_call_results] == ["not found"], last
        form = {OpenAIChatGenerator: "response_format", OpenAIResponsesChatGenerator: "text_format"}[kind]
        Person.model_validate_json(answer(generator(kind, model, tokens, **{form: Person})).text)

    pipeline = Pipeline()
    pipeline.add_component("prompt", ChatPromptBuilder([ChatMessage.from_user("What is {{ a }} + {{ b }}?")]))
    pipeline.add_component("model", generator(OpenAIChatGenerator, model))
    pipeline.connect("prompt.prompt", "model.messages")
    assert pipeline.run({"prompt": {"a": 58, "b": 37}})["model"]["replies"][0].text

for wrong, text, kind, code in (("nobody", "Hello", openai.NotFoundError, "model_not_found"),
                                ("weft-demo", "many words " * 4000, openai.BadRequestError, "context_length_exceeded")):
    try:
        generator(OpenAIChatGenerator, wrong).run([ChatMessage.from_user(text)])
        raise SystemExit("no error")
    except kind as error:
        assert error.code == code, error
print("haystack-ai: chat and responses, streams, histories, tools, agents, pipelines, structured output, usage, errors")
