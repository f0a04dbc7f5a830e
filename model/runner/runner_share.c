/* SPDX-License-Identifier: MIT */
#include "model/runner/runner_share.h"

#include "base/memory.h"
#include "kernels/canvas_head.h"
#include "model/model_internal.h"
#include "model/shards.h"

enum {
  GROUP_ROWS = 128, /* rows for which a head reads its matrix once (kernels/cuda/head/head.h) */
  MADE_ROWS = 32,   /* of more rows that need their logits, sending these takes longer than making them */
  KEPT_MIB = 128    /* logits of plain rows that a shard keeps until their tokens are drawn */
};

/* Of the vocabulary, on one device. */
typedef struct share_range {
  uint32_t first, token, n_tokens; /* first: the row of the output matrix there that stands for `token` */
  const uint32_t *allowed;
  float *logits; /* [kept_rows, stride]; behind the scratch of the products */
  void *scratch;
  uint64_t scratch_bytes;
} share_range;

typedef struct share_shard {
  weft_device *device;
  const float *hidden;     /* of the last step */
  const weft_weight *head; /* NULL: it has none of the vocabulary, and no canvases */
  weft_weight canvas_head;
  int32_t *d_inputs;
  uint32_t *d_allowed;
  const uint32_t **allowed_of; /* [stats_max] */
  void *d_scratch;
  uint64_t scratch_bytes;
} share_shard;

struct runner_share {
  device_runner *runner;
  const runner_outputs *outputs; /* of the step that is being enqueued */
  uint32_t n_made;               /* rows of it that need their logits, whose products shards make */
  uint32_t rows_first, rows_n;   /* of its outputs, of which they make products after it */
  uint32_t n;                    /* shards behind the first */
  weft_weight whole;             /* the output matrix's shape */
  uint32_t kept_rows, stride;    /* of logits that a range keeps */
  uint64_t n_bytes;
  void *d_chunks;                      /* of kept_rows rows, on the last device */
  share_range range[WEFT_DEVICES_MAX]; /* of all shards */
  share_shard shard[WEFT_DEVICES_MAX - 1];
};

/* ---- sizes ---- */

static uint32_t chunks_of(uint32_t n_tokens) {
  return (n_tokens + WEFT_VOCAB_CHUNK - 1) / WEFT_VOCAB_CHUNK;
}

/* The most tokens of a shard: the stride of the logits that it keeps. */
static uint32_t stride_of(const weft_model *model) {
  uint32_t most = 0;
  for (uint32_t i = 0; i < model->n_shards; i++) {
    uint32_t n = model_first_token(model, i + 1) - model_first_token(model, i);
    if (n > most) most = n;
  }
  return most;
}

static uint32_t kept_rows_of(const device_runner *r) {
  const weft_model *model = r->config.model;
  uint64_t most = r->config.limits.segments_max + r->info.draft_rows_max, bytes = r->config.logits_bytes_max;
  uint64_t rows = (bytes == 0 ? (uint64_t)KEPT_MIB << 20 : bytes) / (stride_of(model) * sizeof(float));
  if (rows > GROUP_ROWS) rows = GROUP_ROWS;
  if (rows > most) rows = most;
  return rows == 0 ? 1 : (uint32_t)rows;
}

static uint32_t made_rows_of(const device_runner *r) {
  return r->logit_rows_max < MADE_ROWS ? r->logit_rows_max : MADE_ROWS;
}

/* Scratch of products with a range, and of joining all. */
static uint64_t product_bytes(const device_runner *r, weft_device *device, const weft_weight *head) {
  uint32_t n_kept = kept_rows_of(r), n_made = made_rows_of(r), n = n_made > n_kept ? n_made : n_kept;
  const weft_head_part_args args = {.weight = head, .n_tokens = stride_of(r->config.model), .n_rows = n};
  const weft_head_join_args join = {.token = {0, r->info.n_vocab}, .n_parts = 1, .n_rows = n_kept};
  uint64_t product = weft_head_part_scratch(device, &args), joined = weft_head_join_scratch(device, &join);
  return ((product > joined ? product : joined) + 255) / 256 * 256;
}

static uint64_t range_bytes(const device_runner *r, weft_device *device, const weft_weight *head) {
  return product_bytes(r, device, head) + (uint64_t)kept_rows_of(r) * stride_of(r->config.model) * sizeof(float);
}

uint64_t runner_share_scratch(const device_runner *r) {
  return model_shards_end_direct(r->config.model) ? range_bytes(r, r->last, r->head) : 0;
}

/* ---- open and close ---- */

