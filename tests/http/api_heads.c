/* SPDX-License-Identifier: MIT */
/* What stands in the head of an answer, and forms of an answer that a client chooses by its own: packed answers,
 * OpenMetrics, the limits of a tenant. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <zlib.h>

#include "api/exposition.h"
#include "api/http/pack.h"
#include "tests/support/http_conversation.h"
#include "tests/support/refuse_each.h"

static talk server;
static const char keys[] =
    "sk-op operator\nsk-lim limited running=2 queued=3 tokens-per-minute=60000\nsk-tight tight "
    "tokens-per-minute=250\nsk-free free\n";

static int open_server(void **state) {
  (void)state;
  (void)talk_serve_both(&server, keys);
  return 0;
}

static int close_server(void **state) {
  (void)state;
  talk_close(&server);
  return 0;
}

#define AS(key) "Authorization: Bearer sk-" key "\r\n"

/* ---- packing ---- */

static void unpack(const weft_text *packed, weft_text *plain) {
  static char out[1 << 20];
  z_stream z = {.next_in = (Bytef *)(void *)packed->bytes, .avail_in = (uInt)packed->n};
  z.next_out = (Bytef *)(void *)out;
  z.avail_out = sizeof out;
  assert_int_equal(inflateInit2(&z, 15 + 16), Z_OK);
  assert_int_equal(inflate(&z, Z_FINISH), Z_STREAM_END);
  weft_text_append(plain, out, sizeof out - z.avail_out);
  assert_int_equal(inflateEnd(&z), Z_OK);
}

static void long_answers_are_packed(void **state) {
  char value[128];
  (void)state;
  talk_answer plain = talk_ask_as(server.port, "GET", "/v1/models", AS("free"), "");
  assert_int_equal(plain.code, 200);
  assert_string_equal(talk_header(&plain, "Content-Encoding", value, sizeof value), "");
  assert_non_null(strstr(talk_header(&plain, "Vary", value, sizeof value), "Accept-Encoding"));
  talk_answer packed =
      talk_ask_as(server.port, "GET", "/v1/models", AS("free") "Accept-Encoding: br, gzip;q=0.5\r\n", "");
  assert_int_equal(packed.code, 200);
  assert_string_equal(talk_header(&packed, "Content-Encoding", value, sizeof value), "gzip");
  assert_true(packed.body.n < plain.body.n / 2);
  weft_text out = {0};
  unpack(&packed.body, &out);
  assert_string_equal(out.bytes, plain.body.bytes);
  weft_text_free(&out);
  talk_answer_free(&packed);
  talk_answer_free(&plain);
  packed = talk_ask_as(server.port, "GET", "/metrics", AS("op") "Accept-Encoding: gzip\r\n", "");
  assert_string_equal(talk_header(&packed, "Content-Encoding", value, sizeof value), "gzip");
  unpack(&packed.body, &out);
  assert_non_null(strstr(out.bytes, "\nweft_steps_total "));
  weft_text_free(&out);
  talk_answer_free(&packed);
}

/* Nobody asked, it is too short, it was refused, or it is a stream. */
static void others_are_not(void **state) {
  char value[64];
  static const char gzip[] = AS("free") "Accept-Encoding: gzip\r\n";
  static const struct {
    const char *method, *path, *headers, *body;
    int code;
  } cases[] = {{"GET", "/v1/models", AS("free") "Accept-Encoding: gzip;q=0\r\n", "", 200},
               {"GET", "/v1/models", AS("free") "Accept-Encoding: gzip; q=0.000, br\r\n", "", 200},
               {"GET", "/v1/models", AS("free") "Accept-Encoding: xgzip, *\r\n", "", 200},
               {"GET", "/version", gzip, "", 200},
               {"GET", "/none", gzip, "", 404},
               {"POST", "/v1/completions", gzip,
                "{\"model\":\"weft-demo\",\"prompt\":\"a\",\"max_tokens\":4,\"stream\":true}", 200},
               {"POST", "/tokenize", gzip, "{\"model\":\"weft-demo\",\"prompt\":\"a\"}", 200}};
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    talk_answer a = talk_ask_as(server.port, cases[i].method, cases[i].path, cases[i].headers, cases[i].body);
    assert_int_equal(a.code, cases[i].code);
    assert_string_equal(talk_header(&a, "Content-Encoding", value, sizeof value), "");
    talk_answer_free(&a);
  }
}

