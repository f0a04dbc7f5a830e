#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft beside llama.cpp, ik_llama.cpp or a relative of theirs on the same file and the same shapes, in turns A B A B, so that
a machine whose speed changes does the same to all of them. One table: prompts per second (S_PP) and decoding (S_TG) by
the number of sequences at once, with the precision, the experts touched, the repeats, and a coefficient of variation
beside every figure. The peers are programs that are installed already: a folder with llama-batched-bench.

  bench/peers/run.py -m MODEL.gguf --peer llama.cpp=DIR [--peer ik_llama.cpp=DIR]... -o FOLDER

A call ends within nine minutes (--limit) and says its number and what is left; the same command again goes on where the
call before ended, until the table is whole. FOLDER/turns.jsonl holds what was measured, FOLDER/record.json the record.
"""
import argparse
import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
import time

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
import facts

BACKENDS = ("cpu", "cuda")


def fail(text, code=1):
    print(f"peers: {text}", file=sys.stderr)
    sys.exit(code)


def pairs(values, option):
    """NAME=TEXT options as a dictionary."""
    for value in values:
        if "=" not in value or value.startswith("="):
            fail(f"{option} {value}: write NAME=...", 2)
    return dict(value.split("=", 1) for value in values)


def options():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("-m", "--model", required=True, metavar="FILE", help="the GGUF file that all engines run")
    a.add_argument("-o", "--output", required=True, metavar="FOLDER", help="where turns and the record go")
    a.add_argument("--weft", default="build/weft", metavar="PROGRAM")
    a.add_argument("--peer", action="append", default=[], metavar="NAME=DIR", help="a folder with llama-batched-bench; may be repeated")
    a.add_argument("--peer-options", action="append", default=[], metavar="NAME=OPTIONS", help="options that this peer gets as well")
    a.add_argument("--precision", action="append", default=[], metavar="NAME=TEXT", help="what the table says of a peer's precision")
    a.add_argument("--weft-options", default="", metavar="OPTIONS", help="options that weft gets as well")
    a.add_argument("--backend", choices=BACKENDS, default="cpu", help="where all of them run [cpu]")
    a.add_argument("-t", "--threads", type=int, default=os.cpu_count(), help="threads of each on the cpu [all]")
    a.add_argument("--n-prompt", type=int, default=512)
    a.add_argument("--n-generate", type=int, default=128)
    a.add_argument("--sequences", default="1,8,32,64", help="sequences at once, powers of two [1,8,32,64]")
    a.add_argument("-r", "--repeat", type=int, default=3, help="turns of each engine [3]")
    a.add_argument("--others", type=float, default=100, metavar="PERCENT", help="a turn counts only if other programs took less of the processors; else it is made again, at most three times in a call [100]")
    a.add_argument("--limit", type=float, default=530, help="seconds of one call [530]")
    o = a.parse_args()
    o.peer, o.peer_options, o.precision = (pairs(v, n) for v, n in ((o.peer, "--peer"), (o.peer_options, "--peer-options"),
                                                                    (o.precision, "--precision")))
    try:
        o.sequences = [int(n) for n in o.sequences.split(",")]
    except ValueError:
        o.sequences = []
    if not o.sequences or any(n < 1 or n & (n - 1) for n in o.sequences):
        fail("--sequences: write powers of two, such as 1,8,32", 2)
    if min(o.n_prompt, o.n_generate, o.repeat, o.threads) < 1:
        fail("--n-prompt, --n-generate, --repeat and --threads must be at least 1", 2)
    if not o.peer or "weft" in o.peer:
        fail("name at least one peer: --peer llama.cpp=DIR", 2)
    return o


def program_of(o, engine):
    return o.weft if engine == "weft" else os.path.join(o.peer[engine], "llama-batched-bench")


def command_of(o, engine):
    largest = max(o.sequences)
    if engine == "weft":
        return [o.weft, "bench", "model", "prefill", "sequences", "-m", o.model, "--backend", o.backend, "-t", str(o.threads), "--n-prompt",
                str(o.n_prompt), "--n-generate", str(o.n_generate), "-c", str(o.n_prompt + o.n_generate + 64), "--running", str(largest),
                "--repeat", "1", "-q", "--json", *shlex.split(o.weft_options)]
    twice = ",".join(f"{n},{n}" for n in o.sequences)  # the first of each warms up, as weft's first run of a row does
    return [program_of(o, engine), "-m", o.model, "-ngl", "99" if o.backend == "cuda" else "0", "-t", str(o.threads), "-npp", str(o.n_prompt),
            "-ntg", str(o.n_generate), "-npl", twice, "-c", str(largest * (o.n_prompt + o.n_generate)),
            *shlex.split(o.peer_options.get(engine, ""))]


def rows_of_weft(o, text):
    rows = {}
    for r in json.loads(text):
        name = f"{'S_PP' if r['work'].startswith('prefill') else 'S_TG'} {r['n_parallel']}"
        rows[name] = dict(rate=r["median"], precision=f"{r['product_bits']}-bit products",
                          **{k: round(r[k], 1) for k in ("experts_touched", "experts_expected") if k in r})
    return rows


def rows_of_peer(o, text):
    """The table that llama-batched-bench prints, by its own header."""
    header, seen, rows = None, {}, {}
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if "B" in cells and "S_TG t/s" in cells:
            header = cells
        elif header and len(cells) == len(header) and cells[0].isdigit():
            r = dict(zip(header, cells))
            n = int(r["B"])
            seen[n] = seen.get(n, 0) + 1
            if seen[n] == 2:
                rows[f"S_PP {n}"], rows[f"S_TG {n}"] = dict(rate=float(r["S_PP t/s"])), dict(rate=float(r["S_TG t/s"]))
    return rows


def works_of(o):
    return [f"{what} {n}" for what in ("S_PP", "S_TG") for n in o.sequences]


def processor_seconds():
    """Seconds that the machine's processors were busy, and those of them that programs started here took."""
    with open("/proc/stat") as f:
        user, nice, system, _, _, irq, softirq, steal = (int(n) for n in f.readline().split()[1:9])
    ours = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK"), ours.ru_utime + ours.ru_stime


