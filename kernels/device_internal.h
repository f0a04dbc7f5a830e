/* SPDX-License-Identifier: MIT */
/* What stands behind weft_device: a table of functions and the facts about the device.
 *
 * Law: only kernels/ includes this file, and doubles that take the place of a device. A backend's own struct begins
 * with a weft_device, so that a pointer to one is a pointer to the other. The backend fills info, kernels and calls,
 * and its close frees the struct. device.c checks the arguments before it calls a function of the table. */
#ifndef WEFT_KERNELS_DEVICE_INTERNAL_H
#define WEFT_KERNELS_DEVICE_INTERNAL_H

#include "kernels/device.h"
#include "kernels/graphs.h"
#include "kernels/ops.h"
#include "kernels/share.h"

struct shards_exchange; /* kernels/shards_exchange.h */

/* Weights that other processes use (kernels/share.h): the functions of that header, of an owner or of any device. */
typedef struct device_share_calls {
  const char *(*transport)(weft_device *device);
  bool (*takes)(weft_device *device, const char *transport);
  weft_status (*seal)(weft_device *device, weft_error *error);
  uint32_t (*n_pieces)(weft_device *device);
  uint64_t (*piece_bytes)(weft_device *device, uint32_t piece);
  bool (*find)(weft_device *device, const void *data, uint32_t *piece, uint64_t *at);
  weft_status (*export_piece)(weft_device *device, uint32_t piece, weft_share_handle *out, weft_error *error);
  weft_status (*map)(weft_device *device, const weft_share_handle *handle, uint64_t n_bytes, const void **out,
                     weft_error *error);
  void (*unmap)(weft_device *device, const void *memory, uint64_t n_bytes);
  bool (*is_read_only)(weft_device *device);
  weft_status (*expect)(weft_device *device, weft_weight *weight, unsigned uses, weft_error *error);
} device_share_calls;

/* Addresses of the device, and memory that is mapped there (kernels/stretch.h). No call waits for the device. */
typedef struct device_stretch_calls {
  uint64_t (*grain)(weft_device *device); /* the unit in which memory is mapped; 0: none is */
  weft_status (*reserve)(weft_device *device, uint64_t n_bytes, void **address);
  void (*release)(weft_device *device, void *address, uint64_t n_bytes);
  weft_status (*map)(weft_device *device, void *address, uint64_t n_bytes);
  void (*unmap)(weft_device *device, void *address, uint64_t n_bytes);
} device_stretch_calls;

struct weft_experts_report;

