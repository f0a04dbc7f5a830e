/* SPDX-License-Identifier: MIT */
/* By which names and for which pages a server answers.
 *
 * A browser lets any page of any site send requests to a server that the browser's machine can reach. With a name of
 * its own for that server (DNS rebinding) such a page can read the answers, too.
 *
 * Law: a server that only this machine reaches answers to names that no page of another site can have: addresses of
 * this machine, names under a suffix that public DNS never delegates, and names of one label, which are those of
 * containers, home networks and tests. Other names and pages of other sites are the operator's to allow, one by one or
 * by a pattern. */
#ifndef WEFT_API_SERVER_ORIGINS_H
#define WEFT_API_SERVER_ORIGINS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* SCHEME://HOST or SCHEME://HOST:PORT; a "*" as the first part of HOST stands for one part or several, as the PORT for
 * any. INVALID with a line for what is neither. */
weft_status origins_check(const char *pattern, weft_error *error);
bool origins_fit(const char *pattern, const char *origin);
/* Whether HOST[:PORT] is of a pattern's host, whatever the ports. */
bool origins_fit_host(const char *pattern, const char *host);
/* Whether HOST[:PORT] can only mean this machine or one of its network. */
bool origins_host_is_local(const char *host);
/* Whether two of HOST[:PORT] have the same host. */
bool origins_same_host(const char *a, const char *b);
/* What follows SCHEME:// ; "" where there is none. */
const char *origins_host(const char *origin);

#endif
