/* SPDX-License-Identifier: MIT */
/* The files that people have, as sparse files of exactly their tensors, types and keys: `weft inspect` shows the
 * census that the real file has, and weft serves it or refuses it with the line that is written here.
 *
 * That what is served is also computed right is seen on small files of the same architectures and types:
 * golden/model_parity and golden/model_devices for the architectures, golden/model_quant and the tests of the kernels
 * for the types. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "model/inspect.h"
#include "model/model.h"
#include "tests/support/real_files.h"

#define GEMMA .arch = "gemma4", .vocab = 262144, .head = 256, .head_global = 512, .period = 6
static const real_model gemma_26b = {GEMMA,          .layers = 30,     .hidden = 2816,   .ff = 2112,
                                     .heads = 16,    .kv = 8,          .kv_global = 2,   .window = 1024,
                                     .experts = 128, .expert_ff = 704, .context = 262144};
static const real_model gemma_26b_ollama = {GEMMA,          .layers = 30,     .hidden = 2816,    .ff = 2112,
                                            .heads = 16,    .kv = 8,          .kv_global = 2,    .window = 1024,
                                            .experts = 128, .expert_ff = 704, .context = 262144, .encoder = true};
static const real_model gemma_26b_split = {GEMMA,          .layers = 30,     .hidden = 2816,    .ff = 2112,
                                           .heads = 16,    .kv = 8,          .kv_global = 2,    .window = 1024,
                                           .experts = 128, .expert_ff = 704, .context = 262144, .split_experts = true};
static const real_model gemma_12b = {GEMMA,   .layers = 48,   .hidden = 3840, .ff = 15360,      .heads = 16,
                                     .kv = 8, .kv_global = 1, .window = 1024, .context = 262144};
static const real_model gemma_31b = {GEMMA,    .layers = 60,   .hidden = 5376, .ff = 21504,      .heads = 32,
                                     .kv = 16, .kv_global = 4, .window = 1024, .context = 262144};
#undef GEMMA
static const real_model gemma_e2b = {.arch = "gemma4",
                                     .vocab = 262144,
                                     .head = 256,
                                     .head_global = 512,
                                     .period = 5,
                                     .layers = 35,
                                     .hidden = 1536,
                                     .ff = 6144,
                                     .heads = 8,
                                     .kv = 1,
                                     .kv_global = 1,
                                     .window = 512,
                                     .per_layer = 256,
                                     .shared = 20,
                                     .context = 131072,
                                     .all_have_values = true};
static const real_model gemma_e4b = {.arch = "gemma4",
                                     .vocab = 262144,
                                     .head = 256,
                                     .head_global = 512,
                                     .period = 6,
                                     .layers = 42,
                                     .hidden = 2560,
                                     .ff = 10240,
                                     .heads = 8,
                                     .kv = 2,
                                     .kv_global = 2,
                                     .window = 512,
                                     .per_layer = 256,
                                     .shared = 18,
                                     .context = 131072,
                                     .all_have_values = true};
static const real_model diffusion_26b = {.arch = "diffusion-gemma",
                                         .vocab = 262144,
                                         .head = 256,
                                         .head_global = 512,
                                         .period = 6,
                                         .layers = 30,
                                         .hidden = 2816,
                                         .ff = 2112,
                                         .heads = 16,
                                         .kv = 8,
                                         .kv_global = 2,
                                         .window = 1024,
                                         .experts = 128,
                                         .expert_ff = 704,
                                         .context = 262144};
static const real_model qwen3_30b = {.arch = "qwen3moe",
                                     .vocab = 151936,
                                     .head = 128,
                                     .layers = 48,
                                     .hidden = 2048,
                                     .ff = 6144,
                                     .heads = 32,
                                     .kv = 4,
                                     .experts = 128,
                                     .expert_ff = 768,
                                     .context = 40960,
                                     .all_have_values = true};
static const real_model qwen3_8b = {.arch = "qwen3",
                                    .vocab = 151936,
                                    .head = 128,
                                    .layers = 36,
                                    .hidden = 4096,
                                    .ff = 12288,
                                    .heads = 32,
                                    .kv = 8,
                                    .context = 40960,
                                    .all_have_values = true};
static const real_model beyond_memory = {.arch = "llama",
                                         .vocab = 300,
                                         .head = 256,
                                         .layers = 200,
                                         .hidden = 32768,
                                         .ff = 131072,
                                         .heads = 128,
                                         .kv = 128,
                                         .context = 4096,
                                         .all_have_values = true};

typedef enum file_sort { PLAIN, OLLAMA, SCALES, STRAY_SCALE, INTEGERS, NO_VOCABULARY } file_sort;

typedef struct row {
  const char *name;
  const real_model *model;
  const char *types;
  file_sort sort;
  const char *census;  /* what inspect shows, all of it */
  const char *refusal; /* NULL: served */
} row;

