/* SPDX-License-Identifier: MIT */
#include "model/weights_slice.h"

#include <inttypes.h>
#include <stddef.h>

#include "base/memory.h"
#include "model/shards.h"

/* How many shares of the key heads of a layer n shards have. */
static uint32_t count_key_shares(const model_hyper *hyper, uint32_t layer, uint32_t n) {
  return hyper->n_kv_heads[layer] < n ? hyper->n_kv_heads[layer] : n;
}

weft_status weights_slice_check(const weft_gguf *gguf, const model_hyper *hyper, uint32_t n, weft_error *error) {
  if (hyper->n_per_layer > 0)
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "%s: a model with embeddings per layer (of %" PRIu32
                     ") cannot be split by tensor; split it by layer",
                     weft_gguf_path(gguf), hyper->n_per_layer);
  for (uint32_t l = 0; l < hyper->n_layers; l++) {
    if (hyper->moe[l] && hyper->n_experts < n)
      return weft_fail(error, WEFT_E_INVALID,
                       "%s: %" PRIu32 " experts cannot be shared out to %" PRIu32
                       " devices; give fewer devices, or split by layer",
                       weft_gguf_path(gguf), hyper->n_experts, n);
    if (hyper->keys_of[l] != 0)
      return weft_fail(error, WEFT_E_UNSUPPORTED,
                       "%s: layer %" PRIu32
                       " reads the keys of another layer, so the model cannot be split by tensor; split it by layer",
                       weft_gguf_path(gguf), l);
    uint32_t n_kv = hyper->n_kv_heads[l], n_shares = count_key_shares(hyper, l, n);
    if (n_kv % n_shares != 0 || n % n_shares != 0 || hyper->n_heads % n != 0)
      return weft_fail(error, WEFT_E_INVALID,
                       "%s: the %" PRIu32 " heads and %" PRIu32 " key heads of layer %" PRIu32
                       " cannot be shared out evenly to %" PRIu32 " devices; give other devices, or split by layer",
                       weft_gguf_path(gguf), hyper->n_heads, n_kv, l, n);
  }
  return WEFT_OK;
}

weft_status weights_slice_heads(const weft_gguf *gguf, weft_model *model, weft_error *error) {
  model_hyper *hyper = &model->hyper;
  uint32_t n = model->n_shards;
  weft_status status = n == 1 ? WEFT_OK : weights_slice_check(gguf, hyper, n, error);
  if (n == 1 || status != WEFT_OK) return status;
  for (uint32_t l = 0; l < hyper->n_layers; l++) {
    hyper->n_kv_shares[l] = count_key_shares(hyper, l, n);
    hyper->n_kv_heads[l] /= hyper->n_kv_shares[l];
  }
  hyper->n_heads /= n;
  return WEFT_OK;
}

bool weights_tied_apart(const weights_loader *loader) {
  const model_part *part = loader->model->part;
  if (part[loader->model->n_parts - 1].device == part[0].device) return false;
  return weft_gguf_tensor_find(loader->gguf, "output.weight") == NULL;
}

/* Whether the head multiplies by the tensor. */
static bool is_of_head(const weights_loader *loader, const tensor_row *row) {
  bool tied = weft_gguf_tensor_find(loader->gguf, "output.weight") == NULL;
  size_t field = tied ? offsetof(model_globals, token_embd) : offsetof(model_globals, output);
  if (weights_tied_apart(loader)) field = offsetof(model_globals, tied_output);
  return row->kind == TENSOR_MATRIX && row->field == field;
}

bool weights_shard_has(const weights_loader *loader, const tensor_row *row) {
  const weft_model *model = loader->model;
  bool is_table = row->kind == TENSOR_MATRIX && row->dim[1] == DIM_VOCAB;
  if (model->shard == 0 || (model->has_head && is_of_head(loader, row))) return true;
  return is_table && model->token_ranges && model_shards_embeds(model);
}

weft_status weights_token_tables(weights_loader *loader) {
  weft_model *model = loader->model;
  const uint32_t n = model->hyper.n_vocab, first = model_first_token(model, model->shard);
  if (!model->token_ranges || !model_shards_embeds(model)) return WEFT_OK;
  int32_t *row = weft_alloc(n, sizeof *row);
  float *share = weft_alloc(n, sizeof *share);
  const float *rows = NULL;
  weft_status status = WEFT_OK;
  if (row == NULL || share == NULL)
    status = weft_fail(loader->error, WEFT_E_NO_MEMORY, "%s: out of memory", weft_gguf_path(loader->gguf));
  for (uint32_t i = 0; i < n && status == WEFT_OK; i++) {
    bool is_own = i >= first && i < model_first_token(model, model->shard + 1);
    row[i] = is_own ? (int32_t)(i - first) : 0;
    share[i] = is_own ? 1.0f : 0.0f;
  }
  weights_at_layer(loader, UINT32_MAX);
  if (status == WEFT_OK) status = weights_vector(loader, (const float *)(const void *)row, n, &rows);
  if (status == WEFT_OK) status = weights_vector(loader, share, n, &model->globals.own_share);
  model->globals.own_row = (const int32_t *)(const void *)rows;
  weft_free(row);
  weft_free(share);
  return status;
}

