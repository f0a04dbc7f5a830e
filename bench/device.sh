#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Everything on a bare GPU machine in one go: build (or take a folder of prebuilt programs), test, measure, and write one
# JSON record per row of the targets.
#
#   bench/device.sh [-p PREBUILT] [-m MODEL.gguf] [-o OUT] [-c COMMIT] [-q] [-s] [-t] [-e SECONDS] [-n CARDS] [-w PART]...
#     -p  folder with weft, libweft-cuda.so, bench_device_ops, bench_graph_mix and the tests named below (and lib/ with shared libraries that
#         the machine lacks, racecheck/libweft-cuda.so, compiled with -DWEFT_RACECHECK -lineinfo, without-NAME/ with
#         modules that lack one wait between streams, and beside libweft-cuda-portable.so of PTX of 8.0 alone
#         portable-90/libweft-cuda-portable.so of PTX of 9.0 (-DWEFT_CUDA_ARCHITECTURES=90-real)); without it the tree is built here, which needs cmake and nvcc
#     -m  a model, as bench/synthetic_gguf.py writes it (diffusion-gemma-26b for the targets; qwen3-30b-a3b, llama-2-7b and the others
#         are measured without canvases and floors); without it only tests and single ops are run
#     -o  folder of the results [bench/results/device]
#     -q  measure only, no tests
#     -s  memcheck and racecheck of compute-sanitizer over the kernel tests, many at once
#     -t  transformers as a peer (bench/peer_transformers.py), 100 s at most; with -m
#     -r  --precision of the model's figures [exact]: exact, fast or auto; each record says in product_bits what it was
#     -e  begin no part of the model after so many seconds of measuring [300]
#     -w  only this part of the model: check, load, repeats (the same prompts again and again), canvases, prefill, sequences, context, room, mix, graphs, arena, determinism, products, gaps, many; may be repeated. prefill
#         and sequences are the columns S_PP and S_TG of others' benches, for 1 to 64 and 1 to 128 sequences
#         split, which only runs where it is named and where there are several cards: the model on one card, with its layers on CARDS, and with
#         each layer on all of them, in turns, twice; some 6 minutes, at most 9. First the answers of all are compared: they must be one
#         replicas, likewise: the model on one card, and on each of CARDS, in turns, twice; at most 6 minutes
#         parts, likewise, with -n 4 or 8: the model on one card, and with its layers in two parts, each on half of CARDS, in turns, twice; at most 6 minutes, after
#         the answers were compared
#     -n  how many cards split, replicas and parts take: 2, 4 or 8 [2]
#         portable, which only runs where it is named: decode by the portable set, of each module that is there, in turns, twice
#         graph_mix, which only runs where it is named: steps as graphs beside the same steps call by call, bit for bit, and what a difference
#         depends on (bench/graph_mix.c); with a file of 18 GB a minute. It exits with 1 where there is a difference
#         serving, which only runs where it is named: `weft serve` under load (bench/serving.py), some 8 minutes
#         outlives, which only runs where it is named: weights of an owner, kept prefixes and upgrades (weft prove, bench/restarts.py; over CARDS
#         where there are several), models that come and go (bench/on_call.py, bench/attack); some 4 minutes
# Files: tests.jsonl (each test: result, seconds, command), check.jsonl (weft check on the card), ops.jsonl (every case of bench_device_ops beside its floor), energy.jsonl (those of 256 rows under sustained work), serving.jsonl (bench/serving.py), outlives.jsonl (bench/restarts.py, bench/on_call.py), model.json (records {work, device, date, commit, command,
# machine_code (the hash of the kernels, bench/machine_code.py), model (bench/facts.py), median, runs, spread (largest less smallest; null: one run), unit, floor, ratio, experts_touched, experts_expected}), room.json, peer.jsonl, one log per test.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
cd "$here/.."
prebuilt='' model='' out=bench/results/device commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown) tests=yes
sanitize=no peer=no seconds=300 parts='' n_split=2 precision=exact
while getopts 'p:m:o:c:e:n:r:w:qst' option; do
  case $option in
    p) prebuilt=$(realpath "$OPTARG") ;;
    m) model=$(realpath "$OPTARG") ;;
    o) out=$OPTARG ;;
    c) commit=$OPTARG ;;
    q) tests=no ;;
    s) sanitize=yes ;;
    t) peer=yes ;;
    e) seconds=$OPTARG ;;
    n) n_split=$OPTARG ;;
    r) precision=$OPTARG ;;
    w) parts="$parts $OPTARG" ;;
    *) exit 2 ;;
  esac
done
mkdir -p "$out"
if [ -z "$prebuilt" ]; then
  cmake -B build -S . -DWEFT_CUDA=ON >"$out/build.log"
  cmake --build build -j"$(nproc)" >>"$out/build.log"
  prebuilt=$PWD/build
