/* SPDX-License-Identifier: MIT */
/* classes: the list of all classes' tokens is cut into chunks, wherever classes begin and end, so that every warp has
 * as much to do whatever the sizes of the classes. A warp copies the logits of its chunk into shared memory. Then it
 * looks at the classes there, 32 at a time: the part of a class that lies in the chunk is measured by one lane where it
 * has few tokens, else by the whole warp. A class that lies in one chunk is done with that. Parts of other classes go
 * to scratch, and a second kernel merges them.
 *
 * Law: the chunks are positions in the list, so what a row's numbers depend on is that row and the list alone. Within a
 * part a lane adds tokens ascending, each 32nd of them where the warp works together, and the lanes' sums by a tree;
 * the parts of a class are added likewise: by lanes, each 32nd part ascending, then by a tree. */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cuda.h"

enum { THREADS = 256, WARPS = THREADS / 32, CHUNK = 1024, FEW = 32, AT_ONCE = 8 };
#define NO_CLASS  0xFFFFFFFFu
#define ALL_LANES 0xFFFFFFFFu

/* Of some tokens of a class: sum is that of exp(z - z of the largest logit). best is -1 where no token counts. */
typedef struct class_part {
  double sum;
  float most; /* the largest logit */
  int32_t best;
} class_part;

typedef struct classes_kernel_args {
  weft_classes_args op;
  class_part *part; /* [n_rows][n_chunks][2]: of a class that began in an earlier chunk; of one that goes on */
  uint32_t *open;   /* [n_chunks] the class that begins in the chunk and goes on behind it, or NO_CLASS */
  uint32_t n_chunks;
} classes_kernel_args;

/* What a warp looks at: list positions begin .. end - 1 of a row. Tokens that do not count have the logit -inf. */
typedef struct class_chunk {
  const float *logits; /* of the row */
  float *kept;         /* shared: the chunk's logits */
  float temperature;
  uint32_t row, lane;
  uint64_t begin, end;
} class_chunk;

/* Where the logit of position i of the chunk is kept: lanes that read classes of 32 tokens read from 32 banks. */
static __host__ __device__ __forceinline__ uint32_t place_of(uint32_t i) {
  return i + i / 32;
}

static __device__ __forceinline__ float scaled(const class_chunk &w, float logit) {
  return __fdiv_rn(logit, w.temperature);
}

static __device__ void stage_logits(const classes_kernel_args &a, const class_chunk &w) {
  const uint32_t *allowed = a.op.allowed;
  for (uint32_t k = 0; k < CHUNK; k += 32 * AT_ONCE) {
    int32_t token[AT_ONCE];
    float logit[AT_ONCE];
#pragma unroll
    for (uint32_t u = 0; u < AT_ONCE; u++) {
      uint64_t i = w.begin + k + u * 32 + w.lane;
      token[u] = i < a.op.n_tokens ? a.op.token[i] : -1;
    }
#pragma unroll
    for (uint32_t u = 0; u < AT_ONCE; u++) {
      uint32_t v = (uint32_t)token[u];
      bool counts = token[u] >= 0 && (allowed == NULL || (allowed[v / 32] >> v % 32 & 1u) != 0);
      logit[u] = counts ? w.logits[v] : -INFINITY;
    }
#pragma unroll
    for (uint32_t u = 0; u < AT_ONCE; u++)
      w.kept[place_of(k + u * 32 + w.lane)] = isfinite(logit[u]) ? logit[u] : -INFINITY;
  }
  __syncwarp();
}

/* How many of the first n numbers of at, which ascend, are below `begin`. */
static __device__ uint32_t count_below(const uint32_t *at, uint32_t n, uint64_t begin, uint32_t lane) {
  uint64_t low = 0, high = n;
  while (low < high) {
    uint64_t step = (high - low) / 32 + 1, probe = low + lane * step;
    uint32_t n_below = (uint32_t)__popc(__ballot_sync(ALL_LANES, probe < high && at[probe] < begin));
    if (low + n_below * step < high) high = low + n_below * step;
    if (n_below > 0) low += (n_below - 1) * step + 1;
  }
  return (uint32_t)low;
}

static __device__ __forceinline__ void note_largest(const class_chunk &w, uint32_t i, float *most, uint32_t *at) {
  float logit = w.kept[place_of(i)];
  if (logit > *most) *most = logit, *at = i;
}

static __device__ __forceinline__ double weight_at(const class_chunk &w, uint32_t i, float z) {
  return (double)expf(__fsub_rn(scaled(w, w.kept[place_of(i)]), z));
}

