#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# bench/instructions.sh [WEFT [MODEL]]: instructions per unit of work on the AVX2 path, counted by callgrind on one thread.
# Counts do not depend on the machine's mood, so a change of a percent is a change of the code. Needs valgrind (which knows no
# AVX-512; the program then chooses AVX2 by itself). Each figure is the difference of two runs over the difference of their work.
set -euo pipefail
weft=${1:-build/weft}
model=${2:-model/demo/weft-demo.gguf}
ids() { seq -s, 300 $((299 + $1)); }
count() { # prompt tokens, then options
  local tokens=$1
  shift
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$weft" generate -m "$model" --tokens "$(ids "$tokens")" \
    --threads 1 --kv-mib 8 --context 1024 --running 1 --temperature 0 --seed 1 --ignore-eos -q "$@" 2>&1 >/dev/null |
    sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}
# What the engine itself does for steps of 256 decode rows: plan, batch and apply, the pager's part of them included.
steps() { # number of steps
  valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no --toggle-collect=weft_planner_run \
    --toggle-collect=weft_batcher_build --toggle-collect=weft_apply_step \
    "$weft" bench scheduler --n-parallel 256 --repeat 1 --n-generate "$1" 2>&1 >/dev/null |
    sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}
few=$(steps 1)
many=$(steps 65)
small=$(count 16 --mode ar -n 1)
prefill=$(count 528 --mode ar -n 1)
decode=$(count 16 --mode ar -n 65)
one=$(count 16 --mode diffusion -n 32 --diffusion-steps 1 --diffusion-confidence 0)
nine=$(count 16 --mode diffusion -n 32 --diffusion-steps 9 --diffusion-confidence 0)
parts=$(mktemp)
trap 'rm -f "$parts"' EXIT
valgrind --tool=callgrind --callgrind-out-file="$parts" --toggle-collect='take_*' --toggle-collect='match_whole*' \
  "$weft" bench pager --n-parallel 8 --json >/dev/null 2>&1
pager() { # a timed part of the bench, how many units it does
  callgrind_annotate --inclusive=yes --threshold=100 "$parts" 2>/dev/null |
    awk -v part=":$1" -v n="$2" '/^ *[0-9,]+ .*bench\/speed\/pager.c:/ && index($0, part) { gsub(",", "", $1); printf "%.0f", $1 / n; exit }'
}
PYTHONPATH=$(dirname "$0") python3 -c '
import json, sys
import facts
record = facts.facts(facts.identity(sys.argv[1]), "any: callgrind counts, AVX2 path") | dict(runs=1, spread=None) | json.load(sys.stdin)
print(json.dumps(record, indent=2))' "$model" <<JSON
{
  "isa": "avx2",
  "instructions_per_prefill_token": $(((prefill - small) / 512)),
  "instructions_per_decoded_token": $(((decode - small) / 64)),
  "instructions_per_denoise_step": $(((nine - one) / 8)),
  "instructions_per_scheduled_row": $(((many - few) / (64 * 256))),
  "instructions_per_take_and_release": $(pager take_one_by_one $((15 * 100000))),
  "instructions_per_take_and_release_in_bulk": $(pager take_in_bulk $((15 * 50 * 2048))),
  "instructions_per_take_that_evicts": $(pager take_evicting $((5 * 2 * 2048))),
  "instructions_per_32k_match": $(pager match_whole 64),
  "command": "bench/instructions.sh"
}
JSON
