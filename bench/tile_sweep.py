#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times the ops of the portable kernel set with each choice of its table of tiles (kernels/cuda/portable/tiles.cu).

  bench/tile_sweep.py [-p FOLDER] [-t TURNS] [-f FAMILY,FAMILY] [-s SECONDS] [NAME ...]
    -p  folder with bench_device_ops and libweft-cuda-portable.so [build]     -t  how often each is timed, in turns [3]
    -f  families to which the card is held [86,120,80,90]     -s  begins no op after so many seconds [600]
    NAME  of the sweeps below [all]

A JSON object a line: family, op, type, rows, keys and for each choice the median of its turns in us and how far
these lie apart; `as the table` is the family's row as it stands. A choice is named as behind the @ of a set
("portable@86,down=1")."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

# name: (word of the ops, rows, the choices that concern them)
SWEEPS = {
    "experts of one row": ("experts", 1, ["gate-up=1", "gate-up=2", "down=1", "down=2"]),
    "experts of 2 rows": ("experts", 2, ["tiles=1", "tiles=2", "down=1", "down=2", "experts=1"]),
    "experts of 4 rows": ("experts", 4, ["tiles=1", "tiles=2", "down=1", "down=2", "experts=1"]),
    "experts of 8 rows": ("experts", 8, ["thin=2", "thin=3", "thin=4", "thin=5", "thin=6"]),
    "experts of 32 rows": ("experts", 32, ["thin=2", "thin=3", "thin=4", "thin=5", "thin=6"]),
    "experts of 256 rows": ("experts", 256, ["narrow=2", "narrow=3", "narrow=4", "wide=1", "wide=2"]),
    "experts of 2048 rows": ("experts", 2048, ["wide=1", "wide=2"]),
    "products of one row": ("q Q4_K", 1, ["dense=1", "dense=2"]),
    "products of 4 rows": ("q Q4_K", 4, ["dense=1", "dense=2"]),
    "products of 8 rows": ("q Q4_K", 8, ["dense=1", "dense=2"]),
    "products of 32 rows": ("q Q4_K", 32, ["split=1", "split=2"]),
    "products of 64 rows": ("q Q4_K", 64, ["narrow=2", "narrow=3", "narrow=4"]),
    "products of 256 rows": ("q", 256, ["narrow=2", "narrow=3", "narrow=4", "wide=1", "wide=2"]),
    "products of 2048 rows": ("q Q4_K", 2048, ["wide=1", "wide=2"]),
    "attention of decode": ("decode BF16", 32, ["decode=1", "decode=2"]),
    "attention of a canvas": ("canvas BF16", 256, []),
    "attention of prompts": ("prefill BF16", 2048, []),
}
ITEMS = ("op", "type", "rows", "kv")


def time_ops(folder, word, rows, sets, turns):
    program = os.path.join(folder, "bench_device_ops")
    command = [program, "cuda", word, str(rows), "0", "8", ";".join(sets), str(turns)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{word} of {rows} rows: {done.stderr.strip()[-400:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("-p", default="build")
    a.add_argument("-t", type=int, default=3)
    a.add_argument("-f", default="86,120,80,90")
    a.add_argument("-s", type=float, default=600)
    a.add_argument("names", nargs="*")
    a = a.parse_args()
    begun = time.monotonic()
    for name in a.names or SWEEPS:
        if time.monotonic() - begun > a.s:
            print(f"left out: {name}", file=sys.stderr)
            continue
        word, rows, choices = SWEEPS[name]
        behind = [""] + [f",{choice}" for choice in choices]
        sets = [f"portable@{family}{choice}" for family in a.f.split(",") for choice in behind]
        times = {}
        for line in time_ops(a.p, word, rows, sets, a.t):
            family, _, choice = line["set"].partition("@")[2].partition(",")
            of = times.setdefault((family, *(line[item] for item in ITEMS)), {})
            of.setdefault(choice or "as the table", []).append(line["us"])
        for (family, *what), of in times.items():
            us = {choice: [round(statistics.median(t), 2), round(max(t) - min(t), 2)] for choice, t in of.items()}
            print(json.dumps({"family": family, **dict(zip(ITEMS, what)), "us": us}), flush=True)


if __name__ == "__main__":
    main()
