/* SPDX-License-Identifier: MIT */
#include "bench/prove/report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/prove/ask.h"
#include "bench/prove/contracts.h"
#include "bench/prove/files.h"
#include "bench/speed/measure.h"

static json_t *share_or_null(json_t *value) {
  return value != NULL ? json_incref(value) : json_null();
}

/* ---- times ---------------------------------------------------------------------------------------------------- */

static json_t *sum_up(const json_t *answers, const char *name) {
  size_t n = 0;
  double *value = weft_alloc(json_array_size(answers), sizeof *value);
  for (size_t i = 0; value != NULL && i < json_array_size(answers); i++) {
    const json_t *number = json_object_get(json_array_get(answers, i), name);
    if (json_is_number(number)) value[n++] = json_number_value(number);
  }
  double median = n == 0 ? 0.0 : weft_median(value, (uint32_t)n); /* in order from here on */
  json_t *figure =
      n == 0 ? json_null()
             : json_pack("{s:f, s:f, s:f, s:f, s:i}", "median", median, "least", value[0], "most", value[n - 1],
                         "spread", median > 0.0 ? (value[n - 1] - value[0]) / median : 0.0, "runs", (int)n);
  weft_free(value);
  return figure;
}

static json_t *time_answers(const json_t *answers) {
  if (answers == NULL) return json_null();
  return json_pack("{s:o, s:o, s:o}", "first_ms", sum_up(answers, "first_ms"), "tokens_per_second",
                   sum_up(answers, "tokens_per_second"), "steps_per_second", sum_up(answers, "steps_per_second"));
}

json_t *prove_timing(const json_t *baseline, const json_t *candidate) {
  return json_pack("{s:o, s:o}", "baseline", time_answers(baseline), "candidate", time_answers(candidate));
}

/* ---- drafts --------------------------------------------------------------------------------------------------- */

/* The sum of a counter of /metrics over its labels; -1: it is not there. */
static double sum_counter(const char *text, const char *name) {
  double sum = -1.0;
  size_t n = strlen(name);
  for (const char *at = text; at != NULL && (at = strstr(at, name)) != NULL; at += n) {
    bool begins = at == text || at[-1] == '\n';
    if (!begins || (at[n] != '{' && at[n] != ' ')) continue;
    const char *end = strchr(at, '\n'), *space = at;
    for (const char *c = at; c != end && *c != 0; c++) space = *c == ' ' ? c : space;
    sum = (sum < 0.0 ? 0.0 : sum) + strtod(space, NULL);
  }
  return sum;
}

json_t *prove_acceptance(uint16_t port, uint64_t until_us) {
  weft_text text = {0};
  const prove_ask ask = {.port = port, .path = "/metrics", .until_us = until_us};
  json_t *found = json_null();
  if (prove_ask_run(&ask, &text) == 200) {
    double drafted = sum_counter(text.bytes, "vllm:spec_decode_num_draft_tokens_total");
    double accepted = sum_counter(text.bytes, "vllm:spec_decode_num_accepted_tokens_total");
    if (drafted >= 0.0 && accepted >= 0.0)
      found = json_pack("{s:I, s:I}", "drafted", (json_int_t)drafted, "accepted", (json_int_t)accepted);
  }
  weft_text_free(&text);
  return found;
}

static void count_named(const char *metrics, const json_t *names, json_t *counts) {
  for (size_t i = 0; i < json_array_size(names); i++) {
    const char *name = json_string_value(json_array_get(names, i));
    double sum = sum_counter(metrics, name);
    if (sum >= 0.0) (void)json_object_set_new(counts, name, json_real(sum));
  }
}

json_t *prove_counts(uint16_t port, const json_t *profile, uint64_t until_us) {
  weft_text text = {0};
  const prove_ask ask = {.port = port, .path = "/metrics", .until_us = until_us};
  const json_t *grow = json_object_get(profile, "counters"), *stay = json_object_get(profile, "stays_zero");
  if (grow == NULL && stay == NULL) return NULL;
  json_t *counts = json_object();
  if (prove_ask_run(&ask, &text) == 200) {
    count_named(text.bytes, grow, counts);
    count_named(text.bytes, stay, counts);
  }
  weft_text_free(&text);
  return counts;
}

