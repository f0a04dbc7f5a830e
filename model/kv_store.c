/* SPDX-License-Identifier: MIT */
#include "model/kv_store.h"

#include <inttypes.h>

#include "base/check.h"
#include "base/memory.h"

weft_status weft_kv_store_open(weft_device *device, uint64_t page_bytes, uint32_t n_pages, weft_kv_store **out,
                               weft_error *error) {
  *out = NULL;
  if (page_bytes == 0 || n_pages == 0 || page_bytes > UINT64_MAX / n_pages) {
    return weft_fail(error, WEFT_E_INVALID, "KV store: %" PRIu32 " pages of %" PRIu64 " bytes are not a pool", n_pages,
                     page_bytes);
  }
  weft_kv_store *store = weft_alloc(1, sizeof *store);
  if (store == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "KV store: out of memory");
  store->device = device;
  store->page_bytes = page_bytes;
  store->n_pages = n_pages;
  weft_status status = weft_device_alloc(device, page_bytes * n_pages, &store->base);
  if (status != WEFT_OK) {
    weft_kv_store_close(store);
    return weft_fail(error, status,
                     "KV store: the device has no room for %" PRIu32 " pages of %" PRIu64 " bytes (%" PRIu64
                     " MiB); ask for fewer",
                     n_pages, page_bytes, page_bytes * n_pages >> 20);
  }
  *out = store;
  return WEFT_OK;
}

void weft_kv_store_close(weft_kv_store *store) {
  if (store == NULL) return;
  weft_kv_file_close(store->file);
  if (store->base != NULL) weft_device_free(store->device, store->base);
  if (store->host != NULL) weft_device_free_host(store->device, store->host);
  weft_free(store);
}

weft_status weft_kv_store_copy_page(const weft_kv_store *store, uint32_t from, uint32_t to) {
  WEFT_CHECK(from < store->n_pages);
  WEFT_CHECK(to < store->n_pages);
  if (from == to) return WEFT_OK;
  char *base = store->base;
  return weft_device_copy(store->device, base + to * store->page_bytes, base + from * store->page_bytes,
                          store->page_bytes);
}

weft_status weft_kv_store_add_host(weft_kv_store *store, uint32_t n_host, weft_error *error) {
  if (n_host == 0) return WEFT_OK;
  weft_status status = store->page_bytes > UINT64_MAX / n_host
                           ? WEFT_E_NO_MEMORY
                           : weft_device_alloc_host(store->device, store->page_bytes * n_host, &store->host);
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

static char *page_at(const weft_kv_store *store, uint32_t page) {
  WEFT_CHECK(page < store->n_pages);
  return (char *)store->base + page * store->page_bytes;
}

static char *host_at(const weft_kv_store *store, uint32_t slot) {
  WEFT_CHECK(slot < store->n_host);
  return (char *)store->host + slot * store->page_bytes;
}

static weft_status copy_one(const weft_kv_store *store, const weft_page_copy *copy) {
  switch ((weft_copy_kind)copy->kind) {
    case WEFT_PAGE_TO_PAGE:
      return weft_kv_store_copy_page(store, copy->from, copy->to);
    case WEFT_PAGE_TO_HOST:
      return weft_device_copy(store->device, host_at(store, copy->to), page_at(store, copy->from), store->page_bytes);
    case WEFT_HOST_TO_PAGE:
      return weft_device_copy(store->device, page_at(store, copy->to), host_at(store, copy->from), store->page_bytes);
    case WEFT_HOST_TO_FILE:
    case WEFT_FILE_TO_HOST:
      break;
  }
  return WEFT_E_INVALID;
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

weft_kv_view weft_kv_store_view(const weft_kv_store *store, const weft_kv_layout *layout, uint32_t layer) {
  uint32_t group = layout->group_of[layer];
  const weft_kv_shape *shape = &layout->shape[group];
  uint64_t at = layout->index_in[layer] * shape->layer_bytes;
  return (weft_kv_view){
      .base = store->base,
      .type = layout->type,
      .page_bytes = store->page_bytes,
      .k_offset = at,
      .v_offset = at + shape->layer_bytes / 2,
      .block_tokens = layout->group[group].block_tokens,
      .n_kv_heads = shape->n_kv_heads,
      .head_dim = shape->head_dim,
  };
}
