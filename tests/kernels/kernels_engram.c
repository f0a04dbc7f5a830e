/* SPDX-License-Identifier: MIT */
/* What DeepSeek-V4.1 adds to the ops of latent rows and streams, on every device against what the headers define: the
 * memory by tokens (kernels/engram.h), parts of the stream that are taken by what the sublayer before made, far rows
 * for each position and index rows that are made of them, and the choice among blocks of far rows. */
#include "tests/kernels/harness.h"

enum { POSITIONS = 41, BLOCK = 8, PAGES = POSITIONS / BLOCK + 1, TOKENS = 9 };
static const float EPS = 1e-6f;

static float *new_floats(uint64_t n, uint64_t seed) {
  float *x = memory_new(n + 1, sizeof *x);
  fill_normal(x, n, seed);
  return x;
}

static weft_device *device_of(const devices *all, uint32_t d) {
  return d == 0 ? all->ref : all->cpu[d - 1];
}

/* Pages of a sequence, the last one first. */
static uint32_t *new_table(void) {
  uint32_t *table = memory_new(PAGES, sizeof *table);
  for (uint32_t i = 0; i < PAGES; i++) table[i] = PAGES - 1 - i;
  return table;
}

static weft_latent_segment segment_of(uint32_t at, uint32_t n, const uint32_t *table) {
  weft_latent_segment s = {.n_rows = n, .kv_len = at};
  for (uint32_t i = 0; i < WEFT_LATENT_SETS; i++) s.table[i] = table;
  return s;
}

static weft_latent_view view_of(buffer *pool, weft_type type, uint32_t width, uint32_t positions) {
  const uint64_t plane = BLOCK / positions * weft_kv_row_bytes(type, width);
  *pool = buffer_new(2 * plane * PAGES);
  return (weft_latent_view){.base = pool->data,
                            .type = type,
                            .page_bytes = 2 * plane,
                            .scores_offset = plane,
                            .block_tokens = BLOCK,
                            .positions = positions,
                            .width = width};
}

/* ---- rows by tokens ---- */

enum { GRAMS = 4, GRAM_HEADS = 3, READS = (GRAMS - 1) * GRAM_HEADS, PAD = 7 };

typedef struct memory {
  int32_t *token, *map, ids[POSITIONS * READS];
  uint64_t *multiplier;
  uint32_t *prime, *offset, *table;
  buffer pool;
  weft_latent_view past;
} memory;

static void open_memory(memory *m) {
  *m = (memory){.token = memory_new(POSITIONS, sizeof *m->token),
                .map = memory_new(TOKENS, sizeof *m->map),
                .multiplier = memory_new(GRAMS, sizeof *m->multiplier),
                .prime = memory_new(READS, sizeof *m->prime),
                .offset = memory_new(READS, sizeof *m->offset),
                .table = new_table()};
  for (uint32_t i = 0; i < POSITIONS; i++) m->token[i] = (int32_t)(random_bits(1, i) % TOKENS);
  for (uint32_t i = 0; i < TOKENS; i++) m->map[i] = (int32_t)(i * i % 6);
  for (uint32_t i = 0; i < GRAMS; i++) m->multiplier[i] = random_bits(2, i) >> 8 | 1;
  for (uint32_t i = 0; i < READS; i++) m->prime[i] = 16000057 + 2 * i, m->offset[i] = 16000057 * i;
  m->past = view_of(&m->pool, WEFT_TYPE_F32, 1, 1);
}

static void close_memory(memory *m) {
  void *const all[] = {m->token, m->map, m->multiplier, m->prime, m->offset, m->table};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) memory_free(all[i]);
  buffer_free(&m->pool);
}

static weft_engram_rows_args rows_args(const memory *m, const int32_t *token, int32_t *ids,
                                       const weft_latent_segment *segment) {
  return (weft_engram_rows_args){.past = m->past,
                                 .tokens = token,
                                 .map = m->map,
                                 .multiplier = m->multiplier,
                                 .prime = m->prime,
                                 .offset = m->offset,
                                 .ids = ids,
                                 .segment = segment,
                                 .n_segments = 1,
                                 .n_rows = segment->n_rows,
                                 .n_tokens = TOKENS,
                                 .n_grams = GRAMS,
                                 .n_heads = GRAM_HEADS,
                                 .pad = PAD};
}

