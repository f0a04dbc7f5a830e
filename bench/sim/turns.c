/* SPDX-License-Identifier: MIT */
#include "bench/sim/turns.h"

#include "bench/inside.h"

/* Of a leaf itself, or of the half below an inner node. */
static uint32_t first_of(const weft_sim_turns *t, uint32_t node) {
  return node >= t->n_leaves ? node - t->n_leaves : t->first[node];
}

static void renew_node(weft_sim_turns *t, uint32_t node) {
  uint32_t left = first_of(t, 2 * node), right = first_of(t, 2 * node + 1);
  t->first[node] = t->at_us[right] < t->at_us[left] ? right : left;
}

bool weft_sim_turns_open(weft_sim_turns *t, uint32_t n) {
  t->n_leaves = 2;
  while (t->n_leaves < n) t->n_leaves *= 2;
  t->at_us = weft_alloc(t->n_leaves, sizeof *t->at_us);
  t->first = weft_alloc(t->n_leaves, sizeof *t->first);
  if (t->at_us == NULL || t->first == NULL) return false;
  for (uint32_t i = 0; i < t->n_leaves; i++) t->at_us[i] = UINT64_MAX;
  for (uint32_t node = t->n_leaves; node-- > 1;) renew_node(t, node);
  return true;
}

void weft_sim_turns_close(weft_sim_turns *t) {
  weft_free(t->at_us);
  weft_free(t->first);
  *t = (weft_sim_turns){0};
}

void weft_sim_turns_set(weft_sim_turns *t, uint32_t at, uint64_t at_us) {
  t->at_us[at] = at_us;
  for (uint32_t node = (at + t->n_leaves) / 2; node > 0; node /= 2) renew_node(t, node);
}

uint32_t weft_sim_turns_first(const weft_sim_turns *t) {
  return t->first[1];
}
