/* SPDX-License-Identifier: MIT */
/* weft chat: a conversation on the terminal, with models of this process or with a server (--url). A line that
 * begins with / is a command; Ctrl-C ends an answer, and pressed twice at the prompt the program. From a pipe
 * each line is a question, and the first one that fails ends the program. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/cli/cli.h"
#include "api/cli/conversation.h"
#include "api/cli/interrupt.h"
#include "api/cli/line.h"
#include "api/cli/screen.h"
#include "api/cli/speaker.h"
#include "base/memory.h"
#include "base/nearest.h"
#include "base/range.h"

typedef struct chat_state {
  const weft_config *config;
  weft_terminal terminal;
  bool talks; /* a person is at the other end */
  weft_line *line;
  weft_speaker *speaker;
  weft_conversation conversation;
  uint32_t model;
  weft_mode mode;
  float temperature;
  bool leaves;
  int code;
  /* of the answer that is being written */
  weft_screen screen;
  weft_text answer;
  bool thinks;
} chat_state;

/* ---- an answer --------------------------------------------------------------------------------- */

static void hear_text(void *self, const char *text, size_t n, bool thinking) {
  chat_state *s = self;
  static const char begins[] = "(thinking) ", ends[] = "\n\n";
  if (s->talks && thinking && !s->thinks) weft_screen_text(&s->screen, begins, sizeof begins - 1);
  if (s->talks && !thinking && s->thinks) weft_screen_text(&s->screen, ends, sizeof ends - 1);
  s->thinks = thinking;
  if (!thinking) weft_text_append(&s->answer, text, n);
  weft_screen_text(&s->screen, text, n);
}

static void hear_canvas(void *self, const weft_canvas_view *canvas) {
  weft_screen_canvas(&((chat_state *)self)->screen, canvas);
}

static void hear_plain(void *self) {
  weft_screen_plain(&((chat_state *)self)->screen);
}

static void look_around(void *self) {
  chat_state *s = self;
  if (!s->terminal.is_terminal || !weft_resizes_take()) return;
  weft_terminal_measure(&s->terminal);
  weft_screen_resize(&s->screen, s->terminal.n_columns, s->terminal.n_rows);
}

static bool is_interrupted(void *self) {
  (void)self;
  return weft_interrupts_told();
}

static weft_said ask_speaker(chat_state *s, weft_error *why) {
  const weft_listener listener = {.text = hear_text,
                                  .canvas = hear_canvas,
                                  .plain = hear_plain,
                                  .look = look_around,
                                  .stop = is_interrupted,
                                  .self = s};
  (void)weft_resizes_take();
  weft_terminal_measure(&s->terminal);
  weft_screen_begin(&s->screen, s->terminal, !s->config->no_live);
  s->thinks = false;
  weft_text_clear(&s->answer);
  weft_text_puts(&s->answer, "");
  const weft_speaker_asks asks = {.turn = s->conversation.turn,
                                  .n_turns = s->conversation.n,
                                  .model = s->model,
                                  .mode = s->mode,
                                  .temperature = s->temperature,
                                  .canvases = s->screen.live};
  weft_said said = s->speaker->ask(s->speaker, &asks, &listener, why);
  weft_screen_end(&s->screen);
  if (weft_interrupts_take() && said != WEFT_SAID_GONE) said = WEFT_SAID_STOPPED;
  return said;
}

static void fail_chat(chat_state *s, int code, const char *words) {
  (void)weft_cli_fail(code, "%s", words);
  if (s->talks) return; /* the prompt stays */
  s->code = code;
  s->leaves = true;
}

/* The letter of what is to be dropped: a letter or word of the question, nothing else; 0: it is none of these. A line
 * that cannot be read drops nothing. */
