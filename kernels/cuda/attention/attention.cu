/* SPDX-License-Identifier: MIT */
/* attention: which kernels compute a call, and how its queries are cut into work items (split-KV for decode).
 *
 * The cut (segments, items, merges) is made on the host from the call's arguments alone, and is a plan (cuda.h): layers
 * of one group ask for the same cut again and find it on the device. */
#include <string.h>

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/rows_q8.cuh"
#include "kernels/cuda/gemm/w8a8.h"
#include "kernels/cuda/set.h"

/* RUN_QUERIES: of a segment that decode items may share, which are several then. */
enum { PART_FLOATS_MAX = 12 << 20, SPLIT_ITEMS_MAX = 16384, RUN_QUERIES = 4 * DECODE_QUERIES };

/* How many items of a call each kernel gets. Calls that is_fast have items for few and for many queries, all other
 * calls are for attention_fallback. */
typedef struct attention_cut {
  bool fast, split;     /* split: every chunk of a decode item is an item */
  bool stream;          /* decode items are for attention_decode_stream */
  uint32_t decode_most; /* queries of a segment that has decode items */
  uint32_t group, n_decode, n_flash, n_fallback, n_merges;
  uint32_t n_groups, turns;        /* of attention_flash */
  uint64_t n_part_rows, n_scratch; /* n_scratch: floats that decode items take behind the partial rows */
} attention_cut;

/* What attention_decode_cluster, attention_decode_stream and attention_flash can read; any other call is for
 * attention_fallback. */
static bool is_fast(const weft_attention_args *args) {
  const weft_kv_view *kv = &args->kv;
  uint64_t all = (uint64_t)(uintptr_t)kv->base | kv->page_bytes | kv->k_offset | kv->v_offset |
                 (uint64_t)(uintptr_t)args->own_k | (uint64_t)(uintptr_t)args->own_v;
  bool q8 = kv->type == WEFT_TYPE_Q8_0;
  bool wider = kv->head_dim == 128 || kv->head_dim == 256 || kv->head_dim == 512;
  bool known = kv->head_dim == 64 || (wider && args->sinks == NULL);
  bool in_pairs = ((uintptr_t)args->out & 7u) == 0 && args->out_stride % 2 == 0;
  return (q8 || kv->type == WEFT_TYPE_BF16) && known && all % (q8 ? q8_piece((int)kv->head_dim) : 16) == 0 &&
         in_pairs && args->scale > 0.0f;
}

/* Chunks that queries [first, first + n) of a segment see: [*chunk, *end). */
static void chunks_of(const weft_attention_segment *s, uint32_t window, uint32_t group, uint32_t first, uint32_t n,
                      uint32_t *chunk, uint32_t *end) {
  uint32_t i0 = first / group, i1 = (first + n - 1) / group;
  bool whole = s->mask != WEFT_MASK_CAUSAL;
  uint32_t position = whole ? s->kv_len : s->kv_len + i0;
  uint32_t low = window != 0 && position + 1 > window ? position + 1 - window : 0;
  uint32_t high = s->kv_len + (whole ? s->n_rows : i1 + 1);
  *chunk = low / CHUNK;
  *end = (high - 1) / CHUNK + 1;
}

static uint32_t tile_size(uint32_t n_all, uint32_t first, uint32_t most) {
  return n_all - first < most ? n_all - first : most;
}

/* Chooses large items for attention_flash where they fill the card, if need be with blocks that take chunks in turns;
 * otherwise small ones. */
static void cut_flash(const cuda_device *d, const weft_attention_args *args, uint32_t n_large, uint32_t n_small,
                      uint32_t most_chunks, attention_cut *cut) {
  uint64_t across = (uint64_t)args->kv.n_kv_heads * attention_slices(args->kv.head_dim);
  uint32_t turns_max = most_chunks < d->set->flash_turns ? most_chunks : d->set->flash_turns;
  cut->n_groups = d->set->flash_groups > 1 && n_large * across * turns_max >= d->n_multiprocessors ? 2 : 1;
  cut->n_flash = cut->n_groups == 2 ? n_large : n_small;
  uint64_t turns = cut->n_flash > 0 ? d->n_multiprocessors / (cut->n_flash * across) : 1;
  cut->turns = turns > turns_max ? turns_max : turns > 1 ? (uint32_t)turns : 1;
}

