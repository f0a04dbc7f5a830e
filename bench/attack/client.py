# SPDX-License-Identifier: MIT
"""A small HTTP client over asyncio that can also break rules: one connection for each request, times taken here.

Law: `ask` never raises for what a server does; what went wrong is in `Answer.fault`, and it always ends within `limit_s`."""
import asyncio
import json
import re
import ssl
import time
from dataclasses import dataclass, field

HOST = "127.0.0.1"
LIMIT_S = 120.0
TEXT = re.compile(rb'"(?:text|content|delta)": ?"[^"]')  # in an event; one that only says that the stream has begun has none


@dataclass
class Answer:
    code: int = 0  # 0: no answer came
    head: str = ""
    body: bytes = b""
    fault: str = ""
    first_s: float = 0.0  # from before connecting until the first text (a stream) or the whole answer
    total_s: float = 0.0
    gaps_s: list = field(default_factory=list)  # between the reads that brought text
    began: float = 0.0  # time.monotonic(), the clock that the server uses, too

    def json(self):
        return json.loads(self.body)

    @property
    def n_tokens(self):
        """Tokens of the answer by its usage; -1: the answer has none."""
        at = self.body.rfind(b'"completion_tokens":')
        if at < 0:
            return -1
        digits = self.body[at + 20:at + 32].lstrip()
        return int(digits[:len(digits) - len(digits.lstrip(b"0123456789"))] or -1)


def head_of(method, path, key=None, n_body=None, headers=()):
    lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}", "Connection: close", *headers]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    if n_body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {n_body}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def request_of(method, path, key=None, body=None, headers=()):
    if isinstance(body, (dict, list)):
        body = json.dumps(body, separators=(",", ":")).encode()
    return head_of(method, path, key, None if body is None else len(body), headers) + (body or b"")


_context = None  # of TLS; None: plain HTTP


def speak_tls(on):
    """From now on, in this process and those it starts."""
    global _context
    _context = ssl.create_default_context() if on else None
    if on:  # who the server is does not matter here
        _context.check_hostname, _context.verify_mode = False, ssl.CERT_NONE


def speaks_tls():
    return _context is not None


async def connect(port):
    return await asyncio.open_connection(HOST, port, limit=1 << 20, ssl=_context)


async def connect_plain(port):
    return await asyncio.open_connection(HOST, port)


async def read_answer(reader, answer):
    last = None
    raw = bytearray()
    try:
        while chunk := await reader.read(65536):
            now = time.monotonic()
            raw += chunk
            if TEXT.search(chunk):
                if last is None:
                    answer.first_s = now - answer.began
                else:
                    answer.gaps_s.append(now - last)
                last = now
    finally:  # what came is there also when the limit of time passed
        head, _, answer.body = bytes(raw).partition(b"\r\n\r\n")
        answer.head = head.decode("latin-1")
        if head.startswith(b"HTTP/1."):
            answer.code = int(answer.head.split(" ", 2)[1])
    answer.total_s = time.monotonic() - answer.began
    if last is None:
        answer.first_s = answer.total_s
    if answer.code == 0:
        answer.fault = "closed without an answer"


async def send_and_read(port, bytes_, answer):
    reader, writer = await connect(port)
    try:
        try:
            writer.write(bytes_)
            await writer.drain()
        except (ConnectionError, OSError):
            pass  # a server that refuses may close before it has read everything; its answer may still be there
        await read_answer(reader, answer)
    finally:
        # In TLS a goodbye would wait for the server's; who leaves here leaves, as without.
        writer.transport.abort() if speaks_tls() else writer.close()


async def ask_raw(port, bytes_, limit_s=LIMIT_S):
    answer = Answer(began=time.monotonic())
    try:
        await asyncio.wait_for(send_and_read(port, bytes_, answer), limit_s)
    except asyncio.TimeoutError:
        answer.fault = f"no end within {limit_s:.0f} s"
    except (OSError, ValueError, IndexError) as e:
        answer.fault = type(e).__name__
    if answer.fault:
        answer.total_s = time.monotonic() - answer.began
        answer.first_s = answer.first_s or answer.total_s
    return answer


async def ask(port, method, path, key=None, body=None, headers=(), limit_s=LIMIT_S):
    return await ask_raw(port, request_of(method, path, key, body, headers), limit_s)
