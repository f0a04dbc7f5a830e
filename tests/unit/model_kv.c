/* SPDX-License-Identifier: MIT */
/* How keys and values are cut into pages, on one device and in parts on several, and the plan of scratch: known
 * geometries, the laws on random ones, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "model/kv_layout.h"
#include "model/kv_store.h"
#include "model/scratch_plan.h"
#include "tests/support/amount.h"

static uint64_t next(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

/* Every `period`-th layer is global. */
static weft_kv_geometry make(uint32_t n_layers, uint32_t period, const uint32_t local[2], const uint32_t global[2],
                             uint32_t window) {
  weft_kv_geometry g = {.n_layers = n_layers, .n_sets = n_layers};
  for (uint32_t l = 0; l < n_layers; l++) {
    bool is_global = l % period == period - 1;
    const uint32_t *shape = is_global ? global : local;
    g.set[l] = (weft_kv_set){
        .rows = {WEFT_TYPE_BF16, shape[0], shape[1], 1, false}, .window = is_global ? 0 : window, .layer = (uint16_t)l};
  }
  return g;
}

static weft_kv_geometry gemma_26b(void) {
  return make(30, 6, (const uint32_t[]){8, 256}, (const uint32_t[]){2, 512}, 1024);
}

static weft_kv_geometry demo(void) {
  return make(6, 3, (const uint32_t[]){2, 64}, (const uint32_t[]){1, 128}, 64);
}

static void set_type(weft_kv_geometry *g, weft_type type) {
  for (uint32_t s = 0; s < g->n_sets; s++) g->set[s].rows.type = type;
}

/* Bytes of a block, counted by another formula than the layout's. */
static uint64_t block_bytes(const weft_kv_rows *rows, uint32_t block_tokens) {
  uint64_t row = weft_type_row_bytes(rows->type, (uint64_t)rows->n_kv_heads * rows->head_dim);
  return (rows->values_are_keys ? row : 2 * row) * block_tokens / rows->positions;
}

/* Every set has a place of its own inside the page of its device; retention is that of its group; a block holds whole
 * rows. */
static void check_laws(const weft_kv_geometry *g, const weft_kv_layout *layout) {
  uint64_t used[WEFT_GROUPS_MAX][WEFT_DEVICES_MAX] = {{0}};
  uint32_t n_in[WEFT_GROUPS_MAX] = {0};
  double waste = 0;
  uint64_t page_bytes = 0;
  assert_in_range(layout->n_groups, 1, WEFT_GROUPS_MAX);
  uint32_t n_rows = 0;
  for (uint32_t s = 0; s < g->n_sets; s++) {
    const weft_kv_place *place = &layout->place[s];
    assert_true(place->group < layout->n_groups);
    const weft_layer_group *group = &layout->group[place->group];
    assert_int_equal(place->part, g->set[s].part);
    if (g->set[s].state.n_units > 0) continue; /* check_states */
    n_rows += 1;
    const weft_kv_rows *rows = &g->set[s].rows;
    assert_true(place->rows.type == rows->type && place->rows.positions == rows->positions);
    assert_true(place->rows.n_kv_heads == rows->n_kv_heads && place->rows.head_dim == rows->head_dim);
    assert_true(place->rows.values_are_keys == rows->values_are_keys);
    assert_int_equal(group->window, g->set[s].window);
    assert_int_equal(group->from_border, g->set[s].from_border);
    assert_int_equal(group->block_tokens % place->rows.positions, 0);
    assert_int_equal(place->bytes, block_bytes(&place->rows, group->block_tokens));
    assert_int_equal(place->offset, used[place->group][place->part]); /* no gap, so nothing overlaps */
    used[place->group][place->part] += place->bytes;
    n_in[place->group] += 1;
  }
  for (uint32_t i = 0; i < layout->n_groups; i++) {
    const weft_layer_group *group = &layout->group[i];
    uint64_t all = 0;
    if (group->state_pages > 0) continue;
    for (uint32_t p = 0; p < WEFT_DEVICES_MAX; p++) {
      all += used[i][p];
      assert_true(used[i][p] <= layout->part_bytes[p]);
    }
    assert_int_equal(group->n_layers, n_in[i]);
    assert_true(n_in[i] > 0);
    assert_true(group->block_tokens >= 1 && group->block_tokens <= 128);
    assert_int_equal(group->block_tokens & (group->block_tokens - 1), 0);
    waste += n_in[i] * (1 - (double)all / (double)layout->page_bytes);
  }
  assert_true(layout->padding > waste / n_rows - 1e-9 && layout->padding < waste / n_rows + 1e-9);
  for (uint32_t p = 0; p < WEFT_DEVICES_MAX; p++) {
    page_bytes += layout->part_bytes[p];
    assert_int_equal(layout->part_bytes[p] % 256, 0);
    assert_true(p < layout->n_parts || layout->part_bytes[p] == 0);
  }
  assert_int_equal(layout->page_bytes, page_bytes);
}

/* The layout of a model that has the pool for itself. */
static weft_kv_layout layout_alone(const weft_kv_geometry *g) {
  weft_kv_layout layout;
  assert_int_equal(weft_kv_layout_choose(&g, 1, 0, &layout, NULL), WEFT_OK);
  check_laws(g, &layout);
  return layout;
}

static void test_gemma_26b(void **state) {
  (void)state;
  weft_kv_geometry g = gemma_26b();
  const weft_kv_layout layout = layout_alone(&g);
  assert_int_equal(layout.page_bytes, 640 * 1024);
  assert_int_equal(layout.n_groups, 6);
  assert_true(layout.padding == 0);
  for (uint32_t i = 0; i < 6; i++) {
    assert_int_equal(layout.group[i].n_layers, 5);
    assert_int_equal(layout.group[i].block_tokens, layout.group[i].window > 0 ? 16 : 32);
  }
  assert_int_equal(weft_kv_bytes_per_token(&g, false), 225280);
  assert_int_equal(weft_kv_bytes_per_token(&g, true), 20480);
}

