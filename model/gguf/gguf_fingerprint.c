/* SPDX-License-Identifier: MIT */
/* Law: equal files give equal fingerprints; a file that differs in a key, a tensor's name, type,
 * shape or place, or in a sampled byte of a weight gives another one. Sampled are the first, middle
 * and last 4 KiB of every tensor. */
#include <xxhash.h>

#include "model/gguf/gguf_internal.h"

enum { SAMPLE = 4096 };

/* The hash so far, then the hash of the piece: hashed together they are the hash from here on. */
static void add_piece(XXH128_hash_t *sum, const void *data, uint64_t n) {
  XXH128_hash_t pair[2] = {*sum, XXH3_128bits(data, n)};
  *sum = XXH3_128bits(pair, sizeof pair);
}

static void add_samples(XXH128_hash_t *sum, const weft_gguf_tensor *tensor) {
  const uint8_t *data = tensor->data;
  uint64_t n = tensor->n_bytes;
  if (n <= 3 * SAMPLE) {
    add_piece(sum, data, n);
    return;
  }
  add_piece(sum, data, SAMPLE);
  add_piece(sum, data + n / 2, SAMPLE);
  add_piece(sum, data + n - SAMPLE, SAMPLE);
}

void weft_gguf_fingerprint(const weft_gguf *gguf, uint64_t *low, uint64_t *high) {
  XXH128_hash_t sum = {0, 0};
  for (uint32_t p = 0; p < gguf->n_parts; p++) add_piece(&sum, gguf->parts[p].bytes, gguf->parts[p].data_at);
  for (uint32_t i = 0; i < gguf->n_tensors; i++) add_samples(&sum, &gguf->tensors[i]);
  *low = sum.low64;
  *high = sum.high64;
}
