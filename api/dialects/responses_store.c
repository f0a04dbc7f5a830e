/* SPDX-License-Identifier: MIT */
#include "api/dialects/responses_store.h"

#include <pthread.h>
#include <string.h>

#include "base/memory.h"

/* A response is copied for each client that asks for it, outside of the store's bounds: a large one that many ask for at
 * once would fill the memory of the machine. */
enum { RESPONSE_SHARE = 32 };

/* One block of memory: the entry, its id, its body, its items. */
typedef struct response_entry {
  struct response_entry *older, *newer; /* of the same tenant */
  size_t n_block, n_body, n_items;
  uint64_t number; /* grows with each one that is put or deleted */
  char *body, *items;
  char id[];
} response_entry;

typedef struct tenant_shelf {
  response_entry *oldest, *newest;
  response_entry *gone, *last_gone; /* deleted and remembered, linked by newer */
  uint64_t n_bytes;
  uint32_t n_entries;
} tenant_shelf;

struct weft_responses {
  pthread_mutex_t lock;
  uint64_t max_bytes, n_bytes, number;
  uint32_t n_entries, n_tenants;
  bool remembers; /* what is deleted */
  tenant_shelf shelf[];
};

weft_status weft_responses_open(uint32_t n_tenants, uint64_t max_bytes, weft_responses **out) {
  weft_responses *store = weft_alloc(1, sizeof *store + n_tenants * sizeof *store->shelf);
  *out = store;
  if (store == NULL) return WEFT_E_NO_MEMORY;
  (void)pthread_mutex_init(&store->lock, NULL); /* cannot fail with default attributes */
  store->max_bytes = max_bytes == 0 ? WEFT_RESPONSES_BYTES : max_bytes;
  store->n_tenants = n_tenants;
  return WEFT_OK;
}

static void take_off(weft_responses *store, tenant_shelf *shelf, response_entry *entry) {
  *(entry->older == NULL ? &shelf->oldest : &entry->older->newer) = entry->newer;
  *(entry->newer == NULL ? &shelf->newest : &entry->newer->older) = entry->older;
  shelf->n_bytes -= entry->n_block;
  shelf->n_entries -= 1;
  store->n_bytes -= entry->n_block;
  store->n_entries -= 1;
}

static void drop_entry(weft_responses *store, tenant_shelf *shelf, response_entry *entry) {
  take_off(store, shelf, entry);
  weft_free(entry);
}

/* Its texts are nobody's any more; the id is told. */
static void remember_gone(weft_responses *store, tenant_shelf *shelf, response_entry *entry) {
  take_off(store, shelf, entry);
  memset(entry->body, 0, entry->n_body + entry->n_items);
  entry->n_body = entry->n_items = 0;
  entry->number = ++store->number;
  entry->older = entry->newer = NULL;
  *(shelf->last_gone == NULL ? &shelf->gone : &shelf->last_gone->newer) = entry;
  shelf->last_gone = entry;
}

void weft_responses_close(weft_responses *store) {
  if (store == NULL) return;
  weft_responses_forget(store);
  for (uint32_t i = 0; i < store->n_tenants; i++) {
    while (store->shelf[i].oldest != NULL) drop_entry(store, &store->shelf[i], store->shelf[i].oldest);
  }
  (void)pthread_mutex_destroy(&store->lock);
  weft_free(store);
}

/* Who has most, in bytes or in number, of what is short. The response that is to come counts as its tenant's already;
 * of equals, that tenant gives way. */
static tenant_shelf *find_most(weft_responses *store, tenant_shelf *own, size_t n_block, bool in_bytes) {
  tenant_shelf *most = own;
  uint64_t n_most = in_bytes ? own->n_bytes + n_block : (uint64_t)own->n_entries + 1;
  for (uint32_t i = 0; i < store->n_tenants; i++) {
    uint64_t n = in_bytes ? store->shelf[i].n_bytes : store->shelf[i].n_entries;
    if (n <= n_most) continue;
    most = &store->shelf[i];
    n_most = n;
  }
  return most;
}

/* False: its own tenant would have to give way, and has nothing left. */
static bool make_room(weft_responses *store, tenant_shelf *own, size_t n_block) {
  for (;;) {
    bool no_bytes = store->n_bytes + n_block > store->max_bytes;
    if (!no_bytes && store->n_entries < WEFT_RESPONSES) return true;
    tenant_shelf *most = find_most(store, own, n_block, no_bytes);
    if (most->oldest == NULL) return false;
    drop_entry(store, most, most->oldest);
  }
}

static response_entry *make_entry(const char *id, const weft_text *body, const weft_text *items) {
  size_t n_id = strlen(id) + 1, n_block = sizeof(response_entry) + n_id + body->n + items->n;
  response_entry *entry = weft_alloc(1, n_block);
  if (entry == NULL) return NULL;
  *entry = (response_entry){.n_block = n_block, .n_body = body->n, .n_items = items->n};
  entry->body = entry->id + n_id;
  entry->items = entry->body + body->n;
  memcpy(entry->id, id, n_id);
  if (body->n > 0) memcpy(entry->body, body->bytes, body->n);
  if (items->n > 0) memcpy(entry->items, items->bytes, items->n);
  return entry;
}

