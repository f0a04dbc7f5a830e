# SPDX-License-Identifier: MIT
"""What is judged by its outcome alone: statuses of malformed requests, submissions of many answers, memory and processor time
that a request may cost, drain, signals and logs. Each check is a generator of (what, whether it is good, what was seen)."""
import asyncio
import os
import re
import signal
import socket
import ssl
import tempfile
import time

from attacks import MIB, stop_body, stops_of
from client import HOST, ask, ask_raw, head_of, request_of, speak_tls, speaks_tls
from formats import check_drain_bomb
from measure import ANSWER, PROMPT, completion, tokens
from server import KEYS, Server, make_certificate, metrics_of, wait_for
from strict import HOST_LINE, MALFORMED, send_malformed, status_lines


def talk(server, method, path, key=None, body=None, headers=()):
    return asyncio.run(ask(server.port, method, path, key, body, headers))


def together(server, requests):
    """Requests as words of `ask`, all at once."""
    async def run():
        return await asyncio.gather(*(ask(server.port, *r) for r in requests))
    return asyncio.run(run())


def text_of(answer):
    return f"{answer.code or answer.fault}" + (f" {answer.body[:120].decode('utf-8', 'replace')}" if answer.code >= 400 else "")


def serves(server, key="victim-key"):
    answer = talk(server, "POST", "/v1/completions", key, completion(tokens(7, PROMPT), ANSWER))
    return answer.code == 200 and answer.n_tokens == ANSWER, text_of(answer)


# ---- strictness -------------------------------------------------------------------------------------------------------

def check_strict(weft):
    """Malformed requests get the right status, one answer, and the end of their connection."""
    server = Server(weft)
    try:
        for (name, _, right), answer in zip(MALFORMED, send_malformed(server.port)):
            codes = status_lines(answer)
            open_ = answer.fault.startswith("no end")
            good = not open_ and len(codes) <= 1 and (codes[0] if codes else 0) in right
            yield name, good, (" ".join(map(str, codes)) or answer.fault) + (", not closed" if open_ else "")
        yield ("then served", *serves(server))
    finally:
        yield from stop_well(server)


def check_origin(weft):
    """Pages of other sites get nothing.

    A browser on the server's machine asks for them: by a name that was made to point here, or across sites."""
    server = Server(weft, keys=None)
    try:
        port = server.port
        for host, good_codes in (("attacker.example.com", None), (f"attacker.example.com:{port}", None), ("127.0.0.1.attacker.example.com", None),
                                 (HOST, 200), (f"{HOST}:{port}", 200), (f"localhost:{port}", 200)):
            for path in ("/admin/trace", "/health", "/metrics"):
                raw = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
                answer = asyncio.run(ask_raw(port, raw))
                good = answer.code == 200 if good_codes else answer.code in (400, 403, 421)
                yield f"Host {host.replace(str(port), 'PORT')} asks for {path}", good, str(answer.code or answer.fault)
        pin = {"tokens": tokens(1, 64), "public": True}
        host = asyncio.run(ask_raw(port, request_of("POST", "/admin/pins", None, pin).replace(b"Host: 127.0.0.1", b"Host: attacker.example.com")))
        yield "Host attacker.example.com makes a pin", host.code in (400, 403, 421), str(host.code)
        body = completion([700], 1)
        for site, good_codes in (("cross-site", (403,)), ("same-origin", (200,)), ("none", (200,))):
            answer = talk(server, "POST", "/v1/completions", None, body, (f"Sec-Fetch-Site: {site}",))
            yield f"Sec-Fetch-Site: {site}", answer.code in good_codes, str(answer.code)
    finally:
        yield from stop_well(server)


# ---- one request of many answers --------------------------------------------------------------------------------------


def check_choices(weft):
    """Requests of several answers get in as a whole or learn how many fit."""
    keys = KEYS + ("few-key few running=2 queued=3", "poor-key poor tokens-per-minute=1000")
    server = Server(weft, keys=keys)
    try:
        body = completion(tokens(1, 20), 4)
        codes = [talk(server, "POST", "/v1/completions", "few-key", {**body, "n": 4}).code for _ in range(30)]
        yield "n=4 where 2 may run and 3 may wait, 30 times on an idle server", codes.count(200) == 30, f"200 {codes.count(200)} times"
        answer = talk(server, "POST", "/v1/completions", "few-key", {**body, "n": 8})
        yield "n=8 there never fits: 400 and the largest number", answer.code == 400 and b"5" in answer.body, text_of(answer)
        answer = talk(server, "POST", "/v1/completions", "few-key", {**body, "prompt": [tokens(k, 20) for k in range(8)]})
        yield "eight prompts there, too", answer.code == 400, text_of(answer)
        answer = talk(server, "POST", "/v1/completions", "poor-key", {**body, "max_tokens": 100, "n": 20})
        yield "2,000 tokens at once of 1,000 a minute: 400", answer.code == 400, text_of(answer)
        answer = talk(server, "POST", "/v1/completions", "poor-key", {**body, "max_tokens": 100, "n": 5})
        yield "a refused request took no tokens", answer.code == 200, text_of(answer)
    finally:
        yield from stop_well(server)


