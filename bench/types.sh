#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The speed of products with weights of every type beside Q4_K on the cpu backend, several runs, for bench/results/cpu-types.json:
# of each type the share of Q4_K's weights per second in the same run, at one row and at 256, as median, least and greatest.
# Processor time of one thread. Worth committing only from a machine that does nothing else; a run takes 20 s.
#
#   bench/types.sh INSTRUCTION_SET [REPEATS [FILE]]     avx512, avx2 or portable; [9]; the set's entry of FILE is replaced
set -euo pipefail
cd "$(dirname "$0")/.."
isa=$1 repeats=${2:-9} file=${3:-bench/results/cpu-types.json}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for i in $(seq "$repeats"); do build/weft bench kernels types --isa "$isa" --cpu-time --threads 1 --json >"$work/$i" 2>"$work/rates"; done
PYTHONPATH=bench python3 - "$work" "$isa" "$repeats" "$file" <<'PY'
import json, os, statistics, sys
import facts
work, isa, repeats, path = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
runs = [json.load(open(f'{work}/{i + 1}')) for i in range(repeats)]

def share(run, type, rows):
    us = {c['type']: c['us'] for c in run if c['rows'] == rows}
    return us['Q4_K'] / us[type]

def spread(values, digits):
    return {name: round(f(values), digits) for name, f in (('median', statistics.median), ('least', min), ('greatest', max))}

entry = dict(facts.facts(dict(none='products with matrices of random numbers'), facts.processors()),
             load_average=round(os.getloadavg()[0], 2), runs=repeats, command=f'bench/types.sh {isa} {repeats}')
for rows in (1, 256):
    entry[f'q4_k_us_{rows}_rows'] = spread([c['us'] for run in runs for c in run if c['type'] == 'Q4_K' and c['rows'] == rows], 1)
    entry[f'share_{rows}_rows'] = {c['type']: spread([share(run, c['type'], rows) for run in runs], 3)
                                   for c in runs[0] if c['rows'] == rows and c['type'] != 'Q4_K'}
record = json.load(open(path)) if os.path.exists(path) else {}
record[isa] = entry
record |= {key: entry[key] for key in ('device', 'date', 'commit', 'model')}
record['spread'] = 'least and greatest beside each median'
record['command'] = [part['command'] for part in record.values() if isinstance(part, dict) and 'command' in part]
with open(path, 'w') as f:
    json.dump(record, f, indent=1)
    f.write('\n')
PY
