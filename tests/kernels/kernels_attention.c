/* SPDX-License-Identifier: MIT */
/* attention: every mask, head size and block size on every cpu variant, against ref within a
 * tolerance and against itself (alone, chunked, other blocks, other threads) bit for bit.
 *
 * Pages begin full of NaN and only positions that some row sees are written; table entries of
 * blocks that no row sees are wild. So one read beyond a mask shows as NaN or as a crash. */
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/harness.h"
#include "tests/kernels/weights.h"

/* A case laid out: keys and values of every segment, in pages of the wanted block size. */
typedef struct layout {
  const attention_case *of;
  uint32_t block, n_segments, n_rows, n_shorter; /* n_shorter: positions by which test_graphs shortens segments */
  weft_attention_segment segment[SEGMENTS_MAX];
  buffer q, pages, own_k, own_v, table[SEGMENTS_MAX], sinks;
  weft_attention_args args;
} layout;

enum { PAD = 24 /* elements between rows */ };

/* Calls of test_graphs with nothing between them, so that where a device lets a kernel begin early, each begins in the
 * one before; lengths of a segment, each shorter by one. */
enum { CHAIN = 4, LENGTHS = 5, GRAPH_KEY = 1 };

/* The stored key (value) `position` of a segment: a function of its name alone, not of the layout. */
static void write_vector(const attention_case *c, uint32_t segment, uint32_t head, uint32_t position, bool is_value,
                         void *to) {
  float x[WEFT_HEAD_DIM_MAX];
  uint64_t seed = 77 + segment * 2 + (is_value ? 1 : 0);
  fill_normal(x, c->dim, seed ^ ((uint64_t)position << 20) ^ ((uint64_t)head << 56));
  weft_kv_row_store(c->type, x, c->dim, to);
}

static uint32_t first_seen(const attention_case *c, const segment_case *segment) {
  if (c->window == 0 || segment->kv_len + 1 <= c->window) return 0;
  return segment->kv_len + 1 - c->window;
}

static void lay_out_segment(layout *l, uint32_t s, uint32_t *next_page) {
  const attention_case *c = l->of;
  const segment_case *segment = &c->segment[s];
  uint64_t size = weft_kv_row_bytes(c->type, c->dim);
  uint32_t n_keys = segment->kv_len + (in_scratch(segment) ? 0 : segment->n_rows);
  uint32_t n_blocks = n_keys / l->block + 1, first = first_seen(c, segment);
  first -= first < l->n_shorter ? first : l->n_shorter; /* a shorter segment's window begins earlier */
  l->table[s] = buffer_new(n_blocks * sizeof(uint32_t));
  uint32_t *table = l->table[s].data;
  for (uint32_t position = first; position < n_keys; position++) {
    uint32_t *page = &table[position / l->block];
    if (*page == UINT32_MAX) *page = (*next_page)--;
    for (uint32_t head = 0; head < c->n_kv_heads; head++) {
      uint8_t *at = (uint8_t *)l->pages.data + *page * l->args.kv.page_bytes +
                    ((uint64_t)head * l->block + position % l->block) * size;
      write_vector(c, s, head, position, false, at + l->args.kv.k_offset);
      write_vector(c, s, head, position, true, at + l->args.kv.v_offset);
    }
  }
  for (uint32_t i = 0; in_scratch(segment) && i < segment->n_rows; i++) {
    for (uint32_t head = 0; head < c->n_kv_heads; head++) {
      uint64_t at = ((uint64_t)(l->segment[s].first_row + i) * c->n_kv_heads + head) * size;
      write_vector(c, s, head, n_keys + i, false, (uint8_t *)l->own_k.data + at);
      write_vector(c, s, head, n_keys + i, true, (uint8_t *)l->own_v.data + at);
    }
  }
}

static void lay_out_view(layout *l, uint32_t n_pages) {
  const attention_case *c = l->of;
  uint64_t plane = (uint64_t)c->n_kv_heads * l->block * weft_kv_row_bytes(c->type, c->dim);
  l->args.kv = (weft_kv_view){
      .type = c->type,
      .page_bytes = 2 * plane + 192,
      .k_offset = 64,
      .v_offset = plane + 128,
      .block_tokens = l->block,
      .n_kv_heads = c->n_kv_heads,
      .head_dim = c->dim,
  };
  l->pages = buffer_new(n_pages * l->args.kv.page_bytes);
  l->args.kv.base = l->pages.data;
}

