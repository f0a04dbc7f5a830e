#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Load on a server that speaks OpenAI's completions, and what its clients see of it: one JSON record for each scenario.

  bench/load.py URL SCENARIOS [GPUS]
    URL        http://HOST:PORT
    SCENARIOS  a file with one scenario, a JSON object, per line; -: standard input
    GPUS       numbers of those whose energy counts, as nvidia-smi counts them, as 0,1 [0]

A scenario is a closed loop: each client streams an answer to its end and asks again. Prompts are random token ids, so that they
have exactly their length. Clients start evenly over the first third of `seconds`; the rest is the window that is measured: rates
are of the tokens that came in it, latencies of the requests that began in it. Requests that run at its end go on to their end, for
a minute at most.

  name            of the record
  clients         at once [1]
  canvases        so many of them write by diffusion, the others token by token [0]
  steps           denoise steps of each canvas; 0: until it is done [0]
  prompt          tokens [512]
  prompt_least    with it prompts have from so many to `prompt` tokens, half of them below the geometric mean; 0: all have `prompt` [0]
  shared          the first so many of them are the same in all requests, as a system prompt is [0]
  tenants         so many different shared beginnings: a client has that of its number modulo the tenants [1]
  cached          false: no request may use a prefix that another one computed (`cache_salt`) [true]
  answer          tokens; the model's ends are ignored, but not where there is a format [128]
  answer_least    the same of answers [0]
  format          what answers are held to: "integers" or "strings", a JSON schema of a list of them, as long as the answer
                  may be; "none" [none]
  burst_every     seconds: clients do not ask again when their answer has come, but all of them at once at each multiple of it from
                  the start on; who has no whole answer by then waits for the next one. A third of `seconds` should be a multiple [0: none]
  seconds         of the scenario, without its last answers [10]
  limit_first_ms  a request is good when its first token comes within this [2000]
  limit_token_ms  ... and its further ones, in the mean, within this; on a canvas its whole time counts [50]

