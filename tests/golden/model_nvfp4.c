/* SPDX-License-Identifier: MIT */
/* Files whose matrices are stored as NVFP4 with scales beside them (tests/golden/make_nvfp4.py). golden/model_parity holds
 * ref to the expected logits; here every other backend of this machine agrees with ref op by op, and with some outputs of
 * one layer doubled it does not: as if a scale had been left out. */
#include "tests/support/op_check.h"

enum { TOKENS = 14 };
static const int32_t tokens[TOKENS] = {5, 9, 2, 14, 7, 30, 8, 21, 11, 37, 17, 33, 3, 50};
static const float tolerance = 0.2f; /* cpu and cuda round rows, of 64 numbers here: the same values in Q8_0 need 0.1 */

static void compare_ops(const char *name, const char *op) {
  weft_gguf *gguf = harness_gguf(harness_tiny(name));
  const weft_check_args args = {.gguf = gguf, .tokens = tokens, .n_tokens = TOKENS, .tolerance = tolerance};
  op_check_each_backend(&args, name, op, 20);
  weft_gguf_close(gguf);
}

int main(void) {
  compare_ops("qwen3-nvfp4", "matmul");
  compare_ops("qwen3moe-nvfp4", "experts");
  compare_ops("ar-nvfp4", "experts");
  return 0;
}
