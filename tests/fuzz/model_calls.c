/* SPDX-License-Identifier: MIT */
/* Any bytes as an answer that may hold calls: the first byte chooses the form, the second how the answer is cut.
 * What comes out does not depend on the cut, a call that is whole has an object of JSON, and all that is given is as
 * long as what was read, but for escapes. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/text/calls.h"
#include "tests/support/fuzz_require.h"

typedef struct taken {
  weft_text all, arguments; /* all: what was given, with a byte before each part that says what it is */
  bool open;
} taken;

static void put_part(taken *t, char what, const char *text, size_t n) {
  if (what != 'a' || t->all.n == 0) weft_text_append(&t->all, &what, 1);
  weft_text_append(&t->all, text, n);
}

static void take_content(void *self, const char *text, size_t n) {
  taken *t = self;
  REQUIRE(!t->open && n > 0);
  weft_text_append(&t->all, text, n);
}

static void take_begin(void *self, const char *name, size_t n) {
  taken *t = self;
  REQUIRE(!t->open && n > 0 && n <= 128);
  t->open = true;
  weft_text_clear(&t->arguments);
  put_part(t, 'b', name, n);
  put_part(t, ' ', "", 0);
}

static void take_arguments(void *self, const char *text, size_t n) {
  taken *t = self;
  REQUIRE(t->open && n > 0);
  weft_text_append(&t->arguments, text, n);
  weft_text_append(&t->all, text, n);
}

static void take_end(void *self, bool whole) {
  taken *t = self;
  json_error_t error;
  REQUIRE(t->open);
  t->open = false;
  put_part(t, whole ? '$' : '!', "", 0);
  if (!whole || !weft_utf8_valid(t->arguments.bytes, t->arguments.n, NULL)) return;
  json_t *json = json_loadb(t->arguments.bytes, t->arguments.n, JSON_ALLOW_NUL, &error);
  /* numbers beyond a double, lone surrogates and zeros in names are JSON that this parser does not take */
  bool beyond = strstr(error.text, "overflow") != NULL || strstr(error.text, "NUL") != NULL ||
                strstr(error.text, "Unicode") != NULL || strstr(error.text, "too big") != NULL;
  REQUIRE(json_is_object(json) || beyond);
  json_decref(json);
}

static taken read_answer(weft_call_form form, const char *text, size_t n, size_t step) {
  static const weft_callable tools[] = {{"f", "vn\0"}, {"g", NULL}}; /* all but n are strings */
  taken t = {0};
  const weft_call_sink sink = {&t, take_content, take_begin, take_arguments, take_end};
  weft_call_reader reader;
  weft_call_reader_open(&reader, form, tools, 2);
  for (size_t at = 0; at < n; at += step) {
    REQUIRE(weft_call_reader_push(&reader, text + at, step < n - at ? step : n - at, &sink) == WEFT_OK);
  }
  REQUIRE(weft_call_reader_end(&reader, true, &sink) == WEFT_OK);
  weft_call_reader_close(&reader);
  REQUIRE(!t.open);
  return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  if (n < 3 || n > 40000) return 0;
  weft_call_form form = (weft_call_form)(data[0] % WEFT_CALL_FORMS);
  taken whole = read_answer(form, (const char *)data + 2, n - 2, n),
        cut = read_answer(form, (const char *)data + 2, n - 2, 1 + data[1] % 16);
  REQUIRE(whole.all.n == cut.all.n && (whole.all.n == 0 || memcmp(whole.all.bytes, cut.all.bytes, whole.all.n) == 0));
  REQUIRE(whole.all.n <= 6 * n);
  weft_text_free(&whole.all);
  weft_text_free(&whole.arguments);
  weft_text_free(&cut.all);
  weft_text_free(&cut.arguments);
  return 0;
}
