/* SPDX-License-Identifier: MIT */
/* The ops that models are made of: each has an argument struct, a definition in ref/ and an implementation per backend.
 *
 * Law: pointers are device memory, except the argument structs themselves, attention's segments, and what is marked
 * host. Tables and masks that a host array points to are device memory. An op reads its arguments, enqueues its work
 * and returns. Scratch comes from the caller (64-byte aligned, of the size that weft_<op>_scratch asks for). An op
 * never allocates or waits. No op writes weights or scales, so kernels may prefetch them before earlier ops have ended.
 * Activations are f32 (or in a weft_rows_form), row-major; strides count elements. A call without rows does nothing.
 * Errors: INVALID (with a log line where the struct alone shows it), UNSUPPORTED, the device's; outputs are undefined.
 *
 * Determinism (every backend). The result of a row depends on that row's inputs only: never on the other rows of the
 * call, on their number, or on the row's place. So every sum has an order that is a function of lengths and absolute
 * positions alone. Attention runs in chunks of WEFT_ATTENTION_CHUNK absolute key positions, or a fixed multiple of it,
 * each from a fresh (max, sum, out), merged ascending; a row's experts are added by pairs (kernels/experts.h).
 * tests/kernels compares rows alone with the same rows in calls of every size, bit for bit.
 * weft_device_config.no_deterministic lifts this.
 *
 * Numerics of products (each backend has its own order, so bits differ between backends; docs/kernels.md has the rest):
 *   ref    the f32 row times the dequantised weight, inputs ascending in one sum of doubles
 *   cpu    quantised weights: the row in 8 bits per weight block of 32 inputs, exact integers within one, weight blocks
 *          ascending in one f32 sum; other weights: f32 products in input segments of 256, each from zero, ascending
 *   cuda   the row in 16 bits, products of the matrix units in f32, 16 inputs at a time, ascending in up to eight input
 *          segments, each from zero, segments ascending; F32 weights: f32 products in 32 chains, then a
 *          tree. Opened for products of 8 bits: kernels/cuda/gemm/w8a8.h, and ref the same */
#ifndef WEFT_KERNELS_OPS_H
#define WEFT_KERNELS_OPS_H

#include "base/segment.h"
#include "kernels/canvas.h"
#include "kernels/classes.h"
#include "kernels/delta.h"
#include "kernels/device.h"
#include "kernels/engram.h"
#include "kernels/experts.h"
#include "kernels/head_groups.h"
#include "kernels/head_parts.h"
#include "kernels/kv_row.h"
#include "kernels/latent.h"
#include "kernels/sample.h"
#include "kernels/streams.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  WEFT_ATTENTION_CHUNK = 256, /* key positions of a chunk; a multiple of every block_tokens */
  WEFT_VOCAB_CHUNK = 512,     /* tokens of a chunk of the vocabulary */
  WEFT_MATMUL_MAX = 3,        /* weights that share one input */
  WEFT_NORM_THEN_MAX = 3,     /* norms that follow on one result */
  WEFT_HEAD_DIM_MAX = 1024    /* head_dim is a multiple of 8 up to this */
};

/* ---- embed: y[r] = scale * row tokens[r] of weight ---------------------------------------------------- */
typedef struct weft_embed_args {
  const weft_weight *weight; /* [n_vocab, n_cols] */
  const int32_t *tokens;     /* [n_rows]; one outside the vocabulary is INVALID, on cuda it gives a row of NaN */
  float *y;                  /* [n_rows, n_cols] */
  uint32_t n_rows;
  float scale;
  uint64_t y_stride;
} weft_embed_args;

/* ---- norm: n = rms(x + x2) * weight; y = ((add ? add : 0) + n) * (row_scale ? row_scale[r] : 1) --------- *
 * rms(v) = v / sqrt(mean(v^2) + eps). Every optional pointer may be NULL. y may equal x, x2 or add. plain: n = x + x2,
 * and weight is NULL. Further norms may be part of the call, with the bits that calls of their own would give. Before:
 * with x_weight (x2_weight), rms(x) * x_weight takes the place of x (x2), whose memory may be overwritten. After:
 * then[i] = rms(y) * then_weight[i], in memory that nothing else of the call uses, in a form its readers take. */
