/* SPDX-License-Identifier: MIT */
/* A look at a JSON text before it is parsed: how much memory would it become?
 *
 * Law: one pass over the bytes, no memory. It counts at least what a parser would make of the text, in classes that cost
 * it alike, and exactly that for valid JSON; whether the text is valid is not judged here. It stops at the first value
 * beyond a limit, so a text is refused as soon as it has shown too much. */
#ifndef WEFT_API_JSON_SCAN_H
#define WEFT_API_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Also what was counted. */
typedef struct weft_json_size {
  uint32_t depth;   /* lists and objects inside each other */
  uint32_t values;  /* lists, objects, strings and names of members: about a hundred bytes each */
  uint32_t scalars; /* numbers, true, false and null: about forty bytes each */
} weft_json_size;

/* What an honest request never reaches: twice as many levels as anything that is read, and as many values as twice 4096
 * messages of 16; and as many numbers as all its prompts have token ids in a context of so many tokens, and a few more. */
weft_json_size weft_json_limits(uint32_t context);

/* False: beyond a limit at bytes + *at, and *what says which one, in words. *size: what was counted up to there. */
bool weft_json_scan(const char *bytes, size_t n, const weft_json_size *limits, weft_json_size *size, size_t *at,
                    const char **what);

#endif
