/* SPDX-License-Identifier: MIT */
/* Values: lists, dicts, and the questions that every value answers. */
#include <math.h>
#include <string.h>

#include "model/text/jinja_internal.h"

const char *jinja_type_name(jinja_value value) {
  static const char *const names[] = {"undefined", "none",       "a boolean", "a number",    "a number",
                                      "a string",  "a list",     "a mapping", "a namespace", "a loop",
                                      "a macro",   "a function", "a function"};
  return names[value.kind];
}

/* ---- lists and dicts ------------------------------------------------------------------------- */

jinja_value jinja_list_value(jinja_run *run, const jinja_value *items, size_t n, jinja_flavour flavour) {
  static const jinja_list empty = {0};
  jinja_list *list = jinja_take(run, sizeof *list);
  if (list == NULL) return (jinja_value){.kind = JINJA_LIST, .list = &empty};
  *list = (jinja_list){.items = items, .n = n, .flavour = flavour};
  return (jinja_value){.kind = JINJA_LIST, .list = list};
}

jinja_value jinja_list_at(const jinja_list *list, size_t i) {
  return list->flavour == JINJA_FLAVOUR_RANGE ? jinja_int(list->start + (int64_t)i * list->step) : list->items[i];
}

/* weft_grow, in the run's arena: the old memory stays there till the run ends. */
static void *grow_in_arena(jinja_run *run, void *items, size_t n, size_t *capacity, size_t first, size_t size) {
  if (n < *capacity) return items;
  size_t room = *capacity == 0 ? first : *capacity * 2;
  void *more = jinja_take(run, room * size);
  if (more == NULL) return NULL;
  if (n > 0) memcpy(more, items, n * size);
  *capacity = room;
  return more;
}

void jinja_items_add(jinja_run *run, jinja_items *items, jinja_value value) {
  if (!jinja_charge(run, 1)) return;
  jinja_value *more = grow_in_arena(run, items->items, items->n, &items->capacity, 8, sizeof *more);
  if (more == NULL) return;
  items->items = more;
  items->items[items->n++] = value;
}

jinja_value jinja_dict_new(jinja_run *run, jinja_kind kind) {
  jinja_dict *dict = jinja_take(run, sizeof *dict);
  return dict == NULL ? jinja_nothing() : (jinja_value){.kind = kind, .dict = dict};
}

const jinja_value *jinja_dict_find(jinja_run *run, const jinja_dict *dict, jinja_value key) {
  if (!jinja_charge(run, 1 + dict->n / 8)) return NULL;
  for (size_t i = 0; i < dict->n; i++) {
    if (jinja_equal(run, dict->entries[i].key, key)) return &dict->entries[i].value;
  }
  return NULL;
}

const jinja_value *jinja_dict_get(jinja_run *run, const jinja_dict *dict, const char *key) {
  jinja_string s = {.bytes = key, .n = strlen(key)};
  return jinja_dict_find(run, dict, (jinja_value){.kind = JINJA_STRING, .string = &s});
}

static void add_entry(jinja_run *run, jinja_dict *dict, jinja_value key, jinja_value value) {
  jinja_entry *entries = grow_in_arena(run, dict->entries, dict->n, &dict->capacity, 4, sizeof *entries);
  if (entries == NULL) return;
  dict->entries = entries;
  dict->entries[dict->n++] = (jinja_entry){key, value};
}

void jinja_dict_set(jinja_run *run, jinja_dict *dict, jinja_value key, jinja_value value) {
  if (key.kind == JINJA_LIST || key.kind >= JINJA_DICT) {
    jinja_fail(run, WEFT_E_INVALID, "%s cannot be a key", jinja_type_name(key));
    return;
  }
  jinja_value *old = (jinja_value *)jinja_dict_find(run, dict, key);
  if (jinja_failed(run)) return;
  if (old != NULL) {
    *old = value;
  } else {
    add_entry(run, dict, key, value);
  }
}

/* ---- questions ------------------------------------------------------------------------------- */

bool jinja_is_number(jinja_value v) {
  return v.kind == JINJA_INT || v.kind == JINJA_FLOAT || v.kind == JINJA_BOOL;
}

double jinja_number(jinja_value v) {
  return v.kind == JINJA_FLOAT ? v.real : v.kind == JINJA_INT ? (double)v.integer : v.kind == JINJA_BOOL ? v.truth : 0;
}

