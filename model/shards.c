/* SPDX-License-Identifier: MIT */
#include "model/shards.h"

#include <inttypes.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "base/threads.h"
#include "model/layers.h"

/* One of the shards behind shard 0. */
typedef struct other_shard {
  struct model_shards *shards;
  weft_model *model;
  pthread_t thread;
  weft_status status; /* of the last step */
} other_shard;

struct model_shards {
  weft_model *first;            /* shard 0 */
  uint32_t n_others, n_started; /* n_started: threads */
  other_shard other[WEFT_DEVICES_MAX - 1];
  pthread_mutex_t mutex; /* of everything below */
  pthread_cond_t has_step, has_ended;
  weft_forward_args args; /* a copy: shard 0 writes to what the caller gave */
  bool share_alone;       /* of a step that they have computed */
  uint64_t n_steps;
  uint32_t n_running;
  bool closing;
};

/* Whoever waits for a shard in any part stops waiting. */
static void break_exchanges(const model_shards *s) {
  const weft_model *model = s->first;
  for (uint32_t p = 0; p < model->n_parts; p++) weft_shards_break(model->part[p].exchanges);
}

static weft_status compute_part(other_shard *other, model_step *step, uint32_t p) {
  weft_forward_args *args = step->args;
  weft_model *model = other->model;
  weft_device *device = model->part[p].device;
  bool shares = args->share != NULL && p + 1 == model->n_parts;
  weft_status status = model_enter(step, p);
  if (status != WEFT_OK) return status;
  if (args->graph_key != 0) weft_device_graph_begin(device, args->graph_key, model_shards_vote(step->part));
  do {
    status = model_compute(step, step->part->first_layer, step->part->end_layer);
    if (status == WEFT_OK && shares) status = args->share(args->share_self, model->shard, step->h);
  } while (args->graph_key != 0 && weft_device_graph_end(device, &status));
  return status == WEFT_OK ? model_leave(step) : status;
}

static weft_status compute_step(other_shard *other, weft_forward_args *args) {
  model_step step;
  weft_status status = WEFT_OK;
  model_begin(other->model, args, &step);
  for (uint32_t p = 0; p < other->model->n_parts && status == WEFT_OK; p++) status = compute_part(other, &step, p);
  return status;
}

static void *run_other(void *self) {
  other_shard *other = self;
  model_shards *s = other->shards;
  uint64_t n_done = 0;
  (void)pthread_mutex_lock(&s->mutex);
  for (;;) {
    while (s->n_steps == n_done && !s->closing) (void)pthread_cond_wait(&s->has_step, &s->mutex);
    if (s->closing) break;
    n_done = s->n_steps;
    weft_forward_args args = s->args;
    bool share_alone = s->share_alone;
    (void)pthread_mutex_unlock(&s->mutex);
    weft_status status =
        share_alone ? args.share(args.share_self, other->model->shard, NULL) : compute_step(other, &args);
    if (status != WEFT_OK) break_exchanges(s);
    (void)pthread_mutex_lock(&s->mutex);
    other->status = status;
    if (--s->n_running == 0) (void)pthread_cond_signal(&s->has_ended);
  }
  (void)pthread_mutex_unlock(&s->mutex);
  return NULL;
}

static void start_others(model_shards *s, const weft_forward_args *args, bool share_alone) {
  if (s == NULL) return;
  (void)pthread_mutex_lock(&s->mutex);
  s->args = *args;
  s->share_alone = share_alone;
  s->n_running = s->n_others;
  s->n_steps += 1;
  (void)pthread_cond_broadcast(&s->has_step);
  (void)pthread_mutex_unlock(&s->mutex);
}

void model_shards_start(model_shards *s, const weft_forward_args *args) {
  start_others(s, args, false);
}

void model_shards_start_share(model_shards *s, const weft_forward_args *args) {
  start_others(s, args, true);
}

weft_status model_shards_join(model_shards *s, weft_status status) {
  if (s == NULL) return status;
  if (status != WEFT_OK) break_exchanges(s);
  (void)pthread_mutex_lock(&s->mutex);
  while (s->n_running > 0) (void)pthread_cond_wait(&s->has_ended, &s->mutex);
  for (uint32_t i = 0; i < s->n_others; i++) {
    if (status == WEFT_OK) status = s->other[i].status;
  }
  (void)pthread_mutex_unlock(&s->mutex);
  return status;
}

/* ---- what is told of them ---- */

uint64_t model_shards_crossed(const model_shards *s) {
  uint64_t n_bytes = 0;
  for (uint32_t i = 0; s != NULL && i < s->n_others; i++)
    n_bytes += __atomic_load_n(&s->other[i].model->crossed.rows, __ATOMIC_RELAXED);
  return n_bytes;
}

