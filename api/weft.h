/* SPDX-License-Identifier: MIT */
/* weft serves language models, autoregressive and text-diffusion ones, to many tenants, over one paged pool of KV
 * memory and one loop of continuous batching.
 *
 *   weft_runtime *runtime;  weft_open loads GGUF files, plans memory and starts the engine thread
 *   weft_generation *g;     weft_submit makes one; weft_next gives its answer until WEFT_DELTA_END; then free it
 *
 * Law. Every string passed in is UTF-8, and weft copies it. Every function may be called by any thread, but one
 * generation is read by one thread at a time. No function exits the process. A generation gives exactly one
 * WEFT_DELTA_END. Functions that can fail return 0 for success; when they fail they write one line to error (n_error
 * bytes; may be NULL) and return a status: negative, or 3 or 5 where the same call may succeed later. */
#ifndef WEFT_H
#define WEFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/asked.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_API __attribute__((visibility("default")))

typedef struct weft_runtime weft_runtime;

/* One tenant. Zero-initialise; every zero means the default in brackets. */
typedef struct weft_tenant_options {
  const char *name;           /* [its number] name in metrics; "": a place, kept for a tenant that comes later */
  uint32_t weight;            /* [1] its share of the device against other tenants, at most 1000 */
  int32_t priority_class;     /* [normal] whose requests start first: -1 low, 0 normal, 1 high */
  uint32_t running, queued;   /* [no limit] requests running at once, and waiting beyond them */
  uint32_t tokens_per_minute; /* [no limit] prompt tokens computed and answer tokens */
  uint32_t blocks;            /* [no limit] pages of the pool that its requests hold at once */
} weft_tenant_options;

/* Zero-initialise; every zero means the default in brackets. [serve]: as `weft serve --help` says of this name. */
typedef struct weft_open_options {
  const char *const *models; /* paths of GGUF files; split models by their first part */
  uint32_t n_models;
  const char *models_dir, *models_preset; /* [none] folder of such files, and llama-server's presets: loaded on call */
  uint64_t models_bytes;                  /* [half of what is free] memory for those that are loaded at once */
  uint64_t sleep_bytes, keep_alive_us;    /* [none, for ever] --sleep-mib; how long they stay after their last use */
  const char *const *load_tenants; /* [n_load_tenants] names of tenants whose requests may have one loaded [all] */
  uint32_t n_load_tenants;
  const char *backend, *isa; /* [best] "ref", "cpu", "cuda"; instructions of cpu: "portable", "avx2", "avx512" */
  uint32_t threads;          /* [all cores] threads of the cpu backend */
  uint64_t kv_bytes;   /* [a quarter of free memory, at most 4 GiB; on a GPU 85 % of what is left] size of the pool */
  uint64_t host_bytes; /* [none] host memory behind the pool: takes evicted blocks and gives them back */
  const char *spill_file;  /* [none] path of a file behind the host memory; must not exist; created, unlinked at once */
  uint64_t spill_bytes;    /* [none] size of that file */
  const char *const *keep; /* [n_keep] tenants whose prefixes the file keeps for the next start; it is not unlinked */
  uint32_t n_keep;
  const char *keep_key;    /* [none] path of a key: kept prefixes are encrypted */
  uint32_t saved_canvases; /* [serve] preempted canvases, per model, that resume at their step; others start again */
  uint32_t context;        /* [serve, or the model's if that is less] longest prompt + answer */
  uint32_t running, queue; /* [serve] most requests running at once, and most waiting */
  uint64_t request_bytes;  /* [planned from context, running and queue] host memory of all requests */
  uint32_t rows;           /* [0: as --rows] most rows of a step; a canvas fits */
  uint32_t tenants;        /* [1] number of tenants, at most 255 */
  const weft_tenant_options *tenant; /* [tenants], or NULL: all default */
  bool shared_cache;          /* one prefix cache for all tenants; each can then tell by times what others have asked */
  const char *const *kv_8bit; /* [n_kv_8bit] names of models whose keys and values are kept in 8 bits; "all" */
  uint32_t n_kv_8bit;
  const char *const *drafts; /* [n_drafts] "off", "ngram", "ngram:K", "asked", or MODEL= and one of them (--draft) */
  uint32_t n_drafts;
  const char *const *served_names; /* [n_served_names] NAME, or MODEL=NAME, for clients; further names are aliases */
  uint32_t n_served_names;
  const char *const *chat_templates; /* [n_chat_templates] FILE or MODEL=FILE: used in place of the model file's own */
  uint32_t n_chat_templates;
  const weft_sampling *sampling;           /* [the model's] temperature, top_k and top_p of requests that name none */
  const weft_entropy_bound *entropy_bound; /* [the model's] the same, of canvases */
  const uint64_t *seed;    /* [a fresh one each] requests that name none get the next of a row that begins with it */
  bool unused_tensors;     /* open a file although tensors of its layers are not used: answers may be wrong */
  uint32_t pins;           /* [serve] prefixes that weft_pin may keep */
  uint32_t target_tpot_ms; /* [none] target for the time between tokens; prompts and canvases get what is left */
  uint32_t slice_ms;       /* [a step] device time after which another model with requests gets its turn */
  bool no_prefix_cache, no_overlap;         /* share no prefixes; apply each step before planning the next */
  bool no_graphs, no_arena, no_peer_access; /* on a GPU: no CUDA graphs; no aligned weights; send through the host */
  bool no_deterministic; /* on a GPU: sums are split as suits the step, so an answer may depend on its batch */
  const char
      *precision; /* [auto] products with quantised weights: exact, in 16 bits, fast, in 8, or auto, by the types and
                            norms of the files (docs/quality.md); cpu has those of 8 alone */
  const char *devices, *device_mib; /* ["0"] layers are shared out to these, as "0,1"; [7/8] MiB of each for weights */
  const char *split, *split_ratio;  /* ["auto"] layer, tensor, replicas, "tensor:N,layer:M"; layers of each, as "7,3" */
  bool prefix_feed;                 /* what is cached can be told to routers (weft serve --kv-events) */
  bool quiet, else_anew;            /* no progress bars on stderr; make anew what was made otherwise */
  const char *weights; /* [none] socket of a process that owns the weights (`weft weights`): they are mapped */
} weft_open_options;

