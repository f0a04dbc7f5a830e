/* SPDX-License-Identifier: MIT */
/* Which kernel set of the CUDA module a card gets, and whether the module has machine code for it.
 *
 * A kernel set is the launchers that differ by card (kernels/cuda/set.h). It names the compute capabilities that it is
 * written for; the build names the architectures that it was compiled for. A card gets the first set that fits it and
 * whose code it can run.
 *
 * Law: a function here is pure: of the card's capability, the sets, the architectures and the wish alone. So what is
 * refused, and with which line, is tested without a card (unit/kernels_card_sets). */
#ifndef WEFT_KERNELS_CARD_SETS_H
#define WEFT_KERNELS_CARD_SETS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct card_set {
  const char *name;                  /* "hopper" */
  const char *cards;                 /* the capabilities that it fits, for people: "sm_90" */
  bool (*fits)(uint32_t capability); /* 90 is compute capability 9.0 */
} card_set;

/* Whether machine code, or PTX that the driver compiles, for these architectures runs on a card. architectures is a
 * list as CMAKE_CUDA_ARCHITECTURES takes it, with commas: "90a-real,80": code for x.y runs on cards x.z with z >= y;
 * code for x.ya on x.y alone; for x.yf as without f. Without -real there is PTX too, which runs on every later card,
 * or for x.ya on x.y. */
bool card_has_code(const char *architectures, uint32_t capability);

typedef struct card_wish {
  const char *card;          /* its name, for the line of a refusal */
  uint32_t capability;       /* of the card */
  const char *architectures; /* of the build */
  const char *set;           /* the only set that will do; NULL: the first that fits */
} card_wish;

/* Whether a list of ops, " matmul experts ", has one. */
bool card_set_has_op(const char *ops, const char *op);

/* The number of the set that the card gets. UNSUPPORTED, with a line in *error that says what the module has code
 * for. */
weft_status card_choose_set(const card_wish *wish, const card_set *sets, uint32_t n_sets, uint32_t *out,
                            weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
