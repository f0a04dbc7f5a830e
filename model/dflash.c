/* SPDX-License-Identifier: MIT */
#include "model/dflash.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/gguf/keys.h"
#include "model/hyper.h"
#include "model/layers.h"
#include "model/models.h"
#include "model/tensor_rows.h"

static weft_status dflash_load(weft_model *model, weights_loader *loader);

static const model_arch arch = {"dflash", NULL, dflash_load, layers_embed, llama_layer};

/* The architecture of such a file; NULL: it is another. */
static const char *find_name(const weft_gguf *gguf) {
  static const char *const names[] = {"dflash", "dspark"};
  weft_bytes name;
  if (weft_gguf_string(gguf, "general.architecture", &name, NULL) != WEFT_OK) return NULL;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (name.n == strlen(names[i]) && memcmp(name.data, names[i], name.n) == 0) return names[i];
  return NULL;
}

bool dflash_is_file(const weft_gguf *gguf) {
  return find_name(gguf) != NULL;
}

bool weft_model_fills_blocks(const weft_gguf *gguf) {
  return dflash_is_file(gguf);
}

bool dflash_is(const weft_model *model) {
  return model != NULL && model->arch == &arch;
}

/* ---- keys of the file ---- */

/* What drafters have besides that is not computed. */
static weft_status refuse_others(const model_keys *keys) {
  static const char *const names[][2] = {{".conv_kernel_size", "convolutions around sublayers (DFlash2)"},
                                         {".conv_kernel", "convolutions around sublayers (DFlash2)"},
                                         {".selector_rank", "a selector of candidates (DFlash2)"},
                                         {".attention.sliding_window", "windows of a drafter"}};
  static const char *const tensors[][2] = {{"output.weight", "a head of a drafter's own"},
                                           {"d2t", "a vocabulary of a drafter's own"},
                                           {"blk.0.attn_sinks.weight", "sinks of a drafter"}};
  weft_status status = hyper_refuse_each(keys, names, sizeof names / sizeof *names);
  for (size_t i = 0; i < sizeof tensors / sizeof *tensors && status == WEFT_OK; i++) {
    if (weft_gguf_tensor_find(keys->gguf, tensors[i][0]) != NULL)
      status = weft_fail(keys->error, WEFT_E_UNSUPPORTED, "%s: tensor '%s': %s is not supported",
                         weft_gguf_path(keys->gguf), tensors[i][0], tensors[i][1]);
  }
  return status;
}

/* The layers whose input it reads. */
static weft_status read_layers(const model_keys *keys, model_block *block) {
  char name[64];
  (void)snprintf(name, sizeof name, "%s.target_layers", keys->arch);
  uint64_t n = weft_gguf_count(keys->gguf, name);
  if (n == 0 || n > MODEL_BLOCK_LAYERS_MAX)
    return weft_fail(keys->error, WEFT_E_FORMAT, "%s: key '%s' has %" PRIu64 " layers; 1 to %d can be read",
                     weft_gguf_path(keys->gguf), name, n, MODEL_BLOCK_LAYERS_MAX);
  block->n_layers = (uint32_t)n;
  for (uint32_t i = 0; i < n; i++) {
    uint64_t layer;
    weft_status status = weft_gguf_u64_at(keys->gguf, name, i, &layer, keys->error);
    if (status != WEFT_OK) return status;
    if (layer >= WEFT_LAYERS_MAX)
      return weft_fail(keys->error, WEFT_E_FORMAT, "%s: key '%s' names layer %" PRIu64, weft_gguf_path(keys->gguf),
                       name, layer);
    block->layer[i] = (uint32_t)layer;
  }
  return WEFT_OK;
}

/* A flag of the file must be what is computed. */
static weft_status check_flag(const model_keys *keys, const char *name, bool computed) {
  char key[64];
  bool set;
  (void)snprintf(key, sizeof key, "%s.%s", keys->arch, name);
  weft_status status = weft_gguf_bool(keys->gguf, key, &set, keys->error);
  if (status == WEFT_E_NOT_FOUND) return WEFT_OK;
  if (status != WEFT_OK || set == computed) return status;
  return weft_fail(keys->error, WEFT_E_UNSUPPORTED, "%s: key '%s' is %s, which is not supported",
                   weft_gguf_path(keys->gguf), key, set ? "true" : "false");
}

