/* SPDX-License-Identifier: MIT */
/* Where weights lie on a card: pieces of address space with memory of their own.
 *
 * Law: a piece of 1 MiB or more begins at an address of its own that is a multiple of the grain (2 MiB); smaller ones
 * share chunks, at multiples of 256. Where the card cannot map memory, chunks are plain allocations. Memory taken from
 * the card never exceeds n_bytes_max (0: no cap): NO_MEMORY, with nothing taken. An error leaves the arena as it was.
 * No thread but one at a time. */
#ifndef WEFT_KERNELS_ARENA_H
#define WEFT_KERNELS_ARENA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WEIGHT_ARENA_OWN = 1 << 20, WEIGHT_ARENA_CHUNK = 16 << 20, WEIGHT_ARENA_PLAIN_CHUNK = 256 << 20 };

/* The card. map: memory for all of a reserved range, UNSUPPORTED where there is no such thing (the reservation then
 * too). alloc: plain memory. */
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

typedef struct weight_arena {
  const weight_arena_calls *calls;
  void *self;
  uint64_t grain, n_bytes_max;
  bool plain; /* the card cannot map */
  weight_arena_piece *piece;
  uint32_t n_pieces, pieces_max;
  uint64_t n_asked, n_taken; /* bytes of weights, and of the card's memory for them */
} weight_arena;

void weight_arena_open(weight_arena *arena, const weight_arena_calls *calls, void *self, uint64_t grain,
                       uint64_t n_bytes_max);
/* Gives back everything. */
void weight_arena_close(weight_arena *arena);
weft_status weight_arena_take(weight_arena *arena, uint64_t n_bytes, void **out);
/* A piece goes back to the card when nothing of it is held. */
void weight_arena_give(weight_arena *arena, void *memory, uint64_t n_bytes);

#ifdef __cplusplus
}
#endif
#endif
