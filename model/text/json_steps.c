/* SPDX-License-Identifier: MIT */
#include "model/text/json_steps.h"

#include <string.h>

enum {
  VALUE, /* a value begins; the first of all is the whole */
  LIST_FIRST,
  OBJECT_FIRST,
  NAME,
  COLON,
  AFTER, /* a value ended: , or the end of what it is in */
  STRING,
  ESCAPE,
  ESCAPE_HEX,
  LITERAL,
  MINUS,
  ZERO,
  DIGITS,
  POINT,
  FRACTION,
  EXPONENT,
  EXPONENT_SIGN,
  EXPONENT_DIGITS
};

static bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

static json_step move_to(json_steps *s, uint8_t state) {
  s->state = state;
  return JSON_STEP_MORE;
}

static json_step value_ends(json_steps *s) {
  s->state = AFTER;
  return s->depth == 0 ? JSON_STEP_DONE : JSON_STEP_MORE;
}

static json_step open_level(json_steps *s, bool object) {
  if (s->depth == WEFT_JSON_DEPTH) return JSON_STEP_BAD;
  uint64_t bit = (uint64_t)1 << s->depth++;
  s->objects = object ? s->objects | bit : s->objects & ~bit;
  return move_to(s, object ? OBJECT_FIRST : LIST_FIRST);
}

static bool in_object(const json_steps *s) {
  return s->depth > 0 && (s->objects >> (s->depth - 1) & 1) != 0;
}

static json_step close_level(json_steps *s) {
  s->depth -= 1;
  return value_ends(s);
}

static json_step begin_string(json_steps *s, bool key) {
  s->key = key;
  return move_to(s, STRING);
}

/* A value that is the whole must end with its own last byte, which numbers and literals do not. */
static json_step begin_value(json_steps *s, char c) {
  if (c == '{' || c == '[') return open_level(s, c == '{');
  if (c == '"') return begin_string(s, false);
  if (s->depth == 0) return JSON_STEP_BAD;
  if (c == '-') return move_to(s, MINUS);
  if (c == '0') return move_to(s, ZERO);
  if (is_digit(c)) return move_to(s, DIGITS);
  if (c != 't' && c != 'f' && c != 'n') return JSON_STEP_BAD;
  s->literal = c;
  s->n = 1;
  return move_to(s, LITERAL);
}

static json_step take_after(json_steps *s, char c) {
  if (is_blank(c)) return JSON_STEP_MORE;
  if (c == ',') return move_to(s, in_object(s) ? NAME : VALUE);
  if (c == (in_object(s) ? '}' : ']')) return close_level(s);
  return JSON_STEP_BAD;
}

static json_step take_string(json_steps *s, char c) {
  if (c == '\\') return move_to(s, ESCAPE);
  if ((unsigned char)c < 0x20) return JSON_STEP_BAD;
  if (c != '"') return JSON_STEP_MORE;
  return s->key ? move_to(s, COLON) : value_ends(s);
}

static json_step take_escape(json_steps *s, char c) {
  if (s->state == ESCAPE_HEX) {
    bool hex = is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
    return !hex ? JSON_STEP_BAD : move_to(s, ++s->n == 4 ? STRING : ESCAPE_HEX);
  }
  s->n = 0;
  if (c == 'u') return move_to(s, ESCAPE_HEX);
  return c != 0 && strchr("\"\\/bfnrt", c) != NULL ? move_to(s, STRING) : JSON_STEP_BAD;
}

static json_step take_literal(json_steps *s, char c) {
  const char *word = s->literal == 't' ? "true" : s->literal == 'f' ? "false" : "null";
  if (c != word[s->n]) return JSON_STEP_BAD;
  s->n += 1;
  return word[s->n] == 0 ? value_ends(s) : JSON_STEP_MORE;
}

/* A number goes on, or ends before this byte. */
static json_step take_number(json_steps *s, char c) {
  bool e = c == 'e' || c == 'E';
  switch (s->state) {
    case MINUS:
      return c == '0' ? move_to(s, ZERO) : is_digit(c) ? move_to(s, DIGITS) : JSON_STEP_BAD;
    case POINT:
      return is_digit(c) ? move_to(s, FRACTION) : JSON_STEP_BAD;
    case EXPONENT:
      if (c == '+' || c == '-') return move_to(s, EXPONENT_SIGN);
      return is_digit(c) ? move_to(s, EXPONENT_DIGITS) : JSON_STEP_BAD;
    case EXPONENT_SIGN:
      return is_digit(c) ? move_to(s, EXPONENT_DIGITS) : JSON_STEP_BAD;
    default:
      break;
  }
  if (is_digit(c) && s->state != ZERO) return JSON_STEP_MORE;
  if (c == '.' && (s->state == ZERO || s->state == DIGITS)) return move_to(s, POINT);
  if (e && s->state != EXPONENT_DIGITS) return move_to(s, EXPONENT);
  s->state = AFTER;
  return take_after(s, c);
}

json_step json_steps_take(json_steps *s, char c) {
  switch (s->state) {
    case VALUE:
      return is_blank(c) ? JSON_STEP_MORE : begin_value(s, c);
    case LIST_FIRST:
      return is_blank(c) ? JSON_STEP_MORE : c == ']' ? close_level(s) : begin_value(s, c);
    case OBJECT_FIRST:
      if (c == '}') return close_level(s);
      __attribute__((fallthrough));
    case NAME:
      return is_blank(c) ? JSON_STEP_MORE : c == '"' ? begin_string(s, true) : JSON_STEP_BAD;
    case COLON:
      return is_blank(c) ? JSON_STEP_MORE : c == ':' ? move_to(s, VALUE) : JSON_STEP_BAD;
    case AFTER:
      return take_after(s, c);
    case STRING:
      return take_string(s, c);
    case ESCAPE:
    case ESCAPE_HEX:
      return take_escape(s, c);
    case LITERAL:
      return take_literal(s, c);
    default:
      return take_number(s, c);
  }
}

bool json_steps_in_string(const json_steps *s) {
  return s->state == STRING;
}
