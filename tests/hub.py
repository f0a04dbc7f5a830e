#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tests/hub.py WEFT: models by name, from a hub of this test's own on loopback that does what hubs and networks do:
redirects, tokens, broken downloads, wrong sums, parts, refusals. Exit code 77 where the program was built without libcurl.
"""
import hashlib, http.server, json, os, pathlib, subprocess, sys, tempfile, threading

weft = sys.argv[1]
root = pathlib.Path(__file__).resolve().parent.parent
model = (root / "model/demo/weft-demo.gguf").read_bytes()
asked = []  # (path, range, authorization) of every request
faults = {}  # what goes wrong, by file name


def entry(path, body, sha=None):
    return {"type": "file", "path": path, "size": 134, "lfs": {"oid": sha or hashlib.sha256(body).hexdigest(), "size": len(body)}}


halves = {"s-Q8_0-00001-of-00002.gguf": model[:1000], "s-Q8_0-00002-of-00002.gguf": model[1000:2500]}
files = {"m-Q4_K_M.gguf": model, "m-Q8_0.gguf": model + b"8", "cut-Q2_K.gguf": model, "wrong-Q3_K_M.gguf": model,
         "long-Q5_0.gguf": model, "far-Q6_K.gguf": model, "near-IQ2_S.gguf": model, "loop-IQ3_S.gguf": model, **halves}
lists = {"o/m": ["m-Q4_K_M.gguf", "m-Q8_0.gguf"], "o/split": list(halves), "o/part": ["s-Q8_0-00001-of-00002.gguf"]}
for name in ("cut", "wrong", "long", "far", "near", "loop"):
    lists[f"o/{name}"] = [f for f in files if f.startswith(name)]


class Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def say(self, code, body, headers=()):
        self.send_response(code)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        asked.append((self.path, self.headers.get("Range"), self.headers.get("Authorization"), self.server.server_port))
        path = self.path.split("?")[0]
        if path.startswith("/api/models/"):
            name = path[len("/api/models/"):-len("/tree/main")]
            if name == "o/closed" and self.headers.get("Authorization") != "Bearer secret":
                return self.say(401, b"{}")
            if name == "o/closed":
                name = "o/m"
            if name == "o/html":
                return self.say(200, b"<html>hello</html>")
            if name not in lists:
                return self.say(404, b'{"error":"Repository not found"}')
            wrong = "0" * 64
            rows = [entry(f, files[f], wrong if f.startswith("wrong") else None) for f in lists[name]]
            return self.say(200, json.dumps(rows).encode())
        file = path.rsplit("/", 1)[1]
        body = files[file]
        if "/resolve/" in path and file.startswith("far"):
            return self.say(302, b"", [("Location", "http://192.0.2.1/" + file)])
        if "/resolve/" in path and file.startswith("loop"):
            return self.say(302, b"", [("Location", path)])
        if "/resolve/" in path and not file.startswith("near"):
            return self.say(302, b"moved", [("Location", f"http://127.0.0.1:{store.server_port}/blob/{file}")])
        at = int(self.headers.get("Range", "bytes=0-").split("=")[1].split("-")[0])
        if file.startswith("near"):  # a hub that knows no ranges
            at = 0
        rest = body[at:]
        if file.startswith("long"):
            rest += b"more"
        self.send_response(206 if at else 200)
        if at:
            self.send_header("Content-Range", f"bytes {at}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if faults.get(file, 0) > 0:  # the connection breaks in the middle
            faults[file] -= 1
            self.wfile.write(rest[: max(1, len(rest) // 3)])
            self.wfile.flush()
            self.connection.close()
            self.close_connection = True
            return
        try:
            self.wfile.write(rest)
        except OSError:
            pass  # the client has heard enough


def serve():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


hub, store = serve(), serve()
url = f"http://127.0.0.1:{hub.server_port}"
folder = tempfile.TemporaryDirectory()
cache = pathlib.Path(folder.name) / "cache"
passed = failed = 0


def run(*words, shell=None, **environment):
    own = {k: v for k, v in os.environ.items() if not k.startswith(("WEFT_", "HF_", "XDG_")) and "proxy" not in k.lower()}
    own.update(environment)
    command = [weft, *words] if shell is None else ["bash", "-c", shell, "bash", weft, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=own, stdin=subprocess.DEVNULL)


def pull(name, *words, **environment):
    return run("pull", name, "--hub", url, "--cache", str(cache), *words, **environment)


def expect(what, good, done=None):
    global passed, failed
    if good:
        passed += 1
    else:
        failed += 1
        print("failed:", what, "" if done is None else (done.returncode, done.stdout, done.stderr))


done = pull("o/m")
if "this build cannot fetch models" in done.stderr:
    print("left out: this build has no libcurl")
    sys.exit(77)
place = cache / "o/m/m-Q4_K_M.gguf"
expect("a model is fetched through a redirect", done.returncode == 0 and done.stdout.strip() == str(place) and place.read_bytes() == model, done)
expect("and nothing is left beside it", [p.name for p in place.parent.iterdir()] == [place.name])
n = len(asked)
done = pull("o/m")
expect("what is there is not fetched again", done.returncode == 0 and len(asked) == n + 1, done)
done = pull("o/m:q8_0")
expect("a quant by its name", done.returncode == 0 and done.stdout.strip().endswith("m-Q8_0.gguf"), done)
done = pull("o/m:Q2_K")
expect("a quant that is not there", done.returncode == 2 and "there is m-Q4_K_M.gguf, m-Q8_0.gguf" in done.stderr, done)

faults["cut-Q2_K.gguf"] = 3
n = len(asked)
done = pull("o/cut")
ranges = [r for _, r, _, port in asked[n:] if port == store.server_port]
expect("a broken download goes on where it ended", done.returncode == 0 and (cache / "o/cut/cut-Q2_K.gguf").read_bytes() == model, done)
expect("each time by a range", len(ranges) == 4 and ranges[0] is None and all(r and r.startswith("bytes=") for r in ranges[1:]), done)

(cache / "o/cut/cut-Q2_K.gguf").rename(cache / "o/cut/kept")
(cache / "o/cut/cut-Q2_K.gguf.part").write_bytes(model[:5000])
n = len(asked)
done = pull("o/cut")
expect("a later run goes on, too", done.returncode == 0 and asked[-1][1] == "bytes=5000-" and (cache / "o/cut/cut-Q2_K.gguf").read_bytes() == model, done)
(cache / "o/cut/cut-Q2_K.gguf").unlink()
(cache / "o/cut/cut-Q2_K.gguf.part").write_bytes(b"x" * 5000)
done = pull("o/cut")
expect("bytes of another file are found by the sum", done.returncode == 3 and "it is removed, try again" in done.stderr and not (cache / "o/cut/cut-Q2_K.gguf.part").exists(), done)
done = pull("o/cut")
expect("and then it works", done.returncode == 0, done)

done = pull("o/wrong")
expect("a wrong sum", done.returncode == 3 and "the sum of what came is" in done.stderr and list((cache / "o/wrong").iterdir()) == [], done)
done = pull("o/long")
expect("more bytes than were told", done.returncode == 3 and "more bytes came" in done.stderr and not (cache / "o/long/long-Q5_0.gguf").exists(), done)
done = pull("o/far")
expect("no redirect to plain HTTP elsewhere", done.returncode == 2 and "which is not https" in done.stderr, done)
done = pull("o/loop")
expect("no redirect without end", done.returncode == 3 and "leads on and on" in done.stderr, done)
done = pull("o/near")
expect("no redirect is needed", done.returncode == 0, done)
(cache / "o/near/near-IQ2_S.gguf").rename(cache / "o/near/near-IQ2_S.gguf.part")
os.truncate(cache / "o/near/near-IQ2_S.gguf.part", 777)
done = pull("o/near")
expect("a hub that knows no ranges", done.returncode == 0 and (cache / "o/near/near-IQ2_S.gguf").read_bytes() == model, done)
done = pull("o/none")
expect("no such model", done.returncode == 2 and "404" in done.stderr, done)
done = pull("o/html")
expect("no hub", done.returncode == 3 and "list of files is none" in done.stderr, done)

done = pull("o/split")
expect("all parts of a split file", done.returncode == 0 and done.stdout.strip().endswith("-00001-of-00002.gguf") and
       {p.name: p.read_bytes() for p in (cache / "o/split").iterdir()} == halves, done)
done = pull("o/part")
expect("a part that the hub lacks", done.returncode == 2 and "00002-of-00002.gguf, a part of the model" in done.stderr, done)

done = pull("o/closed")
expect("a model that wants a token", done.returncode == 2 and "--hub-token FILE or HF_TOKEN" in done.stderr, done)
token = pathlib.Path(folder.name) / "token"
token.write_text("secret\n")
n = len(asked)
done = pull("o/closed", "--hub-token", str(token))
expect("the token of a file", done.returncode == 0, done)
done = pull("o/closed:Q8_0", HF_TOKEN="secret")
expect("the token of the environment", done.returncode == 0, done)
expect("the token goes to the hub alone", all((a == "Bearer secret") == (port == hub.server_port) for _, _, a, port in asked[n:]), asked[n:])
token.write_text("")
done = pull("o/closed", "--hub-token", str(token))
expect("an empty token", done.returncode == 2 and "holds no token" in done.stderr, done)

small = pathlib.Path(folder.name) / "small"
done = run("pull", "o/m", "--hub", url, "--cache", str(small), shell="trap '' XFSZ; ulimit -f 64; exec \"$@\"")
expect("a full disk", done.returncode == 4 and "free some room" in done.stderr and not (small / "o/m/m-Q4_K_M.gguf").exists(), done)
done = run("pull", "o/m", "--hub", url, "--cache", str(small))
expect("and on when there is room", done.returncode == 0 and (small / "o/m/m-Q4_K_M.gguf").read_bytes() == model, done)
done = run("pull", "o/m", "--hub", url, "--cache", "/proc/none")
expect("a folder that cannot be", done.returncode == 3 and "/proc/none" in done.stderr, done)
done = run("pull", "o/m", "--hub", url, XDG_CACHE_HOME=folder.name)
expect("the cache of the user", done.returncode == 0 and done.stdout.strip() == f"{folder.name}/weft/models/o/m/m-Q4_K_M.gguf", done)

n = len(asked)
ask = ("generate", "--chat", "-p", "Sort from low to high: 41 7 23", "-q", "--temperature", "0", "--mode", "ar", "--cache", str(cache))
done = run(*ask, "-hf", "o/m", "--hub", url)
expect("-hf uses what is there", done.returncode == 0 and done.stdout.strip() == "7 23 41" and len(asked) == n, done)
done = run(*ask, "-hf", "o/m", "--hub", "http://127.0.0.1:9")
expect("without a hub, too", done.returncode == 0, done)
done = run(*ask, "-hf", "o/new", "--hub", "http://127.0.0.1:9")
expect("a hub that does not answer", done.returncode == 3 and "o/new" in done.stderr, done)

n = len(asked)
done = run("doctor", "--port", "0", "--cache", str(cache), "-hf", "o/m", "-hf", "o/unfetched", "--hub", url)
expect("weft doctor looks at what is there and fetches nothing", done.returncode == 0 and len(asked) == n and
       f"ok    model      {cache}/o/m/m-Q4_K_M.gguf: diffusion-gemma" in done.stdout and "weft pull o/unfetched fetches it" in done.stdout, done)

shown = pathlib.Path(folder.name) / "shown"
done = run(shell=f"command -v script >/dev/null || exit 99; script -qec '{weft} pull o/m --hub {url} --cache {shown}' /dev/null")
if done.returncode != 99:
    expect("on a terminal it is seen how far it is", done.returncode == 0 and "[" + 30 * "#" + "] 100 %" in done.stdout, done)

print(f"{passed} passed, {failed} failed")
sys.exit(1 if failed else 0)
