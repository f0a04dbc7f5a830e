/* SPDX-License-Identifier: MIT */
/* An engine over real models, stepped by hand, for tests: one device, one pool, one runner per file.
 *
 * Law: what the options leave at zero has a default. Time is a counter of turns. Every page is NaN at open, so a read
 * of a key nobody wrote shows up in the logits. Failures print one line and end the program. */
#ifndef WEFT_TESTS_REAL_ENGINE_H
#define WEFT_TESTS_REAL_ENGINE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "model/runner/device_runner.h"
#include "scheduler/engine.h"
#include "tests/support/fake_card.h"
#include "tests/support/split_of.h"

enum { RIG_MODELS_MAX = 2, RIG_TENANTS = 3, RIG_TOKENS = 128 };

typedef struct rig_options {
  const char *backend, *isa;
  uint32_t n_threads; /* 1 */
  const char *path[RIG_MODELS_MAX];
  uint32_t n_models;
  uint32_t block; /* smallest block; 0: chosen */
  uint32_t n_pages, n_host, n_file, n_saves, context, rows, chunk, running, waiting;
  const weft_kv_file_io *disk; /* of the file; NULL: the system's */
  uint64_t logits_bytes_max;
  uint32_t draft_rows;         /* of a step, with a drafter; */
  const char *assistant;       /* a file that drafts for the last model from its keys (model/assistant.h); NULL: none */
  bool nextn;                  /* the layer of the last model's file that guesses ahead drafts (model/nextn.h) */
  const weft_drafter *drafter; /* NULL: none */
  bool drafts_paid;            /* drafts only where they are expected to gain */
  bool overlap, no_cache;
  bool kv_8bit;
  uint32_t n_devices;  /* 0: one */
  uint32_t n_shards;   /* of each part of a model; 0: 1 */
  const bool *full[3]; /* of fake cards: which buffers of the runners each of them refuses, of the n_full first ones */
  uint32_t n_full;
  bool unreachable; /* fake cards that do not reach each other's memory */
  uint32_t eager;   /* of late cards: the one that runs ahead of the others, from 1; 0: none */
} rig_options;

typedef struct rig {
  weft_device *device; /* the first one */
  weft_split split[RIG_MODELS_MAX];
  weft_gguf *gguf[RIG_MODELS_MAX];
  weft_model *model[RIG_MODELS_MAX];
  weft_gguf *assistant_gguf;
  weft_model *assistant; /* of the last model; NULL: none */
  const weft_model_info *info[RIG_MODELS_MAX];
  weft_kv_layout layout[RIG_MODELS_MAX];
  weft_kv_store *store;
  weft_runner *runner[RIG_MODELS_MAX];
  weft_engine *engine;
  uint32_t n_models;
  uint64_t now;
} rig;

static const int32_t rig_suppressed[] = {3, 4};

static inline void rig_need(bool holds, const char *what, const char *text) {
  if (holds) return;
  (void)printf("FAILED: %s: %s\n", what, text);
  exit(1);
}

static inline void rig_add_file(rig *r, const rig_options *o) {
  char path[256];
  weft_error error = {{0}};
  (void)snprintf(path, sizeof path, "%s/rig-%d.spill", WEFT_BINARY_DIR, (int)getpid());
  const weft_kv_file_config file = {.path = path, .n_slots = o->n_file, .moves_max = WEFT_MOVES_MAX, .io = o->disk};
  rig_need(weft_kv_store_add_file(r->store, &file, &error) == WEFT_OK, "file", error.text);
}

static inline void rig_forget_keys(rig *r) {
  uint8_t *page = malloc(r->store->page_bytes);
  rig_need(page != NULL, "memory", "a page");
  memset(page, 0xFF, r->store->page_bytes); /* NaN in F32 and BF16 */
  for (uint32_t p = 0; p < r->store->n_parts; p++) {
    const weft_kv_part *part = &r->store->part[p];
    for (uint64_t i = 0; i < r->store->n_pages; i++) {
      uint8_t *to = (uint8_t *)part->base + i * part->page_bytes;
      rig_need(weft_device_upload(part->device, to, page, part->page_bytes) == WEFT_OK, "page", "upload");
    }
  }
  free(page);
}

