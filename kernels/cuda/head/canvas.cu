/* SPDX-License-Identifier: MIT */
/* canvas: a block computes the rule of canvas.h for one canvas. A position's rank is found by counting those before it.
 * The two sums add f32 numbers one after the other, so one thread makes each of them. */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cuda.h"

enum { THREADS = 256, POSITIONS = WEFT_CANVAS_MAX, HISTORY = WEFT_STABILITY_MAX };

typedef struct canvas_shared {
  float entropy[POSITIONS], sorted[POSITIONS]; /* by position; ascending */
  uint16_t rank[POSITIONS];
  uint8_t accepted[POSITIONS]; /* by rank */
  float mean;
  uint32_t n_accepted;
} canvas_shared;

static __device__ void rank_positions(canvas_shared *s, const float *entropy, uint32_t n) {
  for (uint32_t i = threadIdx.x; i < n; i += THREADS) s->entropy[i] = entropy[i], s->sorted[i] = 0.0f;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
    float own = s->entropy[i];
    uint32_t rank = 0;
    for (uint32_t k = 0; k < n; k++) rank += s->entropy[k] < own || (s->entropy[k] == own && k < i) ? 1 : 0;
    s->rank[i] = (uint16_t)rank;
    s->sorted[rank] = own;
  }
  __syncthreads();
}

static __device__ void add_up(canvas_shared *s, float bound, uint32_t n) {
  if (threadIdx.x == 0) {
    float sum = 0.0f;
#pragma unroll 8
    for (uint32_t r = 0; r < n; r++) {
      sum = __fadd_rn(sum, s->sorted[r]);
      bool accepted = __fsub_rn(sum, s->sorted[r]) <= bound;
      s->accepted[r] = accepted ? 1 : 0;
    }
    s->n_accepted = 0;
  }
  if (threadIdx.x == 32) {
    float total = 0.0f;
#pragma unroll 8
    for (uint32_t i = 0; i < n; i++) total = __fadd_rn(total, s->entropy[i]);
    s->mean = __fdiv_rn(total, (float)n);
  }
  __syncthreads();
}

static __global__ void __launch_bounds__(THREADS) canvas_kernel(const __grid_constant__ weft_canvas_args a) {
  launch_dependents_and_wait();
  __shared__ canvas_shared s;
  const weft_canvas_row row = a.row[blockIdx.x];
  uint32_t n = a.n, first = row.first;
  int32_t *tokens = a.state + row.slot * weft_canvas_state_words(n), *history = tokens + n,
          *kept = history + HISTORY * n;
  uint32_t n_history = row.rule.step == 0 ? 0 : (uint32_t)kept[0];
  weft_canvas_result out = {1, 0, 0, 0, 0, 0.0f};
  if (row.rule.step != 0 && kept[1] != 0) {
    if (threadIdx.x == 0) a.out[blockIdx.x] = out;
    return;
  }
  rank_positions(&s, a.entropy + first, n);
  add_up(&s, row.rule.entropy_bound, n);
  bool same = true, bad = false;
  uint32_t n_accepted = 0;
  for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
    int32_t argmax = a.argmax[first + i], drawn = a.drawn[first + i];
    uint8_t accepted = row.rule.agree != 0 && drawn != argmax ? 0 : s.accepted[s.rank[i]];
    int32_t next = accepted != 0 ? drawn : a.fresh[first + i];
    n_accepted += accepted;
    a.accepted[first + i] = accepted;
    a.next[first + i] = tokens[i] = next;
    bad |= a.bad[first + i] != 0;
    for (uint32_t h = 0; h < row.rule.stability && h < n_history; h++) same &= history[h * n + i] == argmax;
    for (uint32_t h = HISTORY - 1; h > 0; h--) history[h * n + i] = history[(h - 1) * n + i];
    history[i] = argmax;
  }
  if (n_accepted > 0) atomicAdd(&s.n_accepted, n_accepted);
  same = __syncthreads_and(same ? 1 : 0) != 0 && n_history >= row.rule.stability;
  bad = __syncthreads_or(bad ? 1 : 0) != 0;
  if (threadIdx.x != 0) return;
  out.is_void = 0;
  out.bad = bad ? 1 : 0;
  out.n_accepted = s.n_accepted;
  out.mean_entropy = s.mean;
  out.stopped = same && s.mean < row.rule.confidence ? 1 : 0;
  out.done = out.stopped != 0 || row.rule.step + 1 >= row.rule.max_steps ? 1 : 0;
  kept[0] = (int32_t)(n_history < HISTORY ? n_history + 1 : HISTORY);
  kept[1] = (int32_t)out.done;
  a.out[blockIdx.x] = out;
}

weft_status cuda_canvas(weft_device *device, const weft_canvas_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  cuda_start(d, canvas_kernel, args->n_rows, THREADS, 0, *args);
  return cuda_launched(d, "canvas");
}
