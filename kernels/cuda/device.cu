/* SPDX-License-Identifier: MIT */
/* The cuda device itself: opening, memory, copies, and the table of ops. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/memory_room.h"
#include "kernels/card_find.h"
#include "kernels/cuda/copies.h"
#include "kernels/cuda/gemm/w8a8.h"
#include "kernels/cuda/latent/latent.h"
#include "kernels/cuda/module.h"
#include "kernels/cuda/moe/host_experts.h"
#include "kernels/cuda/set.h"
#include "kernels/cuda/weights/int8_weights.h"

weft_status cuda_judge(cuda_device *d, cudaError_t error, const char *what) {
  if (error == cudaSuccess) return WEFT_OK;
  (void)cudaGetLastError(); /* clears an error that is not sticky, so that the next call does not report it */
  if (error == cudaErrorMemoryAllocation) return WEFT_E_NO_MEMORY;
  if (!d->lost) {
    weft_log(WEFT_LOG_ERROR, "cuda: card %d: %s: %s (%s); the device is lost", d->card, what, cudaGetErrorString(error),
             cudaGetErrorName(error));
  }
  d->lost = true;
  return WEFT_E_DEVICE;
}

weft_status cuda_launched(cuda_device *d, const char *what) {
  d->choice = NULL;
  return cuda_judge(d, cudaGetLastError(), what);
}

/* Cheap where the thread works on the card already. */
static cudaError_t enter_card(int card) {
  static thread_local int current = -1;
  if (card == current) return cudaSuccess;
  cudaError_t error = cudaSetDevice(card);
  if (error == cudaSuccess) current = card;
  return error;
}

static void device_enter_card(weft_device *device) {
  cuda_device *d = cuda_of(device);
  (void)cuda_judge(d, enter_card(d->card), "choosing a card");
}

/* ---- memory --------------------------------------------------------------------------------------------- */

/* Of which the memory is the host's, a bit for each card (--devices counts to 63). */
static uint64_t cards_of_one_memory;

static bool has_one_memory(int card) {
  return (__atomic_load_n(&cards_of_one_memory, __ATOMIC_RELAXED) >> card & 1u) != 0;
}

static uint64_t device_memory_left(weft_device *device) {
  cuda_device *d = cuda_of(device);
  size_t driver_says = 0, all_bytes = 0;
  if (d->lost || cuda_judge(d, cudaMemGetInfo(&driver_says, &all_bytes), "asking for free memory") != WEFT_OK) return 0;
  bool one = has_one_memory(d->card);
  uint64_t free_bytes = card_free_bytes(one, driver_says, one ? weft_memory_available() : 0, all_bytes);
  return free_bytes > CUDA_KEPT_BYTES ? free_bytes - CUDA_KEPT_BYTES : 0;
}

weft_status cuda_alloc(cuda_device *d, uint64_t n_bytes, void **out, const char *what) {
  if (d->lost) return WEFT_E_DEVICE;
  if (n_bytes > device_memory_left(&d->base)) return d->lost ? WEFT_E_DEVICE : WEFT_E_NO_MEMORY;
  return cuda_judge(d, cudaMalloc(out, n_bytes == 0 ? 256 : n_bytes), what);
}

static weft_status device_alloc(weft_device *device, uint64_t n_bytes, void **out) {
  return cuda_alloc(cuda_of(device), n_bytes, out, "an allocation");
}

static void device_free(weft_device *device, void *memory) {
  (void)cuda_judge(cuda_of(device), cudaFree(memory), "freeing memory");
}

static weft_status device_alloc_host(weft_device *device, uint64_t n_bytes, void **out) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  cudaError_t error = cudaHostAlloc(out, n_bytes == 0 ? 256 : n_bytes, cudaHostAllocPortable);
  return cuda_judge(d, error, "an allocation of pinned memory");
}

static void device_free_host(weft_device *device, void *memory) {
  (void)cuda_judge(cuda_of(device), cudaFreeHost(memory), "freeing pinned memory");
}

/* ---- copies --------------------------------------------------------------------------------------------- */

/* Leaves the full part of the ring and waits until the next one has been read by the device. */
static weft_status turn_ring(cuda_device *d) {
  weft_status status = cuda_judge(d, cudaEventRecord(d->ring_free[d->ring_part], d->stream), "an event");
  if (status != WEFT_OK) return status;
  d->ring_part = (d->ring_part + 1) % CUDA_RING_PARTS;
  d->ring_at = 0;
  return cuda_judge(d, cudaEventSynchronize(d->ring_free[d->ring_part]), "waiting for an upload");
}

/* ---- pieces of weights ---- */

static weft_status open_pieces(cuda_device *d) {
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < 2 && status == WEFT_OK; i++)
    if (d->piece[i] == NULL) status = cuda_judge(d, cudaEventCreate(&d->piece[i]), "making an event");
  return status;
}

