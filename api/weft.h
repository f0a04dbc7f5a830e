/* SPDX-License-Identifier: MIT */
/* weft: many tenants and models, autoregressive and text-diffusion, over one paged pool of KV memory and one loop.
 *
 *   weft_runtime *runtime;  open: load GGUF files, plan memory, start the engine thread
 *   weft_generation *g;     submit: one request; then next, next, ... until WEFT_DELTA_END; then free
 *
 * Law. Every string passed in is UTF-8 and copied. Every call may come from any thread; one generation is read by one
 * thread at a time. No call exits the process. A generation gets exactly one WEFT_DELTA_END, whatever happens.
 * Functions that fail write one line to error (n_error bytes; may be NULL) and return the status: negative, or 3 where
 * the same call may succeed later. */
#ifndef WEFT_H
#define WEFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/prompt.h"
#include "base/sampling.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_API __attribute__((visibility("default")))

typedef struct weft_runtime weft_runtime;
typedef struct weft_generation weft_generation;

/* One tenant. Zero-initialise; every zero means the default in brackets. */
typedef struct weft_tenant_options {
  const char *name;           /* [its number] in metrics */
  uint32_t weight;            /* [1] share of the device against other tenants, at most 1000 */
  int32_t priority_class;     /* [normal] whose requests start first: -1 low, 0 normal, 1 high */
  uint32_t running, queued;   /* [no limit] requests running at once, and waiting beyond them */
  uint32_t tokens_per_minute; /* [no limit] prompt tokens computed and answer tokens */
  uint32_t blocks;            /* [no limit] pages of the pool held at once */
} weft_tenant_options;

/* Zero-initialise; every zero means the default in brackets. [serve] is the default of the option of the same name,
 * which `weft serve --help` prints. */
typedef struct weft_open_options {
  const char *const *models; /* paths of GGUF files; split models by their first part */
  uint32_t n_models;
  const char *backend; /* [best] "ref", "cpu", "cuda" */
  uint32_t threads;    /* [all cores] threads of the cpu backend */
  uint64_t kv_bytes;   /* [a quarter of free memory, at most 4 GiB; on a GPU 85 % of what is left] size of the pool */
  uint64_t host_bytes; /* [none] host memory behind the pool: evicted content waits there and comes back */
  const char *spill_file; /* [none] path of a file behind the host memory; must not exist; made, and unlinked at once */
  uint64_t spill_bytes;   /* [none] its size */
  uint32_t saved_canvases; /* [serve] preempted canvases, per model, that resume at their step; others start again */
  uint32_t context;        /* [serve, or the model's if that is less] longest prompt + answer */
  uint32_t running, queue; /* [serve] requests running at once, and requests waiting */
  uint64_t request_bytes;  /* [planned from context, running and queue] host memory of all requests */
  uint32_t rows;           /* [2048 on a GPU, else 512] rows per step, at least the longest canvas */
  uint32_t tenants;        /* [1] at most 255 */
  const weft_tenant_options *tenant; /* [tenants], or NULL: all default */
  bool shared_cache;          /* one prefix cache for all tenants: each can learn from times what others have asked */
  const char *const *kv_8bit; /* [n_kv_8bit] names of models whose keys and values are kept in 8 bits; "all" */
  uint32_t n_kv_8bit;
  const char *const *served_names; /* [n_served_names] NAME, or MODEL=NAME, for clients; further names are aliases */
  uint32_t n_served_names;
  const char *const *chat_templates; /* [n_chat_templates] FILE or MODEL=FILE: used in place of the model file's own */
  uint32_t n_chat_templates;
  const weft_sampling *sampling;           /* [the model's] temperature, top_k and top_p of requests that name none */
  const weft_entropy_bound *entropy_bound; /* [the model's] the same, of canvases */
  bool unused_tensors; /* open a file although tensors of its layers are not used: answers may be wrong */
  uint32_t pins;       /* [serve] prefixes that weft_pin may keep */
  bool no_prefix_cache;
  uint32_t target_tpot_ms; /* [none] most time between two tokens of an answer; prompts and canvases fill the rest */
  uint32_t slice_ms;       /* [a step] device time after which another model in use gets its turn */
  bool no_overlap;         /* apply each step before planning the next */
  bool no_graphs;          /* on a GPU: every step call by call; the same answers */
  bool no_arena;           /* on a GPU: weights in plain memory, not each at an aligned address; the same answers */
  bool no_deterministic;   /* on a GPU: sums are cut as suits a step: an answer may depend on the rest of its batch */
  uint32_t products;       /* [the backend's choice] products with quantised weights in 8 or 16 bits; a GPU has both */
  uint64_t device_bytes; /* [7/8 of what is free] memory of a GPU for weights; experts beyond it stay in host memory */
  bool quiet;            /* no progress bars on standard error */
} weft_open_options;