/* Loads the models, plans the memory and starts the engine thread; the caller owns *out until weft_close. */
WEFT_API int weft_open(const weft_open_options *options, weft_runtime **out, char *error, size_t n_error);
/* Ends the engine thread and frees everything. All generations must have been freed before. NULL is fine. */
WEFT_API void weft_close(weft_runtime *runtime);
/* Refuses new requests from now on and lets the others go on to their end; weft_idle says when none is left. */
WEFT_API void weft_drain(weft_runtime *runtime);
WEFT_API bool weft_idle(const weft_runtime *runtime);

/* A request and its mode: base/asked.h. */
WEFT_API void weft_generate_defaults(weft_generate_params *params);

typedef enum weft_delta_kind {
  WEFT_DELTA_TEXT = 1,   /* more of the answer */
  WEFT_DELTA_CANVAS = 2, /* the whole current canvas after a denoise step */
  WEFT_DELTA_END = 3,
  WEFT_DELTA_PROMPT = 4 /* a part of the prompt, which weft_prompt_part alone gives */
} weft_delta_kind;

typedef struct weft_token_logprob {
  int32_t token;
  float logprob;
  const char *bytes; /* the token's text; valid as long as the delta */
  size_t n_bytes;
  uint32_t rank; /* PROMPT: among all tokens, from 1; 0: lower than WEFT_TOP_LOGPROBS_MAX, or not known */
} weft_token_logprob;

typedef struct weft_usage_counts {
  uint32_t prompt_tokens, cached_tokens, completion_tokens;
  uint32_t canvases, denoise_steps, preemptions;
  uint32_t drafted, accepted; /* drafts that were computed; those that are tokens of the answer */
  uint64_t queue_us, first_token_us, total_us, denoising_us; /* from submit to start, first token, end, denoise step */
  uint32_t draft_runs; /* steps with drafts; what they waited, took on the device, to take in, of that to take back: */
  uint64_t draft_us, verify_us, commit_us, rollback_us;
} weft_usage_counts;

