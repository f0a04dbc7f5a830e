#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# tests/cli.sh WEFT: the program as a script uses it: results on standard output, one line of reason on standard error, exit
# codes. Prints `N passed, N failed`.
set -uo pipefail
weft=$1
demo=model/demo/weft-demo.gguf
ar=model/demo/weft-demo-ar.gguf
draft=model/demo/weft-demo-draft.gguf
tiny=tests/golden/models/dg-base.gguf
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0
failed=0

# expect CODE WORDS COMMAND...: exit code, and words in what it printed (either stream)
expect() {
  local code=$1 words=$2 got
  shift 2
  "$@" >"$dir/out" 2>&1 </dev/null
  got=$?
  if [ "$got" = "$code" ] && { [ -z "$words" ] || grep -qF -- "$words" "$dir/out"; }; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "failed: $* (exit $got, wanted $code with '$words')"
    head -3 "$dir/out"
  fi
}

expect 0 'weft 0.' "$weft" --version
expect 0 'generate' "$weft" --help
expect 0 'To measure, test and simulate' "$weft" --help
expect 0 '--diffusion-steps' "$weft" generate --help
expect 0 'What everybody needs first' "$weft" serve --help
expect 0 '--goodput-tpot-ms' "$weft" sim --help
expect 2 'no command is named' "$weft" dance
expect 2 "did you mean weft serve?" "$weft" serv
expect 2 "did you mean weft serve?" "$weft" help serv
expect 2 'ps is a command of Ollama; here it is weft top' "$weft" ps
expect 0 'To measure, test and simulate' "$weft" -help
expect 2 "run: 'gemma4' is no file: a model is a GGUF file, or one of a hub: -hf OWNER/NAME" "$weft" run gemma4
expect 2 "plan: 'none/at/all' is no file" "$weft" plan none/at/all
expect 2 'or a model of a hub with -hf OWNER/NAME' "$weft" run
expect 0 '2,372,446,354' "$weft" tokenize $demo -p hello
expect 0 'What everybody needs first' "$weft" help serve
expect 0 'weft 0.' "$weft" serve --version
expect 0 'weft 0.' "$weft" -v
expect 2 'here it is --context N' "$weft" serve --max-model-len 4096
expect 2 'here it is --devices 0,1 --split tensor' "$weft" serve -tp 2
WEFT_PROT=1 expect 2 'WEFT_PROT of the environment is the name of no option: did you mean WEFT_PORT?' "$weft" serve
WEFT_PROT=$'1\n\x1b[31m' WEFT_KV_MIB=16 expect 0 '' "$weft" fields
expect 2 'no option is named' "$weft" generate --rowz 1
expect 2 'no option is named' "$weft" generate --requests 1
expect 2 'must be a whole number from 1 to' "$weft" generate -m $demo -p x --running 0
expect 0 '"10 23 41 68 77 95"' "$weft" generate -m $demo --chat -p 'Sort from low to high: 41 77 23 95 10 68' --mode ar --temperature 0 --json
expect 0 '10 23 41 68 77 95' "$weft" generate -m $demo --chat -p 'Sort from low to high: 41 77 23 95 10 68' --seed 1
# README's first question, whatever noise its canvas begins with
right=0
for seed in $(seq 16); do
  [ "$("$weft" generate -m $demo --chat -p 'Sort from low to high: 41 7 23' --seed "$seed" -q)" = '7 23 41' ] && right=$((right + 1))
