/* SPDX-License-Identifier: MIT */
#include "api/keep.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/keep_cipher.h"
#include "api/keep_drafts.h"
#include "api/keep_identity.h"
#include "api/keep_index.h"
#include "api/runtime.h"
#include "api/tenants.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/path.h"

enum {
  PART_NODES = 512, /* told or taken in one turn of the engine */
  PART_BLOCKS = 256,
  PART_SLOTS = WEFT_STATE_PAGES_MAX,
  MEASURED_PAGES = 16,
  DOWN_BLOCKS = 64,      /* that leave the pool in one turn */
  STUCK_US = 5 * 1000000 /* a disk that does nothing for so long is waited for no more */
};

/* What one replica has. */
typedef struct kept_cache {
  weft_kept_file *file;
  keep_index was;              /* what was read at open */
  bool taken;                  /* from here on the file is written */
  uint32_t n_taken, n_dropped; /* blocks of `was` */
} kept_cache;

struct weft_keep {
  pthread_mutex_t mutex; /* of who writes or reads files */
  char *path;            /* from the root */
  char **tenant;         /* [n_tenants] whose prefixes are kept */
  uint32_t n_tenants;
  weft_text identity;
  keep_cipher *cipher;
  kept_cache cache[WEFT_DEVICES_MAX];
  uint32_t n;
  bool let_go;
};

/* ---- whose prefixes ---------------------------------------------------------------------------------------- */

static bool names_tenant(const weft_keep *keep, const char *name) {
  uint32_t i = 0;
  while (i < keep->n_tenants && strcmp(keep->tenant[i], name) != 0) i++;
  return i < keep->n_tenants;
}

/* weft_domain_rule. */
static bool keeps_domain(void *self, weft_key128 domain) {
  const weft_runtime *rt = self;
  uint32_t tenant = weft_domain_tenant(domain);
  if (tenant == WEFT_DOMAIN_SHARED) return true;
  return tenant < weft_tenants_count(rt) && names_tenant(rt->keep, rt->tenant_name[tenant]);
}

/* What a file says of a domain of this process. */
static keep_domain tell_domain(const weft_runtime *rt, weft_key128 domain) {
  keep_domain d = {.kind = KEEP_PUBLIC};
  if (weft_key128_equal(domain, WEFT_DOMAIN_PUBLIC)) return d;
  uint32_t tenant = weft_domain_tenant(domain);
  d.salted = weft_domain_is_salted(domain);
  if (d.salted) d.digest = weft_domain_salt(domain);
  d.kind = tenant == WEFT_DOMAIN_SHARED ? KEEP_SHARED : KEEP_TENANT;
  if (d.kind == KEEP_TENANT) (void)snprintf(d.tenant, sizeof d.tenant, "%s", rt->tenant_name[tenant]);
  return d;
}

/* The other way; false: this process has no such domain, or does not keep it. same_secret: of salts. */
static bool find_domain(const weft_runtime *rt, const keep_domain *d, bool same_secret, weft_key128 *out) {
  uint32_t tenant = 0;
  *out = WEFT_DOMAIN_PUBLIC;
  if (d->kind == KEEP_PUBLIC) return !d->salted;
  if ((d->kind == KEEP_SHARED) != rt->options.shared_cache || (d->salted && !same_secret)) return false;
  if (d->kind == KEEP_TENANT) {
    while (tenant < weft_tenants_count(rt) && strcmp(rt->tenant_name[tenant], d->tenant) != 0) tenant++;
    if (tenant == weft_tenants_count(rt) || !names_tenant(rt->keep, d->tenant)) return false;
  }
  *out = weft_runtime_domain(rt, tenant);
  if (d->salted) *out = weft_domain_with_salt(*out, d->digest);
  return true;
}

/* ---- open --------------------------------------------------------------------------------------------------- */

/* PATH of the first replica, PATH.1 of the second; and with a name behind it. */
static bool print_path(const weft_keep *keep, uint32_t replica, const char *name, weft_text *out) {
  weft_text_puts(out, keep->path);
  if (replica > 0) weft_text_printf(out, ".%u", replica);
  if (name != NULL) weft_text_printf(out, ".%s", name);
  return weft_text_status(out) == WEFT_OK;
}

static weft_status copy_options(weft_keep *keep, const weft_open_options *o, weft_error *error) {
  keep->path = weft_path_from_root(o->spill_file);
  keep->tenant = weft_alloc(o->n_keep, sizeof *keep->tenant);
  bool good = keep->path != NULL && keep->tenant != NULL;
  for (uint32_t i = 0; good && i < o->n_keep; i++) {
    keep->tenant[i] = weft_strdup(o->keep[i]);
    good = keep->tenant[i] != NULL;
    if (good) keep->n_tenants = i + 1;
  }
  if (!good) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for --keep");
  return o->keep_key == NULL ? WEFT_OK : keep_cipher_open(o->keep_key, &keep->cipher, error);
}

