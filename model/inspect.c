/* SPDX-License-Identifier: MIT */
#include "model/eight_bits.h"
#include "model/inspect.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "model/inspect_report.h"
#include "model/models.h"

/* COLUMNS: kinds of layers that get a column of their own in the table of memory. */
enum { SHOWN_ELEMENTS = 6, SHOWN_BYTES = 96, COLUMNS = 6 };

/* ---- values ---- */

/* As a JSON string, cut after max bytes; bytes that are no UTF-8 become U+FFFD. */
static void put_string(weft_text *out, weft_bytes text, size_t max) {
  size_t at = 0, n = text.n < max ? text.n : max;
  weft_text_puts(out, "\"");
  while (at < n) {
    uint32_t c;
    size_t length = weft_utf8_decode(text.data + at, text.n - at, &c);
    if (length == 0) {
      weft_text_puts(out, "\xEF\xBF\xBD");
      length = 1;
    } else if (c == '"' || c == '\\') {
      weft_text_printf(out, "\\%c", (int)c);
    } else if (c == '\n') {
      weft_text_puts(out, "\\n");
    } else if (c < 0x20 || c == 0x7F) {
      weft_text_printf(out, "\\u%04" PRIx32, c);
    } else {
      weft_text_append(out, text.data + at, length);
    }
    at += length;
  }
  weft_text_puts(out, "\"");
}

static void put_zero_ended(weft_text *out, const char *text) {
  put_string(out, (weft_bytes){text, strlen(text)}, SIZE_MAX);
}

/* Shortest decimal that reads back as the same float; JSON has no words for NaN and infinity. */
static void put_real(weft_text *out, double value, bool is_double) {
  char digits[40];
  if (!isfinite(value)) {
    weft_text_puts(out, isnan(value) ? "\"nan\"" : value > 0 ? "\"inf\"" : "\"-inf\"");
    return;
  }
  if (value == rint(value) && fabs(value) < 1e15) {
    weft_text_printf(out, "%.0f", value);
    return;
  }
  for (int n = 1; n <= 17; n++) {
    double back;
    (void)snprintf(digits, sizeof digits, "%.*g", n, value);
    if (sscanf(digits, "%lf", &back) == 1 && (is_double ? back == value : (float)back == (float)value)) {
      break;
    }
  }
  weft_text_puts(out, digits);
}

static void put_number(weft_text *out, weft_gguf_kind kind, const uint8_t *at) {
  uint64_t raw = 0;
  uint32_t n_bytes = gguf_kind_bytes(kind), unused = 64 - 8 * n_bytes;
  memcpy(&raw, at, n_bytes);
  if (kind == WEFT_GGUF_BOOL) {
    weft_text_puts(out, raw != 0 ? "true" : "false");
  } else if (kind == WEFT_GGUF_F32) {
    float value;
    memcpy(&value, at, sizeof value);
    put_real(out, (double)value, false);
  } else if (kind == WEFT_GGUF_F64) {
    double value;
    memcpy(&value, at, sizeof value);
    put_real(out, value, true);
  } else if (kind == WEFT_GGUF_I8 || kind == WEFT_GGUF_I16 || kind == WEFT_GGUF_I32 || kind == WEFT_GGUF_I64) {
    weft_text_printf(out, "%" PRId64, (int64_t)(raw << unused) >> unused);
  } else {
    weft_text_printf(out, "%" PRIu64, raw);
  }
}

static void put_element(weft_text *out, const gguf_key *key, uint64_t i, size_t max) {
  if (key->element != WEFT_GGUF_STRING) {
    put_number(out, key->element, key->value + i * gguf_kind_bytes(key->element));
    return;
  }
  uint64_t n;
  const uint8_t *at = key->value + key->offsets[i];
  memcpy(&n, at, sizeof n);
  put_string(out, (weft_bytes){(const char *)at + 8, (size_t)n}, max);
}

static void put_elements(weft_text *out, const gguf_key *key, uint64_t n, size_t max) {
  weft_text_puts(out, "[");
  for (uint64_t i = 0; i < n; i++) {
    if (i > 0) weft_text_puts(out, ", ");
    put_element(out, key, i, max);
  }
  weft_text_puts(out, "]");
}

