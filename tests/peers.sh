#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# tests/peers.sh WEFT: bench/peers/run.py beside a program that prints what llama-batched-bench prints: figures, spreads,
# turns, calls that go on where one ended, and refusals. Prints `N passed, N failed`.
set -uo pipefail
cd "$(dirname "$0")/.."
weft=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
check() { # what, command...
  local what=$1
  shift
  if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "failed: $what"; fi
}
mkdir -p "$work/bin"
# The second table row of a number of sequences counts; decode is 100, 110, 120 in the first, second, third turn.
cat >"$work/bin/llama-batched-bench" <<'FAKE'
#!/usr/bin/env bash
count=$(dirname "$0")/../count
n=$(($(cat "$count" 2>/dev/null || echo 0) + 1))
echo $n >"$count"
if [ -e "$(dirname "$0")/../broken" ]; then echo 'error: no memory left' >&2; exit 3; fi
while [ $# -gt 0 ]; do [ "$1" = -npl ] && list=$2; shift; done
echo '|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |'
echo '|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|'
last=
for b in ${list//,/ }; do
  rate=7.00
  [ "$b" = "$last" ] && rate=$((90 + 10 * n)).00
  last=$b
  echo "|    16 |      4 | $b |     20 |    0.004 |  4000.00 |    0.002 |  $rate |    0.006 |  3317.30 |"
done
FAKE
chmod +x "$work/bin/llama-batched-bench"
run() {
  python3 bench/peers/run.py --weft "$weft" -m model/demo/weft-demo-ar.gguf -t 1 --n-prompt 16 --n-generate 4 --sequences 1,2 "$@" \
    >"$work/said" 2>"$work/complained"
}
says() { grep -qE -- "$1" "$work/said"; }
complains() { [ "$(wc -l <"$work/complained")" = 1 ] && grep -qE -- "$1" "$work/complained"; }
rows() { python3 -c "import json, sys; r = {(x['work'], x['engine']): x for x in json.load(open('$work/out/record.json'))['rows']}; sys.exit(not ($1))"; }

check 'one call measures all' run --peer fake="$work/bin" -o "$work/out" -r 3
check 'engines take turns' says 'turn 5 of 6: weft'
check 'the median, the spread and the coefficient of variation of 100, 110, 120' \
  rows "r['S_TG 2', 'fake']['median'] == 110 and r['S_TG 2', 'fake']['spread'] == 20 and r['S_TG 2', 'fake']['cv_percent'] == 9.09"
check 'equal figures vary by nothing' rows "r['S_PP 1', 'fake']['median'] == 4000 and r['S_PP 1', 'fake']['cv_percent'] == 0"
check 'ratios are of the medians' \
  rows "abs(r['S_TG 1', 'fake']['weft_over_it'] - r['S_TG 1', 'weft']['median'] / 110) < 0.01 and r['S_TG 1', 'weft']['median'] > 0"
check 'experts touched are counted' rows "r['S_TG 1', 'weft']['experts_touched'] == 2.0"
check 'the table has all of it' says '^S_TG 2 +fake +110\.0 +9\.1 +3 '
check 'a record that is whole is shown again' run --peer fake="$work/bin" -o "$work/out" -r 3
run --peer fake="$work/bin" -o "$work/out" --sequences 4
check 'another command is refused' complains 'is of another command'

# With less than nothing allowed to other programs, every turn is disturbed: three are tried, none is kept.
check 'disturbed turns end a call' run --peer fake="$work/bin" -o "$work/disturbed" -r 1 --others -1
check 'disturbed turns are told' says 'beside weft: that turn does not count'
check 'disturbed turns are not kept' says 'call 1 ends after 0 of 2 turns'
check 'three of them' test "$(grep -c 'does not count' "$work/said")" = 3

# Turns that took 99 s leave a call of 100 s no room for a second one: the next call goes on after it.
rm -f "$work/count"
check 'call 1' run --peer fake="$work/bin" -o "$work/calls" -r 2 --limit 100
sed -i -E '3,$d; s/"seconds": [0-9.]+/"seconds": 99/' "$work/calls/turns.jsonl" # as if only one turn had been made
for call in 2 3; do
  check "call $call" run --peer fake="$work/bin" -o "$work/calls" -r 2 --limit 100
  check "call $call ends in time" says "call $call ends after $call of 4 turns"
  sed -i -E 's/"seconds": [0-9.]+/"seconds": 99/' "$work/calls/turns.jsonl"
done
check 'call 4' run --peer fake="$work/bin" -o "$work/calls" -r 2 --limit 100
check 'the calls are numbered' says 'call 4, turn 4 of 4: fake'

touch "$work/broken"
run --peer fake="$work/bin" -o "$work/fails"
check 'a peer that fails makes the script fail' [ $? = 1 ]
check 'its code and last line are said' complains 'fake ended with code 3: error: no memory left'
rm "$work/broken"
run --peer fake="$work/nowhere" -o "$work/none"
check 'no such program' complains 'nowhere/llama-batched-bench is no program.*wrong folder'
run --peer fake="$work/bin" -o "$work/none" --sequences 1,3
check 'sizes that weft does not measure' complains 'powers of two'
run --peer "$work/bin" -o "$work/none"
check 'a peer without a name' complains 'write NAME='
printf '#!/bin/sh\necho nothing\n' >"$work/bin/llama-batched-bench"
run --peer fake="$work/bin" -o "$work/silent"
check 'a peer that prints no table' complains 'fake gave no figure for S_PP 1'
echo "$passed passed, $failed failed"
[ $failed = 0 ]
