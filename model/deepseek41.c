/* SPDX-License-Identifier: MIT */
/* DeepSeek-V4.1: V4's layers (deepseek4.c) with four things otherwise.
 *
 *   far rows     one for each one or two positions, of a layer that makes them; those after it read the same. The rows
 *                that they are chosen by are made of them, before they rotate. Some layers choose, and others see what
 *                the last one before chose. One layer chooses blocks of far rows, to which the choices after it keep.
 *   stream       its parts are taken by what the sublayer before made (kernels/streams.h); at the end by what the last
 *                one made, so there is no mixer before the head
 *   memory       some layers begin with rows of a table that they read by the last tokens (kernels/engram.h)
 *   queries      have no norm of each head; no expert is chosen by a table
 *
 * Which layer makes, keeps and chooses is told by the tensors that it has, as llama.cpp does it. Files have the keys
 * of the memory in one of two ways, both of llama.cpp: with a table for each layer (ik_llama.cpp's are the same), and
 * later with one for all. Layers that guess tokens ahead, images, and ds4's files are not computed. What is kept is not
 * rounded to 8 or 4 bits on its way, as the model's own program does. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "model/hyper.h"
#include "model/layers.h"
#include "model/models.h"
#include "model/tensor_rows.h"

/* ---- keys: far rows ---- */

static const char *const ratios = ".attention.compress_ratios";

static bool layer_has(const weft_gguf *gguf, uint32_t layer, const char *rest) {
  char name[96];
  (void)snprintf(name, sizeof name, "blk.%" PRIu32 ".%s.weight", layer, rest);
  return weft_gguf_tensor_find(gguf, name) != NULL;
}

static weft_status refuse_layer(const model_keys *keys, uint32_t layer, const char *what) {
  return weft_fail(keys->error, WEFT_E_FORMAT, "%s: layer %" PRIu32 " %s", weft_gguf_path(keys->gguf), layer, what);
}

/* Finds whose far rows a layer reads, and whether it chooses among them. source: 1 + the last layer with its own. */
static weft_status read_role(const model_keys *keys, model_hyper *hyper, uint32_t l, uint32_t *source) {
  model_latent *latent = &hyper->latent;
  const uint32_t ratio = latent->ratio[l];
  const bool makes = layer_has(keys->gguf, l, "attn_compressor_kv"),
             keys_too = layer_has(keys->gguf, l, "indexer.attn_k");
  latent->chooses[l] = layer_has(keys->gguf, l, "indexer.attn_q_b");
  if (ratio == 0)
    return makes || keys_too || latent->chooses[l]
               ? refuse_layer(keys, l, "has tensors of far rows, and none by its 0 in 'attention.compress_ratios'")
               : WEFT_OK;
  if (makes != keys_too || (makes && !latent->chooses[l]))
    return refuse_layer(keys, l,
                        "has some of 'attn_compressor_kv', 'indexer.attn_k' and 'indexer.attn_q_b' and not all");
  if (makes) *source = l + 1;
  latent->source[l] = *source;
  if (*source == 0)
    return refuse_layer(keys, l, "reads far rows, and no layer up to it has 'attn_compressor_kv.weight'");
  if (latent->ratio[*source - 1] == ratio) return WEFT_OK;
  return weft_fail(keys->error, WEFT_E_FORMAT,
                   "%s: key '%s%s' gives layer %" PRIu32 " %" PRIu32 " and layer %" PRIu32
                   ", whose far rows it reads, %" PRIu32,
                   weft_gguf_path(keys->gguf), keys->arch, ratios, l, ratio, *source - 1, latent->ratio[*source - 1]);
}

