/* SPDX-License-Identifier: MIT */
/* Numbers of a schema as they are written, of any length and size. Private to model/formats.
 *
 * Law: numbers are compared, and divided, digit by digit, never as floating point: a number of a tree is that of its
 * digits, where it has 64 bits, is a fraction (then in the fewest digits that read as it), or is neither
 * (weft_json_written). A decimal is plain data; it may point to the text of a written number, so it lives no longer. */
#ifndef WEFT_MODEL_FORMATS_DECIMAL_H
#define WEFT_MODEL_FORMATS_DECIMAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { DECIMAL_OWN = 40 };

/* 0.DDD times 10^top, of n digits; the first and the last are not 0. Zero has none, and no sign. */
typedef struct decimal {
  bool negative;
  uint32_t n, point; /* point: before which of the digits the text has its point; n: before none */
  int64_t top;
  const char *text; /* NULL: own */
  char own[DECIMAL_OWN];
} decimal;

/* false: it is no number. */
bool decimal_of(const json_t *json, decimal *out);
/* A number as JSON writes it. */
void decimal_read(const char *text, size_t n, decimal *out);
bool decimal_is_number(const json_t *json);

/* The digit i, from 0; 0 behind the last one. */
uint32_t decimal_digit(const decimal *d, int64_t i);
int decimal_compare(const decimal *a, const decimal *b); /* below 0, 0, above 0 */
bool decimal_is_whole(const decimal *d);
/* The nearest whole number that is not below (up), or not above; at most 10^18 either way. *exact: it is the number. */
int64_t decimal_round(const decimal *d, bool up, bool *exact);
/* Whether the number is `of` times a whole number: 1, 0, or -1 where there are too many digits to say. */
int decimal_is_multiple(const decimal *d, const decimal *of);

/* The same of two numbers of a tree. */
int decimal_compare_json(const json_t *a, const json_t *b);

#endif
