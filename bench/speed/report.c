/* SPDX-License-Identifier: MIT */
#include "bench/speed/report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static uint32_t number_in(const json_t *row, const char *name) {
  return (uint32_t)json_integer_value(json_object_get(row, name));
}

/* What the plan says of the load of a row, with products of the bits that it was measured with; 0: nothing. */
static double predict_row(const weft_file_facts *facts, const plan_card *card, const json_t *row) {
  const char *unit = json_string_value(json_object_get(row, "unit")),
             *work = json_string_value(json_object_get(row, "work"));
  uint32_t n = number_in(row, "n_parallel"), answer = number_in(row, "n_generate");
  const plan_need need = {n > 0 ? n : 1, number_in(row, "n_prompt"), answer > 0 ? answer : 1};
  plan_result plan;
  weft_error error;
  if (unit == NULL || work == NULL || number_in(row, "n_canvases") > 0) return 0.0;
  if (plan_compute(facts, card, &need, &plan, &error) != WEFT_OK) return 0.0;
  const plan_rates *rates = number_in(row, "product_bits") == 8 ? &plan.fast : &plan.exact;
  if (strncmp(work, "prefill", 7) == 0) return rates->prefill;
  if (strncmp(work, "decode", 6) == 0) return rates->decode;
  return strncmp(work, "canvas step, ", 13) == 0 && strncmp(work + 13, "block", 5) != 0 ? rates->canvas_ms : 0.0;
}

static json_t *card_of(const weft_device_info *info) {
  return json_pack("{s:s, s:s, s:s, s:s?, s:I, s:f, s:f, s:i, s:b}", "name", info->name, "backend", info->backend,
                   "isa", info->isa, "set", info->set, "memory_bytes", (json_int_t)info->memory_bytes, "memory_rate",
                   info->memory_rate, "product_rate", info->product_rate, "product_bits", (int)info->products, "graphs",
                   info->graphs);
}

static json_t *rows_of(const weft_file_facts *facts, const plan_card *card, const json_t *rows) {
  json_t *out = json_deep_copy(rows);
  for (size_t i = 0; i < json_array_size(out); i++) {
    json_t *row = json_array_get(out, i);
    double predicted = predict_row(facts, card, row);
    (void)json_object_set_new(row, "predicted", predicted > 0.0 ? json_real(predicted) : json_null());
  }
  return out;
}

static json_t *report_of(const weft_lab_config *config, const weft_runtime *runtime, const weft_file_facts *facts,
                         const json_t *rows) {
  const weft_device_info *info = weft_device_get_info(runtime->devices.device[0]);
  plan_card card;
  plan_own_card(info, &card);
  return json_pack("{s:s, s:s, s:o, s:i, s:{s:s, s:s, s:I}, s:i, s:o}", "what", "weft bench model", "version",
                   WEFT_VERSION, "card", card_of(info), "cards", (int)runtime->devices.n, "model", "name", facts->name,
                   "arch", facts->arch, "weight_bytes", (json_int_t)facts->weight_bytes, "runs", (int)config->repeat,
                   "rows", rows_of(facts, &card, rows));
}

static int write_report(const char *path, const json_t *report) {
  if (report == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "--report: out of memory");
  if (json_dump_file(report, path, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) != 0)
    return weft_cli_fail(WEFT_EXIT_USAGE, "--report %s: %s", path, strerror(errno));
  (void)fprintf(stderr, "weft: %s: what was measured of this card; docs/models.md says where to send it\n", path);
  return 0;
}

int weft_bench_report_check(const weft_lab_config *config) {
  if (config->report == NULL) return 0;
  FILE *file = fopen(config->report, "w");
  if (file == NULL) return weft_cli_fail(WEFT_EXIT_USAGE, "--report %s: %s", config->report, strerror(errno));
  (void)fclose(file);
  return 0;
}

int weft_bench_report(const weft_lab_config *config, const weft_runtime *runtime, const json_t *rows) {
  weft_gguf *gguf = NULL;
  weft_file_facts *facts = NULL;
  weft_error error = {{0}};
  weft_status status = weft_gguf_open(config->product.models.item[0], &gguf, &error);
  if (status == WEFT_OK) status = weft_inspect_facts(gguf, &facts, &error);
  weft_gguf_close(gguf);
  if (status != WEFT_OK) return weft_cli_fail(weft_cli_code(status), "--report: %s", error.text);
  json_t *report = report_of(config, runtime, facts, rows);
  int code = write_report(config->report, report);
  json_decref(report);
  weft_free(facts);
  return code;
}
