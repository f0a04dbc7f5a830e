/* SPDX-License-Identifier: MIT */
/* Steps that a device repeats: they are recorded once as a graph, and then launched again with new tables.
 *
 * Law: a step lies between begin and end. It is first walked: every call is folded into a signature (all its
 * arguments, pointers included) and nothing runs; the small tables that ops make on the host (segments, items, masks)
 * are collected, and uploads go through at once. If there is a graph with this signature, its tables are sent, unless
 * the device has them, and it is launched: each call would be the same, so the bits are. Otherwise the step runs call
 * by call, and it is captured as a graph the second time that its signature is seen. Of STEP_GRAPHS_MAX graphs the
 * least recently launched one makes room. Where devices vote, a graph is launched only if each has one for this step,
 * and a device that would record the step does so all the same. A device that refuses to capture goes on without
 * graphs. A graph is never updated into that of another step: on an H200 with CUDA 13.0 cudaGraphExecUpdate took graphs
 * in which other kernels stood in the place of kernels with clusters, and what was launched then gave other numbers.
 * Graphs of an owner whose memory goes are taken out together; freeing what was taken out waits for nothing. One thread
 * calls everything, but for that. */
#ifndef WEFT_KERNELS_GRAPHS_H
#define WEFT_KERNELS_GRAPHS_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  STEP_GRAPHS_MAX = WEFT_GRAPHS_MAX,
  STEP_GRAPHS_SEEN = 64,   /* signatures remembered without a graph */
  STEP_GRAPHS_TABLES = 64, /* different tables of one step */
  STEP_GRAPHS_TABLE_BYTES = 4 << 20
};

typedef enum step_graphs_mode {
  STEP_GRAPHS_RUN = 0, /* outside begin and end, or call by call */
  STEP_GRAPHS_WALK = 1,
  STEP_GRAPHS_CAPTURE = 2
} step_graphs_mode;

/* What a device does for graphs. A graph is what a capture gives; an exec is the form of it that can be launched. */
typedef struct step_graphs_calls {
  weft_status (*capture)(weft_device *device);
  /* Ends the capture, also where it failed; *graph is then NULL. */
  weft_status (*capture_end)(weft_device *device, void **graph);
  /* *n_nodes: the kernels and copies in it. */
  weft_status (*instantiate)(weft_device *device, void *graph, void **exec, uint32_t *n_nodes);
  weft_status (*launch)(weft_device *device, void *exec);
  void (*free_graph)(weft_device *device, void *graph);
  /* has_ended: nothing that was launched of it runs any more; any thread may then call. */
  void (*free_exec)(weft_device *device, void *exec, bool has_ended);
} step_graphs_calls;

typedef struct step_graphs_signature {
  uint64_t low, high;
} step_graphs_signature;

typedef struct step_graph {
  step_graphs_signature signature;
  uint64_t last : 40, owner : 24; /* last: number of the step that launched it */
  void *exec;                     /* NULL: no graph here */
  uint32_t n_nodes;
} step_graph;

typedef struct step_graphs {
  weft_device *device;
  const step_graphs_calls *calls;
  step_graphs_mode mode;
  bool refused; /* for good: the device cannot capture */
  bool full;    /* the tables of this step do not fit */
  bool again;   /* the calls of this step were walked, and are made once more */
  uint64_t key, n_steps;
  const weft_graph_vote *vote; /* of this step */
  step_graphs_signature signature, walked;
  step_graph graph[STEP_GRAPHS_MAX];
  step_graphs_signature seen[STEP_GRAPHS_SEEN];
  uint32_t next_seen, owner; /* owner: of what is recorded */
  uint8_t *staging;          /* host [TABLE_BYTES], then what was sent last */
  uint8_t *tables;           /* device [TABLE_BYTES] */
  uint32_t n_tables, table_at[STEP_GRAPHS_TABLES], table_bytes[STEP_GRAPHS_TABLES], at;
  weft_graph_counters n;
} step_graphs;

/* Takes memory for tables from the device, which must stay open until close. */
weft_status step_graphs_open(step_graphs *graphs, weft_device *device, const step_graphs_calls *calls);
void step_graphs_close(step_graphs *graphs);
/* Forgets every graph: memory that they name is about to go. Not within a step. */
void step_graphs_drop(step_graphs *graphs);
/* Forgets those of an owner and hands them over; the caller frees them. Not within a step. */
void step_graphs_take(step_graphs *graphs, uint32_t owner, weft_graphs_taken *out);

void step_graphs_begin(step_graphs *graphs, uint64_t key, const weft_graph_vote *vote);
/* True: the step must be enqueued once more. *status is that of the step's calls so far, and becomes that of the whole
 * step. */
bool step_graphs_end(step_graphs *graphs, weft_status *status);
/* Folds a call into the signature: `call` says which one it is, args are its arguments. */
void step_graphs_note(step_graphs *graphs, uint32_t call, const void *args, size_t n_bytes);

/* Gives host memory for a table of n_bytes. NULL: it does not fit, and the step will run call by call. When the caller
 * has filled it, table_end gives the device address of the table. Equal tables of a step are stored once. */
uint8_t *step_graphs_table(step_graphs *graphs, uint64_t n_bytes);
const uint8_t *step_graphs_table_end(step_graphs *graphs, uint64_t n_bytes);

#ifdef __cplusplus
}
#endif
#endif
