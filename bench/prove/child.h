/* SPDX-License-Identifier: MIT */
/* A program that a proof starts, hears and ends: a server of weft, or the owner of weights.
 *
 * Law: its standard output is read line by line, its standard error goes to a file. It is ended by its own id, and
 * prove_child_stop returns only when it is gone: first it is asked to (SIGTERM), then it is killed. A struct that is
 * all zero is a child that was never started, and stopping it does nothing. */
#ifndef WEFT_BENCH_PROVE_CHILD_H
#define WEFT_BENCH_PROVE_CHILD_H

#include <sys/types.h>

#include "bench/inside.h"

enum { PROVE_LINE_MAX = 8192, PROVE_PATH_MAX = 512 };

typedef struct prove_child {
  pid_t pid; /* 0: none, or ended and waited for */
  int out;   /* its standard output; valid while `hears` */
  bool hears, killed;
  int code; /* once it has ended: its exit code, or -1 where a signal ended it */
  char log[PROVE_PATH_MAX];
} prove_child;

/* args[0] "weft" is this program; another is looked for as a shell does. env: NULL, or the whole environment. */
weft_status prove_child_start(prove_child *child, const char *const *args, char *const *env, const char *log,
                              weft_error *error);
/* The next line of its standard output, without its end. WEFT_AGAIN: none by until_us (of weft_clock_us), or the proof
 * was told to stop. NOT_FOUND: it has closed its output. */
weft_status prove_child_line(prove_child *child, char line[PROVE_LINE_MAX], uint64_t until_us);
bool prove_child_alive(prove_child *child);
/* True: it ended by itself, or when it was asked to, with the exit code 0. */
bool prove_child_stop(prove_child *child, uint32_t grace_ms);
/* The last line that it wrote to its standard error; empty where there is none. */
void prove_child_last_words(const prove_child *child, char words[256]);

/* SIGINT and SIGTERM ask a proof to end: what it started is stopped then, and its files removed. */
void prove_catch_signals(void);
bool prove_told_to_stop(void);

#endif
