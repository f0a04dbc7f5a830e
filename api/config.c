/* SPDX-License-Identifier: MIT */
#include "api/config.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

typedef enum option_kind { FLAG, U32, U64, F32, TEXT, LIST } option_kind;

enum { NOTHING = SIZE_MAX >> 1 };
#define OPENS \
  (WEFT_CMD_GENERATE | WEFT_CMD_CHAT | WEFT_CMD_SERVE | WEFT_CMD_BENCH | WEFT_CMD_EVAL | WEFT_CMD_DEMO | WEFT_CMD_SOAK)
#define MODEL  (OPENS | WEFT_CMD_CHECK | WEFT_CMD_INSPECT | WEFT_CMD_TOKENIZE | WEFT_CMD_LOGITS)
#define WRITES (WEFT_CMD_GENERATE | WEFT_CMD_CHAT)

typedef struct option_row {
  const char *name;
  char letter;
  option_kind kind;
  size_t at;    /* of the value in weft_config */
  size_t given; /* of a bool that says it was given; NOTHING: none */
  double initial, low, high;
  unsigned commands;
  const char *argument, *help;
} option_row;

#define AT(field) offsetof(weft_config, field)
static const option_row options[] = {
    {"model", 'm', LIST, AT(models), (size_t)NOTHING, 0, 0, 0, MODEL, "FILE", "GGUF file to load; may be repeated"},
    {"backend", 0, TEXT, AT(backend), (size_t)NOTHING, 0, 0, 0, MODEL, "NAME", "ref, cpu or cuda [the best there is]"},
    {"threads", 't', U32, AT(threads), (size_t)NOTHING, 0, 0, 1024, MODEL, "N",
     "threads of the cpu backend [0: all cores]"},
    {"kv-mib", 0, U32, AT(kv_mib), (size_t)NOTHING, 0, 0, 1 << 24, OPENS, "N",
     "MiB of the KV pool [0: planned from free memory]"},
    {"kv-8bit", 0, LIST, AT(kv_8bit), (size_t)NOTHING, 0, 0, 0, OPENS, "MODEL",
     "keep this model's keys and values in 8 bits, or those of `all`; may be repeated"},
    {"host-mib", 0, U32, AT(host_mib), (size_t)NOTHING, 0, 0, 1 << 24, OPENS, "N",
     "MiB of host memory behind the pool: what is evicted waits there [0: none]"},
    {"spill-file", 0, TEXT, AT(spill_file), (size_t)NOTHING, 0, 0, 0, OPENS, "PATH",
     "file behind the host memory, made there and unlinked; with --spill-mib"},
    {"spill-mib", 0, U32, AT(spill_mib), (size_t)NOTHING, 0, 0, 1 << 26, OPENS, "N", "MiB of that file [0: none]"},
    {"saved-canvases", 0, U32, AT(saved_canvases), (size_t)NOTHING, 0, 0, 8192, OPENS, "N",
     "preempted canvases, per model, that resume at their step [0: 8]"},
    {"context", 'c', U32, AT(context), (size_t)NOTHING, 0, 0, 1 << 20, OPENS | WEFT_CMD_LOGITS, "N",
     "longest prompt plus answer [0: 8192 or the model's]"},
    {"running", 0, U32, AT(running), (size_t)NOTHING, 0, 0, 8192, OPENS | WEFT_CMD_SIM, "N",
     "requests running at once [0: 64]"},
    {"queue", 0, U32, AT(queue), (size_t)NOTHING, 0, 0, 65536, OPENS | WEFT_CMD_SIM, "N",
     "requests waiting at most [0: 256]"},
    {"rows", 0, U32, AT(rows), (size_t)NOTHING, 0, 0, 65536, OPENS | WEFT_CMD_SIM, "N", "rows of one step [0: 512]"},
    {"target-tpot-ms", 0, U32, AT(tpot_ms), (size_t)NOTHING, 0, 0, 60000, OPENS, "N",
     "most ms between two tokens of an answer; prompts and canvases fill the rest [0: no target]"},
    {"slice-ms", 0, U32, AT(slice_ms), (size_t)NOTHING, 0, 0, 60000, OPENS | WEFT_CMD_SIM, "N",
     "models in use take turns of N ms of the device [0: a step]"},
    {"no-prefix-cache", 0, FLAG, AT(no_prefix_cache), (size_t)NOTHING, 0, 0, 0, OPENS | WEFT_CMD_SIM, NULL,
     "share no prefixes"},
    {"no-overlap", 0, FLAG, AT(no_overlap), (size_t)NOTHING, 0, 0, 0, OPENS | WEFT_CMD_SIM, NULL,
     "apply each step before planning the next"},
    {"device-mib", 0, U32, AT(device_mib), (size_t)NOTHING, 0, 0, 1 << 24, OPENS, "N",
     "most MiB of a GPU for weights; experts beyond it stay in host memory [0: 7/8 of what is free]"},
    {"no-graphs", 0, FLAG, AT(no_graphs), (size_t)NOTHING, 0, 0, 0, OPENS, NULL,
     "on a GPU: launch each step call by call"},
    {"no-arena", 0, FLAG, AT(no_arena), (size_t)NOTHING, 0, 0, 0, OPENS, NULL,
     "on a GPU: weights in plain memory, not each at an aligned address"},
    {"no-deterministic", 0, FLAG, AT(no_deterministic), (size_t)NOTHING, 0, 0, 0, OPENS, NULL,
     "on a GPU: an answer may depend on what is computed beside it"},
    {"config", 0, TEXT, AT(config_file), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_SERVE, "FILE",
     "read options from lines `name = value`"},
    {"host", 0, TEXT, AT(host), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_SERVE, "ADDRESS",
     "address to listen on [127.0.0.1]"},
    {"port", 'p', U32, AT(port), (size_t)NOTHING, 8080, 0, 65535, WEFT_CMD_SERVE | WEFT_CMD_DEMO, "N",
     "port to listen on; 0 picks a free one [8080]"},
    {"port", 'p', U32, AT(port), (size_t)NOTHING, 8080, 1, 65535, WEFT_CMD_TRACE | WEFT_CMD_TOP, "N",
     "port of the server, on this machine [8080]"},
    {"key-file", 0, TEXT, AT(key_file), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_TRACE | WEFT_CMD_TOP, "FILE",
     "file with the operator's API key, where the server wants one"},
    {"frames", 0, U32, AT(frames), (size_t)NOTHING, 0, 0, 1 << 30, WEFT_CMD_TOP, "N",
     "end after N views [0: on a terminal never, else 1]"},
    {"interval", 0, F32, AT(interval), (size_t)NOTHING, 1, 0.05, 3600, WEFT_CMD_TOP, "S",
     "seconds between two views [1]"},
    {"api-keys", 0, TEXT, AT(api_keys), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_SERVE, "FILE",
     "lines `KEY TENANT [LIMITS]`: only these keys may ask"},
    {"api-keys", 0, TEXT, AT(api_keys), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_SIM, "FILE",
     "a server's keys: weights, classes and limits of its tenants"},
    {"pin", 0, LIST, AT(pin_files), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_SERVE, "FILE",
     "prefixes to keep in the pool, as JSON; may be repeated"},
    {"pins", 0, U32, AT(pins), (size_t)NOTHING, 0, 0, 4096, WEFT_CMD_SERVE, "N",
     "prefixes that may be pinned at once [0: 16]"},
    {"directory", 0, TEXT, AT(directory), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_SERVE, "DIR",
     "work there once all files are open; the log goes to DIR/weft.log"},
    {"body-mib", 0, U32, AT(body_mib), (size_t)NOTHING, 8, 1, 1024, WEFT_CMD_SERVE, "N",
     "largest request body in MiB [8]"},
    {"connections", 0, U32, AT(connections), (size_t)NOTHING, 1024, 1, 65536, WEFT_CMD_SERVE, "N",
     "connections at once [1024]"},
    {"drain-seconds", 0, U32, AT(drain_seconds), (size_t)NOTHING, 30, 0, 86400, WEFT_CMD_SERVE, "N",
     "how long SIGTERM waits for running requests [30]"},
    {"prompt", 'p', TEXT, AT(prompt), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_GENERATE | WEFT_CMD_TOKENIZE, "TEXT",
     "the prompt"},
    {"input", 'i', TEXT, AT(input), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_GENERATE | WEFT_CMD_TOKENIZE, "FILE",
     "read the prompt from a file; - is standard input"},
    {"tokens", 0, TEXT, AT(tokens), (size_t)NOTHING, 0, 0, 0,
     WEFT_CMD_CHECK | WEFT_CMD_GENERATE | WEFT_CMD_LOGITS | WEFT_CMD_TOKENIZE, "IDS",
     "token ids instead of text: 2,5,9"},
    {"chat", 0, FLAG, AT(chat), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_GENERATE, NULL,
     "wrap the prompt in the model's chat template"},
    {"system", 0, TEXT, AT(system), (size_t)NOTHING, 0, 0, 0, WRITES, "TEXT", "system text of the chat"},
    {"thinking", 0, FLAG, AT(thinking), (size_t)NOTHING, 0, 0, 0, WRITES, NULL,
     "let the model think before it answers"},
    {"mode", 0, TEXT, AT(mode), (size_t)NOTHING, 0, 0, 0, WRITES | WEFT_CMD_BENCH, "NAME",
     "auto, autoregressive (ar) or diffusion [auto]"},
    {"max-tokens", 'n', U32, AT(max_tokens), (size_t)NOTHING, 0, 0, 1 << 20, WRITES, "N",
     "longest answer [0: up to the context, at most 1024]"},
    {"temperature", 0, F32, AT(temperature), (size_t)NOTHING, -1, 0, 100, WRITES, "X", "0 is greedy [the model's]"},
    {"top-k", 0, U32, AT(top_k), AT(has_top_k), 0, 0, 1 << 30, WRITES, "N",
     "keep the N likeliest; 0 is off [the model's]"},
    {"top-p", 0, F32, AT(top_p), (size_t)NOTHING, -1, 0, 1, WRITES, "X",
     "keep the likeliest up to this mass [the model's]"},
    {"min-p", 0, F32, AT(min_p), (size_t)NOTHING, 0, 0, 1, WRITES, "X",
     "keep what has this share of the likeliest [0]"},
    {"repetition-penalty", 0, F32, AT(repetition_penalty), (size_t)NOTHING, 1, 0, 100, WRITES, "X",
     "over prompt and answer [1]"},
    {"presence-penalty", 0, F32, AT(presence_penalty), (size_t)NOTHING, 0, -2, 2, WRITES, "X", "over the answer [0]"},
    {"frequency-penalty", 0, F32, AT(frequency_penalty), (size_t)NOTHING, 0, -2, 2, WRITES, "X", "over the answer [0]"},
    {"seed", 's', U64, AT(seed), AT(has_seed), 0, 0, 0, WRITES | WEFT_CMD_EVAL | WEFT_CMD_SOAK, "N",
     "the same seed gives the same answer [fresh]"},
    {"logprobs", 0, U32, AT(logprobs), (size_t)NOTHING, 0, 0, 20, WEFT_CMD_GENERATE, "N",
     "with --json: logprobs of N alternatives"},
    {"stop", 0, LIST, AT(stop), (size_t)NOTHING, 0, 0, 0, WRITES, "TEXT", "end before this text; may be repeated"},
    {"ignore-eos", 0, FLAG, AT(ignore_eos), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_GENERATE, NULL,
     "go on after an end token"},
    {"special", 0, FLAG, AT(special), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_GENERATE | WEFT_CMD_TOKENIZE, NULL,
     "print, or parse, control tokens too"},
    {"no-live", 0, FLAG, AT(no_live), (size_t)NOTHING, 0, 0, 0, WRITES, NULL,
     "no live redraw of the canvas on a terminal"},
    {"trace", 0, TEXT, AT(trace), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_GENERATE, "FILE",
     "one JSON object per denoise step"},
    {"diffusion-steps", 0, U32, AT(diffusion_steps), (size_t)NOTHING, 0, 0, 4096, WRITES | WEFT_CMD_EVAL, "N",
     "most denoise steps of a canvas [the model's, 48]"},
    {"diffusion-seed", 0, U64, AT(diffusion_seed), AT(has_diffusion_seed), 0, 0, 0, WRITES, "N",
     "seed of the canvas; --seed by another name"},
    {"diffusion-blocks", 0, U32, AT(diffusion_blocks), (size_t)NOTHING, 0, 0, 65536, WRITES, "N",
     "most canvases [0: from --max-tokens]"},
    {"diffusion-t-min", 0, F32, AT(diffusion_t_min), (size_t)NOTHING, -1, 0, 100, WRITES, "X",
     "temperature at the last step [0.4]"},
    {"diffusion-t-max", 0, F32, AT(diffusion_t_max), (size_t)NOTHING, -1, 0, 100, WRITES, "X",
     "temperature at the first step [0.8]"},
    {"diffusion-entropy-bound", 0, F32, AT(diffusion_entropy_bound), (size_t)NOTHING, -1, 0, 1e9, WRITES, "X",
     "entropy that accepted tokens may add up to [0.1]"},
    {"diffusion-stability", 0, U32, AT(diffusion_stability), AT(has_stability), 0, 0, 8, WRITES, "N",
     "equal argmax canvases before an early stop [1]"},
    {"diffusion-confidence", 0, F32, AT(diffusion_confidence), (size_t)NOTHING, -1, 0, 1e9, WRITES, "X",
     "mean entropy below which a canvas may stop [0.005]"},
    {"no-self-conditioning", 0, FLAG, AT(no_self_conditioning), (size_t)NOTHING, 0, 0, 0, WRITES | WEFT_CMD_EVAL, NULL,
     "keep the soft embedding at zero, to compare"},
    {"canvas", 0, TEXT, AT(canvas), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_LOGITS, "IDS",
     "canvas tokens: logits of a denoise pass"},
    {"self-cond", 0, TEXT, AT(self_cond), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_LOGITS, "FILE",
     "softcapped f32 logits of the step before"},
    {"self-cond-temperature", 0, F32, AT(self_cond_temperature), (size_t)NOTHING, 1, 1e-6, 100, WEFT_CMD_LOGITS, "T",
     "temperature of that step [1]"},
    {"tolerance", 0, F32, AT(tolerance), (size_t)NOTHING, 0.1, 1e-9, 10, WEFT_CMD_CHECK, "T",
     "a row of an op may be off by T times its root mean square [0.1]"},
    {"output", 'o', TEXT, AT(output), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_LOGITS | WEFT_CMD_BENCH | WEFT_CMD_TRACE,
     "FILE", "where the result goes"},
    {"llama", 0, TEXT, AT(llama), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_BENCH, "DIR",
     "folder of an existing llama.cpp build, for `bench peer`"},
    {"n-prompt", 0, U32, AT(n_prompt), (size_t)NOTHING, 512, 1, 1 << 20, WEFT_CMD_BENCH, "N", "prompt tokens [512]"},
    {"n-generate", 0, U32, AT(n_generate), (size_t)NOTHING, 64, 1, 1 << 20, WEFT_CMD_BENCH, "N",
     "generated tokens [64]"},
    {"n-parallel", 0, U32, AT(n_parallel), (size_t)NOTHING, 0, 0, 4096, WEFT_CMD_BENCH | WEFT_CMD_SOAK, "N",
     "sequences at once [0: a sweep]"},
    {"repeat", 'r', U32, AT(repeat), (size_t)NOTHING, 3, 1, 1000, WEFT_CMD_BENCH, "N", "runs of each case [3]"},
    {"cases", 0, TEXT, AT(cases), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_EVAL, "FILE",
     "examples, one JSON object per line"},
    {"limit", 0, U32, AT(limit), (size_t)NOTHING, 0, 0, 1 << 20, WEFT_CMD_EVAL, "N", "examples per family [0: all]"},
    {"seconds", 0, U32, AT(seconds), (size_t)NOTHING, 30, 1, 86400, WEFT_CMD_SOAK, "N", "how long [30]"},
    {"trace", 0, TEXT, AT(trace), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_SIM, "FILE",
     "requests as JSON lines; without it they are drawn"},
    {"output", 'o', TEXT, AT(output), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_SIM, "FILE", "write the requests as a trace"},
    {"plots", 0, TEXT, AT(plots), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_SIM, "DIR", "write SVG files there"},
    {"profile", 0, TEXT, AT(profile), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_SIM, "FILE",
     "models and their times, as JSON [built in]"},
    {"replicas", 0, U32, AT(replicas), (size_t)NOTHING, 1, 1, 64, WEFT_CMD_SIM, "N",
     "engines, each with its device and pool [1]"},
    {"router", 0, TEXT, AT(router), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_SIM, "NAME", "hash or round-robin [hash]"},
    {"router-blocks", 0, U32, AT(router_blocks), (size_t)NOTHING, 2, 1, 8192, WEFT_CMD_SIM, "N",
     "hash: leading blocks of 512 tokens that count [2]"},
    {"router-bound", 0, F32, AT(router_bound), (size_t)NOTHING, 1.25, 1, 64, WEFT_CMD_SIM, "X",
     "hash: most load of a replica, times the mean [1.25]"},
    {"seed", 's', U64, AT(seed), AT(has_seed), 0, 0, 0, WEFT_CMD_SIM, "N", "the same seed gives the same numbers [0]"},
    {"kv-mib", 0, U32, AT(kv_mib), (size_t)NOTHING, 0, 0, 1 << 24, WEFT_CMD_SIM, "N",
     "MiB of the KV pool, at 26B geometry [0: 16384]"},
    {"host-mib", 0, U32, AT(host_mib), (size_t)NOTHING, 0, 0, 1 << 24, WEFT_CMD_SIM, "N",
     "MiB of host memory behind the pool [0: none]"},
    {"context", 'c', U32, AT(context), (size_t)NOTHING, 0, 0, 1 << 20, WEFT_CMD_SIM, "N",
     "longest prompt plus answer [0: what the load needs]"},
    {"step-us", 0, F32, AT(step_us), (size_t)NOTHING, -1, 0, 1e9, WEFT_CMD_SIM, "X",
     "time of a step besides its rows and keys, in us [the profile's, 2000]"},
    {"row-us", 0, F32, AT(row_us), (size_t)NOTHING, -1, 0, 1e9, WEFT_CMD_SIM, "X",
     "time of a row, in us [the profile's, 32]"},
    {"key-us", 0, F32, AT(key_us), (size_t)NOTHING, -1, 0, 1e9, WEFT_CMD_SIM, "X",
     "time of 1000 keys read in one layer group, in us [the profile's, 10]"},
    {"canvas-steps", 0, U32, AT(canvas_steps), (size_t)NOTHING, 48, 1, 4096, WEFT_CMD_SIM, "N",
     "most denoise steps of a canvas [48]"},
    {"canvas-steps-min", 0, U32, AT(canvas_steps_min), (size_t)NOTHING, 12, 0, 4096, WEFT_CMD_SIM, "N",
     "least of them; drawn between; 0: always the most [12]"},
    {"target-ttft-ms", 0, F32, AT(target_ttft_ms), (size_t)NOTHING, 1000, 0, 1e9, WEFT_CMD_SIM, "X",
     "goodput: first token within, in ms [1000]"},
    {"target-tpot-ms", 0, F32, AT(target_tpot_ms), (size_t)NOTHING, 100, 0, 1e9, WEFT_CMD_SIM, "X",
     "goodput: each further token within, in ms [100]"},
    {"hold-tpot", 0, FLAG, AT(hold_tpot), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_SIM, NULL,
     "prompts and canvases fill steps only up to --target-tpot-ms"},
    {"shared-cache", 0, FLAG, AT(shared_cache), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_SERVE | WEFT_CMD_SIM, NULL,
     "tenants see each other's cached prefixes"},
    {"csv", 0, FLAG, AT(csv), (size_t)NOTHING, 0, 0, 0, WEFT_CMD_SIM | WEFT_CMD_BENCH, NULL, "print CSV"},
    {"requests", 0, U32, AT(requests), (size_t)NOTHING, 1000, 1, 1 << 22, WEFT_CMD_SIM, "N", "drawn: how many [1000]"},
    {"rate", 0, F32, AT(rate), (size_t)NOTHING, 4, 1e-3, 1e6, WEFT_CMD_SIM, "X",
     "drawn: arrivals per second, Poisson [4]"},
    {"burst", 0, U32, AT(burst), (size_t)NOTHING, 1, 1, 65536, WEFT_CMD_SIM, "N",
     "drawn: so many arrive at once, at the same rate [1]"},
    {"tenants", 0, U32, AT(tenants), (size_t)NOTHING, 4, 1, 255, WEFT_CMD_SIM, "N", "drawn: tenants [4]"},
    {"skew", 0, F32, AT(skew), (size_t)NOTHING, 0, 0, 1, WEFT_CMD_SIM, "X",
     "drawn: share of requests of tenant 0 [0: as all]"},
    {"diffusion", 0, F32, AT(diffusion), (size_t)NOTHING, 0.25, 0, 1, WEFT_CMD_SIM, "X",
     "drawn: share of requests answered by diffusion [0.25]"},
    {"cancel", 0, F32, AT(cancel), (size_t)NOTHING, 0, 0, 1, WEFT_CMD_SIM, "X",
     "drawn: share of requests that are cancelled [0]"},
    {"cancel-ms", 0, U32, AT(cancel_ms), (size_t)NOTHING, 2000, 1, 1 << 30, WEFT_CMD_SIM, "N",
     "drawn: after so long, mean, exponential [2000]"},
    {"deadline-ms", 0, U32, AT(deadline_ms), (size_t)NOTHING, 0, 0, 1 << 30, WEFT_CMD_SIM, "N",
     "drawn: deadline of each request [0: none]"},
    {"urgent", 0, F32, AT(urgent), (size_t)NOTHING, 0, 0, 1, WEFT_CMD_SIM, "X",
     "drawn: share of requests with priority 1 [0]"},
    {"prompt-tokens", 0, U32, AT(prompt_tokens), (size_t)NOTHING, 512, 1, 1 << 20, WEFT_CMD_SIM, "N",
     "drawn: median of the prompts, log-normal [512]"},
    {"answer-tokens", 0, U32, AT(answer_tokens), (size_t)NOTHING, 128, 1, 1 << 20, WEFT_CMD_SIM, "N",
     "drawn: mean of the answers, exponential [128]"},
    {"shared", 0, F32, AT(shared), (size_t)NOTHING, 0.5, 0, 1, WEFT_CMD_SIM, "X",
     "drawn: share of prompts that start with a shared one [0.5]"},
    {"shared-tokens", 0, U32, AT(shared_tokens), (size_t)NOTHING, 1024, 1, 1 << 20, WEFT_CMD_SIM, "N",
     "drawn: its tokens, in whole blocks of 512 [1024]"},
    {"prefixes", 0, U32, AT(prefixes), (size_t)NOTHING, 4, 1, 65536, WEFT_CMD_SIM, "N",
     "drawn: different shared ones [4]"},
    {"long", 0, F32, AT(long_share), (size_t)NOTHING, 0.02, 0, 1, WEFT_CMD_SIM, "X",
     "drawn: share of prompts of the longest length [0.02]"},
    {"long-tokens", 0, U32, AT(longest_tokens), (size_t)NOTHING, 16384, 1, 1 << 20, WEFT_CMD_SIM, "N",
     "drawn: the longest length of own tokens [16384]"},
    {"json", 0, FLAG, AT(json), (size_t)NOTHING, 0, 0, 0, ~0u, NULL, "print JSON"},
    {"quiet", 'q', FLAG, AT(quiet), (size_t)NOTHING, 0, 0, 0, ~0u, NULL, "no progress bars"},
    {"verbose", 'v', FLAG, AT(verbose), (size_t)NOTHING, 0, 0, 0, ~0u, NULL, "say more on standard error"},
    {"help", 'h', FLAG, AT(help), (size_t)NOTHING, 0, 0, 0, ~0u, NULL, "this text"},
};
enum { N_OPTIONS = sizeof options / sizeof *options };

