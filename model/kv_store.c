/* SPDX-License-Identifier: MIT */
#include "model/kv_store.h"

#include <inttypes.h>

#include "base/check.h"
#include "base/memory.h"

/* Pieces of a pool that changes its size: so many, but of at most so many bytes. */
enum { PIECES = 256, PIECE_BYTES_MAX = 64 << 20 };

/* Memory that comes to a card had bytes of others, which may be no numbers, and masked rows are read all the same. */
static weft_status resize_part(weft_kv_part *part, uint32_t n_pages) {
  uint64_t before = part->stretch.n_bytes;
  weft_status status = weft_stretch_resize(&part->stretch, part->page_bytes * n_pages);
  uint64_t n = part->stretch.n_bytes > before ? part->stretch.n_bytes - before : 0;
  if (status != WEFT_OK || n == 0 || weft_device_get_info(part->device)->host_memory) return status;
  return weft_device_zero(part->device, (uint8_t *)part->stretch.base + before, n);
}

static weft_status resize_parts(weft_kv_store *store, uint32_t n_pages) {
  weft_status status = WEFT_OK;
  for (uint32_t p = 0; p < store->n_parts && status == WEFT_OK; p++) {
    weft_kv_part *part = &store->part[p];
    if (part->page_bytes > 0) status = resize_part(part, n_pages);
  }
  return status;
}

/* n_pages_max 0: plain memory. */
static weft_status open_part(weft_kv_part *part, uint32_t n_pages, uint32_t n_pages_max) {
  if (part->page_bytes == 0) return WEFT_OK; /* no layer here has keys of its own */
  if (n_pages_max == 0) return weft_device_alloc(part->device, part->page_bytes * n_pages, &part->base);
  uint64_t most = part->page_bytes * n_pages_max, piece = most / PIECES;
  weft_status status =
      weft_stretch_open(part->device, most, piece < PIECE_BYTES_MAX ? piece : PIECE_BYTES_MAX, &part->stretch);
  part->base = part->stretch.base;
  return status == WEFT_OK ? resize_part(part, n_pages) : status;
}

/* Says what the pages need on each device. */
static weft_status refuse_pages(const weft_split *split, const weft_kv_layout *layout, uint32_t n_pages,
                                weft_status status, weft_error *error) {
  char room[WEFT_SPLIT_ROOM_MAX];
  uint64_t needed[WEFT_DEVICES_MAX] = {0};
  for (uint32_t p = 0; p < layout->n_parts; p++) needed[p] = layout->part_bytes[p] * n_pages;
  return weft_fail(error, status,
                   "KV store: there is no room for %" PRIu32 " pages of %" PRIu64
                   " bytes (%s); ask for fewer: lower --kv-mib or -c",
                   n_pages, layout->page_bytes, weft_split_tell_room(split, needed, NULL, room));
}

weft_status weft_kv_store_open(const weft_split *split, const weft_kv_layout *layout, uint32_t n_pages,
                               weft_kv_store **out, weft_error *error) {
  return weft_kv_store_open_sized(split, layout, n_pages, 0, out, error);
}

weft_status weft_kv_store_open_sized(const weft_split *split, const weft_kv_layout *layout, uint32_t n_pages,
                                     uint32_t n_pages_max, weft_kv_store **out, weft_error *error) {
  *out = NULL;
  uint32_t most = n_pages_max > 0 ? n_pages_max : n_pages;
  if (layout->page_bytes == 0 || n_pages == 0 || most < n_pages || layout->page_bytes > UINT64_MAX / most) {
    return weft_fail(error, WEFT_E_INVALID, "KV store: %" PRIu32 " pages of %" PRIu64 " bytes are not a pool", n_pages,
                     layout->page_bytes);
  }
  WEFT_CHECK(layout->n_parts <= split->n_devices);
  weft_kv_store *store = weft_alloc(1, sizeof *store);
  if (store == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "KV store: out of memory");
  store->n_pages = n_pages;
  store->n_pages_max = n_pages_max;
  store->n_parts = layout->n_parts;
  weft_status status = WEFT_OK;
  for (uint32_t p = 0; p < store->n_parts && status == WEFT_OK; p++) {
    store->part[p] =
        (weft_kv_part){.device = split->device[p], .page_bytes = layout->part_bytes[p], .at = store->page_bytes};
    store->page_bytes += layout->part_bytes[p];
    status = open_part(&store->part[p], n_pages, n_pages_max);
  }
  if (status != WEFT_OK) {
    weft_kv_store_close(store);
    if (status == WEFT_E_UNSUPPORTED)
      return weft_fail(error, status, "KV store: the pool of a card cannot change its size");
    return refuse_pages(split, layout, n_pages, status, error);
  }
  *out = store;
  return WEFT_OK;
}