Law: every request is counted once, as done, failed (by its status or fault) or unfinished; tokens are those of the server's
`usage`. A server that refuses the scenario (400 and the like) is asked once by each client, and its words are in the record.
`busiest_client_percent` is the processor time of the busiest process of this program; near 100 the record is of the program and
not of the server. Joules are those of the GPUs that were named, where the server is on this machine. Only weft is told how to write
each answer and in how many steps: of another server `canvases` says how its answers come, all of them or none, and `steps` is what
it was started with.
"""
import array
import ctypes
import dataclasses
import heapq
import json
import math
import multiprocessing
import os
import random
import re
import selectors
import socket
import sys
import time
import urllib.parse
import urllib.request

# format: JSON type of an item, and the tokens of the shortest one with its comma where each byte is a token
FORMATS = {"integers": ("integer", 2), "strings": ("string", 3)}

FIRST_ID = 300  # before it stand the control tokens and bytes of usual vocabularies
PAUSE_S = 0.2  # after a failure
TEXT = re.compile(rb'"text": ?"[^"]')  # in an event; one that only says that the stream has begun has none
LAST_ANSWERS_S = 60.0
STREAMS_PER_PROCESS = 64


@dataclasses.dataclass
class Scenario:
    name: str = ""
    clients: int = 1
    canvases: int = 0
    steps: int = 0
    prompt: int = 512
    prompt_least: int = 0
    shared: int = 0
    tenants: int = 1
    cached: bool = True
    answer: int = 128
    answer_least: int = 0
    format: str = "none"
    burst_every: float = 0.0
    seconds: float = 10.0
    limit_first_ms: float = 2000.0
    limit_token_ms: float = 50.0

    def __post_init__(self):
        for name, least in dict(clients=1, canvases=0, steps=0, prompt=1, prompt_least=0, shared=0, tenants=1, answer=1, answer_least=0,
                                burst_every=0, seconds=0.1).items():
            if not isinstance(getattr(self, name), (int, float)) or getattr(self, name) < least:
                raise ValueError(f"{name} must be a number, at least {least}")
        if self.canvases > self.clients or self.shared > (self.prompt_least or self.prompt):
            raise ValueError("canvases are at most clients, and shared is at most the shortest prompt")
        if self.prompt_least > self.prompt or self.answer_least > self.answer:
            raise ValueError("prompt_least is at most prompt, and answer_least at most answer")
        if self.format not in ("none", *FORMATS):
            raise ValueError('format is "integers", "strings" or "none"')

    def is_canvas(self, client):
        """Canvases lie evenly among the clients."""
        return (client + 1) * self.canvases // self.clients > client * self.canvases // self.clients


class Server:
    """Where it is, and what must be known of its model."""

    def __init__(self, url):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{url}: must be http://HOST:PORT")
        self.host, port = parts.hostname, parts.port or 80
        self.family, _, _, _, self.address = socket.getaddrinfo(self.host, port, type=socket.SOCK_STREAM)[0]
        with urllib.request.urlopen(f"http://{parts.netloc}/v1/models", timeout=60) as answer:
            model = json.load(answer)["data"][0]
        self.netloc, self.model = parts.netloc, model["id"]
        self.is_weft = "vocabulary" in model  # others do not say it
        self.n_vocabulary = model.get("vocabulary", 10000)  # ids that all vocabularies have

    def is_here(self):
        return self.address[0].startswith("127.") or self.address[0] == "::1"


def length_of(random_, least, most):
    """Every doubling of the length is as likely as another; 0: all have the most."""
    return round(least * (most / least) ** random_.random()) if least else most


class Prompts:
    """Random ids; the shared ones are those of the seed and the tenant."""

    def __init__(self, scenario, server, seed):
        self.scenario, self.range = scenario, range(min(FIRST_ID, server.n_vocabulary // 2), server.n_vocabulary)
        self.shared = [self.draw(random.Random(f"{scenario.name} {seed} {i}"), scenario.shared) for i in range(scenario.tenants)]

    def draw(self, random_, n):
        return ",".join(map(str, random_.choices(self.range, k=n)))

    def make(self, random_, client):
        shared = self.shared[client % self.scenario.tenants]
        own = self.draw(random_, length_of(random_, self.scenario.prompt_least, self.scenario.prompt) - self.scenario.shared)
        return "[" + shared + ("," if shared and own else "") + own + "]"


def request_of(scenario, server, prompt, is_canvas, salt, answer=None):
    fields = {"model": server.model, "max_tokens": answer or scenario.answer, "temperature": 1.0, "stream": True,
              "stream_options": {"include_usage": True}}
    if is_canvas:
        del fields["temperature"]  # a canvas has its own
    if server.is_weft:
        fields["mode"] = "diffusion" if is_canvas else "autoregressive"
        if is_canvas and scenario.steps > 0:
            fields["diffusion"] = {"steps": scenario.steps, "confidence": 0}
    if scenario.format == "none":
        fields["ignore_eos"] = True
    else:
        kind, longest = FORMATS[scenario.format]
        schema = {"type": "array", "items": {"type": kind}, "minItems": (scenario.answer - 1) // longest}
        fields["response_format"] = {"type": "json_schema", "json_schema": {"name": scenario.format, "schema": schema}}
    if not scenario.cached:
        fields["cache_salt"] = salt
    body = json.dumps(fields)[:-1] + f', "prompt": {prompt}}}'
    return (f"POST /v1/completions HTTP/1.1\r\nHost: {server.netloc}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}").encode()


@dataclasses.dataclass
class Result:
    is_canvas: bool
    began: float
    fault: str = ""  # empty: done
    message: str = ""  # of a server that refused
    first: float = 0.0
    last: float = 0.0
    ended: float = 0.0
    tokens: int = 0
    prompt: int = 0
    cached: int = 0
    canvases: int = 0
    steps: int = 0
    share: float = 0.0  # of the events that came in the window

    @property
    def is_refused(self):
        return self.fault.startswith("4") and self.fault not in ("408", "429")


def number_in(body, name):
    found = re.findall(rb'"%s":\s*(\d+)' % name, body)
    return int(found[-1]) if found else 0


class Client:
    """One request after the other, each on a connection of its own."""

    def __init__(self, load, index):
        self.load, self.index, self.is_canvas = load, index, load.scenario.is_canvas(index)
        self.random, self.number, self.socket = random.Random(f"{load.seed} {index}"), 0, None

    def begin(self):
        salt = f"{self.load.seed}-{self.index}-{self.number}"
        self.number += 1
        scenario = self.load.scenario
        prompt = self.load.prompts.make(self.random, self.index)
        answer = length_of(self.random, scenario.answer_least, scenario.answer)
        request = request_of(scenario, self.load.server, prompt, self.is_canvas, salt, answer)
        self.unsent, self.parts, self.times = memoryview(request), [], []
        self.socket = socket.socket(self.load.server.family, socket.SOCK_STREAM)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.result = Result(self.is_canvas, time.monotonic())
        self.socket.connect_ex(self.load.server.address)  # its fault comes with the first write
        self.load.selector.register(self.socket, selectors.EVENT_WRITE, self)

    def move(self, now):
        """True when the request has ended."""
        try:
            if self.unsent:
                self.unsent = self.unsent[self.socket.send(self.unsent):]
                if not self.unsent:
                    self.load.selector.modify(self.socket, selectors.EVENT_READ, self)
                return False
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return False
        except OSError as fault:
            self.end(now, type(fault).__name__)
            return True
        if not data:
            self.end(now, None)
            return True
        self.parts.append(data)
        if TEXT.search(data):
            self.times.append(now)
        return False

    def leave(self):
        self.load.selector.unregister(self.socket)
        self.socket.close()
        self.socket = None

    def end(self, now, fault):
        self.leave()
        result, body, times, load = self.result, b"".join(self.parts), self.times, self.load
        result.ended = now
        result.fault = fault or self.judge(body)
        load.results.append(result)
        if result.fault:
            return
        tail = body[-4096:]
        result.first, result.last = (times[0], times[-1]) if times else (now, now)
        result.tokens, result.prompt = number_in(tail, b"completion_tokens"), number_in(tail, b"prompt_tokens")
        result.cached = number_in(tail, b"cached_tokens")
        result.canvases, result.steps = number_in(tail, b"canvases"), number_in(tail, b"denoise_steps")
        inside = sum(load.window[0] <= t < load.window[1] for t in times or [now])
        result.share = inside / max(len(times), 1)
        if not self.is_canvas and result.began >= load.window[0]:
            load.gaps.extend(b - a for a, b in zip(times, times[1:]))

    def judge(self, body):
        """What is wrong with an answer that has ended; empty: nothing."""
        if not body.startswith(b"HTTP/1.") or b"\r\n\r\n" not in body:
            return "no answer"
        status = body[9:12].decode("latin-1")
        if status != "200":
            found = re.search(rb'"message":\s*"((?:[^"\\]|\\.)*)"', body)
            self.result.message = found[1].decode("utf-8", "replace")[:300] if found else ""
            return status
        tail = body[-4096:]
        if b"[DONE]" not in tail:
            return "cut off"
        return "" if b'"completion_tokens"' in tail else "no usage"


class Load:
    """The clients of one process."""

    def __init__(self, scenario, server, seed, window):
        self.scenario, self.server, self.seed, self.window = scenario, server, seed, window
        self.prompts = Prompts(scenario, server, seed)
        self.selector, self.results, self.gaps = selectors.DefaultSelector(), [], array.array("d")

    def run(self, indices, start):
        """Until all have ended, or until it is too late for them."""
        every = self.scenario.burst_every
        ramp, limit = 0.0 if every > 0 else self.window[0] - start, self.window[1] + LAST_ANSWERS_S
        waiting = [(start + ramp * i / self.scenario.clients, i, Client(self, i)) for i in indices]
        heapq.heapify(waiting)
        running = set()
        while (now := time.monotonic()) < limit:
            while waiting and waiting[0][0] <= now:
                client = heapq.heappop(waiting)[2]
                if now < self.window[1] or client.number == 0:  # each asks once, however late its process came
                    client.begin()
                    running.add(client)
            if not waiting and not running:
                break
            for client in self.wait(min(waiting[0][0] if waiting else limit, limit) - now):
                running.remove(client)
                ended, fault = client.result.ended, client.result.fault
                again = start + math.ceil((ended - start) / every) * every if every > 0 else ended + (PAUSE_S if fault else 0.0)
                if not client.result.is_refused and (again if every > 0 else ended) < self.window[1]:
                    heapq.heappush(waiting, (again, client.index, client))
        for client in running:
            client.leave()
            self.results.append(dataclasses.replace(client.result, fault="unfinished"))

    def wait(self, pause):
        """Clients whose requests have ended."""
        ready = [key.data for key, _ in self.selector.select(max(pause, 0.0))]
        return [client for client in ready if client.move(time.monotonic())]


def run_process(pipe, scenario, server, seed, start, window, indices):
    load, began = Load(scenario, server, seed, window), time.monotonic()
    used = time.process_time()
    load.run(indices, start)
    used = (time.process_time() - used) / max(time.monotonic() - began, 1e-9)
    pipe.send((load.results, load.gaps.tobytes(), used))
    pipe.close()


class Energy:
    """Joules that these NVIDIA GPUs have taken, by their own counters; None: one of them is not there."""

    def __init__(self, is_here, numbers):
        self.gpus = []
        try:
            self.module = ctypes.CDLL("libnvidia-ml.so.1") if is_here else None
        except OSError:
            self.module = None
        if not self.module or self.module.nvmlInit_v2() != 0:
            return
        for number in numbers:
            gpu = ctypes.c_void_p()
            self.gpus.append(gpu if self.module.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(gpu)) == 0 else None)

    def joules(self):
        total, each = 0, ctypes.c_ulonglong()
        for gpu in self.gpus or [None]:
            if gpu is None or self.module.nvmlDeviceGetTotalEnergyConsumption(gpu, ctypes.byref(each)) != 0:
                return None
            total += each.value
        return total * 1e-3


def share_at(values, percent):
    """The smallest value that so many percent do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def in_ms(record, name, values):
    for percent in (50, 99):
        record[f"{name}_ms_p{percent}"] = round(1000 * share_at(values, percent), 3) if values else None