static void lay_out_for(const attention_case *c, uint32_t block, uint32_t n_shorter, layout *l) {
  *l = (layout){.of = c, .block = block, .n_shorter = n_shorter};
  uint32_t n_pages = 0;
  for (uint32_t s = 0; s < SEGMENTS_MAX && c->segment[s].n_rows > 0; s++) {
    const segment_case *segment = &c->segment[s];
    l->segment[s] = (weft_attention_segment){.first_row = l->n_rows,
                                             .n_rows = segment->n_rows,
                                             .kv_len = segment->kv_len,
                                             .mask = is_whole(segment) ? WEFT_MASK_WHOLE : WEFT_MASK_CAUSAL,
                                             .stores = in_scratch(segment) ? WEFT_STORES_SCRATCH : WEFT_STORES_POOL,
                                             .n_old = s % 2 == 0 ? segment->kv_len : 0};
    l->n_rows += segment->n_rows;
    l->n_segments += 1;
    n_pages += (segment->kv_len + segment->n_rows) / block + 1;
  }
  uint64_t cols = (uint64_t)c->n_heads * c->dim, stride = cols + PAD;
  uint64_t own_bytes = (uint64_t)l->n_rows * c->n_kv_heads * weft_kv_row_bytes(c->type, c->dim);
  l->q = buffer_new(l->n_rows * stride * sizeof(float));
  for (uint64_t r = 0; r < l->n_rows; r++) fill_normal((float *)l->q.data + r * stride, cols, 1000 + r);
  l->own_k = buffer_new(own_bytes);
  l->own_v = buffer_new(own_bytes);
  lay_out_view(l, n_pages);
  uint32_t next_page = n_pages - 1;
  for (uint32_t s = 0; s < l->n_segments; s++) {
    lay_out_segment(l, s, &next_page);
    l->segment[s].table = l->table[s].data;
  }
  /* From a sink that no score comes near to one that leaves next to nothing of the values. */
  l->sinks = buffer_new(c->n_heads * sizeof(float));
  fill_normal(l->sinks.data, c->n_heads, 77);
  for (uint32_t h = 0; h < c->n_heads; h++) ((float *)l->sinks.data)[h] *= h % 4 == 3 ? 12.0f : 2.0f;
  l->args.sinks = c->sinks ? l->sinks.data : NULL;
  l->args.q = l->q.data;
  l->args.own_k = l->own_k.data;
  l->args.own_v = l->own_v.data;
  l->args.segment = l->segment;
  l->args.n_segments = l->n_segments;
  l->args.n_rows = l->n_rows;
  l->args.n_heads = c->n_heads;
  l->args.window = c->window;
  l->args.scale = c->scale != 0.0f ? c->scale : 1.0f / sqrtf((float)c->dim);
  l->args.q_stride = stride;
  l->args.out_stride = stride;
}

static void lay_out(const attention_case *c, uint32_t block, layout *l) {
  lay_out_for(c, block, 0, l);
}

static void lay_out_free(layout *l) {
  buffer_free(&l->q);
  buffer_free(&l->pages);
  buffer_free(&l->own_k);
  buffer_free(&l->own_v);
  buffer_free(&l->sinks);
  for (uint32_t s = 0; s < l->n_segments; s++) buffer_free(&l->table[s]);
}

static buffer run(weft_device *device, const layout *l, const weft_attention_segment *segment, uint32_t n_segments) {
  weft_attention_args args = l->args;
  buffer out = buffer_new(l->q.n_bytes);
  args.segment = segment;
  args.n_segments = n_segments;
  args.out = out.data;
  RUN_OP(attention, device, &args);
  return out;
}

/* A score is a sum of dim products; its error is about the root of the number of roundings in a row
 * (at most dim / 4 + 2, in the narrowest lanes) times 2^-24 of the typical partial sum, which is
 * scale * sqrt(dim). A weight errs relatively by what its score errs absolutely, and an output of
 * values of size about 1 by as much; sums over 256 keys, exponentials and merges add some roundings
 * of their own. The 4 is headroom: a quarter of this is the most that was measured. */