fi
[ -d "$prebuilt/lib" ] && export LD_LIBRARY_PATH=$prebuilt/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
device=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)
n_cards=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)
echo "$device, commit $commit"
kernel_tests='kernels_kernels_matmul kernels_kernels_head kernels_kernels_ops kernels_kernels_experts kernels_kernels_attention
  kernels_kernels_fused kernels_kernels_canvas kernels_kernels_sample'

golden_tests='golden_model_parity golden_model_devices golden_model_mxfp4 golden_model_nvfp4 golden_api_devices'
failed=0
code=$(python3 bench/machine_code.py --whole "$prebuilt/libweft-cuda.so" | awk '{ print $1; exit }')
facts="\"device\":\"$device\",\"cards\":$n_cards,\"date\":\"$(date -I)\",\"commit\":\"$commit\",\"machine_code\":\"$code\""
small='"model":{"none":"files of the tree at that commit"},"runs":1,"spread":null' # of a test
export WEFT_COMMIT=$commit
# A portable module alone beside programs, so that they open no other: portable_alone NAME MODULE
portable_alone() {
  local program
  mkdir -p "$prebuilt/$1-alone" && cp "$2" "$prebuilt/$1-alone/libweft-cuda-portable.so"
  # shellcheck disable=SC2086 # a list of names
  for program in weft $(printf 'test_%s ' $kernel_tests golden_model_parity golden_model_laws prop_model_equalities prop_scheduler_equalities); do
    [ ! -e "$prebuilt/$program" ] || cp "$prebuilt/$program" "$prebuilt/$1-alone/"
  done
}
sets='' # of portable modules: portable, of PTX of 8.0 alone in a build for others, and portable90
[ ! -e "$prebuilt/libweft-cuda-portable.so" ] || { portable_alone portable "$prebuilt/libweft-cuda-portable.so" && sets=portable; }
[ ! -e "$prebuilt/portable-90/libweft-cuda-portable.so" ] || { portable_alone portable90 "$prebuilt/portable-90/libweft-cuda-portable.so" && sets="$sets portable90"; }
# Of what set a record is, by its name, and what the driver made its code of: tell_set NAME
tell_set() {
  local name=${1%%_*} folder=$prebuilt
  case $name in portable | portable90) folder=$prebuilt/$name-alone ;; *) name=hopper ;; esac
  printf '"set":"%s","built_for":"%s"' "${name%90}" "$(built_for "$folder")"
}
built_for() { # FOLDER: what code its module has, as 80-virtual: PTX of 8.0
  "$1/weft" --version | sed -n 's/^cuda  .*built for //p' | head -1
}