bool jinja_truth(jinja_value v) {
  switch (v.kind) {
    case JINJA_UNDEFINED:
    case JINJA_NONE:
      return false;
    case JINJA_BOOL:
      return v.truth;
    case JINJA_INT:
      return v.integer != 0;
    case JINJA_FLOAT:
      return v.real != 0;
    case JINJA_STRING:
      return v.string->n > 0;
    case JINJA_LIST:
      return v.list->n > 0 || v.list->flavour == JINJA_FLAVOUR_GENERATOR;
    case JINJA_DICT:
      return v.dict->n > 0;
    default:
      return true;
  }
}

static bool equal_lists(jinja_run *run, const jinja_list *a, const jinja_list *b) {
  bool tuples = a->flavour == JINJA_FLAVOUR_TUPLE;
  if (a->n != b->n || tuples != (b->flavour == JINJA_FLAVOUR_TUPLE)) return false;
  for (size_t i = 0; i < a->n; i++) {
    if (!jinja_charge(run, 1) || !jinja_equal(run, jinja_list_at(a, i), jinja_list_at(b, i))) return false;
  }
  return true;
}

static bool equal_dicts(jinja_run *run, const jinja_dict *a, const jinja_dict *b) {
  if (a->n != b->n) return false;
  for (size_t i = 0; i < a->n; i++) {
    const jinja_value *other = jinja_dict_find(run, b, a->entries[i].key);
    if (other == NULL || !jinja_equal(run, a->entries[i].value, *other)) return false;
  }
  return true;
}

static bool equal_deep(jinja_run *run, jinja_value a, jinja_value b) {
  if (a.kind == JINJA_NAMESPACE) return a.dict == b.dict;
  bool equal = false;
  if (jinja_enter(run) && jinja_charge(run, 1)) {
    equal = a.kind == JINJA_LIST ? equal_lists(run, a.list, b.list) : equal_dicts(run, a.dict, b.dict);
  }
  jinja_leave(run);
  return equal;
}

bool jinja_equal(jinja_run *run, jinja_value a, jinja_value b) {
  if (jinja_is_number(a) && jinja_is_number(b)) {
    bool real = a.kind == JINJA_FLOAT || b.kind == JINJA_FLOAT;
    if (real) return jinja_number(a) == jinja_number(b);
    return (a.kind == JINJA_INT ? a.integer : a.truth) == (b.kind == JINJA_INT ? b.integer : b.truth);
  }
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case JINJA_UNDEFINED:
    case JINJA_NONE:
      return true;
    case JINJA_STRING:
      (void)jinja_charge(run, a.string->n / 64);
      return jinja_string_is(a.string, b.string->bytes, b.string->n);
    case JINJA_LIST:
    case JINJA_DICT:
    case JINJA_NAMESPACE:
      return equal_deep(run, a, b);
    case JINJA_LOOP:
      return a.loop == b.loop;
    case JINJA_MACRO:
      return a.macro == b.macro;
    case JINJA_FUNCTION:
      return a.function == b.function;
    default:
      return false;
  }
}

static int compare_lists(jinja_run *run, const jinja_list *a, const jinja_list *b) {
  for (size_t i = 0; i < a->n && i < b->n && jinja_charge(run, 1); i++) {
    jinja_value x = jinja_list_at(a, i), y = jinja_list_at(b, i);
    if (!jinja_equal(run, x, y)) return jinja_compare(run, x, y);
  }
  return a->n < b->n ? -1 : a->n > b->n;
}

int jinja_compare(jinja_run *run, jinja_value a, jinja_value b) {
  if (jinja_is_number(a) && jinja_is_number(b)) {
    if (a.kind == JINJA_INT && b.kind == JINJA_INT) return a.integer < b.integer ? -1 : a.integer > b.integer;
    double x = jinja_number(a), y = jinja_number(b);
    return x < y ? -1 : x > y;
  }
  if (a.kind == JINJA_STRING && b.kind == JINJA_STRING) {
    size_t n = a.string->n < b.string->n ? a.string->n : b.string->n;
    (void)jinja_charge(run, n / 64);
    int order = memcmp(a.string->bytes, b.string->bytes, n);
    return order != 0 ? order : a.string->n < b.string->n ? -1 : a.string->n > b.string->n;
  }
  if (a.kind == JINJA_LIST && b.kind == JINJA_LIST) {
    int order = jinja_enter(run) && jinja_charge(run, 1) ? compare_lists(run, a.list, b.list) : 0;
    jinja_leave(run);
    return order;
  }
  jinja_fail(run, WEFT_E_INVALID, "%s and %s have no order", jinja_type_name(a), jinja_type_name(b));
  return 0;
}