static double tolerance(const layout *l) {
  double dim = (double)l->of->dim;
  return 4.0 * 0x1p-24 * (4.0 + (double)l->args.scale * sqrt(dim) * sqrt(dim / 4.0 + 2.0));
}

/* Fewest keys that a row of the case sees. */
static double fewest_keys(const attention_case *c) {
  uint32_t fewest = UINT32_MAX;
  for (uint32_t s = 0; s < SEGMENTS_MAX && c->segment[s].n_rows > 0; s++) {
    const segment_case *segment = &c->segment[s];
    uint32_t n = segment->kv_len - first_seen(c, segment);
    n += is_whole(segment) ? segment->n_rows : 1;
    if (n < fewest) fewest = n;
  }
  return (double)fewest;
}

/* cuda multiplies keys and values of bf16, or of 8 bits rounded to bf16, with queries and weights that are rounded to
 * bf16 too: a score errs by about 2^-9 of scale * sqrt(dim), a weight by that and by 2^-9 of itself; both errors have
 * random signs, so they average over the keys, of which softmax makes few count: a quarter, or, where scores are wide,
 * a single one. The 8 is for the largest of many. */
static double tolerance_on(const layout *l, const weft_device *device) {
  uint32_t dim = l->of->dim;
  bool fast = dim == 64 || dim == 128 || dim == 256 || dim == 512;
  if (!is_cuda(device) || l->of->type == WEFT_TYPE_F32 || !fast) return tolerance(l);
  double wide = (double)l->args.scale * sqrt((double)dim), per_key = 8.0 * 0x1p-9 * (1.0 + wide);
  return per_key / (wide > 2.0 ? 1.0 : sqrt(fmax(1.0, fewest_keys(l->of) / 4.0)));
}

/* The large cases, most of which are there for kernels of a card. */
static bool is_large(uint32_t i) {
  enum { LARGE = 2 << 20 }; /* of products of queries and keys */
  const attention_case *c = &cases[i];
  uint64_t n_pairs = 0;
  for (uint32_t s = 0; s < SEGMENTS_MAX && c->segment[s].n_rows > 0; s++)
    n_pairs +=
        (uint64_t)c->segment[s].n_rows * (c->segment[s].kv_len - first_seen(c, &c->segment[s]) + c->segment[s].n_rows);
  return n_pairs * c->n_heads * c->dim > LARGE;
}

/* Whether a case is left to the other amounts: of large ones a sanitizer sees every fourth in the quick amount, which
 * has each of three instruction sets in its turn. */
static bool is_left_out(uint32_t i) {
  return quick && touches_are_seen && i % 4 != 0 && is_large(i);
}

/* Whether the bits of a case are another instruction set's of the cpu, outside of the nightly amount. */
static bool is_elsewhere(const devices *all, uint32_t d, uint32_t i) {
  return test_amount(1, 1, 0) != 0 && d < all->n_cpu && (i + d) % all->n_cpu != 0;
}

static void test_parity(void **state) {
  const devices *all = *state;
  double used[DEVICES_MAX] = {0};
  for (uint32_t i = case_first; i < N_CASES; i += case_step) {
    if (is_left_out(i)) continue;
    layout l;
    lay_out(&cases[i], cases[i].block, &l);
    buffer ref = run(all->ref, &l, l.segment, l.n_segments);
    for (uint32_t d = 0; d < all->n; d++) {
      if (is_out_of_turn(all, d, i)) continue;
      buffer out = run(all->cpu[d], &l, l.segment, l.n_segments);
      uint64_t cols = (uint64_t)l.of->n_heads * l.of->dim;
      double worst = distance(ref.data, out.data, l.n_rows, cols, l.args.q_stride);
      assert_within(l.of->name, all->name[d], worst, tolerance_on(&l, all->cpu[d]));
      used[d] = fmax(used[d], worst / tolerance_on(&l, all->cpu[d]));
      buffer_free(&out);
    }
    buffer_free(&ref);
    lay_out_free(&l);
  }
  for (uint32_t d = 0; d < all->n; d++) {
    print_message("attention on %s: at most %.0f%% of the tolerance\n", all->name[d], 100 * used[d]);
  }
}

