#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Random answers of many schemas, judged by the jsonschema package.

Needs `pip install jsonschema` in an environment of its own. Generates schemas of depth up to 6 (or reads the files of the public
JSON Schema test suite), lets the test program draw answers through the automaton, and says how many schemas were compiled, how many
refused by name, how many answers are valid, and how long it took.

  tests/schemas/check.py build/test_unit_model_grammar model/demo/weft-demo-ar.gguf [--schemas 300] [--answers 8] [--seed 1]
  tests/schemas/check.py build/test_unit_model_canvas_path model/demo/weft-demo.gguf        the same by diffusion
  tests/schemas/check.py build/test_unit_model_grammar_calls model/demo/weft-demo.gguf --calls gemma      calls
  tests/schemas/check.py PROGRAM GGUF --suite JSON-Schema-Test-Suite/tests/draft2020-12
"""
import argparse
import collections
import decimal
import json
import pathlib
import random
import subprocess
import sys

import jsonschema

APPLIED = False  # generated schemas also have keywords that apply others; older seeds then mean other schemas
FORMATS = ["date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "hostname"]
PATTERNS = ["^[a-z]{2,5}$", "^\\d{3}-\\d{4}$", "ab+c", "^(red|green)$", "^S_", "[0-9]$", "^[^\"\\\\]{1,3}$", "^\\w+@x$"]
JAVASCRIPT = ["^(?!\\.)(?!.*\\.\\.)[a-z.]{1,9}@[a-z]+$", "(?=.*\\d)(?=.*[a-z])^.{4,8}$", "\\bcat\\b", "^.{2,3}$", "^[\\s\\S]+x$",
              "a\\Bb", "^(?:(?!ab)[abc])+$", "^\\D\\W[\\S]$", "^$|^[A-F]+$"]
NAMES = ["a", "b", "name", "id", "tags", "na", "größe", "x y", "q\"uote", "value"]


def scalar(rng):
    kind = rng.randrange(9)
    if kind == 0:
        low = rng.randint(-200, 200)
        return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 300)}
    if kind == 1:
        return {"type": "number", rng.choice(["minimum", "exclusiveMinimum"]): rng.randint(-3, 3)}
    if kind == 2:
        low = rng.randint(0, 4)
        return {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 6)}
    if kind == 3:
        return {"type": "string", "pattern": rng.choice(PATTERNS)}
    if kind == 4:
        return {"type": "string", "format": rng.choice(FORMATS)}
    if kind == 5:
        return {"enum": rng.sample(["x", "y", 1, 2.5, None, True, [1, "a"], {"k": "v"}, "ß\n"], rng.randint(1, 4))}
    if kind == 6:
        return {"const": rng.choice(["c", 7, False, {"deep": [None]}])}
    if kind == 7:
        return {"type": rng.choice(["string", "number", "integer", "boolean", "null"])}
    return {"type": rng.sample(["string", "integer", "boolean", "null"], 2)}


def applied(rng, depth, refs):
    """Keywords that apply schemas to the same value, and what says more of it than its type."""
    own, kind = schema(rng, depth - 1, refs), rng.randrange(14)
    names = rng.sample(NAMES[:6], 3)
    if kind == 0:
        return {"allOf": [own, {"not": schema(rng, depth - 2, refs)}]}
    if kind == 1:
        return {"type": "object", "properties": {names[0]: {"enum": ["p", "q"]}, names[1]: schema(rng, depth - 2, refs)}, "required": names[:2],
                "if": {"properties": {names[0]: {"const": "p"}}}, "then": {"properties": {names[1]: scalar(rng)}}, "else": {"required": [names[2]]}}
    if kind == 2:
        return {"type": "object", "patternProperties": {"^a": scalar(rng), "e$": scalar(rng)}, "properties": {names[0]: scalar(rng)},
                "additionalProperties": rng.choice([True, False, {"type": "null"}]), "minProperties": rng.randint(0, 3)}
    if kind == 3:
        return {"type": "object", "propertyNames": rng.choice([{"pattern": "^[a-z]{2,4}$"}, {"maxLength": 3, "not": {"const": "ab"}}, {"enum": NAMES[:4]}]),
                "additionalProperties": scalar(rng), "minProperties": rng.randint(0, 2), "maxProperties": rng.randint(2, 4)}
    if kind == 4:
        return {"type": "object", "properties": {n: scalar(rng) for n in names}, "minProperties": rng.randint(0, 2), "maxProperties": rng.randint(2, 3),
                "dependentRequired": {names[0]: names[1:2]}, "dependentSchemas": {names[2]: {"required": names[:1]}}}
    if kind == 5:
        return {"type": "array", "items": rng.choice([scalar(rng), True]), "contains": scalar(rng), "minContains": rng.randint(0, 2),
                "maxContains": rng.randint(2, 3)}
    if kind == 6:
        return {"type": "array", "uniqueItems": True, "items": {"enum": rng.sample(["x", "y", 1, 1.5, None, True, [1]], 4)}, "minItems": rng.randint(0, 3)}
    if kind == 7:
        return {"type": rng.choice(["number", "integer"]), "multipleOf": rng.choice([2, 7, 0.5, 0.01, 0.25, 30, 250]), "minimum": rng.choice([-3.5, 0, 1.25]),
                "maximum": rng.choice([260, 1000.75, 1e6])}
    if kind == 8:
        low = rng.choice([-2.75, -0.5, 0.1, 0.001, 3.14159])
        return {"type": "number", rng.choice(["minimum", "exclusiveMinimum"]): low, rng.choice(["maximum", "exclusiveMaximum"]): low + rng.choice([0.5, 0.01, 7])}
    if kind == 9:
        return {"type": "string", "pattern": rng.choice(PATTERNS + JAVASCRIPT), "minLength": rng.randint(0, 4), "maxLength": rng.randint(4, 30)}
    if kind == 10:
        return {"type": "string", "allOf": [{"pattern": rng.choice(PATTERNS + JAVASCRIPT)}, {"not": {"pattern": rng.choice(PATTERNS + JAVASCRIPT)}}]}
    if kind == 11:
        return {"oneOf": [schema(rng, depth - 1, refs), schema(rng, depth - 1, refs), scalar(rng)]}
    if kind == 12:
        return {"type": "object", "properties": {names[0]: scalar(rng)}, "unevaluatedProperties": rng.choice([False, {"type": "null"}]),
                rng.choice(["anyOf", "oneOf"]): [{"properties": {n: scalar(rng)}, "required": [n]} for n in names[1:]]}
    return {"prefixItems": [scalar(rng)], "type": "array", "unevaluatedItems": rng.choice([False, {"type": "null"}]),
            "anyOf": [{"prefixItems": [True, scalar(rng)]}, {"minItems": 1}]}


def schema(rng, depth, refs):
    kind = rng.randrange(13 if APPLIED else 10)
    if kind >= 10 and depth > 1:
        return applied(rng, depth, refs)
    if depth <= 1 or kind < 2:
        return scalar(rng)
    if kind < 6:
        names = rng.sample(NAMES, rng.randint(0, 5))
        made = {"type": "object", "properties": {n: schema(rng, depth - 1, refs) for n in names}}
        made["required"] = [n for n in names if rng.random() < 0.5]
        more = rng.randrange(4)
        if more == 0:
            made["additionalProperties"] = False
        elif more == 1:
            made["additionalProperties"] = schema(rng, min(depth - 1, 2), refs)
        return made
    if kind < 8:
        made = {"type": "array", "items": schema(rng, depth - 1, refs)}
        if rng.random() < 0.5:
            made["minItems"] = rng.randint(0, 3)
        if rng.random() < 0.5:
            made["maxItems"] = made.get("minItems", 0) + rng.randint(0, 4)
        if rng.random() < 0.2:
            made["prefixItems"] = [scalar(rng) for _ in range(rng.randint(1, 3))]
            made.pop("maxItems", None)
        return made
    if kind == 8:
        return {"anyOf": [schema(rng, depth - 1, refs) for _ in range(rng.randint(1, 3))]}
    which = rng.randrange(3)
    if which == 0 and refs:
        return {"anyOf": [{"type": "null"}, {"$ref": rng.choice(refs)}]}
    if which == 1:
        return {"oneOf": [{"type": "object", "properties": {"t": {"const": t}, "v": schema(rng, depth - 2, refs)}, "required": ["t"]}
                          for t in ("p", "q")]}
    return {"allOf": [{"type": "object", "properties": {"a": schema(rng, depth - 2, refs)}, "required": ["a"]},
                      {"properties": {"b": scalar(rng)}}]}


def whole_schema(rng):
    refs = ["#/$defs/r", "#"] if rng.random() < 0.3 else []
    made = schema(rng, rng.randint(1, 6), refs)
    if refs:
        made["$defs"] = {"r": schema(rng, 3, refs)}
    return made


def suite_schemas(folder):
    for path in sorted(pathlib.Path(folder).glob("*.json")):
        for case in json.loads(path.read_text()):
            yield path.stem, case["schema"]


def is_multiple(validator, of, instance, schema):
    """Of decimal numbers, as the specification has it: 1.15 is a multiple of 0.01, whatever 64 bits make of it."""
    if validator.is_type(instance, "number") and decimal.Decimal(repr(instance)) % decimal.Decimal(repr(of)) != 0:
        yield jsonschema.ValidationError(f"{instance!r} is not a multiple of {of!r}")


def has_pattern(validator, pattern, instance, schema):
    """With the regex package, which knows classes by Unicode properties, where it is installed."""
    if validator.is_type(instance, "string") and not regex.search(pattern, instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def have_patterns(validator, patterns, instance, schema):
    for pattern, subschema in patterns.items():
        for name in instance if validator.is_type(instance, "object") else []:
            if regex.search(pattern, name):
                yield from validator.descend(instance[name], subschema, path=name, schema_path=pattern)


OWN = {"multipleOf": is_multiple}
try:
    import regex
    OWN.update(pattern=has_pattern, patternProperties=have_patterns)
except ImportError:
    pass
Judge = jsonschema.validators.extend(jsonschema.Draft202012Validator, OWN)


def judge(lines, schemas, checker):
    counts, why, slow, answers, lengths = collections.Counter(), collections.Counter(), [], 0, []
    bad, at = [], -1
    for line in lines:
        word, _, rest = line.partition(" ")
        if word in ("compiled", "refused"):
            at += 1
            counts[word] += 1
            slow.append(int(rest.split()[0]))
        if word == "refused":
            why[rest.split(": ", 1)[-1][:70]] += 1
        elif word == "compiled":
            shortest = int(rest.split()[1])
        elif word == "failed":
            bad.append((schemas[at][1], rest))
        elif word == "answer":
            tokens, _, text = rest.split(" ", 2)
            answers += 1
            lengths.append(int(tokens) / max(1, shortest))
            try:
                Judge(schemas[at][1], format_checker=checker).validate(json.loads(bytes.fromhex(text).decode()))
            except Exception as error:  # whatever it is, the answer is not valid
                bad.append((schemas[at][1], bytes.fromhex(text), str(error).split("\n")[0]))
    return counts, why, sorted(slow), answers, bad, lengths


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("vocabulary")
    parser.add_argument("--schemas", type=int, default=300)
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--suite")
    parser.add_argument("--calls", metavar="FORM", help="schemas of a strict tool, whose calls have this form: json, qwen, gemma ...")
    parser.add_argument("--lines", help="a file with a schema a line")
    parser.add_argument("--applied", action="store_true", help="also not, if, patternProperties, contains and the like")
    args = parser.parse_args()
    global APPLIED
    APPLIED = args.applied
    rng = random.Random(args.seed)
    schemas = list(suite_schemas(args.suite)) if args.suite else [("", whole_schema(rng)) for _ in range(args.schemas)]
    if args.lines:
        schemas = [("", json.loads(line)) for line in pathlib.Path(args.lines).read_text().splitlines()]
    asked = [s for _, s in schemas]
    if args.calls:
        schemas = [(name, s) for name, s in schemas if isinstance(s, dict)]
        asked = [{"form": args.calls, "tools": [{"name": "f", "parameters": s, "strict": True}]} for _, s in schemas]
    text = "".join(json.dumps(s, ensure_ascii=False) + "\n" for s in asked)
    command = [args.program, args.vocabulary, "6" if args.calls else "2", str(args.answers)]
    run = subprocess.run(command, input=text.encode(), capture_output=True, check=True)
    checker = None if args.suite else jsonschema.Draft202012Validator.FORMAT_CHECKER
    counts, why, slow, answers, bad, lengths = judge(run.stdout.decode().splitlines(), schemas, checker)
    for reason, n in why.most_common(40):
        print(f"{n:5} {reason}")
    for case in bad[:10]:
        print("BAD", case)
    if counts["compiled"] + counts["refused"] != len(schemas):
        print("the program did not read all of them")
        return 1
    print(f"{len(schemas)} schemas: {counts['compiled']} compiled, {counts['refused']} refused by name; {answers} answers, "
          f"{answers - len(bad)} valid; compiling: median {slow[len(slow) // 2]} us, longest {slow[-1]} us; "
          f"mean length {sum(lengths) / max(1, len(lengths)):.1f} times the shortest")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
