/* SPDX-License-Identifier: MIT */
/* What --precision auto reads of a file: which types its matrices have and how even the weights of its norms are, each
 * row a small file that is written here, with the answer and what is said of it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/eight_bits.h"
#include "tests/support/gguf_writer.h"

enum { HIDDEN = 512, BYTES_MAX = HIDDEN * 2 * 34 / 32 };

typedef struct row {
  const char *what;
  weft_type one, two; /* of two matrices of equal size */
  const char *norm;   /* NULL: there is none */
  float outlier;      /* weight of one channel of 512; the others are 0.5 or -0.5 */
  bool fits;
  const char *said;
} row;

static const row rows[] = {
    {"4 bits", WEFT_TYPE_Q4_K, WEFT_TYPE_Q4_0, "blk.0.attn_norm.weight", 0.5f, true, "100 % of the weights"},
    {"5 bits", WEFT_TYPE_Q5_K, WEFT_TYPE_Q5_0, "blk.0.attn_norm.weight", 0.5f, true, "100 % of the weights"},
    {"half", WEFT_TYPE_Q6_K, WEFT_TYPE_Q8_0, "blk.0.ffn_norm.weight", 0.5f, true, "no outliers (spread 1)"},
    {"a finer type", WEFT_TYPE_Q8_0, WEFT_TYPE_Q8_0, "blk.0.attn_norm.weight", 0.5f, false, "0 % of the weights are"},
    {"types without such products", WEFT_TYPE_Q4_1, WEFT_TYPE_BF16, "blk.0.attn_norm.weight", 0.5f, false, "0 %"},
    {"an outlier that the mean bears", WEFT_TYPE_Q4_K, WEFT_TYPE_Q4_K, "blk.0.attn_norm.weight", 2.25f, true,
     "(spread 10.6)"},
    {"an outlier", WEFT_TYPE_Q4_K, WEFT_TYPE_Q4_K, "blk.0.attn_norm.weight", -2.5f, false,
     "spread 13, above 12, most in blk.0.attn_norm.weight"},
    {"before the experts", WEFT_TYPE_Q4_K, WEFT_TYPE_Q4_K, "blk.0.pre_ffw_norm_2.weight", 15.0f, false, "spread 450"},
    {"gpt-oss's name of it", WEFT_TYPE_Q4_K, WEFT_TYPE_Q4_K, "blk.7.post_attention_norm.weight", 15.0f, false,
     "most in blk.7.post_attention_norm.weight"},
    {"behind a matrix", WEFT_TYPE_Q4_K, WEFT_TYPE_Q4_K, "blk.0.post_ffw_norm.weight", 15.0f, false,
     "no norm that would show"},
    {"none", WEFT_TYPE_Q4_K, WEFT_TYPE_Q4_K, NULL, 0.0f, false, "no norm that would show"},
    {"no number", WEFT_TYPE_Q4_K, WEFT_TYPE_Q4_K, "blk.0.attn_norm.weight", NAN, false, "spread inf"},
};

static void add_norm(gguf_writer *w, const char *name, float outlier) {
  float norm[HIDDEN];
  uint64_t length = HIDDEN;
  for (uint32_t i = 0; i < HIDDEN; i++) norm[i] = i % 3 == 0 ? -0.5f : 0.5f;
  norm[300] = outlier;
  gguf_writer_tensor(w, name, WEFT_TYPE_F32, 1, &length, norm, sizeof norm);
}

static void add_matrix(gguf_writer *w, const char *name, weft_type type) {
  static const uint8_t zeros[BYTES_MAX * 2];
  uint64_t shape[2] = {HIDDEN, 2}, n_bytes = 2 * weft_type_row_bytes(type, HIDDEN);
  assert_true(n_bytes <= sizeof zeros);
  gguf_writer_tensor(w, name, (int32_t)type, 2, shape, zeros, n_bytes);
}

static weft_eight_bits facts_of(gguf_writer *w, char *said, size_t n_said) {
  weft_gguf *gguf;
  gguf_writer_string(w, "general.architecture", "llama");
  weft_bytes file = gguf_writer_finish(w);
  assert_int_equal(weft_gguf_open_memory(file.data, file.n, "row", &gguf, NULL), WEFT_OK);
  weft_eight_bits facts = weft_eight_bits_of(gguf);
  weft_eight_bits_say(&facts, said, n_said);
  weft_gguf_close(gguf);
  gguf_writer_close(w);
  return facts;
}

static void test_rows(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const row *r = &rows[i];
    gguf_writer w = {0};
    char said[200];
    add_matrix(&w, "blk.0.attn_q.weight", r->one);
    add_matrix(&w, "blk.0.ffn_up.weight", r->two);
    add_matrix(&w, "token_embd.weight", WEFT_TYPE_Q8_0); /* the head is another question, and its type says nothing */
    if (r->norm != NULL) add_norm(&w, r->norm, r->outlier);
    weft_eight_bits facts = facts_of(&w, said, sizeof said);
    if (facts.fits != r->fits || strstr(said, r->said) == NULL) fail_msg("%s: %d, %s", r->what, facts.fits, said);
  }
}

/* Of a model that has both, the norm behind attention is none before a matrix. */
static void test_norm_behind_attention(void **state) {
  gguf_writer w = {0};
  char said[200];
  (void)state;
  add_matrix(&w, "blk.0.attn_q.weight", WEFT_TYPE_Q4_0);
  add_norm(&w, "blk.0.ffn_norm.weight", 0.5f);
  add_norm(&w, "blk.0.post_attention_norm.weight", 100.0f);
  assert_true(facts_of(&w, said, sizeof said).fits);
}

/* The head of canvases is behind the last norm, which alone decides. */
static void test_head(void **state) {
  static const float outliers[] = {2.0f, 3.0f, NAN};
  (void)state;
  for (int i = -1; i < 3; i++) {
    gguf_writer w = {0};
    gguf_writer_string(&w, "general.architecture", "llama");
    add_norm(&w, "blk.0.attn_norm.weight", 100.0f);
    if (i >= 0) add_norm(&w, "output_norm.weight", outliers[i]);
    weft_gguf *gguf;
    weft_bytes file = gguf_writer_finish(&w);
    assert_int_equal(weft_gguf_open_memory(file.data, file.n, "head", &gguf, NULL), WEFT_OK);
    assert_int_equal(weft_eight_bits_head(gguf), i == 0);
    weft_gguf_close(gguf);
    gguf_writer_close(&w);
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_norm_behind_attention),
                                     cmocka_unit_test(test_head)};
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
