/* SPDX-License-Identifier: MIT */
/* Logprobs of prompts: whatever the chunks, the cache, preemption and siblings do, every row of a prompt is scored once
 * and by what it sees; who does not ask pays nothing. */
#include "tests/support/engine_world.h"

/* Counts what batches ask for. */
typedef struct watch {
  uint32_t n_scored, n_scored_most, n_prefill_rows;
} watch;

static watch seen;

static uint64_t count_batch(void *self, const weft_batch *batch) {
  watch *to = self;
  uint32_t n_scored = 0;
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    const weft_segment *s = &batch->segment[i];
    n_scored += weft_segment_n_scored(s);
    if (s->token_source == WEFT_TOKENS_HOST) to->n_prefill_rows += s->n_rows;
  }
  to->n_scored += n_scored;
  if (n_scored > to->n_scored_most) to->n_scored_most = n_scored;
  return 1000;
}

static void plan_watched(uint32_t scored_rows_max) {
  plan_world();
  memset(&seen, 0, sizeof seen);
  for (uint32_t i = 0; i < 2; i++) {
    w.fake[i].scored_rows_max = scored_rows_max;
    w.fake[i].law = count_batch;
    w.fake[i].law_self = &seen;
  }
}

static weft_request_params ask_scores(uint32_t n_tokens, uint32_t max_tokens, uint32_t n_top) {
  weft_request_params p = ask(false, n_tokens, max_tokens);
  p.asked.prompt_logprobs = true;
  p.asked.n_prompt_top = n_top;
  return p;
}

static void check_scores(const weft_request *r, const weft_request_params *p) {
  weft_prompt_logprobs got;
  const weft_fake_model *model = &w.fake[p->model].model;
  solo_state s = {.model = model};
  weft_fake_sums with_row;
  assert_int_equal(weft_engine_prompt_logprobs(r, &got), WEFT_OK);
  assert_int_equal(got.n, p->n_tokens - 1);
  assert_int_equal(got.n_top, p->asked.n_prompt_top);
  for (uint32_t g = 0; g < model->n_groups; g++) s.cell[g] = calloc(CONTEXT, sizeof **s.cell);
  for (uint32_t i = 0; i + 1 < p->n_tokens; i++) {
    solo_row(&s, p->tokens[i], &with_row);
    weft_scored wanted = weft_fake_score(model, &with_row, p->tokens[i + 1]);
    if (got.own[i].logprob != wanted.logprob) {
      fail_msg("row %u has %g, not %g", i, (double)got.own[i].logprob, (double)wanted.logprob);
    }
    assert_int_equal(got.own[i].rank, wanted.rank);
    assert_memory_equal(got.top + (size_t)i * got.n_top, wanted.top, got.n_top * sizeof *got.top);
  }
  for (uint32_t g = 0; g < model->n_groups; g++) free(s.cell[g]);
}

static void every_chunk_is_scored(void **state) {
  static const uint32_t scored_rows[] = {1, 2, 7, 12, 64}, chunks[] = {0, 1, 5};
  (void)state;
  for (uint32_t i = 0; i < 5 * 3 * 2; i++) {
    plan_watched(scored_rows[i % 5]);
    w.config.prefill_chunk = chunks[i / 5 % 3];
    w.config.overlap = i / 15 == 1;
    open_world();
    weft_request_params p[3] = {ask_scores(61, 4, 3), ask(false, 30, 6), ask_scores(2, 1, 0)};
    weft_request *r[3];
    p[1].domain.low = 5;
    p[2].domain.low = 6;
    for (uint32_t k = 0; k < 3; k++) r[k] = submit(&p[k]);
    run_out();
    assert_int_equal(seen.n_scored, 60 + 1);
    assert_true(seen.n_scored_most <= scored_rows[i % 5]);
    check_scores(r[0], &p[0]);
    check_scores(r[2], &p[2]);
    for (uint32_t k = 0; k < 3; k++) check_equal_solo(r[k], &p[k]);
    (void)close_world(NULL);
  }
}

