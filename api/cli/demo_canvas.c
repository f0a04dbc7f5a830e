/* SPDX-License-Identifier: MIT */
#include "api/cli/demo_canvas.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/cli/cli.h"
#include "api/cli/screen.h"
#include "api/cli/speaker.h"

/* The demo model takes several steps for it: each word depends on the one before. */
static const char question[] =
    "Follow the links from duck: corn soup; fox corn; white lamp; happy fox; soup rice; rock white; door rock; duck "
    "happy";
enum { STEP_US = 200000 };

typedef struct canvas_show {
  weft_screen screen;
  uint32_t n_steps;
} canvas_show;

static void show_line(const canvas_show *s, const weft_canvas_view *v) {
  const weft_terminal *t = &s->screen.terminal;
  (void)fprintf(t->to, "  step %2u  ", s->n_steps);
  for (uint32_t i = 0; i < v->n_cells; i++) {
    bool noise = v->cell[i].state == WEFT_CELL_NOISE;
    weft_terminal_put(t, noise ? "_" : v->text + v->cell[i].at, noise ? 1 : v->cell[i].n, true);
  }
  if (v->n_cells == 0) weft_terminal_put(t, v->text, v->n_text, true);
  (void)fputc('\n', t->to);
  (void)fflush(t->to); /* a failure is seen by the flush in main */
}

static void show_canvas(void *self, const weft_canvas_view *v) {
  canvas_show *s = self;
  s->n_steps += 1;
  if (!s->screen.live) {
    show_line(s, v);
    return;
  }
  weft_screen_canvas(&s->screen, v);
  (void)usleep(STEP_US); /* woken early is fine */
}

static void show_text(void *self, const char *text, size_t n, bool thinking) {
  canvas_show *s = self;
  if (thinking) return;
  if (!s->screen.wrote && !s->screen.live) weft_screen_text(&s->screen, "  answer   ", strlen("  answer   "));
  weft_screen_text(&s->screen, text, n);
}

static void show_plain(void *self) {
  canvas_show *s = self;
  weft_screen_plain(&s->screen);
}

static void look_around(void *self) {
  canvas_show *s = self;
  weft_terminal now = s->screen.terminal;
  weft_terminal_measure(&now);
  weft_screen_resize(&s->screen, now.n_columns, now.n_rows);
}

/* Ctrl-C ends the program. */
static bool is_told_to_stop(void *self) {
  (void)self;
  return false;
}

int weft_demo_canvas(const weft_config *config, uint16_t port, const char *model) {
  char url[64];
  weft_config own = *config;
  weft_speaker *speaker;
  weft_error why = {{0}};
  canvas_show s = {0};
  (void)snprintf(url, sizeof url, "http://127.0.0.1:%u", port);
  own.url = url;
  own.models = (weft_text_list){.item = {model}, .n = 1};
  own.has_seed = true;
  own.sampling.seed = 7;
  own.max_tokens = 64;
  int code = weft_speaker_open_remote(&own, &speaker);
  if (code != 0) return code;
  const weft_chat_turn turn = {.role = "user", .content = question};
  const weft_speaker_asks asks = {.turn = &turn, .n_turns = 1, .mode = WEFT_MODE_DIFFUSION, .canvases = true};
  const weft_listener listener = {.text = show_text,
                                  .canvas = show_canvas,
                                  .plain = show_plain,
                                  .look = look_around,
                                  .stop = is_told_to_stop,
                                  .self = &s};
  weft_screen_begin(&s.screen, weft_terminal_stdout(config), true);
  bool moves = s.screen.live;
  (void)printf("%s\nOne canvas, after every denoise step%s:\n\n", question,
               moves ? " (slowed down, to be seen)" : "; _ is noise");
  weft_said said = speaker->ask(speaker, &asks, &listener, &why);
  weft_screen_end(&s.screen);
  speaker->close(speaker);
  if (said != WEFT_SAID) return weft_cli_fail(WEFT_EXIT_FAILED, "%s", why.text[0] != 0 ? why.text : "no answer came");
  if (moves) (void)printf("(%u steps)\n", s.n_steps);
  return s.n_steps > 0 ? 0 : weft_cli_fail(WEFT_EXIT_FAILED, "no canvas came");
}
