/* SPDX-License-Identifier: MIT */
/* Exploring a grammar from its start, then numbering what is left of it. */
#include "model/formats/grammar_graph.h"

#include <string.h>

#include "base/memory.h"
#include "model/formats/grammar_classes.h"
#include "model/formats/grammar_internal.h"

enum {
  FOUND_MAX = 1 << 14,    /* places that are found, explored or not */
  STACKS_MAX = 1 << 14,   /* frames over all stacks */
  OUTCOMES_MAX = 1 << 16, /* sets of places that tokens lead to */
  RECORDS_MAX = 1 << 22,
  FIRST_TEXT = 2 /* the classes of what ends and of what prints nothing stand behind class 0, of text, at first */
};

typedef struct found_place {
  bool explored, live;
  uint32_t records_at, n_records, n_classes; /* what it says, and how many classes there were then */
  uint32_t left, number;
} found_place;

typedef struct explorer {
  const weft_grammar *g;
  weft_grammar_scratch *w;
  triples stacks;   /* state, count, parent: frame 0 is the bottom */
  triples places;   /* state, count, stack */
  triples outcomes; /* place, rest: lists, ended by 0 */
  uint32_t *sum;    /* [STACKS_MAX] tokens that complete a stack */
  found_place *found;
  token_classes classes;
  uint32_t base[GRAMMAR_DEPTH_MAX + 1], n_base; /* of the place that is explored: frames as numbers of stacks */
  int32_t *token;
  uint32_t *outcome, n_tokens;   /* of the same */
  uint32_t n_explored, n_frames; /* n_frames: frames that were numbered for the place that is explored */
  uint64_t cost;
  weft_grammar_work *work;
  bool full; /* there is no room, or no step, for what is found */
} explorer;

/* False: there were too many steps, or nobody wants the graph any more. n more are not counted yet. */
static bool goes_on(const explorer *e, uint64_t n) {
  return e->cost + n <= GRAMMAR_VISITS_MAX && !grammar_is_stopped(e->work);
}

static void count_steps(explorer *e, uint64_t n) {
  e->cost += n;
  (void)grammar_spend(e->work, n);
}

/* ---- places ---- */

static uint32_t number_stack(explorer *e, uint32_t node) {
  if (node < e->n_base) return e->base[node];
  const weft_matcher_node *n = &e->w->node[node];
  e->n_frames += 1;
  uint32_t parent = number_stack(e, n->parent);
  if (parent == TRIPLES_FULL) return TRIPLES_FULL;
  uint32_t stack = triples_number(&e->stacks, n->state, n->count, parent);
  if (stack != TRIPLES_FULL) e->sum[stack] = n->sum;
  return stack;
}

static uint32_t number_place(explorer *e, const weft_matcher_config *c) {
  uint32_t stack = number_stack(e, c->node);
  return stack == TRIPLES_FULL ? TRIPLES_FULL : triples_number(&e->places, c->state, c->count, stack);
}

/* The places of a set as a list, ascending; TRIPLES_FULL: there is no room. */
static uint32_t number_outcome(explorer *e, const weft_matcher_config *set, uint32_t n) {
  uint32_t place[WALK_SET_MAX], n_places = 0, list = 0;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t own = number_place(e, &set[i]), at = n_places++;
    if (own == TRIPLES_FULL) return TRIPLES_FULL;
    for (; at > 0 && place[at - 1] > own; at--) place[at] = place[at - 1];
    place[at] = own;
  }
  while (n_places > 0 && list != TRIPLES_FULL) list = triples_number(&e->outcomes, place[--n_places], list, 0);
  return list;
}

static uint32_t tokens_needed(const explorer *e, uint32_t place) {
  const uint32_t *key = e->places.key[place];
  return grammar_tokens(e->g, key[0], key[1]) + e->sum[key[2]];
}

static bool may_end_at(const explorer *e, uint32_t place) {
  const uint32_t *key = e->places.key[place];
  while (grammar_may_end(&e->g->state[key[0]], key[1])) {
    if (key[2] == 0) return true;
    key = e->stacks.key[key[2]];
  }
  return false;
}

/* ---- exploring ---- */

