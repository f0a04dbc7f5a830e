/* SPDX-License-Identifier: MIT */
/* Models of a folder that come and go while others serve (api/residents.h): what one tenant streams from a model is the
 * same bytes while others are loaded and leave in turn; memory holds what the plan says at every moment; a load that
 * cannot fit, whose file was changed, cut or cannot be read, or to which memory is refused in its middle, is refused in
 * one line and leaves nothing behind; requests wait for a model within their deadline; what runs goes on to its end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/residents.h"
#include "api/shared_room.h"
#include "base/log.h"
#include "base/memory.h"
#include "tests/support/amount.h"
#include "tests/support/small_folder.h"

/* ---- a stream beside loads ------------------------------------------------------------------------------- */

typedef struct stream {
  weft_runtime *rt;
  const answer *wanted;
  _Atomic bool stop;
  _Atomic uint32_t n_answers, n_wrong;
} stream;

static void *run_stream(void *self) {
  stream *s = self;
  static answer got;
  while (!s->stop) {
    finish(start(s->rt, names[0], s->wanted->n, 0, 0, &got), &got);
    bool good = got.n == s->wanted->n && memcmp(got.token, s->wanted->token, got.n * sizeof *got.token) == 0;
    s->n_answers += 1;
    s->n_wrong += !good || !is_within_room(s->rt);
  }
  return NULL;
}

/* Two of three fit: each load of one makes the other leave, or the one that streams in a pause between two answers. */
static void test_stream(void **state) {
  (void)state;
  static answer wanted[N_FILES], got;
  const uint32_t n_tokens = as_card ? 40 : 200; /* ref is slow */
  answers_of_others(n_tokens, wanted);
  weft_open_options options = options_of(room_for_two());
  weft_runtime *rt = open_runtime(&options);
  stream s = {.rt = rt, .wanted = &wanted[0]};
  pthread_t thread;
  uint64_t most = options.models_bytes;
  assert_int_equal(pthread_create(&thread, NULL, run_stream, &s), 0);
  for (uint32_t round = 0; round < 3 || s.n_answers < 3; round++) {
    for (uint32_t i = 1; i < N_FILES; i++) {
      loads(rt, names[i]);
      assert_true(residents_held(rt->residents) <= most);
      ask(rt, names[i], n_tokens, &got);
      same(&got, &wanted[i]);
      assert_true(residents_held(rt->residents) <= most);
    }
    unloads(rt, names[2]);
  }
  s.stop = true;
  (void)pthread_join(thread, NULL);
  assert_int_equal(s.n_wrong, 0);
  assert_true(look(rt, names[1]).n_loads >= 3 && look(rt, names[2]).n_unloads >= 3);
  print_message("%u answers beside %llu loads\n", s.n_answers,
                (unsigned long long)(look(rt, names[1]).n_loads + look(rt, names[2]).n_loads));
  shut(rt);
}

/* ---- memory ---------------------------------------------------------------------------------------------- */

/* What was planned from headers is what the loaded model says that it took. */
static void test_plan(void **state) {
  (void)state;
  weft_open_options options = options_of((uint64_t)1 << 30);
  weft_runtime *rt = open_runtime(&options);
  assert_int_equal(residents_held(rt->residents), 0);
  uint64_t sum = 0;
  for (uint32_t i = 0; i < N_FILES; i++) {
    is_in(rt, names[i], "absent");
    loads(rt, names[i]);
    is_in(rt, names[i], "ready");
    assert_int_equal(look(rt, names[i]).took_bytes, look(rt, names[i]).need_bytes);
    sum += look(rt, names[i]).need_bytes;
    assert_int_equal(residents_held(rt->residents), sum);
  }
  for (uint32_t i = 0; i < N_FILES; i++) unloads(rt, names[i]);
  assert_int_equal(residents_held(rt->residents), 0);
  shut(rt);
}

static void test_least_recently_used(void **state) {
  (void)state;
  static answer a;
  weft_open_options options = options_of(room_for_two());
  weft_runtime *rt = open_runtime(&options);
  loads(rt, names[0]);
  loads(rt, names[1]);
  ask(rt, names[0], 4, &a); /* now the use of names[1] is longest ago */
  ask(rt, names[2], 4, &a); /* a request alone has it loaded */
  is_in(rt, names[0], "ready");
  is_in(rt, names[1], "absent");
  is_in(rt, names[2], "ready");
  ask(rt, names[1], 4, &a);
  is_in(rt, names[0], "absent");
  shut(rt);
}