void weft_kv_store_close(weft_kv_store *store) {
  if (store == NULL) return;
  weft_kv_file_close(store->file);
  if (store->host != NULL) weft_device_free_host(store->part[0].device, store->host);
  for (uint32_t p = 0; p < store->n_parts; p++) {
    weft_stretch_close(&store->part[p].stretch);
    if (store->part[p].base != NULL && store->n_pages_max == 0)
      weft_device_free(store->part[p].device, store->part[p].base);
  }
  weft_free(store);
}

weft_status weft_kv_store_resize(weft_kv_store *store, uint32_t n_pages) {
  WEFT_CHECK(n_pages >= 1 && n_pages <= store->n_pages_max);
  weft_status status = resize_parts(store, n_pages);
  if (status != WEFT_OK)
    (void)resize_parts(store, store->n_pages);
  else
    store->n_pages = n_pages;
  return status;
}

weft_status weft_kv_store_add_host(weft_kv_store *store, uint32_t n_host, weft_error *error) {
  if (n_host == 0) return WEFT_OK;
  weft_status status = store->page_bytes > UINT64_MAX / n_host
                           ? WEFT_E_NO_MEMORY
                           : weft_device_alloc_host(store->part[0].device, store->page_bytes * n_host, &store->host);
  if (status != WEFT_OK) {
    return weft_fail(error, status,
                     "KV store: the host has no room for %" PRIu32 " pages of %" PRIu64 " bytes; ask for fewer", n_host,
                     store->page_bytes);
  }
  store->n_host = n_host;
  return WEFT_OK;
}

weft_status weft_kv_store_add_file(weft_kv_store *store, const weft_kv_file_config *config, weft_error *error) {
  weft_kv_file_config own = *config;
  if (config->n_slots == 0) return WEFT_OK;
  WEFT_CHECK(store->host != NULL);
  own.page_bytes = store->page_bytes;
  own.host = store->host;
  own.n_host = store->n_host;
  return weft_kv_file_open(&own, &store->file, error);
}

static char *page_at(const weft_kv_store *store, const weft_kv_part *part, uint32_t page) {
  WEFT_CHECK(page < store->n_pages);
  return (char *)part->base + page * part->page_bytes;
}

static char *host_at(const weft_kv_store *store, const weft_kv_part *part, uint32_t slot) {
  WEFT_CHECK(slot < store->n_host);
  return (char *)store->host + slot * store->page_bytes + part->at;
}

/* What of the page lies on one device. */
static weft_status copy_part(const weft_kv_store *store, const weft_kv_part *part, const weft_page_copy *copy) {
  const char *from = NULL;
  char *to = NULL;
  switch ((weft_copy_kind)copy->kind) {
    case WEFT_PAGE_TO_PAGE:
      if (copy->from == copy->to) return WEFT_OK;
      from = page_at(store, part, copy->from);
      to = page_at(store, part, copy->to);
      break;
    case WEFT_PAGE_TO_HOST:
      from = page_at(store, part, copy->from);
      to = host_at(store, part, copy->to);
      break;
    case WEFT_HOST_TO_PAGE:
      from = host_at(store, part, copy->from);
      to = page_at(store, part, copy->to);
      break;
    case WEFT_HOST_TO_FILE:
    case WEFT_FILE_TO_HOST:
      break;
  }
  return to == NULL ? WEFT_E_INVALID : weft_device_copy(part->device, to, from, part->page_bytes);
}

