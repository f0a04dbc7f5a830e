/* SPDX-License-Identifier: MIT */
#include "api/weights_manifest.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "api/json.h"
#include "base/memory.h"
#include "kernels/canvas_head.h"

enum { WEIGHT_ALIGN = 64, WEIGHT_MEMBERS = 11 };

weights_digest weights_manifest_digest(const char *bytes, size_t n) {
  XXH128_hash_t hash = XXH3_128bits(bytes, n);
  return (weights_digest){hash.low64, hash.high64};
}

/* ---- models ---- */

weft_status weights_model_add(weights_model *m, const weft_shelf_weight *weight) {
  weft_shelf_weight *more = weft_grow(m->weight, m->n_weights, &m->weights_max, 256, sizeof *more);
  if (more == NULL) return WEFT_E_NO_MEMORY;
  m->weight = more;
  m->weight[m->n_weights++] = *weight;
  return WEFT_OK;
}

static int compare_names(const void *a, const void *b) {
  const weft_shelf_weight *x = a, *y = b;
  int order = strcmp(x->name, y->name);
  if (order == 0) order = (x->uses > y->uses) - (x->uses < y->uses);
  return order != 0 ? order : (x->place > y->place) - (x->place < y->place);
}

const weft_shelf_weight *weights_model_find(const weights_model *m, const char *name, uint32_t uses, uint32_t place) {
  weft_shelf_weight wanted = {.uses = uses, .place = place};
  if (strlen(name) >= sizeof wanted.name || m->n_weights == 0) return NULL;
  memcpy(wanted.name, name, strlen(name));
  return bsearch(&wanted, m->weight, m->n_weights, sizeof wanted, compare_names);
}

const weights_model *weights_manifest_find(const weights_manifest *m, uint64_t low, uint64_t high) {
  for (uint32_t i = 0; i < m->n_models; i++) {
    if (m->model[i].fingerprint_low == low && m->model[i].fingerprint_high == high) return &m->model[i];
  }
  return NULL;
}

uint32_t weights_piece_place(const weights_manifest *m, uint32_t piece) {
  uint32_t place = 0;
  while (place + 1 < m->n_devices && piece >= m->first_piece[place + 1]) place++;
  return place;
}

uint64_t weights_model_bytes(const weights_model *m) {
  uint64_t n_bytes = 0;
  for (uint32_t i = 0; i < m->n_weights; i++) n_bytes += m->weight[i].n_bytes;
  return n_bytes;
}

void weights_manifest_free(weights_manifest *m) {
  for (uint32_t i = 0; i < m->n_models; i++) {
    weft_free(m->model[i].file);
    weft_free(m->model[i].weight);
  }
  weft_free(m->socket);
  weft_free(m->piece);
  *m = (weights_manifest){.pid = 0};
}

/* ---- the law ---- */

static weft_status fail_form(weft_error *error, const char *what, const char *where) {
  return weft_fail(error, WEFT_E_FORMAT, "%s: %.200s", what, where);
}

static weft_status check_weight(const weights_manifest *m, const weft_shelf_weight *w, weft_error *error) {
  uint32_t uses = w->uses & WEFT_USE_EMBED ? w->uses & ~(uint32_t)WEFT_USE_CANVASES : w->uses;
  bool shape = w->n_in > 0 && w->n_out > 0 && w->n_mats > 0 && uses > 0 &&
               uses <= (WEFT_USE_MATMUL | WEFT_USE_EXPERTS | WEFT_USE_EMBED);
  if (w->name[0] == 0 || !shape || weft_type_find((int32_t)w->type) == NULL)
    return fail_form(error, "a matrix has a type, a shape or uses that no matrix has", w->name);
  bool inside = w->piece < m->n_pieces && w->place == weights_piece_place(m, w->piece) && w->n_bytes > 0 &&
                w->at % WEIGHT_ALIGN == 0 && w->at < m->piece[w->piece] && w->n_bytes <= m->piece[w->piece] - w->at;
  return inside ? WEFT_OK : fail_form(error, "a matrix does not lie inside its piece of memory", w->name);
}

