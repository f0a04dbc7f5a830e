/* SPDX-License-Identifier: MIT */
#include "scheduler/admission.h"

#include "scheduler/cost.h"
#include "scheduler/debt.h"
#include "scheduler/fit.h"
#include "scheduler/pins.h"
#include "scheduler/waiting.h"

static weft_admission make_verdict(weft_admission_kind kind, weft_request *r) {
  return (weft_admission){.kind = kind, .request = r, .seq = WEFT_SEQ_NONE, .leader = WEFT_SEQ_NONE};
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* Pages that must stay free when one more request starts. */
static uint32_t margin_blocks(const weft_engine *e) {
  return weft_policy_margin(e->n_running, e->config.n_pages);
}

/* Pages the request will need soon beyond those its cached prefix already holds. */
static uint32_t pages_wanted(const weft_engine *e, const weft_request *r, weft_seq seq) {
  uint32_t n = weft_fit_pages(e, r->lane, r->n_tokens);
  uint32_t held = weft_pager_n_pages_held(e->pager, seq);
  return (n > held ? n - held : 0) + margin_blocks(e);
}

/* START: there is room for the request; PIN: there may be when a pin of lower priority has given way, since its pages
 * may be in use elsewhere, too; NO_ROOM. */
static weft_admission_kind find_room(weft_engine *e, const weft_request *r, uint32_t wanted) {
  uint32_t headroom = weft_pager_headroom(e->pager);
  if (wanted <= headroom) return WEFT_ADMIT_START;
  return wanted <= headroom + weft_pins_spare(e, r) ? WEFT_ADMIT_PIN : WEFT_ADMIT_NO_ROOM;
}

/* The pages would bring its tenant over its limit. A request that is alone in its tenant is let in, since submit.c has
 * seen that it fits. */
static bool is_over_limit(const weft_engine *e, const weft_request *r, uint32_t wanted) {
  weft_owner_usage usage = weft_pager_owner_usage(e->pager, r->tenant);
  if (usage.limit == 0 || e->tenants.tenant[r->tenant].stats.n_running == 0) return false;
  return usage.n_pinned + wanted - margin_blocks(e) > usage.limit;
}

static weft_admission give_back(const weft_engine *e, weft_admission_kind kind, weft_request *r, weft_seq seq,
                                uint32_t n_pages) {
  weft_admission is = make_verdict(kind, r);
  if (seq != WEFT_SEQ_NONE) weft_pager_release(e->pager, seq);
  is.n_pages = n_pages;
  return is;
}

/* ---- a prompt of its own, or that of a sibling ------------------------------------------------ */

/* How many pages may come back from host memory: none for a request that would not find room for its other pages. */
static uint32_t restores_max(const weft_engine *e, uint32_t n_pages) {
  if (e->config.n_host_pages == 0) return 0;
  return e->n_running > 0 && n_pages > weft_pager_headroom(e->pager) ? 0 : e->config.n_pages;
}

/* Rows at the end that are computed whatever is cached: the last one of an autoregressive prompt, whose logits are
 * wanted; and all that are still to be scored. */
static uint32_t n_keep_rows(const weft_request *r) {
  if (weft_request_lacks_scores(r)) return r->n_tokens - r->n_scored;
  return r->denoises ? 0 : 1;
}

static weft_admit arguments_of(weft_engine *e, const weft_lane *lane, const weft_request *r, uint32_t n_pages) {
  const weft_tenant_config *tenant = &e->tenants.tenant[r->tenant].config;
  const uint32_t *parting = r->params.parting;
  return (weft_admit){
      .model = lane->index,
      .domain = r->params.domain,
      .tokens = r->tokens,
      .n_tokens = r->n_tokens,
      .n_prompt = r->params.n_tokens,
      .parting = {parting[0], parting[1]},
      .n_public = weft_pins_n_public(e, r),
      .owner = r->tenant,
      .retention = (uint32_t)(tenant->priority_class - WEFT_CLASS_LOW),
      .n_keep_rows = n_keep_rows(r),
      .restore_max_pages = restores_max(e, n_pages),
      .restore_cost = weft_cost_of_page(&lane->cost, lane->info->page_bytes),
      .lift_cost = weft_cost_of_us(&lane->cost, e->file_waits.page_us / e->file_waits.patience),
      .restore_wait = weft_waiting_may_wait_for_file(e, r),
      .lift_none = n_pages + e->file_waits.n_pages > weft_pager_headroom(e->pager),
      .room_pages = e->n_running > 0 ? n_pages - margin_blocks(e) : 0, /* alone it is let in, since it fits */
      .room_margin = margin_blocks(e),
      .room_spare = weft_pins_spare(e, r),
      .room_in_limit = e->tenants.tenant[r->tenant].stats.n_running > 0,
      .no_cache = r->params.asked.no_cache};
}

/* Following must not be slower than computing: a request follows another tenant's leader only where that leader is due
 * no later than the request itself, give or take the two steps by which clocks of tenants with equal rights may
 * differ. */
static bool may_follow(const weft_engine *e, const weft_lane *lane, const weft_request *r, weft_seq seq) {
  const weft_request *leader = e->followers[seq].leader;
  if (r->wait.follow_none) return false;
  if (leader == NULL || leader->tenant == r->tenant) return true;
  const weft_cost_shape full = {.n_rows = lane->rows_beside};
  uint64_t apart = 2 * weft_tenants_ticks(&e->tenants, r->tenant, weft_cost_charge(&lane->cost, &full));
  weft_candidate a = weft_tenants_candidate(&e->tenants, leader), b = weft_tenants_candidate(&e->tenants, r);
  return a.level != b.level ? a.level > b.level : a.tenant_clock <= b.tenant_clock + apart;
}

static weft_admission admit_prompt(weft_engine *e, const weft_lane *lane, weft_request *r) {
  uint32_t n_pages = weft_fit_pages(e, r->lane, r->n_tokens) + margin_blocks(e);
  weft_admit args = arguments_of(e, lane, r, n_pages);
  weft_admission is = make_verdict(WEFT_ADMIT_START, r);
  weft_status status = weft_pager_admit(e->pager, &args, &is.seq, &is.n_cached, &is.leader);
  if (status == WEFT_AGAIN && is.leader != WEFT_SEQ_NONE && !may_follow(e, lane, r, is.leader)) {
    args.follow_none = true;
    status = weft_pager_admit(e->pager, &args, &is.seq, &is.n_cached, &is.leader);
  }
  if (status == WEFT_AGAIN && is.leader == WEFT_SEQ_NONE) {
    is.kind = WEFT_ADMIT_FILE;
    is.n_pages = is.n_cached == 0 ? n_pages : 0;
    return is;
  }
  if (status == WEFT_AGAIN) {
    /* when the leader has twice as many tokens as now: few tries, at most twice the wait */
    uint32_t n_valid = weft_pager_n_valid(e->pager, is.leader);
    is.kind = WEFT_ADMIT_FOLLOW;
    is.wake_at = n_valid == 0 ? 1 : 2 * n_valid;
    return is;
  }
  if (status == WEFT_QUOTA) return make_verdict(WEFT_ADMIT_LIMITED, r);
  if (status == WEFT_NO_BLOCKS) return give_back(e, WEFT_ADMIT_NO_ROOM, r, WEFT_SEQ_NONE, is.n_cached);
  WEFT_CHECK(status == WEFT_OK); /* sequences were counted, lengths checked at submit */
  uint32_t wanted = pages_wanted(e, r, is.seq);
  weft_admission_kind kind = e->n_running > 0 ? find_room(e, r, wanted) : WEFT_ADMIT_START;
  return kind == WEFT_ADMIT_START ? is : give_back(e, kind, r, is.seq, wanted);
}

/* An autoregressive answer needs the last row of the prompt itself, a canvas none. */
static weft_admission fork_prompt(weft_engine *e, const weft_lane *lane, weft_request *r, const weft_request *trunk) {
  weft_admission is = make_verdict(WEFT_ADMIT_START, r);
  is.n_cached = r->n_prompt - (r->denoises ? 0 : 1);
  if (weft_pager_n_valid(e->pager, trunk->seq) < is.n_cached) {
    is.kind = WEFT_ADMIT_FOLLOW;
    is.leader = trunk->seq;
    is.wake_at = is.n_cached;
    return is;
  }
  weft_status status = weft_pager_fork(e->pager, trunk->seq, is.n_cached, &is.seq);
  if (status == WEFT_E_NOT_FOUND) return admit_prompt(e, lane, r); /* a window has passed */
  WEFT_CHECK(status == WEFT_OK);
  uint32_t wanted = pages_wanted(e, r, is.seq) + lane->info->n_groups; /* and the copies */
  if (is_over_limit(e, r, wanted)) return give_back(e, WEFT_ADMIT_LIMITED, r, is.seq, 0);
  weft_admission_kind kind = find_room(e, r, wanted);
  if (kind != WEFT_ADMIT_START) return give_back(e, kind, r, is.seq, wanted);
  /* the last canvas is never committed */
  bool writes = !r->denoises || r->size.n_blocks > 1 || trunk->size.n_blocks > 1;
  if (writes) status = weft_pager_reserve(e->pager, is.seq, 1, 1);
  if (status == WEFT_QUOTA) return give_back(e, WEFT_ADMIT_LIMITED, r, is.seq, 0);
  return status == WEFT_OK ? is : give_back(e, WEFT_ADMIT_NO_ROOM, r, is.seq, wanted);
}

static weft_admission admit_request(weft_engine *e, const weft_lane *lane, weft_request *r) {
  const weft_request *trunk = r->head->trunk;
  bool forks = trunk != NULL && !r->admitted_once && r->n_prompt > 1 && !weft_request_lacks_scores(r);
  return forks ? fork_prompt(e, lane, r, trunk) : admit_prompt(e, lane, r);
}

/* ---- the queue of a lane --------------------------------------------------------------------- */

/* Which kind of place is lacking on the lane; WEFT_DEBT_PAGES: none is, so only pages may be lacking. */
static weft_debt_of lacking_place(const weft_engine *e, const weft_lane *lane) {
  if (lane->n_free_slots == 0) return WEFT_DEBT_SLOTS;
  return e->n_running == e->config.running_max ? WEFT_DEBT_PLACES : WEFT_DEBT_PAGES;
}

/* Whether a tenant owes the request the pages that it needs (one page, where no try to admit it has told how many). */
static bool is_owed_pages(const weft_engine *e, const weft_request *r) {
  if (e->tenants.n_tenants == 1) return false;
  weft_debt debt = weft_debt_open(e, r, WEFT_DEBT_PAGES, r->wait.need_pages > 0 ? r->wait.need_pages : 1);
  return weft_debt_find(e, &debt, r) != NULL;
}

/* The plan has rows, time and places for one more request. */
static bool may_admit(const weft_planning *p) {
  const weft_engine *e = p->engine;
  if (p->rows_left == 0 || p->pace.prompt_held) return false;
  bool restores = e->config.n_host_pages > 0;
  if (restores && weft_pager_get_stats(e->pager).n_restored >= p->restores_end) return false;
  return p->lane->n_waiting > 0 && !p->lane->lost && !weft_plan_is_full(p->plan);
}

/* False: the request lacked pages in one of the last plans, and too few have come free since. */
static bool worth_a_try(const weft_engine *e, const weft_request *r) {
  if (e->n_running == 0 || r->wait.need_pages == 0) return true;
  return e->n_plans >= r->wait.retry_plan || weft_pager_headroom(e->pager) >= r->wait.need_pages;
}

/* Whether the request's tenant has no more than its share once the request has the pages, or the place, that it needs.
 */
static bool fits_share(const weft_engine *e, const weft_request *r, weft_debt_of of) {
  uint32_t wanted = of != WEFT_DEBT_PAGES    ? 1
                    : r->wait.need_pages > 0 ? r->wait.need_pages
                                             : weft_fit_pages(e, r->lane, r->n_tokens);
  weft_debt debt = weft_debt_open(e, r, of, wanted);
  return weft_debt_is_within_share(e, &debt, r);
}

/* Whether the request may start although the waiter of claims.h waits for pages or a place. Of two requests that both
 * fit their shares, or both do not, the one that is due first goes first; otherwise the one that fits. */
static bool passes_waiter(const weft_engine *e, const weft_request *r) {
  const weft_request *waiter = e->claims.waiter;
  weft_debt_of of = (weft_debt_of)e->claims.waits_for;
  if (waiter == NULL || waiter == r || !weft_tenants_may_start(&e->tenants, waiter->tenant)) return true;
  if (of == WEFT_DEBT_SLOTS && waiter->lane != r->lane) return true;
  if (r->tenant == waiter->tenant) return weft_tenants_queued_before(r, waiter);
  bool lacks_pages = waiter->wait.need_pages > 0 && !fits_share(e, waiter, WEFT_DEBT_PAGES);
  if (lacks_pages) of = WEFT_DEBT_PAGES; /* a place alone would not help it */
  bool waiter_fits = fits_share(e, waiter, of);
  if (of != WEFT_DEBT_PAGES && !waiter_fits) return true; /* no tenant owes the waiter a place any more */
  if (fits_share(e, r, of) != waiter_fits) return !waiter_fits;
  weft_candidate a = weft_tenants_candidate(&e->tenants, r);
  weft_candidate b = weft_tenants_candidate(&e->tenants, waiter);
  return weft_policy_is_due_before(&a, &b);
}

/* The request itself if it may pass the waiter; else the waiter, where that waits on the same lane; else NULL. */
static weft_request *let_waiter_pass(const weft_engine *e, weft_request *r) {
  if (passes_waiter(e, r)) return r;
  return e->claims.waiter->lane == r->lane ? e->claims.waiter : NULL;
}

/* ---- a place or pages for a tenant that has less than its share ------------------------------- */

/* The running request to preempt for r now. While pages of another preempted request are on their way, or one was
 * preempted in this plan, there is none. */
static weft_request *find_debtor(const weft_engine *e, const weft_request *r, weft_debt_of of, uint32_t wanted) {
  if (e->claims.preempted || e->claims.n_leaving > 0 || !weft_debt_goes_before_starved(e, r)) return NULL;
  weft_debt debt = weft_debt_open(e, r, of, wanted);
  return weft_debt_find(e, &debt, r);
}

/* The request lacks a place: it claims one that is owed to it, or lets other tenants' requests try. */
static weft_admission claim_place(const weft_engine *e, weft_request *r, weft_request *asked, weft_debt_of of) {
  weft_debt debt = weft_debt_open(e, r, of, 1);
  if (weft_debt_find(e, &debt, r) == NULL) return make_verdict(WEFT_ADMIT_PASS, asked);
  weft_admission is = make_verdict(WEFT_ADMIT_CLAIM, r);
  is.lacks = of;
  is.victim = find_debtor(e, r, of, 1);
  return is;
}

weft_admission weft_admission_decide(weft_planning *p, weft_request *asked) {
  weft_engine *e = p->engine;
  weft_request *r = let_waiter_pass(e, asked);
  if (r == NULL) return make_verdict(WEFT_ADMIT_PASS, asked);
  weft_debt_of lacks = lacking_place(e, p->lane);
  if (lacks != WEFT_DEBT_PAGES) return claim_place(e, r, asked, lacks);
  if (!may_admit(p)) return make_verdict(WEFT_ADMIT_NOBODY, r);
  if (!weft_debt_goes_before_starved(e, r) || (e->claims.preempted && !is_owed_pages(e, r)))
    return make_verdict(WEFT_ADMIT_PASS, asked);
  weft_admission is = worth_a_try(e, r) ? admit_request(e, p->lane, r) : make_verdict(WEFT_ADMIT_NO_ROOM, r);
  if (is.kind == WEFT_ADMIT_NO_ROOM) {
    is.lacks = WEFT_DEBT_PAGES;
    is.asked = asked;
    const weft_request *waiter = e->claims.waiter;
    is.keeps_waiter = waiter != NULL && waiter->tenant != r->tenant &&
                      fits_share(e, waiter, (weft_debt_of)e->claims.waits_for) && !fits_share(e, r, WEFT_DEBT_PAGES);
    is.victim = find_debtor(e, r, WEFT_DEBT_PAGES, is.n_pages > 0 ? is.n_pages : r->wait.need_pages);
  }
  return is;
}

/* ---- whose turn it is ------------------------------------------------------------------------- */

/* What a calling tenant is compared with: the largest clock of a tenant with running requests, and the highest level
 * of a tenant with requests. */
typedef struct standing {
  uint64_t clock;
  int32_t level;
} standing;

static int32_t level_of(const weft_engine *e, uint32_t tenant) {
  return e->tenants.level[e->tenants.tenant[tenant].config.priority_class - WEFT_CLASS_LOW];
}

static standing standing_of_others(const weft_engine *e) {
  standing most = {.level = INT32_MIN};
  for (uint32_t i = 0; i < e->tenants.n_tenants; i++) {
    const weft_tenant *t = &e->tenants.tenant[i];
    if (t->stats.n_running > 0 && t->clock > most.clock) most.clock = t->clock;
    if (t->n_queued + t->stats.n_running > 0 && level_of(e, i) > most.level) most.level = level_of(e, i);
  }
  return most;
}

/* The request would start, or claim what is owed to it, if its lane were planned now. */
static bool would_start(const weft_engine *e, const weft_lane *lane, weft_request *r) {
  bool on_the_way = e->claims.n_leaving > 0;
  if (!weft_debt_goes_before_starved(e, r) || let_waiter_pass(e, r) != r) return false;
  weft_debt_of lacks = lacking_place(e, lane);
  if (lacks != WEFT_DEBT_PAGES) return !on_the_way && find_debtor(e, r, lacks, 1) != NULL;
  if (r->wait.need_pages == 0) return true;
  if (!fits_share(e, r, WEFT_DEBT_PAGES)) return false; /* nothing is set aside for it */
  return weft_pager_headroom(e->pager) >= r->wait.need_pages || (!on_the_way && is_owed_pages(e, r));
}

/* The request's tenant has no more than its share of places, counting `more` further ones, and its clock is behind that
 * of a tenant with running requests. */
static bool is_light(const weft_engine *e, const weft_request *r, uint32_t more, const standing *most) {
  if (e->tenants.tenant[r->tenant].clock >= most->clock) return false;
  weft_debt places = weft_debt_open(e, r, WEFT_DEBT_PLACES, more);
  return weft_debt_is_within_share(e, &places, r);
}

/* The waiter fits its share and would start on this lane. Other requests wait for it, so they gain when it starts. */
static bool waiter_would_start(const weft_engine *e, const weft_lane *lane) {
  weft_request *waiter = e->claims.waiter;
  return waiter != NULL && waiter->lane == lane->index && fits_share(e, waiter, (weft_debt_of)e->claims.waits_for) &&
         would_start(e, lane, waiter);
}

/* The running request that lacks pages is on this lane and would find them now. No request starts on any lane before it
 * has them, so others gain when it does. */
static bool starved_would_go_on(const weft_engine *e, const weft_lane *lane) {
  const weft_request *r = e->claims.starved, *waiter = e->claims.waiter;
  if (r == NULL || r->lane != lane->index || e->stats.n_waiting == 0) return false;
  if (waiter != NULL && weft_debt_goes_before_starved(e, waiter)) return false; /* pages are set aside for that one */
  uint32_t n = r->denoises ? r->size.n_canvas : 1;
  return weft_pager_headroom(e->pager) >= weft_lane_pages_for_rows(lane, n);
}

/* Of the tenants of the highest level that have a prompt on this lane which is not computed yet, or a waiting request
 * that would start here, the least clock: of all of them, or of the light ones. No clock is below `least`: that. */
static uint64_t least_clock(const weft_engine *e, const weft_lane *lane, uint64_t least, bool light) {
  const weft_tenants *t = &e->tenants;
  standing most = standing_of_others(e);
  for (const weft_link *at = lane->prefilling.next; at != &lane->prefilling; at = at->next) {
    const weft_request *r = WEFT_OF_LINK(at, weft_request, link);
    if (t->tenant[r->tenant].clock >= least || level_of(e, r->tenant) < most.level) continue;
    if (!light || is_light(e, r, 0, &most)) least = t->tenant[r->tenant].clock;
  }
  for (uint32_t i = 0; lane->n_waiting > 0 && i < t->n_tenants; i++) {
    if (t->tenant[i].clock >= least || level_of(e, i) < most.level) continue;
    weft_request *r = weft_tenants_first(t, lane->index, i);
    if (r != NULL && (!light || is_light(e, r, 1, &most)) && would_start(e, lane, r)) least = t->tenant[i].clock;
  }
  return least;
}

uint64_t weft_admission_call(const weft_engine *e, const weft_lane *lane) {
  if (e->tenants.n_tenants == 1) return UINT64_MAX;
  uint64_t least = least_clock(e, lane, UINT64_MAX, true);
  if (least < UINT64_MAX) return least;
  return waiter_would_start(e, lane) || starved_would_go_on(e, lane) ? UINT64_MAX - 1 : UINT64_MAX;
}

uint64_t weft_admission_behind(const weft_engine *e, const weft_lane *lane, uint64_t clock) {
  bool lacks_pages = e->claims.waiter != NULL && e->claims.waits_for == WEFT_DEBT_PAGES;
  return e->claims.starved != NULL || lacks_pages ? clock : least_clock(e, lane, clock, false);
}
