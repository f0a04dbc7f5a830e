/* SPDX-License-Identifier: MIT */
/* What of the index outlives the process: what is told, in parts of any size and while the pager works on; what is
 * taken by another pager with a secret of its own; what cannot be is not taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/random.h"
#include "pager/saved.h"
#include "pager/spill.h"
#include "tests/support/pager_kit.h"

enum { N_NODES = 4096, N_SLOTS = 256, BORDER = 64, PROMPT = 160, STATE = 3 };

/* Keys of all positions in two sizes of blocks, a window, and a state of three pages at every 64th position. */
static weft_pager *open_pager(uint32_t n_pages, uint64_t seed) {
  weft_pager_model model = {.n_groups = 4,
                            .group = {{.block_tokens = 16},
                                      {.block_tokens = 32},
                                      {.block_tokens = 16, .window = 40},
                                      {.block_tokens = BORDER, .state_pages = STATE}}};
  return kit_open_config((weft_pager_config){.n_pages = n_pages,
                                             .n_host_pages = 64,
                                             .n_file_pages = N_SLOTS,
                                             .n_seqs = 4,
                                             .model = &model,
                                             .saves = true,
                                             .changes = true,
                                             .hash_seed = seed});
}

/* The disk: every copy is done at once. */
static void do_copies(weft_pager *pager) {
  weft_page_copy copy[2048];
  uint32_t n = weft_pager_take_copies(pager, copy, 2048);
  assert_true(n < 2048);
  for (uint32_t i = 0; i < n; i++)
    if (weft_copy_is_move(copy[i].kind)) weft_pager_moved(pager, &copy[i], true);
}

static bool keeps_one(void *self, weft_key128 domain) {
  return weft_key128_equal(domain, *(const weft_key128 *)self);
}

static weft_key128 mine = {1, 2}, others = {3, 4};
static const weft_domain_rule rule = {keeps_one, &mine};

static uint32_t run(weft_pager *pager, weft_key128 domain, const int32_t *tokens, uint32_t n, uint32_t n_public) {
  uint32_t n_cached = 0;
  for (weft_status status = WEFT_AGAIN; status == WEFT_AGAIN;) {
    kit_result r = kit_try(pager, (weft_admit){.domain = domain,
                                               .tokens = tokens,
                                               .n_tokens = n,
                                               .n_prompt = n,
                                               .n_public = n_public,
                                               .restore_max_pages = 64,
                                               .restore_wait = true});
    status = r.status;
    do_copies(pager);
    if (status != WEFT_OK) continue;
    n_cached = r.n_cached;
    kit_compute(pager, r.seq, tokens + n_cached, n - n_cached);
    weft_pager_release(pager, r.seq);
  }
  kit_check(pager);
  return n_cached;
}

static void put_down(weft_pager *pager, const weft_domain_rule *whose) {
  uint32_t n = 1;
  while (n > 0 || weft_pager_get_stats(pager).n_sinking > 0) {
    n = weft_pager_put_down(pager, whose, 3);
    do_copies(pager);
    kit_check(pager);
  }
}

/* All that was told. */
typedef struct told {
  weft_saved_node node[N_NODES];
  int32_t tokens[N_NODES * 16];
  weft_saved_block block[N_SLOTS];
  uint32_t slot[N_SLOTS], n_nodes, n_blocks, n_slots;
} told;

static told *tell(weft_pager *pager, uint32_t nodes_max, uint32_t blocks_max, void (*between)(weft_pager *pager)) {
  told *t = calloc(1, sizeof *t);
  uint32_t *slot = calloc(WEFT_STATE_PAGES_MAX, sizeof *slot);
  bool more = true;
  weft_pager_save_begin(pager, &rule);
  while (more) {
    weft_saved_part part = {.node = t->node + t->n_nodes,
                            .tokens = t->tokens + t->n_nodes * 16,
                            .block = t->block + t->n_blocks,
                            .slot = slot,
                            .nodes_max = nodes_max,
                            .blocks_max = blocks_max,
                            .slots_max = WEFT_STATE_PAGES_MAX};
    more = weft_pager_save_next(pager, &part);
    memcpy(t->slot + t->n_slots, slot, part.n_slots * sizeof *slot);
    t->n_nodes += part.n_nodes;
    t->n_blocks += part.n_blocks;
    t->n_slots += part.n_slots;
    if (between != NULL) between(pager);
    kit_check(pager);
  }
  free(slot);
  return t;
}

