/* SPDX-License-Identifier: MIT */
/* Counters out: Prometheus text under the names that dashboards already read (those of vLLM where there is one), the
 * same as JSON, and health.
 *
 * One table of plain numbers serves both forms. Every number comes from one consistent copy of the engine's
 * statistics; host memory is asked of the allocator and the system at the moment of the question. */
#include <stdio.h>
#include <string.h>

#include "api/json.h"
#include "api/process_metrics.h"
#include "api/prometheus.h"
#include "api/residents.h"
#include "api/tenants.h"
#include "api/vllm_metrics.h"
#include "api/weights_import.h"
#include "model/expert_loads.h"

#define AT(field) WEFT_COUNTER_AT(weft_engine_stats, field)

/* Of all models together, in JSON; as Prometheus text they are told by model (vllm_metrics.c). */
static const weft_counter_row vllm_rows[] = {
    {"vllm:num_requests_running", "gauge", "Requests running.", AT(n_running)},
    {"vllm:num_requests_waiting", "gauge", "Requests waiting for their turn.", AT(n_waiting)},
    {"vllm:num_preemptions_total", "counter", "Preemptions by recompute.", AT(n_preemptions)},
    {"vllm:prompt_tokens_total", "counter", "Prompt tokens.", AT(n_prompt_tokens)},
    {"vllm:generation_tokens_total", "counter", "Answer tokens.", AT(n_answer_tokens)},
    {"vllm:prefix_cache_queries_total", "counter",
     "Prompt tokens looked up in the prefix cache, once per request, when it starts to run.",
     AT(pager.n_prompt_tokens)},
    {"vllm:prefix_cache_hits_total", "counter", "Those of them that were found.", AT(pager.n_hit_tokens)},
};

