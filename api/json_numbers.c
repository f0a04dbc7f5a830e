/* SPDX-License-Identifier: MIT */
/* Numbers as JSON, in the bytes that "%.9g" and "%lld" give and many times as fast: an answer with logprobs is mostly
 * numbers, and it is written by the thread that all clients share. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/json.h"

typedef unsigned __int128 wide;

enum { DIGITS = 9, FIVES = 28, TENS = 20, DECIMAL_BYTES = 24 };
static const uint64_t least = 100000000, most = 1000000000; /* numbers of nine digits are in [least, most) */

static uint64_t power_of(uint64_t base, uint32_t n) {
  uint64_t power = 1;
  for (uint32_t i = 0; i < n; i++) power *= base;
  return power;
}

/* mantissa x 2^exponent x 10^scale as a whole number and what is left of it, in units of which `unit` are one. False:
 * that does not fit. */
static bool scale_exactly(uint64_t mantissa, int exponent, int scale, wide *whole, wide *rest, wide *unit) {
  if (scale >= FIVES || scale <= -TENS) return false;
  wide value = mantissa;
  *unit = scale < 0 ? power_of(10, (uint32_t)-scale) : 1;
  if (scale > 0) {
    value *= power_of(5, (uint32_t)scale);
    exponent += scale;
  }
  if (exponent > 0) {
    if (exponent > 63 || value >> (127 - exponent) != 0) return false;
    value <<= exponent;
  } else if (exponent < 0) {
    if (exponent < -126 || *unit >> (127 + exponent) != 0) return false;
    *unit <<= -exponent;
  }
  bool two = scale >= 0; /* a power of two, which a division of 128 bits would not see */
  *whole = two ? value >> (exponent < 0 ? -exponent : 0) : value / *unit;
  *rest = two ? value & (*unit - 1) : value % *unit;
  return true;
}

/* value = digits x 10^(*power - 8), rounded as printf rounds: to the nearest, of two as near to the even one. False: it
 * is too large or too small for exact arithmetic in 128 bits. */
static bool to_nine_digits(double value, uint64_t *digits, int *power) {
  int exponent;
  uint64_t mantissa = (uint64_t)ldexp(frexp(value, &exponent), 53);
  int zeros = __builtin_ctzll(mantissa);
  wide whole, rest, unit;
  int at = (int)floor((exponent - 1) * 0.30102999566398120);
  mantissa >>= zeros;
  exponent += zeros - 53;
  for (;; at += whole < least ? -1 : 1) {
    if (!scale_exactly(mantissa, exponent, DIGITS - 1 - at, &whole, &rest, &unit)) return false;
    if (whole >= least && whole < most) break;
  }
  if (2 * rest > unit || (2 * rest == unit && whole % 2 == 1)) whole += 1;
  if (whole == most) {
    whole = least;
    at += 1;
  }
  *digits = (uint64_t)whole;
  *power = at;
  return true;
}

/* Writes digits as text, without zeros at the end; returns how many there are. */
static uint32_t spell_digits(uint64_t digits, char text[DIGITS]) {
  uint32_t n = DIGITS;
  for (uint32_t i = DIGITS; i > 0; i--, digits /= 10) text[i - 1] = (char)('0' + digits % 10);
  while (n > 1 && text[n - 1] == '0') n--;
  return n;
}

static void put_scientific(const char *digits, uint32_t n, int power, weft_text *out) {
  weft_text_append(out, digits, 1);
  if (n > 1) {
    weft_text_append(out, ".", 1);
    weft_text_append(out, digits + 1, n - 1);
  }
  weft_text_append(out, power < 0 ? "e-" : "e+", 2);
  int size = power < 0 ? -power : power;
  if (size < 10) weft_text_append(out, "0", 1);
  weft_json_int(out, size);
}

/* -4 <= power < 9 */
static void put_fixed(const char *digits, uint32_t n, int power, weft_text *out) {
  static const char zeros[] = "000000000";
  if (power < 0) {
    weft_text_append(out, "0.", 2);
    weft_text_append(out, zeros, (size_t)(-power - 1));
    weft_text_append(out, digits, n);
    return;
  }
  uint32_t before = (uint32_t)power + 1, given = n < before ? n : before;
  weft_text_append(out, digits, given);
  weft_text_append(out, zeros, before - given);
  if (n <= before) return;
  weft_text_append(out, ".", 1);
  weft_text_append(out, digits + before, n - before);
}

void weft_json_real(weft_text *out, double value) {
  char text[DIGITS];
  uint64_t digits;
  int power;
  if (!isfinite(value)) {
    weft_text_puts(out, "null");
    return;
  }
  if (fpclassify(value) != FP_NORMAL || !to_nine_digits(fabs(value), &digits, &power)) {
    weft_text_printf(out, "%.9g", value);
    return;
  }
  uint32_t n = spell_digits(digits, text);
  if (value < 0) weft_text_append(out, "-", 1);
  if (power < -4 || power >= DIGITS) {
    put_scientific(text, n, power, out);
  } else {
    put_fixed(text, n, power, out);
  }
}

void weft_json_int(weft_text *out, int64_t value) {
  char text[DECIMAL_BYTES];
  size_t at = sizeof text;
  uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
  do {
    text[--at] = (char)('0' + left % 10);
    left /= 10;
  } while (left > 0);
  if (value < 0) text[--at] = '-';
  weft_text_append(out, text + at, sizeof text - at);
}

void weft_json_ids(weft_text *out, const int32_t *ids, uint32_t n) {
  weft_text_append(out, "[", 1);
  for (uint32_t i = 0; i < n; i++) {
    if (i > 0) weft_text_append(out, ",", 1);
    weft_json_int(out, ids[i]);
  }
  weft_text_append(out, "]", 1);
}
