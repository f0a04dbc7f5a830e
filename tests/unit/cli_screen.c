/* SPDX-License-Identifier: MIT */
/* What a person sees: a small terminal interprets what the screen sends, and the same terminal that was given
 * nothing but the answer shows the same text. Pseudo-terminals show that the program knows one and draws on it. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pty.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/cli/screen.h"
#include "base/random.h"
#include "tests/support/terminal_screen.h"

enum { EVENTS_MAX = 24, EVENT_BYTES = 600 };

typedef struct screen_event {
  bool canvas;
  char text[EVENT_BYTES];
} screen_event;

typedef struct screen_story {
  uint16_t n_rows, n_columns;
  uint32_t n;
  screen_event event[EVENTS_MAX];
} screen_story;

static const weft_config colourful; /* neither NO_COLOR nor a dumb terminal */

static bool is_ascii(const char *text) {
  for (; *text != 0; text++) {
    if ((unsigned char)*text >= 0x80) return false;
  }
  return true;
}

static void play_on(const screen_story *story, weft_terminal terminal) {
  weft_screen screen;
  weft_screen_begin(&screen, terminal, true);
  for (uint32_t i = 0; i < story->n; i++) {
    const screen_event *e = &story->event[i];
    if (e->canvas) {
      /* by thirds: noise, drawn, accepted */
      size_t n = strlen(e->text), third = n / 3;
      const weft_cell cell[] = {{0, (uint32_t)third, WEFT_CELL_NOISE},
                                {(uint32_t)third, (uint32_t)third, WEFT_CELL_DRAWN},
                                {(uint32_t)(2 * third), (uint32_t)(n - 2 * third), WEFT_CELL_ACCEPTED}};
      const weft_canvas_view view = {.text = e->text,
                                     .n_text = n,
                                     .step = i,
                                     .n_positions = 8,
                                     .cell = cell,
                                     .n_cells = i % 2 == 0 && is_ascii(e->text) ? 3 : 0};
      weft_screen_canvas(&screen, &view);

    } else {
      weft_screen_text(&screen, e->text, strlen(e->text));
    }
  }
  weft_screen_end(&screen);
}

/* What a terminal of the story's size is sent. Each newline arrives as CR LF, as the line discipline of a
 * terminal sends it. */
static void play(const screen_story *story, weft_text *sent) {
  char *written = NULL;
  size_t n = 0;
  FILE *to = open_memstream(&written, &n);
  assert_non_null(to);
  play_on(story, (weft_terminal){.to = to,
                                 .is_terminal = true,
                                 .moves = true,
                                 .colours = true,
                                 .n_columns = story->n_columns,
                                 .n_rows = story->n_rows});
  assert_int_equal(fclose(to), 0);
  for (size_t i = 0; i < n; i++) {
    if (written[i] == '\n') weft_text_puts(sent, "\r");
    weft_text_append(sent, &written[i], 1);
  }
  free(written);
}

static void open_terminal(uint16_t n_rows, uint16_t n_columns, int *master, int *slave) {
  struct winsize size = {.ws_row = n_rows, .ws_col = n_columns};
  assert_int_equal(openpty(master, slave, NULL, NULL, &size), 0);
}

/* The program argv, or the story where argv is NULL. */
static void be_the_child(const screen_story *story, char **argv, int slave) {
  int nowhere = open("/dev/null", O_RDWR);
  (void)dup2(slave, STDOUT_FILENO);
  (void)dup2(nowhere, STDIN_FILENO);
  (void)dup2(nowhere, STDERR_FILENO);
  if (argv != NULL) {
    execv(argv[0], argv);
    _exit(127);
  }
  play_on(story, weft_terminal_stdout(&colourful));
  _exit(0);
}

#define END_MARK "\004the child has ended"

/* What arrives at a pseudo-terminal of the story's size from a child. Another child writes the mark behind it. The
 * terminal stays open here, and is read up to the mark: nothing depends on what a system does when the last writer
 * closes. */
