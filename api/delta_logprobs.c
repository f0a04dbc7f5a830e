/* SPDX-License-Identifier: MIT */
#include "api/delta_logprobs.h"

#include "base/memory.h"

uint32_t delta_logprobs_tokens_max(uint32_t n_top) {
  uint32_t n = DELTA_ENTRIES_MAX / (1 + n_top);
  return n > 0 ? n : 1;
}

static void free_entries(delta_logprobs *l) {
  weft_free(l->own);
  weft_free(l->top);
  weft_free(l->n_top);
  l->own = l->top = NULL;
  l->n_top = NULL;
  l->capacity = 0;
}

weft_status delta_logprobs_begin(delta_logprobs *l, const weft_tokenizer *tokenizer, uint32_t n, uint32_t n_top) {
  l->tokenizer = tokenizer;
  l->n = 0;
  weft_text_clear(&l->bytes);
  if (n <= l->capacity && n_top == l->stride) return WEFT_OK;
  free_entries(l);
  l->stride = n_top;
  l->own = weft_alloc(n, sizeof *l->own);
  l->top = weft_alloc((size_t)n * n_top, sizeof *l->top);
  l->n_top = weft_alloc(n, sizeof *l->n_top);
  if (l->own == NULL || l->top == NULL || l->n_top == NULL) {
    free_entries(l);
    return WEFT_E_NO_MEMORY;
  }
  l->capacity = n;
  return WEFT_OK;
}

static weft_status put_entry(delta_logprobs *l, int32_t token, float logprob, uint32_t rank, weft_token_logprob *to) {
  size_t before = l->bytes.n;
  weft_status status = weft_tokenizer_piece(l->tokenizer, token, true, &l->bytes);
  if (status == WEFT_OK) status = weft_text_status(&l->bytes);
  *to = (weft_token_logprob){.token = token, .logprob = logprob, .n_bytes = l->bytes.n - before, .rank = rank};
  return status;
}

weft_status delta_logprobs_put(delta_logprobs *l, int32_t token, float logprob, uint32_t rank) {
  l->n_top[l->n] = 0;
  return put_entry(l, token, logprob, rank, &l->own[l->n++]);
}

weft_status delta_logprobs_put_top(delta_logprobs *l, int32_t token, float logprob, uint32_t rank) {
  uint32_t at = l->n - 1;
  if (token < 0) return WEFT_OK;
  return put_entry(l, token, logprob, rank, &l->top[(size_t)at * l->stride + l->n_top[at]++]);
}

/* The bytes moved while they grew, so each entry learns only now where its own are: in the order in which they came. */
weft_status delta_logprobs_end(delta_logprobs *l, weft_delta *out) {
  const char *bytes = l->bytes.bytes == NULL ? "" : l->bytes.bytes;
  for (uint32_t i = 0; i < l->n; i++) {
    l->own[i].bytes = bytes;
    bytes += l->own[i].n_bytes;
    for (uint32_t k = 0; k < l->n_top[i]; k++) {
      weft_token_logprob *top = &l->top[(size_t)i * l->stride + k];
      top->bytes = bytes;
      bytes += top->n_bytes;
    }
  }
  out->logprobs = l->own;
  out->top_logprobs = l->top;
  out->n_top = l->n_top;
  out->top_stride = l->stride;
  return WEFT_OK;
}

void delta_logprobs_close(delta_logprobs *l) {
  free_entries(l);
  weft_text_free(&l->bytes);
}
