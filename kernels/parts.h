/* SPDX-License-Identifier: MIT */
/* Ops that are several in one, as calls of those: for backends that have no kernel of their own for the whole. */
#ifndef WEFT_KERNELS_PARTS_H
#define WEFT_KERNELS_PARTS_H

#include <string.h>

#include "kernels/ops.h"

/* The router's product of a route, which leaves its logits. */
static inline weft_matmul_args weft_route_product(const weft_route_args *route) {
  weft_matmul_args args;
  memset(&args, 0, sizeof args);
  args.x = route->x;
  args.n_rows = route->n_rows;
  args.n_weights = 1;
  args.weight[0] = route->router;
  args.y[0] = route->logits;
  args.x_stride = route->x_stride;
  args.y_stride[0] = route->logits_stride;
  args.scratch = route->scratch;
  args.scratch_bytes = route->scratch_bytes;
  return args;
}

/* What a matmul with an activation does when its two products are there. */
static inline weft_gate_args weft_matmul_gate(const weft_matmul_args *matmul) {
  weft_gate_args args;
  memset(&args, 0, sizeof args);
  args.g = matmul->y[0];
  args.u = matmul->y[1];
  args.y = matmul->y[0];
  args.n_rows = matmul->n_rows;
  args.n_cols = matmul->weight[0]->n_out;
  args.g_stride = args.y_stride = matmul->y_stride[0];
  args.u_stride = matmul->y_stride[1];
  args.activation = matmul->activation;
  return args;
}

#endif
