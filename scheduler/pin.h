/* SPDX-License-Identifier: MIT */
/* Pins: prefixes that the operator keeps in the pool for a time.
 *
 * Law. A pin is a declaration: tokens of one lane and domain, whole blocks of them, until it expires or is
 * unpinned. While it is held, a sequence of the pager has its blocks and nothing evicts them. It is
 * held as soon as a request that begins with it has computed it; the first such request is an
 * ordinary one of one token, which pin submits. It is let go at its end, at a reset of the cache, and when
 * a request of a tenant whose class is above the pin's priority lacks blocks: before anybody is preempted,
 * the lowest priority first. A pin that was let go stays declared and is held again when it is next
 * computed or found. A pin that would leave less of the pool than the longest request of a lane needs
 * is refused, so pins never keep anybody from running. A public pin declares its prefix public: requests
 * of all tenants that begin with it share its blocks, held or not.
 *
 * Threads: weft_engine_pin, unpin and list_pins (engine.h) by any; what is here by the engine's. The mutex
 * guards the list and all fields; the engine takes it only while there is a pin. */
#ifndef WEFT_SCHEDULER_PIN_H
#define WEFT_SCHEDULER_PIN_H

#include <pthread.h>
#include <stdatomic.h>

#include "scheduler/engine.h"

typedef struct weft_pin {
  weft_pin_info info;
  weft_key128 domain;
  int32_t *tokens;
  weft_seq seq; /* WEFT_SEQ_NONE: not held */
  bool removed; /* by unpin; the engine thread takes it out */
} weft_pin;

typedef struct weft_pins {
  pthread_mutex_t mutex;
  weft_pin **pin; /* [n_max], in order of declaration */
  uint32_t n, n_max, next_id;
  uint32_t n_pages, n_pages_max; /* of all pins, held or not */
  _Atomic uint32_t n_known;      /* == n, without the mutex */
} weft_pins;

weft_status weft_pins_open(weft_pins *pins, uint32_t n_max);
void weft_pins_close(weft_pins *pins);

/* What the pool can spare; once, at open. */
void weft_pins_plan(weft_engine *engine);
/* Takes out what expired or was unpinned. */
void weft_pins_expire(weft_engine *engine);
/* When the next one expires, UINT64_MAX: never. */
uint64_t weft_pins_next_us(weft_engine *engine);
/* Tokens of the longest public prefix that the request begins with. */
uint32_t weft_pins_n_public(weft_engine *engine, const weft_request *request);
/* The request has left: holds what it began with and is not held. */
void weft_pins_hold(weft_engine *engine, const weft_request *request);
/* Lets go of one pin whose priority is below the class of the request's tenant; false: there is none. */
bool weft_pins_give_way(weft_engine *engine, const weft_request *request);
/* Pages of all such pins. */
uint32_t weft_pins_spare(weft_engine *engine, const weft_request *request);
/* Of all of the lane, or (UINT32_MAX) of all: the cache is reset. */
void weft_pins_let_go(weft_engine *engine, uint32_t lane);
void weft_pins_clear(weft_engine *engine); /* ends all: the engine stops */

#endif
