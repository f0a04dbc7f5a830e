/* SPDX-License-Identifier: MIT */
/* weft bench drafts: tokens a second with drafts beside those without, over the number of sequences, the share of right
 * drafts and the drafts of a step.
 *
 * Law: both columns are of the same prompts, one measured after the other, and the answers must be the same. With
 * --accept an oracle drafts: it knows the answers of the run without drafts, and each of its drafts is right with that
 * chance, so the curve does not depend on what a model repeats. The drafter then costs next to nothing, but where
 * --draft names one that the model's runner asks (a drafter that reads its keys, mtp): that one drafts as well, for its
 * time, and the oracle's tokens take the places of its own. Without --accept the drafter of --draft does it all. With a
 * fixed number of drafts (--depths) there are so many whether they gain or not; the row `chosen` has as many as the
 * scheduler finds to gain, at most K of --draft. Beside the rate of whole answers stands that of the time in which all
 * sequences decode, after the first 200 steps with so many that may have drafts, and the least of any ten seconds of
 * it: drafts must not lose there (scheduler/depth.h). In the steps before, shapes are met for the first time, and when
 * answers end one after another, steps have fewer sequences than those without drafts. One run of each number of
 * sequences warms up. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/speed/bench.h"
#include "bench/speed/measure.h"
#include "bench/speed/rates.h"

enum { NUMBERS_MAX = 32, CHOSEN = 0, OWN = -1 /* no oracle */ };
enum { STEPS_BEFORE = 200 };
static const double WINDOW_S = 10.0;

typedef struct drafts_bench {
  const weft_lab_config *config;
  weft_runtime *rt;
  weft_load load;
  uint64_t seed;
  uint32_t n_vocab;
  double right;    /* chance of an oracle's draft */
  int32_t *wanted; /* [n_parallel][n_generate] the answers without drafts */
  int32_t *got;
  json_t *records;
  weft_draft_kind own;      /* of --draft */
  uint64_t n_steps_drafted; /* with so many sequences, as many drafts as gain, while all of them decoded */
} drafts_bench;

/* ---- the oracle ------------------------------------------------------------------------------- */

/* Which sequence begins so; engine thread. */
static uint32_t find_sequence(const drafts_bench *b, const int32_t *tokens) {
  enum { SEEN = 8 };
  for (uint32_t s = 0; s < b->load.n_parallel; s++) {
    uint32_t i = 0;
    while (i < SEEN && i < b->load.n_prompt && tokens[i] == weft_prompt_token(b->seed, s, i, b->n_vocab)) i++;
    if (i == SEEN || i == b->load.n_prompt) return s;
  }
  return UINT32_MAX;
}

static uint32_t guess_answer(void *self, const weft_draft_text *text, uint32_t n_max, int32_t *out) {
  const drafts_bench *b = self;
  uint32_t s = find_sequence(b, text->tokens), at = text->n_tokens - b->load.n_prompt, n = 0;
  if (s == UINT32_MAX) return 0;
  const int32_t *answer = b->wanted + (size_t)s * b->load.n_generate;
  for (; n < n_max && at + n < b->load.n_generate; n++) {
    weft_draw_key key = {b->seed, s, WEFT_DRAW_TEST, at + n, 1};
    bool right = weft_draw_uniform(&key) < b->right;
    out[n] = right ? answer[at + n] : (int32_t)((uint32_t)(answer[at + n] + 1) % b->n_vocab);
  }
  return n;
}

/* ---- one measurement -------------------------------------------------------------------------- */

/* Requests have this kind of drafts, at most n_max of a step; n_max CHOSEN: as many as gain. oracle NULL: the drafter
 * of --draft. */