bool jinja_contains(jinja_run *run, jinja_value container, jinja_value item) {
  if (container.kind == JINJA_STRING) {
    const jinja_string *part = jinja_string_of(run, item, "the part that is looked for in a string");
    (void)jinja_charge(run, container.string->n / 64);
    return memmem(container.string->bytes, container.string->n, part->bytes, part->n) != NULL;
  }
  if (container.kind == JINJA_DICT) return jinja_dict_find(run, container.dict, item) != NULL;
  const jinja_list *list = jinja_iterate(run, container);
  for (size_t i = 0; i < list->n && jinja_charge(run, 1); i++) {
    if (jinja_equal(run, jinja_list_at(list, i), item)) return true;
  }
  return false;
}

static const jinja_list *list_characters(jinja_run *run, const jinja_string *s) {
  jinja_items items = {0};
  for (size_t at = 0; at < s->n && !jinja_failed(run);) {
    jinja_string rest = jinja_part(s, at, s->n);
    size_t n = jinja_string_offset(&rest, 1);
    jinja_items_add(run, &items, jinja_string_value(run, jinja_part(s, at, at + n)));
    at += n;
  }
  return jinja_items_value(run, &items, JINJA_FLAVOUR_LIST).list;
}

static const jinja_list *list_keys(jinja_run *run, const jinja_dict *dict) {
  jinja_items items = {0};
  for (size_t i = 0; i < dict->n && !jinja_failed(run); i++) jinja_items_add(run, &items, dict->entries[i].key);
  return jinja_items_value(run, &items, JINJA_FLAVOUR_LIST).list;
}

const jinja_list *jinja_iterate(jinja_run *run, jinja_value v) {
  static const jinja_list empty = {0};
  if (v.kind == JINJA_LIST) return v.list;
  if (v.kind == JINJA_STRING) return list_characters(run, v.string);
  if (v.kind == JINJA_DICT) return list_keys(run, v.dict);
  if (v.kind != JINJA_UNDEFINED) jinja_fail(run, WEFT_E_INVALID, "%s has no elements", jinja_type_name(v));
  return &empty;
}

int64_t jinja_length(jinja_run *run, jinja_value v) {
  if (v.kind == JINJA_STRING) return jinja_string_length(run, v.string);
  if (v.kind == JINJA_LIST && v.list->flavour != JINJA_FLAVOUR_GENERATOR) return (int64_t)v.list->n;
  if (v.kind == JINJA_DICT) return (int64_t)v.dict->n;
  if (v.kind != JINJA_UNDEFINED) {
    jinja_fail(run, WEFT_E_INVALID, "%s has no length%s", jinja_type_name(v),
               v.kind == JINJA_LIST ? " before it goes through the filter 'list'" : "");
  }
  return 0;
}

/* ---- parts ----------------------------------------------------------------------------------- */

static void fail_undefined(jinja_run *run, jinja_value of) {
  int n = of.string == NULL ? 0 : (int)(of.string->n < 64 ? of.string->n : 64);
  jinja_fail(run, WEFT_E_INVALID, n > 0 ? "'%.*s' is undefined" : "an undefined value is used%.*s", n,
             n > 0 ? of.string->bytes : "");
}

static jinja_value undefined_part(const jinja_string *name) {
  return (jinja_value){.kind = JINJA_UNDEFINED, .string = name};
}

static jinja_value bind_method(jinja_run *run, jinja_value of, const jinja_string *name) {
  bool known = false;
  const jinja_function *function = jinja_method_find(of.kind, name->bytes, name->n, &known);
  if (function == NULL) {
    if (known) {
      jinja_fail(run, WEFT_E_UNSUPPORTED, "the method '%.*s' of %s is not supported", (int)name->n, name->bytes,
                 jinja_type_name(of));
    }
    return undefined_part(name);
  }
  jinja_bound *bound = jinja_take(run, sizeof *bound);
  if (bound == NULL) return jinja_nothing();
  *bound = (jinja_bound){of, function};
  return (jinja_value){.kind = JINJA_METHOD, .bound = bound};
}

