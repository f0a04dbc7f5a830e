/* SPDX-License-Identifier: MIT */
/* Methods of strings, mappings, lists and loops, and the functions that every template has. */
#include <string.h>

#include "model/text/jinja_internal.h"

#define METHOD(name) static jinja_value name(jinja_run *run, jinja_value self, const jinja_args *args)

/* ---- strings --------------------------------------------------------------------------------- */

static jinja_value strip_ends(jinja_run *run, jinja_value self, const jinja_args *args, bool left, bool right) {
  const jinja_string *set = NULL;
  if (args->n > 0 && args->values[0].kind != JINJA_NONE) {
    set = jinja_string_of(run, args->values[0], "the characters that 'strip' takes away");
  }
  return jinja_strip_counted(run, self.string, set, left, right);
}

METHOD(string_strip) {
  return strip_ends(run, self, args, true, true);
}

METHOD(string_lstrip) {
  return strip_ends(run, self, args, true, false);
}

METHOD(string_rstrip) {
  return strip_ends(run, self, args, false, true);
}

static bool has_affix(jinja_run *run, const jinja_string *s, jinja_value affix, bool at_end) {
  const jinja_string *a = jinja_string_of(run, affix, "what a string begins or ends with");
  if (a->n > s->n || !jinja_charge(run, a->n / 64)) return false;
  return memcmp(s->bytes + (at_end ? s->n - a->n : 0), a->bytes, a->n) == 0;
}

/* One text, or a tuple of several. */
static jinja_value test_affix(jinja_run *run, jinja_value self, const jinja_args *args, bool at_end) {
  jinja_value affix = args->values[0];
  if (affix.kind != JINJA_LIST) return jinja_bool(has_affix(run, self.string, affix, at_end));
  for (size_t i = 0; i < affix.list->n && jinja_charge(run, 1); i++) {
    if (has_affix(run, self.string, jinja_list_at(affix.list, i), at_end)) return jinja_bool(true);
  }
  return jinja_bool(false);
}

METHOD(string_startswith) {
  return test_affix(run, self, args, false);
}

METHOD(string_endswith) {
  return test_affix(run, self, args, true);
}

METHOD(string_removeprefix) {
  const jinja_string *s = self.string;
  size_t n = has_affix(run, s, args->values[0], false) ? jinja_text(run, args->values[0])->n : 0;
  return jinja_string_value(run, jinja_part(s, n, s->n));
}

METHOD(string_removesuffix) {
  const jinja_string *s = self.string;
  size_t n = has_affix(run, s, args->values[0], true) ? jinja_text(run, args->values[0])->n : 0;
  return jinja_string_value(run, jinja_part(s, 0, s->n - n));
}

METHOD(string_upper) {
  (void)args;
  return jinja_recase(run, self.string, CASE_UPPER);
}

METHOD(string_lower) {
  (void)args;
  return jinja_recase(run, self.string, CASE_LOWER);
}

METHOD(string_capitalize) {
  (void)args;
  return jinja_recase(run, self.string, CASE_CAPITAL);
}

METHOD(string_title) {
  (void)args;
  return jinja_recase(run, self.string, CASE_TITLE);
}

METHOD(string_replace) {
  const jinja_string *old = jinja_string_of(run, args->values[0], "what 'replace' looks for");
  const jinja_string *with = jinja_string_of(run, args->values[1], "what 'replace' writes");
  int64_t n = args->n > 2 ? jinja_integer_of(run, args->values[2], "the count of 'replace'") : -1;
  return jinja_failed(run) ? jinja_nothing() : jinja_replace(run, self.string, old, with, n);
}

METHOD(string_splitlines) {
  (void)args;
  return jinja_split_lines(run, self.string);
}

/* find_last compares the word at every place of a string. */
static bool charge_find_last(jinja_run *run, const jinja_string *s, const jinja_string *word) {
  return jinja_charge(run, s->n / 8 * (1 + word->n / 64));
}

/* The last place of word in bytes[0..n), or NULL. */
static const char *find_last(const char *bytes, size_t n, const jinja_string *word) {
  for (size_t at = n < word->n ? 0 : n - word->n + 1; at-- > 0;) {
    if (memcmp(bytes + at, word->bytes, word->n) == 0) return bytes + at;
  }
  return NULL;
}

