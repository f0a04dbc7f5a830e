#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The records of a CPU machine that docs/performance.md quotes, each from several runs, with medians and spreads. Worth
# committing only from a machine that does nothing else: the load average is part of each record.
#
#   bench/cpu.sh [-r REPEATS] [-o OUT] [-l LLAMA -i IK -m MODEL.gguf]
#     -r  runs of each bench [5]
#     -o  folder of the records [bench/results]
#     -l  bin folder of a llama.cpp build, -i of ik_llama.cpp, -m the file that all run: cpu-peer.json; without -l and -m it is
#         left as it is. The record in the tree is of `bench/synthetic_gguf.py gemma4-1b q4_k_m`
# Files: pager-scheduler.json, capacity.json (counts: one run), cpu-peer.json
set -euo pipefail
cd "$(dirname "$0")/.."
repeats=5 out=bench/results llama='' ik='' model=''
while getopts 'r:o:l:i:m:' option; do
  case $option in
    r) repeats=$OPTARG ;;
    o) out=$OPTARG ;;
    l) llama=$OPTARG ;;
    i) ik=$OPTARG ;;
    m) model=$OPTARG ;;
    *) exit 2 ;;
  esac
done
mkdir -p "$out"
weft=build/weft work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for i in $(seq "$repeats"); do
  "$weft" bench pager --json >"$work/pager.$i"
  "$weft" bench scheduler --json >"$work/scheduler.$i"
done
"$weft" bench capacity -m model/demo/weft-demo.gguf --json >"$work/capacity"
if [ -n "$llama" ] && [ -n "$model" ]; then
  peers=(--peer llama.cpp="$llama")
  [ -z "$ik" ] || peers+=(--peer ik_llama.cpp="$ik" --peer ik_llama.cpp-rtr="$ik" --peer-options ik_llama.cpp-rtr=-rtr)
  until [ -e "$work/peer/record.json" ]; do # a call of the script takes nine minutes at most
    python3 bench/peers/run.py -m "$model" "${peers[@]}" -o "$work/peer" --n-prompt 256 --n-generate 48 --sequences 1,4,16,32 -r "$repeats"
  done
  cp "$work/peer/record.json" "$out/cpu-peer.json"
fi
PYTHONPATH=bench python3 - "$work" "$out" "$repeats" <<'PY'
import glob, json, os, statistics, sys
import facts
work, out, repeats = sys.argv[1], sys.argv[2], int(sys.argv[3])

def read(pattern):
    return [json.load(open(path)) for path in sorted(glob.glob(f'{work}/{pattern}'))]

def sum_up(values):
    """Numbers that are the same in every run stand alone; others are {median, spread, runs}."""
    if isinstance(values[0], dict):
        return {key: sum_up([v[key] for v in values]) for key in values[0]}
    if len(set(values)) == 1:
        return values[0]
    return dict(median=round(statistics.median(values), 3), spread=round(max(values) - min(values), 3), runs=len(values))

def write(name, model, device, record):
    json.dump(dict(facts.facts(model, device), load_average=round(os.getloadavg()[1], 2), **record), open(f'{out}/{name}', 'w'), indent=1)
    open(f'{out}/{name}', 'a').write('\n')

write('pager-scheduler.json', dict(none='a runner that computes nothing'), facts.processors(), dict(command=f'bench/cpu.sh -r {repeats}: weft bench pager --json; weft bench scheduler --json',
                                   runs=repeats, spread='beside each median that varies', pager=sum_up(read('pager.*')), scheduler=sum_up(read('scheduler.*'))))
write('capacity.json', facts.identity('model/demo/weft-demo.gguf'), 'any: counts, no times',
      dict(json.load(open(f'{work}/capacity')), command='weft bench capacity -m model/demo/weft-demo.gguf --json', runs=1, spread=None))
PY
echo "records in $out"
