/* SPDX-License-Identifier: MIT */
/* The arena of weights on a card that only counts: addresses, chunks, caps, every refusal in turn, memory in holes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "kernels/arena.h"

enum { GRAIN = 2 << 20, RANGES = 512, GRAINS_MAX = 512 };

typedef struct range {
  uint64_t address, n_bytes;
  bool mapped, plain;
} range;

typedef struct card {
  range range[RANGES];
  uint32_t n;
  uint64_t next, n_calls, fail_at; /* fail_at: that call is refused; 0: none */
  bool no_mapping;
  uint64_t n_memory;
  uint32_t n_grains; /* of memory; 0: as much as is asked for. Plain memory is grains side by side, mapped is any */
  uint64_t user[GRAINS_MAX]; /* the address that has the grain; 0: nobody */
} card;

/* The first of n grains side by side that nobody has; UINT32_MAX: there are none. */
static uint32_t hole_of(const card *c, uint32_t n) {
  for (uint32_t i = 0, run = 0; i < c->n_grains; i++) {
    run = c->user[i] == 0 ? run + 1 : 0;
    if (run == n) return i + 1 - n;
  }
  return UINT32_MAX;
}

static uint32_t free_grains(const card *c) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < c->n_grains; i++) n += c->user[i] == 0;
  return n;
}

static void give_grains(card *c, const void *address) {
  for (uint32_t i = 0; i < c->n_grains; i++)
    if (c->user[i] == (uint64_t)(uintptr_t)address) c->user[i] = 0;
}

static void take_grains(card *c, uint32_t first, uint32_t n, const void *address) {
  for (uint32_t i = first; n > 0 && i < c->n_grains; i++) {
    if (c->user[i] != 0) continue;
    c->user[i] = (uint64_t)(uintptr_t)address;
    n -= 1;
  }
}

static range *range_of(card *c, const void *address) {
  for (uint32_t i = 0; i < c->n; i++) {
    if (c->range[i].address == (uint64_t)(uintptr_t)address) return &c->range[i];
  }
  fail_msg("an address nobody reserved");
  return NULL;
}

static bool refuses(card *c) {
  return ++c->n_calls == c->fail_at;
}

static void *add(card *c, uint64_t n_bytes, bool plain) {
  assert_true(c->n < RANGES);
  c->next = (c->next + GRAIN - 1) / GRAIN * GRAIN + (plain ? 512 : 0);
  c->range[c->n++] = (range){c->next, n_bytes, false, plain};
  void *address = (void *)(uintptr_t)c->next;
  c->next += n_bytes;
  return address;
}

static void removed(card *c, void *address, uint64_t n_bytes, bool plain) {
  range *r = range_of(c, address);
  assert_true(!r->mapped && r->plain == plain && (plain || r->n_bytes == n_bytes));
  *r = c->range[--c->n];
}

static weft_status reserve(void *self, uint64_t n_bytes, void **address) {
  card *c = self;
  if (c->no_mapping) return WEFT_E_UNSUPPORTED;
  if (refuses(c)) return WEFT_E_NO_MEMORY;
  assert_true(n_bytes % GRAIN == 0);
  *address = add(c, n_bytes, false);
  return WEFT_OK;
}
static void release(void *self, void *address, uint64_t n_bytes) {
  removed(self, address, n_bytes, false);
}
static weft_status map(void *self, void *address, uint64_t n_bytes) {
  card *c = self;
  uint32_t n = (uint32_t)(n_bytes / GRAIN);
  if (refuses(c) || (c->n_grains > 0 && free_grains(c) < n)) return WEFT_E_NO_MEMORY;
  take_grains(c, 0, n, address);
  range_of(c, address)->mapped = true;
  c->n_memory += n_bytes;
  return WEFT_OK;
}
static void unmap(void *self, void *address, uint64_t n_bytes) {
  card *c = self;
  range *r = range_of(c, address);
  assert_true(r->mapped && r->n_bytes == n_bytes);
  r->mapped = false;
  give_grains(c, address);
  c->n_memory -= n_bytes;
}
static weft_status alloc(void *self, uint64_t n_bytes, void **out) {
  card *c = self;
  uint32_t n = (uint32_t)((n_bytes + GRAIN - 1) / GRAIN), first = c->n_grains > 0 ? hole_of(c, n) : 0;
  if (refuses(c) || first == UINT32_MAX) return WEFT_E_NO_MEMORY;
  *out = add(c, n_bytes, true);
  take_grains(c, first, n, *out);
  c->n_memory += n_bytes;
  return WEFT_OK;
}
static void free_plain(void *self, void *memory) {
  card *c = self;
  c->n_memory -= range_of(c, memory)->n_bytes;
  give_grains(c, memory);
  removed(c, memory, 0, true);
}

