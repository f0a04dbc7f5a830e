# SPDX-License-Identifier: MIT
"""Chat examples for the demo model, generated, never collected.

The law of this file: every example is a pure function of the random generator it is given. A task
has a `key`, the canonical content of the question without its wording; a task is held out if the
64-bit FNV-1a hash of its key is 0 modulo 10, and held-out tasks are never put into a training
example, not even as an earlier turn.

Exact families have one right answer. Many-answer families carry a validator, a small declarative
object (README.md). Structured families ask the questions of others for JSON, in the one order and
spacing that a schema with these properties asks for; tools.py has those with calls of tools.
"""

import json
import random

ANIMALS = (
    "cat dog fox hen cow pig bee ant owl bat rat elk horse mouse sheep goat duck frog bear "
    "wolf lion seal"
).split()
THINGS = (
    "cup hat box pen bag map key bell boat door lamp ring book ball coat drum fork kite leaf "
    "rock shoe tree"
).split()
COLORS = "red blue green pink gray black white brown".split()
FOODS = "apple bread cake corn egg fig jam milk nut pear plum rice soup tea".split()
ADJECTIVES = "big small old new soft warm cold fast slow happy".split()
VERBS = "sees finds likes wants takes has".split()
TAILS = ("today", "at night", "every day", "near the door", "in the garden", "by the river")
STARTS = ("The", "My", "Our", "One")
NAMES = (
    "Mia Tom Eva Ben Ana Leo Zoe Max Ida Sam Amy Dan Lea Jon Kim Roy Sue Tim Una Vic Wes Pam "
    "Ned Gus"
).split()
CITIES = (
    "Oslo Rome Paris Lima Cairo Delhi Tokyo Bern Riga Quito Kyiv Milan Seoul Sofia Tunis Dakar"
).split()
WORDS = ANIMALS + THINGS + COLORS + FOODS + ADJECTIVES
PLAIN = ANIMALS + THINGS  # the words of the case family
ROLES = (
    "You are a helpful assistant.",
    "Answer briefly.",
    "You are a careful clerk.",
    "Be short and exact.",
    "You help people with small tasks.",
    "Answer with the result only.",
    "You are a friendly robot.",
    "Think well and answer in one go.",
    "You never make mistakes.",
    "Follow the instructions of the user.",
)

EXACT = ("arithmetic", "reverse", "sort", "count", "lookup", "case", "sequence", "table", "path")
MANY = ("json", "sentence", "story", "items")
FAMILIES = EXACT + MANY
MULTI = ("sequence", "table", "story")  # answers longer than one canvas
STRUCTURED = ("answer", "list", "rows", "record")  # JSON with a schema; the spacing of json.dumps
CALLING = ("call", "result", "aside")  # of tools.py
SETTLED = EXACT + ("json",) + STRUCTURED + CALLING  # what training shows one right answer of


def fnv1a(text):
    """64-bit FNV-1a of the UTF-8 bytes of text."""
    h = 0xCBF29CE484222325
    for b in text.encode():
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def held_out(key):
    return fnv1a(key) % 10 == 0


class Task:
    """One question: what the user says, one right answer, the canonical key, the validator if
    many are right, the JSON schema of the answer if it has one, the tools that are declared."""

    __slots__ = ("family", "user", "answer", "key", "validator", "schema", "tools")

    def __init__(self, family, user, answer, key, validator=None, schema=None, tools=None):
        self.family, self.user, self.answer, self.key = family, user, answer, key
        self.validator, self.schema, self.tools = validator, schema, tools

    def settled(self):
        """The answer; of a record with free order, the one in the order of the question."""
        if self.family == "json":
            return json.dumps(self.validator["fields"])
        return self.answer


def number(r, weights=(1, 1, 1), low=0):
    """A number of one to three digits: how many is drawn first, by weight."""
    digits = r.choices((1, 2, 3), weights)[0]
    return r.randint(max(low, 10 ** (digits - 1) if digits > 1 else 0), 10**digits - 1)


def spelled(r, form, words):
    """A question about a list, and what stands between the members of the list: its colon, its
    commas and its full stop are the writer's choice."""
    between = ", " if r.random() < 0.15 else " "
    if r.random() < 0.1:
        form = form.replace(":", "")
    if form.endswith("{}") and r.random() < 0.12:
        form += "."
    return form.format(between.join(words)), between


