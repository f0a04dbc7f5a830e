/* SPDX-License-Identifier: MIT */
/* A request for answers in the form that all dialects share: the parser of every dialect makes one (such as
 * openai_parse.c), and stream.c answers it.
 *
 * Law: a weft_gen owns all memory that its pointers name, until close. Parsing needs no model and no
 * engine, so a fuzzer can try hostile bodies without either (tests/fuzz/api_body.c). */
#ifndef WEFT_API_DIALECTS_GEN_H
#define WEFT_API_DIALECTS_GEN_H

#include "api/http/refusal.h"
#include "api/weft.h"

typedef struct weft_gen {
  weft_generate_params params; /* without sampling.choice, tenant and prompt, which stream.c sets */
  weft_prompt *prompt;
  uint32_t n_prompts;
  uint32_t n_choices; /* answers that are made of each prompt (best_of) */
  uint32_t n_given;   /* how many of these the client gets, the most likely ones (n) */
  bool stream, include_usage, token_ids, canvas_events;
  bool prompt_logprobs; /* the answer has a list of the prompt's logprobs, with n_prompt_logprobs likely tokens each */
  uint32_t n_prompt_logprobs;
  void *blocks; /* all memory of this request, a linked list */
  void *json;   /* the parsed body, into which strings above point */
} weft_gen;

/* Zeroed memory that lives until close; NULL: no memory. */
void *weft_gen_alloc(weft_gen *gen, size_t n, size_t size);
void weft_gen_close(weft_gen *gen); /* a weft_gen that is all zero is fine */

#endif
