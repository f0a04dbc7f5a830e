/* SPDX-License-Identifier: MIT */
/* Private to model/grammar*.c and their tests.
 *
 * Law: whatever the text of a grammar is, compiling it ends within the bounds below. */
#ifndef WEFT_MODEL_FORMATS_GRAMMAR_INTERNAL_H
#define WEFT_MODEL_FORMATS_GRAMMAR_INTERNAL_H

#include <jansson.h>
#include <stdatomic.h>

#include "model/formats/grammar.h"
#include "model/formats/grammar_builder.h"

enum {
  GRAMMAR_DEPTH_MAX = 64,                                    /* frames of a stack */
  GRAMMAR_TABLE_DEPTH = 32,                                  /* frames above a state that the state's table covers */
  GRAMMAR_NEST_MAX = 64,                                     /* brackets within brackets of a text that is compiled */
  GRAMMAR_STATES_MAX = 1 << 16,                              /* of a builder and of a grammar */
  GRAMMAR_RULES_MAX = 1 << 13,                               /* of a builder */
  GRAMMAR_COUNT_MAX = 1 << 16,                               /* of a repetition */
  GRAMMAR_STEPS_MAX = 20000000,                              /* of building and determinising */
  GRAMMAR_VISITS_MAX = 40000000,                             /* of nodes of the vocabulary's tree */
  GRAMMAR_COST_MAX = GRAMMAR_STEPS_MAX + GRAMMAR_VISITS_MAX, /* of compiling */
  GRAMMAR_BYTES_MAX = 64 << 20,                              /* of a compiled grammar */
  GRAMMAR_FAN_MAX = 1 << 10,                                 /* ways through rules by which a state reaches one byte */
  GRAMMAR_SHORTEST_MAX = 1 << 20,                            /* tokens of a shortest completion */
  GRAMMAR_INFINITE = UINT32_MAX / 4                          /* of sums that may not overflow */
};

/* ---- work (grammar.c) ---- */

/* Counts n steps, and asks now and then whether what is made is still wanted. False: it is not. NULL is fine. */
bool grammar_spend(weft_grammar_work *work, uint64_t n);
/* Whether somebody ended it. NULL is fine. */
static inline bool grammar_is_stopped(const weft_grammar_work *work) {
  return work != NULL && work->stopped;
}
/* ---- readers: text to rules; b->root is set ---- */

void grammar_read_regex(grammar_builder *b, const char *text, size_t n);
/* How the texts of a pattern are written. avoids: a character that is left out of them, 0: none. */
typedef struct pattern_writing {
  grammar_writing writing;
  uint32_t avoids;
} pattern_writing;
/* A schema's `pattern`, which may match anywhere inside a string: between from and to, which stand inside its quotes.
 * false: the pattern may need the character that is avoided, and nothing was added. */
bool grammar_read_pattern(grammar_builder *b, const char *text, size_t n, const pattern_writing *how, uint32_t from,
                          uint32_t to);
void grammar_read_gbnf(grammar_builder *b, const char *text, size_t n);
void grammar_read_schema(grammar_builder *b, const char *text, size_t n);
void grammar_read_object(grammar_builder *b);
void grammar_read_calls(grammar_builder *b, const char *text, size_t n);
void grammar_read_answer(grammar_builder *b, const char *text, size_t n);
void grammar_read(grammar_builder *b, weft_grammar_kind kind, const char *text, size_t n);
/* Calls as a JSON value; b->root is set. */
void grammar_add_calls(grammar_builder *b, const json_t *calls);
void grammar_read_choice(grammar_builder *b, const char *text, size_t n);

/* ---- a compiled grammar (grammar_compile.c) ---- */

typedef struct grammar_call {
  uint32_t rule, next;
} grammar_call;

typedef struct grammar_state {
  uint32_t calls_at, n_calls;
  uint32_t of, min, max;  /* of != GRAMMAR_NONE: a counted repetition of that rule */
  uint32_t tokens, depth; /* fewest that complete the rule where it may not end; frames that they need */
  /* How that shortest completion begins: with a call of way_rule, or, where that is GRAMMAR_NONE, with the token of the
   * node way_node. */
  uint32_t way_rule, way_node;
  uint32_t allowed;           /* which of allowed[] it has; GRAMMAR_NONE: none */
  uint32_t pairs_at, n_pairs; /* of pair[]: tables that hold where the state at the top of the stack is a certain one */
  bool final, moves;          /* the rule may end here; something may follow here */
} grammar_state;

