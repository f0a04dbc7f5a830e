/* SPDX-License-Identifier: MIT */
/* The engine: one continuous-batching loop over one pager and several runners, one runner for each model.
 *
 * Law. A request comes in through the inbox and from then on is touched by the engine thread alone. What leaves the
 * engine is an append-only answer and exactly one final event for each request, whatever happens. A step has four
 * stages: it is decided, performed, run and applied. Of these only perform.c and apply.c change the state of a
 * request; the start of a turn (step.c) does so for submissions, cancels, deadlines and broken devices. With overlap
 * the host is one step behind the device: rows that were planned for a request that has ended meanwhile are void and
 * counted. Preemption is by recompute and loses no token. Time is an argument, so that a test or a simulation can
 * drive the engine with a clock of its own.
 *
 * Threads: submit, cancel, poll, wait and release may be called by any thread; step, and everything that it calls, by
 * one thread only, the engine thread. The memory of a request is taken by submit in the caller's thread; the scheduler
 * allocates nothing after open, so it cannot run out of memory in the middle of a step. (A runner may allocate in one
 * case, which model/model.h names.) */
#ifndef WEFT_SCHEDULER_ENGINE_H
#define WEFT_SCHEDULER_ENGINE_H

#include "scheduler/event.h"
#include "scheduler/params.h"
#include "scheduler/prefix_feed.h"
#include "scheduler/recorder.h"
#include "scheduler/sent_prefixes.h"
#include "scheduler/stats.h"
#include "scheduler/view.h"
#include "scheduler/visit.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_engine weft_engine;

weft_status weft_engine_open(const weft_engine_config *config, weft_engine **out, weft_error *error);
/* Ends the engine thread if it runs. Every request must have been released before. NULL is fine. */
void weft_engine_close(weft_engine *engine);

/* Submits n requests of one tenant, 1 to WEFT_SUBMISSION_MAX, as one act: all of them or none. Checks them against
 * what could ever fit, and refuses with one line that names the largest length or number that would: INVALID
 * (parameters, vocabulary, places for n), TOO_LARGE (pool, context), LIMIT (tokens of a minute, memory of one
 * request). FULL when the queue or the memory of requests is full for now, or the tenant's limit on waiting
 * requests is reached; RATE_LIMIT when its tokens of this minute are used up; params->retry_us then says when to submit
 * again. On WEFT_OK the caller owns out[0 .. n) until it releases each of
 * them; otherwise they are NULL. */
weft_status weft_engine_submit_all(weft_engine *engine, const weft_request_params *params, uint32_t n, uint64_t now_us,
                                   weft_request **out, weft_error *error);
/* The same for one request. */
weft_status weft_engine_submit(weft_engine *engine, const weft_request_params *params, uint64_t now_us,
                               weft_request **out, weft_error *error);
/* The same for engines that share their places (places.h): request i goes to engine[i], a sibling to the engine of its
 * sibling. n is one that weft_submission_check takes. */
weft_status weft_engines_submit(weft_engine *const *engine, const weft_request_params *params, uint32_t n,
                                uint64_t now_us, weft_request **out, weft_error *error);
weft_status weft_submission_check(uint32_t n, weft_error *error);    /* INVALID with a line */
void weft_engine_cancel(weft_engine *engine, weft_request *request); /* any time, any thread, any number of times */
/* Next event of this request, or WEFT_AGAIN. Never blocks. One reader per request. */
weft_status weft_engine_poll(weft_engine *engine, weft_request *request, weft_event *out);
/* What the request asked for: the one copy, until release (base/asked.h). */
const weft_generate_params *weft_engine_asked(const weft_request *request);
/* The logprobs of the prompt, for a request that asked for them: WEFT_AGAIN until they are complete, which they are
 * with its first token at the latest; NOT_FOUND when it ended before. They stay until release. */
weft_status weft_engine_prompt_logprobs(const weft_request *request, weft_prompt_logprobs *out);
/* Blocks until there is something to poll or timeout_us passed (WEFT_AGAIN). */
weft_status weft_engine_wait(weft_engine *engine, weft_request *request, uint64_t timeout_us);
/* Gives the handle back, and cancels the request if it has not finished. NULL is fine. */
void weft_engine_release(weft_engine *engine, weft_request *request);

