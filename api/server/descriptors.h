/* SPDX-License-Identifier: MIT */
/* File descriptors of the process.
 *
 * Law: places for connections are never more than there are descriptors for, beside those that are open when the server
 * begins and a few for what comes later (files that are read again, a log that is begun anew, a connection that is
 * refused). So the rules of places (api/http/http_share.c) are what decides who is heard: the last eighth of the places
 * belongs to no request, and /health is heard whatever others hold. */
#ifndef WEFT_API_SERVER_DESCRIPTORS_H
#define WEFT_API_SERVER_DESCRIPTORS_H

#include <stdint.h>

enum { DESCRIPTORS_RESERVE = 16, DESCRIPTORS_CONNECTIONS_MIN = 8 };

/* Raises the limit of this process as far as the system lets it. Once, before anything is opened. */
void descriptors_raise(void);
/* The limit as it is now. */
uint32_t descriptors_limit(void);
/* How many of `wanted` connections there is room for, with `limit` descriptors of which n_open are open; 0: for fewer
 * than DESCRIPTORS_CONNECTIONS_MIN. */
uint32_t descriptors_room(uint32_t limit, uint32_t n_open, uint32_t wanted);
/* How many are open. */
uint32_t descriptors_open(void);

#endif
