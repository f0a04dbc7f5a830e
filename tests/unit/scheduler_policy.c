/* SPDX-License-Identifier: MIT */
/* Policies as tables, and the small structures beside them: deadlines against a naive list, canvas
 * events, tenant queues. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/random.h"
#include "scheduler/canvas_ring.h"
#include "scheduler/cost.h"
#include "scheduler/deadline.h"
#include "scheduler/latency.h"
#include "scheduler/policy.h"
#include "scheduler/queue_share.h"
#include "scheduler/tenant.h"

static void victim_is_the_last_in_rank(void **state) {
  static const uint32_t no_excess[1] = {0};
  (void)state;
  weft_rank running[] = {{.arrival = 4, .priority = 0},
                         {.arrival = 1, .priority = 0},
                         {.arrival = 9, .priority = 2},
                         {.arrival = 6, .priority = 0}};
  assert_int_equal(weft_policy_victim(running, 4, &running[1], no_excess, false), 3);
  assert_int_equal(weft_policy_victim(running, 4, &running[2], no_excess, false), 3);
  assert_int_equal(weft_policy_victim(running, 4, &running[3], no_excess, false),
                   WEFT_POLICY_NONE); /* never one above it, never itself */
  running[3].excluded = true;
  assert_int_equal(weft_policy_victim(running, 4, &running[1], no_excess, false), 0);
  assert_int_equal(weft_policy_victim(running, 4, &running[0], no_excess, false), WEFT_POLICY_NONE);
  running[0].priority = 5;
  assert_int_equal(weft_policy_victim(running, 4, &running[2], no_excess, false), 1);
  assert_int_equal(weft_policy_victim(running, 0, &running[2], no_excess, false), WEFT_POLICY_NONE);
}

/* Among those below in rank: the lowest class, the tenant furthest beyond its share, the last. */
static void victims_by_class_share_arrival(void **state) {
  (void)state;
  const weft_rank running[] = {{.arrival = 1, .tenant = 0},
                               {.arrival = 2, .tenant = 1},
                               {.arrival = 3, .tenant = 1},
                               {.arrival = 4, .tenant = 2},
                               {.arrival = 5, .tenant = 0}};
  const uint32_t excess[] = {0, 30, 20};
  assert_int_equal(weft_policy_victim(running, 5, &running[0], excess, false), 2);
  assert_int_equal(weft_policy_victim(running, 5, &running[2], excess, false), 3); /* never above it */
  assert_int_equal(weft_policy_victim(running, 5, &running[3], excess, false), 4);
  assert_int_equal(weft_policy_victim(running, 5, &running[0], excess, true), 4);
  assert_int_equal(weft_policy_victim(running, 5, &running[1], excess, true), 2);
  assert_int_equal(weft_policy_victim(running, 5, &running[3], excess, true), WEFT_POLICY_NONE);
  weft_rank low[5];
  memcpy(low, running, sizeof low);
  low[4].priority = -1;
  assert_int_equal(weft_policy_victim(low, 5, &low[0], excess, false), 4);
}

static void due_by_level_clock_arrival(void **state) {
  (void)state;
  weft_candidate used = {.tenant_clock = 50, .arrival = 1}, late = {.tenant_clock = 20, .arrival = 7},
                 early = {.tenant_clock = 20, .arrival = 5}, high = {.tenant_clock = 900, .arrival = 9, .level = 1};
  assert_true(weft_policy_is_due_before(&late, &used));
  assert_false(weft_policy_is_due_before(&used, &late));
  assert_true(weft_policy_is_due_before(&early, &late));
  assert_false(weft_policy_is_due_before(&late, &late));
  assert_true(weft_policy_is_due_before(&high, &early));
}

/* A request of the lowest class is at the highest level after twice WEFT_AGE_US, and no higher. */
static void levels_rise_with_age(void **state) {
  (void)state;
  assert_int_equal(weft_policy_level(0, 0), 0);
  assert_int_equal(weft_policy_level(-1, WEFT_AGE_US - 1), -1);
  assert_int_equal(weft_policy_level(-1, WEFT_AGE_US), 0);
  assert_int_equal(weft_policy_level(-1, 2 * WEFT_AGE_US), 1);
  assert_int_equal(weft_policy_level(-1, UINT64_MAX), 1);
  assert_int_equal(weft_policy_level(1, UINT64_MAX), 1);
}

