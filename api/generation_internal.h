/* SPDX-License-Identifier: MIT */
/* What a generation consists of, for the files that make and read it: submission.c, generation.c, reader.c.
 *
 * Law: a generation has three parts, each with one owner.
 *   what was decided at submit   written by submission.c before the engine has the request, and request, asked and parts
 *                                before submit returns (the engine thread reads none of these three); then read by all
 *   watch                        the engine thread's alone, from submit until weft_engine_release has returned
 *   reader                       the reader's thread alone
 * What the client asked for is not copied: `asked` is the copy of the engine's request (base/asked.h), which is there
 * once the engine has the request. The watch does not read it, because the engine may call it before.
 *
 * Two streams run over the same tokens: one on the engine thread, which decides when to stop, one on the reader's
 * thread, which gives the text. Both print the same text, byte by byte, and search it with the same automaton, so they
 * find the same end. What the engine thread does costs O(1) for a token and takes no memory. */
#ifndef WEFT_API_GENERATION_INTERNAL_H
#define WEFT_API_GENERATION_INTERNAL_H

#include <stdatomic.h>

#include "api/answer_limits.h"
#include "api/call_plan.h"
#include "api/delta_logprobs.h"
#include "api/generation.h"
#include "api/prompt.h"
#include "api/prompt_parts.h"
#include "api/stops.h"

enum { DELTA_TOKENS_MAX = 256 /* of one delta: a reader that comes late takes a long answer in pieces */ };

/* The engine thread's: looks for stop strings in the text of the answer. */
typedef struct generation_watch {
  weft_chat_stream stream; /* takes no memory after submit */
  weft_stop_search search;
  bool found;
  uint32_t n_seen;     /* tokens that the stream has taken */
  uint32_t min_tokens; /* stop strings are looked for behind them */
} generation_watch;

/* The reader's: makes deltas of the engine's events (reader.c). */
typedef struct generation_reader {
  weft_chat_stream stream;
  weft_stop_search search;
  size_t n_searched; /* bytes of limbo */
  weft_event event;  /* TOKENS being worked off, or FINISHED being held back */
  bool has_event, finishing, ended;
  uint32_t next;      /* token of event to take next */
  uint64_t n_waiting; /* tokens taken and not released */
  double logprob_sum; /* with score */
  weft_text limbo;    /* text made and not given */
  bool limbo_thinking, stopped;
  weft_status lost;            /* why the text broke off: what is left is thrown away until the end */
  const int32_t *answer;       /* the engine's, from the first token on */
  const weft_logprob *logprob; /* likewise, n_top + 1 for each token */
  uint32_t n_top;
  uint32_t n_given, n_released;            /* tokens of deltas before the present one; of the present one */
  uint32_t n_ids;                          /* tokens taken and not given before */
  weft_text text;                          /* of the present delta */
  weft_text stop;                          /* the stop string that was found */
  delta_logprobs entries;                  /* of the present delta */
  uint32_t *text_at;                       /* with logprobs: characters of text before each of the n_ids tokens */
  uint32_t text_at_capacity, n_characters; /* of all text so far */
  char error[256];
} generation_reader;

struct weft_generation {
  weft_runtime *runtime;
  const weft_served_model *model;
  weft_request *request;
  const weft_generate_params *asked; /* the request's */
  encoded_prompt prompt;
  weft_grammar *grammar; /* NULL: any answer */
  call_plan calls;       /* without its format */
  bool held_thinking;    /* the grammar begins with thinking */
  bool canvas;           /* the answer is written by diffusion */
  answer_limits limits;
  uint64_t format_key; /* of the format, where siblings must have the same one: with tools or thinking */
  prompt_parts parts;
  weft_stops stops;

  generation_watch watch;
  generation_reader reader;
  _Atomic(void (*)(void *)) ready;
  _Atomic(void *) ready_self;
};

/* Callbacks of the engine's request; self is the generation (weft_stop_rule, weft_notify in scheduler/params.h). */
uint32_t generation_stop_rule(void *self, const int32_t *tokens, uint32_t n_tokens);
void generation_notify(void *self);
/* Frees what the reader holds. */
void generation_reader_close(generation_reader *reader);

static inline uint32_t generation_ms(uint64_t us) {
  return us < 1000000000 ? (uint32_t)((us + 999) / 1000) : 1000000;
}

#endif
