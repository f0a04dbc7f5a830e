/* SPDX-License-Identifier: MIT */
/* A `weft serve` as a child process: what `weft demo` and the laboratory (soak, bench) need.
 *
 * Law: the caller ends every child that it started. */
#ifndef WEFT_API_CLI_CHILD_H
#define WEFT_API_CLI_CHILD_H

#include <stdint.h>
#include <sys/types.h>

typedef struct weft_child {
  pid_t pid;
  uint16_t port;
} weft_child;

/* Starts this program again as `serve ARGS... --port 0 --json --quiet` and waits until it listens. args ends with NULL.
 * 0, or -1 after one line. */
int weft_child_start(weft_child *child, const char *const *args);
/* SIGTERM, then waits. Returns its exit code, or -1. */
int weft_child_stop(weft_child *child);
/* A field of /proc/PID/status in KiB ("VmHWM", "VmRSS"); 0 when unknown. */
uint64_t weft_child_kib(const weft_child *child, const char *field);

#endif
