/* SPDX-License-Identifier: MIT */
/* Runs a model without a scheduler: sequences with block tables of their own, steps made of pieces.
 *
 * Law: pages are handed out in a scrambled order and never given back; every page is filled with
 * NaN at open, so that a read of a key nobody wrote shows up in the logits. Failures print one line
 * and end the test program. */
#ifndef WEFT_TESTS_MODEL_HARNESS_H
#define WEFT_TESTS_MODEL_HARNESS_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "model/model.h"
#include "tests/support/amount.h"
#include "tests/support/split_of.h"

typedef struct harness {
  weft_gguf *gguf;
  weft_device *device; /* the one with the head */
  weft_split split;
  weft_model *model;
  const weft_model_info *info;
  weft_kv_layout layout;
  weft_kv_store *kv;
  uint32_t *page_order, n_taken;
  float *hidden;
  uint8_t *bad;
  void *scratch;
  uint64_t scratch_bytes;
  void (*tap)(void *self, const weft_tapped *tapped);
  void *tap_self;
} harness;

typedef struct harness_options {
  const char *backend, *isa; /* isa NULL: best */
  uint32_t n_threads;
  uint32_t n_devices;    /* whose memory is the host's; 0: one */
  uint32_t n_shards;     /* of each part; 0: 1 */
  uint32_t block_tokens; /* smallest block, or the next size that the model can have; 0: chosen */
  uint32_t rows_max, n_pages;
  bool in_order;                  /* pages ascending instead of scrambled */
  bool free_sums;                 /* without the contract of determinism, where a backend has such a way */
  bool nextn;                     /* the layer of the file that guesses ahead will draft (model/nextn.h) */
  const weft_gguf *block_drafter; /* a file whose drafter will fill blocks (model/dflash.h) */
} harness_options;

typedef struct harness_seq {
  uint32_t n_valid;
  uint32_t *table[WEFT_GROUPS_MAX]; /* [table_max] */
  uint32_t n_entries[WEFT_GROUPS_MAX];
} harness_seq;

typedef enum harness_output { OUT_NONE = 0, OUT_LAST = 1, OUT_ALL = 2 } harness_output;

typedef struct harness_piece {
  harness_seq *seq;
  const int32_t *tokens;
  uint32_t n;
  bool canvas;
  bool whole;        /* no canvas: its rows see one another, and are stored */
  const float *soft; /* of a canvas; NULL: first step */
  harness_output output;
  float *logits; /* out: [n or 1][n_vocab] */
} harness_piece;

enum { HARNESS_TABLE_MAX = 4096 };

_Noreturn static inline void harness_die(const char *what, weft_status status, const char *text) {
  (void)printf("FAILED: %s: %s: %s\n", what, weft_status_text(status), text);
  exit(1);
}

static inline void *harness_alloc(size_t n, size_t size) {
  void *memory = calloc(n, size);
  if (memory == NULL) harness_die("memory", WEFT_E_NO_MEMORY, "test");
  return memory;
}

/* Zeroed memory that this process and the device both read and write. */
static inline void *harness_memory(const harness *h, size_t n, size_t size) {
  void *memory = NULL;
  if (weft_device_get_info(h->device)->host_memory) return harness_alloc(n, size);
  weft_status status = weft_device_alloc_host(h->device, n * size, &memory);
  if (status != WEFT_OK) harness_die("pinned memory", status, "test");
  memset(memory, 0, n * size);
  return memory;
}

static inline void harness_release(const harness *h, void *memory) {
  if (weft_device_get_info(h->device)->host_memory)
    free(memory);
  else
    weft_device_free_host(h->device, memory);
}

/* Waits for the device: after it, what ops wrote into harness_memory is there. */
static inline void harness_settle(const harness *h) {
  weft_status status = weft_device_sync(h->device);
  if (status != WEFT_OK) harness_die("device", status, "");
}

static inline void harness_scramble(uint32_t *order, uint32_t n) {
  uint64_t state = 88172645463325252ull;
  for (uint32_t i = 0; i < n; i++) order[i] = i;
  for (uint32_t i = n - 1; i > 0; i--) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    uint32_t j = (uint32_t)(state % (i + 1)), t = order[i];
    order[i] = order[j];
    order[j] = t;
  }
}

