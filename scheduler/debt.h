/* SPDX-License-Identifier: MIT */
/* Debts: who holds more than its share of places or pages while another tenant waits with less than its own.
 *
 * Law. Tenant a owes tenant b when a holds more than its share, runs more than one request, is of no higher class, and b
 * would still be within its share with what it asks for. The last request of a to come gives way. So nobody is brought
 * below its share, nobody is brought above it, the first in rank is never taken from, and every chain of debts ends. Time
 * is shared by clocks (share.h), places and pages by right: a clock stands still while its lane has no turn. Reads only. */
#ifndef WEFT_SCHEDULER_DEBT_H
#define WEFT_SCHEDULER_DEBT_H

#include "scheduler/state.h"

/* What is short. */
typedef enum weft_debt_of {
  WEFT_DEBT_PAGES = 0,
  WEFT_DEBT_PLACES = 1, /* among all running requests */
  WEFT_DEBT_SLOTS = 2   /* of the request's lane */
} weft_debt_of;

typedef struct weft_debt {
  weft_debt_of of;
  uint32_t n, wanted; /* there are; the request asks for */
  uint64_t active_weight;
} weft_debt;

/* The request asks for `wanted` of these. */
weft_debt weft_debt_open(const weft_engine *engine, const weft_request *request, weft_debt_of of, uint32_t wanted);
/* The request's tenant has less than its share, with what it asks for. */
bool weft_debt_is_within_share(const weft_engine *engine, const weft_debt *debt, const weft_request *request);
/* The tenant owes it to the request's tenant, which is within its share. */
bool weft_debt_owes(const weft_engine *engine, const weft_debt *debt, uint32_t tenant, const weft_request *request);
/* The running request that gives way to the request: NULL, nobody owes it anything. */
weft_request *weft_debt_find(const weft_engine *engine, const weft_debt *debt, const weft_request *request);

#endif
