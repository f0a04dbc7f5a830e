/* SPDX-License-Identifier: MIT */
/* The registry of architectures: one row each.
 *
 * Law: an architecture says how its keys become a model_hyper, which tensors it loads, and how a
 * step is computed. The rest of weft sees only model/model.h. */
#ifndef WEFT_MODEL_MODELS_H
#define WEFT_MODEL_MODELS_H

#include "model/gguf/keys.h"
#include "model/model_internal.h"
#include "model/weights.h"

typedef struct model_arch {
  const char *name; /* general.architecture */
  /* Reads and judges the keys. hyper is zero; arch and n_vocab are set already. */
  weft_status (*read)(const weft_gguf *gguf, model_hyper *hyper, weft_error *error);
  /* Loads all tensors into model->globals and model->layers. */
  weft_status (*load)(weft_model *model, weights_loader *loader);
  /* Computes the embedding of all rows of the step into step->x. */
  weft_status (*embed)(model_step *step);
  /* Computes one layer in place. */
  weft_status (*layer)(model_step *step, uint32_t layer);
} model_arch;

/* NULL when there is no such architecture. */
const model_arch *model_arch_find(const char *name, size_t n);
/* The names of all architectures, separated by commas, for messages. */
void model_arch_names(char *out, size_t size); /* of the registry, with commas between */

/* Reads general.architecture and the keys. Used by open and by inspect. */
weft_status model_hyper_read(const weft_gguf *gguf, const model_arch **arch, model_hyper *hyper, weft_error *error);
weft_kv_geometry model_hyper_geometry(const model_hyper *hyper, weft_type kv_type);
/* F32 when every tensor of the file that is computed with is F32, else BF16. */
weft_type gguf_kv_type(const weft_gguf *gguf);
/* general.name cut to the size, or the file's name without folder and .gguf. */
void gguf_model_name(const weft_gguf *gguf, char *out, size_t size);

/* For architectures whose ops some backends do not have yet, and whose layers have no part for a shard: UNSUPPORTED with
 * one line where the model is split by tensor, or where one of its devices has not the ops of `what`. */
weft_status model_check_place(const weft_model *model, const weights_loader *loader,
                              bool (*has_ops)(const weft_kernels *kernels), const char *what);

/* Architectures. */
weft_status gemma4_read(const weft_gguf *gguf, model_hyper *hyper, weft_error *error);
weft_status gemma4_load(weft_model *model, weights_loader *loader);
weft_status gemma4_embed(model_step *step);
weft_status gemma4_layer(model_step *step, uint32_t layer);
/* The factors by which a layer's rows are multiplied at its end, from the layers' scalars. */
weft_status gemma4_load_row_scales(weights_loader *loader);
weft_status gemma3_read(const weft_gguf *gguf, model_hyper *hyper, weft_error *error);
weft_status gemma3_load(weft_model *model, weights_loader *loader);
/* The same keys of a drafter with queries alone, but for those of assistant.c. */
weft_status gemma4_read_assistant(const weft_gguf *gguf, model_hyper *hyper, weft_error *error);
weft_status llama_read(const weft_gguf *gguf, model_hyper *hyper, weft_error *error);
weft_status llama_load(weft_model *model, weights_loader *loader);
weft_status llama_layer(model_step *step, uint32_t layer);
/* Loads as llama_load does, with the rows of another architecture's layers. */
weft_status llama_load_rows(weft_model *model, weights_loader *loader, const tensor_row *rows, uint32_t n_rows);
weft_status gpt_oss_read(const weft_gguf *gguf, model_hyper *hyper, weft_error *error);
weft_status gpt_oss_load(weft_model *model, weights_loader *loader);
/* Its layers and rotation, without embeddings, last norm and head. */
weft_status llama_load_layers(weft_model *model, weights_loader *loader);
weft_status qwen35_read(const weft_gguf *gguf, model_hyper *hyper, weft_error *error);
weft_status qwen35_load(weft_model *model, weights_loader *loader);
weft_status qwen35_layer(model_step *step, uint32_t layer);
/* The layer behind its attention, whose result `status` is of. */
weft_status qwen35_layer_after(model_step *step, uint32_t layer, weft_status status);
/* Loads one layer of these that guesses tokens ahead, but for what all such layers have (nextn.h). */
weft_status qwen35_load_nextn(weft_model *model, weights_loader *loader);
weft_status glm4moe_read(const weft_gguf *gguf, model_hyper *hyper, weft_error *error);
weft_status glm4moe_load(weft_model *model, weights_loader *loader);
weft_status deepseek2_read(const weft_gguf *gguf, model_hyper *hyper, weft_error *error);
weft_status deepseek2_load(weft_model *model, weights_loader *loader);
weft_status deepseek2_layer(model_step *step, uint32_t layer);
weft_status deepseek4_read(const weft_gguf *gguf, model_hyper *hyper, weft_error *error);
weft_status deepseek4_load(weft_model *model, weights_loader *loader);
weft_status deepseek4_embed(model_step *step);
weft_status deepseek4_layer(model_step *step, uint32_t layer);
weft_status deepseek4_load_nextn(weft_model *model, weights_loader *loader);
/* What V4 and V4.1 have in common: keys but those of far rows and of tables of experts; rotations and what lies
 * outside of layers, but for the mixer before V4's head; a layer's tensors, behind which come the model's own `rows`
 * of it; experts and the MLP beside them, of rows in h, into scratch.t. */
weft_status deepseek4_read_common(const model_keys *keys, model_hyper *hyper);
weft_status deepseek4_leave_out_nextn(const model_keys *keys, model_hyper *hyper);
weft_status deepseek4_check_listed(const model_keys *keys, const model_hyper *hyper, const char *name, bool may_be_one);
weft_status deepseek4_load_common(weft_model *model, weights_loader *loader);
weft_status deepseek4_load_layer(weights_loader *loader, uint32_t layer, const tensor_row *rows, uint32_t n_rows);
weft_status deepseek4_load_expert_stacks(weft_model *model, weights_loader *loader);
weft_status deepseek4_experts(model_step *step, const model_layer *layer);
/* Whether a tensor of any file is one that these models place with WEFT_USE_TABLE. */
bool deepseek41_is_table(const weft_gguf *gguf, const char *name);
weft_status deepseek41_read(const weft_gguf *gguf, model_hyper *hyper, weft_error *error);
weft_status deepseek41_load(weft_model *model, weights_loader *loader);
weft_status deepseek41_embed(model_step *step);
weft_status deepseek41_layer(model_step *step, uint32_t layer);
weft_status diffusion_gemma_read(const weft_gguf *gguf, model_hyper *hyper, weft_error *error);
weft_status diffusion_gemma_load(weft_model *model, weights_loader *loader);
weft_status diffusion_gemma_embed(model_step *step);

#endif
