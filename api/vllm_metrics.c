/* SPDX-License-Identifier: MIT */
#include "api/vllm_metrics.h"

#include <stddef.h>

#include "api/prometheus.h"
#include "api/tenants.h"
#include "base/memory.h"

/* One model as the rows below see it. */
typedef struct model_view {
  weft_request_stats requests;
  uint32_t n_running, n_waiting, n_deferred;
  uint64_t n_refused[WEFT_REFUSED_KINDS];
  double usage; /* share of the pool, 0 to 1 */
} model_view;

#define AT(field) WEFT_COUNTER_AT(model_view, field)

static const weft_counter_row counters[] = {
    {"vllm:num_requests_running", "gauge", "Requests running.", AT(n_running)},
    {"vllm:num_requests_waiting", "gauge", "Requests waiting for their turn.", AT(n_waiting)},
    {"vllm:num_preemptions_total", "counter", "Preemptions by recompute.", AT(requests.n_preemptions)},
    {"vllm:prompt_tokens_total", "counter", "Prompt tokens.", AT(requests.n_prompt_tokens)},
    {"vllm:generation_tokens_total", "counter", "Answer tokens.", AT(requests.n_answer_tokens)},
    {"vllm:prefix_cache_queries_total", "counter",
     "Prompt tokens looked up in the prefix cache, once per request, when it starts to run.",
     AT(requests.n_sought_tokens)},
    {"vllm:prefix_cache_hits_total", "counter", "Those of them that were found.", AT(requests.n_found_tokens)},
    {"vllm:spec_decode_num_drafts_total", "counter", "Times that a request had drafts in a step.",
     AT(requests.drafts.n_runs)},
    {"vllm:spec_decode_num_draft_tokens_total", "counter", "Drafts that were computed.", AT(requests.drafts.n_drafted)},
    {"vllm:spec_decode_num_accepted_tokens_total", "counter", "Those of them that are tokens of answers.",
     AT(requests.drafts.n_accepted)},
    {"weft_draft_nanoseconds_total", "counter", "Time of the host to draft.", AT(requests.drafts.draft_ns)},
    {"weft_draft_verify_microseconds_total", "counter", "Time of the device for steps with drafts.",
     AT(requests.drafts.verify_us)},
    {"weft_draft_commit_nanoseconds_total", "counter", "Time of the host to take in what such steps gave.",
     AT(requests.drafts.commit_ns)},
    {"weft_draft_shadow_tokens_total", "counter", "Tokens that a shadow foretold and that were then made row by row.",
     AT(requests.drafts.n_shadowed)},
    {"weft_draft_shadow_differences_total", "counter", "Those of them that were others.",
     AT(requests.drafts.n_differences)},
    {"weft_draft_rollback_nanoseconds_total", "counter",
     "Time of the host, of that to take in, to take back what wrong drafts had.", AT(requests.drafts.back_ns)},
};

typedef struct histogram_row {
  const char *name, *help;
  size_t at; /* of a weft_histogram in model_view */
  const uint64_t *bounds;
  double unit;
} histogram_row;

#define US(field)     offsetof(model_view, requests.field), weft_latency_bounds_us, 1e6
#define DRAFTS(field) offsetof(model_view, requests.drafts.field), weft_draft_bounds_us, 1e6
#define TOKENS(field) offsetof(model_view, requests.field), weft_token_bounds, 1.0

/* Where vLLM has had several names for a measurement, dashboards of each age find theirs. */
static const histogram_row histograms[] = {
    {"vllm:time_to_first_token_seconds", "From submission to the first final token.", US(ttft)},
    {"vllm:inter_token_latency_seconds", "Mean time per token of a request after its first.", US(tpot)},
    {"vllm:time_per_output_token_seconds", "Mean time per token of a request after its first.", US(tpot)},
    {"vllm:request_time_per_output_token_seconds", "Mean time per token of a request after its first.", US(tpot)},
    {"vllm:e2e_request_latency_seconds", "From submission to the end.", US(e2e)},
    {"vllm:request_queue_time_seconds", "From submission to the first step.", US(queue)},
    {"vllm:request_prefill_time_seconds", "From the first step to the first final token.", US(prefill)},
    {"vllm:request_decode_time_seconds", "From the first final token to the end.", US(decode)},
    {"vllm:request_prompt_tokens", "Prompt tokens of a request.", TOKENS(prompt)},
    {"vllm:request_generation_tokens", "Answer tokens of a request.", TOKENS(answer)},
    {"vllm:request_max_num_generation_tokens", "Answer tokens of a request; each answer counts for itself.",
     TOKENS(answer)},
    {"vllm:request_params_max_tokens", "Longest answer that a request may have.", TOKENS(asked)},
    {"weft_request_draft_seconds", "Time that a request with drafts waited for them.", DRAFTS(draft)},
    {"weft_request_verify_seconds", "Time of the device for the steps with drafts of a request.", DRAFTS(verify)},
    {"weft_request_commit_seconds", "Time of the host to take in what these steps gave to a request.", DRAFTS(commit)},
    {"weft_request_rollback_seconds", "Time of that to take back what wrong drafts of a request had.", DRAFTS(back)},
};

