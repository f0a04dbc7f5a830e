/* SPDX-License-Identifier: MIT */
/* A device, one alone or one of two, whose n-th call fails, for every kind of call and n all over a run, or that is slow
 * to send: the runner whose call failed is broken and says so, each of its requests ends once and with the reason, what was answered before is right; the other runner
 * goes on to the right answers; all pages come back; new requests to the broken one are refused with the reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <unistd.h>

#include <cmocka.h>

#include "api/runtime.h"
#include "base/log.h"
#include "base/random.h"
#include "kernels/device_internal.h"
#include "tests/support/amount.h"
#include "tests/support/real_engine.h"
#include "tests/support/small_runtime.h"

enum { N = 12, PROMPT = 20, CONTEXT = 64 };

/* ---- the device that fails ------------------------------------------------------------------------------ */

static const weft_kernels *real_kernels;
static const device_calls *real_calls;
static uint64_t n_calls, fail_at;

static bool fails_now(void) {
  n_calls += 1;
  return n_calls == fail_at;
}

#define X(op)                                                                      \
  static weft_status try_##op(weft_device *device, const weft_##op##_args *args) { \
    return fails_now() ? WEFT_E_DEVICE : real_kernels->op(device, args);           \
  }
WEFT_OPS(X)
#undef X

static weft_status try_upload(weft_device *d, void *to, const void *from, uint64_t n) {
  return fails_now() ? WEFT_E_DEVICE : real_calls->upload(d, to, from, n);
}
static weft_status try_download(weft_device *d, void *to, const void *from, uint64_t n) {
  return fails_now() ? WEFT_E_DEVICE : real_calls->download(d, to, from, n);
}
static weft_status try_copy(weft_device *d, void *to, const void *from, uint64_t n) {
  return fails_now() ? WEFT_E_DEVICE : real_calls->copy(d, to, from, n);
}

static uint32_t link_us; /* how long a piece is on its way */

static weft_status try_send(weft_device *from, weft_device *to, void *to_memory, const void *from_memory, uint64_t n) {
  if (link_us > 0) (void)usleep(link_us);
  return fails_now() ? WEFT_E_DEVICE : real_calls->send(from, to, to_memory, from_memory, n);
}

static weft_status try_exchange(weft_device *device, const struct shards_exchange *args) {
  return fails_now() ? WEFT_E_DEVICE : real_calls->exchange(device, args);
}

static weft_kernels failing_kernels;
static device_calls failing_calls;

static void make_failing(weft_device *device, uint64_t at) {
  real_kernels = device->kernels;
  real_calls = device->calls;
  failing_kernels = *real_kernels;
  failing_calls = *real_calls;
#define X(op) failing_kernels.op = try_##op;
  WEFT_OPS(X)
#undef X
  failing_calls.upload = try_upload;
  failing_calls.download = try_download;
  failing_calls.copy = try_copy;
  failing_calls.send = try_send;
  if (real_calls->exchange != NULL) failing_calls.exchange = try_exchange;
  n_calls = 0;
  fail_at = at;
  device->kernels = &failing_kernels;
  device->calls = &failing_calls;
}

static void make_sound(weft_device *device) {
  device->kernels = real_kernels;
  device->calls = real_calls;
}

/* ---- the engine over it ---------------------------------------------------------------------------------- */

static int32_t prompts[N][PROMPT];
static weft_request_params requests[N];
static rig_answer clean[N], got[N];

static void make_requests(void) {
  for (uint32_t i = 0; i < N; i++) {
    weft_request_params *p = &requests[i];
    *p = (weft_request_params){.model = i % 2, .tokens = prompts[i], .n_tokens = 3 + i, .max_tokens = 5 + i % 7};
    for (uint32_t k = 0; k < p->n_tokens; k++) prompts[i][k] = (int32_t)((i * 31 + k * 7) % 90 + 5);
    p->canvas = i % 4 == 2;
    p->asked.sampling = weft_sampling_neutral();
    p->asked.sampling.seed = i;
    if (i % 3 == 0 && !p->canvas) p->asked.sampling.top_k = 10;
    p->asked.entropy_bound = weft_entropy_bound_default();
    p->asked.entropy_bound.max_steps = 3;
    p->asked.trace = p->asked.canvas_deltas = p->canvas;
  }
}

