/* SPDX-License-Identifier: MIT */
/* Threads start with their first allocation behind them, or not at all: a process whose address space is nearly used up
 * never ends by a fault. Each start runs in a process of its own, with a limit of its own. It stands with the tests of api/,
 * which have the allocator of the program. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/threads.h"

enum { STARTED = 0, REFUSED = 3, WRONG = 4, THREADS = 6, STEP_BYTES = 128 << 10, STEPS = 600 };

/* What a thread of the server does first: it allocates, and goes on where that is refused. */
static void *allocate(void *self) {
  uint32_t *n_refused = self;
  for (size_t n = 16; n <= 1 << 16; n *= 4) {
    void *memory = weft_alloc(1, n);
    if (memory == NULL) *n_refused += 1;
    weft_free(memory);
  }
  return NULL;
}

#ifdef WEFT_JEMALLOC
static size_t address_space(void) {
  char line[128];
  size_t kib = 0;
  FILE *file = fopen("/proc/self/status", "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) (void)sscanf(line, "VmSize: %zu kB", &kib);
  if (file != NULL) (void)fclose(file);
  return kib << 10;
}

/* In a child: so many threads at once as there is room for. */
static int start_within(size_t more) {
  struct rlimit limit = {.rlim_cur = address_space() + more, .rlim_max = RLIM_INFINITY};
  pthread_t thread[THREADS];
  uint32_t n_refused[THREADS] = {0}, n = 0;
  weft_error error = {{0}};
  weft_status status = WEFT_OK;
  if (getrlimit(RLIMIT_AS, &(struct rlimit){0}) != 0 || setrlimit(RLIMIT_AS, &limit) != 0) return WRONG;
  for (; n < THREADS && status == WEFT_OK; n++) {
    status = weft_threads_start(&thread[n], allocate, &n_refused[n], &error);
    if (status != WEFT_OK) break;
  }
  for (uint32_t i = 0; i < n; i++) (void)pthread_join(thread[i], NULL);
  if (status == WEFT_OK) return STARTED;
  return status == WEFT_E_NO_MEMORY && error.text[0] != 0 ? REFUSED : WRONG;
}

static void a_start_without_room_is_refused(void **state) {
  uint32_t n_started = 0, n_refused = 0;
  (void)state;
  for (size_t i = 0; i < STEPS; i++) {
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(start_within(i * STEP_BYTES));
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) fail_msg("with %zu KiB it ended by signal %d", i * STEP_BYTES >> 10, WTERMSIG(status));
    n_started += WEXITSTATUS(status) == STARTED;
    n_refused += WEXITSTATUS(status) == REFUSED;
  }
  print_message("of %d limits %u let all threads start, %u refused one\n", STEPS, n_started, n_refused);
  assert_int_equal(n_started + n_refused, STEPS);
  assert_true(n_refused > 0 && n_started > 0);
}
#endif

static void a_thread_runs_with_what_it_is_given(void **state) {
  pthread_t thread;
  uint32_t n_refused = 7;
  weft_error error;
  (void)state;
  assert_int_equal(weft_threads_start(&thread, allocate, &n_refused, &error), WEFT_OK);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_int_equal(n_refused, 7);
}

/* The thread's own first allocation is refused: it never runs. */
static void a_refused_first_allocation_is_a_refused_start(void **state) {
  pthread_t thread;
  uint32_t n_refused = 0;
  weft_error error = {{0}};
  (void)state;
  (void)weft_memory_fail_at(1);
  assert_int_equal(weft_threads_start(&thread, allocate, &n_refused, &error), WEFT_E_NO_MEMORY);
  assert_int_equal(weft_memory_fail_at(0), 1);
  assert_non_null(strstr(error.text, "first allocation"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
#ifdef WEFT_JEMALLOC
      cmocka_unit_test(a_start_without_room_is_refused),
#endif
      cmocka_unit_test(a_thread_runs_with_what_it_is_given),
      cmocka_unit_test(a_refused_first_allocation_is_a_refused_start)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
