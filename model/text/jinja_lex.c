/* SPDX-License-Identifier: MIT */
/* A template's text to tokens: what lies outside of tags is data, with the white space taken away that trim_blocks,
 * lstrip_blocks and the signs - and + at tags ask for. */
#include <string.h>

#include "base/memory.h"
#include "model/text/jinja_syntax.h"

typedef struct lexer {
  weft_jinja *jinja;
  const char *text;
  size_t n, at;
  uint32_t line, capacity;
  bool at_line_start; /* what was read last ended a line, or nothing was read yet */
  weft_status status;
  weft_error *error;
} lexer;

#define LEX_FAIL(x, code, ...) \
  ((x)->status != WEFT_OK ? (void)0 : (void)((x)->status = weft_fail((x)->error, code, __VA_ARGS__)))

static void add_token(lexer *x, jinja_token_kind kind, const char *bytes, size_t n) {
  weft_jinja *jinja = x->jinja;
  if (x->status != WEFT_OK) return;
  jinja_token *tokens = weft_grow(jinja->tokens, jinja->n_tokens, &x->capacity, 256, sizeof *tokens);
  if (tokens == NULL) {
    LEX_FAIL(x, WEFT_E_NO_MEMORY, "out of memory while reading the chat template");
    return;
  }
  jinja->tokens = tokens;
  jinja->tokens[jinja->n_tokens++] = (jinja_token){kind, x->line, bytes, n};
}

static bool starts_with(const lexer *x, size_t at, const char *word) {
  size_t n = strlen(word);
  return at <= x->n && x->n - at >= n && memcmp(x->text + at, word, n) == 0;
}

static void skip_to(lexer *x, size_t to) {
  for (; x->at < to; x->at++) x->line += x->text[x->at] == '\n';
}

static size_t after_spaces(const lexer *x, size_t at) {
  uint32_t c;
  while (at < x->n) {
    size_t length = weft_utf8_decode(x->text + at, x->n - at, &c);
    if (length == 0 || !jinja_is_space(c)) break;
    at += length;
  }
  return at;
}

static size_t before_spaces(const lexer *x, size_t from, size_t to) {
  jinja_string s = {.bytes = x->text + from, .n = to - from};
  return from + jinja_strip(&s, NULL, false, true).n;
}

/* The end of a tag at `at`: [-+]close, with the white space that the sign or trim_blocks removes. 0: no end is here. */
static size_t tag_end(const lexer *x, size_t at, const char *close, bool trims) {
  if (starts_with(x, at, "-") && starts_with(x, at + 1, close)) return after_spaces(x, at + 1 + strlen(close));
  if (trims && starts_with(x, at, "+") && starts_with(x, at + 1, close)) return at + 1 + strlen(close);
  if (!starts_with(x, at, close)) return 0;
  at += strlen(close);
  return trims && at < x->n && x->text[at] == '\n' ? at + 1 : at;
}

static void end_tag(lexer *x, size_t end) {
  skip_to(x, end);
  x->at_line_start = end > 0 && x->text[end - 1] == '\n';
}

/* The data from x->at to a tag that begins at `to`, without what lstrip_blocks or '-' removes. */
static void add_data(lexer *x, size_t to, bool is_print) {
  size_t from = x->at, end = to;
  char sign = to + 2 < x->n ? x->text[to + 2] : 0;
  if (to < x->n && sign == '-') {
    end = before_spaces(x, from, to);
  } else if (to < x->n && sign != '+' && !is_print) {
    size_t line = to;
    while (line > from && x->text[line - 1] != '\n') line -= 1;
    if ((line > from || x->at_line_start) && before_spaces(x, line, to) == line) end = line;
  }
  if (end > from) add_token(x, TOKEN_DATA, x->text + from, end - from);
  skip_to(x, to);
}

static int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The character of an escape \x41, \u0041, \U00000041 or \101; *from is behind the backslash and is moved
 * behind the escape. */
static bool numeric_escape(lexer *x, const char **from, const char *end, uint32_t *c) {
  char kind = **from;
  size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
  *c = 0;
  if (digits == 0) {
    const char *at = *from;
    for (; at < end && at < *from + 3 && *at >= '0' && *at <= '7'; at++) *c = *c * 8 + (uint32_t)(*at - '0');
    *from = at;
    return true;
  }
  *from += 1;
  for (size_t i = 0; i < digits; i++, *from += 1) {
    int value = *from < end ? hex_value(**from) : -1;
    if (value < 0 || *c > 0x10FFFF) goto bad;
    *c = *c * 16 + (uint32_t)value;
  }
  if (*c <= 0x10FFFF && (*c < 0xD800 || *c > 0xDFFF)) return true;
bad:
  LEX_FAIL(x, WEFT_E_FORMAT, "line %u: \\%c in a string names no character", x->line, kind);
  return false;
}