typedef struct range {
  uint64_t first, n;
} range;

/* The shard's one of n_shares equal shares of n. Where there are more shards than shares, several have the same. */
static range cut_shares(const weft_model *model, uint64_t n, uint32_t n_shares) {
  uint64_t own = n / n_shares;
  return (range){own * (model->shard * n_shares / model->n_shards), own};
}

/* An equal share of n. */
static weft_status cut_evenly(const weights_loader *loader, const weft_gguf_tensor *tensor, uint64_t n, range *out) {
  const weft_model *model = loader->model;
  if (n % model->n_shards != 0)
    return weft_fail(loader->error, WEFT_E_INVALID,
                     "%s: tensor '%s': %" PRIu64 " rows cannot be shared out evenly to %" PRIu32
                     " devices; give other devices, or split by layer",
                     weft_gguf_path(loader->gguf), tensor->name, n, model->n_shards);
  *out = cut_shares(model, n, model->n_shards);
  return WEFT_OK;
}

static range cut_experts(const weft_model *model) {
  uint32_t first = model_first_expert(model, model->shard);
  return (range){first, model_first_expert(model, model->shard + 1) - first};
}

/* The rows of the output matrix, or of the embedding, that stand for a shard's tokens; all of them where shard 0 has
 * these matrices, or rows of a step are shared out. */
static range cut_tokens(const weft_model *model) {
  uint32_t first = model_first_token(model, model->shard);
  bool has_all = model->shard == 0 && !model->token_ranges;
  if (has_all || model->hyper.diffusion) return (range){0, model->hyper.n_vocab};
  return (range){first, model_first_token(model, model->shard + 1) - first};
}

/* The shard's range of a matrix's rows; all of them where it is not cut. */
static weft_status cut_rows(const weights_loader *loader, const weft_gguf_tensor *tensor, tensor_dim dim,
                            uint32_t layer, range *out) {
  const model_hyper *hyper = &loader->model->hyper;
  bool is_cut = dim == DIM_Q || (!hyper->moe[layer] && (dim == DIM_FF || dim == DIM_DOWN));
  if (dim == DIM_KV) *out = cut_shares(loader->model, tensor->ne[1], hyper->n_kv_shares[layer]);
  return is_cut ? cut_evenly(loader, tensor, tensor->ne[1], out) : WEFT_OK;
}

static void cut_vector(const weft_model *model, const tensor_row *row, uint32_t layer, weights_slice *out) {
  range own = {0, out->n};
  if (row->dim[0] == DIM_Q || row->dim[0] == DIM_HEADS) own = cut_shares(model, out->n, model->n_shards);
  if (row->dim[0] == DIM_KV) own = cut_shares(model, out->n, model->hyper.n_kv_shares[layer]);
  if (row->dim[0] == DIM_EXPERTS && row->kind == TENSOR_SCALE) own = cut_experts(model);
  if (row->dim[1] == DIM_EXPERTS) {
    own = cut_experts(model);
    own.first *= out->n / model->hyper.n_experts;
    own.n *= out->n / model->hyper.n_experts;
  }
  out->first = own.first;
  out->n = own.n;
}

weft_status weights_slice_of(const weights_loader *loader, const weft_gguf_tensor *tensor, const tensor_row *row,
                             uint32_t layer, weights_slice *out) {
  const weft_model *model = loader->model;
  range rows = {0, tensor->ne[1]}, matrices = {0, tensor->ne[2]};
  *out = (weights_slice){.matrix = *tensor, .n = tensor->ne[0] * tensor->ne[1] * tensor->ne[2]};
  if (model->n_shards == 1 || (layer == UINT32_MAX && (row->kind != TENSOR_MATRIX || row->dim[1] != DIM_VOCAB)))
    return WEFT_OK;
  if (row->kind != TENSOR_MATRIX && row->kind != TENSOR_HEADS_MATRIX) {
    cut_vector(model, row, layer, out);
    return WEFT_OK;
  }
  weft_status status = WEFT_OK;
  if (layer == UINT32_MAX)
    rows = cut_tokens(model);
  else
    status = cut_rows(loader, tensor, row->dim[1], layer, &rows);
  if (row->dim[2] == DIM_EXPERTS) matrices = cut_experts(model);
  uint64_t row_bytes = weft_type_row_bytes(tensor->type, tensor->ne[0]);
  weft_gguf_tensor *own = &out->matrix;
  own->data = (const uint8_t *)tensor->data + (matrices.first * tensor->ne[1] + rows.first) * row_bytes;
  own->ne[1] = rows.n;
  own->ne[2] = matrices.n;
  own->n_bytes = matrices.n * rows.n * row_bytes;
  return status;
}
