/* SPDX-License-Identifier: MIT */
/* Stored blocks become blocks of the type that devices hold them as (quant.h): the same values, in an order that
 * kernels can read.
 *
 * Law: no value changes. A held value is (d * scale) * value or scale * code - least with the integers of the file, and
 * those products are exact in f32, so it has the bits of the format's own order of operations (TQ1_0 and TQ2_0: but for
 * the sign of zero). */
#ifndef WEFT_KERNELS_REPACK_H
#define WEFT_KERNELS_REPACK_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Turns one stored block into the blocks of its held_as type (weft_type_info) that take its place. */
typedef void (*repack_block)(const uint8_t *stored, uint8_t *held);
/* The function for a stored type. NULL: devices hold the type as it is stored. */
repack_block repack_find(weft_type type);

/* One block of an H4, S4 or S3 type as floats. */
void repack_dequantise(const weft_type_info *info, const uint8_t *held, float *out);

/* A weight's source whose bytes are those of the type that devices hold `stored` as: what `from` gives is repacked at
 * every read, by several threads. */
typedef struct repack_source {
  weft_weight_source source; /* to be read from; valid while the repack_source stays where it is */
  weft_weight_source from;
  const weft_type_info *stored, *held;
  uint8_t *buffer; /* of stored bytes; NULL: they are in memory */
} repack_source;
/* `stored` is a type that devices hold as another. A read of source may ask for at most read_bytes less 2
 * WEFT_READ_ALIGN bytes. NO_MEMORY: there is none for the buffer. */
weft_status repack_source_open(repack_source *self, weft_type stored, const weft_weight_source *from,
                               uint64_t read_bytes);
void repack_source_close(repack_source *self);

#ifdef __cplusplus
}
#endif

#endif