/* A decode item has whole rows. */
static uint32_t decode_size(const attention_cut *cut) {
  return DECODE_QUERIES / cut->group * cut->group;
}

/* A run of a few rows over keys that few heads share has more queries than a decode item. It has several of them where
 * the card computes all decode items at once: attention_flash would have fewer blocks than there are multiprocessors,
 * each with all keys. */
static uint32_t most_of_decode(const cuda_device *d, const weft_attention_args *args, const attention_cut *cut) {
  uint64_t n_items = 0;
  bool wide = false;
  if (!cut->fast || args->segment == NULL || cut->group > DECODE_QUERIES) return DECODE_QUERIES;
  for (uint32_t s = 0; s < args->n_segments; s++) {
    uint32_t n = args->segment[s].n_rows * cut->group;
    if (n > RUN_QUERIES) continue;
    n_items += cuda_ceil(n, decode_size(cut));
    wide = wide || n > DECODE_QUERIES;
  }
  bool fits = n_items * args->kv.n_kv_heads <= attention_decode_cluster_room(d, args->kv.head_dim);
  return wide && fits ? (uint32_t)RUN_QUERIES : (uint32_t)DECODE_QUERIES;
}

static void count_decode(const weft_attention_args *args, uint32_t s, attention_cut *cut, uint64_t *n_split) {
  uint32_t chunk, end, n_all = args->segment[s].n_rows * cut->group, size = decode_size(cut);
  for (uint32_t first = 0; first < n_all; first += size) {
    uint32_t n = tile_size(n_all, first, size);
    chunks_of(&args->segment[s], args->window, cut->group, first, n, &chunk, &end);
    cut->n_decode += 1, *n_split += end - chunk;
    if (end - chunk > 1) cut->n_merges += 1, cut->n_part_rows += (uint64_t)n * (end - chunk);
  }
}

/* Counts items, and partial rows if every decode item of more than one chunk is split. */
static attention_cut count_cut(const cuda_device *d, const weft_attention_args *args) {
  attention_cut cut;
  memset(&cut, 0, sizeof cut);
  cut.fast = is_fast(args);
  cut.group = args->n_heads / args->kv.n_kv_heads;
  cut.decode_most = most_of_decode(d, args, &cut);
  uint32_t n_large = 0, n_small = 0, most_chunks = 0, chunk, end;
  uint64_t n_split = 0;
  for (uint32_t s = 0; s < args->n_segments && args->segment != NULL; s++) {
    uint32_t n_all = args->segment[s].n_rows * cut.group;
    if (n_all == 0) continue;
    if (!cut.fast) {
      cut.n_fallback += cuda_ceil(n_all, FALLBACK_QUERIES);
    } else if (n_all <= cut.decode_most) {
      count_decode(args, s, &cut, &n_split);
    } else {
      n_large += cuda_ceil(n_all, 2 * FLASH_QUERIES), n_small += cuda_ceil(n_all, FLASH_QUERIES);
      for (uint32_t first = 0; first < n_all; first += FLASH_QUERIES) {
        chunks_of(&args->segment[s], args->window, cut.group, first, tile_size(n_all, first, FLASH_QUERIES), &chunk,
                  &end);
        if (end - chunk > most_chunks) most_chunks = end - chunk;
      }
    }
  }
  cut_flash(d, args, n_large, n_small, most_chunks, &cut);
  /* Steps that differ little have one shape: void items and merges (n 0) and free partial rows fill it up. */
  if (cut.n_part_rows <= PART_FLOATS_MAX) cut.n_part_rows = weft_device_bucket((uint32_t)cut.n_part_rows);
  uint64_t n_floats = cut.n_part_rows * (args->kv.head_dim + 2) * args->kv.n_kv_heads;
  uint64_t across = (uint64_t)args->kv.n_kv_heads * attention_slices(args->kv.head_dim),
           enough = d->n_multiprocessors / 2;
  cut.split =
      cut.n_merges > 0 && cut.n_decode * across < enough && n_split <= SPLIT_ITEMS_MAX && n_floats <= PART_FLOATS_MAX;
  uint64_t n_items = cut.split ? n_split : cut.n_decode;
  bool one_chunk = cut.split || cut.n_merges == 0;
  uint64_t many = d->set->decode_floats > 0 ? enough / 2 : enough; /* tiles of keys have more blocks to an item */
  cut.stream =
      n_items * across >= many || (d->set->decode_floats > 0 && (!one_chunk || args->kv.type == WEFT_TYPE_Q8_0)) ||
      n_items * args->kv.n_kv_heads > attention_decode_cluster_room(d, args->kv.head_dim); /* they would take turns */
  if (!cut.stream) cut.n_scratch = n_items * args->kv.n_kv_heads * d->set->decode_floats;
  if (cut.split)
    cut.n_decode = (uint32_t)n_split;
  else
    cut.n_merges = 0, cut.n_part_rows = 0;
  cut.n_decode = weft_device_bucket(cut.n_decode);
  cut.n_flash = weft_device_bucket(cut.n_flash);
  cut.n_fallback = weft_device_bucket(cut.n_fallback);
  cut.n_merges = weft_device_bucket(cut.n_merges);
  return cut;
}

