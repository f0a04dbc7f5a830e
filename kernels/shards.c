/* SPDX-License-Identifier: MIT */
#include "kernels/shards.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "base/pause.h"
#include "kernels/device_internal.h"
#include "kernels/shards_sum.h"

enum { SPINS = 1000 /* pauses of some tens of nanoseconds each, before a thread sleeps */, EMPTY_BYTES = 1 << 20 };

typedef struct shard {
  weft_device *device;
  void *inbox; /* [SHARDS_SUM_INBOXES][n - 1][inbox_floats] */
  void *state; /* shards_sum_state, where sums are one call */
  uint64_t n_sums;
  shards_sum given; /* the next sum, if the experts give for it */
  bool is_given;
} shard;

struct weft_shards {
  uint32_t n, first_mark;
  bool direct; /* sums are one call of each device */
  uint64_t n_floats_max, inbox_floats;
  shard shard[WEFT_DEVICES_MAX];
  void *word; /* of the host: not 0 when sums are broken; NULL if not direct */
  weft_graph_vote vote;
  pthread_mutex_t mutex;
  pthread_cond_t all_here;
  uint32_t n_here;
  bool all_ready;  /* of those that are here */
  bool verdict[2]; /* of the last meetings: whether all were ready */
  _Atomic uint64_t n_meetings;
  _Atomic bool broken;
  _Atomic uint64_t crossed;
};

static uint64_t up_to_fours(uint64_t n) {
  return (n + 3) / 4 * 4;
}

/* What every shard is told of a sum. */
static shards_sum sum_of(const weft_shards *s, uint32_t at, float *const *x, uint32_t n_arrays, uint64_t n_floats) {
  shards_sum args = {.state = s->shard[at].state,
                     .broken = s->word,
                     .n_floats = n_floats,
                     .array_floats = up_to_fours(n_floats),
                     .inbox_floats = s->inbox_floats,
                     .n_arrays = n_arrays,
                     .n = s->n,
                     .at = at};
  for (uint32_t i = 0; i < n_arrays; i++) args.x[i] = x[i];
  for (uint32_t i = 0; i < s->n; i++) args.inbox[i] = s->shard[i].inbox;
  return args;
}

/* ---- open and close ---- */

/* Whether each device can add up in one call, and reaches the memory of all others. */
bool weft_shards_are_direct(weft_device *const *device, uint32_t n) {
  bool all = true;
  for (uint32_t i = 0; i < n; i++) {
    all = all && device[i]->calls->sum != NULL;
    for (uint32_t k = 0; k < n; k++) {
      bool same = i != k && device[i]->info.index == device[k]->info.index; /* one card need not run both at once */
      all = all && !same && weft_device_reaches(device[i], device[k]);
    }
  }
  return all;
}

static weft_status empty_inbox(weft_shards *s, const shard *one, const uint8_t *empty) {
  uint64_t n_bytes = SHARDS_SUM_INBOXES * (s->n - 1) * s->inbox_floats * sizeof(float);
  weft_status status = WEFT_OK;
  for (uint64_t at = 0; at < n_bytes && status == WEFT_OK; at += EMPTY_BYTES) {
    uint64_t n = n_bytes - at < EMPTY_BYTES ? n_bytes - at : EMPTY_BYTES;
    status = weft_device_upload(one->device, (uint8_t *)one->inbox + at, empty, n);
  }
  return status;
}

/* What one call for a sum needs: a state on every device, empty inboxes, and the word. */
static weft_status open_direct(weft_shards *s) {
  uint8_t *empty = weft_alloc(EMPTY_BYTES, 1);
  if (empty == NULL) return WEFT_E_NO_MEMORY;
  memset(empty, 0xFF, EMPTY_BYTES);
  weft_status status = weft_device_alloc_host(s->shard[0].device, sizeof(uint32_t), &s->word);
  if (status == WEFT_OK) memset(s->word, 0, sizeof(uint32_t));
  for (uint32_t i = 0; i < s->n && status == WEFT_OK; i++) {
    shard *one = &s->shard[i];
    status = weft_device_alloc(one->device, sizeof(shards_sum_state), &one->state);
    if (status == WEFT_OK) status = weft_device_zero(one->device, one->state, sizeof(shards_sum_state));
    if (status == WEFT_OK) status = empty_inbox(s, one, empty);
    if (status == WEFT_OK) status = weft_device_sync(one->device); /* others write there without following it */
  }
  weft_free(empty);
  return status;
}

