/* SPDX-License-Identifier: MIT */
/* The engine short of memory: the exact edge of what fits, preemption, priority, order of
 * admission, shared prefixes. */
#include "model/kv_layout.h"
#include "pager/records.h"
#include "scheduler/check.h"
#include "scheduler/cost.h"
#include "scheduler/policy.h"
#include "scheduler/state.h"
#include "tests/support/engine_world.h"

/* The largest length named by the refusal fits, alone and with others around; one more does not. */
static void the_edge_of_the_pool(void **state) {
  (void)state;
  for (uint32_t n_pages = 6; n_pages < 15; n_pages++) {
    for (uint32_t canvas = 0; canvas < 2; canvas++) {
      for (uint32_t overlap = 0; overlap < 2; overlap++) {
        plan_world();
        w.config.n_pages = n_pages;
        w.config.overlap = overlap == 1;
        open_world();
        weft_request_params p = ask(canvas == 1, 10, 80);
        weft_request *r = NULL;
        weft_error error = {{0}};
        assert_int_equal(weft_engine_submit(w.engine, &p, 1, &r, &error), WEFT_E_TOO_LARGE);
        const char *at = strstr(error.text, "together may be ");
        assert_non_null(at);
        uint32_t most = (uint32_t)strtoul(at + strlen("together may be "), NULL, 10);
        p.max_tokens = most - 10;
        weft_request_params more = p;
        more.max_tokens += canvas == 1 ? CANVAS : 1;
        refused(&more, WEFT_E_TOO_LARGE, "together may be");
        weft_request *first = submit(&p), *second = submit(&p);
        run_out();
        check_equal_solo(first, &p);
        check_equal_solo(second, &p);
        (void)close_world(NULL);
      }
    }
  }
}

/* ---- memory pressure ------------------------------------------------------------------------- */

static void preemption_loses_nothing(void **state) {
  (void)state;
  w.config.n_pages = 26;
  open_world();
  weft_request *r[4];
  weft_request_params p[4];
  for (uint32_t i = 0; i < 4; i++) {
    p[i] = ask(i % 2 == 1, 5, 70);
    p[i].asked.sampling.seed = i;
    p[i].asked.canvas_deltas = true;
    p[i].asked.no_cache = true; /* each has its own blocks */
    r[i] = submit(&p[i]);
  }
  run_out();
  assert_true(stats().n_preemptions > 0);
  for (uint32_t i = 0; i < 4; i++) check_equal_solo(r[i], &p[i]);
}

/* With places for their state preempted canvases take no step twice, without they start again. */
static void a_preempted_canvas_resumes_at_its_step(void **state) {
  (void)state;
  for (uint32_t n_saves = 0; n_saves <= 8; n_saves += 8) {
    plan_world();
    w.config.n_pages = 26;
    w.fake[0].n_saves = n_saves;
    open_world();
    weft_request *r[6];
    weft_request_params p[6];
    uint64_t n_reported = 0;
    for (uint32_t i = 0; i < 6; i++) {
      p[i] = ask(i % 3 != 0, 5, 70);
      p[i].asked.sampling.seed = i;
      p[i].asked.canvas_deltas = true;
      p[i].asked.no_cache = true;
      r[i] = submit(&p[i]);
    }
    uint64_t until = w.now + 5000;
    while (!weft_engine_idle(w.engine)) {
      assert_int_equal(weft_engine_step(w.engine, ++w.now), WEFT_OK);
      assert_true(w.now < until);
    }
    weft_engine_stats s = stats();
    assert_true(s.n_preemptions > 0);
    assert_int_equal(s.n_canvases_resumed > 0, n_saves > 0);
    assert_int_equal(s.n_canvases_saved, s.n_canvases_resumed);
    for (uint32_t i = 0; i < 6; i++) {
      solo_answer alone = solo_run(&w.fake[0].model, &p[i], CONTEXT);
      weft_event end = finish_of(r[i], NULL, NULL);
      assert_int_equal(end.finish, alone.finish);
      assert_int_equal(end.usage.n_answer, alone.n);
      n_reported += end.usage.n_denoise_steps;
      free(alone.tokens);
      weft_engine_release(w.engine, r[i]);
    }
    if (n_saves > 0) assert_int_equal(s.n_denoise_steps, n_reported);
    if (n_saves == 0) assert_true(s.n_denoise_steps > n_reported);
    (void)close_world(NULL);
  }
}

