/* SPDX-License-Identifier: MIT */
/* Stop strings: where the first one begins in a text, and how much of the text's tail may still become one. */
#ifndef WEFT_API_STOPS_H
#define WEFT_API_STOPS_H

#include "base/text.h"

enum { WEFT_STOPS_MAX = 64, WEFT_STOP_BYTES_MAX = 1024 };

typedef struct weft_stops {
  char *text[WEFT_STOPS_MAX];
  size_t length[WEFT_STOPS_MAX];
  uint32_t n;
} weft_stops;

/* Copies. INVALID: too many, empty, or too long. */
weft_status weft_stops_set(weft_stops *stops, const char *const *list, uint32_t n, weft_error *error);
void weft_stops_free(weft_stops *stops);
/* True: *at is where the earliest stop string begins. False: *held bytes at the end may be the beginning of one. */
bool weft_stops_find(const weft_stops *stops, const char *text, size_t n, size_t *at, size_t *held);
/* Drops all but the last n bytes. */
void weft_stops_keep_tail(weft_text *text, size_t n);

#endif
