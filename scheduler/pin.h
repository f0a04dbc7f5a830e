/* SPDX-License-Identifier: MIT */
/* A pin as data; pins.h says what pins do. The engine owns the table; the mutex guards all of it but n_known. */
#ifndef WEFT_SCHEDULER_PIN_H
#define WEFT_SCHEDULER_PIN_H

#include <pthread.h>
#include <stdatomic.h>

#include "scheduler/stats.h"

typedef struct weft_pin_entry {
  weft_pin_info info;
  weft_key128 domain;
  int32_t *tokens; /* [info.n_tokens], owned by the entry */
  weft_seq seq;    /* the pager's sequence that holds its blocks; WEFT_SEQ_NONE: it is not held */
  bool removed;    /* set by unpin; the engine thread then takes the entry out */
} weft_pin_entry;

typedef struct weft_pin_table {
  pthread_mutex_t mutex;
  weft_pin_entry **pin; /* [n_max], in order of declaration */
  uint32_t n, n_max, next_id;
  uint32_t n_pages, n_pages_max; /* of all pins, held or not */
  _Atomic uint32_t n_known;      /* == n, without the mutex */
} weft_pin_table;

#endif