static void *take_memory(runner_share *share, weft_device *device, uint64_t n_bytes, weft_status *status) {
  void *memory = NULL;
  if (*status != WEFT_OK || n_bytes == 0) return NULL;
  share->n_bytes += n_bytes;
  if (share->runner->counts) return NULL;
  *status = weft_device_alloc(device, n_bytes, &memory);
  return memory;
}

/* The range of a shard whose scratch has room for it. */
static void open_range(runner_share *share, uint32_t shard, weft_device *device, const weft_weight *head,
                       const uint32_t *allowed, void *scratch) {
  const device_runner *r = share->runner;
  const weft_model *model = r->config.model;
  uint32_t token = model_first_token(model, shard);
  bool whole = r->canvas_length > 0 || (shard == 0 && !model->token_ranges);
  share_range *range = &share->range[shard];
  *range = (share_range){.first = whole ? token : 0,
                         .token = token,
                         .n_tokens = model_first_token(model, shard + 1) - token,
                         .allowed = allowed,
                         .scratch = scratch};
  if (head == NULL || scratch == NULL) return;
  range->scratch_bytes = product_bytes(r, device, head);
  range->logits = (float *)(void *)((uint8_t *)scratch + range->scratch_bytes);
}

static weft_status open_shard(runner_share *share, uint32_t shard, uint64_t inputs_words) {
  device_runner *r = share->runner;
  share_shard *s = &share->shard[shard - 1];
  weft_status status = WEFT_OK;
  s->device = r->split->device[weft_split_last_place(r->split) + shard];
  s->head = model_shards_head(r->config.model, shard);
  if (s->head == NULL) { /* a small vocabulary: no token is left for this shard */
    open_range(share, shard, s->device, NULL, NULL, NULL);
    return WEFT_OK;
  }
  s->canvas_head = weft_canvas_head(s->head);
  if (r->canvas_length > 0) {
    weft_head_stats_args stats = {.weight = &s->canvas_head,
                                  .n_rows = r->stats_max,
                                  .h_stride = r->n_hidden,
                                  .soft = r->d_soft,
                                  .soft_stride = r->n_hidden};
    s->scratch_bytes = runner_stats_scratch(s->device, s->head, stats);
  }
  uint64_t n_bytes = range_bytes(r, s->device, s->head);
  if (n_bytes > s->scratch_bytes) s->scratch_bytes = n_bytes;
  s->d_inputs = take_memory(share, s->device, inputs_words * sizeof *s->d_inputs, &status);
  s->d_scratch = take_memory(share, s->device, s->scratch_bytes, &status);
  s->allowed_of = weft_alloc(r->stats_max, sizeof *s->allowed_of);
  if (status == WEFT_OK && s->allowed_of == NULL) status = WEFT_E_NO_MEMORY;
  if (r->config.n_suppressed > 0) s->d_allowed = take_memory(share, s->device, r->mask_words * 4ull, &status);
  for (uint32_t i = 0; i < r->stats_max && status == WEFT_OK; i++) s->allowed_of[i] = s->d_allowed;
  open_range(share, shard, s->device, s->head, s->d_allowed, s->d_scratch);
  return status == WEFT_OK && s->d_allowed != NULL ? runner_upload_allowed(r, s->device, s->d_allowed) : status;
}

