/* SPDX-License-Identifier: MIT */
/* Runs of a token and its drafts: whatever a drafter guesses, the answer is that of the request alone; what was guessed
 * right saves steps; rows behind a wrong guess are void, and the pager has their blocks back. */
#include "tests/support/engine_world.h"

/* Knows the answer; from its n_right-th guess of a run on it is wrong. */
typedef struct oracle {
  solo_answer alone;
  uint32_t n_prompt, n_most, n_right;
  uint32_t n_calls, n_guesses;
} oracle;

static oracle knows;

static uint32_t guess(void *self, const weft_draft_text *text, uint32_t n_max, int32_t *out) {
  oracle *o = self;
  uint32_t n = o->n_most < n_max ? o->n_most : n_max, at = text->n_tokens - o->n_prompt;
  assert_int_equal(text->model, 0);
  assert_true(n_max > 0 && n_max <= WEFT_DRAFTS_MAX);
  if (at > o->alone.n) fail_msg("%u tokens of an answer of %u", at, o->alone.n);
  assert_memory_equal(text->tokens + o->n_prompt, o->alone.tokens, at * sizeof *text->tokens);
  for (uint32_t i = 0; i < n; i++) {
    int32_t right = at + i < o->alone.n ? o->alone.tokens[at + i] : 0;
    out[i] = i < o->n_right ? right : (right + 1) % VOCAB;
  }
  o->n_calls += 1;
  o->n_guesses += n;
  return n;
}

static const weft_drafter drafter = {.guess = guess, .self = &knows};

/* A world whose drafter guesses up to n_most tokens, of which the first n_right are right, for an answer to p. */
static void open_drafting(const weft_request_params *p, uint32_t n_most, uint32_t n_right) {
  free(knows.alone.tokens);
  knows = (oracle){
      .alone = solo_run(&w.fake[0].model, p, CONTEXT), .n_prompt = p->n_tokens, .n_most = n_most, .n_right = n_right};
  w.config.drafter = &drafter;
  w.config.drafts_always = true;
  w.fake[0].draft_rows_max = 20;
  open_world();
}

static uint32_t run_counting(void) {
  uint64_t before = stats().n_steps;
  run_out();
  return (uint32_t)(stats().n_steps - before);
}

/* An answer of 21 tokens: the prompt's step draws one; k drafts, of which j are right, then give j + 1 a step. */
static void right_guesses_save_steps(void **state) {
  (void)state;
  for (uint32_t overlap = 0; overlap < 2; overlap++) {
    for (uint32_t k = 0; k <= 4; k++) {
      for (uint32_t j = 0; j <= k; j++) {
        plan_world();
        w.config.overlap = overlap == 1;
        weft_request_params p = ask(false, 10, 21);
        open_drafting(&p, k, j);
        weft_request *r = submit(&p);
        uint32_t n_steps = run_counting();
        assert_int_equal(n_steps, 1 + (20 + j) / (j + 1));
        check_equal_solo(r, &p);
        uint64_t n_rows = 10 + 20 + stats().n_void_rows; /* each token but the last has a row that is valid */
        assert_int_equal(stats().n_rows, n_rows);
        assert_true(j == k || stats().n_void_rows > 0);
        if (j == k) assert_int_equal(stats().n_void_rows, 0);
        assert_int_equal(stats().n_decode_rows + 10, n_rows);
        (void)close_world(NULL);
      }
    }
  }
}

/* Void rows took blocks of their own, which are given back when the step is over. */
static void blocks_of_void_rows_come_back(void **state) {
  (void)state;
  weft_request_params p = ask(false, 8, 40);
  open_drafting(&p, 20, 0);
  weft_request *r = submit(&p);
  step(1);
  for (uint32_t n = 9; n < 40; n++) { /* n tokens are known, and n - 1 of them have keys */
    uint32_t n_blocks = (n - 1 + 7) / 8 + (n - 1 + 3) / 4, oldest = n > 9 ? (n - 9) / 4 : 0;
    assert_int_equal(weft_pager_get_stats(weft_engine_pager(w.engine)).n_pinned, n_blocks - oldest);
    step(1);
  }
  assert_true(knows.n_guesses > 500);
  assert_int_equal(stats().n_void_rows, knows.n_guesses);
  run_out();
  check_equal_solo(r, &p);
}