done
expect 0 '16 of 16' echo "$right of 16"
# the drafter is a model like others, of the same vocabulary
expect 0 '7 23 41' "$weft" generate -m $draft --chat -p 'Sort from low to high: 41 7 23' --temperature 0
for model in $demo $draft; do "$weft" tokenize -m $model -p "$(cat tests/golden/perplexity/demo.txt)" >"$dir/tokens-$(basename $model)"; done
expect 0 '2,' cat "$dir/tokens-weft-demo.gguf"
expect 0 '' cmp "$dir/tokens-weft-demo.gguf" "$dir/tokens-weft-demo-draft.gguf"
# two canvases
"$weft" generate -m $demo --chat -p 'List all numbers from 34 to 49.' --mode diffusion --seed 1 --json >"$dir/two"
expect 0 '"canvases": 2' cat "$dir/two"
expect 0 '"34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49"' cat "$dir/two"
expect 0 '"logprobs"' "$weft" generate -m $ar --chat -p 'What is 58 + 37?' --json --logprobs 3
expect 0 '"finish": "length"' "$weft" generate -m $tiny --tokens 2,5,9 -n 20 --diffusion-steps 3 --seed 3 --ignore-eos --json --trace "$dir/trace"
expect 0 '"canvas_out"' head -1 "$dir/trace"
expect 0 'weft-demo' "$weft" generate -m $demo -p x -n 4 --verbose --seed 1
expect 2 'no canvas' "$weft" generate -m $ar --mode diffusion -p x
expect 2 'not defined for a canvas' "$weft" generate -m $demo -p x --mode diffusion --presence-penalty 1
expect 0 '10 23 41 68 77 95' "$weft" generate -m $demo --chat -p 'Sort from low to high: 41 77 23 95 10 68' --seed 1 --kv-8bit weft-demo
expect 2 "no model's file is named" "$weft" generate -m $demo -p x --kv-8bit other
expect 2 'there are none: leave out' "$weft" generate -m $demo -p x --host-mib 4 --no-prefix-cache
expect 2 'must be auto' "$weft" generate -m $demo -p x --mode both
expect 2 'the vocabulary has tokens' "$weft" generate -m $tiny --tokens 2,99999
expect 2 'the prompt has' "$weft" generate -m $demo -c 64 --tokens "$(seq -s, 100 300)"
expect 3 'lower --rows' "$weft" generate -m $demo --devices 0,1 --device-mib 8 -p x
expect 2 'two\x0alines\x1b' "$weft" generate -m $demo -p x --$'two\nlines\x1b'
expect 3 'no\x0asuch.gguf' "$weft" generate -m $'no\nsuch.gguf' -p x
WEFT_ROWS=$'5\n\x1b[31m' expect 2 '5\x0a\x1b[31m' "$weft" serve -m $demo
expect 3 'not a GGUF file' "$weft" generate -m README.md -p x
expect 3 'No such file' "$weft" generate -m missing.gguf -p x
expect 3 "backend 'abacus' is unknown" "$weft" generate -m $demo -p x --backend abacus
expect 3 "not in 16; leave out --precision" "$weft" generate -m $demo -p x --backend cpu --precision exact
expect 2 "instead of --integers say --precision fast" "$weft" generate -m $demo -p x --integers
WEFT_PRODUCTS=8 expect 2 "WEFT_PRODUCTS of the environment: say --precision" "$weft" generate -m $demo -p x
expect 2 "--log-format: 'xml' must be text or json" "$weft" generate -m $demo -p x --log-format xml
expect 2 "--log-level: 'loud' must be error" "$weft" generate -m $demo -p x --log-level loud
expect 3 '"level":"error","text":"missing' "$weft" generate -m missing.gguf -p x --log-format json
expect 0 'Z info: plan: pool' "$weft" generate -m $demo -p x -n 4 --log-level info --seed 1
expect 1 '' bash -c "'$weft' generate -m $demo --chat -p 'Sort from low to high: 41 7 23' --log-level error 2>&1 | grep -v 7"
head -c 5000 $demo >"$dir/cut.gguf"
expect 3 'cut.gguf' "$weft" inspect "$dir/cut.gguf"
expect 0 'diffusion-gemma' "$weft" inspect $demo
expect 0 '"kv' "$weft" inspect $demo --json
expect 0 'weft serves this file' "$weft" inspect $demo
expect 0 'weft serves this file, without chat' "$weft" inspect tests/golden/models/ar-base.gguf
expect 0 "a deepseek4 model needs it" "$weft" inspect tests/fuzz/corpus/model_gguf/good-types.gguf
expect 0 '0 bad' "$weft" doctor -m $demo --port 0
expect 0 '"state":"ok"' "$weft" doctor -m $demo --port 0 --json
expect 1 'cut.gguf' "$weft" doctor -m "$dir/cut.gguf" --port 0
expect 1 'raise the limit (ulimit -n' bash -c "ulimit -n 20; '$weft' doctor --port 0"
expect 2 'no option is named' "$weft" doctor --rowz 1
expect 0 'weft serve -m model/demo/weft-demo.gguf --kv-mib' "$weft" plan $demo --users 16
expect 0 '"fits":true' "$weft" plan $demo --card h200 --json
expect 0 '"rows":2048' "$weft" plan $demo --card rtx-4090 --json
expect 0 'predicted: the portable set' "$weft" plan $demo --card rtx-4090
expect 0 '"set":"portable"' "$weft" plan $demo --card all --json
expect 0 'predicted but for sm_90' "$weft" plan $demo --card all
expect 2 'is not in the table, which has h100' "$weft" plan $demo --card abacus
expect 0 'GeForce RTX 4090' "$weft" plan $demo --card 4090
expect 0 'NVIDIA H100 NVL' "$weft" plan $demo --card 'H100 NVL'
expect 2 'did you mean rtx-4090?' "$weft" plan $demo --card rtx-4091
expect 2 "more than the model's context of 2048" "$weft" plan $demo --prompt 2000 --answer 500
expect 2 'name one GGUF file' "$weft" plan
expect 0 'numbers: 143 tensors read, 0 broken' "$weft" check numbers -m $demo
expect 0 '{"sound":true,"tensors":143' "$weft" check numbers -m $demo --json
expect 0 'agrees with ref: 120 ops' "$weft" check -m $tiny --devices 0,1 -q
expect 2 '--split replicas' "$weft" perplexity -m $ar -f tests/golden/perplexity/tiny.txt -c 64 --devices 0,1 --split replicas -q
expect 0 'no bit differs at any stage of 24 tokens' "$weft" check stages -m $tiny -q
expect 1 'the first bit differs at layer 0, query' "$weft" check stages -m $tiny --with ref --tolerance 1e-9 -q
expect 0 '"differs":false,"tokens":24,"first_bit":{"layer":0,"stage":"query"' "$weft" check stages -m $tiny --with ref --json -q
expect 2 '--with nothing: give rows' "$weft" check stages -m $tiny --with nothing -q
expect 0 'no bit differs at any stage of 24 tokens' "$weft" check stages -m $tiny --with rows:5 -q
expect 2 'rows:N with N from 1 to 2048' "$weft" check stages -m $tiny --with rows:0 -q
expect 2 'of `weft check stages`' "$weft" check -m $tiny --with rows -q
expect 2 'is named twice' "$weft" check -m $tiny --devices 1,1 -q
{ head -c -40000 $ar && head -c 40000 /dev/zero; } >"$dir/zeros.gguf"
expect 0 'by diffusion: all 3 questions are answered' "$weft" test-model -m $demo -q
expect 0 '"verdict": "look"' "$weft" test-model -m $demo -q --json
expect 1 'compare the checksum' "$weft" test-model -m "$dir/zeros.gguf" -q
expect 1 'Compare the size and the checksum' "$weft" test-model -m "$dir/cut.gguf" -q
expect 2 'name one GGUF file' "$weft" test-model
expect 3 'No such file' "$weft" test-model -m $demo --text missing.txt
expect 2 './dev test-model FILE' ./dev test-model
expect 2 'it has: numbers' "$weft" check letters -m $demo
expect 2 "generate: 'backwards.' belongs to no option" "$weft" generate -m $demo --chat -p Write backwards.
expect 2 "chat: 'hello' belongs to no option" "$weft" chat -m $demo hello
expect 3 'a.gguf: No such file' "$weft" serve a.gguf
expect 0 '10 23 41 68 77 95' "$weft" generate $demo --chat -p 'Sort from low to high: 41 77 23 95 10 68' --seed 1
expect 2 "check: 'more' belongs to no option" "$weft" check numbers more -m $demo
expect 2 "'owner' is no name of a model on a hub" "$weft" generate -hf owner -p x
expect 2 'is no name of a model on a hub' "$weft" pull '../../etc:x'
expect 2 'write an address that begins with https' "$weft" pull a/b --hub http://192.0.2.1 --cache "$dir/hub"
expect 2 "no option is named '-help'" "$weft" serve -help
expect 0 'the answer has no text: its tokens are padding' "$weft" generate -m $demo -p 'What is 58 + 37?' --seed 1
expect 1 'rows are zero, the first is row' "$weft" check -m "$dir/zeros.gguf"
expect 1 '"fault":"zero"' "$weft" check -m "$dir/zeros.gguf" --json
expect 0 '2,' "$weft" tokenize -m $demo -p 'What is 58 + 37?'
expect 0 '"id"' "$weft" tokenize -m $demo -p 'What' --json
ids=$("$weft" tokenize -m $demo -p 'What is 58 + 37?')
expect 0 'What is 58 + 37?' "$weft" tokenize -m $demo --tokens "$ids"
expect 2 'is no token id' "$weft" tokenize -m $demo --tokens 1,x
expect 0 '' "$weft" logits -m $tiny --tokens 2,5,9 -o "$dir/a.f32"
expect 0 '' "$weft" logits -m $tiny --tokens 2,5,9 --canvas 7,7,7,7,7,7,7,7 -o "$dir/b.f32"
expect 0 '' "$weft" logits -m $tiny --tokens 2,5,9 --canvas 1,2,3,4,5,6,7,8 --self-cond "$dir/b.f32" --self-cond-temperature 0.8 -o "$dir/c.f32"
expect 1 'differ' cmp "$dir/b.f32" "$dir/c.f32"
expect 2 'bytes' "$weft" logits -m $tiny --tokens 2 --canvas 1,2,3,4,5,6,7,8 --self-cond "$dir/a.f32" -o "$dir/d.f32"
expect 2 'the canvas has' "$weft" logits -m $tiny --tokens 2 --canvas 1,2 -o "$dir/d.f32"
text=tests/golden/perplexity/tiny.txt
expect 0 'over 186 tokens' "$weft" perplexity -m tests/golden/models/ar-base.gguf -f $text -c 64 -q
base="perplexity -m tests/golden/models/ar-base.gguf -f $text -c 64 -q"
"$weft" $base >"$dir/one-device"
"$weft" $base --devices 0,1 >"$dir/two-devices"
expect 0 'over 186 tokens' cat "$dir/two-devices"
expect 0 '' cmp "$dir/one-device" "$dir/two-devices" # layers on two devices change no digit
expect 0 'over 186 tokens' "$weft" $base --devices 0,1 --split tensor
expect 0 '"perplexity"' "$weft" perplexity -m tests/golden/models/ar-base.gguf -f $text -c 64 --stride 20 --chunks 2 --json -q
expect 0 'noise 0.5: cross-entropy' "$weft" perplexity -m $tiny -f $text -c 32 --noise 0.5,1 --save-logits "$dir/rows" --seed 3 -q
expect 0 'divergence from the saved rows 0 (' "$weft" perplexity -m $tiny -f $text -c 32 --noise 0.5,1 --kl "$dir/rows" --seed 3 -q
expect 2 'another --noise or --seed' "$weft" perplexity -m $tiny -f $text -c 32 --noise 0.5,1 --kl "$dir/rows" -q
expect 0 '"max": 0.0' "$weft" perplexity -m $tiny -f $text -c 32 --noise 0.5,1 --kl "$dir/rows" --seed 3 -q --json --rows 40
expect 0 'over' "$weft" perplexity -m $ar -f $text -c 64 --chunks 2 --kv-8bit all -q
head -c 3000 "$dir/rows" >"$dir/short"
expect 3 'bytes, a whole file' "$weft" perplexity -m $tiny -f $text -c 32 --noise 0.5,1 --kl "$dir/short" --seed 3 -q
expect 3 'was not written by' "$weft" perplexity -m $tiny -f $text -c 32 --kl README.md -q
expect 3 'No space left' "$weft" perplexity -m $tiny -f $text -c 32 --save-logits /dev/full -q
expect 3 'File too large' bash -c "trap '' XFSZ; ulimit -f 8; '$weft' perplexity -m $tiny -f $text -c 32 --save-logits '$dir/large' -q"
: >"$dir/empty"
printf 'ab\xffcdefgh' >"$dir/broken"
expect 2 'is empty' "$weft" perplexity -m $tiny -f "$dir/empty"
expect 2 'byte 2 is not UTF-8' "$weft" perplexity -m $tiny -f "$dir/broken"
# texts that nobody writes: zero bytes, blanks alone, words that look like control tokens, the last characters there are
for words in 'a\0b' '\r\n' '    ' '<bos><eos><pad>' '\xf4\x8f\xbf\xbf' '\x01\x02\x1b' '\xe2\x80\xaeabc'; do
  for _ in {1..400}; do printf "$words"; done >"$dir/hostile"
  expect 0 '"perplexity"' "$weft" perplexity -m tests/golden/models/ar-base.gguf -f "$dir/hostile" -c 32 --chunks 1 --json -q
