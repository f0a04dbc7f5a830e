# SPDX-License-Identifier: MIT
"""Formats of answers that take long to compile: by one tenant, by tenants who join, while the server drains, on replicas."""
import asyncio
import time
from collections import Counter

from client import ask
from measure import tokens
from server import KEYS, Server

NAMES, CONSTANTS, MEMBERS, MERGES = 40, 12, 900, 400
JOINED = KEYS + ("second-key second", "third-key third")


def constants(turn, order):
    """Lists that differ in their last members alone."""
    numbers = range(CONSTANTS) if order == 0 else reversed(range(CONSTANTS))
    return [[7] * (MEMBERS - 1) + [1000 * turn + n] for n in numbers]


def bomb(turn):
    """A schema, another one for every turn, that merges lists of such constants again and again, for each of many names."""
    merged = [{"$ref": "#/x-a" if i % 2 else "#/x-b"} for i in range(MERGES)]
    return {"required": [f"a{i}" for i in range(NAMES)], "additionalProperties": {"$ref": "#/x-q", "type": "array"},
            "x-q": {"allOf": merged}, "x-a": {"enum": constants(turn, 0)}, "x-b": {"enum": constants(turn, 1)}}


def bomb_body(turn):
    return {"prompt": tokens(turn, 20), "max_tokens": 8, "mode": "autoregressive", "guided_json": bomb(turn)}


def what_became(answer):
    """Its code, and of a format that was given up because of its steps that it was."""
    return f"{answer.code} steps" if b" steps" in answer.body else str(answer.code or answer.fault)


async def play_bombs(actor, war, keys, n):
    """n requests at a time of each key, each with a schema of its own; who is refused asks again at once."""
    counts = Counter()

    async def again(i, key):
        turn = 0
        while not actor.stopped:
            answer = await ask(war.port, "POST", "/v1/completions", key, bomb_body((war.seed + i * 1000 + turn) % 1000000))
            counts[what_became(answer)] += 1
            turn += 1
            if answer.code == 429:
                await asyncio.sleep(0.5)

    tasks = [asyncio.create_task(again(i, key)) for i, key in enumerate(keys * n)]
    await asyncio.sleep(1.0)
    actor.ready_event.set()
    while not actor.stopped:
        await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if not counts["400 steps"]:
        raise RuntimeError(f"no schema was compiled until its steps were used up: {dict(counts)}")
    return dict(counts)


async def play_one(actor, war):
    """Schemas that take long to compile, four at a time of one tenant."""
    return await play_bombs(actor, war, ("attacker-key",), 4)


async def play_joined(actor, war):
    """The same of three tenants who join, four each: as many long requests as there are workers, and more."""
    return await play_bombs(actor, war, ("attacker-key", "second-key", "third-key"), 4)


def check_drain_bomb(weft):
    """schemas that compile while the drain begins end at once, with the answer of a drain"""
    server = Server(weft, ("--drain-seconds", "5"), JOINED)

    async def play():
        asked = [asyncio.create_task(ask(server.port, "POST", "/v1/completions", key, bomb_body(900000 + i)))
                 for i, key in enumerate(("attacker-key", "second-key", "third-key") * 4)]
        await asyncio.sleep(0.5)
        began = time.monotonic()
        server.signal(15)
        code = await asyncio.to_thread(server.wait)
        took = time.monotonic() - began
        return code, took, Counter(what_became(a) for a in await asyncio.gather(*asked))

    code, took, counts = asyncio.run(play())
    server.stop()
    yield "the end comes within the drain's seconds and 7 for cancelling and last bytes", code == 0 and took < 12, \
        f"exit {code} after {took:.1f} s"
    yield "every request has an answer: refused, 503, or the connection closed by the end", \
        not set(counts) - {"400 steps", "429", "503", "closed without an answer", "ConnectionRefusedError", "ConnectionResetError"}, \
        dict(counts)