weft_status cuda_piece_begin(cuda_device *d) {
  float ms = 0.0f;
  if (d->base.pace == NULL) return WEFT_OK;
  weft_status status = open_pieces(d);
  if (status == WEFT_OK && d->piece_runs) {
    status = cuda_judge(d, cudaEventSynchronize(d->piece[1]), "waiting for a piece of a weight");
    if (status == WEFT_OK)
      status = cuda_judge(d, cudaEventElapsedTime(&ms, d->piece[0], d->piece[1]), "the time of a piece");
    d->piece_runs = false;
    if (status == WEFT_OK) d->base.pace(d->base.pace_self, (uint64_t)(1e3f * ms));
  }
  return status == WEFT_OK ? cuda_judge(d, cudaEventRecord(d->piece[0], d->stream), "an event") : status;
}

weft_status cuda_piece_end(cuda_device *d) {
  if (d->base.pace == NULL) return WEFT_OK;
  d->piece_runs = true;
  return cuda_judge(d, cudaEventRecord(d->piece[1], d->stream), "an event");
}

uint64_t cuda_piece_bytes(const cuda_device *d, uint64_t without_pace) {
  return d->base.pace != NULL && without_pace > CUDA_PACED_BYTES ? (uint64_t)CUDA_PACED_BYTES : without_pace;
}

static weft_status push_piece(cuda_device *d, void *to, const void *from, uint64_t n_bytes) {
  weft_status status = cuda_piece_begin(d);
  if (status == WEFT_OK)
    status = cuda_judge(d, cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDefault, d->stream), "an upload");
  return status == WEFT_OK ? cuda_piece_end(d) : status;
}

/* is_short: of a step, and no piece of a weight. */
static weft_status push(cuda_device *d, void *to, const void *from, uint64_t n_bytes, bool is_short) {
  uint8_t *target = (uint8_t *)to;
  const uint8_t *source = (const uint8_t *)from;
  if (d->lost) return WEFT_E_DEVICE;
  while (n_bytes > 0) {
    if (d->ring_at == CUDA_RING_PART_BYTES) {
      weft_status status = turn_ring(d);
      if (status != WEFT_OK) return status;
    }
    uint64_t room = cuda_piece_bytes(d, CUDA_RING_PART_BYTES - d->ring_at), take = n_bytes < room ? n_bytes : room;
    uint8_t *at = d->ring + (uint64_t)d->ring_part * CUDA_RING_PART_BYTES + d->ring_at;
    memcpy(at, source, take);
    weft_status status = is_short ? copies_enqueue(d, target, at, take, "an upload") : push_piece(d, target, at, take);
    if (status != WEFT_OK) return status;
    d->ring_at += (uint32_t)((take + 63u) / 64u * 64u);
    target += take;
    source += take;
    n_bytes -= take;
  }
  return WEFT_OK;
}

weft_status cuda_push(cuda_device *d, void *to, const void *from, uint64_t n_bytes) {
  return push(d, to, from, n_bytes, false);
}

weft_status cuda_push_source(cuda_device *d, void *to, const weft_weight_source *source, uint64_t at,
                             uint64_t n_bytes) {
  if (source->read == NULL) return cuda_push(d, to, (const uint8_t *)source->bytes + at, n_bytes);
  uint8_t *target = (uint8_t *)to;
  weft_status status = d->lost ? WEFT_E_DEVICE : WEFT_OK;
  for (uint64_t done = 0, take; done < n_bytes && status == WEFT_OK; done += take) {
    uint64_t room = cuda_piece_bytes(d, CUDA_RING_PART_BYTES - 2 * WEFT_READ_ALIGN);
    take = n_bytes - done < room ? n_bytes - done : room;
    if (d->ring_at > 0) status = turn_ring(d);
    if (status != WEFT_OK) return status;
    uint8_t *part = d->ring + (uint64_t)d->ring_part * CUDA_RING_PART_BYTES;
    uint32_t skip = 0;
    status = source->read(source->self, at + done, take, part, &skip);
    if (status != WEFT_OK) return status;
    status = push_piece(d, target + done, part + skip, take);
    d->ring_at = CUDA_RING_PART_BYTES;
  }
  return status;
}

static bool in_graph(const cuda_device *d) {
  return d->base.graphs != NULL && d->base.graphs->mode != STEP_GRAPHS_RUN;
}

uint8_t *cuda_plan_begin(cuda_device *d, uint64_t n_bytes) {
  if (in_graph(d)) return step_graphs_table(&d->graphs, n_bytes);
  return n_bytes > CUDA_PLAN_BYTES ? NULL : d->plans.host + (uint64_t)CUDA_PLANS * CUDA_PLAN_BYTES;
}

