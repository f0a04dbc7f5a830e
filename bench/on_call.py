#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a load of a model costs those who stream from another one (docs/on-call.md). Needs Python alone. Prints one JSON object.

  bench/on_call.py -p BUILD -d FOLDER [-b BACKEND] [-n STREAMS] [-t TOKENS] [-r LOADS] [-- OPTION...]
      FOLDER has two files; the first by name streams, the second comes and goes. First a server that has both from its start
      answers; then one with --models-dir: STREAMS [4] streams of TOKENS [400] tokens alone, then again and again while the
      other model is loaded and unloaded LOADS [6] times, put to sleep and woken. Every answer must have the bytes of the first
      server: exit code 1 where one has not. With --sleep-mib N it sleeps with its weights in host memory. The gaps are those between two parts of one stream, as a client sees them.
"""
import argparse
import atexit
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time

started = time.monotonic()
parser = argparse.ArgumentParser(usage=__doc__)
parser.add_argument("-p", dest="build", default="build")
parser.add_argument("-d", dest="folder", required=True)
parser.add_argument("-b", dest="backend", default="cuda")
parser.add_argument("-n", dest="n", type=int, default=4)
parser.add_argument("-t", dest="tokens", type=int, default=400)
parser.add_argument("-r", dest="loads", type=int, default=6)
parser.add_argument("-l", dest="limit", type=float, default=600, help="seconds without a word of the server that end it all")
own = sys.argv[1:]
more = own[own.index("--") + 1:] if "--" in own else []
args = parser.parse_args(own[:own.index("--")] if "--" in own else own)
files = sorted(f for f in os.listdir(args.folder) if f.endswith(".gguf"))[:2]
names = [f[:-5] for f in files]


def leave(child):
    """A server that did not end by itself: what its threads wait for, then its end."""
    if child.poll() is not None:
        return
    for task in os.listdir(f"/proc/{child.pid}/task"):
        about = f"/proc/{child.pid}/task/{task}/"
        print(task, open(about + "wchan").read(), open(about + "stat").read().split()[13:15], file=sys.stderr)
    child.kill()


class Server:
    def __init__(self, *options):
        command = [os.path.join(args.build, "weft"), "serve", "--backend", args.backend, "--port", "0", "--json", "-q", *options, *more]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        atexit.register(leave, self.child)
        line = self.child.stdout.readline()
        if not line:
            raise SystemExit("the server did not start: " + " ".join(command))
        self.port = json.loads(line)["port"]

    def end(self):
        self.child.send_signal(signal.SIGTERM)
        self.child.stdout.close()
        return self.child.wait()

    def post(self, path, body, read=lambda answer: answer.read().decode()):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=args.limit)
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {answer.read().decode()}")
        out = read(answer)
        connection.close()
        return out

    def has_chat(self, model):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=args.limit)
        connection.request("POST", "/v1/chat/completions", json.dumps({"model": model, "messages": [{"role": "user", "content": "1"}], "max_tokens": 1}))
        return connection.getresponse().status == 200

    def metrics(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()


def stream(server, model, number, times):
    """Text and tokens of one stream; times gets when its parts came."""
    def read(answer):
        text, tokens = "", []
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            part = (json.loads(line[6:]).get("choices") or [{}])[0]
            text += (part.get("delta") or {}).get("content") or part.get("text") or ""
            tokens += part.get("token_ids") or []
            if part.get("token_ids"):
                times.append(time.monotonic())
        return text, tuple(tokens)
    numbers = " ".join(str((number * 31 + i * 17) % 90) for i in range(6))
    asked = f"Sort from low to high: {numbers}"
    body = {"model": model, "max_tokens": args.tokens, "temperature": 1, "seed": number, "ignore_eos": True, "stream": True,
            "return_token_ids": True}
    if model in chats:
        return server.post("/v1/chat/completions", body | {"messages": [{"role": "user", "content": asked}]}, read)
    return server.post("/v1/completions", body | {"prompt": asked}, read)


def streams(server, model):
    """Texts of all streams at once, and the gaps as (when the later part came, ms)."""
    texts, times = [None] * args.n, [[] for _ in range(args.n)]
    threads = [threading.Thread(target=lambda i=i: texts.__setitem__(i, stream(server, model, i, times[i]))) for i in range(args.n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return texts, [(b, (b - a) * 1e3) for row in times for a, b in zip(row, row[1:])]


def told(gaps):
    gaps = sorted(ms for _, ms in gaps)
    if not gaps:
        return {"n": 0}
    at = lambda share: round(gaps[min(len(gaps) - 1, int(share * len(gaps)))], 3)
    return {"n": len(gaps), "median_ms": at(0.5), "p99_ms": at(0.99), "p99.9_ms": at(0.999), "longest_ms": round(gaps[-1], 3),
            "mean_ms": round(statistics.fmean(gaps), 3)}


def within(gaps, spans):
    return [g for g in gaps if any(a <= g[0] and g[0] - g[1] * 1e-3 <= b for a, b in spans)]


def tell(what):
    print(f"{time.monotonic() - started:.3f} s: {what}", file=sys.stderr, flush=True)


def change(server, spans, what):
    began = time.monotonic()
    server.post(f"/v1/models/{what}", {"model": names[1]})
    spans.setdefault(what, []).append((began, time.monotonic()))


folder_options = {"--models-mib", "--load-tenants", "--sleep-mib", "--keep-alive-seconds"}  # which a server without a folder does not take
rest, more = more, [o for o, before in zip(more, [""] + more) if o not in folder_options and before not in folder_options]
both = Server(*[o for f in files for o in ("-m", os.path.join(args.folder, f))])
chats = {name for name in names if both.has_chat(name)}
wanted = streams(both, names[0])[0]
other = stream(both, names[1], 0, [])
both.end()
more = rest
server = Server("--models-dir", args.folder)
server.post("/v1/models/load", {"model": names[0]})
streams(server, names[0])  # what comes first is slow: kernels, graphs
texts, quiet = streams(server, names[0])
n_wrong, n_answers, spans, loud, going = sum(a != b for a, b in zip(texts, wanted)), args.n, {}, [], True


tell("the quiet streams have ended")


def keep_streaming():
    global n_wrong, n_answers
    while going:
        texts, gaps = streams(server, names[0])
        loud.extend(gaps)
        n_wrong += sum(a != b for a, b in zip(texts, wanted))
        n_answers += args.n


thread = threading.Thread(target=keep_streaming)
thread.start()
for i in range(args.loads):
    change(server, spans, "load" if i % 2 == 0 else "wake")
    time.sleep(0.1)
    change(server, spans, "unload" if i % 2 else "sleep")
    time.sleep(0.1)
going = False
thread.join()
tell("the streams have ended")
change(server, spans, "wake")
n_wrong += stream(server, names[1], 0, []) != other
tell("the other model has answered")
kept = [line for line in server.metrics().splitlines() if line.startswith(("weft_model_need", "weft_model_loads", "weft_room", "weft_models"))]
code = server.end()
tell("the server has ended")
every = [s for rows in spans.values() for s in rows]
beside = set(within(loud, every))
print(json.dumps({
    "streams": args.n, "answers": n_answers + 1, "wrong": n_wrong, "exit": code,
    "tokens": {"all": sum(len(t[1]) for t in wanted), "kinds": len({k for t in wanted for k in t[1]})},
    "seconds": {what: [round(b - a, 3) for a, b in rows] for what, rows in spans.items()},
    "gaps_quiet": told(quiet),
    "gaps_while_it_comes": told(within(loud, spans.get("load", []) + spans.get("wake", []))),
    "gaps_while_it_leaves": told(within(loud, spans.get("unload", []) + spans.get("sleep", []))),
    "gaps_by_kind": {what: told(within(loud, rows)) for what, rows in spans.items()},
    "gaps_between": told([g for g in loud if g not in beside]),
    "metrics": kept}, indent=1))
sys.exit(1 if n_wrong or code else 0)