#define K_M(low, high) "token_embd:" high " attn_v+:" high " ffn_down+:" high " ffn_down_exps+:" high " *:" low

/* The first rows are files whose census was read from the listings of their makers; of rows with only one type and the
 * embedding's, what llama.cpp's quantiser does. */
static const row rows[] = {
    {"26B Q4_K_M", &gemma_26b, K_M("Q4_K", "Q6_K"), PLAIN, "F32 392, Q5_0 32, Q8_0 28, Q4_K 192, Q6_K 14", NULL},
    {"26B UD-Q4_K_M", &gemma_26b, "ffn_down_exps<29:Q5_1 ffn_gate_up_exps:Q4_K *:Q8_0", PLAIN,
     "F32 392, Q8_0 207, Q4_K 30, Q5_1 29", NULL},
    {"26B Q5_K_M", &gemma_26b, K_M("Q5_K", "Q6_K"), PLAIN, "F32 392, Q5_1 32, Q8_0 28, Q5_K 192, Q6_K 14", NULL},
    {"26B Q5_K_S", &gemma_26b, "token_embd:Q6_K *:Q5_K", PLAIN, "F32 392, Q5_1 60, Q5_K 205, Q6_K 1", NULL},
    {"26B Q4_K_S", &gemma_26b, "token_embd:Q6_K attn_v<4:Q5_K ffn_down<3:Q5_K ffn_down_exps<3:Q5_K *:Q4_K", PLAIN,
     "F32 392, Q5_0 54, Q5_1 6, Q4_K 201, Q5_K 4, Q6_K 1", NULL},
    {"26B Q4_0 with an importance matrix", &gemma_26b, "token_embd:Q6_K ffn_down<3:Q4_1 ffn_down_exps<3:Q4_1 *:Q4_0",
     PLAIN, "F32 392, Q4_0 259, Q4_1 6, Q6_K 1", NULL},
    {"26B Q4_1", &gemma_26b, "token_embd:Q6_K *:Q4_1", PLAIN, "F32 392, Q4_1 265, Q6_K 1", NULL},
    {"26B IQ4_XS", &gemma_26b, "token_embd:Q6_K *:IQ4_XS", PLAIN, "F32 392, IQ4_XS 205, IQ4_NL 60, Q6_K 1", NULL},
    {"26B IQ4_XS of some experts", &gemma_26b, "ffn_gate_up_exps<23:IQ4_XS ffn_down_exps<20:IQ4_NL *:Q8_0", PLAIN,
     "F32 392, IQ4_XS 23, IQ4_NL 20, Q8_0 223", NULL},
    {"26B mixed", &gemma_26b, "ffn_down_exps<10:Q5_1 ffn_down<10:IQ4_NL *:Q8_0", PLAIN,
     "F32 392, Q5_1 10, IQ4_NL 10, Q8_0 246", NULL},
    {"26B IQ4_NL", &gemma_26b, "token_embd:Q6_K *:IQ4_NL", PLAIN, "F32 392, IQ4_NL 265, Q6_K 1", NULL},
    {"26B Q2_K", &gemma_26b, "token_embd:Q6_K attn_v:Q3_K *:Q2_K", PLAIN,
     "F32 392, Q2_K 180, Q3_K 25, IQ4_NL 60, Q6_K 1", NULL},
    {"26B Q3_K_M", &gemma_26b, K_M("Q3_K", "Q5_K"), PLAIN, "F32 392, Q3_K 192, Q5_K 14, Q5_1 28, IQ4_NL 32", NULL},
    {"26B Q3_K_S", &gemma_26b, "token_embd:Q6_K *:Q3_K", PLAIN, "F32 392, Q3_K 205, IQ4_NL 60, Q6_K 1", NULL},
    {"26B Q3_K_L", &gemma_26b, "token_embd:Q6_K attn_v:Q5_K attn_output:Q5_K ffn_down:Q5_K ffn_down_exps:Q5_K *:Q3_K",
     PLAIN, "F32 392, Q3_K 150, Q5_K 55, Q5_1 60, Q6_K 1", NULL},
    {"26B IQ1_S", &gemma_26b, "token_embd:Q6_K *:IQ1_S", PLAIN, "F32 392, IQ1_S 205, IQ4_NL 60, Q6_K 1", NULL},
    {"26B IQ1_M", &gemma_26b, "token_embd:Q6_K *:IQ1_M", PLAIN, "F32 392, IQ1_M 205, IQ4_NL 60, Q6_K 1", NULL},
    {"26B IQ2_XXS", &gemma_26b, "token_embd:Q6_K *:IQ2_XXS", PLAIN, "F32 392, IQ2_XXS 205, IQ4_NL 60, Q6_K 1", NULL},
    {"26B IQ2_XS", &gemma_26b, "token_embd:Q6_K *:IQ2_XS", PLAIN, "F32 392, IQ2_XS 205, IQ4_NL 60, Q6_K 1", NULL},
    {"26B IQ2_S", &gemma_26b, "token_embd:Q6_K *:IQ2_S", PLAIN, "F32 392, IQ2_S 205, IQ4_NL 60, Q6_K 1", NULL},
    {"26B IQ3_XXS", &gemma_26b, "token_embd:Q6_K *:IQ3_XXS", PLAIN, "F32 392, IQ3_XXS 205, IQ4_NL 60, Q6_K 1", NULL},
    {"26B IQ3_S", &gemma_26b, "token_embd:Q6_K *:IQ3_S", PLAIN, "F32 392, IQ3_S 205, IQ4_NL 60, Q6_K 1", NULL},
    {"26B MXFP4_MOE", &gemma_26b, "ffn_gate_up_exps:MXFP4 ffn_down_exps:MXFP4 *:Q8_0", PLAIN,
     "F32 392, Q8_0 206, MXFP4 60", NULL},
    {"26B QAT Q4_0", &gemma_26b, "token_embd:Q6_K *:Q4_0", PLAIN, "F32 392, Q4_0 265, Q6_K 1", NULL},
    {"26B Q6_K", &gemma_26b, "*:Q6_K", PLAIN, "F32 392, Q6_K 206, Q8_0 60", NULL},
    {"26B Q8_0", &gemma_26b, "*:Q8_0", PLAIN, "F32 392, Q8_0 266", NULL},
    {"26B F16", &gemma_26b, "*:F16", PLAIN, "F32 392, F16 266", NULL},
    {"26B BF16", &gemma_26b, "*:BF16", PLAIN, "F32 392, BF16 266", NULL},
    {"26B NVFP4", &gemma_26b_split, "ffn_gate_exps:NVFP4 ffn_up_exps:NVFP4 ffn_down_exps:NVFP4 *:Q8_0", PLAIN,
     "F32 542, Q8_0 206, NVFP4 90", NULL},
    {"26B with scales of quantised tensors", &gemma_26b, "*:Q8_0", SCALES, "F32 572, Q8_0 266", NULL},
    {"26B with a scale of no matrix", &gemma_26b, "*:Q8_0", STRAY_SCALE, "F32 393, Q8_0 266",
     "tensor 'blk.3.attn_gate.scale' is not used by a gemma4 model; without it the answers would be wrong"},
    {"26B with a table of experts", &gemma_26b, "*:Q8_0", INTEGERS, "F32 392, I32 1, Q8_0 266",
     "tensor 'blk.0.ffn_gate_tid2eid.weight' is not used by a gemma4 model; without it the answers would be wrong"},
    {"26B of integers", &gemma_26b, "attn_q<1:I8 *:Q8_0", PLAIN, "F32 392, I8 1, Q8_0 265",
     "tensor 'blk.0.attn_q.weight' has type 24 (I8); use a file whose tensors are of these: F32, F16, "},
    {"26B of Ollama", &gemma_26b_ollama, K_M("Q4_K", "Q6_K"), OLLAMA,
     "F32 394, BF16 2, Q5_0 32, Q8_0 28, Q4_K 192, Q6_K 14", NULL},
    {"26B without a vocabulary", &gemma_26b, "*:Q8_0", NO_VOCABULARY, "F32 392, Q8_0 266",
     "has no tokenizer (no key tokenizer.ggml.model); take a file with a vocabulary"},
    {"12B Q4_K_M", &gemma_12b, "#45:Q6_K *:Q4_K", PLAIN, "F32 338, Q4_K 284, Q6_K 45", NULL},
    {"31B UD-Q4_K_XL", &gemma_31b, "#70:Q6_K #37:Q5_K *:Q4_K", PLAIN, "F32 422, Q4_K 304, Q5_K 37, Q6_K 70", NULL},
    {"E2B", &gemma_e2b, "#53:Q6_K #70:Q5_K *:Q4_K", PLAIN, "F32 283, Q4_K 194, Q5_K 70, Q6_K 53, BF16 1", NULL},
    {"E4B", &gemma_e4b, "token_embd:Q6_K *:Q4_K", PLAIN, "F32 339, Q4_K 379, Q6_K 1, BF16 1", NULL},
    {"DiffusionGemma Q4_K_M", &diffusion_26b, K_M("Q4_K", "Q6_K"), PLAIN,
     "F32 423, Q5_0 33, Q8_0 28, Q4_K 194, Q6_K 14", NULL},
    {"DiffusionGemma Q5_K_M", &diffusion_26b, K_M("Q5_K", "Q6_K"), PLAIN,
     "F32 423, Q5_1 33, Q8_0 28, Q5_K 194, Q6_K 14", NULL},
    {"DiffusionGemma Q5_K_S", &diffusion_26b, "token_embd:Q6_K *:Q5_K", PLAIN, "F32 423, Q5_1 61, Q5_K 207, Q6_K 1",
     NULL},
    {"DiffusionGemma Q4_K_S", &diffusion_26b,
     "token_embd:Q6_K attn_v<4:Q5_K ffn_down<3:Q5_K ffn_down_exps<3:Q5_K *:Q4_K", PLAIN,
     "F32 423, Q5_0 55, Q5_1 6, Q4_K 203, Q5_K 4, Q6_K 1", NULL},
    {"Qwen3-30B-A3B Q4_K_M", &qwen3_30b, "output:Q6_K " K_M("Q4_K", "Q6_K"), PLAIN, "F32 241, Q4_K 288, Q6_K 50", NULL},
    {"Qwen3-30B-A3B NVFP4", &qwen3_30b, "token_embd:BF16 output:BF16 *:NVFP4", PLAIN, "F32 913, BF16 2, NVFP4 336",
     NULL},
    {"Qwen3-8B Q8_0", &qwen3_8b, "*:Q8_0", PLAIN, "F32 145, Q8_0 254", NULL},
    {"Qwen3-8B NVFP4", &qwen3_8b, "token_embd:BF16 output:BF16 *:NVFP4", PLAIN, "F32 649, BF16 2, NVFP4 252", NULL},
};