static weft_device *failing_of(rig *r, uint32_t failing) {
  return r->split[0].device[failing];
}

static void play(rig *r, const rig_options *o, uint32_t failing, uint64_t at, rig_answer *answers,
                 weft_engine_stats *stats) {
  weft_request *handle[N] = {NULL};
  weft_error error = {{0}};
  rig_open(r, o);
  make_failing(failing_of(r, failing), at);
  memset(answers, 0, N * sizeof *answers);
  for (uint32_t i = 0; i < N; i++) {
    rig_need(weft_engine_submit(r->engine, &requests[i], r->now, &handle[i], &error) == WEFT_OK, "submit", error.text);
  }
  for (uint32_t turns = 0; !weft_engine_idle(r->engine); turns++) {
    (void)weft_engine_step(r->engine, ++r->now);
    for (uint32_t i = 0; i < N; i++) rig_collect(r, &handle[i], &answers[i]);
    rig_check_pager(r);
    assert_true(turns < 1000);
  }
  for (uint32_t i = 0; i < N; i++) rig_collect(r, &handle[i], &answers[i]);
  weft_engine_get_stats(r->engine, stats);
  assert_int_equal(stats->pager.n_pinned, 0);
  assert_int_equal(stats->pager.n_seqs, 0);
}

static void check_broken(rig *r, uint32_t broken, uint64_t at) {
  weft_error error = {{0}};
  weft_request *handle = NULL;
  const char *name = r->info[broken]->name;
  uint32_t n_failed = 0;
  for (uint32_t i = 0; i < N; i++) {
    const rig_answer *a = &got[i], *b = &clean[i];
    bool failed = a->finish == WEFT_FINISH_ERROR;
    bool good = a->n_ends == 1 && a->n <= b->n && memcmp(a->tokens, b->tokens, a->n * sizeof(int32_t)) == 0;
    if (failed)
      good =
          good && requests[i].model == broken && strstr(a->error, name) != NULL && strstr(a->error, "restart") != NULL;
    if (!failed) good = good && a->finish == b->finish && a->n == b->n;
    n_failed += failed;
    if (!good) {
      fail_msg("call %llu fails on model %u: request %u of model %u: finish %d '%s', %u of %u tokens, %u ends",
               (unsigned long long)at, broken, i, requests[i].model, (int)a->finish, a->error, a->n, b->n, a->n_ends);
    }
  }
  assert_true(n_failed > 0);
  assert_int_equal(weft_engine_submit(r->engine, &requests[broken], r->now, &handle, &error), WEFT_E_DEVICE);
  assert_true(handle == NULL && strstr(error.text, name) != NULL);
  uint32_t well = 1 - broken; /* and the other one still serves */
  rig_answer again = {0};
  assert_int_equal(weft_engine_submit(r->engine, &requests[well], r->now, &handle, &error), WEFT_OK);
  while (handle != NULL) {
    (void)weft_engine_step(r->engine, ++r->now);
    rig_collect(r, &handle, &again);
  }
  assert_int_equal(again.n, clean[well].n);
  assert_memory_equal(again.tokens, clean[well].tokens, again.n * sizeof(int32_t));
}

static rig_options engine_options(const char *backend, bool overlap, uint32_t n_pages, uint32_t n_devices,
                                  uint32_t n_shards) {
  return (rig_options){.backend = backend,
                       .path = {n_shards > 1 ? MODELS "dg-deep.gguf" : MODELS "dg-base.gguf",
                                n_shards > 1 ? MODELS "ar-dense-v.gguf" : MODELS "ar-base.gguf"},
                       .n_models = 2,
                       .block = 4,
                       .n_pages = n_pages,
                       .context = CONTEXT,
                       .rows = 40,
                       .chunk = 9,
                       .running = 5,
                       .n_devices = n_devices,
                       .n_shards = n_shards,
                       .overlap = overlap};
}

