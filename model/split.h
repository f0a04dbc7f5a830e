/* SPDX-License-Identifier: MIT */
/* On which devices a model lies.
 *
 * Law: part p has the layers from first_layer[p] up to first_layer[p + 1], the last part those up to the model's end.
 * Parts are in the order of their layers, and each has a layer at least. The first part also embeds; the last one also
 * has the final norm and the head. A cut, which lies between two parts, never separates a layer from a later one that
 * reads its keys.
 *
 * Where there are several shards a part lies on as many devices: each has all layers of the part, and of each layer an
 * equal share of the heads and a share of the experts or feed-forward columns (model/shards.h). Shard s of part p is
 * device[p * n_shards + s]. Shard 0 of the first part also embeds, that of the last part has the head. */
#ifndef WEFT_MODEL_SPLIT_H
#define WEFT_MODEL_SPLIT_H

#include "kernels/device.h"
#include "model/kv_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where integers of all weights find no room (kernels/device.h): of 16 layers, those spread evenly, so many have codes
 * alone of their experts, and of what else they multiply by. Neither: all weights that can have integers do. Which have
 * them changes no bit. */
enum { WEFT_CODES_OF = 16 };
typedef struct weft_codes_alone {
  uint32_t experts, others;
} weft_codes_alone;

typedef struct weft_split {
  uint32_t n_devices; /* 1 .. WEFT_DEVICES_MAX */
  weft_device *device[WEFT_DEVICES_MAX];
  uint32_t
      first_layer[WEFT_DEVICES_MAX + 1]; /* of each part; first_layer[0] is 0; the entry behind the last is not read */
  uint32_t n_shards;                     /* of each part, a divisor of n_devices; 0: 1 */
  weft_codes_alone codes_alone;          /* on each of the devices that keep integers */
} weft_split;

/* The whole model on one device. */
static inline weft_split weft_split_one(weft_device *device) {
  return (weft_split){.n_devices = 1, .device = {device}};
}

/* Devices that compute each layer together. */
static inline uint32_t weft_split_shards(const weft_split *split) {
  return split->n_shards > 1 ? split->n_shards : 1;
}

/* Parts, which the rows of a step pass one after another. */
static inline uint32_t weft_split_stages(const weft_split *split) {
  return split->n_devices / weft_split_shards(split);
}

/* The place in `device` of a shard of a part. */
static inline uint32_t weft_split_place(const weft_split *split, uint32_t part, uint32_t shard) {
  return part * weft_split_shards(split) + shard;
}

/* The place of the device that has the head, and the device. */
static inline uint32_t weft_split_last_place(const weft_split *split) {
  return weft_split_place(split, weft_split_stages(split) - 1, 0);
}
static inline weft_device *weft_split_last(const weft_split *split) {
  return split->device[weft_split_last_place(split)];
}

/* Whether no layer from `layer` on reads the keys of a layer before it. */
bool weft_split_can_cut(const weft_kv_geometry *geometry, uint32_t layer);
/* INVALID, with a line that names the layers which must stay together or the number that is wrong, unless the split
 * keeps the law for a model with this geometry. The devices themselves are not looked at. */
weft_status weft_split_check(const weft_split *split, const weft_kv_geometry *geometry, weft_error *error);

/* For a line that refuses: "device N: A MiB needed, B MiB free" of each device of which something is needed.
 * needed and left are arrays of bytes [n_devices]; left NULL: what is free now. Returns `out`. */
enum { WEFT_SPLIT_ROOM_MAX = 256 };
const char *weft_split_tell_room(const weft_split *split, const uint64_t *needed, const uint64_t *left,
                                 char out[WEFT_SPLIT_ROOM_MAX]);

#ifdef __cplusplus
}
#endif
#endif
