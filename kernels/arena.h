/* SPDX-License-Identifier: MIT */
/* The arena: where weights lie on a card. It consists of pieces, each with memory of its own.
 *
 * Law: where the card can map memory, a weight of WEIGHT_ARENA_OWN bytes or more has a piece to itself, whose address
 * is a multiple of the grain (2 MiB), and smaller weights share pieces, which are then called chunks. Where the card
 * cannot map, pieces are plain allocations, and only a weight of WEIGHT_ARENA_PLAIN_OWN bytes or more has one to
 * itself: in chunks such weights would leave ends that no other fits in. In a chunk weights lie at multiples of 256
 * bytes. The memory taken from the card never exceeds n_bytes_max (0: no cap): a take beyond it is NO_MEMORY and takes
 * nothing. After an error the arena holds what it held before. One thread at a time may call it. */
#ifndef WEFT_KERNELS_ARENA_H
#define WEFT_KERNELS_ARENA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WEIGHT_ARENA_OWN = 1 << 20, WEIGHT_ARENA_CHUNK = 16 << 20 };
enum { WEIGHT_ARENA_PLAIN_OWN = 32 << 20, WEIGHT_ARENA_PLAIN_CHUNK = 256 << 20 };

/* What the arena asks of the card. reserve takes address space without memory, map gives memory to all of a reserved
 * range; both are UNSUPPORTED on a card that cannot map. alloc takes plain memory. */
typedef struct weight_arena_calls {
  weft_status (*reserve)(void *self, uint64_t n_bytes, void **address);
  void (*release)(void *self, void *address, uint64_t n_bytes);
  weft_status (*map)(void *self, void *address, uint64_t n_bytes);
  void (*unmap)(void *self, void *address, uint64_t n_bytes);
  weft_status (*alloc)(void *self, uint64_t n_bytes, void **out);
  void (*free)(void *self, void *memory);
} weight_arena_calls;

typedef struct weight_arena_piece {
  uint8_t *address;
  uint64_t n_bytes, at; /* at: where the next weight of a chunk goes */
  uint32_t n_live;
  bool mapped;
} weight_arena_piece;

/* Fields are the arena's own; callers may read n_asked and n_taken. */
typedef struct weight_arena {
  const weight_arena_calls *calls;
  void *self;
  uint64_t grain, n_bytes_max;
  bool plain;     /* the card cannot map */
  uint64_t chunk; /* bytes of a chunk; 0, as open leaves it: WEIGHT_ARENA_CHUNK or _PLAIN_CHUNK. A caller may set it */
  weight_arena_piece *piece;
  uint32_t n_pieces, pieces_max;
  uint64_t n_asked, n_taken; /* bytes of weights, and of the card's memory for them */
} weight_arena;

/* Takes no memory yet. self is handed to calls. grain: the unit in which the card maps memory; 0: it cannot map. */
void weight_arena_open(weight_arena *arena, const weight_arena_calls *calls, void *self, uint64_t grain,
                       uint64_t n_bytes_max);
/* Gives all memory back to the card. */
void weight_arena_close(weight_arena *arena);
/* Takes memory for a weight. Errors: NO_MEMORY, and those of the calls. */
weft_status weight_arena_take(weight_arena *arena, uint64_t n_bytes, void **out);
/* Gives a weight back, of as many bytes as were taken. Its piece goes back to the card with the last weight in it. */
void weight_arena_give(weight_arena *arena, void *memory, uint64_t n_bytes);

#ifdef __cplusplus
}
#endif
#endif
