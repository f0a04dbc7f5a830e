# SPDX-License-Identifier: MIT
"""The instructor package against a server of both demo models: python instructor_create.py URL"""
import logging
import sys

import instructor
import openai
import pydantic

logging.getLogger("instructor").setLevel(logging.CRITICAL)  # of the error that is wanted
MESSAGES = [{"role": "user", "content": "Who is Dan?"}]


class Person(pydantic.BaseModel):
    """A person."""
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=99)


for model in ("weft-demo", "weft-demo-ar"):
    # what must be of a form is written token by token
    ask = dict(model=model, messages=MESSAGES, max_retries=0, max_tokens=96, temperature=0, seed=5,
               extra_body=dict(mode="autoregressive"))
    for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0), mode=mode)
        person, answer = client.chat.completions.create_with_completion(response_model=Person, **ask)
        assert isinstance(person, Person) and answer.usage.completion_tokens > 0, answer
        parts = list(client.chat.completions.create_partial(response_model=Person, **ask))
        assert isinstance(parts[-1].age, int) and len(parts[-1].name) <= 8, parts  # how many is a matter of time
    many = list(client.chat.completions.create_iterable(response_model=Person, **dict(ask, max_tokens=300)))
    assert all(isinstance(one, Person) for one in many)

try:
    client.chat.completions.create(response_model=Person, **dict(ask, model="nobody"))
    raise SystemExit("no error")
except Exception as error:
    assert "nobody" in str(error), error
print("instructor: tools, strict tools, schemas, parts of an object, lists, usage, errors")