typedef struct device_calls {
  /* Called before every other call and every op: makes the device the one that the calling thread works on. NULL: the
   * backend needs no such thing. */
  void (*enter)(weft_device *device);
  void (*close)(weft_device *device);
  weft_status (*alloc)(weft_device *device, uint64_t n_bytes, void **out);
  void (*free)(weft_device *device, void *memory);
  uint64_t (*memory_left)(weft_device *device); /* NULL: as at open */
  weft_status (*alloc_host)(weft_device *device, uint64_t n_bytes, void **out);
  void (*free_host)(weft_device *device, void *memory);
  weft_status (*upload)(weft_device *device, void *to, const void *from, uint64_t n_bytes);
  weft_status (*download)(weft_device *device, void *to, const void *from, uint64_t n_bytes);
  weft_status (*copy)(weft_device *device, void *to, const void *from, uint64_t n_bytes);
  weft_status (*zero)(weft_device *device, void *to, uint64_t n_bytes);
  weft_status (*sync)(weft_device *device);
  weft_status (*mark)(weft_device *device, uint32_t mark); /* mark and wait NULL: work has run when a call returns */
  weft_status (*wait)(weft_device *device, uint32_t mark);
  weft_status (*send)(weft_device *from, weft_device *to, void *to_memory, const void *from_memory, uint64_t n_bytes);
  weft_status (*follow)(weft_device *device, weft_device *other, uint32_t mark); /* NULL: as mark and wait */
  bool (*reaches)(weft_device *device, weft_device *other); /* NULL: where device memory is host memory */
  weft_status (*exchange)(weft_device *device,
                          const struct shards_exchange *args); /* NULL: shards send one another copies */
  weft_status (*weight)(weft_device *device, weft_weight *weight, const void *file_bytes, unsigned uses,
                        weft_error *error);
  /* NULL: the device has no memory of its own, and weight gets the source's bytes */
  weft_status (*weight_read)(weft_device *device, weft_weight *weight, const weft_weight_source *source, unsigned uses,
                             weft_error *error);
  /* Bytes that the integers of a weight of the file's type take beside it, where they are kept; 0: that weight has
   * none. NULL: the backend keeps none. */
  uint64_t (*integers_bytes)(const weft_weight *weight, unsigned uses);
  void (*weight_free)(weft_device *device, weft_weight *weight);
  weft_status (*weight_unpack)(weft_device *device, const weft_weight *weight, void *file_bytes);
  /* The largest scale and zero point of a weight, by which its products are scaled before they are rounded; set: they
   * become those given. NULL: a product with a row of a weight does not depend on other rows. */
  weft_status (*weight_most)(weft_device *device, const weft_weight *weight, float most[2], bool set);
  const device_share_calls *share;     /* NULL: the backend shares no weights */
  const device_stretch_calls *stretch; /* NULL: those of host memory, where the device's is that */
  /* Experts in host memory (host_experts.h), and what comes before each step. NULL: no expert stays there. */
  void (*expect_experts)(weft_device *device, uint64_t n_bytes);
  bool (*weight_is_away)(const weft_device *device, const weft_weight *weight);
  void (*experts_report)(const weft_device *device, struct weft_experts_report *out);
  void (*step_begins)(weft_device *device);
} device_calls;

/* How much of its memory a device in host memory has given out, where that has a bound. */
typedef struct host_budget {
  uint64_t most, taken; /* most 0: no bound, and nothing is counted */
  struct host_piece {
    void *memory;
    uint64_t n_bytes;
  } * piece; /* what alloc gave and free will get */
  uint32_t n_pieces, pieces_max;
} host_budget;

struct weft_device {
  const device_calls *calls;
  const weft_kernels *kernels;
  weft_device_info info;
  step_graphs *graphs; /* NULL: steps always run call by call */
  weft_weights_report weights;
  host_budget budget;            /* ref, cpu */
  struct shared_memory *shared;  /* ref, cpu: where an owner's weights lie; NULL: this is none */
  struct weft_holding *holding;  /* where memory is taken from now (kernels/holding.h); NULL: from the device */
  struct weft_holding *holdings; /* all of this device */
  weft_piece_pace pace;          /* NULL: weights are placed as fast as they come */
  void *pace_self;
  weft_op_watch watch;
  void *watch_self;
  uint32_t layer;
  bool broken; /* a call has reported DEVICE */
  bool plain_rows, serial_kernels;
  uint8_t
      shares; /* weft_share_by; not 0: an owner of weights that other processes use, and never auto once it is open */
};

/* What kernels/holding.c gives a device while a holding has begun, and whether memory is of one. */
#ifdef __cplusplus
extern "C" {
#endif
weft_status holding_take(struct weft_holding *holding, uint64_t n_bytes, void **out);
weft_status holding_take_host(struct weft_holding *holding, uint64_t n_bytes, void **out);
bool device_holds(const weft_device *device, const void *memory);
#ifdef __cplusplus
}
#endif

static inline void device_enter(weft_device *device) {
  if (device->calls->enter != NULL) device->calls->enter(device);
}

static inline void device_note(weft_device *device, weft_status status) {
  if (status == WEFT_E_DEVICE) __atomic_store_n(&device->broken, true, __ATOMIC_RELAXED);
}

