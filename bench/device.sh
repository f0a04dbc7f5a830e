#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Everything on a bare GPU machine in one go: build (or take a folder of prebuilt programs), test, measure, and write one
# JSON record per row of the targets.
#
#   bench/device.sh [-p PREBUILT] [-m MODEL.gguf] [-o OUT] [-c COMMIT] [-q]
#     -p  folder with weft, libweft-cuda.so, bench_device_ops, test_kernels_* and test_golden_* (and lib/ with shared
#         libraries that the machine lacks); without it the tree is built here, which needs cmake and nvcc
#     -m  a 26B mixture of experts as a diffusion-gemma file; without it only tests and single ops are run
#     -o  folder of the results [bench/results/device]
#     -q  measure only, no tests
# Files: ops.jsonl (every case of bench_device_ops beside its floor), model.json (records {work, device, date, commit, command,
# median, spread, unit, floor, ratio, experts_expected}), one log per test.
set -euo pipefail
cd "$(dirname "$0")/.."
prebuilt='' model='' out=bench/results/device commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown) tests=yes
while getopts 'p:m:o:c:q' option; do
  case $option in
    p) prebuilt=$(realpath "$OPTARG") ;;
    m) model=$(realpath "$OPTARG") ;;
    o) out=$OPTARG ;;
    c) commit=$OPTARG ;;
    q) tests=no ;;
    *) exit 2 ;;
  esac
done
mkdir -p "$out"
if [ -z "$prebuilt" ]; then
  cmake -B build -S . -DWEFT_CUDA=ON >"$out/build.log"
  cmake --build build -j"$(nproc)" >>"$out/build.log"
  prebuilt=$PWD/build
fi
[ -d "$prebuilt/lib" ] && export LD_LIBRARY_PATH=$prebuilt/lib
device=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)
echo "$device, commit $commit"

failed=0
if [ $tests = yes ]; then
  for name in kernels_kernels_matmul kernels_kernels_head kernels_kernels_ops kernels_kernels_experts kernels_kernels_attention \
    golden_model_parity golden_model_laws; do
    if timeout 300 "$prebuilt/test_$name" >"$out/$name.log" 2>&1; then echo "passed  $name"; else
      echo "FAILED  $name"
      grep -E 'ERROR|FAILED' "$out/$name.log" | head -5
      failed=1
    fi
  done
fi
[ $failed = 0 ] || exit 1

"$prebuilt/bench_device_ops" cuda >"$out/ops.jsonl"
[ -n "$model" ] || exit 0

# weft bench model, once per prompt length and number of sequences; the rows it prints are kept beside the command.
measure() { # name of the part, options
  local part=$1
  shift
  echo "weft bench model --backend cuda $*" >"$out/$part.command"
  "$prebuilt/weft" bench model -m "$model" --backend cuda -q --json "$@" >"$out/$part.rows" || echo "[]" >"$out/$part.rows"
}
measure short --rows 2048 -c 4096 --n-prompt 512 --n-generate 32
measure chunk --rows 2048 -c 4096 --n-prompt 2048 --n-generate 32 --n-parallel 32 --running 128
measure many --rows 2048 -c 1024 --n-prompt 64 --n-generate 32 --n-parallel 128 --running 128
measure long --rows 2048 -c 20480 --n-prompt 16384 --n-generate 8 --n-parallel 1
python3 - "$out" "$device" "$commit" <<'PY'
import datetime, json, os, sys
out, device, commit = sys.argv[1:4]
# floors on one H200: sums over the ops of max(bytes / 4.2 TB/s, operations / 770 TFLOP/s)
floors = {('short', 'canvas'): 5.7, ('long', 'canvas'): 6.6, ('short', 'decode, 1 '): 1800.0, ('short', 'decode, 32 '): 7000.0,
          ('many', 'decode, 128 '): 15500.0, ('chunk', 'prefill'): 121000.0}
experts = lambda rows: round(128 * (1 - (1 - 8 / 128) ** rows), 1)  # of 128 in a layer, expected
records = []
for part in ('short', 'chunk', 'many', 'long'):
    command = open(f'{out}/{part}.command').read().strip()
    for row in json.load(open(f'{out}/{part}.rows')):
        name, value = row['work'], row['median']
        floor = next((f for (p, start), f in floors.items() if p == part and name.startswith(start)), None)
        rows = 256 if name.startswith('canvas') else min(2048, row['n_prompt']) if name.startswith('prefill') else row['n_parallel']
        ratio = None if floor is None else round(value / floor if row['unit'].startswith('ms') else floor / value, 2)
        records.append(dict(work=name, device=device, date=datetime.date.today().isoformat(), commit=commit, command=command,
                            median=round(value, 2), spread=round(row['spread'], 2), unit=row['unit'], floor=floor, ratio=ratio,
                            experts_expected=experts(rows)))
        print(f"{name:28s} {value:12.2f} {row['unit']:8s} floor {floor}  {ratio} x floor")
    os.remove(f'{out}/{part}.command'), os.remove(f'{out}/{part}.rows')
json.dump(records, open(f'{out}/model.json', 'w'), indent=1)
PY
