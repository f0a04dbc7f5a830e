/* SPDX-License-Identifier: MIT */
/* The pager: decides which page of KV memory belongs to which sequence. It deals in integers only: page numbers, token
 * numbers, counts and hashes. It never sees a device pointer, a tensor or a clock.
 *
 * Keys and values lie in pages, and a block table says where, as in PagedAttention (Kwon et al., arXiv 2309.06180);
 * prefixes are found in a trie over tokens, as in RadixAttention (Zheng et al., arXiv 2312.07104).
 *
 * Pages. The pool is n_pages pages of one size. Each page is in exactly one state:
 *   FREE    no sequence holds the page and its content is meaningless
 *   CACHED  no sequence holds the page; its content is valid and in the prefix index until the page is evicted
 *   PINNED  one or more sequences hold the page (its reference count is at least 1)
 *
 * Blocks. A block is the keys and values of block_tokens consecutive positions of one layer group, and fills one page.
 * States. In a group of states a block is what a recurrence has made of all positions before its end, a border. It
 * fills state_pages pages, which lie anywhere and are taken, paid for, evicted and moved as one; wherever a page is
 * named, the first one stands for all. It is written once, by the rows that reach the border, and never in place:
 * forks, hits and snapshots share it like any block. A row needs the state at the last border at or before it, and no
 * other.
 *
 * A group without a window keeps every block of a sequence. A group with a window of W keeps only the blocks that the
 * next row can see, those with a position > n_valid - W; at each commit older blocks leave the sequence's block table.
 * Two sequences share a block in two ways only: through the prefix index, where the model, the domain and all tokens
 * from the start are compared and the hash merely finds the candidate; or through fork.
 *
 * Lower tiers. Behind the pool there may be n_host_pages slots of host memory, which take the content of evicted pages
 * that is worth keeping, and behind those n_file_pages slots of a file, which take what the host's slots let go. The
 * pager moves no bytes. It emits copies in the order in which they must run; model/kv_store runs them.
 *
 * Payment. Every PINNED page is paid for by exactly one owner (a tenant), and counts against the limit of that owner
 * only. The operator pays for the blocks of public prefixes. Any other block is paid for by the owner of the sequence
 * that first held it: the one that computed it, or that found it CACHED; owners that come to share it pay nothing. The
 * payer stays the same until no sequence holds the block, even if the payer's own sequence ends earlier (which can only
 * happen where owners share a domain), with one exception: what the operator comes to hold, the operator pays for. A
 * CACHED page counts against no limit; statistics show it with the owner who paid last.
 *
 * Positions of one sequence, from the first:
 *   [0, n_cached)           found in the prefix index by admit; never written
 *   [n_cached, n_valid)     computed by this sequence: keys and values are written and the tokens are known
 *   [n_valid, n_reserved)   have blocks, which the rows in flight write; commit makes them valid, trim returns them
 *
 * A call that is refused changes nothing. AGAIN of weft_pager_admit is no refusal but a wait, and says there what it
 * changes. All calls come from one thread, the engine's. Nothing is allocated after open; only weft_pager_check
 * allocates, and it frees before it returns. */
#ifndef WEFT_PAGER_PAGER_H
#define WEFT_PAGER_PAGER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/layer_group.h"
#include "base/page_copy.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  WEFT_OWNERS_MAX = 256,     /* tenants are the owners 0 .. 254 */
  WEFT_OWNER_OPERATOR = 255, /* the owner who pays for public prefixes */
  WEFT_RETENTION_MAX = 3,    /* the highest class of retention: a class keeps blocks twice as long as the one below */
  WEFT_PARTINGS_MAX = 2,     /* of weft_admit */
  WEFT_MOVES_MAX = 1024      /* moves between host memory and file that can be under way at the same time */
};

#define WEFT_PAGE_NONE UINT32_MAX
#define WEFT_SEQ_NONE  UINT32_MAX
typedef uint32_t weft_page; /* a page of the pool, by number; its bytes start at page * page_bytes */
typedef uint32_t weft_seq;  /* a sequence of the pager, < n_seqs */

