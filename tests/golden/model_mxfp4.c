/* SPDX-License-Identifier: MIT */
/* A file whose experts are stored as MXFP4 (tests/golden/make_mxfp4.py), against the same file with what the package
 * gguf makes of the stored blocks.
 *
 *   values    every expert matrix means the floats of the plain file, bit for bit; the rest are the same bytes
 *   answers   ref gives the same logits for both files, bit for bit (golden/model_parity holds them to the
 *             expected ones)
 *   ops       every other backend of this machine agrees with ref op by op; with some outputs of one layer's
 *             experts doubled it does not, and the check names them */
#include "model/gguf/gguf_internal.h"
#include "tests/support/op_check.h"

#define STORED "dg-mxfp4"
#define PLAIN  "dg-mxfp4.plain"

enum { TOKENS = 14, CANVAS = 8 };
static const int32_t tokens[TOKENS] = {5, 9, 2, 14, 7, 30, 8, 21, 11, 101, 77, 64, 3, 50};
static const int32_t canvas[CANVAS] = {5, 1, 122, 63, 46, 110, 58, 106};
static const float tolerance = 0.1f; /* cpu and cuda round rows: the default of weft check */

/* ---- values -------------------------------------------------------------------------------------------- */

static void compare_values(const weft_gguf *stored, const weft_gguf *plain) {
  uint32_t n_experts = 0;
  for (uint32_t i = 0; i < stored->n_tensors; i++) {
    const weft_gguf_tensor *a = &stored->tensors[i], *b = weft_gguf_tensor_find(plain, a->name);
    bool is_expert = strstr(a->name, "_exps.weight") != NULL;
    if (b == NULL || (is_expert ? a->type != WEFT_TYPE_MXFP4 || b->type != WEFT_TYPE_F32 : a->type != b->type))
      harness_die(a->name, WEFT_E_FORMAT, "not what was expected");
    if (!is_expert) {
      if (a->n_bytes != b->n_bytes || memcmp(a->data, b->data, a->n_bytes) != 0)
        harness_die(a->name, WEFT_E_FORMAT, "other bytes");
      continue;
    }
    uint64_t n = b->n_bytes / sizeof(float);
    float *values = harness_alloc(n, sizeof *values);
    weft_dequantise_row(a->type, a->data, values, n);
    if (memcmp(values, b->data, b->n_bytes) != 0) harness_die(a->name, WEFT_E_FORMAT, "other values");
    free(values);
    n_experts += 1;
  }
  if (n_experts != 8) harness_die("experts", WEFT_E_FORMAT, "expected two matrices in each of four layers");
  (void)printf("%u matrices of experts mean the floats of the plain file, bit for bit\n", n_experts);
}

/* ---- answers ------------------------------------------------------------------------------------------- */

/* Logits of a prompt and of a canvas behind it. */
static float *run_ref(const char *name, uint32_t *n_vocab) {
  harness h;
  harness_seq seq;
  const harness_options options = {.backend = "ref", .n_threads = 1, .block_tokens = 4, .rows_max = 32, .n_pages = 64};
  harness_open(&h, harness_tiny(name), &options);
  harness_seq_open(&seq);
  *n_vocab = h.info->n_vocab;
  float *logits = harness_alloc((TOKENS + CANVAS) * h.info->n_vocab, sizeof *logits);
  harness_piece prompt = {.seq = &seq, .tokens = tokens, .n = TOKENS, .output = OUT_ALL, .logits = logits};
  harness_run(&h, &prompt, 1);
  harness_piece step = {.seq = &seq,
                        .tokens = canvas,
                        .n = CANVAS,
                        .canvas = true,
                        .output = OUT_ALL,
                        .logits = logits + TOKENS * h.info->n_vocab};
  harness_run(&h, &step, 1);
  harness_seq_close(&seq);
  harness_close(&h);
  return logits;
}

static void compare_answers(void) {
  uint32_t n_vocab, n_plain;
  float *stored = run_ref(STORED, &n_vocab), *plain = run_ref(PLAIN, &n_plain);
  if (n_vocab != n_plain || memcmp(stored, plain, (TOKENS + CANVAS) * n_vocab * sizeof *plain) != 0)
    harness_die("answers", WEFT_E_INVALID, "ref gives other logits for the plain file");
  (void)printf("ref gives the same %u rows of logits for both files\n", TOKENS + CANVAS);
  free(stored);
  free(plain);
}

/* ---- ops ----------------------------------------------------------------------------------------------- */

static void compare_ops(const weft_gguf *gguf) {
  const weft_check_args args = {
      .gguf = gguf, .tokens = tokens, .n_tokens = TOKENS, .canvas = canvas, .n_canvas = CANVAS, .tolerance = tolerance};
  op_check_each_backend(&args, STORED, "experts", 40);
}

int main(void) {
  weft_gguf *stored = harness_gguf(harness_tiny(STORED)), *plain = harness_gguf(harness_tiny(PLAIN));
  compare_values(stored, plain);
  compare_answers();
  compare_ops(stored);
  weft_gguf_close(plain);
  weft_gguf_close(stored);
  return 0;
}
