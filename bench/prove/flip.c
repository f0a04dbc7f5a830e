/* SPDX-License-Identifier: MIT */
#include "bench/prove/flip.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static weft_status copy_bytes(int from, int to, uint64_t n, const char *path, weft_error *error) {
  while (n > 0) {
    ssize_t copied = copy_file_range(from, NULL, to, NULL, n > (1u << 30) ? 1u << 30 : (size_t)n, 0);
    if (copied < 0 && errno == EINTR) continue;
    if (copied <= 0)
      return weft_fail(error, WEFT_E_IO, "%s: %s", path, copied < 0 ? strerror(errno) : "it grew shorter");
    n -= (uint64_t)copied;
  }
  return WEFT_OK;
}

static weft_status turn_bit(const prove_flip *flip, uint8_t *bytes, size_t n, const char *name, weft_error *error) {
  weft_gguf *gguf = NULL;
  weft_status status = weft_gguf_open_memory(bytes, n, name, &gguf, error);
  if (status != WEFT_OK) return status;
  const weft_gguf_tensor *tensor = weft_gguf_tensor_find(gguf, flip->tensor);
  if (tensor == NULL) {
    status = weft_fail(error, WEFT_E_NOT_FOUND, "%s has no tensor '%s', of which a bit was to be turned over", name,
                       flip->tensor);
  } else if (flip->byte >= tensor->n_bytes) {
    status = weft_fail(error, WEFT_E_TOO_LARGE, "%s: '%s' has %" PRIu64 " bytes, and no byte %" PRIu64, name,
                       flip->tensor, tensor->n_bytes, flip->byte);
  } else {
    size_t at = (size_t)((const uint8_t *)tensor->data - bytes) + (size_t)flip->byte;
    bytes[at] = (uint8_t)(bytes[at] ^ (1u << (flip->bit & 7u)));
  }
  weft_gguf_close(gguf);
  return status;
}

weft_status prove_flip_copy(const prove_flip *flip, const char *from, const char *to, weft_error *error) {
  struct stat info;
  int in = open(from, O_RDONLY | O_CLOEXEC);
  if (in < 0 || fstat(in, &info) != 0) {
    int why = errno;
    if (in >= 0) (void)close(in);
    return weft_fail(error, WEFT_E_IO, "%s: %s", from, strerror(why));
  }
  int out = open(to, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  weft_status status = out < 0 ? weft_fail(error, WEFT_E_IO, "%s: %s", to, strerror(errno)) : WEFT_OK;
  size_t n = (size_t)info.st_size;
  if (status == WEFT_OK) status = copy_bytes(in, out, n, to, error);
  void *bytes = status != WEFT_OK ? MAP_FAILED : mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, out, 0);
  if (status == WEFT_OK && bytes == MAP_FAILED) status = weft_fail(error, WEFT_E_IO, "%s: %s", to, strerror(errno));
  if (status == WEFT_OK) status = turn_bit(flip, bytes, n, from, error);
  if (bytes != MAP_FAILED && munmap(bytes, n) != 0) status = weft_fail(error, WEFT_E_IO, "%s: %s", to, strerror(errno));
  (void)close(in); /* only read */
  if (out >= 0 && close(out) != 0 && status == WEFT_OK)
    status = weft_fail(error, WEFT_E_IO, "%s: %s", to, strerror(errno));
  return status;
}