/* What a preempted request lost from the pool comes back from the host instead of being computed. */
static void what_was_evicted_comes_back(void **state) {
  (void)state;
  uint64_t n_rows[2];
  for (uint32_t tier = 0; tier < 2; tier++) {
    plan_world();
    w.config.n_pages = 26;
    w.config.n_host_pages = tier * 100;
    open_world();
    weft_request *r[4];
    weft_request_params p[4];
    for (uint32_t i = 0; i < 4; i++) {
      p[i] = ask(i % 2 == 1, 5, 70);
      p[i].domain.low = i; /* each has its own blocks */
      p[i].asked.canvas_deltas = true;
      r[i] = submit(&p[i]);
    }
    run_out();
    assert_true(stats().n_preemptions > 0);
    assert_int_equal(stats().pager.n_restored > 0, tier == 1);
    n_rows[tier] = stats().n_prefill_rows;
    for (uint32_t i = 0; i < 4; i++) check_equal_solo(r[i], &p[i]);
    (void)close_world(NULL);
  }
  assert_true(n_rows[1] < n_rows[0]);
}

/* Where there is one tenant a request's priority keeps its memory; among tenants only their class
 * does, whatever their requests say. */
static void the_higher_keeps_its_memory(void **state) {
  (void)state;
  const weft_tenant_config classes[2] = {{0}, {.priority_class = WEFT_CLASS_HIGH}};
  for (uint32_t n_tenants = 1; n_tenants <= 2; n_tenants++) {
    plan_world();
    w.config.n_pages = 26;
    w.config.n_tenants = n_tenants;
    w.config.tenant = classes;
    open_world();
    weft_request *low[3];
    weft_request_params p = ask(false, 5, 80);
    p.asked.no_cache = true;
    p.asked.priority = n_tenants == 1 ? 0 : 3;
    submit_all(&p, low, 3);
    step(2);
    p.asked.priority = n_tenants == 1 ? 3 : 0;
    p.tenant = n_tenants - 1;
    weft_request *high = submit(&p);
    run_out();
    assert_true(stats().n_preemptions > 0);
    assert_int_equal(finish_of(high, NULL, NULL).usage.n_preemptions, 0);
    all_end(low, 3, WEFT_FINISH_LENGTH);
    weft_engine_release(w.engine, high);
    (void)close_world(NULL);
  }
}

/* A request that needs much of the pool starts before its equals that came later, whatever lane
 * they are on. */
static void a_large_request_is_not_overtaken(void **state) {
  (void)state;
  for (uint32_t lane = 0; lane < 2; lane++) {
    plan_world();
    w.config.n_pages = 24;
    open_world();
    weft_request_params small = ask(false, 9, 12), large = ask(false, 80, 4);
    small.asked.no_cache = large.asked.no_cache = true;
    small.model = lane;
    weft_request *early[3], *late[12];
    submit_all(&small, early, 3);
    step(2);
    weft_request *big = submit(&large);
    for (uint32_t i = 0; i < 12; i++) {
      late[i] = submit(&small);
      step(2);
    }
    run_out();
    uint64_t started = finish_of(big, NULL, NULL).usage.started_us;
    for (uint32_t i = 0; i < 12; i++) {
      assert_true(finish_of(late[i], NULL, NULL).usage.started_us >= started);
      weft_engine_release(w.engine, late[i]);
    }
    release_all(early, 3);
    weft_engine_release(w.engine, big);
    (void)close_world(NULL);
  }
}

