/* SPDX-License-Identifier: MIT */
/* What the engine remembers of its last steps and requests, and what it counts per model. */
#include "tests/support/engine_world.h"

static void rings_keep_the_newest(void **state) {
  static weft_step_record step[WEFT_RECORDED_STEPS + 1];
  weft_request_record request[8];
  weft_recorder recorder;
  (void)state;
  assert_int_equal(weft_recorder_open(&recorder), WEFT_OK);
  assert_int_equal(weft_recorder_steps(&recorder, step, 8), 0);
  enum { EVER = WEFT_RECORDED_STEPS + 100 };
  for (uint64_t i = 1; i <= EVER; i++) {
    weft_recorder_add_step(&recorder, &(weft_step_record){.number = i});
  }
  assert_int_equal(weft_recorder_steps(&recorder, step, 3), 3);
  assert_int_equal(step[0].number, EVER - 2);
  assert_int_equal(step[2].number, EVER);
  assert_int_equal(weft_recorder_steps(&recorder, step, WEFT_RECORDED_STEPS + 1), WEFT_RECORDED_STEPS);
  for (uint32_t i = 0; i < WEFT_RECORDED_STEPS; i++) assert_int_equal(step[i].number, 101 + i);
  weft_recorder_add_request(&recorder, &(weft_request_record){.number = 7});
  assert_int_equal(weft_recorder_requests(&recorder, request, 8), 1);
  assert_int_equal(request[0].number, 7);
  weft_recorder_close(&recorder);
  weft_recorder_close(&recorder);
}

static void every_step_is_recorded(void **state) {
  weft_step_record step[512];
  (void)state;
  plan_world();
  w.config.overlap = true;
  open_world();
  weft_request *r[6];
  for (uint32_t i = 0; i < 6; i++) {
    weft_request_params p = ask(i % 3 == 1, 5 + i, 9);
    p.model = i % 3 == 2;
    r[i] = submit(&p);
  }
  run_out();
  weft_engine_stats s = stats();
  uint32_t n = weft_engine_get_steps(w.engine, step, 512);
  assert_int_equal(n, s.n_steps);
  uint64_t rows[5] = {0}, n_of[2] = {0}, rows_of[2] = {0};
  for (uint32_t i = 0; i < n; i++) {
    uint32_t own = step[i].n_prefill_rows + step[i].n_decode_rows + step[i].n_commit_rows + step[i].n_canvas_rows;
    assert_int_equal(step[i].number, i + 1);
    assert_true(own > 0 && !step[i].failed && step[i].n_segments > 0);
    assert_true(step[i].began_us <= step[i].launched_us);
    assert_true(step[i].launched_us <= step[i].enqueued_us);
    assert_true(step[i].enqueued_us <= step[i].collected_us);
    assert_true(step[i].collected_us <= step[i].applied_us);
    assert_int_equal(step[i].n_pages_free + step[i].n_pages_cached + step[i].n_pages_pinned, w.config.n_pages);
    rows[0] += step[i].n_prefill_rows;
    rows[1] += step[i].n_decode_rows;
    rows[2] += step[i].n_commit_rows;
    rows[3] += step[i].n_canvas_rows;
    n_of[step[i].lane] += 1;
    rows_of[step[i].lane] += own;
  }
  assert_int_equal(rows[0], s.n_prefill_rows);
  assert_int_equal(rows[1], s.n_decode_rows);
  assert_int_equal(rows[2], s.n_commit_rows);
  assert_int_equal(rows[3], s.n_canvas_rows);
  assert_int_equal(s.n_lanes, 2);
  for (uint32_t i = 0; i < 2; i++) {
    assert_true(n_of[i] > 0);
    assert_int_equal(s.lane[i].n_steps, n_of[i]);
    assert_int_equal(s.lane[i].n_rows, rows_of[i]);
    assert_int_equal(s.lane[i].n_running + s.lane[i].n_waiting, 0);
  }
  assert_true(s.lane[0].busy_us + s.lane[1].busy_us <= w.now);
  release_all(r, 6);
}

static void every_end_is_recorded(void **state) {
  weft_request_record record[16];
  (void)state;
  plan_world();
  open_world();
  weft_request_params p = ask(false, 6, 4);
  p.tenant = 2;
  weft_request *whole = submit(&p);
  p = ask(true, 4, 7);
  weft_request *canvas = submit(&p);
  p = ask(false, 4, 50);
  weft_request *cancelled = submit(&p);
  weft_engine_cancel(w.engine, cancelled);
  run_out();
  assert_int_equal(weft_engine_get_requests(w.engine, record, 16), 3);
  for (uint32_t i = 0; i < 3; i++) {
    const weft_request_record *r = &record[i];
    assert_true(r->number < 3);
    assert_true(r->submitted_us > 0 && r->submitted_us <= r->finished_us);
    assert_int_equal(r->canvas, r->number == 1);
    assert_int_equal(r->tenant, r->number == 0 ? 2 : 0);
    if (r->number == 2) {
      assert_int_equal(r->finish, WEFT_FINISH_CANCELLED);
      assert_int_equal(r->started_us, 0);
      continue;
    }
    assert_int_equal(r->finish, WEFT_FINISH_LENGTH);
    assert_int_equal(r->n_prompt, r->number == 0 ? 6 : 4);
    assert_int_equal(r->n_answer, r->number == 0 ? 4 : 7);
    assert_true(r->submitted_us <= r->started_us && r->started_us <= r->first_token_us);
    assert_true(r->first_token_us <= r->finished_us);
  }
  weft_engine_release(w.engine, whole);
  weft_engine_release(w.engine, canvas);
  weft_engine_release(w.engine, cancelled);
}

static void a_failed_step_is_recorded(void **state) {
  weft_step_record step[64];
  (void)state;
  plan_world();
  w.fake[1].fail_collect_at = 2;
  open_world();
  weft_request_params p = ask(false, 6, 9);
  p.model = 1;
  weft_request *r = submit(&p);
  run_out();
  uint32_t n = weft_engine_get_steps(w.engine, step, 64), n_failed = 0;
  for (uint32_t i = 0; i < n; i++) n_failed += step[i].failed;
  assert_int_equal(n_failed, 1);
  assert_true(step[n - 1].failed);
  weft_engine_release(w.engine, r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rings_keep_the_newest),
      cmocka_unit_test_teardown(every_step_is_recorded, close_world),
      cmocka_unit_test_teardown(every_end_is_recorded, close_world),
      cmocka_unit_test_teardown(a_failed_step_is_recorded, close_world),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
