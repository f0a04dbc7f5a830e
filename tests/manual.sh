#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# tests/manual.sh WEFT: what the program writes of its own tables (`weft help --write DIR`): every command has a page, every
# option of a command stands in its page and in the completions of bash, zsh and fish, every option of a file in the example
# configuration and in weft.conf(5); man, mandoc and the shells take them, where they are installed. Prints `N passed, N failed`.
set -uo pipefail
cd "$(dirname "$0")/.."
weft=$(realpath "$1")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0
failed=0
ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "failed: $*"; }
holds() { # FILE WORDS: a line of the file has the words
  if grep -qE -- "$2" "$1"; then ok; else bad "${1#"$dir"/}: no $2"; fi
}
# has FILE: it has each line of standard input somewhere, as it stands; one search for all of them
has() {
  local word
  cat >"$dir/words"
  awk 'NR == FNR { words[$0]; next } { text = text "\n" $0 } END { for (word in words) if (!index(text, word)) print word }' "$dir/words" "$1" >"$dir/missing"
  passed=$((passed + $(wc -l <"$dir/words") - $(wc -l <"$dir/missing")))
  while IFS= read -r word; do bad "${1#"$dir"/}: no $word"; done <"$dir/missing"
}

"$weft" help --write "$dir/share" || bad 'help --write'
"$weft" help --write "$dir/again" && diff -r "$dir/share" "$dir/again" >"$dir/out" && ok || bad "two writes differ: $(head -3 "$dir/out")"
bash_file=$dir/share/bash-completion/completions/weft zsh_file=$dir/share/zsh/site-functions/_weft
fish_file=$dir/share/fish/vendor_completions.d/weft.fish
conf=$dir/share/doc/weft/examples/weft.conf

