/* SPDX-License-Identifier: MIT */
#include "api/config.h"
#include "api/devices.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/option_names.h"
#include "base/memory.h"
#include "base/nearest.h"
#include "base/text.h"

#define FLAG(field)  WEFT_OPTION_IS_FLAG(weft_config, field)
#define TEXT(field)  WEFT_OPTION_IS_TEXT(weft_config, field)
#define TEXT_OR(...) WEFT_OPTION_IS_TEXT_OR(weft_config, __VA_ARGS__)
#define LIST(field)  WEFT_OPTION_IS_LIST(weft_config, field)
#define U32(...)     WEFT_OPTION_IS_U32(weft_config, __VA_ARGS__)
#define I32(...)     WEFT_OPTION_IS_I32(weft_config, __VA_ARGS__)
#define F32(...)     WEFT_OPTION_IS_F32(weft_config, __VA_ARGS__)
#define U64(...)     WEFT_OPTION_IS_U64(weft_config, __VA_ARGS__)

#define TEXT_OF(number)           TEXT_AS_IT_STANDS(number)
#define TEXT_AS_IT_STANDS(number) #number

#define FIRST      WEFT_TOPIC_FIRST
#define ANSWER     "The answer"
#define SAMPLING   "Sampling"
#define DIFFUSION  WEFT_TOPIC_DIFFUSION
#define MEMORY     WEFT_TOPIC_MEMORY
#define SCHEDULING WEFT_TOPIC_SCHEDULING
#define DEVICE     WEFT_TOPIC_DEVICE
#define SERVER     "Server"
#define OUTPUT     WEFT_TOPIC_OUTPUT

enum {
  GENERATE = WEFT_FOR_GENERATE,
  CHAT = WEFT_FOR_CHAT,
  SERVE = WEFT_FOR_SERVE,
  TOKENIZE = WEFT_FOR_TOKENIZE,
  DEMO = WEFT_FOR_DEMO,
  TRACE = WEFT_FOR_TRACE,
  TOP = WEFT_FOR_TOP,
  PULL = WEFT_FOR_PULL,
  PLAN = WEFT_FOR_PLAN,
  WEIGHTS = WEFT_FOR_WEIGHTS,
  WRITES = WEFT_FOR_GENERATE | WEFT_FOR_CHAT,
  ANSWERS = WRITES | SERVE, /* of a server: what requests get that leave it open */
  MODELS = WEFT_FOR_MODELS,
  RUNTIME = WEFT_FOR_RUNTIME,
  ENGINE = WEFT_FOR_ENGINE,
  ALL = WEFT_FOR_ALL
};

