/* SPDX-License-Identifier: MIT */
/* The codebooks of the IQ types: lists of groups of weights, of which a stored group is an index.
 *
 * Law: the numbers are part of the file format. An entry holds the places of its weights' magnitudes in a short list,
 * the first weight in the lowest bits: IQ2 and IQ1 eight places of two bits (8, 25, 43; -1, 0, 1), IQ3 four places of
 * four bits (4, 12, .. 52, 62; 1, 3, .. 15). IQ1_M uses the list of IQ1_S. */
#ifndef WEFT_KERNELS_CODEBOOKS_H
#define WEFT_KERNELS_CODEBOOKS_H

#include <stdint.h>

extern const uint16_t codebook_iq2_xxs[256], codebook_iq2_xs[512], codebook_iq2_s[1024];
extern const uint16_t codebook_iq3_xxs[256], codebook_iq3_s[512];
extern const uint16_t codebook_iq1_s[2048];

#endif
