/* SPDX-License-Identifier: MIT */
/* The most likely canvas that keeps an answer within a grammar: a Viterbi pass with a beam over the places of the
 * grammar's graph (model/formats/grammar_graph.h), position by position.
 *
 * Law.
 *   - A path leads from one of the places where the answer is, by one class of tokens at each position, to a place from
 *     which the answer can be completed with the tokens that are left after the canvas; at every position enough tokens
 *     are left to complete it. So a path exists whenever the tokens left before the canvas suffice for an answer.
 *   - The score of a path is the sum of the log-sums of its classes. At each position the search goes on from at most
 *     CANVAS_PATH_BEAM places: the one that is nearest to the end and those with the best scores, the lower place first
 *     where two are equal. Where no position has more places than that, the path found is the best of all.
 *   - The work of a position is bounded by the edges of CANVAS_PATH_BEAM places, and is far less where the model agrees with
 *     the grammar: what cannot become better than a path that was found before is not looked at. No memory is taken after
 *     open. */
#ifndef WEFT_MODEL_FORMATS_CANVAS_PATH_H
#define WEFT_MODEL_FORMATS_CANVAS_PATH_H

#include "model/formats/grammar_graph.h"

enum { CANVAS_PATH_BEAM = 256 };

typedef struct canvas_path canvas_path; /* the memory of a pass */

weft_status canvas_path_open(uint32_t n_max, canvas_path **out, uint64_t *n_bytes);
void canvas_path_close(canvas_path *path); /* NULL is fine */

typedef struct canvas_path_ask {
  const weft_grammar_graph *graph;
  const weft_graph_set *from; /* the places where the answer is */
  uint32_t n;                 /* positions, <= n_max and <= n_left */
  uint32_t n_left;            /* tokens that the answer may still have, those of these positions included */
  const int32_t *best;        /* [n, n_classes] the most likely token of the class at the position */
  const float *log_sum;       /* [n, n_classes] the logarithm of the summed probabilities of the class's tokens */
} canvas_path_ask;

/* Writes the path to token[n]; false: the answer cannot be completed with n_left tokens. */
bool canvas_path_find(canvas_path *path, const canvas_path_ask *ask, int32_t *token);

#endif
