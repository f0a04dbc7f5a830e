/* SPDX-License-Identifier: MIT */
#include "model/weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "base/memory_room.h"
#include "kernels/canvas_head.h"
#include "kernels/share.h"
#include "model/eight_bits.h"
#include "model/split_plan.h"
#include "model/weights_slice.h"

/* Of latent rows, the stream of several parts, and heads of drafters. */
static uint64_t rare_dim_value(const model_hyper *hyper, tensor_dim dim, uint32_t l) {
  const model_latent *latent = &hyper->latent;
  const uint64_t n = latent->n_streams, wide = latent->ratio[l] == MODEL_LATENT_OVERLAPS ? 2 : 1;
  if (dim == DIM_STREAM) return n * hyper->n_hidden;
  if (dim == DIM_PARTS) return n;
  if (dim == DIM_MIXES) return n * (2 + n);
  if (dim == DIM_MIX_SCALES) return 3;
  if (dim == DIM_Q_RANK) return latent->q_rank;
  if (dim == DIM_GROUP_HEADS) return (uint64_t)hyper->n_heads / latent->n_groups * hyper->head_dim[l];
  if (dim == DIM_GROUPS_RANK) return (uint64_t)latent->n_groups * latent->out_rank;
  if (dim == DIM_RATIO) return latent->ratio[l];
  if (dim == DIM_PENDING) return wide * hyper->head_dim[l];
  if (dim == DIM_PENDING_INDEX) return wide * latent->index_dim;
  if (dim == DIM_INDEX) return latent->index_dim;
  if (dim == DIM_INDEX_HEADS) return latent->n_index_heads;
  if (dim == DIM_INDEX_Q) return (uint64_t)latent->n_index_heads * latent->index_dim;
  if (dim == DIM_ENGRAM) return latent->engram.dim;
  if (dim == DIM_ENGRAM_ROWS) return latent->engram.n_rows[model_engram_index(&latent->engram, l)];
  if (dim == DIM_ENGRAM_READ) return (uint64_t)model_engram_reads(&latent->engram) * latent->engram.dim;
  if (dim == DIM_ENGRAM_KEYS) return (n + 1) * hyper->n_hidden;
  if (dim == DIM_MLA_RANK) return hyper->mla.rank;
  if (dim == DIM_MLA_QUERY) return (uint64_t)hyper->n_heads * hyper->mla.n_query;
  if (dim == DIM_MLA_STILL) return hyper->mla.n_still;
  if (dim == DIM_MLA_VALUE) return hyper->mla.n_value;
  if (dim == DIM_MLA_VALUES) return (uint64_t)hyper->n_heads * hyper->mla.n_value;
  if (dim == DIM_DRAFT_GROUPS) return hyper->draft.n_groups;
  if (dim == DIM_DRAFT_RANK) return hyper->draft.rank;
  return hyper->n_experts_used; /* DIM_EXPERTS_USED */
}

/* As the file has it: heads of all shards. */
static uint64_t dim_value(const weft_model *model, tensor_dim dim, uint32_t layer) {
  const model_hyper *hyper = &model->hyper;
  const model_delta *delta = &hyper->delta;
  uint32_t l = layer == UINT32_MAX ? 0 : layer;
  switch (dim) {
    case DIM_NONE:
    case DIM_ONE:
      return 1;
    case DIM_HIDDEN:
    case DIM_DOWN:
      return hyper->n_hidden;
    case DIM_VOCAB:
      return hyper->n_vocab;
    case DIM_Q:
      return (uint64_t)hyper->n_heads * hyper->head_dim[l] * model->n_shards;
    case DIM_HEADS:
      return (uint64_t)hyper->n_heads * model->n_shards;
    case DIM_KV:
      return (uint64_t)hyper->n_kv_heads[l] * hyper->head_dim[l] * hyper->n_kv_shares[l];
    case DIM_HEAD:
      return hyper->head_dim[l];
    case DIM_FF:
      return hyper->n_ff[l];
    case DIM_EXPERTS:
      return hyper->n_experts;
    case DIM_EXPERT_FF:
      return hyper->n_expert_ff;
    case DIM_EXPERT_FF_TWICE:
      return 2 * (uint64_t)hyper->n_expert_ff;
    case DIM_Q_TWICE:
      return 2 * dim_value(model, DIM_Q, layer);
    case DIM_DELTA_CHANNELS:
      return (2ull * delta->n_k_heads + delta->n_v_heads) * delta->dim;
    case DIM_DELTA_VALUES:
      return (uint64_t)delta->n_v_heads * delta->dim;
    case DIM_DELTA_HEADS:
      return delta->n_v_heads;
    case DIM_DELTA_HEAD:
      return delta->dim;
    case DIM_DELTA_TAPS:
      return WEFT_DELTA_TAPS;
    case DIM_TARGET:
      return hyper->n_target;
    case DIM_TARGET_TWICE:
      return 2 * (uint64_t)hyper->n_target;
    case DIM_PER_LAYER:
      return hyper->n_per_layer;
    case DIM_PER_LAYER_ALL:
      return (uint64_t)hyper->n_per_layer * hyper->n_layers;
    default:
      return rare_dim_value(hyper, dim, l);
  }
}