weft_status cuda_plan_end(cuda_device *d, uint64_t n_bytes, const uint8_t **out) {
  cuda_plans *p = &d->plans;
  if (in_graph(d)) {
    *out = step_graphs_table_end(&d->graphs, n_bytes);
    return WEFT_OK;
  }
  const uint8_t *made = p->host + (uint64_t)CUDA_PLANS * CUDA_PLAN_BYTES;
  for (uint32_t i = 0; i < CUDA_PLANS; i++) {
    if ((p->next + CUDA_PLANS - 1 - i) % CUDA_PLANS >= CUDA_PLANS / 2) continue; /* it would soon be written over */
    if (p->n_bytes[i] != n_bytes || memcmp(p->host + (uint64_t)i * CUDA_PLAN_BYTES, made, n_bytes) != 0) continue;
    *out = p->device + (uint64_t)i * CUDA_PLAN_BYTES;
    return WEFT_OK;
  }
  uint32_t i = p->next;
  p->next = (i + 1) % CUDA_PLANS;
  p->n_bytes[i] = n_bytes;
  memcpy(p->host + (uint64_t)i * CUDA_PLAN_BYTES, made, n_bytes);
  *out = p->device + (uint64_t)i * CUDA_PLAN_BYTES;
  return cuda_push(d, p->device + (uint64_t)i * CUDA_PLAN_BYTES, made, n_bytes);
}

static weft_status device_upload(weft_device *device, void *to, const void *from, uint64_t n_bytes) {
  return push(cuda_of(device), to, from, n_bytes, n_bytes <= COPIES_SHORT_BYTES);
}

static weft_status device_sync(weft_device *device) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  return cuda_judge(d, cudaStreamSynchronize(d->stream), "the work of a step");
}

static weft_status device_download(weft_device *device, void *to, const void *from, uint64_t n_bytes) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  weft_status status = cuda_judge(d, cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDefault, d->stream), "a download");
  return status == WEFT_OK ? device_sync(device) : status;
}

static weft_status device_copy(weft_device *device, void *to, const void *from, uint64_t n_bytes) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  return copies_enqueue(d, to, from, n_bytes, "a copy");
}

static weft_status device_zero(weft_device *device, void *to, uint64_t n_bytes) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  return cuda_judge(d, cudaMemsetAsync(to, 0, n_bytes, d->stream), "zeroing memory");
}

static weft_status device_mark(weft_device *device, uint32_t mark) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  return cuda_judge(d, cudaEventRecord(d->mark[mark], d->stream), "a mark");
}

static weft_status device_wait(weft_device *device, uint32_t mark) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  return cuda_judge(d, cudaEventSynchronize(d->mark[mark]), "the work of a step");
}

/* ---- several cards -------------------------------------------------------------------------------------- */

/* Has the card write to the memory of another one directly, once, where both can. Where they cannot, or may not, the
 * driver takes what is sent through the host. */
static weft_status reach_peer(cuda_device *d, const cuda_device *other) {
  uint64_t bit = 1ull << other->card % 64;
  if (d->no_peer || other->no_peer || (d->peers & bit) != 0) return WEFT_OK;
  d->peers |= bit;
  int can = 0;
  weft_status status = cuda_judge(d, cudaDeviceCanAccessPeer(&can, d->card, other->card), "asking for a peer");
  if (status != WEFT_OK || can == 0) return status;
  cudaError_t error = cudaDeviceEnablePeerAccess(other->card, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();
    return WEFT_OK;
  }
  return cuda_judge(d, error, "reaching a peer");
}

/* From now on ops of the card may use the memory of the other one, if the answer is yes. */
static bool device_reaches(weft_device *device, weft_device *to) {
  cuda_device *d = cuda_of(device), *other = cuda_of(to);
  int can = 0;
  if (d->lost || other->lost || d->no_peer || other->no_peer) return false;
  if (cuda_judge(d, cudaDeviceCanAccessPeer(&can, d->card, other->card), "asking for a peer") != WEFT_OK) return false;
  return can != 0 && reach_peer(d, other) == WEFT_OK;
}

static weft_status device_send(weft_device *from, weft_device *to, void *to_memory, const void *from_memory,
                               uint64_t n_bytes) {
  cuda_device *d = cuda_of(from), *other = cuda_of(to);
  if (d->lost || other->lost) return WEFT_E_DEVICE;
  if (d->card == other->card) return device_copy(from, to_memory, from_memory, n_bytes);
  weft_status status = reach_peer(d, other);
  if (status != WEFT_OK) return status;
  cudaError_t error = cudaMemcpyPeerAsync(to_memory, other->card, from_memory, d->card, n_bytes, d->stream);
  return cuda_judge(d, error, "a copy to another card");
}

