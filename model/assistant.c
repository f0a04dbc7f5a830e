/* SPDX-License-Identifier: MIT */
#include "model/assistant.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/dflash.h"
#include "model/gguf/keys.h"
#include "model/layers_args.h"
#include "model/models.h"
#include "model/tensor_rows.h"

/* The rows of layer 0, from what the caller laid out in pairs. */
static weft_status project_pairs(model_step *step) {
  const weft_weight *projection = &step->model->globals.pre_projection;
  return layers_matmul(step, step->args->given, step->n_rows, 1, &projection, &step->x);
}

/* ---- files ---- */

/* Converters have given such files three names; what is in them is the same. */
typedef struct dialect {
  const char *arch;
  const char *width; /* the key of n_hidden of the target */
  tensor_row rows[4];
} dialect;

enum { ROW_CENTROIDS = 2, ROW_TOKENS = 3 };

#define DIALECT_ROWS(into, out_of, means, order)                                          \
  {                                                                                       \
    GLOBAL(into, MATRIX, ALWAYS, pre_projection, MATMUL, DIM_TARGET_TWICE, HIDDEN),       \
        GLOBAL(out_of, MATRIX, ALWAYS, post_projection, MATMUL, HIDDEN, DIM_TARGET),      \
        GLOBAL(means, MATRIX, ALWAYS, draft.centroids, MATMUL, HIDDEN, DIM_DRAFT_GROUPS), \
        GLOBAL(order, TOKENS, ALWAYS, draft.tokens, 0, DIM_VOCAB),                        \
  }

static const dialect dialects[] = {
    {"gemma4-assistant", ".embedding_length_out", /* of llama.cpp */
     DIALECT_ROWS("nextn.pre_projection.weight", "nextn.post_projection.weight", "masked_embd_centroids.weight",
                  "masked_embd_ordering")},
    {"gemma4_assistant", ".n_embd_backbone", /* of files from before that */
     DIALECT_ROWS("mtp.pre_projection.weight", "mtp.post_projection.weight", "mtp.centroids.weight",
                  "mtp.token_ordering.weight")},
    {"gemma4_mtp", ".backbone_embedding_length", /* of ik_llama.cpp */
     DIALECT_ROWS("mtp_pre_proj.weight", "mtp_post_proj.weight", "mtp_centroids.weight", "mtp_token_ordering.weight")},
};

static const dialect *find_dialect(const weft_gguf *gguf) {
  weft_bytes name;
  if (weft_gguf_string(gguf, "general.architecture", &name, NULL) != WEFT_OK) return NULL;
  for (size_t i = 0; i < sizeof dialects / sizeof *dialects; i++) {
    const char *arch = dialects[i].arch;
    if (name.n == strlen(arch) && memcmp(name.data, arch, name.n) == 0) return &dialects[i];
  }
  return NULL;
}

/* Files have the number of groups as the shape of a tensor, and most do not say how many a row reads: the makers'
 * drafters read 32. */
static weft_status read_groups(const weft_gguf *gguf, const dialect *names, model_hyper *hyper, weft_error *error) {
  enum { CHOSEN = 32, GROUPS_MAX = 65536 };
  const model_keys keys = {gguf, hyper->arch, error};
  const weft_gguf_tensor *centroids = weft_gguf_tensor_find(gguf, names->rows[ROW_CENTROIDS].name);
  if (centroids == NULL) return WEFT_OK;
  const uint64_t n = centroids->ne[1];
  if (n == 0 || n > GROUPS_MAX || hyper->n_vocab % n != 0)
    return weft_fail(error, WEFT_E_FORMAT,
                     "%s: tensor '%s' has %" PRIu64 " groups, in which %" PRIu32 " tokens cannot lie evenly",
                     weft_gguf_path(gguf), centroids->name, n, hyper->n_vocab);
  hyper->draft.n_groups = (uint32_t)n;
  return model_keys_u32_or(&keys, ".centroid_top_k", 1, (uint32_t)n, n < CHOSEN ? (uint32_t)n : CHOSEN,
                           &hyper->draft.n_chosen);
}

