/* SPDX-License-Identifier: MIT */
/* What of a file no row of a table asked for. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "model/weights.h"

static bool has_ending(const char *name, const char *ending) {
  size_t n = strlen(name), n_ending = strlen(ending);
  return n > n_ending && strcmp(name + n - n_ending, ending) == 0;
}

/* Encoders of images and sound beside the model, which text does not pass. */
static bool is_of_encoder(const char *name) {
  static const char *const starts[] = {"v.", "a.", "mm."};
  for (uint32_t i = 0; i < 3; i++) {
    if (strncmp(name, starts[i], strlen(starts[i])) == 0) return true;
  }
  return false;
}

/* Of what every row passes before the first layer and behind the last one, or of its rotation. */
static bool is_around_layers(const char *name) {
  static const char *const starts[] = {"token_", "position_", "per_layer_", "rope_", "output"};
  for (uint32_t i = 0; i < sizeof starts / sizeof *starts; i++) {
    if (strncmp(name, starts[i], strlen(starts[i])) == 0) return true;
  }
  return false;
}

/* Whether answers would be wrong without the tensor: it belongs to a layer that is computed or to what stands around the
 * layers, or scales another. */
static bool must_be_used(const model_hyper *hyper, const char *name) {
  unsigned layer, in_layer = sscanf(name, "blk.%u.", &layer) == 1;
  if (hyper->first_in_file > 0) return in_layer && layer == hyper->first_in_file; /* the others are the model's */
  if (is_around_layers(name)) return true;
  if (!is_of_encoder(name) && (has_ending(name, ".scale") || has_ending(name, ".input_scale"))) return true;
  return in_layer && layer < hyper->n_layers;
}

weft_status weights_check_unused(const weights_loader *loader) {
  uint32_t n = 0;
  const char *first = NULL;
  for (uint32_t i = 0; i < weft_gguf_n_tensors(loader->gguf); i++) {
    if (loader->used[i]) continue;
    const char *name = weft_gguf_tensor_at(loader->gguf, i)->name;
    if (must_be_used(&loader->model->hyper, name) && !loader->model->limits.unused_tensors) {
      return weft_fail(loader->error, WEFT_E_UNSUPPORTED,
                       "%s: tensor '%s' is not used by a %s model; without it the answers would be wrong "
                       "(--unused-tensors opens the file all the same)",
                       weft_gguf_path(loader->gguf), name, loader->model->hyper.arch);
    }
    if (n++ == 0) first = name;
  }
  if (n == 0 || loader->model->limits.nextn) return WEFT_OK; /* the layer and its model use a part of the file each */
  weft_log(WEFT_LOG_WARN, "%s: %" PRIu32 " tensors are not used by a %s model; the first is '%s'",
           weft_gguf_path(loader->gguf), n, loader->model->hyper.arch, first);
  return WEFT_OK;
}
