/* SPDX-License-Identifier: MIT */
/* Every allocation of open, submit and step made to fail once, and a device that fails at every
 * call: nothing leaks (the address sanitizer sees), every accepted request gets its one final
 * event, the pool is whole afterwards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/memory.h"
#include "scheduler/engine.h"
#include "bench/doubles/fake_runner.h"

enum { N_REQUESTS = 8, N_PAGES = 40, CONTEXT = 64 };

typedef struct outcome {
  bool opened;
  uint32_t n_accepted, n_finished[WEFT_FINISH_KINDS];
  uint64_t n_allocations;
} outcome;

typedef struct faults {
  uint64_t memory_at, submit_at, collect_at, slot_at;
  bool overlap;
} faults;

static void fill(weft_request_params *p, int32_t *prompt, uint32_t i) {
  static const weft_logit_bias bias[] = {{.token = 3, .bias = 1.0f}};
  static const int32_t stop_tokens[] = {2};
  *p = (weft_request_params){.model = i % 2,
                             .tokens = prompt,
                             .n_tokens = 5 + 2 * i,
                             .max_tokens = 20,
                             .stop_tokens = stop_tokens,
                             .n_stop_tokens = 1};
  for (uint32_t k = 0; k < p->n_tokens; k++) prompt[k] = (int32_t)(k % 7);
  p->canvas = i % 4 == 0;
  p->asked.sampling = weft_sampling_neutral();
  p->asked.sampling.logprobs = i % 4 == 1;
  p->asked.sampling.bias = bias;
  p->asked.sampling.n_bias = p->canvas ? 0 : 1;
  p->asked.entropy_bound = weft_entropy_bound_default();
  p->asked.canvas_deltas = p->asked.trace = p->canvas;
}

static weft_status open_world(const faults *f, weft_fake_store **store, weft_runner **runner, weft_engine **engine) {
  weft_fake_config fake = {.name = "fake",
                           .autoregressive = true,
                           .n_slots = 4,
                           .rows_max = 32,
                           .depth = 2,
                           .context_length = CONTEXT,
                           .fail_submit_at = f->submit_at,
                           .fail_collect_at = f->collect_at,
                           .fail_slot_at = f->slot_at,
                           .model = {.salt = 3,
                                     .n_vocab = 50,
                                     .n_canvas = 8,
                                     .n_groups = 2,
                                     .group = {{.block_tokens = 8}, {.block_tokens = 4, .window = 6}}}};
  weft_status status = weft_fake_store_open(N_PAGES, 8, store);
  for (uint32_t i = 0; status == WEFT_OK && i < 2; i++) {
    fake.store = *store;
    fake.id = i;
    status = weft_fake_runner_open(&fake, &runner[i]);
    fake.fail_submit_at = fake.fail_collect_at = fake.fail_slot_at = 0; /* the second one stays well */
  }
  if (status != WEFT_OK) return status;
  weft_engine_config config = {.n_models = 2,
                               .runner = runner,
                               .n_pages = N_PAGES,
                               .rows_per_step = 24,
                               .prefill_chunk = 8,
                               .running_max = 6,
                               .waiting_max = N_REQUESTS,
                               .n_tenants = 2,
                               .pins_max = 2,
                               .seq_tokens_max = CONTEXT,
                               .overlap = f->overlap};
  weft_error error = {{0}};
  status = weft_engine_open(&config, engine, &error);
  if (status != WEFT_OK) assert_true(error.text[0] != 0);
  return status;
}

static void close_world(weft_fake_store *store, weft_runner **runner, weft_engine *engine) {
  weft_engine_close(engine);
  for (uint32_t i = 0; i < 2; i++)
    if (runner[i] != NULL) runner[i]->ops->close(runner[i]);
  weft_fake_store_close(store);
}

static void serve(weft_engine *engine, outcome *out) {
  weft_request *handle[N_REQUESTS] = {NULL};
  int32_t prompt[N_REQUESTS][CONTEXT];
  for (uint32_t i = 0; i < N_REQUESTS; i++) {
    weft_request_params params;
    weft_error error = {{0}};
    fill(&params, prompt[i], i);
    if (i == 3 || i == 4) { /* another choice of the prompt of 1 or 0 */
      uint32_t elder = i == 3 ? 1 : 0;
      params.n_tokens = 5 + 2 * elder;
      params.sibling = handle[elder];
    }
    weft_status status = weft_engine_submit(engine, &params, 1, &handle[i], &error);
    if (status == WEFT_OK)
      out->n_accepted += 1;
    else
      assert_true((status == WEFT_E_NO_MEMORY || status == WEFT_E_DEVICE) && error.text[0] != 0);
    if (i == 3) (void)weft_engine_step(engine, 2); /* the rest arrives later */
  }
  for (uint64_t now = 3; !weft_engine_idle(engine); now++) {
    assert_true(now < 2000);
    assert_int_equal(weft_engine_step(engine, now), WEFT_OK);
  }
  for (uint32_t i = 0; i < N_REQUESTS; i++) {
    weft_event event = {0};
    uint32_t n_ends = 0;
    if (handle[i] == NULL) continue;
    while (weft_engine_poll(engine, handle[i], &event) == WEFT_OK) n_ends += event.kind == WEFT_EVENT_FINISHED;
    assert_int_equal(n_ends, 1);
    out->n_finished[event.finish] += 1;
    if (event.finish == WEFT_FINISH_ERROR) assert_true(event.error[0] != 0);
    weft_engine_release(engine, handle[i]);
  }
  out->n_allocations = weft_memory_fail_at(0); /* the check takes memory of its own */
  weft_error error = {{0}};
  if (!weft_pager_check(weft_engine_pager(engine), &error)) fail_msg("%s", error.text);
  assert_int_equal(weft_pager_get_stats(weft_engine_pager(engine)).n_pinned, 0);
}

