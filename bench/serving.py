#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Serving, as clients see it: starts `weft serve` with a model, puts bench/load.py's scenarios on it, and prints one JSON record
for each, with date, device, commit, model and command.

  bench/serving.py WEFT MODEL.gguf [quick] [PART ...]
    quick  a small part of each scenario, for any machine: shows that it runs, and measures nothing
    PART   loads: clients token by token, by diffusion and both; shared prompts
           formats: of answers, off and on
           long: long prompts in a quarter of the pool that the first part had
           bursts: 64 clients that all ask at once, again and again
           canvases: 256 of them at once
           rows: some of the loads with other numbers of rows in a step
           All of them, in this order, if none is named

`start_s` is the time from starting the program to its first token: the file should be in the page cache.
"""
import json
import os
import sys
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "attack")]
import facts
import load
from server import Server as Process

STEPS = 12  # of each canvas, so that runs compare; trained models stop by themselves
LONG = dict(name="16 clients, prompts of 16384", clients=16, prompt=16384, answer=128, seconds=15, limit_first_ms=20000)
LONGER = dict(name="8 clients, prompts of 32768", clients=8, prompt=32768, answer=128, seconds=15, limit_first_ms=20000)
OPTIONS = ["--running", "640", "--queue", "1024", "--context", "4096", "--connections", "2048"]  # one address gets half of them


def writing(clients, seconds, **more):
    return dict(name=f"{clients} clients, token by token", clients=clients, prompt=512, answer=128, seconds=seconds) | more


def canvases(clients, seconds, **more):
    return dict(name=f"{clients} clients by diffusion", clients=clients, canvases=clients, steps=STEPS, prompt=512, answer=256,
                seconds=seconds, limit_first_ms=20000, limit_token_ms=100) | more


def mixed(seconds):
    return dict(name="64 clients token by token, 16 by diffusion", clients=80, canvases=16, steps=STEPS, prompt=512, answer=128,
                seconds=seconds, limit_first_ms=20000, limit_token_ms=100)


def lengths(seconds):
    return dict(name="96 clients, prompts of 64 to 2048, answers of 32 to 256", clients=96, prompt=2048, prompt_least=64, answer=256,
                answer_least=32, seconds=seconds)


def tenants(seconds):
    return dict(name="128 clients of 64 tenants, each with 1024 tokens in common", clients=128, prompt=1152, shared=1024, tenants=64,
                answer=128, seconds=seconds)


def bursts(seconds):
    return dict(name="bursts of 64 clients", clients=64, prompt=512, answer=128, burst_every=seconds / 3, seconds=seconds)


def without_and_with(what, scenario, **change):
    name = scenario["name"]
    return [scenario | dict(name=f"{name}, no {what}"), scenario | change | dict(name=f"{name}, {what}")]


def held(scenario, kind):
    return scenario | dict(name=f"{scenario['name']}, {kind}", format=kind)


def loads():
    yield from (writing(32, 9), writing(128, 10), writing(512, 15))
    yield from (canvases(8, 9), canvases(32, 10), canvases(128, 15))
    yield mixed(12)
    yield from without_and_with("found prefix", writing(128, 11, prompt=2112, shared=2048, cached=False), cached=True)


def formats():
    for clients in 1, 32, 128:
        yield writing(clients, 5, prompt=128)
        yield from (held(writing(clients, 5, prompt=128), kind) for kind in load.FORMATS)
    for clients in 1, 8, 32:
        yield canvases(clients, 5, prompt=128)
        yield from (held(canvases(clients, 5, prompt=128), kind) for kind in load.FORMATS)


def shrunk(scenario):
    few = {"clients": -(-scenario["clients"] // 64), "prompt": -(-scenario["prompt"] // 16), "answer": -(-scenario["answer"] // 16)}
    if scenario.get("canvases"):
        few |= {"canvases": -(-scenario["canvases"] // 64), "steps": 2}
    for name in "shared", "prompt_least", "answer_least":
        few[name] = scenario.get(name, 0) // 16
    if scenario.get("burst_every"):
        few["burst_every"] = 0.1
    return scenario | few | {"seconds": 0.3}


class Bench:
    def __init__(self, weft, model, quick):
        self.weft, self.model, self.quick, self.pool_mib = weft, model, quick, None
        self.backend = ["--backend", "cuda"] if facts.card() else []  # where there is a GPU, no other backend may take its place
        self.facts = facts.facts(facts.identity(model)) | dict(runs=1, spread=None)

    def record(self, part, command, **more):
        print(json.dumps(dict(part=part, **self.facts, command=command, **more)), flush=True)

    def serve(self, part, options, scenarios):
        """One server, and its records."""
        options = [*self.backend, *options]
        command = " ".join(["weft serve -m", os.path.basename(self.model), *options])
        began = time.monotonic()
        try:
            process = Process(self.weft, options, keys=(), models=(self.model,))
        except SystemExit as fault:
            self.record(part, command, name="start", failed=str(fault)[-400:])
            return
        try:
            ready = time.monotonic()
            server = load.Server(f"http://127.0.0.1:{process.port}")
            load.write_one_token(server)
            self.record(part, command, name="start", ready_s=round(ready - began, 3), start_s=round(time.monotonic() - began, 3))
            self.pool_mib = self.pool_mib or self.pool_of(server)
            for scenario in scenarios:
                scenario = shrunk(scenario) if self.quick else scenario
                self.record(part, command, **load.run(server, load.Scenario(**scenario)), resident_mib=round(process.resident_mib))
                if not process.alive:
                    self.record(part, command, name="end", failed=process.log()[-400:])
                    return
        finally:
            process.stop()

    @staticmethod
    def pool_of(server):
        with urllib.request.urlopen(f"http://{server.netloc}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        pages = int(text.split("\nweft_pool_pages ")[1].split()[0])
        return pages * int(text.split('page_bytes="')[1].split('"')[0]) // (1 << 20)

    def run_loads(self):
        self.serve("loads", OPTIONS, loads())

    def run_formats(self):
        self.serve("formats", OPTIONS, formats())

    def run_long(self):
        if self.pool_mib is None:
            self.serve("long", OPTIONS, ())  # to know the pool
        self.serve("long", ["--running", "32", "--context", "34816", "--kv-mib", str((self.pool_mib or 4) // 4)], [LONG, LONGER])

    def run_bursts(self):
        self.serve("bursts", OPTIONS, [bursts(12)])

    def run_canvases(self):
        self.serve("canvases", ["--running", "256", "--connections", "2048", "--context", "512", "--rows", "65536", "--kv-mib", "24576"],
                   [canvases(256, 20, prompt=64, steps=6)])

    def run_rows(self):
        for rows in 512, 1024, 2048, 4096, 8192:
            self.serve("rows", [*OPTIONS, "--rows", str(rows)], [writing(128, 7), canvases(32, 7)])


def main():
    words = sys.argv[1:]
    parts = dict(loads=Bench.run_loads, formats=Bench.run_formats, long=Bench.run_long, bursts=Bench.run_bursts, canvases=Bench.run_canvases, rows=Bench.run_rows)
    quick = "quick" in words[2:]
    named = [word for word in words[2:] if word != "quick"]
    if len(words) < 2 or any(word not in parts for word in named):
        raise SystemExit(__doc__)
    bench = Bench(os.path.abspath(words[0]), os.path.abspath(words[1]), quick)
    for name in named or parts:
        parts[name](bench)


if __name__ == "__main__":
    main()
