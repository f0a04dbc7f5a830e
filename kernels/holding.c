/* SPDX-License-Identifier: MIT */
#include "kernels/holding.h"

#include <stddef.h>

#include "base/check.h"
#include "base/round.h"
#include "kernels/device_internal.h"

uint64_t weft_holding_bytes(uint64_t n_bytes, uint32_t n) {
  return n_bytes + (uint64_t)n * HOLDING_ALIGN;
}

weft_status weft_holding_open(weft_device *device, uint64_t n_bytes_max, uint64_t n_host_bytes, weft_holding *out) {
  void *host = NULL;
  uint64_t piece = n_bytes_max / HOLDING_PIECES;
  *out = (weft_holding){.n_host_bytes = n_host_bytes};
  WEFT_CHECK(device->holding == NULL);
  weft_status status = n_host_bytes == 0 ? WEFT_OK : weft_device_alloc_host(device, n_host_bytes, &host);
  if (status == WEFT_OK)
    status = weft_stretch_open(device, n_bytes_max, piece < HOLDING_PIECE ? piece : HOLDING_PIECE, &out->stretch);
  if (status != WEFT_OK) {
    weft_device_free_host(device, host);
    *out = (weft_holding){.at = 0};
    return status;
  }
  out->host = host;
  out->next = device->holdings;
  device->holdings = out;
  return WEFT_OK;
}

void weft_holding_begin(weft_holding *h) {
  WEFT_CHECK(h->stretch.device->holding == NULL && h->at == 0);
  h->stretch.device->holding = h;
}

void weft_holding_end(weft_holding *h) {
  WEFT_CHECK(h->stretch.device->holding == h);
  h->stretch.device->holding = NULL;
}

void weft_holding_clear(weft_holding *h) {
  (void)weft_stretch_resize(&h->stretch, 0); /* to fewer bytes it cannot fail */
  h->at = h->host_at = 0;
}

void weft_holding_rest(weft_holding *h) {
  (void)weft_stretch_resize(&h->stretch, 0);
}

weft_status weft_holding_rise(weft_holding *h) {
  WEFT_CHECK(h->stretch.n_bytes == 0);
  weft_status status = weft_stretch_resize(&h->stretch, h->at);
  if (status != WEFT_OK) return status;
  return weft_device_zero(h->stretch.device, (uint8_t *)h->stretch.base + h->at, h->stretch.n_bytes - h->at);
}

void weft_holding_close(weft_holding *h) {
  weft_device *device = h->stretch.device;
  if (h->stretch.base == NULL) return;
  for (weft_holding **at = &device->holdings; *at != NULL; at = &(*at)->next) {
    if (*at != h) continue;
    *at = h->next;
    break;
  }
  weft_device_free_host(device, h->host);
  weft_stretch_close(&h->stretch);
}

/* What others had there before may be no numbers. */
static weft_status map_more(weft_holding *h, uint64_t n_bytes) {
  uint64_t before = h->stretch.n_bytes;
  weft_status status = weft_stretch_resize(&h->stretch, n_bytes);
  if (status != WEFT_OK) return status;
  return weft_device_zero(h->stretch.device, (uint8_t *)h->stretch.base + before, h->stretch.n_bytes - before);
}

weft_status holding_take(weft_holding *h, uint64_t n_bytes, void **out) {
  uint64_t most = h->stretch.n_bytes_max, n = weft_round_up(n_bytes == 0 ? 1 : n_bytes, HOLDING_ALIGN);
  if (n < n_bytes || n > most - h->at) return WEFT_E_NO_MEMORY;
  weft_status status = h->at + n > h->stretch.n_bytes ? map_more(h, h->at + n) : WEFT_OK;
  if (status != WEFT_OK) return status;
  *out = (uint8_t *)h->stretch.base + h->at;
  h->at += n;
  return WEFT_OK;
}

weft_status holding_take_host(weft_holding *h, uint64_t n_bytes, void **out) {
  uint64_t n = weft_round_up(n_bytes == 0 ? 1 : n_bytes, HOLDING_ALIGN);
  if (n < n_bytes || n > h->n_host_bytes - h->host_at) return WEFT_E_NO_MEMORY;
  *out = h->host + h->host_at;
  h->host_at += n;
  return WEFT_OK;
}

static bool lies_in(const void *memory, const void *base, uint64_t n_bytes) {
  const uint8_t *at = memory, *from = base;
  return from != NULL && at >= from && at < from + n_bytes;
}

bool device_holds(const weft_device *device, const void *memory) {
  for (const weft_holding *h = device->holdings; h != NULL; h = h->next) {
    if (lies_in(memory, h->stretch.base, h->stretch.n_bytes_max) || lies_in(memory, h->host, h->n_host_bytes))
      return true;
  }
  return false;
}