typedef struct weft_norm_args {
  float *x, *x2;                     /* x2: optional second summand before the norm */
  const float *x_weight, *x2_weight; /* optional [n_cols] */
  const float *weight;               /* optional [n_cols]: plain factor, not 1 + w */
  const float *add;                  /* optional residual, added after the norm */
  const float *row_scale;            /* optional [n_rows] */
  float *y;
  uint32_t n_rows, n_cols, n_then;
  bool plain;
  const float *then_weight[WEFT_NORM_THEN_MAX]; /* [n_cols] */
  float *then[WEFT_NORM_THEN_MAX];              /* rows with y_stride */
  weft_rows_form then_form[WEFT_NORM_THEN_MAX];
  uint64_t x_stride, x2_stride, add_stride, y_stride; /* add_stride 0: one row, a bias, is added to every row */
  float eps;
} weft_norm_args;

/* ---- matmul: y[i] = x W[i]^T, times the scale of W[i], for up to three weights of one input (Numerics above) -- *
 * With an activation there are two weights of one shape, and y[0] = act(x W[0]^T) * (x W[1]^T); y[1] is scratch. */
typedef struct weft_matmul_args {
  const float *x; /* [n_rows, n_in], in x_form */
  weft_rows_form x_form;
  uint32_t n_rows, n_weights;
  const weft_weight *weight[WEFT_MATMUL_MAX]; /* all with the same n_in, n_mats == 1 */
  float *y[WEFT_MATMUL_MAX];                  /* [n_rows, weight[i]->n_out] */
  uint64_t x_stride, y_stride[WEFT_MATMUL_MAX];
  weft_activation activation; /* 0: none */
  void *scratch;
  uint64_t scratch_bytes;
} weft_matmul_args;

/* ---- qkv: per-head norms, rotation, and storing keys and values -------------------------------------------- *
 * For every row, after the biases are added to q, k and v: q = rope(norm(q; q_norm)) in place;
 * k = rope(norm(k; k_norm)); v = v_norm ? rms(v) : v.
 * KV slot: with slot[r] >= 0 k, v go to page slot / block_tokens, offset slot % block_tokens; with slot[r] < 0 to row
 * r - own_first of own_k, own_v: [n_own][n_kv_heads][head_dim] in kv.type (segments that store in scratch).
 * NeoX pairs (i, i + head_dim / 2); angle = position * inv_freq[i], 0 means no rotation; computed as
 * (float)position * inv_freq[i] in f32, then cosf, sinf. Without k there are only queries: nothing is stored.   */
typedef struct weft_qkv_args {
  float *q;                     /* [n_rows, n_heads * head_dim], in place */
  const float *k;               /* [n_rows, n_kv_heads * head_dim] raw; NULL, as v, where keys are another layer's */
  const float *v;               /* raw; may equal k */
  const float *q_bias;          /* optional [n_heads * head_dim] */
  const float *k_bias, *v_bias; /* optional [n_kv_heads * head_dim] */
  const float *q_norm, *k_norm; /* optional [head_dim] */
  const float *inv_freq;        /* [head_dim / 2] */
  const int32_t *position;      /* [n_rows] */
  const int64_t *slot;          /* [n_rows] */
  weft_kv_view kv;
  void *own_k, *own_v;
  uint32_t own_first, n_rows, n_heads;
  uint64_t q_stride, k_stride, v_stride;
  bool v_norm;
  float eps;
} weft_qkv_args;

/* ---- attention: ragged segments over paged keys ------------------------------------------------------------- *
 * Row i of a segment is at position kv_len + i; keys [0, kv_len) are read through the table. mask causal: the row at
 * position p sees keys k <= p and, with a window W, k > p - W; whole: every row sees all n_rows keys of the segment and
 * those before it, with a window only k > kv_len - W. stores: the segment's own keys, which qkv wrote, lie in pages
 * (pool) or, from that of first_row on, in own_k and own_v (scratch); then the segment is never cut. Host memory.
 * out = softmax(scale * q k^T) v, heads grouped: query head h reads kv head h / (n_heads / n_kv_heads). With sinks the
 * softmax of head h has one term more, e^sinks[h], which no value belongs to and scale does not multiply.       */
typedef struct weft_attention_segment {
  uint32_t first_row, n_rows;
  uint32_t kv_len;
  uint8_t mask, stores;  /* weft_mask, weft_stores */
  const uint32_t *table; /* page of logical block i, anything where no row sees it; device memory, no op writes it */
  uint32_t n_old;        /* positions below it were stored before the ops of this step; 0 if unknown */
} weft_attention_segment;

