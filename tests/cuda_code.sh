#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# tests/cuda_code.sh FOLDER [PTXAS_ARCHITECTURE]: what the CUDA modules of a build have inside is what they say that they were built
# for: machine code or PTX of these architectures, and of no other. With a word the assembler translates the portable module's PTX for
# that architecture, which finds what the compiler lets pass. Ends with 77 where there is no module or no cuobjdump.
set -euo pipefail
folder=$1
command -v cuobjdump >/dev/null || { echo "left out: no cuobjdump"; exit 77; }
compgen -G "$folder/libweft-cuda*.so" >/dev/null || { echo "left out: no CUDA module in $folder"; exit 77; }
wrong=0
complain() { echo "cuda_code: $*"; wrong=1; }
for module in "$folder"/libweft-cuda*.so; do
  built=$(grep -aoE 'built for [0-9]+[0-9a-z,-]*' "$module" | head -1 || true)
  [ -n "$built" ] || { complain "$module does not say what it was built for"; continue; }
  want_elf='' want_ptx=''
  IFS=, read -ra parts <<<"${built#built for }"
  for part in "${parts[@]}"; do
    [[ $part == *-virtual ]] || want_elf+="sm_${part%-real}"$'\n'
    [[ $part == *-real ]] || want_ptx+="sm_${part%-virtual}"$'\n'
  done
  elf=$( (cuobjdump --list-elf "$module" 2>/dev/null || true) | (grep -oE 'sm_[0-9]+[af]?' || true) | sort -u)
  ptx=$( (cuobjdump --list-ptx "$module" 2>/dev/null || true) | (grep -oE 'sm_[0-9]+[af]?' || true) | sort -u)
  echo "$module, $built: machine code of ${elf:-nothing}, PTX of ${ptx:-nothing}"
  [ "$elf" = "$(printf '%s' "$want_elf" | sort -u)" ] || complain "$module has machine code of '$elf'"
  [ "$ptx" = "$(printf '%s' "$want_ptx" | sort -u)" ] || complain "$module has PTX of '$ptx'"
done
if [ -n "${2:-}" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  module=$(realpath "$folder/libweft-cuda-portable.so")
  (cd "$work" && cuobjdump --extract-ptx all "$module" >/dev/null)
  for file in "$work"/*.ptx; do ptxas -arch="$2" "$file" -o "$work/code" || complain "$(basename "$file") is not for $2"; done
fi
exit "$wrong"
