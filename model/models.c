/* SPDX-License-Identifier: MIT */
#include "model/models.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/gguf/keys.h"
#include "model/layers.h"

static const model_arch archs[] = {
    {"gemma4", gemma4_read, gemma4_load, gemma4_embed, gemma4_layer},
    {"gemma3", gemma3_read, gemma3_load, layers_embed, gemma4_layer},
    {"llama", llama_read, llama_load, layers_embed, llama_layer},
    {"mistral3", llama_read, llama_load, layers_embed, llama_layer},
    {"qwen2", llama_read, llama_load, layers_embed, llama_layer},
    {"qwen3", llama_read, llama_load, layers_embed, llama_layer},
    {"qwen3moe", llama_read, llama_load, layers_embed, llama_layer},
    {"gpt-oss", gpt_oss_read, gpt_oss_load, layers_embed, llama_layer},
    {"qwen35", qwen35_read, qwen35_load, layers_embed, qwen35_layer},
    {"qwen35moe", qwen35_read, qwen35_load, layers_embed, qwen35_layer},
    {"glm4moe", glm4moe_read, glm4moe_load, layers_embed, qwen35_layer},
    {"deepseek2", deepseek2_read, deepseek2_load, layers_embed, deepseek2_layer},
    {"deepseek4", deepseek4_read, deepseek4_load, deepseek4_embed, deepseek4_layer},
    {"deepseek41", deepseek41_read, deepseek41_load, deepseek41_embed, deepseek41_layer},
    {"diffusion-gemma", diffusion_gemma_read, diffusion_gemma_load, diffusion_gemma_embed, gemma4_layer},
    {"diffusion_gemma", diffusion_gemma_read, diffusion_gemma_load, diffusion_gemma_embed, gemma4_layer},
};

const model_arch *model_arch_find(const char *name, size_t n) {
  for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
    if (strlen(archs[i].name) == n && memcmp(archs[i].name, name, n) == 0) return &archs[i];
  }
  return NULL;
}

weft_status model_check_place(const weft_model *model, const weights_loader *loader,
                              bool (*has_ops)(const weft_kernels *kernels), const char *what) {
  const char *path = weft_gguf_path(loader->gguf), *arch = model->hyper.arch;
  if (model->n_shards > 1)
    return weft_fail(loader->error, WEFT_E_UNSUPPORTED,
                     "%s: a %s model cannot be split by tensor; split it by layer (--split layer)", path, arch);
  for (uint32_t p = 0; p < model->n_parts; p++) {
    weft_device *device = model->part[p].device;
    if (device == NULL || has_ops(weft_device_kernels(device))) continue;
    return weft_fail(loader->error, WEFT_E_UNSUPPORTED,
                     "%s: the %s backend has no kernels for %s of a %s model; use --backend cpu", path,
                     weft_device_get_info(device)->backend, what, arch);
  }
  return WEFT_OK;
}

void model_arch_names(char *out, size_t size) {
  size_t n = 0;
  out[0] = 0;
  for (size_t i = 0; i < sizeof archs / sizeof *archs && n < size; i++)
    n += (size_t)snprintf(out + n, size - n, "%s%s", i == 0 ? "" : ", ", archs[i].name);
}