def arithmetic(r, world, long):
    a, b = number(r, (1, 2, 3)), number(r, (1, 2, 3))
    if r.random() < 0.5:
        form = r.choice(
            ("What is {} + {}?", "Compute {} + {}.", "Add {} and {}.", "{} plus {}?", "{} + {} =")
        )
        return Task("arithmetic", form.format(a, b), str(a + b), f"arithmetic {a}+{b}")
    a, b = max(a, b), min(a, b)
    form, swap = r.choice(
        (
            ("What is {} - {}?", 0),
            ("Compute {} - {}.", 0),
            ("Subtract {} from {}.", 1),
            ("{} minus {}?", 0),
            ("{} - {} =", 0),
        )
    )
    return Task(
        "arithmetic",
        form.format(b, a) if swap else form.format(a, b),
        str(a - b),
        f"arithmetic {a}-{b}",
    )


def reverse(r, world, long):
    if r.random() < 0.35:
        digits = "".join(r.choice("0123456789") for _ in range(r.randint(2, 8)))
        form = r.choice(
            ("Reverse the digits {}.", "Write {} backwards.", "What is {} read from right to left?")
        )
        return Task("reverse", form.format(digits), digits[::-1], f"reverse {digits}")
    if r.random() < 0.25:
        words = [str(number(r)) for _ in range(r.randint(2, 8))]
        form = r.choice(
            ("Reverse the order of these numbers: {}", "Reverse this list: {}", "Reverse: {}")
            + ("List from last to first: {}",)
        )
    else:
        words = r.sample(WORDS, r.randint(2, 8))
        form = r.choice(
            ("Reverse the order of these words: {}", "Reverse this list: {}", "Reverse: {}")
            + ("Say these words backwards: {}", "List from last to first: {}")
        )
    user, between = spelled(r, form, words)
    return Task("reverse", user, between.join(words[::-1]), "reverse " + " ".join(words))


SORT_UP = (
    "Sort these numbers: {}",
    "Put in rising order: {}",
    "Sort from low to high: {}",
    "Sort: {}",
    "Sort {}",
    "Sort the numbers {}",
    "Sort {} from low to high.",
    "Put {} in rising order.",
)
SORT_DOWN = (
    "Sort from high to low: {}",
    "Put in falling order: {}",
    "Sort {} from high to low.",
    "Put {} in falling order.",
)
SORT_WORDS = (
    "Sort these words: {}",
    "Sort by the alphabet: {}",
    "Put these words in order: {}",
    "Sort: {}",
    "Sort {}",
    "Put {} in order.",
)


def sort(r, world, long):
    u = r.random()
    if u < 0.65:
        if r.random() < 0.3:
            values = r.sample(range(10, 100), r.randint(2, 10))
        else:
            values = [number(r) for _ in range(r.randint(2, 10))]
        key, forms, falling = ("up", SORT_UP, 0) if u < 0.4 else ("down", SORT_DOWN, 1)
        given, got = map(str, values), map(str, sorted(values, reverse=falling))
    else:
        key, forms, given = "words", SORT_WORDS, r.sample(WORDS, r.randint(2, 8))
        got = sorted(given)
    given = list(given)
    user, between = spelled(r, r.choice(forms), given)
    return Task("sort", user, between.join(got), f"sort {key} " + " ".join(given))


def count(r, world, long):
    if r.random() < 0.4:
        n = r.randint(1, 9)
        kind = r.choice(("words", "words", "numbers"))
        words = [str(number(r)) if kind == "numbers" else r.choice(WORDS) for _ in range(n)]
        form = r.choice((f"How many {kind} are in this list: {{}}", f"Count the {kind}: {{}}"))
        user, _ = spelled(r, form, words)
        return Task("count", user, str(n), "count all " + " ".join(words))
    pool = r.sample(WORDS, r.randint(2, 4))
    words = [r.choice(pool) for _ in range(r.randint(3, 9))]
    target = r.choice(pool)
    form = r.choice(
        (
            "How many times does {} occur in: {}",
            "How often is {} in this list: {}",
            "Count {} in: {}",
        )
    )
    given = " ".join(words)
    return Task(
        "count", form.format(target, given), str(words.count(target)), f"count {target} {given}"
    )