static void set_drafts(drafts_bench *b, weft_draft_kind kind, uint32_t n_max, uint32_t most,
                       const weft_drafter *oracle) {
  while (!weft_idle(b->rt)) (void)usleep(200); /* a request leaves a moment after its end was told */
  b->rt->model[0].draft.kind = kind;
  b->rt->model[0].draft.n_max = n_max == CHOSEN ? most : n_max;
  for (uint32_t r = 0; r < b->rt->n_replicas; r++) {
    const model_drafter *own = b->rt->drafter[r];
    const weft_drafter *drafter = oracle == NULL && own != NULL ? model_drafter_calls(own) : oracle;
    weft_engine_set_drafter(weft_replicas_at(b->rt->replicas, r), drafter, n_max != CHOSEN);
  }
}

/* Of one run, or of several. */
typedef struct drafts_rates {
  double tok_s;   /* of whole answers */
  double steady;  /* while all decode; with drafts, after the first steps; 0: there were no others */
  double least;   /* of the windows of that */
  double seconds; /* of the windows */
} drafts_rates;

static int measure_rate(drafts_bench *b, int32_t *answers, bool chosen, drafts_rates *out) {
  uint64_t n_skipped = chosen && b->n_steps_drafted < STEPS_BEFORE ? STEPS_BEFORE - b->n_steps_drafted : 0;
  weft_measured m;
  weft_rates rates;
  b->load.answers = answers;
  if (!weft_rates_start(&rates, b->rt)) return weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory");
  int code = weft_measure(b->rt, &b->load, b->seed, &m);
  weft_rates_stop(&rates);
  weft_steady s = {0};
  if (code == 0) s = weft_rates_steady(rates.look, rates.n, m.all_from_us, m.all_to_us, n_skipped, WINDOW_S);
  if (chosen) b->n_steps_drafted += s.n_steps;
  weft_rates_free(&rates);
  *out = (drafts_rates){.steady = s.tok_s, .least = s.least_tok_s, .seconds = s.window_s};
  out->tok_s = weft_measured_rate(&m);
  return code;
}

/* Medians, and the least of the least. */
static drafts_rates sum_up(const drafts_rates *of, uint32_t n) {
  double tok_s[NUMBERS_MAX], steady[NUMBERS_MAX], seconds[NUMBERS_MAX];
  drafts_rates out = of[0];
  for (uint32_t i = 0; i < n; i++) {
    tok_s[i] = of[i].tok_s;
    steady[i] = of[i].steady;
    seconds[i] = of[i].seconds;
    if (of[i].least < out.least) out.least = of[i].least;
  }
  out.tok_s = weft_median(tok_s, n);
  out.steady = weft_median(steady, n);
  out.seconds = weft_median(seconds, n);
  return out;
}

static weft_draft_stats drafts_so_far(const drafts_bench *b) {
  weft_request_stats stats;
  weft_replicas_get_request_stats(b->rt->replicas, 0, &stats);
  return stats.drafts;
}

static double times_of(double with, double without) {
  return without > 0.0 ? with / without : 0.0;
}

static void print_line(const drafts_bench *b, const char *how, const char *depths, const drafts_rates *plain,
                       const drafts_rates *drafted, const weft_draft_stats *d) {
  (void)printf("%4u at once, %s, %s: %9.2f tok/s without, %9.2f with: %.2f times; %llu of %llu accepted in %llu runs",
               b->load.n_parallel, how, depths, plain->tok_s, drafted->tok_s, times_of(drafted->tok_s, plain->tok_s),
               (unsigned long long)d->n_accepted, (unsigned long long)d->n_drafted, (unsigned long long)d->n_runs);
  if (drafted->steady > 0.0)
    (void)printf("; after %d steps %.2f times, %.2f in the worst %.1f s", STEPS_BEFORE,
                 times_of(drafted->steady, plain->steady), times_of(drafted->least, plain->steady), drafted->seconds);
  (void)printf("\n");
}

