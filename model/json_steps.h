/* SPDX-License-Identifier: MIT */
/* JSON read a byte at a time: where a value that begins with { [ or " ends, and whether it is one.
 *
 * Law: no memory and no look ahead. A byte is taken once; DONE comes with the last byte of the value, BAD with the
 * first byte that no JSON text has there, and nothing is read after either. Bytes above 127 are part of strings
 * alone and are not looked at: whether they are UTF-8 is for others to say. */
#ifndef WEFT_MODEL_JSON_STEPS_H
#define WEFT_MODEL_JSON_STEPS_H

#include <stdbool.h>
#include <stdint.h>

enum { JSON_STEPS_DEPTH = 64 };

typedef enum json_step { JSON_STEP_MORE, JSON_STEP_DONE, JSON_STEP_BAD } json_step;

/* Zero-initialise. */
typedef struct json_steps {
  uint8_t state, n; /* n: letters of a literal, or digits of an escape, that were read */
  bool key;         /* the string is the name of a member */
  char literal;     /* the first letter of the literal */
  uint32_t depth;
  uint64_t objects; /* bit d: level d is an object */
} json_steps;

json_step json_steps_take(json_steps *steps, char byte);
/* Inside of a string, where control characters would have to be escaped. */
bool json_steps_in_string(const json_steps *steps);

#endif
