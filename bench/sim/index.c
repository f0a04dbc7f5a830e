/* SPDX-License-Identifier: MIT */
#include "bench/sim/index.h"

#include <string.h>

enum { NEWS_AT_FIRST = 1024, BUCKETS_AT_FIRST = 1024 };

weft_status weft_sim_index_open(uint64_t lag_us, weft_sim_index *out) {
  *out = (weft_sim_index){.lag_us = lag_us, .n_news_room = NEWS_AT_FIRST, .n_buckets = BUCKETS_AT_FIRST};
  out->news = weft_alloc(out->n_news_room, sizeof *out->news);
  out->bucket = weft_alloc(out->n_buckets, sizeof *out->bucket);
  return out->news == NULL || out->bucket == NULL ? WEFT_E_NO_MEMORY : WEFT_OK;
}

void weft_sim_index_close(weft_sim_index *x) {
  weft_free(x->news);
  weft_free(x->entry);
  weft_free(x->bucket);
  *x = (weft_sim_index){0};
}

/* ---- what is told ---------------------------------------------------------------------------- */

static bool make_news_room(weft_sim_index *x) {
  if (x->n_told - x->n_known < x->n_news_room) return true;
  weft_sim_news *more = weft_alloc((size_t)2 * x->n_news_room, sizeof *more);
  if (more == NULL) return false;
  for (uint64_t i = x->n_known; i < x->n_told; i++) {
    more[i & (2 * x->n_news_room - 1)] = x->news[i & (x->n_news_room - 1)];
  }
  weft_free(x->news);
  x->news = more;
  x->n_news_room *= 2;
  return true;
}

void weft_sim_index_tell(weft_sim_index *x, uint64_t now_us, weft_sim_news_kind kind, uint32_t replica, uint8_t medium,
                         uint64_t key) {
  if (!make_news_room(x)) {
    x->refused = true;
    return;
  }
  x->news[x->n_told++ & (x->n_news_room - 1)] =
      (weft_sim_news){.at_us = now_us, .key = key, .replica = replica, .kind = (uint8_t)kind, .medium = medium};
}

/* ---- what is known --------------------------------------------------------------------------- */

static uint32_t *bucket_of(const weft_sim_index *x, uint64_t key) {
  return &x->bucket[weft_mix64(key) & (x->n_buckets - 1)];
}

static bool grow_buckets(weft_sim_index *x) {
  if (x->n < x->n_buckets) return true;
  uint32_t *more = weft_alloc((size_t)2 * x->n_buckets, sizeof *more);
  if (more == NULL) return false;
  uint32_t *old = x->bucket, n_old = x->n_buckets;
  x->bucket = more;
  x->n_buckets *= 2;
  for (uint32_t i = 0; i < n_old; i++) {
    for (uint32_t at = old[i], next; at != 0; at = next) {
      weft_sim_index_entry *entry = &x->entry[at - 1];
      uint32_t *bucket = bucket_of(x, entry->key);
      next = entry->next;
      entry->next = *bucket;
      *bucket = at;
    }
  }
  weft_free(old);
  return true;
}

static uint32_t new_entry(weft_sim_index *x) {
  uint32_t at = x->free;
  if (at != 0) {
    x->free = x->entry[at - 1].next;
    return at;
  }
  weft_sim_index_entry *entries = weft_grow(x->entry, x->used, &x->room, 1024, sizeof *entries);
  if (entries == NULL) return 0;
  x->entry = entries;
  return ++x->used;
}

/* Where the link to the replica's block is, or the end of its bucket's list. */
static uint32_t *link_to(weft_sim_index *x, uint64_t key, uint32_t replica) {
  uint32_t *link = bucket_of(x, key);
  while (*link != 0 && (x->entry[*link - 1].key != key || x->entry[*link - 1].replica != replica)) {
    link = &x->entry[*link - 1].next;
  }
  return link;
}

static void take_out(weft_sim_index *x, uint32_t *link) {
  uint32_t at = *link;
  *link = x->entry[at - 1].next;
  x->entry[at - 1].next = x->free;
  x->free = at;
  x->n -= 1;
}

static void learn_stored(weft_sim_index *x, const weft_sim_news *news) {
  uint32_t at = *link_to(x, news->key, news->replica);
  if (at == 0) {
    if (!grow_buckets(x) || (at = new_entry(x)) == 0) {
      x->refused = true;
      return;
    }
    uint32_t *bucket = bucket_of(x, news->key);
    x->entry[at - 1] = (weft_sim_index_entry){.key = news->key, .replica = news->replica, .next = *bucket};
    *bucket = at;
    x->n += 1;
    if (x->n > x->n_most) x->n_most = x->n;
  }
  x->entry[at - 1].mediums |= (uint8_t)(1u << news->medium);
}

static void learn_removed(weft_sim_index *x, const weft_sim_news *news) {
  uint32_t *link = link_to(x, news->key, news->replica);
  if (*link == 0) return;
  weft_sim_index_entry *entry = &x->entry[*link - 1];
  entry->mediums &= (uint8_t) ~(1u << news->medium);
  if (entry->mediums == 0) take_out(x, link);
}

static void learn_cleared(weft_sim_index *x, uint32_t replica) {
  for (uint32_t i = 0; i < x->n_buckets; i++) {
    for (uint32_t *link = &x->bucket[i]; *link != 0;) {
      if (x->entry[*link - 1].replica == replica) {
        take_out(x, link);
      } else {
        link = &x->entry[*link - 1].next;
      }
    }
  }
}

void weft_sim_index_learn(weft_sim_index *x, uint64_t now_us) {
  while (x->n_known < x->n_told) {
    const weft_sim_news news = x->news[x->n_known & (x->n_news_room - 1)];
    if (news.at_us + x->lag_us > now_us) return;
    x->n_known += 1;
    if (news.kind == WEFT_SIM_STORED) learn_stored(x, &news);
    if (news.kind == WEFT_SIM_REMOVED) learn_removed(x, &news);
    if (news.kind == WEFT_SIM_CLEARED && x->n > 0) learn_cleared(x, news.replica);
  }
}

void weft_sim_index_find(const weft_sim_index *x, const uint64_t *key, uint32_t n, uint32_t n_replicas,
                         uint32_t *n_found) {
  memset(n_found, 0, n_replicas * sizeof *n_found);
  bool any = true;
  for (uint32_t i = 0; i < n && any; i++) {
    any = false;
    for (uint32_t at = *bucket_of(x, key[i]); at != 0; at = x->entry[at - 1].next) {
      const weft_sim_index_entry *entry = &x->entry[at - 1];
      if (entry->key != key[i] || n_found[entry->replica] != i) continue;
      n_found[entry->replica] = i + 1;
      any = true;
    }
  }
}