static void fail_everywhere(const char *backend, bool overlap, uint32_t n_pages, uint32_t n_devices, uint32_t failing,
                            uint32_t n_shards) {
  rig r;
  weft_engine_stats stats;
  rig_options o = engine_options(backend, overlap, n_pages, n_devices, n_shards);
  make_requests();
  play(&r, &o, failing, 0, clean, &stats);
  uint64_t n_all = n_calls;
  assert_int_equal(stats.broken_runners, 0);
  assert_true(stats.n_canvases > 0 && stats.n_mixed_steps > 0 && stats.n_switches > 0);
  make_sound(failing_of(&r, failing));
  rig_close(&r);
  uint32_t n_runs = 0, n_broken[2] = {0, 0};
  const uint64_t n_first = test_amount(6, 6, 600);
  uint64_t stride = 1 + n_all / test_amount(9, 9, 900), last = 0;
  for (uint64_t at = 1; at <= n_all;) {
    play(&r, &o, failing, at, got, &stats);
    bool failed = n_calls >= at; /* turns go by measured time: a run may have fewer calls */
    if (failed && stats.broken_runners != 1 && stats.broken_runners != 2) {
      fail_msg("call %llu of %llu fails: broken runners %llx", (unsigned long long)at, (unsigned long long)n_all,
               (unsigned long long)stats.broken_runners);
    }
    if (failed) {
      n_broken[stats.broken_runners - 1] += 1, n_runs += 1, last = at;
      check_broken(&r, (uint32_t)stats.broken_runners - 1, at);
    }
    make_sound(failing_of(&r, failing));
    rig_close(&r);
    if (!failed && ((n_broken[0] > 0 && n_broken[1] > 0) || stride == 1)) break;
    if (!failed) stride /= 2; /* no run has shown yet what a failure of the other runner does */
    at = !failed ? last + stride : at + (at < n_first ? 1 : stride);
  }
  assert_true(n_broken[0] > 0 && n_broken[1] > 0);
  print_message("%s%s: %u of %llu calls of %s %u of %u failed in turn\n", backend, overlap ? " with overlap" : "",
                n_runs, (unsigned long long)n_all, n_shards > 1 ? "shard" : "device", failing + 1, n_devices);
}

static void test_engine(void **state) {
  (void)state;
  fail_everywhere("cpu", false, 200, 1, 0, 1);
  fail_everywhere("cpu", true, 200, 1, 0, 1);
  fail_everywhere("ref", true, 60, 1, 0, 1); /* with preemption */
}

static void test_engine_on_two(void **state) {
  (void)state;
  fail_everywhere("cpu", true, 200, 2, 0, 1);
  fail_everywhere("cpu", true, 200, 2, 1, 1);
}

static void test_engine_in_shards(void **state) {
  (void)state;
  const bool all = test_amount(0, 1, 1) != 0; /* else each shard on one of the backends */
  fail_everywhere("cpu", true, 200, 2, 0, 2);
  if (all) fail_everywhere("cpu", true, 200, 2, 1, 2);
  if (all) fail_everywhere("fake graphs", true, 200, 2, 0, 2); /* sums wait within a call, and some steps are graphs */
  fail_everywhere("fake graphs", true, 200, 2, 1, 2);
  fail_everywhere("cpu", true, 200, 4, 3, 2); /* parts of two shards: the last device, and shard 0 before the cut */
  fail_everywhere("fake graphs", true, 200, 4, 0, 2);
  if (!all) return;
  fail_everywhere("fake graphs", true, 200, 4, 2, 2);
  if (test_amount(0, 0, 1) == 0) return; /* eight threads that wait for one another */
  fail_everywhere("fake graphs", true, 200, 8, 5, 4);
}

/* A link between devices that takes far longer than they compute: the answers are the same; and a piece that fails after
 * all that time breaks its runner as any other call does. */
