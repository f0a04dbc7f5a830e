/* SPDX-License-Identifier: MIT */
/* The log's line of a request: who asked, what it came to, where the time went.
 *
 * Law: each fact is a field of its own (base/log.h), of which those stand there that the request has. */
#ifndef WEFT_API_SERVER_REQUEST_LOG_H
#define WEFT_API_SERVER_REQUEST_LOG_H

#include "api/server/router.h"

/* left: the client went before its answer was complete. Writes nothing where the level is lower. */
void weft_request_tell(const weft_server *server, weft_exchange *exchange, int code, bool left);

#endif
