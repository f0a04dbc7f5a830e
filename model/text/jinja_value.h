/* SPDX-License-Identifier: MIT */
/* What a template computes with, private to model/jinja*.c and their tests.
 *
 * Law: a template has one arena for all its memory, and each render another one; nothing in an arena is freed before
 * the whole arena. Strings, lists and dicts never change once they can be seen (a namespace does), so they are shared
 * freely and form no cycle; only a namespace may reach itself, and nothing walks into a namespace.
 * The marks of a string (model/text/jinja.h) lie beside its bytes; a string made of others carries theirs. */
#ifndef WEFT_MODEL_TEXT_JINJA_VALUE_H
#define WEFT_MODEL_TEXT_JINJA_VALUE_H

#include "model/text/jinja.h"

typedef struct jinja_run jinja_run;

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct jinja_arena {
  struct jinja_chunk *last;
  size_t n_bytes, max; /* n_bytes: taken from the system; max: its limit */
  bool over;           /* a refusal came from max, not from the system */
} jinja_arena;

/* n zeroed bytes, aligned for any type; NULL when refused. */
void *jinja_arena_take(jinja_arena *arena, size_t n);
void jinja_arena_close(jinja_arena *arena);

/* ---- values ---------------------------------------------------------------------------------- */

typedef enum jinja_kind {
  JINJA_UNDEFINED,
  JINJA_NONE,
  JINJA_BOOL,
  JINJA_INT,
  JINJA_FLOAT,
  JINJA_STRING,
  JINJA_LIST,
  JINJA_DICT,
  JINJA_NAMESPACE,
  JINJA_LOOP,
  JINJA_MACRO,
  JINJA_FUNCTION, /* a global function, for example range */
  JINJA_METHOD    /* of a string or dict */
} jinja_kind;

/* Bytes that may still grow at their end. */
typedef struct jinja_buffer {
  char *bytes;
  weft_jinja_mark *marks;
  size_t n, capacity;
} jinja_buffer;

typedef struct jinja_string {
  const char *bytes;
  const weft_jinja_mark *marks; /* NULL: all 0 */
  size_t n;
  jinja_buffer *buffer; /* the buffer that holds the bytes, when they may be appended to in place; else NULL */
} jinja_string;

typedef enum jinja_flavour {
  JINJA_FLAVOUR_LIST,
  JINJA_FLAVOUR_TUPLE,
  JINJA_FLAVOUR_RANGE,    /* items is NULL */
  JINJA_FLAVOUR_GENERATOR /* what map and select give: always true, has no length */
} jinja_flavour;

struct jinja_value;
typedef struct jinja_list {
  const struct jinja_value *items;
  size_t n;
  jinja_flavour flavour;
  int64_t start, step; /* of a range */
} jinja_list;

typedef struct jinja_value {
  jinja_kind kind;
  uint32_t written; /* of a FLOAT that is a number no other value can hold: 1 + its place in jinja_run.written */
  union {
    bool truth;
    int64_t integer;
    double real;
    const jinja_string *string; /* undefined: the undefined variable's name, or NULL */
    const jinja_list *list;
    struct jinja_dict *dict; /* also of a namespace */
    struct jinja_loop *loop;
    const struct jinja_macro *macro;
    const struct jinja_function *function;
    const struct jinja_bound *bound;
  };
} jinja_value;

typedef struct jinja_entry {
  jinja_value key, value;
} jinja_entry;

typedef struct jinja_dict {
  jinja_entry *entries; /* in the order they came */
  size_t n, capacity;
} jinja_dict;

typedef struct jinja_loop {
  const jinja_list *list;
  size_t at;
} jinja_loop;

typedef struct jinja_macro {
  const struct jinja_node *node;
  struct jinja_scope *scope; /* where it was defined */
} jinja_macro;

typedef struct jinja_args {
  const jinja_value *values;
  const jinja_string **names; /* names[i] NULL: passed by position; such values come first */
  size_t n;
} jinja_args;

/* ---- making values --------------------------------------------------------------------------- */

static inline jinja_value jinja_nothing(void) {
  return (jinja_value){.kind = JINJA_UNDEFINED};
}
static inline jinja_value jinja_none(void) {
  return (jinja_value){.kind = JINJA_NONE};
}
static inline jinja_value jinja_bool(bool truth) {
  return (jinja_value){.kind = JINJA_BOOL, .truth = truth};
}
static inline jinja_value jinja_int(int64_t integer) {
  return (jinja_value){.kind = JINJA_INT, .integer = integer};
}
static inline jinja_value jinja_float(double real) {
  return (jinja_value){.kind = JINJA_FLOAT, .real = real};
}
jinja_value jinja_string_value(jinja_run *run, jinja_string string); /* the bytes are not copied */
jinja_value jinja_word(jinja_run *run, const char *zero_ended);      /* computed text: marks 0; not copied */
jinja_value jinja_list_value(jinja_run *run, const jinja_value *items, size_t n, jinja_flavour flavour);
jinja_value jinja_dict_new(jinja_run *run, jinja_kind kind); /* a dict or a namespace */
/* Sets or adds an entry; fails where the key is a list, a dict or another value that cannot be one. */
void jinja_dict_set(jinja_run *run, jinja_dict *dict, jinja_value key, jinja_value value);
/* The value of a key, in the dict, until the next entry is added; NULL: there is no such key, or the render failed. */
const jinja_value *jinja_dict_find(jinja_run *run, const jinja_dict *dict, jinja_value key);
const jinja_value *jinja_dict_get(jinja_run *run, const jinja_dict *dict, const char *key);

