/* SPDX-License-Identifier: MIT */
/* Traces: one JSON object per line and request, in order of time; the fields of Mooncake's traces
 * and a few more (docs/sim.md). */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/inside.h"
#include "bench/sim/json_fields.h"
#include "bench/sim/sim.h"

/* The ids of the prompt's blocks; those of a line without hash_ids are its own. */
static void read_ids(weft_json_fields *f, const weft_sim_load *load, uint32_t n_ids, uint64_t *id) {
  json_t *list = json_object_get(f->root, "hash_ids");
  if (list == NULL) {
    weft_sim_own_ids(load, f->line, 0, n_ids, id);
    return;
  }
  if (!json_is_array(list) || json_array_size(list) < n_ids) {
    weft_json_complain(f, "\"hash_ids\" must be a list of %u ids, one for each %u tokens", n_ids, load->block);
    return;
  }
  for (uint32_t i = 0; i < n_ids; i++) {
    const json_t *value = json_array_get(list, i);
    if (json_is_integer(value) && json_integer_value(value) >= 0) {
      id[i] = (uint64_t)json_integer_value(value);
      continue;
    }
    weft_json_complain(f, "\"hash_ids\": number %u is no whole number from 0", i);
    return;
  }
}

/* By name; left out, the first that serves the kind. */
static uint32_t read_model(weft_json_fields *f, const weft_sim_profile *profile, bool diffusion) {
  const char *name = weft_json_text(f, "model", NULL);
  uint32_t at = weft_sim_model_for(profile, diffusion);
  if (name != NULL) {
    for (at = 0; at < profile->n_models; at++) {
      if (strcmp(profile->model[at].name, name) == 0) break;
    }
  }
  if (at < profile->n_models && weft_sim_serves(&profile->model[at], diffusion)) return at;
  weft_json_complain(f, "no model%s%s of the profile serves \"%s\"", name == NULL ? "" : " named ",
                     name == NULL ? "" : name, diffusion ? "diffusion" : "ar");
  return 0;
}

static void read_line(weft_json_fields *f, const weft_sim_profile *profile, const weft_sim_load *load,
                      weft_sim_item *item, uint64_t *id) {
  const char *kind = weft_json_text(f, "kind", "ar");
  item->diffusion = strcmp(kind, "diffusion") == 0;
  if (!item->diffusion && strcmp(kind, "ar") != 0) {
    weft_json_complain(f, "\"kind\" must be \"ar\" or \"diffusion\"");
  }
  item->at_us = (uint64_t)(1000.0 * weft_json_number(f, "timestamp", 0, 1e12, NAN));
  item->n_prompt = (uint32_t)weft_json_number(f, "input_length", 1, WEFT_SIM_TOKENS, NAN);
  item->n_answer = (uint32_t)weft_json_number(f, "output_length", 1, WEFT_SIM_TOKENS, NAN);
  item->tenant = (uint32_t)weft_json_number(f, "tenant", 0, WEFT_SIM_TENANTS - 1, 0);
  item->priority = (int32_t)weft_json_number(f, "priority", -100, 100, 0);
  item->cancel_us = (uint64_t)(1000.0 * weft_json_number(f, "cancel_after", 0, 1e9, 0));
  item->deadline_us = (uint64_t)(1000.0 * weft_json_number(f, "deadline", 0, 1e9, 0));
  item->model = read_model(f, profile, item->diffusion);
  if (!f->bad) read_ids(f, load, weft_sim_blocks_of(load, item->n_prompt), id);
}

static int take_line(const char *path, uint32_t number, const char *text, size_t n, const weft_sim_profile *profile,
                     weft_sim_load *load, uint64_t *id) {
  json_error_t why;
  json_t *root = json_loadb(text, n, 0, &why);
  weft_json_fields f = {.where = path, .line = number, .root = root};
  weft_sim_item item = {0};
  if (!json_is_object(root)) {
    weft_json_complain(&f, "a line must be one JSON object");
  } else {
    read_line(&f, profile, load, &item, id);
  }
  if (load->n > 0 && item.at_us < load->item[load->n - 1].at_us) {
    weft_json_complain(&f, "the timestamp is before that of the line above");
  }
  json_decref(root);
  return f.bad ? WEFT_EXIT_LOAD : weft_sim_load_add(load, profile, &item, id);
}

int weft_sim_trace_read(const char *path, const weft_sim_profile *profile, weft_sim_load *load, uint64_t *id) {
  size_t n;
  char *text = weft_cli_read(path, &n);
  if (text == NULL) return WEFT_EXIT_LOAD;
  int code = 0;
  uint32_t number = 0;
  for (size_t at = 0; at < n && code == 0;) {
    const char *end = memchr(text + at, '\n', n - at);
    size_t length = end == NULL ? n - at : (size_t)(end - text) - at;
    number += 1;
    if (strspn(text + at, " \t\r") < length) {
      code = take_line(path, number, text + at, length, profile, load, id);
    }
    at += length + 1;
  }
  weft_free(text);
  if (code == 0 && load->n == 0) code = weft_cli_fail(WEFT_EXIT_LOAD, "%s holds no request", path);
  return code;
}

/* ---- writing --------------------------------------------------------------------------------- */

static bool write_line(FILE *file, const weft_sim_profile *profile, const weft_sim_load *load,
                       const weft_sim_item *item) {
  json_t *root = json_object(), *ids = json_array();
  for (uint32_t i = 0; i < weft_sim_blocks_of(load, item->n_prompt); i++) {
    (void)json_array_append_new(ids, json_integer((json_int_t)load->id[item->first_id + i]));
  }
  (void)json_object_set_new(root, "timestamp", json_real((double)item->at_us / 1000.0));
  (void)json_object_set_new(root, "input_length", json_integer(item->n_prompt));
  (void)json_object_set_new(root, "output_length", json_integer(item->n_answer));
  (void)json_object_set_new(root, "tenant", json_integer(item->tenant));
  (void)json_object_set_new(root, "kind", json_string(item->diffusion ? "diffusion" : "ar"));
  (void)json_object_set_new(root, "model", json_string(profile->model[item->model].name));
  if (item->priority != 0) {
    (void)json_object_set_new(root, "priority", json_integer(item->priority));
  }
  if (item->cancel_us > 0) {
    (void)json_object_set_new(root, "cancel_after", json_real((double)item->cancel_us / 1000.0));
  }
  if (item->deadline_us > 0) {
    (void)json_object_set_new(root, "deadline", json_real((double)item->deadline_us / 1000.0));
  }
  (void)json_object_set_new(root, "hash_ids", ids);
  char *text = json_dumps(root, JSON_COMPACT);
  json_decref(root);
  bool ok = text != NULL && fprintf(file, "%s\n", text) > 0;
  free(text); /* of jansson */
  return ok;
}

int weft_sim_trace_write(const char *path, const weft_sim_profile *profile, const weft_sim_load *load) {
  FILE *file = fopen(path, "w");
  if (file == NULL) return weft_cli_fail(WEFT_EXIT_USAGE, "-o %s: %s", path, strerror(errno));
  bool ok = true;
  for (uint32_t i = 0; ok && i < load->n; i++) {
    ok = write_line(file, profile, load, &load->item[i]);
  }
  ok = fclose(file) == 0 && ok;
  return ok ? 0 : weft_cli_fail(WEFT_EXIT_RUNTIME, "-o %s: the trace could not be written", path);
}