json_t *prove_acceptance_since(const json_t *before, const json_t *after) {
  json_int_t drafted = (json_int_t)(prove_number(after, "drafted", 0) - prove_number(before, "drafted", 0));
  json_int_t accepted = (json_int_t)(prove_number(after, "accepted", 0) - prove_number(before, "accepted", 0));
  if (drafted <= 0) return json_null();
  return json_pack("{s:I, s:I, s:f}", "drafted", drafted, "accepted", accepted, "rate",
                   (double)accepted / (double)drafted);
}

/* ---- facts ---------------------------------------------------------------------------------------------------- */

json_t *prove_facts(const prove_server *server) {
  return json_pack("{s:s, s:o, s:o, s:o, s:f, s:o, s:o}", "profile", server->name, "options",
                   share_or_null(server->options), "devices", share_or_null(server->devices), "preflight",
                   share_or_null(server->preflight), "start_seconds", server->start_seconds, "models",
                   share_or_null(server->models), "counted", share_or_null(server->counted));
}

/* What the option has when nobody gives it: a number or a text, or what the last brackets of its help say; a flag is
 * off. */
static json_t *read_default(const weft_option *o) {
  char initial[32];
  if (weft_manual_default(o, initial)[0] != 0) return json_string(initial);
  const char *left = strrchr(o->help, '['), *right = left == NULL ? NULL : strchr(left, ']');
  if (right != NULL) return json_stringn(left + 1, (size_t)(right - left - 1));
  return json_string(o->kind == WEFT_OPTION_FLAG ? "off" : "none");
}

json_t *prove_defaults(void) {
  static const char *const topics[] = {WEFT_TOPIC_MEMORY, WEFT_TOPIC_SCHEDULING, WEFT_TOPIC_DEVICE};
  json_t *defaults = json_object();
  uint32_t at = 0;
  for (const weft_option *o; (o = weft_config_next(NULL, WEFT_CMD_SERVE, &at)) != NULL;) {
    for (size_t i = 0; i < sizeof topics / sizeof *topics; i++) {
      if (strcmp(o->topic, topics[i]) != 0) continue;
      (void)json_object_set_new(defaults, o->name, read_default(o)); /* a missing one is missed */
    }
  }
  return defaults;
}

static json_t *list_models(const weft_text_list *files) {
  json_t *list = json_array();
  for (uint32_t i = 0; i < files->n; i++) {
    const char *name = strrchr(files->item[i], '/');
    weft_gguf *gguf = NULL;
    uint64_t low = 0, high = 0;
    char hash[40];
    if (weft_gguf_open(files->item[i], &gguf, NULL) == WEFT_OK) weft_gguf_fingerprint(gguf, &low, &high);
    (void)snprintf(hash, sizeof hash, "%016" PRIx64 "%016" PRIx64, high, low);
    (void)json_array_append_new(list, json_pack("{s:s, s:s}", "file", name != NULL ? name + 1 : files->item[i], "hash",
                                                hash)); /* a missing one fails the schema */
    weft_gguf_close(gguf);
  }
  return list;
}

/* The command without folders, so that it says the same on every machine. */
static json_t *write_command(const weft_lab_config *c, const prove_plan *plan) {
  weft_text line = {0};
  weft_text_puts(&line, "weft prove");
  for (uint32_t i = 0; i < c->product.models.n; i++) {
    const char *name = strrchr(c->product.models.item[i], '/');
    weft_text_printf(&line, " -m %s", name != NULL ? name + 1 : c->product.models.item[i]);
  }
  if (c->product.backend != NULL) weft_text_printf(&line, " --backend %s", c->product.backend);
  if (c->matrix != NULL) weft_text_printf(&line, " --matrix %s", c->matrix);
  if (c->matrix == NULL) weft_text_printf(&line, " --baseline %s", plan->baseline);
  for (uint32_t i = 0; i < c->candidates.n; i++) weft_text_printf(&line, " --candidate %s", c->candidates.item[i]);
  if (c->suite != NULL) weft_text_printf(&line, " --suite %s", c->suite);
  if (c->contract != NULL) weft_text_printf(&line, " --contract %s", c->contract);
  if (c->budget != NULL) weft_text_printf(&line, " --budget %s", c->budget);
  json_t *text = weft_text_status(&line) == WEFT_OK ? json_string(line.bytes) : NULL;
  weft_text_free(&line);
  return text;
}

