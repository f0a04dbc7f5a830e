/* SPDX-License-Identifier: MIT */
#include "api/dialects/unread.h"

#include <stdio.h>
#include <string.h>

#include "model/text/json_tree.h"

const char *unread_kind(const char *type) {
  static const struct {
    const char *type, *words;
  } rows[] = {{"image", "an image"},
              {"image_url", "an image"},
              {"input_image", "an image"},
              {"output_image", "an image"},
              {"image_file", "an image"},
              {"screenshot", "an image"},
              {"input_screenshot", "an image"},
              {"computer_screenshot", "an image"},
              {"browser_screenshot", "an image"},
              {"audio", "a sound"},
              {"audio_url", "a sound"},
              {"input_audio", "a sound"},
              {"output_audio", "a sound"},
              {"video", "a video"},
              {"video_url", "a video"},
              {"input_video", "a video"},
              {"document", "a document"},
              {"document_url", "a document"},
              {"file", "a file"},
              {"file_url", "a file"},
              {"input_file", "a file"},
              {"output_file", "a file"},
              {"container_file", "a file"},
              {"container_upload", "a file"},
              {"media", "a file"}};
  for (size_t i = 0; type != NULL && i < FIELDS_COUNT(rows); i++) {
    if (strcmp(rows[i].type, type) == 0) return rows[i].words;
  }
  return NULL;
}

/* ---- names ---- */

static bool is_data_url(const char *text) {
  return strncmp(text, "data:", 5) == 0;
}

/* The first of these members that is a text a person can read. */
static const char *find_words(const json_t *object, const char *const *names, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const char *text = json_string_value(json_object_get(object, names[i]));
    if (text != NULL && *text != 0 && !is_data_url(text)) return text;
  }
  return NULL;
}

/* What a block is called, and where it can be had: in itself, or in the object that it wraps. */
static void put_names(const json_t *part, weft_text *out) {
  static const char *const titles[] = {"title", "filename", "file_name", "name"},
                           *const places[] = {"url", "uri", "image_url", "file_url", "document_url", "file_id"},
                           *const wraps[] = {"source",    "image_url",   "file",        "audio_url",
                                             "video_url", "input_audio", "document_url"};
  const char *title = find_words(part, titles, FIELDS_COUNT(titles)),
             *place = find_words(part, places, FIELDS_COUNT(places));
  for (size_t i = 0; i < FIELDS_COUNT(wraps); i++) {
    const json_t *inner = json_object_get(part, wraps[i]);
    if (title == NULL) title = find_words(inner, titles, FIELDS_COUNT(titles));
    if (place == NULL) place = find_words(inner, places, FIELDS_COUNT(places));
  }
  if (title == NULL && place == NULL) return;
  weft_text_puts(out, " (");
  weft_text_puts(out, title == NULL ? "" : title);
  weft_text_puts(out, title == NULL || place == NULL ? "" : ", ");
  weft_text_puts(out, place == NULL ? "" : place);
  weft_text_puts(out, ")");
}

weft_status unread_note(weft_gen *gen, const char *where, const char *kind, const json_t *part, const char *field,
                        weft_text *out, weft_refusal *why) {
  char what[64];
  weft_text_printf(out, "[%s", kind);
  put_names(part, out);
  weft_text_puts(out, ": this model reads only text]\n");
  (void)snprintf(what, sizeof what, "%.40s in the history", kind);
  return fields_pass(gen, where, what, field, why);
}

/* ---- any JSON ---- */

/* Whether the text is what a program encoded: bytes of a kind that is named beside it, or within a URL. */
static bool is_bytes(const json_t *object, const char *name, const char *text) {
  static const char *const marks[] = {"mimeType", "mime_type", "media_type"};
  if (is_data_url(text) && strstr(text, ";base64,") != NULL) return true;
  if (strcmp(name, "encrypted_content") == 0 || strcmp(name, "b64_json") == 0 || strcmp(name, "blob") == 0) return true;
  if (strcmp(name, "data") != 0) return false;
  const char *type = find_words(object, marks, FIELDS_COUNT(marks));
  return field_is(object, "type", "base64") || (type != NULL && strncmp(type, "text/", 5) != 0);
}

/* Puts words in the place of bytes, anywhere in the value, which is the caller's own. *found: there were any. */
static bool replace_bytes(json_t *value, bool *found) {
  const char *name;
  json_t *inner;
  size_t i;
  bool done = true;
  json_array_foreach(value, i, inner) done = replace_bytes(inner, found) && done;
  json_object_foreach(value, name, inner) {
    const char *text = json_string_value(inner);
    done = replace_bytes(inner, found) && done;
    if (text == NULL || !is_bytes(value, name, text)) continue;
    *found = true;
    done = json_object_set_new(value, name, json_string("[not text]")) == 0 && done;
  }
  return done;
}

static weft_status tell_json(weft_gen *gen, const char *where, const json_t *value, const char *field, weft_text *out,
                             weft_refusal *why) {
  bool found = false;
  json_t *told = json_deep_copy(value);
  bool done = told != NULL && replace_bytes(told, &found);
  if (done) weft_json_write(told, out);
  json_decref(told);
  if (!done) return field_no_memory(why);
  return found ? fields_pass(gen, where, "bytes that are no text in the history", field, why) : WEFT_OK;
}

/* ---- parts ---- */

weft_status unread_part(weft_gen *gen, const char *where, const json_t *part, const char *field, weft_text *out,
                        weft_refusal *why) {
  const char *type = json_string_value(json_object_get(part, "type")), *kind = unread_kind(type);
  const json_t *words = json_is_string(part) ? part : json_object_get(part, "text");
  if (type != NULL && strcmp(type, "refusal") == 0) words = json_object_get(part, "refusal");
  if (part == NULL || json_is_null(part)) return WEFT_OK;
  if (kind != NULL) return unread_note(gen, where, kind, part, field, out, why);
  if (json_is_string(words)) {
    weft_text_append(out, json_string_value(words), json_string_length(words));
    return WEFT_OK;
  }
  weft_status status = tell_json(gen, where, part, field, out, why);
  weft_text_puts(out, "\n");
  return status;
}

/* Whether it is a list of parts, and no list of values. */
static bool has_parts(const json_t *list) {
  size_t i;
  json_t *item;
  json_array_foreach(list, i, item) {
    if (json_is_string(json_object_get(item, "type"))) return true;
  }
  return false;
}

weft_status unread_result(weft_gen *gen, const char *where, const json_t *result, const char *field, weft_text *out,
                          weft_refusal *why) {
  weft_status status = WEFT_OK;
  bool part = json_is_string(result) || json_is_string(json_object_get(result, "type"));
  if (result == NULL || json_is_null(result)) return WEFT_OK;
  if (part) return unread_part(gen, where, result, field, out, why);
  if (json_is_array(result) && json_array_size(result) == 0) return WEFT_OK;
  if (!has_parts(result)) return tell_json(gen, where, result, field, out, why);
  for (size_t i = 0; i < json_array_size(result) && status == WEFT_OK; i++) {
    char name[112];
    (void)snprintf(name, sizeof name, "%.88s[%zu]", field, i);
    status = unread_part(gen, where, json_array_get(result, i), name, out, why);
  }
  return status;
}
