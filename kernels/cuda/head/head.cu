/* SPDX-License-Identifier: MIT */
/* head_stats, head_rows, head_part, head_join and soft: the product with the vocabulary, statistics of its logits, and
 * the ops themselves. The soft rows are made in soft.cu. */
#include "kernels/cuda/head/head.h"

#include <math.h>
#include <string.h>

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/head/soft_integers.h"
#include "kernels/cuda/set.h"

enum { STAT_THREADS = 128, FINISH_THREADS = 256, CHUNK = WEFT_VOCAB_CHUNK, HEAD_ROWS_INT8 = 384 };

static_assert(sizeof(chunk_stat) == WEFT_HEAD_CHUNK_BYTES, "what a chunk keeps");

/* ---- statistics of a chunk ------------------------------------------------------------------------------ */

/* Keeps the larger value, of equal ones that of the lower index. An index below 0 stands for no value. */
static __device__ __forceinline__ void take_best(float *value, int32_t *index, float v, int32_t i) {
  if (i >= 0 && (*index < 0 || v > *value || (v == *value && i < *index))) *value = v, *index = i;
}

static __device__ __forceinline__ void warp_best(float *value, int32_t *index) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    float v = __shfl_xor_sync(0xFFFFFFFFu, *value, step);
    int32_t i = __shfl_xor_sync(0xFFFFFFFFu, *index, step);
    take_best(value, index, v, i);
  }
}

/* Largest value and its lowest index over the block. */
static __device__ void block_best(float *value, int32_t *index, float *values, int32_t *indices) {
  warp_best(value, index);
  if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = *value, indices[threadIdx.x / 32] = *index;
  __syncthreads();
  *value = values[0], *index = indices[0];
  for (uint32_t w = 1; w < blockDim.x / 32; w++) take_best(value, index, values[w], indices[w]);
  __syncthreads();
}

/* Where a lane leaves the weights of four tokens (soft_integers.h): unit `unit` of 128 tokens of the chunk. */
static __device__ __forceinline__ uint32_t *soft_word(const soft_rows &s, uint32_t r, uint32_t chunk, uint32_t unit) {
  const uint32_t place = chunk / s.part_chunks * s.n_places + r, lane = threadIdx.x % 32;
  unit += chunk % s.part_chunks * (CHUNK / 128);
  return (uint32_t *)(void *)(s.numbers + w8a8_at(s.n_tiles, unit, place, lane % 8) + lane / 8 * 4);
}

/* A warp measures a chunk; a lane has four times four tokens. */
template <bool WHOLE>
static __device__ __forceinline__ void measure_chunk(const head_group &g, uint32_t r, uint32_t chunk,
                                                     const uint32_t *mask) {
  const float *row = g.logits + (uint64_t)r * g.logits_stride;
  float logit[16], best = -INFINITY, zero = 0.0f, sum = 0.0f, weighted = 0.0f, steep = steepness_of(g, r);
  uint32_t bits[4], lane = threadIdx.x % 32, v0 = chunk * CHUNK + lane * 4, word = 0;
  const bool softens = g.soft_rows.numbers != NULL && (g.want == NULL || g.want[r] != 0);
  int32_t index = -1;
#pragma unroll
  for (int i = 0; i < 4; i++) load_logits<WHOLE, 4>(g, row, v0 + i * 128, logit + 4 * i);
#pragma unroll
  for (int i = 0; i < 4; i++) bits[i] = allowed_bits<WHOLE>(g, mask, v0 + i * 128);
#pragma unroll
  for (int i = 0; i < 16; i++) zero = __fmaf_rn(logit[i], 0.0f, zero); /* NaN from the first that is not finite on */
  cap_logits(g, logit);
#pragma unroll
  for (int i = 0; i < 16; i++) {
    bool better = (bits[i / 4] >> i % 4 & 1u) != 0 && (index < 0 || logit[i] > best);
    best = better ? logit[i] : best;
    index = better ? (int32_t)(v0 + i / 4 * 128 + i % 4) : index;
  }
  warp_best(&best, &index);
  bool bad = __any_sync(0xFFFFFFFFu, zero != 0.0f);
#pragma unroll
  for (int i = 0; i < 16; i++) {
    float t = (bits[i / 4] >> i % 4 & 1u) != 0 ? __fmul_rn(logit[i] - best, steep) : -1000.0f, weight = power_of_2(t);
    sum = __fadd_rn(sum, weight);
    weighted = __fmaf_rn(weight, t, weighted);
    if (!softens) continue;
    word |= __float2uint_rn(__fmul_rn(weight, 255.0f)) << (i % 4 * 8);
    if (i % 4 < 3) continue;
    *soft_word(g.soft_rows, r, chunk, (uint32_t)i / 4) = word;
    word = 0;
  }
  sum = warp_sum(sum);
  weighted = warp_sum(weighted);
  if (lane != 0) return;
  chunk_stat s = {best, sum, weighted, index, (bad ? 1u : 0u) | (index >= 0 ? 2u : 0u)};
  g.stats[(uint64_t)r * g.n_chunks + chunk] = s;
}

