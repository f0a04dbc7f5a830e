# SPDX-License-Identifier: MIT
"""One connection for each request: what is left early is cancelled by the server, so leaving a stream is enough to stop it."""
from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Union
from urllib.parse import urlsplit

LINE_BYTES = 64 << 20  # of one event: a canvas with all its positions is far below it


class Refused(Exception):
    """The server refused the request, or ended the answer. status: of HTTP; 0 where the answer had begun. code: its word for why."""

    def __init__(self, status: int, message: str, code: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.retry_after = status, code, retry_after


@dataclass(frozen=True)
class Canvas:
    """A canvas as it stands after a denoise step."""

    text: str
    accepted: int  # positions that the step accepted
    positions: int
    block: int  # which canvas of the answer
    step: int
    stopped: bool  # the last step of this canvas
    temperature: float
    mean_entropy: float
    # With tokens=True, for each position: the most likely token's text; the drawn one's where it is another; the noise that stands there for the
    # next step, None where the position was accepted; the entropy in nats.
    pieces: tuple[str, ...] = ()
    drawn: tuple[str | None, ...] = ()
    noise: tuple[str | None, ...] = ()
    entropy: tuple[float, ...] = ()

    @property
    def share(self) -> float:
        """Of positions accepted, from 0 to 1."""
        return self.accepted / self.positions if self.positions else 1.0


@dataclass(frozen=True)
class Part:
    """More of the answer: final text."""

    text: str
    thinking: bool = False


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    canvases: int = 0
    denoise_steps: int = 0


@dataclass(frozen=True)
class Answer:
    """The whole answer, as the last of what a stream gives."""

    text: str
    thinking: str
    finish: str  # stop, length, ...
    mode: str  # how it was written: diffusion or autoregressive
    model: str
    usage: Usage


@dataclass(frozen=True)
class Model:
    name: str
    canvas: int  # positions of a canvas; 0: it writes token by token only
    diffusion: bool
    autoregressive: bool
    context: int


Event = Union[Canvas, Part, Answer]


@dataclass
class _Sum:
    text: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    finish: str = ""
    mode: str = ""
    model: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)

    def answer(self) -> Answer:
        u = self.usage
        more = u.get("completion_tokens_details") or {}
        cached = (u.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        usage = Usage(u.get("prompt_tokens", 0), u.get("completion_tokens", 0), cached, more.get("canvases", 0), more.get("denoise_steps", 0))
        return Answer("".join(self.text), "".join(self.thinking), self.finish, self.mode, self.model, usage)


def _canvas(data: Mapping[str, Any]) -> Canvas:
    lists = {name: tuple(data[name]) for name in ("pieces", "drawn", "noise", "entropy") if name in data}
    return Canvas(data["text"], data["accepted"], data["positions"], data["block"], data["step"], data["stopped"], data["temperature"],
                  data["mean_entropy"], **lists)


def _refusal(status: int, body: bytes, retry: str | None) -> Refused:
    try:
        error = json.loads(body)["error"]
        message, code = str(error["message"]), error.get("code")
    except (ValueError, KeyError, TypeError):
        message, code = body[:200].decode(errors="replace").strip() or f"HTTP status {status}", None
    return Refused(status, message, code, float(retry) if retry and retry.isdigit() else None)


class Client:
    """url: http://HOST:PORT, https://HOST:PORT or unix:PATH. key: of --api-keys. tls: a context in place of the system's, for a certificate of one's own."""

    def __init__(self, url: str = "http://127.0.0.1:8080", key: str | None = None, *, tls: ssl.SSLContext | None = None) -> None:
        self._socket = url[5:] if url.startswith("unix:") else None
        parts = urlsplit("http://localhost" if self._socket else url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no http://HOST:PORT, https://HOST:PORT or unix:PATH")
        self._host, self._port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._tls = tls if tls else ssl.create_default_context() if parts.scheme == "https" else None
        self._name = parts.netloc
        if key is not None and not key.isprintable():
            raise ValueError("the key has characters that no header may have")
        self._key = key
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Leaves what is still streamed; the server cancels it."""
        for writer in list(self._open):
            await self._leave(writer)

    async def models(self) -> list[Model]:
        body = b"".join([line async for line in self._ask("GET", "/v1/models", None)])
        return [Model(m["id"], int(m.get("canvas") or 0), bool(m.get("diffusion")), bool(m.get("autoregressive")), int(m.get("max_model_len") or 0))
                for m in json.loads(body)["data"]]

    async def ask(self, prompt: str | Sequence[Mapping[str, Any]], *, progress: Callable[[Canvas], None] | None = None, **options: Any) -> Answer:
        """The whole answer. progress is called after every denoise step. options: as of stream."""
        async for event in self.stream(prompt, canvases=progress is not None, **options):
            if isinstance(event, Canvas) and progress is not None:
                progress(event)
            elif isinstance(event, Answer):
                return event
        raise Refused(0, "the server ended the answer before it was whole")

    async def stream(self, prompt: str | Sequence[Mapping[str, Any]], *, model: str | None = None, mode: str | None = None,
                     canvases: bool = True, tokens: bool = False, max_tokens: int | None = None, seed: int | None = None,
                     temperature: float | None = None, **more: Any) -> AsyncGenerator[Event, None]:
        """Canvases and parts of the answer as they come, at last the Answer. prompt: a question, or messages as OpenAI has them. tokens: canvases with
        what stands at each position. more: any other field of /v1/chat/completions."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        wanted = {"model": model, "mode": mode, "max_tokens": max_tokens, "seed": seed, "temperature": temperature}
        body = {"messages": messages, "stream": True, "stream_options": {"include_usage": True}, **more}
        body.update({name: value for name, value in wanted.items() if value is not None})
        if canvases or tokens:
            body["stream_canvas"] = "tokens" if tokens else True
        whole, name = _Sum(), ""
        lines = self._ask("POST", "/v1/chat/completions", body)
        try:
            async for line in lines:
                if line.startswith(b"event: "):
                    name = line[7:].decode().strip()
                if not line.startswith(b"data: "):
                    continue
                if line.strip() == b"data: [DONE]":
                    yield whole.answer()
                    return
                data = json.loads(line[6:])
                if "error" in data:
                    raise _refusal(0, line[6:], None)
                if name == "replace":
                    yield _canvas(data)
                else:
                    for part in _take(whole, data):
                        yield part
                name = ""
            raise Refused(0, "the server ended the answer before it was whole")
        finally:
            await lines.aclose()  # who leaves this loop hangs up

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> AsyncGenerator[bytes, None]:
        """The lines of the answer's body."""
        if self._socket is not None:
            reader, writer = await asyncio.open_unix_connection(self._socket, limit=LINE_BYTES)
        else:
            reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=LINE_BYTES)
        self._open.add(writer)
        try:
            data = b"" if body is None else json.dumps(body).encode()
            head = [f"{method} {self._path}{path} HTTP/1.1", f"Host: {self._name}", "Connection: close", f"Content-Length: {len(data)}"]
            if data:
                head.append("Content-Type: application/json")
            if self._key is not None:
                head.append(f"Authorization: Bearer {self._key}")
            writer.write("\r\n".join([*head, "", ""]).encode() + data)
            await writer.drain()
            status, headers = await _read_head(reader)
            lines = _read_lines(reader, headers)
            if status != 200:
                raise _refusal(status, b"".join([line async for line in lines]), headers.get("retry-after"))
            async for line in lines:
                yield line
        finally:
            await self._leave(writer)

    async def _leave(self, writer: asyncio.StreamWriter) -> None:
        self._open.discard(writer)
        writer.close()
        try:
            await writer.wait_closed()
        except OSError:  # the other side was faster
            pass


def _take(whole: _Sum, data: Mapping[str, Any]) -> list[Part]:
    """Adds a chunk to the sum; what is new of it."""
    parts = []
    whole.model = data.get("model") or whole.model
    whole.mode = data.get("mode") or whole.mode
    whole.usage = data.get("usage") or whole.usage
    for choice in data.get("choices", []):
        delta = choice.get("delta") or {}
        whole.finish = choice.get("finish_reason") or whole.finish
        if delta.get("reasoning_content"):
            whole.thinking.append(delta["reasoning_content"])
            parts.append(Part(delta["reasoning_content"], thinking=True))
        if delta.get("content"):
            whole.text.append(delta["content"])
            parts.append(Part(delta["content"]))
    return parts


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    line = await reader.readline()
    words = line.split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise Refused(0, "what answered speaks no HTTP" if line else "the server closed the connection without an answer")
    headers = {}
    while (line := await reader.readline()) not in (b"\r\n", b"\n", b""):
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(words[1]), headers


async def _read_lines(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The body in lines, each with its end. A body that was cut is a Refused: what it says may not be whole."""
    rest = b""
    async for piece in _read_pieces(reader, headers):
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > LINE_BYTES:
            raise Refused(0, "a line of the answer is too long")
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest


async def _read_pieces(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    try:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while (n := int((await reader.readuntil(b"\n")).split(b";")[0], 16)) > 0:
                yield (await reader.readexactly(n + 2))[:-2]
        elif "content-length" in headers:
            yield await reader.readexactly(int(headers["content-length"]))
        else:
            while piece := await reader.read(65536):
                yield piece
    except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
        raise Refused(0, "the connection broke off before the answer was whole") from error
