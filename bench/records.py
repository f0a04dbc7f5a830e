#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The records of bench/results.

  bench/records.py check            every record meets the schema below and a page of the tree links to it; exit status 1 if not
  bench/records.py age [--strict]   which records of cards are older than the kernels that they speak of, a line each;
                                    --strict: exit status 1 if there is any (for a release)
  bench/records.py age --hash HASH  the same, where HASH is that of the module of today (bench/machine_code.py MODULE)

A record is a .json file (an object, or a list of rows) or a .jsonl file (a row on each line). Each says, in the object, in
its first row or in every row:
  device   what computed
  date     YYYY-MM-DD
  commit   the commit of weft that was measured, or a list of them
  command  what was run, a list of it, or words that say where in the record the commands are
and, where it has numbers that vary, how they spread: `spread`, `runs` or `turns` somewhere, or words in `note` or `what`.
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
RESULTS = os.path.join(ROOT, "bench", "results")
FIELDS = ("device", "date", "commit", "command")
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
    for commit in {c for row in facts for c in words(row.get("commit", []))}:
        if not COMMIT.fullmatch(str(commit)):
            found.append(f"'{commit}' is no commit")
    return found


def pages():
    """The text of every page that may link to a record."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "*.md", "*.sh", "*.py"],
                            capture_output=True, text=True, check=True).stdout.split()
    texts = []
    for name in listed:
        with open(os.path.join(ROOT, name), encoding="utf-8") as f:
            texts.append(f.read())
    return "\n".join(texts)


def records():
    return sorted(name for name in os.listdir(RESULTS) if name.endswith((".json", ".jsonl")))


def check():
    n_bad, linked = 0, pages()
    for name in records():
        try:
            found = faults(read(os.path.join(RESULTS, name)))
        except ValueError as error:
            found = [f"it is no JSON: {error}"]
        if name not in linked:
            found.append("no page links to it")
        for fault in found:
            n_bad += 1
            print(f"bench/results/{name}: {fault}")
    print(f"{len(records())} records, {n_bad} faults")
    return n_bad > 0


def changed_since(commit):
    """Whether kernels/cuda changed after a commit; None: the commit is not in this history."""
    run = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%h", f"{commit}..HEAD", "--", "kernels/cuda"], capture_output=True,
                         text=True, check=False)
    return None if run.returncode != 0 else run.stdout.strip() != ""


def is_of_card(row):
    return bool(re.search(r"NVIDIA|H100|H200", str(row.get("device"))))


def age(strict, module):
    old, n_cards = [], 0
    for name in records():
        rows = read(os.path.join(RESULTS, name))
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
    for name in old:
        print(f"older than the kernels: bench/results/{name}")
    print(f"{len(old)} of {n_cards} records of cards are older than the kernels")
    return strict and old


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("check", "age"))
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--hash")
    asked = parser.parse_args()
    return 1 if (check() if asked.what == "check" else age(asked.strict, asked.hash)) else 0


if __name__ == "__main__":
    sys.exit(main())