static __global__ void __launch_bounds__(STAT_THREADS) stats_kernel(const __grid_constant__ head_group g) {
  launch_dependents_and_wait();
  uint32_t r = blockIdx.y, chunk = blockIdx.x * (STAT_THREADS / 32) + threadIdx.x / 32;
  if (chunk >= g.n_chunks) return;
  const uint32_t *mask = mask_of(g, r);
  if (is_whole(g, mask, chunk))
    measure_chunk<true>(g, r, chunk, mask);
  else
    measure_chunk<false>(g, r, chunk, mask);
}

/* Chunks from first_chunk on, of tokens below g.n_vocab. */
static __global__ void __launch_bounds__(STAT_THREADS)
    part_kernel(const __grid_constant__ head_group g, uint32_t first_chunk) {
  launch_dependents_and_wait();
  uint32_t r = blockIdx.y, chunk = first_chunk + blockIdx.x * (STAT_THREADS / 32) + threadIdx.x / 32;
  if (chunk * CHUNK >= g.n_vocab) return;
  const uint32_t *mask = mask_of(g, r);
  if (is_whole(g, mask, chunk))
    measure_chunk<true>(g, r, chunk, mask);
  else
    measure_chunk<false>(g, r, chunk, mask);
}

/* ---- a row ---------------------------------------------------------------------------------------------- */

/* Sums of all threads before this one, by one fixed tree; *all is the sum of every thread. */
static __device__ double sums_before(double own, double *shared, double *all) {
  uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = FINISH_THREADS / 32;
  double upto = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    double v = __shfl_up_sync(0xFFFFFFFFu, upto, step);
    if (lane >= (uint32_t)step) upto += v;
  }
  if (lane == 31) shared[warp] = upto;
  __syncthreads();
  double before = 0.0, total = 0.0;
  for (uint32_t w = 0; w < n_warps; w++) {
    if (w < warp) before += shared[w];
    total += shared[w];
  }
  double last = __shfl_up_sync(0xFFFFFFFFu, upto, 1);
  if (lane > 0) before += last;
  __syncthreads();
  *all = total;
  return before;
}

/* The factor that makes a chunk's sums relative to the row's largest logit. */
static __device__ __forceinline__ double chunk_weight(const chunk_stat &s, float most, float steep) {
  return (s.flags & 2u) == 0 ? 0.0 : (double)power_of_2(__fmul_rn(s.most - most, steep));
}

typedef struct row_result {
  float most;
  int32_t argmax;
  bool bad;
  double total, weighted; /* in units of ln 2 */
  uint32_t chunk;         /* where the draw falls */
  double before;          /* sum of all chunks before it */
} row_result;

