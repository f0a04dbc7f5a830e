/* SPDX-License-Identifier: MIT */
/* A stretch: device memory that grows and shrinks at its end, and stays where it is.
 *
 * Law. The addresses are reserved once, for the most that the stretch can have; memory comes and goes in pieces of one
 * size. Bytes that stay keep their content; those that come have any. Memory that goes is used by nothing that is
 * enqueued, which is the caller's to know: no call waits for the device, or for anything on it. What the stretch has
 * counts against the bound of its device, where that has one, and memory that went cannot be touched. Devices of host
 * memory (ref, cpu) have stretches, and cards whose driver maps memory. A stretch is one thread's at a time, which need
 * not be the thread of its device. */
#ifndef WEFT_KERNELS_STRETCH_H
#define WEFT_KERNELS_STRETCH_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_stretch {
  weft_device *device;
  void *base; /* NULL: not open */
  uint64_t n_bytes_max, piece_bytes;
  uint64_t n_bytes; /* that it has, a multiple of piece_bytes */
} weft_stretch;

/* A stretch of no bytes. piece_bytes: about as large as a piece shall be. Errors, after which *out is not open:
 * UNSUPPORTED (the device has no stretches), NO_MEMORY, DEVICE. */
weft_status weft_stretch_open(weft_device *device, uint64_t n_bytes_max, uint64_t piece_bytes, weft_stretch *out);
/* Gives it n_bytes or a little more, in whole pieces. NO_MEMORY or DEVICE, and nothing has changed: to fewer bytes it
 * cannot fail. */
weft_status weft_stretch_resize(weft_stretch *stretch, uint64_t n_bytes);
/* Of one that is not open too. */
void weft_stretch_close(weft_stretch *stretch);

#ifdef __cplusplus
}
#endif
#endif
