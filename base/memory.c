/* SPDX-License-Identifier: MIT */
#include "base/memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

static _Atomic uint64_t fail_at; /* 0: off */
static _Atomic uint64_t n_counted;

uint64_t weft_memory_fail_at(uint64_t n) {
  atomic_store(&fail_at, n);
  return atomic_exchange(&n_counted, 0);
}

static bool is_refused_now(void) {
  uint64_t at = atomic_load_explicit(&fail_at, memory_order_relaxed);
  uint64_t n = atomic_fetch_add_explicit(&n_counted, 1, memory_order_relaxed) + 1;
  return at != 0 && n == at;
}

void *weft_alloc(size_t n, size_t size) {
  if (is_refused_now()) return NULL;
  if (n == 0 || size == 0) n = size = 1;
  if (n > SIZE_MAX / size) return NULL;
  return calloc(n, size);
}

void *weft_alloc_aligned(size_t n_bytes, size_t align) {
  if (is_refused_now()) return NULL;
  if (align < 8 || (align & (align - 1)) != 0) return NULL;
  if (n_bytes > SIZE_MAX - align) return NULL;
  size_t rounded = (n_bytes + align - 1) & ~(align - 1);
  return aligned_alloc(align, rounded == 0 ? align : rounded);
}

void *weft_realloc(void *memory, size_t n, size_t size) {
  if (is_refused_now()) return NULL;
  if (size != 0 && n > SIZE_MAX / size) return NULL;
  size_t n_bytes = n * size;
  return realloc(memory, n_bytes == 0 ? 1 : n_bytes);
}

void weft_free(void *memory) {
  free(memory);
}

void *weft_grow(void *items, uint32_t n, uint32_t *capacity, uint32_t first, size_t size) {
  if (n < *capacity) return items;
  if (*capacity > UINT32_MAX / 2) return NULL;
  uint32_t more = *capacity == 0 ? first : *capacity * 2;
  void *memory = weft_realloc(items, more, size);
  if (memory != NULL) *capacity = more;
  return memory;
}

void weft_memory_prefer_huge(void *memory, size_t n_bytes) {
#if defined(__linux__)
  const uintptr_t page = 4096, at = (uintptr_t)memory;
  uintptr_t begin = (at + page - 1) & ~(page - 1), end = (at + n_bytes) & ~(page - 1);
  if (begin < end) (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE); /* a refusal costs speed only */
#else
  (void)memory;
  (void)n_bytes;
#endif
}

char *weft_strndup(const char *text, size_t n_bytes) {
  char *copy = weft_alloc(n_bytes + 1, 1);
  if (copy != NULL && n_bytes > 0) memcpy(copy, text, n_bytes);
  return copy;
}

char *weft_strdup(const char *text) {
  return weft_strndup(text, strlen(text));
}