static jinja_value loop_attribute(jinja_run *run, const jinja_loop *loop, const jinja_string *name) {
  int64_t at = (int64_t)loop->at, n = (int64_t)loop->list->n;
  static const char *const numbers[] = {"index", "index0", "revindex", "revindex0", "length", "depth", "depth0"};
  const int64_t values[] = {at + 1, at, n - at, n - at - 1, n, 1, 0}; /* depth is that of recursive loops */
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    if (jinja_string_is(name, numbers[i], strlen(numbers[i]))) return jinja_int(values[i]);
  }
  if (jinja_string_is(name, "first", 5)) return jinja_bool(at == 0);
  if (jinja_string_is(name, "last", 4)) return jinja_bool(at + 1 == n);
  if (jinja_string_is(name, "previtem", 8)) return at > 0 ? jinja_list_at(loop->list, loop->at - 1) : jinja_nothing();
  if (jinja_string_is(name, "nextitem", 8))
    return at + 1 < n ? jinja_list_at(loop->list, loop->at + 1) : jinja_nothing();
  return bind_method(run, (jinja_value){.kind = JINJA_LOOP, .loop = (jinja_loop *)loop}, name);
}

jinja_value jinja_attribute(jinja_run *run, jinja_value of, const jinja_string *name) {
  const jinja_value key = {.kind = JINJA_STRING, .string = name};
  if (of.kind == JINJA_UNDEFINED) {
    fail_undefined(run, of);
  } else if (of.kind == JINJA_LOOP) {
    return loop_attribute(run, of.loop, name);
  } else if (of.kind == JINJA_NAMESPACE) {
    const jinja_value *value = jinja_dict_find(run, of.dict, key);
    return value == NULL ? undefined_part(name) : *value;
  } else if (of.kind == JINJA_DICT) {
    jinja_value method = bind_method(run, of, name); /* as in Python, methods come before keys: x.items is a method */
    const jinja_value *value = method.kind == JINJA_METHOD ? NULL : jinja_dict_find(run, of.dict, key);
    return value == NULL ? method : *value;
  } else if (of.kind == JINJA_STRING || of.kind == JINJA_LIST) {
    return bind_method(run, of, name);
  }
  return undefined_part(name);
}

static jinja_value item_at(jinja_run *run, jinja_value of, int64_t at) {
  int64_t n = of.kind == JINJA_STRING && at >= 0 ? INT64_MAX
              : of.kind == JINJA_LIST            ? (int64_t)of.list->n
                                                 : jinja_length(run, of);
  if (of.kind == JINJA_LIST && of.list->flavour == JINJA_FLAVOUR_GENERATOR) return jinja_nothing();
  if (at < 0) at += n;
  if (at < 0 || at >= n) return jinja_nothing();
  if (of.kind == JINJA_LIST) return jinja_list_at(of.list, (size_t)at);
  size_t from = jinja_string_offset(of.string, (size_t)at);
  (void)jinja_charge(run, from / 64);
  if (from == of.string->n) return jinja_nothing();
  jinja_string rest = jinja_part(of.string, from, of.string->n);
  return jinja_string_value(run, jinja_part(&rest, 0, jinja_string_offset(&rest, 1)));
}

jinja_value jinja_item(jinja_run *run, jinja_value of, jinja_value key) {
  if (of.kind == JINJA_UNDEFINED) {
    fail_undefined(run, of);
    return jinja_nothing();
  }
  if (of.kind == JINJA_DICT) {
    const jinja_value *value =
        key.kind == JINJA_LIST || key.kind >= JINJA_DICT ? NULL : jinja_dict_find(run, of.dict, key);
    if (value != NULL) return *value;
    return key.kind == JINJA_STRING ? bind_method(run, of, key.string) : jinja_nothing();
  }
  bool sequence = of.kind == JINJA_STRING || of.kind == JINJA_LIST;
  if (sequence && key.kind == JINJA_INT) return item_at(run, of, key.integer);
  if (sequence && key.kind == JINJA_BOOL) return item_at(run, of, key.truth);
  return key.kind == JINJA_STRING ? jinja_attribute(run, of, key.string) : jinja_nothing();
}

