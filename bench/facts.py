#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Where a record of bench/results comes from: device, date, commit, and which model was measured. Every program that writes a
record takes these facts from here, so that none can lack one (bench/records.py has the schema).

  bench/facts.py FILE...                    the identity of each model, a line of JSON each
  bench/facts.py run [-m FILE | -n WHY] [-d DEVICE] [-f NAME=VALUE] COMMAND...
      runs the command and prints each line and each list of JSON objects that it writes as rows with the facts and the command
      -m  the model that it measures; may be repeated   -n  why there is none   -d  the device [the first card, or the processors]
      -f  a fact besides, as machine_code=HASH; may be repeated

The identity of a model is {name, bytes, hash}. The hash is 64 bits of BLAKE2b over the number of bytes and what is read: all of a
file up to 64 MiB; of a longer one the first 16 MiB (in GGUF: keys, vocabulary, names and shapes), the last MiB and the first 4 KiB
of each MiB between. So a file of 15 GB costs a tenth of a second, and two files with the same hash have the same header and, but
for changes of less than a MiB in place, the same weights. A file in parts (-00001-of-00002.gguf) is all of its parts; a folder of
another engine's model is its config.json and *.safetensors.

WEFT_COMMIT names the commit where the sources are no git checkout.
"""
import argparse
import datetime
import glob
import hashlib
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
WHOLE, HEAD, TAIL, SAMPLE = 64 * MIB, 16 * MIB, MIB, 4096


def files_of(path):
    """The files that are one model, and the name that it goes by."""
    name = os.path.basename(os.path.abspath(path))
    if os.path.isdir(path):
        found = sorted(glob.glob(os.path.join(glob.escape(path), "*.safetensors")))
        return name, [os.path.join(path, "config.json"), *found]
    part = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path)
    if not part:
        return name, [path]
    return name, [f"{part[1]}-{i:05d}-of-{part[2]}.gguf" for i in range(1, int(part[2]) + 1)]


def add_file(digest, path):
    """Adds one file to the hash; its number of bytes."""
    n_bytes = os.path.getsize(path)
    digest.update(n_bytes.to_bytes(8, "little"))
    with open(path, "rb") as f:
        if n_bytes <= WHOLE:
            digest.update(f.read())
            return n_bytes
        digest.update(f.read(HEAD))
        for at in range(HEAD, n_bytes - TAIL, MIB):
            f.seek(at)
            digest.update(f.read(SAMPLE))
        f.seek(n_bytes - TAIL)
        digest.update(f.read())
    return n_bytes


def identity(path):
    name, files = files_of(path)
    digest = hashlib.blake2b(digest_size=8)
    n_bytes = sum(add_file(digest, file) for file in files)
    return dict(name=name, bytes=n_bytes, hash=digest.hexdigest())


def identities(words):
    """Of the models that a command names: its words that are a GGUF file, or a folder with a config.json."""
    found = [w for w in words if (w.endswith(".gguf") and os.path.isfile(w)) or os.path.isfile(os.path.join(w, "config.json"))]
    return several([identity(w) for w in dict.fromkeys(found)]) or dict(none="no word of the command is a file or folder of a model")


def several(models):
    """One model stands alone."""
    return models[0] if len(models) == 1 else models


def ask(*words):
    try:
        return subprocess.run(words, cwd=HERE, capture_output=True, text=True, check=True).stdout.split("\n")[0].strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def card(gpu=0):
    """The name of a card, or nothing."""
    return ask("nvidia-smi", f"--id={gpu}", "--query-gpu=name", "--format=csv,noheader")


def processors(used=None):
    """How many processors of what kind; used: how many threads of them."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            kind = next(line.split(":")[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        kind = os.uname().machine
    return f"{os.cpu_count()} cores of {kind}" if used is None else f"{used} threads on {kind}"


def facts(model, device=None):
    """What a record begins with. model: what identity() gives, a list of that, or dict(none=why)."""
    return dict(device=device or card() or processors(), date=datetime.date.today().isoformat(),
                commit=os.environ.get("WEFT_COMMIT") or ask("git", "rev-parse", "--short", "HEAD") or "unknown", model=model)


def rows_of(text):
    """The objects of a text: a list or an object as a whole, or one on each line."""
    try:
        data = json.loads(text)
        return data if isinstance(data, list) else [data]
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def named_value(text):
    """NAME=VALUE; a value that is JSON is taken as that, so numbers are numbers."""
    name, value = text.split("=", 1)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def run(words):
    parser = argparse.ArgumentParser(prog="bench/facts.py run")
    parser.add_argument("-m", dest="models", action="append", default=[])
    parser.add_argument("-n", dest="none")
    parser.add_argument("-d", dest="device")
    parser.add_argument("-f", dest="more", action="append", default=[], type=named_value)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    o = parser.parse_args(words)
    if bool(o.models) == bool(o.none) or not o.command:
        parser.error("name the models (-m FILE), or say why there is none (-n WHY); then the command")
    begin = facts(several([identity(path) for path in o.models]) or dict(none=o.none), o.device) | dict(o.more)
    done = subprocess.run(o.command, stdout=subprocess.PIPE, text=True)
    command = " ".join([os.path.basename(o.command[0]), *o.command[1:]])
    for row in rows_of(done.stdout):
        print(json.dumps(begin | dict(command=command) | row))
    return done.returncode


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return 0 if len(sys.argv) > 1 else 2
    if sys.argv[1] == "run":
        return run(sys.argv[2:])
    for path in sys.argv[1:]:
        try:
            print(json.dumps(identity(path)))
        except OSError as error:
            print(f"facts: {path}: {error.strerror}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