/* Reads the index of a file, if it is whole and of this server. */
static weft_status read_index(const weft_keep *keep, const char *path, const weft_text *bytes, uint32_t *map,
                              keep_index *out, bool *damaged, bool *otherwise, weft_error *error) {
  weft_error why = {{0}};
  weft_status status = bytes->n == 0 ? WEFT_OK : keep_index_read(bytes->bytes, bytes->n, out);
  if (status == WEFT_E_NO_MEMORY) return weft_fail(error, status, "%.200s: no memory for its index", path);
  if (status != WEFT_OK) {
    keep_index_free(out);
    *damaged = true;
    return WEFT_OK;
  }
  if (bytes->n == 0) return WEFT_OK;
  status = keep_identity_compare(keep->identity.bytes, out->identity, map, otherwise, &why);
  if (status != WEFT_OK)
    return weft_fail(error, status, "%.200s: %s: name another file, or remove this one", path, why.text);
  for (uint32_t i = 0; i < out->n_nodes; i++) {
    uint32_t own = map[out->node[i].model];
    if (own == UINT32_MAX) *damaged = true; /* more models than it names */
    out->node[i].model = own;
  }
  for (uint32_t i = 0; i < out->n_drafts && !*damaged; i++) {
    out->draft[i].model = map[out->draft[i].model];
    if (out->draft[i].model == UINT32_MAX) *damaged = true;
  }
  if (*damaged) keep_index_free(out);
  keep_index_sort(out);
  return WEFT_OK;
}

/* Prefixes of this server's models, but computed or laid out otherwise. */
static weft_status begin_anew(const weft_kept_config *config, kept_cache *c, weft_error *error) {
  weft_text none = {0};
  bool damaged = false;
  weft_log(WEFT_LOG_WARN, "%s; --else-anew: the file begins anew", error->text);
  keep_index_free(&c->was);
  if (unlink(config->path) != 0) /* while it is locked, so that nobody else has it */
    return weft_fail(error, WEFT_E_IO, "%.200s: %s", config->path, strerror(errno));
  weft_kept_file_close(c->file);
  c->file = NULL;
  weft_status status = weft_kept_file_open(config, &c->file, &none, &damaged, error);
  weft_text_free(&none);
  return status;
}

static weft_status open_cache(weft_runtime *rt, uint32_t r, bool anew, weft_error *error) {
  weft_keep *keep = rt->keep;
  weft_text path = {0}, bytes = {0};
  bool damaged = false, otherwise = false;
  uint32_t map[WEFT_MODELS_MAX];
  if (!print_path(keep, r, NULL, &path)) {
    weft_text_free(&path);
    return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for --keep");
  }
  const weft_kept_config config = {.path = path.bytes,
                                   .page_bytes = rt->page_bytes,
                                   .n_slots = rt->n_file_pages,
                                   .cipher = keep_cipher_of(keep->cipher)};
  weft_status status = weft_kept_file_open(&config, &keep->cache[r].file, &bytes, &damaged, error);
  if (status == WEFT_OK)
    status = read_index(keep, path.bytes, &bytes, map, &keep->cache[r].was, &damaged, &otherwise, error);
  if (otherwise && anew) status = begin_anew(&config, &keep->cache[r], error);
  if (status == WEFT_OK && damaged)
    weft_log(WEFT_LOG_WARN, "%s: its index is damaged: no prefix of it is found, and it begins anew", path.bytes);
  weft_text_free(&path);
  weft_text_free(&bytes);
  return status;
}