/* Rows [first, first + n) of two outputs, padding included (it must still be NaN). */
static void same_rows(const layout *l, const char *device, const char *what, const buffer *a, const buffer *b,
                      uint32_t first, uint32_t n) {
  uint64_t row = l->args.q_stride;
  assert_same(l->of->name, device, what, (const float *)a->data + first * row, (const float *)b->data + first * row,
              n * row * sizeof(float));
}

static void check_alone(weft_device *device, const char *name, const layout *l, const buffer *whole) {
  for (uint32_t s = 0; s < l->n_segments; s++) {
    buffer out = run(device, l, &l->segment[s], 1);
    same_rows(l, name, "a segment alone", whole, &out, l->segment[s].first_row, l->segment[s].n_rows);
    buffer_free(&out);
    if (l->of->segment[s].kind != CAUSAL) continue;
    uint32_t step = quick ? 13 : l->segment[s].n_rows > 8 ? 7 : 1;
    for (uint32_t i = 0; i < l->segment[s].n_rows; i += step) {
      weft_attention_segment one = l->segment[s];
      one.first_row += i;
      one.kv_len += i;
      one.n_rows = 1;
      one.n_old = i % 2 == 0 ? one.kv_len : one.n_old / 2; /* all were stored long ago */
      out = run(device, l, &one, 1);
      same_rows(l, name, "a row alone", whole, &out, one.first_row, 1);
      buffer_free(&out);
    }
  }
}

static void check_chunked(weft_device *device, const char *name, const layout *l, const buffer *whole) {
  for (uint32_t s = 0; s < l->n_segments; s++) {
    weft_attention_segment part[3] = {l->segment[s], l->segment[s], l->segment[s]};
    uint32_t n_rows = l->segment[s].n_rows, n_first = n_rows / 3, n_second = n_rows / 2;
    if (l->of->segment[s].kind != CAUSAL || n_first == 0 || n_second <= n_first) continue;
    part[0].n_rows = n_first;
    part[1].first_row += n_first;
    part[1].kv_len += n_first;
    part[1].n_rows = n_second - n_first;
    part[2].first_row += n_second;
    part[2].kv_len += n_second;
    part[2].n_rows = n_rows - n_second;
    buffer out = run(device, l, part, 3);
    same_rows(l, name, "a chunked segment", whole, &out, l->segment[s].first_row, n_rows);
    buffer_free(&out);
  }
}

/* The case in other blocks, which are laid out once for all devices. */
enum { BLOCKS = 4 };
typedef struct other_blocks {
  layout with[BLOCKS];
  bool has[BLOCKS];
} other_blocks;

static other_blocks *lay_out_blocks(const attention_case *c) {
  static const uint32_t blocks[BLOCKS] = {1, 8, 64, 256};
  other_blocks *others = memory_new(1, sizeof *others);
  for (uint32_t i = 0; i < BLOCKS; i++) {
    others->has[i] = !quick || i == (uint32_t)(c - cases) % BLOCKS; /* quick: the next case has the next of them */
    if (others->has[i]) lay_out(c, blocks[i], &others->with[i]);
  }
  return others;
}

static void other_blocks_free(other_blocks *others) {
  for (uint32_t i = 0; i < BLOCKS; i++)
    if (others->has[i]) lay_out_free(&others->with[i]);
  memory_free(others);
}

static void check_blocks(weft_device *device, const char *name, const other_blocks *others, const buffer *whole) {
  for (uint32_t i = 0; i < BLOCKS; i++) {
    const layout *other = &others->with[i];
    if (!others->has[i]) continue;
    buffer out = run(device, other, other->segment, other->n_segments);
    same_rows(other, name, "another block size", whole, &out, 0, other->n_rows);
    buffer_free(&out);
  }
}

static void test_bits(void **state) {
  const devices *all = *state;
  for (uint32_t i = case_first; i < N_CASES; i += case_step) {
    layout l;
    if (quick && touches_are_seen && (i % 2 == 0 || is_large(i))) continue; /* parity has the even ones */
    lay_out(&cases[i], cases[i].block, &l);
    other_blocks *others = lay_out_blocks(&cases[i]);
    for (uint32_t d = 0; d < all->n; d++) {
      if (quick && touches_are_seen ? is_out_of_turn(all, d, i / 2 + 1) : is_elsewhere(all, d, i)) continue;
      buffer whole = run(all->cpu[d], &l, l.segment, l.n_segments);
      if (d < all->n_cpu) {
        weft_device *alone = open_cpu(all->name[d], 1);
        buffer out = run(alone, &l, l.segment, l.n_segments);
        same_rows(&l, all->name[d], "one thread", &whole, &out, 0, l.n_rows);
        buffer_free(&out);
        weft_device_close(alone);
      }
      check_alone(all->cpu[d], all->name[d], &l, &whole);
      check_chunked(all->cpu[d], all->name[d], &l, &whole);
      check_blocks(all->cpu[d], all->name[d], others, &whole);
      buffer_free(&whole);
    }
    other_blocks_free(others);
    lay_out_free(&l);
  }
}