static void print_case(const drafts_bench *b, double right, uint32_t depth, const drafts_rates *plain,
                       const drafts_rates *drafted, const weft_draft_stats *d) {
  char how[64], depths[32];
  if (right == OWN)
    (void)snprintf(how, sizeof how, "own drafter");
  else
    (void)snprintf(how, sizeof how, "%.2f right", right);
  (void)snprintf(depths, sizeof depths, depth == CHOSEN ? "chosen" : "%u drafts", depth);
  double times = times_of(drafted->tok_s, plain->tok_s), steady = times_of(drafted->steady, plain->steady);
  double least = times_of(drafted->least, plain->steady);
  if (b->config->csv)
    (void)printf("%u,%s,%s,%.6g,%.6g,%.4g,%llu,%llu,%.6g,%.6g,%.4g,%.4g,%.3g\n", b->load.n_parallel, how, depths,
                 plain->tok_s, drafted->tok_s, times, (unsigned long long)d->n_drafted,
                 (unsigned long long)d->n_accepted, plain->steady, drafted->steady, steady, least, drafted->seconds);
  else if (!b->config->product.json)
    print_line(b, how, depths, plain, drafted, d);
  (void)fflush(stdout);
  json_t *record = json_pack("{s:s, s:i, s:f, s:i, s:f, s:f, s:f, s:I, s:I, s:I, s:s}", "work", "drafts", "n_parallel",
                             (int)b->load.n_parallel, "right", right, "depth", (int)depth, "plain_tok_s", plain->tok_s,
                             "drafts_tok_s", drafted->tok_s, "times", times, "runs", (json_int_t)d->n_runs, "drafted",
                             (json_int_t)d->n_drafted, "accepted", (json_int_t)d->n_accepted, "device",
                             weft_device_get_info(b->rt->devices.device[0])->name);
  json_t *more = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "steady_plain_tok_s", plain->steady,
                           "steady_tok_s", drafted->steady, "steady_times", steady, "least_times", least, "least_s",
                           drafted->seconds, "draft_ms", (double)d->draft_ns / 1e6, "verify_ms",
                           (double)d->verify_us / 1e3, "commit_ms", (double)d->commit_ns / 1e6);
  (void)json_object_update(record, more);
  json_decref(more);
  (void)json_array_append_new(b->records, record);
}

/* Medians over the repeats; each has prompts of its own. One before them warms up, unless one did. */
static int run_case(drafts_bench *b, double right, uint32_t depth, uint32_t most) {
  const weft_drafter oracle = {.guess = guess_answer, .self = b, .replaces_own = true};
  drafts_rates plain[NUMBERS_MAX], drafted[NUMBERS_MAX];
  uint32_t n = b->config->repeat < NUMBERS_MAX - 1 ? b->config->repeat : NUMBERS_MAX - 1;
  size_t n_bytes = (size_t)b->load.n_parallel * b->load.n_generate * sizeof *b->wanted;
  weft_draft_stats before = {0}, after;
  int code = 0;
  b->right = right;
  for (uint32_t i = b->n_steps_drafted > 0 ? 1 : 0; i <= n && code == 0; i++) {
    b->seed += 1;
    if (i == 1) before = drafts_so_far(b);
    set_drafts(b, WEFT_DRAFT_OFF, 1, most, NULL);
    code = measure_rate(b, b->wanted, false, &plain[i]);
    set_drafts(b, right == OWN ? b->own : WEFT_DRAFT_DEFAULT, depth, most, right == OWN ? NULL : &oracle);
    if (code == 0) code = measure_rate(b, b->got, depth == CHOSEN, &drafted[i]);
    if (code == 0 && memcmp(b->got, b->wanted, n_bytes) != 0)
      code = weft_cli_fail(WEFT_EXIT_FAILED, "bench: an answer with drafts is another one than without");
  }
  set_drafts(b, WEFT_DRAFT_OFF, 1, most, NULL);
  if (code != 0) return code;
  after = drafts_so_far(b);
  after.n_runs -= before.n_runs;
  after.n_drafted -= before.n_drafted;
  after.n_accepted -= before.n_accepted;
  after.draft_ns -= before.draft_ns;
  after.verify_us -= before.verify_us;
  after.commit_ns -= before.commit_ns;
  const drafts_rates without = sum_up(plain + 1, n), with = sum_up(drafted + 1, n);
  print_case(b, right, depth, &without, &with, &after);
  return 0;
}

