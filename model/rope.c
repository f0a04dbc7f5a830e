/* SPDX-License-Identifier: MIT */
#include "model/rope.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/hyper.h"

static bool is_text(weft_bytes bytes, const char *text) {
  return bytes.n == strlen(text) && memcmp(bytes.data, text, bytes.n) == 0;
}

static weft_status read_kind(const model_keys *keys, rope_scaling *scaling) {
  char name[96];
  weft_bytes kind;
  (void)snprintf(name, sizeof name, "%s.rope.scaling.type", keys->arch);
  weft_status status = weft_gguf_string(keys->gguf, name, &kind, keys->error);
  if (status == WEFT_E_NOT_FOUND) {
    /* Old files have a factor without a type; their rotation is scaled linearly. */
    scaling->kind = scaling->factor > 1.0f ? ROPE_LINEAR : ROPE_PLAIN;
    return WEFT_OK;
  }
  if (status != WEFT_OK) return status;
  if (is_text(kind, "none")) {
    scaling->kind = ROPE_PLAIN;
  } else if (is_text(kind, "linear")) {
    scaling->kind = ROPE_LINEAR;
  } else if (is_text(kind, "yarn")) {
    scaling->kind = ROPE_YARN;
  } else {
    return weft_fail(keys->error, WEFT_E_UNSUPPORTED,
                     "%s: key '%s' names a scaling that is not supported; none, linear and yarn are",
                     weft_gguf_path(keys->gguf), name);
  }
  return WEFT_OK;
}

weft_status rope_read_scaling(const model_keys *keys, model_hyper *hyper, bool takes_shorter) {
  rope_scaling *s = &hyper->rope_scaling;
  weft_status status = model_keys_f32_or(keys, ".rope.scale_linear", 1e-6, 1e6, 1.0f, &s->factor);
  if (status == WEFT_OK) status = model_keys_f32_or(keys, ".rope.scaling.factor", 1e-6, 1e6, s->factor, &s->factor);
  if (status == WEFT_OK) status = read_kind(keys, s);
  if (status == WEFT_OK) {
    status = model_keys_u32_or(keys, ".rope.scaling.original_context_length", 1, 1 << 30, hyper->context_length,
                               &s->context);
  }
  if (status == WEFT_OK) status = model_keys_f32_or(keys, ".rope.scaling.attn_factor", 0, 1e3, 1.0f, &s->attention);
  if (status == WEFT_OK) {
    status = model_keys_f32_or(keys, ".rope.scaling.yarn_attn_factor", 0, 1e3, s->attention, &s->attention);
  }
  if (status == WEFT_OK) status = model_keys_f32_or(keys, ".rope.scaling.yarn_beta_fast", 0, 1e4, 32.0f, &s->fast);
  if (status == WEFT_OK) status = model_keys_f32_or(keys, ".rope.scaling.yarn_beta_slow", 0, 1e4, 1.0f, &s->slow);
  if (status != WEFT_OK || s->kind != ROPE_YARN) return status;
  status = model_keys_f32_or(keys, ".rope.scaling.yarn_log_multiplier", 0, 1e3, 0.0f, &s->shorter);
  if (status != WEFT_OK || s->shorter == 0.0f || takes_shorter) return status;
  return weft_fail(keys->error, WEFT_E_UNSUPPORTED, "%s: key '%s.rope.scaling.yarn_log_multiplier' is not supported",
                   weft_gguf_path(keys->gguf), keys->arch);
}

float rope_score_factor(const rope_scaling *scaling) {
  if (scaling->kind != ROPE_YARN) return 1.0f;
  double side = (double)scaling->attention;
  if (scaling->factor > 1.0f) {
    double longer = 0.1 * log((double)scaling->factor);
    side *= (longer + 1.0) / (longer * (double)scaling->shorter + 1.0);
  }
  return (float)(side * side);
}

