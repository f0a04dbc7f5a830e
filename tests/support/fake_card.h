/* SPDX-License-Identifier: MIT */
/* A device that behaves like a card and computes like ref: its memory is not the program's (nothing is read in place),
 * ops of a step can be recorded and launched again, and any allocation, capture, update or call can be made to fail.
 *
 * Law: launching a graph repeats the recorded calls with the arguments that they had; only device memory may have
 * changed since. So what is equal with graphs and without them here depends on tables and arrays alone. A copy of
 * experts from host memory runs when the main stream waits for it and no sooner: without that wait the products read
 * garbage.
 *
 * Several cards may be late (fake_card.late): what is enqueued on them then waits. On a lazy card it runs only when the
 * host waits for that card, or when work of another card that follows it runs; on an eager card it runs at once, but
 * for what it follows, which runs before it. So of two cards one can be as far ahead of the other as the marks let it
 * be: a missing mark or follow shows as a row that is read before it is there, or after it was overwritten. */
#ifndef WEFT_TESTS_FAKE_CARD_H
#define WEFT_TESTS_FAKE_CARD_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/canvas_head.h"
#include "kernels/device_internal.h"
#include "kernels/expert_slots.h"
#include "kernels/shards_exchange.h"
#include "tests/support/fake_room.h"

enum { FAKE_NODES_MAX = 4096, FAKE_ARGS_MAX = 512, FAKE_BROUGHT_MAX = 512, FAKE_HOST_MAX = 512 };

typedef struct fake_node {
  uint32_t call; /* an op's number, or one of below */
  uint32_t n_bytes;
  uint8_t args[FAKE_ARGS_MAX];
} fake_node;

enum {
#define X(op) FAKE_##op,
  WEFT_OPS(X)
#undef X
      FAKE_COPY,
  FAKE_ZERO,
  FAKE_UPLOAD,
  FAKE_LAUNCH,
  FAKE_FOLLOW,
  FAKE_EXCHANGE
};

typedef enum fake_late { FAKE_PROMPT = 0, FAKE_LAZY = 1, FAKE_EAGER = 2 } fake_late;

typedef struct fake_graph {
  uint32_t n;
  fake_node node[];
} fake_graph;

typedef struct fake_move {
  void *to;
  const void *from;
  uint64_t n_bytes;
} fake_move;

/* What a late card has not done yet. */
typedef struct fake_work {
  fake_node node;
  void *held[2];           /* copies of what the host gave; freed when the work has run */
  struct fake_card *other; /* FAKE_FOLLOW: this card runs up to `until` first */
  uint64_t until;
} fake_work;

typedef struct fake_card {
  weft_device base;
  weft_device *ref;
  step_graphs graphs;
  fake_node *node; /* [FAKE_NODES_MAX] being recorded */
  uint32_t n_nodes;
  /* counted, and made to fail when the count reaches: 0 is never */
  uint64_t n_allocs, fail_alloc, n_calls, fail_call, n_reads, fail_read;
  uint64_t n_alive, alive_bytes, n_syncs, n_freed_ended; /* the last: graphs that were freed without waiting */
  bool fail_on; /* and every later allocation, also of host memory: there is no other place */
  bool refuse_capture, lost;
  /* card memory alone: a full card refuses the pieces [i] for which full[i], counted from when it became full */
  const bool *full;
  uint32_t n_full, n_pieces;
  struct {
    const uint8_t *at;
    uint64_t n_bytes;
  } host[FAKE_HOST_MAX]; /* what alloc_host gave */
  bool unreachable;      /* ops of other cards do not reach its memory */
  /* experts in host memory, if streams is set before the model is opened: two of three, or what finds no room */
  bool streams;
  fake_room room;
  expert_slots slots;
  uint8_t *staging;
  uint64_t slot_bytes, n_fetched, n_bytes_integers; /* the last: of weights that were placed */
  uint32_t n_experts, n_pending, n_integers;        /* the last: weights that were placed with integers */
  fake_move pending[EXPERT_SLOTS];                  /* copies that nobody has waited for yet */
  struct {
    const weft_weight *of;
    weft_weight copy; /* in a slot */
  } brought[FAKE_BROUGHT_MAX];
  uint32_t n_brought;
  fake_late late;
  fake_work *work; /* [work_max] enqueued on a late card; the first n_ran have run */
  uint64_t n_work, n_ran, work_max;
  void *kept[2];                   /* of the work that is enqueued next */
  uint64_t marked[WEFT_MARKS_MAX]; /* the work before each mark */
} fake_card;

static inline fake_card *fake_of(weft_device *device) {
  return (fake_card *)(void *)device;
}