static weft_status device_follow(weft_device *device, weft_device *other, uint32_t mark) {
  cuda_device *d = cuda_of(device), *before = cuda_of(other);
  if (d->lost || before->lost) return WEFT_E_DEVICE;
  return cuda_judge(d, cudaStreamWaitEvent(d->stream, before->mark[mark], 0), "following another card");
}

/* ---- graphs --------------------------------------------------------------------------------------------- */

/* Judges a call that a card or driver may refuse without being broken. */
static weft_status judge_graph(cuda_device *d, cudaError_t error, const char *what) {
  switch (error) {
    case cudaErrorNotSupported:
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
      (void)cudaGetLastError();
      return WEFT_E_UNSUPPORTED;
    default:
      return cuda_judge(d, error, what);
  }
}

static weft_status graph_capture(weft_device *device) {
  cuda_device *d = cuda_of(device);
  weft_status status = cuda_experts_join(d);
  if (status != WEFT_OK) return status;
  return judge_graph(d, cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal), "a capture");
}

static weft_status graph_capture_end(weft_device *device, void **graph) {
  cuda_device *d = cuda_of(device);
  cudaGraph_t captured = NULL;
  (void)cuda_experts_join(d); /* a capture ends where it began */
  weft_status status = judge_graph(d, cudaStreamEndCapture(d->stream, &captured), "the end of a capture");
  *graph = captured;
  return status;
}

static weft_status graph_instantiate(weft_device *device, void *graph, void **exec, uint32_t *n_nodes) {
  cudaGraphExec_t made = NULL;
  size_t n = 0;
  cudaError_t error = cudaGraphGetNodes((cudaGraph_t)graph, NULL, &n);
  if (error == cudaSuccess) error = cudaGraphInstantiate(&made, (cudaGraph_t)graph, 0);
  *exec = made;
  *n_nodes = (uint32_t)n;
  return judge_graph(cuda_of(device), error, "a graph");
}

static weft_status graph_launch(weft_device *device, void *exec) {
  cuda_device *d = cuda_of(device);
  weft_status status = d->lost ? WEFT_E_DEVICE : cuda_experts_join(d);
  return status == WEFT_OK ? cuda_judge(d, cudaGraphLaunch((cudaGraphExec_t)exec, d->stream), "launching a graph")
                           : status;
}

static void free_graph(weft_device *device, void *graph) {
  (void)cuda_judge(cuda_of(device), cudaGraphDestroy((cudaGraph_t)graph), "freeing a graph");
}

/* Where the graph may still run the stream is waited for first. */
static void free_exec(weft_device *device, void *exec, bool has_ended) {
  cuda_device *d = cuda_of(device);
  if (!d->lost && !has_ended) (void)cudaStreamSynchronize(d->stream);
  (void)cuda_judge(d, cudaGraphExecDestroy((cudaGraphExec_t)exec), "freeing a graph");
}

static const step_graphs_calls graph_calls = {graph_capture, graph_capture_end, graph_instantiate,
                                              graph_launch,  free_graph,        free_exec};

/* ---- tables --------------------------------------------------------------------------------------------- */

static bool device_supports(const weft_device *device, weft_type weight_type) {
  (void)device;
  return weft_type_find((int32_t)weight_type) != NULL;
}

/* The tags stand for the orders of gemm/w8a8.h (8 bits), gemm/gemm.h (16 bits; in f16 rows and weights are
 * multiplied by powers of two) and moe/route.h (F32 weights). */
static const char *device_numerics(const weft_device *device, weft_type weight_type) {
  const cuda_device *d = (const cuda_device *)(const void *)device;
  bool deterministic = d->deterministic;
  if (d->w8a8 && w8a8_takes(weight_type)) return "s8x256-i32";
  if (weight_type == WEFT_TYPE_F32) return "f32-lanes";
  if (weight_type == WEFT_TYPE_BF16 || weight_type == WEFT_TYPE_MXFP4)
    return deterministic ? "bf16-k16" : "bf16-k16-free";
  return deterministic ? "f16-k16" : "f16-k16-free";
}

/* Experts are given their rows in 16 bits by the token permutation, and attention leaves int8 alone. In 16 bits a last
 * unit of 64 inputs is as good as whole ones; of fewer than 256 inputs the form would take more room than f32. */
static weft_rows_form device_rows_form(const weft_weight *weight, uint32_t n_rows, weft_rows_way way) {
  gemm_operand operand = gemm_operand_of(weight);
  if (operand == OPERAND_INT8) return w8a8_fits(n_rows, weight->n_in) ? (weft_rows_form)CUDA_ROWS_W8A8 : WEFT_ROWS_F32;
  bool fits = weight->n_in % 64 == 0 && weight->n_in >= 256 && gemm_is_tiled(n_rows, 0);
  return operand == OPERAND_F16 && way == WEFT_ROWS_TO_MATMUL && fits ? (weft_rows_form)CUDA_ROWS_F16
                                                                      : (weft_rows_form)WEFT_ROWS_F32;
}

