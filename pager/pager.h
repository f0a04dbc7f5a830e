/* SPDX-License-Identifier: MIT */
/* The pager: which block of KV memory belongs to whom. Integers only: page numbers, counts, hashes; never a
 * device pointer, never a tensor, never a clock.
 *
 * Law. The pool is n_pages uniform pages. Each page is in exactly one state:
 *   FREE    nobody holds it and its content is meaningless
 *   CACHED  no sequence holds it, its content is valid and indexed; evictable
 *   PINNED  held by one or more sequences (references >= 1)
 * A block is one page: the keys and values of block_tokens consecutive positions of one layer group. A group
 * with a window keeps only what the next row can see: positions > n_valid - window; older blocks leave the
 * table at commit. Two sequences share a block only through the prefix index (same space, domain, parent
 * chain and tokens, all compared, hashes only find) or through fork. A refused call changes nothing.
 * Below the pool there may be two more tiers: n_host_pages slots of host memory, which take what is evicted and worth
 * keeping, and n_file_pages slots of a file, which take what the host lets go. The pager moves nothing itself: it
 * emits copies, in the order in which they must run.
 *
 * Who pays. Every page that somebody holds is paid for once, by one owner. A block of a public prefix is paid
 * for by the operator. Any other by the owner of the sequence that took it: that computed it, or that found it
 * CACHED; others who hold it too pay nothing. The payer stays until nobody holds the block, also where its own
 * sequence ended before (only possible where owners share a domain); only the operator takes over what it comes
 * to hold. A CACHED page costs nothing against the
 * limit of an owner; it is counted for the owner who paid last.
 *
 * Positions of one sequence, oldest first:
 *   [0, n_cached)           found in the prefix index at admit; read-only
 *   [n_cached, n_valid)     computed by this sequence; keys and values are written, tokens are known
 *   [n_valid, n_reserved)   blocks exist; the rows in flight write them; then commit or trim
 *
 * One thread (the engine's) calls everything. Nothing is allocated after open. */
#ifndef WEFT_PAGER_PAGER_H
#define WEFT_PAGER_PAGER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  WEFT_GROUPS_MAX = 16,        /* layer groups of one space */
  WEFT_SPACES_MAX = 16,        /* weight sets that share one pool */
  WEFT_BLOCK_TOKENS_MAX = 256, /* and the least is 1; powers of two */
  WEFT_OWNERS_MAX = 256,       /* tenants are owners 0 .. 254, */
  WEFT_OWNER_OPERATOR = 255,   /* and this one pays for public prefixes */
  WEFT_RETENTION_MAX = 3,      /* each class is kept as if its blocks cost twice as much as in the one below */
  WEFT_MOVES_MAX = 1024        /* moves from and to the file under way at once */
};

#define WEFT_PAGE_NONE UINT32_MAX
#define WEFT_SEQ_NONE  UINT32_MAX

typedef uint32_t weft_page; /* index of a page in the pool; the page's bytes start at page * page_bytes */
typedef uint32_t weft_seq;  /* a sequence of the pager, < n_seqs */

/* 128 bits that name a sharing domain (who may see a cached block) or a set of weights. */
typedef struct weft_key128 {
  uint64_t low, high;
} weft_key128;

static inline bool weft_key128_equal(weft_key128 a, weft_key128 b) {
  return a.low == b.low && a.high == b.high;
}

/* The domain of public prefixes, which no tenant can have. */
#define WEFT_DOMAIN_PUBLIC ((weft_key128){UINT64_MAX, UINT64_MAX})

typedef struct weft_group_config {
  uint32_t block_tokens; /* power of two */
  uint32_t window;       /* 0: keeps every token; W: a row at position p sees keys > p - W */
} weft_group_config;

/* A space is one weight set with one KV layout: blocks of different spaces never mix. */
typedef struct weft_space_config {
  weft_key128 fingerprint; /* model, weights, KV type and layout */
  uint32_t n_groups;
  weft_group_config group[WEFT_GROUPS_MAX];
  uint32_t token_cost;   /* what a token costs to compute, beside the other spaces; 0: 1 */
  uint32_t cost_doubles; /* a token at this position costs twice that, at three times this position four times; 0:
                           all cost the same */
} weft_space_config;

