/* SPDX-License-Identifier: MIT */
#include "model/nextn.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/layers.h"
#include "model/models.h"

/* ---- what is drafted with ---- */

weft_status nextn_check(const weft_gguf *gguf, const weft_model *model, uint32_t n_devices, weft_error *error) {
  const model_hyper *hyper = &model->hyper;
  const char *path = weft_gguf_path(gguf);
  if (model->arch->layer != qwen35_layer)
    return weft_fail(
        error, WEFT_E_UNSUPPORTED,
        "%s: layers of '%s' that guess tokens ahead (nextn) do not draft; those of qwen35 and qwen35moe do", path,
        hyper->arch);
  if (hyper->n_layers_left_out == 0)
    return weft_fail(
        error, WEFT_E_UNSUPPORTED,
        "%s: the file has no layer that guesses tokens ahead (key '%s.nextn_predict_layers'): take one that "
        "has it, or another drafter",
        path, hyper->arch);
  if (hyper->n_layers_left_out > 1)
    return weft_fail(error, WEFT_E_UNSUPPORTED, "%s: key '%s.nextn_predict_layers' is %" PRIu32 "; one layer can draft",
                     path, hyper->arch, hyper->n_layers_left_out);
  if (n_devices > 1)
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "%s: a layer that drafts works on one device, and the model lies on %" PRIu32
                     ": leave out --draft, or give one device",
                     path, n_devices);
  return WEFT_OK;
}

void nextn_add_keys(const model_hyper *hyper, weft_kv_geometry *geometry) {
  uint32_t l = hyper->n_layers;
  geometry->n_layers += 1;
  geometry->set[geometry->n_sets++] =
      (weft_kv_set){.rows = {.type = geometry->set[0].rows.type, .positions = 1}, .layer = (uint16_t)l};
  weft_kv_set *set = &geometry->set[geometry->n_sets - 1];
  set->rows.n_kv_heads = hyper->n_kv_heads[l];
  set->rows.head_dim = hyper->head_dim[l];
}

static weft_status nextn_load(weft_model *model, weights_loader *loader);

/* The rows of layer 0, from what the caller laid out in pairs. */
static weft_status project_pairs(model_step *step) {
  const weft_weight *projection = &step->model->globals.pre_projection;
  return layers_matmul(step, step->args->given, step->n_rows, 1, &projection, &step->x);
}

static const model_arch arch = {"nextn", NULL, nextn_load, project_pairs, qwen35_layer};

bool nextn_is(const weft_model *model) {
  return model != NULL && model->arch == &arch;
}

weft_status nextn_read(const weft_gguf *gguf, weft_model *model, weft_error *error) {
  const weft_model *target = model->target;
  model_hyper *hyper = &model->hyper;
  uint32_t l = target->hyper.n_layers;
  if (!target->limits.nextn)
    return weft_fail(error, WEFT_E_INVALID, "%s: %s was opened without room for the keys of a layer that drafts",
                     weft_gguf_path(gguf), target->info.name);
  model->arch = &arch;
  *hyper = target->hyper;
  hyper->n_layers = 1;
  hyper->n_layers_left_out = 0;
  hyper->first_in_file = l;
  hyper->n_target = hyper->n_hidden;
  hyper->n_ff[0] = target->hyper.n_ff[l];
  hyper->n_kv_heads[0] = target->hyper.n_kv_heads[l];
  hyper->n_kv_shares[0] = 1;
  hyper->head_dim[0] = target->hyper.head_dim[l];
  hyper->window[0] = hyper->keys_of[0] = 0;
  hyper->moe[0] = target->hyper.moe[l];
  hyper->delta.layer[0] = false;
  return WEFT_OK;
}

void nextn_find_keys(weft_model *model) {
  model->first_set[0] = model->target->first_set[model->target->hyper.n_layers];
}

/* ---- tensors ---- */

/* The norm before the head: the layer's, with the scale of the head that it takes from its model, or the model's. */
static weft_status load_norm(weft_model *model, weights_loader *loader) {
  char name[64];
  float scale = 1.0f;
  (void)snprintf(name, sizeof name, "blk.%" PRIu32 ".nextn.shared_head_norm.weight", model->hyper.first_in_file);
  model->globals.output_norm = model->target->globals.output_norm;
  if (weft_gguf_tensor_find(loader->gguf, name) == NULL) return WEFT_OK;
  weft_status status = model->globals.output.data != NULL ? WEFT_OK : weights_read(loader, "output.scale", 1, &scale);
  if (status != WEFT_OK && status != WEFT_E_NOT_FOUND) return status;
  return weights_folded(loader, name, model->hyper.n_hidden, scale, &model->globals.output_norm);
}

static weft_status nextn_load(weft_model *model, weights_loader *loader) {
  float cap, scale;
  model_globals *globals = &model->globals;
  weft_status status = qwen35_load_nextn(model, loader);
  if (status == WEFT_OK) status = load_norm(model, loader);
  if (globals->token_embd.data == NULL) globals->token_embd = model->target->globals.token_embd;
  if (globals->output.data == NULL) globals->output = *weft_model_head(model->target, &cap, &scale);
  return status;
}

/* ---- a step ---- */

/* Rows of x, dense, become the first or second halves of pairs. */
static weft_status put_normed(const nextn_rows *rows, float *x, const float *weight, uint32_t half,
                              const nextn_places *places) {
  const weft_model *model = rows->model;
  const uint64_t n = model->hyper.n_hidden;
  const weft_norm_args norm = {.x = x,
                               .weight = weight,
                               .y = rows->pair + (2ull * places->first + half) * n,
                               .n_rows = places->n,
                               .n_cols = (uint32_t)n,
                               .x_stride = n,
                               .y_stride = 2 * n * places->every,
                               .eps = model->hyper.eps};
  return weft_norm(model->part[0].device, &norm);
}

weft_status nextn_put_tokens(const nextn_rows *rows, const int32_t *token, const nextn_places *places) {
  weft_model *model = rows->model;
  const weft_embed_args embed = {.weight = &model->globals.token_embd,
                                 .tokens = token,
                                 .y = model->part[0].scratch.x,
                                 .n_rows = places->n,
                                 .scale = model->hyper.embed_scale,
                                 .y_stride = model->hyper.n_hidden};
  weft_status status = weft_embed(model->part[0].device, &embed);
  return status == WEFT_OK ? put_normed(rows, embed.y, model->globals.token_norm, 0, places) : status;
}

weft_status nextn_put_hidden(const nextn_rows *rows, float *hidden, const nextn_places *places) {
  return put_normed(rows, hidden, rows->model->globals.hidden_norm, 1, places);
}

weft_status nextn_compute(const nextn_args *a) {
  weft_forward_args args = {.batch = a->batch,
                            .token = a->batch->token,
                            .kv = a->kv,
                            .layout = a->layout,
                            .given = a->rows->pair,
                            .output_row = a->output_row,
                            .n_output = a->n_output,
                            .hidden = a->hidden};
  model_step step;
  model_begin(a->rows->model, &args, &step);
  weft_status status = model_enter(&step, 0);
  return status == WEFT_OK ? model_compute(&step) : status;
}