static outcome run(const faults *f) {
  outcome out = {0};
  weft_fake_store *store = NULL;
  weft_runner *runner[2] = {NULL, NULL};
  weft_engine *engine = NULL;
  (void)weft_memory_fail_at(f->memory_at);
  weft_status status = open_world(f, &store, runner, &engine);
  out.opened = status == WEFT_OK;
  if (out.opened)
    serve(engine, &out);
  else
    assert_int_equal(status, WEFT_E_NO_MEMORY);
  (void)weft_memory_fail_at(0);
  for (uint32_t i = 0; i < 2; i++)
    if (runner[i] != NULL) assert_null(weft_fake_runner_violation(runner[i]));
  close_world(store, runner, engine);
  return out;
}

static void every_allocation_fails_once(void **state) {
  (void)state;
  for (uint32_t overlap = 0; overlap < 2; overlap++) {
    faults f = {.overlap = overlap == 1};
    outcome clean = run(&f);
    assert_int_equal(clean.n_accepted, N_REQUESTS);
    assert_int_equal(clean.n_finished[WEFT_FINISH_STOP] + clean.n_finished[WEFT_FINISH_LENGTH], N_REQUESTS);
    uint32_t n_refused_opens = 0, n_refused_requests = 0;
    for (uint64_t at = 1; at <= clean.n_allocations; at++) {
      f.memory_at = at;
      outcome out = run(&f);
      n_refused_opens += !out.opened;
      if (!out.opened) continue;
      n_refused_requests += N_REQUESTS - out.n_accepted;
      assert_int_equal(out.n_accepted, N_REQUESTS - 1); /* one allocation, one request */
      assert_int_equal(out.n_finished[WEFT_FINISH_STOP] + out.n_finished[WEFT_FINISH_LENGTH], N_REQUESTS - 1);
    }
    assert_int_equal(n_refused_requests, N_REQUESTS);
    assert_int_equal(n_refused_opens, clean.n_allocations - N_REQUESTS);
  }
}

/* A step takes no memory: the count does not move. */
static void steps_allocate_nothing(void **state) {
  (void)state;
  faults f = {0};
  weft_fake_store *store = NULL;
  weft_runner *runner[2] = {NULL, NULL};
  weft_engine *engine = NULL;
  assert_int_equal(open_world(&f, &store, runner, &engine), WEFT_OK);
  weft_request *handle[N_REQUESTS];
  int32_t prompt[CONTEXT];
  for (uint32_t i = 0; i < N_REQUESTS; i++) {
    weft_request_params params;
    fill(&params, prompt, i);
    assert_int_equal(weft_engine_submit(engine, &params, 1, &handle[i], NULL), WEFT_OK);
  }
  (void)weft_memory_fail_at(0);
  for (uint64_t now = 3; !weft_engine_idle(engine); now++) (void)weft_engine_step(engine, now);
  assert_int_equal(weft_memory_fail_at(0), 0);
  for (uint32_t i = 0; i < N_REQUESTS; i++) weft_engine_release(engine, handle[i]);
  close_world(store, runner, engine);
}

static void a_pin_is_refused_whole(void **state) {
  (void)state;
  for (uint64_t at = 1; at <= 4; at++) {
    faults f = {0};
    weft_fake_store *store = NULL;
    weft_runner *runner[2] = {NULL, NULL};
    weft_engine *engine = NULL;
    assert_int_equal(open_world(&f, &store, runner, &engine), WEFT_OK);
    int32_t prompt[CONTEXT] = {0};
    weft_pin_params p = {.tokens = prompt, .n_tokens = 17};
    uint32_t id;
    weft_error error = {{0}};
    (void)weft_memory_fail_at(at);
    weft_status status = weft_engine_pin(engine, &p, 1, &id, &error);
    (void)weft_memory_fail_at(0);
    assert_int_equal(status, at == 4 ? WEFT_OK : WEFT_E_NO_MEMORY); /* pin, tokens, request */
    assert_true(at == 4 || error.text[0] != 0);
    for (uint64_t now = 2; now < 40; now++) (void)weft_engine_step(engine, now);
    weft_pin_info info;
    assert_int_equal(weft_engine_list_pins(engine, &info, 1), at == 4);
    assert_int_equal(weft_pager_get_stats(weft_engine_pager(engine)).n_pinned > 0, at == 4);
    close_world(store, runner, engine);
  }
}

static void device_fails(void **state) {
  (void)state;
  for (uint32_t overlap = 0; overlap < 2; overlap++) {
    for (uint64_t at = 1; at < 40; at++) {
      for (uint32_t kind = 0; kind < 3; kind++) {
        faults f = {.overlap = overlap == 1};
        *(kind == 0 ? &f.submit_at : kind == 1 ? &f.collect_at : &f.slot_at) = at;
        outcome out = run(&f);
        uint32_t n_natural = out.n_finished[WEFT_FINISH_STOP] + out.n_finished[WEFT_FINISH_LENGTH];
        assert_int_equal(n_natural + out.n_finished[WEFT_FINISH_ERROR], out.n_accepted);
        assert_true(n_natural >= N_REQUESTS / 2); /* the other runner's requests */
        if (kind == 2) assert_true(out.n_finished[WEFT_FINISH_ERROR] <= 1);
        if (kind < 2 && at == 1) assert_int_equal(n_natural, N_REQUESTS / 2);
      }
    }
  }
}

int main(void) {
  weft_log_set_level((weft_log_level)-1); /* broken runners are expected here */
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_fails_once),
                                     cmocka_unit_test(steps_allocate_nothing), cmocka_unit_test(a_pin_is_refused_whole),
                                     cmocka_unit_test(device_fails)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