/* Logprobs are there before the first token is, and not before they are complete. */
static void scores_come_before_tokens(void **state) {
  (void)state;
  plan_watched(4);
  w.fake[0].lazy = true;
  w.config.overlap = true;
  open_world();
  weft_request_params p = ask_scores(20, 3, 1);
  weft_request *r = submit(&p);
  weft_prompt_logprobs got;
  weft_event event;
  bool scored = false;
  assert_int_equal(weft_engine_prompt_logprobs(r, &got), WEFT_AGAIN);
  for (;;) {
    step(1);
    scored = scored || weft_engine_prompt_logprobs(r, &got) == WEFT_OK;
    if (weft_engine_poll(w.engine, r, &event) == WEFT_OK) break;
  }
  assert_int_equal(event.kind, WEFT_EVENT_TOKENS);
  assert_true(scored);
  run_out();
  check_scores(r, &p);
  weft_engine_release(w.engine, r);
  r = submit(&p);
  step(2);
  weft_engine_cancel(w.engine, r);
  run_out();
  assert_int_equal(weft_engine_prompt_logprobs(r, &got), WEFT_E_NOT_FOUND);
  assert_int_equal(end_and_release(r), WEFT_FINISH_CANCELLED);
}

/* Cached pages have no logits: they are not used, and what is computed instead is there for others. */
static void a_cached_prefix_is_computed_again(void **state) {
  (void)state;
  plan_watched(12);
  open_world();
  weft_request_params plain = ask(false, 50, 2), p = ask_scores(50, 2, 2);
  weft_request *first = submit(&plain);
  run_out();
  weft_request *r = submit(&p);
  run_out();
  weft_event end = finish_of(r, NULL, NULL);
  assert_int_equal(end.usage.n_cached, 0);
  assert_int_equal(end.usage.n_computed_rows, 50);
  check_scores(r, &p);
  weft_engine_release(w.engine, r);
  assert_int_equal(end_and_release(first), WEFT_FINISH_LENGTH);
  weft_engine_reset_cache(w.engine);
  step(1);
  r = submit(&p);
  run_out();
  weft_request *after = submit(&plain);
  run_out();
  assert_int_equal(finish_of(after, NULL, NULL).usage.n_cached, 48);
  weft_engine_release(w.engine, after);
  weft_engine_release(w.engine, r);
}

/* Two at once with one prompt: neither waits for the other. */
static void equals_do_not_follow(void **state) {
  (void)state;
  plan_watched(12);
  open_world();
  weft_request_params p = ask_scores(40, 5, 1), plain = ask(false, 40, 5);
  weft_request *r[3] = {submit(&p), submit(&p), submit(&plain)};
  run_out();
  assert_int_equal(seen.n_scored, 2 * 39);
  for (uint32_t i = 0; i < 2; i++) check_scores(r[i], &p);
  for (uint32_t i = 0; i < 3; i++) check_equal_solo(r[i], &p);
}

/* A request that is preempted amid its prompt keeps what was scored: each row is scored once, whatever is computed
 * again. */
static void preemption_keeps_scores(void **state) {
  (void)state;
  uint32_t n_amid = 0, n_again = 0; /* runs in which it was preempted amid its prompt; in which rows came again */
  for (uint32_t i = 0; i < 24; i++) {
    plan_watched(1);
    w.config.n_pages = 38 + i / 4;
    w.config.n_tenants = 1;
    w.config.overlap = i % 2 == 1;
    w.config.no_prefix_cache = i % 4 >= 2;
    open_world();
    weft_request_params p[4] = {ask_scores(60, 6, 2)};
    weft_request *r[4];
    for (uint32_t k = 0; k < 4; k++) {
      if (k > 0) p[k] = ask(false, 9, 80);
      p[k].domain.low = k;
      p[k].asked.priority = k > 0 ? 3 : 0; /* the others rank above it, where there is one tenant, and grow */
      r[k] = submit(&p[k]);
    }
    bool amid = false;
    for (weft_prompt_logprobs none; !weft_engine_idle(w.engine); step(1)) {
      amid = amid || (stats().n_preemptions > 0 && weft_engine_prompt_logprobs(r[0], &none) == WEFT_AGAIN);
    }
    run_out();
    assert_int_equal(seen.n_scored, 59);
    check_scores(r[0], &p[0]);
    n_amid += amid;
    n_again += amid && stats().n_prefill_rows > 60 + 3 * 9; /* nobody else is preempted */
    for (uint32_t k = 0; k < 4; k++) check_equal_solo(r[k], &p[k]);
    (void)close_world(NULL);
  }
  assert_true(n_amid > 0);
  assert_true(n_again > 0);
}