/* Scales beside three matrices of each layer. */
static void add_scales(real_file *f) {
  static const char *const names[] = {"ffn_gate", "ffn_up", "ffn_down"};
  char name[64];
  const uint64_t one = 1;
  for (uint32_t l = 0; l < f->model->layers; l++) {
    for (uint32_t i = 0; i < 3; i++) {
      (void)snprintf(name, sizeof name, "blk.%u.%s.scale", l, names[i]);
      real_record(f, name, WEFT_TYPE_F32, 1, &one);
      (void)snprintf(name, sizeof name, "blk.%u.%s.input_scale", l, names[i]);
      real_record(f, name, WEFT_TYPE_F32, 1, &one);
    }
  }
}

static weft_gguf *open_described(const real_model *model, const char *types, file_sort sort) {
  real_file f = {.model = model, .types = types};
  bool gemma = strstr(model->arch, "gemma") != NULL;
  const uint64_t table[] = {8, 262144};
  weft_gguf *gguf = NULL;
  weft_error error = {{0}};
  if (gemma) {
    real_gemma(&f);
  } else {
    real_llama(&f);
  }
  if (sort == SCALES) add_scales(&f);
  if (sort == STRAY_SCALE) real_vector(&f, 3, "attn_gate.scale", 1);
  if (sort == INTEGERS) real_record(&f, "blk.0.ffn_gate_tid2eid.weight", 26, 2, table);
  if (sort != NO_VOCABULARY) real_vocabulary(&f, gemma, sort == OLLAMA);
  assert_true(real_file_write(&f, real_path));
  if (weft_gguf_open(real_path, &gguf, &error) != WEFT_OK) fail_msg("%s", error.text);
  return gguf;
}