/* Fills a page with NaN, of F32 and of BF16. */
static inline void harness_poison(const harness *h, uint32_t page) {
  for (uint32_t p = 0; p < h->kv->n_parts; p++) {
    const weft_kv_part *part = &h->kv->part[p];
    uint8_t *bytes = harness_alloc(1, part->page_bytes), *to = (uint8_t *)part->base + page * part->page_bytes;
    memset(bytes, 0xFF, part->page_bytes);
    weft_status status = weft_device_upload(part->device, to, bytes, part->page_bytes);
    if (status != WEFT_OK) harness_die("kv", status, "upload");
    free(bytes);
  }
}

static inline void harness_open_kv(harness *h, const harness_options *options) {
  weft_error error = {{0}};
  const weft_kv_geometry *geometry = &h->info->kv;
  uint32_t block = options->block_tokens; /* where rows stand for many positions pages are too large for small blocks */
  weft_status status = weft_kv_layout_choose(&geometry, 1, block, &h->layout, &error);
  for (; status == WEFT_E_UNSUPPORTED && block > 0 && block < 128; block *= 2)
    status = weft_kv_layout_choose(&geometry, 1, 2 * block, &h->layout, &error);
  if (status != WEFT_OK) harness_die("layout", status, error.text);
  status = weft_kv_store_open(&h->split, &h->layout, options->n_pages, &h->kv, &error);
  if (status != WEFT_OK) harness_die("kv", status, error.text);
  for (uint32_t i = 0; i < options->n_pages; i++) harness_poison(h, i);
  h->page_order = harness_alloc(options->n_pages, sizeof *h->page_order);
  harness_scramble(h->page_order, options->n_pages);
  for (uint32_t i = 0; options->in_order && i < options->n_pages; i++) h->page_order[i] = i;
}

static inline void harness_open_scratch(harness *h, uint32_t rows_max) {
  float cap, scale;
  const weft_weight *head = weft_model_head(h->model, &cap, &scale);
  weft_head_rows_args rows = {.weight = head, .n_rows = rows_max};
  weft_soft_args soft = {.weight = head, .n_rows = rows_max};
  uint64_t a = weft_head_rows_scratch(h->device, &rows), b = weft_soft_scratch(h->device, &soft);
  h->scratch_bytes = (a > b ? a : b) + 64;
  h->hidden = harness_memory(h, rows_max, h->info->n_hidden * sizeof *h->hidden);
  h->bad = harness_memory(h, rows_max, 1);
  weft_status status = weft_device_alloc(h->device, h->scratch_bytes, &h->scratch);
  if (status != WEFT_OK) harness_die("scratch", status, "");
}

/* Takes the gguf: close closes it. name is for messages. */
static inline void harness_open_gguf(harness *h, weft_gguf *gguf, const char *name, const harness_options *options) {
  weft_error error = {{0}};
  weft_device_config config = {.backend = options->backend,
                               .n_threads = options->n_threads,
                               .isa = options->isa,
                               .no_deterministic = options->free_sums};
  weft_model_limits limits = {.rows_max = options->rows_max,
                              .canvas_rows_max = options->rows_max,
                              .segments_max = options->rows_max,
                              .nextn = options->nextn,
                              .block_drafter = options->block_drafter};
  memset(h, 0, sizeof *h);
  h->gguf = gguf;
  if (!split_of(gguf, options->n_devices == 0 ? 1 : options->n_devices, options->n_shards, &h->split))
    harness_die(name, WEFT_E_INVALID, "the model cannot be split so");
  weft_status status = WEFT_OK;
  for (config.index = 0; config.index < h->split.n_devices && status == WEFT_OK; config.index++) {
    status = weft_device_open(&config, &h->split.device[config.index], &error);
  }
  if (status != WEFT_OK) harness_die(name, status, error.text);
  h->device = weft_split_last(&h->split);
  status = weft_model_open(h->gguf, &h->split, &limits, NULL, NULL, &h->model, &error);
  if (status != WEFT_OK) harness_die(name, status, error.text);
  h->info = weft_model_get_info(h->model);
  harness_open_kv(h, options);
  harness_open_scratch(h, options->rows_max);
}

