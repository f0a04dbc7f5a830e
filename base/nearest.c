/* SPDX-License-Identifier: MIT */
#include "base/nearest.h"

#include <string.h>

enum { LETTERS_MAX = 64, PREFIX_LEAST = 3 }; /* longer words are never suggested: nobody mistypes them */

static char plain_letter(char c) {
  return c == '_' ? '-' : c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

bool weft_same_name(const char *a, size_t n, const char *b) {
  for (size_t i = 0; i < n; i++) {
    if (b[i] == 0 || (a[i] == '_' ? '-' : a[i]) != (b[i] == '_' ? '-' : b[i])) return false;
  }
  return b[n] == 0;
}

void weft_plain_name(const char *name, char *out, size_t n_out) {
  size_t n = 0;
  for (; *name != 0 && n + 1 < n_out; name++) {
    char c = plain_letter(*name);
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) out[n++] = c;
  }
  out[n] = 0;
}

static uint32_t least_of(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

/* Insertions, deletions, replacements and exchanges of neighbours that lead from a to b. */
static uint32_t count_slips(const char *a, size_t n_a, const char *b, size_t n_b) {
  uint32_t row[3][LETTERS_MAX + 1]; /* the two rows before and this one */
  for (size_t j = 0; j <= n_b; j++) row[0][j] = (uint32_t)j;
  for (size_t i = 1; i <= n_a; i++) {
    uint32_t *now = row[i % 3], *before = row[(i + 2) % 3], *earlier = row[(i + 1) % 3];
    now[0] = (uint32_t)i;
    for (size_t j = 1; j <= n_b; j++) {
      bool same = plain_letter(a[i - 1]) == plain_letter(b[j - 1]);
      now[j] = least_of(least_of(before[j], now[j - 1]) + 1, before[j - 1] + (same ? 0 : 1));
      if (i > 1 && j > 1 && plain_letter(a[i - 1]) == plain_letter(b[j - 2]) &&
          plain_letter(a[i - 2]) == plain_letter(b[j - 1]))
        now[j] = least_of(now[j], earlier[j - 2] + 1);
    }
  }
  return row[n_a % 3][n_b];
}

weft_nearest weft_nearest_to(const char *word, size_t n) {
  return (weft_nearest){.word = word, .n = n, .distance = 2 + (uint32_t)(n < LETTERS_MAX ? n / 4 : 0)};
}

void weft_nearest_try(weft_nearest *nearest, const char *candidate) {
  size_t n = strlen(candidate);
  if (nearest->n == 0 || nearest->n > LETTERS_MAX || n > LETTERS_MAX) return;
  uint32_t distance = count_slips(nearest->word, nearest->n, candidate, n);
  bool begins = nearest->n >= PREFIX_LEAST && n > nearest->n &&
                count_slips(nearest->word, nearest->n, candidate, nearest->n) == 0;
  if (begins) distance = 1;
  if (distance >= nearest->n || distance >= nearest->distance) return; /* nothing of the word would be left */
  nearest->best = candidate;
  nearest->distance = distance;
}
