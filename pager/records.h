/* SPDX-License-Identifier: MIT */
/* The records of the pager. Only its files and tests include this header.
 *
 * Law. There are four records, all in arrays that open() sizes:
 *   page   one per page of the pool: its state, its reference count or its links in a list, and the node where the
 *          block in it is published
 *   node   one per base block of a prefix. A base block is as long as the smallest block of any model. A node is
 *          (parent node, tokens), and a root is (model, domain); no two nodes are the same in all of these. So each
 *          node stands for exactly one prefix, which follows by induction from the root. A node has one place per layer
 *          group, which says where the block of the group that ends here is
 *   slot   one per slot of host memory and of the file (spill.h)
 *   run one per state that lies in the pool: the list of its pages (state.c). The record of the first page speaks for
 *          all of them
 *   seq    one per running sequence: how far it is, the node where its valid tokens end (its tail), its block tables
 *
 *   root(model, domain) <- node(tokens 0..15) <- node(tokens 16..31) <- ...      (nodes know their parent only)
 *                            place: [page 7]       place: [page 9 | page 2]
 *
 * Behind a public prefix the domain of each tenant begins with a root of its own. Its parent is the last node of the
 * public prefix, and it has the same depth.
 *
 * A node lives while something refers to it: a child, a page or slot in one of its places, or a sequence. */
#ifndef WEFT_PAGER_RECORDS_H
#define WEFT_PAGER_RECORDS_H

#include "base/check.h"
#include "pager/journal.h"
#include "pager/saved.h"

enum {
  PAGER_LINE_WORDS = 16, /* one cache line of the index: 15 entries and the overflow count */
  PAGER_LINE_ENTRIES = 15,
  PAGER_LINE_LOAD = 13,    /* entries per line when every node is in use */
  PAGER_SECRET_WORDS = 24, /* of the secret with which the index hashes: 192 bytes, as many as XXH3 has of its own */
  PAGER_MATCH_BATCH = 32,  /* base blocks whose memory is fetched at the same time while a prompt is matched */
  PAGER_COST_LOG_MAX = 3,  /* the most that the cost of computing a block again adds to its worth */
  PAGER_ALLOCATIONS_MAX = 19,
  PAGER_NODE_EVICTIONS_MAX = 1024 /* pages that are evicted for one new node before it is given up */
};

#define PAGER_NODE_NONE 0xFFFFFFu
#define PAGER_NODES_MAX 0xFFFFFEu
#define PAGER_DEPTH_MAX 0xFFFFFFu
#define PAGER_LINK_NONE 0xFFFFFFu /* page numbers, list heads and reference counts have 24 bits and stay below it */
#define PAGER_PAGES_MAX 0xFFFF00u

/* A place of a node: the number of a page of the pool; or PAGER_PLACE_SLOT and the number of a slot of a lower tier; or
 * PAGER_PLACE_PROMISE and the number of the running sequence that will compute the block; or PAGER_PLACE_NONE. */
#define PAGER_PLACE_NONE    UINT32_MAX
#define PAGER_PLACE_PROMISE 0x80000000u
#define PAGER_PLACE_SLOT    0x40000000u

typedef enum pager_state {
  PAGER_FREE = 0, /* zero, so that untouched memory is a free page */
  PAGER_CACHED = 1,
  PAGER_PINNED = 2,
  PAGER_MEMBER = 3 /* one of the pages of a state, but not the first; `next` names the first, whose state it shares */
} pager_state;

/* The lists in which CACHED pages wait for their eviction, each in the order in which the pages were let go. Pages in
 * the COLD list are evicted before all others. The list WARM + w has the pages of worth w (pool.c). */
typedef enum pager_list {
  PAGER_COLD = 0, /* a window passed over the block, and no boundary needs it (window.c) */
  PAGER_WARM = 1,
  PAGER_N_WORTHS = 7, /* the sum of the retention and the logarithm of the cost, 0 .. 3 each */
  PAGER_N_LISTS = PAGER_WARM + PAGER_N_WORTHS
} pager_list;

