/* SPDX-License-Identifier: MIT */
/* Replicas: which one gets a request, as a table; what is remembered of prompts; sums of counters; and two or three
 * engines of fake runners behind one submission: limits of the whole server, siblings, pins, cancels, evictions, a
 * device that breaks, and a tenant beside another one's flood. */
#include "tests/support/engine_world.h"

#include "scheduler/replica_choice.h"
#include "scheduler/replicas.h"
#include "scheduler/sent_prefixes.h"
#include "scheduler/stats_sum.h"

enum { N_MAX = 3, N_ASKED = 48 };

/* ---- the choice ---- */

static void the_choice_is_a_table(void **state) {
  enum { GONE = 1, FULL = 2 }; /* the device broke; no room for one more of the tenant */
  static const struct {
    const char *name;
    uint32_t n, wanted;
    struct {
      weft_replica_load all, own; /* rows, requests */
      uint32_t n_found, n_given, is;
    } view[3];
  } table[] = {
      {"idle and new: the first", 3, 0, {{{0, 0}, {0, 0}, 0, 0, 0}}},
      {"idle: the one that was given least",
       3,
       1,
       {{{0, 0}, {0, 0}, 0, 9, 0}, {{0, 0}, {0, 0}, 0, 5, 0}, {{0, 0}, {0, 0}, 0, 7, 0}}},
      {"no prefix: the fewest rows",
       3,
       1,
       {{{300, 3}, {0, 0}, 0, 0, 0}, {{250, 4}, {0, 0}, 0, 9, 0}, {{260, 2}, {0, 0}, 0, 0, 0}}},
      {"a prefix on an idle one", 3, 0, {{{0, 0}, {0, 0}, 64, 9, 0}}},
      {"the longer prefix", 3, 0, {{{900, 1}, {0, 0}, 64, 0, 0}, {{0, 0}, {0, 0}, 32, 0, 0}}},
      {"equal prefixes: the fewest rows", 3, 1, {{{50, 1}, {0, 0}, 32, 0, 0}, {{20, 1}, {0, 0}, 32, 0, 0}}},
      {"a prefix, twice as many and one", 2, 0, {{{90, 9}, {0, 0}, 64, 0, 0}, {{40, 4}, {0, 0}, 0, 0, 0}}},
      {"a prefix, more than that", 2, 1, {{{90, 10}, {0, 0}, 64, 0, 0}, {{40, 4}, {0, 0}, 0, 0, 0}}},
      {"then the next longest",
       3,
       2,
       {{{90, 10}, {0, 0}, 64, 0, 0}, {{40, 4}, {0, 0}, 0, 0, 0}, {{50, 5}, {0, 0}, 32, 0, 0}}},
      {"many requests of few rows are not much", 2, 0, {{{90, 10}, {0, 0}, 64, 0, 0}, {{91, 1}, {0, 0}, 0, 0, 0}}},
      {"nor are they without a prefix", 2, 0, {{{90, 10}, {0, 0}, 0, 0, 0}, {{91, 1}, {0, 0}, 0, 0, 0}}},
      {"the device broke",
       3,
       1,
       {{{0, 0}, {0, 0}, 64, 0, GONE}, {{50, 5}, {0, 0}, 0, 0, 0}, {{60, 6}, {0, 0}, 0, 0, 0}}},
      {"a broken one is not the least busy",
       3,
       2,
       {{{0, 0}, {0, 0}, 0, 0, GONE}, {{50, 5}, {0, 0}, 0, 0, 0}, {{60, 6}, {0, 0}, 64, 0, 0}}},
      {"all broke: the first",
       3,
       0,
       {{{5, 1}, {0, 0}, 0, 0, GONE}, {{0, 0}, {0, 0}, 0, 0, GONE}, {{0, 0}, {0, 0}, 0, 0, GONE}}},
      {"no room: where there is some",
       3,
       1,
       {{{0, 0}, {0, 0}, 64, 0, FULL}, {{50, 5}, {0, 0}, 0, 0, 0}, {{60, 6}, {0, 0}, 0, 0, 0}}},
      {"room on a broken one is none",
       3,
       0,
       {{{5, 1}, {0, 0}, 0, 0, FULL}, {{0, 0}, {0, 0}, 0, 0, GONE}, {{6, 1}, {0, 0}, 0, 0, FULL}}},
      {"no room anywhere: the prefix again",
       3,
       2,
       {{{0, 0}, {0, 0}, 0, 0, FULL}, {{5, 1}, {0, 0}, 0, 0, FULL}, {{6, 1}, {0, 0}, 64, 0, FULL}}},
      {"fewest rows of the tenant before fewest rows",
       3,
       2,
       {{{300, 3}, {90, 1}, 0, 0, 0}, {{250, 3}, {80, 1}, 0, 0, 0}, {{350, 3}, {70, 1}, 0, 0, 0}}},
      {"the prefix where the tenant has more", 2, 0, {{{90, 9}, {30, 3}, 64, 0, 0}, {{90, 9}, {10, 1}, 0, 0, 0}}},
      {"the tenant has too much there", 2, 1, {{{90, 9}, {40, 4}, 64, 0, 0}, {{90, 9}, {10, 1}, 0, 0, 0}}},
      {"the least busy one although it has most of the tenant",
       3,
       0,
       {{{40, 4}, {40, 4}, 0, 0, 0}, {{100, 10}, {0, 0}, 0, 0, 0}, {{110, 11}, {0, 0}, 64, 0, 0}}},
      {"counts near the largest",
       2,
       1,
       {{{UINT64_MAX, UINT32_MAX}, {0, 0}, 0, 0, 0}, {{UINT64_MAX - 9, UINT32_MAX - 9}, {0, 0}, 0, 0, 0}}},
  };
  (void)state;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    weft_replica_view view[3];
    for (uint32_t k = 0; k < 3; k++) {
      view[k] = (weft_replica_view){.works = table[i].view[k].is != GONE,
                                    .has_room = table[i].view[k].is != FULL,
                                    .all = table[i].view[k].all,
                                    .own = table[i].view[k].own,
                                    .n_given = table[i].view[k].n_given,
                                    .n_found = table[i].view[k].n_found};
    }
    uint32_t got = weft_replica_choose(view, table[i].n);
    if (got != table[i].wanted) fail_msg("%s: replica %u, not %u", table[i].name, got, table[i].wanted);
  }
}

