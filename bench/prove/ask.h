/* SPDX-License-Identifier: MIT */
/* One request to a server of a proof, on 127.0.0.1, whose answer may be a stream.
 *
 * Law: it ends by until_us whatever the server does, and when the proof is told to stop. Lines of the body are given as
 * they come, with the time at which their last byte was read. */
#ifndef WEFT_BENCH_PROVE_ASK_H
#define WEFT_BENCH_PROVE_ASK_H

#include "bench/inside.h"

typedef struct prove_ask {
  uint16_t port;
  const char *path, *body; /* body NULL: GET */
  uint64_t until_us;
  void (*take)(void *self, const char *line, size_t n, uint64_t at_us); /* NULL: nobody wants them */
  void *self;
} prove_ask;

enum { PROVE_ASK_LATE = 0, PROVE_ASK_BROKEN = -1 };

/* The HTTP status, LATE, or BROKEN: the server was not there, or broke off before its answer was whole. body gets the
 * whole body. */
int prove_ask_run(const prove_ask *ask, weft_text *body);

#endif
