/* SPDX-License-Identifier: MIT */
#include "api/cli/observe.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "api/cli/cli.h"
#include "api/cli/client.h"
#include "api/cli/interrupt.h"
#include "api/cli/metric.h"
#include "base/clock.h"
#include "base/memory.h"

enum { BUCKETS_MAX = 64, ASK_MS = 30000 };

static bool is_interrupted(void *self) {
  (void)self;
  return weft_interrupts_told();
}

/* ---- asking ---------------------------------------------------------------------------------- */

int weft_observe_key(const weft_config *config, char key[WEFT_KEY_BYTES_MAX]) {
  size_t n = 0;
  key[0] = 0;
  if (config->key_file == NULL) return 0;
  char *text = weft_cli_read(config->key_file, &n);
  if (text == NULL) return WEFT_EXIT_USAGE;
  size_t length = strcspn(text, " \t\r\n");
  bool good = length > 0 && length < WEFT_KEY_BYTES_MAX;
  if (good) (void)snprintf(key, WEFT_KEY_BYTES_MAX, "%.*s", (int)length, text);
  explicit_bzero(text, n);
  weft_free(text);
  return good ? 0 : weft_cli_fail(WEFT_EXIT_USAGE, "%s holds no key", config->key_file);
}

/* The path of --host unix:PATH, or NULL. */
static const char *path_of_socket(const weft_config *config) {
  return config->host == NULL ? NULL : weft_config_socket(config->host);
}

/* Where the options say that the server is; the target points into both. The key is left out. */
static weft_status find_target(const weft_config *config, weft_client_url *url, weft_target *target,
                               weft_error *error) {
  *target = (weft_target){.socket = path_of_socket(config),
                          .host = config->host,
                          .port = (uint16_t)config->port,
                          .tls_cert = config->tls_cert};
  if (config->url == NULL) return WEFT_OK;
  if (config->host != NULL)
    return weft_fail(error, WEFT_E_INVALID, "--url %s says where the server is: leave out --host", config->url);
  if (weft_client_read_url(config->url, url, error) != WEFT_OK) {
    const weft_error why = *error;
    return weft_fail(error, WEFT_E_INVALID, "--url: %s", why.text);
  }
  *target = weft_client_target(url);
  target->tls_cert = config->tls_cert;
  return WEFT_OK;
}

void weft_observe_name(const weft_config *config, char *out, size_t n_out) {
  const char *host = config->host == NULL ? "127.0.0.1" : config->host;
  if (config->url != NULL || path_of_socket(config) != NULL) {
    (void)snprintf(out, n_out, "%s", config->url != NULL ? config->url : host);
  } else {
    bool six = strchr(host, ':') != NULL;
    (void)snprintf(out, n_out, "%s%s%s:%u", six ? "[" : "", host, six ? "]" : "", config->port);
  }
}

static int tell_code(weft_error *why, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

static int tell_code(weft_error *why, int code, const char *format, ...) {
  va_list list;
  va_start(list, format);
  (void)vsnprintf(why->text, sizeof why->text, format, list); /* a cut line is still a line */
  va_end(list);
  return code;
}

static int explain_status(const weft_config *config, const char *path, int status, weft_error *why) {
  char name[160];
  weft_observe_name(config, name, sizeof name);
  if (status == 401 || status == 403) {
    return tell_code(why, WEFT_EXIT_USAGE,
                     "the server at %s wants the operator's key: name its file with --key-file FILE", name);
  }
  if (status == 400 && config->tls_cert == NULL) {
    return tell_code(why, WEFT_EXIT_USAGE, "the server at %s speaks TLS: name its certificate with --tls-cert FILE",
                     name);
  }
  if (status >= 0) {
    return tell_code(why, WEFT_EXIT_RUNTIME, "the server at %s gave HTTP status %d for %s", name, status, path);
  }
  return tell_code(why, WEFT_EXIT_RUNTIME, "no server answers at %s%s%s", name,
                   config->tls_cert == NULL ? "" : " with the certificate of ",
                   config->tls_cert == NULL ? "" : config->tls_cert);
}

int weft_observe_try(const weft_config *config, const char *path, weft_text *out, weft_error *why) {
  char key[WEFT_KEY_BYTES_MAX];
  weft_client_url url;
  weft_target target;
  if (find_target(config, &url, &target, why) != WEFT_OK) return WEFT_EXIT_USAGE;
  int code = weft_observe_key(config, key);
  why->text[0] = 0; /* it was told */
  if (code != 0) return code;
  target.key = key[0] == 0 ? NULL : key;
  const weft_client_call call = {.method = "GET", .path = path, .timeout_ms = ASK_MS, .stop = is_interrupted};
  int status = weft_client_run(&target, &call, out);
  explicit_bzero(key, sizeof key);
  if (status == 200 && weft_text_status(out) == WEFT_OK && out->bytes != NULL) return 0;
  return explain_status(config, path, status == WEFT_CLIENT_LEFT ? WEFT_CLIENT_BROKEN : status, why);
}

int weft_observe_get(const weft_config *config, const char *path, weft_text *out) {
  weft_error why;
  int code = weft_observe_try(config, path, out, &why);
  return code != 0 && why.text[0] != 0 ? weft_cli_fail(code, "%s", why.text) : code;
}

int weft_reading_take(const weft_config *config, weft_reading *reading, weft_error *why) {
  weft_text_clear(&reading->text);
  int code = weft_observe_try(config, "/metrics", &reading->text, why);
  reading->at_us = weft_clock_us();
  return code;
}

/* ---- reading --------------------------------------------------------------------------------- */

double weft_reading_of(const weft_reading *reading, const char *name, const char *label, const char *value) {
  return weft_metric_of(reading->text.bytes, name, label, value);
}

static double counter_growth(double before, double after) {
  return after < before ? after : after - before;
}

double weft_reading_rate(const weft_reading *before, const weft_reading *after, const char *name, const char *label,
                         const char *value) {
  double seconds = (double)(after->at_us - before->at_us) / 1e6;
  double more = counter_growth(weft_reading_of(before, name, label, value), weft_reading_of(after, name, label, value));
  return seconds > 0.0 ? more / seconds : 0.0;
}

bool weft_reading_label(const weft_reading *reading, const char *name, const char *label, uint32_t index, char *out,
                        size_t n_out) {
  return weft_metric_label(reading->text.bytes, name, label, index, out, n_out);
}

double weft_reading_quantile(const weft_reading *before, const weft_reading *after, const char *histogram, double q) {
  char name[128], bound[BUCKETS_MAX][32];
  double count[BUCKETS_MAX], low = 0.0, below = 0.0;
  uint32_t n = 0;
  (void)snprintf(name, sizeof name, "%s_bucket", histogram);
  while (n < BUCKETS_MAX && weft_reading_label(after, name, "le", n, bound[n], sizeof bound[n])) {
    count[n] =
        counter_growth(weft_reading_of(before, name, "le", bound[n]), weft_reading_of(after, name, "le", bound[n]));
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