/* Takes all of it in a pager whose file has the same slots. Returns how many blocks were taken. */
static uint32_t take(weft_pager *pager, const told *t) {
  uint32_t *node = calloc(N_NODES, sizeof *node), n = 0;
  assert_true(weft_pager_slots_claim(pager, t->slot, t->n_slots));
  kit_check(pager);
  for (uint32_t i = 0; i < t->n_nodes; i++) {
    const weft_saved_node *s = &t->node[i];
    assert_true(s->parent == WEFT_NODE_NONE || s->parent < i);
    node[i] = weft_pager_adopt_node(pager, s->parent == WEFT_NODE_NONE ? WEFT_NODE_NONE : node[s->parent], s->model,
                                    s->root ? &s->domain : NULL, t->tokens + i * 16);
    assert_int_not_equal(node[i], WEFT_NODE_NONE);
  }
  for (uint32_t i = 0, first = 0; i < t->n_blocks; first += t->block[i++].n_slots) {
    n += weft_pager_adopt_block(pager, node[t->block[i].node], t->block[i].group, t->slot + first, t->block[i].n_slots);
  }
  weft_pager_adopt_end(pager, node, t->n_nodes);
  kit_check(pager);
  free(node);
  return n;
}

static void what_is_told_is_found_by_another(void **state) {
  (void)state;
  int32_t a[PROMPT], b[PROMPT], c[PROMPT];
  for (uint32_t nodes_max = 1; nodes_max <= 256; nodes_max *= 4) {
    weft_pager *first = open_pager(200, 11), *second = open_pager(200, 12);
    (void)run(first, mine, kit_tokens(a, PROMPT, 64, 1), PROMPT, 0);
    (void)run(first, mine, kit_tokens(b, PROMPT, 64, 2), PROMPT, 0);
    (void)run(first, mine, kit_tokens(c, PROMPT, 0, 3), PROMPT, 64);
    (void)run(first, others, a, PROMPT, 0);
    uint32_t n_cached = weft_pager_get_stats(first).n_cached;
    put_down(first, &rule);
    uint32_t n_file = weft_pager_get_stats(first).n_file_held;
    assert_true(n_file > 0 && n_file < n_cached); /* those of others stay where they are */
    told *t = tell(first, nodes_max, 1 + nodes_max / 3, NULL);
    assert_int_equal(t->n_slots, n_file);
    assert_int_equal(take(second, t), t->n_blocks);
    assert_int_equal(weft_pager_get_stats(second).n_file_held, n_file);
    assert_int_equal(run(second, others, a, PROMPT, 0), 0);
    assert_int_equal(run(second, mine, a, PROMPT, 0), 128); /* where a state ends */
    assert_int_equal(run(second, mine, b, PROMPT, 0), 128);
    assert_int_equal(run(second, mine, c, PROMPT, 64), 128);
    assert_int_equal(run(second, others, c, PROMPT, 64), 64); /* the public part */
    free(t);
    kit_close(first);
    kit_close(second);
  }
}

static uint32_t n_between;

/* Others' prompts take nodes, slots and pages of what is being told. */
static void work_on(weft_pager *pager) {
  int32_t p[PROMPT];
  n_between += 1;
  (void)run(pager, n_between % 2 == 0 ? mine : others, kit_tokens(p, PROMPT, 0, 100 + (int32_t)n_between), PROMPT, 0);
  if (n_between % 5 == 0) put_down(pager, &rule);
  if (n_between == 20) weft_pager_reset_cache(pager);
}

/* Whatever happens between two parts, each block that is told hangs on nodes that were told before it, and what is told
 * of a slot is what the slot had then: here content is compared by the tokens of its node. */
static void telling_is_right_while_the_pager_works(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed < 4; seed++) {
    weft_pager *first = open_pager(80, seed), *second = open_pager(80, seed + 50);
    int32_t p[PROMPT];
    n_between = 0;
    for (int32_t i = 0; i < 12; i++) (void)run(first, mine, kit_tokens(p, PROMPT, 0, i), PROMPT, 0);
    put_down(first, &rule);
    told *t = tell(first, 2, 1, work_on);
    assert_true(n_between > 20);
    for (uint32_t i = 0; i < t->n_nodes; i++) assert_true(t->node[i].parent == WEFT_NODE_NONE || t->node[i].parent < i);
    for (uint32_t i = 0; i < t->n_nodes; i++) { /* one prompt's nodes hang together: tokens go on by 7 */
      const weft_saved_node *n = &t->node[i];
      if (n->root || t->node[n->parent].root) continue;
      assert_int_equal(t->tokens[i * 16] - t->tokens[n->parent * 16 + 15], 7);
    }
    free(t);
    kit_close(first);
    kit_close(second);
  }
}