static void prompts_are_remembered(void **state) {
  int32_t tokens[200];
  uint32_t n_found[3];
  weft_sent_prefixes sent;
  weft_sent_pool pool[3] = {{0, 100}, {0, 100}, {UINT32_MAX - 5, 100}}; /* of the third the count will wrap */
  (void)state;
  for (int32_t i = 0; i < 200; i++) tokens[i] = i * 7 % 31;
  weft_sent_prompt p = {.domain.low = 1, .tokens = tokens, .n_tokens = 100};
  assert_int_equal(weft_sent_open(&sent), WEFT_OK);
  weft_sent_find(&sent, &p, pool, 3, n_found);
  assert_int_equal(n_found[0] + n_found[1] + n_found[2], 0);
  weft_sent_note(&sent, &p, &pool[1], 1);
  p.n_tokens = 200;
  weft_sent_find(&sent, &p, pool, 3, n_found); /* whole blocks of 32 */
  assert_int_equal(n_found[1], 96);
  assert_int_equal(n_found[0] + n_found[2], 0);
  p.n_tokens = 70;
  weft_sent_note(&sent, &p, &pool[2], 2);
  p.n_tokens = 200;
  weft_sent_find(&sent, &p, pool, 3, n_found);
  assert_int_equal(n_found[1], 96);
  assert_int_equal(n_found[2], 64);
  tokens[40] += 1; /* another second block */
  weft_sent_find(&sent, &p, pool, 3, n_found);
  assert_int_equal(n_found[1], 32);
  tokens[40] -= 1;
  p.domain.low = 2; /* another tenant's */
  weft_sent_find(&sent, &p, pool, 3, n_found);
  assert_int_equal(n_found[1], 0);
  p.domain.low = 1, p.model = 1;
  weft_sent_find(&sent, &p, pool, 3, n_found);
  assert_int_equal(n_found[1], 0);
  p.model = 0;
  for (int32_t k = 0; k < 3 * WEFT_SENT_PLACES; k++) { /* many others: what is asked for in between stays */
    int32_t other[WEFT_SENT_BLOCK] = {k, 1000};
    weft_sent_prompt q = {.domain.low = 1, .tokens = other, .n_tokens = WEFT_SENT_BLOCK};
    weft_sent_note(&sent, &q, &pool[0], 0);
    if (k % 4096 == 0) weft_sent_note(&sent, &p, &pool[1], 1);
  }
  weft_sent_find(&sent, &p, pool, 3, n_found);
  assert_int_equal(n_found[1], 192);
  pool[1].n_evicted = 199; /* less than twice what it keeps */
  weft_sent_find(&sent, &p, pool, 3, n_found);
  assert_int_equal(n_found[1], 192);
  pool[1].n_evicted = 200;
  weft_sent_find(&sent, &p, pool, 3, n_found);
  assert_int_equal(n_found[1], 0);
  weft_sent_note(&sent, &p, &pool[1], 1);
  weft_sent_note(&sent, &p, &pool[2], 2);
  pool[2].n_evicted += 50;
  weft_sent_find(&sent, &p, pool, 3, n_found);
  assert_int_equal(n_found[1], 192);
  assert_int_equal(n_found[2], 192);
  weft_sent_forget(&sent);
  weft_sent_find(&sent, &p, pool, 3, n_found);
  assert_int_equal(n_found[1], 0);
  weft_sent_close(&sent);
}

