/* SPDX-License-Identifier: MIT */
#include "bench/lab/lab.h"

enum {
  BENCH = WEFT_FOR_LABORATORY,
  CHECK = WEFT_FOR_LABORATORY << 1,
  EVAL = WEFT_FOR_LABORATORY << 2,
  LOGITS = WEFT_FOR_LABORATORY << 3,
  PERPLEXITY = WEFT_FOR_LABORATORY << 4,
  SIM = WEFT_FOR_LABORATORY << 5,
  SOAK = WEFT_FOR_LABORATORY << 6,
  TEST_MODEL = WEFT_FOR_LABORATORY << 7,
  PROVE = WEFT_FOR_LABORATORY << 8,
  BOOT = WEFT_FOR_LABORATORY << 9
};

#define FLAG(field) WEFT_OPTION_IS_FLAG(weft_lab_config, field)
#define TEXT(field) WEFT_OPTION_IS_TEXT(weft_lab_config, field)
#define U32(...)    WEFT_OPTION_IS_U32(weft_lab_config, __VA_ARGS__)
#define F32(...)    WEFT_OPTION_IS_F32(weft_lab_config, __VA_ARGS__)
#define U64(...)    WEFT_OPTION_IS_U64(weft_lab_config, __VA_ARGS__)
#define LIST(field) WEFT_OPTION_IS_LIST(weft_lab_config, field)

#define FIRST     WEFT_TOPIC_FIRST
#define DRAWN     "Load that is drawn, where --trace names none"
#define ROUTER    "Router"
#define FATE      "What happens to replicas"
#define GOODPUT   "What counts as good"
#define LAW       "Simulated device"
#define MEMORY    WEFT_TOPIC_MEMORY
#define DIFFUSION WEFT_TOPIC_DIFFUSION
#define OUTPUT    WEFT_TOPIC_OUTPUT