/* ---- for a person ---- */

static void put_bytes(weft_text *out, uint64_t n) {
  static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = (double)n;
  uint32_t u = 0;
  while (value >= 1024 && u < 4) {
    value /= 1024;
    u++;
  }
  weft_text_printf(out, u == 0 ? "%.0f %s" : "%.2f %s", value, units[u]);
}

static void text_key(weft_text *out, const gguf_key *key) {
  char shown[GGUF_SHOWN];
  weft_text_printf(out, "  %-46s ", gguf_show(key->name, shown));
  if (key->kind == WEFT_GGUF_STRING) {
    put_string(out, (weft_bytes){(const char *)key->value, (size_t)key->count}, SHOWN_BYTES);
    if (key->count > SHOWN_BYTES) weft_text_printf(out, "... (%" PRIu64 " bytes)", key->count);
  } else if (key->kind == WEFT_GGUF_ARRAY) {
    bool all = key->count <= SHOWN_ELEMENTS || (key->element != WEFT_GGUF_STRING && key->count <= 64);
    put_elements(out, key, all ? key->count : SHOWN_ELEMENTS, 32);
    if (!all) {
      weft_text_printf(out, "... (%" PRIu64 " of %s)", key->count, gguf_kind_name(key->element));
    }
  } else {
    put_number(out, key->kind, key->value);
  }
  weft_text_puts(out, "\n");
}

/* Integers are read where they are a table of experts, and nowhere else. */
static const char *note_type(const inspect_report *r, uint32_t id, bool computed) {
  bool is_table = strcmp(weft_type_name_of_id((int32_t)id), "I32") == 0 && r->hyper.latent.n_hashed > 0;
  return computed || is_table ? "\n" : "  (weft does not compute this type)\n";
}

static void text_tensors(const inspect_report *r, weft_text *out) {
  char name[INSPECT_TYPE_NAME];
  weft_text_printf(out, "tensors (%" PRIu32 ")\n", weft_gguf_n_tensors(r->gguf));
  for (uint32_t i = 0; i < weft_gguf_n_tensors(r->gguf); i++) {
    const weft_gguf_tensor *tensor = weft_gguf_tensor_at(r->gguf, i);
    char shape[96], shown[GGUF_SHOWN];
    int at = snprintf(shape, sizeof shape, "%" PRIu64, tensor->ne[0]);
    for (uint32_t d = 1; d < tensor->n_dims; d++) {
      at += snprintf(shape + at, sizeof shape - (size_t)at, " x %" PRIu64, tensor->ne[d]);
    }
    weft_text_printf(out, "  %-40s %-5s %-22s ", gguf_show((weft_bytes){tensor->name, strlen(tensor->name)}, shown),
                     inspect_type_name(tensor->type_id, name), shape);
    put_bytes(out, tensor->n_bytes);
    weft_text_puts(out, note_type(r, tensor->type_id, tensor->type != WEFT_TYPE_NONE));
  }
  weft_text_puts(out, "types\n");
  for (uint32_t t = 0; t < r->n_types; t++) {
    const inspect_type *type = &r->types[t];
    weft_text_printf(out, "  %-8s %5" PRIu64 " tensors  ", inspect_type_name(type->id, name), type->n_tensors);
    put_bytes(out, type->n_bytes);
    weft_text_puts(out, note_type(r, type->id, type->computed));
  }
}

