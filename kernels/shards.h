/* SPDX-License-Identifier: MIT */
/* The sum over shards: devices that compute the same rows, each with a part of the columns, add up what they have.
 *
 * Law: every shard calls sum as often as the others, with arrays of the same sizes, each from a thread of its own.
 * Each array then holds, on every shard, p0 + p1 + ... in the order of the shards, so all shards have the same bits.
 * The same holds of a sum with a norm, and of a gather.
 * The sum is enqueued as other work is: no thread waits for a device, but none enqueues before all have come to the
 * sum. What a shard gives goes to one of two inboxes for it on each other device, in turn: nobody writes to an inbox
 * again before a sum that its reader took part in after it had read it.
 *
 * There are two ways, with the same bits. Devices that can add up in one call, and that all reach each other's
 * memory, do so (kernels/shards_sum.h); such a sum can be part of a graph of a step, whose devices then vote whether
 * to launch it, so that none begins to wait before all have come. Elsewhere shards send copies, and no sum can be
 * part of a graph.
 *
 * break ends all calls that wait, all later ones, and what waits on a device, with DEVICE; a call that fails breaks
 * by itself, and so does a sum that has waited on a device for half a minute. What was being computed then has wrong
 * numbers: whoever reads what came of sums asks afterwards whether they are broken. So no shard waits for one that
 * will not come. */
#ifndef WEFT_KERNELS_SHARDS_H
#define WEFT_KERNELS_SHARDS_H

#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_shards weft_shards;

/* Devices of one backend. n_floats_max: of all arrays of one sum together. Marks first_mark and first_mark + 1 of each
 * device are used. Errors: INVALID, NO_MEMORY, DEVICE. */
enum { WEFT_SHARDS_MARKS = 2 };
weft_status weft_shards_open(weft_device *const *device, uint32_t n, uint64_t n_floats_max, uint32_t first_mark,
                             weft_shards **out);
void weft_shards_close(weft_shards *shards);
/* Sums n_arrays arrays [n_rows, n_cols] in memory of the shard's device, in place. */
enum { WEFT_SHARDS_ARRAYS_MAX = 2 };
weft_status weft_shards_sum(weft_shards *shards, uint32_t shard, float *const *x, uint32_t n_arrays, uint32_t n_rows,
                            uint32_t n_cols);
/* Sums norm->x [n_rows, n_cols], and of two arrays norm->x2, as sum does, and then makes the op norm of them, with the
 * bits that both calls give; what was summed is lost. As one call of devices that have one, in which a row of a sum of
 * many may be summed and normed on one device alone, which gives it to the others. */
weft_status weft_shards_sum_norm(weft_shards *shards, uint32_t shard, const weft_norm_args *norm, uint32_t n_arrays);
/* Before the op experts that makes y and shared.y, which the next sum, with a norm, adds up as its arrays x2 and x:
 * what the op takes as `give`: it gives the rows that other shards own to these, which are then undefined here, so that
 * they cross while it runs. NULL: the sum gives them. It is good until that sum. */
const struct shards_sum *weft_shards_give(weft_shards *shards, uint32_t shard, const weft_norm_args *norm);
/* Of each array [n_rows, n_cols], of words of 4 bytes, a shard has made the rows that weft_shards_rows names; then all
 * shards have all. At least WEFT_SHARDS_GATHER_ROWS rows, so that every shard gives some; else as sum. */
enum { WEFT_SHARDS_GATHER_ROWS = WEFT_DEVICES_MAX * WEFT_DEVICES_MAX };
weft_status weft_shards_gather(weft_shards *shards, uint32_t shard, void *const *x, uint32_t n_arrays, uint32_t n_rows,
                               uint32_t n_cols);
void weft_shards_rows(uint32_t n_shards, uint32_t shard, uint32_t n_rows, uint32_t *first, uint32_t *end);
/* Whether devices, of which sums were not opened yet, will add up in one call. */
bool weft_shards_are_direct(weft_device *const *device, uint32_t n);
/* Whether sums may be part of a graph: they are one call. Each of the devices then begins its step with this vote. */
bool weft_shards_in_graphs(const weft_shards *shards);
const weft_graph_vote *weft_shards_vote(const weft_shards *shards);
/* What each shard enqueues after it comes after all that every one enqueued before, what that wrote to the memory of
 * others too. Called as sum is, and only where sums may be part of a graph. Errors: as sum. */
weft_status weft_shards_meet(weft_shards *shards, uint32_t shard);
/* From any thread. */
void weft_shards_break(weft_shards *shards);
bool weft_shards_broken(const weft_shards *shards);
/* Of memory on each device. */
uint64_t weft_shards_bytes(const weft_shards *shards);
/* Bytes that sums have sent from one device to another since open. From any thread. */
uint64_t weft_shards_crossed(const weft_shards *shards);

#ifdef __cplusplus
}
#endif
#endif
