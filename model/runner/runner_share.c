/* SPDX-License-Identifier: MIT */
#include "model/runner/runner_share.h"

#include "base/memory.h"
#include "model/model_internal.h"
#include "model/shards.h"

enum { GROUP_ROWS = 128 /* rows for which a head reads its matrix once (kernels/cuda/head/head.h) */ };

typedef struct share_shard {
  weft_device *device;
  const weft_weight *head;
  int32_t *d_inputs;
  uint32_t *d_allowed;
  const uint32_t **allowed_of; /* [stats_max] */
  void *d_scratch;
  uint64_t scratch_bytes;
} share_shard;

struct runner_share {
  device_runner *runner;
  const runner_outputs *outputs; /* of the step that is being enqueued */
  uint32_t n;                    /* shards behind the first */
  uint64_t n_bytes;
  share_shard shard[WEFT_DEVICES_MAX - 1];
};

/* ---- open and close ---- */

static void *take_memory(runner_share *share, weft_device *device, uint64_t n_bytes, weft_status *status) {
  void *memory = NULL;
  if (*status != WEFT_OK || n_bytes == 0) return NULL;
  *status = weft_device_alloc(device, n_bytes, &memory);
  share->n_bytes += n_bytes;
  return memory;
}

static weft_status open_shard(runner_share *share, share_shard *s, uint64_t inputs_words) {
  device_runner *r = share->runner;
  weft_status status = WEFT_OK;
  weft_head_stats_args stats = {.weight = s->head,
                                .n_rows = r->stats_max,
                                .h_stride = r->n_hidden,
                                .soft = r->d_soft,
                                .soft_stride = r->n_hidden};
  s->scratch_bytes = weft_head_stats_scratch(s->device, &stats);
  s->d_inputs = take_memory(share, s->device, inputs_words * sizeof *s->d_inputs, &status);
  s->d_scratch = take_memory(share, s->device, s->scratch_bytes, &status);
  s->allowed_of = weft_alloc(r->stats_max, sizeof *s->allowed_of);
  if (status == WEFT_OK && s->allowed_of == NULL) status = WEFT_E_NO_MEMORY;
  if (r->allowed == NULL || status != WEFT_OK) return status;
  s->d_allowed = take_memory(share, s->device, r->mask_words * sizeof *s->d_allowed, &status);
  for (uint32_t i = 0; i < r->stats_max; i++) s->allowed_of[i] = s->d_allowed;
  return status == WEFT_OK ? runner_upload_allowed(r, s->device, s->d_allowed) : status;
}

/* What shards write goes to buffers of the last device, which may have found room on the first one alone. */
static bool reach_buffers(const device_runner *r) {
  bool all = true;
  for (uint32_t i = 1; i < weft_split_shards(r->split); i++)
    all = all && weft_device_reaches(r->split->device[weft_split_last_place(r->split) + i], r->first);
  return all || r->memory.n_bytes_first == 0;
}

weft_status runner_share_open(device_runner *r, uint64_t inputs_words, runner_share **out) {
  const weft_model *model = r->config.model;
  *out = NULL;
  if (r->canvas_length == 0 || !model_shards_end_direct(model) || !reach_buffers(r)) return WEFT_OK;
  runner_share *share = weft_alloc(1, sizeof *share);
  if (share == NULL) return WEFT_E_NO_MEMORY;
  *out = share;
  share->runner = r;
  weft_status status = WEFT_OK;
  for (uint32_t i = 1; i < model->n_shards && status == WEFT_OK; i++) {
    share_shard *s = &share->shard[share->n++];
    s->device = r->split->device[weft_split_last_place(r->split) + i];
    s->head = model_shards_head(model, i);
    status = open_shard(share, s, inputs_words);
  }
  return status;
}

void runner_share_close(runner_share *share) {
  if (share == NULL) return;
  for (uint32_t i = 0; i < share->n; i++) {
    share_shard *s = &share->shard[i];
    weft_device_free(s->device, s->d_inputs);
    weft_device_free(s->device, s->d_allowed);
    weft_device_free(s->device, s->d_scratch);
    weft_free(s->allowed_of);
  }
  weft_free(share);
}

uint64_t runner_share_bytes(const runner_share *share) {
  return share == NULL ? 0 : share->n_bytes;
}

/* ---- a step ---- */

void runner_share_rows(const device_runner *r, uint32_t n, uint32_t shard, uint32_t *first, uint32_t *end) {
  uint32_t n_shards = r->config.model->n_shards, each = (n + n_shards - 1) / n_shards;
  if (each > GROUP_ROWS) each = (each + GROUP_ROWS - 1) / GROUP_ROWS * GROUP_ROWS;
  *first = shard * each < n ? shard * each : n;
  *end = n - *first < each ? n : *first + each;
}

static weft_shards *exchanges_of(const device_runner *r) {
  return model_last_part(r->config.model)->exchanges;
}

weft_status runner_share_meet(const device_runner *r) {
  return weft_shards_meet(exchanges_of(r), 0);
}

/* What a shard behind the first does, on its thread. */
static weft_status share_rows(void *self, uint32_t shard, const float *hidden) {
  runner_share *share = self;
  device_runner *r = share->runner;
  const runner_outputs *o = share->outputs;
  share_shard *s = &share->shard[shard - 1];
  uint32_t first, end, n = o->n_plain + o->n_canvas_rows;
  runner_share_rows(r, n, shard, &first, &end);
  runner_head head = {.device = s->device,
                      .weight = s->head,
                      .hidden = hidden,
                      .inputs = s->d_inputs,
                      .allowed_of = s->d_allowed == NULL ? NULL : s->allowed_of,
                      .scratch = s->d_scratch,
                      .scratch_bytes = s->scratch_bytes};
  weft_status status = runner_upload_inputs(r, o, s->device, s->d_inputs);
  if (status == WEFT_OK) status = runner_head_stats(r, &head, o, first, end - first, NULL);
  return status == WEFT_OK ? weft_shards_meet(exchanges_of(r), shard) : status;
}

/* What the others will send: of each of their rows the statistics, and the soft embedding where it is wanted. */
static void count_sent(const device_runner *r, uint32_t n) {
  uint32_t first, end, n_soft = 0;
  weft_crossed *crossed = &r->config.model->crossed;
  runner_share_rows(r, n, 0, &first, &end);
  for (uint32_t i = end; i < n; i++) n_soft += r->want_soft[i];
  uint64_t soft = (uint64_t)n_soft * r->n_hidden * sizeof(float), statistics = (n - end) * (5 * sizeof(float) + 1);
  (void)__atomic_fetch_add(&crossed->soft, soft, __ATOMIC_RELAXED);
  (void)__atomic_fetch_add(&crossed->tokens, statistics, __ATOMIC_RELAXED);
}

bool runner_share_step(runner_share *share, const runner_outputs *o, weft_forward_args *args) {
  if (share == NULL || o->n_canvas_rows == 0 || o->n_held > 0) return false;
  share->outputs = o;
  args->share = share_rows;
  args->share_self = share;
  count_sent(share->runner, o->n_plain + o->n_canvas_rows);
  return true;
}
