/* SPDX-License-Identifier: MIT */
/* Law: every page size that some class fills exactly is tried; for each, every class takes its best
 * cut on its own; the best page size wins. Costs are integers and doubles of a few thousand tries:
 * exact, and the same everywhere. */
#include "model/kv_layout.h"

#include <inttypes.h>
#include <string.h>

#include "base/check.h"

enum { CLASSES_MAX = 16, PAGE_BYTES_MAX = 16 << 20, GRAIN = 32 };

/* Layers of one model with equal geometry and retention. */
typedef struct layer_class {
  uint32_t n_layers, n_kv_heads, head_dim, window;
  uint64_t token_bytes; /* K and V of one position of one layer */
} layer_class;

typedef struct model_classes {
  layer_class class[CLASSES_MAX];
  uint32_t n;
} model_classes;

/* How one class is cut for a page size. */
typedef struct cut {
  uint32_t layers_per_group, block_tokens, n_groups;
  double waste; /* layers times unused share */
} cut;

/* One candidate: what the page size costs over all models. */
typedef struct choice {
  uint64_t page_bytes;
  double waste; /* mean unused share of the layers' pages, summed over the models */
  uint32_t n_groups, block_tokens_least, block_tokens_most;
  bool possible;
} choice;

static uint64_t token_bytes(const weft_kv_geometry *geometry, uint32_t layer) {
  uint64_t n = (uint64_t)geometry->n_kv_heads[layer] * geometry->head_dim[layer];
  return 2 * weft_type_row_bytes(geometry->type, n);
}

static weft_status find_classes(const weft_kv_geometry *geometry, model_classes *out, weft_error *error) {
  out->n = 0;
  for (uint32_t l = 0; l < geometry->n_layers; l++) {
    if (geometry->keys_of[l] != 0) {
      if (geometry->keys_of[l] <= l && geometry->keys_of[geometry->keys_of[l] - 1] == 0) continue;
      return weft_fail(error, WEFT_E_INVALID, "KV layout: layer %" PRIu32 " reads keys that no earlier layer has", l);
    }
    layer_class wanted = {1, geometry->n_kv_heads[l], geometry->head_dim[l], geometry->window[l],
                          token_bytes(geometry, l)};
    if (wanted.token_bytes == 0) {
      return weft_fail(error, WEFT_E_UNSUPPORTED, "KV layout: layer %" PRIu32 " keeps no bytes per token", l);
    }
    uint32_t i = 0;
    while (i < out->n && (out->class[i].n_kv_heads != wanted.n_kv_heads || out->class[i].head_dim != wanted.head_dim ||
                          out->class[i].window != wanted.window)) {
      i++;
    }
    if (i < out->n) {
      out->class[i].n_layers++;
    } else if (out->n == CLASSES_MAX) {
      return weft_fail(error, WEFT_E_UNSUPPORTED, "KV layout: more than %d kinds of layers", CLASSES_MAX);
    } else {
      out->class[out->n++] = wanted;
    }
  }
  return WEFT_OK;
}

/* Layers times the unused share of their page: the last group may have fewer layers than a page
 * holds. */
static double cut_waste(const layer_class *class, uint32_t layers_per_group, uint32_t block_tokens, uint64_t page) {
  double waste = 0;
  for (uint32_t left = class->n_layers; left > 0;) {
    uint32_t n = left < layers_per_group ? left : layers_per_group;
    double used = (double)n * block_tokens * (double)class->token_bytes;
    waste += n * (1.0 - used / (double)page);
    left -= n;
  }
  return waste;
}

static uint32_t grain_distance(uint32_t block_tokens) {
  uint32_t distance = 0;
  for (uint32_t b = block_tokens; b < GRAIN; b *= 2) distance++;
  for (uint32_t b = GRAIN; b < block_tokens; b *= 2) distance++;
  return distance;
}

static bool is_better_cut(const cut *a, const cut *b) {
  if (b->n_groups == 0) return true;
  if (a->waste < b->waste - 1e-9) return true;
  if (a->waste > b->waste + 1e-9) return false;
  uint32_t da = grain_distance(a->block_tokens), db = grain_distance(b->block_tokens);
  return a->n_groups != b->n_groups ? a->n_groups < b->n_groups : da < db;
}

