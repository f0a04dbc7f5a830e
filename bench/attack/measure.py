# SPDX-License-Identifier: MIT
"""Who is beside an attack: the victim, who asks once a period whatever became of the request before; a prober of /health; an
observer who reads, as the operator, the server's own record of its steps and requests.

Each runs in a process of its own, so that none of them waits for another one's turn in Python."""
import asyncio
import multiprocessing
import os
import random
import statistics
import time
from bisect import bisect_left, bisect_right

from client import ask
from server import end_with_parent, metrics_of

PROMPT, ANSWER = 40, 8
WORD = 700  # a word of the demo models: every token of an answer is this one, so that each is an event at once
FORK = multiprocessing.get_context("fork")


def tokens(seed, n):
    """n token ids that the demo models know, drawn from the seed: whole words, so that every token is text at once."""
    draw = random.Random(seed)
    return [draw.randrange(600, 1000) for _ in range(n)]


def completion(prompt, n, **more):
    return {"prompt": prompt, "max_tokens": n, "ignore_eos": True, "temperature": 0, "mode": "autoregressive", "stream": True,
            "stream_options": {"include_usage": True}, "logit_bias": {str(WORD): 100}, **more}


class Actor:
    """A process that runs `await play(stop, *words)` and gives back what it returned. `stop` is an event for it to obey."""

    def __init__(self, play, *words, nice=0):
        self.stop_event = FORK.Event()
        self.ready_event = FORK.Event()
        self.receiver, sender = FORK.Pipe(duplex=False)
        parent = os.getpid()

        def run():
            end_with_parent(parent)
            os.nice(nice)
            self.receiver.close()
            try:
                sender.send(asyncio.run(play(self, *words)))
            except BaseException as e:  # the reason goes to who waits for the result
                sender.send(e if isinstance(e, Exception) else RuntimeError(repr(e)))

        self.process = FORK.Process(target=run, daemon=True)
        self.process.start()
        sender.close()

    @property
    def stopped(self):
        return self.stop_event.is_set()

    def result(self, limit_s=600.0):
        """Waits for its end; raises what it raised."""
        if not self.receiver.poll(limit_s):
            self.process.kill()
            raise RuntimeError("an actor of the attack did not end")
        try:
            value = self.receiver.recv()
        except EOFError:
            raise RuntimeError("an actor of the attack broke off") from None
        self.process.join()
        if isinstance(value, Exception):
            raise value
        return value

    def finish(self):
        self.stop_event.set()
        return self.result()


async def play_victim(_actor, port, n, period_s, body_of, seed, began, limit_s):
    async def one(i):
        await asyncio.sleep(max(0.0, began + i * period_s - time.monotonic()))
        answer = await ask(port, "POST", "/v1/completions", "victim-key", body_of(seed + i), limit_s=limit_s)
        fault = answer.fault or ("" if answer.code == 200 and b'"error"' not in answer.body else
                                 f"{answer.code}: {answer.body[:160].decode('utf-8', 'replace')}")
        if not fault and answer.n_tokens != ANSWER:
            fault = f"{answer.n_tokens} tokens"
        return {"first_s": answer.first_s, "total_s": answer.total_s, "gap_s": max(answer.gaps_s, default=0.0),
                "began": answer.began, "fault": fault}

    return await asyncio.gather(*(one(i) for i in range(n)))


async def play_health(actor, port, period_s, limit_s):
    """Latencies of /health; asks on time even when answers are late."""
    latencies, faults, asked = [], 0, set()

    async def one():
        nonlocal faults
        answer = await ask(port, "GET", "/health", limit_s=limit_s)
        latencies.append(answer.total_s)
        faults += answer.code != 200

    while not actor.stopped:
        task = asyncio.create_task(one())
        asked.add(task)
        task.add_done_callback(asked.discard)
        await asyncio.sleep(period_s)
    await asyncio.gather(*asked)
    return {"worst_s": max(latencies, default=0.0), "n": len(latencies), "faults": faults}


