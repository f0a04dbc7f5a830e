/* SPDX-License-Identifier: MIT */
/* The tenants of a runtime: what weft_open was given, turned into what the engine is given, and their counters as
 * Prometheus text. For the files of api/ only. */
#ifndef WEFT_API_TENANTS_H
#define WEFT_API_TENANTS_H

#include "api/runtime.h"

enum { WEFT_TENANT_NAME_BYTES = 64 };

/* Copies the names of the tenants into the runtime, which owns them, and fills config, [options.tenants], for the
 * engine. */
weft_status weft_tenants_name(weft_runtime *runtime, weft_tenant_config *config, weft_error *error);
/* Why requests were refused, as the labels of counters say it. */
extern const char *const weft_refused_names[WEFT_REFUSED_KINDS];
/* How many tenants have a name now: those of lower number. Any thread. */
uint32_t weft_tenants_count(const weft_runtime *runtime);
/* Gives a tenant other weight, class and limits (weft_engine_change_tenant); the number after the last named tenant
 * becomes a tenant so, of a name of at most WEFT_TENANT_NAME_BYTES. Takes no memory. INVALID with a line. One thread
 * at a time, while others read. */
weft_status weft_tenants_set(weft_runtime *runtime, uint32_t tenant, const weft_tenant_options *options,
                             weft_error *error);
void weft_tenants_forget(weft_runtime *runtime);
/* Appends the counters of every tenant, with the label `tenant`. */
void weft_tenants_metrics(weft_runtime *runtime, weft_text *out);

#endif
