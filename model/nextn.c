/* SPDX-License-Identifier: MIT */
#include "model/nextn.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/layers.h"
#include "model/models.h"
#include "model/tensor_rows.h"

/* ---- what is drafted with ---- */

static weft_status nextn_load(weft_model *model, weights_loader *loader);
static weft_status project_pairs(model_step *step);

/* Of the models that have such a layer, which `of` loads: how it is computed, and what it has besides the tensors of
 * all such layers. */
typedef struct nextn_kind {
  weft_status (*of)(weft_model *model, weights_loader *loader);
  model_arch arch;
  weft_status (*load)(weft_model *model, weights_loader *loader);
} nextn_kind;

static const nextn_kind kinds[] = {
    {qwen35_load, {"nextn", NULL, nextn_load, project_pairs, qwen35_layer}, qwen35_load_nextn},
    {deepseek4_load, {"nextn", NULL, nextn_load, project_pairs, deepseek4_layer}, deepseek4_load_nextn},
};

/* That of a model, or of a layer that drafts; NULL: it has none. */
static const nextn_kind *kind_of(const model_arch *arch) {
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (kinds[i].of == arch->load || &kinds[i].arch == arch) return &kinds[i];
  return NULL;
}

weft_status nextn_check(const weft_gguf *gguf, const weft_model *model, uint32_t n_devices, weft_error *error) {
  const model_hyper *hyper = &model->hyper;
  const char *path = weft_gguf_path(gguf);
  if (kind_of(model->arch) == NULL)
    return weft_fail(
        error, WEFT_E_UNSUPPORTED,
        "%s: layers of '%s' that guess tokens ahead (nextn) do not draft; those of qwen35, qwen35moe and deepseek4 do",
        path, hyper->arch);
  if (hyper->n_layers_left_out == 0)
    return weft_fail(
        error, WEFT_E_UNSUPPORTED,
        "%s: the file has no layer that guesses tokens ahead (key '%s.nextn_predict_layers'): take one that "
        "has it, or another drafter",
        path, hyper->arch);
  if (hyper->n_layers_left_out > 1)
    return weft_fail(error, WEFT_E_UNSUPPORTED, "%s: key '%s.nextn_predict_layers' is %" PRIu32 "; one layer can draft",
                     path, hyper->arch, hyper->n_layers_left_out);
  if (hyper->latent.ratio[hyper->n_layers] != 0)
    return weft_fail(
        error, WEFT_E_UNSUPPORTED,
        "%s: key '%s.attention.compress_ratios' gives the layer that guesses tokens ahead far rows (%" PRIu32
        "); it can draft with near ones alone (0)",
        path, hyper->arch, hyper->latent.ratio[hyper->n_layers]);
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
  set->rows.values_are_keys = hyper->latent.n_streams > 0;
  set->window = hyper->window[l];
}

/* The parts of a row's stream: how many rows of n_hidden numbers the layer begins with. */
static uint32_t count_parts(const weft_model *model) {
  return model->hyper.latent.n_streams == 0 ? 1 : model->hyper.latent.n_streams;
}

/* The rows of layer 0, from what the caller laid out in pairs; at most as many at a time as scratch has room for. */
static weft_status project_pairs(model_step *step) {
  const weft_model *model = step->model;
  const weft_weight *projection = &model->globals.pre_projection;
  const uint64_t n = model->hyper.n_hidden;
  const uint32_t n_pairs = step->n_rows * count_parts(model), most = model->limits.rows_max;
  weft_status status = WEFT_OK;
  for (uint32_t at = 0; at < n_pairs && status == WEFT_OK; at += most) {
    float *x = step->x + at * n;
    uint32_t n_now = n_pairs - at < most ? n_pairs - at : most;
    status = layers_matmul(step, step->args->given + 2 * at * n, n_now, 1, &projection, &x);
  }
  return status;
}

bool nextn_is(const weft_model *model) {
  return model != NULL && model->arch != NULL && model->arch->load == nextn_load;
}