/* Ten requests of one tenant wait; two of another, which come later, do not wait for all of them. */
static void tenants_take_turns(void **state) {
  (void)state;
  w.config.running_max = 1;
  open_world();
  weft_request_params p = ask(false, 6, 6);
  p.asked.no_cache = true;
  weft_request *first[10], *second[2];
  submit_all(&p, first, 10);
  p.tenant = 1;
  submit_all(&p, second, 2);
  run_out();
  uint64_t third = finish_of(first[3], NULL, NULL).usage.started_us;
  for (uint32_t i = 0; i < 2; i++) {
    assert_true(finish_of(second[i], NULL, NULL).usage.started_us < third);
    weft_engine_release(w.engine, second[i]);
  }
  release_all(first, 10);
}

static void a_follower_waits_for_its_prefix(void **state) {
  (void)state;
  w.config.prefill_chunk = 8;
  open_world();
  weft_request_params p = ask(false, 64, 2);
  weft_request *leader = submit(&p), *follower = submit(&p);
  weft_request_params other = ask(false, 5, 2);
  other.domain.low = 2;
  weft_request *passes = submit(&other);
  run_out();
  weft_event a = finish_of(leader, NULL, NULL), b = finish_of(follower, NULL, NULL), c = finish_of(passes, NULL, NULL);
  assert_int_equal(a.usage.n_cached, 0);
  assert_int_equal(b.usage.n_cached, 56); /* the last block is computed: its last row gives the token */
  assert_true(c.usage.finished_us < b.usage.finished_us);
  assert_int_equal(stats().n_prefill_rows, 64 + 8 + 5);
  assert_int_equal(stats().n_cached_tokens, 56);
  weft_engine_release(w.engine, leader);
  weft_engine_release(w.engine, follower);
  weft_engine_release(w.engine, passes);
}

static void domains_do_not_share(void **state) {
  (void)state;
  open_world();
  weft_request_params p = ask(false, 40, 2);
  weft_request *a = submit(&p);
  run_out();
  p.domain.low = 2;
  weft_request *b = submit(&p);
  run_out();
  p.domain.low = 1;
  weft_request *c = submit(&p);
  weft_engine_reset_cache(w.engine);
  weft_request *d = submit(&p);
  run_out();
  assert_int_equal(finish_of(b, NULL, NULL).usage.n_cached, 0);
  assert_int_equal(finish_of(c, NULL, NULL).usage.n_cached, 0); /* the reset came first */
  assert_int_equal(finish_of(d, NULL, NULL).usage.n_cached, 32);
  weft_engine_release(w.engine, a);
  weft_engine_release(w.engine, b);
  weft_engine_release(w.engine, c);
  weft_engine_release(w.engine, d);
}

/* So many as predicted run at once to their end and nobody is preempted; with twice as many somebody is, or waits. */
static void what_is_predicted_has_room(void **state) {
  (void)state;
  for (uint32_t n_pages = 26; n_pages < 80; n_pages += 9) {
    for (uint32_t more = 0; more < 2; more++) {
      plan_world();
      w.config.n_pages = n_pages;
      open_world();
      uint32_t room = weft_engine_room(w.engine, 0, 75), n = more == 0 ? room : 2 * room + 1, most = 0;
      assert_true(room >= 1 && room < w.config.running_max);
      weft_request *r[128];
      for (uint32_t i = 0; i < n; i++) {
        weft_request_params p = ask(false, 5, 70);
        p.domain.low = i; /* each has its own blocks */
        r[i] = submit(&p);
      }
      while (!weft_engine_idle(w.engine)) {
        assert_int_equal(weft_engine_step(w.engine, ++w.now), WEFT_OK);
        if (stats().n_running > most) most = stats().n_running;
      }
      bool held = stats().n_preemptions == 0 && most == n;
      assert_int_equal(held, more == 0);
      release_all(r, n);
      (void)close_world(NULL);
    }
  }
}

/* Keys, rows since the last border in many groups, and a state of many pages: as Qwen3.5 keeps them. */
static void plan_states(uint32_t n_pages, bool overlap) {
  plan_world();
  w.fake[0].model.n_canvas = 0;
  w.fake[0].model.n_groups = 5;
  w.fake[0].model.group[0] = (weft_layer_group){.block_tokens = 8};
  for (uint32_t g = 1; g < 4; g++)
    w.fake[0].model.group[g] = (weft_layer_group){.block_tokens = 2, .window = 8, .from_border = true};
  w.fake[0].model.group[4] = (weft_layer_group){.block_tokens = 8, .state_pages = 6};
  w.config.rows_per_step = 64;
  w.config.n_pages = n_pages;
  w.config.overlap = overlap;
}