/* Append to a buffer: a string with its marks; computed text, whose marks are 0. Nothing happens after a failure. */
void jinja_append(jinja_run *run, jinja_buffer *out, const jinja_string *string);
void jinja_puts(jinja_run *run, jinja_buffer *out, const char *computed);
void jinja_append_text(jinja_run *run, jinja_buffer *out, const char *computed, size_t n);
/* What stands for the character at of->bytes[at]: it carries the mark of that byte if that is one of a message. */
void jinja_append_escape(jinja_run *run, jinja_buffer *out, const jinja_string *of, size_t at, const char *escape);
jinja_value jinja_buffer_value(jinja_run *run, jinja_buffer *buffer); /* a string that lies in the buffer, not copied */
/* a, then b; in a's buffer where a ends at the buffer's end. */
jinja_value jinja_concat(jinja_run *run, const jinja_string *a, const jinja_string *b);
jinja_string jinja_part(const jinja_string *s, size_t from, size_t to); /* the bytes [from, to) of s, not copied */

/* ---- asking values --------------------------------------------------------------------------- */

const char *jinja_type_name(jinja_value value);
bool jinja_truth(jinja_value value);
bool jinja_equal(jinja_run *run, jinja_value a, jinja_value b);
/* < 0, 0 or > 0, as a is less than, equal to or greater than b; fails for what has no order. */
int jinja_compare(jinja_run *run, jinja_value a, jinja_value b);
bool jinja_contains(jinja_run *run, jinja_value container, jinja_value item);
bool jinja_is_number(jinja_value value); /* int, float, bool */
double jinja_number(jinja_value value);
static inline bool jinja_string_is(const jinja_string *s, const char *word, size_t n) {
  return s->n == n && __builtin_memcmp(s->bytes, word, n) == 0;
}

/* What a for loop goes through: a list's items, a dict's keys, a string's characters; nothing for
 * undefined. Fails for any other value. */
const jinja_list *jinja_iterate(jinja_run *run, jinja_value value);
jinja_value jinja_list_at(const jinja_list *list, size_t i);
int64_t jinja_length(jinja_run *run, jinja_value value); /* undefined has 0; a generator has none, and fails */
jinja_value jinja_attribute(jinja_run *run, jinja_value of, const jinja_string *name); /* of.name */
jinja_value jinja_item(jinja_run *run, jinja_value of, jinja_value key);               /* of[key] */
jinja_value jinja_slice(jinja_run *run, jinja_value of, jinja_value from, jinja_value to, jinja_value step);
/* The value at a dotted path, as attribute= of filters takes it. */
jinja_value jinja_path(jinja_run *run, jinja_value of, jinja_value path);

/* Text of a value as {{ }} prints it. Never NULL. */
const jinja_string *jinja_text(jinja_run *run, jinja_value value);
void jinja_append_value(jinja_run *run, jinja_buffer *out, jinja_value value);
void jinja_append_float(jinja_run *run, jinja_buffer *out, double real);

typedef struct jinja_json_form {
  bool ascii, sorted, indented;
  const jinja_string *indent, *item_separator, *key_separator;
} jinja_json_form;

void jinja_json_write(jinja_run *run, jinja_buffer *out, jinja_value value, const jinja_json_form *form);
jinja_value jinja_json_read(jinja_run *run, const json_t *json);

/* ---- text ------------------------------------------------------------------------------------ */

void jinja_make_line(char *text); /* in place: replaces what could break the line, or is no UTF-8 */

bool jinja_is_space(uint32_t code_point); /* as Python's strip and split see it */
/* Letters of Latin, Greek and Cyrillic; others stay. */
uint32_t jinja_upper(uint32_t code_point);
uint32_t jinja_lower(uint32_t code_point);
int64_t jinja_string_length(jinja_run *run, const jinja_string *s); /* in characters */
/* The byte where character k begins; s->n when there are fewer characters. */
size_t jinja_string_offset(const jinja_string *s, size_t k);
/* s without the characters of set at its left end, its right end, or both; set NULL: white space. */
jinja_string jinja_strip(const jinja_string *s, const jinja_string *set, bool left, bool right);
/* Like jinja_strip, but gives a value, and counts its steps. */
jinja_value jinja_strip_counted(jinja_run *run, const jinja_string *s, const jinja_string *set, bool left, bool right);
jinja_value jinja_replace(jinja_run *run, const jinja_string *s, const jinja_string *old, const jinja_string *with,
                          int64_t n_max);
typedef enum jinja_case { CASE_UPPER, CASE_LOWER, CASE_CAPITAL, CASE_TITLE, CASE_HEADLINE } jinja_case;
jinja_value jinja_recase(jinja_run *run, const jinja_string *s, jinja_case as);
jinja_value jinja_split_lines(jinja_run *run, const jinja_string *s);

/* A list that is being made. */
typedef struct jinja_items {
  jinja_value *items;
  size_t n, capacity;
} jinja_items;

void jinja_items_add(jinja_run *run, jinja_items *items, jinja_value value);
static inline jinja_value jinja_items_value(jinja_run *run, const jinja_items *items, jinja_flavour flavour) {
  return jinja_list_value(run, items->items, items->n, flavour);
}

#endif
