/* SPDX-License-Identifier: MIT */
/* The tenants of a runtime: from what weft_open was told to what the engine is told, and their
 * counters out. For the files of api/ only. */
#ifndef WEFT_API_TENANTS_H
#define WEFT_API_TENANTS_H

#include "api/runtime.h"

/* Copies names; fills config, [options.tenants], for the engine. */
weft_status weft_tenants_name(weft_runtime *runtime, weft_tenant_config *config, weft_error *error);
void weft_tenants_forget(weft_runtime *runtime);
/* Prometheus text, one label `tenant`. */
void weft_tenants_metrics(weft_runtime *runtime, weft_text *out);

#endif