/* Computes everything of a row but the token drawn. */
static __device__ void measure_row(const head_group &g, uint32_t r, float u, row_result *out) {
  __shared__ float values[FINISH_THREADS / 32];
  __shared__ int32_t indices[FINISH_THREADS / 32];
  __shared__ double shared[FINISH_THREADS / 32];
  __shared__ uint32_t found, last_allowed;
  __shared__ double found_before;
  const chunk_stat *stats = g.stats + (uint64_t)r * g.n_chunks;
  uint32_t run = (g.n_chunks + FINISH_THREADS - 1) / FINISH_THREADS;
  uint32_t begin = min(threadIdx.x * run, g.n_chunks), end = min(begin + run, g.n_chunks);
  float steep = steepness_of(g, r), best = -INFINITY;
  int32_t index = -1;
  int bad = 0;
  for (uint32_t c = begin; c < end; c++) {
    bad |= (int)(stats[c].flags & 1u);
    take_best(&best, &index, stats[c].most, stats[c].argmax);
  }
  block_best(&best, &index, values, indices);
  if (threadIdx.x == 0) found = UINT32_MAX, last_allowed = 0;
  bad = __syncthreads_or(bad);
  double sum = 0.0, weighted = 0.0;
  for (uint32_t c = begin; c < end; c++) {
    double f = chunk_weight(stats[c], best, steep), shift = (double)(stats[c].most - best) * (double)steep;
    if (f == 0.0) continue;
    sum += f * (double)stats[c].sum;
    weighted += f * ((double)stats[c].weighted + (double)stats[c].sum * shift);
  }
  double total, all_weighted, before = sums_before(sum, shared, &total);
  (void)sums_before(weighted, shared, &all_weighted);
  double threshold = (double)u * total, at = before, own_before = 0.0;
  uint32_t own_found = UINT32_MAX;
  for (uint32_t c = begin; c < end; c++) {
    double next = at + chunk_weight(stats[c], best, steep) * (double)stats[c].sum;
    if ((stats[c].flags & 2u) != 0) atomicMax(&last_allowed, c);
    if (own_found == UINT32_MAX && next > threshold) own_found = c, own_before = at;
    at = next;
  }
  if (own_found != UINT32_MAX) atomicMin(&found, own_found);
  __syncthreads();
  if (own_found != UINT32_MAX && own_found == found) found_before = own_before;
  if (threadIdx.x == 0 && found == UINT32_MAX) found_before = total; /* rounding: the last allowed token */
  __syncthreads();
  out->most = best;
  out->argmax = index;
  out->bad = bad != 0 || index < 0;
  out->total = total;
  out->weighted = all_weighted;
  out->chunk = found == UINT32_MAX ? last_allowed : found;
  out->before = found_before;
}

/* The first token of the chunk whose running sum exceeds the threshold, else its last allowed one. */
static __device__ int32_t draw_in_chunk(const head_group &g, uint32_t r, const float *logits, const row_result &row,
                                        double threshold) {
  __shared__ double shared[FINISH_THREADS / 32];
  __shared__ uint32_t found, last_allowed;
  const chunk_stat s = g.stats[(uint64_t)r * g.n_chunks + row.chunk];
  const uint32_t *mask = mask_of(g, r);
  float steep = steepness_of(g, r);
  double f = chunk_weight(s, row.most, steep), e[2], own = 0.0, unused;
  if (threadIdx.x == 0) found = UINT32_MAX, last_allowed = 0;
  __syncthreads();
  for (uint32_t i = 0; i < 2; i++) {
    uint32_t v = row.chunk * CHUNK + 2 * threadIdx.x + i;
    bool ok = (allowed_bits<false>(g, mask, v) & 1u) != 0;
    float raw = ok ? *(const volatile float *)(logits + v) : 0.0f; /* another card's, perhaps */
    float logit = ok && g.cap != 0.0f ? cap_logit(raw, g.cap, g.slope) : raw;
    e[i] = ok ? f * (double)power_of_2(__fmul_rn(logit - s.most, steep)) : 0.0;
    if (ok) atomicMax(&last_allowed, v);
    own += e[i];
  }
  double at = row.before + sums_before(own, shared, &unused);
  for (uint32_t i = 0; i < 2; i++) {
    at += e[i];
    if (e[i] > 0.0 && at > threshold) {
      atomicMin(&found, row.chunk * CHUNK + 2 * threadIdx.x + i);
      break;
    }
  }
  __syncthreads();
  uint32_t token = found == UINT32_MAX ? last_allowed : found;
  __syncthreads();
  return (int32_t)token;
}