static char read_drop(chat_state *s) {
  static const char *const words[] = {"oldest", "half", "all", "nothing"};
  weft_text answer = {0};
  char letter = weft_line_read(s->line, "drop> ", false, &answer) == WEFT_LINE_READ ? 0 : 'n';
  const char *word = letter == 0 && answer.n > 0 ? answer.bytes + strspn(answer.bytes, " \t") : "";
  size_t n = strcspn(word, " \t");
  bool alone = n > 0 && word[n + strspn(word + n, " \t")] == 0;
  for (size_t i = 0; alone && i < sizeof words / sizeof *words; i++) {
    bool whole = strlen(words[i]) == n;
    if ((n == 1 || whole) && strncmp(word, words[i], n) == 0) letter = words[i][0];
  }
  weft_text_free(&answer);
  return letter;
}

/* True: something was dropped, and the question can be asked again. */
static bool ask_what_to_drop(chat_state *s, const weft_error *why) {
  uint32_t n = weft_conversation_questions(&s->conversation);
  (void)weft_cli_fail(0, "%s", why->text);
  if (n < 2) return false;
  weft_text words = {0}, lines = {0};
  weft_text_printf(
      &words,
      "The conversation has %u questions. Drop the (o)ldest, the older (h)alf, (a)ll before this one, or (n)othing?",
      n);
  weft_terminal_measure(&s->terminal);
  if (weft_text_status(&words) == WEFT_OK) weft_terminal_wrap(&lines, words.bytes, 0, 0, s->terminal.n_columns);
  if (weft_text_status(&lines) == WEFT_OK && lines.bytes != NULL) (void)fputs(lines.bytes, stdout);
  (void)fflush(stdout);
  weft_text_free(&words);
  weft_text_free(&lines);
  char letter;
  while ((letter = read_drop(s)) == 0) {
    (void)printf("Say o, h, a or n; the question that waits is asked again after that.\n");
    (void)fflush(stdout);
  }
  uint32_t wanted = letter == 'o' ? 1 : letter == 'h' ? n / 2 : letter == 'a' ? n - 1 : 0;
  uint32_t dropped = weft_conversation_drop(&s->conversation, wanted);
  if (dropped > 0) (void)printf("%u of %u dropped.\n", dropped, n);
  return dropped > 0;
}

static void keep_answer(chat_state *s) {
  if (weft_text_status(&s->answer) == WEFT_OK &&
      weft_conversation_add(&s->conversation, "assistant", s->answer.bytes) == WEFT_OK)
    return;
  weft_conversation_take_back(&s->conversation);
  fail_chat(s, WEFT_EXIT_RUNTIME, "out of memory: this question and its answer are not kept");
}

static void answer_question(chat_state *s, const char *question) {
  weft_error why = {{0}};
  if (weft_conversation_add(&s->conversation, "user", question) != WEFT_OK) {
    fail_chat(s, WEFT_EXIT_RUNTIME, "out of memory");
    return;
  }
  weft_said said = ask_speaker(s, &why);
  while (said == WEFT_SAID_TOO_LONG && s->talks && ask_what_to_drop(s, &why)) said = ask_speaker(s, &why);
  if (said == WEFT_SAID || said == WEFT_SAID_LENGTH || (said == WEFT_SAID_STOPPED && s->answer.n > 0)) {
    keep_answer(s);
    if (s->talks && said == WEFT_SAID_LENGTH)
      (void)weft_cli_fail(0, "the answer ends here: the context is full, or its limit reached (--max-tokens)");
    if (said == WEFT_SAID_STOPPED && !s->talks) s->leaves = true, s->code = WEFT_EXIT_STOPPED;
    return;
  }
  weft_conversation_take_back(&s->conversation);
  if (said == WEFT_SAID_STOPPED && !s->talks) s->leaves = true, s->code = WEFT_EXIT_STOPPED;
  if (said == WEFT_SAID_STOPPED) {
    if (s->talks) (void)printf("Stopped before anything was final: the question is not kept.\n");
    return;
  }
  if (said == WEFT_SAID_TOO_LONG && s->talks) {
    (void)printf("The question was not asked; /clear begins anew.\n");
    return;
  }
  fail_chat(s, said == WEFT_SAID_TOO_LONG ? WEFT_EXIT_USAGE : WEFT_EXIT_RUNTIME, why.text);
}

