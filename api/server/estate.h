/* SPDX-License-Identifier: MIT */
/* What a server leaves to the one that takes over from it (api/cli/hand_over.h), beside what it listens on: tokens that
 * tenants took of this minute, pins that the operator declared while it ran, and stored responses.
 *
 * Law. It goes over in parts, each a JSON object. The first part has all that there is; each later one what came since
 * the part before, what clients deleted among it; so a server that has read all parts has what the first one has.
 * Tenants and models are told by their names, models also by their files' fingerprint: what belongs to none of the new
 * server's stays behind, and the log says so. A part is judged whole before anything of it is used: one with another
 * form, or with a member that is not what it must be, changes nothing. */
#ifndef WEFT_API_SERVER_ESTATE_H
#define WEFT_API_SERVER_ESTATE_H

#include "api/runtime.h"
#include "api/server/server.h"

typedef struct weft_estate weft_estate; /* what was told already */

/* first_pin: pins with lower numbers are those of files, which the new server reads itself. */
weft_status weft_estate_open(weft_server *server, uint32_t first_pin, weft_estate **out, weft_error *error);
void weft_estate_close(weft_estate *estate); /* NULL is fine. The server goes on without remembering what is deleted */
/* Whether there is something that no part has told. */
bool weft_estate_has_news(weft_estate *estate);
/* The next part. NO_MEMORY: nothing of it counts as told. */
weft_status weft_estate_write(weft_estate *estate, weft_text *out, weft_error *error);

/* Takes a part of another server, or several, one a line. FORMAT, with a line, or NO_MEMORY. What finds no room is
 * left out and logged. */
weft_status weft_estate_take(weft_server *server, const char *bytes, size_t n, weft_error *error);

#endif
