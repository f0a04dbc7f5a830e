/* SPDX-License-Identifier: MIT */
/* The order between the stream of products and the stream of copies of experts, on two streams that are made of tasks:
 * a task may begin when everything it waits for has ended, and which of those begins or ends next is up to a policy.
 * The worst ones (products as early as they can be beside copies that take for ever, and the other way round) make a
 * missing wait visible every time; no clock is involved.
 *
 *   with every wait, no product reads a slot that does not hold its weight from its beginning to its end, call by call
 *   and in graphs, whatever the policy
 *   with one kind of wait or of event left out, some product does, or the capture is one that a card refuses */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "kernels/expert_slots.h"
#include "tests/support/amount.h"

enum { TASKS_MAX = 4000, DEPS_MAX = 32, WEIGHTS_MAX = 24, SLOTS_READ_MAX = EXPERT_SLOTS, NOTHING = -1 };

typedef enum fault {
  NO_FAULT,
  NO_WAIT_FOR_READY, /* of a product for its copy */
  NO_WAIT_FOR_FREE,  /* of a copy for the products that read its slot */
  NO_WAIT_AT_JOIN,   /* around captures and before launches */
  NO_READY_EVENT,    /* it is never recorded */
  NO_FREE_EVENT,
  FAULTS
} fault;

static const char *const fault_names[FAULTS] = {"nothing",
                                                "the wait for a copy",
                                                "the wait for products",
                                                "the wait at a join",
                                                "the event of a copy",
                                                "the event of products"};

typedef enum policy { COPIES_LAST, PRODUCTS_LAST, BY_CHANCE } policy;

/* What must have ended: tasks by their number. captured: of the graph being recorded. */
typedef struct moment {
  uint32_t n, task[DEPS_MAX];
  bool captured, recorded;
} moment;

typedef enum task_state { WAITS, RUNS, ENDED } task_state;

typedef struct task {
  moment after;
  bool copies;
  uint32_t n_slots, slot[SLOTS_READ_MAX];
  int32_t weight[SLOTS_READ_MAX]; /* that the slot shall hold */
  task_state state;
} task;

typedef struct list {
  task task[TASKS_MAX];
  uint32_t n;
} list;

typedef struct card {
  list live, graph;
  moment stream[2], live_stream[2], event[EXPERT_SLOTS_EVENTS], graph_end;
  bool capturing, joining;
  bool refuses; /* to record */
  fault fault;
  uint32_t n_faults; /* calls that were left out */
  const char *wrong; /* NULL: nothing yet */
  expert_slots slots;
  int32_t weight[WEIGHTS_MAX]; /* their addresses are the weights */
  int32_t memory[EXPERT_SLOTS];
} card;

/* ---- streams ---------------------------------------------------------------------------------------------- */

static void add_dep(moment *m, uint32_t t) {
  for (uint32_t i = 0; i < m->n; i++) {
    if (m->task[i] == t) return;
  }
  assert_true(m->n < DEPS_MAX);
  m->task[m->n++] = t;
}

static task *enqueue(card *c, expert_stream stream) {
  moment *at = &c->stream[stream];
  list *l = at->captured ? &c->graph : &c->live;
  assert_true(l->n < TASKS_MAX);
  task *t = &l->task[l->n];
  *t = (task){.after = *at};
  *at = (moment){.captured = at->captured, .n = 1, .task = {l->n++}};
  return t;
}

static bool left_out(card *c, fault which) {
  if (c->fault != which) return false;
  c->n_faults += 1;
  return true;
}

static weft_status call_record(void *self, uint32_t event, expert_stream stream) {
  card *c = self;
  assert_true(event < EXPERT_SLOTS_EVENTS);
  if (c->refuses) return WEFT_E_DEVICE;
  if (left_out(c, event % 2 == 1 ? NO_READY_EVENT : NO_FREE_EVENT)) return WEFT_OK;
  c->event[event] = c->stream[stream];
  c->event[event].recorded = true;
  return WEFT_OK;
}