static weft_status read_far_rows(const model_keys *keys, model_hyper *hyper) {
  uint32_t source = 0;
  weft_status status = deepseek4_check_listed(keys, hyper, ratios, false);
  for (uint32_t l = 0; l < hyper->n_layers && status == WEFT_OK; l++) {
    uint32_t *ratio = &hyper->latent.ratio[l];
    status = model_keys_u32_at(keys, ratios, l, 0, UINT32_MAX, ratio);
    if (status == WEFT_OK && *ratio > 2)
      return weft_fail(keys->error, WEFT_E_UNSUPPORTED,
                       "%s: key '%s%s' is %" PRIu32
                       "; rows for each one or two positions are supported, and 0 for none",
                       weft_gguf_path(keys->gguf), keys->arch, ratios, *ratio);
    if (status == WEFT_OK) status = read_role(keys, hyper, l, &source);
  }
  return status;
}

/* ---- keys: blocks of far rows ---- */

/* The names that files have them by, and the first of them that the file has. */
typedef struct block_names {
  const char *source, *n, *size;
} block_names;
static const block_names names_of_blocks[] = {
    {".attention.indexer.candidate_source_layer", ".attention.indexer.candidate_top_k_blocks",
     ".attention.indexer.candidate_block_size"},
    {".attention.candidate_source_layer", ".attention.candidate_top_k_blocks", ".attention.candidate_block_size"},
    {".candidate_source_layer_id", ".candidate_topk_blocks", ".candidate_block_size"},
};

static weft_status check_blocks(const model_keys *keys, const model_hyper *hyper) {
  const model_latent *latent = &hyper->latent;
  const uint32_t l = latent->block_source - 1;
  if (latent->source[l] != l + 1)
    return refuse_layer(keys, l, "chooses blocks of far rows, and has none of its own (key 'candidate_source_layer')");
  for (uint32_t i = l + 1; i < hyper->n_layers; i++)
    if (latent->source[i] != l + 1)
      return refuse_layer(keys, i, "comes after the choice of blocks of other far rows (key 'candidate_source_layer')");
  if ((uint64_t)latent->n_blocks * latent->block_rows >= (uint64_t)latent->top_k + latent->block_rows - 1)
    return WEFT_OK;
  return weft_fail(keys->error, WEFT_E_FORMAT,
                   "%s: %" PRIu32 " blocks of %" PRIu32 " far rows are chosen, of which %" PRIu32
                   " rows are; more blocks are needed (key 'candidate_top_k_blocks')",
                   weft_gguf_path(keys->gguf), latent->n_blocks, latent->block_rows, latent->top_k);
}

/* Files of converters that do not write these keys at all are of the one model that there is. */
static weft_status read_blocks(const model_keys *keys, model_hyper *hyper) {
  enum { BLOCKS = 2048, BLOCK_ROWS = 8, BLOCKS_MAX = 1 << 16 };
  model_latent *latent = &hyper->latent;
  const uint32_t n_names = sizeof names_of_blocks / sizeof *names_of_blocks, last = hyper->n_layers - 1;
  uint32_t i = 0, source = 0;
  while (i < n_names && model_keys_count(keys, names_of_blocks[i].source) == 0) i++;
  if (i == n_names) {
    if (model_keys_count(keys, ".attention.kv_source_layers") > 0) return WEFT_OK; /* it would be said */
    latent->block_source = latent->source[last];
    latent->n_blocks = BLOCKS, latent->block_rows = BLOCK_ROWS;
    return latent->block_source == 0 ? WEFT_OK : check_blocks(keys, hyper);
  }
  weft_status status = model_keys_u32(keys, names_of_blocks[i].source, 0, last, &source);
  if (status == WEFT_OK) status = model_keys_u32(keys, names_of_blocks[i].n, 1, BLOCKS_MAX, &latent->n_blocks);
  if (status == WEFT_OK) status = model_keys_u32(keys, names_of_blocks[i].size, 1, BLOCKS_MAX, &latent->block_rows);
  latent->block_source = source + 1;
  return status == WEFT_OK ? check_blocks(keys, hyper) : status;
}

/* ---- keys: the memory ---- */

