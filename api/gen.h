/* SPDX-License-Identifier: MIT */
/* A request for text with no dialect left in it: what every dialect's parser makes and what
 * stream.c answers.
 *
 * Law: a weft_gen owns all memory that its pointers name, until close. Parsing looks at bytes
 * alone: no model, no engine, so a hostile body can be tried without either. */
#ifndef WEFT_API_GEN_H
#define WEFT_API_GEN_H

#include "api/refusal.h"
#include "api/weft.h"

typedef struct weft_gen {
  weft_generate_params params; /* without choice and tenant; its prompt is not read, those below are */
  weft_prompt *prompt;
  uint32_t n_prompts;
  uint32_t n_choices; /* made of each prompt */
  uint32_t n_given;   /* of them, the most likely ones; n_choices: all */
  bool stream, include_usage, token_ids, canvas_events;
  void *blocks; /* all memory of this request, linked */
  void *json;   /* the parsed body: strings above point into it */
} weft_gen;

/* Zeroed memory that lives until close; NULL when refused. */
void *weft_gen_alloc(weft_gen *gen, size_t n, size_t size);
void weft_gen_close(weft_gen *gen); /* all zero is fine */

#endif
