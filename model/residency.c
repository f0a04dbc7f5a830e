/* SPDX-License-Identifier: MIT */
#include "model/residency.h"

#include "kernels/host_experts.h"
#include "model/model_internal.h"

static void add_weight(weft_model_residency *r, const model_part *part, const weft_weight *weight, uint32_t layer) {
  if (weight->data == NULL) return;
  r->n += 1;
  r->n_bytes += weight->n_bytes;
  if (!weft_device_weight_is_away(part->device, weight)) return;
  if (r->n_away++ == 0) r->first_away = layer;
  r->n_bytes_away += weight->n_bytes;
}

weft_model_residency weft_model_get_residency(const weft_model *model, uint32_t part) {
  weft_model_residency r = {0};
  for (uint32_t l = 0; l < model->hyper.n_layers; l++) {
    const model_layer *layer = &model->layers[l];
    const weft_weight *const weights[] = {&layer->gate_up_exps, &layer->gate_exps, &layer->up_exps, &layer->down_exps};
    if (model_part_of(model, l) != part) continue;
    for (uint32_t i = 0; i < 4; i++) add_weight(&r, &model->part[part], weights[i], l);
  }
  return r;
}

void weft_model_print_residency(const weft_model *model, weft_text *out) {
  const double mib = 1024.0 * 1024.0;
  for (uint32_t p = 0; p < model->n_parts; p++) {
    weft_model_residency r = weft_model_get_residency(model, p);
    if (r.n_away == 0) continue;
    weft_text_printf(
        out,
        "  experts  device %u: order of residency: all other weights, then experts layer by layer; %u of %u "
        "stacks lie on it, those from layer %u on in host memory (%.1f of %.1f MiB)\n",
        weft_device_get_info(model->part[p].device)->index, r.n - r.n_away, r.n, r.first_away,
        (double)r.n_bytes_away / mib, (double)r.n_bytes / mib);
  }
}
