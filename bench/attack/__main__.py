#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Attacks on servers of our own on 127.0.0.1, each with a victim beside it: nobody can hold up anybody.

A full run measures the victim's time to first token alone and under each attack and holds it against what docs/scheduler.md
promises. --quick judges by outcomes and steps only, never by times, so that it says the same on a busy machine. --soak mixes all
attacks against one server for a while and then counts what is left. Exit code 1: something was not as promised."""
import argparse
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
from attacks import ATTACKS, War  # noqa: E402
from checks import CHECKS  # noqa: E402
from client import speak_tls  # noqa: E402
from measure import Actor, is_idle, metrics, watch  # noqa: E402
from server import Server, models_options, wait_for  # noqa: E402
from soak import soak, write_record  # noqa: E402

HEALTH_S, FIRST_S = 0.1, 0.1  # what /health and a first token may always take
STEPS_BESIDES = 4  # docs/scheduler.md: a share of the steps, and four
GROWN_MIB = 8  # of allocated memory, after an attack, once the server is idle


def allocated_mib(server):
    seen = metrics(server)  # a model that was loaded last stays
    return (seen.get("weft_host_allocated_bytes", 0) - seen.get("weft_models_held_bytes", 0) - seen.get("weft_model_kept_bytes", 0)) / (1 << 20)


def run_attack(attack, a, alone):
    """The attack's figures."""
    speak_tls(a.tls or attack.tls)
    options = attack.options + models_options(a.models_mib, attack.keeps) if attack.folder else attack.options
    server = Server(a.weft, options, attack.keys, attack.models)
    seed = a.seed * 1200000  # a multiple of LEAD_EVERY
    try:
        watch(server.port, 3, 0.2, attack.victim, seed + 900001)  # pages are touched, costs learned
        setup = (options, attack.models, attack.steps_alone, a.tls or attack.tls)
        if not a.quick and setup not in alone:
            alone[setup] = watch(server.port, a.samples, a.period, attack.victim, seed + 600000)
        allocated, resident, files, cpu = allocated_mib(server), server.resident_mib, server.n_files, server.cpu_s
        server.forget_peak()
        war = War(server.port, seed, a.period)
        attacker = Actor(attack.play, war, nice=a.nice)
        in_place = attacker.ready_event.wait(a.limit) and wait_for(lambda: attack.in_place(metrics(server)), a.limit)
        war.began.value = time.monotonic() + 1.5
        under = watch(server.port, a.samples, a.period, attack.victim, seed, war.began.value, a.limit)
        counts = attacker.finish()
        peak = server.peak_mib - resident
        idle = wait_for(lambda: server.alive and is_idle(server), 4 * a.limit)
        seen = {"name": attack.name, "about": attack.about, "alone": alone.get(setup), "under": under, "attacker": counts,
                "cpu_s": server.cpu_s - cpu, "peak_mib": peak, "grown_mib": allocated_mib(server) - allocated,
                "files_left": server.n_files - files, "idle": idle, "in_place": in_place, "metrics": metrics(server)}
    finally:
        code = server.stop()
    return {**seen, "exit": code}


def wanted_s(attack, seen):
    """The most that the victim's first token may take."""
    alone = seen["alone"]["first"]
    return max(5 * alone["median_s"], FIRST_S, attack.share * alone["worst_s"] + STEPS_BESIDES * seen["under"]["longest_step_s"])


def faults_of(attack, seen, quick):
    """What was not as promised."""
    under = seen["under"]
    faults = [] if seen["in_place"] else ["the attack was not in place, so this run says nothing"]
    if under["faults"]:
        faults.append(f"{len(under['faults'])} of {under['n']} requests of the victim failed: {under['faults'][0]}")
    if under["health"]["faults"]:
        faults.append(f"/health failed {under['health']['faults']} times")
    # A quick run may meet a machine so busy that the victim's requests overlap and wait for each other.
    steps = attack.share * (attack.steps_alone + (under["n"] - 1 if quick else 0)) + STEPS_BESIDES
    if under["steps_to_first"] > steps:
        faults.append(f"{under['steps_to_first']} steps to the first token, {steps:.0f} are promised")
    if not quick:
        if under["first"]["worst_s"] > wanted_s(attack, seen):
            faults.append(f"first token after {ms(under['first']['worst_s'])} ms, {ms(wanted_s(attack, seen))} are wanted")
        if under["health"]["worst_s"] > HEALTH_S:
            faults.append(f"/health took {ms(under['health']['worst_s'])} ms")
    if not seen["idle"]:
        faults.append("the server did not become idle again")
    elif seen["grown_mib"] > GROWN_MIB:
        faults.append(f"{seen['grown_mib']:.0f} MiB were not given back")
    if seen["files_left"] > 2:
        faults.append(f"{seen['files_left']} descriptors were not closed")
    if seen["exit"] != 0:
        faults.append(f"exit code {seen['exit']}")
    return faults