def path(r, world, long):
    """Links in any order, and the way that they make from one word to the next. A reader needs
    each step of it for the next one, so a canvas does not come to rest at once."""
    n = r.randint(5, 8) if long or r.random() < 0.6 else r.randint(2, 4)
    words = r.sample(WORDS, n + r.randint(0, 5))
    way, other = words[:n], words[n:]
    links = [" ".join(pair) for some in (way, other) for pair in zip(some, some[1:])]
    r.shuffle(links)
    given = "; ".join(links)
    form = r.choice(
        ("Follow the links from {}: {}", "Start at {} and go on: {}", "Walk from {} to the end: {}")
    )
    return Task("path", form.format(way[0], given), " ".join(way), f"path {way[0]} {given}")


class World:
    """A few people and what is true of them."""

    def __init__(self, r, size):
        self.people = {}
        cities = r.sample(CITIES, len(CITIES))
        for i, name in enumerate(r.sample(NAMES, size)):
            city = cities[i] if i < len(cities) else r.choice(CITIES)
            self.people[name] = {
                "city": city,
                "age": r.randint(1, 99),
                "pet": r.choice(ANIMALS),
                "food": r.choice(FOODS),
            }
        homes = [p["city"] for p in self.people.values()]
        self.unique = {n for n, p in self.people.items() if homes.count(p["city"]) == 1}

    def text(self, r):
        out = []
        for name, p in self.people.items():
            out.append(
                r.choice(
                    (
                        "{} is {age} years old, lives in {city}, has a {pet} and likes {food}.",
                        "{} lives in {city}, is {age} years old, likes {food} and has a {pet}.",
                    )
                ).format(name, **p)
            )
        return " ".join(out)


def lookup(r, world, long):
    inline = world is None
    if inline:
        world = World(r, r.randint(2, 4))
    name = r.choice(list(world.people))
    p = world.people[name]
    kinds = ["city", "age", "pet", "food"] + (["who"] if name in world.unique else [])
    kind = r.choice(kinds)
    question, answer = {
        "city": ("Where does {} live?", "{} lives in {city}."),
        "age": ("How old is {}?", "{} is {age} years old."),
        "pet": ("Which animal does {} have?", "{} has a {pet}."),
        "food": ("What does {} like?", "{} likes {food}."),
        "who": ("Who lives in {city}?", "{} lives in {city}."),
    }[kind]
    user = question.format(name, **p)
    if inline:
        user = world.text(r) + ("\n" if r.random() < 0.5 else " ") + user
    return Task(
        "lookup",
        user,
        answer.format(name, **p),
        f"lookup {kind} {name} {p[kind] if kind in p else p['city']}",
    )


def case(r, world, long):
    words = r.sample(PLAIN, r.randint(1, 4))
    text = " ".join(words)
    mode = r.choice(("upper", "lower", "title"))
    if mode == "upper":
        form = r.choice(("Write in capital letters: {}", "Make this upper case: {}"))
        return Task("case", form.format(text), text.upper(), f"case upper {text}")
    if mode == "lower":
        form = r.choice(("Write in small letters: {}", "Make this lower case: {}"))
        return Task("case", form.format(text.upper()), text, f"case lower {text}")
    form = r.choice(("Write in title case: {}", "Start each word with a capital letter: {}"))
    return Task("case", form.format(text), text.title(), f"case title {text}")


def sequence(r, world, long):
    n = r.randint(11, 26) if long or r.random() < 0.75 else r.randint(3, 10)
    a = number(r, low=1)
    n = min(n, 20) if a > 99 else n
    a = min(a, 1000 - n)
    form = r.choice(
        (
            "Count from {} to {}.",
            "Write the numbers from {} to {}.",
            "List all numbers from {} to {}.",
        )
    )
    return Task(
        "sequence",
        form.format(a, a + n - 1),
        " ".join(str(i) for i in range(a, a + n)),
        f"sequence {a} {a + n - 1}",
    )


