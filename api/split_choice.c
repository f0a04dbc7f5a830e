/* SPDX-License-Identifier: MIT */
#include "api/split_choice.h"

#include <stdio.h>

/* ---- what was measured, on two H200s with a model of 26B (docs/several-cards.md) ---- */

/* Of the part of a step that is not the same on every card, what each shard of one-row work does: heads, experts and
 * the head's tokens are shared out, `o`, norms and the router are not, and experts lie unevenly. Rows of canvases
 * are shared out, too. */
static const double whole_of_decode = 0.36;
/* How much longer than their share of it the parts of a step take: layers do not divide, and a card waits for
 * another. */
static const double cut_times = 1.1;
/* An exchange of one row, and the rates at which many rows cross: NVLink, then PCIe. */
static const double exchange_us = 4, nvlink_rate = 270e9, pcie_rate = 20e9, nvlink_memory_rate = 1.5e12;
/* Numbers of a row that cross in a layer, in hidden sizes: heads, and three times the row. */
static const double crossing_rows = 4.5;

double split_link_rate(const split_machine *machine) {
  return machine->memory_rate >= nvlink_memory_rate ? nvlink_rate : pcie_rate;
}

typedef struct counting {
  const weft_file_facts *file;
  const split_machine *machine;
  const step_times *times;
  double request_bytes; /* keys and values of each */
} counting;

static double layer_us(const counting *c) {
  return c->file->canvas_length > 0 ? c->times->canvas_layer_us : c->times->decode_layer_us;
}

static double count_rows(const counting *c, double n) {
  return c->file->canvas_length > 0 ? n * c->file->canvas_length : n;
}

/* Seconds of one card's step with n requests: what each layer takes however few its rows are, and the rest. */
static double count_overhead(const counting *c) {
  return 1e-6 * layer_us(c) * step_layers(c->file);
}

static double count_work(const counting *c, double n) {
  bool canvas = c->file->canvas_length > 0;
  const split_machine *m = c->machine;
  double floor = step_floor(c->file, m->memory_rate, m->product_rate, count_rows(c, n), n * c->request_bytes, canvas);
  return floor * (canvas ? c->times->canvas_times : c->times->decode_times);
}

double split_card_step(const weft_file_facts *file, const split_machine *card) {
  if (card->set >= CARD_SETS || !(card->memory_rate > 0) || !(card->product_rate > 0)) return 0;
  const counting c = {.file = file, .machine = card, .times = step_times_of(card->set)};
  return count_overhead(&c) + count_work(&c, file->canvas_length > 0 ? 1 : 8);
}

/* What shards of one layer exchange, in all layers. */
static double count_exchanges(const counting *c, double n, uint32_t n_shards) {
  bool canvas = c->file->canvas_length > 0, routes = c->file->n_experts > 0;
  double n_meetings = routes ? (canvas ? 4 : 2) : (canvas ? 5 : 3);
  double bytes = count_rows(c, n) * crossing_rows * c->file->n_hidden * sizeof(float) * (n_shards - 1) / n_shards;
  if (n_shards == 1) return 0;
  return c->file->n_layers * (1e-6 * exchange_us * n_meetings + bytes / split_link_rate(c->machine));
}

/* A step of n requests on all parts, one after another. */
static double count_step(const counting *c, double n, const split_way *way) {
  double whole = c->file->canvas_length > 0 ? 0 : whole_of_decode;
  double share = whole + (1 - whole) / way->n_shards, rate = split_link_rate(c->machine);
  double shared = way->n_shards == 1 ? count_work(c, n) : count_work(c, n) * share;
  double cuts = (way->n_parts - 1) * (1e-6 * exchange_us + count_rows(c, n) * c->file->n_hidden * sizeof(float) / rate);
  double all = count_overhead(c) + shared + count_exchanges(c, n, way->n_shards);
  return (way->n_parts > 1 ? cut_times : 1.0) * all + cuts;
}