/* "fake": without graphs; "fake graphs"; "fake experts": and streamed; "fake late", "fake late graphs". */
static inline weft_device *rig_open_device(const rig_options *o, const weft_device_config *config) {
  weft_device *device;
  weft_error error = {{0}};
  if (strncmp(o->backend, "fake", 4) != 0) {
    rig_need(weft_device_open(config, &device, &error) == WEFT_OK, "device", error.text);
    return device;
  }
  fake_card *card = fake_card_open(strstr(o->backend, "graphs") != NULL || strstr(o->backend, "experts") != NULL);
  card->base.info.index = config->index;
  card->streams = strstr(o->backend, "experts") != NULL;
  if (strstr(o->backend, "late") != NULL) card->late = o->eager == config->index + 1 ? FAKE_EAGER : FAKE_LAZY;
  return &card->base;
}

static inline void rig_open_file(const char *path, weft_gguf **out) {
  weft_error error = {{0}};
  rig_need(weft_gguf_open(path, out, &error) == WEFT_OK, "gguf", error.text);
}

static inline void rig_open_models(rig *r, const rig_options *o, const weft_model_limits *limits) {
  weft_error error = {{0}};
  const weft_kv_geometry *geometry[RIG_MODELS_MAX];
  weft_device_config device = {.backend = o->backend, .n_threads = o->n_threads == 0 ? 1 : o->n_threads, .isa = o->isa};
  uint32_t n_devices = o->n_devices == 0 ? 1 : o->n_devices;
  weft_device *opened[WEFT_DEVICES_MAX] = {NULL};
  for (device.index = 0; device.index < n_devices; device.index++) opened[device.index] = rig_open_device(o, &device);
  r->device = opened[0];
  for (uint32_t i = 0; i < o->n_models; i++) {
    rig_need(weft_gguf_open(o->path[i], &r->gguf[i], &error) == WEFT_OK, "gguf", error.text);
    rig_need(split_of(r->gguf[i], n_devices, o->n_shards, &r->split[i]), "split", "the model cannot be split so");
    memcpy(r->split[i].device, opened, sizeof opened);
    weft_model_limits own = *limits;
    own.nextn = o->nextn && i + 1 == o->n_models;
    own.token_ranges = true;
    if (i + 1 == o->n_models && r->assistant_gguf != NULL && weft_model_fills_blocks(r->assistant_gguf))
      own.block_drafter = r->assistant_gguf;
    rig_need(weft_model_open(r->gguf[i], &r->split[i], &own, NULL, NULL, &r->model[i], &error) == WEFT_OK, "model",
             error.text);
    r->info[i] = weft_model_get_info(r->model[i]);
    geometry[i] = &r->info[i]->kv;
  }
  rig_need(weft_kv_layout_choose(geometry, o->n_models, o->block, r->layout, &error) == WEFT_OK, "layout", error.text);
  rig_need(weft_kv_store_open(&r->split[0], &r->layout[0], o->n_pages, &r->store, &error) == WEFT_OK, "pool",
           error.text);
  rig_need(weft_kv_store_add_host(r->store, o->n_host, &error) == WEFT_OK, "host memory", error.text);
  rig_add_file(r, o);
  rig_forget_keys(r);
}

static inline void rig_open_assistant(rig *r, const rig_options *o, const weft_model_limits *of_model) {
  weft_error error = {{0}};
  uint32_t last = o->n_models - 1;
  weft_model_limits limits = {.rows_max = o->running, .segments_max = o->running};
  if (o->nextn) {
    limits = *of_model;
    limits.canvas_rows_max = o->draft_rows;
    limits.nextn = true;
  }
  if (o->assistant == NULL && !o->nextn) return;
  if (!o->nextn && weft_model_fills_blocks(r->assistant_gguf)) limits = *of_model;
  limits.target = r->model[last];
  weft_status status = weft_model_open(o->nextn ? r->gguf[last] : r->assistant_gguf, &r->split[last], &limits, NULL,
                                       NULL, &r->assistant, &error);
  rig_need(status == WEFT_OK, "drafter", error.text);
}

/* From here on the cards are as full as the options say. */
static inline void rig_fill_cards(const rig *r, const rig_options *o) {
  for (uint32_t p = 0; p < r->split[0].n_devices && strncmp(o->backend, "fake", 4) == 0; p++) {
    fake_card *card = fake_of(r->split[0].device[p]);
    card->full = p < 3 ? o->full[p] : NULL;
    card->n_full = o->n_full;
    card->n_pieces = 0;
    card->unreachable = o->unreachable;
  }
}

