# SPDX-License-Identifier: MIT
"""One client of a server: bodies out, answers in, whole or streamed, in each dialect.

Law: an answer that is not what the dialect's own clients read is an error: a code other than 200, a stream without its
end, a call whose arguments are no JSON object."""
import http.client
import json


class Refused(AssertionError):
    pass


class Talk:
    def __init__(self, port, model):
        self.port, self.model = port, model

    def ask(self, method, path, body=None, headers=()):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        text = body if body is None or isinstance(body, bytes) else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json", **dict(headers)})
        answer = connection.getresponse()
        data = answer.read().decode("utf-8")
        connection.close()
        if answer.status != 200:
            raise Refused(f"{method} {path}: {answer.status} {data[:600]}")
        return data

    def get(self, path, headers=()):
        return json.loads(self.ask("GET", path, headers=headers))

    def events(self, path, body, headers=()):
        """The data of a stream of server-sent events."""
        found = []
        for line in self.ask("POST", path, body, headers).split("\n"):
            if line.startswith("data: ") and line != "data: [DONE]":
                found.append(json.loads(line[6:]))
        assert found, "an empty stream"
        return found

    # ---- answers: (text, [(id, name, arguments)]) ----

    def chat(self, body, path="/v1/chat/completions"):
        body = {"model": self.model, **body}
        if not body.get("stream"):
            message = json.loads(self.ask("POST", path, body))["choices"][0]["message"]
            calls = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []]
            return checked(message["content"] or "", calls)
        text, calls, finish = "", [], None
        for event in self.events(path, body):
            assert "error" not in event, event
            for choice in event["choices"]:
                delta, finish = choice["delta"], choice["finish_reason"] or finish
                text += delta.get("content") or ""
                for call in delta.get("tool_calls") or []:
                    if call["index"] == len(calls):
                        calls.append([call["id"], call["function"]["name"], ""])
                    calls[call["index"]][2] += call["function"].get("arguments", "")
        assert finish in ("stop", "tool_calls", "length"), finish
        return checked(text, calls)

    def messages(self, body, headers=()):
        body = {"model": self.model, **body}
        headers = {"anthropic-version": "2023-06-01", **dict(headers)}
        if not body.get("stream"):
            content = json.loads(self.ask("POST", "/v1/messages?beta=true", body, headers))["content"]
        else:
            content, inputs, stopped = [], {}, False
            for event in self.events("/v1/messages?beta=true", body, headers):
                assert event["type"] != "error", event
                if event["type"] == "content_block_start":
                    content.append(dict(event["content_block"]))
                elif event["type"] == "content_block_delta":
                    delta = event["delta"]
                    if delta["type"] == "text_delta":
                        content[event["index"]]["text"] += delta["text"]
                    elif delta["type"] == "input_json_delta":
                        inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
                stopped = stopped or event["type"] == "message_stop"
            assert stopped
            for index, text in inputs.items():
                content[index]["input"] = json.loads(text)
        return content

    def response(self, body, headers=()):
        """The items of the output."""
        body = {"model": self.model, **body}
        if not body.get("stream"):
            return json.loads(self.ask("POST", "/v1/responses", body, headers))["output"]
        items, last = [], None
        for last in self.events("/v1/responses", body, headers):
            if last["type"] == "response.output_item.done":
                items.append(last["item"])
        assert last["type"] in ("response.completed", "response.incomplete"), last
        assert last["response"]["output"] == items
        return items

    def ollama(self, path, body):
        body = {"model": self.model, **body}
        text, calls, done = "", [], False
        for line in self.ask("POST", path, body).splitlines():
            part = json.loads(line)
            assert "error" not in part, part
            message = part.get("message") or {"content": part.get("response")}
            text += message["content"]
            calls += [(c["id"], c["function"]["name"], json.dumps(c["function"]["arguments"])) for c in message.get("tool_calls") or []]
            done = part["done"]
        assert done
        return checked(text, calls)


def checked(text, calls):
    for _, name, arguments in calls:
        assert name and isinstance(json.loads(arguments), dict), (name, arguments)
    return text, [tuple(c) for c in calls]
