/* SPDX-License-Identifier: MIT */
/* The prefix trie of one replica as routers are told of it.
 *
 * Law. A unit is a whole largest block of a model: hits end where units end. A unit is told as stored while some hit
 * that runs through it can be served: a hit that ends with it or behind it, for which every layer group has what a
 * row there sees. So what is told has no gaps from its start, and the longest told beginning of a prompt is what is
 * found of it, or, where the prompt parts from what is cached between two places where hits end, at most one such
 * distance more. The medium is the highest tier from which such a hit can be served: the pool (GPU), the pool and
 * host memory (CPU), these and the file (STORAGE).
 *
 * apply takes changes in (scheduler/prefix_feed.h); settle, once the trie is whole, tells what is different from
 * what was told: first blocks that are gone for good, then stored ones, each behind the one before it, then those
 * that are in another medium now or nowhere, the ends of prefixes first. So whoever takes all that is told in its
 * order has, at any moment between two settles, exactly the units told. */
#ifndef WEFT_API_EVENTS_KV_MIRROR_H
#define WEFT_API_EVENTS_KV_MIRROR_H

#include "api/events/kv_names.h"
#include "pager/journal.h"

typedef struct kv_mirror kv_mirror;

typedef struct kv_mirror_model {
  uint32_t n_groups;
  weft_layer_group group[WEFT_GROUPS_MAX];
} kv_mirror_model;

typedef struct kv_mirror_config {
  uint32_t n_nodes, base_tokens; /* of the pager */
  uint32_t n_tiers;              /* 1: there is only the pool; 2: host memory, too; 3: and a file */
  const kv_mirror_model *model;  /* [n_models], copied */
  uint32_t n_models;
  const kv_names *names; /* borrowed */
} kv_mirror_config;

enum { KV_CHAIN_MAX = 256 /* units of one call of stored or removed */ };

/* Units of one chain, each behind the one before it. Valid during the call. */
typedef struct kv_chain {
  uint32_t model;
  weft_tier medium;
  const kv_name *name; /* [n] */
  uint32_t n;
  const kv_name *before; /* the name of the unit before the first; NULL: there is none */
  const int32_t *tokens; /* [n][unit_tokens]; NULL: private */
  uint32_t unit_tokens;
  const kv_domain *domain; /* salt "": no keys */
  bool first;              /* the first unit is the first of its domain */
} kv_chain;

typedef struct kv_sink {
  void (*cleared)(void *self, uint32_t model);
  void (*stored)(void *self, const kv_chain *chain);
  void (*removed)(void *self, uint32_t model, weft_tier medium, const kv_name *name, uint32_t n);
  void *self;
} kv_sink;

weft_status kv_mirror_open(const kv_mirror_config *config, kv_mirror **out);
void kv_mirror_close(kv_mirror *mirror); /* NULL is fine */
uint32_t kv_mirror_unit_tokens(const kv_mirror *mirror, uint32_t model);
/* Everything is forgotten; the next settle begins with cleared. */
void kv_mirror_clear(kv_mirror *mirror);
/* tokens: [n][base_tokens] */
void kv_mirror_apply(kv_mirror *mirror, const weft_prefix_change *change, const int32_t *tokens, uint32_t n);
void kv_mirror_settle(kv_mirror *mirror, const kv_sink *sink);
/* False: changes were applied, or everything was forgotten, since the last settle. */
bool kv_mirror_is_settled(const kv_mirror *mirror);
/* All units of a model that are told, as settle tells stored ones. Only while the mirror is settled: tokens of nodes
 * that are replaced are other ones before that. */
void kv_mirror_tell_all(kv_mirror *mirror, uint32_t model, const kv_sink *sink);

#endif
