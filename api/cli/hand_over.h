/* SPDX-License-Identifier: MIT */
/* Handing over: a server gives what it listens on to the server that comes after it.
 *
 * Law. Both are processes of one user on one machine, which ask the system so. The new one asks and the old one
 * answers, over a unix socket that the old one listens on: hello, which both must listen at the same place for; that
 * the old one lets go of the file of kept prefixes; the listening socket; and, when the new one answers requests, that
 * it does. Until that last word the old one goes on as ever, whatever becomes of the new one; both accept from one
 * socket meanwhile, so no client finds nobody there. After it the old one accepts nothing more, answers all requests of
 * its connections, each connection's last, and ends. */
#ifndef WEFT_API_CLI_HAND_OVER_H
#define WEFT_API_CLI_HAND_OVER_H

#include <stdbool.h>

#include "api/runtime.h"
#include "api/server/server.h"

/* ---- the new server ---- */

/* Says hello to the server that listens on the path. where: what both must be given, as `--host` and `--port`. *link:
 * -1 where nobody listens there. Errors, each with a line: UNSUPPORTED (another user's, another form, it listens
 * elsewhere, or hands over already), IO. */
weft_status hand_over_greet(const char *path, const char *where, int *link, weft_error *error);
/* Has the old server let go of its kept prefixes, which may take as long as writing them does. */
weft_status hand_over_ask_prefixes(int link, weft_error *error);
/* *listener: the socket, the caller's. */
weft_status hand_over_ask_socket(int link, int *listener, weft_error *error);
/* Says that this server answers requests; the old one listens on the path no more when this returns. */
weft_status hand_over_tell_ready(int link, weft_error *error);

/* ---- the old server ---- */

typedef struct hand_over hand_over;

/* Listens on the path; where is copied. Errors as of weft_local_socket_open. */
weft_status hand_over_open(const char *path, const char *where, hand_over **out, weft_error *error);
void hand_over_close(hand_over *h); /* NULL is fine */
/* Becomes readable when there is something to hear; -1 of NULL. */
int hand_over_descriptor(const hand_over *h);
/* Hears it, and answers. True: the new server, process *pid, has taken over. */
bool hand_over_hear(hand_over *h, weft_runtime *runtime, weft_server *server, int *pid);

#endif
