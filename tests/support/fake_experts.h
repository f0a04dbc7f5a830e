/* SPDX-License-Identifier: MIT */
/* What a fake card is told and tells of experts in host memory; a part of fake_card.h. */
#ifndef WEFT_TESTS_FAKE_EXPERTS_H
#define WEFT_TESTS_FAKE_EXPERTS_H

#include "tests/support/fake_card.h"

static inline void fake_expect_experts(weft_device *device, uint64_t n_bytes) {
  expert_room_expect(&fake_of(device)->room.of, n_bytes);
}

static inline bool fake_weight_is_away(const weft_device *device, const weft_weight *weight) {
  return fake_slots_have(&((const fake_card *)(const void *)device)->slots, weight->data);
}

#endif