/* False when not even one layer of one smallest block fits a page. */
static bool best_cut(const layer_class *class, uint64_t page, uint32_t block_least, uint32_t groups_max, cut *out) {
  *out = (cut){0};
  for (uint32_t block = block_least; block <= 128; block *= 2) {
    uint64_t fits = page / (block * class->token_bytes);
    uint32_t most = fits < class->n_layers ? (uint32_t)fits : class->n_layers;
    for (uint32_t layers = most; layers > 0; layers--) {
      cut try = {layers, block, (class->n_layers + layers - 1) / layers, 0};
      if (try.n_groups > groups_max) break;
      try.waste = cut_waste(class, layers, block, page);
      if (is_better_cut(&try, out)) *out = try;
    }
  }
  return out->n_groups > 0;
}

/* Cuts all classes of one model; cuts may be NULL. */
static bool cut_model(const model_classes *classes, uint64_t page, uint32_t block_least, cut *cuts, choice *sum) {
  uint32_t n_groups = 0, n_layers = 0;
  double waste = 0;
  for (uint32_t c = 0; c < classes->n; c++) {
    cut best;
    uint32_t reserved = classes->n - c - 1; /* each later class needs a group */
    uint32_t most = WEFT_GROUPS_MAX - n_groups;
    if (most <= reserved) return false;
    if (!best_cut(&classes->class[c], page, block_least, most - reserved, &best)) return false;
    n_groups += best.n_groups;
    n_layers += classes->class[c].n_layers;
    waste += best.waste;
    if (best.block_tokens > sum->block_tokens_most) sum->block_tokens_most = best.block_tokens;
    if (best.block_tokens < sum->block_tokens_least) sum->block_tokens_least = best.block_tokens;
    if (cuts != NULL) cuts[c] = best;
  }
  sum->n_groups += n_groups;
  sum->waste += waste / n_layers;
  return true;
}

static choice judge_page(const model_classes *classes, uint32_t n_models, uint64_t page, uint32_t block_least) {
  choice sum = {.page_bytes = page, .block_tokens_least = UINT32_MAX, .possible = true};
  for (uint32_t m = 0; sum.possible && m < n_models; m++) {
    sum.possible = cut_model(&classes[m], page, block_least, NULL, &sum);
  }
  return sum;
}

static bool is_better(const choice *a, const choice *b) {
  if (!a->possible || !b->possible) return a->possible;
  if (a->waste < b->waste - 1e-9) return true;
  if (a->waste > b->waste + 1e-9) return false;
  uint32_t da = grain_distance(a->block_tokens_most), db = grain_distance(b->block_tokens_most);
  if (da != db) return da < db;
  if (a->n_groups != b->n_groups) return a->n_groups < b->n_groups;
  return a->page_bytes > b->page_bytes;
}

