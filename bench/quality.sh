#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# bench/results/quality.json: what types of weights and products of 8 bits cost the demo model, as KL divergences. What is
# computed does not depend on the machine's speed, so a busy one will do.
#
#   bench/quality.sh [-n CONVERSATIONS] [-w WINDOWS] [-o OUT] [-p PYTHON]
#     -n  conversations of the text, drawn by model/demo/corpus.py, held out from training [60]
#     -w  most windows of 256 tokens [24]; ref takes a few seconds of one core for each
#     -o  folder of the record [bench/results]
#     -p  a Python with the package gguf [python3]
# For each type: the demo's values stored in it, computed by ref (doubles) and by cpu (rows in 8 bits), token by token; and
# the demo itself as canvases under noise. P is named first: KL(P || Q).
set -euo pipefail
cd "$(dirname "$0")/.."
conversations=60 windows=24 out=bench/results python=python3
while getopts 'n:w:o:p:' option; do
  case $option in
    n) conversations=$OPTARG ;;
    w) windows=$OPTARG ;;
    o) out=$OPTARG ;;
    p) python=$OPTARG ;;
    *) exit 2 ;;
  esac
done
weft=build/weft work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" model/demo/corpus.py "$conversations" 1 >"$work/text"
measure() { # NAME FILE OPTIONS...: the record of one run
  local name=$1 file=$2
  shift 2
  "$weft" perplexity -m "$file" -f "$work/text" --special -c 256 --chunks "$windows" --json -q "$@" >"$work/$name.json"
}
"$python" bench/requantise.py model/demo/weft-demo.gguf "$work/F32.gguf" F32
measure F32.ref "$work/F32.gguf" --mode ar --backend ref --save-logits "$work/original"
for type in Q8_0 Q5_1 Q5_0 Q4_1 Q4_0; do
  "$python" bench/requantise.py model/demo/weft-demo.gguf "$work/$type.gguf" "$type"
  measure $type.ref "$work/$type.gguf" --mode ar --backend ref --save-logits "$work/rows"
  measure $type.products "$work/$type.gguf" --mode ar --backend cpu --kl "$work/rows"
  measure $type.type "$work/$type.gguf" --mode ar --backend ref --kl "$work/original"
done
measure canvas.ref model/demo/weft-demo.gguf --backend ref --save-logits "$work/rows"
measure canvas.products model/demo/weft-demo.gguf --backend cpu --kl "$work/rows"
"$python" - "$work" "$out" "bench/quality.sh -n $conversations -w $windows" "$(git rev-parse --short HEAD)" <<'PY'
import datetime, json, sys
work, out, command, commit = sys.argv[1:5]

def read(name):
    return json.load(open(f'{work}/{name}.json'))

def kl(of):
    return {key: of['kl'][key] for key in ('mean', 'mean_interval', 'median', 'p99', 'max', 'same_top')}

original = read('F32.ref')
record = dict(date=datetime.date.today().isoformat(), commit=commit, command=command, text='model/demo/corpus.py, seed 1',
              windows=original['windows'], context=original['context'], scored=original['results'][0]['scored'],
              perplexity_of_f32=original['results'][0]['perplexity'], types={}, canvases=[])
for kind in ('Q8_0', 'Q5_1', 'Q5_0', 'Q4_1', 'Q4_0'):
    products, stored = read(f'{kind}.products'), read(f'{kind}.type')
    record['types'][kind] = dict(perplexity=stored['results'][0]['perplexity'],
                                 perplexity_8_bit_products=products['results'][0]['perplexity'],
                                 kl_f32_file_to_type=kl(stored['results'][0]),
                                 kl_ref_to_8_bit_products=kl(products['results'][0]))
products = read('canvas.products')
record['backend_of_8_bit_products'] = products['backend']
for result in products['results']:
    record['canvases'].append(dict(noise=result['noise'], scored=result['scored'], cross_entropy=result['cross_entropy'],
                                   kl_ref_to_8_bit_products=kl(result)))
with open(f'{out}/quality.json', 'w') as file:
    json.dump(record, file, indent=1)
    file.write('\n')
PY
