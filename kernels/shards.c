/* SPDX-License-Identifier: MIT */
#include "kernels/shards.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/check.h"
#include "base/memory.h"
#include "base/pause.h"
#include "kernels/ops.h"

enum { INBOXES = 2, SPINS = 1000 /* pauses of some tens of nanoseconds each, before a thread sleeps */ };

typedef struct shard {
  weft_device *device;
  void *inbox[INBOXES]; /* [n][n_floats_max] by the shard that gives; its own place stays empty */
  uint64_t n_sums;
} shard;

struct weft_shards {
  uint32_t n, first_mark;
  uint64_t n_floats_max;
  shard shard[WEFT_DEVICES_MAX];
  pthread_mutex_t mutex;
  pthread_cond_t all_here;
  uint32_t n_here;
  _Atomic uint64_t n_meetings;
  _Atomic bool broken;
  _Atomic uint64_t crossed;
};

static float *inbox_of(const weft_shards *s, uint32_t to, uint32_t from, uint32_t which) {
  return (float *)s->shard[to].inbox[which] + (uint64_t)from * s->n_floats_max;
}

weft_status weft_shards_open(weft_device *const *device, uint32_t n, uint64_t n_floats_max, uint32_t first_mark,
                             weft_shards **out) {
  *out = NULL;
  if (n == 0 || n > WEFT_DEVICES_MAX || first_mark + WEFT_SHARDS_MARKS > WEFT_MARKS_MAX) return WEFT_E_INVALID;
  weft_shards *s = weft_alloc(1, sizeof *s);
  if (s == NULL) return WEFT_E_NO_MEMORY;
  if (pthread_mutex_init(&s->mutex, NULL) != 0) {
    weft_free(s);
    return WEFT_E_NO_MEMORY;
  }
  if (pthread_cond_init(&s->all_here, NULL) != 0) {
    (void)pthread_mutex_destroy(&s->mutex);
    weft_free(s);
    return WEFT_E_NO_MEMORY;
  }
  s->n = n;
  s->first_mark = first_mark;
  s->n_floats_max = n_floats_max;
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < n && status == WEFT_OK; i++) {
    s->shard[i].device = device[i];
    for (uint32_t k = 0; k < INBOXES && status == WEFT_OK; k++) {
      status = weft_device_alloc(device[i], n * n_floats_max * sizeof(float), &s->shard[i].inbox[k]);
    }
  }
  if (status != WEFT_OK) {
    weft_shards_close(s);
    return status;
  }
  *out = s;
  return WEFT_OK;
}

void weft_shards_close(weft_shards *s) {
  if (s == NULL) return;
  for (uint32_t i = 0; i < s->n && s->shard[i].device != NULL; i++) {
    for (uint32_t k = 0; k < INBOXES; k++) weft_device_free(s->shard[i].device, s->shard[i].inbox[k]);
  }
  (void)pthread_cond_destroy(&s->all_here);
  (void)pthread_mutex_destroy(&s->mutex);
  weft_free(s);
}

void weft_shards_break(weft_shards *s) {
  (void)pthread_mutex_lock(&s->mutex);
  atomic_store(&s->broken, true);
  (void)pthread_cond_broadcast(&s->all_here);
  (void)pthread_mutex_unlock(&s->mutex);
}

uint64_t weft_shards_bytes(const weft_shards *s) {
  return INBOXES * s->n * s->n_floats_max * sizeof(float);
}

uint64_t weft_shards_crossed(const weft_shards *s) {
  return atomic_load_explicit(&s->crossed, memory_order_relaxed);
}

/* Returns when all shards have called it, or one has broken. */
static weft_status meet_others(weft_shards *s) {
  (void)pthread_mutex_lock(&s->mutex);
  uint64_t meeting = atomic_load(&s->n_meetings);
  if (++s->n_here == s->n) {
    s->n_here = 0;
    atomic_store(&s->n_meetings, meeting + 1);
    (void)pthread_cond_broadcast(&s->all_here);
  }
  (void)pthread_mutex_unlock(&s->mutex);
  for (uint32_t i = 0; i < SPINS && atomic_load(&s->n_meetings) == meeting && !atomic_load(&s->broken); i++) {
    weft_pause();
  }
  (void)pthread_mutex_lock(&s->mutex);
  while (atomic_load(&s->n_meetings) == meeting && !atomic_load(&s->broken)) {
    (void)pthread_cond_wait(&s->all_here, &s->mutex);
  }
  (void)pthread_mutex_unlock(&s->mutex);
  return atomic_load(&s->broken) ? WEFT_E_DEVICE : WEFT_OK;
}

