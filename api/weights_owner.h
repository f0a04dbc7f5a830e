/* SPDX-License-Identifier: MIT */
/* The process that owns weights: loads models as a worker would, for others to map.
 *
 * Law: what a worker gets is what it would have made of the file itself: the same device is opened with the same
 * options, the same integers of weights are chosen, and the same code lays the matrices out; there is no other way into
 * the memory. Nothing is said over the socket, and no manifest is written, before all weights are placed and sealed.
 * The owner's devices are those of one split; replicas have an owner each. Workers that leave or are killed change
 * nothing for it and for others. */
#ifndef WEFT_API_WEIGHTS_OWNER_H
#define WEFT_API_WEIGHTS_OWNER_H

#include "api/weft.h"
#include "base/text.h"

typedef struct weights_owner weights_owner;

typedef struct weights_owner_options {
  const char *socket;
  const char *scope;      /* "target": models that are served; "drafter": those of --draft model:FILE; "both" */
  uint64_t reserve_bytes; /* of each device that must stay free beside the weights */
  const char *transport;  /* "fd": by descriptors, which keep the memory; "ipc": by names; NULL or "auto" */
  /* Told of what happens, each a JSON object with the member "event", without a line feed (docs/weights.md); NULL:
   * nobody is. */
  void (*tell)(void *self, const char *event);
  void *tell_self;
} weights_owner_options;

/* Loads everything and listens. The caller closes *out. Errors, each with a line: INVALID, those of weft_open, and
 * UNSUPPORTED: another process owns the weights of the card. */
weft_status weights_owner_open(const weft_open_options *options, const weights_owner_options *own, weights_owner **out,
                               weft_error *error);
/* What opening would come to, with no weight loaded and no memory taken for one: the event "preflight". Errors as
 * above, but for a lack of room and a lock that another has, which the event says. */
weft_status weights_owner_judge(const weft_open_options *options, const weights_owner_options *own, weft_error *error);
/* Answers until one of the descriptors can be read, or is hung up. */
weft_status weights_owner_run(weights_owner *owner, const int *stop, uint32_t n_stops, weft_error *error);
/* What was loaded, and what workers asked, as one JSON object. */
void weights_owner_counts(const weights_owner *owner, weft_text *out);
/* Bytes that the models take on the device. */
uint64_t weights_owner_bytes(const weights_owner *owner);
/* Removes socket, manifest and lock. The memory goes back when the last worker has ended. NULL is fine. */
void weights_owner_close(weights_owner *owner);

#endif
