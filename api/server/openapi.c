/* SPDX-License-Identifier: MIT */
/* /openapi.json: the routes and the fields of their bodies as an OpenAPI 3.1 document.
 *
 * Law: paths come from the router's table, schemas from the tables of fields; nothing is told here that is not there. A
 * field that is refused stands in its schema with `x-weft: refused`, one that is passed over with `passed over`. */
#include <string.h>

#include "api/json.h"
#include "api/server/route_notes.h"

static void put_words(weft_text *out, const char *name, const char *words) {
  weft_text_printf(out, "\"%s\":", name);
  weft_json_words(out, words);
}

/* ---- schemas ---- */

static const char *type_of(const field_row *row) {
  switch (row->kind) {
    case FIELD_BOOL:
      return "boolean";
    case FIELD_U32:
    case FIELD_I32:
    case FIELD_SEED:
    case FIELD_COUNT:
    case FIELD_OFF:
      return "integer";
    case FIELD_REAL:
      return "number";
    case FIELD_TEXT:
      return "string";
    default:
      return NULL; /* the reader of the row decides */
  }
}

static void put_ref(weft_text *out, const field_table *table) {
  weft_text_puts(out, "\"$ref\":\"#/components/schemas/");
  route_put_schema_name(table, out);
  weft_text_puts(out, "\"");
}

static void put_range(weft_text *out, const field_row *row) {
  const weft_range *r = &row->range;
  bool also_minus_one = row->kind == FIELD_COUNT || row->kind == FIELD_OFF;
  bool number = row->kind == FIELD_U32 || row->kind == FIELD_I32 || row->kind == FIELD_REAL || also_minus_one;
  if (!number || (r->least == 0 && r->greatest == 0)) return;
  weft_text_printf(out, ",\"%s\":", r->above ? "exclusiveMinimum" : "minimum");
  weft_json_real(out, also_minus_one ? -1.0 : r->least);
  weft_text_puts(out, ",\"maximum\":");
  weft_json_real(out, r->greatest);
}

static void put_field(weft_text *out, const field_table *table, const field_row *row) {
  bool is_list;
  const field_table *inner = route_inner_table(table, row->name, &is_list);
  weft_json_words(out, row->name);
  weft_text_puts(out, ":{");
  put_words(out, "description", row->what);
  if (row->kind == FIELD_REFUSED) weft_text_puts(out, ",\"x-weft\":\"refused\"");
  if (row->kind == FIELD_PASSED) weft_text_puts(out, ",\"x-weft\":\"passed over\"");
  if (row->kind == FIELD_MET) weft_text_puts(out, ",\"x-weft\":\"holds\"");
  const char *type = type_of(row);
  if (type != NULL) {
    weft_text_printf(out, ",\"type\":[\"%s\",\"null\"]", type);
    put_range(out, row);
  } else if (inner != NULL) { /* what else the field may hold its description says */
    weft_text_puts(out, ",\"anyOf\":[{");
    if (is_list) weft_text_puts(out, "\"type\":\"array\",\"items\":{");
    put_ref(out, inner);
    weft_text_puts(out, is_list ? "}},{}]" : "},{}]");
  }
  weft_text_puts(out, "}");
}

static void put_schema(weft_text *out, const field_table *table) {
  weft_text_puts(out, "\"");
  route_put_schema_name(table, out);
  weft_text_puts(out, "\":{\"type\":\"object\",");
  put_words(out, "description", table->where);
  weft_text_puts(out, ",\"properties\":{");
  for (size_t i = 0; i < table->n_rows; i++) {
    if (i > 0) weft_text_puts(out, ",");
    put_field(out, table, &table->rows[i]);
  }
  weft_text_puts(out, "}}");
}

/* ---- paths ---- */