bool model_shards_broken(const weft_model *model) {
  bool broken = false;
  for (uint32_t p = 0; p < model->n_parts && model->n_shards > 1; p++)
    broken = broken || weft_shards_broken(model->part[p].exchanges);
  return broken;
}

bool model_shards_in_graphs(const weft_model *model) {
  bool all = true;
  for (uint32_t p = 0; p < model->n_parts && model->n_shards > 1; p++)
    all = all && weft_shards_in_graphs(model->part[p].exchanges);
  return all;
}

static bool is_direct(const weft_split *split, uint32_t part) {
  return weft_shards_are_direct(&split->device[weft_split_place(split, part, 0)], weft_split_shards(split));
}

static void note_tokens(const weft_model *model, const weft_split *split, weft_model_info *info) {
  uint32_t first = model_first_token(model, model->shard), end = model_first_token(model, model->shard + 1);
  bool one_has_all = !model->token_ranges && model->shard == 0, has_all = one_has_all || model->hyper.diffusion;
  weft_model_part_info *begin = &info->part[model->shard];
  weft_model_part_info *last = &info->part[weft_split_last_place(split) + model->shard];
  if (one_has_all || model_shards_embeds(model)) {
    begin->embed_first = one_has_all ? 0 : first;
    begin->embed_end = one_has_all ? model->hyper.n_vocab : end;
  }
  if (!model->has_head) return;
  last->head_first = has_all ? 0 : first;
  last->head_end = has_all ? model->hyper.n_vocab : end;
}

void model_shards_share_tokens(weft_model *model, const weft_split *split) {
  const uint32_t last = weft_split_stages(split) - 1;
  bool canvases = model->hyper.diffusion, ends_direct = model->n_shards > 1 && is_direct(split, last);
  bool has_tokens = model_first_token(model, model->shard) < model_first_token(model, model->shard + 1);
  model->has_head = model->shard == 0 || ((canvases || has_tokens) && ends_direct);
  model->token_ranges = model->limits.token_ranges && ends_direct && !canvases && is_direct(split, 0);
  note_tokens(model, split, &model->info);
}

bool model_shards_end_direct(const weft_model *model) {
  return model->n_shards > 1 && weft_shards_in_graphs(model->part[model->n_parts - 1].exchanges);
}

const weft_graph_vote *model_shards_vote(const model_part *part) {
  return part->exchanges == NULL ? NULL : weft_shards_vote(part->exchanges);
}

/* ---- open and close ---- */

static weft_status open_threads(model_shards *s) {
  for (uint32_t i = 0; i < s->n_others; i++) {
    weft_status status = weft_threads_start(&s->other[i].thread, run_other, &s->other[i], NULL);
    if (status != WEFT_OK) return status;
    s->n_started += 1;
  }
  return WEFT_OK;
}

static weft_status open_synchronisation(model_shards **out) {
  model_shards *s = weft_alloc(1, sizeof *s);
  if (s == NULL) return WEFT_E_NO_MEMORY;
  bool has_mutex = pthread_mutex_init(&s->mutex, NULL) == 0;
  bool has_step = has_mutex && pthread_cond_init(&s->has_step, NULL) == 0;
  if (has_step && pthread_cond_init(&s->has_ended, NULL) == 0) {
    *out = s;
    return WEFT_OK;
  }
  if (has_step) (void)pthread_cond_destroy(&s->has_step);
  if (has_mutex) (void)pthread_mutex_destroy(&s->mutex);
  weft_free(s);
  return WEFT_E_NO_MEMORY;
}

/* What callers are told of the model is of all its shards, with what their exchanges take. */
static void add_info(weft_model *model, weft_model *other, uint32_t p) {
  uint32_t place = model_place_of(other, &other->part[p]);
  weft_model_part_info *part = &model->info.part[place];
  uint64_t exchange_bytes = weft_shards_bytes(model->part[p].exchanges);
  *part = other->info.part[place];
  part->scratch_bytes += exchange_bytes;
  model->info.weight_bytes += other == model ? 0 : part->weight_bytes;
  model->info.scratch_bytes += other == model ? exchange_bytes : part->scratch_bytes;
}

static weft_status open_exchanges(weft_model *model, const model_opening *opening) {
  weft_status status = WEFT_OK;
  for (uint32_t p = 0; p < model->n_parts && status == WEFT_OK; p++) {
    weft_device *const *device = &opening->split->device[weft_split_place(opening->split, p, 0)];
    weft_shards **exchanges = &model->part[p].exchanges;
    status = weft_shards_open(device, model->n_shards, layers_exchange_floats(model), MARK_SHARDS, exchanges);
    if (status != WEFT_OK) return status;
    add_info(model, model, p);
    for (uint32_t i = 0; i + 1 < model->n_shards; i++) {
      weft_model *other = model->others->other[i].model;
      other->part[p].exchanges = *exchanges;
      add_info(model, other, p);
    }
  }
  return status;
}