def token_s(result):
    """Time per token of an answer."""
    if result.is_canvas:
        return (result.ended - result.began) / max(result.tokens, 1)
    return (result.last - result.first) / max(result.tokens - 1, 1)


def latencies_of(results, gaps, is_canvas):
    record = {"requests": len(results)}
    in_ms(record, "first", [r.first - r.began for r in results])
    if is_canvas:
        in_ms(record, "canvas", [(r.ended - r.began) / max(r.canvases, 1) for r in results])
        n_canvases = sum(r.canvases for r in results)  # 0: a server that does not count them
        record["steps_per_canvas"] = round(sum(r.steps for r in results) / n_canvases, 2) if n_canvases else None
    else:
        in_ms(record, "token", [token_s(r) for r in results if r.tokens > 1])
        in_ms(record, "gap", gaps)  # from one event to the next
    return record


def record_of(scenario, results, gaps, window, joules, used):
    done = [r for r in results if not r.fault]
    faults = [r.fault for r in results if r.fault and r.fault != "unfinished"]
    length = window[1] - window[0]
    tokens = sum(r.tokens * r.share for r in done)
    measured = [r for r in results if r.began >= window[0]]
    good = [r for r in measured if not r.fault and r.first - r.began <= scenario.limit_first_ms / 1000 and
            token_s(r) <= scenario.limit_token_ms / 1000]
    record = dataclasses.asdict(scenario) | {
        "started": len(results), "done": len(done), "failed": {f: faults.count(f) for f in sorted(set(faults))},
        "unfinished": len(results) - len(done) - len(faults), "window_s": round(length, 2),
        "prompt_tokens": sum(r.prompt for r in done), "cached_tokens": sum(r.cached for r in done),
        "answer_tokens": sum(r.tokens for r in done), "tokens_per_s": round(tokens / length, 1),
        "goodput": round(len(good) / len(measured), 4) if measured else None}
    for name, is_canvas in ("autoregressive", False), ("diffusion", True):
        of_kind = [r for r in measured if not r.fault and r.is_canvas == is_canvas]
        if of_kind:
            record[name] = latencies_of(of_kind, gaps, is_canvas)
    record["joules_per_token"] = round(joules / tokens, 4) if joules is not None and tokens > 0 else None
    record["processes"], record["busiest_client_percent"] = len(used), round(100 * max(used), 1)
    refused = [r.message for r in results if r.is_refused]
    return record | ({"refused": refused[0]} if refused else {})


