/* SPDX-License-Identifier: MIT */
/* Which experts lie on a card that has no room for all (kernels/expert_room.h), and which of the others lie there
 * besides (kernels/expert_cache.h): the laws of both, and that a cache finds the experts that are chosen most. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/random.h"
#include "kernels/expert_cache.h"
#include "kernels/expert_room.h"

enum { MATS = 40, PLACES = 10 };

static void check(const expert_cache *c) {
  uint32_t n = 0;
  for (uint32_t e = 0; e < c->n_mats; e++) {
    if (c->place_of[e] == EXPERT_CACHE_NONE) continue;
    assert_in_range(c->place_of[e], 0, c->n_places - 1);
    assert_int_equal(c->expert_at[c->place_of[e]], e);
    n += 1;
  }
  assert_int_equal(n, c->n_places);
}

/* Expert e is drawn about once in e + 1 times as often as expert `first`, which is the hottest. */
static uint32_t draw_expert(uint64_t *seed, uint32_t first) {
  static uint32_t sum_of[MATS];
  for (uint32_t e = 0; e < MATS; e++) sum_of[e] = 1000000 / (e + 1) + (e > 0 ? sum_of[e - 1] : 0);
  uint32_t at = (uint32_t)(weft_mix64(++*seed) % sum_of[MATS - 1]), e = 0;
  while (sum_of[e] <= at) e++;
  return (first + 7 * e) % MATS;
}

static uint64_t exchange_all(expert_cache *c) {
  uint32_t expert, place;
  uint64_t n = 0;
  for (; expert_cache_exchange(c, &expert, &place); n++) {
    assert_int_equal(c->place_of[expert], place);
    check(c);
    assert_true(n < PLACES);
  }
  return n;
}

static void the_hottest_have_places(void **state) {
  (void)state;
  expert_cache c;
  uint32_t n_tokens[MATS];
  uint64_t seed = 7;
  for (uint32_t e = 0; e < MATS; e++) n_tokens[e] = UINT32_MAX - 50; /* counts wrap */
  assert_int_equal(expert_cache_open(&c, MATS, PLACES), WEFT_OK);
  check(&c);
  expert_cache_hear(&c, n_tokens);
  for (uint32_t first = 0; first < MATS; first += 11) { /* the hottest ones are others from now on */
    uint64_t n_exchanges = 0;
    for (uint32_t step = 0; step < 2000; step++) {
      if (step == 1000) c.n_tokens = c.n_hits = n_exchanges = 0;
      for (uint32_t k = 0; k < 4; k++) n_tokens[draw_expert(&seed, first)] += 1;
      expert_cache_hear(&c, n_tokens);
      n_exchanges += exchange_all(&c);
    }
    /* of the ten hottest of forty 68 of 100 draws are; without a rule a quarter would be */
    assert_true(c.n_hits * 100 > c.n_tokens * 60);
    assert_true(n_exchanges < 300); /* of 4000 draws: what is there stays, but for experts of about equal heat */
    assert_int_not_equal(c.place_of[first], EXPERT_CACHE_NONE);
  }
  expert_cache_close(&c);
}

static void equal_heat_exchanges_nothing(void **state) {
  (void)state;
  expert_cache c;
  uint32_t n_tokens[MATS] = {0}, expert, place;
  assert_int_equal(expert_cache_open(&c, MATS, PLACES), WEFT_OK);
  for (uint32_t step = 0; step < 500; step++) {
    for (uint32_t e = 0; e < MATS; e++) n_tokens[e] += 1 + (e + step) % 2;
    expert_cache_hear(&c, n_tokens);
    assert_false(expert_cache_exchange(&c, &expert, &place));
  }
  expert_cache_close(&c);
  assert_int_equal(expert_cache_open(&c, MATS, 0), WEFT_OK);
  n_tokens[3] += 1000;
  expert_cache_hear(&c, n_tokens);
  assert_false(expert_cache_exchange(&c, &expert, &place));
  expert_cache_close(&c);
}

static void memory_is_refused(void **state) {
  (void)state;
  for (uint64_t site = 1; site <= 4; site++) {
    expert_cache c;
    weft_memory_fail_at(site);
    assert_int_equal(expert_cache_open(&c, MATS, PLACES), WEFT_E_NO_MEMORY);
    weft_memory_fail_at(0);
    assert_null(c.heat);
    assert_int_equal(c.n_places, 0);
  }
}

static void places_are_a_share(void **state) {
  (void)state;
  assert_int_equal(expert_cache_places(0, 100, MATS), 0);
  assert_int_equal(expert_cache_places(50, 100, MATS), MATS / 2);
  assert_int_equal(expert_cache_places(100, 100, MATS), MATS - 1); /* one at least stays out: else it had room */
  assert_int_equal(expert_cache_places(UINT64_MAX / 2, 1, MATS), MATS - 1);
  assert_int_equal(expert_cache_places(5, 0, MATS), 0);
  assert_int_equal(expert_cache_places(5, 5, 0), 0);
}

/* Places weights of these sizes; what lies on the card is the first ones, and no byte is given out twice. */
static uint32_t place_all(uint64_t room_bytes, const uint64_t *n_bytes, uint32_t n, bool known) {
  expert_room r;
  uint64_t all = 0, cap = room_bytes, taken = 0, cached = 0;
  uint32_t n_here = 0;
  for (uint32_t i = 0; i < n; i++) all += n_bytes[i];
  expert_room_expect(&r, known ? all : 0);
  for (uint32_t i = 0; i < n; i++) {
    cap -= expert_room_reserve(&r, cap - taken);
    bool here = !r.is_full && n_bytes[i] <= cap - taken;
    if (!here) cap -= expert_room_fill(&r, cap - taken);
    if (here && known) assert_int_equal(n_here, i);
    if (here) taken += n_bytes[i], n_here += 1;
    if (!here) cached += expert_room_share(&r, n_bytes[i]);
    expert_room_placed(&r, n_bytes[i]);
  }
  assert_true(taken <= cap && cap <= room_bytes);
  assert_true(cached <= room_bytes - cap);
  if (n_here == n) assert_int_equal(cap, room_bytes); /* nothing is kept for a cache of nothing */
  if (known && n_here < n) assert_int_equal(cap, taken);
  if (known && n_here < n) assert_true(taken <= room_bytes / EXPERT_ROOM_STACKS_PART + 1); /* the cache has the rest */
  return n_here;
}

static void what_has_room_is_a_prefix(void **state) {
  (void)state;
  uint64_t seed = 3, n_bytes[12];
  for (uint32_t world = 0; world < 2000; world++) {
    uint64_t all = 0;
    uint32_t n = 1 + (uint32_t)(weft_mix64(++seed) % 12), before = 0;
    for (uint32_t i = 0; i < n; i++) all += n_bytes[i] = 1 + weft_mix64(++seed) % 1000;
    for (uint64_t room = 0; room <= all; room += 1 + all / 16) {
      uint32_t n_here = place_all(room, n_bytes, n, true);
      assert_true(n_here >= before);
      before = n_here;
      (void)place_all(room, n_bytes, n, false);
    }
    assert_int_equal(place_all(all, n_bytes, n, true), n);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_hottest_have_places),   cmocka_unit_test(equal_heat_exchanges_nothing),
      cmocka_unit_test(memory_is_refused),         cmocka_unit_test(places_are_a_share),
      cmocka_unit_test(what_has_room_is_a_prefix),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
