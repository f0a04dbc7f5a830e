# SPDX-License-Identifier: MIT
"""The processes of a fleet: replicas, and a router before them, all on 127.0.0.1.

Law: a process here ends with this program, however this program ends; whoever waits for a state gives up after WAIT_S."""
import ctypes
import os
import random
import re
import signal
import socket
import subprocess
import time

from client import ask, get

given = set()  # ports, by free_ports
WAIT_S = 120.0  # a machine with other work may take long; nothing is judged by it


def end_with_parent(parent):
    """In a child process: the kernel ends it when its parent is gone."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def free_ports(n):
    """Ports that nobody listens on, each given once; below those that the kernel gives to connections, so that none takes one meanwhile."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as f:
        end = int(f.read().split()[0])
    found = []
    while len(found) < n:
        port = random.randrange(min(10000, end // 2), end)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in given:
            given.add(port)
            found.append(port)
    return found


class NeverCame(AssertionError):
    pass


def wait_for(what, state, seconds=WAIT_S):
    """Until state() is true; what: said if it never is."""
    until = time.monotonic() + seconds
    while not (found := state()):
        if time.monotonic() > until:
            raise NeverCame(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.02)
    return found


class Child:
    """A process whose output goes to a file."""

    def __init__(self, words, log, env=None):
        self.words, self.log, self.env, self.process = words, log, env, None

    def start(self):
        parent = os.getpid()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.env,
                                            start_new_session=True, preexec_fn=lambda: end_with_parent(parent))

    def alive(self):
        if self.process.poll() is not None:
            raise AssertionError(f"{self.words[0]} ended with {self.process.returncode}: {self.last_words()}")
        return True

    def last_words(self):
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return " / ".join(line.strip() for line in f.read().splitlines()[-3:])

    def read_log(self):
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return re.sub(r"\x1b\[[0-9;]*m", "", f.read())

    def signal(self, number):
        if self.process and self.process.poll() is None:
            self.process.send_signal(number)

    def end(self):
        """Asks it to end, and after a while does not ask."""
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(WAIT_S / 4)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.process.wait()


class Replica(Child):
    """A `weft serve`. It keeps its ports when it is started again."""

    def __init__(self, weft, number, folder, options, events=True):
        self.port, self.events, self.replay = free_ports(3)
        self.url = f"http://127.0.0.1:{self.port}"
        words = [weft, "serve", "--host", "127.0.0.1", "--port", str(self.port), "--public-metrics", "--log-level", "info",
                 "--lame-duck-seconds", "3600", *options]
        if events:
            words += ["--kv-events", str(self.events), "--kv-events-replay", str(self.replay), "--kv-events-tokens", "all"]
        super().__init__(words, os.path.join(folder, f"replica-{number}.log"))

    def start(self):
        super().start()
        wait_for("a replica that serves", lambda: self.alive() and ask(self.port, "/health").status == 200)

    def leave(self):
        """From here on it says that it leaves, and answers."""
        self.signal(signal.SIGTERM)
        wait_for("a replica that leaves", lambda: ask(self.port, "/health").status == 503)

    def drain(self):
        """The second signal: what runs ends, nothing else is taken."""
        self.leave()
        self.signal(signal.SIGTERM)

    def end(self):
        if self.process and self.process.poll() is None:
            self.drain()
            super().end()

    def count(self, name, **labels):
        """The sum of a metric's rows that have these labels."""
        rows = re.findall(rf"^{re.escape(name)}(?:\{{(.*)\}})? (\S+)$", ask(self.port, "/metrics").data.decode(), re.M)
        return sum(float(value) for words, value in rows if all(f'{k}="{v}"' in words for k, v in labels.items()))

    def finished(self):
        return int(sum(self.count("vllm:request_success_total", finished_reason=r) for r in ("stop", "length")))

    def running(self):
        return int(self.count("vllm:num_requests_running") + self.count("vllm:num_requests_waiting"))

    def computed(self):
        """Tokens of prompts that were not found in the cache."""
        return int(self.count("vllm:prompt_tokens_total") - self.count("vllm:prefix_cache_hits_total"))

    def found(self):
        return int(self.count("vllm:prefix_cache_hits_total"))

    def evicted(self):
        """Pages of cached content that were given up for new content."""
        return int(self.count("weft_pool_evicted_total"))

    def idle(self):
        wait_for("a replica without requests", lambda: self.running() == 0)


class Router(Child):
    """A router of others, as routers.py describes it."""

    def __init__(self, kind, home, replicas, folder, policy, options=()):
        self.kind = kind
        self.port, self.metrics_port = free_ports(2)
        words = [word.format(home=os.path.join(home, kind.name)) for word in kind.command]
        words += ["--worker-urls", *(r.url for r in replicas), "--host", "127.0.0.1", "--port", str(self.port), "--prometheus-host",
                  "127.0.0.1", "--prometheus-port", str(self.metrics_port), "--policy", policy, "--health-check-interval-secs", "1",
                  "--log-level", "debug", *kind.options, *options]
        env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        super().__init__(words, os.path.join(folder, f"{kind.name}-{policy}.log"), env)
        self.replicas = replicas

    def start(self):
        super().start()
        wait_for("a router that serves all replicas", lambda: self.alive() and self.healthy() == {r.url for r in self.replicas})

    def healthy(self):
        """The workers that the router says are well."""
        return {w["url"] for w in (get(self.port, "/workers") or {}).get("workers", []) if w["is_healthy"]}
