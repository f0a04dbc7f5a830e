/* SPDX-License-Identifier: MIT */
/* When requests have drafts: decisions by cost and by what was right before, and over virtual time that drafts never
 * lose more than the bound and gain where they can. The law of the steps' times is what bench/results has of one
 * H200 with 26B: 585 to 5141 tokens a second at 1 to 32 rows. */
#include "tests/support/engine_world.h"

#include "base/random.h"
#include "scheduler/drafting.h"

/* ---- decisions -------------------------------------------------------------------------------- */

static double price_of(const void *self, uint32_t n) {
  return *(const double *)self * n;
}

/* A token is worth 1000 us. */
static uint32_t depth_of(const weft_drafting *d, const weft_acceptance *tenant, double row_us) {
  double n_expected = 0;
  return weft_drafting_depth(d, tenant, 8, 1000.0, 0.0, price_of, &row_us, &n_expected);
}

static weft_drafting open_other(void) {
  const weft_draft draft = {.kind = WEFT_DRAFT_DEFAULT};
  weft_drafting d;
  weft_drafting_open(&d, &draft, NULL, NULL, 0, 0);
  return d;
}

/* Nothing is known: a cheap draft is tried, a dear one is not. After a few losses in a row even free drafts are
 * none. */
static void losses_end_drafts_at_once(void **state) {
  (void)state;
  weft_drafting d = open_other();
  weft_acceptance tenant = {0};
  assert_true(depth_of(&d, &tenant, 100) > 0);
  assert_int_equal(depth_of(&d, &tenant, 900), 0);
  for (uint32_t i = 0; i < WEFT_DRAFTS_LOST; i++) {
    assert_true(depth_of(&d, &tenant, 0) > 0);
    weft_drafting_judge(&d, &tenant, 4, 0, 10 + i);
  }
  assert_int_equal(depth_of(&d, &tenant, 0), 0);
}

/* The better drafts were, the more there are; and none as soon as rows cost more than they give. */
static void depth_follows_what_was_right(void **state) {
  (void)state;
  uint32_t before = 0;
  for (uint32_t right = 0; right <= 8; right++) {
    weft_drafting d = open_other();
    weft_acceptance tenant = {0};
    for (uint32_t i = 0; i < 20; i++) weft_drafting_judge(&d, &tenant, 8, i % 9 < right ? 8 : 1, i);
    uint32_t depth = depth_of(&d, &tenant, 400);
    assert_true(depth >= before);
    before = depth;
  }
  assert_int_equal(before, 8);
}

/* Between the two bounds a request goes on as it is. */
static void there_is_hysteresis(void **state) {
  (void)state;
  weft_drafting d = open_other();
  weft_acceptance tenant = {0};
  double price = 280, gain = 0.375 - price / 1000; /* of one draft: the rate is 0.5, less an eighth */
  assert_true(gain > WEFT_DRAFTS_GO_ON / 100.0 && gain < WEFT_DRAFTS_BEGIN / 100.0);
  d.runs = true;
  assert_true(depth_of(&d, &tenant, price) > 0);
  d.runs = false;
  assert_int_equal(depth_of(&d, &tenant, price), 0);
  assert_true(depth_of(&d, &tenant, 100) > 0);
}

static void a_drafter_is_tried_again_ever_more_rarely(void **state) {
  (void)state;
  weft_drafting d = open_other();
  weft_acceptance tenant = {0};
  uint32_t n_trials = 0, last = 0, between = 0;
  for (uint32_t i = 0; i < WEFT_DRAFTS_LOST; i++) weft_drafting_judge(&d, &tenant, 4, 0, i);
  for (uint32_t n = 4; n < 20000; n++) {
    if (!weft_drafting_tries(&d, &tenant, n)) continue;
    weft_drafting_began(&d, true, n);
    weft_drafting_judge(&d, &tenant, WEFT_DRAFTS_TRIAL, 0, n);
    assert_true(n_trials < 2 || n - last >= between);
    between = n - last;
    last = n;
    n_trials += 1;
  }
  assert_in_range(n_trials, 8, 12);
  weft_drafting_judge(&d, &tenant, WEFT_DRAFTS_TRIAL, WEFT_DRAFTS_TRIAL, 20000);
  assert_int_equal(d.pause, WEFT_DRAFTS_PAUSE);
  assert_int_equal(d.n_lost, 0);
}

