/* SPDX-License-Identifier: MIT */
/* weft eval: answers examples with known answers, token by token and by diffusion, and judges them.
 *
 * A line of the cases file: {"family", "messages", "max_tokens"} and "answer" (one right answer) or "validator" (many;
 * kinds json, sentence, items; see model/demo/README.md); perhaps "tools", which are declared, and "schema", to which
 * --structured holds the answer. Calls are judged as the text in which the model writes them. The bars: exact families
 * at least 95 % together and 85 % each, both ways; families with a validator at least 85 % each, and from 4 to 24
 * denoise steps per canvas together; and answers that do not go round in circles (bench/quality/repetition.h).
 *
 * With --draft answers token by token have as many drafts as there are, whether they gain or not, so that each family
 * tells how many of them are right: of tokens that followed right ones, and tokens for each step that answered. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lab/lab.h"
#include "bench/quality/judge.h"
#include "bench/quality/repetition.h"

enum { FAMILIES_MAX = 64, IN_FLIGHT = 32, STEPS_MAX = 4096 };

typedef struct family {
  const char *name;
  bool exact;
  uint32_t n, n_canvases;
  uint32_t good[2]; /* by mode: autoregressive, diffusion */
  uint64_t n_steps;
  uint64_t n_tokens, n_drafted, n_accepted; /* of answers token by token */
  uint32_t steps[STEPS_MAX];                /* histogram of mean steps per canvas of one answer */
} family;

typedef struct evaluation {
  const weft_lab_config *config;
  weft_runtime *runtime;
  json_t *cases; /* array; families point at the names in it */
  family *families;
  uint32_t n_families;
  weft_repetition repetition[2]; /* by mode */
} evaluation;

static family *family_of(evaluation *e, json_t *item) {
  const char *name = json_string_value(json_object_get(item, "family"));
  if (name == NULL) name = "?";
  for (uint32_t i = 0; i < e->n_families; i++) {
    if (strcmp(e->families[i].name, name) == 0) return &e->families[i];
  }
  if (e->n_families == FAMILIES_MAX) return NULL;
  family *f = &e->families[e->n_families++];
  f->name = name;
  f->exact = json_object_get(item, "answer") != NULL;
  return f;
}

/* One example on its way. */
typedef struct flight {
  weft_generation *generation;
  json_t *item;
  weft_chat_turn *turns;
  weft_text text;
  weft_text tokens; /* of the answer, as int32_t */
} flight;

/* The tools of an example, with their schemas as text. */
typedef struct declared {
  weft_tool *tools;
  char **schemas; /* [n] of malloc */
  uint32_t n;
} declared;

static void declared_free(declared *d) {
  for (uint32_t i = 0; i < d->n; i++) free(d->schemas[i]);
  weft_free(d->schemas);
  weft_free(d->tools);
}

