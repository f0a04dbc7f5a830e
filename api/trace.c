/* SPDX-License-Identifier: MIT */
/* What the engine did last, in the Chrome trace event format, for chrome://tracing and Perfetto.
 *
 *   process 1  the loop: one row for the engine thread (plan, apply), one per model (its steps), and
 *              counters of the pool's pages and of the requests; of a second replica process 3, and so on
 *   process 2  the requests that ended: one row per tenant; waiting, prompt, answer
 *
 * Law. Steps of one device run one after another: one that was launched while the step before still
 * ran begins where that one ended. Times are microseconds of the engine's clock. */
#include <stdio.h>

#include "api/json.h"
#include "api/runtime.h"
#include "api/tenants.h"
#include "base/memory.h"

enum { FIRST_LOOP = 1, REQUESTS = 2, NEXT_LOOP = 3, ENGINE_ROW = 0, FIRST_MODEL_ROW = 1 };

typedef struct trace {
  weft_text *out;
  bool any;
  uint32_t loop;       /* the process of the replica whose steps are written */
  uint64_t n_replicas; /* the requests of each are numbered apart */
} trace;

/* {"name":"...","ph":"X", ... up to the arguments; the caller closes with }. */
static void put_event(trace *t, const char *name, const char *phase, uint32_t process, uint32_t row, uint64_t at_us) {
  weft_text_puts(t->out, t->any ? ",\n{\"name\":" : "\n{\"name\":");
  t->any = true;
  weft_json_words(t->out, name);
  weft_text_printf(t->out, ",\"ph\":\"%s\",\"pid\":%u,\"tid\":%u,\"ts\":%llu", phase, process, row,
                   (unsigned long long)at_us);
}

static void put_name(trace *t, const char *kind, uint32_t process, uint32_t row, const char *name) {
  put_event(t, kind, "M", process, row, 0);
  weft_text_puts(t->out, ",\"args\":{\"name\":");
  weft_json_words(t->out, name);
  weft_text_puts(t->out, "}}");
}

static uint64_t span_us(uint64_t from, uint64_t to) {
  return to > from ? to - from : 0;
}

static void put_span(trace *t, const char *name, uint32_t row, uint64_t from, uint64_t to) {
  put_event(t, name, "X", t->loop, row, from);
  weft_text_printf(t->out, ",\"dur\":%llu", (unsigned long long)span_us(from, to));
}

/* ---- steps ----------------------------------------------------------------------------------- */

static const char *name_of_step(const weft_step_record *s) {
  if (s->failed) return "failed step";
  bool causal = s->n_prefill_rows + s->n_decode_rows > 0, canvas = s->n_canvas_rows > 0;
  if (causal && canvas) return "mixed";
  if (canvas) return "denoise";
  if (s->n_prefill_rows > 0) return s->n_decode_rows > 0 ? "prefill and decode" : "prefill";
  return s->n_decode_rows > 0 ? "decode" : "commit";
}

static void put_counters(trace *t, const weft_step_record *s) {
  put_event(t, "pages", "C", t->loop, ENGINE_ROW, s->applied_us);
  weft_text_printf(t->out, ",\"args\":{\"pinned\":%u,\"cached\":%u,\"free\":%u}}", s->n_pages_pinned, s->n_pages_cached,
                   s->n_pages_free);
  put_event(t, "requests", "C", t->loop, ENGINE_ROW, s->applied_us);
  weft_text_printf(t->out, ",\"args\":{\"running\":%u,\"waiting\":%u}}", s->n_running, s->n_waiting);
}

static void put_step(trace *t, const weft_step_record *s, uint64_t device_free_us) {
  uint64_t starts = s->launched_us > device_free_us ? s->launched_us : device_free_us;
  put_span(t, "plan", ENGINE_ROW, s->began_us, s->launched_us);
  weft_text_printf(t->out, ",\"args\":{\"step\":%llu}}", (unsigned long long)s->number);
  put_span(t, "enqueue", ENGINE_ROW, s->launched_us, s->enqueued_us);
  weft_text_printf(t->out, ",\"args\":{\"step\":%llu}}", (unsigned long long)s->number);
  put_span(t, name_of_step(s), FIRST_MODEL_ROW + s->lane, starts, s->collected_us);
  weft_text_printf(t->out,
                   ",\"args\":{\"step\":%llu,\"segments\":%u,\"prefill\":%u,\"decode\":%u,"
                   "\"commit\":%u,\"canvas\":%u,\"predicted_us\":%llu,\"measured_us\":%llu,"
                   "\"resizing_us\":%llu,\"preemptions\":%llu,\"evicted\":%llu}}",
                   (unsigned long long)s->number, s->n_segments, s->n_prefill_rows, s->n_decode_rows, s->n_commit_rows,
                   s->n_canvas_rows, (unsigned long long)s->predicted_us, (unsigned long long)s->measured_us,
                   (unsigned long long)s->resizing_us, (unsigned long long)s->n_preemptions,
                   (unsigned long long)s->n_evicted);
  put_span(t, "apply", ENGINE_ROW, s->collected_us, s->applied_us);
  weft_text_printf(t->out, ",\"args\":{\"step\":%llu}}", (unsigned long long)s->number);
  put_counters(t, s);
}

