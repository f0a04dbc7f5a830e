#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""bench/load.py counts right: tests/load.py WEFT. Against a server of the demo model, and against servers that fail.

Law: nothing is judged by time; every request has an end that is counted once, and tokens are those that were asked for."""
import os
import random
import socket
import sys
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "bench"), os.path.join(ROOT, "bench", "attack")]
import load
from server import Server as Process

MODELS = b'{"data":[{"id":"fake","vocabulary":1000}]}'
EVENT = b'data: {"choices":[{"text":"a"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def run(server, **fields):
    record = load.run(server, load.Scenario(seconds=0.3, **fields))
    assert record["started"] == record["done"] + sum(record["failed"].values()) + record["unfinished"], record
    assert record["started"] >= record["clients"], record
    return record


def expect(record, **fields):
    for name, value in fields.items():
        assert record[name] == value, (name, value, record)


def test_tokens(server):
    for kind in dict(clients=3), dict(clients=2, canvases=2, steps=2), dict(clients=4, canvases=2, steps=2):
        record = run(server, name="tokens", prompt=33, answer=32, **kind)
        expect(record, failed={}, unfinished=0, prompt_tokens=33 * record["done"], answer_tokens=32 * record["done"])


def test_shared_prompt(server):
    expect(run(server, name="own", clients=2, prompt=200, shared=160, cached=False, answer=1), failed={}, cached_tokens=0)
    record = run(server, name="shared", clients=4, prompt=200, shared=160, answer=1)
    expect(record, failed={}, prompt_tokens=200 * record["done"])
    again = run(server, name="whole", clients=1, prompt=200, shared=200, answer=1)
    assert again["done"] == 1 or again["cached_tokens"] > 0, again


def test_mixed_lengths(server):
    record = run(server, name="mixed", clients=4, prompt=64, prompt_least=8, answer=32, answer_least=4)
    expect(record, failed={}, unfinished=0)
    assert 8 * record["done"] <= record["prompt_tokens"] < 64 * record["done"], record
    assert 4 * record["done"] <= record["answer_tokens"] < 32 * record["done"], record


def test_tenants(server):
    prompts = load.Prompts(load.Scenario(name="tenants", prompt=48, shared=40, tenants=3), server, 1)
    source = random.Random(1)
    begins = {prompts.make(source, client).rsplit(",", 8)[0] for client in range(9)}
    assert len(begins) == 3, begins
    expect(run(server, name="tenants", clients=4, prompt=48, shared=40, tenants=2, answer=1), failed={}, unfinished=0)


def test_format(server):
    record = run(server, name="format", clients=2, prompt=20, answer=24, format="integers")
    expect(record, failed={}, unfinished=0)
    assert 12 <= record["answer_tokens"] / record["done"] <= 24, record


def test_refused(server):
    record = run(server, name="refused", clients=3, prompt=20000, answer=1)
    expect(record, failed={"400": 3}, started=3, answer_tokens=0)
    assert "maximum context length" in record["refused"], record


def fake_server(reply):
    """A server whose streams are this reply; the list of models is a real one."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            connection, _ = listener.accept()
            with connection:
                asked = connection.recv(1 << 20)
                if asked.startswith(b"GET"):
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(MODELS) + MODELS)
                else:
                    connection.sendall(reply)

    threading.Thread(target=serve, daemon=True).start()
    return load.Server(f"http://127.0.0.1:{listener.getsockname()[1]}")


def test_servers_that_fail():
    busy = b'HTTP/1.1 503 Service Unavailable\r\n\r\n{"error":{"message":"busy"}}'
    for reply, fault in ((busy, "503"), (STREAM + EVENT + USAGE, "cut off"), (STREAM + EVENT + DONE, "no usage"), (b"nonsense", "no answer")):
        record = run(fake_server(reply), name="fault", clients=2, prompt=7)
        expect(record, done=0, failed={fault: record["started"]}, answer_tokens=0)
        assert "refused" not in record, record
    record = run(fake_server(STREAM + EVENT * 3 + USAGE + DONE), name="good", clients=2, prompt=7)
    expect(record, done=record["started"], answer_tokens=3 * record["done"], prompt_tokens=7 * record["done"])


def test_bursts():
    """Clients wait for the next burst: three begin in the time, where a closed loop would ask hundreds of times."""
    record = run(fake_server(STREAM + EVENT * 3 + USAGE + DONE), name="bursts", clients=3, prompt=7, burst_every=0.1)
    expect(record, done=record["started"], failed={}, unfinished=0)
    assert 3 <= record["started"] <= 3 * 3, record


def test_bad_scenarios():
    for line in '{"clients": 0}', '{"burst_every": -1}', '{"clients": 1, "canvases": 2}', '{"prompt": 3, "shared": 4}', '{"answer": 3, "answer_least": 4}', '{"format": "xml"}', '{"unknown": 1}', "[":
        try:
            list(load.scenarios_of([line]))
        except SystemExit as fault:
            assert "line 1" in str(fault), fault
        else:
            raise AssertionError(f"{line} was taken")


def main():
    test_bad_scenarios()
    test_servers_that_fail()
    test_bursts()
    process = Process(sys.argv[1], ["--kv-mib", "64"], keys=(), models=(os.path.join(ROOT, "model/demo/weft-demo.gguf"),))
    try:
        server = load.Server(f"http://127.0.0.1:{process.port}")
        for test in test_tokens, test_shared_prompt, test_mixed_lengths, test_tenants, test_format, test_refused:
            test(server)
    finally:
        process.stop()
    print("load: every request was counted, and every token")


if __name__ == "__main__":
    main()
