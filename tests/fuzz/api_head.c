/* SPDX-License-Identifier: MIT */
/* Any bytes as all that a client sends over a connection: heads, bodies by length and in chunks, one request behind another.
 * The same bytes must mean the same requests however they were cut on their way: in one piece, byte by byte, in sevens. What
 * is taken for a request keeps the promises of api/http/http_parse.h; what is not has a code and one line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/http/http_parse.h"
#include "api/http/trace_context.h"
#include "tests/support/fuzz_require.h"

/* What a connection was understood as, folded into a number. */
typedef struct reading {
  uint64_t sum;
  uint32_t n_requests;
  int fault;
} reading;

static void note(reading *r, const char *bytes, size_t n) {
  for (size_t i = 0; i < n; i++) r->sum = (r->sum ^ (unsigned char)bytes[i]) * 0x100000001B3ull;
}

static void note_text(reading *r, const char *text) {
  for (const char *c = text; *c != 0; c++) REQUIRE((unsigned char)*c >= 0x20 ? *c != 0x7F : *c == '\t');
  note(r, text, strlen(text) + 1);
}

/* Whatever the fields hold, what is kept of a trace could stand in a head again. */
static void note_trace(reading *r, const weft_http_head *head) {
  weft_trace_context t;
  weft_trace_context_read(head, &t);
  REQUIRE(t.known ? strlen(t.trace_id) == 32 && strlen(t.parent_id) == 16 : t.trace_id[0] == 0 && t.state[0] == 0);
  REQUIRE(strspn(t.trace_id, "0123456789abcdef") == strlen(t.trace_id) && strlen(t.state) <= WEFT_TRACE_STATE_MAX);
  note_text(r, t.trace_id);
  note_text(r, t.parent_id);
  note_text(r, t.state);
}

static void note_head(reading *r, const weft_http_head *head) {
  uint32_t n_hosts = 0, n_lengths = 0;
  REQUIRE(head->method[0] != 0 && strlen(head->method) <= WEFT_METHOD_BYTES_MAX);
  REQUIRE(head->path[0] == '/' || strcmp(head->path, "*") == 0);
  REQUIRE(head->host != NULL || head->minor == 0);
  REQUIRE(!(head->chunked && head->length > 0) && head->minor <= 1 && head->n_fields <= WEFT_FIELDS_MAX);
  note_text(r, head->method);
  note_text(r, head->path);
  if (head->host != NULL) note_text(r, head->host);
  for (uint32_t i = 0; i < head->n_fields; i++) {
    const char *name = head->field[i].name;
    REQUIRE(name[0] != 0 && strpbrk(name, " \t:") == NULL);
    n_hosts += strcasecmp(name, "Host") == 0;
    n_lengths += strcasecmp(name, "Content-Length") == 0 || strcasecmp(name, "Transfer-Encoding") == 0;
    note_text(r, name);
    note_text(r, head->field[i].value);
  }
  REQUIRE(n_hosts <= 1 && n_lengths <= 1);
  note_trace(r, head);
  r->n_requests += 1;
}

static void note_fault(reading *r, const weft_http_fault *fault) {
  REQUIRE(fault->code >= 400 && fault->code < 600 && fault->word[0] != 0 && strchr(fault->message, '\n') == NULL);
  r->fault = fault->code;
}

/* An exact copy, so that a sanitizer sees a read one byte too far. */
static weft_parse parse_copy(reading *r, const char *bytes, size_t n, weft_http_head *head) {
  weft_http_fault fault = {0};
  char *copy = malloc(n);
  memcpy(copy, bytes, n);
  weft_parse parse = weft_http_parse(copy, n, head, &fault);
  REQUIRE(parse != WEFT_PARSE_MORE);
  if (parse == WEFT_PARSE_DONE) note_head(r, head);
  if (parse == WEFT_PARSE_BAD) note_fault(r, &fault);
  head->method = head->path = head->host = NULL; /* they pointed into the copy */
  free(copy);
  return parse;
}

/* What a connection does with bytes that come piece by piece. */
static reading read_connection(const char *bytes, size_t n, size_t piece) {
  reading r = {.sum = 0xCBF29CE484222325ull};
  weft_head_scan scan = {0};
  weft_chunks chunks = {0};
  weft_http_head head = {0};
  weft_http_fault fault = {0};
  bool in_body = false;
  size_t begin = 0;
  for (size_t seen = piece < n ? piece : n;;) {
    size_t used = 0, n_data = 0;
    const char *data;
    weft_parse parse;
    if (!in_body) {
      parse = weft_http_scan(bytes + begin, seen - begin, &scan, &fault);
      REQUIRE(scan.at <= seen - begin);
      if (parse == WEFT_PARSE_BAD) note_fault(&r, &fault);
      if (parse == WEFT_PARSE_DONE) {
        parse = parse_copy(&r, bytes + begin, scan.at, &head);
        begin += scan.at;
        in_body = true;
        chunks = (weft_chunks){0};
        scan = (weft_head_scan){0};
        if (parse == WEFT_PARSE_DONE) continue;
      }
    } else if (head.chunked) {
      parse = weft_http_unchunk(&chunks, bytes + begin, seen - begin, &used, &data, &n_data, &fault);
      REQUIRE(used <= seen - begin && n_data <= used);
      if (n_data > 0) note(&r, data, n_data);
      if (parse == WEFT_PARSE_BAD) note_fault(&r, &fault);
      begin += used;
      in_body = parse != WEFT_PARSE_DONE;
      if (parse == WEFT_PARSE_DONE || (parse == WEFT_PARSE_MORE && begin < seen)) continue;
    } else {
      used = seen - begin < head.length ? seen - begin : (size_t)head.length;
      note(&r, bytes + begin, used);
      begin += used;
      head.length -= used;
      in_body = head.length > 0;
      parse = WEFT_PARSE_MORE;
      if (!in_body) continue;
    }
    if (parse == WEFT_PARSE_BAD || seen == n) return r;
    seen = n - seen < piece ? n : seen + piece;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  const char *bytes = (const char *)data;
  reading whole = read_connection(bytes, n, n == 0 ? 1 : n);
  static const size_t pieces[] = {1, 7};
  for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
    reading cut = read_connection(bytes, n, pieces[i]);
    REQUIRE(cut.sum == whole.sum && cut.n_requests == whole.n_requests && cut.fault == whole.fault);
  }
  return 0;
}
