/* SPDX-License-Identifier: MIT */
#include "model/runner/runner_memory.h"

#include <stdio.h>

#include "base/log.h"
#include "base/memory.h"
#include "kernels/holding.h"

void runner_memory_open(runner_memory *m, const weft_split *split, weft_device *placer) {
  *m = (runner_memory){.split = split, .placer = placer};
  for (uint32_t p = 0; p < split->n_devices; p++)
    m->left[p] = weft_device_memory_left(placer != NULL ? placer : split->device[p]);
}

void runner_memory_close(runner_memory *m) {
  for (uint32_t i = m->n_pieces; i-- > 0;) {
    const runner_piece *piece = &m->piece[i];
    if (piece->in_host)
      weft_device_free_host(piece->from, piece->memory);
    else
      weft_device_free(piece->from, piece->memory);
  }
  weft_free(m->piece);
  m->piece = NULL;
  m->n_pieces = m->pieces_max = 0;
}

/* Whether a refusal means that the device is full. Where device memory is the host's and has no bound, it means that the
 * host is, and no other place is better. */
static bool is_full(weft_device *device, uint64_t n_bytes, weft_status status) {
  if (status != WEFT_E_NO_MEMORY) return false;
  return !weft_device_get_info(device)->host_memory || weft_device_memory_left(device) < n_bytes;
}

/* Whether the devices whose ops use what is at home there, the last part's shards, reach the first device. */
static bool reach_first(const runner_memory *m, weft_device *home) {
  weft_device *first = m->split->device[0];
  bool all = home != first;
  for (uint32_t i = 0; i < weft_split_shards(m->split); i++)
    all = all && weft_device_reaches(m->split->device[weft_split_last_place(m->split) + i], first);
  return all;
}

static weft_status find_room(runner_memory *m, weft_device *home, uint64_t n_bytes, runner_piece *out) {
  weft_device *first = m->split->device[0];
  if (m->placer != NULL) home = m->placer;
  *out = (runner_piece){.n_bytes = n_bytes, .from = home};
  weft_status status = weft_device_alloc(home, n_bytes, &out->memory);
  if (m->placer != NULL || !is_full(home, n_bytes, status)) return status;
  if (reach_first(m, home)) {
    out->from = first;
    status = weft_device_alloc(first, n_bytes, &out->memory);
    if (status == WEFT_OK) m->n_bytes_first += n_bytes;
    if (!is_full(first, n_bytes, status)) return status;
  }
  *out = (runner_piece){.n_bytes = n_bytes, .from = home, .in_host = true};
  status = weft_device_alloc_host(home, n_bytes, &out->memory);
  if (status == WEFT_OK) m->n_bytes_host += n_bytes;
  return status;
}

void *runner_memory_take(runner_memory *m, weft_device *home, uint64_t n_bytes, weft_status *status) {
  if (*status != WEFT_OK || m->counts) return NULL;
  runner_piece *piece = weft_grow(m->piece, m->n_pieces, &m->pieces_max, 64, sizeof *m->piece);
  if (piece == NULL) {
    *status = WEFT_E_NO_MEMORY;
    return NULL;
  }
  m->piece = piece;
  m->asked[home == m->split->device[0] ? 0 : weft_split_last_place(m->split)] += n_bytes;
  *status = find_room(m, home, n_bytes, &m->piece[m->n_pieces]);
  return *status == WEFT_OK ? m->piece[m->n_pieces++].memory : NULL;
}

void *runner_memory_pin(runner_memory *m, weft_device *home, uint64_t n_bytes, weft_status *status) {
  void *pinned = NULL;
  if (*status != WEFT_OK) return NULL;
  m->n_pinned += (n_bytes + HOLDING_ALIGN) / HOLDING_ALIGN * HOLDING_ALIGN;
  if (m->counts) return NULL;
  *status = weft_device_alloc_host(m->placer != NULL ? m->placer : home, n_bytes, &pinned);
  return pinned;
}

void runner_memory_unpin(const runner_memory *m, weft_device *home, void *pinned) {
  weft_device_free_host(m->placer != NULL ? m->placer : home, pinned);
}

/* The buffer that an address lies in; NULL: none of the runner's. */
static const runner_piece *find_piece(const runner_memory *m, const void *at) {
  for (uint32_t i = 0; i < m->n_pieces; i++) {
    uintptr_t begin = (uintptr_t)m->piece[i].memory;
    if ((uintptr_t)at >= begin && (uintptr_t)at < begin + m->piece[i].n_bytes) return &m->piece[i];
  }
  return NULL;
}

static bool is_of(const runner_memory *m, const void *at, const weft_device *home) {
  const runner_piece *piece = find_piece(m, at);
  return piece == NULL || (!piece->in_host && piece->from == home);
}

bool runner_memory_is_sent(const runner_memory *m, const void *to, const void *from) {
  if (m->n_bytes_first + m->n_bytes_host == 0) return true;
  return is_of(m, to, m->split->device[0]) && is_of(m, from, weft_split_last(m->split));
}

/* "; soft embeddings on device 1", or nothing where there are none. */
static void tell_soft(const runner_memory *m, const void *soft, char *out, size_t n) {
  const runner_piece *piece = soft == NULL ? NULL : find_piece(m, soft);
  out[0] = 0;
  if (piece == NULL) return;
  if (piece->in_host)
    (void)snprintf(out, n, "; soft embeddings are made in host memory");
  else
    (void)snprintf(out, n, "; soft embeddings are made on device %u", weft_device_get_info(piece->from)->index);
}

void runner_memory_tell(const runner_memory *m, const char *name, const void *soft) {
  const double mib = 1024.0 * 1024.0;
  char room[WEFT_SPLIT_ROOM_MAX], made[64];
  if (m->n_bytes_first + m->n_bytes_host == 0) return;
  tell_soft(m, soft, made, sizeof made);
  weft_log(
      WEFT_LOG_WARN,
      "%s: of slots and head %.2f MiB lie on device %u and %.2f MiB in host memory, because a device is full%s; steps "
      "are slower. %s; lower --kv-mib, --rows or --running",
      name, (double)m->n_bytes_first / mib, weft_device_get_info(m->split->device[0])->index,
      (double)m->n_bytes_host / mib, made, weft_split_tell_room(m->split, m->asked, m->left, room));
}