/* An op runs by kernels of the device's set, or by kernels that run on any card. */
static const char *device_family(const weft_device *device, const char *op) {
  const cuda_set *set = ((const cuda_device *)(const void *)device)->set;
  return card_set_has_op(set->ops, op) ? set->card->name : "any card";
}

static uint64_t device_rows_bytes(weft_rows_form form, uint32_t n_rows, uint32_t n_cols) {
  if (form == CUDA_ROWS_F16) return gemm_x_bytes(n_rows, n_cols);
  uint32_t n_spans = cuda_ceil(n_cols, W8A8_SPAN), n_tiles = cuda_ceil(n_rows, 8);
  return w8a8_scales_at(n_spans, n_tiles) + (uint64_t)n_spans * n_tiles * 32;
}

static void device_close(weft_device *device) {
  cuda_device *d = cuda_of(device);
  if (d->stream != NULL) (void)cudaStreamSynchronize(d->stream);
  if (d->graphs.device != NULL) step_graphs_close(&d->graphs);
  cuda_experts_close(d);
  if (d->arena.calls != NULL) weight_arena_close(&d->arena);
  for (uint32_t i = 0; i < WEFT_MARKS_MAX; i++) {
    if (d->mark[i] != NULL) (void)cudaEventDestroy(d->mark[i]);
  }
  for (uint32_t i = 0; i < 2; i++) {
    if (d->piece[i] != NULL) (void)cudaEventDestroy(d->piece[i]);
  }
  for (uint32_t i = 0; i < CUDA_RING_PARTS; i++) {
    if (d->ring_free[i] != NULL) (void)cudaEventDestroy(d->ring_free[i]);
  }
  if (d->ring != NULL) (void)cudaFreeHost(d->ring);
  if (d->staging != NULL) (void)cudaFree(d->staging);
  if (d->plans.device != NULL) (void)cudaFree(d->plans.device);
  weft_free(d->plans.host);
  if (d->stream != NULL) (void)cudaStreamDestroy(d->stream);
  weft_free(d);
}

static device_calls make_calls(void) {
  device_calls calls;
  memset(&calls, 0, sizeof calls);
  calls.enter = device_enter_card;
  calls.close = device_close;
  calls.alloc = device_alloc;
  calls.free = device_free;
  calls.alloc_host = device_alloc_host;
  calls.free_host = device_free_host;
  calls.memory_left = device_memory_left;
  calls.upload = device_upload;
  calls.download = device_download;
  calls.copy = device_copy;
  calls.zero = device_zero;
  calls.sync = device_sync;
  calls.mark = device_mark;
  calls.wait = device_wait;
  calls.send = device_send;
  calls.reaches = device_reaches;
  calls.exchange = cuda_exchange;
  calls.follow = device_follow;
  calls.weight = cuda_weight_place;
  calls.weight_read = cuda_weight_read;
  if (cuda_sets[0].int8_gemm != NULL) calls.integers_bytes = int8_weights_bytes;
  calls.weight_free = cuda_weight_free;
  calls.weight_unpack = cuda_weight_unpack;
  calls.weight_most = cuda_weight_most;
  calls.expect_experts = cuda_expect_experts;
  calls.weight_is_away = cuda_experts_is_away;
  calls.experts_report = cuda_experts_report;
  calls.step_begins = cuda_experts_step;
  calls.share = cuda_share_calls();
  calls.stretch = cuda_stretch_calls();
  return calls;
}

