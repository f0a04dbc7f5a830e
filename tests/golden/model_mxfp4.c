/* SPDX-License-Identifier: MIT */
/* A file whose experts are stored as MXFP4 (tests/golden/make_mxfp4.py), against the same file with their values in F32.
 * What the blocks mean is held to the package gguf by golden/model_quant.
 *
 *   answers   ref gives the same logits for both files, bit for bit (golden/model_parity holds them to the
 *             expected ones)
 *   ops       every other backend of this machine agrees with ref op by op; with some outputs of one layer's
 *             experts doubled it does not, and the check names them */
#include "tests/support/gguf_requantise.h"
#include "tests/support/op_check.h"

#define STORED "dg-mxfp4"

enum { TOKENS = 14, CANVAS = 8 };
static const int32_t tokens[TOKENS] = {5, 9, 2, 14, 7, 30, 8, 21, 11, 101, 77, 64, 3, 50};
static const int32_t canvas[CANVAS] = {5, 1, 122, 63, 46, 110, 58, 106};
static const float tolerance = 0.1f; /* cpu and cuda round rows: the default of weft check */

/* ---- answers ------------------------------------------------------------------------------------------- */

/* Logits of a prompt and of a canvas behind it. Takes the gguf. */
static float *run_ref(weft_gguf *gguf, const char *name, uint32_t *n_vocab) {
  harness h;
  harness_seq seq;
  const harness_options options = {.backend = "ref", .n_threads = 1, .block_tokens = 4, .rows_max = 32, .n_pages = 64};
  harness_open_gguf(&h, gguf, name, &options);
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
  weft_error error = {{0}};
  weft_gguf *from = harness_gguf(harness_tiny(STORED)), *widened;
  gguf_writer w = {0};
  if (requantise_to_values(from, WEFT_TYPE_MXFP4, &w) != 8)
    harness_die("experts", WEFT_E_FORMAT, "expected two matrices in each of four layers");
  weft_bytes file = gguf_writer_finish(&w);
  weft_status status = weft_gguf_open_memory(file.data, file.n, "values", &widened, &error);
  if (status != WEFT_OK) harness_die("values", status, error.text);
  float *stored = run_ref(from, STORED, &n_vocab), *plain = run_ref(widened, "values", &n_plain);
  if (n_vocab != n_plain || memcmp(stored, plain, (TOKENS + CANVAS) * n_vocab * sizeof *plain) != 0)
    harness_die("answers", WEFT_E_INVALID, "ref gives other logits for the file of values");
  (void)printf("ref gives the same %u rows of logits for both files\n", TOKENS + CANVAS);
  free(stored);
  free(plain);
  gguf_writer_close(&w);
}

/* ---- ops ----------------------------------------------------------------------------------------------- */

static void compare_ops(const weft_gguf *gguf) {
  const weft_check_args args = {
      .gguf = gguf, .tokens = tokens, .n_tokens = TOKENS, .canvas = canvas, .n_canvas = CANVAS, .tolerance = tolerance};
  op_check_each_backend(&args, STORED, "experts", 40);
}

int main(void) {
  weft_gguf *stored = harness_gguf(harness_tiny(STORED));
  compare_answers();
  compare_ops(stored);
  weft_gguf_close(stored);
  return 0;
}
