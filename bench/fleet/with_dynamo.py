# SPDX-License-Identifier: MIT
"""weft's cache events in Dynamo, on this machine alone: run by `./dev fleet dynamo` with the environment that has Dynamo.

agree  Prompts that a seed decides go to two replicas with little room, which evict, move blocks to host memory, forget all and are
       started again, every second time after SIGKILL. After each, once all events are heard, four prompts are asked for in Dynamo's
       index and in the own one (dynamo_services.py); then a replica computes one of them and says how much its trie found of it.
proxy  The load of prefixes.py through a proxy that has prompts made into tokens by /render, asks Dynamo's selection service for a
       replica and hands on to it; beside the least that must be computed.

Law: what is counted is the replicas' own word, or follows from events that were heard; nothing is judged by time. An index has some
seconds to take what was sent. Exit status 1: the indexes differ for good, a trie found more than was told, or, in a model whose layers
all see everything, less; or the proxy failed."""
import argparse
import json
import os
import random
import signal
import sys
import tempfile

import prefixes
from client import ask
from dynamo_services import Index, Indexer, Proxy, Selector, settled, stay_alone
from processes import Replica, wait_for

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEMO = os.path.join(ROOT, "model/demo/weft-demo.gguf")
FULL = os.path.join(ROOT, "tests/golden/models/qwen3-base.gguf")
COMMON = ["--backend", "cpu", "-t", "1", "--no-page"]
# (name, model, options, a trie may find less than is told: a prompt that leaves another one between two places where hits can end)
WORLDS = (("windows, host memory", DEMO, ["--kv-mib", "2", "--host-mib", "1", "--context", "512"], True),
          ("layers that see everything", FULL, ["--kv-mib", "1"], False))