static void find_rows(weft_device *device, memory *m, const int32_t *token, uint32_t at, uint32_t n) {
  buffer ids = buffer_new(n * READS * sizeof(int32_t));
  const weft_latent_segment segment = segment_of(at, n, m->table);
  const weft_engram_rows_args args = rows_args(m, token + at, ids.data, &segment);
  assert_int_equal(done(device, weft_engram_rows(device, &args)), WEFT_OK);
  memcpy(m->ids + at * READS, ids.data, n * READS * sizeof(int32_t));
  buffer_free(&ids);
}

static void assert_rows(const memory *m) {
  for (uint32_t p = 0; p < POSITIONS; p++) {
    uint64_t x = 0;
    for (uint32_t n = 0; n < GRAMS; n++) {
      x ^= (n > p ? PAD : (uint64_t)m->map[m->token[p - n]]) * m->multiplier[n];
      for (uint32_t h = 0; n > 0 && h < GRAM_HEADS; h++) {
        uint32_t i = (n - 1) * GRAM_HEADS + h;
        assert_int_equal(m->ids[p * READS + i], x % m->prime[i] + m->offset[i]);
      }
    }
  }
}

/* At once, one by one, in pieces, and after rows that turned out to be void. */
static void test_rows(void **state) {
  const devices *all = *state;
  for (uint32_t d = 0; d <= all->n; d++) {
    weft_device *device = device_of(all, d);
    memory m;
    open_memory(&m);
    find_rows(device, &m, m.token, 0, POSITIONS);
    assert_rows(&m);
    memset(m.pool.data, 0xFF, m.pool.n_bytes);
    for (uint32_t at = 0, n = 1; at < POSITIONS; at += n, n = n % 7 + 2) {
      int32_t *other = memory_new(POSITIONS, sizeof *other);
      uint32_t rest = POSITIONS - at;
      memcpy(other, m.token, POSITIONS * sizeof *other);
      for (uint32_t i = at + 1; i < POSITIONS; i++) other[i] = (other[i] + 1) % TOKENS;
      find_rows(device, &m, other, at, rest < 9 ? rest : 9);
      find_rows(device, &m, m.token, at, rest < n ? rest : n);
      memory_free(other);
    }
    assert_rows(&m);
    close_memory(&m);
  }
}

/* ---- what is added to the stream ---- */

enum { ROWS = 5, GAP = 4 };

static double length_of(const float *x, uint32_t n) {
  double sum = 0.0;
  for (uint32_t c = 0; c < n; c++) sum += (double)x[c] * (double)x[c];
  return sqrt(sum / n + (double)EPS);
}

/* Of rows of n parts, as the header says. */
static void add_by(float *x, const float *read, const float *weight, uint32_t n, uint32_t n_cols) {
  for (uint32_t i = 0; i < n; i++, x += n_cols) {
    const float *key = read + (uint64_t)i * n_cols, *value = read + (uint64_t)n * n_cols;
    double sum = 0.0;
    for (uint32_t c = 0; c < n_cols; c++) sum += (double)x[c] * (double)key[c] * (double)weight[i * n_cols + c];
    double s = sum / (length_of(x, n_cols) * length_of(key, n_cols) * sqrt((double)n_cols));
    double root = copysign(sqrt(fmax(fabs(s), 1e-6)), s);
    for (uint32_t c = 0; c < n_cols; c++) x[c] = (float)((double)x[c] + (double)value[c] / (1.0 + exp(-root)));
  }
}

static void run_add(weft_device *device, uint32_t n, uint32_t n_cols, uint32_t first, uint32_t n_rows, float *x,
                    const float *read, const float *weight) {
  const uint64_t x_stride = (uint64_t)n * n_cols + GAP, read_stride = (n + 1ull) * n_cols + GAP;
  const weft_engram_add_args args = {.x = x + first * x_stride,
                                     .read = read + first * read_stride,
                                     .weight = weight,
                                     .n_rows = n_rows,
                                     .n_cols = n_cols,
                                     .n_streams = n,
                                     .x_stride = x_stride,
                                     .read_stride = read_stride,
                                     .eps = EPS};
  assert_int_equal(done(device, weft_engram_add(device, &args)), WEFT_OK);
}

