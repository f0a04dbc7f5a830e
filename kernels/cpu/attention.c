/* SPDX-License-Identifier: MIT */
/* attention: which tiles there are, which chunks they need, and which task computes them.
 *
 * With many tiles a task is a tile and goes through its chunks. With few tiles (long contexts, few sequences) a task is
 * one chunk of one tile: its (max, sum, out) goes to an attention_slot, and when all of these are full the caller
 * merges them in ascending order (a wave). Both ways compute the same numbers in the same order. The out of all chunks
 * so far lies in the output row itself. */
#include "kernels/cpu/attention.h"

#include <math.h>
#include <string.h>

enum {
  SLOTS_PER_THREAD = 4,
  INLINE_PRODUCTS = 100000 /* below this a run of the pool costs more than it saves */
};

typedef struct attention_slot {
  uint32_t tile, chunk;
  float max[CPU_TILE], sum[CPU_TILE];
  float *out; /* [CPU_TILE][dim] */
} attention_slot;

typedef struct attention_run {
  const weft_attention_args *args;
  const cpu_attention_code *code;
  uint32_t n_tiles, n_slots, n_wave;
  uint32_t *first_tile; /* [n_segments + 1] */
  attention_slot *slot; /* [n_slots] */
  cpu_chunk **chunk;    /* [n_threads] */
} attention_run;

typedef struct attention_tile {
  const weft_attention_segment *segment;
  uint32_t kv_head, n_queries;
  uint32_t begin, stop; /* union of what the queries see */
  uint32_t row[CPU_TILE], head[CPU_TILE];
  uint32_t first[CPU_TILE], end[CPU_TILE]; /* absolute positions */
} attention_tile;

/* ---- scratch ---- */

static uint64_t round_up(uint64_t n) {
  return (n + 63) & ~63ull;
}

static uint64_t chunk_bytes(uint32_t dim) {
  uint64_t floats = (uint64_t)CPU_TILE * CPU_TILE_SCORES + cpu_chunk_widened(dim);
  return round_up(sizeof(cpu_chunk)) + round_up(floats * sizeof(float));
}

static uint64_t slot_out_bytes(uint32_t dim) {
  return round_up((uint64_t)CPU_TILE * dim * sizeof(float));
}

uint64_t cpu_attention_scratch(weft_device *device, const weft_attention_args *args) {
  uint64_t n_threads = weft_thread_pool_size(cpu_thread_pool(device)), n_slots = n_threads * SLOTS_PER_THREAD;
  return round_up(((uint64_t)args->n_segments + 1) * sizeof(uint32_t)) + round_up(n_slots * sizeof(attention_slot)) +
         round_up(n_threads * sizeof(cpu_chunk *)) + n_slots * slot_out_bytes(args->kv.head_dim) +
         n_threads * chunk_bytes(args->kv.head_dim);
}

static void *take_scratch(uint8_t **scratch, uint64_t n_bytes) {
  void *taken = *scratch;
  *scratch += round_up(n_bytes);
  return taken;
}

static void lay_out(attention_run *run, uint32_t n_threads) {
  const weft_attention_args *args = run->args;
  uint8_t *scratch = args->scratch;
  uint32_t dim = args->kv.head_dim;
  run->n_slots = n_threads * SLOTS_PER_THREAD;
  run->first_tile = take_scratch(&scratch, ((uint64_t)args->n_segments + 1) * sizeof(uint32_t));
  run->slot = take_scratch(&scratch, run->n_slots * sizeof(attention_slot));
  run->chunk = take_scratch(&scratch, n_threads * sizeof(cpu_chunk *));
  for (uint32_t i = 0; i < run->n_slots; i++) run->slot[i].out = take_scratch(&scratch, slot_out_bytes(dim));
  for (uint32_t i = 0; i < n_threads; i++) {
    cpu_chunk *chunk = take_scratch(&scratch, sizeof(cpu_chunk));
    chunk->dim = dim;
    chunk->type = args->kv.type;
    chunk->scale = args->scale;
    chunk->score = take_scratch(&scratch, sizeof(float) * CPU_TILE * CPU_TILE_SCORES);
    chunk->widened = take_scratch(&scratch, cpu_chunk_widened(dim) * sizeof(float));
    run->chunk[i] = chunk;
  }
}

/* ---- tiles ---- */