static void what_cannot_be_is_not_taken(void **state) {
  (void)state;
  weft_pager *pager = open_pager(64, 5);
  weft_key128 domain = mine, public = WEFT_DOMAIN_PUBLIC;
  const int32_t tokens[16] = {1, 2, 3};
  uint32_t slot[8] = {0, 1, 2, 3, 4, 5, 6, 7}, twice[2] = {9, 9}, beyond[1] = {N_SLOTS};
  assert_false(weft_pager_slots_claim(pager, twice, 2));
  assert_false(weft_pager_slots_claim(pager, beyond, 1));
  kit_check(pager);
  assert_true(weft_pager_slots_claim(pager, slot, 8));
  assert_false(weft_pager_slots_claim(pager, slot, 1));
  kit_check(pager);
  assert_int_equal(weft_pager_adopt_node(pager, WEFT_NODE_NONE, 0, NULL, tokens), WEFT_NODE_NONE);
  assert_int_equal(weft_pager_adopt_node(pager, WEFT_NODE_NONE, 1, &domain, NULL), WEFT_NODE_NONE);
  uint32_t root = weft_pager_adopt_node(pager, WEFT_NODE_NONE, 0, &domain, NULL);
  assert_int_equal(weft_pager_adopt_node(pager, root, 0, &domain, NULL), WEFT_NODE_NONE); /* no block between them */
  uint32_t node = weft_pager_adopt_node(pager, root, 0, NULL, tokens);
  assert_int_equal(weft_pager_adopt_node(pager, root, 0, NULL, tokens), node);
  assert_int_equal(weft_pager_adopt_node(pager, node, 0, &public, NULL), WEFT_NODE_NONE);
  assert_false(weft_pager_adopt_block(pager, root, 0, slot, 1));     /* a root has no block */
  assert_false(weft_pager_adopt_block(pager, node, 1, slot + 1, 1)); /* one of 32 tokens ends elsewhere */
  assert_false(weft_pager_adopt_block(pager, node, 3, slot + 2, 3)); /* and a state */
  assert_true(weft_pager_adopt_block(pager, node, 0, slot + 5, 1));
  assert_false(weft_pager_adopt_block(pager, node, 0, slot + 6, 1)); /* it is there */
  weft_pager_slots_give_back(pager, slot + 7, 1);
  const uint32_t nodes[3] = {root, node, node};
  weft_pager_adopt_end(pager, nodes, 3);
  kit_check(pager);
  assert_int_equal(weft_pager_get_stats(pager).n_file_held, 1);
  uint32_t all[N_SLOTS + 1];
  assert_int_equal(weft_pager_slots_take(pager, all, N_SLOTS + 1), N_SLOTS); /* the oldest content gives way */
  kit_check(pager);
  assert_int_equal(weft_pager_get_stats(pager).n_file_held, 0);
  weft_pager_reset_cache(pager); /* leaves them to who has them */
  assert_int_equal(weft_pager_n_resets(pager), 1);
  kit_check(pager);
  weft_pager_slots_give_back(pager, all, N_SLOTS);
  kit_close(pager);
}

/* Chains that are longer than the pager's longest sequence end there. */
static void prefixes_too_long_are_cut(void **state) {
  (void)state;
  weft_pager *pager = open_pager(64, 5);
  int32_t tokens[16] = {0};
  uint32_t node[KIT_TOKENS_MAX / 16 + 2], n = 0;
  node[n++] = weft_pager_adopt_node(pager, WEFT_NODE_NONE, 0, &mine, NULL);
  for (; node[n - 1] != WEFT_NODE_NONE; n++) {
    tokens[0] = (int32_t)n;
    node[n] = weft_pager_adopt_node(pager, node[n - 1], 0, NULL, tokens);
  }
  assert_true(n <= KIT_TOKENS_MAX / 16 + 2);
  weft_pager_adopt_end(pager, node, n);
  kit_close(pager);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_told_is_found_by_another), cmocka_unit_test(telling_is_right_while_the_pager_works),
      cmocka_unit_test(what_cannot_be_is_not_taken), cmocka_unit_test(prefixes_too_long_are_cut)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