/* ---- late cards ---- */

static inline void fake_run_late(fake_card *card, uint64_t until);

/* Room for one more piece of work, which the caller fills; fake_enqueued follows. */
static inline fake_work *fake_enqueue(fake_card *card, uint32_t call, const void *args, size_t n_bytes) {
  if (card->n_work == card->work_max) {
    card->work_max = card->work_max == 0 ? 1024 : 2 * card->work_max;
    card->work = realloc(card->work, card->work_max * sizeof *card->work);
    if (card->work == NULL) abort();
  }
  fake_work *work = &card->work[card->n_work];
  memset(work, 0, sizeof *work);
  if (n_bytes > FAKE_ARGS_MAX) abort();
  work->node.call = call;
  work->node.n_bytes = (uint32_t)n_bytes;
  if (n_bytes > 0) memcpy(work->node.args, args, n_bytes);
  memcpy(work->held, card->kept, sizeof work->held);
  memset(card->kept, 0, sizeof card->kept);
  return work;
}

static inline void fake_enqueued(fake_card *card) {
  card->n_work += 1;
  if (card->late == FAKE_EAGER) fake_run_late(card, card->n_work);
}

static inline void *fake_held(const void *from, uint64_t n_bytes) {
  void *copy = malloc(n_bytes == 0 ? 1 : n_bytes);
  if (copy == NULL) abort();
  if (n_bytes > 0) memcpy(copy, from, n_bytes);
  return copy;
}

static inline weft_status fake_alloc(weft_device *device, uint64_t n_bytes, void **out) {
  fake_card *card = fake_of(device);
  if (card->lost) return WEFT_E_DEVICE;
  bool refused = ++card->n_allocs == card->fail_alloc || (card->fail_on && card->n_allocs > card->fail_alloc);
  if (refused && card->fail_alloc > 0) return WEFT_E_NO_MEMORY;
  weft_status status = host_alloc(device, n_bytes == 0 ? 1 : n_bytes, out);
  if (status == WEFT_OK) card->n_alive += 1;
  return status;
}

static inline weft_status fake_alloc_card(weft_device *device, uint64_t n_bytes, void **out) {
  fake_card *card = fake_of(device);
  uint32_t i = card->n_pieces++;
  return card->full != NULL && i < card->n_full && card->full[i] ? WEFT_E_NO_MEMORY : fake_alloc(device, n_bytes, out);
}

static inline bool fake_reaches(weft_device *device, weft_device *other) {
  return !fake_of(device)->unreachable && !fake_of(other)->unreachable;
}

static inline weft_status fake_alloc_host(weft_device *device, uint64_t n_bytes, void **out) {
  fake_card *card = fake_of(device);
  weft_status status = fake_alloc(device, n_bytes, out);
  for (uint32_t i = 0; status == WEFT_OK; i++) {
    if (i == FAKE_HOST_MAX) abort();
    if (card->host[i].at != NULL) continue;
    card->host[i].at = *out;
    card->host[i].n_bytes = n_bytes;
    break;
  }
  return status;
}

/* The place of an address among the host memory of a card; FAKE_HOST_MAX: it is none. */
static inline uint32_t fake_find_host(const fake_card *card, const void *at) {
  const uint8_t *byte = at;
  uint32_t i = 0;
  while (i < FAKE_HOST_MAX &&
         (card->host[i].at == NULL || byte < card->host[i].at || byte >= card->host[i].at + card->host[i].n_bytes))
    i++;
  return i;
}

/* A card sends from its own memory to that of another card. */
static inline void fake_check_send(const fake_card *from, const fake_card *to, const void *at) {
  if (fake_find_host(from, at) == FAKE_HOST_MAX && fake_find_host(to, at) == FAKE_HOST_MAX) return;
  (void)fprintf(stderr, "FAILED: a card sends what lies in host memory, or to there\n");
  exit(1);
}

static inline void fake_free(weft_device *device, void *memory) {
  fake_of(device)->n_alive -= 1;
  fake_run_late(fake_of(device), fake_of(device)->n_work);
  host_free(device, memory);
}

static inline void fake_free_host(weft_device *device, void *memory) {
  uint32_t i = fake_find_host(fake_of(device), memory);
  if (i == FAKE_HOST_MAX) abort();
  fake_of(device)->host[i].at = NULL;
  fake_free(device, memory);
}

/* Counts a call that a card may fail; after a failure it is lost. */
static inline weft_status fake_call(fake_card *card) {
  if (!card->lost && ++card->n_calls == card->fail_call) card->lost = true;
  return card->lost ? WEFT_E_DEVICE : WEFT_OK;
}