typedef struct weft_pager_config {
  uint32_t n_pages;
  uint32_t n_host_pages;   /* slots of host memory behind the pool; 0: evicted content is lost */
  uint32_t n_file_pages;   /* slots of a file behind those; 0: none */
  uint32_t n_seqs;         /* most sequences alive at once */
  uint32_t seq_tokens_max; /* longest sequence: sizes the block tables */
  uint32_t n_spaces;
  const weft_space_config *space; /* [n_spaces], copied */
  uint32_t journal_capacity;      /* events kept; power of two; 0: no journal */
  bool no_prefix_cache;           /* nothing is published, nothing is found */
  uint64_t hash_seed;             /* of the prefix index; 0: the system draws a secret, as a server wants it. What the
                                     pager does depends on it in nothing but the time that it takes */
} weft_pager_config;

typedef struct weft_pager weft_pager;

/* Errors: INVALID with the field named, NO_MEMORY. */
weft_status weft_pager_open(const weft_pager_config *config, weft_pager **out, weft_error *error);
void weft_pager_close(weft_pager *pager); /* NULL is fine */

typedef struct weft_admit {
  uint32_t space;
  weft_key128 domain;      /* from the authenticated tenant, never from the request body; not WEFT_DOMAIN_PUBLIC */
  const int32_t *tokens;   /* the prompt (and, after preemption, all tokens so far); read during the call */
  uint32_t n_tokens;       /* >= 1 */
  uint32_t n_prompt;       /* tokens[0, n_prompt) end a prompt: windows are kept there; <= n_tokens */
  uint32_t n_public;       /* tokens[0, n_public) begin a prefix that the operator declared public; <= n_tokens.
                            Rounded down to the largest block of the space; found and published in the one
                            public domain, which all share; what follows it in `domain`, as ever */
  uint32_t owner;          /* who pays, < WEFT_OWNERS_MAX */
  uint32_t retention;      /* how long its blocks stay CACHED: a class, 0 .. WEFT_RETENTION_MAX */
  uint32_t n_keep_rows;    /* this many last tokens are always computed (1 for an autoregressive request,
                            0 when no row's output is wanted, as for a canvas request) */
  bool no_cache;           /* neither find nor publish nor wait for others */
  uint32_t n_cached_least; /* NOT_FOUND, and nothing changed, where less is cached; 0: all that is asked is a start */
  /* The room that the caller wants, asked before anything is pinned, so that a request that waits and tries again does
   * not make its cached prefix the newest each time; room_pages 0: not asked. */
  uint32_t room_pages;  /* pages that the sequence will hold at its peak, those of its hit included */
  uint32_t room_margin; /* pages that must stay free or evictable besides */
  uint32_t room_spare;  /* pages that the caller could free if need be: they count as free */
  bool room_in_limit;   /* the owner must be able to pay for room_pages too */
  /* What lies in lower tiers is brought back when that is cheaper than computing it again: */
  uint32_t restore_max_pages; /* most pages this admit may bring back; 0: none */
  uint32_t restore_cost;      /* of one page, in 1/256 of computing one token, */
  uint32_t lift_cost;         /* and what it costs besides that when it lies in the file */
  bool restore_wait;          /* may say AGAIN while content comes up from the file, */
  bool lift_none;             /* but only while other content does: nothing of its own begins to */
} weft_admit;

/* Starts a sequence: finds the longest prefix that every group can serve, pins it, and announces the rest of
 * the prompt as being computed. *n_cached is where computing starts: a multiple of the largest block of the
 * space, <= n_tokens - n_keep_rows.
 * WEFT_AGAIN: another running sequence is computing a longer part of this prefix; try again after it
 * committed (*waits_for is that sequence, which from now on keeps the windows where the prefixes part). Or
 * *waits_for is WEFT_SEQ_NONE: a longer part is coming up from the file; n_lifting is not 0; try again when it is.
 * *n_cached is then how many of its pages are not on their way yet.
 * Blocks in host memory are brought back, pages are taken for them and they count as cached, if the sequence then
 * starts later by more tokens than restore_cost says, and pages and copies last.
 * WEFT_FULL: no sequence slot is free. WEFT_QUOTA: the blocks found would bring the owner over its limit.
 * INVALID: a field is out of range. TOO_LARGE: beyond seq_tokens_max. */
weft_status weft_pager_admit(weft_pager *pager, const weft_admit *args, weft_seq *out, uint32_t *n_cached,
                             weft_seq *waits_for);

/* The request of this sequence, of an admit or a fork, starts to run: it is counted, once, as a new prompt, as one that
 * resumes after it was preempted, or as a fork. A sequence that is released before that was a try, and in no count. */
