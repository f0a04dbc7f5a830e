/* SPDX-License-Identifier: MIT */
/* The room that a fake card has for experts, where the rest stays in host memory (kernels/expert_room.h). */
#ifndef WEFT_TESTS_FAKE_ROOM_H
#define WEFT_TESTS_FAKE_ROOM_H

#include "kernels/expert_room.h"
#include "kernels/expert_slots.h"

typedef struct fake_room {
  bool is_bounded;
  uint64_t most, taken; /* bytes */
  expert_room of;
} fake_room;

/* An expert weight of n_bytes comes: whether it has room. */
static inline bool fake_room_takes(fake_room *room, uint64_t n_bytes) {
  room->most -= expert_room_reserve(&room->of, room->most - room->taken);
  bool here = !room->of.is_full && n_bytes <= room->most - room->taken;
  if (!here) room->most -= expert_room_fill(&room->of, room->most - room->taken);
  if (here) room->taken += n_bytes;
  expert_room_placed(&room->of, n_bytes);
  return here;
}

static inline bool fake_slots_have(const expert_slots *slots, const void *data) {
  uint32_t i = 0;
  while (i < slots->n_kept && slots->kept[i].data != data) i++;
  return i < slots->n_kept;
}

#endif