done
expect 2 'give a longer text, or a smaller -c' "$weft" perplexity -m $tiny -f $text -c 4096
expect 2 'name the text with -f FILE' "$weft" perplexity -m $tiny
expect 2 'at least 4' "$weft" perplexity -m $tiny -f $text -c 0
expect 2 'must be a whole number' "$weft" perplexity -m $tiny -f $text -c 99999999
expect 2 'the context of' "$weft" perplexity -m $tiny -f model/demo/eval.jsonl -c 5000
expect 2 'canvases of 8' "$weft" perplexity -m $tiny -f $text -c 8
expect 2 '--noise 0,1' "$weft" perplexity -m $tiny -f $text -c 32 --noise 0,1
expect 2 'token by token' "$weft" perplexity -m $ar -f $text -c 64 --noise 0.5
expect 2 'no canvas pass' "$weft" perplexity -m $ar -f $text -c 64 --mode diffusion
expect 2 'two runs' "$weft" perplexity -m $tiny -f $text --save-logits "$dir/a" --kl "$dir/a"
printf 'What is 58 + 37?\n\n' >"$dir/said"
if grep -qF 95 <<<"$("$weft" chat -m $demo --mode ar --temperature 0 <"$dir/said" 2>/dev/null)"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "failed: chat"; fi
expect 0 'drafts 100.0 % right' "$weft" eval -m $demo --cases model/demo/eval.jsonl --limit 1 --draft canvas:8
expect 0 'passed' "$weft" eval -m $demo --cases model/demo/eval.jsonl --limit 1
expect 1 'FAILED' "$weft" eval -m $demo --cases model/demo/eval.jsonl --limit 1 --no-self-conditioning
expect 0 '"repetition": {' "$weft" eval -m $demo --cases model/demo/eval.jsonl --limit 1 --json
# a right answer that stands still all the same
cat >"$dir/still.jsonl" <<'JSON'
{"family": "reverse", "messages": [{"role": "user", "content": "Write 77777777 backwards."}], "max_tokens": 32, "answer": "77777777"}
JSON
expect 1 'one token in a row ar 8, diffusion 8 at most   OVER THE BAR' "$weft" eval -m $demo --cases "$dir/still.jsonl"
expect 0 'prefill 64' "$weft" bench model -m $demo --n-prompt 64 --n-generate 32 --repeat 1 --n-parallel 2 -q
expect 0 '8 decoding' "$weft" bench model canvases mix -m $demo --n-prompt 32 --repeat 1 --running 9 --rows 512 -q
expect 0 'slowest block over fastest' "$weft" bench model blocks -m $demo --n-prompt 32 --repeat 1 -q
expect 0 "where to send it" "$weft" bench model -m $demo --n-prompt 32 --n-generate 8 -r 1 --report "$dir/r" -q
expect 0 '"predicted"' cat "$dir/r"
expect 2 'report /no/where' "$weft" bench model -m $demo --report /no/where
expect 2 'must be context' "$weft" bench model widths -m $demo
expect 0 'all again' "$weft" bench model recompute -m $demo --n-prompt 32 --repeat 1 -q
expect 0 'tok/s, first after' "$weft" bench model -m model/demo/weft-demo-ar.gguf --draft ngram:4 --n-prompt 32 --n-generate 32 --repeat 1 --n-parallel 2 -q
expect 0 'times; ' "$weft" bench drafts -m model/demo/weft-demo-ar.gguf --draft ngram:4 --accept 0.8 --depths 2 --n-parallel 2 --n-prompt 16 --n-generate 24 --repeat 1 -q
# a drafter that the runner asks makes its drafts, and the oracle's take their places
expect 0 'accepted' bash -c "'$weft' bench drafts -m tests/golden/models/ar-dense.gguf --draft model:tests/golden/assistants/dense.gguf:4 --accept 1 --depths 4 \
  --n-parallel 2 --n-prompt 16 --n-generate 24 --repeat 1 -q | grep ' \([1-9][0-9]*\) of \1 accepted'"
