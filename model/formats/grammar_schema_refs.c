/* SPDX-License-Identifier: MIT */
/* References of a schema as paths from its root.
 *
 * Law: afterwards every $ref that leads into the schema is '#' or '#/...', whatever identifiers and anchors it was
 * written with, and stands for the same place wherever it is moved to. References that lead elsewhere stay as they
 * are. A $dynamicRef becomes a $ref where it is known which anchor it leads to: where one resource alone has it, or
 * the root has, which is the outermost wherever it is used. Identifiers within constants are none. */
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "model/formats/grammar_schema.h"

typedef struct reference_walk {
  schema_reader *r;
  json_t *places;  /* URI, or URI#anchor: the path of what it names */
  json_t *dynamic; /* an anchor: the paths of the resources that have it as a dynamic one */
  bool rewrites;   /* the second walk */
  bool old;        /* before draft 2019-09: beside $ref nothing counts, and an anchor is an $id that begins with # */
  weft_text path;
} reference_walk;

/* ---- URIs ---- */

static size_t scheme_length(const char *uri) {
  size_t n = strcspn(uri, ":/?#");
  return uri[n] == ':' && n > 1 ? n + 1 : 0;
}

/* Where the path of a URI begins: behind scheme and host. */
static size_t path_begin(const char *uri) {
  size_t n = scheme_length(uri);
  if (strncmp(uri + n, "//", 2) == 0) n += 2 + strcspn(uri + n + 2, "/?#");
  return n;
}

/* Takes "./" and "x/.." out of a path. */
static void drop_dots(char *path) {
  char *out = path, *at = path;
  while (*at != 0) {
    size_t n = strcspn(at, "/");
    size_t whole = n + (at[n] == '/' ? 1 : 0);
    if (n == 2 && strncmp(at, "..", 2) == 0) {
      if (out > path) out -= 1;
      while (out > path && out[-1] != '/') out -= 1;
    } else if (!(n == 1 && at[0] == '.')) {
      memmove(out, at, whole);
      out += whole;
    }
    at += whole;
  }
  *out = 0;
}

/* The reference as seen from a base, without an empty fragment. NULL: no memory. */
static char *resolve_uri(reference_walk *w, const char *base, const char *reference) {
  weft_text text = {0};
  size_t kept = strcspn(base, "#");
  if (!builder_step(w->r->b, 1 + strlen(base) + strlen(reference))) return NULL;
  if (scheme_length(reference) > 0) {
    kept = 0;
  } else if (reference[0] == '/' && reference[1] != '/') {
    kept = path_begin(base);
  } else if (reference[0] != '#' && reference[0] != 0) {
    size_t begin = path_begin(base);
    while (kept > begin && base[kept - 1] != '/') kept -= 1;
  }
  weft_text_append(&text, base, kept);
  weft_text_puts(&text, reference);
  char *out = weft_text_status(&text) == WEFT_OK ? weft_strndup(text.bytes, text.n) : NULL;
  weft_text_free(&text);
  if (out == NULL) {
    schema_fail(w->r, WEFT_E_NO_MEMORY, "no memory for it");
    return NULL;
  }
  size_t fragment = strcspn(out, "#");
  if (out[fragment] == '#' && out[fragment + 1] == 0) out[fragment] = 0;
  if (scheme_length(out) == 0 || strncmp(out + scheme_length(out), "//", 2) == 0) {
    char saved = out[fragment];
    if (saved == 0) drop_dots(out + path_begin(out));
  }
  return out;
}

/* ---- the walks ---- */

static void walk_schema(reference_walk *w, json_t *schema, const char *base, uint32_t depth);

static void walk_part(reference_walk *w, json_t *schema, const char *name, const char *base, uint32_t depth) {
  size_t before = w->path.n;
  weft_text_puts(&w->path, "/");
  for (; *name != 0; name++) {
    if (*name == '~' || *name == '/' || *name == '%') {
      weft_text_puts(&w->path, *name == '~' ? "~0" : *name == '/' ? "~1" : "%25");
    } else {
      weft_text_append(&w->path, name, 1);
    }
  }
  walk_schema(w, schema, base, depth + 1);
  w->path.n = before;
}

static void walk_list(reference_walk *w, json_t *list, const char *base, uint32_t depth) {
  for (size_t i = 0; i < json_array_size(list) && builder_ok(w->r->b); i++) {
    char number[24];
    (void)snprintf(number, sizeof number, "%zu", i);
    walk_part(w, json_array_get(list, i), number, base, depth);
  }
}

static bool is_one_of(const char *word, const char *const *list) {
  for (; *list != NULL; list++) {
    if (strcmp(word, *list) == 0) return true;
  }
  return false;
}

