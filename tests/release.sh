#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# tests/release.sh: whether this tree may be released, as far as no build is needed; `./dev release` asks it first, then runs every
# test. Each reason against it is a line, and the exit status is 1. Nothing is changed and nothing is made public.
#
#   the tree is committed, and no tag has its version yet
#   the version of CMakeLists.txt is the newest section of CHANGELOG.md, and nothing stands there as not released
#   style: with clang-format 14 and clang-tidy installed, since what is left out elsewhere is not left out here
#   proofs: of every default that has one, the reports are there (docs/proof.md)
#   records, of which only a card can make new ones: of the schema, and none that README or docs/ quote is older than the kernels that it speaks of
set -euo pipefail
cd "$(dirname "$0")/.."
bad=0
cards=0 # of these, for want of a card
refuse() { echo "release: $*"; bad=$((bad + 1)); }
version=$(sed -nE 's/^project\(weft VERSION ([0-9.]+).*/\1/p' CMakeLists.txt)
newest=$(sed -nE 's/^## ([^ ]+).*/\1/p' CHANGELOG.md | head -1)

[ -z "$(git status --porcelain)" ] || refuse "the tree has changes that are not committed: $(git status --porcelain | head -3 | tr '\n' ';')"
[ "$newest" = "$version" ] || refuse "CHANGELOG.md begins with '$newest', the version of CMakeLists.txt is $version: name the section by the version"
! grep -qi '^## unreleased' CHANGELOG.md || refuse "CHANGELOG.md has a section of what is not released"
! git rev-parse -q --verify "refs/tags/v$version" >/dev/null || refuse "v$version is a tag already: raise the version in CMakeLists.txt"

for tool in clang-format-14 clang-tidy; do
  command -v "$tool" >/dev/null || refuse "$tool is not installed: the style was not looked at whole"
done
findings=$(bash tests/lint/lint.sh 2>&1) || refuse "tests/lint/lint.sh: $(grep -c '^lint: ' <<<"$findings") findings: $(head -1 <<<"$findings")"

findings=$(python3 bench/records.py check) || refuse "bench/records.py check: $(head -1 <<<"$findings")"
code='' # of the module, where this tree has built one
[ ! -e build/libweft-cuda.so ] || code=$(python3 bench/machine_code.py --whole build/libweft-cuda.so | awk '{ print $1; exit }')
findings=$(python3 bench/records.py age --strict --hash "$code") || {
  grep 'quoted by' <<<"$findings" || true
  refuse "$(tail -1 <<<"$findings"): measure them again on a card (bench/device.sh)"
  cards=$((cards + 1))
}

awaited=$(python3 -c 'import json; print(" ".join(json.load(open("tests/proof/defaults.json"))["awaited"]))')
if [ -n "$awaited" ]; then
  refuse "proofs of defaults are awaited: $awaited: make them on a card (bench/proof.sh card)"
  cards=$((cards + 1))
fi

[ "$bad" = 0 ] || [ "$bad" != "$cards" ] || { echo "release: $version is not fit for a release: it awaits a run on a card, and nothing else"; exit 1; }
[ "$bad" = 0 ] || { echo "release: $version is not fit for a release: $bad reasons"; exit 1; }
echo "release: $version may be released, if every test passes"
