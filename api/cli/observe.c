/* SPDX-License-Identifier: MIT */
#include "api/cli/observe.h"

#include <stdlib.h>
#include <string.h>

#include "api/cli/cli.h"
#include "api/cli/client.h"
#include "base/clock.h"
#include "base/memory.h"

enum { KEY_BYTES_MAX = 256, BUCKETS_MAX = 64 };

/* ---- asking ---------------------------------------------------------------------------------- */

/* 0 and the key of --key-file ("" without the option), or an exit code after one line. */
static int read_key(const weft_config *config, char key[KEY_BYTES_MAX]) {
  size_t n = 0;
  key[0] = 0;
  if (config->key_file == NULL) return 0;
  char *text = weft_cli_read(config->key_file, &n);
  if (text == NULL) return WEFT_EXIT_USAGE;
  size_t length = strcspn(text, " \t\r\n");
  bool good = length > 0 && length < KEY_BYTES_MAX;
  if (good) (void)snprintf(key, KEY_BYTES_MAX, "%.*s", (int)length, text);
  explicit_bzero(text, n);
  weft_free(text);
  return good ? 0 : weft_cli_fail(WEFT_EXIT_USAGE, "%s holds no key", config->key_file);
}

int weft_observe_get(const weft_config *config, const char *path, weft_text *out) {
  char key[KEY_BYTES_MAX];
  int code = read_key(config, key);
  if (code != 0) return code;
  int status = weft_client_request_as((uint16_t)config->port, key[0] == 0 ? NULL : key, "GET", path,
                                      NULL, out, 0);
  explicit_bzero(key, sizeof key);
  if (status == 200 && weft_text_status(out) == WEFT_OK && out->bytes != NULL) return 0;
  if (status == 401 || status == 403) {
    return weft_cli_fail(WEFT_EXIT_USAGE,
                         "the server at port %u wants the operator's key: name its file with "
                         "--key-file FILE",
                         config->port);
  }
  if (status < 0)
    return weft_cli_fail(WEFT_EXIT_RUNTIME, "no server answers at 127.0.0.1:%u", config->port);
  return weft_cli_fail(WEFT_EXIT_RUNTIME, "the server at port %u gave HTTP status %d for %s",
                       config->port, status, path);
}

int weft_reading_take(const weft_config *config, weft_reading *reading) {
  weft_text_clear(&reading->text);
  int code = weft_observe_get(config, "/metrics", &reading->text);
  reading->at_us = weft_clock_us();
  return code;
}

/* ---- reading --------------------------------------------------------------------------------- */

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
    if ((at != s->labels && at[-1] != ',') || strncmp(at, label, length) != 0 ||
        at[length] != '=' || at[length + 1] != '"')
      continue;
    const char *value = at + length + 2, *c = value;
    while (c < end && *c != '"') c += *c == '\\' ? 2 : 1;
    *n = (size_t)(c - value);
    return value;
  }
  return NULL;
}

double weft_reading_of(const weft_reading *reading, const char *name, const char *label,
                       const char *value) {
  const char *at = reading->text.bytes;
  double sum = 0.0;
  sample s;
  while (next_sample(&at, name, &s)) {
    size_t n = 0;
    const char *own = label == NULL ? NULL : label_of(&s, label, &n);
    if (label == NULL || (own != NULL && n == strlen(value) && memcmp(own, value, n) == 0))
      sum += s.value;
  }
  return sum;
}

static double grown(double before, double after) {
  return after < before ? after : after - before;
}

double weft_reading_rate(const weft_reading *before, const weft_reading *after, const char *name,
                         const char *label, const char *value) {
  double seconds = (double)(after->at_us - before->at_us) / 1e6;
  double more = grown(weft_reading_of(before, name, label, value),
                      weft_reading_of(after, name, label, value));
  return seconds > 0.0 ? more / seconds : 0.0;
}

bool weft_reading_label(const weft_reading *reading, const char *name, const char *label,
                        uint32_t index, char *out, size_t n_out) {
  const char *at = reading->text.bytes;
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

double weft_reading_quantile(const weft_reading *before, const weft_reading *after,
                             const char *histogram, double q) {
  char name[128], bound[BUCKETS_MAX][32];
  double count[BUCKETS_MAX], low = 0.0, below = 0.0;
  uint32_t n = 0;
  (void)snprintf(name, sizeof name, "%s_bucket", histogram);
  while (n < BUCKETS_MAX && weft_reading_label(after, name, "le", n, bound[n], sizeof bound[n])) {
    count[n] = grown(weft_reading_of(before, name, "le", bound[n]),
                     weft_reading_of(after, name, "le", bound[n]));
    n += 1;
  }
  if (n == 0 || count[n - 1] <= 0.0) return -1.0;
  for (uint32_t i = 0; i < n; i++) {
    double high = strcmp(bound[i], "+Inf") == 0 ? low : strtod(bound[i], NULL);
    double wanted = q * count[n - 1];
    if (count[i] >= wanted) {
      double share = count[i] > below ? (wanted - below) / (count[i] - below) : 1.0;
      return low + (high - low) * share;
    }
    low = high;
    below = count[i];
  }
  return low;
}