static void test_too_large(void **state) {
  (void)state;
  static answer before, a;
  uint64_t n[N_FILES];
  char error[512] = "";
  needs(n);
  uint32_t large = n[0] > n[1] ? 0 : 1, small = 1 - large;
  assert_true(n[large] > n[small]);
  weft_open_options options = options_of(n[small]);
  weft_runtime *rt = open_runtime(&options);
  ask(rt, names[small], 20, &before);
  assert_int_equal(weft_load_model(rt, names[large], error, sizeof error), WEFT_E_TOO_LARGE);
  assert_non_null(strstr(error, "--models-mib"));
  assert_null(strchr(error, '\n'));
  is_in(rt, names[small], "ready"); /* nothing left for it */
  ask(rt, names[small], 20, &a);
  same(&a, &before);
  /* a request is refused with the same line, at once or when it has been looked at */
  finish(start(rt, names[large], 4, 0, 0, &a), &a);
  assert_true(a.submitted == WEFT_FULL || strcmp(a.finish, "error") == 0);
  assert_non_null(strstr(a.error, "--models-mib"));
  assert_int_equal(residents_held(rt->residents), n[small]);
  shut(rt);
}

/* ---- the room that the pool and models share --------------------------------------------------------------- */

/* Computes a prompt of 700 tokens, and leaves it in the cache. */
static void ask_long(weft_runtime *rt, const char *model, int32_t number) {
  enum { LONG = 700 };
  static int32_t tokens[LONG];
  static answer a;
  weft_generate_params p;
  weft_generation *g = NULL;
  for (int32_t i = 0; i < LONG; i++) tokens[i] = 3 + (i * 7 + number * 13) % 90;
  weft_generate_defaults(&p);
  p.model = model;
  p.max_tokens = 1;
  p.mode = WEFT_MODE_AUTOREGRESSIVE;
  p.prompt.tokens = tokens;
  p.prompt.n_tokens = LONG;
  memset(&a, 0, sizeof a);
  if (weft_submit(rt, &p, &g, a.error, sizeof a.error) != 0) fail_msg("%s", a.error);
  finish(g, &a);
  assert_string_not_equal(a.finish, "error");
}

static weft_pager_stats pool_of(weft_runtime *rt) {
  weft_engine_stats stats;
  weft_engine_get_stats(weft_replicas_at(rt->replicas, 0), &stats);
  return stats.pager;
}

static void pool_grows_to(weft_runtime *rt, uint64_t n_bytes) {
  uint32_t n = (uint32_t)(n_bytes / rt->page_bytes);
  for (uint32_t i = 0; weft_engine_pool_size(weft_replicas_at(rt->replicas, 0)).n_open != n; i++) {
    if (i == TEST_WAIT_MS) fail_msg("the pool has %u pages of %u", pool_of(rt).n_pages, n);
    (void)usleep(1000);
  }
}

/* The pool has what no model takes. A load finds it full of cached prefixes, some of which leave, and the pages are
 * moved under a stream that goes on with the same bytes; what leaves gives its room back. */
static void test_shared_room(void **state) {
  (void)state;
  static answer wanted, got;
  uint64_t n[N_FILES];
  needs(n);
  weft_open_options options = options_of(room_for_two());
  options.kv_bytes = 1 << 20;
  weft_runtime *rt = open_runtime(&options);
  uint64_t room = shared_room_bytes(rt);
  assert_int_equal(room / rt->page_bytes * rt->page_bytes, shared_room_pool_bytes(rt));
  ask(rt, names[0], 400, &wanted);
  pool_grows_to(rt, room - n[0]);
  int32_t number = 0;
  while (pool_of(rt).n_cached + rt->n_pages / 4 < pool_of(rt).n_pages && number < 200) ask_long(rt, names[0], number++);
  assert_true((uint64_t)pool_of(rt).n_cached * rt->page_bytes > room - n[0] - n[1]);
  weft_generation *streaming = start(rt, names[0], 400, 0, 0, &got);
  loads(rt, names[1]);
  assert_true(is_within_room(rt));
  finish(streaming, &got);
  same(&got, &wanted);
  assert_true(shared_room_pool_bytes(rt) + residents_held(rt->residents) <= room);
  assert_int_equal(residents_held(rt->residents), n[0] + n[1]);
  assert_true(pool_of(rt).n_pages >= rt->n_pages && pool_of(rt).n_evicted > 0);
  unloads(rt, names[0]);
  unloads(rt, names[1]);
  pool_grows_to(rt, room);
  ask(rt, names[0], 400, &got);
  same(&got, &wanted);
  shut(rt);
}

