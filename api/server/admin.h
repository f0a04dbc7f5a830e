/* SPDX-License-Identifier: MIT */
/* What only the operator may ask: pins, as JSON, over HTTP and from files.
 *
 *   {"model":"a","tenant":"red","ttl_seconds":3600,"priority":1,"messages":[{"role":"system",...}]}
 *
 * Law: there is exactly one of text, tokens and messages; "public": true takes the place of a tenant; an unknown field
 * is refused as a mistake. A file holds one such object or a list of them. */
#ifndef WEFT_API_SERVER_ADMIN_H
#define WEFT_API_SERVER_ADMIN_H

#include "api/http/refusal.h"
#include "api/server/keys.h"
#include "api/weft.h"

/* Declares all pins of the file. keys, which give the numbers of tenants, may be NULL. The line names the file and the
 * entry. */
weft_status weft_admin_pin_file(weft_runtime *runtime, const weft_keys *keys, const char *path, weft_error *error);

#endif
