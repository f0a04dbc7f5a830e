#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Style as a test: arrows between rooms, banned calls, sizes of files and functions, the first line of each file, and no
# tracked file over 8 MiB or tree over 40 MiB. What is over a limit today is in exceptions.txt with its size: numbers may
# only fall.
set -euo pipefail
cd "$(dirname "$0")/../.."
bad=0
complain() { echo "lint: $*"; bad=$((bad + 1)); }
files() { git ls-files --cached --others --exclude-standard -- "$@"; }
allowed() { grep -qE "^$1 +$2 +" tests/lint/exceptions.txt; }
declare -A limit_of=() # by kind and place
while read -r kind place most _; do
  [[ $kind == "#"* || -z $most ]] || limit_of["$kind $place"]=$most
done <tests/lint/exceptions.txt

# Which room may include which.
arrows() {
  case $1 in
    base) echo "base" ;;
    pager) echo "base pager" ;;
    kernels) echo "base kernels" ;;
    model) echo "base kernels model" ;;
    scheduler) echo "base model pager scheduler" ;;
    api) echo "base kernels model pager scheduler api" ;;
  esac
}
for room in base pager kernels model scheduler api; do
  ok=$(arrows $room)
  while IFS=: read -r file _ line; do
    target=${line#*\"} target=${target%%/*}
    case " $ok " in *" $target "*) ;; *) complain "$file includes $target/: $room may include only $ok" ;; esac
  done < <(files "$room/*.c" "$room/*.h" "$room/*.cu" "$room/*.cuh" | xargs grep -nE '^#include "[a-z]+/' || true)
