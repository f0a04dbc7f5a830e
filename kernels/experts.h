/* SPDX-License-Identifier: MIT */
/* The op experts: a mixture-of-experts MLP, and how its two products are gated. Part of kernels/ops.h, whose laws hold.
 *
 * Activations. The first two are functions of g that u is multiplied by: GELU (by tanh) and SiLU. The third is a gate
 * of both numbers: with g held to at most L and u to [-L, L], L = WEFT_GATE_LIMIT, it is
 *
 *   g / (1 + e^(-a g)) * (u + 1)    a = WEFT_GATE_SLOPE
 *
 * A number that is none stays none. Only the ops gate and experts (without a shared MLP) have it. The fourth, the
 * factor 1 / (1 + e^-g), is of the op gate alone. With a limit (of SiLU, where the backend has_limits) g is held to at
 * most the limit and u to [-limit, limit] before. */
#ifndef WEFT_KERNELS_EXPERTS_H
#define WEFT_KERNELS_EXPERTS_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weft_activation {
  WEFT_GELU_TANH = 1,
  WEFT_SILU = 2,
  WEFT_CLAMPED_SILU = 3,
  WEFT_SIGMOID = 4
} weft_activation;

#define WEFT_GATE_SLOPE 1.702f
#define WEFT_GATE_LIMIT 7.0f

/* The sum over a row's experts is made by pairs: WEFT_EXPERTS_LEAVES sums in f32, each over the ranks whose experts are
 * of that leaf, in rank order from +0; then leaves 2 i and 2 i + 1 are added, then the sums of these pairs, and so
 * on. */
enum { WEFT_EXPERTS_LEVELS = 4, WEFT_EXPERTS_LEAVES = 1 << WEFT_EXPERTS_LEVELS };

#ifdef __CUDACC__
#define WEFT_EXPERTS_FN static __host__ __device__ inline
#else
#define WEFT_EXPERTS_FN static inline
#endif

/* Leaf l has the experts from n_experts * l / LEAVES on, up to the next leaf's. expert < n_experts. */
WEFT_EXPERTS_FN uint32_t weft_experts_leaf(uint32_t expert, uint32_t n_experts) {
  return (WEFT_EXPERTS_LEAVES * expert + WEFT_EXPERTS_LEAVES - 1) / n_experts;
}

/* Whoever adds the ranks leaf by leaf closes this many levels behind a rank: the sum of each of them goes into the next
 * one's, and is +0 again. next: the leaf of the rank that follows; LEAVES behind the last rank. No sum from +0 is -0,
 * so leaves without ranks change nothing. */
WEFT_EXPERTS_FN uint32_t weft_experts_closes(uint32_t leaf, uint32_t next) {
  uint32_t n = 0;
  for (uint32_t differs = leaf ^ next; n < WEFT_EXPERTS_LEVELS && differs >> n != 0; n++) continue;
  return n;
}

/* ---- experts: y[r] = sum over ranks j of weights[r,j] * down[e](act(gate[e] x) * (up[e] x)), e = ids[r,j] ------- *
 * The stacks may hold some experts only, from first_expert on: a rank whose expert is not among them adds nothing. So
 * where each of several calls has the experts of all leaves below one sum of the tree, adding what they make as the
 * tree does gives the bits of one call with all experts. An expert that does not exist is INVALID; on cuda its row
 * becomes NaN. Weights are gate_up (gate rows first, then up rows) or gate and up. Products, also of act * up with
 * down, have matmul's numerics; on cuda results of down in 8 bits are then bf16. With biases each is added in f32 to
 * what the product with its matrix gives: before the gate, and after down. shared: an MLP that every row takes, as two
 * matmuls; experts do not read what it writes, nor it what they write. */
typedef struct weft_shared_args {
  const float *x; /* [n_rows, n_in], in x_form */
  weft_rows_form x_form;
  const weft_weight *gate, *up, *down; /* gate NULL: there is none */
  float *g, *u, *y; /* g, u: [n_rows, n_ff], where the gated product is made; y: [n_rows, down->n_out] */
  uint64_t x_stride, y_stride;
} weft_shared_args;
typedef struct weft_experts_args {
  const float *x; /* [n_rows, n_in], in x_form */
  weft_rows_form x_form;
  const int32_t *ids;
  const float *weights;
  const weft_weight *gate_up;   /* [n_mats, 2 * n_ff, n_in], or NULL */
  const weft_weight *gate, *up; /* [n_mats, n_ff, n_in] when gate_up is NULL */
  const weft_weight *down;      /* [n_mats, n_in, n_ff] */
  float *y;                     /* [n_rows, n_in] */
  weft_shared_args shared;
  uint32_t n_rows, k, first_expert, n_experts; /* n_experts 0: first_expert is 0, and there are n_mats */
  uint64_t x_stride, y_stride;
  weft_activation activation;
  void *scratch;
  uint64_t scratch_bytes;
  uint32_t *n_touched; /* optional host counter: distinct experts that were multiplied are added (cpu, ref) */
  const float *gate_bias, *up_bias, *down_bias; /* optional [n_mats, n_ff], the same, [n_mats, n_in]; of all or none */
  float limit;                                  /* 0: none; without a shared MLP */
} weft_experts_args;

/* ---- assign: the experts of a row by scores of their own ---------------------------------------------------------- *
 * s is sqrt(log(1 + e^logit)), 1 / (1 + e^-logit) or the softmax over all experts, as `scores` says.
 * The k experts of largest s + bias (ties: lower index first; NaN counts as -infinity), largest first; or those that
 * the table has for the row's token, in its order: what does not exist is INVALID, on cuda -1 with weights of NaN.
 * With groups, runs of experts of one length, those of the best groups alone are chosen among: best by the sum of the
 * two largest s + bias of a group, with softmax by its largest (ties: the first).
 * weights[j] = factor * s[ids[j]] / (sum of the k + 1e-20), or as_scored factor * s[ids[j]]. */
typedef enum weft_expert_scores {
  WEFT_SCORES_ROOT = 1,
  WEFT_SCORES_SIGMOID = 2,
  WEFT_SCORES_SOFTMAX = 3
} weft_expert_scores;
enum { WEFT_ASSIGN_GROUPS_MAX = 32 };
typedef struct weft_assign_args {
  const float *logits;   /* [n_rows, n_experts] */
  const float *bias;     /* optional [n_experts]; not with a table */
  const int32_t *table;  /* [n_tokens, k], or NULL */
  const int32_t *tokens; /* [n_rows]; with a table */
  int32_t *ids;          /* [n_rows, k] */
  float *weights;        /* [n_rows, k] */
  uint32_t n_rows, n_experts, k, n_tokens;
  uint64_t logits_stride;
  float factor;
  weft_expert_scores scores;
  bool as_scored;
  uint32_t n_groups, n_groups_used; /* 0: there are none */
} weft_assign_args;

#ifdef __cplusplus
}
#endif
#endif