/* In the order of --help: topics in the order of their first row. */
static const weft_option product_rows[] = {
    {"model", 'm', FIRST, MODELS, LIST(models), "FILE", "GGUF file to load; may be repeated"},
    {"models-dir", 0, FIRST, SERVE, TEXT(models_dir), "DIR",
     "folder of GGUF files that are loaded when they are asked for, and leave when others need their room"},
    {"models-preset", 0, FIRST, SERVE, TEXT(models_preset), "FILE",
     "presets of llama-server, each a model that comes and goes as those of --models-dir"},
    {"keep-alive-seconds", 0, FIRST, SERVE, I32(keep_alive_seconds, -1, -1, 1 << 30), "N",
     "seconds without use after which a model of --models-dir leaves, where no request says keep_alive; 300 is "
     "Ollama's [-1: until others need its room]"},
    {"load-tenants", 0, FIRST, SERVE, LIST(load_tenants), "TENANT",
     "whose requests may have a model of --models-dir loaded; may be repeated [all]"},
    {"hf", 0, FIRST, MODELS, LIST(hub_models), "OWNER/NAME[:QUANT]",
     "model of a hub, fetched where it is not there yet; -hf is the same; may be repeated"},
    {"hub", 0, FIRST, MODELS | PULL, TEXT_OR(hub, "https://huggingface.co"), "URL",
     "address of the hub, or of a mirror"},
    {"hub-token", 0, FIRST, MODELS | PULL, TEXT(hub_token), "FILE",
     "file with the token for the hub, where a model wants one [HF_TOKEN of the environment]"},
    {"cache", 0, FIRST, MODELS | PULL, TEXT(cache), "DIR", "folder of models from hubs [~/.cache/weft/models]"},
    {"served-model-name", 0, FIRST, SERVE, LIST(served_names), "NAME",
     "what clients call the model; MODEL=NAME for one of several; may be repeated: the first one stands in answers"},
    {"chat-template", 0, FIRST, RUNTIME, LIST(chat_templates), "FILE",
     "chat template in place of the one in the model file; MODEL=FILE for one of several models; may be repeated"},
    {"weights", 0, FIRST, RUNTIME, TEXT(weights), "SOCKET",
     "map the weights that a process `weft weights` owns, in place of loading them"},
    {"socket", 0, FIRST, WEIGHTS, TEXT(socket), "PATH",
     "unix socket where workers of this user find the weights; the manifest is PATH.json"},
    {"scope", 0, FIRST, WEIGHTS, TEXT_OR(scope, "both"), "target|drafter|both", "models whose weights it loads"},
    {"reserve-mib", 0, FIRST, WEIGHTS, U32(reserve_mib, 0, 0, 1 << 24), "N", "keep N MiB free, or refuse to load"},
    {"transport", 0, FIRST, WEIGHTS, TEXT_OR(transport, "auto"), "auto|fd|ipc",
     "hand memory over as descriptors, which keep it, or as names, which end with this process (ipc)"},
    {"parent-pid", 0, FIRST, WEIGHTS, U32(parent_pid, 0, 1, INT32_MAX), "PID", "end when it has ended [none]"},
    {"dry-run", 0, FIRST, WEIGHTS, FLAG(dry_run), NULL, "load nothing: print whether it would fit, as JSON"},
    {"counts", 0, FIRST, WEIGHTS, FLAG(counts), NULL, "print what the owner at --socket loaded and was asked, as JSON"},
    {"unused-tensors", 0, FIRST, RUNTIME | WEIGHTS, FLAG(unused_tensors), NULL,
     "open a file although tensors of its layers are not used: answers may be wrong"},
    {"config", 0, FIRST, SERVE, TEXT(config_file), "FILE",
     "read options from lines `name = value` [weft/weft.conf in $XDG_CONFIG_HOME or ~/.config, "
     "else " WEFT_CONFIG_OF_MACHINE "]"},
    {"host", 0, FIRST, SERVE, TEXT_OR(host, "127.0.0.1"), "ADDRESS",
     "address to listen on, or unix:PATH for a unix socket"},
    {"else-anew", 0, FIRST, RUNTIME, FLAG(else_anew), NULL, "load or begin anew what outlived and was made otherwise"},
    {"take-over", 0, FIRST, SERVE, TEXT(take_over), "SOCKET",
     "take over from the server that listens on this unix socket, if one does, and let the next one take over there"},
    {"take-over-after", 0, FIRST, SERVE, FLAG(take_over_after), NULL,
     "with --take-over: begin when the server before has ended, for want of memory for two; clients wait meanwhile"},
    {"port", 'p', FIRST, SERVE | DEMO, U32(port, 8080, 0, 65535), "N", "port to listen on; 0 picks a free one"},
    {"port", 'p', FIRST, TRACE | TOP, U32(port, 8080, 1, 65535), "N", "port of the server"},
    {"host", 0, FIRST, TRACE | TOP, TEXT(host), "ADDRESS",
     "where the server listens: an address, or unix:PATH [127.0.0.1]"},
    {"url", 0, FIRST, TRACE | TOP, TEXT(url), "URL",
     "the same in one, as https://host:8443, in place of --host and --port"},
    {"url", 0, FIRST, CHAT, TEXT(url), "URL",
     "talk to this server in place of a model file: any that speaks OpenAI's protocol; -m names one of its models"},
    {"tls-cert", 0, FIRST, TRACE | TOP | CHAT, TEXT(tls_cert), "FILE", "the server's certificate, where it speaks TLS"},
    {"key-file", 0, FIRST, TRACE | TOP, TEXT(key_file), "FILE",
     "file with the operator's API key, where the server wants one"},
    {"key-file", 0, FIRST, CHAT, TEXT(key_file), "FILE", "file with the API key, where the server of --url wants one"},
    {"api-keys", 0, FIRST, SERVE, TEXT(api_keys), "FILE", "lines `KEY TENANT [LIMITS]`: only these keys may ask"},
    {"spare-tenants", 0, FIRST, SERVE, U32(spare_tenants, 0, 0, 254), "N",
     "places for tenants that the file of --api-keys names later (SIGHUP) [0: 16 where it names several, else none]"},
    {"api-key", 0, FIRST, SERVE, LIST(api_key), "KEY",
     "who sends this key may ask, as the tenant `default`; may be repeated; WEFT_API_KEY keeps it off the command "
     "line"},
    {"users", 'n', FIRST, PLAN, U32(users, 8, 1, 8192), "N", "who ask at once"},
    {"prompt", 0, FIRST, PLAN, U32(plan_prompt, 1024, 1, 1 << 20), "N", "tokens of a prompt"},
    {"answer", 0, FIRST, PLAN, U32(plan_answer, 512, 1, 1 << 20), "N", "tokens of an answer"},
    {"card", 0, FIRST, PLAN, TEXT(card), "NAME", "a card of the table, as h200; all: every one [this machine]"},
    {"prompt", 'p', FIRST, GENERATE | TOKENIZE, TEXT(prompt), "TEXT", "the prompt"},
    {"input", 'i', FIRST, GENERATE | TOKENIZE, TEXT(input), "FILE", "read the prompt from a file; - is standard input"},
    {"tokens", 0, FIRST, GENERATE | TOKENIZE, TEXT(tokens), "IDS", "token ids instead of text: 2,5,9"},
    {"chat", 0, FIRST, GENERATE, FLAG(chat), NULL, "wrap the prompt in the model's chat template"},
    {"mode", 0, FIRST, WRITES, TEXT(mode), "auto|ar|diffusion",
     "by diffusion, or token by token: ar, autoregressive [auto]"},
    {"max-tokens", 'n', FIRST, WRITES, U32(max_tokens, WEFT_RANGE_MAX_TOKENS), "N",
     "longest answer [0: up to the context, at most " TEXT_OF(WEFT_ANSWER_TOKENS) "]"},
    {"temperature", 0, FIRST, ANSWERS, F32(sampling.temperature, WEFT_RANGE_TEMPERATURE), "X",
     "0 is greedy [the model's]"},
    {"seed", 's', FIRST, ANSWERS, U64(sampling.seed, has_seed), "N", "the same seed gives the same answer [fresh]"},
    {"system", 0, ANSWER, WRITES, TEXT(system), "TEXT", "system text of the chat"},
    {"thinking", 0, ANSWER, WRITES, FLAG(thinking), NULL, "let the model think before it answers"},
    {"stop", 0, ANSWER, WRITES, LIST(stop), "TEXT", "end before this text; may be repeated"},
    {"ignore-eos", 0, ANSWER, GENERATE, FLAG(ignore_eos), NULL, "go on after an end token"},
    {"special", 0, ANSWER, GENERATE | TOKENIZE, FLAG(special), NULL, "print, or parse, control tokens too"},
    {"top-k", 0, SAMPLING, ANSWERS, I32(sampling.top_k, WEFT_RANGE_TOP_K), "N",
     "keep the N likeliest; 0 is off [the model's]"},
    {"top-p", 0, SAMPLING, ANSWERS, F32(sampling.top_p, WEFT_RANGE_TOP_P), "X",
     "keep the likeliest up to this mass [the model's]"},
    {"min-p", 0, SAMPLING, WRITES, F32(sampling.min_p, WEFT_RANGE_MIN_P), "X",
     "keep what has this share of the likeliest"},
    {"repetition-penalty", 0, SAMPLING, WRITES, F32(sampling.repetition_penalty, WEFT_RANGE_REPETITION_PENALTY), "X",
     "over prompt and answer"},
    {"presence-penalty", 0, SAMPLING, WRITES, F32(sampling.presence_penalty, WEFT_RANGE_PRESENCE_PENALTY), "X",
     "over the answer"},
    {"frequency-penalty", 0, SAMPLING, WRITES, F32(sampling.frequency_penalty, WEFT_RANGE_FREQUENCY_PENALTY), "X",
     "over the answer"},
    {"diffusion-steps", 0, DIFFUSION, ANSWERS, U32(entropy_bound.max_steps, WEFT_RANGE_MAX_STEPS), "N",
     "most denoise steps of a canvas [the model's]"},
    {"diffusion-blocks", 0, DIFFUSION, WRITES, U32(canvases, WEFT_RANGE_CANVASES), "N",
     "most canvases [0: from --max-tokens]"},
    {"diffusion-t-min", 0, DIFFUSION, ANSWERS, F32(entropy_bound.t_min, WEFT_RANGE_T_MIN), "X",
     "temperature at the last step [the model's]"},
    {"diffusion-t-max", 0, DIFFUSION, ANSWERS, F32(entropy_bound.t_max, WEFT_RANGE_T_MAX), "X",
     "temperature at the first step [the model's]"},
    {"diffusion-entropy-bound", 0, DIFFUSION, ANSWERS, F32(entropy_bound.entropy_bound, WEFT_RANGE_ENTROPY_BOUND), "X",
     "entropy that accepted tokens may add up to [the model's]"},
    {"diffusion-stability", 0, DIFFUSION, ANSWERS, I32(entropy_bound.stability, WEFT_RANGE_STABILITY), "N",
     "equal argmax canvases before an early stop [the model's]"},
    {"diffusion-confidence", 0, DIFFUSION, ANSWERS, F32(entropy_bound.confidence, WEFT_RANGE_CONFIDENCE), "X",
     "mean entropy below which a canvas may stop [the model's]"},
    {"no-self-conditioning", 0, DIFFUSION, ANSWERS, FLAG(entropy_bound.no_self_conditioning), NULL,
     "keep the soft embedding at zero, to compare"},
    {"kv-mib", 0, MEMORY, RUNTIME, U32(kv_mib, 0, 0, 1 << 24), "N", "MiB of the KV pool [0: planned from free memory]"},
    {"models-mib", 0, MEMORY, SERVE, U32(models_mib, 0, 0, 1 << 24), "N",
     "most MiB for models of --models-dir that are loaded at once [0: half of what is free]"},
    {"sleep-mib", 0, MEMORY, SERVE, U32(sleep_mib, 0, 0, 1 << 24), "N",
     "MiB of host memory, pinned at the start, in which weights of models of --models-dir that left stay [0: none]"},
    {"kv-8bit", 0, MEMORY, RUNTIME, LIST(kv_8bit), "MODEL",
     "keep this model's keys and values in 8 bits, or those of `all`; may be repeated"},
    {"host-mib", 0, MEMORY, RUNTIME, U32(host_mib, 0, 0, 1 << 24), "N",
     "MiB of host memory behind the pool: what is evicted waits there [0: none]"},
    {"spill-file", 0, MEMORY, RUNTIME, TEXT(spill_file), "PATH",
     "file behind the host memory, made there and unlinked; with --spill-mib"},
    {"keep", 0, MEMORY, RUNTIME, LIST(keep), "TENANT",
     "keep that file: after a start prefixes of this tenant, and public ones, are found again; may be repeated"},
    {"keep-key", 0, MEMORY, RUNTIME, TEXT(keep_key), "FILE", "encrypt what is kept by the 64 bytes of this file"},
    {"spill-mib", 0, MEMORY, RUNTIME, U32(spill_mib, 0, 0, 1 << 26), "N", "MiB of that file [0: none]"},
    {"saved-canvases", 0, MEMORY, RUNTIME, U32(saved_canvases, 8, 1, 8192), "N",
     "preempted canvases, per model, that resume at their step"},
    {"context", 'c', MEMORY, RUNTIME, U32(context, 8192, 1, 1 << 20), "N",
     "longest prompt plus answer, in tokens, where the model allows it"},
    {"request-mib", 0, MEMORY, RUNTIME, U32(request_mib, 0, 0, 1 << 24), "N",
     "MiB of host memory for all requests, running or waiting [0: planned from --context, --running and --queue]"},
    {"no-prefix-cache", 0, MEMORY, ENGINE, FLAG(no_prefix_cache), NULL, "share no prefixes"},
    {"pin", 0, MEMORY, SERVE, LIST(pin_files), "FILE", "prefixes to keep in the pool, as JSON; may be repeated"},
    {"pins", 0, MEMORY, SERVE, U32(pins, 16, 1, 4096), "N", "prefixes that may be pinned at once"},
    {"shared-cache", 0, MEMORY, SERVE, FLAG(shared_cache), NULL, "tenants see each other's cached prefixes"},
    {"running", 0, SCHEDULING, ENGINE, U32(running, 64, 1, 8192), "N", "requests running at once"},
    {"queue", 0, SCHEDULING, ENGINE, U32(queue, 256, 1, 65536), "N", "requests waiting at most"},
    {"rows", 0, SCHEDULING, ENGINE, U32(rows, 0, 1, 65536), "N",
     "rows of one step [0: 2048 on a GPU, 4096 from --running 512 on, 8192 while nobody waits for a step and 48 GiB "
     "are left; else 512]"},
    {"target-tpot-ms", 0, SCHEDULING, ENGINE, U32(tpot_ms, 0, 0, 60000), "N",
     "most ms between two tokens of an answer; prompts and canvases fill the rest [0: no target]"},
    {"slice-ms", 0, SCHEDULING, ENGINE, U32(slice_ms, 0, 0, 60000), "N",
     "models in use take turns of N ms of the device [0: a step]"},
    {"draft", 0, SCHEDULING, RUNTIME | WEIGHTS, LIST(drafts), "HOW",
     "guess next tokens and compute them in the same step, where that gains; answers stay the same: ngram[:K] from "
     "each request's own text, model:FILE[:K] by a smaller model or a drafter of Gemma 4, mtp[:K] by the layer of the "
     "model's file that guesses ahead, canvas[:K] by the model's own diffusion, asked[:K] for requests that ask, "
     "shadow[:K] to check them, or off; MODEL=HOW for one of several models; may be repeated [off]"},
    {"no-overlap", 0, SCHEDULING, ENGINE, FLAG(no_overlap), NULL, "apply each step before planning the next"},
    {"backend", 0, DEVICE, MODELS, TEXT(backend), "cuda|cpu|ref", "what computes [the best there is]"},
    {"threads", 't', DEVICE, MODELS, U32(threads, 0, 0, 1024), "N", "threads of the cpu backend [0: all cores]"},
    {"device-mib", 0, DEVICE, RUNTIME | WEIGHTS, TEXT(device_mib), "N,N",
     "most MiB of each GPU for weights, or one number for all; experts beyond it stay in host memory [7/8 of what is "
     "free]; of cpu devices: for everything"},
    {"devices", 0, DEVICE, RUNTIME | WEIGHTS, TEXT(devices), "N,N",
     "share the layers of each model out to these devices, as 0,1 [one device]"},
    {"split", 0, DEVICE, RUNTIME | WEIGHTS, TEXT_OR(split, "auto"), "auto|layer|tensor|replicas",
     "with several devices: layers on each, each layer on all, or the model on each; tensor:N,layer:M is M parts of N; "
     "auto is what is expected to be fastest of these but for the last"},
    {"split-ratio", 0, DEVICE, RUNTIME | WEIGHTS, TEXT(split_ratio), "X,X",
     "how many layers each device gets, in relation to the others, as 7,3 [planned by work and memory]"},
    {"no-peer-access", 0, DEVICE, RUNTIME, FLAG(no_peer_access), NULL,
     "what GPUs send one another goes through host memory"},
    {"isa", 0, DEVICE, MODELS, TEXT(isa), "avx512|avx2|portable|hopper",
     "instructions of the cpu backend; kernel set of cuda: hopper or portable [the best there is]"},
    {"no-graphs", 0, DEVICE, RUNTIME, FLAG(no_graphs), NULL, "on a GPU: launch each step call by call"},
    {"no-arena", 0, DEVICE, RUNTIME, FLAG(no_arena), NULL,
     "on a GPU: weights in plain memory, not each at an aligned address"},
    {"no-deterministic", 0, DEVICE, RUNTIME | WEIGHTS, FLAG(no_deterministic), NULL,
     "on a GPU: an answer may depend on what is computed beside it"},
    {"precision", 0, DEVICE, MODELS, TEXT(precision), "auto|exact|fast",
     "products with quantised weights in 16 bits, in 8, or as the file allows [auto on a GPU, fast on cpu]"},
    {"tls-cert", 0, SERVER, SERVE, TEXT(tls_cert), "FILE",
     "speak TLS: the certificate with its chain, as PEM; with --tls-key"},
    {"tls-key", 0, SERVER, SERVE, TEXT(tls_key), "FILE", "the key of that certificate, as PEM without a password"},
    {"socket-mode", 0, SERVER, SERVE, TEXT_OR(socket_mode, "660"), "OCTAL",
     "who may connect to unix sockets (--host unix:PATH, --kv-events ipc://PATH), as for chmod"},
    {"allow-origin", 0, SERVER, SERVE, LIST(origins), "ORIGIN",
     "pages of this origin may ask, and its host be asked for; may be repeated"},
    {"no-page", 0, SERVER, SERVE, FLAG(no_page), NULL, "serve no page at /"},
    {"strict-fields", 0, SERVER, SERVE, FLAG(strict_fields), NULL,
     "refuse requests with a field that the endpoint does not know, instead of naming it in the log"},
    {"public-metrics", 0, SERVER, SERVE, FLAG(public_metrics), NULL,
     "/metrics and the load are for everybody, without a key"},
    {"kv-events", 0, SERVER, SERVE, TEXT(kv_events), "ENDPOINT",
     "tell routers what is cached, over ZeroMQ: a port of this machine, tcp://ADDRESS:PORT or ipc://PATH; one more for "
     "each further model and replica"},
    {"kv-events-replay", 0, SERVER, SERVE, TEXT(kv_events_replay), "ENDPOINT",
     "where routers ask for events that they missed, likewise"},
    {"kv-events-tokens", 0, SERVER, SERVE, LIST(kv_events_tokens), "TENANT",
     "tell the tokens of this tenant's prompts, or of `all`; may be repeated [of public prefixes alone]"},
    {"kv-events-topic", 0, SERVER, SERVE, TEXT(kv_events_topic), "TEXT",
     "topic of the events; {model} is the model's name [empty]"},
    {"kv-events-form", 0, SERVER, SERVE, TEXT(kv_events_form), "FORM",
     "for older readers: arrays in place of maps, bytes in place of numbers, or arrays,bytes [maps and numbers]"},
    {"directory", 0, SERVER, SERVE, TEXT(directory), "DIR",
     "work there once all files are open; the log goes to DIR/weft.log"},
    {"body-mib", 0, SERVER, SERVE, U32(body_mib, 8, 1, 1024), "N", "largest request body in MiB"},
    {"connections", 0, SERVER, SERVE, U32(connections, 1024, 1, 65536), "N", "connections at once"},
    {"lame-duck-seconds", 0, SERVER, SERVE, U32(lame_duck_seconds, 0, 0, 86400), "N",
     "after SIGTERM, say at /health for N s that the server drains, and answer all that still comes; then drain"},
    {"drain-seconds", 0, SERVER, SERVE, U32(drain_seconds, 20, 0, 86400), "N",
     "how long SIGTERM waits for running requests"},
    {"frames", 0, OUTPUT, TOP, U32(frames, 0, 0, 1 << 30), "N", "end after N views [0: on a terminal never, else 1]"},
    {"interval", 0, OUTPUT, TOP, F32(interval, 1, 0.05, 3600), "S", "seconds between two views"},
    {"logprobs", 0, OUTPUT, GENERATE, U32(logprobs, WEFT_RANGE_TOP_LOGPROBS), "N",
     "with --json: logprobs of N alternatives"},
    {"no-live", 0, OUTPUT, WRITES, FLAG(no_live), NULL, "no live redraw of the canvas on a terminal"},
    {"trace", 0, OUTPUT, GENERATE, TEXT(trace), "FILE", "one JSON object per denoise step"},
    {"output", 'o', OUTPUT, TRACE, TEXT(output), "FILE", "where the result goes"},
    {"json", 0, OUTPUT, ALL, FLAG(json), NULL, "print JSON"},
    {"quiet", 'q', OUTPUT, ALL, FLAG(quiet), NULL, "no progress bars; serve says one line"},
    {"verbose", 'v', OUTPUT, ALL, FLAG(verbose), NULL, "say more on standard error"},
    {"version", 0, OUTPUT, ALL, FLAG(version), NULL, "print the version"},
    {"log-level", 0, OUTPUT, ALL, TEXT(log_level), "error|warning|notice|info|debug",
     "least lines of the log [notice, with -v info]"},
    {"log-format", 0, OUTPUT, ALL, TEXT_OR(log_format, "text"), "text|json",
     "lines of standard error; as JSON, an object each"},
    {"help", 'h', OUTPUT, ALL, FLAG(help), NULL, "this text"},
};
enum { N_PRODUCT_ROWS = sizeof product_rows / sizeof *product_rows };

