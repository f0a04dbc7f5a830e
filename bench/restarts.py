#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a start of the server takes where something outlives the one before: weights of an owner, prefixes in a file, the listening
socket. Needs Python alone. Prints one JSON object.

  bench/restarts.py start   -p BUILD -m MODEL [-b BACKEND] [-r REPEAT] [-t TRANSPORT] [-- OPTION...]
      to the first token with `--weights`, without it (the file in the page cache), and an empty program that makes a context and
      loads the module (bench_device_start). Goal: at most 0.5 s beyond that.
  bench/restarts.py kept    -p BUILD -m MODEL [-b BACKEND] [-n TOKENS] [-f FILE] [-- OPTION...]
      a prompt of TOKENS tokens, computed; then after a restart with --keep, read from FILE [/tmp/weft.kept]. Beside it a plain read of
      as many bytes of the file. Both after the file has left the page cache.
  bench/restarts.py upgrade -p BUILD -m MODEL [-b BACKEND] [-n STREAMS] [-- OPTION...]
      STREAMS [64] streams while a second server takes over with the same weights: how many had the bytes of before, the longest
      time without a byte, and of a request that was sent in between. Exit code 1 where one had not.
"""
import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

parser = argparse.ArgumentParser(usage=__doc__)
parser.add_argument("what", choices=["start", "kept", "upgrade"])
parser.add_argument("-p", dest="build", default="build")
parser.add_argument("-m", dest="model", required=True)
parser.add_argument("-b", dest="backend", default="cuda")
parser.add_argument("-r", dest="repeat", type=int, default=3)
parser.add_argument("-n", dest="n", type=int)
parser.add_argument("-f", dest="file", default="/tmp/weft.kept")
parser.add_argument("-t", dest="transport", default="auto")
own = sys.argv[1:]
more = own[own.index("--") + 1:] if "--" in own else []
args = parser.parse_args(own[:own.index("--")] if "--" in own else own)
weft = os.path.join(args.build, "weft")
folder = tempfile.mkdtemp(prefix="weft-restarts-")
weights = os.path.join(folder, "weights")


class Server:
    """A child that prints a line of JSON when it is ready."""

    def __init__(self, command, wanted=""):
        self.log = open(os.path.join(folder, "log"), "ab")
        self.began = time.monotonic()
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.ready = None
        for line in self.child.stdout:
            self.ready = json.loads(line)
            if wanted in line:
                break
        if self.ready is None or wanted not in line:
            raise SystemExit(f"{' '.join(command)} did not start: " + open(os.path.join(folder, "log")).read()[-400:])
        self.seconds = time.monotonic() - self.began

    def end(self):
        self.child.send_signal(signal.SIGTERM)
        self.child.wait()
        self.child.stdout.close()
        self.log.close()


def serve(*options):
    return Server([weft, "serve", "-m", args.model, "--backend", args.backend, "--port", "0", "--json", "-q", *options, *more], "port")


def owner():
    transport = [] if args.transport == "auto" else ["--transport", args.transport]
    return Server([weft, "weights", "-m", args.model, "--backend", args.backend, "--socket", weights, "--json", "-q", *transport], '"ready"')


def stream(port, body, times=None):
    """The text of a stream, and where times is given when its parts came."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/completions", json.dumps(body | {"stream": True}))
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(answer.read().decode())
    text, whole = "", False
    for line in answer:
        if line.startswith(b"data: [DONE]"):
            whole = True
        elif line.startswith(b"data: "):
            choices = json.loads(line[6:]).get("choices") or [{}]
            text += choices[0].get("text") or ""
            if times is not None and choices[0].get("text"):
                times.append(time.monotonic())
    connection.close()
    return text if whole else None


def first_token(server):
    """To the end of an answer of one token, which may be one without a text."""
    stream(server.ready["port"], {"prompt": [1, 2, 3], "max_tokens": 1, "ignore_eos": True, "temperature": 0})
    return time.monotonic() - server.began


