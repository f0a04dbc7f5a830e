/* SPDX-License-Identifier: MIT */
/* Filters that go through a list or mapping. */
#include <string.h>

#include "model/text/jinja_filters.h"

/* The argument, or NULL when it is none or not given. */
static const jinja_value *some_argument(const jinja_args *args, size_t at, const char *name) {
  const jinja_value *value = jinja_argument(args, at, name);
  return value == NULL || value->kind == JINJA_NONE ? NULL : value;
}

static bool flag_argument(const jinja_args *args, size_t at, const char *name) {
  const jinja_value *value = jinja_argument(args, at, name);
  return value != NULL && jinja_truth(*value);
}

jinja_value jinja_filter_first(jinja_run *run, jinja_value self, const jinja_args *args) {
  (void)args;
  const jinja_list *list = jinja_iterate(run, self);
  return list->n == 0 ? jinja_nothing() : jinja_list_at(list, 0);
}

jinja_value jinja_filter_last(jinja_run *run, jinja_value self, const jinja_args *args) {
  (void)args;
  const jinja_list *list = jinja_iterate(run, self);
  return list->n == 0 ? jinja_nothing() : jinja_list_at(list, list->n - 1);
}

jinja_value jinja_filter_reverse(jinja_run *run, jinja_value self, const jinja_args *args) {
  (void)args;
  jinja_value step = jinja_int(-1);
  if (self.kind == JINJA_STRING) return jinja_slice(run, self, jinja_none(), jinja_none(), step);
  const jinja_list *list = jinja_iterate(run, self);
  jinja_items items = {0};
  for (size_t i = list->n; i-- > 0 && !jinja_failed(run);) jinja_items_add(run, &items, jinja_list_at(list, i));
  return jinja_items_value(run, &items, JINJA_FLAVOUR_GENERATOR);
}

static jinja_value pair_value(jinja_run *run, jinja_value a, jinja_value b) {
  jinja_items pair = {0};
  jinja_items_add(run, &pair, a);
  jinja_items_add(run, &pair, b);
  return jinja_items_value(run, &pair, JINJA_FLAVOUR_TUPLE);
}

jinja_value jinja_filter_items(jinja_run *run, jinja_value self, const jinja_args *args) {
  (void)args;
  jinja_items items = {0};
  if (self.kind != JINJA_DICT && self.kind != JINJA_UNDEFINED) {
    jinja_fail(run, WEFT_E_INVALID, "%s has no items", jinja_type_name(self));
  }
  for (size_t i = 0; self.kind == JINJA_DICT && i < self.dict->n && !jinja_failed(run); i++) {
    jinja_items_add(run, &items, pair_value(run, self.dict->entries[i].key, self.dict->entries[i].value));
  }
  return jinja_items_value(run, &items, JINJA_FLAVOUR_GENERATOR);
}

