/* SPDX-License-Identifier: MIT */
#include "api/dialects/gen.h"

#include <stddef.h>
#include <string.h>

#include "base/memory.h"
#include "model/text/json_tree.h"

/* ---- memory ---- */

typedef struct gen_block {
  struct gen_block *next;
  max_align_t bytes[];
} gen_block;

void *weft_gen_alloc(weft_gen *gen, size_t n, size_t size) {
  size_t n_bytes;
  if (__builtin_mul_overflow(n, size, &n_bytes) || n_bytes > SIZE_MAX - sizeof(gen_block)) return NULL;
  gen_block *block = weft_alloc(1, sizeof *block + n_bytes);
  if (block == NULL) return NULL;
  block->next = gen->blocks;
  gen->blocks = block;
  return block->bytes;
}

void weft_gen_close(weft_gen *gen) {
  for (gen_block *block = gen->blocks, *next; block != NULL; block = next) {
    next = block->next;
    weft_free(block);
  }
  json_decref(gen->json);
  memset(gen, 0, sizeof *gen);
}

/* ---- the body ---- */

/* Refuses a body with too many values before it is parsed: unknown fields would take memory, too. */
static weft_status check_size(const char *body, size_t n, const weft_json_size *limits, weft_refusal *why) {
  weft_json_size size;
  size_t at = 0;
  const char *what = NULL;
  if (weft_json_scan(body, n, limits, &size, &at, &what)) return WEFT_OK;
  return weft_refuse(why, 400, "too_many_values", NULL,
                     "the body has too many %s at byte %zu; it may have %u lists, objects and strings, %u numbers, and "
                     "%u levels",
                     what, at, limits->values, limits->scalars, limits->depth);
}

/* How bytes that are no JSON were packed, where they say so. */
static const char *packed_as(const char *body, size_t n) {
  static const struct {
    const char *bytes, *name;
  } rows[] = {{"\x1F\x8B", "gzip"}, {"\x28\xB5\x2F\xFD", "zstd"}, {"\x78\x9C", "deflate"}, {"\x78\xDA", "deflate"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    size_t n_bytes = strlen(rows[i].bytes);
    if (n >= n_bytes && memcmp(body, rows[i].bytes, n_bytes) == 0) return rows[i].name;
  }
  return NULL;
}

/* Members that are schemas, in which a U+0000 is kept: answers must have it. */
static const char *const schemas[] = {"schema", "parameters",  "input_schema", "format",
                                      "json",   "guided_json", "json_schema",  NULL};

weft_status weft_body_load(const char *body, size_t n, const weft_json_size *limits, json_t **out, weft_refusal *why) {
  size_t bad_at;
  json_error_t error;
  *out = NULL;
  size_t mark = weft_utf8_mark(body, n);
  body += mark;
  n -= mark;
  if (n == 0) return weft_refuse(why, 400, "invalid_json", NULL, "the body is empty: send a JSON object");
  const char *packed = packed_as(body, n);
  if (packed != NULL) {
    return weft_refuse(why, 415, "unknown_content_coding", NULL,
                       "the body is packed (%s), which is not read here: send the JSON as it is", packed);
  }
  if (!weft_utf8_valid(body, n, &bad_at)) {
    return weft_refuse(why, 400, "invalid_json", NULL, "the body is not valid UTF-8 at byte %zu", bad_at);
  }
  weft_status status = check_size(body, n, limits, why);
  if (status != WEFT_OK) return status;
  json_t *root = weft_json_read(body, n, WEFT_JSON_ZEROS, &error);
  if (root == NULL) {
    return weft_refuse(why, 400, "invalid_json", NULL, "the body is not valid JSON at line %d, column %d (byte %d): %s",
                       error.line, error.column, error.position, error.text);
  }
  if (!json_is_object(root)) {
    json_decref(root);
    return weft_refuse(why, 400, "invalid_json", NULL, "the body must be a JSON object");
  }
  if (memmem(body, n, "\\u0000", 6) != NULL && !weft_json_drop_zeros(root, schemas)) {
    json_decref(root);
    return weft_refuse_status(why, WEFT_E_NO_MEMORY, "no memory for the request", false);
  }
  *out = root;
  return WEFT_OK;
}

weft_status weft_gen_open(weft_gen *gen, const char *body, size_t n, const weft_body_rules *rules, weft_refusal *why) {
  json_t *root;
  memset(gen, 0, sizeof *gen);
  weft_status status = weft_body_load(body, n, &rules->json, &root, why);
  if (status != WEFT_OK) return status;
  gen->json = root;
  gen->strict_fields = rules->strict_fields;
  gen->n_prompts = gen->wanted.n_choices = gen->wanted.n_given = 1;
  weft_generate_defaults(&gen->params);
  return WEFT_OK;
}