typedef struct pager_page {
  uint32_t next : 24; /* FREE: the next free page, or PAGER_LINK_NONE; CACHED: the page let go next after this one */
  uint32_t owner : 8; /* PINNED: the owner who pays for the page; CACHED: the one who paid last */
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
  uint32_t keep : 1; /* some boundary needs the block: the page becomes WARM, not COLD, when no sequence holds it. Set
                        in every state that is WARM. Of a closed page: it is not in the free list */
  uint32_t copy : 1; /* a copy that fills the page was emitted and not taken yet */
} pager_page;
_Static_assert(sizeof(pager_page) == 12, "a page record is three words: docs/pager.md counts on it");

/* 96 of the 128 bits of XXH3, keyed with the pager's secret. The hash finds a node; parent and tokens prove it. */
typedef struct pager_hash {
  uint64_t low;
  uint32_t high;
} pager_hash;

typedef struct pager_node {
  uint32_t hash[3];
  uint32_t parent : 24; /* free node: the next free one */
  uint32_t worth : 8;   /* the highest that a sequence gave to the prefix; never higher than the parent's */
  uint32_t refs;
  uint32_t depth : 24; /* base blocks from the start of the prefix to the end of this node */
  uint32_t model : 4;
  uint32_t root : 1;     /* a domain begins here; its parent, if any, is the last node of the public prefix before it */
  uint32_t boundary : 1; /* prefixes part here: sequences that pass keep the windows for a hit that ends here */
  uint32_t live : 1;
} pager_node;

/* A layer group as the pager computes with it. */
typedef struct pager_group {
  weft_layer_group layers; /* of a state group with a window of block_tokens + 1: a row sees the last border's state */
  uint32_t rest;  /* block_tokens - 1: a block is there from its first position on; 0 of a state: from its last */
  uint32_t shift; /* log2 of block_tokens */
  uint32_t span;  /* base blocks per block */
  uint32_t table_offset; /* where the group's block table begins in a sequence's tables */
} pager_group;

/* The number of a layer group among the groups of all models. */
static inline uint32_t pager_group_id(uint32_t model, uint32_t group) {
  return model * WEFT_GROUPS_MAX + group;
}
_Static_assert(WEFT_MODELS_MAX *WEFT_GROUPS_MAX <= 256, "a group id has 8 bits");

typedef struct pager_model {
  weft_key128 fingerprint;
  uint32_t n_groups, n_plain; /* groups [n_plain, n_groups) are of states */
  uint32_t block_max;         /* its largest block: hits and boundaries are multiples of it */
  uint32_t n_global, n_windowed;
  uint32_t cost_doubles;
  uint32_t snapshot_every; /* a prompt has a snapshot at each multiple of this, too (window.c); 0: it has none */
  uint8_t global[WEFT_GROUPS_MAX], windowed[WEFT_GROUPS_MAX]; /* group numbers */
  pager_group group[WEFT_GROUPS_MAX];
} pager_model;

typedef struct pager_seq {
  uint32_t live; /* 0: this record is free */
  uint32_t next_free;
  uint32_t model, owner, retention;
  weft_key128 domain;
  uint32_t public_end; /* base blocks of its public prefix; 0: it has none, or the sequence publishes nothing */
  uint32_t n_valid, n_reserved;
  uint32_t tail;                          /* the node of its last whole base block; NONE: it publishes nothing */
  uint32_t announced_tail;                /* the deepest node that it promised; NONE: it has no open promise */
  uint32_t announced_from, announced_end; /* the base blocks that it promised */
  weft_page *table;                       /* the tables of its groups, one after another */
  uint32_t n_sought, n_found;             /* tokens that admit looked up, and those that admit or fork gave it */
  bool forked, entered;                   /* it began as a fork; weft_pager_enter was called */
  uint32_t first[WEFT_GROUPS_MAX];        /* the first block that the table still holds */
  uint32_t end[WEFT_GROUPS_MAX];          /* how many entries the table has: n_reserved in blocks */
} pager_seq;

struct weft_pager {
  uint32_t n_pages, n_seqs_max, seq_tokens_max, n_models;
  uint32_t n_open;    /* pages from n_open on are closed (resize.c) */
  uint32_t moves_max; /* pages that one resize moves at most */
  uint32_t base_tokens, base_shift;
  bool cache;
  pager_model model[WEFT_MODELS_MAX];