static jinja_value split_words(jinja_run *run, const jinja_string *s, int64_t n_max) {
  jinja_items parts = {0};
  jinja_string rest = jinja_strip(s, NULL, true, false);
  while (rest.n > 0 && !jinja_failed(run)) {
    size_t end = 0, n = 0;
    uint32_t c = 0;
    for (; end < rest.n && (n = weft_utf8_decode(rest.bytes + end, rest.n - end, &c)) > 0 && !jinja_is_space(c);
         end += n) {
    }
    if (n_max >= 0 && (int64_t)parts.n == n_max) {
      end = rest.n;
      rest = jinja_strip(&rest, NULL, false, false);
    }
    jinja_items_add(run, &parts, jinja_string_value(run, jinja_part(&rest, 0, end)));
    rest = jinja_part(&rest, end, rest.n);
    rest = jinja_strip(&rest, NULL, true, false);
  }
  (void)jinja_charge(run, s->n / 8);
  return jinja_items_value(run, &parts, JINJA_FLAVOUR_LIST);
}

static jinja_value split_by(jinja_run *run, const jinja_string *s, const jinja_string *by, int64_t n_max) {
  jinja_items parts = {0};
  jinja_string rest = *s;
  (void)jinja_charge(run, s->n / 64);
  while (!jinja_failed(run) && (n_max < 0 || (int64_t)parts.n < n_max)) {
    const char *found = memmem(rest.bytes, rest.n, by->bytes, by->n);
    if (found == NULL) break;
    size_t at = (size_t)(found - rest.bytes);
    jinja_items_add(run, &parts, jinja_string_value(run, jinja_part(&rest, 0, at)));
    rest = jinja_part(&rest, at + by->n, rest.n);
  }
  jinja_items_add(run, &parts, jinja_string_value(run, rest));
  return jinja_items_value(run, &parts, JINJA_FLAVOUR_LIST);
}

static jinja_value split_by_last(jinja_run *run, const jinja_string *s, const jinja_string *by, int64_t n_max) {
  jinja_items parts = {0}, turned = {0};
  jinja_string rest = *s;
  (void)charge_find_last(run, s, by);
  while (!jinja_failed(run) && (n_max < 0 || (int64_t)parts.n < n_max)) {
    const char *found = find_last(rest.bytes, rest.n, by);
    if (found == NULL) break;
    size_t at = (size_t)(found - rest.bytes);
    jinja_items_add(run, &parts, jinja_string_value(run, jinja_part(&rest, at + by->n, rest.n)));
    rest = jinja_part(&rest, 0, at);
  }
  jinja_items_add(run, &parts, jinja_string_value(run, rest));
  for (size_t i = parts.n; i-- > 0 && !jinja_failed(run);) jinja_items_add(run, &turned, parts.items[i]);
  return jinja_items_value(run, &turned, JINJA_FLAVOUR_LIST);
}

static jinja_value split_string(jinja_run *run, jinja_value self, const jinja_args *args, bool from_end) {
  const jinja_value *by = jinja_argument(args, 0, "sep"), *most = jinja_argument(args, 1, "maxsplit");
  int64_t n_max = most == NULL ? -1 : jinja_integer_of(run, *most, "the count of 'split'");
  if (by == NULL || by->kind == JINJA_NONE) {
    if (from_end && n_max >= 0)
      jinja_fail(run, WEFT_E_UNSUPPORTED, "rsplit by white space with a count is not supported");
    return split_words(run, self.string, n_max);
  }
  const jinja_string *separator = jinja_string_of(run, *by, "the separator of 'split'");
  if (separator->n == 0) jinja_fail(run, WEFT_E_INVALID, "the separator of 'split' is empty");
  if (jinja_failed(run)) return jinja_nothing();
  return (from_end ? split_by_last : split_by)(run, self.string, separator, n_max);
}

METHOD(string_split) {
  return split_string(run, self, args, false);
}

METHOD(string_rsplit) {
  return split_string(run, self, args, true);
}

