/* SPDX-License-Identifier: MIT */
/* The models of a folder (--models-dir) that are in memory now: what state each is in, and who comes and goes. For the
 * files of api/ only.
 *
 * Law. A model is in one of five states, and residents.c alone changes them:
 *
 *   absent ---> loading ---> ready ---> leaving ---> absent, or where it was put to sleep sleeping
 *     ^            `-- it could not be loaded --------^                                      |
 *     `----------------------------------- woken by the operator ----------------------------'
 *
 * It is loaded when a request waits for it or the operator asks, the one that has been waited for longest first, one at
 * a time. It leaves when the operator asks, when it was not used for as long as its keep_alive says, or when another
 * one needs its room: the one of those that are not in use whose last use is longest ago; where all are in use, and
 * the one that waits needs it, the one that has been ready for longest, once that is ten times as long as the other
 * takes to load, so that at most a tenth of the time goes into loads. What leaves has no request that runs: those that
 * run go on to their end, none starts, and those that wait, or come, have it loaded again. One that sleeps is not
 * loaded for requests: they wait, within their deadlines, until the operator wakes it.
 *
 * Weights of a model that leaves may stay in host memory (--sleep-mib, resident_sleep.h), from which it comes back
 * without its file: where the operator puts it to sleep so, which is refused where there is no room; and where it makes
 * room for another one or was not used for long, if there is room, which it loses to others in the order of last uses.
 * Unloading, and sleep at the second level, drop them.
 *
 * Memory: need_bytes is what a model will take, planned from its header when the server started: weights, activations,
 * slots and head. Models that are loading, ready or leaving need at most most_bytes together, at every moment: room is
 * made before the first byte is read, by models and by the pool (shared_room.h), and what leaves is freed before what
 * comes is read. A load that cannot fit, or
 * whose file is another one than at the start, is refused before anything has left for it. A load that failed leaves
 * nothing behind; requests that wait for it end with its line, and others are refused with it for a while, which
 * doubles (RETRY_US), so that a broken file is not read again and again.
 *
 * Weights are read on a thread of its own, by a device of their own (placer), so no step waits for a load. The engine
 * takes the runner of a model, and gives it back, between two steps (model/runner/guest_runner.h).
 *
 * Threads: any, but for plan, start, stop and close. */
#ifndef WEFT_API_RESIDENTS_H
#define WEFT_API_RESIDENTS_H

#include "api/runtime.h"

typedef struct weft_residents weft_residents;

typedef enum resident_state {
  RESIDENT_ABSENT,
  RESIDENT_LOADING,
  RESIDENT_READY,
  RESIDENT_LEAVING,
  RESIDENT_SLEEPING
} resident_state;

typedef struct resident_view {
  resident_state state;
  bool comes_and_goes; /* it is of the folder; others are always ready */
  uint64_t need_bytes; /* of memory, while it is there, as planned */
  uint64_t took_bytes; /* that the last load took */
  uint64_t expires_us; /* of weft_clock_us, when it leaves if it is not used before; UINT64_MAX: never */
  uint64_t n_loads, n_unloads, n_failed, load_us; /* load_us: what the last load took */
  uint64_t kept_bytes; /* of host memory that its weights take while it is not there; 0: they were dropped */
} resident_view;

/* ---- open and close: one thread --------------------------------------------------------------- */

/* Makes the runners of the models of the folder, which are not loaded. Once the pool is there, before the engines. */
weft_status residents_plan(weft_runtime *rt, weft_error *error);
/* Starts the thread that loads. */
weft_status residents_start(weft_runtime *rt, weft_error *error);
void residents_stop(weft_residents *residents);  /* ends the thread; NULL is fine, as below */
void residents_close(weft_residents *residents); /* after the engines; frees what is loaded */
/* Bytes that models of the folder may take at once, of options and device. */
uint64_t residents_bytes(const weft_runtime *rt);

void residents_print(const weft_runtime *rt, weft_text *out);   /* the plan's line of them */
void residents_metrics(const weft_runtime *rt, weft_text *out); /* as Prometheus text */

/* ---- any thread -------------------------------------------------------------------------------- */

/* A request of a tenant for a model is about to be submitted. Refused with a line: NOT_FOUND where the model is not
 * loaded and the tenant may not have it loaded (--load-tenants), FULL while it cannot be. residents NULL: fine. */
weft_status residents_use(weft_residents *residents, uint32_t model, uint32_t tenant, weft_error *error);
resident_view residents_look(weft_residents *residents, uint32_t model);
const char *residents_state_name(resident_state state);
uint64_t residents_held(weft_residents *residents);

/* How a model sleeps, as vLLM counts: its weights stay in host memory, or are dropped; 0: they stay where there is
 * memory for them at all (--sleep-mib). */
enum { RESIDENT_WEIGHTS_STAY = 1, RESIDENT_WEIGHTS_GO = 2 };
/* What the operator asked for: of a model, or (RESIDENTS_ALL) sleep of all models of the folder, and waking of all,
 * which loads those that were ready when they were put to sleep. */
typedef enum resident_wish { RESIDENT_LOAD, RESIDENT_UNLOAD, RESIDENT_SLEEP, RESIDENT_WAKE } resident_wish;
enum { RESIDENTS_ALL = UINT32_MAX };
typedef struct resident_ask {
  uint32_t model;
  resident_wish wish;
  uint32_t level;                                              /* of SLEEP */
  uint64_t n_done[WEFT_MODELS_MAX], n_failed[WEFT_MODELS_MAX]; /* before it was asked */
  uint64_t which;                                              /* one bit for each model that it is about */
} resident_ask;
/* LOAD wakes, too. ask->level is read, and all of it written. INVALID with a line: the model is not of the folder and
 * stays; or there is no folder; or weights shall stay and there is no memory for any. TOO_LARGE: not for these. */
weft_status residents_ask(weft_residents *residents, uint32_t model, resident_wish wish, resident_ask *ask,
                          weft_error *error);
/* AGAIN until it is done; a line where it could not be done. */
weft_status residents_outcome(weft_residents *residents, const resident_ask *ask, weft_error *error);
/* Whether all models of the folder sleep, or will as soon as they have left. */
bool residents_sleep(weft_residents *residents);
/* How long the model stays after its last use, until it has left; UINT64_MAX: until others need its room. False: it is
 * passed over, of a model that stays, or of a tenant that may not have models loaded. */
bool residents_keep(weft_residents *residents, uint32_t model, uint32_t tenant, uint64_t us);
/* Blocks until the outcome. */
weft_status residents_await(weft_residents *residents, const resident_ask *ask, weft_error *error);

/* changed is called after every change of any state, on any thread, until it is taken off; it must not block, nor call
 * what is declared here. The caller owns the watcher. */
typedef struct resident_watcher {
  void (*changed)(void *self);
  void *self;
  struct resident_watcher *next;
} resident_watcher;
void residents_watch(weft_residents *residents, resident_watcher *watcher);
void residents_unwatch(weft_residents *residents, resident_watcher *watcher);

#endif
