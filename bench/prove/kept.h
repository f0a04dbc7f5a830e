/* SPDX-License-Identifier: MIT */
/* Answers of a baseline that are kept from one run of `weft prove` to the next (--keep).
 *
 * Law: they are used again only where these are the same: this program, byte by byte, the machine,
 * the model files, the profile with the options of the matrix, the suite and the prompts. The environment and the
 * module of a card are not compared. Whatever cannot be read, or is of something else, is as if it were not there. */
#ifndef WEFT_BENCH_PROVE_KEPT_H
#define WEFT_BENCH_PROVE_KEPT_H

#include "bench/prove/plan.h"
#include "bench/prove/server.h"

typedef struct prove_kept {
  const char *folder; /* NULL: nothing is kept */
  char made_by[256];  /* what all keys begin with */
} prove_kept;

void prove_kept_open(prove_kept *kept, const char *folder, const prove_place *place);
/* Fills the set's answers and scores and gives {facts, device} of the baseline that made them; NULL: there are none. The
 * caller owns it. */
json_t *prove_kept_read(const prove_kept *kept, const json_t *profile, const prove_place *place, prove_set *set);
/* Errors: IO. */
weft_status prove_kept_write(const prove_kept *kept, const json_t *profile, const prove_place *place,
                             const prove_set *set, json_t *facts, const char *device, weft_error *error);

#endif