static inline bool fake_records(fake_card *card, uint32_t call, const void *args, size_t n_bytes) {
  if (card->graphs.mode != STEP_GRAPHS_CAPTURE) return false;
  if (card->n_nodes == FAKE_NODES_MAX || n_bytes > FAKE_ARGS_MAX) abort();
  fake_node *node = &card->node[card->n_nodes++];
  node->call = call;
  node->n_bytes = (uint32_t)n_bytes;
  memcpy(node->args, args, n_bytes);
  return true;
}

static inline weft_status fake_copy(weft_device *device, void *to, const void *from, uint64_t n_bytes) {
  const fake_move move = {to, from, n_bytes};
  fake_card *card = fake_of(device);
  if (fake_records(card, FAKE_COPY, &move, sizeof move)) return WEFT_OK;
  weft_status status = fake_call(card);
  if (status != WEFT_OK || card->late == FAKE_PROMPT)
    return status == WEFT_OK ? host_copy(device, to, from, n_bytes) : status;
  (void)fake_enqueue(card, FAKE_COPY, &move, sizeof move);
  fake_enqueued(card);
  return WEFT_OK;
}

static inline weft_status fake_upload(weft_device *device, void *to, const void *from, uint64_t n_bytes) {
  fake_card *card = fake_of(device);
  if (card->late == FAKE_PROMPT) return fake_copy(device, to, from, n_bytes);
  weft_status status = fake_call(card);
  if (status != WEFT_OK) return status;
  void *held = fake_held(from, n_bytes);
  const fake_move move = {to, held, n_bytes};
  fake_enqueue(card, FAKE_UPLOAD, &move, sizeof move)->held[0] = held;
  fake_enqueued(card);
  return WEFT_OK;
}

static inline weft_status fake_download(weft_device *device, void *to, const void *from, uint64_t n_bytes) {
  weft_status status = fake_copy(device, to, from, n_bytes);
  fake_run_late(fake_of(device), fake_of(device)->n_work);
  return status;
}

static inline weft_status fake_zero(weft_device *device, void *to, uint64_t n_bytes) {
  const fake_move move = {to, NULL, n_bytes};
  fake_card *card = fake_of(device);
  if (fake_records(card, FAKE_ZERO, &move, sizeof move)) return WEFT_OK;
  weft_status status = fake_call(card);
  if (status != WEFT_OK || card->late == FAKE_PROMPT)
    return status == WEFT_OK ? host_zero(device, to, n_bytes) : status;
  (void)fake_enqueue(card, FAKE_ZERO, &move, sizeof move);
  fake_enqueued(card);
  return WEFT_OK;
}

static inline weft_status fake_send(weft_device *from, weft_device *to, void *to_memory, const void *from_memory,
                                    uint64_t n_bytes) {
  fake_check_send(fake_of(from), fake_of(to), to_memory);
  fake_check_send(fake_of(from), fake_of(to), from_memory);
  return fake_of(to)->lost ? WEFT_E_DEVICE : fake_copy(from, to_memory, from_memory, n_bytes);
}

static inline weft_status fake_sync(weft_device *device) {
  fake_of(device)->n_syncs += 1;
  fake_run_late(fake_of(device), fake_of(device)->n_work);
  return fake_call(fake_of(device));
}

static inline weft_status fake_mark(weft_device *device, uint32_t mark) {
  fake_of(device)->marked[mark] = fake_of(device)->n_work;
  return fake_call(fake_of(device));
}

static inline weft_status fake_wait(weft_device *device, uint32_t mark) {
  fake_card *card = fake_of(device);
  card->n_syncs += 1;
  fake_run_late(card, card->marked[mark]);
  return fake_call(card);
}

static inline weft_status fake_follow(weft_device *device, weft_device *other, uint32_t mark) {
  fake_card *card = fake_of(device);
  weft_status status = fake_call(card);
  if (status != WEFT_OK || card->late == FAKE_PROMPT) return status;
  fake_work *work = fake_enqueue(card, FAKE_FOLLOW, NULL, 0);
  work->other = fake_of(other);
  work->until = work->other->marked[mark];
  fake_enqueued(card);
  return WEFT_OK;
}

#include "tests/support/fake_experts.h"
/* A byte for each element of a quantised weight that is not looked up; another for soft embeddings of canvases. */
static inline uint64_t fake_integers_bytes(const weft_weight *weight, unsigned uses) {
  const weft_type_info *type = weft_type_find((int32_t)weight->type);
  if (type == NULL || type->n_elements == 1 || weft_keeps_numbers(uses)) return 0;
  return (uint64_t)weight->n_mats * weight->n_out * weight->n_in * ((uses & WEFT_USE_CANVASES) != 0 ? 2 : 1);
}