/* Loads the models, plans the memory and starts the engine thread; the caller owns *out until weft_close. */
WEFT_API int weft_open(const weft_open_options *options, weft_runtime **out, char *error, size_t n_error);
/* Cancels what still runs and waits for the engine thread. All generations must have been freed. NULL is fine. */
WEFT_API void weft_close(weft_runtime *runtime);
/* Refuses new requests and lets the others go on to their end; weft_idle says when none is left. */
WEFT_API void weft_drain(weft_runtime *runtime);
WEFT_API bool weft_idle(const weft_runtime *runtime);

typedef enum weft_mode {
  WEFT_MODE_AUTO = 0, /* by diffusion when the model can, else token by token */
  WEFT_MODE_AUTOREGRESSIVE = 1,
  WEFT_MODE_DIFFUSION = 2
} weft_mode;

/* Most tokens of an answer for which neither tokens nor canvases are asked. */
#define WEFT_ANSWER_TOKENS 1024

/* One request. Exactly one of a prompt and a sibling. weft_generate_defaults fills the values that the options of
 * `weft generate` have: nothing special is asked for, and sampling is the model's. */
typedef struct weft_generate_params {
  const char *model; /* NULL: the first; with several models an unknown name is an error */
  uint32_t tenant;   /* < options.tenants; decides what cached prefixes are visible */
  weft_mode mode;
  weft_prompt prompt;
  const weft_generation *sibling; /* a generation, not freed yet, whose prompt is used again and computed once. Model,
                                     tenant, mode and no_cache must be the same; sampling.choice should differ */
  uint32_t max_tokens;            /* 0: to the context limit, at most WEFT_ANSWER_TOKENS */
  bool prompt_only;               /* no answer, whatever max_tokens says: END comes when the prompt is computed */
  bool echo;                      /* weft_prompt_part gives the prompt as text, too */
  bool prompt_logprobs;  /* and logprobs of its tokens: AUTO is then token by token; by diffusion they are refused */
  uint32_t n_prompt_top; /* and of this many of the most likely tokens at their places */
  weft_sampling sampling;
  bool has_seed;           /* false: a random seed in place of sampling.seed */
  bool score;              /* WEFT_DELTA_END gives mean_logprob; not defined for a canvas */
  const char *const *stop; /* stop strings: generation ends before them */
  uint32_t n_stop;
  bool keep_stop;             /* ... or behind them */
  const int32_t *stop_tokens; /* [n_stop_tokens] end the answer besides the model's own, also with ignore_eos */
  uint32_t n_stop_tokens;
  /* Token by token, not with a format: the answer does not end before so many tokens; it has only these; it has none of
   * these words, as the tokenizer writes them. */
  uint32_t min_tokens;
  const int32_t *allowed_tokens; /* [n_allowed_tokens] */
  uint32_t n_allowed_tokens;
  const char *const *bad_words; /* [n_bad_words] */
  uint32_t n_bad_words;
  int32_t
      truncate_prompt;    /* keep so many of the last tokens of the prompt; 0: all; -1: what the context has room for */
  const char *cache_salt; /* only requests with the same salt share cached prefixes; NULL: those without */
  weft_format format;     /* not with thinking or ignore_eos; by diffusion on the backends cpu and ref */
  const char *format_text;
  size_t n_format_text;
  weft_tool_choice tool_choice; /* of prompt.tools. REQUIRED and NAMED hold the answer to calls, as a format does */
  uint32_t named_tool;          /* with NAMED: its number in prompt.tools */
  bool one_call;                /* an answer has one call at most */
  bool ignore_eos;
  weft_entropy_bound entropy_bound; /* by diffusion */
  uint32_t canvases;                /* by diffusion: most canvases; 0: as many as max_tokens needs */
  bool canvas_deltas;               /* by diffusion: a WEFT_DELTA_CANVAS after every denoise step */
  bool trace;                       /* by diffusion: these deltas have the sampler's arrays */
  bool whole_tokens;                /* cut text deltas at token boundaries: decode(tokens) equals text */
  bool with_special;                /* print control tokens, too */
  bool collected;                   /* the caller keeps the whole answer until its end: count that memory, too */
  size_t kept_bytes;                /* memory besides that the caller keeps until the end: count that, too */
  size_t kept_per_prompt_token;     /* and this many bytes for each token of the prompt */
  uint32_t timeout_ms;              /* 0: none; the request ends with "deadline" */
  int32_t priority;                 /* among requests of this tenant: each is worth 10 s of waiting */
  /* Out, may be NULL; of the first request of a submission. With status 3 or 5: an estimate of the milliseconds after which
   * the submission would be accepted; 0: never. */
  uint32_t *retry_ms;
  bool no_cache; /* neither use cached prefixes nor leave any */
} weft_generate_params;
WEFT_API void weft_generate_defaults(weft_generate_params *params);

