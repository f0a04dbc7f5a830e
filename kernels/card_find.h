/* SPDX-License-Identifier: MIT */
/* Which card an opening gets, and the line that says why it gets none: what a driver answers, judged.
 *
 * Law: nothing here calls a driver but by card_driver, so every answer that one can give is given by a fake one
 * (unit/kernels_card_find). Of the calls the first that fails ends the search, with one line that names the card as the
 * driver counts it and says what to do; a context is made on a card only after its set, its code and the driver were
 * found to fit. */
#ifndef WEFT_KERNELS_CARD_FIND_H
#define WEFT_KERNELS_CARD_FIND_H

#include <stddef.h>

#include "kernels/card_sets.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum card_answer {
  CARD_YES,
  CARD_NONE,       /* no card is visible */
  CARD_OLD_DRIVER, /* for the toolkit that built the module */
  CARD_BUSY,       /* another process has the card for itself, or its mode lets none in */
  CARD_NO_ANSWER   /* any other error */
} card_answer;

typedef struct card_facts {
  char name[96]; /* a slice of a card has "MIG" in it */
  uint32_t capability, n_multiprocessors;
  uint8_t uuid[16];
  bool prohibited;                                 /* the compute mode lets no process in */
  bool one_memory;                                 /* the card's memory is the host's */
  double memory_hertz, memory_bytes_a_turn, hertz; /* 0: not told */
} card_facts;

typedef struct card_driver {
  void *self;
  card_answer (*version)(void *self, uint32_t *cuda); /* 12040 is CUDA 12.4; needs no card */
  card_answer (*count)(void *self, uint32_t *n);
  card_answer (*describe)(void *self, uint32_t index, card_facts *out); /* makes no context */
  card_answer (*enter)(void *self, uint32_t index);                     /* makes one */
  card_answer (*memory)(void *self, uint64_t *free_bytes, uint64_t *all_bytes);
  uint64_t (*host_free)(void *self); /* that a process of the host may take; 0: not told */
  const char *(*why)(void *self);    /* in the driver's words, of the last answer that was not CARD_YES */
  const char *visible;               /* CUDA_VISIBLE_DEVICES; NULL: not set */
} card_driver;

typedef struct card_search {
  uint32_t index;
  const char *set; /* the only kernel set that will do; NULL: the first that fits */
  const char *module, *architectures;
  uint32_t toolkit; /* that built the module, as card_driver.version */
} card_search;

typedef struct card_found {
  card_facts facts;
  uint32_t set;      /* of card_sets */
  bool compiles_ptx; /* the driver makes the machine code when a kernel is first used */
  uint64_t free_bytes, all_bytes;
} card_found;

/* UNSUPPORTED: another card, module, driver or setting would do. DEVICE: the card failed while it was looked at. */
weft_status card_find(const card_driver *driver, const card_search *search, card_found *out, weft_error *error);

/* Where the driver keeps what it compiled, as the environment has it; NULL: not set. */
typedef struct card_cache {
  const char *disabled, *path; /* CUDA_CACHE_DISABLE, CUDA_CACHE_PATH */
} card_cache;
/* The line for a card whose code the driver compiles: that first answers are late, how often, and how to avoid it. */
void card_tell_compiles(const card_search *search, const card_found *found, const card_cache *cache, char *out,
                        size_t n);

/* What may be taken of a card's memory. Where it is the host's (GB10) a driver counts files that the system keeps in
 * memory as taken, though they make room for whoever wants it: then what the host says counts, if it is more. */
uint64_t card_free_bytes(bool one_memory, uint64_t driver_says, uint64_t host_says, uint64_t all_bytes);

#ifdef __cplusplus
}
#endif
#endif