/* Positions from .. to - 1 of the chunk. best is a position there. */
static __device__ class_part measure_alone(const class_chunk &w, uint32_t from, uint32_t to) {
  class_part p = {0.0, -INFINITY, -1};
  uint32_t at = NO_CLASS;
  for (uint32_t i = from; i < to; i++) note_largest(w, i, &p.most, &at);
  p.best = (int32_t)at;
  if (p.best < 0) return p;
  float z = scaled(w, p.most);
  for (uint32_t i = from; i < to; i++) p.sum += weight_at(w, i, z);
  return p;
}

/* The same by a warp, every lane of which gets the result. */
static __device__ class_part measure_together(const class_chunk &w, uint32_t from, uint32_t to) {
  class_part p = {0.0, -INFINITY, -1};
  float own = -INFINITY;
  uint32_t at = NO_CLASS;
  for (uint32_t i = from + w.lane; i < to; i += 32) note_largest(w, i, &own, &at);
  p.most = warp_max(own);
  p.best = (int32_t)__reduce_min_sync(ALL_LANES, own == p.most ? at : NO_CLASS);
  if (p.best < 0) return p;
  float z = scaled(w, p.most);
  for (uint32_t i = from + w.lane; i < to; i += 32) p.sum += weight_at(w, i, z);
  p.sum = warp_sum(p.sum);
  return p;
}

/* best is a token here. */
static __device__ void give_class(const weft_classes_args &op, uint32_t row, uint32_t which, const class_part &p) {
  uint64_t out = (uint64_t)row * op.n_classes + which;
  uint32_t first = op.at[which];
  float z = __fdiv_rn(p.most, op.temperature[row]);
  bool found = p.best >= 0;
  op.best[out] = found ? p.best : first < op.at[which + 1] ? op.token[first] : -1;
  op.log_sum[out] = found && isfinite(z) ? (float)((double)z + log(p.sum)) : WEFT_CLASSES_NONE;
}

/* Returns the class if it begins in this chunk and goes on behind it. */
static __device__ uint32_t give_part(const classes_kernel_args &a, const class_chunk &w, uint32_t which, class_part p) {
  uint64_t chunk = w.begin / CHUNK;
  bool begins = a.op.at[which] >= w.begin, ends = a.op.at[which + 1] <= w.end;
  if (p.best >= 0) p.best = a.op.token[w.begin + (uint32_t)p.best];
  if (begins && ends) {
    give_class(a.op, w.row, which, p);
    return NO_CLASS;
  }
  a.part[((uint64_t)w.row * a.n_chunks + chunk) * 2 + (begins ? 1 : 0)] = p;
  return begins ? which : NO_CLASS;
}

/* The 32 classes from `first` on, a lane each. */
static __device__ uint32_t measure_classes(const classes_kernel_args &a, const class_chunk &w, uint64_t first) {
  uint64_t which = first + w.lane;
  uint32_t from = 0, to = 0, open = NO_CLASS;
  bool mine = which < a.op.n_classes && a.op.at[which] < w.end;
  if (mine) {
    uint64_t at = a.op.at[which], end = a.op.at[which + 1];
    from = at > w.begin ? (uint32_t)(at - w.begin) : 0;
    to = (uint32_t)((end < w.end ? end : w.end) - w.begin);
  }
  bool many = to - from > FEW;
  if (mine && !many) open = give_part(a, w, (uint32_t)which, measure_alone(w, from, to));
  for (uint32_t left = __ballot_sync(ALL_LANES, many); left != 0; left &= left - 1) {
    int lane = __ffs((int)left) - 1;
    uint32_t its_from = __shfl_sync(ALL_LANES, from, lane), its_to = __shfl_sync(ALL_LANES, to, lane);
    class_part p = measure_together(w, its_from, its_to);
    if (w.lane == (uint32_t)lane) open = give_part(a, w, (uint32_t)which, p);
  }
  return open;
}