/* Where a text is found, in characters; -1: nowhere. */
static jinja_value find_part(jinja_run *run, jinja_value self, const jinja_args *args, bool last) {
  const jinja_string *s = self.string, *part = jinja_string_of(run, args->values[0], "what 'find' looks for");
  if (!(last ? charge_find_last(run, s, part) : jinja_charge(run, s->n / 8))) return jinja_nothing();
  const char *found = last ? find_last(s->bytes, s->n, part) : memmem(s->bytes, s->n, part->bytes, part->n);
  if (found == NULL) return jinja_int(-1);
  jinja_string before = jinja_part(s, 0, (size_t)(found - s->bytes));
  return jinja_int(jinja_string_length(run, &before));
}

METHOD(string_find) {
  return find_part(run, self, args, false);
}

METHOD(string_rfind) {
  return find_part(run, self, args, true);
}

METHOD(string_index) {
  jinja_value at = find_part(run, self, args, false);
  if (at.kind == JINJA_INT && at.integer < 0) jinja_fail(run, WEFT_E_INVALID, "'index' finds nothing");
  return at;
}

METHOD(string_count) {
  const jinja_string *part = jinja_string_of(run, args->values[0], "what 'count' looks for");
  if (part->n == 0) return jinja_int(jinja_string_length(run, self.string) + 1);
  return jinja_int((int64_t)split_by(run, self.string, part, -1).list->n - 1);
}

METHOD(string_join) {
  const jinja_list *list = jinja_iterate(run, args->values[0]);
  jinja_buffer *out = jinja_take(run, sizeof *out);
  for (size_t i = 0; out != NULL && i < list->n && jinja_charge(run, 1); i++) {
    if (i > 0) jinja_append(run, out, self.string);
    jinja_append(run, out, jinja_string_of(run, jinja_list_at(list, i), "what 'join' joins"));
  }
  return out == NULL ? jinja_nothing() : jinja_buffer_value(run, out);
}

/* Whether there are characters, all of them of the kinds asked for. */
static jinja_value is_all(jinja_run *run, const jinja_string *s, bool digits, bool letters, bool spaces) {
  (void)jinja_charge(run, s->n / 8);
  for (size_t at = 0, n; at < s->n; at += n) {
    uint32_t c = 0;
    n = weft_utf8_decode(s->bytes + at, s->n - at, &c);
    if (n == 0) return jinja_bool(false);
    bool digit = c >= '0' && c <= '9', letter = jinja_upper(c) != c || jinja_lower(c) != c || c >= 0x250;
    if (!((digits && digit) || (letters && letter) || (spaces && jinja_is_space(c)))) return jinja_bool(false);
  }
  return jinja_bool(s->n > 0);
}

METHOD(string_isdigit) {
  (void)args;
  return is_all(run, self.string, true, false, false);
}

METHOD(string_isalpha) {
  (void)args;
  return is_all(run, self.string, false, true, false);
}

METHOD(string_isalnum) {
  (void)args;
  return is_all(run, self.string, true, true, false);
}

METHOD(string_isspace) {
  (void)args;
  return is_all(run, self.string, false, false, true);
}

/* ---- mappings, lists, loops ------------------------------------------------------------------ */

METHOD(dict_get) {
  const jinja_value *value = jinja_dict_find(run, self.dict, args->values[0]);
  return value != NULL ? *value : args->n > 1 ? args->values[1] : jinja_none();
}

METHOD(dict_keys) {
  (void)args;
  return (jinja_value){.kind = JINJA_LIST, .list = jinja_iterate(run, self)};
}

METHOD(dict_values) {
  (void)args;
  jinja_items items = {0};
  for (size_t i = 0; i < self.dict->n && !jinja_failed(run); i++)
    jinja_items_add(run, &items, self.dict->entries[i].value);
  return jinja_items_value(run, &items, JINJA_FLAVOUR_LIST);
}

METHOD(dict_items) {
  (void)args;
  jinja_items items = {0};
  for (size_t i = 0; i < self.dict->n && !jinja_failed(run); i++) {
    jinja_items pair = {0};
    jinja_items_add(run, &pair, self.dict->entries[i].key);
    jinja_items_add(run, &pair, self.dict->entries[i].value);
    jinja_items_add(run, &items, jinja_items_value(run, &pair, JINJA_FLAVOUR_TUPLE));
  }
  return jinja_items_value(run, &items, JINJA_FLAVOUR_LIST);
}