/* The most requests that ran at once to their end. */
static uint32_t most_at_once(uint32_t n_pages, bool overlap, uint32_t *predicted) {
  uint32_t held = 0;
  for (uint32_t n = 1; n <= 8; n++) {
    plan_states(n_pages, overlap);
    open_world();
    *predicted = weft_engine_room(w.engine, 0, CONTEXT);
    uint32_t n_answer = 4 + 2 * n * CONTEXT / w.config.rows_per_step, most = 0;
    weft_request *r[8];
    for (uint32_t i = 0; i < n; i++) {
      weft_request_params p = ask(false, CONTEXT - n_answer, n_answer);
      p.domain.low = i; /* each has its own blocks */
      r[i] = submit(&p);
    }
    while (!weft_engine_idle(w.engine)) {
      assert_int_equal(weft_engine_step(w.engine, ++w.now), WEFT_OK);
      if (stats().n_running > most) most = stats().n_running;
    }
    if (stats().n_preemptions == 0 && most == n) held = n;
    release_all(r, n);
    (void)close_world(NULL);
  }
  return held;
}

/* As many as predicted run to their end, and at most one more: states and rows since a border are counted as they are
 * held, not all of them at their most beside a chunk of a prompt. */
static void what_is_predicted_of_states_has_room(void **state) {
  (void)state;
  for (uint32_t n_pages = 140; n_pages <= 280; n_pages += 20) {
    for (uint32_t overlap = 0; overlap < 2; overlap++) {
      uint32_t predicted, held = most_at_once(n_pages, overlap == 1, &predicted);
      if (held < predicted || held > predicted + 1)
        fail_msg("%u pages, overlap %u: %u predicted, %u ran", n_pages, overlap, predicted, held);
    }
  }
}

/* After each step of an answer the pool has what the layout says, with the row of the next step where that is in
 * flight: while it reaches a border both states are there. */
static void a_state_is_held_twice_while_a_row_reaches_a_border(void **state) {
  (void)state;
  for (uint32_t overlap = 0; overlap < 2; overlap++) {
    plan_states(200, overlap == 1);
    open_world();
    weft_kv_layout layout = {.n_groups = w.fake[0].model.n_groups};
    memcpy(layout.group, w.fake[0].model.group, sizeof layout.group);
    weft_request_params p = ask(false, 20, 50);
    weft_request *r = submit(&p);
    weft_step_record record[64];
    uint32_t n_tokens = 0, n_twice = 0;
    while (!weft_engine_idle(w.engine)) step(1);
    uint32_t n = weft_engine_get_steps(w.engine, record, 64);
    for (uint32_t i = 0; i < n && record[i].n_running == 1; i++) {
      n_tokens += record[i].n_prefill_rows + record[i].n_decode_rows;
      assert_int_equal(record[i].n_pages_pinned, weft_kv_pages_held(&layout, n_tokens, overlap));
      n_twice += overlap == 1 && n_tokens % 8 == 7;
    }
    assert_int_equal(n_tokens, 20 + 48);
    assert_int_equal(n_twice, overlap * 6);
    release_all(&r, 1);
    (void)close_world(NULL);
  }
}

/* All pages are held from outside: the request that decodes has no rows. Nothing was set aside for a waiter, since there
 * is none, so the turn makes no second plan. */
