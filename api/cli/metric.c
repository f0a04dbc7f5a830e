/* SPDX-License-Identifier: MIT */
#include "api/cli/metric.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One sample: name{labels} value. */
typedef struct sample {
  const char *labels; /* behind the brace; NULL: none */
  size_t n_labels;
  double value;
} sample;

/* The next sample of that name at or after *at; moves *at behind its line. */
static bool next_sample(const char **at, const char *name, sample *out) {
  size_t n = strlen(name);
  while (*at != NULL && **at != 0) {
    const char *line = *at, *end = strchr(line, '\n');
    size_t length = end == NULL ? strlen(line) : (size_t)(end - line);
    *at = end == NULL ? NULL : end + 1;
    if (length <= n || strncmp(line, name, n) != 0) continue;
    const char *value = line + n;
    *out = (sample){0};
    if (*value == '{') {
      const char *close = memrchr(line, '}', length);
      if (close == NULL) continue;
      out->labels = value + 1;
      out->n_labels = (size_t)(close - out->labels);
      value = close + 1;
    }
    if (*value != ' ') continue;
    out->value = strtod(value, NULL);
    return true;
  }
  return false;
}

/* Where the value of a label begins, and its length; NULL: it has no such label. */
static const char *label_of(const sample *s, const char *label, size_t *n) {
  size_t length = strlen(label);
  const char *end = s->labels + s->n_labels;
  for (const char *at = s->labels; at != NULL && at + length + 2 < end; at++) {
    if ((at != s->labels && at[-1] != ',') || strncmp(at, label, length) != 0 || at[length] != '=' ||
        at[length + 1] != '"')
      continue;
    const char *value = at + length + 2, *c = value;
    while (c < end && *c != '"') c += *c == '\\' ? 2 : 1;
    *n = (size_t)(c - value);
    return value;
  }
  return NULL;
}

double weft_metric_of(const char *text, const char *name, const char *label, const char *value) {
  const char *at = text;
  double sum = 0.0;
  sample s;
  while (next_sample(&at, name, &s)) {
    size_t n = 0;
    const char *own = label == NULL ? NULL : label_of(&s, label, &n);
    if (label == NULL || (own != NULL && n == strlen(value) && memcmp(own, value, n) == 0)) sum += s.value;
  }
  return sum;
}

double weft_metric(const char *text, const char *name) {
  return weft_metric_of(text, name, NULL, NULL);
}

bool weft_metric_label(const char *text, const char *name, const char *label, uint32_t index, char *out, size_t n_out) {
  const char *at = text;
  sample s;
  while (next_sample(&at, name, &s)) {
    size_t n = 0;
    const char *value = label_of(&s, label, &n);
    if (value == NULL || index-- > 0) continue;
    (void)snprintf(out, n_out, "%.*s", (int)n, value);
    return true;
  }
  return false;
}
