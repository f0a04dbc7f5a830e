/* SPDX-License-Identifier: MIT */
/* What one tenant can learn of another, and what it can do to it, under a virtual clock.
 *
 *   attack     a tenant probes prompts that another has sent, or has not. From all that it is told and
 *              can measure, a classifier trained on half of the probes tells presence in at most
 *              55 % of the other half; with one cache for all it does, so the test can fail.
 *   slowness   a tenant with 500 long prompts waiting raises the time to first token of another by
 *              at most the bound of docs/scheduler.md; as one tenant it does not hold. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "tests/support/lanes.h"

enum { ROWS = 64, CONTEXT = 256, VOCAB = 200, SLOTS = 12, STEP_US = 500, ROW_US = 20 };
enum { VICTIM = 0, ATTACKER = 1, NEIGHBOUR = 2, N_TENANTS = 3 };

typedef struct world {
  weft_fake_store *store;
  weft_runner *runner;
  weft_engine *engine;
  uint64_t draws, now_us, n_rows, n_steps;
} world;

static uint32_t draw(world *w, uint32_t n) {
  return (uint32_t)((weft_mix64(++w->draws * 0x9E3779B97F4A7C15ull) >> 32) * n >> 32);
}

static void open_world(world *w, uint32_t n_pages) {
  weft_error error = {{0}};
  *w = (world){.draws = 77};
  assert_int_equal(weft_fake_store_open(n_pages, 16, &w->store), WEFT_OK);
  weft_fake_config fake = {.name = "model",
                           .autoregressive = true,
                           .n_slots = SLOTS,
                           .rows_max = ROWS,
                           .depth = 2,
                           .context_length = CONTEXT,
                           .store = w->store,
                           .model = {.salt = 5,
                                     .n_vocab = VOCAB,
                                     .n_canvas = 16,
                                     .n_groups = 2,
                                     .group = {{.block_tokens = 16}, {.block_tokens = 8, .window = 24}}}};
  assert_int_equal(weft_fake_runner_open(&fake, &w->runner), WEFT_OK);
  weft_engine_config config = {.n_models = 1,
                               .runner = &w->runner,
                               .n_pages = n_pages,
                               .rows_per_step = ROWS,
                               .running_max = SLOTS,
                               .waiting_max = 1000,
                               .n_tenants = N_TENANTS,
                               .seq_tokens_max = CONTEXT,
                               .overlap = true}; /* a step ends when the next one begins */
  if (weft_engine_open(&config, &w->engine, &error) != WEFT_OK) fail_msg("%s", error.text);
}

static void close_world(world *w) {
  weft_engine_close(w->engine);
  assert_null(weft_fake_runner_violation(w->runner));
  w->runner->ops->close(w->runner);
  weft_fake_store_close(w->store);
}

/* A step takes the time of its rows. */
static void step(world *w) {
  weft_engine_stats stats;
  (void)weft_engine_step(w->engine, w->now_us);
  weft_engine_get_stats(w->engine, &stats);
  w->now_us += STEP_US + ROW_US * (stats.n_rows - w->n_rows);
  w->n_rows = stats.n_rows;
  w->n_steps += 1;
}

static weft_request *submit(world *w, uint32_t tenant, uint64_t domain, bool canvas, const int32_t *tokens,
                            uint32_t n_tokens, uint32_t max_tokens) {
  weft_error error = {{0}};
  weft_request *request = NULL;
  weft_request_params p = lanes_request(tokens, n_tokens, max_tokens, 6);
  p.tenant = tenant;
  p.domain.low = domain;
  p.canvas = canvas;
  if (weft_engine_submit(w->engine, &p, w->now_us, &request, &error) != WEFT_OK) fail_msg("%s", error.text);
  return request;
}

/* True: it is over; *usage says how it was. */
static bool ended(world *w, weft_request *request, weft_usage *usage) {
  weft_event event;
  while (weft_engine_poll(w->engine, request, &event) == WEFT_OK) {
    if (event.kind == WEFT_EVENT_FINISHED) {
      *usage = event.usage;
      return true;
    }
  }
  return false;
}

/* ---- attack ---------------------------------------------------------------------------------- */

enum { N_PROBES = 2400, SECRET = 96, KNOWN = 80, N_FEATURES = 7 };

typedef struct probe {
  bool present;
  double feature[N_FEATURES];
} probe;

static probe probes[N_PROBES];
static const char *const feature_names[N_FEATURES] = {"cached tokens", "computed rows", "denoise steps", "engine steps",
                                                      "queue time",    "first token",   "total time"};