static void test_demo(void **state) {
  (void)state;
  weft_kv_geometry g = demo();
  const weft_kv_layout layout = layout_alone(&g);
  assert_int_equal(layout.page_bytes, 32 * 1024);
  assert_true(layout.n_groups == 2 && layout.padding == 0);
  assert_int_equal(layout.group[0].block_tokens, 16);
  assert_int_equal(layout.group[1].block_tokens, 32);
}

static void test_fixed_blocks(void **state) {
  (void)state;
  weft_kv_geometry g = demo();
  const weft_kv_geometry *list = &g;
  weft_kv_layout layout;
  for (uint32_t fixed = 1; fixed <= 128; fixed *= 2) {
    assert_int_equal(weft_kv_layout_choose(&list, 1, fixed, &layout, NULL), WEFT_OK);
    check_laws(&g, &layout);
    uint32_t least = 128;
    for (uint32_t i = 0; i < layout.n_groups; i++) {
      if (layout.group[i].block_tokens < least) least = layout.group[i].block_tokens;
    }
    assert_int_equal(least, fixed);
  }
}

static void test_several_models(void **state) {
  (void)state;
  weft_kv_geometry g[3] = {demo(), demo(), make(4, 2, (const uint32_t[]){1, 64}, (const uint32_t[]){3, 40}, 32)};
  const weft_kv_geometry *list[3] = {&g[0], &g[1], &g[2]};
  weft_kv_layout layout[3];
  set_type(&g[1], WEFT_TYPE_F32);
  assert_int_equal(weft_kv_layout_choose(list, 3, 0, layout, NULL), WEFT_OK);
  for (uint32_t i = 0; i < 3; i++) {
    check_laws(&g[i], &layout[i]);
    assert_int_equal(layout[i].page_bytes, layout[0].page_bytes);
    assert_int_equal(layout[i].place[0].rows.type, g[i].set[0].rows.type);
  }
  assert_true(layout[0].padding == 0 && layout[1].padding == 0); /* twice the bytes: half the tokens */
}

static void test_random_geometries(void **state) {
  (void)state;
  uint64_t seed = 4711;
  for (uint32_t i = 0, n = test_amount(30, 150, 3000); i < n; i++) {
    uint32_t local[2] = {1 + (uint32_t)(next(&seed) % 8), 8 * (1 + (uint32_t)(next(&seed) % 32))};
    uint32_t global[2] = {1 + (uint32_t)(next(&seed) % 4), 8 * (1 + (uint32_t)(next(&seed) % 64))};
    weft_kv_geometry g = make(1 + (uint32_t)(next(&seed) % 64), 1 + (uint32_t)(next(&seed) % 6), local, global,
                              1 + (uint32_t)(next(&seed) % 4096));
    if (next(&seed) % 2 == 0) set_type(&g, WEFT_TYPE_F32);
    const weft_kv_geometry *list = &g;
    weft_kv_layout layout;
    weft_error error = {{0}};
    assert_int_equal(weft_kv_layout_choose(&list, 1, 0, &layout, &error), WEFT_OK);
    check_laws(&g, &layout);
    assert_true(layout.padding < 0.5);
  }
}

/* Layers from `cut` on lie on a second device. */
static weft_kv_layout layout_cut(weft_kv_geometry *g, uint32_t cut) {
  for (uint32_t l = 0; l < g->n_layers; l++) g->set[l].part = l >= cut;
  return layout_alone(g);
}

/* Where every device has a share of each class in one proportion, two devices cost no room: a page of the same bytes,
 * the same groups. Where this cannot be, the padding is small. */
static void test_parts(void **state) {
  (void)state;
  weft_kv_geometry g = gemma_26b();
  const weft_kv_layout one = layout_alone(&g);
  const weft_kv_layout two = layout_cut(&g, 18);
  assert_int_equal(two.n_parts, 2);
  assert_int_equal(two.page_bytes, one.page_bytes);
  assert_true(two.part_bytes[0] == 384 * 1024 && two.part_bytes[1] == 256 * 1024);
  assert_true(two.padding == 0 && two.n_groups == one.n_groups);
  for (uint32_t i = 0; i < 6; i++) assert_memory_equal(&two.group[i], &one.group[i], sizeof one.group[i]);
  for (uint32_t cut = 1; cut < 30; cut += test_amount(5, 1, 1)) {
    const weft_kv_layout any = layout_cut(&g, cut);
    assert_true(any.padding <= (cut < 9 || cut > 24 ? 0.17 : 0.1));
    if (cut % 6 == 0) assert_true(any.padding == 0);
  }
}

/* Classes that lie on one device each still share a page. */
static void test_parts_apart(void **state) {
  (void)state;
  weft_kv_geometry g = make(8, 9, (const uint32_t[]){4, 64}, (const uint32_t[]){4, 64}, 32);
  for (uint32_t l = 4; l < 8; l++) {
    g.set[l].rows.head_dim = 128;
    g.set[l].window = 0;
  }
  const weft_kv_layout layout = layout_cut(&g, 4);
  assert_true(layout.part_bytes[0] > 0 && layout.part_bytes[1] > 0);
}

