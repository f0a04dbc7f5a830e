#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# bench/results/quality.json: what types of weights and products of 8 bits cost the demo model, as KL divergences. What is
# computed does not depend on the machine's speed, so a busy one will do.
#
#   bench/quality.sh [-n CONVERSATIONS] [-w WINDOWS] [-b BACKENDS] [-t THREADS] [-o OUT] [-p PYTHON]
#     -n  conversations of the text, drawn by model/demo/corpus.py, held out from training [60]
#     -w  most windows of 256 tokens, of which 127 are scored [24]; 800 are 100 thousand scored tokens and about ten minutes of one core
#     -b  the backends whose products of 8 bits are measured [cpu]; 'cpu cuda' for both
#     -t  threads [all cores]
#     -o  folder of the record [bench/results]
#     -p  a Python with the package gguf [python3]
# For each type: the demo's values stored in it (Q), and those values written as a file in F32, which cpu multiplies in
# f32 (P of the products); that file against the demo's values before they were stored (the cost of the type; the demo is stored in
# Q8_0, so that type costs nothing). Then the Q8_0 file as canvases under noise. P is named first: KL(P || Q).
set -euo pipefail
cd "$(dirname "$0")/.."
conversations=60 windows=24 backends=cpu threads=$(nproc) out=bench/results python=python3
while getopts 'n:w:b:t:o:p:' option; do
  case $option in
    n) conversations=$OPTARG ;;
    w) windows=$OPTARG ;;
    b) backends=$OPTARG ;;
    t) threads=$OPTARG ;;
    o) out=$OPTARG ;;
    p) python=$OPTARG ;;
    *) exit 2 ;;
  esac
done
weft=build/weft work=$(mktemp -d) types='Q8_0 Q5_1 Q5_0 Q4_1 Q4_0'
trap 'rm -rf "$work"' EXIT
"$python" model/demo/corpus.py "$conversations" 1 >"$work/text"
measure() { # NAME FILE OPTIONS...: the record of one run
  local name=$1 file=$2
  shift 2
  "$weft" perplexity -m "$file" -f "$work/text" --special -c 256 --chunks "$windows" --json -q "$@" >"$work/$name.json"
}
products() { # NAME FILE OPTIONS...: on each of the backends
  local name=$1 backend
  shift
  for backend in $backends; do measure "$name.$backend" "$@" --backend "$backend" --precision fast; done
}
measure_type() { # TYPE THREADS
  "$python" bench/requantise.py model/demo/weft-demo.gguf "$work/$1.gguf" "$1"
  "$python" bench/requantise.py "$work/$1.gguf" "$work/$1.f32.gguf" F32
  measure "$1.type" "$work/$1.f32.gguf" --mode ar --backend cpu -t "$2" --kl "$work/original"
  measure "$1.f32" "$work/$1.f32.gguf" --mode ar --backend cpu -t "$2" --save-logits "$work/$1.rows"
  products "$1" "$work/$1.gguf" --mode ar -t "$2" --kl "$work/$1.rows"
  rm "$work/$1.rows"
}
"$python" bench/requantise.py model/demo/weft-demo.gguf "$work/F32.gguf" F32
measure F32 "$work/F32.gguf" --mode ar --backend cpu -t "$threads" --save-logits "$work/original"
each=$((threads / 5))
if [ "$each" -gt 0 ]; then # the types beside one another
  running=''
  for type in $types; do measure_type "$type" "$each" & running="$running $!"; done
  for one in $running; do wait "$one"; done
else
  for type in $types; do measure_type "$type" "$threads"; done
fi
measure canvas.f32 "$work/F32.gguf" --backend cpu -t "$threads" --save-logits "$work/rows"
products canvas "$work/Q8_0.gguf" -t "$threads" --kl "$work/rows"
"$python" - "$work" "$out" "bench/quality.sh -n $conversations -w $windows -b '$backends'" \
  "$types" "$backends" <<'PY'
import json, sys
sys.path[:0] = ['bench']
import facts
work, out, command, types, backends = sys.argv[1:6]

def read(name):
    return json.load(open(f'{work}/{name}.json'))

def kl(of):
    return {key: of['kl'][key] for key in ('mean', 'mean_interval', 'median', 'p99', 'max', 'same_top')}

original = read('F32')
record = dict(facts.facts(facts.identity('model/demo/weft-demo.gguf')), command=command, text='model/demo/corpus.py, seed 1',
              windows=original['windows'], context=original['context'], scored=original['results'][0]['scored'],
              runs='one: what is computed is the same every time',
              spread='intervals of the means over the windows', backends={}, perplexity_of_f32=original['results'][0]['perplexity'], types={}, canvases=[])
for kind in types.split():
    stored = read(f'{kind}.type')['results'][0]
    entry = record['types'][kind] = dict(perplexity=stored['perplexity'], kl_f32_file_to_type=kl(stored), products_of_8_bits={})
    for backend in backends.split():
        measured = read(f'{kind}.{backend}')
        record['backends'][backend] = measured['backend']
        result = measured['results'][0]
        entry['products_of_8_bits'][backend] = dict(perplexity=result['perplexity'], kl_f32_to_products=kl(result))
for backend in backends.split():
    for result in read(f'canvas.{backend}')['results']:
        record['canvases'].append(dict(backend=backend, noise=result['noise'], scored=result['scored'],
                                       cross_entropy=result['cross_entropy'], kl_f32_to_products=kl(result)))
with open(f'{out}/quality.json', 'w') as file:
    json.dump(record, file, indent=1)
    file.write('\n')
PY