/* What the shard gives, to all others. */
static weft_status give_rows(weft_shards *s, uint32_t from, uint32_t which, float *const *x, uint32_t n_arrays,
                             uint64_t n_floats) {
  weft_device *device = s->shard[from].device;
  weft_status status = WEFT_OK;
  for (uint32_t to = 0; to < s->n; to++) {
    if (to == from) continue;
    for (uint32_t a = 0; a < n_arrays && status == WEFT_OK; a++) {
      status = weft_device_send(device, s->shard[to].device, inbox_of(s, to, from, which) + a * n_floats, x[a],
                                n_floats * sizeof **x);
    }
    (void)atomic_fetch_add_explicit(&s->crossed, n_arrays * n_floats * sizeof **x, memory_order_relaxed);
  }
  return status == WEFT_OK ? weft_device_mark(device, s->first_mark + which) : status;
}

/* y = a + b */
static weft_status add_rows(weft_device *device, float *a, float *b, float *y, uint32_t n_rows, uint32_t n_cols) {
  weft_norm_args args = {.x = a,
                         .x2 = b,
                         .y = y,
                         .n_rows = n_rows,
                         .n_cols = n_cols,
                         .plain = true,
                         .x_stride = n_cols,
                         .x2_stride = n_cols,
                         .y_stride = n_cols};
  return weft_norm(device, &args);
}

/* x += what the others gave, in the order of the shards. The sum of those before this shard grows in an inbox. */
static weft_status take_rows(weft_shards *s, uint32_t at, uint32_t which, uint64_t offset, float *x, uint32_t n_rows,
                             uint32_t n_cols) {
  weft_device *device = s->shard[at].device;
  float *sum = at == 0 ? x : inbox_of(s, at, 0, which) + offset;
  weft_status status = WEFT_OK;
  for (uint32_t i = 1; i < s->n && status == WEFT_OK; i++) {
    float *next = i == at ? x : inbox_of(s, at, i, which) + offset;
    float *to = i == at ? x : sum;
    status = add_rows(device, sum, next, to, n_rows, n_cols);
    sum = to;
  }
  return status;
}

static weft_status sum_arrays(weft_shards *s, uint32_t at, float *const *x, uint32_t n_arrays, uint32_t n_rows,
                              uint32_t n_cols) {
  uint64_t n_floats = (uint64_t)n_rows * n_cols;
  if (n_arrays > WEFT_SHARDS_ARRAYS_MAX || n_arrays * n_floats > s->n_floats_max) return WEFT_E_INVALID;
  uint32_t which = (uint32_t)(s->shard[at].n_sums++ % INBOXES);
  weft_status status = give_rows(s, at, which, x, n_arrays, n_floats);
  if (status == WEFT_OK) status = meet_others(s);
  for (uint32_t from = 0; from < s->n && status == WEFT_OK; from++) {
    if (from != at) status = weft_device_follow(s->shard[at].device, s->shard[from].device, s->first_mark + which);
  }
  for (uint32_t a = 0; a < n_arrays && status == WEFT_OK; a++) {
    status = take_rows(s, at, which, a * n_floats, x[a], n_rows, n_cols);
  }
  return status;
}

weft_status weft_shards_sum(weft_shards *s, uint32_t at, float *const *x, uint32_t n_arrays, uint32_t n_rows,
                            uint32_t n_cols) {
  if (s->n == 1) return WEFT_OK;
  WEFT_CHECK(at < s->n);
  weft_status status = sum_arrays(s, at, x, n_arrays, n_rows, n_cols);
  if (status != WEFT_OK) weft_shards_break(s);
  return status;
}
