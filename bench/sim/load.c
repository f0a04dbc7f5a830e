/* SPDX-License-Identifier: MIT */
/* The load of a simulation. */
#include <string.h>

#include "bench/lab/lab.h"
#include "bench/sim/sim.h"

uint32_t weft_sim_blocks_of(const weft_sim_load *load, uint32_t n_tokens) {
  return n_tokens / load->block + (n_tokens % load->block != 0);
}

void weft_sim_own_ids(const weft_sim_load *load, uint32_t at, uint32_t first, uint32_t n_ids, uint64_t *id) {
  for (uint32_t i = first; i < n_ids; i++) {
    id[i] = (UINT64_C(1) << 62) + (uint64_t)at * (WEFT_SIM_TOKENS / load->block) + i;
  }
}

static bool make_room(weft_sim_load *load, uint32_t n_ids) {
  weft_sim_item *items = weft_grow(load->item, load->n, &load->room, 256, sizeof *items);
  if (items == NULL) return false;
  load->item = items;
  if (load->n_ids + n_ids > load->ids_room) {
    uint64_t room = 2 * (load->n_ids + n_ids);
    uint64_t *grown = weft_realloc(load->id, room, sizeof *grown);
    if (grown == NULL) return false;
    load->id = grown;
    load->ids_room = room;
  }
  return true;
}

int weft_sim_load_add(weft_sim_load *load, const weft_sim_profile *profile, const weft_sim_item *item,
                      const uint64_t *id) {
  uint32_t n_ids = weft_sim_blocks_of(load, item->n_prompt);
  if (!make_room(load, n_ids)) {
    return weft_cli_fail(WEFT_EXIT_RUNTIME, "sim: no memory for request %u", load->n);
  }
  load->item[load->n] = *item;
  load->item[load->n].first_id = load->n_ids;
  memcpy(load->id + load->n_ids, id, n_ids * sizeof *id);
  load->n += 1;
  load->n_ids += n_ids;
  uint32_t canvas = item->diffusion ? profile->model[item->model].canvas : 0; /* whole canvases */
  if (item->n_prompt + item->n_answer + canvas > load->longest) {
    load->longest = item->n_prompt + item->n_answer + canvas;
  }
  if (item->tenant >= load->n_tenants) load->n_tenants = item->tenant + 1;
  return 0;
}

void weft_sim_load_close(weft_sim_load *load) {
  weft_free(load->item);
  weft_free(load->id);
  *load = (weft_sim_load){0};
}

void weft_sim_load_prompt(const weft_sim_load *load, const weft_sim_item *item, int32_t *tokens) {
  for (uint32_t i = 0; i < item->n_prompt; i++) {
    uint64_t id = load->id[item->first_id + i / load->block];
    uint64_t bits = weft_mix64(weft_mix64(id + 1) + i % load->block);
    tokens[i] = (int32_t)(bits % WEFT_SIM_VOCAB);
  }
}

/* What the tenants of a server's key file may do. */
static int read_tenants(const char *path, weft_sim_load *load) {
  weft_error error = {{0}};
  weft_keys *keys;
  weft_status status = weft_keys_open(&(weft_keys_source){.path = path}, &keys, &error);
  if (status != WEFT_OK) return weft_cli_fail(WEFT_EXIT_LOAD, "%s", error.text);
  const weft_tenant_options *options = weft_keys_options(keys);
  for (uint32_t i = 0; i < weft_keys_n_tenants(keys) && i < WEFT_SIM_TENANTS; i++) {
    load->tenant[i] = (weft_tenant_config){.weight = options[i].weight,
                                           .priority_class = options[i].priority_class,
                                           .running_max = options[i].running,
                                           .waiting_max = options[i].queued,
                                           .tokens_per_minute = options[i].tokens_per_minute,
                                           .blocks_max = options[i].blocks};
  }
  weft_keys_close(keys);
  return 0;
}

int weft_sim_load_open(const weft_lab_config *config, const weft_sim_profile *profile, weft_sim_load *out) {
  int code = config->product.api_keys == NULL ? 0 : read_tenants(config->product.api_keys, out);
  if (code != 0) return code;
  out->block = config->product.trace == NULL ? WEFT_SIM_BLOCK : config->trace_block;
  uint64_t *id = weft_alloc(WEFT_SIM_TOKENS / out->block, sizeof *id);
  if (id == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "sim: no memory for the ids of a prompt");
  code = config->product.trace == NULL ? weft_sim_draw(config, profile, out, id)
                                       : weft_sim_trace_read(config->product.trace, profile, out, id);
  weft_free(id);
  if (code == 0 && config->product.output != NULL) {
    code = weft_sim_trace_write(config->product.output, profile, out);
  }
  return code;
}
