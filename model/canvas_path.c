/* SPDX-License-Identifier: MIT */
#include "model/canvas_path.h"

#include "base/memory.h"
#include "kernels/classes.h"

/* A place that a position is gone on from, and how it was come to. */
typedef struct path_step {
  double score;
  uint32_t place, from, which; /* from: of the steps of the position before; which: the class of its token */
} path_step;

struct canvas_path {
  uint32_t n_max;
  path_step *step;   /* [n_max + 1][CANVAS_PATH_BEAM]: before position i */
  uint32_t *n_steps; /* [n_max + 1] */
  /* what the present position leads to */
  uint32_t n_reached, round;
  path_step reached[WEFT_GRAPH_PLACES];
  uint32_t reached_at[WEFT_GRAPH_PLACES], reached_in[WEFT_GRAPH_PLACES]; /* by place: where; in which round */
};

weft_status canvas_path_open(uint32_t n_max, canvas_path **out, uint64_t *n_bytes) {
  canvas_path *p = *out = weft_alloc(1, sizeof *p);
  if (p == NULL) return WEFT_E_NO_MEMORY;
  uint64_t n = (uint64_t)n_max + 1;
  p->n_max = n_max;
  p->step = weft_alloc(n * CANVAS_PATH_BEAM, sizeof *p->step);
  p->n_steps = weft_alloc(n, sizeof *p->n_steps);
  *n_bytes = sizeof *p + n * (CANVAS_PATH_BEAM * sizeof *p->step + sizeof *p->n_steps);
  if (p->step != NULL && p->n_steps != NULL) return WEFT_OK;
  canvas_path_close(p);
  *out = NULL;
  return WEFT_E_NO_MEMORY;
}

void canvas_path_close(canvas_path *p) {
  if (p == NULL) return;
  weft_free(p->step);
  weft_free(p->n_steps);
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
  uint32_t n = p->n_reached < CANVAS_PATH_BEAM ? p->n_reached : CANVAS_PATH_BEAM, nearest = 0;
  p->n_steps[position] = n;
  if (p->n_reached > CANVAS_PATH_BEAM) {
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

static void reach_place(canvas_path *p, const path_step *step) {
  if (p->reached_in[step->place] != p->round) {
    p->reached_in[step->place] = p->round;
    p->reached_at[step->place] = p->n_reached;
    p->reached[p->n_reached++] = *step;
    return;
  }
  path_step *known = &p->reached[p->reached_at[step->place]];
  if (step->score > known->score) *known = *step;
}

/* A new position; rounds tell apart what was reached in it. */
static void begin_position(canvas_path *p) {
  p->n_reached = 0;
  p->round += 1;
  if (p->round != 0) return;
  for (uint32_t i = 0; i < WEFT_GRAPH_PLACES; i++) p->reached_in[i] = 0;
  p->round = 1;
}

static void begin_path(canvas_path *p, const canvas_path_ask *ask) {
  begin_position(p);
  for (uint32_t place = 0; place < ask->graph->n_places; place++) {
    if (!weft_graph_has(ask->from, place) || ask->graph->left[place] > ask->n_left) continue;
    reach_place(p, &(path_step){.place = place});
  }
  keep_best(p, ask->graph, 0);
}

static void take_position(canvas_path *p, const canvas_path_ask *ask, uint32_t position) {
  const weft_grammar_graph *graph = ask->graph;
  const path_step *step = p->step + (uint64_t)position * CANVAS_PATH_BEAM;
  const float *log_sum = ask->log_sum + (uint64_t)position * graph->n_classes;
  uint32_t n_left = ask->n_left - position - 1;
  begin_position(p);
  for (uint32_t i = 0; i < p->n_steps[position]; i++) {
    for (uint32_t k = graph->edge_at[step[i].place]; k < graph->edge_at[step[i].place + 1]; k++) {
      const weft_graph_edge *edge = &graph->edge[k];
      if (graph->left[edge->to] > n_left) continue;
      float gain = log_sum[edge->which];
      if (!(gain >= WEFT_CLASSES_NONE)) gain = WEFT_CLASSES_NONE; /* a row that is not finite ends the request */
      const path_step next = {step[i].score + (double)gain, edge->to, i, edge->which};
      reach_place(p, &next);
    }
  }
  keep_best(p, graph, position + 1);
}

bool canvas_path_find(canvas_path *p, const canvas_path_ask *ask, int32_t *token) {
  uint32_t at = 0, n_classes = ask->graph->n_classes;
  begin_path(p, ask);
  for (uint32_t i = 0; i < ask->n; i++) take_position(p, ask, i);
  const path_step *last = p->step + (uint64_t)ask->n * CANVAS_PATH_BEAM;
  if (p->n_steps[ask->n] == 0) return false;
  for (uint32_t i = 1; i < p->n_steps[ask->n]; i++) {
    if (is_better(&last[i], &last[at])) at = i;
  }
  for (uint32_t i = ask->n; i-- > 0;) {
    const path_step *step = p->step + (uint64_t)(i + 1) * CANVAS_PATH_BEAM + at;
    token[i] = ask->best[(uint64_t)i * n_classes + step->which];
    at = step->from;
  }
  return true;
}