static uint32_t tiles_of_head(const weft_attention_args *args, const weft_attention_segment *segment) {
  uint32_t n_group = args->n_heads / args->kv.n_kv_heads;
  return (uint32_t)(((uint64_t)segment->n_rows * n_group + CPU_TILE - 1) / CPU_TILE);
}

static void count_tiles(attention_run *run) {
  const weft_attention_args *args = run->args;
  uint32_t n = 0;
  for (uint32_t s = 0; s < args->n_segments; s++) {
    run->first_tile[s] = n;
    n += tiles_of_head(args, &args->segment[s]) * args->kv.n_kv_heads;
  }
  run->first_tile[args->n_segments] = n;
  run->n_tiles = n;
}

static const weft_attention_segment *segment_of(const attention_run *run, uint32_t tile, uint32_t *first_tile) {
  uint32_t low = 0, high = run->args->n_segments;
  while (high - low > 1) {
    uint32_t middle = low + (high - low) / 2;
    if (run->first_tile[middle] <= tile)
      low = middle;
    else
      high = middle;
  }
  *first_tile = run->first_tile[low];
  return &run->args->segment[low];
}

static void find_visible(const weft_attention_segment *segment, uint32_t window, uint32_t i, uint32_t *first,
                         uint32_t *end) {
  bool whole = segment->mask == WEFT_MASK_WHOLE;
  uint32_t position = whole ? segment->kv_len : segment->kv_len + i;
  *end = whole ? segment->kv_len + segment->n_rows : position + 1;
  *first = window != 0 && position + 1 > window ? position + 1 - window : 0;
}

static void find_tile(const attention_run *run, uint32_t index, attention_tile *tile) {
  const weft_attention_args *args = run->args;
  uint32_t first_tile = 0, n_group = args->n_heads / args->kv.n_kv_heads;
  const weft_attention_segment *segment = segment_of(run, index, &first_tile);
  uint32_t n_tiles = tiles_of_head(args, segment);
  uint64_t first_query = (uint64_t)((index - first_tile) % n_tiles) * CPU_TILE;
  uint64_t left = (uint64_t)segment->n_rows * n_group - first_query;
  tile->segment = segment;
  tile->kv_head = (index - first_tile) / n_tiles;
  tile->n_queries = left < CPU_TILE ? (uint32_t)left : CPU_TILE;
  tile->begin = UINT32_MAX;
  tile->stop = 0;
  for (uint32_t i = 0; i < tile->n_queries; i++) {
    uint32_t row = (uint32_t)((first_query + i) / n_group);
    tile->row[i] = segment->first_row + row;
    tile->head[i] = tile->kv_head * n_group + (uint32_t)((first_query + i) % n_group);
    find_visible(segment, args->window, row, &tile->first[i], &tile->end[i]);
    if (tile->first[i] < tile->begin) tile->begin = tile->first[i];
    if (tile->end[i] > tile->stop) tile->stop = tile->end[i];
  }
}

static float *out_of(const attention_run *run, const attention_tile *tile, uint32_t query) {
  const weft_attention_args *args = run->args;
  return args->out + tile->row[query] * args->out_stride + (uint64_t)tile->head[query] * args->kv.head_dim;
}

/* ---- one chunk of one tile ---- */

/* Finds the keys and values at positions [from, to), which lie in one block of the KV cache or among the segment's own
 * rows. */
static void point_at_keys(const attention_run *run, const attention_tile *tile, uint32_t from, uint32_t to,
                          cpu_chunk *chunk) {
  const weft_attention_args *args = run->args;
  const weft_kv_view *kv = &args->kv;
  const weft_attention_segment *segment = tile->segment;
  uint64_t vector = weft_kv_row_bytes(kv->type, kv->head_dim), step = vector;
  const uint8_t *key, *value;
  if (segment->stores == WEFT_STORES_SCRATCH && from >= segment->kv_len) {
    uint64_t own = (uint64_t)segment->first_row - args->own_first + (from - segment->kv_len);
    uint64_t offset = (own * kv->n_kv_heads + tile->kv_head) * vector;
    key = (const uint8_t *)args->own_k + offset;
    value = (const uint8_t *)args->own_v + offset;
    step = kv->n_kv_heads * vector;
  } else {
    uint64_t page = segment->table[from / kv->block_tokens];
    uint64_t offset = ((uint64_t)tile->kv_head * kv->block_tokens + from % kv->block_tokens) * vector;
    key = (const uint8_t *)kv->base + page * kv->page_bytes + kv->k_offset + offset;
    value = (const uint8_t *)kv->base + page * kv->page_bytes + kv->v_offset + offset;
  }
  for (uint32_t position = from; position < to; position++, key += step, value += step) {
    chunk->key[position % WEFT_ATTENTION_CHUNK] = key;
    chunk->value[position % WEFT_ATTENTION_CHUNK] = value;
  }
}

