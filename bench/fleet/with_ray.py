# SPDX-License-Identifier: MIT
"""docs/examples/ray_serve under Ray Serve, on this machine alone: run by `./dev fleet ray` with the environment that has Ray.

Law: as in table.py, what is right is what a server without Ray says to the same body, or what the replicas counted; a check raises
AssertionError with what was wrong, or returns a few words. The replicas' processes are found by the sockets that they listen on."""
import argparse
import glob
import http.client
import json
import os
import re
import signal
import socket
import sys
import tempfile
import threading

from client import Asked, ask, is_beginning
from processes import Replica, free_ports, wait_for
from table import CHAT, COMPLETIONS, FIND, TRIES, first_difference

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXAMPLE = os.path.join(ROOT, "docs/examples/ray_serve")
DEMO = os.path.join(ROOT, "model/demo/weft-demo.gguf")
OPTIONS = ["--backend", "cpu", "-t", "1", "--kv-mib", "32", "--chat-template", os.path.join(ROOT, "tests/clients/tools.jinja")]
AT_ONCE, N_MOST = 4, 3
SCALE_S = 300.0  # Ray takes its time; nothing is judged by it


class Process:
    """The `weft serve` of a replica."""

    def __init__(self, path):
        self.path = path
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(path)
            SO_PEERCRED = 17
            self.pid = int.from_bytes(s.getsockopt(socket.SOL_SOCKET, SO_PEERCRED, 12)[:4], sys.byteorder)

    def get(self, path):
        connection = http.client.HTTPConnection("weft")
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.connect(self.path)
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def running(self):
        try:
            rows = re.findall(r"^vllm:num_requests_(?:running|waiting){.*} (\S+)$", self.get("/metrics"), re.M)
        except OSError:
            return 0
        return int(sum(map(float, rows)))

    def finished(self):
        rows = re.findall(r'^vllm:request_success_total{.*finished_reason="(?:stop|length)".*} (\S+)$', self.get("/metrics"), re.M)
        return int(sum(map(float, rows)))

    def there(self):
        return os.path.exists(f"/proc/{self.pid}")


def processes():
    found = []
    for path in glob.glob(os.path.join(tempfile.gettempdir(), "weft-replica-*/http")):
        try:
            found.append(Process(path))
        except OSError:
            continue
    return found


class Clients:
    """So many clients that ask without a break, until the block ends."""

    def __init__(self, checks, n):
        self.checks, self.over, self.lost, self.n = checks, threading.Event(), [], 0
        self.bodies = checks.long_bodies(8, 300)
        self.right = [checks.expected(*b) for b in self.bodies]
        self.threads = [threading.Thread(target=self.run, args=(i % 8,), daemon=True) for i in range(n)]

    def run(self, i):
        while not self.over.is_set():
            answer = ask(self.checks.port, *self.bodies[i])
            self.n += 1
            if not answer.whole or answer.text != self.right[i]:
                self.lost.append(first_difference(answer, self.right[i]))

    def wait_for_replicas(self, n):
        wait_for(f"{n} replicas", lambda: len(processes()) == n or self.lost, SCALE_S)

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for t in self.threads:
            t.join()