/* Valid until the next call of weft_next on the same generation. */
typedef struct weft_delta {
  weft_delta_kind kind;
  /* TEXT: what was added to the answer; CANVAS: the whole canvas. n_text bytes of valid UTF-8, without a zero at the
   * end. */
  const char *text;
  size_t n_text;
  bool thinking;         /* TEXT: the text is thinking, not answer */
  const int32_t *tokens; /* TEXT: tokens that became final with this delta; CANVAS: the argmax canvas */
  uint32_t n_tokens;
  const weft_token_logprob *logprobs;     /* TEXT, PROMPT: [n_tokens]; END: [1], that of the stop token; or NULL */
  const weft_token_logprob *top_logprobs; /* [top_stride] for each entry of logprobs, the most likely token first */
  const uint32_t *n_top;   /* for each entry of logprobs, how many of its top_stride there are: a format leaves fewer */
  uint32_t top_stride;     /* as many as the request asked for */
  const uint32_t *text_at; /* with logprobs or echo: characters of the text before each token, [n_tokens]; END: [1] */
  uint32_t block, step;    /* CANVAS */
  bool stopped;
  uint32_t accepted;
  float step_temperature, mean_entropy;
  const int32_t *canvas_in, *drawn, *canvas_out; /* CANVAS with trace: [n_tokens] */
  const float *entropy;
  const uint8_t *accepted_mask;
  const char *finish;  /* END: "stop", "length", "cancelled", "deadline", "error", "evicted" (see weft_submit) */
  const char *stop;    /* END with "stop": the stop string that ended the answer, valid until free; NULL: none did */
  int32_t stop_token;  /* END with "stop": the token of stop_tokens that ended the answer; -1: none did */
  const char *error;   /* END with "error": one line */
  uint32_t retry_ms;   /* END with "evicted": the estimated milliseconds after which to submit again */
  double mean_logprob; /* END with score: the mean over the tokens of the answer; -INFINITY without tokens */
  weft_usage_counts usage; /* END */
} weft_delta;

/* Submits one request; the caller owns *out until weft_generation_free. Negative: it can never be served, for example
 * because a parameter is invalid or the prompt too long. 3: the queue or the memory of requests is full for now, or the
 * tenant's limit on waiting requests is reached. 5: the tenant has used its tokens of this minute, or the compiling of
 * formats that it may cause in one. 6: stop_submit said so. A generation that has not started ends with "evicted",
 * which means the same as 3, when the queue is full and a tenant with fewer requests there for its weight needs it. */
WEFT_API int weft_submit(weft_runtime *runtime, const weft_generate_params *params, weft_generation **out, char *error,
                         size_t n_error);
/* n_choices answers to each of n_prompts prompts, all of them or none: out[p * n_choices + k] is answer k to the prompt
 * of params[p]. The prompt is computed once for all of its answers, whose sampling.choice counts up from that of
 * params[p]. There are at most WEFT_ANSWERS_MAX answers, all of one tenant. When so many can never be taken at once
 * (the tenant's limits, the queue, tokens per minute) the line says how many can. On failure out holds NULL. */
enum { WEFT_ANSWERS_MAX = 128 };
WEFT_API int weft_submit_all(weft_runtime *runtime, const weft_generate_params *params, uint32_t n_prompts,
                             uint32_t n_choices, weft_generation **out, char *error, size_t n_error);
/* Waits at most timeout_ms (0: not at all) for the next delta. Returns 0 and fills *out, or 1 when there was none in
 * that time. Where memory runs out while text is made, the generation ends with "error". */
WEFT_API int weft_next(weft_generation *generation, uint32_t timeout_ms, weft_delta *out);
/* ready is called on the engine thread when weft_next may have a delta, and once by this call; it must not block. */
WEFT_API void weft_on_ready(weft_generation *generation, void (*ready)(void *self), void *self);
WEFT_API weft_mode weft_answer_mode(const weft_generation *generation); /* how it is written; never AUTO */
/* The tokens of the prompt, borrowed until the generation is freed; returns how many. */
WEFT_API uint32_t weft_prompt_tokens(const weft_generation *generation, const int32_t **tokens);
/* Gives a part of the prompt from token `first` on, at most 256 tokens, with what echo and prompt_logprobs ask for (the
 * first logprob is NAN). No tokens: there are no more, or the generation has ended. Returns 0, or 1 while the logprobs
 * are not computed yet; they are before weft_next gives a delta. Of a generation with a sibling, ask the sibling. */
