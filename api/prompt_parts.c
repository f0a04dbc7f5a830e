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
  weft_text_free(&parts->bytes);
  weft_free(parts->byte_at);
  weft_free(parts->text_at);
  weft_free(parts->own);
  weft_free(parts->top);
}

static weft_status make_room(prompt_parts *parts, uint32_t n_top) {
  if (parts->own != NULL && parts->top != NULL) return WEFT_OK;
  uint32_t n = parts->n < PROMPT_PART_TOKENS ? parts->n : PROMPT_PART_TOKENS;
  if (parts->own == NULL) parts->own = weft_alloc(n, sizeof *parts->own);
  if (parts->top == NULL) parts->top = weft_alloc((size_t)n * n_top, sizeof *parts->top);
  return parts->own != NULL && parts->top != NULL ? WEFT_OK : WEFT_E_NO_MEMORY;
}

static weft_status put_token(prompt_parts *parts, int32_t token, float logprob, uint32_t rank, weft_token_logprob *to) {
  size_t at = parts->bytes.n;
  weft_status status = weft_tokenizer_piece(parts->tokenizer, token, true, &parts->bytes);
  *to = (weft_token_logprob){.token = token,
                             .logprob = logprob,
                             .bytes = parts->bytes.bytes == NULL ? "" : parts->bytes.bytes + at,
                             .n_bytes = parts->bytes.n - at,
                             .rank = rank};
  return status;
}

/* Token i of the part, with the likeliest ones at its place; the prompt's first token has none. */
static weft_status put_place(prompt_parts *parts, uint32_t first, uint32_t i, const weft_prompt_logprobs *from,
                             uint32_t n_top) {
  int32_t token = parts->tokens[first + i];
  if (first + i == 0) return put_token(parts, token, NAN, 0, &parts->own[i]);
  uint32_t at = first + i - 1;
  weft_status status = put_token(parts, token, from->own[at].logprob, from->own[at].rank, &parts->own[i]);
  for (uint32_t k = 0; k < n_top && status == WEFT_OK; k++) {
    const weft_logprob *top = &from->top[(size_t)at * from->n_top + k];
    status = put_token(parts, top->token, top->logprob, k + 1, &parts->top[(size_t)i * n_top + k]);
  }
  return status;
}

/* Twice, since the bytes move while they grow. */
static weft_status fill_logprobs(prompt_parts *parts, uint32_t first, const weft_prompt_logprobs *from,
                                 weft_delta *out) {
  uint32_t n_top = from->n_top;
  for (uint32_t at = first > 0 ? first - 1 : 0; at + 1 < first + out->n_tokens; at++) {
    while (n_top > 0 && from->top[(size_t)at * from->n_top + n_top - 1].token < 0) n_top -= 1; /* a small vocabulary */
  }
  weft_status status = make_room(parts, from->n_top);
  for (int pass = 0; pass < 2 && status == WEFT_OK; pass++) {
    weft_text_clear(&parts->bytes);
    for (uint32_t i = 0; i < out->n_tokens && status == WEFT_OK; i++) {
      status = put_place(parts, first, i, from, n_top);
      if (status == WEFT_OK) status = weft_text_status(&parts->bytes);
    }
  }
  out->logprobs = parts->own;
  out->top_logprobs = parts->top;
  out->n_top = n_top;
  return status;
}

weft_status prompt_parts_get(prompt_parts *parts, uint32_t first, const weft_prompt_logprobs *logprobs,
                             weft_delta *out) {
  uint32_t left = first < parts->n ? parts->n - first : 0, n = left < PROMPT_PART_TOKENS ? left : PROMPT_PART_TOKENS;
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
