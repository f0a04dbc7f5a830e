# SPDX-License-Identifier: MIT
"""weft sim beside three measured replicas: tokens of prompts computed, tokens found, pages evicted.

The measured fleet is that of prefixes.py: servers, a router of others before them, clients that ask again when they were answered.
The simulation gets the prompts as ids of the pager's smallest block, the length of each answer, the geometry and the pool of the
servers, as many clients, which think for so long that as many requests are in flight in the mean as were, and which replica answered
which request; where the server does not say it (one server with --split replicas), the simulation chooses by itself. What a router
loses of a request it loses here, too (`mode`: the demo model then answers by canvases). What it is not given is anything compared.

Law: what is compared are counts; times are not compared, since the replicas share cores. Each run has the sum over its replicas
beside that of its simulation, and apart_percent, the largest difference of the three counts in percent of what was measured (of
what is less than FEW, in percent of FEW). A row has the median of each count over its runs, how far these are apart, and the
largest apart_percent of a run."""
import json
import os
import statistics
import subprocess

from prefixes import contenders, least_of, look_at, make_load, measure
from routers import KINDS

BLOCK, FEW = 16, 200


def write_trace(path, prompts, said, kind):
    """The prompts as ids: equal blocks of tokens have equal ids, and no others."""
    known = {}
    with open(path, "w", encoding="utf-8") as f:
        for tokens, n in zip(prompts, said):
            ids = [known.setdefault(tuple(tokens[at:at + BLOCK]), len(known)) for at in range(0, len(tokens), BLOCK)]
            f.write(json.dumps(dict(timestamp=0, input_length=len(tokens), output_length=n, kind=kind, hash_ids=ids)) + "\n")


def write_assignment(path, n, requests):
    at = [0] * n
    for replica, items in enumerate(requests):
        for i in items:
            at[i] = replica
    with open(path, "w", encoding="utf-8") as f:
        f.write("".join(f"{replica}\n" for replica in at))


def think(simulate_with, clients, wanted):
    """What a simulation with clients that think says, with as many requests in flight as wanted: by Little's law, clients that do not
    think are in flight."""
    low, high = 0.0, 64.0
    for _ in range(12):
        ms = (low + high) / 2
        found = simulate_with(ms)
        in_flight = clients - found["finished"] / found["seconds"] * ms / 1000
        low, high = (ms, high) if in_flight > wanted else (low, ms)
    return found


def simulate(o, folder, prompts, run, mib, n_replicas, kind):
    trace, assignment = os.path.join(folder, "load.jsonl"), os.path.join(folder, "assignment.txt")
    write_trace(trace, prompts, run["said"], kind)
    words = [o.weft, "sim", "--json", "--profile", os.path.join(o.folder, "profile.json"), "--trace", trace, "--trace-block", str(BLOCK),
             "--clients", str(o.clients), "--kv-mib", str(mib), "--replicas", str(n_replicas)]
    if n_replicas == len(run["requests"]):
        write_assignment(assignment, len(prompts), run["requests"])
        words += ["--replay", assignment]
    else:
        words += ["--router", "prefix"]
    found = think(lambda ms: json.loads(subprocess.run([*words, "--think-ms", f"{ms:.3f}"], check=True, stdout=subprocess.PIPE).stdout),
                  o.clients, run["in_flight"])
    assert found["finished"] == len(prompts), found["finished"]
    return dict(computed=int(found["prefill_rows"]), found=int(found["hit_tokens"]), evicted=int(found["pages_evicted"]))


def kind_of(name):
    """How requests behind a router are answered."""
    return "diffusion" if any(name.startswith(k.name) and not k.keeps_chat_fields for k in KINDS) else "ar"


def apart(measured, simulated):
    return round(max(100 * abs(simulated[k] - n) / max(n, FEW) for k, n in measured.items()), 1)


def run_simulated(o, options, say):
    """What the rows are about, and the rows."""
    bodies = make_load(o.seed, o.tenants, o.requests, (80, 160))
    prompts, unit, room = look_at(o, bodies, options)
    least = least_of(prompts, unit)
    with open(os.path.join(o.folder, "profile.json"), "w", encoding="utf-8") as f:
        subprocess.run([o.weft, "bench", "profile", *options[:2], "-t", "1"], check=True, stdout=f, stderr=subprocess.DEVNULL)
    with open(f.name, encoding="utf-8") as f:
        profile = json.load(f)
    about = dict(tenants=o.tenants, requests=o.requests, clients=o.clients, seed=o.seed, unit=unit, prompt_tokens=sum(map(len, prompts)),
                 least=least, profile=profile)
    rows = []
    for mib in o.kv_mib:
        for name, make in contenders(o, [*options, "--kv-mib", str(mib)], [*options, "--kv-mib", "512"]):
            single = name.startswith("one replica")
            if rows and single:
                continue  # its room is always the same
            row = dict(room_of_a_replica=None if single else room[mib], router=name)
            found = []
            try:
                for turn in range(o.runs):
                    folder = os.path.join(o.folder, f"{name.replace(' ', '-')}-{mib}-{turn}")
                    os.makedirs(folder)
                    replicas, start = make(folder)
                    run = measure(start, replicas, bodies, prompts, unit, o.clients)
                    measured = {k: sum(run[k]) for k in ("computed", "found", "evicted")}
                    simulated = simulate(o, folder, prompts, run, 512 if single else mib, 1 if single else 3, kind_of(name))
                    found.append(dict(in_flight=round(run["in_flight"], 2), measured=measured, simulated=simulated, apart_percent=apart(measured, simulated)))
                middle = {who: {k: int(statistics.median(f[who][k] for f in found)) for k in measured} for who in ("measured", "simulated")}
                row |= middle | dict(apart_percent=apart(**middle), apart_percent_of_a_run=max(f["apart_percent"] for f in found), runs=found)
            except AssertionError as error:
                row |= dict(failed=str(error))
            rows.append(row)
            say(str(row))
    return about, rows
