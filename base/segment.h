/* SPDX-License-Identifier: MIT */
/* What the rows of a segment see, where their keys and values go, and by which pass of the model they are computed. The
 * scheduler says it of every segment of a step, the model hands it on, and attention obeys.
 *
 *                                  mask     stores    pass
 *   prompt, decode, commit         causal   pool      encoder
 *   denoise step of a canvas       whole    scratch   decoder
 *
 * Law. The three are independent for attention, which has no pass. In a batch the decoder pass goes with a whole mask
 * and scratch (model/batch.h). Zero is the first of each. */
#ifndef WEFT_BASE_SEGMENT_H
#define WEFT_BASE_SEGMENT_H

typedef enum weft_mask {
  WEFT_MASK_CAUSAL = 0, /* a row sees the keys before the segment, and of the segment those up to its own */
  WEFT_MASK_WHOLE = 1   /* every row sees the same keys before the segment, and the whole segment */
} weft_mask;

typedef enum weft_stores {
  WEFT_STORES_POOL = 0,   /* keys and values are written to pages, and stay */
  WEFT_STORES_SCRATCH = 1 /* they lie in scratch of one layer of the step, and are gone after it */
} weft_stores;

typedef enum weft_pass {
  WEFT_PASS_ENCODER = 0,
  WEFT_PASS_DECODER = 1 /* of a diffusion model: its scale of a layer, and embeddings conditioned on the step before */
} weft_pass;

#endif
