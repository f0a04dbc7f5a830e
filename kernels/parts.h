/* SPDX-License-Identifier: MIT */
/* Fused ops as calls of their parts, for backends that have no kernel of their own for the whole.
 *
 * Law: the calls of the parts define the fused op: a backend that fuses gives the same bits. The functions here only
 * make argument structs, or call the backend's matmul with them; three more say in one place how the backends whose
 * device memory is host memory order experts, and how they refuse a row, and how many experts there are. */
#ifndef WEFT_KERNELS_PARTS_H
#define WEFT_KERNELS_PARTS_H

#include <math.h>
#include <string.h>

#include "base/log.h"
#include "kernels/ops.h"

typedef weft_status (*parts_matmul_call)(weft_device *device, const weft_matmul_args *args);
typedef weft_status (*parts_norm_call)(weft_device *device, const weft_norm_args *args);
typedef uint64_t (*parts_matmul_measure)(weft_device *device, const weft_matmul_args *args);

/* Arguments of a product of rows; weights are still to be added. */
static inline weft_matmul_args parts_product_of(const float *x, uint64_t x_stride, uint32_t n_rows, void *scratch,
                                                uint64_t scratch_bytes) {
  weft_matmul_args args;
  memset(&args, 0, sizeof args);
  args.x = x;
  args.x_stride = x_stride;
  args.n_rows = n_rows;
  args.scratch = scratch;
  args.scratch_bytes = scratch_bytes;
  return args;
}

/* Adds a weight and the place of its results. */
static inline void parts_product_add(weft_matmul_args *args, const weft_weight *weight, float *y, uint64_t y_stride) {
  args->weight[args->n_weights] = weight;
  args->y[args->n_weights] = y;
  args->y_stride[args->n_weights] = y_stride;
  args->n_weights += 1;
}

/* Refuses what a backend found in device memory, which kernels/ops.c cannot see. */
static inline weft_status parts_refuse_row(const char *op, uint32_t row, const char *fact) {
  weft_log(WEFT_LOG_ERROR, "op %s: invalid arguments: row %u %s", op, row, fact);
  return WEFT_E_INVALID;
}

/* Token i of those of a row's groups, and whether all groups and tokens of a row exist. */
#define PARTS_NO_GROUP "names a group that there is not, or a token"
static inline int32_t parts_group_token(const weft_head_groups_args *args, uint64_t row, uint64_t i) {
  return args->tokens[(uint64_t)args->ids[row * args->k + i / args->size] * args->size + i % args->size];
}

static inline bool parts_groups_exist(const weft_head_groups_args *args, uint64_t row) {
  for (uint32_t j = 0; j < args->k; j++)
    if ((uint32_t)args->ids[row * args->k + j] >= args->n_groups) return false;
  for (uint64_t i = 0; i < (uint64_t)args->k * args->size; i++)
    if ((uint32_t)parts_group_token(args, row, i) >= args->weight->n_out) return false;
  return true;
}

/* How many experts there are, of which the weights of a call may hold some. */
static inline uint32_t parts_experts_count(const weft_experts_args *experts) {
  return experts->n_experts != 0 ? experts->n_experts : experts->down->n_mats;
}

/* What the experts of a route are ordered by: a logit that is no number is as small as any. */
static inline float parts_route_rank(float logit) {
  return isnan(logit) ? -INFINITY : logit;
}

/* The product of a route's rows with its router, which gives the logits. */
static inline weft_matmul_args parts_route_product(const weft_route_args *route) {
  weft_matmul_args args =
      parts_product_of(route->x, route->x_stride, route->n_rows, route->scratch, route->scratch_bytes);
  parts_product_add(&args, route->router, route->logits, route->logits_stride);
  return args;
}

static inline uint64_t parts_route_scratch(weft_device *device, const weft_route_args *route,
                                           parts_matmul_measure measure) {
  weft_matmul_args product = parts_route_product(route);
  return route->router == NULL ? 0 : measure(device, &product);
}

/* What adds the router's bias to the product. */
static inline weft_norm_args parts_route_bias(const weft_route_args *route) {
  weft_norm_args args;
  memset(&args, 0, sizeof args);
  args.x = args.y = route->logits;
  args.x_stride = args.y_stride = route->logits_stride;
  args.add = route->router_bias;
  args.n_rows = route->n_rows;
  args.n_cols = route->n_experts;
  args.plain = true;
  return args;
}

/* Computes the logits of a route. Without a router they are there already. */
static inline weft_status parts_route_logits(weft_device *device, const weft_route_args *route,
                                             parts_matmul_call matmul, parts_norm_call norm) {
  if (route->router == NULL) return WEFT_OK;
  weft_matmul_args product = parts_route_product(route);
  weft_status status = matmul(device, &product);
  if (status != WEFT_OK || route->router_bias == NULL) return status;
  weft_norm_args bias = parts_route_bias(route);
  return norm(device, &bias);
}

/* The gate that follows the two products of a matmul with an activation. */
static inline weft_gate_args parts_matmul_gate(const weft_matmul_args *matmul) {
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

/* The two products of the experts' shared MLP. They use the scratch of the experts, so they run before or after
 * them. */
static inline weft_matmul_args parts_shared_in(const weft_experts_args *experts) {
  const weft_shared_args *shared = &experts->shared;
  weft_matmul_args args =
      parts_product_of(shared->x, shared->x_stride, experts->n_rows, experts->scratch, experts->scratch_bytes);
  args.x_form = shared->x_form;
  parts_product_add(&args, shared->gate, shared->g, shared->gate->n_out);
  parts_product_add(&args, shared->up, shared->u, shared->gate->n_out);
  args.activation = experts->activation;
  return args;
}

static inline weft_matmul_args parts_shared_out(const weft_experts_args *experts) {
  const weft_shared_args *shared = &experts->shared;
  weft_matmul_args args =
      parts_product_of(shared->g, shared->gate->n_out, experts->n_rows, experts->scratch, experts->scratch_bytes);
  parts_product_add(&args, shared->down, shared->y, shared->y_stride);
  return args;
}

/* Runs the experts' shared MLP, if they have one. */
static inline weft_status parts_shared_run(weft_device *device, const weft_experts_args *experts,
                                           parts_matmul_call matmul) {
  if (experts->shared.gate == NULL) return WEFT_OK;
  weft_matmul_args in = parts_shared_in(experts), out = parts_shared_out(experts);
  weft_status status = matmul(device, &in);
  return status == WEFT_OK ? matmul(device, &out) : status;
}

/* Bytes of scratch for the experts, of_experts, or for their shared MLP, whichever are more. */
static inline uint64_t parts_shared_scratch(weft_device *device, const weft_experts_args *experts, uint64_t of_experts,
                                            parts_matmul_measure measure) {
  if (experts->shared.gate == NULL) return of_experts;
  weft_matmul_args in = parts_shared_in(experts), out = parts_shared_out(experts);
  uint64_t of_in = measure(device, &in), of_out = measure(device, &out), of_shared = of_in > of_out ? of_in : of_out;
  return of_shared > of_experts ? of_shared : of_experts;
}

#endif
