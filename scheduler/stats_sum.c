/* SPDX-License-Identifier: MIT */
#include "scheduler/stats_sum.h"

#include <stddef.h>

/* Numbers that are added up: one field, or an array of them. */
typedef struct summed_field {
  size_t at, n_bytes;
  bool wide; /* 64 bits each, else 32 */
} summed_field;

#define WIDE(type, field) \
  { offsetof(type, field), sizeof(((type *)0)->field), true }
#define NARROW(type, field) \
  { offsetof(type, field), sizeof(((type *)0)->field), false }

static void add_fields(void *sum, const void *part, const summed_field *field, size_t n) {
  for (size_t i = 0; i < n; i++) {
    char *to = (char *)sum + field[i].at;
    const char *from = (const char *)part + field[i].at;
    for (size_t at = 0; at < field[i].n_bytes; at += field[i].wide ? sizeof(uint64_t) : sizeof(uint32_t)) {
      if (field[i].wide)
        *(uint64_t *)(void *)(to + at) += *(const uint64_t *)(const void *)(from + at);
      else
        *(uint32_t *)(void *)(to + at) += *(const uint32_t *)(const void *)(from + at);
    }
  }
}

#define ADD(sum, part, fields) add_fields(sum, part, fields, sizeof(fields) / sizeof *(fields))

static void add_lane(weft_lane_stats *sum, const weft_lane_stats *part) {
#define U64(field) WIDE(weft_lane_stats, field)
#define U32(field) NARROW(weft_lane_stats, field)
  static const summed_field fields[] = {U64(n_steps),  U64(n_rows), U64(busy_us),   U64(measured_us), U64(predicted_us),
                                        U64(error_us), U64(ratio),  U32(n_running), U32(n_waiting),   U64(n_deferred)};
#undef U64
#undef U32
  ADD(sum, part, fields);
  sum->ratio_sum += part->ratio_sum;
}

static void add_pager(weft_pager_stats *sum, const weft_pager_stats *part) {
#define U64(field) WIDE(weft_pager_stats, field)
#define U32(field) NARROW(weft_pager_stats, field)
  static const summed_field fields[] = {U32(n_pages),
                                        U32(n_free),
                                        U32(n_cached),
                                        U32(n_pinned),
                                        U32(n_seqs),
                                        U64(n_admits),
                                        U64(n_hits),
                                        U64(n_hit_tokens),
                                        U64(n_prompt_tokens),
                                        U64(n_waits),
                                        U64(n_resumes),
                                        U64(n_resumed_tokens),
                                        U64(n_resumed_hit_tokens),
                                        U64(n_forks),
                                        U64(n_forked_tokens),
                                        U64(n_taken),
                                        U64(n_evicted),
                                        U64(n_published),
                                        U64(n_copies),
                                        U64(n_window_dropped),
                                        U64(n_duplicates),
                                        U64(host_bytes),
                                        U32(n_host_pages),
                                        U32(n_host_held),
                                        U32(n_file_pages),
                                        U32(n_file_held),
                                        U32(n_lifting),
                                        U32(n_sinking),
                                        U64(n_spilled),
                                        U64(n_restored),
                                        U64(n_to_file),
                                        U64(n_from_file),
                                        U64(n_spill_dropped),
                                        U64(n_spill_lost),
                                        U64(n_file_dropped),
                                        U64(n_file_lost)};
#undef U64
#undef U32
  ADD(sum, part, fields);
}

