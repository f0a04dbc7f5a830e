/* SPDX-License-Identifier: MIT */
#include "api/shared_room.h"

#include "api/models_preset.h"

enum {
  STEP_BYTES = 64 << 20, /* of pages that one turn of the engine opens or closes at most: about a piece of memory */
  STEP_PAGES = 4096,
  PAGES_MAX = 1 << 22
};

static weft_status resize_pool(void *self, uint32_t n_pages) {
  return weft_kv_store_resize(((weft_runtime *)self)->store[0], n_pages);
}

static weft_status copy_pages(void *self, const weft_page_copy *copy, uint32_t n) {
  return weft_kv_store_copy_now(((weft_runtime *)self)->store[0], copy, n);
}

uint64_t shared_room_bytes(const weft_runtime *rt) {
  return (uint64_t)rt->n_pages * rt->page_bytes + rt->models_bytes;
}

void shared_room_plan(weft_runtime *rt) {
  uint64_t n_max = shared_room_bytes(rt) / rt->page_bytes, step = STEP_BYTES / rt->page_bytes;
  if (!models_on_call(&rt->options) || rt->devices.weights_bytes_max[0] > 0) return;
  if (n_max > PAGES_MAX) n_max = PAGES_MAX;
  if (n_max <= rt->n_pages) return;
  rt->pool = (weft_pool_calls){.n_pages_max = (uint32_t)n_max,
                               .n_pages_first = (uint32_t)n_max, /* no model is loaded */
                               .n_pages_step = step < 1            ? 1
                                               : step < STEP_PAGES ? (uint32_t)step
                                                                   : STEP_PAGES,
                               .resize = resize_pool,
                               .copy = copy_pages,
                               .self = rt};
}

bool shared_room_claim(weft_runtime *rt, uint64_t n_bytes) {
  weft_engine *engine = weft_replicas_at(rt->replicas, 0);
  if (rt->pool.n_pages_max == 0) return true;
  uint64_t room = shared_room_bytes(rt), n = n_bytes < room ? (room - n_bytes) / rt->page_bytes : 0;
  if (n > rt->pool.n_pages_max) n = rt->pool.n_pages_max;
  if (n < rt->n_pages) n = rt->n_pages; /* models are never let have more than --models-mib */
  weft_pool_view view = weft_engine_pool_size(engine);
  if (view.n_wanted != n) weft_engine_resize_pool(engine, (uint32_t)n);
  return view.n_backed <= n;
}

uint64_t shared_room_pool_bytes(weft_runtime *rt) {
  uint32_t n = rt->n_pages;
  if (rt->pool.n_pages_max > 0) n = weft_engine_pool_size(weft_replicas_at(rt->replicas, 0)).n_backed;
  return n * rt->page_bytes;
}