/* 128 bits that name a domain (the requests that may share cached blocks) or a set of weights. */
typedef struct weft_key128 {
  uint64_t low, high;
} weft_key128;

static inline bool weft_key128_equal(weft_key128 a, weft_key128 b) {
  return a.low == b.low && a.high == b.high;
}

/* The domain of public prefixes, which no tenant can have. */
#define WEFT_DOMAIN_PUBLIC ((weft_key128){UINT64_MAX, UINT64_MAX})

/* A model is one set of weights with one layout of keys and values. Blocks of different models are never shared. */
typedef struct weft_pager_model {
  weft_key128 fingerprint; /* of the model, its weights, and the type and layout of its keys and values */
  uint32_t n_groups;
  weft_layer_group group[WEFT_GROUPS_MAX];
  /* To compute a token at this position costs twice as much as the first one, at three times this position four times,
   * because it sees more keys; 0: every position costs the same. */
  uint32_t cost_doubles;
} weft_pager_model;

typedef struct weft_pager_config {
  uint32_t n_pages;        /* all are open when the pager is */
  uint32_t resize_pages;   /* by how many pages one weft_pager_resize (resize.h) may make the pool smaller; 0: never */
  uint32_t n_host_pages;   /* slots of host memory behind the pool; 0: evicted content is lost */
  uint32_t n_file_pages;   /* slots of a file behind the host memory; 0: there is no file */
  uint32_t n_seqs;         /* the most sequences that are alive at the same time */
  uint32_t seq_tokens_max; /* the longest sequence; it sizes the block tables */
  uint32_t n_models;
  const weft_pager_model *model; /* [n_models], copied */
  uint32_t journal_capacity;     /* events that the journal keeps (journal.h), a power of two; 0: there is no journal */
  bool changes, saves, no_prefix_cache; /* weft_pager_watch, saved.h may be used; nothing is published and found */
  /* Seeds the hash of the prefix index. 0, as a server needs it: the system draws a secret (pager_secret_draw in
   * prefix.c), so that no client can choose tokens that slow down the searches of others. Tests give a number. No
   * result depends on the seed, only the time that searches take. */
  uint64_t hash_seed;
} weft_pager_config;

typedef struct weft_pager weft_pager;

/* INVALID names the field that is out of range; NO_MEMORY; IO: the system gave no random bytes for the secret. */
weft_status weft_pager_open(const weft_pager_config *config, weft_pager **out, weft_error *error);
void weft_pager_close(weft_pager *pager); /* NULL is allowed */

/* ---- the life of a sequence ------------------------------------------------------------------- */

typedef struct weft_admit {
  uint32_t model;
  weft_key128 domain;    /* the authenticated tenant's, which cache_salt can only narrow; not WEFT_DOMAIN_PUBLIC */
  const int32_t *tokens; /* the prompt, and after a preemption the answer so far too; only read during the call */
  uint32_t n_tokens;     /* at least 1 */
  uint32_t n_prompt; /* <= n_tokens: where the prompt ends, so that windowed groups keep the blocks for a hit there */
  uint32_t parting[WEFT_PARTINGS_MAX]; /* <= n_tokens: where other prompts are likely to part from it; 0: none */
  uint32_t n_public;       /* <= n_tokens: tokens[0, n_public) begin a public prefix, shared in whole largest blocks */
  uint32_t owner;          /* the owner who pays, < WEFT_OWNERS_MAX */
  uint32_t retention;      /* 0 .. WEFT_RETENTION_MAX: how long the blocks stay CACHED, compared with other blocks */
  uint32_t n_keep_rows;    /* this many tokens at the end are computed even if they are cached: 1 for an autoregressive
                            request, which needs the logits of the last row, and more where those of other rows are
                            wanted; 0 for a canvas request, which needs none */
  bool no_cache;           /* finds nothing, publishes nothing and waits for no sequence */
  bool follow_none;        /* compute what another sequence is computing now instead of waiting for it */
  uint32_t n_cached_least; /* refuse with NOT_FOUND unless at least this many tokens are cached */

  /* The room that the caller needs besides the hit. It is checked before anything is pinned. Otherwise a waiting
   * request that tries again and again would make its cached prefix the most recently used one each time. */
  uint32_t room_pages;  /* pages that the sequence will hold at its peak, the pages of its hit included; 0: no check */
  uint32_t room_margin; /* pages that must stay FREE or CACHED besides */
  uint32_t room_spare;  /* pages that the caller can release when they are needed; they count as FREE */
  bool room_in_limit;   /* the owner's limit must allow room_pages too */

  /* When content of a lower tier is brought back instead of being computed again: */
  uint32_t restore_max_pages; /* the most pages that this admit may bring back; 0: none */
  uint32_t restore_cost;      /* what bringing back one page costs, in 1/256 of computing one token */
  uint32_t lift_cost;         /* what lifting a page from the file into host memory costs on top of that, same unit */
  bool restore_wait;          /* admit may answer AGAIN because content is being lifted from the file */
  bool lift_none;             /* admit begins no lift for this request; with restore_wait it may still answer AGAIN
                                 while lifts that were begun for others are under way */
} weft_admit;

