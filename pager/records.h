/* SPDX-License-Identifier: MIT */
/* The records of the pager, which its files and its tests share, and nobody else includes.
 *
 * Law. Three kinds of record, all in arrays that open() sizes:
 *   page   one per page of the pool: state, references or list links, the node it is indexed at
 *   node   one per base block of a prefix (base block: the smallest block of any space). A node is
 *          (space, domain, parent node, tokens): two nodes never agree in all of them, so by
 *          induction from the root a node stands for exactly one prefix. It has one slot per layer
 *          group for the block that ends there
 *   seq    one per running sequence: counts, the node its valid tokens end at (tail), its table
 *
 *   root(space, domain) <- node(tokens 0..15) <- node(tokens 16..31) <- ...      (links go upwards)
 *                            slot: [page 7]        slot: [page 9 | page 2]
 *
 * Below a public prefix each domain begins with a root of its own, which has the last public node as
 * its parent and the same depth.
 *
 * A node lives while something refers to it: a child, a page in a slot, or a sequence. */
#ifndef WEFT_PAGER_RECORDS_H
#define WEFT_PAGER_RECORDS_H

#include "base/check.h"
#include "pager/pager.h"

enum {
  PAGER_LINE_WORDS = 16, /* one cache line of the index: 15 entries, then the overflow count */
  PAGER_LINE_ENTRIES = 15,
  PAGER_LINE_LOAD = 13, /* entries per line when every node is in use */
  PAGER_SECRET_WORDS = 24,
  PAGER_MATCH_BATCH = 32,
  PAGER_COST_LOG_MAX = 3,
  PAGER_ALLOCATIONS_MAX = 16,
  PAGER_NODE_EVICTIONS_MAX = 1024 /* evictions that one new node may cost before we give up on it */
};

#define PAGER_NODE_NONE 0xFFFFFFu
#define PAGER_NODES_MAX 0xFFFFFEu
#define PAGER_DEPTH_MAX 0xFFFFFFu
#define PAGER_LINK_NONE 0xFFFFFFu /* of 24 bits: pages, list heads and references stay below */
#define PAGER_PAGES_MAX 0xFFFF00u

/* A slot of a node is a page, or nothing, or the promise of a running sequence to compute it, or the
 * number of the spill slot where the content lies. */
#define PAGER_PLACE_NONE    UINT32_MAX
#define PAGER_PLACE_PROMISE 0x80000000u
#define PAGER_PLACE_SLOT    0x40000000u

typedef enum pager_state {
  PAGER_FREE = 0, /* zero, so that untouched memory is a free page */
  PAGER_CACHED = 1,
  PAGER_PINNED = 2
} pager_state;

/* CACHED pages wait in lists; COLD is evicted before all others, the oldest first in each. WARM + k has
 * what is worth 2^k. */
typedef enum pager_list {
  PAGER_COLD = 0, /* a window passed over it and no boundary needs it */
  PAGER_WARM = 1,
  PAGER_N_WORTHS = 7, /* retention and cost, 0 .. 3 each */
  PAGER_N_LISTS = PAGER_WARM + PAGER_N_WORTHS
} pager_list;

typedef struct pager_page {
  uint32_t next : 24; /* FREE: the next free page, or PAGER_LINK_NONE; CACHED: the page let go next after this one */
  uint32_t owner : 8; /* PINNED: who pays for the page; CACHED: who paid last */
  union {
    struct {
      uint32_t older : 24; /* the page let go last before this one */
      uint32_t due : 8;    /* in a WARM list: the clock at which the page is evicted */
    } cached;
    struct {
      uint32_t references : 24; /* how often sequences hold the page */
      uint32_t group_id : 8;    /* of the block in it: pager_group_id */
    } pinned;
  };
  uint32_t node : 24; /* where the block in the page is published; PAGER_NODE_NONE: nowhere */
  uint32_t group : 4; /* of a published block: its layer group */
  uint32_t state : 2;
  uint32_t keep : 1; /* some boundary needs the block: the page becomes WARM, not COLD, when nobody holds it any more */
  uint32_t copy : 1; /* a copy that fills the page was emitted and not taken yet */
} pager_page;
_Static_assert(sizeof(pager_page) == 12, "a page record is three words: docs/pager.md counts on it");

/* 96 of the 128 bits of XXH3: they find a node, its tokens and parent prove it. */
typedef struct pager_hash {
  uint64_t low;
  uint32_t high;
} pager_hash;

typedef struct pager_node {
  uint32_t hash[3];
  uint32_t parent : 24; /* free node: the next free one */
  uint32_t worth : 8;   /* class of the most precious sequence that had it; never more than the parent's */
  uint32_t refs;
  uint32_t depth : 24; /* base blocks from the root to the end of this one */
  uint32_t space : 4;
  uint32_t root : 1;     /* a domain begins here; a parent is the end of the public prefix before it */
  uint32_t boundary : 1; /* prefixes part here: sequences that pass keep the window before it */
  uint32_t live : 1;
} pager_node;

