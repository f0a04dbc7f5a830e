/* SPDX-License-Identifier: MIT */
/* DiffusionGemma: Gemma 4 layers in two roles. Causal rows (prompt, committed canvas, decode) take
 * the encoder's layer scalars; canvas rows take the decoder's, and enter as RMS0(embedding +
 * self-conditioning signal). */
#include <inttypes.h>
#include <stddef.h>

#include "model/hyper.h"
#include "model/layers.h"
#include "model/models.h"

enum { CANVAS_LENGTH_USUAL = 256 }; /* of the models as they were made; early files do not say it */

static weft_status read_entropy_bound(const model_keys *keys, model_hyper *hyper) {
  weft_entropy_bound *eb = &hyper->entropy_bound;
  weft_entropy_bound d = weft_entropy_bound_default();
  *eb = d;
  weft_status status = model_keys_u32_or(keys, "diffusion.eb_max_steps", 1, 1 << 16, d.max_steps, &eb->max_steps);
  if (status == WEFT_OK) status = model_keys_f32_or(keys, "diffusion.eb_t_min", 0, 1e6, d.t_min, &eb->t_min);
  if (status == WEFT_OK) status = model_keys_f32_or(keys, "diffusion.eb_t_max", 0, 1e6, d.t_max, &eb->t_max);
  if (status == WEFT_OK) {
    status = model_keys_f32_or(keys, "diffusion.eb_entropy_bound", 0, 1e9, d.entropy_bound, &eb->entropy_bound);
  }
  if (status == WEFT_OK) {
    uint32_t stability = (uint32_t)d.stability;
    status = model_keys_u32_or(keys, "diffusion.eb_stability_threshold", 0, WEFT_STABILITY_MAX, stability, &stability);
    eb->stability = (int32_t)stability;
  }
  if (status == WEFT_OK) {
    status = model_keys_f32_or(keys, "diffusion.eb_confidence_threshold", 0, 1e9, d.confidence, &eb->confidence);
  }
  if (status != WEFT_OK) return status;
  weft_error inner = {{0}};
  status = weft_entropy_bound_check(eb, &inner);
  if (status == WEFT_OK) return WEFT_OK;
  return weft_fail(keys->error, WEFT_E_FORMAT, "%s: keys 'diffusion.eb_*': %.300s", weft_gguf_path(keys->gguf),
                   inner.text);
}

weft_status diffusion_gemma_read(const weft_gguf *gguf, model_hyper *hyper, weft_error *error) {
  model_keys keys = {gguf, hyper->arch, error};
  hyper->diffusion = true;
  weft_status status = gemma4_read(gguf, hyper, error);
  if (status == WEFT_OK) {
    /* The keys of a canvas lie in one place, which holds those of the layer that was computed last. */
    status = hyper_refuse_if_set(&keys, ".attention.shared_kv_layers", "layers that share keys of a canvas");
  }
  if (status == WEFT_OK) {
    status = model_keys_u32_or(&keys, "diffusion.canvas_length", 1, WEFT_CANVAS_MAX, CANVAS_LENGTH_USUAL,
                               &hyper->canvas_length);
  }
  if (status == WEFT_OK) status = read_entropy_bound(&keys, hyper);
  if (status == WEFT_OK && weft_gguf_tensor_find(gguf, "output.weight") != NULL) {
    /* The soft embedding comes out of the head's pass over the matrix, so head and embedding must
     * be one. */
    status = weft_fail(error, WEFT_E_UNSUPPORTED, "%s: tensor 'output.weight': a %s model must tie it to token_embd",
                       weft_gguf_path(gguf), hyper->arch);
  }
  return status;
}

#define HIDDEN DIM_HIDDEN
#define FF     DIM_FF
#define MATMUL WEFT_USE_MATMUL
#define GLOBAL(name, alias, kind, field, uses, ...) \
  TENSOR_ROW(model_globals, name, alias, kind, ALWAYS, field, uses, __VA_ARGS__)