static weft_status open_memory(weft_shards *s, weft_device *const *device) {
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < s->n && status == WEFT_OK; i++) {
    s->shard[i].device = device[i];
    status = weft_device_alloc(device[i], weft_shards_bytes(s), &s->shard[i].inbox);
  }
  s->direct = s->n > 1 && weft_shards_are_direct(device, s->n);
  return status == WEFT_OK && s->direct ? open_direct(s) : status;
}

static bool vote_all(void *self, bool ready);

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
  s->inbox_floats = up_to_fours(n_floats_max + 3 * WEFT_SHARDS_ARRAYS_MAX);
  s->all_ready = true;
  s->vote = (weft_graph_vote){.all = vote_all, .self = s};
  weft_status status = open_memory(s, device);
  if (status != WEFT_OK) {
    weft_shards_close(s);
    return status;
  }
  *out = s;
  return WEFT_OK;
}

void weft_shards_close(weft_shards *s) {
  if (s == NULL) return;
  weft_shards_break(s); /* what still waits on a device ends */
  for (uint32_t i = 0; i < s->n && s->shard[i].device != NULL; i++) {
    weft_device_free(s->shard[i].device, s->shard[i].inbox);
    weft_device_free(s->shard[i].device, s->shard[i].state);
  }
  if (s->word != NULL) weft_device_free_host(s->shard[0].device, s->word);
  (void)pthread_cond_destroy(&s->all_here);
  (void)pthread_mutex_destroy(&s->mutex);
  weft_free(s);
}

/* ---- what is told of it ---- */

bool weft_shards_in_graphs(const weft_shards *s) {
  return s->direct;
}

const weft_graph_vote *weft_shards_vote(const weft_shards *s) {
  return &s->vote;
}

bool weft_shards_broken(const weft_shards *s) {
  if (atomic_load(&s->broken)) return true;
  return s->word != NULL && __atomic_load_n((const uint32_t *)s->word, __ATOMIC_ACQUIRE) != 0;
}

uint64_t weft_shards_bytes(const weft_shards *s) {
  return SHARDS_SUM_INBOXES * (s->n - 1) * s->inbox_floats * sizeof(float);
}

uint64_t weft_shards_crossed(const weft_shards *s) {
  return atomic_load_explicit(&s->crossed, memory_order_relaxed);
}

/* ---- meetings ---- */

void weft_shards_break(weft_shards *s) {
  (void)pthread_mutex_lock(&s->mutex);
  atomic_store(&s->broken, true);
  if (s->word != NULL) __atomic_store_n((uint32_t *)s->word, 1, __ATOMIC_RELEASE);
  (void)pthread_cond_broadcast(&s->all_here);
  (void)pthread_mutex_unlock(&s->mutex);
}

