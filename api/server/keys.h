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
 * memory is given back. Keys, tenants and what these may do change by weft_keys_reload alone, for all threads at once.
 * A tenant keeps its number and its name until close, also when no key leads to it any more, so that nothing of it can
 * ever be taken for another tenant's; new tenants get the next numbers, of which weft_keys_keep_places keeps some. */
#ifndef WEFT_API_SERVER_KEYS_H
#define WEFT_API_SERVER_KEYS_H

#include "api/weft.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { WEFT_KEY_BYTES_MAX = 128, WEFT_KEYS_MAX = 4096, WEFT_TENANTS_MAX = 255, WEFT_TENANTS_SPARE = 16 };

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
/* Keeps numbers for n tenants more, as far as there are WEFT_TENANTS_MAX; n 0: WEFT_TENANTS_SPARE where there are
 * several tenants, else none, since a server of one tenant has no rules for several. Before there are other threads. */
void weft_keys_keep_places(weft_keys *keys, uint32_t n);
/* Who is told of tenants that are new or may do something else than before, before a key leads to them as such. It
 * cannot refuse. */
typedef struct weft_keys_listener {
  void (*change)(void *self, uint32_t tenant, const weft_tenant_options *options);
  void *self;
} weft_keys_listener;
/* What a reload changed: tenants that are new, that may do something else, and to which no key leads any more. */
typedef struct weft_keys_news {
  uint32_t n_new, n_changed, n_gone;
} weft_keys_news;
/* What the source says takes the place of what there is, all of it or nothing: where a line is wrong, memory is
 * refused, or there is no place for a new tenant (FULL), an error and nothing has changed. One thread at a time. */
weft_status weft_keys_reload(weft_keys *keys, const weft_keys_source *source, const weft_keys_listener *listener,
                             weft_keys_news *news, weft_error *error);
void weft_keys_close(weft_keys *keys); /* NULL is fine */
/* Tenants that there are or were. */
uint32_t weft_keys_n_tenants(const weft_keys *keys);
uint32_t weft_keys_n_places(const weft_keys *keys); /* these, and those kept; never changes */
/* [n_places], as weft_open wants them: a place has the name "". To be read before the first reload. */
const weft_tenant_options *weft_keys_options(const weft_keys *keys);
/* What a tenant may do now; all zero where there is none of this number. */
weft_tenant_options weft_keys_get_options(const weft_keys *keys, uint32_t tenant);
/* The name of a tenant; borrowed until close. */
const char *weft_keys_tenant(const weft_keys *keys, uint32_t tenant);
/* True: this tenant is the operator, that of metrics, that of routers. */
bool weft_keys_is_operator(const weft_keys *keys, uint32_t tenant);
bool weft_keys_is_metrics(const weft_keys *keys, uint32_t tenant);
bool weft_keys_is_router(const weft_keys *keys, uint32_t tenant);
/* The number of the tenant of a name to which a key leads. False: there is none. */
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
