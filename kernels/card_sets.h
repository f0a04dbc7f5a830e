/* SPDX-License-Identifier: MIT */
/* Which kernel set a card gets, which module of CUDA code holds it, and whether that has code for the card.
 *
 * A kernel set is the launchers that differ by card (kernels/cuda/set.h). It names the compute capabilities that it is
 * written for, and lies in a module of its own, whose build names the architectures that it was compiled for. A card
 * gets the first set that fits it and whose module is there.
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
  const char *module;                /* the file that holds it */
  bool has_families;                 /* "name@86" holds a card to a family, for measurements (cuda/portable/tiles.h) */
} card_set;

/* All sets that there are, in the order in which a card is offered them. */
enum { CARD_SET_HOPPER, CARD_SET_PORTABLE, CARD_SETS };
extern const card_set card_sets[CARD_SETS];

/* Whether machine code, or PTX that the driver compiles, for these architectures runs on a card. architectures is a
 * list as CMAKE_CUDA_ARCHITECTURES takes it, with commas: "90a-real,80": code for x.y runs on cards x.z with z >= y;
 * code for x.ya on x.y alone; for x.yf as without f. Without -real there is PTX too, which runs on every later card,
 * or for x.ya on x.y. */
bool card_has_code(const char *architectures, uint32_t capability);
/* The same of machine code alone, so that the driver compiles nothing. */
bool card_has_machine_code(const char *architectures, uint32_t capability);

typedef struct card_wish {
  const char *card;          /* its name, for the line of a refusal */
  uint32_t capability;       /* of the card */
  const char *module;        /* that is asked: only its sets will do */
  const char *architectures; /* of its build */
  const char *set;           /* the only set that will do; NULL: the first that fits */
} card_wish;

/* Whether a list of ops, " matmul experts ", has one. */
bool card_set_has_op(const char *ops, const char *op);

/* Multiplications and additions of 16 bits that the tensor cores of one multiprocessor do in a clock when they add in
 * 32 bits, by NVIDIA's papers on each architecture; 0: not known. A GeForce card of 8.6 and later does half of what
 * others of its capability do. */
uint32_t card_products_of(uint32_t capability, const char *name);

/* The number of the set that the card gets. UNSUPPORTED, with a line in *error that says what there is, and what to
 * build. */
weft_status card_choose_set(const card_wish *wish, const card_set *sets, uint32_t n_sets, uint32_t *out,
                            weft_error *error);

/* Whether a driver, of CUDA version `driver` (12040 is 12.4), runs what a toolkit built: of the same major version and,
 * where it has to compile PTX, of no older version. UNSUPPORTED, with a line, if not. */
weft_status card_check_driver(const char *module, uint32_t driver, uint32_t toolkit, bool has_machine_code,
                              weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