static weft_status check_shape(weights_loader *loader, const weft_gguf_tensor *tensor, const uint64_t wanted[3]) {
  const uint64_t *ne = tensor->ne;
  if (ne[0] == wanted[0] && ne[1] == wanted[1] && ne[2] == wanted[2] && ne[3] == 1) return WEFT_OK;
  return weft_fail(loader->error, WEFT_E_FORMAT,
                   "%s: tensor '%s' has shape %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64 "; expected %" PRIu64
                   " x %" PRIu64 " x %" PRIu64 " x 1",
                   weft_gguf_path(loader->gguf), tensor->name, ne[0], ne[1], ne[2], ne[3], wanted[0], wanted[1],
                   wanted[2]);
}

static weft_status fail_no_memory(const weights_loader *loader, const weft_gguf_tensor *tensor) {
  return weft_fail(loader->error, WEFT_E_NO_MEMORY, "%s: tensor '%s': out of memory", weft_gguf_path(loader->gguf),
                   tensor->name);
}

/* The bytes of a tensor, valid until the next call: read from the file, or where they lie in the mapping. */
static weft_status fetch_bytes(weights_loader *loader, const weft_gguf_tensor *tensor, const uint8_t **out) {
  *out = tensor->data;
  if (loader->reader == NULL) return WEFT_OK;
  uint64_t wanted = tensor->n_bytes + 2 * (uint64_t)WEFT_READ_ALIGN;
  uint32_t skip = 0;
  if (wanted > loader->n_buffer) {
    weft_free(loader->buffer);
    loader->buffer = weft_alloc_aligned((size_t)wanted, WEFT_READ_ALIGN);
    loader->n_buffer = loader->buffer != NULL ? wanted : 0;
    if (loader->buffer == NULL) return fail_no_memory(loader, tensor);
  }
  weft_weight_source source = gguf_reader_source(loader->reader, tensor);
  weft_status status = source.read(source.self, 0, tensor->n_bytes, loader->buffer, &skip);
  *out = loader->buffer + skip;
  return status == WEFT_OK ? status : weft_fail(loader->error, status, "%s", gguf_reader_error(loader->reader));
}

static void mark_used(weights_loader *loader, const weft_gguf_tensor *tensor) {
  uint8_t *used = &loader->used[tensor - weft_gguf_tensor_at(loader->gguf, 0)];
  if (*used != 0) return;
  *used = 1;
  loader->n_bytes_done += tensor->n_bytes;
  if (loader->progress != NULL && !loader->judging) {
    uint64_t before = loader->model->shard * loader->n_bytes_all;
    loader->progress(loader->progress_self, before + loader->n_bytes_done,
                     loader->model->n_shards * loader->n_bytes_all);
  }
}

/* ---- placing ---- */

/* Where row i of a head goes, so that the rows that rotate together are half a head apart. */
static uint32_t find_row(const model_hyper *hyper, uint32_t i, uint32_t head_dim) {
  uint32_t half = head_dim / 2, low = hyper->n_rotated / 2;
  if (hyper->rope_paired) return i % 2 * half + i / 2;
  if (hyper->n_rotated == 0 || i < low) return i;
  if (i < 2 * low) return half + i - low;
  return i - low < half ? i - low : i; /* those that do not rotate, which stay in order */
}

static bool moves_rows(const model_hyper *hyper) {
  return hyper->rope_paired || hyper->n_rotated != 0;
}

/* Rows of the tensor in the order in which the device gets them; NULL: no memory. */
static uint8_t *reorder_rows(const model_hyper *hyper, const uint8_t *bytes, uint64_t n_bytes, uint64_t n_rows,
                             uint32_t head_dim) {
  uint64_t row_bytes = n_bytes / n_rows;
  uint8_t *rows = weft_alloc((size_t)n_bytes, 1);
  for (uint64_t r = 0; rows != NULL && r < n_rows; r++) {
    uint64_t to = r / head_dim * head_dim + find_row(hyper, (uint32_t)(r % head_dim), head_dim);
    memcpy(rows + to * row_bytes, bytes + r * row_bytes, row_bytes);
  }
  return rows;
}

static weft_status check_supported(const weights_loader *loader, const weft_gguf_tensor *tensor) {
  weft_device *device = loader->part->device;
  if (device == NULL || weft_device_kernels(device)->supports(device, tensor->type)) return WEFT_OK;
  return weft_fail(loader->error, WEFT_E_UNSUPPORTED,
                   "%s: tensor '%s' has type %s, which the %s backend cannot multiply; use another file or backend",
                   weft_gguf_path(loader->gguf), tensor->name, weft_type_name_of_id((int32_t)tensor->type),
                   weft_device_get_info(device)->backend);
}

/* Who places what lies on the part's device. */
static weft_device *placer_of(const weft_model *model, const model_part *part) {
  return model->limits.placer != NULL ? model->limits.placer : part->device;
}

static void count_bytes(weights_loader *loader, uint64_t n_bytes) {
  weft_model_info *info = &loader->model->info;
  info->weight_bytes += n_bytes;
  info->part[model_place_of(loader->model, loader->part)].weight_bytes += n_bytes;
}

