# SPDX-License-Identifier: MIT
"""Two indexes made of the same cache events, Dynamo's and one of some lines, which is the meaning of the events; and a proxy that asks
Dynamo where a prompt goes.

Law: the own index has, for each replica, the media in which each block is, as told; the overlap of a prompt is how many of its tokens
lie in whole blocks from its start that are told in any medium (or in the pool alone). Dynamo's services listen on all addresses and ask
for no key: stay_alone() puts the program in a network namespace of its own before anything is started."""
import http.server
import json
import os
import socket
import struct
import sys
import threading
import time

import msgpack
import zmq

from client import ask
from processes import Child, free_ports, wait_for

MODEL = "weft"  # the one name under which Dynamo knows the model


def stay_alone():
    """Begins the program again in a network namespace whose only device is the loopback."""
    if os.environ.get("DEV_FLEET_ALONE") != "1":
        os.environ["DEV_FLEET_ALONE"] = "1"
        os.execvp("unshare", ["unshare", "-rn", sys.executable, *sys.argv])
    import fcntl
    IFF_UP, SIOCSIFFLAGS = 1, 0x8914
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


class Index:
    """What the events of one replica say."""

    def __init__(self, events):
        self.media = {}    # name -> the media it is in
        self.child = {}    # (name before or None, tokens) -> name
        self.key = {}      # name -> its key in child
        self.number, self.n_stored, self.n_removed, self.n_cleared, self.n_gaps = None, 0, 0, 0, 0
        self.lock, self.endpoint, self.stop = threading.Lock(), events, False
        self.context = zmq.Context()
        self.thread = threading.Thread(target=self.follow, daemon=True)
        self.thread.start()

    def follow(self):
        s = self.context.socket(zmq.SUB)
        s.setsockopt(zmq.SUBSCRIBE, b"")
        s.setsockopt(zmq.LINGER, 0)
        s.connect(self.endpoint)
        while not self.stop:
            if s.poll(50):
                _, number, payload = s.recv_multipart()
                with self.lock:
                    self.take(int.from_bytes(number, "big"), payload)
        s.close()

    def take(self, number, payload):
        self.n_gaps += self.number is not None and number != self.number + 1
        self.number = number
        for e in msgpack.unpackb(payload)[1]:
            if e["type"] == "AllBlocksCleared":
                self.media, self.child, self.key = {}, {}, {}
                self.n_cleared += 1
            elif e["type"] == "BlockStored":
                self.store(e)
            else:
                for name in e["block_hashes"]:
                    self.remove(name, e["medium"])

    def store(self, e):
        before, size = e["parent_block_hash"], e["block_size"]
        assert before is None or before in self.media, "a block is stored before its parent"
        for i, name in enumerate(e["block_hashes"]):
            self.media.setdefault(name, set()).add(e["medium"])
            key = (before, tuple(e["token_ids"][i * size:(i + 1) * size]))
            self.child[key], self.key[name] = name, key
            before = name
            self.n_stored += 1

    def remove(self, name, medium):
        assert medium in self.media[name], "a block is removed that was not stored"
        self.media[name].remove(medium)
        self.n_removed += 1
        if not self.media[name]:
            del self.media[name]
            key = self.key.pop(name)
            if self.child.get(key) == name:
                del self.child[key]

    def overlap(self, tokens, size, pool=False):
        with self.lock:
            before, n = None, 0
            while n + size <= len(tokens):
                name = self.child.get((before, tuple(tokens[n:n + size])))
                if name is None or (pool and "GPU" not in self.media[name]):
                    break
                before, n = name, n + size
            return n

    def close(self):
        self.stop = True
        self.thread.join()
        self.context.term()


