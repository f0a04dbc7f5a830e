/* SPDX-License-Identifier: MIT */
/* weft generate: one prompt in, one answer out. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/cli/canvas_cells.h"
#include "api/cli/cli.h"
#include "api/cli/screen.h"
#include "api/runtime.h"
#include "base/memory.h"
#include "base/text.h"

typedef struct output_state {
  const weft_config *config;
  FILE *trace;
  weft_screen screen; /* live redraw; off when standard output is no terminal */
  weft_canvas_cells cells;
  weft_runtime *runtime;
  weft_text text;
  json_t *tokens, *logprobs;
} output_state;

static json_t *int_list(const int32_t *list, uint32_t n) {
  json_t *out = json_array();
  for (uint32_t i = 0; i < n; i++) (void)json_array_append_new(out, json_integer(list[i]));
  return out;
}

static void write_trace(FILE *to, const weft_delta *d) {
  json_t *entropy = json_array(), *accepted = json_array();
  for (uint32_t i = 0; i < d->n_tokens; i++) {
    (void)json_array_append_new(entropy, json_real((double)d->entropy[i]));
    (void)json_array_append_new(accepted, json_boolean(d->accepted_mask[i]));
  }
  json_t *line =
      json_pack("{s:i, s:i, s:f, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:f}", "block", (int)d->block, "step", (int)d->step,
                "temperature", (double)d->step_temperature, "canvas_in", int_list(d->canvas_in, d->n_tokens), "argmax",
                int_list(d->tokens, d->n_tokens), "entropy", entropy, "accepted", accepted, "drawn",
                int_list(d->drawn, d->n_tokens), "canvas_out", int_list(d->canvas_out, d->n_tokens), "stopped",
                (int)d->stopped, "mean_entropy", (double)d->mean_entropy);
  if (line == NULL) return;
  (void)json_dumpf(line, to, JSON_COMPACT); /* errors of the stream are seen at close */
  (void)fputc('\n', to);
  json_decref(line);
}

static void keep_logprobs(output_state *s, const weft_delta *d) {
  for (uint32_t i = 0; i < d->n_tokens && d->logprobs != NULL; i++) {
    json_t *top = json_array();
    for (uint32_t k = 0; k < d->n_top[i]; k++) {
      const weft_token_logprob *t = &d->top_logprobs[(size_t)i * d->top_stride + k];
      (void)json_array_append_new(top, json_pack("{s:i, s:f}", "id", t->token, "logprob", (double)t->logprob));
    }
    (void)json_array_append_new(s->logprobs, json_pack("{s:i, s:f, s:o}", "id", d->logprobs[i].token, "logprob",
                                                       (double)d->logprobs[i].logprob, "top", top));
  }
}

static void take_delta(output_state *s, const weft_delta *d) {
  weft_terminal now = s->screen.terminal;
  weft_terminal_measure(&now);
  weft_screen_resize(&s->screen, now.n_columns, now.n_rows);
  if (d->kind == WEFT_DELTA_CANVAS) {
    if (s->trace != NULL) write_trace(s->trace, d);
    const weft_canvas_view view = weft_canvas_cells_view(&s->cells, s->runtime, NULL, d);
    weft_screen_canvas(&s->screen, &view);
    return;
  }
  weft_text_append(&s->text, d->text, d->n_text);
  for (uint32_t i = 0; i < d->n_tokens; i++) (void)json_array_append_new(s->tokens, json_integer(d->tokens[i]));
  keep_logprobs(s, d);
  if (!s->config->json) weft_screen_text(&s->screen, d->text, d->n_text);
}

static void print_json(output_state *s, weft_generation *g, const weft_delta *end) {
  const int32_t *prompt;
  uint32_t n_prompt = weft_prompt_tokens(g, &prompt);
  const weft_usage_counts *u = &end->usage;
  json_t *usage = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "prompt_tokens", (json_int_t)u->prompt_tokens,
                            "cached_tokens", (json_int_t)u->cached_tokens, "completion_tokens",
                            (json_int_t)u->completion_tokens, "canvases", (json_int_t)u->canvases, "denoise_steps",
                            (json_int_t)u->denoise_steps, "preemptions", (json_int_t)u->preemptions, "first_token_us",
                            (json_int_t)u->first_token_us, "total_us", (json_int_t)u->total_us);
  json_t *root = json_pack("{s:o, s:O, s:o, s:s, s:o}", "text",
                           json_stringn(s->text.bytes == NULL ? "" : s->text.bytes, s->text.n), "tokens", s->tokens,
                           "prompt_tokens", int_list(prompt, n_prompt), "finish", end->finish, "usage", usage);
  if (json_array_size(s->logprobs) > 0) (void)json_object_set(root, "logprobs", s->logprobs);
  char *line = json_dumps(root, 0);
  (void)printf("%s\n", line == NULL ? "{}" : line);
  free(line);
  json_decref(root);
}