/* For the line of a device that has no room: what its weights need, experts that may stay in host memory left out. */
static const char *tell_room(const weights_loader *loader, weft_status status, char out[WEFT_SPLIT_ROOM_MAX + 100]) {
  char room[WEFT_SPLIT_ROOM_MAX];
  out[0] = 0;
  if (status != WEFT_E_NO_MEMORY) return out;
  if (loader->model->limits.placer != NULL) {
    (void)snprintf(out, WEFT_SPLIT_ROOM_MAX + 100, "; raise --models-mib, or take fewer bits");
    return out;
  }
  (void)snprintf(out, WEFT_SPLIT_ROOM_MAX + 100,
                 " (%s for weights); raise --device-mib, share layers out (--split-ratio) or take fewer bits",
                 weft_split_tell_room(&loader->model->split, loader->needed, loader->left, room));
  return out;
}

/* Whether a tensor lies on the device as integers too, where the device keeps them. */
static bool has_integers(const weights_loader *loader, const weft_gguf_tensor *tensor) {
  return weft_split_has_integers(&loader->model->split, tensor->name);
}

static weft_status place_source(weights_loader *loader, const weft_gguf_tensor *tensor,
                                const weft_weight_source *source, unsigned uses, weft_weight *weight) {
  weft_error inner = {{0}};
  model_part *part = loader->part;
  weft_device *placer = placer_of(loader->model, part);
  bool leaves_out = weft_device_get_info(placer)->integers && !has_integers(loader, tensor);
  if (leaves_out) (void)weft_device_keep_integers(placer, false);
  weft_status status = weft_device_weight_read(placer, weight, source, uses, &inner);
  if (leaves_out) (void)weft_device_keep_integers(placer, true);
  const char *why = gguf_reader_error(loader->reader);
  if (status == WEFT_E_IO && why[0] != 0) return weft_fail(loader->error, status, "%s", why);
  if (status != WEFT_OK) {
    char where[48], room[WEFT_SPLIT_ROOM_MAX + 100];
    return weft_fail(loader->error, status, "%s: tensor '%s'%s: %.100s%s", weft_gguf_path(loader->gguf), tensor->name,
                     model_where(loader->model, part, where),
                     inner.text[0] != 0 ? inner.text : weft_status_text(status), tell_room(loader, status, room));
  }
  WEFT_CHECK(part->n_weights < part->owned_max);
  part->weights[part->n_weights++] = *weight;
  count_bytes(loader, weight->n_bytes);
  return WEFT_OK;
}

/* ---- the shelf ---- */

static bool finds_on_shelf(const weights_loader *loader) {
  const weft_shelf *shelf = loader->model->limits.shelf;
  return shelf != NULL && shelf->find != NULL;
}

/* What the owner placed is used only where this device would have made the same of the file. */
static weft_status find_matrix(weights_loader *loader, const weft_gguf_tensor *tensor, unsigned uses,
                               weft_weight *out) {
  const weft_shelf *shelf = loader->model->limits.shelf;
  const weft_shelf_weight *found = NULL;
  const void *data = NULL;
  weft_error inner = {{0}};
  weft_status status = weft_share_expect(loader->part->device, out, uses, &inner);
  uint32_t place = model_place_of(loader->model, loader->part);
  if (status == WEFT_OK) status = shelf->find(shelf->self, tensor->name, uses, place, &found, &data, &inner);
  if (status != WEFT_OK)
    return weft_fail(loader->error, status, "%s: tensor '%s': %.300s", weft_gguf_path(loader->gguf), tensor->name,
                     inner.text);
  bool same = found->type == out->type && found->layout == out->layout && found->n_in == out->n_in &&
              found->n_out == out->n_out && found->n_mats == out->n_mats && found->n_bytes == out->n_bytes;
  if (!same)
    return weft_fail(loader->error, WEFT_E_FORMAT,
                     "%s: tensor '%s' lies in another layout with the owner of the weights (%s, layout %u, %" PRIu64
                     " bytes) than this process needs (%s, layout %u, %" PRIu64
                     " bytes): give both the same options, or leave out --weights",
                     weft_gguf_path(loader->gguf), tensor->name, weft_type_name_of_id((int32_t)found->type),
                     found->layout, found->n_bytes, weft_type_name_of_id((int32_t)out->type), out->layout,
                     out->n_bytes);
  out->data = data; /* not the device's, so it is not among the part's weights */
  count_bytes(loader, out->n_bytes);
  return WEFT_OK;
}

static weft_status put_matrix(weights_loader *loader, const weft_gguf_tensor *tensor, unsigned uses,
                              const weft_weight *weight) {
  const weft_shelf *shelf = loader->model->limits.shelf;
  if (shelf == NULL || shelf->put == NULL) return WEFT_OK;
  weft_shelf_weight kept = {.uses = uses,
                            .place = model_place_of(loader->model, loader->part),
                            .type = weight->type,
                            .layout = weight->layout,
                            .n_in = weight->n_in,
                            .n_out = weight->n_out,
                            .n_mats = weight->n_mats,
                            .n_bytes = weight->n_bytes};
  int n = snprintf(kept.name, sizeof kept.name, "%s", tensor->name);
  bool lies = weft_share_find(loader->part->device, weight->data, &kept.piece, &kept.at);
  if (!lies || n < 0 || (size_t)n >= sizeof kept.name)
    return weft_fail(loader->error, WEFT_E_UNSUPPORTED, "%s: tensor '%s' cannot be handed over: %s",
                     weft_gguf_path(loader->gguf), tensor->name, lies ? "its name is too long" : "it lies elsewhere");
  weft_status status = shelf->put(shelf->self, &kept);
  return status == WEFT_OK ? WEFT_OK : fail_no_memory(loader, tensor);
}

