/* SPDX-License-Identifier: MIT */
/* A sum over shards as one call of a device (device_calls.sum), which can be part of a graph; private to kernels/.
 *
 * Law: the call gives the shard's part to an inbox on every other device, and takes theirs from its own inboxes as
 * they come. A word of an inbox is empty while it holds SHARDS_SUM_EMPTY, one of the many NaN; a part with this NaN
 * is given with another one. Whoever takes a word leaves its place empty, so nothing else says that a part has come.
 * Sums use one of two inboxes in turn, by a count in device memory that the call itself advances: a graph repeats it
 * as it is. A shard gives to an inbox again only after the sum between; that one it could not end before the reader
 * of the inbox had begun it, and so had emptied the inbox. All shards have a call of every sum enqueued, so each
 * waits for calls alone that run. It ends without the sum when *broken is not 0, and sets that when it has waited for
 * SHARDS_SUM_SECONDS.
 * By owners: of a row a shard gives its parts to the row's owner alone, and takes from there what the owner made of
 * all parts. The op experts may give the parts, to the same inbox, before the call. There are rows enough that each
 * shard owns some, and so waits for all. In a gather a shard gives what it has made, and takes the rest. */
#ifndef WEFT_KERNELS_SHARDS_SUM_H
#define WEFT_KERNELS_SHARDS_SUM_H

#include "kernels/shards.h"

#define SHARDS_SUM_EMPTY UINT32_C(0xFFFFFFFF)
#define SHARDS_SUM_OTHER UINT32_C(0x7FFFFFFF) /* the NaN that is given in its place */

enum {
  SHARDS_SUM_SECONDS = 30,
  SHARDS_SUM_INBOXES = 2,
  SHARDS_SUM_ROWS = 256,      /* of a sum with a norm; more are shared out to owners */
  SHARDS_SUM_ROWS_OF_TWO = 96 /* the same of two arrays, of which an owner gives one */
};

/* In device memory, zero at first. */
typedef struct shards_sum_state {
  uint32_t n_sums;
  uint32_t n_read; /* parts of the call that have read n_sums; the last one advances it */
  uint32_t unused[2];
  float nothing[4]; /* what shards add up when they only meet */
} shards_sum_state;

typedef struct shards_sum {
  float *x[WEFT_SHARDS_ARRAYS_MAX]; /* of this shard, in place */
  float *inbox[WEFT_DEVICES_MAX];   /* of every shard, on its device: [INBOXES][n - 1][inbox_floats] */
  shards_sum_state *state;          /* of this shard */
  uint32_t *broken;                 /* memory of the host, the same for all */
  uint64_t n_floats;                /* of an array */
  uint64_t array_floats;            /* from one array to the next in an inbox */
  uint64_t inbox_floats;
  uint32_t n_arrays, n, at; /* at: of n shards this one */
  uint32_t is_meeting;      /* what was written before the call is there for who has taken what it gives */
  uint64_t share_floats;    /* not 0: a gather, of which shard s gives numbers [s, s + 1) * share_floats of an array */
  uint32_t by_owner; /* only with a norm: row r is summed and normed by shard r % n alone, which gives it to all */
  uint32_t is_given; /* by owners, and the experts have given what others own (weft_experts_args.give) */
} shards_sum;

/* Where shard `to` has what `from` gave, by turns. */
#ifdef __CUDACC__
__host__ __device__
#endif
    static inline float *
    shards_sum_inbox(const shards_sum *a, uint32_t to, uint32_t from, uint32_t turn) {
  uint32_t place = from < to ? from : from - 1;
  return a->inbox[to] + ((uint64_t)turn * (a->n - 1) + place) * a->inbox_floats;
}

#endif