/* A run is as long as the pages that there are. */
static void a_run_is_cut_to_the_pages_there_are(void **state) {
  (void)state;
  w.config.n_pages = 12;
  w.config.no_prefix_cache = true;
  w.config.seq_tokens_max = 48;
  weft_request_params p = ask(false, 8, 30);
  open_drafting(&p, 20, 20);
  weft_request *r = submit(&p);
  run_out();
  assert_true(stats().n_void_rows == 0 && stats().n_preemptions == 0);
  check_equal_solo(r, &p);
}

/* Stop tokens and rules end an answer in the middle of a run, and so does a length: no draft goes beyond it. */
static void an_answer_ends_within_a_run(void **state) {
  (void)state;
  for (uint32_t max_tokens = 1; max_tokens <= 12; max_tokens++) {
    for (uint32_t stop = 0; stop < 12; stop += 3) {
      plan_world();
      weft_request_params p = ask(false, 10, 12);
      solo_answer whole = solo_run(&w.fake[0].model, &p, CONTEXT);
      int32_t stop_token = whole.tokens[stop];
      free(whole.tokens);
      p.max_tokens = max_tokens;
      p.stop_tokens = &stop_token;
      p.n_stop_tokens = 1;
      open_drafting(&p, 5, 5);
      weft_request *r = submit(&p);
      run_out();
      check_equal_solo(r, &p);
      (void)close_world(NULL);
    }
  }
}

/* One bad row among those that were taken ends the answer where it ends alone. */
static void a_bad_row_ends_a_run(void **state) {
  uint32_t n_bad = 0;
  (void)state;
  for (uint32_t salt = 0; salt < 40; salt++) {
    plan_world();
    w.fake[0].model.salt = salt;
    w.fake[0].model.bad_one_in = 15;
    weft_request_params p = ask(false, 10, 20);
    open_drafting(&p, 4, salt % 5);
    n_bad += knows.alone.finish == WEFT_FINISH_ERROR && knows.alone.n > 0;
    weft_request *r = submit(&p);
    run_out();
    check_equal_solo(r, &p);
    (void)close_world(NULL);
  }
  assert_true(n_bad > 10);
}

/* Void rows of a request that is cancelled, or preempted, while its run is in flight. */
static void a_request_leaves_with_a_run_in_flight(void **state) {
  (void)state;
  w.config.overlap = true;
  w.fake[0].lazy = true;
  weft_request_params p = ask(false, 10, 30);
  open_drafting(&p, 6, 3);
  weft_request *r = submit(&p);
  step(3);
  uint64_t n_void = stats().n_void_rows;
  weft_engine_cancel(w.engine, r);
  run_out();
  assert_true(stats().n_void_rows > n_void);
  assert_int_equal(end_and_release(r), WEFT_FINISH_CANCELLED);
}

/* A runner that makes drafts of its own, from the keys of its pool: right ones are tokens of the answer, wrong ones
 * cost rows. Where its device is lost while it drafts the request ends with that error. */
static void a_runner_drafts(void **state) {
  (void)state;
  for (uint32_t right = 0; right <= 100; right += 50) {
    plan_world();
    weft_request_params p = ask(false, 10, 21);
    weft_request_stats s;
    w.config.drafts_always = true;
    w.fake[0].draft_rows_max = 4;
    w.fake[0].drafts = true;
    w.fake[0].drafts_right = right;
    open_world();
    weft_request *r = submit(&p);
    run_out();
    weft_engine_get_request_stats(w.engine, 0, &s);
    assert_true(s.drafts.n_drafted > 10);
    if (right == 0) assert_int_equal(s.drafts.n_accepted, 0);
    if (right == 100) assert_in_range(s.drafts.n_accepted, 16, s.drafts.n_drafted);
    check_equal_solo(r, &p);
    (void)close_world(NULL);
  }
  plan_world();
  weft_request_params p = ask(false, 10, 21);
  w.config.drafts_always = true;
  w.fake[0].draft_rows_max = 4;
  w.fake[0].drafts = true;
  w.fake[0].fail_draft_at = 2;
  open_world();
  weft_request *r = submit(&p);
  run_out();
  assert_int_equal(end_and_release(r), WEFT_FINISH_ERROR);
}