/* Requests go in as many groups as there are parts, each in another one; replicas have theirs. */
static double count_round(const counting *c, uint32_t n, const split_way *way) {
  uint32_t own = (n + way->n_replicas - 1) / way->n_replicas;
  uint32_t n_groups = own < way->n_parts ? own : way->n_parts;
  return count_step(c, (own + n_groups - 1) / n_groups, way);
}

/* Whether each card has room for its part of the weights, and as much again as an eighth of its memory. */
static bool has_room(const counting *c, const split_way *way) {
  const uint64_t most = c->machine->memory_bytes, all = c->file->weight_bytes - c->file->table_bytes,
                 own = all / (way->n_shards * way->n_parts);
  return most == 0 || own + own / 16 <= most / 8 * 7;
}

static void try_way(const counting *c, const split_load *load, uint32_t n_shards, uint32_t n_replicas,
                    split_choice *out) {
  split_way way = {.n_shards = n_shards, .n_parts = c->machine->n / n_shards / n_replicas, .n_replicas = n_replicas};
  if (out->n_ways == SPLIT_WAYS_MAX || way.n_parts > c->file->n_layers) return;
  if ((n_shards > 1 || n_replicas > 1) && !has_room(c, &way))
    return; /* experts may stay in host memory by layer alone */
  way.round_ms = 1e3 * count_round(c, load->n_running, &way);
  way.alone_ms = 1e3 * count_round(c, 1, &way);
  out->way[out->n_ways++] = way;
}

bool split_choose(const weft_file_facts *file, const split_machine *machine, const split_load *load,
                  split_choice *out) {
  *out = (split_choice){.n_ways = 0};
  bool known = machine->n > 1 && machine->set < CARD_SETS && machine->memory_rate > 0 && machine->product_rate > 0;
  if (!known || load->n_running == 0 || file->n_layers == 0) return false;
  const counting c = {
      .file = file,
      .machine = machine,
      .times = step_times_of(machine->set),
      .request_bytes = (double)load->n_tokens * (double)weft_kv_bytes_per_token(&file->geometry, false)};
  for (uint32_t n = 1; n <= machine->n; n++) {
    bool can = n == 1 || (machine->direct && (machine->shards >> (n - 1) & 1u) != 0);
    if (machine->n % n == 0 && can) try_way(&c, load, n, 1, out);
  }
  double least = 0;
  for (uint32_t i = 0; i < out->n_ways; i++)
    if (i == 0 || out->way[i].round_ms < least) least = out->way[i].round_ms;
  while (out->chosen + 1 < out->n_ways && out->way[out->chosen].round_ms > 1.05 * least) out->chosen++;
  bool any = out->n_ways > 0;
  try_way(&c, load, 1, machine->n, out);
  return any;
}

static void name_way(const split_way *way, char *out, size_t n) {
  if (way->n_replicas > 1)
    (void)snprintf(out, n, "replicas");
  else if (way->n_shards == 1)
    (void)snprintf(out, n, "layer");
  else if (way->n_parts == 1)
    (void)snprintf(out, n, "tensor");
  else
    (void)snprintf(out, n, "tensor:%u,layer:%u", way->n_shards, way->n_parts);
}

void split_tell(const split_choice *choice, const split_machine *machine, const split_load *load, char *out, size_t n) {
  char name[40];
  name_way(&choice->way[choice->chosen], name, sizeof name);
  int at =
      snprintf(out, n, "%s, because --split auto: a step of all of %u requests, and of one alone, is expected to take ",
               name, load->n_running);
  for (uint32_t i = 0; i < choice->n_ways && at > 0 && (size_t)at < n; i++) {
    name_way(&choice->way[i], name, sizeof name);
    at += snprintf(out + at, n - (size_t)at, "%sby %s %.1f and %.1f ms", i == 0 ? "" : ", ", name,
                   choice->way[i].round_ms, choice->way[i].alone_ms);
  }
  if (at > 0 && (size_t)at < n)
    (void)snprintf(out + at, n - (size_t)at, " (from the cards' clocks and %.0f GB/s between them%s)",
                   1e-9 * split_link_rate(machine), machine->direct ? "" : "; they do not reach each other's memory");
}