uint64_t cuda_attention_scratch(weft_device *device, const weft_attention_args *args) {
  const cuda_device *d = cuda_of(device);
  uint64_t most = PART_FLOATS_MAX + (uint64_t)d->n_multiprocessors / 2 * d->set->decode_floats;
  if (args->segment == NULL) return is_fast(args) ? 4 * most : 0;
  attention_cut cut = count_cut(d, args);
  uint64_t n_part = cut.n_part_rows * (args->kv.head_dim + 2) * args->kv.n_kv_heads;
  return 4 * (cut.n_scratch > 0 ? (n_part + 3) / 4 * 4 + cut.n_scratch : n_part); /* scores are read in fours */
}

/* Where the tables of a call are made. */
typedef struct attention_tables {
  attention_item *decode, *flash, *fallback;
  attention_merge *merge;
  uint32_t part;
} attention_tables;

static void fill_decode(const weft_attention_args *args, const attention_cut *cut, uint32_t s, attention_tables *to) {
  uint32_t chunk, end, n_all = args->segment[s].n_rows * cut->group, size = decode_size(cut);
  for (uint32_t first = 0; first < n_all; first += size) {
    uint32_t n = tile_size(n_all, first, size);
    chunks_of(&args->segment[s], args->window, cut->group, first, n, &chunk, &end);
    uint32_t n_chunks = end - chunk;
    if (!cut->split || n_chunks == 1) {
      *to->decode++ = {s, first, n, chunk, end, 0, 0};
      continue;
    }
    *to->merge++ = {s, first, n, n_chunks, to->part};
    for (uint32_t c = 0; c < n_chunks; c++)
      *to->decode++ = {s, first, n, chunk + c, chunk + c + 1, to->part + c, n_chunks};
    to->part += n * n_chunks;
  }
}

/* Items of `queries` queries, the last ones first: in a causal segment they take longest. */
static attention_item *fill_items(const weft_attention_args *args, const attention_cut *cut, uint32_t s,
                                  uint32_t queries, attention_item *to) {
  uint32_t chunk, end, n_all = args->segment[s].n_rows * cut->group;
  for (uint32_t i = cuda_ceil(n_all, queries); i-- > 0;) {
    uint32_t n = tile_size(n_all, i * queries, queries);
    chunks_of(&args->segment[s], args->window, cut->group, i * queries, n, &chunk, &end);
    *to++ = {s, i * queries, n, chunk, end, 0, 0};
  }
  return to;
}

static void fill_tables(const weft_attention_args *args, const attention_cut *cut, attention_tables to) {
  for (uint32_t s = 0; s < args->n_segments; s++) {
    if (args->segment[s].n_rows == 0) continue;
    if (!cut->fast)
      to.fallback = fill_items(args, cut, s, FALLBACK_QUERIES, to.fallback);
    else if (args->segment[s].n_rows * cut->group <= cut->decode_most)
      fill_decode(args, cut, s, &to);
    else
      to.flash = fill_items(args, cut, s, cut->n_groups * FLASH_QUERIES, to.flash);
  }
}

