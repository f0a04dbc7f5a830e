# SPDX-License-Identifier: MIT
"""What routers find in the caches of three replicas: tokens of prompts that were computed, beside the least that must be.

Tenants have a system prompt each, which all of their questions begin with; who asks next is drawn by Zipf's law. The least that must
be computed is what a single replica with room for everything would: of each prompt what no prompt before it began with, in whole
units, since hits end where units end, and always its last token. It is computed from the tokens alone; the first row asks such a replica. A
fleet cannot do with less. It does with more for two reasons, which are told apart: a prompt was sent to a replica that had not seen
what another had (the router's), or what a replica had seen was no longer in its pool (the room's). The first is the same bound with
what each replica was sent in the place of everything; the rest is the second.

Law: who asks what is drawn from the seed alone; all figures are counts of tokens, and none is a time."""
import datetime
import os
import random
import re
import statistics
import threading

from client import ask
from processes import Replica, Router
from routers import KINDS

CHAT, RENDER = "/v1/chat/completions", "/v1/chat/completions/render"
WORDS = ("sort find count read write add take give move turn open close keep send list name rise fall north south east west river hill stone "
         "paper glass metal light sound water green white black small large early late left right first last").split()


def make_load(seed, tenants, requests, system_words):
    """The bodies, in the order in which they are asked."""
    draw = random.Random(seed)
    systems = [f"You work for house {t}. " + " ".join(draw.choice(WORDS) for _ in range(draw.randint(*system_words)))
               for t in range(tenants)]
    weights = [1 / (rank + 1) for rank in range(tenants)]
    bodies = []
    for i in range(requests):
        tenant = draw.choices(range(tenants), weights)[0]
        words = f"{i}: " + " ".join(draw.choice(WORDS) for _ in range(draw.randint(4, 12)))
        bodies.append(dict(model="weft-demo", max_tokens=4, temperature=0, mode="autoregressive", messages=[
            {"role": "system", "content": systems[tenant]}, {"role": "user", "content": words}]))
    return bodies


class Least:
    """A cache with room for everything."""

    def __init__(self, unit):
        self.unit, self.known = unit, set()

    def compute(self, tokens):
        """How many of a prompt's tokens must be computed; they are known then."""
        unit, found, whole = self.unit, 0, True
        for end in range(unit, len(tokens) + 1, unit):
            key = hash(tuple(tokens[:end]))
            whole = whole and key in self.known and end < len(tokens)
            found = end if whole else found
            self.known.add(key)
        return len(tokens) - found


def least_of(prompts, unit):
    least = Least(unit)
    return sum(least.compute(tokens) for tokens in prompts)