/* A plan has the bytes and the layout that the device will make of the matrix. */
static weft_status plan_matrix(weights_loader *loader, const weft_gguf_tensor *tensor, unsigned uses,
                               weft_weight *out) {
  weft_error inner = {{0}};
  weft_status status = check_supported(loader, tensor);
  if (status != WEFT_OK || !loader->planning) return status;
  status = weft_share_expect(loader->part->device, out, uses, &inner);
  out->data = tensor->data; /* that there is one */
  if (status == WEFT_OK) count_bytes(loader, out->n_bytes);
  return status == WEFT_OK ? status
                           : weft_fail(loader->error, status, "%s: tensor '%s': %.300s", weft_gguf_path(loader->gguf),
                                       tensor->name, inner.text);
}

/* bytes NULL: those of the file. */
static weft_status place_matrix(weights_loader *loader, const weft_gguf_tensor *tensor, const uint8_t *bytes,
                                unsigned uses, weft_weight *out) {
  weft_device *device = loader->part->device;
  weft_weight_source source = {.bytes = bytes};
  *out = (weft_weight){
      .type = tensor->type,
      .n_in = (uint32_t)tensor->ne[0],
      .n_out = (uint32_t)tensor->ne[1],
      .n_mats = (uint32_t)tensor->ne[2],
  };
  if (loader->judging) {
    weft_type held_as = weft_type_find((int32_t)tensor->type)->held_as;
    uint64_t n_integers = weft_split_integers(device, out, uses, has_integers(loader, tensor));
    uint64_t n_bytes = weft_type_row_bytes(held_as, tensor->ne[0]) * tensor->ne[1] * tensor->ne[2] + n_integers;
    bool on_card = device != NULL && !weft_device_get_info(device)->host_memory;
    bool may_stream = (uses & WEFT_USE_EXPERTS) != 0 && on_card && n_integers == 0;
    bool on_host = (uses & WEFT_USE_TABLE) != 0 && device != NULL && weft_device_reads_host_tables(device);
    loader->n_bytes_held += n_bytes;
    if (!on_host)
      (may_stream ? loader->experts : loader->needed)[model_place_of(loader->model, loader->part)] += n_bytes;
    out->data = tensor->data;
    return plan_matrix(loader, tensor, uses, out);
  }
  if (finds_on_shelf(loader)) return find_matrix(loader, tensor, uses, out);
  weft_status status = WEFT_OK;
  if (bytes == NULL && weft_device_get_info(device)->host_memory) {
    const uint8_t *stored;
    status = fetch_bytes(loader, tensor, &stored);
    source.bytes = stored;
  } else if (bytes == NULL) {
    source = gguf_reader_source(loader->reader, tensor);
  }
  if (status == WEFT_OK) status = place_source(loader, tensor, &source, uses, out);
  return status == WEFT_OK ? put_matrix(loader, tensor, uses, out) : status;
}

static weft_status read_values(weights_loader *loader, const weft_gguf_tensor *tensor, uint64_t n, float *out) {
  const uint8_t *bytes;
  if (loader->judging) {
    for (uint64_t i = 0; i < n; i++) out[i] = 1.0f;
    return WEFT_OK;
  }
  weft_status status = fetch_bytes(loader, tensor, &bytes);
  if (status == WEFT_OK) weft_dequantise_row(tensor->type, bytes, out, n);
  return status;
}

weft_status weights_vector(weights_loader *loader, const float *values, uint64_t n, const float **out) {
  static const float judged;
  model_part *part = loader->part;
  *out = &judged;
  if (loader->judging) {
    loader->needed[model_place_of(loader->model, part)] += n * sizeof *values;
    if (loader->planning) count_bytes(loader, n * sizeof *values);
    return WEFT_OK;
  }
  WEFT_CHECK(part->n_owned < part->owned_max);
  void *memory = NULL;
  weft_device *placer = placer_of(loader->model, loader->part);
  weft_status status = weft_device_alloc(placer, n * sizeof *values, &memory);
  if (status != WEFT_OK) {
    char where[48], room[WEFT_SPLIT_ROOM_MAX + 100];
    return weft_fail(loader->error, status, "%s: there is no room for the weights%s%s", weft_gguf_path(loader->gguf),
                     model_where(loader->model, part, where), tell_room(loader, status, room));
  }
  part->owned[part->n_owned++] = memory;
  count_bytes(loader, n * sizeof *values);
  *out = memory;
  status = weft_device_upload(placer, memory, values, n * sizeof *values);
  return status == WEFT_OK
             ? WEFT_OK
             : weft_fail(loader->error, status, "%s: the device refused an upload", weft_gguf_path(loader->gguf));
}

/* With head_dim, elements change places as rows of a matrix of heads that rotate do. They are made floats first: an
 * element of a quantised type has no bytes of its own that could be moved. */
static weft_status place_vector(weights_loader *loader, const weft_gguf_tensor *tensor, const weights_slice *slice,
                                uint32_t head_dim, const float **out) {
  uint64_t n = tensor->ne[0] * tensor->ne[1] * tensor->ne[2];
  float *values = weft_alloc((size_t)n, sizeof *values), *ordered = NULL;
  weft_status status = values != NULL ? read_values(loader, tensor, n, values) : fail_no_memory(loader, tensor);
  if (status == WEFT_OK && head_dim > 0) {
    ordered =
        (float *)(void *)reorder_rows(&loader->model->hyper, (const uint8_t *)values, n * sizeof *values, n, head_dim);
    if (ordered == NULL) status = fail_no_memory(loader, tensor);
  }
  const float *from = head_dim > 0 ? ordered : values;
  if (status == WEFT_OK) status = weights_vector(loader, from + slice->first, slice->n, out);
  weft_free(ordered);
  weft_free(values);
  return status;
}