static bool note_tokens(void *self, const walk_visit *visit) {
  explorer *e = self;
  const weft_token_trie *trie = e->g->trie;
  uint32_t n = weft_token_trie_n(trie, visit->node);
  e->full = e->full || !goes_on(e, walk_cost(e->w) + e->n_frames / 2);
  if (n == 0 || e->full) return !e->full;
  uint32_t outcome = number_outcome(e, visit->set, visit->n);
  e->full = outcome == TRIPLES_FULL;
  for (uint32_t i = 0; i < n && !e->full; i++) {
    e->token[e->n_tokens] = trie->token[trie->first[visit->node] + i];
    e->outcome[e->n_tokens++] = outcome;
  }
  return !e->full;
}

/* The stack of the place goes into the scratch as a path, the bottom first. */
static void load_stack(explorer *e, const uint32_t *key) {
  weft_matcher_node path[GRAMMAR_DEPTH_MAX + 1] = {0};
  uint32_t n = 1;
  for (uint32_t at = key[2]; at != 0; at = e->stacks.key[at][2]) n += 1;
  e->n_base = n;
  e->base[0] = 0;
  for (uint32_t at = key[2], i = n - 1; at != 0; at = e->stacks.key[at][2], i--) {
    const uint32_t *frame = e->stacks.key[at];
    path[i] = (weft_matcher_node){frame[0], frame[1], i - 1, i, e->sum[at]};
    e->base[i] = at;
  }
  walk_begin(e->w, e->g, path, n);
  e->w->config[e->w->n_configs++] = (weft_matcher_config){key[0], key[1], n - 1};
}

static bool explore_place(explorer *e, uint32_t place) {
  uint32_t key[3];
  found_place *f = &e->found[place];
  memcpy(key, e->places.key[place], sizeof key);
  if (e->full || e->n_explored + 1 >= WEFT_GRAPH_PLACES) return false;
  load_stack(e, key);
  e->n_tokens = e->n_frames = 0;
  uint64_t n_visits = walk_trie(e->w, 1, note_tokens, e);
  count_steps(e, n_visits + walk_cost(e->w) + e->n_tokens / 4 + e->n_frames / 2);
  f->records_at = e->classes.n_records;
  if (e->full || !token_classes_note(&e->classes, e->token, e->outcome, e->n_tokens)) return false;
  f->n_records = e->classes.n_records - f->records_at;
  f->n_classes = e->classes.n_classes;
  f->explored = true;
  e->n_explored += 1;
  return true;
}

/* Of the places that a place leads to, the one that is completed soonest; TRIPLES_FULL: it leads nowhere. */
static uint32_t next_to_end(explorer *e, uint32_t place) {
  const found_place *f = &e->found[place];
  uint32_t best = TRIPLES_FULL;
  for (uint32_t i = 0; i < f->n_records; i++) {
    count_steps(e, 1);
    for (uint32_t o = e->classes.record[f->records_at + i].outcome; o != 0; o = e->outcomes.key[o][1]) {
      uint32_t to = e->outcomes.key[o][0];
      if (best == TRIPLES_FULL || tokens_needed(e, to) < tokens_needed(e, best)) best = to;
    }
  }
  return best;
}

/* A place and its shortest completion; what is explored already has one. false: there is no room. */
static bool explore_to_end(explorer *e, uint32_t place) {
  while (place != TRIPLES_FULL && !e->found[place].explored) {
    if (!explore_place(e, place)) return false;
    if (tokens_needed(e, place) > 0) place = next_to_end(e, place);
  }
  return true;
}

/* Places are numbered as they are found, so this takes those that are near the start first. */
static void explore_all(explorer *e) {
  for (uint32_t place = 0; place < e->places.n; place++) {
    if (!explore_to_end(e, place)) return;
  }
}

/* ---- which places have a way to the end ---- */

/* The places that lead to each place, then the distances from the end, breadth first. */
static bool measure_distances(explorer *e) {
  uint32_t n = e->places.n, n_back = 0;
  uint32_t *at = weft_alloc((size_t)n + 2, sizeof *at), *queue = weft_alloc((size_t)n + 1, sizeof *queue), *back = NULL;
  for (int pass = 0; at != NULL && queue != NULL && pass < 2; pass++) {
    for (uint32_t p = 0; p < n; p++) {
      const found_place *f = &e->found[p];
      for (uint32_t i = 0; i < f->n_records; i++) {
        for (uint32_t o = e->classes.record[f->records_at + i].outcome; o != 0; o = e->outcomes.key[o][1]) {
          uint32_t to = e->outcomes.key[o][0];
          if (pass == 0) at[to + 2] += 1, n_back += 1;
          if (pass == 1) back[at[to + 1]++] = p;
        }
      }
    }
    if (pass == 1) continue;
    for (uint32_t p = 0; p < n; p++) at[p + 2] += at[p + 1];
    back = weft_alloc((size_t)n_back + 1, sizeof *back);
    if (back == NULL) break;
  }
  uint32_t n_queue = 0;
  for (uint32_t p = 0; p < n && back != NULL; p++) {
    e->found[p].live = e->found[p].explored && may_end_at(e, p);
    if (e->found[p].live) queue[n_queue++] = p;
  }
  for (uint32_t i = 0; i < n_queue; i++) {
    for (uint32_t k = at[queue[i]]; k < at[queue[i] + 1]; k++) {
      found_place *f = &e->found[back[k]];
      if (f->live) continue;
      f->live = true;
      f->left = e->found[queue[i]].left + 1;
      queue[n_queue++] = back[k];
    }
  }
  weft_free(at);
  weft_free(queue);
  weft_free(back);
  return back != NULL;
}

