/* SPDX-License-Identifier: MIT */
/* weft bench preset: one table with settings that cannot be chosen, so that two people's tables can be put side by
 * side.
 *
 * Law: the context is 32,768 or the model's if that is less; answers have 256 tokens, greedy, without thinking and
 * without an end; prompts are bench/lab/prose.c once, and again and again up to 12,461 tokens or what the context
 * has room for, both as bare text. One sequence at a time, no prefix is found. The first run warms up. */
#include <jansson.h>
#include <string.h>

#include "bench/lab/prose.h"
#include "bench/speed/bench.h"
#include "bench/speed/measure.h"

enum { CONTEXT = 32768, ANSWER = 256, LONG = 12461, REPEAT_MAX = 64, PROMPTS = 2 };

typedef enum preset_figure { PREFILL, FIRST_MS, GEN_TPS, GEN_TPS_SS, FIGURES } preset_figure;
static const char *const names[FIGURES] = {"prefill_tps", "first_ms", "gen_tps", "gen_tps_ss"};

typedef struct preset_prompt {
  const char *name;
  uint32_t n_tokens;
  double value[FIGURES][REPEAT_MAX], median[FIGURES], variation[FIGURES];
} preset_prompt;

typedef struct preset {
  const weft_lab_config *config;
  weft_runtime *rt;
  int32_t *tokens; /* of the long prompt; the short one is its beginning */
  uint32_t n_once, n_answer;
  preset_prompt prompt[PROMPTS];
} preset;

/* As many of the prompt's tokens as the long one has. */
static int fill_tokens(preset *p) {
  int32_t *once;
  weft_error error = {{0}};
  uint32_t context = weft_model_at(p->rt, 0).context;
  p->n_answer = context / 2 < ANSWER ? context / 2 : ANSWER;
  if (weft_tokenize(p->rt, NULL, weft_lab_prose, strlen(weft_lab_prose), true, false, &once, &p->n_once, error.text,
                    sizeof error.text) != 0)
    return weft_cli_fail(WEFT_EXIT_FAILED, "bench preset: %s", error.text);
  uint32_t most = context - p->n_answer, n = most < LONG ? most : LONG;
  p->tokens = weft_alloc(n, sizeof *p->tokens);
  for (uint32_t i = 0; i < n && p->tokens != NULL; i++) p->tokens[i] = once[i % p->n_once];
  weft_release(once);
  if (p->tokens == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory");
  p->prompt[0] = (preset_prompt){.name = "once", .n_tokens = p->n_once < n ? p->n_once : n};
  p->prompt[1] = (preset_prompt){.name = "long", .n_tokens = n};
  return 0;
}

static int measure_prompt(preset *p, preset_prompt *prompt, uint32_t at) {
  const weft_load load = {
      .n_prompt = prompt->n_tokens, .n_generate = p->n_answer, .n_parallel = 1, .tokens = p->tokens};
  weft_answer_times t;
  int code = weft_measure_answer(p->rt, &load, 1, &t);
  if (code != 0) return code;
  prompt->value[PREFILL][at] = t.n_computed / t.prefill_s;
  prompt->value[FIRST_MS][at] = 1000.0 * t.prefill_s;
  prompt->value[GEN_TPS][at] = t.n_decoded / t.decode_s;
  prompt->value[GEN_TPS_SS][at] = (t.n_decoded - 1) / t.steady_s;
  return 0;
}

static int run_prompt(preset *p, preset_prompt *prompt) {
  uint32_t n = p->config->repeat;
  int code = measure_prompt(p, prompt, 0);
  for (uint32_t i = 0; i < n && code == 0; i++) code = measure_prompt(p, prompt, i);
  for (uint32_t k = 0; k < FIGURES; k++) {
    prompt->variation[k] = weft_variation(prompt->value[k], n);
    prompt->median[k] = weft_median(prompt->value[k], n);
  }
  return code;
}

static void print_prompt(const preset *p, const preset_prompt *prompt, bool csv) {
  char v[WEFT_VARIATION_TEXT];
  (void)printf(csv ? "%s,%u,%u" : "%-6s %7u %7u", prompt->name, prompt->n_tokens, p->n_answer);
  for (uint32_t k = 0; k < FIGURES; k++)
    (void)printf(csv ? ",%.6g,%s" : " %12.2f %5s", prompt->median[k],
                 weft_variation_text(prompt->variation[k], csv, v));
  (void)printf("\n");
}

static void print_json(const preset *p) {
  json_t *out = json_array();
  for (uint32_t i = 0; i < PROMPTS; i++) {
    const preset_prompt *prompt = &p->prompt[i];
    json_t *row = json_pack("{s:s, s:i, s:i}", "prompt", prompt->name, "n_prompt", (int)prompt->n_tokens, "n_generate",
                            (int)p->n_answer);
    for (uint32_t k = 0; k < FIGURES; k++) {
      char name[32];
      (void)snprintf(name, sizeof name, "%s_cv", names[k]);
      (void)json_object_set_new(row, names[k], json_real(prompt->median[k]));
      (void)json_object_set_new(row, name, json_real(prompt->variation[k]));
    }
    (void)json_array_append_new(out, row);
  }
  weft_bench_print(out);
  json_decref(out);
}

static void print_all(const preset *p) {
  bool csv = p->config->csv;
  if (p->config->product.json) {
    print_json(p);
    return;
  }
  (void)printf(csv ? "prompt,n_prompt,n_generate" : "prompt  tokens  answer");
  for (uint32_t k = 0; k < FIGURES; k++)
    (void)printf(csv ? ",%s,%s_cv" : " %12s %5s", names[k], csv ? names[k] : "cv %");
  (void)printf("\n");
  for (uint32_t i = 0; i < PROMPTS; i++) print_prompt(p, &p->prompt[i], csv);
}

int weft_bench_preset(const weft_lab_config *config) {
  weft_lab_config fixed = *config;
  preset p = {.config = &fixed};
  if (config->repeat > REPEAT_MAX)
    return weft_cli_fail(WEFT_EXIT_USAGE, "bench preset: --repeat must be %d at most", REPEAT_MAX);
  fixed.product.context = CONTEXT;
  int code = weft_cli_open(&fixed.product, &p.rt);
  if (code == 0 && !weft_model_at(p.rt, 0).autoregressive)
    code = weft_cli_fail(WEFT_EXIT_USAGE, "bench preset: the model does not write token by token");
  if (code == 0) code = fill_tokens(&p);
  for (uint32_t i = 0; i < PROMPTS && code == 0; i++) code = run_prompt(&p, &p.prompt[i]);
  if (code == 0) print_all(&p);
  weft_close(p.rt);
  weft_free(p.tokens);
  return code;
}