static weft_status call_wait(void *self, uint32_t event, expert_stream stream) {
  card *c = self;
  moment *at = &c->stream[stream], *e = &c->event[event];
  fault which = c->joining ? NO_WAIT_AT_JOIN : event % 2 == 1 ? NO_WAIT_FOR_READY : NO_WAIT_FOR_FREE;
  assert_int_equal(stream, event % 2 == 1 ? EXPERT_STREAM_MAIN : EXPERT_STREAM_COPY);
  if (left_out(c, which) || !e->recorded) return WEFT_OK; /* as a card: an event that nobody recorded is past */
  if (e->captured && !c->capturing) c->wrong = "a wait for an event of a capture that is over";
  if (!e->captured && at->captured) c->wrong = "a capture waits for an event from outside of it";
  if (c->wrong != NULL) return WEFT_OK;
  if (e->captured && !at->captured) *at = (moment){.captured = true}; /* the stream joins the capture */
  for (uint32_t i = 0; i < e->n; i++) add_dep(at, e->task[i]);
  return WEFT_OK;
}

static weft_status call_copy(void *self, uint32_t slot, const void *from, uint64_t n_bytes) {
  card *c = self;
  task *t = enqueue(c, EXPERT_STREAM_COPY);
  assert_true(slot < EXPERT_SLOTS && n_bytes == sizeof(int32_t));
  t->copies = true;
  t->n_slots = 1;
  t->slot[0] = slot;
  t->weight[0] = *(const int32_t *)from;
  return WEFT_OK;
}

static const expert_slots_calls calls = {call_copy, call_record, call_wait};

static void join(card *c) {
  c->joining = true;
  assert_int_equal(expert_slots_join(&c->slots), WEFT_OK);
  c->joining = false;
}

/* As the device does it (graph_capture, graph_capture_end, graph_launch of kernels/cuda/device.cu). */
static void begin_capture(card *c) {
  join(c);
  c->live_stream[EXPERT_STREAM_MAIN] = c->stream[EXPERT_STREAM_MAIN];
  c->live_stream[EXPERT_STREAM_COPY] = c->stream[EXPERT_STREAM_COPY];
  c->stream[EXPERT_STREAM_MAIN] = (moment){.captured = true};
  c->graph.n = 0;
  c->capturing = true;
}

static bool reaches(const list *l, const moment *from, uint32_t wanted) {
  for (uint32_t i = 0; i < from->n; i++) {
    if (from->task[i] == wanted || reaches(l, &l->task[from->task[i]].after, wanted)) return true;
  }
  return false;
}

static void end_capture(card *c) {
  join(c);
  c->graph_end = c->stream[EXPERT_STREAM_MAIN];
  const moment *copying = &c->stream[EXPERT_STREAM_COPY];
  for (uint32_t i = 0; copying->captured && i < copying->n; i++) {
    if (!reaches(&c->graph, &c->graph_end, copying->task[i])) c->wrong = "a capture ends with copies on their way";
  }
  for (uint32_t s = 0; s < 2; s++) c->stream[s] = c->live_stream[s];
  c->capturing = false;
}

static void launch(card *c) {
  join(c);
  uint32_t first = c->live.n + 1;
  (void)enqueue(c, EXPERT_STREAM_MAIN); /* the launch itself: all of the graph comes after it */
  for (uint32_t i = 0; i < c->graph.n; i++) {
    assert_true(c->live.n < TASKS_MAX);
    task *t = &c->live.task[c->live.n++];
    *t = c->graph.task[i];
    t->after.captured = false;
    for (uint32_t k = 0; k < t->after.n; k++) t->after.task[k] += first;
    if (t->after.n == 0) add_dep(&t->after, first - 1);
  }
  moment *end = &c->stream[EXPERT_STREAM_MAIN];
  end->n = 0;
  for (uint32_t i = 0; i < c->graph_end.n; i++) add_dep(end, c->graph_end.task[i] + first);
  (void)enqueue(c, EXPERT_STREAM_MAIN);
}

/* ---- a model ---------------------------------------------------------------------------------------------- */

/* Layers of n_each weights each, of which the first n_near lie on the card. */
typedef struct shape {
  uint32_t n_layers, n_each, n_near;
} shape;

static void run_layer(card *c, const shape *s, uint32_t layer) {
  uint32_t slot[SLOTS_READ_MAX], n = 0;
  int32_t held[SLOTS_READ_MAX];
  for (uint32_t i = layer * s->n_each; i < (layer + 1) * s->n_each; i++) {
    uint32_t at;
    assert_int_equal(expert_slots_bring(&c->slots, &c->weight[i], &at), WEFT_OK);
    assert_int_equal(at == EXPERT_SLOTS, i < s->n_near);
    if (at == EXPERT_SLOTS) continue;
    for (uint32_t k = 0; k < n; k++) assert_int_not_equal(slot[k], at);
    held[n] = c->weight[i];
    slot[n++] = at;
  }
  task *product = enqueue(c, EXPERT_STREAM_MAIN);
  product->n_slots = n;
  memcpy(product->slot, slot, n * sizeof *slot);
  memcpy(product->weight, held, n * sizeof *held);
  assert_int_equal(expert_slots_done(&c->slots), WEFT_OK);
}