/* The victim sends a secret; the attacker sends what it knows of it, or something else as long. */
static void run_probe(world *w, probe *out, bool shared) {
  int32_t secret[SECRET], asked[SECRET], noise[SECRET];
  out->present = draw(w, 2) == 0;
  for (uint32_t i = 0; i < SECRET; i++) {
    secret[i] = (int32_t)draw(w, VOCAB);
    int32_t other = (int32_t)draw(w, VOCAB);
    noise[i] = (int32_t)draw(w, VOCAB);
    asked[i] = out->present && i < KNOWN ? secret[i] : other;
  }
  uint32_t lengths = draw(w, 3), n_noise = draw(w, 3);
  weft_request *own = submit(w, VICTIM, shared ? 0 : 1, draw(w, 2) == 0, secret, SECRET, 4 + lengths * 8);
  weft_request *others[3];
  for (uint32_t i = 0; i < n_noise; i++) {
    uint32_t tenant = draw(w, 2) == 0 ? VICTIM : NEIGHBOUR;
    others[i] = submit(w, tenant, shared ? 0 : tenant + 1, false, noise, 16 + draw(w, 80), 1 + draw(w, 16));
  }
  for (uint32_t n = draw(w, 12); n > 0; n--) step(w); /* the victim may still be at it */
  uint64_t first_step = w->n_steps;
  weft_request *attack = submit(w, ATTACKER, shared ? 0 : ATTACKER + 1, draw(w, 2) == 0, asked, SECRET, 8);
  weft_usage u;
  do step(w);
  while (!ended(w, attack, &u));
  weft_engine_release(w->engine, attack);
  out->feature[0] = u.n_cached;
  out->feature[1] = u.n_computed_rows;
  out->feature[2] = u.n_denoise_steps;
  out->feature[3] = (double)(w->n_steps - first_step);
  out->feature[4] = (double)(u.started_us - u.submitted_us);
  out->feature[5] = (double)(u.first_token_us - u.submitted_us);
  out->feature[6] = (double)(u.finished_us - u.submitted_us);
  while (!weft_engine_idle(w->engine)) step(w);
  weft_engine_release(w->engine, own);
  for (uint32_t i = 0; i < n_noise; i++) weft_engine_release(w->engine, others[i]);
}

/* A tree of depth two: each node asks for one feature whether it is beyond a threshold. */
typedef struct stump {
  uint32_t feature;
  double threshold;
  bool above; /* present when beyond it */
} stump;

static bool says_present(const stump *s, const probe *p) {
  return (p->feature[s->feature] > s->threshold) == s->above;
}

static const probe *sorted_by_of; /* qsort takes no context */
static uint32_t sorted_by;
static int by_feature(const void *a, const void *b) {
  double x = sorted_by_of[*(const uint32_t *)a].feature[sorted_by];
  double y = sorted_by_of[*(const uint32_t *)b].feature[sorted_by];
  return (x > y) - (x < y);
}

/* The stump over one feature that is right most often among the probes with in[i]. */
static stump train_one(const probe *p, const bool *in, uint32_t n, uint32_t feature, uint32_t *right) {
  static uint32_t order[N_PROBES];
  uint32_t m = 0, n_present = 0;
  for (uint32_t i = 0; i < n; i++) {
    if (!in[i]) continue;
    order[m++] = i;
    n_present += p[i].present;
  }
  sorted_by_of = p;
  sorted_by = feature;
  qsort(order, m, sizeof *order, by_feature);
  stump best = {.feature = feature, .threshold = -1, .above = 2 * n_present >= m};
  *right = n_present > m - n_present ? n_present : m - n_present;
  uint32_t below_present = 0;
  for (uint32_t k = 0; k + 1 < m; k++) {
    below_present += p[order[k]].present;
    double value = p[order[k]].feature[feature];
    if (value == p[order[k + 1]].feature[feature]) continue;
    uint32_t above_right = (n_present - below_present) + (k + 1 - below_present);
    if (above_right > *right) best = (stump){feature, value, true}, *right = above_right;
    if (m - above_right > *right) best = (stump){feature, value, false}, *right = m - above_right;
  }
  return best;
}

static stump train(const probe *p, const bool *in, uint32_t n) {
  stump best = {0};
  uint32_t most = 0;
  for (uint32_t f = 0; f < N_FEATURES; f++) {
    uint32_t right;
    stump one = train_one(p, in, n, f, &right);
    if (right > most || f == 0) best = one, most = right;
  }
  return best;
}

/* Share of the second half that is told right by each feature alone (best) and by the tree. */
static void classify(double *best_single, double *by_tree) {
  static bool all[N_PROBES], yes[N_PROBES], no[N_PROBES];
  const uint32_t half = N_PROBES / 2;
  *best_single = 0;
  for (uint32_t i = 0; i < half; i++) all[i] = true;
  for (uint32_t f = 0; f < N_FEATURES; f++) {
    uint32_t right, n = 0;
    stump s = train_one(probes, all, half, f, &right);
    for (uint32_t i = half; i < N_PROBES; i++) n += says_present(&s, &probes[i]) == probes[i].present;
    double share = (double)n / half;
    print_message("  %-14s %.1f %%\n", feature_names[f], 100 * share);
    if (share > *best_single) *best_single = share;
  }
  stump root = train(probes, all, half);
  for (uint32_t i = 0; i < half; i++) {
    yes[i] = says_present(&root, &probes[i]);
    no[i] = !yes[i];
  }
  stump branch[2] = {train(probes, no, half), train(probes, yes, half)};
  uint32_t n = 0;
  for (uint32_t i = half; i < N_PROBES; i++) {
    const stump *leaf = &branch[says_present(&root, &probes[i])];
    n += says_present(leaf, &probes[i]) == probes[i].present;
  }
  *by_tree = (double)n / half;
  print_message("  together       %.1f %%\n", 100 * *by_tree);
}

