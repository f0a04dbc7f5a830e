/* SPDX-License-Identifier: MIT */
#include "kernels/share.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "kernels/device_internal.h"
#include "kernels/shared_memory.h"

static const device_share_calls *share_of(weft_device *device) {
  device_enter(device);
  return device->calls->share;
}

const char *weft_share_transport(weft_device *device) {
  const device_share_calls *calls = share_of(device);
  return calls == NULL || !device->shares ? NULL : calls->transport(device);
}

bool weft_share_takes(weft_device *device, const char *transport) {
  const device_share_calls *calls = share_of(device);
  return calls != NULL && calls->takes(device, transport);
}

bool weft_share_outlives(const char *transport) {
  return strcmp(transport, "ipc") != 0;
}

weft_status weft_share_seal(weft_device *device, weft_error *error) {
  if (!device->shares) return weft_fail(error, WEFT_E_INVALID, "the device owns no weights of others");
  return share_of(device)->seal(device, error);
}

uint32_t weft_share_n_pieces(weft_device *device) {
  return device->shares ? share_of(device)->n_pieces(device) : 0;
}

uint64_t weft_share_piece_bytes(weft_device *device, uint32_t piece) {
  return piece < weft_share_n_pieces(device) ? share_of(device)->piece_bytes(device, piece) : 0;
}

bool weft_share_find(weft_device *device, const void *data, uint32_t *piece, uint64_t *at) {
  return device->shares && share_of(device)->find(device, data, piece, at);
}

weft_status weft_share_export(weft_device *device, uint32_t piece, weft_share_handle *out, weft_error *error) {
  *out = (weft_share_handle){.fd = -1};
  if (piece >= weft_share_n_pieces(device))
    return weft_fail(error, WEFT_E_NOT_FOUND, "there is no piece %u of %u", piece, weft_share_n_pieces(device));
  return share_of(device)->export_piece(device, piece, out, error);
}

weft_status weft_share_map(weft_device *device, const weft_share_handle *handle, uint64_t n_bytes, const void **out,
                           weft_error *error) {
  const device_share_calls *calls = share_of(device);
  *out = NULL;
  if (calls == NULL)
    return weft_fail(error, WEFT_E_UNSUPPORTED, "backend '%s' maps no weights of others", device->info.backend);
  return calls->map(device, handle, n_bytes, out, error);
}

void weft_share_unmap(weft_device *device, const void *memory, uint64_t n_bytes) {
  if (memory != NULL) share_of(device)->unmap(device, memory, n_bytes);
}

bool weft_share_is_read_only(weft_device *device) {
  const device_share_calls *calls = share_of(device);
  return calls != NULL && calls->is_read_only(device);
}

weft_status weft_share_expect(weft_device *device, weft_weight *weight, unsigned uses, weft_error *error) {
  const device_share_calls *calls = share_of(device);
  if (calls == NULL)
    return weft_fail(error, WEFT_E_UNSUPPORTED, "backend '%s' maps no weights of others", device->info.backend);
  weft_status status = weight_check(device, weight, error);
  return status == WEFT_OK ? calls->expect(device, weight, uses, error) : status;
}

/* ---- host memory ---- */

weft_status host_share_open(weft_device *device, const weft_device_config *config, weft_error *error) {
  if (config->shares == WEFT_SHARE_NOT) return WEFT_OK;
  device->shared = weft_alloc(1, sizeof *device->shared);
  if (device->shared == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "out of memory: memory to share");
  uint64_t n_bytes_max = device->info.memory_bytes > 0 ? device->info.memory_bytes : (uint64_t)1 << 40;
  weft_status status = shared_memory_open(device->shared, n_bytes_max, error);
  if (status == WEFT_OK)
    device->shares = config->shares == WEFT_SHARE_NAMES ? WEFT_SHARE_NAMES : WEFT_SHARE_DESCRIPTORS;
  if (status != WEFT_OK) weft_free(device->shared);
  if (status != WEFT_OK) device->shared = NULL;
  return status;
}

void host_share_close(weft_device *device) {
  if (device->shared == NULL) return;
  shared_memory_close(device->shared);
  weft_free(device->shared);
  device->shared = NULL;
}

void *host_share_take(weft_device *device, uint64_t n_bytes) {
  if (!host_budget_take(device, n_bytes)) return NULL;
  void *memory = shared_memory_take(device->shared, n_bytes);
  if (memory == NULL) host_budget_give(device, n_bytes);
  return memory;
}

const char *host_share_transport(weft_device *device) {
  return device->shares == WEFT_SHARE_NAMES ? "ipc" : "memfd";
}

bool host_share_takes(weft_device *device, const char *transport) {
  (void)device;
  return strcmp(transport, "memfd") == 0 || strcmp(transport, "ipc") == 0;
}

weft_status host_share_seal(weft_device *device, weft_error *error) {
  return shared_memory_seal(device->shared, error);
}

uint32_t host_share_n_pieces(weft_device *device) {
  return device->shared->n_used > 0 ? 1 : 0;
}

uint64_t host_share_piece_bytes(weft_device *device, uint32_t piece) {
  (void)piece;
  return device->shared->n_used;
}

bool host_share_find(weft_device *device, const void *data, uint32_t *piece, uint64_t *at) {
  const shared_memory *shared = device->shared;
  const uint8_t *byte = data;
  if (shared->base == NULL || byte < shared->base || byte >= shared->base + shared->n_used) return false;
  *piece = 0;
  *at = (uint64_t)(byte - shared->base);
  return true;
}

weft_status host_share_export(weft_device *device, uint32_t piece, weft_share_handle *out, weft_error *error) {
  (void)piece;
  if (!shared_memory_is_sealed(device->shared))
    return weft_fail(error, WEFT_E_INVALID, "weights are handed over when all are placed");
  if (device->shares == WEFT_SHARE_NAMES) {
    int n = snprintf((char *)out->bytes, sizeof out->bytes, "/proc/%d/fd/%d", (int)getpid(), device->shared->fd);
    out->n_bytes = (uint32_t)n;
    return WEFT_OK;
  }
  out->fd = fcntl(device->shared->fd, F_DUPFD_CLOEXEC, 0);
  return out->fd >= 0 ? WEFT_OK : weft_fail(error, WEFT_E_IO, "a descriptor of weights: %s", strerror(errno));
}

weft_status host_share_map(weft_device *device, const weft_share_handle *handle, uint64_t n_bytes, const void **out,
                           weft_error *error) {
  char path[WEFT_SHARE_NAME_BYTES + 1] = "";
  (void)device;
  if (handle->n_bytes == 0) return shared_memory_map(handle->fd, n_bytes, out, error);
  if (handle->n_bytes <= WEFT_SHARE_NAME_BYTES) memcpy(path, handle->bytes, handle->n_bytes);
  if (strncmp(path, "/proc/", 6) != 0 || strlen(path) != handle->n_bytes)
    return weft_fail(error, WEFT_E_FORMAT, "what was handed over is no name of memory");
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return weft_fail(error, WEFT_E_FORMAT, "the memory of %s: %s", path, strerror(errno));
  weft_status status = shared_memory_map(fd, n_bytes, out, error);
  (void)close(fd); /* the mapping keeps the memory */
  return status;
}

void host_share_unmap(weft_device *device, const void *memory, uint64_t n_bytes) {
  (void)device;
  shared_memory_unmap(memory, n_bytes);
}

bool host_share_is_read_only(weft_device *device) {
  (void)device;
  return true;
}