weft_status keep_open(weft_runtime *rt, const weft_open_options *o, weft_error *error) {
  if (o->n_keep == 0 && o->keep_key != NULL)
    return weft_fail(error, WEFT_E_INVALID, "--keep-key encrypts prefixes that are kept: give --keep, too");
  if (o->n_keep == 0) return WEFT_OK;
  if (o->spill_file == NULL)
    return weft_fail(error, WEFT_E_INVALID,
                     "--keep keeps the file behind the host memory: give --host-mib, --spill-file and --spill-mib");
  weft_keep *keep = rt->keep = weft_alloc(1, sizeof *keep);
  if (keep == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for --keep");
  (void)pthread_mutex_init(&keep->mutex, NULL); /* cannot fail with default attributes on this system */
  weft_status status = copy_options(keep, o, error);
  if (status != WEFT_OK) return status;
  keep_identity_print(rt, &keep->identity);
  if (weft_text_status(&keep->identity) != WEFT_OK) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for --keep");
  for (uint32_t r = 0; r < rt->n_replicas && status == WEFT_OK; r++) {
    keep->n = r + 1;
    status = open_cache(rt, r, o->else_anew, error);
  }
  if (status == WEFT_OK && keep->cache[0].was.identity != NULL)
    memcpy(rt->salt_secret, keep->cache[0].was.secret, sizeof rt->salt_secret);
  return status;
}

weft_kept_file *keep_file(const weft_keep *keep, uint32_t replica) {
  return keep == NULL ? NULL : keep->cache[replica].file;
}

void keep_close(weft_keep *keep) {
  if (keep == NULL) return;
  for (uint32_t r = 0; r < keep->n; r++) {
    keep_index_free(&keep->cache[r].was);
    weft_kept_file_close(keep->cache[r].file);
  }
  for (uint32_t i = 0; i < keep->n_tenants; i++) weft_free(keep->tenant[i]);
  weft_free(keep->tenant);
  weft_free(keep->path);
  weft_text_free(&keep->identity);
  keep_cipher_close(keep->cipher);
  (void)pthread_mutex_destroy(&keep->mutex);
  weft_free(keep);
}

/* ---- taking ------------------------------------------------------------------------------------------------- */

/* An index on its way into the cache of an engine, piece by piece. */
typedef struct taking {
  weft_runtime *rt;
  weft_kv_file *slots;
  const keep_index *x;
  weft_key128 *domain; /* [n_domains] of this process */
  bool *known;         /* [n_domains] */
  uint32_t *node;      /* [n_nodes] the pager's numbers; WEFT_NODE_NONE: not taken */
  uint32_t *slot;      /* [n_slots] where the pages of the blocks are, in this server's file; of the order of x->slot */
  uint64_t *sum;
  bool *missing;              /* [n_blocks] the pages of the block could not be read */
  uint32_t n_nodes, n_blocks; /* done */
  uint32_t end;               /* blocks [n_blocks, end) are there to be taken */
  uint32_t n_taken, n_dropped;
  uint64_t n_resets; /* of the pager, when it began */
  weft_draft_history *history;
  bool begun, claimed;
} taking;

static weft_visit_answer claim_slots(void *self, weft_pager *pager) {
  taking *t = self;
  t->claimed = weft_pager_slots_claim(pager, t->slot, t->x->n_slots);
  return WEFT_VISIT_DONE;
}

static uint32_t take_node(const taking *t, weft_pager *pager, uint32_t i) {
  const weft_saved_node *node = &t->x->node[i];
  uint32_t above = node->parent == WEFT_NODE_NONE ? WEFT_NODE_NONE : t->node[node->parent];
  if (above == WEFT_NODE_NONE && node->parent != WEFT_NODE_NONE) return WEFT_NODE_NONE;
  if (node->root && !t->known[node->domain.low]) return WEFT_NODE_NONE;
  return weft_pager_adopt_node(pager, above, node->model, node->root ? &t->domain[node->domain.low] : NULL,
                               t->x->tokens + (size_t)i * t->x->base_tokens);
}

static weft_visit_answer take_nodes(void *self, weft_pager *pager) {
  taking *t = self;
  if (!t->begun) t->n_resets = weft_pager_n_resets(pager);
  t->begun = true;
  if (weft_pager_n_resets(pager) != t->n_resets) return WEFT_VISIT_DONE;
  for (uint32_t n = 0; n < PART_NODES && t->n_nodes < t->x->n_nodes; n++, t->n_nodes++)
    t->node[t->n_nodes] = take_node(t, pager, t->n_nodes);
  return t->n_nodes < t->x->n_nodes ? WEFT_VISIT_AGAIN : WEFT_VISIT_DONE;
}

/* False: the block is not taken, and its slots are free. */
static bool take_block(const taking *t, weft_pager *pager, const keep_block *b) {
  uint32_t node = weft_pager_n_resets(pager) == t->n_resets ? t->node[b->node] : WEFT_NODE_NONE;
  if (node == WEFT_NODE_NONE || t->missing[b - t->x->block]) {
    weft_pager_slots_give_back(pager, t->slot + b->first, b->n_slots);
    return false;
  }
  if (!weft_pager_adopt_block(pager, node, b->group, t->slot + b->first, b->n_slots)) return false;
  for (uint32_t i = b->first; i < b->first + b->n_slots; i++) weft_kv_file_adopt(t->slots, t->slot[i], t->sum[i]);
  return true;
}

static weft_visit_answer take_blocks(void *self, weft_pager *pager) {
  taking *t = self;
  for (uint32_t n = 0; n < PART_BLOCKS && t->n_blocks < t->end; n++, t->n_blocks++)
    *(take_block(t, pager, &t->x->block[t->n_blocks]) ? &t->n_taken : &t->n_dropped) += 1;
  return t->n_blocks < t->end ? WEFT_VISIT_AGAIN : WEFT_VISIT_DONE;
}

static weft_visit_answer end_taking(void *self, weft_pager *pager) {
  taking *t = self;
  if (weft_pager_n_resets(pager) != t->n_resets) return WEFT_VISIT_DONE; /* they are gone */
  uint32_t n = t->n_nodes < PART_NODES ? t->n_nodes : PART_NODES;
  t->n_nodes -= n;
  weft_pager_adopt_end(pager, t->node + t->n_nodes, n);
  if (t->n_nodes == 0) keep_drafts_learn(t->x, t->domain, t->known, t->history);
  return t->n_nodes > 0 ? WEFT_VISIT_AGAIN : WEFT_VISIT_DONE;
}

static void taking_free(taking *t) {
  weft_free(t->domain);
  weft_free(t->known);
  weft_free(t->node);
  weft_free(t->slot);
  weft_free(t->sum);
  weft_free(t->missing);
}

static weft_status begin_taking(weft_runtime *rt, uint32_t r, const keep_index *x, taking *t, weft_error *error) {
  *t = (taking){.rt = rt, .slots = rt->store[r]->file, .x = x};
  t->history = weft_engine_draft_history(weft_replicas_at(rt->replicas, r));
  t->domain = weft_alloc((size_t)x->n_domains + 1, sizeof *t->domain);
  t->known = weft_alloc((size_t)x->n_domains + 1, sizeof *t->known);
  t->node = weft_alloc((size_t)x->n_nodes + 1, sizeof *t->node);
  t->slot = weft_alloc((size_t)x->n_slots + 1, sizeof *t->slot);
  t->sum = weft_alloc((size_t)x->n_slots + 1, sizeof *t->sum);
  t->missing = weft_alloc((size_t)x->n_blocks + 1, sizeof *t->missing);
  if (t->domain == NULL || t->known == NULL || t->node == NULL || t->slot == NULL || t->sum == NULL ||
      t->missing == NULL)
    return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for prefixes that were kept");
  bool same_secret = memcmp(x->secret, rt->salt_secret, sizeof rt->salt_secret) == 0;
  for (uint32_t i = 0; i < x->n_domains; i++) t->known[i] = find_domain(rt, &x->domain[i], same_secret, &t->domain[i]);
  return WEFT_OK;
}

/* What is of nobody who is kept any more leaves the disk, too. */
static void forget_dropped(const taking *t, weft_kept_file *file) {
  for (uint32_t i = 0; i < t->x->n_blocks; i++) {
    const keep_block *b = &t->x->block[i];
    if (t->node[b->node] == WEFT_NODE_NONE) weft_kept_file_forget(file, t->x->slot + b->first, b->n_slots);
  }
}

/* Reads some of the pages as those of a prefix are read, so that the engine knows before its first request what that
 * costs. */
static void measure_file(weft_runtime *rt, uint32_t r, const keep_index *x) {
  uint32_t slot[MEASURED_PAGES], n = x->n_slots < MEASURED_PAGES ? x->n_slots : MEASURED_PAGES;
  for (uint32_t i = 0; i < n; i++) slot[i] = x->slot[(uint64_t)i * x->n_slots / n];
  double page_us = weft_kv_file_measure(rt->store[r]->file, slot, n);
  weft_engine_expect_file(weft_replicas_at(rt->replicas, r), page_us);
  if (page_us == 0) return; /* the engine guesses */
  weft_log(WEFT_LOG_NOTICE, "kept prefixes: the file gives %.0f MB/s (%u pages of %.0f kB, several at once)",
           (double)rt->page_bytes / page_us, n, (double)rt->page_bytes / 1e3);
}

/* At the start: the pages stay where they are. */
static weft_status take_own(weft_runtime *rt, uint32_t r, weft_error *error) {
  kept_cache *c = &rt->keep->cache[r];
  weft_engine *engine = weft_replicas_at(rt->replicas, r);
  taking t;
  uint32_t n = 0;
  for (uint32_t i = 0; i < c->was.n_blocks; i++) { /* a file that was made smaller */
    const keep_block b = c->was.block[i];
    bool inside = true;
    for (uint32_t s = b.first; s < b.first + b.n_slots; s++) inside = inside && c->was.slot[s] < rt->n_file_pages;
    if (inside) c->was.block[n++] = b;
  }
  c->was.n_blocks = n;
  weft_status status = begin_taking(rt, r, &c->was, &t, error);
  uint32_t n_slots = 0;
  for (uint32_t i = 0; status == WEFT_OK && i < c->was.n_blocks; i++) {
    keep_block *b = &c->was.block[i];
    memcpy(t.slot + n_slots, c->was.slot + b->first, b->n_slots * sizeof *t.slot);
    memcpy(t.sum + n_slots, c->was.sum + b->first, b->n_slots * sizeof *t.sum);
    b->first = n_slots;
    n_slots += b->n_slots;
  }
  if (status == WEFT_OK) {
    c->was.n_slots = n_slots;
    if (n_slots > 0) { /* else there may be no arrays */
      memcpy(c->was.slot, t.slot, n_slots * sizeof *t.slot);
      memcpy(c->was.sum, t.sum, n_slots * sizeof *t.sum);
    }
    weft_engine_visit(engine, claim_slots, &t);
    if (!t.claimed) weft_log(WEFT_LOG_WARN, "a file of kept prefixes has slots twice: it begins anew");
    t.end = t.claimed ? c->was.n_blocks : 0;
    weft_engine_visit(engine, take_nodes, &t);
    weft_engine_visit(engine, take_blocks, &t);
    forget_dropped(&t, c->file);
    weft_engine_visit(engine, end_taking, &t);
    if (t.claimed) measure_file(rt, r, &c->was);
    c->n_taken = t.n_taken;
    c->n_dropped = t.n_dropped;
    c->taken = true;
  }
  taking_free(&t);
  keep_index_free(&c->was);
  return status;
}

static weft_status check_tenants(const weft_runtime *rt, weft_error *error) {
  for (uint32_t i = 0; i < rt->keep->n_tenants; i++) {
    uint32_t t = 0;
    while (t < weft_tenants_count(rt) && strcmp(rt->tenant_name[t], rt->keep->tenant[i]) != 0) t++;
    if (t < weft_tenants_count(rt)) continue;
    char name[128];
    (void)weft_utf8_clean(rt->keep->tenant[i], name, sizeof name);
    return weft_fail(error, WEFT_E_INVALID, "--keep %s: no tenant is named so", name);
  }
  return WEFT_OK;
}

weft_status keep_take(weft_runtime *rt, weft_error *error) {
  if (rt->keep == NULL) return WEFT_OK;
  weft_status status = check_tenants(rt, error);
  for (uint32_t r = 0; r < rt->n_replicas && status == WEFT_OK; r++) status = take_own(rt, r, error);
  return status;
}

void keep_print(const weft_runtime *rt, weft_text *out) {
  if (rt->keep == NULL) return;
  uint32_t n_taken = 0, n_dropped = 0;
  for (uint32_t r = 0; r < rt->keep->n; r++) {
    n_taken += rt->keep->cache[r].n_taken;
    n_dropped += rt->keep->cache[r].n_dropped;
  }
  weft_text_printf(out, "kept     %u blocks of prefixes found again, %u dropped%s\n", n_taken, n_dropped,
                   rt->keep->cipher == NULL ? "" : "; encrypted");
}

/* ---- down to the file --------------------------------------------------------------------------------------- */

typedef struct going_down {
  weft_domain_rule rule;
  uint64_t moved_us; /* when something went last */
  uint64_t n_ended;
  bool stuck;
} going_down;

static weft_visit_answer put_down(void *self, weft_pager *pager) {
  going_down *g = self;
  uint32_t n = weft_pager_put_down(pager, &g->rule, DOWN_BLOCKS);
  weft_pager_stats stats = weft_pager_get_stats(pager);
  uint64_t n_ended = stats.n_to_file + stats.n_file_lost, now = weft_clock_us();
  if (n > 0 || n_ended != g->n_ended || g->moved_us == 0) g->moved_us = now;
  g->n_ended = n_ended;
  bool waits = weft_pager_moves_waiting(pager) > 0;
  if (n == 0 && !waits && stats.n_sinking == 0) return WEFT_VISIT_DONE;
  g->stuck = now - g->moved_us > STUCK_US;
  if (g->stuck) return WEFT_VISIT_DONE;
  return n > 0 ? WEFT_VISIT_AGAIN : WEFT_VISIT_LATER;
}

/* ---- the index ---------------------------------------------------------------------------------------------- */

typedef struct telling {
  weft_runtime *rt;
  const weft_kv_file *slots;
  weft_domain_rule rule;
  weft_saved_part part;
  uint64_t *sum; /* [part.slots_max] */
  bool begun, more;
} telling;

/* One part, with the checksums that the slots have now. */
static weft_visit_answer tell_part(void *self, weft_pager *pager) {
  telling *t = self;
  if (!t->begun) weft_pager_save_begin(pager, &t->rule);
  t->begun = true;
  t->more = weft_pager_save_next(pager, &t->part);
  for (uint32_t i = 0; i < t->part.n_slots; i++) t->sum[i] = weft_kv_file_sum(t->slots, t->part.slot[i]);
  return WEFT_VISIT_DONE;
}

static void telling_free(telling *t) {
  weft_free(t->part.node);
  weft_free(t->part.tokens);
  weft_free(t->part.block);
  weft_free(t->part.slot);
  weft_free(t->sum);
}

static bool begin_telling(weft_runtime *rt, uint32_t r, uint32_t base_tokens, telling *t) {
  *t = (telling){.rt = rt, .slots = rt->store[r]->file, .rule = {keeps_domain, rt}};
  t->part = (weft_saved_part){.nodes_max = PART_NODES, .blocks_max = PART_BLOCKS, .slots_max = PART_SLOTS};
  t->part.node = weft_alloc(PART_NODES, sizeof *t->part.node);
  t->part.tokens = weft_alloc((size_t)PART_NODES * base_tokens, sizeof *t->part.tokens);
  t->part.block = weft_alloc(PART_BLOCKS, sizeof *t->part.block);
  t->part.slot = weft_alloc(PART_SLOTS, sizeof *t->part.slot);
  t->sum = weft_alloc(PART_SLOTS, sizeof *t->sum);
  return t->part.node != NULL && t->part.tokens != NULL && t->part.block != NULL && t->part.slot != NULL &&
         t->sum != NULL;
}

/* Domains of this process become numbers of those in the index. */
static bool number_domains(const weft_runtime *rt, weft_saved_part *part, keep_index *x) {
  for (uint32_t i = 0; i < part->n_nodes; i++) {
    if (!part->node[i].root) continue;
    const keep_domain domain = tell_domain(rt, part->node[i].domain);
    uint32_t number = keep_index_domain(x, &domain);
    if (number == UINT32_MAX) return false;
    part->node[i].domain = (weft_key128){number, 0};
  }
  return true;
}

/* What the file of a replica holds now. The caller frees *x. */
static weft_status collect_index(weft_runtime *rt, uint32_t r, keep_index *x) {
  weft_engine *engine = weft_replicas_at(rt->replicas, r);
  telling t;
  *x = (keep_index){.identity = weft_strdup(rt->keep->identity.bytes),
                    .base_tokens = weft_pager_base_tokens(weft_engine_pager(engine))};
  memcpy(x->secret, rt->salt_secret, sizeof x->secret);
  bool good = begin_telling(rt, r, x->base_tokens, &t) && x->identity != NULL;
  while (good) {
    weft_engine_visit(engine, tell_part, &t);
    good = number_domains(rt, &t.part, x) && keep_index_add(x, &t.part, t.sum) == WEFT_OK;
    if (!t.more) break;
  }
  telling_free(&t);
  keep_drafts drafts = {weft_engine_draft_history(engine), rt, {keeps_domain, rt}, tell_domain, x, good};
  weft_engine_visit(engine, keep_drafts_tell, &drafts);
  return drafts.good ? WEFT_OK : WEFT_E_NO_MEMORY;
}

static weft_status write_index(weft_kept_file *file, const keep_index *x, weft_error *error) {
  weft_text bytes = {0};
  keep_index_write(x, &bytes);
  weft_status status = weft_text_status(&bytes);
  if (status == WEFT_OK)
    status = weft_kept_file_write(file, bytes.bytes, bytes.n, error);
  else
    (void)weft_fail(error, status, "no memory for the index of prefixes that are kept");
  weft_text_free(&bytes);
  return status;
}

/* One replica: down to the file, and its index. counts: grows. */
static weft_status save_cache(weft_runtime *rt, uint32_t r, weft_kept_counts *counts, keep_index *x,
                              weft_error *error) {
  going_down g = {.rule = {keeps_domain, rt}};
  weft_engine_visit(weft_replicas_at(rt->replicas, r), put_down, &g);
  if (g.stuck) weft_log(WEFT_LOG_WARN, "the disk of kept prefixes does nothing: what is not there yet is not kept");
  weft_status status = collect_index(rt, r, x);
  if (status != WEFT_OK) return weft_fail(error, status, "no memory for the index of prefixes that are kept");
  status = write_index(rt->keep->cache[r].file, x, error);
  if (status != WEFT_OK) return status;
  counts->blocks += x->n_blocks;
  counts->bytes += (uint64_t)x->n_slots * rt->page_bytes;
  return WEFT_OK;
}

/* ---- copies by name ----------------------------------------------------------------------------------------- */

/* The block's pages, from one file into slots of another. False: one of them is not what it was. */
static bool copy_block(weft_kept_file *from, weft_kept_file *to, const keep_index *x, const keep_block *b,
                       const uint32_t *slot, uint64_t *sum, void *page) {
  for (uint32_t i = 0; i < b->n_slots; i++) {
    if (!weft_kept_file_get(from, x->slot[b->first + i], x->sum[b->first + i], page)) return false;
    if (!weft_kept_file_put(to, slot[i], page, &sum[i])) return false;
  }
  return true;
}

/* Blocks whose slots were filled again since they were told are left out. */
static void copy_blocks(weft_kept_file *from, weft_kept_file *to, keep_index *x, void *page) {
  uint32_t n_blocks = 0, n_slots = 0, slot[WEFT_STATE_PAGES_MAX];
  uint64_t sum[WEFT_STATE_PAGES_MAX];
  for (uint32_t k = 0; k < x->n_blocks; k++) {
    keep_block b = x->block[k];
    for (uint32_t i = 0; i < b.n_slots; i++) slot[i] = n_slots + i;
    if (!copy_block(from, to, x, &b, slot, sum, page)) continue;
    b.first = n_slots; /* not beyond the slots that were read */
    memcpy(x->slot + b.first, slot, b.n_slots * sizeof *slot);
    memcpy(x->sum + b.first, sum, b.n_slots * sizeof *sum);
    n_slots += b.n_slots;
    x->block[n_blocks++] = b;
  }
  x->n_blocks = n_blocks;
  x->n_slots = n_slots;
}

/* Writes PATH.NAME beside the file, and renames it into its place when it is whole. */
static weft_status copy_file(weft_runtime *rt, uint32_t r, const char *name, keep_index *x, weft_error *error) {
  weft_keep *keep = rt->keep;
  weft_text path = {0}, part = {0}, bytes = {0};
  weft_kept_file *to = NULL;
  bool damaged;
  void *page = weft_alloc(rt->page_bytes, 1);
  weft_status status = page != NULL && print_path(keep, r, name, &path) && print_path(keep, r, name, &part)
                           ? WEFT_OK
                           : weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a copy of kept prefixes");
  weft_text_puts(&part, ".part");
  if (status == WEFT_OK) status = weft_text_status(&part);
  const weft_kept_config config = {.path = part.bytes,
                                   .page_bytes = rt->page_bytes,
                                   .n_slots = x->n_slots == 0 ? 1 : x->n_slots,
                                   .cipher = keep_cipher_of(keep->cipher)};
  if (status == WEFT_OK) (void)unlink(part.bytes); /* what an earlier try left */
  if (status == WEFT_OK) status = weft_kept_file_open(&config, &to, &bytes, &damaged, error);
  if (status == WEFT_OK) copy_blocks(keep->cache[r].file, to, x, page);
  if (status == WEFT_OK) status = write_index(to, x, error);
  if (status == WEFT_OK && rename(part.bytes, path.bytes) != 0)
    status = weft_fail(error, WEFT_E_IO, "%.200s: %s", path.bytes, strerror(errno));
  if (status != WEFT_OK && to != NULL) (void)unlink(part.bytes);
  weft_kept_file_close(to);
  weft_free(page);
  weft_text_free(&path);
  weft_text_free(&part);
  weft_text_free(&bytes);
  return status;
}

/* A name is a word, so that no file but copies can be meant by it. */
static weft_status check_name(const char *name, weft_error *error) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", more[] = "0123456789-_";
  char all[sizeof letters + sizeof more];
  (void)snprintf(all, sizeof all, "%s%s", letters, more);
  size_t n = strlen(name);
  if (n >= 1 && n <= KEEP_NAME_MAX && strchr(letters, name[0]) != NULL && strspn(name, all) == n) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID,
                   "the name of a copy begins with a letter and has up to %d letters, digits, - and _", KEEP_NAME_MAX);
}

