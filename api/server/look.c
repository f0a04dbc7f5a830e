/* SPDX-License-Identifier: MIT */
#include "api/server/look.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <xxhash.h>

#include "api/json.h"
#include "api/tenants.h"
#include "base/memory.h"

/* The numbers of page.md. */
enum { STATE_FREE = 0, STATE_OTHERS = 4, OWNER_NONE = -1 };
/* Most bytes of each part, numbers of the longest kind and names of the longest that keys may have among them. */
enum {
  HEAD_BYTES = 2048,
  MODEL_BYTES = 512,
  TENANT_BYTES = 1024,
  REQUEST_BYTES = 512,
  RUN_BYTES = 16,
  STEP_BYTES = 384
};

/* For whom it is written. */
typedef struct viewer {
  const look *look;
  uint32_t tenant;
  bool all;
  weft_text *out;
} viewer;

/* ---- taking one -------------------------------------------------------------------------------- */

static size_t count_bytes(const look *l) {
  size_t n = HEAD_BYTES + (size_t)LOOK_REQUESTS * REQUEST_BYTES + (size_t)l->n_tenants * TENANT_BYTES;
  for (uint32_t i = 0; i < l->runtime->n_models; i++)
    n += MODEL_BYTES + 6 * strlen(l->runtime->model[i].name); /* an escaped byte is six */
  for (uint32_t r = 0; r < l->runtime->n_replicas; r++) {
    const uint32_t n_cells = l->replica[r].view.n_cells;
    n += HEAD_BYTES + (size_t)n_cells * RUN_BYTES + (size_t)LOOK_STEPS * STEP_BYTES + (size_t)l->n_tenants * 64;
  }
  return n;
}

weft_status look_open(look *l, weft_runtime *runtime, const weft_keys *keys) {
  *l = (look){.runtime = runtime, .keys = keys, .n_tenants = runtime->options.tenants};
  l->replica = weft_alloc(runtime->n_replicas, sizeof *l->replica);
  l->tenant = weft_alloc(l->n_tenants, sizeof *l->tenant);
  weft_status status = l->replica == NULL || l->tenant == NULL ? WEFT_E_NO_MEMORY : WEFT_OK;
  for (uint32_t r = 0; r < runtime->n_replicas && status == WEFT_OK; r++)
    status = weft_engine_open_view(weft_replicas_at(runtime->replicas, r), &l->replica[r].view);
  if (status == WEFT_OK)
    l->bytes_max = count_bytes(l);
  else
    look_close(l);
  return status;
}

void look_close(look *l) {
  for (uint32_t r = 0; l->replica != NULL && r < l->runtime->n_replicas; r++) weft_view_close(&l->replica[r].view);
  weft_free(l->replica);
  weft_free(l->tenant);
  *l = (look){0};
}