static weft_model *shard_of(weft_model *model, uint32_t shard) {
  return shard == 0 ? model : model->others->other[shard - 1].model;
}

/* Of a layer what shards have slices of (model/weights_slice.h), as places in model_layer. */
static const size_t sliced[] = {
    offsetof(model_layer, q),         offsetof(model_layer, k),        offsetof(model_layer, v),
    offsetof(model_layer, gate),      offsetof(model_layer, up),       offsetof(model_layer, down),
    offsetof(model_layer, gate_exps), offsetof(model_layer, up_exps),  offsetof(model_layer, gate_up_exps),
    offsetof(model_layer, down_exps), offsetof(model_layer, out_gate), offsetof(model_layer, alpha),
    offsetof(model_layer, beta),
};

static weft_status agree_on(weft_model *model, uint32_t part, uint32_t layer, size_t field) {
  weft_device *device[WEFT_DEVICES_MAX];
  const weft_weight *weight[WEFT_DEVICES_MAX];
  for (uint32_t i = 0; i < model->n_shards; i++) {
    const weft_model *shard = shard_of(model, i);
    device[i] = shard->part[part].device;
    weight[i] = (const weft_weight *)(const void *)((const char *)&shard->layers[layer] + field);
  }
  return weft_shards_agree(device, weight, model->n_shards);
}

static weft_status agree_on_head(weft_model *model) {
  weft_device *device[WEFT_DEVICES_MAX];
  const weft_weight *weight[WEFT_DEVICES_MAX];
  float cap, embed_scale;
  for (uint32_t i = 0; i < model->n_shards; i++) {
    device[i] = model_last_part(shard_of(model, i))->device;
    weight[i] = weft_model_head(shard_of(model, i), &cap, &embed_scale);
  }
  return weft_shards_agree(device, weight, model->n_shards);
}

/* Products with slices then have the bits of products with whole matrices. */
static weft_status agree_on_slices(weft_model *model) {
  weft_status status = agree_on_head(model);
  for (uint32_t l = 0; l < model->hyper.n_layers; l++) {
    uint32_t part = model_part_of(model, l);
    for (uint32_t i = 0; i < sizeof sliced / sizeof *sliced && status == WEFT_OK; i++)
      status = agree_on(model, part, l, sliced[i]);
  }
  return status;
}

weft_status model_shards_open(weft_model *model, const model_opening *opening) {
  if (model->n_shards == 1) return WEFT_OK;
  weft_status status = open_synchronisation(&model->others);
  model_shards *s = model->others;
  if (s != NULL) s->first = model;
  for (uint32_t i = 1; i < model->n_shards && status == WEFT_OK; i++) {
    other_shard *other = &s->other[s->n_others];
    other->shards = s;
    status = model_open_shard(opening, i, &other->model);
    if (status != WEFT_OK) return status; /* it has said why */
    s->n_others += 1;
  }
  if (status == WEFT_OK) status = agree_on_slices(model);
  if (status == WEFT_OK) status = open_exchanges(model, opening);
  if (status == WEFT_OK) status = open_threads(s);
  if (status == WEFT_OK) return WEFT_OK;
  return weft_fail(opening->error, status,
                   "%s: no memory for %" PRIu32 " shards of %" PRIu32 " rows; allow fewer rows per step",
                   weft_gguf_path(opening->gguf), model->n_shards, model->limits.rows_max);
}

const weft_weight *model_shards_head(const weft_model *model, uint32_t shard) {
  float cap, embed_scale;
  const weft_weight *head = weft_model_head(model->others->other[shard - 1].model, &cap, &embed_scale);
  return head->data == NULL ? NULL : head;
}

void model_shards_close(weft_model *model) {
  model_shards *s = model->others;
  if (s == NULL) return;
  (void)pthread_mutex_lock(&s->mutex);
  s->closing = true;
  (void)pthread_cond_broadcast(&s->has_step);
  (void)pthread_mutex_unlock(&s->mutex);
  for (uint32_t i = 0; i < s->n_started; i++) {
    int refused = pthread_join(s->other[i].thread, NULL);
    WEFT_CHECK(refused == 0);
  }
  for (uint32_t i = 0; i < s->n_others; i++) weft_model_close(s->other[i].model);
  for (uint32_t p = 0; p < model->n_parts; p++) weft_shards_close(model->part[p].exchanges);
  (void)pthread_cond_destroy(&s->has_step);
  (void)pthread_cond_destroy(&s->has_ended);
  (void)pthread_mutex_destroy(&s->mutex);
  weft_free(s);
  model->others = NULL;
}