typedef struct wanted_slots {
  uint32_t *slot, n, max;
} wanted_slots;

static weft_visit_answer take_slots(void *self, weft_pager *pager) {
  wanted_slots *w = self;
  w->n = weft_pager_slots_take(pager, w->slot, w->max);
  return WEFT_VISIT_DONE;
}

static weft_visit_answer give_slots(void *self, weft_pager *pager) {
  const wanted_slots *w = self;
  weft_pager_slots_give_back(pager, w->slot, w->n);
  return WEFT_VISIT_DONE;
}

/* Copies the next block into slots of this server's file. False: there are no slots for it. */
static bool bring_block(taking *t, weft_engine *engine, weft_kept_file *from, weft_kept_file *own, void *page) {
  const keep_block *b = &t->x->block[t->n_blocks];
  wanted_slots w = {.slot = t->slot + b->first, .max = b->n_slots};
  if (t->node[b->node] == WEFT_NODE_NONE) { /* nobody's here */
    t->n_blocks += 1;
    t->n_dropped += 1;
    return true;
  }
  weft_engine_visit(engine, take_slots, &w);
  if (w.n < b->n_slots) {
    weft_engine_visit(engine, give_slots, &w);
    return false;
  }
  t->missing[t->n_blocks] = !copy_block(from, own, t->x, b, w.slot, t->sum + b->first, page);
  t->end = t->n_blocks + 1;
  weft_engine_visit(engine, take_blocks, t);
  return true;
}