static void put_counters(const weft_runtime *rt, const model_view *view, weft_text *out) {
  for (size_t r = 0; r < sizeof counters / sizeof *counters; r++) {
    weft_prometheus_head(out, counters[r].name, counters[r].type, counters[r].help);
    for (uint32_t i = 0; i < rt->n_models; i++) {
      weft_text_printf(out, "%s{", counters[r].name);
      weft_prometheus_label(out, "model_name", rt->model[i].name);
      weft_text_printf(out, "} %llu\n", weft_counter_of(&view[i], &counters[r]));
    }
  }
}

/* By the place of a draft among those of its step. */
static void put_accepted(const weft_runtime *rt, const model_view *view, weft_text *out) {
  static const char name[] = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
  weft_prometheus_head(out, name, "counter", "Drafts that are tokens of answers, by their place in the step.");
  for (uint32_t i = 0; i < rt->n_models; i++) {
    uint32_t n = rt->model[i].has_drafts ? rt->model[i].draft.n_max : 0;
    for (uint32_t k = 0; k < n; k++) {
      weft_text_printf(out, "%s{", name);
      weft_prometheus_label(out, "model_name", rt->model[i].name);
      weft_text_printf(out, ",position=\"%u\"} %llu\n", k,
                       (unsigned long long)view[i].requests.drafts.n_accepted_at[k]);
    }
  }
}

static void put_usage(const weft_runtime *rt, const model_view *view, weft_text *out) {
  static const char *const names[] = {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"};
  for (size_t r = 0; r < sizeof names / sizeof *names; r++) {
    weft_prometheus_head(out, names[r], "gauge", "Share of the KV pool that requests of the model hold, 0 to 1.");
    for (uint32_t i = 0; i < rt->n_models; i++) {
      weft_text_printf(out, "%s{", names[r]);
      weft_prometheus_label(out, "model_name", rt->model[i].name);
      weft_text_printf(out, "} %.6f\n", view[i].usage);
    }
  }
}

/* Readers multiply the two numbers: their product is how many tokens of the model fill the pools of all replicas. */
static void put_cache(const weft_runtime *rt, weft_text *out) {
  weft_prometheus_head(out, "vllm:cache_config_info", "gauge",
                       "Tokens of a block of the model as cache events tell it, and how many of them fill the pool.");
  for (uint32_t i = 0; i < rt->n_models; i++) {
    const weft_cache_size size = weft_runtime_cache(rt, i);
    weft_text_puts(out, "vllm:cache_config_info{");
    weft_prometheus_label(out, "model_name", rt->model[i].name);
    weft_text_printf(out, ",block_size=\"%u\",num_gpu_blocks=\"%llu\",page_bytes=\"%llu\"} 1\n", size.block_tokens,
                     (unsigned long long)size.n_blocks, (unsigned long long)rt->page_bytes);
  }
}

static void put_waiting(const weft_runtime *rt, const model_view *view, weft_text *out) {
  static const char name[] = "vllm:num_requests_waiting_by_reason";
  weft_prometheus_head(out, name, "gauge",
                       "Requests waiting: for room (capacity), or for a prefix that another one computes or that comes "
                       "from the file (deferred).");
  for (uint32_t i = 0; i < rt->n_models; i++) {
    const uint32_t n[] = {view[i].n_waiting - view[i].n_deferred, view[i].n_deferred};
    for (int k = 0; k < 2; k++) {
      weft_text_printf(out, "%s{", name);
      weft_prometheus_label(out, "model_name", rt->model[i].name);
      weft_text_printf(out, ",reason=\"%s\"} %u\n", k == 0 ? "capacity" : "deferred", n[k]);
    }
  }
}

static void put_rejected(const weft_runtime *rt, const model_view *view, weft_text *out) {
  static const char name[] = "vllm:admission_rejections_total";
  weft_prometheus_head(out, name, "counter", "Requests refused with 429, by the limit that they met.");
  for (uint32_t i = 0; i < rt->n_models; i++) {
    for (uint32_t k = 0; k < WEFT_REFUSED_KINDS; k++) {
      weft_text_printf(out, "%s{", name);
      weft_prometheus_label(out, "model_name", rt->model[i].name);
      weft_text_printf(out, ",reason=\"%s\"} %llu\n", weft_refused_names[k], (unsigned long long)view[i].n_refused[k]);
    }
  }
}

static void put_finished(const weft_runtime *rt, const model_view *view, weft_text *out) {
  static const struct {
    const char *reason;
    weft_finish finish;
  } rows[] = {{"stop", WEFT_FINISH_STOP},         {"length", WEFT_FINISH_LENGTH}, {"abort", WEFT_FINISH_CANCELLED},
              {"deadline", WEFT_FINISH_DEADLINE}, {"error", WEFT_FINISH_ERROR},   {"evicted", WEFT_FINISH_EVICTED}};
  weft_prometheus_head(out, "vllm:request_success_total", "counter", "Requests that ended, by reason.");
  for (uint32_t i = 0; i < rt->n_models; i++) {
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
      weft_text_puts(out, "vllm:request_success_total{");
      weft_prometheus_label(out, "model_name", rt->model[i].name);
      weft_text_printf(out, ",finished_reason=\"%s\"} %llu\n", rows[r].reason,
                       (unsigned long long)view[i].requests.n_finished[rows[r].finish]);
    }
  }
}