done
# Rooms inside rooms: which folder of a room may include which others of that room.
inner_arrows() {
  case $1 in
    model/gguf) echo "model/gguf" ;;
    model/text) echo "model/gguf model/text" ;;
    model/formats) echo "model/gguf model/text model/formats" ;;
    model) echo "model/gguf model/text model/formats model" ;;
    model/runner) echo "model/gguf model/text model/formats model model/runner" ;;
    api) echo "api" ;;
    api/http) echo "api api/http" ;;
    api/dialects) echo "api api/http api/dialects" ;;
    api/events) echo "api api/events" ;;
    api/server) echo "api api/http api/dialects api/events api/server" ;;
    api/cli) echo "api api/http api/dialects api/events api/server api/cli" ;;
    *) complain "$1 is no room of tests/lint/lint.sh" ;;
  esac
}
while IFS=: read -r file _ line; do
  from=${file%/*} target=${line#*\"} target=${target%/*}
  [ "${from%%/*}" = "${target%%/*}" ] || continue
  ok=$(inner_arrows "$from")
  case " $ok " in *" $target "*) ;; *) complain "$file includes $target/: $from may include only $ok" ;; esac
done < <(files 'model/*.c' 'model/*.h' 'api/*.c' 'api/*.h' | xargs grep -nE '^#include "(model|api)/' || true)
# The laboratory: its programs of one room (bench/*.c), its doubles, and the rest, which enters the product by one door.
bench_arrows() {
  case $1 in
    bench/inside.h) echo "api base kernels model pager scheduler" ;;
    bench/doubles/*) echo "base kernels model pager bench/doubles" ;;
    bench/*/*) echo "bench" ;;
    bench/formats.c | bench/schema_suite.c) echo "base model bench" ;;
    bench/graph_mix.c | bench/one_step.h | bench/step_repeats.c) echo "base kernels model bench" ;;
    *) echo "base kernels bench" ;;
  esac
}
while IFS=: read -r file _ line; do
  target=${line#*\"} target=${target%%/*}
  [[ $line == *'"bench/doubles/'* && $file == bench/doubles/* ]] && target=bench/doubles
  case " $(bench_arrows "$file") " in *" $target "*) ;; *) complain "$file includes $target/: only bench/inside.h may" ;; esac
done < <(files 'bench/*.c' 'bench/*.h' | xargs grep -nE '^#include "[a-z]+/' || true)
while IFS=: read -r file _; do
  complain "$file includes bench/: only tests know the laboratory"
done < <(files '*.c' '*.h' '*.cu' '*.cuh' | grep -vE '^(bench|tests)/' | xargs grep -nE '^#include "bench/' || true)
while IFS=: read -r file _; do
  complain "$file: the scheduler sees no tensors (kernels/, gguf, model.h)"
done < <(files 'scheduler/*.c' 'scheduler/*.h' | xargs grep -nE '#include "(kernels/|model/(gguf|model|weights|layers))' || true)

# Within the scheduler a file includes only files of lower layers, or of its own where a header holds only data: no circle
# can arise. A file stands for its .h and .c.
layers=(
  "draft ngram"
  "drafting"
  "draft_history list deadline cost policy queue_share replica_choice recorder forecast claims params canvas_ring budget"
  "event sent_prefixes view prefix_feed visit"
  "stats pace depth file_wait"
  "request latency account pin stats_sum"
  "tenant ready plan places"
  "batcher inbox"
  "state"
  "pool_size"
  "planning waiting pins copies snapshot watch fit check debt"
  "share light relief runs lifecycle admission"
  "rows apply guests own_drafts"
  "perform"
  "planner"
  "step"
  "thread"
  "engine"
  "submit replicas"
)
declare -A layer_of=()
for i in "${!layers[@]}"; do
  for file in ${layers[$i]}; do layer_of[$file]=$i; done
done
while IFS=: read -r file _ line; do
  own=${file##*/} own=${own%.[ch]}
  target=${line#*scheduler/} target=${target%%.h*}
  [[ $own == "$target" ]] && continue
  a=${layer_of[$own]:-} b=${layer_of[$target]:-}
  if [ -z "$a" ] || [ -z "$b" ]; then complain "$file: $own or $target has no layer in tests/lint/lint.sh"
  elif [ "$b" -ge "$a" ]; then complain "$file includes $target.h of a layer that is not below its own"; fi
done < <(files 'scheduler/*.c' 'scheduler/*.h' | xargs grep -nE '#include "scheduler/' || true)

# Calls that have a home elsewhere.
ban() { # pattern, files that may, reason
  while IFS=: read -r file line _; do
    allowed "banned:$4" "$file" && continue
    complain "$file:$line: $3"
  done < <(files '*.c' '*.h' '*.cu' '*.cuh' | grep -vE "^(tests/|docs/)|$2" | xargs grep -nE "(^|[^a-zA-Z_0-9.>])($1)\(" /dev/null || true)
}
ban 'malloc|calloc|realloc' '^base/memory.c$' 'host memory comes from base/memory.h' malloc
ban 'sprintf|strcpy|strcat|strtok|atoi|gets|alloca' '^$' 'unsafe call' unsafe
ban 'getenv|secure_getenv' '^(api/(config|cli/notify)\.c|kernels/cuda/device\.cu)$' 'only api/config.c reads the environment' getenv
ban 'exit|_exit|quick_exit|abort' '^base/check.c$' 'a library never ends the process' exit
ban 'pthread_create' '^base/threads.c$' 'threads are started by base/threads.h' thread
ban 'rand|srand|random|drand48' '^$' 'draws are stateless: base/random.h' rand

# nvcc names a static function of a card that is not inlined with a hash of the folder, so no two builds would have the same bytes.
while IFS=: read -r file line _; do complain "$file:$line: a function of a card that is not inlined is not static: builds would differ"
done < <(files '*.cu' '*.cuh' | xargs grep -nE 'static.*__noinline__|__noinline__.*static' || true)

# A search that ends at its first match breaks the pipe of what still writes to it, and under pipefail that is a failure, now and
# then: a file or a string is searched instead.
while IFS=: read -r file line _; do
  complain "$file:$line: 'grep -q' at the end of a pipe: grep -q WORDS <<<\"\$(COMMAND)\""
done < <(files '*.sh' dev .ci/run | xargs grep -nE '[^|]\| *grep -[a-zA-Z]*q' /dev/null || true)

# Sizes.
while read -r n licence file; do
  max=800
  [[ $file == *.h ]] && max=300 # a .cuh holds code: as a source
  [[ $file == *_impl.h || $file == *_lanes.h || $file == tests/* ]] && max=800 # code that is compiled several times
  max=${limit_of["file $file"]:-$max}
  [ "$n" -le "$max" ] || complain "$file has $n lines; the limit is $max"
  [ "$licence" = 1 ] || complain "$file: the first line names the licence"
done < <(files '*.c' '*.h' '*.cu' '*.cuh' '*.js' '*.css' | xargs awk '
  FNR == 1 { if (file != "") print n, licence, file
             file = FILENAME
             licence = /SPDX-License-Identifier: MIT/ }
  { n = FNR }
  END { print n, licence, file }')
while read -r file start n name; do
  [ "$n" -gt 0 ] || complain "$file:$start: tests/lint/functions.awk does not see the function that ends here"
  max=${limit_of["function $file:$name"]:-70}
  [ "$n" -le "$max" ] || complain "$file:$start: $name has $n lines; the limit is $max"
done < <(files {base,pager,kernels,scheduler,model,api,bench}/'*.[ch]' 'kernels/*.cu' 'kernels/*.cuh' 'bench/*.cu' |
  xargs awk -f tests/lint/functions.awk)

# Names (docs/architecture.md): a static function is a verb and its noun, so that a search finds one definition; a double
# underscore is no prefix.
while IFS=: read -r file line text; do
  complain "$file:$line: a static function is named by a verb and its noun: $text"
done < <(files {base,pager,kernels,model,scheduler,api,bench}/'*.[ch]' |
  xargs grep -nE '^(static|SIMD_INLINE|LANES_INLINE)[a-zA-Z_0-9 *]*[ *][a-z0-9]+\(' /dev/null || true)
while IFS=: read -r file line _; do
  complain "$file:$line: a double underscore in a name"
done < <(files {base,pager,kernels,model,scheduler,api}/'*.[ch]' |
  xargs grep -nE '(^|[^a-zA-Z0-9_])[a-z][a-z0-9]*__[a-z]' /dev/null || true)
# A name that weft.h gives to programs outside is declared nowhere else, so public and internal names cannot clash.
public=$(sed -nE -e 's/^WEFT_API [^(]*[ *](weft_[a-z0-9_]+)\(.*/\1/p' -e 's/^\} (weft_[a-z0-9_]+);.*/\1/p' \
  -e 's/^typedef struct (weft_[a-z0-9_]+) .*;$/\1/p' api/weft.h | paste -sd '|')
while IFS=: read -r file line text; do
  complain "$file:$line: weft.h has this name: $text"
done < <(files {base,pager,kernels,model,scheduler,api}/'*.h' | grep -v '^api/weft\.h$' |
  xargs grep -nE "^(\} ($public);|(typedef|extern|static|const|unsigned|struct|void|bool|char|int|double|float|u?int[0-9]+_t|weft_[a-z0-9_]+) .*[ *]($public)(;|\())" || true)
# Form: what clang-format 14 makes of it, where that version is installed (others differ in corners), and nothing wider than
# 120 columns: clang-format leaves comments and strings as they are.
clang_format=$(command -v clang-format-14 || command -v clang-format || true)
if [ -n "$clang_format" ] && grep -q 'version 14\.' <<<"$("$clang_format" --version)"; then
  while IFS=: read -r file line _; do
    complain "$file:$line: not as clang-format makes it: ./dev format"
  done < <(files '*.c' '*.h' '*.cu' '*.cuh' '*.js' | xargs "$clang_format" --dry-run 2>&1 | grep -E '^[^ :]+:[0-9]+:.*-Wclang-format' || true)
else
  echo "lint: clang-format 14 is not installed: form is not checked" >&2
fi
wide=$(files '*.c' '*.h' '*.cu' '*.cuh' '*.js' '*.css' | LC_ALL=C.UTF-8 xargs grep -nE '^.{121,}' | cut -d: -f1,2 || true)
n=$(grep -c . <<<"$wide" || true)
max=${limit_of["width all"]:-0}
[ "$n" -le "$max" ] || complain "$n lines are wider than 120 columns; the limit is $max:"$'\n'"$wide"

# The page at / asks nobody but its server, and what it shows is text: no markup is made, no code is run from a text.
while IFS=: read -r file line text; do
  complain "$file:$line: the page makes nodes and no markup, and names no foreign address: $text"
done < <(files 'api/page/*.js' 'api/page/*.css' 'api/page/*.html' | xargs grep -nE \
  'innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(|new Function|<style|[^-]style="|[[:space:]]on[a-z]+="|(src|href)="(https?:)?//|url\(|@import|["`]https?://[^w]' |
  grep -v 'http://www.w3.org/2000/svg' || true)

# The tracked tree. A file that was deleted and not yet committed is not there.
total=0
while read -r bytes file; do
  total=$((total + bytes))
  [ "$bytes" -le $((8 * 1024 * 1024)) ] || complain "$file is larger than 8 MiB"
done < <(files | xargs -d '\n' stat -c '%s %n' 2>/dev/null || true)
[ "$total" -le $((40 * 1024 * 1024)) ] || complain "the tree has $total bytes; the limit is 40 MiB"

[ "$bad" = 0 ] && echo "lint: clean"
[ "$bad" = 0 ]
