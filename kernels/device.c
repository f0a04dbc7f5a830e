/* SPDX-License-Identifier: MIT */
#include "kernels/device.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/memory_room.h"
#include "kernels/canvas_head.h"
#include "kernels/device_internal.h"
#include "kernels/holding.h"
#include "kernels/host_experts.h"
#include "kernels/ref/ref.h"
#include "kernels/shards_exchange.h"

/* The calls of a device that the calling thread is about to use. */
static const device_calls *calls_of(weft_device *device) {
  device_enter(device);
  return device->calls;
}

weft_rows_form weft_device_rows_form(const weft_device *device, const weft_weight *weight, uint32_t n_rows,
                                     weft_rows_way way) {
  if (device->kernels->rows_form == NULL || device->plain_rows) return WEFT_ROWS_F32;
  return device->kernels->rows_form(weight, n_rows, way);
}

uint64_t weft_device_rows_bytes(const weft_device *device, weft_rows_form form, uint32_t n_rows, uint32_t n_cols) {
  if (form == WEFT_ROWS_F32 || device->kernels->rows_bytes == NULL) return sizeof(float) * (uint64_t)n_rows * n_cols;
  return device->kernels->rows_bytes(form, n_rows, n_cols);
}

void weft_device_plain_rows(weft_device *device, bool on) {
  device->plain_rows = on;
}

/* What a call came to. A device that has once reported an error is remembered. */
static weft_status note_status(weft_device *device, weft_status status) {
  device_note(device, status);
  return status;
}

typedef struct backend {
  const char *name;
  weft_status (*open)(const weft_device_config *config, weft_device **out, weft_error *error);
} backend;

static const backend backends[] = {
    {"cpu", cpu_device_open},
    {"ref", ref_device_open},
    {"cuda", cuda_module_device_open},
};

weft_status device_open_best(const device_openers *openers, const weft_device_config *config, weft_device **out,
                             weft_error *error) {
  weft_error why = {{0}};
  if (!openers->has_card()) {
    (void)weft_fail(&why, WEFT_OK, "no NVIDIA driver is visible here");
  } else if (openers->card(config, out, &why) == WEFT_OK) {
    return weft_fail(error, WEFT_OK, "there is a card");
  } else {
    weft_log(WEFT_LOG_WARN, "%s; using the cpu", why.text);
  }
  weft_status status = openers->cpu(config, out, error);
  return status == WEFT_OK ? weft_fail(error, WEFT_OK, "%s", why.text) : status;
}

static weft_status open_named(const weft_device_config *config, weft_device **out, weft_error *error) {
  static const device_openers best = {cuda_has_driver, cuda_module_device_open, cpu_device_open};
  if (config->backend == NULL) return device_open_best(&best, config, out, error);
  for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
    if (strcmp(config->backend, backends[i].name) == 0) return backends[i].open(config, out, error);
  }
  return weft_fail(error, WEFT_E_UNSUPPORTED, "backend '%.64s' is unknown; there are cpu, cuda and ref",
                   config->backend);
}

/* UNSUPPORTED, with a line, where the device that opened does not multiply as was asked. */
static weft_status check_products(const weft_device_config *config, const weft_device *device, weft_error *error) {
  const weft_device_info *info = &device->info;
  if (config->products != 0 && config->products != info->products)
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "backend '%s' multiplies quantised weights in %u bits, not in %u; leave out --precision",
                     info->backend, info->products, config->products);
  if (config->integers && device->calls->integers_bytes == NULL)
    return weft_fail(error, WEFT_E_UNSUPPORTED, "backend '%s' keeps no integers of weights", info->backend);
  if (config->integers && info->products != 8)
    return weft_fail(error, WEFT_E_UNSUPPORTED, "integers of weights are for products of 8 bits");
  return WEFT_OK;
}

/* Who else gets to see a device that was opened. */
static void (*tell_opened)(void *self, weft_device *device);
static void *tell_self;