static void *field(weft_config *config, size_t at) {
  return (char *)config + at;
}

void weft_config_defaults(weft_config *config) {
  memset(config, 0, sizeof *config);
  for (uint32_t i = 0; i < N_OPTIONS; i++) {
    const option_row *o = &options[i];
    if (o->kind == U32) *(uint32_t *)field(config, o->at) = (uint32_t)o->initial;
    if (o->kind == F32) *(float *)field(config, o->at) = (float)o->initial;
  }
}

static const option_row *find_row(const char *name, size_t n, unsigned command) {
  for (uint32_t i = 0; i < N_OPTIONS; i++) {
    const option_row *o = &options[i];
    if ((o->commands & command) != 0 && strlen(o->name) == n && strncmp(o->name, name, n) == 0) return o;
  }
  return NULL;
}

static const option_row *find_letter(char letter, unsigned command) {
  for (uint32_t i = 0; i < N_OPTIONS; i++) {
    if (options[i].letter == letter && (options[i].commands & command) != 0) return &options[i];
  }
  return NULL;
}

static weft_status bad_value(const option_row *o, const char *value, weft_error *error) {
  if (o->kind == U64) return weft_fail(error, WEFT_E_INVALID, "--%s: '%s' is no whole number", o->name, value);
  return weft_fail(error, WEFT_E_INVALID, "--%s: '%s' must be %s from %g to %g", o->name, value,
                   o->kind == U32 ? "a whole number" : "a number", o->low, o->high);
}

