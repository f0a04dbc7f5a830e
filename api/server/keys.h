/* SPDX-License-Identifier: MIT */
/* API keys: which client may ask, and as which tenant.
 *
 * The file has one `KEY TENANT` in a line; empty lines and lines that begin with # are skipped. A client that sends no
 * key is the tenant of the key `-`, if there is one. Tenants are numbered in the order in which they first appear;
 * several keys may name one tenant. What a tenant may do follows its name, on one of its lines:
 *   KEY TENANT weight=2 class=high running=8 queued=32 tokens-per-minute=60000 blocks=4096
 * The tenant named WEFT_OPERATOR may also do what only the operator may (router.h). That named WEFT_METRICS may read
 * counters and what is served, and nothing else. That named WEFT_ROUTER may say for which of the other tenants it asks.
 *
 * Law: whether and where a key matches does not show in the time that a look-up takes; keys are wiped before their
 * memory is given back. Tenants, their order and what they may do are immutable after open; which keys there are
 * changes by weft_keys_reload alone, for all threads at once. */
#ifndef WEFT_API_SERVER_KEYS_H
#define WEFT_API_SERVER_KEYS_H

#include "api/weft.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { WEFT_KEY_BYTES_MAX = 128, WEFT_KEYS_MAX = 4096, WEFT_TENANTS_MAX = 255 };

#define WEFT_OPERATOR  "operator"
#define WEFT_METRICS   "metrics"
#define WEFT_ROUTER    "router"
#define WEFT_EVERYBODY "default" /* also who asks where there are no keys */

typedef struct weft_keys weft_keys;

/* Where keys are told. Zero-initialise. */
typedef struct weft_keys_source {
  const char *path;       /* NULL: no file */
  const char *const *key; /* [n_keys] further keys, of the tenant named WEFT_EVERYBODY */
  uint32_t n_keys;
} weft_keys_source;

weft_status weft_keys_open(const weft_keys_source *source, weft_keys **out, weft_error *error);
/* From text in memory; name stands for the file in messages. */
weft_status weft_keys_parse(const char *text, size_t n, const char *name, weft_keys **out, weft_error *error);
/* The keys of the source take the place of the present ones, all of them or none. A new tenant, or a tenant that may do
 * something else than before, is refused, because the scheduler's tenants are fixed at its start. Any thread. */
weft_status weft_keys_reload(weft_keys *keys, const weft_keys_source *source, weft_error *error);
void weft_keys_close(weft_keys *keys); /* NULL is fine */
uint32_t weft_keys_n_tenants(const weft_keys *keys);
/* [n_tenants], as weft_open wants them; borrowed until close. */
const weft_tenant_options *weft_keys_options(const weft_keys *keys);
/* The name of a tenant; borrowed until close. */
const char *weft_keys_tenant(const weft_keys *keys, uint32_t tenant);
/* True: this tenant is the operator, that of metrics, that of routers. */
bool weft_keys_is_operator(const weft_keys *keys, uint32_t tenant);
bool weft_keys_is_metrics(const weft_keys *keys, uint32_t tenant);
bool weft_keys_is_router(const weft_keys *keys, uint32_t tenant);
/* The number of the tenant of a name. False: there is none. */
bool weft_keys_find_tenant(const weft_keys *keys, const char *name, uint32_t *tenant);
/* True: all keys that may ask for answers are of one tenant. */
bool weft_keys_one_asks(const weft_keys *keys);
/* The tenant of a key of n bytes, and its ticket, which stands for the key in weft_keys_hold. False: the key is not
 * known. Any thread, as all below. */
bool weft_keys_find(const weft_keys *keys, const char *key, size_t n, uint32_t *tenant, uint32_t *ticket);
/* The tenant of clients that send no key, whose ticket is 0. False: they have none, and are refused. */
bool weft_keys_find_none(const weft_keys *keys, uint32_t *tenant);
/* Whether the key that had this ticket still leads to the tenant. */
bool weft_keys_hold(const weft_keys *keys, uint32_t ticket, uint32_t tenant);
uint32_t weft_keys_n_reloads(const weft_keys *keys); /* while it stays, no key was taken away */

#endif
