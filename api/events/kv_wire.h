/* SPDX-License-Identifier: MIT */
/* Cache events as bytes, exactly as vLLM 0.33 sends them: a batch is the array [time, events, rank] in MessagePack.
 *
 * Law. An event is a map whose first member is `type`, or, where a fleet pins older readers, an array of the same
 * values with the type first. A name is the low 64 bits of the hash as a number, or the 32 bytes. What is appended
 * while memory is refused makes the whole batch refused (kv_batch_close). Only where the program was built with
 * libmsgpack. */
#ifndef WEFT_API_EVENTS_KV_WIRE_H
#define WEFT_API_EVENTS_KV_WIRE_H

#include "api/events/kv_mirror.h"
#include "base/text.h"

typedef struct kv_form {
  bool arrays; /* events are arrays in place of maps */
  bool bytes;  /* names are byte strings in place of numbers */
} kv_form;

/* Zero-initialise but for the form. */
typedef struct kv_batch {
  kv_form form;
  weft_text events;
  uint32_t n;
} kv_batch;

void kv_batch_clear_all(kv_batch *batch); /* AllBlocksCleared */
void kv_batch_store(kv_batch *batch, const kv_chain *chain);
void kv_batch_remove(kv_batch *batch, weft_tier medium, const kv_name *name, uint32_t n);
/* Appends the whole batch to out and empties it. time: seconds since 1970. NO_MEMORY: it is lost. */
weft_status kv_batch_close(kv_batch *batch, double time, uint32_t rank, weft_text *out);
void kv_batch_free(kv_batch *batch);

#endif
