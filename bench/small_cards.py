#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What `weft plan` promises of small cards, run to the end on a large one with the kernel set that they would get.

  bench/small_cards.py [-p PREBUILT] [-d DIR] [-b BACKEND] [-s SET] [CARD:MODEL:TYPES:USERS:PROMPT:ANSWER ...]
    -p  folder with weft and its modules [build]     -d  where model files are written, and stay [/tmp]
    -b  backend [cuda]     -s  the kernel set that is forced, a dash for none [portable]
    CARD  as weft plan --card takes it; MODEL and TYPES as bench/synthetic_gguf.py takes them

For each it asks the plan for the pool of so many users, gives weft that pool (`weft bench room`), lets them all run to their end at
once, and watches what the process takes of the card's memory all the while: it must stay below what the plan said and the memory of the small card. A step has
the rows that it would have there (a large card with much room left takes larger ones, and more memory for them). A JSON object a line; exit status 1 if a promise was not kept. The speed is that of the large card, so none is told.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
USUAL = ["rtx-4060:gemma4-e4b:q4_0:4:6144:2048", "rtx-3060:gemma4-12b:q4_0:4:6144:2048", "rtx-5060-ti:gpt-oss-20b:mxfp4:8:6144:2048",
         "rtx-3090:diffusion-gemma-26b:q4_k_m:4:3072:512"]


def ask_driver(*query):
    """Rows of words; none where the driver's program is missing."""
    try:
        out = subprocess.run(["nvidia-smi", *query, "--format=csv,noheader,nounits"], capture_output=True, text=True)
    except OSError:
        return []
    return [[word.strip() for word in line.split(",")] for line in out.stdout.splitlines()]


def used_by_all():
    rows = ask_driver("--query-gpu=memory.used")
    return sum(int(row[0]) for row in rows if row[0].isdigit())


def run_watched(command):
    """The JSON that a command prints, and the most MiB of cards that it had: by the driver's list of processes, or where that has no
    figures by what all cards together had more than before."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        before, process, own, more = used_by_all(), subprocess.Popen(command, stdout=out, stderr=err), 0, 0
        while process.poll() is None:
            rows = ask_driver("--query-compute-apps=pid,used_memory")
            own = max([own] + [int(row[1]) for row in rows if row[0] == str(process.pid) and row[-1].isdigit()])
            more = max(more, used_by_all() - before)
            time.sleep(0.05)
        out.seek(0), err.seek(0)
        text = out.read()
        if not text.strip():
            sys.exit(f"{' '.join(command)}: {err.read().strip()[-400:]}")
        return json.loads(text), own or more


def ask_json(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout.strip():
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout)


def judge(options, case):
    card, model, types, users, prompt, answer = case.split(":")
    weft, file = os.path.join(options.prebuilt, "weft"), os.path.join(options.dir, f"{model}-{types}.gguf")
    if not os.path.exists(file):
        subprocess.run([sys.executable, os.path.join(HERE, "synthetic_gguf.py"), model, types, file], check=True, stdout=subprocess.DEVNULL)
    plan = ask_json([weft, "plan", file, "--card", card, "--users", users, "--prompt", prompt, "--answer", answer, "--json"])
    run = [weft, "bench", "room", "-m", file, "--backend", options.backend, "--kv-mib", str(plan["kv_mib"]), "-c", str(plan["context"]),
           "--running", users, "--rows", str(plan["rows"]), "-q", "--json"]
    if options.set != "-":
        run += ["--isa", options.set]
    rows, most = run_watched(run)
    if most == 0:
        sys.exit("nvidia-smi does not tell what a process has of the card")
    at_once = {row["work"]: row["measured"] for row in rows if row["work"].endswith("at once")}
    mib, planned = plan["memory_bytes"] >> 20, (plan["kept_bytes"] + plan["reserve_bytes"] + plan["pool_bytes"]) >> 20
    kept = plan["fits"] and at_once.get("sequences at once", 0) >= int(users) and most <= min(mib, planned)
    print(json.dumps({"card": plan["card"], "card_mib": mib, "model": {"made_by": f"bench/synthetic_gguf.py {model} {types}"}, "users": int(users),
                      "prompt": int(prompt), "answer": int(answer), "kv_mib": plan["kv_mib"], "weights_mib": plan["weight_bytes"] >> 20,
                      "planned_mib": planned, "taken_mib": most,
                      "at_once": at_once, "kept": kept, "command": " ".join(os.path.basename(word) for word in run)}), flush=True)
    return kept


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("-p", dest="prebuilt", default="build")
    parser.add_argument("-d", dest="dir", default="/tmp")
    parser.add_argument("-b", dest="backend", default="cuda")
    parser.add_argument("-s", dest="set", default="portable")
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    kept = [judge(options, case) for case in options.cases or USUAL]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