static void run_on_terminal(const screen_story *story, char **argv, weft_text *bytes) {
  int master, slave;
  open_terminal(story->n_rows, story->n_columns, &master, &slave);
  (void)fflush(stdout);
  pid_t watcher = fork();
  assert_true(watcher >= 0);
  if (watcher == 0) {
    pid_t child = fork();
    if (child == 0) be_the_child(story, argv, slave);
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR) continue;
    _exit(write(slave, END_MARK, strlen(END_MARK)) == (ssize_t)strlen(END_MARK) ? 0 : 1);
  }
  char piece[4096], *end = NULL;
  weft_text_puts(bytes, "");
  while ((end = strstr(bytes->bytes, END_MARK)) == NULL) {
    ssize_t n = read(master, piece, sizeof piece);
    if (n < 0 && errno == EINTR) continue;
    assert_true(n > 0);
    weft_text_append(bytes, piece, (size_t)n);
  }
  bytes->n = (size_t)(end - bytes->bytes);
  *end = 0;
  while (waitpid(watcher, NULL, 0) < 0 && errno == EINTR) continue;
  close(master);
  close(slave);
}

static void expect_seen(const screen_story *story, const weft_text *bytes, const char *answer, uint64_t seed) {
  terminal_screen *seen = terminal_open(story->n_rows, story->n_columns),
                  *plain = terminal_open(story->n_rows, story->n_columns);
  weft_text got = {0}, wanted = {0};
  terminal_write(seen, bytes->bytes, bytes->n);
  for (const char *c = answer; *c != 0; c++) {
    if (*c == '\n') terminal_write(plain, "\r\n", 2);
    if (*c == '\n') continue;
    size_t n = 1;
    while ((c[n] & 0xC0) == 0x80) n++;
    terminal_write(plain, c, n);
    c += n - 1;
  }
  if (seen->wrong != NULL) fail_msg("the terminal was sent %s", seen->wrong);
  assert_null(plain->wrong);
  terminal_text(seen, &got);
  terminal_text(plain, &wanted);
  weft_text_puts(&got, "");
  weft_text_puts(&wanted, "");
  if (strcmp(got.bytes, wanted.bytes) != 0) {
    fail_msg("seed %" PRIu64 ": a person sees\n%s\ninstead of\n%s", seed, got.bytes, wanted.bytes);
  }
  weft_text_free(&got);
  weft_text_free(&wanted);
  free(seen);
  free(plain);
}

/* seed: of the story, where it was drawn; 0 else */
static void expect_answer(const screen_story *story, uint64_t seed) {
  weft_text bytes = {0}, answer = {0};
  play(story, &bytes);
  weft_text_puts(&answer, "");
  for (uint32_t i = 0; i < story->n; i++) {
    if (!story->event[i].canvas) weft_text_puts(&answer, story->event[i].text);
  }
  expect_seen(story, &bytes, answer.bytes, seed);
  weft_text_free(&bytes);
  weft_text_free(&answer);
}

/* In memory and on a pseudo-terminal. */
static void expect_on_terminal(const screen_story *story) {
  weft_text sent = {0}, arrived = {0};
  play(story, &sent);
  run_on_terminal(story, NULL, &arrived);
  assert_string_equal(arrived.bytes, sent.bytes);
  weft_text_free(&sent);
  weft_text_free(&arrived);
  expect_answer(story, 0);
}

static void add(screen_story *story, bool canvas, const char *text) {
  screen_event *e = &story->event[story->n++];
  e->canvas = canvas;
  (void)snprintf(e->text, sizeof e->text, "%s", text);
}

static void several_canvases_without_newlines(void **state) {
  (void)state;
  screen_story story = {.n_rows = 24, .n_columns = 80};
  add(&story, true, "noise noise");
  add(&story, true, "the first");
  add(&story, false, "the first canvas,");
  add(&story, true, " noise");
  add(&story, false, " the second,");
  add(&story, true, " more noise");
  add(&story, false, " and the third.");
  expect_on_terminal(&story);
}