WEFT_API int weft_prompt_part(weft_generation *generation, uint32_t first, weft_delta *out);
WEFT_API void weft_cancel(weft_generation *generation);
WEFT_API void weft_generation_free(weft_generation *generation); /* cancels if still running; NULL is fine */

typedef struct weft_model_card {
  const char *name, *arch, *path;
  const char *const *aliases; /* [n_aliases] further names that clients may use */
  uint32_t n_aliases;
  int64_t created;                      /* when the model file was written, in seconds since 1970 */
  uint32_t context, vocabulary, canvas; /* tokens; canvas 0: autoregressive only */
  bool autoregressive, diffusion, chat;
  uint64_t weight_bytes;
  const char *state; /* now: "absent", "loading", "ready", "leaving" or "sleeping"; always "ready" but of models_dir */
} weft_model_card;
WEFT_API uint32_t weft_n_models(const weft_runtime *runtime);
WEFT_API weft_model_card weft_model_at(const weft_runtime *runtime, uint32_t index);
/* Loads a model of models_dir, or has it leave the memory once its requests that run have ended, and waits until that
 * is done. Those that wait for it, and come, have it loaded again. Loading may make others leave that are not in use.
 * Errors: NOT_FOUND, INVALID (it is not of models_dir and stays), TOO_LARGE (it never fits models_bytes), and those of
 * weft_open. */
WEFT_API int weft_load_model(weft_runtime *runtime, const char *model, char *error, size_t n_error);
WEFT_API int weft_unload_model(weft_runtime *runtime, const char *model, char *error, size_t n_error);

/* A prefix of prompts that is kept in the pool, so that requests which begin with it need not compute it. These calls
 * are for the operator; no client should reach them. Pinned are those tokens of the prompt that stay the same whatever
 * text follows the prompt, cut to whole blocks. */
typedef struct weft_prefix {
  const char *model;    /* NULL: the first */
  uint32_t tenant;      /* the tenant whose requests find it; of a public prefix, the tenant that computes it */
  bool is_public;       /* requests of all tenants that begin with it share it */
  weft_prompt prompt;   /* of a conversation, the first turns */
  uint32_t ttl_seconds; /* 0: until weft_unpin */
  int32_t priority;     /* requests of tenants whose class (-1, 0, 1) is above it may take its memory */
} weft_prefix;

typedef struct weft_pin_card {
  uint32_t id;
  const char *model;
  uint32_t tenant;
  bool is_public, held; /* held: it is in the pool now */
  int32_t priority;
  uint32_t tokens, pages, ttl_seconds; /* ttl_seconds: the seconds that are left; 0: no limit */
} weft_pin_card;

/* Declares a pin and submits a request that computes its blocks. Errors: invalid parameters; -8 when the prefix is too
 * long or would leave too little of the pool for requests; 3 when there are too many pins or the queue is full. */
WEFT_API int weft_pin(weft_runtime *runtime, const weft_prefix *prefix, uint32_t *id, char *error, size_t n_error);
WEFT_API int weft_unpin(weft_runtime *runtime, uint32_t id); /* negative: there is no such pin */
WEFT_API uint32_t weft_pins(weft_runtime *runtime, weft_pin_card *out, uint32_t max); /* in order; returns how many */
/* Drops the prefix cache before the next step; running requests keep their blocks. Pins stay declared, and their blocks
 * are kept again once a request has computed them. */
WEFT_API void weft_reset_prefix_cache(weft_runtime *runtime);
typedef struct weft_kept_counts {
  uint64_t blocks, bytes; /* that the files hold now; blocks of layer groups */
} weft_kept_counts;
/* Sends what is cached of the tenants of `keep` down to the file, and writes which prefixes it has, so that the next
 * weft_open finds them, however this process ends. weft_close does it, too. name: writes a copy FILE.name as well, in
 * the same form; NULL: none. load brings what such a copy has into the file of a server of the same models and
 * numerics, and counts what it took. counts may be NULL. Both return when it is done, while requests go on. */
