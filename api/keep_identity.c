/* SPDX-License-Identifier: MIT */
/* What keys and values depend on, as lines: two servers whose lines are equal compute the same bits for the same
 * prefix, and lay them out alike. Who changes the bits of keys and values, or their place in a page, without a change
 * of what stands here, raises NUMERICS. */
#include "api/keep_identity.h"

#include <inttypes.h>
#include <string.h>

enum { NUMERICS = 1 };

/* Of cards of one kind the name, of several all of them in their order: layers are computed by different ones. */
static void put_cards(const weft_runtime *rt, const weft_device_info *first, weft_text *out) {
  bool mixed = false;
  for (uint32_t i = 1; i < rt->devices.n; i++)
    mixed = mixed || strcmp(weft_device_get_info(rt->devices.device[i])->name, first->name) != 0;
  weft_text_printf(out, "card %s", first->name);
  for (uint32_t i = 1; i < rt->devices.n && mixed; i++)
    weft_text_printf(out, ", %s", weft_device_get_info(rt->devices.device[i])->name);
  weft_text_puts(out, "\n");
}

static void put_devices(const weft_runtime *rt, weft_text *out) {
  const weft_device_info *info = weft_device_get_info(rt->devices.device[0]);
  weft_text_printf(out, "numerics %d\nbackend %s\ninstructions %s\nproducts of %u bits\nsums %s\n", NUMERICS,
                   info->backend, info->set == NULL ? info->isa : info->set, info->products,
                   rt->options.no_deterministic ? "as suits the step" : "in one order");
  if (!info->host_memory) put_cards(rt, info, out);
  weft_text_puts(out, "orders");
  for (int32_t id = 0; id < 64; id++) {
    const weft_type_info *type = weft_type_find(id);
    if (type == NULL) continue;
    weft_text_printf(out, " %d:%s", id,
                     weft_device_kernels(rt->devices.device[0])->numerics(rt->devices.device[0], (weft_type)id));
  }
  weft_text_puts(out, "\n");
}

static void put_model(const weft_served_model *m, weft_text *out) {
  const weft_model_info *info = weft_model_get_info(m->model);
  const weft_kv_layout *layout = &m->layout;
  weft_text_printf(out, "model %016" PRIx64 "%016" PRIx64 " page %" PRIu64 " parts", info->fingerprint_high,
                   info->fingerprint_low, layout->page_bytes);
  for (uint32_t p = 0; p < layout->n_parts; p++) weft_text_printf(out, " %" PRIu64, layout->part_bytes[p]);
  for (uint32_t g = 0; g < layout->n_groups; g++) {
    const weft_layer_group *group = &layout->group[g];
    weft_text_printf(out, " group %u,%u,%u,%u", group->block_tokens, group->window, group->n_layers,
                     group->state_pages);
  }
  for (uint32_t s = 0; s < layout->n_sets; s++) {
    const weft_kv_place *place = &layout->place[s];
    weft_text_printf(out, " set %u,%u,%" PRIu64 ",%" PRIu64 ",%d,%u,%u,%u,%u,%" PRIu64, place->group, place->part,
                     place->offset, place->bytes, (int)place->rows.type, place->rows.n_kv_heads, place->rows.head_dim,
                     place->rows.positions, place->state.n_units, place->state.unit_bytes);
  }
  weft_text_puts(out, "\n");
}

void keep_identity_print(const weft_runtime *rt, weft_text *out) {
  put_devices(rt, out);
  for (uint32_t i = 0; i < rt->n_models; i++) put_model(&rt->model[i], out);
}

/* The line at *at, without its end; moves *at behind it. False: there is none. */
static bool next_line(const char **at, const char **line, size_t *n) {
  const char *end = strchr(*at, '\n');
  if (**at == 0 || end == NULL) return false;
  *line = *at;
  *n = (size_t)(end - *at);
  *at = end + 1;
  return true;
}

static bool is_model(const char *line, size_t n) {
  return n > 6 && memcmp(line, "model ", 6) == 0;
}

static bool same_line(const char *a, size_t n_a, const char *b, size_t n_b) {
  return n_a == n_b && memcmp(a, b, n_a) == 0;
}

/* The number of the model among those of `own` whose line this is; UINT32_MAX: none. near: one whose file it is. */
static uint32_t find_model(const char *own, const char *line, size_t n, bool *near) {
  enum { UP_TO_FINGERPRINT = 6 + 32 };
  const char *mine;
  size_t n_mine;
  for (uint32_t i = 0; next_line(&own, &mine, &n_mine);) {
    if (!is_model(mine, n_mine)) continue;
    if (same_line(mine, n_mine, line, n)) return i;
    if (n > UP_TO_FINGERPRINT && n_mine > UP_TO_FINGERPRINT && memcmp(mine, line, UP_TO_FINGERPRINT) == 0) *near = true;
    i += 1;
  }
  return UINT32_MAX;
}

weft_status keep_identity_compare(const char *own, const char *kept, uint32_t *map, bool *otherwise,
                                  weft_error *error) {
  const char *mine, *line;
  size_t n_mine, n;
  uint32_t n_models = 0;
  const char *rest = own;
  weft_status status = WEFT_OK; /* of the first difference; another model goes before all */
  while (next_line(&kept, &line, &n)) {
    bool near = false;
    if (!is_model(line, n)) {
      if (!next_line(&rest, &mine, &n_mine)) n_mine = 0, mine = "";
      if (status != WEFT_OK || same_line(mine, n_mine, line, n)) continue;
      status =
          weft_fail(error, WEFT_E_UNSUPPORTED, "its prefixes were computed with '%.*s', and this server has '%.*s'",
                    n > 60 ? 60 : (int)n, line, n_mine > 60 ? 60 : (int)n_mine, mine);
      continue;
    }
    if (n_models == WEFT_MODELS_MAX) return weft_fail(error, WEFT_E_UNSUPPORTED, "it has too many models");
    uint32_t at = find_model(own, line, n, &near);
    if (at == UINT32_MAX && !near)
      return weft_fail(error, WEFT_E_UNSUPPORTED, "its prefixes are of a model that is not served now");
    if (at == UINT32_MAX && status == WEFT_OK)
      status = weft_fail(error, WEFT_E_UNSUPPORTED,
                         "its prefixes of a model that is served have another type or layout of keys and values");
    map[n_models++] = at;
  }
  for (; n_models < WEFT_MODELS_MAX; n_models++) map[n_models] = UINT32_MAX;
  *otherwise = status != WEFT_OK;
  return status;
}