/* The lines of one model. */
static void put_histogram(const histogram_row *row, const char *model, const weft_histogram *h, weft_text *out) {
  double bound[WEFT_HISTOGRAM_BUCKETS - 1];
  for (uint32_t i = 0; i + 1 < WEFT_HISTOGRAM_BUCKETS; i++) bound[i] = (double)row->bounds[i] / row->unit;
  const weft_prometheus_buckets buckets = {h->bucket, bound, WEFT_HISTOGRAM_BUCKETS, (double)h->sum / row->unit, 6};
  weft_prometheus_histogram(out, row->name, model, &buckets);
}

static void view_model(weft_runtime *rt, const weft_engine_stats *stats, uint32_t index, model_view *view) {
  weft_group_usage usage[WEFT_GROUPS_MAX] = {0};
  uint64_t n_pinned = 0;
  weft_replicas_get_request_stats(rt->replicas, index, &view->requests);
  weft_replicas_get_group_usage(rt->replicas, index, usage);
  for (uint32_t g = 0; g < rt->model[index].layout.n_groups; g++) n_pinned += usage[g].n_pinned;
  view->n_running = stats->lane[index].n_running;
  view->n_waiting = stats->lane[index].n_waiting;
  view->n_deferred = (uint32_t)stats->lane[index].n_deferred;
  weft_engine_get_refused(weft_replicas_at(rt->replicas, 0), index, view->n_refused); /* replicas share their places */
  view->usage = stats->pager.n_pages == 0 ? 0.0 : (double)n_pinned / (double)stats->pager.n_pages;
}

void weft_vllm_metrics(weft_runtime *rt, const weft_engine_stats *stats, weft_text *out) {
  model_view *view = weft_alloc(rt->n_models, sizeof *view);
  out->refused = out->refused || view == NULL;
  if (view == NULL) return;
  for (uint32_t i = 0; i < rt->n_models; i++) view_model(rt, stats, i, &view[i]);
  put_counters(rt, view, out);
  put_accepted(rt, view, out);
  put_usage(rt, view, out);
  put_cache(rt, out);
  put_waiting(rt, view, out);
  put_rejected(rt, view, out);
  put_finished(rt, view, out);
  for (size_t r = 0; r < sizeof histograms / sizeof *histograms; r++) {
    weft_prometheus_head(out, histograms[r].name, "histogram", histograms[r].help);
    for (uint32_t i = 0; i < rt->n_models; i++) {
      const char *at = (const char *)&view[i] + histograms[r].at;
      put_histogram(&histograms[r], rt->model[i].name, (const weft_histogram *)(const void *)at, out);
    }
  }
  weft_free(view);
}
