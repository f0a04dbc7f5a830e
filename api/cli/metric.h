/* SPDX-License-Identifier: MIT */
/* Prometheus text in: what /metrics of a server says, as numbers.
 *
 * Law: what the text does not tell is 0. Text is ended by zero; NULL is empty. */
#ifndef WEFT_API_CLI_METRIC_H
#define WEFT_API_CLI_METRIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The value of name summed over its labels. */
double weft_metric(const char *text, const char *name);
/* Of the lines that carry label="value"; label NULL: of all. */
double weft_metric_of(const char *text, const char *name, const char *label, const char *value);
/* The index-th value of a label among the lines of name; false: there are no more. */
bool weft_metric_label(const char *text, const char *name, const char *label, uint32_t index, char *out, size_t n_out);

#endif