class Checks:
    def __init__(self, port, alone, handle):
        self.port, self.alone, self.handle, self.known = port, alone, handle, {}

    def expected(self, path, body):
        key = path + json.dumps(body, sort_keys=True)
        if key not in self.known:
            answer = ask(self.alone.port, path, body)
            assert answer.whole, f"without Ray: {answer.brief()}"
            self.known[key] = answer.text
        return self.known[key]

    def same(self, path, body):
        answer, right = ask(self.port, path, body), self.expected(path, body)
        assert answer.whole and answer.text == right, f"{path} {first_difference(answer, right)}"
        return answer

    def chat(self, words, **more):
        return dict(model="weft-demo", messages=[{"role": "user", "content": words}], max_tokens=48, seed=7, **more)

    def long_bodies(self, n, tokens):
        """Half of them token by token, half by diffusion."""
        more = dict(stream=True, ignore_eos=True)
        return [(COMPLETIONS, dict(model="weft-demo", prompt=f"Count up from {7 * i}:", max_tokens=tokens, temperature=0, mode="autoregressive",
                                   **more)) if i % 2 else (CHAT, self.chat(f"Write {1009 * i} backwards.", **more) | dict(max_tokens=tokens))
                for i in range(n)]

    def streams(self, n, tokens):
        """Streams that were asked for, and what is right for each."""
        bodies = self.long_bodies(n, tokens)
        right = [self.expected(*b) for b in bodies]
        return [Asked(self.port, *b) for b in bodies], right

    def lost(self, asked, right):
        for one in asked:
            one.join()
        return [first_difference(one.answer, text) for one, text in zip(asked, right) if not one.answer.whole or one.answer.text != text]

    # ---- cells ----

    def answers(self):
        for more in (dict(), dict(stream=True), dict(stream=True, mode="autoregressive"), dict(stream=True, n=2)):
            self.same(CHAT, self.chat("List all numbers from 34 to 49.", **more))
        body = dict(model="weft-demo", prompt="List all numbers from 34 to 49.", max_tokens=64, seed=3, mode="diffusion", stream=True,
                    stream_canvas=True)
        assert b"event: replace" in self.same(COMPLETIONS, body).data, "no canvas came"
        self.same(CHAT, self.chat("Find Tom, 43.", tools=[FIND], tool_choice="required", parallel_tool_calls=False, mode="autoregressive"))
        refused = ask(self.port, CHAT, self.chat("a", temperature=-1))
        assert refused.status == 400 and b"temperature" in refused.data, refused.brief()
        assert ask(self.port, "/metrics").status == 404, "the operator's paths are open"
        return "ok"

    def stats(self):
        told = self.handle.record_routing_stats.remote().result()
        assert told["running"] == 0 and told["waiting"] == 0 and "room_used" in told, told
        source = json.loads(processes()[0].get("/kv_event_sources"))["0"]
        assert told["kv_event_metadata"]["endpoint"] == source["endpoint"], told
        return "ok"

    def client_leaves(self):
        body = dict(model="weft-demo", prompt="Count up:", max_tokens=30000, temperature=0, mode="autoregressive", stream=True, ignore_eos=True)
        with socket.create_connection(("127.0.0.1", self.port)) as s:
            data = json.dumps(body).encode()
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            seen = b""
            while b"data:" not in seen:
                seen += s.recv(65536)
            assert sum(p.running() for p in processes()) == 1
        wait_for("a server that stopped", lambda: sum(p.running() for p in processes()) == 0)
        return "ok"

    def scale(self):
        """More come while much is asked, and go while little is: no stream is lost."""
        with Clients(self, 3 * AT_ONCE) as many:
            many.wait_for_replicas(N_MOST)
        with Clients(self, 1) as few:
            few.wait_for_replicas(1)
        lost = many.lost + few.lost
        assert not lost, lost[0]
        return f"ok, 1 to {N_MOST} to 1, {many.n + few.n} streams"

    def one_that_runs(self):
        """The server with the most streams, as soon as one has any."""
        def busiest():
            running, _, server = max(((p.running(), p.pid, p) for p in processes()), default=(0, 0, None))
            return server if running else None
        return wait_for("a replica with streams", busiest, SCALE_S)

    def drain(self):
        """A server that says at /health that it leaves is replaced, and answers what it has."""
        for body in self.long_bodies(4, 6000):
            self.expected(*body)
        asked, right = self.streams(4, 6000)
        for one in asked:
            one.begun.wait()
        victim = self.one_that_runs()
        ran = victim.running()
        assert ran, "all streams were over before the server was told to leave"
        os.kill(victim.pid, signal.SIGTERM)
        wait_for("another replica", lambda: any(p.pid != victim.pid for p in processes()), SCALE_S)
        late, late_right = self.streams(2, 100)
        lost = self.lost(asked + late, right + late_right)
        assert not lost, f"{len(lost)} of 6 streams: {lost[0]}"
        wait_for("a replica that left", lambda: not victim.there(), SCALE_S)
        return f"ok, {ran} streams ran on"

    def kill(self):
        """Only what runs on the killed server breaks, and what came of it was right."""
        for body in self.long_bodies(8, 3000):
            self.expected(*body)
        for _ in range(TRIES):
            broken, n = self.kill_one()
            wait_for("an answer", lambda: ask(self.port, "/v1/models").status == 200, SCALE_S)
            self.same(CHAT, self.chat("What is 58 + 37?"))
            if 0 < broken < n:
                return f"ok, {broken} of {n} broke, all its own"
        raise AssertionError(f"{TRIES} times all streams ran on one replica, or were over before it was killed")

    def kill_one(self):
        """How many streams broke, of how many."""
        with Clients(self, 3 * AT_ONCE) as many:
            many.wait_for_replicas(N_MOST)
            wait_for("streams on all replicas", lambda: all(p.running() for p in processes()), SCALE_S)
            asked, right = self.streams(8, 3000)
        before = {p.pid: p.finished() for p in processes()}
        for one in asked:
            one.begun.wait()
        victim = self.one_that_runs()
        os.kill(victim.pid, signal.SIGKILL)
        for one in asked:
            one.join()
        broken = [one for one in asked if not one.answer.whole]
        for one, text in zip(asked, right):
            good = (is_beginning(one.answer.text, text) if one.answer.stream else True) if one in broken else one.answer.text == text
            assert good, first_difference(one.answer, text)
        did = sum(p.finished() - before.get(p.pid, 0) for p in processes())
        assert len(asked) - len(broken) >= did, f"{did} streams ended on others, {len(broken)} of {len(asked)} broke"
        return len(broken), len(asked)