static void point_all(const attention_run *run, const attention_tile *tile, uint32_t from, uint32_t to,
                      cpu_chunk *chunk) {
  uint32_t block = run->args->kv.block_tokens, kv_len = tile->segment->kv_len;
  bool scratch = tile->segment->stores == WEFT_STORES_SCRATCH;
  while (from < to) {
    uint32_t stop = to;
    if (!scratch || from < kv_len) {
      stop = (from / block + 1) * block;
      if (scratch && stop > kv_len) stop = kv_len;
      if (stop > to) stop = to;
    }
    point_at_keys(run, tile, from, stop, chunk);
    from = stop;
  }
}

static uint32_t clamp_to(uint32_t x, uint32_t low, uint32_t high) {
  return x < low ? low : x > high ? high : x;
}

/* chunk->out, max and sum have been set by the caller. */
static void run_chunk(const attention_run *run, const attention_tile *tile, uint32_t index, cpu_chunk *chunk) {
  const weft_attention_args *args = run->args;
  uint32_t low = index * WEFT_ATTENTION_CHUNK, high = low + WEFT_ATTENTION_CHUNK;
  uint32_t from = clamp_to(tile->begin, low, high), to = clamp_to(tile->stop, low, high);
  point_all(run, tile, from, to, chunk);
  chunk->n_queries = tile->n_queries;
  chunk->begin = from - low;
  chunk->stop = to - low;
  for (uint32_t i = 0; i < tile->n_queries; i++) {
    chunk->q[i] = args->q + tile->row[i] * args->q_stride + (uint64_t)tile->head[i] * args->kv.head_dim;
    chunk->first[i] = clamp_to(tile->first[i], low, high) - low;
    chunk->end[i] = clamp_to(tile->end[i], low, high) - low;
  }
  run->code->chunk(chunk);
}

typedef struct attention_state {
  float max[CPU_TILE], sum[CPU_TILE];
} attention_state;

static void begin_tile(const attention_run *run, const attention_tile *tile, attention_state *state) {
  for (uint32_t i = 0; i < tile->n_queries; i++) {
    state->max[i] = -INFINITY;
    state->sum[i] = 0.0f;
    memset(out_of(run, tile, i), 0, run->args->kv.head_dim * sizeof(float));
  }
}

static void merge_chunk(const attention_run *run, const attention_tile *tile, uint32_t index,
                        const attention_slot *slot, attention_state *state) {
  uint32_t low = index * WEFT_ATTENTION_CHUNK, dim = run->args->kv.head_dim;
  for (uint32_t i = 0; i < tile->n_queries; i++) {
    if (tile->end[i] <= low || tile->first[i] >= low + WEFT_ATTENTION_CHUNK) continue;
    float max = slot->max[i] > state->max[i] ? slot->max[i] : state->max[i];
    float keep = expf(state->max[i] - max), add = expf(slot->max[i] - max);
    state->sum[i] = state->sum[i] * keep + slot->sum[i] * add;
    state->max[i] = max;
    run->code->merge(out_of(run, tile, i), keep, slot->out + (uint64_t)i * dim, add, dim);
  }
}

/* The sink comes last. It is weighed by the maximum of the scores, whatever its own size: where e^(sink - max) is
 * beyond f32, the result is below what f32 tells from 0. */
static void finish_tile(const attention_run *run, const attention_tile *tile, const attention_state *state) {
  const float *sinks = run->args->sinks;
  for (uint32_t i = 0; i < tile->n_queries; i++) {
    float sum = state->sum[i];
    if (sinks != NULL) sum += expf(sinks[tile->head[i]] - state->max[i]);
    run->code->scale(out_of(run, tile, i), 1.0f / sum, run->args->kv.head_dim);
  }
}

static void use_slot(cpu_chunk *chunk, attention_slot *slot) {
  chunk->out = slot->out;
  chunk->max = slot->max;
  chunk->sum = slot->sum;
}

/* ---- tasks ---- */

