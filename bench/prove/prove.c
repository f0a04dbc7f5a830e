/* SPDX-License-Identifier: MIT */
/* weft prove: do other configurations of the server give the answers of a baseline? The exit code is 0 when every cell
 * came to the verdict that it expects, else that of the first cell that differs, else of the first that did not
 * (bench/prove/verdict.h).
 *
 * One server runs at a time: the baseline answers every set and is stopped, then each candidate answers those of its
 * cells. Where answers differ the candidate tells its row of logits at once, and the baseline is started again at the
 * end and tells its own. */
#include <errno.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/prove/again.h"
#include "bench/prove/answers.h"
#include "bench/prove/contracts.h"
#include "bench/prove/files.h"
#include "bench/prove/kept.h"
#include "bench/prove/report.h"

enum { START_SECONDS = 600, ROW_SECONDS = 60, WORK_FILES = 16 };

typedef struct proof_run {
  const weft_lab_config *config;
  prove_plan plan;
  prove_place place;
  char folder[PROVE_PATH_MAX / 2], device[128];
  prove_kept kept;
  json_t *baseline; /* its facts */
  uint32_t n_starts;
} proof_run;

/* What a candidate has answered to a set. */
typedef struct set_answers {
  json_t *answers, *scores, *acceptance;
  prove_outcome outcome;
  bool asked;
} set_answers;

static uint64_t end_of(const json_t *budget) {
  return weft_clock_us() + prove_number(budget, "seconds", 60) * 1000000u;
}

static prove_limits limits_of(const prove_set *set, const json_t *budget) {
  return (prove_limits){.tokens = prove_number(budget, "tokens", 1u << 20),
                        .until_us = end_of(budget),
                        .parallel = (uint32_t)prove_number(set->suite, "parallel", 1)};
}

static prove_verdict start_server(proof_run *run, prove_server *server, const json_t *budget, prove_outcome *outcome) {
  run->n_starts += 1;
  return prove_server_start(server, prove_number(budget, "start_seconds", START_SECONDS), outcome);
}

/* A server that was there and is no more is told so, whatever the broken connection looked like. */
static void look_after(prove_server *server, const char *what, prove_outcome *outcome) {
  prove_outcome better = {.verdict = PROVE_PROVEN};
  if (outcome->verdict == PROVE_DIED && prove_server_lost(server, what, &better) != PROVE_PROVEN) *outcome = better;
}

/* ---- the baseline ---------------------------------------------------------------------------------------------- */

static void answer_set(prove_server *server, prove_set *set) {
  const prove_limits limits = limits_of(set, set->budget);
  prove_outcome *o = &set->outcome;
  if (prove_answers_ask(server->port, set->requests, &limits, &set->baseline, o) == PROVE_PROVEN)
    json_decref(prove_compare_repeats(set->baseline, "the baseline", o));
  if (o->verdict == PROVE_PROVEN && set->scored)
    set->scores = prove_scores_ask(server->port, set->baseline, limits.until_us, o);
  look_after(server, "it answered a suite", o);
}

static void note_device(proof_run *run, const prove_server *server) {
  const json_t *first = json_object_get(json_array_get(server->devices, 0), "name");
  size_t n = json_array_size(server->devices);
  (void)snprintf(run->device, sizeof run->device, "%s%s", n > 1 ? "several of: " : "",
                 json_is_string(first) ? json_string_value(first) : "unknown");
}

/* Sets that a run before has answered. The number of those that it has not. */
static uint32_t take_kept(proof_run *run, const json_t *profile) {
  uint32_t n_left = 0;
  for (uint32_t i = 0; i < run->plan.n_sets; i++) {
    prove_set *set = &run->plan.set[i];
    json_t *kept = prove_kept_read(&run->kept, profile, &run->place, set);
    if (kept == NULL) n_left += 1;
    if (kept != NULL && run->baseline == NULL) {
      run->baseline = json_incref(json_object_get(kept, "facts"));
      (void)snprintf(run->device, sizeof run->device, "%s", prove_text(kept, "device", ""));
    }
    json_decref(kept);
  }
  return n_left;
}

static void keep_sets(proof_run *run, const json_t *profile) {
  weft_error error = {{0}};
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < run->plan.n_sets && status == WEFT_OK; i++)
    status = prove_kept_write(&run->kept, profile, &run->place, &run->plan.set[i], run->baseline, run->device, &error);
  if (status != WEFT_OK) weft_log(WEFT_LOG_WARN, "answers are not kept: %s", error.text);
}