void weft_pager_enter(weft_pager *pager, weft_seq seq, bool resumes);

/* Makes blocks exist for positions [n_valid, n_valid + n_rows) in every group. All or nothing.
 * Evicts CACHED blocks as needed: what costs little to compute again and was not used for long first, tails of
 * chains before their heads (docs/pager.md).
 * WEFT_QUOTA: the owner would pay for more pages than its limit; nothing changed; asked before all others.
 * WEFT_NO_BLOCKS: not enough; nothing changed. TOO_LARGE: beyond seq_tokens_max. Copies must be taken between
 * steps: while one per sequence and group waits, a reserve that needs one more says NO_BLOCKS too. */
weft_status weft_pager_reserve(weft_pager *pager, weft_seq seq, uint32_t n_rows);

/* The n next positions are written and their tokens are known: they become valid, full blocks are published
 * (content hash -> block) and windowed groups drop what no later row can see. n <= reserved. Where a full
 * block was published by another sequence meanwhile, the table changes over to that page. Within the public
 * prefix the tokens must be those that admit was given. */
void weft_pager_commit(weft_pager *pager, weft_seq seq, const int32_t *tokens, uint32_t n);

/* A wish: the sequence will soon be reserved or committed; what that touches first should be near. */
void weft_pager_prefetch(const weft_pager *pager, weft_seq seq);

/* Marks the present end of the sequence as a boundary worth keeping (end of a prompt, of a turn): the windows
 * before it stay cached when they leave the table, so that a later admit can end its hit here. */
void weft_pager_mark(weft_pager *pager, weft_seq seq);

/* Gives back blocks reserved beyond n_valid (rows that turned out void). */
void weft_pager_trim(weft_pager *pager, weft_seq seq);

/* Where content lies. */
typedef enum weft_tier { WEFT_TIER_POOL = 0, WEFT_TIER_HOST = 1, WEFT_TIER_FILE = 2 } weft_tier;

/* A copy of a whole page to perform before the next step, from -> to: a page of the pool, or a slot of a lower tier.
 * Copies from and to the file are moves: they may take any time, and end with weft_pager_moved. */
typedef enum weft_copy_kind {
  WEFT_PAGE_TO_PAGE = 0,
  WEFT_PAGE_TO_HOST = 1,
  WEFT_HOST_TO_PAGE = 2,
  WEFT_HOST_TO_FILE = 3,
  WEFT_FILE_TO_HOST = 4
} weft_copy_kind;

typedef struct weft_page_copy {
  weft_page from, to;
  uint32_t kind;
} weft_page_copy;

/* A second sequence with the first n_tokens valid tokens of seq; blocks are shared; a shared partly filled block is
 * copied when one side reserves into it (copies come out of weft_pager_take_copies). WEFT_FULL: no slot. NOT_FOUND: a
 * window passed over what a row at n_tokens sees. INVALID: n_tokens > n_valid. A fork of less than the public prefix
 * publishes nothing. */
weft_status weft_pager_fork(weft_pager *pager, weft_seq seq, uint32_t n_tokens, weft_seq *out);

/* Moves out the copies that must run before rows reserved so far are written, in their order: a page that was
 * evicted to the host and handed on has its copy out before anything writes to it. Returns how many; call until
 * it returns less than max. */
uint32_t weft_pager_take_copies(weft_pager *pager, weft_page_copy *out, uint32_t max);
uint32_t weft_pager_copies_max(const weft_pager *pager);    /* the most that can wait */
uint32_t weft_pager_moves_waiting(const weft_pager *pager); /* moves among those that wait to be taken */

/* A copy to this host slot failed: what it was to hold is forgotten, nothing else changes. To be told before the
 * next admit; until its copy was taken, a slot is not read. */
void weft_pager_spill_lost(weft_pager *pager, uint32_t host_slot);
/* A move from or to the file ended. Failed: the content is forgotten. */
void weft_pager_moved(weft_pager *pager, const weft_page_copy *move, bool ok);

/* Ends a sequence: references drop, published blocks become CACHED (if nobody else holds them), others FREE.
 * What it announced but did not compute is withdrawn. */
void weft_pager_release(weft_pager *pager, weft_seq seq);

/* Drops every CACHED block. Running sequences keep theirs; their published blocks are unpublished. */
void weft_pager_reset_cache(weft_pager *pager);

/* ---- what others read ------------------------------------------------------------------------------- */

