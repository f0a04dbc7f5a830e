/* SPDX-License-Identifier: MIT */
#include "kernels/expert_slots.h"

#include <string.h>

void expert_slots_open(expert_slots *s, const expert_slots_calls *calls, void *self) {
  memset(s, 0, sizeof *s);
  s->calls = calls;
  s->self = self;
}

static uint32_t find_kept(const expert_slots *s, const void *data) {
  uint32_t i = 0;
  while (i < s->n_kept && s->kept[i].data != data) i++;
  return i;
}

static uint32_t find_slot(const expert_slots *s, const void *data) {
  uint32_t i = 0;
  while (i < EXPERT_SLOTS && s->slot[i].data != data) i++;
  return i;
}

weft_status expert_slots_keep(expert_slots *s, void *data, uint64_t n_bytes) {
  if (s->n_kept == EXPERT_SLOTS_KEPT_MAX) return WEFT_E_TOO_LARGE;
  s->kept[s->n_kept].data = data;
  s->kept[s->n_kept++].n_bytes = n_bytes;
  return WEFT_OK;
}

bool expert_slots_forget(expert_slots *s, const void *data) {
  uint32_t i = find_kept(s, data);
  if (i == s->n_kept) return false;
  (void)expert_slots_join(s);
  memset(s->slot, 0, sizeof s->slot);
  memmove(&s->kept[i], &s->kept[i + 1], (s->n_kept - i - 1) * sizeof s->kept[0]);
  s->n_kept -= 1;
  return true;
}

static uint32_t free_event(uint32_t slot) {
  return 2 * slot;
}

static uint32_t ready_event(uint32_t slot) {
  return 2 * slot + 1;
}

weft_status expert_slots_join(expert_slots *s) {
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < EXPERT_SLOTS && status == WEFT_OK; i++) {
    if (s->slot[i].data != NULL) status = s->calls->wait(s->self, ready_event(i), EXPERT_STREAM_MAIN);
    memset(&s->slot[i], 0, sizeof s->slot[i]);
  }
  return status;
}

/* Enqueues the copy of kept weight i to a slot that no product of this call reads. */
static weft_status fetch_kept(expert_slots *s, uint32_t i, uint32_t *out) {
  uint32_t k = s->next;
  while (s->slot[k].in_use) k = (k + 1) % EXPERT_SLOTS;
  s->next = (k + 1) % EXPERT_SLOTS;
  weft_status status = WEFT_OK;
  /* which product read the slot is not known, so nothing before this point may still run */
  if (!s->slot[k].released) status = s->calls->record(s->self, free_event(k), EXPERT_STREAM_MAIN);
  if (status == WEFT_OK) status = s->calls->wait(s->self, free_event(k), EXPERT_STREAM_COPY);
  if (status == WEFT_OK) status = s->calls->copy(s->self, k, s->kept[i].data, s->kept[i].n_bytes);
  if (status == WEFT_OK) status = s->calls->record(s->self, ready_event(k), EXPERT_STREAM_COPY);
  s->slot[k].data = status == WEFT_OK ? s->kept[i].data : NULL;
  s->slot[k].released = false;
  *out = k;
  return status;
}

weft_status expert_slots_bring(expert_slots *s, const void *data, uint32_t *slot) {
  uint32_t i = find_kept(s, data), k = EXPERT_SLOTS;
  *slot = EXPERT_SLOTS;
  if (i == s->n_kept) return WEFT_OK;
  weft_status status = WEFT_OK;
  k = find_slot(s, data);
  if (k == EXPERT_SLOTS) status = fetch_kept(s, i, &k);
  if (status == WEFT_OK) status = s->calls->wait(s->self, ready_event(k), EXPERT_STREAM_MAIN);
  if (status != WEFT_OK) return status;
  s->slot[k].in_use = true;
  s->last = i;
  *slot = k;
  return WEFT_OK;
}

weft_status expert_slots_done(expert_slots *s) {
  weft_status status = WEFT_OK;
  uint32_t n_free = 0, k;
  for (uint32_t i = 0; i < EXPERT_SLOTS; i++) n_free += !s->slot[i].in_use;
  if (n_free == EXPERT_SLOTS) return WEFT_OK;
  for (uint32_t n = 1; n <= n_free && s->last + n < s->n_kept && status == WEFT_OK; n++) {
    if (find_slot(s, s->kept[s->last + n].data) == EXPERT_SLOTS) status = fetch_kept(s, s->last + n, &k);
  }
  for (uint32_t i = 0; i < EXPERT_SLOTS; i++) {
    if (!s->slot[i].in_use) continue;
    if (status == WEFT_OK) status = s->calls->record(s->self, free_event(i), EXPERT_STREAM_MAIN);
    s->slot[i].in_use = false;
    s->slot[i].released = status == WEFT_OK;
  }
  return status;
}
