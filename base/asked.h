/* SPDX-License-Identifier: MIT */
/* What a request asks for: the one description that a client of weft.h fills in and that everyone who works on the
 * request reads. This header is installed beside weft.h.
 *
 * Law: there is one copy of what was asked, and it never changes. weft_submit fills in what the client left to the
 * model (base/sampling.h), and the engine keeps the copy in its memory of the request (weft_request_params.asked in
 * scheduler/params.h). The scheduler, the generation that reads the answer (api/reader.c) and the answer of a dialect
 * (api/dialects/stream.h) point to it and copy nothing of it: who needs a member reads it there. It lives as long as the request: the engine holds a reference until nothing of the request is in flight, the
 * generation one until weft_generation_free, and whoever points to it by a generation does so no longer than that.
 *
 * The members before `tenant` are pointers of the client and what belongs to them. Submit reads them and makes what is
 * kept: tokens, automata, grammars. In the copy they are zero; its one pointer is sampling.bias, which is the copy's
 * own. */
#ifndef WEFT_BASE_ASKED_H
#define WEFT_BASE_ASKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/prompt.h"
#include "base/sampling.h"

typedef struct weft_generation weft_generation; /* api/weft.h */

typedef enum weft_mode {
  WEFT_MODE_AUTO = 0, /* by diffusion when the model can do so what is asked for, else token by token */
  WEFT_MODE_AUTOREGRESSIVE = 1,
  WEFT_MODE_DIFFUSION = 2
} weft_mode;

/* Most tokens of an answer when the request says neither max_tokens nor canvases. */
#define WEFT_ANSWER_TOKENS 1024

/* One request, with a prompt or a sibling. weft_generate_defaults fills in the defaults of `weft generate`'s
 * options. */
typedef struct weft_generate_params {
  /* ---- read by submit alone ---- */
  const char *model; /* NULL: the first; with several models an unknown name is an error */
  weft_prompt prompt;
  int32_t truncate_prompt; /* last tokens of the prompt that are kept; 0: all; -1: as many as there is room for */
  const weft_generation *sibling; /* a generation, not freed yet, whose prompt is used again and computed once. Model,
                                     tenant, mode and no_cache must be the same; sampling.choice should differ */
  const char *cache_salt;         /* only requests with the same salt share cached prefixes; NULL: those without one */
  const char *const *stop;        /* stop strings: generation ends before them */
  uint32_t n_stop;
  const int32_t *stop_tokens; /* [n_stop_tokens] end the answer, beside the model's own and with ignore_eos */
  uint32_t n_stop_tokens;
  const int32_t *allowed_tokens; /* [n_allowed_tokens] the answer has no others; 0: all */
  uint32_t n_allowed_tokens;
  const char *const *bad_words; /* [n_bad_words] words that the answer does not have, as the tokenizer splits them */
  uint32_t n_bad_words;
  const char *format_text; /* of format */
  size_t n_format_text;
  /* Out, may be NULL; only that of the first request of a submission is used. With status 3 or 5: an estimate of the
   * milliseconds after which the submission would be accepted; 0: never. */
  uint32_t *retry_ms;
  bool *own_limit; /* the same: with these statuses, whether the limit is the tenant's own and not one of all tenants */
  bool (*stop_submit)(void *self); /* asked while formats compile; true: submitting ends with status 6; may be NULL */
  void *stop_self;

  /* ---- kept ---- */
  uint32_t tenant; /* < options.tenants; decides which cached prefixes the request may use */
  weft_mode mode;
  uint32_t max_tokens;   /* 0: as many as the context has room for, at most WEFT_ANSWER_TOKENS */
  bool prompt_only;      /* no answer, whatever max_tokens says: END comes when the prompt is computed */
  bool echo;             /* weft_prompt_part gives the text of the prompt */
  bool prompt_logprobs;  /* weft_prompt_part gives the prompt's logprobs; autoregressive only, as AUTO then is */
  uint32_t n_prompt_top; /* with prompt_logprobs: and those of this many most likely tokens at each position */
  weft_sampling sampling;
  weft_draft draft;    /* token by token; guesses at next tokens never change an answer */
  bool has_seed;       /* false: a random seed in place of sampling.seed */
  bool score;          /* WEFT_DELTA_END gives mean_logprob; not defined for a canvas */
  bool keep_stop;      /* the answer ends behind the stop string instead */
  uint32_t min_tokens; /* the answer does not end earlier; autoregressive without a format, as allowed_tokens and
                          bad_words are */
  weft_format format;  /* behind the thinking, and beside tools one of two; not with ignore_eos */
  weft_tool_choice tool_choice; /* for prompt.tools; REQUIRED and NAMED hold the answer to calls, as a format does */
  uint32_t named_tool;          /* with NAMED: the tool's number in prompt.tools, from 0 */
  bool one_call;                /* an answer has one call at most */
  bool ignore_eos;              /* the model's own end tokens do not end the answer and are part of it */
  weft_entropy_bound entropy_bound; /* by diffusion */
  uint32_t canvases;                /* by diffusion: most canvases; 0: as many as max_tokens needs */
  bool canvas_deltas;               /* by diffusion: a WEFT_DELTA_CANVAS after every denoise step */
  bool trace;                       /* by diffusion: these deltas have the arrays of the sampler */
  bool whole_tokens;                /* cut text deltas at token boundaries: decode(tokens) equals text */
  bool with_special;                /* print control tokens too */
  bool collected;    /* the caller keeps the whole answer until its end, and request_bytes counts that memory */
  size_t kept_bytes; /* further bytes that the caller keeps until the end, which request_bytes counts too */
  size_t kept_per_prompt_token; /* and this many more bytes for each token of the prompt */
  uint32_t timeout_ms;          /* 0: none; after that time the request ends with "deadline" */
  int32_t priority;             /* orders requests of one tenant: one more is worth 10 s of waiting */
  bool no_cache;                /* neither use cached prefixes nor leave any */
} weft_generate_params;

#endif
