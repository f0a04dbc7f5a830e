#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How much of a decode step no kernel runs: the step's time (weft bench, with graphs) less the durations of its kernels, each
measured by itself (ncu, gpu__time_duration.sum). Kernels of a step overlap: the next one's blocks are brought in and ask for
weights while this one ends (programmatic dependent launch), and a duration by itself includes that beginning. So the share may
come out below zero; it is a lower bound of the gaps only as far as nothing overlaps. One JSON object; more in docs/performance.md.

usage: launch_gaps.py ROWS.json KERNELS.csv
"""
import collections
import csv
import json
import statistics
import sys

SCALE = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}

row = next(r for r in json.load(open(sys.argv[1])) if r["work"].startswith("decode, 1 at once"))
lines = [line for line in csv.reader(open(sys.argv[2], errors="replace")) if len(line) > 8]
name, value, unit = (lines[0].index(x) for x in ("Kernel Name", "Metric Value", "Metric Unit"))
kernels = [(r[name].split("(")[0].split("<")[0].replace("void ", ""), float(r[value].replace(",", "")) * SCALE[r[unit]])
           for r in lines[1:]]
begins = [i for i, (kernel, _) in enumerate(kernels) if kernel.startswith("embed_kernel")]
steps = [kernels[a:b] for a, b in zip(begins, begins[1:])]
usual = collections.Counter(len(step) for step in steps).most_common(1)[0][0]
steps = [step for step in steps if len(step) == usual]
alone = statistics.median(sum(t for _, t in step) for step in steps)
step = 1e6 / row["median"]  # us; the rate is of tokens per second
by_kernel = collections.defaultdict(list)
for kernel, t in steps[-1]:
    by_kernel[kernel].append(t)
for kernel, times in sorted(by_kernel.items(), key=lambda x: -sum(x[1])):
    print(f"{kernel:40s} {len(times):4d} x {sum(times) / len(times):7.2f} = {sum(times):8.1f} us", file=sys.stderr)
print(json.dumps(dict(work="launch gaps, " + row["work"], median=round(100 * (1 - alone / step), 1), unit="%", step_us=round(step, 1),
                      kernels_us=round(alone, 1), n_kernels=usual, n_steps=len(steps))))
