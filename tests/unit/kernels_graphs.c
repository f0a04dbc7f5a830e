/* SPDX-License-Identifier: MIT */
/* Which steps become graphs, which are launched again, thrown out; and what happens when the device
 * refuses. The device here only counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "kernels/device_internal.h"

typedef struct exec {
  uint64_t shape; /* of the graph it was made from */
  uint64_t value;
} exec;

typedef struct counting_card {
  weft_device base;
  step_graphs graphs;
  uint64_t shape, value;      /* of the step being captured */
  uint64_t launched;          /* value of the last launch */
  uint32_t n_execs, n_graphs; /* alive */
  uint32_t n_freed_ended, n_uploads;
  weft_status capture, capture_end, instantiate;
  uint32_t n_instantiate_fails;
  uint8_t memory[STEP_GRAPHS_TABLE_BYTES];
} counting_card;

static counting_card *of(weft_device *device) {
  return (counting_card *)device;
}

static weft_status card_alloc(weft_device *device, uint64_t n_bytes, void **out) {
  assert_true(n_bytes <= sizeof of(device)->memory);
  *out = of(device)->memory;
  return WEFT_OK;
}
static void card_free(weft_device *device, void *memory) {
  (void)device;
  (void)memory;
}
static weft_status card_capture(weft_device *device) {
  return of(device)->capture;
}
static weft_status card_capture_end(weft_device *device, void **graph) {
  counting_card *card = of(device);
  if (card->capture_end != WEFT_OK) return card->capture_end;
  exec *made = weft_alloc(1, sizeof *made);
  *made = (exec){card->shape, card->value};
  *graph = made;
  card->n_graphs += 1;
  return WEFT_OK;
}
/* A graph has as many nodes as its shape says, so each kind of step has its own number. */
static weft_status card_instantiate(weft_device *device, void *graph, void **out, uint32_t *n_nodes) {
  counting_card *card = of(device);
  if (card->n_instantiate_fails > 0) {
    card->n_instantiate_fails -= 1;
    return card->instantiate;
  }
  exec *made = weft_alloc(1, sizeof *made);
  *made = *(exec *)graph;
  *out = made;
  *n_nodes = (uint32_t)made->shape;
  card->n_execs += 1;
  return WEFT_OK;
}
static weft_status card_launch(weft_device *device, void *made) {
  of(device)->launched = ((exec *)made)->value;
  return WEFT_OK;
}
static void card_free_graph(weft_device *device, void *graph) {
  of(device)->n_graphs -= 1;
  weft_free(graph);
}
static void card_free_exec(weft_device *device, void *made, bool has_ended) {
  of(device)->n_execs -= 1;
  of(device)->n_freed_ended += has_ended;
  weft_free(made);
}

static weft_status card_upload(weft_device *device, void *to, const void *from, uint64_t n_bytes) {
  of(device)->n_uploads += 1;
  return host_copy(device, to, from, n_bytes);
}

static const step_graphs_calls graph_calls = {card_capture, card_capture_end, card_instantiate,
                                              card_launch,  card_free_graph,  card_free_exec};
static const device_calls calls = {
    .alloc = card_alloc, .free = card_free, .upload = card_upload, .zero = host_zero, .copy = host_copy};

static counting_card *card_open(void) {
  counting_card *card = weft_alloc(1, sizeof *card);
  assert_non_null(card);
  card->base.calls = &calls;
  card->base.graphs = &card->graphs;
  assert_int_equal(step_graphs_open(&card->graphs, &card->base, &graph_calls), WEFT_OK);
  return card;
}

static void card_close(counting_card *card) {
  step_graphs_close(&card->graphs);
  assert_int_equal(card->n_execs, 0);
  assert_int_equal(card->n_graphs, 0);
  weft_free(card);
}

typedef struct steps {
  uint32_t n_run, n_walked, n_captured; /* passes over the step's calls, by mode */
} steps;

/* A step of one call and one table. */
static steps step(counting_card *card, uint64_t key, uint64_t shape, uint64_t value, const char *table) {
  steps s = {0};
  weft_status status = WEFT_OK;
  card->shape = shape;
  card->value = value;
  weft_device_graph_begin(&card->base, key, NULL);
  do {
    const uint64_t args[2] = {shape, value};
    s.n_run += card->graphs.mode == STEP_GRAPHS_RUN;
    s.n_walked += card->graphs.mode == STEP_GRAPHS_WALK;
    s.n_captured += card->graphs.mode == STEP_GRAPHS_CAPTURE;
    if (card->graphs.mode == STEP_GRAPHS_RUN) continue;
    step_graphs_note(&card->graphs, 7, args, sizeof args);
    uint8_t *at = step_graphs_table(&card->graphs, strlen(table) + 1);
    if (at == NULL) continue;
    memcpy(at, table, strlen(table) + 1);
    (void)step_graphs_table_end(&card->graphs, strlen(table) + 1);
  } while (weft_device_graph_end(&card->base, &status));
  assert_int_equal(status, WEFT_OK);
  assert_int_equal(card->graphs.mode, STEP_GRAPHS_RUN);
  return s;
}