static const weft_counter_row weft_rows[] = {
    {"weft_steps_total", "counter", "Forward passes.", AT(n_steps)},
    {"weft_steps_mixed_total", "counter", "Forward passes with canvas rows and decode or prefill rows in them.",
     AT(n_mixed_steps)},
    {"weft_switches_total", "counter", "Forward passes on another model than the one before.", AT(n_switches)},
    {"weft_rows_total", "counter", "Rows computed.", AT(n_rows)},
    {"weft_rows_prefill_total", "counter", "Rows of prompts.", AT(n_prefill_rows)},
    {"weft_rows_decode_total", "counter", "Rows that decode token by token.", AT(n_decode_rows)},
    {"weft_rows_canvas_total", "counter", "Rows of denoise steps.", AT(n_canvas_rows)},
    {"weft_rows_commit_total", "counter", "Rows that commit finished canvases.", AT(n_commit_rows)},
    {"weft_rows_void_total", "counter", "Rows computed for requests that turned out to be finished.", AT(n_void_rows)},
    {"weft_requests_submitted_total", "counter", "Requests taken.", AT(n_submitted)},
    {"weft_cached_tokens_total", "counter", "Prompt tokens not computed because they were cached.",
     AT(n_cached_tokens)},
    {"weft_canvases_total", "counter", "Canvases finished.", AT(n_canvases)},
    {"weft_denoise_steps_total", "counter", "Denoise steps.", AT(n_denoise_steps)},
    {"weft_step_microseconds_total", "counter", "Time in steps.", AT(step_us)},
    {"weft_plan_microseconds_total", "counter", "Part of it that planned and applied.", AT(plan_us)},
    {"weft_plan_hidden_microseconds_total", "counter", "Part of that while the device had a step.", AT(hidden_us)},
    {"weft_views_total", "counter", "Copies of what runs and of the pool, made for those who watch.", AT(n_views)},
    {"weft_pool_pages", "gauge", "Pages of the KV pool.", AT(pager.n_pages)},
    {"weft_pool_pages_free", "gauge", "Pages that hold nothing.", AT(pager.n_free)},
    {"weft_pool_pages_cached", "gauge", "Pages with content that nobody holds.", AT(pager.n_cached)},
    {"weft_pool_pages_pinned", "gauge", "Pages that requests hold.", AT(pager.n_pinned)},
    {"weft_pool_sequences", "gauge", "Sequences with pages.", AT(pager.n_seqs)},
    {"weft_pool_admits_total", "counter", "Prompts whose requests started to run; forks and resumes apart.",
     AT(pager.n_admits)},
    {"weft_pool_hits_total", "counter", "Those of them that found a cached prefix.", AT(pager.n_hits)},
    {"weft_pool_resumes_total", "counter", "Times a preempted request started to run again.", AT(pager.n_resumes)},
    {"weft_pool_resumed_tokens_total", "counter", "Tokens that resumed requests looked up in the prefix cache.",
     AT(pager.n_resumed_tokens)},
    {"weft_pool_resumed_hit_tokens_total", "counter", "Those of them that were found.", AT(pager.n_resumed_hit_tokens)},
    {"weft_pool_waits_total", "counter", "Times a prompt waited for a prefix that another one computed.",
     AT(pager.n_waits)},
    {"weft_pool_taken_total", "counter", "Pages handed out.", AT(pager.n_taken)},
    {"weft_pool_evicted_total", "counter", "Cached pages given up for new content.", AT(pager.n_evicted)},
    {"weft_pool_published_total", "counter", "Pages entered in the prefix index.", AT(pager.n_published)},
    {"weft_pool_duplicates_total", "counter", "Pages whose content was there already.", AT(pager.n_duplicates)},
    {"weft_pool_forks_total", "counter", "Choices that started with the prompt of another one.", AT(pager.n_forks)},
    {"weft_pool_forked_tokens_total", "counter", "Prompt tokens shared by forks.", AT(pager.n_forked_tokens)},
    {"weft_pool_copies_total", "counter", "Pages copied on write.", AT(pager.n_copies)},
    {"weft_pool_window_dropped_total", "counter", "Pages given back because no window reaches them.",
     AT(pager.n_window_dropped)},
    {"weft_pins", "gauge", "Prefixes that the operator pinned.", AT(n_pins)},
    {"weft_pins_held", "gauge", "Pins whose pages are in the pool.", AT(n_pins_held)},
    {"weft_pin_pages", "gauge", "Pages of held pins; shared ones count for each.", AT(n_pin_pages)},
    {"weft_pins_dropped_total", "counter", "Times a pin gave way to a request.", AT(n_pins_dropped)},
    {"weft_request_bytes", "gauge", "Host memory that requests hold, of --request-mib.", AT(request_bytes)},
    {"weft_pool_host_bytes", "gauge", "Host memory of the pager.", AT(pager.host_bytes)},
    {"weft_canvases_saved_total", "counter", "Preempted canvases whose state was kept.", AT(n_canvases_saved)},
    {"weft_canvases_resumed_total", "counter", "Those that went on at their step.", AT(n_canvases_resumed)},
    {"weft_host_pages", "gauge", "Pages of host memory behind the pool.", AT(pager.n_host_pages)},
    {"weft_host_pages_used", "gauge", "Those that hold evicted content.", AT(pager.n_host_held)},
    {"weft_spill_pages_out_total", "counter", "Evicted pages copied to the host.", AT(pager.n_spilled)},
    {"weft_spill_pages_back_total", "counter", "Pages brought back from the host.", AT(pager.n_restored)},
    {"weft_spill_pages_dropped_total", "counter", "Pages that the host let go for newer ones.",
     AT(pager.n_spill_dropped)},
    {"weft_spill_pages_lost_total", "counter", "Pages lost by a failed copy to the host.", AT(pager.n_spill_lost)},
    {"weft_file_pages", "gauge", "Pages of the file behind the host memory.", AT(pager.n_file_pages)},
    {"weft_file_pages_used", "gauge", "Those that hold evicted content.", AT(pager.n_file_held)},
    {"weft_file_pages_out_total", "counter", "Pages moved from the host to the file.", AT(pager.n_to_file)},
    {"weft_file_pages_back_total", "counter", "Pages moved from the file to the host.", AT(pager.n_from_file)},
    {"weft_file_pages_dropped_total", "counter", "Pages that the file let go for newer ones.",
     AT(pager.n_file_dropped)},
    {"weft_file_pages_lost_total", "counter", "Pages lost by a failed move.", AT(pager.n_file_lost)},
    {"weft_file_waits_total", "counter", "Times a prompt waited for the file.", AT(n_file_waits)},
    {"weft_file_waits_in_vain_total", "counter", "Those after which it was computed.", AT(n_file_waits_in_vain)},
};

#define FILE_AT(field) WEFT_COUNTER_AT(weft_kv_file_counters, field)

