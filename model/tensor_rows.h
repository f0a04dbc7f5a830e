/* SPDX-License-Identifier: MIT */
/* Names of tensors that files of several architectures share, for the tables of weights.h. Included by model/<arch>.c
 * alone: it defines short names. */
#ifndef WEFT_MODEL_TENSOR_ROWS_H
#define WEFT_MODEL_TENSOR_ROWS_H

#include "model/model_internal.h"
#include "model/weights.h"

#define ROW(name, kind, need, field, uses, ...) \
  TENSOR_ROW(model_layer, "blk.%u." name, NULL, kind, need, field, uses, __VA_ARGS__)
#define GLOBAL(name, kind, need, field, uses, ...) \
  TENSOR_ROW(model_globals, name, NULL, kind, need, field, uses, __VA_ARGS__)
#define HIDDEN  DIM_HIDDEN
#define MATMUL  WEFT_USE_MATMUL
#define EXPERTS WEFT_USE_EXPERTS
#define EMBED   WEFT_USE_EMBED

/* After everything else: where memory ends, it ends here. */
static const tensor_row expert_rows[] = {
    ROW("ffn_gate_up_exps.weight", MATRIX, MOE_NEVER, gate_up_exps, EXPERTS, HIDDEN, DIM_EXPERT_FF_TWICE, DIM_EXPERTS),
    ROW("ffn_gate_exps.weight", MATRIX, MOE_NEVER, gate_exps, EXPERTS, HIDDEN, DIM_EXPERT_FF, DIM_EXPERTS),
    ROW("ffn_up_exps.weight", MATRIX, MOE_NEVER, up_exps, EXPERTS, HIDDEN, DIM_EXPERT_FF, DIM_EXPERTS),
    ROW("ffn_down_exps.weight", MATRIX, MOE, down_exps, EXPERTS, DIM_EXPERT_FF, HIDDEN, DIM_EXPERTS),
};

static const tensor_row global_rows[] = {
    GLOBAL("token_embd.weight", MATRIX, ALWAYS, token_embd, EMBED, HIDDEN, DIM_VOCAB),
    GLOBAL("output.weight", MATRIX, NEVER, output, EMBED, HIDDEN, DIM_VOCAB),
    GLOBAL("output_norm.weight", VECTOR, ALWAYS, output_norm, 0, HIDDEN),
};

#endif
