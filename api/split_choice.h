/* SPDX-License-Identifier: MIT */
/* What --split auto makes of several cards: layers on each, each layer on all, or parts of several cards.
 *
 * Law: split_choose is a function of its arguments alone. For each way that the model and the cards allow it counts
 * how long it takes until each of the requests that are asked for at once is one step further, and takes the
 * shortest; of ways within a twentieth of that the one with the fewest shards, which exchanges least. All ways give
 * the same answers. Replicas are counted and told, but not chosen: they change what --running, --kv-mib and a
 * tenant's limits mean. Times are expected ones (step_times.h); what exchanges and cuts take was measured on two
 * H200s (docs/several-cards.md). */
#ifndef WEFT_API_SPLIT_CHOICE_H
#define WEFT_API_SPLIT_CHOICE_H

#include "api/step_times.h"

/* n equal cards. */
typedef struct split_machine {
  uint32_t n, set;                  /* set: CARD_SETS: not a card */
  double memory_rate, product_rate; /* of each; 0: not known */
  uint64_t memory_bytes;            /* of each, for weights and pages; 0: not known */
  bool direct;                      /* all reach each other's memory */
  uint32_t shards;                  /* bit N - 1: the model can lie in N shards */
} split_machine;

typedef struct split_load {
  uint32_t n_running, n_tokens; /* requests at once, each over so many keys */
} split_load;

typedef struct split_way {
  uint32_t n_shards, n_parts, n_replicas; /* their product is the number of cards */
  double round_ms, alone_ms;              /* until all requests, or the only one, are one step further */
} split_way;

enum { SPLIT_WAYS_MAX = 8 };

typedef struct split_choice {
  split_way way[SPLIT_WAYS_MAX]; /* that are possible, replicas last */
  uint32_t n_ways, chosen;
} split_choice;

/* Seconds that one card of the machine is expected to take for a step of all layers: of a canvas, or of eight
 * sequences where the model has none. 0: it is not known. */
double split_card_step(const weft_file_facts *file, const split_machine *card);
/* Bytes a second one way between two cards: measured where both have memory as fast as cards with NVLink, else PCIe. */
double split_link_rate(const split_machine *machine);
/* False: nothing is known of the cards, so nothing is counted. */
bool split_choose(const weft_file_facts *file, const split_machine *machine, const split_load *load, split_choice *out);
/* One clause: what was chosen, and the times that were counted. */
void split_tell(const split_choice *choice, const split_machine *machine, const split_load *load, char *out, size_t n);

#endif