static void check_census(const row *r, const weft_gguf *gguf, const char *json) {
  char list[256], *save = NULL;
  uint32_t n_all = 0;
  (void)snprintf(list, sizeof list, "%s", r->census);
  for (char *entry = strtok_r(list, ",", &save); entry != NULL; entry = strtok_r(NULL, ",", &save)) {
    char type[16], words[64];
    uint32_t n = 0;
    assert_int_equal(sscanf(entry, " %15s %u", type, &n), 2);
    (void)snprintf(words, sizeof words, "\"%s\": {\"tensors\": %u, ", type, n);
    if (strstr(json, words) == NULL) fail_msg("%s: no %s in %.400s", r->name, words, strstr(json, "\"types\": {"));
    n_all += n;
  }
  assert_int_equal(n_all, weft_gguf_n_tensors(gguf));
}

static void check_verdict(const row *r, const char *json) {
  char words[512] = "\"serves\": true,\n  \"refusal\": null,\n  \"chat_refusal\": null";
  if (r->refusal != NULL) (void)snprintf(words, sizeof words, "%s", r->refusal);
  const char *verdict = strstr(json, "\"serves\": ");
  if (strstr(verdict, words) == NULL) fail_msg("%s: the verdict is %s, not %s", r->name, verdict, words);
  assert_true((r->refusal == NULL) == (strncmp(verdict, "\"serves\": true", 14) == 0));
}