static void test_add(void **state) {
  const devices *all = *state;
  static const uint32_t sizes[][2] = {{1, 7}, {4, 300}, {3, 1}, {8, 33}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    const uint32_t n = sizes[i][0], n_cols = sizes[i][1];
    const uint64_t cols = (uint64_t)n * n_cols, stride = cols + GAP, read_stride = (n + 1ull) * n_cols + GAP;
    float *read = new_floats(ROWS * read_stride, 10 * i), *weight = new_floats(cols, 10 * i + 1),
          *wanted = new_floats(ROWS * stride, 10 * i + 2);
    for (uint32_t r = 0; r < ROWS; r++) add_by(wanted + r * stride, read + r * read_stride, weight, n, n_cols);
    for (uint32_t d = 0; d <= all->n; d++) {
      float *x = new_floats(ROWS * stride, 10 * i + 2), *alone = new_floats(ROWS * stride, 10 * i + 2);
      run_add(device_of(all, d), n, n_cols, 0, ROWS, x, read, weight);
      for (uint32_t r = 0; r < ROWS; r++) run_add(device_of(all, d), n, n_cols, r, 1, alone, read, weight);
      assert_memory_equal(x, alone, ROWS * stride * sizeof *x);
      assert_within("engram_add", d == 0 ? "ref" : all->name[d - 1], distance(wanted, x, ROWS, cols, stride), 1e-5);
      memory_free(x), memory_free(alone);
    }
    memory_free(read), memory_free(weight), memory_free(wanted);
  }
}

/* ---- parts that are taken by what was made before ---- */

static void test_carry(void **state) {
  const devices *all = *state;
  for (uint32_t n = 2; n <= 5; n++) {
    const uint32_t n_cols = n == 4 ? 1500 : 23, n_mixes = n * (2 + n);
    const uint64_t stride = (uint64_t)n * n_cols + n;
    float *mixes = new_floats(ROWS * n_mixes, 1), *base = new_floats(n_mixes, 2), *scale = new_floats(3, 3);
    for (uint32_t d = 0; d <= all->n; d++) {
      weft_device *device = device_of(all, d);
      float *x = new_floats(ROWS * stride, 4), *kept = new_floats(ROWS * stride, 4), *y = new_floats(ROWS * n_cols, 5),
            *own = new_floats(ROWS * n_cols, 5), *shares = new_floats(ROWS * n * (1 + n), 6);
      weft_mix_args args = {.x = x,
                            .mixes = mixes,
                            .base = base,
                            .scale = scale,
                            .y = own,
                            .shares = shares,
                            .n_rows = ROWS,
                            .n_cols = n_cols,
                            .n_streams = n,
                            .n_rounds = 3,
                            .eps = EPS,
                            .floor = 1e-3f,
                            .x_stride = stride,
                            .y_stride = n_cols,
                            .mixes_stride = n_mixes,
                            .shares_stride = n * (1 + n),
                            .carry_stride = stride};
      assert_int_equal(done(device, weft_mix(device, &args)), WEFT_OK); /* by own take */
      args.carry = x + (uint64_t)n * n_cols, args.y = y;
      for (uint32_t step = 0; step < 3; step++) { /* by what lies there; by own take, which was left; by part 0 */
        if (step == 1) args.mixes = NULL, args.shares = NULL;
        if (step == 2) args.mixes = mixes, args.first = true;
        assert_int_equal(done(device, weft_mix(device, &args)), WEFT_OK);
        for (uint32_t r = 0; r < ROWS; r++)
          for (uint32_t c = 0; c < n_cols; c++) {
            double wanted = step == 1 ? (double)own[r * n_cols + c] : step == 2 ? (double)kept[r * stride + c] : 0.0;
            for (uint32_t i = 0; step == 0 && i < n; i++)
              wanted += (double)kept[r * stride + (uint64_t)n * n_cols + i] *
                        (double)kept[r * stride + (uint64_t)i * n_cols + c];
            assert_true(fabs(wanted - (double)y[r * n_cols + c]) < 1e-5);
          }
      }
      float *const mine[] = {x, kept, y, own, shares};
      for (size_t i = 0; i < sizeof mine / sizeof *mine; i++) memory_free(mine[i]);
    }
    memory_free(mixes), memory_free(base), memory_free(scale);
  }
}

/* ---- far rows of one or two positions, and rows made of them ---- */

