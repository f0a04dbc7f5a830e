# SPDX-License-Identifier: MIT
"""What cache events cost a step, in instructions: run by `./dev fleet cost` with the environment that `./dev fleet dynamo` has; needs valgrind.

A server runs under callgrind, on one thread, with so little room that each prompt pushes others out, and is asked one prompt after the
other: without --kv-events, with it and nobody who subscribes, and with a subscriber that is told all tokens. All threads of the process
are counted. A figure is the difference of two runs over the difference of their steps, so that the start falls out; the kinds come in
turns, as often as --runs says.

Law: counts do not depend on what else the machine does, but for the few thousand instructions of probes while a server starts."""
import argparse
import json
import os
import random
import re
import statistics
import sys
import tempfile

from client import ask
from dynamo_services import Index
from processes import Replica, wait_for

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEMO = os.path.join(ROOT, "model/demo/weft-demo.gguf")
KINDS = ("no --kv-events", "no subscriber", "one subscriber")
PROMPT, ANSWER, FEW = 160, 24, 2


def count(o, folder, kind, n_requests):
    """(instructions, steps, events told) of a server that was asked so often."""
    options = ["-m", DEMO, "--backend", "cpu", "-t", "1", "--kv-mib", "2", "--context", "256", "--no-page"]
    server = Replica(o.weft, f"{kind.replace(' ', '-')}-{n_requests}", folder, options, events=kind != KINDS[0])
    server.words = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *server.words]
    if os.path.exists(server.log):
        os.remove(server.log)
    draw = random.Random(1)
    server.start()
    index = Index(f"tcp://127.0.0.1:{server.events}") if kind == KINDS[2] else None
    try:
        if index:
            wait_for("the first events", lambda: index.n_cleared > 0)
        for _ in range(n_requests):
            body = dict(prompt=[draw.randrange(20, 220) for _ in range(PROMPT)], max_tokens=ANSWER, mode="autoregressive", ignore_eos=True, seed=1)
            ask(server.port, "/v1/completions", body).json()
        steps = int(server.count("weft_steps_total"))
    finally:
        if index:
            index.close()
        server.end()
    found = re.search(r"Collected : (\d+)", server.read_log())
    assert found, server.last_words()
    return int(found[1]), steps, index.n_stored + index.n_removed if index else 0


def main():
    parser = argparse.ArgumentParser(prog="bench/fleet cost", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", default=os.path.join(ROOT, "build/weft"))
    parser.add_argument("--requests", type=int, default=14, help="of the longer of two runs [14]")
    parser.add_argument("--runs", type=int, default=3, help="[3]")
    parser.add_argument("--record", help="a file for the record")
    o = parser.parse_args()
    told = {kind: [] for kind in KINDS}
    events = {}
    with tempfile.TemporaryDirectory(prefix="weft-cost-") as folder:
        for _ in range(o.runs):
            for kind in KINDS:
                few, many = (count(o, folder, kind, n) for n in (FEW, o.requests))
                told[kind].append((many[0] - few[0]) / (many[1] - few[1]))
                events[kind] = (many[2] - few[2]) / (many[1] - few[1])
                print(f"{kind}: {told[kind][-1]:.0f} instructions a step", file=sys.stderr, flush=True)
    base = statistics.median(told[KINDS[0]])
    rows = [dict(kind=kind, instructions_per_step=round(statistics.median(t)), spread=round(max(t) - min(t)), runs=o.runs,
                 more_than_without=round(statistics.median(t) / base - 1, 5), events_per_step=round(events[kind], 2)) for kind, t in told.items()]
    if o.record:
        sys.path.insert(0, os.path.join(ROOT, "bench"))
        import facts
        record = facts.facts(facts.identity(DEMO), "any: callgrind counts, AVX2 path") | dict(
            command=f"./dev fleet cost --requests {o.requests} --runs {o.runs}", load=dict(prompt_tokens=PROMPT, answer_tokens=ANSWER), rows=rows)
        with open(o.record, "w", encoding="utf-8") as f:
            f.write(json.dumps(record, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    sys.exit(main())