/* By one thread. */
static __device__ __forceinline__ void give_row(const head_group &g, const head_outputs &o, uint32_t r,
                                                const row_result &row, int32_t drawn) {
  o.bad[r] = row.bad ? 1 : 0;
  o.argmax[r] = row.bad ? 0 : row.argmax;
  o.drawn[r] = row.bad ? 0 : drawn;
  o.top[r] = row.bad ? 0.0f : row.most;
  o.log_total[r] = row.bad ? 0.0f : (float)((double)row.most / (double)g.temperature[r] + log(row.total));
  o.entropy[r] = row.bad ? 0.0f : (float)(log(row.total) - row.weighted * M_LN2 / row.total);
}

/* What a row has where nothing is drawn. */
static __device__ void give_likeliest(const head_group &g, const head_outputs &o, uint32_t r) {
  __shared__ float values[FINISH_THREADS / 32];
  __shared__ int32_t indices[FINISH_THREADS / 32];
  const chunk_stat *stats = g.stats + (uint64_t)r * g.n_chunks;
  float best = -INFINITY;
  int32_t index = -1;
  int bad = 0;
  for (uint32_t c = threadIdx.x; c < g.n_chunks; c += FINISH_THREADS) {
    bad |= (int)(stats[c].flags & 1u);
    take_best(&best, &index, stats[c].most, stats[c].argmax);
  }
  block_best(&best, &index, values, indices);
  bad = __syncthreads_or(bad) != 0 || index < 0;
  if (threadIdx.x != 0) return;
  o.bad[r] = bad ? 1 : 0;
  o.argmax[r] = bad ? 0 : index;
  o.top[r] = bad ? 0.0f : best;
}

/* The scales of a row's weights of tokens; those beyond the vocabulary are 0. */
static __device__ void give_soft_scales(const head_group &g, uint32_t r, const row_result &row) {
  const soft_rows &s = g.soft_rows;
  const float steep = steepness_of(g, r);
  for (uint32_t c = threadIdx.x; c < s.n_parts * s.part_chunks; c += FINISH_THREADS) {
    float scale = c < g.n_chunks ? (float)chunk_weight(g.stats[(uint64_t)r * g.n_chunks + c], row.most, steep) : 0.0f;
    uint64_t at = (uint64_t)(c % s.part_chunks) * (CHUNK / W8A8_SPAN) * s.n_tiles * 8;
    for (uint32_t span = 0; span < CHUNK / W8A8_SPAN; span++, at += (uint64_t)s.n_tiles * 8)
      s.scales[at + c / s.part_chunks * s.n_places + r] = scale;
  }
}

/* The jobs of the product, of rows that are wanted: those of a part as even as whole warpgroups are. */
static __device__ void give_soft_jobs(const soft_rows &s) {
  const uint32_t each = (s.n + INT8_JOB_ROWS - 1) / INT8_JOB_ROWS, n = (s.n + each * 64 - 1) / (each * 64) * 64;
  if (threadIdx.x == 0) *s.n_jobs = s.n_parts * each;
  for (uint32_t j = threadIdx.x; j < s.n_parts * each; j += FINISH_THREADS) {
    const uint32_t part = j / each, at = j % each * n;
    s.jobs[j] = {part, part * s.n_places + s.first + at, at < s.n ? min(n, s.n - at) : 0};
  }
}

static __global__ void __launch_bounds__(FINISH_THREADS)
    finish_kernel(const __grid_constant__ head_group g, const head_outputs o) {
  launch_dependents_and_wait();
  uint32_t r = blockIdx.x;
  row_result row;
  if (o.argmax != NULL && o.drawn == NULL) {
    give_likeliest(g, o, r);
    return;
  }
  float u = o.u == NULL ? 0.0f : o.u[r];
  measure_row(g, r, u, &row);
  if (o.argmax != NULL) {
    int32_t drawn = draw_in_chunk(g, r, g.logits + (uint64_t)r * g.logits_stride, row, (double)u * row.total);
    if (threadIdx.x == 0) give_row(g, o, r, row, drawn);
  }
  if (g.rows == NULL) return;
  if (g.soft_rows.numbers != NULL) {
    give_soft_scales(g, r, row);
    if (r == 0) give_soft_jobs(g.soft_rows);
  }
  if (threadIdx.x != 0) return;
  row_stat out = {row.most, row.bad ? 0.0f : (float)((double)g.soft_scale / row.total)};
  g.rows[r] = out;
}