# judge NAME LOG CODE SECONDS COMMAND: one line for people, one record; a skipped test is a failure here, where the card is.
judge() {
  local result=passed
  [ "$3" = 0 ] || result="FAILED"
  if [ "$3" = 77 ]; then result='FAILED (skipped)'; fi
  printf '{"work":"%s","result":"%s","seconds":%d,"command":"%s",%s,%s,%s}\n' "$1" "$result" "$4" "$5" "$(tell_set "$1")" "$facts" "$small" >>"$out/tests.jsonl"
  echo "$result  $1"
  [ "$3" = 0 ] || { grep -E 'ERROR|FAILED|skipped' "$2" | head -5 || true; failed=1; }
}
# begin NAME PROGRAM ARGUMENTS...: its output goes to a log, its end to files that judge_all reads
begin() {
  local name=$1 start=$SECONDS code=0
  shift
  timeout 300 "$prebuilt/$@" >"$out/$name.log" 2>&1 || code=$?
  echo "$code $((SECONDS - start)) $*" >"$out/$name.end"
}
judge_all() {
  local end name code seconds command
  for end in "$out"/*.end; do
    name=$(basename "$end" .end)
    read -r code seconds command <"$end"
    judge "$name" "$out/$name.log" "$code" "$seconds" "$command"
    rm -f "$end"
  done
}
# The long ones, on the card alone and in parts at once; CI has the other backends. begin_long FOLDER PREFIX: of the programs there
begin_long() {
  local n
  for n in 0 1 2 3 4; do
    begin "$2golden_model_laws-$n" "$1test_golden_model_laws" cuda "$n/5" &
    begin "$2prop_scheduler_equalities-$n" "$1test_prop_scheduler_equalities" 1 cuda "$n" &
  done
  begin "$2prop_model_equalities" "$1test_prop_model_equalities" 3 1 cuda &
}
# The portable set, of one module: test_portable_set NAME
test_portable_set() {
  local name
  for name in $kernel_tests; do begin "$1_$name" "$1-alone/test_$name" quick '*' 0/1 set=portable & done
  begin "$1_golden_model_parity" "$1-alone/test_golden_model_parity" &
  begin_long "$1-alone/" "$1_"
  wait
}
# A module that lacks a wait must be caught: else the test of the order between streams proves nothing.
test_without_waits() {
  local folder code
  for folder in "$prebuilt"/without-*; do
    [ -e "$folder/libweft-cuda.so" ] || continue
    cp "$prebuilt/test_kernels_kernels_streamed" "$folder/" # it opens the module beside it
    code=0
    timeout 300 "$folder/test_kernels_kernels_streamed" >"$out/$(basename "$folder").log" 2>&1 || code=$?
    if grep -q '^FAILED: .*rows, ' "$out/$(basename "$folder").log"; then code=0; else code=1; fi
    judge "order between streams, $(basename "$folder") must fail" "$out/$(basename "$folder").log" "$code" 0 \
      "$(basename "$folder")/test_kernels_kernels_streamed"
  done
}
# weft check FILE: every op of the card against ref
check_model() {
  local start=$SECONDS code=0 name
  name=check-$(basename "$1" .gguf)
  timeout 200 "$prebuilt/weft" check -m "$1" --backend cuda --precision exact --seconds "$2" --json >"$out/$name.json" 2>"$out/$name.log" || code=$?
  judge "weft check $(basename "$1")" "$out/$name.log" "$code" "$((SECONDS - start))" \
    "weft check -m $(basename "$1") --backend cuda --precision exact --seconds $2 --json"
  [ ! -s "$out/$name.json" ] ||
    sed "s/^{/{$facts,\"model\":$(python3 "$here/facts.py" "$1"),\"runs\":1,\"spread\":null,\"seconds\":$((SECONDS - start)),/" "$out/$name.json" | tee -a "$out/check.jsonl"
  rm -f "$out/$name.json"
}
if [ $tests = yes ]; then
  rm -f "$out"/tests.jsonl "$out"/check.jsonl "$out"/*.end
  for name in $kernel_tests $golden_tests; do begin "$name" "test_$name" & done # at once: nothing is timed
  begin prop_api_equalities test_prop_api_equalities --backend cuda &
  begin_long '' ''
  wait
  for name in $sets; do test_portable_set "$name"; done
  begin kernels_kernels_streamed test_kernels_kernels_streamed # alone: its copies must have the bus to themselves
  begin fault_api_card test_fault_api_card                     # alone: it looks at what is free
  begin fault_api_full_card test_fault_api_full_card           # alone: it fills the card
  [ "$n_cards" = 1 ] || begin kernels_kernels_cards test_kernels_kernels_cards
  [ "$n_cards" = 1 ] || begin unit_kernels_shards test_unit_kernels_shards
  judge_all
  test_without_waits
  for file in model/demo/weft-demo.gguf model/demo/weft-demo-ar.gguf tests/golden/models/dg-mxfp4.gguf; do check_model "$file" 30; done
fi

# The demo model's answers, judged, on the cpu, by Hopper's set and by each portable module: within one point.
evaluate() {
  local on folder by
  for on in cpu cuda $sets; do
    folder=$prebuilt by="--backend $on"
    case $on in portable*) folder=$prebuilt/$on-alone by='--backend cuda --isa portable' ;; esac
    # shellcheck disable=SC2086 # options and their values
    timeout 300 "$folder/weft" eval -m model/demo/weft-demo.gguf --cases model/demo/eval.jsonl $by -q --json \
      >"$out/eval-$on.json" 2>"$out/eval-$on.log" || echo "weft eval by $on: exit code $?"
  done
  # shellcheck disable=SC2086 # a list of names
  python3 - "$out" cuda $sets <<'PY'
import json, sys
out, cards = sys.argv[1], sys.argv[2:]
cpu, failed = json.load(open(f'{out}/eval-cpu.json')), False
for on in cards:
    card, worst = json.load(open(f'{out}/eval-{on}.json')), 0.0
    for kind, name in ('exact', 'one right answer'), ('many', 'many right answers'):
        for way in 'ar', 'diffusion':
            a, b = 100 * cpu[kind][way], 100 * card[kind][way]
            worst = max(worst, abs(a - b))
            print(f'evaluation, {name:18s} {way:9s} n {cpu[kind]["n"]}: cpu {a:5.1f} %, {on} {b:5.1f} %')
    passed = worst <= 1.0 and cpu['passed'] and card['passed']
    failed = failed or not passed
    print(f'passed  evaluation by {on}' if passed else f'FAILED  evaluation by {on}: {worst:.2f} points apart')
sys.exit(failed)
PY
}
[ $tests = no ] || evaluate || failed=1
if [ $tests = yes ] && command -v cuobjdump >/dev/null; then
  (cuobjdump -sass "$prebuilt/libweft-cuda.so" 2>&1 | python3 "$here/in_flight.py") >"$out/in_flight.log" || true
  tail -1 "$out/in_flight.log"
  if grep -q 'may still run' "$out/in_flight.log"; then failed=1; fi
fi

# compute-sanitizer over the kernel tests, many at once. memcheck runs all of them. racecheck is slow: it runs a fixed part of
# the cases, at least one of every kernel, on a module in which it can see what orders things (WEFT_RACECHECK in kernels/cuda).
sanitized() { # folder, tool, program, tests, cases, set=NAME or nothing
  local log=$out/$2-$3-${4//[*]/x}-${5//\//of}${6:+-portable}.log start=$SECONDS report='' found
  [ "$2" = racecheck ] && report='--racecheck-report analysis'
  # shellcheck disable=SC2086 # an option or none
  timeout -k 5 240 compute-sanitizer --tool "$2" $report --print-limit 20 --show-backtrace no "$1/test_kernels_$3" quick "$4" "$5" ${6:-} \
    >"$log" 2>&1 || true
  found=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | sed 's/=* *//' || true)
  case $found in
    *'SUMMARY: 0 '*) found=clean ;;
    '') found="not ended; $(grep -cE '^========= (Invalid|Potential|Error|Warning|Program hit|Uninit|Barrier)' "$log" || true) found" ;;
  esac
  grep -q 'FAILED' "$log" && found="$found, tests failed"
  echo "$2 $3 $4 $5${6:+ $6}: $found, $((SECONDS - start)) s"
}
# Sums over two cards. What a call of CUDA answers is no error of a kernel: a card may reach another already.
sanitized_sums() {
  local log=$out/memcheck-kernels_shards.log start=$SECONDS code=0
  timeout -k 5 240 compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 --print-limit 20 --show-backtrace no \
    "$prebuilt/test_unit_kernels_shards" >"$log" 2>&1 || code=$?
  echo "memcheck kernels_shards: exit code $code, $((SECONDS - start)) s"
}
sanitize() {
  local checked=$prebuilt/racecheck part
  if [ ! -e "$checked/libweft-cuda.so" ]; then
    command -v cmake nvcc >/dev/null || { echo 'left out racecheck: no module for it'; return 0; }
    cmake -B build-racecheck -S . -DWEFT_CUDA=ON -DCMAKE_CUDA_FLAGS='-DWEFT_RACECHECK -lineinfo' >"$out/build.log"
    cmake --build build-racecheck -j"$(nproc)" --target weft_cuda >>"$out/build.log"
    mkdir -p "$checked" && cp build-racecheck/libweft-cuda.so "$checked/"
  fi
  cp "$prebuilt"/test_kernels_* "$checked/" # they open the module beside them
  [ "$n_cards" = 1 ] || sanitized_sums &
  for part in $kernel_tests; do sanitized "$prebuilt" memcheck "${part#kernels_}" 'test_*' 0/1 & done
  for part in kernels_matmul:test_products 'kernels_ops:test_*' 'kernels_fused:test_*' kernels_head:test_meaning; do
    [[ " $sets " != *" portable "* ]] || sanitized "$prebuilt/portable-alone" memcheck "${part%%:*}" "${part#*:}" 0/1 set=portable &
  done
  for part in 0/4 1/4 2/4 3/4; do sanitized "$checked" racecheck kernels_attention test_parity $part & done
  sanitized "$checked" racecheck kernels_canvas 'test_*' 0/9 &
  sanitized "$checked" racecheck kernels_experts test_parts 0/1 &
  sanitized "$checked" racecheck kernels_experts test_against_ref 0/1 &
  sanitized "$checked" racecheck kernels_fused 'test_*' 0/1 &
  for part in test_meaning test_many_rows test_soft_op; do sanitized "$checked" racecheck kernels_head $part 0/1 & done
  for part in test_products test_many_rows test_three_weights; do sanitized "$checked" racecheck kernels_matmul $part 0/1 & done
  sanitized "$checked" racecheck kernels_matmul test_items 3/5 &
  sanitized "$checked" racecheck kernels_ops 'test_*' 0/1 &
  for part in 3/54 5/54 8/54; do sanitized "$checked" racecheck kernels_sample test_equals_ref $part & done
  wait
}
[ $sanitize = no ] || sanitize
[ $failed = 0 ] || exit 1

