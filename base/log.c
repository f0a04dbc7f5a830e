/* SPDX-License-Identifier: MIT */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

static _Atomic int max_level = WEFT_LOG_WARN;

void weft_log_set_level(weft_log_level level) {
  atomic_store(&max_level, (int)level);
}

void weft_log(weft_log_level level, const char *format, ...) {
  static const char *const names[] = {"error", "warning", "info", "debug"};
  if ((int)level > atomic_load(&max_level)) return;
  char line[1024];
  va_list list;
  va_start(list, format);
  (void)vsnprintf(line, sizeof line, format, list); /* a cut line is still a line */
  va_end(list);
  (void)fprintf(stderr, "weft: %s: %s\n", names[level], line);
}