static jinja_value slice_string(jinja_run *run, const jinja_string *s, int64_t from, int64_t n, int64_t step) {
  if (step == 1) {
    jinja_string rest = jinja_part(s, jinja_string_offset(s, (size_t)from), s->n);
    return jinja_string_value(run, jinja_part(&rest, 0, jinja_string_offset(&rest, (size_t)n)));
  }
  const jinja_list *characters = list_characters(run, s);
  jinja_buffer *out = jinja_take(run, sizeof *out);
  for (int64_t i = 0; out != NULL && i < n && !jinja_failed(run); i++) {
    jinja_append(run, out, characters->items[from + i * step].string);
  }
  return out == NULL ? jinja_nothing() : jinja_buffer_value(run, out);
}

static jinja_value slice_list(jinja_run *run, const jinja_list *list, int64_t from, int64_t n, int64_t step) {
  jinja_flavour flavour = list->flavour == JINJA_FLAVOUR_TUPLE ? JINJA_FLAVOUR_TUPLE : JINJA_FLAVOUR_LIST;
  if (list->items != NULL && step == 1) return jinja_list_value(run, list->items + from, (size_t)n, flavour);
  jinja_items items = {0};
  for (int64_t i = 0; i < n && !jinja_failed(run); i++) {
    jinja_items_add(run, &items, jinja_list_at(list, (size_t)(from + i * step)));
  }
  return jinja_items_value(run, &items, flavour);
}

/* A bound of a slice as Python takes it: counted from the end when negative, and moved into [low, high]. */
static int64_t slice_bound(jinja_run *run, jinja_value v, int64_t n, int64_t low, int64_t high, int64_t absent) {
  if (v.kind == JINJA_NONE) return absent;
  int64_t at = jinja_integer_of(run, v, "a bound of a slice");
  if (at < 0) at = at < -n ? -1 : at + n;
  return at < low ? low : at > high ? high : at;
}

jinja_value jinja_slice(jinja_run *run, jinja_value of, jinja_value from, jinja_value to, jinja_value step) {
  if (of.kind == JINJA_UNDEFINED) fail_undefined(run, of);
  if (of.kind != JINJA_STRING && (of.kind != JINJA_LIST || of.list->flavour == JINJA_FLAVOUR_GENERATOR))
    return jinja_nothing();
  int64_t n = jinja_length(run, of),
          by = step.kind == JINJA_NONE ? 1 : jinja_integer_of(run, step, "the step of a slice");
  if (by == 0) jinja_fail(run, WEFT_E_INVALID, "the step of a slice is 0");
  if (by < -n) by = -n - 1; /* one element, without a product that wraps */
  if (by > n) by = n + 1;
  bool back = by < 0;
  int64_t low = back ? -1 : 0, high = back ? n - 1 : n;
  int64_t first = slice_bound(run, from, n, low, high, back ? high : low);
  int64_t last = slice_bound(run, to, n, low, high, back ? low : high);
  if (jinja_failed(run)) return jinja_nothing();
  int64_t count = back ? (first - last - by - 1) / -by : (last - first + by - 1) / by;
  if (count < 0) count = 0;
  if (count == 0) first = 0;
  return of.kind == JINJA_STRING ? slice_string(run, of.string, first, count, by)
                                 : slice_list(run, of.list, first, count, by);
}

jinja_value jinja_path(jinja_run *run, jinja_value of, jinja_value path) {
  if (path.kind == JINJA_INT) return jinja_item(run, of, path);
  jinja_string rest = *jinja_string_of(run, path, "the name of an attribute");
  while (!jinja_failed(run) && jinja_charge(run, 1)) {
    const char *dot = memchr(rest.bytes, '.', rest.n);
    jinja_string name = jinja_part(&rest, 0, dot == NULL ? rest.n : (size_t)(dot - rest.bytes));
    jinja_value key = jinja_string_value(run, name);
    int64_t at = 0;
    bool digits = name.n > 0 && name.n < 10;
    for (size_t i = 0; i < name.n && digits; i++) {
      digits = name.bytes[i] >= '0' && name.bytes[i] <= '9';
      at = at * 10 + (name.bytes[i] - '0');
    }
    if (digits) key = jinja_int(at);
    of = jinja_item(run, of, key);
    if (dot == NULL) break;
    rest = jinja_part(&rest, name.n + 1, rest.n);
  }
  return of;
}