# a quarter of four places is one where each request reserves the longest one's memory, and four where it holds pages
expect 0 '' bash -c "'$weft' bench batching -m model/demo/weft-demo-ar.gguf --running 4 --n-prompt 32 --n-generate 4 --repeat 1 -q --csv | \
  awk -F, '\$1 == \"tight\" && \$5 == (\$3 ~ /contiguous/ ? 1 : 4) && \$6 > 0 { n++ } END { exit n != 8 || NR != 16 }'"
expect 0 'call by call, --no-overlap      0' "$weft" bench graphs -m model/demo/weft-demo-ar.gguf --n-prompt 16 --n-generate 40 --repeat 1 -q
expect 0 '2 at once: 3 runs have equal answers' "$weft" bench repeats -m model/demo/weft-demo-ar.gguf --n-parallel 2 --n-prompt 16 --n-generate 8 --repeat 2 -q
expect 2 'give --draft ngram:K' "$weft" bench drafts -m model/demo/weft-demo-ar.gguf -q
expect 2 'give shares from 0 to 1' "$weft" bench drafts -m model/demo/weft-demo-ar.gguf --draft ngram --accept 2
# rows of one text touch fewer experts than those of several texts, and these fewer than by chance
expect 0 '' bash -c "'$weft' bench experts -m $demo -q --csv | awk -F, '\$1 == 4 && \$2 > \$5 && \$2 < \$3 && \$3 < \$4 { n++ } END { exit n != 1 }'"
expect 2 'the model has no experts' "$weft" bench experts -m tests/golden/models/ar-dense.gguf -q
expect 2 'must be model, frontier' "$weft" bench speed -m $demo
# each step computes its increment alone, without the cache the whole prompt, and holds as much memory either way
steps="bench frontier -m $demo --from 128 --to 640 --step 256 --repeat 2 --n-generate 8 -q"
expect 0 '' "$weft" $steps -o "$dir/found.csv" --plots "$dir/plots"
expect 0 '128,128 384,256 640,256 ' echo "$(awk -F, 'NR > 1 { printf "%s,%s ", $1, $2 }' "$dir/found.csv")"
expect 0 'gen_tps_ss,gen_tps_ss_cv,canvas_ms,canvas_ms_cv,kv_bytes' cat "$dir/found.csv"
for plot in prefill first decode canvas; do expect 0 '</svg>' cat "$dir/plots/$plot.svg"; done
"$weft" $steps --no-prefix-cache --csv >"$dir/computed.csv"
expect 0 '128,128 384,384 640,640 ' echo "$(awk -F, 'NR > 1 { printf "%s,%s ", $1, $2 }' "$dir/computed.csv")"
expect 0 '+50.00 %' "$weft" bench compare "$dir/found.csv" "$dir/computed.csv"
expect 0 '' "$weft" bench compare "$dir/found.csv" "$dir/computed.csv" --plots "$dir/both"
expect 0 '2 lines' echo "$(grep -c '<path fill="none"' "$dir/both/computed.svg") lines"
expect 0 '>computed</text>' cat "$dir/both/first_ms.svg"
expect 0 '6 same' echo "$("$weft" bench compare "$dir/found.csv" "$dir/found.csv" | grep -cE '(computed|kv_bytes) .* same$') same"
expect 0 '3 same' echo "$("$weft" bench compare "$dir/found.csv" "$dir/computed.csv" | grep -c 'kv_bytes .* same$') same"
printf 'work,a,a_cv,b\n"x, y",100,1,5\nz,1,1,1\n' >"$dir/a.csv"
printf 'work,a,a_cv,b\n"x, y",102,1,6\nw,1,1,1\n' >"$dir/b.csv"
expect 0 '+2.00 %  noise' "$weft" bench compare "$dir/a.csv" "$dir/b.csv"
sed -i 's/102,1/103,1/' "$dir/b.csv"
expect 0 '3.00 %  ' "$weft" bench compare "$dir/a.csv" "$dir/b.csv"
expect 0 '0 noise' echo "$("$weft" bench compare "$dir/a.csv" "$dir/b.csv" | grep -c noise) noise"
expect 0 'only in' "$weft" bench compare "$dir/a.csv" "$dir/b.csv"
expect 2 'work, has no numbers' "$weft" bench compare "$dir/a.csv" "$dir/b.csv" --plots "$dir/both"
expect 1 'in common' "$weft" bench compare "$dir/a.csv" "$dir/found.csv"
expect 2 'as many cells' "$weft" bench compare "$dir/a.csv" README.md
expect 2 'name two files' "$weft" bench compare "$dir/a.csv"
expect 2 'has room for prompts of' "$weft" bench frontier -m $demo --from 4096
# what was measured is there when a later step fails: here the pool is too small for it
expect 2 'need more than the 32 pages' "$weft" bench frontier -m $demo --from 128 --to 2000 --step 512 --repeat 1 --n-generate 8 -q --kv-mib 1 --json -o "$dir/cut.csv"
expect 0 '2 2' echo "$(grep -c '"context"' "$dir/out") $(grep -c '^[0-9]' "$dir/cut.csv")"
expect 2 'n-generate must be from 3' "$weft" bench frontier -m $demo --n-generate 2
"$weft" bench stages -m $tiny --n-prompt 32 --n-generate 8 --repeat 1 -q >"$dir/stages"
for row in '--no-graphs                          left out: only a card has this' '--backend ref' 'as it is, again'; do
  expect 0 "$row" cat "$dir/stages"
