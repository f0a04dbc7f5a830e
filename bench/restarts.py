#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a start of the server takes where something outlives the one before: weights of an owner, prefixes in a file, the listening
socket. Needs Python alone. Prints one JSON object; on standard error, what it waits for and how long each wait took. After -l
seconds [300] it ends with exit code 3, what it has started with it, and says what it waited for.

  bench/restarts.py start   -p BUILD -m MODEL [-b BACKEND] [-r REPEAT] [-t TRANSPORT] [-- OPTION...]
      to the first token with `--weights`, without it (the file in the page cache), and an empty program that makes a context and
      loads the module (bench_device_start). Goal: at most 0.5 s beyond that. Of each kind the server's own word for where the time
      before its first request went.
  bench/restarts.py kept    -p BUILD -m MODEL [-b BACKEND] [-n TOKENS] [-f FILE] [-- OPTION...]
      a prompt of TOKENS tokens, computed; then after a restart with --keep, read from FILE [/tmp/weft.kept]. Beside it plain reads of
      as many bytes of the file, 4 MiB at a time around the page cache, and by six threads. All after the file has left the page cache.
  bench/restarts.py upgrade -p BUILD -m MODEL [-b BACKEND] [-n STREAMS] [-k TOKENS] [-- OPTION...]
      STREAMS [64] streams of TOKENS [256] tokens while a second server takes over with the same weights: how many had the tokens of
      before, how many of them still ran when the second one was ready, the longest time without a token, and a request that was sent
      in between. Exit code 1 where one had not, or where no stream ran any more, so that nothing was shown.
  bench/restarts.py memory  -p BUILD -m MODEL [-n WORKERS] [-- OPTION...]
      MiB of the first card that are in use before an owner, with it, with each of WORKERS [4] servers that map its weights, when the
      owner was killed and they run on, and when all have ended. By nvidia-smi. Exit code 1 where one of them answers otherwise than a
      server of its own weights did before, or computes otherwise.