SECONDS=0
if [ -z "$parts" ]; then
  operands='random operands of the shapes of diffusion-gemma-26b'
  python3 "$here/facts.py" run -n "$operands" -f machine_code="$code" -f runs=5 "$prebuilt/bench_device_ops" cuda >"$out/ops.jsonl"
  python3 "$here/facts.py" run -n "$operands" -f machine_code="$code" -f runs=5 "$prebuilt/bench_device_ops" cuda '' 256 1 >"$out/energy.jsonl"
fi
[ -n "$model" ] || exit 0
# A model without canvases is measured without what is about them, and beside no floors: these are of one model.
canvas=$("$prebuilt/weft" inspect "$model" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["model"]["canvas"])')
canvases='canvases sequences'
[ "$canvas" -gt 0 ] || canvases=sequences

# One run of weft bench; the rows it prints are kept beside the command.
bench() { # part, name of the run, what and options; limit: seconds
  local run=$2 start=$SECONDS
  [[ "$*" == *--precision* ]] || set -- "$@" --precision "$precision"
  [[ -z $parts || " $parts " == *" $1 "* ]] || return 0
  [ $SECONDS -lt "$seconds" ] || { echo "left out $run: $SECONDS s are over"; return 0; }
  shift 2
  echo "weft bench $* --backend cuda${module:+ (module built for $module)}" >"$out/$run.command"
  timeout "${limit:-110}" "${program:-$prebuilt/weft}" bench "$@" -m "$model" --backend cuda -q --json >"$out/$run.rows" 2>"$out/$run.log" ||
    echo "stopped: $run: $(tail -1 "$out/$run.log")"
  echo "$run: $((SECONDS - start)) s"
}
load() { # from the page cache, if the file is there
  [[ -z $parts || " $parts " == *" load "* ]] || return 0
  echo "weft generate -c 512 --running 1 --kv-mib 512 -p x -n 1 -v --backend cuda" >"$out/load.command"
  "$prebuilt/weft" generate -m "$model" --backend cuda -c 512 --running 1 --kv-mib 512 -p x -n 1 -v 2>"$out/load.rows" >"$out/load.log" || true
}
# One decode step: its time, and its kernels one by one.
gaps() {
  local what='model sequences --n-prompt 512 --kv-mib 4096 -c 1024 --rows 2048 --running 1 --repeat 1 --backend cuda -q --json'
  [[ -z $parts || " $parts " == *" gaps "* ]] || return 0
  [ $SECONDS -lt "$seconds" ] && command -v ncu >/dev/null || { echo 'left out gaps'; return 0; }
  # shellcheck disable=SC2086 # a list of options
  {
    timeout 60 "$prebuilt/weft" bench $what -m "$model" --precision "$precision" --n-generate 32 >"$out/gaps.rows" 2>"$out/gaps.log" &&
      timeout 110 ncu --csv --clock-control none --cache-control none --metrics gpu__time_duration.sum \
        "$prebuilt/weft" bench $what -m "$model" --precision "$precision" --n-generate 4 --no-graphs >"$out/gaps.csv" 2>>"$out/gaps.log" &&
      python3 "$here/launch_gaps.py" "$out/gaps.rows" "$out/gaps.csv" 2>"$out/gaps.kernels" | tee "$out/gaps.record"
  } || echo "stopped: gaps: $(tail -1 "$out/gaps.log")"
  rm -f "$out/gaps.csv" "$out/gaps.rows"
}
[[ -n $parts && " $parts " != *" check "* ]] || check_model "$model" 60
load
# Answers are the same in every run, in both precisions.
for products in exact fast; do
  bench repeats "repeats-$products" repeats --precision "$products" --running 128 --n-prompt 256 --n-generate 48 --repeat 10