/* DSpark: what the token before adds to logits, of a block whose first row gives the first draft. */
static weft_status read_pairs(const model_keys *keys, model_hyper *hyper) {
  enum { RANK_MAX = 1 << 14 };
  const weft_gguf_tensor *before = weft_gguf_tensor_find(keys->gguf, "markov_w1.weight");
  weft_bytes kind;
  char key[64];
  (void)snprintf(key, sizeof key, "%s.markov_head_type", keys->arch);
  hyper->block.first = before == NULL ? 1 : 0;
  if (before == NULL && strcmp(keys->arch, arch.name) != 0)
    return weft_fail(keys->error, WEFT_E_FORMAT, "%s: tensor 'markov_w1.weight' is missing; a %s drafter needs it",
                     weft_gguf_path(keys->gguf), keys->arch);
  if (before != NULL && (before->ne[0] == 0 || before->ne[0] > RANK_MAX))
    return weft_fail(keys->error, WEFT_E_FORMAT, "%s: tensor 'markov_w1.weight' has rows of %" PRIu64 " numbers",
                     weft_gguf_path(keys->gguf), before->ne[0]);
  hyper->draft.rank = before == NULL ? 0 : (uint32_t)before->ne[0];
  if (weft_gguf_string(keys->gguf, key, &kind, NULL) == WEFT_OK &&
      (kind.n != 7 || memcmp(kind.data, "vanilla", 7) != 0))
    return weft_fail(keys->error, WEFT_E_UNSUPPORTED,
                     "%s: key '%s' is not 'vanilla': other Markov heads (DSpark) are not supported",
                     weft_gguf_path(keys->gguf), key);
  weft_status status = check_flag(keys, "sample_from_anchor", hyper->block.first == 0);
  return status == WEFT_OK ? check_flag(keys, "attention.causal", false) : status;
}

static weft_status read_block(const weft_gguf *gguf, model_hyper *hyper, weft_error *error) {
  const model_keys keys = {gguf, hyper->arch, error}, text = {gguf, "tokenizer.ggml", error};
  uint32_t mask = 0;
  weft_status status = refuse_others(&keys);
  if (status == WEFT_OK) status = llama_read(gguf, hyper, error);
  if (status == WEFT_OK) status = model_keys_u32(&keys, ".block_size", 2, 64, &hyper->block.n);
  if (status == WEFT_OK) status = model_keys_u32(&text, ".mask_token_id", 0, INT32_MAX, &mask);
  hyper->block.mask = (int32_t)mask;
  if (status == WEFT_OK) status = read_pairs(&keys, hyper);
  return status == WEFT_OK ? read_layers(&keys, &hyper->block) : status;
}

static weft_status read_file(const weft_gguf *gguf, model_hyper *hyper, weft_error *error) {
  memset(hyper, 0, sizeof *hyper);
  (void)snprintf(hyper->arch, sizeof hyper->arch, "%s", find_name(gguf));
  hyper->entropy_bound = weft_entropy_bound_default();
  return read_block(gguf, hyper, error);
}

/* ---- does it fit its target ---- */

static weft_status check_layers(const char *path, const weft_model *model, const model_hyper *own, weft_error *error) {
  const model_hyper *hyper = &model->hyper;
  for (uint32_t i = 0; i < own->block.n_layers; i++) {
    if (own->block.layer[i] < hyper->n_layers) continue;
    return weft_fail(error, WEFT_E_INVALID,
                     "%s: it reads what goes into layer %" PRIu32 " of its model, and %s has %" PRIu32
                     ": take the drafter of this model",
                     path, own->block.layer[i], model->info.name, hyper->n_layers);
  }
  for (uint32_t l = 0; l < hyper->n_layers; l++) {
    if (hyper->keys_of[l] == 0 && hyper->latent.n_streams == 0) continue;
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "%s: a dflash drafter needs a model each of whose layers has keys of its own; '%s' has others",
                     path, hyper->arch);
  }
  for (uint32_t l = 0; l < own->n_layers; l++) {
    if (weft_kv_row_fits(model->info.kv_type, own->head_dim[l])) continue;
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "%s: heads of %" PRIu32 " cannot have keys in 8 bits: leave out --kv-8bit", path,
                     own->head_dim[l]);
  }
  return WEFT_OK;
}

weft_status dflash_check(const weft_model *model, uint32_t n_devices, weft_error *error) {
  const model_hyper *hyper = &model->hyper;
  const char *path = weft_gguf_path(model->limits.block_drafter);
  model_hyper own;
  weft_status status = read_file(model->limits.block_drafter, &own, error);
  if (status != WEFT_OK) return status;
  if (own.n_hidden != hyper->n_hidden)
    return weft_fail(error, WEFT_E_INVALID,
                     "%s: it drafts for a model whose hidden rows have %" PRIu32 " numbers; those of %s have %" PRIu32
                     ": take the drafter of this model",
                     path, own.n_hidden, model->info.name, hyper->n_hidden);
  if ((uint32_t)own.block.mask >= hyper->n_vocab)
    return weft_fail(error, WEFT_E_INVALID, "%s: its mark is token %d, and %s has %" PRIu32, path, (int)own.block.mask,
                     model->info.name, hyper->n_vocab);
  if (n_devices > 1)
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "%s: a drafter that reads hidden rows works on one device, and the model lies on %" PRIu32
                     ": leave out --draft, or give one device",
                     path, n_devices);
  if (hyper->diffusion || hyper->n_layers + own.n_layers > WEFT_LAYERS_MAX)
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "%s: it cannot draft for '%s', which answers by canvases or has %" PRIu32 " layers", path,
                     hyper->arch, hyper->n_layers);
  return check_layers(path, model, &own, error);
}

