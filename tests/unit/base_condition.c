/* SPDX-License-Identifier: MIT */
/* Waits end when their time is over by the monotonic clock, or when somebody signals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/condition.h"

enum { HOUR_US = 1000000 * 3600u };

typedef struct pair {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  bool called;
} pair;

static void open_pair(pair *p) {
  p->called = false;
  assert_int_equal(pthread_mutex_init(&p->mutex, NULL), 0);
  assert_int_equal(weft_condition_open(&p->changed), WEFT_OK);
}

static void close_pair(pair *p) {
  assert_int_equal(pthread_cond_destroy(&p->changed), 0);
  assert_int_equal(pthread_mutex_destroy(&p->mutex), 0);
}

static void *call(void *self) {
  pair *p = self;
  (void)pthread_mutex_lock(&p->mutex);
  p->called = true;
  (void)pthread_cond_signal(&p->changed);
  (void)pthread_mutex_unlock(&p->mutex);
  return NULL;
}

static void a_wait_lasts_until_its_end(void **state) {
  pair p;
  (void)state;
  open_pair(&p);
  (void)pthread_mutex_lock(&p.mutex);
  assert_false(weft_condition_wait(&p.changed, &p.mutex, 0));
  uint64_t until_us = weft_clock_us() + 3000;
  while (weft_condition_wait(&p.changed, &p.mutex, until_us)) assert_true(weft_clock_us() < until_us + HOUR_US);
  assert_true(weft_clock_us() >= until_us);
  (void)pthread_mutex_unlock(&p.mutex);
  close_pair(&p);
}

static void a_signal_ends_a_wait(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 2; i++) {
    uint64_t until_us = i == 0 ? UINT64_MAX : weft_clock_us() + HOUR_US;
    pair p;
    pthread_t thread;
    open_pair(&p);
    (void)pthread_mutex_lock(&p.mutex); /* so that the call comes while this thread waits */
    assert_int_equal(pthread_create(&thread, NULL, call, &p), 0);
    while (!p.called) assert_true(weft_condition_wait(&p.changed, &p.mutex, until_us));
    (void)pthread_mutex_unlock(&p.mutex);
    assert_int_equal(pthread_join(thread, NULL), 0);
    close_pair(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_wait_lasts_until_its_end),
                                     cmocka_unit_test(a_signal_ends_a_wait)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
