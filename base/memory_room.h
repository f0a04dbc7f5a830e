/* SPDX-License-Identifier: MIT */
/* How much host memory there is for something large, before it is taken.
 *
 * Law: an estimate of the system's, read anew at each call; nothing is reserved. */
#ifndef WEFT_BASE_MEMORY_ROOM_H
#define WEFT_BASE_MEMORY_ROOM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes that this process could still take without driving others out, as the system estimates it: what the machine has
 * free or can free, and what its control group allows. 0: unknown. */
uint64_t weft_memory_available(void);

#ifdef __cplusplus
}
#endif
#endif
