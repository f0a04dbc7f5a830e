/* SPDX-License-Identifier: MIT */
/* A look at a running server: its counters, read as numbers.
 *
 * Law: a metric that the server does not have is 0; the difference of two readings is never negative, although a server
 * that was started again counts from 0. */
#ifndef WEFT_API_CLI_OBSERVE_H
#define WEFT_API_CLI_OBSERVE_H

#include "api/config.h"
#include "base/text.h"

/* Where the server is looked for: "127.0.0.1:8080", "unix:PATH" or the URL. */
void weft_observe_name(const weft_config *config, char *out, size_t n_out);
/* 0 and the key of --key-file ("" without the option), or an exit code after one line. */
enum { WEFT_KEY_BYTES_MAX = 256 };
int weft_observe_key(const weft_config *config, char key[WEFT_KEY_BYTES_MAX]);
/* One answer of GET path with the key of --key-file. 0, or an exit code after one line. */
int weft_observe_get(const weft_config *config, const char *path, weft_text *out);

/* Prometheus text, ended by zero. */
typedef struct weft_reading {
  weft_text text;
  uint64_t at_us;
} weft_reading;

/* The same without the line, which `why` gets. */
int weft_observe_try(const weft_config *config, const char *path, weft_text *out, weft_error *why);
/* 0, or an exit code and a line in `why`. */
int weft_reading_take(const weft_config *config, weft_reading *reading, weft_error *why);
/* See weft_metric_of. */
double weft_reading_of(const weft_reading *reading, const char *name, const char *label, const char *value);
/* By how much a metric grew per second between two readings. */
double weft_reading_rate(const weft_reading *before, const weft_reading *after, const char *name, const char *label,
                         const char *value);
/* The quantile q, in seconds, of what a histogram counted between both; < 0: nothing was counted. */
double weft_reading_quantile(const weft_reading *before, const weft_reading *after, const char *histogram, double q);
/* The index-th value of a label among the lines of name; false: there are no more. */
bool weft_reading_label(const weft_reading *reading, const char *name, const char *label, uint32_t index, char *out,
                        size_t n_out);

#endif
