/* SPDX-License-Identifier: MIT */
#include "bench/quality/windows.h"

#include <string.h>
#include <xxhash.h>

enum { CONTEXT_MIN = 4 };

weft_status weft_windows_check(const weft_windows_config *config, weft_error *error) {
  if (config->context < CONTEXT_MIN) {
    return weft_fail(error, WEFT_E_INVALID, "-c %u: a window has at least %d tokens", config->context, CONTEXT_MIN);
  }
  if (config->stride >= config->context) {
    return weft_fail(error, WEFT_E_INVALID, "--stride %u: windows of %u tokens would leave some out", config->stride,
                     config->context);
  }
  return WEFT_OK;
}

uint32_t weft_windows_first(const weft_windows_config *config) {
  return config->stride > 0 ? config->context - config->stride : config->context / 2 + 1;
}

uint64_t weft_windows_at(const weft_windows *w, uint32_t index) {
  return (uint64_t)index * (w->config.stride > 0 ? w->config.stride : w->config.context);
}

void weft_windows_get(const weft_windows *w, uint32_t index, int32_t *out) {
  memcpy(out, w->tokens.ids + weft_windows_at(w, index), w->config.context * sizeof *out);
  if (w->bos >= 0) out[0] = w->bos;
}

static weft_status hash_windows(weft_windows *w, weft_error *error) {
  uint32_t n = w->config.context;
  int32_t *window = weft_alloc(n, sizeof *window);
  if (window == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a window of %u tokens", n);
  w->hash = w->n;
  for (uint32_t i = 0; i < w->n; i++) {
    weft_windows_get(w, i, window);
    w->hash = XXH3_64bits_withSeed(window, n * sizeof *window, w->hash);
  }
  weft_free(window);
  return WEFT_OK;
}

static weft_status count_windows(weft_windows *w, const char *name, weft_error *error) {
  uint32_t context = w->config.context, stride = w->config.stride, n = w->tokens.n;
  if (n < context) {
    return weft_fail(error, WEFT_E_INVALID, "%s has %u tokens, a window %u: give a longer text, or a smaller -c", name,
                     n, context);
  }
  /* The last window of a stride ends before the text does, as llama.cpp has it. */
  w->n = stride == 0 ? n / context : n == context ? 1 : (n - context + stride - 1) / stride;
  if (w->config.n_max > 0 && w->n > w->config.n_max) w->n = w->config.n_max;
  return WEFT_OK;
}

weft_status weft_windows_open(const weft_tokenizer *tokenizer, const weft_windows_config *config, const char *name,
                              const char *text, size_t n_text, weft_windows *out, weft_error *error) {
  size_t bad_at;
  bool adds_bos = weft_tokenizer_adds_bos(tokenizer);
  *out = (weft_windows){.config = *config, .bos = -1};
  if (n_text > 0 && text[n_text - 1] == '\n') n_text -= 1; /* llama.cpp takes one line end off too */
  if (n_text == 0) return weft_fail(error, WEFT_E_INVALID, "%s is empty", name);
  if (!weft_utf8_valid(text, n_text, &bad_at)) {
    return weft_fail(error, WEFT_E_INVALID, "%s: byte %zu is not UTF-8", name, bad_at);
  }
  if (adds_bos && config->stride == 0) out->bos = weft_tokenizer_bos(tokenizer);
  weft_status status = WEFT_OK;
  if (adds_bos && weft_tokens_push(&out->tokens, weft_tokenizer_bos(tokenizer)) != WEFT_OK) {
    status = weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the tokens of %s", name);
  }
  unsigned flags = config->special ? WEFT_ENCODE_PARSE_SPECIAL : 0;
  if (status == WEFT_OK) status = weft_tokenizer_encode(tokenizer, text, n_text, flags, &out->tokens, error);
  if (status == WEFT_OK) status = count_windows(out, name, error);
  if (status == WEFT_OK) status = hash_windows(out, error);
  if (status != WEFT_OK) weft_windows_close(out);
  return status;
}

void weft_windows_close(weft_windows *windows) {
  weft_tokens_free(&windows->tokens);
}
