/* SPDX-License-Identifier: MIT */
/* What a file needs on a card or a processor for a number of users, computed from its header alone.
 *
 * Law: pages are those that the pager would take and the scheduler would leave free (pager.h, policy.h), so the pool
 * that is named holds the users that it is named for. A floor is what memory and products of the card need at least
 * (docs/performance.md); what is expected is what the kernel set of the card took of its own beside the floor where it
 * was measured, which was on an H200 for each set: for other cards that is a prediction and is called so. Nothing is
 * said of the rate of a processor: it was not measured here. */
#ifndef WEFT_API_CLI_PLAN_H
#define WEFT_API_CLI_PLAN_H

#include "base/status.h"
#include "kernels/card_sets.h"
#include "kernels/device.h"
#include "model/inspect.h"

/* A card, by its maker's figures or as the driver tells it. */
typedef struct plan_card {
  const char *name; /* for --card; NULL: of this machine */
  char title[96];
  uint64_t memory_bytes;
  double memory_rate, product_rate; /* bytes, and operations of 16 bits, a second; 0: not known */
  uint32_t capability;              /* 90 is compute capability 9.0; 0: a processor */
} plan_card;

typedef struct plan_need {
  uint32_t users, n_prompt, n_answer;
} plan_need;

typedef struct plan_rates {
  double decode;    /* tokens a second of all users */
  double prefill;   /* tokens a second */
  double canvas_ms; /* of a step with a canvas of every user; 0: none */
} plan_rates;

/* What takes memory besides weights and pool. */
typedef struct plan_reserve {
  uint64_t driver;  /* the context and the code of a card */
  uint64_t between; /* between weights, and steps beside them */
  uint64_t steps;   /* activations of steps */
  uint64_t slots;   /* of users, and the head's */
} plan_reserve;

typedef struct plan_result {
  uint64_t page_bytes, user_bytes; /* of a page; of keys and values of one user */
  uint64_t weight_bytes;           /* as they are kept there, which may be more than in the file */
  uint64_t room_bytes;             /* that weights and reserve leave */
  uint64_t pool_bytes, kv_mib;     /* for all users */
  uint64_t reserve_bytes;          /* of all of reserve; on a processor nothing is said of its parts */
  plan_reserve reserve;
  uint64_t rows_bytes;        /* of these, what the largest steps take beyond those beside streams */
  uint32_t rows, rows_beside; /* of a step (api/step_rows.h) */
  uint32_t streams;           /* users that fit at once in room_bytes */
  uint32_t set;               /* the kernel set of the card (card_sets.h); CARD_SETS: none, as of a processor */
  bool fits, has_kernels;
  double decode_floor, canvas_floor_ms; /* 0: not known; no canvases */
  plan_rates exact, fast;               /* with products of 16 and of 8 bits */
} plan_result;

/* All cards of the table; NULL after the last one. */
const plan_card *plan_card_at(uint32_t i);
/* The card that a device is, by what its driver tells of it. */
void plan_own_card(const weft_device_info *info, plan_card *out);
/* The kernel set that a card would get; CARD_SETS: none. */
uint32_t plan_set_of(const plan_card *card);
/* The card of a name; NULL with a line that names all. */
const plan_card *plan_find_card(const char *name, weft_error *error);
/* Errors: INVALID (prompt and answer are longer than the model's context), NO_MEMORY. */
weft_status plan_compute(const weft_file_facts *file, const plan_card *card, const plan_need *need, plan_result *out,
                         weft_error *error);

#endif
