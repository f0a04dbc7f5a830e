/* SPDX-License-Identifier: MIT */
#include "scheduler/pins.h"

#include <string.h>

#include "base/memory.h"

weft_status weft_pins_open(weft_pin_table *pins, uint32_t n_max) {
  if (pthread_mutex_init(&pins->mutex, NULL) != 0) return WEFT_E_NO_MEMORY;
  pins->n_max = n_max;
  pins->next_id = 1;
  pins->pin = weft_alloc(n_max + 1, sizeof *pins->pin);
  return pins->pin == NULL ? WEFT_E_NO_MEMORY : WEFT_OK; /* close gives back */
}

static void free_pin(weft_pin_entry *pin) {
  if (pin != NULL) weft_free(pin->tokens);
  weft_free(pin);
}

void weft_pins_close(weft_pin_table *pins) {
  if (pins->next_id == 0) return; /* never opened */
  for (uint32_t i = 0; i < pins->n; i++) free_pin(pins->pin[i]);
  weft_free(pins->pin);
  (void)pthread_mutex_destroy(&pins->mutex);
}

static void lock_pins(weft_pin_table *pins) {
  (void)pthread_mutex_lock(&pins->mutex);
}
static void unlock_pins(weft_pin_table *pins) {
  (void)pthread_mutex_unlock(&pins->mutex);
}

static bool is_empty(weft_pin_table *pins) {
  return atomic_load_explicit(&pins->n_known, memory_order_acquire) == 0;
}

/* ---- any thread ------------------------------------------------------------------------------ */

static weft_status check_pin(const weft_engine *e, const weft_pin_params *p, weft_error *error) {
  if (e->config.no_prefix_cache)
    return weft_fail(error, WEFT_E_INVALID, "nothing can be pinned: the prefix cache is off");
  if (p->model >= e->n_lanes)
    return weft_fail(error, WEFT_E_INVALID, "model number %u; there are %u", p->model, e->n_lanes);
  uint32_t block = e->lane[p->model].block_max;
  if (p->tokens != NULL && p->n_tokens >= block) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID, "a pin holds whole blocks of %u tokens; this prefix has %u", block,
                   p->n_tokens);
}

static weft_pin_entry *make_pin(const weft_engine *e, const weft_pin_params *p) {
  const weft_lane *lane = &e->lane[p->model];
  weft_pin_entry *pin = weft_alloc(1, sizeof *pin);
  if (pin == NULL) return NULL;
  uint32_t n = p->n_tokens & ~(lane->block_max - 1);
  pin->info = (weft_pin_info){.model = p->model,
                              .tenant = p->tenant,
                              .is_public = p->is_public,
                              .priority = p->priority,
                              .expires_us = p->expires_us,
                              .n_tokens = n,
                              .n_pages = weft_pager_pages_for(e->pager, p->model, n, 1)};
  pin->domain = p->domain;
  pin->seq = WEFT_SEQ_NONE;
  pin->tokens = weft_alloc(n, sizeof *pin->tokens);
  if (pin->tokens != NULL) {
    memcpy(pin->tokens, p->tokens, n * sizeof *pin->tokens);
    return pin;
  }
  free_pin(pin);
  return NULL;
}

/* The pin is the list's from here on. */
static weft_status declare_pin(weft_pin_table *pins, weft_pin_entry *pin, uint32_t wanted, uint32_t *id,
                               weft_error *error) {
  weft_status status = WEFT_OK;
  lock_pins(pins);
  if (pins->n == pins->n_max) {
    status = weft_fail(error, WEFT_FULL, "there are %u pins, which is the limit: unpin one first", pins->n_max);
  } else if (pin->info.n_pages > pins->n_pages_max - pins->n_pages) {
    status = weft_fail(error, WEFT_E_TOO_LARGE,
                       "%u tokens need %u pages; pins have %u and may have %u together, so that the "
                       "longest request fits beside them",
                       pin->info.n_tokens, pin->info.n_pages, pins->n_pages, pins->n_pages_max);
  } else {
    *id = pin->info.id = wanted > pins->next_id ? wanted : pins->next_id;
    pins->next_id = *id + 1;
    pins->pin[pins->n++] = pin;
    pins->n_pages += pin->info.n_pages;
    atomic_store_explicit(&pins->n_known, pins->n, memory_order_release);
  }
  unlock_pins(pins);
  return status;
}