/* True while a step is walked: a call that may be part of a graph is then noted in the signature and not run. */
static inline bool device_walks(const weft_device *device) {
  return device->graphs != NULL && device->graphs->mode == STEP_GRAPHS_WALK;
}

/* True in the second pass over a step's calls: all of them were walked before. */
static inline bool device_repeats(const weft_device *device) {
  return device->graphs != NULL && device->graphs->again;
}

/* Padding between fields has any value, so it is cleared before a struct becomes part of a signature. */
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
#define CLEAR_PADDING(pointer) __builtin_clear_padding(pointer)
#endif
#endif
#ifndef CLEAR_PADDING
#define CLEAR_PADDING(pointer) (void)(pointer)
#endif

/* Enqueues an exchange between shards, or notes it in the signature of the step that is walked. */
weft_status device_exchange(weft_device *device, const struct shards_exchange *args);

/* Whether a backend that has products of more bits is to take those of 8, which it has or has not. */
static inline bool device_takes_eight(const weft_device_config *config, bool has_eight) {
  return has_eight && (config->products == 8 || (config->products == 0 && config->eight_beside));
}

/* Opens a device of one backend, whatever config->backend says. Fills *out, or a line in *error. */
weft_status ref_device_open(const weft_device_config *config, weft_device **out, weft_error *error);
weft_status cpu_device_open(const weft_device_config *config, weft_device **out, weft_error *error);
/* Opens libweft-cuda.so (cuda_module.c). UNSUPPORTED where there is no module or no card. */
weft_status cuda_module_device_open(const weft_device_config *config, weft_device **out, weft_error *error);
/* Whether the machine has a driver of NVIDIA cards. Cheap. */
bool cuda_has_driver(void);
/* A line about the kernel sets of libweft-cuda.so, or why it is not there. Needs no driver and no card. */
void cuda_module_describe(char *out, size_t n);
/* How a config that names no backend is opened: a card where the machine has one. If it cannot be used, a warning says
 * why, and the cpu serves. On success *error has the reason for the choice. */
typedef struct device_openers {
  bool (*has_card)(void);
  weft_status (*card)(const weft_device_config *config, weft_device **out, weft_error *error);
  weft_status (*cpu)(const weft_device_config *config, weft_device **out, weft_error *error);
} device_openers;
weft_status device_open_best(const device_openers *openers, const weft_device_config *config, weft_device **out,
                             weft_error *error);

/* Calls of backends whose device memory is host memory (ref, cpu). */
weft_status host_alloc(weft_device *device, uint64_t n_bytes, void **out);
void host_free(weft_device *device, void *memory);
weft_status host_alloc_unbound(weft_device *device, uint64_t n_bytes, void **out); /* memory of the host, not counted */
void host_free_unbound(weft_device *device, void *memory);
uint64_t host_memory_left(weft_device *device);
weft_status host_copy(weft_device *device, void *to, const void *from, uint64_t n_bytes);
weft_status host_zero(weft_device *device, void *to, uint64_t n_bytes);
weft_status host_sync(weft_device *device);
extern const device_stretch_calls host_stretch_calls; /* of kernels/stretch.c */
weft_status host_send(weft_device *from, weft_device *to, void *to_memory, const void *from_memory, uint64_t n_bytes);
#define HOST_CALLS                                                                                                  \
  .alloc = host_alloc, .free = host_free, .memory_left = host_memory_left, .alloc_host = host_alloc_unbound,        \
  .free_host = host_free_unbound, .upload = host_copy, .download = host_copy, .copy = host_copy, .zero = host_zero, \
  .sync = host_sync, .send = host_send