static void wishes_are_read(void **state) {
  (void)state;
  assert_int_equal(pack_wanted(NULL, "gzip"), 0);
  assert_int_equal(pack_wanted("", "gzip"), 0);
  assert_int_equal(pack_wanted("gzip", "gzip"), 1000);
  assert_int_equal(pack_wanted(" , br ;q=1,GZIP ; q=0.25", "gzip"), 250);
  assert_int_equal(pack_wanted("gzip;q=0.", "gzip"), 0);
  assert_int_equal(pack_wanted("gzip;q=", "gzip"), 1000);
  assert_int_equal(pack_wanted("gzip;version=1;q=0.1", "gzip"), 100);
  assert_int_equal(pack_wanted("gzip;;q=0.0019", "gzip"), 1);
}

static weft_status pack_once(void *self) {
  weft_text packed = {0};
  weft_status status = pack_gzip(self, &packed) ? WEFT_OK : WEFT_E_NO_MEMORY;
  weft_text_free(&packed);
  return status;
}

/* Memory may be refused at any allocation. */
static void packing_may_be_refused(void **state) {
  weft_text plain = {0};
  (void)state;
  for (int i = 0; i < 2000; i++) weft_text_printf(&plain, "line %d\n", i);
  for (uint64_t n = 1;; n++) {
    (void)weft_memory_fail_at(n);
    weft_status status = pack_once(&plain);
    (void)weft_memory_fail_at(0);
    if (status == WEFT_OK) break;
    assert_true(n < 20);
  }
  weft_text_free(&plain);
}

/* ---- OpenMetrics ---- */

