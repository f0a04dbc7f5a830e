/* SPDX-License-Identifier: MIT */
#include "bench/prove/verdict.h"

#include <stdarg.h>
#include <stdio.h>

const char *prove_verdict_name(prove_verdict verdict) {
  switch (verdict) {
#define X(name, number, text) \
  case name:                  \
    return text;
    PROVE_VERDICTS(X)
#undef X
  }
  return "unknown";
}

prove_verdict prove_end(prove_outcome *outcome, prove_verdict verdict, const char *format, ...) {
  if (outcome->verdict != PROVE_PROVEN) return outcome->verdict;
  va_list list;
  va_start(list, format);
  (void)vsnprintf(outcome->line, sizeof outcome->line, format, list); /* a longer line is cut */
  va_end(list);
  outcome->verdict = verdict;
  return verdict;
}
