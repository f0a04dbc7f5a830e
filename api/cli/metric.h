/* SPDX-License-Identifier: MIT */
/* Prometheus text in: the numbers in the /metrics of a server.
 *
 * Law: a metric that the text does not have is 0. The text ends with a zero; NULL counts as empty. */
#ifndef WEFT_API_CLI_METRIC_H
#define WEFT_API_CLI_METRIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The value of name summed over its labels. */
double weft_metric(const char *text, const char *name);
/* The same over the lines that carry label="value" alone; label NULL: over all. */
double weft_metric_of(const char *text, const char *name, const char *label, const char *value);
/* The index-th value of a label among the lines of name; false: there are no more. */
bool weft_metric_label(const char *text, const char *name, const char *label, uint32_t index, char *out, size_t n_out);

#endif