/* ---- commands ---------------------------------------------------------------------------------- */

static void say_words(const chat_state *s, const char *words) {
  weft_terminal_put(&s->terminal, words, strlen(words), false);
}

static const char *name_of_mode(weft_mode mode) {
  return mode == WEFT_MODE_DIFFUSION ? "diffusion" : mode == WEFT_MODE_AUTOREGRESSIVE ? "autoregressive" : "auto";
}

static void run_help(chat_state *s, const char *rest);

static void run_clear(chat_state *s, const char *rest) {
  (void)rest;
  weft_conversation_clear(&s->conversation);
  (void)printf("Everything before is forgotten%s.\n", s->conversation.n > 0 ? " but the system text" : "");
}

static void run_system(chat_state *s, const char *rest) {
  bool none = strcmp(rest, "none") == 0;
  if (rest[0] != 0 && weft_conversation_set_system(&s->conversation, none ? "" : rest) != WEFT_OK) {
    (void)weft_cli_fail(0, "out of memory: the system text is as before");
    return;
  }
  bool has = s->conversation.n > 0 && strcmp(s->conversation.turn[0].role, "system") == 0;
  (void)printf("The system text is %s", has ? "now: " : "empty");
  if (has) say_words(s, s->conversation.turn[0].content);
  (void)printf(".\n");
}

static void run_mode(chat_state *s, const char *rest) {
  weft_mode mode;
  if (rest[0] != 0 && weft_cli_mode(rest, &mode) == 0) s->mode = mode;
  (void)printf("The mode is %s.\n", name_of_mode(s->mode));
}

static void run_temperature(chat_state *s, const char *rest) {
  static const weft_range range = {WEFT_RANGE_TEMPERATURE};
  const char *behind;
  double number;
  if (strcmp(rest, "model") == 0) {
    s->temperature = (float)range.initial;
  } else if (rest[0] != 0) {
    if (weft_range_read(rest, &number, &behind) && *behind == 0 && weft_range_has(&range, number)) {
      s->temperature = (float)number;
    } else {
      char words[WEFT_RANGE_TEXT];
      (void)weft_cli_fail(0, "/temperature: '%s' must be a number %s, or `model`", rest,
                          weft_range_text(&range, words));
      return;
    }
  }
  if (s->temperature < 0.0f) (void)printf("The temperature is the model's.\n");
  if (s->temperature >= 0.0f) (void)printf("The temperature is %g.\n", (double)s->temperature);
}

static void run_save(chat_state *s, const char *rest) {
  weft_error error;
  if (rest[0] == 0) {
    (void)weft_cli_fail(0, "/save FILE: name a file");
  } else if (weft_conversation_save(&s->conversation, rest, &error) != WEFT_OK) {
    (void)weft_cli_fail(0, "/save: %s", error.text);
  } else {
    (void)printf("Saved.\n");
  }
}

static void run_load(chat_state *s, const char *rest) {
  weft_error error;
  if (rest[0] == 0) {
    (void)weft_cli_fail(0, "/load FILE: name a file");
  } else if (weft_conversation_load(&s->conversation, rest, &error) != WEFT_OK) {
    (void)weft_cli_fail(0, "/load: %s", error.text);
  } else {
    (void)printf("%u questions and answers are loaded.\n", weft_conversation_questions(&s->conversation));
  }
}

static void put_model(const chat_state *s, uint32_t index) {
  weft_text about = {0};
  const char *name = s->speaker->model_name(s->speaker, index);
  weft_terminal_put(&s->terminal, name, strlen(name), true);
  s->speaker->describe(s->speaker, index, &about);
  if (about.n > 0 && weft_text_status(&about) == WEFT_OK) {
    (void)printf(": ");
    say_words(s, about.bytes);
  }
  (void)printf("\n");
  weft_text_free(&about);
}