/* Each shard has a page as a model with its heads alone has it; what is counted in bytes is of all shards. */
static void test_shards(void **state) {
  (void)state;
  weft_kv_geometry one = gemma_26b(), two;
  for (uint32_t l = 0; l < one.n_layers; l++) one.set[l].rows.n_kv_heads /= 2;
  two = one;
  two.n_shards = 2;
  const weft_kv_geometry *geometry = &one;
  weft_kv_layout alone, shared;
  weft_error error = {{0}};
  assert_int_equal(weft_kv_layout_choose(&geometry, 1, 0, &alone, &error), WEFT_OK);
  geometry = &two;
  assert_int_equal(weft_kv_layout_choose(&geometry, 1, 0, &shared, &error), WEFT_OK);
  assert_int_equal(shared.n_parts, 2);
  assert_int_equal(shared.page_bytes, 2 * alone.page_bytes);
  assert_int_equal(shared.n_groups, alone.n_groups);
  for (uint32_t p = 0; p < 2; p++) assert_int_equal(shared.part_bytes[p], alone.page_bytes);
  for (uint32_t windows_full = 0; windows_full < 2; windows_full++) {
    assert_int_equal(weft_kv_bytes_per_token(&two, windows_full), 2 * weft_kv_bytes_per_token(&one, windows_full));
  }
  weft_split split = {.n_devices = 2, .n_shards = 2};
  weft_device_config config = {.backend = "ref", .n_threads = 1};
  weft_kv_store *store;
  for (uint32_t p = 0; p < 2; p++) assert_int_equal(weft_device_open(&config, &split.device[p], NULL), WEFT_OK);
  assert_int_equal(weft_kv_store_open(&split, &shared, 3, &store, &error), WEFT_OK);
  for (uint32_t p = 0; p < 2; p++) {
    weft_kv_view view = weft_kv_store_view(store, &shared, 11, p);
    assert_ptr_equal(view.base, store->part[p].base);
    assert_int_equal(view.n_kv_heads, two.set[11].rows.n_kv_heads);
  }
  weft_kv_store_close(store);
  for (uint32_t p = 0; p < 2; p++) weft_device_close(split.device[p]);
  const weft_kv_geometry *both[2] = {&one, &two};
  weft_kv_layout layouts[2];
  assert_int_equal(weft_kv_layout_choose(both, 2, 0, layouts, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "equally many shards"));
}

/* One part in as many shards: all have equal bytes of a page, also where there are fewer heads than shards. */
static void test_many_shards(void **state) {
  (void)state;
  for (uint32_t n_shards = 2; n_shards <= 16; n_shards *= 2) {
    weft_kv_geometry one = gemma_26b(), many;
    for (uint32_t l = 0; l < one.n_layers; l++) {
      uint32_t n = one.set[l].rows.n_kv_heads;
      one.set[l].rows.n_kv_heads = n < n_shards ? 1 : n / n_shards;
    }
    many = one;
    many.n_shards = n_shards;
    const weft_kv_layout alone = layout_alone(&one);
    const weft_kv_geometry *geometry = &many;
    weft_kv_layout shared;
    assert_int_equal(weft_kv_layout_choose(&geometry, 1, 0, &shared, NULL), WEFT_OK);
    assert_int_equal(shared.n_parts, n_shards);
    assert_int_equal(shared.page_bytes, n_shards * alone.page_bytes);
    for (uint32_t p = 0; p < n_shards; p++) assert_int_equal(shared.part_bytes[p], alone.page_bytes);
  }
}

/* Parts in shards: the shards of a part have equal bytes of a page, those that a device has where each part is one. */
static void test_parts_of_shards(void **state) {
  (void)state;
  enum { PARTS = 2, SHARDS = 4 };
  weft_kv_geometry one = gemma_26b(), many;
  for (uint32_t l = 0; l < one.n_layers; l++) {
    uint32_t n = one.set[l].rows.n_kv_heads;
    one.set[l].rows.n_kv_heads = n < SHARDS ? 1 : n / SHARDS; /* fewer heads than shards: two have the same */
    one.set[l].part = l >= 18;
  }
  many = one;
  many.n_shards = SHARDS;
  const weft_kv_layout alone = layout_alone(&one);
  const weft_kv_geometry *geometry = &many;
  weft_kv_layout shared;
  weft_error error = {{0}};
  assert_int_equal(weft_kv_layout_choose(&geometry, 1, 0, &shared, &error), WEFT_OK);
  assert_int_equal(alone.n_parts, PARTS);
  assert_int_equal(shared.n_parts, PARTS * SHARDS);
  assert_int_equal(shared.page_bytes, SHARDS * alone.page_bytes);
  for (uint32_t p = 0; p < PARTS * SHARDS; p++) assert_int_equal(shared.part_bytes[p], alone.part_bytes[p / SHARDS]);
  weft_split split = {.n_devices = PARTS * SHARDS, .n_shards = SHARDS};
  weft_device_config config = {.backend = "ref", .n_threads = 1};
  weft_kv_store *store;
  for (uint32_t p = 0; p < split.n_devices; p++)
    assert_int_equal(weft_device_open(&config, &split.device[p], NULL), WEFT_OK);
  assert_int_equal(weft_kv_store_open(&split, &shared, 3, &store, &error), WEFT_OK);
  for (uint32_t s = 0; s < SHARDS; s++) {
    assert_ptr_equal(weft_kv_store_view(store, &shared, 17, s).base, store->part[s].base);
    assert_ptr_equal(weft_kv_store_view(store, &shared, 18, s).base, store->part[SHARDS + s].base);
    assert_int_equal(weft_kv_store_view(store, &shared, 18, s).k_offset, alone.place[18].offset);
  }
  weft_kv_store_close(store);
  for (uint32_t p = 0; p < split.n_devices; p++) weft_device_close(split.device[p]);
}

static void test_random_parts(void **state) {
  (void)state;
  uint64_t seed = 2031;
  for (uint32_t i = 0, n_rounds = test_amount(10, 30, 600); i < n_rounds; i++) {
    uint32_t n = 4 + (uint32_t)(next(&seed) % 40), n_parts = 2 + (uint32_t)(next(&seed) % 3);
    weft_kv_geometry g = make(n, 1 + (uint32_t)(next(&seed) % 6), (const uint32_t[]){4, 128},
                              (const uint32_t[]){1 + (uint32_t)(next(&seed) % 4), 256}, 512);
    for (uint32_t l = 0; l < n; l++) g.set[l].part = (uint8_t)(l * n_parts / n);
    assert_int_equal(layout_alone(&g).n_parts, n_parts);
  }
}