/* Starts a sequence. Finds the longest cached prefix that every layer group can serve, pins its blocks, and promises
 * the other blocks of the prompt, so that prompts with the same beginning can wait for them. *n_cached is the position
 * where computing starts: a multiple of the largest block of the model, and <= n_tokens - n_keep_rows.
 * Blocks in host memory count as cached and are brought back if that saves more than it costs (restore_cost) and if
 * there are pages and room among the waiting copies.
 * AGAIN: a longer prefix will be there soon. Either another sequence is computing it: *waits_for names the sequence,
 *   and the caller should try again after that sequence has committed. (The node where the prefixes part is marked, so
 *   that the sequence keeps the windows that a hit there needs.) Or blocks are being lifted from the file, by moves
 *   that this call may have begun: *waits_for is WEFT_SEQ_NONE, stats.n_lifting is not 0, *n_cached is the number of
 *   blocks of the prefix whose lift has not begun yet, and the caller should try again when lifts have ended.
 * NO_BLOCKS: the room asked for is not there; *n_cached is how many pages besides the hit it takes, room_margin
 *   included.
 * QUOTA: the blocks found, or with room_in_limit the room asked for, would bring the owner above its limit.
 * FULL: n_seqs sequences are alive. NOT_FOUND: less than n_cached_least tokens are cached.
 * INVALID: a field is out of range. TOO_LARGE: n_tokens > seq_tokens_max. */
weft_status weft_pager_admit(weft_pager *pager, const weft_admit *args, weft_seq *out, uint32_t *n_cached,
                             weft_seq *waits_for);

/* A second sequence with the first n_tokens valid tokens of seq. It shares the blocks of seq. A partly filled block is
 * copied when one of the two reserves into it while the other still holds it. FULL: n_seqs sequences are alive.
 * NOT_FOUND: a window has passed over blocks that a row at n_tokens would see, or the last border before n_tokens is
 * not that before n_valid. INVALID: n_tokens > n_valid. A fork of less than the public prefix publishes nothing. */
weft_status weft_pager_fork(weft_pager *pager, weft_seq seq, uint32_t n_tokens, weft_seq *out);

/* The request of a sequence starts to run: the statistics count the sequence, exactly once, as a fork, as a preempted
 * request that resumes, or as a new prompt. A sequence that is released without this call was a try that found no room;
 * it is not counted, and nor is a pin. */
void weft_pager_enter(weft_pager *pager, weft_seq seq, bool resumes);

/* Gives the sequence blocks for the positions [n_valid, n_valid + n_rows) in every group: all of them or none. Evicts
 * CACHED pages as needed, first those that are cheap to compute again and were not used for long, the tail of a prefix
 * before its head (docs/pager.md).
 * Of these rows the first n_sure are never void. A group of states has a state at the last border that they reach, at
 * each border behind it, and a snapshot at each boundary before it (docs/pager.md) if all of them can be had. QUOTA:
 * the owner would pay for more pages than its limit; this is checked first. NO_BLOCKS: too few pages are FREE or
 * CACHED; or a copy would be needed while one per sequence and group already waits. TOO_LARGE: too long. */