/* ---- sums ---- */

/* Bytes that are all 1 in both parts are all 2 in a sum; what is not added, and gaps, are named. */
static void check_sum(const char *name, const void *sum, size_t size, const size_t *except, size_t n_except) {
  for (size_t at = 0; at < size; at += 4) {
    uint32_t word;
    bool known = false;
    memcpy(&word, (const char *)sum + at, 4);
    for (size_t i = 0; i < n_except; i++) known = known || except[i] == at;
    if (known == (word == 0x02020202u)) fail_msg("%s: the word at %zu is %s", name, at, known ? "a sum" : "no sum");
  }
}

#define CHECK_SUM(type, add, ...)                                               \
  do {                                                                          \
    type sum, part;                                                             \
    const size_t except[] = {__VA_ARGS__};                                      \
    memset(&sum, 1, sizeof sum);                                                \
    memset(&part, 1, sizeof part);                                              \
    add(&sum, &part);                                                           \
    check_sum(#type, &sum, sizeof sum, except, sizeof except / sizeof *except); \
  } while (0)

static void counters_are_added_up(void **state) {
  (void)state;
#define TENANT(field) offsetof(weft_tenant_stats, field)
  CHECK_SUM(weft_tenant_stats, weft_tenant_stats_add, TENANT(n_waiting), TENANT(n_unstarted), TENANT(n_unstarted) + 4,
            TENANT(n_refused), TENANT(n_refused) + 4, TENANT(n_refused) + 8, TENANT(n_refused) + 12,
            TENANT(n_refused) + 16, TENANT(n_refused) + 20, TENANT(n_refused) + 24, TENANT(n_refused) + 28,
            TENANT(n_evicted), TENANT(n_evicted) + 4);
#undef TENANT
  CHECK_SUM(weft_request_stats, weft_request_stats_add, SIZE_MAX);
  CHECK_SUM(weft_group_usage, weft_group_usage_add, SIZE_MAX);
}

static void counters_of_engines_are_added_up(void **state) {
  (void)state;
#define ENGINE(field) offsetof(weft_engine_stats, field)
  static const size_t except[] = {ENGINE(n_pins),        ENGINE(n_pins_held),       ENGINE(n_pin_pages) + 4,
                                  ENGINE(request_bytes), ENGINE(request_bytes) + 4, ENGINE(draining),
                                  ENGINE(draining) + 4,  ENGINE(broken_runners),    ENGINE(broken_runners) + 4,
                                  ENGINE(n_lanes),       ENGINE(n_lanes) + 4,       ENGINE(pager.n_seqs) + 4};
#undef ENGINE
  weft_engine_stats sum, part;
  memset(&sum, 1, sizeof sum);
  memset(&part, 1, sizeof part);
  sum.n_lanes = part.n_lanes = WEFT_MODELS_MAX;
  sum.draining = part.draining = true;
  for (uint32_t i = 0; i < WEFT_MODELS_MAX; i++) sum.lane[i].ratio_sum = part.lane[i].ratio_sum = 1.5;
  weft_engine_stats_add(&sum, &part);
  for (uint32_t i = 0; i < WEFT_MODELS_MAX; i++) {
    assert_true(sum.lane[i].ratio_sum == 3.0);
    memset(&sum.lane[i].ratio_sum, 2, sizeof sum.lane[i].ratio_sum);
  }
  check_sum("weft_engine_stats", &sum, sizeof sum, except, sizeof except / sizeof *except);
  sum.n_pins = 3, part.n_pins = 4, sum.broken_runners = 6, part.broken_runners = 3;
  weft_engine_stats_add(&sum, &part);
  assert_int_equal(sum.n_pins, 4);
  assert_int_equal(sum.broken_runners, 2);
  sum.n_pins_held = 0, part.n_pins_held = 3, part.broken_runners = 0;
  weft_engine_stats_add(&sum, &part); /* the first that works */
  assert_int_equal(sum.n_pins_held, 3);
  part.n_pins_held = 2;
  weft_engine_stats_add(&sum, &part);
  assert_int_equal(sum.n_pins_held, 2);
  part.n_pins_held = 0, part.broken_runners = 1;
  weft_engine_stats_add(&sum, &part);
  assert_int_equal(sum.n_pins_held, 2);
}

/* ---- engines ---- */

typedef struct replica_world {
  weft_fake_store *store[N_MAX];
  weft_runner *runner[N_MAX];
  weft_replicas_config config;
  weft_replicas *all;
  weft_request *asked[N_ASKED];
  uint32_t n_asked;
} replica_world;

static replica_world rw;

/* Of one model each; change w.config before. */
static void open_replicas(uint32_t n) {
  weft_error error = {{0}};
  rw = (replica_world){.config = {.n = n, .engine = w.config}};
  rw.config.engine.n_models = 1;
  for (uint32_t i = 0; i < n; i++) {
    weft_fake_config fake = w.fake[0];
    assert_int_equal(weft_fake_store_open(w.config.n_pages, 8, &rw.store[i]), WEFT_OK);
    fake.store = rw.store[i];
    assert_int_equal(weft_fake_runner_open(&fake, &rw.runner[i]), WEFT_OK);
    rw.config.runner[i] = &rw.runner[i];
  }
  if (weft_replicas_open(&rw.config, &rw.all, &error) != WEFT_OK) fail_msg("%s", error.text);
}

static void step_all(uint32_t n) {
  for (uint32_t k = 0; k < n; k++) {
    w.now += 1;
    for (uint32_t i = 0; i < rw.config.n; i++) (void)weft_engine_step(weft_replicas_at(rw.all, i), w.now);
  }
}

static void run_out_all(void) {
  uint64_t until = w.now + 5000;
  do {
    step_all(1);
    assert_true(w.now < until);
  } while (!weft_replicas_idle(rw.all));
  step_all(1);
  for (uint32_t i = 0; i < rw.config.n; i++)
    assert_int_equal(weft_pager_get_stats(weft_engine_pager(weft_replicas_at(rw.all, i))).n_pinned, 0);
}

static void let_go(weft_request *r) {
  weft_engine_release(weft_replicas_of(rw.all, r), r);
}

static int close_replicas(void **state) {
  (void)state;
  if (rw.all == NULL) return 0;
  for (uint32_t i = 0; i < rw.n_asked; i++) let_go(rw.asked[i]);
  weft_replicas_close(rw.all);
  for (uint32_t i = 0; i < rw.config.n; i++) {
    assert_null(weft_fake_runner_violation(rw.runner[i]));
    rw.runner[i]->ops->close(rw.runner[i]);
    weft_fake_store_close(rw.store[i]);
  }
  rw.all = NULL;
  return 0;
}

static weft_status try_all(const weft_request_params *p, uint32_t n, weft_error *error) {
  weft_request *r[WEFT_SUBMISSION_MAX];
  assert_true(rw.n_asked + n <= N_ASKED);
  weft_status status = weft_replicas_submit_all(rw.all, p, n, ++w.now, r, error);
  if (status == WEFT_OK) memcpy(rw.asked + rw.n_asked, r, n * sizeof *r);
  if (status == WEFT_OK) rw.n_asked += n;
  return status;
}

/* Returns the number of the replica that got the last of them. */
static uint32_t ask_all(const weft_request_params *p, uint32_t n) {
  weft_error error = {{0}};
  if (try_all(p, n, &error) != WEFT_OK) fail_msg("%s", error.text);
  uint32_t at = 0;
  while (weft_replicas_at(rw.all, at) != weft_replicas_of(rw.all, rw.asked[rw.n_asked - 1])) at += 1;
  return at;
}

static uint32_t n_running_on(uint32_t replica, uint32_t tenant) {
  weft_tenant_stats s;
  weft_engine_get_tenant_stats(weft_replicas_at(rw.all, replica), tenant, &s);
  return s.n_running;
}

/* Another prompt for each number, of which no two have a block in common. */
static weft_request_params ask_other(int32_t number, uint32_t n_tokens, uint32_t max_tokens, int32_t *tokens) {
  weft_request_params p = ask(false, n_tokens, max_tokens);
  for (uint32_t i = 0; i < n_tokens; i++) tokens[i] = (int32_t)((uint32_t)number * 11 + i) % VOCAB;
  tokens[0] = number % VOCAB;
  p.tokens = tokens;
  return p;
}

static void answers_are_those_of_one(void **state) {
  enum { N = 24 };
  weft_request_params p[N];
  int32_t tokens[N][64];
  (void)state;
  open_replicas(3);
  for (uint32_t i = 0; i < N; i++) {
    p[i] = ask_other((int32_t)i / 2, 20 + i, 20, tokens[i]);
    p[i].canvas = i % 3 == 0;
    (void)ask_all(&p[i], 1);
    step_all(i % 3);
  }
  run_out_all();
  for (uint32_t k = 0; k < 3; k++) {
    weft_engine_stats s;
    weft_engine_get_stats(weft_replicas_at(rw.all, k), &s);
    assert_true(s.n_submitted > 3);
  }
  for (uint32_t i = 0; i < N; i++) {
    w.engine = weft_replicas_of(rw.all, rw.asked[i]);
    check_equal_solo(rw.asked[i], &p[i]);
  }
  w.engine = NULL;
  rw.n_asked = 0; /* they are released */
  weft_engine_stats sum;
  weft_replicas_get_stats(rw.all, &sum);
  assert_int_equal(sum.n_submitted, N);
  assert_int_equal(sum.pager.n_pages, 3 * w.config.n_pages);
  assert_int_equal(sum.pager.n_free + sum.pager.n_cached, sum.pager.n_pages);
}

static void a_conversation_stays_and_a_flood_spreads(void **state) {
  int32_t tokens[3][96];
  (void)state;
  w.config.running_max = 4;
  open_replicas(2);
  weft_request_params p = ask_other(1, 80, 8, tokens[0]), q = ask_other(2, 80, 8, tokens[1]);
  p.n_tokens = q.n_tokens = 40;
  uint32_t home = ask_all(&p, 1), other = ask_all(&q, 1);
  assert_int_not_equal(home, other);
  run_out_all();
  for (uint32_t turn = 0; turn < 3; turn++) { /* each turn begins with the one before it */
    p.n_tokens += 8, q.n_tokens += 8;
    assert_int_equal(ask_all(&q, 1), other);
    assert_int_equal(ask_all(&p, 1), home);
    run_out_all();
  }
  weft_engine_stats s;
  weft_engine_get_stats(weft_replicas_at(rw.all, home), &s);
  assert_true(s.n_cached_tokens > 80);
  uint32_t n[2] = {0, 0};
  for (uint32_t i = 0; i < 12; i++) n[ask_all(&p, 1)] += 1; /* a popular prefix */
  assert_true(n[home] >= 6 && n[1 - home] >= 5);
  run_out_all();
  weft_replicas_reset_cache(rw.all); /* what was sent is forgotten, too */
  step_all(2);
  weft_request_params r = ask_other(9, 40, 8, tokens[2]);
  uint32_t next = ask_all(&r, 1);
  run_out_all();
  assert_int_not_equal(ask_all(&p, 1), next); /* the one that was given least */
  run_out_all();
}

static void siblings_go_together_and_prompts_apart(void **state) {
  int32_t tokens[4][64];
  weft_request_params p[8];
  (void)state;
  open_replicas(2);
  for (int32_t k = 0; k < 4; k++) { /* four prompts of two choices, one submission */
    p[2 * k] = p[2 * k + 1] = ask_other(k, 40, 8, tokens[k]);
    p[2 * k].asked.sampling.temperature = p[2 * k + 1].asked.sampling.temperature = 1.0f;
    p[2 * k + 1].asked.sampling.choice = 1;
    p[2 * k + 1].joins = true;
  }
  (void)ask_all(p, 8);
  uint32_t n_first = 0;
  for (uint32_t k = 0; k < 4; k++) {
    weft_engine *a = weft_replicas_of(rw.all, rw.asked[2 * k]), *b = weft_replicas_of(rw.all, rw.asked[2 * k + 1]);
    assert_ptr_equal(a, b);
    n_first += a == weft_replicas_at(rw.all, 0);
  }
  assert_int_equal(n_first, 2);
  weft_request_params late = p[1]; /* of a request that was submitted before */
  late.joins = false, late.sibling = rw.asked[2], late.tokens = tokens[1], late.asked.sampling.choice = 2;
  (void)ask_all(&late, 1);
  assert_ptr_equal(weft_replicas_of(rw.all, rw.asked[8]), weft_replicas_of(rw.all, rw.asked[2]));
  run_out_all();
  weft_engine_stats s;
  weft_replicas_get_stats(rw.all, &s);
  assert_true(s.pager.n_forks >= 4);
}

/* Places, waiting, tokens a minute and memory: one for all. */
static void limits_are_of_the_whole_server(void **state) {
  static const weft_tenant_config tenants[3] = {
      {.weight = 0}, {.waiting_max = 2, .running_max = 3}, {.tokens_per_minute = 100}};
  int32_t tokens[64];
  weft_error error;
  (void)state;
  w.config.tenant = tenants;
  w.config.running_max = 4;
  w.config.waiting_max = 6;
  open_replicas(2);
  weft_request_params p = ask_other(1, 20, 12, tokens);
  p.tenant = 1; /* three that may run, two more */
  for (uint32_t i = 0; i < 5; i++) (void)ask_all(&p, 1);
  assert_int_equal(try_all(&p, 1, &error), WEFT_FULL);
  assert_non_null(strstr(error.text, "it has 5 requests, may have 5 (3 running and 2 waiting)"));
  uint32_t most = 0;
  for (uint32_t i = 0; i < 60; i++) {
    step_all(1);
    uint32_t n = n_running_on(0, 1) + n_running_on(1, 1);
    assert_true(n <= 3);
    if (n > most) most = n;
    assert_true(n_running_on(0, 1) <= 1 && n_running_on(1, 1) <= 2);
  }
  assert_int_equal(most, 3);
  run_out_all();
  weft_tenant_stats s;
  weft_replicas_get_tenant_stats(rw.all, 1, &s);
  assert_int_equal(s.n_finished, 5);
  assert_int_equal(s.n_refused[WEFT_REFUSED_TENANT_QUEUE], 1); /* once, not once a replica */
  p.tenant = 2; /* 32 tokens each: three of them are the minute's, wherever they go */
  p.asked.no_cache = true;
  for (uint32_t i = 0; i < 3; i++) (void)ask_all(&p, 1);
  run_out_all();
  assert_int_equal(try_all(&p, 1, &error), WEFT_RATE_LIMIT);
  p.tenant = 0; /* 2 x 4 + 6 places in all */
  for (uint32_t i = 0; i < 14; i++) (void)ask_all(&p, 1);
  assert_int_equal(try_all(&p, 1, &error), WEFT_FULL);
  assert_non_null(strstr(error.text, "there are 14 requests, and may be 14"));
  p.tenant = 1; /* gets a place of the flood's, whose newest request ends on whichever replica it was */
  (void)ask_all(&p, 1);
  run_out_all();
  weft_replicas_get_tenant_stats(rw.all, 0, &s);
  assert_int_equal(s.n_evicted, 1);
  assert_int_equal(s.n_finished, 14);
}

static void memory_is_of_the_whole_server(void **state) {
  int32_t tokens[64];
  weft_error error;
  (void)state;
  w.config.n_tenants = 1;
  weft_request_params p = ask_other(1, 20, 12, tokens);
  uint64_t each = weft_engine_request_bytes(&p, 12, 0);
  w.config.request_bytes_max = 3 * each;
  open_replicas(2);
  for (uint32_t i = 0; i < 3; i++) (void)ask_all(&p, 1);
  assert_int_equal(try_all(&p, 1, &error), WEFT_FULL);
  weft_engine_stats s;
  weft_replicas_get_stats(rw.all, &s);
  assert_int_equal(s.request_bytes, 3 * each);
  run_out_all();
}

/* A limit below the number of replicas: for each tenant other ones have a part, and where these broke the next one. */
static void a_small_limit_outlives_its_replica(void **state) {
  static const weft_tenant_config tenants[3] = {{.running_max = 1}, {.running_max = 1}, {.running_max = 2}};
  int32_t tokens[64];
  (void)state;
  w.config.tenant = tenants;
  open_replicas(3);
  weft_request_params p = ask_other(1, 20, 12, tokens);
  for (uint32_t i = 0; i < 3; i++) assert_int_equal(ask_all(&p, 1), 0);
  p.tenant = 1;
  for (uint32_t i = 0; i < 3; i++) assert_int_equal(ask_all(&p, 1), 1);
  p.tenant = 2;
  uint32_t n[3] = {0, 0, 0};
  for (uint32_t i = 0; i < 4; i++) n[ask_all(&p, 1)] += 1;
  assert_int_equal(n[0] + n[2], 4);
  assert_true(n[0] >= 1 && n[2] >= 1);
  weft_fake_runner_break(rw.runner[1]);
  run_out_all();
  p.tenant = 1;
  for (uint32_t i = 0; i < 3; i++) assert_int_equal(ask_all(&p, 1), 2);
  for (uint32_t i = 0; i < 80; i++) {
    step_all(1);
    assert_true(n_running_on(2, 1) <= 1 && n_running_on(0, 1) == 0);
  }
  run_out_all();
}

static void a_replica_that_breaks_leaves_the_others(void **state) {
  int32_t tokens[16][64];
  weft_error error = {{0}};
  (void)state;
  open_replicas(2);
  for (int32_t i = 0; i < 8; i++) {
    weft_request_params p = ask_other(i, 20, 12, tokens[i]);
    (void)ask_all(&p, 1);
  }
  step_all(2);
  weft_fake_runner_break(rw.runner[1]);
  run_out_all();
  uint32_t n_lost = 0;
  for (uint32_t i = 0; i < 8; i++) {
    w.engine = weft_replicas_of(rw.all, rw.asked[i]);
    weft_finish end = finish_of(rw.asked[i], NULL, NULL).finish;
    bool lost = w.engine == weft_replicas_at(rw.all, 1);
    assert_true((end == WEFT_FINISH_ERROR) == lost);
    n_lost += lost;
  }
  w.engine = NULL;
  assert_int_equal(n_lost, 4);
  weft_engine_stats s;
  weft_replicas_get_stats(rw.all, &s);
  assert_int_equal(s.broken_runners, 0); /* the model runs */
  for (int32_t i = 8; i < 14; i++) {
    weft_request_params p = ask_other(i, 20, 12, tokens[i]);
    assert_int_equal(ask_all(&p, 1), 0);
  }
  run_out_all();
  weft_fake_runner_break(rw.runner[0]);
  weft_request_params p = ask_other(20, 20, 12, tokens[14]);
  (void)ask_all(&p, 1);
  run_out_all();
  weft_replicas_get_stats(rw.all, &s);
  assert_int_equal(s.broken_runners, 1);
  assert_int_equal(try_all(&p, 1, &error), WEFT_E_DEVICE);
}

static void pins_are_in_every_replica(void **state) {
  int32_t tokens[3][64];
  weft_pin_info info[4];
  weft_error error = {{0}};
  uint32_t id[2];
  (void)state;
  w.config.pins_max = 2;
  open_replicas(2);
  weft_request_params p = ask_other(1, 32, 4, tokens[0]), q = ask_other(2, 32, 4, tokens[1]);
  const weft_pin_params pins[] = {{.domain.low = 1, .tokens = p.tokens, .n_tokens = 32},
                                  {.domain.low = 1, .tokens = q.tokens, .n_tokens = 32, .expires_us = 100000}};
  for (uint32_t i = 0; i < 2; i++)
    if (weft_replicas_pin(rw.all, &pins[i], ++w.now, &id[i], &error) != WEFT_OK) fail_msg("%s", error.text);
  assert_int_equal(weft_replicas_list_pins(rw.all, info, 4), 2);
  assert_false(info[0].held);
  uint64_t until = w.now + 200;
  while (!weft_replicas_idle(rw.all) && w.now < until) step_all(1);
  assert_int_equal(weft_replicas_list_pins(rw.all, info, 4), 2);
  assert_int_equal(info[0].id, id[0]);
  assert_int_equal(info[1].id, id[1]);
  assert_true(info[0].held && info[1].held);
  assert_int_equal(weft_replicas_pin(rw.all, &pins[0], ++w.now, &id[0], &error), WEFT_FULL);
  weft_engine_stats s;
  weft_replicas_get_stats(rw.all, &s);
  assert_int_equal(s.n_pins, 2);
  assert_int_equal(s.n_pins_held, 2);
  w.now = 200000; /* the second one expires in both */
  step_all(2);
  assert_int_equal(weft_replicas_list_pins(rw.all, info, 4), 1);
  assert_int_equal(weft_replicas_unpin(rw.all, info[0].id), WEFT_OK);
  assert_int_equal(weft_replicas_unpin(rw.all, info[0].id), WEFT_E_NOT_FOUND);
  step_all(2);
  assert_int_equal(weft_replicas_list_pins(rw.all, info, 4), 0);
  weft_fake_runner_break(rw.runner[0]); /* then a pin is one of the other */
  (void)ask_all(&p, 1);
  (void)ask_all(&q, 1);
  run_out_all();
  assert_int_equal(weft_replicas_pin(rw.all, &pins[0], ++w.now, &id[0], &error), WEFT_OK);
  until = w.now + 200;
  while (!weft_replicas_idle(rw.all) && w.now < until) step_all(1);
  assert_int_equal(weft_replicas_list_pins(rw.all, info, 4), 1);
  assert_true(info[0].held);
  assert_int_equal(weft_replicas_unpin(rw.all, id[0]), WEFT_OK);
  run_out_all();
}

static void cancel_and_drain_reach_each(void **state) {
  int32_t tokens[8][64];
  weft_error error = {{0}};
  (void)state;
  open_replicas(2);
  for (int32_t i = 0; i < 4; i++) {
    weft_request_params p = ask_other(i, 20, 40, tokens[i]);
    (void)ask_all(&p, 1);
  }
  step_all(3);
  for (uint32_t i = 0; i < 2; i++) weft_engine_cancel(weft_replicas_of(rw.all, rw.asked[i]), rw.asked[i]);
  weft_replicas_drain(rw.all);
  weft_request_params p = ask_other(5, 20, 12, tokens[5]);
  assert_int_equal(try_all(&p, 1, &error), WEFT_FULL);
  assert_non_null(strstr(error.text, "draining"));
  run_out_all();
  for (uint32_t i = 0; i < 4; i++) {
    w.engine = weft_replicas_of(rw.all, rw.asked[i]);
    weft_finish end = finish_of(rw.asked[i], NULL, NULL).finish;
    assert_true((end == WEFT_FINISH_CANCELLED) == (i < 2));
  }
  w.engine = NULL;
}

/* Another tenant has filled both replicas and the queue: who comes then waits no longer than beside a flood on one
 * device, and nobody's flood keeps it out. */
static void a_flood_holds_nobody_up(void **state) {
  static const weft_tenant_config tenants[3] = {{.running_max = 6}, {.weight = 0}, {.weight = 0}};
  int32_t tokens[N_ASKED][64];
  (void)state;
  w.config.tenant = tenants; /* so a place is free for others in each replica */
  w.config.running_max = 4;
  w.config.waiting_max = 16;
  open_replicas(2);
  for (int32_t i = 0; i < 24; i++) {
    weft_request_params p = ask_other(i, 40, 40, tokens[i]);
    (void)ask_all(&p, 1);
  }
  step_all(4);
  uint32_t n_replicas = 0;
  for (int32_t i = 24; i < 26; i++) {
    weft_request_params p = ask_other(i, 20, 4, tokens[i]);
    p.tenant = 1;
    uint32_t at = ask_all(&p, 1);
    n_replicas |= 1u << at;
    step_all(10); /* a prompt and four tokens */
    w.engine = weft_replicas_of(rw.all, rw.asked[rw.n_asked - 1]);
    assert_int_equal(finish_of(rw.asked[rw.n_asked - 1], NULL, NULL).finish, WEFT_FINISH_LENGTH);
    w.engine = NULL;
  }
  weft_tenant_stats flood;
  weft_replicas_get_tenant_stats(rw.all, 0, &flood);
  assert_true(flood.n_running + flood.n_waiting > 12); /* still there */
  assert_int_equal(flood.n_evicted, 1);                /* a place for the first, which the second one found free */
  assert_true(n_running_on(0, 0) <= 3 && n_running_on(1, 0) <= 3);
  run_out_all();
}

/* Two tenants that always want more share what both replicas compute by their weights. */
static void weights_share_all_replicas(void **state) {
  static const weft_tenant_config tenants[3] = {{.weight = 1}, {.weight = 3}, {.weight = 1}};
  int32_t tokens[N_ASKED][64];
  uint64_t n_rows[2];
  (void)state;
  w.config.tenant = tenants;
  w.config.running_max = 8;
  w.config.waiting_max = 48;
  w.config.rows_per_step = w.config.prefill_chunk = 12; /* rows are short */
  open_replicas(2);
  for (int32_t i = 0; i < 48; i++) {
    weft_request_params p = ask_other(i, 60, 30, tokens[i]);
    p.canvas = false;
    p.tenant = (uint32_t)i % 4 == 0 ? 0 : 1; /* three times as many, so that both last as long */
    (void)ask_all(&p, 1);
  }
  step_all(100);
  for (uint32_t t = 0; t < 2; t++) {
    weft_tenant_stats s;
    weft_replicas_get_tenant_stats(rw.all, t, &s);
    assert_true(s.n_waiting > 0);
    n_rows[t] = s.n_rows;
  }
  if (n_rows[1] < 2 * n_rows[0] || n_rows[1] > 4 * n_rows[0])
    fail_msg("%llu and %llu rows", (unsigned long long)n_rows[0], (unsigned long long)n_rows[1]);
  run_out_all();
}

static int plan_replicas(void **state) {
  rw = (replica_world){.n_asked = 0};
  return plan_fixture(state);
}

#define REPLICAS(f) cmocka_unit_test_setup_teardown(f, plan_replicas, close_replicas)

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_choice_is_a_table),
                                     cmocka_unit_test(prompts_are_remembered),
                                     cmocka_unit_test(counters_are_added_up),
                                     cmocka_unit_test(counters_of_engines_are_added_up),
                                     REPLICAS(answers_are_those_of_one),
                                     REPLICAS(a_conversation_stays_and_a_flood_spreads),
                                     REPLICAS(siblings_go_together_and_prompts_apart),
                                     REPLICAS(limits_are_of_the_whole_server),
                                     REPLICAS(memory_is_of_the_whole_server),
                                     REPLICAS(a_small_limit_outlives_its_replica),
                                     REPLICAS(a_replica_that_breaks_leaves_the_others),
                                     REPLICAS(pins_are_in_every_replica),
                                     REPLICAS(cancel_and_drain_reach_each),
                                     REPLICAS(a_flood_holds_nobody_up),
                                     REPLICAS(weights_share_all_replicas)};
  return cmocka_run_group_tests(tests, expect_broken_runners, NULL);
}
