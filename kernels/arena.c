/* SPDX-License-Identifier: MIT */
#include "kernels/arena.h"

#include "base/check.h"
#include "base/memory.h"
#include "base/round.h"

enum { ALIGN = 256 };

void weight_arena_open(weight_arena *a, const weight_arena_calls *calls, void *self, uint64_t grain,
                       uint64_t n_bytes_max) {
  *a = (weight_arena){.calls = calls, .self = self, .grain = grain, .n_bytes_max = n_bytes_max, .plain = grain == 0};
}

static void give_back(weight_arena *a, weight_arena_piece *piece) {
  if (piece->mapped) {
    a->calls->unmap(a->self, piece->address, piece->n_bytes);
    a->calls->release(a->self, piece->address, piece->n_bytes);
  } else {
    a->calls->free(a->self, piece->address);
  }
  a->n_taken -= piece->n_bytes;
}

void weight_arena_close(weight_arena *a) {
  for (uint32_t i = 0; i < a->n_pieces; i++) give_back(a, &a->piece[i]);
  weft_free(a->piece);
  *a = (weight_arena){.calls = NULL};
}

static weft_status make_room(weight_arena *a) {
  if (a->n_pieces < a->pieces_max) return WEFT_OK;
  uint32_t n = a->pieces_max == 0 ? 64 : 2 * a->pieces_max;
  weight_arena_piece *more = weft_realloc(a->piece, n, sizeof *more);
  if (more == NULL) return WEFT_E_NO_MEMORY;
  a->piece = more;
  a->pieces_max = n;
  return WEFT_OK;
}

static weft_status map_piece(weight_arena *a, uint64_t n_bytes, weight_arena_piece *piece) {
  void *address = NULL;
  weft_status status = a->calls->reserve(a->self, n_bytes, &address);
  if (status != WEFT_OK) return status;
  status = a->calls->map(a->self, address, n_bytes);
  if (status != WEFT_OK) a->calls->release(a->self, address, n_bytes);
  *piece = (weight_arena_piece){.address = address, .n_bytes = n_bytes, .mapped = true};
  return status;
}

static weft_status plain_piece(weight_arena *a, uint64_t n_bytes, weight_arena_piece *piece) {
  void *memory = NULL;
  weft_status status = a->calls->alloc(a->self, n_bytes, &memory);
  *piece = (weight_arena_piece){.address = memory, .n_bytes = n_bytes};
  return status;
}

/* Adds a piece of n_bytes or more. NULL: *status says why there is none. */
static weight_arena_piece *take_piece(weight_arena *a, uint64_t n_bytes, weft_status *status) {
  weight_arena_piece piece;
  *status = make_room(a);
  if (*status != WEFT_OK) return NULL;
  uint64_t n = weft_round_up(n_bytes, a->plain ? ALIGN : a->grain);
  if (a->n_bytes_max > 0 && (n > a->n_bytes_max || a->n_taken > a->n_bytes_max - n)) *status = WEFT_E_NO_MEMORY;
  if (*status == WEFT_OK) *status = a->plain ? plain_piece(a, n, &piece) : map_piece(a, n, &piece);
  if (*status == WEFT_E_UNSUPPORTED && !a->plain) {
    a->plain = true;
    *status = plain_piece(a, n, &piece);
  }
  if (*status != WEFT_OK) return NULL;
  a->n_taken += piece.n_bytes;
  a->piece[a->n_pieces] = piece;
  return &a->piece[a->n_pieces++];
}

static weight_arena_piece *chunk_with_room(weight_arena *a, uint64_t n_bytes) {
  for (uint32_t i = a->n_pieces; i-- > 0;) {
    if (a->piece[i].n_bytes - a->piece[i].at >= n_bytes) return &a->piece[i];
  }
  return NULL;
}

weft_status weight_arena_take(weight_arena *a, uint64_t n_bytes, void **out) {
  weft_status status = WEFT_OK;
  weight_arena_piece *piece = NULL;
  *out = NULL;
  if (n_bytes > UINT64_MAX / 2) return WEFT_E_NO_MEMORY;
  uint64_t n = weft_round_up(n_bytes == 0 ? 1 : n_bytes, ALIGN);
  bool own = n_bytes >= (a->plain ? WEIGHT_ARENA_PLAIN_OWN : WEIGHT_ARENA_OWN);
  if (!own) piece = chunk_with_room(a, n);
  if (piece == NULL && !own) {
    uint64_t chunk = a->chunk > 0 ? a->chunk : a->plain ? WEIGHT_ARENA_PLAIN_CHUNK : WEIGHT_ARENA_CHUNK;
    piece = take_piece(a, n > chunk ? n : chunk, &status);
  }
  if (piece == NULL) piece = take_piece(a, n, &status); /* a piece to itself; also where a whole chunk does not fit */
  if (piece == NULL) return status;
  *out = piece->address + piece->at;
  piece->at = own ? piece->n_bytes : piece->at + n; /* no other weight shares the piece of a large one */
  piece->n_live += 1;
  a->n_asked += n_bytes;
  return WEFT_OK;
}

void weight_arena_give(weight_arena *a, void *memory, uint64_t n_bytes) {
  uint32_t i = 0;
  const uint8_t *at = memory;
  while (i < a->n_pieces && (at < a->piece[i].address || at >= a->piece[i].address + a->piece[i].n_bytes)) i++;
  WEFT_CHECK(i < a->n_pieces);
  a->n_asked -= n_bytes;
  if (--a->piece[i].n_live > 0) return;
  give_back(a, &a->piece[i]);
  a->piece[i] = a->piece[--a->n_pieces];
}
