/* SPDX-License-Identifier: MIT */
#include "bench/sim/profile.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "bench/lab/lab.h"
#include "bench/sim/json_fields.h"

#define COPY_KIB_PER_US 50.0 /* of the order of a fast bus */

/* The layout of the 26B models; times are round numbers of the order of a large device. */
static weft_sim_model built_in(void) {
  weft_sim_model m = {.name = "26b",
                      .autoregressive = true,
                      .canvas = 256,
                      .share = 1,
                      .step_us = 2000,
                      .row_us = 32,
                      .key_us = 10,
                      .n_groups = 6};
  for (uint32_t g = 0; g < 6; g++) {
    m.group[g] = g == 5 ? (weft_layer_group){.block_tokens = 32, .n_layers = 5}
                        : (weft_layer_group){.block_tokens = 16, .window = 1024, .n_layers = 5};
  }
  return m;
}

static void read_groups(weft_json_fields *f, json_t *list, weft_sim_model *m) {
  if (list == NULL) return;
  if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > WEFT_GROUPS_MAX) {
    weft_json_complain(f, "\"groups\" must be a list of 1 to %d layer groups", WEFT_GROUPS_MAX);
    return;
  }
  m->n_groups = (uint32_t)json_array_size(list);
  for (uint32_t g = 0; g < m->n_groups; g++) {
    weft_json_fields row = {.where = f->where, .root = json_array_get(list, g)};
    m->group[g] =
        (weft_layer_group){.block_tokens = (uint32_t)weft_json_number(&row, "block_tokens", 1, 256, NAN),
                           .window = (uint32_t)weft_json_number(&row, "window", 0, WEFT_SIM_VOCAB, 0),
                           .n_layers = (uint32_t)weft_json_number(&row, "layers", 1, 1024, 1),
                           .from_border = weft_json_number(&row, "from_border", 0, 1, 0) != 0,
                           .state_pages = (uint32_t)weft_json_number(&row, "state_pages", 0, WEFT_STATE_PAGES_MAX, 0)};
    f->bad = f->bad || row.bad;
  }
}

static void read_model(weft_json_fields *f, weft_sim_model *m) {
  *m = built_in();
  (void)snprintf(m->name, sizeof m->name, "%s", weft_json_text(f, "name", m->name));
  m->autoregressive = weft_json_flag(f, "autoregressive", true);
  m->canvas = (uint32_t)weft_json_number(f, "canvas", 0, 4096, 0);
  m->share = weft_json_number(f, "share", 0, 1e6, 1);
  m->step_us = weft_json_number(f, "step_us", 0, 1e9, NAN);
  m->row_us = weft_json_number(f, "row_us", 0, 1e9, NAN);
  m->output_us = weft_json_number(f, "output_us", 0, 1e9, 0);
  m->key_us = weft_json_number(f, "key_us", 0, 1e9, 0);
  m->expert_us = weft_json_number(f, "expert_us", 0, 1e9, 0);
  m->n_experts = (uint32_t)weft_json_number(f, "experts", 0, 65536, 0);
  m->n_top = (uint32_t)weft_json_number(f, "experts_per_row", 0, 65536, 0);
  if (m->n_top > m->n_experts) {
    weft_json_complain(f, "%u experts per row of %u", m->n_top, m->n_experts);
  }
  if (!m->autoregressive && m->canvas == 0) {
    weft_json_complain(f, "model \"%s\" serves no kind of request", m->name);
  }
  read_groups(f, json_object_get(f->root, "groups"), m);
}

static int read_profile(const char *path, const char *text, size_t n, weft_sim_profile *out) {
  json_error_t why;
  json_t *root = json_loadb(text, n, 0, &why), *list = json_object_get(root, "models");
  weft_json_fields all = {.where = path, .root = root};
  if (!json_is_object(root) || !json_is_array(list) || json_array_size(list) == 0 ||
      json_array_size(list) > WEFT_SIM_MODELS) {
    json_decref(root);
    return weft_cli_fail(WEFT_EXIT_LOAD, "%s: a profile is an object with \"models\", 1 to %d", path, WEFT_SIM_MODELS);
  }
  out->page_kib = (uint32_t)weft_json_number(&all, "page_kib", 1, 1 << 20, out->page_kib);
  out->copy_us = weft_json_number(&all, "copy_us", 0, 1e9, out->page_kib / COPY_KIB_PER_US);
  out->n_models = (uint32_t)json_array_size(list);
  bool bad = all.bad;
  for (uint32_t i = 0; i < out->n_models; i++) {
    weft_json_fields f = {.where = path, .root = json_array_get(list, i)};
    read_model(&f, &out->model[i]);
    bad = bad || f.bad;
  }
  json_decref(root);
  return bad ? WEFT_EXIT_LOAD : 0;
}

static void replace_given(double *value, float given) {
  if (given >= 0.0f) *value = (double)given;
}

int weft_sim_profile_open(const weft_lab_config *config, weft_sim_profile *out) {
  int code = 0;
  *out = (weft_sim_profile){.page_kib = 640, .copy_us = 640 / COPY_KIB_PER_US, .n_models = 1, .model = {built_in()}};
  if (config->profile != NULL) {
    size_t n;
    char *text = weft_cli_read(config->profile, &n);
    if (text == NULL) return WEFT_EXIT_LOAD;
    code = read_profile(config->profile, text, n, out);
    weft_free(text);
  }
  for (uint32_t i = 0; i < out->n_models; i++) {
    replace_given(&out->model[i].step_us, config->step_us);
    replace_given(&out->model[i].row_us, config->row_us);
    replace_given(&out->model[i].key_us, config->key_us);
  }
  return code;
}

uint64_t weft_sim_keys(const weft_sim_model *model, uint32_t before, uint32_t n_rows) {
  uint64_t n = 0;
  for (uint32_t g = 0; g < model->n_groups; g++) {
    if (model->group[g].state_pages != 0) continue;
    n += before - weft_layer_group_first(&model->group[g], before) + n_rows;
  }
  return n;
}

double weft_sim_step_us(const weft_sim_model *m, const weft_sim_step *step) {
  double us = m->step_us + m->row_us * step->n_rows + m->output_us * step->n_outputs +
              m->key_us * (double)step->n_keys / 1000.0;
  if (m->n_experts == 0) return us;
  double missed = pow(1.0 - (double)m->n_top / m->n_experts, step->n_rows);
  return us + m->expert_us * m->n_experts * (1.0 - missed);
}

bool weft_sim_serves(const weft_sim_model *model, bool diffusion) {
  return diffusion ? model->canvas > 0 : model->autoregressive;
}

uint32_t weft_sim_model_for(const weft_sim_profile *profile, bool diffusion) {
  uint32_t i = 0;
  while (i < profile->n_models && !weft_sim_serves(&profile->model[i], diffusion)) i++;
  return i;
}