def table(r, world, long):
    n = r.randint(4, 7) if long or r.random() < 0.75 else r.randint(1, 3)
    names = r.sample(NAMES, n)
    rows = [(name, str(number(r, low=1)), r.choice(CITIES)) for name in names]
    given = "; ".join(" ".join(row) for row in rows)
    form = r.choice(("Make a table: {}", "Write this as a table: {}", "Put this in a table: {}"))
    return Task(
        "table",
        form.format(given),
        "\n".join("| " + " | ".join(row) + " |" for row in rows),
        "table " + given,
    )


def json_record(r, world, long):
    """A record from a sentence: the order of the keys and the spaces are free."""
    p = {
        "name": r.choice(NAMES),
        "age": r.randint(1, 99),
        "city": r.choice(CITIES),
        "pet": r.choice(ANIMALS),
    }
    keys = r.choice(
        (
            ("name", "age"),
            ("name", "city"),
            ("name", "pet"),
            ("name", "age", "city"),
            ("name", "age", "pet"),
            ("name", "city", "pet"),
            ("age", "city", "pet"),
        )
    )
    said = r.choice(
        (
            "{name} is {age} years old, lives in {city} and has a {pet}.",
            "{name} lives in {city}, has a {pet} and is {age} years old.",
        )
    )
    asked = r.choice(
        ("Give {} as JSON: {}", "Write a JSON record with {}: {}", "Make JSON with the keys {}: {}")
    )
    listed = ", ".join(keys[:-1]) + " and " + keys[-1]
    user = asked.format(listed, said.format(**p))
    fields = {k: p[k] for k in keys}
    order = list(keys)
    r.shuffle(order)
    if r.random() < 0.5:
        answer = json.dumps({k: p[k] for k in order})
    else:
        answer = json.dumps({k: p[k] for k in order}, separators=(",", ":"))
    key = (
        "json " + " ".join(keys) + " " + " ".join(str(p[k]) for k in ("name", "age", "city", "pet"))
    )
    return Task("json", user, answer, key, {"kind": "json", "fields": fields})


def story(r, world, long):
    """Some sentences, each with one of the words that must occur."""
    n = r.randint(4, 6) if long or r.random() < 0.75 else r.randint(2, 3)
    must = r.sample(PLAIN, n)
    said = []
    for word in must:
        other = r.choice(PLAIN)
        x, y = (word, other) if r.random() < 0.5 else (other, word)
        adjective = r.choice(ADJECTIVES + COLORS) if r.random() < 0.25 else None
        words = noun_phrase(r, x, adjective, r.choice(STARTS)) + [r.choice(VERBS), "the", y]
        if r.random() < 0.2:
            words = words + r.choice(TAILS).split()
        said.append(" ".join(words) + ".")
    form = r.choice(
        ("Write {} sentences with these words: {}", "Tell a story of {} sentences with {}")
    )
    rule = {
        "kind": "sentence",
        "must": must,
        "words_min": 5 * n,
        "words_max": 9 * n,
        "end": ".",
        "sentences": n,
    }
    return Task(
        "story", form.format(n, " ".join(must)), " ".join(said), "story " + " ".join(must), rule
    )


def items(r, world, long):
    """Different members of a kind, one of them forbidden."""
    kind, pool = r.choice(
        (
            ("animals", ANIMALS),
            ("things", THINGS),
            ("foods", FOODS),
            ("names", NAMES),
            ("cities", CITIES),
        )
    )
    n, banned = r.randint(3, 7), r.choice(pool)
    pool = [w for w in pool if w != banned]
    form = r.choice(
        ("Name {} different {}, but not {}.", "List {} {} without {}.", "Give me {} {}, not {}.")
    )
    return Task(
        "items",
        form.format(n, kind, banned),
        " ".join(r.sample(pool, n)),
        f"items {n} {kind} {banned}",
        {"kind": "items", "count": n, "from": pool},
    )


def noun_phrase(r, noun, adjective, first):
    det = first or r.choice(("the", "my", "our", "one"))
    return [det] + ([adjective] if adjective else []) + [noun]