typedef enum weft_delta_kind {
  WEFT_DELTA_TEXT = 1,   /* more of the answer */
  WEFT_DELTA_CANVAS = 2, /* the whole current canvas after a denoise step */
  WEFT_DELTA_END = 3,
  WEFT_DELTA_PROMPT = 4 /* a part of the prompt: only of weft_prompt_part */
} weft_delta_kind;

typedef struct weft_token_logprob {
  int32_t token;
  float logprob;
  const char *bytes; /* the token's text; valid as the delta */
  size_t n_bytes;
  uint32_t rank; /* PROMPT: among all tokens, from 1; 0: beyond WEFT_TOP_LOGPROBS_MAX, or not said */
} weft_token_logprob;

typedef struct weft_usage_counts {
  uint32_t prompt_tokens, cached_tokens, completion_tokens;
  uint32_t canvases, denoise_steps, preemptions;
  uint64_t queue_us, first_token_us, total_us; /* since submit */
} weft_usage_counts;

/* Valid until the next call of weft_next on the same generation. */
typedef struct weft_delta {
  weft_delta_kind kind;
  const char
      *text; /* TEXT: what was added; CANVAS: the whole canvas. [n_text] bytes of valid UTF-8, no zero at the end */
  size_t n_text;
  bool thinking;         /* TEXT: belongs to the thinking channel */
  const int32_t *tokens; /* TEXT: ids that became final with this delta; CANVAS: argmax canvas */
  uint32_t n_tokens;
  const weft_token_logprob *logprobs;     /* TEXT, PROMPT: [n_tokens]; END: [1], of the stop token; or NULL */
  const weft_token_logprob *top_logprobs; /* [n_top] for each of them, in order of likelihood */
  uint32_t n_top;
  const uint32_t *text_at; /* PROMPT with echo: [n_tokens], bytes of the prompt's text before each */
  uint32_t block, step;    /* CANVAS */
  bool stopped;
  uint32_t accepted;
  float step_temperature, mean_entropy;
  const int32_t *canvas_in, *drawn, *canvas_out; /* CANVAS with trace: [n_tokens] */
  const float *entropy;
  const uint8_t *accepted_mask;
  const char *finish;  /* END: "stop", "length", "cancelled", "deadline", "error", "evicted" (below) */
  const char *stop;    /* END with "stop": the stop string that ended it, until free; NULL: the model itself ended */
  int32_t stop_token;  /* END with "stop": the token of stop_tokens that ended it; -1: none did */
  const char *error;   /* END with "error": one line */
  uint32_t retry_ms;   /* END with "evicted": after how many milliseconds to come again */
  double mean_logprob; /* END with score: per token of the answer; -INFINITY without tokens */
  weft_usage_counts usage; /* END */
} weft_delta;

/* Errors: invalid parameters or too long a prompt, which are the caller's faults; status 3 (come again later) when the
 * queue or the memory of requests is full, or a limit of the tenant is reached for now; status 5 (likewise) when the
 * tenant has used its tokens of this minute, or what compiling formats may take in one. A generation that has not started
 * ends with "evicted" when the queue is full and another tenant, which has fewer requests in it for its
 * weight, needs its place: that means the same as status 3. The caller owns *out until weft_generation_free. */
WEFT_API int weft_submit(weft_runtime *runtime, const weft_generate_params *params, weft_generation **out, char *error,
                         size_t n_error);
/* n_choices answers to each of n_prompts prompts, all of them or none: out[p * n_choices + k] is answer k to the prompt
 * of params[p], which is computed once for all of its answers; their choice counts from params[p].sampling.choice. At
 * most WEFT_ANSWERS_MAX, all of one tenant. When they never fit at once (the tenant's limits, the queue, tokens per
 * minute) the line says how many do. On failure out holds NULL. */
enum { WEFT_ANSWERS_MAX = 128 };
WEFT_API int weft_submit_all(weft_runtime *runtime, const weft_generate_params *params, uint32_t n_prompts,
                             uint32_t n_choices, weft_generation **out, char *error, size_t n_error);
