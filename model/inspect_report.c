/* SPDX-License-Identifier: MIT */
#include "model/inspect_report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/round.h"
#include "kernels/arena.h"
#include "model/inspect.h"
#include "model/models.h"
#include "model/text/chat.h"

/* ---- types ---- */

const char *inspect_type_name(uint32_t id, char out[INSPECT_TYPE_NAME]) {
  const char *name = id < WEFT_TYPE_ID_HELD ? weft_type_name_of_id((int32_t)id) : "unknown";
  if (strcmp(name, "unknown") == 0 || strcmp(name, "removed") == 0) {
    (void)snprintf(out, INSPECT_TYPE_NAME, "type %" PRIu32, id);
  } else {
    (void)snprintf(out, INSPECT_TYPE_NAME, "%s", name);
  }
  return out;
}

static int compare_types(const void *a, const void *b) {
  const inspect_type *x = a, *y = b;
  return x->id < y->id ? -1 : x->id > y->id;
}

/* One entry per tensor, sorted by type, then equal ones made one. */
static void count_types(inspect_report *r) {
  uint32_t n = weft_gguf_n_tensors(r->gguf);
  for (uint32_t i = 0; i < n; i++) {
    const weft_gguf_tensor *tensor = weft_gguf_tensor_at(r->gguf, i);
    r->types[i] = (inspect_type){tensor->type_id, tensor->type != WEFT_TYPE_NONE, 1, tensor->n_bytes};
    r->n_elements += tensor->ne[0] * tensor->ne[1] * tensor->ne[2] * tensor->ne[3];
    r->n_tensor_bytes += tensor->n_bytes;
  }
  qsort(r->types, n, sizeof *r->types, compare_types);
  for (uint32_t i = 0; i < n; i++) {
    inspect_type *last = r->n_types > 0 ? &r->types[r->n_types - 1] : NULL;
    if (last == NULL || last->id != r->types[i].id) {
      r->types[r->n_types++] = r->types[i];
    } else {
      last->n_tensors += 1;
      last->n_bytes += r->types[i].n_bytes;
    }
  }
}

/* ---- keys and values ---- */

static bool are_same_rows(const weft_kv_rows *a, const weft_kv_rows *b) {
  return a->type == b->type && a->n_kv_heads == b->n_kv_heads && a->head_dim == b->head_dim &&
         a->positions == b->positions && a->values_are_keys == b->values_are_keys;
}

static bool is_of_kind(const inspect_layers *layers, const weft_kv_set *set) {
  return are_same_rows(&layers->rows, &set->rows) && layers->window == set->window &&
         layers->from_border == set->from_border;
}

static void count_layers(inspect_report *r) {
  for (uint32_t s = 0; s < r->geometry.n_sets; s++) {
    const weft_kv_set *set = &r->geometry.set[s];
    uint32_t at = 0;
    if (set->keys_of != 0 || set->state.n_units > 0) continue;
    while (at < r->n_layers && !is_of_kind(&r->layers[at], set)) at += 1;
    if (at == r->n_layers)
      r->layers[r->n_layers++] =
          (inspect_layers){.window = set->window, .from_border = set->from_border, .rows = set->rows};
    r->layers[at].n_layers += 1;
  }
}

uint64_t inspect_layers_bytes(const inspect_report *r, const inspect_layers *layers, uint64_t n_tokens) {
  uint64_t kept = layers->window > 0 && layers->window < n_tokens ? layers->window : n_tokens;
  (void)r;
  return kept * layers->n_layers * weft_kv_rows_bytes(&layers->rows, layers->rows.positions) / layers->rows.positions;
}

uint64_t inspect_sequence_bytes(const inspect_report *r, uint64_t n_tokens) {
  uint64_t n = weft_kv_state_bytes(&r->geometry);
  for (uint32_t i = 0; i < r->n_layers; i++) n += inspect_layers_bytes(r, &r->layers[i], n_tokens);
  return n;
}

uint64_t inspect_border_bytes(const inspect_report *r) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < r->n_layers; i++)
    if (r->layers[i].from_border) n += inspect_layers_bytes(r, &r->layers[i], r->layers[i].window);
  return n;
}

uint64_t inspect_weight_bytes(const inspect_report *r) {
  return r->n_tensor_bytes - r->left_out_bytes;
}

uint64_t inspect_length(const inspect_report *r, uint32_t i) {
  uint64_t context = r->hyper.context_length, length = i == 0 ? 1024 : (uint64_t)2048 << i;
  if (length < context) return length;
  return i == 0 || (i == 1 ? 1024 : (uint64_t)1024 << i) < context ? context : 0;
}

/* A tensor of a layer behind those that are computed. */
static bool is_left_out(const model_hyper *hyper, const weft_gguf_tensor *tensor) {
  unsigned layer;
  return sscanf(tensor->name, "blk.%u.", &layer) == 1 && layer >= hyper->n_layers &&
         layer - hyper->n_layers < hyper->n_layers_left_out;
}