weft_status weft_pins_declare(weft_engine *e, const weft_pin_params *params, uint32_t *id, uint32_t *n_tokens,
                              weft_error *error) {
  weft_status status = check_pin(e, params, error);
  if (status != WEFT_OK) return status;
  weft_pin_entry *pin = make_pin(e, params);
  if (pin == NULL) {
    return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a pin of %u tokens", params->n_tokens);
  }
  *n_tokens = pin->info.n_tokens;
  status = declare_pin(&e->pins, pin, params->id, id, error);
  if (status != WEFT_OK) free_pin(pin);
  return status;
}

weft_status weft_pins_remove(weft_engine *e, uint32_t id) {
  weft_pin_table *pins = &e->pins;
  bool found = false;
  lock_pins(pins);
  for (uint32_t i = 0; i < pins->n; i++) {
    weft_pin_entry *pin = pins->pin[i];
    if (pin->info.id != id || pin->removed) continue;
    found = pin->removed = true;
  }
  unlock_pins(pins);
  if (found) weft_inbox_poke(&e->inbox);
  return found ? WEFT_OK : WEFT_E_NOT_FOUND;
}

uint32_t weft_pins_list(weft_engine *e, weft_pin_info *out, uint32_t max) {
  weft_pin_table *pins = &e->pins;
  uint32_t n = 0;
  lock_pins(pins);
  for (uint32_t i = 0; i < pins->n && n < max; i++) {
    const weft_pin_entry *pin = pins->pin[i];
    if (pin->removed) continue;
    out[n] = pin->info;
    out[n++].held = pin->seq != WEFT_SEQ_NONE;
  }
  unlock_pins(pins);
  return n;
}

weft_status weft_pins_copy(weft_engine *e, uint32_t id, int32_t **tokens, uint32_t *n_tokens) {
  weft_pin_table *pins = &e->pins;
  weft_status status = WEFT_E_NOT_FOUND;
  *tokens = NULL;
  lock_pins(pins);
  for (uint32_t i = 0; i < pins->n; i++) {
    const weft_pin_entry *pin = pins->pin[i];
    if (pin->info.id != id || pin->removed) continue;
    *tokens = weft_alloc(pin->info.n_tokens, sizeof **tokens);
    status = *tokens == NULL ? WEFT_E_NO_MEMORY : WEFT_OK;
    if (status == WEFT_OK) memcpy(*tokens, pin->tokens, pin->info.n_tokens * sizeof **tokens);
    *n_tokens = pin->info.n_tokens;
  }
  unlock_pins(pins);
  return status;
}

/* ---- engine thread --------------------------------------------------------------------------- */

void weft_pins_plan(weft_engine *e) {
  uint32_t most = 0, n_pages = e->config.n_pages;
  for (uint32_t i = 0; i < e->n_lanes; i++) {
    const weft_lane *lane = &e->lane[i];
    uint32_t rows = lane->info->canvas_length;
    uint32_t n = weft_pager_pages_for(e->pager, i, lane->context, rows > 1 ? rows : 1);
    if (n > most) most = n;
  }
  e->pins.n_pages_max = most < n_pages ? n_pages - most : 0;
}

static void let_go(weft_engine *e, weft_pin_entry *pin) {
  if (pin->seq == WEFT_SEQ_NONE) return;
  weft_pager_release(e->pager, pin->seq);
  pin->seq = WEFT_SEQ_NONE;
  e->stats.n_pins_held -= 1;
  e->stats.n_pin_pages -= pin->info.n_pages;
}

static void take_out(weft_engine *e, uint32_t at) {
  weft_pin_table *pins = &e->pins;
  weft_pin_entry *pin = pins->pin[at];
  let_go(e, pin);
  pins->n_pages -= pin->info.n_pages;
  pins->n -= 1;
  memmove(pins->pin + at, pins->pin + at + 1, (pins->n - at) * sizeof *pins->pin);
  atomic_store_explicit(&pins->n_known, pins->n, memory_order_release);
  free_pin(pin);
  e->n_changes += 1;
}

void weft_pins_expire(weft_engine *e) {
  weft_pin_table *pins = &e->pins;
  e->stats.n_pins = atomic_load_explicit(&pins->n_known, memory_order_acquire);
  if (e->stats.n_pins == 0) return;
  lock_pins(pins);
  for (uint32_t i = pins->n; i-- > 0;) {
    const weft_pin_entry *pin = pins->pin[i];
    bool expired = pin->info.expires_us != 0 && pin->info.expires_us <= e->now_us;
    if (expired || pin->removed) take_out(e, i);
  }
  e->stats.n_pins = pins->n;
  unlock_pins(pins);
}

uint64_t weft_pins_next_us(weft_engine *e) {
  weft_pin_table *pins = &e->pins;
  uint64_t next = UINT64_MAX;
  if (is_empty(pins)) return next;
  lock_pins(pins);
  for (uint32_t i = 0; i < pins->n; i++) {
    uint64_t at = pins->pin[i]->info.expires_us;
    if (at != 0 && at < next) next = at;
  }
  unlock_pins(pins);
  return next;
}

