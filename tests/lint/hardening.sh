#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# tests/lint/hardening.sh [FOLDER]: reads off the built program and libraries that they are hardened as CMakeLists.txt says.
set -euo pipefail
folder=${1:-build}
bad=0
complain() { echo "hardening: $*"; bad=$((bad + 1)); }
wants() { # file, what is missing, pattern, words of readelf
  local file=$1 what=$2 pattern=$3
  shift 3
  grep -qE "$pattern" <<<"$(readelf -W "$@" "$file" 2>/dev/null)" || complain "$file: $what"
}
files=("$folder/weft" "$folder/libweft.so")
for module in "$folder"/libweft-cuda*.so; do [ ! -e "$module" ] || files+=("$module"); done
for file in "${files[@]}"; do
  [ -e "$file" ] || { complain "$file was not built"; continue; }
  wants "$file" "its code has a fixed place" 'Type: +DYN' -h
  wants "$file" "no segment becomes read-only after linking" 'GNU_RELRO' -l
  wants "$file" "symbols are bound later" 'BIND_NOW|Flags:.*NOW' -d
  wants "$file" "its stack can be executed" 'GNU_STACK .* RW +0x' -l
  if grep -q TEXTREL <<<"$(readelf -dW "$file")"; then complain "$file: its code is changed when it is loaded"; fi
done
for file in "$folder/weft" "$folder/libweft.so"; do # C of ours
  wants "$file" "no guards on the stack" '__stack_chk_fail' -s --dyn-syms
  wants "$file" "no checked string functions (_FORTIFY_SOURCE)" '__(memcpy|snprintf|vsnprintf)_chk' -s --dyn-syms
done
wants "$folder/weft" "the program is not position-independent" 'Flags:.*PIE' -d
# Marks for CET (indirect branches land on endbr64, returns match a shadow stack) are in every object of ours, where the compiler
# knows them. The program as a whole has the mark only where the system's own start files have it.
if grep -qs 'WEFT_HAS_CF_PROTECTION:INTERNAL=1' "$folder/CMakeCache.txt"; then
  for archive in "$folder"/libweft_*.a; do
    objects=$(ar t "$archive" | wc -l)
    marked=$(readelf -nW "$archive" 2>/dev/null | grep -c 'x86 feature: IBT, SHSTK' || true)
    [ "$objects" = "$marked" ] || complain "$archive: $marked of $objects objects are marked for CET"
  done
fi
[ "$bad" = 0 ] && echo "hardening: ${#files[@]} files as they should be"
[ "$bad" = 0 ]
