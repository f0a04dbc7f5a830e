/* SPDX-License-Identifier: MIT */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/formats/unicode_class.h"

#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

enum {
  CHUNK = 2048, /* characters that are looked at together */
  CHARACTER_MAX = 0x10FFFF,
  STEPS_OF_CHUNK = 2048
};

void unicode_classes_close(unicode_classes *classes) {
  for (uint32_t i = 0; i < classes->n; i++) weft_free(classes->of[i].range);
  classes->n = 0;
}

/* The names of general categories that PCRE2 knows by their short ones. */
static const char *short_name(const char *name) {
  static const char *const names[][2] = {{"Letter", "L"},
                                         {"Cased_Letter", "L&"},
                                         {"LC", "L&"},
                                         {"Uppercase_Letter", "Lu"},
                                         {"Lowercase_Letter", "Ll"},
                                         {"Titlecase_Letter", "Lt"},
                                         {"Modifier_Letter", "Lm"},
                                         {"Other_Letter", "Lo"},
                                         {"Mark", "M"},
                                         {"Combining_Mark", "M"},
                                         {"Nonspacing_Mark", "Mn"},
                                         {"Spacing_Mark", "Mc"},
                                         {"Enclosing_Mark", "Me"},
                                         {"Number", "N"},
                                         {"Decimal_Number", "Nd"},
                                         {"digit", "Nd"},
                                         {"Letter_Number", "Nl"},
                                         {"Other_Number", "No"},
                                         {"Punctuation", "P"},
                                         {"punct", "P"},
                                         {"Connector_Punctuation", "Pc"},
                                         {"Dash_Punctuation", "Pd"},
                                         {"Open_Punctuation", "Ps"},
                                         {"Close_Punctuation", "Pe"},
                                         {"Initial_Punctuation", "Pi"},
                                         {"Final_Punctuation", "Pf"},
                                         {"Other_Punctuation", "Po"},
                                         {"Symbol", "S"},
                                         {"Math_Symbol", "Sm"},
                                         {"Currency_Symbol", "Sc"},
                                         {"Modifier_Symbol", "Sk"},
                                         {"Other_Symbol", "So"},
                                         {"Separator", "Z"},
                                         {"Space_Separator", "Zs"},
                                         {"Line_Separator", "Zl"},
                                         {"Paragraph_Separator", "Zp"},
                                         {"Other", "C"},
                                         {"Control", "Cc"},
                                         {"Format", "Cf"},
                                         {"Surrogate", "Cs"},
                                         {"Private_Use", "Co"},
                                         {"Unassigned", "Cn"}};
  static const char *const prefixes[] = {"General_Category=", "gc="};
  for (size_t i = 0; i < 2; i++) {
    if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) name += strlen(prefixes[i]);
  }
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (strcmp(names[i][0], name) == 0) return names[i][1];
  }
  return name;
}

static pcre2_code *compile_class(const char *name) {
  char pattern[UNICODE_NAME_MAX + 16];
  int code;
  PCRE2_SIZE at;
  if (strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_=&") != strlen(name)) return NULL;
  const char *only = strcmp(name, "Assigned") == 0 ? "\\P{Cn}+" : NULL;
  if (only == NULL) (void)snprintf(pattern, sizeof pattern, "\\p{%s}+", name);
  return pcre2_compile((PCRE2_SPTR)(only == NULL ? pattern : only), PCRE2_ZERO_TERMINATED,
                       PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
}

typedef struct finder {
  grammar_builder *b;
  unicode_class *class;
  uint32_t capacity;
  pcre2_code *code;
  pcre2_match_data *match;
  char text[4 * CHUNK];
  uint32_t at[4 * CHUNK]; /* the character that begins at a byte */
} finder;

static bool push_range(finder *f, uint32_t low, uint32_t high) {
  unicode_class *c = f->class;
  if (c->n > 0 && c->range[c->n - 1][1] + 1 == low) {
    c->range[c->n - 1][1] = high;
    return true;
  }
  if (!builder_grow(f->b, (void **)&c->range, c->n, &f->capacity, sizeof *c->range)) return false;
  c->range[c->n][0] = low;
  c->range[c->n++][1] = high;
  return true;
}

/* The characters low to high, none of which is a surrogate. */
static bool find_chunk(finder *f, uint32_t low, uint32_t high) {
  size_t n = 0, from = 0;
  if (!builder_step(f->b, STEPS_OF_CHUNK)) return false;
  for (uint32_t c = low; c <= high; c++) {
    f->at[n] = c;
    n += weft_utf8_encode(c, f->text + n);
  }
  while (from < n) {
    int found = pcre2_match(f->code, (PCRE2_SPTR)f->text, n, from, PCRE2_NO_UTF_CHECK, f->match, NULL);
    if (found == PCRE2_ERROR_NOMATCH) return true;
    if (found < 0) {
      builder_fail(f->b, WEFT_E_NO_MEMORY, "no memory for a class of characters");
      return false;
    }
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(f->match);
    if (!push_range(f, f->at[span[0]], span[1] == n ? high : f->at[span[1]] - 1)) return false;
    from = span[1];
  }
  return true;
}

static bool find_all(finder *f) {
  for (uint32_t low = 0; low <= CHARACTER_MAX; low += CHUNK) {
    bool surrogates = low >= 0xD800 && low < 0xE000;
    if (!surrogates && !find_chunk(f, low, low + CHUNK - 1)) return false;
  }
  return true;
}

const unicode_class *unicode_class_of(grammar_builder *b, const char *name) {
  unicode_classes *all = b->classes;
  name = short_name(name);
  for (uint32_t i = 0; all != NULL && i < all->n; i++) {
    if (strcmp(all->of[i].name, name) == 0) return &all->of[i];
  }
  pcre2_code *code = strlen(name) < UNICODE_NAME_MAX ? compile_class(name) : NULL;
  if (code == NULL) return NULL;
  (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without it the same is found, later */
  finder *f = weft_alloc(1, sizeof *f);
  bool room = all != NULL && all->n < UNICODE_CLASSES_MAX, found = false;
  if (!room)
    builder_fail(b, WEFT_E_TOO_LARGE, "a grammar has at most %d classes by Unicode properties", UNICODE_CLASSES_MAX);
  if (f == NULL) builder_fail(b, WEFT_E_NO_MEMORY, "no memory for a class of characters");
  if (f != NULL && room) {
    *f = (finder){.b = b, .class = &all->of[all->n], .code = code, .match = pcre2_match_data_create(1, NULL)};
    *f->class = (unicode_class){0};
    (void)snprintf(f->class->name, sizeof f->class->name, "%s", name);
    if (f->match == NULL) builder_fail(b, WEFT_E_NO_MEMORY, "no memory for a class of characters");
    found = f->match != NULL && find_all(f);
    if (!found) weft_free(f->class->range);
    all->n += found ? 1 : 0;
    pcre2_match_data_free(f->match);
  }
  pcre2_code_free(code);
  weft_free(f);
  return found ? &all->of[all->n - 1] : NULL;
}