static void run_step(card *c, const shape *s) {
  for (uint32_t l = 0; l < s->n_layers; l++) run_layer(c, s, l);
}

static void open_card(card *c, const shape *s, fault f) {
  memset(c, 0, sizeof *c);
  c->fault = f;
  expert_slots_open(&c->slots, &calls, c);
  for (uint32_t i = 0; i < EXPERT_SLOTS; i++) c->memory[i] = NOTHING;
  for (uint32_t i = 0; i < s->n_layers * s->n_each; i++) {
    c->weight[i] = (int32_t)i;
    if (i >= s->n_near) assert_int_equal(expert_slots_keep(&c->slots, &c->weight[i], sizeof c->weight[i]), WEFT_OK);
  }
}

/* Steps call by call, as a graph (captured, launched, launched again), and one after the other. */
static void enqueue_all(card *c, const shape *s) {
  for (uint32_t round = 0; round < 2; round++) {
    run_step(c, s);
    run_step(c, s);
    begin_capture(c);
    run_step(c, s);
    end_capture(c);
    if (c->wrong != NULL) return;
    launch(c);
    launch(c);
    run_layer(c, s, 0); /* copies for the next layers are on their way when the graph is launched */
    launch(c);
  }
  run_step(c, s);
}

/* ---- time ------------------------------------------------------------------------------------------------- */

static bool can_begin(const list *l, const task *t) {
  if (t->state != WAITS) return false;
  for (uint32_t i = 0; i < t->after.n; i++) {
    if (l->task[t->after.task[i]].state != ENDED) return false;
  }
  return true;
}

static bool can_move(const list *l, const task *t) {
  return t->state == RUNS || can_begin(l, t);
}

/* The next task to begin or to end; NULL: all have ended. */
static task *choose(card *c, policy p, uint64_t *random) {
  task *chosen = NULL;
  uint32_t n = 0;
  for (uint32_t i = 0; i < c->live.n; i++) {
    task *t = &c->live.task[i];
    if (!can_move(&c->live, t)) continue;
    bool last = t->copies == (p == COPIES_LAST) && t->state == RUNS; /* it begins at once, and ends when it must */
    n += 1;
    if (p == BY_CHANCE && weft_mix64(++*random) % n == 0) chosen = t;
    if (p != BY_CHANCE) chosen = t; /* of those that end last the newest first */
    if (p != BY_CHANCE && !last) break;
  }
  return chosen;
}

static void move(card *c, task *t) {
  for (uint32_t i = 0; i < t->n_slots; i++) {
    int32_t *at = &c->memory[t->slot[i]];
    if (t->copies) *at = t->state == WAITS ? NOTHING : t->weight[i];
    if (!t->copies && *at != t->weight[i]) c->wrong = "a product read something else than its weight";
  }
  t->state = t->state == WAITS ? RUNS : ENDED;
}

static const char *play(const shape *s, fault f, policy p, uint64_t seed, uint32_t *n_faults) {
  static card c;
  task *next;
  open_card(&c, s, f);
  enqueue_all(&c, s);
  if (n_faults != NULL) *n_faults += c.n_faults;
  while (c.wrong == NULL && (next = choose(&c, p, &seed)) != NULL) move(&c, next);
  for (uint32_t i = 0; c.wrong == NULL && i < c.live.n; i++) assert_int_equal(c.live.task[i].state, ENDED);
  return c.wrong;
}

/* ---- tests ------------------------------------------------------------------------------------------------ */

static const shape shapes[] = {{6, 2, 0}, {6, 3, 0}, {5, 3, 4}, {4, 1, 0}, {1, 2, 0}, {5, 4, 0}, {3, 2, 5}};