static void turns(void **state) {
  (void)state;
  const double even[] = {5, 5, 5}, uneven[] = {9, 2, 7};
  assert_int_equal(weft_policy_turn(0, even, 0x7, 3, 0), 1); /* equals take turns */
  assert_int_equal(weft_policy_turn(2, even, 0x7, 3, 0), 0);
  assert_int_equal(weft_policy_turn(0, even, 0x5, 3, 0), 2); /* no work on lane 1 */
  assert_int_equal(weft_policy_turn(0, even, 0x7, 3, 1), 0); /* goes on within its slice */
  assert_int_equal(weft_policy_turn(0, uneven, 0x7, 3, 7), 1);
  assert_int_equal(weft_policy_turn(0, uneven, 0x7, 3, 8), 0);
  assert_int_equal(weft_policy_turn(0, uneven, 0x6, 3, 8), 1); /* no work any more */
  assert_int_equal(weft_policy_turn(2, uneven, 0x5, 3, 0), 2);
  assert_int_equal(weft_policy_turn(1, uneven, 0x2, 3, 0), 1); /* alone: goes on */
  assert_int_equal(weft_policy_turn(1, uneven, 0x0, 3, 9), WEFT_POLICY_NONE);
}

/* Used less than half of its share: of one of two equals less than a quarter of all. */
static void who_is_light(void **state) {
  static const struct {
    double used, all;
    uint64_t weight, weights;
    bool light;
  } table[] = {
      {0, 0, 1, 2, false},                              /* nobody has used anything */
      {0, 100, 1, 2, true},                             /* it just came */
      {24, 100, 1, 2, true},                            /* of 50 that are its share */
      {25, 100, 1, 2, false},   {50, 100, 1, 2, false}, /* all use their shares */
      {0, 100, 2, 2, false},                            /* it is alone */
      {20, 1000, 1, 20, true},                          /* one of twenty: its share is 50 */
      {25, 1000, 1, 20, false}, {40, 100, 9, 10, true}, /* a share of 90 */
      {4, 100, 1, 10, true},                            /* beside it: a share of 10 */
      {5, 100, 1, 10, false},
  };
  (void)state;
  for (uint32_t i = 0; i < sizeof table / sizeof *table; i++) {
    bool light = weft_policy_is_light(table[i].used, table[i].all, table[i].weight, table[i].weights);
    if (light != table[i].light) fail_msg("line %u: %d", i, light);
  }
}

/* Eight times what its rows take at its share of the device, and of k models in use a k-th of that for a step. */
static void how_long_beside_a_light_tenant(void **state) {
  static const struct {
    double alone;
    uint64_t weight, weights;
    uint32_t n_lanes;
    double step;
  } table[] = {
      {2000, 1, 2, 1, 32000}, {2000, 1, 4, 1, 64000}, {2000, 3, 4, 1, 8 * 2000 * 4.0 / 3},
      {500, 1, 2, 1, 8000},   {2000, 1, 2, 2, 16000}, {2000, 1, 10, 2, 80000},
      {2000, 1, 2, 8, 16000}, /* its turn among eight models is less */
      {2000, 1, 2, 0, 32000},
  };
  (void)state;
  for (uint32_t i = 0; i < sizeof table / sizeof *table; i++) {
    double us = weft_policy_light_step(table[i].alone, table[i].weight, table[i].weights, table[i].n_lanes);
    if (us < 0.999 * table[i].step || us > 1.001 * table[i].step) fail_msg("line %u: %.0f us", i, us);
  }
}

static void margins_and_squeeze(void **state) {
  (void)state;
  assert_int_equal(weft_policy_margin(0, 1000), 0);
  assert_int_equal(weft_policy_margin(20, 1000), 20);
  assert_int_equal(weft_policy_margin(500, 1000), 125);
  assert_false(weft_policy_prefill_first(3));
  assert_true(weft_policy_prefill_first(4));
}

static void forecasts_count_keys_as_rows(void **state) {
  (void)state;
  assert_int_equal(weft_cost_in_rows(1, 0), 1);
  assert_int_equal(weft_cost_in_rows(256, 0), 256);
  assert_true(weft_cost_in_rows(256, UINT64_C(256) * 100000) > 256);
}