/* Where the parts of a row's logits lie. */
typedef struct head_parts {
  const float *logits[WEFT_DEVICES_MAX];
  uint32_t token[WEFT_DEVICES_MAX + 1];
} head_parts;

static __global__ void __launch_bounds__(FINISH_THREADS)
    join_kernel(const __grid_constant__ head_group g, const head_outputs o, const __grid_constant__ head_parts parts) {
  launch_dependents_and_wait();
  uint32_t r = blockIdx.x, part = 0;
  row_result row;
  float u = o.u[r];
  measure_row(g, r, u, &row);
  while (parts.token[part + 1] <= row.chunk * CHUNK) part++;
  const float *logits = parts.logits[part] + (uint64_t)r * g.logits_stride - parts.token[part];
  int32_t drawn = draw_in_chunk(g, r, logits, row, (double)u * row.total);
  if (threadIdx.x == 0) give_row(g, o, r, row, drawn);
}

weft_status head_measure(cuda_device *d, const head_group *group, const head_outputs *outputs) {
  head_outputs none;
  memset(&none, 0, sizeof none);
  cuda_start(d, stats_kernel, dim3(cuda_ceil(group->n_chunks, STAT_THREADS / 32), group->n_rows), STAT_THREADS, 0,
             *group);
  weft_status status = cuda_launched(d, "statistics of logits");
  if (status != WEFT_OK) return status;
  cuda_start(d, finish_kernel, group->n_rows, FINISH_THREADS, 0, *group, outputs == NULL ? none : *outputs);
  return cuda_launched(d, "statistics of rows");
}

/* ---- the ops -------------------------------------------------------------------------------------------- */

void head_cut(cuda_cutter *cutter, const weft_weight *weight, uint32_t n_rows, bool soft, head_group *group) {
  group->weight = weight;
  group->n_rows = n_rows;
  group->n_vocab = weight->n_out;
  group->n_chunks = cuda_ceil(weight->n_out, CHUNK);
  group->stats = (chunk_stat *)cuda_cut(cutter, (uint64_t)n_rows * group->n_chunks * sizeof(chunk_stat));
  if (!soft) return;
  group->rows = (row_stat *)cuda_cut(cutter, n_rows * sizeof(row_stat));
  if (soft_has_integers(weight))
    soft_integers_cut(cutter, n_rows, group);
  else
    soft_cut(cutter, n_rows, group);
}

typedef struct stats_plan {
  head_group group;
  float *logits;
  void *x;
  const uint32_t *const *allowed; /* device, as want: NULL where the op has none */
  const uint8_t *want;
  uint64_t n_bytes;
} stats_plan;

/* Rows whose logits are made at once. From integers of the weight more are: they are read once for all rows of a
 * group, and are twice as many bytes as codes. */
static uint32_t most_rows(const weft_weight *weight) {
  return weight->layout == INT8_LAYOUT ? (uint32_t)HEAD_ROWS_INT8 : (uint32_t)HEAD_ROWS;
}

static stats_plan plan_stats(const weft_head_stats_args *args, void *scratch) {
  stats_plan p;
  memset(&p, 0, sizeof p);
  cuda_cutter cutter = {(uint8_t *)scratch, 0};
  uint32_t most = most_rows(args->weight), n = args->n_rows < most ? args->n_rows : most;
  p.x = cuda_cut(&cutter, gemm_from_f32_bytes(args->weight, n));
  p.group.logits_stride = ((uint64_t)args->weight->n_out + 3) / 4 * 4;
  p.logits = (float *)cuda_cut(&cutter, 4 * n * p.group.logits_stride);
  p.group.logits = p.logits;
  p.group.wide = true;
  head_cut(&cutter, args->weight, n, args->soft != NULL, &p.group);
  p.n_bytes = cutter.at;
  return p;
}

uint64_t cuda_head_stats_scratch(weft_device *device, const weft_head_stats_args *args) {
  (void)device;
  return plan_stats(args, NULL).n_bytes;
}