weft_status runner_share_open(device_runner *r, uint64_t inputs_words, runner_share **out) {
  const weft_model *model = r->config.model;
  *out = NULL;
  if (!model_shards_end_direct(model)) return WEFT_OK;
  runner_share *share = weft_alloc(1, sizeof *share);
  if (share == NULL) return WEFT_E_NO_MEMORY;
  *out = share;
  share->runner = r;
  share->whole = *r->head;
  share->whole.n_out = r->info.n_vocab;
  share->kept_rows = kept_rows_of(r);
  share->stride = stride_of(model);
  uint64_t chunk_bytes = (uint64_t)share->kept_rows * chunks_of(r->info.n_vocab) * WEFT_HEAD_CHUNK_BYTES;
  weft_status status = WEFT_OK;
  share->n_bytes += chunk_bytes;
  if (!r->counts) share->d_chunks = runner_memory_take(&r->memory, r->last, chunk_bytes, &status);
  open_range(share, 0, r->last, r->head, r->allowed, r->d_scratch);
  for (uint32_t i = 1; i < model->n_shards && status == WEFT_OK; i++) {
    share->n += 1;
    status = open_shard(share, i, inputs_words);
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

/* ---- a step by rows ---- */

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

/* What the others will send: of each of their rows the statistics, and the soft embedding where it is wanted. */
static void count_rows_sent(const device_runner *r, uint32_t n) {
  uint32_t first, end, n_soft = 0;
  weft_crossed *crossed = &r->config.model->crossed;
  runner_share_rows(r, n, 0, &first, &end);
  for (uint32_t i = end; i < n; i++) n_soft += r->want_soft[i];
  uint64_t soft = (uint64_t)n_soft * r->n_hidden * sizeof(float), statistics = (n - end) * (5 * sizeof(float) + 1);
  (void)__atomic_fetch_add(&crossed->soft, soft, __ATOMIC_RELAXED);
  (void)__atomic_fetch_add(&crossed->tokens, statistics, __ATOMIC_RELAXED);
}

/* ---- a step by the vocabulary ---- */

/* The products with a range of n rows from `first` of the step's outputs, to rows from `to` on of the first device. */
static weft_status make_products(const runner_share *share, const share_range *range, const runner_head *head,
                                 uint32_t first, uint32_t n, uint32_t to) {
  const device_runner *r = share->runner;
  weft_head_part_args args = {.h = head->hidden + (uint64_t)first * r->n_hidden,
                              .weight = head->weight,
                              .first = range->first,
                              .n_tokens = range->n_tokens,
                              .token = range->token,
                              .n_vocab = r->info.n_vocab,
                              .logits = r->d_logits + (uint64_t)to * r->info.n_vocab + range->token,
                              .n_rows = n,
                              .h_stride = r->n_hidden,
                              .logits_stride = r->info.n_vocab,
                              .scratch = range->scratch,
                              .scratch_bytes = range->scratch_bytes};
  return weft_head_part(head->device, &args);
}

static weft_status make_chunks(const runner_share *share, const share_range *range, const runner_head *head,
                               uint32_t first, uint32_t n) {
  const device_runner *r = share->runner;
  const weft_head_part_args args = {.weight = head->weight,
                                    .first = range->first,
                                    .n_tokens = range->n_tokens,
                                    .token = range->token,
                                    .n_vocab = r->info.n_vocab,
                                    .logits = range->logits,
                                    .chunks = share->d_chunks,
                                    .allowed = range->allowed,
                                    .cap = r->cap,
                                    .h_stride = r->n_hidden,
                                    .logits_stride = share->stride,
                                    .scratch = range->scratch,
                                    .scratch_bytes = range->scratch_bytes};
  return runner_head_part(r, head, share->outputs, &args, first, n);
}

static weft_status join_chunks(const runner_share *share, uint32_t first, uint32_t n) {
  const device_runner *r = share->runner;
  weft_head_join_args args = {.n_parts = share->n + 1,
                              .chunks = share->d_chunks,
                              .allowed = share->range[0].allowed,
                              .cap = r->cap,
                              .logits_stride = share->stride,
                              .scratch = r->d_scratch,
                              .scratch_bytes = share->range[0].scratch_bytes};
  for (uint32_t i = 0; i <= share->n; i++) {
    args.logits[i] = share->range[i].logits;
    args.token[i] = share->range[i].token;
  }
  args.token[share->n + 1] = r->info.n_vocab;
  return runner_head_join(r, share->outputs, &args, first, n);
}

/* Plain rows go by as many at a time as logits are kept of; all meet when these are made, and again when their tokens
 * are drawn and there are more. */
weft_status runner_share_tokens(runner_share *share, uint32_t shard, const runner_head *head) {
  const share_range *range = &share->range[shard];
  uint32_t first = 0, n_plain = share->outputs->n_plain;
  weft_shards *exchanges = exchanges_of(share->runner);
  bool has_some = range->n_tokens > 0;
  weft_status status = has_some ? make_products(share, range, head, 0, share->n_made, 0) : WEFT_OK;
  do {
    uint32_t left = n_plain - first, n = left < share->kept_rows ? left : share->kept_rows;
    if (status == WEFT_OK && first > 0) status = weft_shards_meet(exchanges, shard);
    if (status == WEFT_OK && n > 0 && has_some) status = make_chunks(share, range, head, first, n);
    if (status == WEFT_OK) status = weft_shards_meet(exchanges, shard);
    if (status == WEFT_OK && n > 0 && shard == 0) status = join_chunks(share, first, n);
    first += n;
  } while (status == WEFT_OK && first < n_plain);
  return status;
}

bool runner_share_made(const runner_share *share) {
  return share != NULL && share->n_made > 0;
}

/* What the others will send of chunks of n_plain rows and of products of n_made. */
static void count_tokens_sent(const runner_share *share, uint64_t n_plain, uint64_t n_made) {
  const device_runner *r = share->runner;
  uint64_t n_tokens = r->info.n_vocab - share->range[0].n_tokens;
  uint64_t chunks = n_plain * chunks_of((uint32_t)n_tokens) * WEFT_HEAD_CHUNK_BYTES;
  uint64_t n_bytes = chunks + n_made * n_tokens * sizeof(float);
  (void)__atomic_fetch_add(&r->config.model->crossed.tokens, n_bytes, __ATOMIC_RELAXED);
}

/* ---- after a step ---- */

const weft_weight *runner_share_ranges(const runner_share *share) {
  return share != NULL && share->runner->config.model->token_ranges ? &share->whole : NULL;
}

static runner_head head_of(const share_shard *s) {
  return (runner_head){.device = s->device,
                       .weight = s->head,
                       .canvases = &s->canvas_head,
                       .hidden = s->hidden,
                       .inputs = s->d_inputs,
                       .allowed_of = s->d_allowed == NULL ? NULL : s->allowed_of,
                       .scratch = s->d_scratch,
                       .scratch_bytes = s->scratch_bytes};
}

/* As many rows at a time as the scratch of a range has room for. All meet before, so that the first device has read
 * what was in its logits, and when they are done. */
static weft_status make_rows(const runner_share *share, uint32_t shard, const runner_head *head) {
  const share_range *range = &share->range[shard];
  const device_runner *r = share->runner;
  uint32_t n_made = made_rows_of(r), most = n_made > share->kept_rows ? n_made : share->kept_rows;
  weft_shards *exchanges = exchanges_of(r);
  weft_status status = weft_shards_meet(exchanges, shard);
  for (uint32_t at = 0, n; at < share->rows_n && range->n_tokens > 0 && status == WEFT_OK; at += n) {
    n = share->rows_n - at < most ? share->rows_n - at : most;
    status = make_products(share, range, head, share->rows_first + at, n, at);
  }
  return status == WEFT_OK ? weft_shards_meet(exchanges, shard) : status;
}

/* On the thread of a shard behind the first. */
static weft_status share_rows(void *self, uint32_t shard, const float *hidden) {
  const runner_share *share = self;
  const runner_head head = head_of(&share->shard[shard - 1]);
  (void)hidden;
  return make_rows(share, shard, &head);
}

weft_status runner_share_logits(runner_share *share, uint32_t first, uint32_t n) {
  const device_runner *r = share->runner;
  const weft_forward_args args = {.share = share_rows, .share_self = share};
  const runner_head own = {.device = r->last, .weight = r->head, .hidden = r->d_hidden};
  share->rows_first = first;
  share->rows_n = n;
  count_tokens_sent(share, 0, n);
  model_shards_start_share(r->config.model->others, &args);
  return model_shards_join(r->config.model->others, make_rows(share, 0, &own));
}

/* ---- a step ---- */

/* What a shard behind the first does, on its thread. */
static weft_status share_head(void *self, uint32_t shard, const float *hidden) {
  runner_share *share = self;
  device_runner *r = share->runner;
  const runner_outputs *o = share->outputs;
  share_shard *s = &share->shard[shard - 1];
  s->hidden = hidden;
  const runner_head head = head_of(s);
  weft_status status = s->head == NULL ? WEFT_OK : runner_upload_inputs(r, o, s->device, s->d_inputs);
  if (status != WEFT_OK) return status;
  if (o->n_canvas_rows == 0) return runner_share_tokens(share, shard, &head);
  uint32_t first, end, n = o->n_plain + o->n_canvas_rows;
  runner_share_rows(r, n, shard, &first, &end);
  status = runner_head_stats(r, &head, o, first, end - first, NULL);
  return status == WEFT_OK ? weft_shards_meet(exchanges_of(r), shard) : status;
}

bool runner_share_step(runner_share *share, const runner_outputs *o, weft_forward_args *args) {
  if (share == NULL) return false;
  bool by_rows = o->n_canvas_rows > 0;
  share->outputs = o;
  share->n_made = !by_rows && o->n_logits <= made_rows_of(share->runner) ? o->n_logits : 0;
  bool is_shared = by_rows ? o->n_held == 0 : o->n_plain + share->n_made > 0;
  bool come_after =
      runner_share_ranges(share) != NULL && o->n_logits + o->n_scored > 0; /* of what lies where it does now */
  if (!is_shared && !come_after) return false;
  args->share = share_head;
  args->share_self = share;
  if (by_rows)
    count_rows_sent(share->runner, o->n_plain + o->n_canvas_rows);
  else
    count_tokens_sent(share, o->n_plain, share->n_made);
  return true;
}