static weft_status place_ordered_matrix(weights_loader *loader, const weft_gguf_tensor *tensor, uint32_t head_dim,
                                        unsigned uses, weft_weight *out) {
  const uint8_t *bytes;
  if (loader->judging || finds_on_shelf(loader)) return place_matrix(loader, tensor, NULL, uses, out);
  weft_status status = fetch_bytes(loader, tensor, &bytes);
  if (status != WEFT_OK) return status;
  uint8_t *rows = reorder_rows(&loader->model->hyper, bytes, tensor->n_bytes, tensor->ne[1], head_dim);
  status = rows == NULL ? fail_no_memory(loader, tensor) : place_matrix(loader, tensor, rows, uses, out);
  weft_free(rows);
  return status;
}

/* Every second run of head_dim rows, those that rotate in the order of the device. */
static weft_status place_halves(weights_loader *loader, const weft_gguf_tensor *tensor, const tensor_row *row,
                                uint32_t head_dim, weft_weight *out) {
  const model_hyper *hyper = &loader->model->hyper;
  bool rotates = row->kind == TENSOR_FIRST_HALVES;
  uint64_t n_rows = tensor->ne[1] / 2, row_bytes = tensor->n_bytes / tensor->ne[1];
  const uint8_t *bytes;
  weft_gguf_tensor half = *tensor;
  half.ne[1] = n_rows;
  half.n_bytes = n_rows * row_bytes;
  if (loader->judging) return place_matrix(loader, &half, NULL, row->uses, out);
  weft_status status = fetch_bytes(loader, tensor, &bytes);
  if (status != WEFT_OK) return status;
  uint8_t *rows = weft_alloc((size_t)half.n_bytes, 1);
  if (rows == NULL) return fail_no_memory(loader, tensor);
  for (uint64_t r = 0; r < n_rows; r++) {
    uint64_t head = r / head_dim, i = r % head_dim, from = (2 * head + !rotates) * head_dim + i;
    uint64_t to = head * head_dim + (rotates ? find_row(hyper, (uint32_t)i, head_dim) : i);
    memcpy(rows + to * row_bytes, bytes + from * row_bytes, row_bytes);
  }
  status = place_matrix(loader, &half, rows, row->uses, out);
  weft_free(rows);
  return status;
}

/* Each part has a name of its own, by which other processes find it. */
static weft_status place_groups(weights_loader *loader, const weft_gguf_tensor *tensor, unsigned uses,
                                weft_weight *out) {
  const uint32_t n = loader->model->hyper.latent.n_groups;
  const uint8_t *bytes = NULL;
  char name[160];
  weft_gguf_tensor part = *tensor;
  part.name = name;
  part.ne[1] = tensor->ne[1] / n;
  part.n_bytes = tensor->n_bytes / n;
  weft_status status = loader->judging || finds_on_shelf(loader) ? WEFT_OK : fetch_bytes(loader, tensor, &bytes);
  for (uint32_t g = 0; g < n && status == WEFT_OK; g++) {
    (void)snprintf(name, sizeof name, "%.140s/%" PRIu32, tensor->name, g);
    status = place_matrix(loader, &part, bytes == NULL ? NULL : bytes + g * part.n_bytes, uses, &out[g]);
  }
  return status;
}

static weft_status place_ids(weights_loader *loader, const weft_gguf_tensor *tensor, tensor_kind kind,
                             const int32_t **out) {
  const bool experts = kind == TENSOR_EXPERT_IDS;
  const uint32_t n_all = experts ? loader->model->hyper.n_experts : loader->model->hyper.n_vocab;
  const uint64_t n = tensor->ne[0] * tensor->ne[1];
  const uint8_t *bytes;
  const float *placed = NULL;
  static const int32_t judged;
  *out = &judged;
  if (loader->judging) return weights_vector(loader, NULL, n, &placed);
  weft_status status = fetch_bytes(loader, tensor, &bytes);
  if (status != WEFT_OK) return status;
  int32_t *ids = weft_alloc(n, sizeof *ids);
  if (ids == NULL) return fail_no_memory(loader, tensor);
  memcpy(ids, bytes, n * sizeof *ids);
  for (uint64_t i = 0; i < n && status == WEFT_OK; i++) {
    if ((uint32_t)ids[i] < n_all) continue;
    status = weft_fail(loader->error, WEFT_E_FORMAT, "%s: tensor '%s' names %s %d %s %" PRIu64 "; there are %" PRIu32,
                       weft_gguf_path(loader->gguf), tensor->name, experts ? "expert" : "token", ids[i],
                       experts ? "of token" : "at place", experts ? i / tensor->ne[0] : i, n_all);
  }
  if (status == WEFT_OK) status = weights_vector(loader, (const float *)(const void *)ids, n, &placed);
  *out = (const int32_t *)(const void *)placed;
  weft_free(ids);
  return status;
}

static bool holds_ids(const tensor_row *row) {
  return row->kind == TENSOR_EXPERT_IDS || row->kind == TENSOR_TOKENS;
}

