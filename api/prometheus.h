/* SPDX-License-Identifier: MIT */
/* Writes Prometheus text: the pieces that /metrics is made of. For the files of api/ only.
 *
 * Law: whatever a label's value holds, it stays one value of one line. */
#ifndef WEFT_API_PROMETHEUS_H
#define WEFT_API_PROMETHEUS_H

#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

/* A counter that is one field, u32 or u64, of a structure of statistics. */
typedef struct weft_counter_row {
  const char *name, *type, *help;
  size_t at, n_bytes;
} weft_counter_row;

#define WEFT_COUNTER_AT(structure, field) offsetof(structure, field), sizeof(((structure *)0)->field)

/* The value of the row's field. */
unsigned long long weft_counter_of(const void *structure, const weft_counter_row *row);

/* Appends the lines # HELP and # TYPE of a metric. */
void weft_prometheus_head(weft_text *out, const char *name, const char *type, const char *help);
/* Appends label="value", the value escaped. */
void weft_prometheus_label(weft_text *out, const char *label, const char *value);
/* What a histogram has of one model. n: buckets, the last of them open. bound: [n - 1] upper ends; digits: of the sum,
 * behind the point. */
typedef struct weft_prometheus_buckets {
  const uint64_t *count;
  const double *bound;
  uint32_t n;
  double sum;
  int digits;
} weft_prometheus_buckets;

/* Appends its lines, but those of the head. */
void weft_prometheus_histogram(weft_text *out, const char *name, const char *model, const weft_prometheus_buckets *b);
/* Appends the escaped value of a label, without quotes. */
void weft_prometheus_escaped(weft_text *out, const char *value);

#endif