enum { WIDTH = 24, ROTATED = 8 };

typedef struct pressed {
  buffer far, pending, latent;
  uint32_t *table;
  weft_latent_view far_view, pending_view;
  float *x, *scores, *norm, *inv_freq;
  uint32_t ratio;
} pressed;

static void press_rows(weft_device *device, pressed *p, uint32_t at, uint32_t n) {
  buffer latent = buffer_new((uint64_t)n * WIDTH * sizeof(float));
  const weft_latent_segment segment = segment_of(at, n, p->table);
  const weft_latent_press_args args = {.pending = p->pending_view,
                                       .out = p->far_view,
                                       .pending_set = WEFT_LATENT_PENDING,
                                       .out_set = WEFT_LATENT_FAR,
                                       .x = p->x + at * WIDTH,
                                       .scores = p->scores + at * WIDTH,
                                       .norm = p->norm,
                                       .latent = latent.data,
                                       .turn = {p->inv_freq, ROTATED},
                                       .segment = &segment,
                                       .n_segments = 1,
                                       .n_rows = n,
                                       .x_stride = WIDTH,
                                       .scores_stride = WIDTH,
                                       .eps = EPS};
  assert_int_equal(done(device, weft_latent_press(device, &args)), WEFT_OK);
  memcpy((float *)p->latent.data + at * WIDTH, latent.data, (uint64_t)n * WIDTH * sizeof(float));
  buffer_free(&latent);
}

/* The far row of the block that ends at a position, before and after it rotates. */
static void press_by(const pressed *p, uint32_t position, double *plain, double *turned) {
  const uint32_t begin = position + 1 - p->ratio;
  double squares = 0.0;
  for (uint32_t d = 0; d < WIDTH; d++) {
    double most = -INFINITY, sum = 0.0, total = 0.0;
    for (uint32_t i = begin; i <= position; i++) most = fmax(most, (double)p->scores[i * WIDTH + d]);
    for (uint32_t i = begin; i <= position; i++) {
      double share = exp((double)p->scores[i * WIDTH + d] - most);
      total += share, sum += share * (double)p->x[i * WIDTH + d];
    }
    plain[d] = p->ratio == 1 ? (double)p->x[position * WIDTH + d] : sum / total;
    squares += plain[d] * plain[d];
  }
  for (uint32_t d = 0; d < WIDTH; d++) plain[d] *= (double)p->norm[d] / sqrt(squares / WIDTH + (double)EPS);
  memcpy(turned, plain, WIDTH * sizeof *turned);
  for (uint32_t i = 0; i < ROTATED / 2; i++) {
    double angle = (double)((float)begin * p->inv_freq[i]), *pair = turned + WIDTH - ROTATED + 2 * i, a = pair[0];
    pair[0] = a * cos(angle) - pair[1] * sin(angle);
    pair[1] = pair[1] * cos(angle) + a * sin(angle);
  }
}

static void assert_pressed(const pressed *p) {
  double plain[WIDTH], turned[WIDTH];
  float row[WIDTH];
  for (uint32_t at = 0; at < POSITIONS; at++) {
    const float *latent = (const float *)p->latent.data + at * WIDTH;
    bool ends = (at + 1) % p->ratio == 0;
    if (ends) press_by(p, at, plain, turned);
    if (ends) weft_kv_row_load(WEFT_TYPE_F32, weft_latent_row(&p->far_view, 0, p->table, at), WIDTH, row);
    for (uint32_t d = 0; d < WIDTH; d++) {
      assert_true(fabs((double)latent[d] - (ends ? plain[d] : 0.0)) < 1e-4);
      assert_true(!ends || fabs((double)row[d] - turned[d]) < 1e-4);
    }
  }
}