/* The path of a tiny model, as tests/golden/models names it; good until the next call. */
static inline const char *harness_tiny(const char *name) {
  static char path[512];
  (void)snprintf(path, sizeof path, "%s/tests/golden/models/%s.gguf", WEFT_SOURCE_DIR, name);
  return path;
}

static inline weft_gguf *harness_gguf(const char *path) {
  weft_error error = {{0}};
  weft_gguf *gguf;
  weft_status status = weft_gguf_open(path, &gguf, &error);
  if (status != WEFT_OK) harness_die(path, status, error.text);
  return gguf;
}

static inline void harness_open(harness *h, const char *path, const harness_options *options) {
  harness_open_gguf(h, harness_gguf(path), path, options);
}

static inline void harness_close(harness *h) {
  weft_kv_store_close(h->kv);
  weft_model_close(h->model);
  weft_device_free(h->device, h->scratch);
  harness_release(h, h->hidden);
  harness_release(h, h->bad);
  for (uint32_t p = 0; p < h->split.n_devices; p++) weft_device_close(h->split.device[p]);
  weft_gguf_close(h->gguf);
  free(h->page_order);
}

static inline void harness_seq_open(harness_seq *seq) {
  memset(seq, 0, sizeof *seq);
  for (uint32_t g = 0; g < WEFT_GROUPS_MAX; g++) {
    seq->table[g] = harness_alloc(HARNESS_TABLE_MAX, sizeof *seq->table[g]);
  }
}

static inline void harness_seq_close(harness_seq *seq) {
  for (uint32_t g = 0; g < WEFT_GROUPS_MAX; g++) free(seq->table[g]);
}

/* Gives every page of a sequence back to nobody; the same pages are handed out again from the
 * start. */
static inline void harness_forget_pages(harness *h) {
  h->n_taken = 0;
}

/* Entries of a sequence's table in a group for its first n_tokens: a page for each block or, in a group of states, the
 * pages of the state at each border, one after another. */
static inline uint32_t harness_n_entries(const harness *h, uint32_t g, uint32_t n_tokens) {
  const weft_layer_group *group = &h->layout.group[g];
  if (group->state_pages > 0) return n_tokens / group->block_tokens * group->state_pages;
  return (n_tokens + group->block_tokens - 1) / group->block_tokens;
}

static inline void harness_reserve(harness *h, harness_seq *seq, uint32_t n_tokens) {
  for (uint32_t g = 0; g < h->layout.n_groups; g++) {
    while (seq->n_entries[g] < harness_n_entries(h, g, n_tokens)) {
      if (seq->n_entries[g] == HARNESS_TABLE_MAX || h->n_taken == h->kv->n_pages) {
        harness_die("pages", WEFT_NO_BLOCKS, "the test's pool is too small");
      }
      seq->table[g][seq->n_entries[g]++] = h->page_order[h->n_taken++];
    }
  }
}

typedef struct harness_arrays {
  int32_t *token, *position;
  int64_t *slot[WEFT_GROUPS_MAX];
  weft_segment *segment;
  uint32_t *table, *table_at, n_table;
  const float **soft;
  uint32_t *output_row, n_output, n_states;
  weft_state_write *state;
} harness_arrays;

/* The pages of the sequence's state at a border, in the step's tables. */
static inline uint32_t harness_add_state(const harness *h, const harness_seq *seq, uint32_t g, uint32_t border,
                                         harness_arrays *a) {
  uint32_t n = h->layout.group[g].state_pages, at = a->n_table;
  if (border == 0) return WEFT_STATE_NONE;
  memcpy(a->table + at, seq->table[g] + (border / h->layout.group[g].block_tokens - 1) * n, n * sizeof *a->table);
  a->n_table += n;
  return at;
}

/* Of a group of states: the one that segment s begins with, and those that it writes. Of the borders that it crosses
 * every second one is not written. */
static inline void harness_add_states(const harness *h, const harness_piece *piece, uint32_t s, uint32_t g,
                                      harness_arrays *a) {
  uint32_t every = h->layout.group[g].block_tokens, kv_len = piece->seq->n_valid, end = kv_len + piece->n;
  a->table_at[s * h->layout.n_groups + g] = harness_add_state(h, piece->seq, g, kv_len / every * every, a);
  for (uint32_t border = (kv_len / every + 1) * every; border <= end; border += every) {
    if (border + every <= end && border / every % 2 == 0) continue;
    uint32_t at = harness_add_state(h, piece->seq, g, border, a);
    a->state[a->n_states++] = (weft_state_write){.segment = s, .group = g, .position = border, .table_at = at};
  }
}