static void run_baseline(proof_run *run) {
  prove_plan *plan = &run->plan;
  prove_server server;
  prove_outcome outcome = {.verdict = PROVE_PROVEN};
  bool opened = prove_server_open(&server, &run->place, plan->baseline, &outcome) == PROVE_PROVEN;
  if (opened && take_kept(run, server.profile) == 0) {
    prove_server_close(&server);
    return;
  }
  if (opened) (void)start_server(run, &server, plan->set[0].budget, &outcome);
  for (uint32_t i = 0; i < plan->n_sets; i++) {
    prove_set *set = &plan->set[i];
    if (set->kept) continue;
    if (outcome.verdict == PROVE_PROVEN) answer_set(&server, set);
    if (outcome.verdict != PROVE_PROVEN) set->outcome = outcome; /* it never came so far */
    if (set->outcome.verdict == PROVE_DIED || set->outcome.verdict == PROVE_STOPPED) outcome = set->outcome;
  }
  (void)prove_server_stop(&server, &outcome);
  note_device(run, &server);
  json_decref(run->baseline);
  run->baseline = prove_facts(&server);
  if (outcome.verdict != PROVE_PROVEN) (void)prove_end(&plan->set[0].outcome, outcome.verdict, "%s", outcome.line);
  keep_sets(run, server.profile);
  prove_server_close(&server);
}

/* ---- the candidates -------------------------------------------------------------------------------------------- */

static void ask_set(prove_server *server, const prove_cell *cell, set_answers *a) {
  const prove_limits limits = limits_of(cell->set, cell->budget);
  json_t *meanwhile = NULL;
  uint64_t seconds = prove_number(cell->budget, "start_seconds", START_SECONDS);
  a->asked = true;
  if (prove_again(server, cell->set->requests, &limits, seconds, &meanwhile, &a->outcome) == PROVE_PROVEN &&
      meanwhile != NULL)
    json_decref(prove_compare_answers(cell->set->baseline, meanwhile, &a->outcome));
  json_decref(meanwhile);
  json_t *before = prove_acceptance(server->port, limits.until_us);
  if (a->outcome.verdict == PROVE_PROVEN &&
      prove_answers_ask(server->port, cell->set->requests, &limits, &a->answers, &a->outcome) == PROVE_PROVEN &&
      cell->set->scored)
    a->scores = prove_scores_ask(server->port, cell->set->baseline, limits.until_us, &a->outcome);
  json_t *after = a->outcome.verdict == PROVE_PROVEN ? prove_acceptance(server->port, limits.until_us) : json_null();
  a->acceptance = prove_acceptance_since(before, after);
  json_decref(before);
  json_decref(after);
  look_after(server, "it answered a suite", &a->outcome);
}

static uint64_t count_tokens(const json_t *answers) {
  uint64_t n = 0;
  for (size_t i = 0; i < json_array_size(answers); i++)
    n += json_array_size(json_object_get(json_array_get(answers, i), "tokens"));
  return n;
}

static void judge_cell(prove_server *server, prove_cell *cell, const set_answers *a) {
  bool scores = prove_contract_scores(cell->contract);
  cell->n_tokens = count_tokens(a->answers);
  cell->timing = prove_timing(cell->set->baseline, a->answers);
  cell->acceptance = json_incref(a->acceptance);
  cell->set->n_used += 1;
  if (scores) {
    cell->scores =
        prove_compare_scores(cell->contract, cell->set->baseline, cell->set->scores, a->scores, &cell->outcome);
    json_t *at = json_object_get(cell->scores, "at");
    if (json_is_object(at)) cell->difference = json_incref(at);
  } else {
    cell->difference = prove_compare_answers(cell->set->baseline, a->answers, &cell->outcome);
  }
  bool drafts = strcmp(prove_text(cell->contract, "kind", ""), "speculative") == 0;
  if (cell->outcome.verdict == PROVE_PROVEN && drafts && json_is_null(cell->acceptance))
    (void)prove_end(&cell->outcome, PROVE_UNPROVEN, "no token was drafted, so nothing was proved of drafts");
  prove_outcome quiet = {.verdict = PROVE_PROVEN}; /* a row that does not come changes no verdict */
  json_t *row = cell->difference == NULL ? NULL
                                         : prove_row_ask(server->port, cell->difference, cell->set->baseline,
                                                         weft_clock_us() + ROW_SECONDS * 1000000ull, &quiet);
  if (row != NULL) (void)json_object_set_new(cell->difference, "candidate_row", row);
}