static void text_model(const inspect_report *r, weft_text *out) {
  const model_hyper *h = &r->hyper;
  weft_text_printf(out,
                   "model\n  %s: %" PRIu32 " layers, hidden %" PRIu32 ", vocabulary %" PRIu32 ", context %" PRIu32 "\n",
                   h->arch, h->n_layers, h->n_hidden, h->n_vocab, h->context_length);
  if (h->n_experts > 0) {
    weft_text_printf(out, "  experts: %" PRIu32 " of %" PRIu32 " per token, width %" PRIu32 "\n", h->n_experts_used,
                     h->n_experts, h->n_expert_ff);
  }
  if (h->n_layers_left_out > 0) {
    weft_text_printf(
        out, "  left out: %" PRIu32 " more layer%s that guess%s tokens ahead (nextn), %" PRIu64 " tensors, ",
        h->n_layers_left_out, h->n_layers_left_out > 1 ? "s" : "", h->n_layers_left_out > 1 ? "" : "es", r->n_left_out);
    put_bytes(out, r->left_out_bytes);
    weft_text_puts(out, "\n");
  }
  if (h->canvas_length > 0) {
    const weft_entropy_bound *eb = &h->entropy_bound;
    weft_text_printf(out,
                     "  canvas: %" PRIu32 " tokens, at most %" PRIu32
                     " steps, temperature %g to %g, entropy bound %g, stability %" PRId32 ", confidence %g\n",
                     h->canvas_length, eb->max_steps, (double)eb->t_max, (double)eb->t_min, (double)eb->entropy_bound,
                     eb->stability, (double)eb->confidence);
  }
}

static void text_groups(const inspect_report *r, weft_text *out) {
  weft_text_puts(out, "\n  page                         ");
  put_bytes(out, r->layout.page_bytes);
  weft_text_printf(out, ", padding %.2f %%\n", 100 * r->layout.padding);
  for (uint32_t g = 0; g < r->layout.n_groups; g++) {
    const weft_layer_group *group = &r->layout.group[g];
    weft_text_printf(out, "    group %-2" PRIu32 " %3" PRIu32 " layers x %3" PRIu32 " tokens, ", g, group->n_layers,
                     group->block_tokens);
    weft_kv_group_print(&r->layout, g, out);
    if (group->from_border)
      weft_text_printf(out, ", since a border at every %" PRIu32, group->window);
    else if (group->state_pages == 0)
      weft_text_printf(out, ", window %" PRIu32, group->window);
    weft_text_puts(out, "\n");
  }
}

static void put_cell(weft_text *out, uint64_t n_bytes) {
  weft_text cell = {0};
  put_bytes(&cell, n_bytes);
  weft_text_printf(out, " %14s", weft_text_status(&cell) == WEFT_OK ? cell.bytes : "?");
  weft_text_free(&cell);
}

/* A row for each length: weights and keys of one sequence, its keys, and those of each kind of layer. */
static void text_contexts(const inspect_report *r, weft_text *out) {
  uint32_t n_columns = r->n_layers < COLUMNS ? r->n_layers : COLUMNS;
  uint64_t length;
  weft_text_puts(out, "  one sequence   with weights             KV");
  for (uint32_t k = 0; k < n_columns; k++) {
    const inspect_layers *kind = &r->layers[k];
    char title[32] = "all tokens";
    if (kind->window > 0)
      (void)snprintf(title, sizeof title, "%s %" PRIu32, kind->from_border ? "border" : "window", kind->window);
    weft_text_printf(out, " %14s", title);
  }
  for (uint32_t i = 0; (length = inspect_length(r, i)) > 0; i++) {
    uint64_t kv = inspect_sequence_bytes(r, length);
    weft_text_printf(out, "\n  %7" PRIu64 " tok.", length);
    put_cell(out, inspect_weight_bytes(r) + kv);
    put_cell(out, kv);
    for (uint32_t k = 0; k < n_columns; k++) put_cell(out, inspect_layers_bytes(r, &r->layers[k], length));
  }
  weft_text_puts(out, "\n");
}