static void attack(bool shared, double *best_single, double *by_tree) {
  world w;
  open_world(&w, 160);
  print_message("%s\n", shared ? "one cache for all:" : "a cache for each tenant:");
  for (uint32_t i = 0; i < N_PROBES; i++) run_probe(&w, &probes[i], shared);
  classify(best_single, by_tree);
  close_world(&w);
}

static void a_cache_tells_nothing_to_others(void **state) {
  double single, tree;
  (void)state;
  attack(false, &single, &tree);
  assert_true(single <= 0.55);
  assert_true(tree <= 0.55);
  attack(true, &single, &tree);
  assert_true(single > 0.75); /* so the probes can tell */
  assert_true(tree > 0.75);
}

/* ---- slowness -------------------------------------------------------------------------------- */

enum { N_LONG = 500, LONG = 160, LONG_ANSWER = 60, N_SHORT = 150, SHORT = 24, SHORT_ANSWER = 6, LIVE = 64 };

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The 99th percentile of the short requests' time to first token; the long ones come from `rival`
 * (NEIGHBOUR: none come). */
static double p99_of_short(uint32_t rival, uint32_t n_short) {
  static weft_request *queue[N_LONG];
  static double ttft[N_SHORT];
  weft_request *live[LIVE] = {NULL};
  int32_t prompt[LONG];
  world w;
  uint32_t n_sent = 0, n_done = 0, n_long = rival == NEIGHBOUR ? 0 : N_LONG;
  open_world(&w, 400);
  for (uint32_t i = 0; i < n_long; i++) {
    for (uint32_t k = 0; k < LONG; k++) prompt[k] = (int32_t)draw(&w, VOCAB);
    queue[i] = submit(&w, rival, rival + 1, false, prompt, LONG, LONG_ANSWER);
  }
  uint64_t next_us = 20000;
  w.draws = 4000000; /* the same arrivals whatever the rival does */
  while (n_done < n_short) {
    while (n_sent < n_short && w.now_us >= next_us) {
      uint32_t at = 0;
      while (live[at] != NULL) at += 1;
      assert_true(at < LIVE);
      for (uint32_t k = 0; k < SHORT; k++) prompt[k] = (int32_t)draw(&w, VOCAB);
      live[at] = submit(&w, ATTACKER, ATTACKER + 1, false, prompt, SHORT, SHORT_ANSWER);
      next_us += 4000 + draw(&w, 16000);
      n_sent += 1;
    }
    step(&w);
    for (uint32_t i = 0; i < LIVE; i++) {
      weft_usage u;
      if (live[i] == NULL || !ended(&w, live[i], &u)) continue;
      ttft[n_done++] = (double)(u.first_token_us - u.submitted_us);
      weft_engine_release(w.engine, live[i]);
      live[i] = NULL;
    }
  }
  weft_engine_stats stats;
  weft_engine_get_stats(w.engine, &stats);
  print_message("  %u long ones waited to the end, %llu preemptions\n", stats.n_waiting,
                (unsigned long long)stats.n_preemptions);
  if (rival == VICTIM) assert_true(stats.n_waiting > 0); /* some waited all the time */
  for (uint32_t i = 0; i < n_long; i++) weft_engine_release(w.engine, queue[i]);
  while (!weft_engine_idle(w.engine)) step(&w);
  close_world(&w);
  qsort(ttft, n_short, sizeof *ttft, by_value);
  return ttft[n_short * 99 / 100];
}

static void a_flood_slows_others_by_a_bound(void **state) {
  (void)state;
  double alone = p99_of_short(NEIGHBOUR, N_SHORT), flooded = p99_of_short(VICTIM, N_SHORT);
  double as_one = p99_of_short(ATTACKER, 10);
  double longest_step = STEP_US + ROW_US * ROWS, bound = 2 * alone + 4 * longest_step;
  print_message(
      "p99 to first token: %.1f ms alone, %.1f ms beside 500 long prompts (bound %.1f), "
      "%.1f ms as one tenant\n",
      alone / 1e3, flooded / 1e3, bound / 1e3, as_one / 1e3);
  assert_true(flooded <= bound);
  assert_true(as_one > bound);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_cache_tells_nothing_to_others),
                                     cmocka_unit_test(a_flood_slows_others_by_a_bound)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
