/* SPDX-License-Identifier: MIT */
/* The last batches that were sent, by their sequence numbers, for readers that missed some.
 *
 * Law. Numbers begin where the first one says, go to 2^64 - 2 and then begin again with 0: the number 2^64 - 1 ends a
 * replay. The half of them behind the next one was given before, if not here then by a server that ran earlier. At most
 * KV_REPLAY_BATCHES are kept, with at most KV_REPLAY_BYTES together; the oldest give way. A number that was never given
 * has no batch: its batch was lost, and readers see the gap. */
#ifndef WEFT_API_EVENTS_KV_REPLAY_H
#define WEFT_API_EVENTS_KV_REPLAY_H

#include "base/text.h"

enum { KV_REPLAY_BATCHES = 10000, KV_REPLAY_BYTES = 64 << 20 };

typedef struct kv_replay {
  weft_text *batch;     /* [KV_REPLAY_BATCHES] a ring */
  uint64_t first, next; /* batches kept: counted from the first one ever, without wrapping */
  uint64_t start;       /* number of the first one ever */
  size_t n_bytes;
} kv_replay;

/* start: the number that the first batch gets. */
weft_status kv_replay_open(kv_replay *replay, uint64_t start);
void kv_replay_close(kv_replay *replay);
/* The number of the batch that comes next. */
uint64_t kv_replay_next(const kv_replay *replay);
/* The number of a batch by its count. Any thread. */
uint64_t kv_replay_number(const kv_replay *replay, uint64_t count);
/* Keeps a batch, whose memory goes over; NULL: it was lost, and its number is passed over. */
void kv_replay_push(kv_replay *replay, weft_text *batch);
/* The count of the batch with a number. False: it was given before those that are kept, here or by an earlier server,
 * and *count is the first of these. A number that is still to come is told as the next count. */
bool kv_replay_find(const kv_replay *replay, uint64_t number, uint64_t *count);
/* The batch of a count from first to next - 1; NULL: it was lost. */
const weft_text *kv_replay_at(const kv_replay *replay, uint64_t count);

#endif