/* A task is a whole tile. The last tiles of a causal segment see most keys, so they come first. */
static void tile_task(void *arg, uint32_t task, uint32_t thread) {
  const attention_run *run = arg;
  cpu_chunk *chunk = run->chunk[thread];
  attention_slot *slot = &run->slot[thread];
  attention_tile tile;
  attention_state state;
  find_tile(run, run->n_tiles - 1 - task, &tile);
  begin_tile(run, &tile, &state);
  use_slot(chunk, slot);
  for (uint32_t i = tile.begin / WEFT_ATTENTION_CHUNK; i <= (tile.stop - 1) / WEFT_ATTENTION_CHUNK; i++) {
    run_chunk(run, &tile, i, chunk);
    merge_chunk(run, &tile, i, slot, &state);
  }
  finish_tile(run, &tile, &state);
}

static void slot_task(void *arg, uint32_t task, uint32_t thread) {
  const attention_run *run = arg;
  attention_slot *slot = &run->slot[task];
  cpu_chunk *chunk = run->chunk[thread];
  attention_tile tile;
  find_tile(run, slot->tile, &tile);
  use_slot(chunk, slot);
  run_chunk(run, &tile, slot->chunk, chunk);
}

/* The next chunk to compute in a wave. */
typedef struct attention_cursor {
  attention_tile tile;
  uint32_t index, chunk; /* of the tile, of its next chunk */
} attention_cursor;

static void fill_wave(attention_run *run, attention_cursor *cursor) {
  run->n_wave = 0;
  while (run->n_wave < run->n_slots && cursor->index < run->n_tiles) {
    attention_slot *slot = &run->slot[run->n_wave++];
    slot->tile = cursor->index;
    slot->chunk = cursor->chunk++;
    if (cursor->chunk <= (cursor->tile.stop - 1) / WEFT_ATTENTION_CHUNK) continue;
    cursor->index += 1;
    if (cursor->index == run->n_tiles) return;
    find_tile(run, cursor->index, &cursor->tile);
    cursor->chunk = cursor->tile.begin / WEFT_ATTENTION_CHUNK;
  }
}

static void run_waves(attention_run *run, weft_thread_pool *pool) {
  attention_cursor cursor = {.index = 0};
  attention_tile tile;
  attention_state state;
  uint32_t merging = UINT32_MAX;
  find_tile(run, 0, &cursor.tile);
  cursor.chunk = cursor.tile.begin / WEFT_ATTENTION_CHUNK;
  for (fill_wave(run, &cursor); run->n_wave > 0; fill_wave(run, &cursor)) {
    weft_thread_pool_run(pool, slot_task, run, run->n_wave);
    for (uint32_t i = 0; i < run->n_wave; i++) {
      const attention_slot *slot = &run->slot[i];
      if (slot->tile != merging) {
        if (merging != UINT32_MAX) finish_tile(run, &tile, &state);
        merging = slot->tile;
        find_tile(run, merging, &tile);
        begin_tile(run, &tile, &state);
      }
      merge_chunk(run, &tile, slot->chunk, slot, &state);
    }
  }
  finish_tile(run, &tile, &state);
}

/* ---- the op ---- */

static const cpu_attention_code *code_of(const weft_device *device) {
  return CPU_CODE_OF(cpu_get_isa(device), cpu_attention);
}

/* About how many multiplications a call takes. */
static double count_products(const weft_attention_args *args) {
  double n = 0.0;
  for (uint32_t s = 0; s < args->n_segments; s++) {
    const weft_attention_segment *segment = &args->segment[s];
    double n_keys = (double)segment->kv_len, n_rows = (double)segment->n_rows;
    if (args->window != 0 && n_keys > (double)args->window) n_keys = (double)args->window;
    n += n_rows * (n_keys + n_rows);
  }
  return n * 2.0 * (double)args->n_heads * (double)args->kv.head_dim;
}

weft_status cpu_attention(weft_device *device, const weft_attention_args *args) {
  weft_thread_pool *pool = cpu_thread_pool(device);
  attention_run run = {.args = args, .code = code_of(device)};
  if (args->n_segments == 0) return WEFT_OK;
  lay_out(&run, weft_thread_pool_size(pool));
  count_tiles(&run);
  if (weft_thread_pool_size(pool) == 1 || count_products(args) < INLINE_PRODUCTS) {
    for (uint32_t task = 0; task < run.n_tiles; task++) tile_task(&run, task, 0);
  } else if (run.n_tiles < 2 * weft_thread_pool_size(pool)) {
    run_waves(&run, pool);
  } else {
    weft_thread_pool_run(pool, tile_task, &run, run.n_tiles);
  }
  return WEFT_OK;
}
