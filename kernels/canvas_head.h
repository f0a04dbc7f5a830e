/* SPDX-License-Identifier: MIT */
/* The output matrix of a model with canvases, in two forms: rows of a canvas are multiplied in 8 bits where the device
 * has products of 8 bits, and so are their soft embeddings (on ref, and on cuda where the kernel set multiplies
 * integers); all else (tokens that are looked up, rows written token by token) has the numbers of the file.
 *
 * Law: which form a row is multiplied in follows from what the row is, and not from the rows beside it. A weight that
 * was placed with WEFT_USE_CANVASES is its form of 16 bits; its other form shares the memory, and is never freed. Where
 * the device has one form, both are equal. */
#ifndef WEFT_KERNELS_CANVAS_HEAD_H
#define WEFT_KERNELS_CANVAS_HEAD_H

#include "kernels/device.h"

enum {
  WEFT_USE_CANVASES = 8,        /* beside WEFT_USE_EMBED (weft_weight_use) */
  WEFT_LAYOUT_CANVASES = 0x100, /* in weft_weight.layout: what is left without it is the layout of the other form */
};

/* Whether a weight of these uses is multiplied as the file has it alone: rows of it are looked up, or its results are
 * logits, and none of them are of canvases. */
static inline bool weft_keeps_numbers(unsigned uses) {
  return (uses & WEFT_USE_EMBED) != 0 && (uses & WEFT_USE_CANVASES) == 0;
}

/* The form for rows of canvases. */
static inline weft_weight weft_canvas_head(const weft_weight *head) {
  weft_weight form = *head;
  form.layout &= ~(uint32_t)WEFT_LAYOUT_CANVASES;
  return form;
}

#endif
