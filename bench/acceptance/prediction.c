/* SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "bench/acceptance/acceptance.h"
#include "bench/lab/model.h"
#include "bench/lab/progress.h"
#include "bench/lab/prose.h"
#include "bench/quality/scores.h"
#include "bench/quality/summary.h"

/* CONTEXT: tokens of a window, where text and model have as many. WINDOWS_MAX: of a long text the first ones, so
 * that the run ends on a CPU too. */
enum { CONTEXT = 512, WINDOWS_MAX = 16, ROWS = 2048, SEGMENTS_MAX = 256 };

static const float noise_levels[] = {0.5f, 1.0f};

typedef struct prediction {
  acceptance *a;
  weft_lab_model model;
  const char *text;
  size_t n_text;
  weft_lab_progress progress;
} prediction;

static void show_windows(void *self, uint32_t done, double nll) {
  prediction *p = self;
  (void)nll;
  weft_lab_progress_show(&p->progress, done, WINDOWS_MAX, "");
}

static weft_status load_model(prediction *p, weft_error *error) {
  weft_model_limits limits = {.rows_max = ROWS, .canvas_rows_max = ROWS, .segments_max = SEGMENTS_MAX};
  weft_status status = weft_lab_model_open(&p->model, p->a->config, error);
  uint64_t begun = weft_clock_us();
  if (status == WEFT_OK) status = weft_lab_model_load(&p->model, p->a->config, &limits, error);
  if (status != WEFT_OK) return status;
  const weft_device_info *d = weft_device_get_info(p->model.device);
  acceptance_figure(&p->a->report, "load_seconds", (double)(weft_clock_us() - begun) * 1e-6);
  (void)json_object_set_new(
      p->a->report.root, "machine",
      json_pack("{s:s, s:s, s:s, s:i, s:i}", "backend", d->backend, "instructions", d->isa, "device", d->name,
                "product_bits", (int)d->products, "threads", (int)d->n_threads));
  return WEFT_OK;
}

/* The widest window that text, model and canvas have room for; 0: there is none. */
static uint32_t choose_context(const prediction *p, uint32_t n_tokens, uint32_t canvas) {
  uint32_t n = weft_model_get_info(p->model.model)->context_length;
  if (n > CONTEXT) n = CONTEXT;
  if (canvas >= n / 2) n = 2 * canvas;
  if (n > n_tokens) n = n_tokens;
  return n > weft_model_get_info(p->model.model)->context_length || n <= canvas + 4 ? 0 : n;
}

/* At as many levels of noise; 0: token by token. */
static weft_status score_text(prediction *p, uint32_t n_levels, weft_windows *windows, weft_scores *scores,
                              weft_error *error) {
  weft_tokens all = {0};
  uint32_t canvas = n_levels > 0 ? weft_model_get_info(p->model.model)->canvas_length : 0;
  const char *name = p->a->text != NULL ? "the text of --text" : "the text of the laboratory";
  weft_status status = weft_tokenizer_encode(p->a->tokenizer, p->text, p->n_text, 0, &all, error);
  uint32_t context = status == WEFT_OK ? choose_context(p, all.n, canvas) : 0;
  weft_tokens_free(&all);
  if (status == WEFT_OK && context == 0)
    status = weft_fail(error, WEFT_E_TOO_LARGE, "%s is too short for a window of this model", name);
  const weft_windows_config config = {.context = context, .n_max = WINDOWS_MAX};
  if (status == WEFT_OK) status = weft_windows_open(p->a->tokenizer, &config, name, p->text, p->n_text, windows, error);
  weft_scores_args args = {.device = p->model.device,
                           .model = p->model.model,
                           .limits = p->model.limits,
                           .windows = windows,
                           .level = noise_levels,
                           .n_levels = n_levels,
                           .n_threads = p->a->config->product.threads,
                           .progress = show_windows,
                           .progress_self = p};
  return status == WEFT_OK ? weft_scores_run(&args, scores, error) : status;
}

static const char *const advise_worse =
    "A trained model is far better on a text of its languages: the weights are not what the file says. If another "
    "program "
    "foretells the text better, send this report.";
static const char *const advise_untaught =
    "The model answers questions, so it may never have been taught such texts: give one of its own kind with --text "
    "FILE.";
static const char *const advise_high =
    "Models that were taught conversations only can be so on prose. If answers are poor too, compare with another "
    "program.";

/* A model that knows nothing and says so has the logarithm of its vocabulary; one that is sure and wrong has more.
 * Trained models have a third of it at most on a text of their languages (a perplexity of 60 with 262,144 tokens),
 * so that half is strange and three quarters are as good as nothing. */