static void test_far_rows(void **state) {
  const devices *all = *state;
  for (uint32_t ratio = 1; ratio <= 2; ratio++) {
    for (uint32_t d = 0; d <= all->n; d++) {
      pressed p = {.table = new_table(),
                   .x = new_floats(POSITIONS * WIDTH, 1),
                   .scores = new_floats(POSITIONS * WIDTH, 2),
                   .norm = new_floats(WIDTH, 3),
                   .inv_freq = new_floats(ROTATED, 4),
                   .ratio = ratio,
                   .latent = buffer_new(POSITIONS * WIDTH * sizeof(float))};
      p.far_view = view_of(&p.far, WEFT_TYPE_F32, WIDTH, ratio);
      p.pending_view = view_of(&p.pending, WEFT_TYPE_F32, WIDTH, 1);
      if (ratio == 1) p.pending_view.base = NULL;
      press_rows(device_of(all, d), &p, 0, POSITIONS);
      assert_pressed(&p);
      buffer far, latent, same = p.far, as_before = p.latent;
      p.far_view = view_of(&far, WEFT_TYPE_F32, WIDTH, ratio);
      p.far = far, p.latent = latent = buffer_new(POSITIONS * WIDTH * sizeof(float));
      for (uint32_t at = 0, n = 1; at < POSITIONS; at += n, n = n % 5 + 1)
        press_rows(device_of(all, d), &p, at, POSITIONS - at < n ? POSITIONS - at : n);
      assert_memory_equal(latent.data, as_before.data, latent.n_bytes);
      assert_memory_equal(far.data, same.data, far.n_bytes);
      float *const mine[] = {p.x, p.scores, p.norm, p.inv_freq};
      for (size_t i = 0; i < sizeof mine / sizeof *mine; i++) memory_free(mine[i]);
      memory_free(p.table);
      buffer_free(&far), buffer_free(&same), buffer_free(&latent), buffer_free(&as_before), buffer_free(&p.pending);
    }
  }
}

/* Queries without a norm rotate and are else as they were. */
static void test_plain_queries(void **state) {
  const devices *all = *state;
  for (uint32_t d = 0; d <= all->n; d++) {
    enum { HEADS = 3, AT = 5 };
    buffer pool;
    uint32_t *table = new_table();
    float *q = new_floats(ROWS * HEADS * WIDTH, 1), *before = new_floats(ROWS * HEADS * WIDTH, 1),
          *kv = new_floats(ROWS * WIDTH, 2), *norm = new_floats(WIDTH, 3), *inv_freq = new_floats(ROTATED, 4);
    const weft_latent_segment segment = segment_of(AT, ROWS, table);
    const weft_latent_rows_args args = {.near = view_of(&pool, WEFT_TYPE_F32, WIDTH, 1),
                                        .q = q,
                                        .kv = kv,
                                        .kv_norm = norm,
                                        .turn = {inv_freq, ROTATED},
                                        .segment = &segment,
                                        .n_segments = 1,
                                        .n_rows = ROWS,
                                        .n_heads = HEADS,
                                        .q_stride = HEADS * WIDTH,
                                        .kv_stride = WIDTH,
                                        .eps = EPS,
                                        .plain_q = true};
    assert_int_equal(done(device_of(all, d), weft_latent_rows(device_of(all, d), &args)), WEFT_OK);
    for (uint32_t r = 0; r < ROWS; r++)
      for (uint32_t i = 0; i < HEADS * WIDTH; i += 2) {
        const uint32_t in = i % WIDTH, kept = WIDTH - ROTATED;
        const float *x = before + r * HEADS * WIDTH + i, *y = q + r * HEADS * WIDTH + i;
        double angle = in < kept ? 0.0 : (double)((float)(AT + r) * inv_freq[(in - kept) / 2]);
        assert_true(fabs((double)x[0] * cos(angle) - (double)x[1] * sin(angle) - (double)y[0]) < 1e-5);
        assert_true(fabs((double)x[1] * cos(angle) + (double)x[0] * sin(angle) - (double)y[1]) < 1e-5);
      }
    float *const mine[] = {q, before, kv, norm, inv_freq};
    for (size_t i = 0; i < sizeof mine / sizeof *mine; i++) memory_free(mine[i]);
    memory_free(table);
    buffer_free(&pool);
  }
}

/* ---- blocks of far rows ---- */

enum { KEYS = 32, HEADS = 3, K = 5, BLOCKS = 3, BLOCK_ROWS = 4 };

typedef struct blocks {
  buffer pool, q, weights, ids, blocks;
  uint32_t *table;
  weft_latent_choose_args args;
  weft_latent_segment segment;
} blocks;