void weft_device_on_open(void (*opened)(void *self, weft_device *device), void *self) {
  tell_opened = opened;
  tell_self = self;
}

weft_status weft_device_open(const weft_device_config *config, weft_device **out, weft_error *error) {
  if (out == NULL) return weft_fail(error, WEFT_E_INVALID, "weft_device_open: out is NULL");
  *out = NULL;
  static const weft_device_config best = {0};
  weft_device_config filled = config == NULL ? best : *config;
  filled.log = weft_log_get();
  config = &filled;
  weft_status status = open_named(config, out, error);
  if (status == WEFT_OK) status = check_products(config, *out, error);
  if (status != WEFT_OK && *out != NULL) {
    weft_device_close(*out);
    *out = NULL;
  }
  if (status == WEFT_OK && tell_opened != NULL) tell_opened(tell_self, *out);
  return status;
}

void weft_device_close(weft_device *device) {
  if (device != NULL) calls_of(device)->close(device);
}

const weft_device_info *weft_device_get_info(const weft_device *device) {
  return &device->info;
}

const weft_kernels *weft_device_kernels(const weft_device *device) {
  return device->kernels;
}

weft_status weft_device_alloc(weft_device *device, uint64_t n_bytes, void **out) {
  if (device == NULL || out == NULL) return WEFT_E_INVALID;
  *out = NULL;
  if (device->holding != NULL) return holding_take(device->holding, n_bytes, out);
  return note_status(device, calls_of(device)->alloc(device, n_bytes, out));
}

void weft_device_free(weft_device *device, void *memory) {
  if (memory != NULL && !device_holds(device, memory)) calls_of(device)->free(device, memory);
}

uint64_t weft_device_memory_left(weft_device *device) {
  const device_calls *calls = calls_of(device);
  return calls->memory_left == NULL ? device->info.memory_free_bytes : calls->memory_left(device);
}

weft_status weft_device_alloc_host(weft_device *device, uint64_t n_bytes, void **out) {
  if (device == NULL || out == NULL) return WEFT_E_INVALID;
  *out = NULL;
  if (device->holding != NULL) return holding_take_host(device->holding, n_bytes, out);
  return note_status(device, calls_of(device)->alloc_host(device, n_bytes, out));
}

void weft_device_free_host(weft_device *device, void *memory) {
  if (memory != NULL && !device_holds(device, memory)) calls_of(device)->free_host(device, memory);
}

static bool makes_graph(const weft_device *device) {
  return device->graphs != NULL && device->graphs->mode != STEP_GRAPHS_RUN;
}

/* Numbers, in signatures, of the calls outside ops that a step may have. They are larger than those of the ops. */
enum { CALL_COPY = 1 << 16, CALL_ZERO, CALL_UPLOAD, CALL_EXCHANGE };

static step_graphs_mode note_call(weft_device *device, uint32_t call, const void *to, const void *from,
                                  uint64_t n_bytes) {
  const struct {
    const void *to, *from;
    uint64_t n_bytes;
  } args = {to, from, n_bytes};
  if (!makes_graph(device)) return STEP_GRAPHS_RUN;
  step_graphs_note(device->graphs, call, &args, sizeof args);
  return device->graphs->mode;
}

/* Uploads are no part of a graph: they are made while the step is walked, and not again while it is captured. */
weft_status weft_device_upload(weft_device *device, void *to, const void *from, uint64_t n_bytes) {
  if (device == NULL || ((to == NULL || from == NULL) && n_bytes > 0)) return WEFT_E_INVALID;
  if (n_bytes == 0 || note_call(device, CALL_UPLOAD, to, NULL, 0) == STEP_GRAPHS_CAPTURE) return WEFT_OK;
  return note_status(device, calls_of(device)->upload(device, to, from, n_bytes));
}