/* Where runs would give another token, a shadow counts it, and the answer is right all the same. */
static void shadows_count_differences(void **state) {
  (void)state;
  weft_request_params p = ask(false, 10, 21);
  weft_request_stats s;
  p.asked.draft.shadow = true;
  w.fake[0].peeks_lie = true;
  open_drafting(&p, 4, 4);
  weft_request *r = submit(&p);
  run_out();
  weft_engine_get_request_stats(w.engine, 0, &s);
  assert_int_equal(s.drafts.n_differences, s.drafts.n_runs);
  check_equal_solo(r, &p);
}

/* A shadow's runs are taken back whole: each token of the answer comes from a row of its own, and is what was foretold.
 * The pager has the blocks of a world without drafts. */
static void shadows_change_nothing(void **state) {
  (void)state;
  for (uint32_t overlap = 0; overlap < 2; overlap++) {
    for (uint32_t right = 0; right <= 4; right += 2) {
      plan_world();
      w.config.overlap = overlap == 1;
      weft_request_params p = ask(false, 10, 21);
      p.asked.draft.shadow = true;
      open_drafting(&p, 4, right);
      weft_request *r = submit(&p);
      weft_request_stats s;
      run_out();
      weft_engine_get_request_stats(w.engine, 0, &s);
      assert_true(s.drafts.n_runs >= 4 && s.drafts.n_accepted >= 3 * right);
      assert_int_equal(s.drafts.n_differences, 0);
      assert_in_range(s.drafts.n_shadowed, s.drafts.n_runs, 20);
      assert_int_equal(stats().n_rows - stats().n_void_rows, 10 + 20);
      check_equal_solo(r, &p);
      (void)close_world(NULL);
    }
  }
}

/* A drafter of another vocabulary: what this one does not have ends the run. */
static uint32_t guess_wild(void *self, const weft_draft_text *text, uint32_t n_max, int32_t *out) {
  uint32_t n = guess(self, text, n_max, out);
  if (n > 1) out[1] = text->n_tokens % 4 < 2 ? VOCAB : -1;
  return n;
}

static void drafts_are_of_the_vocabulary(void **state) {
  static const weft_drafter wild = {.guess = guess_wild, .self = &knows};
  (void)state;
  weft_request_params p = ask(false, 10, 21);
  open_drafting(&p, 4, 4);
  (void)close_world(NULL);
  w.config.drafter = &wild;
  open_world();
  weft_request *r = submit(&p);
  assert_int_equal(run_counting(), 1 + 20 / 2); /* two tokens a step */
  assert_int_equal(stats().n_void_rows, 0);
  check_equal_solo(r, &p);
}

/* A drafter that needs time: each text is asked about three times before there are drafts, and about nothing else of
 * that request meanwhile. */
typedef struct late_oracle {
  oracle *of;
  uint32_t n_asked, n_tokens, n_ended;
} late_oracle;

static late_oracle late;

static uint32_t guess_late(void *self, const weft_draft_text *text, uint32_t n_max, int32_t *out) {
  late_oracle *l = self;
  assert_int_equal(l->n_ended, 0);
  if (l->n_tokens != text->n_tokens) l->n_asked = 0;
  l->n_tokens = text->n_tokens;
  return l->n_asked++ < 3 ? WEFT_DRAFTS_COMING : guess(l->of, text, n_max, out);
}

static void end_late(void *self, uint32_t model, uint32_t slot) {
  late_oracle *l = self;
  assert_int_equal(model, 0);
  assert_true(slot < w.config.running_max);
  l->n_ended += 1;
}

static const weft_drafter late_drafter = {.guess = guess_late, .end = end_late, .self = &late};

/* While drafts are coming the request has no rows, so there is nothing to do, and the steps are those of a drafter that
 * is there at once. */