static int declare_tools(json_t *list, declared *d) {
  uint32_t n = (uint32_t)json_array_size(list);
  if (n == 0) return 0;
  d->tools = weft_alloc(n, sizeof *d->tools);
  d->schemas = weft_alloc(n, sizeof *d->schemas);
  if (d->tools == NULL || d->schemas == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory");
  for (; d->n < n; d->n++) {
    json_t *f = json_object_get(json_array_get(list, d->n), "function"), *schema = json_object_get(f, "parameters");
    const char *name = json_string_value(json_object_get(f, "name"));
    if (name == NULL) return weft_cli_fail(WEFT_EXIT_USAGE, "--cases: a tool lacks function.name");
    d->schemas[d->n] = schema == NULL ? NULL : json_dumps(schema, 0);
    d->tools[d->n] = (weft_tool){.name = name,
                                 .description = json_string_value(json_object_get(f, "description")),
                                 .parameters = d->schemas[d->n]};
  }
  return 0;
}

/* Submits what launch_example has prepared: with the tools of the example, and held to its schema where that is asked for. */
static int submit_example(evaluation *e, flight *f, weft_generate_params *p) {
  json_t *schema = e->config->structured ? json_object_get(f->item, "schema") : NULL;
  char *text = schema == NULL ? NULL : json_dumps(schema, 0);
  declared tools = {0};
  int code = schema != NULL && text == NULL ? weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory") : 0;
  if (code == 0) code = declare_tools(json_object_get(f->item, "tools"), &tools);
  p->prompt.tools = tools.tools;
  p->prompt.n_tools = tools.n;
  if (text != NULL) {
    p->format = WEFT_FORMAT_JSON_SCHEMA;
    p->format_text = text;
    p->n_format_text = strlen(text);
  }
  char error[512];
  int status = code == 0 ? weft_submit(e->runtime, p, &f->generation, error, sizeof error) : 0;
  declared_free(&tools);
  free(text);
  return status == 0 ? code : weft_cli_fail(weft_cli_code(status), "%s", error);
}

static int launch_example(evaluation *e, flight *f, json_t *item, weft_mode mode) {
  weft_generate_params p;
  weft_generate_defaults(&p);
  json_t *messages = json_object_get(item, "messages");
  size_t n = json_array_size(messages);
  f->item = item;
  f->turns = weft_alloc(n, sizeof *f->turns);
  if (f->turns == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory");
  for (size_t i = 0; i < n; i++) {
    json_t *m = json_array_get(messages, i);
    const char *role = json_string_value(json_object_get(m, "role"));
    const char *content = json_string_value(json_object_get(m, "content"));
    if (role == NULL || content == NULL)
      return weft_cli_fail(WEFT_EXIT_USAGE, "--cases: a message lacks role or content");
    f->turns[i] = (weft_chat_turn){.role = role, .content = content};
  }
  json_t *max_tokens = json_object_get(item, "max_tokens");
  p.prompt.turns = f->turns;
  p.prompt.n_turns = (uint32_t)n;
  p.mode = mode;
  p.max_tokens = json_is_integer(max_tokens) ? (uint32_t)json_integer_value(max_tokens) : 64;
  p.sampling.temperature = 0.0f;
  p.has_seed = true;
  p.sampling.seed = e->config->product.sampling.seed;
  p.entropy_bound.max_steps = e->config->product.entropy_bound.max_steps;
  p.entropy_bound.no_self_conditioning = e->config->product.entropy_bound.no_self_conditioning;
  return submit_example(e, f, &p);
}

static void free_flight(flight *f) {
  weft_generation_free(f->generation);
  weft_free(f->turns);
  weft_text_free(&f->text);
  weft_text_free(&f->tokens);
  memset(f, 0, sizeof *f);
}

static void judge_flight(evaluation *e, flight *f, const weft_delta *end, int mode) {
  family *kin = family_of(e, f->item);
  if (kin == NULL) return;
  weft_repetition_add(&e->repetition[mode], (const int32_t *)(const void *)f->tokens.bytes,
                      f->tokens.n / sizeof(int32_t));
  bool good = weft_judge(f->item, f->text.bytes == NULL ? "" : f->text.bytes);
  kin->good[mode] += good;
  if (!good && e->config->product.verbose) {
    weft_cli_say(STDERR_FILENO, "%s, %s: got '%s', key %s", kin->name, mode == 0 ? "ar" : "diffusion",
                 f->text.bytes == NULL ? "" : f->text.bytes, json_string_value(json_object_get(f->item, "key")));
  }
  if (mode == 0) {
    kin->n_tokens += f->tokens.n / sizeof(int32_t);
    kin->n_drafted += end->usage.drafted;
    kin->n_accepted += end->usage.accepted;
  }
  if (mode == 1 && end->usage.canvases > 0) {
    kin->n_canvases += end->usage.canvases;
    kin->n_steps += end->usage.denoise_steps;
    uint32_t mean = end->usage.denoise_steps / end->usage.canvases;
    kin->steps[mean < STEPS_MAX ? mean : STEPS_MAX - 1] += 1;
  }
}

/* Waits for one example; 0 or an exit code. */
static int finish_example(evaluation *e, flight *f, int mode) {
  weft_delta d;
  for (;;) {
    int status = weft_next(f->generation, 1000, &d);
    if (status == WEFT_AGAIN) continue;
    if (status != 0) return weft_cli_fail(WEFT_EXIT_RUNTIME, "%s", weft_status_text((weft_status)status));
    if (d.kind == WEFT_DELTA_TEXT && !d.thinking) weft_text_append(&f->text, d.text, d.n_text);
    if (d.kind == WEFT_DELTA_TEXT) weft_text_append(&f->tokens, (const char *)d.tokens, d.n_tokens * sizeof *d.tokens);
    if (d.kind == WEFT_DELTA_END) break;
  }
  if (weft_text_status(&f->text) != WEFT_OK || weft_text_status(&f->tokens) != WEFT_OK)
    return weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory");
  if (strcmp(d.finish, "error") == 0) return weft_cli_fail(WEFT_EXIT_RUNTIME, "%s", d.error);
  judge_flight(e, f, &d, mode);
  free_flight(f);
  return 0;
}

static int run_mode(evaluation *e, int mode) {
  flight flights[IN_FLIGHT] = {{0}};
  size_t n = json_array_size(e->cases), first = 0, next = 0;
  int code = 0;
  while (code == 0 && first < n) {
    while (code == 0 && next < n && next - first < IN_FLIGHT) {
      code = launch_example(e, &flights[next % IN_FLIGHT], json_array_get(e->cases, next),
                            mode == 0 ? WEFT_MODE_AUTOREGRESSIVE : WEFT_MODE_DIFFUSION);
      next += 1;
    }
    if (code == 0) code = finish_example(e, &flights[first % IN_FLIGHT], mode);
    first += 1;
  }
  for (uint32_t i = 0; i < IN_FLIGHT; i++) free_flight(&flights[i]);
  return code;
}

static int read_cases(evaluation *e) {
  size_t n_bytes;
  char *text = weft_cli_read(e->config->cases, &n_bytes);
  if (text == NULL) return WEFT_EXIT_LOAD;
  int code = 0;
  uint32_t number = 0;
  char *save = NULL;
  for (char *line = strtok_r(text, "\n", &save); line != NULL && code == 0; line = strtok_r(NULL, "\n", &save)) {
    json_error_t why;
    number += 1;
    json_t *item = json_loads(line, 0, &why);
    if (item == NULL) {
      code = weft_cli_fail(WEFT_EXIT_USAGE, "%s:%u: %s", e->config->cases, number, why.text);
      break;
    }
    family *f = family_of(e, item);
    if (f == NULL) {
      code = weft_cli_fail(WEFT_EXIT_USAGE, "%s:%u: more than %u families", e->config->cases, number, FAMILIES_MAX);
    } else if (e->config->limit == 0 || f->n < e->config->limit) { /* the first of a family always is */
      f->n += 1;
      if (json_array_append(e->cases, item) != 0) code = weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory");
    }
    json_decref(item);
  }
  weft_free(text);
  return code;
}

static uint32_t steps_p90(const family *f) {
  uint32_t n = 0, seen = 0;
  for (uint32_t i = 0; i < STEPS_MAX; i++) n += f->steps[i];
  for (uint32_t i = 0; i < STEPS_MAX; i++) {
    seen += f->steps[i];
    if (seen * 10 >= n * 9) return i;
  }
  return 0;
}

static double share_good(uint32_t good, uint32_t n) {
  return n == 0 ? 0.0 : (double)good / n;
}
static double mean_steps(const family *f) {
  return f->n_canvases == 0 ? 0.0 : (double)f->n_steps / f->n_canvases;
}

static double share_right(const family *f) {
  return f->n_drafted == 0 ? 0.0 : (double)f->n_accepted / (double)f->n_drafted;
}

/* Each right draft saved a step. */
static double tokens_a_step(const family *f) {
  return f->n_tokens > f->n_accepted ? (double)f->n_tokens / (double)(f->n_tokens - f->n_accepted) : 0.0;
}

static void print_drafts(const family *f) {
  if (f->n_drafted == 0) return;
  (void)printf("   drafts %5.1f %% right, %.2f tokens a step", 100.0 * share_right(f), tokens_a_step(f));
}

static bool under_bar(const family *f) {
  return share_good(f->good[0], f->n) < 0.85 || share_good(f->good[1], f->n) < 0.85;
}

typedef struct totals {
  uint32_t n, good[2], n_canvases;
  uint64_t n_steps;
} totals;

static double steps_of(const totals *t) {
  return t->n_canvases == 0 ? 0.0 : (double)t->n_steps / t->n_canvases;
}

static json_t *totals_json(const totals *t) {
  return json_pack("{s:i, s:f, s:f, s:f}", "n", (int)t->n, "ar", share_good(t->good[0], t->n), "diffusion",
                   share_good(t->good[1], t->n), "mean_steps", steps_of(t));
}

static void print_totals(const char *name, const totals *t) {
  (void)printf("%-12s n %3u   ar %5.1f %%   diffusion %5.1f %%   steps %5.2f\n", name, t->n,
               100.0 * share_good(t->good[0], t->n), 100.0 * share_good(t->good[1], t->n), steps_of(t));
}

static json_t *repetition_json(const weft_repetition *r) {
  return json_pack("{s:f, s:i}", "repeated", weft_repetition_share(r), "longest_run", (int)r->longest_run);
}

static void print_repetition(const weft_repetition r[2]) {
  (void)printf(
      "repetition   of grams of %d tokens ar %.2f %%, diffusion %.2f %%; of one token in a row ar %u, diffusion "
      "%u at most%s\n",
      WEFT_REPETITION_GRAM, 100.0 * weft_repetition_share(&r[0]), 100.0 * weft_repetition_share(&r[1]),
      (unsigned)r[0].longest_run, (unsigned)r[1].longest_run,
      weft_repetition_is_loop(&r[0]) || weft_repetition_is_loop(&r[1]) ? "   OVER THE BAR" : "");
}

static bool report_families(evaluation *e) {
  json_t *families = json_object();
  totals exact = {0}, many = {0};
  bool passed = true;
  for (uint32_t i = 0; i < e->n_families; i++) {
    const family *f = &e->families[i];
    (void)json_object_set_new(
        families, f->name,
        json_pack("{s:i, s:f, s:f, s:f, s:i, s:b, s:I, s:I, s:f}", "n", (int)f->n, "ar", share_good(f->good[0], f->n),
                  "diffusion", share_good(f->good[1], f->n), "mean_steps", mean_steps(f), "p90_steps",
                  (int)steps_p90(f), "exact", (int)f->exact, "drafted", (json_int_t)f->n_drafted, "accepted",
                  (json_int_t)f->n_accepted, "tokens_a_step", tokens_a_step(f)));
    if (!e->config->product.json) {
      (void)printf("%-12s n %3u   ar %5.1f %%   diffusion %5.1f %%   steps %5.2f, p90 %2u%s%s", f->name, f->n,
                   100.0 * share_good(f->good[0], f->n), 100.0 * share_good(f->good[1], f->n), mean_steps(f),
                   steps_p90(f), f->exact ? "" : "   (validator)", under_bar(f) ? "   UNDER THE BAR" : "");
      print_drafts(f);
      (void)printf("\n");
    }
    if (under_bar(f)) passed = false;
    totals *to = f->exact ? &exact : &many;
    to->n += f->n;
    to->good[0] += f->good[0];
    to->good[1] += f->good[1];
    to->n_steps += f->n_steps;
    to->n_canvases += f->n_canvases;
  }
  double steps = steps_of(&many);
  if (exact.n > 0 && (share_good(exact.good[0], exact.n) < 0.95 || share_good(exact.good[1], exact.n) < 0.95))
    passed = false;
  if (many.n > 0 && (steps < 4.0 || steps > 24.0)) passed = false;
  if (weft_repetition_is_loop(&e->repetition[0]) || weft_repetition_is_loop(&e->repetition[1])) passed = false;
  if (e->config->product.json) {
    json_t *root = json_pack("{s:o, s:o, s:o, s:{s:o, s:o}, s:b}", "families", families, "exact", totals_json(&exact),
                             "many", totals_json(&many), "repetition", "ar", repetition_json(&e->repetition[0]),
                             "diffusion", repetition_json(&e->repetition[1]), "passed", (int)passed);
    char *text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    (void)printf("%s\n", text == NULL ? "{}" : text);
    free(text);
    json_decref(root);
    return passed;
  }
  print_totals("exact", &exact);
  print_totals("many answers", &many);
  print_repetition(e->repetition);
  (void)printf("%s\n", passed ? "passed" : "FAILED");
  json_decref(families);
  return passed;
}

int weft_lab_eval(const weft_config *product) {
  const weft_lab_config *config = weft_lab_of(product);
  if (config->cases == NULL) return weft_cli_fail(WEFT_EXIT_USAGE, "eval: name the examples with --cases FILE");
  evaluation e = {.config = config, .cases = json_array(), .families = weft_alloc(FAMILIES_MAX, sizeof(family))};
  int code = e.families == NULL ? weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory") : 0;
  if (code == 0) code = weft_cli_open(&config->product, &e.runtime);
  if (code == 0 && weft_model_at(e.runtime, 0).canvas == 0) {
    code = weft_cli_fail(WEFT_EXIT_USAGE, "%s cannot answer by diffusion, so it cannot be judged both ways",
                         config->product.models.item[0]);
  }
  if (code == 0 && e.runtime->model[0].has_drafts) drafts_force(e.runtime);
  if (code == 0) code = read_cases(&e);
  if (code == 0) code = run_mode(&e, 0);
  if (code == 0) code = run_mode(&e, 1);
  if (code == 0 && !report_families(&e)) code = WEFT_EXIT_FAILED;
  weft_close(e.runtime);
  json_decref(e.cases);
  weft_free(e.families);
  return code;
}