/* A literal between from and end, its escapes done as Python does them; an unknown escape keeps its backslash. */
static void add_literal(lexer *x, const char *from, const char *end) {
  static const char plain[] = "\\'\"nrtabfv", made[] = "\\'\"\n\r\t\a\b\f\v";
  if (memchr(from, '\\', (size_t)(end - from)) == NULL) {
    add_token(x, TOKEN_TEXT, from, (size_t)(end - from));
    return;
  }
  char *out = jinja_arena_take(&x->jinja->arena, (size_t)(end - from)), *to = out;
  if (out == NULL) {
    LEX_FAIL(x, WEFT_E_NO_MEMORY, "out of memory while reading the chat template");
    return;
  }
  while (from < end) {
    uint32_t c = 0;
    if (*from != '\\' || from + 1 == end) {
      *to++ = *from++;
      continue;
    }
    from += 1;
    const char *known = memchr(plain, *from, sizeof plain - 1);
    if (known != NULL) {
      *to++ = made[known - plain];
      from += 1;
    } else if (*from == '\n') {
      from += 1;
    } else if (*from == 'x' || *from == 'u' || *from == 'U' || (*from >= '0' && *from <= '7')) {
      if (!numeric_escape(x, &from, end, &c)) return;
      to += weft_utf8_encode(c, to);
    } else if (*from == 'N') {
      LEX_FAIL(x, WEFT_E_UNSUPPORTED, "line %u: names of characters (\\N{...}) are not supported", x->line);
      return;
    } else {
      *to++ = '\\';
    }
  }
  add_token(x, TOKEN_TEXT, out, (size_t)(to - out));
}

static void lex_literal(lexer *x) {
  char quote = x->text[x->at];
  size_t end = x->at + 1;
  while (end < x->n && x->text[end] != quote) end += x->text[end] == '\\' ? 2 : 1;
  if (end >= x->n) {
    LEX_FAIL(x, WEFT_E_FORMAT, "line %u: a string is not closed", x->line);
    return;
  }
  add_literal(x, x->text + x->at + 1, x->text + end);
  skip_to(x, end + 1);
}

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

static bool is_name(char c) {
  return is_digit(c) || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (unsigned char)c >= 0x80;
}

static void lex_number(lexer *x) {
  size_t end = x->at;
  jinja_token_kind kind = TOKEN_INT;
  while (end < x->n && (is_digit(x->text[end]) || x->text[end] == '_')) end += 1;
  bool attribute = x->at > 0 && x->text[x->at - 1] == '.'; /* in a.0.b no fraction follows */
  if (!attribute && end + 1 < x->n && x->text[end] == '.' && is_digit(x->text[end + 1])) {
    kind = TOKEN_FLOAT;
    for (end += 1; end < x->n && (is_digit(x->text[end]) || x->text[end] == '_');) end += 1;
  }
  size_t power = end;
  if (power < x->n && (x->text[power] == 'e' || x->text[power] == 'E')) {
    power += 1;
    if (power < x->n && (x->text[power] == '+' || x->text[power] == '-')) power += 1;
    if (power < x->n && is_digit(x->text[power])) {
      kind = TOKEN_FLOAT;
      for (end = power; end < x->n && is_digit(x->text[end]);) end += 1;
    }
  }
  if (end < x->n && is_name(x->text[end])) {
    LEX_FAIL(x, WEFT_E_FORMAT, "line %u: a number runs into a name", x->line);
    return;
  }
  add_token(x, kind, x->text + x->at, end - x->at);
  x->at = end;
}

static void lex_operator(lexer *x, int32_t *brackets) {
  static const char *const two[] = {"**", "//", "==", "!=", "<=", ">="};
  char c = x->text[x->at];
  size_t n = 0;
  for (size_t i = 0; i < sizeof two / sizeof *two && n == 0; i++) n = starts_with(x, x->at, two[i]) ? 2 : 0;
  if (n == 0 && c != 0 && strchr("+-*/%~<>=.,:|()[]{}", c) != NULL) n = 1;
  if (n == 0) {
    LEX_FAIL(x, WEFT_E_FORMAT, "line %u: the character '%.*s' means nothing here", x->line,
             (unsigned char)c < 0x80 ? 1 : 0, x->text + x->at);
    return;
  }
  *brackets += (c == '(' || c == '[' || c == '{') - (c == ')' || c == ']' || c == '}');
  if (*brackets < 0) LEX_FAIL(x, WEFT_E_FORMAT, "line %u: '%c' closes nothing", x->line, c);
  add_token(x, TOKEN_OPERATOR, x->text + x->at, n);
  x->at += n;
}