static weft_status enqueue_chain(weft_device *device, const layout *l, const weft_attention_segment *segment,
                                 const buffer *scratch, const buffer *out) {
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < CHAIN && status == WEFT_OK; i++) {
    weft_attention_args args = l->args;
    args.segment = segment;
    args.out = out[i].data;
    args.scratch = scratch->data;
    args.scratch_bytes = scratch->n_bytes;
    status = weft_attention(device, &args);
  }
  return status;
}

/* The case's segments, on top of fewer keys where they have enough. */
static void shorten(const layout *l, uint32_t by, weft_attention_segment *segment) {
  for (uint32_t s = 0; s < l->n_segments; s++) {
    segment[s] = l->segment[s];
    if (segment[s].kv_len >= 64) segment[s].kv_len -= by;
    if (segment[s].n_old > segment[s].kv_len) segment[s].n_old = segment[s].kv_len;
  }
}

/* A step that comes again with other lengths: call by call, recorded as a graph, launched again. Lengths end where they
 * began, and a graph that was made for one of them is launched for the others. */
static void check_graph(weft_device *device, const char *name, const layout *l) {
  weft_attention_segment segment[SEGMENTS_MAX];
  uint64_t scratch_bytes = 64;
  for (uint32_t by = 0; by < LENGTHS; by++) {
    weft_attention_args args = l->args;
    shorten(l, by, segment);
    args.segment = segment;
    uint64_t n = weft_attention_scratch(device, &args);
    scratch_bytes = n > scratch_bytes ? n : scratch_bytes;
  }
  buffer scratch = buffer_new(scratch_bytes), out[CHAIN];
  for (uint32_t i = 0; i < CHAIN; i++) out[i] = buffer_new(l->q.n_bytes);
  for (uint32_t turn = 0; turn < 2 * LENGTHS; turn++) {
    shorten(l, turn % LENGTHS, segment);
    buffer wanted = run(device, l, segment, l->n_segments);
    for (uint32_t i = 0; i < CHAIN; i++) memset(out[i].data, 0xFF, out[i].n_bytes);
    weft_status status;
    weft_device_graph_begin(device, GRAPH_KEY, NULL);
    do status = enqueue_chain(device, l, segment, &scratch, out);
    while (weft_device_graph_end(device, &status));
    assert_int_equal(done(device, status), WEFT_OK);
    for (uint32_t i = 0; i < CHAIN; i++) {
      same_rows(l, name, "a step as a graph", &wanted, &out[i], 0, l->n_rows);
    }
    buffer_free(&wanted);
  }
  for (uint32_t i = 0; i < CHAIN; i++) buffer_free(&out[i]);
  buffer_free(&scratch);
}

/* Devices without graphs compute the same calls: one case in nine that is not large, on one of them, shows that the
 * test's lengths are right. */
static void test_graphs(void **state) {
  const devices *all = *state;
  for (uint32_t i = case_first; i < N_CASES; i += case_step) {
    const bool is_shown = i % 9 == 0 && !is_large(i);
    layout l;
    if (!is_shown && all->n == all->n_cpu) continue; /* no card */
    lay_out_for(&cases[i], cases[i].block, LENGTHS - 1, &l);
    for (uint32_t d = 0; d < all->n; d++) {
      const bool shows = is_shown && i / 9 % all->n_cpu == d;
      if (weft_device_get_info(all->cpu[d])->graphs || shows) check_graph(all->cpu[d], all->name[d], &l);
    }
    lay_out_free(&l);
  }
}

