/* SPDX-License-Identifier: MIT */
/* Law: one sink for the process; lines go to standard error as `weft: TIME LEVEL: text`, TIME in UTC to the
 * millisecond. Libraries log only what an operator can act on; results never go here. The level is set once at start
 * by the program.
 *
 * A line is one line whatever its text holds: control characters and bytes that are no UTF-8 are written as \xNN, so
 * that nothing a client sent can begin a line of its own or reach the operator's terminal. No thread waits for the
 * log: a line that a full pipe cannot take is dropped and counted, and the next one that gets through says how many. */
#ifndef WEFT_BASE_LOG_H
#define WEFT_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

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
bool weft_log_wants(weft_log_level level); /* lines of this level are written */
void weft_log(weft_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Lines that were dropped since the process began. */
uint64_t weft_log_dropped(void);

#ifdef __cplusplus
}
#endif
#endif