static void text_that_ends_in_the_last_column(void **state) {
  (void)state;
  screen_story story = {.n_rows = 10, .n_columns = 20};
  add(&story, false, "twenty characters it");
  add(&story, true, "noise");
  add(&story, false, " goes on");
  expect_on_terminal(&story);
}

static void a_line_longer_than_the_screen(void **state) {
  (void)state;
  screen_story story = {.n_rows = 6, .n_columns = 20};
  for (uint32_t i = 0; i < 5; i++) {
    add(&story, true, "noise that is itself longer than a row of this terminal");
    add(&story, false, "forty characters without any end of line");
  }
  add(&story, false, "\nand a new line,");
  add(&story, true, "noise");
  add(&story, false, " which is short\n");
  expect_on_terminal(&story);
}

static void control_characters_are_not_sent(void **state) {
  (void)state;
  screen_story story = {.n_rows = 10, .n_columns = 40};
  weft_text bytes = {0};
  add(&story, true, "a\033[2Jb\xC2\x9Bzc");
  add(&story, false,
      "a\033[2Jb\xC2\x9B"
      "2Jc\a");
  play(&story, &bytes);
  expect_seen(&story, &bytes, "a?[2Jb?2Jc?", 0);
  weft_text_free(&bytes);
}

static uint32_t draw_number(uint64_t seed, uint64_t at) {
  return (uint32_t)weft_mix64(seed * 1000003 + at);
}

static void draw_text(uint64_t seed, uint64_t at, char *out, size_t n_out) {
  static const char *const piece[] = {"a",
                                      "word ",
                                      "ends. ",
                                      "\n",
                                      "\n\n",
                                      "\t",
                                      "\xE7\x8C\xAB",
                                      "\xC3\xA9",
                                      "\xF0\x9F\x90\xB1",
                                      "longerwordthatwraps"};
  enum { N_PIECES = sizeof piece / sizeof *piece };
  uint32_t n = draw_number(seed, 1000 + at) % 30;
  out[0] = 0;
  for (uint32_t i = 0; i < n; i++) {
    const char *p = piece[draw_number(seed, 10000 + at * 100 + i) % N_PIECES];
    if (strlen(out) + strlen(p) < n_out) strcat(out, p);
  }
}

static void random_stories(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 300; seed++) {
    screen_story story = {.n_rows = (uint16_t)(4 + draw_number(seed, 0) % 20),
                          .n_columns = (uint16_t)(20 + draw_number(seed, 1) % 60)};
    uint32_t n = 2 + draw_number(seed, 2) % (EVENTS_MAX - 2);
    for (uint32_t i = 0; i < n; i++) {
      char text[EVENT_BYTES];
      draw_text(seed, i, text, sizeof text);
      if (text[0] != 0) add(&story, draw_number(seed, 10 + i) % 2 == 0, text);
    }
    expect_answer(&story, seed);
  }
}

