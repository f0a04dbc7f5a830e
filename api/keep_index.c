/* SPDX-License-Identifier: MIT */
#include "api/keep_index.h"

#include <stdlib.h>
#include <string.h>

#include "base/layer_group.h"
#include "base/memory.h"

enum { COUNT_MAX = 1 << 26, FIRST_ROOM = 256 };

#define ROOT_BIT 0x80000000u

/* ---- growing ------------------------------------------------------------------------------------------- */

/* Room for n more items of `size` bytes. */
static bool make_room(void **items, uint32_t n_has, uint32_t *max, uint32_t n, size_t size) {
  if (n > COUNT_MAX - n_has) return false;
  if (n_has + n <= *max && *items != NULL) return true;
  uint32_t wanted = *max < FIRST_ROOM ? FIRST_ROOM : *max;
  while (wanted < n_has + n) wanted *= 2;
  void *more = weft_realloc(*items, wanted, size);
  if (more == NULL) return false;
  *items = more;
  *max = wanted;
  return true;
}

static bool room_for(keep_index *x, uint32_t n_nodes, uint32_t n_blocks, uint32_t n_slots) {
  uint32_t nodes_max = x->nodes_max, slots_max = x->slots_max;
  void *node = x->node, *tokens = x->tokens, *block = x->block, *slot = x->slot, *sum = x->sum;
  bool good = make_room(&node, x->n_nodes, &x->nodes_max, n_nodes, sizeof *x->node);
  x->node = node;
  good = good && make_room(&tokens, x->n_nodes, &nodes_max, n_nodes, x->base_tokens * sizeof *x->tokens);
  x->tokens = tokens;
  good = good && make_room(&block, x->n_blocks, &x->blocks_max, n_blocks, sizeof *x->block);
  x->block = block;
  good = good && make_room(&slot, x->n_slots, &x->slots_max, n_slots, sizeof *x->slot);
  x->slot = slot;
  good = good && make_room(&sum, x->n_slots, &slots_max, n_slots, sizeof *x->sum);
  x->sum = sum;
  return good;
}

weft_status keep_index_add(keep_index *x, const weft_saved_part *part, const uint64_t *sum) {
  if (!room_for(x, part->n_nodes, part->n_blocks, part->n_slots)) return WEFT_E_NO_MEMORY;
  memcpy(x->node + x->n_nodes, part->node, part->n_nodes * sizeof *x->node);
  memcpy(x->tokens + (size_t)x->n_nodes * x->base_tokens, part->tokens,
         (size_t)part->n_nodes * x->base_tokens * sizeof *x->tokens);
  memcpy(x->slot + x->n_slots, part->slot, part->n_slots * sizeof *x->slot);
  memcpy(x->sum + x->n_slots, sum, part->n_slots * sizeof *x->sum);
  for (uint32_t i = 0, first = x->n_slots; i < part->n_blocks; first += part->block[i++].n_slots) {
    const weft_saved_block *b = &part->block[i];
    x->block[x->n_blocks++] = (keep_block){.node = b->node, .group = b->group, .n_slots = b->n_slots, .first = first};
  }
  x->n_nodes += part->n_nodes;
  x->n_slots += part->n_slots;
  return WEFT_OK;
}

bool keep_index_add_draft(keep_index *x, const weft_draft_learned *learned) {
  void *list = x->draft;
  bool good = make_room(&list, x->n_drafts, &x->drafts_max, 1, sizeof *x->draft);
  x->draft = list;
  if (good) x->draft[x->n_drafts++] = *learned;
  return good;
}

uint32_t keep_index_domain(keep_index *x, const keep_domain *domain) {
  for (uint32_t i = x->n_domains; i-- > 0;) {
    const keep_domain *d = &x->domain[i];
    if (d->kind == domain->kind && d->salted == domain->salted && weft_key128_equal(d->digest, domain->digest) &&
        strcmp(d->tenant, domain->tenant) == 0)
      return i;
  }
  void *list = x->domain;
  bool good = make_room(&list, x->n_domains, &x->domains_max, 1, sizeof *x->domain);
  x->domain = list;
  if (!good) return UINT32_MAX;
  x->domain[x->n_domains] = *domain;
  return x->n_domains++;
}

void keep_index_free(keep_index *x) {
  weft_free(x->identity);
  weft_free(x->domain);
  weft_free(x->node);
  weft_free(x->tokens);
  weft_free(x->block);
  weft_free(x->slot);
  weft_free(x->sum);
  weft_free(x->draft);
  *x = (keep_index){.n_nodes = 0};
}

static int compare_blocks(const void *a, const void *b) {
  const keep_block *x = a, *y = b;
  if (x->depth != y->depth) return x->depth < y->depth ? 1 : -1;
  return (x->first > y->first) - (x->first < y->first);
}

