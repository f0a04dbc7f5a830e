/* SPDX-License-Identifier: MIT */
/* What a cell of a proof came to.
 *
 * Law: the number of a verdict is the exit code of `weft prove`, and its name stands in reports. */
#ifndef WEFT_BENCH_PROVE_VERDICT_H
#define WEFT_BENCH_PROVE_VERDICT_H

#include "bench/inside.h"

#define PROVE_VERDICTS(X)                                                                           \
  X(PROVE_PROVEN, 0, "proven")                                                                      \
  X(PROVE_DIFFERS, 1, "differs")                                                                    \
  X(PROVE_BAD_FILE, 2, "bad_file") /* a file is unknown or wrong */                                 \
  X(PROVE_NO_START, 3, "does_not_start")                                                            \
  X(PROVE_DIED, 4, "died") /* in the middle */                                                      \
  X(PROVE_BUDGET_OVER, 5, "budget_over")                                                            \
  X(PROVE_TOO_LONG, 6, "prompt_too_long")                                                           \
  X(PROVE_NO_ROOM, 7, "does_not_fit") /* says the preflight */                                      \
  X(PROVE_REFUSED, 8, "refused")      /* this build or model has it not */                          \
  X(PROVE_OWNER_REFUSED, 9, "weight_server_refused")                                                \
  X(PROVE_OWNER_BROKEN, 10, "weight_server_failed")                                                 \
  X(PROVE_UNPROVEN, 11, "nothing_to_prove") /* the cell asked for what did not happen, as drafts */ \
  X(PROVE_STOPPED, 130, "stopped")

typedef enum prove_verdict {
#define X(name, number, text) name = number,
  PROVE_VERDICTS(X)
#undef X
} prove_verdict;

typedef struct prove_outcome {
  prove_verdict verdict;
  char line[640]; /* why, for a person */
} prove_outcome;

const char *prove_verdict_name(prove_verdict verdict);
/* Fills the outcome, unless it says already that something went wrong, and returns its verdict. */
prove_verdict prove_end(prove_outcome *outcome, prove_verdict verdict, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