/* What is on the screen after a text, a canvas, and a change of size where n_columns_then is not 0. */
static void see_canvas(uint16_t n_columns, uint16_t n_rows, const weft_canvas_view *view, uint16_t n_columns_then,
                       weft_text *out) {
  weft_screen screen;
  weft_text sent = {0};
  char *written = NULL;
  size_t n = 0;
  FILE *to = open_memstream(&written, &n);
  assert_non_null(to);
  weft_screen_begin(
      &screen, (weft_terminal){.to = to, .is_terminal = true, .moves = true, .n_columns = n_columns, .n_rows = n_rows},
      true);
  weft_screen_text(&screen, "first\nso: ", 10);
  weft_screen_canvas(&screen, view);
  if (n_columns_then > 0) {
    weft_screen_resize(&screen, n_columns_then, n_rows);
    weft_screen_canvas(&screen, view);
    n_columns = n_columns_then;
  }
  assert_int_equal(fflush(to), 0);
  size_t from = 0;
  for (size_t i = 0; i + 3 < n; i++) from = memcmp(written + i, "\033[2J", 4) == 0 ? i + 4 : from; /* cleared */
  for (size_t i = from; i < n; i++) {
    if (written[i] == '\n') weft_text_puts(&sent, "\r");
    weft_text_append(&sent, &written[i], 1);
  }
  terminal_screen *seen = terminal_open(n_rows, n_columns);
  terminal_write(seen, sent.bytes, sent.n);
  if (seen->wrong != NULL) fail_msg("the terminal was sent %s", seen->wrong);
  terminal_text(seen, out);
  free(seen);
  weft_screen_end(&screen);
  assert_int_equal(fclose(to), 0);
  free(written);
  weft_text_free(&sent);
}

/* All rows of a canvas are drawn, as far as the screen has room, above a line of its own that says how far it is. */
static void all_rows_of_a_canvas(void **state) {
  static const char text[] = "one\ntwo\nthree\nfour\nfive";
  const weft_canvas_view view = {
      .text = text, .n_text = strlen(text), .step = 3, .n_steps = 48, .accepted = 9, .n_positions = 64};
  static const struct {
    uint16_t n_columns, n_rows, then;
    const char *seen;
  } table[] = {{80, 24, 0, "first\nso: one\ntwo\nthree\nfour\nfive\n[canvas 1, step 4 of 48: 9 of 64 accepted]\n"},
               {20, 24, 0, "first\nso: one\ntwo\nthree\nfour\nfive\n1: 4/48, 9/64\n"},
               {20, 4, 0, "first\nso: one\ntwo\nthree\n1: 4/48, 9/64\n"},
               {80, 24, 20, "first\nso: one\ntwo\nthree\nfour\nfive\n1: 4/48, 9/64\n"},
               {20, 24, 60, "first\nso: one\ntwo\nthree\nfour\nfive\n[canvas 1, step 4 of 48: 9 of 64 accepted]\n"},
               {80, 24, 8, "first\nso:\n"}, /* no room any more */
               {80, 3, 0, "first\nso:\n"}};
  (void)state;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    weft_text got = {0};
    see_canvas(table[i].n_columns, table[i].n_rows, &view, table[i].then, &got);
    assert_string_equal(got.bytes, table[i].seen);
    weft_text_free(&got);
  }
}

static void colours_of_a_canvas(void **state) {
  (void)state;
  const weft_cell cell[] = {{0, 2, WEFT_CELL_ACCEPTED}, {2, 1, WEFT_CELL_DRAWN}, {3, 2, WEFT_CELL_NOISE}};
  const weft_canvas_view view = {.text = "10 \033[", .n_text = 5, .cell = cell, .n_cells = 3, .n_positions = 3};
  for (int coloured = 0; coloured < 2; coloured++) {
    weft_screen screen;
    char *written = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&written, &n);
    assert_non_null(to);
    weft_screen_begin(
        &screen,
        (weft_terminal){
            .to = to, .is_terminal = true, .moves = true, .colours = coloured == 1, .n_columns = 80, .n_rows = 24},
        true);
    weft_screen_canvas(&screen, &view);
    weft_screen_end(&screen);
    assert_int_equal(fclose(to), 0);
    const char *wanted = coloured ? "\033[1m10\033[0m\033[2m \033[0m\033[90m?[\033[0m" : "\033[J10 ?[\n[canvas";
    if (strstr(written, wanted) == NULL) fail_msg("%s", written);
    free(written);
  }
}