done
"$weft" bench phases -m $demo --n-prompt 64 --repeat 1 -q >"$dir/phases"
for row in 'prefill        64 rows' 'canvas         32 rows' 'head           32 rows' 'soft           32 rows' 'experts'; do
  expect 0 "$row" cat "$dir/phases"
done
expect 0 '"phase": "soft"' "$weft" bench phases -m $demo --n-prompt 64 --repeat 1 -q --json
expect 0 'prefill,64,1,' "$weft" bench phases -m $ar --n-prompt 64 --repeat 1 -q --csv
expect 0 'prefill,20,1,' "$weft" bench phases -m tests/golden/models/ar-e2b.gguf --n-prompt 20 --repeat 1 -c 64 -q --csv # embeds twice
expect 0 "the arena's own" "$weft" bench arena -m $demo
# 6.9 MiB of weights, the largest of them 272 KiB: one chunk has them all, and one of 8 MiB wastes least
expect 0 '"mapped, 8",8,15.69,1,2,the largest within a thousandth of the best' "$weft" bench arena -m $demo --csv
expect 0 '"plain, 1024",1024,' "$weft" bench arena -m $demo --csv
expect 2 'bench arena: name one' "$weft" bench arena
expect 2 'leave --devices out' "$weft" bench phases -m $demo --devices 0,1 -q
expect 0 'long' "$weft" bench preset -m tests/golden/models/ar-base.gguf --repeat 1 -q
expect 0 'canvases at once' "$weft" bench room -m $demo --kv-mib 2 -c 256 --running 8
expect 0 'as predicted after 126 of 126 steps' "$weft" bench room -m $ar --kv-mib 2 -c 256 --running 1
expect 2 'no case holds' "$weft" bench kernels types Q4_KM --cpu-time --threads 1
expect 0 'take_release_ns' "$weft" bench pager --json
# more than contiguous reservation, and than keeping what windows have passed: of real requests, and in the geometry of 26B
"$weft" bench capacity -m $demo --kv-mib 6 --json >"$dir/capacity"
expect 0 'True True True True' python3 -c "import json
for r in (json.load(open('$dir/capacity'))[k] for k in ('geometry_26b', 'real_requests')):
    print(r['capacity_ratio_contiguous'] > 10, r['capacity_ratio_sliding'] > 1.2, end=' ')"
