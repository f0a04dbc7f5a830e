/* SPDX-License-Identifier: MIT */
/* canvas on every device against ref, bit for bit, over whole lives of canvases: states, next tokens, results. The rule
 * of ref is held against the reference implementation's traces by golden/model_sampler. */
#include "tests/kernels/harness.h"

enum { SLOTS = 5, CANVASES = 3, STEPS = 12, POSITIONS = WEFT_CANVAS_MAX };

/* Memory of one device's run; rows of canvas c begin at c * n + 1. */
typedef struct run {
  uint32_t n;
  int32_t *state, *argmax, *drawn, *fresh;
  float *entropy;
  uint8_t *bad;
  weft_canvas_row *row;
  buffer next, accepted, out;
} run;

static run run_new(uint32_t n) {
  uint32_t rows = CANVASES * n + 1;
  return (run){.n = n,
               .state = memory_new(SLOTS * weft_canvas_state_words(n), 4),
               .argmax = memory_new(rows, 4),
               .drawn = memory_new(rows, 4),
               .fresh = memory_new(rows, 4),
               .entropy = memory_new(rows, 4),
               .bad = memory_new(rows, 1),
               .row = memory_new(CANVASES, sizeof(weft_canvas_row)),
               .next = buffer_new(rows * 4),
               .accepted = buffer_new(rows),
               .out = buffer_new(CANVASES * sizeof(weft_canvas_result))};
}

static void run_free(run *r) {
  void *const parts[] = {r->state, r->argmax, r->drawn, r->fresh, r->entropy, r->bad, r->row};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) memory_free(parts[i]);
  buffer_free(&r->next);
  buffer_free(&r->accepted);
  buffer_free(&r->out);
}

static uint32_t below(uint64_t seed, uint64_t i, uint32_t n) {
  weft_draw_key key = {.seed = seed, .purpose = WEFT_DRAW_TEST, .position = i};
  return weft_draw_below(&key, n);
}

/* Statistics of a step: entropies with ties and zeros; argmax canvases that come to rest after some steps, so that
 * canvases end. */
static void fill(run *r, uint64_t seed, uint32_t step) {
  static const float bounds[4] = {0.1f, 0.0f, 1e9f, 3.0f}, confidences[3] = {0.005f, 0.5f, 1e9f};
  for (uint32_t c = 0; c < CANVASES; c++) {
    uint64_t own = seed + 100 * c;
    uint32_t rest = below(own, 1, STEPS), max_steps = 1 + below(own, 2, STEPS);
    r->row[c] = (weft_canvas_row){.rule = {.step = step % max_steps,
                                           .max_steps = max_steps,
                                           .stability = below(own, 3, WEFT_STABILITY_MAX + 1),
                                           .entropy_bound = bounds[below(own, 4, 4)],
                                           .confidence = confidences[below(own, 5, 3)],
                                           .agree = below(own, 6, 2)},
                                  .slot = (c * 2 + 1) % SLOTS,
                                  .first = c * r->n + 1};
    for (uint32_t i = 0; i < r->n; i++) {
      uint32_t at = c * r->n + 1 + i, kind = below(own + step, 4 * i + 10, 4);
      float e = random_uniform(own + 1000 * step, i);
      r->entropy[at] = kind == 0 ? 0.0f : kind == 1 ? 0.25f : e * e * e;
      r->argmax[at] = (int32_t)below(own + (step < rest ? step : 1000), i, 50);
      r->drawn[at] = kind == 2 ? r->argmax[at] : (int32_t)below(own + step + 7, i, 1000);
      r->fresh[at] = (int32_t)below(own + step + 8, i, 1000) + 1000;
      r->bad[at] = c == 1 && step == 3 && i == r->n / 2 ? 1 : 0;
    }
  }
}

static void step(weft_device *device, run *r) {
  weft_canvas_args args = {.row = r->row,
                           .state = r->state,
                           .argmax = r->argmax,
                           .drawn = r->drawn,
                           .entropy = r->entropy,
                           .bad = r->bad,
                           .fresh = r->fresh,
                           .next = r->next.data,
                           .accepted = r->accepted.data,
                           .out = r->out.data,
                           .n_rows = CANVASES,
                           .n = r->n};
  RUN_OP(canvas, device, &args);
}

