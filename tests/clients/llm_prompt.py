# SPDX-License-Identifier: MIT
"""The llm package against a server of both demo models: python llm_prompt.py URL"""
import json
import os
import sys
import tempfile

folder = tempfile.TemporaryDirectory()
os.environ["LLM_USER_PATH"] = folder.name
with open(os.path.join(folder.name, "extra-openai-models.yaml"), "w") as models:
    for name in ("weft-demo", "weft-demo-ar"):
        models.write(f"- model_id: {name}\n  model_name: {name}\n  api_base: {sys.argv[1]}/v1\n"
                     "  supports_tools: true\n  supports_schema: true\n")
import llm
import pydantic

TABLE = "Make a table: Tom 43 Oslo; Ana 88 Kyiv; Zoe 47 Seoul; Kim 19 Paris"
OPTIONS = dict(temperature=0, seed=5, max_tokens=96)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=99)


def find(name: str) -> str:
    "Finds a person."
    return "not found"


for name in ("weft-demo", "weft-demo-ar"):
    model = llm.get_model(name)
    whole = model.prompt(TABLE, system="Be brief.", stream=False, **OPTIONS)
    assert "Zoe" in whole.text() and whole.usage().output > 0 and whole.usage().input > 0
    streamed = model.prompt(TABLE, system="Be brief.", stream=True, **OPTIONS)
    assert "".join(streamed) == whole.text() and streamed.usage().output == whole.usage().output
    talk = model.conversation()
    assert talk.prompt("What is 58 + 37?", **OPTIONS).text() and talk.prompt("Say 5.", **OPTIONS).text()
    with_tools = model.chain(TABLE, system="Be brief.", tools=[find], options=OPTIONS)
    with_tools.text()  # it sends no tool_choice: the model decides

held = llm.get_model("weft-demo-ar").prompt("Who is Dan?", schema=Person, stream=False, **OPTIONS)
Person.model_validate(json.loads(held.text()))
try:
    llm.get_model("weft-demo").prompt("many words " * 4000, **OPTIONS).text()
    raise SystemExit("no error")
except Exception as error:
    assert "maximum context length is" in str(error), error
print("llm: prompt, stream, conversation, tools declared, schema, usage, errors")