static void run_cell(prove_server *server, prove_cell *cell, set_answers *a) {
  if (cell->set->outcome.verdict != PROVE_PROVEN) {
    (void)prove_end(&cell->outcome, cell->set->outcome.verdict, "baseline: %.600s", cell->set->outcome.line);
    return;
  }
  if (!a->asked) ask_set(server, cell, a);
  if (a->outcome.verdict != PROVE_PROVEN) {
    (void)prove_end(&cell->outcome, a->outcome.verdict, "%s", a->outcome.line);
    return;
  }
  judge_cell(server, cell, a);
}

/* A profile whose part did nothing in these answers has proved nothing by them: it names counters that say so. */
static const char *find_idle(const prove_server *server) {
  size_t i;
  json_t *name;
  json_array_foreach(json_object_get(server->profile, "counters"), i, name) {
    const char *text = json_string_value(name);
    if (json_number_value(json_object_get(server->counted, text)) <= 0.0) return text;
  }
  return NULL;
}

/* What the profile says is never counted, and was; or nobody can say, since there is no such counter. */
static const char *find_grown(const prove_server *server) {
  const json_t *names = json_object_get(server->profile, "stays_zero");
  for (size_t i = 0; i < json_array_size(names); i++) {
    const char *name = json_string_value(json_array_get(names, i));
    const json_t *value = json_object_get(server->counted, name);
    if (value == NULL || json_number_value(value) > 0.0) return name;
  }
  return NULL;
}

/* What the cells of a candidate get when it is gone. */
static void end_cell(const prove_server *server, prove_cell *cell) {
  const char *idle = find_idle(server), *grown = find_grown(server);
  cell->candidate_facts = prove_facts(server);
  cell->owner = prove_owner_block(&server->owner);
  cell->owner_validation = prove_owner_validation(&server->owner);
  if (cell->outcome.verdict == PROVE_PROVEN && json_is_false(json_object_get(cell->owner_validation, "valid")))
    (void)prove_end(&cell->outcome, PROVE_OWNER_BROKEN, "the weight server was not all that a proof asks of it");
  if (cell->outcome.verdict == PROVE_PROVEN && grown != NULL)
    (void)prove_end(&cell->outcome, PROVE_DIFFERS, "profile '%s' says that %s stays 0: it is %g, or there is none",
                    server->name, grown, json_number_value(json_object_get(server->counted, grown)));
  if (cell->outcome.verdict == PROVE_PROVEN && idle != NULL)
    (void)prove_end(&cell->outcome, PROVE_UNPROVEN, "profile '%s' says that %s is counted, and nothing was",
                    server->name, idle);
}

static void free_answers(set_answers *answers, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    json_decref(answers[i].answers);
    json_decref(answers[i].scores);
    json_decref(answers[i].acceptance);
  }
}

/* All cells of the candidate of cell number `first`. */
static void run_candidate(proof_run *run, uint32_t first) {
  prove_plan *plan = &run->plan;
  const char *name = plan->cell[first].candidate;
  set_answers answers[PROVE_SETS_MAX];
  prove_server server;
  prove_outcome outcome = {.verdict = PROVE_PROVEN};
  memset(answers, 0, sizeof answers);
  bool needed = false; /* whatever fails in the baseline is the verdict of the cells already */
  for (uint32_t i = first; i < plan->n; i++)
    needed =
        needed || (strcmp(plan->cell[i].candidate, name) == 0 && plan->cell[i].set->outcome.verdict == PROVE_PROVEN);
  if (prove_server_open(&server, &run->place, name, &outcome) == PROVE_PROVEN && needed)
    (void)start_server(run, &server, plan->cell[first].budget, &outcome);
  for (uint32_t i = first; i < plan->n; i++) {
    prove_cell *cell = &plan->cell[i];
    if (strcmp(cell->candidate, name) != 0) continue;
    if (outcome.verdict != PROVE_PROVEN) (void)prove_end(&cell->outcome, outcome.verdict, "%s", outcome.line);
    if (outcome.verdict == PROVE_PROVEN) run_cell(&server, cell, &answers[cell->set - plan->set]);
    if (cell->outcome.verdict == PROVE_DIED || cell->outcome.verdict == PROVE_STOPPED) outcome = cell->outcome;
  }
  bool told = outcome.verdict != PROVE_PROVEN;
  if (!told) server.counted = prove_counts(server.port, server.profile, weft_clock_us() + ROW_SECONDS * 1000000ull);
  (void)prove_server_stop(&server, &outcome);
  for (uint32_t i = first; i < plan->n; i++) {
    prove_cell *cell = &plan->cell[i];
    if (strcmp(cell->candidate, name) != 0) continue;
    if (!told && outcome.verdict != PROVE_PROVEN) (void)prove_end(&cell->outcome, outcome.verdict, "%s", outcome.line);
    end_cell(&server, cell);
  }
  free_answers(answers, PROVE_SETS_MAX);
  prove_server_close(&server);
}