static int64_t count_item(jinja_run *run, const jinja_list *list, jinja_value item, int64_t *first) {
  int64_t n = 0;
  *first = -1;
  for (size_t i = 0; i < list->n && jinja_charge(run, 1); i++) {
    if (!jinja_equal(run, jinja_list_at(list, i), item)) continue;
    if (n++ == 0) *first = (int64_t)i;
  }
  return n;
}

METHOD(list_count) {
  int64_t first;
  return jinja_int(count_item(run, self.list, args->values[0], &first));
}

METHOD(list_index) {
  int64_t first;
  if (count_item(run, self.list, args->values[0], &first) == 0)
    jinja_fail(run, WEFT_E_INVALID, "'index' finds nothing");
  return jinja_int(first);
}

METHOD(loop_cycle) {
  (void)run;
  return args->values[self.loop->at % args->n];
}

static const jinja_function string_methods[] = {
    {"capitalize", 0, 0, string_capitalize},
    {"count", 1, 1, string_count},
    {"endswith", 1, 1, string_endswith},
    {"find", 1, 1, string_find},
    {"index", 1, 1, string_index},
    {"isalnum", 0, 0, string_isalnum},
    {"isalpha", 0, 0, string_isalpha},
    {"isdigit", 0, 0, string_isdigit},
    {"isspace", 0, 0, string_isspace},
    {"join", 1, 1, string_join},
    {"lower", 0, 0, string_lower},
    {"lstrip", 0, 1, string_lstrip},
    {"removeprefix", 1, 1, string_removeprefix},
    {"removesuffix", 1, 1, string_removesuffix},
    {"replace", 2, 3, string_replace},
    {"rfind", 1, 1, string_rfind},
    {"rsplit", 0, 2, string_rsplit},
    {"rstrip", 0, 1, string_rstrip},
    {"split", 0, 2, string_split},
    {"splitlines", 0, 0, string_splitlines},
    {"startswith", 1, 1, string_startswith},
    {"strip", 0, 1, string_strip},
    {"title", 0, 0, string_title},
    {"upper", 0, 0, string_upper},
    {NULL, 0, 0, NULL},
};
static const jinja_function dict_methods[] = {
    {"get", 1, 2, dict_get},       {"items", 0, 0, dict_items}, {"keys", 0, 0, dict_keys},
    {"values", 0, 0, dict_values}, {NULL, 0, 0, NULL},
};
static const jinja_function list_methods[] = {
    {"count", 1, 1, list_count},
    {"index", 1, 1, list_index},
    {NULL, 0, 0, NULL},
};
static const jinja_function loop_methods[] = {{"cycle", 1, 64, loop_cycle}, {NULL, 0, 0, NULL}};

/* Methods that Python has and that are not here: some would change the value, which no template may. */
static const char *const other_string_methods[] = {
    "casefold",     "center",  "encode",    "expandtabs",  "format",   "format_map", "isascii", "isdecimal",
    "isidentifier", "islower", "isnumeric", "isprintable", "istitle",  "isupper",    "ljust",   "maketrans",
    "partition",    "rindex",  "rjust",     "rpartition",  "swapcase", "translate",  "zfill",   NULL};
static const char *const other_dict_methods[] = {"clear",   "copy",       "fromkeys", "pop",
                                                 "popitem", "setdefault", "update",   NULL};
static const char *const other_list_methods[] = {"append", "clear",  "copy",    "extend", "insert",
                                                 "pop",    "remove", "reverse", "sort",   NULL};
static const char *const other_loop_methods[] = {"changed", NULL};

const jinja_function *jinja_method_find(jinja_kind kind, const char *name, size_t n, bool *known) {
  const jinja_function *methods = kind == JINJA_STRING ? string_methods
                                  : kind == JINJA_DICT ? dict_methods
                                  : kind == JINJA_LIST ? list_methods
                                                       : loop_methods;
  const char *const *other = kind == JINJA_STRING ? other_string_methods
                             : kind == JINJA_DICT ? other_dict_methods
                             : kind == JINJA_LIST ? other_list_methods
                                                  : other_loop_methods;
  const jinja_function *found = jinja_function_find(methods, name, n);
  if (found != NULL) return found;
  for (*known = false; *other != NULL && !*known; other++) *known = strlen(*other) == n && memcmp(*other, name, n) == 0;
  return NULL;
}

