/* SPDX-License-Identifier: MIT */
/* Which known word was meant by one that is not known: `did you mean`.
 *
 * * Law: a word is only suggested when a slip of the hand leads from it to the word that was given: a letter too
 * much, too few, wrong or changed with its neighbour, one of these for every four letters and one more; or when
 * the given word is its beginning. Dashes and underscores are the same. Of equally near words the first one tried
 * wins. */
#ifndef WEFT_BASE_NEAREST_H
#define WEFT_BASE_NEAREST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_nearest {
  const char *word; /* borrowed: what was given; it need not end with a zero byte */
  size_t n;
  const char *best; /* borrowed: the nearest word so far; NULL: none is near enough */
  uint32_t distance;
} weft_nearest;

weft_nearest weft_nearest_to(const char *word, size_t n);
void weft_nearest_try(weft_nearest *nearest, const char *candidate);
/* Equal, where a dash is an underscore. b ends with a zero byte. */
bool weft_same_name(const char *a, size_t n, const char *b);
/* Letters and digits of a name alone, in small letters: `RTX 4090` and rtx-4090 are the same. Cut where out is full;
 * it ends with a zero byte. n_out: at least 1. */
void weft_plain_name(const char *name, char *out, size_t n_out);

#ifdef __cplusplus
}
#endif
#endif