/* One turn of the loop (step.h): WEFT_AGAIN when there was nothing to do. The thread of weft_engine_start passes
 * weft_clock_us(); a caller that steps the engine itself may pass the time of any clock. */
weft_status weft_engine_step(weft_engine *engine, uint64_t now_us);
/* Wakes the engine thread because something that it waits for has ended: a copy to or from the spill file. Any thread,
 * any time before close. */
void weft_engine_wake(weft_engine *engine);
/* The loop on a thread of its own, sleeping when there is nothing to do. */
weft_status weft_engine_start(weft_engine *engine);
void weft_engine_stop(weft_engine *engine); /* ends the thread; running requests finish with CANCELLED */
/* Refuses new requests (submit gives WEFT_FULL with a line that says so); requests that wait or run go on to their
 * end. */
void weft_engine_drain(weft_engine *engine);
bool weft_engine_idle(weft_engine *engine);
/* Gives a tenant other weight, class and limits, at any time; a place without a tenant (params.h) becomes that tenant's so.
 * Requests that are there keep their places and go on to their end, under the limits of blocks and of tokens that they
 * were judged by; what is submitted later is judged by the new ones. INVALID with a line, and nothing has changed. Any
 * thread; takes no memory. */
weft_status weft_engine_change_tenant(weft_engine *engine, uint32_t tenant, const weft_tenant_config *config,
                                      uint64_t now_us, weft_error *error);
/* The same for n engines that share their places: config is that of all of them, each[i] that of engine[i]. */
weft_status weft_engines_change_tenant(weft_engine *const *engine, uint32_t n, uint32_t tenant,
                                       const weft_tenant_config *config, const weft_tenant_config *each,
                                       uint64_t now_us, weft_error *error);
/* Drops the prefix cache at the start of the next turn. Pins stay declared, and are held again once a request has
 * computed them. */
void weft_engine_reset_cache(weft_engine *engine);

/* ---- a pool that changes its size (weft_engine_config.pool); any thread ------------------------------------ */

/* Asks for a pool of n_pages pages, 1 to n_pages_max: the engine gets there step by step, as far as what runs lets it
 * (pool_size.h), and goes on while that is more than was asked for. */
void weft_engine_resize_pool(weft_engine *engine, uint32_t n_pages);
weft_pool_view weft_engine_pool_size(weft_engine *engine);

/* ---- pins: prefixes that the operator keeps in the pool (pins.h) --------------------------------------------- */

/* Declares a pin and submits what computes it. Any thread. INVALID, TOO_LARGE (too little of the pool would be left)
 * or FULL (pins, or the queue) with one line. */
weft_status weft_engine_pin(weft_engine *engine, const weft_pin_params *params, uint64_t now_us, uint32_t *id,
                            weft_error *error);
weft_status weft_engine_unpin(weft_engine *engine, uint32_t id); /* NOT_FOUND; gone at the next step */
uint32_t weft_engine_list_pins(weft_engine *engine, weft_pin_info *out, uint32_t max); /* in order of declaration */
/* A copy of a pin's tokens, the caller's. NOT_FOUND, NO_MEMORY. */
weft_status weft_engine_copy_pin(weft_engine *engine, uint32_t id, int32_t **tokens, uint32_t *n_tokens);

/* ---- how busy it is, for a choice between engines; any thread ----------------------------------------------- */

/* Rows that the request may need at most: its prompt's, and its longest answer's with all denoise steps. */
uint64_t weft_engine_rows(const weft_engine *engine, const weft_request_params *params);
/* The requests that the engine has, with the sums of these rows, and of them the tenant's. */
void weft_engine_get_load(weft_engine *engine, uint32_t tenant, weft_replica_load *all, weft_replica_load *own);
/* What the engine's pool has evicted, and how much it may keep; as counted at the end of the last turn. */
weft_sent_pool weft_engine_get_pool(weft_engine *engine);
bool weft_engine_can_run(const weft_engine *engine, uint32_t model); /* its device has not failed */
bool weft_engine_has(const weft_engine *engine, const weft_request *request);
/* The low half of the number of the last step that had rows of the request; engine thread. */
uint32_t weft_engine_last_step(const weft_request *request);

