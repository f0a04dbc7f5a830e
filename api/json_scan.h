/* SPDX-License-Identifier: MIT */
/* A look at a JSON text before it is parsed: how much memory would parsing it take?
 *
 * Law: one pass over the bytes, no memory. It counts at least what a parser would make of the text, in classes that
 * cost the parser the same, and exactly that for valid JSON; whether the text is valid is not judged here. It stops at
 * the first value beyond a limit, so a text is refused as soon as it has shown too much. */
#ifndef WEFT_API_JSON_SCAN_H
#define WEFT_API_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Memory that a parsed value takes, beside the letters of a string. */
enum { WEFT_JSON_VALUE_BYTES = 112, WEFT_JSON_SCALAR_BYTES = 40 };

/* Limits of a JSON text, or what was counted of it. */
typedef struct weft_json_size {
  uint32_t depth;   /* lists and objects inside each other */
  uint32_t values;  /* lists, objects, strings and names of members: WEFT_JSON_VALUE_BYTES each */
  uint32_t scalars; /* numbers, true, false and null: WEFT_JSON_SCALAR_BYTES each */
} weft_json_size;

/* Limits that no honest request reaches: the levels of any field that is read, and below them those of the arguments of
 * a call (WEFT_JSON_DEPTH), which some dialects have as JSON and not as text; as many values as twice 4096 messages of
 * 16 values each; and as many numbers as all prompts of a request can have token ids, at `context` tokens each, and a
 * few more. */
weft_json_size weft_json_limits(uint32_t context);

/* False: the text is beyond a limit at bytes + *at, and *what names the limit. *size: what was counted up to there. */
bool weft_json_scan(const char *bytes, size_t n, const weft_json_size *limits, weft_json_size *size, size_t *at,
                    const char **what);

#endif