/* The rows of both tables as one list: the laboratory's first, so that its commands' own options lead their help. */
static const weft_option *row_at(const weft_option_table *more, uint32_t index) {
  uint32_t n_more = more == NULL ? 0 : more->n;
  if (index < n_more) return &more->row[index];
  return index - n_more < N_PRODUCT_ROWS ? &product_rows[index - n_more] : NULL;
}

static void *option_field(weft_config *config, size_t at) {
  return (char *)config + at;
}

static const weft_option *find_row(const weft_option_table *more, const char *name, size_t n, unsigned command) {
  const weft_option *o;
  for (uint32_t i = 0; (o = row_at(more, i)) != NULL; i++) {
    if ((o->commands & command) != 0 && weft_same_name(name, n, o->name)) return o;
  }
  return NULL;
}

/* The command has the row, and no row of `more` takes its place. */
static bool has_row(const weft_option_table *more, const weft_option *o, unsigned command) {
  return o == find_row(more, o->name, strlen(o->name), command);
}

/* The option of the command that the name is nearest to; NULL: none is near. */
static const char *nearest_option(const weft_option_table *more, unsigned command, const char *name, size_t n) {
  weft_nearest nearest = weft_nearest_to(name, n);
  const weft_option *o;
  for (uint32_t i = 0; (o = row_at(more, i)) != NULL; i++) {
    if (has_row(more, o, command)) weft_nearest_try(&nearest, o->name);
  }
  return nearest.best;
}

