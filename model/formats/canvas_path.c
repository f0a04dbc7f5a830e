/* SPDX-License-Identifier: MIT */
#include "model/formats/canvas_path.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/classes.h"

enum { FEW_PLACES = 12 };

/* A place that a position is gone on from, and how it was come to. */
typedef struct path_step {
  double score;
  uint32_t place, from, which; /* from: of the steps of the position before; which: the class of its token */
} path_step;

struct canvas_path {
  uint32_t n_max, beam;
  double *rest;      /* [n_max + 1] what the positions from i on can add to a score at most */
  int32_t *token;    /* [n_max] */
  double least;      /* no path with a lower score is looked for */
  path_step *step;   /* [n_max + 1][CANVAS_PATH_BEAM]: before position i */
  uint32_t *n_steps; /* [n_max + 1] */
  /* what the present position leads to */
  double score[WEFT_GRAPH_PLACES]; /* of places; -INFINITY: not reached */
  uint32_t from[WEFT_GRAPH_PLACES], which[WEFT_GRAPH_PLACES];
  double gain[WEFT_GRAPH_CLASSES];                /* of classes */
  uint32_t n_touched, touched[WEFT_GRAPH_PLACES]; /* the places with a score */
  uint32_t n_reached;
  path_step reached[WEFT_GRAPH_PLACES];
};

weft_status canvas_path_open(uint32_t n_max, canvas_path **out, uint64_t *n_bytes) {
  canvas_path *p = *out = weft_alloc(1, sizeof *p);
  if (p == NULL) return WEFT_E_NO_MEMORY;
  uint64_t n = (uint64_t)n_max + 1;
  p->n_max = n_max;
  for (uint32_t place = 0; place < WEFT_GRAPH_PLACES; place++) p->score[place] = -INFINITY;
  p->step = weft_alloc(n * CANVAS_PATH_BEAM, sizeof *p->step);
  p->n_steps = weft_alloc(n, sizeof *p->n_steps);
  p->rest = weft_alloc(n, sizeof *p->rest);
  p->token = weft_alloc(n, sizeof *p->token);
  *n_bytes =
      sizeof *p + n * (CANVAS_PATH_BEAM * sizeof *p->step + sizeof *p->n_steps + sizeof *p->rest + sizeof *p->token);
  if (p->step != NULL && p->n_steps != NULL && p->rest != NULL && p->token != NULL) return WEFT_OK;
  canvas_path_close(p);
  *out = NULL;
  return WEFT_E_NO_MEMORY;
}

void canvas_path_close(canvas_path *p) {
  if (p == NULL) return;
  weft_free(p->step);
  weft_free(p->n_steps);
  weft_free(p->rest);
  weft_free(p->token);
  weft_free(p);
}

static bool is_better(const path_step *a, const path_step *b) {
  return a->score != b->score ? a->score > b->score : a->place < b->place;
}

/* ---- the best of those reached ---- */

static void swap_steps(path_step *a, path_step *b) {
  path_step kept = *a;
  *a = *b;
  *b = kept;
}

/* A heap whose first step is the worst. */
static void sift_down(path_step *heap, uint32_t n, uint32_t at) {
  for (;;) {
    uint32_t worst = at, left = 2 * at + 1;
    for (uint32_t child = left; child < n && child < left + 2; child++) {
      if (is_better(&heap[worst], &heap[child])) worst = child;
    }
    if (worst == at) return;
    swap_steps(&heap[at], &heap[worst]);
    at = worst;
  }
}

/* What is gone on from: everything or, where that is too much, the place that is nearest to the end and the best ones
 * beside it. */
static void keep_best(canvas_path *p, const weft_grammar_graph *graph, uint32_t position) {
  path_step *kept = p->step + (uint64_t)position * CANVAS_PATH_BEAM, *reached = p->reached;
  uint32_t n = p->n_reached < p->beam ? p->n_reached : p->beam, nearest = 0;
  p->n_steps[position] = n;
  if (p->n_reached > p->beam) {
    for (uint32_t i = 1; i < p->n_reached; i++) {
      uint32_t left = graph->left[reached[i].place], least = graph->left[reached[nearest].place];
      if (left < least || (left == least && is_better(&reached[i], &reached[nearest]))) nearest = i;
    }
    swap_steps(&reached[0], &reached[nearest]);
    for (uint32_t i = n; i-- > 1;) sift_down(reached + 1, n - 1, i - 1);
    for (uint32_t i = n; i < p->n_reached; i++) {
      if (!is_better(&reached[i], &reached[1])) continue;
      reached[1] = reached[i];
      sift_down(reached + 1, n - 1, 0);
    }
  }
  for (uint32_t i = 0; i < n; i++) kept[i] = reached[i];
}