static inline weft_status fake_weight(weft_device *device, weft_weight *weight, const void *file_bytes, unsigned uses,
                                      weft_error *error) {
  fake_card *card = fake_of(device);
  if (++card->n_allocs == card->fail_alloc) return weft_fail(error, WEFT_E_NO_MEMORY, "the fake card is full");
  weft_status status = card->ref->calls->weight(card->ref, weight, file_bytes, uses, error);
  card->n_integers += device->info.integers && fake_integers_bytes(weight, uses) > 0;
  card->n_bytes_integers += weft_device_integers_bytes(device, weight, uses);
  card->n_alive += status == WEFT_OK;
  if (status != WEFT_OK || uses != WEFT_USE_EXPERTS || !card->streams) return status;
  uint64_t n_bytes = weight_file_bytes(weight);
  if (card->room.is_bounded ? fake_room_takes(&card->room, n_bytes) : card->n_experts++ % 3 == 2) return status;
  if (n_bytes > card->slot_bytes) {
    free(card->staging);
    card->slot_bytes = n_bytes;
    card->staging = malloc(EXPERT_SLOTS * n_bytes);
    if (card->staging == NULL) abort();
    memset(card->staging, 0xFF, EXPERT_SLOTS * n_bytes);
  }
  device->weights.n_bytes_host += n_bytes;
  return expert_slots_keep(&card->slots, (void *)(uintptr_t)weight->data, n_bytes);
}

/* As a card does it: piece by piece into memory of its own. */
static inline weft_status fake_weight_read(weft_device *device, weft_weight *weight, const weft_weight_source *source,
                                           unsigned uses, weft_error *error) {
  enum { PIECE = 3000 };
  fake_card *card = fake_of(device);
  uint64_t n_bytes = weight_file_bytes(weight);
  uint8_t *bytes = malloc(n_bytes), *part = aligned_alloc(WEFT_READ_ALIGN, 3 * WEFT_READ_ALIGN);
  if (bytes == NULL || part == NULL) abort();
  weft_status status = WEFT_OK;
  for (uint64_t at = 0; at < n_bytes && status == WEFT_OK; at += PIECE) {
    uint64_t n = n_bytes - at < PIECE ? n_bytes - at : PIECE;
    uint32_t skip = 0;
    status = ++card->n_reads == card->fail_read ? WEFT_E_IO : source->read(source->self, at, n, part, &skip);
    if (status == WEFT_OK) memcpy(bytes + at, part + skip, n);
  }
  if (status == WEFT_OK && memcmp(bytes, source->bytes, n_bytes) != 0) abort();
  if (status == WEFT_OK) status = fake_weight(device, weight, bytes, uses, error);
  free(bytes);
  free(part);
  return status;
}

static inline void fake_weight_free(weft_device *device, weft_weight *weight) {
  fake_card *card = fake_of(device);
  card->n_alive -= 1;
  (void)expert_slots_forget(&card->slots, weight->data);
  card->ref->calls->weight_free(card->ref, weight);
}

static inline weft_status fake_weight_unpack(weft_device *device, const weft_weight *weight, void *file_bytes) {
  fake_card *card = fake_of(device);
  return card->ref->calls->weight_unpack(card->ref, weight, file_bytes);
}

/* ---- ops ---- */

/* A host array that an op reads, as a table; outside of graphs the array itself, or of a late card a copy for the work
 * that is enqueued next. */
static inline const void *fake_table(fake_card *card, const void *array, uint64_t n_bytes) {
  if (array == NULL) return array;
  if (card->graphs.mode == STEP_GRAPHS_RUN && card->late != FAKE_PROMPT) {
    uint32_t i = card->kept[0] != NULL;
    return card->kept[i] = fake_held(array, n_bytes);
  }
  if (card->graphs.mode == STEP_GRAPHS_RUN) return array;
  uint8_t *table = step_graphs_table(&card->graphs, n_bytes);
  if (table == NULL) return array;
  memcpy(table, array, n_bytes);
  return step_graphs_table_end(&card->graphs, n_bytes);
}

static inline weft_attention_args fake_attention_args(fake_card *card, const weft_attention_args *args) {
  weft_attention_args a = *args;
  a.segment = fake_table(card, args->segment, args->n_segments * sizeof *args->segment);
  return a;
}

static inline weft_delta_rows_args fake_delta_rows_args(fake_card *card, const weft_delta_rows_args *args) {
  weft_delta_rows_args a = *args;
  a.segment = fake_table(card, args->segment, args->n_segments * sizeof *args->segment);
  return a;
}