/* The pair that turns `turns` times within the context that the model was trained on. */
static double find_pair(const rope_scaling *scaling, uint32_t head_dim, double base, double turns) {
  static const double two_pi = 6.283185307179586;
  return (double)head_dim * log((double)scaling->context / (turns * two_pi)) / (2 * log(base));
}

/* yarn: pairs that turn often keep their frequency, pairs that turn less than once are slowed by the factor, and those
 * between are blended. Returns the share of the slowed frequency. */
static double slowed_share(const rope_scaling *scaling, uint32_t head_dim, double base, uint32_t pair) {
  double low = find_pair(scaling, head_dim, base, (double)scaling->fast);
  double high = find_pair(scaling, head_dim, base, (double)scaling->slow);
  if (!scaling->between_pairs) low = floor(low), high = ceil(high);
  low = fmax(low, 0);
  high = fmin(high, (double)head_dim - 1);
  double share = ((double)pair - low) / fmax(high - low, 0.001);
  return fmin(fmax(share, 0), 1);
}

static float scale_frequency(const rope_scaling *scaling, uint32_t head_dim, float base, uint32_t pair,
                             float frequency) {
  if (scaling->kind == ROPE_PLAIN || scaling->factor == 1.0f) return frequency;
  float slow = frequency / scaling->factor;
  if (scaling->kind == ROPE_LINEAR) return slow;
  float share = (float)slowed_share(scaling, head_dim, (double)base, pair);
  return slow * share + frequency * (1.0f - share);
}

weft_status rope_frequencies(weights_loader *loader, uint32_t head_dim, float base, const float *divisor,
                             const float **out) {
  float values[HYPER_HEAD_DIM_MAX / 2];
  const rope_scaling *scaling = &loader->model->hyper.rope_scaling;
  const uint32_t n_rotated = loader->model->hyper.n_rotated == 0 ? head_dim : loader->model->hyper.n_rotated;
  for (uint32_t i = 0; i < head_dim / 2; i++) values[i] = 0.0f; /* what does not rotate */
  for (uint32_t i = 0; i < n_rotated / 2; i++) {
    float exponent = (float)(2 * i) / (float)n_rotated;
    float frequency = 1.0f / (float)pow((double)base, (double)exponent);
    bool still = divisor != NULL && !(divisor[i] < 1e29f);
    if (divisor != NULL) frequency = still ? 0.0f : frequency / divisor[i];
    values[i] = scale_frequency(scaling, n_rotated, base, i, frequency);
  }
  return weights_vector(loader, values, head_dim / 2, out);
}

weft_status rope_frequencies_of(weights_loader *loader, uint32_t n_rotated, float base, const rope_scaling *scaling,
                                const float **out) {
  static const rope_scaling plain = {.kind = ROPE_PLAIN, .factor = 1.0f};
  float values[HYPER_HEAD_DIM_MAX / 2];
  for (uint32_t i = 0; i < n_rotated / 2; i++) {
    float frequency = 1.0f / (float)pow((double)base, (double)((float)(2 * i) / (float)n_rotated));
    values[i] = scale_frequency(scaling == NULL ? &plain : scaling, n_rotated, base, i, frequency);
  }
  return weights_vector(loader, values, n_rotated / 2, out);
}

weft_status rope_load(weights_loader *loader) {
  weft_model *model = loader->model;
  uint32_t head_dim = model->hyper.head_dim[0];
  float divisor[HYPER_HEAD_DIM_MAX / 2];
  weft_status found = weights_read(loader, "rope_freqs.weight", head_dim / 2, divisor), status = WEFT_OK;
  if (found != WEFT_OK && found != WEFT_E_NOT_FOUND) return found;
  for (uint32_t p = 0; p < model->n_parts && status == WEFT_OK; p++) {
    model_part *part = &model->part[p];
    weights_at_layer(loader, part->first_layer);
    status =
        rope_frequencies(loader, head_dim, model->hyper.rope_base, found == WEFT_OK ? divisor : NULL, &part->inv_freq);
    part->inv_freq_window = part->inv_freq;
  }
  return status;
}