static weft_status place_heads(weights_loader *loader, const weft_gguf_tensor *tensor, const tensor_row *row,
                               const weights_slice *slice, uint32_t layer, void *field) {
  const model_hyper *hyper = &loader->model->hyper;
  uint32_t head_dim = hyper->head_dim[layer];
  if (row->kind == TENSOR_HEADS_MATRIX) {
    return moves_rows(hyper) ? place_ordered_matrix(loader, &slice->matrix, head_dim, row->uses, field)
                             : place_matrix(loader, &slice->matrix, NULL, row->uses, field);
  }
  return place_vector(loader, tensor, slice, moves_rows(hyper) ? head_dim : 0, field);
}

/* The output matrix of a model with canvases has a form for their rows (kernels/canvas_head.h). */
static unsigned uses_of(const weights_loader *loader, const tensor_row *row) {
  bool ends = loader->part == model_last_part(loader->model) && strcmp(row->name, "token_embd.weight") == 0;
  bool eight = ends && loader->model->hyper.diffusion && weft_eight_bits_head(loader->gguf);
  return row->uses | (eight ? WEFT_USE_CANVASES : 0u);
}

static weft_status place_tensor(weights_loader *loader, const weft_gguf_tensor *tensor, const tensor_row *row,
                                uint32_t layer, void *into) {
  void *field = (char *)into + row->field;
  weights_slice slice;
  weft_status status = weights_slice_of(loader, tensor, row, layer, &slice);
  if (status != WEFT_OK) return status;
  if (row->kind == TENSOR_HEADS_MATRIX || row->kind == TENSOR_HEADS_VECTOR)
    return place_heads(loader, tensor, row, &slice, layer, field);
  if (row->kind == TENSOR_FIRST_HALVES || row->kind == TENSOR_SECOND_HALVES)
    return place_halves(loader, tensor, row, loader->model->hyper.head_dim[layer], field);
  if (row->kind == TENSOR_GROUPS) return place_groups(loader, tensor, row->uses, field);
  if (holds_ids(row)) return place_ids(loader, tensor, row->kind, field);
  if (row->kind == TENSOR_MATRIX) return place_matrix(loader, &slice.matrix, NULL, uses_of(loader, row), field);
  if (row->kind == TENSOR_VECTOR) return place_vector(loader, tensor, &slice, 0, field);
  if (row->kind == TENSOR_SCALE) return place_vector(loader, tensor, &slice, 0, &((weft_weight *)field)->scale);
  return read_values(loader, tensor, 1, field);
}

/* ---- rows ---- */

static void row_name(const char *pattern, uint32_t layer, char *out, size_t size) {
  const char *mark = strstr(pattern, "%u");
  if (mark == NULL) {
    (void)snprintf(out, size, "%s", pattern);
  } else {
    (void)snprintf(out, size, "%.*s%" PRIu32 "%s", (int)(mark - pattern), pattern, layer, mark + 2);
  }
}

static const weft_gguf_tensor *find_tensor(const weights_loader *loader, const tensor_row *row, uint32_t layer,
                                           char *name, size_t size) {
  if (layer != UINT32_MAX) layer += loader->model->hyper.first_in_file;
  if (row->alias != NULL) {
    row_name(row->alias, layer, name, size);
    const weft_gguf_tensor *tensor = weft_gguf_tensor_find(loader->gguf, name);
    if (tensor != NULL) return tensor;
  }
  row_name(row->name, layer, name, size);
  return weft_gguf_tensor_find(loader->gguf, name);
}

static bool is_read(const weights_loader *loader, tensor_need need, uint32_t layer) {
  const model_hyper *hyper = &loader->model->hyper;
  if (need == NEED_TIED) return weights_tied_apart(loader);
  if (layer == UINT32_MAX) return true;
  if (need == NEED_MOE || need == NEED_MOE_NEVER) return hyper->moe[layer];
  if (need == NEED_DELTA || need == NEED_ATTENTION) return hyper->delta.layer[layer] == (need == NEED_DELTA);
  if (need == NEED_FAR) return hyper->latent.ratio[layer] > 0;
  if (need == NEED_INDEX) return hyper->latent.ratio[layer] == MODEL_LATENT_OVERLAPS;
  if (need == NEED_HASHED || need == NEED_CHOICE) return (layer < hyper->latent.n_hashed) == (need == NEED_HASHED);
  if (need == NEED_SOURCE) return hyper->latent.source[layer] == layer + 1;
  if (need == NEED_POOLED) return model_latent_has(&hyper->latent, layer, WEFT_LATENT_PENDING);
  if (need == NEED_CHOOSES) return hyper->latent.chooses[layer];
  if (need == NEED_ENGRAM) return model_engram_index(&hyper->latent.engram, layer) < hyper->latent.engram.n_layers;
  return need != NEED_DENSE || !hyper->moe[layer];
}

/* Keys and values of a layer that reads another's: files may have them, and nothing uses them. */
static bool is_spare(const model_hyper *hyper, tensor_need need, uint32_t layer) {
  return (need == NEED_KEYS || need == NEED_VALUES) && hyper->keys_of[layer] != 0;
}