weft_status weft_device_download(weft_device *device, void *to, const void *from, uint64_t n_bytes) {
  if (device == NULL || ((to == NULL || from == NULL) && n_bytes > 0)) return WEFT_E_INVALID;
  if (makes_graph(device)) return WEFT_E_INVALID;
  return n_bytes == 0 ? WEFT_OK : note_status(device, calls_of(device)->download(device, to, from, n_bytes));
}

weft_status weft_device_copy(weft_device *device, void *to, const void *from, uint64_t n_bytes) {
  if (device == NULL || ((to == NULL || from == NULL) && n_bytes > 0)) return WEFT_E_INVALID;
  if (n_bytes == 0 || note_call(device, CALL_COPY, to, from, n_bytes) == STEP_GRAPHS_WALK) return WEFT_OK;
  return note_status(device, calls_of(device)->copy(device, to, from, n_bytes));
}

weft_status weft_device_zero(weft_device *device, void *to, uint64_t n_bytes) {
  if (device == NULL || (to == NULL && n_bytes > 0)) return WEFT_E_INVALID;
  if (n_bytes == 0 || note_call(device, CALL_ZERO, to, NULL, n_bytes) == STEP_GRAPHS_WALK) return WEFT_OK;
  return note_status(device, calls_of(device)->zero(device, to, n_bytes));
}

weft_status weft_device_sync(weft_device *device) {
  return device == NULL ? WEFT_E_INVALID : note_status(device, calls_of(device)->sync(device));
}

weft_status weft_device_mark(weft_device *device, uint32_t mark) {
  if (device == NULL || mark >= WEFT_MARKS_MAX) return WEFT_E_INVALID;
  return device->calls->mark == NULL ? WEFT_OK : note_status(device, calls_of(device)->mark(device, mark));
}

weft_status weft_device_wait(weft_device *device, uint32_t mark) {
  if (device == NULL || mark >= WEFT_MARKS_MAX) return WEFT_E_INVALID;
  return device->calls->wait == NULL ? WEFT_OK : note_status(device, calls_of(device)->wait(device, mark));
}

/* ---- several devices ---- */

weft_status weft_device_send(weft_device *from, weft_device *to, void *to_memory, const void *from_memory,
                             uint64_t n_bytes) {
  if (from == NULL || to == NULL || ((to_memory == NULL || from_memory == NULL) && n_bytes > 0)) return WEFT_E_INVALID;
  if (strcmp(from->info.backend, to->info.backend) != 0 || makes_graph(from)) return WEFT_E_INVALID;
  return n_bytes == 0 ? WEFT_OK : note_status(from, calls_of(from)->send(from, to, to_memory, from_memory, n_bytes));
}

weft_status weft_device_follow(weft_device *device, weft_device *other, uint32_t mark) {
  if (device == NULL || other == NULL || mark >= WEFT_MARKS_MAX) return WEFT_E_INVALID;
  if (strcmp(device->info.backend, other->info.backend) != 0 || makes_graph(device)) return WEFT_E_INVALID;
  if (device == other || device->calls->follow == NULL) return WEFT_OK;
  return note_status(device, calls_of(device)->follow(device, other, mark));
}

bool weft_device_reaches(weft_device *device, weft_device *other) {
  if (device == other) return true;
  if (strcmp(device->info.backend, other->info.backend) != 0) return false;
  const device_calls *calls = calls_of(device);
  return calls->reaches == NULL ? device->info.host_memory : calls->reaches(device, other);
}

weft_status device_exchange(weft_device *device, const shards_exchange *args) {
  if (makes_graph(device)) {
    shards_exchange noted = *args;
    CLEAR_PADDING(&noted);
    step_graphs_note(device->graphs, CALL_EXCHANGE, &noted, sizeof noted);
  }
  return device_walks(device) ? WEFT_OK : note_status(device, calls_of(device)->exchange(device, args));
}

bool weft_device_broken(const weft_device *device) {
  return __atomic_load_n(&device->broken, __ATOMIC_RELAXED);
}

/* ---- graphs ---- */

