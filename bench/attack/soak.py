# SPDX-License-Identifier: MIT
"""All attacks mixed against one server for a long while. Law: afterwards nothing is left of them, neither memory nor requests, and
every request of those who behave is in the server's books exactly once."""
import asyncio
import json
import random
import statistics
import time
from collections import Counter

from attacks import War
from client import ask
from measure import ANSWER, PROMPT, Actor, completion, is_idle, metrics, play_health, tokens
from server import DEMO, DEMO_AR, Server, wait_for

KEYS = ("operator-key operator", "attacker-key attacker", "victim-key victim", "clerk-key clerk", "crowd-key crowd weight=10",
        "leader-key leader class=low")
ROUND_S, AT_ONCE = 15.0, 2
WARM_S, FLAT = 600.0, 0.02
END_S = 600.0


async def play_steady(actor, port, key, period_s, body_of):
    """Asks once a period until it is stopped, and keeps books as a client sees them."""
    books, asked = Counter(), set()
    firsts = []

    async def one(i):
        answer = await ask(port, "POST", "/v1/completions", key, body_of(i), limit_s=END_S)
        books["asked"] += 1
        books[f"code {answer.code}" if not answer.fault else answer.fault] += 1
        if answer.code == 200 and not answer.fault:
            books["answer tokens"] += answer.n_tokens
            books["prompt tokens"] += len(body_of(i)["prompt"])
            firsts.append(answer.first_s)

    i = 0
    while not actor.stopped:
        task = asyncio.create_task(one(i))
        asked.add(task)
        task.add_done_callback(asked.discard)
        i += 1
        await asyncio.sleep(period_s)
    await asyncio.gather(*asked)
    return {"books": dict(books), "first_worst_s": max(firsts, default=0.0), "first_median_s": statistics.median(firsts or [0.0])}


def victim_body(i):
    return completion(tokens(i, PROMPT), ANSWER)


def clerk_body(i):
    draw = random.Random(i)
    body = completion(tokens(i, draw.randrange(1, 600)), draw.randrange(1, 60), model=draw.choice(("weft-demo", "weft-demo-ar")))
    return body if draw.random() < 0.5 else {**body, "stream": False, "stream_options": None}


def rounds(attacks, seed):
    """Pairs of attacks for ever; each turn through all of them is in another order."""
    draw = random.Random(seed)
    while True:
        order = list(attacks)
        draw.shuffle(order)
        for k in range(0, len(order), AT_ONCE):
            yield order[k:k + AT_ONCE]


def attack_for(seconds, server, attacks, seed, nice):
    """Runs the rounds; the resident memory, a sample a second: [(seconds since the start, MiB)]."""
    began, resident, counts = time.monotonic(), [], Counter()
    for pair in rounds(attacks, seed):
        if time.monotonic() - began >= seconds or not server.alive:
            return resident, dict(counts)
        war = War(server.port, seed + len(resident), 1.0)
        war.began.value = time.monotonic() + 1
        actors = [Actor(attack.play, war, nice=nice) for attack in pair]
        end = min(time.monotonic() + ROUND_S, began + seconds)
        while time.monotonic() < end and server.alive:
            time.sleep(1.0)
            resident.append((time.monotonic() - began, server.resident_mib))
        for attack, actor in zip(pair, actors):
            for what, n in actor.finish().items():
                counts[f"{attack.name}: {what}"] += n


def growth(resident, seconds):
    """By how much the median of memory in the last third after the warm-up is above that of the first third."""
    warm = min(WARM_S, seconds / 3)
    after = [x for x in resident if x[0] >= warm]
    third = max(1, len(after) // 3)
    first, last = statistics.median(m for _, m in after[:third]), statistics.median(m for _, m in after[-third:])
    return (last - first) / first, first, last


def judge(m, clients, flat, empty, code, health):
    """[(what, good, seen)]"""
    yield "resident memory is flat within 2 % after the warm-up", flat[0] <= FLAT, f"{flat[1]:.1f} to {flat[2]:.1f} MiB: {100 * flat[0]:+.1f} %"
    yield "all pages are free or cached, nothing runs, waits or is pinned", empty, \
        f"{m.get('weft_pool_pages_free', 0):.0f} free, {m.get('weft_pool_pages_cached', 0):.0f} cached of {m.get('weft_pool_pages', 0):.0f}"
    ended = m.get("vllm:request_success_total", 0)
    submitted = m.get("weft_requests_submitted_total", -1)
    yield "requests submitted have ended", submitted == ended, f"{submitted:.0f} submitted, {ended:.0f} ended"
    by_tenant = m.get("weft_tenant_requests_total", -1)
    yield "and are counted for their tenants", by_tenant == ended, f"{by_tenant:.0f}"
    for tenant, client in clients.items():
        books = client["books"]
        for what, name in (("code 200", "requests"), ("answer tokens", "completion_tokens"), ("prompt tokens", "prompt_tokens")):
            seen = m.get(f'weft_tenant_{name}_total{{tenant="{tenant}"}}', -1)
            yield f"{tenant}: {what}, as the client counts and as the server does", seen == books.get(what, 0), f"{books.get(what, 0)} and {seen:.0f}"
        yield f"{tenant}: every request was served", books.get("code 200", 0) == books["asked"], str(books)
    yield "/health answered every time", health["faults"] == 0, f"{health['n']} times, {health['faults']} not, worst {health['worst_s'] * 1000:.0f} ms"
    yield "the server ended well", code == 0, f"exit code {code}"


def soak(a, attacks):
    server = Server(a.weft, ("--kv-mib", "64", "--shared-cache"), KEYS, (DEMO_AR, DEMO))
    try:
        health = Actor(play_health, server.port, 0.5, END_S)
        people = {"victim": Actor(play_steady, server.port, "victim-key", 1.0, victim_body),
                  "clerk": Actor(play_steady, server.port, "clerk-key", 2.0, clerk_body)}
        resident, counts = attack_for(a.soak, server, attacks, a.seed, a.nice)
        clients = {name: actor.finish() for name, actor in people.items()}
        healthy = health.finish()
        empty = wait_for(lambda: server.alive and is_idle(server), END_S)
        m = metrics(server)
    finally:
        code = server.stop()
    verdicts = list(judge(m, clients, growth(resident, a.soak), empty, code, healthy))
    for what, good, seen in verdicts:
        print(f"{'good' if good else 'BAD '} {what}: {seen}")
    victim = clients["victim"]
    print(f"the victim's first token: median {victim['first_median_s'] * 1000:.0f} ms, worst {victim['first_worst_s'] * 1000:.0f} ms")
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"verdicts": verdicts, "clients": clients, "attackers": counts, "resident_mib": resident, "metrics": m}, f, indent=1)
    bad = sum(1 for _, good, _ in verdicts if not good)
    print(f"soak: {a.soak:.0f} s, {bad} of {len(verdicts)} not as promised")
    return 1 if bad else 0
