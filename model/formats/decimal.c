/* SPDX-License-Identifier: MIT */
#include "model/formats/decimal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/text/json_tree.h"

enum { TOP_MAX = 18, DIVISOR_DIGITS = 36, SHIFT_MAX = 4096 };
static const int64_t farthest = INT64_C(1000000000000000000);

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

static int64_t read_exponent(const char *text, size_t n) {
  bool negative = n > 0 && text[0] == '-';
  int64_t value = 0;
  for (size_t i = n > 0 && (text[0] == '-' || text[0] == '+') ? 1 : 0; i < n; i++) {
    if (value < INT64_C(100000000000000)) value = value * 10 + (text[i] - '0');
  }
  return negative ? -value : value;
}

void decimal_read(const char *text, size_t n, decimal *out) {
  size_t from = n > 0 && text[0] == '-' ? 1 : 0, end = from, first, last, whole;
  *out = (decimal){.negative = from == 1};
  while (end < n && (is_digit(text[end]) || text[end] == '.')) end += 1;
  const char *point = memchr(text + from, '.', end - from);
  whole = point == NULL ? end : (size_t)(point - text); /* where the digits before the point end */
  for (first = from; first < end && (text[first] == '0' || text[first] == '.');) first += 1;
  for (last = end; last > first && (text[last - 1] == '0' || text[last - 1] == '.');) last -= 1;
  if (first == last) {
    out->negative = false;
    return;
  }
  bool inside = whole > first && whole < last;
  out->top = first < whole ? (int64_t)(whole - first) : -(int64_t)(first - whole - 1);
  if (end < n) out->top += read_exponent(text + end + 1, n - end - 1);
  out->n = (uint32_t)(last - first - (inside ? 1 : 0));
  out->point = inside ? (uint32_t)(whole - first) : out->n;
  if (last - first < sizeof out->own) {
    memcpy(out->own, text + first, last - first);
  } else {
    out->text = text + first;
  }
}

bool decimal_is_number(const json_t *json) {
  return json_is_number(json) || weft_json_written(json) != NULL;
}

bool decimal_of(const json_t *json, decimal *out) {
  char text[40];
  const char *written = weft_json_written(json);
  if (written != NULL) {
    decimal_read(written, strlen(written), out);
  } else if (json_is_integer(json)) {
    int n = snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(json));
    decimal_read(text, (size_t)n, out);
  } else if (json_is_real(json)) {
    int digits = 1, n;
    do {
      n = snprintf(text, sizeof text, "%.*e", digits - 1, json_real_value(json));
    } while (strtod(text, NULL) != json_real_value(json) && ++digits <= 17);
    decimal_read(text, (size_t)n, out);
  } else {
    *out = (decimal){0};
    return false;
  }
  return true;
}

uint32_t decimal_digit(const decimal *d, int64_t i) {
  if (i < 0 || i >= (int64_t)d->n) return 0;
  const char *text = d->text != NULL ? d->text : d->own;
  return (uint32_t)(text[i + (i >= (int64_t)d->point ? 1 : 0)] - '0');
}

static int compare_sizes(const decimal *a, const decimal *b) {
  uint32_t n = a->n > b->n ? a->n : b->n;
  if (a->n == 0 || b->n == 0) return (a->n != 0) - (b->n != 0);
  if (a->top != b->top) return a->top < b->top ? -1 : 1;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t x = decimal_digit(a, i), y = decimal_digit(b, i);
    if (x != y) return x < y ? -1 : 1;
  }
  return 0;
}

int decimal_compare(const decimal *a, const decimal *b) {
  if (a->negative != b->negative) return a->negative ? -1 : 1;
  return a->negative ? -compare_sizes(a, b) : compare_sizes(a, b);
}

int decimal_compare_json(const json_t *a, const json_t *b) {
  decimal x, y;
  (void)decimal_of(a, &x);
  (void)decimal_of(b, &y);
  return decimal_compare(&x, &y);
}

bool decimal_is_whole(const decimal *d) {
  return (int64_t)d->n <= (d->top > 0 ? d->top : 0);
}

int64_t decimal_round(const decimal *d, bool up, bool *exact) {
  int64_t value = 0;
  *exact = decimal_is_whole(d);
  if (d->top > TOP_MAX) {
    *exact = false;
    return d->negative ? -farthest : farthest;
  }
  for (int64_t i = 0; i < d->top; i++) value = value * 10 + decimal_digit(d, i);
  if (d->negative) return -value - (!*exact && !up ? 1 : 0);
  return value + (!*exact && up ? 1 : 0);
}

int decimal_is_multiple(const decimal *d, const decimal *of) {
  __uint128_t divisor = 0, rest = 0;
  if (d->n == 0) return 1;
  if (of->n == 0) return 0;
  int64_t shift = (d->top - d->n) - (of->top - of->n); /* of the last digits of the two against each other */
  if (shift < 0) return 0;                             /* the number has a digit behind the last one of any multiple */
  if (of->n > DIVISOR_DIGITS || shift > SHIFT_MAX) return compare_sizes(d, of) == 0 ? 1 : -1;
  for (uint32_t i = 0; i < of->n; i++) divisor = divisor * 10 + decimal_digit(of, i);
  for (int64_t i = 0; i < d->n + shift; i++) rest = (rest * 10 + decimal_digit(d, i)) % divisor;
  return rest == 0 ? 1 : 0;
}