void weft_device_graph_begin(weft_device *device, uint64_t key, const weft_graph_vote *vote) {
  device_enter(device);
  if (device->calls->step_begins != NULL) device->calls->step_begins(device);
  if (device->graphs != NULL) step_graphs_begin(device->graphs, key, vote);
}

bool weft_device_graph_end(weft_device *device, weft_status *status) {
  device_enter(device);
  bool again = device->graphs != NULL && step_graphs_end(device->graphs, status);
  device_note(device, *status);
  return again;
}

void weft_device_graph_owner(weft_device *device, uint32_t owner) {
  if (device->graphs != NULL) device->graphs->owner = owner;
}

void weft_device_take_graphs(weft_device *device, uint32_t owner, weft_graphs_taken *out) {
  out->n = 0;
  if (device->graphs != NULL) step_graphs_take(device->graphs, owner, out);
}

void weft_device_free_graphs(weft_device *device, const weft_graphs_taken *taken) {
  if (taken->n > 0) device_enter(device);
  for (uint32_t i = 0; i < taken->n; i++) device->graphs->calls->free_exec(device, taken->graph[i], true);
}

weft_graph_counters weft_device_graph_counters(const weft_device *device) {
  weft_graph_counters out = {0};
  if (device->graphs == NULL) return out;
  const uint64_t *from = (const uint64_t *)(const void *)&device->graphs->n;
  uint64_t *to = (uint64_t *)(void *)&out;
  for (size_t i = 0; i < sizeof out / sizeof *to; i++) to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
  return out;
}

uint32_t weft_device_bucket(uint32_t n) {
  uint32_t step = 1;
  while (n / step >= 16) step *= 2;
  return n > UINT32_MAX - step ? n : (n + step - 1) / step * step;
}

/* ---- weights ---- */

uint64_t weight_file_bytes(const weft_weight *weight) {
  uint64_t n_rows, n_bytes;
  if (__builtin_mul_overflow((uint64_t)weight->n_mats, (uint64_t)weight->n_out, &n_rows)) return 0;
  uint64_t row_bytes = weft_type_row_bytes(weight->type, weight->n_in);
  if (__builtin_mul_overflow(n_rows, row_bytes, &n_bytes)) return 0;
  return n_bytes > UINT64_MAX / 4 ? 0 : n_bytes; /* so that the bytes of the held type do not overflow either */
}

uint64_t weft_device_integers_bytes(const weft_device *device, const weft_weight *weight, unsigned uses) {
  if (device == NULL || device->calls->integers_bytes == NULL || device->info.products != 8) return 0;
  uint64_t n_bytes = device->calls->integers_bytes(weight, uses);
  if (device->info.integers) return n_bytes;
  /* Those of soft embeddings are there in any case. */
  uint64_t others = device->calls->integers_bytes(weight, WEFT_USE_MATMUL);
  return (uses & WEFT_USE_CANVASES) != 0 && n_bytes > others ? n_bytes - others : 0;
}

bool weft_device_keep_integers(weft_device *device, bool keep) {
  bool can = device->calls->integers_bytes != NULL && device->info.products == 8;
  device->info.integers = can && keep;
  return can;
}

weft_status weight_check(weft_device *device, weft_weight *weight, weft_error *error) {
  const weft_type_info *type = weft_type_find((int32_t)weight->type);
  if (type == NULL || !device->kernels->supports(device, weight->type)) {
    return weft_fail(error, WEFT_E_UNSUPPORTED, "weights of type %s cannot be used on the %s backend",
                     weft_type_name_of_id((int32_t)weight->type), device->info.backend);
  }
  if (weight->n_in == 0 || weight->n_in % type->n_elements != 0) {
    return weft_fail(error, WEFT_E_INVALID, "a weight row of %u elements is not whole %s blocks of %u", weight->n_in,
                     type->name, type->n_elements);
  }
  if (weight_file_bytes(weight) == 0) {
    return weft_fail(error, WEFT_E_INVALID, "a weight of %u x %u x %u has no elements or too many", weight->n_mats,
                     weight->n_out, weight->n_in);
  }
  weight->data = NULL;
  weight->n_bytes = 0;
  return WEFT_OK;
}

