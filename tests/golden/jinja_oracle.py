# SPDX-License-Identifier: MIT
"""Conversations, and what Python's jinja2 prints for them in the environment that chat templates are written for."""

import datetime
import json

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2026, 11, 22, 13, 5, 9)
WORDS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


class Generation(Extension):
    """{% generation %}: a body with a scope of its own, as transformers has it."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    @staticmethod
    def _same(caller):
        return caller()


class Refused(jinja2.exceptions.TemplateError):
    pass


def refuse(message):
    raise Refused(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, "jinja2.ext.loopcontrols"])
    env.filters["tojson"] = to_json
    env.filters["from_json"] = json.loads
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = NOW.strftime
    return env


def render(template, values, words=None):
    """(text, None) or (None, why)."""
    try:
        return template.render(**values, **(WORDS if words is None else words)), None
    except Exception as e:  # whatever a template does to its values
        return None, f"{type(e).__name__}: {e}"


def user(text):
    return {"role": "user", "content": text}


def model(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text, role="system"):
    return {"role": role, "content": text}


def call(name, arguments, ident=None):
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return made if ident is None else {"id": ident, **made}


def result(text, name="weather", ident="abcdef012"):
    return {"role": "tool", "content": text, "name": name, "tool_call_id": ident}


WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "Tells the weather of a place.\nOf today.",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "A \"city\" or town"},
        "days": {"type": "integer", "description": "how many", "minimum": 1, "default": 3},
        "units": {"type": "string", "enum": ["metric", "imperial"]},
        "where": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}},
                  "required": ["lat", "lon"]},
        "tags": {"type": "array", "items": {"type": "string"}}}}}}
PLAIN = {"type": "function", "function": {"name": "now", "description": "", "parameters": {
    "type": "object", "properties": {}}}}
UNICODE = {"type": "function", "function": {"name": "s\u00f8g", "description": "\u6cb3\u6d41 <b> & \U0001f600",
                                             "parameters": {"type": "object", "properties": {
                                                 "\u00e5r": {"type": ["integer", "null"], "nullable": True}}}}}
STRUCTURE = "<|im_end|>\n<|im_start|>system\n<turn|><|turn>model\n<|eot_id|></s>[/INST]<|end|><think>\u27e6user\u27e7"
THOUGHT = "<think>\nfirst this\n</think>\n\nthen that"
CHANNEL = "<|channel>thought\nfirst this\n<channel|>then that"
ARGUMENTS = {"city": "\u00c5rhus", "days": 3, "where": {"lat": 56.15, "lon": 10.2}, "tags": ["a", "b"], "deep": None,
             "ok": True}
CALLED = [user("weather?"), model("", tool_calls=[call("weather", {"city": "Paris"}, "abcdef012")]), result('{"temp": 3.5}')]


def messages_of():
    """name -> messages, or (messages, tools), or (messages, tools, variables)."""
    tools = [WEATHER, PLAIN]
    return {
        "one": [user("Why is the sky blue?")],
        "system": [system("You are careful."), user("Hello")],
        "developer": [system("Be exact.", "developer"), user("Hello")],
        "system-spaces": [system("  \n Answer briefly. \n\n"), user("  Hello  there \n")],
        "system-empty": [system(""), user("Hello")],
        "two-turns": [user("Hello"), model("Hi. What can I do?"), user("Count to three.")],
        "long": [system("Be kind."), user("a"), model("b"), user("c"), model("d"), user("e"), model("f"), user("g")],
        "empty-user": [user("")],
        "spaces": [user(" \n\t ")],
        "lines": [user("line one\n\n\nline two\n  indented\n")],
        "crlf": [user("a\r\nb\tc\r\n\u2028d")],
        "unicode": [user("\u6cb3\u6d41 \U0001f600 caf\u00e9 \u05e0\u05d4\u05e8"), model("\u00dcber \u00a0"), user("\u3000\u00e9\u3000")],
        "braces": [user("{\"a\": 'b'} {{ x }} {% if y %} {# z #} & < > \\n %s")],
        "ends-with-model": [user("Hello"), model("Hi.")],
        "two-models": [user("Hello"), model("Hi."), model("And more."), user("ok")],
        "two-users": [user("Hello"), user("Are you there?")],
        "starts-with-model": [model("Welcome."), user("Hello")],
        "late-system": [user("Hello"), system("Now be brief."), user("ok")],
        "only-system": [system("Nothing else.")],
        "none": [],
        "structure": [system(STRUCTURE), user(STRUCTURE), model(STRUCTURE), user(STRUCTURE)],
        "thought": [user("q"), model(THOUGHT), user("r")],
        "thought-now": [user("q"), model(THOUGHT)],
        "reasoning": [user("q"), model("then that", reasoning_content="first this"), user("r"),
                      model("so", reasoning_content="\nwhy \n")],
        "reasoning-other": [user("q"), model("then that", reasoning="first this", thinking="first this"), user("r")],
        "channel": [user("q"), model(CHANNEL), user("r")],
        "unclosed": [user("q"), model("kept <think>\nnever closed"), user("r")],
        "null-content": [user("q"), {"role": "assistant", "content": None}, user("r")],
        "no-content": [user("q"), {"role": "assistant"}, user("r")],
        "parts": [user([{"type": "text", "text": "a "}, {"type": "text", "text": "b"}])],
        "image": [user([{"type": "image"}, {"type": "text", "text": "What is this?"}])],
        "system-parts": [system([{"type": "text", "text": "Be kind."}]), user("q")],
        "odd-role": [user("q"), {"role": "narrator", "content": "so"}],
        "tools": ([user("weather?")], tools),
        "tools-system": ([system("Be brief."), user("weather?")], tools),
        "tools-unicode": ([user("\u00e5r?")], [UNICODE]),
        "tools-empty": ([user("q")], []),
        "called": (CALLED, tools),
        "called-answered": (CALLED + [model("3.5 degrees."), user("thanks")], tools),
        "called-no-tools": CALLED,
        "called-twice": ([user("both"), model("I look.", tool_calls=[call("weather", ARGUMENTS, "abcdef012"),
                                                                     call("now", {}, "abcdef013")]),
                          result("one"), result("two", "now", "abcdef013"), model("done")], tools),
        "called-text-arguments": ([user("w"), model(None, tool_calls=[call("weather", '{"city": "A"}', "abcdef012")]),
                                   result("x")], tools),
        "called-structure": ([user("w"), model("", tool_calls=[call("weather", {STRUCTURE: STRUCTURE}, "abcdef012")]),
                              result(STRUCTURE)], [{"type": "function", "function": {
                                  "name": "weather", "description": STRUCTURE, "parameters": {
                                      "type": "object", "properties": {STRUCTURE: {"type": "string", "description": STRUCTURE}}}}}]),
        "called-thinking": ([user("w"), model("", reasoning_content="must look", tool_calls=[
            call("weather", {"city": "B"}, "abcdef012")]), result("warm"), model("ok", reasoning_content="fine"), user("more")], tools),
        "thinking-on": ([system("s"), user("q")], None, {"enable_thinking": True}),
        "thinking-off": ([user("q"), model(THOUGHT), user("r")], None, {"enable_thinking": False}),
        "variables": ([user("q")], tools, {"enable_thinking": True, "reasoning_effort": "high", "preserve_thinking": True,
                                           "date_string": "22 Nov 2026", "documents": [{"title": "t", "text": "x"}],
                                           "add_vision_id": True, "model_identity": "I am.", "xml_tools": [], "thinking": True}),
    }


def conversations():
    """[(name, values)]"""
    out = []
    for name, given in messages_of().items():
        messages, tools, more = (given + (None,) * 3)[:3] if isinstance(given, tuple) else (given, None, None)
        values = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": True}
        out.append((name, {**values, **(more or {})}))
        if name in ("two-turns", "ends-with-model", "called-twice"):
            out.append((name + "-closed", {**values, "add_generation_prompt": False}))
    return out
