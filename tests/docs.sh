#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# tests/docs.sh WEFT: what README and docs/ tell a reader to type is true. (The C example has a test of its own,
# unit/api_example.) Prints `N passed, N failed`.
#   - the console blocks of README run: programs on the demo model, a server, requests to it; the answers shown come out
#   - the first block of README has what tests/packages.sh runs, as it stands; files of a release that pages name have this version
#   - a command line of weft anywhere in docs names only options that the command has
#   - the table of another engine's variables in sources.md is whole, and the options that it names exist
#   - the defaults that operations.md prints are those of `weft serve --help`
#   - fields.md is what `weft fields` prints
#   - links to files of the tree lead somewhere
#   - a path of a room that any page names is there
#   - the table of docs/where.md names files that exist and functions that stand in them
#   - what docs/coverage.md names as evidence exists: tests, functions in them, commands, scripts; each row names some
#   - a table of measured numbers stands under a link to a record, or under words that say what it is: one run, by hand
set -uo pipefail
cd "$(dirname "$0")/.."
weft=$(realpath "$1")
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT
passed=0
failed=0
ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "failed: $*"; }

# The commands of README's console blocks, one a line: what follows `$ `, with the lines up to the end of an open quote,
# comments cut. A line that belongs to no command is what the one before it prints, marked with `> `.
awk '/^```console/ { inside = 1; next } /^```/ { inside = 0 }
  !inside { next }
  /^\$ / { command = substr($0, 3) }
  !/^\$ / && command == "" { print "> " $0; next }
  !/^\$ / { command = command " " $0 }
  { sub(/  +# .*$/, "", command); if (gsub(/\047/, "&", command) % 2 == 0) { print command; command = "" } }' README.md >"$work/commands"
start_server() {
  local port=
  "$weft" ${1#build/weft} --port 0 --json >"$work/where" 2>"$work/server.log" </dev/null &
  server=$!
  for _ in $(seq 600); do
    port=$(sed -n 's/.*"port":\([0-9]*\).*/\1/p' "$work/where")
    [ -n "$port" ] && break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
  echo "$port" >"$work/port"
  [ -n "$port" ]
}
while IFS= read -r command; do
  case $command in
    ./dev*) continue ;; # these build: `./dev` lists what it has
    '> '*) if grep -qxF -- "${command#> }" "$work/out"; then ok; else bad "README: it prints $(head -1 "$work/out"), not ${command#> }"; fi ;;
    'build/weft serve'*) if start_server "${command/ --port 8080/}"; then ok; else bad "$command"; fi ;;
    curl*)
      line=${command//127.0.0.1:8080/127.0.0.1:$(cat "$work/port")}
      if bash -o pipefail -c "${line/curl /curl -f }" >"$work/out" 2>&1 && [ -s "$work/out" ]; then ok; else bad "$command"; fi ;;
    build/weft*)
      if bash -c "'$weft' ${command#build/weft}" >"$work/out" 2>&1 <<<'What is 58 + 37?' && [ -s "$work/out" ]; then ok; else bad "$command"; fi ;;
    *) bad "README: what is '$command'?" ;;
  esac
done <"$work/commands"
[ "$passed" -ge 5 ] || bad "README: fewer commands ran than it has"

# The first block of README: tests/packages.sh runs these, and ./dev packages makes the files that they name.
version=$(sed -nE 's/^project\(weft VERSION ([0-9.]+).*/\1/p' CMakeLists.txt)
awk '/^```sh/ { inside = 1; next } /^```/ { if (inside) exit } inside' README.md | sed -E 's/ +#.*$//' >"$work/first"
diff <(sed -E 's/^(\.\/dev [a-z]+|apt install|podman build) ?.*/\1/' "$work/first") - >"$work/differs" <<'LINES' && ok || bad "README: its first block: $(head -3 "$work/differs")"
./dev demo
./dev packages
apt install
podman build
LINES
while IFS=: read -r file name; do
  if [[ $name == *[_-]"$version"[_-]* ]]; then ok; else bad "$file: $name is not of version $version"; fi
done < <(grep -oHE '\b(lib)?weft[a-z-]*[_-][0-9]+\.[0-9]+\.[0-9]+[_-][a-z]' README.md docs/install.md api/package/Containerfile*)

# Command lines: from `weft COMMAND` to the end of the code, in blocks and between backticks.
for name in generate chat run serve demo doctor plan pull inspect tokenize top trace bench eval check logits perplexity soak sim test-model prove boot; do
  "$weft" "$name" --help | grep -oE -- '--[a-z0-9-]+' | sort -u >"$work/$name.options"