WEFT_API int weft_prefixes_save(weft_runtime *runtime, const char *name, weft_kept_counts *counts, char *error,
                                size_t n_error);
WEFT_API int weft_prefixes_load(weft_runtime *runtime, const char *name, weft_kept_counts *counts, char *error,
                                size_t n_error);

/* Text to tokens and tokens to text, by the tokenizer of model (NULL: the first). The caller frees *tokens or *text
 * with weft_release. */
WEFT_API int weft_tokenize(weft_runtime *runtime, const char *model, const char *text, size_t n_text, bool add_special,
                           bool parse_special, int32_t **tokens, uint32_t *n_tokens, char *error, size_t n_error);
WEFT_API int weft_detokenize(weft_runtime *runtime, const char *model, const int32_t *tokens, uint32_t n_tokens,
                             bool with_special, char **text, size_t *n_text, char *error, size_t n_error);
WEFT_API void weft_release(void *memory);

/* Weights of models that a process `weft weights` owns, from its manifest: ranges of pieces of memory. One thread at a
 * time may call. A mapping stays until close, whatever becomes of the owner. Strings are the weights' until close. */
typedef struct weft_weights weft_weights;
typedef struct weft_weights_range {
  const char *name;             /* of the tensor */
  uint32_t uses, type, layout;  /* products 1, experts 2, rows that are looked up 4; as GGUF; packed */
  uint32_t n_in, n_out, n_mats; /* shape: matrices of n_out rows of n_in elements */
  uint32_t piece, device;       /* device: where the piece lies, its place in the owner's list */
  uint64_t at, n_bytes;         /* in the piece */
} weft_weights_range;
/* Imports the manifest beside the socket, and checks it against its owner's word. */
WEFT_API int weft_weights_open(const char *socket, weft_weights **out, char *error, size_t n_error);
WEFT_API void weft_weights_close(weft_weights *weights); /* unmaps all; NULL is fine */
WEFT_API uint32_t weft_weights_models(const weft_weights *weights);
WEFT_API const char *weft_weights_model(const weft_weights *weights,
                                        uint32_t model); /* its file; NULL: there is none */
WEFT_API uint32_t weft_weights_count(const weft_weights *weights, uint32_t model);
/* A range by its number, or by the tensor's name; negative: there is none. Two models never share what is found. */
WEFT_API int weft_weights_at(const weft_weights *weights, uint32_t model, uint32_t index, weft_weights_range *out);
WEFT_API int weft_weights_find(const weft_weights *weights, uint32_t model, const char *name, weft_weights_range *out);
/* The bytes of a range, for reading alone; of weights on a card there is none: import the piece's descriptor there
 * (weft_weights_descriptor), which is the caller's. Pieces of an owner with --transport ipc have neither. */
WEFT_API int weft_weights_map(weft_weights *weights, const weft_weights_range *range, const void **data, char *error,
                              size_t n_error);
WEFT_API int weft_weights_descriptor(weft_weights *weights, uint32_t piece, int *fd, char *error, size_t n_error);
WEFT_API bool weft_weights_alive(weft_weights *weights); /* whether the owner still lives */
/* What the owner loaded and was asked, as one JSON object; the caller frees it with weft_release. */
WEFT_API int weft_weights_counts(weft_weights *weights, char **json, char *error, size_t n_error);

/* All counters as Prometheus text (docs/operations.md explains the names), and as one JSON object. The caller frees the
 * text with weft_release; NULL: no memory. */
WEFT_API char *weft_metrics(weft_runtime *runtime);
WEFT_API char *weft_stats_json(weft_runtime *runtime);
/* The newest n_steps steps (0: all that are kept, 2048 at most) and the newest 1024 requests that ended, as Chrome
 * trace JSON. The caller frees the text with weft_release; NULL: no memory. */
WEFT_API char *weft_trace(weft_runtime *runtime, uint32_t n_steps);
/* NULL while each model has a replica that can answer; else, until weft_close, a line: a device failed, weights went. */
WEFT_API const char *weft_unwell(const weft_runtime *runtime);
WEFT_API const char *weft_plan(const weft_runtime *runtime); /* of memory, as text; valid until weft_close */
WEFT_API const char *weft_version(void);

#ifdef __cplusplus
}
#endif
#endif
