/* SPDX-License-Identifier: MIT */
/* Which files a name means. */
#include <ctype.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/cli/hub.h"
#include "base/memory.h"

/* ---- names ---- */

/* Letters, digits, points, dashes and underscores, and no name of a folder above. */
static bool is_plain_name(const char *text, size_t n) {
  bool plain = n > 0 && text[0] != '.';
  for (size_t i = 0; i < n && plain; i++)
    plain = isalnum((unsigned char)text[i]) != 0 || strchr("._-", text[i]) != NULL;
  return plain;
}

weft_status hub_name_read(const char *text, hub_name *out, weft_error *error) {
  const char *slash = strchr(text, '/'), *colon = strchr(text, ':'), *end = colon == NULL ? text + strlen(text) : colon;
  memset(out, 0, sizeof *out);
  bool good = slash != NULL && slash < end && is_plain_name(text, (size_t)(slash - text)) &&
              is_plain_name(slash + 1, (size_t)(end - slash - 1)) && (size_t)(slash - text) < sizeof out->owner &&
              (size_t)(end - slash - 1) < sizeof out->name;
  if (good && colon != NULL)
    good = is_plain_name(colon + 1, strlen(colon + 1)) && strlen(colon + 1) < sizeof out->quant;
  if (!good) {
    return weft_fail(
        error, WEFT_E_INVALID,
        "'%.64s' is no name of a model on a hub: write OWNER/NAME, or OWNER/NAME:Q4_K_M for one of its files", text);
  }
  memcpy(out->owner, text, (size_t)(slash - text));
  memcpy(out->name, slash + 1, (size_t)(end - slash - 1));
  if (colon != NULL) (void)snprintf(out->quant, sizeof out->quant, "%s", colon + 1);
  return WEFT_OK;
}

/* Every part of the path is a plain name. */
static bool is_safe_path(const char *path) {
  if (strlen(path) >= HUB_NAME_BYTES) return false;
  for (const char *at = path;; at++) {
    size_t n = strcspn(at, "/");
    if (!is_plain_name(at, n)) return false;
    at += n;
    if (*at == 0) return true;
  }
}

/* ---- the list ---- */

static int compare_files(const void *a, const void *b) {
  return strcmp(((const hub_file *)a)->path, ((const hub_file *)b)->path);
}

static bool is_sha256(const char *text) {
  return text != NULL && strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64;
}

weft_status hub_list_read(const char *text, size_t n, hub_list *out, weft_error *error) {
  json_error_t where;
  size_t i;
  json_t *root = json_loadb(text, n, 0, &where), *entry;
  *out = (hub_list){0};
  if (!json_is_array(root)) {
    json_decref(root);
    return weft_fail(error, WEFT_E_FORMAT, "the hub's list of files is none: is --hub the address of a hub?");
  }
  out->file = weft_alloc(json_array_size(root) + 1, sizeof *out->file);
  if (out->file == NULL) {
    json_decref(root);
    return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the hub's list of files");
  }
  json_array_foreach(root, i, entry) {
    const char *path = json_string_value(json_object_get(entry, "path"));
    const char *type = json_string_value(json_object_get(entry, "type"));
    const json_t *lfs = json_object_get(entry, "lfs");
    json_int_t size = json_integer_value(json_object_get(lfs, "size"));
    const char *sha256 = json_string_value(json_object_get(lfs, "oid"));
    if (size <= 0) size = json_integer_value(json_object_get(entry, "size"));
    if (path == NULL || type == NULL || strcmp(type, "file") != 0 || !is_safe_path(path) || size <= 0) continue;
    if (out->n == HUB_FILES_MAX) break;
    hub_file *f = &out->file[out->n++];
    (void)snprintf(f->path, sizeof f->path, "%s", path);
    (void)snprintf(f->sha256, sizeof f->sha256, "%s", is_sha256(sha256) ? sha256 : "");
    f->n_bytes = (uint64_t)size;
  }
  json_decref(root);
  qsort(out->file, out->n, sizeof *out->file, compare_files);
  return WEFT_OK;
}

