/* SPDX-License-Identifier: MIT */
/* Law: all host memory of weft's own comes from here, so that it can be counted, refused once in a test
 * (weft_memory_fail_at), and served by one allocator. Zeroed unless said otherwise. NULL means refused. */
#ifndef WEFT_BASE_MEMORY_H
#define WEFT_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* n * size bytes, zeroed; NULL when refused or when the product overflows. n == 0 gives a valid pointer. */
void *weft_alloc(size_t n, size_t size);
/* Aligned to align (a power of two >= 8), not zeroed. Free with weft_free. */
void *weft_alloc_aligned(size_t n_bytes, size_t align);
/* Grows or shrinks; the tail is not zeroed; on refusal the old memory stays as it was. */
void *weft_realloc(void *memory, size_t n, size_t size);
void weft_free(void *memory);
/* The memory of a growing list, with room for an item behind the n that it holds: `items` itself while n < *capacity,
 * else moved into twice the memory, or into `first` items at the beginning, which *capacity then says. NULL when
 * refused; items and *capacity stay as they were. */
void *weft_grow(void *items, uint32_t n, uint32_t *capacity, uint32_t first, size_t size);
/* A wish: the system may map this memory with its larger pages. Memory and contents stay as they are. */
void weft_memory_prefer_huge(void *memory, size_t n_bytes);
/* A copy of the text, ended by a zero byte. */
char *weft_strdup(const char *text);
char *weft_strndup(const char *text, size_t n_bytes);

/* Fault injection, process-wide: counts allocations from now on; the n-th one (1-based) is refused, once.
 * n == 0 turns it off. Returns how many were counted since the last call. */
uint64_t weft_memory_fail_at(uint64_t n);

#ifdef __cplusplus
}
#endif
#endif
