/* SPDX-License-Identifier: MIT */
/* The index of a file of kept prefixes, as bytes: of which models and numerics its pages are, the secret of salts,
 * whose the prefixes are, the nodes of the prefixes and which slots hold their blocks; then what was learned of drafts,
 * which files from before have not.
 *
 * Law. Nothing in it is trusted: keep_index_read judges every number before anybody uses it. A domain is written by
 * its tenant's name and, where a salt narrows it, by the salt's digest, since numbers of tenants are those of one
 * process. Numbers are little-endian. */
#ifndef WEFT_API_KEEP_INDEX_H
#define WEFT_API_KEEP_INDEX_H

#include "base/text.h"
#include "pager/saved.h"
#include "scheduler/draft_history.h"

enum { KEEP_SECRET = 192, KEEP_NAME_MAX = 64 };

typedef enum keep_domain_kind {
  KEEP_PUBLIC = 0, /* public prefixes, of the operator */
  KEEP_SHARED = 1, /* --shared-cache: of all tenants */
  KEEP_TENANT = 2
} keep_domain_kind;

typedef struct keep_domain {
  keep_domain_kind kind;
  bool salted;
  weft_key128 digest; /* of the salt */
  char tenant[KEEP_NAME_MAX + 1];
} keep_domain;

typedef struct keep_block {
  uint32_t node, group, n_slots;
  uint32_t first; /* of its slots in slot[] and sum[] */
  uint32_t depth; /* of its node, in base blocks; where it was read */
} keep_block;

typedef struct keep_index {
  char *identity; /* lines; ends with a zero byte */
  uint8_t secret[KEEP_SECRET];
  uint32_t base_tokens;
  keep_domain *domain;   /* [n_domains] */
  weft_saved_node *node; /* [n_nodes] parents before children; of a root domain.low is the number of its domain */
  int32_t *tokens;       /* [n_nodes][base_tokens] */
  keep_block *block;     /* [n_blocks] */
  uint32_t *slot;        /* [n_slots] */
  uint64_t *sum;
  weft_draft_learned *draft; /* [n_drafts] domain.low is the number of its domain */
  uint32_t n_domains, n_nodes, n_blocks, n_slots, n_drafts;
  uint32_t domains_max, nodes_max, blocks_max, slots_max, drafts_max; /* room, while it grows */
} keep_index;

/* Appends what one call of weft_pager_save_next told. sum: [n_slots]. domain: the number of each root's domain.
 * NO_MEMORY. */
weft_status keep_index_add(keep_index *index, const weft_saved_part *part, const uint64_t *sum);
/* The number of the domain, which is added if it is not there. UINT32_MAX: no memory. */
uint32_t keep_index_domain(keep_index *index, const keep_domain *domain);
/* False: no memory. */
bool keep_index_add_draft(keep_index *index, const weft_draft_learned *learned);
void keep_index_write(const keep_index *index, weft_text *out);
/* The caller frees *out, after a failure too. FORMAT, NO_MEMORY. */
weft_status keep_index_read(const char *bytes, size_t n, keep_index *out);
void keep_index_free(keep_index *index);
/* Blocks at the ends of prefixes first: what comes first into a tier leaves it first. */
void keep_index_sort(keep_index *index);

#endif
