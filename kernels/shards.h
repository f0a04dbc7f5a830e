/* SPDX-License-Identifier: MIT */
/* Exchanges between shards: devices that compute parts of the same rows add up, or put together, what they have.
 *
 * Law: every shard calls exchange as often as the others, each time in the same way with arrays of the same sizes, each
 * from a thread of its own. Sums are made by pairs (weft_shards_closes), so all shards have the same bits; other ways
 * change no bit but of a NaN. An exchange is enqueued as other work is: no thread waits for a device, but none enqueues
 * before all have come to the exchange. A shard reads nothing of another one: what it is given comes to one of two
 * inboxes on its own device, in turn. In every exchange each shard is given something by each other one. So nobody
 * writes to an inbox again before an exchange that its reader took part in after it had read it, whatever the sizes and
 * ways are.
 *
 * There are two roads, with the same bits. Devices that can exchange in one call, and that all reach each other's
 * memory, do so (kernels/shards_exchange.h); such an exchange can be part of a graph of a step, whose devices then vote
 * whether to launch it, so that none begins to wait before all have come. Elsewhere shards send copies, and no exchange
 * can be part of a graph.
 *
 * break ends all calls that wait, all later ones, and what waits on a device, with DEVICE; a call that fails breaks by
 * itself, and so does an exchange that has waited on a device for half a minute. What was being computed then has wrong
 * numbers: whoever reads what came of exchanges asks afterwards whether they are broken. So no shard waits for one that
 * will not come. */
#ifndef WEFT_KERNELS_SHARDS_H
#define WEFT_KERNELS_SHARDS_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_shards weft_shards;

/* Devices of one backend. n_floats_max: of all x of one exchange together, on one shard. Marks first_mark and
 * first_mark + 1 of each device are used. Errors: INVALID, NO_MEMORY, DEVICE. */
enum { WEFT_SHARDS_MARKS = 2 };
weft_status weft_shards_open(weft_device *const *device, uint32_t n, uint64_t n_floats_max, uint32_t first_mark,
                             weft_shards **out);
void weft_shards_close(weft_shards *shards);

/* Shard s owns rows [row(s), row(s + 1)): as even as can be, with bounds that are multiples of 8 where there are 8 rows
 * for each shard. row(n_shards) is n_rows. Pure. */
uint32_t weft_shards_row(uint32_t n_shards, uint32_t n_rows, uint32_t shard);

/* A sum over n shards is that over the first n / 2 of them plus that over the others, each made in the same way. When
 * the parts come in the order of the shards, so many sums are whole with the part of this shard. Pure. */
uint32_t weft_shards_closes(uint32_t n_shards, uint32_t shard);
/* Where the shard's part of n begins when each of these sums has one half of what the sum above it has: of shard
 * n_shards it is n. n: a power of two. Pure. */
uint32_t weft_shards_half(uint32_t n_shards, uint32_t shard, uint32_t n);

typedef enum weft_shards_way {
  WEFT_SHARDS_SUM,        /* x becomes the sum over the shards on every shard, in place */
  WEFT_SHARDS_SUM_OWN,    /* the same for the rows that the shard owns; its other rows are unchanged */
  WEFT_SHARDS_ROWS,       /* every shard gives the rows that it owns to all: x is whole everywhere, in place */
  WEFT_SHARDS_COLUMNS,    /* y: [n_rows, n * n_cols], each shard's x side by side in their order, whole everywhere */
  WEFT_SHARDS_COLUMNS_OWN /* the same for the rows that the shard owns: of y these alone are written */
} weft_shards_way;

/* In memory of the shard's device: x [n_rows, n_cols] of numbers, or of integers of 4 bytes that are not negative where
 * nothing is added up. y where the way has one, else NULL; it does not overlap x. */
typedef struct weft_shards_array {
  float *x, *y;
  uint32_t n_cols;
} weft_shards_array;

/* Exchanges n_arrays arrays at once. Errors: INVALID (more than n_floats_max; a way in which rows are owned, and fewer
 * rows than shards), UNSUPPORTED (more than 2^31 - 1 numbers), DEVICE. */
enum { WEFT_SHARDS_ARRAYS_MAX = 3 };
weft_status weft_shards_exchange(weft_shards *shards, uint32_t shard, weft_shards_way way,
                                 const weft_shards_array *array, uint32_t n_arrays, uint32_t n_rows);
/* From then on products with what n devices have of a matrix, weight[i] on device[i], have the bits that they have with
 * the whole matrix on one device, which may depend on its largest number. Errors: DEVICE. */
weft_status weft_shards_agree(weft_device *const *device, const weft_weight *const *weight, uint32_t n);
/* Whether devices, between which exchanges were not opened yet, will exchange in one call. */
bool weft_shards_are_direct(weft_device *const *device, uint32_t n);
/* Whether exchanges may be part of a graph: they are one call. Each of the devices then begins its step with this
 * vote. */
bool weft_shards_in_graphs(const weft_shards *shards);
const weft_graph_vote *weft_shards_vote(const weft_shards *shards);
/* What each shard enqueues after it comes after all that every one enqueued before, what that wrote to the memory of
 * others too. Called as exchange is, and only where exchanges may be part of a graph. Errors: as exchange. */
weft_status weft_shards_meet(weft_shards *shards, uint32_t shard);
/* From any thread. */
void weft_shards_break(weft_shards *shards);
bool weft_shards_broken(const weft_shards *shards);
/* Of memory on each device. */
uint64_t weft_shards_bytes(const weft_shards *shards);
/* Bytes that exchanges have sent from one device to another since open. From any thread. */
uint64_t weft_shards_crossed(const weft_shards *shards);

#ifdef __cplusplus
}
#endif
#endif