/* The inside of {{ }} or {% %} and its end. */
static void lex_inside(lexer *x, bool is_print) {
  uint32_t line = x->line;
  int32_t brackets = 0;
  while (x->status == WEFT_OK) {
    size_t end = brackets > 0 || x->at >= x->n ? 0 : tag_end(x, x->at, is_print ? "}}" : "%}", !is_print);
    if (end > 0) {
      add_token(x, is_print ? TOKEN_PRINT_END : TOKEN_BLOCK_END, x->text + x->at, 0);
      end_tag(x, end);
      return;
    }
    if (x->at >= x->n) {
      LEX_FAIL(x, WEFT_E_FORMAT, "line %u: '%s' is not closed", line, is_print ? "{{" : "{%");
      return;
    }
    char c = x->text[x->at];
    size_t spaces = after_spaces(x, x->at);
    if (spaces > x->at) {
      skip_to(x, spaces);
    } else if (c == '\'' || c == '"') {
      lex_literal(x);
    } else if (is_digit(c)) {
      lex_number(x);
    } else if (is_name(c)) {
      size_t name = x->at;
      while (name < x->n && is_name(x->text[name])) name += 1;
      add_token(x, TOKEN_NAME, x->text + x->at, name - x->at);
      x->at = name;
    } else {
      lex_operator(x, &brackets);
    }
  }
}

static void lex_comment(lexer *x) {
  for (size_t at = x->at + 2; at < x->n; at++) {
    size_t end = tag_end(x, at, "#}", true);
    if (end == 0) continue;
    end_tag(x, end);
    return;
  }
  LEX_FAIL(x, WEFT_E_FORMAT, "line %u: '{#' is not closed", x->line);
}

/* {% raw %} at x->at: everything to {% endraw %} is data. False: another block is here. */
static bool lex_raw(lexer *x) {
  size_t at = x->at + 2;
  if (at < x->n && (x->text[at] == '-' || x->text[at] == '+')) at += 1;
  at = after_spaces(x, at);
  if (!starts_with(x, at, "raw")) return false;
  size_t close = after_spaces(x, at + 3);
  size_t begin = tag_end(x, close, "%}", false);
  if (begin == 0) return false;
  end_tag(x, begin);
  for (size_t i = x->at; i + 1 < x->n; i++) {
    if (!starts_with(x, i, "{%")) continue;
    size_t word = i + 2;
    if (word < x->n && (x->text[word] == '-' || x->text[word] == '+')) word += 1;
    word = after_spaces(x, word);
    if (!starts_with(x, word, "endraw")) continue;
    size_t end = tag_end(x, after_spaces(x, word + 6), "%}", true);
    if (end == 0) continue;
    add_data(x, i, false);
    end_tag(x, end);
    return true;
  }
  LEX_FAIL(x, WEFT_E_FORMAT, "line %u: raw is not closed", x->line);
  return true;
}

static void lex_tag(lexer *x) {
  char kind = x->text[x->at + 1];
  if (kind == '#') {
    lex_comment(x);
    return;
  }
  if (kind == '%' && lex_raw(x)) return;
  add_token(x, kind == '{' ? TOKEN_PRINT_BEGIN : TOKEN_BLOCK_BEGIN, x->text + x->at, 2);
  x->at += 2;
  char sign = x->at < x->n ? x->text[x->at] : 0;
  if (sign == '-' || (sign == '+' && kind == '%')) x->at += 1;
  lex_inside(x, kind == '{');
}

/* Newlines of all systems become \n, and one at the very end is no part of the template. */
static void normalise_newlines(weft_jinja *jinja) {
  size_t n = 0;
  for (size_t i = 0; i < jinja->n; i++) {
    char c = jinja->text[i];
    if (c == '\r' && i + 1 < jinja->n && jinja->text[i + 1] == '\n') continue;
    jinja->text[n++] = c == '\r' ? '\n' : c;
  }
  jinja->n = n > 0 && jinja->text[n - 1] == '\n' ? n - 1 : n;
}

weft_status jinja_lex(weft_jinja *jinja, weft_error *error) {
  normalise_newlines(jinja);
  lexer x = {.jinja = jinja, .text = jinja->text, .n = jinja->n, .line = 1, .at_line_start = true, .error = error};
  while (x.at < x.n && x.status == WEFT_OK) {
    size_t tag = x.at;
    while (tag < x.n && !starts_with(&x, tag, "{{") && !starts_with(&x, tag, "{%") && !starts_with(&x, tag, "{#"))
      tag += 1;
    add_data(&x, tag, tag + 1 < x.n && x.text[tag + 1] == '{');
    if (tag < x.n && x.status == WEFT_OK) lex_tag(&x);
  }
  add_token(&x, TOKEN_END, "", 0);
  return x.status;
}
