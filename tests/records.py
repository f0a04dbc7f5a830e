#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The records of measurements: what bench/records.py refuses, what bench/facts.py says of a model, and that the programs which
write records say all that the schema wants. tests/records.py WEFT."""
import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "bench")]
import facts
import pictures
import records

DEMO = os.path.join(ROOT, "model/demo/weft-demo.gguf")
GOOD = dict(device="NVIDIA H200", date="2026-12-01", commit="0123abc", command="weft bench model", runs=3, spread=0.1,
            model=dict(name="m.gguf", bytes=7, hash="0123456789abcdef"))


def changed(**fields):
    return {name: value for name, value in dict(copy.deepcopy(GOOD), **fields).items() if value != "left out"}


def test_schema():
    assert records.faults([GOOD]) == []
    for name in GOOD:
        found = records.faults([changed(**{name: "left out"})])
        assert len(found) >= 1 and any(name in fault for fault in found), (name, found)
    for model in ("m.gguf", [], dict(name="m.gguf", hash="0123456789abcdef"), dict(name="m.gguf", bytes=7, hash="short"), dict(none=""),
                  dict(unknown="nobody noted it"), [GOOD["model"], dict(unknown="nobody noted it")]):
        assert records.faults([changed(model=model)]), model
    for model in (dict(none="counts"), dict(made_by="bench/synthetic_gguf.py gemma4-1b q4_0"), [GOOD["model"], dict(none="counts")]):
        assert records.faults([changed(model=model)]) == [], model
    assert records.faults([changed(model=dict(unknown="nobody noted it"), date="2026-11-28")]) == []
    assert records.faults([changed(runs="left out", rows=[dict(runs=2)], spread="left out", turns=[dict(spread_us=1)])]) == []


def hash_of(folder, content):
    path = os.path.join(folder, "m.gguf")
    with open(path, "wb") as f:
        f.write(content)
    return facts.identity(path)


def test_identity(folder):
    """One byte anywhere of a small file changes the hash; of a large one a byte of its header, and weights of a MiB anywhere."""
    small = bytes(range(256)) * 9
    first = hash_of(folder, small)
    assert first["name"] == "m.gguf" and first["bytes"] == len(small) and records.fault_of(first, GOOD) is None, first
    assert first == hash_of(folder, small)
    for at in (0, 1000, len(small) - 1):
        assert hash_of(folder, small[:at] + b"?" + small[at + 1:])["hash"] != first["hash"], at
    large = bytearray(70 << 20)
    first = hash_of(folder, large)
    for at, n in ((0, 1), ((16 << 20) - 1, 1), ((40 << 20) + 12345, 1 << 20), ((70 << 20) - 1, 1)):
        other = bytearray(large)
        other[at:at + n] = b"?" * n
        assert hash_of(folder, other)["hash"] != first["hash"], at
    assert hash_of(folder, large[:-1])["hash"] != first["hash"]


def test_parts(folder):
    """A file in parts is all of them, whichever is named; a folder of another engine's model is its weights."""
    names = [os.path.join(folder, f"p-0000{i}-of-00002.gguf") for i in (1, 2)]
    for name in names:
        with open(name, "w") as f:
            f.write("part")
    first = facts.identity(names[0])
    assert first == dict(facts.identity(names[1]), name=first["name"]) and first["bytes"] == 8
    with open(names[1], "w") as f:
        f.write("trap")
    assert facts.identity(names[0])["hash"] != first["hash"]
    for name, text in (("config.json", "{}"), ("model.safetensors", "weights")):
        with open(os.path.join(folder, name), "w") as f:
            f.write(text)
    found = facts.identities(["vllm", "serve", folder, "--port", "1", names[0]])
    assert [one["bytes"] for one in found] == [9, 8], found
    assert "none" in facts.identities(["vllm", "serve", "--port", "1"])


