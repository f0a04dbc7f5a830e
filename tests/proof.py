#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tests/proof.py WEFT: `weft prove` on the demo models. Every verdict with its exit code and one line; faults inside fail in
every contract; the owner of weights with each thing left out in turn; reports of their schema; and nothing left behind,
however a proof ends."""
import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

WEFT = os.path.abspath(sys.argv[1])
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROOFS = os.path.join(ROOT, "tests", "proof")
failures = 0


def expect(good, what):
    global failures
    if not good:
        failures += 1
        print(f"failed: {what}", flush=True)


def processes(word):
    """Ids of the processes whose command line has the word, but for this one."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if word.encode() in f.read() and int(pid) != os.getpid():
                    found.append(int(pid))
        except OSError:
            pass
    return found


class Bench:
    """A folder of its own with the models in it, so that whatever a proof leaves behind is found by the folder's name."""

    def __init__(self, folder):
        self.folder = folder
        self.work = os.path.join(folder, "work")
        self.files = os.path.join(folder, "files")
        os.mkdir(self.work)
        os.mkdir(self.files)
        self.model = shutil.copy(os.path.join(ROOT, "model/demo/weft-demo.gguf"), folder)
        self.model_ar = shutil.copy(os.path.join(ROOT, "model/demo/weft-demo-ar.gguf"), folder)
        self.report = os.path.join(folder, "report.json")

    def write(self, name, value):
        path = os.path.join(self.files, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(value if isinstance(value, str) else json.dumps(value))
        return path

    def command(self, *words, model=None):
        return [WEFT, "prove", "-m", model or self.model, "--backend", "cpu", "--work", self.work, "-o", self.report, *words]

    def look_clean(self, what):
        until = time.monotonic() + 30
        while processes(self.work) + processes(self.model) and time.monotonic() < until:
            time.sleep(0.05)
        expect(not processes(self.work) and not processes(self.model), f"{what}: processes are left")
        expect(not os.listdir(self.work), f"{what}: files are left: {os.listdir(self.work)}")

    def run(self, code, words, *, line=None, model=None, what=None):
        """Runs a proof of one cell and returns the cell, or the whole report of a matrix."""
        what = what or " ".join(words)
        if os.path.exists(self.report):
            os.remove(self.report)
        ran = subprocess.run(self.command(*words, model=model), cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
        expect(ran.returncode == code, f"{what}: exit code {ran.returncode}, not {code}: {ran.stdout}{ran.stderr}")
        lines = [text for text in ran.stderr.splitlines() if text]
        expect(code == 0 or (len(lines) == 1 and lines[0].startswith("weft: ")), f"{what}: not one line: {lines}")
        expect(line is None or line in ran.stderr, f"{what}: no '{line}' in {ran.stderr!r}")
        self.look_clean(what)
        if not os.path.exists(self.report):
            return None
        with open(self.report, encoding="utf-8") as f:
            report = json.load(f)
        return report if "--matrix" in words else report["cells"][0]


def one(candidate, suite="greedy", contract="argmax_generation", *more):
    return ["--candidate", candidate, "--suite", suite, "--contract", contract, *more]


def check_smoke(bench):
    report = bench.run(0, ["--matrix", "smoke"])
    cells = report["cells"]
    expect(report["n_cells"] == len(cells) == report["n_as_expected"], "smoke: not every cell as expected")
    expect(any(entry["reused"] for entry in report["derived"]), "smoke: the baseline's answers were not used again")
    expect(report["starts"] < len(cells), "smoke: a server for every cell")
    timed = next(c for c in cells if c["suite"] == "greedy" and c["verdict"] == "proven")["timing"]["candidate"]
    rate = timed["tokens_per_second"]  # an answer that was read at once, on a busy machine, has none
    expect(timed["first_ms"]["runs"] == 8 and (rate is None or 1 <= rate["runs"] <= 8), f"smoke: times are missing: {timed}")
    owner = next(c for c in cells if c["candidate"] == "shared-weights-double")
    expect(owner["weight_server_validation"]["valid"] and owner["weight_server"]["clean_up"], f"smoke: {owner}")
    had = report["configurations"][owner["configuration"]]
    expect(had["models"] == ["from-the-weight-server"], "smoke: workers were not told what is exported")
    check_reports(bench, report)


def check_reports(bench, report):
    def judged(value):
        path = bench.write("report.json", value)
        return subprocess.run([WEFT, "prove", "--report-check", path], cwd=ROOT, capture_output=True, text=True, check=False)

    expect(judged(report).returncode == 0, "a good report is refused")
    for place in (["device"], ["cells", 0, "acceptance"], ["cells", 0, "timing", "candidate", "tokens_per_second"], ["baseline", "options"],
                  ["models", 0, "hash"], ["cells", 0, "weight_server_validation"]):
        broken = copy.deepcopy(report)
        at = broken
        for name in place[:-1]:
            at = at[name]
        del at[place[-1]]
        ran = judged(broken)
        expect(ran.returncode == 2 and f"'{place[-1]}' is missing" in ran.stderr, f"a report without {place}: {ran.stderr}")
    broken = copy.deepcopy(report)
    broken["cells"][0]["verdict"] = "perhaps"
    expect("/cells/0/verdict" in judged(broken).stderr, "a verdict that there is not is taken")
    broken = copy.deepcopy(report)
    broken["n_as_expected"] -= 1
    expect(judged(broken).returncode == 1, "a report with a cell that is not as expected passes")


def check_drift(bench):
    for model in bench.model, bench.model_ar:
        matrix = "drift" if model == bench.model else "drift-ar"
        report = bench.run(0, ["--matrix", matrix], model=model)
        for cell in report["cells"]:
            name = f"{matrix}: {cell['candidate']}, {cell['contract']}"
            expect(cell["verdict"] == cell["expected"], f"{name}: {cell['verdict']}")
            if cell["verdict"] != "differs":
                continue
            found = cell["first_difference"]
            expect(found is not None, f"{name}: no first difference")
            if found["what"] in ("token", "logits"):
                expect(isinstance(found["position"], int), f"{name}: no position")
                for whose in "baseline_row", "candidate_row":
                    row = found[whose]
                    expect(row is not None and len(row["top"]) == 8, f"{name}: no {whose}")
                    expect(isinstance(row["baseline_token"], float), f"{name}: {whose} has no number of the baseline's token")
            else:
                canvases = found["canvases"]
                expect(found["what"] == "canvas" and canvases["baseline"] != canvases["candidate"], f"{name}: {found}")
                ids = [canvases[whose]["token_ids"] for whose in ("baseline", "candidate")]
                place = next((i for i, pair in enumerate(zip(*ids)) if pair[0] != pair[1]), None)
                expect(len(ids[0]) == len(ids[1]) == 32 and found["position"] == place, f"{name}: position {found['position']}, not {place}")


def check_verdicts(bench):
    profile = bench.write
    bench.run(0, one("overlap-off"))
    cell = bench.run(1, one("kv-8bit", "canvas", "canvas_generation"), line="denoise step")
    expect(cell["verdict"] == "differs", "kv-8bit")
    bench.run(2, one("nobody"), line="tests/proof/profiles/nobody.json")
    bench.run(2, one(profile("a.json", {"description": "x", "option": {}})), line="a.json: /: the name 'option' is unknown")
    bench.run(2, one(profile("b.json", {"description": "x", "drift": {"weight": {"tensor": "t", "byte": 0, "bit": 8}}})),
              line="b.json: /drift/weight/bit: it must be at most 7")
    bench.run(2, one(profile("c.json", '{"description": "x",\n "options": {"rows": }}')), line="c.json:2:")
    bench.run(2, one(profile("d.json", {"description": "x", "options": {"no-such-option": True}})), line="no option is named '--no-such-option'")
    bench.run(2, one(profile("e.json", {"description": "x", "options": {"port": 80}})), line="/options/port")
    bench.run(2, one("default", "canvas", "argmax_generation"), line="mode autoregressive")
    bench.run(2, one("default", "sampled", "argmax_generation"), line="temperature 0")
    bench.run(2, one(profile("f.json", {"description": "x", "drift": {"weight": {"tensor": "none.weight", "byte": 0, "bit": 0}}})),
              line="no tensor 'none.weight'")
    bench.run(2, ["--candidate", "default"], line="a --suite")
    bench.run(2, ["--matrix", "smoke", "--candidate", "default"], line="--matrix names")
    bench.run(3, one("no-start"), line="does not start")
    bench.run(3, one("default", "greedy", "argmax_generation", "--baseline", "no-start"), line="baseline: profile 'no-start' does not start")
    bench.run(4, one("drift-death"), line="the server ended while it answered")
    bench.run(4, one("default", "greedy", "argmax_generation", "--baseline", "drift-death"), line="baseline: profile 'drift-death'")
    bench.run(5, one("default", "greedy", "argmax_generation", "--budget", "tight"), line="budget's tokens")
    slow = profile("slow.json", {"description": "x", "mode": "autoregressive", "temperature": 0, "seeds": list(range(400)), "max_tokens": 900,
                                 "ignore_eos": True, "prompts": ["demo"]})
    second = profile("second.json", {"description": "x", "tokens": 100000000, "seconds": 1, "start_seconds": 60})
    bench.run(5, one("default", slow, "argmax_generation", "--budget", second), line="budget's time")
    bench.run(6, one("default", "greedy", "argmax_generation", "--prompts", "too-long"), line="prompt 'too long' is longer than the context")
    bench.run(7, one("no-room"), line="MiB are needed")
    told = [bench.run(0, one("drafts-on", "alone", "speculative"))["acceptance"] for _ in range(2)]
    expect(all(one["drafted"] >= one["accepted"] > 100 for one in told), f"drafts-on: {told}")
    bench.run(8, one("default", "canvas", "canvas_generation"), line="refused by the server (400)", model=bench.model_ar)
    refusing = profile("refusing.json", {"description": "x", "backend": "ipc", "refused": "not on this machine"})
    bench.run(9, one(profile("lent.json", {"description": "x", "options": {}, "weight_server": refusing})), line="not on this machine")
    bench.run(11, one("overlap-off", "greedy", "speculative"), line="no token was drafted")
    bench.run(11, one("spill"), line="is counted, and nothing was")
    stays = {"description": "x", "options": {"draft": "ngram"}}
    bench.run(1, one(profile("stays.json", {**stays, "stays_zero": ["vllm:generation_tokens_total"]})), line="stays 0: it is 320")
    bench.run(1, one(profile("none.json", {**stays, "stays_zero": ["weft_of_nobody_total"]})), line="or there is none")


def check_kept(bench):
    """Answers of a baseline that are used again in a later run, and not where anything is another."""
    keep = os.path.join(bench.folder, "kept")
    profile = bench.write("base.json", {"description": "x", "options": {"kv-mib": 64, "context": 1024}})

    def starts(*words, code=0, model=None):
        bench.run(code, one("kv-8bit", "greedy", "logits_kv_8bit", "--keep", keep, *words), model=model)
        with open(bench.report, encoding="utf-8") as f:
            report = json.load(f)
        expect(report["baseline"]["profile"] == words[1] and report["device"] != "", f"kept: no facts of the baseline: {report['baseline']}")
        return report["starts"], report["derived"][0]["kept"]

    first = ["--baseline", profile]
    expect(starts(*first) == (2, False), "kept: the first run has nothing to take")
    expect(starts(*first) == (1, True), "kept: the second run did not take what was kept")
    name = sorted(os.listdir(keep))[0]
    with open(os.path.join(keep, name), "r+", encoding="utf-8") as f:
        f.truncate(100)
    expect(starts(*first) == (2, False), "kept: half a file was taken")
    expect(starts(*first) == (1, True), "kept: it was not written again")
    other = bench.write("other.json", {"description": "x", "options": {"kv-mib": 65, "context": 1024}})
    expect(starts("--baseline", other) == (2, False), "kept: answers of another profile were taken")
    expect(starts(*first, model=bench.model_ar) == (2, False), "kept: answers of another model were taken")


def check_again(bench):
    """What outlives a server, and a fault in each that is found."""
    report = bench.run(0, ["--matrix", "again"], model=bench.model_ar)
    for cell in report["cells"]:
        expect(cell["verdict"] == cell["expected"], f"again: {cell['candidate']}: {cell['verdict']}: {cell.get('line')}")


def check_owners(bench):
    """Each thing that an owner of weights has to do, left out in turn."""
    with open(os.path.join(PROOFS, "weight-servers", "double.json"), encoding="utf-8") as f:
        good = json.load(f)
    items = {"ready": None, "backend": "backend", "scope": "scope", "preflight": None, "upload": "upload_telemetry", "guard": "parent_guard",
             "parent": "parent_guard", "held": "lock", "shutdown": "shutdown_observed", "support": "support_telemetry", "plan": "plans",
             "broker": "broker_startup", "request": "broker_requests", "manifest": "clean_termination", "code": "clean_termination",
             "start": None, "life": "clean_termination", "room": None}
    for left_out, item in items.items():
        owner = copy.deepcopy(good)
        owner["command"] += ["--without", left_out]
        owner["ready_seconds"] = 2 if left_out == "ready" else 60
        path = bench.write(f"owner-{left_out}.json", owner)
        profile = bench.write(f"with-{left_out}.json", {"description": "x", "options": {"kv-mib": 64, "context": 1024}, "weight_server": path})
        code = 7 if left_out == "room" else 10
        cell = bench.run(code, one(profile), line="weight server", what=f"an owner of weights without {left_out}")
        said = cell["weight_server_validation"]
        expect(not said["valid"], f"an owner of weights without {left_out} is valid")
        expect(item is None or said[item] is False, f"an owner of weights without {left_out}: {said}")
        wrong = [name for name in said if said[name] is False and name not in ("valid", item)]
        expect(item in (None, "clean_termination") or not wrong, f"an owner of weights without {left_out}: {wrong} too")


def check_ends(bench):
    """However a proof is ended, nothing runs on."""
    slow = bench.write("long.json", {"description": "x", "mode": "autoregressive", "temperature": 0, "seeds": list(range(2000)),
                                     "max_tokens": 900, "ignore_eos": True, "prompts": ["demo"]})
    for number in signal.SIGTERM, signal.SIGINT, signal.SIGKILL:
        proof = subprocess.Popen(bench.command(*one("default", slow, "argmax_generation", "--budget", "long")), cwd=ROOT,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        until = time.monotonic() + 120
        while not any("--port" in open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace").read()
                      for pid in processes(bench.model) if pid != proof.pid and os.path.exists(f"/proc/{pid}")):
            expect(time.monotonic() < until, "no server was started")
            if time.monotonic() >= until:
                break
            time.sleep(0.02)
        time.sleep(0.3)
        proof.send_signal(number)
        _, said = proof.communicate(timeout=120)
        expect(proof.returncode == (130 if number != signal.SIGKILL else -number), f"ended by {number}: {proof.returncode} {said}")
        if number == signal.SIGKILL:  # its files stay: nobody is left to remove them
            until = time.monotonic() + 30
            while processes(bench.model) and time.monotonic() < until:
                time.sleep(0.05)
            for name in os.listdir(bench.work):
                shutil.rmtree(os.path.join(bench.work, name))
        bench.look_clean(f"ended by {number}")


def main():
    with tempfile.TemporaryDirectory(prefix="weft-test-prove-") as folder:
        bench = Bench(folder)
        for part in check_smoke, check_drift, check_verdicts, check_kept, check_again, check_owners, check_ends:
            if len(sys.argv) > 2 and part.__name__ not in sys.argv[2:]:
                continue
            part(bench)
            print(f"{part.__name__} done, {failures} failures", flush=True)
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