#define SCALES(name, field)                                                        \
  TENSOR_ROW(model_globals, name ".scale", NULL, SCALE, NEVER, field, 0, DIM_ONE), \
      TENSOR_ROW(model_globals, name ".input_scale", NULL, INPUT_SCALE, NEVER, field, 0, DIM_ONE)

static const tensor_row encoder_rows[] = {
    TENSOR_ROW(model_layer, "blk.%u.enc_layer_output_scale.weight", NULL, SCALAR, ALWAYS, encoder_scale, 0, DIM_ONE),
};

static const tensor_row self_cond_rows[] = {
    GLOBAL("self_cond_pre_norm.weight", "self_cond_norm.weight", VECTOR, self_cond_norm, 0, HIDDEN),
    GLOBAL("self_cond_gate.weight", NULL, MATRIX, self_cond_gate, MATMUL, HIDDEN, FF),
    GLOBAL("self_cond_up.weight", NULL, MATRIX, self_cond_up, MATMUL, HIDDEN, FF),
    GLOBAL("self_cond_down.weight", NULL, MATRIX, self_cond_down, MATMUL, FF, HIDDEN),
    SCALES("self_cond_gate", self_cond_gate),
    SCALES("self_cond_up", self_cond_up),
    SCALES("self_cond_down", self_cond_down),
};

weft_status diffusion_gemma_load(weft_model *model, weights_loader *loader) {
  weft_status status = WEIGHTS_LOAD(loader, self_cond_rows, UINT32_MAX, &model->globals);
  for (uint32_t l = 0; status == WEFT_OK && l < model->hyper.n_layers; l++) {
    status = WEIGHTS_LOAD(loader, encoder_rows, l, &model->layers[l]);
  }
  return status == WEFT_OK ? gemma4_load(model, loader) : status;
}

/* The signal of all canvas rows that have a soft embedding, one after another, in scratch.t. A
 * canvas at its first step has none, and its signal would be exactly zero. */
static weft_status self_condition(model_step *step) {
  weft_model *model = step->model;
  const model_globals *globals = &model->globals;
  const weft_forward_args *args = step->args;
  uint64_t n_hidden = model->hyper.n_hidden;
  uint32_t n = 0;
  for (uint32_t i = 0; i < args->batch->n_segments; i++) {
    const weft_segment *segment = &args->batch->segment[i];
    if (segment->pass != WEFT_PASS_DECODER || args->soft[i] == NULL) continue;
    layers_norm_args norm = {.x = (float *)(uintptr_t)args->soft[i], /* only read */
                             .weight = globals->self_cond_norm,
                             .y = step->h + n * n_hidden,
                             .n_rows = segment->n_rows};
    weft_status status = layers_norm(step, &norm);
    if (status != WEFT_OK) return status;
    n += segment->n_rows;
  }
  if (n == 0) return WEFT_OK;
  layers_mlp_args mlp = {.x = step->h,
                         .gate = &globals->self_cond_gate,
                         .up = &globals->self_cond_up,
                         .down = &globals->self_cond_down,
                         .out = step->part->scratch.t,
                         .n_rows = n};
  return layers_mlp(step, &mlp);
}

weft_status diffusion_gemma_embed(model_step *step) {
  const weft_forward_args *args = step->args;
  uint64_t n_hidden = step->model->hyper.n_hidden;
  uint32_t n = 0;
  weft_status status = gemma4_embed(step);
  if (status == WEFT_OK) status = self_condition(step);
  for (uint32_t i = 0; status == WEFT_OK && i < args->batch->n_segments; i++) {
    const weft_segment *segment = &args->batch->segment[i];
    if (segment->pass != WEFT_PASS_DECODER) continue;
    float *x = step->x + segment->first_row * n_hidden;
    float *signal = args->soft[i] != NULL ? step->part->scratch.t + n * n_hidden : NULL;
    if (signal != NULL) n += segment->n_rows;
    layers_norm_args norm = {.x = x, .x2 = signal, .y = x, .n_rows = segment->n_rows};
    status = layers_norm(step, &norm);
  }
  return status;
}