def test_rows_of_a_command():
    """What any bench prints becomes rows that meet the schema, but for what only the bench knows."""
    say = "import json; print(json.dumps([dict(work='a', median=1, spread=0), dict(work='b', median=2, spread=0)]))"
    words = [os.path.join(ROOT, "bench/facts.py"), "run", "-f", "runs=3"]
    done = subprocess.run([*words, "-m", DEMO, sys.executable, "-c", say], capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["work"] for row in rows] == ["a", "b"] and records.faults(rows) == [], done.stdout
    assert rows[0]["model"] == facts.identity(DEMO) and rows[0]["runs"] == 3
    refused = subprocess.run([*words, sys.executable, "-c", say], capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "name the models" in refused.stderr and refused.stdout == "", refused
    failed = subprocess.run([*words, "-n", "none", sys.executable, "-c", "raise SystemExit(3)"], capture_output=True, check=False)
    assert failed.returncode == 3


def read_record(path):
    assert records.faults(records.read(path)) == [], (path, records.faults(records.read(path)))
    return records.read(path)[0]


def test_writers(folder, weft):
    """The programs that need no card and no second engine, in their smallest amount."""
    serving = subprocess.run([sys.executable, os.path.join(ROOT, "bench/serving.py"), weft, DEMO, "quick", "canvases"], capture_output=True,
                             text=True, check=True)
    path = os.path.join(folder, "serving.jsonl")
    with open(path, "w") as f:
        f.write(serving.stdout)
    assert read_record(path)["model"] == facts.identity(DEMO)
    path = os.path.join(folder, "attack.json")
    subprocess.run([sys.executable, os.path.join(ROOT, "bench/attack"), "--weft", weft, "--quick", "--only", "json", "--json", path], cwd=ROOT,
                   capture_output=True, check=True)
    assert read_record(path)["model"][0] == facts.identity(DEMO)


def age(folder, *words):
    return subprocess.run([sys.executable, os.path.join(ROOT, "bench/records.py"), "-r", folder, "age", *words], capture_output=True, text=True, check=False)


def test_age(folder):
    """Only the hash of today's module keeps a record of unknown commit young; --strict minds what pages for users quote."""
    for name, record in (("h200.json", changed(machine_code="feed")), ("nobody-quotes-this.json", changed()), ("cpu.json", changed(device="a processor"))):
        with open(os.path.join(folder, name), "w") as f:
            json.dump(record, f)
    done = age(folder, "--hash", "feed", "--strict")
    assert done.returncode == 0 and "1 of 2 records of cards" in done.stdout and "nobody-quotes-this.json" in done.stdout, done
    done = age(folder, "--strict")
    assert done.returncode == 1 and "h200.json, quoted by " in done.stdout and "2 of 2" in done.stdout, done
    assert age(folder).returncode == 0


def test_pictures(folder):
    """Each shows what its records say; one whose record has another figure, or that is not there, is told."""
    assert list(pictures.faults()) == []
    shutil.copytree(pictures.RESULTS, folder, dirs_exist_ok=True)
    path = os.path.join(folder, "h200-peer-llama.json")
    with open(path, encoding="utf-8") as f:
        record = json.load(f)
    (row,) = (row for row in record["rows"] if (row["model"], row["engine"], row["work"], row["graphs"]) == ("llama-2-7b q4_0", "weft", "S_TG 64", True))
    row["median"] += 1
    with open(path, "w", encoding="utf-8") as f:
        json.dump(record, f)
    (fault,) = pictures.faults(folder)
    assert fault.startswith("docs/pictures/decode.svg "), fault
    assert len(list(pictures.faults(folder=folder))) == len(pictures.PICTURES)


def main():
    test_schema()
    test_rows_of_a_command()
    for test in (test_identity, test_parts, test_age, test_pictures):
        with tempfile.TemporaryDirectory() as folder:
            test(folder)
    with tempfile.TemporaryDirectory() as folder:
        test_writers(folder, os.path.abspath(sys.argv[1]))
    print("records: the schema holds, and each fault was told")


if __name__ == "__main__":
    main()
