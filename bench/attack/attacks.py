# SPDX-License-Identifier: MIT
"""The attacks: what each does, on which server, what the victim asks meanwhile, and what must hold besides the victim's times.

An attack plays in a process of its own at nice 19 until it is told to stop. It holds only connections to the server under attack."""
import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass

from client import Answer, ask, ask_raw, connect, connect_plain, head_of, request_of
from formats import JOINED, play_joined, play_one
from measure import ANSWER, FORK, PROMPT, completion, tokens
from server import DEMO, DEMO_AR, KEYS, metrics_of
from strict import MALFORMED

MIB = 1 << 20


@dataclass
class Attack:
    name: str
    about: str
    play: object  # async (actor, war) -> counts
    options: tuple = ()
    models: tuple = (DEMO,)
    keys: tuple = KEYS
    victim: object = lambda seed: completion(tokens(seed, PROMPT), ANSWER)  # seed -> body
    share: float = 2.0  # sum of the weights of those who ask by the victim's weight
    quick: bool = False  # a part of ./dev test
    folder: bool = False  # three models more come and go (--models-dir)
    keeps: bool = False  # and two of them keep their weights in host memory (--sleep-mib)
    tls: bool = False  # on a server that speaks TLS, whatever --tls says
    in_place: object = lambda m: True  # what /metrics must show before the victim begins

    @property
    def steps_alone(self):
        """The steps of the victim's prompt on an idle server."""
        rows = int(self.options[self.options.index("--rows") + 1]) if "--rows" in self.options else 512
        return -(-len(self.victim(0)["prompt"]) // rows)


class War:
    """What an attack knows: where the server is, and which prompts the victim sends when (began: 0 until it has begun)."""

    def __init__(self, port, seed, period_s):
        self.port, self.seed, self.period_s = port, seed, period_s
        self.began = FORK.Value("d", 0.0)


async def until_stopped(actor):
    while not actor.stopped:
        await asyncio.sleep(0.05)


async def keep(actor, n, one, ready_s=1.0):
    """n tasks that ask again and again, until the actor is stopped. What came back, counted."""
    counts = Counter()

    async def again(i):
        turn = 0
        while not actor.stopped:
            answer = await one(i, turn)
            counts[str(answer.code or answer.fault)] += 1
            turn += 1
            if answer.code != 200:  # who was refused does not ask again at once
                await asyncio.sleep(0.5)

    tasks = [asyncio.create_task(again(i)) for i in range(n)]
    await asyncio.sleep(ready_s)
    actor.ready_event.set()
    await until_stopped(actor)
    for task in tasks:
        task.cancel()
    broken = [r for r in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(r, Exception)]
    if broken:
        raise broken[0]
    return dict(counts)


def post(war, body, key="attacker-key", path="/v1/completions", headers=()):
    return ask(war.port, "POST", path, key, body, headers)


# ---- the scheduler ----------------------------------------------------------------------------------------------------


async def play_places(actor, war):
    """200 streams of one tenant fill the pool on one model; the victim asks the other model."""
    return await keep(actor, 200, lambda i, turn: post(
        war, completion(tokens(war.seed + i * 1000 + turn, 600), 1400, model="weft-demo")))


LEAD_EVERY, PREFIX = 12, 1900  # one in so many of the victim's requests begins with a long prefix, of so many tokens


def popular_prompt(seed):
    return tokens(seed, PREFIX if seed % LEAD_EVERY == 0 else 0) + tokens(-seed, PROMPT)


async def play_leader(actor, war):
    """A second before one in twelve of the victim's requests a tenant of less right begins the same long prefix, and a crowd takes
    all rows as soon as that has begun: who follows this leader waits for as long as the leader is starved."""
    counts = Counter()
    asked = set()

    def send(prompt, key):
        task = asyncio.create_task(post(war, completion(prompt, 1), key))
        asked.add(task)
        task.add_done_callback(done_with(key))

    def done_with(key):
        def done(task):
            asked.discard(task)
            if not task.cancelled():
                counts[f"{key} {task.result().code}"] += 1
        return done

    async def rows_of_leader():
        answer = await ask(war.port, "GET", "/metrics", "operator-key")
        return metrics_of(answer.body.decode())['weft_tenant_rows_total{tenant="leader"}']

    async def wait_until(at):
        while (left := at - time.monotonic()) > 0 and not actor.stopped:
            await asyncio.sleep(min(left, 0.05))

    actor.ready_event.set()
    while (began := war.began.value) == 0 and not actor.stopped:
        await asyncio.sleep(0.01)
    for i in range(0, 10000, LEAD_EVERY):
        await wait_until(began + i * war.period_s - 1.0)
        if actor.stopped:
            break
        before = await rows_of_leader()
        send(tokens(war.seed + i, PREFIX) + tokens(i, 100), "leader-key")
        while not actor.stopped and await rows_of_leader() == before:
            await asyncio.sleep(0.005)
        for k in range(48):
            send(tokens(1000 * i + k, 400), "crowd-key")
    while asked and not actor.stopped:
        await asyncio.sleep(0.05)
    for task in list(asked):
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    return dict(counts)


async def play_choices(actor, war):
    """Requests of as many answers as a request may have, again and again."""
    bodies = ({"n": 128}, {"n": 64, "best_of": 128, "stream": False}, {"n": 2, "prompt": [tokens(k, 20) for k in range(64)]})
    return await keep(actor, 6, lambda i, turn: post(
        war, {**completion(tokens(turn, 40), 64), **bodies[i % 3]}))


async def play_queue(actor, war):
    """One tenant holds the queue full."""
    return await keep(actor, 400, lambda i, turn: post(war, completion(tokens(i * 1000 + turn, 40), 200)))


async def play_canvases(actor, war):
    """64 canvases at once; the victim decodes token by token beside them."""
    body = {"prompt": tokens(war.seed, 40), "max_tokens": 800, "ignore_eos": True, "mode": "diffusion", "model": "weft-demo",
            "stream": True}
    return await keep(actor, 64, lambda i, turn: post(war, {**body, "seed": i * 1000 + turn}))


# ---- the network side -------------------------------------------------------------------------------------------------


async def hold(war, opening, more, every_s, limit_s=600.0, dial=connect):
    """Opens a connection, sends the opening, then `more` every so often, until the server closes it."""
    answer = Answer(began=time.monotonic())
    try:
        reader, writer = await asyncio.wait_for(dial(war.port), 10.0)
    except (OSError, asyncio.TimeoutError):
        answer.fault = "no connection"
        return answer
    try:
        writer.write(opening)
        closed = asyncio.create_task(reader.read(4096))
        while time.monotonic() - answer.began < limit_s:
            done, _ = await asyncio.wait([closed], timeout=every_s)
            if done:
                break
            if more:
                writer.write(more)
        answer.fault = "closed by the server" if closed.done() else "held"
        if closed.done() and closed.exception() is None and closed.result().startswith(b"HTTP/1."):
            answer.code = int(closed.result()[9:12])
        closed.cancel()
    except (OSError, ValueError):
        answer.fault = "closed by the server"
    finally:
        writer.transport.abort()
    return answer


async def play_halves(actor, war):
    """1,100 half requests, each with its FIN in the same segment: half a head, half a body, a whole request without its last byte."""
    whole = request_of("POST", "/v1/completions", "attacker-key", completion(tokens(1, 40), 8))
    kinds = (whole[:30], whole[:-40], whole[:-1], head_of("POST", "/tokenize", "attacker-key", 1000))

    async def one(i, turn):
        answer = Answer()
        try:
            _, writer = await asyncio.wait_for(connect(war.port), 5.0)
        except (OSError, asyncio.TimeoutError):
            answer.fault = "no connection"
            await asyncio.sleep(0.5)
            return answer
        # Both leave in one segment: the bytes wait (TCP_CORK) until the sending half is closed.
        sock = writer.get_extra_info("socket")
        sock.setsockopt(6, 3, 1)
        writer.write(kinds[(i + turn) % len(kinds)])
        writer.close()
        try:
            await writer.wait_closed()
        except OSError:
            pass
        answer.fault = "sent"
        await asyncio.sleep(10.0)
        return answer

    return await keep(actor, 1100, one, 3.0)


async def play_slow_heads(actor, war):
    """1,024 connections that send a line of their head every two seconds and never the last."""
    opening = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    return await keep(actor, 1024, lambda i, turn: hold(war, opening, b"X-Slow: 1\r\n", 2.0), 3.0)


async def play_slow_bodies(actor, war):
    """1,024 connections that send a byte of their body every two seconds."""
    opening = head_of("POST", "/v1/completions", "attacker-key", 60000) + b'{"prompt":'
    return await keep(actor, 1024, lambda i, turn: hold(war, opening, b" ", 2.0), 3.0)


async def play_idle(actor, war):
    """1,100 connections that say nothing."""
    return await keep(actor, 1100, lambda i, turn: hold(war, b"", b"", 2.0), 3.0)


async def play_bodies(actor, war):
    """16 bodies of 8 MiB, all but the last byte."""
    size = 8 * MIB
    opening = head_of("POST", "/v1/completions", "attacker-key", size) + b"[" + b" " * (size - 2)
    return await keep(actor, 16, lambda i, turn: hold(war, opening, b"", 2.0), 3.0)


async def play_keyless(actor, war):
    """The same without a key: nothing of such a body may be kept."""
    size = 8 * MIB
    opening = head_of("POST", "/v1/completions", "no-such-key", size) + b"[" + b" " * (size - 2)
    return await keep(actor, 16, lambda i, turn: hold(war, opening, b"", 2.0), 3.0)


# ---- TLS --------------------------------------------------------------------------------------------------------------

# The head of a first message that announces 16,000 bytes, and how it begins.
HELLO = bytes.fromhex("16030140000100") + (15996).to_bytes(2, "big") + bytes.fromhex("0303")


async def play_half_handshakes(actor, war):
    """1,024 connections that send a byte of their first TLS message every two seconds."""
    return await keep(actor, 1024, lambda i, turn: hold(war, HELLO, b"\0", 2.0, dial=connect_plain), 3.0)


async def play_handshakes(actor, war):
    """64 clients that do nothing but handshakes, each whole, one after another."""
    async def one(i, turn):
        answer = Answer(code=200)
        try:
            _, writer = await asyncio.wait_for(connect(war.port), 10.0)
            writer.transport.abort()
        except (OSError, asyncio.TimeoutError) as e:
            answer.code, answer.fault = 0, type(e).__name__
        return answer

    return await keep(actor, 64, one)


# ---- work before admission --------------------------------------------------------------------------------------------


def large_text(seed, n):
    draw = random.Random(seed)
    words = [bytes(draw.choice(b"abcdefghijklmnopqrstuvwxyz") for _ in range(draw.randrange(2, 9))) for _ in range(2000)]
    part = b" ".join(draw.choice(words) for _ in range(20000))
    return (part * (n // len(part) + 1))[:n]


async def play_tokenize(actor, war):
    """Eight bodies of 8 MiB to /tokenize at a time."""
    body = b'{"prompt":"' + large_text(1, 8 * MIB - 14) + b'"}'
    return await keep(actor, 8, lambda i, turn: post(war, body, path="/tokenize"), 2.0)


async def play_prompts(actor, war):
    """Eight prompts of 8 MiB at a time, far beyond any context, as text, as one long word and as a conversation."""
    n = 8 * MIB - 100
    bodies = (b'{"max_tokens":1,"prompt":"' + large_text(2, n) + b'"}', b'{"max_tokens":1,"prompt":"' + b"a" * n + b'"}',
              b'{"max_tokens":1,"messages":[{"role":"user","content":"' + large_text(3, n) + b'"}]}')
    return await keep(actor, 8, lambda i, turn: post(
        war, bodies[i % 3], path="/v1/chat/completions" if i % 3 == 2 else "/v1/completions"), 2.0)


async def play_json(actor, war):
    """Bodies of 8 MiB whose bulk is in a field that nobody reads: many small objects, many keys, depth."""
    n = 8 * MIB - 100
    head = b'{"prompt":[700,701],"max_tokens":1,"nobody_reads_this":'
    many = b"[" + b",".join([b"{}"] * (n // 3)) + b"]"
    keys = b"{" + b",".join(b'"%d":0' % k for k in range(n // 11)) + b"}"
    deep = b"[" * (n // 2) + b"]" * (n // 2)
    bodies = [head + part + b"}" for part in (many, keys, deep)]
    return await keep(actor, 3, lambda i, turn: post(war, bodies[i % 3]), 2.0)


# ---- stop strings and logprobs ----------------------------------------------------------------------------------------

STOP_STREAMS, STOP_TOKENS = 8, 1500


def stop_strings(n_bytes, crafted):
    """63 strings for an answer of one letter. Crafted: the last one is always about to match, so that its whole length is held
    back, and of this all others match about the first half wherever one begins to compare."""
    if not crafted:
        return ["#" * (n_bytes - 2) + "%02d" % k for k in range(63)]
    halves = [min(max(1, n_bytes // 2 - 31 + k), n_bytes - 2) for k in range(62)]
    return ["a" * half + "b" + "a" * (n_bytes - half - 1) for half in halves] + ["a" * (n_bytes - 1) + "b"]


def stop_body(token, i, crafted, n_bytes):
    return {**completion(tokens(i, 40), STOP_TOKENS), "logit_bias": {str(token): 100}, "stop": stop_strings(n_bytes, crafted)}


def letter():
    """The token of the letter a."""
    with open("model/demo/vocab.json") as f:
        return json.load(f)["tokens"].index("a")


async def stops_of(port):
    """The token of the letter, and how long 63 stop strings may be that the server takes."""
    for n_bytes in (1024, 500, 100, 50, 32, 16):
        body = {**stop_body(letter(), 0, True, n_bytes), "max_tokens": 1}
        if (await ask(port, "POST", "/v1/completions", "attacker-key", body)).code == 200:
            break
    return letter(), n_bytes


async def play_stops(actor, war):
    """63 stop strings that begin like the answer and differ at their end."""
    token, n_bytes = await stops_of(war.port)
    return await keep(actor, STOP_STREAMS, lambda i, turn: post(war, stop_body(token, i * 1000 + turn, True, n_bytes)), 2.0)


async def play_logprobs(actor, war):
    """The queue full of requests that ask for logprobs and the longest answer."""
    return await keep(actor, 320, lambda i, turn: post(war, {
        **completion(tokens(i * 1000 + turn, 8), 2000), "logprobs": 0}))


async def play_echo_streams(actor, war):
    """16 streams that give a prompt of 1,900 tokens back, 16 times each, with the logprobs of five tokens at each place."""
    return await keep(actor, 16, lambda i, turn: post(war, {
        **completion(tokens(war.seed + i * 1000 + turn, PREFIX), 8), "echo": True, "logprobs": 5, "n": 16}), 3.0)


async def play_prompt_logprobs(actor, war):
    """16 whole answers that list the 20 likeliest tokens at each of 1,900 places of the prompt."""
    return await keep(actor, 16, lambda i, turn: post(war, {
        **completion(tokens(war.seed + i * 1000 + turn, PREFIX), 8), "stream": False, "stream_options": None,
        "prompt_logprobs": 20}), 3.0)


async def play_responses_logprobs(actor, war):
    """Eight streams of responses, whose end says a text of 1,500 tokens and its logprobs, 20 at each place, four times over."""
    return await keep(actor, 8, lambda i, turn: post(war, {
        "input": f"Say {i} {turn}.", "stream": True, "mode": "autoregressive", "temperature": 1.5, "seed": i * 1000 + turn, "top_logprobs": 20,
        "include": ["message.output_text.logprobs"], "max_output_tokens": 1500, "ignore_eos": True}, path="/v1/responses"), 3.0)


# ---- what every server knows ------------------------------------------------------------------------------------------


async def play_malformed(actor, war):
    """Requests that break the rules of HTTP, one after another."""
    return await keep(actor, 8, lambda i, turn: ask_raw(war.port, MALFORMED[(i + 8 * turn) % len(MALFORMED)][1], 5.0))


async def play_cancels(actor, war):
    """32 clients that hang up within half a second, whatever their request is doing."""
    kinds = ({"n": 4}, {"mode": "diffusion", "model": "weft-demo", "logit_bias": None, "stream_canvas": True}, {"logprobs": 5},
             {"stream": False}, {"prompt": [tokens(k, 100) for k in range(4)]})
    draw = random.Random(war.seed)
    return await keep(actor, 32, lambda i, turn: ask(
        war.port, "POST", "/v1/completions", "attacker-key",
        {**completion(tokens(i * 1000 + turn, 200), 300), **kinds[turn % len(kinds)]}, limit_s=0.5 * draw.random()))


async def play_loads(actor, war):
    """Eight clients that ask three models of a folder in turn, of which one has room: each request waits for a load, and causes one."""
    return await keep(actor, 8, lambda i, turn: post(
        war, {**completion(tokens(i * 1000 + turn, 64), 4), "model": f"load-{'abc'[(i + turn) % 3]}"}))


async def play_sleeps(actor, war):
    """The same with weights that stay in host memory; every third request has its model leave after it, and the operator puts one after
    another to sleep and wakes it."""
    async def one(i, turn):
        name = f"load-{'abc'[(i + turn) % 3]}"
        if i == 0:
            return await post(war, {"model": name}, "operator-key", "/v1/models/wake" if turn % 2 else "/v1/models/sleep")
        if i % 3 == 0:
            return await post(war, {"model": name, "prompt": "1 2 3", "stream": False, "keep_alive": 0, "options": {"num_predict": 4}}, path="/api/generate")
        return await post(war, {**completion(tokens(i * 1000 + turn, 64), 4), "model": name})
    return await keep(actor, 9, one)


CLASSES = ("operator-key operator", "crowd-key crowd", "leader-key leader class=low", "victim-key victim class=high")
WEIGHTS = ("operator-key operator", "crowd-key crowd weight=100", "leader-key leader", "victim-key victim weight=100")

ATTACKS = [
    Attack("places", "200 streams of one tenant on one model, the victim on the other, pool of 64 MiB", play_places,
           options=("--kv-mib", "64"), models=(DEMO_AR, DEMO), quick=True,
           in_place=lambda m: m["vllm:kv_cache_usage_perc"] > 0.8),
    Attack("leader", "a low-class leader of the victim's prefix, starved by a crowd; shared cache", play_leader,
           options=("--shared-cache", "--rows", "64"), keys=CLASSES, victim=lambda seed: completion(popular_prompt(seed), ANSWER), quick=True),
    Attack("leader-weights", "the same with equal classes and weights 100 : 1", play_leader, options=("--shared-cache", "--rows", "64"),
           keys=WEIGHTS, share=2.01, victim=lambda seed: completion(popular_prompt(seed), ANSWER)),
    Attack("choices", "requests of 128 answers", play_choices, quick=True),
    Attack("queue", "400 requests at a time hold the queue of 256 full", play_queue, quick=True,
           in_place=lambda m: m["vllm:num_requests_waiting"] > 100),
    Attack("canvases", "64 canvases beside one decode row", play_canvases,
           in_place=lambda m: m["vllm:num_requests_running"] > 32),
    Attack("halves", "1,100 half requests with their FIN in one segment", play_halves, quick=True),
    Attack("slow-heads", "1,024 heads, a line every two seconds", play_slow_heads, quick=True),
    Attack("slow-bodies", "1,024 bodies, a byte every two seconds", play_slow_bodies),
    Attack("idle", "1,100 connections that say nothing", play_idle),
    Attack("bodies", "16 bodies of 8 MiB without their last byte", play_bodies, quick=True),
    Attack("keyless", "the same without a key", play_keyless),
    Attack("half-handshakes", "TLS: 1,024 handshakes, a byte every two seconds", play_half_handshakes, tls=True, quick=True),
    Attack("handshakes", "TLS: 64 clients that do nothing but handshakes", play_handshakes, tls=True, quick=True),
    Attack("tokenize", "eight bodies of 8 MiB to /tokenize", play_tokenize, quick=True),
    Attack("prompts", "eight prompts of 8 MiB", play_prompts),
    Attack("json", "8 MiB of JSON in a field that nobody reads", play_json),
    Attack("stops", "63 stop strings that almost match everywhere", play_stops),
    Attack("logprobs", "320 requests with logprobs and the longest answer", play_logprobs,
           in_place=lambda m: m["vllm:num_requests_running"] > 32),
    Attack("echo-streams", "16 streams of a prompt given back 16 times with logprobs", play_echo_streams, quick=True),
    Attack("prompt-logprobs", "16 whole answers with the 20 likeliest tokens of 1,900 places", play_prompt_logprobs),
    Attack("responses-logprobs", "eight streams of responses with top_logprobs", play_responses_logprobs),
    Attack("malformed", "requests that break the rules of HTTP", play_malformed),
    Attack("cancels", "32 clients that hang up within half a second", play_cancels),
    Attack("loads", "a tenant that has three models loaded in turn, of which one has room", play_loads, folder=True,
           in_place=lambda m: m["weft_model_loads_total"] > 2),
    Attack("sleeps", "the same where their weights stay in host memory, and an operator puts them to sleep and wakes them", play_sleeps,
           folder=True, keeps=True, quick=True, in_place=lambda m: m["weft_model_loads_total"] > 4),
    Attack("schema-bombs", "schemas that take long to compile, four at a time", play_one, quick=True),
    Attack("schema-bombs-joined", "the same of three tenants, four each", play_joined, keys=JOINED, share=4.0, quick=True),
]