void weft_engine_stats_add(weft_engine_stats *sum, const weft_engine_stats *part) {
#define U64(field) WIDE(weft_engine_stats, field)
#define U32(field) NARROW(weft_engine_stats, field)
  static const summed_field fields[] = {U64(n_steps),
                                        U64(n_mixed_steps),
                                        U64(n_switches),
                                        U64(n_rows),
                                        U64(n_prefill_rows),
                                        U64(n_decode_rows),
                                        U64(n_canvas_rows),
                                        U64(n_commit_rows),
                                        U64(n_void_rows),
                                        U64(n_submitted),
                                        U64(n_finished),
                                        U64(n_preemptions),
                                        U64(n_canvases_saved),
                                        U64(n_canvases_resumed),
                                        U64(n_file_waits),
                                        U64(n_file_waits_in_vain),
                                        U64(n_views),
                                        U64(n_prompt_tokens),
                                        U64(n_cached_tokens),
                                        U64(n_answer_tokens),
                                        U64(n_canvases),
                                        U64(n_denoise_steps),
                                        U32(n_running),
                                        U32(n_waiting),
                                        U32(n_pin_pages),
                                        U64(n_pins_dropped),
                                        U64(step_us),
                                        U64(plan_us),
                                        U64(hidden_us),
                                        U64(queue_us),
                                        U64(ttft),
                                        U64(tpot),
                                        U64(e2e),
                                        U64(queue),
                                        U64(ttft_sum_us),
                                        U64(tpot_sum_us),
                                        U64(e2e_sum_us)};
#undef U64
#undef U32
  ADD(sum, part, fields);
  if (part->n_pins > sum->n_pins) sum->n_pins = part->n_pins;
  bool first = sum->broken_runners != 0; /* that works */
  if (part->broken_runners == 0 && (first || part->n_pins_held < sum->n_pins_held))
    sum->n_pins_held = part->n_pins_held;
  sum->broken_runners &= part->broken_runners;
  sum->draining = sum->draining || part->draining;
  for (uint32_t i = 0; i < sum->n_lanes; i++) add_lane(&sum->lane[i], &part->lane[i]);
  add_pager(&sum->pager, &part->pager);
}

static void add_histogram(weft_histogram *sum, const weft_histogram *part) {
  static const summed_field fields[] = {WIDE(weft_histogram, bucket), WIDE(weft_histogram, sum)};
  ADD(sum, part, fields);
}

static void add_drafts(weft_draft_stats *sum, const weft_draft_stats *part) {
#define U64(field) WIDE(weft_draft_stats, field)
  static const summed_field fields[] = {U64(n_runs),     U64(n_drafted),    U64(n_accepted), U64(n_accepted_at),
                                        U64(draft_ns),   U64(verify_us),    U64(commit_ns),  U64(back_ns),
                                        U64(n_shadowed), U64(n_differences)};
#undef U64
  ADD(sum, part, fields);
  add_histogram(&sum->draft, &part->draft);
  add_histogram(&sum->verify, &part->verify);
  add_histogram(&sum->commit, &part->commit);
  add_histogram(&sum->back, &part->back);
}

void weft_request_stats_add(weft_request_stats *sum, const weft_request_stats *part) {
#define U64(field) WIDE(weft_request_stats, field)
  static const summed_field fields[] = {U64(n_finished),      U64(n_preemptions),   U64(n_prompt_tokens),
                                        U64(n_answer_tokens), U64(n_sought_tokens), U64(n_found_tokens)};
#undef U64
  ADD(sum, part, fields);
  add_drafts(&sum->drafts, &part->drafts);
  add_histogram(&sum->ttft, &part->ttft);
  add_histogram(&sum->tpot, &part->tpot);
  add_histogram(&sum->e2e, &part->e2e);
  add_histogram(&sum->queue, &part->queue);
  add_histogram(&sum->prefill, &part->prefill);
  add_histogram(&sum->decode, &part->decode);
  add_histogram(&sum->prompt, &part->prompt);
  add_histogram(&sum->answer, &part->answer);
  add_histogram(&sum->asked, &part->asked);
}

void weft_tenant_stats_add(weft_tenant_stats *sum, const weft_tenant_stats *part) {
#define U64(field) WIDE(weft_tenant_stats, field)
#define U32(field) NARROW(weft_tenant_stats, field)
  static const summed_field fields[] = {
      U32(n_running),       U64(n_submitted),     U64(n_finished), U64(n_preemptions),   U64(n_prompt_tokens),
      U64(n_cached_tokens), U64(n_answer_tokens), U32(n_blocks),   U32(n_blocks_cached), U64(n_rows),
      U64(charged_us),      U64(queue),           U64(queue_us)};
#undef U64
#undef U32
  ADD(sum, part, fields);
}

void weft_group_usage_add(weft_group_usage *sum, const weft_group_usage *part) {
  static const summed_field fields[] = {NARROW(weft_group_usage, n_pinned), NARROW(weft_group_usage, n_cached),
                                        NARROW(weft_group_usage, n_host), NARROW(weft_group_usage, n_file),
                                        WIDE(weft_group_usage, n_hits)};
  ADD(sum, part, fields);
}
