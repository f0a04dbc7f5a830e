/* SPDX-License-Identifier: MIT */
/* When requests have drafts: decisions by cost and by what was right before, and over virtual time that drafts never
 * lose more than the bound and gain where they can. The law of the steps' times is what bench/results has of one
 * H200 with 26B: 585 to 5141 tokens a second at 1 to 32 rows. */
#include "tests/support/engine_world.h"

#include "base/random.h"
#include "scheduler/draft_history.h"
#include "scheduler/request.h"

/* ---- decisions -------------------------------------------------------------------------------- */

static weft_drafting open_other(void) {
  const weft_draft draft = {.kind = WEFT_DRAFT_DEFAULT};
  weft_drafting d;
  weft_drafting_open(&d, &draft, NULL, NULL, 0, 0);
  return d;
}

/* A request of which all was right loses after three runs of which nothing is, one of which half was right later; the
 * loss holds for some tokens of the answer, then for twice as many; a right draft ends it. */
static void losses_end_drafts_at_once(void **state) {
  (void)state;
  weft_drafting good = open_other(), half = open_other();
  weft_acceptance tenant = {0}, other = {0};
  for (uint32_t i = 0; i < 20; i++) {
    weft_drafting_judge(&good, &tenant, 8, 8, i);
    weft_drafting_judge(&half, &other, 1, i % 2, i);
  }
  uint32_t n_good = 0, n_half = 0;
  for (; weft_drafting_rate(&good, &tenant, 20) > 0.0; n_good++) weft_drafting_judge(&good, &tenant, 4, 0, 20);
  for (; weft_drafting_rate(&half, &other, 20) > 0.0; n_half++) weft_drafting_judge(&half, &other, 4, 0, 20);
  print_message("%u and %u\n", n_good, n_half);
  assert_int_equal(n_good, 3);
  assert_in_range(n_half, 13, 20);
  assert_true(weft_drafting_rate(&good, &tenant, 19 + WEFT_DRAFTS_PAUSE) == 0.0);
  assert_true(weft_drafting_rate(&good, &tenant, 20 + WEFT_DRAFTS_PAUSE) > 0.8);
  n_good = 0;
  for (; weft_drafting_rate(&good, &tenant, 100) > 0.0; n_good++) weft_drafting_judge(&good, &tenant, 4, 0, 100);
  assert_in_range(n_good, 3, 5);
  assert_true(weft_drafting_rate(&good, &tenant, 100 + WEFT_DRAFTS_PAUSE) == 0.0);
  assert_true(weft_drafting_rate(&good, &tenant, 100 + 2 * WEFT_DRAFTS_PAUSE) > 0.0);
  weft_drafting_judge(&good, &tenant, 4, 1, 100);
  assert_true(weft_drafting_rate(&good, &tenant, 100) > 0.0);
}

/* What the requests of a tenant learned, its next one begins with. */
static void a_tenant_is_remembered(void **state) {
  (void)state;
  weft_acceptance good = {0}, bad = {0}, unknown = {0};
  for (uint32_t i = 0; i < 40; i++) {
    weft_drafting d = open_other(), e = open_other();
    weft_drafting_judge(&d, &good, 8, 8, i);
    weft_drafting_judge(&e, &bad, 8, 0, i);
  }
  weft_drafting d = open_other();
  assert_true(weft_drafting_rate(&d, &good, 0) > 0.95);
  assert_true(weft_drafting_rate(&d, &bad, 0) < 0.1);
  assert_true(weft_drafting_rate(&d, &unknown, 0) == 0.5);
}

