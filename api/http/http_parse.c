/* SPDX-License-Identifier: MIT */
#include "api/http/http_parse.h"

#include <string.h>
#include <strings.h>

enum {
  EMPTY_LINES_MAX = 2,    /* before a request: some clients end a body with a line break that they do not count */
  EXTRA_BYTES_MAX = 8192, /* extensions and trailers of one body */
  CHUNK_DIGITS_MAX = 15,
  LENGTH_DIGITS_MAX = 18
};

static weft_parse refuse_head(weft_http_fault *fault, int code, const char *word, const char *message) {
  *fault = (weft_http_fault){code, word, message};
  return WEFT_PARSE_BAD;
}

static weft_parse refuse_form(weft_http_fault *fault, const char *message) {
  return refuse_head(fault, 400, "malformed_request", message);
}

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

static int hex_of(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/* What names and methods are made of. */
static bool is_token(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static bool is_control(char c) {
  return ((unsigned char)c < 0x20 && c != '\t') || c == 0x7F;
}

/* ---- the end of the head ---- */

/* One byte that is neither CR nor LF. */
static weft_parse check_byte(const weft_head_scan *s, char c, weft_http_fault *fault) {
  if (is_control(c)) return refuse_form(fault, "the head holds a control character");
  if (s->n_lines > 0) return WEFT_PARSE_MORE;
  if (s->at == s->line && !is_token(c)) return refuse_form(fault, "the request does not begin with a method");
  if (s->at - s->line >= WEFT_TARGET_BYTES_MAX) {
    return refuse_head(fault, 414, "target_too_long", "the first line of the request is longer than 8192 bytes");
  }
  return WEFT_PARSE_MORE;
}

/* The line that ends at s->at, a line feed. DONE: it was the empty one after the fields. */
static weft_parse end_line(weft_head_scan *s, weft_http_fault *fault) {
  bool empty = s->at - s->line == 1;
  if (empty && s->n_lines > 0) return WEFT_PARSE_DONE;
  if (empty && s->line >= EMPTY_LINES_MAX * 2) return refuse_form(fault, "empty lines where a request should begin");
  s->line = s->at + 1;
  if (!empty) s->n_lines += 1;
  if (s->n_lines <= WEFT_FIELDS_MAX + 1) return WEFT_PARSE_MORE;
  return refuse_head(fault, 431, "head_too_large", "the request has more than 100 header fields");
}

weft_parse weft_http_scan(const char *bytes, size_t n, weft_head_scan *s, weft_http_fault *fault) {
  for (; s->at < n; s->at++) {
    char c = bytes[s->at], before = s->at == s->line ? 0 : bytes[s->at - 1];
    if (s->at >= WEFT_HEAD_BYTES_MAX) {
      return refuse_head(fault, 431, "head_too_large",
                         "the request line and its header fields are larger than 32768 bytes");
    }
    if ((c == '\n') != (before == '\r')) {
      return refuse_form(fault, c == '\n' ? "a line ends in a bare line feed: lines end in CR LF"
                                          : "a carriage return without its line feed: lines end in CR LF");
    }
    weft_parse parse = c == '\r' ? WEFT_PARSE_MORE : c == '\n' ? end_line(s, fault) : check_byte(s, c, fault);
    if (parse == WEFT_PARSE_DONE) s->at += 1;
    if (parse != WEFT_PARSE_MORE) return parse;
  }
  return WEFT_PARSE_MORE;
}

/* ---- the first line ---- */

/* Cuts the next line off; its end becomes a zero byte. */
static char *take_line(char **at) {
  char *line = *at, *end = strstr(line, "\r\n"); /* the scan saw to it that it is there */
  *end = 0;
  *at = end + 2;
  return line;
}

/* Percent signs decoded in place, up to the query, which stays as it was sent. */
static bool decode_path(char *path, const char **query) {
  char *to = path;
  const char *from = path;
  for (; *from != 0 && *from != '?'; from++) {
    char c = *from;
    if (c == '#' || (unsigned char)c >= 0x80) return false;
    if (c == '%') {
      int high = hex_of(from[1]), low = high < 0 ? -1 : hex_of(from[2]);
      if (low < 0) return false;
      c = (char)(high << 4 | low);
      from += 2;
      if (is_control(c) || c == '\t') return false;
    }
    *to++ = c;
  }
  *query = *from == '?' ? from + 1 : NULL;
  *to = 0;
  return true;
}

/* http://host/path, which only proxies are sent, counts as path, with that host. */
static char *after_authority(char *target, const char **host) {
  size_t scheme = strncasecmp(target, "http://", 7) == 0 ? 7 : strncasecmp(target, "https://", 8) == 0 ? 8 : 0;
  if (scheme == 0) return target;
  size_t n = strcspn(target + scheme, "/?");
  memmove(target, target + scheme, n); /* makes place for the zero byte between the two */
  *host = target;
  char *path = target + scheme + n;
  target[n] = 0;
  return path;
}

static weft_parse parse_first(char *line, weft_http_head *head, const char **authority, weft_http_fault *fault) {
  size_t n_method = 0;
  while (is_token(line[n_method])) n_method++;
  if (n_method == 0 || line[n_method] != ' ') return refuse_form(fault, "the first line is no METHOD TARGET HTTP/1.1");
  if (n_method > WEFT_METHOD_BYTES_MAX) {
    return refuse_head(fault, 501, "unknown_method", "the method has more than 16 letters");
  }
  char *target = line + n_method + 1, *version = strchr(target, ' ');
  if (version == NULL) return refuse_form(fault, "the first line is no METHOD TARGET HTTP/1.1");
  *version++ = 0;
  line[n_method] = 0;
  head->method = line;
  if (strncmp(version, "HTTP/", 5) != 0 || !is_digit(version[5]) || version[6] != '.' || !is_digit(version[7]) ||
      version[8] != 0) {
    return refuse_form(fault, "the first line does not end in HTTP/1.1");
  }
  if (version[5] != '1') return refuse_head(fault, 505, "unknown_version", "this server speaks HTTP/1.1 and HTTP/1.0");
  head->minor = version[7] == '0' ? 0 : 1;
  bool asterisk = strcmp(target, "*") == 0 && strcmp(line, "OPTIONS") == 0;
  char *path = after_authority(target, authority);
  if (!asterisk && path[0] != '/') return refuse_form(fault, "the target of the request is no path");
  if (!decode_path(path, &head->query)) {
    return refuse_form(fault, "the path holds what must be percent-encoded, or a percent sign without two digits");
  }
  head->path = path;
  return WEFT_PARSE_DONE;
}

/* ---- fields ---- */

static weft_parse parse_field(char *line, weft_http_head *head, weft_http_fault *fault) {
  size_t n = 0;
  if (line[0] == ' ' || line[0] == '\t') return refuse_form(fault, "a header field is folded over two lines");
  while (is_token(line[n])) n++;
  if (line[n] == ' ' || line[n] == '\t') return refuse_form(fault, "white space before the colon of a header field");
  if (n == 0 || line[n] != ':') return refuse_form(fault, "a header field is no NAME: VALUE");
  char *value = line + n + 1 + strspn(line + n + 1, " \t"), *end = value + strlen(value);
  while (end > value && (end[-1] == ' ' || end[-1] == '\t')) end--;
  *end = 0;
  line[n] = 0;
  head->field[head->n_fields++] = (weft_http_field){line, value};
  return WEFT_PARSE_DONE;
}

const char *weft_http_field_at(const weft_http_head *head, const char *name, uint32_t index) {
  for (uint32_t i = 0; i < head->n_fields; i++) {
    if (strcasecmp(head->field[i].name, name) == 0 && index-- == 0) return head->field[i].value;
  }
  return NULL;
}

const char *weft_http_field_of(const weft_http_head *head, const char *name) {
  return weft_http_field_at(head, name, 0);
}

static uint32_t count_fields(const weft_http_head *head, const char *name) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < head->n_fields; i++) n += strcasecmp(head->field[i].name, name) == 0;
  return n;
}