weft_status weft_pager_reserve(weft_pager *pager, weft_seq seq, uint32_t n_rows, uint32_t n_sure);

/* The next n positions have been written and these are their tokens: the positions become valid, blocks that are now
 * full are published in the prefix index, and windowed groups drop the blocks that no later row can see. n must not
 * exceed what is reserved, and the last border before the new n_valid must have a state. Where another sequence has
 * published the same block meanwhile, the block table changes over to that page and the own page becomes FREE. Within
 * the public prefix the tokens are those that admit was given. */
void weft_pager_commit(weft_pager *pager, weft_seq seq, const int32_t *tokens, uint32_t n);

/* Returns the blocks that were reserved beyond n_valid, because the rows that were to fill them are void. */
void weft_pager_trim(weft_pager *pager, weft_seq seq);

/* The prompt or the turn of a conversation ends at the present position, so a later prompt is likely to continue here:
 * windowed groups keep the blocks that such a hit needs CACHED when they leave the block table. */
void weft_pager_mark(weft_pager *pager, weft_seq seq);

/* Ends a sequence. Published blocks that no other sequence holds become CACHED, unpublished ones FREE. Promises that
 * the sequence has not kept are withdrawn. */
void weft_pager_release(weft_pager *pager, weft_seq seq);

/* A hint: reserve or commit will soon be called for the sequence, so its record should be in the processor's cache. */
void weft_pager_prefetch(const weft_pager *pager, weft_seq seq);

/* All CACHED pages become FREE. Running sequences keep their pages, which leave the prefix index. */
void weft_pager_reset_cache(weft_pager *pager);

/* ---- copies ----------------------------------------------------------------------------------- */

typedef enum weft_tier { WEFT_TIER_POOL = 0, WEFT_TIER_HOST = 1, WEFT_TIER_FILE = 2 } weft_tier;

/* Takes the next copies, at most max, in the order in which they must run: all of them before the rows that were
 * reserved so far are written. In particular the content of an evicted page is copied out before the page is written
 * again. Returns how many it took; if that is max, there may be more. */
uint32_t weft_pager_take_copies(weft_pager *pager, weft_page_copy *out, uint32_t max);
uint32_t weft_pager_copies_max(const weft_pager *pager);    /* the most copies that can wait to be taken */
uint32_t weft_pager_moves_waiting(const weft_pager *pager); /* how many of the waiting copies are moves */

/* The copy to this host slot failed: the prefix index forgets the content, nothing else changes. To be called before
 * the next admit. A slot is never read before its copy was taken, so the content has not been used yet. */
void weft_pager_spill_lost(weft_pager *pager, uint32_t host_slot);
/* A move ended. Not ok: the prefix index forgets the content. */
void weft_pager_moved(weft_pager *pager, const weft_page_copy *move, bool ok);

/* ---- what others read ------------------------------------------------------------------------- */
uint32_t weft_pager_n_valid(const weft_pager *pager, weft_seq seq);
uint32_t weft_pager_n_reserved(const weft_pager *pager, weft_seq seq);
uint32_t weft_pager_n_pages_held(const weft_pager *pager, weft_seq seq); /* of all groups */

/* The block table of one group: table[i] is the page of the positions from i * block_tokens on, or WEFT_PAGE_NONE where
 * a window dropped the block. Valid until the next call that changes the sequence. Of a group of states table[i] is the
 * first page of the state at (i + 1) * block_tokens, NONE where the sequence holds none. */
const weft_page *weft_pager_table(const weft_pager *pager, weft_seq seq, uint32_t group, uint32_t *n_entries);

/* The pages, in order, of the sequence's state at `position`, a multiple of block_tokens of the group. The list lies in
 * the array of weft_pager_tables as long as the sequence holds the state. NULL: none, as at 0. */