def run_turn(o, engine, seconds):
    command, began, before = command_of(o, engine), time.monotonic(), processor_seconds()
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=seconds)
    except subprocess.TimeoutExpired:
        fail(f"{engine} did not end within the {seconds:.0f} s that this call had left: run the command again, or ask for less with --sequences")
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        fail(f"{engine} ended with code {done.returncode}: {last}")
    try:
        rows = (rows_of_weft if engine == "weft" else rows_of_peer)(o, done.stdout + ("" if engine == "weft" else "\n" + done.stderr))
    except (ValueError, KeyError, TypeError) as e:
        fail(f"{engine} printed what cannot be read: {e}")
    missing = [w for w in works_of(o) if w not in rows or not rows[w]["rate"] > 0]
    if missing:
        fail(f"{engine} gave no figure for {', '.join(missing)}: {shlex.join(command)}")
    lasted, after = time.monotonic() - began, processor_seconds()
    others = (after[0] - before[0]) - (after[1] - before[1])
    return dict(engine=engine, seconds=round(lasted, 1), others_percent=min(100.0, round(100 * max(others, 0) / (lasted * os.cpu_count()), 1)),
                rows={w: rows[w] for w in works_of(o)})


def sum_up(o, engines, turns):
    rows = []
    for work in works_of(o):
        ours = None
        for engine in engines:
            measured = [t["rows"][work] for t in turns if t["engine"] == engine]
            rates = [m["rate"] for m in measured]
            median = statistics.median(rates)
            ours = median if engine == "weft" else ours
            rows.append(dict(work=work, engine=engine, precision=o.precision.get(engine, measured[0].get("precision", "its own")), median=round(median, 2), unit="tok/s", repeats=len(rates),
                             spread=round(max(rates) - min(rates), 2),
                             cv_percent=round(100 * statistics.stdev(rates) / statistics.mean(rates), 2) if len(rates) > 1 else None,
                             weft_over_it=round(ours / median, 3), experts_touched=measured[0].get("experts_touched"),
                             experts_expected=measured[0].get("experts_expected")))
    return rows


