#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What formats cost the host, several runs of bench/formats.c, for bench/results/formats-host.json: of each format median, least and
# greatest of every time; what does not depend on the machine once.
#
#   bench/formats.sh VOCABULARY.gguf [REPEATS [FILE]]     [5]
set -euo pipefail
cd "$(dirname "$0")/.."
vocabulary=$1 repeats=${2:-5} file=${3:-bench/results/formats-host.json}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for i in $(seq "$repeats"); do build/bench_formats "$vocabulary" >"$work/$i"; done
PYTHONPATH=bench python3 - "$work" "$repeats" "$file" "$vocabulary" <<'PY'
import json, os, statistics, sys
import facts
work, repeats, path, vocabulary = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
runs = [[json.loads(line) for line in open(f'{work}/{i + 1}')] for i in range(repeats)]
records = []
for same in zip(*runs):
    row = {}
    for key, value in same[0].items():
        values = [one[key] for one in same]
        if '_us' in key:
            row[key] = {'median': statistics.median(values), 'least': min(values), 'greatest': max(values)}
        elif any(v != value for v in values):
            sys.exit(f'{same[0]["format"]}: {key} differs between runs')
        else:
            row[key] = value
    records.append(row)
with open(path, 'w') as f:
    head = {'what': 'formats of answers on the host, bench/formats.c, a vocabulary of 262,144 tokens (bench/synthetic_gguf.py gemma4-26b none)',
            **facts.facts(facts.identity(vocabulary), facts.processors()), 'command': f'bench/formats.sh v262.gguf {repeats}',
            'load_average': round(os.getloadavg()[0], 2), 'runs': repeats,
            'spread': 'least and greatest beside each median'}
    f.write(json.dumps(head, indent=1)[:-2] + ',\n "records": [\n')
    f.write(',\n'.join('  ' + json.dumps(row) for row in records) + '\n ]\n}\n')
PY