weft_status nextn_read(const weft_gguf *gguf, weft_model *model, weft_error *error) {
  const weft_model *target = model->target;
  model_hyper *hyper = &model->hyper;
  uint32_t l = target->hyper.n_layers;
  if (!target->limits.nextn)
    return weft_fail(error, WEFT_E_INVALID, "%s: %s was opened without room for the keys of a layer that drafts",
                     weft_gguf_path(gguf), target->info.name);
  model->arch = &kind_of(target->arch)->arch;
  *hyper = target->hyper;
  hyper->n_layers = 1;
  hyper->n_layers_left_out = 0;
  hyper->first_in_file = l;
  hyper->n_target = hyper->n_hidden;
  hyper->n_ff[0] = target->hyper.n_ff[l];
  hyper->n_kv_heads[0] = target->hyper.n_kv_heads[l];
  hyper->n_kv_shares[0] = 1;
  hyper->head_dim[0] = target->hyper.head_dim[l];
  hyper->window[0] = target->hyper.window[l];
  hyper->keys_of[0] = 0;
  hyper->moe[0] = target->hyper.moe[l];
  hyper->delta.layer[0] = false;
  hyper->latent.ratio[0] = hyper->latent.n_hashed = 0;
  hyper->latent.limit[0] = target->hyper.latent.limit[l];
  hyper->latent.shared_limit[0] = target->hyper.latent.shared_limit[l];
  return WEFT_OK;
}

void nextn_find_keys(weft_model *model) {
  model->first_set[0] = model->target->first_set[model->target->hyper.n_layers];
}

/* ---- tensors ---- */

static const tensor_row shared_rows[] = {
    GLOBAL("blk.%u.nextn.eh_proj.weight", MATRIX, ALWAYS, pre_projection, MATMUL, DIM_TARGET_TWICE, HIDDEN),
    GLOBAL("blk.%u.nextn.enorm.weight", VECTOR, ALWAYS, token_norm, 0, HIDDEN),
    GLOBAL("blk.%u.nextn.hnorm.weight", VECTOR, ALWAYS, hidden_norm, 0, HIDDEN),
    GLOBAL("blk.%u.nextn.embed_tokens.weight", MATRIX, NEVER, token_embd, EMBED, HIDDEN, DIM_VOCAB),
    GLOBAL("blk.%u.nextn.shared_head_head.weight", MATRIX, NEVER, output, EMBED, HIDDEN, DIM_VOCAB),
    GLOBAL("blk.%u.nextn.eh_proj.scale", SCALE, NEVER, pre_projection, 0, DIM_ONE),
    GLOBAL("blk.%u.nextn.eh_proj.input_scale", INPUT_SCALE, NEVER, pre_projection, 0, DIM_ONE),
};

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
  weft_status status = WEIGHTS_LOAD(loader, shared_rows, 0, globals);
  if (status == WEFT_OK) status = kind_of(model->arch)->load(model, loader);
  if (status == WEFT_OK) status = load_norm(model, loader);
  if (globals->token_embd.data == NULL) globals->token_embd = model->target->globals.token_embd;
  if (globals->output.data == NULL) globals->output = *weft_model_head(model->target, &cap, &scale);
  return status;
}

/* ---- a step ---- */

/* Rows of x, dense, become the first or second halves of pairs: part of them after part, or each row in all parts. */
static weft_status put_normed(const nextn_rows *rows, float *x, const float *weight, uint32_t half,
                              const nextn_places *places) {
  const weft_model *model = rows->model;
  const uint64_t n = model->hyper.n_hidden, n_parts = count_parts(model), n_given = half == 0 ? 1 : n_parts;
  weft_status status = WEFT_OK;
  for (uint64_t part = 0; part < n_parts && status == WEFT_OK; part++) {
    const weft_norm_args norm = {.x = x + (half == 0 ? 0 : part * n),
                                 .weight = weight,
                                 .y = rows->pair + (2 * (places->first * n_parts + part) + half) * n,
                                 .n_rows = places->n,
                                 .n_cols = (uint32_t)n,
                                 .x_stride = n_given * n,
                                 .y_stride = 2 * n * n_parts * places->every,
                                 .eps = model->hyper.eps};
    status = weft_norm(model->part[0].device, &norm);
  }
  return status;
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
  a->rows->model->part[0].arrays.again = a->again;
  model_begin(a->rows->model, &args, &step);
  weft_status status = model_enter(&step, 0);
  return status == WEFT_OK ? model_compute(&step, step.part->first_layer, step.part->end_layer) : status;
}
