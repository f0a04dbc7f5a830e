/* SPDX-License-Identifier: MIT */
/* Memory, processor time and descriptors of this process, under the names that Prometheus' own clients give them, and
 * counts of the allocator. */
#ifndef WEFT_API_PROCESS_METRICS_H
#define WEFT_API_PROCESS_METRICS_H

#include "base/text.h"

/* Bytes; 0: not known on this system. */
typedef struct weft_process_memory {
  unsigned long long resident, virtual_bytes, allocated, active, mapped;
} weft_process_memory;

weft_process_memory weft_process_get_memory(void);
/* As Prometheus text; what is not known has no line. */
void weft_process_metrics(weft_text *out);

#endif