static void text_memory(const inspect_report *r, weft_text *out) {
  weft_text_puts(out, "memory\n  weights                      ");
  put_bytes(out, inspect_weight_bytes(r));
  if (r->keys != WEFT_OK) {
    weft_text_puts(out, "\n");
    return;
  }
  weft_text_printf(out, "\n  KV per token (%s)          ", weft_type_name_of_id((int32_t)r->geometry.set[0].rows.type));
  put_bytes(out, weft_kv_bytes_per_token(&r->geometry, false));
  weft_text_puts(out, ", once windows are full ");
  put_bytes(out, weft_kv_bytes_per_token(&r->geometry, true));
  if (weft_kv_state_bytes(&r->geometry) > 0) {
    weft_text_puts(out, "\n  state of one sequence        ");
    put_bytes(out, weft_kv_state_bytes(&r->geometry));
    weft_text_puts(out, ", a second one while a step reaches a border, and as much for each snapshot");
  }
  if (inspect_border_bytes(r) > 0) {
    weft_text_puts(out, "\n  rows since a border          up to ");
    put_bytes(out, inspect_border_bytes(r));
    weft_text_puts(out, " of one sequence, at a border none, and ");
    put_bytes(out, weft_kv_bytes_per_token(&r->geometry, false) - weft_kv_bytes_per_token(&r->geometry, true));
    weft_text_puts(out, " for each row of a prompt in a step");
  }
  text_groups(r, out);
  text_contexts(r, out);
}

/* What a card would multiply in, where nothing is asked. */
static void text_precision(const inspect_report *r, weft_text *out) {
  weft_eight_bits facts = weft_eight_bits_of(r->gguf);
  char why[160];
  weft_eight_bits_say(&facts, why, sizeof why);
  weft_text_printf(out, "precision\n  auto on a GPU: %s, since %s\n",
                   facts.fits ? "fast, products of 8 bits" : "exact, products of 16 bits", why);
}

static void text_verdict(const inspect_report *r, weft_text *out) {
  if (r->serves != WEFT_OK) {
    weft_text_printf(out, "weft refuses this file: %s\n", r->refusal.text);
  } else if (r->chat != WEFT_OK) {
    weft_text_printf(out, "weft serves this file, without chat: %s\n", r->chat_line.text);
  } else {
    weft_text_puts(out, "weft serves this file\n");
  }
}

static void write_text(const inspect_report *r, weft_text *out) {
  weft_text_printf(out, "%s\n  name        ", weft_gguf_path(r->gguf));
  put_zero_ended(out, r->name);
  weft_text_puts(out, "\n  file        ");
  put_bytes(out, weft_gguf_file_bytes(r->gguf));
  weft_text_printf(out,
                   ", %" PRIu32 " part(s)\n  parameters  %" PRIu64 "\n  fingerprint %016" PRIx64 "%016" PRIx64
                   "\nmetadata (%" PRIu32 ")\n",
                   r->gguf->n_parts, r->n_elements, r->fingerprint_high, r->fingerprint_low, weft_gguf_n_keys(r->gguf));
  for (uint32_t i = 0; i < weft_gguf_n_keys(r->gguf); i++) text_key(out, &r->gguf->parts[0].keys[i]);
  text_tensors(r, out);
  weft_text_printf(out, "chat template\n  %s\n", r->family != NULL ? r->family : "none");
  if (r->keys == WEFT_OK) text_model(r, out);
  text_memory(r, out);
  text_precision(r, out);
  text_verdict(r, out);
}

/* ---- JSON ---- */

static void json_key(weft_text *out, const gguf_key *key) {
  weft_text_printf(out, "{\"key\": ");
  put_string(out, key->name, SIZE_MAX);
  weft_text_printf(out, ", \"type\": \"%s\", ", gguf_kind_name(key->kind));
  if (key->kind == WEFT_GGUF_ARRAY) {
    uint64_t n = key->element == WEFT_GGUF_STRING || key->count > 1024 ? SHOWN_ELEMENTS : key->count;
    weft_text_printf(out, "\"element\": \"%s\", \"count\": %" PRIu64 ", \"%s\": ", gguf_kind_name(key->element),
                     key->count, n < key->count ? "first" : "value");
    put_elements(out, key, n < key->count ? n : key->count, SIZE_MAX);
  } else {
    weft_text_puts(out, "\"value\": ");
    if (key->kind == WEFT_GGUF_STRING) {
      put_string(out, (weft_bytes){(const char *)key->value, (size_t)key->count}, SIZE_MAX);
    } else {
      put_number(out, key->kind, key->value);
    }
  }
  weft_text_puts(out, "}");
}

