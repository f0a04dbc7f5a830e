/* SPDX-License-Identifier: MIT */
/* The tenants of a runtime: what weft_open was given, turned into what the engine is given, and their counters as
 * Prometheus text. For the files of api/ only. */
#ifndef WEFT_API_TENANTS_H
#define WEFT_API_TENANTS_H

#include "api/runtime.h"

/* Copies the names of the tenants into the runtime, which owns them, and fills config, [options.tenants], for the
 * engine. */
weft_status weft_tenants_name(weft_runtime *runtime, weft_tenant_config *config, weft_error *error);
/* Why requests were refused, as the labels of counters say it. */
extern const char *const weft_refused_names[WEFT_REFUSED_KINDS];
void weft_tenants_forget(weft_runtime *runtime);
/* Appends the counters of every tenant, with the label `tenant`. */
void weft_tenants_metrics(weft_runtime *runtime, weft_text *out);

#endif