static const weight_arena_calls calls = {reserve, release, map, unmap, alloc, free_plain};

typedef struct weight {
  uint64_t address, n_bytes;
} weight;

static uint64_t size_of(uint32_t i) {
  weft_draw_key key = {7, 0, WEFT_DRAW_TEST, i, 0};
  uint32_t bits = 4 + weft_draw_below(&key, 20);
  key.position += 1000;
  return 1 + weft_draw_below(&key, 1u << bits);
}

static void check_apart(const weight *w, uint32_t n, const weight_arena *a, const card *c) {
  uint64_t all = 0;
  for (uint32_t i = 0; i < n; i++) {
    all += w[i].n_bytes;
    assert_true(w[i].address % (w[i].n_bytes >= WEIGHT_ARENA_OWN && !a->plain ? GRAIN : 256) == 0);
    for (uint32_t k = 0; k < i; k++) {
      assert_true(w[k].address + w[k].n_bytes <= w[i].address || w[i].address + w[i].n_bytes <= w[k].address);
    }
  }
  assert_int_equal(a->n_asked, all);
  assert_int_equal(a->n_taken, c->n_memory);
  assert_true(a->n_taken >= all);
}

static void fill(bool no_mapping) {
  card c = {.next = 1 << 24, .no_mapping = no_mapping};
  weight_arena a;
  weight w[200];
  weight_arena_open(&a, &calls, &c, GRAIN, 0);
  for (uint32_t i = 0; i < 200; i++) {
    void *at;
    w[i].n_bytes = size_of(i);
    assert_int_equal(weight_arena_take(&a, w[i].n_bytes, &at), WEFT_OK);
    w[i].address = (uint64_t)(uintptr_t)at;
  }
  assert_int_equal(a.plain, no_mapping);
  check_apart(w, 200, &a, &c);
  for (uint32_t i = 0; i < 200; i += 2) weight_arena_give(&a, (void *)(uintptr_t)w[i].address, w[i].n_bytes);
  for (uint32_t i = 1; i < 200; i += 2) weight_arena_give(&a, (void *)(uintptr_t)w[i].address, w[i].n_bytes);
  assert_int_equal(c.n_memory, 0);
  assert_int_equal(c.n, 0);
  assert_int_equal(a.n_asked, 0);
  weight_arena_close(&a);
}

static void test_mapped(void **state) {
  (void)state;
  fill(false);
}
static void test_plain(void **state) {
  (void)state;
  fill(true);
}

/* Each call of the card refused once: an error, nothing lost, and the next take works. */
static void test_refused(void **state) {
  (void)state;
  for (uint32_t no_mapping = 0; no_mapping < 2; no_mapping++) {
    for (uint64_t site = 1;; site++) {
      card c = {.next = 1 << 24, .no_mapping = no_mapping == 1, .fail_at = site};
      weight_arena a;
      void *at;
      uint32_t n_refused = 0;
      weight_arena_open(&a, &calls, &c, GRAIN, 0);
      for (uint32_t i = 0; i < 40; i++) {
        uint64_t before = c.n_memory, asked = a.n_asked;
        weft_status status = weight_arena_take(&a, size_of(i) * 7, &at);
        if (status == WEFT_OK) continue;
        assert_int_equal(status, WEFT_E_NO_MEMORY);
        assert_null(at);
        assert_int_equal(c.n_memory, before);
        assert_int_equal(a.n_asked, asked);
        n_refused += 1;
        assert_int_equal(weight_arena_take(&a, size_of(i) * 7, &at), WEFT_OK);
      }
      weight_arena_close(&a);
      assert_int_equal(c.n, 0);
      if (c.n_calls < site) break;
      assert_true(n_refused <= 1); /* a chunk that is refused is tried smaller */
    }
  }
}

static void test_cap(void **state) {
  (void)state;
  card c = {.next = 1 << 24};
  weight_arena a;
  void *at;
  weight_arena_open(&a, &calls, &c, GRAIN, 20 << 20);
  assert_int_equal(weight_arena_take(&a, 9 << 20, &at), WEFT_OK); /* takes 10 */
  assert_int_equal(weight_arena_take(&a, 11 << 20, &at), WEFT_E_NO_MEMORY);
  assert_int_equal(weight_arena_take(&a, 1000, &at), WEFT_OK); /* no room for a whole chunk: a grain */
  assert_int_equal(a.n_taken, 12 << 20);
  assert_int_equal(weight_arena_take(&a, 8 << 20, &at), WEFT_OK);
  assert_int_equal(weight_arena_take(&a, 1 << 20, &at), WEFT_E_NO_MEMORY);
  assert_int_equal(weight_arena_take(&a, 1000, &at), WEFT_OK); /* in the chunk */
  assert_int_equal(c.n_memory, 20 << 20);
  weight_arena_close(&a);
  assert_int_equal(c.n_memory, 0);
}