static weft_status find_arch(const weft_gguf *gguf, const model_arch **arch, weft_error *error) {
  weft_bytes name;
  weft_status status = weft_gguf_string(gguf, "general.architecture", &name, error);
  if (status == WEFT_E_NOT_FOUND) {
    return weft_fail(error, WEFT_E_FORMAT, "%s: key 'general.architecture' is missing; this is no model file",
                     weft_gguf_path(gguf));
  }
  if (status != WEFT_OK) return status;
  *arch = model_arch_find(name.data, name.n);
  if (*arch != NULL) return WEFT_OK;
  char shown[64];
  size_t n = 0;
  for (; n < name.n && n + 1 < sizeof shown; n++) {
    shown[n] = name.data[n] >= 0x20 && name.data[n] < 0x7F ? name.data[n] : '?';
  }
  shown[n] = 0;
  static const char *const parts[] = {"clip", "gemma4-assistant", "gemma4_assistant", "gemma4_mtp", "dflash", "dspark"};
  bool is_part = false;
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) is_part = is_part || strcmp(shown, parts[i]) == 0;
  if (is_part) {
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "%s: architecture '%s' is a part beside a model (%s) and no model; give the file of the model%s",
                     weft_gguf_path(gguf), shown, shown[0] == 'c' ? "an encoder of images or sound" : "a drafter",
                     shown[0] == 'c' ? "" : ", and this one as --draft model:FILE");
  }
  static const char *const of_others[][2] = {
      {"gptoss",
       "names its tensors as Ollama does; take a file of llama.cpp's converter, whose architecture is 'gpt-oss'"},
      {"deepseek4_mtp_support",
       "is ds4's file of the layer that guesses ahead and no model; give the file of the model: one that has the "
       "layer itself drafts with --draft mtp"},
  };
  for (size_t i = 0; i < sizeof of_others / sizeof *of_others; i++) {
    if (strcmp(shown, of_others[i][0]) == 0)
      return weft_fail(error, WEFT_E_UNSUPPORTED, "%s: architecture '%s' %s", weft_gguf_path(gguf), shown,
                       of_others[i][1]);
  }
  char names[256];
  model_arch_names(names, sizeof names);
  return weft_fail(error, WEFT_E_UNSUPPORTED,
                   "%s: architecture '%s' is not supported; take a model of one of these: %s", weft_gguf_path(gguf),
                   shown, names);
}

/* The embedding says how many tokens there are; keys and token list must agree. */
static weft_status read_vocab(const weft_gguf *gguf, model_hyper *hyper, weft_error *error) {
  model_keys keys = {gguf, hyper->arch, error};
  const weft_gguf_tensor *embed = weft_gguf_tensor_find(gguf, "token_embd.weight");
  if (embed == NULL) {
    return weft_fail(error, WEFT_E_FORMAT, "%s: tensor 'token_embd.weight' is missing; a %s model needs it",
                     weft_gguf_path(gguf), hyper->arch);
  }
  if (embed->ne[1] > 1 << 24) {
    return weft_fail(error, WEFT_E_FORMAT, "%s: tensor 'token_embd.weight' has %" PRIu64 " rows; at most 2^24",
                     weft_gguf_path(gguf), embed->ne[1]);
  }
  hyper->n_vocab = (uint32_t)embed->ne[1];
  uint32_t told;
  weft_status status = model_keys_u32_or(&keys, ".vocab_size", 0, UINT32_MAX, hyper->n_vocab, &told);
  if (status != WEFT_OK) return status;
  uint64_t n_tokens = weft_gguf_count(gguf, "tokenizer.ggml.tokens");
  if (told == hyper->n_vocab && (n_tokens == 0 || n_tokens == hyper->n_vocab)) return WEFT_OK;
  return weft_fail(error, WEFT_E_FORMAT,
                   "%s: the vocabulary has %" PRIu32 " embeddings, %" PRIu64 " tokens and vocab_size %" PRIu32
                   "; they must agree",
                   weft_gguf_path(gguf), hyper->n_vocab, n_tokens, told);
}

enum { DELTA_SETS = 3 /* of a layer with the delta rule */ };

/* Sets of rows of all layers: as many as model_hyper_geometry makes. */
static uint32_t count_sets(const model_hyper *hyper) {
  uint32_t n = 0;
  for (uint32_t l = 0; l < hyper->n_layers; l++) {
    if (hyper->latent.n_streams == 0) n += hyper->delta.layer[l] ? DELTA_SETS : 1;
    for (uint32_t s = 0; s < WEFT_LATENT_SETS && hyper->latent.n_streams > 0; s++)
      n += model_latent_has(&hyper->latent, l, (weft_latent_set)s) ? 1 : 0;
  }
  return n;
}