done
gaps
# One card and n_split, in turns, so that a machine that changes does the same to all; and one answer of each, which must be that of one card.
list=$(seq -s, 0 $((n_split - 1)))
declare -A ways=([one]='' [layers]="--devices $list" [shards]="--devices $list --split tensor" [plain]="--devices $list --split tensor --no-graphs"
  [replicas]="--devices $list --split replicas" [parts]="--devices $list --split tensor:$((n_split / 2)),layer:2"
  [plain_parts]="--devices $list --split tensor:$((n_split / 2)),layer:2 --no-graphs")
# in_turns PART NAME...: what each of these ways measures
in_turns() {
  local limit=75 turn name part=$1
  shift
  for turn in 1 2; do
    for name in "$@"; do
      # shellcheck disable=SC2086 # options and their values, or none
      bench "$part" "split-$name-$n_split-$turn" model $canvases prefill context --n-prompt 512 --kv-mib 32768 -c 2304 --rows 8192 \
        --running 128 --n-generate 64 --repeat 2 ${ways[$name]}
    done
  done
}
has_cards() {
  [ "$n_cards" -ge "$n_split" ] || { echo "left out $1: there are $n_cards cards, and -n asks for $n_split"; return 1; }
}
# same_answer NAME...: each of these ways answers as one card does
same_answer() {
  local name
  for name in one "$@"; do
    # shellcheck disable=SC2086 # options and their values, or none
    timeout 60 "$prebuilt/weft" generate -m "$model" --backend cuda --precision "$precision" -c 512 --running 1 --kv-mib 512 -p 'one and two' -n 24 --temperature 0 -v ${ways[$name]} \
      >"$out/split-answer-$name.log" 2>"$out/split-plan-$name.log" || { echo "stopped: split: $(tail -1 "$out/split-plan-$name.log")"; return 1; }
  done
  for name in "$@"; do
    cat "$out/split-plan-$name.log"
    cmp "$out/split-answer-one.log" "$out/split-answer-$name.log" || return 1
  done
  echo "passed  one answer on one card and on $n_split: $*"
}
split() {
  has_cards split || return 0
  same_answer layers shards plain || return 1
  in_turns split one layers shards
}
parts_of_shards() {
  has_cards parts || return 0
  [ "$n_split" -ge 4 ] || { echo "left out parts: they take four cards or eight (-n)"; return 0; }
  same_answer parts plain_parts || return 1
  in_turns parts one parts
}
replicas() {
  has_cards replicas || return 0
  in_turns replicas one replicas
}
[[ " $parts " != *" split "* ]] || split || failed=1
[[ " $parts " != *" replicas "* ]] || replicas || failed=1
[[ " $parts " != *" parts "* ]] || parts_of_shards || failed=1
portable() {
  local turn name program module
  for turn in 1 2; do
    for name in $sets; do
      program=$prebuilt/$name-alone/weft module=$(built_for "$prebuilt/$name-alone")
      bench portable "$name-$turn" model sequences --isa portable --n-prompt 512 --kv-mib 16384 -c 1024 --running 32 --n-generate 24 --repeat 1
    done
  done
}
[[ " $parts " != *" portable "* ]] || portable
graph_mix() {
  local code=0
  timeout 400 "$prebuilt/bench_graph_mix" "$model" cuda >"$out/graph_mix.log" 2>&1 || code=$?
  cat "$out/graph_mix.log"
  [ $code = 0 ] && echo 'passed  steps as graphs' || { echo "FAILED  steps as graphs: exit code $code"; return 1; }
}
[[ " $parts " != *" graph_mix "* ]] || graph_mix || failed=1
[[ " $parts " != *" serving "* ]] || python3 "$here/serving.py" "$prebuilt/weft" "$model" | tee "$out/serving.jsonl"
# outlived LIMIT NAME COMMAND...: one row about the models of `about`, judged by its exit code
outlived() {
  local limit=$1 name=$2 start=$SECONDS code=0
  shift 2
  timeout "$limit" python3 "$here/facts.py" run "${about[@]}" -f machine_code="$code_of" -f runs=1 "$@" >"$out/outlives.row" 2>"$out/outlives-$name.log" || code=$?
  cat "$out/outlives.row" >>"$out/outlives.jsonl"
  judge "$name" "$out/outlives-$name.log" "$code" "$((SECONDS - start))" "${*#"$prebuilt/"}"
  rm -f "$out/outlives.row"
}
outlives() {
  local name products way start code code_of=$code kv='--kv-mib 8192' about=(-m "$model")
  rm -f "$out/outlives.jsonl"
  for products in exact fast; do
    for name in kept upgrade shared-weights shared-weights-ipc; do
      start=$SECONDS code=0
      WEFT_PRECISION=$products timeout 60 "$prebuilt/weft" prove -m model/demo/weft-demo-ar.gguf --backend cuda --candidate $name --suite greedy \
        --contract argmax_generation --prompts general >"$out/prove-$name-$products.log" 2>&1 || code=$?
      judge "weft prove $name, $products" "$out/prove-$name-$products.log" "$code" "$((SECONDS - start))" "weft prove --candidate $name, WEFT_PRECISION=$products"
    done
  done
  # shellcheck disable=SC2086 # options and their values
  {
    outlived 60 start python3 "$here/restarts.py" start -p "$prebuilt" -m "$model" -- $kv --context 4096
    outlived 60 upgrade python3 "$here/restarts.py" upgrade -p "$prebuilt" -m "$model" -k 1024 -- $kv
    outlived 60 kept python3 "$here/restarts.py" kept -p "$prebuilt" -m "$model" -f "$out/weft.kept" -- --kv-mib 16384 --host-mib 4096 --spill-mib 4096
    outlived 60 memory python3 "$here/restarts.py" memory -p "$prebuilt" -m "$model" -n 2 -- $kv --context 4096
    for way in layer tensor; do
      [ "$n_cards" -lt 2 ] ||
        outlived 60 "memory-$way" python3 "$here/restarts.py" memory -p "$prebuilt" -m "$model" -n 2 -- $kv --context 4096 --devices "$list" --split $way
    done
    mkdir -p "$out/on-call"
    [ -e "$out/on-call/a.gguf" ] || python3 "$here/synthetic_gguf.py" qwen3-8b:8 q4_0 "$out/on-call/a.gguf"
    [ -e "$out/on-call/b.gguf" ] || python3 "$here/synthetic_gguf.py" llama-3-8b:12 q4_k_m "$out/on-call/b.gguf"
    about=(-m "$out/on-call/a.gguf" -m "$out/on-call/b.gguf")
    for products in exact fast; do
      outlived 90 "on-call-$products" python3 "$here/on_call.py" -l 20 -p "$prebuilt" -d "$out/on-call" -t 600 -r 6 -q 20 -x 10 -- --kv-mib 4096 \
        --models-mib 20000 --context 4096 --sleep-mib 8192 --precision $products
    done
  }
  start=$SECONDS code=0
  timeout 90 python3 "$here/attack" --weft "$prebuilt/weft" --quick --only loads,sleeps --models-mib 100 >"$out/attack.log" 2>&1 || code=$?
  judge 'attacks by loads and sleeps' "$out/attack.log" "$code" "$((SECONDS - start))" 'bench/attack --quick --only loads,sleeps --models-mib 100'
}
[[ " $parts " != *" outlives "* ]] || outlives
one='--n-prompt 512 --kv-mib 32768 -c 1024'
# shellcheck disable=SC2086 # a list of options
{
  [ "$canvas" = 0 ] || bench canvases canvases model canvases $one --rows 8192 --running 32 --repeat 2
  bench prefill prefill model prefill $one --rows 2048 --running 64 --repeat 2
  bench sequences sequences model sequences $one --rows 2048 --running 128 --n-generate 64 --repeat 2
  bench context context model context --kv-mib 8192 -c 66048 --rows 2048 --running 4 --n-generate 32 --repeat 1
  bench room room-small room --kv-mib 8192 -c 2304 --rows 16384 --running 64
  bench graphs no-graphs model $canvases $one --rows 2048 --running 32 --n-generate 32 --no-graphs --repeat 1
  bench determinism deterministic model $canvases $one --rows 2048 --running 32 --n-generate 32 --repeat 1
  bench determinism no-deterministic model $canvases $one --rows 2048 --running 32 --n-generate 32 --no-deterministic --repeat 1
  bench products fast model $canvases $one --rows 8192 --running 32 --n-generate 32 --precision fast --repeat 2
  [ "$canvas" = 0 ] || bench mix mix model mix --n-prompt 128 --kv-mib 32768 -c 512 --rows 4096 --running 160 --repeat 1
  bench many many model sequences --n-prompt 64 --kv-mib 32768 -c 256 --rows 2048 --running 1024 --queue 1024 --n-generate 96 --repeat 1
  bench arena no-arena model $canvases $one --rows 2048 --running 32 --n-generate 32 --no-arena --repeat 1
}
if [ $peer = yes ] && [ $SECONDS -lt "$seconds" ]; then
  timeout 100 python3 "$here/peer_transformers.py" | tee "$out/peer.jsonl" || true
