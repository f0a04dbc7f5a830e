/* SPDX-License-Identifier: MIT */
#include "bench/speed/touched.h"

#include <math.h>
#include <string.h>

#include "bench/inside.h"

static void add_size(weft_touched *t, uint32_t n_rows, uint32_t n_distinct) {
  uint32_t i = 0;
  while (i < t->n_sizes && t->size[i].n_rows != n_rows) i++;
  if (i == WEFT_TOUCHED_SIZES) return;
  if (i == t->n_sizes) t->n_sizes += 1;
  t->size[i].n_rows = n_rows;
  t->size[i].n_calls += 1;
  t->size[i].n_distinct += n_distinct;
}

static uint32_t count_distinct(weft_touched *t, uint64_t n_ids) {
  uint32_t n = 0;
  memset(t->seen, 0, t->n_experts);
  for (uint64_t i = 0; i < n_ids; i++) {
    if ((uint32_t)t->ids[i] >= t->n_experts) continue;
    n += t->seen[t->ids[i]] == 0;
    t->seen[t->ids[i]] = 1;
  }
  return n;
}

static weft_device *device_of(const weft_runtime *rt, uint32_t layer) {
  const weft_split *split = &rt->model[0].copy[0].split;
  uint32_t p = 0;
  while (p + 1 < weft_split_stages(split) && split->first_layer[p + 1] <= layer) p++;
  return split->device[weft_split_place(split, p, 0)];
}

/* On the engine's thread. Reading back is refused while a step is being recorded. */
static bool take_experts(void *self, uint32_t layer, const char *op, const void *args, bool done) {
  weft_touched *t = self;
  const weft_experts_args *a = args;
  if (!done || !__atomic_load_n(&t->counting, __ATOMIC_ACQUIRE) || strcmp(op, "experts") != 0) return true;
  uint64_t n_ids = (uint64_t)a->n_rows * a->k;
  (void)pthread_mutex_lock(&t->mutex); /* errors are programming errors */
  weft_device *device = device_of(t->runtime, layer);
  if (n_ids <= t->n_ids && weft_device_download(device, t->ids, a->ids, n_ids * sizeof *t->ids) == WEFT_OK)
    add_size(t, a->n_rows, count_distinct(t, n_ids));
  (void)pthread_mutex_unlock(&t->mutex);
  return true;
}

bool weft_touched_open(weft_touched *t, weft_runtime *rt) {
  const weft_model_info *info = weft_model_get_info(rt->model[0].model);
  *t = (weft_touched){.runtime = rt, .n_experts = info->n_experts, .n_used = info->n_experts_used};
  (void)pthread_mutex_init(&t->mutex, NULL); /* cannot fail on Linux */
  if (t->n_experts == 0) return true;
  t->n_ids = (uint64_t)rt->options.rows * t->n_used;
  t->ids = weft_alloc(t->n_ids, sizeof *t->ids);
  t->seen = weft_alloc(t->n_experts, 1);
  if (t->ids == NULL || t->seen == NULL) return false;
  /* Shards choose the same experts; of replicas, which run at once, the first is watched. */
  const weft_split *split = &rt->model[0].copy[0].split;
  for (uint32_t p = 0; p < weft_split_stages(split); p++)
    weft_device_watch(split->device[weft_split_place(split, p, 0)], take_experts, t);
  return true;
}

void weft_touched_close(weft_touched *t) {
  weft_free(t->ids);
  weft_free(t->seen);
  (void)pthread_mutex_destroy(&t->mutex);
}

void weft_touched_count(weft_touched *t, bool on) {
  __atomic_store_n(&t->counting, on, __ATOMIC_RELEASE);
}

double weft_touched_mean(weft_touched *t, uint32_t n_rows) {
  uint32_t best = UINT32_MAX, most = weft_device_bucket(n_rows);
  double mean = -1.0;
  (void)pthread_mutex_lock(&t->mutex);
  for (uint32_t i = 0; i < t->n_sizes; i++) {
    if (t->size[i].n_rows < n_rows || t->size[i].n_rows > most || t->size[i].n_rows >= best) continue;
    best = t->size[i].n_rows;
    mean = (double)t->size[i].n_distinct / (double)t->size[i].n_calls;
  }
  (void)pthread_mutex_unlock(&t->mutex);
  return mean;
}

double weft_touched_expected(const weft_touched *t, uint32_t n_rows) {
  if (t->n_experts == 0) return -1.0;
  return t->n_experts * (1.0 - pow(1.0 - (double)t->n_used / t->n_experts, n_rows));
}
