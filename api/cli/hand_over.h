/* SPDX-License-Identifier: MIT */
/* Handing over: a server gives what it listens on to the server that comes after it.
 *
 * Law. Both are processes of one user on one machine, which ask the system so. The new one asks and the old one
 * answers, over a unix socket that the old one listens on: hello, which both must listen at the same place for; that
 * the old one lets go of the file of kept prefixes; what it leaves (api/server/estate.h); the listening socket; and,
 * when the new one answers requests, that it does. Until that last word the old one goes on as ever, whatever becomes
 * of the new one, but that pins neither come nor go once they were told; both accept from one socket meanwhile, so no
 * client finds nobody there. After it the old one accepts nothing more, answers all requests of its connections, each
 * connection's last, tells the new one what comes of them as it comes, and ends. */
#ifndef WEFT_API_CLI_HAND_OVER_H
#define WEFT_API_CLI_HAND_OVER_H

#include <stdbool.h>

#include "api/runtime.h"
#include "api/server/estate.h"
#include "api/server/server.h"

/* ---- the new server ---- */

/* Says hello to the server that listens on the path. where: what both must be given, as `--host` and `--port`. *link:
 * -1 where nobody listens there. Errors, each with a line: UNSUPPORTED (another user's, another form, it listens
 * elsewhere, or hands over already), IO. */
weft_status hand_over_greet(const char *path, const char *where, int *link, weft_error *error);
/* Has the old server let go of its kept prefixes, which may take as long as writing them does. */
weft_status hand_over_ask_prefixes(int link, weft_error *error);
/* Appends what there is of what the old server leaves. */
weft_status hand_over_ask_estate(int link, weft_text *out, weft_error *error);
/* *listener: the socket, the caller's. */
weft_status hand_over_ask_socket(int link, int *listener, weft_error *error);
/* Says that this server answers requests; the old one listens on the path no more when this returns. */
weft_status hand_over_tell_ready(int link, weft_error *error);
/* Asks for what comes of requests that the old server still answers; it answers when there is something, or it ends. */
bool hand_over_want_more(int link);
/* The link can be read: appends the answer. False: there is none, or it was the last. */
bool hand_over_hear_more(int link, weft_text *out);
/* The link can be read, and nothing was asked: true once the old server's process has ended, and all its memory is free.
 */
bool hand_over_has_ended(int link);

/* ---- the old server ---- */

typedef struct hand_over hand_over;

/* Listens on the path; where is copied. first_pin: as weft_estate_open has it. Errors as of weft_local_socket_open. */
weft_status hand_over_open(const char *path, const char *where, uint32_t first_pin, hand_over **out, weft_error *error);
void hand_over_close(hand_over *h); /* NULL is fine; before the server that it heard for */
/* Becomes readable when there is something to hear; -1 of NULL. */
int hand_over_descriptor(const hand_over *h);
/* Hears it, and answers. True: the new server, process *pid, has taken over. */
bool hand_over_hear(hand_over *h, weft_runtime *runtime, weft_server *server, int *pid);
/* Once another server has taken over: tells it what came since; last: this server ends, and no more comes. Does not
 * wait, but for the new server's question where it is the last. NULL is fine. */
void hand_over_tell_more(hand_over *h, bool last);

#endif