static weft_kernels make_kernels(const cuda_set *set) {
  weft_kernels k;
  memset(&k, 0, sizeof k);
  k.backend = "cuda";
  k.embed = cuda_embed;
  k.norm = cuda_norm;
  k.matmul = cuda_matmul;
  k.matmul_scratch = cuda_matmul_scratch;
  k.qkv = cuda_qkv;
  k.attention = cuda_attention;
  k.attention_walk = cuda_attention_walk;
  k.attention_scratch = cuda_attention_scratch;
  k.gate = cuda_gate;
  k.assign = cuda_assign;
  k.mix = cuda_mix;
  k.spread = cuda_spread;
  k.latent_rows = cuda_latent_rows;
  k.latent_rows_walk = cuda_latent_rows_walk;
  k.latent_press = cuda_latent_press;
  k.latent_press_walk = cuda_latent_press_walk;
  k.latent_choose = cuda_latent_choose;
  k.latent_choose_walk = cuda_latent_choose_walk;
  k.latent_choose_scratch = cuda_latent_choose_scratch;
  k.latent_attend = cuda_latent_attend;
  k.latent_attend_walk = cuda_latent_attend_walk;
  k.latent_heads = cuda_latent_heads;
  k.engram_rows = cuda_engram_rows;
  k.engram_rows_walk = cuda_engram_rows_walk;
  k.engram_add = cuda_engram_add;
  k.has_limits = true;
  k.delta_rows = cuda_delta_rows;
  k.delta_rows_walk = cuda_delta_rows_walk;
  k.delta_rule = cuda_delta_rule;
  k.delta_rule_walk = cuda_delta_rule_walk;
  k.delta_rule_scratch = cuda_delta_rule_scratch;
  k.route = set->route;
  k.route_scratch = set->route_scratch;
  k.experts = cuda_experts;
  k.experts_scratch = cuda_experts_scratch;
  k.head_stats = cuda_head_stats;
  k.head_stats_walk = cuda_head_stats_walk;
  k.head_stats_scratch = cuda_head_stats_scratch;
  k.head_rows = cuda_head_rows;
  k.head_rows_scratch = cuda_head_rows_scratch;
  k.head_part = cuda_head_part;
  k.head_part_scratch = cuda_head_part_scratch;
  k.head_join = cuda_head_join;
  k.head_groups = cuda_head_groups;
  k.soft = cuda_soft;
  k.soft_scratch = cuda_soft_scratch;
  k.sample = set->sample;
  k.sample_scratch = cuda_sample_scratch;
  k.canvas = cuda_canvas;
  k.classes = cuda_classes;
  k.classes_scratch = cuda_classes_scratch;
  k.move = cuda_move;
  k.supports = device_supports;
  k.rows_form = device_rows_form;
  k.rows_bytes = device_rows_bytes;
  k.numerics = device_numerics;
  k.family = device_family;
  return k;
}

/* The table of a device is that of its set. */
typedef struct kernel_tables {
  weft_kernels of[CUDA_SETS];
} kernel_tables;

static kernel_tables make_tables(void) {
  kernel_tables tables;
  for (uint32_t i = 0; i < CUDA_SETS; i++) tables.of[i] = make_kernels(&cuda_sets[i]);
  return tables;
}

/* ---- open ----------------------------------------------------------------------------------------------- */

/* The driver as kernels/card_find.h asks it; self is the last error. */
static card_answer answer_of(void *self, cudaError_t error) {
  if (error == cudaSuccess) return CARD_YES;
  *(cudaError_t *)self = error;
  (void)cudaGetLastError();
  if (error == cudaErrorNoDevice) return CARD_NONE;
  if (error == cudaErrorInsufficientDriver) return CARD_OLD_DRIVER;
  return error == cudaErrorDevicesUnavailable ? CARD_BUSY : CARD_NO_ANSWER;
}

static const char *driver_why(void *self) {
  return cudaGetErrorString(*(cudaError_t *)self);
}

static card_answer driver_version(void *self, uint32_t *cuda) {
  int version = 0;
  cudaError_t error = cudaDriverGetVersion(&version);
  *cuda = (uint32_t)version;
  return answer_of(self, error);
}

static card_answer driver_count(void *self, uint32_t *n) {
  int found = 0;
  cudaError_t error = cudaGetDeviceCount(&found);
  *n = (uint32_t)found;
  return answer_of(self, error);
}

/* What is not told leaves 0. */
static double ask_number(cudaDeviceAttr what, uint32_t index) {
  int number = 0;
  bool told = cudaDeviceGetAttribute(&number, what, (int)index) == cudaSuccess;
  (void)cudaGetLastError();
  return told ? number : 0.0;
}

static card_answer driver_describe(void *self, uint32_t index, card_facts *out) {
  cudaDeviceProp properties;
  cudaError_t error = cudaGetDeviceProperties(&properties, (int)index);
  if (error != cudaSuccess) return answer_of(self, error);
  (void)snprintf(out->name, sizeof out->name, "%.95s", properties.name);
  out->capability = (uint32_t)(10 * properties.major + properties.minor);
  out->n_multiprocessors = (uint32_t)properties.multiProcessorCount;
  memcpy(out->uuid, properties.uuid.bytes, sizeof out->uuid);
  out->prohibited = ask_number(cudaDevAttrComputeMode, index) == (double)cudaComputeModeProhibited;
  out->one_memory = ask_number(cudaDevAttrIntegrated, index) != 0.0;
  out->memory_hertz = 2e3 * ask_number(cudaDevAttrMemoryClockRate, index); /* it moves twice a clock */
  out->memory_bytes_a_turn = ask_number(cudaDevAttrGlobalMemoryBusWidth, index) / 8;
  out->hertz = 1e3 * ask_number(cudaDevAttrClockRate, index);
  return CARD_YES;
}

static card_answer driver_enter(void *self, uint32_t index) {
  return answer_of(self, enter_card((int)index));
}