/* The last line of what a person sees. */
static void check_last_line(const row *r, const weft_gguf *gguf) {
  weft_text text = {0};
  assert_int_equal(weft_inspect(gguf, false, &text, NULL), WEFT_OK);
  const char *last = text.bytes + text.n - 1;
  assert_int_equal(*last, '\n');
  while (last > text.bytes && last[-1] != '\n') last -= 1;
  bool right = r->refusal == NULL
                   ? strcmp(last, "weft serves this file\n") == 0
                   : strncmp(last, "weft refuses this file: ", 24) == 0 && strstr(last, r->refusal) != NULL;
  if (!right) fail_msg("%s: the verdict is '%s', not '%s'", r->name, last, r->refusal != NULL ? r->refusal : "serves");
  weft_text_free(&text);
}

static void test_rows(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const row *r = &rows[i];
    weft_gguf *gguf = open_described(r->model, r->types, r->sort);
    weft_text json = {0};
    weft_error error = {{0}};
    assert_int_equal(weft_inspect(gguf, true, &json, &error), WEFT_OK);
    check_census(r, gguf, json.bytes);
    check_verdict(r, json.bytes);
    if (i == 0 || r->refusal != NULL) check_last_line(r, gguf);
    weft_text_free(&json);
    weft_gguf_close(gguf);
  }
}