static void run_model(chat_state *s, const char *rest) {
  const char *name;
  weft_nearest nearest = weft_nearest_to(rest, strlen(rest));
  for (uint32_t i = 0; (name = s->speaker->model_name(s->speaker, i)) != NULL; i++) {
    weft_nearest_try(&nearest, name);
    if (rest[0] == 0) {
      (void)printf("%s ", i == s->model ? "*" : " ");
      put_model(s, i);
    } else if (strcmp(name, rest) == 0) {
      s->model = i;
      (void)printf("The model is ");
      put_model(s, i);
      return;
    }
  }
  if (rest[0] == 0) return;
  (void)weft_cli_fail(0, "no model is named '%s'%s%s%s", rest, nearest.best == NULL ? "" : ": did you mean '",
                      nearest.best == NULL ? "" : nearest.best, nearest.best == NULL ? "; /model lists them" : "'?");
}

static void run_exit(chat_state *s, const char *rest) {
  (void)rest;
  s->leaves = true;
}

static const struct {
  const char *name, *argument, *help;
  void (*run)(chat_state *s, const char *rest);
} commands[] = {
    {"/help", "", "this list", run_help},
    {"/clear", "", "forget what was said", run_clear},
    {"/system", "[TEXT]", "the system text, or a new one; `none` takes it away", run_system},
    {"/mode", "[NAME]", "auto, autoregressive (ar) or diffusion", run_mode},
    {"/temperature", "[X]", "0 is greedy; `model` is the model's own", run_temperature},
    {"/model", "[NAME]", "the models, or another one for what follows", run_model},
    {"/save", "FILE", "write the conversation to a file, as JSON", run_save},
    {"/load", "FILE", "go on with a conversation from a file", run_load},
    {"/exit", "", "leave, as Ctrl-D does", run_exit},
    {"/?", "", NULL, run_help},
    {"/quit", "", NULL, run_exit},
    {"/bye", "", NULL, run_exit},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void run_help(chat_state *s, const char *rest) {
  (void)rest;
  for (uint32_t i = 0; i < N_COMMANDS; i++) {
    char left[40];
    if (commands[i].help == NULL) continue;
    (void)snprintf(left, sizeof left, "%s %s", commands[i].name, commands[i].argument);
    bool narrow = s->terminal.n_columns > 0 && s->terminal.n_columns < 60;
    (void)printf(narrow ? "%s\n  %s\n" : "  %-20s %s\n", left, commands[i].help);
  }
  (void)printf("A backslash at the end of a line continues it; // begins a question with a slash.\n");
}

static void run_slash(chat_state *s, char *text) {
  size_t n_text = strlen(text);
  while (n_text > 0 && strchr(" \t\n", text[n_text - 1]) != NULL) text[--n_text] = 0;
  size_t n = strcspn(text, " \t\n");
  const char *rest = text + n + strspn(text + n, " \t\n");
  weft_nearest nearest = weft_nearest_to(text, n);
  for (uint32_t i = 0; i < N_COMMANDS; i++) {
    weft_nearest_try(&nearest, commands[i].name);
    if (strlen(commands[i].name) != n || strncmp(commands[i].name, text, n) != 0) continue;
    commands[i].run(s, rest);
    return;
  }
  if (nearest.best != NULL) {
    (void)weft_cli_fail(0, "no command is named '%.*s': did you mean %s?", (int)n, text, nearest.best);
  } else {
    (void)weft_cli_fail(0, "no command is named '%.*s': /help lists them, and // begins a question with a slash",
                        (int)n, text);
  }
}

/* Words behind the commands that take one of a few, and the commands themselves. */
static void complete_text(void *self, const char *text, weft_text *out) {
  const chat_state *s = self;
  const char *blank = strchr(text, ' '), *word = blank == NULL ? text : blank + 1, *name;
  if (text[0] != '/' || (blank != NULL && strchr(blank + 1, ' ') != NULL)) return;
  size_t n = strlen(word), n_command = blank == NULL ? 0 : (size_t)(blank - text);
  if (blank == NULL) {
    for (uint32_t i = 0; i < N_COMMANDS; i++) {
      if (strncmp(commands[i].name, word, n) == 0) weft_text_printf(out, "%s\n", commands[i].name);
    }
  } else if (n_command == strlen("/model") && strncmp(text, "/model", n_command) == 0) {
    for (uint32_t i = 0; (name = s->speaker->model_name(s->speaker, i)) != NULL; i++) {
      if (strncmp(name, word, n) == 0 && strchr(name, '\n') == NULL) weft_text_printf(out, "%s\n", name);
    }
  } else if (n_command == strlen("/mode") && strncmp(text, "/mode", n_command) == 0) {
    for (int mode = 0; mode <= WEFT_MODE_DIFFUSION; mode++) {
      if (strncmp(name_of_mode(mode), word, n) == 0) weft_text_printf(out, "%s\n", name_of_mode(mode));
    }
  }
}

/* ---- the conversation -------------------------------------------------------------------------- */

static void greet_person(const chat_state *s) {
  (void)printf("weft %s, ", weft_version());
  put_model(s, s->model);
  (void)printf("/help lists commands. Ctrl-C ends an answer, Ctrl-D leaves.\n");
}

static void take_line(chat_state *s, char *text) {
  text += strspn(text, " \t\n");
  if (text[0] == 0) return;
  if (text[0] == '/' && text[1] != '/') {
    run_slash(s, text);
  } else {
    answer_question(s, text[0] == '/' ? text + 1 : text);
  }
  (void)fflush(stdout); /* a terminal that is gone shows at the end */
}

static void talk_until_end(chat_state *s) {
  weft_text text = {0};
  bool pressed = false; /* Ctrl-C, and nothing since */
  if (s->talks) greet_person(s);
  while (!s->leaves) {
    weft_line_end end = weft_line_read(s->line, "> ", true, &text);
    if (end == WEFT_LINE_CLOSED) break;
    if (end == WEFT_LINE_INTERRUPTED) {
      if (pressed || !s->talks) s->code = WEFT_EXIT_STOPPED;
      if (pressed || !s->talks) break;
      (void)printf("Ctrl-C again, Ctrl-D or /exit leaves.\n");
      pressed = true;
      continue;
    }
    pressed = false;
    if (weft_text_status(&text) == WEFT_OK && text.bytes != NULL) take_line(s, text.bytes);
  }
  weft_text_free(&text);
}

int weft_cli_chat(const weft_config *config) {
  chat_state s = {.config = config, .temperature = config->sampling.temperature};
  int code = weft_cli_mode(config->mode, &s.mode);
  if (code == 0)
    code = config->url != NULL ? weft_speaker_open_remote(config, &s.speaker)
                               : weft_speaker_open_local(config, &s.speaker);
  if (code != 0) return code;
  s.terminal = weft_terminal_stdout(config);
  s.talks = s.terminal.is_terminal && isatty(STDIN_FILENO) == 1;
  char *history = s.talks ? weft_config_state_file("chat-history") : NULL;
  weft_interrupts_catch();
  s.line = weft_line_open(&s.terminal, history, complete_text, &s);
  bool good = s.line != NULL;
  if (good && config->system != NULL) good = weft_conversation_set_system(&s.conversation, config->system) == WEFT_OK;
  if (good) {
    talk_until_end(&s);
  } else {
    s.code = weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory");
  }
  weft_line_close(s.line);
  weft_conversation_free(&s.conversation);
  weft_text_free(&s.answer);
  s.speaker->close(s.speaker);
  weft_free(history);
  return s.code;
}
