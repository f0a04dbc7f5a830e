/* SPDX-License-Identifier: MIT */
/* A view: what those who watch a server see of an engine, beside its counters: which requests it has and how far each
 * is, and the pool as a grid.
 *
 * Law. A view is of one turn of the engine: its requests, its pool's counts and, where the pool has at most
 * WEFT_VIEW_SCAN_PAGES pages, its cells; those of a larger pool are looked at in parts, a part each turn. Its size is
 * bounded whatever the engine holds: what is left out is counted. It holds numbers alone, no text of any request. */
#ifndef WEFT_SCHEDULER_VIEW_H
#define WEFT_SCHEDULER_VIEW_H

#include <pthread.h>

#include "pager/grid.h"
#include "scheduler/params.h"

enum {
  WEFT_VIEW_RUNNING_MAX = 1024, /* running requests, at most */
  WEFT_VIEW_WAITING_MAX = 256,  /* waiting ones, */
  WEFT_VIEW_QUEUE_MAX = 16,     /* of them of one tenant and model */
  WEFT_VIEW_SCAN_PAGES = 2048   /* that one turn looks at while the engine is busy */
};

typedef enum weft_phase {
  WEFT_PHASE_QUEUED = 0,    /* waits for its turn, and never ran */
  WEFT_PHASE_PREFIX = 1,    /* waits while another request computes the prefix that both have */
  WEFT_PHASE_FILE = 2,      /* waits for pages that come back from the spill file */
  WEFT_PHASE_PREEMPTED = 3, /* ran, gave its pages back or is about to, and waits to go on */
  WEFT_PHASE_PREFILL = 4,
  WEFT_PHASE_DECODE = 5,
  WEFT_PHASE_DENOISE = 6,
  WEFT_PHASE_ENDING = 7, /* has ended, with rows still in flight */
  WEFT_PHASES = 8
} weft_phase;

typedef struct weft_view_request {
  uint64_t number; /* of its arrival at the engine: no other request has it */
  uint64_t submitted_us;
  uint32_t tenant, model;
  weft_phase phase;
  uint32_t n_prompt, n_cached, n_computed; /* tokens of the prompt; found in the cache; with keys and values now */
  uint32_t n_answer, answer_max;           /* tokens of the answer that are final; and at most */
  uint32_t n_canvas;                       /* positions of a canvas; 0: it writes token by token */
  uint32_t block, step, n_steps;           /* canvases that are final; steps of the present one; and at most */
  uint32_t n_preemptions;
} weft_view_request;

typedef struct weft_view {
  uint64_t number;   /* counts views of the engine; 0: none was taken */
  uint64_t taken_us; /* engine time */
  weft_pager_stats pager;
  uint32_t n_pinned;           /* pages that pins hold, of pager.n_pinned */
  uint32_t n_requests, n_more; /* in the list; left out */
  uint32_t n_cells, pages_per_cell;
  uint32_t requests_max;
  weft_view_request *request; /* [requests_max], owned: the running ones, then those that wait */
  weft_grid_cell *cell;       /* [n_cells], owned */
} weft_view;

/* NO_MEMORY. */
weft_status weft_view_open(weft_view *view, uint32_t requests_max, const weft_grid *grid);
void weft_view_close(weft_view *view); /* one that is all zero is fine */
/* Both were opened alike. */
void weft_view_copy(const weft_view *from, weft_view *to);

/* What an engine keeps for those who watch it; watch.h says what is done with it. */
typedef struct weft_watch {
  _Atomic bool asked; /* a view is wanted that was not taken yet */
  /* the engine thread's */
  bool scanning; /* the grid was begun in an earlier turn */
  weft_grid grid;
  weft_view own;
  bool is_open;
  pthread_mutex_t mutex;
  pthread_cond_t taken;
  weft_view shared; /* under the mutex */
  uint64_t wanted;  /* under the mutex: the number of the view that was asked for last */
} weft_watch;

#endif
