/* SPDX-License-Identifier: MIT */
/* Pins: prefixes that the operator keeps in the pool for a time.
 *
 * Law. A pin is a declaration: tokens of one lane and domain, whole blocks of them, until it expires or is unpinned.
 * While it is held, a sequence of the pager has its blocks and nothing evicts them. It is held as soon as a request
 * that begins with its tokens has computed them; the first such request is an ordinary one of one token, which
 * weft_engine_pin submits. A pin is let go at its end, at a reset of the cache, and when a request of a tenant whose
 * class is above the pin's priority lacks blocks: before any request is preempted, the pin of lowest priority first. A
 * pin that was let go stays declared and is held again when a request next computes or finds it. A pin that would
 * leave less of the pool than the longest request of a lane needs is refused, so pins never keep a request from
 * running. A public pin declares its prefix public: requests of all tenants that begin with it share its blocks,
 * whether it is held or not.
 *
 * Threads: weft_engine_pin, unpin and list_pins (engine.h) by any; the functions below as their headings say. The
 * mutex guards the list and all fields; the engine thread takes it only while there is a pin. */
#ifndef WEFT_SCHEDULER_PINS_H
#define WEFT_SCHEDULER_PINS_H

#include "scheduler/state.h"

weft_status weft_pins_open(weft_pin_table *pins, uint32_t n_max);
void weft_pins_close(weft_pin_table *pins);

/* ---- any thread ---- */

/* Declares a pin of the whole blocks of the prefix, *n_tokens tokens. INVALID, TOO_LARGE (too little of the pool would
 * be left) or FULL (pins_max) with one line. */
weft_status weft_pins_declare(weft_engine *engine, const weft_pin_params *params, uint32_t *id, uint32_t *n_tokens,
                              weft_error *error);
weft_status weft_pins_remove(weft_engine *engine, uint32_t id);                 /* NOT_FOUND; gone at the next step */
uint32_t weft_pins_list(weft_engine *engine, weft_pin_info *out, uint32_t max); /* in order of declaration */
/* A copy of the tokens, the caller's. NOT_FOUND, NO_MEMORY. */
weft_status weft_pins_copy(weft_engine *engine, uint32_t id, int32_t **tokens, uint32_t *n_tokens);

/* ---- engine thread ---- */

/* Computes how many pages pins may hold together; called once, at open. */
void weft_pins_plan(weft_engine *engine);
/* Takes out the pins that expired or were unpinned. */
void weft_pins_expire(weft_engine *engine);
/* When the next pin expires, UINT64_MAX: never. */
uint64_t weft_pins_next_us(weft_engine *engine);
/* Tokens of the longest public prefix that the request begins with. */
uint32_t weft_pins_n_public(weft_engine *engine, const weft_request *request);
/* The request has left: the pins that its tokens begin with and that are not held are held from now on. */
void weft_pins_hold(weft_engine *engine, const weft_request *request);
/* Lets go of the pin of lowest priority that is below the class of the request's tenant; false: there is none. */
bool weft_pins_give_way(weft_engine *engine, const weft_request *request);
/* Pages of all pins whose priority is below the class of the request's tenant. */
uint32_t weft_pins_spare(weft_engine *engine, const weft_request *request);
/* Lets go of all held pins of the lane, or (UINT32_MAX) of all lanes; they stay declared. */
void weft_pins_let_go(weft_engine *engine, uint32_t lane);
/* Ends all pins: the engine stops. */
void weft_pins_clear(weft_engine *engine);

#endif