/* On one device a layout is what it was before models had parts: a digest of 200 layouts that were made then. */
static uint64_t digest_add(uint64_t digest, uint64_t value) {
  return (digest ^ value) * 1099511628211ull;
}

static uint64_t digest_layout(uint64_t digest, const weft_kv_geometry *g, const weft_kv_layout *layout) {
  digest = digest_add(digest_add(digest, layout->page_bytes), layout->n_groups);
  for (uint32_t i = 0; i < layout->n_groups; i++) {
    uint32_t s = 0;
    while (layout->place[s].group != i) s++;
    digest = digest_add(digest, layout->group[i].block_tokens);
    digest = digest_add(digest, layout->group[i].n_layers);
    digest = digest_add(digest, layout->place[s].bytes);
  }
  for (uint32_t s = 0; s < g->n_sets; s++) {
    const weft_kv_place *place = &layout->place[s];
    digest = digest_add(digest_add(digest, place->group), place->offset / place->bytes);
  }
  return digest;
}

static weft_kv_geometry draw_geometry(uint64_t *seed) {
  uint32_t local[2] = {1 + (uint32_t)(next(seed) % 8), 8 * (1 + (uint32_t)(next(seed) % 32))};
  uint32_t global[2] = {1 + (uint32_t)(next(seed) % 4), 8 * (1 + (uint32_t)(next(seed) % 64))};
  uint32_t n_layers = 1 + (uint32_t)(next(seed) % 48), period = 1 + (uint32_t)(next(seed) % 6);
  weft_kv_geometry g = make(n_layers, period, local, global, 1 + (uint32_t)(next(seed) % 2048));
  if (next(seed) % 2 == 0) set_type(&g, WEFT_TYPE_F32);
  return g;
}

static void test_one_part_is_as_before(void **state) {
  (void)state;
  uint64_t seed = 99, digest = 1469598103934665603ull;
  for (uint32_t i = 0; i < 200; i++) {
    weft_kv_geometry g[3];
    const weft_kv_geometry *list[3] = {&g[0], &g[1], &g[2]};
    weft_kv_layout layout[3];
    uint32_t n = 1 + (uint32_t)(next(&seed) % 3), fixed = next(&seed) % 3 == 0 ? 1u << next(&seed) % 8 : 0;
    for (uint32_t m = 0; m < n; m++) g[m] = draw_geometry(&seed);
    weft_status status = weft_kv_layout_choose(list, n, fixed, layout, NULL);
    digest = digest_add(digest, (uint64_t)status);
    for (uint32_t m = 0; m < n && status == WEFT_OK; m++) digest = digest_layout(digest, &g[m], &layout[m]);
  }
  assert_int_equal(digest, 0x31d0781c51367a05ull);
}

/* A model that compresses, with the shapes of DeepSeek-V4-Flash: every layer keeps the raw rows of a window; of the
 * others but the first two, layers in turns keep a row for every 4 positions, with a narrow one beside it that says
 * which of them are read, or a row for every 128, and what their compressors have not used yet. */
static weft_kv_geometry compressing(void) {
  const weft_kv_rows raw = {WEFT_TYPE_BF16, 1, 512, 1, true}, four = {WEFT_TYPE_BF16, 1, 512, 4, true},
                     index = {WEFT_TYPE_BF16, 1, 128, 4, true}, many = {WEFT_TYPE_BF16, 1, 512, 128, true},
                     of_four = {WEFT_TYPE_F32, 1, 1024, 1, false}, of_index = {WEFT_TYPE_F32, 1, 256, 1, false},
                     of_many = {WEFT_TYPE_F32, 1, 512, 1, false};
  weft_kv_geometry g = {.n_layers = 43};
  for (uint16_t l = 0; l < 43; l++) {
    const weft_kv_set even[] = {{.rows = four, .layer = l},
                                {.rows = index, .layer = l},
                                {.rows = of_four, .window = 8, .layer = l},
                                {.rows = of_index, .window = 8, .layer = l}};
    const weft_kv_set odd[] = {{.rows = many, .layer = l}, {.rows = of_many, .window = 128, .layer = l}};
    g.set[g.n_sets++] = (weft_kv_set){.rows = raw, .window = 128, .layer = l};
    for (uint32_t i = 0; l >= 2 && i < (l % 2 == 0 ? 4 : 2); i++) g.set[g.n_sets++] = l % 2 == 0 ? even[i] : odd[i];
  }
  return g;
}