/* The schemas within a schema. */
static void walk_keyword(reference_walk *w, const char *key, json_t *value, const char *base, uint32_t depth) {
  static const char *const maps[] = {"properties",       "patternProperties", "$defs", "definitions",
                                     "dependentSchemas", "dependencies",      NULL};
  static const char *const parts[] = {"additionalProperties",
                                      "propertyNames",
                                      "items",
                                      "contains",
                                      "not",
                                      "if",
                                      "then",
                                      "else",
                                      "unevaluatedItems",
                                      "unevaluatedProperties",
                                      "additionalItems",
                                      "contentSchema",
                                      "allOf",
                                      "anyOf",
                                      "oneOf",
                                      "prefixItems",
                                      NULL};
  size_t before = w->path.n;
  const char *name;
  json_t *part;
  if (is_one_of(key, maps)) {
    weft_text_printf(&w->path, "/%s", key);
    json_object_foreach(value, name, part) walk_part(w, part, name, base, depth);
    w->path.n = before;
  } else if (is_one_of(key, parts) && json_is_array(value)) {
    weft_text_printf(&w->path, "/%s", key);
    walk_list(w, value, base, depth);
    w->path.n = before;
  } else if (is_one_of(key, parts)) {
    walk_part(w, value, key, base, depth);
  }
}

static void set_place(reference_walk *w, json_t *map, const char *name, const char *path, size_t n) {
  if (json_object_get(map, name) != NULL) return;
  if (json_object_set_new(map, name, json_stringn(path, n)) != 0) {
    schema_fail(w->r, WEFT_E_NO_MEMORY, "no memory for it");
  }
}

static void note_anchor(reference_walk *w, const json_t *schema, const char *key, const char *base) {
  const char *name = json_string_value(json_object_get(schema, key));
  weft_text uri = {0};
  if (name == NULL) return;
  if (name[0] == '#') name += 1;
  weft_text_printf(&uri, "%s#%s", base, name);
  if (weft_text_status(&uri) != WEFT_OK) {
    schema_fail(w->r, WEFT_E_NO_MEMORY, "no memory for it");
  } else {
    set_place(w, w->places, uri.bytes, w->path.bytes, w->path.n);
    if (strcmp(key, "$dynamicAnchor") == 0) {
      json_t *of = json_object_get(w->dynamic, name);
      if (of == NULL) {
        of = json_object();
        if (json_object_set_new(w->dynamic, name, of) != 0) schema_fail(w->r, WEFT_E_NO_MEMORY, "no memory for it");
      }
      if (builder_ok(w->r->b)) set_place(w, of, base, w->path.bytes, w->path.n);
    }
  }
  weft_text_free(&uri);
}

/* The path that a URI leads to, for the caller to free; NULL: none, or a failure. */
static char *find_place(reference_walk *w, const char *uri) {
  size_t n = strcspn(uri, "#");
  char *resource = weft_strndup(uri, n);
  const char *path = NULL;
  weft_text text = {0};
  if (resource == NULL) {
    schema_fail(w->r, WEFT_E_NO_MEMORY, "no memory for it");
    return NULL;
  }
  bool anchor = uri[n] == '#' && uri[n + 1] != '/';
  path = json_string_value(json_object_get(w->places, anchor ? uri : resource));
  weft_free(resource);
  if (path == NULL) return NULL;
  weft_text_puts(&text, path);
  if (!anchor && uri[n] == '#') weft_text_puts(&text, uri + n + 1);
  char *out = weft_text_status(&text) == WEFT_OK ? weft_strndup(text.bytes, text.n) : NULL;
  weft_text_free(&text);
  if (out == NULL) schema_fail(w->r, WEFT_E_NO_MEMORY, "no memory for it");
  return out;
}

static void set_text(reference_walk *w, json_t *schema, const char *key, const char *text) {
  if (json_object_set_new(schema, key, json_string(text)) != 0) schema_fail(w->r, WEFT_E_NO_MEMORY, "no memory for it");
}

static void rewrite_reference(reference_walk *w, json_t *schema, const char *base) {
  const char *reference = json_string_value(json_object_get(schema, "$ref"));
  if (reference == NULL) return;
  char *uri = resolve_uri(w, base, reference), *path = uri == NULL ? NULL : find_place(w, uri);
  if (path != NULL) set_text(w, schema, "$ref", path);
  w->r->refers = true;
  weft_free(uri);
  weft_free(path);
}

/* Which place a dynamic anchor stands for, NULL: that depends on where the schema is used. */
static const char *find_dynamic(const reference_walk *w, const char *anchor) {
  const json_t *of = json_object_get(w->dynamic, anchor);
  const char *base, *root = json_string_value(json_object_get(of, w->r->base == NULL ? "" : w->r->base));
  json_t *value;
  if (root != NULL || json_object_size(of) != 1) return root;
  json_object_foreach((json_t *)of, base, value) root = json_string_value(value);
  return root;
}

