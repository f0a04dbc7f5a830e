#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# tests/packages.sh FOLDER [deb|container|wheel|source]...: the files of a release (api/package/make.sh) do what README and docs/install.md say: each is
# installed where nothing of ours is, answers, and leaves nothing when it is removed. Without words: all but source. What it typed and read goes to
# FOLDER/transcripts. Commands of README's first block are run as they stand there.
#   deb        a bare Debian 12 (mmdebstrap): apt, the first answer, the service's options, a changed configuration, the CUDA module if it is there, removal
#   container  the container files, built and run by buildah; their base is a bare Debian 12 too, since no registry is asked
#   source     a bare Debian 12: ./dev demo of the source, which installs a compiler; minutes
#   wheel      an environment of Python: pip, the program, the client, removal
# What a machine has no tool for is left out with a line. Nothing is judged by time; the times are in the transcripts.
set -euo pipefail
cd "$(dirname "$0")/.."
files=$(realpath "$1")
shift
[ $# -gt 0 ] || set -- deb container wheel
mkdir -p "$files/transcripts"
question='Sort from low to high: 41 7 23'
answer='7 23 41'

# readme_line WORDS: the command of README's first block that begins with them, as it stands
readme_line() {
  local line
  line=$(awk '/^```sh/ { inside = 1; next } /^```/ { if (inside) exit } inside' README.md | sed -E 's/  +#.*$//' | grep "^$1") || line=''
  [ "$(grep -c . <<<"$line")" = 1 ] || { echo "packages: README's first block has no line '$1 ...', or several" >&2; return 1; }
  printf '%s' "$line"
}
apt_line=$(readme_line 'apt install')
podman_line=$(readme_line 'podman build')
demo_line=$(readme_line './dev demo')

# For the scripts inside: begin, and what it took since then, in seconds and in those of processors.
count_spent() { awk -F'[ms ]+' 'NR == 2 { print 60 * $1 + $2 + 60 * $3 + $4 }' /tmp/times; }
begin() {
  times >/tmp/times # not in a subshell, which has no children yet
  spent=$(count_spent)
  wall=$EPOCHREALTIME
}
took() {
  times >/tmp/times
  awk -v what="$1" -v from="$wall" -v to="$EPOCHREALTIME" -v before="$spent" -v after="$(count_spent)" \
    'BEGIN { printf "took: %s: %.2f s, %.2f s of processors\n", what, to - from, after - before }'
}

# What is done inside the bare root, by its shell. $1: the folder with the files.
try_deb() {
  cat <<TRY
say() { printf '\n\$ %s\n' "\$*"; }
listing() { find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /files -o -path /var/cache -o -path /var/log -o -path /var/lib/apt -o -path /var/lib/dpkg \) -prune -o -print | sort; }
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
listing >/tmp/before
$(declare -f count_spent begin took)
printf 'APT::Get::Assume-Yes "true";\nAPT::Install-Recommends "false";\n' >/etc/apt/apt.conf.d/answers # as a person says yes
mkdir /tmp/tree && ln -s /files /tmp/tree/build-release && cd /tmp/tree
begin
say "$apt_line"
$apt_line
took "from the package to the end of the demo"
cd /
begin
say "weft generate -m /usr/share/weft/demo/weft-demo.gguf --chat -p '$question'"
weft generate -m /usr/share/weft/demo/weft-demo.gguf --chat -p '$question' | tee /tmp/answer
took "an answer"
grep -qx '$answer' /tmp/answer
rm /etc/apt/apt.conf.d/answers
say weft serve --port 0
weft serve --port 0 --json >/tmp/where 2>/tmp/said &
server=\$!
until [ -s /tmp/where ]; do kill -0 \$server; sleep 0.1; done
kill \$server
wait \$server
cat /tmp/said
grep -q 'options from /etc/weft/weft.conf' /tmp/said
grep -q 'serving weft-demo on http://127.0.0.1:' /tmp/said
say "the manual, completions, the licence"
ls -l /usr/share/man/man1/weft.1.gz /usr/share/bash-completion/completions/weft /usr/share/doc/weft/copyright
bash -n /usr/share/bash-completion/completions/weft
gzip -dc /usr/share/man/man1/weft-serve.1.gz >/tmp/page
grep -q 'kv.*mib' /tmp/page
grep -qx 'ExecStart=/usr/bin/weft serve --config /etc/weft/weft.conf' /usr/lib/systemd/system/weft.service
[ ! -e /usr/lib/x86_64-linux-gnu/libweft.so ]
say "a changed configuration stays"
echo '# ours' >>/etc/weft/weft.conf
apt-get install -y -qq --reinstall /files/weft_*.deb
grep '# ours' /etc/weft/weft.conf
say apt install ./libweft0.3_*.deb ./libweft-dev_*.deb
apt-get install -y -qq --no-install-recommends /files/libweft0*.deb /files/libweft-dev_*.deb
ldconfig -p | grep libweft.so.0
modules=\$(ls /files/weft-cuda_*.deb 2>/dev/null || true)
if [ -n "\$modules" ]; then # no card is needed to find it
  say apt install ./weft-cuda_*.deb
  apt-get install -y -qq --no-install-recommends \$modules
  weft --version | grep '^cuda' | tee /tmp/module
  [ -s /tmp/module ] && ! grep -q 'libweft-cuda.so is ' /tmp/module
fi
say "apt purge 'weft*' 'libweft*'"
apt-get purge -y -qq weft libweft-dev libweft0.3 \${modules:+weft-cuda}
apt-get autoremove --purge -y -qq
listing >/tmp/after
say "what is left that was not there before"
diff /tmp/before /tmp/after && echo nothing
TRY
}