void look_take(look *l, bool draining) {
  weft_replicas *replicas = l->runtime->replicas;
  uint32_t n = l->runtime->n_replicas;
  struct timespec now;
  for (uint32_t r = 0; r < n; r++) weft_engine_ask_view(weft_replicas_at(replicas, r));
  uint64_t until = weft_clock_us() + LOOK_LATE_MS * 1000u;
  for (uint32_t r = 0; r < n; r++) {
    weft_engine *engine = weft_replicas_at(replicas, r);
    look_replica *own = &l->replica[r];
    own->late = !weft_engine_await_view(engine, until, &own->view);
    weft_engine_get_stats(engine, &own->stats);
    own->n_steps = weft_engine_get_steps(engine, own->step, LOOK_STEPS);
  }
  l->n_named = weft_tenants_count(l->runtime);
  for (uint32_t t = 0; t < l->n_named; t++) weft_replicas_get_tenant_stats(replicas, t, &l->tenant[t]);
  (void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail with this clock */
  l->time_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
  l->now_us = weft_clock_us();
  l->draining = draining;
  l->number += 1;
}

bool look_sees_all(const look *l, uint32_t tenant) {
  return l->keys == NULL || weft_keys_one_asks(l->keys) || weft_keys_is_operator(l->keys, tenant);
}

static viewer viewer_of(const look *l, uint32_t tenant, weft_text *out) {
  return (viewer){.look = l, .tenant = tenant, .all = look_sees_all(l, tenant), .out = out};
}

/* ---- words ------------------------------------------------------------------------------------- */

static const char *yes_no(bool yes) {
  return yes ? "true" : "false";
}

static void put_u64(weft_text *out, const char *before, uint64_t n) {
  weft_text_puts(out, before);
  weft_text_printf(out, "%llu", (unsigned long long)n);
}

static void put_name(weft_text *out, const char *before, const char *name) {
  weft_text_puts(out, before);
  weft_json_words(out, name);
}

void look_put_head(const look *l, uint32_t tenant, weft_text *out) {
  const viewer v = viewer_of(l, tenant, out);
  bool late = false;
  for (uint32_t r = 0; r < l->runtime->n_replicas; r++) late = late || l->replica[r].late;
  weft_text_printf(out, "{\"object\":\"stats\",\"scope\":\"%s\"", v.all ? "all" : "own");
  put_name(out, ",\"tenant\":", l->runtime->tenant_name[tenant]);
  weft_text_printf(out, ",\"period_ms\":%d,\"time_ms\":%llu,\"number\":%llu,\"late\":%s", LOOK_PERIOD_MS,
                   (unsigned long long)l->time_ms, (unsigned long long)l->number, yes_no(late));
}

/* ---- models and tenants -------------------------------------------------------------------------- */

/* Counters of a model, of all replicas. */
static weft_lane_stats lane_of(const look *l, uint32_t model) {
  weft_lane_stats sum = {0};
  for (uint32_t r = 0; r < l->runtime->n_replicas; r++) {
    const weft_lane_stats *lane = &l->replica[r].stats.lane[model];
    sum.n_steps += lane->n_steps;
    sum.n_rows += lane->n_rows;
    sum.busy_us += lane->busy_us;
    sum.n_running += lane->n_running;
    sum.n_waiting += lane->n_waiting;
  }
  return sum;
}

static bool is_broken(const look *l, uint32_t model) {
  for (uint32_t r = 0; r < l->runtime->n_replicas; r++) {
    if ((l->replica[r].stats.broken_runners >> model & 1) == 0) return false;
  }
  return true;
}

static void put_models(const viewer *v) {
  const look *l = v->look;
  weft_text_puts(v->out, ",\"models\":[");
  for (uint32_t i = 0; i < l->runtime->n_models; i++) {
    const weft_model_card card = weft_model_at(l->runtime, i);
    const weft_lane_stats lane = lane_of(l, i);
    put_name(v->out, i > 0 ? ",{\"name\":" : "{\"name\":", card.name);
    weft_text_printf(v->out, ",\"canvas\":%u,\"context\":%u,\"broken\":%s", card.canvas, card.context,
                     yes_no(is_broken(l, i)));
    if (v->all) {
      weft_text_printf(v->out, ",\"running\":%u,\"waiting\":%u,\"steps\":%llu,\"rows\":%llu,\"busy_us\":%llu",
                       lane.n_running, lane.n_waiting, (unsigned long long)lane.n_steps,
                       (unsigned long long)lane.n_rows, (unsigned long long)lane.busy_us);
    }
    weft_text_puts(v->out, "}");
  }
  weft_text_puts(v->out, "]");
}

static weft_tenant_options options_of(const look *l, uint32_t tenant) {
  return l->keys == NULL ? (weft_tenant_options){0} : weft_keys_get_options(l->keys, tenant);
}

static uint32_t weight_of(const look *l, uint32_t tenant) {
  uint32_t weight = options_of(l, tenant).weight;
  return weight == 0 ? 1 : weight;
}

static bool is_active(const look *l, uint32_t tenant) {
  return l->tenant[tenant].n_running + l->tenant[tenant].n_waiting > 0;
}

/* Its part of the device among the tenants that have requests now (weft_tenants_share_of). */
static double share_of(const look *l, uint32_t tenant) {
  double sum = 0;
  for (uint32_t t = 0; t < l->n_named; t++) sum += is_active(l, t) || t == tenant ? weight_of(l, t) : 0;
  return weight_of(l, tenant) / sum;
}

static void put_limits(const weft_tenant_options *o, weft_text *out) {
  const struct {
    const char *name;
    uint32_t value;
  } rows[] = {{"running", o->running},
              {"waiting", o->queued},
              {"tokens_per_minute", o->tokens_per_minute},
              {"pages", o->blocks}};
  const char *before = "";
  weft_text_puts(out, ",\"limits\":{");
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (rows[i].value == 0) continue;
    weft_text_printf(out, "%s\"%s\":%u", before, rows[i].name, rows[i].value);
    before = ",";
  }
  weft_text_puts(out, "}");
}

