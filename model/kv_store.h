/* SPDX-License-Identifier: MIT */
/* The memory of the pool: n_pages pages, shared by all models; behind the pool the slots of host memory, and behind these
 * the slots of a file, each of the size of a page.
 *
 * Law: the pager decides which page is copied where, and the store performs the copies. A page has bytes on each device
 * of the split (kv_layout.h); in a slot of host memory or of the file these lie one behind another. A copy runs on every
 * device, in that device's order, before the rows there that depend on it, and no call waits for a device. A copy to or
 * from the file begins on the file's own thread when all devices have done what was enqueued before the copy, and may
 * take any time. */
#ifndef WEFT_MODEL_KV_STORE_H
#define WEFT_MODEL_KV_STORE_H

#include "kernels/ops.h"
#include "kernels/stretch.h"
#include "model/batch.h"
#include "model/kv_file.h"
#include "model/kv_layout.h"
#include "model/split.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The pool's memory on one device. */
typedef struct weft_kv_part {
  weft_device *device;
  void *base;           /* device memory: [n_pages] */
  weft_stretch stretch; /* where the store can change its size, what base is of */
  uint64_t page_bytes;  /* of each page here */
  uint64_t at;          /* where these bytes lie in a slot */
} weft_kv_part;

typedef struct weft_kv_store {
  uint32_t n_parts;
  weft_kv_part part[WEFT_DEVICES_MAX];
  uint64_t page_bytes;           /* of all parts */
  uint32_t n_pages, n_pages_max; /* n_pages_max 0: it keeps its size */
  void *host;                    /* [n_host] slots that all devices reach, NULL: none */
  uint32_t n_host;
  weft_kv_file *file; /* NULL: none */
} weft_kv_store;

/* A pool for the models of a layout, on the devices of their split. Both are only read here. */
weft_status weft_kv_store_open(const weft_split *split, const weft_kv_layout *layout, uint32_t n_pages,
                               weft_kv_store **out, weft_error *error);
/* The same with n_pages_max pages at most; the first n_pages have memory, and weft_kv_store_resize changes how many.
 * UNSUPPORTED, with a line: a device has no stretches. */
weft_status weft_kv_store_open_sized(const weft_split *split, const weft_kv_layout *layout, uint32_t n_pages,
                                     uint32_t n_pages_max, weft_kv_store **out, weft_error *error);
/* Gives the first n_pages pages memory, and no others. Where they are fewer than before, nothing that is enqueued uses
 * the rest, and it cannot fail. Where they are more: NO_MEMORY or DEVICE, and nothing has changed. */
weft_status weft_kv_store_resize(weft_kv_store *store, uint32_t n_pages);
/* Performs copies, in order, and returns when every device has done them; moves to and from the file may go on. */
weft_status weft_kv_store_copy_now(const weft_kv_store *store, const weft_page_copy *copy, uint32_t n);
void weft_kv_store_close(weft_kv_store *store);
/* Takes memory for n_host slots, pinned where devices have memory of their own. Called once, after open. */
weft_status weft_kv_store_add_host(weft_kv_store *store, uint32_t n_host, weft_error *error);
/* Makes the file of config->n_slots slots. Of config it takes path, n_slots, moves_max and io; the rest are the store's
 * own. Called once, after weft_kv_store_add_host; does nothing for 0 slots. */
weft_status weft_kv_store_add_file(weft_kv_store *store, const weft_kv_file_config *config, weft_error *error);
/* Performs the copies of a batch, in order. Copies to and from the file do not begin before weft_kv_store_ran; *n_moves
 * is how many of these there were since open. */
weft_status weft_kv_store_copy(const weft_kv_store *store, const weft_page_copy *copy, uint32_t n, uint64_t *n_moves);
/* Says that all devices have done the batch whose weft_kv_store_copy gave n_moves, or (lost) that one never will. */
void weft_kv_store_ran(const weft_kv_store *store, uint64_t n_moves, bool lost);
/* Whether the pages of the pool have room for those of a layout, on every device. */
bool weft_kv_store_holds(const weft_kv_store *store, const weft_kv_layout *layout);
/* The rows of one set, which has a row for each position, as ops on the layer's device read them; shard: which one
 * of the devices that have the layer, 0 where one has. */
weft_kv_view weft_kv_store_view(const weft_kv_store *store, const weft_kv_layout *layout, uint32_t set, uint32_t shard);

/* The rows of one set, which may stand for several positions, as the ops of latent rows read them. */
weft_latent_view weft_kv_store_rows(const weft_kv_store *store, const weft_kv_layout *layout, uint32_t set,
                                    uint32_t shard);

/* The units of a set's state, in the pages of a run. */
weft_run_view weft_kv_store_run(const weft_kv_store *store, const weft_kv_layout *layout, uint32_t set, uint32_t shard);

#ifdef __cplusplus
}
#endif
#endif
