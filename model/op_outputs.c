/* SPDX-License-Identifier: MIT */
#include "model/op_outputs.h"

#include <string.h>

#define IS(name) (strcmp(op, name) == 0)

static op_output give_rows(void *data, uint64_t n_rows, uint64_t n_cols, uint64_t stride) {
  return (op_output){.data = data, .n_rows = n_rows, .n_cols = n_cols, .stride = stride};
}

uint32_t op_outputs_of(const char *op, const void *args, op_output out[OP_OUTPUTS_MAX]) {
  if (IS("embed")) {
    const weft_embed_args *a = args;
    out[0] = give_rows(a->y, a->n_rows, a->weight->n_in, a->y_stride);
  } else if (IS("norm")) {
    const weft_norm_args *a = args;
    out[0] = give_rows(a->y, a->n_rows, a->n_cols, a->y_stride);
    for (uint32_t i = 0; i < a->n_then; i++) {
      out[1 + i] = give_rows(a->then[i], a->n_rows, a->n_cols, a->y_stride);
      out[1 + i].form = a->then_form[i];
    }
    return 1 + a->n_then;
  } else if (IS("matmul")) {
    const weft_matmul_args *a = args;
    for (uint32_t i = 0; i < a->n_weights; i++)
      out[i] = give_rows(a->y[i], a->n_rows, a->weight[i]->n_out, a->y_stride[i]);
    return a->activation != 0 ? 1 : a->n_weights;
  } else if (IS("qkv")) {
    const weft_qkv_args *a = args;
    out[0] = give_rows(a->q, a->n_rows, (uint64_t)a->n_heads * a->kv.head_dim, a->q_stride);
  } else if (IS("attention")) {
    const weft_attention_args *a = args;
    out[0] = give_rows(a->out, a->n_rows, (uint64_t)a->n_heads * a->kv.head_dim, a->out_stride);
    out[0].form = a->prepared_form;
  } else if (IS("gate")) {
    const weft_gate_args *a = args;
    out[0] = give_rows(a->y, a->n_rows, a->n_cols, a->y_stride);
  } else if (IS("route")) {
    const weft_route_args *a = args;
    out[0] = give_rows(a->ids, a->n_rows, a->k, a->k);
    out[0].is_ids = true;
    out[1] = give_rows(a->weights, a->n_rows, a->k, a->k);
    return 2;
  } else if (IS("experts")) {
    const weft_experts_args *a = args;
    out[0] = give_rows(a->y, a->n_rows, a->down->n_out, a->y_stride);
    if (a->shared.gate == NULL) return 1;
    out[1] = give_rows(a->shared.y, a->n_rows, a->shared.down->n_out, a->shared.y_stride);
    return 2;
  } else if (IS("head_rows")) {
    const weft_head_rows_args *a = args;
    out[0] = give_rows(a->logits, a->n_rows, a->weight->n_out, a->logits_stride);
  } else if (IS("soft")) {
    const weft_soft_args *a = args;
    out[0] = give_rows(a->soft, a->n_rows, a->weight->n_in, a->soft_stride);
  } else {
    return 0;
  }
  return 1;
}
