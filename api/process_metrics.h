/* SPDX-License-Identifier: MIT */
/* The process as the system sees it: what Prometheus' own clients tell of every process, and the allocator's counts. */
#ifndef WEFT_API_PROCESS_METRICS_H
#define WEFT_API_PROCESS_METRICS_H

#include "base/text.h"

/* 0: not known here. */
typedef struct weft_process_memory {
  unsigned long long resident, virtual_bytes, allocated, active, mapped;
} weft_process_memory;

weft_process_memory weft_process_get_memory(void);
/* As Prometheus text; what is not known has no line. */
void weft_process_metrics(weft_text *out);

#endif