weft_status weft_device_weight(weft_device *device, weft_weight *weight, const void *file_bytes, unsigned uses,
                               weft_error *error) {
  if (device == NULL || weight == NULL || file_bytes == NULL) {
    return weft_fail(error, WEFT_E_INVALID, "weft_device_weight: an argument is NULL");
  }
  weft_status status = weight_check(device, weight, error);
  uint64_t start = weft_clock_us();
  if (status == WEFT_OK) status = calls_of(device)->weight(device, weight, file_bytes, uses, error);
  if (status == WEFT_OK && device->info.host_memory && device->pace != NULL)
    device->pace(device->pace_self, weft_clock_us() - start);
  return status;
}

void weft_device_set_pace(weft_device *device, weft_piece_pace pace, void *self) {
  device->pace = pace;
  device->pace_self = self;
}

weft_status weft_device_weight_read(weft_device *device, weft_weight *weight, const weft_weight_source *source,
                                    unsigned uses, weft_error *error) {
  if (source == NULL || source->read == NULL || device == NULL || device->calls->weight_read == NULL)
    return weft_device_weight(device, weight, source == NULL ? NULL : source->bytes, uses, error);
  if (weight == NULL) return weft_fail(error, WEFT_E_INVALID, "weft_device_weight_read: weight is NULL");
  weft_status status = weight_check(device, weight, error);
  return status == WEFT_OK ? calls_of(device)->weight_read(device, weight, source, uses, error) : status;
}

void weft_device_weight_free(weft_device *device, weft_weight *weight) {
  if (device == NULL || weight == NULL || weight->data == NULL) return;
  calls_of(device)->weight_free(device, weight);
  weight->data = NULL;
  weight->n_bytes = 0;
}

weft_status weft_device_weight_unpack(weft_device *device, const weft_weight *weight, void *file_bytes) {
  if (device == NULL || weight == NULL || weight->data == NULL || file_bytes == NULL) return WEFT_E_INVALID;
  return calls_of(device)->weight_unpack(device, weight, file_bytes);
}

weft_weights_report weft_device_weights(const weft_device *device) {
  return device->weights;
}

bool weft_device_reads_host_tables(const weft_device *device) {
  return !device->info.host_memory && device->shares == WEFT_SHARE_NOT && device->holding == NULL;
}

weft_experts_report weft_device_experts(const weft_device *device) {
  weft_experts_report out = {0};
  if (device->calls->experts_report != NULL) device->calls->experts_report(device, &out);
  return out;
}

void weft_device_expect_experts(weft_device *device, uint64_t n_bytes) {
  device_enter(device);
  if (device->calls->expect_experts != NULL) device->calls->expect_experts(device, n_bytes);
}

bool weft_device_weight_is_away(const weft_device *device, const weft_weight *weight) {
  return device->calls->weight_is_away != NULL && device->calls->weight_is_away(device, weight);
}

/* ---- by which kernels ops run ---- */

static const char *const op_names[] = {
#define X(op) #op,
    WEFT_OPS(X)
#undef X
};
enum { N_OPS = sizeof op_names / sizeof op_names[0] };

/* A backend may lack an op. */
static bool has_op(const weft_kernels *kernels, uint32_t i) {
  const bool has[N_OPS] = {
#define X(op) kernels->op != NULL,
      WEFT_OPS(X)
#undef X
  };
  return has[i];
}

