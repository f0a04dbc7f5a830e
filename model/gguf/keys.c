/* SPDX-License-Identifier: MIT */
#include "model/gguf/keys.h"

#include <inttypes.h>
#include <stdio.h>

enum { NAME_MAX_BYTES = 128 };

static void full_name(const model_keys *keys, const char *name, char out[NAME_MAX_BYTES]) {
  (void)snprintf(out, NAME_MAX_BYTES, "%s%s", name[0] == '.' ? keys->arch : "", name);
}

static bool is_present(const model_keys *keys, const char *name) {
  char full[NAME_MAX_BYTES];
  full_name(keys, name, full);
  return weft_gguf_find(keys->gguf, full) >= 0;
}

static weft_status fail_missing(const model_keys *keys, const char *full) {
  return weft_fail(keys->error, WEFT_E_FORMAT, "%s: key '%s' is missing; a %s model needs it",
                   weft_gguf_path(keys->gguf), full, keys->arch);
}

/* What comes of a whole number that the file was asked for: `found` says whether there is one. */
static weft_status check_u32(const model_keys *keys, const char *full, weft_status found, uint64_t value, uint32_t low,
                             uint32_t high, uint32_t *out) {
  if (found == WEFT_E_NOT_FOUND) return fail_missing(keys, full);
  if (found != WEFT_OK) return found;
  if (value < low || value > high) {
    return weft_fail(keys->error, WEFT_E_FORMAT, "%s: key '%s' is %" PRIu64 "; it must be %" PRIu32 "..%" PRIu32,
                     weft_gguf_path(keys->gguf), full, value, low, high);
  }
  *out = (uint32_t)value;
  return WEFT_OK;
}

weft_status model_keys_u32(const model_keys *keys, const char *name, uint32_t low, uint32_t high, uint32_t *out) {
  char full[NAME_MAX_BYTES];
  uint64_t value = 0;
  full_name(keys, name, full);
  weft_status status = weft_gguf_u64(keys->gguf, full, &value, keys->error);
  return check_u32(keys, full, status, value, low, high, out);
}

weft_status model_keys_u32_or(const model_keys *keys, const char *name, uint32_t low, uint32_t high, uint32_t initial,
                              uint32_t *out) {
  if (is_present(keys, name)) return model_keys_u32(keys, name, low, high, out);
  *out = initial;
  return WEFT_OK;
}

weft_status model_keys_u32_at(const model_keys *keys, const char *name, uint64_t i, uint32_t low, uint32_t high,
                              uint32_t *out) {
  char full[NAME_MAX_BYTES];
  uint64_t value = 0;
  full_name(keys, name, full);
  weft_status status = weft_gguf_u64_at(keys->gguf, full, i, &value, keys->error);
  return check_u32(keys, full, status, value, low, high, out);
}

static weft_status check_f32(const model_keys *keys, const char *full, weft_status found, double value, double low,
                             double high, float *out) {
  if (found == WEFT_E_NOT_FOUND) return fail_missing(keys, full);
  if (found != WEFT_OK) return found;
  if (!(value >= low && value <= high)) {
    return weft_fail(keys->error, WEFT_E_FORMAT, "%s: key '%s' is %g; it must be %g..%g", weft_gguf_path(keys->gguf),
                     full, value, low, high);
  }
  *out = (float)value;
  return WEFT_OK;
}

weft_status model_keys_f32(const model_keys *keys, const char *name, double low, double high, float *out) {
  char full[NAME_MAX_BYTES];
  double value = 0;
  full_name(keys, name, full);
  weft_status status = weft_gguf_f64(keys->gguf, full, &value, keys->error);
  return check_f32(keys, full, status, value, low, high, out);
}

weft_status model_keys_f32_at(const model_keys *keys, const char *name, uint64_t i, double low, double high,
                              float *out) {
  char full[NAME_MAX_BYTES];
  double value = 0;
  full_name(keys, name, full);
  weft_status status = weft_gguf_f64_at(keys->gguf, full, i, &value, keys->error);
  return check_f32(keys, full, status, value, low, high, out);
}

weft_status model_keys_f32_or(const model_keys *keys, const char *name, double low, double high, float initial,
                              float *out) {
  if (is_present(keys, name)) return model_keys_f32(keys, name, low, high, out);
  *out = initial;
  return WEFT_OK;
}

uint64_t model_keys_count(const model_keys *keys, const char *name) {
  char full[NAME_MAX_BYTES];
  full_name(keys, name, full);
  return weft_gguf_count(keys->gguf, full);
}
