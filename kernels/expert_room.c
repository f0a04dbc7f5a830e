/* SPDX-License-Identifier: MIT */
#include "kernels/expert_room.h"

#include <string.h>

void expert_room_expect(expert_room *r, uint64_t n_bytes) {
  memset(r, 0, sizeof *r);
  r->n_expected = n_bytes;
}

uint64_t expert_room_reserve(expert_room *r, uint64_t left) {
  if (r->n_placed > 0 || r->cache_bytes > 0 || r->n_expected <= left) return 0;
  return r->cache_bytes = left - left / EXPERT_ROOM_STACKS_PART;
}

uint64_t expert_room_fill(expert_room *r, uint64_t left) {
  if (r->n_expected <= r->n_placed || r->is_full) return 0;
  r->is_full = true;
  r->host_bytes = r->n_expected - r->n_placed;
  r->cache_bytes += left;
  return left;
}

void expert_room_placed(expert_room *r, uint64_t n_bytes) {
  r->n_placed += n_bytes;
}

uint64_t expert_room_share(const expert_room *r, uint64_t n_bytes) {
  if (r->host_bytes == 0) return 0;
  double share = (double)n_bytes / (double)r->host_bytes;
  return (uint64_t)((double)r->cache_bytes * (share < 1.0 ? share : 1.0));
}