static void test_slow_link(void **state) {
  (void)state;
  static const uint32_t of[][2] = {{2, 1}, {3, 1}, {4, 1}, {4, 2}, {8, 4}}; /* devices, shards of a part */
  for (size_t i_of = 0; i_of < test_amount(4, 5, 5); i_of++) {
    uint32_t n_devices = of[i_of][0], n_shards = of[i_of][1];
    for (uint32_t slow = 0; slow < n_devices; slow += n_devices - 1) {
      rig r;
      weft_engine_stats stats;
      rig_options o = engine_options("cpu", true, 60, n_devices, n_shards);
      make_requests();
      play(&r, &o, slow, 0, clean, &stats);
      make_sound(failing_of(&r, slow));
      rig_close(&r);
      link_us = 3000;
      play(&r, &o, slow, 0, got, &stats);
      uint64_t n_all = n_calls;
      make_sound(failing_of(&r, slow));
      rig_close(&r);
      assert_int_equal(stats.broken_runners, 0);
      for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(got[i].finish, clean[i].finish);
        assert_int_equal(got[i].n, clean[i].n);
        assert_memory_equal(got[i].tokens, clean[i].tokens, clean[i].n * sizeof(int32_t));
      }
      play(&r, &o, slow, n_all / 3, got, &stats);
      if (n_calls >= n_all / 3) check_broken(&r, (uint32_t)stats.broken_runners - 1, n_all / 3);
      make_sound(failing_of(&r, slow));
      rig_close(&r);
      link_us = 0;
    }
  }
}

/* ---- through weft.h -------------------------------------------------------------------------------------- */

static int start(weft_runtime *rt, uint32_t i, const char *said, weft_generation **out) {
  weft_generate_params p;
  char error[512] = "";
  weft_generate_defaults(&p);
  p.mode = i % 2 == 0 ? WEFT_MODE_DIFFUSION : WEFT_MODE_AUTOREGRESSIVE;
  p.prompt.text = "a few words";
  p.prompt.n_text = strlen(p.prompt.text);
  p.max_tokens = 100;
  p.ignore_eos = true;
  int status = weft_submit(rt, &p, out, error, sizeof error);
  assert_true((status == 0) == (*out != NULL));
  if (status != 0) assert_non_null(strstr(error, said));
  return status;
}

/* n devices, of which one breaks. split NULL: of layers. */
static void break_one(const char *names, uint32_t n, const char *split, uint32_t breaks, const char *said) {
  const char *models[] = {split == NULL ? MODELS "dg-base.gguf" : MODELS "dg-deep.gguf"};
  const char *ended = split == NULL ? "dg-base: the device reported an error" : "dg-deep: the device reported an error";
  weft_open_options options = small_runtime(models, 1);
  options.devices = names;
  options.split = split;
  weft_runtime *rt;
  weft_generation *g[6];
  weft_delta d;
  char error[512] = "";
  assert_int_equal(weft_open(&options, &rt, error, sizeof error), 0);
  assert_int_equal(rt->devices.n, n);
  make_failing(rt->devices.device[breaks], 40);
  assert_null(weft_unwell(rt));
  uint32_t n_started = 0, n_waits = 0;
  while (n_started < 6 && start(rt, n_started, ended, &g[n_started]) == 0) n_started += 1;
  for (uint32_t i = 0; i < n_started; i++) {
    do {
      assert_int_equal(weft_next(g[i], TEST_WAIT_MS, &d), 0);
    } while (d.kind != WEFT_DELTA_END);
    assert_string_equal(d.finish, "error");
    assert_non_null(strstr(d.error, ended));
    weft_generation_free(g[i]);
  }
  assert_true(n_started > 0);
  assert_non_null(strstr(weft_unwell(rt), "restart"));
  assert_memory_equal(weft_unwell(rt), said, strlen(said));
  weft_generation *late = NULL;
  assert_int_equal(start(rt, 0, ended, &late), WEFT_E_DEVICE);
  char *stats = weft_stats_json(rt);
  assert_non_null(strstr(stats, "\"well\":false"));
  weft_release(stats);
  while (!weft_idle(rt)) continue;
  weft_engine_stats after; /* a snapshot, which is taken when the turn ends */
  do {
    weft_replicas_get_stats(rt->replicas, &after);
    (void)usleep(1000);
  } while (after.pager.n_pinned > 0 && ++n_waits < TEST_WAIT_MS);
  assert_int_equal(after.pager.n_pinned, 0);
  assert_int_equal(after.pager.n_seqs, 0);
  make_sound(rt->devices.device[breaks]);
  weft_close(rt);
}

