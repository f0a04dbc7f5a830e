/* SPDX-License-Identifier: MIT */
#include "scheduler/sent_prefixes.h"

#include <string.h>

#include "base/memory.h"
#include "base/random.h"

enum { WAYS = 4 }; /* places of a set */

weft_status weft_sent_open(weft_sent_prefixes *sent) {
  *sent = (weft_sent_prefixes){.place = weft_alloc(WEFT_SENT_PLACES, sizeof *sent->place)};
  return sent->place == NULL ? WEFT_E_NO_MEMORY : WEFT_OK;
}

void weft_sent_close(weft_sent_prefixes *sent) {
  weft_free(sent->place);
  sent->place = NULL;
}

void weft_sent_forget(weft_sent_prefixes *sent) {
  memset(sent->place, 0, WEFT_SENT_PLACES * sizeof *sent->place);
}

static uint64_t first_key(const weft_sent_prompt *p) {
  return weft_mix64(weft_mix64(p->domain.low ^ (uint64_t)p->model << 48) ^ p->domain.high);
}

/* The key of block i, from that of the block before it; never 0. */
static uint64_t next_key(uint64_t key, const weft_sent_prompt *p, uint32_t i) {
  const int32_t *tokens = p->tokens + (size_t)i * WEFT_SENT_BLOCK;
  for (uint32_t k = 0; k < WEFT_SENT_BLOCK; k++) key = weft_mix64(key ^ ((uint64_t)(uint32_t)tokens[k] + 1));
  return key | 1;
}

static weft_sent_place *set_of(const weft_sent_prefixes *sent, uint64_t key) {
  return sent->place + (key >> 32) % (WEFT_SENT_PLACES / WAYS) * WAYS;
}

static weft_sent_place *find_place(const weft_sent_prefixes *sent, uint64_t key) {
  weft_sent_place *set = set_of(sent, key);
  for (uint32_t i = 0; i < WAYS; i++) {
    if (set[i].key == key) return &set[i];
  }
  return NULL;
}

/* The place that an unknown key takes: an empty one, or that which was used longest ago. */
static weft_sent_place *take_place(const weft_sent_prefixes *sent, uint64_t key) {
  weft_sent_place *set = set_of(sent, key), *oldest = set;
  for (uint32_t i = 0; i < WAYS; i++) {
    if (set[i].key == 0) return &set[i];
    if (set[i].used < oldest->used) oldest = &set[i];
  }
  return oldest;
}

static bool may_have(const weft_sent_place *place, const weft_sent_pool *pool, uint32_t replica) {
  uint32_t at = place->at[replica], n_since = (uint32_t)pool->n_evicted + 1 - at;
  return at != 0 && n_since < 2 * (uint64_t)pool->n_kept;
}

void weft_sent_find(const weft_sent_prefixes *sent, const weft_sent_prompt *p, const weft_sent_pool *pool,
                    uint32_t n_replicas, uint32_t *n_found) {
  uint32_t still = UINT32_MAX; /* those that have all blocks so far */
  uint64_t key = first_key(p);
  memset(n_found, 0, n_replicas * sizeof *n_found);
  for (uint32_t i = 0; i < p->n_tokens / WEFT_SENT_BLOCK && still != 0; i++) {
    key = next_key(key, p, i);
    const weft_sent_place *place = find_place(sent, key);
    if (place == NULL) return;
    for (uint32_t r = 0; r < n_replicas; r++) {
      if (!may_have(place, &pool[r], r)) still &= ~(1u << r);
      if ((still >> r & 1) != 0) n_found[r] = (i + 1) * WEFT_SENT_BLOCK;
    }
  }
}

void weft_sent_note(weft_sent_prefixes *sent, const weft_sent_prompt *p, const weft_sent_pool *pool, uint32_t replica) {
  uint64_t key = first_key(p);
  sent->n_calls += 1;
  for (uint32_t i = 0; i < p->n_tokens / WEFT_SENT_BLOCK; i++) {
    key = next_key(key, p, i);
    weft_sent_place *place = find_place(sent, key);
    if (place == NULL) {
      place = take_place(sent, key);
      *place = (weft_sent_place){.key = key};
    }
    place->at[replica] = (uint32_t)pool->n_evicted + 1;
    place->used = sent->n_calls;
  }
}
