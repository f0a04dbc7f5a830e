# SPDX-License-Identifier: MIT
"""One router before three replicas: each cell of the table is a check here, with what is right known before it is asked.

Law: what is right is what a replica without a router says to the same body (client.py: without id, time and cached tokens), or
what the replicas counted. A check raises AssertionError with what was wrong, or returns a few words for its cell."""
import json
import re
import signal
import threading

from client import Asked, ask, is_beginning
from processes import Replica, Router, wait_for

N = 3
LONG = 1200  # tokens of a stream that is to run while replicas end
TRIES = 3    # a stream may be over before a replica is killed: then again
SYSTEM = "You answer questions about numbers, briefly and with care. " * 16
FIND = {"type": "function", "function": {"name": "find", "description": "Finds a person.", "parameters": {
    "type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"], "additionalProperties": False}}}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class Fleet:
    """Three replicas and one more, which no router knows, for what is right."""

    def __init__(self, weft, model, folder, options):
        self.model, self.known = model, {}
        self.replicas = [Replica(weft, i, folder, options) for i in range(N)]
        self.alone = Replica(weft, "alone", folder, options)
        for replica in (*self.replicas, self.alone):
            replica.start()

    def end(self):
        for replica in (*self.replicas, self.alone):
            replica.end()

    def expected(self, path, body):
        key = path + json.dumps(body, sort_keys=True)
        if key not in self.known:
            answer = ask(self.alone.port, path, body)
            assert answer.whole, f"without a router: {answer.brief()}"
            self.known[key] = answer.text
        return self.known[key]

    def idle(self):
        for replica in self.replicas:
            replica.idle()