# ---- what a request may cost ------------------------------------------------------------------------------------------


def check_memory(weft):
    """Bodies that become much more when they are parsed."""
    n = 8 * MIB - 100
    head = b'{"prompt":[700,701],"max_tokens":1,"nobody_reads_this":'
    bodies = {"8 MiB of [{},…]": head + b"[" + b",".join([b"{}"] * (n // 3)) + b"]}",
              "8 MiB of keys": head + b"{" + b",".join(b'"%d":0' % k for k in range(n // 11)) + b"}}",
              "8 MiB of numbers": head + b"[" + b",".join([b"1"] * (n // 2)) + b"]}",
              "8 MiB of depth": head + b"[" * (n // 2) + b"]" * (n // 2) + b"}",
              "8 MiB of messages": b'{"messages":[' + b",".join([b"{}"] * (n // 3)) + b"]}"}
    for name, body in bodies.items():
        server = Server(weft)
        try:
            serves(server)
            before = server.resident_mib
            server.forget_peak()
            answer = talk(server, "POST", "/v1/chat/completions" if "messages" in name else "/v1/completions", "attacker-key", body)
            grown = server.peak_mib - before
            yield f"{name}: at most 40 MiB", grown <= 40 and answer.code in (200, 400, 413), f"{grown:.0f} MiB, {answer.code or answer.fault}"
        finally:
            yield from stop_well(server)


REQUEST_MIB = 48  # what the server is told that requests may hold


def peak_of_queue(weft, more, options=()):
    """How far memory grows while 320 requests for the longest answer run and wait, and how many waited."""
    server = Server(weft, ("--kv-mib", "64", *options))
    try:
        serves(server)
        before = server.resident_mib
        server.forget_peak()

        async def run():
            tasks = [asyncio.create_task(ask(server.port, "POST", "/v1/completions", "attacker-key", {
                **completion(tokens(k, 8), 2000), **more})) for k in range(320)]
            waiting = most = 0
            while waiting < 200 and not all(t.done() for t in tasks):
                m = await ask(server.port, "GET", "/metrics", "operator-key")
                found = re.search(rb"^vllm:num_requests_waiting\S* (\d+)", m.body, re.M)
                waiting = int(found[1]) if found else 0
                most = max(most, waiting)
                await asyncio.sleep(0.2)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return most

        waiting = asyncio.run(run())
        return server.peak_mib - before, waiting
    finally:
        server.stop()


def check_logprobs(weft):
    """Requests that wait and ask for logprobs."""
    plain, _ = peak_of_queue(weft, {})
    grown, waiting = peak_of_queue(weft, {"logprobs": 0})
    yield (f"{waiting} waiting requests with logprobs=0: at most 48 MiB more than without", grown - plain <= 48,
           f"{grown:.0f} MiB, {plain:.0f} without")
    grown, waiting = peak_of_queue(weft, {"logprobs": 20}, ("--request-mib", str(REQUEST_MIB)))
    # Large events are on their way to the clients meanwhile: that is the connections' memory.
    yield (f"logprobs=20 with --request-mib {REQUEST_MIB}: at most that and 16 MiB more than without",
           grown - plain <= REQUEST_MIB + 16, f"{grown:.0f} MiB, {plain:.0f} without")


def cpu_of_stops(weft, crafted):
    """Processor time of the server for the same answers with 63 stop strings."""
    server = Server(weft, ("--threads", "1"))
    try:
        letter, n_bytes = asyncio.run(stops_of(server.port))
        body = [stop_body(letter, k, crafted, n_bytes) for k in range(2)]
        before = server.cpu_s
        codes = [a.code for a in together(server, [("POST", "/v1/completions", "attacker-key", b) for b in body])]
        return server.cpu_s - before, codes
    finally:
        server.stop()


def check_stops(weft):
    """Stop strings that almost match everywhere cost what others cost."""
    harmless, codes = cpu_of_stops(weft, False)
    crafted, more = cpu_of_stops(weft, True)
    yield ("63 crafted stop strings cost at most half as much again as 63 harmless ones", crafted <= 1.5 * harmless + 0.5 and
           set(codes + more) == {200}, f"{crafted:.1f} s of processor time, {harmless:.1f} s")


# ---- drain, signals, logs ---------------------------------------------------------------------------------------------


def stop_well(server):
    alive = server.alive
    code = server.stop()
    if not (alive and code == 0):
        yield "the server lived and ended well", False, f"alive: {alive}, exit code {code}"


def check_drain(weft):
    """A body that never ends does not delay the end.

    With --drain-seconds 600 a server that waited for it would run for minutes."""
    server = Server(weft, ("--drain-seconds", "600"))
    half = socket.create_connection((HOST, server.port))
    half.sendall(head_of("POST", "/v1/completions", "victim-key", 1000) + b'{"prompt":')
    head = socket.create_connection((HOST, server.port))
    head.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127")
    serves(server)
    began = time.monotonic()
    server.signal(signal.SIGTERM)
    code = server.wait(60)
    yield "drain beside a half body and a half head, none running", code == 0, f"exit code {code} after {time.monotonic() - began:.1f} s"
    half.close(), head.close()
    server.stop()


def check_drain_full(weft):
    """Full of long requests: the default drain ends within 30 s."""
    server = Server(weft)

    async def run():
        tasks = [asyncio.create_task(ask(server.port, "POST", "/v1/completions", "attacker-key", {
            "prompt": tokens(k, 40), "max_tokens": 1900, "ignore_eos": True, "mode": "diffusion", "stream": True})) for k in range(300)]
        while not all(t.done() for t in tasks):  # until they are all there, however long that takes
            m = metrics_of((await ask(server.port, "GET", "/metrics", "operator-key")).body.decode())
            if m["vllm:num_requests_running"] + m["vllm:num_requests_waiting"] + sum(t.done() for t in tasks) >= 300:
                break
            await asyncio.sleep(0.2)
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        answers = await asyncio.gather(*tasks)
        return began, answers

    began, answers = asyncio.run(run())
    code = server.wait()
    took = time.monotonic() - began
    silent = sum(1 for a in answers if a.fault)
    yield "drain of 300 long requests below 30 s, each told", code == 0 and took < 30 and silent == 0, \
        f"exit code {code} after {took:.1f} s; {silent} without an answer"
    server.stop()


def check_hangup(weft):
    """SIGHUP reads the keys again and opens the log again."""
    server = Server(weft, keys=KEYS + ("old-key victim",))
    try:
        server.write_keys(KEYS + ("new-key victim",))
        server.signal(signal.SIGHUP)
        good = wait_for(lambda: not server.alive or serves(server, "new-key")[0], 60)
        yield "a key that was added serves", server.alive and good, f"alive: {server.alive}"
        if not server.alive:
            return
        answer = talk(server, "POST", "/v1/completions", "old-key", completion([700], 1))
        yield "a key that was taken away does not", answer.code == 401, text_of(answer)
        server.write_keys(("what is this",) * 2)
        server.signal(signal.SIGHUP)
        time.sleep(1)
        yield ("a file of keys with a fault changes nothing", *serves(server, "new-key"))
    finally:
        yield from stop_well(server)


def check_tls(weft):
    """A server that speaks TLS: plain HTTP is told so, SIGHUP reads the certificate again."""
    before = speaks_tls()
    speak_tls(True)
    with tempfile.TemporaryDirectory(prefix="weft-attack-") as folder:
        server = Server(weft, make_certificate(folder))
        try:
            yield ("served over TLS", *serves(server))
            shown = ssl.get_server_certificate((HOST, server.port))
            with socket.create_connection((HOST, server.port)) as plain:
                plain.sendall(b"GET /health HTTP/1.1\r\n" + HOST_LINE + b"\r\n")
                answer = plain.recv(4096)
            yield "plain HTTP is told to ask with https", b" 400 " in answer and b"https://" in answer, answer[:12].decode("latin-1")
            lines = [x for x in server.log().splitlines() if "plain HTTP" in x]
            yield "and the log says so in one line", len(lines) == 1, str(lines)
            make_certificate(folder)
            server.signal(signal.SIGHUP)
            renewed = wait_for(lambda: ssl.get_server_certificate((HOST, server.port)) != shown, 60)
            yield "SIGHUP: a new certificate is shown", renewed, f"alive: {server.alive}"
            shown = ssl.get_server_certificate((HOST, server.port))
            with open(os.path.join(folder, "key.pem"), "w") as f:
                f.write("no key")
            server.signal(signal.SIGHUP)
            told = wait_for(lambda: "the old certificate stays" in server.log(), 60)
            same = ssl.get_server_certificate((HOST, server.port)) == shown
            yield "SIGHUP: a key with a fault changes nothing", told and same and serves(server)[0], f"told: {told}, same: {same}"
        finally:
            yield from stop_well(server)
            speak_tls(before)


def check_socket(weft):
    """A server on a unix socket, beside the file that one left behind which was killed."""
    with tempfile.TemporaryDirectory(prefix="weft-attack-") as folder:
        path = os.path.join(folder, "socket")

        def asks():
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(path)
                s.sendall(b"GET /health HTTP/1.1\r\n" + HOST_LINE + b"Connection: close\r\n\r\n")
                return s.recv(4096)

        before = speaks_tls()
        speak_tls(False)
        try:
            for turn in ("first", "after one that was killed"):
                server = Server(weft, ("--host", f"unix:{path}"))
                good, mode = asks().startswith(b"HTTP/1.1 200"), os.stat(path).st_mode & 0o777
                yield f"{turn}: serves, for owner and group alone", good and mode == 0o660, f"{good}, {mode:o}"
                if turn == "first":
                    server.process.kill()
                    server.wait()
                    yield "a killed server leaves the file", os.path.exists(path), ""
                server.stop()
            yield "one that ends removes it", not os.path.exists(path), ""
        finally:
            speak_tls(before)


def check_log_pipe(weft):
    """Standard error is a pipe that nobody reads."""
    reader, writer = os.pipe()
    server = Server(weft, verbose=True, log_to=writer)
    try:
        path = "/" + "x" * 2000
        answers = [a for _ in range(10) for a in together(server, [("GET", path, "victim-key") for _ in range(20)])]
        late = sum(1 for a in answers if a.code == 0)
        yield "200 requests whose log lines nobody reads are answered", late == 0, f"{late} were not"
        yield ("then served", *serves(server))
    finally:
        server.process.kill()
        server.stop()
        os.close(reader), os.close(writer)


def check_log_lines(weft):
    """Clients write what they like, and the log stays a log."""
    server = Server(weft, verbose=True)
    try:
        for path in (b"/a\x1b[31mred", b"/a\rb", b"/%1b%5b31m", b"/a\x7fb", b"/\xc2\x9b31m", b"/%0aweft:%20forged"):
            asyncio.run(ask_raw(server.port, b"GET " + path + b" HTTP/1.1\r\n" + HOST_LINE + b"Connection: close\r\nX-Request-Id: a\x1bb\r\n\r\n"))
            asyncio.run(ask_raw(server.port, b"GET " + path + b" HTTP/1.1\r\n" + HOST_LINE + b"Connection: close\r\n\r\n"))
        talk(server, "POST", "/v1/completions", "victim-key", {"model": "\x1b[31mno\nsuch", "prompt": "a"})
        good, _ = serves(server)
        log = server.log_bytes()
        odd = sorted({b for b in log if b < 32 and b not in b"\n" or b == 127} | ({0x9b} if b"\xc2\x9b" in log else set()))
        yield "log lines hold no control characters", good and not odd, f"{odd}"
        lines = [x for x in log.decode("utf-8", "replace").splitlines() if x]
        timed = [x for x in lines if re.search(r"\d\d:\d\d:\d\d", x)]
        yield "log lines carry the time", len(timed) >= len(lines) // 2, f"{len(timed)} of {len(lines)}: {(lines or [''])[-1][:100]}"
        forged = [x for x in lines if re.match(r"weft: forged", x)]
        yield "nobody writes a log line of his own", not forged, str(forged)
    finally:
        yield from stop_well(server)


# name -> (check, part of ./dev test)
CHECKS = {
    "strict": (check_strict, True),
    "origin": (check_origin, True),
    "n": (check_choices, True),
    "memory": (check_memory, True),
    "logprobs-memory": (check_logprobs, False),
    "stops-cpu": (check_stops, True),
    "drain": (check_drain, True),
    "drain-full": (check_drain_full, False),
    "drain-bomb": (check_drain_bomb, False),
    "hangup": (check_hangup, True),
    "tls": (check_tls, True),
    "socket": (check_socket, True),
    "log-pipe": (check_log_pipe, True),
    "log-lines": (check_log_lines, True),
}