  pager_page *page;                    /* [n_pages + PAGER_N_LISTS]; the last ones are the heads of the lists */
  uint32_t free_page, n_pages_touched; /* pages from n_pages_touched on were never used */
  uint8_t clock;                       /* the `due` of the WARM page that was evicted last */
  weft_pager_stats stats;
  uint32_t n_kept_pages; /* of the WARM states, */
  uint32_t kept[2];      /* whose lists of pages are chained: the one let go first, and the one let go last (state.c) */
  weft_owner_usage owner[WEFT_OWNERS_MAX];
  weft_group_usage usage[WEFT_MODELS_MAX * WEFT_GROUPS_MAX]; /* by group id */

  uint32_t n_nodes, n_nodes_touched, n_nodes_live, free_node, n_places;
  pager_node *node;
  uint32_t *place;      /* [n_nodes][n_places] */
  int32_t *node_tokens; /* [n_nodes][node_stride]; of a root: its domain */
  uint32_t node_stride; /* at least 4, the size of a domain */
  uint32_t *line;       /* [n_lines][PAGER_LINE_WORDS] */
  uint32_t n_lines;
  uint64_t secret[PAGER_SECRET_WORDS]; /* the index hashes with it: prefix.c */
  pager_hash hash_mask;                /* all ones; tests clear bits, so that hashes collide */

  pager_seq *seq;
  uint32_t free_seq, n_seqs_touched;
  weft_page *table;                /* [n_seqs][table_stride], and behind them the lists of the runs */
  uint64_t table_stride, run_base; /* run_base: where in `table` those lists begin */
  uint32_t free_run[WEFT_MODELS_MAX * WEFT_GROUPS_MAX]; /* by group id: its free lists */
  uint32_t *run; /* [n_pages]: of the first page of a state where its list is, from run_base on; else 0. NULL: no model
                    has states */
  int32_t *pending;   /* [n_seqs][base_tokens]: tokens of the base block being filled */
  uint64_t *boundary; /* [n_seqs][boundary_words]; bit i: position i * block_max is a boundary (window.c) */
  uint32_t boundary_words;

  weft_page_copy *copy;                        /* [copy_capacity + spill_capacity], in the order they must run in */
  uint32_t copy_capacity, spill_capacity;      /* copies on write; copies from and to lower tiers */
  uint32_t n_copies_waiting, n_spills_waiting; /* all copies; those from and to lower tiers */

  struct pager_slot *slot; /* spill.h; [n_slots + 2]; the last two are the heads of the lists of host and file */
  uint32_t n_host, n_slots;
  uint32_t free_slot[2], n_free_host;
  uint32_t n_moves_waiting; /* copies between host memory and file */

  weft_journal_event *journal;
  uint64_t journal_mask, journal_next;
  weft_key128 *journal_name; /* [n_nodes]: what a node is called outside of this process */
  uint32_t *changed;         /* [n_nodes] the nodes of the list of changes; NULL: the pager was opened without */
  uint8_t *is_changed;       /* [n_nodes] 1: the node is in the list */
  uint32_t n_changed, n_swept, n_sweep; /* nodes n_swept to n_sweep - 1 are still to be told, changed or not */
  bool watched, cleared;                /* cleared: since changes were taken */

  bool saves;         /* as configured */
  uint32_t *told;     /* [n_nodes] while the index is told (saved.c): what was decided of a node; NULL: it never is */
  uint32_t n_told;    /* nodes */
  uint32_t told_slot; /* the slot of the file that comes next */
  weft_domain_rule tells; /* whose blocks are */
  uint64_t n_resets;

  uint32_t *path;        /* scratch of admit: the nodes of the prompt, */
  pager_hash *path_hash; /* and the hashes of its base blocks */

  void *allocation[PAGER_ALLOCATIONS_MAX];
  uint32_t n_allocations;
};

/* The node is new, gone, or one of its blocks can be had from another tier than before. */
static inline void pager_node_changed(weft_pager *pager, uint32_t node) {
  if (!pager->watched || pager->is_changed[node]) return;
  pager->is_changed[node] = 1;
  pager->changed[pager->n_changed++] = node;
}

#endif