typedef struct engram_names {
  const char *layers, *n_grams, *n_heads, *dim, *multipliers, *primes, *offsets, *pad;
  bool one_table; /* and pad is a token, where it else is what the map gives one */
} engram_names;
static const engram_names names_of_engram[] = {
    {".ple.layers", ".ple.ngram_size", ".ple.heads_per_ngram", ".embedding_length_per_layer_input",
     ".ple.layer_multipliers", ".ple.head_vocab_sizes", ".ple.head_offsets", ".engram.pad_token_id", true},
    {".engram.layer_ids", ".engram.max_ngram_size", ".engram.head_count", ".engram.key_length", ".engram.multipliers",
     ".engram.primes", ".engram.offsets", ".engram.pad_id", false},
};
static const char *const token_map = ".engram.token_map", *const shared_table = "per_layer_token_embd.weight";

bool deepseek41_is_table(const weft_gguf *gguf, const char *name) {
  return strstr(name, ".engram_embd.") != NULL ||
         (strcmp(name, shared_table) == 0 && weft_gguf_count(gguf, "deepseek41.ple.layers") > 0);
}

static const engram_names *find_engram_names(const model_keys *keys) {
  return &names_of_engram[model_keys_count(keys, names_of_engram[0].layers) > 0 ? 0 : 1];
}

static weft_status check_count(const model_keys *keys, const char *name, uint64_t least, bool exactly) {
  uint64_t n = model_keys_count(keys, name);
  if (exactly ? n == least : n >= least) return WEFT_OK;
  if (n == 0)
    return weft_fail(keys->error, WEFT_E_FORMAT, "%s: key '%s%s' is missing; a %s model needs it",
                     weft_gguf_path(keys->gguf), keys->arch, name, keys->arch);
  return weft_fail(keys->error, WEFT_E_FORMAT, "%s: key '%s%s' has %" PRIu64 " elements; %" PRIu64 " are needed",
                   weft_gguf_path(keys->gguf), keys->arch, name, n, least);
}

/* Rows of a layer's table. */
static weft_status read_table(const model_keys *keys, model_engram *engram, uint32_t e) {
  char name[96];
  (void)snprintf(name, sizeof name, "blk.%" PRIu32 ".engram_embd.weight", engram->layer[e]);
  const char *wanted = engram->one_table ? shared_table : name;
  const weft_gguf_tensor *tensor = weft_gguf_tensor_find(keys->gguf, wanted);
  if (tensor == NULL)
    return weft_fail(keys->error, WEFT_E_FORMAT, "%s: tensor '%s' is missing; a %s model needs it",
                     weft_gguf_path(keys->gguf), wanted, keys->arch);
  if (tensor->ne[1] > INT32_MAX)
    return weft_fail(keys->error, WEFT_E_UNSUPPORTED, "%s: tensor '%s' has %" PRIu64 " rows; at most 2^31 - 1",
                     weft_gguf_path(keys->gguf), wanted, tensor->ne[1]);
  engram->n_rows[e] = (uint32_t)tensor->ne[1];
  return WEFT_OK;
}

/* Every row that may be read is in the table. */
static weft_status check_heads(const model_keys *keys, const engram_names *names, const model_engram *engram) {
  const uint32_t n = model_engram_reads(engram);
  for (uint32_t i = 0; i < engram->n_layers * n; i++) {
    uint32_t prime = 0, offset = 0, n_rows = engram->n_rows[i / n];
    weft_status status = model_keys_u32_at(keys, names->primes, i, 1, INT32_MAX, &prime);
    if (status == WEFT_OK) status = model_keys_u32_at(keys, names->offsets, i, 0, INT32_MAX, &offset);
    if (status != WEFT_OK) return status;
    if ((uint64_t)prime + offset > n_rows)
      return weft_fail(keys->error, WEFT_E_FORMAT,
                       "%s: keys '%s%s' and '%s%s': rows %" PRIu32 " to %" PRIu64 " of head %" PRIu32
                       " are not in its table of %" PRIu32,
                       weft_gguf_path(keys->gguf), keys->arch, names->primes, keys->arch, names->offsets, offset,
                       (uint64_t)prime + offset - 1, i, n_rows);
  }
  return WEFT_OK;
}