static void drafts_may_come_late(void **state) {
  (void)state;
  for (uint32_t overlap = 0; overlap < 2; overlap++) {
    plan_world();
    w.config.overlap = overlap == 1;
    weft_request_params p = ask(false, 10, 21);
    open_drafting(&p, 4, 4);
    (void)close_world(NULL);
    late = (late_oracle){.of = &knows};
    w.config.drafter = &late_drafter;
    open_world();
    weft_request *r = submit(&p);
    uint64_t before = stats().n_steps;
    for (uint32_t turn = 0; !weft_engine_idle(w.engine); turn++) {
      assert_true(turn < 200);
      (void)weft_engine_step(w.engine, ++w.now);
    }
    assert_int_equal(stats().n_steps - before, 1 + 20 / 5);
    assert_int_equal(late.n_ended, 1);
    check_equal_solo(r, &p);
    (void)close_world(NULL);
  }
}

/* A request that leaves while its drafts are coming. */
static void a_request_leaves_before_its_drafts_come(void **state) {
  (void)state;
  plan_world();
  weft_request_params p = ask(false, 10, 21);
  open_drafting(&p, 4, 4);
  (void)close_world(NULL);
  late = (late_oracle){.of = &knows};
  w.config.drafter = &late_drafter;
  open_world();
  weft_request *r = submit(&p);
  (void)weft_engine_step(w.engine, ++w.now);
  (void)weft_engine_step(w.engine, ++w.now);
  assert_int_equal(late.n_asked, 1);
  weft_engine_cancel(w.engine, r);
  run_out();
  assert_int_equal(late.n_ended, 1);
  weft_engine_release(w.engine, r);
}

/* Requests that are drafts of another one: their tenant pays for their rows, and has no more requests or tokens. */
static void drafts_are_no_requests_of_their_tenant(void **state) {
  static const weft_tenant_config tenant[3] = {{.tokens_per_minute = 31}};
  (void)state;
  plan_world();
  w.config.tenant = tenant;
  open_world();
  weft_request_params p = ask(false, 10, 21), draft = ask(false, 25, 8);
  draft.is_draft = true;
  for (uint32_t i = 0; i < 3; i++) {
    weft_request *r = submit(&draft);
    run_out();
    check_equal_solo(r, &draft);
  }
  weft_tenant_stats own;
  weft_engine_get_tenant_stats(w.engine, 0, &own);
  assert_int_equal(own.n_submitted + own.n_finished + own.n_prompt_tokens + own.n_answer_tokens, 0);
  assert_true(own.charged_us > 0 || own.n_rows > 0);
  weft_request *r = submit(&p); /* all tokens of the minute */
  run_out();
  check_equal_solo(r, &p);
  weft_request_stats requests;
  weft_engine_get_request_stats(w.engine, 0, &requests);
  assert_int_equal(requests.n_answer_tokens, 21);
}

/* Requests that ask for logprobs or penalties have drafts too; canvases are not asked for. */
static void canvases_have_no_drafts(void **state) {
  (void)state;
  weft_request_params p[3] = {ask(false, 10, 9), ask(false, 10, 9), ask(true, 10, 16)};
  p[0].asked.sampling.logprobs = true;
  p[1].asked.sampling.repetition_penalty = 1.5f;
  open_drafting(&p[0], 4, 4);
  weft_request *r[3];
  for (uint32_t i = 0; i < 3; i++) r[i] = submit(&p[i]);
  run_out();
  assert_true(knows.n_calls >= 4); /* 9 tokens, the first by the prompt, the others at most five a step */
  for (uint32_t i = 0; i < 3; i++) check_equal_solo(r[i], &p[i]);
}

static int free_oracle(void **state) {
  (void)state;
  free(knows.alone.tokens);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(right_guesses_save_steps),
                                     TEST(blocks_of_void_rows_come_back),
                                     TEST(a_run_is_cut_to_the_pages_there_are),
                                     TEST(an_answer_ends_within_a_run),
                                     TEST(a_bad_row_ends_a_run),
                                     TEST(a_request_leaves_with_a_run_in_flight),
                                     TEST(a_runner_drafts),
                                     TEST(shadows_change_nothing),
                                     TEST(shadows_count_differences),
                                     TEST(drafts_are_of_the_vocabulary),
                                     TEST(drafts_may_come_late),
                                     TEST(a_request_leaves_before_its_drafts_come),
                                     TEST(drafts_are_no_requests_of_their_tenant),
                                     TEST(canvases_have_no_drafts)};
  return cmocka_run_group_tests(tests, NULL, free_oracle);
}
