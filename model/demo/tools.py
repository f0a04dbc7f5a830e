# SPDX-License-Identifier: MIT
"""Chats in which tools are declared: calls, answers from results, questions that need no tool.

The law of tasks.py holds here too: a call has a key of its own, its tool and arguments, and no
held-out call is ever in a training example, not even as one of two or in an earlier turn. Names of
tools and of arguments vary, so the model must read the declarations. Calls are written in the form
of Hermes, since it is the same text whether a call may, must or must alone be made, and the
vocabulary spells its marks with letters.
"""

import json

import tasks

OPEN, CLOSE = "<tool_call>\n", "\n</tool_call>"
NO_TOOL = "I have no tool for that."
CITIES, NAMES, FOODS, COLORS = tasks.CITIES, tasks.NAMES, tasks.FOODS, tasks.COLORS


class Tool:
    """What one tool is: its names, its arguments as (names, kind, draw), how it is asked for, what
    it gives (a key and a draw, from the arguments), and what is said of that."""

    def __init__(self, names, about, arguments, asks, key, gives, says):
        self.names, self.about, self.arguments, self.asks = names, about, arguments, asks
        self.key, self.gives, self.says = key, gives, says


def hour(r, _):
    return f"{r.randint(0, 23)}:{r.randint(10, 59)}"


CITY = (("city", "place"), "string", lambda r: r.choice(CITIES))
FOOD = (("food", "item"), "string", lambda r: r.choice(FOODS))
PERSON = (("name", "person"), "string", lambda r: r.choice(NAMES))
TOOLS = (
    Tool(
        ("weather", "get_weather", "read_weather"),
        "The weather in a city",
        (CITY,),
        ("What is the weather in {0}?", "How is the weather in {0}?", "Is it cold in {0}?"),
        "weather",
        lambda r, _: r.choice(("warm", "cold", "soft rain", "white", "gray", "happy")),
        "The weather in {0} is {result}.",
    ),
    Tool(
        ("time", "get_time", "clock"),
        "The time in a city",
        (CITY,),
        ("What time is it in {0}?", "What is the time in {0}?", "Give me the time in {0}."),
        "time",
        hour,
        "It is {result} in {0}.",
    ),
    Tool(
        ("price", "get_price", "cost"),
        "What a food costs",
        (FOOD,),
        ("What is the price of {0}?", "How much is the {0}?", "What does {0} cost?"),
        "price",
        lambda r, _: tasks.number(r, low=1),
        "The price of {0} is {result}.",
    ),
    Tool(
        ("phone", "get_number", "find_person"),
        "The number of a person",
        (PERSON,),
        ("What is the number of {0}?", "Which number does {0} have?", "Find the number of {0}."),
        "number",
        lambda r, _: r.randint(100, 9999),
        "The number of {0} is {result}.",
    ),
    Tool(
        ("multiply", "times", "product"),
        "The product of two numbers",
        (
            (("a", "x"), "integer", lambda r: tasks.number(r, low=2)),
            (("b", "y"), "integer", lambda r: tasks.number(r, low=2)),
        ),
        ("What is {0} times {1}?", "Compute {0} times {1}.", "{0} times {1}?"),
        "product",
        lambda r, values: values[0] * values[1],
        "{0} times {1} is {result}.",
    ),
    Tool(
        ("buy", "order", "buy_food"),
        "Buy some food",
        (FOOD, (("count", "number"), "integer", lambda r: tasks.number(r, low=2))),
        ("Buy {1} of the {0}.", "Order {0}, {1} of it.", "Get me {1} times {0}."),
        "left",
        lambda r, _: tasks.number(r, low=1),
        "You have {result} of the {0}.",
    ),
    Tool(
        ("light", "set_light", "lamp"),
        "Turn a light on or off",
        ((("color", "light"), "string", lambda r: r.choice(COLORS)),)
        + ((("on", "state"), "boolean", lambda r: r.random() < 0.5),),
        ("Turn the {0} light {1}.", "Make the {0} lamp go {1}.", "{1} with the {0} light!"),
        "light",
        lambda r, values: "on" if values[1] else "off",
        "The {0} light is {result}.",
    ),
    Tool(
        ("send", "send_letter", "tell"),
        "Send words to a person",
        (
            PERSON,
            (
                ("text", "words"),
                "string",
                lambda r: " ".join(r.sample(tasks.WORDS, r.randint(1, 5))),
            ),
        ),
        ("Tell {0}: {1}", "Send {0} these words: {1}", "Write a letter to {0} with {1}"),
        "letter",
        lambda r, _: "sent",
        "{0} has your letter.",
    ),
    Tool(
        ("train", "find_train", "get_train"),
        "The next train between two cities",
        (
            (("start", "from"), "string", lambda r: r.choice(CITIES)),
            (("end", "to"), "string", lambda r: r.choice(CITIES)),
        ),
        ("When is the train from {0} to {1}?", "Find a train from {0} to {1}."),
        "leaves",
        hour,
        "The train from {0} to {1} leaves at {result}.",
    ),
)