/* The option is a member of a list with commas, as in Connection. */
static bool field_lists(const char *value, const char *option) {
  size_t n = strlen(option);
  while (value != NULL && *value != 0) {
    value += strspn(value, " \t,");
    size_t word = strcspn(value, " \t,");
    if (word == n && strncasecmp(value, option, n) == 0) return true;
    value += word;
  }
  return false;
}

static weft_parse parse_length(const char *text, uint64_t *length, weft_http_fault *fault) {
  uint64_t value = 0;
  size_t n = strspn(text, "0123456789");
  if (n == 0 || text[n] != 0) return refuse_form(fault, "Content-Length is no number");
  if (n > LENGTH_DIGITS_MAX) return refuse_head(fault, 413, "body_too_large", "Content-Length is beyond all bounds");
  for (size_t i = 0; i < n; i++) value = value * 10 + (uint64_t)(text[i] - '0');
  *length = value;
  return WEFT_PARSE_DONE;
}

/* How long the body is. */
static weft_parse find_body(weft_http_head *head, weft_http_fault *fault) {
  const char *length = weft_http_field_of(head, "Content-Length");
  const char *coding = weft_http_field_of(head, "Transfer-Encoding");
  if (count_fields(head, "Content-Length") > 1) return refuse_form(fault, "Content-Length is there twice");
  if (coding == NULL) return length == NULL ? WEFT_PARSE_DONE : parse_length(length, &head->length, fault);
  if (length != NULL) return refuse_form(fault, "both Content-Length and Transfer-Encoding are there: send one");
  if (head->minor == 0) return refuse_form(fault, "HTTP/1.0 has no Transfer-Encoding");
  if (count_fields(head, "Transfer-Encoding") > 1) return refuse_form(fault, "Transfer-Encoding is there twice");
  if (strcasecmp(coding, "chunked") != 0) {
    return refuse_head(fault, 501, "unknown_transfer_coding", "the only transfer coding known here is chunked");
  }
  head->chunked = true;
  return WEFT_PARSE_DONE;
}