/* Rows of 4 and of 128 positions share pages, with little padding, also with other models and on several devices. */
static void test_compressed_rows(void **state) {
  (void)state;
  weft_kv_geometry g = compressing(), other = gemma_26b();
  const weft_kv_layout layout = layout_alone(&g);
  assert_true(layout.padding < 0.05);
  uint64_t n_bytes = 0;
  for (uint32_t s = 0; s < g.n_sets; s++) {
    const weft_kv_place *place = &layout.place[s];
    if (place->rows.positions == 1) continue;
    assert_int_equal(layout.group[place->group].block_tokens, 128);
    assert_int_equal(layout.group[place->group].window, 0);
    n_bytes += place->bytes;
  }
  assert_int_equal(n_bytes / 128, 6880); /* the facts' count of a token in 16 bits */
  assert_int_equal(weft_kv_bytes_per_token(&g, true), 6880);
  for (uint32_t i = 0; i < layout.n_groups; i++) {
    bool has[129] = {false};
    for (uint32_t s = 0; s < g.n_sets; s++) {
      if (layout.place[s].group == i) has[layout.place[s].rows.positions] = true;
    }
    assert_true(has[1] ? !has[4] && !has[128] : has[4] && has[128]);
  }
  const weft_kv_geometry *both[2] = {&g, &other};
  weft_kv_layout shared[2];
  assert_int_equal(weft_kv_layout_choose(both, 2, 0, shared, NULL), WEFT_OK);
  for (uint32_t m = 0; m < 2; m++) {
    check_laws(both[m], &shared[m]);
    assert_int_equal(shared[m].page_bytes, shared[0].page_bytes);
    assert_true(shared[m].padding < 0.25);
  }
  for (uint32_t s = 0; s < g.n_sets; s++) g.set[s].part = g.set[s].layer >= 22;
  assert_int_equal(layout_alone(&g).n_parts, 2);
  for (uint32_t s = 0; s < g.n_sets; s++) g.set[s].part = 0;
  weft_error error;
  weft_kv_layout none;
  const weft_kv_geometry *list = &g;
  g.set[1].rows.positions = 3;
  assert_int_equal(weft_kv_layout_choose(&list, 1, 0, &none, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "has a row for 3 positions; give a power of two up to 128"));
}

/* A model with a recurrence, with the shapes of a mixture of 35B: of four layers three keep a matrix of 128 x 128 for
 * each of 32 heads and what a convolution needs, and of the last 64 positions the rows that the next state is made of;
 * the fourth keeps keys and values of all. */
static weft_kv_geometry recurrent(void) {
  const weft_kv_rows keys = {WEFT_TYPE_BF16, 2, 256, 1, false}, since = {WEFT_TYPE_BF16, 1, 8192, 1, true};
  const weft_kv_state matrix = {.n_units = 32, .every = 64, .unit_bytes = 128 * 128 * 4},
                      convolution = {.n_units = 1, .every = 64, .unit_bytes = 3 * 8192 * 4};
  weft_kv_geometry g = {.n_layers = 40};
  for (uint16_t l = 0; l < 40; l++) {
    if (l % 4 == 3) {
      g.set[g.n_sets++] = (weft_kv_set){.rows = keys, .layer = l};
      continue;
    }
    g.set[g.n_sets++] = (weft_kv_set){.rows = since, .window = 64, .from_border = true, .layer = l};
    g.set[g.n_sets++] = (weft_kv_set){.state = matrix, .layer = l};
    g.set[g.n_sets++] = (weft_kv_set){.state = convolution, .layer = l};
  }
  return g;
}

/* Units lie in the pages of the run, whole, and nothing lies where another unit does. Groups of states come last.
 * Returns the pages of a run. */
static uint32_t check_states(const weft_kv_geometry *g, const weft_kv_layout *layout) {
  static unsigned char used[WEFT_DEVICES_MAX][1 << 20]; /* by 256 bytes */
  uint32_t group = layout->n_groups - 1, n_pages[WEFT_DEVICES_MAX] = {0}, most = 0;
  memset(used, 0, sizeof used);
  assert_true(layout->group[group].state_pages > 0 && layout->group[group - 1].state_pages == 0);
  for (uint32_t s = 0; s < g->n_sets; s++) {
    const weft_kv_state *state = &g->set[s].state;
    uint32_t p = g->set[s].part;
    for (uint32_t u = 0; u < state->n_units; u++) {
      weft_kv_unit at = weft_kv_state_unit(layout, s, u);
      assert_int_equal(layout->place[s].group, group);
      assert_int_equal(layout->group[group].block_tokens, state->every);
      assert_int_equal(at.offset % 256, 0);
      assert_true(at.offset + state->unit_bytes <= layout->part_bytes[p]);
      assert_true(at.page < layout->group[group].state_pages);
      uint64_t first = (at.page * layout->part_bytes[p] + at.offset) / 256;
      for (uint64_t i = first; i < first + (state->unit_bytes + 255) / 256; i++) {
        assert_true(i < sizeof used[p] && used[p][i] == 0);
        used[p][i] = 1;
      }
      if (at.page + 1 > n_pages[p]) n_pages[p] = at.page + 1;
    }
  }
  for (uint32_t p = 0; p < WEFT_DEVICES_MAX; p++)
    if (n_pages[p] > most) most = n_pages[p];
  assert_int_equal(most, layout->group[group].state_pages);
  return most;
}

/* A sequence holds its keys, the state at its last border, and the rows since then: at a border none. */
static void check_pages_held(const weft_kv_layout *layout) {
  assert_int_equal(weft_kv_pages_held(layout, 0, 0), 0);
  for (uint32_t n = 1; n < 300; n++) {
    uint64_t n_keys = 0, n_rows = 0, n_state = 0;
    for (uint32_t g = 0; g < layout->n_groups; g++) {
      const weft_layer_group *group = &layout->group[g];
      for (uint32_t p = 0; p < n && group->window == 0 && group->state_pages == 0; p += group->block_tokens)
        n_keys += 1;
      for (uint32_t p = n / 64 * 64; p < n && group->from_border; p += group->block_tokens) n_rows += 1;
      if (n >= 64) n_state += group->state_pages;
    }
    assert_int_equal(weft_kv_pages_held(layout, n, 0), n_keys + n_rows + n_state);
    assert_true((n_rows == 0) == (n % 64 == 0));
  }
}