static bool put_steps(trace *t, weft_engine *engine, uint32_t n_max) {
  weft_step_record *step = weft_alloc(n_max, sizeof *step);
  if (step == NULL) return false;
  uint32_t n = weft_engine_get_steps(engine, step, n_max);
  for (uint32_t i = 0; i < n; i++) put_step(t, &step[i], i == 0 ? 0 : step[i - 1].collected_us);
  weft_free(step);
  return true;
}

/* ---- requests -------------------------------------------------------------------------------- */

static void put_phase(trace *t, uint64_t number, const weft_request_record *r, const char *name, uint64_t from,
                      uint64_t to) {
  const char *const ends[] = {"b", "e"};
  const uint64_t at[] = {from, to};
  if (from == 0 || to < from) return; /* it never came so far */
  for (int i = 0; i < 2; i++) {
    put_event(t, name, ends[i], REQUESTS, r->tenant, at[i]);
    weft_text_printf(t->out, ",\"cat\":\"request\",\"id\":%llu", (unsigned long long)number);
    if (i == 0) {
      weft_text_printf(t->out,
                       ",\"args\":{\"kind\":\"%s\",\"model\":%u,\"prompt\":%u,\"cached\":%u,"
                       "\"answer\":%u,\"preemptions\":%u,\"finish\":\"%s\"}",
                       r->canvas ? "diffusion" : "autoregressive", r->lane, r->n_prompt, r->n_cached, r->n_answer,
                       r->n_preemptions, weft_finish_text((weft_finish)r->finish));
    }
    weft_text_puts(t->out, "}");
  }
}

static void put_request(trace *t, uint64_t number, const weft_request_record *r) {
  uint64_t end = r->finished_us;
  uint64_t first = r->first_token_us > 0 ? r->first_token_us : end;
  put_phase(t, number, r, "waiting", r->submitted_us, r->started_us > 0 ? r->started_us : end);
  put_phase(t, number, r, "prompt", r->started_us, first);
  put_phase(t, number, r, "answer", r->first_token_us, end);
}

static bool put_requests(trace *t, weft_engine *engine, uint32_t replica) {
  weft_request_record *request = weft_alloc(WEFT_RECORDED_REQUESTS, sizeof *request);
  if (request == NULL) return false;
  uint32_t n = weft_engine_get_requests(engine, request, WEFT_RECORDED_REQUESTS);
  for (uint32_t i = 0; i < n; i++) put_request(t, request[i].number * t->n_replicas + replica, &request[i]);
  weft_free(request);
  return true;
}

/* ---- the public call ------------------------------------------------------------------------- */

static uint32_t loop_of(uint32_t replica) {
  return replica == 0 ? (uint32_t)FIRST_LOOP : NEXT_LOOP + replica - 1;
}

static void put_names(trace *t, weft_runtime *rt) {
  for (uint32_t r = 0; r < rt->n_replicas; r++) {
    uint32_t loop = loop_of(r);
    char name[32] = "loop";
    if (rt->n_replicas > 1)
      (void)snprintf(name, sizeof name, "loop of device %u", weft_device_get_info(rt->devices.device[r])->index);
    put_name(t, "process_name", loop, ENGINE_ROW, name);
    put_name(t, "thread_name", loop, ENGINE_ROW, "engine");
    for (uint32_t i = 0; i < rt->n_models; i++) {
      put_name(t, "thread_name", loop, FIRST_MODEL_ROW + i, rt->model[i].name);
    }
  }
  put_name(t, "process_name", REQUESTS, 0, "requests");
  const uint32_t n_tenants = weft_tenants_count(rt);
  for (uint32_t i = 0; i < n_tenants; i++) {
    put_name(t, "thread_name", REQUESTS, i, rt->tenant_name[i]);
  }
}

char *weft_trace(weft_runtime *rt, uint32_t n_steps) {
  weft_text out = {0};
  trace t = {.out = &out, .n_replicas = rt->n_replicas};
  if (n_steps == 0 || n_steps > WEFT_RECORDED_STEPS) n_steps = WEFT_RECORDED_STEPS;
  weft_text_puts(&out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
  put_names(&t, rt);
  bool good = true;
  for (uint32_t r = 0; r < rt->n_replicas && good; r++) {
    weft_engine *engine = weft_replicas_at(rt->replicas, r);
    t.loop = loop_of(r);
    good = put_steps(&t, engine, n_steps) && put_requests(&t, engine, r);
  }
  weft_text_puts(&out, "\n]}\n");
  if (good && weft_text_status(&out) == WEFT_OK) return out.bytes;
  weft_text_free(&out);
  return NULL;
}