static void no_second_plan_without_a_waiter(void **state) {
  (void)state;
  w.config.n_pages = 22;
  open_world();
  weft_pager *pager = weft_engine_pager(w.engine);
  weft_request_params p = ask(false, 4, 60);
  weft_request *r = submit(&p);
  step(3);
  const weft_admit outside = {.model = 1, .domain = {.low = 9}, .tokens = w.prompt, .n_tokens = 1, .no_cache = true};
  weft_seq seq, leader;
  uint32_t n_cached, n_rows = 1;
  assert_int_equal(weft_pager_admit(pager, &outside, &seq, &n_cached, &leader), WEFT_OK);
  while (weft_pager_reserve(pager, seq, n_rows, n_rows) == WEFT_OK) n_rows += 1;
  for (uint32_t n = 0; weft_engine_step(w.engine, ++w.now) == WEFT_OK; n++) assert_true(n < 40);
  assert_int_equal(stats().n_running, 1);
  uint64_t n_plans = w.engine->n_plans;
  assert_int_equal(weft_engine_step(w.engine, ++w.now), WEFT_AGAIN);
  assert_int_equal(w.engine->n_plans, n_plans + 1);
  weft_pager_release(pager, seq);
  run_out();
  check_equal_solo(r, &p);
}

/* The pager keeps what is far from the start of its sequence for longer: it costs more keys. */
static void tokens_cost_their_keys(void **state) {
  (void)state;
  open_world();
  for (uint32_t i = 0; i < 2; i++) {
    assert_int_equal(weft_engine_pager(w.engine)->model[i].cost_doubles, WEFT_COST_KEYS_PER_ROW);
  }
}

/* Between turns the check names what a turn left over. */
static void what_a_turn_leaves_over_is_named(void **state) {
  (void)state;
  open_world();
  weft_engine *e = w.engine;
  assert_null(weft_engine_check(e));
  e->claims.none_set_aside = true;
  assert_non_null(weft_engine_check(e));
  assert_non_null(strstr(weft_engine_check(e), "nothing is set aside"));
  e->claims.none_set_aside = false;
  e->n_called = WEFT_CALLS_MAX;
  assert_null(weft_engine_check(e));
  e->n_called += 1;
  assert_non_null(weft_engine_check(e));
  assert_non_null(strstr(weft_engine_check(e), "called out of their turn"));
  e->n_called = 0;
}

/* A debt of slots is paid on the lane of the slot: there even the first in rank gives way, if its tenant runs others. */
static void the_first_in_rank_gives_way_for_a_slot(void **state) {
  (void)state;
  w.config.n_tenants = 2;
  w.fake[1].n_slots = 1;
  w.fake[0].n_slots = 4;
  open_world();
  weft_request_params p = ask(false, 4, 60), q = ask(false, 4, 8);
  p.model = q.model = 1;
  q.tenant = 1;
  q.domain.low = 2;
  weft_request *first = submit(&p), *others[3], *owed;
  step(3);
  p.model = 0;
  submit_all(&p, others, 3);
  step(12);
  assert_int_equal(stats().n_running, 4);
  owed = submit(&q);
  run_out();
  weft_event end = finish_of(owed, NULL, NULL);
  assert_int_equal(end.usage.n_preemptions, 0);
  weft_engine_release(w.engine, owed);
  end = finish_of(first, NULL, NULL);
  assert_int_equal(end.finish, WEFT_FINISH_LENGTH);
  assert_int_equal(end.usage.n_preemptions, 1);
  weft_engine_release(w.engine, first);
  all_end(others, 3, WEFT_FINISH_LENGTH);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(tokens_cost_their_keys),
                                     TEST(the_edge_of_the_pool),
                                     TEST(preemption_loses_nothing),
                                     TEST(the_higher_keeps_its_memory),
                                     TEST(a_large_request_is_not_overtaken),
                                     TEST(tenants_take_turns),
                                     TEST(a_follower_waits_for_its_prefix),
                                     TEST(domains_do_not_share),
                                     TEST(a_preempted_canvas_resumes_at_its_step),
                                     TEST(what_was_evicted_comes_back),
                                     TEST(what_is_predicted_has_room),
                                     TEST(what_is_predicted_of_states_has_room),
                                     TEST(a_state_is_held_twice_while_a_row_reaches_a_border),
                                     TEST(no_second_plan_without_a_waiter),
                                     TEST(what_a_turn_leaves_over_is_named),
                                     TEST(the_first_in_rank_gives_way_for_a_slot)};
  return cmocka_run_group_tests(tests, expect_broken_runners, NULL);
}
