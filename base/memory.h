/* SPDX-License-Identifier: MIT */
/* Host memory.
 *
 * Law: all host memory that weft itself allocates comes from these functions, so that a test can count the allocations
 * and refuse any one of them (weft_memory_fail_at), and so that one allocator serves them all. Memory is zeroed unless
 * a comment says otherwise; NULL means that the allocation was refused. What these functions return is the caller's,
 * and weft_free frees it. Any thread may call them. */
#ifndef WEFT_BASE_MEMORY_H
#define WEFT_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* n * size bytes, zeroed; NULL also when the product overflows. n == 0 gives a valid pointer. */
void *weft_alloc(size_t n, size_t size);
/* n_bytes bytes at a multiple of align (a power of two >= 8), not zeroed. */
void *weft_alloc_aligned(size_t n_bytes, size_t align);
/* Makes the memory n * size bytes large; bytes that are new are not zeroed. When the allocation is refused, the old
 * memory stays as it was. */
void *weft_realloc(void *memory, size_t n, size_t size);
void weft_free(void *memory);
/* Makes room for one more item in a list that holds n items of `size` bytes each: returns `items` itself while
 * n < *capacity, else moves the list into twice its memory (into room for `first` items when the list has none yet) and
 * updates *capacity. When the allocation is refused, items and *capacity stay as they were. */
void *weft_grow(void *items, uint32_t n, uint32_t *capacity, uint32_t first, size_t size);
/* Asks the system to map this memory with its huge pages, which makes long walks over it faster. The contents stay as
 * they are, and a system that does not do it costs speed alone. */
void weft_memory_prefer_huge(void *memory, size_t n_bytes);
/* A copy of the text, of its first n_bytes bytes in the second, ended by a zero byte. */
char *weft_strdup(const char *text);
char *weft_strndup(const char *text, size_t n_bytes);

/* Fault injection for tests, in the whole process: from now on allocations are counted, and the n-th of them (counted
 * from 1) is refused. n == 0 refuses none. Returns how many allocations there were since the last call. */
uint64_t weft_memory_fail_at(uint64_t n);

#ifdef __cplusplus
}
#endif
#endif
