/* SPDX-License-Identifier: MIT */
/* Experts that stay in host memory because a device has no room for them: what a device is told of them, and tells. */
#ifndef WEFT_KERNELS_HOST_EXPERTS_H
#define WEFT_KERNELS_HOST_EXPERTS_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What of them lies in device memory besides, now these and then others; tokens of calls that fetched the chosen ones
 * alone, one for each expert and weight that a token went to. All 0 on devices that have none. */
typedef struct weft_experts_report {
  uint64_t n_bytes_cached;
  uint64_t n_tokens, n_tokens_cached; /* those of them whose expert lay in device memory */
  uint64_t n_exchanged;               /* experts that came into device memory for others */
  uint64_t n_tokens_computed;         /* of n_tokens: by the processor, where the experts lie */
  uint32_t n_threads;                 /* of the processor for these; 0: it computes none */
} weft_experts_report;
weft_experts_report weft_device_experts(const weft_device *device);
/* Called before a model's weights are placed, of which experts are the last: they have so many bytes, and may stay in
 * host memory. Where they have no room beside the others, some of the room becomes a cache of experts. */
void weft_device_expect_experts(weft_device *device, uint64_t n_bytes);
/* Whether the device's weight lies in host memory, because the device has no room for it. */
bool weft_device_weight_is_away(const weft_device *device, const weft_weight *weight);

#ifdef __cplusplus
}
#endif
#endif