/* What tokens become, and that their products have no more than 63 bits. */
static weft_status check_map(const model_keys *keys, const engram_names *names, const model_hyper *hyper,
                             model_engram *engram) {
  char full[128];
  uint32_t most = 0, mapped = 0;
  weft_status status = check_count(keys, token_map, hyper->n_vocab, false);
  if (status == WEFT_OK && names->one_table)
    status = model_keys_u32_at(keys, token_map, engram->pad, 0, INT32_MAX, &engram->pad);
  for (uint32_t t = 0; t < hyper->n_vocab && status == WEFT_OK; t++) {
    status = model_keys_u32_at(keys, token_map, t, 0, INT32_MAX, &mapped);
    if (mapped > most) most = mapped;
  }
  if (engram->pad > most) most = engram->pad;
  (void)snprintf(full, sizeof full, "%s%s", keys->arch, names->multipliers);
  for (uint32_t i = 0; i < engram->n_layers * engram->n_grams && status == WEFT_OK; i++) {
    uint64_t multiplier = 0;
    status = weft_gguf_u64_at(keys->gguf, full, i, &multiplier, keys->error);
    if (status == WEFT_OK && multiplier > INT64_MAX / ((uint64_t)most + 1))
      status = weft_fail(keys->error, WEFT_E_FORMAT,
                         "%s: key '%s' has %" PRIu64 ", whose product with %" PRIu32 " has more than 63 bits",
                         weft_gguf_path(keys->gguf), full, multiplier, most);
  }
  return status;
}

static weft_status read_engram_layers(const model_keys *keys, const engram_names *names, const model_hyper *hyper,
                                      model_engram *engram) {
  const uint64_t n = model_keys_count(keys, names->layers);
  if (n == 0 || n > MODEL_ENGRAM_LAYERS_MAX)
    return weft_fail(keys->error, n == 0 ? WEFT_E_FORMAT : WEFT_E_UNSUPPORTED,
                     "%s: key '%s%s' has %" PRIu64 " elements; a %s model needs 1 to %d", weft_gguf_path(keys->gguf),
                     keys->arch, names->layers, n, keys->arch, MODEL_ENGRAM_LAYERS_MAX);
  weft_status status = WEFT_OK;
  for (uint32_t e = 0; e < n && status == WEFT_OK; e++) {
    uint32_t least = e == 0 ? 0 : engram->layer[e - 1] + 1;
    status = model_keys_u32_at(keys, names->layers, e, least, hyper->n_layers - 1, &engram->layer[e]);
    if (status == WEFT_OK) status = read_table(keys, engram, e);
  }
  engram->n_layers = (uint32_t)n;
  return status;
}

static weft_status read_engram(const model_keys *keys, model_hyper *hyper) {
  enum { DIM_MAX = 1 << 16 };
  const engram_names *names = find_engram_names(keys);
  model_engram engram = {.one_table = names->one_table};
  weft_status status = read_engram_layers(keys, names, hyper, &engram);
  if (status == WEFT_OK) status = model_keys_u32(keys, names->n_grams, 2, WEFT_ENGRAM_GRAMS_MAX, &engram.n_grams);
  if (status == WEFT_OK) status = model_keys_u32(keys, names->n_heads, 1, WEFT_ENGRAM_HEADS_MAX, &engram.n_heads);
  if (status == WEFT_OK) status = model_keys_u32(keys, names->dim, 1, DIM_MAX, &engram.dim);
  if (status == WEFT_OK)
    status = model_keys_u32(keys, names->pad, 0, names->one_table ? hyper->n_vocab - 1 : INT32_MAX, &engram.pad);
  const uint64_t n = engram.n_layers, n_heads = n * model_engram_reads(&engram);
  if (status == WEFT_OK) status = check_count(keys, names->multipliers, n * engram.n_grams, true);
  if (status == WEFT_OK) status = check_count(keys, names->primes, n_heads, true);
  if (status == WEFT_OK) status = check_count(keys, names->offsets, n_heads, true);
  if (status == WEFT_OK) status = check_heads(keys, names, &engram);
  if (status == WEFT_OK) status = check_map(keys, names, hyper, &engram);
  hyper->latent.engram = engram;
  return status;
}