/* Fields that must be there once, and what they say about the connection. */
static weft_parse check_fields(weft_http_head *head, const char *authority, weft_http_fault *fault) {
  const char *connection = weft_http_field_of(head, "Connection");
  const char *expect = weft_http_field_of(head, "Expect");
  head->host = weft_http_field_of(head, "Host");
  if (count_fields(head, "Host") > 1) return refuse_form(fault, "Host is there twice");
  if (head->host == NULL && head->minor == 1) return refuse_form(fault, "HTTP/1.1 needs the header field Host");
  if (count_fields(head, "Authorization") > 1) return refuse_form(fault, "Authorization is there twice");
  if (count_fields(head, "X-Api-Key") > 1) return refuse_form(fault, "X-Api-Key is there twice");
  if (count_fields(head, "X-Router-Key") > 1) return refuse_form(fault, "X-Router-Key is there twice");
  if (authority != NULL) head->host = authority;
  head->keep_alive = head->minor == 1 ? !field_lists(connection, "close") : field_lists(connection, "keep-alive");
  if (expect != NULL && strcasecmp(expect, "100-continue") != 0) {
    return refuse_head(fault, 417, "unknown_expectation", "the only expectation known here is 100-continue");
  }
  head->expects_continue = expect != NULL && head->minor == 1;
  return find_body(head, fault);
}

weft_parse weft_http_parse(char *bytes, size_t n, weft_http_head *head, weft_http_fault *fault) {
  char *at = bytes, *end = bytes + n - 2; /* the empty line that ends the head */
  const char *authority = NULL;
  *head = (weft_http_head){0};
  *end = 0;
  while (at[0] == '\r') at += 2;
  weft_parse parse = parse_first(take_line(&at), head, &authority, fault);
  while (parse == WEFT_PARSE_DONE && at < end) parse = parse_field(take_line(&at), head, fault);
  return parse == WEFT_PARSE_DONE ? check_fields(head, authority, fault) : parse;
}

/* ---- chunks ---- */

enum {
  CHUNK_SIZE,
  CHUNK_EXTENSION,
  CHUNK_SIZE_LF,
  CHUNK_DATA,
  CHUNK_CR,
  CHUNK_LF,
  TRAILER,
  TRAILER_LINE,
  TRAILER_LF,
  LAST_LF,
  CHUNKS_OVER
};

