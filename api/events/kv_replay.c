/* SPDX-License-Identifier: MIT */
#include "api/events/kv_replay.h"

#include "base/memory.h"

static const uint64_t n_numbers = UINT64_MAX; /* the last one is none */

weft_status kv_replay_open(kv_replay *r, uint64_t start) {
  *r = (kv_replay){.start = start % n_numbers};
  r->batch = weft_alloc(KV_REPLAY_BATCHES, sizeof *r->batch);
  return r->batch == NULL ? WEFT_E_NO_MEMORY : WEFT_OK;
}

static void drop_first(kv_replay *r) {
  weft_text *batch = &r->batch[r->first++ % KV_REPLAY_BATCHES];
  r->n_bytes -= batch->n;
  weft_text_free(batch);
}

void kv_replay_close(kv_replay *r) {
  while (r->batch != NULL && r->first < r->next) drop_first(r);
  weft_free(r->batch);
  r->batch = NULL;
}

/* Counts stay far below the number of numbers. */
uint64_t kv_replay_number(const kv_replay *r, uint64_t count) {
  uint64_t left = n_numbers - r->start; /* numbers before it begins again */
  return count < left ? r->start + count : count - left;
}

uint64_t kv_replay_next(const kv_replay *r) {
  return kv_replay_number(r, r->next);
}

void kv_replay_push(kv_replay *r, weft_text *batch) {
  if (r->next - r->first == KV_REPLAY_BATCHES) drop_first(r);
  weft_text *to = &r->batch[r->next++ % KV_REPLAY_BATCHES];
  *to = batch == NULL ? (weft_text){0} : *batch;
  if (batch != NULL) *batch = (weft_text){0};
  r->n_bytes += to->n;
  while (r->n_bytes > KV_REPLAY_BYTES) drop_first(r);
}

bool kv_replay_find(const kv_replay *r, uint64_t number, uint64_t *count) {
  uint64_t next = kv_replay_next(r), n_back = next >= number ? next - number : next + (n_numbers - number);
  bool to_come = number == n_numbers || n_back > n_numbers / 2, kept = n_back <= r->next - r->first;
  *count = to_come ? r->next : kept ? r->next - n_back : r->first;
  return to_come || kept;
}

const weft_text *kv_replay_at(const kv_replay *r, uint64_t count) {
  const weft_text *batch = &r->batch[count % KV_REPLAY_BATCHES];
  return batch->n == 0 ? NULL : batch;
}