bool weft_config_is_lasting(const weft_option *o) {
  return o->at != offsetof(weft_config, help) && o->at != offsetof(weft_config, version);
}

const weft_option *weft_config_next(const weft_option_table *more, unsigned command, uint32_t *at) {
  const weft_option *o;
  while ((o = row_at(more, *at)) != NULL) {
    *at += 1;
    if (has_row(more, o, command)) return o;
  }
  return NULL;
}

static void set_default(weft_config *config, const weft_option *o) {
  if (o->kind == WEFT_OPTION_U32) *(uint32_t *)option_field(config, o->at) = (uint32_t)o->range.initial;
  if (o->kind == WEFT_OPTION_I32) *(int32_t *)option_field(config, o->at) = (int32_t)o->range.initial;
  if (o->kind == WEFT_OPTION_F32) *(float *)option_field(config, o->at) = (float)o->range.initial;
  if (o->kind == WEFT_OPTION_TEXT) *(const char **)option_field(config, o->at) = o->text;
}

/* Two commands may have rows with other defaults for one field: those of the command itself come last. */
void weft_config_defaults(weft_config *config, const weft_option_table *more, unsigned command) {
  memset(config, 0, more == NULL ? sizeof *config : more->n_bytes);
  const weft_option *o;
  for (uint32_t i = 0; (o = row_at(more, i)) != NULL; i++) set_default(config, o);
  for (uint32_t i = 0; (o = row_at(more, i)) != NULL; i++) {
    if (has_row(more, o, command)) set_default(config, o);
  }
}