def ms(seconds):
    return f"{seconds * 1000:,.0f}"


def pair(a, b):
    return f"{ms(a)} / {ms(b)}"


HEAD = """| attack | first token alone, ms | under attack, ms | wanted, ms | steps | longest step, ms | longest gap, ms | /health, ms | not served | memory at its peak, MiB | |
|---|---|---|---|---|---|---|---|---|---|---|"""


def row(attack, seen, faults):
    under, alone = seen["under"], seen["alone"]
    return "| " + " | ".join([
        attack.name,
        pair(alone["first"]["median_s"], alone["first"]["worst_s"]) if alone else "–",
        pair(under["first"]["median_s"], under["first"]["worst_s"]),
        ms(wanted_s(attack, seen)) if alone else "–",
        str(under["steps_to_first"]), ms(under["longest_step_s"]), ms(under["gap"]["worst_s"]),
        pair(alone["health"]["worst_s"], under["health"]["worst_s"]) if alone else ms(under["health"]["worst_s"]),
        f"{len(under['faults'])} of {under['n']}", f"{seen['peak_mib']:+,.0f}", "as promised" if not faults else "**not** as promised",
    ]) + " |"


def run_attacks(chosen, a):
    alone, results = {}, []
    if chosen:
        print(HEAD, flush=True)
    for attack in chosen:
        seen = run_attack(attack, a, alone)
        seen["faults"] = faults_of(attack, seen, a.quick)
        results.append(seen)
        print(row(attack, seen, seen["faults"]), flush=True)
    for seen in results:
        for fault in seen["faults"]:
            print(f"{seen['name']}: {fault}")
    return results


def run_checks(chosen, a):
    results = []
    speak_tls(a.tls)
    for name in chosen:
        for what, good, seen in CHECKS[name][0](a.weft):
            results.append({"name": name, "what": what, "good": good, "seen": seen})
            if not good or not a.quick:
                print(f"{'good' if good else 'BAD '} {name}: {what}: {seen}", flush=True)
    return results


def options():
    p = argparse.ArgumentParser(prog="attack", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--weft", default="build/weft", help="the program [build/weft]")
    p.add_argument("--only", default="", metavar="NAMES", help="attacks and checks, with commas; 'attacks', 'checks': all of a kind")
    p.add_argument("--list", action="store_true", help="what there is")
    p.add_argument("--quick", action="store_true", help="a part, judged without times")
    p.add_argument("--soak", type=float, default=0.0, metavar="SECONDS", help="all attacks mixed, then counts")
    p.add_argument("--tls", action="store_true", help="all over TLS; needs the command openssl")
    p.add_argument("--samples", type=int, default=0, help="requests of the victim [60; quick: 3]")
    p.add_argument("--period", type=float, default=0.0, help="seconds between them [1; quick: 0.4]")
    p.add_argument("--limit", type=float, default=120.0, help="seconds after which a request counts as not served [120]")
    p.add_argument("--nice", type=int, default=-1, help="of the attackers [19; quick: 0]")
    p.add_argument("--models-mib", type=int, default=20, help="for models that come and go: room for one of three [20, of the demo on a cpu]")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json", default="", metavar="FILE", help="all figures")
    a = p.parse_args()
    a.samples = a.samples or (3 if a.quick else 60)
    a.period = a.period or (0.4 if a.quick else 1.0)
    # A quick run may share the machine with much else: there an attacker that gives way to everybody never attacks.
    a.nice = a.nice if a.nice >= 0 else (0 if a.quick else 19)
    return p, a


def chosen_of(p, a):
    names = set(filter(None, a.only.split(",")))
    known = {x.name for x in ATTACKS} | set(CHECKS) | {"attacks", "checks"}
    if names - known:
        p.error(f"there is no {', '.join(sorted(names - known))}; --list names what there is")
    attacks = [x for x in ATTACKS if names & {x.name, "attacks"} or (not names and (x.quick or not a.quick))]
    checks = [x for x, (_, quick) in CHECKS.items() if names & {x, "checks"} or (not names and (quick or not a.quick))]
    return attacks, checks


def main():
    p, a = options()
    if a.list:
        for attack in ATTACKS:
            print(f"{attack.name:16} {attack.about}")
        for name, (check, _) in CHECKS.items():
            print(f"{name:16} {check.__doc__.splitlines()[0]}")
        return 0
    attacks, checks = chosen_of(p, a)
    if a.soak:
        speak_tls(a.tls)
        return soak(a, attacks)
    attacked, checked = run_attacks(attacks, a), run_checks(checks, a)
    bad = sum(1 for r in attacked if r["faults"]) + sum(1 for r in checked if not r["good"])
    write_record(a, f"{a.samples} requests of a victim under each attack", {"attacks": attacked, "checks": checked})
    print(f"attack: {len(attacked)} attacks, {len(checked)} checks, {bad} not as promised")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
