/* SPDX-License-Identifier: MIT */
/* Law: one sink for the process; lines go to standard error as `weft: LEVEL: text`. Libraries log only what
 * an operator can act on; results never go here. The level is set once at start by the program. */
#ifndef WEFT_BASE_LOG_H
#define WEFT_BASE_LOG_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weft_log_level {
  WEFT_LOG_ERROR = 0,
  WEFT_LOG_WARN = 1,
  WEFT_LOG_INFO = 2,
  WEFT_LOG_DEBUG = 3
} weft_log_level;

void weft_log_set_level(weft_log_level level);
void weft_log(weft_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif
#endif
