# SPDX-License-Identifier: MIT
"""A small proxy that serves weft under a path, as an operator's would, and holds the events of an answer back until a test lets
them go: so what a page shows between two events is seen however fast or slow the machine is. It may also answer in the server's
place, with what no sound server says.

Law: Host and Origin pass as they came; a client that leaves takes its request with it."""
import http.client
import http.server
import json
import threading

PATH = "/behind/weft/"


class Gate:
    """Lets through as many events as it was told; open: all."""

    def __init__(self):
        self.changed, self.allowed, self.passed = threading.Condition(), None, 0

    def hold(self):
        with self.changed:
            self.allowed, self.passed = 0, 0

    def let(self, n):
        with self.changed:
            self.allowed += n
            self.changed.notify_all()

    def open(self):
        with self.changed:
            self.allowed = None
            self.changed.notify_all()

    def enter(self):
        with self.changed:
            self.changed.wait_for(lambda: self.allowed is None or self.passed < self.allowed, 60)
            self.passed += 1


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.forward()

    do_POST = do_GET

    def forward(self):
        self.close_connection = True
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))) or None
        if not self.path.startswith(PATH):
            self.send_error(404)
            return
        path = self.path[len(PATH) - 1:]
        try:
            if path in self.server.canned:
                self.tell(200, *self.server.canned[path])
            else:
                self.ask(path, body)
        except (OSError, http.client.HTTPException):
            pass  # one of the two has left

    def head(self, status, headers):
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "date"):
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()

    def tell(self, status, kind, parts):
        self.head(status, [("Content-Type", kind)])
        for part in parts:
            self.wfile.write(part)

    def ask(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            connection.request(self.command, path, body, {k: v for k, v in self.headers.items() if k.lower() != "connection"})
            answer = connection.getresponse()
            self.head(answer.status, answer.getheaders())
            gated = path == "/v1/chat/completions" and answer.status == 200
            for line in answer:
                if gated and line.startswith((b"event:", b"data: {\"id\"")) and not self.of_an_event:
                    self.server.gate.enter()
                self.of_an_event = line.startswith(b"event:")
                self.wfile.write(line)
        finally:
            connection.close()

    of_an_event = False  # the line before began the event that this one belongs to


class Proxy(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port):
        super().__init__(("127.0.0.1", 0), Handler)
        self.port, self.gate, self.canned = port, Gate(), {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}{PATH}"

    def can(self, path, kind, *parts):
        """From now on the answer to a path; no parts: the server's own again."""
        if parts:
            self.canned[path] = (kind, [p if isinstance(p, bytes) else p.encode() for p in parts])
        else:
            self.canned.pop(path, None)

    def can_answer(self, *events):
        """The answer to a chat: each event a body, or its name and its body."""
        lines = []
        for event in events:
            name, data = event if isinstance(event, tuple) else (None, event)
            lines.append((f"event: {name}\n" if name else "") + f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n")
        self.can("/v1/chat/completions", "text/event-stream", *lines)
