#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tests/python_client.py WEFT: the client of api/python against a server of the demo model, over a port and a unix socket, and against servers
that break off."""
import asyncio
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "api/python"))
import weft  # noqa: E402

DEMO = os.path.join(ROOT, "model/demo/weft-demo.gguf")
QUESTION, WANTED = "List all numbers from 34 to 49.", " ".join(map(str, range(34, 50)))
LIMIT = 1800  # the end of what hangs


def start(program, *words):
    server = subprocess.Popen([program, "serve", "-m", DEMO, "--config", "/dev/null", "--kv-mib", "16", "--json", "-q", *words], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True)
    return server, json.loads(server.stdout.readline())


async def refused(coroutine):
    try:
        await coroutine
    except weft.Refused as error:
        return error
    raise AssertionError("it was not refused")


async def talk(url):
    async with weft.Client(url, "sk-a") as client:
        (model,) = await client.models()
        assert model.name == "weft-demo" and model.canvas > 0 and model.diffusion and model.autoregressive, model
        seen = []
        answer = await client.ask(QUESTION, seed=7, temperature=0, progress=seen.append)
        assert answer.text == WANTED and answer.finish == "stop" and answer.mode == "diffusion" and answer.model == "weft-demo", answer
        assert answer.usage.canvases == 1 + seen[-1].block and answer.usage.denoise_steps == len(seen) > 1, (answer, seen)
        assert all(0 <= c.share <= 1 for c in seen) and seen[-1].stopped and seen[-1].share == 1, seen
        assert (await client.ask(QUESTION, seed=7, temperature=0)).text == answer.text
        plain = await client.ask([{"role": "user", "content": QUESTION}], mode="autoregressive", temperature=0)
        assert plain.mode == "autoregressive" and plain.usage.canvases == 0, plain
        parts, canvases = [], []
        async for event in client.stream(QUESTION, tokens=True, seed=7):
            if isinstance(event, weft.Canvas):
                canvases.append(event)
                assert len(event.pieces) == len(event.noise) == len(event.drawn) == len(event.entropy) == event.positions
                assert event.accepted == event.noise.count(None), event
            elif isinstance(event, weft.Part):
                parts.append(event.text)
        assert canvases and "".join(parts) == event.text
        bad = await refused(client.ask(QUESTION, temperature=-3))
        assert bad.status == 400 and "temperature" in str(bad), bad
        async for event in client.stream(QUESTION, max_tokens=2000, ignore_eos=True, mode="autoregressive"):
            if isinstance(event, weft.Part):
                break  # hangs up: the server has nothing to do soon
    async with weft.Client(url, "sk-wrong") as client:
        bad = await refused(client.models())
        assert bad.status == 401 and "sk-" not in str(bad), bad


async def meet_broken_servers():
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    event = b'data: {"choices":[{"delta":{"content":"34"}}]}\n\n'
    chunk = b"%x\r\n%s\r\n" % (len(event), event)
    cases = [(b"", "without an answer"), (b"SSH-2.0\r\n", "speaks no HTTP"), (head + chunk, "broke off"), (head + chunk + b"ff\r\nhalf", "broke off"),
             (head + chunk + b"zz\r\n", "broke off"), (head + chunk + b"0\r\n\r\n", "before it was whole"),
             (b"HTTP/1.1 503 Full\r\nRetry-After: 3\r\nContent-Length: 4\r\n\r\nbusy", "busy"),
             (b"HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\n" + b"data: {}", "broke off")]
    for answer, words in cases:
        async def serve(reader, writer, answer=answer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            writer.close()
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with weft.Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
            error = await refused(client.ask("x"))
        assert words in str(error), (answer, str(error))
        assert error.retry_after == (3 if b"503" in answer else None)
        server.close()
    for url in ("ftp://x", "http://", "x"):
        try:
            weft.Client(url)
        except ValueError:
            continue
        raise AssertionError(url)


async def idle(url):
    async with weft.Client(url, "sk-a") as client:
        while int(json.loads(b"".join([line async for line in client._ask("GET", "/load", None)]))["server_load"]) > 1:  # 1: this one
            await asyncio.sleep(0.01)


def main():
    program = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        for words in (["--port", "0"], ["--host", f"unix:{folder}/socket"]):
            server, where = start(program, "--api-key", "sk-a", *words)
            url = f"http://127.0.0.1:{where['port']}" if where["port"] else where["host"]
            try:
                asyncio.run(asyncio.wait_for(talk(url), LIMIT))
                asyncio.run(asyncio.wait_for(idle(url), LIMIT))
            finally:
                server.terminate()
                assert server.wait(LIMIT) == 0
    asyncio.run(asyncio.wait_for(meet_broken_servers(), LIMIT))
    print("python client: canvases, parts and answers over a port and a socket; servers that break off are refusals")


if __name__ == "__main__":
    main()