async def play_observer(actor, port, period_s):
    """The longest step that the trace held at any look, when each step of each replica was over, and the times of the victim's
    requests."""
    steps, requests, longest_us = {}, {}, 0
    last = False
    while True:
        last = actor.stopped
        answer = await ask(port, "GET", "/admin/trace", "operator-key", limit_s=30.0)
        if answer.code == 200:
            longest_us = max(longest_us, read_trace(answer.json()["traceEvents"], steps, requests))
        if last:
            break
        for _ in range(int(period_s / 0.1)):
            await asyncio.sleep(0.1)
            if actor.stopped:
                break
    return {"longest_step_s": longest_us / 1e6, "steps": {r: sorted(own.items()) for r, own in steps.items()},
            "requests": list(requests.values())}


def read_trace(events, steps, requests):
    """Adds to steps, {replica: {number: when it was over}}, and to requests what the trace has; the longest step. A server without
    replicas is one replica. A request's id says which replica had it."""
    loops = sorted({e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"].startswith("loop")})
    tenant = next((e["tid"] for e in events if e["pid"] == 2 and e["name"] == "thread_name"
                   and e["args"]["name"] == "victim"), None)
    cost = {}
    for e in events:
        if e["pid"] in loops and e["ph"] == "X":
            replica, number = loops.index(e["pid"]), e["args"]["step"]
            cost[replica, number] = cost.get((replica, number), 0) + e["dur"]
            if e["name"] == "apply":
                steps.setdefault(replica, {})[number] = (e["ts"] + e["dur"]) / 1e6
        elif e["pid"] == 2 and e["ph"] in "be" and e["tid"] == tenant:
            times = requests.setdefault(e["id"], {"replica": e["id"] % len(loops)})
            if e["ph"] == "b" and e["name"] == "waiting":
                times["submitted"] = e["ts"] / 1e6
            if e["ph"] == "e" and e["name"] in ("waiting", "prompt"):
                times["first"] = max(times.get("first", 0), e["ts"] / 1e6)
    return max(cost.values(), default=0)


def steps_to_first(observed, since):
    """The most steps that a request of the victim, submitted since then, took to its first token: those of its replica that ended
    after its submission, up to the one that gave the token. Steps are numbered, so those between the two that the trace no longer held are
    counted, too; those before the first that it holds are not, since on a fast machine they may have ended before the submission."""
    most = 0
    for r in observed["requests"]:
        numbers = [n for n, _ in observed["steps"].get(r["replica"], ())]
        ends = [t for _, t in observed["steps"].get(r["replica"], ())]
        if r.get("submitted", 0) < since or "first" not in r or not ends or r["submitted"] < ends[0]:
            continue
        i, j = bisect_right(ends, r["submitted"]), bisect_left(ends, r["first"])
        if 0 < i < len(numbers):
            most = max(most, numbers[min(j, len(numbers) - 1)] - numbers[i] + 1)
    return most


def spread(samples, what):
    values = [s[what] for s in samples]
    return {"median_s": statistics.median(values), "worst_s": max(values)}


def watch(port, n, period_s, body_of, seed, began=0.0, limit_s=120.0):
    """The victim, the prober and the observer, until the victim has had its n samples."""
    since = time.monotonic()
    began = began or since
    health = Actor(play_health, port, min(period_s, 0.2), limit_s)
    observer = Actor(play_observer, port, 2.0)
    victim = Actor(play_victim, port, n, period_s, body_of, seed, began, limit_s)
    samples = victim.result(n * period_s + 2 * limit_s + 60)
    observed, healthy = observer.finish(), health.finish()
    faults = [s["fault"] for s in samples if s["fault"]]
    return {"n": n, "first": spread(samples, "first_s"), "total": spread(samples, "total_s"), "gap": spread(samples, "gap_s"),
            "faults": faults, "health": healthy, "longest_step_s": observed["longest_step_s"],
            "steps_to_first": steps_to_first(observed, since)}


def metrics(server):
    """What /metrics says; all zero: it did not answer."""
    answer = asyncio.run(ask(server.port, "GET", "/metrics", "operator-key", limit_s=30.0))
    return metrics_of(answer.body.decode() if answer.code == 200 else "")


def is_idle(server):
    """Nothing runs, waits, or holds a page or an answer."""
    m = metrics(server)
    busy = ("vllm:num_requests_running", "vllm:num_requests_waiting", "weft_pool_pages_pinned", "weft_pool_sequences")
    return bool(m) and not any(m[name] for name in busy) and m["weft_http_requests_active"] <= 1 and \
        m["weft_pool_pages_free"] + m["weft_pool_pages_cached"] == m["weft_pool_pages"]