void weft_config_answer(const weft_config *config, weft_generate_params *params) {
  params->sampling = config->sampling;
  params->entropy_bound = config->entropy_bound;
  params->has_seed = config->has_seed;
}

void weft_generate_defaults(weft_generate_params *params) {
  weft_config config;
  weft_config_defaults(&config, NULL, WEFT_CMD_GENERATE);
  *params = (weft_generate_params){0};
  weft_config_answer(&config, params);
}

void weft_config_fill_open(weft_open_options *options) {
  weft_config config;
  weft_config_defaults(&config, NULL, WEFT_CMD_SERVE);
  if (options->context == 0) options->context = config.context;
  if (options->running == 0) options->running = config.running;
  if (options->queue == 0) options->queue = config.queue;
  if (options->pins == 0) options->pins = config.pins;
  if (options->saved_canvases == 0) options->saved_canvases = config.saved_canvases;
}

static const weft_option *find_letter(const weft_option_table *more, char letter, unsigned command) {
  const weft_option *o;
  for (uint32_t i = 0; (o = row_at(more, i)) != NULL; i++) {
    if (o->letter == letter && (o->commands & command) != 0) return o;
  }
  return NULL;
}

static weft_status bad_value(const weft_option *o, const char *value, weft_error *error) {
  if (o->kind == WEFT_OPTION_U64)
    return weft_fail(error, WEFT_E_INVALID, "--%s: '%s' is no whole number", o->name, value);
  char allowed[WEFT_RANGE_TEXT];
  return weft_fail(error, WEFT_E_INVALID, "--%s: '%s' must be %s %s", o->name, value,
                   o->kind != WEFT_OPTION_F32 ? "a whole number" : "a number", weft_range_text(&o->range, allowed));
}

