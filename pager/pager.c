/* SPDX-License-Identifier: MIT */
/* Law: open takes all memory that the pager will ever use, sized by limits that it has checked; a limit that is too
 * large for a counter is refused with the name of its field. */
#include "pager/pager.h"

#include <math.h>

#include "base/memory.h"
#include "pager/spill.h"

enum { CACHE_LINE = 64, SPILLS_MAX = 1 << 16 };

/* ---- open ------------------------------------------------------------------------------------ */

static bool power_of_two(uint32_t n) {
  return n != 0 && (n & (n - 1)) == 0;
}

static weft_status check_state(const weft_pager_model *model, uint32_t index, uint32_t g, weft_error *error) {
  const weft_layer_group *group = &model->group[g];
  if (group->state_pages > WEFT_STATE_PAGES_MAX)
    return weft_fail(error, WEFT_E_INVALID, "pager: model[%u].group[%u].state_pages is %u; give up to %d", index, g,
                     group->state_pages, WEFT_STATE_PAGES_MAX);
  if (group->state_pages != 0 && group->window != 0)
    return weft_fail(error, WEFT_E_INVALID, "pager: model[%u].group[%u] is of states and has a window; give 0", index,
                     g);
  if (group->from_border && group->window == 0)
    return weft_fail(error, WEFT_E_INVALID,
                     "pager: model[%u].group[%u] keeps what is behind a border and has no window", index, g);
  if (g == 0 ? group->state_pages != 0 : group->state_pages == 0 && group[-1].state_pages != 0)
    return weft_fail(error, WEFT_E_INVALID,
                     "pager: model[%u].group[%u]: give groups of keys and values first, then those of states", index,
                     g);
  return WEFT_OK;
}