"""
import argparse
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

parser = argparse.ArgumentParser(usage=__doc__)
parser.add_argument("what", choices=["start", "kept", "upgrade", "memory"])
parser.add_argument("-p", dest="build", default="build")
parser.add_argument("-m", dest="model", required=True)
parser.add_argument("-b", dest="backend", default="cuda")
parser.add_argument("-r", dest="repeat", type=int, default=3)
parser.add_argument("-n", dest="n", type=int)
parser.add_argument("-k", dest="tokens", type=int, default=256)
parser.add_argument("-f", dest="file", default="/tmp/weft.kept")
parser.add_argument("-t", dest="transport", default="auto")
parser.add_argument("-l", dest="limit", type=float, default=300)
own = sys.argv[1:]
more = own[own.index("--") + 1:] if "--" in own else []
args = parser.parse_args(own[:own.index("--")] if "--" in own else own)
weft = os.path.join(args.build, "weft")
folder = tempfile.mkdtemp(prefix="weft-restarts-")
weights = os.path.join(folder, "weights")
log_path = os.path.join(folder, "log")
children, waits = [], []  # [text, when it began, what else there is to say of it]


def wait_for(text, more_to_say=None):
    """From here on it is this that the program waits for."""
    now = time.monotonic()
    if waits:
        print(f"{now - waits[-1][1]:8.2f} s  {waits[-1][0]}", file=sys.stderr, flush=True)
    waits.append([text, now, more_to_say])


def last_words():
    with open(log_path, errors="replace") as f:
        return f.read()[-600:]


def give_up():
    text, began, more_to_say = waits[-1]
    state = f" ({more_to_say()})" if more_to_say else ""
    print(f"{args.limit:g} s are over: for {time.monotonic() - began:.2f} s it waited for {text}{state}; the servers said last:\n{last_words()}", file=sys.stderr, flush=True)
    for child in children:
        child.kill()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(3)


class Server:
    """A child that prints a line of JSON when it is ready."""

    def __init__(self, name, command, wanted=""):
        wait_for(f"{name} to be ready")
        self.name, self.log = name, open(log_path, "ab")
        self.log_at = self.log.tell()
        self.began = time.monotonic()
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        children.append(self.child)
        self.ready = None
        for line in self.child.stdout:
            self.ready = json.loads(line)
            if wanted in line:
                break
        if self.ready is None or wanted not in line:
            raise SystemExit(f"{' '.join(command)} did not start: " + last_words())
        self.seconds = time.monotonic() - self.began

    def end(self):
        self.child.send_signal(signal.SIGTERM)
        self.await_end()

    def await_end(self):
        wait_for(f"{self.name} to end")
        if self.child.wait() != 0:
            raise SystemExit(f"{self.name} ended with {self.child.returncode}: " + last_words())
        self.child.stdout.close()
        self.log.close()

    def plan(self, word):
        """The line of the plan that begins with this word; of `start`, where the time before the first request went."""
        with open(log_path, errors="replace") as f:
            f.seek(self.log_at)
            found = [line.split(f" plan: {word} ", 1)[1].strip() for line in f if f" plan: {word} " in line]
        return found[-1] if found else None

    def file_gives(self):
        """MB/s of the pages that the start reads to judge by."""
        with open(log_path, errors="replace") as f:
            f.seek(self.log_at)
            found = [line.split("the file gives ", 1)[1].split()[0] for line in f if "the file gives " in line]
        return float(found[-1]) if found else None


def serve(name, *options):
    return Server(name, [weft, "serve", "-m", args.model, "--backend", args.backend, "--port", "0", "--json", "-v", *options, *more], "port")


def owner():
    """With those of the servers' options that weights are laid out by."""
    transport = [] if args.transport == "auto" else ["--transport", args.transport]
    layout = [o for pair in zip(more, more[1:]) if pair[0] in ("--devices", "--split", "--precision", "--isa") for o in pair]
    return Server("the owner of the weights", [weft, "weights", "-m", args.model, "--backend", args.backend, "--socket", weights, "--json", "-q", *transport, *layout], '"ready"')


