/* SPDX-License-Identifier: MIT */
/* A holding: all that a model which comes and goes has of a device's memory.
 *
 * Law: its addresses are reserved, and its host memory taken, when it is opened. Between begin and end what its
 * device is asked for comes from there and from nowhere else: device memory is mapped piece by piece as it is asked
 * for, weights among it, and is zero at first, as memory of a new process is, and host memory is cut from what was
 * taken. What is freed of it stays until clear, which gives all device memory back at once. So neither taking nor
 * giving waits for the device, asks its driver to allocate, or frees there; that nothing enqueued uses the memory
 * when it is cleared is the caller's to know. What is taken begins at multiples of HOLDING_ALIGN bytes, and never
 * exceeds what open was told: more is NO_MEMORY. The thread of the device calls all. */
#ifndef WEFT_KERNELS_HOLDING_H
#define WEFT_KERNELS_HOLDING_H

#include "kernels/stretch.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  HOLDING_ALIGN = 256,
  HOLDING_PIECES = 64,
  HOLDING_PIECE = 32 << 20
}; /* so many pieces, but of at most so many bytes */

typedef struct weft_holding {
  weft_stretch stretch;
  uint64_t at; /* bytes of it that were taken */
  uint8_t *host;
  uint64_t n_host_bytes, host_at;
  struct weft_holding *next; /* of the device */
} weft_holding;

/* UNSUPPORTED: the device has no stretches. The holding stays where it is until close. */
weft_status weft_holding_open(weft_device *device, uint64_t n_bytes_max, uint64_t n_host_bytes, weft_holding *out);
void weft_holding_begin(weft_holding *holding);
void weft_holding_end(weft_holding *holding);
void weft_holding_clear(weft_holding *holding);
/* Gives back device memory alone: what was taken keeps its addresses, and host memory its bytes. rise maps memory there
 * again, whose first `at` bytes the caller fills before anything uses them; the rest is zero. An error of rise leaves
 * it as it was. */
void weft_holding_rest(weft_holding *holding);
weft_status weft_holding_rise(weft_holding *holding);
/* Of one that was never opened, too. */
void weft_holding_close(weft_holding *holding);
/* Bytes of n takes of n_bytes in all, at most. */
uint64_t weft_holding_bytes(uint64_t n_bytes, uint32_t n);

#ifdef __cplusplus
}
#endif
#endif
