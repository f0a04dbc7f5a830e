#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What to buy for a load: fleets of up to 1,000 simulated replicas, and pictures of them.

  bench/fleet/plan.py run [TABLE...] [--weft FILE] [--record FILE]   runs `weft sim` for the tables named, or all; rows of others stay
  bench/fleet/plan.py draw [--record FILE] [--pictures DIR]          draws docs/pictures/fleet-*.svg from the record
  bench/fleet/plan.py check                                          exit status 1: a picture is not what the record says

Law: every number is of `weft sim` with the words of its row, and the same words give the same numbers. The load grows with the
fleet: so many requests a second and so many different shared beginnings for each replica."""
import argparse
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from rows import write_record  # noqa: E402

RECORD, PICTURES = os.path.join(ROOT, "bench/results/fleet-plan.json"), os.path.join(ROOT, "docs/pictures")
EACH, PREFIXES_EACH = 12, 20  # requests a second, beginnings
KEPT = ("finished", "failed", "refused", "seconds", "busy_percent", "goodput_percent", "ttft_p50_ms", "ttft_p99_ms", "hit_percent", "prompt_tokens",
        "prefill_rows", "prompt_tokens_distinct", "pages_evicted", "pages_back", "failures", "replaced", "upgraded_at_s", "event_batches_per_s",
        "events_per_s", "event_blocks_per_s", "event_bytes_per_s", "credit_percent", "index_blocks_most", "spilled", "requests_max_over_mean")
GOOD = 99  # percent of requests that are to be good
NOTES = ("weft sim with the built-in profile: a 26B model whose times are round numbers, measured on no device. Each row has the words of its run after "
         "`base`; of `buy` the least number of replicas with which 99 % of the requests are good. The same words give the same numbers, so each is one run")
BASE = "--long 0 --diffusion 0 --running 32 --answer-tokens 64 --shared 0.95 --zipf 1 --kv-mib 8192 --seed 1"


def words_of(n, seconds, more, rate=None, prefixes=None):
    rate = rate or EACH * n
    return f"--replicas {n} --rate {rate} --requests {int(rate * seconds)} --prefixes {prefixes or PREFIXES_EACH * n} {more}".strip()


def simulate(weft, words):
    out = subprocess.run([weft, "sim", "--json", *BASE.split(), *words.split()], check=True, stdout=subprocess.PIPE).stdout
    found = json.loads(out)
    row = {k: found[k] for k in KEPT if found.get(k) is not None}
    row["over_least"] = found["prefill_rows"] / found["prompt_tokens_distinct"]
    return {k: round(v, 3) if v != int(v) else int(v) for k, v in row.items()}


def fewest_replicas(weft, more, low=16, high=64):
    """By bisection: more replicas are never worse by much."""
    tried = {}

    def run(n):
        words = words_of(n, BUY_S, more, BUY_RATE, BUY_PREFIXES)
        tried[n] = (words, simulate(weft, words))
        return tried[n][1]["goodput_percent"] >= GOOD
    assert run(high), (more, tried[high])
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if run(middle) else (middle, high)
    return dict(replicas=high, words=tried[high][0]) | tried[high][1]


SHARED = "--shared-cache"
ROUTERS = ("round-robin", "hash", "index")
TABLES = {
    "routers": [(n, s, f"{SHARED} --router {r}") for n, s in ((100, 10), (1000, 5)) for r in ROUTERS],
    "events": [(1, 10, f"{SHARED} --router index"), (10, 10, f"{SHARED} --router index"),
               (100, 10, f"{SHARED} --router index --kv-mib 2048"), (100, 10, f"{SHARED} --router index --kv-mib 2048 --host-mib 16384")],
    "index-lag": [(100, 10, f"{SHARED} --router index --index-lag-ms {ms}") for ms in (10, 100, 500, 1000, 3000)],
    "router-lag": [(100, 10, f"{SHARED} --router {r} --router-lag-ms {ms}") for r in ("hash", "index") for ms in (100, 1000, 3000)],
    "copies": [(100, 10, f"{SHARED} --zipf 1.5 --router-bound {b} --copies {n}") for b, n in
               ((64, 1), (64, 2), (64, 4), (64, 16), (2, 1), (1.25, 1), (1.25, 4))],
    "failures": [(100, 10, f"{SHARED} --fail-s {s} --away-s 2") for s in (1000, 100)],
    "upgrade": [(100, 15, f"{SHARED} --upgrade-s 2 --away-s 1 --upgrade-at-once {n}") for n in (10, 25, 50)],
    "moves": [(100, 10, f"--tenants 255 --prefixes 2 {m}".strip()) for m in ("", "--move-s 20", "--move-s 5", "--move-s 2")],
    "tier": [(50, 20, f"{SHARED} --router {r} --kv-mib 4096 --host-mib {m}") for r in ("round-robin", "hash") for m in (0, 4096, 16384, 65536)],
}
BUY = [("round-robin", f"{SHARED} --router round-robin"), ("round-robin, 64 GiB of host memory", f"{SHARED} --router round-robin --host-mib 65536"),
       ("hash", SHARED), ("hash, 64 GiB of host memory", f"{SHARED} --host-mib 65536"), ("index", f"{SHARED} --router index"),
       ("hash, a day of 12 s, swing 0.5", f"{SHARED} --day-s 12 --swing 0.5"), ("hash, a day of 12 s, swing 0.8", f"{SHARED} --day-s 12 --swing 0.8")]
BUY_RATE, BUY_S, BUY_PREFIXES = 400, 12, 800


def run_table(weft, name):
    if name == "buy":
        return [dict(table="buy", what=what) | fewest_replicas(weft, more) for what, more in BUY]
    rows = []
    for n, seconds, more in TABLES[name]:
        words = words_of(n, seconds, more)
        rows.append(dict(table=name, replicas=n, words=words) | simulate(weft, words))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def run(o):
    import facts
    names = o.tables or [*TABLES, "buy"]
    try:
        with open(o.record, encoding="utf-8") as f:
            rows = json.load(f)["rows"]
    except FileNotFoundError:
        rows = []
    for name in names:
        rows = [r for r in rows if r["table"] != name] + run_table(o.weft, name)
        record = facts.facts({"none": "weft sim computes no model"}) | dict(command="bench/fleet/plan.py run", runs=1, spread=None, notes=NOTES,
                                                                            base=f"weft sim --json {BASE}", rows=rows)
        write_record(o.record, record)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "draw", "check"))
    parser.add_argument("tables", nargs="*", help=", ".join([*TABLES, "buy"]))
    parser.add_argument("--weft", default=os.path.join(ROOT, "build/weft"))
    parser.add_argument("--record", default=RECORD)
    parser.add_argument("--pictures", default=PICTURES)
    o = parser.parse_args()
    if unknown := [name for name in o.tables if name not in (*TABLES, "buy")]:
        parser.error(f"there is no table {unknown[0]}: {', '.join([*TABLES, 'buy'])}")
    if o.what == "run":
        return run(o)
    from fleet_pictures import draw
    return draw(o.record, o.pictures, check=o.what == "check")


if __name__ == "__main__":
    sys.exit(main())