static weft_status check_model(const weights_manifest *m, const weights_model *model, weft_error *error) {
  for (uint32_t i = 0; i < model->n_weights; i++) {
    weft_status status = check_weight(m, &model->weight[i], error);
    if (status != WEFT_OK) return status;
    if (i > 0 && compare_names(&model->weight[i - 1], &model->weight[i]) == 0)
      return fail_form(error, "a matrix comes twice", model->weight[i].name);
  }
  for (uint32_t p = 0; p < m->n_devices / m->n_shards; p++) {
    bool grows = p == 0 ? model->first_layer[0] == 0 : model->first_layer[p] > model->first_layer[p - 1];
    if (!grows) return fail_form(error, "the parts of a model are in no order", model->file);
  }
  bool other = weights_manifest_find(m, model->fingerprint_low, model->fingerprint_high) != model;
  return other ? fail_form(error, "two models are the same file", model->file) : WEFT_OK;
}

static int compare_places(const void *a, const void *b) {
  const weft_shelf_weight *x = *(const weft_shelf_weight *const *)a, *y = *(const weft_shelf_weight *const *)b;
  if (x->piece != y->piece) return x->piece < y->piece ? -1 : 1;
  return (x->at > y->at) - (x->at < y->at);
}

static weft_status check_places(const weights_manifest *m, weft_error *error) {
  uint32_t n_all = 0, n = 0;
  for (uint32_t i = 0; i < m->n_models; i++) n_all += m->model[i].n_weights;
  const weft_shelf_weight **by_place = weft_alloc(n_all, sizeof *by_place);
  if (by_place == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a manifest");
  for (uint32_t i = 0; i < m->n_models; i++) {
    for (uint32_t k = 0; k < m->model[i].n_weights; k++) by_place[n++] = &m->model[i].weight[k];
  }
  if (n > 0) qsort(by_place, n, sizeof *by_place, compare_places);
  weft_status status = WEFT_OK;
  for (uint32_t i = 1; i < n && status == WEFT_OK; i++) {
    const weft_shelf_weight *before = by_place[i - 1], *w = by_place[i];
    if (before->piece == w->piece && before->at + before->n_bytes > w->at)
      status = fail_form(error, "two matrices share memory", w->name);
  }
  weft_free(by_place);
  return status;
}

weft_status weights_manifest_check(weights_manifest *m, weft_error *error) {
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < m->n_models; i++) {
    weights_model *model = &m->model[i];
    if (model->n_weights > 0) qsort(model->weight, model->n_weights, sizeof *model->weight, compare_names);
  }
  for (uint32_t i = 0; i < m->n_models && status == WEFT_OK; i++) status = check_model(m, &m->model[i], error);
  return status == WEFT_OK ? check_places(m, error) : status;
}

/* ---- writing ---- */

static void write_word(weft_text *out, const char *name, const char *word) {
  weft_text_printf(out, ",\n\"%s\":", name);
  weft_json_words(out, word);
}

static void write_model(const weights_model *m, uint32_t n_parts, weft_text *out) {
  weft_text_puts(out, "{\"file\":");
  weft_json_words(out, m->file);
  weft_text_printf(out, ",\"fingerprint\":\"%016" PRIx64 "%016" PRIx64 "\",\"drafts\":%s,\"first_layers\":[",
                   m->fingerprint_high, m->fingerprint_low, m->drafts ? "true" : "false");
  for (uint32_t p = 0; p < n_parts; p++) weft_text_printf(out, "%s%u", p == 0 ? "" : ",", m->first_layer[p]);
  weft_text_puts(out, "],\"weights\":[");
  for (uint32_t i = 0; i < m->n_weights; i++) {
    const weft_shelf_weight *w = &m->weight[i];
    weft_text_puts(out, i == 0 ? "\n[" : ",\n[");
    weft_json_words(out, w->name);
    weft_text_printf(out, ",%u,%u,%d,%u,%u,%u,%u,%u,%" PRIu64 ",%" PRIu64 "]", w->uses, w->place, (int)w->type,
                     w->layout, w->n_in, w->n_out, w->n_mats, w->piece, w->at, w->n_bytes);
  }
  weft_text_puts(out, "]}");
}