def sentence(r, world, long):
    """A sentence under constraints: two words that must occur, how many words, maybe the first
    word, the last sign."""
    a, b = r.sample(ANIMALS, 1) + r.sample(THINGS, 1)
    if r.random() < 0.5:
        a, b = b, a
    first = r.choice(STARTS) if r.random() < 0.5 else None
    end = r.choice((".", ".", "!"))
    lo = r.randint(4, 8)
    hi = lo + r.randint(1, 3)
    words = None
    while words is None or not lo <= len(words) <= hi:
        x, y = (a, b) if r.random() < 0.5 else (b, a)
        adj = [r.choice(ADJECTIVES + COLORS) if r.random() < 0.5 else None for _ in range(2)]
        head = first or r.choice(STARTS)
        words = (
            noun_phrase(r, x, adj[0], head) + [r.choice(VERBS)] + noun_phrase(r, y, adj[1], None)
        )
        if r.random() < 0.5:
            words = words + r.choice(TAILS).split()
    asks = [f"Write a sentence with the words {a} and {b}.", f"Use {lo} to {hi} words."]
    if first:
        asks.append(f"Start with {first}.")
    asks.append(f"End with {end}")
    rule = {"kind": "sentence", "must": [a, b], "words_min": lo, "words_max": hi, "end": end}
    if first:
        rule["first"] = first
    return Task(
        "sentence",
        " ".join(asks),
        " ".join(words) + end,
        f"sentence {a} {b} {lo} {hi} {first} {end}",
        rule,
    )


TYPES = {int: "integer", str: "string"}


def schema_of(value):
    """The schema that the value is an example of, all properties required, none other allowed."""
    if isinstance(value, dict):
        return {
            "type": "object",
            "properties": {k: schema_of(v) for k, v in value.items()},
            "required": list(value),
            "additionalProperties": False,
        }
    if isinstance(value, list):
        return {"type": "array", "items": schema_of(value[0])}
    return {"type": TYPES[type(value)]}


def as_json(r, family, base, value):
    """The task of another family, asked for as JSON."""
    ask = r.choice(("Answer as JSON.", "Give the answer as JSON.", "Answer in JSON."))
    user = base.user + ("" if base.user[-1] in ".?=" else ".")
    user = f"{ask} {base.user}" if r.random() < 0.3 else f"{user} {ask}"
    return Task(family, user, json.dumps(value), base.key, schema=schema_of(value))


def answered(r, world, long):
    """One number or text as JSON; of a lookup, who and what."""
    kind = r.choice(("arithmetic", "reverse", "count", "lookup", "case"))
    base = MAKERS[kind](r, world, long)
    while kind == "reverse" and " " in base.answer:  # digits only: words might as well be a list
        base = reverse(r, world, long)
    value = {"answer": base.answer}
    if base.family in ("arithmetic", "count"):
        value = {"answer": int(base.answer)}
    elif base.family == "lookup":
        kind, name, what = base.key.split()[1:]
        kind = "city" if kind == "who" else kind
        value = {"name": name, kind: int(what) if kind == "age" else what}
    return as_json(r, "answer", base, value)


def listed(r, world, long):
    """Numbers or words as a list."""
    while True:
        base = MAKERS[r.choice(("sort", "sort", "sequence"))](r, world, False)
        words = base.answer.replace(",", "").split()
        if 1 < len(words) <= 14:
            values = [int(w) for w in words] if words[0].isdigit() else words
            return as_json(r, "list", base, {"answer": values})


def rows(r, world, long):
    """A table as a list of records."""
    while True:
        base = table(r, world, False)
        parts = [line.strip("| ").split(" | ") for line in base.answer.split("\n")]
        if len(parts) <= 4:
            values = [{"name": n, "age": int(a), "city": c} for n, a, c in parts]
            return as_json(r, "rows", base, {"answer": values})


def record(r, world, long):
    """A record of the json family, in the order in which its keys are asked for."""
    base = json_record(r, world, long)
    fields = base.validator["fields"]
    return Task("record", base.user, base.settled(), base.key, schema=schema_of(fields))


MAKERS = {
    "arithmetic": arithmetic,
    "reverse": reverse,
    "sort": sort,
    "count": count,
    "lookup": lookup,
    "case": case,
    "sequence": sequence,
    "table": table,
    "path": path,
    "json": json_record,
    "sentence": sentence,
    "story": story,
    "items": items,
    "answer": answered,
    "list": listed,
    "rows": rows,
    "record": record,
}


def draw(r, family, world=None, want_held_out=False, long=False):
    """One task of a family, on the wanted side of the split; None if a small world seems to have
    none there."""
    for _ in range(300):
        task = MAKERS[family](r, world, long)
        if held_out(task.key) == want_held_out:
            return task
    return None