static inline weft_delta_rule_args fake_delta_rule_args(fake_card *card, const weft_delta_rule_args *args) {
  weft_delta_rule_args a = *args;
  a.segment = fake_table(card, args->segment, args->n_segments * sizeof *args->segment);
  a.write = fake_table(card, args->write, args->n_writes * sizeof *args->write);
  return a;
}

static inline weft_head_stats_args fake_head_stats_args(fake_card *card, const weft_head_stats_args *args) {
  weft_head_stats_args a = *args;
  a.allowed = fake_table(card, args->allowed, args->n_rows * sizeof *args->allowed);
  a.want_soft = fake_table(card, args->want_soft, args->n_rows);
  return a;
}

#define X(op)                                                                                     \
  static inline weft_status fake_run_##op(weft_device *device, const weft_##op##_args *args) {    \
    fake_card *card = fake_of(device);                                                            \
    if (fake_records(card, FAKE_##op, args, sizeof *args)) return WEFT_OK;                        \
    weft_status status = fake_call(card);                                                         \
    if (status != WEFT_OK) return status;                                                         \
    if (card->late == FAKE_PROMPT) return weft_device_kernels(card->ref)->op(card->ref, args);    \
    (void)fake_enqueue(card, FAKE_##op, args, sizeof *args);                                      \
    fake_enqueued(card);                                                                          \
    return WEFT_OK;                                                                               \
  }                                                                                               \
  static inline uint64_t fake_scratch_##op(weft_device *device, const weft_##op##_args *args) {   \
    const weft_kernels *kernels = weft_device_kernels(fake_of(device)->ref);                      \
    return kernels->op##_scratch == NULL ? 0 : kernels->op##_scratch(fake_of(device)->ref, args); \
  }
WEFT_OPS(X)
#undef X

/* The ops that have tables: a walk makes them and runs nothing. */
#define X(op)                                                                                     \
  static inline weft_status fake_##op(weft_device *device, const weft_##op##_args *args) {        \
    weft_##op##_args a = fake_##op##_args(fake_of(device), args);                                 \
    return fake_run_##op(device, &a);                                                             \
  }                                                                                               \
  static inline weft_status fake_##op##_walk(weft_device *device, const weft_##op##_args *args) { \
    (void)fake_##op##_args(fake_of(device), args);                                                \
    return WEFT_OK;                                                                               \
  }
X(attention)
X(head_stats)
X(delta_rows)
X(delta_rule)
#undef X

/* ---- experts in host memory ---- */

static inline weft_status fake_slot_copy(void *self, uint32_t slot, const void *from, uint64_t n_bytes) {
  fake_card *card = self;
  if (card->n_pending == EXPERT_SLOTS) {
    (void)fprintf(stderr, "FAILED: nobody waits for copies of experts\n");
    exit(1);
  }
  card->pending[card->n_pending++] = (fake_move){card->staging + slot * card->slot_bytes, from, n_bytes};
  card->n_fetched += 1;
  return WEFT_OK;
}

static inline weft_status fake_slot_record(void *self, uint32_t event, expert_stream stream) {
  (void)event;
  (void)stream;
  return fake_call(self);
}

static inline weft_status fake_slot_wait(void *self, uint32_t event, expert_stream stream) {
  fake_card *card = self;
  weft_status status = WEFT_OK;
  (void)event;
  if (stream != EXPERT_STREAM_MAIN) return fake_call(card);
  for (uint32_t i = 0; i < card->n_pending && status == WEFT_OK; i++)
    status = fake_copy(&card->base, card->pending[i].to, card->pending[i].from, card->pending[i].n_bytes);
  card->n_pending = 0;
  return status;
}

static const expert_slots_calls fake_slots_calls = {fake_slot_copy, fake_slot_record, fake_slot_wait};

/* A recorded call names its weights when it is repeated: a description stays as long as the card. */
static inline weft_status fake_bring(fake_card *card, const weft_weight **weight) {
  uint32_t slot, i = 0;
  if (*weight == NULL) return WEFT_OK;
  weft_status status = expert_slots_bring(&card->slots, (*weight)->data, &slot);
  if (status != WEFT_OK || slot == EXPERT_SLOTS) return status;
  const void *data = card->staging + slot * card->slot_bytes;
  while (i < card->n_brought && (card->brought[i].of != *weight || card->brought[i].copy.data != data)) i++;
  if (i == FAKE_BROUGHT_MAX) abort();
  if (i == card->n_brought) {
    card->n_brought += 1;
    card->brought[i].of = *weight;
    card->brought[i].copy = **weight;
    card->brought[i].copy.data = data;
  }
  *weight = &card->brought[i].copy;
  return WEFT_OK;
}