/* The prompt of siblings is computed and scored once, by the one that asks. */
static void siblings_fork_a_scored_prompt(void **state) {
  (void)state;
  plan_watched(12);
  open_world();
  weft_request_params p[3];
  weft_request *r[3] = {NULL};
  weft_error error = {{0}};
  for (uint32_t i = 0; i < 3; i++) {
    p[i] = i == 0 ? ask_scores(45, 6, 2) : ask(false, 45, 6);
    p[i].asked.sampling.choice = i;
    p[i].joins = i > 0;
  }
  assert_int_equal(weft_engine_submit_all(w.engine, p, 3, ++w.now, r, &error), WEFT_OK);
  run_out();
  assert_int_equal(seen.n_scored, 44);
  assert_int_equal(stats().n_prefill_rows, 45 + 2); /* each computes the last row of the prompt itself */
  check_scores(r[0], &p[0]);
  for (uint32_t i = 0; i < 3; i++) check_equal_solo(r[i], &p[i]);
}

/* Without an answer a request ends with its prompt, however long that is. */
static void a_prompt_alone(void **state) {
  static const uint32_t lengths[] = {1, 2, 13, CONTEXT};
  (void)state;
  for (uint32_t i = 0; i < 8; i++) {
    plan_watched(12);
    w.config.overlap = i >= 4;
    open_world();
    weft_request_params p = ask_scores(lengths[i % 4], 0, 2), silent = ask(false, lengths[i % 4], 0);
    weft_request *r = submit(&p), *other = submit(&silent);
    run_out();
    check_scores(r, &p);
    uint32_t n = 1;
    weft_event end = finish_of(r, NULL, &n);
    assert_int_equal(end.finish, WEFT_FINISH_LENGTH);
    assert_int_equal(n, 0);
    assert_int_equal(end.usage.n_answer, 0);
    assert_int_equal(end.usage.n_computed_rows, lengths[i % 4]);
    weft_engine_release(w.engine, r);
    assert_int_equal(end_and_release(other), WEFT_FINISH_LENGTH);
    (void)close_world(NULL);
  }
}

static void who_does_not_ask_pays_nothing(void **state) {
  (void)state;
  plan_watched(12);
  open_world();
  weft_request_params p = ask(false, 60, 9), with = ask_scores(60, 9, 4);
  weft_request *r = submit(&p);
  run_out();
  check_equal_solo(r, &p);
  assert_int_equal(seen.n_scored, 0);
  uint64_t plain = weft_engine_request_bytes(&p, 9, 0), all = weft_engine_request_bytes(&with, 9, 0);
  assert_in_range(all - plain, 59 * (1 + 4) * 8, 59 * (1 + 4) * 8 + 32);
}

static void a_bad_logit_ends_it(void **state) {
  (void)state;
  plan_watched(12);
  w.fake[0].model.bad_one_in = 30;
  open_world();
  weft_request_params p = ask_scores(90, 0, 0);
  weft_request *r = submit(&p);
  run_out();
  weft_event end = finish_of(r, NULL, NULL);
  assert_int_equal(end.finish, WEFT_FINISH_ERROR);
  assert_non_null(strstr(end.error, "not finite"));
  weft_prompt_logprobs got;
  assert_int_equal(weft_engine_prompt_logprobs(r, &got), WEFT_E_NOT_FOUND);
  weft_engine_release(w.engine, r);
}

static void what_is_refused(void **state) {
  (void)state;
  plan_watched(12);
  w.fake[1].scored_rows_max = 0;
  open_world();
  weft_request_params p = ask_scores(9, 5, 21);
  refused(&p, WEFT_E_INVALID, "prompt_logprobs is 21; it must be at most 20");
  p = ask_scores(9, 5, 1);
  p.canvas = true;
  refused(&p, WEFT_E_INVALID, "ask both for mode \"autoregressive\"");
  p = ask(true, 9, 0);
  refused(&p, WEFT_E_INVALID, "max_tokens is 0");
  p = ask_scores(9, 5, 1);
  p.model = 1;
  refused(&p, WEFT_E_UNSUPPORTED, "tokens gives no logprobs of a prompt");
  p = ask_scores(CONTEXT, 1, 1);
  refused(&p, WEFT_E_TOO_LARGE, "maximum context length");
  enum { LONG = WEFT_PROMPT_LOGPROBS_MAX / 21 + 1 };
  int32_t *tokens = calloc(LONG, sizeof *tokens);
  p = ask_scores(LONG, 1, 20);
  p.tokens = tokens;
  refused(&p, WEFT_E_INVALID, "a request may have 1048576");
  free(tokens);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(every_chunk_is_scored), TEST(scores_come_before_tokens),     TEST(a_cached_prefix_is_computed_again),
      TEST(equals_do_not_follow),  TEST(preemption_keeps_scores),       TEST(siblings_fork_a_scored_prompt),
      TEST(a_prompt_alone),        TEST(who_does_not_ask_pays_nothing), TEST(a_bad_logit_ends_it),
      TEST(what_is_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
