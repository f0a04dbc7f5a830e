/* SPDX-License-Identifier: MIT */
/* Memory that is refused while cache events are opened, at every call: one line, nothing left behind, and the next open
 * works. While they are told: a batch that memory was refused for is a number that is missing, and what is told after it
 * is everything. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifndef WEFT_KV_EVENTS
int main(void) {
  puts("left out: built without libzmq and libmsgpack");
  return 77;
}
#else
#include <zmq.h>

#include "api/events/kv_events.h"
#include "api/events/kv_stream.h"
#include "tests/support/refuse_each.h"
#include "tests/support/small_runtime.h"

static weft_status open_and_close(void *self, weft_error *error) {
  static const char *const all[] = {"all"};
  const kv_events_options options = {.endpoint = "tcp://127.0.0.1:*",
                                     .replay = "tcp://127.0.0.1:*",
                                     .topic = "kv@here@{model}",
                                     .tokens = all,
                                     .n_tokens = 1};
  kv_events *events;
  weft_status status = kv_events_open(&options, self, &events, error);
  kv_events_close(events);
  return status;
}

static void test_open(void **state) {
  static const char *const models[] = {MODELS "ar-base.gguf"};
  weft_open_options options = small_runtime(models, 1);
  weft_runtime *runtime;
  char line[256];
  (void)state;
  options.prefix_feed = true;
  if (weft_open(&options, &runtime, line, sizeof line) != 0) fail_msg("%s", line);
  assert_true(refuse_each(open_and_close, runtime, true) > 5);
  weft_close(runtime);
}

static weft_status tell_once(void *self, weft_error *error) {
  kv_stream *s = self;
  (void)error;
  uint64_t before = kv_replay_next(&s->replay), n_overruns = atomic_load(&s->counts.n_overruns), count;
  weft_text_free(&s->batch.events); /* so that it needs memory again */
  s->came_late = false;
  kv_batch_clear_all(&s->batch);
  kv_stream_flush(s);
  assert_int_equal(kv_replay_next(&s->replay), before + 1);
  assert_true(kv_replay_find(&s->replay, before, &count));
  bool lost = kv_replay_at(&s->replay, count) == NULL;
  assert_int_equal(atomic_load(&s->counts.n_overruns), n_overruns + lost);
  assert_int_equal(s->came_late, lost);
  return lost ? WEFT_E_NO_MEMORY : WEFT_OK;
}

static void test_batches(void **state) {
  void *context = zmq_ctx_new();
  kv_stream s;
  weft_error error;
  (void)state;
  const kv_stream_config config = {.context = context, .endpoint = "tcp://127.0.0.1:*", .topic = ""};
  assert_int_equal(kv_stream_open(&config, &s, &error), WEFT_OK);
  assert_true(refuse_each(tell_once, &s, false) >= 2);
  kv_stream_close(&s);
  (void)zmq_ctx_term(context);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_open), cmocka_unit_test(test_batches)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