/* Where a configuration stands in the list, which has each of them once; null: the cell had none. NULL: no memory. */
static json_t *place_of(json_t *list, json_t *facts) {
  size_t at = 0, n = json_array_size(list);
  if (facts == NULL || json_is_null(facts)) return json_null();
  while (at < n && !json_equal(json_array_get(list, at), facts)) at++;
  return at == n && json_array_append(list, facts) != 0 ? NULL : json_integer((json_int_t)at);
}

static json_t *write_cell(const prove_cell *cell, json_t *configurations) {
  bool expected = cell->outcome.verdict == cell->expected;
  json_t *out = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:b, s:s}", "candidate", cell->candidate, "suite",
                          cell->suite, "prompts", cell->prompts, "budget", cell->budget_name, "contract",
                          cell->contract_name, "verdict", prove_verdict_name(cell->outcome.verdict), "expected",
                          prove_verdict_name(cell->expected), "as_expected", (int)expected, "line", cell->outcome.line);
  (void)json_object_set_new(out, "requests", json_integer((json_int_t)json_array_size(cell->set->requests)));
  (void)json_object_set_new(out, "tokens", json_integer((json_int_t)cell->n_tokens));
  (void)json_object_set_new(out, "first_difference", share_or_null(cell->difference));
  (void)json_object_set_new(out, "logits", share_or_null(cell->scores));
  (void)json_object_set_new(out, "timing", share_or_null(cell->timing));
  (void)json_object_set_new(out, "acceptance", share_or_null(cell->acceptance));
  (void)json_object_set_new(out, "configuration", place_of(configurations, cell->candidate_facts));
  (void)json_object_set_new(out, "weight_server", share_or_null(cell->owner));
  (void)json_object_set_new(out, "weight_server_validation", share_or_null(cell->owner_validation));
  return out; /* what is missing for want of memory fails the schema */
}

/* Which answers of the baseline were made once and used how often. */
static json_t *write_derived(const prove_plan *plan) {
  json_t *list = json_array();
  for (uint32_t i = 0; i < plan->n_sets; i++) {
    const prove_set *set = &plan->set[i];
    (void)json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:i, s:b, s:b}", "what", "answers of the baseline",
                                                "suite", set->suite_name, "prompts", set->prompts_name, "used_by",
                                                (int)set->n_used, "reused", set->n_used > 1, "kept", (int)set->kept));
  }
  return list;
}

json_t *prove_report_make(const prove_plan *plan, const weft_lab_config *config, json_t *baseline, const char *device,
                          double seconds, uint32_t n_starts) {
  char date[16] = "";
  time_t now = time(NULL);
  struct tm day;
  if (gmtime_r(&now, &day) != NULL) (void)strftime(date, sizeof date, "%Y-%m-%d", &day);
  json_t *report = json_object(), *cells = json_array(), *configurations = json_array();
  uint32_t n_good = 0;
  for (uint32_t i = 0; i < plan->n; i++) {
    (void)json_array_append_new(cells, write_cell(&plan->cell[i], configurations)); /* see write_cell */
    n_good += plan->cell[i].outcome.verdict == plan->cell[i].expected;
  }
  (void)json_object_set_new(report, "what",
                            json_string("proof: other configurations against a baseline; times vary from "
                                        "run to run, and each has its spread"));
  (void)json_object_set_new(report, "device", json_string(device));
  (void)json_object_set_new(report, "date", json_string(date));
  (void)json_object_set_new(report, "commit", json_string(config->commit != NULL ? config->commit : "unknown"));
  (void)json_object_set_new(report, "command", write_command(config, plan));
  (void)json_object_set_new(report, "version", json_string(weft_version()));
  (void)json_object_set_new(report, "models", list_models(&config->product.models));
  (void)json_object_set_new(report, "matrix", json_string(plan->name));
  (void)json_object_set_new(report, "defaults", prove_defaults());
  (void)json_object_set_new(report, "baseline", share_or_null(baseline));
  (void)json_object_set_new(report, "derived", write_derived(plan));
  (void)json_object_set_new(report, "starts", json_integer((json_int_t)n_starts));
  (void)json_object_set_new(report, "seconds", json_real(seconds));
  (void)json_object_set_new(report, "n_cells", json_integer((json_int_t)plan->n));
  (void)json_object_set_new(report, "n_as_expected", json_integer((json_int_t)n_good));
  (void)json_object_set_new(report, "configurations", configurations);
  (void)json_object_set_new(report, "cells", cells);
  return report;
}
