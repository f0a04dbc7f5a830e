/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/memory.h"
#include "model/text/jinja_value.h"

enum { CHUNK_BYTES = 16 << 10, CHUNK_BYTES_MAX = 1 << 20, ALIGN = 16 };

typedef struct jinja_chunk {
  struct jinja_chunk *before;
  size_t used, size;
  _Alignas(ALIGN) char bytes[];
} jinja_chunk;

static bool add_chunk(jinja_arena *arena, size_t n) {
  size_t size = arena->last == NULL ? CHUNK_BYTES : arena->last->size * 2;
  if (size > CHUNK_BYTES_MAX) size = CHUNK_BYTES_MAX;
  if (size < n) size = n;
  if (size > arena->max || arena->n_bytes > arena->max - size) {
    arena->over = true;
    return false;
  }
  jinja_chunk *chunk = weft_alloc(1, sizeof *chunk + size);
  if (chunk == NULL) return false;
  chunk->size = size;
  chunk->before = arena->last;
  arena->last = chunk;
  arena->n_bytes += size;
  return true;
}

void *jinja_arena_take(jinja_arena *arena, size_t n) {
  if (n > SIZE_MAX / 2) {
    arena->over = true;
    return NULL;
  }
  n = (n + ALIGN - 1) & ~(size_t)(ALIGN - 1);
  if (n == 0) n = ALIGN;
  if ((arena->last == NULL || arena->last->size - arena->last->used < n) && !add_chunk(arena, n)) return NULL;
  void *memory = arena->last->bytes + arena->last->used;
  arena->last->used += n;
  return memory;
}

void jinja_arena_close(jinja_arena *arena) {
  while (arena->last != NULL) {
    jinja_chunk *chunk = arena->last;
    arena->last = chunk->before;
    weft_free(chunk);
  }
  arena->n_bytes = 0;
}