static void put_tenant(const viewer *v, uint32_t tenant) {
  const weft_tenant_stats *s = &v->look->tenant[tenant];
  const weft_tenant_options options = options_of(v->look, tenant);
  uint64_t n_refused = 0;
  for (int i = 0; i < WEFT_REFUSED_KINDS; i++) n_refused += s->n_refused[i];
  put_name(v->out, "{\"name\":", v->look->runtime->tenant_name[tenant]);
  weft_text_printf(v->out, ",\"weight\":%u,\"class\":%d,\"share\":%.3f,\"active\":%s", weight_of(v->look, tenant),
                   options.priority_class, share_of(v->look, tenant), yes_no(is_active(v->look, tenant)));
  put_limits(&options, v->out);
  weft_text_printf(v->out, ",\"running\":%u,\"waiting\":%u,\"pages\":%u,\"pages_cached\":%u", s->n_running,
                   s->n_waiting, s->n_blocks, s->n_blocks_cached);
  put_u64(v->out, ",\"submitted\":", s->n_submitted);
  put_u64(v->out, ",\"finished\":", s->n_finished);
  put_u64(v->out, ",\"preempted\":", s->n_preemptions);
  put_u64(v->out, ",\"refused\":", n_refused);
  put_u64(v->out, ",\"evicted\":", s->n_evicted);
  put_u64(v->out, ",\"prompt_tokens\":", s->n_prompt_tokens);
  put_u64(v->out, ",\"cached_tokens\":", s->n_cached_tokens);
  put_u64(v->out, ",\"answer_tokens\":", s->n_answer_tokens);
  put_u64(v->out, ",\"rows\":", s->n_rows);
  put_u64(v->out, ",\"device_us\":", s->charged_us);
  weft_text_puts(v->out, "}");
}

static void put_tenants(const viewer *v) {
  weft_text_puts(v->out, ",\"tenants\":[");
  for (uint32_t t = v->all ? 0 : v->tenant; t < (v->all ? v->look->n_named : v->tenant + 1); t++) {
    if (v->all && t > 0) weft_text_puts(v->out, ",");
    put_tenant(v, t);
  }
  weft_text_puts(v->out, "]");
}

/* ---- requests -------------------------------------------------------------------------------------- */

typedef struct look_row {
  const weft_view_request *request;
  uint32_t replica;
} look_row;

static int compare_rows(const void *a, const void *b) {
  const look_row *x = a, *y = b;
  if (x->request->submitted_us != y->request->submitted_us)
    return x->request->submitted_us < y->request->submitted_us ? -1 : 1;
  if (x->replica != y->replica) return x->replica < y->replica ? -1 : 1;
  return x->request->number < y->request->number ? -1 : x->request->number > y->request->number;
}

/* A number that tells one request from another and not how many there were: a tenant is not to count the others'. */
static uint64_t id_of(const viewer *v, const look_row *row) {
  const uint64_t words[3] = {0x7765667469640001ull, row->replica, row->request->number};
  return XXH3_64bits_withSecret(words, sizeof words, v->look->runtime->salt_secret, WEFT_SALT_SECRET) >> 12;
}

static void put_request(const viewer *v, const look_row *row) {
  static const char *const phases[WEFT_PHASES] = {"queued",  "prefix", "file",    "preempted",
                                                  "prefill", "decode", "denoise", "ending"};
  const weft_view_request *r = row->request;
  uint64_t now = v->look->now_us;
  weft_text_printf(v->out,
                   "{\"id\":\"%013llx\",\"tenant\":%u,\"model\":%u,\"replica\":%u,\"kind\":\"%s\",\"phase\":\"%s\","
                   "\"prompt\":%u,\"cached\":%u,\"computed\":%u,\"answer\":%u,\"answer_max\":%u",
                   (unsigned long long)id_of(v, row), v->all ? r->tenant : 0, r->model, row->replica,
                   r->n_canvas > 0 ? "canvas" : "autoregressive", phases[r->phase], r->n_prompt, r->n_cached,
                   r->n_computed, r->n_answer, r->answer_max);
  if (r->n_canvas > 0)
    weft_text_printf(v->out, ",\"block\":%u,\"step\":%u,\"steps\":%u,\"canvas\":%u", r->block, r->step, r->n_steps,
                     r->n_canvas);
  weft_text_printf(v->out, ",\"preemptions\":%u,\"age_ms\":%llu}", r->n_preemptions,
                   (unsigned long long)(now > r->submitted_us ? (now - r->submitted_us) / 1000 : 0));
}