static weft_status set_value(weft_config *config, const weft_option *o, const char *value, weft_error *error) {
  char *end = NULL;
  errno = 0;
  if (o->kind == WEFT_OPTION_U32 || o->kind == WEFT_OPTION_I32 || o->kind == WEFT_OPTION_U64) {
    unsigned long long number = strtoull(value, &end, 10);
    bool whole = isdigit((unsigned char)value[0]) && *end == 0 && errno == 0;
    if (!whole) return bad_value(o, value, error);
    if (o->kind == WEFT_OPTION_U64) {
      *(uint64_t *)option_field(config, o->at) = number;
    } else if (!weft_range_has(&o->range, (double)number) && (double)number != o->range.initial) {
      return bad_value(o, value, error);
    } else if (o->kind == WEFT_OPTION_I32) {
      *(int32_t *)option_field(config, o->at) = (int32_t)number;
    } else {
      *(uint32_t *)option_field(config, o->at) = (uint32_t)number;
    }
  } else if (o->kind == WEFT_OPTION_F32) {
    const char *behind;
    double number;
    bool read = weft_range_read(value, &number, &behind) && *behind == 0;
    if (!read || !weft_range_has(&o->range, number)) return bad_value(o, value, error);
    *(float *)option_field(config, o->at) = (float)number;
  } else if (o->kind == WEFT_OPTION_TEXT) {
    *(const char **)option_field(config, o->at) = value;
  } else if (o->kind == WEFT_OPTION_LIST) {
    weft_text_list *list = option_field(config, o->at);
    if (list->source != config->source) *list = (weft_text_list){.source = config->source};
    if (list->n == WEFT_LIST_MAX) {
      return weft_fail(error, WEFT_E_INVALID, "--%s is given more than %d times", o->name, WEFT_LIST_MAX);
    }
    list->item[list->n++] = value;
  } else {
    *(bool *)option_field(config, o->at) = true;
  }
  if (o->given != 0) *(bool *)option_field(config, o->given) = true;
  return WEFT_OK;
}

static weft_status set_flag_text(weft_config *config, const weft_option *o, const char *value, weft_error *error) {
  if (o->kind != WEFT_OPTION_FLAG) return set_value(config, o, value, error);
  bool yes = strcmp(value, "1") == 0 || strcmp(value, "true") == 0 || strcmp(value, "on") == 0;
  bool no = strcmp(value, "0") == 0 || strcmp(value, "false") == 0 || strcmp(value, "off") == 0;
  if (!yes && !no) return weft_fail(error, WEFT_E_INVALID, "%s: '%s' must be on or off", o->name, value);
  *(bool *)option_field(config, o->at) = yes;
  return WEFT_OK;
}

static char *trim_text(char *text) {
  while (isspace((unsigned char)*text)) text++;
  size_t n = strlen(text);
  while (n > 0 && isspace((unsigned char)text[n - 1])) text[--n] = 0;
  return text;
}

