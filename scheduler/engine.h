/* SPDX-License-Identifier: MIT */
/* The engine: one continuous-batching loop over one pager and several runners.
 *
 * Law. Requests come in through the inbox and are touched only by the engine thread afterwards; what leaves is
 * an append-only answer and one final event per request, exactly one, whatever happens. A step is decided, performed,
 * run and applied; in it requests change state in perform.c and apply.c only. The host may be one step behind the
 * device (overlap): rows planned for a request that turns out to be finished are void and counted. Preemption is
 * by recompute and loses no token. Time is an argument.
 *
 * Threads: submit, cancel, poll, wait and release may be called by any thread; step, and everything it calls, by
 * one thread only. Memory of a request is taken by submit; the engine thread allocates nothing after open. */
#ifndef WEFT_SCHEDULER_ENGINE_H
#define WEFT_SCHEDULER_ENGINE_H

#include "scheduler/event.h"
#include "scheduler/params.h"
#include "scheduler/recorder.h"
#include "scheduler/stats.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_engine weft_engine;

weft_status weft_engine_open(const weft_engine_config *config, weft_engine **out, weft_error *error);
/* All requests must have been released. */
void weft_engine_close(weft_engine *engine);

/* Submits n requests of one tenant, 1 to WEFT_SUBMISSION_MAX, as one act: all of them or none. Checks them against what
 * could ever fit (pool, context, vocabulary, parameters, limits of the tenant, places for n): INVALID or TOO_LARGE with
 * one line that says the largest that fits; FULL when the queue or the memory of requests is full, or a limit of the
 * tenant is reached for now. On WEFT_OK the caller owns out[0 .. n) until release; else they are NULL. */
weft_status weft_engine_submit_all(weft_engine *engine, const weft_request_params *params, uint32_t n, uint64_t now_us,
                                   weft_request **out, weft_error *error);
/* One request. */
weft_status weft_engine_submit(weft_engine *engine, const weft_request_params *params, uint64_t now_us,
                               weft_request **out, weft_error *error);
void weft_engine_cancel(weft_engine *engine, weft_request *request); /* any time, any thread, any number of times */
/* Next event of this request, or WEFT_AGAIN. Never blocks. One reader per request. */
weft_status weft_engine_poll(weft_engine *engine, weft_request *request, weft_event *out);
/* Blocks until there is something to poll or timeout_us passed (WEFT_AGAIN). */
weft_status weft_engine_wait(weft_engine *engine, weft_request *request, uint64_t timeout_us);
/* Gives the handle back; cancels if not finished. */
void weft_engine_release(weft_engine *engine, weft_request *request);

/* One turn of the loop: WEFT_AGAIN when there was nothing to do. weft_engine_start uses weft_clock_us; who steps the
 * engine himself may use any clock. */
weft_status weft_engine_step(weft_engine *engine, uint64_t now_us);
/* Something that the engine waits for has ended: a copy of the file. Any thread, any time before close. */
void weft_engine_wake(weft_engine *engine);
/* The loop on a thread of its own, sleeping when there is nothing to do. */
weft_status weft_engine_start(weft_engine *engine);
void weft_engine_stop(weft_engine *engine); /* ends the thread; running requests finish with CANCELLED */
/* Refuses new requests (submit gives WEFT_FULL with a line that says so) and lets running ones end. */
void weft_engine_drain(weft_engine *engine);
bool weft_engine_idle(weft_engine *engine);
/* Drops the prefix cache at the next step boundary. Pins stay declared, and are held when they are computed again. */
void weft_engine_reset_cache(weft_engine *engine);

/* ---- pins: prefixes that the operator keeps in the pool (pins.h) --------------------------------------------- */

/* Declares a pin and submits what computes it. Any thread. INVALID, TOO_LARGE (too little of the pool would be left)
 * or FULL (pins, or the queue) with one line. */
weft_status weft_engine_pin(weft_engine *engine, const weft_pin_params *params, uint64_t now_us, uint32_t *id,
                            weft_error *error);
weft_status weft_engine_unpin(weft_engine *engine, uint32_t id); /* NOT_FOUND; gone at the next step */
uint32_t weft_engine_list_pins(weft_engine *engine, weft_pin_info *out, uint32_t max); /* in order of declaration */

/* How many requests of a lane, each growing to n tokens, run at once without preemption while nobody else does: what the
 * pool holds under the rules of admission, at most running_max. Any thread. */
uint32_t weft_engine_room(const weft_engine *engine, uint32_t lane, uint32_t n_tokens);

/* A consistent copy, taken by the engine between steps; any thread. */
void weft_engine_get_stats(weft_engine *engine, weft_engine_stats *out);
void weft_engine_get_tenant_stats(weft_engine *engine, uint32_t tenant, weft_tenant_stats *out);

/* The blocks of each layer group of a model, as one copy; out: [n_groups]. */
void weft_engine_get_group_usage(weft_engine *engine, uint32_t model, weft_group_usage *out);

/* Bytes that a request with an answer of at most answer_max tokens counts for in request_bytes_max; n_canvas: tokens of a
 * canvas, 0 for an answer token by token. */
uint64_t weft_engine_request_bytes(const weft_request_params *params, uint32_t answer_max, uint32_t n_canvas);

/* Copies the newest at most max records of steps, of requests that ended, oldest first; any thread. */
uint32_t weft_engine_get_steps(weft_engine *engine, weft_step_record *out, uint32_t max);
uint32_t weft_engine_get_requests(weft_engine *engine, weft_request_record *out, uint32_t max);

/* The pager, for tests and for the engine thread only. */
weft_pager *weft_engine_pager(weft_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