/* ---- faults ---------------------------------------------------------------------------------------------- */

static void test_memory_refused(void **state) {
  (void)state;
  static answer wanted, a;
  weft_open_options options = options_of((uint64_t)1 << 30);
  weft_runtime *rt = open_runtime(&options);
  uint32_t model = index_of(rt, names[0]);
  ask(rt, names[0], 20, &wanted);
  unloads(rt, names[0]);
  uint64_t n = 1, n_refused = 0;
  for (bool worked = false; !worked; n += n < 60 ? 1 : test_amount(29, 7, 1)) {
    char error[512] = "";
    (void)weft_memory_fail_at(n);
    int status = weft_load_model(rt, names[0], error, sizeof error);
    worked = weft_memory_fail_at(0) < n;
    if (worked != (status == 0)) fail_msg("allocation %llu: %d, '%s'", (unsigned long long)n, status, error);
    if (worked) break;
    n_refused += 1;
    assert_true(status == WEFT_E_NO_MEMORY && error[0] != 0 && strchr(error, '\n') == NULL);
    is_in(rt, names[0], "absent");
    assert_int_equal(residents_held(rt->residents), 0);
  }
  assert_true(n_refused > 50);
  assert_int_equal(residents_look(rt->residents, model).n_failed, n_refused);
  ask(rt, names[0], 20, &a);
  same(&a, &wanted);
  shut(rt);
}

static void refuses(weft_runtime *rt, const char *name, const char *words) {
  char error[512] = "";
  assert_true(weft_load_model(rt, name, error, sizeof error) < 0);
  if (strstr(error, words) == NULL || strchr(error, '\n') != NULL) fail_msg("'%s' has no '%s'", error, words);
  is_in(rt, name, "absent");
  assert_int_equal(residents_held(rt->residents), residents_look(rt->residents, index_of(rt, names[0])).need_bytes);
}

/* The file is another one, is cut, or is gone; one that was there before goes on, and the right one loads again. */
static void test_files(void **state) {
  (void)state;
  static answer wanted, a;
  char path[128];
  uint64_t n[N_FILES];
  needs(n);
  weft_open_options options = options_of(n[0] + n[1] - 1); /* one of them, so names[0] would have to leave */
  weft_runtime *rt = open_runtime(&options);
  ask(rt, names[0], 20, &wanted);
  path_of(names[1], path);
  put_model("ar-shared", names[1]);
  refuses(rt, names[1], "another file");
  copy_file(MODELS "ar-dense.gguf", names[1], 200000);
  refuses(rt, names[1], names[1]);
  assert_int_equal(unlink(path), 0);
  refuses(rt, names[1], "No such file");
  is_in(rt, names[0], "ready"); /* nothing left for a load that was refused */
  finish(start(rt, names[1], 4, 0, 0, &a), &a);
  assert_true(a.submitted == WEFT_FULL && strstr(a.error, "tried again in") != NULL);
  ask(rt, names[0], 20, &a);
  same(&a, &wanted);
  put_model(names[1], names[1]);
  loads(rt, names[1]);
  is_in(rt, names[0], "absent");
  shut(rt);
}

/* Requests that wait for a model whose load fails end with the reason; none is forgotten. */
static void test_waiters_are_told(void **state) {
  (void)state;
  static answer a[3];
  weft_generation *g[3];
  weft_open_options options = options_of(0);
  weft_runtime *rt = open_runtime(&options);
  put_model("ar-shared", names[1]);
  for (uint32_t i = 0; i < 3; i++) g[i] = start(rt, names[1], 4, 0, 0, &a[i]);
  for (uint32_t i = 0; i < 3; i++) finish(g[i], &a[i]);
  for (uint32_t i = 0; i < 3; i++) {
    assert_true(a[i].submitted == WEFT_FULL || strcmp(a[i].finish, "error") == 0);
    assert_non_null(strstr(a[i].error, "another file"));
  }
  put_model(names[1], names[1]);
  loads(rt, names[1]);
  shut(rt);
}

/* ---- requests -------------------------------------------------------------------------------------------- */

/* One model fits, and the other one is wanted while it runs: a deadline holds while waiting, what runs goes on to its
 * end, and who waits without a deadline is served. */
