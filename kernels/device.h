/* SPDX-License-Identifier: MIT */
/* A device: where the bytes of weights, KV and activations live, and the queue that computes on them.
 *
 * Law: every call takes its device; there is no current device and no global state. Enqueued work runs in
 * order on the device's one stream. Memory is never allocated by an op. A device error is a status; after
 * WEFT_E_DEVICE the device is lost and only close may follow. Pointers from device_alloc are device pointers:
 * only ops, upload, download and copy may look behind them (on ref and cpu they are ordinary memory). */
#ifndef WEFT_KERNELS_DEVICE_H
#define WEFT_KERNELS_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/quant.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_device weft_device;
struct weft_kernels;

/* A weight matrix on a device: [n_mats, n_out, n_in] stored in `type`; layout is the backend's business
 * (0 is the file's own). n_mats > 1 for expert stacks. */
typedef struct weft_weight {
  weft_type type;
  uint32_t layout;
  uint32_t n_in;   /* elements of a row: the contiguous dimension, summed over by a product */
  uint32_t n_out;  /* rows of one matrix */
  uint32_t n_mats; /* 1, or experts */
  const void *data;  /* device memory, in `layout`; NULL: absent */
  uint64_t n_bytes;
} weft_weight;

/* How a weight will be read; the backend chooses the layout by it. */
typedef enum weft_weight_use {
  WEFT_USE_MATMUL = 1, /* y = x W^T */
  WEFT_USE_EXPERTS = 2,
  WEFT_USE_EMBED = 4 /* rows are looked up and, tied, multiplied by the head and by soft embeddings */
} weft_weight_use;

typedef struct weft_device_config {
  const char *backend; /* "ref", "cpu", "cuda"; NULL: the best there is */
  uint32_t n_threads;  /* 0: all cores this process may use */
  const char *isa;     /* cpu: NULL best, or "portable", "avx2", "avx512": for tests; refused if absent */
} weft_device_config;

typedef struct weft_device_info {
  const char *backend; /* "ref" | "cpu" | "cuda" */
  const char *isa;     /* "portable", "avx2", "avx512-vnni", "sm_90", ... */
  char name[96];
  uint32_t n_threads;
  uint64_t memory_bytes;      /* total */
  uint64_t memory_free_bytes; /* at open */
  bool host_memory;           /* device pointers are ordinary memory: nothing need be uploaded */
} weft_device_info;

/* Errors: UNSUPPORTED (no such backend here; the line says what is), NO_MEMORY, DEVICE. */
weft_status weft_device_open(const weft_device_config *config, weft_device **out, weft_error *error);
void weft_device_close(weft_device *device);
const weft_device_info *weft_device_get_info(const weft_device *device);
const struct weft_kernels *weft_device_kernels(const weft_device *device);

/* 256-byte aligned; content undefined. */
weft_status weft_device_alloc(weft_device *device, uint64_t n_bytes, void **out);
void weft_device_free(weft_device *device, void *memory);
/* Memory that both sides may read and write where it lies: pinned on cuda, ordinary elsewhere. 64-byte
 * aligned; slow for the device. What the device wrote is there after a sync. */
weft_status weft_device_alloc_host(weft_device *device, uint64_t n_bytes, void **out);
void weft_device_free_host(weft_device *device, void *memory);
/* from may be reused as soon as upload returns; download returns when the bytes are there. */
weft_status weft_device_upload(weft_device *device, void *to, const void *from, uint64_t n_bytes);
weft_status weft_device_download(weft_device *device, void *to, const void *from, uint64_t n_bytes);
weft_status weft_device_copy(weft_device *device, void *to, const void *from, uint64_t n_bytes);
weft_status weft_device_zero(weft_device *device, void *to, uint64_t n_bytes);
/* Waits until everything enqueued has run. */
weft_status weft_device_sync(weft_device *device);

/* Places a stored matrix on the device in the layout best for its use. file bytes are only read during the
 * call. weight->type, n_in, n_out, n_mats are set by the caller. Free with weft_device_weight_free. */
weft_status weft_device_weight(weft_device *device, weft_weight *weight, const void *file_bytes,
                               unsigned uses, weft_error *error);
void weft_device_weight_free(weft_device *device, weft_weight *weight);
/* The inverse, for tests: writes the file-form bytes again. */
weft_status weft_device_weight_unpack(weft_device *device, const weft_weight *weight, void *file_bytes);

#ifdef __cplusplus
}
#endif
#endif