static uint32_t log2_of(uint32_t n) {
  uint32_t log = 0;
  while (n >> log > 1) log++;
  return log;
}

/* What the kernels of a call have in common. */
static attention_kernel_args common_args(const weft_attention_args *args, const attention_cut *cut) {
  attention_kernel_args k;
  memset(&k, 0, sizeof k);
  k.op = *args;
  k.group = cut->group;
  k.block_shift = log2_of(args->kv.block_tokens);
  k.per_group = ((1ull << 32) + cut->group - 1) / cut->group;
  k.wide = ((uintptr_t)args->q & 15u) == 0 && args->q_stride % 4 == 0;
  k.turns = cut->turns;
  k.part = (float *)args->scratch;
  k.part_stride = cut->n_part_rows * (args->kv.head_dim + 2);
  return k;
}

typedef struct attention_kernels {
  attention_cut cut;
  attention_kernel_args decode, flash, fallback;
} attention_kernels;

/* Makes the tables of a call, and what its kernels get. */
static weft_status make_tables(cuda_device *d, const weft_attention_args *args, attention_kernels *k) {
  attention_cut cut = count_cut(d, args);
  uint64_t segments_bytes = cuda_align((uint64_t)args->n_segments * sizeof *args->segment);
  uint64_t n_items = (uint64_t)cut.n_decode + cut.n_flash + cut.n_fallback;
  uint64_t items_bytes = cuda_align(n_items * sizeof(attention_item));
  uint64_t n_bytes = segments_bytes + items_bytes + (uint64_t)cut.n_merges * sizeof(attention_merge);
  uint8_t *plan = cuda_plan_begin(d, n_bytes);
  if (plan == NULL) return WEFT_E_TOO_LARGE;
  memset(plan, 0, n_bytes); /* padding too, because plans are compared byte by byte */
  weft_attention_segment *to = (weft_attention_segment *)(void *)plan;
  for (uint32_t s = 0; s < args->n_segments; s++) {
    to[s].first_row = args->segment[s].first_row;
    to[s].n_rows = args->segment[s].n_rows;
    to[s].kv_len = args->segment[s].kv_len;
    to[s].mask = args->segment[s].mask;
    to[s].stores = args->segment[s].stores;
    to[s].table = args->segment[s].table;
    to[s].n_old = args->segment[s].n_old;
  }
  attention_item *items = (attention_item *)(void *)(plan + segments_bytes);
  attention_merge *merges = (attention_merge *)(void *)(plan + segments_bytes + items_bytes);
  fill_tables(args, &cut, {items, items + cut.n_decode, items + cut.n_decode + cut.n_flash, merges, 0});
  const uint8_t *on_device = NULL;
  weft_status status = cuda_plan_end(d, n_bytes, &on_device);
  attention_kernel_args common = common_args(args, &cut);
  common.op.segment = (const weft_attention_segment *)(const void *)on_device;
  common.items = (const attention_item *)(const void *)(on_device + segments_bytes);
  common.merges = (const attention_merge *)(const void *)(on_device + segments_bytes + items_bytes);
  k->cut = cut;
  k->decode = k->flash = k->fallback = common;
  k->decode.n_items = cut.n_decode, k->decode.n_merges = cut.n_merges;
  k->flash.n_items = cut.n_flash, k->flash.items += cut.n_decode;
  k->fallback.n_items = cut.n_fallback, k->fallback.items += cut.n_decode + cut.n_flash;
  const uint64_t shape[] = {cut.n_decode,       cut.n_flash,  cut.n_fallback, cut.n_merges,
                            common.part_stride, cut.n_groups, cut.turns,      cut.stream};
  if (d->base.graphs != NULL) step_graphs_note(d->base.graphs, UINT32_MAX, shape, sizeof shape);
  return status;
}

weft_status cuda_attention_walk(weft_device *device, const weft_attention_args *args) {
  attention_kernels k;
  if (args->n_segments == 0) return WEFT_OK;
  return make_tables(cuda_of(device), args, &k);
}