weft_status deepseek41_read(const weft_gguf *gguf, model_hyper *hyper, weft_error *error) {
  model_keys keys = {gguf, hyper->arch, error};
  weft_status status = hyper_read_sizes(&keys, hyper);
  if (status == WEFT_OK) status = deepseek4_leave_out_nextn(&keys, hyper);
  hyper->latent.carries = true;
  if (status == WEFT_OK) status = deepseek4_read_common(&keys, hyper);
  if (status == WEFT_OK) status = hyper_refuse_if_set(&keys, ".hash_layer_count", "experts by a table of tokens");
  if (status == WEFT_OK) status = read_far_rows(&keys, hyper);
  if (status == WEFT_OK) status = read_blocks(&keys, hyper);
  return status == WEFT_OK ? read_engram(&keys, hyper) : status;
}

/* ---- tensors ---- */

static const tensor_row layer_rows[] = {
    ROW("attn_compressor_kv.weight", MATRIX, SOURCE, latent.far_values, MATMUL, HIDDEN, DIM_HEAD),
    ROW("attn_compressor_gate.weight", MATRIX, POOLED, latent.far_scores, MATMUL, HIDDEN, DIM_HEAD),
    ROW("attn_compressor_norm.weight", VECTOR, SOURCE, latent.far_norm, 0, DIM_HEAD),
    ROW("indexer.attn_k.weight", MATRIX, SOURCE, latent.index_k, MATMUL, DIM_HEAD, DIM_INDEX),
    ROW("indexer.k_norm.weight", VECTOR, SOURCE, latent.index_norm, 0, DIM_INDEX),
    ROW("indexer.attn_q_b.weight", MATRIX, CHOOSES, latent.index_q, MATMUL, DIM_Q_RANK, DIM_INDEX_Q),
    ROW("indexer.proj.weight", MATRIX, CHOOSES, latent.index_weights, MATMUL, HIDDEN, DIM_INDEX_HEADS),
    ROW("engram_wkv.weight", MATRIX, ENGRAM, latent.engram_kv, MATMUL, DIM_ENGRAM_READ, DIM_ENGRAM_KEYS),
};

static const tensor_row own_table_rows[] = {
    ROW("engram_embd.weight", MATRIX, ENGRAM, latent.engram_table, EMBED | WEFT_USE_TABLE, DIM_ENGRAM, DIM_ENGRAM_ROWS),
};
static const tensor_row one_table_rows[] = {
    TENSOR_ROW(model_layer, "per_layer_token_embd.weight", NULL, MATRIX, ENGRAM, latent.engram_table,
               EMBED | WEFT_USE_TABLE, DIM_ENGRAM, DIM_ENGRAM_ROWS),
};
static const tensor_row folded_rows[] = {
    ROW("engram_gate.weight", VECTOR, ENGRAM, latent.engram_weight, 0, HIDDEN, DIM_PARTS),
};

static weft_status fail_memory(const weights_loader *loader) {
  return weft_fail(loader->error, WEFT_E_NO_MEMORY, "%s: out of memory", weft_gguf_path(loader->gguf));
}

