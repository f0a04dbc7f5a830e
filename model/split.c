/* SPDX-License-Identifier: MIT */
#include "model/split.h"

#include <inttypes.h>
#include <stdio.h>

static weft_status check_numbers(const weft_split *split, uint32_t n_layers, weft_error *error) {
  uint32_t n_devices = split->n_devices, n_shards = weft_split_shards(split), n = weft_split_stages(split);
  if (n_devices == 0 || n_devices > WEFT_DEVICES_MAX) {
    return weft_fail(error, WEFT_E_INVALID, "split: a model lies on 1 to %d devices, not on %" PRIu32, WEFT_DEVICES_MAX,
                     n_devices);
  }
  if (n * n_shards != n_devices) {
    return weft_fail(error, WEFT_E_INVALID,
                     "split: %" PRIu32 " devices cannot be shared out to parts of %" PRIu32 " shards", n_devices,
                     n_shards);
  }
  if (n > n_layers) {
    return weft_fail(error, WEFT_E_INVALID,
                     "layer split: %" PRIu32 " layers cannot be shared out to %" PRIu32 " %s; give fewer %s", n_layers,
                     n, n_shards == 1 ? "devices" : "parts", n_shards == 1 ? "devices" : "parts");
  }
  if (split->first_layer[0] != 0) {
    return weft_fail(error, WEFT_E_INVALID, "layer split: the first device begins with layer %" PRIu32 ", not with 0",
                     split->first_layer[0]);
  }
  for (uint32_t p = 1; p < n; p++) {
    if (split->first_layer[p] > split->first_layer[p - 1] && split->first_layer[p] < n_layers) continue;
    return weft_fail(error, WEFT_E_INVALID,
                     "layer split: %s %" PRIu32 " of %" PRIu32 " would begin with layer %" PRIu32
                     "; each has at least one of the %" PRIu32 " layers",
                     n_shards == 1 ? "device" : "part", p + 1, n, split->first_layer[p], n_layers);
  }
  return WEFT_OK;
}

/* The first layer after all those that read the keys of layer `source`. */
static uint32_t end_of_readers(const weft_kv_geometry *geometry, uint32_t source) {
  uint32_t end = source + 1;
  for (uint32_t s = 0; s < geometry->n_sets; s++) {
    const weft_kv_set *set = &geometry->set[s];
    if (set->keys_of != 0 && geometry->set[set->keys_of - 1].layer == source && set->layer >= end)
      end = set->layer + 1u;
  }
  return end;
}

bool weft_split_can_cut(const weft_kv_geometry *geometry, uint32_t layer) {
  for (uint32_t l = 0; l < layer; l++) {
    if (end_of_readers(geometry, l) > layer) return false;
  }
  return true;
}

weft_status weft_split_check(const weft_split *split, const weft_kv_geometry *geometry, weft_error *error) {
  weft_status status = check_numbers(split, geometry->n_layers, error);
  for (uint32_t p = 1; status == WEFT_OK && p < weft_split_stages(split); p++) {
    uint32_t cut = split->first_layer[p];
    for (uint32_t l = 0; l < cut; l++) {
      uint32_t end = end_of_readers(geometry, l);
      if (end <= cut) continue;
      return weft_fail(error, WEFT_E_INVALID,
                       "layer split: layers %" PRIu32 " to %" PRIu32 " must lie on one device, because layer %" PRIu32
                       " reads the keys of layer %" PRIu32 "; no cut is possible before layer %" PRIu32,
                       l, end - 1, end - 1, l, cut);
    }
  }
  return status;
}

const char *weft_split_tell_room(const weft_split *split, const uint64_t *needed, const uint64_t *left,
                                 char out[WEFT_SPLIT_ROOM_MAX]) {
  const double mib = 1024.0 * 1024.0;
  size_t at = 0;
  out[0] = 0;
  for (uint32_t p = 0; p < split->n_devices; p++) {
    if (needed[p] == 0) continue;
    weft_device *device = split->device[p];
    uint64_t n_free = left != NULL ? left[p] : weft_device_memory_left(device);
    int n = snprintf(out + at, WEFT_SPLIT_ROOM_MAX - at, "%sdevice %" PRIu32 ": %.2f MiB needed, %.2f MiB free",
                     at == 0 ? "" : "; ", weft_device_get_info(device)->index, (double)needed[p] / mib,
                     (double)n_free / mib);
    if (n < 0 || at + (size_t)n >= WEFT_SPLIT_ROOM_MAX) break;
    at += (size_t)n;
  }
  return out;
}
