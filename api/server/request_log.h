/* SPDX-License-Identifier: MIT */
/* The line of the log that a request leaves: who asked for what, what it came to and how long it took.
 *
 * Law: every request that was read leaves exactly one line, when its last byte is out or its client has left, as words of
 * the form name=value whose order never changes; what a request has not, its line has not. */
#ifndef WEFT_API_SERVER_REQUEST_LOG_H
#define WEFT_API_SERVER_REQUEST_LOG_H

#include "api/server/router.h"

/* Appends the line. code: 0 when no answer was sent; left: the client did not wait for the end. */
void weft_request_line(const weft_server *server, weft_exchange *exchange, int code, bool left, weft_text *out);

#endif
