#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft behind routers that others make, on this machine alone: python3 bench/fleet [--home DIR] [--router NAME] [--json]

Starts three `weft serve` with a demo model and each router before them, and prints a table of what was tried and how it ended. The
routers are installed by `./dev fleet` in environments outside of the tree. Exit status 1: a cell failed."""
import argparse
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from routers import KINDS  # noqa: E402
from table import CELLS, Fleet, check_router  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEMO = os.path.join(ROOT, "model/demo/weft-demo.gguf")
OPTIONS = ["-m", DEMO, "--backend", "cpu", "-t", "1", "--kv-mib", "32", "--drain-seconds", "120", "--chat-template",
           os.path.join(ROOT, "tests/clients/tools.jinja")]


def print_table(rows):
    print("| router | " + " | ".join(cell.replace("_", " ") for cell in CELLS) + " |")
    print("|" + "---|" * (len(CELLS) + 1))
    for kind in KINDS:
        if kind.name not in rows:
            continue
        row = rows[kind.name]
        words = [row.get("left out") and f"left out: {row['left out']}" or row.get(cell, "–") for cell in CELLS]
        print(f"| {kind.name} {kind.version} | " + " | ".join(words) + " |")


def main():
    parser = argparse.ArgumentParser(prog="bench/fleet", description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--weft", default=os.path.join(ROOT, "build/weft"))
    parser.add_argument("--home", default=os.path.expanduser("~/.cache/weft/clients"))
    parser.add_argument("--router", choices=[k.name for k in KINDS])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", help="a folder for the logs of all processes")
    o = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory(prefix="weft-fleet-") as folder:
        folder = o.keep or folder
        for kind in KINDS:
            if o.router not in (None, kind.name):
                continue
            if why := kind.missing(o.home):
                rows[kind.name] = {"left out": why}
                print(f"left out: {kind.name} {kind.version}: {why}", file=sys.stderr)
                continue
            own = os.path.join(folder, kind.name)
            os.makedirs(own, exist_ok=True)
            fleet = Fleet(o.weft, "weft-demo", own, OPTIONS)
            try:
                rows[kind.name] = check_router(kind, o.home, fleet, own, lambda line: print(line, file=sys.stderr, flush=True))
            finally:
                fleet.end()
    print(json.dumps(rows, indent=1)) if o.json else print_table(rows)
    return any(words.startswith("FAILED") for row in rows.values() for words in row.values())


if __name__ == "__main__":
    sys.exit(main())