static void test_waiting(void **state) {
  (void)state;
  static answer wanted[N_FILES], a, b, late;
  uint64_t n[N_FILES];
  enum { N_TOKENS = 900 };
  answers_of_others(N_TOKENS, wanted);
  needs(n);
  weft_open_options options = options_of(larger(n[0], n[1]));
  weft_runtime *rt = open_runtime(&options);
  loads(rt, names[0]);
  weft_generation *runs = start(rt, names[0], N_TOKENS, 0, 0, &a);
  weft_generation *soon = start(rt, names[1], N_TOKENS, 1, 0, &late);
  weft_generation *waits = start(rt, names[1], N_TOKENS, 0, 0, &b);
  finish(soon, &late);
  assert_string_equal(late.finish, "deadline");
  finish(waits, &b);
  finish(runs, &a);
  assert_string_equal(a.finish, "length");
  assert_string_equal(b.finish, "length");
  same(&a, &wanted[0]);
  same(&b, &wanted[1]);
  shut(rt);
}

/* A model that is asked to leave does so when its answers are written; who comes then has it loaded again. */
static void test_unload_in_use(void **state) {
  (void)state;
  static answer wanted[N_FILES], a, b;
  enum { N_TOKENS = 400 };
  answers_of_others(N_TOKENS, wanted);
  weft_open_options options = options_of(0);
  weft_runtime *rt = open_runtime(&options);
  loads(rt, names[0]);
  weft_generation *runs = start(rt, names[0], N_TOKENS, 0, 0, &a);
  weft_delta d;
  assert_int_equal(weft_next(runs, TEST_WAIT_MS, &d), 0); /* it runs */
  memcpy(a.token, d.tokens, d.n_tokens * sizeof *d.tokens);
  a.n = d.n_tokens;
  unloads(rt, names[0]);
  finish(runs, &a);
  assert_string_equal(a.finish, "length");
  same(&a, &wanted[0]);
  is_in(rt, names[0], "absent");
  ask(rt, names[0], N_TOKENS, &b);
  same(&b, &wanted[0]);
  assert_int_equal(look(rt, names[0]).n_loads, 2);
  shut(rt);
}

static void test_tenants(void **state) {
  (void)state;
  static answer a;
  static const char *const may[] = {"alice"};
  static const weft_tenant_options tenants[] = {{.name = "alice"}, {.name = "bob"}};
  weft_open_options options = options_of(0);
  options.tenants = 2;
  options.tenant = tenants;
  options.load_tenants = may;
  options.n_load_tenants = 1;
  weft_runtime *rt = open_runtime(&options);
  finish(start(rt, names[0], 4, 0, 1, &a), &a);
  assert_true(a.submitted == WEFT_E_NOT_FOUND && strstr(a.error, "not loaded") != NULL);
  is_in(rt, names[0], "absent");
  finish(start(rt, names[0], 4, 0, 0, &a), &a);
  assert_string_equal(a.finish, "length");
  finish(start(rt, names[0], 4, 0, 1, &a), &a); /* it is there now */
  assert_string_equal(a.finish, "length");
  shut(rt);
}

/* ---- a card ---------------------------------------------------------------------------------------------- */

/* A card whose memory ends in the middle of a load: what was mapped goes, and the model loads once there is room. */
static void test_full_card(void **state) {
  (void)state;
  static answer wanted, a;
  weft_open_options options = options_of(0);
  weft_runtime *rt = open_runtime(&options);
  ask(rt, names[0], 20, &wanted);
  uint64_t n_pieces = look(rt, names[0]).took_bytes;
  assert_true(n_pieces > 0 && n_pieces <= look(rt, names[0]).need_bytes);
  unloads(rt, names[0]);
  for (uint32_t n = 1, done = 0; !done; n += 3) {
    char error[512] = "";
    card.n_maps = 0;
    card.refuse_at = n;
    int status = weft_load_model(rt, names[0], error, sizeof error);
    card.refuse_at = 0;
    done = status == 0;
    if (done) break;
    assert_true(status == WEFT_E_NO_MEMORY && error[0] != 0 && strchr(error, '\n') == NULL);
    assert_int_equal(card.n_mapped, 0);
    is_in(rt, names[0], "absent");
  }
  assert_true(card.n_pieces > 0);
  ask(rt, names[0], 20, &a);
  same(&a, &wanted);
  shut(rt);
}

