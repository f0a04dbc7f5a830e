#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tests/dashboard.py WEFT: docs/examples/grafana.json is a board that Grafana takes, as far as its form tells, and asks for nothing that
/metrics does not have: every metric and label of its expressions is in that of a running server with two models, drafts and tenants,
and every tenant and model is told of. Expressions are parsed by promtool where it is (PROMTOOL names it).
Prints `N passed, N failed`."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request

weft = os.path.realpath(sys.argv[1])
folder = "model/demo/weft-demo"
passed = failed = 0
# Of PromQL, as far as the board uses it.
WORDS = {"sum", "min", "by", "rate", "histogram_quantile", "label_values"}
OF_PROMETHEUS = {"instance"}  # labels that a scrape adds
OF_GRAFANA = {"$__rate_interval": "1m", "$instance": ".*", "$model": ".*"}


def expect(good, what):
    global passed, failed
    if good:
        passed += 1
    else:
        failed += 1
        print("failed:", what)


def read_metrics():
    """{name: labels of its lines}, and how often a model and a tenant is told of, after an answer of each kind."""
    with tempfile.TemporaryDirectory() as place:
        keys = os.path.join(place, "keys")
        with open(keys, "w", encoding="utf-8") as f:
            f.write("a-key-of-red-tenants red weight=2\na-key-of-blue-tenants blue\n")
        server = subprocess.Popen([weft, "serve", "-m", folder + ".gguf", "-m", folder + "-ar.gguf", "--draft", f"weft-demo-ar=model:{folder}-draft.gguf",
                                   "--draft", "weft-demo=ngram", "--api-keys", keys, "--public-metrics", "--port", "0", "--kv-mib", "32", "--json", "-q",
                                   "--config", "/dev/null"], stdout=subprocess.PIPE, text=True)
        try:
            url = f"http://127.0.0.1:{json.loads(server.stdout.readline())['port']}"
            for key, model in (("a-key-of-red-tenants", "weft-demo"), ("a-key-of-blue-tenants", "weft-demo-ar")):
                body = {"model": model, "messages": [{"role": "user", "content": "What is 58 + 37?"}], "seed": 1, "max_tokens": 16}
                asks = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"Authorization": "Bearer " + key})
                urllib.request.urlopen(asks, timeout=600).read()
            text = urllib.request.urlopen(url + "/metrics", timeout=600).read().decode()
        finally:
            server.terminate()
            server.wait()
    labels = {}
    for line in text.splitlines():
        if found := re.match(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ", line):
            labels.setdefault(found[1], set()).update(re.findall(r'(\w+)="', found[2] or ""))
    for name, values in (("weft_tenant_requests_total", 'tenant="red" blue'), ("vllm:num_requests_running", "weft-demo weft-demo-ar weft-demo-draft")):
        for value in re.findall(r"[\w-]+", values.replace("tenant=", "")):
            expect(re.search(re.escape(name) + r'\{[^}]*"' + value + '"', text), f"/metrics: {name} tells of {value}")
    return labels


def judge_expression(where, expression, metrics):
    """Each metric is there, and has the labels that it is chosen or summed by."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    names = []
    for found in re.finditer(r"([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?", re.sub(r"by \([^)]*\)|\[[^]]*\]", "", bare)):
        if found[1] in WORDS or re.match(r"e\d*$", found[1]):
            continue
        names.append(found[1])
        for label in re.findall(r"(\w+)\s*=~?", found[2] or ""):
            expect(label in metrics.get(found[1], ()) or label in OF_PROMETHEUS, f"{where}: {found[1]} has no label {label}")
    expect(names, f"{where}: no metric in {expression}")
    for name in names:
        expect(name in metrics, f"{where}: /metrics has no {name}")
    for group in re.findall(r"by \(([^)]*)\)", bare):
        for label in group.replace(" ", "").split(","):
            expect(all(label in metrics.get(name, ()) or label in OF_PROMETHEUS for name in names), f"{where}: {names} have not all a label {label}")


def parse_expressions(expressions):
    tool = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if tool is None:
        print("promtool is not installed: expressions were not parsed")
        return
    rules = []
    for i, expression in enumerate(expressions):
        for name, value in OF_GRAFANA.items():
            expression = expression.replace(name, value)
        rules.append({"record": f"r{i}", "expr": expression})
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as f:
        json.dump({"groups": [{"name": "board", "rules": rules}]}, f)  # which is YAML too
        f.flush()
        done = subprocess.run([tool, "check", "rules", f.name], capture_output=True, text=True, check=False)
    expect(done.returncode == 0, "promtool: " + done.stderr)


def judge_form(board):
    panels = board["panels"]
    ids = [panel["id"] for panel in panels]
    expect(len(set(ids)) == len(ids), "panels with one id")
    taken = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        expect(not cells & taken and max(x for x, _ in cells) < 24, f"{panel['title']}: it lies over another, or outside")
        taken |= cells
        if panel["type"] != "row":
            expect(panel["title"] and panel["description"] and panel["targets"] and panel["fieldConfig"]["defaults"]["unit"], f"{panel['title']}: it is whole")
    known = {"$" + variable["name"] for variable in board["templating"]["list"]} | {"$__rate_interval"}
    used = set(re.findall(r"\$\w+", json.dumps(panels).replace("${datasource}", "$datasource")))
    expect(used <= known, f"variables that are not there: {used - known}")
    expect(board["schemaVersion"] >= 38 and board["uid"] and board["title"], "schema of Grafana 10")


def main():
    with open("docs/examples/grafana.json", encoding="utf-8") as f:
        board = json.load(f)
    judge_form(board)
    metrics = read_metrics()
    expressions = [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel.get("targets", [])]
    expect(len(expressions) >= 30, "fewer expressions than the board has")
    for title, expression in expressions:
        judge_expression(title, expression, metrics)
        legend = next(t["legendFormat"] for p in board["panels"] for t in p.get("targets", []) if t["expr"] == expression)
        summed = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", expression))))
        expect(set(re.findall(r"\{\{(\w+)\}\}", legend)) <= summed, f"{title}: its legend names a label that is summed away")
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            judge_expression("variable " + variable["name"], re.sub(r"label_values\((.*), \w+\)", r"\1", variable["definition"]), metrics)
    parse_expressions([expression for _, expression in expressions])
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