/* ref is slow: the small cases only. */
static void test_bits_of_ref(void **state) {
  const devices *all = *state;
  for (uint32_t i = case_first; i < N_CASES; i += case_step) {
    layout l;
    if (quick && touches_are_seen && i % 3 != 0) continue;
    lay_out(&cases[i], cases[i].block, &l);
    if ((uint64_t)l.n_rows * l.of->n_heads * l.of->dim <= 4096) {
      buffer whole = run(all->ref, &l, l.segment, l.n_segments);
      check_alone(all->ref, "ref", &l, &whole);
      check_chunked(all->ref, "ref", &l, &whole);
      other_blocks *others = lay_out_blocks(&cases[i]);
      check_blocks(all->ref, "ref", others, &whole);
      other_blocks_free(others);
      buffer_free(&whole);
    }
    lay_out_free(&l);
  }
}

/* Rows, pages and table entries whose byte offsets pass 2^32: address space on a host, memory on a card. */
enum { HUGE_ROWS = 3, HUGE_DIM = 16, HUGE_BLOCK = 4 };
static const uint64_t huge_stride = (1ull << 31) + 8, huge_page = (1ull << 32) + 64, huge_values = 1ull << 31;

typedef struct huge {
  weft_device *device; /* NULL: a host's */
  float *q, *out;
  uint8_t *pages;
} huge;

static void *huge_take(weft_device *device, size_t n_bytes) {
  void *memory = NULL;
  if (device == NULL) return huge_new(n_bytes);
  return weft_device_alloc(device, n_bytes, &memory) == WEFT_OK ? memory : NULL;
}

static void huge_give(weft_device *device, void *memory, size_t n_bytes) {
  if (device == NULL)
    huge_free(memory, n_bytes);
  else
    weft_device_free(device, memory);
}

static void huge_put(weft_device *device, void *to, const float *from, size_t n) {
  if (device == NULL)
    memcpy(to, from, n * sizeof *from);
  else
    assert_int_equal(weft_device_upload(device, to, from, n * sizeof *from), WEFT_OK);
}

static void fill_huge(const huge *h) {
  float x[HUGE_BLOCK * HUGE_DIM];
  for (uint64_t r = 0; r < HUGE_ROWS; r++) {
    fill_normal(x, HUGE_DIM, r);
    huge_put(h->device, h->q + r * huge_stride, x, HUGE_DIM);
  }
  for (uint64_t page = 0; page < 2; page++) {
    fill_normal(x, HUGE_BLOCK * HUGE_DIM, 10 + page);
    huge_put(h->device, h->pages + page * huge_page, x, HUGE_BLOCK * HUGE_DIM);
    fill_normal(x, HUGE_BLOCK * HUGE_DIM, 20 + page);
    huge_put(h->device, h->pages + page * huge_page + huge_values, x, HUGE_BLOCK * HUGE_DIM);
  }
}

static void run_huge(weft_device *device, const huge *h, float out[HUGE_ROWS][HUGE_DIM]) {
  buffer table = buffer_new(2 * sizeof(uint32_t));
  ((uint32_t *)table.data)[0] = 1;
  ((uint32_t *)table.data)[1] = 0;
  weft_attention_segment segment = {.n_rows = HUGE_ROWS, .kv_len = 3, .table = table.data};
  weft_attention_args args = {.q = h->q, .out = h->out, .segment = &segment, .n_segments = 1, .n_rows = HUGE_ROWS};
  args.kv = (weft_kv_view){.base = h->pages,
                           .type = WEFT_TYPE_F32,
                           .page_bytes = huge_page,
                           .v_offset = huge_values,
                           .block_tokens = HUGE_BLOCK,
                           .n_kv_heads = 1,
                           .head_dim = HUGE_DIM};
  args.n_heads = 1;
  args.scale = 0.25f;
  args.q_stride = args.out_stride = huge_stride;
  RUN_OP(attention, device, &args);
  for (uint64_t r = 0; r < HUGE_ROWS; r++) {
    assert_int_equal(weft_device_download(device, out[r], h->out + r * huge_stride, sizeof out[r]), WEFT_OK);
  }
  buffer_free(&table);
}

