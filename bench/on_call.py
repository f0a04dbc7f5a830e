#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a load of a model costs those who stream from another one (docs/on-call.md). Needs Python alone. Prints one JSON object.

  bench/on_call.py -p BUILD -d FOLDER [-b BACKEND] [-n STREAMS] [-t TOKENS] [-r LOADS] [-- OPTION...]
      FOLDER has two files; the first by name streams, the second comes and goes. First a server that has both from its start
      answers; then one with --models-dir: STREAMS [4] streams of TOKENS [400] tokens alone, -q [1] times, then -x [0] times
      beside a program that reads the second file around the page cache, then again and again while the other model is loaded and
      unloaded LOADS [6] times, put to sleep and woken. Every answer must have the bytes of the first server: exit code 1 where one
      has not. With --sleep-mib N it sleeps with its weights in host memory. The gaps are those between two parts of one stream, as a
      client sees them, once all streams of a round have begun; of those above -g [2.5] ms the server's own record of its steps is asked
      at once: `long_gaps` says how many streams had it, in what, and what the longest step then did. The longest of more gaps is longer:
      compare like numbers of them.
"""
import argparse
import atexit
import gc
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
parser.add_argument("-q", dest="quiet", type=int, default=1)
parser.add_argument("-x", dest="reads", type=int, default=0)
parser.add_argument("-g", dest="long_ms", type=float, default=2.5)
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

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path)
        return connection.getresponse().read().decode()


BEGUN = 8  # tokens of each stream until which prompts of the others of its round may lie between


def stream(server, model, number, begun=()):
    """The lines of one stream and when they came. Nothing is parsed while it runs. begun: how many lines each stream of its round has."""
    lines = []

    def read(answer):
        before = None
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            now = time.monotonic()
            lines.append((now, line))
            if begun:
                begun[number] = len(lines)
            if before is not None and (now - before) * 1e3 > args.long_ms and begun and min(begun) >= BEGUN:
                long_gaps.append((now, (now - before) * 1e3))
                look_now.set()
            before = now
    numbers = " ".join(str((number * 31 + i * 17) % 90) for i in range(6))
    asked = f"Sort from low to high: {numbers}"
    body = {"model": model, "max_tokens": args.tokens, "temperature": 1, "seed": number, "ignore_eos": True, "stream": True,
            "return_token_ids": True}
    if model in chats:
        server.post("/v1/chat/completions", body | {"messages": [{"role": "user", "content": asked}]}, read)
    else:
        server.post("/v1/completions", body | {"prompt": asked}, read)
    return lines


def parsed(lines, times):
    text, tokens = "", []
    for at, line in lines:
        part = (json.loads(line[6:]).get("choices") or [{}])[0]
        text += (part.get("delta") or {}).get("content") or part.get("text") or ""
        tokens += part.get("token_ids") or []
        if part.get("token_ids"):
            times.append(at)
    return text, tuple(tokens)


def streams(server, model):
    """Texts of all streams at once, and the gaps as (when the later part came, ms)."""
    lines, times, begun = [None] * args.n, [[] for _ in range(args.n)], [0] * args.n
    gc.collect()
    threads = [threading.Thread(target=lambda i=i: lines.__setitem__(i, stream(server, model, i, begun))) for i in range(args.n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    texts = [parsed(lines[i], times[i]) for i in range(args.n)]
    all_begun = max(row[min(BEGUN, len(row) - 1)] for row in times)
    return texts, [(b, (b - a) * 1e3) for row in times for a, b in zip(row, row[1:]) if a >= all_begun]


def steps_of(trace):
    """The server's steps: number -> what it did, and when its results were there, us of the engine's clock."""
    steps = {}
    for event in trace["traceEvents"]:
        if event["ph"] != "X" or "step" not in event.get("args", {}):
            continue
        step = steps.setdefault(event["args"]["step"], {})
        if event["name"] in ("plan", "enqueue", "apply"):
            step[event["name"]] = (event["ts"], event["ts"] + event["dur"])
        else:
            step |= {"kind": event["name"], "end": event["ts"] + event["dur"], "rows": event["args"]["decode"] + event["args"]["prefill"],
                     "device_us": event["args"]["measured_us"], "resizing_us": event["args"]["resizing_us"]}
    return steps


def longest_step(steps, from_us, to_us):
    """Of the steps that ended then, the one that ended latest after the one before, and where its time went."""
    found = None
    for number, step in steps.items():
        before = steps.get(number - 1)
        if before is None or not from_us <= step["end"] <= to_us or (found and step["end"] - before["end"] <= found["after_the_one_before_us"]):
            continue
        found = {"step": number, "kind": step["kind"], "rows": step["rows"], "after_the_one_before_us": step["end"] - before["end"],
                 "planned_us": step["plan"][1] - step["plan"][0], "enqueued_us": step["enqueue"][1] - step["enqueue"][0],
                 "enqueued_to_there_us": step["end"] - step["enqueue"][1], "device_us": step["device_us"], "resizing_us": step["resizing_us"],
                 "applied_the_one_before_us": before["apply"][1] - before["apply"][0]}
    return found


def watch(server):
    """Asks for the steps of a long gap as soon as there is one, and reads them when all is over."""
    while not all_over:
        look_now.wait()
        time.sleep(0.01)
        look_now.clear()
        gaps, long_gaps[:] = list(long_gaps), []
        here = beside[0]
        if not gaps or sum(what == here for what, *_ in asked) == 8:
            continue
        asked.append((here, gaps, server.get("/admin/trace"), time.monotonic()))


def explained(here, gaps, text, now):
    """A long gap, and the server's longest step then. The newest step is about now."""
    try:
        steps = steps_of(json.loads(text))
        end_us = max(step["end"] for step in steps.values()) - (now - max(gaps, key=lambda gap: gap[1])[0]) * 1e6
    except (KeyError, ValueError):
        steps, end_us = {}, 0.0  # the server had ended
    at, ms = max(gaps, key=lambda gap: gap[1])
    return {"while": here, "at_s": round(at - started, 3), "ms": round(ms, 3), "gaps": len(gaps), "step": longest_step(steps, end_us - ms * 1e3 - 3e3, end_us + 3e3)}


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
    beside[0] = what
    server.post(f"/v1/models/{what}", {"model": names[1]})
    spans.setdefault(what, []).append((began, time.monotonic()))
    beside[0] = "between"