try_source() {
  cat <<TRY
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
cd /tmp && tar -xzf /files/weft-*.tar.gz && cd weft-*
$(declare -f count_spent begin took)
printf '\n\$ $demo_line   (installs the compiler and libraries, builds, answers)\n'
begin
$demo_line
took "from the source to the end of the demo"
printf '\n\$ $demo_line   (again)\n'
begin
$demo_line >/tmp/again
took "again"
ls build/test_* build/libweft-cuda.so 2>/dev/null && { echo "more was built than the program"; exit 1; }
dpkg-query -W libcmocka-dev 2>/dev/null && { echo "more was installed than the program needs"; exit 1; }
printf '\n\$ build/weft generate -m model/demo/weft-demo.gguf --chat -p "%s"\n' '$question'
build/weft generate -m model/demo/weft-demo.gguf --chat -p '$question' | tee /tmp/answer
grep -qx '$answer' /tmp/answer
TRY
}

# in_bare_debian NAME: runs the script of try_NAME in a root that has nothing but what every Debian has, and apt.
in_bare_debian() {
  local name=$1 work
  command -v mmdebstrap >/dev/null || { echo "packages: mmdebstrap is not installed: $name left out"; return 0; }
  work=$(mktemp -d)
  "try_$name" >"$work/try.sh"
  if mmdebstrap --quiet --variant=minbase \
    --customize-hook='mkdir -p "$1/files"' --customize-hook="copy-in $(find "$files" -maxdepth 1 -type f -printf '%p ') /files" \
    --customize-hook="copy-in $work/try.sh /tmp" --customize-hook='chroot "$1" bash /tmp/try.sh' \
    bookworm /dev/null >"$files/transcripts/$name.txt" 2>&1 </dev/null; then
    echo "packages: $name: as it should be ($(grep -c . "$files/transcripts/$name.txt") lines in transcripts/$name.txt)"
    sed -n 's/^took: /  /p' "$files/transcripts/$name.txt"
  else
    tail -40 "$files/transcripts/$name.txt"
    echo "packages: $name failed"
    rm -rf "$work"
    return 1
  fi
  rm -rf "$work"
}

# What is done in a container of the image, by its user. $1: the entry point's words
try_container() {
  cat <<TRY
set -e
printf '\n\$ id -un; %s\n' "$1"
[ "\$(id -un)" = weft ]
cd /tmp
$1 --host 127.0.0.1 --port 0 --json >/tmp/where &
server=\$!
until [ -s /tmp/where ]; do kill -0 \$server; sleep 0.1; done
port=\$(sed -n 's/.*"port":\([0-9]*\).*/\1/p' /tmp/where)
weft top --port "\$port" --json >/tmp/top
grep -q '"well":true' /tmp/top
weft generate -m /usr/share/weft/demo/weft-demo.gguf --chat -p '$question' | tee /tmp/answer
grep -qx '$answer' /tmp/answer
kill \$server
wait \$server
TRY
}

# run_container_file FILE: built as README's line says but for the base, and run. Joined by &&, since it is part of a condition.
run_container_file() {
  local words entry container
  read -r -a words <<<"${podman_line%% && *}"
  words=("${words[@]:2}") # what follows: podman build
  words=("${words[@]/%api\/package\/Containerfile/$1}")
  words=("${words[@]/%build-release/$files}")
  printf '\n$ buildah build %s\n' "${words[*]}" &&
    "${buildah[@]}" build -q --isolation chroot --build-arg BASE=localhost/base "${words[@]}" &&
    entry=$("${buildah[@]}" inspect --type image --format '{{range .OCIv1.Config.Entrypoint}}{{.}} {{end}}' localhost/weft) &&
    container=$("${buildah[@]}" from --pull-never localhost/weft) &&
    try_container "${entry% }" >"$work/try.sh" && chmod a+rx "$work" "$work/try.sh" &&
    "${buildah[@]}" copy -q "$container" "$work/try.sh" /tmp/try.sh &&
    timeout 300 "${buildah[@]}" run --isolation chroot "$container" -- bash /tmp/try.sh
}