static weft_status bring_all(weft_runtime *rt, uint32_t r, weft_kept_file *from, const keep_index *x,
                             weft_kept_counts *counts, weft_error *error) {
  weft_engine *engine = weft_replicas_at(rt->replicas, r);
  taking t;
  void *page = weft_alloc(rt->page_bytes, 1);
  weft_status status = begin_taking(rt, r, x, &t, error);
  if (page == NULL) status = weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a page");
  if (status == WEFT_OK) {
    weft_engine_visit(engine, take_nodes, &t);
    while (t.n_blocks < x->n_blocks && bring_block(&t, engine, from, rt->keep->cache[r].file, page)) {
    }
    weft_engine_visit(engine, end_taking, &t);
    counts->blocks += t.n_taken;
  }
  taking_free(&t);
  weft_free(page);
  return status;
}

static weft_status load_cache(weft_runtime *rt, uint32_t r, const char *name, weft_kept_counts *counts,
                              weft_error *error) {
  weft_keep *keep = rt->keep;
  weft_text path = {0}, bytes = {0};
  weft_kept_file *from = NULL;
  keep_index x = {.n_nodes = 0};
  uint32_t map[WEFT_MODELS_MAX];
  bool damaged = false, otherwise;
  weft_status status =
      print_path(keep, r, name, &path) ? WEFT_OK : weft_fail(error, WEFT_E_NO_MEMORY, "no memory for kept prefixes");
  const weft_kept_config config = {
      .path = path.bytes, .page_bytes = rt->page_bytes, .cipher = keep_cipher_of(keep->cipher)};
  if (status == WEFT_OK) status = weft_kept_file_open(&config, &from, &bytes, &damaged, error);
  if (status == WEFT_OK) status = read_index(keep, path.bytes, &bytes, map, &x, &damaged, &otherwise, error);
  if (status == WEFT_OK && damaged)
    status = weft_fail(error, WEFT_E_FORMAT, "%.200s: its index is damaged", path.bytes);
  if (status == WEFT_OK) status = bring_all(rt, r, from, &x, counts, error);
  keep_index_free(&x);
  weft_kept_file_close(from);
  weft_text_free(&path);
  weft_text_free(&bytes);
  return status;
}