void weights_manifest_write(const weights_manifest *m, weft_text *out) {
  weft_text_printf(out, "{\"weft_weights\":%d,\n\"pid\":%u", WEIGHTS_MANIFEST_FORM, m->pid);
  write_word(out, "version", m->version);
  write_word(out, "socket", m->socket);
  write_word(out, "backend", m->backend);
  weft_text_puts(out, ",\n\"cards\":[");
  for (uint32_t i = 0; i < m->n_devices; i++) {
    if (i > 0) weft_text_puts(out, ",");
    weft_json_words(out, m->card[i]);
  }
  weft_text_printf(out, "],\n\"shards\":%u", m->n_shards);
  write_word(out, "set", m->set);
  write_word(out, "transport", m->transport);
  write_word(out, "scope", m->scope);
  weft_text_printf(out, ",\n\"products\":%u,\n\"integers\":%s,\n\"numerics\":[", m->products,
                   m->integers ? "true" : "false");
  for (uint32_t i = 0; i < m->n_numerics; i++) {
    weft_text_printf(out, "%s[%d,", i == 0 ? "" : ",", (int)m->numerics[i].type);
    weft_json_words(out, m->numerics[i].tag);
    weft_text_puts(out, "]");
  }
  weft_text_puts(out, "],\n\"pieces\":[");
  for (uint32_t d = 0; d < m->n_devices; d++) {
    weft_text_puts(out, d == 0 ? "[" : ",[");
    for (uint32_t i = m->first_piece[d]; i < m->first_piece[d + 1]; i++)
      weft_text_printf(out, "%s%" PRIu64, i == m->first_piece[d] ? "" : ",", m->piece[i]);
    weft_text_puts(out, "]");
  }
  weft_text_puts(out, "],\n\"models\":[");
  for (uint32_t i = 0; i < m->n_models; i++) {
    if (i > 0) weft_text_puts(out, ",\n");
    write_model(&m->model[i], m->n_devices / m->n_shards, out);
  }
  weft_text_puts(out, "]}\n");
}

/* ---- reading ---- */

static weft_status fail_member(weft_error *error, const char *name) {
  return fail_form(error, "a member is missing, or is not what it must be", name);
}

static bool read_u64(const json_t *value, uint64_t least, uint64_t most, uint64_t *out) {
  if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
  *out = (uint64_t)json_integer_value(value);
  return *out >= least && *out <= most;
}

static bool read_u32(const json_t *value, uint32_t least, uint32_t *out) {
  uint64_t number = 0;
  bool good = read_u64(value, least, INT32_MAX, &number);
  *out = (uint32_t)number;
  return good;
}

static bool read_bool(const json_t *value, bool *out) {
  *out = json_is_true(value);
  return json_is_boolean(value);
}

/* A text without a zero in it, that fits. */
static bool read_word(const json_t *value, char *out, size_t n_max) {
  const char *text = json_string_value(value);
  if (text == NULL || strlen(text) != json_string_length(value) || strlen(text) >= n_max) return false;
  memcpy(out, text, strlen(text) + 1);
  return true;
}

static weft_status read_text(const json_t *object, const char *name, char **out, weft_error *error) {
  const json_t *value = json_object_get(object, name);
  const char *text = json_string_value(value);
  if (text == NULL || strlen(text) != json_string_length(value)) return fail_member(error, name);
  *out = weft_strdup(text);
  return *out != NULL ? WEFT_OK : weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a manifest");
}

static bool read_fingerprint(const json_t *value, weights_model *m) {
  char hex[33], *end;
  if (!read_word(value, hex, sizeof hex) || strspn(hex, "0123456789abcdef") != 32) return false;
  m->fingerprint_low = strtoull(hex + 16, &end, 16);
  hex[16] = 0;
  m->fingerprint_high = strtoull(hex, &end, 16);
  return true;
}