static weft_status read_drafter(const weft_gguf *gguf, model_hyper *hyper, weft_error *error) {
  const dialect *names = find_dialect(gguf);
  const model_keys keys = {gguf, hyper->arch, error};
  weft_status status = gemma4_read_assistant(gguf, hyper, error);
  if (status == WEFT_OK) status = model_keys_u32(&keys, names->width, 1, 1 << 20, &hyper->n_target);
  return status == WEFT_OK ? read_groups(gguf, names, hyper, error) : status;
}

static weft_status load_drafter(weft_model *model, weights_loader *loader) {
  const uint32_t n = model->hyper.draft.n_groups > 0 ? ROW_TOKENS + 1 : ROW_CENTROIDS;
  weft_status status = weights_load(loader, find_dialect(loader->gguf)->rows, n, UINT32_MAX, &model->globals);
  return status == WEFT_OK ? gemma4_load(model, loader) : status;
}

static const model_arch arch = {"gemma4-assistant", read_drafter, load_drafter, project_pairs, gemma4_layer};

const model_arch *assistant_arch(const weft_gguf *gguf) {
  return find_dialect(gguf) != NULL ? &arch : NULL;
}

bool weft_model_is_assistant(const weft_gguf *gguf) {
  return assistant_arch(gguf) != NULL || dflash_is_file(gguf);
}

/* ---- does it fit its target ---- */

/* The target's last layer with a window, or without; UINT32_MAX: it has none. */
static uint32_t last_of_kind(const weft_model *target, bool windowed) {
  uint32_t l = target->hyper.n_layers;
  while (l > 0 && (target->hyper.window[l - 1] > 0) != windowed) l--;
  return l > 0 ? l - 1 : UINT32_MAX;
}

static weft_status check_layer(const weft_gguf *gguf, const weft_model *target, model_hyper *hyper, uint32_t l,
                               weft_error *error) {
  bool windowed = hyper->window[l] > 0;
  uint32_t from = last_of_kind(target, windowed);
  const model_hyper *of = &target->hyper;
  if (from == UINT32_MAX)
    return weft_fail(error, WEFT_E_INVALID,
                     "%s: layer %" PRIu32 " of the drafter reads keys of a layer %s a window, and %s has no such layer",
                     weft_gguf_path(gguf), l, windowed ? "with" : "without", target->info.name);
  if (hyper->head_dim[l] != of->head_dim[from] || hyper->window[l] != of->window[from] ||
      hyper->n_heads % of->n_kv_heads[from] != 0)
    return weft_fail(error, WEFT_E_INVALID,
                     "%s: layer %" PRIu32 " of the drafter has %" PRIu32 " heads of %" PRIu32
                     " and a window of %" PRIu32 "; the keys of %s that it would read are of %" PRIu32
                     " heads of %" PRIu32 " and a window of %" PRIu32 ": take the drafter of this model",
                     weft_gguf_path(gguf), l, hyper->n_heads, hyper->head_dim[l], hyper->window[l], target->info.name,
                     of->n_kv_heads[from], of->head_dim[from], of->window[from]);
  if (windowed && hyper->window[l] < 2)
    return weft_fail(error, WEFT_E_UNSUPPORTED, "%s: a drafter sees no key in a window of 1", weft_gguf_path(gguf));
  hyper->n_kv_heads[l] = of->n_kv_heads[from];
  if (windowed) hyper->window[l] -= 1; /* its own position has no key */
  return WEFT_OK;
}