/* ---- the graph ---- */

typedef struct graph_maker {
  explorer *e;
  weft_grammar_graph *graph;
  uint32_t *outcome; /* [n_classes] of the place that is looked at; 0: none */
  uint32_t *number;  /* [n_classes] of classes that are used, + 1 */
  uint64_t n_edges;
} graph_maker;

/* What the place says of every class there is now: what it said of the class, or of the one that it was split from. */
static void recall_outcomes(graph_maker *m, const found_place *f) {
  const token_classes *c = &m->e->classes;
  memset(m->outcome, 0, c->n_classes * sizeof *m->outcome);
  for (uint32_t i = 0; i < f->n_records; i++) {
    const classes_record *record = &c->record[f->records_at + i];
    m->outcome[record->which] = record->outcome;
  }
  for (uint32_t i = f->n_classes; i < c->n_classes; i++) m->outcome[i] = m->outcome[c->parent[i]];
}

static void add_edge(graph_maker *m, uint32_t which, uint32_t to) {
  if (m->graph->edge != NULL) m->graph->edge[m->n_edges] = (weft_graph_edge){which, to};
  m->n_edges += 1;
}

static void add_edges(graph_maker *m, uint32_t place) {
  const explorer *e = m->e;
  recall_outcomes(m, &e->found[place]);
  for (uint32_t i = 0; i < e->classes.n_classes; i++) {
    if (e->classes.size[i] == 0) continue;
    for (uint32_t o = m->outcome[i]; o != 0; o = e->outcomes.key[o][1]) {
      const found_place *to = &e->found[e->outcomes.key[o][0]];
      if (!to->live) continue;
      if (m->number[i] == 0) m->number[i] = ++m->graph->n_classes;
      m->graph->more[e->found[place].number] = 1;
      add_edge(m, m->number[i] - 1, to->number);
    }
  }
  if (e->found[place].left == 0) add_edge(m, WEFT_GRAPH_CLASS_END, WEFT_GRAPH_END);
}

/* Counts the edges or, when there is memory for them, makes them: the same both times. */
static void make_edges(graph_maker *m) {
  weft_grammar_graph *graph = m->graph;
  m->n_edges = 0;
  add_edge(m, WEFT_GRAPH_CLASS_END, WEFT_GRAPH_END);
  if (m->e->classes.size[FIRST_TEXT] > 0) add_edge(m, WEFT_GRAPH_CLASS_SILENT, WEFT_GRAPH_END);
  graph->edge_at[1] = (uint32_t)m->n_edges;
  for (uint32_t p = 0; p < m->e->places.n && m->n_edges <= WEFT_GRAPH_EDGES; p++) {
    const found_place *f = &m->e->found[p];
    if (!f->live) continue;
    add_edges(m, p);
    graph->left[f->number] = f->left;
    graph->edge_at[f->number + 1] = (uint32_t)m->n_edges;
  }
}