static weft_status set_value(weft_config *config, const option_row *o, const char *value, weft_error *error) {
  char *end = NULL;
  errno = 0;
  if (o->kind == U32 || o->kind == U64) {
    unsigned long long number = strtoull(value, &end, 10);
    bool whole = isdigit((unsigned char)value[0]) && *end == 0 && errno == 0;
    if (!whole) return bad_value(o, value, error);
    if (o->kind == U64) {
      *(uint64_t *)field(config, o->at) = number;
    } else if ((double)number < o->low || (double)number > o->high) {
      return bad_value(o, value, error);
    } else {
      *(uint32_t *)field(config, o->at) = (uint32_t)number;
    }
  } else if (o->kind == F32) {
    double number = strtod(value, &end);
    if (end == value || *end != 0 || !isfinite(number) || number < o->low || number > o->high) {
      return bad_value(o, value, error);
    }
    *(float *)field(config, o->at) = (float)number;
  } else if (o->kind == TEXT) {
    *(const char **)field(config, o->at) = value;
  } else if (o->kind == LIST) {
    weft_text_list *list = field(config, o->at);
    if (list->n == WEFT_LIST_MAX) {
      return weft_fail(error, WEFT_E_INVALID, "--%s is given more than %d times", o->name, WEFT_LIST_MAX);
    }
    list->item[list->n++] = value;
  } else {
    *(bool *)field(config, o->at) = true;
  }
  if (o->given != (size_t)NOTHING) *(bool *)field(config, o->given) = true;
  return WEFT_OK;
}