/* Adds "FAMILY (default): op, op", for the ops of one family that are not listed yet. */
static size_t list_family(const weft_device *device, const char *family, bool (*listed)[N_OPS], char *out, size_t n) {
  int more = snprintf(out, n, "%s (%s):", family, device->info.isa_forced ? "forced" : "default");
  size_t at = more > 0 ? (size_t)more : 0;
  const char *between = " ";
  for (uint32_t i = 0; i < N_OPS && at < n; i++) {
    if ((*listed)[i] || !has_op(device->kernels, i) ||
        strcmp(device->kernels->family(device, op_names[i]), family) != 0)
      continue;
    (*listed)[i] = true;
    more = snprintf(out + at, n - at, "%s%s", between, op_names[i]);
    at += more > 0 ? (size_t)more : 0;
    between = ", ";
  }
  return at;
}

void weft_device_paths(const weft_device *device, char *out, size_t n) {
  bool listed[N_OPS] = {0};
  size_t at = 0;
  if (n > 0) out[0] = 0;
  for (uint32_t i = 0; i < N_OPS && device->kernels->family != NULL; i++) {
    if (listed[i] || at + 2 >= n || !has_op(device->kernels, i)) continue;
    if (at > 0) at += (size_t)snprintf(out + at, n - at, "; ");
    at += list_family(device, device->kernels->family(device, op_names[i]), &listed, out + at, n - at);
    if (at > n) at = n;
  }
}

void weft_device_list_backends(char *out, size_t n) {
  weft_device_config config = {.n_threads = 1};
  weft_device *cpu = NULL;
  char paths[WEFT_PATHS_MAX], module[WEFT_PATHS_MAX];
  weft_error error = {{0}};
  if (cpu_device_open(&config, &cpu, &error) == WEFT_OK) {
    weft_device_paths(cpu, paths, sizeof paths);
    weft_device_close(cpu);
  } else {
    (void)snprintf(paths, sizeof paths, "%s", error.text);
  }
  cuda_module_describe(module, sizeof module);
  (void)snprintf(out, n, "cpu   %s\ncuda  %s\n", paths, module);
}

/* ---- watching ---- */

void weft_device_watch(weft_device *device, weft_op_watch watch, void *self) {
  device->watch = watch;
  device->watch_self = self;
  device->layer = 0;
}

void weft_device_serial_kernels(weft_device *device, bool on) {
  device->serial_kernels = on;
}

void weft_device_at_layer(weft_device *device, uint32_t layer) {
  device->layer = layer;
}

/* ---- host memory as device memory ---- */

bool host_budget_take(weft_device *device, uint64_t n_bytes) {
  host_budget *budget = &device->budget;
  if (budget->most == 0) return true;
  if (n_bytes > budget->most - budget->taken) return false;
  budget->taken += n_bytes;
  return true;
}

void host_budget_give(weft_device *device, uint64_t n_bytes) {
  if (device->budget.most > 0) device->budget.taken -= n_bytes;
}

uint64_t host_memory_left(weft_device *device) {
  const host_budget *budget = &device->budget;
  return budget->most > 0 ? budget->most - budget->taken : weft_memory_available();
}

static weft_status note_piece(host_budget *budget, void *memory, uint64_t n_bytes) {
  struct host_piece *piece = weft_grow(budget->piece, budget->n_pieces, &budget->pieces_max, 64, sizeof *budget->piece);
  if (piece == NULL) return WEFT_E_NO_MEMORY;
  budget->piece = piece;
  budget->piece[budget->n_pieces++] = (struct host_piece){memory, n_bytes};
  return WEFT_OK;
}

/* Bytes of a piece, which is forgotten. */
static uint64_t forget_piece(host_budget *budget, const void *memory) {
  for (uint32_t i = budget->n_pieces; i > 0; i--) {
    struct host_piece piece = budget->piece[i - 1];
    if (piece.memory != memory) continue;
    budget->piece[i - 1] = budget->piece[--budget->n_pieces];
    if (budget->n_pieces == 0) {
      weft_free(budget->piece);
      budget->piece = NULL;
      budget->pieces_max = 0;
    }
    return piece.n_bytes;
  }
  WEFT_CHECK(false); /* it was not given by this device */
  return 0;
}