/* One replica of two breaks: what ran on it ends with its error, what ran on the other ends as it would, later requests
 * all go there, and only a second break makes the server unwell. */
static void test_replicas(void **state) {
  static const char *const models[] = {MODELS "dg-base.gguf"};
  weft_open_options options = small_runtime(models, 1);
  weft_runtime *rt;
  weft_generation *g[6];
  weft_delta d;
  char error[512] = "";
  (void)state;
  options.devices = "4,7";
  options.split = "replicas";
  assert_int_equal(weft_open(&options, &rt, error, sizeof error), 0);
  make_failing(rt->devices.device[1], 40);
  assert_null(weft_degraded(rt));
  uint32_t n_failed = 0, n_first = 0;
  for (uint32_t round = 0; round < 2; round++) {
    for (uint32_t i = 0; i < 6; i++) assert_int_equal(start(rt, i, "", &g[i]), 0);
    for (uint32_t i = 0; i < 6; i++) {
      do {
        assert_int_equal(weft_next(g[i], TEST_WAIT_MS, &d), 0);
      } while (d.kind != WEFT_DELTA_END);
      bool failed = strcmp(d.finish, "error") == 0;
      if (failed) assert_non_null(strstr(d.error, "the device reported an error"));
      if (!failed) assert_string_equal(d.finish, "length");
      n_failed += failed;
      weft_generation_free(g[i]);
    }
    if (round == 0) n_first = n_failed; /* at most half went there */
    assert_true(n_failed >= 1 && n_failed <= 3 && n_failed == n_first);
    assert_null(weft_unwell(rt));
    assert_memory_equal(weft_degraded(rt), "device 7 (", 10);
  }
  char *stats = weft_stats_json(rt);
  assert_non_null(strstr(stats, "\"well\":true"));
  weft_release(stats);
  char *metrics = weft_metrics(rt);
  assert_non_null(strstr(metrics, "weft_replica_well{device=\"4\"} 1"));
  assert_non_null(strstr(metrics, "weft_replica_well{device=\"7\"} 0"));
  weft_release(metrics);
  make_sound(rt->devices.device[1]);
  make_failing(rt->devices.device[0], 1);
  assert_int_equal(start(rt, 0, "", &g[0]), 0);
  do {
    assert_int_equal(weft_next(g[0], TEST_WAIT_MS, &d), 0);
  } while (d.kind != WEFT_DELTA_END);
  assert_string_equal(d.finish, "error");
  weft_generation_free(g[0]);
  assert_non_null(weft_unwell(rt));
  weft_generation *late = NULL;
  assert_int_equal(start(rt, 0, "the device reported an error", &late), WEFT_E_DEVICE);
  make_sound(rt->devices.device[0]);
  weft_close(rt);
}

/* Answers of LOAD requests at once, of which as many run as may and the others wait. */
enum { LOAD = 20, LOAD_TOKENS = 60 };
typedef struct load_answer {
  int32_t token[LOAD_TOKENS];
  uint32_t n;
  char finish[16];
} load_answer;

static void read_load_answer(weft_generation *g, load_answer *a) {
  weft_delta d;
  *a = (load_answer){.n = 0};
  do {
    assert_int_equal(weft_next(g, TEST_WAIT_MS, &d), 0);
    for (uint32_t i = 0; d.kind == WEFT_DELTA_TEXT && i < d.n_tokens; i++) {
      assert_true(a->n < LOAD_TOKENS);
      a->token[a->n++] = d.tokens[i];
    }
  } while (d.kind != WEFT_DELTA_END);
  (void)snprintf(a->finish, sizeof a->finish, "%s", d.finish);
  if (strcmp(d.finish, "error") == 0) assert_non_null(strstr(d.error, "the device reported an error"));
}