static bool is_needed(const model_hyper *hyper, tensor_need need, uint32_t layer) {
  switch (need) {
    case NEED_ALWAYS:
    case NEED_TIED:
    case NEED_DELTA:
    case NEED_ATTENTION:
    case NEED_FAR:
    case NEED_INDEX:
    case NEED_HASHED:
    case NEED_CHOICE:
    case NEED_SOURCE:
    case NEED_POOLED:
    case NEED_CHOOSES:
    case NEED_ENGRAM:
      return true;
    case NEED_MOE:
      return hyper->moe[layer];
    case NEED_DENSE:
      return !hyper->moe[layer];
    case NEED_KEYS:
      return hyper->keys_of[layer] == 0;
    case NEED_VALUES:
      return hyper->keys_of[layer] == 0 && hyper->window[layer] > 0;
    case NEED_NEVER:
    case NEED_MOE_NEVER:
      break;
  }
  return false;
}

/* Whether the tensor is a scale of a matrix that the file does not have: then nothing asks for it. */
static bool is_scale_of_none(const weights_loader *loader, const tensor_row *row, const weft_gguf_tensor *tensor) {
  char name[128];
  if (row->kind != TENSOR_SCALE && row->kind != TENSOR_INPUT_SCALE) return false;
  (void)snprintf(name, sizeof name, "%.*s.weight", (int)(strrchr(tensor->name, '.') - tensor->name), tensor->name);
  return weft_gguf_tensor_find(loader->gguf, name) == NULL;
}

/* What is judged and not placed. */
static bool is_passed_over(const weights_loader *loader, const tensor_row *row, uint32_t layer, const char *into) {
  const weft_model *model = loader->model;
  const model_hyper *hyper = &model->hyper;
  if (layer == UINT32_MAX && !weights_shard_has(loader, row)) return true;
  if (row->kind == TENSOR_INPUT_SCALE || is_spare(hyper, row->need, layer)) return true;
  return row->kind == TENSOR_SCALE && ((const weft_weight *)(const void *)(into + row->field))->data == NULL;
}

/* A table of experts or tokens is of whole numbers, which nothing else is. */
static weft_status check_type(const weights_loader *loader, const weft_gguf_tensor *tensor, const tensor_row *row) {
  enum { TYPE_ID_I32 = 26 };
  if (!holds_ids(row)) return weft_gguf_check_type(loader->gguf, tensor, loader->error);
  if (tensor->type_id == TYPE_ID_I32) return WEFT_OK;
  return weft_fail(loader->error, WEFT_E_UNSUPPORTED, "%s: tensor '%s' has type %s; a table of %s is of type I32",
                   weft_gguf_path(loader->gguf), tensor->name, weft_type_name_of_id((int32_t)tensor->type_id),
                   row->kind == TENSOR_TOKENS ? "tokens" : "experts");
}

static weft_status load_row(weights_loader *loader, const tensor_row *row, uint32_t layer, void *into) {
  const model_hyper *hyper = &loader->model->hyper;
  char name[128];
  if (!is_read(loader, row->need, layer)) return WEFT_OK;
  weights_at_layer(loader, row->at_end ? loader->model->hyper.n_layers - 1 : layer);
  const weft_gguf_tensor *tensor = find_tensor(loader, row, layer, name, sizeof name);
  if (tensor == NULL) {
    if (!is_needed(hyper, row->need, layer)) return WEFT_OK;
    return weft_fail(loader->error, WEFT_E_FORMAT, "%s: tensor '%s' is missing; a %s model needs it",
                     weft_gguf_path(loader->gguf), name, hyper->arch);
  }
  if (is_scale_of_none(loader, row, tensor)) return WEFT_OK;
  uint64_t wanted[3];
  for (uint32_t i = 0; i < 3; i++) wanted[i] = dim_value(loader->model, row->dim[i], layer);
  weft_status status = check_shape(loader, tensor, wanted);
  if (status == WEFT_OK) status = check_type(loader, tensor, row);
  uint64_t n_before = loader->n_bytes_held;
  if (status == WEFT_OK && !is_passed_over(loader, row, layer, into))
    status = place_tensor(loader, tensor, row, layer, into);
  if (layer != UINT32_MAX || loader->model->token_ranges)
    loader->n_bytes_held += (loader->n_bytes_held - n_before) * (loader->model->n_shards - 1 - loader->model->shard);
  if (status != WEFT_OK) return status;
  mark_used(loader, tensor);
  if (!loader->judging) weft_gguf_forget(loader->gguf, tensor);
  return WEFT_OK;
}

void weights_at_layer(weights_loader *loader, uint32_t layer) {
  weft_model *model = loader->model;
  loader->part = &model->part[layer == UINT32_MAX ? 0 : model_part_of(model, layer)];
}

weft_status weights_load(weights_loader *loader, const tensor_row *rows, uint32_t n_rows, uint32_t layer, void *into) {
  for (uint32_t i = 0; i < n_rows; i++) {
    weft_status status = load_row(loader, &rows[i], layer, into);
    if (status != WEFT_OK) return status;
  }
  weights_at_layer(loader, layer);
  return WEFT_OK;
}

static weft_status check_experts(weights_loader *loader, uint32_t l) {
  const model_layer *layer = &loader->model->layers[l];
  bool fused = layer->gate_up_exps.data != NULL;
  bool gate = layer->gate_exps.data != NULL, up = layer->up_exps.data != NULL;
  if (!loader->model->hyper.moe[l] || (fused && !gate && !up) || (!fused && gate && up)) return WEFT_OK;
  return weft_fail(loader->error, WEFT_E_FORMAT,
                   "%s: blk.%" PRIu32 " needs either ffn_gate_up_exps or both of ffn_gate_exps and ffn_up_exps",
                   weft_gguf_path(loader->gguf), l + loader->model->hyper.first_in_file);
}

