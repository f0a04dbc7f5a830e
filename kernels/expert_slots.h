/* SPDX-License-Identifier: MIT */
/* Experts in host memory: which of them lie in which expert slot (a place in the card's staging memory), and which
 * stream waits for what.
 *
 * Law: products run on the main stream, copies of experts on the copying stream; the two order themselves by events
 * alone. While the products with one weight run, the weights that were placed after it are already being copied. A
 * product is enqueued after a wait for the `ready` event of its slot, which is recorded behind the copy; a copy is
 * enqueued after a wait for the `free` event of its slot, which is recorded behind the last product that read it. Work
 * of a capture must not wait for an event from outside of it, nor the other way round: so a capture begins and ends, as
 * a launch of a graph begins, with expert_slots_join: the main stream waits for every copy on its way, and the slots
 * are empty, so that each event is recorded anew before it is waited for. One thread calls everything. */
#ifndef WEFT_KERNELS_EXPERT_SLOTS_H
#define WEFT_KERNELS_EXPERT_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { EXPERT_SLOTS = 4, EXPERT_SLOTS_EVENTS = 2 * EXPERT_SLOTS, EXPERT_SLOTS_KEPT_MAX = 1024 };

/* Most pairs of a row and an expert, for each expert on average, of a call that fetches the chosen experts alone. With
 * more nearly all are chosen, and whole weights that cross while products run are there earlier. */
enum { EXPERT_SLOTS_GATHER_PAIRS = 32 };
static inline bool expert_slots_gathers(uint64_t n_pairs, uint32_t n_mats) {
  return n_pairs <= (uint64_t)EXPERT_SLOTS_GATHER_PAIRS * n_mats;
}

typedef enum expert_stream { EXPERT_STREAM_MAIN = 0, EXPERT_STREAM_COPY = 1 } expert_stream;

/* What a device does for expert slots; all three calls only enqueue. event: below EXPERT_SLOTS_EVENTS. */
typedef struct expert_slots_calls {
  weft_status (*copy)(void *self, uint32_t slot, const void *from, uint64_t n_bytes); /* on the copying stream */
  weft_status (*record)(void *self, uint32_t event, expert_stream stream);
  weft_status (*wait)(void *self, uint32_t event, expert_stream stream); /* the stream waits */
} expert_slots_calls;

typedef struct expert_slots {
  const expert_slots_calls *calls;
  void *self;
  struct {
    void *data; /* host memory */
    uint64_t n_bytes;
  } kept[EXPERT_SLOTS_KEPT_MAX]; /* in the order in which they are used */
  uint32_t n_kept, next, last;   /* next: slot tried first; last: weight used last */
  struct {
    const void *data; /* which weight is there, or on its way; NULL: none */
    bool in_use;      /* by the products of this call */
    bool released;    /* its free event stands behind the products that read it */
  } slot[EXPERT_SLOTS];
} expert_slots;

void expert_slots_open(expert_slots *slots, const expert_slots_calls *calls, void *self);
/* Adds a weight behind the others; the caller still owns `data`. TOO_LARGE: there are EXPERT_SLOTS_KEPT_MAX already. */
weft_status expert_slots_keep(expert_slots *slots, void *data, uint64_t n_bytes);
/* Takes a weight out again. False: it is not kept. The slots are empty afterwards; the main stream must have run to
 * its end before any of their memory is used otherwise. */
bool expert_slots_forget(expert_slots *slots, const void *data);
/* Brings a weight to a slot: what the main stream is given from now on may read the weight there, until
 * expert_slots_done. *slot is EXPERT_SLOTS, and the status WEFT_OK, where data is no kept weight. At most EXPERT_SLOTS
 * weights may be brought between two calls of done. */
weft_status expert_slots_bring(expert_slots *slots, const void *data, uint32_t *slot);
/* To be called when the products with the weights brought are enqueued, or when one of them could not be: their slots
 * may be written again after these, and the next weights are fetched into the other slots. No slot is in use afterwards,
 * whatever it returns. */
weft_status expert_slots_done(expert_slots *slots);
/* Makes the main stream wait for all copies, and empties the slots. */
weft_status expert_slots_join(expert_slots *slots);

#ifdef __cplusplus
}
#endif
#endif