def run(server, scenario, gpus=(0,)):
    """The record of a scenario."""
    if not server.is_weft and 0 < scenario.canvases < scenario.clients:
        raise ValueError("of another server than weft all clients write on canvases or none")
    context, seed = multiprocessing.get_context("fork"), random.SystemRandom().getrandbits(48)
    n = max(1, min((os.cpu_count() or 2) // 2, -(-scenario.clients // STREAMS_PER_PROCESS)))
    energy = Energy(server.is_here(), gpus)
    start = time.monotonic() + 0.05 + 0.01 * n
    window = (start + scenario.seconds / 3, start + scenario.seconds)
    pipes, processes = [], []
    for i in range(n):
        mine, theirs = context.Pipe(duplex=False)
        indices = range(i, scenario.clients, n)
        processes.append(context.Process(target=run_process, args=(theirs, scenario, server, seed, start, window, indices), daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(mine)
    at = []
    for moment in window:
        time.sleep(max(moment - time.monotonic(), 0.0))
        at.append(energy.joules())
    parts = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    results, gaps = [r for part in parts for r in part[0]], array.array("d")
    for part in parts:
        gaps.frombytes(part[1])
    joules = at[1] - at[0] if None not in at else None
    return record_of(scenario, results, gaps, window, joules, [part[2] for part in parts])


def write_one_token(server):
    """Returns when a short answer has come."""
    request = request_of(Scenario(prompt=1, answer=1), server, f"[{FIRST_ID}]", False, "")
    with socket.create_connection(server.address[:2], timeout=600) as connection:
        connection.sendall(request)
        answer = b""
        while data := connection.recv(1 << 16):
            answer += data
    if b"[DONE]" not in answer:
        raise OSError(f"no token came: {answer[-300:].decode('utf-8', 'replace')}")


def scenarios_of(lines):
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield Scenario(**json.loads(line))
        except (TypeError, ValueError) as fault:
            raise SystemExit(f"load: line {number}: {fault}") from None


def main():
    if len(sys.argv) not in (3, 4) or "-h" in sys.argv or "--help" in sys.argv:
        raise SystemExit(__doc__)
    try:
        gpus = [int(number) for number in (sys.argv[3] if len(sys.argv) > 3 else "0").split(",")]
        with sys.stdin if sys.argv[2] == "-" else open(sys.argv[2]) as lines:
            scenarios = list(scenarios_of(lines))
        server = Server(sys.argv[1])
    except (OSError, ValueError) as fault:
        raise SystemExit(f"load: {fault}") from None
    for scenario in scenarios:
        try:
            print(json.dumps(run(server, scenario, gpus)), flush=True)
        except ValueError as fault:
            raise SystemExit(f"load: {fault}") from None


if __name__ == "__main__":
    main()