static inline void harness_add_piece(harness *h, const harness_piece *piece, weft_batch *batch, harness_arrays *a) {
  uint32_t n_groups = h->layout.n_groups, first = batch->n_rows, s = batch->n_segments++;
  harness_seq *seq = piece->seq;
  a->segment[s] = (weft_segment){.first_row = first,
                                 .n_rows = piece->n,
                                 .kv_len = seq->n_valid,
                                 .mask = piece->canvas || piece->whole ? WEFT_MASK_WHOLE : WEFT_MASK_CAUSAL,
                                 .stores = piece->canvas ? WEFT_STORES_SCRATCH : WEFT_STORES_POOL,
                                 .pass = piece->canvas ? WEFT_PASS_DECODER : WEFT_PASS_ENCODER};
  a->soft[s] = piece->soft;
  if (!piece->canvas) harness_reserve(h, seq, seq->n_valid + piece->n);
  for (uint32_t i = 0; i < piece->n; i++) {
    uint32_t position = seq->n_valid + i, row = first + i;
    a->token[row] = piece->tokens[i];
    a->position[row] = (int32_t)position;
    for (uint32_t g = 0; g < n_groups; g++) {
      uint32_t block = h->layout.group[g].block_tokens;
      a->slot[g][row] = -1;
      if (piece->canvas || h->layout.group[g].state_pages > 0) continue;
      a->slot[g][row] = (int64_t)seq->table[g][position / block] * block + position % block;
    }
    bool wanted = piece->output == OUT_ALL || (piece->output == OUT_LAST && i + 1 == piece->n);
    if (wanted) a->output_row[a->n_output++] = row;
  }
  for (uint32_t g = 0; g < n_groups; g++) {
    if (h->layout.group[g].state_pages > 0) {
      harness_add_states(h, piece, s, g, a);
      continue;
    }
    a->table_at[s * n_groups + g] = a->n_table;
    memcpy(a->table + a->n_table, seq->table[g], seq->n_entries[g] * sizeof *a->table);
    a->n_table += seq->n_entries[g];
  }
  batch->n_rows += piece->n;
  if (piece->canvas) return;
  batch->n_stored += piece->n;
  batch->n_encoder += piece->n;
  seq->n_valid += piece->n;
}

static inline void harness_logits(harness *h, uint32_t first, uint32_t n, float *logits) {
  float cap, scale;
  size_t n_floats = (size_t)n * h->info->n_vocab;
  float *shared = harness_memory(h, n_floats, sizeof *shared);
  weft_head_rows_args args = {
      .h = h->hidden + (uint64_t)first * h->info->n_hidden,
      .weight = weft_model_head(h->model, &cap, &scale),
      .logits = shared,
      .bad = h->bad,
      .n_rows = n,
      .h_stride = h->info->n_hidden,
      .logits_stride = h->info->n_vocab,
      .scratch = h->scratch,
      .scratch_bytes = h->scratch_bytes,
  };
  args.cap = cap;
  weft_status status = weft_head_rows(h->device, &args);
  if (status != WEFT_OK) harness_die("head_rows", status, "");
  harness_settle(h);
  memcpy(logits, shared, n_floats * sizeof *logits);
  harness_release(h, shared);
}

static inline harness_arrays harness_arrays_open(uint32_t n_rows, uint32_t n_pieces, uint32_t n_groups) {
  harness_arrays a = {0};
  a.token = harness_alloc(n_rows, sizeof *a.token);
  a.position = harness_alloc(n_rows, sizeof *a.position);
  a.output_row = harness_alloc(n_rows, sizeof *a.output_row);
  a.segment = harness_alloc(n_pieces, sizeof *a.segment);
  a.state = harness_alloc((size_t)n_rows * n_groups, sizeof *a.state);
  a.soft = harness_alloc(n_pieces, sizeof *a.soft);
  a.table = harness_alloc((size_t)n_pieces * n_groups * HARNESS_TABLE_MAX, sizeof *a.table);
  a.table_at = harness_alloc((size_t)n_pieces * n_groups, sizeof *a.table_at);
  for (uint32_t g = 0; g < n_groups; g++) a.slot[g] = harness_alloc(n_rows, sizeof *a.slot[g]);
  return a;
}