static const weft_counter_row file_rows[] = {
    {"weft_file_bytes_written_total", "counter", "Bytes moved to the file.", FILE_AT(n_bytes_written)},
    {"weft_file_bytes_read_total", "counter", "Bytes moved from the file.", FILE_AT(n_bytes_read)},
    {"weft_file_write_errors_total", "counter", "Pages that could not be written.", FILE_AT(n_write_failed)},
    {"weft_file_read_errors_total", "counter", "Pages that could not be read.", FILE_AT(n_read_failed)},
    {"weft_file_damaged_total", "counter", "Pages that came back with another checksum.", FILE_AT(n_damaged)},
};

#define GRAPH(field) WEFT_COUNTER_AT(weft_graph_counters, field)

static const weft_counter_row graph_rows[] = {
    {"weft_graph_launches_total", "counter", "Launches of graphs, of steps or parts of them.", GRAPH(launches)},
    {"weft_graph_patched_total", "counter", "Of these, by new tables alone.", GRAPH(patched)},
    {"weft_graph_nodes_total", "counter", "Kernels and copies in these graphs.", GRAPH(nodes)},
    {"weft_graph_captures_total", "counter", "Graphs that were recorded.", GRAPH(captures)},
    {"weft_graph_eager_total", "counter", "Steps that may come again, seen for the first time.", GRAPH(eager)},
    {"weft_graph_refused_total", "counter", "1: the device gave up on graphs.", GRAPH(refused)},
};

enum {
  N_VLLM = sizeof vllm_rows / sizeof *vllm_rows,
  N_WEFT = sizeof weft_rows / sizeof *weft_rows,
  N_GRAPH = sizeof graph_rows / sizeof *graph_rows,
  N_FILE = sizeof file_rows / sizeof *file_rows
};

static void put_rows(weft_text *out, const void *stats, const weft_counter_row *rows, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    weft_prometheus_head(out, rows[i].name, rows[i].type, rows[i].help);
    weft_text_printf(out, "%s %llu\n", rows[i].name, weft_counter_of(stats, &rows[i]));
  }
}

/* ---- what is not a plain number ---- */

static double pool_usage(const weft_engine_stats *stats) {
  return stats->pager.n_pages == 0 ? 0.0 : (double)stats->pager.n_pinned / (double)stats->pager.n_pages;
}

static void put_lane_rows(const weft_runtime *rt, weft_text *out, const weft_engine_stats *stats) {
  static const weft_counter_row rows[] = {
#define LANE(field) WEFT_COUNTER_AT(weft_lane_stats, field)
      {"weft_model_steps_total", "counter", "Forward passes, by model.", LANE(n_steps)},
      {"weft_model_rows_total", "counter", "Rows computed, by model.", LANE(n_rows)},
      {"weft_model_busy_microseconds_total", "counter", "Time of the device, by model.", LANE(busy_us)},
      {"weft_model_step_measured_microseconds_total", "counter", "What the device took for steps.", LANE(measured_us)},
      {"weft_model_step_predicted_microseconds_total", "counter", "What it was thought to take.", LANE(predicted_us)},
      {"weft_model_step_error_microseconds_total", "counter", "Sum of the differences.", LANE(error_us)},
      {"weft_model_requests_running", "gauge", "Requests running, by model.", LANE(n_running)},
      {"weft_model_requests_waiting", "gauge", "Requests waiting, by model.", LANE(n_waiting)},
#undef LANE
  };
  for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
    weft_prometheus_head(out, rows[r].name, rows[r].type, rows[r].help);
    for (uint32_t i = 0; i < stats->n_lanes; i++) {
      weft_text_printf(out, "%s{", rows[r].name);
      weft_prometheus_label(out, "model_name", rt->model[i].name);
      weft_text_printf(out, "} %llu\n", weft_counter_of(&stats->lane[i], &rows[r]));
    }
  }
}