# The container files that have their packages. The base is made of Debian's packages, since a registry may not be reached.
in_containers() {
  local kind container failed=0 log=$files/transcripts/container.txt
  for kind in buildah mmdebstrap; do
    command -v $kind >/dev/null || { echo "packages: $kind is not installed: container left out"; return 0; }
  done
  work=$(mktemp -d)
  buildah=(buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs)
  {
    mmdebstrap --quiet --variant=minbase bookworm "$work/base.tar" && container=$("${buildah[@]}" from scratch) &&
      "${buildah[@]}" add -q "$container" "$work/base.tar" / && "${buildah[@]}" commit -q "$container" localhost/base
  } >"$log" 2>&1 </dev/null || failed=1
  for kind in Containerfile Containerfile.cuda; do
    [ $failed = 0 ] || break
    [ $kind = Containerfile ] || compgen -G "$files/weft-cuda_*.deb" >/dev/null || continue
    run_container_file "api/package/$kind" >>"$log" 2>&1 </dev/null || failed=1
    [ $failed = 1 ] || echo "packages: $kind: built by buildah on a base of Debian's own packages (no registry is asked), served, answered"
  done
  [ $failed = 0 ] || { tail -30 "$log"; echo "packages: container failed"; }
  "${buildah[@]}" rm -a >/dev/null 2>&1 || true
  rm -rf "$work"
  return $failed
}

try_wheel() {
  local home=$1 port=''
  set -x
  PS4='$ '
  python3 -m venv "$home"
  "$home/bin/pip" freeze --all >"$home.freeze"
  find "$home" -type f -not -name '*.pyc' | sort >"$home.listing"
  time "$home/bin/pip" install -q --no-index --no-compile "$files"/weft-*.whl
  "$home/bin/weft" --version
  [ "$("$home/bin/weft" generate -m "$home/share/weft/demo/weft-demo.gguf" --chat -p "$question")" = "$answer" ]
  "$home/bin/weft" demo
  "$home/bin/weft" serve -m "$home/share/weft/demo/weft-demo.gguf" --port 0 --json -q --config /dev/null >"$home/where" &
  server=$!
  trap 'kill $server 2>/dev/null' EXIT
  until [ -n "$port" ]; do kill -0 $server; sleep 0.1; port=$(sed -n 's/.*"port":\([0-9]*\).*/\1/p' "$home/where"); done
  (cd / && "$home/bin/python" - "$port" "$question" "$answer" <<'PY'
import asyncio, sys, weft
async def main():
    async with weft.Client(f"http://127.0.0.1:{sys.argv[1]}") as client:
        steps = []
        answer = await client.ask(sys.argv[2], progress=steps.append)
        assert answer.text == sys.argv[3] and steps and steps[-1].share == 1, answer
        print(answer)
asyncio.run(main())
PY
  )
  trap - EXIT
  kill $server
  wait $server
  "$home/bin/pip" uninstall -q -y weft
  rm "$home/where"
  find "$home" -type f -not -name '*.pyc' | sort | diff "$home.listing" -
  "$home/bin/pip" freeze --all | diff "$home.freeze" -
}

in_environment() {
  local work
  python3 -c 'import venv, ensurepip' 2>/dev/null || { echo "packages: python3-venv is not installed: wheel left out"; return 0; }
  work=$(mktemp -d)
  export -f try_wheel
  # a shell of its own, since a condition would go on behind what fails
  if files=$files question=$question answer=$answer bash -euo pipefail -c 'try_wheel "$1"' - "$work/environment" >"$files/transcripts/wheel.txt" 2>&1 </dev/null; then
    echo "packages: wheel: installed, answered, removed"
    rm -rf "$work"
  else
    tail -30 "$files/transcripts/wheel.txt"
    echo "packages: wheel failed"
    rm -rf "$work"
    return 1
  fi
}

failed=0
for what in "$@"; do
  case $what in
    deb | source) in_bare_debian "$what" || failed=1 ;;
    container) in_containers || failed=1 ;;
    wheel) in_environment || failed=1 ;;
    *) echo "packages: there is no test '$what'" >&2; exit 2 ;;
  esac
done
exit $failed