static void is(steps s, uint32_t n_run, uint32_t n_walked, uint32_t n_captured) {
  assert_int_equal(s.n_run, n_run);
  assert_int_equal(s.n_walked, n_walked);
  assert_int_equal(s.n_captured, n_captured);
}

/* First sight: call by call. Second: captured. Then only walked; the table of that step is on the device. */
static void test_life(void **state) {
  (void)state;
  counting_card *card = card_open();
  is(step(card, 1, 1, 10, "one"), 1, 1, 0);
  assert_int_equal(card->launched, 0);
  is(step(card, 1, 1, 10, "two"), 0, 1, 1);
  assert_int_equal(card->launched, 10);
  assert_string_equal((char *)card->memory, "two");
  is(step(card, 1, 1, 10, "six"), 0, 1, 0);
  assert_string_equal((char *)card->memory, "six");
  is(step(card, 1, 1, 10, "longer"), 1, 1, 0); /* a table of another size is another step */
  weft_graph_counters n = weft_device_graph_counters(&card->base);
  assert_int_equal(n.eager, 2);
  assert_int_equal(n.captures, 1);
  assert_int_equal(n.launches, 2);
  assert_int_equal(n.patched, 1);
  assert_int_equal(n.nodes, 2); /* one each */
  card_close(card);
}

static void settle(counting_card *card, uint64_t key, uint64_t shape, uint64_t value) {
  (void)step(card, key, shape, value, "t");
  (void)step(card, key, shape, value, "t");
  assert_int_equal(card->launched, value);
}

/* A graph stays what it was made as, however long ago it was launched, and whatever else has its key. */
static void test_stays(void **state) {
  (void)state;
  counting_card *card = card_open();
  settle(card, 1, 1, 10);
  settle(card, 1, 1, 11);
  for (uint32_t i = 0; i < 100; i++) settle(card, 2, 1, 20);
  settle(card, 1, 1, 12);
  settle(card, 1, 2, 13);
  assert_int_equal(card->n_execs, 5);
  is(step(card, 1, 1, 10, "t"), 0, 1, 0);
  assert_int_equal(card->launched, 10);
  is(step(card, 1, 1, 11, "t"), 0, 1, 0);
  assert_int_equal(card->launched, 11);
  card_close(card);
}

/* More kinds of steps than places: the least recently launched goes. */
static void test_bound(void **state) {
  (void)state;
  counting_card *card = card_open();
  for (uint64_t i = 0; i < STEP_GRAPHS_MAX; i++) settle(card, i, 1, 100 + i);
  is(step(card, 0, 1, 100, "t"), 0, 1, 0);
  settle(card, 999, 1, 999);
  assert_int_equal(card->n_execs, STEP_GRAPHS_MAX);
  is(step(card, 0, 1, 100, "t"), 0, 1, 0);
  is(step(card, 1, 1, 101, "t"), 0, 1, 1); /* was thrown out; its signature is still known */
  assert_int_equal(card->n_execs, STEP_GRAPHS_MAX);
  card_close(card);
}

/* The graphs of one owner go, those of another one stay; what was taken is freed later, without waiting. */
static void test_owners(void **state) {
  (void)state;
  counting_card *card = card_open();
  enum { A = 1, B };
  weft_graphs_taken taken;
  weft_device_graph_owner(&card->base, A);
  for (uint64_t i = 0; i < 3; i++) settle(card, 1, 50, i);
  weft_device_graph_owner(&card->base, B);
  settle(card, 2, 60, 7);
  weft_device_take_graphs(&card->base, A, &taken);
  assert_int_equal(taken.n, 3);
  assert_int_equal(card->n_execs, 4);
  is(step(card, 2, 60, 7, "t"), 0, 1, 0); /* launched */
  weft_device_free_graphs(&card->base, &taken);
  assert_int_equal(card->n_execs, 1);
  assert_int_equal(card->n_freed_ended, 3);
  weft_device_take_graphs(&card->base, A, &taken);
  assert_int_equal(taken.n, 0);
  weft_device_graph_owner(&card->base, A);
  is(step(card, 1, 50, 2, "t"), 0, 1, 1); /* known, and recorded anew */
  card_close(card);
}