/* Whether soft rows are to be made. A step that may become a graph makes them in any case, because another time that
 * graph is launched some may be wanted. */
static bool any_wanted(const cuda_device *d, const weft_head_stats_args *args, uint32_t first, uint32_t n) {
  if (args->soft == NULL) return false;
  if (d->base.graphs != NULL && d->base.graphs->mode != STEP_GRAPHS_RUN) return true;
  for (uint32_t r = first; r < first + n; r++)
    if (args->want_soft == NULL || args->want_soft[r] != 0) return true;
  return false;
}

/* Makes a plan (cuda.h) of the op's host arrays. */
static weft_status place_tables(cuda_device *d, const weft_head_stats_args *args, stats_plan *p) {
  uint64_t allowed_bytes = args->allowed == NULL ? 0 : 8ull * args->n_rows;
  uint64_t n_bytes = allowed_bytes + (args->want_soft == NULL ? 0 : args->n_rows);
  const uint8_t *on_device = NULL;
  if (n_bytes == 0) return WEFT_OK;
  uint8_t *plan = cuda_plan_begin(d, n_bytes);
  if (plan == NULL) return WEFT_E_TOO_LARGE;
  if (args->allowed != NULL) memcpy(plan, args->allowed, allowed_bytes);
  if (args->want_soft != NULL) memcpy(plan + allowed_bytes, args->want_soft, args->n_rows);
  weft_status status = cuda_plan_end(d, n_bytes, &on_device);
  if (args->allowed != NULL) p->allowed = (const uint32_t *const *)(const void *)on_device;
  if (args->want_soft != NULL) p->want = on_device + allowed_bytes;
  return status;
}

weft_status cuda_head_stats_walk(weft_device *device, const weft_head_stats_args *args) {
  stats_plan p;
  memset(&p, 0, sizeof p);
  return place_tables(cuda_of(device), args, &p);
}

static __global__ void cap_kernel(float *logits, uint64_t stride, uint32_t n_vocab, float cap, float slope,
                                  uint8_t *bad) {
  launch_dependents_and_wait();
  uint32_t v = blockIdx.x * blockDim.x + threadIdx.x;
  if (v >= n_vocab) return;
  float *at = logits + (uint64_t)blockIdx.y * stride + v, raw = *at;
  if (!isfinite(raw)) bad[blockIdx.y] = 1;
  if (cap != 0.0f) *at = cap_logit(raw, cap, slope);
}

/* At most 65535 rows. Flags rows with a logit that is not finite before the cap; clears no flag. */
static weft_status cap_rows(cuda_device *d, float *logits, uint64_t stride, uint32_t n, uint32_t n_vocab, float cap,
                            uint8_t *bad) {
  cuda_start(d, cap_kernel, dim3(cuda_ceil(n_vocab, 256), n), 256, 0, logits, stride, n_vocab, cap, cap_slope(cap),
             bad);
  return cuda_launched(d, "capping logits");
}

/* The rows of a group whose soft rows are made: without the blocks of HEAD_ROWS rows at either end of which none is
 * wanted. */
static void choose_soft_rows(const cuda_device *d, const weft_head_stats_args *args, head_group *g, uint32_t first) {
  uint32_t at = 0, end = g->n_rows;
  while (at + HEAD_ROWS < end && !any_wanted(d, args, first + at, HEAD_ROWS)) at += HEAD_ROWS;
  for (uint32_t last; (last = (end - 1) / HEAD_ROWS * HEAD_ROWS) > at; end = last)
    if (any_wanted(d, args, first + last, end - last)) break;
  g->soft_rows.first = at;
  g->soft_rows.n = end - at;
}

static weft_status soften_group(cuda_device *d, const head_group *group) {
  if (group->soft_rows.numbers != NULL) return d->set->soft_integers(d, group);
  head_group g = *group;
  const uint32_t at = g.soft_rows.first;
  g.n_rows = g.soft_rows.n;
  g.logits += at * g.logits_stride;
  g.temperature += at;
  if (g.allowed != NULL) g.allowed += at;
  g.rows += at;
  g.soft += at * g.soft_stride;
  if (g.want != NULL) g.want += at;
  return d->set->soft(d, &g);
}