static bool begins_with(const weft_request *r, uint32_t n_tokens, const weft_pin_entry *pin) {
  return r->lane == pin->info.model && pin->info.n_tokens <= n_tokens && !pin->removed &&
         memcmp(r->tokens, pin->tokens, pin->info.n_tokens * sizeof *pin->tokens) == 0;
}

uint32_t weft_pins_n_public(weft_engine *e, const weft_request *r) {
  weft_pin_table *pins = &e->pins;
  uint32_t n = 0;
  if (is_empty(pins)) return n;
  lock_pins(pins);
  for (uint32_t i = 0; i < pins->n; i++) {
    const weft_pin_entry *pin = pins->pin[i];
    if (!pin->info.is_public || pin->info.n_tokens <= n) continue;
    if (begins_with(r, r->n_prompt, pin)) n = pin->info.n_tokens;
  }
  unlock_pins(pins);
  return n;
}

/* Holds the pin if all of its tokens are cached; else it stays as it is. */
static void try_hold(weft_engine *e, weft_pin_entry *pin) {
  weft_admit args = {.model = pin->info.model,
                     .domain = pin->domain,
                     .tokens = pin->tokens,
                     .n_tokens = pin->info.n_tokens,
                     .n_prompt = pin->info.n_tokens,
                     .n_public = pin->info.is_public ? pin->info.n_tokens : 0,
                     .owner = WEFT_OWNER_OPERATOR,
                     .n_cached_least = pin->info.n_tokens};
  weft_seq seq, leader;
  uint32_t n_cached;
  if (weft_pager_admit(e->pager, &args, &seq, &n_cached, &leader) != WEFT_OK) return;
  pin->seq = seq;
  e->stats.n_pins_held += 1;
  e->stats.n_pin_pages += pin->info.n_pages;
}

void weft_pins_hold(weft_engine *e, const weft_request *r) {
  weft_pin_table *pins = &e->pins;
  if (is_empty(pins) || e->lane[r->lane].broken) return;
  lock_pins(pins);
  for (uint32_t i = 0; i < pins->n; i++) {
    weft_pin_entry *pin = pins->pin[i];
    bool same = pin->info.is_public || weft_key128_equal(pin->domain, r->params.domain);
    if (pin->seq == WEFT_SEQ_NONE && same && begins_with(r, r->n_valid, pin)) try_hold(e, pin);
  }
  unlock_pins(pins);
}

uint32_t weft_pins_spare(weft_engine *e, const weft_request *r) {
  weft_pin_table *pins = &e->pins;
  int32_t priority_class = e->tenants.tenant[r->tenant].config.priority_class;
  uint32_t n = 0;
  if (e->stats.n_pins_held == 0) return 0;
  lock_pins(pins);
  for (uint32_t i = 0; i < pins->n; i++) {
    const weft_pin_entry *pin = pins->pin[i];
    if (pin->seq != WEFT_SEQ_NONE && pin->info.priority < priority_class) n += pin->info.n_pages;
  }
  unlock_pins(pins);
  return n;
}

bool weft_pins_give_way(weft_engine *e, const weft_request *r) {
  weft_pin_table *pins = &e->pins;
  int32_t priority_class = e->tenants.tenant[r->tenant].config.priority_class;
  weft_pin_entry *lowest = NULL;
  if (e->stats.n_pins_held == 0) return false;
  lock_pins(pins);
  for (uint32_t i = 0; i < pins->n; i++) {
    weft_pin_entry *pin = pins->pin[i];
    if (pin->seq == WEFT_SEQ_NONE || pin->info.priority >= priority_class) continue;
    if (lowest == NULL || pin->info.priority < lowest->info.priority) lowest = pin;
  }
  if (lowest != NULL) {
    let_go(e, lowest);
    e->stats.n_pins_dropped += 1;
  }
  unlock_pins(pins);
  return lowest != NULL;
}

void weft_pins_let_go(weft_engine *e, uint32_t lane) {
  weft_pin_table *pins = &e->pins;
  lock_pins(pins);
  for (uint32_t i = 0; i < pins->n; i++) {
    if (lane == UINT32_MAX || lane == pins->pin[i]->info.model) let_go(e, pins->pin[i]);
  }
  unlock_pins(pins);
}

void weft_pins_clear(weft_engine *e) {
  weft_pin_table *pins = &e->pins;
  lock_pins(pins);
  while (pins->n > 0) take_out(e, pins->n - 1);
  unlock_pins(pins);
}
