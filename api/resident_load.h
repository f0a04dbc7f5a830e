/* SPDX-License-Identifier: MIT */
/* One load of a model that comes and goes: its file, its memory, and the pace at which its weights are placed beside
 * steps. For residents.c only.
 *
 * Law. What a model takes is planned from its header. On a card all of its device memory, and of its runner, is one
 * holding (kernels/holding.h), opened with the plan: addresses and pinned host memory are there before the server
 * serves, so a load and an unload allocate and free nothing, map and unmap alone, and wait for no step. Weights go
 * up by another opening of the device, whose stream the steps do not wait for, and while requests run at the pace of
 * load_pace.h: a load takes at most a fifth of the device's time. Where the processor computes, that holds if steps
 * leave it no core of its own.
 *
 * Threads: open and plan at the start; resident_open and resident_close on the thread that loads. */
#ifndef WEFT_API_RESIDENT_LOAD_H
#define WEFT_API_RESIDENT_LOAD_H

#include "api/load_pace.h"
#include "api/resident_sleep.h"
#include "api/runtime.h"

typedef struct resident_loader {
  weft_runtime *rt;
  weft_device *placer;
  resident_beds beds; /* of models that left (--sleep-mib) */
  load_pace pace;
} resident_loader;

typedef struct resident_memory {
  uint64_t need_bytes;    /* as planned: on a card of its own memory, else of all */
  uint64_t took_bytes;    /* that the last load took */
  weft_holding holding;   /* on a card */
  uint64_t table_entries; /* of the largest step there */
} resident_memory;

/* bytes_max: what loaded models may have together. The caller closes *out in any case, after all models. */
weft_status resident_loader_open(weft_runtime *rt, uint64_t bytes_max, resident_loader *out, weft_error *error);
void resident_loader_close(resident_loader *loader);
weft_status resident_plan(resident_loader *loader, uint32_t model, resident_memory *out, weft_error *error);
void resident_forget(resident_memory *memory); /* what plan made */
/* The file as it is now; INVALID: it is another one than was planned. */
weft_status resident_open_file(const weft_served_model *model, weft_gguf **out, weft_error *error);
/* Loads it. An error leaves nothing behind. */
weft_status resident_open(resident_loader *loader, uint32_t model, resident_memory *memory, weft_model **out,
                          weft_runner **runner, weft_error *error);
/* Gives back all that it took: model and runner, which may be NULL. Nothing that is enqueued uses it. */
void resident_close(resident_memory *memory, weft_model *model, weft_runner *runner);

#endif