def start():
    def timed(*options):
        rows = []
        for _ in range(args.repeat):
            server = serve(*options)
            rows.append(round(first_token(server), 3))
            server.end()
        return rows
    empty = []
    for _ in range(args.repeat):
        program = Server([os.path.join(args.build, "bench_device_start"), args.backend])
        empty.append(round(program.seconds, 3))
        program.child.wait()
    held = owner()
    mapped = timed("--weights", weights)
    transport, load = held.ready["backend"], held.seconds
    held.end()
    alone = timed()
    beyond = sorted(mapped)[len(mapped) // 2] - sorted(empty)[len(empty) // 2]
    return {"empty_s": empty, "owner_s": round(load, 3), "transport": transport, "with_weights_s": mapped, "without_s": alone,
            "beyond_empty_s": round(beyond, 3), "goal_s": 0.5}


def drop_from_cache(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def plain_read(path, n):
    """Seconds for n bytes from the file's beginning, around the page cache where the file system allows it, 4 MiB at a time."""
    import mmap
    room = mmap.mmap(-1, 4 << 20)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        fd = os.open(path, os.O_RDONLY)
    began, at = time.monotonic(), 0
    while at < n and (got := os.preadv(fd, [room], at)) > 0:
        at += got
    os.close(fd)
    return time.monotonic() - began, at


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
        server = serve(*options)
        port, began = server.ready["port"], time.monotonic()
        text = stream(port, body)
        rows[name] = {"seconds": round(time.monotonic() - began, 3), "text": text, "cached": metric(port, "vllm:prefix_cache_hits_total"), "bytes_read": metric(port, "weft_file_bytes_read_total")}
        began = time.monotonic()
        server.end()
        rows[name]["end_s"] = round(time.monotonic() - began, 3)
        drop_from_cache(args.file)
    seconds, plain = plain_read(args.file, int(rows["read"]["bytes_read"]))
    os.unlink(args.file)
    rate = rows["read"]["bytes_read"] / rows["read"]["seconds"]
    return {"tokens": n, **rows, "equal": rows["computed"].pop("text") == rows["read"].pop("text"), "read_mb_s": round(rate / 1e6, 1),
            "plain_read_mb_s": round(plain / seconds / 1e6, 1) if seconds > 0 else None}


def upgrade():
    n = args.n or 64
    options = ("--weights", weights, "--take-over", os.path.join(folder, "next"), "--running", str(n))
    bodies = [{"prompt": [5 + i % 8, 9, 11, 40 + i % 8], "max_tokens": 256, "ignore_eos": True, "temperature": 0.9, "seed": i % 8 + 1}
              for i in range(n)]
    held = owner()
    first = serve(*options)
    port = first.ready["port"]
    right = [stream(port, bodies[i]) for i in range(8)]
    texts, times = [None] * n, [[] for _ in range(n)]

    def run(i):
        texts[i] = stream(port, bodies[i], times[i])
    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    while sum(bool(t) for t in times) < n // 2:
        time.sleep(0.001)
    second = Server([weft, "serve", "-m", args.model, "--backend", args.backend, "--port", str(port), "--json", "-q", *options, *more], "port") \
        if "--port" in more else serve(*options)
    began, probe = time.monotonic(), []
    between = stream(second.ready["port"], bodies[0], probe)
    for thread in threads:
        thread.join()
    first.child.wait()
    second.end()
    held.end()
    equal = sum(texts[i] is not None and texts[i] == right[i % 8] for i in range(n))
    gap = max(b - a for t in times for a, b in zip(t, t[1:]))
    return {"streams": n, "with_their_bytes": equal, "same_port": second.ready["port"] == port, "new_server_s": round(second.seconds, 3),
            "longest_gap_s": round(gap, 3), "new_first_token_s": round(probe[0] - began, 3), "new_equal": between == right[0]}


result = {"work": args.what, "backend": args.backend, "model": os.path.basename(args.model), "bytes": os.path.getsize(args.model)}
result |= {"start": start, "kept": kept, "upgrade": upgrade}[args.what]()
print(json.dumps(result))
sys.exit(args.what == "upgrade" and (result["with_their_bytes"] != result["streams"] or not result["new_equal"]))
