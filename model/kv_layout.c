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
  uint32_t n_in[WEFT_DEVICES_MAX]; /* layers of each part */
  uint64_t token_bytes;            /* K and V of one position of one layer */
} layer_class;

typedef struct model_classes {
  layer_class class[CLASSES_MAX];
  uint32_t n;
} model_classes;

/* The bytes of a page on each device, and in all. */
typedef struct page_size {
  uint64_t part[WEFT_DEVICES_MAX], sum;
} page_size;

/* How one class is cut for a page size. */
typedef struct cut {
  uint32_t units[WEFT_DEVICES_MAX]; /* most layers of each part in a group */
  uint32_t block_tokens, n_groups;
  double waste; /* layers times unused share */
} cut;

/* One candidate: what the page size costs over all models. */
typedef struct choice {
  page_size page;
  double waste; /* mean unused share of the layers' pages, summed over the models */
  uint32_t n_groups, block_tokens_least, block_tokens_most;
  bool possible;
} choice;

/* What is chosen for. */
typedef struct models {
  const model_classes *classes; /* [n] */
  uint32_t n, n_parts, block_least;
  bool fixed; /* the smallest block of a layout has block_least tokens */
} models;

static uint64_t token_bytes(const weft_kv_geometry *geometry, uint32_t layer) {
  uint64_t n = (uint64_t)geometry->n_kv_heads[layer] * geometry->head_dim[layer];
  return 2 * weft_type_row_bytes(geometry->type, n);
}

/* Whether an earlier layer of the same part has the keys that a layer reads. */
static bool finds_keys(const weft_kv_geometry *geometry, uint32_t layer) {
  uint32_t from = geometry->keys_of[layer] - 1;
  return from < layer && geometry->keys_of[from] == 0 && geometry->part[from] == geometry->part[layer];
}

static weft_status find_classes(const weft_kv_geometry *geometry, model_classes *out, weft_error *error) {
  out->n = 0;
  for (uint32_t l = 0; l < geometry->n_layers; l++) {
    WEFT_CHECK(geometry->part[l] < WEFT_DEVICES_MAX);
    if (geometry->keys_of[l] != 0) {
      if (finds_keys(geometry, l)) continue;
      return weft_fail(error, WEFT_E_INVALID,
                       "KV layout: layer %" PRIu32 " reads keys that no earlier layer of its part has", l);
    }
    layer_class wanted = {.n_kv_heads = geometry->n_kv_heads[l],
                          .head_dim = geometry->head_dim[l],
                          .window = geometry->window[l],
                          .token_bytes = token_bytes(geometry, l)};
    if (wanted.token_bytes == 0) {
      return weft_fail(error, WEFT_E_UNSUPPORTED, "KV layout: layer %" PRIu32 " keeps no bytes per token", l);
    }
    uint32_t i = 0;
    while (i < out->n && (out->class[i].n_kv_heads != wanted.n_kv_heads || out->class[i].head_dim != wanted.head_dim ||
                          out->class[i].window != wanted.window)) {
      i++;
    }
    if (i == CLASSES_MAX) {
      return weft_fail(error, WEFT_E_UNSUPPORTED, "KV layout: more than %d kinds of layers", CLASSES_MAX);
    }
    if (i == out->n) out->class[out->n++] = wanted;
    out->class[i].n_layers += 1;
    out->class[i].n_in[geometry->part[l]] += 1;
  }
  return WEFT_OK;
}

static uint32_t least_of(uint64_t a, uint32_t b) {
  return a < b ? (uint32_t)a : b;
}

/* Groups that a class needs when a group has at most units[p] layers of part p. */
static uint32_t count_groups(const layer_class *class, const uint32_t *units) {
  uint32_t most = 0;
  for (uint32_t p = 0; p < WEFT_DEVICES_MAX; p++) {
    uint32_t n = class->n_in[p] == 0 ? 0 : (class->n_in[p] + units[p] - 1) / units[p];
    if (n > most) most = n;
  }
  return most;
}