/* Small whole numbers, so that scores are exact in any order, and many are equal. */
static void open_blocks(blocks *b, weft_type type, uint32_t width) {
  float key[KEYS];
  *b = (blocks){.table = new_table(),
                .q = buffer_new(POSITIONS * HEADS * KEYS * sizeof(float)),
                .weights = buffer_new(POSITIONS * HEADS * sizeof(float)),
                .ids = buffer_new(POSITIONS * K * sizeof(int32_t)),
                .blocks = buffer_new(POSITIONS * BLOCKS * sizeof(int32_t))};
  weft_latent_view view = view_of(&b->pool, type, width, 1);
  for (uint32_t i = 0; i < POSITIONS * HEADS * KEYS; i++)
    ((float *)b->q.data)[i] = (float)(int32_t)(random_bits(1, i) % 3) - 1.0f;
  for (uint32_t i = 0; i < POSITIONS * HEADS; i++)
    ((float *)b->weights.data)[i] = (float)(int32_t)(random_bits(2, i) % 5) - 2.0f;
  for (uint32_t p = 0; p < POSITIONS; p++) {
    for (uint32_t c = 0; c < width; c++) key[c] = (float)(int32_t)(random_bits(3, p * KEYS + c) % 3) - 1.0f;
    weft_kv_row_store(type, key, width, weft_latent_row(&view, 0, b->table, p));
  }
  b->segment = segment_of(0, POSITIONS, b->table);
  b->args = (weft_latent_choose_args){.index = view,
                                      .q = b->q.data,
                                      .weights = b->weights.data,
                                      .ids = b->ids.data,
                                      .blocks = b->blocks.data,
                                      .segment = &b->segment,
                                      .n_segments = 1,
                                      .n_rows = POSITIONS,
                                      .n_heads = HEADS,
                                      .k = K,
                                      .n_blocks = BLOCKS,
                                      .block_rows = BLOCK_ROWS,
                                      .makes_blocks = true,
                                      .q_stride = (uint64_t)HEADS * width,
                                      .weights_stride = HEADS};
}

static void score_rows(const blocks *b, uint32_t r, uint32_t n, double *score) {
  const uint32_t width = b->args.index.width;
  float key[KEYS];
  for (uint32_t i = 0; i < n; i++) {
    score[i] = 0.0;
    weft_kv_row_load(b->args.index.type, weft_latent_row(&b->args.index, 0, b->table, i), width, key);
    for (uint32_t h = 0; h < HEADS; h++) {
      double product = 0.0;
      for (uint32_t c = 0; c < width; c++)
        product += (double)((const float *)b->q.data)[r * b->args.q_stride + h * width + c] * (double)key[c];
      score[i] += (double)((const float *)b->weights.data)[r * HEADS + h] * fmax(product, 0.0);
    }
  }
}

/* Marks the k largest of n that may be taken, of equal ones the first. */
static void mark_largest(const double *score, uint32_t n, uint32_t k, bool *taken) {
  for (uint32_t i = 0; i < n; i++) taken[i] = false;
  for (uint32_t j = 0; j < k; j++) {
    uint32_t best = n;
    for (uint32_t i = 0; i < n; i++)
      if (!taken[i] && score[i] > -INFINITY && (best == n || score[i] > score[best])) best = i;
    if (best < n) taken[best] = true;
  }
}

static void assert_list(const int32_t *ids, uint32_t room, const bool *taken, uint32_t n) {
  uint32_t j = 0;
  for (uint32_t i = 0; i < n; i++)
    if (taken[i]) assert_int_equal(ids[j++], i);
  for (; j < room; j++) assert_int_equal(ids[j], -1);
}

/* Rows of the layer that chooses blocks, then those of one that keeps to them. */
static void assert_chosen(const blocks *b, bool keeps) {
  for (uint32_t r = 0; r < b->args.n_rows; r++) {
    double score[POSITIONS], best[POSITIONS];
    bool taken[POSITIONS], blocks_taken[POSITIONS];
    const uint32_t n = r + 1, n_blocks = (n + BLOCK_ROWS - 1) / BLOCK_ROWS;
    score_rows(b, r, n, score);
    for (uint32_t i = 0; i < n_blocks; i++) best[i] = -INFINITY;
    for (uint32_t i = 0; i < n; i++) best[i / BLOCK_ROWS] = fmax(best[i / BLOCK_ROWS], score[i]);
    best[n_blocks - 1] = INFINITY;
    mark_largest(best, n_blocks, BLOCKS, blocks_taken);
    if (n > BLOCKS * BLOCK_ROWS)
      assert_list((const int32_t *)b->blocks.data + r * BLOCKS, BLOCKS, blocks_taken, n_blocks);
    for (uint32_t i = 0; keeps && i < n; i++)
      if (n > BLOCKS * BLOCK_ROWS && !blocks_taken[i / BLOCK_ROWS]) score[i] = -INFINITY;
    mark_largest(score, n, K, taken);
    assert_list((const int32_t *)b->ids.data + r * K, K, taken, n);
  }
}