weft_status weights_load_experts(weights_loader *loader, const tensor_row *rows, uint32_t n_rows,
                                 const tensor_row *scale_rows, uint32_t n_scale_rows) {
  weft_model *model = loader->model;
  weft_status status = WEFT_OK;
  for (uint32_t l = 0; status == WEFT_OK && l < model->hyper.n_layers; l++) {
    status = weights_load(loader, rows, n_rows, l, &model->layers[l]);
    if (status == WEFT_OK) status = weights_load(loader, scale_rows, n_scale_rows, l, &model->layers[l]);
    if (status == WEFT_OK) status = check_experts(loader, l);
  }
  return status;
}

weft_status weights_read_rows(weights_loader *loader, const char *name, uint64_t n, uint64_t n_rows, float *out) {
  const weft_gguf_tensor *tensor = weft_gguf_tensor_find(loader->gguf, name);
  if (tensor == NULL) return WEFT_E_NOT_FOUND;
  weft_status status = check_shape(loader, tensor, (const uint64_t[3]){n, n_rows, 1});
  if (status == WEFT_OK) status = weft_gguf_check_type(loader->gguf, tensor, loader->error);
  if (status == WEFT_OK) status = read_values(loader, tensor, n * n_rows, out);
  if (status == WEFT_OK) mark_used(loader, tensor);
  return status;
}

weft_status weights_read(weights_loader *loader, const char *name, uint64_t n, float *out) {
  return weights_read_rows(loader, name, n, 1, out);
}

weft_status weights_folded(weights_loader *loader, const char *name, uint32_t n, float factor, const float **out) {
  float *values = weft_alloc(n, sizeof *values);
  if (values == NULL)
    return weft_fail(loader->error, WEFT_E_NO_MEMORY, "%s: out of memory", weft_gguf_path(loader->gguf));
  weft_status status = weights_read(loader, name, n, values);
  if (status == WEFT_E_NOT_FOUND) {
    status = weft_fail(loader->error, WEFT_E_FORMAT, "%s: tensor '%s' is missing; a %s model needs it",
                       weft_gguf_path(loader->gguf), name, loader->model->hyper.arch);
  }
  for (uint32_t i = 0; status == WEFT_OK && i < n; i++) values[i] *= factor;
  if (status == WEFT_OK) status = weights_vector(loader, values, n, out);
  weft_free(values);
  return status;
}

weft_status weights_output_norm(weights_loader *loader) {
  static const char *const scales[] = {"output.scale", "output.input_scale"};
  weft_model *model = loader->model;
  float factor[2] = {1.0f, 1.0f};
  for (uint32_t i = 0; i < 2 && model->globals.output.data != NULL; i++) {
    weft_status status = weights_read(loader, scales[i], 1, &factor[i]);
    if (status != WEFT_OK && status != WEFT_E_NOT_FOUND) return status;
  }
  weights_at_layer(loader, model->hyper.n_layers - 1);
  return weights_folded(loader, "output_norm.weight", model->hyper.n_hidden, factor[0], &model->globals.output_norm);
}

/* ---- the whole file ---- */

weft_status weights_check_room(const weights_loader *loader) {
  const double gib = 1024.0 * 1024.0 * 1024.0;
  uint64_t available = weft_memory_available(), largest = 0;
  if (finds_on_shelf(loader)) return WEFT_OK; /* they lie there already */
  if (available == 0 || !weft_device_get_info(loader->model->part[0].device)->host_memory) return WEFT_OK;
  for (uint32_t i = 0; i < weft_gguf_n_tensors(loader->gguf); i++) {
    const weft_gguf_tensor *tensor = weft_gguf_tensor_at(loader->gguf, i);
    if (loader->used[i] && tensor->n_bytes > largest) largest = tensor->n_bytes;
  }
  if (loader->n_bytes_held <= available && largest <= available - loader->n_bytes_held) return WEFT_OK;
  return weft_fail(
      loader->error, WEFT_E_NO_MEMORY,
      "%s: its weights need %.1f GiB of memory, and %.1f GiB while they are loaded; %.1f GiB are free. Take "
      "a file of fewer bits or a smaller model, or free memory",
      weft_gguf_path(loader->gguf), (double)loader->n_bytes_held / gib, (double)(loader->n_bytes_held + largest) / gib,
      (double)available / gib);
}

void weights_rewind(weights_loader *loader) {
  weft_model *model = loader->model;
  loader->judging = false;
  for (uint32_t p = 0; p < model->n_parts; p++) {
    const model_part *part = &model->part[p];
    loader->left[model_place_of(model, part)] = weft_device_memory_left(placer_of(model, part));
  }
  loader->n_bytes_done = 0;
  memset(loader->used, 0, weft_gguf_n_tensors(loader->gguf));
  memset(&model->globals, 0, sizeof model->globals);
  memset(model->layers, 0, model->hyper.n_layers * sizeof *model->layers);
  for (uint32_t p = 0; p < model->n_parts; p++) model->part[p].inv_freq = model->part[p].inv_freq_window = NULL;
}

void weights_close(weights_loader *loader) {
  gguf_reader_close(loader->reader);
  weft_free(loader->used);
  weft_free(loader->buffer);
}