static void assert_runs(const char *device, const run *a, const run *b) {
  const weft_canvas_result *x = a->out.data, *y = b->out.data;
  uint64_t words = weft_canvas_state_words(a->n);
  for (uint32_t c = 0; c < CANVASES; c++) {
    assert_same("canvas", device, "a result", &x[c], &y[c], sizeof x[c]);
    uint64_t slot = a->row[c].slot, at = c * a->n + 1;
    const int32_t *own = a->state + slot * words, *other = b->state + slot * words;
    assert_same("canvas", device, "a next token", own, other, a->n * 4);
    uint32_t n_history = (uint32_t)own[words - 2];
    assert_same("canvas", device, "a history", own + a->n, other + a->n, (size_t)n_history * a->n * 4);
    assert_same("canvas", device, "a state", own + words - 2, other + words - 2, 8);
    if (x[c].is_void != 0) continue;
    assert_same("canvas", device, "a next token", (int32_t *)a->next.data + at, (int32_t *)b->next.data + at, a->n * 4);
    assert_same("canvas", device, "a flag", (uint8_t *)a->accepted.data + at, (uint8_t *)b->accepted.data + at, a->n);
  }
}

static void test_equals_ref(void **state) {
  const devices *all = *state;
  static const uint32_t sizes[] = {1, 2, 8, 31, 256, 300, POSITIONS};
  uint32_t n_void = 0, n_stopped = 0, n_bad = 0;
  for (uint32_t i = case_first; i < 7 * 8; i += case_step) {
    uint32_t n = sizes[i % 7];
    run want = run_new(n);
    run got[DEVICES_MAX];
    for (uint32_t d = 0; d < all->n; d++) got[d] = run_new(n);
    for (uint32_t s = 0; s < STEPS; s++) {
      fill(&want, 900 + i, s);
      step(all->ref, &want);
      for (uint32_t c = 0; c < CANVASES; c++) {
        const weft_canvas_result *result = (const weft_canvas_result *)want.out.data + c;
        n_void += result->is_void;
        n_stopped += result->stopped;
        n_bad += result->bad;
      }
      for (uint32_t d = 0; d < all->n; d++) {
        fill(&got[d], 900 + i, s);
        step(all->cpu[d], &got[d]);
        assert_runs(all->name[d], &got[d], &want);
      }
    }
    for (uint32_t d = 0; d < all->n; d++) run_free(&got[d]);
    run_free(&want);
  }
  assert_true(case_step > 1 || (n_void > 20 && n_stopped > 20 && n_bad > 5));
}

/* A void step changes nothing; a step 0 begins anew. */
static void test_done_is_kept(void **state) {
  const devices *all = *state;
  for (uint32_t d = 0; d <= all->n; d++) {
    weft_device *device = d == all->n ? all->ref : all->cpu[d];
    run r = run_new(8);
    uint64_t n_bytes = SLOTS * weft_canvas_state_words(8) * 4;
    const weft_canvas_result *out = r.out.data;
    fill(&r, 1, 0);
    for (uint32_t c = 0; c < CANVASES; c++) r.row[c].rule = (weft_canvas_rule){.step = 0, .max_steps = 1};
    step(device, &r);
    int32_t *before = memory_new(n_bytes, 1);
    memcpy(before, r.state, n_bytes);
    assert_true(out[0].done == 1 && out[0].is_void == 0);
    fill(&r, 2, 1);
    for (uint32_t c = 0; c < CANVASES; c++) r.row[c].rule = (weft_canvas_rule){.step = 1, .max_steps = 9};
    step(device, &r);
    assert_true(out[0].is_void == 1 && memcmp(before, r.state, n_bytes) == 0);
    for (uint32_t c = 0; c < CANVASES; c++)
      r.row[c].rule = (weft_canvas_rule){.step = 0, .max_steps = 9, .stability = 1};
    step(device, &r);
    assert_true(out[0].is_void == 0 && out[0].done == 0 && memcmp(before, r.state, n_bytes) != 0);
    memory_free(before);
    run_free(&r);
  }
}

int main(int argc, char **argv) {
  take_arguments(argc, argv);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_equals_ref), cmocka_unit_test(test_done_is_kept)};
  return cmocka_run_group_tests(tests, setup_devices, teardown_devices);
}
