#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# tests/lint/symbols.sh BUILD: what the objects of a build say. Functions and variables of the product that only tests use:
# there are none, except the seams of seams.txt, each with its reason; what nobody uses goes away, what only a test needs
# belongs to the tests. And circles of files by calls: the folders that have none keep it so.
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
  {base,pager,kernels,model,scheduler,api,bench}/'*.h' api/page/'*.cmake' | grep -v '^tests/' | xargs cat |
  sed -E 's#/\*[^*]*\*/##g; s#//.*##; s#^ \* .*##; s#^/\*.*##' | grep -oE '[A-Za-z_][A-Za-z0-9_]*' | sort | uniq -c |
  awk '{ print $2, $1 }' | sort >"$work/words"
# A literal function is written once where it is declared and once where it is defined: a third time is a use.
# So is one whose name a macro puts together: own##_info, and CPU_CODE_OF of each instruction set.
picked=$(grep -ohE 'CPU_CODE_OF\(.*, [a-z_]+\)' kernels/cpu/*.c | sed -E 's/.*, ([a-z_]+)\)/\1/' | paste -sd '|')
pasted=$(git ls-files --cached --others --exclude-standard -- {base,pager,kernels,model,scheduler,api,bench}/'*.h' | xargs grep -ohE '##_[a-z0-9_]+' | sed 's/^##_//' | sort -u | paste -sd '|')
ops=$(sed -n '/^#define WEFT_OPS[A-Z_]*(X)/,/[^\\]$/p' kernels/ops.h | grep -oE 'X\([a-z_]+\)' | sed 's/X(\(.*\))/\1/' | paste -sd '|')
comm -23 "$work/defined" "$work/exported" | grep -vE "^(weft_|ref_|cpu_|weft_ref_|weft_cpu_)($ops)(_scratch)?$|^(ref|cpu|runner)_($pasted)$|^($picked)_(portable|avx2|avx512)$" | join - "$work/words" | awk '$2 == 2 { print $1 }' | sort >"$work/unused"
bad=$(comm -23 "$work/unused" "$work/seams")
stale=$(comm -13 "$work/unused" "$work/seams")
for name in $bad; do echo "symbols: $name is used by tests alone"; done
for name in $stale; do echo "symbols: seams.txt names $name, which the product uses or has not"; done

# In these folders no file calls, by way of others, one that calls it: each can be read after those that it needs.
circles=''
for folder in base scheduler api api/dialects api/cli; do
  room=${folder##*/}
  [ -f "$build/libweft_$room.a" ] || room=${folder%%/*}
  ls "$folder"/*.c | sed 's#.*/##' >"$work/files"
  nm -A -g "$build/libweft_$room.a" 2>/dev/null | awk '
    NR == FNR { ours[$1 ".o"] = 1; next }
    { split($1, path, ":"); file = path[2] }
    !(file in ours) { next }
    $(NF - 1) == "U" { use[file " " $NF] = 1; next }
    { home[$NF] = file }
    END { for (pair in use) { split(pair, p, " "); if (p[2] in home && home[p[2]] != p[1]) print p[1], home[p[2]] } }
  ' "$work/files" - | sort -u | tsort >/dev/null 2>"$work/circle" || true
  [ -s "$work/circle" ] || continue
  circles=yes
  echo "symbols: files of $folder/ form a circle by calls: $(sed -n 's/^tsort: \([^ -].*\)\.c\.o$/\1/p' "$work/circle" | paste -sd ' ')"
done
[ -z "$bad$stale$circles" ] && echo "symbols: none is used by tests alone, but $(wc -l <"$work/seams") seams; no circle of files"
[ -z "$bad$stale$circles" ]
