/* SPDX-License-Identifier: MIT */
/* The load of a simulation: read from a trace, or drawn. */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "api/cli/cli.h"
#include "api/cli/sim.h"
#include "base/memory.h"
#include "base/random.h"

enum { TOKENS_MAX = 1 << 22, BLOCKS_MAX = TOKENS_MAX / WEFT_SIM_BLOCK };

static uint32_t blocks_of(uint32_t n_tokens) {
  return n_tokens / WEFT_SIM_BLOCK + (n_tokens % WEFT_SIM_BLOCK != 0);
}

bool weft_sim_load_add(weft_sim_load *load, const weft_sim_item *item, const uint64_t *id,
                       uint32_t n_ids) {
  if (load->n == load->room) {
    uint32_t room = load->room == 0 ? 256 : 2 * load->room;
    weft_sim_item *grown = weft_realloc(load->item, room, sizeof *grown);
    if (grown == NULL) return false;
    load->item = grown;
    load->room = room;
  }
  if (load->n_ids + n_ids > load->ids_room) {
    uint64_t room = 2 * (load->n_ids + n_ids);
    uint64_t *grown = weft_realloc(load->id, room, sizeof *grown);
    if (grown == NULL) return false;
    load->id = grown;
    load->ids_room = room;
  }
  load->item[load->n] = *item;
  load->item[load->n].first_id = load->n_ids;
  memcpy(load->id + load->n_ids, id, n_ids * sizeof *id);
  load->n += 1;
  load->n_ids += n_ids;
  uint32_t canvas = item->diffusion ? WEFT_SIM_CANVAS : 0; /* an answer is whole canvases */
  if (item->n_prompt + item->n_answer + canvas > load->longest) {
    load->longest = item->n_prompt + item->n_answer + canvas;
  }
  if (item->tenant >= load->n_tenants) load->n_tenants = item->tenant + 1;
  load->diffusion = load->diffusion || item->diffusion;
  return true;
}

void weft_sim_load_close(weft_sim_load *load) {
  weft_free(load->item);
  weft_free(load->id);
  *load = (weft_sim_load){0};
}

void weft_sim_load_prompt(const weft_sim_load *load, const weft_sim_item *item, int32_t *tokens) {
  for (uint32_t i = 0; i < item->n_prompt; i++) {
    uint64_t id = load->id[item->first_id + i / WEFT_SIM_BLOCK];
    uint64_t bits = weft_mix64(weft_mix64(id + 1) + i % WEFT_SIM_BLOCK);
    tokens[i] = (int32_t)(bits % WEFT_SIM_VOCAB);
  }
}

/* ---- a trace --------------------------------------------------------------------------------- */

typedef struct trace_line {
  const char *path;
  uint32_t number;
  json_t *root;
  bool bad;
} trace_line;

static double number_of(trace_line *line, const char *name, double low, double high, double other) {
  json_t *value = json_object_get(line->root, name);
  if (value == NULL && !isnan(other)) return other;
  double x = json_is_number(value) ? json_number_value(value) : NAN;
  if (x >= low && x <= high) return x;
  if (!line->bad) {
    (void)weft_cli_fail(0, "%s:%u: \"%s\" must be a number from %g to %g", line->path, line->number,
                        name, low, high);
  }
  line->bad = true;
  return low;
}

/* The ids of the prompt's blocks; those of a line without hash_ids are its own. */
static void read_ids(trace_line *line, uint32_t n_ids, uint64_t *id) {
  json_t *list = json_object_get(line->root, "hash_ids");
  if (list == NULL) {
    for (uint32_t i = 0; i < n_ids; i++) {
      id[i] = UINT64_MAX / 2 + (uint64_t)line->number * BLOCKS_MAX + i;
    }
    return;
  }
  if (!json_is_array(list) || json_array_size(list) < n_ids) {
    (void)weft_cli_fail(0, "%s:%u: \"hash_ids\" must be a list of %u ids, one for each %d tokens",
                        line->path, line->number, n_ids, WEFT_SIM_BLOCK);
    line->bad = true;
    return;
  }
  for (uint32_t i = 0; i < n_ids; i++) {
    json_t *value = json_array_get(list, i);
    if (json_is_integer(value) && json_integer_value(value) >= 0) {
      id[i] = (uint64_t)json_integer_value(value);
      continue;
    }
    (void)weft_cli_fail(0, "%s:%u: \"hash_ids\": number %u is no whole number from 0", line->path,
                        line->number, i);
    line->bad = true;
    return;
  }
}

static int read_line(weft_sim_load *load, trace_line *line, uint64_t *id) {
  const json_t *kind = json_object_get(line->root, "kind");
  const char *word = kind == NULL ? "ar" : json_string_value(kind);
  bool diffusion = word != NULL && strcmp(word, "diffusion") == 0;
  if (word == NULL || (!diffusion && strcmp(word, "ar") != 0)) {
    return weft_cli_fail(WEFT_EXIT_LOAD, "%s:%u: \"kind\" must be \"ar\" or \"diffusion\"",
                         line->path, line->number);
  }
  weft_sim_item item = {.diffusion = diffusion};
  item.at_us = (uint64_t)(1000.0 * number_of(line, "timestamp", 0, 1e12, NAN));
  item.n_prompt = (uint32_t)number_of(line, "input_length", 1, TOKENS_MAX, NAN);
  item.n_answer = (uint32_t)number_of(line, "output_length", 1, TOKENS_MAX, NAN);
  item.tenant = (uint32_t)number_of(line, "tenant", 0, WEFT_SIM_TENANTS - 1, 0);
  if (!line->bad) read_ids(line, blocks_of(item.n_prompt), id);
  if (line->bad) return WEFT_EXIT_LOAD;
  if (load->n > 0 && item.at_us < load->item[load->n - 1].at_us) {
    return weft_cli_fail(WEFT_EXIT_LOAD, "%s:%u: the timestamp is before that of the line above",
                         line->path, line->number);
  }
  if (!weft_sim_load_add(load, &item, id, blocks_of(item.n_prompt))) {
    return weft_cli_fail(WEFT_EXIT_RUNTIME, "sim: no memory for line %u of the trace",
                         line->number);
  }
  return 0;
}