weft_status host_alloc(weft_device *device, uint64_t n_bytes, void **out) {
  if (!host_budget_take(device, n_bytes)) return WEFT_E_NO_MEMORY;
  weft_status status = host_alloc_unbound(device, n_bytes, out);
  if (status == WEFT_OK && device->budget.most > 0) {
    status = note_piece(&device->budget, *out, n_bytes);
    if (status != WEFT_OK) host_free_unbound(device, *out);
  }
  if (status != WEFT_OK) host_budget_give(device, n_bytes);
  return status;
}

void host_free(weft_device *device, void *memory) {
  if (device->budget.most > 0) host_budget_give(device, forget_piece(&device->budget, memory));
  host_free_unbound(device, memory);
}

/* Large pieces (the pool of pages, above all) are mapped with huge pages where the system has them: their first
 * touch then clears 2 MiB at a time, and reading them does not wait for address translation. */
weft_status host_alloc_unbound(weft_device *device, uint64_t n_bytes, void **out) {
  enum { LARGE = 32 << 20, HUGE_PAGE = 2 << 20 };
  (void)device;
  if (n_bytes > SIZE_MAX) return WEFT_E_NO_MEMORY;
  *out = weft_alloc_aligned((size_t)n_bytes, n_bytes >= LARGE ? HUGE_PAGE : 256);
  if (*out == NULL) return WEFT_E_NO_MEMORY;
  if (n_bytes >= LARGE) weft_memory_prefer_huge(*out, (size_t)n_bytes);
  return WEFT_OK;
}

void host_free_unbound(weft_device *device, void *memory) {
  (void)device;
  weft_free(memory);
}

weft_status host_copy(weft_device *device, void *to, const void *from, uint64_t n_bytes) {
  (void)device;
  memmove(to, from, (size_t)n_bytes);
  return WEFT_OK;
}

weft_status host_zero(weft_device *device, void *to, uint64_t n_bytes) {
  (void)device;
  memset(to, 0, (size_t)n_bytes);
  return WEFT_OK;
}

weft_status host_sync(weft_device *device) {
  (void)device;
  return WEFT_OK;
}

weft_status host_send(weft_device *from, weft_device *to, void *to_memory, const void *from_memory, uint64_t n_bytes) {
  (void)to;
  return host_copy(from, to_memory, from_memory, n_bytes);
}

/* The value of a line `key : value` of a /proc file, or an empty text. */
static void read_proc(const char *path, const char *key, char *value, size_t n) {
  char line[256];
  value[0] = 0;
  FILE *file = fopen(path, "re");
  if (file == NULL) return;
  while (fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, key, strlen(key)) != 0) continue;
    const char *colon = strchr(line, ':');
    if (colon == NULL) continue;
    colon += 1 + strspn(colon + 1, " \t");
    (void)snprintf(value, n, "%.*s", (int)strcspn(colon, "\n"), colon);
    break;
  }
  (void)fclose(file);
}

void host_describe(weft_device *device, const weft_device_config *config) {
  weft_device_info *info = &device->info;
  info->host_memory = true;
  info->immediate = true;
  (void)snprintf(info->card, sizeof info->card, "host");
  char value[96];
  unsigned long long kib = 0;
  read_proc("/proc/cpuinfo", "model name", info->name, sizeof info->name);
  if (info->name[0] == 0) (void)snprintf(info->name, sizeof info->name, "unnamed processor");
  read_proc("/proc/meminfo", "MemTotal", value, sizeof value);
  if (sscanf(value, "%llu", &kib) == 1) info->memory_bytes = kib * 1024;
  info->memory_free_bytes = weft_memory_available();
  device->budget.most = config->memory_bytes_max;
  if (device->budget.most == 0) return;
  info->memory_bytes = device->budget.most;
  if (info->memory_free_bytes > device->budget.most) info->memory_free_bytes = device->budget.most;
}