static void test_with_every_wait(void **state) {
  uint32_t n_seeds = test_amount(5, 20, 500);
  (void)state;
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    const char *wrong = play(&shapes[i], NO_FAULT, COPIES_LAST, 0, NULL);
    if (wrong == NULL) wrong = play(&shapes[i], NO_FAULT, PRODUCTS_LAST, 0, NULL);
    for (uint64_t seed = 1; wrong == NULL && seed <= n_seeds; seed++)
      wrong = play(&shapes[i], NO_FAULT, BY_CHANCE, seed << 32, NULL);
    if (wrong != NULL) fail_msg("shape %zu: %s", i, wrong);
  }
}

/* A fault of a join shows only where copies are on their way at a launch to slots that the graph's own copies take,
 * which takes other shapes and policies than the rest. */
static void test_without_one(void **state) {
  (void)state;
  for (fault f = NO_FAULT + 1; f < FAULTS; f++) {
    uint32_t n_faults = 0, n_seen = 0, n_played = 0;
    const char *wrong = NULL;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
      for (uint64_t seed = 0; seed < 22; seed++, n_played++) {
        const char *found = play(&shapes[i], f, seed < 2 ? (policy)seed : BY_CHANCE, seed << 32, &n_faults);
        n_seen += found != NULL;
        wrong = found != NULL ? found : wrong;
      }
    }
    if (wrong == NULL) fail_msg("without %s everything was as it should be", fault_names[f]);
    print_message("without %s, seen in %u of %u: %s\n", fault_names[f], n_seen, n_played, wrong);
    assert_true(n_faults > 0);
  }
}

/* The weights that follow are fetched while products run: a card that waits for every copy would be right and slow. */
static void test_copies_are_ahead(void **state) {
  static card c;
  const shape s = {6, 2, 0};
  (void)state;
  open_card(&c, &s, NO_FAULT);
  run_layer(&c, &s, 0);
  run_layer(&c, &s, 1);
  uint32_t n_copies = 0, product = 0;
  for (uint32_t i = 0; i < c.live.n; i++) {
    n_copies += c.live.task[i].copies;
    if (!c.live.task[i].copies) product = i;
  }
  assert_int_equal(n_copies, 6); /* of both layers, and the next one's */
  for (uint32_t i = product + 1; i < c.live.n; i++)
    assert_false(reaches(&c.live, &c.live.task[i].after, product)); /* they need not wait for it */
}

static void test_keep_and_forget(void **state) {
  static card c;
  const shape s = {6, 2, 0};
  uint32_t slot;
  (void)state;
  open_card(&c, &s, NO_FAULT);
  assert_int_equal(c.slots.n_kept, 12);
  run_layer(&c, &s, 0);
  assert_true(expert_slots_forget(&c.slots, &c.weight[3]));
  assert_false(expert_slots_forget(&c.slots, &c.weight[3]));
  assert_int_equal(expert_slots_bring(&c.slots, &c.weight[3], &slot), WEFT_OK);
  assert_int_equal(slot, EXPERT_SLOTS);
  assert_int_equal(expert_slots_bring(&c.slots, &c.weight[4], &slot), WEFT_OK);
  assert_true(slot < EXPERT_SLOTS);
  assert_int_equal(expert_slots_done(&c.slots), WEFT_OK);
  while (c.slots.n_kept < EXPERT_SLOTS_KEPT_MAX) {
    assert_int_equal(expert_slots_keep(&c.slots, &c.weight[3], 4), WEFT_OK);
  }
  assert_int_equal(expert_slots_keep(&c.slots, &c.weight[3], 4), WEFT_E_TOO_LARGE);
}

/* A call of the card that fails leaves no slot in use: the weights of the next call still find one. */
static void test_slots_are_free_after_a_failure(void **state) {
  static card c;
  const shape s = {6, 2, 0};
  uint32_t slot;
  (void)state;
  open_card(&c, &s, NO_FAULT);
  for (uint32_t i = 0; i < 2; i++) assert_int_equal(expert_slots_bring(&c.slots, &c.weight[i], &slot), WEFT_OK);
  c.refuses = true;
  assert_int_equal(expert_slots_done(&c.slots), WEFT_E_DEVICE);
  for (uint32_t i = 0; i < EXPERT_SLOTS; i++) assert_false(c.slots.slot[i].in_use);
  c.refuses = false;
  for (uint32_t layer = 1; layer < 6; layer++) run_layer(&c, &s, layer);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_slots_are_free_after_a_failure),
                                     cmocka_unit_test(test_with_every_wait), cmocka_unit_test(test_without_one),
                                     cmocka_unit_test(test_copies_are_ahead), cmocka_unit_test(test_keep_and_forget)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
