/* SPDX-License-Identifier: MIT */
/* /openapi.json is valid OpenAPI 3.1, and has every route and every field that there is; /docs has them too, and runs
 * nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/server/route_notes.h"
#include "tests/support/http_conversation.h"

static talk server;
static json_t *document;

static int open_server(void **state) {
  (void)state;
  (void)talk_serve(&server, "sk-a red\nsk-op operator\n", (weft_open_options){0}, (weft_server_options){0});
  document = talk_json(server.port, "/openapi.json", NULL);
  return 0;
}

static int close_server(void **state) {
  (void)state;
  json_decref(document);
  talk_close(&server);
  return 0;
}

/* ---- that it is valid ---- */

/* What "#/a/b~1c" leads to. */
static json_t *follow(const char *ref) {
  json_t *now = document;
  assert_int_equal(strncmp(ref, "#/", 2), 0);
  for (const char *part = ref + 1; now != NULL && *part == '/';) {
    char name[128] = "";
    size_t n = 0;
    for (part++; *part != 0 && *part != '/'; part++) {
      if (*part == '~') part++;
      name[n++] = part[-1] == '~' ? (*part == '1' ? '/' : '~') : *part;
    }
    name[n] = 0;
    now = json_object_get(now, name);
  }
  return now;
}

static void check_refs(json_t *value) {
  const char *name;
  json_t *member;
  size_t i;
  json_object_foreach(value, name, member) {
    if (strcmp(name, "$ref") == 0 && follow(json_string_value(member)) == NULL)
      fail_msg("%s leads nowhere", json_string_value(member));
    check_refs(member);
  }
  json_array_foreach(value, i, member) check_refs(member);
}

static void it_is_valid(void **state) {
  static const char *const methods[] = {"get", "post", "delete"};
  static const char *const types[] = {"boolean", "integer", "number", "string", "object"};
  const char *path, *name, *field;
  json_t *item, *operation, *schema, *property;
  json_t *ids = json_object();
  (void)state;
  assert_string_equal(text_at(document, "openapi"), "3.1.0");
  assert_true(strlen(text_at(document, "info.title")) > 0);
  assert_true(strlen(text_at(document, "info.version")) > 0);
  json_object_foreach(json_object_get(document, "paths"), path, item) {
    assert_int_equal(path[0], '/');
    json_object_foreach(item, name, operation) {
      bool known = false;
      for (size_t i = 0; i < 3; i++) known |= strcmp(methods[i], name) == 0;
      if (!known) fail_msg("%s: no method is called %s", path, name);
      const char *id = json_string_value(json_object_get(operation, "operationId"));
      if (json_object_get(ids, id) != NULL) fail_msg("two operations are called %s", id);
      (void)json_object_set_new(ids, id, json_true());
      assert_true(json_object_size(json_object_get(operation, "responses")) >= 1);
      bool has_name = strstr(path, "{name}") != NULL;
      assert_true(has_name == (json_array_size(json_object_get(operation, "parameters")) == 1));
      json_t *body = json_object_get(operation, "requestBody");
      if (body != NULL) assert_non_null(at(body, "content"));
    }
  }
  json_object_foreach(json_object_get(json_object_get(document, "components"), "schemas"), name, schema) {
    assert_string_equal(text_at(schema, "type"), "object");
    json_object_foreach(json_object_get(schema, "properties"), field, property) {
      const char *type = json_string_value(json_array_get(json_object_get(property, "type"), 0));
      bool known = type == NULL;
      for (size_t i = 0; i < 5 && !known; i++) known = strcmp(types[i], type) == 0;
      if (!known) fail_msg("%s.%s: no type is called %s", name, field, type);
      assert_true(json_is_string(json_object_get(property, "description")));
    }
  }
  check_refs(document);
  json_decref(ids);
}

/* ---- that nothing is left out ---- */

static json_t *schema_of(const field_table *table) {
  weft_text name = {0};
  route_put_schema_name(table, &name);
  json_t *schema = json_object_get(json_object_get(json_object_get(document, "components"), "schemas"), name.bytes);
  if (schema == NULL) fail_msg("%s has no schema %s", table->where, name.bytes);
  weft_text_free(&name);
  return schema;
}

