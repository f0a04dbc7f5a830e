#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Servers beside one another, under the same clients: starts each with its own command, in turns A B A B, puts the loads of
bench/serving.py on it and prints one table. The servers are programs that are installed already; any that speaks OpenAI's
completions and takes prompts of token ids will do.

  bench/peers/serve.py -o FOLDER --engine 'weft=build/weft serve -m m.gguf --port {port}' \\
    --engine 'vllm=vllm serve DIR --port {port}' [--loads vllm=writing,shared] [--gpus 0] [--rounds 2] [--quick]

Loads: writing (32, 128 and 512 clients, token by token), shared (128 clients with a long prompt in common, its prefix not found
and found), users (96 clients with prompts and answers of mixed lengths; 64 tenants, each with a prompt in common), long (16 clients
with prompts of 16,384), longer (8 with prompts of 32,768), bursts (64 clients that all ask at once, every 4 seconds), canvases (8, 32 and 128 clients of a model that writes by diffusion; in as many steps a canvas as
bench/serving.py says, which another server than weft must be started with), mix (both kinds at once; weft alone takes it).

FOLDER/serve.jsonl gets one record for each load and start, with date, device, commit, model and command; FOLDER/NAME.ROUND.log what
a server said. `start_s` is the time from starting the command to its first token. Each server first gets a few seconds of its first
load that are not recorded.

Law: a server that does not start, ends or refuses has a record that says so, the others go on, and the exit code is 1. No server
outlives this program.
"""
import argparse
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE)]
import facts
import load
import serving

LOADS = dict(
    writing=lambda: [serving.writing(32, 9), serving.writing(128, 10), serving.writing(512, 15)],
    shared=lambda: serving.without_and_with("found prefix", serving.writing(128, 11, prompt=2112, shared=2048, cached=False), cached=True),
    users=lambda: [serving.lengths(12), serving.tenants(10)],
    long=lambda: [serving.LONG],
    longer=lambda: [serving.LONGER],
    bursts=lambda: [serving.bursts(12)],
    canvases=lambda: [serving.canvases(8, 9), serving.canvases(32, 10), serving.canvases(128, 15)],
    mix=lambda: [serving.mixed(12)])


def pairs(values, option):
    for value in values:
        if "=" not in value or value.startswith("="):
            raise SystemExit(f"serve: {option} {value}: write NAME=...")
    return dict(value.split("=", 1) for value in values)


def options():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("-o", "--output", required=True, metavar="FOLDER")
    a.add_argument("--engine", action="append", required=True, metavar="NAME=COMMAND", help="what starts it, with {port} in it; may be repeated")
    a.add_argument("--loads", action="append", default=[], metavar="NAME=LIST", help="of this engine [writing]; may be repeated")
    a.add_argument("--gpus", default="0", help="what servers may use, and whose energy counts: numbers as nvidia-smi's [0]")
    a.add_argument("--rounds", type=int, default=1, help="turns of each engine [1]")
    a.add_argument("--start-limit", type=float, default=600, help="seconds that a start may take [600]")
    a.add_argument("--quick", action="store_true", help="a small part of each load, for any machine: shows that it runs, and measures nothing")
    o = a.parse_args()
    o.engine, o.loads = pairs(o.engine, "--engine"), pairs(o.loads, "--loads")
    for name, words in o.loads.items():
        unknown = [word for word in words.split(",") if word not in LOADS]
        if name not in o.engine or unknown:
            raise SystemExit(f"serve: --loads {name}={words}: {'no such engine' if name not in o.engine else 'loads are ' + ', '.join(LOADS)}")
    for name, command in o.engine.items():
        if "{port}" not in command:
            raise SystemExit(f"serve: --engine {name}: the command must have {{port}} in it")
    return o


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def wait_for_server(process, port, limit_s):
    """The server, when it lists its models."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if process.poll() is not None:
            raise OSError(f"it ended with code {process.returncode} before it served")
        try:
            return load.Server(f"http://127.0.0.1:{port}")
        except (OSError, ValueError):
            time.sleep(0.05)
    raise OSError(f"it did not serve within {limit_s:.0f} s")


