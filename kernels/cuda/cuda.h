/* SPDX-License-Identifier: MIT */
/* What the files of the cuda backend share on the host side: the device, its upload ring, launches.
 *
 * Law: everything runs on the device's one stream, in the order of the calls, but for copies of experts from host
 * memory (host_experts.cu). Host memory that a call is given is copied into pinned memory before the call returns, so
 * the caller may reuse it at once. Every entry from outside makes the device's card the current one of its thread
 * (enter), so no other code chooses a card. An error of the card is logged once and marks the device as lost: every
 * later call gives WEFT_E_DEVICE. Running out of memory is no such error. What is allocated leaves CUDA_KEPT_BYTES of
 * the card free, because the driver takes memory by itself in steps: for the code of kernels when they first run, and
 * for graphs. */
#ifndef WEFT_KERNELS_CUDA_CUDA_H
#define WEFT_KERNELS_CUDA_CUDA_H

#include <cuda_runtime.h>
#include <stdint.h>

#include "kernels/arena.h"
#include "kernels/device_internal.h"
#include "kernels/expert_room.h"
#include "kernels/expert_slots.h"

enum {
  CUDA_RING_PARTS = 4,
  CUDA_RING_PART_BYTES = 8 << 20,
  CUDA_STAGING_BYTES = 32 << 20,
  CUDA_KEPT_BYTES = 128 << 20,
  CUDA_PACED_BYTES = 2 << 20, /* of a piece: so long may a step's own upload wait for the copy of one */
  CUDA_PLANS = 16,
  CUDA_PLAN_BYTES = 1 << 20
};

/* Plans: small tables that ops make on the host and read on the device. The last CUDA_PLANS of them stay on the device;
 * one that is equal to one of the later half of these is not sent again. */
typedef struct cuda_plans {
  uint8_t *host;   /* CUDA_PLANS + 1 times CUDA_PLAN_BYTES; the last is being made */
  uint8_t *device; /* CUDA_PLANS times */
  uint64_t n_bytes[CUDA_PLANS];
  uint32_t next;
} cuda_plans;

/* Experts in pinned host memory (host_experts.cu). */
typedef struct cuda_host_experts {
  expert_slots slots;
  cudaStream_t stream; /* of copies; NULL: no expert lies in host memory, and nothing else here is set */
  cudaEvent_t event[EXPERT_SLOTS_EVENTS];
  uint8_t *staging; /* device: EXPERT_SLOTS times slot_bytes */
  uint64_t slot_bytes;
} cuda_host_experts;

typedef struct cuda_device {
  weft_device base; /* first, so that a weft_device * is a cuda_device * */
  cudaStream_t stream;
  uint8_t *ring; /* pinned; CUDA_RING_PARTS parts, filled one after another */
  uint32_t ring_part, ring_at;
  cudaEvent_t ring_free[CUDA_RING_PARTS]; /* recorded when a part was left */
  uint8_t *staging;                       /* device memory: file bytes on their way into the packed layout */
  cuda_plans plans;
  weight_arena arena; /* of weights */
  uint64_t grain;     /* in which the card maps memory; 0: it cannot */
  cuda_host_experts experts;
  step_graphs graphs; /* base.graphs points here unless they are off */
  cudaEvent_t mark[WEFT_MARKS_MAX];
  int card;                   /* its number for the runtime of CUDA */
  bool no_peer;               /* of the config */
  uint64_t peers;             /* bit c: what is sent to card c may be written there directly, as far as the cards can */
  const struct cuda_set *set; /* of kernels (set.h) */
  uint32_t n_multiprocessors;
  uint32_t n_router_clusters;       /* clusters of the router's kernel that fit on the card at once */
  uint32_t n_attention_clusters[5]; /* the same of each kernel of decode_cluster.cu */
  bool lost;
  bool shared_writable; /* the driver maps weights of other processes for reading and writing alone */
  bool deterministic;   /* a row's bits depend on that row alone */
  bool w8a8;            /* weights that can be are multiplied in W8A8 (gemm/w8a8.h) */
  /* Since the last launch a weight was placed, or a kernel copied what was uploaded (copies.cu). The next kernel starts
   * when all work before it has ended, because it may read both before it waits for its inputs. */
  bool fresh;
  bool mapped_by_name; /* what is mapped of another process is a plain allocation of it (cudaIpc) */
  /* The choice of experts that the kernel launched last makes, if that kernel waits for its inputs before it lets the
   * next one start, which then finds all else there; NULL: another kernel was launched last. */
  const int32_t *choice;
  char isa[16];
  cudaEvent_t piece[2];             /* before and after the last piece of a weight; made when a pace is first kept */
  bool piece_runs;                  /* it may not have ended */
  struct cuda_experts_cache *cache; /* of the experts in host memory (moe/host_experts.h); NULL: there are none */
  expert_room room;                 /* for experts, of the model whose weights are placed now */
  uint64_t n_bytes_kept;            /* what the arena may not take, because it is for the cache */
} cuda_device;