static weft_status read_weight(const json_t *row, weights_model *m, weft_error *error) {
  weft_shelf_weight w = {.uses = 0};
  uint32_t type = 0;
  bool good = json_is_array(row) && json_array_size(row) == WEIGHT_MEMBERS &&
              read_word(json_array_get(row, 0), w.name, sizeof w.name) &&
              read_u32(json_array_get(row, 1), 1, &w.uses) && read_u32(json_array_get(row, 2), 0, &w.place) &&
              read_u32(json_array_get(row, 3), 0, &type) && read_u32(json_array_get(row, 4), 0, &w.layout) &&
              read_u32(json_array_get(row, 5), 1, &w.n_in) && read_u32(json_array_get(row, 6), 1, &w.n_out) &&
              read_u32(json_array_get(row, 7), 1, &w.n_mats) && read_u32(json_array_get(row, 8), 0, &w.piece) &&
              read_u64(json_array_get(row, 9), 0, INT64_MAX / 2, &w.at) &&
              read_u64(json_array_get(row, 10), 1, INT64_MAX / 2, &w.n_bytes);
  if (!good) return fail_member(error, w.name[0] != 0 ? w.name : "weights");
  w.type = (weft_type)type;
  return weights_model_add(m, &w) == WEFT_OK ? WEFT_OK : weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a manifest");
}

static weft_status read_model(const json_t *object, weights_manifest *out, weft_error *error) {
  const json_t *weights = json_object_get(object, "weights");
  if (out->n_models == WEIGHTS_MODELS_MAX) return fail_form(error, "there are too many models", "models");
  weights_model *m = &out->model[out->n_models++];
  const json_t *first = json_object_get(object, "first_layers");
  uint32_t n_parts = out->n_devices / out->n_shards;
  bool good = json_object_size(object) == 5 && json_is_array(weights) && json_array_size(weights) > 0 &&
              read_fingerprint(json_object_get(object, "fingerprint"), m) &&
              read_bool(json_object_get(object, "drafts"), &m->drafts) && json_array_size(first) == n_parts;
  for (uint32_t p = 0; good && p < n_parts; p++) good = read_u32(json_array_get(first, p), 0, &m->first_layer[p]);
  if (!good) return fail_member(error, "models");
  weft_status status = read_text(object, "file", &m->file, error);
  for (size_t i = 0; i < json_array_size(weights) && status == WEFT_OK; i++)
    status = read_weight(json_array_get(weights, i), m, error);
  return status;
}

static weft_status read_cards(const json_t *root, weights_manifest *out, weft_error *error) {
  const json_t *cards = json_object_get(root, "cards");
  size_t n = json_array_size(cards);
  if (n == 0 || n > WEFT_DEVICES_MAX) return fail_member(error, "cards");
  out->n_devices = (uint32_t)n;
  for (size_t i = 0; i < n; i++) {
    if (!read_word(json_array_get(cards, i), out->card[i], sizeof out->card[i])) return fail_member(error, "cards");
  }
  if (!read_u32(json_object_get(root, "shards"), 1, &out->n_shards) || n % out->n_shards != 0)
    return fail_member(error, "shards");
  return WEFT_OK;
}

