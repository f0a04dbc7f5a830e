/* SPDX-License-Identifier: MIT */
/* How much a test repeats, and how long it waits.
 *
 * Law: a test never decides by the clock. It waits for what must come for as long as a whole run of the tests may
 * last, so that a loaded machine only makes it slower; what never comes ends there.
 *
 * The environment variable DEV_AMOUNT says how often cases are repeated that differ only in what was drawn:
 *
 *   quick      `./dev check`, and every test of `./dev test` under a sanitizer
 *   (not set)  `./dev test` without sanitizers, `./dev soak` under them, and a test program that is started by hand:
 *              every kind of case, but not every combination where the next backend has the others
 *   nightly    `./dev soak` without sanitizers: every combination */
#ifndef WEFT_TESTS_AMOUNT_H
#define WEFT_TESTS_AMOUNT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As long as ctest lets a program run (TEST_SECONDS in ./dev). */
enum { TEST_WAIT_MS = 1800000 };

static inline uint32_t test_amount(uint32_t quick, uint32_t full, uint32_t nightly) {
  const char *name = getenv("DEV_AMOUNT");
  if (name == NULL || name[0] == 0) return full;
  if (strcmp(name, "quick") == 0) return quick;
  if (strcmp(name, "nightly") == 0) return nightly;
  (void)fprintf(stderr, "DEV_AMOUNT is '%s'; use quick or nightly, or leave it unset\n", name);
  exit(2);
}

#endif