static weft_status stats_group(cuda_device *d, const weft_head_stats_args *args, const stats_plan *p, uint32_t first,
                               uint32_t n) {
  head_group g = p->group;
  float *logits = p->logits;
  if (args->logits != NULL) {
    g.logits = logits = args->logits + (uint64_t)first * args->logits_stride;
    g.logits_stride = args->logits_stride;
    g.wide = g.logits_stride % 4 == 0 && (uintptr_t)args->logits % 16 == 0;
  }
  bool soft = any_wanted(d, args, first, n);
  g.n_rows = n;
  g.cap = args->cap;
  g.slope = cap_slope(args->cap);
  g.temperature = args->temperature + first;
  g.allowed = args->allowed == NULL ? NULL : p->allowed + first;
  g.soft_scale = args->soft_scale;
  g.soft = args->soft == NULL ? NULL : args->soft + (uint64_t)first * args->soft_stride;
  g.soft_stride = args->soft_stride;
  g.want = args->want_soft == NULL ? NULL : p->want + first;
  if (soft)
    choose_soft_rows(d, args, &g, first);
  else
    g.rows = NULL, g.soft_rows.numbers = NULL;
  bool draws = args->drawn != NULL;
  head_outputs o = {args->u + first,
                    args->argmax + first,
                    draws ? args->drawn + first : NULL,
                    args->top + first,
                    draws ? args->log_total + first : NULL,
                    draws ? args->entropy + first : NULL,
                    args->bad + first};
  weft_status status = gemm_from_f32(d, args->weight, args->h + (uint64_t)first * args->h_stride, args->h_stride, n,
                                     logits, g.logits_stride, p->x);
  if (status == WEFT_OK) status = head_measure(d, &g, &o);
  if (status == WEFT_OK && soft) status = soften_group(d, &g);
  if (status != WEFT_OK || args->logits == NULL || args->cap == 0.0f) return status;
  return cap_rows(d, logits, g.logits_stride, n, g.n_vocab, args->cap, args->bad + first);
}

weft_status cuda_head_stats(weft_device *device, const weft_head_stats_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  stats_plan p = plan_stats(args, args->scratch);
  weft_status status = place_tables(d, args, &p);
  const uint32_t most = most_rows(args->weight);
  for (uint32_t first = 0; status == WEFT_OK && first < args->n_rows; first += most) {
    uint32_t left = args->n_rows - first;
    status = stats_group(d, args, &p, first, left < most ? left : most);
  }
  return status;
}

uint64_t cuda_head_rows_scratch(weft_device *device, const weft_head_rows_args *args) {
  (void)device;
  return gemm_from_f32_bytes(args->weight, args->n_rows);
}

weft_status cuda_head_rows(weft_device *device, const weft_head_rows_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  weft_status status = cuda_judge(d, cudaMemsetAsync(args->bad, 0, args->n_rows, d->stream), "clearing flags");
  if (status == WEFT_OK && args->h != NULL) {
    status = gemm_from_f32(d, args->weight, args->h, args->h_stride, args->n_rows, args->logits, args->logits_stride,
                           args->scratch);
  }
  for (uint32_t first = 0; status == WEFT_OK && first < args->n_rows; first += 65535) {
    uint32_t n = args->n_rows - first < 65535 ? args->n_rows - first : 65535;
    status = cap_rows(d, args->logits + (uint64_t)first * args->logits_stride, args->logits_stride, n,
                      args->weight->n_out, args->cap, args->bad + first);
  }
  return status;
}

/* ---- a vocabulary in ranges ------------------------------------------------------------------------------ */

uint64_t cuda_head_part_scratch(weft_device *device, const weft_head_part_args *args) {
  (void)device;
  return gemm_from_f32_bytes(args->weight, args->n_rows);
}

