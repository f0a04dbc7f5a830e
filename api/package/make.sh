#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# api/package/make.sh OUT [cuda] [COMMIT]: the files of a release, of a commit or the one that is checked out: the source, packages of Debian, the wheel, and
# their sums. With the word cuda the CUDA modules are compiled for all cards, and their package made. The same commit, compiler and libraries give the same
# bytes, wherever it is built: `./dev packages twice` compares two.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(realpath -m "$1")
cuda=OFF
commit=HEAD
for word in "${@:2}"; do
  if [ "$word" = cuda ]; then cuda=ON; else commit=$word; fi
done
commit=$(git rev-parse -q --verify "$commit^{commit}" 2>/dev/null) || { echo "make.sh: a release is made of a commit, and there is none here: clone the repository with git" >&2; exit 2; }
[ -z "$(git status --porcelain)" ] || echo "make.sh: what is not committed is not in these files: $(git status --porcelain | head -3 | tr '\n' ';')" >&2
mkdir -p "$out"
[ -z "$(ls -A "$out")" ] || { echo "make.sh: $out is not empty" >&2; exit 2; }
version=$(git show "$commit:CMakeLists.txt" | sed -nE 's/^project\(weft VERSION ([0-9.]+).*/\1/p')
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct "$commit")
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

git archive --format=tar --prefix="weft-$version/" "$commit" | gzip -9n >"$out/weft-$version.tar.gz"
tar --no-same-permissions -C "$work" -xzf "$out/weft-$version.tar.gz"
cmake -S "$work/weft-$version" -B "$work/build" -G Ninja -DWEFT_TESTS=OFF -DWEFT_CUDA=$cuda -DWEFT_CUDA_ARCHITECTURES=all -DCMAKE_INSTALL_PREFIX=/usr \
  -DCMAKE_C_FLAGS="-ffile-prefix-map=$work=/weft" >/dev/null
cmake --build "$work/build" --target all weft_alone >"$work/build.log" || { tail -40 "$work/build.log"; exit 1; }

(cd "$work/build" && cpack -G DEB >"$work/cpack.log" 2>&1) || { tail -20 "$work/cpack.log"; exit 1; }
mv "$work/build"/*.deb "$out"
strip "$work/build/weft_alone"
python3 "$work/weft-$version/api/python/make_wheel.py" --program "$work/build/weft_alone" --version "$version" --out "$out" >/dev/null
(cd "$out" && sha256sum -- * >SHA256SUMS)
cat "$out/SHA256SUMS"