/* What the requests of a tenant learned, its next one begins with. */
static void a_tenant_is_remembered(void **state) {
  (void)state;
  weft_acceptance good = {0}, bad = {0};
  for (uint32_t i = 0; i < 40; i++) {
    weft_drafting d = open_other(), e = open_other();
    weft_drafting_judge(&d, &good, 8, 8, i);
    weft_drafting_judge(&e, &bad, 8, 0, i);
  }
  weft_drafting d = open_other();
  weft_acceptance unknown = {0};
  assert_true(depth_of(&d, &good, 300) > 2);
  assert_int_equal(depth_of(&d, &bad, 100), 0);
  assert_true(weft_drafting_tries(&d, &unknown, 0));
  assert_false(weft_drafting_tries(&d, &bad, WEFT_DRAFTS_PAUSE - 1));
  assert_true(weft_drafting_tries(&d, &bad, WEFT_DRAFTS_PAUSE));
}

/* N-grams of a text that begins to repeat itself: guesses are compared without a run, and bring runs back. */
static void ngrams_come_back_by_themselves(void **state) {
  (void)state;
  const weft_draft draft = {.kind = WEFT_DRAFT_NGRAM, .n_max = 4, .ngram_least = 1, .ngram_most = 3};
  int32_t text[200];
  uint32_t entries[1024] = {0};
  weft_drafting d;
  weft_acceptance tenant = {0};
  assert_int_equal(weft_drafting_bytes(&draft, 200), sizeof entries);
  for (uint32_t i = 0; i < 200; i++) text[i] = i < 100 ? (int32_t)i : (int32_t)(i % 7) + 200;
  weft_drafting_open(&d, &draft, entries, text, 20, 200);
  for (uint32_t i = 0; i < WEFT_DRAFTS_LOST; i++) weft_drafting_judge(&d, &tenant, 4, 0, i);
  d.runs = false;
  for (uint32_t n = 21; n <= 200; n++) {
    weft_drafting_learn(&d, &tenant, text, n);
    assert_false(weft_drafting_tries(&d, &tenant, n));
    if (n < 107) assert_int_equal(depth_of(&d, &tenant, 100), 0);
  }
  assert_int_equal(d.n_lost, 0);
  assert_true(depth_of(&d, &tenant, 100) > 0);
  assert_int_equal(d.n_guessed, 4);
  assert_int_equal(d.guess[0], 200 % 7 + 200);
}

/* ---- over virtual time ------------------------------------------------------------------------ */

enum { SEQS_MAX = 16, BEFORE = 150, ANSWER = 500, LONG = 600 };

typedef struct load {
  uint32_t n, percent; /* sequences; how many of a hundred drafts are right */
  solo_answer alone[SEQS_MAX];
  weft_request_params params[SEQS_MAX];
  int32_t prompt[SEQS_MAX][8];
  uint64_t us;
} load;

static load l;

static uint64_t time_of_step(void *self, const weft_batch *batch) {
  static const struct {
    uint32_t rows, us;
  } at[] = {{1, 1710}, {2, 2174}, {4, 3135}, {8, 3998}, {16, 5006}, {32, 6224}, {64, 8200}, {512, 25000}};
  uint32_t i = 0, n = batch->n_rows;
  (void)self;
  if (n == 0) return 0;
  while (i + 2 < sizeof at / sizeof *at && at[i + 1].rows < n) i++;
  uint64_t us = at[i].us + (uint64_t)(at[i + 1].us - at[i].us) * (n - at[i].rows) / (at[i + 1].rows - at[i].rows);
  l.us += us;
  return us;
}