class Checks:
    def __init__(self, fleet, router, kind):
        self.fleet, self.router, self.kind = fleet, router, kind

    # ---- bodies ----

    def chat(self, words, system="Be brief.", **more):
        body = dict(model=self.fleet.model, messages=[{"role": "system", "content": system}, {"role": "user", "content": words}],
                    max_tokens=48, seed=7, **more)
        lost = () if self.kind.keeps_chat_fields else ("mode", "stream_canvas", "cache_salt")
        return {k: v for k, v in body.items() if k not in lost}

    def long_bodies(self, n):
        """Half of them token by token, half by diffusion, each of its own prompt."""
        more = dict(stream=True, ignore_eos=True)
        return [(COMPLETIONS, dict(model=self.fleet.model, prompt=f"Count up from {7 * i}:", max_tokens=LONG, temperature=0,
                                   mode="autoregressive", **more)) if i % 2 else
                (CHAT, self.chat(f"Write {1009 * i} backwards.", **more) | dict(max_tokens=LONG)) for i in range(n)]

    def ask(self, path, body):
        return ask(self.router.port, path, body)

    def same(self, path, body):
        answer, right = self.ask(path, body), self.fleet.expected(path, body)
        assert answer.whole and answer.text == right, f"{path} {first_difference(answer, right)}"
        return answer

    # ---- cells ----

    def start(self):
        log = "".join(r.read_log() for r in self.fleet.replicas)
        refused = sorted({f"{path} {code}" for path, code in re.findall(r"path=(\S+) code=([45]\d\d)", log)})
        assert not refused, "asked for what is not there: " + ", ".join(refused)
        return "ok"

    def health(self):
        gone = self.fleet.replicas[2]
        gone.end()
        wait_for("a router that knows that a replica ended", lambda: gone.url not in self.router.healthy())
        for i in range(6):
            self.same(CHAT, self.chat(f"Sort from low to high: 9 {i} 4"))
        gone.start()
        wait_for("a router that knows that a replica is back", lambda: gone.url in self.router.healthy())
        return "ok"

    def route(self):
        before = [r.finished() for r in self.fleet.replicas]
        bodies = [(CHAT, self.chat(f"Put in falling order: {i} {31 * i % 17} {7 * i % 23}", system=f"You are clerk {i} of {31 * i}."))
                  for i in range(24)]
        right = [self.fleet.expected(*b) for b in bodies]
        asked = [Asked(self.router.port, *b) for b in bodies]
        for one, text in zip(asked, right):
            one.join()
            assert one.answer.whole and one.answer.text == text, first_difference(one.answer, text)
        self.fleet.idle()
        did = [r.finished() - b for r, b in zip(self.fleet.replicas, before)]
        assert sum(did) == len(bodies) and min(did) > 0, f"answers by replica: {did}"
        return "ok, " + " + ".join(map(str, did))

    def prefix_credit(self):
        bodies = [self.chat(f"What is {i} + 58?", system=SYSTEM) for i in range(8)]
        right = [cached_of(ask(self.fleet.alone.port, CHAT, body)) for body in bodies]
        found = []
        for body in bodies:
            found.append(cached_of(self.ask(CHAT, body)))
            self.await_events()
        assert right[1] > 0 and found == right, f"cached tokens {found}, with one replica {right}"
        credited = ""
        if self.kind.reads_events:
            told = [int(n) for n in re.findall(r"credited_prefix_tokens=(\d+)", self.router.read_log())]
            assert told[-7:] == right[1:], f"the router credited {told[-8:]}, cached were {right}"
            credited = f", the router credited {sum(told[-7:])}"
        return f"ok, {sum(found)} tokens{credited}"

    def await_events(self):
        """Until a router that reads events has taken all that were told."""
        if not self.kind.reads_events:
            return
        for replica in self.fleet.replicas:
            replica.idle()
            last = [0, -1]

            def taken(replica=replica, last=last):
                last[0], last[1] = last[1], int(replica.count("weft_kv_event_next_number"))
                read = re.findall(rf"advanced source={re.escape(replica.url)} rank=\d+ seq=(\d+)", self.router.read_log())
                return last[0] == last[1] and read and int(read[-1]) + 1 >= last[1]
            wait_for("a router that has read all events", taken)

    def drain(self):
        """What runs on a replica that drains is not lost, and what comes then goes elsewhere."""
        for _ in range(TRIES):
            asked, right = self.start_streams(12)
            victim = wait_for("a replica with streams", self.one_that_runs)
            victim.drain()
            ran = victim.running()
            late = [Asked(self.router.port, *b) for b in self.long_bodies(6)]
            lost = self.lost(asked + late, right + right[:6])
            victim.process.wait()
            victim.start()
            wait_for("a router that knows that a replica is back", lambda: victim.url in self.router.healthy())
            assert not lost, f"{len(lost)} of 18 streams: {lost[0]}"
            if ran:
                return f"ok, {ran} streams ran on"
        raise AssertionError("all streams were over before the replica drained")

    def kill(self):
        """Only what runs on the killed replica breaks, and what came of it was right."""
        for _ in range(TRIES):
            before = {r: r.finished() for r in self.fleet.replicas}
            asked, right = self.start_streams(12)
            victim = wait_for("a replica with streams", self.one_that_runs)
            victim.signal(signal.SIGKILL)
            victim.process.wait()
            for one in asked:
                one.join()
            broken = [one for one in asked if not one.answer.whole]
            for one, text in zip(asked, right):
                right_so_far = is_beginning(one.answer.text, text) if one in broken and one.answer.stream else one.answer.text == text
                assert right_so_far or not one.answer.data, first_difference(one.answer, text)
            others = [r for r in self.fleet.replicas if r is not victim]
            for r in others:
                r.idle()
            did = sum(r.finished() - before[r] for r in others)
            victim.start()
            wait_for("a router that knows that a replica is back", lambda: victim.url in self.router.healthy())
            assert len(asked) - len(broken) >= did, f"{did} streams ended on others, {len(broken)} of {len(asked)} broke"
            self.fleet.idle()
            if broken:
                return f"ok, {len(broken)} of {len(asked)} broke, all its own"
        raise AssertionError("all streams were over before the replica was killed")

    def upgrade(self):
        """All three replicas one after the other, while four clients ask without a break."""
        over, results, bodies = threading.Event(), [], self.long_bodies(8)
        right = [self.fleet.expected(*b) for b in bodies]

        def client(first):
            turn = first
            while not over.is_set():
                results.append((ask(self.router.port, *bodies[turn % len(bodies)]), right[turn % len(bodies)]))
                turn += 1
        clients = [threading.Thread(target=client, args=(2 * i,), daemon=True) for i in range(4)]
        for c in clients:
            c.start()
        try:
            for replica in self.fleet.replicas:
                replica.leave()
                wait_for("a router that knows that a replica leaves", lambda r=replica: r.url not in self.router.healthy())
                replica.signal(signal.SIGTERM)
                replica.process.wait()
                replica.start()
                wait_for("a router that knows that a replica is back", lambda r=replica: r.url in self.router.healthy())
        finally:
            over.set()
            for c in clients:
                c.join()
        lost = [first_difference(a, text) for a, text in results if not a.whole or a.text != text]
        assert not lost, f"{len(lost)} of {len(results)} streams: {lost[0]}"
        return f"ok, {len(results)} streams"

    def stream(self):
        for more in (dict(), dict(mode="autoregressive"), dict(mode="diffusion"), dict(n=2), dict(stream_options={"include_usage": True}),
                     dict(logprobs=True, top_logprobs=3)):
            self.same(CHAT, self.chat("List all numbers from 34 to 49.", stream=True, **more))
        self.same(COMPLETIONS, dict(model=self.fleet.model, prompt="1 2 3", max_tokens=24, temperature=0, stream=True))
        return "ok"

    def tools(self):
        """A call, whole and streamed, and an answer after its result."""
        ask_for = self.chat("Find Tom, 43.", tools=[FIND], tool_choice="required", parallel_tool_calls=False, mode="autoregressive")
        call = self.same(CHAT, ask_for).json()["choices"][0]["message"]["tool_calls"][0]
        assert call["function"]["name"] == "find", call
        self.same(CHAT, dict(ask_for, stream=True))
        more = [{"role": "assistant", "content": None, "tool_calls": [dict(call, id="call_1")]},
                {"role": "tool", "tool_call_id": "call_1", "content": "Tom is in Oslo."}]
        self.same(CHAT, dict(self.chat("Find Tom, 43.", tools=[FIND]), messages=ask_for["messages"] + more))
        return "ok"

    def canvas(self):
        body = dict(model=self.fleet.model, prompt="List all numbers from 34 to 49.", max_tokens=64, seed=3, mode="diffusion", stream=True,
                    stream_canvas=True)
        data = self.same(COMPLETIONS, body).data
        assert b"event: replace" in data, "no canvas came"
        if not self.kind.keeps_chat_fields:
            return "ok in completions; it drops `stream_canvas` and `mode` of chats"
        data = self.same(CHAT, self.chat("List all numbers from 34 to 49.", stream=True, stream_canvas=True, mode="diffusion")).data
        assert b"event: replace" in data, "no canvas came"
        return "ok"

    # ---- of streams ----

    def start_streams(self, n):
        """Streams that have begun, and what is right for each."""
        bodies = self.long_bodies(n)
        right = [self.fleet.expected(*b) for b in bodies]
        self.fleet.idle()
        asked = [Asked(self.router.port, *b) for b in bodies]
        for one in asked:
            one.begun.wait()
        return asked, right

    def one_that_runs(self):
        return max(self.fleet.replicas, key=lambda r: r.running())

    def lost(self, asked, right):
        for one in asked:
            one.join()
        return [first_difference(one.answer, text) for one, text in zip(asked, right) if not one.answer.whole or one.answer.text != text]


CELLS = ("start", "stream", "tools", "canvas", "route", "prefix_credit", "health", "upgrade", "drain", "kill")


def cached_of(answer):
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def first_difference(answer, right):
    text, right = (str(t if isinstance(t, bytes) else sorted(t.items())) for t in (answer.text, right))
    at = next((i for i, (a, b) in enumerate(zip(text, right)) if a != b), min(len(text), len(right)))
    return f"{answer.brief()}; at {at}: {text[at:at + 60]!r} for {right[at:at + 60]!r}"


def check_router(kind, home, fleet, folder, say):
    """A row of the table: the words of each cell."""
    router = Router(kind, home, fleet.replicas, folder, kind.policy, kind.options)
    row = {}
    try:
        try:
            router.start()
        except AssertionError as error:
            return {"start": f"FAILED: {error}"}
        checks = Checks(fleet, router, kind)
        for cell in CELLS:
            try:
                row[cell] = getattr(checks, cell)()
            except AssertionError as error:
                row[cell] = f"FAILED: {error}"
            say(f"{kind.name} {cell}: {row[cell]}")
        return row
    finally:
        router.end()