typedef struct weft_attention_args {
  const float *q;  /* [n_rows, n_heads * head_dim] */
  float *out;      /* same shape */
  float *prepared; /* optional, weft_device_rows_bytes: the result goes there in prepared_form, and out is scratch */
  weft_kv_view kv;
  const void *own_k, *own_v;
  uint32_t own_first; /* row whose own keys are at index 0 */
  weft_rows_form prepared_form;
  const weft_attention_segment *segment;
  uint32_t n_segments, n_rows, n_heads;
  uint32_t window; /* 0: none */
  float scale;
  uint64_t q_stride, out_stride;
  void *scratch;
  uint64_t scratch_bytes;
  const float *sinks; /* optional [n_heads] */
} weft_attention_args;

/* ---- gate: y = act(g) * u, or the clamped gate of both (kernels/experts.h) ------------------------------------- */
typedef struct weft_gate_args {
  const float *g, *u;
  float *y; /* may equal g or u */
  uint32_t n_rows, n_cols;
  uint64_t g_stride, u_stride, y_stride;
  weft_activation activation;
  bool one_g;  /* g has one number for each row */
  float limit; /* 0: none (kernels/experts.h) */
} weft_gate_args;

/* ---- route: softmax over all experts, the k largest (ties: lower index first; NaN counts as -infinity), renormalised
 * over the k, then times expert_scale[e] (not renormalised again). ids and weights in rank order, largest first.
 * With a router, logits are first x W^T, as matmul makes them, plus router_bias, as norm adds it.             */
typedef struct weft_route_args {
  const float *x;            /* [n_rows, router->n_in] */
  const weft_weight *router; /* optional [n_experts, n_in] */
  float *logits;             /* [n_rows, n_experts]; without a router only read */
  const float *expert_scale; /* optional [n_experts] */
  int32_t *ids;              /* [n_rows, k] */
  float *weights;            /* [n_rows, k] */
  uint32_t n_rows, n_experts, k;
  uint64_t x_stride, logits_stride;
  void *scratch; /* only with a router */
  uint64_t scratch_bytes;
  const float *router_bias; /* optional [n_experts], only with a router */
} weft_route_args;

/* ---- experts, assign: kernels/experts.h ----------------------------------------------------------------------- */

/* ---- head_stats: the head of rows that need no logits (plain rows, canvases) ------------------------------- *
 * z = logit / temperature with logit = cap ? cap * tanh(h.W / cap) : h.W (h.W in f32), over the tokens allowed to the
 * row; all statistics are of softmax(z), entropy in nats. drawn = first token v in vocabulary order whose running sum
 * of exp(z - max) exceeds u * total (the last allowed one if none). soft = soft_scale * sum_v p_v W_v. Logits are
 * scratch: of a chunk of the vocabulary (cpu) or a group of rows (cuda, ref), never of the whole call. bad[r] = 1 when
 * a logit was not finite before the cap, or no token is allowed; the row's other numbers are then 0. */
typedef struct weft_head_stats_args {
  const float *h;                 /* [n_rows, n_in], after the final norm */
  const weft_weight *weight;      /* [n_vocab, n_in] */
  const float *temperature, *u;   /* [n_rows]: > 0; uniforms in [0, 1) */
  const uint32_t *const *allowed; /* optional: host array of n_rows bitmasks (NULL entry: all) */
  float *soft;                    /* optional [n_rows, n_in]: rows with want_soft[r] */
  const uint8_t *want_soft;       /* optional host [n_rows]; NULL with soft set: all rows */
  int32_t *argmax, *drawn;        /* [n_rows]; drawn, log_total and entropy may be NULL together, without soft */
  float *top;                     /* [n_rows]: logit of argmax, before temperature */
  float *log_total, *entropy;     /* [n_rows]: log sum exp(z); entropy */
  uint8_t *bad;                   /* [n_rows] */
  float *logits;                  /* optional [n_rows, n_vocab]: where they are left, as head_rows gives them */
  uint32_t n_rows;
  uint64_t h_stride, soft_stride, logits_stride;
  float cap, soft_scale; /* cap 0: none */
  void *scratch;
  uint64_t scratch_bytes;
} weft_head_stats_args;