/* A model that writes canvases, which has memory of its own for them, comes twice and answers as one that stays. */
static void test_canvases(void **state) {
  (void)state;
  static answer wanted, a;
  static const char *const path[] = {MODELS "dg-base.gguf"};
  char error[512] = "";
  weft_runtime *rt = NULL;
  weft_open_options options = options_of(0);
  options.models_dir = NULL;
  options.models_bytes = 0;
  options.models = path;
  options.n_models = 1;
  canvases = true;
  if (weft_open(&options, &rt, error, sizeof error) != 0) fail_msg("%s", error);
  ask(rt, "dg-base", 16, &wanted);
  weft_close(rt);
  options = options_of(room_for_two());
  rt = open_runtime(&options);
  for (uint32_t round = 0; round < 2; round++) {
    ask(rt, "dg-base", 16, &a);
    same(&a, &wanted);
    unloads(rt, "dg-base");
  }
  canvases = false;
  shut(rt);
}

/* ---- the start ------------------------------------------------------------------------------------------- */

static void test_refused_options(void **state) {
  (void)state;
  weft_runtime *rt = NULL;
  char error[512] = "";
  weft_open_options options = options_of(0);
  options.models_dir = "/nowhere/at/all";
  assert_int_equal(weft_open(&options, &rt, error, sizeof error), WEFT_E_IO);
  assert_non_null(strstr(error, "/nowhere/at/all"));
  options.models_dir = WEFT_SOURCE_DIR "/docs"; /* it has no such file */
  assert_int_equal(weft_open(&options, &rt, error, sizeof error), WEFT_E_NOT_FOUND);
  assert_non_null(strstr(error, "no file there can be served"));
  options = options_of(0);
  options.devices = "0,1";
  assert_int_equal(weft_open(&options, &rt, error, sizeof error), WEFT_E_INVALID);
  assert_non_null(strstr(error, "one device"));
  options = options_of(0);
  options.weights = "/tmp/none";
  assert_int_equal(weft_open(&options, &rt, error, sizeof error), WEFT_E_INVALID);
  assert_non_null(strstr(error, "--weights"));
  assert_null(rt);
}

/* A model named at the start stays, beside those of the folder. */
static void test_named_model_stays(void **state) {
  (void)state;
  static answer a;
  static const char *const named[] = {MODELS "ar-e2b.gguf"};
  char error[512] = "";
  weft_open_options options = options_of(0);
  options.models = named;
  options.n_models = 1;
  weft_runtime *rt = NULL;
  if (weft_open(&options, &rt, error, sizeof error) != 0) fail_msg("%s", error);
  assert_int_equal(weft_n_models(rt), N_FILES + 1);
  is_in(rt, "ar-e2b", "ready");
  assert_int_equal(weft_unload_model(rt, "ar-e2b", error, sizeof error), WEFT_E_INVALID);
  assert_non_null(strstr(error, "stays"));
  loads(rt, "ar-e2b");
  ask(rt, "ar-e2b", 8, &a);
  ask(rt, names[2], 8, &a);
  assert_int_equal(weft_load_model(rt, "nobody", error, sizeof error), WEFT_E_NOT_FOUND);
  shut(rt);
}

int main(void) {
  /* refusals are looked at where they come back; there are hundreds */
  weft_log_set_level(WEFT_LOG_ERROR);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_plan),
                                     cmocka_unit_test(test_stream),
                                     cmocka_unit_test(test_too_large),
                                     cmocka_unit_test(test_least_recently_used),
                                     cmocka_unit_test(test_shared_room),
                                     cmocka_unit_test(test_memory_refused),
                                     cmocka_unit_test(test_files),
                                     cmocka_unit_test(test_waiting),
                                     cmocka_unit_test(test_waiters_are_told),
                                     cmocka_unit_test(test_unload_in_use),
                                     cmocka_unit_test(test_tenants),
                                     cmocka_unit_test(test_refused_options),
                                     cmocka_unit_test(test_named_model_stays)};
  const struct CMUnitTest of_a_card[] = {cmocka_unit_test(test_stream), cmocka_unit_test(test_unload_in_use),
                                         cmocka_unit_test(test_full_card), cmocka_unit_test(test_canvases)};
  int n_failed = cmocka_run_group_tests(tests, make_folder, drop_folder);
  as_card = true;
  return n_failed + cmocka_run_group_tests_name("a card", of_a_card, make_folder, drop_folder);
}
