/* SPDX-License-Identifier: MIT */
/* The gemma4 file that holds the same tensors as a diffusion file, for tests: what the encoder pass computes, as a
 * plain autoregressive model.
 *
 * Law: keys of the architecture change their prefix, keys of the canvas are left out, and the encoder's layer scalars
 * take the place of the decoder's. Tensors keep their bytes. */
#ifndef WEFT_TESTS_GGUF_TWIN_H
#define WEFT_TESTS_GGUF_TWIN_H

#include "tests/support/gguf_requantise.h"

static inline bool twin_starts_with(weft_bytes text, const char *start) {
  size_t n = strlen(start);
  return text.n >= n && memcmp(text.data, start, n) == 0;
}

static inline void twin_key(const gguf_key *key, const char *arch, gguf_writer *w) {
  weft_bytes name = {key->name.data, key->name.n};
  const char *rest = key->name.data + key->name.n; /* kind and value */
  size_t n_rest = (size_t)((const char *)requantise_key_end(key) - rest);
  if (twin_starts_with(name, "general.architecture")) {
    gguf_writer_string(w, "general.architecture", "gemma4");
    return;
  }
  if (twin_starts_with(name, "diffusion.") || strstr(arch, "diffusion") == NULL) return;
  w->n_keys += 1;
  if (twin_starts_with(name, arch)) {
    char renamed[256];
    int n = snprintf(renamed, sizeof renamed, "gemma4%.*s", (int)(name.n - strlen(arch)),
                     (const char *)name.data + strlen(arch));
    gguf_writer_text_raw(&w->keys, renamed, (size_t)n);
  } else {
    gguf_writer_text_raw(&w->keys, name.data, name.n);
  }
  gguf_writer_bytes(&w->keys, rest, n_rest);
}

/* Fills w; arch is the diffusion file's own word. */
static inline void gguf_twin(const weft_gguf *from, const char *arch, gguf_writer *w) {
  for (uint32_t i = 0; i < from->parts[0].n_keys; i++) twin_key(&from->parts[0].keys[i], arch, w);
  for (uint32_t i = 0; i < from->n_tensors; i++) {
    const weft_gguf_tensor *tensor = &from->tensors[i];
    char name[128];
    const char *encoder = strstr(tensor->name, ".enc_layer_output_scale");
    if (strstr(tensor->name, "self_cond") != NULL) continue;
    if (encoder == NULL && strstr(tensor->name, ".layer_output_scale") != NULL) continue;
    (void)snprintf(name, sizeof name, "%s", tensor->name);
    if (encoder != NULL) {
      (void)snprintf(name, sizeof name, "%.*s.layer_output_scale.weight", (int)(encoder - tensor->name), tensor->name);
    }
    gguf_writer_tensor(w, name, (int32_t)tensor->type, tensor->n_dims, tensor->ne, tensor->data,
                       (size_t)tensor->n_bytes);
  }
}

#endif
