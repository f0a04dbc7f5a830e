/* SPDX-License-Identifier: MIT */
/* Law: every page size that some class fills exactly is tried; for each, every class takes its best
 * cut on its own; the best page size wins. Costs are integers and doubles of a few thousand tries:
 * exact, and the same everywhere. */
#include "model/kv_layout.h"

#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "kernels/delta.h"

enum { CLASSES_MAX = 16, KINDS_MAX = 8, BLOCK_MOST = 128, PAGE_BYTES_MAX = 16 << 20, GRAIN = 32 };

/* Sets of one class with equal rows. */
typedef struct row_kind {
  weft_kv_rows rows;
  uint32_t n_in[WEFT_DEVICES_MAX]; /* sets of each part */
} row_kind;

/* Sets of one model that share groups. Where rows are of one position there is one kind, and the sets of a part take
 * the groups in order, each as many as fit. Where rows stand for several positions there may be many kinds, and the
 * sets of each are dealt out to all groups in turns, so that every group has a like share of each kind. */
typedef struct layer_class {
  uint32_t n_sets, window;
  bool from_border, dealt;
  uint32_t n_kinds, positions; /* the most that share a row */
  uint32_t n_parts;            /* later ones have no set */
  row_kind kind[KINDS_MAX];
} layer_class;

typedef struct model_classes {
  layer_class class[CLASSES_MAX];
  uint32_t n;
  uint32_t n_states, every[CLASSES_MAX]; /* groups of states, and their borders */
  uint64_t unit_most[WEFT_DEVICES_MAX];  /* bytes of the largest unit of a state on each part */
} model_classes;

/* The bytes of a page on each device, and in all. */
typedef struct page_size {
  uint64_t part[WEFT_DEVICES_MAX], sum;
} page_size;