static uint32_t count_requests(const viewer *v) {
  uint32_t n = 0;
  for (uint32_t r = 0; r < v->look->runtime->n_replicas; r++) {
    const weft_view *view = &v->look->replica[r].view;
    n += v->all ? view->n_requests + view->n_more : 0;
  }
  return v->all ? n : v->look->tenant[v->tenant].n_running + v->look->tenant[v->tenant].n_waiting;
}

/* The oldest first, so that a request keeps its place while those before it live. */
static void put_requests(const viewer *v) {
  uint32_t n = 0, n_max = 0, n_put = 0;
  for (uint32_t r = 0; r < v->look->runtime->n_replicas; r++) n_max += v->look->replica[r].view.n_requests;
  look_row *row = weft_alloc(n_max, sizeof *row);
  if (row == NULL) v->out->refused = true;
  for (uint32_t r = 0; row != NULL && r < v->look->runtime->n_replicas; r++) {
    const weft_view *view = &v->look->replica[r].view;
    for (uint32_t i = 0; i < view->n_requests; i++) {
      if (v->all || view->request[i].tenant == v->tenant) row[n++] = (look_row){&view->request[i], r};
    }
  }
  if (n > 0) qsort(row, n, sizeof *row, compare_rows);
  weft_text_puts(v->out, ",\"requests\":[");
  for (; n_put < n && n_put < LOOK_REQUESTS; n_put++) {
    if (n_put > 0) weft_text_puts(v->out, ",");
    put_request(v, &row[n_put]);
  }
  weft_free(row);
  uint32_t n_all = count_requests(v);
  weft_text_printf(v->out, "],\"requests_left_out\":%u", n_all > n_put ? n_all - n_put : 0);
}

/* ---- queue and cache: the operator's --------------------------------------------------------------- */

static void put_queue(const viewer *v) {
  const weft_open_options *o = &v->look->runtime->options;
  uint32_t n_running = 0, n_waiting = 0;
  weft_pager_stats sum = {0};
  for (uint32_t r = 0; r < v->look->runtime->n_replicas; r++) {
    const look_replica *own = &v->look->replica[r];
    n_running += own->stats.n_running;
    n_waiting += own->stats.n_waiting;
    sum.n_admits += own->stats.pager.n_admits;
    sum.n_hits += own->stats.pager.n_hits;
    sum.n_prompt_tokens += own->stats.pager.n_prompt_tokens;
    sum.n_hit_tokens += own->stats.pager.n_hit_tokens;
  }
  weft_text_printf(v->out, ",\"queue\":{\"running\":%u,\"running_max\":%u,\"waiting\":%u,\"waiting_max\":%u", n_running,
                   o->running * v->look->runtime->n_replicas, n_waiting, o->queue);
  put_u64(v->out, ",\"request_bytes\":", v->look->replica[0].stats.request_bytes); /* one budget for all replicas */
  put_u64(v->out, ",\"request_bytes_max\":", o->request_bytes);
  put_u64(v->out, "},\"cache\":{\"prompts\":", sum.n_admits);
  put_u64(v->out, ",\"hits\":", sum.n_hits);
  put_u64(v->out, ",\"prompt_tokens\":", sum.n_prompt_tokens);
  put_u64(v->out, ",\"hit_tokens\":", sum.n_hit_tokens);
  weft_text_puts(v->out, "}");
}

/* ---- pools and steps ------------------------------------------------------------------------------- */

typedef struct shown_cell {
  uint32_t state;
  int32_t owner; /* index of the list of owners */
} shown_cell;

static shown_cell show_cell(const viewer *v, weft_grid_cell cell) {
  if (cell.state == WEFT_GRID_FREE) return (shown_cell){STATE_FREE, OWNER_NONE};
  if (!v->all) return cell.owner == v->tenant ? (shown_cell){cell.state, 0} : (shown_cell){STATE_OTHERS, 1};
  return (shown_cell){cell.state, cell.owner == WEFT_OWNER_OPERATOR ? (int32_t)v->look->n_named : (int32_t)cell.owner};
}