void weft_responses_put(weft_responses *store, uint32_t tenant, const char *id, const weft_text *body,
                        const weft_text *items) {
  if (weft_text_status(body) != WEFT_OK || weft_text_status(items) != WEFT_OK) return;
  response_entry *entry = make_entry(id, body, items);
  if (entry == NULL || entry->n_block > store->max_bytes / RESPONSE_SHARE) {
    weft_free(entry);
    return;
  }
  tenant_shelf *shelf = &store->shelf[tenant];
  (void)pthread_mutex_lock(&store->lock);
  if (!make_room(store, shelf, entry->n_block)) {
    (void)pthread_mutex_unlock(&store->lock);
    weft_free(entry);
    return;
  }
  entry->number = ++store->number;
  entry->older = shelf->newest;
  *(shelf->newest == NULL ? &shelf->oldest : &shelf->newest->newer) = entry;
  shelf->newest = entry;
  shelf->n_bytes += entry->n_block;
  shelf->n_entries += 1;
  store->n_bytes += entry->n_block;
  store->n_entries += 1;
  (void)pthread_mutex_unlock(&store->lock);
}

/* The newest with this id, which a client may have given twice. */
static response_entry *find_entry(const weft_responses *store, uint32_t tenant, const char *id) {
  response_entry *entry = store->shelf[tenant].newest;
  while (entry != NULL && strcmp(entry->id, id) != 0) entry = entry->older;
  return entry;
}

bool weft_responses_get(weft_responses *store, uint32_t tenant, const char *id, weft_text *body, weft_text *items) {
  (void)pthread_mutex_lock(&store->lock);
  const response_entry *entry = find_entry(store, tenant, id);
  if (entry != NULL && body != NULL) weft_text_append(body, entry->body, entry->n_body);
  if (entry != NULL && items != NULL) weft_text_append(items, entry->items, entry->n_items);
  (void)pthread_mutex_unlock(&store->lock);
  return entry != NULL;
}

bool weft_responses_delete(weft_responses *store, uint32_t tenant, const char *id) {
  bool found = false;
  (void)pthread_mutex_lock(&store->lock);
  for (response_entry *entry = store->shelf[tenant].newest, *older; entry != NULL; entry = older) {
    older = entry->older;
    if (strcmp(entry->id, id) != 0) continue;
    if (store->remembers)
      remember_gone(store, &store->shelf[tenant], entry);
    else
      drop_entry(store, &store->shelf[tenant], entry);
    found = true;
  }
  (void)pthread_mutex_unlock(&store->lock);
  return found;
}

uint64_t weft_responses_bytes(weft_responses *store) {
  (void)pthread_mutex_lock(&store->lock);
  uint64_t n = store->n_bytes;
  (void)pthread_mutex_unlock(&store->lock);
  return n;
}

/* ---- for another server ---- */

uint64_t weft_responses_number(weft_responses *store) {
  (void)pthread_mutex_lock(&store->lock);
  uint64_t number = store->number;
  (void)pthread_mutex_unlock(&store->lock);
  return number;
}

bool weft_responses_next(weft_responses *store, uint32_t tenant, uint64_t *number, weft_response_copy *out) {
  const tenant_shelf *shelf = &store->shelf[tenant];
  *out = (weft_response_copy){.deleted = false};
  (void)pthread_mutex_lock(&store->lock);
  store->remembers = true;
  const response_entry *entry = shelf->oldest, *gone = shelf->gone;
  while (entry != NULL && entry->number <= *number) entry = entry->newer;
  while (gone != NULL && gone->number <= *number) gone = gone->newer;
  if (gone != NULL && (entry == NULL || gone->number < entry->number)) {
    entry = gone;
    out->deleted = true;
  }
  if (entry != NULL) {
    weft_text_puts(&out->id, entry->id);
    weft_text_append(&out->body, entry->body, entry->n_body);
    weft_text_append(&out->items, entry->items, entry->n_items);
    *number = entry->number;
  }
  (void)pthread_mutex_unlock(&store->lock);
  return entry != NULL;
}

void weft_responses_forget(weft_responses *store) {
  (void)pthread_mutex_lock(&store->lock);
  store->remembers = false;
  for (uint32_t i = 0; i < store->n_tenants; i++) {
    tenant_shelf *shelf = &store->shelf[i];
    while (shelf->gone != NULL) {
      response_entry *entry = shelf->gone;
      shelf->gone = entry->newer;
      weft_free(entry);
    }
    shelf->last_gone = NULL;
  }
  (void)pthread_mutex_unlock(&store->lock);
}
