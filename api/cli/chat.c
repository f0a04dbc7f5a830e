/* SPDX-License-Identifier: MIT */
/* weft chat: a conversation on the terminal; one line in, one answer out; an empty line or end of input leaves. */
#include <stdlib.h>
#include <string.h>

#include "api/cli/cli.h"
#include "api/cli/screen.h"
#include "base/memory.h"
#include "base/text.h"

enum { TURNS_MAX = 512 };

typedef struct conversation {
  weft_chat_turn turn[TURNS_MAX];
  uint32_t n;
} conversation;

static bool add_turn(conversation *c, const char *role, const char *content) {
  char *copy = weft_strdup(content);
  if (copy == NULL || c->n == TURNS_MAX) {
    weft_free(copy);
    return false;
  }
  c->turn[c->n++] = (weft_chat_turn){.role = role, .content = copy};
  return true;
}

static void forget_turns(conversation *c) {
  for (uint32_t i = 0; i < c->n; i++) weft_free((void *)(uintptr_t)c->turn[i].content);
  c->n = 0;
}

static int answer_turn(const weft_config *config, weft_runtime *rt, conversation *c, weft_generate_params *params) {
  weft_screen screen;
  weft_text text = {0};
  weft_generation *g;
  char error[512];
  weft_delta d = {0};
  weft_screen_begin(&screen, weft_terminal_stdout(), !config->no_live);
  params->prompt.turns = c->turn;
  params->prompt.n_turns = c->n;
  params->canvas_deltas = screen.live;
  int status = weft_submit(rt, params, &g, error, sizeof error);
  if (status != 0) return weft_cli_fail(weft_cli_code(status), "%s", error);
  while ((status = weft_next(g, 1000, &d)) == WEFT_AGAIN || (status == 0 && d.kind != WEFT_DELTA_END)) {
    if (status == WEFT_AGAIN) continue;
    if (d.kind == WEFT_DELTA_CANVAS) {
      weft_screen_canvas(&screen, &d);
    } else {
      if (!d.thinking) weft_text_append(&text, d.text, d.n_text);
      weft_screen_text(&screen, d.text, d.n_text);
    }
  }
  weft_screen_end(&screen);
  int code = 0;
  if (status == 0 && strcmp(d.finish, "error") == 0) code = weft_cli_fail(WEFT_EXIT_RUNTIME, "%s", d.error);
  weft_generation_free(g);
  if (code == 0 && !add_turn(c, "assistant", text.bytes == NULL ? "" : text.bytes)) {
    code = weft_cli_fail(WEFT_EXIT_RUNTIME, "the conversation is longer than %d turns", TURNS_MAX);
  }
  weft_text_free(&text);
  return code;
}

int weft_cli_chat(const weft_config *config) {
  weft_generate_params params;
  weft_runtime *rt = NULL;
  int code = weft_cli_params(config, &params);
  if (code == 0) code = weft_cli_open(config, &rt);
  if (code != 0) return code;
  conversation *c = weft_alloc(1, sizeof *c);
  if (c == NULL || (config->system != NULL && !add_turn(c, "system", config->system))) {
    code = weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory");
  }
  char *line = NULL;
  size_t capacity = 0;
  while (code == 0) {
    (void)printf("> ");
    (void)fflush(stdout);
    ssize_t n = getline(&line, &capacity, stdin);
    if (n > 0 && line[n - 1] == '\n') line[--n] = 0;
    if (n <= 0) break;
    if (!add_turn(c, "user", line)) {
      code = weft_cli_fail(WEFT_EXIT_RUNTIME, "the conversation is longer than %d turns", TURNS_MAX);
      break;
    }
    code = answer_turn(config, rt, c, &params);
  }
  free(line);
  if (c != NULL) forget_turns(c);
  weft_free(c);
  weft_close(rt);
  return code;
}