class Service(Child):
    """One of Dynamo's, with one worker for each replica, numbered from 1."""

    def __init__(self, module, words, replicas, folder):
        self.port, = free_ports(1)
        super().__init__([sys.executable, "-m", f"dynamo.{module}", "--port", str(self.port), *words], os.path.join(folder, f"{module}.log"))
        self.replicas = replicas

    def post(self, path, body, method=None):
        answer = ask(self.port, path, body, method)
        assert answer.status in (200, 201, 204), f"{path}: {answer.status} {answer.data[:300]}"
        return json.loads(answer.data) if answer.data else None


class Indexer(Service):
    def __init__(self, size, replicas, folder):
        super().__init__("indexer", ["--block-size", str(size), "--model-name", MODEL, "--threads", "1"], replicas, folder)
        self.size = size

    def start(self):
        super().start()
        wait_for("Dynamo's indexer", lambda: self.alive() and ask(self.port, "/health").status == 200)
        for i, r in enumerate(self.replicas):
            self.post("/register", {"instance_id": i + 1, "endpoint": f"tcp://127.0.0.1:{r.events}", "model_name": MODEL,
                                    "replay_endpoint": f"tcp://127.0.0.1:{r.replay}", "block_size": self.size})

    def overlap(self, tokens):
        """Of each replica, in tokens: in the pool, and in any medium. `scores` knows of the pool alone."""
        answer = self.post("/query", {"model_name": MODEL, "token_ids": tokens})
        pool, all_media = answer.get("scores", {}), answer.get("instances", {})
        names = [str(i + 1) for i in range(len(self.replicas))]
        return [(max([0, *pool.get(n, {}).values()]), all_media.get(n, {}).get("longest_matched", 0)) for n in names]


class Selector(Service):
    def __init__(self, size, replicas, folder):
        super().__init__("select_service", [], replicas, folder)
        self.size = size

    def start(self):
        super().start()
        wait_for("Dynamo's selection service", lambda: self.alive() and ask(self.port, "/ready").status in (200, 503))
        for i, r in enumerate(self.replicas):
            self.post("/workers", {"worker_id": i + 1, "model_name": MODEL, "block_size": self.size, "endpoint": r.url,
                                   "kv_events_endpoints": {"0": f"tcp://127.0.0.1:{r.events}"}, "replay_endpoint": f"tcp://127.0.0.1:{r.replay}",
                                   "max_num_batched_tokens": 512, "data_parallel_start_rank": 0, "data_parallel_size": 1})
        wait_for("workers that Dynamo selects", lambda: ask(self.port, "/ready").status == 200)


class Proxy:
    """Asks a replica for the tokens of each prompt, Dynamo for a replica, that replica for the answer. reserve: Dynamo is told what runs."""

    def __init__(self, selector, reserve):
        self.selector, self.replicas, self.reserve = selector, selector.replicas, reserve
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.answer(self, body)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def tokens(self, path, body):
        any_replica = self.replicas[hash(body) % len(self.replicas)]
        told = ask(any_replica.port, path + "/render", body).json()
        return (told[0] if isinstance(told, list) else told)["token_ids"]

    def answer(self, client, body):
        wanted = {"model_name": MODEL, "token_ids": self.tokens(client.path, body)}
        chosen = self.selector.post("/select_and_reserve" if self.reserve else "/select", wanted)
        try:
            headers = [(k, client.headers[k]) for k in ("Authorization", "X-Request-ID") if k in client.headers]
            answer = ask(self.replicas[chosen["worker_id"] - 1].port, client.path, body, headers=headers)
        finally:
            if self.reserve:
                self.selector.post(f"/reservations/{chosen['selection_id']}", None, "DELETE")
        client.send_response(answer.status)
        client.send_header("Content-Length", str(len(answer.data)))
        client.end_headers()
        client.wfile.write(answer.data)

    def end(self):
        self.server.shutdown()
        self.server.server_close()


def settled(read, seconds=10.0):
    """Both of what read() says, once they are equal, or have had the time to become it."""
    until = time.monotonic() + seconds
    while (said := read())[0] != said[1] and time.monotonic() < until:
        time.sleep(0.02)
    return said
