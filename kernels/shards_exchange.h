/* SPDX-License-Identifier: MIT */
/* An exchange between shards as one call of a device (device_calls.exchange), which can be part of a graph; private to
 * kernels/.
 *
 * Law: the call gives the shard's part to an inbox on every other device, and takes theirs from its own inboxes as
 * they come. A word of an inbox is empty while it holds SHARDS_EXCHANGE_EMPTY, one of the many NaN; a part with this
 * NaN is given with another one. Whoever takes a word leaves its place empty, so nothing else says that a part has
 * come. Exchanges use one of two inboxes in turn, by a count in device memory that the call itself advances: a graph
 * repeats it as it is. In each exchange every shard gives every other one at least one word. So a shard that gives to
 * an inbox again has ended the exchange between, in which it took a word of the inbox's reader; that one had begun this
 * exchange, and so had ended the one before it and emptied the inbox. All shards have a call of every exchange
 * enqueued, so each waits for calls alone that run. It ends without a result when *broken is not 0, and sets that when
 * it has waited for SHARDS_EXCHANGE_SECONDS. */
#ifndef WEFT_KERNELS_SHARDS_EXCHANGE_H
#define WEFT_KERNELS_SHARDS_EXCHANGE_H

#include "kernels/shards.h"

#define SHARDS_EXCHANGE_EMPTY UINT32_C(0xFFFFFFFF)
#define SHARDS_EXCHANGE_OTHER UINT32_C(0x7FFFFFFF) /* the NaN that is given in its place */

enum { SHARDS_EXCHANGE_SECONDS = 30, SHARDS_EXCHANGE_INBOXES = 2 };

/* In device memory, zero at first. */
typedef struct shards_exchange_state {
  uint32_t n_exchanges;
  uint32_t n_read; /* parts of the call that have read n_exchanges; the last one advances it */
  uint32_t unused[2];
  float nothing[4]; /* what shards add up when they only meet */
} shards_exchange_state;

typedef struct shards_exchange {
  weft_shards_array array[WEFT_SHARDS_ARRAYS_MAX];
  uint64_t array_at[WEFT_SHARDS_ARRAYS_MAX]; /* of each array in an inbox: number i of x has place array_at + i */
  float *inbox[WEFT_DEVICES_MAX];            /* of every shard, on its device: [INBOXES][n - 1][inbox_floats] */
  uint64_t inbox_floats;
  shards_exchange_state *state;       /* of this shard */
  uint32_t *broken;                   /* memory of the host, the same for all */
  uint32_t row[WEFT_DEVICES_MAX + 1]; /* weft_shards_row */
  uint32_t n_arrays, n_rows, n, at;   /* at: of n shards this one */
  uint32_t way;
  uint32_t is_meeting; /* what was written before the call is there for who has taken what it gives */
} shards_exchange;

typedef struct shards_rows {
  uint32_t first, end;
} shards_rows;

static inline bool shards_exchange_adds(const shards_exchange *a) {
  return a->way == WEFT_SHARDS_SUM || a->way == WEFT_SHARDS_SUM_OWN;
}

static inline bool shards_exchange_has_y(const shards_exchange *a) {
  return a->way == WEFT_SHARDS_COLUMNS || a->way == WEFT_SHARDS_COLUMNS_OWN;
}

static inline bool shards_exchange_is_whole(const shards_exchange *a) {
  return a->way == WEFT_SHARDS_SUM || a->way == WEFT_SHARDS_COLUMNS;
}

/* The rows of its x that shard `from` gives to shard `to`; from == to: that it has a use for itself. */
static inline shards_rows shards_exchange_rows(const shards_exchange *a, uint32_t from, uint32_t to) {
  uint32_t owner = a->way == WEFT_SHARDS_ROWS ? from : to;
  if (shards_exchange_is_whole(a)) return (shards_rows){0, a->n_rows};
  return (shards_rows){a->row[owner], a->row[owner + 1]};
}

/* Where shard `to` has what `from` gave, by turns. */
static inline float *shards_exchange_inbox(const shards_exchange *a, uint32_t to, uint32_t from, uint32_t turn) {
  uint32_t place = from < to ? from : from - 1;
  return a->inbox[to] + ((uint64_t)turn * (a->n - 1) + place) * a->inbox_floats;
}

#endif