/* Numbers [first, first + n) of a list of whole numbers, of 4 or 8 bytes each, on the device. */
static weft_status load_integers(weights_loader *loader, const char *name, uint64_t first, uint64_t n, uint32_t bytes,
                                 const void **out) {
  char full[128];
  const float *placed = NULL;
  uint8_t *numbers = weft_alloc(n, bytes);
  weft_status status = numbers == NULL ? fail_memory(loader) : WEFT_OK;
  (void)snprintf(full, sizeof full, "%s%s", loader->model->hyper.arch, name);
  for (uint64_t i = 0; i < n && status == WEFT_OK; i++) {
    uint64_t number = 0;
    status = weft_gguf_u64_at(loader->gguf, full, first + i, &number, loader->error);
    if (bytes == sizeof number)
      ((uint64_t *)(void *)numbers)[i] = number;
    else
      ((uint32_t *)(void *)numbers)[i] = (uint32_t)number;
  }
  if (status == WEFT_OK)
    status = weights_vector(loader, (const float *)(const void *)numbers, n * bytes / sizeof(float), &placed);
  *out = placed;
  weft_free(numbers);
  return status;
}

/* What parts and keys are multiplied by: one factor for both, or their product. */
static weft_status load_engram_weight(weights_loader *loader, uint32_t l) {
  const model_hyper *hyper = &loader->model->hyper;
  model_layer *layer = &loader->model->layers[l];
  const uint64_t n = (uint64_t)hyper->n_hidden * hyper->latent.n_streams;
  char name[2][96];
  if (layer_has(loader->gguf, l, "engram_gate")) return WEIGHTS_LOAD(loader, folded_rows, l, layer);
  (void)snprintf(name[0], sizeof name[0], "blk.%" PRIu32 ".engram_q.weight", l);
  (void)snprintf(name[1], sizeof name[1], "blk.%" PRIu32 ".engram_k.weight", l);
  float *values = weft_alloc(2 * n, sizeof *values);
  weft_status status = values == NULL ? fail_memory(loader) : WEFT_OK;
  for (uint32_t i = 0; i < 2 && status == WEFT_OK; i++) {
    status = weights_read_rows(loader, name[i], hyper->n_hidden, hyper->latent.n_streams, values + i * n);
    if (status == WEFT_E_NOT_FOUND)
      status = weft_fail(loader->error, WEFT_E_FORMAT, "%s: tensor '%s' is missing; a %s model needs it",
                         weft_gguf_path(loader->gguf), name[i], hyper->arch);
  }
  for (uint64_t i = 0; i < n && status == WEFT_OK; i++) values[i] *= values[n + i];
  if (status == WEFT_OK) status = weights_vector(loader, values, n, &layer->latent.engram_weight);
  weft_free(values);
  return status;
}

static weft_status load_table(weights_loader *loader, uint32_t e) {
  weft_model *model = loader->model;
  const model_engram *engram = &model->hyper.latent.engram;
  model_layer *layer = &model->layers[engram->layer[e]];
  if (!engram->one_table) return WEIGHTS_LOAD(loader, own_table_rows, engram->layer[e], layer);
  if (e == 0) return WEIGHTS_LOAD(loader, one_table_rows, engram->layer[e], layer);
  layer->latent.engram_table = model->layers[engram->layer[0]].latent.engram_table; /* they lie on one device */
  return WEFT_OK;
}

/* The memory of layer e of those that have one. The map of tokens is the same for all. */
static weft_status load_engram(weights_loader *loader, uint32_t e) {
  weft_model *model = loader->model;
  const model_engram *engram = &model->hyper.latent.engram;
  const model_keys keys = {loader->gguf, model->hyper.arch, loader->error};
  const engram_names *names = find_engram_names(&keys);
  const uint64_t n_grams = engram->n_grams, n = model_engram_reads(engram);
  model_latent_layer *layer = &model->layers[engram->layer[e]].latent;
  const void *multiplier = NULL, *prime = NULL, *offset = NULL, *map = NULL;
  weights_at_layer(loader, engram->layer[e]);
  weft_status status = load_integers(loader, names->multipliers, e * n_grams, n_grams, 8, &multiplier);
  if (status == WEFT_OK) status = load_integers(loader, names->primes, e * n, n, 4, &prime);
  if (status == WEFT_OK) status = load_integers(loader, names->offsets, e * n, n, 4, &offset);
  if (status == WEFT_OK && e == 0) status = load_integers(loader, token_map, 0, model->hyper.n_vocab, 4, &map);
  layer->engram_multiplier = multiplier;
  layer->engram_prime = prime;
  layer->engram_offset = offset;
  layer->engram_map = e == 0 ? map : model->layers[engram->layer[0]].latent.engram_map;
  if (status == WEFT_OK) status = load_engram_weight(loader, engram->layer[e]);
  return status == WEFT_OK ? load_table(loader, e) : status;
}