/* A state of 63 MiB is some hundred pages, laid out beside rows; also with another model, and on two devices. */
static void test_states(void **state) {
  (void)state;
  weft_kv_geometry g = recurrent(), other = gemma_26b();
  assert_int_equal(weft_kv_state_bytes(&g), 30 * (32 * 65536 + 98304));
  assert_int_equal(weft_kv_bytes_per_token(&g, true), 10 * 2048);
  const weft_kv_layout layout = layout_alone(&g);
  assert_true(layout.padding < 0.05);
  double pages = (double)weft_kv_state_bytes(&g) / (double)layout.page_bytes;
  assert_true(check_states(&g, &layout) < 1.12 * pages + 1);
  const weft_kv_geometry *both[2] = {&other, &g};
  weft_kv_layout shared[2];
  assert_int_equal(weft_kv_layout_choose(both, 2, 0, shared, NULL), WEFT_OK);
  for (uint32_t m = 0; m < 2; m++) check_laws(both[m], &shared[m]);
  assert_int_equal(shared[1].page_bytes, 640 * 1024);
  assert_in_range(check_states(&g, &shared[1]), 101, 110);
  check_pages_held(&layout);
  for (uint32_t s = 0; s < g.n_sets; s++) g.set[s].part = g.set[s].layer >= 20;
  const weft_kv_layout parts = layout_alone(&g);
  assert_int_equal(parts.n_parts, 2);
  pages = (double)weft_kv_state_bytes(&g) / 2 / (double)parts.part_bytes[0];
  assert_true(check_states(&g, &parts) < 1.12 * pages + 1);
}

/* A state of more pages than a list has is refused with a line. */
static void test_state_too_large(void **state) {
  (void)state;
  weft_kv_geometry g = recurrent();
  const weft_kv_geometry *alone = &g;
  weft_kv_layout layout;
  weft_error error = {{0}};
  for (uint32_t s = 0; s < g.n_sets; s++) g.set[s].state.n_units *= 60;
  assert_int_equal(weft_kv_layout_choose(&alone, 1, 0, &layout, &error), WEFT_E_UNSUPPORTED);
  assert_non_null(strstr(error.text, "a state fills"));
  assert_non_null(strstr(error.text, "at most 4096"));
}

/* States beside the rows of the model that compresses: two groups of them, with borders of their own, which leave the
 * rows fewer groups. */
static void test_states_of_two_kinds(void **state) {
  (void)state;
  weft_kv_geometry g = compressing();
  for (uint32_t i = 0; i < 20; i++) {
    g.set[g.n_sets++] = (weft_kv_set){.layer = 42, .state = {.n_units = 7, .every = 64, .unit_bytes = 1000}};
    g.set[g.n_sets++] = (weft_kv_set){.layer = 42, .state = {.n_units = 1, .every = 128, .unit_bytes = 70000}};
  }
  const weft_kv_layout layout = layout_alone(&g);
  assert_true(layout.padding < 0.1);
  for (uint32_t i = 0; i < layout.n_groups; i++) {
    const weft_layer_group *group = &layout.group[i];
    uint32_t from_end = layout.n_groups - 1 - i;
    if (from_end >= 2) assert_int_equal(group->state_pages, 0);
    if (from_end >= 2) continue;
    assert_int_equal(group->block_tokens, from_end == 1 ? 64 : 128);
    assert_int_equal(group->n_layers, 20);
    uint64_t n_bytes = 20 * (from_end == 1 ? 7168 : 70144), page = layout.page_bytes;
    assert_in_range(group->state_pages, (n_bytes + page - 1) / page,
                    (uint64_t)(1.12 * (double)n_bytes / (double)page) + 1);
  }
}

static void test_refused_states(void **state) {
  (void)state;
  weft_kv_layout layout;
  weft_error error;
  weft_kv_geometry g = recurrent();
  const weft_kv_geometry *list = &g;
  g.set[1].state.every = 48;
  assert_int_equal(weft_kv_layout_choose(&list, 1, 0, &layout, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "layer 0 has a state at every 48 positions; give a power of two up to 256"));
  g.set[1].state = (weft_kv_state){.n_units = 1, .every = 64, .unit_bytes = 0};
  assert_int_equal(weft_kv_layout_choose(&list, 1, 0, &layout, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "in units of 0 bytes"));
  g = recurrent();
  for (uint32_t s = 0; s < g.n_sets; s++)
    if (g.set[s].state.n_units == 0)
      g.set[s] = (weft_kv_set){.layer = g.set[s].layer, .state = {.n_units = 1, .every = 64, .unit_bytes = 256}};
  assert_int_equal(weft_kv_layout_choose(&list, 1, 0, &layout, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "no layer keeps rows"));
  g = demo();
  for (uint32_t s = 0; s < 2; s++) /* no page has room for a unit and rows of 128 tokens of nothing else */
    g.set[g.n_sets++] = (weft_kv_set){.layer = 5, .state = {.n_units = 1, .every = 64, .unit_bytes = 16 << 20}};
  assert_int_equal(weft_kv_layout_choose(&list, 1, 0, &layout, &error), WEFT_E_UNSUPPORTED);
  g = recurrent();
  g.set[3].keys_of = 2; /* a state has no keys to be read */
  g.set[3].state.n_units = 0;
  g.set[3].rows = g.set[0].rows;
  assert_int_equal(weft_kv_layout_choose(&list, 1, 0, &layout, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "reads keys that no earlier layer of its part has"));
}