fi
bench room room-large room --kv-mib 17600 -c 2304 --rows 20480 --running 70

python3 - "$out" "{$facts,\"model\":$(python3 "$here/facts.py" "$model")}" "$canvas" "$("$prebuilt/bench_device_ops" cuda no-case 2>&1 | tail -1)" "$n_split" <<'PY'
import glob, json, os, re, sys
out, here = sys.argv[1], json.loads(sys.argv[2])
is_target, n_split = sys.argv[3] != '0', sys.argv[5]
# floors on one H200, prompts of 512 tokens: sums over the ops of max(bytes / 4.2 TB/s, operations / 770 TFLOP/s)
# by what the card says of its clocks; another card, or one with other clocks, has none
rates = re.search(r'floors by ([0-9.]+) and ([0-9.]+)', sys.argv[4])
if not rates or abs(float(rates[1]) / 4.2 - 1) > 0.02 or abs(float(rates[2]) / 770 - 1) > 0.02:
    is_target = False
    print('no floors: those of steps are sums for 4.2 TB/s and 770 TFLOP/s, and this card has others:', sys.argv[4])
floors = {'canvas step, 1 at once, after 512': 5.7, 'canvas step, 1 at once, after 16384': 6.6, 'canvas step, 8 at once, after 512': 25.0,
          'canvas step, 32 at once, after 512': 101.0, 'decode, 1 at once, after 512': 1800.0,
          'decode, 32 at once, after 512': 7000.0, 'decode, 128 at once, after 512': 15500.0, 'prefill 2048': 121000.0}
