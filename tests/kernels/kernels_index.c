/* SPDX-License-Identifier: MIT */
/* latent_choose with as many heads, index rows and choices as DeepSeek-V4-Flash has, around the border where rows are
 * left out, against scores in doubles: cards find the largest in spans that shorter sequences do not fill. */
#include "tests/kernels/harness.h"

enum { PAGE_BLOCK = 16, HEADS = 64, DIM = 128, K = 512, RATIO = 4, ROWS = 5 };
static const uint32_t n_seen[ROWS] = {K - 1, K, K + 1, 2047, 5003};

typedef struct choice {
  buffer pool, q, weights, ids;
  uint32_t *table;
  weft_latent_segment segment[ROWS];
  weft_latent_choose_args args;
} choice;

static void open_choice(choice *m) {
  const uint32_t n = n_seen[ROWS - 1], of_page = PAGE_BLOCK / RATIO, n_pages = n / of_page + 1;
  const uint64_t row = weft_kv_row_bytes(WEFT_TYPE_BF16, DIM);
  float key[DIM];
  m->pool = buffer_new(n_pages * of_page * row);
  m->q = buffer_new(ROWS * HEADS * DIM * sizeof(float));
  m->weights = buffer_new(ROWS * HEADS * sizeof(float));
  m->ids = buffer_new(ROWS * K * sizeof(int32_t));
  m->table = memory_new(n_pages, sizeof *m->table);
  fill_normal(m->q.data, ROWS * HEADS * DIM, 1);
  fill_normal(m->weights.data, ROWS * HEADS, 2);
  for (uint32_t i = 0; i < n_pages; i++) m->table[i] = n_pages - 1 - i;
  for (uint32_t i = 0; i < n_pages * of_page; i++) {
    fill_normal(key, DIM, 10 + i);
    weft_kv_row_store(WEFT_TYPE_BF16, key, DIM, (uint8_t *)m->pool.data + i * row);
  }
  for (uint32_t i = 0; i < ROWS; i++) {
    m->segment[i] = (weft_latent_segment){.first_row = i, .n_rows = 1, .kv_len = n_seen[i] * RATIO - 1};
    m->segment[i].table[WEFT_LATENT_INDEX] = m->table;
  }
  m->args = (weft_latent_choose_args){.index = {.type = WEFT_TYPE_BF16,
                                                .base = m->pool.data,
                                                .page_bytes = of_page * row,
                                                .block_tokens = PAGE_BLOCK,
                                                .positions = RATIO,
                                                .width = DIM},
                                      .q = m->q.data,
                                      .weights = m->weights.data,
                                      .ids = m->ids.data,
                                      .segment = m->segment,
                                      .n_segments = ROWS,
                                      .n_rows = ROWS,
                                      .n_heads = HEADS,
                                      .k = K,
                                      .q_stride = HEADS * DIM,
                                      .weights_stride = HEADS};
}

static void close_choice(choice *m) {
  buffer_free(&m->pool), buffer_free(&m->q), buffer_free(&m->weights), buffer_free(&m->ids);
  memory_free(m->table);
}

/* Scores of a row, and how far sums of queries as two numbers of 8 bits each, or in f32, may be off. */
static double score_rows(const choice *m, uint32_t r, double *score) {
  const float *q = (const float *)m->q.data + r * m->args.q_stride, *w = (const float *)m->weights.data + r * HEADS;
  double most = 0.0;
  float key[DIM];
  for (uint32_t i = 0; i < n_seen[r]; i++) {
    double off = 0.0;
    score[i] = 0.0;
    weft_kv_row_load(WEFT_TYPE_BF16, weft_latent_row(&m->args.index, 0, m->table, i * RATIO), DIM, key);
    for (uint32_t h = 0; h < HEADS; h++) {
      double product = 0.0, all = 0.0;
      for (uint32_t d = 0; d < DIM; d++) {
        double one = (double)q[h * DIM + d] * (double)key[d];
        product += one, all += fabs(one);
      }
      score[i] += (double)w[h] * fmax(product, 0.0);
      off += fabs((double)w[h]) * all;
    }
    most = fmax(most, off);
  }
  return most * 0x1p-15;
}

/* Of a row that sees at most k index rows all are chosen; of more, none that is smaller than one left out. */
static void test_choice_of_many(void **state) {
  const devices *all = *state;
  choice m;
  open_choice(&m);
  double *score[ROWS], off[ROWS];
  for (uint32_t r = 0; r < ROWS; r++) {
    score[r] = memory_new(n_seen[r], sizeof *score[r]);
    off[r] = score_rows(&m, r, score[r]);
  }
  for (uint32_t d = 0; d <= all->n; d++) {
    weft_device *device = d == 0 ? all->ref : all->cpu[d - 1];
    memset(m.ids.data, 0xFF, ROWS * K * sizeof(int32_t));
    RUN_OP(latent_choose, device, &m.args);
    for (uint32_t r = 0; r < ROWS; r++) {
      const int32_t *ids = (const int32_t *)m.ids.data + r * K;
      const uint32_t n = n_seen[r] < K ? n_seen[r] : K;
      double least = INFINITY, most = -INFINITY;
      for (uint32_t j = 0, i = 0; i < n_seen[r]; i++) {
        bool is_chosen = j < n && ids[j] == (int32_t)i;
        if (is_chosen) least = fmin(least, score[r][i]);
        if (!is_chosen) most = fmax(most, score[r][i]);
        j += is_chosen;
        if (i + 1 == n_seen[r]) assert_int_equal(j, n); /* ascending, and none twice */
      }
      for (uint32_t j = n; j < K; j++) assert_int_equal(ids[j], -1);
      assert_true(least + 2 * off[r] > most);
    }
  }
  for (uint32_t r = 0; r < ROWS; r++) memory_free(score[r]);
  close_choice(&m);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_choice_of_many)};
  take_arguments(argc, argv);
  return cmocka_run_group_tests(tests, setup_devices, teardown_devices);
}