def filler(r, sentences):
    """True of nobody, asked by nobody: background that makes a context long."""
    return " ".join(
        f"The {r.choice(ADJECTIVES)} {r.choice(THINGS)} is {r.choice(('near', 'under', 'behind'))} "
        f"the {r.choice(COLORS)} {r.choice(THINGS)}."
        for _ in range(sentences)
    )


def system_prompt(r, wants_world):
    """A random system prompt and the world it tells of, if any."""
    world, parts = None, []
    u = r.random()
    if u < 0.45:
        parts.append(r.choice(ROLES))
    elif u < 0.55:
        parts.append(f"You are {r.choice(NAMES)}, a guide in {r.choice(CITIES)}.")
    if r.random() < (0.75 if wants_world else 0.12):
        big = r.random()
        world = World(
            r,
            r.randint(2, 6) if big < 0.7 else r.randint(6, 12) if big < 0.92 else r.randint(12, 24),
        )
        parts.append(world.text(r))
    if r.random() < 0.08:
        parts.insert(
            r.randint(0, len(parts)), filler(r, r.randint(3, 65 if r.random() < 0.4 else 15))
        )
    return (" ".join(parts) or None), world


WEIGHTS = {
    "arithmetic": 1.2,
    "reverse": 1.2,
    "sort": 1.3,
    "count": 1.2,
    "lookup": 1.1,
    "case": 1.1,
    "sequence": 1.0,
    "table": 1.0,
    "path": 1.2,
    "json": 0.9,
    "sentence": 1.0,
    "story": 0.9,
    "items": 0.8,
}


def conversation(r, want_held_out=False, family=None, weights=WEIGHTS, settled=False):
    """One to three turns. Returns (messages with every answer, last task). Only the last turn
    may be held out. `settled`: answers that may have any order have that of the question."""
    names, w = list(weights), list(weights.values())
    last = family or r.choices(names, w)[0]
    if last in CALLING:
        from tools import calling

        return calling(r, last, want_held_out)
    n = r.choices((1, 2, 3), (0.62, 0.25, 0.13))[0]
    names = [name for name in names if name not in CALLING]
    w = [weights[name] for name in names]
    kinds = r.choices(names, w, k=n - 1) + [last]
    system, world = system_prompt(r, "lookup" in kinds)
    messages = [{"role": "system", "content": system}] if system else []
    task = None
    for i, kind in enumerate(kinds):
        final = i == n - 1
        task = draw(r, kind, world, want_held_out and final, long=want_held_out and final)
        if task is None:
            return conversation(r, want_held_out, family, weights, settled)
        if settled:
            task.answer = task.settled()
        messages.append({"role": "user", "content": task.user})
        messages.append({"role": "assistant", "content": task.answer})
    return messages, task


def valid(validator, text):
    """Whether text satisfies a validator; the same rules as README.md states them."""
    if validator["kind"] == "json":
        try:
            got = json.loads(text)
        except ValueError:
            return False
        want = validator["fields"]
        return (
            isinstance(got, dict)
            and got == want
            and all(type(got[k]) is type(want[k]) for k in want)
        )
    words = text.split()
    if validator["kind"] == "items":
        return len(words) == len(set(words)) == validator["count"] and all(
            w in validator["from"] for w in words
        )
    bare = [w.strip(".,!?;:") for w in words]
    return (
        text.endswith(validator["end"])
        and validator["words_min"] <= len(words) <= validator["words_max"]
        and sum(w.endswith(validator["end"]) for w in words) == validator.get("sentences", 1)
        and ("first" not in validator or bare[0] == validator["first"])
        and all(w in bare for w in validator["must"])
    )


def right(example, text):
    """Whether an answer to an evaluation example is right."""
    return (
        valid(example["validator"], text) if "validator" in example else text == example["answer"]
    )


if __name__ == "__main__":
    rng = random.Random(1)
    for fam in FAMILIES + STRUCTURED:
        for _ in range(3):
            t = draw(rng, fam)
            assert t.validator is None or valid(t.validator, t.answer)
            print(f"{fam}: {t.user!r} -> {t.answer!r}")