/* A list of each device's. */
static weft_status read_pieces(const json_t *lists, weights_manifest *out, weft_error *error) {
  size_t n = 0, at = 0;
  if (json_array_size(lists) != out->n_devices) return fail_member(error, "pieces");
  for (uint32_t d = 0; d < out->n_devices; d++) n += json_array_size(json_array_get(lists, d));
  if (n == 0 || n > WEIGHTS_PIECES_MAX) return fail_member(error, "pieces");
  out->piece = weft_alloc(n, sizeof *out->piece);
  if (out->piece == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a manifest");
  for (uint32_t d = 0; d < out->n_devices; d++) {
    const json_t *pieces = json_array_get(lists, d);
    for (size_t i = 0; i < json_array_size(pieces); i++) {
      if (!read_u64(json_array_get(pieces, i), 1, INT64_MAX / 2, &out->piece[at++]))
        return fail_member(error, "pieces");
    }
    out->first_piece[d + 1] = (uint32_t)at;
  }
  out->n_pieces = (uint32_t)n;
  return WEFT_OK;
}

static weft_status read_numerics(const json_t *list, weights_manifest *out, weft_error *error) {
  size_t n = json_array_size(list);
  if (!json_is_array(list) || n > WEIGHTS_NUMERICS_MAX) return fail_member(error, "numerics");
  for (size_t i = 0; i < n; i++) {
    const json_t *row = json_array_get(list, i);
    uint32_t type;
    weights_numerics *one = &out->numerics[out->n_numerics++];
    if (json_array_size(row) != 2 || !read_u32(json_array_get(row, 0), 0, &type) ||
        !read_word(json_array_get(row, 1), one->tag, sizeof one->tag))
      return fail_member(error, "numerics");
    one->type = (weft_type)type;
  }
  return WEFT_OK;
}

static weft_status read_words(const json_t *root, weights_manifest *out, weft_error *error) {
  const struct {
    const char *name;
    char *out;
    size_t n_max;
  } words[] = {{"version", out->version, sizeof out->version},
               {"backend", out->backend, sizeof out->backend},
               {"set", out->set, sizeof out->set},
               {"transport", out->transport, sizeof out->transport},
               {"scope", out->scope, sizeof out->scope}};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    if (!read_word(json_object_get(root, words[i].name), words[i].out, words[i].n_max))
      return fail_member(error, words[i].name);
  }
  if (!read_u32(json_object_get(root, "pid"), 1, &out->pid)) return fail_member(error, "pid");
  if (!read_u32(json_object_get(root, "products"), 1, &out->products)) return fail_member(error, "products");
  if (!read_bool(json_object_get(root, "integers"), &out->integers)) return fail_member(error, "integers");
  return read_text(root, "socket", &out->socket, error);
}

static weft_status read_root(const json_t *root, weights_manifest *out, weft_error *error) {
  enum { MEMBERS = 15 };
  uint64_t form = 0;
  const json_t *models = json_object_get(root, "models");
  if (!read_u64(json_object_get(root, "weft_weights"), 0, UINT32_MAX, &form)) return fail_member(error, "weft_weights");
  if (form != WEIGHTS_MANIFEST_FORM)
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "its form is number %" PRIu64
                     ", and this version of weft reads number %d: run one version of both",
                     form, WEIGHTS_MANIFEST_FORM);
  if (json_object_size(root) != MEMBERS) return fail_form(error, "it has members beside those of its form", "models");
  weft_status status = read_words(root, out, error);
  if (status == WEFT_OK) status = read_numerics(json_object_get(root, "numerics"), out, error);
  if (status == WEFT_OK) status = read_cards(root, out, error);
  if (status == WEFT_OK) status = read_pieces(json_object_get(root, "pieces"), out, error);
  if (status == WEFT_OK && json_array_size(models) == 0) status = fail_member(error, "models");
  for (size_t i = 0; i < json_array_size(models) && status == WEFT_OK; i++)
    status = read_model(json_array_get(models, i), out, error);
  return status == WEFT_OK ? weights_manifest_check(out, error) : status;
}

weft_status weights_manifest_read(const char *bytes, size_t n, weights_manifest *out, weft_error *error) {
  json_error_t why;
  *out = (weights_manifest){.pid = 0};
  json_t *root = n == 0 || n > WEIGHTS_MANIFEST_BYTES ? NULL : json_loadb(bytes, n, JSON_REJECT_DUPLICATES, &why);
  if (root == NULL)
    return weft_fail(error, WEFT_E_FORMAT, "it is no JSON: %.160s",
                     n == 0                       ? "it is empty"
                     : n > WEIGHTS_MANIFEST_BYTES ? "it is too long"
                                                  : why.text);
  weft_status status = read_root(root, out, error);
  json_decref(root);
  return status;
}