model, room, by_run = [], [], {}
for path in sorted(glob.glob(f'{out}/*.command')):
    run, command = os.path.basename(path)[:-8], open(path).read().strip()
    try:
        text = open(f'{out}/{run}.rows').read()
        rate = re.search(r'([0-9.]+) GB/s', text)
        rows = [dict(work='load weights', median=float(rate[1]), spread=0.0, unit='GB/s')] if rate else json.loads(text)
    except (OSError, ValueError):
        rows = []
    facts = dict(here, command=command)
    for row in rows:
        if 'predicted' in row:
            room.append(dict(row, **facts, runs=1, spread=None))
            print(f"{row['work']:36s} {row['measured']:6d} run to the end, {row['predicted']} predicted")
            continue
        name, value, floor = row['work'], row['median'], floors.get(row['work']) if is_target and '--devices' not in command else None
        by_run.setdefault(run, {})[name] = (value, row['spread'], row['unit'])
        ratio = None if floor is None else round(value / floor if row['unit'].startswith('ms') else floor / value, 2)
        repeats = re.search(r'--repeat (\d+)', command)
        runs = int(repeats[1]) if repeats else 1
        touched, expected = row.get('experts_touched'), row.get('experts_expected')
        model.append(dict(work=name, **facts, median=round(value, 2), runs=runs,
                          spread=round(row['spread'], 2) if runs > 1 else None, unit=row['unit'], floor=floor,
                          ratio=ratio, experts_touched=None if touched is None else round(touched, 1),
                          experts_expected=None if expected is None else round(expected, 1),
                          first_ms=round(row.get('first_ms', 0.0), 1), kv_mib=round(row.get('kv_mib', 0.0), 1)))
        print(f"{run:20s} {name:36s} {value:10.2f} {row['unit']:8s} floor {floor}  {ratio} x floor, experts {touched}")
    for end in ('command', 'rows', 'log'):
        if os.path.exists(f'{out}/{run}.{end}'):
            os.remove(f'{out}/{run}.{end}')