static card_answer driver_memory(void *self, uint64_t *free_bytes, uint64_t *all_bytes) {
  size_t has = 0, all = 0;
  cudaError_t error = cudaMemGetInfo(&has, &all);
  *free_bytes = has;
  *all_bytes = all;
  return answer_of(self, error);
}

static uint64_t host_free(void *) {
  return weft_memory_available();
}

static void take_facts(cuda_device *d, const card_found *found, const char *isa) {
  const card_facts *facts = &found->facts;
  weft_device_info *info = &d->base.info;
  d->set = &cuda_sets[0]; /* of this module */
  d->n_multiprocessors = facts->n_multiprocessors;
  info->set = d->set->card->name;
  info->isa_forced = isa != NULL;
  info->capability = facts->capability;
  info->memory_rate = facts->memory_hertz * facts->memory_bytes_a_turn;
  info->product_rate = 2.0 * card_products_of(facts->capability, facts->name) * facts->hertz * facts->n_multiprocessors;
  info->memory_bytes = found->all_bytes;
  info->memory_free_bytes = found->free_bytes;
  (void)snprintf(info->name, sizeof info->name, "%.95s", facts->name);
  (void)snprintf(d->isa, sizeof d->isa, "sm_%u", facts->capability);
  for (uint32_t i = 0; i < sizeof facts->uuid; i++) (void)snprintf(info->card + 2 * i, 3, "%02x", facts->uuid[i]);
}

static weft_status find_card(cuda_device *d, uint32_t index, const char *isa, weft_error *error) {
  cudaError_t last = cudaSuccess;
  /* These variables are no options: the driver reads them, and what they do is only told. */
  const card_driver driver = {&last,           driver_version, driver_count,
                              driver_describe, driver_enter,   driver_memory,
                              host_free,       driver_why,     getenv("CUDA_VISIBLE_DEVICES")};
  const card_search search = {index, isa, cuda_sets[0].card->module, WEFT_CUDA_ARCHITECTURES, CUDART_VERSION};
  card_found found;
  weft_status status = card_find(&driver, &search, &found, error);
  if (status != WEFT_OK) return status;
  d->card = (int)index;
  d->base.info.index = index;
  device_enter_card(&d->base);
  take_facts(d, &found, isa);
#ifdef WEFT_CUDA_PORTABLE
  status = cuda_find_family(d, found.facts.capability, isa, error);
  if (status != WEFT_OK) return status;
#endif
  if (found.facts.one_memory) (void)__atomic_fetch_or(&cards_of_one_memory, 1ull << index, __ATOMIC_RELAXED);
  if (found.compiles_ptx) {
    const card_cache cache = {getenv("CUDA_CACHE_DISABLE"), getenv("CUDA_CACHE_PATH")};
    char line[512];
    card_tell_compiles(&search, &found, &cache, line, sizeof line);
    weft_log(WEFT_LOG_NOTICE, "%s", line);
  }
  return WEFT_OK;
}

/* Of memory that a device has beside models, and of what stays free. */
enum {
  NEEDED_MIB =
      (CUDA_STAGING_BYTES + CUDA_PLANS * CUDA_PLAN_BYTES + STEP_GRAPHS_TABLE_BYTES + CUDA_KEPT_BYTES + (1 << 20) - 1) >>
      20
};