/* The counter is host memory of one call. */
static inline weft_status fake_experts(weft_device *device, const weft_experts_args *args) {
  fake_card *card = fake_of(device);
  weft_experts_args a = *args;
  a.n_touched = NULL;
  weft_status status = fake_bring(card, &a.gate_up);
  if (status == WEFT_OK) status = fake_bring(card, &a.gate);
  if (status == WEFT_OK) status = fake_bring(card, &a.up);
  if (status == WEFT_OK) status = fake_bring(card, &a.down);
  if (status == WEFT_OK) status = fake_run_experts(device, &a);
  return status == WEFT_OK ? expert_slots_done(&card->slots) : status;
}

static inline bool fake_supports(const weft_device *device, weft_type type) {
  const fake_card *card = (const fake_card *)(const void *)device;
  return weft_device_kernels(card->ref)->supports(card->ref, type);
}
static inline const char *fake_numerics(const weft_device *device, weft_type type) {
  (void)device;
  (void)type;
  return "f64";
}

/* ---- exchanges: each card has a thread, which waits within the call as a card would ---- */

static inline uint32_t *fake_place(const shards_exchange *a, uint32_t to, uint32_t from, uint32_t turn, uint32_t i) {
  return (uint32_t *)(void *)(shards_exchange_inbox(a, to, from, turn) + a->array_at[i]);
}

static inline void fake_give(const shards_exchange *a, uint32_t turn, uint32_t i, uint32_t to) {
  shards_rows rows = shards_exchange_rows(a, a->at, to);
  uint64_t n_cols = a->array[i].n_cols;
  uint32_t *place = fake_place(a, to, a->at, turn, i), empty = SHARDS_EXCHANGE_EMPTY;
  for (uint64_t k = rows.first * n_cols; k < rows.end * n_cols; k++) {
    uint32_t word;
    memcpy(&word, a->array[i].x + k, sizeof word);
    if (word == empty) word = SHARDS_EXCHANGE_OTHER;
    if (__atomic_exchange_n(&place[k], word, __ATOMIC_ACQ_REL) == empty) continue;
    (void)fprintf(stderr, "FAILED: a shard gives to a place that was not emptied\n");
    exit(1);
  }
}

/* False: it will not come. */
static inline bool fake_take(const shards_exchange *a, uint32_t *place, uint32_t *word) {
  uint32_t empty = SHARDS_EXCHANGE_EMPTY;
  while ((*word = __atomic_exchange_n(place, empty, __ATOMIC_ACQ_REL)) == empty) {
    if (__atomic_load_n(a->broken, __ATOMIC_ACQUIRE) != 0) return false;
    (void)sched_yield();
  }
  return true;
}

/* What shard `from` gave, or for from == at the shard's own part, is placed. */
static inline bool fake_take_part(const shards_exchange *a, uint32_t turn, uint32_t i, uint32_t from) {
  shards_rows rows = shards_exchange_rows(a, from, a->at);
  const weft_shards_array *of = &a->array[i];
  for (uint64_t k = (uint64_t)rows.first * of->n_cols; k < (uint64_t)rows.end * of->n_cols; k++) {
    uint64_t r = k / of->n_cols, c = k % of->n_cols;
    float *to = of->y == NULL ? of->x + k : of->y + (r * a->n + from) * of->n_cols + c;
    uint32_t word;
    memcpy(&word, of->x + k, sizeof word);
    if (from != a->at && !fake_take(a, fake_place(a, a->at, from, turn, i) + k, &word)) return false;
    memcpy(to, &word, sizeof word);
  }
  return true;
}

/* The sum by pairs of the parts [first, first + n) of a number. */
static inline float fake_sum(const float *part, uint32_t n) {
  return n == 1 ? *part : fake_sum(part, n / 2) + fake_sum(part + n / 2, n - n / 2);
}

static inline bool fake_add_array(const shards_exchange *a, uint32_t turn, uint32_t i) {
  const weft_shards_array *of = &a->array[i];
  shards_rows rows = shards_exchange_rows(a, a->at, a->at);
  for (uint64_t k = (uint64_t)rows.first * of->n_cols; k < (uint64_t)rows.end * of->n_cols; k++) {
    float part[WEFT_DEVICES_MAX];
    for (uint32_t from = 0; from < a->n; from++) {
      uint32_t word;
      part[from] = of->x[k];
      if (from == a->at) continue;
      if (!fake_take(a, fake_place(a, a->at, from, turn, i) + k, &word)) return false;
      memcpy(&part[from], &word, sizeof word);
    }
    of->x[k] = fake_sum(part, a->n);
  }
  return true;
}

