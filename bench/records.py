#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The records of bench/results.

  bench/records.py check            every record meets the schema below and a page of the tree links to it; exit status 1 if not
  bench/records.py age [--strict]   which records of cards are older than the kernels that they speak of, a line each;
                                    --strict: exit status 1 if README or a page of docs/ quotes one of them (for a release)
  bench/records.py age --hash HASH  the same, where HASH is that of the module of today (bench/machine_code.py MODULE)
  bench/records.py -r FOLDER ...    the records of another folder than bench/results

A record is a .json file (an object, or a list of rows) or a .jsonl file (a row on each line). Each says, in the object, in
its first row or in every row:
  device   what computed
  date     YYYY-MM-DD
  commit   the commit of weft that was measured, or a list of them
  command  what was run, a list of it, or words that say where in the record the commands are
  model    what was measured with, or a list of it (bench/facts.py makes all but the last):
             {name, bytes, hash}   a file, by the law of bench/facts.py
             {made_by}             a command that makes the same file every time, where its hash was not noted
             {none}                nothing, and why
             {unknown}             why it is not known: only records older than 2026-11-29, which had no such field
and there or beside the figures, as numbers or in words:
  runs     how often it was measured
  spread   (or spread_us, spread_in_turns …) how the figures vary: the largest less the smallest, if nothing else is said; null: one run
A record of a card may have `machine_code`, the hash of the module's kernels without their names. While that is the hash of the
module of today, no change of names, comments or files makes the record old. A record without one is old when a commit
after its own changed kernels/cuda.
"""
import argparse
import datetime
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FIELDS = ("device", "date", "commit", "command", "model")
MODEL_SINCE = "2026-11-29"
HASH = re.compile(r"[0-9a-f]{16}")
COMMIT = re.compile(r"[0-9a-f]{7,40}")


def read(path):
    """The rows of a record: one for an object."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    if path.endswith(".jsonl"):
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    data = json.loads(text)
    return data if isinstance(data, list) else [data]


def words(value):
    return value if isinstance(value, list) else [value]


def faults(rows):
    """What a record lacks, in words."""
    if not rows or not all(isinstance(row, dict) for row in rows):
        return ["it is no object and no list of objects"]
    found = []
    facts = [rows[0]] if all(field in rows[0] for field in FIELDS) else rows
    for field in FIELDS:
        if not all(row.get(field) for row in facts):
            found.append(f"it has no {field}")
    for row in facts:
        try:
            datetime.date.fromisoformat(str(row.get("date")))
        except ValueError:
            found.append(f"its date is {row.get('date')!r}")
            break
        found += [fault for model in words(row.get("model") or []) if (fault := fault_of(model, row))]
    named = names_in(rows)
    found += [f"it does not say its {name}" for name in ("runs", "spread") if not any(n.startswith(name) for n in named)]
    for commit in {c for row in facts for c in words(row.get("commit", []))}:
        if not COMMIT.fullmatch(str(commit)):
            found.append(f"'{commit}' is no commit")
    return found


def fault_of(model, row):
    """What is wrong with one model of a record, in words."""
    if not isinstance(model, dict):
        return f"its model {model!r} is no object"
    if HASH.fullmatch(str(model.get("hash"))) and model.get("name") and isinstance(model.get("bytes"), int):
        return None
    if model.get("made_by") or model.get("none"):
        return None
    if not model.get("unknown"):
        return f"its model {json.dumps(model)} has neither name, bytes and hash, nor made_by, nor none"
    if str(row.get("date")) >= MODEL_SINCE:
        return f"its model is unknown, which no record since {MODEL_SINCE} may say"
    return None


def names_in(value):
    """Every name of a field, however deep."""
    if isinstance(value, list):
        return set().union(*map(names_in, value)) if value else set()
    return set(value).union(*map(names_in, value.values())) if isinstance(value, dict) else set()


def pages(*patterns):
    """(name, text) of every page that may link to a record."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
                            capture_output=True, text=True, check=True).stdout.split()
    for name in listed:
        with open(os.path.join(ROOT, name), encoding="utf-8") as f:
            yield name, f.read()


def records(folder):
    return sorted(name for name in os.listdir(folder) if name.endswith((".json", ".jsonl")))


def check(folder):
    n_bad, linked = 0, "\n".join(text for _, text in pages("*.md", "*.sh", "*.py"))
    for name in records(folder):
        try:
            found = faults(read(os.path.join(folder, name)))
        except ValueError as error:
            found = [f"it is no JSON: {error}"]
        if name not in linked:
            found.append("no page links to it")
        for fault in found:
            n_bad += 1
            print(f"bench/results/{name}: {fault}")
    print(f"{len(records(folder))} records, {n_bad} faults")
    return n_bad > 0


def changed_since(commit):
    """Whether kernels/cuda changed after a commit; None: the commit is not in this history."""
    run = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%h", f"{commit}..HEAD", "--", "kernels/cuda"], capture_output=True,
                         text=True, check=False)
    return None if run.returncode != 0 else run.stdout.strip() != ""


def is_of_card(row):
    return bool(re.search(r"NVIDIA|H100|H200", str(row.get("device"))))


def age(folder, strict, module):
    old, n_cards = [], 0
    for name in records(folder):
        rows = read(os.path.join(folder, name))
        if not is_of_card(rows[0]):
            continue
        n_cards += 1
        if module and rows[0].get("machine_code") == module:
            continue
        commits = sorted({c for row in rows for c in words(row.get("commit", [])) if c})
        states = [changed_since(commit) for commit in commits]
        if any(state is False for state in states):
            continue
        old.append(name)
    quoted = {name: [page for page, text in pages("README.md", "docs/*.md") if f"results/{name}" in text] for name in old}
    for name in old:
        print(f"older than the kernels: bench/results/{name}" + (f", quoted by {', '.join(quoted[name])}" if quoted[name] else ""))
    n_quoted = sum(1 for name in old if quoted[name])
    print(f"{len(old)} of {n_cards} records of cards are older than the kernels; README or docs/ quote {n_quoted} of them")
    return strict and n_quoted > 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("check", "age"))
    parser.add_argument("-r", dest="folder", default=os.path.join(ROOT, "bench", "results"))
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--hash")
    asked = parser.parse_args()
    return 1 if (check(asked.folder) if asked.what == "check" else age(asked.folder, asked.strict, asked.hash)) else 0


if __name__ == "__main__":
    sys.exit(main())