static void count_left_out(inspect_report *r) {
  for (uint32_t i = 0; i < weft_gguf_n_tensors(r->gguf); i++) {
    const weft_gguf_tensor *tensor = weft_gguf_tensor_at(r->gguf, i);
    if (!is_left_out(&r->hyper, tensor)) continue;
    r->n_left_out += 1;
    r->left_out_bytes += tensor->n_bytes;
  }
}

static void judge_keys(inspect_report *r) {
  const model_arch *arch;
  const weft_kv_geometry *geometry = &r->geometry;
  r->keys = model_hyper_read(r->gguf, &arch, &r->hyper, &r->keys_line);
  if (r->keys != WEFT_OK) return;
  count_left_out(r);
  r->geometry = model_hyper_geometry(&r->hyper, gguf_kv_type(r->gguf));
  r->keys = weft_kv_layout_choose(&geometry, 1, 0, &r->layout, &r->keys_line);
  if (r->keys == WEFT_OK) count_layers(r);
}

/* ---- the template and the verdict ---- */

/* What a template writes before a turn tells whose it is. */
static const char *family_of(weft_bytes text) {
  static const char *const marks[][2] = {
      {"<|turn>", "Gemma 4"},
      {"<start_of_turn>", "Gemma 1 to 3"},
      {"<|start_header_id|>", "Llama 3"},
      {"<|header_start|>", "Llama 4"},
      {"<|im_start|>", "ChatML (Qwen and others)"},
      {"<|channel|>", "Harmony (gpt-oss)"},
      {"<\xEF\xBD\x9CUser\xEF\xBD\x9C>", "DeepSeek"},
      {"<|START_OF_TURN_TOKEN|>", "Command"},
      {"<|start_of_role|>", "Granite"},
      {"[gMASK]", "GLM"},
      {"[INST]", "Llama 2 and Mistral"},
      {"<|assistant|>", "Phi and Zephyr"},
  };
  for (uint32_t i = 0; i < sizeof marks / sizeof *marks; i++) {
    if (memmem(text.data, text.n, marks[i][0], strlen(marks[i][0])) != NULL) return marks[i][1];
  }
  return "of no known family";
}

static void judge_chat(inspect_report *r, const weft_tokenizer *tokenizer) {
  weft_bytes text;
  weft_chat *chat = NULL;
  if (weft_gguf_string(r->gguf, "tokenizer.chat_template", &text, NULL) == WEFT_OK) r->family = family_of(text);
  if (tokenizer == NULL) return;
  r->chat = weft_chat_open(r->gguf, tokenizer, (weft_bytes){0}, NULL, &chat, &r->chat_line);
  weft_chat_close(chat);
}

static void judge_serving(inspect_report *r) {
  weft_tokenizer *tokenizer = NULL;
  weft_error line = {{0}};
  weft_status vocabulary = weft_tokenizer_open(r->gguf, &tokenizer, &line);
  r->serves = weft_model_judge(r->gguf, &r->refusal);
  if (r->serves == WEFT_OK && r->keys != WEFT_OK) {
    r->serves = r->keys;
    r->refusal = r->keys_line;
  } else if (r->serves == WEFT_OK) {
    r->serves = vocabulary;
    r->refusal = line;
  }
  judge_chat(r, tokenizer);
  weft_tokenizer_close(tokenizer);
}

weft_status inspect_report_open(const weft_gguf *gguf, inspect_report **out, weft_error *error) {
  *out = NULL;
  inspect_report *r = weft_alloc(1, sizeof *r);
  if (r != NULL) r->types = weft_alloc(weft_gguf_n_tensors(gguf), sizeof *r->types);
  if (r == NULL || r->types == NULL) {
    weft_free(r);
    return weft_fail(error, WEFT_E_NO_MEMORY, "%s: out of memory", weft_gguf_path(gguf));
  }
  r->gguf = gguf;
  gguf_model_name(gguf, r->name, sizeof r->name);
  weft_gguf_fingerprint(gguf, &r->fingerprint_low, &r->fingerprint_high);
  count_types(r);
  judge_keys(r);
  judge_serving(r);
  if (r->serves == WEFT_E_NO_MEMORY || r->chat == WEFT_E_NO_MEMORY) {
    inspect_report_close(r);
    return weft_fail(error, WEFT_E_NO_MEMORY, "%s: out of memory", weft_gguf_path(gguf));
  }
  *out = r;
  return WEFT_OK;
}

void inspect_report_close(inspect_report *r) {
  if (r == NULL) return;
  weft_free(r->types);
  weft_free(r);
}

/* ---- for those who plan ---- */

/* Tables of which a token reads a row: that of embeddings, where another tensor is the head, and that of layers. */
static bool is_looked_up(const weft_gguf *gguf, const char *name) {
  if (strcmp(name, "per_layer_token_embd.weight") == 0 || deepseek41_is_table(gguf, name)) return true;
  return strcmp(name, "token_embd.weight") == 0 && weft_gguf_tensor_find(gguf, "output.weight") != NULL;
}