static const weft_option rows[] = {
    {"api-keys", 0, FIRST, SIM, TEXT(product.api_keys), "FILE",
     "a server's keys: weights, classes and limits of its tenants"},
    {"tokens", 0, FIRST, CHECK | LOGITS, TEXT(product.tokens), "IDS", "token ids instead of text: 2,5,9"},
    {"file", 'f', FIRST, PERPLEXITY, TEXT(product.input), "FILE", "the text to measure; - is standard input"},
    {"text", 0, FIRST, TEST_MODEL, TEXT(text), "FILE", "the text to foretell and to tokenise [a built-in one]"},
    {"mode", 0, FIRST, BENCH | PERPLEXITY, TEXT(product.mode), "auto|ar|diffusion",
     "by diffusion, or token by token: ar, autoregressive [auto]"},
    {"context", 'c', FIRST, PERPLEXITY, U32(product.context, 512, 0, 1 << 20), "N", "tokens of a window"},
    {"chunks", 0, FIRST, PERPLEXITY, U32(chunks, 0, 0, 1 << 30), "N", "most windows [0: the whole text]"},
    {"stride", 0, FIRST, PERPLEXITY, U32(stride, 0, 0, 1 << 20), "N",
     "windows begin N tokens apart, and their last N are scored [0: one after another, the second half]"},
    {"special", 0, FIRST, PERPLEXITY, FLAG(product.special), NULL, "control tokens in the text are tokens"},
    {"save-logits", 0, FIRST, PERPLEXITY, TEXT(save_logits), "FILE", "save what the model says of each scored token"},
    {"kl", 0, FIRST, PERPLEXITY, TEXT(kl), "FILE", "compare with what --save-logits saved"},
    {"unused-tensors", 0, FIRST, PERPLEXITY | LOGITS, FLAG(product.unused_tensors), NULL,
     "open a file although tensors of its layers are not used: its numbers may be wrong"},
    {"devices", 0, WEFT_TOPIC_DEVICE, CHECK | PERPLEXITY | LOGITS, TEXT(product.devices), "N,N",
     "share the layers of the model out to these devices, as 0,1 [one device]"},
    {"device-mib", 0, WEFT_TOPIC_DEVICE, CHECK | PERPLEXITY | LOGITS, TEXT(product.device_mib), "N,N",
     "most MiB of each GPU for weights, or one number for all [7/8 of what is free]"},
    {"split", 0, WEFT_TOPIC_DEVICE, PERPLEXITY | LOGITS, TEXT(product.split), "HOW",
     "with several devices: layer, or tensor (each layer on all) [layer]"},
    {"split-ratio", 0, WEFT_TOPIC_DEVICE, CHECK | PERPLEXITY | LOGITS, TEXT(product.split_ratio), "X,X",
     "how many layers each device gets, in relation to the others, as 7,3 [planned by work and memory]"},
    {"noise", 0, DIFFUSION, PERPLEXITY, TEXT(noise), "LIST",
     "of a canvas: shares of positions that are replaced [0.25,0.5,0.75,1]"},
    {"kv-8bit", 0, MEMORY, PERPLEXITY, LIST(product.kv_8bit), "MODEL",
     "keep this model's keys and values in 8 bits; `all` is any"},
    {"rows", 0, WEFT_TOPIC_SCHEDULING, SIM, U32(product.rows, 512, 1, 65536), "N", "rows of one step"},
    {"rows", 0, MEMORY, PERPLEXITY, U32(product.rows, 2048, 1, 65536), "N", "rows of one step"},
    {"seed", 's', FIRST, EVAL | SOAK, U64(product.sampling.seed, product.has_seed), "N",
     "the same seed gives the same answer [fresh]"},
    {"canvas", 0, FIRST, LOGITS, TEXT(canvas), "IDS", "canvas tokens: logits of a denoise pass"},
    {"self-cond", 0, FIRST, LOGITS, TEXT(self_cond), "FILE", "softcapped f32 logits of the step before"},
    {"self-cond-temperature", 0, FIRST, LOGITS, F32(self_cond_temperature, 1, 1e-6, 100), "T",
     "temperature of that step"},
    {"tolerance", 0, FIRST, CHECK, F32(tolerance, 0.1, 1e-9, 10), "T",
     "a row of an op, or of a stage, may be off by T times its root mean square"},
    {"with", 0, FIRST, CHECK, TEXT(with), "HOW",
     "check stages: compare with rows one by one (rows), N at a time (rows:N), exact, fast, kv-8bit, ref, cpu, cuda, "
     "or another file [rows]"},
    {"llama", 0, FIRST, BENCH, TEXT(llama), "DIR", "folder with an existing llama-server, for `bench peer`"},
    {"n-prompt", 0, FIRST, BENCH, U32(n_prompt, 512, 1, 1 << 20), "N", "prompt tokens"},
    {"n-generate", 0, FIRST, BENCH, U32(n_generate, 64, 1, 1 << 20), "N", "generated tokens"},
    {"n-parallel", 0, FIRST, BENCH | SOAK, U32(n_parallel, 0, 0, 4096), "N", "sequences at once [0: a sweep]"},
    {"repeat", 'r', FIRST, BENCH, U32(repeat, 3, 1, 1000), "N", "runs of each case"},
    {"cpu-time", 0, FIRST, BENCH, FLAG(cpu_time), NULL, "bench kernels: processor time in place of the clock"},
    {"report", 0, FIRST, BENCH, TEXT(report), "FILE",
     "bench model: write what was measured, the card and what was predicted of it, to be sent"},
    {"from", 0, FIRST, BENCH, U32(from, 512, 2, 1 << 20), "N", "bench frontier: tokens of the first context"},
    {"to", 0, FIRST, BENCH, U32(to, 0, 0, 1 << 20), "N", "bench frontier: of the last one [0: what the context holds]"},
    {"step", 0, FIRST, BENCH, U32(step, 0, 0, 1 << 20), "N", "bench frontier: from one to the next [0: twice as many]"},
    {"accept", 0, FIRST, BENCH, TEXT(accept), "X,X",
     "bench drafts: an oracle drafts, and each draft is right with this chance [the drafter of --draft]"},
    {"depths", 0, FIRST, BENCH, TEXT(depths), "N,N", "bench drafts: so many drafts of a step, besides as many as gain"},
    {"cases", 0, FIRST, EVAL, TEXT(cases), "FILE", "examples, one JSON object per line"},
    {"structured", 0, FIRST, EVAL, FLAG(structured), NULL, "hold each answer to the schema of its example"},
    {"limit", 0, FIRST, EVAL, U32(limit, 0, 0, 1 << 20), "N", "examples per family [0: all]"},
    {"seconds", 0, FIRST, SOAK | CHECK, U32(seconds, 30, 1, 86400), "N", "how long; of check: about, for ref's part"},
    {"trace", 0, FIRST, SIM, TEXT(product.trace), "FILE", "requests as JSON lines; without it they are drawn"},
    {"trace-block", 0, FIRST, SIM, U32(trace_block, 512, 1, 65536), "N", "tokens that one id of the trace stands for"},
    {"clients", 0, FIRST, SIM, U32(clients, 0, 0, 1 << 20), "N",
     "in place of times of arrival: N clients, each asks when its last request has ended [0: none]"},
    {"think-ms", 0, FIRST, SIM, F32(think_ms, 0, 0, 1e9), "X",
     "with --clients: each asks so long after its last request has ended"},
    {"profile", 0, FIRST, SIM, TEXT(profile), "FILE", "models and their times, as JSON [built in]"},
    {"replicas", 0, FIRST, SIM, U32(replicas, 1, 1, 1000), "N", "engines, each with its device and pool"},
    {"seed", 's', FIRST, SIM | PERPLEXITY, U64(product.sampling.seed, product.has_seed), "N",
     "the same seed gives the same numbers [0]"},
    {"requests", 0, DRAWN, SIM, U32(requests, 1000, 1, 1 << 22), "N", "how many"},
    {"rate", 0, DRAWN, SIM, F32(rate, 4, 1e-3, 1e6), "X", "arrivals per second, Poisson"},
    {"burst", 0, DRAWN, SIM, U32(burst, 1, 1, 65536), "N", "so many arrive at once, at the same rate"},
    {"tenants", 0, DRAWN, SIM, U32(tenants, 4, 1, 255), "N", "tenants"},
    {"skew", 0, DRAWN, SIM, F32(skew, 0, 0, 1), "X", "share of requests of tenant 0 [0: as all]"},
    {"diffusion", 0, DRAWN, SIM, F32(diffusion, 0.25, 0, 1), "X", "share of requests answered by diffusion"},
    {"cancel", 0, DRAWN, SIM, F32(cancel, 0, 0, 1), "X", "share of requests that are cancelled"},
    {"cancel-ms", 0, DRAWN, SIM, U32(cancel_ms, 2000, 1, 1 << 30), "N", "after so long, mean, exponential"},
    {"deadline-ms", 0, DRAWN, SIM, U32(deadline_ms, 0, 0, 1 << 30), "N", "deadline of each request [0: none]"},
    {"urgent", 0, DRAWN, SIM, F32(urgent, 0, 0, 1), "X", "share of requests with priority 1"},
    {"prompt-tokens", 0, DRAWN, SIM, U32(prompt_tokens, 512, 1, 1 << 20), "N", "median of the prompts, log-normal"},
    {"answer-tokens", 0, DRAWN, SIM, U32(answer_tokens, 128, 1, 1 << 20), "N", "mean of the answers, exponential"},
    {"shared", 0, DRAWN, SIM, F32(shared, 0.5, 0, 1), "X", "share of prompts that start with a shared one"},
    {"shared-tokens", 0, DRAWN, SIM, U32(shared_tokens, 1024, 1, 1 << 20), "N", "its tokens, in whole blocks of 512"},
    {"prefixes", 0, DRAWN, SIM, U32(prefixes, 4, 1, 65536), "N", "different shared ones"},
    {"zipf", 0, DRAWN, SIM, F32(zipf, 0, 0, 8), "X", "the k-th of them is drawn with weight 1 / k^X [0: all alike]"},
    {"day-s", 0, DRAWN, SIM, F32(day_s, 0, 0, 1e7), "X",
     "the rate swings once in so many seconds, least first [0: never]"},
    {"swing", 0, DRAWN, SIM, F32(swing, 0.8, 0, 0.99), "X", "by this share of --rate, down and up"},
    {"long", 0, DRAWN, SIM, F32(long_share, 0.02, 0, 1), "X", "share of prompts of the longest length"},
    {"long-tokens", 0, DRAWN, SIM, U32(longest_tokens, 16384, 1, 1 << 20), "N", "the longest length of own tokens"},
    {"router", 0, ROUTER, SIM, TEXT(router), "NAME",
     "hash, round-robin, index: by cache events, or prefix: as serve --split replicas [hash]"},
    {"replay", 0, ROUTER, SIM, TEXT(replay), "FILE", "in place of a router: which replica serves each request"},
    {"assignment", 0, ROUTER, SIM, TEXT(assignment), "FILE", "write which replica served each request, for --replay"},
    {"router-blocks", 0, ROUTER, SIM, U32(router_blocks, 2, 1, 8192), "N",
     "hash: leading blocks of 512 tokens that count"},
    {"router-bound", 0, ROUTER, SIM, F32(router_bound, 1.25, 1, 64), "X",
     "hash, index: most load of a replica, times the mean"},
    {"copies", 0, ROUTER, SIM, U32(copies, 1, 1, 64), "N",
     "hash: the least busy of the first N replicas of a prefix serves"},
    {"router-lag-ms", 0, ROUTER, SIM, U32(router_lag_ms, 0, 0, 1 << 24), "N",
     "the router hears so late that a request ended"},
    {"index-lag-ms", 0, ROUTER, SIM, U32(index_lag_ms, 0, 0, 1 << 24), "N",
     "index: it hears so late of stored and removed blocks"},
    {"move-s", 0, ROUTER, SIM, F32(move_s, 0, 0, 1e7), "X",
     "hash: each tenant moves to other replicas after so many seconds [0: never]"},
    {"fail-s", 0, FATE, SIM, F32(fail_s, 0, 0, 1e9), "X",
     "a replica fails after so many seconds, mean, exponential [0: never]"},
    {"away-s", 0, FATE, SIM, F32(away_s, 30, 0, 1e7), "X",
     "a replica that failed or is replaced is back after so many"},
    {"upgrade-s", 0, FATE, SIM, F32(upgrade_s, 0, 0, 1e7), "X",
     "from then on all are drained and replaced in turn [0: never]"},
    {"upgrade-at-once", 0, FATE, SIM, U32(upgrade_at_once, 1, 1, 1000), "N", "so many at a time"},
    {"goodput-ttft-ms", 0, GOODPUT, SIM, F32(goodput_ttft_ms, 1000, 0, 1e9), "X", "goodput: first token within, in ms"},
    {"goodput-tpot-ms", 0, GOODPUT, SIM, F32(goodput_tpot_ms, 100, 0, 1e9), "X",
     "goodput: each further token within, in ms"},
    {"step-us", 0, LAW, SIM, F32(step_us, -1, 0, 1e9), "X",
     "time of a step besides its rows and keys, in us [the profile's, 2000]"},
    {"row-us", 0, LAW, SIM, F32(row_us, -1, 0, 1e9), "X", "time of a row, in us [the profile's, 32]"},
    {"key-us", 0, LAW, SIM, F32(key_us, -1, 0, 1e9), "X",
     "time of 1000 keys read in one layer group, in us [the profile's, 10]"},
    {"canvas-steps", 0, LAW, SIM, U32(canvas_steps, 48, 1, 4096), "N", "most denoise steps of a canvas"},
    {"canvas-steps-min", 0, LAW, SIM, U32(canvas_steps_min, 12, 0, 4096), "N",
     "least of them; drawn between; 0: always the most"},
    {"kv-mib", 0, MEMORY, SIM, U32(product.kv_mib, 0, 0, 1 << 24), "N",
     "MiB of the KV pool, at 26B geometry [0: 16384]"},
    {"host-mib", 0, MEMORY, SIM, U32(product.host_mib, 0, 0, 1 << 24), "N",
     "MiB of host memory behind the pool [0: none]"},
    {"context", 'c', MEMORY, SIM, U32(product.context, 0, 0, 1 << 20), "N",
     "longest prompt plus answer [0: what the load needs]"},
    {"shared-cache", 0, MEMORY, SIM, FLAG(product.shared_cache), NULL, "tenants see each other's cached prefixes"},
    {"diffusion-steps", 0, DIFFUSION, EVAL, U32(product.entropy_bound.max_steps, WEFT_RANGE_MAX_STEPS), "N",
     "most denoise steps of a canvas [the model's]"},
    {"no-self-conditioning", 0, DIFFUSION, EVAL, FLAG(product.entropy_bound.no_self_conditioning), NULL,
     "keep the soft embedding at zero, to compare"},
    {"matrix", 0, FIRST, PROVE, TEXT(matrix), "NAME", "a file that names everything below, for many cells"},
    {"baseline", 0, FIRST, PROVE, TEXT(baseline), "NAME", "the profile that the others are compared with [default]"},
    {"candidate", 0, FIRST, PROVE, LIST(candidates), "NAME", "a profile that is to be proved; may be repeated"},
    {"suite", 0, FIRST, PROVE, TEXT(suite), "NAME", "what is asked, and how it is to be answered"},
    {"prompts", 0, FIRST, PROVE, LIST(prompt_files), "NAME",
     "prompts in place of those of the suite; may be repeated: a cell for each"},
    {"contract", 0, FIRST, PROVE, TEXT(contract), "NAME", "what has to be equal, or how close"},
    {"budget", 0, FIRST, PROVE, TEXT(budget), "NAME", "most tokens and seconds of a cell"},
    {"proofs", 0, FIRST, PROVE, WEFT_OPTION_IS_TEXT_OR(weft_lab_config, proofs, "tests/proof"), "DIR",
     "folder of these files"},
    {"work", 0, FIRST, PROVE, WEFT_OPTION_IS_TEXT_OR(weft_lab_config, work, "/tmp"), "DIR",
     "where a folder for logs and copies is made, and removed at the end"},
    {"keep", 0, FIRST, PROVE, TEXT(keep), "DIR",
     "keep the baseline's answers there, and take those of a run before where nothing has changed since"},
    {"commit", 0, FIRST, PROVE, TEXT(commit), "TEXT", "the commit that this program was built from, for the report"},
    {"defaults", 0, FIRST, PROVE, FLAG(defaults), NULL, "only print the defaults that proofs are about, as JSON"},
    {"report-check", 0, FIRST, PROVE, TEXT(report_check), "FILE",
     "only look whether a report is of its schema and what its verdicts are"},
    {"parent", 0, FIRST, BOOT, U32(parent, 0, 0, 1 << 30), "PID", "end when this process ends, which started this one"},
    {"dry-run", 0, FIRST, BOOT, FLAG(dry_run), NULL, "only say whether models and pool have room"},
    {"drafts-always", 0, FIRST, BOOT, FLAG(drafts_always), NULL, "runs of drafts whether they gain or not"},
    {"drop-key", 0, FIRST, BOOT, FLAG(drop_key), NULL, "a fault: no row sees the key of position 0"},
    {"die-at", 0, FIRST, BOOT, U32(die_at, 0, 0, 1 << 30), "N",
     "a fault: the process kills itself in call N of attention [0: never]"},
    {"output", 'o', OUTPUT, PROVE, TEXT(product.output), "FILE", "write the report there, as JSON"},
    {"output", 'o', OUTPUT, LOGITS | BENCH | TEST_MODEL, TEXT(product.output), "FILE", "where the result goes"},
    {"output", 'o', OUTPUT, SIM, TEXT(product.output), "FILE", "write the requests as a trace"},
    {"plots", 0, OUTPUT, SIM | BENCH, TEXT(plots), "DIR", "write SVG files there"},
    {"csv", 0, OUTPUT, SIM | BENCH, FLAG(csv), NULL, "print CSV"},
};
const weft_option_table weft_lab_options = {rows, sizeof rows / sizeof *rows, sizeof(weft_lab_config)};

