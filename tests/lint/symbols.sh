#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# tests/lint/symbols.sh BUILD: functions and variables of the product that only tests use. There are none, except the seams
# of seams.txt, each with its reason: what nobody uses goes away, what only a test needs belongs to the tests.
#
# Names come from the objects of the release build; uses are counted in the sources, comments left out. What weft.h exports
# is used by those who link libweft. The interfaces of ops are made by a macro for each op of WEFT_OPS, so their names
# are left out.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build}
rooms=(base pager kernels model scheduler api cli)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for room in "${rooms[@]}"; do
  [ -f "$build/libweft_$room.a" ] || { echo "symbols: $build/libweft_$room.a is missing: build first"; exit 2; }
  nm --defined-only -g "$build/libweft_$room.a" 2>/dev/null
done | awk 'NF == 3 && $2 ~ /[A-Z]/ { print $3 }' | sort -u >"$work/defined"
grep -ohE 'WEFT_API [^;]*\(' api/weft.h | sed -E 's/.*[ *](weft_[a-z0-9_]+)\($/\1/' | sort -u >"$work/exported"
awk '!/^#/ && NF > 1 { print $1 }' tests/lint/seams.txt | sort -u >"$work/seams"
git ls-files --cached --others --exclude-standard -- {base,pager,kernels,model,scheduler,api,bench}/'*.c' '*.cu' '*.cuh' \
  {base,pager,kernels,model,scheduler,api,bench}/'*.h' | grep -v '^tests/' | xargs cat |
  sed -E 's#/\*[^*]*\*/##g; s#//.*##; s#^ \* .*##; s#^/\*.*##' | grep -oE '[A-Za-z_][A-Za-z0-9_]*' | sort | uniq -c |
  awk '{ print $2, $1 }' | sort >"$work/words"
# A literal function is written once where it is declared and once where it is defined: a third time is a use.
# So is one whose name a macro puts together: own##_info, and CPU_CODE_OF of each instruction set.
picked=$(grep -ohE 'CPU_CODE_OF\(.*, [a-z_]+\)' kernels/cpu/*.c | sed -E 's/.*, ([a-z_]+)\)/\1/' | paste -sd '|')
pasted=$(git ls-files --cached --others --exclude-standard -- {base,pager,kernels,model,scheduler,api,bench}/'*.h' | xargs grep -ohE '##_[a-z0-9_]+' | sed 's/^##_//' | sort -u | paste -sd '|')
ops=$(sed -n '/^#define WEFT_OPS(X)/,/[^\\]$/p' kernels/ops.h | grep -oE 'X\([a-z_]+\)' | sed 's/X(\(.*\))/\1/' | paste -sd '|')
comm -23 "$work/defined" "$work/exported" | grep -vE "^(weft_|ref_|cpu_|weft_ref_|weft_cpu_)($ops)(_scratch)?$|^(ref|cpu|runner)_($pasted)$|^($picked)_(portable|avx2|avx512)$" | join - "$work/words" | awk '$2 == 2 { print $1 }' | sort >"$work/unused"
bad=$(comm -23 "$work/unused" "$work/seams")
stale=$(comm -13 "$work/unused" "$work/seams")
for name in $bad; do echo "symbols: $name is used by tests alone"; done
for name in $stale; do echo "symbols: seams.txt names $name, which the product uses or has not"; done
[ -z "$bad$stale" ] && echo "symbols: none is used by tests alone, but $(wc -l <"$work/seams") seams"
[ -z "$bad$stale" ]