static weft_status check_model(const weft_pager_model *model, uint32_t index, weft_error *error) {
  if (model->n_groups == 0 || model->n_groups > WEFT_GROUPS_MAX)
    return weft_fail(error, WEFT_E_INVALID, "pager: model[%u].n_groups is %u; give 1 to %d", index, model->n_groups,
                     WEFT_GROUPS_MAX);
  for (uint32_t g = 0; g < model->n_groups; g++) {
    uint32_t tokens = model->group[g].block_tokens;
    if (!power_of_two(tokens) || tokens > WEFT_BLOCK_TOKENS_MAX)
      return weft_fail(error, WEFT_E_INVALID,
                       "pager: model[%u].group[%u].block_tokens is %u; give a power of two up to %d", index, g, tokens,
                       WEFT_BLOCK_TOKENS_MAX);
    weft_status status = check_state(model, index, g, error);
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}

static weft_status config_check(const weft_pager_config *config, weft_error *error) {
  if (config->n_pages == 0 || config->n_pages > PAGER_PAGES_MAX)
    return weft_fail(error, WEFT_E_INVALID, "pager: n_pages is %u; give 1 to 2^24 - 256", config->n_pages);
  if (config->n_host_pages >= PAGER_NODES_MAX || config->n_file_pages >= PAGER_NODES_MAX)
    return weft_fail(error, WEFT_E_INVALID, "pager: n_host_pages is %u, n_file_pages %u; give 0 to 2^24 - 3",
                     config->n_host_pages, config->n_file_pages);
  if (config->n_file_pages > 0 && config->n_host_pages == 0)
    return weft_fail(error, WEFT_E_INVALID, "pager: n_file_pages is %u; a file needs n_host_pages",
                     config->n_file_pages);
  if (config->n_seqs == 0 || config->n_seqs > PAGER_PAGES_MAX)
    return weft_fail(error, WEFT_E_INVALID, "pager: n_seqs is %u; give 1 to 2^24 - 256", config->n_seqs);
  if (config->seq_tokens_max == 0 || config->seq_tokens_max > PAGER_DEPTH_MAX)
    return weft_fail(error, WEFT_E_INVALID, "pager: seq_tokens_max is %u; give 1 to 2^24 - 1", config->seq_tokens_max);
  if (config->n_models == 0 || config->n_models > WEFT_MODELS_MAX || config->model == NULL)
    return weft_fail(error, WEFT_E_INVALID, "pager: n_models is %u; give 1 to %d models", config->n_models,
                     WEFT_MODELS_MAX);
  if (config->journal_capacity != 0 && !power_of_two(config->journal_capacity))
    return weft_fail(error, WEFT_E_INVALID, "pager: journal_capacity is %u; give a power of two",
                     config->journal_capacity);
  for (uint32_t i = 0; i < config->n_models; i++) {
    weft_status status = check_model(&config->model[i], i, error);
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}

/* Snapshots every so many positions of a prompt take no more room than its keys and values do: the least distance, a
 * power of two times the largest block, whose keys and values have as many pages as a state. */
static uint32_t space_snapshots(const pager_model *model) {
  uint64_t every = model->block_max, n_pages = 0;
  for (uint32_t g = model->n_plain; g < model->n_groups; g++) n_pages += model->group[g].layers.state_pages;
  for (; n_pages != 0 && model->n_global != 0 && every <= PAGER_DEPTH_MAX; every *= 2) {
    uint64_t n_keys = 0;
    for (uint32_t i = 0; i < model->n_global; i++) n_keys += every >> model->group[model->global[i]].shift;
    if (n_keys >= n_pages) return (uint32_t)every;
  }
  return 0;
}

static void open_model(weft_pager *pager, pager_model *model, const weft_pager_model *config) {
  uint32_t offset = 0;
  model->fingerprint = config->fingerprint;
  model->n_groups = config->n_groups;
  model->cost_doubles = config->cost_doubles;
  for (uint32_t g = 0; g < config->n_groups; g++) {
    pager_group *group = &model->group[g];
    group->layers = config->group[g];
    if (group->layers.state_pages != 0)
      group->layers.window = group->layers.block_tokens + 1;
    else
      model->n_plain += 1, group->rest = group->layers.block_tokens - 1;
    group->shift = (uint32_t)__builtin_ctz(group->layers.block_tokens);
    group->table_offset = offset;
    offset += pager_blocks(group, pager->seq_tokens_max);
    if (group->layers.window == 0)
      model->global[model->n_global++] = (uint8_t)g;
    else
      model->windowed[model->n_windowed++] = (uint8_t)g;
    if (group->layers.block_tokens > model->block_max) model->block_max = group->layers.block_tokens;
    if (group->layers.block_tokens < pager->base_tokens) pager->base_tokens = group->layers.block_tokens;
  }
  model->snapshot_every = space_snapshots(model);
  if (offset > pager->table_stride) pager->table_stride = offset;
  if (config->n_groups > pager->n_places) pager->n_places = config->n_groups;
}

/* Memory for n zeroed records, which begins on a cache line; counted in host_bytes. NULL: there is not enough. */
static void *alloc_zeroed(weft_pager *pager, uint64_t n, size_t size) {
  if (n > (SIZE_MAX - CACHE_LINE) / size) return NULL;
  size_t n_bytes = (size_t)n * size + CACHE_LINE;
  unsigned char *memory = weft_alloc(n_bytes, 1);
  if (memory == NULL) return NULL;
  WEFT_CHECK(pager->n_allocations < PAGER_ALLOCATIONS_MAX);
  pager->allocation[pager->n_allocations++] = memory;
  pager->stats.host_bytes += n_bytes;
  return memory + (CACHE_LINE - (uintptr_t)memory % CACHE_LINE);
}

/* True: all groups of some model have windows. Running sequences of that model have nodes whose pages are gone. */
static bool has_space_of_windows_alone(const weft_pager *pager) {
  bool alone = false;
  for (uint32_t i = 0; i < pager->n_models; i++) alone = alone || pager->model[i].n_global == 0;
  return alone;
}

/* There is one node per base block that the pool and the tiers behind it can hold, and some for prefixes without a
 * page. Where all groups of a model have windows, there are nodes for all sequences at their longest besides. */
static void size_nodes(weft_pager *pager) {
  uint64_t span_max = 1;
  for (uint32_t i = 0; i < pager->n_models; i++) {
    pager_model *model = &pager->model[i];
    for (uint32_t g = 0; g < model->n_groups; g++)
      model->group[g].span = model->group[g].layers.block_tokens / pager->base_tokens;
    if (model->block_max / pager->base_tokens > span_max) span_max = model->block_max / pager->base_tokens;
  }
  uint64_t n_blocks = (uint64_t)pager->n_pages + pager->n_slots;
  uint64_t n_nodes = n_blocks * span_max + 3 * (uint64_t)pager->n_seqs_max + 16;
  if (has_space_of_windows_alone(pager))
    n_nodes += (uint64_t)pager->n_seqs_max * (pager->seq_tokens_max >> pager->base_shift);
  if (!pager->cache) n_nodes = 0;
  pager->n_nodes = n_nodes > PAGER_NODES_MAX ? PAGER_NODES_MAX : (uint32_t)n_nodes;
  pager->node_stride = pager->base_tokens < 4 ? 4 : pager->base_tokens;
  pager->n_lines = pager->n_nodes / PAGER_LINE_LOAD + 1;
}

/* Block tables, and behind them the lists of runs, if any model has states. */
static bool take_tables(weft_pager *pager) {
  uint64_t n_entries = 0;
  pager->run_base = (uint64_t)pager->n_seqs_max * pager->table_stride;
  for (uint32_t i = 0; i < pager->n_models; i++)
    for (uint32_t g = pager->model[i].n_plain; g < pager->model[i].n_groups; g++)
      n_entries += pager_run_entries(pager, &pager->model[i].group[g].layers);
  bool states = n_entries != 0;
  pager->table = alloc_zeroed(pager, pager->run_base + n_entries + states, sizeof *pager->table);
  if (states) pager->run = alloc_zeroed(pager, pager->n_pages, sizeof *pager->run);
  return pager->table != NULL && (pager->run != NULL || !states);
}

static bool take_memory(weft_pager *pager) {
  uint32_t block_max = WEFT_BLOCK_TOKENS_MAX;
  bool windows = false;
  for (uint32_t i = 0; i < pager->n_models; i++) {
    if (pager->model[i].block_max < block_max) block_max = pager->model[i].block_max;
    windows = windows || pager->model[i].n_windowed != 0;
  }
  uint64_t n_seqs = pager->n_seqs_max, n_path = (pager->seq_tokens_max >> pager->base_shift) + 1;
  pager->boundary_words = windows ? pager->seq_tokens_max / block_max / 64 + 1 : 0;
  /* on write, one for each sequence and group; and those of one resize */
  uint64_t n_copies = n_seqs * pager->n_places + pager->moves_max;
  pager->copy_capacity = n_copies > INT32_MAX ? INT32_MAX : (uint32_t)n_copies;
  uint64_t n_spills = pager->n_slots == 0 ? 0 : (uint64_t)pager->n_pages + pager->n_host;
  pager->spill_capacity = n_spills > SPILLS_MAX ? SPILLS_MAX : (uint32_t)n_spills;
  pager->page = alloc_zeroed(pager, (uint64_t)pager->n_pages + PAGER_N_LISTS, sizeof *pager->page);
  pager->node = alloc_zeroed(pager, pager->n_nodes, sizeof *pager->node);
  pager->place = alloc_zeroed(pager, (uint64_t)pager->n_nodes * pager->n_places, sizeof *pager->place);
  pager->node_tokens = alloc_zeroed(pager, (uint64_t)pager->n_nodes * pager->node_stride, sizeof *pager->node_tokens);
  pager->line = alloc_zeroed(pager, (uint64_t)pager->n_lines * PAGER_LINE_WORDS, sizeof *pager->line);
  pager->seq = alloc_zeroed(pager, n_seqs, sizeof *pager->seq);
  pager->pending = alloc_zeroed(pager, n_seqs * pager->base_tokens, sizeof *pager->pending);
  pager->boundary = alloc_zeroed(pager, n_seqs * pager->boundary_words, sizeof *pager->boundary);
  pager->copy = alloc_zeroed(pager, (uint64_t)pager->copy_capacity + pager->spill_capacity, sizeof *pager->copy);
  pager->slot = alloc_zeroed(pager, (uint64_t)pager->n_slots + 2, sizeof *pager->slot);
  bool wants_journal = pager->journal_mask != UINT64_MAX;
  if (wants_journal) {
    pager->journal = alloc_zeroed(pager, pager->journal_mask + 1, sizeof *pager->journal);
    pager->journal_name = alloc_zeroed(pager, pager->n_nodes, sizeof *pager->journal_name);
  }
  if (pager->watched) {
    pager->changed = alloc_zeroed(pager, pager->n_nodes, sizeof *pager->changed);
    pager->is_changed = alloc_zeroed(pager, pager->n_nodes, sizeof *pager->is_changed);
    if (pager->changed == NULL || pager->is_changed == NULL) return false;
    pager->watched = false; /* until somebody does */
  }
  if (pager->saves) {
    pager->told = alloc_zeroed(pager, pager->n_nodes, sizeof *pager->told);
    if (pager->told == NULL) return false;
  }
  pager->path = alloc_zeroed(pager, n_path, sizeof *pager->path);
  pager->path_hash = alloc_zeroed(pager, n_path, sizeof *pager->path_hash);
  return pager->page && pager->node && pager->place && pager->node_tokens && pager->line && pager->seq &&
         take_tables(pager) && pager->pending && pager->boundary && pager->copy && pager->slot &&
         ((pager->journal && pager->journal_name) || !wants_journal) && pager->path && pager->path_hash;
}

weft_status weft_pager_open(const weft_pager_config *config, weft_pager **out, weft_error *error) {
  weft_status status = config_check(config, error);
  if (status != WEFT_OK) return status;
  weft_pager *pager = weft_alloc(1, sizeof *pager);
  if (pager == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "pager: no memory for its head");
  pager->n_pages = pager->n_open = config->n_pages;
  pager->moves_max = config->resize_pages;
  pager->n_seqs_max = config->n_seqs;
  pager->seq_tokens_max = config->seq_tokens_max;
  pager->n_models = config->n_models;
  pager->cache = !config->no_prefix_cache;
  pager->n_host = pager->cache ? config->n_host_pages : 0;
  pager->n_slots = pager->cache ? config->n_host_pages + config->n_file_pages : 0;
  pager->base_tokens = WEFT_BLOCK_TOKENS_MAX;
  for (uint32_t i = 0; i < config->n_models; i++) open_model(pager, &pager->model[i], &config->model[i]);
  pager->base_shift = (uint32_t)__builtin_ctz(pager->base_tokens);
  pager->journal_mask = (uint64_t)config->journal_capacity - 1;
  pager->watched = config->changes;
  pager->saves = config->saves;
  pager->hash_mask = (pager_hash){.low = UINT64_MAX, .high = UINT32_MAX};
  pager->free_page = PAGER_LINK_NONE;
  pager->free_node = PAGER_NODE_NONE;
  pager->free_seq = WEFT_SEQ_NONE;
  pager->stats = (weft_pager_stats){.n_pages = config->n_pages,
                                    .n_free = config->n_pages,
                                    .host_bytes = sizeof *pager,
                                    .n_host_pages = pager->n_host,
                                    .n_file_pages = pager->n_slots - pager->n_host};
  status = pager_secret_draw(pager, config->hash_seed, error);
  if (status != WEFT_OK) {
    weft_pager_close(pager);
    return status;
  }
  size_nodes(pager);
  if (!take_memory(pager)) {
    weft_pager_close(pager);
    return weft_fail(error, WEFT_E_NO_MEMORY,
                     "pager: no memory for %u pages and %u sequences of %u tokens; lower one of them", config->n_pages,
                     config->n_seqs, config->seq_tokens_max);
  }
  pager_lists_reset(pager);
  pager_runs_reset(pager);
  pager_spill_reset(pager);
  *out = pager;
  return WEFT_OK;
}

void weft_pager_close(weft_pager *pager) {
  if (pager == NULL) return;
  for (uint32_t i = 0; i < pager->n_allocations; i++) weft_free(pager->allocation[i]);
  weft_free(pager);
}

/* ---- reset ----------------------------------------------------------------------------------- */

/* A running sequence keeps its pages, but neither they nor those that it takes later are published any more. */
static void forget_seq(weft_pager *pager, weft_seq seq) {
  pager_seq *s = &pager->seq[seq];
  const pager_model *model = &pager->model[s->model];
  for (uint32_t g = 0; g < model->n_groups; g++) {
    const weft_page *table = pager_table(pager, seq, g);
    for (uint32_t block = s->first[g]; block < s->end[g]; block++) {
      if (table[block] == WEFT_PAGE_NONE) continue;
      pager->page[table[block]].node = PAGER_NODE_NONE;
      pager->page[table[block]].keep = 0;
    }
  }
  s->tail = s->announced_tail = PAGER_NODE_NONE;
  s->public_end = 0;
}

void weft_pager_reset_cache(weft_pager *pager) {
  for (weft_seq seq = 0; seq < pager->n_seqs_touched; seq++)
    if (pager->seq[seq].live) forget_seq(pager, seq);
  for (uint32_t list = pager->n_pages; list < pager->n_pages + PAGER_N_LISTS; list++) {
    weft_page next, page = pager->page[list].next;
    for (; page != list; page = next) {
      next = pager->page[page].next;
      if (pager->run != NULL) pager_run_dissolve(pager, page);
      pager_page_free(pager, page);
    }
  }
  pager->stats.n_cached = 0;
  pager->n_kept_pages = pager->kept[0] = pager->kept[1] = 0;
  for (uint32_t owner = 0; owner < WEFT_OWNERS_MAX; owner++) pager->owner[owner].n_cached = 0;
  for (uint32_t id = 0; id < WEFT_MODELS_MAX * WEFT_GROUPS_MAX; id++)
    pager->usage[id].n_cached = pager->usage[id].n_host = pager->usage[id].n_file = 0;
  pager_lists_reset(pager);
  pager_spill_reset(pager);
  pager_index_reset(pager);
  pager_journal_cleared(pager);
  pager->n_resets += 1;
}

/* ---- reading --------------------------------------------------------------------------------- */

uint32_t weft_pager_headroom(const weft_pager *pager) {
  return pager->stats.n_free + pager->stats.n_cached;
}

/* The most blocks of a windowed group that hold what n_rows rows see, themselves among it: consecutive positions, which
 * may begin anywhere in a block, or at a border. */
static uint64_t blocks_seen(const pager_group *group, uint32_t n_rows) {
  uint64_t n_positions = (uint64_t)group->layers.window + n_rows - 1, block = group->layers.block_tokens;
  if (n_positions == 0) return 0;
  bool begins_block = group->layers.from_border && group->layers.window % block == 0;
  return begins_block ? (n_positions + block - 1) >> group->shift : ((n_positions + block - 2) >> group->shift) + 1;
}

uint32_t weft_pager_pages_for(const weft_pager *pager, uint32_t model, uint32_t n_tokens, uint32_t n_rows) {
  WEFT_CHECK(model < pager->n_models);
  const pager_model *s = &pager->model[model];
  uint64_t n_pages = 0;
  if (n_rows > n_tokens) n_rows = n_tokens;
  for (uint32_t g = 0; g < s->n_groups; g++) {
    const pager_group *group = &s->group[g];
    uint64_t n_blocks = pager_blocks(group, n_tokens);
    if (group->layers.state_pages != 0) { /* before the rows, where they end, and where they may end instead */
      uint64_t n_states = n_rows > 1 ? 3 : 2;
      n_pages += (n_blocks < n_states ? n_blocks : n_states) * group->layers.state_pages;
      continue;
    }
    uint64_t n_seen = blocks_seen(group, n_rows);
    n_pages += group->layers.window != 0 && n_seen < n_blocks ? n_seen : n_blocks;
  }
  return n_pages > UINT32_MAX ? UINT32_MAX : (uint32_t)n_pages;
}

/* Between two borders every place is as likely as any other: so the rows since one are half of the most, and a second
 * state is there for one step of each. */
static double group_mean(const pager_group *group, uint32_t n_tokens) {
  double block = group->layers.block_tokens, rows = group->layers.window, peak = (double)blocks_seen(group, 1);
  uint64_t n_blocks = pager_blocks(group, n_tokens);
  if (group->layers.state_pages != 0)
    return n_blocks == 0 ? 0.0 : group->layers.state_pages * (n_blocks > 1 ? 1.0 + 1.0 / block : 1.0);
  if (group->layers.window == 0) return (double)n_blocks;
  if (group->layers.from_border && n_tokens >= group->layers.window) return (rows / block + 1.0) / 2.0;
  return peak < (double)n_blocks ? peak : (double)n_blocks;
}

uint32_t weft_pager_pages_mean(const weft_pager *pager, uint32_t model, uint32_t n_tokens) {
  WEFT_CHECK(model < pager->n_models);
  double n_pages = 0.0;
  for (uint32_t g = 0; g < pager->model[model].n_groups; g++)
    n_pages += group_mean(&pager->model[model].group[g], n_tokens);
  uint32_t peak = weft_pager_pages_for(pager, model, n_tokens, 1);
  return n_pages < (double)peak ? (uint32_t)ceil(n_pages) : peak;
}

weft_owner_usage weft_pager_owner_usage(const weft_pager *pager, uint32_t owner) {
  WEFT_CHECK(owner < WEFT_OWNERS_MAX);
  return pager->owner[owner];
}

weft_group_usage weft_pager_group_usage(const weft_pager *pager, uint32_t model, uint32_t group) {
  WEFT_CHECK(model < pager->n_models && group < WEFT_GROUPS_MAX);
  return pager->usage[pager_group_id(model, group)];
}

void weft_pager_set_owner_limit(weft_pager *pager, uint32_t owner, uint32_t n_pages_max) {
  WEFT_CHECK(owner < WEFT_OWNER_OPERATOR);
  pager->owner[owner].limit = n_pages_max;
}

weft_pager_stats weft_pager_get_stats(const weft_pager *pager) {
  return pager->stats;
}