static void test_refusals(void **state) {
  (void)state;
  for (uint32_t which = 0; which < 3; which++) {
    counting_card *card = card_open();
    (void)step(card, 1, 1, 10, "t");
    if (which == 0) card->capture = WEFT_E_UNSUPPORTED;
    if (which == 1) card->capture_end = WEFT_E_UNSUPPORTED;
    if (which == 2) card->instantiate = WEFT_E_NO_MEMORY, card->n_instantiate_fails = 2;
    steps s = step(card, 1, 1, 10, "t");
    assert_int_equal(s.n_run, 1); /* the step is computed all the same */
    assert_int_equal(card->launched, 0);
    assert_int_equal(card->graphs.n.refused, 1);
    is(step(card, 1, 1, 10, "t"), 1, 0, 0);
    card_close(card);
  }
}

/* Out of memory once: the other graphs go, this one stays. */
static void test_smaller(void **state) {
  (void)state;
  counting_card *card = card_open();
  settle(card, 1, 1, 10);
  (void)step(card, 2, 1, 20, "t");
  card->instantiate = WEFT_E_NO_MEMORY;
  card->n_instantiate_fails = 1;
  is(step(card, 2, 1, 20, "t"), 0, 1, 1);
  assert_int_equal(card->n_execs, 1);
  assert_int_equal(card->launched, 20);
  card_close(card);
}

static void test_tables(void **state) {
  (void)state;
  counting_card *card = card_open();
  step_graphs *g = &card->graphs;
  weft_device_graph_begin(&card->base, 1, NULL);
  uint8_t *a = step_graphs_table(g, 8);
  memset(a, 1, 8);
  const uint8_t *first = step_graphs_table_end(g, 8);
  memset(step_graphs_table(g, 8), 2, 8);
  const uint8_t *second = step_graphs_table_end(g, 8);
  memset(step_graphs_table(g, 8), 1, 8);
  assert_ptr_equal(step_graphs_table_end(g, 8), first); /* equal tables are one */
  assert_ptr_not_equal(second, first);
  assert_null(step_graphs_table(g, STEP_GRAPHS_TABLE_BYTES)); /* the step runs call by call */
  weft_status status = WEFT_OK;
  assert_true(weft_device_graph_end(&card->base, &status));
  assert_int_equal(g->mode, STEP_GRAPHS_RUN);
  assert_false(weft_device_graph_end(&card->base, &status));
  card_close(card);
}

/* What the launch before has sent is not sent again, by the same graph or another one. */
static void test_sent(void **state) {
  (void)state;
  counting_card *card = card_open();
  const char *const table[] = {"one", "one", "two", "two", "one"};
  const uint32_t uploads[] = {0, 0, 1, 1, 2};
  for (uint64_t key = 1; key <= 2; key++)
    for (uint32_t i = 0; i < 2; i++) (void)step(card, key, key, 10 * key, "one");
  card->n_uploads = 0;
  for (uint32_t i = 0; i < 5; i++) {
    (void)step(card, 1 + i % 2, 1 + i % 2, 10 * (1 + i % 2), table[i]);
    assert_int_equal(card->launched, 10 * (1 + i % 2));
    assert_int_equal(card->n_uploads, uploads[i]);
    assert_string_equal((const char *)card->memory, table[i]);
  }
  card_close(card);
}

/* An error of a call ends the step at once, and the next one begins anew. */
static void test_error(void **state) {
  (void)state;
  counting_card *card = card_open();
  weft_device_graph_begin(&card->base, 1, NULL);
  weft_status status = WEFT_E_INVALID;
  assert_false(weft_device_graph_end(&card->base, &status));
  assert_int_equal(status, WEFT_E_INVALID);
  settle(card, 1, 1, 10);
  card_close(card);
}

static void test_bucket(void **state) {
  (void)state;
  uint32_t last = 0;
  for (uint32_t n = 0; n < 100000; n++) {
    uint32_t bucket = weft_device_bucket(n);
    assert_true(bucket >= n && bucket >= last && (uint64_t)bucket * 8 <= (uint64_t)n * 9 + 8);
    assert_true(n > 15 || bucket == n);
    assert_int_equal(weft_device_bucket(bucket), bucket);
    last = bucket;
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_life),   cmocka_unit_test(test_stays),    cmocka_unit_test(test_bound),
      cmocka_unit_test(test_owners), cmocka_unit_test(test_refusals), cmocka_unit_test(test_smaller),
      cmocka_unit_test(test_tables), cmocka_unit_test(test_sent),     cmocka_unit_test(test_error),
      cmocka_unit_test(test_bucket),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
