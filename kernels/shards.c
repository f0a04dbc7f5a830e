/* SPDX-License-Identifier: MIT */
#include "kernels/shards.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "base/pause.h"
#include "kernels/device_internal.h"
#include "kernels/shards_exchange.h"

enum { SPINS = 1000 /* pauses of some tens of nanoseconds each, before a thread sleeps */, EMPTY_BYTES = 1 << 20 };

typedef struct shard {
  weft_device *device;
  void *inbox; /* [SHARDS_EXCHANGE_INBOXES][n - 1][inbox_floats] */
  void *state; /* shards_exchange_state, where exchanges are one call */
  uint64_t n_exchanges;
} shard;

struct weft_shards {
  uint32_t n, first_mark;
  bool direct; /* exchanges are one call of each device */
  uint64_t n_floats_max, inbox_floats;
  shard shard[WEFT_DEVICES_MAX];
  void *word; /* of the host: not 0 when exchanges are broken; NULL if not direct */
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

/* What every shard is told of an exchange. */
static shards_exchange exchange_of(const weft_shards *s, uint32_t at, weft_shards_way way,
                                   const weft_shards_array *array, uint32_t n_arrays, uint32_t n_rows) {
  shards_exchange a = {.inbox_floats = s->inbox_floats,
                       .state = s->shard[at].state,
                       .broken = s->word,
                       .n_arrays = n_arrays,
                       .n_rows = n_rows,
                       .n = s->n,
                       .at = at,
                       .way = way};
  for (uint32_t i = 0; i < n_arrays; i++) { /* by fields: padding is no part of a step's signature */
    a.array[i].x = array[i].x;
    a.array[i].y = array[i].y;
    a.array[i].n_cols = array[i].n_cols;
  }
  for (uint32_t i = 1; i < n_arrays; i++) {
    a.array_at[i] = a.array_at[i - 1] + up_to_fours((uint64_t)n_rows * array[i - 1].n_cols);
  }
  for (uint32_t i = 0; i < s->n; i++) a.inbox[i] = s->shard[i].inbox;
  for (uint32_t i = 0; i <= s->n; i++) a.row[i] = weft_shards_row(s->n, n_rows, i);
  return a;
}

uint32_t weft_shards_row(uint32_t n_shards, uint32_t n_rows, uint32_t at) {
  uint64_t unit = n_rows / 8 >= n_shards ? 8 : 1, n_units = (n_rows + unit - 1) / unit;
  uint64_t row = n_units * at / n_shards * unit;
  return row < n_rows ? (uint32_t)row : n_rows;
}

uint32_t weft_shards_closes(uint32_t n_shards, uint32_t at) {
  uint32_t n_closes = 0;
  while (n_shards > 1) {
    uint32_t left = n_shards / 2;
    bool is_left = at < left;
    n_closes += at + 1 == n_shards ? 1 : 0;
    at -= is_left ? 0 : left;
    n_shards = is_left ? left : n_shards - left;
  }
  return n_closes;
}

uint32_t weft_shards_half(uint32_t n_shards, uint32_t at, uint32_t n) {
  uint32_t first = 0;
  if (at == n_shards) return n;
  while (n_shards > 1) {
    uint32_t left = n_shards / 2;
    bool is_left = at < left;
    n /= 2;
    if (!is_left) first += n, at -= left;
    n_shards = is_left ? left : n_shards - left;
  }
  return first;
}

/* ---- open and close ---- */

/* Whether each device can exchange in one call, and reaches the memory of all others. */
bool weft_shards_are_direct(weft_device *const *device, uint32_t n) {
  bool all = true;
  for (uint32_t i = 0; i < n; i++) {
    all = all && device[i]->calls->exchange != NULL;
    for (uint32_t k = 0; k < n; k++) {
      bool same = i != k && device[i]->info.index == device[k]->info.index; /* one card need not run both at once */
      all = all && !same && weft_device_reaches(device[i], device[k]);
    }
  }
  return all;
}

static weft_status empty_inbox(weft_shards *s, const shard *one, const uint8_t *empty) {
  uint64_t n_bytes = SHARDS_EXCHANGE_INBOXES * (s->n - 1) * s->inbox_floats * sizeof(float);
  weft_status status = WEFT_OK;
  for (uint64_t at = 0; at < n_bytes && status == WEFT_OK; at += EMPTY_BYTES) {
    uint64_t n = n_bytes - at < EMPTY_BYTES ? n_bytes - at : EMPTY_BYTES;
    status = weft_device_upload(one->device, (uint8_t *)one->inbox + at, empty, n);
  }
  return status;
}

/* What one call for an exchange needs: a state on every device, empty inboxes, and the word. */
static weft_status open_direct(weft_shards *s) {
  uint8_t *empty = weft_alloc(EMPTY_BYTES, 1);
  if (empty == NULL) return WEFT_E_NO_MEMORY;
  memset(empty, 0xFF, EMPTY_BYTES);
  weft_status status = weft_device_alloc_host(s->shard[0].device, sizeof(uint32_t), &s->word);
  if (status == WEFT_OK) memset(s->word, 0, sizeof(uint32_t));
  for (uint32_t i = 0; i < s->n && status == WEFT_OK; i++) {
    shard *one = &s->shard[i];
    status = weft_device_alloc(one->device, sizeof(shards_exchange_state), &one->state);
    if (status == WEFT_OK) status = weft_device_zero(one->device, one->state, sizeof(shards_exchange_state));
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

/* Missing weights count for nothing. */
weft_status weft_shards_agree(weft_device *const *device, const weft_weight *const *weight, uint32_t n) {
  float most[2] = {0}, own[WEFT_DEVICES_MAX][2] = {{0}};
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < n && status == WEFT_OK; i++) {
    if (device[i]->calls->weight_most == NULL || weight[i]->data == NULL) continue;
    device_enter(device[i]);
    status = device[i]->calls->weight_most(device[i], weight[i], own[i], false);
    for (uint32_t k = 0; k < 2; k++) most[k] = own[i][k] > most[k] ? own[i][k] : most[k];
  }
  for (uint32_t i = 0; i < n && status == WEFT_OK; i++) {
    if (device[i]->calls->weight_most == NULL || weight[i]->data == NULL) continue;
    if (own[i][0] >= most[0] && own[i][1] >= most[1]) continue;
    device_enter(device[i]);
    status = device[i]->calls->weight_most(device[i], weight[i], most, true);
  }
  return status;
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
  return SHARDS_EXCHANGE_INBOXES * (s->n - 1) * s->inbox_floats * sizeof(float);
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

/* ---- exchanges as copies ---- */

/* Array i of what `from` gave to `to`, as if x were there. */
static float *find_given(const shards_exchange *a, uint32_t to, uint32_t from, uint32_t turn, uint32_t i) {
  return shards_exchange_inbox(a, to, from, turn) + a->array_at[i];
}

/* What the shard gives, to all others. */
static weft_status give_all(weft_shards *s, const shards_exchange *a, uint32_t turn) {
  weft_device *device = s->shard[a->at].device;
  weft_status status = WEFT_OK;
  for (uint32_t to = 0; to < s->n; to++) {
    shards_rows rows = shards_exchange_rows(a, a->at, to);
    for (uint32_t i = 0; i < a->n_arrays && to != a->at && status == WEFT_OK; i++) {
      uint64_t n_cols = a->array[i].n_cols, n_bytes = (rows.end - rows.first) * n_cols * sizeof(float);
      float *x = a->array[i].x + rows.first * n_cols, *place = find_given(a, to, a->at, turn, i) + rows.first * n_cols;
      status = weft_device_send(device, s->shard[to].device, place, x, n_bytes);
    }
  }
  return status == WEFT_OK ? weft_device_mark(device, s->first_mark + turn) : status;
}

/* y = x + x2, or x: rows that are dense but for those of y. */
static weft_status put_rows(weft_device *device, float *x, float *x2, float *y, uint32_t n_rows, uint32_t n_cols,
                            uint64_t y_stride) {
  weft_norm_args args = {.x = x,
                         .x2 = x2,
                         .y = y,
                         .n_rows = n_rows,
                         .n_cols = n_cols,
                         .plain = true,
                         .x_stride = n_cols,
                         .x2_stride = n_cols,
                         .y_stride = y_stride};
  return weft_norm(device, &args);
}

/* x becomes the sum over the shards. Other sums are made in the place of their first part. */
static weft_status add_array(weft_shards *s, const shards_exchange *a, uint32_t turn, uint32_t array) {
  shards_rows rows = shards_exchange_rows(a, a->at, a->at);
  uint32_t n_rows = rows.end - rows.first, n_cols = a->array[array].n_cols, n_sums = 0;
  uint64_t offset = (uint64_t)rows.first * n_cols;
  float *x = a->array[array].x + offset, *sum[WEFT_DEVICES_MAX]; /* of the parts before, those that are not added yet */
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < s->n; i++) {
    sum[n_sums++] = i == a->at ? x : find_given(a, a->at, i, turn, array) + offset;
    for (uint32_t n = weft_shards_closes(s->n, i); n > 0 && status == WEFT_OK; n--, n_sums--) {
      float *left = sum[n_sums - 2], *to = n_sums == 2 && i + 1 == s->n ? x : left;
      status = put_rows(s->shard[a->at].device, left, sum[n_sums - 1], to, n_rows, n_cols, n_cols);
    }
  }
  return status;
}

/* What each shard gave goes to its place in x or y; into y what this shard has, too. */
static weft_status place_array(weft_shards *s, const shards_exchange *a, uint32_t turn, uint32_t array) {
  weft_device *device = s->shard[a->at].device;
  const weft_shards_array *of = &a->array[array];
  weft_status status = WEFT_OK;
  for (uint32_t from = 0; from < s->n && status == WEFT_OK; from++) {
    shards_rows rows = shards_exchange_rows(a, from, a->at);
    uint64_t offset = (uint64_t)rows.first * of->n_cols, stride = (uint64_t)s->n * of->n_cols;
    uint32_t n_rows = rows.end - rows.first;
    float *x = (from == a->at ? of->x : find_given(a, a->at, from, turn, array)) + offset;
    if (of->y != NULL) {
      float *y = of->y + rows.first * stride + (uint64_t)from * of->n_cols;
      status = put_rows(device, x, NULL, y, n_rows, of->n_cols, stride);
    } else if (from != a->at) {
      status = weft_device_copy(device, of->x + offset, x, (uint64_t)n_rows * of->n_cols * sizeof(float));
    }
  }
  return status;
}

static weft_status exchange_by_copies(weft_shards *s, const shards_exchange *a) {
  shard *own = &s->shard[a->at];
  uint32_t turn = (uint32_t)(own->n_exchanges++ % SHARDS_EXCHANGE_INBOXES);
  weft_status status = give_all(s, a, turn);
  if (status == WEFT_OK) status = meet_all(s);
  for (uint32_t from = 0; from < s->n && status == WEFT_OK; from++) {
    if (from != a->at) status = weft_device_follow(own->device, s->shard[from].device, s->first_mark + turn);
  }
  for (uint32_t i = 0; i < a->n_arrays && status == WEFT_OK; i++) {
    status = shards_exchange_adds(a) ? add_array(s, a, turn, i) : place_array(s, a, turn, i);
  }
  return status;
}

/* ---- exchanges ---- */

/* A step that is walked is counted then, and what is made of it afterwards is not. */
static void count_crossed(weft_shards *s, const shards_exchange *a) {
  uint64_t n_cols = 0, n_rows = 0;
  if (device_repeats(s->shard[a->at].device)) return;
  for (uint32_t i = 0; i < a->n_arrays; i++) n_cols += a->array[i].n_cols;
  for (uint32_t to = 0; to < s->n; to++) {
    shards_rows rows = shards_exchange_rows(a, a->at, to);
    if (to != a->at) n_rows += rows.end - rows.first;
  }
  (void)atomic_fetch_add_explicit(&s->crossed, n_rows * n_cols * sizeof(float), memory_order_relaxed);
}

static bool runs_now(const weft_device *device) {
  return device->graphs == NULL || device->graphs->mode == STEP_GRAPHS_RUN;
}

static weft_status exchange_on_devices(weft_shards *s, const shards_exchange *a) {
  weft_device *device = s->shard[a->at].device;
  weft_status status = runs_now(device) ? meet_all(s) : WEFT_OK;
  return status == WEFT_OK ? device_exchange(device, a) : status;
}

static weft_status check_exchange(const weft_shards *s, const shards_exchange *a) {
  uint64_t n_floats = 0;
  for (uint32_t i = 0; i < a->n_arrays; i++) {
    const weft_shards_array *of = &a->array[i];
    if (of->x == NULL || of->n_cols == 0 || (of->y != NULL) != shards_exchange_has_y(a)) return WEFT_E_INVALID;
    n_floats += (uint64_t)a->n_rows * of->n_cols;
  }
  if (n_floats > s->n_floats_max || (!shards_exchange_is_whole(a) && a->n_rows < s->n)) return WEFT_E_INVALID;
  return n_floats > INT32_MAX ? WEFT_E_UNSUPPORTED : WEFT_OK;
}

/* One shard has all columns. */
static weft_status copy_columns(weft_shards *s, const shards_exchange *a) {
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < a->n_arrays && shards_exchange_has_y(a) && status == WEFT_OK; i++) {
    const weft_shards_array *of = &a->array[i];
    status = weft_device_copy(s->shard[0].device, of->y, of->x, (uint64_t)a->n_rows * of->n_cols * sizeof(float));
  }
  return status;
}

static weft_status exchange_arrays(weft_shards *s, const shards_exchange *a) {
  weft_status status = check_exchange(s, a);
  if (status != WEFT_OK) return status;
  if (s->n == 1) return copy_columns(s, a);
  count_crossed(s, a);
  return s->direct ? exchange_on_devices(s, a) : exchange_by_copies(s, a);
}

weft_status weft_shards_exchange(weft_shards *s, uint32_t at, weft_shards_way way, const weft_shards_array *array,
                                 uint32_t n_arrays, uint32_t n_rows) {
  WEFT_CHECK(at < s->n && n_arrays <= WEFT_SHARDS_ARRAYS_MAX);
  if (n_rows == 0 || n_arrays == 0) return WEFT_OK;
  shards_exchange args = exchange_of(s, at, way, array, n_arrays, n_rows);
  weft_status status = exchange_arrays(s, &args);
  if (status != WEFT_OK) weft_shards_break(s);
  return status;
}

static weft_status meet_on_devices(weft_shards *s, uint32_t at) {
  if (!s->direct) return WEFT_E_INVALID;
  shards_exchange_state *state = s->shard[at].state;
  const weft_shards_array nothing = {.x = state->nothing, .n_cols = sizeof state->nothing / sizeof *state->nothing};
  shards_exchange args = exchange_of(s, at, WEFT_SHARDS_SUM, &nothing, 1, 1);
  args.is_meeting = 1;
  return exchange_on_devices(s, &args);
}

weft_status weft_shards_meet(weft_shards *s, uint32_t at) {
  WEFT_CHECK(at < s->n);
  weft_status status = meet_on_devices(s, at);
  if (status != WEFT_OK) weft_shards_break(s);
  return status;
}
