/* SPDX-License-Identifier: MIT */
/* attention: which kernel, and how the queries of a call are cut into blocks.
 *
 * The cut (segments, items, merges) is made on the host from the segments alone and goes to the device's
 * plan memory; layers of one group ask for the same cut again and find it there. */
#include <string.h>

#include "kernels/cuda/attention.cuh"

enum { PART_FLOATS_MAX = 12 << 20, SPLIT_ITEMS_MAX = 16384 };

typedef struct attention_cut {
  bool tiled, split;
  uint32_t group, queries; /* of an item */
  uint32_t n_items, n_merges;
  uint64_t n_part_rows;
} attention_cut;

/* Chunks that queries [first, first + n) of a segment see: [*chunk, *end). */
static void chunks_of(const weft_attention_segment *s, uint32_t window, uint32_t group, uint32_t first,
                      uint32_t n, uint32_t *chunk, uint32_t *end) {
  uint32_t i0 = first / group, i1 = (first + n - 1) / group;
  uint32_t position = s->canvas ? s->kv_len : s->kv_len + i0;
  uint32_t low = window != 0 && position + 1 > window ? position + 1 - window : 0;
  uint32_t high = s->kv_len + (s->canvas ? s->n_rows : i1 + 1);
  *chunk = low / CHUNK;
  *end = (high - 1) / CHUNK + 1;
}

static uint32_t tile_size(uint32_t n_all, uint32_t first, uint32_t most) {
  return n_all - first < most ? n_all - first : most;
}

/* Counts items, and partial rows if every tile of more than one chunk is split. */
static attention_cut count_cut(const cuda_device *d, const weft_attention_args *args) {
  attention_cut cut;
  memset(&cut, 0, sizeof cut);
  cut.tiled = attention_tiled_fits(args);
  cut.group = args->n_heads / args->kv.n_kv_heads;
  cut.queries = cut.tiled ? attention_tiled_queries(args) : SIMPLE_QUERIES;
  uint64_t n_tiles = 0, n_split = 0;
  for (uint32_t s = 0; s < args->n_segments && args->segment != NULL; s++) {
    uint32_t n_all = args->segment[s].n_rows * cut.group, chunk, end;
    for (uint32_t first = 0; first < n_all; first += cut.queries, n_tiles++) {
      uint32_t n = tile_size(n_all, first, cut.queries);
      chunks_of(&args->segment[s], args->window, cut.group, first, n, &chunk, &end);
      n_split += end - chunk;
      if (end - chunk > 1) cut.n_merges += 1, cut.n_part_rows += (uint64_t)n * (end - chunk);
    }
  }
  /* Steps that differ little have one shape: void items and merges (n 0) and free partial rows fill it up. */
  if (cut.n_part_rows <= PART_FLOATS_MAX) cut.n_part_rows = weft_device_bucket((uint32_t)cut.n_part_rows);
  uint64_t n_floats = cut.n_part_rows * (args->kv.head_dim + 2) * args->kv.n_kv_heads;
  cut.split = cut.tiled && cut.n_merges > 0 && n_tiles * args->kv.n_kv_heads < d->n_multiprocessors &&
              n_split <= SPLIT_ITEMS_MAX && n_floats <= PART_FLOATS_MAX;
  cut.n_items = (uint32_t)(cut.split ? n_split : n_tiles);
  if (!cut.split) cut.n_merges = 0, cut.n_part_rows = 0;
  cut.n_items = weft_device_bucket(cut.n_items);
  cut.n_merges = weft_device_bucket(cut.n_merges);
  return cut;
}

uint64_t weft_cuda_attention_scratch(weft_device *device, const weft_attention_args *args) {
  if (args->segment == NULL) return attention_tiled_fits(args) ? 4ull * PART_FLOATS_MAX : 0;
  attention_cut cut = count_cut(cuda_of(device), args);
  return 4 * cut.n_part_rows * (args->kv.head_dim + 2) * args->kv.n_kv_heads;
}

