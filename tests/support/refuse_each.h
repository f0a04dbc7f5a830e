/* SPDX-License-Identifier: MIT */
/* An act with each of its allocations refused once, for tests (after cmocka.h).
 *
 * Law: a refusal is WEFT_E_NO_MEMORY, with one line where the act gives lines, and the next run of the act works. What a
 * refusal leaves behind is for the address sanitizer to see. */
#ifndef WEFT_TESTS_REFUSE_EACH_H
#define WEFT_TESTS_REFUSE_EACH_H

#include <stdbool.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"

/* Refuses allocation 1, 2, 3, ... of the act until one run meets no refusal; gives how many were refused. */
static inline uint64_t refuse_each(weft_status (*act)(void *self, weft_error *error), void *self, bool has_line) {
  for (uint64_t n = 1;; n++) {
    weft_error error = {{0}};
    (void)weft_memory_fail_at(n);
    weft_status status = act(self, &error);
    if (weft_memory_fail_at(0) < n) {
      if (status != WEFT_OK) fail_msg("undisturbed: %s: %s", weft_status_text(status), error.text);
      assert_true(n > 1);
      return n - 1;
    }
    bool good = status == WEFT_E_NO_MEMORY && (!has_line || (error.text[0] != 0 && strchr(error.text, '\n') == NULL));
    if (!good) fail_msg("allocation %llu: %s: '%s'", (unsigned long long)n, weft_status_text(status), error.text);
  }
}

#endif
