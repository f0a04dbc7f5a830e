# SPDX-License-Identifier: MIT
"""What clients send through a router, and what came back.

Law: an answer is its status and its bytes, with what differs from one request to the next (its id, its time, what was cached)
written as 0; a stream is whole when it ended with data: [DONE]. Comments, which a server sends while nothing comes, are left out. How
many tokens one event of a stream holds is chance, too: tokens that come while the client is written to share an event. So the pieces of
a choice are joined, each with the bytes around it, and choices that are written in turns are looked at one by one (said)."""
import http.client
import json
import re
import threading

VARIES = re.compile(rb'"id":"[^"]*"|"created":\d+|"cached_tokens":\d+')
ASK_S = 120.0  # the end of a request that hangs; nothing is judged by it


def without_chance(data):
    return VARIES.sub(lambda m: m[0].split(b":")[0] + b":0", data)


def piece_of(event):
    """An event of a stream as (choice, its bytes without the piece of text, the piece, logprobs of it)."""
    data = event.partition(b"data: ")[2]
    if not data or data == b"[DONE]":
        return -1, event, "", []
    chunk = json.loads(data)
    if not chunk.get("choices"):
        return chunk.get("index", -1), event, "", []
    choice = chunk["choices"][0]
    holder = choice.get("delta", choice)
    if calls := holder.get("tool_calls"):
        holder = calls[0]["function"]
    name = next((n for n in ("content", "text", "reasoning_content", "arguments") if holder.get(n)), None)
    if name is None:
        return choice["index"], event, "", []
    text, logprobs = holder[name], (choice.get("logprobs") or {}).get("content") or []
    holder[name] = ""
    if logprobs:
        choice["logprobs"]["content"] = []
    return choice["index"], json.dumps(chunk, separators=(",", ":"), ensure_ascii=False).encode(), text, logprobs


def said(data):
    """The whole events of a stream, by choice, with pieces that follow one another joined."""
    choices = {}
    for event in data.split(b"\n\n")[:-1]:
        if event.startswith(b":"):
            continue
        if event.startswith(b"data: {\"error\""):
            break  # a router says so that a stream broke: whole is False
        index, around, text, logprobs = piece_of(event)
        events = choices.setdefault(index, [])
        if text and events and events[-1][0] == around and events[-1][1]:
            events[-1][1] += text
            events[-1][2] += logprobs
        else:
            events.append([around, text, list(logprobs)])
    return {i: [(around, text, json.dumps(logprobs)) for around, text, logprobs in events] for i, events in choices.items()}


def is_beginning(part, whole):
    """Whether a stream that broke said nothing but the beginning of another."""
    for index, events in part.items():
        right = whole.get(index, [])
        if len(events) > len(right) or events[:-1] != right[:len(events) - 1]:
            return False
        (around, text, _), (right_around, right_text, _) = events[-1], right[len(events) - 1]
        if around != right_around or not right_text.startswith(text):
            return False
    return True


class Answer:
    def __init__(self):
        self.status, self.data, self.broken = 0, b"", ""

    @property
    def whole(self):
        return self.status == 200 and not self.broken and (not self.stream or
                                                           (self.data.rstrip().endswith(b"data: [DONE]") and b"data: {\"error\"" not in self.data))

    @property
    def stream(self):
        return self.data.startswith((b"data:", b"event:"))

    @property
    def text(self):
        """Of a stream that broke: what its whole events say."""
        return said(without_chance(self.data)) if self.stream else without_chance(self.data)

    def json(self):
        if self.status != 200 or self.broken:
            raise AssertionError(f"{self.status} {self.broken} {self.data[:300]!r}")
        return json.loads(self.data)

    def brief(self):
        """In a few words, for a report."""
        return f"status {self.status}, {len(self.data)} bytes{', ' + self.broken if self.broken else ''}"


def ask(port, path, body=None, method=None, headers=(), begun=None):
    """One request on a connection of its own. begun: called once the first bytes of the answer are there."""
    answer = Answer()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ASK_S)
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        connection.request(method or ("GET" if body is None else "POST"), path, data, {"Content-Type": "application/json", **dict(headers)})
        response = connection.getresponse()
        answer.status = response.status
        while piece := response.read1(65536):
            answer.data += piece
            if begun:
                begun()
    except (http.client.HTTPException, OSError) as error:
        answer.broken = f"{type(error).__name__}"
    finally:
        connection.close()
    return answer


def get(port, path):
    """The JSON of an answer, or None."""
    answer = ask(port, path)
    try:
        return json.loads(answer.data) if answer.status == 200 and not answer.broken else None
    except ValueError:
        return None


class Asked(threading.Thread):
    """A request in a thread of its own."""

    def __init__(self, port, path, body):
        super().__init__(daemon=True)
        self.begun, self.answer = threading.Event(), None
        self.words = (port, path, body)
        self.start()

    def run(self):
        self.answer = ask(*self.words, begun=self.begun.set)
        self.begun.set()
