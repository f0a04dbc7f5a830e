#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What several cards of one host show, in calls of at most nine minutes each: equal answers, the exchange under a
# sanitizer, what --split auto chooses, and times of every split beside one card.
#
#   bench/cards.sh -n CARDS [-p PREBUILT] [-m MODEL.gguf] [-o OUT] [-c COMMIT] [-l] CALL
#     -n  2, 4 or 8
#     -p  folder with weft, libweft-cuda.so and the tests named below [build]
#     -m  a model with canvases, as bench/synthetic_gguf.py writes diffusion-gemma-26b; all calls but tests need it
#     -o  folder of the results [bench/results/device]; records as bench/device.sh writes them
#     -l  only list what the call would run, each with its limit in seconds, and their sum
#   CALL  tests     answers of one card by layer, by tensor and in parts of shards; exchanges of all cards, and under memcheck
#         auto      what --split auto chooses for 1, 8 and 64 requests at once, with the times that it counted, token by token and by canvases
#         split     one card, layers and shards in turns: 1 to 32 canvases, prompts, decode of 1 to 128 sequences
#         parts     one card and two parts of half the cards each, with 4 or 8 cards
#         replicas  one card and a replica on each
set -euo pipefail
here=$(realpath "$(dirname "$0")")
cd "$here/.."
n_cards='' prebuilt=build model='' out=bench/results/device commit='' list=no
while getopts 'n:p:m:o:c:l' option; do
  case $option in
    n) n_cards=$OPTARG ;;
    p) prebuilt=$OPTARG ;;
    m) model=$OPTARG ;;
    o) out=$OPTARG ;;
    c) commit=$OPTARG ;;
    l) list=yes ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
call=${1:-}
case $n_cards in 2 | 4 | 8) ;; *) echo 'bench/cards.sh: -n is 2, 4 or 8' >&2 && exit 2 ;; esac
devices=$(seq -s, 0 $((n_cards - 1)))
total=0 failed=0

# run SECONDS COMMAND...: within so many seconds; its end is one line, its output a log
run() {
  local limit=$1 code=0 start=$SECONDS log
  shift
  total=$((total + limit))
  if [ "$list" = yes ]; then
    printf '%4d s  %s\n' "$limit" "$*"
    return 0
  fi
  log="$out/cards-$n_cards-$call-$total.log"
  timeout -k 5 "$limit" "$@" >"$log" 2>&1 || code=$?
  echo "$([ $code = 0 ] && echo passed || echo "FAILED ($code)"), $((SECONDS - start)) s: $*" | tee -a "$out/cards-$n_cards.log"
  grep -E 'FAILED|as on one|there are no|ERROR SUMMARY|  (split|shard|part|cut) |passed|times as fast' "$log" | head -40 || true
  [ $code = 0 ] || failed=1
}
device() { # SECONDS PART
  run "$1" "$here/device.sh" -q -p "$prebuilt" -m "$model" -o "$out/$2-$n_cards" ${commit:+-c "$commit"} -w "$2" -n "$n_cards"
}
[ "$list" = yes ] || mkdir -p "$out"
[ "$call" = tests ] || [ -n "$model" ] || [ "$list" = yes ] || { echo "bench/cards.sh: $call needs a model (-m)" >&2 && exit 2; }
case $call in
  tests)
    run 60 "$prebuilt/test_prop_scheduler_devices" --backend cuda
    run 60 "$prebuilt/test_unit_kernels_shards"
    run 60 "$prebuilt/test_kernels_kernels_cards"
    run 180 "$prebuilt/test_prop_api_equalities" --backend cuda
    run 120 compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 --print-limit 20 --show-backtrace no \
      "$prebuilt/test_unit_kernels_shards"
    ;;
  auto)
    for running in 1 8 64; do
      run 60 "$prebuilt/weft" generate -m "$model" --backend cuda --devices "$devices" -c 1024 --running $running --kv-mib 2048 -p x -n 1 -v
    done
    ;;
  split) device 540 split ;;
  parts)
    [ "$n_cards" != 2 ] || { echo 'bench/cards.sh: parts takes 4 or 8 cards' >&2 && exit 2; }
    device 480 parts
    ;;
  replicas) device 480 replicas ;;
  *) echo 'bench/cards.sh: CALL is tests, auto, split, parts or replicas' >&2 && exit 2 ;;
esac
[ "$list" = no ] || echo "$total s in all"
[ $total -le 540 ] || { echo 'bench/cards.sh: a call may take nine minutes' >&2 && exit 1; }
exit $failed