def stream(port, body, times=None):
    """The tokens of a stream up to its end, and where times is given when its parts came. None: it was cut."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/completions", json.dumps(body | {"stream": True, "return_token_ids": True}))
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(answer.read().decode())
    tokens, whole = [], False
    for line in answer:
        if line.startswith(b"data: [DONE]"):
            whole = True
        elif line.startswith(b"data: "):
            part = json.loads(line[6:])
            if "error" in part:
                raise RuntimeError(line.decode())
            got = (part.get("choices") or [{}])[0].get("token_ids") or []
            tokens += got
            if times is not None and got:
                times.append(time.monotonic())
    connection.close()
    return tokens if whole else None


def first_token(server):
    """To the end of an answer of one token."""
    wait_for(f"the first token of {server.name}")
    stream(server.ready["port"], {"prompt": [1, 2, 3], "max_tokens": 1, "ignore_eos": True, "temperature": 0})
    return time.monotonic() - server.began


def start():
    def timed(name, *options):
        rows, ready, parts = [], [], None
        for _ in range(args.repeat):
            server = serve(name, *options)
            rows.append(round(first_token(server), 3))
            ready.append(round(server.seconds, 3))
            parts = server.plan("start")
            server.end()
        return {"first_token_s": rows, "ready_s": ready, "parts_of_the_last": parts}
    empty = []
    for _ in range(args.repeat):
        program = Server("the empty program", [os.path.join(args.build, "bench_device_start"), args.backend])
        empty.append(round(program.seconds, 3))
        program.await_end()
    held = owner()
    mapped = timed("a server with --weights", "--weights", weights)
    transport, load = held.ready["backend"], held.seconds
    held.end()
    alone = timed("a server of its own weights")
    beyond = sorted(mapped["first_token_s"])[args.repeat // 2] - sorted(empty)[args.repeat // 2]
    return {"empty_s": empty, "owner_s": round(load, 3), "transport": transport, "with_weights": mapped, "without": alone,
            "beyond_empty_s": round(beyond, 3), "goal_s": 0.5}


def drop_from_cache(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def plain_read(path, n, n_threads):
    """Bytes a second of n bytes from the file's beginning, 4 MiB at a time: of one thread around the page cache where the file system allows it."""
    import mmap
    try:
        fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if n_threads == 1 else 0))
    except OSError:
        fd = os.open(path, os.O_RDONLY)
    places, got = iter(range(0, n, 4 << 20)), [0] * n_threads

    def read(i):
        room = mmap.mmap(-1, 4 << 20)
        for at in places:
            got[i] += os.preadv(fd, [room], at)
    threads = [threading.Thread(target=read, args=(i,)) for i in range(n_threads)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - began
    os.close(fd)
    drop_from_cache(path)
    return round(sum(got) / seconds / 1e6, 1)


def metric(port, name):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    for line in connection.getresponse().read().decode().splitlines():
        if line.startswith(name + " ") or line.startswith(name + "{"):
            return float(line.split()[-1])
    return 0.0


def kept():
    n = args.n or 32768
    body = {"prompt": [3 + i * 7919 % 900 for i in range(n)], "max_tokens": 1, "ignore_eos": True, "temperature": 0}
    options = ("--context", str(n + 64), "--spill-file", args.file, "--keep", "default")
    rows = {}
    if os.path.exists(args.file):
        os.unlink(args.file)
    for name in ("computed", "read"):
        server = serve(f"the server whose prompt is {name}", *options)
        wait_for(f"a prompt of {n} tokens, {name}")
        port, began = server.ready["port"], time.monotonic()
        text = stream(port, body)
        rows[name] = {"seconds": round(time.monotonic() - began, 3), "text": text, "cached": metric(port, "vllm:prefix_cache_hits_total"), "bytes_read": metric(port, "weft_file_bytes_read_total"), "kept": server.plan("kept"), "judged_mb_s": server.file_gives()}
        began = time.monotonic()
        server.end()
        rows[name]["end_s"] = round(time.monotonic() - began, 3)
        drop_from_cache(args.file)
    n_read = int(rows["read"]["bytes_read"]) or 256 << 20  # nothing was worth reading: how fast it would have been
    plain = {f"plain_read_{k}_mb_s": plain_read(args.file, n_read, k) for k in (1, 6)}
    os.unlink(args.file)
    rate = rows["read"]["bytes_read"] / rows["read"]["seconds"]
    return {"tokens": n, **rows, "equal": rows["computed"].pop("text") == rows["read"].pop("text"), "read_mb_s": round(rate / 1e6, 1), **plain}


def upgrade():
    n = args.n or 64
    options = ["--weights", weights, "--take-over", os.path.join(folder, "next"), "--running", str(n)]
    if "--context" not in more:
        options += ["--context", str(args.tokens + 64)]
    # no token that the demo model takes again and again, so that each seed has an answer of its own
    bodies = [{"prompt": [5 + i % 8, 9, 11, 40 + i % 8], "max_tokens": args.tokens, "ignore_eos": True, "temperature": 2,
               "logit_bias": {"0": -100}, "seed": i % 8 + 1} for i in range(n)]
    held = owner()
    first = serve("the first server", *options)
    port = first.ready["port"]
    right = [None] * 8

    def run_all(to, count, times, faults):
        def run(i):
            try:
                to[i] = stream(port, bodies[i], times[i])
            except Exception as fault:  # pylint: disable=broad-except
                faults.append(f"stream {i}: {type(fault).__name__} {fault}")
        threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(count)]
        for thread in threads:
            thread.start()
        return threads
    faults, texts, times = [], [None] * n, [[] for _ in range(n)]

    def state():
        return f"{sum(bool(t) for t in times)} of {n} streams have begun, {sum(t is not None for t in texts)} have ended, {len(faults)} failed: {faults[:2]}"
    wait_for("8 answers without an upgrade", lambda: f"{sum(t is not None for t in right)} have ended, faults: {faults[:2]}")
    for thread in run_all(right, 8, [[] for _ in right], faults):
        thread.join()
    wait_for(f"half of {n} streams to begin", state)
    threads = run_all(texts, n, times, faults)
    while sum(bool(t) for t in times) < n // 2:
        if not any(thread.is_alive() for thread in threads):
            raise SystemExit("no stream runs any more before half of them had a token: " + state())
        time.sleep(0.001)
    second = serve("the second server", *options)
    running = sum(thread.is_alive() for thread in threads)
    wait_for("an answer of the second server", state)
    began, probe = time.monotonic(), []
    between = stream(second.ready["port"], bodies[0], probe)
    wait_for("the streams of the first server", state)
    for thread in threads:
        thread.join()
    first.await_end()
    second.end()
    held.end()
    equal = sum(texts[i] is not None and texts[i] == right[i % 8] for i in range(n))
    gap = max((b - a for t in times for a, b in zip(t, t[1:])), default=0.0)
    return {"streams": n, "tokens": args.tokens, "different_answers": len({tuple(t or []) for t in right}), "with_their_tokens": equal,
            "running_when_taken_over": running, "faults": faults[:4], "same_port": second.ready["port"] == port,
            "new_server_s": round(second.seconds, 3), "new_server_parts": second.plan("start"), "longest_gap_s": round(gap, 3),
            "new_first_token_s": round(probe[0] - began, 3), "new_equal": between == right[0]}