static weft_parse bad_chunk(weft_http_fault *fault) {
  return refuse_head(fault, 400, "malformed_body", "the body is not in chunks as RFC 9112 has them");
}

/* A digit of the chunk's size, or what ends it. */
static weft_parse take_size(weft_chunks *k, char c, weft_http_fault *fault) {
  int digit = hex_of(c);
  if (digit >= 0) {
    if (k->n_digits == CHUNK_DIGITS_MAX)
      return refuse_head(fault, 413, "body_too_large", "a chunk's size is beyond all bounds");
    k->left = k->left << 4 | (uint64_t)digit;
    k->n_digits += 1;
    return WEFT_PARSE_MORE;
  }
  if (k->n_digits == 0 || (c != '\r' && c != ';')) return bad_chunk(fault);
  k->phase = c == '\r' ? CHUNK_SIZE_LF : CHUNK_EXTENSION;
  return WEFT_PARSE_MORE;
}

/* A byte of an extension or a trailer: after is what follows its line. */
static weft_parse take_extra(weft_chunks *k, char c, int after, weft_http_fault *fault) {
  if (c == '\r') {
    k->phase = after;
    return WEFT_PARSE_MORE;
  }
  if (is_control(c)) return bad_chunk(fault);
  k->n_extra += 1;
  if (k->n_extra <= EXTRA_BYTES_MAX) return WEFT_PARSE_MORE;
  return refuse_head(fault, 431, "head_too_large", "extensions and trailers of the chunks are larger than 8192 bytes");
}

/* A byte that must be this one. */
static weft_parse take_exact(weft_chunks *k, char c, char wanted, int after, weft_http_fault *fault) {
  if (c != wanted) return bad_chunk(fault);
  k->phase = after;
  return WEFT_PARSE_MORE;
}

/* Any byte outside of the data. */
static weft_parse take_byte(weft_chunks *k, char c, weft_http_fault *fault) {
  switch (k->phase) {
    case CHUNK_SIZE:
      return take_size(k, c, fault);
    case CHUNK_EXTENSION:
      return take_extra(k, c, CHUNK_SIZE_LF, fault);
    case CHUNK_SIZE_LF:
      k->n_digits = 0;
      return take_exact(k, c, '\n', k->left > 0 ? CHUNK_DATA : TRAILER, fault);
    case CHUNK_CR:
      return take_exact(k, c, '\r', CHUNK_LF, fault);
    case CHUNK_LF:
      return take_exact(k, c, '\n', CHUNK_SIZE, fault);
    case TRAILER:
      if (c == '\r') return take_exact(k, c, '\r', LAST_LF, fault);
      k->phase = TRAILER_LINE;
      return is_token(c) ? take_extra(k, c, TRAILER_LF, fault) : bad_chunk(fault);
    case TRAILER_LINE:
      return take_extra(k, c, TRAILER_LF, fault);
    case TRAILER_LF:
      return take_exact(k, c, '\n', TRAILER, fault);
    default: /* LAST_LF */
      if (c != '\n') return bad_chunk(fault);
      k->phase = CHUNKS_OVER;
      return WEFT_PARSE_DONE;
  }
}

weft_parse weft_http_unchunk(weft_chunks *k, const char *bytes, size_t n, size_t *used, const char **data,
                             size_t *n_data, weft_http_fault *fault) {
  *data = bytes;
  *n_data = 0;
  for (*used = 0; *used < n;) {
    if (k->phase == CHUNK_DATA) {
      *data = bytes + *used;
      *n_data = n - *used < k->left ? n - *used : (size_t)k->left;
      *used += *n_data;
      k->left -= *n_data;
      if (k->left == 0) k->phase = CHUNK_CR;
      return WEFT_PARSE_MORE;
    }
    weft_parse parse = take_byte(k, bytes[*used], fault);
    *used += 1;
    if (parse != WEFT_PARSE_MORE) return parse;
  }
  return WEFT_PARSE_MORE;
}