/* A text that ended is known by its model, its domain and its whole blocks. */
static void a_text_is_remembered(void **state) {
  static weft_draft_history history;
  const weft_key128 domain = {.low = 7, .high = 8}, other = {.low = 7, .high = 9};
  int32_t text[200];
  (void)state;
  for (int32_t i = 0; i < 200; i++) text[i] = 3 * i;
  weft_drafting d = open_other();
  weft_draft_history_find(&history, &d, domain, 0, text, 70);
  assert_int_equal(d.own.n_judged, 0);
  weft_acceptance tenant = {0};
  for (uint32_t i = 0; i < 8; i++) weft_drafting_judge(&d, &tenant, 4, 4, i);
  weft_draft_history_keep(&history, &d, domain, 0, text, 130);
  const struct {
    weft_key128 domain;
    uint32_t model, n_prompt, at; /* at: a token that is another one */
    bool known;
  } rows[] = {{domain, 0, 200, 199, true},  {domain, 0, 128, 199, true}, {domain, 0, 127, 199, true},
              {domain, 0, 200, 100, true},  {domain, 0, 200, 63, false}, {domain, 0, 63, 199, false},
              {domain, 1, 200, 199, false}, {other, 0, 200, 199, false}};
  for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_drafting e = open_other();
    text[rows[i].at] += 1;
    weft_draft_history_find(&history, &e, rows[i].domain, rows[i].model, text, rows[i].n_prompt);
    text[rows[i].at] -= 1;
    assert_int_equal(e.own.n_judged, rows[i].known ? 16 : 0);
    assert_int_equal(e.own.n_right, e.own.n_judged);
  }
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
  while (weft_drafting_rate(&d, &tenant, 0) > 0.0) weft_drafting_judge(&d, &tenant, 4, 0, 0);
  for (uint32_t n = 21; n <= 200; n++) {
    weft_drafting_learn(&d, &tenant, text, n);
    if (n < 107) assert_true(weft_drafting_rate(&d, &tenant, n) == 0.0);
  }
  assert_int_equal(d.n_lost, 0);
  assert_true(weft_drafting_rate(&d, &tenant, 200) > 0.5);
  assert_int_equal(d.n_guessed, 4);
  assert_int_equal(d.guess[0], 200 % 7 + 200);
}

/* ---- over virtual time ------------------------------------------------------------------------ */

enum { SEQS_MAX = 32, BEFORE = 150, ANSWER = 500, LONG = 600 };

typedef struct load {
  uint32_t n, percent; /* sequences; how many of a hundred drafts are right */
  uint32_t n_unlike;   /* steps that had runs of several lengths */
  solo_answer alone[SEQS_MAX];
  weft_request_params params[SEQS_MAX];
  int32_t prompt[SEQS_MAX][8];
  uint64_t us;
} load;

static load l;

static bool has_unlike_runs(const weft_batch *batch) {
  uint32_t n_run = 0;
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    const weft_segment *s = &batch->segment[i];
    if (s->n_rows < 2 || s->n_outputs != s->n_rows) continue;
    if (n_run > 0 && s->n_rows != n_run) return true;
    n_run = s->n_rows;
  }
  return false;
}

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
  l.n_unlike += has_unlike_runs(batch);
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
  w.config.waiting_max = SEQS_MAX;
  w.config.n_pages = 9000;
  l.n = n;
  for (uint32_t i = 0; i < n; i++) {
    l.params[i] = ask(false, 8, ANSWER);
    l.params[i].tokens = l.prompt[i];
    for (uint32_t k = 0; k < 8; k++) l.prompt[i][k] = k == 0 ? (int32_t)i : w.prompt[k];
    if (l.alone[i].tokens == NULL) l.alone[i] = solo_run(&w.fake[0].model, &l.params[i], LONG);
  }
}

static void run_to_end(void) {
  while (!weft_engine_idle(w.engine)) step(1);
}

/* At no rate of right drafts, with any number of sequences, are there fewer than 98 tokens where there were 100. */
static void drafts_never_lose(void **state) {
  static const uint32_t numbers[] = {1, 2, 4, 8, 16, 32}, rates[] = {0, 20, 40, 60, 80, 95};
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
      if (l.percent == 80) assert_true(gain > 1.3);
      if (l.percent == 60 && l.n >= 4) assert_true(gain > 1.15);
    }
  }
}