/* Without UTF-8 nothing but ASCII is sent. */
static void a_terminal_without_utf8(void **state) {
  (void)state;
  char *written = NULL;
  size_t n = 0;
  FILE *to = open_memstream(&written, &n);
  assert_non_null(to);
  const weft_terminal terminal = {.to = to, .is_terminal = true, .is_ascii = true};
  static const char text[] = "na\xC3\xAFve \xE7\x8C\xAB\n";
  weft_terminal_put(&terminal, text, strlen(text), false);
  assert_int_equal(fclose(to), 0);
  assert_string_equal(written, "na?ve ?\n");
  free(written);
}

/* Standard output is put back before anything is asserted. */
static weft_terminal terminal_of(int fd) {
  int kept = dup(STDOUT_FILENO);
  (void)fflush(stdout);
  (void)dup2(fd, STDOUT_FILENO);
  weft_terminal t = weft_terminal_stdout(&colourful);
  (void)dup2(kept, STDOUT_FILENO);
  close(kept);
  return t;
}

static void standard_output_is_known(void **state) {
  (void)state;
  int master, slave, end[2];
  open_terminal(24, 60, &master, &slave);
  assert_int_equal(pipe(end), 0);
  weft_terminal t = terminal_of(slave), p = terminal_of(end[1]);
  assert_true(t.is_terminal);
  assert_int_equal(t.n_rows, 24);
  assert_int_equal(t.n_columns, 60);
  assert_false(p.is_terminal);
  for (int i = 0; i < 2; i++) close(end[i]);
  close(master);
  close(slave);
}

/* The program draws canvases on a terminal, and the answer that it prints into a pipe stays there. */
static void the_program_draws_canvases(void **state) {
  (void)state;
  char program[] = WEFT_BINARY_DIR "/weft", command[] = "generate", model[] = "-m", live[] = "-s", seed[] = "1";
  char file[] = WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf", chat[] = "--chat", prompt[] = "-p";
  char words[] = "List all numbers from 34 to 49.";
  char *argv[] = {program, command, model, file, live, seed, chat, prompt, words, NULL};
  weft_text bytes = {0}, answer = {0};
  screen_story size = {.n_rows = 24, .n_columns = 60};
  run_on_terminal(&size, argv, &bytes);
  char line[1024];
  (void)snprintf(line, sizeof line, "'%s' generate -m '%s' -s 1 --chat -p '%s' 2>/dev/null", program, file, words);
  FILE *pipe = popen(line, "r");
  assert_non_null(pipe);
  for (size_t n; (n = fread(line, 1, sizeof line, pipe)) > 0;) weft_text_append(&answer, line, n);
  assert_int_equal(pclose(pipe), 0);
  assert_true(answer.n > 40 && answer.n < 60); /* one line of the terminal */
  answer.bytes[answer.n - 1] = 0;              /* its newline */
  if (strstr(bytes.bytes, "accepted]") == NULL || strstr(bytes.bytes, answer.bytes) == NULL) {
    fail_msg("no canvases, or not the answer \"%s\", in what the terminal was sent:\n%s", answer.bytes, bytes.bytes);
  }
  weft_text_free(&bytes);
  weft_text_free(&answer);
}

int main(void) {
  (void)setenv("TERM", "xterm", 1);
  (void)setenv("LC_ALL", "C.UTF-8", 1);
  (void)unsetenv("NO_COLOR");
  const struct CMUnitTest tests[] = {cmocka_unit_test(several_canvases_without_newlines),
                                     cmocka_unit_test(text_that_ends_in_the_last_column),
                                     cmocka_unit_test(a_line_longer_than_the_screen),
                                     cmocka_unit_test(control_characters_are_not_sent),
                                     cmocka_unit_test(random_stories),
                                     cmocka_unit_test(all_rows_of_a_canvas),
                                     cmocka_unit_test(colours_of_a_canvas),
                                     cmocka_unit_test(a_terminal_without_utf8),
                                     cmocka_unit_test(standard_output_is_known),
                                     cmocka_unit_test(the_program_draws_canvases)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