expect 0 'step_us' "$weft" bench scheduler --json
expect 0 'prompt tokens computed' "$weft" bench serving -m $demo --repeat 1
expect 2 '--llama' "$weft" bench peer -m $demo
expect 0 'goodput' "$weft" sim --requests 50 --seed 1
"$weft" bench profile -m $demo --n-prompt 32 --n-generate 4 --repeat 1 -q >"$dir/machine.json"
expect 0 'goodput' "$weft" sim --requests 50 --seed 1 --profile "$dir/machine.json"
expect 2 'bench profile: name' "$weft" bench profile
printf '{"public":true,"text":"abc","colour":1}' >"$dir/bad_pin"
printf '[{"ttl_seconds":60,"tokens":[%s]}]' "$(seq -s, 10 60)" >"$dir/pin"
expect 2 'colour is unknown' "$weft" serve -m $tiny --port 0 --pin "$dir/bad_pin"
expect 2 'missing_pin' "$weft" serve -m $tiny --port 0 --pin "$dir/missing_pin"
long=$(printf 'm%.0s' {1..100})
ln -s "$PWD/$tiny" "$dir/$long.gguf"
# Starts a server and waits, as long as it takes, until it says where it listens. What a server before it said is gone first.
serve() {
  : >"$dir/where"
  "$weft" serve --json "$@" >"$dir/where" 2>/dev/null &
  server=$!
  until grep -q port "$dir/where" || ! kill -0 $server 2>/dev/null; do sleep 0.1; done
}
serve -m "$dir/$long.gguf" --port 0 --pin "$dir/pin"
port=$(sed 's/.*"port":\([0-9]*\).*/\1/' "$dir/where")
expect 0 '"id":1,' curl -s "127.0.0.1:$port/admin/pins"
expect 0 'first token' "$weft" top --port "$port" --interval 0.1
expect 0 "$long" "$weft" top --port "$port" --interval 0.1
expect 0 '"traceEvents"' "$weft" trace --port "$port"
expect 0 '' "$weft" trace --port "$port" -o "$dir/trace.json"
expect 2 'holds no key' "$weft" top --port "$port" --key-file /dev/null
kill $server && wait $server
expect 4 'no server answers' "$weft" top --port "$port"