void keep_index_sort(keep_index *x) {
  if (x->n_blocks > 0) qsort(x->block, x->n_blocks, sizeof *x->block, compare_blocks);
}

/* ---- writing -------------------------------------------------------------------------------------------- */

static void put_word(weft_text *out, uint32_t word) {
  weft_text_append(out, (const char *)&word, sizeof word);
}

static void put_long(weft_text *out, uint64_t word) {
  weft_text_append(out, (const char *)&word, sizeof word);
}

static void put_domain(const keep_domain *d, weft_text *out) {
  uint32_t n = (uint32_t)strlen(d->tenant);
  put_word(out, (uint32_t)d->kind | (uint32_t)d->salted << 8 | n << 16);
  put_long(out, d->digest.low);
  put_long(out, d->digest.high);
  weft_text_append(out, d->tenant, n);
}

static void put_node(const keep_index *x, uint32_t i, weft_text *out) {
  const weft_saved_node *node = &x->node[i];
  put_word(out, node->parent);
  put_word(out, node->model | (node->root ? ROOT_BIT : 0));
  if (node->root)
    put_word(out, (uint32_t)node->domain.low);
  else
    weft_text_append(out, (const char *)(x->tokens + (size_t)i * x->base_tokens), x->base_tokens * sizeof(int32_t));
}

static void put_block(const keep_index *x, const keep_block *b, weft_text *out) {
  put_word(out, b->node);
  put_word(out, b->group);
  put_word(out, b->n_slots);
  for (uint32_t i = b->first; i < b->first + b->n_slots; i++) {
    put_word(out, x->slot[i]);
    put_long(out, x->sum[i]);
  }
}

static void put_draft(const weft_draft_learned *d, weft_text *out) {
  put_long(out, d->text);
  put_word(out, (uint32_t)d->domain.low);
  put_word(out, d->model << 8 | d->kind);
  put_word(out, d->judged);
}

void keep_index_write(const keep_index *x, weft_text *out) {
  size_t n = strlen(x->identity);
  put_word(out, (uint32_t)n);
  weft_text_append(out, x->identity, n);
  weft_text_append(out, (const char *)x->secret, sizeof x->secret);
  put_word(out, x->base_tokens);
  put_word(out, x->n_domains);
  put_word(out, x->n_nodes);
  put_word(out, x->n_blocks);
  put_word(out, x->n_slots);
  for (uint32_t i = 0; i < x->n_domains; i++) put_domain(&x->domain[i], out);
  for (uint32_t i = 0; i < x->n_nodes; i++) put_node(x, i, out);
  for (uint32_t i = 0; i < x->n_blocks; i++) put_block(x, &x->block[i], out);
  put_word(out, x->n_drafts);
  for (uint32_t i = 0; i < x->n_drafts; i++) put_draft(&x->draft[i], out);
}

/* ---- reading -------------------------------------------------------------------------------------------- */

typedef struct reader {
  const char *at;
  size_t n;
  bool bad;
} reader;

/* n bytes to `to`; zeros where there are fewer. */
static void get_bytes(reader *r, void *to, size_t n) {
  if (n > r->n) r->bad = true;
  if (r->bad) {
    memset(to, 0, n);
    return;
  }
  memcpy(to, r->at, n);
  r->at += n;
  r->n -= n;
}

static uint32_t get_word(reader *r) {
  uint32_t word;
  get_bytes(r, &word, sizeof word);
  return word;
}

static uint64_t get_long(reader *r) {
  uint64_t word;
  get_bytes(r, &word, sizeof word);
  return word;
}

static bool get_domain(reader *r, keep_domain *d) {
  uint32_t word = get_word(r), n = word >> 16;
  *d = (keep_domain){.kind = (keep_domain_kind)(word & 0xFF), .salted = (word >> 8 & 1) != 0};
  d->digest.low = get_long(r);
  d->digest.high = get_long(r);
  if ((word & 0xFF) > KEEP_TENANT || (word >> 8 & 0xFE) != 0 || n > KEEP_NAME_MAX) return false;
  get_bytes(r, d->tenant, n);
  return !r->bad && strlen(d->tenant) == n;
}

/* depth: of the node's parents, and then its own. */
static bool get_node(reader *r, keep_index *x, uint32_t *depth) {
  uint32_t i = x->n_nodes, parent = get_word(r), word = get_word(r);
  weft_saved_node *node = &x->node[i];
  *node = (weft_saved_node){.parent = parent, .model = word & ~ROOT_BIT, .root = (word & ROOT_BIT) != 0};
  bool above = parent != WEFT_NODE_NONE;
  if (r->bad || node->model >= WEFT_MODELS_MAX || (above && parent >= i) || (!above && !node->root)) return false;
  if (above && x->node[parent].model != node->model) return false;
  depth[i] = (above ? depth[parent] : 0) + !node->root;
  x->n_nodes += 1;
  if (!node->root) {
    get_bytes(r, x->tokens + (size_t)i * x->base_tokens, x->base_tokens * sizeof *x->tokens);
    return !r->bad;
  }
  node->domain.low = get_word(r);
  return !r->bad && node->domain.low < x->n_domains;
}

