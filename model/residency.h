/* SPDX-License-Identifier: MIT */
/* Where the experts of a model lie: on the devices, or in host memory because a device has no room for all.
 *
 * Law: on each device the order of residency is that in which weights are placed: all that are no experts, then experts
 * in the order of the layers, and in a layer in the order of the file's table. What lies on the device is a prefix of
 * it (kernels/expert_room.h). */
#ifndef WEFT_MODEL_RESIDENCY_H
#define WEFT_MODEL_RESIDENCY_H

#include "base/text.h"
#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of the experts of one device. */
typedef struct weft_model_residency {
  uint64_t n_bytes, n_bytes_away; /* of all, and of those in host memory */
  uint32_t n, n_away;             /* weights: stacks of experts */
  uint32_t first_away;            /* the layer of the first one in host memory */
} weft_model_residency;

/* part: below the model's number of devices. */
weft_model_residency weft_model_get_residency(const weft_model *model, uint32_t part);
/* Lines of the plan: the order, and how far each device has room. Nothing where all lie on the devices. */
void weft_model_print_residency(const weft_model *model, weft_text *out);

#ifdef __cplusplus
}
#endif
#endif