/* Layers that read the keys of an earlier layer need no room, and have that layer's place. */
static void test_shared_keys(void **state) {
  (void)state;
  weft_kv_geometry g = make(42, 6, (const uint32_t[]){2, 256}, (const uint32_t[]){2, 512}, 512), own = g;
  const weft_kv_geometry *list = &g;
  weft_kv_layout layout, wanted;
  weft_error error;
  own.n_layers = own.n_sets = 24;
  for (uint32_t l = 24; l < 42; l++) g.set[l].keys_of = g.set[l].window > 0 ? 23 : 24;
  assert_int_equal(weft_kv_layout_choose(&list, 1, 0, &layout, &error), WEFT_OK);
  list = &own;
  assert_int_equal(weft_kv_layout_choose(&list, 1, 0, &wanted, &error), WEFT_OK);
  check_laws(&own, &layout);
  assert_true(layout.page_bytes == wanted.page_bytes && layout.n_groups == wanted.n_groups);
  assert_memory_equal(layout.group, wanted.group, sizeof layout.group);
  for (uint32_t l = 24; l < 42; l++) {
    uint32_t from = g.set[l].keys_of - 1;
    assert_true(layout.place[l].group == layout.place[from].group &&
                layout.place[l].offset == layout.place[from].offset);
  }
  assert_int_equal(weft_kv_bytes_per_token(&g, false), weft_kv_bytes_per_token(&own, false));
  assert_int_equal(weft_kv_bytes_per_token(&g, true), weft_kv_bytes_per_token(&own, true));
  list = &g;
  g.set[41].keys_of = 42; /* its own number */
  assert_int_equal(weft_kv_layout_choose(&list, 1, 0, &layout, &error), WEFT_E_INVALID);
  g.set[41].keys_of = 30; /* a layer that shares keys itself */
  assert_int_equal(weft_kv_layout_choose(&list, 1, 0, &layout, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "layer 41 reads keys that no earlier layer of its part has"));
  g.set[41].keys_of = 24;
  g.set[41].part = 1; /* the keys lie on another device */
  assert_int_equal(weft_kv_layout_choose(&list, 1, 0, &layout, &error), WEFT_E_INVALID);
}

static void test_refused_layouts(void **state) {
  (void)state;
  weft_kv_geometry g = demo();
  const weft_kv_geometry *list[17];
  weft_kv_layout layout[17];
  weft_error error;
  for (uint32_t i = 0; i < 17; i++) list[i] = &g;
  assert_int_equal(weft_kv_layout_choose(list, 0, 0, layout, &error), WEFT_E_INVALID);
  assert_int_equal(weft_kv_layout_choose(list, 17, 0, layout, &error), WEFT_E_INVALID);
  assert_int_equal(weft_kv_layout_choose(list, 1, 3, layout, &error), WEFT_E_INVALID);
  assert_int_equal(weft_kv_layout_choose(list, 1, 256, layout, &error), WEFT_E_INVALID);
  g.n_layers = 0;
  assert_int_equal(weft_kv_layout_choose(list, 1, 0, layout, &error), WEFT_E_INVALID);
  g.n_layers = g.n_sets = 17;
  for (uint32_t l = 0; l < 17; l++)
    g.set[l].rows = (weft_kv_rows){WEFT_TYPE_BF16, 8 * (l + 1), 8 * (l + 1), 1, false}; /* all differ */
  assert_int_equal(weft_kv_layout_choose(list, 1, 0, layout, &error), WEFT_E_UNSUPPORTED);
  g = demo();
  g.set[0].rows.n_kv_heads = 0;
  assert_int_equal(weft_kv_layout_choose(list, 1, 0, layout, &error), WEFT_E_UNSUPPORTED);
}

/* Every copy is made of what lies on each device; in host memory the parts of a page lie one behind another. */
static void test_store_in_parts(void **state) {
  (void)state;
  weft_kv_geometry g = gemma_26b();
  const weft_kv_layout layout = layout_cut(&g, 12);
  weft_split split = {.n_devices = 2, .first_layer = {0, 12}};
  weft_device_config config = {.backend = "ref", .n_threads = 1};
  weft_error error;
  weft_kv_store *store;
  uint64_t n_moves, n[2] = {layout.part_bytes[0], layout.part_bytes[1]};
  for (uint32_t p = 0; p < 2; p++) assert_int_equal(weft_device_open(&config, &split.device[p], NULL), WEFT_OK);
  assert_int_equal(weft_kv_store_open(&split, &layout, 3, &store, &error), WEFT_OK);
  assert_int_equal(weft_kv_store_add_host(store, 2, &error), WEFT_OK);
  for (uint32_t p = 0; p < 2; p++) {
    memset(store->part[p].base, 0, 3 * n[p]);
    memset((char *)store->part[p].base + n[p], 0x50 + (int)p, n[p]);
  }
  const weft_page_copy copies[] = {{1, 2, WEFT_PAGE_TO_PAGE}, {1, 1, WEFT_PAGE_TO_HOST}, {1, 0, WEFT_HOST_TO_PAGE}};
  assert_int_equal(weft_kv_store_copy(store, copies, 3, &n_moves), WEFT_OK);
  const char *slot = (const char *)store->host + layout.page_bytes;
  for (uint32_t p = 0; p < 2; p++) {
    const char *base = store->part[p].base;
    assert_memory_equal(base, base + n[p], n[p]);
    assert_memory_equal(base + 2 * n[p], base + n[p], n[p]);
    assert_memory_equal(slot + p * n[0], base + n[p], n[p]);
    assert_int_equal(base[n[p]], 0x50 + (int)p);
  }
  assert_ptr_equal(weft_kv_store_view(store, &layout, 11, 0).base, store->part[0].base);
  assert_ptr_equal(weft_kv_store_view(store, &layout, 12, 0).base, store->part[1].base);
  assert_int_equal(weft_kv_store_view(store, &layout, 12, 0).page_bytes, n[1]);
  weft_kv_store_close(store);
  for (uint32_t p = 0; p < 2; p++) weft_device_close(split.device[p]);
}