static void test_huge_strides(void **state) {
  const devices *all = *state;
  const size_t rows_bytes = HUGE_ROWS * huge_stride * sizeof(float), pages_bytes = 2 * huge_page;
  float ref[HUGE_ROWS][HUGE_DIM], out[HUGE_ROWS][HUGE_DIM];
  for (uint32_t d = 0; d <= all->n; d++) {
    weft_device *device = d == 0 ? all->ref : all->cpu[d - 1], *home = is_cuda(device) ? device : NULL;
    huge h = {home, huge_take(home, rows_bytes), huge_take(home, rows_bytes), huge_take(home, pages_bytes)};
    if (h.q == NULL || h.out == NULL || h.pages == NULL)
      fail_msg("%zu bytes are refused", 2 * rows_bytes + pages_bytes);
    fill_huge(&h);
    run_huge(device, &h, d == 0 ? ref : out);
    for (uint64_t r = 0; r < HUGE_ROWS && d > 0; r++) {
      assert_within("huge strides", all->name[d - 1], distance(ref[r], out[r], 1, HUGE_DIM, 0), 1e-5);
    }
    huge_give(home, h.q, rows_bytes);
    huge_give(home, h.out, rows_bytes);
    huge_give(home, h.pages, pages_bytes);
  }
}

static void refused(const devices *all, const layout *l, weft_attention_args args, weft_status status) {
  buffer out = buffer_new(l->q.n_bytes), scratch = buffer_new(1 << 20);
  if (args.out == NULL) args.out = out.data;
  args.scratch = scratch.data;
  if (args.scratch_bytes == 0) args.scratch_bytes = scratch.n_bytes;
  assert_int_equal(weft_attention(all->ref, &args), status);
  buffer_free(&out);
  buffer_free(&scratch);
}

static void test_refusals(void **state) {
  const devices *all = *state;
  layout l;
  lay_out(&cases[1], 16, &l);
  weft_attention_segment segment = l.segment[0];
  weft_attention_args good = l.args, bad = good;
  refused(all, &l, good, WEFT_OK);
  bad.kv.head_dim = 12;
  refused(all, &l, bad, WEFT_E_INVALID);
  bad = good;
  bad.kv.block_tokens = 48;
  refused(all, &l, bad, WEFT_E_INVALID);
  bad = good;
  bad.kv.page_bytes = 64;
  refused(all, &l, bad, WEFT_E_INVALID);
  bad = good;
  bad.kv.type = WEFT_TYPE_Q4_K;
  refused(all, &l, bad, WEFT_E_UNSUPPORTED);
  bad = good;
  bad.kv.n_kv_heads = 3;
  refused(all, &l, bad, WEFT_E_INVALID);
  bad = good;
  bad.q_stride = 1;
  refused(all, &l, bad, WEFT_E_INVALID);
  bad = good;
  bad.scratch_bytes = 8;
  refused(all, &l, bad, WEFT_E_INVALID);
  bad = good;
  bad.segment = &segment;
  segment.n_rows = l.n_rows + 1;
  refused(all, &l, bad, WEFT_E_INVALID);
  segment = l.segment[0];
  segment.kv_len = UINT32_MAX;
  refused(all, &l, bad, WEFT_E_INVALID);
  segment = l.segment[0];
  segment.table = NULL;
  refused(all, &l, bad, WEFT_E_INVALID);
  segment = l.segment[0];
  segment.mask = 2;
  refused(all, &l, bad, WEFT_E_INVALID);
  segment = l.segment[0];
  segment.stores = 2;
  refused(all, &l, bad, WEFT_E_INVALID);
  segment.stores = WEFT_STORES_SCRATCH;
  refused(all, &l, bad, WEFT_OK);
  bad.own_k = bad.own_v = NULL; /* scratch that is nowhere */
  refused(all, &l, bad, WEFT_E_INVALID);
  lay_out_free(&l);
}