typedef struct pager_group {
  uint32_t block_tokens;
  uint32_t shift; /* log2 of block_tokens */
  uint32_t span;  /* base blocks per block */
  uint32_t window;
  uint32_t table_offset;
} pager_group;

/* The kind of a block: its space and group. */
static inline uint32_t pager_group_id(uint32_t space, uint32_t group) {
  return space * WEFT_GROUPS_MAX + group;
}
_Static_assert(WEFT_SPACES_MAX *WEFT_GROUPS_MAX <= 256, "a kind has 8 bits");

typedef struct pager_space {
  weft_key128 fingerprint;
  uint32_t n_groups;
  uint32_t block_max; /* the grain of hits and boundaries */
  uint32_t n_global, n_windowed;
  uint32_t token_cost, cost_doubles;
  uint8_t global[WEFT_GROUPS_MAX], windowed[WEFT_GROUPS_MAX]; /* group numbers */
  pager_group group[WEFT_GROUPS_MAX];
} pager_space;

typedef struct pager_seq {
  uint32_t live; /* 0: the slot is free */
  uint32_t next_free;
  uint32_t space, owner, retention;
  weft_key128 domain;
  uint32_t public_end; /* base blocks of its public prefix; 0: none, or it publishes nothing */
  uint32_t n_valid, n_reserved;
  uint32_t tail;                          /* node of the last whole base block; NONE: publishes nothing */
  uint32_t announced_tail;                /* deepest node it promised; NONE: no promise is open */
  uint32_t announced_from, announced_end; /* base blocks */
  weft_page *table;                       /* the tables of its groups, one after another */
  uint32_t n_sought, n_found;             /* tokens that admit looked up, and those that it found */
  bool forked, entered;                   /* it began as a fork; weft_pager_enter was called */
  uint32_t first[WEFT_GROUPS_MAX];        /* first block that the table still holds, */
  uint32_t end[WEFT_GROUPS_MAX];          /* and how many entries it has: n_reserved in blocks */
} pager_seq;

struct weft_pager {
  uint32_t n_pages, n_seqs_max, seq_tokens_max, n_spaces;
  uint32_t base_tokens, base_shift;
  bool cache;
  pager_space space[WEFT_SPACES_MAX];

  pager_page *page;                    /* [n_pages + PAGER_N_LISTS]; the last ones are the heads of the lists */
  uint32_t free_page, n_pages_touched; /* pages from n_pages_touched on were never used */
  uint8_t clock;                       /* when the last WARM page was due */
  weft_pager_stats stats;
  weft_owner_usage owner[WEFT_OWNERS_MAX];
  weft_group_usage usage[WEFT_SPACES_MAX * WEFT_GROUPS_MAX]; /* by kind */

  uint32_t n_nodes, n_nodes_touched, n_nodes_live, free_node, n_places;
  pager_node *node;
  uint32_t *place;      /* [n_nodes][n_places] */
  int32_t *node_tokens; /* [n_nodes][node_stride] */
  uint32_t node_stride; /* >= 4: a root keeps its domain there */
  uint32_t *line;       /* [n_lines][PAGER_LINE_WORDS] */
  uint32_t n_lines;
  uint64_t secret[PAGER_SECRET_WORDS]; /* the index hashes with it: prefix.c */
  pager_hash hash_mask;                /* all ones; tests weaken it */

  pager_seq *seq;
  uint32_t free_seq, n_seqs_touched;
  weft_page *table; /* [n_seqs][table_stride] */
  uint64_t table_stride;
  int32_t *pending;   /* [n_seqs][base_tokens]: tokens of the base block being filled */
  uint64_t *boundary; /* [n_seqs][boundary_words]: bit i: keep the windows before i * block_max */
  uint32_t boundary_words;

  weft_page_copy *copy;                        /* [copy_capacity + spill_capacity], in the order they must run */
  uint32_t copy_capacity, spill_capacity;      /* of forks; of lower tiers */
  uint32_t n_copies_waiting, n_spills_waiting; /* all; those of lower tiers */

  struct pager_slot *slot; /* spill.h; [n_slots + 2]; the last ones head the lists of host and file */
  uint32_t n_host, n_slots;
  uint32_t free_slot[2], n_free_host;
  uint32_t n_moves_waiting; /* of the copies that wait, moves */

  weft_journal_event *journal;
  uint64_t journal_mask, journal_next;
  weft_key128 *journal_name; /* [n_nodes]: what a node is called outside of this process */

  uint32_t *path; /* scratch of admit: nodes of the prompt */
  pager_hash *path_hash;

  void *allocation[PAGER_ALLOCATIONS_MAX];
  uint32_t n_allocations;
};

#endif