weft_status dflash_add_keys(const weft_model *model, weft_kv_geometry *geometry) {
  model_hyper own;
  weft_status status = read_file(model->limits.block_drafter, &own, NULL);
  for (uint32_t l = 0; l < own.n_layers && status == WEFT_OK; l++) {
    if (geometry->n_sets == sizeof geometry->set / sizeof *geometry->set) return WEFT_E_UNSUPPORTED;
    weft_kv_set *set = &geometry->set[geometry->n_sets++];
    *set = (weft_kv_set){.rows = {.type = geometry->set[0].rows.type,
                                  .positions = 1,
                                  .n_kv_heads = own.n_kv_heads[l],
                                  .head_dim = own.head_dim[l]},
                         .layer = (uint16_t)(model->hyper.n_layers + l)};
    geometry->n_layers += 1;
  }
  return status;
}

weft_status dflash_read(const weft_gguf *gguf, weft_model *model, weft_error *error) {
  const weft_model *target = model->target;
  model_hyper *hyper = &model->hyper;
  if (target->limits.block_drafter == NULL)
    return weft_fail(error, WEFT_E_INVALID, "%s: %s was opened without room for the keys of this drafter",
                     weft_gguf_path(gguf), target->info.name);
  model->arch = &arch;
  weft_status status = read_file(gguf, hyper, error);
  hyper->n_vocab = target->hyper.n_vocab;
  hyper->embed_scale = target->hyper.embed_scale;
  hyper->cap = target->hyper.cap;
  hyper->n_target = hyper->block.n_layers * hyper->n_hidden;
  return status;
}

void dflash_find_keys(weft_model *model) {
  const weft_model *target = model->target;
  for (uint32_t l = 0; l < model->hyper.n_layers; l++)
    model->first_set[l] = target->first_set[target->hyper.n_layers + l];
}

/* ---- tensors ---- */

static const tensor_row own_rows[] = {
    GLOBAL("fc.weight", MATRIX, ALWAYS, pre_projection, MATMUL, DIM_TARGET, HIDDEN),
    GLOBAL("enc.output_norm.weight", VECTOR, ALWAYS, hidden_norm, 0, HIDDEN),
};

static const tensor_row pair_rows[] = {
    GLOBAL("markov_w1.weight", MATRIX, ALWAYS, draft.before, EMBED, DIM_DRAFT_RANK, DIM_VOCAB),
    GLOBAL("markov_w2.weight", MATRIX, ALWAYS, draft.follows, MATMUL, DIM_DRAFT_RANK, DIM_VOCAB),
};

static weft_status dflash_load(weft_model *model, weights_loader *loader) {
  float cap, scale;
  weft_status status = WEIGHTS_LOAD(loader, own_rows, 0, &model->globals);
  if (status == WEFT_OK && model->hyper.draft.rank > 0) status = WEIGHTS_LOAD(loader, pair_rows, 0, &model->globals);
  if (status == WEFT_OK) status = weights_output_norm(loader);
  if (status == WEFT_OK) status = llama_load_layers(model, loader);
  model->globals.token_embd = model->target->globals.token_embd;
  model->globals.output = *weft_model_head(model->target, &cap, &scale);
  return status;
}

/* ---- steps ---- */

weft_status dflash_store(const dflash_args *a) {
  weft_model *model = a->model;
  model_part *part = &model->part[0];
  const weft_weight *projection = &model->globals.pre_projection;
  weft_forward_args args = {.batch = a->batch, .token = a->batch->token, .kv = a->kv, .layout = a->layout};
  model_step step;
  model_begin(model, &args, &step);
  weft_status status = model_enter(&step, 0);
  step.x = part->scratch.x;
  step.h = part->scratch.h;
  step.h_form = WEFT_ROWS_F32;
  step.n_encoder = step.n_rows;
  if (status == WEFT_OK) status = step_arrays_fill(&part->arrays, &args, false);
  if (status == WEFT_OK) status = layers_matmul(&step, a->features, step.n_rows, 1, &projection, &step.x);
  layers_norm_args norm = {.x = step.x, .weight = model->globals.hidden_norm, .y = step.h, .n_rows = step.n_rows};
  if (status == WEFT_OK) status = layers_norm(&step, &norm);
  for (uint32_t l = 0; l < model->hyper.n_layers && status == WEFT_OK; l++) status = layers_keys(&step, l);
  return status;
}

weft_status dflash_block(const dflash_args *a) {
  weft_forward_args args = {.batch = a->batch,
                            .token = a->batch->token,
                            .kv = a->kv,
                            .layout = a->layout,
                            .output_row = a->output_row,
                            .n_output = a->n_output,
                            .hidden = a->hidden};
  model_step step;
  model_begin(a->model, &args, &step);
  weft_status status = model_enter(&step, 0);
  return status == WEFT_OK ? model_compute(&step, step.part->first_layer, step.part->end_layer) : status;
}