def said(value):
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


class Declared:
    """A tool under the names that one conversation gives it."""

    def __init__(self, r, tool, about):
        self.tool, self.name = tool, r.choice(tool.names)
        which = r.randrange(2)
        self.arguments = [names[which] for names, _, _ in tool.arguments]
        properties = {a: {"type": t} for a, (_, t, _) in zip(self.arguments, tool.arguments)}
        self.json = {"name": self.name}
        if about:
            self.json["description"] = tool.about
        self.json["parameters"] = {
            "type": "object",
            "properties": properties,
            "required": self.arguments,
            "additionalProperties": False,
        }


class Call:
    """One use of a tool: the question, the call, the result and what is said of it."""

    def __init__(self, r, declared):
        tool = declared.tool
        self.values = [draw(r) for _, _, draw in tool.arguments]
        words = [said(v) for v in self.values]
        ask = r.choice(tool.asks).format(*words)
        self.ask = ask[0].upper() + ask[1:]
        arguments = json.dumps(dict(zip(declared.arguments, self.values)))
        self.text = f'{OPEN}{{"name": "{declared.name}", "arguments": {arguments}}}{CLOSE}'
        self.key = " ".join([tool.names[0]] + words)
        value = tool.gives(r, self.values)
        self.result = json.dumps({tool.key: value}) if r.random() < 0.6 else said(value)
        self.answer = tool.says.format(*words, result=said(value))
        self.result_key = f"{self.key} {said(value)}"


def use(r, available, free):
    """One or two calls that one question asks for; with `free` they may be held out."""
    n = 2 if r.random() < 0.3 else 1
    while True:
        calls = [Call(r, r.choice(available)) for _ in range(n)]
        keys = [c.key for c in calls]
        if len(set(keys)) == n and (free or not any(tasks.held_out(f"call {k}") for k in keys)):
            return calls


def joined(calls, what, between):
    return between.join(getattr(c, what) for c in calls)


def call_messages(calls):
    """The question, the calls, and a result each."""
    asked = [c.ask + ("" if c.ask[-1] in ".?!" else ".") for c in calls[:-1]] + [calls[-1].ask]
    return [
        {"role": "user", "content": " ".join(asked)},
        {"role": "assistant", "content": joined(calls, "text", "\n")},
    ] + [{"role": "tool", "content": c.result} for c in calls]


def called(r, family, available, want_held_out):
    """A task of the families call and result, and the messages before its answer."""
    while True:
        calls = use(r, available, want_held_out)
        if family == "call":
            key, answer = f"call {joined(calls, 'key', '; ')}", joined(calls, "text", "\n")
            messages = call_messages(calls)[:1]
        else:
            key, answer = (
                f"result {joined(calls, 'result_key', '; ')}",
                joined(calls, "answer", " "),
            )
            messages = call_messages(calls)
        if tasks.held_out(key) == want_held_out:
            return messages, tasks.Task(family, messages[0]["content"], answer, key)


def plain(r, available, absent, want_held_out):
    """A question that needs no tool, or one that needs a tool that is not there."""
    while True:
        if r.random() < 0.4:
            call = Call(r, r.choice(absent))
            task = tasks.Task("aside", call.ask, NO_TOOL, f"call {call.key}")
        else:
            kind = r.choice(("arithmetic", "reverse", "sort", "count", "lookup", "case"))
            task = tasks.MAKERS[kind](r, None, False)
            task.family = "aside"
        if tasks.held_out(task.key) == want_held_out:
            return [{"role": "user", "content": task.user}], task


def calling(r, family, want_held_out):
    """A conversation with tools, perhaps with a turn before the last. The same as
    tasks.conversation gives."""
    some = r.sample(TOOLS, len(TOOLS))
    n, about = r.randint(1, 5), r.random() < 0.5
    declared = [Declared(r, tool, about) for tool in some]
    available, absent = declared[:n], declared[n:]
    system = r.choice(tasks.ROLES) if r.random() < 0.4 else None
    messages = [{"role": "system", "content": system}] if system else []
    if r.random() < 0.35:
        if r.random() < 0.5:
            before, task = called(r, "result", available, False)
        else:
            before, task = plain(r, available, absent, False)
        messages += before + [{"role": "assistant", "content": task.answer}]
    if family == "aside":
        more, task = plain(r, available, absent, want_held_out)
    else:
        more, task = called(r, family, available, want_held_out)
    task.tools = [{"type": "function", "function": d.json} for d in available]
    return messages + more + [{"role": "assistant", "content": task.answer}], task