static bool make_classes(graph_maker *m) {
  weft_grammar_graph *graph = m->graph;
  graph->tokens_at = weft_alloc((size_t)graph->n_classes + 2, sizeof *graph->tokens_at);
  graph->token = weft_alloc(graph->n_vocab, sizeof *graph->token);
  graph->class_of = weft_alloc(graph->n_vocab, sizeof *graph->class_of);
  if (graph->tokens_at == NULL || graph->token == NULL || graph->class_of == NULL) return false;
  for (uint32_t v = 0; v < graph->n_vocab; v++) {
    uint32_t number = m->number[m->e->classes.class_of[v]];
    graph->class_of[v] = number == 0 ? graph->n_classes : number - 1;
    graph->tokens_at[graph->class_of[v] + 1] += 1;
  }
  for (uint32_t c = 0; c < graph->n_classes; c++) graph->tokens_at[c + 1] += graph->tokens_at[c];
  for (uint32_t v = graph->n_vocab; v-- > 0;) {
    uint32_t own = graph->class_of[v];
    if (own < graph->n_classes) graph->token[--graph->tokens_at[own + 1]] = (int32_t)v;
  }
  /* each now stands where its class begins, one place too far on */
  memmove(graph->tokens_at, graph->tokens_at + 1, graph->n_classes * sizeof *graph->tokens_at);
  uint32_t n_tokens = 0;
  for (uint32_t v = 0; v < graph->n_vocab; v++) n_tokens += graph->class_of[v] < graph->n_classes ? 1 : 0;
  graph->tokens_at[graph->n_classes] = n_tokens;
  return true;
}

static weft_status make_graph(graph_maker *m, weft_error *error) {
  weft_grammar_graph *graph = m->graph;
  explorer *e = m->e;
  graph->n_vocab = e->g->trie->n_vocab;
  graph->n_places = 1;
  for (uint32_t p = 0; p < e->places.n; p++) {
    if (e->found[p].live) e->found[p].number = graph->n_places++;
  }
  graph->start = e->found[0].number;
  graph->n_classes = 2;
  m->outcome = weft_alloc(e->classes.n_classes, sizeof *m->outcome);
  m->number = weft_alloc(e->classes.n_classes, sizeof *m->number);
  graph->edge_at = weft_alloc((size_t)graph->n_places + 1, sizeof *graph->edge_at);
  graph->left = weft_alloc(graph->n_places, sizeof *graph->left);
  graph->more = weft_alloc(graph->n_places, sizeof *graph->more);
  bool refused = m->outcome == NULL || m->number == NULL || graph->edge_at == NULL || graph->left == NULL;
  if (refused || graph->more == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the grammar");
  m->number[FIRST_TEXT - 1] = WEFT_GRAPH_CLASS_END + 1;
  m->number[FIRST_TEXT] = WEFT_GRAPH_CLASS_SILENT + 1;
  make_edges(m);
  if (m->n_edges > WEFT_GRAPH_EDGES) {
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "the format is too large for an answer by diffusion: its graph has more than %d edges",
                     WEFT_GRAPH_EDGES);
  }
  graph->edge = weft_alloc(m->n_edges, sizeof *graph->edge);
  if (graph->edge == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the grammar");
  make_edges(m);
  count_steps(e, (uint64_t)graph->n_places * e->classes.n_classes / 8 + m->n_edges / 8);
  if (!make_classes(m)) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the grammar");
  graph->n_bytes = sizeof *graph + m->n_edges * sizeof *graph->edge + (uint64_t)graph->n_places * 9 +
                   (uint64_t)graph->n_vocab * 8 + (uint64_t)graph->n_classes * 4;
  return WEFT_OK;
}

/* ---- open and close ---- */

static bool take_memory(explorer *e) {
  const weft_token_trie *trie = e->g->trie;
  bool ok = triples_open(&e->stacks, STACKS_MAX) && triples_open(&e->places, FOUND_MAX) &&
            triples_open(&e->outcomes, OUTCOMES_MAX) &&
            token_classes_open(&e->classes, trie->n_vocab, WEFT_GRAPH_CLASSES, RECORDS_MAX) &&
            weft_grammar_scratch_open(&e->w) == WEFT_OK;
  e->sum = weft_alloc(STACKS_MAX, sizeof *e->sum);
  e->found = weft_alloc(FOUND_MAX, sizeof *e->found);
  e->token = weft_alloc(trie->n_vocab, sizeof *e->token);
  e->outcome = weft_alloc(trie->n_vocab, sizeof *e->outcome);
  return ok && e->sum != NULL && e->found != NULL && e->token != NULL && e->outcome != NULL;
}

static void give_memory(explorer *e) {
  void *const all[] = {e->sum, e->found, e->token, e->outcome};
  for (uint32_t i = 0; i < sizeof all / sizeof *all; i++) weft_free(all[i]);
  triples_close(&e->stacks);
  triples_close(&e->places);
  triples_close(&e->outcomes);
  token_classes_close(&e->classes);
  weft_grammar_scratch_close(e->w);
}

/* Tokens that are no text: those that end a generation, and the others. */
static void part_tokens(explorer *e) {
  const weft_token_trie *trie = e->g->trie;
  (void)token_classes_part(&e->classes, trie->ends, trie->n_ends);
  uint32_t ends = e->classes.n_classes - 1, n = 0;
  for (uint32_t v = 0; v < trie->n_vocab; v++) {
    if (trie->node[v] == 0 && e->classes.class_of[v] != ends) e->token[n++] = (int32_t)v;
  }
  (void)token_classes_part(&e->classes, e->token, n);
}

/* Number 0 of each: the bottom of stacks, the start, the end of lists. */
static void begin_numbers(explorer *e) {
  (void)triples_number(&e->stacks, GRAMMAR_NONE, 0, 0);
  (void)triples_number(&e->places, e->g->rule[e->g->root].first, 0, 0);
  (void)triples_number(&e->outcomes, GRAMMAR_NONE, 0, 0);
}

static weft_status explore_grammar(explorer *e, weft_error *error) {
  if (e->g->trie->n_ends == 0) {
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "an answer by diffusion cannot be of a format: the vocabulary has no token that ends an answer");
  }
  part_tokens(e);
  begin_numbers(e);
  explore_all(e);
  if (e->classes.refused || !measure_distances(e))
    return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the grammar");
  if (e->found[0].live) return WEFT_OK;
  return weft_fail(error, WEFT_E_UNSUPPORTED,
                   "the format is too large for an answer by diffusion: its shortest answer, of %u tokens, does not "
                   "fit into a graph of %d places and %d classes of tokens, found in %d steps",
                   e->g->shortest, WEFT_GRAPH_PLACES, WEFT_GRAPH_CLASSES, GRAMMAR_VISITS_MAX);
}