const weft_page *weft_pager_state(const weft_pager *pager, weft_seq seq, uint32_t group, uint32_t position);

/* The one array in which all block tables and the lists of states lie. It never moves, and the offset of a sequence's
 * table in it is the same from admit to release, so tables can be passed on as offsets, without copies. The pages of a
 * block change when it is published twice, copied on write, or moved by a resize, and at no other time. */
const weft_page *weft_pager_tables(const weft_pager *pager);

uint32_t weft_pager_headroom(const weft_pager *pager); /* the pages that reserve could obtain now: FREE + CACHED */
/* Pages that a sequence of n_tokens holds: at its peak with at most n_rows in flight; in the mean of steps of a row. */
uint32_t weft_pager_pages_for(const weft_pager *pager, uint32_t model, uint32_t n_tokens, uint32_t n_rows);
uint32_t weft_pager_pages_mean(const weft_pager *pager, uint32_t model, uint32_t n_tokens);

typedef struct weft_pager_stats {
  uint32_t n_pages, n_free, n_cached, n_pinned;
  uint32_t n_seqs; /* alive */
  /* New prompts, each counted when its request starts to run (weft_pager_enter): prompts, those with a hit, the tokens
   * found, and the tokens looked up. Prompts with no_cache look up nothing. */
  uint64_t n_admits, n_hits, n_hit_tokens, n_prompt_tokens;
  uint64_t n_waits; /* times that admit answered AGAIN because another sequence computes the prefix */
  uint64_t n_resumes, n_resumed_tokens, n_resumed_hit_tokens; /* resumed requests; tokens looked up, tokens found */
  uint64_t n_forks, n_forked_tokens;                /* forks that started to run; the tokens that they share */
  uint64_t n_taken, n_evicted;                      /* pages */
  uint64_t n_published, n_copies, n_window_dropped; /* blocks; n_copies: copied on write */
  uint64_t n_duplicates; /* blocks returned because another sequence had published the same block */
  uint64_t host_bytes;   /* memory of the pager itself */
  /* Lower tiers: slots, and slots that hold content; moves under way, up and down. */
  uint32_t n_host_pages, n_host_held, n_file_pages, n_file_held, n_lifting, n_sinking;
  uint64_t n_spilled, n_restored;         /* copies from the pool to the host, and back */
  uint64_t n_to_file, n_from_file;        /* moves that succeeded */
  uint64_t n_spill_dropped, n_spill_lost; /* contents that left the host for newer ones; that a failed copy lost */
  uint64_t n_file_dropped, n_file_lost;   /* contents that left the file for newer ones; that a failed move lost */
} weft_pager_stats;
weft_pager_stats weft_pager_get_stats(const weft_pager *pager);

/* One owner. The counters mean what they mean in weft_pager_stats. */
typedef struct weft_owner_usage {
  uint32_t limit;    /* the most pages that the owner may pay for at a time; 0: no limit */
  uint32_t n_pinned; /* pages that it pays for */
  uint32_t n_cached; /* CACHED pages that it paid for last */
  uint64_t n_admits, n_hits, n_hit_tokens, n_prompt_tokens;
  uint64_t n_evicted; /* evicted pages that it paid for last */
} weft_owner_usage;
weft_owner_usage weft_pager_owner_usage(const weft_pager *pager, uint32_t owner); /* O(1) */
/* An owner above its new limit loses nothing. The operator has no limit. */
void weft_pager_set_owner_limit(weft_pager *pager, uint32_t owner, uint32_t n_pages_max);
/* The blocks of one layer group of a model, by where they are; and how many of its blocks new prompts found. */
typedef struct weft_group_usage {
  uint32_t n_pinned, n_cached, n_host, n_file;
  uint64_t n_hits;
} weft_group_usage;
weft_group_usage weft_pager_group_usage(const weft_pager *pager, uint32_t model, uint32_t group); /* O(1) */

/* Recomputes every law from the tables and compares. False: *error names the broken law. Slow: for tests. */
bool weft_pager_check(const weft_pager *pager, weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