static void put_grid(const viewer *v, const weft_view *view) {
  weft_text_printf(v->out, ",\"grid\":{\"pages_per_cell\":%u,\"cells\":%u,\"runs\":[", view->pages_per_cell,
                   view->n_cells);
  for (uint32_t at = 0, n; at < view->n_cells; at += n) {
    const shown_cell cell = show_cell(v, view->cell[at]);
    for (n = 1; at + n < view->n_cells; n++) {
      const shown_cell next = show_cell(v, view->cell[at + n]);
      if (next.state != cell.state || next.owner != cell.owner) break;
    }
    weft_text_printf(v->out, "%s[%u,%d,%u]", at > 0 ? "," : "", cell.state, (int)cell.owner, n);
  }
  weft_text_puts(v->out, "]}");
}

static void put_owners(const viewer *v) {
  weft_text_puts(v->out, ",\"owners\":[");
  for (uint32_t t = 0; t < (v->all ? v->look->n_named : 1); t++)
    weft_text_printf(v->out, "{\"kind\":\"tenant\",\"tenant\":%u},", t);
  weft_text_puts(v->out, v->all ? "{\"kind\":\"public\"}]" : "{\"kind\":\"others\"}]");
}

static void put_pool(const viewer *v, uint32_t replica) {
  const weft_view *view = &v->look->replica[replica].view;
  const weft_pager_stats *p = &view->pager;
  weft_text_printf(v->out, "{\"pool\":{\"pages\":%u,\"page_bytes\":%llu", v->look->runtime->n_pages,
                   (unsigned long long)v->look->runtime->page_bytes);
  if (v->all) {
    weft_text_printf(v->out, ",\"free\":%u,\"cached\":%u,\"live\":%u,\"pinned\":%u", p->n_free, p->n_cached,
                     p->n_pinned - view->n_pinned, view->n_pinned);
    put_u64(v->out, ",\"evicted\":", p->n_evicted);
    weft_text_printf(v->out, ",\"host\":{\"pages\":%u,\"held\":%u},\"file\":{\"pages\":%u,\"held\":%u}",
                     p->n_host_pages, p->n_host_held, p->n_file_pages, p->n_file_held);
  } else {
    weft_tenant_stats own;
    weft_engine_get_tenant_stats(weft_replicas_at(v->look->runtime->replicas, replica), v->tenant, &own);
    weft_text_printf(v->out, ",\"cached\":%u,\"live\":%u", own.n_blocks_cached, own.n_blocks);
  }
  put_owners(v);
  put_grid(v, view);
  weft_text_puts(v->out, "}");
}

static void put_step(const weft_step_record *s, weft_text *out) {
  uint64_t us = s->measured_us > 0 ? s->measured_us : s->collected_us - s->launched_us;
  put_u64(out, "{\"number\":", s->number);
  weft_text_printf(out, ",\"model\":%u", s->lane);
  put_u64(out, ",\"ended_us\":", s->collected_us);
  put_u64(out, ",\"us\":", us);
  put_u64(out, ",\"predicted_us\":", s->predicted_us);
  weft_text_printf(out, ",\"segments\":%u,\"prefill\":%u,\"decode\":%u,\"canvas\":%u,\"commit\":%u,\"failed\":%s}",
                   s->n_segments, s->n_prefill_rows, s->n_decode_rows, s->n_canvas_rows, s->n_commit_rows,
                   yes_no(s->failed));
}

static void put_replicas(const viewer *v) {
  weft_text_puts(v->out, ",\"replicas\":[");
  for (uint32_t r = 0; r < v->look->runtime->n_replicas; r++) {
    const look_replica *own = &v->look->replica[r];
    weft_text_puts(v->out, r > 0 ? "," : "");
    put_pool(v, r);
    weft_text_puts(v->out, ",\"steps\":[");
    for (uint32_t i = 0; v->all && i < own->n_steps; i++) {
      weft_text_puts(v->out, i > 0 ? "," : "");
      put_step(&own->step[i], v->out);
    }
    weft_text_puts(v->out, "]}");
  }
  weft_text_puts(v->out, "]");
}

void look_put_rest(const look *l, uint32_t tenant, weft_text *out) {
  const viewer v = viewer_of(l, tenant, out);
  weft_text_printf(out, ",\"draining\":%s", yes_no(l->draining));
  put_models(&v);
  put_tenants(&v);
  put_requests(&v);
  if (v.all) put_queue(&v);
  put_replicas(&v);
  weft_text_puts(out, "}");
}