/* Waits up to timeout_ms (0: do not wait) for the next delta: 0 and *out, or 1 when there was none. Memory that runs
 * out while text is made ends the generation with "error". */
WEFT_API int weft_next(weft_generation *generation, uint32_t timeout_ms, weft_delta *out);
/* ready is called on the engine thread when weft_next may have something, and once at once; it must not block. Set it
 * before the generation is read. */
WEFT_API void weft_on_ready(weft_generation *generation, void (*ready)(void *self), void *self);
/* The tokens of the prompt, borrowed until the generation is freed; returns how many. */
WEFT_API uint32_t weft_prompt_tokens(const weft_generation *generation, const int32_t **tokens);
/* The prompt from token `first` on, at most 256 of its tokens, with what echo and prompt_logprobs ask for (the first
 * token's logprob is NAN); no tokens: that was all, or the generation has ended. 0, or 1 while the logprobs are not
 * computed, which they are before the first other delta. Where a generation has a sibling, that one gives them. */
WEFT_API int weft_prompt_part(weft_generation *generation, uint32_t first, weft_delta *out);
WEFT_API void weft_cancel(weft_generation *generation);
WEFT_API void weft_generation_free(weft_generation *generation); /* cancels if still running; NULL is fine */

typedef struct weft_model_card {
  const char *name, *arch, *path;
  const char *const *aliases; /* [n_aliases] further names that lead to it */
  uint32_t n_aliases;
  int64_t created;                      /* when its file was written, in seconds since 1970 */
  uint32_t context, vocabulary, canvas; /* canvas 0: autoregressive only */
  bool autoregressive, diffusion, chat;
  uint64_t weight_bytes;
} weft_model_card;
WEFT_API uint32_t weft_n_models(const weft_runtime *runtime);
WEFT_API weft_model_card weft_model_at(const weft_runtime *runtime, uint32_t index);

/* A prefix of prompts that is kept in the pool, so that requests which begin with it need not compute it. For the
 * operator: no client should reach these calls. What is pinned are the tokens of the prompt that stay the same
 * whatever text follows, cut to whole blocks. */
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
  uint32_t tokens, pages, ttl_seconds; /* ttl_seconds: what is left of it; 0: no limit */
} weft_pin_card;

/* Declares a pin and starts to compute it. Errors: invalid parameters; too large (-8), also when requests would have
 * too little memory left; status 3 when there are too many pins or the queue is full. */
WEFT_API int weft_pin(weft_runtime *runtime, const weft_prefix *prefix, uint32_t *id, char *error, size_t n_error);
WEFT_API int weft_unpin(weft_runtime *runtime, uint32_t id); /* no such pin: negative */
WEFT_API uint32_t weft_pins(weft_runtime *runtime, weft_pin_card *out, uint32_t max);
/* Drops the prefix cache at the next step boundary; what runs keeps its blocks. Pins stay declared and are computed
 * again with the next request that has their prefix. */
WEFT_API void weft_reset_prefix_cache(weft_runtime *runtime);

/* Text to tokens and tokens to text, by the tokenizer of model (NULL: the first). The caller frees *tokens or *text
 * with weft_release. */
WEFT_API int weft_tokenize(weft_runtime *runtime, const char *model, const char *text, size_t n_text, bool add_special,
                           bool parse_special, int32_t **tokens, uint32_t *n_tokens, char *error, size_t n_error);
WEFT_API int weft_detokenize(weft_runtime *runtime, const char *model, const int32_t *tokens, uint32_t n_tokens,
                             bool with_special, char **text, size_t *n_text, char *error, size_t n_error);
WEFT_API void weft_release(void *memory);

/* Every counter as Prometheus text (names in docs/operations.md), and as one JSON object. The caller frees with
 * weft_release; NULL: no memory. */
WEFT_API char *weft_metrics(weft_runtime *runtime);
WEFT_API char *weft_stats_json(weft_runtime *runtime);
/* The newest n_steps steps (0: all that are kept, 2048) and the newest 1024 requests that ended, as Chrome trace JSON.
 * The caller frees with weft_release; NULL: no memory. */
WEFT_API char *weft_trace(weft_runtime *runtime, uint32_t n_steps);
/* NULL while all models can answer; else one line that says why not (a device that failed), valid until weft_close. */
WEFT_API const char *weft_unwell(const weft_runtime *runtime);
/* The memory plan that weft_open made, as text; valid until weft_close. */
WEFT_API const char *weft_plan(const weft_runtime *runtime);
WEFT_API const char *weft_version(void);

#ifdef __cplusplus
}
#endif
#endif