done
grep -noE 'weft [a-z-]+ [^`]*' README.md CONTRIBUTING.md docs/*.md bench/*.sh | sed -E 's/[|;>].*//; s/ # .*//' >"$work/lines"
declare -A has=() # "COMMAND --option"
while IFS= read -r option; do has[$option]=yes; done < <(cd "$work" && grep -H . ./*.options | sed -E 's#^\./([a-z-]+)\.options:#\1 #')
[ "${#has[@]}" -ge 500 ] || bad "the commands have ${#has[@]} options"
while IFS=: read -r file number line; do
  read -ra words <<<"$line"
  name=${words[1]}
  [ -f "$work/$name.options" ] || continue
  for word in "${words[@]:2}"; do
    [[ $word =~ ^--[a-z][a-z0-9-]+ ]] || continue
    if [ -n "${has[$name ${BASH_REMATCH[0]}]:-}" ]; then ok; else bad "$file:$number: weft $name has no ${BASH_REMATCH[0]}"; fi
  done
done <"$work/lines"

# sources.md: | `DIFFUSION_NAME` | `weft COMMAND --option`, ... or none | why |
n=0
while IFS='|' read -r _ variable here why _; do
  n=$((n + 1))
  if [ ${#why} -lt 30 ]; then bad "docs/sources.md:$variable: neither what it does here nor why there is none"; else ok; fi
  [ "$here" = ' none ' ] && continue
  mapfile -t commands < <(grep -oE '`weft [^`]+`' <<<"$here" | tr -d '`')
  [ ${#commands[@]} -gt 0 ] || bad "docs/sources.md:$variable: '$here' names no command"
  for command in "${commands[@]}"; do
    read -r -a words <<<"$command"
    [ -f "$work/${words[1]}.options" ] || bad "docs/sources.md:$variable: there is no weft ${words[1]}"
    for option in "${words[@]:2}"; do
      if grep -qxF -- "$option" "$work/${words[1]}.options"; then ok; else bad "docs/sources.md:$variable: weft ${words[1]} has no $option"; fi
    done
  done
done < <(grep -E '^\| `DIFFUSION_[A-Z_]+(=1)?` \|' docs/sources.md)
if [ $n = 16 ]; then ok; else bad "docs/sources.md: $n rows of variables, not 16"; fi

"$weft" serve --help >"$work/serve.help"
# operations.md: | `--running`, `--queue` | 64, 256 | ... where both cells are as many and a default is a number
while IFS='|' read -r _ names defaults _; do
  mapfile -t name < <(grep -oE -- '--[a-z0-9-]+' <<<"$names")
  mapfile -t value < <(tr ',' '\n' <<<"$defaults" | tr -d ' ')
  for i in "${!name[@]}"; do
    [[ ${value[$i]:-} =~ ^[0-9.]+$ ]] || continue
    if grep -qE "\[${value[$i]}[]:]" <<<"$(grep -E -- " ${name[$i]}( |$)" "$work/serve.help")"; then ok
    else bad "docs/operations.md: ${name[$i]} is not ${value[$i]} by default"; fi
  done
done < <(grep -E '^\| `--' docs/operations.md)

# coming-from.md: | `--their-option` | what it is here |: the program says the same, and what is named there exists.
if "$weft" help --other-servers | diff - <(sed -n '/^## vLLM/,$p' docs/coming-from.md) >"$work/foreign"; then ok; else bad "docs/coming-from.md: from ## vLLM on it is weft help --other-servers: $(head -3 "$work/foreign")"; fi
n=0
cat "$work"/*.options | sort -u >"$work/all"
while IFS='|' read -r _ theirs here _; do
  n=$((n + 1))
  option=$(tr -d '` ' <<<"$theirs") here=$(sed 's/`//g; s/^ *//; s/ *$//' <<<"$here")
  said=$("$weft" serve "$option" 1 2>&1 </dev/null | tr -d '`')
  if [[ $said == *"$here"* ]]; then ok; else bad "docs/coming-from.md: $option: '$here' is not what weft serve says: $said"; fi
  for ours in $(grep -oE -- '--[a-z][a-z0-9-]+' <<<"$here"); do
    if grep -qxF -- "$ours" "$work/all"; then ok; else bad "docs/coming-from.md: $option: no command has $ours"; fi
  done
done < <(grep -E '^\| `-' docs/coming-from.md)
if [ $n -ge 60 ]; then ok; else bad "docs/coming-from.md: $n rows"; fi
n=0
while IFS='|' read -r _ theirs here _; do
  n=$((n + 1))
  command=$(tr -d '` ' <<<"$theirs") here=$(sed 's/`//g; s/^ *//; s/ *$//' <<<"$here")
  said=$("$weft" "$command" 2>&1 </dev/null)
  if [[ $said == *"here it is $here"* ]]; then ok; else bad "docs/coming-from.md: $command: '$here' is not what weft says: $said"; fi
  for ours in $(grep -oE -- '--[a-z][a-z0-9-]+' <<<"$here"); do
    if grep -qxF -- "$ours" "$work/all"; then ok; else bad "docs/coming-from.md: $command: no command has $ours"; fi
  done
done < <(sed -n '/^## vLLM/,$p' docs/coming-from.md | grep -E '^\| `[a-z]')
if [ $n -ge 10 ]; then ok; else bad "docs/coming-from.md: $n rows of commands"; fi

# fields.md is what the program prints of the tables by which it reads bodies.
if "$weft" fields | diff - docs/fields.md >"$work/fields"; then ok; else bad "docs/fields.md: weft fields > docs/fields.md: $(head -3 "$work/fields")"; fi

while IFS=: read -r file target; do
  path=./${target%%#*}
  [[ $file != */* ]] || path=${file%/*}/${target%%#*}
  if [ -z "${target%%#*}" ] || [ -e "$path" ]; then ok; else bad "$file: no file $target"; fi
done < <(grep -oHE '\]\([^)]+\)' README.md CONTRIBUTING.md CHANGELOG.md SOURCES.md docs/*.md bench/results/*.md | sed -E 's/\]\(//; s/\)$//' | grep -v '://')

# Any page: a path that begins with a room is there: as it stands, as a header, or as the name of a test.
while IFS=: read -r file path; do
  if [ -e "$path" ] || compgen -G "${path%/}" >/dev/null || [ -e "$path.h" ] || [ -e "tests/$path.c" ] || grep -q "NAME $path " CMakeLists.txt; then ok; else bad "$file: there is no $path"; fi
done < <(grep -oHE '`(base|pager|kernels|model|scheduler|api|bench|tests|docs)/[a-z0-9_/.*-]+`' README.md CONTRIBUTING.md docs/*.md | tr -d '`' | sort -u)

# where.md: | question | `path/file.c` `function`, `path/other.c` | ... : a word without a slash stands in the file before it
while IFS='|' read -r _ question where _; do
  file=
  for name in $(grep -oE '`[^`]+`' <<<"$where" | tr -d '`'); do
    case $name in
      */*) file=$name; if [ -e "$file" ]; then ok; else bad "docs/where.md:$question: no file $file"; fi ;;
      -*) ;;
      *) if grep -qw -- "$name" "$file" 2>/dev/null; then ok; else bad "docs/where.md:$question: no $name in $file"; fi ;;
    esac
  done
done < <(grep -E '^\| .*`' docs/where.md | grep -v '\*_')
# coverage.md: | capability | evidence |
while IFS= read -r row; do
  what=$(cut -d'|' -f2 <<<"$row") evidence=$(cut -d'|' -f3- <<<"$row") found=0 files=''
  mapfile -t tests < <(grep -oE '`(unit|prop|sim|fault|kernels|golden|http|fuzz)/[a-z0-9_*]+`' <<<"$evidence" | tr -d '`')
  for test in "${tests[@]}"; do # `kernels/*` is all of them
    compgen -G "tests/$test.c" >/dev/null || bad "docs/coverage.md:$what: no tests/$test.c"
    files="$files tests/$test.c" found=1
  done
  for function in $(grep -oE '\btest_[a-z0-9_]+' <<<"$evidence"); do
    # shellcheck disable=SC2086 # a list of patterns
    grep -qw "$function" $files || bad "docs/coverage.md:$what: no $function in$files"
  done
  for path in $(grep -oE '`(bench|tests)/[a-z_/]+\.(sh|py)' <<<"$evidence" | tr -d '`'); do
    found=1
    [ -e "$path" ] || bad "docs/coverage.md:$what: no $path"
  done
  for command in $(grep -oE '`\./dev [a-z]+' <<<"$evidence" | cut -d' ' -f2); do
    found=1
    grep -qE "^  $command\)" dev || bad "docs/coverage.md:$what: ./dev has no $command"
  done
  grep -qE '`weft [a-z]+|`bench_device_ops|`/metrics`|\]\(|systemd-analyze' <<<"$evidence" && found=1
  if [ $found = 1 ]; then ok; else bad "docs/coverage.md:$what: no evidence"; fi
done < <(sed -n 's/^\(| .*\)$/\1/p' docs/coverage.md | grep -vE '^\| (capability|---)')

# performance.md: each table of numbers, and its section's, its paragraph's or its rows' source
awk 'start && !/^\|/ { if (!source) print start; start = 0 } /^## / { source = 0 } /^\*\*/ { source = 0 }
  /bench\/results\// || /one run/ || /by hand/ { source = 1 }
  /^\|/ && !start { start = NR } END { if (start && !source) print start }' docs/performance.md >"$work/tables"
n=$(wc -l <docs/performance.md)
if [ "$n" -le 200 ]; then ok; else bad "docs/performance.md has $n lines; 200 are enough for what a user decides by"; fi
for page in docs/*.md; do # docs/README.md leads to every page
  if [ "$page" = docs/README.md ] || grep -qF "](${page#docs/}" docs/README.md; then ok; else bad "docs/README.md does not name $page"; fi
done
while read -r line; do bad "docs/performance.md:$line: a table without a record, nor a word that it is one run"; done <"$work/tables"
ok
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
