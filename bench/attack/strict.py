# SPDX-License-Identifier: MIT
"""Requests that break the rules of HTTP/1.1, and the statuses that are right for them (RFC 9112)."""
import asyncio
import re

from client import ask_raw

BODY = b'{"prompt":[700],"max_tokens":1}'
START = b"POST /v1/completions HTTP/1.1\r\n"
HOST_LINE = b"Host: 127.0.0.1\r\n"
KEY = b"Authorization: Bearer victim-key\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
SMUGGLED = b"GET /version HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

# name, bytes, statuses that are right
MALFORMED = [
    ("Content-Length and Transfer-Encoding", START + HOST_LINE + KEY + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
    ("Transfer-Encoding and Content-Length", START + HOST_LINE + KEY + b"Transfer-Encoding: chunked\r\n" + LENGTH + b"\r\n0\r\n\r\n", {400}),
    ("two different Content-Lengths", START + HOST_LINE + KEY + LENGTH + b"Content-Length: 4\r\n\r\n" + BODY, {400}),
    ("Content-Length in a list", START + HOST_LINE + KEY + b"Content-Length: 31, 4\r\n\r\n" + BODY, {400}),
    ("Content-Length with a sign", START + HOST_LINE + KEY + b"Content-Length: +31\r\n\r\n" + BODY, {400}),
    ("Content-Length below zero", START + HOST_LINE + KEY + b"Content-Length: -1\r\n\r\n" + BODY, {400}),
    ("Content-Length that is no number", START + HOST_LINE + KEY + b"Content-Length: 0x1f\r\n\r\n" + BODY, {400}),
    ("Content-Length beyond 64 bits", START + HOST_LINE + KEY + b"Content-Length: 99999999999999999999999\r\n\r\n" + BODY, {400, 413}),
    ("a space before the colon", START + HOST_LINE + KEY + b"Content-Length : 31\r\n\r\n" + BODY, {400}),
    ("a space before the colon of another header", START + HOST_LINE + KEY + LENGTH + b"X-Any : 1\r\n\r\n" + BODY, {400}),
    ("bare LF after the request line", b"GET /version HTTP/1.1\n" + HOST_LINE + b"\r\n", {400}),
    ("bare LF after a header", b"GET /version HTTP/1.1\r\nHost: 127.0.0.1\nX-Any: 1\r\n\r\n", {400}),
    ("bare LF as the empty line", b"GET /version HTTP/1.1\r\nHost: 127.0.0.1\r\n\n", {400}),
    ("bare CR in a header", b"GET /version HTTP/1.1\r\n" + HOST_LINE + b"X-Any: 1\rX-More: 2\r\n\r\n", {400}),
    ("NUL in a header", b"GET /version HTTP/1.1\r\n" + HOST_LINE + b"X-Any: a\0b\r\n\r\n", {400}),
    ("NUL in the path", b"GET /version\0x HTTP/1.1\r\n" + HOST_LINE + b"\r\n", {400}),
    ("NUL in a header's name", b"GET /version HTTP/1.1\r\n" + HOST_LINE + b"X-\0Any: 1\r\n\r\n", {400}),
    ("two Host headers", b"GET /version HTTP/1.1\r\n" + HOST_LINE + HOST_LINE + b"\r\n", {400}),
    ("no Host in HTTP/1.1", b"GET /version HTTP/1.1\r\n\r\n", {400}),
    ("a header that is folded", b"GET /version HTTP/1.1\r\n" + HOST_LINE + b"X-Any: 1\r\n more\r\n\r\n", {400}),
    ("a header without colon", b"GET /version HTTP/1.1\r\n" + HOST_LINE + b"X-Any\r\n\r\n", {400}),
    ("a header without name", b"GET /version HTTP/1.1\r\n" + HOST_LINE + b": 1\r\n\r\n", {400}),
    ("a space before the first header", b"GET /version HTTP/1.1\r\n " + HOST_LINE + b"\r\n", {400}),
    ("an unknown Transfer-Encoding", START + HOST_LINE + KEY + b"Transfer-Encoding: gzip\r\n\r\n0\r\n\r\n", {400, 501}),
    ("chunked twice", START + HOST_LINE + KEY + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", {400, 501}),
    ("a chunk whose size is no number", START + HOST_LINE + KEY + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + BODY + b"\r\n0\r\n\r\n", {400}),
    ("a chunk whose size ends with bare LF", START + HOST_LINE + KEY + b"Transfer-Encoding: chunked\r\n\r\n1f\n" + BODY + b"\r\n0\r\n\r\n", {400}),
    ("a request line without version", b"GET /version\r\n\r\n", {0, 400, 505}),
    ("an unknown version", b"GET /version HTTP/3.7\r\n" + HOST_LINE + b"\r\n", {400, 505}),
    ("a method with a control character", b"G\x01T /version HTTP/1.1\r\n" + HOST_LINE + b"\r\n", {400, 405, 501}),
    ("a head of 100 kB", b"GET /version HTTP/1.1\r\n" + HOST_LINE + b"X-Any: " + b"a" * 100000 + b"\r\n\r\n", {400, 413, 431}),
    ("4,000 headers", b"GET /version HTTP/1.1\r\n" + HOST_LINE + b"".join(b"X-%d: 1\r\n" % k for k in range(4000)) + b"\r\n", {400, 413, 431}),
]


def status_lines(answer):
    """Final statuses that came over the connection: interim ones (100) do not count."""
    everything = answer.head.encode("latin-1") + b"\r\n\r\n" + answer.body
    return [int(c) for c in re.findall(rb"HTTP/1\.[01] (\d{3})", everything) if c[:1] != b"1"]


def send_malformed(port):
    """What follows such a request must not be answered, since nobody knows where the next one begins; and the server closes. That
    it does so at once is not judged: only that it does not leave it to the idle time of two minutes."""
    async def run():
        return await asyncio.gather(*(ask_raw(port, bytes_ + SMUGGLED, 60.0) for _, bytes_, _ in MALFORMED))
    return asyncio.run(run())
