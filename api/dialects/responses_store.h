/* SPDX-License-Identifier: MIT */
/* Responses that clients may ask for again or continue (api/dialects/responses.h).
 *
 * Law: at most WEFT_RESPONSES responses and WEFT_RESPONSES_BYTES are kept, in memory alone. When there is no room for
 * one more, the tenant that would then keep most of what is short, bytes or number, loses its oldest response, so that
 * no tenant can make others lose theirs by making many or large ones. A response is found by its own tenant alone; for
 * all other tenants it does not exist. Any thread; a thread waits for another one no longer than a response takes to
 * copy.
 *
 * For another server that is to have them (weft_responses_next) responses have numbers that grow. From the first such
 * call on what a client deletes is remembered, without its texts being told, until weft_responses_forget. */
#ifndef WEFT_API_DIALECTS_RESPONSES_STORE_H
#define WEFT_API_DIALECTS_RESPONSES_STORE_H

#include "base/text.h"

enum { WEFT_RESPONSES = 4096, WEFT_RESPONSES_BYTES = 64 << 20 };

typedef struct weft_responses weft_responses;

typedef struct weft_response_copy {
  weft_text id, body, items; /* the caller frees */
  bool deleted;              /* by its client; then only the id is there */
} weft_response_copy;

/* max_bytes 0: WEFT_RESPONSES_BYTES. */
weft_status weft_responses_open(uint32_t n_tenants, uint64_t max_bytes, weft_responses **out);
void weft_responses_close(weft_responses *store); /* NULL is fine */
/* Copies both texts. A response that is larger than a 32nd of the room, or for which there is no memory, is not
 * kept. */
void weft_responses_put(weft_responses *store, uint32_t tenant, const char *id, const weft_text *body,
                        const weft_text *items);
/* Appends copies; body or items may be NULL. False: this tenant has no such response. */
bool weft_responses_get(weft_responses *store, uint32_t tenant, const char *id, weft_text *body, weft_text *items);
/* Deletes all with this id, in one walk over those of the tenant. */
bool weft_responses_delete(weft_responses *store, uint32_t tenant, const char *id);
uint64_t weft_responses_bytes(weft_responses *store);

/* What was put last, or deleted while that is remembered, has this number; 0: nothing. */
uint64_t weft_responses_number(weft_responses *store);
/* The tenant's next response after *number, which becomes its number: appends its texts, or says that it was deleted.
 * The first after the number 0 is the oldest one. False: there is none after it. */
bool weft_responses_next(weft_responses *store, uint32_t tenant, uint64_t *number, weft_response_copy *out);
/* Deleted ones need not be remembered any more. */
void weft_responses_forget(weft_responses *store);

#endif
