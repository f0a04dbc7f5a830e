#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft behind routers that others make, on this machine alone: python3 bench/fleet [table | prefixes | simulated] [options]

table     starts three `weft serve` with a demo model and each router before them, and prints a table of what was tried and how it
          ended. Exit status 1: a cell failed.
prefixes  what the routers find in the caches of three replicas, in tokens, beside the least that must be computed (prefixes.py);
          --record FILE: as a record of bench/results
simulated the same load, and `weft sim` given what each replica was sent, beside each other (simulated.py); --record as above. Exit status
          1: something is further apart than 10 %

The routers are installed by `./dev fleet` in environments outside of the tree. `./dev fleet ray` and `./dev fleet dynamo` are
programs of their own (with_ray.py, with_dynamo.py), since they run where Ray and Dynamo are installed."""
import argparse
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from prefixes import run_prefixes  # noqa: E402
from routers import KINDS  # noqa: E402
from rows import write_record  # noqa: E402
from simulated import run_simulated  # noqa: E402
from table import CELLS, Fleet, check_router  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEMO = os.path.join(ROOT, "model/demo/weft-demo.gguf")
OPTIONS = ["-m", DEMO, "--backend", "cpu", "--drain-seconds", "120"]
SIMULATED = ("counts, so that what else the machine did changes nothing but which requests met; measured and simulated: medians of the runs; measured: by the counters of the "
             "replicas; simulated: weft sim with --replay of what each replica was sent, or with --router prefix where the server does not say it, and with clients that think "
             "so long that as many requests are in flight in the mean; spread: by the single runs. profile: weft bench profile, of the same machine")
NOTES = ("tokens of prompts, so that what else the machine did changes nothing; computed: the median of the runs, spread: the largest less the "
         "smallest; least_as_routed and requests (by replica) are those of the median run. Routers: " +
         ", ".join(f"{k.name} {k.version}" for k in KINDS) +
         "; sessions: --kv-aware-session-affinity-ttl-secs 3600, with the tenant as X-Session-ID")
TABLE = [*OPTIONS, "-t", "1", "--kv-mib", "32", "--chat-template", os.path.join(ROOT, "tests/clients/tools.jinja")]


def print_table(rows):
    print("| router | " + " | ".join(cell.replace("_", " ") for cell in CELLS) + " |")
    print("|" + "---|" * (len(CELLS) + 1))
    for kind in KINDS:
        if kind.name not in rows:
            continue
        row = rows[kind.name]
        words = [row.get("left out") and f"left out: {row['left out']}" or row.get(cell, "–") for cell in CELLS]
        print(f"| {kind.name} {kind.version} | " + " | ".join(words) + " |")


def say(line):
    print(line, file=sys.stderr, flush=True)


def make_table(o):
    rows = {}
    for kind in KINDS:
        if o.router not in (None, kind.name):
            continue
        if why := kind.missing(o.home):
            rows[kind.name] = {"left out": why}
            say(f"left out: {kind.name} {kind.version}: {why}")
            continue
        own = os.path.join(o.folder, kind.name)
        os.makedirs(own, exist_ok=True)
        fleet = Fleet(o.weft, "weft-demo", own, TABLE)
        try:
            rows[kind.name] = check_router(kind, o.home, fleet, own, say)
        finally:
            fleet.end()
    print(json.dumps(rows, indent=1)) if o.json else print_table(rows)
    return any(words.startswith("FAILED") for row in rows.values() for words in row.values())


def measure_prefixes(o):
    simulated = o.what == "simulated"
    about, rows = (run_simulated if simulated else run_prefixes)(o, OPTIONS, say)
    if o.record:
        sys.path.insert(0, os.path.join(ROOT, "bench"))
        import facts
        words = [f"--{name} {getattr(o, name)}" for name in ("tenants", "requests", "clients", "runs", "seed")]
        command = " ".join([f"./dev fleet {o.what} --kv-mib", *map(str, o.kv_mib), *words])
        record = facts.facts(facts.identity(DEMO)) | dict(command=command, load=about, notes=SIMULATED if simulated else NOTES, rows=rows)
        if simulated:
            record["spread"] = "by the single runs of each row"
        write_record(o.record, record)
    print(json.dumps(rows, indent=1))
    return any("failed" in row or row.get("apart_percent", 0) > 10 for row in rows)


def main():
    parser = argparse.ArgumentParser(prog="bench/fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("table", "prefixes", "simulated"), default="table")
    parser.add_argument("--weft", default=os.path.join(ROOT, "build/weft"))
    parser.add_argument("--home", default=os.path.expanduser("~/.cache/weft/clients"), help="the folder of the environments")
    parser.add_argument("--router", choices=[k.name for k in KINDS], help="this one alone")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", help="a folder for the logs of all processes")
    parser.add_argument("--record", help="prefixes, simulated: a file for the record")
    parser.add_argument("--kv-mib", type=int, nargs="+", default=[32, 12], help="prefixes, simulated: the pool of each replica, in turn [32 12]")
    for name, default in (("tenants", 64), ("requests", 600), ("clients", 4), ("runs", 3), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"prefixes, simulated: [{default}]")
    o = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weft-fleet-") as folder:
        o.folder = o.keep or folder
        os.makedirs(o.folder, exist_ok=True)
        return make_table(o) if o.what == "table" else measure_prefixes(o)


if __name__ == "__main__":
    sys.exit(main())