typedef struct grammar_rule {
  uint32_t first;
  bool nullable;
  uint8_t begins[32]; /* bitset of bytes */
} grammar_rule;

/* Tokens after which a state's rule can be completed with the same number of tokens. Those of a repetition have begun
 * the same number of further ones, and what they need of more to reach the least number is not counted. */
typedef struct grammar_group {
  uint32_t tokens_at, n_tokens; /* of list; n_tokens GRAMMAR_NONE: a bitmask, the words of which begin there */
  uint32_t after, used;
} grammar_group;

/* The tokens that a state allows whatever its stack; of a repetition, whatever its count and bounds, so that all
 * repetitions of one rule share a table. */
typedef struct grammar_allowed {
  grammar_group all;            /* all groups as one, with the most of what they need */
  uint32_t groups_at, n_groups; /* of group[]; none where `all` is the only one */
  uint32_t depth;               /* frames above the state that its tokens need at most */
  uint32_t ends; /* the root of a tree of what tokens have behind the end of the rule; NONE: no token has */
  bool twice;    /* that tree leaves out tokens, which the rule allows as well */
} grammar_allowed;

/* The table of a state together with the one that its rule returns to: for states that many tokens lead out of. */
typedef struct grammar_pair {
  uint32_t above, allowed; /* the state to return to; which of allowed[] */
} grammar_pair;

/* What tokens have behind the end of a rule, merged: a token stands at the node that its last byte leads to, whatever
 * it has before that end. Nodes stand as those of a weft_token_trie do; a root has the depth 0. */
typedef struct grammar_leaf {
  uint32_t token, used; /* used: of a repetition, how many further ones the token has taken when the rule ends */
} grammar_leaf;

typedef struct grammar_ends {
  uint8_t *byte;
  uint16_t *depth;
  uint32_t *end, *first; /* leaves of node i: leaf[first[i]] .. leaf[first[i + 1] - 1] */
  grammar_leaf *leaf;
  uint32_t n_nodes, n_leaves, nodes_capacity, leaves_capacity;
} grammar_ends;

struct weft_grammar {
  _Atomic uint32_t n_references;
  const weft_token_trie *trie;
  uint32_t n_states, n_classes, n_rules, n_calls, n_allowed, n_groups, n_pairs, n_list;
  uint32_t list_capacity, groups_capacity, allowed_capacity, pairs_capacity;
  uint8_t class_of[256];
  uint32_t *next;       /* [(n_states + 1) * n_classes]: state + 1, or 0; the last row is empty */
  grammar_state *state; /* [n_states + 1]; the last one is used while tables are made */
  grammar_call *call;
  grammar_rule *rule;
  grammar_allowed *allowed;
  grammar_group *group;
  grammar_pair *pair;
  grammar_ends ends;
  uint32_t *list;
  uint32_t root, shortest;
  uint64_t cost, n_bytes;
  weft_grammar_work *work;          /* while it is compiled */
  struct weft_grammar_graph *graph; /* for answers on canvases; NULL: not made */
};

/* Counts n steps of compiling; false: there were too many, or nobody wants the grammar any more. */
static inline bool grammar_count(weft_grammar *g, uint64_t n) {
  g->cost += n;
  return grammar_spend(g->work, n) && g->cost <= GRAMMAR_COST_MAX;
}
/* Whether compiling goes on, with n steps that are not counted yet. */
static inline bool grammar_goes_on(const weft_grammar *g, uint64_t n) {
  return g->cost + n <= GRAMMAR_COST_MAX && !grammar_is_stopped(g->work);
}

/* Rules to states; what they cost to complete. */
weft_status grammar_determinise(grammar_builder *b, weft_grammar *g);
weft_status grammar_minimise(weft_grammar *g, weft_error *error); /* states that act alike become one */
weft_status grammar_measure(weft_grammar *g, weft_error *error);
/* Fills allowed[] of all states (grammar_tables.c). */
weft_status grammar_tabulate(weft_grammar *g, weft_error *error);
void grammar_tables_close(weft_grammar *g);
uint64_t grammar_tables_bytes(const weft_grammar *g);

