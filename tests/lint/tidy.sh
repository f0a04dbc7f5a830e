#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# tests/lint/tidy.sh [BUILD [FILES...]]: clang-tidy with the checks of .clang-tidy over the sources of the product and the
# laboratory, or over FILES. BUILD has compile_commands.json. Where clang-tidy is not installed it says so and passes. About
# forty-five seconds of processor time for all.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build}
shift || true
command -v clang-tidy >/dev/null || { echo "tidy: clang-tidy is not installed: left out"; exit 0; }
[ -f "$build/compile_commands.json" ] || { echo "tidy: $build/compile_commands.json is missing: build first"; exit 2; }
if [ $# -eq 0 ]; then
  mapfile -t files < <(git ls-files --cached --others --exclude-standard -- {base,pager,kernels,model,scheduler,api,bench}/'*.c')
else
  files=("$@")
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if printf '%s\n' "${files[@]}" | xargs -n 8 -P "$(nproc)" clang-tidy --quiet -p "$build" >"$log" 2>/dev/null; then
  echo "tidy: clean (${#files[@]} files)"
else
  cat "$log"
  echo "tidy: findings"
  exit 1
fi