def card_mib():
    wait_for("nvidia-smi")
    told = subprocess.run(["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], check=True, capture_output=True, text=True)
    return int(told.stdout)


def memory():
    body = {"prompt": [5, 9, 11, 40], "max_tokens": 32, "ignore_eos": True, "temperature": 2, "logit_bias": {"0": -100}, "seed": 3}
    alone = serve("a server of its own weights")
    wanted, device = stream(alone.ready["port"], body), alone.plan("device")
    alone.end()
    rows = {"before": card_mib()}
    held = owner()
    rows["owner"] = card_mib()
    workers, answers = [], []
    for i in range(args.n or 4):
        workers.append(serve(f"worker {i + 1}", "--weights", weights))
        answers.append(stream(workers[-1].ready["port"], body))
        rows[f"workers_{i + 1}"] = card_mib()
    held.child.kill()
    held.child.wait()
    answers += [stream(worker.ready["port"], body) for worker in workers]
    rows["owner_killed"] = card_mib()
    for worker in workers:
        worker.end()
    rows["after"] = card_mib()
    devices, mapped = {worker.plan("device") for worker in workers}, {worker.plan("mapped") for worker in workers}
    return {"card_mib": rows, "answers": len(answers), "device": device, "mapped": sorted(map(str, mapped)),
            "equal": all(answer == wanted for answer in answers) and devices == {device}}


def failed(got):
    if args.what in ("kept", "memory"):
        return not got["equal"]
    return args.what == "upgrade" and not (got["with_their_tokens"] == got["streams"] and got["new_equal"] and got["running_when_taken_over"] > 0)


watch = threading.Timer(args.limit, give_up)
watch.daemon = True
watch.start()
result = {"work": args.what, "backend": args.backend, "model": os.path.basename(args.model), "bytes": os.path.getsize(args.model)}
try:
    result |= {"start": start, "kept": kept, "upgrade": upgrade, "memory": memory}[args.what]()
finally:
    for child in children:
        if child.poll() is None:
            child.kill()
    shutil.rmtree(folder, ignore_errors=True)
print(json.dumps(result))
sys.exit(failed(result))