static int write_answers(output_state *s, weft_runtime *rt, const weft_generate_params *params) {
  weft_generation *g;
  char error[512];
  int status = weft_submit(rt, params, &g, error, sizeof error);
  if (status != 0) return weft_cli_fail(weft_cli_code(status), "%s", error);
  weft_delta d = {0};
  int code = 0;
  if (weft_answer_mode(g) != WEFT_MODE_DIFFUSION) weft_screen_plain(&s->screen);
  for (;;) {
    status = weft_next(g, 1000, &d);
    if (status == WEFT_AGAIN) continue;
    if (status != 0 || d.kind == WEFT_DELTA_END) break;
    take_delta(s, &d);
  }
  weft_screen_end(&s->screen);
  if (status != 0) {
    code = weft_cli_fail(WEFT_EXIT_RUNTIME, "%s", weft_status_text((weft_status)status));
  } else if (strcmp(d.finish, "error") == 0) {
    code = weft_cli_fail(WEFT_EXIT_RUNTIME, "%s", d.error);
  } else if (s->config->json) {
    print_json(s, g, &d);
  }
  if (code == 0 && s->text.n == 0 && d.usage.completion_tokens > 0) {
    (void)fprintf(stderr, "weft: %s; ask with --chat, or print the tokens with --special\n", WEFT_NO_TEXT);
  }
  weft_generation_free(g);
  return code;
}

static int set_prompt(const weft_config *config, weft_generate_params *p, char **file, int32_t **ids,
                      weft_chat_turn turns[2]) {
  const char *text = config->prompt;
  size_t n = text == NULL ? 0 : strlen(text);
  if (config->tokens != NULL) {
    weft_error error;
    uint32_t n_ids;
    if (weft_config_ids(config->tokens, "--tokens", ids, &n_ids, &error) != WEFT_OK) {
      return weft_cli_fail(WEFT_EXIT_USAGE, "%s", error.text);
    }
    p->prompt.tokens = *ids;
    p->prompt.n_tokens = n_ids;
    return 0;
  }
  if (config->input != NULL) {
    text = *file = weft_cli_read(config->input, &n);
    if (text == NULL) return WEFT_EXIT_LOAD;
  }
  if (text == NULL) return weft_cli_fail(WEFT_EXIT_USAGE, "generate: give -p TEXT, -i FILE or --tokens IDS");
  if (!config->chat && config->system == NULL) {
    p->prompt.text = text;
    p->prompt.n_text = n;
    return 0;
  }
  uint32_t n_turns = 0;
  if (config->system != NULL) turns[n_turns++] = (weft_chat_turn){.role = "system", .content = config->system};
  turns[n_turns++] = (weft_chat_turn){.role = "user", .content = text};
  p->prompt.turns = turns;
  p->prompt.n_turns = n_turns;
  return 0;
}

int weft_cli_generate(const weft_config *config) {
  weft_generate_params params;
  weft_chat_turn turns[2];
  char *file = NULL;
  int32_t *ids = NULL;
  weft_runtime *rt = NULL;
  output_state s = {.config = config, .tokens = json_array(), .logprobs = json_array()};
  int code = weft_cli_params(config, &params);
  if (code == 0) code = set_prompt(config, &params, &file, &ids, turns);
  if (code == 0) code = weft_cli_open(config, &rt);
  if (code == 0 && config->trace != NULL) {
    s.trace = fopen(config->trace, "wb");
    if (s.trace == NULL) code = weft_cli_fail(WEFT_EXIT_USAGE, "--trace %s: %s", config->trace, strerror(errno));
    params.trace = true;
  }
  if (code == 0) {
    weft_screen_begin(&s.screen, weft_terminal_stdout(config), !config->no_live && !config->json);
    params.canvas_deltas = params.trace = s.screen.live || params.trace;
    s.runtime = rt;
    code = write_answers(&s, rt, &params);
  }
  if (s.trace != NULL && fclose(s.trace) != 0 && code == 0) {
    code = weft_cli_fail(WEFT_EXIT_RUNTIME, "--trace %s: %s", config->trace, strerror(errno));
  }
  weft_close(rt);
  weft_canvas_cells_free(&s.cells);
  weft_text_free(&s.text);
  json_decref(s.tokens);
  json_decref(s.logprobs);
  weft_free(file);
  weft_free(ids);
  return code;
}
