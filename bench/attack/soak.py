# SPDX-License-Identifier: MIT
"""All attacks mixed against one server for a long while. Law: afterwards nothing is left of them, neither memory nor requests, and
every request of those who behave is in the server's books exactly once."""
import asyncio
import json
import random
import statistics
import sys
import time
from collections import Counter

import facts
from attacks import War
from client import ask
from measure import ANSWER, PROMPT, Actor, completion, is_idle, metrics, play_health, tokens
from server import DEMO, DEMO_AR, Server, wait_for

KEYS = ("operator-key operator", "attacker-key attacker", "victim-key victim", "clerk-key clerk", "crowd-key crowd weight=10",
        "leader-key leader class=low", "second-key second", "third-key third")
ROUND_S, AT_ONCE, REST_S = 15.0, 2, 20.0
WARM_S, FLAT = 600.0, 0.02  # seconds that are not judged, at most a third of all; growth that may be
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
    """Pairs of attacks for ever; each turn through all of them is in another order, and ends with a rest: nobody attacks."""
    draw = random.Random(seed)
    while True:
        order = list(attacks)
        draw.shuffle(order)
        for k in range(0, len(order), AT_ONCE):
            yield order[k:k + AT_ONCE]
        yield []


class Memory:
    """Resident memory, looked at once a second; and what it is at rest, when nothing of the attacks should be left."""

    def __init__(self, server):
        self.server, self.began = server, time.monotonic()
        self.samples, self.rests = [], []

    def look_for(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(1.0)
            if not self.server.alive:
                return
            self.samples.append((time.monotonic() - self.began, self.server.resident_mib))

    def rest(self):
        self.look_for(REST_S)
        if self.samples:
            self.rests.append((time.monotonic() - self.began, min(m for _, m in self.samples[-5:])))

    def growth(self, seconds):
        """How much more the later half of the rests after the warm-up holds than the earlier half; None: too few of them."""
        after = [m for t, m in self.rests if t >= min(WARM_S, seconds / 3)]
        if len(after) < 2:
            return None
        half = len(after) // 2
        return statistics.median(after[-half:]) / statistics.median(after[:half]) - 1


def attack_for(seconds, server, attacks, a):
    """Runs the rounds; what memory did, and what the attackers counted."""
    memory, counts = Memory(server), Counter()
    for pair in rounds(attacks, a.seed):
        if time.monotonic() - memory.began >= seconds or not server.alive:
            memory.rest()
            return memory, dict(counts)
        if not pair:
            memory.rest()
            continue
        war = War(server.port, a.seed + len(memory.samples), 1.0)
        war.began.value = time.monotonic() + 1
        actors = [Actor(attack.play, war, nice=a.nice) for attack in pair]
        memory.look_for(min(ROUND_S, memory.began + seconds - time.monotonic()))
        for attack, actor in zip(pair, actors):
            try:
                for what, n in actor.finish().items():
                    counts[f"{attack.name}: {what}"] += n
            except RuntimeError as error:  # an attack that had no effect in its seconds; alone it is a fault
                counts[f"{attack.name}: {error}"] += 1


def judge(m, clients, memory, seconds, empty, code, health):
    """[(what, good, seen)]"""
    grown = memory.growth(seconds)
    rests = " ".join(f"{m:.1f}" for _, m in memory.rests)
    yield "resident memory at rest grows by 2 % at most after the warm-up", grown is not None and grown <= FLAT, \
        f"{rests} MiB: " + ("too few rests to say: soak for 600 s or more" if grown is None else f"{100 * grown:+.1f} %")
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


def write_record(a, runs, figures):
    """All figures to the file that was asked for, with where they come from (bench/records.py)."""
    if not a.json:
        return
    models = [facts.identity(path) for path in (DEMO, DEMO_AR)]
    begin = facts.facts(models, facts.processors()) | {"command": " ".join(["bench/attack", *sys.argv[1:]]), "runs": runs, "spread": "medians and worst of the requests"}
    with open(a.json, "w") as f:
        json.dump(begin | figures, f, indent=1)


def soak(a, attacks):
    server = Server(a.weft, ("--kv-mib", "64", "--shared-cache"), KEYS, (DEMO_AR, DEMO))
    try:
        health = Actor(play_health, server.port, 0.5, END_S)
        people = {"victim": Actor(play_steady, server.port, "victim-key", 1.0, victim_body),
                  "clerk": Actor(play_steady, server.port, "clerk-key", 2.0, clerk_body)}
        memory, counts = attack_for(a.soak, server, attacks, a)
        clients = {name: actor.finish() for name, actor in people.items()}
        healthy = health.finish()
        empty = wait_for(lambda: server.alive and is_idle(server), END_S)
        m = metrics(server)
    finally:
        code = server.stop()
    verdicts = list(judge(m, clients, memory, a.soak, empty, code, healthy))
    for what, good, seen in verdicts:
        print(f"{'good' if good else 'BAD '} {what}: {seen}")
    victim = clients["victim"]
    print(f"the victim's first token: median {victim['first_median_s'] * 1000:.0f} ms, worst {victim['first_worst_s'] * 1000:.0f} ms")
    write_record(a, 1, {"verdicts": verdicts, "clients": clients, "attackers": counts, "resident_mib": memory.samples, "rests_mib": memory.rests,
                        "metrics": m})
    bad = sum(1 for _, good, _ in verdicts if not good)
    print(f"soak: {a.soak:.0f} s, {bad} of {len(verdicts)} not as promised")
    return 1 if bad else 0
