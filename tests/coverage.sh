#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# tests/coverage.sh FOLDER: lines executed per room, from a build with WEFT_COVERAGE=ON whose tests have run. Fails under
# 85 % of all lines outside kernels/cuda and tests. A file compiled twice counts once, with its best run.
set -euo pipefail
folder=$1
root=$(pwd)
find "$folder" -name '*.gcda' -print0 | while IFS= read -r -d '' data; do
  gcov -n "$data" 2>/dev/null
done | awk -v root="$root/" '
  /^File / { file = $2; gsub(/\047/, "", file); sub(root, "", file); next }
  /^Lines executed/ {
    if (file ~ /^\// || file ~ /^tests\// || file ~ /^kernels\/cuda\//) next
    split($2, a, /[:%]/); percent = a[2]; n = $4
    if (!(file in lines) || percent * n > hit[file] * 100) { lines[file] = n; hit[file] = percent * n / 100 }
  }
  END {
    for (f in lines) {
      room = f; sub(/\/.*/, "", room); if (f ~ /^api\/cli\//) room = "api/cli"
      room_lines[room] += lines[f]; room_hit[room] += hit[f]; all += lines[f]; all_hit += hit[f]
      if (hit[f] < 0.7 * lines[f]) printf "  low: %-40s %5.1f %% of %d\n", f, 100 * hit[f] / lines[f], lines[f]
    }
    for (r in room_lines) printf "  %-10s %5.1f %% of %d lines\n", r, 100 * room_hit[r] / room_lines[r], room_lines[r]
    if (all == 0) { print "no coverage data"; exit 1 }
    printf "coverage: %.1f %% of %d lines\n", 100 * all_hit / all, all
    exit (all_hit / all < 0.85)
  }'
