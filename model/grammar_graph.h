/* SPDX-License-Identifier: MIT */
/* A grammar as a finite graph of places with classes of tokens: what answers on canvases are held to, where every
 * position is looked at in every step.
 *
 * Law.
 *   - A place is a configuration of the grammar (model/grammar.h): a state, its count, a stack. An edge leads from a
 *     place by the tokens of a class to another place. A way from the start through edges spells a text that the
 *     grammar can complete, and from every place some way leads to the end: left[] is the least number of tokens.
 *   - Tokens of one class act alike in every place. Tokens that act nowhere are in no class.
 *   - The graph holds at most WEFT_GRAPH_PLACES places. Places are found in the order of their distance from the start,
 *     and with each the shortest completion, so of a grammar with more (brackets within brackets, long counts) the
 *     graph holds a part: every answer of it is an answer of the grammar, and not the other way round.
 *   - Making it is bounded in steps and bytes and done once; it never changes. Any thread. */
#ifndef WEFT_MODEL_GRAMMAR_GRAPH_H
#define WEFT_MODEL_GRAMMAR_GRAPH_H

#include "model/grammar.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  WEFT_GRAPH_PLACES = 1 << 12,
  WEFT_GRAPH_CLASSES = 1 << 12,
  WEFT_GRAPH_EDGES = 1 << 22,
  WEFT_GRAPH_WORDS = WEFT_GRAPH_PLACES / 64
};

/* Place 0 stands behind the end of the answer; class 0 ends a generation, class 1 is what prints nothing and may fill
 * a canvas behind the end. */
enum { WEFT_GRAPH_END = 0, WEFT_GRAPH_CLASS_END = 0, WEFT_GRAPH_CLASS_SILENT = 1 };

typedef struct weft_graph_edge {
  uint32_t which, to; /* a class, a place */
} weft_graph_edge;

typedef struct weft_grammar_graph {
  uint32_t n_places, n_classes, n_vocab, start;
  uint32_t *edge_at; /* [n_places + 1]: those of place p are edge[edge_at[p]] .. edge[edge_at[p + 1] - 1] */
  weft_graph_edge *edge;
  uint32_t *left;      /* [n_places] tokens of the shortest completion; 0: the answer may end here */
  uint8_t *more;       /* [n_places] something but the end may follow */
  uint32_t *class_of;  /* [n_vocab]; n_classes: in none */
  uint32_t *tokens_at; /* [n_classes + 1], tokens of a class ascending */
  int32_t *token;
  uint64_t n_bytes;
} weft_grammar_graph;

/* UNSUPPORTED with one line where the shortest answer alone needs more than the bounds allow, or where the vocabulary
 * has no token that ends an answer. *cost: steps that it took, as of weft_grammar_compile; added to. */
weft_status weft_grammar_graph_open(const weft_grammar *grammar, weft_grammar_graph **out, uint64_t *cost,
                                    weft_error *error);
void weft_grammar_graph_close(weft_grammar_graph *graph); /* NULL is fine */

/* Where an answer may be: places that its tokens lead to. Plain data. */
typedef struct weft_graph_set {
  uint64_t word[WEFT_GRAPH_WORDS];
} weft_graph_set;

void weft_graph_begin(const weft_grammar_graph *graph, weft_graph_set *set);
/* One token further; false: none of the places allows it, and the set is as before. */
bool weft_graph_take(const weft_grammar_graph *graph, weft_graph_set *set, int32_t token);
/* Nothing but the end may follow. */
bool weft_graph_is_done(const weft_grammar_graph *graph, const weft_graph_set *set);

static inline bool weft_graph_has(const weft_graph_set *set, uint32_t place) {
  return (set->word[place / 64] >> place % 64 & 1) != 0;
}

#ifdef __cplusplus
}
#endif
#endif
