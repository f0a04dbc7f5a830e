/* SPDX-License-Identifier: MIT */
/* A text as windows of tokens, of which the last ones are scored.
 *
 * Law: windows lie as llama.cpp's perplexity program lays them, so that numbers can be compared. The text is tokens with
 * the vocabulary's bos in front, where it puts one. Without a stride, windows of `context` tokens follow one another; in
 * each the first token is replaced by bos (where the vocabulary puts one), and tokens context / 2 + 1 and later are
 * scored, each given all before it. With a stride S, windows begin S tokens apart, nothing is replaced, and the last S
 * tokens of each are scored. Tokens after the last whole window are left out. */
#ifndef WEFT_BENCH_QUALITY_WINDOWS_H
#define WEFT_BENCH_QUALITY_WINDOWS_H

#include "bench/inside.h"

typedef struct weft_windows_config {
  uint32_t context; /* tokens of a window */
  uint32_t stride;  /* 0: windows follow one another */
  uint32_t n_max;   /* most windows; 0: all there are */
  bool special;     /* control tokens in the text are tokens */
} weft_windows_config;

typedef struct weft_windows {
  weft_windows_config config;
  weft_tokens tokens; /* of the whole text */
  uint32_t n;         /* windows */
  int32_t bos;        /* put in front of each window; -1: nothing is */
  uint64_t hash;      /* of all that the windows hold */
} weft_windows;

/* The config is one that weft_windows_check took. INVALID: not UTF-8, or shorter than a window; name is the text's. */
weft_status weft_windows_open(const weft_tokenizer *tokenizer, const weft_windows_config *config, const char *name,
                              const char *text, size_t n_text, weft_windows *out, weft_error *error);
void weft_windows_close(weft_windows *windows);
weft_status weft_windows_check(const weft_windows_config *config, weft_error *error);

/* Of a window, the place of the first scored token; those after it are scored too. */
uint32_t weft_windows_first(const weft_windows_config *config);
/* Writes the `context` tokens of a window. */
void weft_windows_get(const weft_windows *windows, uint32_t index, int32_t *out);
/* Where a window begins in the text, in tokens. */
uint64_t weft_windows_at(const weft_windows *windows, uint32_t index);

#endif