/* Layers times the unused share of their page: the last groups may have fewer layers than a page holds. */
static double cut_waste(const layer_class *class, const cut *as, const page_size *page) {
  double waste = 0;
  for (uint32_t g = 0; g < as->n_groups; g++) {
    uint32_t n = 0;
    for (uint32_t p = 0; p < WEFT_DEVICES_MAX; p++) {
      uint32_t taken = g * as->units[p];
      if (taken < class->n_in[p]) n += least_of(class->n_in[p] - taken, as->units[p]);
    }
    double used = (double)n * as->block_tokens * (double)class->token_bytes;
    waste += n * (1.0 - used / (double)page->sum);
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

/* How many layers of each part a page holds, at most those there are. Returns the largest of these numbers; 0: of some
 * part not even one. */
static uint32_t count_fitting(const layer_class *class, const page_size *page, uint32_t block, uint32_t *fits) {
  uint32_t most = 0;
  for (uint32_t p = 0; p < WEFT_DEVICES_MAX; p++) {
    fits[p] = least_of(page->part[p] / (block * class->token_bytes), class->n_in[p]);
    if (fits[p] == 0 && class->n_in[p] > 0) return 0;
    if (fits[p] > most) most = fits[p];
  }
  return most;
}

/* False when not even one layer of one smallest block fits a page. */
static bool best_cut(const layer_class *class, const page_size *page, uint32_t block_least, uint32_t groups_max,
                     cut *out) {
  *out = (cut){0};
  for (uint32_t block = block_least; block <= 128; block *= 2) {
    uint32_t fits[WEFT_DEVICES_MAX];
    for (uint32_t layers = count_fitting(class, page, block, fits); layers > 0; layers--) {
      cut try = {.block_tokens = block};
      for (uint32_t p = 0; p < WEFT_DEVICES_MAX; p++) try.units[p] = least_of(fits[p], layers);
      try.n_groups = count_groups(class, try.units);
      if (try.n_groups > groups_max) break;
      try.waste = cut_waste(class, &try, page);
      if (is_better_cut(&try, out)) *out = try;
    }
  }
  return out->n_groups > 0;
}

/* Cuts all classes of one model; cuts may be NULL. */
static bool cut_model(const model_classes *classes, const page_size *page, uint32_t block_least, cut *cuts,
                      choice *sum) {
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

static choice judge_page(const models *all, const page_size *page) {
  choice sum = {.page = *page, .block_tokens_least = UINT32_MAX, .possible = true};
  for (uint32_t m = 0; sum.possible && m < all->n; m++) {
    sum.possible = cut_model(&all->classes[m], page, all->block_least, NULL, &sum);
  }
  if (all->fixed && sum.block_tokens_least != all->block_least) sum.possible = false;
  return sum;
}

static bool is_better(const choice *a, const choice *b) {
  if (!a->possible || !b->possible) return a->possible;
  if (a->waste < b->waste - 1e-9) return true;
  if (a->waste > b->waste + 1e-9) return false;
  uint32_t da = grain_distance(a->block_tokens_most), db = grain_distance(b->block_tokens_most);
  if (da != db) return da < db;
  if (a->n_groups != b->n_groups) return a->n_groups < b->n_groups;
  return a->page.sum > b->page.sum;
}

static uint64_t round_page(uint64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

static uint32_t most_in_a_part(const layer_class *class) {
  uint32_t most = 0;
  for (uint32_t p = 0; p < WEFT_DEVICES_MAX; p++) {
    if (class->n_in[p] > most) most = class->n_in[p];
  }
  return most;
}

/* The page that a class fills when a group has `layers` layers of the part with the most, and of each other part as
 * many in proportion. */
static page_size page_of(const layer_class *class, uint32_t layers, uint32_t block) {
  uint32_t most = most_in_a_part(class);
  page_size page = {.sum = 0};
  for (uint32_t p = 0; p < WEFT_DEVICES_MAX; p++) {
    uint64_t units = ((uint64_t) class->n_in[p] * layers + most - 1) / most;
    page.part[p] = round_page(units * block * class->token_bytes);
    page.sum += page.part[p];
  }
  return page;
}

/* The largest page of a class that is no larger than `most` bytes; of size 0 where there is none. */
static page_size largest_page(const layer_class *class, uint64_t most, uint32_t block_least) {
  page_size largest = {.sum = 0};
  for (uint32_t layers = 1; layers <= most_in_a_part(class); layers++) {
    for (uint32_t block = block_least; block <= 128; block *= 2) {
      page_size page = page_of(class, layers, block);
      if (page.sum <= most && page.sum > largest.sum) largest = page;
    }
  }
  return largest;
}

/* A page with room for every class, also for one that has more layers than `page` holds, or any, on some device. */
static page_size make_room_for(const models *all, const page_size *page) {
  page_size wide = {.sum = 0};
  memcpy(wide.part, page->part, sizeof wide.part);
  for (uint32_t m = 0; m < all->n; m++) {
    for (uint32_t c = 0; c < all->classes[m].n; c++) {
      page_size other = largest_page(&all->classes[m].class[c], page -> sum, all -> block_least);
      for (uint32_t p = 0; p < WEFT_DEVICES_MAX; p++) {
        if (other.part[p] > wide.part[p]) wide.part[p] = other.part[p];
      }
    }
  }
  for (uint32_t p = 0; p < WEFT_DEVICES_MAX; p++) wide.sum += wide.part[p];
  return wide;
}

/* All page sizes that some class fills exactly; on several devices each of them also made wide enough for all. */
static choice find_page(const models *all) {
  choice best = {.possible = false};
  for (uint32_t m = 0; m < all->n; m++) {
    for (uint32_t c = 0; c < all->classes[m].n; c++) {
      const layer_class *class = &all->classes[m].class[c];
      for (uint32_t layers = 1; layers <= most_in_a_part(class); layers++) {
        for (uint32_t block = all->block_least; block <= 128; block *= 2) {
          page_size page = page_of(class, layers, block);
          if (page.sum > PAGE_BYTES_MAX && best.possible) break;
          choice try = judge_page(all, &page);
          if (is_better(&try, &best)) best = try;
          if (all->n_parts == 1) continue;
          page = make_room_for(all, &page);
          try = judge_page(all, &page);
          if (is_better(&try, &best)) best = try;
        }
      }
    }
  }
  return best;
}

/* Of each part, the layers of a class take its groups in order, units[p] at a time. */
static void fill_layout(const weft_kv_geometry *geometry, const model_classes *classes, const cut *cuts,
                        const page_size *page, weft_kv_layout *layout) {
  uint32_t first[CLASSES_MAX], n_placed[CLASSES_MAX][WEFT_DEVICES_MAX] = {{0}};
  uint16_t n_in[WEFT_GROUPS_MAX][WEFT_DEVICES_MAX] = {{0}};
  uint32_t n_own = 0;
  double waste = 0;
  layout->type = geometry->type;
  layout->page_bytes = page->sum;
  memcpy(layout->part_bytes, page->part, sizeof layout->part_bytes);
  for (uint32_t c = 0; c < classes->n; c++) {
    first[c] = layout->n_groups;
    layout->n_groups += cuts[c].n_groups;
    waste += cuts[c].waste;
  }
  for (uint32_t l = 0; l < geometry->n_layers; l++) {
    uint32_t c = 0, keys_of = geometry->keys_of[l], p = geometry->part[l];
    layout->part_of[l] = (uint8_t)p;
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
    uint32_t g = first[c] + n_placed[c][p]++ / cuts[c].units[p];
    weft_layer_group *group = &layout->group[g];
    weft_kv_shape *shape = &layout->shape[g];
    layout->group_of[l] = (uint16_t)g;
    layout->index_in[l] = n_in[g][p]++;
    group->n_layers += 1;
    group->block_tokens = cuts[c].block_tokens;
    group->window = geometry->window[l];
    shape->n_kv_heads = geometry->n_kv_heads[l];
    shape->head_dim = geometry->head_dim[l];
    shape->layer_bytes = cuts[c].block_tokens * classes->class[c].token_bytes;
    WEFT_CHECK(n_in[g][p] * shape->layer_bytes <= page->part[p]);
  }
  layout->padding = waste / n_own;
}

/* How many devices the models lie on: one more than the highest part. */
static uint32_t count_parts(const weft_kv_geometry *const *geometry, uint32_t n_models) {
  uint32_t n = 1;
  for (uint32_t m = 0; m < n_models; m++) {
    for (uint32_t l = 0; l < geometry[m]->n_layers; l++) {
      if (geometry[m]->part[l] >= n) n = geometry[m]->part[l] + 1u;
    }
  }
  return n;
}

static uint32_t shards_of(const weft_kv_geometry *geometry) {
  return geometry->n_shards > 1 ? geometry->n_shards : 1;
}

/* Each shard has a page of the size that was chosen. */
static void share_out(uint32_t n_shards, weft_kv_layout *layout) {
  if (n_shards == 1) return;
  layout->n_parts = n_shards;
  layout->part_bytes[0] = layout->page_bytes;
  for (uint32_t p = 1; p < n_shards; p++) layout->part_bytes[p] = layout->page_bytes;
  layout->page_bytes *= n_shards;
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
    if (shards_of(geometry[m]) != shards_of(geometry[0]))
      return weft_fail(error, WEFT_E_INVALID, "%s: all models that share a pool lie in equally many shards", where);
    weft_status status = find_classes(geometry[m], &classes[m], error);
    if (status != WEFT_OK) return status;
  }
  const models all = {.classes = classes,
                      .n = n_models,
                      .n_parts = count_parts(geometry, n_models),
                      .block_least = fixed > 0 ? fixed : 8,
                      .fixed = fixed > 0};
  choice best = find_page(&all);
  if (!best.possible) {
    return weft_fail(error, WEFT_E_UNSUPPORTED, "%s: no page size serves these models with at most %d layer groups%s",
                     where, WEFT_GROUPS_MAX, fixed > 0 ? " and this block size" : "");
  }
  for (uint32_t m = 0; m < n_models; m++) {
    cut cuts[CLASSES_MAX];
    choice sum = {.block_tokens_least = UINT32_MAX};
    WEFT_CHECK(cut_model(&classes[m], &best.page, all.block_least, cuts, &sum));
    memset(&layouts[m], 0, sizeof layouts[m]);
    layouts[m].n_parts = all.n_parts;
    fill_layout(geometry[m], &classes[m], cuts, &best.page, &layouts[m]);
    share_out(shards_of(geometry[m]), &layouts[m]);
  }
  return WEFT_OK;
}

uint64_t weft_kv_bytes_per_token(const weft_kv_geometry *geometry, bool windows_full) {
  uint64_t n = 0;
  for (uint32_t l = 0; l < geometry->n_layers; l++) {
    if (geometry->keys_of[l] != 0) continue;
    if (geometry->window[l] == 0 || !windows_full) n += token_bytes(geometry, l);
  }
  return n * shards_of(geometry);
}