# what the contract of determinism costs: time with it over time without it
for name, (on, spread, unit) in by_run.get('deterministic', {}).items():
    off = by_run.get('no-deterministic', {}).get(name)
    if off is None or on == 0 or off[0] == 0:
        continue
    cost = 100 * ((on / off[0] if unit.startswith('ms') else off[0] / on) - 1)
    noise = 100 * (spread / on + off[1] / off[0])
    model.append(dict(here, work=f'cost of determinism, {name}', command='bench/device.sh -w determinism', median=round(cost, 2), spread=round(noise, 2) if noise > 0 else None, unit='%',
                      floor=None, ratio=None, experts_touched=None, experts_expected=None))
    print(f"{'cost of determinism':20s} {name:36s} {cost:10.2f} %  (spreads of the two runs: {noise:.2f} %)")
# what a second card brings: the time of two over that of one, means of the turns
turns = {how: [rows for run, rows in by_run.items() if run.startswith(f'split-{how}-')] for how in ('one', 'layers', 'shards', 'replicas', 'parts')}
for how in ('layers', 'shards', 'replicas', 'parts'):
    for name in dict.fromkeys(name for rows in turns['one'] for name in rows):
        mean = {}
        for way in ('one', how):
            values = [rows[name][0] for rows in turns[way] if name in rows]
            mean[way] = sum(values) / len(values) if values else 0
        if not all(mean.values()):
            continue
        ratio = mean[how] / mean['one']
        if not turns['one'][0].get(name, (0, 0, 'ms'))[2].startswith('ms'):
            ratio = 1 / ratio
        on = {'layers': f'{n_split} cards', 'shards': f'{n_split} cards, each layer on all,', 'replicas': f'{n_split} replicas',
              'parts': f'two parts of {int(n_split) // 2} cards each,'}[how]
        part = how if how in ('replicas', 'parts') else 'split'
        model.append(dict(here, work=f'time on {on} over one, {name}', command=f'bench/device.sh -w {part} -n {n_split}', median=round(ratio, 3), spread=None, unit='x', floor=None, ratio=None,
                          experts_touched=None, experts_expected=None))
        print(f"{how + ' over one':20s} {name:36s} {ratio:10.3f} of the time, {1 / ratio:.2f} times as fast")
if os.path.exists(f'{out}/gaps.record') and os.path.getsize(f'{out}/gaps.record') > 0:
    model.append(dict(json.load(open(f'{out}/gaps.record')), **here, command='bench/device.sh -w gaps', spread=None, floor=None, ratio=None, experts_touched=None,
                      experts_expected=None))
if model:
    json.dump(model, open(f'{out}/model.json', 'w'), indent=1)
if room:
    json.dump(room, open(f'{out}/room.json', 'w'), indent=1)
PY
exit "$failed"