static uint32_t guess_some(void *self, const weft_draft_text *text, uint32_t n_max, int32_t *out) {
  uint32_t i = (uint32_t)text->tokens[0], at = text->n_tokens - l.params[i].n_tokens, n = 0;
  (void)self;
  for (; n < n_max && at + n < l.alone[i].n; n++) {
    bool right = weft_mix64(i * 100003 + at + n) % 100 < l.percent;
    out[n] = (l.alone[i].tokens[at + n] + (right ? 0 : 1)) % VOCAB;
  }
  return n;
}

static const weft_drafter some = {.guess = guess_some};

/* Microseconds of the device for each token after the first ones. */
static double us_per_token(bool drafts, bool overlap) {
  weft_request *r[SEQS_MAX];
  w.config.drafter = drafts ? &some : NULL;
  w.config.overlap = overlap;
  open_world();
  for (uint32_t i = 0; i < l.n; i++) r[i] = submit(&l.params[i]);
  l.us = 0;
  weft_request_stats s = {0};
  while (s.n_answer_tokens < (uint64_t)l.n * BEFORE) {
    step(1);
    weft_engine_get_request_stats(w.engine, 0, &s);
  }
  uint64_t us = l.us, n = s.n_answer_tokens;
  while (!weft_engine_idle(w.engine)) step(1);
  double got = (double)(l.us - us) / (double)(l.n * ANSWER - n);
  for (uint32_t i = 0; i < l.n; i++) {
    int32_t tokens[LONG];
    uint32_t n_tokens = 0;
    (void)finish_of(r[i], tokens, &n_tokens);
    assert_int_equal(n_tokens, l.alone[i].n);
    assert_memory_equal(tokens, l.alone[i].tokens, n_tokens * sizeof *tokens);
    weft_engine_release(w.engine, r[i]);
  }
  if (!drafts) assert_int_equal(stats().n_void_rows, 0);
  (void)close_world(NULL);
  return got;
}

static void plan_load(uint32_t n) {
  plan_world();
  w.fake[0].context_length = w.fake[1].context_length = LONG;
  w.fake[0].draft_rows_max = 256;
  w.fake[0].rows_max = 512;
  w.fake[0].n_slots = SEQS_MAX;
  w.fake[0].n_experts = 128;
  w.fake[0].n_experts_used = 8;
  w.fake[0].law = time_of_step;
  w.config.seq_tokens_max = LONG;
  w.config.rows_per_step = 512;
  w.config.running_max = SEQS_MAX;
  w.config.n_pages = 2000;
  l.n = n;
  for (uint32_t i = 0; i < n; i++) {
    l.params[i] = ask(false, 8, ANSWER);
    l.params[i].tokens = l.prompt[i];
    for (uint32_t k = 0; k < 8; k++) l.prompt[i][k] = k == 0 ? (int32_t)i : w.prompt[k];
    if (l.alone[i].tokens == NULL) l.alone[i] = solo_run(&w.fake[0].model, &l.params[i], LONG);
  }
}

/* At no rate of right drafts, with any number of sequences, are there fewer than 98 tokens where there were 100. */
static void drafts_never_lose(void **state) {
  static const uint32_t numbers[] = {1, 2, 4, 8, 16}, rates[] = {0, 20, 40, 60, 80, 95};
  (void)state;
  for (uint32_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    plan_load(numbers[i]);
    double plain = us_per_token(false, true);
    for (uint32_t k = 0; k < sizeof rates / sizeof *rates; k++) {
      plan_load(numbers[i]);
      l.percent = rates[k];
      double gain = plain / us_per_token(true, k % 2 == 0);
      print_message("%u sequences, %u of 100 right: %.2f times the tokens\n", l.n, l.percent, gain);
      assert_true(gain >= 0.98);
      if (l.percent == 95 && l.n <= 4) assert_true(gain > 1.5);
      if (l.percent == 80 && l.n == 1) assert_true(gain > 1.3);
    }
  }
}

