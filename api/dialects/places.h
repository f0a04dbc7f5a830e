/* SPDX-License-Identifier: MIT */
/* Refusals that are made below the dialects, in the words of the body that was sent.
 *
 * Law: what stands below a dialect knows max_tokens and turns by their numbers. Where a body calls them otherwise, the
 * refusal names a place that this body has. */
#ifndef WEFT_API_DIALECTS_PLACES_H
#define WEFT_API_DIALECTS_PLACES_H

#include "api/dialects/gen.h"

/* A whole word, or several, of a line from below, and what stands for it here. */
typedef struct weft_place_word {
  const char *inner, *own;
} weft_place_word;

/* Rewrites the line, and names its first place as the field at fault. Nothing is done where gen has no places. */
void places_name(const weft_gen *gen, weft_refusal *why);

#endif