static inline cuda_device *cuda_of(weft_device *device) {
  return (cuda_device *)(void *)device;
}

/* Turns an error of the card into a status. Running out of memory is NO_MEMORY; any other error is logged, marks the
 * device as lost and is DEVICE. */
weft_status cuda_judge(cuda_device *device, cudaError_t error, const char *what);
/* Device memory. NO_MEMORY also where less than CUDA_KEPT_BYTES would stay free. */
weft_status cuda_alloc(cuda_device *device, uint64_t n_bytes, void **out, const char *what);
/* The status of the launch before it. Called after every launch. */
weft_status cuda_launched(cuda_device *device, const char *what);
/* When a kernel may have more than 48 KiB of shared memory, and when it starts early (portable/tiles.cu).
 * What is static counts too, of which no kernel has more than 16 KiB beside what it is launched with. */
#ifdef WEFT_CUDA_PORTABLE
enum { CUDA_SHARED_BYTES_UNASKED = 32 << 10 };
/* At open: the card's family (portable/tiles.h), or that to which the name of the set holds it. UNSUPPORTED: there is
 * none of that name. */
weft_status cuda_find_family(const cuda_device *device, uint32_t capability, const char *set, weft_error *error);
/* Shared memory that a launch asks for, where the card is held to a family. */
uint64_t cuda_held_bytes(const void *kernel, uint32_t n_threads, uint64_t shared_bytes);
uint32_t cuda_starts_early(const cuda_device *device);
#define CUDA_EARLY_STARTS cuda_starts_early(device)
#else
enum { CUDA_EARLY_STARTS = 1, CUDA_SHARED_BYTES_UNASKED = INT32_MAX };
#endif
template <typename K>
static inline void cuda_allow_shared(K *kernel, uint64_t shared_bytes) {
  if (shared_bytes > CUDA_SHARED_BYTES_UNASKED)
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
}

/* Launches a kernel that may start before the kernel before it has ended: it calls wait_for_prior_grids()
 * (common.cuh) before it reads what other kernels write. `cluster` blocks that lie side by side in x are on the card at
 * the same time. cuda_launched tells how the launch went. */