/* Files of others, and parts of models: they are shown too, with what they are. */
static void test_other_architectures(void **state) {
  (void)state;
  static const char *const others[][2] = {
      {"clip",
       "architecture 'clip' is a part beside a model (an encoder of images or sound) and no model; give the file"},
      {"gemma4-assistant", "architecture 'gemma4-assistant' is a part beside a model (a drafter) and no model"},
      {"dflash",
       "architecture 'dflash' is a part beside a model (a drafter) and no model; give the file of the model, and"},
      {"gemma4_mtp", "architecture 'gemma4_mtp' is a part beside a model (a drafter) and no model"},
      {"deepseek4_mtp_support", "is ds4's file of the layer that guesses ahead and no model; give the file of the"},
      {"rwkv7", "architecture 'rwkv7' is not supported; take a model of one of these: gemma4, "},
  };
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    real_model model = qwen3_8b;
    row r = {.name = others[i][0], .refusal = others[i][1]};
    model.arch = others[i][0];
    real_file f = {.model = &model, .types = "*:Q8_0"};
    const uint64_t ne[] = {512, 4};
    weft_text text = {0};
    weft_gguf *gguf;
    weft_error error = {{0}};
    real_llama(&f);
    real_record(&f, "blk.0.ids", 26, 2, ne);  /* I32 */
    real_record(&f, "blk.0.odd", 144, 2, ne); /* an id of another project */
    assert_true(real_file_write(&f, real_path));
    assert_int_equal(weft_gguf_open(real_path, &gguf, &error), WEFT_OK);
    assert_int_equal(weft_inspect(gguf, false, &text, &error), WEFT_OK);
    assert_non_null(strstr(text.bytes, "I32          1 tensors  8.00 KiB  (weft does not compute this type)"));
    assert_non_null(strstr(text.bytes, "type 144     1 tensors  0 bytes  (weft does not compute this type)"));
    assert_non_null(strstr(text.bytes, "\n  weights                      "));
    check_last_line(&r, gguf);
    weft_text_free(&text);
    weft_gguf_close(gguf);
  }
}

/* Keys and values of the tables that docs/models.md prints. */
static void test_contexts(void **state) {
  (void)state;
  static const struct {
    const real_model *model;
    const char *words;
  } expected[] = {
      {&gemma_26b,
       "{\"tokens\": 4096, \"kv\": 293601280, \"layers\": [{\"n\": 25, \"window\": 1024, \"kv\": 209715200}, "
       "{\"n\": 5, \"window\": 0, \"kv\": 83886080}]}"},
      {&gemma_26b, "{\"tokens\": 262144, \"kv\": 5578424320, "},
      {&gemma_31b, "{\"tokens\": 262144, \"kv\": 22313697280, "},
      {&gemma_e4b, "{\"tokens\": 4096, \"kv\": 88080384, "}, /* 18 layers cost nothing */
      {&qwen3_30b, "{\"tokens\": 40960, \"kv\": 4026531840, \"layers\": [{\"n\": 48, \"window\": 0, "},
  };
  for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
    weft_gguf *gguf = open_described(expected[i].model, "*:Q8_0", NO_VOCABULARY);
    weft_text json = {0};
    assert_int_equal(weft_inspect(gguf, true, &json, NULL), WEFT_OK);
    if (strstr(json.bytes, expected[i].words) == NULL)
      fail_msg("no %s in %s", expected[i].words, strstr(json.bytes, "\"contexts\""));
    weft_text_free(&json);
    weft_gguf_close(gguf);
  }
}

/* A file that no machine can hold is refused before a weight is read: nothing of it is on the disk. */
static void test_larger_than_memory(void **state) {
  (void)state;
  static const weft_model_limits limits = {.rows_max = 1, .segments_max = 1};
  static const weft_device_config config = {.backend = "cpu", .n_threads = 1};
  real_file f = {.model = &beyond_memory, .types = "*:F32"};
  weft_gguf *gguf = NULL;
  weft_device *device;
  weft_model *model;
  weft_error error = {{0}};
  real_llama(&f);
  real_vocabulary(&f, false, false);
  if (!real_file_write(&f, real_path)) {
    assert_int_equal(errno, EFBIG);
    skip(); /* a file system whose files are smaller than 16 TiB */
  }
  if (weft_gguf_open(real_path, &gguf, &error) != WEFT_OK) fail_msg("%s", error.text);
  assert_int_equal(weft_device_open(&config, &device, &error), WEFT_OK);
  const weft_split split = weft_split_one(device);
  assert_int_equal(weft_model_open(gguf, &split, &limits, NULL, NULL, &model, &error), WEFT_E_NO_MEMORY);
  assert_non_null(strstr(error.text, ": its weights need 12"));
  assert_non_null(strstr(error.text, "GiB are free. Take a file of fewer bits or a smaller model, or free memory"));
  weft_device_close(device);
  weft_gguf_close(gguf);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rows),
      cmocka_unit_test(test_other_architectures),
      cmocka_unit_test(test_contexts),
      cmocka_unit_test(test_larger_than_memory),
  };
  return cmocka_run_group_tests(tests, real_path_open, real_path_remove);
}
