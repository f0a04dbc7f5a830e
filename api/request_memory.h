/* SPDX-License-Identifier: MIT */
/* Host memory of requests: what one counts for, and the budget of all, which the memory plan names.
 *
 * Law: whatever grows with the number or the length of requests is counted before it is taken: tokens, logprobs and
 * shown canvases exactly (scheduler/request.c); the copy of the prompt and the automaton of stop strings exactly; text
 * that an answer is kept in at WEFT_TEXT_BYTES a token and its logprobs as JSON at WEFT_JSON_BYTES an entry, which real
 * text stays below. Beyond the budget a request is refused, not served badly. */
#ifndef WEFT_API_REQUEST_MEMORY_H
#define WEFT_API_REQUEST_MEMORY_H

#include "api/runtime.h"

enum { WEFT_TEXT_BYTES = 16, WEFT_JSON_BYTES = 96 };

/* What a generation holds besides the scheduler's request. */
typedef struct weft_generation_need {
  uint32_t n_prompt, answer_max;
  uint32_t delta_tokens_max; /* tokens of one delta */
  bool logprobs, collected;  /* collected: the whole answer is kept until its end */
  uint32_t n_top;
  size_t stop_bytes;     /* of the automaton of stop strings; 0: none */
  uint64_t format_bytes; /* of the compiled format of the answer, though others may share it; 0: none */
} weft_generation_need;

uint64_t weft_generation_bytes(const weft_served_model *model, const weft_generation_need *need);
/* The budget where nobody asked for one: every request that may run or wait as a plain one of the longest context, what
 * else may be asked up to 2 MiB for each that runs, and two of the largest there can be. */
uint64_t weft_request_memory_default(const weft_runtime *runtime);
/* One line of the memory plan. */
void weft_request_memory_print(const weft_runtime *runtime, weft_text *out);

#endif
