/* SPDX-License-Identifier: MIT */
/* What a server answers to a suite.
 *
 * Law: requests follow from suite and prompts alone, in one order: prompts, then seeds, then formats, then repeats. An
 * answer stands at the place of its request whatever order they come in, so two servers' answers are compared place by
 * place. */
#ifndef WEFT_BENCH_PROVE_ANSWERS_H
#define WEFT_BENCH_PROVE_ANSWERS_H

#include <jansson.h>

#include "bench/prove/verdict.h"

/* A list of {prompt, seed, format, repeat, path, body}: body is the request as text. The caller owns it; NULL: no
 * memory. */
json_t *prove_requests_make(const json_t *suite, const json_t *prompts);

typedef struct prove_limits {
  uint64_t tokens;   /* most tokens of all answers, prompts left out */
  uint64_t until_us; /* of weft_clock_us */
  uint32_t parallel; /* requests at once */
} prove_limits;

/* A list of {prompt, seed, format, repeat, prompt_tokens, tokens, finish, denoise_steps, canvases, first_ms,
 * tokens_per_second,
 * steps_per_second}. What goes wrong is the outcome, and there are no answers then. */
prove_verdict prove_answers_ask(uint16_t port, const json_t *requests, const prove_limits *limits, json_t **answers,
                                prove_outcome *outcome);

/* Body to POST; the answer as JSON. The caller owns it; NULL with an outcome. what: for the line. */
json_t *prove_ask_json(uint16_t port, const char *path, const char *body, uint64_t until_us, const char *what,
                       prove_outcome *outcome);

#endif