static int read_trace(const char *path, const char *text, size_t n, weft_sim_load *load,
                      uint64_t *id) {
  trace_line line = {.path = path};
  for (size_t at = 0; at < n;) {
    const char *end = memchr(text + at, '\n', n - at);
    size_t length = end == NULL ? n - at : (size_t)(end - text) - at;
    line.number += 1;
    if (strspn(text + at, " \t\r") < length) {
      json_error_t why;
      line.root = json_loadb(text + at, length, 0, &why);
      if (!json_is_object(line.root)) {
        json_decref(line.root);
        return weft_cli_fail(WEFT_EXIT_LOAD, "%s:%u: a line must be one JSON object", path,
                             line.number);
      }
      int code = read_line(load, &line, id);
      json_decref(line.root);
      if (code != 0) return code;
    }
    at += length + 1;
  }
  return load->n > 0 ? 0 : weft_cli_fail(WEFT_EXIT_LOAD, "%s holds no request", path);
}

/* ---- the generator --------------------------------------------------------------------------- */

enum { GAP, NORMAL_1, NORMAL_2, ANSWER, KIND, TENANT, SHARES, PREFIX, LONG };

/* Uniform in (0, 1). */
static double draw(const weft_config *config, uint32_t item, uint32_t what) {
  weft_draw_key key = {
      .seed = config->seed, .purpose = WEFT_DRAW_TEST, .position = item, .step = what};
  return ((double)(weft_draw_bits(&key) >> 11) + 0.5) * 0x1p-53;
}

static uint32_t tokens_of(double n, uint32_t most) {
  return n < 1.0 ? 1 : n > most ? most : (uint32_t)n;
}

static uint32_t draw_tenant(const weft_config *c, uint32_t at) {
  double u = draw(c, at, TENANT);
  if (c->tenants == 1 || u < c->skew) return 0;
  if (c->skew <= 0.0f) return (uint32_t)(u * c->tenants);
  return 1 + (uint32_t)((u - c->skew) / (1.0 - c->skew) * (c->tenants - 1));
}

static uint32_t draw_ids(const weft_config *c, uint32_t at, uint32_t n_shared, uint32_t n_ids,
                         uint64_t *id) {
  uint64_t prefix = (uint64_t)(draw(c, at, PREFIX) * c->prefixes);
  for (uint32_t i = 0; i < n_ids; i++) {
    id[i] = i < n_shared ? prefix * BLOCKS_MAX + i : UINT64_MAX / 2 + (uint64_t)at * BLOCKS_MAX + i;
  }
  return n_ids;
}

static int generate(const weft_config *c, weft_sim_load *load, uint64_t *id) {
  double at_us = 0.0;
  for (uint32_t i = 0; i < c->requests; i++) {
    if (i % c->burst == 0) at_us -= 1e6 * c->burst / c->rate * log(draw(c, i, GAP));
    double normal =
        sqrt(-2.0 * log(draw(c, i, NORMAL_1))) * cos(6.283185307179586 * draw(c, i, NORMAL_2));
    weft_sim_item item = {.at_us = (uint64_t)at_us, .tenant = draw_tenant(c, i)};
    item.n_prompt = tokens_of(c->prompt_tokens * exp(normal), c->longest_tokens);
    item.n_answer = tokens_of(-(double)c->answer_tokens * log(draw(c, i, ANSWER)), TOKENS_MAX / 4);
    item.diffusion = draw(c, i, KIND) < c->diffusion;
    if (draw(c, i, LONG) < c->long_share) item.n_prompt = c->longest_tokens;
    uint32_t n_shared = 0;
    if (draw(c, i, SHARES) < c->shared) {
      n_shared = blocks_of(c->shared_tokens);
      item.n_prompt += n_shared * WEFT_SIM_BLOCK;
    }
    uint32_t n_ids = draw_ids(c, i, n_shared, blocks_of(item.n_prompt), id);
    if (!weft_sim_load_add(load, &item, id, n_ids)) {
      return weft_cli_fail(WEFT_EXIT_RUNTIME, "sim: no memory for %u requests", c->requests);
    }
  }
  return 0;
}

int weft_sim_load_open(const weft_config *config, weft_sim_load *out) {
  uint64_t *id = weft_alloc(BLOCKS_MAX, sizeof *id);
  if (id == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "sim: no memory for the ids of a prompt");
  int code = WEFT_EXIT_LOAD;
  if (config->trace == NULL) {
    code = generate(config, out, id);
  } else {
    size_t n;
    char *text = weft_cli_read(config->trace, &n);
    if (text != NULL) code = read_trace(config->trace, text, n, out, id);
    weft_free(text);
  }
  weft_free(id);
  return code;
}