static void every_field_is_in_it(void **state) {
  (void)state;
  size_t n = 0;
  for (size_t i = 0; i < n_field_tables; i++) {
    json_t *properties = json_object_get(schema_of(field_tables[i]), "properties");
    assert_int_equal(json_object_size(properties), field_tables[i]->n_rows);
    for (size_t k = 0; k < field_tables[i]->n_rows; k++, n++) {
      const field_row *row = &field_tables[i]->rows[k];
      json_t *property = json_object_get(properties, row->name);
      if (property == NULL) fail_msg("%s lacks %s", field_tables[i]->where, row->name);
      assert_string_equal(json_string_value(json_object_get(property, "description")), row->what);
      assert_true((row->kind == FIELD_REFUSED) ==
                  (json_object_get(property, "x-weft") != NULL &&
                   strcmp(json_string_value(json_object_get(property, "x-weft")), "refused") == 0));
    }
  }
  assert_true(n > 200);
}

/* Every schema is reached from a path: a table that nothing leads to tells nobody anything. */
static void every_schema_is_reached(void **state) {
  char *text = json_dumps(document, 0);
  (void)state;
  for (size_t i = 0; i < n_field_tables; i++) {
    weft_text ref = {0};
    weft_text_puts(&ref, "\"#/components/schemas/");
    route_put_schema_name(field_tables[i], &ref);
    weft_text_puts(&ref, "\"");
    if (strstr(text, ref.bytes) == NULL) fail_msg("nothing leads to %s", field_tables[i]->where);
    weft_text_free(&ref);
  }
  free(text);
}

static void every_route_is_in_it(void **state) {
  (void)state;
  uint32_t n = 0;
  for (uint32_t i = 0; i < weft_n_endpoints; i++) {
    const weft_endpoint *route = &weft_endpoints[i];
    if (strcmp(route->path, WEFT_PAGE_PATHS) == 0) continue; /* files of the page */
    if (route_note_of(route) == NULL)
      fail_msg("%s %s has no row in api/server/route_notes.c", route->method, route->path);
    weft_text path = {0};
    route_put_path(route->path, &path);
    const char *method = route->method[0] == 'G' ? "get" : route->method[0] == 'D' ? "delete" : "post";
    json_t *item = json_object_get(json_object_get(document, "paths"), path.bytes);
    if (json_object_get(item, method) == NULL) fail_msg("%s %s is not told", route->method, path.bytes);
    weft_text_free(&path);
    n++;
  }
  assert_int_equal(n, n_route_notes); /* and no note is of another */
}

/* ---- the page ---- */

static void the_page_has_all_and_runs_nothing(void **state) {
  char value[512];
  (void)state;
  talk_answer a = talk_ask(server.port, "GET", "/docs", "");
  assert_int_equal(a.code, 200);
  assert_string_equal(talk_header(&a, "Content-Type", value, sizeof value), "text/html; charset=utf-8");
  (void)talk_header(&a, "Content-Security-Policy", value, sizeof value);
  assert_int_equal(strncmp(value, "default-src 'none'; style-src 'sha256-", 38), 0);
  assert_null(strstr(value, "unsafe"));
  assert_null(strstr(a.body.bytes, "<script"));
  assert_null(strstr(a.body.bytes, "http://"));
  assert_null(strstr(a.body.bytes, "https://"));
  assert_null(strstr(a.body.bytes, " style="));
  for (uint32_t i = 0; i < n_route_notes; i++) {
    weft_text words = {0};
    weft_text_printf(&words, "<code>%s ", route_notes[i].method);
    route_put_path(route_notes[i].path, &words);
    weft_text_puts(&words, "</code>");
    if (strstr(a.body.bytes, words.bytes) == NULL) fail_msg("%s is not on the page", words.bytes);
    weft_text_free(&words);
  }
  for (size_t i = 0; i < n_field_tables; i++) {
    weft_text words = {0};
    weft_text_puts(&words, "<h3 id=\"");
    route_put_schema_name(field_tables[i], &words);
    weft_text_puts(&words, "\">");
    if (strstr(a.body.bytes, words.bytes) == NULL) fail_msg("%s is not on the page", field_tables[i]->where);
    weft_text_free(&words);
  }
  talk_answer_free(&a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(it_is_valid),
      cmocka_unit_test(every_field_is_in_it),
      cmocka_unit_test(every_schema_is_reached),
      cmocka_unit_test(every_route_is_in_it),
      cmocka_unit_test(the_page_has_all_and_runs_nothing),
  };
  return cmocka_run_group_tests(tests, open_server, close_server);
}