/* The type as large as which a card keeps another one (kernels/cuda/weights/packed_layout.cuh, packed_type). */
static weft_type size_on_card(weft_type held) {
  return held == WEFT_TYPE_Q4_1 ? WEFT_TYPE_Q5_1 : held;
}

/* Matrices of heads are held in f32 (model/mla.h). */
static bool is_of_heads(const char *name) {
  return strstr(name, ".attn_k_b.") != NULL || strstr(name, ".attn_v_b.") != NULL;
}

/* What a tensor takes more than in the file. */
static uint64_t more_of(const weft_gguf_tensor *t, bool on_card) {
  const weft_type_info *info = weft_type_find((int32_t)t->type);
  if (info == NULL) return 0;
  weft_type held = on_card ? size_on_card(info->held_as) : info->held_as;
  if (is_of_heads(t->name)) held = WEFT_TYPE_F32;
  uint64_t kept = weft_type_row_bytes(held, t->ne[0]) * t->ne[1] * t->ne[2] * t->ne[3];
  return kept > t->n_bytes ? kept - t->n_bytes : 0;
}

/* What lies on a card beside a tensor's own bytes: a header, steps of products of 8 bits, and the end of the pieces of
 * 2 MiB that a large weight has to itself (kernels/arena.h). */
static uint64_t between_of(const weft_gguf_tensor *t) {
  const uint64_t header = 256, step_bytes = 2, span = 256, n_rows = t->ne[1] * t->ne[2] * t->ne[3];
  const bool has_steps = t->type != WEFT_TYPE_F32 && n_rows > 1;
  const uint64_t n_steps = has_steps ? (t->ne[0] + span - 1) / span * n_rows : 0;
  const uint64_t own = t->n_bytes + more_of(t, true), whole = own + header + step_bytes * n_steps;
  return (whole < WEIGHT_ARENA_OWN ? whole : weft_round_up(whole, 2 * (uint64_t)WEIGHT_ARENA_OWN)) - own;
}

static void count_weights(const inspect_report *r, weft_file_facts *f) {
  const weft_gguf *gguf = r->gguf;
  f->between_bytes = WEIGHT_ARENA_CHUNK; /* the end of the last one that small weights share */
  for (uint32_t i = 0; i < weft_gguf_n_tensors(gguf); i++) {
    const weft_gguf_tensor *t = weft_gguf_tensor_at(gguf, i);
    if (r->keys == WEFT_OK && is_left_out(&r->hyper, t)) continue;
    uint64_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    bool of_experts = strstr(t->name, "_exps.weight") != NULL, is_table = deepseek41_is_table(gguf, t->name);
    f->weight_bytes += t->n_bytes;
    *(of_experts ? &f->on_host.experts : &f->on_host.others) += more_of(t, false);
    *(of_experts ? &f->on_card.experts : &f->on_card.others) += is_table ? 0 : more_of(t, true);
    f->between_bytes += is_table ? 0 : between_of(t);
    if (of_experts) {
      f->expert_bytes += t->n_bytes;
      f->n_expert_weights += n;
    } else if (strstr(t->name, "self_cond") != NULL) {
      f->canvas_bytes += t->n_bytes;
    } else if (is_looked_up(gguf, t->name)) {
      f->embedding_bytes += t->n_bytes;
      f->table_bytes += is_table ? t->n_bytes : 0;
    } else {
      f->n_other_weights += n;
    }
  }
}

weft_status weft_inspect_facts(const weft_gguf *gguf, weft_file_facts **out, weft_error *error) {
  inspect_report *r;
  *out = NULL;
  weft_status status = inspect_report_open(gguf, &r, error);
  if (status != WEFT_OK) return status;
  weft_file_facts *f = weft_alloc(1, sizeof *f);
  if (f == NULL) {
    inspect_report_close(r);
    return weft_fail(error, WEFT_E_NO_MEMORY, "%s: out of memory", weft_gguf_path(gguf));
  }
  const model_hyper *h = &r->hyper;
  (void)snprintf(f->name, sizeof f->name, "%s", r->name);
  f->serves = r->serves;
  f->refusal = r->refusal;
  f->chat = r->chat;
  f->chat_line = r->chat_line;
  f->keys = r->keys;
  count_weights(r, f);
  if (r->keys == WEFT_OK) {
    (void)snprintf(f->arch, sizeof f->arch, "%s", h->arch);
    f->n_layers = h->n_layers;
    f->n_hidden = h->n_hidden;
    f->n_vocab = h->n_vocab;
    f->n_experts = h->n_experts;
    f->n_experts_used = h->n_experts_used;
    f->context_length = h->context_length;
    f->canvas_length = h->canvas_length;
    f->canvas_steps = h->canvas_length > 0 ? h->entropy_bound.max_steps : 0;
    f->geometry = r->geometry;
    f->layout = r->layout;
  }
  inspect_report_close(r);
  *out = f;
  return WEFT_OK;
}