/* Steps come again, and are fast as graphs, where all their runs are as long: also when answers end, and with them the
 * room for drafts, one after another. */
static void runs_of_a_step_are_of_one_length(void **state) {
  (void)state;
  for (uint32_t graphs = 0; graphs < 2; graphs++) {
    plan_load(8);
    w.fake[0].graphs = graphs != 0;
    l.percent = 80;
    l.n_unlike = 0;
    (void)us_per_token(true, true);
    assert_true((l.n_unlike == 0) == (graphs != 0));
  }
}

/* The next turn of a conversation begins with what the one before learned, and one without the cache with nothing. */
static void a_next_turn_begins_with_what_was_learned(void **state) {
  (void)state;
  plan_load(1);
  l.percent = 100;
  w.config.drafter = &some;
  w.config.drafts_always = true;
  open_world();
  weft_request *r = submit(&l.params[0]);
  run_to_end();
  assert_in_range(r->drafting.own.n_judged, 32, 64);
  weft_request_params next = l.params[0];
  int32_t text[ANSWER + 8];
  memcpy(text, r->tokens, sizeof text);
  text[ANSWER + 7] = (text[ANSWER + 7] + 1) % VOCAB; /* the next message */
  next.tokens = text;
  next.n_tokens = ANSWER + 8;
  next.max_tokens = 4;
  weft_request *turn = submit(&next);
  assert_in_range(turn->drafting.own.n_judged, 16, 32);
  assert_int_equal(turn->drafting.own.n_right, turn->drafting.own.n_judged);
  next.asked.no_cache = true;
  weft_request *fresh = submit(&next);
  assert_int_equal(fresh->drafting.own.n_judged, 0);
  run_to_end();
  weft_request *all[] = {r, turn, fresh};
  release_all(all, 3);
}

static uint64_t n_counted(const weft_histogram *h) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < WEFT_HISTOGRAM_BUCKETS; i++) n += h->bucket[i];
  return n;
}

/* The one request that had drafts: its times are those of the model, and it is in each histogram once. */
static void expect_times(const weft_draft_times *own, const weft_draft_stats *all) {
  assert_int_equal(own->n_runs, all->n_runs);
  assert_int_equal(own->draft_ns, all->draft_ns);
  assert_int_equal(own->verify_us, all->verify_us);
  assert_int_equal(own->back_ns, all->back_ns);
  assert_true(own->commit_ns > own->back_ns && own->commit_ns <= all->commit_ns);
  assert_true(own->draft_ns > 0 && own->verify_us > 0 && own->back_ns > 0);
  const weft_histogram *of[] = {&all->draft, &all->verify, &all->commit, &all->back};
  const uint64_t us[] = {own->draft_ns / 1000, own->verify_us, own->commit_ns / 1000, own->back_ns / 1000};
  for (size_t i = 0; i < 4; i++) {
    assert_int_equal(n_counted(of[i]), 1);
    assert_int_equal(of[i]->sum, us[i]);
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
  expect_times(&end.usage.drafts, &s.drafts);
  end = finish_of(r[1], NULL, NULL);
  assert_int_equal(end.usage.n_drafted, 0);
  assert_int_equal(end.usage.drafts.n_runs + end.usage.drafts.draft_ns + end.usage.drafts.verify_us, 0);
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
      cmocka_unit_test(losses_end_drafts_at_once),      cmocka_unit_test(a_tenant_is_remembered),
      cmocka_unit_test(ngrams_come_back_by_themselves), TEST(drafts_never_lose),
      cmocka_unit_test(a_text_is_remembered),           TEST(a_next_turn_begins_with_what_was_learned),
      TEST(drafts_are_charged_to_whom_they_serve),      TEST(ngrams_of_a_text_that_does_not_repeat),
      TEST(runs_of_a_step_are_of_one_length),
  };
  return cmocka_run_group_tests(tests, NULL, free_load);
}