jinja_value jinja_filter_join(jinja_run *run, jinja_value self, const jinja_args *args) {
  const jinja_value *by = some_argument(args, 0, "d"), *attribute = some_argument(args, 1, "attribute");
  const jinja_list *list = jinja_iterate(run, self);
  const jinja_string *between = by == NULL ? NULL : jinja_text(run, *by);
  jinja_buffer *out = jinja_take(run, sizeof *out);
  for (size_t i = 0; out != NULL && i < list->n && jinja_charge(run, 1); i++) {
    jinja_value item = jinja_list_at(list, i);
    if (attribute != NULL) item = jinja_path(run, item, *attribute);
    if (i > 0 && between != NULL) jinja_append(run, out, between);
    jinja_append(run, out, jinja_text(run, item));
  }
  return out == NULL ? jinja_nothing() : jinja_buffer_value(run, out);
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* The arguments behind the first n, for the filter or test that is named by one of them. */
static jinja_args rest_of(const jinja_args *args, size_t n) {
  if (args->n <= n) return (jinja_args){0};
  return (jinja_args){args->values + n, args->names + n, args->n - n};
}

static const jinja_function *named_function(jinja_run *run, jinja_value name, bool test) {
  const jinja_string *s = jinja_string_of(run, name, test ? "the name of a test" : "the name of a filter");
  const jinja_function *f = test ? jinja_test_find(s->bytes, s->n) : jinja_filter_find(s->bytes, s->n);
  if (f == NULL) {
    jinja_fail(run, WEFT_E_UNSUPPORTED, "the %s '%.*s' is not supported", test ? "test" : "filter",
               (int)(s->n < 64 ? s->n : 64), s->bytes);
  }
  return f;
}

/* What map, select and their like go through: what is false has no elements there, whatever it is. */
static const jinja_list *iterate_true(jinja_run *run, jinja_value value) {
  return jinja_iterate(run, jinja_truth(value) ? value : jinja_nothing());
}

jinja_value jinja_filter_map(jinja_run *run, jinja_value self, const jinja_args *args) {
  const jinja_value *attribute = jinja_argument(args, 9, "attribute"), *other = jinja_argument(args, 9, "default");
  const jinja_list *list = iterate_true(run, self);
  const jinja_function *filter = attribute == NULL ? named_function(run, args->values[0], false) : NULL;
  const jinja_args rest = rest_of(args, 1);
  jinja_items items = {0};
  for (size_t i = 0; i < list->n && !jinja_failed(run); i++) {
    jinja_value item = jinja_list_at(list, i);
    if (attribute == NULL) {
      item = jinja_apply(run, filter, "filter", item, &rest);
    } else {
      item = jinja_path(run, item, *attribute);
      if (item.kind == JINJA_UNDEFINED && other != NULL) item = *other;
    }
    jinja_items_add(run, &items, item);
  }
  return jinja_items_value(run, &items, JINJA_FLAVOUR_GENERATOR);
}

/* The elements, of which (by_attribute: an attribute of which) a test holds, or does not. */
static jinja_value choose_items(jinja_run *run, jinja_value self, const jinja_args *args, bool by_attribute,
                                bool wanted) {
  const jinja_list *list = iterate_true(run, self);
  size_t n = by_attribute ? 1 : 0;
  const jinja_function *test = args->n > n ? named_function(run, args->values[n], true) : NULL;
  const jinja_args rest = rest_of(args, n + 1);
  jinja_items items = {0};
  for (size_t i = 0; i < list->n && jinja_charge(run, 1); i++) {
    jinja_value item = jinja_list_at(list, i), asked = item;
    if (by_attribute) asked = jinja_path(run, item, args->values[0]);
    if (test != NULL) asked = jinja_apply(run, test, "test", asked, &rest);
    if (jinja_truth(asked) == wanted) jinja_items_add(run, &items, item);
  }
  return jinja_items_value(run, &items, JINJA_FLAVOUR_GENERATOR);
}

jinja_value jinja_filter_select(jinja_run *run, jinja_value self, const jinja_args *args) {
  return choose_items(run, self, args, false, true);
}

jinja_value jinja_filter_reject(jinja_run *run, jinja_value self, const jinja_args *args) {
  return choose_items(run, self, args, false, false);
}

jinja_value jinja_filter_selectattr(jinja_run *run, jinja_value self, const jinja_args *args) {
  return choose_items(run, self, args, true, true);
}

jinja_value jinja_filter_rejectattr(jinja_run *run, jinja_value self, const jinja_args *args) {
  return choose_items(run, self, args, true, false);
}

/* ---- order ----------------------------------------------------------------------------------- */

/* What elements are ordered by: an attribute, text without its case unless case_sensitive. */
static jinja_value order_key(jinja_run *run, jinja_value item, const jinja_value *attribute, bool case_sensitive) {
  if (attribute != NULL) item = jinja_path(run, item, *attribute);
  return item.kind == JINJA_STRING && !case_sensitive ? jinja_recase(run, item.string, CASE_LOWER) : item;
}

/* Merges the sorted halves of items[0..n); equal ones stay as they were. room has n places. */
static void merge_halves(jinja_run *run, jinja_entry *items, size_t n, jinja_entry *room, bool reverse) {
  size_t half = n / 2, a = 0, b = half;
  for (size_t i = 0; i < n && jinja_charge(run, 1); i++) {
    bool left = b == n;
    if (a < half && b < n) {
      int order = jinja_compare(run, items[a].key, items[b].key);
      left = reverse ? order >= 0 : order <= 0;
    }
    room[i] = left ? items[a++] : items[b++];
  }
  if (!jinja_failed(run)) memcpy(items, room, n * sizeof *items);
}

static void sort_entries(jinja_run *run, jinja_entry *items, size_t n, jinja_entry *room, bool reverse) {
  if (n < 2 || jinja_failed(run)) return;
  sort_entries(run, items, n / 2, room, reverse);
  sort_entries(run, items + n / 2, n - n / 2, room, reverse);
  merge_halves(run, items, n, room, reverse);
}

static jinja_value sorted_values(jinja_run *run, jinja_entry *entries, size_t n, bool reverse) {
  jinja_entry *room = jinja_take(run, n * sizeof *room);
  jinja_items items = {0};
  if (room == NULL) return jinja_nothing();
  sort_entries(run, entries, n, room, reverse);
  for (size_t i = 0; i < n && !jinja_failed(run); i++) jinja_items_add(run, &items, entries[i].value);
  return jinja_items_value(run, &items, JINJA_FLAVOUR_LIST);
}

jinja_value jinja_filter_sort(jinja_run *run, jinja_value self, const jinja_args *args) {
  bool reverse = flag_argument(args, 0, "reverse"), case_sensitive = flag_argument(args, 1, "case_sensitive");
  const jinja_value *attribute = some_argument(args, 2, "attribute");
  const jinja_list *list = jinja_iterate(run, self);
  jinja_entry *entries = jinja_take(run, list->n * sizeof *entries);
  if (entries == NULL) return jinja_nothing();
  for (size_t i = 0; i < list->n && jinja_charge(run, 1); i++) {
    jinja_value item = jinja_list_at(list, i);
    entries[i] = (jinja_entry){order_key(run, item, attribute, case_sensitive), item};
  }
  return sorted_values(run, entries, list->n, reverse);
}

jinja_value jinja_filter_dictsort(jinja_run *run, jinja_value self, const jinja_args *args) {
  bool case_sensitive = flag_argument(args, 0, "case_sensitive"), reverse = flag_argument(args, 2, "reverse");
  const jinja_value *by = jinja_argument(args, 1, "by");
  bool by_value = by != NULL && jinja_string_is(jinja_string_of(run, *by, "by of 'dictsort'"), "value", 5);
  if (self.kind != JINJA_DICT) {
    jinja_fail(run, WEFT_E_INVALID, "%s has no items", jinja_type_name(self));
    return jinja_nothing();
  }
  size_t n = self.dict->n;
  jinja_entry *entries = jinja_take(run, n * sizeof *entries);
  if (entries == NULL) return jinja_nothing();
  for (size_t i = 0; i < n && jinja_charge(run, 1); i++) {
    const jinja_entry *e = &self.dict->entries[i];
    entries[i].key = order_key(run, by_value ? e->value : e->key, NULL, case_sensitive);
    entries[i].value = pair_value(run, e->key, e->value);
  }
  return sorted_values(run, entries, n, reverse);
}

static jinja_value extreme_of(jinja_run *run, jinja_value self, const jinja_args *args, int sign) {
  const jinja_list *list = jinja_iterate(run, self);
  const jinja_value *attribute = some_argument(args, 1, "attribute");
  bool case_sensitive = flag_argument(args, 0, "case_sensitive");
  jinja_value best = jinja_nothing(), best_key = jinja_nothing();
  for (size_t i = 0; i < list->n && jinja_charge(run, 1); i++) {
    jinja_value item = jinja_list_at(list, i), key = order_key(run, item, attribute, case_sensitive);
    if (i > 0 && jinja_compare(run, key, best_key) * sign <= 0) continue;
    best = item;
    best_key = key;
  }
  return best;
}

jinja_value jinja_filter_max(jinja_run *run, jinja_value self, const jinja_args *args) {
  return extreme_of(run, self, args, 1);
}

jinja_value jinja_filter_min(jinja_run *run, jinja_value self, const jinja_args *args) {
  return extreme_of(run, self, args, -1);
}

jinja_value jinja_filter_unique(jinja_run *run, jinja_value self, const jinja_args *args) {
  bool case_sensitive = flag_argument(args, 0, "case_sensitive");
  const jinja_value *attribute = some_argument(args, 1, "attribute");
  const jinja_list *list = jinja_iterate(run, self);
  jinja_items items = {0}, keys = {0};
  for (size_t i = 0; i < list->n && jinja_charge(run, 1); i++) {
    jinja_value item = jinja_list_at(list, i), key = order_key(run, item, attribute, case_sensitive);
    bool seen = false;
    for (size_t k = 0; k < keys.n && !seen && jinja_charge(run, 1); k++) seen = jinja_equal(run, keys.items[k], key);
    if (seen) continue;
    jinja_items_add(run, &keys, key);
    jinja_items_add(run, &items, item);
  }
  return jinja_items_value(run, &items, JINJA_FLAVOUR_GENERATOR);
}

jinja_value jinja_filter_sum(jinja_run *run, jinja_value self, const jinja_args *args) {
  const jinja_value *attribute = some_argument(args, 0, "attribute"), *start = jinja_argument(args, 1, "start");
  const jinja_list *list = jinja_iterate(run, self);
  jinja_value sum = start == NULL ? jinja_int(0) : *start;
  for (size_t i = 0; i < list->n && jinja_charge(run, 1); i++) {
    jinja_value item = jinja_list_at(list, i);
    int64_t whole = 0;
    if (attribute != NULL) item = jinja_path(run, item, *attribute);
    if (!jinja_is_number(item) || !jinja_is_number(sum)) jinja_fail(run, WEFT_E_INVALID, "'sum' adds numbers only");
    if (sum.kind == JINJA_INT && item.kind == JINJA_INT && !__builtin_add_overflow(sum.integer, item.integer, &whole)) {
      sum = jinja_int(whole);
    } else {
      sum = jinja_float(jinja_number(sum) + jinja_number(item));
    }
  }
  return sum;
}
