/* SPDX-License-Identifier: MIT */
#include "bench/sim/told.h"

#include <stdio.h>
#include <string.h>

struct weft_sim_told {
  weft_prefix_feed *feed;
  kv_mirror *mirror;
  weft_sim_index *index;
  uint32_t replica;
  uint64_t now_us;
  bool begun, waits; /* begun: as a reader of the server (api/events/kv_events.c) */
  weft_sim_counts *counts;
  kv_batch batch[WEFT_SIM_MODELS];
  weft_text bytes;
};

/* ---- names ----------------------------------------------------------------------------------- */

weft_key128 weft_sim_domain(bool shared_cache, uint32_t tenant) {
  return (weft_key128){.low = shared_cache ? 0 : tenant + 1};
}

void weft_sim_names_open(const weft_lab_config *config, const weft_sim_profile *profile, const weft_sim_load *load,
                         weft_sim_names *out) {
  *out = (weft_sim_names){.shared_cache = config->product.shared_cache};
  uint32_t n = out->shared_cache ? 1 : load->n_tenants;
  for (uint32_t i = 0; i < n; i++) {
    (void)snprintf(out->salt[i], sizeof out->salt[i], "tenant-%u", i);
    out->told[i] = (kv_told_domain){weft_sim_domain(out->shared_cache, i), n == 1 ? NULL : out->salt[i]};
  }
  out->names.told = out->told;
  out->names.n_told = n;
  for (uint32_t m = 0; m < profile->n_models; m++) {
    for (uint32_t g = 0; g < profile->model[m].n_groups; g++) {
      uint32_t n_tokens = profile->model[m].group[g].block_tokens;
      if (n_tokens > out->unit_tokens[m]) out->unit_tokens[m] = n_tokens;
    }
  }
}

/* Each model has a stream of its own. */
static uint64_t key_of(uint32_t model, const kv_name *name) {
  return weft_mix64(kv_name_number(name) + model);
}

uint32_t weft_sim_names_keys(const weft_sim_names *names, const weft_sim_item *item, const int32_t *prompt,
                             uint64_t *key) {
  uint32_t unit = names->unit_tokens[item->model], n = (item->n_prompt - 1) / unit; /* the last token is computed */
  kv_domain domain = kv_names_domain(&names->names, weft_sim_domain(names->shared_cache, item->tenant));
  kv_name name, before;
  for (uint32_t i = 0; i < n; i++) {
    kv_names_next(&names->names, &domain, i == 0, i == 0 ? NULL : &before, prompt + (size_t)i * unit, unit, &name);
    key[i] = key_of(item->model, &name);
    before = name;
  }
  return n;
}

/* ---- a batch --------------------------------------------------------------------------------- */

static void take_cleared(void *self, uint32_t model) {
  weft_sim_told *t = self;
  if (model == 0) weft_sim_index_tell(t->index, t->now_us, WEFT_SIM_CLEARED, t->replica, 0, 0);
  t->counts->n_events += 1;
#ifdef WEFT_KV_EVENTS
  kv_batch_clear_all(&t->batch[model]);
#endif
}

static void take_stored(void *self, const kv_chain *chain) {
  weft_sim_told *t = self;
  for (uint32_t i = 0; i < chain->n; i++) {
    weft_sim_index_tell(t->index, t->now_us, WEFT_SIM_STORED, t->replica, (uint8_t)chain->medium,
                        key_of(chain->model, &chain->name[i]));
  }
  t->counts->n_events += 1;
  t->counts->n_blocks_told += chain->n;
#ifdef WEFT_KV_EVENTS
  kv_batch_store(&t->batch[chain->model], chain);
#endif
}

static void take_removed(void *self, uint32_t model, weft_tier medium, const kv_name *name, uint32_t n) {
  weft_sim_told *t = self;
  for (uint32_t i = 0; i < n; i++) {
    weft_sim_index_tell(t->index, t->now_us, WEFT_SIM_REMOVED, t->replica, (uint8_t)medium, key_of(model, &name[i]));
  }
  t->counts->n_events += 1;
  t->counts->n_blocks_told += n;
#ifdef WEFT_KV_EVENTS
  kv_batch_remove(&t->batch[model], medium, name, n);
#endif
}

/* What would be sent. */
static void count_bytes(weft_sim_told *t) {
#ifdef WEFT_KV_EVENTS
  for (uint32_t m = 0; m < WEFT_SIM_MODELS; m++) {
    if (t->batch[m].n == 0) continue;
    t->counts->n_event_batches += 1;
    if (kv_batch_close(&t->batch[m], (double)t->now_us / 1e6, t->replica, &t->bytes) != WEFT_OK)
      t->index->refused = true;
    t->counts->n_event_bytes += t->bytes.n;
    weft_text_clear(&t->bytes);
  }
#else
  (void)t;
#endif
}

/* ---- a replica ------------------------------------------------------------------------------- */

weft_status weft_sim_told_open(const weft_sim_names *names, const weft_sim_profile *profile, weft_engine *engine,
                               bool has_host, weft_sim_index *index, uint32_t replica, uint64_t now_us,
                               weft_sim_told **out) {
  kv_mirror_model models[WEFT_SIM_MODELS];
  weft_sim_told *t = *out = weft_alloc(1, sizeof *t);
  if (t == NULL) return WEFT_E_NO_MEMORY;
  *t = (weft_sim_told){.feed = weft_engine_feed(engine), .index = index, .replica = replica};
  for (uint32_t i = 0; i < profile->n_models; i++) {
    models[i].n_groups = profile->model[i].n_groups;
    memcpy(models[i].group, profile->model[i].group, sizeof models[i].group);
  }
  const weft_pager *pager = weft_engine_pager(engine);
  const kv_mirror_config config = {.n_nodes = weft_pager_nodes_max(pager),
                                   .base_tokens = weft_pager_base_tokens(pager),
                                   .n_tiers = has_host ? 2 : 1,
                                   .model = models,
                                   .n_models = profile->n_models,
                                   .names = &names->names};
  weft_prefix_feed_want(t->feed, true);
  weft_sim_index_tell(index, now_us, WEFT_SIM_CLEARED, replica, 0, 0);
  return kv_mirror_open(&config, &t->mirror);
}

void weft_sim_told_close(weft_sim_told *t) {
  if (t == NULL) return;
  kv_mirror_close(t->mirror);
#ifdef WEFT_KV_EVENTS
  for (uint32_t m = 0; m < WEFT_SIM_MODELS; m++) kv_batch_free(&t->batch[m]);
#endif
  weft_text_free(&t->bytes);
  weft_free(t);
}

void weft_sim_told_flush(weft_sim_told *t, uint64_t now_us, weft_sim_counts *counts) {
  weft_prefix_changes c;
  t->waits = false;
  if (!weft_prefix_feed_take(t->feed, &c)) return;
  bool rest = c.rest;
  if (c.cleared) {
    kv_mirror_clear(t->mirror);
    t->begun = true;
  }
  if (t->begun) kv_mirror_apply(t->mirror, c.change, c.tokens, c.n);
  t->waits = weft_prefix_feed_give_back(t->feed);
  if (rest || !t->begun) return;
  const kv_sink sink = {take_cleared, take_stored, take_removed, t};
  t->now_us = now_us;
  t->counts = counts;
  kv_mirror_settle(t->mirror, &sink);
  count_bytes(t);
}

bool weft_sim_told_waits(const weft_sim_told *t) {
  weft_prefix_changes c;
  return t != NULL && (t->waits || weft_prefix_feed_take(t->feed, &c));
}