weft_status model_hyper_read(const weft_gguf *gguf, const model_arch **arch, model_hyper *hyper, weft_error *error) {
  enum { SETS_MAX = WEFT_KV_SETS_MAX - 1 }; /* a layer that drafts has one more */
  memset(hyper, 0, sizeof *hyper);
  weft_status status = find_arch(gguf, arch, error);
  if (status != WEFT_OK) return status;
  (void)snprintf(hyper->arch, sizeof hyper->arch, "%s", (*arch)->name);
  hyper->entropy_bound = weft_entropy_bound_default();
  status = read_vocab(gguf, hyper, error);
  if (status == WEFT_OK) status = (*arch)->read(gguf, hyper, error);
  if (status != WEFT_OK || count_sets(hyper) <= SETS_MAX) return status;
  return weft_fail(error, WEFT_E_UNSUPPORTED,
                   "%s: key '%s.block_count' is %" PRIu32 ", and what these layers keep lies in %" PRIu32
                   " sets of rows; at most %d are supported",
                   weft_gguf_path(gguf), hyper->arch, hyper->n_layers, count_sets(hyper), SETS_MAX);
}

/* A layer with the delta rule keeps a row of every position since the border, and there S of each value head and the
 * last inputs of the convolution. Rows in 8 bits there are none. */
static uint32_t add_delta_sets(const model_delta *delta, weft_type kv_type, uint16_t layer, weft_kv_set *set) {
  weft_type type = kv_type == WEFT_TYPE_F32 ? WEFT_TYPE_F32 : WEFT_TYPE_BF16;
  const weft_delta_view view = {
      .type = type, .dim = delta->dim, .n_k_heads = delta->n_k_heads, .n_v_heads = delta->n_v_heads};
  uint64_t n_elements = weft_delta_row_bytes(&view) / (type == WEFT_TYPE_F32 ? 4 : 2);
  set[0] = (weft_kv_set){.rows = {.type = type,
                                  .n_kv_heads = 1,
                                  .head_dim = (uint32_t)n_elements,
                                  .positions = 1,
                                  .values_are_keys = true},
                         .window = MODEL_DELTA_EVERY,
                         .from_border = true,
                         .layer = layer};
  set[1] = (weft_kv_set){.layer = layer,
                         .state = {.n_units = delta->n_v_heads,
                                   .every = MODEL_DELTA_EVERY,
                                   .unit_bytes = (uint64_t)delta->dim * delta->dim * sizeof(float)}};
  set[2] = (weft_kv_set){.layer = layer,
                         .state = {.n_units = 1,
                                   .every = MODEL_DELTA_EVERY,
                                   .unit_bytes = (WEFT_DELTA_TAPS - 1) * sizeof(float) * weft_delta_channels(&view)}};
  return DELTA_SETS;
}

static weft_kv_set latent_set(weft_type type, uint32_t width, uint32_t positions, uint32_t window, uint16_t layer) {
  return (weft_kv_set){
      .rows = {.type = type, .n_kv_heads = 1, .head_dim = width, .positions = positions, .values_are_keys = true},
      .window = window,
      .layer = layer};
}

/* Values and scores of each position that a block of far rows is still to be made of, in f32. */
static weft_kv_set pending_set(uint32_t width, uint32_t window, uint16_t layer) {
  weft_kv_set set = latent_set(WEFT_TYPE_F32, width, 1, window, layer);
  set.rows.values_are_keys = false;
  return set;
}

/* The rows of a set of a layer with latent rows. */
static weft_kv_set latent_set_of(const model_hyper *hyper, weft_type kv_type, uint16_t l, weft_latent_set set) {
  const model_latent *latent = &hyper->latent;
  const uint32_t width = hyper->head_dim[l], ratio = latent->ratio[l];
  const bool overlaps = ratio == MODEL_LATENT_OVERLAPS;
  const uint32_t window = overlaps ? MODEL_LATENT_PENDING_BLOCKS * ratio : ratio, wide = overlaps ? 2 : 1;
  switch (set) {
    case WEFT_LATENT_NEAR:
      return latent_set(kv_type, width, 1, hyper->window[l], l);
    case WEFT_LATENT_FAR:
      return latent_set(kv_type, width, ratio, 0, l);
    case WEFT_LATENT_INDEX:
      return latent_set(kv_type, latent->index_dim, ratio, 0, l);
    case WEFT_LATENT_PENDING:
      return pending_set(wide * width, window, l);
    case WEFT_LATENT_PENDING_INDEX:
      return pending_set(wide * latent->index_dim, window, l);
    case WEFT_LATENT_TOKENS:
      break;
  }
  return latent_set(WEFT_TYPE_F32, 1, 1, latent->engram.n_grams, l);
}

