/* SPDX-License-Identifier: MIT */
/* Host memory of requests: how much one request counts for, and the budget of all, which the memory plan names.
 *
 * Law: whatever grows with the number or the length of requests is counted before it is taken. Tokens, logprobs and
 * shown canvases are counted exactly (scheduler/request.c), and so are the copy of the prompt and the automaton of
 * stop strings. Text of an answer is counted as WEFT_TEXT_BYTES for each token, and its logprobs as JSON as
 * WEFT_JSON_BYTES for each entry: real text stays below both. Beyond the budget a request is refused, not served
 * badly. */
#ifndef WEFT_API_REQUEST_MEMORY_H
#define WEFT_API_REQUEST_MEMORY_H

#include "api/runtime.h"

enum { WEFT_TEXT_BYTES = 16, WEFT_JSON_BYTES = 96 };

/* What decides, beside what was asked, how much memory a generation holds besides the scheduler's request. */
typedef struct weft_generation_size {
  uint32_t n_prompt, answer_max;
  uint32_t delta_tokens_max; /* tokens of one delta */
  size_t stop_bytes;         /* of the automaton of stop strings; 0: none */
  uint64_t format_bytes;     /* of the compiled format of the answer, though others may share it; 0: none */
} weft_generation_size;

/* Bytes that a generation counts for. */
uint64_t weft_generation_bytes(const weft_served_model *model, const weft_generate_params *asked,
                               const weft_generation_size *size);
/* The budget where --request-mib gives none: every request that may run or wait as a plain request of the longest
 * context; up to 2 MiB more for each that runs, for logprobs and canvases; and two of the largest requests there can
 * be. */
uint64_t weft_request_memory_default(const weft_runtime *runtime);
/* One line of the memory plan. */
void weft_request_memory_print(const weft_runtime *runtime, weft_text *out);

#endif