static void json_tensors(const inspect_report *r, weft_text *out) {
  char name[INSPECT_TYPE_NAME];
  weft_text_puts(out, "  \"tensors\": [");
  for (uint32_t i = 0; i < weft_gguf_n_tensors(r->gguf); i++) {
    const weft_gguf_tensor *tensor = weft_gguf_tensor_at(r->gguf, i);
    weft_text_puts(out, i > 0 ? ",\n    {\"name\": " : "\n    {\"name\": ");
    put_zero_ended(out, tensor->name);
    weft_text_printf(out, ", \"type\": \"%s\", \"shape\": [", inspect_type_name(tensor->type_id, name));
    for (uint32_t d = 0; d < tensor->n_dims; d++) {
      weft_text_printf(out, "%s%" PRIu64, d > 0 ? ", " : "", tensor->ne[d]);
    }
    weft_text_printf(out, "], \"bytes\": %" PRIu64 "}", tensor->n_bytes);
  }
  weft_text_puts(out, "],\n  \"types\": {");
  const char *comma = "";
  for (uint32_t t = 0; t < r->n_types; t++) {
    const inspect_type *type = &r->types[t];
    weft_text_printf(out, "%s\"%s\": {\"tensors\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"computed\": %s}", comma,
                     inspect_type_name(type->id, name), type->n_tensors, type->n_bytes,
                     type->computed ? "true" : "false");
    comma = ", ";
  }
  weft_text_puts(out, "},\n");
}

static void json_model(const inspect_report *r, weft_text *out) {
  const model_hyper *h = &r->hyper;
  weft_text_printf(out,
                   "  \"model\": {\"architecture\": \"%s\", \"layers\": %" PRIu32 ", \"hidden\": %" PRIu32
                   ", \"vocabulary\": %" PRIu32 ", \"context\": %" PRIu32 ", \"experts\": %" PRIu32
                   ", \"experts_used\": %" PRIu32 ", \"canvas\": %" PRIu32 ", \"layers_left_out\": %" PRIu32
                   ", \"bytes_left_out\": %" PRIu64 "},\n",
                   h->arch, h->n_layers, h->n_hidden, h->n_vocab, h->context_length, h->n_experts, h->n_experts_used,
                   h->canvas_length, h->n_layers_left_out, r->left_out_bytes);
  weft_text_printf(out,
                   "  \"kv\": {\"type\": \"%s\", \"bytes_per_token\": %" PRIu64
                   ", \"bytes_per_token_windows_full\": %" PRIu64 ", \"state_bytes\": %" PRIu64
                   ", \"border_bytes\": %" PRIu64 ", \"page_bytes\": %" PRIu64 ", \"padding\": %.6f, \"groups\": [",
                   weft_type_name_of_id((int32_t)r->geometry.set[0].rows.type),
                   weft_kv_bytes_per_token(&r->geometry, false), weft_kv_bytes_per_token(&r->geometry, true),
                   weft_kv_state_bytes(&r->geometry), inspect_border_bytes(r), r->layout.page_bytes, r->layout.padding);
  for (uint32_t g = 0; g < r->layout.n_groups; g++) {
    const weft_layer_group *group = &r->layout.group[g];
    const weft_kv_rows *rows = weft_kv_group_rows(&r->layout, g);
    weft_text_printf(out,
                     "%s{\"layers\": %" PRIu32 ", \"block_tokens\": %" PRIu32 ", \"window\": %" PRIu32
                     ", \"from_border\": %s, \"kv_heads\": %" PRIu32 ", \"head_dim\": %" PRIu32
                     ", \"state_pages\": %" PRIu32 "}",
                     g > 0 ? ", " : "", group->n_layers, group->block_tokens, group->window,
                     group->from_border ? "true" : "false", rows->n_kv_heads, rows->head_dim, group->state_pages);
  }
  weft_text_puts(out, "]},\n");
}

