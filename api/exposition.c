/* SPDX-License-Identifier: MIT */
#include "api/exposition.h"

#include <string.h>

enum { NAME_MAX_BYTES = 128 };

/* A family of the input: its name and the lines that belong to it. */
typedef struct family {
  const char *name, *help, *type, *samples; /* borrowed; not ended by zero */
  size_t n_name, n_help, n_type, n_samples;
} family;

/* What of a name is another one in the family that is written. */
typedef struct renaming {
  const char *from, *to; /* NULL: nothing */
  uint32_t digits;       /* by which the value is shifted */
} renaming;

static bool begins_with(const char *at, const char *end, const char *words) {
  size_t n = strlen(words);
  return (size_t)(end - at) >= n && memcmp(at, words, n) == 0;
}

static bool ends_with(const char *name, size_t n, const char *words) {
  size_t n_words = strlen(words);
  return n >= n_words && memcmp(name + n - n_words, words, n_words) == 0;
}

static const char *end_of_line(const char *at, const char *end) {
  const char *feed = memchr(at, '\n', (size_t)(end - at));
  return feed == NULL ? end : feed;
}

/* Reads a family; returns where the next one begins, or NULL: what is there is none. */
static const char *read_family(const char *at, const char *end, family *f) {
  static const char help[] = "# HELP ", type[] = "# TYPE ";
  if (!begins_with(at, end, help)) return NULL;
  const char *stop = end_of_line(at, end), *next = stop + (stop < end);
  f->name = at + sizeof help - 1;
  const char *blank = memchr(f->name, ' ', (size_t)(stop - f->name));
  if (blank == NULL || !begins_with(next, end, type)) return NULL;
  f->n_name = (size_t)(blank - f->name);
  f->help = blank + 1;
  f->n_help = (size_t)(stop - f->help);
  stop = end_of_line(next, end);
  f->type = next + sizeof type - 1 + f->n_name + 1;
  if (f->type >= stop) return NULL;
  f->n_type = (size_t)(stop - f->type);
  at = f->samples = stop + (stop < end);
  while (at < end && *at != '#') {
    stop = end_of_line(at, end);
    at = stop + (stop < end);
  }
  f->n_samples = (size_t)(at - f->samples);
  return at;
}

static void put_renamed(const char *name, size_t n, const renaming *r, weft_text *out) {
  const char *found = r->from == NULL ? NULL : memmem(name, n, r->from, strlen(r->from));
  if (found == NULL) {
    weft_text_append(out, name, n);
    return;
  }
  const char *rest = found + strlen(r->from);
  weft_text_append(out, name, (size_t)(found - name));
  weft_text_puts(out, r->to);
  weft_text_append(out, rest, (size_t)(name + n - rest));
}

/* The digits of a whole number, shifted: 1234567 by 6 is 1.234567. */
static void put_value(const char *value, size_t n, uint32_t digits, weft_text *out) {
  bool whole = n > 0 && strspn(value, "0123456789") >= n;
  if (digits == 0 || !whole) {
    weft_text_append(out, value, n);
    return;
  }
  if (n > digits) {
    weft_text_append(out, value, n - digits);
    value += n - digits;
    n = digits;
  } else {
    weft_text_puts(out, "0");
  }
  weft_text_puts(out, ".");
  for (uint32_t i = (uint32_t)n; i < digits; i++) weft_text_puts(out, "0");
  weft_text_append(out, value, n);
}

/* A sample: name, labels in braces, a blank, the value. Labels hold blanks, so the value begins behind the last one. */
static void put_sample(const char *at, const char *stop, const renaming *r, weft_text *out) {
  size_t n_name = strcspn(at, "{ ");
  const char *value = stop;
  while (value > at && value[-1] != ' ') value--;
  put_renamed(at, n_name, r, out);
  weft_text_append(out, at + n_name, (size_t)(value - at) - n_name);
  put_value(value, (size_t)(stop - value), r->digits, out);
  weft_text_puts(out, "\n");
}

/* OpenMetrics: quotes in a help text are escaped, too. */
static void put_help(const family *f, bool open_metrics, weft_text *out) {
  for (size_t i = 0; i < f->n_help; i++) {
    if (open_metrics && f->help[i] == '"') weft_text_puts(out, "\\");
    weft_text_append(out, f->help + i, 1);
  }
}

static void put_family(const family *f, const renaming *r, bool open_metrics, weft_text *out) {
  static const char *const units[] = {"seconds", "bytes", "microseconds", "nanoseconds"};
  weft_text name = {.max = NAME_MAX_BYTES};
  put_renamed(f->name, f->n_name, r, &name);
  if (weft_text_status(&name) != WEFT_OK) out->refused = true;
  size_t n = name.n;
  bool counts = f->n_type == strlen("counter") && memcmp(f->type, "counter", f->n_type) == 0;
  if (open_metrics && counts && ends_with(name.bytes, n, "_total")) n -= strlen("_total");
  if (!open_metrics) {
    weft_text_printf(out, "# HELP %.*s ", (int)n, name.bytes);
    put_help(f, open_metrics, out);
    weft_text_puts(out, "\n");
  }
  weft_text_printf(out, "# TYPE %.*s %.*s\n", (int)n, name.bytes, (int)f->n_type, f->type);
  for (size_t i = 0; open_metrics && i < sizeof units / sizeof *units; i++) {
    char ending[24] = "_";
    memcpy(ending + 1, units[i], strlen(units[i]));
    if (ends_with(name.bytes, n, ending)) weft_text_printf(out, "# UNIT %.*s %s\n", (int)n, name.bytes, units[i]);
  }
  if (open_metrics) {
    weft_text_printf(out, "# HELP %.*s ", (int)n, name.bytes);
    put_help(f, open_metrics, out);
    weft_text_puts(out, "\n");
  }
  for (const char *at = f->samples, *end = at + f->n_samples; at < end;) {
    const char *stop = end_of_line(at, end);
    if (stop > at) put_sample(at, stop, r, out);
    at = stop + (stop < end);
  }
  weft_text_free(&name);
}

void exposition_write(const weft_text *families, bool open_metrics, weft_text *out) {
  static const renaming spans[] = {{"_microseconds", "_seconds", 6}, {"_nanoseconds", "_seconds", 9}};
  static const renaming none = {0};
  const char *at = families->bytes, *end = at == NULL ? NULL : at + families->n;
  while (at < end) {
    family f;
    const char *next = read_family(at, end, &f);
    if (next == NULL) { /* what is no family goes out as it is */
      const char *stop = end_of_line(at, end);
      if (!open_metrics) weft_text_append(out, at, (size_t)(stop - at) + (stop < end));
      at = stop + (stop < end);
      continue;
    }
    put_family(&f, &none, open_metrics, out);
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++) {
      if (memmem(f.name, f.n_name, spans[i].from, strlen(spans[i].from)) != NULL)
        put_family(&f, &spans[i], open_metrics, out);
    }
    at = next;
  }
  if (open_metrics) weft_text_puts(out, "# EOF\n");
}
