/* SPDX-License-Identifier: MIT */
/* A ref device that a runtime takes for a card, for tests of models that come and go: its memory is not the program's,
 * weights are read piece by piece, and what a driver does that stops a card is counted.
 *
 * Law. The first device that is opened after card_double_begin computes, the next one places weights. While the first
 * one serves (card_double_serve) nobody may ask it to allocate or free, nor wait for all of its work: each such call is
 * counted as a stop. Work is enqueued on it by one thread alone. A copy is on its way until a mark behind it was waited
 * for; memory that is unmapped must have none, and of a model none may be unmapped before the mark that its runner left
 * was waited for. Each broken rule is counted, with its name. */
#ifndef WEFT_TESTS_CARD_DOUBLE_H
#define WEFT_TESTS_CARD_DOUBLE_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/runtime.h"
#include "kernels/device_internal.h"
#include "model/model_internal.h"

enum { CARD_COPIES_MAX = 4096 };

typedef struct card_copy {
  const uint8_t *to, *from;
  uint64_t n_bytes, number;
} card_copy;

static struct {
  pthread_mutex_t mutex;
  device_calls calls;
  weft_kernels kernels;
  const device_calls *real;
  const weft_kernels *real_kernels;
  weft_device *computes, *places;
  bool serves, has_thread;
  pthread_t thread; /* that enqueues */
  card_copy copy[CARD_COPIES_MAX];
  uint32_t n_copies;
  uint64_t n_enqueued, marked[WEFT_MARKS_MAX];
  const uint8_t *base[WEFT_MODELS_MAX];          /* of what models may have, in n_bases stretches */
  uint32_t n_bases, n_left, n_waited, n_cleared; /* models that left, whose mark was waited for, whose memory went */
  uint32_t n_stops, n_strangers, n_early, n_pieces, n_mapped;
  uint32_t refuse_at, n_maps; /* refuse_at: the number of the first mapping that is refused; 0: none is */
  const char *last;
} card = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static inline void card_lock(void) {
  (void)pthread_mutex_lock(&card.mutex);
}

static inline void card_unlock(void) {
  (void)pthread_mutex_unlock(&card.mutex);
}

static inline void card_stop(const weft_device *device, const char *what) {
  card_lock();
  if (device == card.computes && card.serves) card.n_stops += 1, card.last = what;
  card_unlock();
}

static inline void card_enqueue(const weft_device *device, const char *what) {
  card_lock();
  if (device == card.computes && card.serves) {
    if (card.has_thread && !pthread_equal(card.thread, pthread_self())) card.n_strangers += 1, card.last = what;
    card.thread = pthread_self();
    card.has_thread = true;
  }
  card_unlock();
}

#define X(op)                                                                       \
  static weft_status card_##op(weft_device *device, const weft_##op##_args *args) { \
    card_enqueue(device, #op);                                                      \
    return card.real_kernels->op(device, args);                                     \
  }
WEFT_OPS(X)
#undef X

static weft_status card_alloc(weft_device *device, uint64_t n_bytes, void **out) {
  card_stop(device, "alloc");
  return card.real->alloc(device, n_bytes, out);
}

static void card_free(weft_device *device, void *memory) {
  card_stop(device, "free");
  card.real->free(device, memory);
}

static weft_status card_alloc_host(weft_device *device, uint64_t n_bytes, void **out) {
  card_stop(device, "alloc_host");
  return card.real->alloc_host(device, n_bytes, out);
}

static void card_free_host(weft_device *device, void *memory) {
  card_stop(device, "free_host");
  card.real->free_host(device, memory);
}

static weft_status card_sync(weft_device *device) {
  card_stop(device, "sync");
  return card.real->sync(device);
}

static weft_status card_upload(weft_device *device, void *to, const void *from, uint64_t n_bytes) {
  card_enqueue(device, "upload");
  return card.real->upload(device, to, from, n_bytes);
}

static weft_status card_device_copy(weft_device *device, void *to, const void *from, uint64_t n_bytes) {
  card_enqueue(device, "copy");
  card_lock();
  if (device == card.computes && card.n_copies < CARD_COPIES_MAX)
    card.copy[card.n_copies++] = (card_copy){to, from, n_bytes, ++card.n_enqueued};
  card_unlock();
  return card.real->copy(device, to, from, n_bytes);
}

static weft_status card_mark(weft_device *device, uint32_t mark) {
  card_enqueue(device, "mark");
  card_lock();
  if (device == card.computes) card.marked[mark] = card.n_enqueued;
  if (device == card.computes && mark == MARK_LEFT) card.n_left += 1;
  card_unlock();
  return WEFT_OK;
}

static weft_status card_wait(weft_device *device, uint32_t mark) {
  uint32_t n = 0;
  card_lock();
  for (uint32_t i = 0; i < card.n_copies && device == card.computes; i++)
    if (card.copy[i].number > card.marked[mark]) card.copy[n++] = card.copy[i];
  if (device == card.computes) card.n_copies = n;
  if (device == card.computes && mark == MARK_LEFT) card.n_waited = card.n_left;
  card_unlock();
  return WEFT_OK;
}

