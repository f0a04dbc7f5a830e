/* SPDX-License-Identifier: MIT */
/* vLLM's series, so that dashboards made for vLLM read this server.
 *
 * Law: every line carries the name of its own model, the one that answers carry. Counters are of that model's requests
 * alone; the pool is shared, so a model's use of it is the share that its own requests hold. */
#ifndef WEFT_API_VLLM_METRICS_H
#define WEFT_API_VLLM_METRICS_H

#include "api/runtime.h"

void weft_vllm_metrics(weft_runtime *runtime, const weft_engine_stats *stats, weft_text *out);

#endif
