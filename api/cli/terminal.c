/* SPDX-License-Identifier: MIT */
#include "api/cli/terminal.h"

#include <langinfo.h>
#include <locale.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/text.h"

/* As the user's locale says, without setting it for the program. */
static bool takes_utf8(void) {
  locale_t locale = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
  if (locale == (locale_t)0) return false;
  bool utf8 = strcmp(nl_langinfo_l(CODESET, locale), "UTF-8") == 0;
  freelocale(locale);
  return utf8;
}

uint32_t weft_terminal_width(int descriptor) {
  struct winsize size;
  return isatty(descriptor) == 1 && ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

void weft_terminal_measure(weft_terminal *t) {
  struct winsize size;
  if (!t->is_terminal || ioctl(fileno(t->to), TIOCGWINSZ, &size) != 0) return;
  t->n_columns = size.ws_col;
  t->n_rows = size.ws_row;
}

weft_terminal weft_terminal_stdout(const weft_config *config) {
  weft_terminal t = {.to = stdout, .is_terminal = isatty(STDOUT_FILENO) == 1};
  t.is_ascii = t.is_terminal && !takes_utf8();
  t.moves = t.is_terminal && config != NULL && !config->terminal_is_dumb;
  t.colours = t.moves && !config->no_colour;
  weft_terminal_measure(&t);
  return t;
}

/* Bytes of the character that text begins with, and whether a terminal may have it. U+0080 to U+009F are commands
 * to some. */
static size_t read_character(const weft_terminal *t, const char *text, size_t n, bool *good) {
  uint32_t character = 0;
  size_t length = weft_utf8_decode(text, n, &character);
  *good = length > 0 && character >= 0x20 && (character < 0x7F || (character >= 0xA0 && !t->is_ascii));
  return length > 0 ? length : 1;
}

void weft_terminal_put(const weft_terminal *t, const char *text, size_t n, bool one_line) {
  if (!t->is_terminal) {
    (void)fwrite(text, 1, n, t->to); /* a reader that is gone shows at the end */
    return;
  }
  for (size_t i = 0; i < n;) {
    bool good, blank = text[i] == '\n' || text[i] == '\t';
    size_t length = read_character(t, text + i, n - i, &good);
    if (blank) {
      (void)fputc(one_line ? ' ' : text[i], t->to);
    } else if (good) {
      (void)fwrite(text + i, 1, length, t->to);
    } else {
      (void)fputc('?', t->to);
    }
    i += length;
  }
}

size_t weft_terminal_columns(const char *text, size_t n) {
  size_t columns = 0;
  for (size_t i = 0; i < n;) {
    uint32_t character;
    size_t length = weft_utf8_decode(text + i, n - i, &character);
    columns += text[i] == '\t' ? 8 : length > 1 ? 2 : 1;
    i += length > 0 ? length : 1;
  }
  return columns;
}

const char *weft_terminal_style(const weft_terminal *t, weft_style style) {
  static const char *const styles[] = {"\033[0m",  "\033[1m",  "\033[2m",  "\033[90m",
                                       "\033[31m", "\033[32m", "\033[33m", "\033[36m"};
  return t->colours ? styles[style] : "";
}

void weft_terminal_wrap(weft_text *out, const char *words, uint32_t column, uint32_t indent, uint32_t n_columns) {
  bool first = true;
  while (*words != 0) {
    size_t n = strcspn(words, " ");
    if (!first && n_columns > 0 && column + 1 + n > n_columns) {
      weft_text_puts(out, "\n");
      for (uint32_t i = 0; i < indent; i++) weft_text_puts(out, " ");
      column = indent;
    } else if (!first) {
      weft_text_puts(out, " ");
      column += 1;
    }
    weft_text_append(out, words, n);
    column += (uint32_t)n;
    words += n;
    while (*words == ' ') words++;
    first = false;
  }
  weft_text_puts(out, "\n");
}