static void latency_buckets(void **state) {
  (void)state;
  uint64_t buckets[20] = {0};
  for (uint32_t i = 0; i < 19; i++) {
    if (i > 0) assert_true(weft_latency_bounds_us[i] > weft_latency_bounds_us[i - 1]);
    weft_latency_count(buckets, weft_latency_bounds_us[i]);
    weft_latency_count(buckets, weft_latency_bounds_us[i] + 1);
  }
  assert_int_equal(buckets[0], 1);
  for (uint32_t i = 1; i < 19; i++) assert_int_equal(buckets[i], 2);
  assert_int_equal(buckets[19], 1);
}

/* ---- deadlines ------------------------------------------------------------------------------- */

enum { N_OWNERS = 64 };

typedef struct owner {
  uint32_t index;
  uint64_t at_us; /* 0: none */
} owner;

static void deadlines_like_a_naive_list(void **state) {
  (void)state;
  weft_deadlines d;
  owner owners[N_OWNERS] = {{0}};
  assert_int_equal(weft_deadlines_open(&d, N_OWNERS), WEFT_OK);
  for (uint32_t i = 0; i < N_OWNERS; i++) owners[i].index = WEFT_DEADLINE_NONE;
  for (uint64_t step = 1; step < 20000; step++) {
    uint64_t bits = weft_mix64(step);
    owner *o = &owners[bits % N_OWNERS];
    if (o->at_us == 0) {
      o->at_us = 1 + (bits >> 32) % 1000;
      weft_deadlines_add(&d, o->at_us, o, &o->index);
    } else {
      o->at_us = 0;
      weft_deadlines_remove(&d, &o->index);
      assert_int_equal(o->index, WEFT_DEADLINE_NONE);
      weft_deadlines_remove(&d, &o->index); /* nothing to do */
    }
    uint64_t first = UINT64_MAX, now = (bits >> 16) % 1000;
    for (uint32_t i = 0; i < N_OWNERS; i++)
      if (owners[i].at_us != 0 && owners[i].at_us < first) first = owners[i].at_us;
    assert_int_equal(weft_deadlines_next_us(&d), first);
    owner *expired = weft_deadlines_expired(&d, now);
    if (first > now)
      assert_null(expired);
    else
      assert_int_equal(expired->at_us, first);
  }
  weft_deadlines_close(&d);
}

/* ---- canvas events --------------------------------------------------------------------------- */

static void canvas_ring_drops_the_oldest(void **state) {
  (void)state;
  enum { N = 3 };
  uint32_t capacity = weft_canvas_ring_capacity(N, 2, true);
  assert_int_equal(capacity, 4); /* never fewer */
  assert_int_equal(weft_canvas_ring_capacity(1024, UINT64_MAX, true), (1u << 20) / (1024 * 21));
  void *memory = weft_alloc(1, weft_canvas_ring_bytes(N, capacity, true));
  weft_canvas_ring ring;
  weft_canvas_ring_open(&ring, memory, N, capacity, true);
  assert_null(weft_canvas_ring_peek(&ring));
  int32_t tokens[N];
  float entropy[N] = {0.5f, 0.25f, 0.125f};
  uint8_t accepted[N] = {1, 0, 1};
  for (uint32_t step = 0; step < 6; step++) {
    for (uint32_t i = 0; i < N; i++) tokens[i] = (int32_t)(10 * step + i);
    weft_segment_result result = {.argmax = tokens,
                                  .canvas_in = tokens,
                                  .drawn = tokens,
                                  .canvas_out = tokens,
                                  .entropy = entropy,
                                  .accepted = accepted,
                                  .n_accepted = step,
                                  .stopped = step == 5};
    weft_canvas_ring_push(&ring, &result, 1, step, 7);
  }
  uint32_t n_dropped = 99;
  for (uint32_t step = 2; step < 6; step++) {
    const weft_canvas_record *record = weft_canvas_ring_take(&ring, &n_dropped);
    assert_int_equal(n_dropped, step == 2 ? 2 : 0);
    assert_int_equal(record->step, step);
    assert_int_equal(record->argmax[1], (int32_t)(10 * step + 1));
    assert_int_equal(record->canvas_out[2], (int32_t)(10 * step + 2));
    assert_memory_equal(record->entropy, entropy, sizeof entropy);
    assert_memory_equal(record->accepted, accepted, sizeof accepted);
    assert_int_equal(record->stopped, step == 5);
  }
  assert_null(weft_canvas_ring_take(&ring, &n_dropped));
  weft_free(memory);
}