uint32_t weft_pager_n_valid(const weft_pager *pager, weft_seq seq);
uint32_t weft_pager_n_reserved(const weft_pager *pager, weft_seq seq);
uint32_t weft_pager_n_blocks_held(const weft_pager *pager, weft_seq seq); /* table entries, all groups */

/* The block table of one group: table[i] is the page of positions [i * block_tokens, ...), WEFT_PAGE_NONE for
 * blocks a window dropped. Valid until the next call that changes the sequence. */
const weft_page *weft_pager_table(const weft_pager *pager, weft_seq seq, uint32_t group, uint32_t *n_entries);

/* All block tables lie in one array that never moves; this is its start. A table's offset from it stays the same
 * from admit to release, so whoever passes many tables on passes offsets and copies nothing. */
const weft_page *weft_pager_tables(const weft_pager *pager);

/* Pages that reserve could obtain now: FREE + CACHED. */
uint32_t weft_pager_headroom(const weft_pager *pager);
/* Pages that a sequence of n_tokens holds at its peak in the space, while n_rows rows are in flight. */
uint32_t weft_pager_pages_for(const weft_pager *pager, uint32_t space, uint32_t n_tokens, uint32_t n_rows);

typedef struct weft_pager_stats {
  uint32_t n_pages, n_free, n_cached, n_pinned;
  uint32_t n_seqs;
  uint64_t n_admits, n_hits, n_hit_tokens, n_prompt_tokens, n_waits;
  uint64_t n_resumes, n_resumed_tokens, n_resumed_hit_tokens;
  uint64_t n_forks, n_forked_tokens;
  uint64_t n_taken, n_evicted, n_published, n_duplicates, n_copies, n_window_dropped;
  uint64_t host_bytes;
  /* lower tiers: slots, slots that hold content, moves up and down under way; copies out and back, moves that went
   * well; content that a tier let go, and content that a failed copy to the host, or a failed move, lost */
  uint32_t n_host_pages, n_host_held, n_file_pages, n_file_held, n_lifting, n_sinking;
  uint64_t n_spilled, n_restored, n_to_file, n_from_file;
  uint64_t n_spill_dropped, n_spill_lost, n_file_dropped, n_file_lost;
} weft_pager_stats;
weft_pager_stats weft_pager_get_stats(const weft_pager *pager);

/* What one owner has and had. limit is the most pages it may pay for at a time; 0: no limit. */
typedef struct weft_owner_usage {
  uint32_t limit, n_pinned, n_cached;
  uint64_t n_admits, n_hits, n_hit_tokens, n_prompt_tokens, n_evicted;
} weft_owner_usage;
weft_owner_usage weft_pager_owner_usage(const weft_pager *pager, uint32_t owner); /* O(1) */
/* Nothing is taken away from an owner that is over its new limit. Not for the operator. */
void weft_pager_set_owner_limit(weft_pager *pager, uint32_t owner, uint32_t n_pages_max);

/* What one layer group of a space has now, by state (free pages are nobody's), and how many of its blocks hits found. */
typedef struct weft_group_usage {
  uint32_t n_pinned, n_cached, n_host, n_file;
  uint64_t n_hits;
} weft_group_usage;
weft_group_usage weft_pager_group_usage(const weft_pager *pager, uint32_t space, uint32_t group); /* O(1) */

/* The journal: numbered, bounded; a reader that fell behind is told how many it missed. */
typedef enum weft_journal_kind {
  WEFT_JOURNAL_STORED = 1,  /* block published, or its content came into a lower tier */
  WEFT_JOURNAL_REMOVED = 2, /* block left the index (evicted, reset, replaced), or the tier */
  WEFT_JOURNAL_CLEARED = 3  /* everything left the index */
} weft_journal_kind;

typedef struct weft_journal_event {
  uint64_t number; /* +1 per event, from 0 */
  weft_journal_kind kind;
  uint32_t space, group;
  weft_tier tier;
  weft_page page;           /* or the slot of the tier */
  weft_key128 hash, parent; /* chain hash at the end, and at the start, of the block */
  uint32_t first_position, n_tokens;
} weft_journal_event;

/* Copies events with number >= *next, oldest first; advances *next; *n_missed counts overwritten ones. */
uint32_t weft_pager_journal_read(const weft_pager *pager, uint64_t *next, weft_journal_event *out, uint32_t max,
                                 uint64_t *n_missed);

/* Recomputes every law from the tables and compares with the counters. False: *error names the law. Slow. */
bool weft_pager_check(const weft_pager *pager, weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