# The same in TLS, and on a unix socket.
certify() {
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost -keyout "$dir/$1.key" \
    -out "$dir/$1.pem" 2>/dev/null
}
certify server
certify other
expect 2 'give --tls-cert and --tls-key' "$weft" serve -m $tiny --tls-cert "$dir/server.pem"
expect 2 'this key does not belong to the certificate' "$weft" serve -m $tiny --tls-cert "$dir/server.pem" --tls-key "$dir/other.key"
expect 2 'three octal digits' "$weft" serve -m $tiny --host "unix:$dir/socket" --socket-mode rw
serve -m $tiny --port 0 --tls-cert "$dir/server.pem" --tls-key "$dir/server.key"
port=$(sed 's/.*"port":\([0-9]*\).*/\1/' "$dir/where")
expect 0 'first token' "$weft" top --port "$port" --tls-cert "$dir/server.pem" --interval 0.1
expect 2 'speaks TLS: name its certificate' "$weft" top --port "$port"
expect 0 'first token' "$weft" top --host 127.0.0.1 --port "$port" --tls-cert "$dir/server.pem" --interval 0.1
expect 0 'first token' "$weft" top --url "https://localhost:$port" --tls-cert "$dir/server.pem" --interval 0.1
expect 2 'leave out --host' "$weft" top --url "https://localhost:$port" --host 127.0.0.1
expect 2 '--url: ' "$weft" trace --url ftp://localhost
expect 4 'no server answers at [::1]:1' "$weft" top --host ::1 --port 1
expect 4 'no server answers' "$weft" top --port "$port" --tls-cert "$dir/other.pem"
kill $server && wait $server
serve -m $tiny --host "unix:$dir/socket"
expect 0 '"traceEvents"' "$weft" trace --host "unix:$dir/socket"
expect 2 'somebody answers there' "$weft" serve -m $tiny --host "unix:$dir/socket"
kill $server && wait $server
expect 4 'no server answers' "$weft" trace --host "unix:$dir/socket"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