/* What kernels of chunks ask of a group; n_rows are at most 65535. */
static head_group group_of(uint32_t n_rows, uint32_t n_tokens, uint32_t n_vocab, float cap, const float *temperature,
                           const uint32_t *allowed, const void *chunks) {
  head_group g;
  memset(&g, 0, sizeof g);
  g.n_rows = n_rows;
  g.n_vocab = n_tokens;
  g.n_chunks = cuda_ceil(n_vocab, CHUNK);
  g.cap = cap;
  g.slope = cap_slope(cap);
  g.temperature = temperature;
  g.mask = allowed;
  g.stats = (chunk_stat *)(uintptr_t)chunks;
  return g;
}

weft_status cuda_head_part(weft_device *device, const weft_head_part_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  if (args->n_rows > 65535) return WEFT_E_UNSUPPORTED;
  weft_status status = gemm_from_f32_part(d, args->weight, args->first, args->n_tokens, args->h, args->h_stride,
                                          args->n_rows, args->logits, args->logits_stride, args->scratch);
  if (status != WEFT_OK || args->chunks == NULL) return status;
  head_group g = group_of(args->n_rows, args->token + args->n_tokens, args->n_vocab, args->cap, args->temperature,
                          args->allowed, args->chunks);
  g.logits = args->logits - args->token; /* so that a token's place is that in the vocabulary */
  g.logits_stride = args->logits_stride;
  g.wide = args->logits_stride % 4 == 0 && (uintptr_t)args->logits % 16 == 0;
  uint32_t n_chunks = cuda_ceil(args->n_tokens, CHUNK);
  cuda_start(d, part_kernel, dim3(cuda_ceil(n_chunks, STAT_THREADS / 32), args->n_rows), STAT_THREADS, 0, g,
             args->token / CHUNK);
  return cuda_launched(d, "statistics of a range of logits");
}

weft_status cuda_head_join(weft_device *device, const weft_head_join_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  uint32_t n_vocab = args->token[args->n_parts];
  head_group g = group_of(args->n_rows, n_vocab, n_vocab, args->cap, args->temperature, args->allowed, args->chunks);
  g.logits_stride = args->logits_stride;
  head_outputs o = {args->u, args->argmax, args->drawn, args->top, args->log_total, args->entropy, args->bad};
  head_parts parts;
  memcpy(parts.logits, args->logits, sizeof parts.logits);
  memcpy(parts.token, args->token, sizeof parts.token);
  cuda_start(d, join_kernel, args->n_rows, FINISH_THREADS, 0, g, o, parts);
  return cuda_launched(d, "statistics of rows in parts");
}

static head_group plan_soft(const weft_soft_args *args, void *scratch, uint64_t *n_bytes) {
  head_group g;
  memset(&g, 0, sizeof g);
  cuda_cutter cutter = {(uint8_t *)scratch, 0};
  head_cut(&cutter, args->weight, args->n_rows < HEAD_ROWS ? args->n_rows : HEAD_ROWS, true, &g);
  *n_bytes = cutter.at;
  return g;
}

uint64_t cuda_soft_scratch(weft_device *device, const weft_soft_args *args) {
  uint64_t n_bytes;
  (void)device;
  (void)plan_soft(args, NULL, &n_bytes);
  return n_bytes;
}

weft_status cuda_soft(weft_device *device, const weft_soft_args *args) {
  cuda_device *d = cuda_of(device);
  uint64_t n_bytes;
  head_group g = plan_soft(args, args->scratch, &n_bytes);
  weft_status status = d->lost ? WEFT_E_DEVICE : WEFT_OK;
  g.logits_stride = args->logits_stride;
  g.wide = args->logits_stride % 4 == 0 && (uintptr_t)args->logits % 16 == 0;
  g.soft_scale = args->scale;
  g.soft_stride = args->soft_stride;
  for (uint32_t first = 0; status == WEFT_OK && first < args->n_rows; first += HEAD_ROWS) {
    g.n_rows = args->n_rows - first < HEAD_ROWS ? args->n_rows - first : HEAD_ROWS;
    g.logits = args->logits + (uint64_t)first * args->logits_stride;
    g.temperature = args->temperature + first;
    g.soft = args->soft + (uint64_t)first * args->soft_stride;
    g.soft_rows.first = 0, g.soft_rows.n = g.n_rows;
    status = head_measure(d, &g, NULL);
    if (status == WEFT_OK) status = soften_group(d, &g);
  }
  return status;
}