/* The owner's memory of such a backend (kernels/share.c); open does nothing unless the config asks for an owner. */
weft_status host_share_open(weft_device *device, const weft_device_config *config, weft_error *error);
void host_share_close(weft_device *device);
void *host_share_take(weft_device *device, uint64_t n_bytes); /* NULL: there is no room */
const char *host_share_transport(weft_device *device);
weft_status host_share_seal(weft_device *device, weft_error *error);
uint32_t host_share_n_pieces(weft_device *device);
uint64_t host_share_piece_bytes(weft_device *device, uint32_t piece);
bool host_share_find(weft_device *device, const void *data, uint32_t *piece, uint64_t *at);
bool host_share_takes(weft_device *device, const char *transport);
weft_status host_share_export(weft_device *device, uint32_t piece, weft_share_handle *out, weft_error *error);
weft_status host_share_map(weft_device *device, const weft_share_handle *handle, uint64_t n_bytes, const void **out,
                           weft_error *error);
void host_share_unmap(weft_device *device, const void *memory, uint64_t n_bytes);
bool host_share_is_read_only(weft_device *device);
#define HOST_SHARE                                                                                 \
  .transport = host_share_transport, .takes = host_share_takes, .seal = host_share_seal,           \
  .n_pieces = host_share_n_pieces, .piece_bytes = host_share_piece_bytes, .find = host_share_find, \
  .export_piece = host_share_export, .map = host_share_map, .unmap = host_share_unmap,             \
  .is_read_only = host_share_is_read_only
/* Counts n_bytes that are about to be taken; false: the bound refuses them. give: they have been freed. */
bool host_budget_take(weft_device *device, uint64_t n_bytes);
void host_budget_give(weft_device *device, uint64_t n_bytes);
/* The members of weft_kernels for functions whose names begin with `own`; both backends take some from ref. */
#define HOST_KERNELS(own)                                                                                           \
  .embed = own##_embed, .norm = own##_norm, .matmul = own##_matmul, .matmul_scratch = own##_matmul_scratch,         \
  .qkv = own##_qkv, .attention = own##_attention, .attention_scratch = own##_attention_scratch, .gate = own##_gate, \
  .route = own##_route, .route_scratch = own##_route_scratch, .experts = own##_experts,                             \
  .experts_scratch = own##_experts_scratch, .head_stats = own##_head_stats,                                         \
  .head_stats_scratch = own##_head_stats_scratch, .head_rows = own##_head_rows,                                     \
  .head_rows_scratch = own##_head_rows_scratch, .head_part = own##_head_part,                                       \
  .head_part_scratch = own##_head_part_scratch, .head_join = own##_head_join,                                       \
  .head_join_scratch = own##_head_join_scratch, .head_groups = own##_head_groups,                                   \
  .head_groups_scratch = own##_head_groups_scratch, .soft = own##_soft, .soft_scratch = own##_soft_scratch,         \
  .sample = own##_sample, .sample_scratch = own##_sample_scratch, .supports = own##_supports,                       \
  .numerics = own##_numerics, .family = own##_family, .canvas = ref_canvas, .canvas_scratch = ref_canvas_scratch,   \
  .classes = own##_classes, .move = ref_move, .delta_rows = own##_delta_rows, .delta_rule = own##_delta_rule,       \
  .delta_rule_scratch = own##_delta_rule_scratch, .assign = ref_assign, .mix = own##_mix, .spread = own##_spread,   \
  .latent_rows = own##_latent_rows, .latent_press = own##_latent_press, .latent_choose = own##_latent_choose,       \
  .latent_choose_scratch = ref_latent_choose_scratch, .latent_attend = own##_latent_attend,                         \
  .latent_heads = own##_latent_heads, .engram_rows = own##_engram_rows, .engram_add = own##_engram_add,             \
  .has_limits = true
/* Sets the bound, and fills in what holds for host memory, total and free bytes, and the processor's name. */
void host_describe(weft_device *device, const weft_device_config *config);
/* Bytes of the weight in file form: n_mats * n_out rows; 0 when a row is not a whole number of
 * blocks or the product does not fit 64 bits. */
uint64_t weight_file_bytes(const weft_weight *weight);
/* Whether the device can place such a weight, with a line where not; clears data and n_bytes. */
weft_status weight_check(weft_device *device, weft_weight *weight, weft_error *error);

#endif