static inline void rig_open(rig *r, const rig_options *o) {
  weft_error error = {{0}};
  weft_model_limits limits = {.rows_max = o->rows,
                              .canvas_rows_max = o->rows,
                              .segments_max = o->running * 2 < o->rows ? o->running * 2 : o->rows,
                              .kv_8bit = o->kv_8bit};
  memset(r, 0, sizeof *r);
  r->n_models = o->n_models;
  if (o->assistant != NULL) rig_open_file(o->assistant, &r->assistant_gguf);
  rig_open_models(r, o, &limits);
  rig_open_assistant(r, o, &limits);
  rig_fill_cards(r, o);
  for (uint32_t i = 0; i < o->n_models; i++) {
    weft_device_runner_config config = {.model = r->model[i],
                                        .store = r->store,
                                        .layout = &r->layout[i],
                                        .name = r->info[i]->name,
                                        .limits = limits,
                                        .n_slots = o->running,
                                        .assistant = i + 1 == o->n_models ? r->assistant : NULL,
                                        .draft_rows_max = o->draft_rows,
                                        .n_saves = o->n_saves,
                                        .seq_tokens_max = o->context,
                                        .suppressed = rig_suppressed,
                                        .n_suppressed = 2,
                                        .logits_bytes_max = o->logits_bytes_max};
    rig_need(weft_device_runner_open(&config, &r->runner[i], NULL, &error) == WEFT_OK, "runner", error.text);
  }
  weft_engine_config config = {.n_models = o->n_models,
                               .runner = r->runner,
                               .n_pages = o->n_pages,
                               .n_host_pages = o->n_host,
                               .n_file_pages = o->n_file,
                               .rows_per_step = o->rows,
                               .prefill_chunk = o->chunk,
                               .running_max = o->running,
                               .waiting_max = o->waiting == 0 ? 128 : o->waiting,
                               .n_tenants = RIG_TENANTS,
                               .seq_tokens_max = o->context,
                               .overlap = o->overlap,
                               .no_prefix_cache = o->no_cache,
                               .drafter = o->drafter,
                               .drafts_always = !o->drafts_paid};
  rig_need(weft_engine_open(&config, &r->engine, &error) == WEFT_OK, "engine", error.text);
}

static inline void rig_close(rig *r) {
  weft_engine_close(r->engine);
  for (uint32_t i = 0; i < r->n_models; i++) {
    r->runner[i]->ops->close(r->runner[i]);
    if (i + 1 == r->n_models) weft_model_close(r->assistant);
    weft_model_close(r->model[i]);
    weft_gguf_close(r->gguf[i]);
  }
  weft_gguf_close(r->assistant_gguf);
  weft_kv_store_close(r->store);
  for (uint32_t p = 0; p < r->split[0].n_devices; p++) weft_device_close(r->split[0].device[p]);
}

/* What came of a request of at most RIG_TOKENS tokens. */
typedef struct rig_answer {
  weft_finish finish;
  uint32_t n, n_ends;
  int32_t tokens[RIG_TOKENS];
  char error[320];
} rig_answer;

/* Takes what there is to take. After its end the request is released and *handle is NULL. */
static inline void rig_collect(rig *r, weft_request **handle, rig_answer *a) {
  weft_event event;
  while (*handle != NULL && weft_engine_poll(r->engine, *handle, &event) == WEFT_OK) {
    if (event.kind == WEFT_EVENT_TOKENS) {
      rig_need(event.first + event.n <= RIG_TOKENS, "answer", "more tokens than there is room for");
      memcpy(a->tokens + event.first, event.tokens, event.n * sizeof *event.tokens);
      a->n = event.first + event.n;
    } else if (event.kind == WEFT_EVENT_FINISHED) {
      a->n_ends += 1;
      a->finish = event.finish;
      if (event.error != NULL) (void)snprintf(a->error, sizeof a->error, "%s", event.error);
      rig_need(weft_engine_poll(r->engine, *handle, &event) == WEFT_AGAIN, "answer", "an event after the end");
      weft_engine_release(r->engine, *handle);
      *handle = NULL;
    }
  }
}

static inline void rig_check_pager(rig *r) {
  weft_error error = {{0}};
  rig_need(weft_pager_check(weft_engine_pager(r->engine), &error), "pager", error.text);
}

#endif