/* Requests of a model that were refused by any of the engines that share their places, by why. */
void weft_engine_get_refused(const weft_engine *engine, uint32_t model, uint64_t out[WEFT_REFUSED_KINDS]);
/* How many tokens of one lane fill the pool, in requests as long as its context: what one request of that length holds
 * is all pages of groups that keep every token, and those of one window or state of the others. Any thread. */
uint64_t weft_engine_tokens(const weft_engine *engine, uint32_t lane);

/* How many requests of one lane, each growing to n_tokens tokens, can run at once without a preemption while no other
 * request runs: what the pool holds under the rules of admission, at most running_max. Any thread. */
uint32_t weft_engine_room(const weft_engine *engine, uint32_t lane, uint32_t n_tokens);

/* A consistent copy of the counters, as the engine thread left them after its last turn; any thread. */
void weft_engine_get_stats(weft_engine *engine, weft_engine_stats *out);
void weft_engine_get_request_stats(weft_engine *engine, uint32_t model, weft_request_stats *out); /* of one model */
weft_tenant_left weft_engine_get_tenant_left(weft_engine *engine, uint32_t tenant, uint64_t now_us);
/* Another server took n_tokens of the tenant's tokens of this minute, or, below 0, gave them back. Any thread. */
void weft_engine_move_tokens(weft_engine *engine, uint32_t tenant, int64_t n_tokens, uint64_t now_us);
void weft_engine_get_tenant_stats(weft_engine *engine, uint32_t tenant, weft_tenant_stats *out);

/* The blocks of each layer group of a model, as one copy; out: [n_groups]. */
void weft_engine_get_group_usage(weft_engine *engine, uint32_t model, weft_group_usage *out);

/* Bytes of request_bytes_max (budget.h) that a request with an answer of at most answer_max tokens takes. n_canvas:
 * tokens of a canvas; 0 for an autoregressive answer. */
uint64_t weft_engine_request_bytes(const weft_request_params *params, uint32_t answer_max, uint32_t n_canvas);

/* Copies the newest records of steps, or of requests that ended, at most max of them, oldest first (recorder.h).
 * Returns how many were copied. Any thread. */
uint32_t weft_engine_get_steps(weft_engine *engine, weft_step_record *out, uint32_t max);
uint32_t weft_engine_get_requests(weft_engine *engine, weft_request_record *out, uint32_t max);

/* What those who watch a server see (view.h); any thread. A view for copies of this engine's, which the caller closes
 * (weft_view_close). NO_MEMORY. */
weft_status weft_engine_open_view(const weft_engine *engine, weft_view *out);
/* Asks for a view: the engine takes it at the end of a turn, soon. */
void weft_engine_ask_view(weft_engine *engine);
/* Waits for it, at most until weft_clock_us reaches until_us. False: it is late. Either way *out is the newest view,
 * which is all zero but for its sizes where there is none. */
bool weft_engine_await_view(weft_engine *engine, uint64_t until_us, weft_view *out);

/* Another drafter for requests that leave drafts open, and whether there are as many drafts as there can be; to
 * measure. Only while the engine is idle. */
void weft_engine_set_drafter(weft_engine *engine, const weft_drafter *drafter, bool always);

/* What changes in the prefix trie, for one reader on another thread; NULL: the engine was opened without. */
weft_prefix_feed *weft_engine_feed(weft_engine *engine);

/* Has the engine's thread work on the pager, piece by piece, and returns when it is done (visit.h). Any thread but the
 * engine's; where the engine has no thread, the only one that uses it. */
void weft_engine_visit(weft_engine *engine, weft_visit visit, void *self);
/* How long a page takes to come up from the file, as it was measured before the engine runs (0: it was not); until
 * moves have ended, it decides what is worth reading. The file is one that the operator wants read: it may take twice
 * as long. */
void weft_engine_expect_file(weft_engine *engine, double page_us);

/* The pager, which the engine owns. Only the engine thread may use it, or a test that steps the engine itself. */
weft_pager *weft_engine_pager(weft_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