/* Calls of many queries alone, whose results a kernel prepares, and others. */
static const attention_case prepared_cases[] = {
    {"prepared, 256", 4, 2, 256, 16, 0, WEFT_TYPE_BF16, 1.0f, false, {{40, 0, CAUSAL}, {30, 1100, CAUSAL}}},
    {"prepared, window", 4, 2, 256, 16, 64, WEFT_TYPE_BF16, 1.0f, false, {{130, 2000, CAUSAL}}},
    {"prepared, 512", 4, 1, 512, 16, 0, WEFT_TYPE_BF16, 1.0f, false, {{30, 1500, CAUSAL}}},
    {"prepared, canvas", 4, 2, 256, 16, 0, WEFT_TYPE_BF16, 1.0f, false, {{64, 2100, CANVAS}}},
    {"prepared, beside decode", 4, 2, 256, 16, 0, WEFT_TYPE_BF16, 1.0f, false, {{40, 10, CAUSAL}, {1, 300, CAUSAL}}},
    {"prepared, 128", 8, 2, 128, 16, 0, WEFT_TYPE_BF16, 1.0f, false, {{40, 10, CAUSAL}}},
    {"prepared, sinks", 4, 2, 64, 16, 0, WEFT_TYPE_BF16, 1.0f, true, {{40, 10, CAUSAL}, {30, 1100, CAUSAL}}},
    {"prepared, 8 bits", 4, 2, 256, 16, 0, WEFT_TYPE_Q8_0, 1.0f, false, {{40, 0, CAUSAL}, {30, 1100, CAUSAL}}},
    {"prepared, f32", 4, 2, 256, 16, 0, WEFT_TYPE_F32, 1.0f, false, {{20, 10, CAUSAL}}},
};

static void prepared_once(weft_device *device, const attention_case *c) {
  enum { N_OUT = 48 };
  layout l;
  lay_out(c, c->block, &l);
  uint32_t n_in = c->n_heads * c->dim;
  stored s = stored_new(WEFT_TYPE_Q4_K, 1, N_OUT, n_in, 5);
  weft_weight weight = upload(device, &s);
  stored_free(&s);
  weft_rows_form form = weft_device_rows_form(device, &weight, l.n_rows, WEFT_ROWS_FROM_ATTENTION);
  assert_int_not_equal(form, WEFT_ROWS_F32);
  assert_true(weft_device_rows_bytes(device, form, l.n_rows, n_in) <= sizeof(float) * l.n_rows * n_in);
  buffer out = buffer_new(l.q.n_bytes), prepared = buffer_new((size_t)l.n_rows * n_in * sizeof(float)), y[2];
  for (uint32_t way = 0; way < 2; way++) {
    weft_attention_args args = l.args;
    args.out = out.data;
    args.prepared = way == 0 ? NULL : prepared.data;
    args.prepared_form = way == 0 ? WEFT_ROWS_F32 : form;
    RUN_OP(attention, device, &args);
    y[way] = buffer_new((size_t)l.n_rows * N_OUT * sizeof(float));
    weft_matmul_args m = {.x = way == 0 ? out.data : prepared.data, .n_rows = l.n_rows, .n_weights = 1};
    m.x_form = way == 0 ? WEFT_ROWS_F32 : form;
    m.weight[0] = &weight, m.y[0] = y[way].data, m.y_stride[0] = N_OUT;
    m.x_stride = way == 0 ? l.args.out_stride : n_in;
    RUN_OP(matmul, device, &m);
  }
  assert_same(c->name, "cuda, 8 bits", "the product", y[1].data, y[0].data, y[0].n_bytes);
  buffer *const all[] = {&out, &prepared, &y[0], &y[1]};
  for (uint32_t i = 0; i < 4; i++) buffer_free(all[i]);
  weft_device_weight_free(device, &weight);
  lay_out_free(&l);
}

/* A product of results that attention left prepared has the bits of that of the results in f32. */
static void test_prepared(void **state) {
  (void)state;
  if (memory_home == NULL) return; /* only a card prepares rows */
  for (uint32_t way = 0; way < 2; way++) {
    const weft_device_config config = {.backend = "cuda", .isa = cuda_set, .products = 8, .integers = way == 1};
    weft_device *device = open_cuda_as(&config);
    if (device == NULL) continue; /* the set keeps no integers */
    for (uint32_t i = 0; i < sizeof prepared_cases / sizeof *prepared_cases; i++)
      prepared_once(device, &prepared_cases[i]);
    weft_device_close(device);
  }
}

int main(int argc, char **argv) {
  take_arguments(argc, argv);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_parity),       cmocka_unit_test(test_bits),     cmocka_unit_test(test_bits_of_ref),
      cmocka_unit_test(test_huge_strides), cmocka_unit_test(test_refusals), cmocka_unit_test(test_prepared),
      cmocka_unit_test(test_graphs),
  };
  return cmocka_run_group_tests_name("kernels/attention", tests, setup_devices, teardown_devices);
}