class World:
    def __init__(self, o, folder, model, options, seed):
        self.random = random.Random(seed)
        self.replicas = [Replica(o.weft, i, folder, ["-m", model, *COMMON, *options]) for i in range(2)]
        for r in self.replicas:
            r.start()
        self.size = ask(self.replicas[0].port, "/server_info").json()["block_size"]
        self.dynamo = Indexer(self.size, self.replicas, folder)
        self.dynamo.start()
        self.index = [Index(f"tcp://127.0.0.1:{r.events}") for r in self.replicas]
        for i in self.index:
            wait_for("the first events of a replica", lambda i=i: i.n_cleared > 0)
        self.families = [self.words(320) for _ in range(6)]
        self.prompts = [self.make_prompt() for _ in range(40)]
        self.bad, self.n_marks = [], 0
        self.count = dict.fromkeys(("requests", "restarts", "resets", "queries", "agree", "in_lower_tiers", "found", "found_less", "found_more"), 0)

    def words(self, n):
        return [self.random.randrange(20, 220) for _ in range(n)]

    def make_prompt(self):
        return self.random.choice(self.families)[:self.random.randrange(0, 300)] + self.words(self.random.randrange(40, 180))

    def compare(self, prompt):
        """Dynamo's words for a prompt beside those of the own indexes."""
        own, theirs = settled(lambda: ([(i.overlap(prompt, self.size, pool=True), i.overlap(prompt, self.size)) for i in self.index],
                                       self.dynamo.overlap(prompt)))
        for k, (a, b) in enumerate(zip(own, theirs)):
            self.count["queries"] += 1
            self.count["agree"] += a == b
            self.count["in_lower_tiers"] += a[0] < a[1]
            if a != b:
                self.bad.append(dict(replica=k, request=self.count["requests"], own=a, dynamo=b))
        return own

    def ask_trie(self, k, prompt, told, may_find_less):
        """A replica computes a prompt: how much it found, beside what was told."""
        found = self.ask(k, prompt)
        told = min(told, (len(prompt) - 1) // self.size * self.size)  # the last token is always computed
        self.count["requests"] += 1
        self.count["found" if found == told else "found_less" if found < told else "found_more"] += 1
        if found > told or (found < told and not may_find_less):
            self.bad.append(dict(replica=k, request=self.count["requests"], told=told, found=found))
        self.hear_all(k)

    def ask(self, k, prompt):
        body = {"prompt": prompt, "max_tokens": 1, "mode": "autoregressive", "ignore_eos": True, "seed": 1}
        return ask(self.replicas[k].port, "/v1/completions", body).json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    def hear_all(self, k):
        """Until the events of all that a replica did are heard: those of a prompt that nobody else asks come behind them."""
        self.n_marks += 1
        mark = [20 + self.n_marks // 200 ** place % 200 for place in range(3)] + [19] * (self.size - 2)
        self.ask(k, mark)
        wait_for("the last events of a replica", lambda: self.index[k].overlap(mark, self.size) == self.size)

    def disturb(self, k):
        """Now and then a replica begins anew, or forgets all."""
        what, index = self.random.random(), self.index[k]
        if what < 0.012:
            before = index.n_cleared
            if self.count["restarts"] % 2:
                self.replicas[k].signal(signal.SIGKILL)
                self.replicas[k].process.wait()
            self.replicas[k].end()
            self.replicas[k].start()
            self.count["restarts"] += 1
            wait_for("a replica that tells again", lambda: index.n_cleared > before)
        elif what < 0.02:
            assert ask(self.replicas[k].port, "/reset_prefix_cache", b"").status == 200
            self.count["resets"] += 1
            wait_for("an empty index", lambda: not index.media)

    def turn(self, may_find_less):
        k = self.random.randrange(2)
        self.disturb(k)
        if self.random.random() < 0.2:
            self.prompts[self.random.randrange(len(self.prompts))] = self.make_prompt()
        for p in self.random.sample(self.prompts, 3):
            self.compare(p)
        prompt = self.random.choice(self.prompts)
        self.ask_trie(k, prompt, self.compare(prompt)[k][1], may_find_less)

    def events(self):
        return sum(i.n_stored + i.n_removed for i in self.index)

    def end(self):
        for i in self.index:
            i.close()
        self.dynamo.end()
        for r in self.replicas:
            r.end()


def agree(o, folder):
    rows = []
    for name, model, options, may_find_less in WORLDS:
        own = os.path.join(folder, name.replace(" ", "-"))
        os.makedirs(own, exist_ok=True)
        world = World(o, own, model, options, o.seed)
        try:
            while world.events() < o.events and len(world.bad) < 20:
                world.turn(may_find_less)
            rows.append(dict(world=name, model=os.path.basename(model), events=world.events(), gaps=sum(i.n_gaps for i in world.index), **world.count,
                             runs=1, spread=None, bad=world.bad))
        finally:
            world.end()
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def through_proxy(o, folder):
    options = ["-m", DEMO, *COMMON]
    o.folder, o.kv_mib, o.tenants, o.requests, o.clients = folder, [32, 12], 64, 600, 4
    bodies = prefixes.make_load(o.seed, o.tenants, o.requests, (80, 160))
    prompts, unit, room = prefixes.look_at(o, bodies, options)
    least = prefixes.least_of(prompts, unit)

    def make(mib, reserve):
        def inside(place):
            replicas = [Replica(o.weft, i, place, [*options, "--kv-mib", str(mib)]) for i in range(3)]

            def start():
                selector = Selector(unit, replicas, place)
                selector.start()
                proxy = Proxy(selector, reserve)

                def end():
                    proxy.end()
                    selector.end()
                return proxy.port, end
            return replicas, start
        return inside
    rows = []
    for mib, reserve in [(mib, reserve) for mib in o.kv_mib for reserve in (False, True)]:
        row = dict(room_of_a_replica=room[mib], prompt_tokens=sum(map(len, prompts)), least=least)
        name = f"proxy, Dynamo's selection{' by load, too' if reserve else ''}"
        try:
            row |= prefixes.run_contender(name, make(mib, reserve), o, mib, (bodies, prompts, unit, least))
        except AssertionError as error:
            row |= dict(failed=str(error))
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(prog="bench/fleet dynamo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("agree", "proxy"), help="one of them alone")
    parser.add_argument("--weft", default=os.path.join(ROOT, "build/weft"))
    parser.add_argument("--events", type=int, default=10000, help="agree: blocks stored and removed in each world [10000]")
    parser.add_argument("--runs", type=int, default=3, help="proxy: [3]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", help="a folder for the logs of all processes")
    parser.add_argument("--record", help="a file for the record")
    o = parser.parse_args()
    stay_alone()
    with tempfile.TemporaryDirectory(prefix="weft-fleet-") as folder:
        told = {}
        if o.what in (None, "agree"):
            told["agreement"] = agree(o, o.keep or folder)
        if o.what in (None, "proxy"):
            told["proxy"] = through_proxy(o, o.keep or folder)
    if o.record:
        sys.path.insert(0, os.path.join(ROOT, "bench"))
        import facts
        record = facts.facts([facts.identity(DEMO), facts.identity(FULL)]) | dict(
            command=f"./dev fleet dynamo --events {o.events} --runs {o.runs} --seed {o.seed}", runs=1 if o.what == "agree" else o.runs, spread=None,
            notes=NOTES, **told)
        with open(o.record, "w", encoding="utf-8") as f:
            f.write(json.dumps(record, indent=1) + "\n")
    print(json.dumps(told, indent=1))
    return any(row.get("bad") or "failed" in row for rows in told.values() for row in rows)


NOTES = ("Dynamo 1.6.1. agreement: events are blocks stored and removed; queries are prompts asked of both indexes, for each replica, in the pool "
         "and in any medium; found is what a replica's trie found of a prompt that it computed, beside what was told (found_less: a prompt that "
         "leaves another one between two places where hits can end; found_more: never right); one run. proxy: tokens of prompts, as in fleet-prefixes.json; "
         "computed is the median of the runs, spread the largest less the smallest")


if __name__ == "__main__":
    sys.exit(main())
