/* SPDX-License-Identifier: MIT */
/* A profile as a running server: the product's own `serve` in a process of its own (boot.c), and the owner of its
 * weights where the profile names one.
 *
 * Law: open reads and refuses and starts nothing; start asks for room first and leaves the server listening; stop and
 * close end whatever runs. The server listens on 127.0.0.1, on a port that the system chose. */
#ifndef WEFT_BENCH_PROVE_SERVER_H
#define WEFT_BENCH_PROVE_SERVER_H

#include "bench/prove/owner.h"

/* What all servers of a proof have. */
typedef struct prove_place {
  const char *proofs, *folder; /* the files, and where temporary ones go */
  const weft_text_list *models;
  const char *backend;   /* NULL: what each profile says */
  const json_t *options; /* of the matrix, for every profile that does not say otherwise; NULL: none */
} prove_place;

typedef struct prove_server {
  const prove_place *place;
  const char *name; /* of the profile; borrowed */
  json_t *profile, *options, *devices, *preflight, *models, *counted;
  prove_owner owner;
  char **env;                /* NULL: ours */
  prove_child child, before; /* before: it hands over to child (again.h) */
  uint32_t n_boots;          /* processes of it that were started */
  uint16_t port;
  double start_seconds;
  char model[PROVE_PATH_MAX]; /* a copy with a bit turned over; empty: none */
  bool owner_has_copy;        /* the owner of the weights has it, and the server does not */
} prove_server;

prove_verdict prove_server_open(prove_server *server, const prove_place *place, const char *name,
                                prove_outcome *outcome);
/* seconds: most until it listens. */
prove_verdict prove_server_start(prove_server *server, uint64_t seconds, prove_outcome *outcome);
/* Once more, with the same options and owner: after the process before has ended, or (beside) while it runs. */
prove_verdict prove_server_again(prove_server *server, uint64_t seconds, bool beside, prove_outcome *outcome);
/* The process before has handed over: waits for its end, which must be a clean one. */
prove_verdict prove_server_await_before(prove_server *server, prove_outcome *outcome);
/* Ends the server, and then the owner of its weights. */
prove_verdict prove_server_stop(prove_server *server, prove_outcome *outcome);
void prove_server_close(prove_server *server);
/* Where the server's process has ended, unasked, that becomes the outcome; what: what was being done. */
prove_verdict prove_server_lost(prove_server *server, const char *what, prove_outcome *outcome);

#endif
