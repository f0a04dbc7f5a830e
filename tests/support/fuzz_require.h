/* SPDX-License-Identifier: MIT */
/* What a fuzz target promises of its input: a promise that is broken ends the program with its place, which libFuzzer
 * keeps as a crash. */
#ifndef WEFT_TESTS_FUZZ_REQUIRE_H
#define WEFT_TESTS_FUZZ_REQUIRE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

_Noreturn static inline void fuzz_broken(const char *promise, const char *file, int line) {
  (void)fprintf(stderr, "%s:%d: %s\n", file, line, promise);
  abort();
}

#define REQUIRE(promise) ((promise) ? (void)0 : fuzz_broken(#promise, __FILE__, __LINE__))

#endif