/* ---- the pass ---- */

/* What is reached before a position: of the places with a score, those from which the answer can be completed. */
static void list_reached(canvas_path *p, const canvas_path_ask *ask, uint32_t position) {
  uint32_t n_left = ask->n_left - position;
  p->n_reached = 0;
  for (uint32_t i = 0; i < p->n_touched; i++) {
    uint32_t place = p->touched[i];
    if (ask->graph->left[place] > n_left) continue;
    p->reached[p->n_reached++] = (path_step){p->score[place], place, p->from[place], p->which[place]};
  }
}

static void clear_scores(canvas_path *p) {
  for (uint32_t i = 0; i < p->n_touched; i++) p->score[p->touched[i]] = -INFINITY;
  p->n_touched = 0;
}

static void begin_path(canvas_path *p, const canvas_path_ask *ask) {
  clear_scores(p);
  for (uint32_t place = 0; place < ask->graph->n_places; place++) {
    if (!weft_graph_has(ask->from, place)) continue;
    p->score[place] = 0;
    p->touched[p->n_touched++] = place;
  }
  list_reached(p, ask, 0);
  keep_best(p, ask->graph, 0);
}

static double gain_of(float log_sum) {
  return log_sum >= WEFT_CLASSES_NONE ? (double)log_sum : (double)WEFT_CLASSES_NONE; /* not finite: the request ends */
}

static void take_position(canvas_path *p, const canvas_path_ask *ask, uint32_t position) {
  const weft_grammar_graph *graph = ask->graph;
  const path_step *step = p->step + (uint64_t)position * CANVAS_PATH_BEAM;
  const float *log_sum = ask->log_sum + (uint64_t)position * graph->n_classes;
  const double least = p->least - p->rest[position + 1];
  for (uint32_t c = 0; c < graph->n_classes; c++) p->gain[c] = gain_of(log_sum[c]);
  clear_scores(p);
  for (uint32_t i = 0; i < p->n_steps[position]; i++) {
    const weft_graph_edge *edge = graph->edge + graph->edge_at[step[i].place],
                          *end = graph->edge + graph->edge_at[step[i].place + 1];
    for (double before = step[i].score; edge < end; edge++) {
      double score = before + p->gain[edge->which];
      if (score <= p->score[edge->to] || score < least) continue;
      if (p->score[edge->to] == -INFINITY) p->touched[p->n_touched++] = edge->to;
      p->score[edge->to] = score;
      p->from[edge->to] = i;
      p->which[edge->to] = edge->which;
    }
  }
  list_reached(p, ask, position + 1);
  keep_best(p, graph, position + 1);
}

/* The best path with so many places to go on from at a position; false: there is none that is good enough. */
static bool find_with(canvas_path *p, const canvas_path_ask *ask, uint32_t beam, double *score, int32_t *token) {
  uint32_t at = 0, n_classes = ask->graph->n_classes;
  p->beam = beam;
  begin_path(p, ask);
  for (uint32_t i = 0; i < ask->n; i++) take_position(p, ask, i);
  const path_step *last = p->step + (uint64_t)ask->n * CANVAS_PATH_BEAM;
  if (p->n_steps[ask->n] == 0) return false;
  for (uint32_t i = 1; i < p->n_steps[ask->n]; i++) {
    if (is_better(&last[i], &last[at])) at = i;
  }
  *score = last[at].score;
  for (uint32_t i = ask->n; i-- > 0;) {
    const path_step *step = p->step + (uint64_t)(i + 1) * CANVAS_PATH_BEAM + at;
    token[i] = ask->best[(uint64_t)i * n_classes + step->which];
    at = step->from;
  }
  return true;
}

/* A good path is found fast, with few places at a position. Then whatever cannot become better than that path, even if every
 * further position gave the most that it has, is left out of the search for the best one. */
bool canvas_path_find(canvas_path *p, const canvas_path_ask *ask, int32_t *token) {
  double score, best;
  p->rest[ask->n] = 0;
  for (uint32_t i = ask->n; i-- > 0;) {
    const float *log_sum = ask->log_sum + (uint64_t)i * ask->graph->n_classes;
    double most = (double)WEFT_CLASSES_NONE;
    for (uint32_t c = 0; c < ask->graph->n_classes; c++) most = fmax(most, gain_of(log_sum[c]));
    p->rest[i] = p->rest[i + 1] + most;
  }
  p->least = -INFINITY;
  if (!find_with(p, ask, FEW_PLACES, &score, token)) return false;
  p->least = score - 1e-9 * fabs(score); /* what rounding may take away */
  if (find_with(p, ask, CANVAS_PATH_BEAM, &best, p->token) && best >= score) {
    memcpy(token, p->token, ask->n * sizeof *token);
  }
  return true;
}