mapfile -t commands < <("$weft" help | sed -nE 's/^  weft ([a-z-]+) +[^ -].*/\1/p' | sort -u | grep -vxE 'generate|serve'; echo generate; echo serve)
[ ${#commands[@]} -ge 15 ] && ok || bad "weft help: ${#commands[@]} commands"
for command in "${commands[@]}"; do
  page=$dir/share/man/man1/weft-$command.1
  holds "$dir/share/man/man1/weft.1" "^.fBweft ${command//-/\\\\-}\\\\fR\$"
  holds "$fish_file" "__fish_use_subcommand -a $command "
  sed -n "/^    $command)\$/,/^      ;;\$/{ s/'/ /g; p }" "$bash_file" >"$dir/bash"
  sed -n "/^    $command)\$/,/^      ;;\$/{ s/=/[/g; p }" "$zsh_file" >"$dir/zsh"
  grep "from $command'" "$fish_file" >"$dir/fish"
  mapfile -t options < <("$weft" "$command" --help | sed -nE 's/^  (-.,|   ) --([a-z0-9-]+).*/\2/p')
  [ ${#options[@]} -ge 4 ] && ok || bad "$command --help: ${#options[@]} options"
  has "$page" < <(printf 'fB\\-\\-%s\\fR\n' "${options[@]//-/\\-}")
  has "$dir/bash" < <(printf ' --%s \n' "${options[@]}")
  has "$dir/zsh" < <(printf -- '--%s[\n' "${options[@]}")
  has "$dir/fish" < <(printf -- ' -l %s \n' "${options[@]}")
done

# All but what makes no sense in a file; what is commented out is taken as it stands, and numbers are the defaults.
mapfile -t options < <("$weft" serve --help | sed -nE 's/^  (-.,|   ) --([a-z0-9-]+).*/\2/p' | grep -vxE 'help|version|config')
sed 's/^/</' "$conf" >"$dir/conf"
has "$dir/conf" < <(printf '<#%s = \n' "${options[@]}")
sed 's/^/</' "$dir/share/man/man5/weft.conf.5" >"$dir/conf.5"
has "$dir/conf.5" < <(printf '<\\fB%s\\fR = \n' "${options[@]//-/\\-}")
sed -nE 's/^#([a-z0-9-]+ = [0-9.]+)$/\1/p' "$conf" >"$dir/numbers.conf"
[ "$(wc -l <"$dir/numbers.conf")" -ge 8 ] && ok || bad "$conf: few numbers"
if "$weft" serve --config "$dir/numbers.conf" >"$dir/out" 2>&1 || ! grep -q 'no model: name a GGUF file' "$dir/out"; then bad "$(cat "$dir/out")"; else ok; fi
if "$weft" serve --config "$conf" >"$dir/out" 2>&1 || ! grep -q 'no model: name a GGUF file' "$dir/out"; then bad "$(cat "$dir/out")"; else ok; fi

# Where a configuration is looked for when nobody names one: the user's folder, then the home's; said when it was read.
place() { env -u WEFT_CONFIG XDG_CONFIG_HOME="$1" HOME="$2" "$weft" serve "${@:3}" >"$dir/out" 2>&1; }
mkdir -p "$dir/xdg/weft" "$dir/home/.config/weft"
echo 'rows = many' >"$dir/xdg/weft/weft.conf"
echo 'queue = many' >"$dir/home/.config/weft/weft.conf"
place "$dir/xdg" "$dir/home"; holds "$dir/out" '--rows.*must be a whole number'
place '' "$dir/home"; holds "$dir/out" '--queue.*must be a whole number'
place relative "$dir/home"; holds "$dir/out" '--queue.*must be a whole number'
place "$dir/xdg" "$dir/home" --config /dev/null; holds "$dir/out" 'no model: name a GGUF file'
place "$dir/xdg" "$dir/home" --help; holds "$dir/out" 'What everybody needs first'

for page in "$dir"/share/man/man*/*; do
  if command -v mandoc >/dev/null; then
    mandoc -Tlint -Wwarning "$page" | grep -v 'missing date' >"$dir/out" && bad "mandoc: $(head -2 "$dir/out")" || ok
  fi
  if command -v man >/dev/null; then
    LC_ALL=C MANWIDTH=80 man --warnings -l "$page" >"$dir/page" 2>"$dir/out" && [ ! -s "$dir/out" ] && [ "$(wc -l <"$dir/page")" -ge 10 ] && ok || bad "man: $page $(head -2 "$dir/out")"
  fi
done
bash -n "$bash_file" && ok || bad 'bash -n'
if command -v zsh >/dev/null; then zsh -n "$zsh_file" && ok || bad 'zsh -n'; fi
if command -v fish >/dev/null; then fish --no-execute "$fish_file" && ok || bad 'fish --no-execute'; fi
complete_in_bash() { # WANTED WORD...: what is completed for the last word
  local wanted=$1
  shift
  # shellcheck disable=SC2016 # for the other shell
  got=$(bash -c 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _weft; echo "${COMPREPLY[*]}"' - "$bash_file" "$@" 2>&1)
  if [ "$got" = "$wanted" ]; then ok; else bad "bash completes '$*' as '$got', not '$wanted'"; fi
}
complete_in_bash 'serve' weft ser
complete_in_bash '--precision' weft serve --prec
complete_in_bash 'auto exact fast' weft serve --precision ''
complete_in_bash 'auto ar diffusion' weft chat --mode ''
complete_in_bash 'tensor' weft serve --split t
complete_in_bash 'warning' weft serve --log-level w
complete_in_bash 'CONTRIBUTING.md' weft serve -m CONTRI
complete_in_bash '' weft serve --port CONTRI
complete_in_bash 'CONTRIBUTING.md' weft chat CONTRI
if command -v fish >/dev/null; then
  # shellcheck disable=SC2016
  got=$(HOME=$dir fish -c 'source $argv[1]; complete -C "weft serve --prec"' "$fish_file" | cut -f1)
  if [ "$got" = --precision ]; then ok; else bad "fish completes --prec as '$got'"; fi
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