static uint64_t round_page(uint64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

/* All page sizes that some class fills exactly. */
static choice find_page(const model_classes *classes, uint32_t n_models, uint32_t fixed) {
  choice best = {0};
  uint32_t block_least = fixed > 0 ? fixed : 8;
  for (uint32_t m = 0; m < n_models; m++) {
    for (uint32_t c = 0; c < classes[m].n; c++) {
      const layer_class *class = &classes[m].class[c];
      for (uint32_t layers = 1; layers <= class->n_layers; layers++) {
        for (uint32_t block = block_least; block <= 128; block *= 2) {
          uint64_t page = round_page(layers * (uint64_t)block * class->token_bytes);
          if (page > PAGE_BYTES_MAX && best.possible) break;
          choice try = judge_page(classes, n_models, page, block_least);
          if (fixed > 0 && try.block_tokens_least != fixed) try.possible = false;
          if (is_better(&try, &best)) best = try;
        }
      }
    }
  }
  return best;
}

/* Layers of a class take its groups in order, layers_per_group at a time. */
static void fill_layout(const weft_kv_geometry *geometry, const model_classes *classes, const cut *cuts, uint64_t page,
                        weft_kv_layout *layout) {
  uint32_t first[CLASSES_MAX], n_placed[CLASSES_MAX] = {0};
  uint32_t n_own = 0;
  double waste = 0;
  memset(layout, 0, sizeof *layout);
  layout->type = geometry->type;
  layout->page_bytes = page;
  for (uint32_t c = 0; c < classes->n; c++) {
    first[c] = layout->n_groups;
    layout->n_groups += cuts[c].n_groups;
    waste += cuts[c].waste;
  }
  for (uint32_t l = 0; l < geometry->n_layers; l++) {
    uint32_t c = 0, keys_of = geometry->keys_of[l];
    if (keys_of != 0) {
      layout->group_of[l] = layout->group_of[keys_of - 1];
      layout->index_in[l] = layout->index_in[keys_of - 1];
      continue;
    }
    n_own += 1;
    while (classes->class[c].n_kv_heads != geometry->n_kv_heads[l] ||
           classes->class[c].head_dim != geometry->head_dim[l] || classes->class[c].window != geometry->window[l]) {
      c++;
    }
    uint32_t g = first[c] + n_placed[c]++ / cuts[c].layers_per_group;
    weft_layer_group *group = &layout->group[g];
    weft_kv_shape *shape = &layout->shape[g];
    layout->group_of[l] = (uint16_t)g;
    layout->index_in[l] = (uint16_t)group->n_layers++;
    group->block_tokens = cuts[c].block_tokens;
    group->window = geometry->window[l];
    shape->n_kv_heads = geometry->n_kv_heads[l];
    shape->head_dim = geometry->head_dim[l];
    shape->layer_bytes = cuts[c].block_tokens * classes->class[c].token_bytes;
    WEFT_CHECK(group->n_layers * shape->layer_bytes <= page);
  }
  layout->padding = waste / n_own;
}

weft_status weft_kv_layout_choose(const weft_kv_geometry *const *geometry, uint32_t n_models,
                                  uint32_t fixed_block_tokens, weft_kv_layout *layouts, weft_error *error) {
  static const char *const where = "KV layout";
  uint32_t fixed = fixed_block_tokens;
  if (n_models == 0 || n_models > WEFT_MODELS_MAX) {
    return weft_fail(error, WEFT_E_INVALID, "%s: 1..%d models share a pool, not %" PRIu32, where, WEFT_MODELS_MAX,
                     n_models);
  }
  if (fixed > 128 || (fixed & (fixed - 1)) != 0) {
    return weft_fail(error, WEFT_E_INVALID, "%s: %" PRIu32 " tokens per block; give a power of two up to 128", where,
                     fixed);
  }
  model_classes classes[WEFT_MODELS_MAX];
  for (uint32_t m = 0; m < n_models; m++) {
    if (geometry[m]->n_layers == 0 || geometry[m]->n_layers > WEFT_LAYERS_MAX) {
      return weft_fail(error, WEFT_E_INVALID, "%s: %" PRIu32 " layers; 1..%d are possible", where,
                       geometry[m]->n_layers, WEFT_LAYERS_MAX);
    }
    weft_status status = find_classes(geometry[m], &classes[m], error);
    if (status != WEFT_OK) return status;
  }
  choice best = find_page(classes, n_models, fixed);
  if (!best.possible) {
    return weft_fail(error, WEFT_E_UNSUPPORTED, "%s: no page size serves these models with at most %d layer groups%s",
                     where, WEFT_GROUPS_MAX, fixed > 0 ? " and this block size" : "");
  }
  for (uint32_t m = 0; m < n_models; m++) {
    cut cuts[CLASSES_MAX];
    choice sum = {.block_tokens_least = UINT32_MAX};
    WEFT_CHECK(cut_model(&classes[m], best.page_bytes, fixed > 0 ? fixed : 8, cuts, &sum));
    fill_layout(geometry[m], &classes[m], cuts, best.page_bytes, &layouts[m]);
  }
  return WEFT_OK;
}

uint64_t weft_kv_bytes_per_token(const weft_kv_geometry *geometry, bool windows_full) {
  uint64_t n = 0;
  for (uint32_t l = 0; l < geometry->n_layers; l++) {
    if (geometry->keys_of[l] != 0) continue;
    if (geometry->window[l] == 0 || !windows_full) n += token_bytes(geometry, l);
  }
  return n;
}