static bool was_before(const prove_plan *plan, uint32_t index) {
  for (uint32_t i = 0; i < index; i++) {
    if (strcmp(plan->cell[i].candidate, plan->cell[index].candidate) == 0) return true;
  }
  return false;
}

/* ---- the baseline's rows --------------------------------------------------------------------------------------- */

static bool wants_row(const prove_cell *cell) {
  return cell->difference != NULL && json_is_object(json_object_get(cell->difference, "candidate_row"));
}

static void ask_rows(proof_run *run) {
  prove_plan *plan = &run->plan;
  prove_server server;
  prove_outcome outcome = {.verdict = PROVE_PROVEN};
  bool wanted = false;
  for (uint32_t i = 0; i < plan->n; i++) wanted = wanted || wants_row(&plan->cell[i]);
  if (!wanted || prove_told_to_stop()) return;
  if (prove_server_open(&server, &run->place, plan->baseline, &outcome) == PROVE_PROVEN)
    (void)start_server(run, &server, plan->set[0].budget, &outcome);
  for (uint32_t i = 0; i < plan->n && outcome.verdict == PROVE_PROVEN; i++) {
    prove_cell *cell = &plan->cell[i];
    if (!wants_row(cell)) continue;
    json_t *row = prove_row_ask(server.port, cell->difference, cell->set->baseline,
                                weft_clock_us() + ROW_SECONDS * 1000000ull, &outcome);
    if (row != NULL) (void)json_object_set_new(cell->difference, "baseline_row", row);
  }
  if (outcome.verdict != PROVE_PROVEN) weft_log(WEFT_LOG_WARN, "rows of the baseline are missing: %s", outcome.line);
  prove_server_close(&server);
}

/* ---- what came of it ------------------------------------------------------------------------------------------- */

static void print_cell(const weft_config *config, const prove_cell *cell) {
  bool good = cell->outcome.verdict == cell->expected;
  if (!config->json)
    (void)printf("%-18s %s  %s, %s, %s%s\n", prove_verdict_name(cell->outcome.verdict), cell->candidate,
                 cell->contract_name, cell->suite, cell->prompts,
                 good && cell->expected != PROVE_PROVEN ? " (as expected)" : "");
  const json_t *ours = json_object_get(json_object_get(cell->difference, "baseline_row"), "baseline_token");
  const json_t *theirs = json_object_get(json_object_get(cell->difference, "baseline_row"), "candidate_token");
  char rows[128] = "";
  if (json_is_number(ours) && json_is_number(theirs))
    (void)snprintf(rows, sizeof rows, "; in the baseline their log probabilities are %.4g and %.4g",
                   json_number_value(ours), json_number_value(theirs));
  if (!good)
    (void)weft_cli_fail(0, "%s, %s, %s: %s: %s%s", cell->candidate, cell->suite, cell->contract_name,
                        prove_verdict_name(cell->outcome.verdict),
                        cell->outcome.verdict == PROVE_PROVEN ? "another verdict was expected" : cell->outcome.line,
                        rows);
}

static int code_of(const prove_plan *plan) {
  int code = 0;
  for (uint32_t i = 0; i < plan->n; i++) {
    const prove_cell *cell = &plan->cell[i];
    if (cell->outcome.verdict == cell->expected) continue;
    int own = cell->outcome.verdict == PROVE_PROVEN ? WEFT_EXIT_FAILED : (int)cell->outcome.verdict;
    if (own == WEFT_EXIT_FAILED || own == PROVE_STOPPED) return own;
    if (code == 0) code = own;
  }
  return code;
}