/* ---- head_rows: full logits of a few rows -------------------------------------------------------------------- */
typedef struct weft_head_rows_args {
  const float *h; /* NULL: the products are in logits already, as head_part makes them */
  const weft_weight *weight;
  float *logits; /* [n_rows, n_vocab], capped */
  uint8_t *bad;  /* [n_rows] */
  uint32_t n_rows;
  uint64_t h_stride, logits_stride;
  float cap;
  void *scratch;
  uint64_t scratch_bytes;
} weft_head_rows_args;

/* ---- soft: soft[r] = scale * softmax(logits[r] / temperature[r]) W, from stored logits ------------------------- *
 * The same sum, in the same order, as head_stats makes; for self-conditioning that starts from given logits.   */
typedef struct weft_soft_args {
  const float *logits, *temperature; /* [n_rows, n_vocab]; [n_rows] */
  const weft_weight *weight;
  float *soft; /* [n_rows, n_in] */
  uint32_t n_rows;
  uint64_t logits_stride, soft_stride;
  float scale;
  void *scratch;
  uint64_t scratch_bytes;
} weft_soft_args;

/* ---- move: to[to_at[r]] = from[from_at[r]], words of 4 bytes ------------------------------------------------------ *
 * Rows with a negative place are left out. No two rows go to one place; to and from do not overlap.              */
typedef struct weft_move_args {
  int32_t *to;
  const int32_t *from;
  const int32_t *to_at, *from_at; /* [n_rows]; to_at NULL: row r goes to r */
  uint32_t n_rows;
} weft_move_args;

/* ---- head_part, head_join: kernels/head_parts.h. head_groups: kernels/head_groups.h. sample: kernels/sample.h.
 * classes: kernels/classes.h. canvas: kernels/canvas.h. delta_*: kernels/delta.h. latent_*: kernels/latent.h.
 * mix, spread: kernels/streams.h. engram_*: kernels/engram.h. */
#define WEFT_OPS_ENGRAM(X) X(engram_rows) X(engram_add)
#define WEFT_OPS_LATENT(X) \
  X(assign) X(mix) X(spread) X(latent_rows) X(latent_press) X(latent_choose) X(latent_attend) X(latent_heads)
#define WEFT_OPS(X) \
  X(embed)          \
  X(norm)           \
  X(matmul)         \
  X(qkv)            \
  X(attention)      \
  X(gate)           \
  X(route)          \
  X(experts)        \
  X(head_stats)     \
  X(head_rows)      \
  X(head_part)      \
  X(head_join)      \
  X(head_groups)    \
  X(soft) X(sample) X(canvas) X(classes) X(move) X(delta_rows) X(delta_rule) WEFT_OPS_LATENT(X) WEFT_OPS_ENGRAM(X)

/* What a backend fills. <op>_walk, on a backend with graphs (kernels/graphs.h), makes the host tables of a call and
 * launches nothing; NULL: the op has no tables. <op>_scratch gives the bytes that a call of this shape needs (pure;
 * pointers may be NULL, counts must be set); NULL: none. supports says whether products can have weights of a type. */
typedef struct weft_kernels {
  const char *backend;
#define X(op)                                                                   \
  weft_status (*op)(weft_device * device, const weft_##op##_args *args);        \
  weft_status (*op##_walk)(weft_device * device, const weft_##op##_args *args); \
  uint64_t (*op##_scratch)(weft_device * device, const weft_##op##_args *args);
  WEFT_OPS(X)
#undef X
  bool (*supports)(const weft_device *device, weft_type weight_type);
  weft_rows_form (*rows_form)(const weft_weight *weight, uint32_t n_rows, weft_rows_way way); /* NULL: F32 */
  uint64_t (*rows_bytes)(weft_rows_form form, uint32_t n_rows, uint32_t n_cols);
  const char *(*family)(const weft_device *device, const char *op); /* of the kernels that run the op */
  /* Products with weights of one name, as "q8x32-i32", give a row the same bits; "-free": but for no_deterministic. */
  const char *(*numerics)(const weft_device *device, weft_type weight_type);
  bool has_limits; /* gate and experts take a limit */
} weft_kernels;

/* What callers use: checks the arguments, in the same way for all backends, then calls the device's backend. */
#define X(op)                                                               \
  weft_status weft_##op(weft_device *device, const weft_##op##_args *args); \
  uint64_t weft_##op##_scratch(weft_device *device, const weft_##op##_args *args);
WEFT_OPS(X)
#undef X

#ifdef __cplusplus
}
#endif
#endif