static weft_status own_text(weft_config *config, const char *value, char **out, weft_error *error) {
  if (config->n_owned == sizeof config->owned / sizeof *config->owned)
    return weft_fail(error, WEFT_E_TOO_LARGE, "too many texts");
  *out = weft_strdup(value);
  if (*out == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the options");
  config->owned[config->n_owned++] = *out;
  return WEFT_OK;
}

/* a,b,c */
static weft_status set_list(weft_config *config, const weft_option *o, const char *value, weft_error *error) {
  char *text, *save = NULL;
  weft_status status = own_text(config, value, &text, error);
  for (char *item = status == WEFT_OK ? strtok_r(text, ",", &save) : NULL; item != NULL && status == WEFT_OK;
       item = strtok_r(NULL, ",", &save)) {
    status = set_value(config, o, trim_text(item), error);
  }
  return status;
}

/* The value that the environment has for the option; NULL: none. name: [64], the variable. */
static const char *from_environment(const weft_option *o, char *name) {
  int n = snprintf(name, 64, "WEFT_%s", o->name);
  for (int k = 0; k < n && k < 63; k++) name[k] = name[k] == '-' ? '_' : (char)toupper((unsigned char)name[k]);
  return getenv(name);
}

static weft_status check_retired_environment(weft_error *error) {
  weft_option old = {.name = NULL};
  for (size_t i = 0; (old.name = weft_option_retired_at(i)) != NULL; i++) {
    char name[64];
    if (from_environment(&old, name) != NULL)
      return weft_fail(error, WEFT_E_INVALID, "%s of the environment: say %s", name,
                       weft_option_retired(old.name, strlen(old.name)));
  }
  return WEFT_OK;
}

static weft_status parse_environment(weft_config *config, const weft_option_table *more, unsigned command,
                                     weft_error *error) {
  const weft_option *o;
  config->source = WEFT_FROM_ENVIRONMENT;
  weft_status retired = check_retired_environment(error);
  if (retired != WEFT_OK) return retired;
  for (uint32_t i = 0; (o = row_at(more, i)) != NULL; i++) {
    char name[64];
    weft_error why = {{0}};
    if (!has_row(more, o, command) || !weft_config_is_lasting(o)) continue;
    const char *value = from_environment(o, name);
    if (value == NULL) continue;
    weft_status status =
        o->kind == WEFT_OPTION_LIST ? set_list(config, o, value, &why) : set_flag_text(config, o, value, &why);
    if (status != WEFT_OK) return weft_fail(error, status, "%s of the environment: %s", name, why.text);
  }
  return WEFT_OK;
}

static weft_status parse_line(weft_config *config, char *line, const char *path, uint32_t number, weft_error *error) {
  line = trim_text(line);
  if (*line == 0 || *line == '#') return WEFT_OK;
  char *equals = strchr(line, '=');
  if (equals == NULL) return weft_fail(error, WEFT_E_FORMAT, "%s:%u: a line is `name = value`", path, number);
  *equals = 0;
  char *name = trim_text(line), *value = trim_text(equals + 1);
  const weft_option *o = find_row(NULL, name, strlen(name), WEFT_CMD_SERVE);
  if (o == NULL) {
    char where[160];
    (void)snprintf(where, sizeof where, "%.140s:%u: ", path, number);
    return weft_option_unknown(nearest_option(NULL, WEFT_CMD_SERVE, name, strlen(name)), where, name, name,
                               strlen(name), error);
  }
  if (o->kind == WEFT_OPTION_TEXT || o->kind == WEFT_OPTION_LIST) { /* these keep a pointer */
    weft_status status = own_text(config, value, &value, error);
    if (status != WEFT_OK) return status;
  }
  weft_error why = {{0}};
  weft_status status = set_flag_text(config, o, value, &why);
  return status == WEFT_OK ? WEFT_OK : weft_fail(error, status, "%s:%u: %s", path, number, why.text);
}

static weft_status parse_file(weft_config *config, const char *path, weft_error *error) {
  FILE *file = fopen(path, "r");
  if (file == NULL) return weft_fail(error, WEFT_E_IO, "--config %s: %s", path, strerror(errno));
  config->source = WEFT_FROM_FILE;
  char line[4096];
  weft_status status = WEFT_OK;
  for (uint32_t number = 1; status == WEFT_OK && fgets(line, sizeof line, file) != NULL; number++) {
    size_t mark = number == 1 ? weft_utf8_mark(line, strlen(line)) : 0;
    status = parse_line(config, line + mark, path, number, error);
  }
  (void)fclose(file); /* only read */
  return status;
}

static weft_status parse_argument(weft_config *config, const weft_option_table *more, unsigned command, int argc,
                                  char **argv, int *at, weft_error *error) {
  const char *word = argv[*at];
  if (word[0] != '-' || word[1] == 0) {
    if (config->words.n == WEFT_LIST_MAX) return weft_fail(error, WEFT_E_INVALID, "too many words after '%s'", word);
    config->words.item[config->words.n++] = word;
    return WEFT_OK;
  }
  const weft_option *o = NULL;
  const char *value = NULL, *servers;
  if (word[1] == '-') {
    const char *equals = strchr(word, '=');
    size_t n = equals == NULL ? strlen(word + 2) : (size_t)(equals - word - 2);
    o = find_row(more, word + 2, n, command);
    if (equals != NULL) value = equals + 1;
    if (o == NULL) return weft_option_unknown(nearest_option(more, command, word + 2, n), "", word, word + 2, n, error);
  } else if (strcmp(word, "-hf") == 0) { /* as others write it */
    o = find_row(more, "hf", strlen("hf"), command);
  } else if (weft_option_foreign_short(word, &servers) == NULL) {
    o = find_letter(more, word[1], command);
    if (word[2] != 0) value = word + 2;
    if (value != NULL && o != NULL && o->kind == WEFT_OPTION_FLAG) o = NULL; /* the letter of a flag stands alone */
  }
  if (o == NULL)
    return weft_option_unknown(nearest_option(more, command, word + 1, strlen(word + 1)), "", word, word + 1,
                               strlen(word + 1), error);
  if (o->kind == WEFT_OPTION_FLAG) {
    return value == NULL ? set_value(config, o, "", error) : set_flag_text(config, o, value, error);
  }
  if (value == NULL) {
    if (*at + 1 >= argc) return weft_fail(error, WEFT_E_INVALID, "%s needs a value: %s", word, o->argument);
    value = argv[++*at];
  }
  return set_value(config, o, value, error);
}

static weft_status parse_arguments(weft_config *config, const weft_option_table *more, unsigned command, int argc,
                                   char **argv, weft_error *error) {
  weft_status status = WEFT_OK;
  for (int i = 0; i < argc && status == WEFT_OK; i++) {
    status = parse_argument(config, more, command, argc, argv, &i, error);
  }
  return status;
}

/* The file at a place where nobody named one; WEFT_E_NOT_FOUND: there is none. */
static weft_status parse_file_at(weft_config *config, weft_text *path, weft_error *error) {
  char *kept;
  if (weft_text_status(path) != WEFT_OK) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the options");
  if (access(path->bytes, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR)) return WEFT_E_NOT_FOUND;
  weft_status status = own_text(config, path->bytes, &kept, error);
  if (status == WEFT_OK) status = parse_file(config, kept, error);
  if (status == WEFT_OK) config->config_read = kept;
  return status;
}

/* The user's own file, or else the machine's. */
static weft_status parse_default_file(weft_config *config, weft_error *error) {
  const char *folder = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
  bool named = folder != NULL && folder[0] == '/'; /* a relative one is to be passed over, says its standard */
  weft_text path = {0};
  weft_status status = WEFT_E_NOT_FOUND;
  if (named) weft_text_printf(&path, "%s/weft/weft.conf", folder);
  if (!named && home != NULL && home[0] == '/') weft_text_printf(&path, "%s/.config/weft/weft.conf", home);
  if (path.n > 0) status = parse_file_at(config, &path, error);
  weft_text_clear(&path);
  weft_text_puts(&path, WEFT_CONFIG_OF_MACHINE);
  if (status == WEFT_E_NOT_FOUND) status = parse_file_at(config, &path, error);
  weft_text_free(&path);
  return status == WEFT_E_NOT_FOUND ? WEFT_OK : status;
}

/* The command line is read once before the file, for the file's name and so that a wrong flag is told first. */
static weft_status parse_config_file(weft_config *config, int argc, char **argv, weft_error *error) {
  weft_config flags;
  char name[64];
  const weft_option *o = find_row(NULL, "config", strlen("config"), WEFT_CMD_SERVE);
  weft_config_defaults(&flags, NULL, WEFT_CMD_SERVE);
  flags.source = WEFT_FROM_COMMAND_LINE;
  weft_status status = parse_arguments(&flags, NULL, WEFT_CMD_SERVE, argc, argv, error);
  if (status != WEFT_OK || flags.help || flags.version) return status;
  const char *path = flags.config_file != NULL ? flags.config_file : from_environment(o, name);
  return path != NULL ? parse_file(config, path, error) : parse_default_file(config, error);
}

char *weft_config_state_file(const char *name) {
  const char *folder = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
  weft_text path = {0};
  if (folder != NULL && folder[0] == '/') {
    weft_text_printf(&path, "%s/weft/%s", folder, name);
  } else if (home != NULL && home[0] == '/') {
    weft_text_printf(&path, "%s/.local/state/weft/%s", home, name);
  }
  if (weft_text_status(&path) == WEFT_OK) return path.bytes; /* NULL where there is no place */
  weft_text_free(&path);
  return NULL;
}

/* What another name of the environment means for what is drawn. */
static void read_terminal(weft_config *config) {
  const char *no_colour = getenv("NO_COLOR"), *terminal = getenv("TERM");
  config->terminal_is_dumb = terminal == NULL || strcmp(terminal, "dumb") == 0;
  config->no_colour = config->terminal_is_dumb || (no_colour != NULL && no_colour[0] != 0);
}

/* The variable is WEFT_ and the name of an option; those of ./dev and the tests begin with DEV_. */
static bool names_option(const weft_option_table *more, const char *name, size_t n) {
  char plain[64];
  if (n >= sizeof plain) return false;
  for (size_t i = 0; i < n; i++) plain[i] = (char)tolower((unsigned char)name[i]);
  return find_row(more, plain, n, UINT32_MAX) != NULL;
}

bool weft_config_stranger(const weft_option_table *more, uint32_t *at, char *line, size_t n_line) {
  static const char prefix[] = "WEFT_";
  for (; environ != NULL && environ[*at] != NULL; (*at)++) {
    const char *variable = environ[*at], *name = variable + sizeof prefix - 1;
    if (strncmp(variable, prefix, sizeof prefix - 1) != 0) continue;
    size_t n = strcspn(name, "=");
    if (names_option(more, name, n)) continue;
    weft_nearest nearest = weft_nearest_to(name, n);
    const weft_option *o;
    for (uint32_t i = 0; (o = row_at(more, i)) != NULL; i++) weft_nearest_try(&nearest, o->name);
    int n_said = snprintf(line, n_line, "warning: WEFT_%.*s of the environment is the name of no option%s",
                          n < 64 ? (int)n : 64, name, nearest.best == NULL ? "" : ": did you mean WEFT_");
    if (nearest.best != NULL && n_said > 0 && (size_t)n_said < n_line) {
      (void)snprintf(line + n_said, n_line - (size_t)n_said, "%s?", nearest.best); /* a cut line is still one */
      for (char *c = line + n_said; *c != 0; c++) *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
    }
    *at += 1;
    return true;
  }
  return false;
}

static weft_status check_log(const weft_config *config, weft_error *error) {
  weft_log_level level;
  weft_log_form form;
  if (!weft_log_form_of(config->log_format, &form))
    return weft_fail(error, WEFT_E_INVALID, "--log-format: '%.64s' must be text or json", config->log_format);
  if (config->log_level == NULL || weft_log_level_of(config->log_level, &level)) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID, "--log-level: '%.64s' must be error, warning, notice, info or debug",
                   config->log_level);
}

