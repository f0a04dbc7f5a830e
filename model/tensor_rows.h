/* SPDX-License-Identifier: MIT */
/* Tables of tensors (model/weights.h) that the files of several architectures share. Only model/<arch>.c includes this
 * header, because it defines macros with short names. */
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

/* Experts are loaded after everything else: where device memory runs out, it runs out here (kernels/device.h says what
 * happens then). */
static const tensor_row expert_rows[] = {
    ROW("ffn_gate_up_exps.weight", MATRIX, MOE_NEVER, gate_up_exps, EXPERTS, HIDDEN, DIM_EXPERT_FF_TWICE, DIM_EXPERTS),
    ROW("ffn_gate_exps.weight", MATRIX, MOE_NEVER, gate_exps, EXPERTS, HIDDEN, DIM_EXPERT_FF, DIM_EXPERTS),
    ROW("ffn_up_exps.weight", MATRIX, MOE_NEVER, up_exps, EXPERTS, HIDDEN, DIM_EXPERT_FF, DIM_EXPERTS),
    ROW("ffn_down_exps.weight", MATRIX, MOE, down_exps, EXPERTS, DIM_EXPERT_FF, HIDDEN, DIM_EXPERTS),
};

/* Scales of whole matrices, as NVFP4 files have them. The scale of ffn_down_exps is read as the experts' own factor
 * (expert_scale), since it multiplies the output of an expert. */
#define SCALES(name, field, n) \
  ROW(name ".scale", SCALE, NEVER, field, 0, n), ROW(name ".input_scale", INPUT_SCALE, NEVER, field, 0, n)
static const tensor_row scale_rows[] = {
    SCALES("attn_q", q, DIM_ONE),      SCALES("attn_k", k, DIM_ONE),      SCALES("attn_v", v, DIM_ONE),
    SCALES("attn_output", o, DIM_ONE), SCALES("ffn_gate", gate, DIM_ONE), SCALES("ffn_up", up, DIM_ONE),
    SCALES("ffn_down", down, DIM_ONE),
};

static const tensor_row expert_scale_rows[] = {
    SCALES("ffn_gate_up_exps", gate_up_exps, DIM_EXPERTS),
    SCALES("ffn_gate_exps", gate_exps, DIM_EXPERTS),
    SCALES("ffn_up_exps", up_exps, DIM_EXPERTS),
    ROW("ffn_down_exps.input_scale", INPUT_SCALE, NEVER, down_exps, 0, DIM_EXPERTS),
};

static const tensor_row global_rows[] = {
    GLOBAL("token_embd.weight", MATRIX, ALWAYS, token_embd, EMBED, HIDDEN, DIM_VOCAB),
    TENSOR_ROW_AT_END(model_globals, "output.weight", MATRIX, NEVER, output, EMBED, HIDDEN, DIM_VOCAB),
    TENSOR_ROW_AT_END(model_globals, "token_embd.weight", MATRIX, TIED, tied_output, EMBED, HIDDEN, DIM_VOCAB),
};

#endif