/* breaks_at: which call of the second replica's device fails; 0: none does. */
static void play_load(uint64_t breaks_at, load_answer answer[LOAD]) {
  static const char *const models[] = {MODELS "dg-base.gguf"};
  weft_open_options options = small_runtime(models, 1);
  weft_generation *g[LOAD];
  weft_engine_stats after;
  weft_runtime *rt;
  char error[512] = "";
  options.devices = "4,7";
  options.split = "replicas";
  options.queue = LOAD;
  assert_int_equal(weft_open(&options, &rt, error, sizeof error), 0);
  if (breaks_at > 0) make_failing(rt->devices.device[1], breaks_at);
  for (uint32_t i = 0; i < LOAD; i++) {
    weft_generate_params p;
    weft_generate_defaults(&p);
    p.mode = i % 2 == 0 ? WEFT_MODE_DIFFUSION : WEFT_MODE_AUTOREGRESSIVE;
    p.prompt.text = "a few words";
    p.prompt.n_text = strlen(p.prompt.text);
    p.max_tokens = LOAD_TOKENS;
    p.ignore_eos = p.has_seed = true;
    p.sampling.seed = i;
    if (weft_submit(rt, &p, &g[i], error, sizeof error) != 0) fail_msg("%u: %s", i, error);
  }
  for (uint32_t i = 0; i < LOAD; i++) {
    read_load_answer(g[i], &answer[i]);
    weft_generation_free(g[i]);
  }
  assert_null(weft_unwell(rt));
  assert_true((weft_degraded(rt) != NULL) == (breaks_at > 0));
  do { /* a snapshot, which is taken when the turn ends */
    weft_replicas_get_stats(rt->replicas, &after);
    (void)usleep(1000);
  } while (!weft_idle(rt) || after.pager.n_pinned > 0);
  if (breaks_at > 0) make_sound(rt->devices.device[1]);
  weft_close(rt);
}

/* A replica that dies with all of its places taken and a queue behind it: every request ends once, with the device's line or
 * as it would have; what waited is answered by the other one; nothing stays taken. */
static void test_replica_under_load(void **state) {
  static const uint64_t moments[] = {1, 60, 600};
  static load_answer sound[LOAD], broken[LOAD];
  (void)state;
  play_load(0, sound);
  for (size_t m = 0; m < sizeof moments / sizeof *moments; m++) {
    uint32_t n_failed = 0;
    play_load(moments[m], broken);
    for (uint32_t i = 0; i < LOAD; i++) {
      assert_string_equal(sound[i].finish, "length");
      bool failed = strcmp(broken[i].finish, "error") == 0;
      n_failed += failed;
      if (!failed) assert_string_equal(broken[i].finish, "length");
      if (!failed) assert_int_equal(broken[i].n, sound[i].n);
      assert_memory_equal(broken[i].token, sound[i].token, broken[i].n * sizeof(int32_t)); /* what came is right */
    }
    if (n_failed < 1 || n_failed > LOAD / 2) fail_msg("%u requests failed", n_failed);
  }
}

static void test_public(void **state) {
  (void)state;
  break_one(NULL, 1, NULL, 0, "device 0 (");
  break_one("0,1", 2, NULL, 1, "device 1 (");
  break_one("4,7", 2, NULL, 1, "device 7 (");
  break_one("5,0,2", 3, NULL, 1, "device 0 (");
  break_one("0,1", 2, "tensor", 0, "device 0 (");
  break_one("4,7", 2, "tensor", 1, "device 7 (");
  break_one("3,1,0,2", 4, "tensor:2,layer:2", 2, "device 0 (");
  if (test_amount(0, 1, 1) != 0) break_one("0,1,2,3,4,5,6,7", 8, "tensor:4,layer:2", 7, "device 7 (");
}

int main(void) {
  weft_log_set_level((weft_log_level)-1); /* hundreds of broken devices */
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_engine),    cmocka_unit_test(test_engine_on_two), cmocka_unit_test(test_engine_in_shards),
      cmocka_unit_test(test_slow_link), cmocka_unit_test(test_replicas),      cmocka_unit_test(test_replica_under_load),
      cmocka_unit_test(test_public)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