/* ---- weft.h and the end ------------------------------------------------------------------------------------- */

/* name: of a copy; NULL: none. */
static weft_status save_all(weft_runtime *rt, const char *name, weft_kept_counts *counts, weft_error *error) {
  weft_status status = WEFT_OK;
  *counts = (weft_kept_counts){0};
  for (uint32_t r = 0; r < rt->keep->n && status == WEFT_OK; r++) {
    keep_index x;
    status = save_cache(rt, r, counts, &x, error);
    if (status == WEFT_OK && name != NULL) status = copy_file(rt, r, name, &x, error);
    keep_index_free(&x);
  }
  return status;
}

void keep_finish(weft_runtime *rt) {
  weft_error error = {{0}};
  weft_kept_counts counts;
  if (rt->keep == NULL || rt->keep->let_go || rt->keep->n == 0 || !rt->keep->cache[rt->keep->n - 1].taken) return;
  if (save_all(rt, NULL, &counts, &error) != WEFT_OK) weft_log(WEFT_LOG_ERROR, "%s", error.text);
}

void keep_forget(weft_runtime *rt) {
  weft_error error = {{0}};
  if (rt->keep == NULL) return;
  (void)pthread_mutex_lock(&rt->keep->mutex);
  for (uint32_t r = 0; r < rt->keep->n && !rt->keep->let_go; r++) {
    if (weft_kept_file_write(rt->keep->cache[r].file, "", 0, &error) != WEFT_OK)
      weft_log(WEFT_LOG_ERROR, "prefixes that were dropped may be found after a start: %s", error.text);
  }
  (void)pthread_mutex_unlock(&rt->keep->mutex);
}