/* Blocks by model, layer group and state; free pages are of no group. */
static void put_group_rows(const weft_runtime *rt, weft_text *out, uint32_t n_models) {
  static const weft_counter_row rows[] = {
#define GROUP(field) WEFT_COUNTER_AT(weft_group_usage, field)
      {"weft_group_blocks_pinned", "gauge", "Pages that requests hold, by model and layer group.", GROUP(n_pinned)},
      {"weft_group_blocks_cached", "gauge", "Pages with content that nobody holds.", GROUP(n_cached)},
      {"weft_group_blocks_host", "gauge", "Blocks in host memory.", GROUP(n_host)},
      {"weft_group_blocks_file", "gauge", "Blocks in the file.", GROUP(n_file)},
      {"weft_group_hit_blocks_total", "counter", "Blocks that prompts found cached when they started to run.",
       GROUP(n_hits)},
#undef GROUP
  };
  weft_group_usage usage[WEFT_MODELS_MAX][WEFT_GROUPS_MAX] = {{{0}}};
  for (uint32_t i = 0; i < n_models; i++) weft_replicas_get_group_usage(rt->replicas, i, usage[i]);
  for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
    weft_prometheus_head(out, rows[r].name, rows[r].type, rows[r].help);
    for (uint32_t i = 0; i < n_models; i++) {
      const weft_kv_layout *layout = &rt->model[i].layout;
      for (uint32_t g = 0; g < layout->n_groups; g++) {
        weft_text_printf(out, "%s{", rows[r].name);
        weft_prometheus_label(out, "model_name", rt->model[i].name);
        weft_text_printf(out, ",group=\"%u\",window=\"%u\"} %llu\n", g, layout->group[g].window,
                         weft_counter_of(&usage[i][g], &rows[r]));
      }
    }
  }
}

/* How steps compare with what was predicted of them. */
static void put_step_ratios(const weft_runtime *rt, weft_text *out, const weft_engine_stats *stats) {
  static const char name[] = "weft_model_step_ratio";
  weft_prometheus_head(out, name, "histogram", "Measured by predicted time of a step.");
  for (uint32_t i = 0; i < stats->n_lanes; i++) {
    const weft_lane_stats *lane = &stats->lane[i];
    const weft_prometheus_buckets b = {lane->ratio, weft_step_ratio_bounds, WEFT_STEP_RATIOS, lane->ratio_sum, 3};
    weft_prometheus_histogram(out, name, rt->model[i].name, &b);
  }
}

/* How evenly rows go to experts, of models that have some. */
static void put_experts(const weft_runtime *rt, weft_text *out) {
  static const char ratio[] = "weft_expert_tokens_ratio", even[] = "weft_expert_evenness";
  weft_expert_stats stats[WEFT_MODELS_MAX];
  uint32_t n_with = 0;
  for (uint32_t i = 0; i < rt->n_models; i++) {
    stats[i] = weft_expert_loads_stats(rt->model[i].loads);
    n_with += stats[i].n_experts > 0;
  }
  if (n_with == 0) return;
  weft_prometheus_head(out, ratio, "histogram",
                       "Tokens of an expert by the average of its layer, over 32 tokens for each expert.");
  for (uint32_t i = 0; i < rt->n_models; i++) {
    weft_prometheus_buckets b = {stats[i].ratio, weft_expert_ratio_bounds, WEFT_EXPERT_RATIOS, 0.0, 0};
    if (stats[i].n_experts == 0) continue;
    for (uint32_t k = 0; k < b.n; k++) b.sum += (double)b.count[k]; /* the average over a layer's experts is 1 */
    weft_prometheus_histogram(out, ratio, rt->model[i].name, &b);
  }
  weft_prometheus_head(out, even, "summary", "The average over the most tokens of an expert, of each such time.");
  for (uint32_t i = 0; i < rt->n_models; i++) {
    if (stats[i].n_experts == 0) continue;
    weft_text_printf(out, "%s_sum{", even);
    weft_prometheus_label(out, "model_name", rt->model[i].name);
    weft_text_printf(out, "} %.4f\n%s_count{", stats[i].evenness, even);
    weft_prometheus_label(out, "model_name", rt->model[i].name);
    weft_text_printf(out, "} %llu\n", (unsigned long long)stats[i].n_windows);
  }
}

/* Of the tiers behind the pool. */
static void put_spill_bytes(const weft_runtime *rt, weft_text *out, const weft_engine_stats *stats) {
  const struct {
    const char *name, *help;
    uint64_t n_pages;
  } rows[] = {{"weft_spill_bytes_out_total", "Bytes copied to the host.", stats->pager.n_spilled},
              {"weft_spill_bytes_back_total", "Bytes brought back from it.", stats->pager.n_restored}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_prometheus_head(out, rows[i].name, "counter", rows[i].help);
    weft_text_printf(out, "%s %llu\n", rows[i].name, (unsigned long long)(rows[i].n_pages * rt->page_bytes));
  }
  if (rt->store[0]->file == NULL) return;
  weft_kv_file_counters all = {0};
  for (uint32_t r = 0; r < rt->n_replicas; r++) {
    const weft_kv_file_counters one = weft_kv_file_get_counters(rt->store[r]->file);
    all.n_bytes_written += one.n_bytes_written;
    all.n_bytes_read += one.n_bytes_read;
    all.n_write_failed += one.n_write_failed;
    all.n_read_failed += one.n_read_failed;
    all.n_damaged += one.n_damaged;
  }
  put_rows(out, &all, file_rows, N_FILE);
}