void hub_list_free(hub_list *list) {
  weft_free(list->file);
  *list = (hub_list){0};
}

/* ---- the choice ---- */

/* "-00002-of-00003.gguf": the part, and how many there are; false: it is not split. */
static bool read_split(const char *path, uint32_t *part, uint32_t *n) {
  static const size_t n_tail = sizeof "-00001-of-00001.gguf" - 1;
  size_t n_path = strlen(path);
  int end = 0;
  if (n_path < n_tail) return false;
  const char *tail = path + n_path - n_tail;
  return sscanf(tail, "-%5" SCNu32 "-of-%5" SCNu32 ".gguf%n", part, n, &end) == 2 && end == (int)n_tail && *part >= 1 &&
         *part <= *n;
}

uint32_t hub_parts(const char *path) {
  uint32_t part, n;
  return read_split(path, &part, &n) ? n : 1;
}

void hub_part_path(const char *path, uint32_t part, char out[HUB_NAME_BYTES]) {
  uint32_t first, n;
  (void)snprintf(out, HUB_NAME_BYTES, "%s", path);
  size_t n_stem = strlen(path);
  if (!read_split(path, &first, &n)) return;
  n_stem -= sizeof "-00001-of-00001.gguf" - 1;
  (void)snprintf(out + n_stem, HUB_NAME_BYTES - n_stem, "-%05u-of-%05u.gguf", part, n);
}

/* A file that holds a model, or the first part of one: encoders of images and matrices of importance lie beside them. */
static bool is_model(const hub_file *f) {
  const char *slash = strrchr(f->path, '/'), *name = slash == NULL ? f->path : slash + 1;
  uint32_t part = 1, n = 1;
  size_t length = strlen(name);
  if (length < 6 || strcasecmp(name + length - 5, ".gguf") != 0) return false;
  if (strncasecmp(name, "mmproj", 6) == 0 || strcasestr(name, "imatrix") != NULL) return false;
  return !read_split(name, &part, &n) || part == 1;
}

/* The path names the quant as a word of its own: what stands before and behind it is no letter and no digit. */
static bool has_quant(const char *path, const char *quant) {
  size_t n = strlen(quant);
  for (const char *at = path; (at = strcasestr(at, quant)) != NULL; at++) {
    bool begins = at == path || isalnum((unsigned char)at[-1]) == 0;
    bool ends = isalnum((unsigned char)at[n]) == 0 && at[n] != '_';
    if (begins && ends) return true;
  }
  return false;
}

const hub_file *hub_choose(const hub_list *list, const hub_name *name, weft_error *error) {
  const hub_file *first = NULL, *usual = NULL;
  char there[320] = "";
  size_t n = 0;
  for (uint32_t i = 0; i < list->n; i++) {
    const hub_file *f = &list->file[i];
    if (!is_model(f)) continue;
    if (name->quant[0] != 0 && has_quant(f->path, name->quant)) return f;
    if (first == NULL) first = f;
    if (usual == NULL && has_quant(f->path, "Q4_K_M")) usual = f;
    if (n + strlen(f->path) + 3 < sizeof there)
      n += (size_t)snprintf(there + n, sizeof there - n, "%s%s", n > 0 ? ", " : "", f->path);
  }
  if (name->quant[0] == 0 && first != NULL) return usual != NULL ? usual : first;
  if (first == NULL) {
    (void)weft_fail(error, WEFT_E_NOT_FOUND, "%s/%s has no GGUF file: look for one of its name with -GGUF", name->owner,
                    name->name);
  } else {
    (void)weft_fail(error, WEFT_E_NOT_FOUND, "%s/%s has no file of '%s'; there is %s", name->owner, name->name,
                    name->quant, there);
  }
  return NULL;
}