/* ---- tenants --------------------------------------------------------------------------------- */

static weft_request waiting(uint32_t tenant, uint64_t arrival, int32_t priority) {
  weft_request r;
  memset(&r, 0, sizeof r);
  weft_list_init(&r.link);
  r.tenant = tenant;
  r.arrival = arrival;
  r.params.asked.priority = priority;
  return r;
}

static weft_request *next(weft_tenants *t) {
  weft_request *r = weft_tenants_first(t, 0, 0);
  if (r == NULL) return NULL;
  weft_list_remove(&r->link);
  weft_tenants_dequeued(t, r);
  t->tenant[r->tenant].stats.n_running += 1;
  return r;
}

/* A plan of n rows of one tenant; a row is a microsecond. */
static void plan_rows(weft_tenants *t, uint32_t tenant, uint32_t n) {
  weft_cost_model model;
  weft_cost_open(&model, &(weft_cost_layers){0});
  memset(model.us, 0, sizeof model.us);
  t->tenant[tenant].planned.n_rows = n;
  weft_cost_shape step = weft_tenants_planned(t);
  weft_tenants_settle(t, 0, &model, &step);
}

static void clocks(void **state) {
  (void)state;
  weft_tenants t;
  weft_tenant_config config[3] = {{.weight = 1}, {.weight = 4}, {0}};
  assert_int_equal(weft_tenants_open(&t, config, 3, 1), WEFT_OK);
  weft_request r[3];
  for (uint32_t i = 0; i < 3; i++) {
    r[i] = waiting(i, i, 0);
    weft_tenants_enqueue(&t, &r[i]);
  }
  for (uint32_t i = 0; i < 3; i++) plan_rows(&t, i, 100); /* by weight; 0 means 1 */
  for (uint32_t i = 0; i < 3; i++) t.claims[i].wants = 0; /* as a plan of the lane finds */
  assert_int_equal(t.tenant[0].clock, 4 * t.tenant[1].clock);
  assert_int_equal(t.tenant[2].clock, t.tenant[0].clock);
  /* Two want more and keep what they are owed; who wants nothing is raised to the least of them. */
  plan_rows(&t, 0, 900);
  t.claims[0].wants = t.claims[2].wants = 1;
  weft_tenants_level(&t, 1);
  assert_int_equal(t.now, t.tenant[2].clock);
  assert_int_equal(t.tenant[1].clock, t.tenant[2].clock);
  assert_int_equal(t.tenant[0].clock, 10 * t.tenant[2].clock);
  /* What a tenant wants of a lane without requests counts no more; with all content, all are level. */
  weft_tenants_level(&t, 2);
  for (uint32_t i = 1; i < 3; i++) assert_int_equal(t.tenant[i].clock, t.tenant[0].clock);
  /* Who comes back starts where the others are. */
  for (uint32_t i = 0; i < 3; i++) {
    assert_ptr_equal(weft_tenants_any(&t, 0), &r[i]);
    weft_list_remove(&r[i].link);
    weft_tenants_dequeued(&t, &r[i]);
  }
  plan_rows(&t, 0, 5000);
  weft_tenants_level(&t, 1);
  weft_tenants_enqueue(&t, &r[1]);
  assert_int_equal(t.tenant[1].clock, t.tenant[0].clock);
  weft_tenants_close(&t);
}

/* A priority is worth WEFT_AGE_US of waiting, so it delays nobody for ever. */
static void priorities_age(void **state) {
  (void)state;
  weft_request low = waiting(0, 1, 0), high = waiting(0, 2, 1);
  assert_true(weft_tenants_queued_before(&high, &low));
  high.usage.submitted_us = WEFT_AGE_US;
  assert_true(weft_tenants_queued_before(&low, &high));
}