/* What one device sends another, of models that are shared out to several. */
static void put_crossed(const weft_runtime *rt, weft_text *out) {
  if (rt->devices.n == 1 || rt->devices.replicas) return;
  weft_prometheus_head(out, "weft_crossed_bytes_total", "counter", "Bytes sent from one device to another.");
  for (uint32_t i = 0; i < rt->n_models; i++) {
    const weft_crossed crossed = weft_model_crossed(rt->model[i].model);
    const struct {
      const char *kind;
      uint64_t n_bytes;
    } rows[] = {{"rows", crossed.rows}, {"soft", crossed.soft}, {"tokens", crossed.tokens}};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
      weft_text_puts(out, "weft_crossed_bytes_total{");
      weft_prometheus_label(out, "model_name", rt->model[i].name);
      weft_text_printf(out, ",kind=\"%s\"} %llu\n", rows[k].kind, (unsigned long long)rows[k].n_bytes);
    }
  }
}

static void put_devices(const weft_runtime *rt, weft_text *out) {
  if (rt->devices.n == 1) return;
  weft_prometheus_head(out, "weft_device_weight_bytes", "gauge", "Memory of a device that weights take.");
  for (uint32_t p = 0; p < rt->devices.n; p++) {
    weft_text_printf(out, "weft_device_weight_bytes{device=\"%u\"} %llu\n",
                     weft_device_get_info(rt->devices.device[p])->index,
                     (unsigned long long)weft_device_weights(rt->devices.device[p]).n_bytes_held);
  }
  weft_prometheus_head(out, "weft_device_kv_bytes", "gauge", "Memory of a device that the pool takes.");
  for (uint32_t p = 0; p < rt->devices.n; p++) {
    weft_text_printf(out, "weft_device_kv_bytes{device=\"%u\"} %llu\n",
                     weft_device_get_info(rt->devices.device[p])->index,
                     (unsigned long long)(rt->n_pages * rt->model[0].layout.part_bytes[rt->devices.replicas ? 0 : p]));
  }
}

/* What each replica does; all other counters are those of all of them. */
static void put_replicas(const weft_runtime *rt, weft_text *out) {
#define ENGINE(field) WEFT_COUNTER_AT(weft_engine_stats, field)
  static const weft_counter_row rows[] = {
      {"weft_replica_requests_running", "gauge", "Requests running, by replica.", ENGINE(n_running)},
      {"weft_replica_requests_waiting", "gauge", "Requests waiting, by replica.", ENGINE(n_waiting)},
      {"weft_replica_requests_submitted_total", "counter", "Requests that it was given.", ENGINE(n_submitted)},
      {"weft_replica_steps_total", "counter", "Forward passes, by replica.", ENGINE(n_steps)},
      {"weft_replica_rows_total", "counter", "Rows computed, by replica.", ENGINE(n_rows)},
      {"weft_replica_cached_tokens_total", "counter", "Prompt tokens not computed because they were cached.",
       ENGINE(n_cached_tokens)},
      {"weft_replica_pool_pages_cached", "gauge", "Pages with content that nobody holds.", ENGINE(pager.n_cached)},
  };
#undef ENGINE
  weft_engine_stats stats[WEFT_DEVICES_MAX];
  if (rt->n_replicas == 1) return;
  for (uint32_t i = 0; i < rt->n_replicas; i++) weft_engine_get_stats(weft_replicas_at(rt->replicas, i), &stats[i]);
  for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
    weft_prometheus_head(out, rows[r].name, rows[r].type, rows[r].help);
    for (uint32_t i = 0; i < rt->n_replicas; i++) {
      weft_text_printf(out, "%s{device=\"%u\"} %llu\n", rows[r].name,
                       weft_device_get_info(rt->devices.device[i])->index, weft_counter_of(&stats[i], &rows[r]));
    }
  }
  weft_prometheus_head(out, "weft_replica_well", "gauge", "1 while every model of the replica can run.");
  for (uint32_t i = 0; i < rt->n_replicas; i++) {
    weft_text_printf(out, "weft_replica_well{device=\"%u\"} %d\n", weft_device_get_info(rt->devices.device[i])->index,
                     stats[i].broken_runners == 0);
  }
}

/* ---- the public calls ---- */

