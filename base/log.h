/* SPDX-License-Identifier: MIT */
/* The log of the process.
 *
 * Law: every line goes to standard error as `weft: TIME LEVEL: text`, with the time in UTC to the millisecond. The
 * libraries log only what an operator can act on; results of a program never go to the log. The program sets the level
 * once, when it starts.
 *
 * A line stays one line whatever its text holds: control characters, characters that change the direction of writing
 * and bytes that are not UTF-8 are written as \xNN, so that nothing a client sent can begin a line of its own or send
 * commands to the operator's terminal; text that is too long is cut. No thread waits for the log: a line that a full
 * pipe cannot take is dropped and counted, and before the next line that can be written stands how many were lost.
 * Any thread may write. */
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
bool weft_log_wants(weft_log_level level); /* whether lines of this level are written */
void weft_log(weft_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* How many lines were dropped since the process began. */
uint64_t weft_log_dropped(void);

#ifdef __cplusplus
}
#endif
#endif
