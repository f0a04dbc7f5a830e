/* SPDX-License-Identifier: MIT */
#include "api/prometheus.h"

#include <string.h>

unsigned long long weft_counter_of(const void *structure, const weft_counter_row *row) {
  const char *at = (const char *)structure + row->at;
  uint64_t wide = 0;
  uint32_t narrow = 0;
  if (row->n_bytes == sizeof wide) {
    memcpy(&wide, at, sizeof wide);
    return wide;
  }
  memcpy(&narrow, at, sizeof narrow);
  return narrow;
}

void weft_prometheus_head(weft_text *out, const char *name, const char *type, const char *help) {
  weft_text_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void weft_prometheus_escaped(weft_text *out, const char *value) {
  for (const char *c = value; *c != 0; c++) {
    if (*c == '"' || *c == '\\') weft_text_puts(out, "\\");
    weft_text_append(out, *c == '\n' ? " " : c, 1);
  }
}

void weft_prometheus_label(weft_text *out, const char *label, const char *value) {
  weft_text_printf(out, "%s=\"", label);
  weft_prometheus_escaped(out, value);
  weft_text_puts(out, "\"");
}

static void put_line_of(weft_text *out, const char *name, const char *what, const char *model) {
  weft_text_printf(out, "%s_%s{", name, what);
  weft_prometheus_label(out, "model_name", model);
}

void weft_prometheus_histogram(weft_text *out, const char *name, const char *model, const weft_prometheus_buckets *b) {
  unsigned long long n = 0;
  for (uint32_t i = 0; i < b->n; i++) {
    n += b->count[i];
    put_line_of(out, name, "bucket", model);
    if (i + 1 < b->n)
      weft_text_printf(out, ",le=\"%.10g\"} %llu\n", b->bound[i], n);
    else
      weft_text_printf(out, ",le=\"+Inf\"} %llu\n", n);
  }
  put_line_of(out, name, "sum", model);
  weft_text_printf(out, "} %.*f\n", b->digits, b->sum);
  put_line_of(out, name, "count", model);
  weft_text_printf(out, "} %llu\n", n);
}