static inline bool fake_take_array(const shards_exchange *a, uint32_t turn, uint32_t i) {
  bool all = true;
  if (shards_exchange_adds(a)) return fake_add_array(a, turn, i);
  for (uint32_t from = 0; from < a->n && all; from++) all = fake_take_part(a, turn, i, from);
  return all;
}

/* An exchange that is broken ends, and says nothing. */
static inline weft_status fake_exchange_now(const shards_exchange *a) {
  uint32_t turn = a->state->n_exchanges++ % SHARDS_EXCHANGE_INBOXES;
  for (uint32_t to = 0; to < a->n; to++) {
    for (uint32_t i = 0; i < a->n_arrays && to != a->at; i++) fake_give(a, turn, i, to);
  }
  for (uint32_t i = 0; i < a->n_arrays && fake_take_array(a, turn, i); i++) continue;
  return WEFT_OK;
}

static inline weft_status fake_exchange(weft_device *device, const shards_exchange *args) {
  fake_card *card = fake_of(device);
  if (card->late != FAKE_PROMPT) abort();
  if (fake_records(card, FAKE_EXCHANGE, args, sizeof *args)) return WEFT_OK;
  weft_status status = fake_call(card);
  return status == WEFT_OK ? fake_exchange_now(args) : status;
}

/* ---- graphs ---- */

static inline weft_status fake_capture(weft_device *device) {
  fake_card *card = fake_of(device);
  if (expert_slots_join(&card->slots) != WEFT_OK) return WEFT_E_DEVICE;
  card->n_nodes = 0;
  return card->refuse_capture ? WEFT_E_UNSUPPORTED : fake_call(card);
}

static inline fake_graph *fake_graph_of(const fake_node *node, uint32_t n) {
  fake_graph *graph = malloc(sizeof *graph + n * sizeof *node);
  if (graph == NULL) abort();
  graph->n = n;
  memcpy(graph->node, node, n * sizeof *node);
  return graph;
}

static inline weft_status fake_capture_end(weft_device *device, void **out) {
  fake_card *card = fake_of(device);
  (void)expert_slots_join(&card->slots);
  *out = fake_graph_of(card->node, card->n_nodes);
  return WEFT_OK;
}

static inline weft_status fake_instantiate(weft_device *device, void *graph, void **out, uint32_t *n_nodes) {
  const fake_graph *from = graph;
  fake_card *card = fake_of(device);
  if (++card->n_allocs == card->fail_alloc) return WEFT_E_NO_MEMORY;
  *out = fake_graph_of(from->node, from->n);
  *n_nodes = from->n;
  return WEFT_OK;
}

static inline weft_status fake_repeat(fake_card *card, const fake_node *node) {
  const weft_kernels *kernels = weft_device_kernels(card->ref);
  fake_move move;
  shards_exchange exchange;
  switch (node->call) {
    case FAKE_EXCHANGE:
      memcpy(&exchange, node->args, sizeof exchange);
      return fake_exchange_now(&exchange);
#define X(op)                               \
  case FAKE_##op: {                         \
    weft_##op##_args args;                  \
    memcpy(&args, node->args, sizeof args); \
    return kernels->op(card->ref, &args);   \
  }
      WEFT_OPS(X)
#undef X
    case FAKE_COPY:
    case FAKE_UPLOAD:
      memcpy(&move, node->args, sizeof move);
      return host_copy(&card->base, move.to, move.from, move.n_bytes);
    default:
      memcpy(&move, node->args, sizeof move);
      return host_zero(&card->base, move.to, move.n_bytes);
  }
}

/* A recorded graph may be changed before a late card runs it. */
static inline void fake_launch_late(fake_card *card, const fake_graph *graph) {
  fake_enqueue(card, FAKE_LAUNCH, NULL, 0)->held[0] = fake_graph_of(graph->node, graph->n);
  fake_enqueued(card);
}

static inline void fake_run_work(fake_card *card, const fake_work *work) {
  const fake_graph *graph = work->held[0];
  weft_status status = WEFT_OK;
  if (work->node.call == FAKE_FOLLOW) {
    fake_run_late(work->other, work->until);
  } else if (work->node.call == FAKE_LAUNCH) {
    for (uint32_t i = 0; i < graph->n && status == WEFT_OK; i++) status = fake_repeat(card, &graph->node[i]);
  } else {
    status = fake_repeat(card, &work->node);
  }
  if (status == WEFT_OK) return;
  (void)fprintf(stderr, "FAILED: work %u of a late card: %s\n", work->node.call, weft_status_text(status));
  exit(1);
}