static void put_operation(weft_text *out, const weft_endpoint *route, const route_note *note) {
  bool named = strchr(route->path, '*') != NULL;
  weft_text_puts(out, route->method[0] == 'G' ? "\"get\":{" : route->method[0] == 'D' ? "\"delete\":{" : "\"post\":{");
  put_words(out, "summary", note->what);
  weft_text_puts(out, ",\"tags\":[");
  weft_json_words(out, note->topic);
  weft_text_puts(out, "],\"operationId\":\"");
  for (const char *c = route->method; *c != 0; c++) weft_text_append(out, &(char){(char)(*c + 'a' - 'A')}, 1);
  for (const char *c = route->path; *c != 0; c++) {
    if (*c == '/' || *c == '.') weft_text_puts(out, "_");
    if (*c != '/' && *c != '.' && *c != '*') weft_text_append(out, c, 1);
  }
  weft_text_puts(out, "\"");
  if (named)
    weft_text_puts(out,
                   ",\"parameters\":[{\"name\":\"name\",\"in\":\"path\",\"required\":true,\"schema\":{\"type\":"
                   "\"string\"}}]");
  if (note->body != NULL) {
    weft_text_puts(out, ",\"requestBody\":{\"required\":true,\"content\":{\"application/json\":{\"schema\":{");
    put_ref(out, note->body);
    weft_text_puts(out, "}}}}");
  }
  weft_text_printf(
      out,
      ",\"responses\":{\"200\":{\"description\":\"the answer\",\"content\":{\"%s\":{}}},\"default\":{\"$ref\":"
      "\"#/components/responses/refusal\"}}",
      note->type);
  if (route->access == WEFT_ACCESS_OPEN) weft_text_puts(out, ",\"security\":[]");
  weft_text_puts(out, "}");
}

/* The routes of one path are one item: that of the first of them. */
static void put_paths(weft_text *out) {
  bool first = true;
  for (uint32_t i = 0; i < weft_n_endpoints; i++) {
    const weft_endpoint *route = &weft_endpoints[i];
    bool told = route_note_of(route) == NULL;
    for (uint32_t k = 0; k < i && !told; k++) told = strcmp(weft_endpoints[k].path, route->path) == 0;
    if (told) continue;
    weft_text_puts(out, first ? "\"" : ",\"");
    route_put_path(route->path, out);
    weft_text_puts(out, "\":{");
    first = false;
    for (uint32_t k = i; k < weft_n_endpoints; k++) {
      const route_note *note = route_note_of(&weft_endpoints[k]);
      if (note == NULL || strcmp(weft_endpoints[k].path, route->path) != 0) continue;
      if (k > i) weft_text_puts(out, ",");
      put_operation(out, &weft_endpoints[k], note);
    }
    weft_text_puts(out, "}");
  }
}

static const char head[] =
    "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"weft\",\"description\":\"Language models by the APIs of OpenAI, "
    "Anthropic and Ollama. A field that is null counts as left out; one that no schema has is passed over.\","
    "\"license\":{\"name\":\"MIT\",\"identifier\":\"MIT\"},\"version\":";

static const char refusal[] =
    "\"responses\":{\"refusal\":{\"description\":\"why not, in the form of the path's dialect\",\"content\":{"
    "\"application/json\":{\"schema\":{\"$ref\":\"#/components/schemas/refusal\"}}}}},\"securitySchemes\":{\"bearer\":{"
    "\"type\":\"http\",\"scheme\":\"bearer\"},\"key\":{\"type\":\"apiKey\",\"in\":\"header\",\"name\":\"X-Api-Key\"}},"
    "\"schemas\":{\"refusal\":{\"type\":\"object\",\"required\":[\"error\"],\"properties\":{\"error\":{\"description\":"
    "\"with message, type, param and code; of Ollama's paths the message alone\"}}}";

void weft_handle_openapi(weft_server *s, weft_exchange *x) {
  weft_text out = {0};
  weft_text_puts(&out, head);
  weft_json_words(&out, weft_version());
  weft_text_puts(&out, s->keys != NULL ? "},\"security\":[{\"bearer\":[]},{\"key\":[]}]" : "}");
  weft_text_puts(&out, ",\"paths\":{");
  put_paths(&out);
  weft_text_puts(&out, "},\"components\":{");
  weft_text_puts(&out, refusal);
  for (size_t i = 0; i < n_field_tables; i++) {
    weft_text_puts(&out, ",");
    put_schema(&out, field_tables[i]);
  }
  weft_text_puts(&out, "}}}");
  weft_exchange_answer(x, 200, "application/json", &out);
}
