/* SPDX-License-Identifier: MIT */
/* The bytes of an HTTP/1.1 request: its head and its chunks. Knows no socket. Any thread.
 *
 * Law: what two programs could read differently is refused, never guessed (RFC 9112, sections 2.2, 5 and 6): lines end
 * in CRLF, no control character is anywhere, a name touches its colon, no line is folded, and there is one Host, at
 * most one Content-Length and never both a Content-Length and chunks. How the bytes were cut on their way changes
 * nothing: the same bytes give the same answer in one piece and one by one. Nothing here allocates or reads past what
 * it was given. */
#ifndef WEFT_API_HTTP_HTTP_PARSE_H
#define WEFT_API_HTTP_HTTP_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  WEFT_HEAD_BYTES_MAX = 32768,  /* of a whole head: beyond it 431 */
  WEFT_TARGET_BYTES_MAX = 8192, /* of its first line: beyond it 414 */
  WEFT_FIELDS_MAX = 100,
  WEFT_METHOD_BYTES_MAX = 16
};

/* Why the bytes are no request. code 0: nothing is wrong. word and message are static. */
typedef struct weft_http_fault {
  int code;
  const char *word, *message;
} weft_http_fault;

typedef enum weft_parse {
  WEFT_PARSE_MORE, /* good so far, and not all */
  WEFT_PARSE_DONE,
  WEFT_PARSE_BAD /* fault says why */
} weft_parse;

/* Looks for the end of a head. Zero-initialise. at: how many bytes were looked at; when the scan is DONE, the bytes of
 * the head. */
typedef struct weft_head_scan {
  size_t at, line; /* line: where the line began */
  uint32_t n_lines;
} weft_head_scan;

/* bytes: all that came so far, from the head's first byte on. Each byte is looked at once, however often this is
 * called. */
weft_parse weft_http_scan(const char *bytes, size_t n, weft_head_scan *scan, weft_http_fault *fault);

typedef struct weft_http_field {
  const char *name, *value;
} weft_http_field;

/* Texts point into the bytes that were parsed. */
typedef struct weft_http_head {
  const char *method, *path; /* path: percent signs decoded, without the query */
  const char *query;         /* behind its question mark, as it was sent; NULL: none was */
  const char *host;          /* NULL: none was sent, which HTTP/1.0 may */
  uint32_t minor;            /* HTTP/1.minor */
  bool keep_alive, chunked, expects_continue;
  uint64_t length; /* of the body, unless it comes in chunks */
  uint32_t n_fields;
  weft_http_field field[WEFT_FIELDS_MAX];
} weft_http_head;

/* bytes[0..n): a head that weft_http_scan found; it is changed, and head points into it. DONE or BAD. */
weft_parse weft_http_parse(char *bytes, size_t n, weft_http_head *head, weft_http_fault *fault);
/* The value of a header; NULL when it is absent, the first when there are several. */
const char *weft_http_field_of(const weft_http_head *head, const char *name);
/* The value of the index-th field of this name; NULL: there are no more. */
const char *weft_http_field_at(const weft_http_head *head, const char *name, uint32_t index);

/* Where a body in chunks is. Zero-initialise. */
typedef struct weft_chunks {
  int phase;
  uint64_t left;              /* bytes of this chunk */
  uint32_t n_digits, n_extra; /* n_extra: bytes of extensions and trailers so far, which are skipped */
} weft_chunks;

/* Takes from bytes[0..n), *used of them; data[0..n_data) are bytes of the body among them. MORE: call again with the
 * rest or with what comes next. DONE: the body is over, the rest belongs to the next request. */
weft_parse weft_http_unchunk(weft_chunks *chunks, const char *bytes, size_t n, size_t *used, const char **data,
                             size_t *n_data, weft_http_fault *fault);

#endif
