/* SPDX-License-Identifier: MIT */
/* The registry of architectures: one row each.
 *
 * Law: an architecture says how its keys become a weft_hyper, which tensors it loads, and how a
 * step is computed. The rest of weft sees only model/model.h. */
#ifndef WEFT_MODEL_MODELS_H
#define WEFT_MODEL_MODELS_H

#include "model/model_internal.h"
#include "model/weights.h"

typedef struct weft_arch {
  const char *name; /* general.architecture */
  /* Reads and judges the keys. hyper is zero; arch and n_vocab are set already. */
  weft_status (*read)(const weft_gguf *gguf, weft_hyper *hyper, weft_error *error);
  /* Loads all tensors into model->globals and model->layers. */
  weft_status (*load)(weft_model *model, weft_loader *loader);
  /* Computes the embedding of all rows of the step into step->x. */
  weft_status (*embed)(weft_step *step);
  /* Computes one layer in place. */
  weft_status (*layer)(weft_step *step, uint32_t layer);
} weft_arch;

/* NULL when there is none. */
const weft_arch *weft_arch_find(const char *name, size_t n);
/* All names, separated by commas, for messages. */
const char *weft_arch_names(void);

/* Reads general.architecture and the keys. Used by open and by inspect. */
weft_status weft_hyper_read(const weft_gguf *gguf, const weft_arch **arch, weft_hyper *hyper, weft_error *error);
weft_kv_geometry weft_hyper_geometry(const weft_hyper *hyper, weft_type kv_type);
/* F32 when every tensor of the file is F32, else BF16. */
weft_type weft_gguf_kv_type(const weft_gguf *gguf);
/* general.name cut to the size, or the file's name without folder and .gguf. */
void weft_gguf_model_name(const weft_gguf *gguf, char *out, size_t size);

/* Architectures. */
weft_status gemma4__read(const weft_gguf *gguf, weft_hyper *hyper, weft_error *error);
weft_status gemma4__load(weft_model *model, weft_loader *loader);
weft_status gemma4__embed(weft_step *step);
weft_status gemma4__layer(weft_step *step, uint32_t layer);
weft_status diffusion_gemma__read(const weft_gguf *gguf, weft_hyper *hyper, weft_error *error);
weft_status diffusion_gemma__load(weft_model *model, weft_loader *loader);
weft_status diffusion_gemma__embed(weft_step *step);

#endif