/* ---- kernels of any card --------------------------------------------------------------------------------- */

template <bool SINKS>
static __global__ void combine_kernel(const __grid_constant__ attention_kernel_args k) {
  launch_dependents_and_wait();
  attention_merge m = k.merges[blockIdx.x];
  if (blockIdx.z >= m.n) return;
  uint32_t f = m.first + blockIdx.z, kv_head = blockIdx.y, dim = k.op.kv.head_dim;
  const float *part = k.part + kv_head * k.part_stride + (uint64_t)(m.part + blockIdx.z * m.n_chunks) * (dim + 2);
  uint64_t row = (uint64_t)k.op.segment[m.segment].first_row + f / k.group;
  float *out = k.op.out + row * k.op.out_stride + (uint64_t)(kv_head * k.group + f % k.group) * dim;
  for (uint32_t d = threadIdx.x; d < dim; d += blockDim.x) {
    float most = -INFINITY, sum = 0.0f, value = 0.0f;
#pragma unroll 8
    for (uint32_t c = 0; c < m.n_chunks; c++) {
      const float *one = part + (uint64_t)c * (dim + 2);
      float keep, add;
      rescale_factors(most, one[dim], &most, &keep, &add);
      sum = rescale_add(sum, keep, one[dim + 1], add);
      value = rescale_add(value, keep, one[d], add);
    }
    if (SINKS) sum = add_sink(k, kv_head * k.group + f % k.group, most, sum);
    out[d] = __fmul_rn(value, __frcp_rn(sum));
  }
}

weft_status attention_combine(cuda_device *d, const attention_kernel_args *args) {
  auto kernel = args->op.sinks != NULL ? combine_kernel<true> : combine_kernel<false>;
  cuda_start(d, kernel, dim3(args->n_merges, args->op.kv.n_kv_heads, DECODE_QUERIES), 128, 0, *args);
  return cuda_launched(d, "joining attention");
}

/* Runs the prologue of the rows that lie in out. */
static weft_status prepare_out(cuda_device *d, const weft_attention_args *args) {
  prologue_args a;
  memset(&a, 0, sizeof a);
  a.x = args->out;
  a.x_stride = args->out_stride;
  a.n_rows = args->n_rows;
  a.n_in = args->n_heads * args->kv.head_dim;
  a.n_units = a.n_in / 128;
  a.is_tiled = true;
  a.n_tiles = cuda_ceil(args->n_rows, 8);
  a.out = (uint8_t *)(void *)args->prepared;
  return w8a8_prologue(d, &a);
}

weft_status cuda_attention(weft_device *device, const weft_attention_args *args) {
  cuda_device *d = cuda_of(device);
  attention_kernels k;
  if (d->lost) return WEFT_E_DEVICE;
  if (args->n_segments == 0) return WEFT_OK;
  if (args->prepared != NULL && args->prepared_form != CUDA_ROWS_W8A8) return WEFT_E_INVALID;
  if (args->prepared != NULL && !w8a8_fits(args->n_rows, args->n_heads * args->kv.head_dim)) return WEFT_E_INVALID;
  weft_status status = make_tables(d, args, &k);
  k.flash.prepares = d->set->flash_prepares && args->prepared != NULL && k.cut.n_decode == 0 && k.cut.n_fallback == 0 &&
                     args->kv.head_dim % W8A8_SPAN == 0;
  if (status == WEFT_OK && k.cut.n_flash > 0) status = d->set->attention_flash(d, &k.flash, k.cut.n_groups);
  if (status == WEFT_OK && k.cut.n_decode > 0)
    status = (k.cut.stream ? d->set->attention_decode_stream : d->set->attention_decode_cluster)(d, &k.decode);
  if (status == WEFT_OK && k.cut.n_merges > 0) status = attention_combine(d, &k.decode);
  if (status == WEFT_OK && k.cut.n_fallback > 0) status = attention_fallback(d, &k.fallback);
  if (status == WEFT_OK && args->prepared != NULL && !k.flash.prepares) status = prepare_out(d, args);
  return status;
}