/* The sets that a layer has, in their order. Far and index rows of another layer are that one's, tokens layer 0's. */
static void add_latent_sets(const model_hyper *hyper, weft_type kv_type, uint16_t l, weft_kv_geometry *geometry) {
  const uint32_t source = hyper->latent.source[l];
  uint32_t first = 0, n_of_first = 0;
  while (n_of_first < geometry->n_sets && geometry->set[n_of_first].layer == 0) n_of_first++;
  if (source > 0)
    while (first < geometry->n_sets && geometry->set[first].layer != source - 1) first++;
  for (uint32_t s = 0; s < WEFT_LATENT_SETS; s++) {
    weft_latent_set set = (weft_latent_set)s;
    if (!model_latent_has(&hyper->latent, l, set)) continue;
    weft_kv_set *own = &geometry->set[geometry->n_sets++];
    *own = latent_set_of(hyper, kv_type, l, set);
    if (source > 0 && source != l + 1u && (set == WEFT_LATENT_FAR || set == WEFT_LATENT_INDEX))
      own->keys_of = 1 + first + s; /* near, far and index rows are the first of a source */
    if (set == WEFT_LATENT_TOKENS && l > 0) own->keys_of = n_of_first; /* of which tokens are the last */
  }
}

weft_kv_geometry model_hyper_geometry(const model_hyper *hyper, weft_type kv_type) {
  weft_kv_geometry geometry = {.n_layers = hyper->n_layers};
  for (uint32_t l = 0; l < hyper->n_layers; l++) {
    if (hyper->delta.layer[l]) {
      geometry.n_sets += add_delta_sets(&hyper->delta, kv_type, (uint16_t)l, &geometry.set[geometry.n_sets]);
      continue;
    }
    if (hyper->latent.n_streams > 0) {
      add_latent_sets(hyper, kv_type, (uint16_t)l, &geometry);
      continue;
    }
    if (hyper->mla.rank > 0) {
      geometry.set[geometry.n_sets++] = latent_set(kv_type, hyper->head_dim[l], 1, 0, (uint16_t)l);
      continue;
    }
    geometry.set[geometry.n_sets++] = (weft_kv_set){
        .rows = {.type = kv_type, .n_kv_heads = hyper->n_kv_heads[l], .head_dim = hyper->head_dim[l], .positions = 1},
        .window = hyper->window[l],
        .keys_of = hyper->keys_of[l],
        .layer = (uint16_t)l};
  }
  return geometry;
}

weft_type gguf_kv_type(const weft_gguf *gguf) {
  for (uint32_t i = 0; i < weft_gguf_n_tensors(gguf); i++) {
    weft_type type = weft_gguf_tensor_at(gguf, i)->type;
    if (type != WEFT_TYPE_F32 && type != WEFT_TYPE_NONE) return WEFT_TYPE_BF16; /* a table of integers has no say */
  }
  return WEFT_TYPE_F32;
}

static void copy_name(char *out, size_t size, const char *from, size_t n) {
  if (n >= size) n = size - 1;
  for (size_t i = 0; i < n; i++) out[i] = (unsigned char)from[i] < 0x20 ? '?' : from[i];
  out[n] = 0;
}

void gguf_model_name(const weft_gguf *gguf, char *out, size_t size) {
  weft_bytes name;
  if (weft_gguf_string(gguf, "general.name", &name, NULL) == WEFT_OK && name.n > 0) {
    copy_name(out, size, name.data, name.n);
    return;
  }
  const char *path = weft_gguf_path(gguf);
  const char *slash = strrchr(path, '/');
  const char *base = slash != NULL ? slash + 1 : path;
  size_t n = strlen(base);
  if (n > 5 && strcmp(base + n - 5, ".gguf") == 0) n -= 5;
  copy_name(out, size, base, n);
}
