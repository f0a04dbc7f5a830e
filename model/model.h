/* SPDX-License-Identifier: MIT */
/* A model: weights on a device and the forward pass of one step over them. It keeps nothing between steps; keys and
 * values live in the kv_store, everything else of a request in the runner's slots.
 *
 * Law: a forward pass computes any mix of segments of model/batch.h at once; a row's result depends on its own request
 * only. All scratch is planned at open for the largest step. A forward pass allocates memory in one case only: on a
 * device with memory of its own, when the block tables of a step are longer than those of any step before
 * (step_arrays.h). Temperature, top_p, top_k and entropy_bound of weft_model_info are the defaults of requests that
 * leave these open (api/generation.c). */
#ifndef WEFT_MODEL_MODEL_H
#define WEFT_MODEL_MODEL_H

#include "kernels/device.h"
#include "model/batch.h"
#include "model/gguf.h"
#include "model/kv_layout.h"
#include "model/kv_store.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_model weft_model;

typedef struct weft_model_limits {
  uint32_t rows_max;        /* rows of one step */
  uint32_t canvas_rows_max; /* of which canvas rows */
  uint32_t segments_max;
  bool kv_8bit;        /* keys and values in 8 bits (kernels/kv_row.h), not in the type that suits the file */
  bool unused_tensors; /* open a file although tensors of its layers are not used: answers may be wrong */
} weft_model_limits;

typedef struct weft_model_info {
  char arch[32];  /* as in the file: "gemma4", "diffusion-gemma", ... */
  char name[128]; /* general.name, or the file's name without .gguf */
  uint32_t n_vocab, n_hidden, n_layers, n_experts, n_experts_used, context_length;
  uint32_t canvas_length;           /* 0: no canvas pass */
  weft_entropy_bound entropy_bound; /* file's values over the built-in defaults */
  float temperature, top_p;         /* general.sampling.*, else 1, 1 */
  uint32_t top_k;                   /* else 0 */
  uint64_t fingerprint_low, fingerprint_high;
  uint64_t weight_bytes, scratch_bytes; /* on the device */
  weft_type kv_type;
  weft_kv_geometry kv; /* layers by geometry; input of weft_kv_layout_choose */
} weft_model_info;

/* Loads the weights. Errors name the file and the tensor or key; all but those of reading come before any weight is
 * read, also the one of a file that is larger than the host's free memory. progress (may be NULL) is called with bytes
 * done and bytes in all. */
typedef void (*weft_model_progress)(void *self, uint64_t done, uint64_t total);
weft_status weft_model_open(const weft_gguf *gguf, weft_device *device, const weft_model_limits *limits,
                            weft_model_progress progress, void *progress_self, weft_model **out, weft_error *error);
/* What opening says of the file on a device that has all types and room enough; no weight is read. */
weft_status weft_model_judge(const weft_gguf *gguf, weft_error *error);
void weft_model_close(weft_model *model);
const weft_model_info *weft_model_get_info(const weft_model *model);

typedef struct weft_forward_args {
  const weft_batch *batch;
  const int32_t *token;   /* [n_rows], every source resolved */
  const int32_t *cells;   /* device; with cell_of: row r's token is cells[cell_of[r]] where that is not negative. */
  const int32_t *cell_of; /* [n_rows] or NULL; only where the device does not read host memory */
  const weft_kv_store *kv;
  const weft_kv_layout *layout;
  const float *const *soft;   /* [n_segments]: soft embedding [n_rows of the segment, n_hidden] of a canvas segment,
                                NULL: zero (its first step) */
  const uint32_t *output_row; /* rows wanted: causal ones before canvas ones, else in any order */
  uint32_t n_output;
  float *hidden;              /* [n_output, n_hidden] after the final norm; device memory */
  uint64_t n_experts_touched; /* out */
  /* For tests, else NULL: the residual stream, as input of layer 0 (layer == 0), then as output of each layer
   * (layer + 1). Device memory; in the last layer only the output rows are left. */
  void (*layer_probe)(void *self, uint32_t layer, const float *x, uint32_t n_rows);
  void *probe_self;
} weft_forward_args;
weft_status weft_model_forward(weft_model *model, weft_forward_args *args);

/* The output matrix, its soft cap, and the factor of embeddings (soft embeddings are scaled by it too). */
const weft_weight *weft_model_head(const weft_model *model, float *cap, float *embed_scale);

#ifdef __cplusplus
}
#endif
#endif
