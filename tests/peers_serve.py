#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""bench/peers/serve.py: tests/peers_serve.py WEFT. weft beside a made-up server that knows nothing of weft's own fields, one
that does not start, one that refuses, and one that ends under load.

Law: nothing is judged by time."""
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Refuses what only weft understands; with `refuse` everything, with `end` it ends at the third completion.
OTHER = '''
import http.server, json, os, sys
asked = 0
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self):
        body = json.dumps({"data": [{"id": "other"}]}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def do_POST(self):
        global asked
        asked += 1
        fields = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "mode" in fields or "diffusion" in fields or sys.argv[2] == "refuse" and asked > 1:
            self.send_response(400); self.end_headers(); self.wfile.write(b'{"error":{"message":"no such field"}}'); return
        if sys.argv[2] == "end" and asked == 3:
            os._exit(7)
        self.send_response(200); self.end_headers()
        for _ in range(fields["max_tokens"]):
            self.wfile.write(b'data: {"choices":[{"text":"a"}]}\\n\\n')
        usage = {"prompt_tokens": len(fields["prompt"]), "completion_tokens": fields["max_tokens"]}
        self.wfile.write(b'data: {"choices":[],"usage":%s}\\n\\ndata: [DONE]\\n\\n' % json.dumps(usage).encode())
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
'''


def run(folder, *words):
    command = [sys.executable, os.path.join(ROOT, "bench/peers/serve.py"), "--quick", "-o", folder, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    path = os.path.join(folder, "serve.jsonl")
    records = [json.loads(line) for line in open(path)] if os.path.exists(path) else []
    return done, records


def of(records, engine):
    return [r["name"] for r in records if r["engine"] == engine and "failed_because" not in r]


def test_turns(folder, weft, other):
    done, records = run(folder, "--rounds", "2", "--engine", f"weft={weft}", "--engine", f"other={other} serve", "--loads", "weft=writing,canvases,mix,users",
                        "--loads", "other=writing,canvases")
    assert done.returncode == 0, (done.stdout, done.stderr)
    writing = ["start", "32 clients, token by token", "128 clients, token by token", "512 clients, token by token"]
    users = ["96 clients, prompts of 64 to 2048, answers of 32 to 256", "128 clients of 64 tenants, each with 1024 tokens in common"]
    canvases = [f"{n} clients by diffusion" for n in (8, 32, 128)]
    assert of(records, "other") == 2 * (writing + canvases), records
    assert of(records, "weft") == 2 * (writing + canvases + ["64 clients token by token, 16 by diffusion"] + users), records
    assert [r["engine"] for r in records if r["name"] == "start"] == ["weft", "other", "weft", "other"], records
    for record in records:
        if record["name"] != "start":
            least, most = (record[name] * record["done"] for name in ("answer_least", "answer"))
            assert record["failed"] == {} and (least or most) <= record["answer_tokens"] <= most and most > 0, record
    assert "goodput" in done.stdout and len(done.stdout.splitlines()) >= len(records), done.stdout


def test_faults(folder, weft, other):
    done, records = run(folder, "--engine", "gone=false {port}", "--engine", f"refuses={other} refuse", "--engine", f"ends={other} end", "--engine",
                        f"weft={weft}")
    assert done.returncode == 1, (done.stdout, done.stderr)
    said = {engine: " ".join(r["failed_because"] for r in records if r["engine"] == engine and "failed_because" in r)
            for engine in ("gone", "refuses", "ends", "weft")}
    assert "ended with code 1 before it served" in said["gone"], said
    assert "no such field" in said["refuses"], said
    assert "ended with code 7 under load" in said["ends"], said
    assert said["weft"] == "" and len(of(records, "weft")) == 4, records


def test_bad_options(folder):
    for words, complaint in ((["--engine", "a=false"], "{port}"), (["--engine", "false {port}"], "NAME="),
                             (["--engine", "a=false {port}", "--loads", "b=writing"], "no such engine"),
                             (["--engine", "a=false {port}", "--loads", "a=reading"], "loads are writing")):
        done, records = run(folder, *words)
        assert done.returncode != 0 and complaint in done.stderr and not records, (words, done.stderr)


def main():
    weft = f"{os.path.abspath(sys.argv[1])} serve -m {ROOT}/model/demo/weft-demo.gguf --kv-mib 64 --port {{port}}"
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "other.py"), "w") as f:
            f.write(OTHER)
        other = f"{sys.executable} {folder}/other.py {{port}}"
        test_bad_options(os.path.join(folder, "bad"))
        test_turns(os.path.join(folder, "turns"), weft, other)
        test_faults(os.path.join(folder, "faults"), weft, other)
    print("peers_serve: servers took turns, and each fault was told")


if __name__ == "__main__":
    main()