static void test_blocks(void **state) {
  const devices *all = *state;
  for (uint32_t wide = 0; wide < 2; wide++) {
    for (uint32_t d = 0; d <= all->n; d++) {
      blocks b;
      open_blocks(&b, wide ? WEFT_TYPE_BF16 : WEFT_TYPE_F32, wide ? KEYS : 7);
      RUN_OP(latent_choose, device_of(all, d), &b.args);
      assert_chosen(&b, false);
      b.args.makes_blocks = false;
      memset(b.ids.data, 0xFF, b.ids.n_bytes);
      RUN_OP(latent_choose, device_of(all, d), &b.args);
      assert_chosen(&b, true);
      buffer_free(&b.pool), buffer_free(&b.q), buffer_free(&b.weights), buffer_free(&b.ids), buffer_free(&b.blocks);
      memory_free(b.table);
    }
  }
}

/* A call whose table of segments a card has from an earlier call, with any number of other tables made between: the
 * tables that are made behind it do not take its place. */
static void test_tables_between(void **state) {
  const devices *all = *state;
  for (uint32_t d = 0; d <= all->n; d++) {
    memory m;
    blocks b;
    open_memory(&m);
    open_blocks(&b, WEFT_TYPE_F32, 7);
    for (uint32_t n_between = 0; n_between < 20; n_between++) {
      const uint32_t n = POSITIONS - n_between;
      find_rows(device_of(all, d), &m, m.token, 0, n);
      for (uint32_t i = 0; i < n_between; i++) find_rows(device_of(all, d), &m, m.token, i + 1, 1);
      b.segment = segment_of(0, n, m.table);
      b.args.n_rows = n;
      RUN_OP(latent_choose, device_of(all, d), &b.args);
      assert_chosen(&b, false);
    }
    close_memory(&m);
    buffer_free(&b.pool), buffer_free(&b.q), buffer_free(&b.weights), buffer_free(&b.ids), buffer_free(&b.blocks);
    memory_free(b.table);
  }
}

/* ---- the table ---- */

enum { TABLE_ROWS = 1000, TABLE_DIM = 96, N_IDS = POSITIONS * READS };

static uint8_t *new_table_bytes(weft_type type) {
  const size_t row_bytes = weft_type_row_bytes(type, TABLE_DIM);
  uint8_t *bytes = memory_new(TABLE_ROWS * row_bytes, 1);
  float row[TABLE_DIM];
  for (uint32_t r = 0; r < TABLE_ROWS; r++) {
    fill_normal(row, TABLE_DIM, 100 + r);
    assert_int_equal(weft_quantise_row(type, row, bytes + r * row_bytes, TABLE_DIM), WEFT_OK);
  }
  return bytes;
}

/* The rows that ids name, of a weight that is placed with `uses`; a card keeps a table in host memory, and gives that
 * back. */
static buffer look_up(weft_device *device, weft_type type, const uint8_t *bytes, unsigned uses, const buffer *ids) {
  const weft_weights_report before = weft_device_weights(device);
  const bool on_host = (uses & WEFT_USE_TABLE) != 0 && is_cuda(device);
  weft_weight weight = {.type = type, .n_in = TABLE_DIM, .n_out = TABLE_ROWS, .n_mats = 1};
  buffer y = buffer_new(N_IDS * TABLE_DIM * sizeof(float));
  assert_int_equal(weft_device_weight(device, &weight, bytes, uses, NULL), WEFT_OK);
  const weft_weights_report now = weft_device_weights(device);
  assert_int_equal(now.n_bytes_tables - before.n_bytes_tables, on_host ? weight.n_bytes : 0);
  assert_true(!on_host || (now.n_bytes == before.n_bytes && now.n_bytes_held == before.n_bytes_held));
  const weft_embed_args args = {
      .weight = &weight, .tokens = ids->data, .y = y.data, .n_rows = N_IDS, .scale = 1.0f, .y_stride = TABLE_DIM};
  assert_int_equal(done(device, weft_embed(device, &args)), WEFT_OK);
  weft_device_weight_free(device, &weight);
  assert_int_equal(weft_device_weights(device).n_bytes_tables, before.n_bytes_tables);
  return y;
}

