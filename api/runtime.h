/* SPDX-License-Identifier: MIT */
/* What weft_open composes; for the files of api/ only. */
#ifndef WEFT_API_RUNTIME_H
#define WEFT_API_RUNTIME_H

#include "api/formats.h"
#include "api/weft.h"
#include "base/clock.h"
#include "base/text.h"
#include "kernels/device.h"
#include "model/chat.h"
#include "model/device_runner.h"
#include "model/kv_store.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include "scheduler/engine.h"

typedef struct weft_served_model {
  char *path, *name;
  weft_gguf *gguf;
  weft_model *model;
  weft_tokenizer *tokenizer;
  weft_chat *chat;    /* NULL: no template can be rendered */
  weft_error no_chat; /* why, then */
  weft_formats *formats;
  weft_runner *runner;
  weft_kv_layout layout;
  uint32_t context; /* longest prompt + answer */
  uint64_t runner_bytes;
} weft_served_model;

struct weft_runtime {
  weft_open_options options; /* defaults filled in; strings not kept */
  weft_device *device;
  weft_kv_store *store;
  weft_engine *engine;
  weft_served_model *model;
  uint32_t n_models;
  uint32_t n_pages, n_host_pages, n_file_pages;
  uint64_t page_bytes;
  char **tenant_name; /* [options.tenants] */
  weft_text plan;
  char unwell[256];
};

/* NULL with a line when there is no such model; NULL name: the first; with one model any name is served. */
const weft_served_model *weft_runtime_model(const weft_runtime *runtime, const char *name, uint32_t *index,
                                            weft_error *error);
/* Who may see what a tenant has cached. */
static inline weft_key128 weft_runtime_domain(const weft_runtime *runtime, uint32_t tenant) {
  return (weft_key128){runtime->options.shared_cache ? 0u : tenant + 1u, 0x7765667430303031ull};
}
/* As clients ask for a model file: its name without folder and .gguf. The caller frees it; NULL: no memory. */
char *weft_served_name(const char *path);
/* Writes a weft_error's line to a caller's buffer and gives the status as int. */
int weft_tell(const weft_error *from, weft_status status, char *error, size_t n_error);

#endif