static void fill_tile(const weft_attention_args *args, const attention_cut *cut, uint32_t s, uint32_t first,
                      uint32_t n, attention_item **item, attention_merge **merge, uint32_t *part) {
  uint32_t chunk, end;
  chunks_of(&args->segment[s], args->window, cut->group, first, n, &chunk, &end);
  if (!cut->split || end - chunk == 1) {
    *(*item)++ = {s, first, n, chunk, end, 0, 0};
    return;
  }
  uint32_t n_chunks = end - chunk;
  *(*merge)++ = {s, first, n, n_chunks, *part};
  for (uint32_t c = 0; c < n_chunks; c++) *(*item)++ = {s, first, n, chunk + c, chunk + c + 1, *part + c, n_chunks};
  *part += n * n_chunks;
}

/* The tables of a call, and what its kernels get. tiled: queries of an item, 0 for the simple kernel. */
static weft_status make_tables(cuda_device *d, const weft_attention_args *args, attention_kernel_args *k,
                               uint32_t *tiled) {
  attention_cut cut = count_cut(d, args);
  uint64_t segments_bytes = cuda_align((uint64_t)args->n_segments * sizeof *args->segment);
  uint64_t items_bytes = cuda_align((uint64_t)cut.n_items * sizeof(attention_item));
  uint64_t n_bytes = segments_bytes + items_bytes + (uint64_t)cut.n_merges * sizeof(attention_merge);
  uint8_t *plan = cuda_plan_begin(d, n_bytes);
  if (plan == NULL) return WEFT_E_TOO_LARGE;
  memset(plan, 0, n_bytes); /* bytes between fields too: plans are compared */
  weft_attention_segment *to = (weft_attention_segment *)(void *)plan;
  for (uint32_t s = 0; s < args->n_segments; s++) {
    to[s].first_row = args->segment[s].first_row;
    to[s].n_rows = args->segment[s].n_rows;
    to[s].kv_len = args->segment[s].kv_len;
    to[s].canvas = args->segment[s].canvas;
    to[s].table = args->segment[s].table;
  }
  attention_item *item = (attention_item *)(void *)(plan + segments_bytes);
  attention_merge *merge = (attention_merge *)(void *)(plan + segments_bytes + items_bytes);
  uint32_t part = 0;
  for (uint32_t s = 0; s < args->n_segments; s++) {
    uint32_t n_all = args->segment[s].n_rows * cut.group;
    for (uint32_t first = 0; first < n_all; first += cut.queries)
      fill_tile(args, &cut, s, first, tile_size(n_all, first, cut.queries), &item, &merge, &part);
  }
  const uint8_t *on_device = NULL;
  weft_status status = cuda_plan_end(d, n_bytes, &on_device);
  memset(k, 0, sizeof *k);
  k->op = *args;
  k->op.segment = (const weft_attention_segment *)(const void *)on_device;
  k->items = (const attention_item *)(const void *)(on_device + segments_bytes);
  k->merges = (const attention_merge *)(const void *)(on_device + segments_bytes + items_bytes);
  k->n_items = cut.n_items;
  k->n_merges = cut.n_merges;
  k->group = cut.group;
  k->per_group = ((1ull << 32) + cut.group - 1) / cut.group;
  k->wide = ((uintptr_t)args->q & 15u) == 0 && args->q_stride % 4 == 0;
  k->part = (float *)args->scratch;
  k->part_stride = cut.n_part_rows * (args->kv.head_dim + 2);
  *tiled = cut.tiled ? cut.queries : 0;
  const uint64_t shape[] = {k->n_items, k->n_merges, k->part_stride, *tiled};
  if (d->base.graphs != NULL) weft_graphs_note(d->base.graphs, UINT32_MAX, shape, sizeof shape);
  return status;
}

weft_status weft_cuda_attention_walk(weft_device *device, const weft_attention_args *args) {
  attention_kernel_args k;
  uint32_t tiled;
  if (args->n_segments == 0) return WEFT_OK;
  return make_tables(cuda_of(device), args, &k, &tiled);
}

weft_status weft_cuda_attention(weft_device *device, const weft_attention_args *args) {
  cuda_device *d = cuda_of(device);
  attention_kernel_args k;
  uint32_t tiled;
  if (d->lost) return WEFT_E_DEVICE;
  if (args->n_segments == 0) return WEFT_OK;
  weft_status status = make_tables(d, args, &k, &tiled);
  if (status != WEFT_OK) return status;
  return tiled > 0 ? attention_tiled(d, &k, tiled) : attention_simple(d, &k);
}

weft_status cuda_attention_setup(cuda_device *d) {
  return attention_tiled_setup(d);
}
