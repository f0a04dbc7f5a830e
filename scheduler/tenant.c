/* SPDX-License-Identifier: MIT */
#include "scheduler/tenant.h"

#include <string.h>

#include "base/memory.h"

weft_status weft_tenants_open(weft_tenants *tenants, uint32_t n_tenants, uint32_t n_lanes) {
  *tenants = (weft_tenants){.n_tenants = n_tenants, .n_lanes = n_lanes};
  tenants->tenant = weft_alloc(n_tenants, sizeof *tenants->tenant);
  tenants->queue = weft_alloc((size_t)n_tenants * n_lanes, sizeof *tenants->queue);
  tenants->candidate = weft_alloc(n_tenants, sizeof *tenants->candidate);
  tenants->candidate_of = weft_alloc(n_tenants, sizeof *tenants->candidate_of);
  if (tenants->tenant == NULL || tenants->queue == NULL || tenants->candidate == NULL ||
      tenants->candidate_of == NULL) {
    weft_tenants_close(tenants);
    return WEFT_E_NO_MEMORY;
  }
  for (size_t i = 0; i < (size_t)n_tenants * n_lanes; i++) weft_list_init(&tenants->queue[i]);
  return WEFT_OK;
}

void weft_tenants_close(weft_tenants *tenants) {
  weft_free(tenants->tenant);
  weft_free(tenants->queue);
  weft_free(tenants->candidate);
  weft_free(tenants->candidate_of);
  memset(tenants, 0, sizeof *tenants);
}

static weft_link *queue_of(weft_tenants *tenants, uint32_t lane, uint32_t tenant) {
  return &tenants->queue[(size_t)lane * tenants->n_tenants + tenant];
}

static weft_rank rank_of(const weft_request *r) {
  return (weft_rank){.arrival = r->arrival, .priority = r->asked.priority};
}

/* New requests belong near the tail, requests that come back (preempted, followers) near the head:
 * one walk from the end that is closer by arrival. */
void weft_tenants_enqueue(weft_tenants *tenants, weft_request *request) {
  weft_tenant *tenant = &tenants->tenant[request->tenant];
  if (tenant->n_waiting == 0 && tenant->n_running == 0 && tenant->clock < tenants->served_clock) {
    tenant->clock = tenants->served_clock;
  }
  tenant->n_waiting += 1;
  weft_link *queue = queue_of(tenants, request->lane, request->tenant);
  weft_rank rank = rank_of(request);
  weft_link *at;
  if (request->admitted_once || request->retry_step > 0) {
    for (at = queue->next; at != queue; at = at->next) {
      weft_rank other = rank_of(WEFT_OF_LINK(at, weft_request, link));
      if (weft_policy_goes_before(&rank, &other)) break;
    }
  } else {
    for (at = queue; at->prev != queue; at = at->prev) {
      weft_rank other = rank_of(WEFT_OF_LINK(at->prev, weft_request, link));
      if (weft_policy_goes_before(&other, &rank)) break;
    }
  }
  weft_list_insert_before(at, &request->link);
}

void weft_tenants_dequeued(weft_tenants *tenants, const weft_request *request) {
  tenants->tenant[request->tenant].n_waiting -= 1;
}

weft_request *weft_tenants_pick(weft_tenants *tenants, uint32_t lane) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < tenants->n_tenants; i++) {
    weft_link *queue = queue_of(tenants, lane, i);
    if (weft_list_empty(queue)) continue;
    const weft_request *first = WEFT_OF_LINK(queue->next, weft_request, link);
    tenants->candidate_of[n] = i;
    tenants->candidate[n++] = (weft_candidate){.tenant_clock = tenants->tenant[i].clock,
                                               .arrival = first->arrival,
                                               .priority = first->asked.priority};
  }
  if (n == 0) return NULL;
  uint32_t tenant = tenants->candidate_of[weft_policy_pick(tenants->candidate, n)];
  uint64_t clock = tenants->tenant[tenant].clock;
  if (clock > tenants->served_clock) tenants->served_clock = clock;
  return WEFT_OF_LINK(queue_of(tenants, lane, tenant)->next, weft_request, link);
}

weft_request *weft_tenants_any(weft_tenants *tenants, uint32_t lane) {
  for (uint32_t i = 0; i < tenants->n_tenants; i++) {
    weft_link *queue = queue_of(tenants, lane, i);
    if (!weft_list_empty(queue)) return WEFT_OF_LINK(queue->next, weft_request, link);
  }
  return NULL;
}