static inline void harness_arrays_close(harness_arrays *a) {
  free(a->token);
  free(a->position);
  free(a->output_row);
  free(a->segment);
  free(a->state);
  free(a->soft);
  free(a->table);
  free(a->table_at);
  for (uint32_t g = 0; g < WEFT_GROUPS_MAX; g++) free(a->slot[g]);
}

/* One step. Causal pieces must come before canvas pieces. Sequences grow by their causal pieces. */
static inline void harness_run(harness *h, const harness_piece *pieces, uint32_t n_pieces) {
  uint32_t n_rows = 0;
  for (uint32_t i = 0; i < n_pieces; i++) n_rows += pieces[i].n;
  harness_arrays a = harness_arrays_open(n_rows, n_pieces, h->layout.n_groups);
  weft_batch batch = {.n_groups = h->layout.n_groups};
  for (uint32_t i = 0; i < n_pieces; i++) harness_add_piece(h, &pieces[i], &batch, &a);
  batch.token = a.token;
  batch.position = a.position;
  batch.segment = a.segment;
  batch.table = a.table;
  batch.table_at = a.table_at;
  batch.state = a.state;
  batch.n_states = a.n_states;
  for (uint32_t g = 0; g < batch.n_groups; g++)
    batch.kv_slot[g] = h->layout.group[g].state_pages > 0 ? NULL : a.slot[g];
  weft_forward_args args = {
      .batch = &batch,
      .token = a.token,
      .kv = h->kv,
      .layout = &h->layout,
      .soft = a.soft,
      .output_row = a.output_row,
      .n_output = a.n_output,
      .hidden = h->hidden,
      .tap = h->tap,
      .tap_self = h->tap_self,
  };
  weft_status status = weft_model_forward(h->model, &args);
  if (status != WEFT_OK) harness_die("forward", status, "");
  uint32_t first = 0;
  for (uint32_t i = 0; i < n_pieces; i++) {
    uint32_t n = pieces[i].output == OUT_ALL ? pieces[i].n : pieces[i].output == OUT_LAST ? 1 : 0;
    if (n > 0) harness_logits(h, first, n, pieces[i].logits);
    first += n;
  }
  harness_arrays_close(&a);
}

/* soft [n][n_hidden] (harness_memory) from softcapped logits [n][n_vocab] at one temperature. */
static inline void harness_soft(harness *h, const float *logits, uint32_t n, float temperature, float *soft) {
  size_t n_floats = (size_t)n * h->info->n_vocab;
  float *shared = harness_memory(h, n_floats, sizeof *shared);
  float *temperatures = harness_memory(h, n, sizeof *temperatures);
  memcpy(shared, logits, n_floats * sizeof *shared);
  for (uint32_t i = 0; i < n; i++) temperatures[i] = temperature;
  float cap, scale;
  weft_soft_args args = {
      .logits = shared,
      .temperature = temperatures,
      .weight = weft_model_head(h->model, &cap, &scale),
      .soft = soft,
      .n_rows = n,
      .logits_stride = h->info->n_vocab,
      .soft_stride = h->info->n_hidden,
      .scratch = h->scratch,
      .scratch_bytes = h->scratch_bytes,
  };
  args.scale = scale;
  weft_status status = weft_soft(h->device, &args);
  if (status != WEFT_OK) harness_die("soft", status, "");
  harness_settle(h);
  harness_release(h, shared);
  harness_release(h, temperatures);
}

/* Rows of logits are finite and are, to the bit, those of the same request alone; label and law are for the failure. */
static inline void harness_same(const harness *h, const char *label, const char *law, const float *got,
                                const float *alone, uint32_t n_rows) {
  size_t n_vocab = h->info->n_vocab;
  for (size_t i = 0; i < n_rows * n_vocab; i++) {
    if (memcmp(&got[i], &alone[i], sizeof *got) == 0 && isfinite(got[i])) continue;
    (void)printf("FAILED: %s: %s: row %zu of %u, token %zu: %.9g, alone %.9g\n", label, law, i / n_vocab, n_rows,
                 i % n_vocab, (double)got[i], (double)alone[i]);
    exit(1);
  }
}

#endif
