/* SPDX-License-Identifier: MIT */
/* Files whose matrices are stored as NVFP4 with scales beside them (tests/golden/make_nvfp4.py). golden/model_parity holds
 * ref to the expected logits; here every other backend of this machine agrees with ref op by op, and with some outputs of
 * one layer doubled it does not: as if a scale had been left out.
 *
 * Scales of the self-conditioning: a matrix of a quarter with a scale of four gives the bits of the matrix without one in
 * canvases that have a soft embedding, and a scale of four alone does not. */
#include "tests/support/gguf_edit.h"
#include "tests/support/op_check.h"

enum { TOKENS = 14, CANVAS = 8, LOGITS_MAX = CANVAS * 256 };
static const int32_t tokens[TOKENS] = {5, 9, 2, 14, 7, 30, 8, 21, 11, 37, 17, 33, 3, 50};
static const float tolerance = 0.2f; /* cpu and cuda round rows, of 64 numbers here: the same values in Q8_0 need 0.1 */

static void compare_ops(const char *name, const char *op) {
  weft_gguf *gguf = harness_gguf(harness_tiny(name));
  const weft_check_args args = {.gguf = gguf, .tokens = tokens, .n_tokens = TOKENS, .tolerance = tolerance};
  op_check_each_backend(&args, name, op, 20);
  weft_gguf_close(gguf);
}

/* The logits of a canvas's second step in dg-base with the edit. */
static uint32_t canvas_logits(const char *backend, const gguf_edit *edit, float *logits) {
  const harness_options options = {.backend = backend, .n_threads = 1, .rows_max = TOKENS, .n_pages = 64};
  harness h;
  harness_seq seq;
  harness_open(&h, gguf_edit_file(harness_tiny("dg-base"), edit, "self-cond"), &options);
  if (h.info->canvas_length != CANVAS || h.info->n_vocab > LOGITS_MAX / CANVAS) {
    harness_die("dg-base", WEFT_E_INVALID, "has other sizes");
  }
  float *soft = harness_memory(&h, CANVAS, h.info->n_hidden * sizeof *soft);
  harness_seq_open(&seq);
  harness_piece piece = {.seq = &seq, .tokens = tokens, .n = TOKENS};
  harness_run(&h, &piece, 1);
  piece = (harness_piece){
      .seq = &seq, .tokens = tokens + 3, .n = CANVAS, .canvas = true, .output = OUT_ALL, .logits = logits};
  harness_run(&h, &piece, 1);
  harness_soft(&h, logits, CANVAS, 0.7f, soft);
  piece.soft = soft;
  harness_run(&h, &piece, 1);
  uint32_t n_bytes = CANVAS * h.info->n_vocab * (uint32_t)sizeof *logits;
  harness_seq_close(&seq);
  harness_release(&h, soft);
  harness_close(&h);
  return n_bytes;
}

static void compare_self_conditioning(const char *backend) {
  static const char *const scales[] = {"self_cond_gate.scale", "self_cond_up.scale", "self_cond_down.scale"};
  static const char *const matrices[] = {"self_cond_gate.weight", "self_cond_up.weight", "self_cond_down.weight"};
  static float plain[LOGITS_MAX], got[LOGITS_MAX];
  uint32_t n_bytes = canvas_logits(backend, &(gguf_edit){0}, plain);
  for (uint32_t i = 0; i < 3; i++) {
    gguf_edit edit = {.add_scalar = scales[i], .real = 4, .times = matrices[i], .factor = 0.25f};
    (void)canvas_logits(backend, &edit, got);
    if (memcmp(plain, got, n_bytes) != 0) harness_die(scales[i], WEFT_E_INVALID, "a quarter times four is not one");
    edit.times = NULL;
    (void)canvas_logits(backend, &edit, got);
    if (memcmp(plain, got, n_bytes) == 0) harness_die(scales[i], WEFT_E_INVALID, "the scale is not used");
  }
}

int main(void) {
  compare_ops("qwen3-nvfp4", "matmul");
  compare_ops("qwen3moe-nvfp4", "experts");
  compare_ops("ar-nvfp4", "experts");
  compare_self_conditioning("ref");
  compare_self_conditioning("cpu");
  gguf_edit_clean();
  return 0;
}
