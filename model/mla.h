/* SPDX-License-Identifier: MIT */
/* Sizes of layers whose keys and values are made of one vector for each position (deepseek2.c, layers_mla.c): it is
 * kept in place of them, with a key beside it that rotates and that all heads share.
 *
 * Law: a head's query that does not rotate is multiplied by the head's k_b, so that its product with the kept vector
 * is that with the head's key; what attention gives of kept vectors is multiplied by the head's v_b. */
#ifndef WEFT_MODEL_MLA_H
#define WEFT_MODEL_MLA_H

#include <stdint.h>

/* From the keys of its file, checked. */
typedef struct model_mla {
  uint32_t rank;             /* numbers of the vector; 0: the model has no such layers */
  uint32_t n_query, n_still; /* of a head's query, before k_b; those of it that do not rotate */
  uint32_t n_value;          /* of a head's value */
} model_mla;

#endif