/* What experts are chosen by in rows of an image, which there are none of: it may be in the file. */
static weft_status pass_over_images(weights_loader *loader, uint32_t l) {
  const uint32_t n = loader->model->hyper.n_experts;
  char name[64];
  float *values = weft_alloc(n, sizeof *values);
  if (values == NULL) return fail_memory(loader);
  (void)snprintf(name, sizeof name, "blk.%" PRIu32 ".exp_probs_b_vl.bias", l);
  weft_status status = weights_read(loader, name, n, values);
  weft_free(values);
  return status == WEFT_E_NOT_FOUND ? WEFT_OK : status;
}

weft_status deepseek41_load(weft_model *model, weights_loader *loader) {
  weft_status status = deepseek4_load_common(model, loader);
  for (uint32_t l = 0; status == WEFT_OK && l < model->hyper.n_layers; l++) {
    status = deepseek4_load_layer(loader, l, layer_rows, sizeof layer_rows / sizeof *layer_rows);
    if (status == WEFT_OK) status = pass_over_images(loader, l);
  }
  for (uint32_t e = 0; status == WEFT_OK && e < model->hyper.latent.engram.n_layers; e++)
    status = load_engram(loader, e);
  return status == WEFT_OK ? deepseek4_load_expert_stacks(model, loader) : status;
}

/* ---- forward ---- */

/* What the parts are taken by first is a rule of the first sublayer's; until then there is none. */
weft_status deepseek41_embed(model_step *step) {
  uint64_t n_bytes = step->n_rows * model_row_width(step->model) * sizeof *step->x;
  weft_status status = weft_device_zero(step->part->device, step->x, n_bytes);
  return status == WEFT_OK ? deepseek4_embed(step) : status;
}

weft_status deepseek41_layer(model_step *step, uint32_t l) {
  const weft_model *model = step->model;
  const model_scratch *s = &step->part->scratch;
  const model_layer *layer = &model->layers[l];
  const model_latent_layer *own = &layer->latent;
  const model_engram *engram = &model->hyper.latent.engram;
  bool is_last = l + 1 == model->hyper.n_layers;
  weft_status status = model_engram_index(engram, l) < engram->n_layers ? layers_engram(step, l) : WEFT_OK;
  const layers_mix_args attends = {&own->attn_mixes, own->attn_base, own->attn_scale, layer->attn_norm,
                                   s->shares,        step->h,        l == 0};
  if (status == WEFT_OK) status = layers_mix(step, &attends);
  if (status == WEFT_OK) status = layers_latent(step, l, s->t);
  if (status != WEFT_OK || step->n_rows == 0) return status;
  status = layers_spread(step, s->t);
  if (status == WEFT_OK && is_last) status = layers_keep_output_rows(step, 0);
  const layers_mix_args routes = {&own->ffn_mixes, own->ffn_base, own->ffn_scale, layer->ffn_norm,
                                  s->shares,       step->h,       false};
  if (status == WEFT_OK) status = layers_mix(step, &routes);
  if (status == WEFT_OK) status = deepseek4_experts(step, layer);
  if (status == WEFT_OK) status = layers_spread(step, s->t);
  const layers_mix_args ends = {.norm = model->globals.output_norm, .out = step->args->hidden};
  return status == WEFT_OK && is_last ? layers_mix(step, &ends) : status;
}
