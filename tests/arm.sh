#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# tests/arm.sh [FOLDER]: weft for ARM (Grace, GB10), built here by Debian's cross compiler and run by its emulator, which shows what it
# computes and says nothing of its speed. Some tests pass there, and the demo model gives the answers of this machine's own build
# (build/weft, whose vectors have other orders of sums, so greedy and short). Libraries for ARM are packages of this system's own
# release, unpacked below FOLDER (build-arm): nothing is installed, and apt's lists of this machine stay as they are. Optional libraries
# are left out. Ends with 77 where compiler, emulator or apt are missing.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build-arm}
PACKAGES="libc6-dev libjansson-dev libpcre2-dev libssl-dev zlib1g-dev libxxhash-dev libjemalloc-dev libcmocka-dev"
TESTS="kernels_kernels_ops kernels_kernels_matmul golden_model_parity prop_pager_model"
for program in aarch64-linux-gnu-gcc qemu-aarch64 apt-get dpkg-deb ninja; do
  command -v "$program" >/dev/null || { echo "left out: no $program (apt-get install gcc-aarch64-linux-gnu qemu-user)"; exit 77; }
done

# unpack: the packages and what they need, once for each list of them
unpack() {
  local state=$PWD/$folder/apt archive
  [ "$(cat "$folder/root/packages" 2>/dev/null)" != "$PACKAGES" ] || return 0
  rm -rf "$folder/root" "$state"
  mkdir -p "$folder/root" "$state/lists/partial" "$state/archives/partial"
  : >"$state/status" # nothing is installed there
  local options=(-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "Dir::State::lists=$state/lists"
    -o "Dir::State::status=$state/status" -o "Dir::Cache=$state" -o APT::Sandbox::User=)
  apt-get "${options[@]}" update
  # shellcheck disable=SC2086 # a list of words
  apt-get "${options[@]}" install -y --download-only --no-install-recommends $PACKAGES >/dev/null
  for archive in "$state"/archives/*.deb; do dpkg-deb -x "$archive" "$folder/root"; done
  rm -rf "$state"
  echo "$PACKAGES" >"$folder/root/packages"
}

build() {
  local root=$PWD/$folder/root
  export PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_LIBDIR=$root/usr/lib/aarch64-linux-gnu/pkgconfig:$root/usr/share/pkgconfig
  cmake -S . -B "$folder" -G Ninja -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_SYSROOT="$root" -DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=NEVER \
    -DWEFT_TESTS=ON -DWEFT_CUDA=OFF >/dev/null
  # shellcheck disable=SC2046 # a list of words
  ninja -C "$folder" weft $(printf 'test_%s ' $TESTS) >"$folder/build.log" || { tail -40 "$folder/build.log"; return 1; }
}

# emulated PROGRAM WORDS...
emulated() { qemu-aarch64 -L "$folder/root" "$@"; }

# answers COMMAND...: of both demo models, without what -q leaves out
answers() {
  local model
  for model in weft-demo weft-demo-ar; do
    "$@" generate -q -m "model/demo/$model.gguf" --kv-mib 16 --threads 2 --chat --temperature 0 -p "Sort from low to high: 41 77 23 95 10 68" </dev/null
  done
}

unpack
build
file=$(head -c 20 "$folder/weft" | od -An -tx1 -j18 -N2 | tr -d ' ')
[ "$file" = b700 ] || { echo "arm: $folder/weft is for another machine ($file)"; exit 1; }
for test in $TESTS; do
  DEV_AMOUNT=quick emulated "$folder/test_$test" >"$folder/$test.log" 2>&1 || { tail -20 "$folder/$test.log"; echo "arm: $test failed"; exit 1; }
  echo "arm: $test passes"
done
ours=$(answers build/weft)
theirs=$(answers emulated "$folder/weft")
[ -n "$ours" ] && [ "$ours" = "$theirs" ] || { printf 'arm: other answers:\n%s\nand here:\n%s\n' "$theirs" "$ours"; exit 1; }
echo "arm: both demo models answer as on this machine (${#ours} characters)"