static void test_store(void **state) {
  (void)state;
  weft_kv_geometry g = demo();
  const weft_kv_geometry *list = &g;
  weft_kv_layout layout;
  weft_device *device;
  weft_kv_store *store;
  weft_error error;
  weft_device_config config = {.backend = "ref", .n_threads = 1, .isa = NULL};
  assert_int_equal(weft_kv_layout_choose(&list, 1, 0, &layout, NULL), WEFT_OK);
  assert_int_equal(weft_device_open(&config, &device, NULL), WEFT_OK);
  const weft_split split = weft_split_one(device);
  const weft_kv_layout huge = {.page_bytes = UINT64_MAX / 2, .n_parts = 1, .part_bytes = {UINT64_MAX / 2}};
  assert_int_equal(weft_kv_store_open(&split, &layout, 0, &store, &error), WEFT_E_INVALID);
  assert_int_equal(weft_kv_store_open(&split, &huge, 3, &store, &error), WEFT_E_INVALID);
  assert_null(store);
  assert_int_equal(weft_kv_store_open(&split, &layout, 3, &store, &error), WEFT_OK);
  assert_true(weft_kv_store_holds(store, &layout) && !weft_kv_store_holds(store, &huge));
  uint64_t end = 0, n_moves = 9;
  for (uint32_t l = 0; l < g.n_layers; l++) { /* layers 2 and 5 are global */
    weft_kv_view view = weft_kv_store_view(store, &layout, l, 0);
    uint64_t plane = weft_type_row_bytes(view.type, (uint64_t)view.block_tokens * view.n_kv_heads * view.head_dim);
    if (l == 0 || l == 2) end = 0;
    if (l == 3) end = 2 * layout.place[0].bytes;
    if (l == 5) end = layout.place[2].bytes;
    assert_int_equal(view.k_offset, end);
    assert_int_equal(view.v_offset, end + plane);
    assert_true(view.v_offset + plane <= view.page_bytes);
    end = view.v_offset + plane;
  }
  memset((char *)store->part[0].base + layout.page_bytes, 0x5A, layout.page_bytes);
  memset((char *)store->part[0].base + 2 * layout.page_bytes, 0, layout.page_bytes);
  const weft_page_copy within[] = {{1, 2, WEFT_PAGE_TO_PAGE}, {1, 1, WEFT_PAGE_TO_PAGE}};
  assert_int_equal(weft_kv_store_copy(store, &within[0], 1, &n_moves), WEFT_OK);
  assert_memory_equal((char *)store->part[0].base + layout.page_bytes,
                      (char *)store->part[0].base + 2 * layout.page_bytes, layout.page_bytes);
  assert_int_equal(weft_kv_store_copy(store, &within[1], 1, &n_moves), WEFT_OK);
  assert_int_equal(weft_kv_store_add_host(store, 0, &error), WEFT_OK); /* none */
#if !defined(__SANITIZE_ADDRESS__)                                     /* it ends the program instead */
  assert_int_equal(weft_kv_store_add_host(store, UINT32_MAX, &error), WEFT_E_NO_MEMORY);
  assert_non_null(strstr(error.text, "ask for fewer"));
#endif
  assert_int_equal(weft_kv_store_add_host(store, 2, &error), WEFT_OK);
  const weft_page_copy around[] = {{1, 1, WEFT_PAGE_TO_HOST}, {0, 1, WEFT_PAGE_TO_PAGE}, {1, 0, WEFT_HOST_TO_PAGE}};
  memset(store->part[0].base, 0x11, layout.page_bytes); /* page 1 goes out, page 0 takes its place, and it comes back */
  assert_int_equal(weft_kv_store_copy(store, around, 3, &n_moves), WEFT_OK);
  assert_int_equal(n_moves, 0);
  assert_int_equal(((unsigned char *)store->part[0].base)[0], 0x5A);
  assert_int_equal(((unsigned char *)store->part[0].base)[layout.page_bytes - 1], 0x5A);
  assert_int_equal(((unsigned char *)store->part[0].base)[layout.page_bytes], 0x11);
  const weft_page_copy wrong = {0, 0, 9};
  assert_int_equal(weft_kv_store_copy(store, &wrong, 1, &n_moves), WEFT_E_INVALID);
  weft_kv_store_close(store);
  weft_kv_store_close(NULL);
  weft_device_close(device);
}

static void test_plan(void **state) {
  (void)state;
  scratch_plan plan = {0};
  uint64_t a = scratch_plan_add(&plan, "first", 10, 4);
  uint64_t b = scratch_plan_add(&plan, "second", 300, 1);
  assert_true(a == 0 && b == 256 && plan.at == 768 && plan.n_bytes == 768);
  uint64_t mark = plan.at;
  (void)scratch_plan_add(&plan, "third", 1000, 1);
  scratch_plan_rewind(&plan, mark);
  assert_int_equal(scratch_plan_add(&plan, "fourth", 1, 1), mark); /* shares bytes with the third */
  assert_int_equal(plan.n_bytes, 768 + 1024);
  assert_int_equal(plan.n_rows, 4);
  assert_string_equal(plan.row[1].name, "second");
  assert_int_equal(plan.row[3].offset, mark);
  assert_false(plan.refused);
  (void)scratch_plan_add(&plan, "wraps", UINT64_MAX / 2, 4);
  assert_true(plan.refused);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_gemma_26b),
      cmocka_unit_test(test_demo),
      cmocka_unit_test(test_fixed_blocks),
      cmocka_unit_test(test_several_models),
      cmocka_unit_test(test_random_geometries),
      cmocka_unit_test(test_refused_layouts),
      cmocka_unit_test(test_compressed_rows),
      cmocka_unit_test(test_state_too_large),
      cmocka_unit_test(test_states),
      cmocka_unit_test(test_states_of_two_kinds),
      cmocka_unit_test(test_refused_states),
      cmocka_unit_test(test_shared_keys),
      cmocka_unit_test(test_one_part_is_as_before),
      cmocka_unit_test(test_parts),
      cmocka_unit_test(test_parts_apart),
      cmocka_unit_test(test_shards),
      cmocka_unit_test(test_many_shards),
      cmocka_unit_test(test_parts_of_shards),
      cmocka_unit_test(test_random_parts),
      cmocka_unit_test(test_store_in_parts),
      cmocka_unit_test(test_store),
      cmocka_unit_test(test_plan),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