static void queue_order(void **state) {
  (void)state;
  weft_tenants t;
  assert_int_equal(weft_tenants_open(&t, NULL, 1, 1), WEFT_OK);
  weft_request a = waiting(0, 1, 0), b = waiting(0, 2, 0), c = waiting(0, 3, 4), d = waiting(0, 0, 0);
  weft_tenants_enqueue(&t, &a);
  weft_tenants_enqueue(&t, &b);
  weft_tenants_enqueue(&t, &c);
  d.admitted_once = true; /* preempted: arrived before all others */
  weft_tenants_enqueue(&t, &d);
  assert_ptr_equal(next(&t), &c);
  assert_ptr_equal(next(&t), &d);
  assert_ptr_equal(next(&t), &a);
  assert_ptr_equal(weft_tenants_any(&t, 0), &b);
  assert_ptr_equal(next(&t), &b);
  assert_null(next(&t));
  assert_null(weft_tenants_any(&t, 0));
  weft_tenants_close(&t);
}

/* ---- the share of the queue ------------------------------------------------------------------ */

typedef struct queue_row {
  const char *what;
  weft_queue_part part[4];
  uint32_t submitter, n_more, gives_way; /* 4: nobody */
} queue_row;

static void the_largest_part_gives_way(void **state) {
  (void)state;
  static const queue_row rows[] = {
      {"one tenant has all", {{8, 1}, {0, 1}, {0, 1}, {0, 1}}, 1, 1, 0},
      {"the one that fills the queue gains nothing from itself", {{8, 1}, {0, 1}, {0, 1}, {0, 1}}, 0, 1, 4},
      {"up to as much as the other will have", {{5, 1}, {3, 1}, {0, 1}, {0, 1}}, 1, 1, 0},
      {"and not beyond", {{4, 1}, {3, 1}, {0, 1}, {0, 1}}, 1, 1, 4},
      {"the largest of several", {{3, 1}, {5, 1}, {4, 1}, {0, 1}}, 3, 1, 1},
      {"the first of equals", {{1, 1}, {4, 1}, {4, 1}, {0, 1}}, 3, 1, 1},
      {"for its weight: 6 of weight 3 are less than 3 of weight 1", {{6, 3}, {3, 1}, {0, 1}, {0, 1}}, 2, 1, 1},
      {"a heavy one may have more", {{5, 1}, {9, 2}, {0, 1}, {0, 1}}, 1, 1, 4},
      {"less of it", {{6, 1}, {9, 2}, {0, 1}, {0, 1}}, 1, 1, 0},
      {"all that come together count", {{4, 1}, {0, 1}, {0, 1}, {0, 1}}, 1, 3, 0},
      {"they would be as many", {{4, 1}, {0, 1}, {0, 1}, {0, 1}}, 1, 4, 4},
      {"nobody has anything", {{0, 1}, {0, 1}, {0, 1}, {0, 1}}, 0, 1, 4},
      {"large numbers", {{UINT32_MAX, 1000}, {UINT32_MAX - 1, 1000}, {0, 1}, {0, 1}}, 2, 1, 0},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_queue_part will_have = rows[i].part[rows[i].submitter];
    will_have.n += rows[i].n_more;
    uint32_t got = weft_queue_who_gives_way(rows[i].part, 4, rows[i].submitter, will_have);
    if (got != rows[i].gives_way) fail_msg("%s: %u, wanted %u", rows[i].what, got, rows[i].gives_way);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(victim_is_the_last_in_rank),
                                     cmocka_unit_test(victims_by_class_share_arrival),
                                     cmocka_unit_test(due_by_level_clock_arrival),
                                     cmocka_unit_test(levels_rise_with_age),
                                     cmocka_unit_test(turns),
                                     cmocka_unit_test(who_is_light),
                                     cmocka_unit_test(how_long_beside_a_light_tenant),
                                     cmocka_unit_test(margins_and_squeeze),
                                     cmocka_unit_test(forecasts_count_keys_as_rows),
                                     cmocka_unit_test(latency_buckets),
                                     cmocka_unit_test(deadlines_like_a_naive_list),
                                     cmocka_unit_test(canvas_ring_drops_the_oldest),
                                     cmocka_unit_test(clocks),
                                     cmocka_unit_test(priorities_age),
                                     cmocka_unit_test(queue_order),
                                     cmocka_unit_test(the_largest_part_gives_way)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