/* The laws of the form: families told once, samples behind their type, counters end in _total, # EOF is last. */
static void check_open_metrics(char *text) {
  char family[128] = "", seen[65536] = "";
  char *save = NULL, *last = NULL;
  uint32_t n_counters = 0, n_units = 0;
  for (char *line = strtok_r(text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
    char name[128], type[32], one[160];
    last = line;
    if (sscanf(line, "# TYPE %127s %31s", name, type) == 2) {
      (void)snprintf(one, sizeof one, " %s ", name);
      if (strstr(seen, one) != NULL) fail_msg("%s is told twice", name);
      assert_true(strlen(seen) + strlen(one) < sizeof seen);
      (void)strncat(seen, one, sizeof seen - strlen(seen) - 1);
      (void)snprintf(family, sizeof family, "%s", name);
      if (strcmp(type, "counter") == 0 && strstr(name, "_total") != NULL) fail_msg("%s ends in _total", name);
      n_counters += strcmp(type, "counter") == 0;
    } else if (sscanf(line, "# UNIT %127s %31s", name, type) == 2) {
      (void)snprintf(one, sizeof one, "_%s", type);
      assert_string_equal(name + strlen(name) - strlen(one), one);
      assert_string_equal(name, family);
      n_units++;
    } else if (line[0] != '#') {
      if (strncmp(line, family, strlen(family)) != 0) fail_msg("'%s' is no sample of %s", line, family);
    }
  }
  assert_string_equal(last, "# EOF");
  assert_true(n_counters > 30 && n_units > 10);
}

static void counters_come_in_both_forms(void **state) {
  char value[128];
  (void)state;
  static const char prometheus[] =
      AS("op") "Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n";
  talk_answer open = talk_ask_as(server.port, "GET", "/metrics", prometheus, "");
  assert_int_equal(open.code, 200);
  assert_string_equal(talk_header(&open, "Content-Type", value, sizeof value),
                      "application/openmetrics-text; version=1.0.0; charset=utf-8");
  check_open_metrics(open.body.bytes);
  talk_answer_free(&open);
  talk_answer plain = talk_ask_as(server.port, "GET", "/metrics", AS("op") "Accept: text/plain\r\n", "");
  assert_string_equal(talk_header(&plain, "Content-Type", value, sizeof value),
                      "text/plain; version=0.0.4; charset=utf-8");
  assert_null(strstr(plain.body.bytes, "# EOF"));
  assert_non_null(strstr(plain.body.bytes, "# TYPE weft_step_microseconds_total counter\n"));
  assert_non_null(strstr(plain.body.bytes, "# TYPE weft_step_seconds_total counter\nweft_step_seconds_total 0."));
  talk_answer_free(&plain);
}

static void expect_form(const char *in, bool open, const char *wanted) {
  weft_text families = {0}, out = {0};
  weft_text_puts(&families, in);
  exposition_write(&families, open, &out);
  assert_string_equal(out.bytes, wanted);
  weft_text_free(&families);
  weft_text_free(&out);
}

static void spans_have_base_units(void **state) {
  (void)state;
  expect_form(
      "# HELP a_microseconds_total Time \"x\".\n# TYPE a_microseconds_total counter\n"
      "a_microseconds_total{t=\"a b\\\" 1\"} 12345678\na_microseconds_total 7\n",
      false,
      "# HELP a_microseconds_total Time \"x\".\n# TYPE a_microseconds_total counter\n"
      "a_microseconds_total{t=\"a b\\\" 1\"} 12345678\na_microseconds_total 7\n"
      "# HELP a_seconds_total Time \"x\".\n# TYPE a_seconds_total counter\n"
      "a_seconds_total{t=\"a b\\\" 1\"} 12.345678\na_seconds_total 0.000007\n");
  expect_form("# HELP a_nanoseconds_total \"x\"\n# TYPE a_nanoseconds_total counter\na_nanoseconds_total 1\n", true,
              "# TYPE a_nanoseconds counter\n# UNIT a_nanoseconds nanoseconds\n# HELP a_nanoseconds \\\"x\\\"\n"
              "a_nanoseconds_total 1\n"
              "# TYPE a_seconds counter\n# UNIT a_seconds seconds\n# HELP a_seconds \\\"x\\\"\n"
              "a_seconds_total 0.000000001\n# EOF\n");
  expect_form("# HELP b Bytes.\n# TYPE b gauge\nb 3\n", false, "# HELP b Bytes.\n# TYPE b gauge\nb 3\n");
}

/* ---- limits ---- */

static void limits_are_told(void **state) {
  static const char body[] = "{\"model\":\"weft-demo\",\"prompt\":\"a\",\"max_tokens\":8,\"mode\":\"autoregressive\"}";
  static const char stream[] =
      "{\"model\":\"weft-demo\",\"prompt\":\"a\",\"max_tokens\":8,\"mode\":\"autoregressive\",\"stream\":true}";
  static const char most[] =
      "{\"model\":\"weft-demo\",\"prompt\":\"a\",\"max_tokens\":240,\"ignore_eos\":true,\"mode\":\"autoregressive\"}";
  char value[64];
  long left;
  (void)state;
  for (int i = 0; i < 2; i++) {
    talk_answer a = talk_ask_as(server.port, "POST", "/v1/completions", AS("lim"), i == 0 ? body : stream);
    assert_int_equal(a.code, 200);
    assert_string_equal(talk_header(&a, "x-ratelimit-limit-requests", value, sizeof value), "5");
    left = strtol(talk_header(&a, "x-ratelimit-remaining-requests", value, sizeof value), NULL, 10);
    assert_in_range(left, 1, 5);
    assert_string_equal(talk_header(&a, "x-ratelimit-limit-tokens", value, sizeof value), "60000");
    left = strtol(talk_header(&a, "x-ratelimit-remaining-tokens", value, sizeof value), NULL, 10);
    assert_in_range(left, 59900, 60000);
    (void)talk_header(&a, "x-ratelimit-reset-tokens", value, sizeof value);
    assert_true(strcmp(value, "0s") == 0 || strstr(value, "ms") != NULL);
    talk_answer_free(&a);
  }
  for (int code = 200; code != 429;) { /* the minute's tokens come back while an answer is slow */
    talk_answer full = talk_ask_as(server.port, "POST", "/v1/completions", AS("tight"), most);
    code = full.code;
    assert_true(code == 200 || code == 429);
    assert_string_equal(talk_header(&full, "x-ratelimit-limit-tokens", value, sizeof value), "250");
    left = strtol(talk_header(&full, "x-ratelimit-remaining-tokens", value, sizeof value), NULL, 10);
    assert_in_range(left, 0, 240);
    assert_non_null(strstr(talk_header(&full, "x-ratelimit-reset-tokens", value, sizeof value), "s"));
    assert_string_equal(talk_header(&full, "x-ratelimit-limit-requests", value, sizeof value), "");
    talk_answer_free(&full);
  }
  talk_answer large = talk_ask_as(server.port, "POST", "/v1/completions", AS("free"), body);
  assert_int_equal(large.code, 200);
  assert_string_equal(talk_header(&large, "x-ratelimit-limit-requests", value, sizeof value), "");
  assert_string_equal(talk_header(&large, "x-ratelimit-limit-tokens", value, sizeof value), "");
  talk_answer_free(&large);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(long_answers_are_packed),
      cmocka_unit_test(others_are_not),
      cmocka_unit_test(wishes_are_read),
      cmocka_unit_test(packing_may_be_refused),
      cmocka_unit_test(counters_come_in_both_forms),
      cmocka_unit_test(spans_have_base_units),
      cmocka_unit_test(limits_are_told),
  };
  return cmocka_run_group_tests(tests, open_server, close_server);
}