/* Blocks of kernels start first where they are of a stream that is ahead. */
static weft_status make_stream(cuda_device *d, bool ahead) {
  int least = 0, greatest = 0;
  weft_status status = cuda_judge(d, cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities");
  if (status != WEFT_OK) return status;
  cudaError_t error = cudaStreamCreateWithPriority(&d->stream, cudaStreamNonBlocking, ahead ? greatest : least);
  return cuda_judge(d, error, "making a stream");
}

static weft_status take_memory(cuda_device *d, const weft_device_config *config) {
  weft_status status = make_stream(d, config->ahead);
  for (uint32_t i = 0; i < CUDA_RING_PARTS && status == WEFT_OK; i++) {
    status = cuda_judge(d, cudaEventCreateWithFlags(&d->ring_free[i], cudaEventDisableTiming), "making an event");
  }
  for (uint32_t i = 0; i < WEFT_MARKS_MAX && status == WEFT_OK; i++) {
    status = cuda_judge(d, cudaEventCreateWithFlags(&d->mark[i], cudaEventDisableTiming), "making an event");
  }
  if (status == WEFT_OK) {
    uint64_t n_bytes = (uint64_t)CUDA_RING_PARTS * CUDA_RING_PART_BYTES;
    status = cuda_judge(d, cudaHostAlloc((void **)&d->ring, n_bytes, cudaHostAllocDefault), "the upload ring");
  }
  if (status == WEFT_OK) {
    status = cuda_alloc(d, CUDA_STAGING_BYTES, (void **)&d->staging, "staging memory");
  }
  if (status == WEFT_OK) {
    uint64_t n_bytes = (uint64_t)CUDA_PLANS * CUDA_PLAN_BYTES;
    status = cuda_alloc(d, n_bytes, (void **)&d->plans.device, "plan memory");
  }
  if (status == WEFT_OK) {
    d->plans.host = (uint8_t *)weft_alloc(CUDA_PLANS + 1, CUDA_PLAN_BYTES);
    if (d->plans.host == NULL) status = WEFT_E_NO_MEMORY;
  }
  if (status == WEFT_OK) cuda_arena_open(d, config->weights_bytes_max, config->no_arena);
  if (status == WEFT_OK && !config->no_graphs) {
    status = step_graphs_open(&d->graphs, &d->base, &graph_calls);
    d->base.graphs = &d->graphs;
    d->base.info.graphs = true;
  }
  return status;
}

extern "C" __attribute__((visibility("default"))) weft_status weft_cuda_module_open(const weft_cuda_module_terms *terms,
                                                                                    const weft_device_config *config,
                                                                                    weft_device **out,
                                                                                    weft_error *error) {
  static const device_calls calls = make_calls();
  static const kernel_tables tables = make_tables();
  weft_cuda_module_terms ours = weft_cuda_module_our_terms();
  const char *differs = weft_cuda_module_compare(terms, &ours);
  if (differs != NULL) {
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "backend 'cuda': libweft-cuda.so was built for another version of weft: %s differs", differs);
  }
  weft_log_set(config->log);
  cuda_device *d = (cuda_device *)weft_alloc(1, sizeof *d);
  if (d == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "out of memory: the cuda device");
  d->base.calls = &calls;
  d->base.info.backend = "cuda";
  d->base.info.isa = d->isa;
  d->base.info.n_threads = 1;
  d->deterministic = !config->no_deterministic;
  d->no_peer = config->no_peer;
  d->base.shares = (uint8_t)config->shares;
  weft_status status = find_card(d, config->index, config->isa, error);
  if (status == WEFT_OK) {
    d->base.kernels = &tables.of[d->set - cuda_sets];
    d->base.info.has_eight_beside = d->set->w8a8_gemm != NULL;
    d->w8a8 = device_takes_eight(config, d->base.info.has_eight_beside);
    d->base.info.products = d->w8a8 ? 8 : 16;
    d->base.info.integers = d->w8a8 && config->integers && calls.integers_bytes != NULL;
    status = take_memory(d, config);
    if (status == WEFT_E_NO_MEMORY)
      (void)weft_fail(error, status,
                      "backend 'cuda': card %u is full: %.0f MiB are free, %u MiB are needed before any model",
                      config->index, (double)d->base.info.memory_free_bytes / (1 << 20), NEEDED_MIB);
    else if (status != WEFT_OK)
      (void)weft_fail(error, status, "backend 'cuda': %s", weft_status_text(status));
  }
  if (status == WEFT_OK) {
    status = d->set->setup(d);
    if (status != WEFT_OK)
      (void)weft_fail(error, status, "backend 'cuda': the driver does not load the kernels for %s (%s)",
                      d->base.info.name, d->isa);
  }
  if (status != WEFT_OK) {
    device_close(&d->base);
    return status;
  }
  *out = &d->base;
  return WEFT_OK;
}

extern "C" __attribute__((visibility("default"))) bool weft_cuda_module_fits(uint32_t index, const char *isa) {
  int major = 0, minor = 0, n = 0;
  bool known = cudaGetDeviceCount(&n) == cudaSuccess && index < (uint32_t)n &&
               cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, (int)index) == cudaSuccess &&
               cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, (int)index) == cudaSuccess;
  (void)cudaGetLastError();
  if (!known) return true;
  card_wish wish = {"", (uint32_t)(10 * major + minor), cuda_sets[0].card->module, WEFT_CUDA_ARCHITECTURES, isa};
  uint32_t chosen;
  return card_choose_set(&wish, card_sets, CARD_SETS, &chosen, NULL) == WEFT_OK;
}

extern "C" __attribute__((visibility("default"))) void weft_cuda_module_describe(char *out, size_t n) {
  size_t at = 0;
  for (uint32_t i = 0; i < CUDA_SETS && at < n; i++) {
    const cuda_set *set = &cuda_sets[i];
    int more = snprintf(out + at, n - at, "%s%s (%s):%.*s", i == 0 ? "" : "; ", set->card->name, set->card->cards,
                        (int)strlen(set->ops) - 1, set->ops);
    if (more > 0) at += (size_t)more;
  }
  if (at < n) (void)snprintf(out + at, n - at, "; other ops: any card; built for " WEFT_CUDA_ARCHITECTURES);
}
