/* SPDX-License-Identifier: MIT */
/* weft doctor: what is wrong with this machine, and with the options of weft serve, before a model is loaded. */
#include "api/cli/doctor.h"

#include <stdio.h>

#include "api/cli/cli.h"
#include "api/json.h"
#include "base/memory.h"

static const char *const state_names[] = {"ok", "look", "bad"};

static uint32_t count_of(const doctor_report *r, doctor_state state) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < r->n; i++) n += r->line[i].state == state;
  return n;
}

static void write_text(const doctor_report *r, weft_text *out) {
  char clean[2 * sizeof r->line[0].text];
  for (uint32_t i = 0; i < r->n; i++) {
    (void)weft_utf8_clean(r->line[i].text, clean, sizeof clean);
    weft_text_printf(out, "%-4s  %-9s  %s\n", state_names[r->line[i].state], r->line[i].topic, clean);
  }
  weft_text_printf(out, "%u bad, %u to look at, %u ok\n", count_of(r, DOCTOR_BAD), count_of(r, DOCTOR_LOOK),
                   count_of(r, DOCTOR_OK));
}

static void write_json(const doctor_report *r, weft_text *out) {
  weft_text_printf(out, "{\"version\":\"%s\",\"bad\":%u,\"look\":%u,\"lines\":[", weft_version(),
                   count_of(r, DOCTOR_BAD), count_of(r, DOCTOR_LOOK));
  for (uint32_t i = 0; i < r->n; i++) {
    weft_text_printf(out, "%s{\"topic\":\"%s\",\"state\":\"%s\",\"text\":", i > 0 ? "," : "", r->line[i].topic,
                     state_names[r->line[i].state]);
    weft_json_words(out, r->line[i].text);
    weft_text_puts(out, "}");
  }
  weft_text_puts(out, "]}\n");
}

int weft_cli_doctor(const weft_config *config) {
  doctor_facts *facts = weft_alloc(1, sizeof *facts);
  doctor_report *report = weft_alloc(1, sizeof *report);
  weft_text text = {0};
  int code = WEFT_EXIT_RUNTIME;
  if (facts != NULL && report != NULL) {
    doctor_look("", config, facts);
    doctor_judge_machine(facts, config, report);
    doctor_judge_options(facts, config, report);
    (config->json ? write_json : write_text)(report, &text);
    code = count_of(report, DOCTOR_BAD) > 0 ? WEFT_EXIT_FAILED : WEFT_EXIT_OK;
  }
  if (facts == NULL || report == NULL || weft_text_status(&text) != WEFT_OK) {
    code = weft_cli_fail(WEFT_EXIT_RUNTIME, "doctor: out of memory");
  } else {
    (void)fputs(text.bytes, stdout); /* a failure is seen by the flush in main */
  }
  weft_text_free(&text);
  weft_free(facts);
  weft_free(report);
  return code;
}
