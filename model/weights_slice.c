/* SPDX-License-Identifier: MIT */
#include "model/weights_slice.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { GRAIN_MAX = 32 };

weft_status weights_slice_heads(const weft_gguf *gguf, weft_model *model, weft_error *error) {
  model_hyper *hyper = &model->hyper;
  uint32_t n = model->n_shards;
  if (n == 1) return WEFT_OK;
  if (hyper->n_per_layer > 0)
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "%s: a model with embeddings per layer (of %" PRIu32
                     ") cannot be split by tensor; split it by layer",
                     weft_gguf_path(gguf), hyper->n_per_layer);
  for (uint32_t l = 0; l < hyper->n_layers; l++) {
    if (hyper->keys_of[l] != 0)
      return weft_fail(error, WEFT_E_UNSUPPORTED,
                       "%s: layer %" PRIu32
                       " reads the keys of another layer, so the model cannot be split by tensor; split it by layer",
                       weft_gguf_path(gguf), l);
    if (hyper->n_kv_heads[l] % n != 0 || hyper->n_heads % n != 0)
      return weft_fail(error, WEFT_E_INVALID,
                       "%s: the %" PRIu32 " heads and %" PRIu32 " key heads of layer %" PRIu32
                       " cannot be shared out evenly to %" PRIu32 " devices; give other devices, or split by layer",
                       weft_gguf_path(gguf), hyper->n_heads, hyper->n_kv_heads[l], l, n);
    hyper->n_kv_heads[l] /= n;
  }
  hyper->n_heads /= n;
  return WEFT_OK;
}

/* Columns that stay together: those of a block of the matrix that sums over them; of types without blocks as many as are
 * quick to read, where that leaves some for every shard. */
static uint64_t grain_of(const weights_loader *loader, const char *name, uint32_t layer, uint64_t n) {
  char full[96];
  (void)snprintf(full, sizeof full, "blk.%" PRIu32 ".%s.weight", layer, name);
  const weft_gguf_tensor *tensor = weft_gguf_tensor_find(loader->gguf, full);
  const weft_type_info *type = tensor == NULL ? NULL : weft_type_find((int32_t)tensor->type);
  uint64_t grain = type == NULL ? 1 : type->n_elements;
  while (grain < GRAIN_MAX && n % (2 * grain) == 0 && n / (2 * grain) >= loader->model->n_shards) grain *= 2;
  return grain;
}

/* Where the columns of a shard begin. */
static uint64_t cut_at(const weft_model *model, uint64_t n, uint64_t grain, uint32_t shard) {
  return n / grain * shard / model->n_shards * grain;
}

typedef struct range {
  uint64_t first, n;
} range;

static weft_status cut_heads(const weights_loader *loader, uint64_t n, range *out) {
  out->n = n / loader->model->n_shards;
  out->first = out->n * loader->model->shard;
  return WEFT_OK;
}

static weft_status cut_columns(const weights_loader *loader, const weft_gguf_tensor *tensor, const char *summed_by,
                               uint32_t layer, uint64_t n, range *out) {
  const weft_model *model = loader->model;
  uint64_t grain = grain_of(loader, summed_by, layer, n);
  if (n % grain != 0 || n / grain < model->n_shards)
    return weft_fail(loader->error, WEFT_E_UNSUPPORTED,
                     "%s: tensor '%s': %" PRIu64 " feed-forward columns in blocks of %" PRIu64
                     " cannot be shared out to %" PRIu32 " devices; split the model by layer",
                     weft_gguf_path(loader->gguf), tensor->name, n, grain, model->n_shards);
  out->first = cut_at(model, n, grain, model->shard);
  out->n = cut_at(model, n, grain, model->shard + 1) - out->first;
  return WEFT_OK;
}

/* The shard's range of a dimension of n; all of it where it is not cut. */
static weft_status cut_dim(const weights_loader *loader, const weft_gguf_tensor *tensor, tensor_dim dim, uint32_t layer,
                           uint64_t n, range *out) {
  *out = (range){0, n};
  switch (dim) {
    case DIM_Q:
    case DIM_KV:
      return cut_heads(loader, n, out);
    case DIM_FF:
      return cut_columns(loader, tensor, "ffn_down", layer, n, out);
    case DIM_EXPERT_FF:
      return cut_columns(loader, tensor, "ffn_down_exps", layer, n, out);
    case DIM_EXPERT_FF_TWICE:
      return cut_columns(loader, tensor, "ffn_down_exps", layer, n / 2, out);
    case DIM_NONE:
    case DIM_ONE:
    case DIM_HIDDEN:
    case DIM_VOCAB:
    case DIM_HEAD:
    case DIM_EXPERTS:
    case DIM_PER_LAYER:
    case DIM_PER_LAYER_ALL:
      break;
  }
  return WEFT_OK;
}

weft_status weights_slice_of(const weights_loader *loader, const weft_gguf_tensor *tensor, const tensor_row *row,
                             uint32_t layer, weights_slice *out) {
  range in = {0, tensor->ne[0]}, rows = {0, tensor->ne[1]};
  bool twice = row->dim[1] == DIM_EXPERT_FF_TWICE;
  *out = (weights_slice){.whole = true};
  if (loader->model->n_shards == 1 || layer == UINT32_MAX) return WEFT_OK;
  weft_status status = cut_dim(loader, tensor, row->dim[0], layer, tensor->ne[0], &in);
  if (status == WEFT_OK) status = cut_dim(loader, tensor, row->dim[1], layer, tensor->ne[1], &rows);
  if (status != WEFT_OK) return status;
  const weft_type_info *type = weft_type_find((int32_t)tensor->type);
  bool is_matrix = row->kind == TENSOR_MATRIX || row->kind == TENSOR_HEADS_MATRIX;
  if (is_matrix && (in.first % type->n_elements != 0 || in.n % type->n_elements != 0))
    return weft_fail(loader->error, WEFT_E_UNSUPPORTED,
                     "%s: tensor '%s': a row of %" PRIu64 " in blocks of %" PRIu32 " cannot be cut at %" PRIu64
                     "; split the model by layer",
                     weft_gguf_path(loader->gguf), tensor->name, tensor->ne[0], (uint32_t)type->n_elements,
                     in.first > 0 ? in.first : in.n);
  *out = (weights_slice){.whole = in.n == tensor->ne[0] && rows.n == tensor->ne[1],
                         .first_in = in.first,
                         .n_in = in.n,
                         .first_out = {rows.first, tensor->ne[1] / 2 + rows.first},
                         .n_out = rows.n,
                         .n_ranges = twice ? 2 : 1};
  return WEFT_OK;
}

void weights_slice_copy(const weft_gguf_tensor *tensor, const weights_slice *slice, const uint8_t *bytes,
                        uint8_t *out) {
  uint64_t row_bytes = weft_type_row_bytes(tensor->type, tensor->ne[0]);
  uint64_t n = weft_type_row_bytes(tensor->type, slice->n_in),
           skip = weft_type_row_bytes(tensor->type, slice->first_in);
  for (uint64_t m = 0; m < tensor->ne[2]; m++) {
    const uint8_t *matrix = bytes + m * tensor->ne[1] * row_bytes;
    for (uint64_t r = 0; r < slice->n_ranges; r++) {
      const uint8_t *from = matrix + slice->first_out[r] * row_bytes + skip;
      for (uint64_t i = 0; i < slice->n_out; i++, out += n, from += row_bytes) memcpy(out, from, n);
    }
  }
}