/* ---- places in a grammar (grammar_walk.c) ---- */

enum {
  WALK_NODES = 1 << 14,
  WALK_CONFIGS = 1 << 14,
  WALK_WORK = 1 << 12,
  WALK_SET_MAX = WEFT_MATCHER_CONFIGS,
  WALK_BYTE_MAX = 1 << 15, /* items of work for one byte; ways that are not looked at by then are left out */
  WALK_MASK_MAX = 1 << 15  /* items of work for one mask; tokens that are not looked at by then are left out */
};

typedef struct walk_work {
  uint32_t state, count, node;
  bool entering; /* the rule was just called: the rule may not end before it took a byte */
} walk_work;

struct weft_grammar_scratch {
  const weft_grammar *grammar;
  uint32_t n_nodes, n_configs, depth_max;
  uint32_t depth_seen; /* the most frames that any way asked for, taken or not, since the walk began */
  uint64_t n_done;     /* items of work and comparisons, since the walk began */
  uint64_t n_enough;   /* those of one mask: WALK_MASK_MAX; without a bound for who compares masks */
  weft_matcher_node node[WALK_NODES];
  weft_matcher_config config[WALK_CONFIGS];
  walk_work work[WALK_WORK];
  uint32_t set_at[WEFT_TRIE_BYTES_MAX + 2], set_n[WEFT_TRIE_BYTES_MAX + 2], nodes_at[WEFT_TRIE_BYTES_MAX + 2];
  weft_matcher_config closed[WALK_SET_MAX * 4]; /* close_set (grammar_mask.c) */
};

/* Fewest tokens that complete the rule of the state from there, when `count` of its repetitions are done. */
uint32_t grammar_tokens(const weft_grammar *g, uint32_t state, uint32_t count);
static inline bool grammar_may_end(const grammar_state *s, uint32_t count) {
  return s->of == GRAMMAR_NONE ? s->final : count >= s->min;
}
static inline bool grammar_moves(const grammar_state *s, uint32_t count) {
  return s->of == GRAMMAR_NONE ? s->moves : count < s->max;
}
/* Nodes of the scratch begin with those of the matcher. */
void walk_begin(weft_grammar_scratch *w, const weft_grammar *g, const weft_matcher_node *node, uint32_t n_nodes);
/* Like walk_begin, with an empty stack: for the table of a state. */
void walk_begin_table(weft_grammar_scratch *w, const weft_grammar *g);
/* Adds a configuration to the set that begins at `first`, at the end of w->config. */
void walk_push(weft_grammar_scratch *w, uint32_t first, weft_matcher_config config);
/* The set after one more byte, at the end of w->config; how many it has. */
uint32_t walk_byte(weft_grammar_scratch *w, uint32_t first, uint32_t n, uint8_t byte);
/* Whether some configuration of the set may end here with all rules on its stack, so that the answer may end. */
bool walk_may_end(weft_grammar_scratch *w, const weft_matcher_config *set, uint32_t n);
/* Fewest tokens that complete one configuration of the set. */
uint32_t walk_tokens(const weft_grammar_scratch *w, const weft_matcher_config *set, uint32_t n);

/* The work of a walk so far besides its visits to nodes, counted in visits: one costs about as much as 16 items. */
static inline uint64_t walk_cost(const weft_grammar_scratch *w) {
  return w->n_done / 16;
}

typedef struct walk_visit {
  uint32_t node, n; /* the node; configurations of the set that its bytes lead to */
  const weft_matcher_config *set;
} walk_visit;
typedef bool (*walk_visitor)(void *self, const walk_visit *visit); /* false: stop */
/* A tree of bytes, whose nodes stand as those of a weft_token_trie do. */
typedef struct walk_tree {
  const uint8_t *byte;
  const uint16_t *depth;
  const uint32_t *end;
} walk_tree;
/* Visits the nodes below `root` that the set allows, which is the last n configurations of w->config. Returns how many
 * nodes it looked at. */
uint64_t walk_below(weft_grammar_scratch *w, walk_tree tree, uint32_t root, uint32_t n, walk_visitor visitor,
                    void *self);
/* The same over the whole tree of the vocabulary. */
uint64_t walk_trie(weft_grammar_scratch *w, uint32_t n, walk_visitor visitor, void *self);

#endif