static inline void fake_run_late(fake_card *card, uint64_t until) {
  while (card->n_ran < until) {
    fake_work work = card->work[card->n_ran]; /* the array may move when other cards run */
    fake_run_work(card, &work);
    free(work.held[0]);
    free(work.held[1]);
    card->n_ran += 1;
  }
}

static inline weft_status fake_launch(weft_device *device, void *exec) {
  fake_card *card = fake_of(device);
  const fake_graph *graph = exec;
  weft_status status = expert_slots_join(&card->slots);
  if (status == WEFT_OK) status = fake_call(card);
  if (status == WEFT_OK && card->late != FAKE_PROMPT) {
    fake_launch_late(card, graph);
    return WEFT_OK;
  }
  for (uint32_t i = 0; i < graph->n && status == WEFT_OK; i++) status = fake_repeat(card, &graph->node[i]);
  return status;
}

static inline void fake_free_graph(weft_device *device, void *graph) {
  (void)device;
  free(graph);
}

static inline void fake_free_exec(weft_device *device, void *exec, bool has_ended) {
  fake_of(device)->n_freed_ended += has_ended;
  free(exec);
}

static inline void fake_close(weft_device *device) {
  fake_card *card = fake_of(device);
  if (card->graphs.device != NULL) step_graphs_close(&card->graphs);
  weft_device_close(card->ref);
  free(card->node);
  free(card->staging);
  free(card->work);
  free(card);
}

/* ---- open ---- */
static const step_graphs_calls fake_graphs_calls = {fake_capture, fake_capture_end, fake_instantiate,
                                                    fake_launch,  fake_free_graph,  fake_free_exec};

static const device_calls fake_calls = {.close = fake_close,
                                        .alloc = fake_alloc_card,
                                        .free = fake_free,
                                        .alloc_host = fake_alloc_host,
                                        .free_host = fake_free_host,
                                        .upload = fake_upload,
                                        .download = fake_download,
                                        .copy = fake_copy,
                                        .zero = fake_zero,
                                        .sync = fake_sync,
                                        .mark = fake_mark,
                                        .wait = fake_wait,
                                        .send = fake_send,
                                        .follow = fake_follow,
                                        .reaches = fake_reaches,
                                        .exchange = fake_exchange,
                                        .weight = fake_weight,
                                        .weight_read = fake_weight_read,
                                        .integers_bytes = fake_integers_bytes,
                                        .weight_free = fake_weight_free,
                                        .expect_experts = fake_expect_experts,
                                        .weight_is_away = fake_weight_is_away,
                                        .weight_unpack = fake_weight_unpack};

static inline const weft_kernels *fake_kernels(void) {
  static weft_kernels kernels = {.backend = "fake",
#define X(op) .op = fake_run_##op, .op##_scratch = fake_scratch_##op,
                                 WEFT_OPS(X)
#undef X
                                     .supports = fake_supports,
                                 .numerics = fake_numerics};
  kernels.attention = fake_attention;
  kernels.attention_walk = fake_attention_walk;
  kernels.delta_rows = fake_delta_rows;
  kernels.delta_rows_walk = fake_delta_rows_walk;
  kernels.delta_rule = fake_delta_rule;
  kernels.delta_rule_walk = fake_delta_rule_walk;
  kernels.head_stats = fake_head_stats;
  kernels.head_stats_walk = fake_head_stats_walk;
  kernels.experts = fake_experts;
  return &kernels;
}

static inline fake_card *fake_card_open(bool graphs) {
  fake_card *card = calloc(1, sizeof *card);
  if (card == NULL || weft_device_open(&(weft_device_config){.backend = "ref"}, &card->ref, NULL) != WEFT_OK) abort();
  card->node = malloc(FAKE_NODES_MAX * sizeof *card->node); /* not touched before they are recorded */
  if (card->node == NULL) abort();
  expert_slots_open(&card->slots, &fake_slots_calls, card);
  card->base.calls = &fake_calls;
  card->base.kernels = fake_kernels();
  card->base.info = *weft_device_get_info(card->ref);
  card->base.info.backend = "fake";
  card->base.info.host_memory = false;
  card->base.info.immediate = false;
  card->base.info.graphs = graphs;
  if (graphs) {
    if (step_graphs_open(&card->graphs, &card->base, &fake_graphs_calls) != WEFT_OK) abort();
    card->base.graphs = &card->graphs;
  }
  return card;
}

#endif
