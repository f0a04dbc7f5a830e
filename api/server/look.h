/* SPDX-License-Identifier: MIT */
/* A look at the server: what those who watch it are told, taken once for all of them and written for each as JSON
 * (docs/page.md has the members).
 *
 * Law. Who may see everything is told everything; a tenant is told of its own requests, counts and pages, and of all
 * others that their pages are not free. No text of any request is in it. Names are escaped as JSON; what is written is
 * bounded: LOOK_REQUESTS requests, LOOK_STEPS steps and the cells of one grid for each replica. */
#ifndef WEFT_API_SERVER_LOOK_H
#define WEFT_API_SERVER_LOOK_H

#include "api/runtime.h"
#include "api/server/keys.h"

enum { LOOK_REQUESTS = 256, LOOK_STEPS = 64, LOOK_PERIOD_MS = 250, LOOK_LATE_MS = 1000 };

typedef struct look_replica {
  weft_view view;
  weft_engine_stats stats;
  weft_step_record step[LOOK_STEPS];
  uint32_t n_steps;
  bool late; /* the view is an older one */
} look_replica;

typedef struct look {
  weft_runtime *runtime;
  const weft_keys *keys;       /* NULL: there are none */
  look_replica *replica;       /* [runtime->n_replicas] */
  weft_tenant_stats *tenant;   /* [n_tenants] */
  uint32_t n_tenants, n_named; /* places for tenants; those that had a tenant when the look was taken */
  size_t bytes_max;            /* of what look_put_head and look_put_rest write for one tenant */
  uint64_t number, time_ms;    /* of the look; since 1970 */
  uint64_t now_us;             /* weft_clock_us */
  bool draining;
} look;

weft_status look_open(look *look, weft_runtime *runtime, const weft_keys *keys); /* NO_MEMORY */
void look_close(look *look);                                                     /* one that is all zero is fine */
/* Takes a look: asks each replica for a view and waits for it, LOOK_LATE_MS at most. */
void look_take(look *look, bool draining);
/* Whether the tenant may see everything. */
bool look_sees_all(const look *look, uint32_t tenant);
/* Appends the object for a tenant in two parts: what differs in each look, and what changes only with what there is to
 * see. */
void look_put_head(const look *look, uint32_t tenant, weft_text *out);
void look_put_rest(const look *look, uint32_t tenant, weft_text *out);

#endif
