/* SPDX-License-Identifier: MIT */
/* Reads JSON a byte at a time, to find where a value that begins with { [ or " ends, and whether it is well formed.
 *
 * Law: nothing is allocated, and no byte is looked at twice or ahead. DONE comes with the last byte of the value, BAD
 * with the first byte that no JSON text has there or that opens more than WEFT_JSON_DEPTH levels; no byte may be given
 * after either. Bytes above 127 may stand in strings only; the caller checks that they are UTF-8. */
#ifndef WEFT_MODEL_TEXT_JSON_STEPS_H
#define WEFT_MODEL_TEXT_JSON_STEPS_H

#include <stdbool.h>
#include <stdint.h>

/* Lists and objects inside of one another: of the arguments of a call, as they are read from an answer and as they are
 * taken back in a history. */
enum { WEFT_JSON_DEPTH = 64 };

typedef enum json_step { JSON_STEP_MORE, JSON_STEP_DONE, JSON_STEP_BAD } json_step;

/* Zero-initialise. */
typedef struct json_steps {
  uint8_t state, n; /* n: how many letters of a literal, or digits of an escape, were read */
  bool key;         /* the string is the name of a member */
  char literal;     /* the first letter of the literal */
  uint32_t depth;
  uint64_t objects; /* bit d: level d is an object, not a list */
} json_steps;

json_step json_steps_take(json_steps *steps, char byte);
/* Whether the next byte is inside a string, where control characters must be escaped. */
bool json_steps_in_string(const json_steps *steps);

#endif