template <typename... P, typename... A>
static inline void cuda_start_clusters(cuda_device *device, void (*kernel)(P...), dim3 grid, uint32_t cluster,
                                       uint32_t n_threads, uint64_t shared_bytes, const A &...args) {
  cudaLaunchAttribute how[2];
  cudaLaunchConfig_t config = {};
#ifdef WEFT_CUDA_PORTABLE
  shared_bytes = cuda_held_bytes((const void *)kernel, n_threads, shared_bytes);
#endif
  config.gridDim = grid;
  config.blockDim = dim3(n_threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = device->stream;
  config.attrs = how;
  if (!device->fresh && !device->base.serial_kernels && CUDA_EARLY_STARTS != 0) {
    how[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    how[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    how[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    how[config.numAttrs].val.clusterDim.x = cluster;
    how[config.numAttrs].val.clusterDim.y = how[config.numAttrs].val.clusterDim.z = 1;
    config.numAttrs++;
  }
  device->fresh = false;
  cuda_allow_shared(kernel, shared_bytes);
  (void)cudaLaunchKernelEx(&config, kernel, P(args)...);
}
template <typename... P, typename... A>
static inline void cuda_start(cuda_device *device, void (*kernel)(P...), dim3 grid, uint32_t n_threads,
                              uint64_t shared_bytes, const A &...args) {
  cuda_start_clusters(device, kernel, grid, 1, n_threads, shared_bytes, args...);
}
/* The same for a kernel that starts when all work before it has ended. */
template <typename... P, typename... A>
static inline void cuda_start_in_order(cuda_device *device, void (*kernel)(P...), dim3 grid, uint32_t n_threads,
                                       uint64_t shared_bytes, const A &...args) {
  device->fresh = true;
  cuda_start(device, kernel, grid, n_threads, shared_bytes, args...);
}
/* Copies n_bytes of host memory to device memory, in stream order; `from` may be reused at once. */
weft_status cuda_push(cuda_device *device, void *to, const void *from, uint64_t n_bytes);
/* The same for bytes [at, at + n_bytes) of a source, which are read into the ring: one part of the ring is read while
 * the card takes the part before it. */
weft_status cuda_push_source(cuda_device *device, void *to, const weft_weight_source *source, uint64_t at,
                             uint64_t n_bytes);
/* Every table of an op goes through these two calls, so that a step which is replayed as a graph can renew its tables.
 * begin gives host memory for a plan of n_bytes, NULL if it is too large; end gives the plan's copy on the device,
 * which may be an older one with the same bytes. The copy is valid until CUDA_PLANS / 2 others were made. */
uint8_t *cuda_plan_begin(cuda_device *device, uint64_t n_bytes);
weft_status cuda_plan_end(cuda_device *device, uint64_t n_bytes, const uint8_t **out);

/* Weights (pack.cu). */
weft_status cuda_weight_place(weft_device *device, weft_weight *weight, const void *file_bytes, unsigned uses,
                              weft_error *error);
weft_status cuda_weight_read(weft_device *device, weft_weight *weight, const weft_weight_source *source, unsigned uses,
                             weft_error *error);
void cuda_weight_free(weft_device *device, weft_weight *weight);
void cuda_expect_experts(weft_device *device, uint64_t n_bytes);
weft_status cuda_weight_unpack(weft_device *device, const weft_weight *weight, void *file_bytes);
weft_status cuda_weight_most(weft_device *device, const weft_weight *weight, float most[2], bool set);
/* What placing makes of a weight: its type, layout and bytes. */
weft_status cuda_weight_expect(weft_device *device, weft_weight *weight, unsigned uses, weft_error *error);

#define X(op)                                                               \
  weft_status cuda_##op(weft_device *device, const weft_##op##_args *args); \
  uint64_t cuda_##op##_scratch(weft_device *device, const weft_##op##_args *args);
WEFT_OPS(X)
#undef X

/* An exchange between shards (exchange.cu). */
weft_status cuda_exchange(weft_device *device, const struct shards_exchange *args);

/* Memory of weights (weights/card_memory.cu). n_bytes_max: most of the card's memory for them; 0: 7/8 of what is free.
 * plain: the arena maps nothing. */
void cuda_arena_open(cuda_device *device, uint64_t n_bytes_max, bool plain);
/* Weights that other processes use. */
const device_share_calls *cuda_share_calls(void);
const device_stretch_calls *cuda_stretch_calls(void);
/* Memory for a weight: of the holding that has begun, else of the arena. */
weft_status cuda_take_weight(cuda_device *device, uint64_t n_bytes, void **out);
void cuda_give_weight(cuda_device *device, void *memory, uint64_t n_bytes);
/* Around each copy and each kernel that places a piece of a weight, of at most cuda_piece_bytes bytes of the file. With
 * a pace (weft_device_set_pace) begin waits until the piece before has ended, and tells how long that took. */
weft_status cuda_piece_begin(cuda_device *device);
weft_status cuda_piece_end(cuda_device *device);
uint64_t cuda_piece_bytes(const cuda_device *device, uint64_t without_pace);
/* Experts in host memory (moe/host_experts.h has the rest). Called around captures and before launches of graphs: the
 * main stream waits for all copies in flight. */
weft_status cuda_experts_join(cuda_device *device);

/* The walks of ops that read tables (kernels/graphs.h): they make the tables and launch nothing. */
weft_status cuda_attention_walk(weft_device *device, const weft_attention_args *args);
weft_status cuda_head_stats_walk(weft_device *device, const weft_head_stats_args *args);
weft_status cuda_delta_rows_walk(weft_device *device, const weft_delta_rows_args *args);
weft_status cuda_delta_rule_walk(weft_device *device, const weft_delta_rule_args *args);

/* Hopper's kernels that need more than 48 KiB of shared memory ask for it once, at open. */
weft_status cuda_delta_setup(cuda_device *device);

static inline uint64_t cuda_align(uint64_t n_bytes) {
  return (n_bytes + 255u) / 256u * 256u;
}

static inline uint32_t cuda_ceil(uint32_t a, uint32_t b) {
  return a / b + (a % b != 0 ? 1u : 0u);
}

/* Cuts scratch into pieces at multiples of 256 bytes. With base NULL it only counts. */
typedef struct cuda_cutter {
  uint8_t *base;
  uint64_t at;
} cuda_cutter;

static inline void *cuda_cut(cuda_cutter *cutter, uint64_t n_bytes) {
  uint8_t *out = cutter->base == NULL ? NULL : cutter->base + cutter->at;
  cutter->at += cuda_align(n_bytes);
  return out;
}

#endif