weft_log_settings weft_config_log(const weft_config *config) {
  weft_log_settings log = {config->verbose ? WEFT_LOG_INFO : WEFT_LOG_NOTICE, WEFT_LOG_TEXT};
  (void)weft_log_form_of(config->log_format, &log.form);
  if (config->log_level != NULL) (void)weft_log_level_of(config->log_level, &log.level);
  return log;
}

weft_status weft_config_parse(weft_config *config, const weft_option_table *more, unsigned command, int argc,
                              char **argv, weft_error *error) {
  weft_config_defaults(config, more, command);
  weft_status status = WEFT_OK;
  if (command == WEFT_CMD_SERVE) status = parse_config_file(config, argc, argv, error);
  if (status == WEFT_OK) status = parse_environment(config, more, command, error);
  config->source = WEFT_FROM_COMMAND_LINE;
  if (status == WEFT_OK) status = parse_arguments(config, more, command, argc, argv, error);
  read_terminal(config);
  uint32_t bits;
  if (status == WEFT_OK) status = check_log(config, error);
  return status == WEFT_OK ? devices_precision(config->precision, &bits, error) : status;
}

/* A file, or the name of one that should be there. */
static bool is_model_word(const char *word) {
  static const char suffix[] = ".gguf";
  size_t n = strlen(word);
  struct stat about;
  return (n >= sizeof suffix && strcmp(word + n - (sizeof suffix - 1), suffix) == 0) ||
         (stat(word, &about) == 0 && S_ISREG(about.st_mode));
}

weft_status weft_config_take_models(weft_config *config, weft_error *error) {
  const weft_option *model = find_row(NULL, "model", strlen("model"), WEFT_CMD_SERVE);
  weft_status status = WEFT_OK;
  uint32_t n_left = 0;
  for (uint32_t i = 0; i < config->words.n && status == WEFT_OK; i++) {
    const char *word = config->words.item[i];
    if (is_model_word(word)) {
      status = set_value(config, model, word, error);
    } else {
      config->words.item[n_left++] = word;
    }
  }
  config->words.n = n_left;
  return status;
}

weft_status weft_config_add_model(weft_config *config, const char *path, weft_error *error) {
  char *kept;
  if (config->models.n == WEFT_LIST_MAX) return weft_fail(error, WEFT_E_INVALID, "more than %d models", WEFT_LIST_MAX);
  weft_status status = own_text(config, path, &kept, error);
  if (status == WEFT_OK) config->models.item[config->models.n++] = kept;
  return status;
}

char *weft_config_cache_folder(void) {
  const char *folder = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  weft_text path = {0};
  if (folder != NULL && folder[0] == '/') {
    weft_text_printf(&path, "%s/weft/models", folder);
  } else if (home != NULL && home[0] == '/') {
    weft_text_printf(&path, "%s/.cache/weft/models", home);
  }
  if (weft_text_status(&path) == WEFT_OK) return path.bytes; /* NULL where there is no place */
  weft_text_free(&path);
  return NULL;
}

char *weft_config_hub_token(void) {
  const char *token = getenv("HF_TOKEN");
  return token == NULL || token[0] == 0 ? NULL : weft_strdup(token);
}

void weft_config_free(weft_config *config) {
  for (uint32_t i = 0; i < config->n_owned; i++) weft_free(config->owned[i]);
  config->n_owned = 0;
}