static inline bool card_meets(const uint8_t *at, const uint8_t *memory, uint64_t n_bytes, uint64_t n) {
  return at < memory + n_bytes && memory < at + n;
}

static weft_status card_reserve(weft_device *device, uint64_t n_bytes, void **out) {
  weft_status status = host_stretch_calls.reserve(device, n_bytes, out);
  card_lock();
  if (device == card.places && card.n_bases < WEFT_MODELS_MAX) card.base[card.n_bases++] = *out;
  card_unlock();
  return status;
}

static weft_status card_map(weft_device *device, void *memory, uint64_t n_bytes) {
  card_lock();
  bool models = device == card.places, fails = models && card.refuse_at > 0 && ++card.n_maps >= card.refuse_at;
  card.n_mapped += models && !fails;
  card_unlock();
  weft_status status = fails ? WEFT_E_NO_MEMORY : host_stretch_calls.map(device, memory, n_bytes);
  if (status == WEFT_OK) memset(memory, 0xFF, n_bytes); /* no numbers */
  return status;
}

static void card_unmap(weft_device *device, void *memory, uint64_t n_bytes) {
  card_lock();
  bool models = device == card.places && card.serves && card.refuse_at == 0;
  bool early = models && card.n_waited < card.n_cleared + 1;
  for (uint32_t i = 0; i < card.n_bases && models; i++) card.n_cleared += card.base[i] == memory;
  for (uint32_t i = 0; i < card.n_copies; i++)
    early = early || card_meets(card.copy[i].to, memory, n_bytes, card.copy[i].n_bytes) ||
            card_meets(card.copy[i].from, memory, n_bytes, card.copy[i].n_bytes);
  if (early) card.n_early += 1, card.last = "unmap";
  card.n_mapped -= device == card.places;
  card_unlock();
  host_stretch_calls.unmap(device, memory, n_bytes);
}

/* As a card does it: piece by piece into memory of its own. */
static weft_status card_weight_read(weft_device *device, weft_weight *weight, const weft_weight_source *source,
                                    unsigned uses, weft_error *error) {
  enum { PIECE = 3000 };
  uint64_t n_bytes = weight_file_bytes(weight);
  uint8_t *bytes = malloc(n_bytes), *part = aligned_alloc(WEFT_READ_ALIGN, 3 * WEFT_READ_ALIGN);
  weft_status status = bytes == NULL || part == NULL ? WEFT_E_NO_MEMORY : WEFT_OK;
  for (uint64_t at = 0; at < n_bytes && status == WEFT_OK; at += PIECE) {
    uint64_t n = n_bytes - at < PIECE ? n_bytes - at : PIECE;
    uint32_t skip = 0;
    status = source->read(source->self, at, n, part, &skip);
    if (status == WEFT_OK) memcpy(bytes + at, part + skip, n);
    if (device->pace != NULL) device->pace(device->pace_self, 1);
    card.n_pieces += device->pace != NULL;
  }
  if (status == WEFT_OK) status = card.real->weight(device, weight, bytes, uses, error);
  free(bytes);
  free(part);
  return status;
}

static const device_stretch_calls *card_stretch_calls(void) {
  static device_stretch_calls calls;
  calls = host_stretch_calls;
  calls.reserve = card_reserve;
  calls.map = card_map;
  calls.unmap = card_unmap;
  return &calls;
}

static void card_take(void *self, weft_device *device) {
  (void)self;
  if (strcmp(device->info.backend, "ref") != 0) return;
  card.real = device->calls;
  card.real_kernels = device->kernels;
  card.calls = *card.real;
  card.kernels = *card.real_kernels;
#define X(op) card.kernels.op = card_##op;
  WEFT_OPS(X)
#undef X
  card.calls.alloc = card_alloc;
  card.calls.free = card_free;
  card.calls.alloc_host = card_alloc_host;
  card.calls.free_host = card_free_host;
  card.calls.sync = card_sync;
  card.calls.upload = card_upload;
  card.calls.copy = card_device_copy;
  card.calls.mark = card_mark;
  card.calls.wait = card_wait;
  card.calls.weight_read = card_weight_read;
  card.calls.stretch = card_stretch_calls();
  device->calls = &card.calls;
  device->kernels = &card.kernels;
  device->info.host_memory = device->info.immediate = false;
  *(card.computes == NULL ? &card.computes : &card.places) = device;
}

/* From now on the next two devices are those of a card. */
static inline void card_double_begin(void) {
  card.computes = card.places = NULL;
  card.serves = card.has_thread = false;
  card.n_copies = card.n_stops = card.n_strangers = card.n_early = card.n_pieces = card.refuse_at = card.n_maps = 0;
  card.n_bases = card.n_left = card.n_waited = card.n_cleared = 0;
  weft_device_on_open(card_take, NULL);
}

static inline void card_double_serve(bool on) {
  card_lock();
  card.serves = on;
  card_unlock();
}

static inline void card_double_end(void) {
  weft_device_on_open(NULL, NULL);
}

#endif