static void rewrite_dynamic(reference_walk *w, json_t *schema, const char *base) {
  const char *reference = json_string_value(json_object_get(schema, "$dynamicRef"));
  if (reference == NULL) return;
  char *uri = resolve_uri(w, base, reference), *path = uri == NULL ? NULL : find_place(w, uri);
  size_t n = uri == NULL ? 0 : strcspn(uri, "#");
  const char *anchor = uri != NULL && uri[n] == '#' ? uri + n + 1 : "", *to = path;
  if (path != NULL) {
    char *resource = weft_strndup(uri, n);
    if (resource == NULL) schema_fail(w->r, WEFT_E_NO_MEMORY, "no memory for it");
    bool dynamic = resource != NULL && json_object_get(json_object_get(w->dynamic, anchor), resource) != NULL;
    if (dynamic) to = find_dynamic(w, anchor);
    weft_free(resource);
  }
  if (to != NULL) {
    w->r->refers = true;
    json_t *own = json_pack("{s:s}", "$ref", to), *all = json_object_get(schema, "allOf");
    bool plain = json_object_get(schema, "$ref") == NULL;
    if (plain) set_text(w, schema, "$ref", to);
    if (!plain && all == NULL) schema_set(w->r, schema, "allOf", all = json_array());
    if (!plain && json_array_append(all, own) != 0) schema_fail(w->r, WEFT_E_NO_MEMORY, "no memory for it");
    json_decref(own);
    (void)json_object_del(schema, "$dynamicRef");
  }
  weft_free(uri);
  weft_free(path);
}

/* null as a value counts as left out, but for a constant; keys of the reader's own are none of a schema's. */
static void drop_nothings(json_t *schema) {
  const char *key;
  json_t *value;
  void *next;
  json_object_foreach_safe(schema, next, key, value) {
    bool constant = strcmp(key, "const") == 0;
    if (key[0] == '\001' || (json_is_null(value) && !constant)) (void)json_object_del(schema, key);
  }
}

static void walk_schema(reference_walk *w, json_t *schema, const char *base, uint32_t depth) {
  const char *key, *id = json_string_value(json_object_get(schema, "$id"));
  json_t *value;
  char *own = NULL;
  if (!json_is_object(schema) || !builder_step(w->r->b, 32 + w->path.n / 16)) return;
  if (weft_text_status(&w->path) != WEFT_OK) {
    schema_fail(w->r, WEFT_E_NO_MEMORY, "no memory for it");
    return;
  }
  if (depth > 2 * GRAMMAR_NEST_MAX) {
    schema_fail(w->r, WEFT_E_TOO_LARGE, "the schema is nested more than %d deep", GRAMMAR_NEST_MAX);
    return;
  }
  if (w->old && json_object_get(schema, "$ref") != NULL) id = NULL;
  if (id != NULL && id[0] != '#' && (own = resolve_uri(w, base, id)) != NULL) {
    base = own;
    if (!w->rewrites) set_place(w, w->places, base, w->path.bytes, w->path.n);
  }
  if (w->path.n == 1 && !w->rewrites) {
    set_place(w, w->places, base, w->path.bytes, w->path.n);
    w->r->base = weft_strndup(base, strlen(base));
    if (w->r->base == NULL) schema_fail(w->r, WEFT_E_NO_MEMORY, "no memory for it");
  }
  if (!w->rewrites) {
    drop_nothings(schema);
    note_anchor(w, schema, "$anchor", base);
    if (w->old && id != NULL && id[0] == '#') note_anchor(w, schema, "$id", base);
    note_anchor(w, schema, "$dynamicAnchor", base);
  } else {
    rewrite_reference(w, schema, base);
    rewrite_dynamic(w, schema, base);
  }
  json_object_foreach(schema, key, value) walk_keyword(w, key, value, base, depth);
  weft_free(own);
}

void schema_settle_references(schema_reader *r) {
  reference_walk w = {.r = r, .places = json_object(), .dynamic = json_object()};
  weft_text_puts(&w.path, "#");
  if (w.places == NULL || w.dynamic == NULL) schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
  const char *draft = json_string_value(json_object_get(r->root, "$schema"));
  w.old = draft != NULL && strstr(draft, "/draft-0") != NULL;
  if (builder_ok(r->b)) walk_schema(&w, r->root, "", 0);
  w.rewrites = true;
  if (builder_ok(r->b)) walk_schema(&w, r->root, "", 0);
  json_decref(w.places);
  json_decref(w.dynamic);
  weft_text_free(&w.path);
}
