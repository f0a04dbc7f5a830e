/* SPDX-License-Identifier: MIT */
/* The page at /: the files of api/page/, which the build makes a part of the library (api/page/embed.cmake).
 *
 * Law: the files hold nothing that is secret or of this server, so every client may have them, with or without a key;
 * what the page then asks for needs one as always. A browser that has the page runs its own scripts and styles alone,
 * asks nobody but this server, and shows it in no frame. A client that does not accept text/html gets a line at / in
 * place of the page: programs of Ollama look for it. */
#ifndef WEFT_API_SERVER_PAGE_H
#define WEFT_API_SERVER_PAGE_H

#include "api/server/router.h"

typedef struct weft_page_file {
  const char *name;
  const char *type; /* Content-Type */
  const char *tag;  /* ETag, with its quotes */
  const unsigned char *bytes;
  size_t n;
} weft_page_file;

extern const weft_page_file weft_page_files[]; /* the last one has no name */

/* The file at a path ("/page.css"); NULL: there is none. */
const weft_page_file *weft_page_find(const char *path);
/* Notes what the headers of the request say of the page. Only in begin. */
void weft_page_read_headers(weft_exchange *x);

#endif