/* A class without tokens belongs to the chunk in which it would begin: there is a last chunk for those at the end. */
static __global__ void __launch_bounds__(THREADS) chunks_kernel(const __grid_constant__ classes_kernel_args a) {
  __shared__ float kept[WARPS][CHUNK + CHUNK / 32];
  uint32_t chunk = blockIdx.x * WARPS + threadIdx.x / 32, row = blockIdx.y;
  launch_dependents_and_wait();
  if (chunk >= a.n_chunks) return;
  class_chunk w;
  w.logits = a.op.logits + row * a.op.logits_stride;
  w.kept = kept[threadIdx.x / 32];
  w.temperature = a.op.temperature[row];
  w.row = row;
  w.lane = threadIdx.x % 32;
  w.begin = (uint64_t)chunk * CHUNK;
  w.end = w.begin + CHUNK;
  stage_logits(a, w);
  uint32_t open = NO_CLASS, first = count_below(a.op.at, a.op.n_classes, w.begin, w.lane);
  if (first > 0 && a.op.at[first] > w.begin) first -= 1; /* the class before it reaches into this chunk */
  for (uint64_t at = first; at < a.op.n_classes && a.op.at[at] < w.end; at += 32)
    open = min(open, measure_classes(a, w, at));
  open = __reduce_min_sync(ALL_LANES, open);
  if (row == 0 && w.lane == 0) a.open[chunk] = open;
}

/* A warp merges the parts of the class that begins in a chunk and goes on behind it. */
static __global__ void __launch_bounds__(THREADS) join_kernel(const __grid_constant__ classes_kernel_args a) {
  uint32_t chunk = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.y;
  launch_dependents_and_wait();
  uint32_t which = chunk < a.n_chunks ? a.open[chunk] : NO_CLASS;
  if (which == NO_CLASS) return;
  const class_part *part = a.part + ((uint64_t)row * a.n_chunks + chunk) * 2;
  uint32_t n = (a.op.at[which + 1] - 1) / CHUNK - chunk + 1, at = NO_CLASS;
  float own = -INFINITY, temperature = a.op.temperature[row];
  auto part_at = [&](uint32_t i) { return part[i == 0 ? 1 : 2ull * i]; };
  for (uint32_t i = lane; i < n; i += 32) {
    class_part p = part_at(i);
    if (p.best >= 0 && p.most > own) own = p.most, at = i;
  }
  class_part all = {0.0, warp_max(own), -1};
  at = __reduce_min_sync(ALL_LANES, own == all.most ? at : NO_CLASS);
  double z = (double)__fdiv_rn(all.most, temperature);
  for (uint32_t i = lane; i < n; i += 32) {
    class_part p = part_at(i);
    float its = __fdiv_rn(p.most, temperature);
    if (p.best >= 0 && isfinite(its)) all.sum += p.sum * exp((double)its - z);
  }
  all.sum = warp_sum(all.sum);
  if (at != NO_CLASS) all.best = part_at(at).best;
  if (lane == 0) give_class(a.op, row, which, all);
}

static classes_kernel_args cut_scratch(const weft_classes_args *args, void *scratch, uint64_t *n_bytes) {
  classes_kernel_args a;
  cuda_cutter cutter = {(uint8_t *)scratch, 0};
  a.op = *args;
  a.n_chunks = args->n_tokens / CHUNK + 1;
  a.part = (class_part *)cuda_cut(&cutter, (uint64_t)args->n_rows * a.n_chunks * 2 * sizeof(class_part));
  a.open = (uint32_t *)cuda_cut(&cutter, (uint64_t)a.n_chunks * sizeof(uint32_t));
  *n_bytes = cutter.at;
  return a;
}

uint64_t cuda_classes_scratch(weft_device *device, const weft_classes_args *args) {
  uint64_t n_bytes;
  (void)device;
  (void)cut_scratch(args, NULL, &n_bytes);
  return n_bytes;
}

weft_status cuda_classes(weft_device *device, const weft_classes_args *args) {
  cuda_device *d = cuda_of(device);
  uint64_t n_bytes;
  classes_kernel_args a = cut_scratch(args, args->scratch, &n_bytes);
  weft_status status = d->lost ? WEFT_E_DEVICE : WEFT_OK;
  for (uint32_t left = args->n_rows, n; left > 0 && status == WEFT_OK; left -= n) {
    n = left < 65535 ? left : 65535;
    dim3 grid(cuda_ceil(a.n_chunks, WARPS), n);
    cuda_start(d, chunks_kernel, grid, THREADS, 0, a);
    status = cuda_launched(d, "parts of classes");
    if (status != WEFT_OK) break;
    cuda_start(d, join_kernel, grid, THREADS, 0, a);
    status = cuda_launched(d, "classes");
    a.op.logits += n * args->logits_stride;
    a.op.temperature += n;
    a.op.best += (uint64_t)n * args->n_classes;
    a.op.log_sum += (uint64_t)n * args->n_classes;
    a.part += (uint64_t)n * a.n_chunks * 2;
  }
  return status;
}
