/* SPDX-License-Identifier: MIT */
#include "api/cli/line.h"

#include <errno.h>
#include <locale.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/cli/interrupt.h"
#include "base/memory.h"

#ifdef WEFT_EDITLINE
#include <histedit.h>
#endif

enum { HISTORY_LINES = 1000, PROMPT_MAX = 64 };

#define PASTE_ON  "\033[?2004h"
#define PASTE_OFF "\033[?2004l"

struct weft_line {
  weft_terminal terminal;
  const char *history_file;
  weft_line_completer complete;
  void *self;
  weft_text plain; /* bytes that were read and not given yet; without an editor */
  bool interrupted;
#ifdef WEFT_EDITLINE
  EditLine *editor; /* NULL: lines are read as they come */
  HistoryW *history;
  wchar_t prompt[PROMPT_MAX];
#endif
};

/* Waits until standard input can be read; false: Ctrl-C. */
static bool wait_for_input(weft_line *line, bool *resized) {
  for (;;) {
    struct pollfd wait[] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = weft_interrupts_fd(), .events = POLLIN}};
    int ready = poll(wait, 2, -1);
    if (weft_interrupts_take()) {
      line->interrupted = true;
      return false;
    }
    if (weft_resizes_take()) {
      *resized = true;
      return true;
    }
    if (ready > 0 && wait[0].revents != 0) return true;
  }
}

/* What a line may have. */
static bool is_text(uint32_t character) {
  return character == '\n' || character == '\t' || (character >= 0x20 && !(character >= 0x7F && character < 0xA0));
}

#ifdef WEFT_EDITLINE

/* ---- with an editor ---------------------------------------------------------------------------- */

static weft_line *line_of(EditLine *editor) {
  void *self = NULL;
  (void)el_wget(editor, EL_CLIENTDATA, &self); /* was set at open */
  return self;
}

