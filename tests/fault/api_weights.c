/* SPDX-License-Identifier: MIT */
/* Memory is refused at each allocation of an owner of weights, and of a worker that maps them: one line, and what was
 * taken is given back: no socket, no manifest, no lock is left. And devices that keep integers of weights or cannot. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/runtime.h"
#include "api/weights_owner.h"
#include "base/threads.h"
#include "kernels/device_internal.h"
#include "tests/support/refuse_each.h"
#include "tests/support/small_runtime.h"

static char folder[32], path[48];
static const char *device_mib; /* NULL: as many as there are */
static const char *const models[] = {MODELS "ar-base.gguf"};

static int open_folder(void **state) {
  (void)state;
  (void)snprintf(folder, sizeof folder, "/tmp/weft-refused-XXXXXX");
  assert_non_null(mkdtemp(folder));
  (void)snprintf(path, sizeof path, "%s/socket", folder);
  return 0;
}

static int close_folder(void **state) {
  (void)state;
  return rmdir(folder); /* nothing was left in it */
}

static weft_open_options options_of(const char *weights) {
  weft_open_options options = small_runtime(models, 1);
  options.threads = 1;
  options.device_mib = device_mib;
  options.weights = weights;
  return options;
}

static weft_status open_owner(void *self, weft_error *error) {
  (void)self;
  const weft_open_options options = options_of(NULL);
  const weights_owner_options own = {.socket = path, .scope = "both"};
  weights_owner *owner = NULL;
  weft_status status = weights_owner_open(&options, &own, &owner, error);
  assert_true((status == WEFT_OK) == (owner != NULL));
  weights_owner_close(owner);
  return status;
}

static void owner_is_refused_memory(void **state) {
  (void)state;
  assert_in_range(refuse_each(open_owner, NULL, true), 50, 5000);
}

/* ---- a worker ---- */

typedef struct running_owner {
  weights_owner *owner;
  int stop[2];
} running_owner;

static void *run_owner(void *self) {
  running_owner *r = self;
  weft_error error = {{0}};
  (void)weights_owner_run(r->owner, &r->stop[0], 1, &error); /* until the pipe is closed */
  return NULL;
}

/* Imports, finds and maps. The owner, on its own thread, allocates nothing for these questions. */
static weft_status map_weights(void *self, weft_error *error) {
  (void)self;
  weft_weights *w = NULL;
  weft_weights_range range;
  const void *data = NULL;
  int status = weft_weights_open(path, &w, error->text, sizeof error->text);
  if (status == 0) status = weft_weights_at(w, 0, 0, &range);
  if (status == 0) status = weft_weights_map(w, &range, &data, error->text, sizeof error->text);
  weft_weights_close(w);
  return (weft_status)status;
}

/* An owner that serves on a thread of its own until end_owner. */
static void start_owner(running_owner *r, pthread_t *thread) {
  const weft_open_options options = options_of(NULL);
  const weights_owner_options own = {.socket = path, .scope = "both"};
  weft_error error = {{0}};
  *r = (running_owner){.owner = NULL};
  if (weights_owner_open(&options, &own, &r->owner, &error) != WEFT_OK) fail_msg("%s", error.text);
  assert_int_equal(pipe(r->stop), 0);
  assert_int_equal(weft_threads_start(thread, run_owner, r, &error), WEFT_OK);
}

static void end_owner(running_owner *r, pthread_t thread) {
  (void)close(r->stop[1]);
  assert_int_equal(pthread_join(thread, NULL), 0);
  (void)close(r->stop[0]);
  weights_owner_close(r->owner);
}

static void worker_is_refused_memory(void **state) {
  (void)state;
  const weft_open_options mapping = options_of(path);
  running_owner r;
  char line[512];
  pthread_t thread;
  start_owner(&r, &thread);
  assert_in_range(refuse_each(map_weights, NULL, true), 3, 500);
  weft_runtime *rt = NULL;
  if (weft_open(&mapping, &rt, line, sizeof line) != 0) fail_msg("%s", line);
  weft_close(rt);
  end_owner(&r, thread);
}

/* ---- integers ---- */

static device_calls keeping; /* of a device that can keep weights as integers too; here they take nothing */

static uint64_t no_bytes(const weft_weight *weight, unsigned uses) {
  (void)weight, (void)uses;
  return 0;
}

static void let_keep(void *self, weft_device *device) {
  (void)self;
  keeping = *device->calls;
  keeping.integers_bytes = no_bytes;
  device->calls = &keeping;
}

/* Whether weights lie there as integers too is the owner's word: who can does as it did, who cannot is refused. */
static void integers_are_the_owners_word(void **state) {
  (void)state;
  const weft_open_options mapping = options_of(path);
  device_mib = "1024"; /* of host memory alone nothing is known to be left for integers */
  for (int owner_keeps = 0; owner_keeps < 2; owner_keeps++) {
    running_owner r;
    pthread_t thread;
    if (owner_keeps) weft_device_on_open(let_keep, NULL);
    start_owner(&r, &thread);
    for (int worker_can = 0; worker_can < 2; worker_can++) {
      weft_runtime *rt = NULL;
      char line[512] = "";
      weft_device_on_open(worker_can ? let_keep : NULL, NULL);
      int status = weft_open(&mapping, &rt, line, sizeof line);
      weft_device_on_open(NULL, NULL);
      if (owner_keeps && !worker_can) {
        assert_int_equal(status, WEFT_E_UNSUPPORTED);
        assert_non_null(strstr(line, "laid out for integers 'yes', and this process has 'no'"));
        continue;
      }
      if (status != 0) fail_msg("%s", line);
      assert_int_equal(weft_device_get_info(rt->devices.device[0])->integers, owner_keeps);
      weft_close(rt);
    }
    end_owner(&r, thread);
  }
  device_mib = NULL;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(owner_is_refused_memory, open_folder, close_folder),
      cmocka_unit_test_setup_teardown(worker_is_refused_memory, open_folder, close_folder),
      cmocka_unit_test_setup_teardown(integers_are_the_owners_word, open_folder, close_folder),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