@contextlib.contextmanager
def started(command, gpus, log):
    """The process with all that it starts, until the end."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": gpus}
    process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        for number, wait_s in ((signal.SIGTERM, 30), (signal.SIGKILL, 30)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(wait_s)


class Turns:
    def __init__(self, o):
        self.o, self.records, self.failed = o, [], False
        self.gpus = [int(number) for number in o.gpus.split(",")]
        models = {name: facts.identities(shlex.split(command)) for name, command in o.engine.items()}
        self.facts = {name: facts.facts(model, facts.card(self.gpus[0])) | dict(runs=1, spread=None) for name, model in models.items()}

    def record(self, engine, round_, **more):
        self.records.append(dict(engine=engine, round=round_, **self.facts[engine], **more))
        self.failed = self.failed or "failed_because" in more
        with open(os.path.join(self.o.output, "serve.jsonl"), "a") as f:
            print(json.dumps(self.records[-1]), file=f)
        print(f"round {round_}, {engine}: {more['name']}{': ' + more['failed_because'] if 'failed_because' in more else ''}", flush=True)

    def run(self, engine, round_):
        """One server, and its records."""
        text, port, began = self.o.engine[engine], free_port(), time.monotonic()
        try:
            with open(os.path.join(self.o.output, f"{engine}.{round_}.log"), "wb") as log, \
                    started(shlex.split(text.replace("{port}", str(port))), self.o.gpus, log) as process:
                server = wait_for_server(process, port, self.o.start_limit)
                ready = time.monotonic()
                load.write_one_token(server)
                self.record(engine, round_, name="start", command=text, gpus=self.gpus, ready_s=round(ready - began, 3),
                            start_s=round(time.monotonic() - began, 3))
                words = self.o.loads.get(engine, "writing").split(",")
                self.warm_up(server, words[0])
                for word in words:
                    self.put(engine, round_, server, process, word)
        except (OSError, ValueError) as fault:
            self.record(engine, round_, name="server", command=text, failed_because=str(fault)[-400:])

    def warm_up(self, server, word):
        """A few clients first, for what a server makes at its first use; not recorded."""
        few = serving.shrunk(LOADS[word]()[0]) if self.o.quick else LOADS[word]()[0] | dict(seconds=3)
        load.run(server, load.Scenario(**few), self.gpus)

    def put(self, engine, round_, server, process, word):
        for scenario in LOADS[word]():
            record = load.run(server, load.Scenario(**(serving.shrunk(scenario) if self.o.quick else scenario)), self.gpus)
            faults = {} if record["done"] else {"failed_because": f"no answer was whole: {record.get('refused') or record['failed']}"}
            self.record(engine, round_, **record, **faults)
            if process.poll() is not None:
                raise OSError(f"it ended with code {process.returncode} under load")


def show(records):
    """One line for each load."""
    print(f"{'load':44s} {'engine':14s} {'round':>5s} {'tok/s':>9s} {'first 50/99 %, ms':>19s} {'token or canvas 50/99 %':>24s} {'goodput':>7s} {'J/token':>8s} {'failed':>6s}")
    def two(part, name):
        return "/".join("-" if part.get(f"{name}_ms_p{n}") is None else f"{part[f'{name}_ms_p{n}']:.1f}" for n in (50, 99))
    for r in sorted((r for r in records if "tokens_per_s" in r), key=lambda r: r["name"]):
        part = r.get("autoregressive") or r.get("diffusion") or {}
        joules = "-" if r["joules_per_token"] is None else f"{r['joules_per_token']:.3f}"
        goodput = "-" if r["goodput"] is None else f"{100 * r['goodput']:.0f} %"
        print(f"{r['name']:44s} {r['engine']:14s} {r['round']:5d} {r['tokens_per_s']:9.1f} {two(part, 'first'):>19s} "
              f"{two(part, 'token' if 'token_ms_p50' in part else 'canvas'):>24s} {goodput:>7s} {joules:>8s} {sum(r['failed'].values()):6d}")


def main():
    o = options()
    os.makedirs(o.output, exist_ok=True)
    turns = Turns(o)
    for round_ in range(1, o.rounds + 1):
        for engine in o.engine:
            turns.run(engine, round_)
    show(turns.records)
    return 1 if turns.failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
