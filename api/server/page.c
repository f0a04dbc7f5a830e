/* SPDX-License-Identifier: MIT */
#include "api/server/page.h"

#include <string.h>

static const char first_file[] = "/index.html";

const weft_page_file *weft_page_find(const char *path) {
  for (const weft_page_file *file = weft_page_files; file->name != NULL; file++) {
    if (path[0] == '/' && strcmp(path + 1, file->name) == 0) return file;
  }
  return NULL;
}

/* ---- what the client says ---- */

/* Whether a part of Accept, "text/html;q=0.9", names the type and does not rule it out. */
static bool names_html(const char *part, size_t n) {
  static const char type[] = "text/html";
  while (n > 0 && (*part == ' ' || *part == '\t')) part += 1, n -= 1;
  if (n < sizeof type - 1 || strncasecmp(part, type, sizeof type - 1) != 0) return false;
  part += sizeof type - 1;
  n -= sizeof type - 1;
  if (n > 0 && strchr(" \t;", *part) == NULL) return false;
  const char *quality = memmem(part, n, "q=0", 3);
  if (quality == NULL) return true;
  const char *at = quality + 3, *end = part + n;
  while (at < end && (*at == '.' || *at == '0')) at += 1;
  return at < end && *at >= '1' && *at <= '9';
}

static bool accepts_html(const char *accept) {
  while (accept != NULL && *accept != 0) {
    size_t n = strcspn(accept, ",");
    if (names_html(accept, n)) return true;
    accept += n + (accept[n] == ',');
  }
  return false;
}

void weft_page_read_headers(weft_exchange *x) {
  const char *path = weft_exchange_path(x), *kept = weft_exchange_header(x, "If-None-Match");
  bool root = strcmp(path, "/") == 0;
  const weft_page_file *file = weft_page_find(root ? first_file : path);
  if (file == NULL) return;
  weft_exchange_note(x)->html = !root || accepts_html(weft_exchange_header(x, "Accept"));
  /* tags have quotes, so one is found whole or not at all */
  weft_exchange_note(x)->kept = kept != NULL && (strcmp(kept, "*") == 0 || strstr(kept, file->tag) != NULL);
}

/* ---- answers ---- */

static void answer_file(weft_exchange *x, const weft_page_file *file) {
  weft_text body = {0};
  weft_exchange_set_header(x, "Content-Security-Policy",
                           "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
                           "img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'; form-action 'none'");
  weft_exchange_set_header(x, "X-Content-Type-Options", "nosniff");
  weft_exchange_set_header(x, "Referrer-Policy", "no-referrer");
  weft_exchange_set_header(x, "ETag", file->tag);
  weft_exchange_set_header(x, "Cache-Control", "no-cache"); /* kept, and asked for again by its tag */
  if (weft_exchange_note(x)->kept) {
    weft_exchange_answer(x, 304, NULL, &body);
    return;
  }
  weft_text_append(&body, (const char *)file->bytes, file->n);
  weft_exchange_answer(x, 200, file->type, &body);
}

void weft_handle_root(weft_server *s, weft_exchange *x) {
  const weft_page_file *file = weft_page_find(first_file);
  weft_text body = {0};
  if (!s->no_page) weft_exchange_set_header(x, "Vary", "Accept, Origin");
  if (!s->no_page && file != NULL && weft_exchange_note(x)->html) {
    answer_file(x, file);
    return;
  }
  weft_text_puts(&body, "weft is here. For programs that look for it: Ollama is running\n");
  weft_exchange_answer(x, 200, "text/plain; charset=utf-8", &body);
}

void weft_handle_page_file(weft_server *s, weft_exchange *x) {
  const weft_page_file *file = weft_page_find(weft_exchange_path(x));
  weft_refusal why;
  if (!s->no_page && file != NULL) {
    answer_file(x, file);
    return;
  }
  (void)weft_refuse(&why, 404, "unknown_url", NULL, "nothing is served at %.256s: the page is off (--no-page)",
                    weft_exchange_path(x));
  weft_exchange_refuse(x, &why);
}