const weft_command weft_lab_commands[] = {
    {"bench", WEFT_OPENS_RUNTIME | BENCH, weft_lab_bench,
     "[model "
     "[context|prefill|sequences|canvases|mix|blocks|recompute]|preset|frontier|stages|phases|arena|compare A.csv "
     "B.csv|room|batching|drafts|graphs|repeats|kernels "
     "[WORD...]|pager|capacity|scheduler|peer|serving|pressure|tenants|profile|experts] -m FILE",
     "measure speed and memory",
     "  weft bench model -m a.gguf                      prefill, decode and canvas steps\n"
     "  weft bench frontier -m a.gguf --from 2048 --to 65536 --step 2048 -o now.csv --plots plots\n"
     "  weft bench compare before.csv now.csv           what changed, and whether it is more than noise; --plots draws "
     "both\n"
     "  weft bench preset -m a.gguf                     fixed settings and prompts\n"
     "  weft bench stages -m a.gguf                     each stage switched back to its plain path\n"
     "  weft bench phases -m a.gguf                     where the time of a step goes: prefill, canvas, head, soft\n"
     "  weft bench serving -m a.gguf --repeat 3         a server of its own under parallel requests\n"
     "  weft bench drafts -m a.gguf --draft ngram:8 --accept 0.6,0.8 --depths 2,4,8    drafts beside none\n"
     "  weft bench graphs -m a.gguf                     what a decoded token's time consists of, with graphs and "
     "without\n"
     "  weft bench experts -m a.gguf                    experts that rows of one text touch, and of several\n"
     "  weft bench repeats -m a.gguf --repeat 12        the same prompts again and again: answers must be equal\n"
     "  weft bench batching -m a.gguf --running 32      what paging and continuous batching are worth\n"
     "  weft bench profile -m a.gguf >machine.json      this machine, for weft sim --profile\n",
     UINT32_MAX},
    {"eval", WEFT_OPENS_RUNTIME | EVAL, weft_lab_eval, "-m FILE --cases FILE",
     "answer examples with known answers, both ways",
     "  weft eval -m model/demo/weft-demo.gguf --cases model/demo/eval.jsonl --limit 20\n", 0},
    {"check", WEFT_OPENS_MODEL | CHECK, weft_lab_check, "[numbers|stages] -m FILE [--backend NAME]",
     "the numbers of a file, then a backend against ref, op by op",
     "  weft check numbers -m a.gguf                    NaN, rows of zeros and constant routers only\n"
     "  weft check -m a.gguf --backend cpu\n"
     "  weft check stages -m a.gguf                     a prompt at once beside row by row: not a bit may differ\n"
     "  weft check stages -m a.gguf --with fast         the first stage that another precision changes, and how much\n"
     "  weft check -m m26.gguf --backend cuda --seconds 120    some rows of every product; more time takes more of "
     "them\n",
     1},
    {"logits", WEFT_OPENS_MODEL | LOGITS, weft_lab_logits, "-m FILE --tokens IDS -o FILE", "write raw f32 logits",
     "  weft logits -m a.gguf --tokens 2,5,9 -o logits.f32\n", 0},
    {"perplexity", WEFT_OPENS_MODEL | PERPLEXITY, weft_lab_perplexity, "-m FILE -f FILE",
     "how well a model foretells a text, and how far two are apart",
     "  weft perplexity -m a.gguf -f wiki.txt                          windows as llama.cpp takes them\n"
     "  weft perplexity -m f16.gguf -f wiki.txt --save-logits f16.rows\n"
     "  weft perplexity -m q4.gguf -f wiki.txt --kl f16.rows           KL divergence from those\n"
     "  weft perplexity -m diffusion.gguf -f wiki.txt --noise 0.5,1    a canvas model, at two levels of noise\n",
     0},
    {"prove", WEFT_OPENS_MODEL | PROVE, weft_lab_prove, "-m FILE [--matrix NAME | --candidate NAME ...]",
     "whether another configuration gives the same answers",
     "  weft prove -m a.gguf --candidate overlap-off --suite greedy --contract argmax_generation\n"
     "  weft prove -m a.gguf --matrix smoke -o report.json     many cells at once\n"
     "  weft prove --report-check report.json\n",
     0},
    {"boot", WEFT_CMD_SERVE | BOOT, weft_lab_boot, "-m FILE", "the server of a proof: serve, with a fault if wanted",
     "  weft boot -m a.gguf --port 0 --json --drop-key\n"
     "  weft boot -m a.gguf --kv-mib 4096 --dry-run\n",
     0},
    {"soak", WEFT_OPENS_RUNTIME | SOAK, weft_lab_soak, "-m FILE", "full load with random cancels for a while",
     "  weft soak -m a.gguf --seconds 600 --seed 1\n", 0},
    {"test-model", WEFT_OPENS_RUNTIME | TEST_MODEL, weft_lab_test_model, "-m FILE [--text FILE] [-o FILE]",
     "whether a model file is sound, and what to do if it is not",
     "  weft test-model -m a.gguf                       numbers, vocabulary, template, prediction, answers, memory\n"
     "  weft test-model -m a.gguf -o report.json        the same, and a report to send in\n",
     0},
    {"sim", WEFT_FOR_ENGINE | WEFT_FOR_ALL | SIM, weft_lab_sim, "[--trace FILE]",
     "engine and pager under a virtual clock, without a model",
     "  weft sim --rate 20 --diffusion 0.5              1000 drawn requests, half answered by canvases\n"
     "  weft sim --trace load.jsonl --profile m.json    recorded requests on a measured machine\n"
     "  weft sim --seed 7 -o load.jsonl --plots plots   the drawn requests as a trace, and pictures\n",
     UINT32_MAX}};
const uint32_t weft_lab_n_commands = sizeof weft_lab_commands / sizeof *weft_lab_commands;