/* Returns when all shards have called it, or one has broken. *all: whether each of them was ready. */
static weft_status meet_others(weft_shards *s, bool ready, bool *all) {
  (void)pthread_mutex_lock(&s->mutex);
  uint64_t meeting = atomic_load(&s->n_meetings);
  s->all_ready = s->all_ready && ready;
  if (++s->n_here == s->n) {
    s->verdict[meeting % 2] = s->all_ready;
    s->all_ready = true;
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
  *all = s->verdict[meeting % 2]; /* nobody can be two meetings ahead */
  (void)pthread_mutex_unlock(&s->mutex);
  return weft_shards_broken(s) ? WEFT_E_DEVICE : WEFT_OK;
}

static weft_status meet_all(weft_shards *s) {
  bool all;
  return meet_others(s, true, &all);
}

static bool vote_all(void *self, bool ready) {
  bool all = false;
  return meet_others(self, ready, &all) == WEFT_OK && all;
}

/* ---- sums as copies ---- */

static float *inbox_of(const shards_sum *a, uint32_t from, uint32_t turn) {
  return shards_sum_inbox(a, a->at, from, turn);
}

/* What the shard gives, to all others. */
static weft_status give_rows(weft_shards *s, const shards_sum *a, uint32_t turn) {
  weft_device *device = s->shard[a->at].device;
  weft_status status = WEFT_OK;
  for (uint32_t to = 0; to < s->n; to++) {
    for (uint32_t i = 0; i < a->n_arrays && to != a->at && status == WEFT_OK; i++) {
      float *place = shards_sum_inbox(a, to, a->at, turn) + i * a->array_floats;
      status = weft_device_send(device, s->shard[to].device, place, a->x[i], a->n_floats * sizeof(float));
    }
  }
  return status == WEFT_OK ? weft_device_mark(device, s->first_mark + turn) : status;
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

/* How many numbers of an array a shard gives to a gather. */
static uint64_t share_of(const shards_sum *a, uint32_t at) {
  uint64_t first = at * a->share_floats, left = first < a->n_floats ? a->n_floats - first : 0;
  return left < a->share_floats ? left : a->share_floats;
}

/* x += what the others gave, in the order of the shards. The sum of those before this shard grows in an inbox. */
static weft_status take_rows(weft_shards *s, const shards_sum *a, uint32_t turn, uint32_t array, uint32_t n_rows,
                             uint32_t n_cols) {
  weft_device *device = s->shard[a->at].device;
  uint64_t offset = array * a->array_floats;
  float *x = a->x[array], *sum = a->at == 0 ? x : inbox_of(a, 0, turn) + offset;
  weft_status status = WEFT_OK;
  for (uint32_t i = 1; i < s->n && status == WEFT_OK; i++) {
    float *next = i == a->at ? x : inbox_of(a, i, turn) + offset;
    float *to = i == a->at ? x : sum;
    status = add_rows(device, sum, next, to, n_rows, n_cols);
    sum = to;
  }
  return status;
}

static weft_status sum_by_copies(weft_shards *s, const shards_sum *a, uint32_t n_rows, uint32_t n_cols) {
  shard *own = &s->shard[a->at];
  uint32_t turn = (uint32_t)(own->n_sums++ % SHARDS_SUM_INBOXES);
  weft_status status = give_rows(s, a, turn);
  if (status == WEFT_OK) status = meet_all(s);
  for (uint32_t from = 0; from < s->n && status == WEFT_OK; from++) {
    if (from != a->at) status = weft_device_follow(own->device, s->shard[from].device, s->first_mark + turn);
  }
  for (uint32_t i = 0; i < a->n_arrays && status == WEFT_OK; i++) status = take_rows(s, a, turn, i, n_rows, n_cols);
  return status;
}

/* The same of a gather: what a shard has made goes to the inboxes of the others, and from there to its place. */
static weft_status gather_by_copies(weft_shards *s, const shards_sum *a) {
  shard *own = &s->shard[a->at];
  uint32_t turn = (uint32_t)(own->n_sums++ % SHARDS_SUM_INBOXES);
  weft_status status = WEFT_OK;
  for (uint32_t to = 0; to < s->n; to++) {
    uint64_t first = a->at * a->share_floats, n = share_of(a, a->at) * sizeof(float);
    for (uint32_t i = 0; i < a->n_arrays && to != a->at && status == WEFT_OK; i++) {
      float *place = shards_sum_inbox(a, to, a->at, turn) + i * a->array_floats + first;
      status = weft_device_send(own->device, s->shard[to].device, place, a->x[i] + first, n);
    }
  }
  if (status == WEFT_OK) status = weft_device_mark(own->device, s->first_mark + turn);
  if (status == WEFT_OK) status = meet_all(s);
  for (uint32_t from = 0; from < s->n; from++) {
    uint64_t first = from * a->share_floats, n = share_of(a, from) * sizeof(float);
    if (from == a->at) continue;
    if (status == WEFT_OK) status = weft_device_follow(own->device, s->shard[from].device, s->first_mark + turn);
    for (uint32_t i = 0; i < a->n_arrays && status == WEFT_OK; i++)
      status = weft_device_copy(own->device, a->x[i] + first, inbox_of(a, from, turn) + i * a->array_floats + first, n);
  }
  return status;
}

/* ---- sums ---- */

/* A step that is walked is counted then, and what is made of it afterwards is not. */
static void count_crossed(weft_shards *s, const shards_sum *a, uint32_t n_rows) {
  uint64_t n_bytes = (s->n - 1) * a->n_arrays * a->n_floats * sizeof(float);
  if (a->by_owner != 0) { /* the parts of others' rows, and its own rows */
    uint64_t n_own = n_rows / s->n + (a->at < n_rows % s->n ? 1 : 0), row = a->n_floats / n_rows * sizeof(float);
    n_bytes = ((n_rows - n_own) * a->n_arrays + n_own * (s->n - 1)) * row;
  }
  if (a->share_floats != 0) { /* its own rows, to all */
    uint32_t first, end;
    weft_shards_rows(s->n, a->at, n_rows, &first, &end);
    n_bytes = (uint64_t)(s->n - 1) * a->n_arrays * (end - first) * (a->n_floats / n_rows) * sizeof(float);
  }
  if (device_repeats(s->shard[a->at].device)) return;
  (void)atomic_fetch_add_explicit(&s->crossed, n_bytes, memory_order_relaxed);
}

static bool runs_now(const weft_device *device) {
  return device->graphs == NULL || device->graphs->mode == STEP_GRAPHS_RUN;
}

static weft_status sum_arrays(weft_shards *s, uint32_t at, float *const *x, uint32_t n_arrays, uint32_t n_rows,
                              uint32_t n_cols) {
  uint64_t n_floats = (uint64_t)n_rows * n_cols;
  if (n_arrays > WEFT_SHARDS_ARRAYS_MAX || n_arrays * n_floats > s->n_floats_max) return WEFT_E_INVALID;
  weft_device *device = s->shard[at].device;
  shards_sum args = sum_of(s, at, x, n_arrays, n_floats);
  count_crossed(s, &args, n_rows);
  if (!s->direct) return sum_by_copies(s, &args, n_rows, n_cols);
  weft_status status = runs_now(device) ? meet_all(s) : WEFT_OK;
  return status == WEFT_OK ? device_sum(device, &args) : status;
}

weft_status weft_shards_sum(weft_shards *s, uint32_t at, float *const *x, uint32_t n_arrays, uint32_t n_rows,
                            uint32_t n_cols) {
  if (s->n == 1 || n_rows == 0 || n_cols == 0) return WEFT_OK;
  WEFT_CHECK(at < s->n);
  weft_status status = sum_arrays(s, at, x, n_arrays, n_rows, n_cols);
  if (status != WEFT_OK) weft_shards_break(s);
  return status;
}

void weft_shards_rows(uint32_t n_shards, uint32_t at, uint32_t n_rows, uint32_t *first, uint32_t *end) {
  uint32_t each = (n_rows + n_shards - 1) / n_shards;
  *first = at * each < n_rows ? at * each : n_rows;
  *end = n_rows - *first < each ? n_rows : *first + each;
}

static weft_status gather_arrays(weft_shards *s, uint32_t at, void *const *x, uint32_t n_arrays, uint32_t n_rows,
                                 uint32_t n_cols) {
  uint64_t n_floats = (uint64_t)n_rows * n_cols;
  float *arrays[WEFT_SHARDS_ARRAYS_MAX];
  if (n_arrays > WEFT_SHARDS_ARRAYS_MAX || n_arrays * n_floats > s->n_floats_max) return WEFT_E_INVALID;
  if (n_rows < WEFT_SHARDS_GATHER_ROWS) return WEFT_E_INVALID;
  for (uint32_t i = 0; i < n_arrays; i++) arrays[i] = x[i];
  shards_sum args = sum_of(s, at, arrays, n_arrays, n_floats);
  args.share_floats = (n_rows + s->n - 1) / s->n * (uint64_t)n_cols;
  count_crossed(s, &args, n_rows);
  if (!s->direct) return gather_by_copies(s, &args);
  weft_status status = runs_now(s->shard[at].device) ? meet_all(s) : WEFT_OK;
  return status == WEFT_OK ? device_sum(s->shard[at].device, &args) : status;
}

weft_status weft_shards_gather(weft_shards *s, uint32_t at, void *const *x, uint32_t n_arrays, uint32_t n_rows,
                               uint32_t n_cols) {
  if (s->n == 1) return WEFT_OK;
  WEFT_CHECK(at < s->n);
  weft_status status = gather_arrays(s, at, x, n_arrays, n_rows, n_cols);
  if (status != WEFT_OK) weft_shards_break(s);
  return status;
}

static weft_status sum_then_norm(weft_shards *s, uint32_t at, const weft_norm_args *norm, uint32_t n_arrays) {
  float *const x[WEFT_SHARDS_ARRAYS_MAX] = {norm->x, norm->x2};
  weft_status status = sum_arrays(s, at, x, n_arrays, norm->n_rows, norm->n_cols);
  return status == WEFT_OK ? weft_norm(s->shard[at].device, norm) : status;
}

/* Whether a sum with a norm is one call of the devices. */
static bool is_one_call(const weft_shards *s, uint32_t at, const weft_norm_args *norm, uint32_t n_arrays) {
  const device_calls *calls = s->shard[at].device->calls;
  return s->direct && calls->sum_norm != NULL && calls->sum_takes(norm, n_arrays);
}

static bool is_by_owner(const weft_norm_args *norm, uint32_t n_arrays) {
  return norm->n_rows > (n_arrays > 1 ? SHARDS_SUM_ROWS_OF_TWO : SHARDS_SUM_ROWS);
}

const shards_sum *weft_shards_give(weft_shards *s, uint32_t at, const weft_norm_args *norm) {
  shard *own = &s->shard[at];
  float *const x[WEFT_SHARDS_ARRAYS_MAX] = {norm->x, norm->x2};
  if (!is_one_call(s, at, norm, 2) || !is_by_owner(norm, 2)) return NULL;
  own->given = sum_of(s, at, x, 2, (uint64_t)norm->n_rows * norm->n_cols);
  own->is_given = true;
  return &own->given;
}

static weft_status sum_with_norm(weft_shards *s, uint32_t at, const weft_norm_args *norm, uint32_t n_arrays) {
  uint64_t n_floats = (uint64_t)norm->n_rows * norm->n_cols;
  float *const x[WEFT_SHARDS_ARRAYS_MAX] = {norm->x, norm->x2};
  weft_device *device = s->shard[at].device;
  if (n_arrays > WEFT_SHARDS_ARRAYS_MAX || n_arrays * n_floats > s->n_floats_max) return WEFT_E_INVALID;
  shards_sum args = sum_of(s, at, x, n_arrays, n_floats);
  args.by_owner = is_by_owner(norm, n_arrays) ? 1 : 0;
  args.is_given = s->shard[at].is_given ? 1 : 0;
  s->shard[at].is_given = false;
  count_crossed(s, &args, norm->n_rows);
  weft_status status = runs_now(device) ? meet_all(s) : WEFT_OK;
  return status == WEFT_OK ? device_sum_norm(device, &args, norm) : status;
}

weft_status weft_shards_sum_norm(weft_shards *s, uint32_t at, const weft_norm_args *norm, uint32_t n_arrays) {
  WEFT_CHECK(at < s->n);
  weft_device *device = s->shard[at].device;
  if (s->n == 1 || norm->n_rows == 0) return weft_norm(device, norm);
  weft_status status =
      is_one_call(s, at, norm, n_arrays) ? sum_with_norm(s, at, norm, n_arrays) : sum_then_norm(s, at, norm, n_arrays);
  if (status != WEFT_OK) weft_shards_break(s);
  return status;
}

static weft_status meet_on_devices(weft_shards *s, uint32_t at) {
  if (!s->direct) return WEFT_E_INVALID;
  shards_sum_state *state = s->shard[at].state;
  weft_device *device = s->shard[at].device;
  float *nothing = state->nothing;
  shards_sum args = sum_of(s, at, &nothing, 1, sizeof state->nothing / sizeof *nothing);
  args.is_meeting = 1;
  weft_status status = runs_now(device) ? meet_all(s) : WEFT_OK;
  return status == WEFT_OK ? device_sum(device, &args) : status;
}

weft_status weft_shards_meet(weft_shards *s, uint32_t at) {
  WEFT_CHECK(at < s->n);
  weft_status status = meet_on_devices(s, at);
  if (status != WEFT_OK) weft_shards_break(s);
  return status;
}