/* The rows of drafts, right or wrong, are planned for the tenant that had them; without drafts none is counted. */
static void drafts_are_charged_to_whom_they_serve(void **state) {
  weft_tenant_stats own, other;
  weft_request_stats s;
  (void)state;
  plan_load(2);
  l.percent = 0;
  l.params[1].tenant = 1;
  l.params[1].asked.draft.kind = WEFT_DRAFT_OFF;
  w.config.drafter = &some;
  w.config.drafts_always = true;
  open_world();
  weft_request *r[2] = {submit(&l.params[0]), submit(&l.params[1])};
  while (!weft_engine_idle(w.engine)) step(1);
  weft_engine_get_tenant_stats(w.engine, 0, &own);
  weft_engine_get_tenant_stats(w.engine, 1, &other);
  weft_engine_get_request_stats(w.engine, 0, &s);
  assert_true(s.drafts.n_drafted > 10000 && s.drafts.n_accepted == 0);
  assert_int_equal(other.n_rows, 8 + ANSWER - 1);
  assert_int_equal(own.n_rows, 8 + ANSWER - 1 + s.drafts.n_drafted);
  assert_true(own.charged_us > 4 * other.charged_us);
  weft_event end = finish_of(r[0], NULL, NULL);
  assert_int_equal(end.usage.n_drafted, s.drafts.n_drafted);
  assert_int_equal(end.usage.n_accepted, 0);
  end = finish_of(r[1], NULL, NULL);
  assert_int_equal(end.usage.n_drafted, 0);
  release_all(r, 2);
}

/* Requests with n-grams of their own, in an engine that has no drafter. The answer of the fake model repeats
 * nothing, so runs end soon; what was told of drafts adds up. */
static void ngrams_of_a_text_that_does_not_repeat(void **state) {
  weft_request_stats s;
  (void)state;
  plan_load(1);
  weft_request_params p = l.params[0];
  p.asked.draft = (weft_draft){.kind = WEFT_DRAFT_NGRAM, .n_max = 4, .ngram_least = 1, .ngram_most = 3};
  open_world();
  weft_request *r = submit(&p);
  while (!weft_engine_idle(w.engine)) step(1);
  weft_engine_get_request_stats(w.engine, 0, &s);
  assert_true(s.drafts.n_runs > 0 && s.drafts.n_drafted <= 4 * s.drafts.n_runs && s.drafts.n_drafted < ANSWER / 5);
  uint64_t n = 0;
  for (uint32_t i = 0; i < WEFT_DRAFTS_MAX; i++) n += s.drafts.n_accepted_at[i];
  assert_int_equal(n, s.drafts.n_accepted);
  assert_true(s.drafts.verify_us > 0);
  weft_event end = finish_of(r, NULL, NULL);
  assert_int_equal(end.usage.n_drafted, s.drafts.n_drafted);
  weft_engine_release(w.engine, r);
  p.asked.draft.n_max = 33;
  refused(&p, WEFT_E_INVALID, "there may be 32");
  p.asked.draft = (weft_draft){.kind = WEFT_DRAFT_NGRAM, .ngram_least = 4, .ngram_most = 3};
  refused(&p, WEFT_E_INVALID, "the same 4 to 3 tokens");
}

static int free_load(void **state) {
  (void)state;
  for (uint32_t i = 0; i < SEQS_MAX; i++) free(l.alone[i].tokens);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(losses_end_drafts_at_once),
      cmocka_unit_test(depth_follows_what_was_right),
      cmocka_unit_test(there_is_hysteresis),
      cmocka_unit_test(a_drafter_is_tried_again_ever_more_rarely),
      cmocka_unit_test(a_tenant_is_remembered),
      cmocka_unit_test(ngrams_come_back_by_themselves),
      TEST(drafts_never_lose),
      TEST(drafts_are_charged_to_whom_they_serve),
      TEST(ngrams_of_a_text_that_does_not_repeat),
  };
  return cmocka_run_group_tests(tests, NULL, free_load);
}