static bool get_block(reader *r, keep_index *x, uint32_t n_slots, const uint32_t *depth) {
  keep_block *b = &x->block[x->n_blocks];
  *b = (keep_block){.node = get_word(r), .group = get_word(r), .n_slots = get_word(r), .first = x->n_slots};
  if (r->bad || b->node >= x->n_nodes || b->group >= WEFT_GROUPS_MAX || b->n_slots == 0) return false;
  if (b->n_slots > WEFT_STATE_PAGES_MAX || b->n_slots > n_slots - x->n_slots) return false;
  b->depth = depth[b->node];
  for (uint32_t i = 0; i < b->n_slots; i++) {
    x->slot[x->n_slots] = get_word(r);
    x->sum[x->n_slots++] = get_long(r);
  }
  x->n_blocks += 1;
  return !r->bad;
}

enum { DRAFT_BYTES = 20 };

/* To the end of the bytes, if they do not end before. */
static weft_status get_drafts(reader *r, keep_index *x) {
  if (r->n == 0) return WEFT_OK;
  const uint32_t n = get_word(r);
  if (r->bad || n > WEFT_DRAFT_TEXTS || r->n != (size_t)n * DRAFT_BYTES) return WEFT_E_FORMAT;
  for (uint32_t i = 0; i < n; i++) {
    weft_draft_learned d = {.text = get_long(r)};
    d.domain.low = get_word(r);
    const uint32_t word = get_word(r);
    d.model = word >> 8;
    d.kind = word & 0xFF;
    d.judged = get_word(r);
    if (d.domain.low >= x->n_domains || d.model >= WEFT_MODELS_MAX || (d.judged & 0xFFFF) > d.judged >> 16)
      return WEFT_E_FORMAT;
    if (!keep_index_add_draft(x, &d)) return WEFT_E_NO_MEMORY;
  }
  return WEFT_OK;
}

static bool get_lists(reader *r, keep_index *x, uint32_t n_nodes, uint32_t n_blocks, uint32_t n_slots,
                      uint32_t *depth) {
  for (uint32_t i = 0; i < n_nodes; i++)
    if (!get_node(r, x, depth)) return false;
  for (uint32_t i = 0; i < n_blocks; i++)
    if (!get_block(r, x, n_slots, depth)) return false;
  return x->n_slots == n_slots;
}

static weft_status get_head(reader *r, keep_index *x) {
  uint32_t n = get_word(r);
  if (r->bad || n > r->n) return WEFT_E_FORMAT;
  x->identity = weft_alloc((size_t)n + 1, 1);
  if (x->identity == NULL) return WEFT_E_NO_MEMORY;
  get_bytes(r, x->identity, n);
  get_bytes(r, x->secret, sizeof x->secret);
  x->base_tokens = get_word(r);
  if (r->bad || strlen(x->identity) != n) return WEFT_E_FORMAT;
  return x->base_tokens >= 1 && x->base_tokens <= WEFT_BLOCK_TOKENS_MAX ? WEFT_OK : WEFT_E_FORMAT;
}

weft_status keep_index_read(const char *bytes, size_t n, keep_index *x) {
  reader r = {.at = bytes, .n = n};
  *x = (keep_index){.n_nodes = 0};
  weft_status status = get_head(&r, x);
  if (status != WEFT_OK) return status;
  uint32_t n_domains = get_word(&r), n_nodes = get_word(&r), n_blocks = get_word(&r), n_slots = get_word(&r);
  /* each of them has at least so many bytes: more of them than there are bytes for cannot be */
  if (r.bad || n_domains > r.n / 20 || n_nodes > r.n / 12 || n_blocks > r.n / 12 || n_slots > r.n / 12)
    return WEFT_E_FORMAT;
  for (uint32_t i = 0; i < n_domains; i++) {
    keep_domain d;
    if (!get_domain(&r, &d)) return WEFT_E_FORMAT;
    void *list = x->domain;
    bool room = make_room(&list, x->n_domains, &x->domains_max, 1, sizeof d);
    x->domain = list;
    if (!room) return WEFT_E_NO_MEMORY;
    x->domain[x->n_domains++] = d;
  }
  uint32_t *depth = weft_alloc((size_t)n_nodes + 1, sizeof *depth);
  bool room = depth != NULL && room_for(x, n_nodes, n_blocks, n_slots);
  status = !room ? WEFT_E_NO_MEMORY : get_lists(&r, x, n_nodes, n_blocks, n_slots, depth) ? WEFT_OK : WEFT_E_FORMAT;
  weft_free(depth);
  return status == WEFT_OK ? get_drafts(&r, x) : status;
}
