/* SPDX-License-Identifier: MIT */
/* traceparent and tracestate: what the W3C's recommendation takes, and what it does not. */
#include "api/http/trace_context.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define TRACE  "4bf92f3577b34da6a3ce929d0e0e4736"
#define PARENT "00f067aa0ba902b7"
#define GOOD   "00-" TRACE "-" PARENT "-01"

static weft_trace_context read_two(const char *parent, const char *name, const char *value) {
  weft_trace_context t;
  weft_http_head head = {.n_fields = 2, .field = {{"TraceParent", parent}, {name, value}}};
  memset(&t, 0x55, sizeof t);
  weft_trace_context_read(&head, &t);
  return t;
}

static void parents_are_read(void **state) {
  static const struct {
    const char *text, *flags; /* flags NULL: invalid */
  } rows[] = {
      {GOOD, "01"},
      {"00-" TRACE "-" PARENT "-00", "00"},
      {"00-" TRACE "-" PARENT "-ff", "01"},
      {"00-" TRACE "-" PARENT "-02", "00"},
      {"01-" TRACE "-" PARENT "-01", "01"},
      {"cc-" TRACE "-" PARENT "-01-what-comes-later", "01"},
      {"cc-" TRACE "-" PARENT "-01.x", NULL},
      {GOOD "-", NULL},
      {GOOD "0", NULL},
      {"ff-" TRACE "-" PARENT "-01", NULL},
      {"0-" TRACE "-" PARENT "-01", NULL},
      {"00-4BF92f3577b34da6a3ce929d0e0e4736-" PARENT "-01", NULL},
      {"00-00000000000000000000000000000000-" PARENT "-01", NULL},
      {"00-" TRACE "-0000000000000000-01", NULL},
      {"00-" TRACE "-" PARENT "-0", NULL},
      {"00-" TRACE "-" PARENT "-0G", NULL},
      {"00_" TRACE "-" PARENT "-01", NULL},
      {"00-" TRACE "-00f067aa0ba902b-701", NULL},
      {"00-" TRACE, NULL},
      {"0", NULL},
      {"", NULL},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_trace_context t = read_two(rows[i].text, "tracestate", "a=1");
    if (t.known != (rows[i].flags != NULL)) fail_msg("'%s'", rows[i].text);
    assert_string_equal(t.trace_id, t.known ? TRACE : "");
    assert_string_equal(t.parent_id, t.known ? PARENT : "");
    assert_string_equal(t.flags, t.known ? rows[i].flags : "");
    assert_string_equal(t.state, t.known ? "a=1" : "");
  }
  assert_false(read_two(GOOD, "traceparent", GOOD).known); /* twice */
  weft_trace_context none;
  weft_trace_context_read(&(weft_http_head){0}, &none);
  assert_false(none.known);
}

static void states_are_read(void **state) {
  static const struct {
    const char *text, *kept;
  } rows[] = {
      {"a=1,b=2", "a=1,b=2"},
      {" a=1 ,\t, b/c_*-9= x ,",
       "a=1,b/c_*-9= x"}, /* members may be empty, with blanks around them; those behind = are of the value */
      {"", ""},
      {"9t@sys=v", "9t@sys=v"},
      {"a=b c", "a=b c"},
      {"a=1,a=2", ""},
      {"ab=1,a=2", "ab=1,a=2"},
      {"9=1", ""},
      {"A=1", ""},
      {"a", ""},
      {"=1", ""},
      {"a=", ""},
      {"a=b=c", ""},
      {"a@=1", ""},
      {"@b=1", ""},
      {"a@b@c=1", ""},
      {"a@abcdefghijklmno=1", ""},
      {"a=\x80", ""},
  };
  char text[1024], many[33][8];
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_trace_context t = read_two(GOOD, "tracestate", rows[i].text);
    assert_true(t.known);
    if (strcmp(t.state, rows[i].kept) != 0) fail_msg("'%s' gave '%s'", rows[i].text, t.state);
  }
  for (uint32_t i = 0; i < 33; i++) (void)snprintf(many[i], sizeof many[i], "k%u=1,", i);
  for (uint32_t n = 32; n <= 33; n++) {
    text[0] = 0;
    for (uint32_t i = 0; i < n; i++) strcat(text, many[i]);
    assert_int_equal(read_two(GOOD, "tracestate", text).state[0] != 0, n == 32);
  }
  for (int n = 256; n <= 257; n++) {
    (void)snprintf(text, sizeof text, "a=%0*d", n, 1);
    assert_int_equal(strlen(read_two(GOOD, "tracestate", text).state), n == 256 ? 258 : 0);
  }
  for (int n = 251; n <= 252; n++) { /* 512 bytes, and one more */
    (void)snprintf(text, sizeof text, "a=%0256d,b=%0*d", 1, n, 1);
    assert_int_equal(strlen(read_two(GOOD, "tracestate", text).state), n == 251 ? 512 : 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(parents_are_read), cmocka_unit_test(states_are_read)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
