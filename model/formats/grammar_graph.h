/* SPDX-License-Identifier: MIT */
/* A grammar as a finite graph of places, whose edges are classes of tokens. Answers of diffusion requests are held to
 * such a graph, because a denoise step looks at every position of a canvas, and so many masks would cost too much.
 *
 * Law.
 *   - A place is a configuration of the grammar (model/formats/grammar.h): a state, its count, a stack. An edge
 * leads from a
 *     place by the tokens of a class to another place. A way from the start through edges spells a text that the
 *     grammar can complete, and from every place some way leads to the end; left[] is the least number of tokens on
 *     such a way.
 *   - Tokens of one class lead from every place to the same place. Tokens that no place allows are in no class.
 *   - The graph holds at most WEFT_GRAPH_PLACES places. Places are found in the order of their distance from the start,
 *     and with each its shortest completion. Of a grammar with more places (brackets within brackets, long counts) the
 *     graph holds a part: every answer of the graph is an answer of the grammar, but not the other way round.
 *   - Making a graph is bounded in steps and bytes. A graph never changes, and any thread may use it. */
#ifndef WEFT_MODEL_FORMATS_GRAMMAR_GRAPH_H
#define WEFT_MODEL_FORMATS_GRAMMAR_GRAPH_H

#include "model/formats/grammar.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  WEFT_GRAPH_PLACES = 1 << 12,
  WEFT_GRAPH_CLASSES = 1 << 12,
  WEFT_GRAPH_EDGES = 1 << 22,
  WEFT_GRAPH_WORDS = WEFT_GRAPH_PLACES / 64
};

/* Place 0 is reached by the end of the answer. Class 0 has the tokens that end a generation, class 1 those that print
 * nothing, which may fill a canvas behind the end of the answer. */
enum { WEFT_GRAPH_END = 0, WEFT_GRAPH_CLASS_END = 0, WEFT_GRAPH_CLASS_SILENT = 1 };

typedef struct weft_graph_edge {
  uint32_t which, to; /* a class, and the place to which its tokens lead */
} weft_graph_edge;

typedef struct weft_grammar_graph {
  uint32_t n_places, n_classes, n_vocab, start;
  uint32_t *edge_at; /* [n_places + 1]: the edges of place p are edge[edge_at[p]] .. edge[edge_at[p + 1] - 1] */
  weft_graph_edge *edge;
  uint32_t *left;      /* [n_places] tokens of the shortest completion; 0: the answer may end here */
  uint8_t *more;       /* [n_places] something else than the end may follow */
  uint32_t *class_of;  /* [n_vocab]; n_classes: the token is in no class */
  uint32_t *tokens_at; /* [n_classes + 1] where in token[] those of a class begin, ascending */
  int32_t *token;
  uint64_t n_bytes;
} weft_grammar_graph;

/* UNSUPPORTED with one line where the shortest answer alone needs more than the bounds allow, or where the vocabulary
 * has no token that ends an answer. work as weft_grammar_compile has it. */
weft_status weft_grammar_graph_open(const weft_grammar *grammar, weft_grammar_graph **out, weft_grammar_work *work,
                                    weft_error *error);
void weft_grammar_graph_close(weft_grammar_graph *graph); /* NULL is fine */

/* The set of places that the tokens of an answer may lead to. Plain data. */
typedef struct weft_graph_set {
  uint64_t word[WEFT_GRAPH_WORDS];
} weft_graph_set;

void weft_graph_begin(const weft_grammar_graph *graph, weft_graph_set *set);
/* Goes on by one token; false: none of the places allows the token, and the set is as before. */
bool weft_graph_take(const weft_grammar_graph *graph, weft_graph_set *set, int32_t token);
/* Whether nothing but the end may follow. */
bool weft_graph_is_done(const weft_grammar_graph *graph, const weft_graph_set *set);

static inline bool weft_graph_has(const weft_graph_set *set, uint32_t place) {
  return (set->word[place / 64] >> place % 64 & 1) != 0;
}

#ifdef __cplusplus
}
#endif
#endif