void weft_grammar_graph_close(weft_grammar_graph *graph) {
  if (graph == NULL) return;
  void *const all[] = {graph->edge_at,  graph->edge,      graph->left, graph->more,
                       graph->class_of, graph->tokens_at, graph->token};
  for (uint32_t i = 0; i < sizeof all / sizeof *all; i++) weft_free(all[i]);
  weft_free(graph);
}

weft_status weft_grammar_graph_open(const weft_grammar *grammar, weft_grammar_graph **out, weft_grammar_work *work,
                                    weft_error *error) {
  explorer e = {.g = grammar, .work = work};
  graph_maker m = {.e = &e, .graph = weft_alloc(1, sizeof *m.graph)};
  *out = NULL;
  weft_status status = WEFT_OK;
  count_steps(&e, grammar->trie->n_vocab / 8); /* for memory of the vocabulary's size, whatever the grammar */
  if (m.graph == NULL || !take_memory(&e)) status = weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the grammar");
  if (status == WEFT_OK) status = explore_grammar(&e, error);
  if (status == WEFT_OK) status = make_graph(&m, error);
  weft_free(m.outcome);
  weft_free(m.number);
  give_memory(&e);
  if (status == WEFT_OK) {
    *out = m.graph;
  } else {
    weft_grammar_graph_close(m.graph);
  }
  return status;
}

/* ---- where an answer is ---- */

void weft_graph_begin(const weft_grammar_graph *graph, weft_graph_set *set) {
  *set = (weft_graph_set){0};
  set->word[graph->start / 64] |= UINT64_C(1) << graph->start % 64;
}

bool weft_graph_take(const weft_grammar_graph *graph, weft_graph_set *set, int32_t token) {
  weft_graph_set next = {0};
  bool any = false;
  if (token < 0 || (uint32_t)token >= graph->n_vocab) return false;
  uint32_t which = graph->class_of[token];
  for (uint32_t p = 0; p < graph->n_places; p++) {
    if (set->word[p / 64] == 0) p |= 63;
    if (p >= graph->n_places || !weft_graph_has(set, p)) continue;
    for (uint32_t i = graph->edge_at[p]; i < graph->edge_at[p + 1]; i++) {
      if (graph->edge[i].which != which) continue;
      next.word[graph->edge[i].to / 64] |= UINT64_C(1) << graph->edge[i].to % 64;
      any = true;
    }
  }
  if (any) *set = next;
  return any;
}

bool weft_graph_is_done(const weft_grammar_graph *graph, const weft_graph_set *set) {
  for (uint32_t p = 0; p < graph->n_places; p++) {
    if (weft_graph_has(set, p) && graph->more[p] != 0) return false;
  }
  return true;
}