/* How one class is cut for a page size. */
typedef struct cut {
  uint32_t units[WEFT_DEVICES_MAX]; /* most sets of each part in a group; of a class that is not dealt */
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

uint64_t weft_kv_rows_bytes(const weft_kv_rows *rows, uint32_t block_tokens) {
  uint64_t row = weft_type_row_bytes(rows->type, (uint64_t)rows->n_kv_heads * rows->head_dim);
  return (rows->values_are_keys ? 1 : 2) * row * (block_tokens / rows->positions);
}

static bool are_equal_rows(const weft_kv_rows *a, const weft_kv_rows *b) {
  return a->type == b->type && a->n_kv_heads == b->n_kv_heads && a->head_dim == b->head_dim &&
         a->positions == b->positions && a->values_are_keys == b->values_are_keys;
}

/* Whether an earlier set of the same part has the rows that a set reads. */
static bool finds_keys(const weft_kv_geometry *geometry, uint32_t s) {
  uint32_t from = geometry->set[s].keys_of - 1;
  return from < s && geometry->set[from].keys_of == 0 && geometry->set[from].state.n_units == 0 &&
         geometry->set[from].part == geometry->set[s].part;
}

static bool belongs_to_class(const layer_class *class, const weft_kv_set *set) {
  if (class->window != set->window || class->from_border != set->from_border) return false;
  if (class->dealt != (set->rows.positions > 1)) return false;
  return class->dealt || are_equal_rows(&class->kind[0].rows, &set->rows);
}

/* The class of a set; classes->n: there is none yet. */
static uint32_t find_class(const model_classes *classes, const weft_kv_set *set) {
  uint32_t c = 0;
  while (c < classes->n && !belongs_to_class(&classes->class[c], set)) c++;
  return c;
}

static uint32_t find_kind(const layer_class *class, const weft_kv_rows *rows) {
  uint32_t k = 0;
  while (k < class->n_kinds && !are_equal_rows(&class->kind[k].rows, rows)) k++;
  return k;
}

static weft_status check_set(const weft_kv_set *set, uint32_t layer, weft_error *error) {
  uint32_t n = set->rows.positions;
  WEFT_CHECK(set->part < WEFT_DEVICES_MAX);
  if (n == 0 || n > BLOCK_MOST || (n & (n - 1)) != 0)
    return weft_fail(error, WEFT_E_INVALID,
                     "KV layout: layer %" PRIu32 " has a row for %" PRIu32 " positions; give a power of two up to %d",
                     layer, n, BLOCK_MOST);
  if (weft_kv_rows_bytes(&set->rows, n) == 0)
    return weft_fail(error, WEFT_E_UNSUPPORTED, "KV layout: layer %" PRIu32 " keeps no bytes per token", layer);
  return WEFT_OK;
}

static weft_status add_to_class(layer_class *class, const weft_kv_set *set, weft_error *error) {
  uint32_t k = find_kind(class, &set->rows);
  if (k == KINDS_MAX)
    return weft_fail(error, WEFT_E_UNSUPPORTED, "KV layout: more than %d kinds of rows of one window", KINDS_MAX);
  if (k == class->n_kinds) class->kind[class->n_kinds++].rows = set->rows;
  class->kind[k].n_in[set->part] += 1;
  class->n_sets += 1;
  if (set->part >= class->n_parts) class->n_parts = set->part + 1u;
  if (set->rows.positions > class->positions) class->positions = set->rows.positions;
  return WEFT_OK;
}

static uint32_t find_borders(const model_classes *classes, uint32_t every) {
  uint32_t i = 0;
  while (i < classes->n_states && classes->every[i] != every) i++;
  return i;
}

static weft_status add_state(model_classes *classes, const weft_kv_set *set, weft_error *error) {
  const weft_kv_state *state = &set->state;
  WEFT_CHECK(set->part < WEFT_DEVICES_MAX);
  if (state->every == 0 || state->every > WEFT_BLOCK_TOKENS_MAX || (state->every & (state->every - 1)) != 0)
    return weft_fail(error, WEFT_E_INVALID,
                     "KV layout: layer %d has a state at every %" PRIu32 " positions; give a power of two up to %d",
                     set->layer, state->every, WEFT_BLOCK_TOKENS_MAX);
  if (state->unit_bytes == 0 || state->unit_bytes > PAGE_BYTES_MAX)
    return weft_fail(error, WEFT_E_INVALID,
                     "KV layout: layer %d has a state in units of %" PRIu64 " bytes; give 1 to %d", set->layer,
                     state->unit_bytes, PAGE_BYTES_MAX);
  uint32_t i = find_borders(classes, state->every);
  if (i == CLASSES_MAX)
    return weft_fail(error, WEFT_E_UNSUPPORTED, "KV layout: more than %d kinds of states", CLASSES_MAX);
  if (i == classes->n_states) classes->every[classes->n_states++] = state->every;
  if (state->unit_bytes > classes->unit_most[set->part]) classes->unit_most[set->part] = state->unit_bytes;
  return WEFT_OK;
}

static weft_status find_classes(const weft_kv_geometry *geometry, model_classes *out, weft_error *error) {
  memset(out, 0, sizeof *out);
  for (uint32_t s = 0; s < geometry->n_sets; s++) {
    const weft_kv_set *set = &geometry->set[s];
    bool of_rows = set->state.n_units == 0;
    weft_status status = of_rows ? check_set(set, set->layer, error) : add_state(out, set, error);
    if (status != WEFT_OK) return status;
    if (!of_rows) continue;
    if (set->keys_of != 0) {
      if (finds_keys(geometry, s)) continue;
      return weft_fail(error, WEFT_E_INVALID, "KV layout: layer %d reads keys that no earlier layer of its part has",
                       set->layer);
    }
    uint32_t c = find_class(out, set);
    if (c == CLASSES_MAX)
      return weft_fail(error, WEFT_E_UNSUPPORTED, "KV layout: more than %d kinds of layers", CLASSES_MAX);
    if (c == out->n)
      out->class[out->n++] =
          (layer_class){.window = set->window, .from_border = set->from_border, .dealt = set->rows.positions > 1};
    status = add_to_class(&out->class[c], set, error);
    if (status != WEFT_OK) return status;
  }
  if (out->n == 0)
    return weft_fail(error, WEFT_E_INVALID, "KV layout: no layer keeps rows; states alone cannot be laid out");
  return WEFT_OK;
}

static uint32_t least_of(uint64_t a, uint32_t b) {
  return a < b ? (uint32_t)a : b;
}

/* Groups that a class needs when a group has at most units[p] sets of part p. */
static uint32_t count_groups(const layer_class *class, const uint32_t *units) {
  uint32_t most = 0;
  for (uint32_t p = 0; p < class->n_parts; p++) {
    uint32_t n_in = class->kind[0].n_in[p], n = n_in == 0 ? 0 : (n_in + units[p] - 1) / units[p];
    if (n > most) most = n;
  }
  return most;
}

/* Sets of a kind that a group has on a part. */
static uint32_t count_sets(const layer_class *class, const cut *as, uint32_t kind, uint32_t g, uint32_t p) {
  uint32_t n_in = class->kind[kind].n_in[p], taken = g * as->units[p];
  if (class->dealt) return (n_in + as->n_groups - 1 - g) / as->n_groups;
  return taken < n_in ? least_of(n_in - taken, as->units[p]) : 0;
}

/* Bytes of a block of a group on a part. *n: how many sets these are. */
static uint64_t group_bytes(const layer_class *class, const cut *as, uint32_t g, uint32_t p, uint32_t *n) {
  uint64_t n_bytes = 0;
  *n = 0;
  for (uint32_t k = 0; k < class->n_kinds; k++) {
    uint32_t n_sets = count_sets(class, as, k, g, p);
    if (n_sets == 0) continue;
    n_bytes += n_sets * weft_kv_rows_bytes(&class->kind[k].rows, as->block_tokens);
    *n += n_sets;
  }
  return n_bytes;
}

/* Sets times the unused share of their page: the last groups may have fewer sets than a page holds. */
static double cut_waste(const layer_class *class, const cut *as, const page_size *page) {
  double waste = 0;
  for (uint32_t g = 0; g < as->n_groups; g++) {
    uint32_t n = 0, n_part;
    uint64_t used = 0;
    for (uint32_t p = 0; p < class->n_parts; p++) {
      used += group_bytes(class, as, g, p, &n_part);
      n += n_part;
    }
    waste += n * (1.0 - (double)used / (double)page->sum);
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

/* How many sets of each part a page holds, at most those there are. Returns the largest of these numbers; 0: of some
 * part not even one. */
static uint32_t count_fitting(const layer_class *class, const page_size *page, uint32_t block, uint32_t *fits) {
  uint32_t most = 0;
  const row_kind *kind = &class->kind[0];
  for (uint32_t p = 0; p < class->n_parts; p++) {
    fits[p] = least_of(page->part[p] / weft_kv_rows_bytes(&kind->rows, block), kind->n_in[p]);
    if (fits[p] == 0 && kind->n_in[p] > 0) return 0;
    if (fits[p] > most) most = fits[p];
  }
  return most;
}

/* The smallest block that the class may have. */
static uint32_t least_block(const layer_class *class, uint32_t block_least) {
  return block_least > class->positions ? block_least : class->positions;
}

/* The first group of a class that is dealt has most of each kind. */
static bool fits_dealt(const layer_class *class, const cut *as, const page_size *page) {
  uint32_t n;
  for (uint32_t p = 0; p < class->n_parts; p++) {
    if (group_bytes(class, as, 0, p, &n) > page->part[p]) return false;
  }
  return true;
}

static bool best_dealt_cut(const layer_class *class, const page_size *page, uint32_t block_least, uint32_t groups_max,
                           cut *out) {
  for (uint32_t block = least_block(class, block_least); block <= BLOCK_MOST; block *= 2) {
    for (uint32_t n = 1; n <= groups_max && n <= class->n_sets; n++) {
      cut try = {.block_tokens = block, .n_groups = n};
      if (!fits_dealt(class, &try, page)) continue;
      try.waste = cut_waste(class, &try, page);
      if (is_better_cut(&try, out)) *out = try;
    }
  }
  return out->n_groups > 0;
}

/* False when not even one set of one smallest block fits a page. */
static bool best_cut(const layer_class *class, const page_size *page, uint32_t block_least, uint32_t groups_max,
                     cut *out) {
  *out = (cut){0};
  if (class->dealt) return best_dealt_cut(class, page, block_least, groups_max, out);
  for (uint32_t block = block_least; block <= BLOCK_MOST; block *= 2) {
    uint32_t fits[WEFT_DEVICES_MAX];
    for (uint32_t n = count_fitting(class, page, block, fits); n > 0; n--) {
      cut try = {.block_tokens = block};
      for (uint32_t p = 0; p < class->n_parts; p++) try.units[p] = least_of(fits[p], n);
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
  uint32_t n_groups = classes->n_states, n_sets = 0;
  double waste = 0;
  for (uint32_t p = 0; p < WEFT_DEVICES_MAX; p++)
    if (classes->unit_most[p] > page->part[p]) return false;
  for (uint32_t c = 0; c < classes->n; c++) {
    cut best;
    uint32_t reserved = classes->n - c - 1; /* each later class needs a group */
    uint32_t most = n_groups < WEFT_GROUPS_MAX ? WEFT_GROUPS_MAX - n_groups : 0;
    if (most <= reserved) return false;
    if (!best_cut(&classes->class[c], page, block_least, most - reserved, &best)) return false;
    n_groups += best.n_groups;
    n_sets += classes->class[c].n_sets;
    waste += best.waste;
    if (best.block_tokens > sum->block_tokens_most) sum->block_tokens_most = best.block_tokens;
    if (best.block_tokens < sum->block_tokens_least) sum->block_tokens_least = best.block_tokens;
    if (cuts != NULL) cuts[c] = best;
  }
  sum->n_groups += n_groups;
  sum->waste += waste / n_sets;
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
  for (uint32_t k = 0; k < class->n_kinds; k++) {
    for (uint32_t p = 0; p < WEFT_DEVICES_MAX; p++) {
      if (class->kind[k].n_in[p] > most) most = class->kind[k].n_in[p];
    }
  }
  return most;
}

/* The page that a class fills when a group has n sets of the part and kind with the most, and of each other one as many
 * in proportion. */
static page_size page_of(const layer_class *class, uint32_t n, uint32_t block) {
  uint32_t most = most_in_a_part(class), n_part;
  const cut dealt = {.block_tokens = block, .n_groups = (most + n - 1) / n};
  page_size page = {.sum = 0};
  for (uint32_t p = 0; p < WEFT_DEVICES_MAX; p++) {
    uint64_t units = ((uint64_t) class->kind[0].n_in[p] * n + most - 1) / most;
    uint64_t n_bytes = class->dealt ? group_bytes(class, &dealt, 0, p, &n_part)
                                    : units * weft_kv_rows_bytes(&class->kind[0].rows, block);
    page.part[p] = round_page(n_bytes);
    page.sum += page.part[p];
  }
  return page;
}

/* The largest page of a class that is no larger than `most` bytes; of size 0 where there is none. */
static page_size largest_page(const layer_class *class, uint64_t most, uint32_t block_least) {
  page_size largest = {.sum = 0};
  for (uint32_t n = 1; n <= most_in_a_part(class); n++) {
    for (uint32_t block = least_block(class, block_least); block <= BLOCK_MOST; block *= 2) {
      page_size page = page_of(class, n, block);
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
      for (uint32_t n = 1; n <= most_in_a_part(class); n++) {
        for (uint32_t block = least_block(class, all->block_least); block <= BLOCK_MOST; block *= 2) {
          page_size page = page_of(class, n, block);
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

/* What fill_layout has done so far. */
typedef struct filling {
  uint32_t first[CLASSES_MAX]; /* the first group of each class */
  uint32_t n_placed[CLASSES_MAX][KINDS_MAX][WEFT_DEVICES_MAX];
  uint64_t used[WEFT_GROUPS_MAX][WEFT_DEVICES_MAX]; /* bytes of a page */
} filling;

/* The place of a set with rows of its own. */
static weft_kv_place place_set(const weft_kv_set *set, const model_classes *classes, const cut *cuts, filling *done) {
  uint32_t c = find_class(classes, set), k = find_kind(&classes->class[c], &set -> rows), p = set->part;
  uint32_t at = done->n_placed[c][k][p]++;
  uint32_t g = done->first[c] + (classes->class[c].dealt ? at % cuts[c].n_groups : at / cuts[c].units[p]);
  weft_kv_place place = {.rows = set->rows,
                         .group = (uint16_t)g,
                         .part = set->part,
                         .offset = done->used[g][p],
                         .bytes = weft_kv_rows_bytes(&set->rows, cuts[c].block_tokens)};
  done->used[g][p] += place.bytes;
  return place;
}

/* Lays the states with the same borders one behind another, on each part by itself. The run has as many pages as the
 * part with the most needs. */
static void place_states(const weft_kv_geometry *geometry, uint32_t every, weft_kv_layout *layout) {
  uint64_t used[WEFT_DEVICES_MAX] = {0};
  uint32_t g = layout->n_groups++;
  weft_layer_group *group = &layout->group[g];
  *group = (weft_layer_group){.block_tokens = every};
  for (uint32_t s = 0; s < geometry->n_sets; s++) {
    const weft_kv_set *set = &geometry->set[s];
    const weft_kv_state *state = &set->state;
    if (state->n_units == 0 || state->every != every) continue;
    uint64_t page = layout->part_bytes[set->part], *end = &used[set->part], unit = state->unit_bytes;
    *end = round_page(*end); /* as well aligned as a page */
    if (*end % page + unit > page) *end += page - *end % page;
    layout->place[s] = (weft_kv_place){
        .group = (uint16_t)g, .part = set->part, .offset = *end, .bytes = state->n_units * unit, .state = *state};
    weft_kv_unit last = weft_kv_state_unit(layout, s, state->n_units - 1);
    *end = last.page * page + last.offset + unit;
    group->n_layers += 1;
    if (last.page + 1 > group->state_pages) group->state_pages = last.page + 1;
  }
}

weft_kv_unit weft_kv_state_unit(const weft_kv_layout *layout, uint32_t set, uint32_t unit) {
  const weft_kv_place *place = &layout->place[set];
  const weft_run_view view = {
      .page_bytes = layout->part_bytes[place->part], .offset = place->offset, .unit_bytes = place->state.unit_bytes};
  weft_run_place at = weft_run_unit(&view, unit);
  return (weft_kv_unit){.page = at.page, .offset = at.offset};
}

static void fill_layout(const weft_kv_geometry *geometry, const model_classes *classes, const cut *cuts,
                        const page_size *page, weft_kv_layout *layout) {
  filling done = {.first = {0}};
  uint32_t n_own = 0;
  double waste = 0;
  layout->n_sets = geometry->n_sets;
  layout->page_bytes = page->sum;
  memcpy(layout->part_bytes, page->part, sizeof layout->part_bytes);
  for (uint32_t c = 0; c < classes->n; c++) {
    done.first[c] = layout->n_groups;
    for (uint32_t g = 0; g < cuts[c].n_groups; g++)
      layout->group[layout->n_groups++] = (weft_layer_group){.block_tokens = cuts[c].block_tokens,
                                                             .window = classes->class[c].window,
                                                             .from_border = classes->class[c].from_border};
    waste += cuts[c].waste;
  }
  for (uint32_t s = 0; s < geometry->n_sets; s++) {
    const weft_kv_set *set = &geometry->set[s];
    weft_kv_place *place = &layout->place[s];
    if (set->state.n_units != 0) continue;
    if (set->keys_of != 0) {
      *place = layout->place[set->keys_of - 1];
      continue;
    }
    n_own += 1;
    *place = place_set(set, classes, cuts, &done);
    layout->group[place->group].n_layers += 1;
    WEFT_CHECK(place->offset + place->bytes <= page->part[set->part]);
  }
  layout->padding = waste / n_own;
  for (uint32_t i = 0; i < classes->n_states; i++) place_states(geometry, classes->every[i], layout);
}

/* How many devices the models lie on: one more than the highest part. */
static uint32_t count_parts(const weft_kv_geometry *const *geometry, uint32_t n_models) {
  uint32_t n = 1;
  for (uint32_t m = 0; m < n_models; m++) {
    for (uint32_t s = 0; s < geometry[m]->n_sets; s++) {
      if (geometry[m]->set[s].part >= n) n = geometry[m]->set[s].part + 1u;
    }
  }
  return n;
}

static uint32_t shards_of(const weft_kv_geometry *geometry) {
  return geometry->n_shards > 1 ? geometry->n_shards : 1;
}

/* Each shard of a part has of a page what was chosen for the part. */
static void share_out(uint32_t n_shards, weft_kv_layout *layout) {
  uint32_t n_devices = layout->n_parts * n_shards;
  WEFT_CHECK(n_devices <= WEFT_DEVICES_MAX);
  for (uint32_t i = n_devices; i-- > 0;) layout->part_bytes[i] = layout->part_bytes[i / n_shards];
  for (uint32_t s = 0; s < layout->n_sets; s++) layout->place[s].part = (uint8_t)(layout->place[s].part * n_shards);
  layout->n_parts = n_devices;
  layout->page_bytes *= n_shards;
}

static weft_status check_states(const weft_kv_layout *layout, weft_error *error) {
  for (uint32_t g = 0; g < layout->n_groups; g++) {
    if (layout->group[g].state_pages <= WEFT_STATE_PAGES_MAX) continue;
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "KV layout: a state fills %" PRIu32 " pages of %" PRIu64 " bytes; at most %d are possible",
                     layout->group[g].state_pages, layout->page_bytes, WEFT_STATE_PAGES_MAX);
  }
  return WEFT_OK;
}

static weft_status lay_out(const weft_kv_geometry *const *geometry, const model_classes *classes, uint32_t n_models,
                           uint32_t fixed, weft_kv_layout *layouts, weft_error *error) {
  const models all = {.classes = classes,
                      .n = n_models,
                      .n_parts = count_parts(geometry, n_models),
                      .block_least = fixed > 0 ? fixed : 8,
                      .fixed = fixed > 0};
  choice best = find_page(&all);
  if (!best.possible) {
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "KV layout: no page size serves these models with at most %d layer groups%s", WEFT_GROUPS_MAX,
                     fixed > 0 ? " and this block size" : "");
  }
  for (uint32_t m = 0; m < n_models; m++) {
    cut cuts[CLASSES_MAX];
    choice sum = {.block_tokens_least = UINT32_MAX};
    WEFT_CHECK(cut_model(&classes[m], &best.page, all.block_least, cuts, &sum));
    memset(&layouts[m], 0, sizeof layouts[m]);
    layouts[m].n_parts = all.n_parts;
    fill_layout(geometry[m], &classes[m], cuts, &best.page, &layouts[m]);
    share_out(shards_of(geometry[m]), &layouts[m]);
    weft_status status = check_states(&layouts[m], error);
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
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
  for (uint32_t m = 0; m < n_models; m++) {
    if (geometry[m]->n_layers == 0 || geometry[m]->n_layers > WEFT_LAYERS_MAX ||
        geometry[m]->n_sets < geometry[m]->n_layers || geometry[m]->n_sets > WEFT_KV_SETS_MAX) {
      return weft_fail(error, WEFT_E_INVALID,
                       "%s: %" PRIu32 " layers with %" PRIu32 " row sets; 1..%d and up to %d are possible", where,
                       geometry[m]->n_layers, geometry[m]->n_sets, WEFT_LAYERS_MAX, WEFT_KV_SETS_MAX);
    }
    if (shards_of(geometry[m]) != shards_of(geometry[0]))
      return weft_fail(error, WEFT_E_INVALID, "%s: all models that share a pool lie in equally many shards", where);
  }
  model_classes *classes = weft_alloc(n_models, sizeof *classes);
  if (classes == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "%s: no memory for the plan", where);
  weft_status status = WEFT_OK;
  for (uint32_t m = 0; m < n_models && status == WEFT_OK; m++) status = find_classes(geometry[m], &classes[m], error);
  if (status == WEFT_OK) status = lay_out(geometry, classes, n_models, fixed, layouts, error);
  weft_free(classes);
  return status;
}

uint64_t weft_kv_bytes_per_token(const weft_kv_geometry *geometry, bool windows_full) {
  uint64_t n = 0; /* of BLOCK_MOST positions */
  for (uint32_t s = 0; s < geometry->n_sets; s++) {
    const weft_kv_set *set = &geometry->set[s];
    if (set->state.n_units != 0) continue;
    if (set->keys_of == 0 && (set->window == 0 || !windows_full)) n += weft_kv_rows_bytes(&set->rows, BLOCK_MOST);
  }
  return n * shards_of(geometry) / BLOCK_MOST;
}

uint64_t weft_kv_state_bytes(const weft_kv_geometry *geometry) {
  uint64_t n = 0;
  for (uint32_t s = 0; s < geometry->n_sets; s++)
    n += geometry->set[s].state.n_units * geometry->set[s].state.unit_bytes;
  return n * shards_of(geometry);
}

uint64_t weft_kv_pages_held(const weft_kv_layout *layout, uint32_t n_tokens, uint32_t n_ahead) {
  uint64_t n = 0, end = (uint64_t)n_tokens + n_ahead;
  uint32_t least = WEFT_BLOCK_TOKENS_MAX;
  for (uint32_t g = 0; g < layout->n_groups; g++)
    if (layout->group[g].block_tokens < least) least = layout->group[g].block_tokens;
  for (uint32_t g = 0; g < layout->n_groups; g++) {
    const weft_layer_group *group = &layout->group[g];
    uint32_t block = group->block_tokens;
    if (group->state_pages > 0)
      n += (uint64_t)group->state_pages * ((n_tokens >= block) + end / block - n_tokens / block);
    else
      n += (end + block - 1) / block - weft_layer_group_first(group, n_tokens / least * least) / block;
  }
  return n;
}

const weft_kv_rows *weft_kv_group_rows(const weft_kv_layout *layout, uint32_t group) {
  uint32_t s = 0;
  while (layout->place[s].group != group) s++;
  return &layout->place[s].rows;
}

/* Whether a set is the first of its group with such rows. */
static bool is_first_of_kind(const weft_kv_layout *layout, uint32_t s) {
  const weft_kv_place *place = &layout->place[s];
  for (uint32_t i = 0; i < s; i++) {
    if (layout->place[i].group == place->group && are_equal_rows(&layout->place[i].rows, &place->rows)) return false;
  }
  return true;
}

void weft_kv_group_print(const weft_kv_layout *layout, uint32_t group, weft_text *out) {
  const char *between = "";
  const weft_layer_group *as = &layout->group[group];
  if (as->state_pages > 0) {
    weft_text_printf(out, "a state of %" PRIu32 " pages at every %" PRIu32 " tokens", as->state_pages,
                     as->block_tokens);
    return;
  }
  for (uint32_t s = 0; s < layout->n_sets; s++) {
    const weft_kv_rows *rows = &layout->place[s].rows;
    if (layout->place[s].group != group || !is_first_of_kind(layout, s)) continue;
    weft_text_printf(out, "%s%" PRIu32 " heads of %" PRIu32, between, rows->n_kv_heads, rows->head_dim);
    if (rows->positions > 1) weft_text_printf(out, " for %" PRIu32 " tokens", rows->positions);
    between = " and ";
  }
}