static void test_table(void **state) {
  const devices *all = *state;
  static const weft_type types[] = {WEFT_TYPE_F32, WEFT_TYPE_BF16, WEFT_TYPE_Q8_0, WEFT_TYPE_Q4_0};
  buffer ids = buffer_new(N_IDS * sizeof(int32_t));
  for (uint32_t i = 0; i < N_IDS; i++) ((int32_t *)ids.data)[i] = (int32_t)(random_bits(5, i) % TABLE_ROWS);
  for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
    uint8_t *bytes = new_table_bytes(types[t]);
    for (uint32_t d = 0; d <= all->n; d++) {
      buffer plain = look_up(device_of(all, d), types[t], bytes, WEFT_USE_EMBED, &ids);
      buffer table = look_up(device_of(all, d), types[t], bytes, WEFT_USE_EMBED | WEFT_USE_TABLE, &ids);
      assert_memory_equal(plain.data, table.data, N_IDS * TABLE_DIM * sizeof(float));
      buffer_free(&plain), buffer_free(&table);
    }
    memory_free(bytes);
  }
  buffer_free(&ids);
}

/* ---- refusals ---- */

static void test_refusals(void **state) {
  const devices *all = *state;
  memory m;
  blocks b;
  float *x = new_floats(64, 1);
  open_memory(&m);
  open_blocks(&b, WEFT_TYPE_F32, 7);
  const weft_latent_segment segment = segment_of(0, POSITIONS, m.table);
  weft_engram_rows_args rows = rows_args(&m, m.token, m.ids, &segment), wrong = rows;
  wrong.n_grams = 1;
  assert_int_equal(weft_engram_rows(all->ref, &wrong), WEFT_E_INVALID);
  wrong = rows, wrong.n_heads = WEFT_ENGRAM_HEADS_MAX + 1;
  assert_int_equal(weft_engram_rows(all->ref, &wrong), WEFT_E_INVALID);
  wrong = rows, wrong.past.width = 2;
  assert_int_equal(weft_engram_rows(all->ref, &wrong), WEFT_E_INVALID);
  wrong = rows, wrong.map = NULL;
  assert_int_equal(weft_engram_rows(all->ref, &wrong), WEFT_E_INVALID);
  m.token[3] = TOKENS;
  assert_int_equal(weft_engram_rows(all->ref, &rows), WEFT_E_INVALID);
  const weft_engram_add_args add = {
      .x = x, .read = x, .weight = x, .n_rows = 2, .n_cols = 4, .n_streams = 2, .x_stride = 7};
  assert_int_equal(weft_engram_add(all->ref, &add), WEFT_E_INVALID);
  weft_mix_args mix = {.x = x, .y = x, .n_rows = 1, .n_cols = 4, .n_streams = 2, .x_stride = 8, .y_stride = 4};
  assert_int_equal(weft_mix(all->ref, &mix), WEFT_E_INVALID); /* neither mixes nor a carry */
  b.args.n_blocks = 1;
  assert_int_equal(weft_latent_choose(all->ref, &b.args), WEFT_E_INVALID);
  b.args.n_blocks = BLOCKS, b.args.blocks = NULL;
  assert_int_equal(weft_latent_choose(all->ref, &b.args), WEFT_E_INVALID);
  close_memory(&m);
  buffer_free(&b.pool), buffer_free(&b.q), buffer_free(&b.weights), buffer_free(&b.ids), buffer_free(&b.blocks);
  memory_free(b.table);
  memory_free(x);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rows),          cmocka_unit_test(test_add),    cmocka_unit_test(test_carry),
      cmocka_unit_test(test_far_rows),      cmocka_unit_test(test_blocks), cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_plain_queries), cmocka_unit_test(test_table),  cmocka_unit_test(test_tables_between),
  };
  take_arguments(argc, argv);
  return cmocka_run_group_tests(tests, setup_devices, teardown_devices);
}