static void json_contexts(const inspect_report *r, weft_text *out) {
  uint64_t length;
  weft_text_printf(out, "  \"memory\": {\"weights\": %" PRIu64 ", \"contexts\": [", inspect_weight_bytes(r));
  for (uint32_t i = 0; r->keys == WEFT_OK && (length = inspect_length(r, i)) > 0; i++) {
    weft_text_printf(out, "%s\n    {\"tokens\": %" PRIu64 ", \"kv\": %" PRIu64 ", \"layers\": [", i > 0 ? "," : "",
                     length, inspect_sequence_bytes(r, length));
    for (uint32_t k = 0; k < r->n_layers; k++) {
      const inspect_layers *kind = &r->layers[k];
      weft_text_printf(out, "%s{\"n\": %" PRIu32 ", \"window\": %" PRIu32 ", \"kv\": %" PRIu64 "}", k > 0 ? ", " : "",
                       kind->n_layers, kind->window, inspect_layers_bytes(r, kind, length));
    }
    weft_text_puts(out, "]}");
  }
  weft_text_puts(out, "]},\n");
}

static void put_line(weft_text *out, bool is_line, const char *text) {
  if (is_line) {
    put_zero_ended(out, text);
  } else {
    weft_text_puts(out, "null");
  }
}

static void json_precision(const inspect_report *r, weft_text *out) {
  weft_eight_bits facts = weft_eight_bits_of(r->gguf);
  char why[160];
  weft_eight_bits_say(&facts, why, sizeof why);
  weft_text_printf(out, "  \"auto_precision\": {\"on_a_gpu\": \"%s\", \"why\": ", facts.fits ? "fast" : "exact");
  put_zero_ended(out, why);
  weft_text_puts(out, "},\n");
}

static void write_json(const inspect_report *r, weft_text *out) {
  weft_text_puts(out, "{\n  \"file\": ");
  put_zero_ended(out, weft_gguf_path(r->gguf));
  weft_text_puts(out, ",\n  \"name\": ");
  put_zero_ended(out, r->name);
  weft_text_printf(out,
                   ",\n  \"bytes\": %" PRIu64 ",\n  \"parts\": %" PRIu32 ",\n  \"parameters\": %" PRIu64
                   ",\n  \"fingerprint\": \"%016" PRIx64 "%016" PRIx64 "\",\n  \"metadata\": [",
                   weft_gguf_file_bytes(r->gguf), r->gguf->n_parts, r->n_elements, r->fingerprint_high,
                   r->fingerprint_low);
  for (uint32_t i = 0; i < weft_gguf_n_keys(r->gguf); i++) {
    weft_text_puts(out, i > 0 ? ",\n    " : "\n    ");
    json_key(out, &r->gguf->parts[0].keys[i]);
  }
  weft_text_puts(out, "],\n");
  json_tensors(r, out);
  weft_text_puts(out, "  \"chat_template\": ");
  put_line(out, r->family != NULL, r->family);
  weft_text_puts(out, ",\n");
  if (r->keys == WEFT_OK) {
    json_model(r, out);
  } else {
    weft_text_puts(out, "  \"model\": null,\n  \"kv\": null,\n");
  }
  json_contexts(r, out);
  json_precision(r, out);
  weft_text_printf(out, "  \"serves\": %s,\n  \"refusal\": ", r->serves == WEFT_OK ? "true" : "false");
  put_line(out, r->serves != WEFT_OK, r->refusal.text);
  weft_text_puts(out, ",\n  \"chat_refusal\": ");
  put_line(out, r->chat != WEFT_OK, r->chat_line.text);
  weft_text_puts(out, "\n}\n");
}

weft_status weft_inspect(const weft_gguf *gguf, bool json, weft_text *out, weft_error *error) {
  inspect_report *r;
  weft_status status = inspect_report_open(gguf, &r, error);
  if (status != WEFT_OK) return status;
  if (json) {
    write_json(r, out);
  } else {
    write_text(r, out);
  }
  inspect_report_close(r);
  if (weft_text_status(out) == WEFT_OK) return WEFT_OK;
  return weft_fail(error, WEFT_E_NO_MEMORY, "%s: out of memory", weft_gguf_path(gguf));
}