/* ---- which ------------------------------------------------------------------------------------ */

/* Numbers with commas between. 0: it is none, or one is out of range. */
static uint32_t read_numbers(const char *text, double least, double most, double *out) {
  uint32_t n = 0;
  for (const char *at = text; n < NUMBERS_MAX; at += 1) {
    char *end;
    out[n] = strtod(at, &end);
    if (end == at || out[n] < least || out[n] > most || (*end != ',' && *end != 0)) return 0;
    n += 1;
    if (*end == 0) return n;
    at = end;
  }
  return 0;
}

static int run_sequences(drafts_bench *b, uint32_t n_parallel, const double *right, uint32_t n_right,
                         const double *depth, uint32_t n_depths, uint32_t most) {
  int code = 0;
  b->load.n_parallel = n_parallel;
  b->n_steps_drafted = 0;
  b->wanted = weft_alloc((size_t)n_parallel * b->load.n_generate, sizeof *b->wanted);
  b->got = weft_alloc((size_t)n_parallel * b->load.n_generate, sizeof *b->got);
  if (b->wanted == NULL || b->got == NULL) code = weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory");
  for (uint32_t i = 0; i < n_right && code == 0; i++) {
    for (uint32_t k = 0; k < n_depths && code == 0; k++) code = run_case(b, right[i], (uint32_t)depth[k], most);
    if (code == 0) code = run_case(b, right[i], CHOSEN, most);
  }
  weft_free(b->wanted);
  weft_free(b->got);
  return code;
}

int weft_bench_drafts(const weft_lab_config *config) {
  static const uint32_t sweep[] = {1, 8, 32, 128};
  drafts_bench b = {.config = config, .seed = 5000};
  double right[NUMBERS_MAX] = {OWN}, depth[NUMBERS_MAX];
  uint32_t n_right = 1, n_depths = 0;
  if (config->accept != NULL && (n_right = read_numbers(config->accept, 0.0, 1.0, right)) == 0)
    return weft_cli_fail(WEFT_EXIT_USAGE, "--accept %s: give shares from 0 to 1 with commas between", config->accept);
  if (config->depths != NULL && (n_depths = read_numbers(config->depths, 1.0, WEFT_DRAFTS_MAX, depth)) == 0)
    return weft_cli_fail(WEFT_EXIT_USAGE, "--depths %s: give 1 to %d with commas between", config->depths,
                         WEFT_DRAFTS_MAX);
  int code = weft_cli_open(&config->product, &b.rt);
  if (code != 0) return code;
  b.own = b.rt->model[0].draft.kind;
  uint32_t most = b.rt->model[0].draft.n_max, context = b.rt->model[0].context;
  b.n_vocab = weft_model_at(b.rt, 0).vocabulary;
  b.load = (weft_load){.n_prompt = config->n_prompt, .n_generate = config->n_generate};
  b.records = json_array();
  for (uint32_t k = 0; k < n_depths; k++) {
    if (depth[k] > most)
      code = weft_cli_fail(WEFT_EXIT_USAGE, "--depths %g is more than the %u of --draft", depth[k], most);
  }
  if (code == 0 && !b.rt->model[0].has_drafts)
    code = weft_cli_fail(WEFT_EXIT_USAGE, "bench drafts: nothing drafts here: give --draft ngram:K or model:FILE");
  if (code == 0 && (uint64_t)config->n_prompt + config->n_generate > context)
    code = weft_cli_fail(WEFT_EXIT_USAGE, "bench: prompt and answer have more tokens than the context of %u", context);
  for (uint32_t i = 0; i < sizeof sweep / sizeof *sweep && code == 0; i++) {
    uint32_t n = config->n_parallel > 0 ? config->n_parallel : sweep[i];
    if (n <= b.rt->options.running) code = run_sequences(&b, n, right, n_right, depth, n_depths, most);
    if (config->n_parallel > 0) break;
  }
  if (code == 0 && config->product.json) weft_bench_print(b.records);
  json_decref(b.records);
  weft_close(b.rt);
  return code;
}
