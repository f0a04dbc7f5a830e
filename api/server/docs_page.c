/* SPDX-License-Identifier: MIT */
/* /docs: the routes and the fields of their bodies for people, from the same tables as /openapi.json.
 *
 * Law: the page is text and one style, whose hash its Content-Security-Policy names: no script runs in it, and it asks
 * nobody for anything. */
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "api/server/route_notes.h"

static const char style[] =
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 "
    "1rem;color:#222;background:#fff}"
    "code{font:14px ui-monospace,monospace}table{border-collapse:collapse;width:100%;margin:1rem 0}"
    "td,th{border-bottom:1px solid #ddd;padding:.2rem .5rem;text-align:left;vertical-align:top}"
    "h2{margin-top:2.5rem}details{margin:.5rem 0}.no{color:#777}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}td,th{border-color:#333}.no{color:#888}"
    "a{color:#8ab4f8}}";

/* Text between tags, or in the quotes of an attribute. */
static void put_text(const char *text, weft_text *out) {
  for (const char *c = text; *c != 0; c++) {
    switch (*c) {
      case '<':
        weft_text_puts(out, "&lt;");
        break;
      case '>':
        weft_text_puts(out, "&gt;");
        break;
      case '&':
        weft_text_puts(out, "&amp;");
        break;
      case '"':
        weft_text_puts(out, "&quot;");
        break;
      default:
        weft_text_append(out, c, 1);
    }
  }
}

static const char *name_of_access(weft_access access) {
  switch (access) {
    case WEFT_ACCESS_OPEN:
      return "no key";
    case WEFT_ACCESS_OPERATE:
      return "the operator's key, or a program on this machine where there are no keys";
    case WEFT_ACCESS_COUNTS:
      return "the operator's key or one of metrics, where there are several tenants";
    default:
      return "any key, where there are keys";
  }
}

static const char *name_of_kind(field_kind kind) {
  return kind == FIELD_MET       ? "holds"
         : kind == FIELD_PASSED  ? "passed over"
         : kind == FIELD_REFUSED ? "refused"
                                 : "read";
}

static void put_table(const field_table *table, weft_text *out) {
  bool is_list;
  weft_text_puts(out, "<h3 id=\"");
  route_put_schema_name(table, out);
  weft_text_puts(out, "\">");
  put_text(table->where, out);
  weft_text_puts(out, "</h3>\n<table><tr><th>field<th>what is done<th>what it is\n");
  for (size_t i = 0; i < table->n_rows; i++) {
    const field_row *row = &table->rows[i];
    const field_table *inner = route_inner_table(table, row->name, &is_list);
    bool done = row->kind != FIELD_PASSED && row->kind != FIELD_REFUSED;
    weft_text_puts(out, done ? "<tr><td><code>" : "<tr class=\"no\"><td><code>");
    put_text(row->name, out);
    weft_text_printf(out, "</code><td>%s<td>", name_of_kind(row->kind));
    put_text(row->what, out);
    if (inner != NULL) {
      weft_text_puts(out, " (<a href=\"#");
      route_put_schema_name(inner, out);
      weft_text_puts(out, "\">its fields</a>)");
    }
    weft_text_puts(out, "\n");
  }
  weft_text_puts(out, "</table>\n");
}

static void put_routes(weft_text *out) {
  const char *topic = "";
  for (uint32_t i = 0; i < n_route_notes; i++) {
    const route_note *note = &route_notes[i];
    if (strcmp(topic, note->topic) != 0) {
      weft_text_printf(out, "%s<h2>", i > 0 ? "</table>\n" : "");
      put_text(topic = note->topic, out);
      weft_text_puts(out, "</h2>\n<table><tr><th>request<th>what it gives<th>who may ask\n");
    }
    weft_access access = WEFT_ACCESS_TENANT;
    for (uint32_t k = 0; k < weft_n_endpoints; k++) {
      if (route_note_of(&weft_endpoints[k]) == note) access = weft_endpoints[k].access;
    }
    weft_text_printf(out, "<tr><td><code>%s ", note->method);
    route_put_path(note->path, out);
    weft_text_puts(out, "</code><td>");
    put_text(note->what, out);
    if (note->body != NULL) {
      weft_text_puts(out, " (<a href=\"#");
      route_put_schema_name(note->body, out);
      weft_text_puts(out, "\">fields</a>)");
    }
    weft_text_printf(out, "<td>%s\n", name_of_access(access));
  }
  weft_text_puts(out, "</table>\n");
}

/* "default-src 'none'; style-src 'sha256-...'", by the hash of the style. False: there is none. */
static bool write_policy(char *out, size_t n) {
  unsigned char hash[EVP_MAX_MD_SIZE], text[2 * EVP_MAX_MD_SIZE];
  unsigned n_hash = 0;
  if (EVP_Digest(style, sizeof style - 1, hash, &n_hash, EVP_sha256(), NULL) != 1) return false;
  (void)EVP_EncodeBlock(text, hash, (int)n_hash);
  (void)snprintf(
      out, n, "default-src 'none'; style-src 'sha256-%s'; base-uri 'none'; frame-ancestors 'none'; form-action 'none'",
      (const char *)text);
  return true;
}

void weft_handle_docs(weft_server *s, weft_exchange *x) {
  weft_text out = {0};
  char policy[256];
  (void)s;
  weft_text_printf(
      &out,
      "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width\"><title>weft %s: requests and fields</title>\n<style>%s</style>\n"
      "<h1>weft %s</h1>\n<p>What this server answers. The same for programs: <a "
      "href=\"/openapi.json\">/openapi.json</a>. A field that is null counts as left out; one that no table has "
      "is passed over, and named in the log.</p>\n",
      weft_version(), style, weft_version());
  put_routes(&out);
  weft_text_puts(&out, "<h2>Fields of bodies</h2>\n");
  for (size_t i = 0; i < n_field_tables; i++) put_table(field_tables[i], &out);
  weft_text_puts(&out, "</html>\n");
  out.refused = out.refused || !write_policy(policy, sizeof policy);
  weft_exchange_set_header(x, "Content-Security-Policy", policy);
  weft_exchange_set_header(x, "X-Content-Type-Options", "nosniff");
  weft_exchange_set_header(x, "Referrer-Policy", "no-referrer");
  weft_exchange_answer(x, 200, "text/html; charset=utf-8", &out);
}
