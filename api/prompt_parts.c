/* SPDX-License-Identifier: MIT */
#include "api/prompt_parts.h"

#include <math.h>

#include "base/memory.h"

/* The text of a token that ends within a character begins with that of a later one, so places are between characters. */
static void count_characters(prompt_parts *parts) {
  for (uint32_t i = 1; i < parts->n && parts->text.n > 0; i++) {
    uint32_t from = parts->byte_at[i - 1];
    size_t n = weft_text_characters(parts->text.bytes + from, parts->byte_at[i] - from);
    parts->text_at[i] = parts->text_at[i - 1] + (uint32_t)n;
  }
}

weft_status prompt_parts_open(prompt_parts *parts, const weft_tokenizer *tokenizer, const int32_t *tokens, uint32_t n,
                              bool echo, bool with_special) {
  *parts = (prompt_parts){.tokenizer = tokenizer, .tokens = tokens, .n = n};
  if (!echo) return WEFT_OK;
  parts->byte_at = weft_alloc(n, sizeof *parts->byte_at);
  parts->text_at = weft_alloc(n, sizeof *parts->text_at);
  if (parts->byte_at == NULL || parts->text_at == NULL) return WEFT_E_NO_MEMORY;
  weft_status status = weft_tokenizer_decode_at(tokenizer, tokens, n, with_special, parts->byte_at, &parts->text);
  if (status == WEFT_OK) count_characters(parts);
  return status;
}

void prompt_parts_close(prompt_parts *parts) {
  weft_text_free(&parts->text);
  weft_free(parts->byte_at);
  weft_free(parts->text_at);
  delta_logprobs_close(&parts->entries);
}

/* Token `at` of the prompt, with the likeliest ones at its place; the prompt's first token has none. */
static weft_status put_place(prompt_parts *parts, uint32_t at, const weft_prompt_logprobs *from) {
  delta_logprobs *l = &parts->entries;
  if (at == 0) return delta_logprobs_put(l, parts->tokens[0], NAN, 0);
  const weft_logprob *top = from->top + (size_t)(at - 1) * from->n_top;
  weft_status status = delta_logprobs_put(l, parts->tokens[at], from->own[at - 1].logprob, from->own[at - 1].rank);
  for (uint32_t k = 0; k < from->n_top && status == WEFT_OK; k++) {
    status = delta_logprobs_put_top(l, top[k].token, top[k].logprob, k + 1);
  }
  return status;
}

static weft_status fill_logprobs(prompt_parts *parts, uint32_t first, const weft_prompt_logprobs *from,
                                 weft_delta *out) {
  weft_status status = delta_logprobs_begin(&parts->entries, parts->tokenizer, out->n_tokens, from->n_top);
  for (uint32_t i = 0; i < out->n_tokens && status == WEFT_OK; i++) status = put_place(parts, first + i, from);
  return status == WEFT_OK ? delta_logprobs_end(&parts->entries, out) : status;
}

weft_status prompt_parts_get(prompt_parts *parts, uint32_t first, const weft_prompt_logprobs *logprobs,
                             weft_delta *out) {
  uint32_t most = logprobs == NULL ? PROMPT_PART_TOKENS : delta_logprobs_tokens_max(logprobs->n_top);
  if (most > PROMPT_PART_TOKENS) most = PROMPT_PART_TOKENS;
  uint32_t left = first < parts->n ? parts->n - first : 0, n = left < most ? left : most;
  *out = (weft_delta){.kind = WEFT_DELTA_PROMPT, .text = "", .tokens = parts->tokens + first, .n_tokens = n};
  if (n == 0) return WEFT_OK;
  if (parts->text_at != NULL) {
    size_t end = n < left ? parts->byte_at[first + n] : parts->text.n;
    if (parts->text.bytes != NULL) out->text = parts->text.bytes + parts->byte_at[first];
    out->n_text = end - parts->byte_at[first];
    out->text_at = parts->text_at + first;
  }
  return logprobs == NULL ? WEFT_OK : fill_logprobs(parts, first, logprobs, out);
}