static weft_status set_flag_text(weft_config *config, const option_row *o, const char *value, weft_error *error) {
  if (o->kind != FLAG) return set_value(config, o, value, error);
  bool yes = strcmp(value, "1") == 0 || strcmp(value, "true") == 0 || strcmp(value, "on") == 0;
  bool no = strcmp(value, "0") == 0 || strcmp(value, "false") == 0 || strcmp(value, "off") == 0;
  if (!yes && !no) return weft_fail(error, WEFT_E_INVALID, "%s: '%s' must be on or off", o->name, value);
  *(bool *)field(config, o->at) = yes;
  return WEFT_OK;
}

static weft_status parse_environment(weft_config *config, weft_error *error) {
  for (uint32_t i = 0; i < N_OPTIONS; i++) {
    const option_row *o = &options[i];
    if ((o->commands & WEFT_CMD_SERVE) == 0 || o->kind == LIST) continue;
    char name[64];
    int n = snprintf(name, sizeof name, "WEFT_%s", o->name);
    for (int k = 0; k < n; k++) name[k] = name[k] == '-' ? '_' : (char)toupper((unsigned char)name[k]);
    const char *value = getenv(name);
    if (value == NULL) continue;
    weft_status status = set_flag_text(config, o, value, error);
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}

static char *trim(char *text) {
  while (isspace((unsigned char)*text)) text++;
  size_t n = strlen(text);
  while (n > 0 && isspace((unsigned char)text[n - 1])) text[--n] = 0;
  return text;
}

static weft_status parse_line(weft_config *config, char *line, const char *path, uint32_t number, weft_error *error) {
  line = trim(line);
  if (*line == 0 || *line == '#') return WEFT_OK;
  char *equals = strchr(line, '=');
  if (equals == NULL) return weft_fail(error, WEFT_E_FORMAT, "%s:%u: a line is `name = value`", path, number);
  *equals = 0;
  char *name = trim(line), *value = trim(equals + 1);
  const option_row *o = find_row(name, strlen(name), WEFT_CMD_SERVE);
  if (o == NULL) return weft_fail(error, WEFT_E_INVALID, "%s:%u: no option is named '%s'", path, number, name);
  if (o->kind == TEXT || o->kind == LIST) { /* these keep a pointer */
    if (config->n_owned == WEFT_LIST_MAX)
      return weft_fail(error, WEFT_E_TOO_LARGE, "%s:%u: too many texts", path, number);
    value = weft_strdup(value);
    if (value == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for %s", path);
    config->owned[config->n_owned++] = value;
  }
  return set_flag_text(config, o, value, error);
}

static weft_status parse_file(weft_config *config, const char *path, weft_error *error) {
  FILE *file = fopen(path, "r");
  if (file == NULL) return weft_fail(error, WEFT_E_IO, "--config %s: %s", path, strerror(errno));
  char line[4096];
  weft_status status = WEFT_OK;
  for (uint32_t number = 1; status == WEFT_OK && fgets(line, sizeof line, file) != NULL; number++) {
    status = parse_line(config, line, path, number, error);
  }
  (void)fclose(file); /* only read */
  return status;
}

static weft_status parse_argument(weft_config *config, unsigned command, int argc, char **argv, int *at,
                                  weft_error *error) {
  const char *word = argv[*at];
  if (word[0] != '-' || word[1] == 0) {
    if (config->words.n == WEFT_LIST_MAX) return weft_fail(error, WEFT_E_INVALID, "too many words after '%s'", word);
    config->words.item[config->words.n++] = word;
    return WEFT_OK;
  }
  const option_row *o = NULL;
  const char *value = NULL;
  if (word[1] == '-') {
    const char *equals = strchr(word, '=');
    size_t n = equals == NULL ? strlen(word + 2) : (size_t)(equals - word - 2);
    o = find_row(word + 2, n, command);
    if (equals != NULL) value = equals + 1;
  } else {
    o = find_letter(word[1], command);
    if (word[2] != 0) value = word + 2;
  }
  if (o == NULL) return weft_fail(error, WEFT_E_INVALID, "no option is named '%s': --help lists them", word);
  if (o->kind == FLAG) {
    return value == NULL ? set_value(config, o, "", error) : set_flag_text(config, o, value, error);
  }
  if (value == NULL) {
    if (*at + 1 >= argc) return weft_fail(error, WEFT_E_INVALID, "%s needs a value: %s", word, o->argument);
    value = argv[++*at];
  }
  return set_value(config, o, value, error);
}

weft_status weft_config_parse(weft_config *config, unsigned command, int argc, char **argv, weft_error *error) {
  weft_status status = WEFT_OK;
  weft_config flags;
  weft_config_defaults(&flags);
  for (int i = 0; i < argc && status == WEFT_OK; i++) status = parse_argument(&flags, command, argc, argv, &i, error);
  if (status != WEFT_OK) return status;
  if (command == WEFT_CMD_SERVE) {
    if (flags.config_file != NULL) status = parse_file(config, flags.config_file, error);
    if (status == WEFT_OK) status = parse_environment(config, error);
  }
  for (int i = 0; i < argc && status == WEFT_OK; i++) status = parse_argument(config, command, argc, argv, &i, error);
  if (status == WEFT_OK && config->has_diffusion_seed) {
    config->seed = config->diffusion_seed;
    config->has_seed = true;
  }
  return status;
}

void weft_config_free(weft_config *config) {
  for (uint32_t i = 0; i < config->n_owned; i++) weft_free(config->owned[i]);
  config->n_owned = 0;
}

void weft_config_help(unsigned command, FILE *to) {
  for (uint32_t i = 0; i < N_OPTIONS; i++) {
    const option_row *o = &options[i];
    if ((o->commands & command) == 0) continue;
    char left[48];
    (void)snprintf(left, sizeof left, "%c%c%s --%s%s%s", o->letter != 0 ? '-' : ' ', o->letter != 0 ? o->letter : ' ',
                   o->letter != 0 ? "," : " ", o->name, o->argument != NULL ? " " : "",
                   o->argument != NULL ? o->argument : "");
    (void)fprintf(to, "  %-34s %s\n", left, o->help);
  }
}

weft_open_options weft_config_open(const weft_config *config) {
  return (weft_open_options){.models = config->models.item,
                             .n_models = config->models.n,
                             .kv_8bit = config->kv_8bit.item,
                             .n_kv_8bit = config->kv_8bit.n,
                             .backend = config->backend,
                             .threads = config->threads,
                             .kv_bytes = (uint64_t)config->kv_mib << 20,
                             .host_bytes = (uint64_t)config->host_mib << 20,
                             .spill_file = config->spill_file,
                             .spill_bytes = (uint64_t)config->spill_mib << 20,
                             .saved_canvases = config->saved_canvases,
                             .context = config->context,
                             .running = config->running,
                             .queue = config->queue,
                             .rows = config->rows,
                             .pins = config->pins,
                             .shared_cache = config->shared_cache,
                             .no_prefix_cache = config->no_prefix_cache,
                             .target_tpot_ms = config->tpot_ms,
                             .slice_ms = config->slice_ms,
                             .no_overlap = config->no_overlap,
                             .no_graphs = config->no_graphs,
                             .no_arena = config->no_arena,
                             .no_deterministic = config->no_deterministic,
                             .device_bytes = (uint64_t)config->device_mib << 20,
                             .quiet = config->quiet};
}

weft_status weft_config_ids(const char *text, const char *flag, int32_t **ids, uint32_t *n, weft_error *error) {
  size_t n_max = 1;
  for (const char *c = text; *c != 0; c++) n_max += *c == ',';
  *n = 0;
  *ids = weft_alloc(n_max, sizeof **ids);
  if (*ids == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for %zu ids", n_max);
  const char *at = text;
  while (*at != 0) {
    char *end;
    errno = 0;
    long id = strtol(at, &end, 10);
    if (end == at || (*end != ',' && *end != 0) || errno != 0 || id < 0 || id > INT32_MAX) {
      weft_free(*ids);
      *ids = NULL;
      return weft_fail(error, WEFT_E_INVALID, "%s: '%.20s' is no token id: ids are whole numbers with commas between",
                       flag, at);
    }
    (*ids)[(*n)++] = (int32_t)id;
    at = *end == ',' ? end + 1 : end;
  }
  return WEFT_OK;
}