static int write_report(proof_run *run, double seconds) {
  const weft_config *product = &run->config->product;
  weft_error error = {{0}};
  json_t *report = prove_report_make(&run->plan, run->config, run->baseline, run->device, seconds, run->n_starts);
  int code = 0;
  if (report == NULL || prove_report_check(run->config->proofs, report, &error) != WEFT_OK)
    code = weft_cli_fail(WEFT_EXIT_RUNTIME, "%s", report == NULL ? "no memory for the report" : error.text);
  if (code == 0 && product->output != NULL &&
      json_dump_file(report, product->output, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) != 0)
    code = weft_cli_fail(WEFT_EXIT_RUNTIME, "-o %s: %s", product->output, strerror(errno));
  if (code == 0 && product->json) (void)json_dumpf(report, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
  json_decref(report);
  return code;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *place) {
  (void)info, (void)kind, (void)place;
  return remove(path); /* what stays is reported by the folder that is not empty */
}

static int run_proof(proof_run *run) {
  uint64_t start = weft_clock_us();
  run_baseline(run);
  for (uint32_t i = 0; i < run->plan.n; i++) {
    if (!was_before(&run->plan, i)) run_candidate(run, i);
  }
  ask_rows(run);
  for (uint32_t i = 0; i < run->plan.n; i++) print_cell(&run->config->product, &run->plan.cell[i]);
  int code = write_report(run, (double)(weft_clock_us() - start) * 1e-6);
  return code != 0 ? code : code_of(&run->plan);
}

static int check_report(const weft_lab_config *config) {
  json_t *report = NULL;
  weft_error error = {{0}};
  if (prove_report_read(config->proofs, config->report_check, &report, &error) != WEFT_OK)
    return weft_cli_fail(WEFT_EXIT_USAGE, "%s", error.text);
  uint64_t n = prove_number(report, "n_cells", 0), good = prove_number(report, "n_as_expected", 0);
  (void)printf("%s: %llu of %llu cells as expected\n", config->report_check, (unsigned long long)good,
               (unsigned long long)n);
  json_decref(report);
  return good == n ? WEFT_EXIT_OK : WEFT_EXIT_FAILED;
}

static int print_defaults(void) {
  json_t *defaults = prove_defaults();
  (void)json_dumpf(defaults, stdout, JSON_INDENT(1));
  (void)fputs("\n", stdout);
  json_decref(defaults);
  return WEFT_EXIT_OK;
}

int weft_lab_prove(const weft_config *product) {
  const weft_lab_config *config = weft_lab_of(product);
  proof_run run = {.config = config};
  prove_outcome outcome = {.verdict = PROVE_PROVEN};
  if (config->defaults) return print_defaults();
  if (config->report_check != NULL) return check_report(config);
  if (product->models.n == 0) return weft_cli_fail(WEFT_EXIT_USAGE, "prove: name a GGUF file with -m FILE");
  int code = (int)prove_plan_open(&run.plan, config, &outcome);
  int n = snprintf(run.folder, sizeof run.folder, "%s/weft-prove-XXXXXX", config->work);
  if (code == 0 && (n < 0 || (size_t)n >= sizeof run.folder))
    code = (int)prove_end(&outcome, PROVE_BAD_FILE, "--work: the name is too long");
  if (code == 0 && mkdtemp(run.folder) == NULL)
    code = (int)prove_end(&outcome, PROVE_NO_START, "%s: %s", run.folder, strerror(errno));
  if (code != 0) {
    prove_plan_close(&run.plan);
    return weft_cli_fail(code, "%s", outcome.line);
  }
  run.place = (prove_place){.proofs = config->proofs,
                            .folder = run.folder,
                            .models = &product->models,
                            .backend = product->backend,
                            .options = json_object_get(run.plan.matrix, "options")};
  prove_kept_open(&run.kept, config->keep, &run.place);
  prove_catch_signals();
  code = run_proof(&run);
  if (nftw(run.folder, remove_entry, WORK_FILES, FTW_DEPTH | FTW_PHYS) != 0)
    (void)weft_cli_fail(0, "%s could not be removed: %s", run.folder, strerror(errno));
  json_decref(run.baseline);
  prove_plan_close(&run.plan);
  return code;
}