static weft_status copy_one(const weft_kv_store *store, const weft_page_copy *copy) {
  weft_status status = WEFT_OK;
  for (uint32_t p = 0; p < store->n_parts && status == WEFT_OK; p++) {
    if (store->part[p].page_bytes > 0) status = copy_part(store, &store->part[p], copy);
  }
  return status;
}

/* A move is added whatever happened before it, so that it ends. */
weft_status weft_kv_store_copy(const weft_kv_store *store, const weft_page_copy *copy, uint32_t n, uint64_t *n_moves) {
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < n; i++) {
    if (weft_copy_is_move(copy[i].kind) && store->file != NULL)
      weft_kv_file_add(store->file, &copy[i]);
    else if (status == WEFT_OK)
      status = copy_one(store, &copy[i]);
  }
  *n_moves = store->file == NULL ? 0 : weft_kv_file_n_added(store->file);
  return status;
}

void weft_kv_store_ran(const weft_kv_store *store, uint64_t n_moves, bool lost) {
  if (store->file != NULL) weft_kv_file_start(store->file, n_moves, lost);
}

weft_status weft_kv_store_copy_now(const weft_kv_store *store, const weft_page_copy *copy, uint32_t n) {
  uint64_t n_moves;
  weft_status status = weft_kv_store_copy(store, copy, n, &n_moves);
  for (uint32_t p = 0; p < store->n_parts && status == WEFT_OK; p++) status = weft_device_sync(store->part[p].device);
  weft_kv_store_ran(store, n_moves, status != WEFT_OK);
  return status;
}

bool weft_kv_store_holds(const weft_kv_store *store, const weft_kv_layout *layout) {
  if (store->n_parts < layout->n_parts) return false;
  for (uint32_t p = 0; p < layout->n_parts; p++) {
    if (store->part[p].page_bytes < layout->part_bytes[p]) return false;
  }
  return true;
}

weft_kv_view weft_kv_store_view(const weft_kv_store *store, const weft_kv_layout *layout, uint32_t set,
                                uint32_t shard) {
  const weft_kv_place *place = &layout->place[set];
  const weft_kv_part *part = &store->part[place->part + shard];
  WEFT_CHECK(place->rows.positions == 1);
  return (weft_kv_view){
      .base = part->base,
      .type = place->rows.type,
      .page_bytes = part->page_bytes,
      .k_offset = place->offset,
      .v_offset = place->offset + (place->rows.values_are_keys ? 0 : place->bytes / 2),
      .block_tokens = layout->group[place->group].block_tokens,
      .n_kv_heads = place->rows.n_kv_heads,
      .head_dim = place->rows.head_dim,
  };
}

weft_latent_view weft_kv_store_rows(const weft_kv_store *store, const weft_kv_layout *layout, uint32_t set,
                                    uint32_t shard) {
  const weft_kv_place *place = &layout->place[set];
  const weft_kv_part *part = &store->part[place->part + shard];
  return (weft_latent_view){
      .base = part->base,
      .type = place->rows.type,
      .page_bytes = part->page_bytes,
      .offset = place->offset,
      .scores_offset = place->offset + (place->rows.values_are_keys ? 0 : place->bytes / 2),
      .block_tokens = layout->group[place->group].block_tokens,
      .positions = place->rows.positions,
      .width = place->rows.head_dim,
  };
}

weft_run_view weft_kv_store_run(const weft_kv_store *store, const weft_kv_layout *layout, uint32_t set,
                                uint32_t shard) {
  const weft_kv_place *place = &layout->place[set];
  const weft_kv_part *part = &store->part[place->part + shard];
  WEFT_CHECK(place->state.n_units > 0);
  return (weft_run_view){.base = part->base,
                         .page_bytes = part->page_bytes,
                         .offset = place->offset,
                         .unit_bytes = place->state.unit_bytes};
}