def show(rows):
    print(f"{'work':9s} {'engine':14s} {'tok/s':>10s} {'cv %':>6s} {'repeats':>7s} {'weft / it':>9s} {'experts':>8s}  precision")
    for r in rows:
        cv = "-" if r["cv_percent"] is None else f"{r['cv_percent']:.1f}"
        experts = "-" if r["experts_touched"] is None else f"{r['experts_touched']:.1f}"
        print(f"{r['work']:9s} {r['engine']:14s} {r['median']:10.1f} {cv:>6s} {r['repeats']:7d} {r['weft_over_it']:9.2f} {experts:>8s}  {r['precision']}")


def open_turns(o, engines):
    """What calls before this one measured; refused if they measured something else."""
    path = os.path.join(o.output, "turns.jsonl")
    settings = dict(commands=[command_of(o, e) for e in engines], repeat=o.repeat)
    if not os.path.exists(path):
        with open(path, "w") as f:
            print(json.dumps(settings), file=f)
        return path, []
    try:
        with open(path) as f:
            first, *turns = (json.loads(line) for line in f)
    except ValueError:
        fail(f"{path} cannot be read: remove it to begin anew", 2)
    if first != settings:
        fail(f"{path} is of another command: take another folder, or remove it", 2)
    return path, turns


def measure(o, engines, path, turns):
    """Turns until this call's time is over; true when there is none left."""
    began, order = time.monotonic(), [e for _ in range(o.repeat) for e in engines]
    call = max((t["call"] for t in turns), default=0) + 1
    disturbed = 0
    while len(turns) < len(order):
        i = len(turns)
        left = o.limit - (time.monotonic() - began)
        before = max((t["seconds"] for t in turns if t["engine"] == order[i]), default=0.0)
        if disturbed == 3 or left <= 0 or (i > 0 and turns[-1]["call"] == call and 1.2 * before > left):
            print(f"call {call} ends after {i} of {len(order)} turns: the same command again goes on")
            return False
        turn = dict(run_turn(o, order[i], left), call=call)
        if turn["others_percent"] > o.others:
            disturbed += 1
            print(f"call {call}: other programs took {turn['others_percent']} % of the processors beside {order[i]}: that turn does not count", flush=True)
            continue
        turns.append(turn)
        with open(path, "a") as f:
            print(json.dumps(turn), file=f)
        print(f"call {call}, turn {i + 1} of {len(order)}: {order[i]}, {turn['seconds']} s", flush=True)
    return True


def main():
    o = options()
    engines = ["weft", *o.peer]
    for engine in engines:
        if not os.access(program_of(o, engine), os.X_OK):
            fail(f"{program_of(o, engine)} is no program that can be run: {'build weft' if engine == 'weft' else f'--peer {engine}= names the wrong folder'}", 2)
    if not os.path.exists(o.model):
        fail(f"{o.model} is not there", 2)
    os.makedirs(o.output, exist_ok=True)
    path, turns = open_turns(o, engines)
    if not measure(o, engines, path, turns):
        return
    rows = sum_up(o, engines, turns)
    commands = {e: shlex.join(command_of(o, e)).replace(os.path.dirname(os.path.abspath(o.model)) + "/", "") for e in engines}
    device = facts.card() if o.backend == "cuda" else facts.processors(o.threads)
    record = dict(facts.facts(facts.identity(o.model), device), runs=o.repeat, load_average=round(os.getloadavg()[1], 2),
                  calls=max(t["call"] for t in turns), others_percent=max(t["others_percent"] for t in turns), command=commands, rows=rows)
    with open(os.path.join(o.output, "record.json"), "w") as f:
        json.dump(record, f, indent=1)
        f.write("\n")
    show(rows)


if __name__ == "__main__":
    main()
