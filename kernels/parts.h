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

/* The products of experts' shared MLP, with their scratch: so they run before the experts or after them. */
static inline weft_matmul_args weft_shared_in(const weft_experts_args *experts) {
  const weft_shared_args *shared = &experts->shared;
  weft_matmul_args args;
  memset(&args, 0, sizeof args);
  args.x = shared->x;
  args.n_rows = experts->n_rows;
  args.n_weights = 2;
  args.weight[0] = shared->gate;
  args.weight[1] = shared->up;
  args.y[0] = shared->g;
  args.y[1] = shared->u;
  args.x_stride = shared->x_stride;
  args.y_stride[0] = args.y_stride[1] = shared->gate->n_out;
  args.activation = experts->activation;
  args.scratch = experts->scratch;
  args.scratch_bytes = experts->scratch_bytes;
  return args;
}

static inline weft_matmul_args weft_shared_out(const weft_experts_args *experts) {
  const weft_shared_args *shared = &experts->shared;
  weft_matmul_args args;
  memset(&args, 0, sizeof args);
  args.x = shared->g;
  args.n_rows = experts->n_rows;
  args.n_weights = 1;
  args.weight[0] = shared->down;
  args.y[0] = shared->y;
  args.x_stride = shared->gate->n_out;
  args.y_stride[0] = shared->y_stride;
  args.scratch = experts->scratch;
  args.scratch_bytes = experts->scratch_bytes;
  return args;
}

typedef weft_status (*weft_matmul_call)(weft_device *device, const weft_matmul_args *args);
typedef uint64_t (*weft_matmul_measure)(weft_device *device, const weft_matmul_args *args);

/* The whole of it; nothing where there is none. */
static inline weft_status weft_shared_run(weft_device *device, const weft_experts_args *experts, weft_matmul_call matmul) {
  if (experts->shared.gate == NULL) return WEFT_OK;
  weft_matmul_args in = weft_shared_in(experts), out = weft_shared_out(experts);
  weft_status status = matmul(device, &in);
  return status == WEFT_OK ? matmul(device, &out) : status;
}

/* Scratch of the experts and of their shared MLP. */
static inline uint64_t weft_shared_scratch(weft_device *device, const weft_experts_args *experts, uint64_t of_experts,
                                           weft_matmul_measure measure) {
  if (experts->shared.gate == NULL) return of_experts;
  weft_matmul_args in = weft_shared_in(experts), out = weft_shared_out(experts);
  uint64_t of_in = measure(device, &in), of_out = measure(device, &out), of_shared = of_in > of_out ? of_in : of_out;
  return of_shared > of_experts ? of_shared : of_experts;
}

#endif
