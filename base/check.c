/* SPDX-License-Identifier: MIT */
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void weft_check_failed(const char *file, int line, const char *condition) {
  (void)fprintf(stderr, "weft: bug at %s:%d: %s does not hold\n", file, line, condition);
  abort();
}