/* Waits until nobody else works on the files. */
static weft_status begin_work(const weft_runtime *rt, weft_error *error) {
  if (rt->keep == NULL)
    return weft_fail(error, WEFT_E_UNSUPPORTED, "no prefixes are kept: start the server with --keep");
  (void)pthread_mutex_lock(&rt->keep->mutex);
  if (rt->keep->let_go) return weft_fail(error, WEFT_E_UNSUPPORTED, "another process keeps the prefixes now");
  return WEFT_OK;
}

static void end_work(const weft_runtime *rt) {
  if (rt->keep != NULL) (void)pthread_mutex_unlock(&rt->keep->mutex);
}

weft_status keep_let_go(weft_runtime *rt, weft_error *error) {
  weft_keep *keep = rt->keep;
  weft_kept_counts counts;
  if (keep == NULL) return WEFT_OK;
  (void)pthread_mutex_lock(&keep->mutex);
  weft_status status = keep->let_go ? WEFT_OK : save_all(rt, NULL, &counts, error);
  for (uint32_t r = 0; r < keep->n && !keep->let_go; r++) {
    weft_kv_file_let_go(rt->store[r]->file);
    weft_kept_file_close(keep->cache[r].file);
    keep->cache[r].file = NULL;
  }
  keep->let_go = true;
  (void)pthread_mutex_unlock(&keep->mutex);
  return status;
}

int weft_prefixes_save(weft_runtime *rt, const char *name, weft_kept_counts *counts, char *error, size_t n_error) {
  weft_error why = {{0}};
  weft_kept_counts own = {0};
  weft_status status = begin_work(rt, &why);
  if (status == WEFT_OK && name != NULL) status = check_name(name, &why);
  if (status == WEFT_OK) status = save_all(rt, name, &own, &why);
  end_work(rt);
  if (status == WEFT_OK && counts != NULL) *counts = own;
  return status == WEFT_OK ? 0 : weft_tell(&why, status, error, n_error);
}

int weft_prefixes_load(weft_runtime *rt, const char *name, weft_kept_counts *counts, char *error, size_t n_error) {
  weft_error why = {{0}};
  weft_kept_counts own = {0};
  weft_status status = begin_work(rt, &why);
  if (status == WEFT_OK) status = check_name(name, &why);
  for (uint32_t r = 0; status == WEFT_OK && r < rt->keep->n; r++) status = load_cache(rt, r, name, &own, &why);
  end_work(rt);
  own.bytes = own.blocks * rt->page_bytes;
  if (status == WEFT_OK && counts != NULL) *counts = own;
  return status == WEFT_OK ? 0 : weft_tell(&why, status, error, n_error);
}