/* A character from standard input; bytes that are none are shown as '?'. Returns 0 at the end, -1 on Ctrl-C. */
static int read_key(EditLine *editor, wchar_t *out) {
  weft_line *line = line_of(editor);
  char bytes[4];
  uint32_t character = 0;
  for (size_t n = 0; n < sizeof bytes;) {
    bool resized = false;
    if (!wait_for_input(line, &resized)) return -1;
    if (resized) {
      el_resize(editor);
      continue;
    }
    ssize_t got = read(STDIN_FILENO, &bytes[n], 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return 0;
    n += 1;
    if (weft_utf8_decode(bytes, n, &character) > 0) {
      *out = line->terminal.is_ascii && character > 0x7F ? L'?' : (wchar_t)character;
      return 1;
    }
    if (weft_utf8_complete(bytes, n) == n) break; /* can never become a character */
  }
  *out = L'?';
  return 1;
}

static wchar_t *tell_prompt(EditLine *editor) {
  return line_of(editor)->prompt;
}

/* What the terminal sends between the marks of a paste is text, whatever it is. */
static unsigned char take_paste(EditLine *editor, int key) {
  static const wchar_t mark[] = L"\033[201~";
  wchar_t text[256], c;
  size_t n = 0, n_mark = 0;
  (void)key;
  while (el_wgetc(editor, &c) == 1) {
    n_mark = c == mark[n_mark] ? n_mark + 1 : c == mark[0] ? 1 : 0;
    if (mark[n_mark] == 0) break;
    if (n_mark > 0) continue;
    if (c == L'\r') c = L'\n';
    if (is_text((uint32_t)c)) text[n++] = c;
    if (n + 1 < sizeof text / sizeof *text) continue;
    text[n] = 0;
    if (el_winsertstr(editor, text) != 0) return CC_ERROR;
    n = 0;
  }
  text[n] = 0;
  if (n > 0 && el_winsertstr(editor, text) != 0) return CC_ERROR;
  return CC_REFRESH;
}

static unsigned char clear_line(EditLine *editor, int key) {
  (void)key;
  line_of(editor)->interrupted = true;
  return CC_EOF;
}

static void narrow_text(const wchar_t *text, size_t n, weft_text *out) {
  for (size_t i = 0; i < n; i++) {
    char bytes[4];
    uint32_t c = (uint32_t)text[i];
    bool good = is_text(c) && c < 0x110000 && (c < 0xD800 || c > 0xDFFF);
    if (good) weft_text_append(out, bytes, weft_utf8_encode(c, bytes));
  }
  weft_text_puts(out, "");
}

static bool widen_text(const char *text, size_t n, wchar_t *out, size_t n_out) {
  size_t k = 0;
  for (size_t i = 0; i < n;) {
    uint32_t character;
    size_t length = weft_utf8_decode(text + i, n - i, &character);
    if (length == 0 || k + 1 >= n_out) return false;
    out[k++] = (wchar_t)character;
    i += length;
  }
  out[k] = 0;
  return true;
}

/* How many first bytes all candidates, one a line, have in common. */
static size_t common_bytes(const char *list) {
  size_t n = strcspn(list, "\n");
  for (const char *at = list; *at != 0; at += strcspn(at, "\n") + 1) {
    size_t k = 0;
    while (k < n && at[k] == list[k]) k++;
    n = k;
  }
  return weft_utf8_complete(list, n);
}

static void show_candidates(const weft_line *line, const char *list) {
  (void)fputc('\n', line->terminal.to);
  for (const char *at = list; *at != 0;) {
    size_t n = strcspn(at, "\n");
    weft_terminal_put(&line->terminal, at, n, true);
    (void)fputs("  ", line->terminal.to);
    at += n + 1;
  }
  (void)fputc('\n', line->terminal.to);
  (void)fflush(line->terminal.to);
}

static unsigned char complete_word(EditLine *editor, int key) {
  weft_line *line = line_of(editor);
  const LineInfoW *info = el_wline(editor);
  weft_text text = {0}, list = {0};
  unsigned char done = CC_ERROR;
  wchar_t more[256];
  (void)key;
  narrow_text(info->buffer, (size_t)(info->cursor - info->buffer), &text);
  if (line->complete != NULL && weft_text_status(&text) == WEFT_OK) line->complete(line->self, text.bytes, &list);
  if (list.n > 0 && weft_text_status(&list) == WEFT_OK) {
    const char *blank = strrchr(text.bytes, ' ');
    size_t n_word = blank == NULL ? text.n : strlen(blank + 1), n_common = common_bytes(list.bytes);
    bool one = list.bytes[strcspn(list.bytes, "\n") + 1] == 0;
    bool fits = n_common > n_word && widen_text(list.bytes + n_word, n_common - n_word, more, 254);
    if (fits && one) (void)wcscat(more, L" ");
    if (fits && el_winsertstr(editor, more) == 0) {
      done = CC_REFRESH;
    } else if (!one) {
      show_candidates(line, list.bytes);
      done = CC_REDISPLAY;
    }
  }
  weft_text_free(&text);
  weft_text_free(&list);
  return done;
}

static bool open_editor(weft_line *line) {
  HistEventW event;
  (void)setlocale(LC_CTYPE, ""); /* the editor asks it how wide characters are */
  line->editor = el_init("weft", stdin, stdout, stderr);
  if (line->editor == NULL) return false;
  line->history = history_winit();
  (void)el_wset(line->editor, EL_CLIENTDATA, line);
  (void)el_wset(line->editor, EL_EDITOR, L"emacs");
  (void)el_wset(line->editor, EL_PROMPT, tell_prompt);
  (void)el_wset(line->editor, EL_GETCFN, read_key);
  (void)el_wset(line->editor, EL_ADDFN, L"weft-paste", L"take a paste", take_paste);
  (void)el_wset(line->editor, EL_ADDFN, L"weft-complete", L"complete a word", complete_word);
  (void)el_wset(line->editor, EL_ADDFN, L"weft-clear", L"drop the line", clear_line);
  (void)el_wset(line->editor, EL_BIND, L"\\e[200~", L"weft-paste", NULL);
  (void)el_wset(line->editor, EL_BIND, L"^I", L"weft-complete", NULL);
  (void)el_wset(line->editor, EL_BIND, L"^C", L"weft-clear", NULL);
  (void)el_wset(line->editor, EL_BIND, L"^R", L"em-inc-search-prev", NULL);
  if (line->history == NULL) return true;
  (void)history_w(line->history, &event, H_SETSIZE, HISTORY_LINES);
  (void)history_w(line->history, &event, H_SETUNIQUE, 1);
  (void)el_wset(line->editor, EL_HIST, history_w, line->history);
  if (line->history_file != NULL) (void)history_w(line->history, &event, H_LOAD, line->history_file); /* none is none */
  return true;
}

static weft_line_end read_edited(weft_line *line, const char *prompt, bool keep, weft_text *out) {
  int n = 0;
  if (!widen_text(prompt, strlen(prompt), line->prompt, PROMPT_MAX)) line->prompt[0] = 0;
  (void)fputs(PASTE_ON, stdout);
  (void)fflush(stdout);
  const wchar_t *text = el_wgets(line->editor, &n);
  (void)fputs(PASTE_OFF, stdout);
  if (line->interrupted || text == NULL || n <= 0) (void)fputc('\n', stdout);
  (void)fflush(stdout);
  if (line->interrupted) return WEFT_LINE_INTERRUPTED;
  if (text == NULL || n <= 0) return WEFT_LINE_CLOSED;
  if (text[n - 1] == L'\n') n -= 1;
  narrow_text(text, (size_t)n, out);
  HistEventW event;
  bool blank = out->bytes == NULL || out->bytes[strspn(out->bytes, " \t\n")] == 0;
  if (keep && !blank && line->history != NULL) (void)history_w(line->history, &event, H_ENTER, text);
  return WEFT_LINE_READ;
}

/* Each folder of the path is made where it is missing, for the user alone. */
static void make_folders(const char *path) {
  weft_text name = {0};
  weft_text_puts(&name, path);
  if (weft_text_status(&name) == WEFT_OK) {
    for (char *c = name.bytes + 1; (c = strchr(c, '/')) != NULL; c++) {
      *c = 0;
      (void)mkdir(name.bytes, 0700); /* there already, or the file cannot be written, which is not asked for */
      *c = '/';
    }
  }
  weft_text_free(&name);
}

static void close_editor(weft_line *line) {
  HistEventW event;
  if (line->history != NULL && line->history_file != NULL) {
    make_folders(line->history_file);
    mode_t kept = umask(0077);                                          /* what people say is theirs */
    (void)history_w(line->history, &event, H_SAVE, line->history_file); /* a history that cannot be kept is missed */
    (void)umask(kept);
  }
  if (line->editor != NULL) el_end(line->editor);
  if (line->history != NULL) history_wend(line->history);
}

#else

static bool open_editor(weft_line *line) {
  (void)line;
  return false;
}

static void close_editor(weft_line *line) {
  (void)line;
}

#endif

/* ---- as it comes ------------------------------------------------------------------------------- */

/* Bytes that are no UTF-8 become U+FFFD, control characters go. */
static void keep_text(const char *bytes, size_t n, weft_text *out) {
  for (size_t i = 0; i < n;) {
    uint32_t character;
    size_t length = weft_utf8_decode(bytes + i, n - i, &character);
    if (length == 0) {
      weft_utf8_repair(bytes + i, 1, out);
    } else if (is_text(character)) {
      weft_text_append(out, bytes + i, length);
    }
    i += length > 0 ? length : 1;
  }
  weft_text_puts(out, "");
}

/* What was typed, up to a newline or the end. */
static weft_line_end read_plain(weft_line *line, const char *prompt, weft_text *out) {
  char piece[4096];
  const char *newline;
  if (line->terminal.is_terminal && isatty(STDIN_FILENO) == 1) {
    (void)fputs(prompt, stdout);
    (void)fflush(stdout);
  }
  weft_text_puts(&line->plain, "");
  while ((newline = memchr(line->plain.bytes, '\n', line->plain.n)) == NULL) {
    bool resized = false;
    if (!wait_for_input(line, &resized)) {
      weft_text_clear(&line->plain);
      (void)fputc('\n', stdout);
      return WEFT_LINE_INTERRUPTED;
    }
    ssize_t n = resized ? -1 : read(STDIN_FILENO, piece, sizeof piece);
    if (resized || (n < 0 && errno == EINTR)) continue;
    if (n <= 0) break;
    weft_text_append(&line->plain, piece, (size_t)n);
    if (weft_text_status(&line->plain) != WEFT_OK) return WEFT_LINE_CLOSED;
  }
  size_t n = newline == NULL ? line->plain.n : (size_t)(newline - line->plain.bytes);
  if (newline == NULL && n == 0) return WEFT_LINE_CLOSED;
  keep_text(line->plain.bytes, n, out);
  size_t taken = newline == NULL ? n : n + 1;
  memmove(line->plain.bytes, line->plain.bytes + taken, line->plain.n - taken);
  line->plain.n -= taken;
  line->plain.bytes[line->plain.n] = 0;
  return WEFT_LINE_READ;
}

weft_line *weft_line_open(const weft_terminal *terminal, const char *history, weft_line_completer complete,
                          void *self) {
  weft_line *line = weft_alloc(1, sizeof *line);
  if (line == NULL) return NULL;
  line->terminal = *terminal;
  line->history_file = history;
  line->complete = complete;
  line->self = self;
  if (terminal->moves && isatty(STDIN_FILENO) == 1) (void)open_editor(line); /* lines can be read without one */
  return line;
}

static weft_line_end read_part(weft_line *line, const char *prompt, bool keep, weft_text *out) {
  line->interrupted = false;
#ifdef WEFT_EDITLINE
  if (line->editor != NULL) return read_edited(line, prompt, keep, out);
#endif
  (void)keep;
  return read_plain(line, prompt, out);
}

weft_line_end weft_line_read(weft_line *line, const char *prompt, bool keep, weft_text *out) {
  weft_text_clear(out);
  weft_line_end end = read_part(line, prompt, keep, out);
  while (end == WEFT_LINE_READ && out->n > 0 && out->bytes[out->n - 1] == '\\') {
    weft_text part = {0};
    out->bytes[out->n - 1] = '\n';
    end = read_part(line, "... ", keep, &part);
    if (end == WEFT_LINE_READ && part.n > 0) weft_text_append(out, part.bytes, part.n);
    weft_text_free(&part);
    if (end == WEFT_LINE_CLOSED) return WEFT_LINE_READ; /* what was typed so far */
  }
  return end;
}

void weft_line_close(weft_line *line) {
  if (line == NULL) return;
  close_editor(line);
  weft_text_free(&line->plain);
  weft_free(line);
}
