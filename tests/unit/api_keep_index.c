/* SPDX-License-Identifier: MIT */
/* The index of kept prefixes: what is written is read again; whichever bit of it is another one, and wherever it is
 * cut, it is read or refused, and nothing outside of it is touched. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/keep_index.h"
#include "base/memory.h"

static weft_text bytes;

static int write_one(void **state) {
  (void)state;
  keep_index x = {.identity = weft_strdup("numerics 1\nmodel x\n"), .base_tokens = 16};
  weft_saved_node node[4] = {
      {.parent = WEFT_NODE_NONE, .root = true}, {.parent = 0}, {.parent = 1}, {.parent = 2, .model = 0}};
  int32_t tokens[64];
  weft_saved_block block[3] = {{1, 0, 1}, {2, 0, 1}, {3, 1, 3}};
  uint32_t slot[5] = {4, 5, 6, 7, 8};
  const uint64_t sum[5] = {1, 2, 3, 4, 5};
  const keep_domain domain = {.kind = KEEP_TENANT, .tenant = "red", .salted = true, .digest = {7, 8}};
  for (int i = 0; i < 64; i++) tokens[i] = i;
  node[0].domain = (weft_key128){keep_index_domain(&x, &domain), 0};
  assert_int_equal(keep_index_domain(&x, &domain), 0); /* it is there */
  const weft_saved_part part = {
      .node = node, .tokens = tokens, .block = block, .slot = slot, .n_nodes = 4, .n_blocks = 3, .n_slots = 5};
  assert_int_equal(keep_index_add(&x, &part, sum), WEFT_OK);
  const weft_draft_learned learned[2] = {{.text = 77, .model = 1, .kind = 2, .judged = 10 << 16 | 9}, {.text = 78}};
  for (int i = 0; i < 2; i++) assert_true(keep_index_add_draft(&x, &learned[i]));
  keep_index_write(&x, &bytes);
  assert_int_equal(weft_text_status(&bytes), WEFT_OK);
  keep_index_free(&x);
  return 0;
}

static int free_it(void **state) {
  (void)state;
  weft_text_free(&bytes);
  return 0;
}

static void what_is_written_is_read(void **state) {
  (void)state;
  keep_index x;
  assert_int_equal(keep_index_read(bytes.bytes, bytes.n, &x), WEFT_OK);
  assert_int_equal(x.n_domains, 1);
  assert_string_equal(x.domain[0].tenant, "red");
  assert_true(x.domain[0].salted && x.domain[0].digest.low == 7 && x.domain[0].digest.high == 8);
  assert_int_equal(x.n_nodes, 4);
  assert_int_equal(x.n_drafts, 2);
  assert_int_equal(x.draft[0].text, 77);
  assert_int_equal(x.draft[0].model, 1);
  assert_int_equal(x.draft[0].kind, 2);
  assert_int_equal(x.draft[0].judged, 10 << 16 | 9);
  assert_int_equal(x.tokens[16 * 3 + 5], 53);
  keep_index_sort(&x); /* ends of prefixes first */
  assert_int_equal(x.block[0].depth, 3);
  assert_int_equal(x.block[0].n_slots, 3);
  assert_int_equal(x.slot[x.block[0].first], 6);
  assert_int_equal(x.sum[x.block[2].first], 1);
  keep_index_free(&x);
}

static void other_bytes_harm_nothing(void **state) {
  (void)state;
  uint32_t n_refused = 0;
  for (size_t i = 0; i < bytes.n * 8; i++) {
    char *copy = test_malloc(bytes.n); /* so that a read behind it is found */
    keep_index x;
    memcpy(copy, bytes.bytes, bytes.n);
    copy[i / 8] = (char)(copy[i / 8] ^ (1 << i % 8));
    n_refused += keep_index_read(copy, bytes.n, &x) != WEFT_OK;
    keep_index_sort(&x);
    keep_index_free(&x);
    test_free(copy);
  }
  assert_true(n_refused > 300); /* tokens, sums and names are what they are; numbers of things are not */
  for (size_t n = 0; n < bytes.n; n++) {
    char *copy = test_malloc(n + 1);
    keep_index x;
    memcpy(copy, bytes.bytes, n);
    bool old = n == bytes.n - 4 - 2 * 20; /* as files from before that say nothing of drafts */
    assert_int_equal(keep_index_read(copy, n, &x) == WEFT_OK, old);
    assert_int_equal(x.n_drafts, 0);
    keep_index_free(&x);
    test_free(copy);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_written_is_read),
                                     cmocka_unit_test(other_bytes_harm_nothing)};
  return cmocka_run_group_tests(tests, write_one, free_it);
}