def read_file(path):
    """A program that reads the file again and again around the page cache, as a load does."""
    return subprocess.Popen(["sh", "-c", 'while :; do dd if="$0" of=/dev/null bs=2M iflag=direct status=none || exit; done', path], start_new_session=True)


gc.disable()
sys.setswitchinterval(0.0002)
long_gaps, look_now, asked, all_over, beside = [], threading.Event(), [], False, ["quiet"]
folder_options = {"--models-mib", "--load-tenants", "--sleep-mib", "--keep-alive-seconds"}  # which a server without a folder does not take
rest, more = more, [o for o, before in zip(more, [""] + more) if o not in folder_options and before not in folder_options]
both = Server(*[o for f in files for o in ("-m", os.path.join(args.folder, f))])
chats = {name for name in names if both.has_chat(name)}
wanted = streams(both, names[0])[0]
other = parsed(stream(both, names[1], 0), [])
both.end()
more = rest
server = Server("--models-dir", args.folder)
server.post("/v1/models/load", {"model": names[0]})
streams(server, names[0])  # what comes first is slow: kernels, graphs
long_gaps.clear()
look_now.clear()
threading.Thread(target=watch, args=(server,), daemon=True).start()
n_wrong, n_answers, spans, loud, going = 0, 0, {}, [], True


def rounds(n, what):
    """Gaps of streams beside nothing but what is told."""
    global n_wrong, n_answers
    gaps = []
    beside[0] = what
    for _ in range(n):
        texts, more_gaps = streams(server, names[0])
        gaps += more_gaps
        n_wrong += sum(a != b for a, b in zip(texts, wanted))
        n_answers += args.n
    tell(f"the {what} streams have ended")
    return gaps


quiet = rounds(args.quiet, "quiet")
reader = read_file(os.path.join(args.folder, files[1])) if args.reads else None
read = rounds(args.reads, "reads")
if reader:
    os.killpg(reader.pid, signal.SIGKILL)
    reader.wait()


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
n_wrong += parsed(stream(server, names[1], 0), []) != other
all_over = True
tell("the other model has answered")
kept = [line for line in server.get("/metrics").splitlines() if line.startswith(("weft_model_need", "weft_model_loads", "weft_room", "weft_models"))]
code = server.end()
tell("the server has ended")


every = [s for rows in spans.values() for s in rows]
beside = set(within(loud, every))
print(json.dumps({
    "streams": args.n, "answers": n_answers + 1, "wrong": n_wrong, "exit": code,
    "tokens": {"all": sum(len(t[1]) for t in wanted), "kinds": len({k for t in wanted for k in t[1]})},
    "seconds": {what: [round(b - a, 3) for a, b in rows] for what, rows in spans.items()},
    "gaps_quiet": told(quiet),
    "gaps_beside_reads": told(read),
    "gaps_while_it_comes": told(within(loud, spans.get("load", []) + spans.get("wake", []))),
    "gaps_while_it_leaves": told(within(loud, spans.get("unload", []) + spans.get("sleep", []))),
    "gaps_by_kind": {what: told(within(loud, rows)) for what, rows in spans.items()},
    "gaps_between": told([g for g in loud if g not in beside]),
    "long_gaps": [explained(*one) for one in asked],
    "metrics": kept}))
sys.exit(1 if n_wrong or code else 0)