static void judge_loss(acceptance *a, const char *what, double loss, uint64_t n, uint32_t n_vocab) {
  double share = loss / log((double)n_vocab);
  acceptance_verdict verdict = share < 0.5 ? ACCEPTANCE_GOOD : ACCEPTANCE_LOOK;
  const char *act = share < 0.5 ? NULL : advise_high, *than = share < 0.5 ? "far better than" : "not far from";
  if (!(share < 0.75)) {
    verdict = a->answered ? ACCEPTANCE_LOOK : ACCEPTANCE_BAD;
    act = a->answered ? advise_untaught : advise_worse;
    than = "hardly better than, or worse than,";
  }
  acceptance_add(&a->report, "prediction", verdict, act,
                 "%s: perplexity %.4g over %" PRIu64 " tokens, %s chance among %" PRIu32, what, exp(loss), n, than,
                 n_vocab);
}

static void predict_tokens(prediction *p) {
  weft_windows windows = {.n = 0};
  weft_scores scores = {.n_series = 0};
  weft_error error = {{0}};
  weft_status status = score_text(p, 0, &windows, &scores, &error);
  if (status == WEFT_OK) {
    double loss = weft_moments_of(scores.series[0].nll, scores.series[0].n).mean;
    acceptance_figure(&p->a->report, "perplexity", exp(loss));
    judge_loss(p->a, "token by token", loss, scores.series[0].n, weft_model_get_info(p->model.model)->n_vocab);
  } else {
    acceptance_add(&p->a->report, "prediction", status == WEFT_E_TOO_LARGE ? ACCEPTANCE_LEFT_OUT : ACCEPTANCE_BAD,
                   status == WEFT_E_TOO_LARGE ? NULL : "Send this report.", "token by token: %s", error.text);
  }
  weft_scores_free(&scores);
  weft_windows_close(&windows);
}

static void predict_canvases(prediction *p) {
  weft_windows windows = {.n = 0};
  weft_scores scores = {.n_series = 0};
  weft_error error = {{0}};
  weft_status status = score_text(p, 2, &windows, &scores, &error);
  for (uint32_t i = 0; i < scores.n_series && status == WEFT_OK; i++) {
    const weft_series *s = &scores.series[i];
    double loss = weft_moments_of(s->nll, s->n).mean;
    char what[64], name[64];
    (void)snprintf(what, sizeof what, "canvases, %.0f %% noise", 100.0 * (double)noise_levels[i]);
    (void)snprintf(name, sizeof name, "canvas_perplexity_at_noise_%g", (double)noise_levels[i]);
    acceptance_figure(&p->a->report, name, exp(loss));
    judge_loss(p->a, what, loss, s->n, weft_model_get_info(p->model.model)->n_vocab);
  }
  if (status != WEFT_OK)
    acceptance_add(&p->a->report, "prediction", status == WEFT_E_TOO_LARGE ? ACCEPTANCE_LEFT_OUT : ACCEPTANCE_BAD,
                   status == WEFT_E_TOO_LARGE ? NULL : "Send this report.", "canvases: %s", error.text);
  weft_scores_free(&scores);
  weft_windows_close(&windows);
}

void acceptance_check_prediction(acceptance *a) {
  prediction p = {.a = a,
                  .text = a->text != NULL ? a->text : weft_lab_prose,
                  .n_text = a->text != NULL ? a->n_text : strlen(weft_lab_prose),
                  .progress = {.what = "foretelling the text", .quiet = a->config->product.quiet}};
  weft_error error = {{0}};
  weft_status status = load_model(&p, &error);
  if (status != WEFT_OK) {
    acceptance_add(
        &a->report, "loading", ACCEPTANCE_BAD,
        status == WEFT_E_NO_MEMORY
            ? "Free memory, take a smaller file, or more cards with --devices; docs/models.md says which file "
              "fits which machine."
            : "Send this report.",
        "%s", error.text);
  } else {
    const weft_device_info *d = weft_device_get_info(p.model.device);
    acceptance_add(&a->report, "loading", ACCEPTANCE_GOOD, NULL, "the weights lie on %s %s (%s)", d->backend, d->isa,
                   d->name);
    if (a->tokenizer == NULL)
      acceptance_add(&a->report, "prediction", ACCEPTANCE_LEFT_OUT, NULL, "it needs the tokenizer");
    if (a->tokenizer != NULL) predict_tokens(&p);
    if (a->tokenizer != NULL && weft_model_get_info(p.model.model)->canvas_length > 0) predict_canvases(&p);
  }
  weft_lab_model_close(&p.model);
}