/* Chunks of another size, for those who look for the best one. */
static void test_chunk(void **state) {
  (void)state;
  for (uint64_t mib = 4; mib <= 64; mib *= 4) {
    card c = {.next = 1 << 24};
    weight_arena a;
    void *at;
    weight_arena_open(&a, &calls, &c, GRAIN, 0);
    a.chunk = mib << 20;
    assert_int_equal(weight_arena_take(&a, 1000, &at), WEFT_OK);
    assert_int_equal(a.n_taken, mib << 20);
    assert_int_equal(weight_arena_take(&a, 1000, &at), WEFT_OK);    /* in the same chunk */
    assert_int_equal(weight_arena_take(&a, 3 << 20, &at), WEFT_OK); /* a piece to itself, as ever */
    assert_int_equal(a.n_taken, (mib << 20) + (4 << 20));
    weight_arena_close(&a);
  }
}

/* Weights that would leave the ends of chunks empty take no more than themselves. */
static void test_large_plain(void **state) {
  (void)state;
  enum { LARGE = 130 << 20, N = 20 };
  card c = {.next = 1 << 24, .no_mapping = true};
  weight_arena a;
  void *at;
  weight_arena_open(&a, &calls, &c, 0, 0);
  assert_int_equal(weight_arena_take(&a, 1000, &at), WEFT_OK);
  for (uint32_t i = 0; i < N; i++) assert_int_equal(weight_arena_take(&a, LARGE, &at), WEFT_OK);
  assert_int_equal(weight_arena_take(&a, 31 << 20, &at), WEFT_OK); /* in the chunk */
  assert_int_equal(a.n_taken, WEIGHT_ARENA_PLAIN_CHUNK + N * (uint64_t)LARGE);
  weight_arena_close(&a);
  assert_int_equal(c.n_memory, 0);
}

/* A card whose free memory lies in holes, since every other weight of a model that filled it is gone: a drafter as one
 * piece fits where the card maps, and not where it is plain memory; weight by weight it fits in both. */
static void test_holes(void **state) {
  enum { N = 16, EACH = 40 << 20, HOLES = N / 2 * (EACH / GRAIN) };
  (void)state;
  for (uint32_t no_mapping = 0; no_mapping < 2; no_mapping++) {
    card c = {.next = 1 << 24, .no_mapping = no_mapping == 1, .n_grains = N * (EACH / GRAIN)};
    weight_arena a;
    void *at[N], *piece;
    weight_arena_open(&a, &calls, &c, no_mapping == 1 ? 0 : GRAIN, 0);
    for (uint32_t i = 0; i < N; i++) assert_int_equal(weight_arena_take(&a, EACH, &at[i]), WEFT_OK);
    assert_int_equal(weight_arena_take(&a, EACH, &piece), WEFT_E_NO_MEMORY);
    for (uint32_t i = 0; i < N; i += 2) weight_arena_give(&a, at[i], EACH);
    assert_int_equal(free_grains(&c), HOLES);
    assert_int_equal(hole_of(&c, EACH / GRAIN + 1), UINT32_MAX); /* no hole is larger than a weight */
    weft_status whole = weight_arena_take(&a, (uint64_t)HOLES * GRAIN, &piece);
    assert_int_equal(whole, no_mapping == 1 ? WEFT_E_NO_MEMORY : WEFT_OK);
    if (whole == WEFT_OK) weight_arena_give(&a, piece, (uint64_t)HOLES * GRAIN);
    assert_int_equal(a.n_taken, (uint64_t)N / 2 * EACH);
    for (uint32_t i = 0; i < N; i += 2) assert_int_equal(weight_arena_take(&a, EACH - 1000 * i, &at[i]), WEFT_OK);
    assert_true(a.n_taken <= (uint64_t)N * EACH);
    weight_arena_close(&a);
    assert_int_equal(c.n_memory, 0);
    assert_int_equal(free_grains(&c), c.n_grains);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_mapped),  cmocka_unit_test(test_plain),
                                     cmocka_unit_test(test_refused), cmocka_unit_test(test_cap),
                                     cmocka_unit_test(test_chunk),   cmocka_unit_test(test_large_plain),
                                     cmocka_unit_test(test_holes)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