CELLS = ("answers", "stats", "client_leaves", "scale", "drain", "kill")


def serve_example(port, weft, options):
    os.environ["PYTHONPATH"] = EXAMPLE  # where replicas find the class
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    sys.path.insert(0, EXAMPLE)
    import ray
    from ray import serve
    import weft_serve
    from ray.serve.config import AutoscalingPolicy
    ray.init(num_cpus=8, _node_ip_address="127.0.0.1", include_dashboard=False, log_to_driver=False, configure_logging=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    weft_serve.AT_ONCE = AT_ONCE
    scaling = dict(min_replicas=1, max_replicas=N_MOST, upscale_delay_s=1, downscale_delay_s=2, metrics_interval_s=0.5, look_back_period_s=2,
                   policy=AutoscalingPolicy(policy_function=weft_serve.scale_by_queue))
    deployment = weft_serve.Weft.options(autoscaling_config=scaling)
    handle = serve.run(deployment.bind(DEMO, options, weft, events=True), name="weft", route_prefix="/")

    def end():
        serve.shutdown()
        ray.shutdown()
    return ray.__version__, handle, end


def main():
    parser = argparse.ArgumentParser(prog="bench/fleet ray", description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--weft", default=os.path.join(ROOT, "build/weft"))
    parser.add_argument("--cell", choices=CELLS, help="this one alone")
    o = parser.parse_args()
    port, = free_ports(1)
    row = {}
    with tempfile.TemporaryDirectory(prefix="weft-ray-") as folder:
        alone = Replica(os.path.abspath(o.weft), "alone", folder, ["-m", DEMO, *OPTIONS], events=False)
        alone.start()
        version, handle, end = serve_example(port, os.path.abspath(o.weft), OPTIONS)
        try:
            checks = Checks(port, alone, handle)
            for cell in CELLS if o.cell is None else (o.cell,):
                try:
                    row[cell] = getattr(checks, cell)()
                except AssertionError as error:
                    row[cell] = f"FAILED: {error}"
                print(f"Ray Serve {version} {cell}: {row[cell]}", file=sys.stderr, flush=True)
        finally:
            end()
            alone.end()
        try:
            wait_for("replicas that ended", lambda: not processes())
            row["end"] = "ok"
        except AssertionError as error:
            row["end"] = f"FAILED: {error}"
    print("| router | " + " | ".join(cell.replace("_", " ") for cell in row) + " |\n|" + "---|" * (len(row) + 1))
    print(f"| Ray Serve {version} | " + " | ".join(row.values()) + " |")
    return any(words.startswith("FAILED") for words in row.values())


if __name__ == "__main__":
    sys.exit(main())