/* ---- functions of everybody ------------------------------------------------------------------ */

enum { RANGE_MAX = 100000 }; /* as in jinja2's sandbox */

METHOD(global_range) {
  (void)self;
  int64_t bounds[3] = {0, 0, 1};
  for (size_t i = 0; i < args->n; i++) bounds[i] = jinja_integer_of(run, args->values[i], "a bound of 'range'");
  int64_t from = args->n == 1 ? 0 : bounds[0], to = args->n == 1 ? bounds[0] : bounds[1], step = bounds[2], span = 0;
  if (step == 0) jinja_fail(run, WEFT_E_INVALID, "the step of 'range' is 0");
  bool wraps = __builtin_sub_overflow(step > 0 ? to : from, step > 0 ? from : to, &span) || step == INT64_MIN;
  if (jinja_failed(run)) return jinja_nothing();
  uint64_t by = (uint64_t)(step > 0 ? step : -(step + 1)) + (step > 0 ? 0 : 1);
  uint64_t n = span <= 0 ? 0 : ((uint64_t)span - 1) / by + 1;
  if (wraps || n > RANGE_MAX) {
    jinja_fail(run, WEFT_E_TOO_LARGE, "'range' has more than %d elements", RANGE_MAX);
    return jinja_nothing();
  }
  jinja_list *list = jinja_take(run, sizeof *list);
  if (list == NULL) return jinja_nothing();
  *list = (jinja_list){.n = (size_t)n, .flavour = JINJA_FLAVOUR_RANGE, .start = from, .step = step};
  return (jinja_value){.kind = JINJA_LIST, .list = list};
}

static jinja_value named_values(jinja_run *run, const jinja_args *args, jinja_kind kind) {
  jinja_value made = jinja_dict_new(run, kind);
  for (size_t i = 0; i < args->n && !jinja_failed(run); i++) {
    jinja_value value = args->values[i];
    if (args->names[i] != NULL) {
      jinja_dict_set(run, made.dict, jinja_string_value(run, *args->names[i]), value);
      continue;
    }
    if (value.kind != JINJA_DICT) jinja_fail(run, WEFT_E_INVALID, "%s has no items", jinja_type_name(value));
    for (size_t k = 0; !jinja_failed(run) && k < value.dict->n; k++) {
      jinja_dict_set(run, made.dict, value.dict->entries[k].key, value.dict->entries[k].value);
    }
  }
  return made;
}

METHOD(global_namespace) {
  (void)self;
  return named_values(run, args, JINJA_NAMESPACE);
}

METHOD(global_dict) {
  (void)self;
  return named_values(run, args, JINJA_DICT);
}

METHOD(global_raise_exception) {
  (void)self;
  const jinja_string *s = jinja_text(run, args->values[0]);
  jinja_fail(run, WEFT_E_INVALID, "the template refuses this conversation: %.*s", (int)(s->n < 300 ? s->n : 300),
             s->bytes);
  return jinja_nothing();
}

METHOD(global_strftime_now) {
  (void)self;
  char format[128], *text = jinja_take(run, 512);
  const jinja_string *s = jinja_string_of(run, args->values[0], "the format of 'strftime_now'");
  if (s->n >= sizeof format) jinja_fail(run, WEFT_E_TOO_LARGE, "the format of 'strftime_now' is too long");
  if (text == NULL || jinja_failed(run)) return jinja_nothing();
  memcpy(format, s->bytes, s->n);
  format[s->n] = 0;
  size_t n = strftime(text, 512, format, &run->context->now); /* the text may be empty */
  return jinja_string_value(run, (jinja_string){.bytes = text, .n = n});
}

static const jinja_function globals[] = {
    {"dict", 0, 64, global_dict},
    {"namespace", 0, 64, global_namespace},
    {"raise_exception", 1, 1, global_raise_exception},
    {"range", 1, 3, global_range},
    {"strftime_now", 1, 1, global_strftime_now},
    {NULL, 0, 0, NULL},
};

const jinja_function *jinja_global_find(const char *name, size_t n) {
  return jinja_function_find(globals, name, n);
}
