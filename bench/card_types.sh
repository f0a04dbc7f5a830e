#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# One model in several types of weights on one card, in turns, so that a machine that changes does the same to all: prompts, decode and, where
# the model has them, canvases of 1, 2, 4 to 64 at once.
#
#   bench/card_types.sh [-p PREBUILT] [-d DIR] [-o OUT] [-t TURNS] [-r REPEAT] [-a AT_ONCE] [-k MIB] [-b BACKEND] [-e SECONDS] MODEL TYPES...
#     -p  folder with weft and libweft-cuda.so [build]     -d  where the model files are written, if they are not there [/tmp]
#     -o  the rows of all runs, a JSON object a line, with device, date, commit, model, turn [card-types.jsonl]
#     -t  turns [2]     -r  runs of each row [2]     -a  most at once [64]     -k  MiB of the KV pool [16384]
#     -b  backend [cuda]     -e  begin no run after so many seconds [420]
#     MODEL and TYPES as bench/synthetic_gguf.py takes them: bench/card_types.sh gemma4-26b q4_k_m mxfp4
# It prints the medians over the turns in a table, the first of TYPES as 1.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
prebuilt=build dir=/tmp out=card-types.jsonl turns=2 repeat=2 at_once=64 mib=16384 backend=cuda seconds=420
while getopts 'p:d:o:t:r:a:k:b:e:' option; do
  case $option in
    p) prebuilt=$OPTARG ;;
    d) dir=$OPTARG ;;
    o) out=$OPTARG ;;
    t) turns=$OPTARG ;;
    r) repeat=$OPTARG ;;
    a) at_once=$OPTARG ;;
    k) mib=$OPTARG ;;
    b) backend=$OPTARG ;;
    e) seconds=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -ge 2 ] || { sed -n 's/^# \{0,1\}//p' "$0" | sed -n 3,13p; exit 2; }
[ -d "$prebuilt/lib" ] && export LD_LIBRARY_PATH=$prebuilt/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
model=$1
shift
for types in "$@"; do
  [ -e "$dir/$model-$types.gguf" ] || python3 "$here/synthetic_gguf.py" "$model" "$types" "$dir/$model-$types.gguf"
done
sweeps='prefill sequences'
[[ $model != diffusion* ]] || sweeps="$sweeps canvases"
: >"$out"
for turn in $(seq "$turns"); do
  for types in "$@"; do
    [ $SECONDS -lt "$seconds" ] || { echo "left out: $types, turn $turn: $SECONDS s are over"; continue; }
    # shellcheck disable=SC2086 # a list of words
    python3 "$here/facts.py" run -m "$dir/$model-$types.gguf" -f turn="$turn" -f types="$types" -f runs="$repeat" "$prebuilt/weft" bench model $sweeps -m "$dir/$model-$types.gguf" \
      --backend "$backend" -q --json --n-prompt 512 --n-generate 64 --repeat "$repeat" --running "$at_once" -c 1024 --kv-mib "$mib" >>"$out"
    echo "$types, turn $turn: $SECONDS s"
  done
done
python3 - "$out" "$@" <<'PY'
import json, statistics, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
types = sys.argv[2:]
print(f"{'':34s}" + ''.join(f'{t:>12s}       ' for t in types))
for work in dict.fromkeys(row['work'] for row in rows):
    medians = {}
    for t in types:
        values = [row['median'] for row in rows if row['work'] == work and row['types'] == t]
        if values:
            medians[t] = (statistics.median(values), max(values) - min(values))
    unit = next(row['unit'] for row in rows if row['work'] == work)
    first = medians.get(types[0], (0, 0))[0]
    def speed(value):
        return value / first if not unit.startswith('ms') else first / value
    print(f'{work:34s}' + ''.join(f"{medians[t][0]:12.2f} x{speed(medians[t][0]):5.2f}" if t in medians and first else f"{'-':>19s}" for t in types) + f'  {unit}')
PY