static weft_status check_target(const weft_gguf *gguf, const weft_model *target, const model_hyper *hyper,
                                weft_error *error) {
  const char *path = weft_gguf_path(gguf);
  if (target->arch->layer != gemma4_layer)
    return weft_fail(error, WEFT_E_INVALID, "%s: a gemma4-assistant drafts for gemma4 models, and %s is of '%s'", path,
                     target->info.name, target->hyper.arch);
  if (target->n_parts > 1 || target->n_shards > 1)
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "%s: a drafter that reads keys works on one device, and %s lies on several: leave out --draft, or "
                     "give one device",
                     path, target->info.name);
  if (hyper->n_target != target->hyper.n_hidden)
    return weft_fail(error, WEFT_E_INVALID,
                     "%s: it drafts for a model whose hidden rows have %" PRIu32 " numbers; those of %s have %" PRIu32
                     ": take the drafter of this model",
                     path, hyper->n_target, target->info.name, target->hyper.n_hidden);
  if (hyper->n_vocab != target->hyper.n_vocab)
    return weft_fail(error, WEFT_E_INVALID,
                     "%s: it has %" PRIu32 " tokens and %s has %" PRIu32 ": a drafter has the same vocabulary", path,
                     hyper->n_vocab, target->info.name, target->hyper.n_vocab);
  return WEFT_OK;
}

weft_status assistant_read(const weft_gguf *gguf, const weft_model *target, model_hyper *hyper, weft_error *error) {
  const weft_gguf_tensor *embed = weft_gguf_tensor_find(gguf, "token_embd.weight");
  memset(hyper, 0, sizeof *hyper);
  if (assistant_arch(gguf) == NULL)
    return weft_fail(error, WEFT_E_UNSUPPORTED, "%s: it is no drafter of architecture '%s'", weft_gguf_path(gguf),
                     arch.name);
  if (embed == NULL || embed->ne[1] > 1 << 24)
    return weft_fail(error, WEFT_E_FORMAT, "%s: tensor 'token_embd.weight' is missing or too large",
                     weft_gguf_path(gguf));
  (void)snprintf(hyper->arch, sizeof hyper->arch, "%s", find_dialect(gguf)->arch);
  hyper->entropy_bound = weft_entropy_bound_default();
  hyper->n_vocab = (uint32_t)embed->ne[1];
  weft_status status = arch.read(gguf, hyper, error);
  if (status == WEFT_OK) status = check_target(gguf, target, hyper, error);
  for (uint32_t l = 0; l < hyper->n_layers && status == WEFT_OK; l++)
    status = check_layer(gguf, target, hyper, l, error);
  return status;
}

void assistant_find_keys(weft_model *model) {
  const weft_model *target = model->target;
  for (uint32_t l = 0; l < model->hyper.n_layers; l++)
    model->first_set[l] = target->first_set[last_of_kind(target, model->hyper.window[l] > 0)];
}

/* ---- a step ---- */

/* The second halves of the pairs become what the draft before projects back. */
static weft_status project_back(const assistant_args *a) {
  weft_model *model = a->model;
  const weft_weight *projection = &model->globals.post_projection;
  float *hidden = a->pair + model->hyper.n_target;
  weft_matmul_args args = layers_product_of(&model->part[0], a->hidden, a->batch->n_rows, 1, &projection, &hidden);
  args.y_stride[0] = 2 * (uint64_t)model->hyper.n_target;
  return weft_matmul(model->part[0].device, &args);
}

weft_status assistant_step(const assistant_args *a) {
  weft_model *model = a->model;
  const weft_model *target = model->target;
  weft_embed_args embed = {.weight = &target->globals.token_embd,
                           .tokens = a->token,
                           .y = a->pair,
                           .n_rows = a->batch->n_rows,
                           .scale = target->hyper.embed_scale,
                           .y_stride = 2 * (uint64_t)target->hyper.n_hidden};
  weft_forward_args args = {.batch = a->batch,
                            .token = a->batch->token,
                            .kv = a->kv,
                            .layout = a->layout,
                            .given = a->pair,
                            .output_row = a->row,
                            .n_output = a->batch->n_rows,
                            .hidden = a->hidden};
  model_step step;
  model->part[0].arrays.again = a->again;
  weft_status status = a->again ? project_back(a) : WEFT_OK;
  if (status == WEFT_OK) status = weft_embed(model->part[0].device, &embed);
  model_begin(model, &args, &step);
  if (status == WEFT_OK) status = model_enter(&step, 0);
  return status == WEFT_OK ? model_compute(&step, step.part->first_layer, step.part->end_layer) : status;
}
