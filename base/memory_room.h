/* SPDX-License-Identifier: MIT */
/* How much host memory is available, asked before something large is allocated.
 *
 * Law: the answer is the system's own estimate, read anew at each call; nothing is reserved. */
#ifndef WEFT_BASE_MEMORY_ROOM_H
#define WEFT_BASE_MEMORY_ROOM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How many more bytes this process could allocate before the system would have to swap: the smaller one of what the
 * machine has free or can free, and what the control group (the limit of a container) still allows. 0: unknown. */
uint64_t weft_memory_available(void);

#ifdef __cplusplus
}
#endif
#endif