char *weft_metrics(weft_runtime *rt) {
  weft_engine_stats stats;
  weft_graph_counters graphs = devices_graphs(&rt->devices);
  weft_text out = {0};
  weft_replicas_get_stats(rt->replicas, &stats);
  weft_vllm_metrics(rt, &stats, &out);
  put_rows(&out, &stats, weft_rows, N_WEFT);
  put_lane_rows(rt, &out, &stats);
  put_group_rows(rt, &out, stats.n_lanes);
  put_step_ratios(rt, &out, &stats);
  put_experts(rt, &out);
  put_rows(&out, &graphs, graph_rows, N_GRAPH);
  put_spill_bytes(rt, &out, &stats);
  put_crossed(rt, &out);
  put_devices(rt, &out);
  residents_metrics(rt, &out);
  put_replicas(rt, &out);
  weft_prometheus_head(&out, "weft_well", "gauge", "1 while every model can run.");
  weft_text_printf(&out, "weft_well %d\n", stats.broken_runners == 0);
  weft_process_metrics(&out);
  weft_tenants_metrics(rt, &out);
  if (weft_text_status(&out) == WEFT_OK) return out.bytes;
  weft_text_free(&out);
  return NULL;
}

static void put_json_rows(weft_text *out, const void *stats, const weft_counter_row *rows, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    weft_text_printf(out, "%s\"%s\":%llu", out->n > 1 ? "," : "", rows[i].name, weft_counter_of(stats, &rows[i]));
  }
}

char *weft_stats_json(weft_runtime *rt) {
  weft_engine_stats stats;
  weft_graph_counters graphs = devices_graphs(&rt->devices);
  weft_text out = {0};
  weft_process_memory m = weft_process_get_memory();
  weft_replicas_get_stats(rt->replicas, &stats);
  weft_text_puts(&out, "{");
  put_json_rows(&out, &stats, vllm_rows, N_VLLM);
  put_json_rows(&out, &stats, weft_rows, N_WEFT);
  put_json_rows(&out, &graphs, graph_rows, N_GRAPH);
  weft_text_printf(&out, ",\"kv_cache_usage\":%.6f,\"page_bytes\":%llu", pool_usage(&stats),
                   (unsigned long long)rt->page_bytes);
  weft_text_puts(&out, ",\"finished\":{");
  static const char *const reasons[] = {"stop", "length", "cancelled", "deadline", "error", "evicted"};
  for (int i = 0; i < 6; i++) {
    weft_text_printf(&out, "%s\"%s\":%llu", i > 0 ? "," : "", reasons[i],
                     (unsigned long long)stats.n_finished[WEFT_FINISH_STOP + i]);
  }
  weft_text_printf(&out, "},\"ttft_us\":%llu,\"tpot_us\":%llu,\"e2e_us\":%llu,\"queue_us\":%llu",
                   (unsigned long long)stats.ttft_sum_us, (unsigned long long)stats.tpot_sum_us,
                   (unsigned long long)stats.e2e_sum_us, (unsigned long long)stats.queue_us);
  weft_text_printf(&out, ",\"draining\":%s,\"well\":%s,\"resident_bytes\":%llu,\"allocated_bytes\":%llu}",
                   stats.draining ? "true" : "false", stats.broken_runners == 0 ? "true" : "false", m.resident,
                   m.allocated);
  if (weft_text_status(&out) == WEFT_OK) return out.bytes;
  weft_text_free(&out);
  return NULL;
}

const char *weft_unwell(const weft_runtime *rt) {
  weft_engine_stats stats;
  if (rt->weights != NULL && !weights_import_outlives(rt->weights)) {
    const char *lost = weights_import_lost(rt->weights);
    if (lost != NULL) return lost;
  }
  weft_replicas_get_stats(rt->replicas, &stats);
  if (stats.broken_runners == 0) return NULL;
  for (uint32_t p = 0; p < rt->devices.n; p++) {
    if (weft_device_broken(rt->devices.device[p])) return rt->unwell[p];
  }
  return "a model cannot run and its requests were ended: restart the server";
}

const char *weft_degraded(const weft_runtime *rt) {
  for (uint32_t r = 0; rt->n_replicas > 1 && r < rt->n_replicas; r++) {
    weft_engine_stats stats;
    weft_engine_get_stats(weft_replicas_at(rt->replicas, r), &stats);
    if (stats.broken_runners != 0) return rt->degraded[r];
  }
  return rt->weights == NULL ? NULL : weights_import_lost(rt->weights);
}