def ask_all(port, bodies, clients):
    """Each body once, in order, by so many clients at once; each is named by its place in the order. Returns the tokens of each answer."""
    lock, turn, said = threading.Lock(), iter(range(len(bodies))), [0] * len(bodies)

    def client():
        while True:
            with lock:
                i = next(turn, None)
            if i is None:
                return
            answer = ask(port, CHAT, bodies[i], headers=[("X-Request-ID", f"load-{i}"), ("X-Session-ID", bodies[i]["messages"][0]["content"][:24])])
            if not answer.whole:
                failed.append(f"request {i}: {answer.brief()}")
                continue
            said[i] = answer.json()["usage"]["completion_tokens"]
    failed = []
    threads = [threading.Thread(target=client, daemon=True) for _ in range(clients)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed[0]
    return said


def sent_to(replica, n):
    """Which requests a replica answered, by its log."""
    found = re.findall(rf"id=load-(\d+) method=POST path={CHAT} code=200", replica.read_log())
    return sorted(int(i) for i in found if int(i) < n)


def in_flight(logs):
    """How many requests of the load the replicas had at once, in the mean, by their logs: the sum of their times over the time of all."""
    ends, times = [], []
    for end, ms in re.findall(rf"(\S+)Z info: request: id=load-\d+ method=POST path={CHAT} code=200 .* ms=([\d.]+)$", "\n".join(logs), re.M):
        ends.append(datetime.datetime.fromisoformat(end).timestamp())
        times.append(float(ms) / 1000)
    return sum(times) / (max(ends) - min(e - t for e, t in zip(ends, times)))


def measure(start, replicas, bodies, prompts, unit, clients):
    """One run: start() begins what stands before the replicas and returns (its port, how it is ended). By replica: tokens of prompts that
    were computed and that were found, pages given up, requests; and the tokens of each answer."""
    for replica in replicas:
        replica.start()
    try:
        port, end = start()
        try:
            said = ask_all(port, bodies, clients)
            for replica in replicas:
                replica.idle()
            run = dict(in_flight=in_flight([r.read_log() for r in replicas]), computed=[r.computed() for r in replicas], found=[r.found() for r in replicas], evicted=[r.evicted() for r in replicas],
                       requests=[sent_to(r, len(bodies)) for r in replicas], said=said)
        finally:
            end()
    finally:
        for replica in replicas:
            replica.end()
    return run


def run_contender(name, make, o, mib, load):
    bodies, prompts, unit, least = load
    runs = []
    for turn in range(o.runs):
        folder = os.path.join(o.folder, f"{name.replace(' ', '-')}-{mib}-{turn}")
        os.makedirs(folder)
        replicas, start = make(folder)
        run = measure(start, replicas, bodies, prompts, unit, o.clients)
        computed, requests = run["computed"], run["requests"]
        assert len(replicas) == 1 or sum(map(len, requests)) == len(bodies), [len(r) for r in requests]
        # the server of --split replicas does not say which of its replicas answered
        routed = sum(least_of([prompts[i] for i in r], unit) for r in requests) if len(replicas) > 1 else None
        runs.append(dict(computed=sum(computed), routed=routed, requests=[len(r) for r in requests]))
    totals = [r["computed"] for r in runs]
    middle = sorted(runs, key=lambda r: r["computed"])[len(runs) // 2]
    return dict(router=name, computed=int(statistics.median(totals)), spread=max(totals) - min(totals), runs=len(runs),
                over_least=round(statistics.median(totals) / least, 3), least_as_routed=middle["routed"], requests=middle["requests"])


def contenders(o, options, with_room):
    """(name, function of a folder that gives the replicas and how what stands before them is started)"""
    def routed(kind, policy, more=()):
        def make(folder):
            replicas = [Replica(o.weft, i, folder, [*options, "-t", "1"]) for i in range(3)]

            def start():
                router = Router(kind, o.home, replicas, folder, policy, (*kind.options, *more))
                router.start()
                return router.port, router.end
            return replicas, start
        return make

    def split(folder):
        own = [*options, "--devices", "0,1,2", "--split", "replicas"]
        server = Replica(o.weft, "split", folder, own, events=False)
        return [server], lambda: (server.port, lambda: None)

    def single(folder):
        server = Replica(o.weft, "single", folder, with_room)
        return [server], lambda: (server.port, lambda: None)
    kinds = {k.name: k for k in KINDS if not k.missing(o.home)}
    found = [("one replica with room for all", single)]
    for name, policy, more in (("vllm-router", "kv_aware", ()), ("vllm-router", "kv_aware", ("--kv-aware-session-affinity-ttl-secs", "3600")),
                               ("vllm-router", "cache_aware", ()), ("sglang-router", "cache_aware", ()), ("smg", "cache_aware", ()),
                               ("vllm-router", "round_robin", ())):
        if name in kinds:
            found.append((f"{name} {policy}{', sessions' if more else ''}", routed(kinds[name], policy, more)))
    return found + [("weft --split replicas", split)]


def look_at(o, bodies, options):
    """The tokens of each body, where hits end, and the room of a replica, in tokens, by the MiB of its pool."""
    room = {}
    for mib in o.kv_mib:
        server = Replica(o.weft, f"tokens-{mib}", o.folder, [*options, "--kv-mib", str(mib)])
        server.start()
        try:
            about = ask(server.port, "/server_info").json()
            room[mib] = about["block_size"] * about["num_gpu_blocks"]
            prompts = [ask(server.port, RENDER, body).json()["token_ids"] for body in bodies]
        finally:
            server.end()
    return prompts, about["block_size"], room


def run_prefixes(o, options, say):
    """What the rows are about, and the rows."""
    bodies = make_load(o.seed, o.tenants, o.requests, (80, 160))
    prompts, unit, room = look_at(o, bodies, options)
    least = least_of(prompts, unit)
    about = dict(tenants=o.tenants, requests=o.requests, clients=o.clients, seed=o.seed, unit=unit, prompt_tokens=sum(map(len, prompts)),
                 least=least)
    say(str(about))
    rows = []
    for mib in o.kv_mib:
        for name, make in contenders(o, [*options, "--kv-mib", str(mib)], [*options, "--kv-mib", "512"]):
            if rows and name.startswith("one replica"):
                continue  # its room is always the same
            row = dict(room_of_a_replica=None if name.startswith("one replica") else room[mib])
            try:
                row |= run_contender(name, make, o, mib, (bodies, prompts, unit, least))
            except AssertionError as error:
                row |= dict(router=name, failed=str(error))
            rows.append(row)
            say(str(row))
    return about, rows
