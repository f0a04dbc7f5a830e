/* SPDX-License-Identifier: MIT */
/* States of a rule from which the same texts follow become one, so that there are fewer tables, places and edges: the bytes of
 * a character that spells itself in UTF-8 lead through eighteen states, of which seven differ.
 *
 * Law: the language stays as it is. A rule whose states do not settle in few rounds stays as it is, too. */
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "model/formats/grammar_internal.h"

enum { ROUNDS_MAX = 64, ROUND_COST_MAX = 1 << 20 };

typedef struct minimising {
  weft_grammar *g;
  uint32_t *block, *next_block; /* [n_states] the first of the states that may be one with it */
  uint32_t *slot, n_slots;      /* hash: state + 1 */
} minimising;

static uint32_t block_after(const minimising *m, uint32_t state, uint32_t class) {
  uint32_t next = m->g->next[(size_t)state * m->g->n_classes + class];
  return next == 0 ? GRAMMAR_NONE : m->block[next - 1];
}

static uint64_t hash_state(const minimising *m, uint32_t state) {
  const weft_grammar *g = m->g;
  const grammar_state *s = &g->state[state];
  uint64_t hash = weft_mix64(m->block[state] + (s->final ? UINT64_C(1) << 32 : 0));
  for (uint32_t c = 0; c < g->n_classes; c++) hash = weft_mix64(hash ^ block_after(m, state, c));
  for (uint32_t i = s->calls_at; i < s->calls_at + s->n_calls; i++) {
    hash = weft_mix64(hash ^ ((uint64_t)g->call[i].rule << 32 | m->block[g->call[i].next]));
  }
  return hash;
}

static bool is_same_state(const minimising *m, uint32_t a, uint32_t b) {
  const weft_grammar *g = m->g;
  const grammar_state *x = &g->state[a], *y = &g->state[b];
  if (m->block[a] != m->block[b] || x->final != y->final || x->n_calls != y->n_calls || x->of != y->of) return false;
  for (uint32_t c = 0; c < g->n_classes; c++) {
    if (block_after(m, a, c) != block_after(m, b, c)) return false;
  }
  for (uint32_t i = 0; i < x->n_calls; i++) {
    const grammar_call *p = &g->call[x->calls_at + i], *q = &g->call[y->calls_at + i];
    if (p->rule != q->rule || m->block[p->next] != m->block[q->next]) return false;
  }
  return true;
}

/* Parts the blocks of a rule by what their states lead to; how many there are. */
static uint32_t part_blocks(minimising *m, uint32_t first, uint32_t end) {
  uint32_t n_blocks = 0, n_slots = 16;
  while (n_slots < 2 * (end - first)) n_slots *= 2;
  memset(m->slot, 0, n_slots * sizeof *m->slot);
  for (uint32_t s = first; s < end; s++) {
    uint32_t at = (uint32_t)hash_state(m, s) & (n_slots - 1);
    while (m->slot[at] != 0 && !is_same_state(m, m->slot[at] - 1, s)) at = (at + 1) & (n_slots - 1);
    if (m->slot[at] == 0) {
      m->slot[at] = s + 1;
      n_blocks += 1;
    }
    m->next_block[s] = m->slot[at] - 1;
  }
  memcpy(m->block + first, m->next_block + first, (end - first) * sizeof *m->block);
  return n_blocks;
}

static void settle_rule(minimising *m, uint32_t first, uint32_t end) {
  weft_grammar *g = m->g;
  uint64_t round = (uint64_t)(end - first) * g->n_classes + g->state[end - 1].calls_at - g->state[first].calls_at;
  uint32_t n_blocks = 1, before = 0, n = 0;
  for (uint32_t s = first; s < end; s++) m->block[s] = first;
  for (; n_blocks != before && n < ROUNDS_MAX && n * round < ROUND_COST_MAX && n_blocks < end - first; n++) {
    before = n_blocks;
    n_blocks = part_blocks(m, first, end);
    if (!grammar_count(g, 1 + round / 4)) break;
  }
  if (n_blocks == before) return;
  for (uint32_t s = first; s < end; s++) m->block[s] = s;
}

/* Only the first state of every block is left. */
static void drop_states(minimising *m) {
  weft_grammar *g = m->g;
  uint32_t n = 0, *number = m->next_block;
  for (uint32_t s = 0; s < g->n_states; s++) number[s] = m->block[s] == s ? n++ : number[m->block[s]];
  for (uint32_t s = 0; s < g->n_states; s++) {
    uint32_t *row = g->next + (size_t)number[s] * g->n_classes;
    if (m->block[s] != s) continue;
    g->state[number[s]] = g->state[s];
    memmove(row, g->next + (size_t)s * g->n_classes, g->n_classes * sizeof *row);
    for (uint32_t c = 0; c < g->n_classes; c++) row[c] = row[c] == 0 ? 0 : number[row[c] - 1] + 1;
  }
  for (uint32_t i = 0; i < g->n_calls; i++) g->call[i].next = number[g->call[i].next];
  for (uint32_t i = 0; i < g->n_rules; i++) g->rule[i].first = number[g->rule[i].first];
  g->n_states = n;
  memset(g->next + (size_t)n * g->n_classes, 0, g->n_classes * sizeof *g->next);
}

weft_status grammar_minimise(weft_grammar *g, weft_error *error) {
  minimising m = {.g = g, .n_slots = 16};
  while (m.n_slots < 2 * g->n_states) m.n_slots *= 2;
  m.block = weft_alloc(g->n_states, sizeof *m.block);
  m.next_block = weft_alloc(g->n_states, sizeof *m.next_block);
  m.slot = weft_alloc(m.n_slots, sizeof *m.slot);
  bool ok = m.block != NULL && m.next_block != NULL && m.slot != NULL;
  for (uint32_t i = 0; i < g->n_rules && ok; i++) {
    settle_rule(&m, g->rule[i].first, i + 1 < g->n_rules ? g->rule[i + 1].first : g->n_states);
  }
  if (ok) drop_states(&m);
  weft_free(m.block);
  weft_free(m.next_block);
  weft_free(m.slot);
  return ok ? WEFT_OK : weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the grammar");
}
