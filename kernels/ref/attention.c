/* SPDX-License-Identifier: MIT */
/* attention, the definition: one row and one head at a time, in chunks of absolute key positions.
 *
 *   positions   first ... 255   | 256 ... 511     | 512 ... end - 1     what the row sees, cut at multiples of 256
 *   state       (m, l, o) fresh | (m, l, o) fresh | (m, l, o) fresh     m: the largest score so far
 *                                                                       l: sum of e^(score - m)
 *                                                                       o: sum of e^(score - m) * value
 *   result      the chunks' states merged, ascending; then o / l, where a sink adds e^(sink - m) to l
 *
 * The state and its merge are those of the online softmax (Milakov and Gimelshein, arXiv 1805.02867), on which
 * FlashAttention is built. A segment's own key i has position kv_len + i wherever it is stored, so its keys go on in the
 * same grid of chunks. */
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

typedef struct ref_state {
  double max, sum;
  double *out; /* [head_dim] */
} ref_state;

/* Scratch: the out of a chunk and that of all chunks, [head_dim] doubles each; REF_SIDE keys or one value, [head_dim]
 * floats each. */
uint64_t ref_attention_scratch(weft_device *device, const weft_attention_args *args) {
  (void)device;
  return (uint64_t)args->kv.head_dim * (2 * sizeof(double) + REF_SIDE * sizeof(float));
}

/* The key (or value) at an absolute position, as floats. */
static void load_key(const weft_attention_args *args, const weft_attention_segment *segment, uint32_t head,
                     uint32_t position, bool is_value, float *out) {
  const weft_kv_view *kv = &args->kv;
  uint64_t head_bytes = weft_kv_row_bytes(kv->type, kv->head_dim);
  const uint8_t *at;
  if (segment->stores == WEFT_STORES_SCRATCH && position >= segment->kv_len) {
    uint64_t own = (uint64_t)segment->first_row - args->own_first + (position - segment->kv_len);
    at = (const uint8_t *)(is_value ? args->own_v : args->own_k) + (own * kv->n_kv_heads + head) * head_bytes;
  } else {
    uint64_t page = segment->table[position / kv->block_tokens];
    uint64_t offset = position % kv->block_tokens;
    at = (const uint8_t *)kv->base + page * kv->page_bytes + (is_value ? kv->v_offset : kv->k_offset) +
         ((uint64_t)head * kv->block_tokens + offset) * head_bytes;
  }
  weft_kv_row_load(kv->type, at, kv->head_dim, out);
}

/* Positions [first, end) that row i of the segment sees. */
static void find_visible(const weft_attention_segment *segment, uint32_t window, uint32_t i, uint32_t *first,
                         uint32_t *end) {
  bool whole = segment->mask == WEFT_MASK_WHOLE;
  uint32_t position = whole ? segment->kv_len : segment->kv_len + i;
  *end = segment->kv_len + (whole ? segment->n_rows : i + 1);
  *first = window != 0 && position + 1 > window ? position + 1 - window : 0;
}

/* Adds one key to a chunk's state, and scales what there is if the key's score is a new maximum. */
static void add_key(ref_state *state, double score, const float *value, uint32_t dim) {
  double max = score > state->max ? score : state->max;
  double keep = score > state->max ? exp(state->max - max) : 1.0, weight = exp(score - max);
  state->sum = state->sum * keep + weight;
  for (uint32_t d = 0; d < dim; d++) state->out[d] = state->out[d] * keep + weight * (double)value[d];
  state->max = max;
}

static void merge_chunk(ref_state *all, const ref_state *chunk, uint32_t dim) {
  double max = chunk->max > all->max ? chunk->max : all->max;
  double keep = exp(all->max - max), add = exp(chunk->max - max);
  all->sum = all->sum * keep + chunk->sum * add;
  for (uint32_t d = 0; d < dim; d++) all->out[d] = all->out[d] * keep + chunk->out[d] * add;
  all->max = max;
}

static void reset_state(ref_state *state, uint32_t dim) {
  state->max = -INFINITY;
  state->sum = 0.0;
  for (uint32_t d = 0; d < dim; d++) state->out[d] = 0.0;
}

static void attend_row(const weft_attention_args *args, const weft_attention_segment *segment, uint32_t i,
                       uint32_t head) {
  uint32_t dim = args->kv.head_dim, kv_head = head / (args->n_heads / args->kv.n_kv_heads);
  ref_state chunk = {.out = args->scratch}, all = {.out = chunk.out + dim};
  float *stored = (float *)(all.out + dim);
  uint64_t row = (uint64_t)segment->first_row + i;
  const float *q = args->q + row * args->q_stride + (uint64_t)head * dim;
  uint32_t first, end;
  find_visible(segment, args->window, i, &first, &end);
  reset_state(&all, dim);
  for (uint32_t begin = first; begin < end;) {
    uint32_t stop = (begin / WEFT_ATTENTION_CHUNK + 1) * WEFT_ATTENTION_CHUNK;
    if (stop > end) stop = end;
    reset_state(&chunk, dim);
    for (uint32_t position = begin; position < stop; position += REF_SIDE) {
      uint32_t n = stop - position < REF_SIDE ? stop - position : REF_SIDE;
      double dot[REF_SIDE];
      memset(stored + (uint64_t)n * dim, 0, (uint64_t)(REF_SIDE - n) * dim * sizeof *stored);
      for (uint32_t k = 0; k < n; k++)
        load_key(args, segment, kv_head, position + k, false, stored + (uint64_t)k * dim);
      ref_row_dots(q, stored, dim, dot);
      for (uint32_t k = 0; k < n; k++) {
        load_key(args, segment, kv_head, position + k, true, stored);
        add_key(&chunk, (double)args->scale * dot[k], stored, dim);
      }
    }
    merge_chunk(&all, &chunk, dim);
    begin = stop;
  }
  if (args->sinks != NULL) all.sum += exp((double)args->sinks[head] - all.max);
  float *out = args->out + row * args->out_stride + (uint64_t)head * dim;
  for (uint32_t d = 0; d < dim; d++) out[d] = (float)(all.out[d] / all.sum);
}

weft_status ref_attention(weft_device *device, const weft_attention_args *args) {
  (void)device;
  for (uint32_t s = 0; s < args->n_segments; s++) {
    for (uint32_t i = 0; i < args->segment[s].n_rows; i++) {
      for (uint32_t head = 0; head < args->n_heads; head++) attend_row(args, &args->segment[s], i, head);
    }
  }
  return WEFT_OK;
}
