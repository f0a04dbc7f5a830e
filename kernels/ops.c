/* SPDX-License-Identifier: MIT */
/* Argument checks of all ops, then the call of the backend.
 *
 * Law: what can be judged from the argument struct (counts, strides, types, pointers) is judged here, once for all
 * backends: what is wrong gives one log line that names the op and the fact, and WEFT_E_INVALID. What lies in device
 * memory (token ids, slots, expert ids) is judged by the backends that can see it. */
#include "kernels/ops.h"

#include <math.h>

#include "base/log.h"
#include "kernels/device_internal.h"
#include "kernels/parts.h"

static weft_status report_invalid(const char *op, const char *fact) {
  weft_log(WEFT_LOG_ERROR, "op %s: invalid arguments: %s", op, fact);
  return WEFT_E_INVALID;
}

#define REQUIRE(op, condition, fact) \
  if (!(condition)) return report_invalid(op, fact)

/* Whether rows of n_cols elements with this stride do not overlap and stay within 2^60 elements. */
static bool rows_fit(uint32_t n_rows, uint64_t stride, uint64_t n_cols) {
  uint64_t last;
  if (stride < n_cols && n_rows > 1) return false;
  if (__builtin_mul_overflow((uint64_t)n_rows, stride, &last)) return false;
  return last < (1ull << 60) && n_cols < (1ull << 32);
}

/* A factor of its own, which products can be gated with as they are made. */
static bool is_factor(weft_activation activation) {
  return activation == WEFT_GELU_TANH || activation == WEFT_SILU;
}

static bool is_activation(weft_activation activation) {
  return is_factor(activation) || activation == WEFT_CLAMPED_SILU;
}

static weft_status check_weight(weft_device *device, const char *op, const weft_weight *weight) {
  REQUIRE(op, weight != NULL && weight->data != NULL, "a weight is absent");
  REQUIRE(op, weight->n_in > 0 && weight->n_out > 0 && weight->n_mats > 0, "a weight has no elements");
  REQUIRE(op, weft_type_row_bytes(weight->type, weight->n_in) > 0, "a weight row is not whole blocks");
  if (!device->kernels->supports(device, weight->type)) {
    weft_log(WEFT_LOG_ERROR, "op %s: the %s backend has no products for weights of type %s", op, device->info.backend,
             weft_type_name_of_id((int32_t)weight->type));
    return WEFT_E_UNSUPPORTED;
  }
  return WEFT_OK;
}

/* Checks a weight whose rows are looked up, or whose products are capped as they are made: it must have no scale beside
 * its numbers. */
static weft_status check_plain_weight(weft_device *device, const char *op, const weft_weight *weight) {
  weft_status status = check_weight(device, op, weight);
  if (status == WEFT_OK) REQUIRE(op, weight->scale == NULL, "the weight has a scale");
  return status;
}

static weft_status check_scratch(const char *op, uint64_t wanted, const void *scratch, uint64_t given) {
  REQUIRE(op, wanted == 0 || (scratch != NULL && given >= wanted), "scratch is too small");
  REQUIRE(op, ((uintptr_t)scratch & 63u) == 0, "scratch is not 64-byte aligned");
  return WEFT_OK;
}

static weft_status check_embed(weft_device *device, const weft_embed_args *args) {
  weft_status status = check_plain_weight(device, "embed", args->weight);
  if (status != WEFT_OK) return status;
  REQUIRE("embed", args->tokens != NULL && args->y != NULL, "tokens or y is NULL");
  REQUIRE("embed", rows_fit(args->n_rows, args->y_stride, args->weight->n_in), "y_stride");
  return WEFT_OK;
}

static weft_status check_norm(weft_device *device, const weft_norm_args *args) {
  REQUIRE("norm", args->x != NULL && args->y != NULL, "x or y is NULL");
  REQUIRE("norm", args->n_cols > 0, "n_cols is 0");
  REQUIRE("norm", args->eps >= 0.0f, "eps is negative");
  REQUIRE("norm", rows_fit(args->n_rows, args->x_stride, args->n_cols), "x_stride");
  REQUIRE("norm", rows_fit(args->n_rows, args->y_stride, args->n_cols), "y_stride");
  REQUIRE("norm", args->x2 == NULL || rows_fit(args->n_rows, args->x2_stride, args->n_cols), "x2_stride");
  REQUIRE("norm", args->add == NULL || args->add_stride == 0 || rows_fit(args->n_rows, args->add_stride, args->n_cols),
          "add_stride");
  REQUIRE("norm", !args->plain || args->weight == NULL, "a plain sum has a weight");
  REQUIRE("norm", args->n_then <= WEFT_NORM_THEN_MAX, "n_then");
  for (uint32_t i = 0; i < args->n_then; i++)
    REQUIRE("norm", args->then[i] != NULL && args->then_weight[i] != NULL, "a norm that follows is NULL");
  for (uint32_t i = 0; i < args->n_then; i++)
    REQUIRE("norm", args->then_form[i] == WEFT_ROWS_F32 || device->kernels->rows_form != NULL, "then_form");
  return WEFT_OK;
}

static bool takes_form(const weft_device *device, const weft_weight *weight, uint32_t n_rows, weft_rows_form form,
                       weft_rows_way way) {
  return form == WEFT_ROWS_F32 || weft_device_rows_form(device, weight, n_rows, way) == form;
}

static weft_status check_matmul(weft_device *device, const weft_matmul_args *args) {
  REQUIRE("matmul", args->x != NULL, "x is NULL");
  REQUIRE("matmul", args->n_weights >= 1 && args->n_weights <= WEFT_MATMUL_MAX, "n_weights");
  for (uint32_t w = 0; w < args->n_weights; w++) {
    weft_status status = check_weight(device, "matmul", args->weight[w]);
    if (status != WEFT_OK) return status;
    REQUIRE("matmul", args->weight[w]->n_in == args->weight[0]->n_in, "weights differ in n_in");
    REQUIRE("matmul", args->weight[w]->n_mats == 1, "a weight is a stack");
    REQUIRE("matmul", takes_form(device, args->weight[w], args->n_rows, args->x_form, WEFT_ROWS_TO_MATMUL), "x_form");
    REQUIRE("matmul", args->y[w] != NULL, "y is NULL");
    REQUIRE("matmul", rows_fit(args->n_rows, args->y_stride[w], args->weight[w]->n_out), "y_stride");
  }
  REQUIRE("matmul", rows_fit(args->n_rows, args->x_stride, args->weight[0]->n_in), "x_stride");
  REQUIRE("matmul", args->activation == 0 || is_factor(args->activation), "activation");
  REQUIRE("matmul", args->activation == 0 || (args->n_weights == 2 && args->weight[0]->n_out == args->weight[1]->n_out),
          "an activation wants two weights of one shape");
  return check_scratch("matmul", weft_matmul_scratch(device, args), args->scratch, args->scratch_bytes);
}

static weft_status check_kv(const char *op, const weft_kv_view *kv) {
  if (!weft_kv_row_fits(kv->type, kv->head_dim)) {
    weft_log(WEFT_LOG_ERROR,
             "op %s: keys and values of type %s with heads of %u; F32, BF16, and Q8_0 with "
             "multiples of 32 are supported",
             op, weft_type_name_of_id((int32_t)kv->type), kv->head_dim);
    return WEFT_E_UNSUPPORTED;
  }
  REQUIRE(op, kv->head_dim > 0 && kv->head_dim % 8 == 0 && kv->head_dim <= WEFT_HEAD_DIM_MAX,
          "head_dim is not a multiple of 8 up to 1024");
  REQUIRE(op, kv->n_kv_heads > 0 && kv->n_kv_heads <= 4096, "n_kv_heads");
  REQUIRE(op, kv->block_tokens > 0 && WEFT_ATTENTION_CHUNK % kv->block_tokens == 0,
          "block_tokens does not divide the attention chunk");
  uint64_t size = weft_kv_row_align(kv->type);
  uint64_t plane = (uint64_t)kv->n_kv_heads * kv->block_tokens * weft_kv_row_bytes(kv->type, kv->head_dim);
  REQUIRE(op, kv->page_bytes % size == 0 && kv->k_offset % size == 0 && kv->v_offset % size == 0,
          "pages or planes are not aligned to their elements");
  REQUIRE(op,
          kv->k_offset <= kv->page_bytes && kv->v_offset <= kv->page_bytes && plane <= kv->page_bytes - kv->k_offset &&
              plane <= kv->page_bytes - kv->v_offset,
          "a plane leaves its page");
  return WEFT_OK;
}

static weft_status check_qkv(weft_device *device, const weft_qkv_args *args) {
  (void)device;
  weft_status status = check_kv("qkv", &args->kv);
  if (status != WEFT_OK) return status;
  uint64_t q_cols = (uint64_t)args->n_heads * args->kv.head_dim;
  uint64_t kv_cols = (uint64_t)args->kv.n_kv_heads * args->kv.head_dim;
  REQUIRE("qkv", args->q != NULL && (args->k == NULL) == (args->v == NULL), "q, or one of k and v, is NULL");
  REQUIRE("qkv", args->inv_freq != NULL && args->position != NULL && (args->slot != NULL || args->k == NULL),
          "inv_freq, position or slot is NULL");
  REQUIRE("qkv", args->k == NULL || args->kv.base != NULL || args->own_k != NULL, "there is nowhere to put keys");
  REQUIRE("qkv", args->k == NULL || args->kv.base == NULL || args->kv.k_offset != args->kv.v_offset,
          "values would be stored over keys: rows that serve as both are stored by another op");
  REQUIRE("qkv", (args->own_k == NULL) == (args->own_v == NULL), "own_k without own_v");
  REQUIRE("qkv", args->n_heads > 0, "n_heads is 0");
  REQUIRE("qkv", args->eps >= 0.0f, "eps is negative");
  REQUIRE("qkv", rows_fit(args->n_rows, args->q_stride, q_cols), "q_stride");
  REQUIRE("qkv", args->k == NULL || rows_fit(args->n_rows, args->k_stride, kv_cols), "k_stride");
  REQUIRE("qkv", args->v == NULL || rows_fit(args->n_rows, args->v_stride, kv_cols), "v_stride");
  return WEFT_OK;
}

static weft_status check_segments(const weft_attention_args *args) {
  uint64_t end = 0;
  for (uint32_t s = 0; s < args->n_segments; s++) {
    const weft_attention_segment *segment = &args->segment[s];
    REQUIRE("attention", segment->first_row >= end, "segments are not ascending");
    end = (uint64_t)segment->first_row + segment->n_rows;
    REQUIRE("attention", segment->n_rows > 0 && end <= args->n_rows, "a segment leaves the rows");
    REQUIRE("attention", (uint64_t)segment->kv_len + segment->n_rows < (1u << 31), "kv_len");
    bool scratch = segment->stores == WEFT_STORES_SCRATCH;
    REQUIRE("attention", segment->mask == WEFT_MASK_CAUSAL || segment->mask == WEFT_MASK_WHOLE, "mask");
    REQUIRE("attention", scratch || segment->stores == WEFT_STORES_POOL, "stores");
    REQUIRE("attention", segment->table != NULL || (scratch && segment->kv_len == 0), "a segment has no table");
    REQUIRE("attention",
            !scratch || (args->own_k != NULL && args->own_v != NULL && segment->first_row >= args->own_first),
            "a segment that stores in scratch has no keys of its own");
  }
  return WEFT_OK;
}

static weft_status check_attention(weft_device *device, const weft_attention_args *args) {
  weft_status status = check_kv("attention", &args->kv);
  if (status != WEFT_OK) return status;
  uint64_t cols = (uint64_t)args->n_heads * args->kv.head_dim;
  REQUIRE("attention", args->q != NULL && args->out != NULL, "q or out is NULL");
  REQUIRE("attention", args->segment != NULL || args->n_segments == 0, "segment is NULL");
  REQUIRE("attention", args->n_heads > 0 && args->n_heads % args->kv.n_kv_heads == 0,
          "n_heads is not a multiple of n_kv_heads");
  REQUIRE("attention", isfinite(args->scale), "scale is not finite");
  REQUIRE("attention", args->prepared == NULL || device->kernels->rows_form != NULL, "prepared");
  REQUIRE("attention", (args->prepared == NULL) == (args->prepared_form == WEFT_ROWS_F32), "prepared_form");
  REQUIRE("attention", rows_fit(args->n_rows, args->q_stride, cols), "q_stride");
  REQUIRE("attention", rows_fit(args->n_rows, args->out_stride, cols), "out_stride");
  status = check_segments(args);
  if (status != WEFT_OK) return status;
  return check_scratch("attention", weft_attention_scratch(device, args), args->scratch, args->scratch_bytes);
}

static weft_status check_has(const weft_device *device, const char *op, bool has) {
  if (has) return WEFT_OK;
  weft_log(WEFT_LOG_ERROR, "op %s: the %s backend does not have it", op, device->info.backend);
  return WEFT_E_UNSUPPORTED;
}

static weft_status check_limit(const weft_device *device, const char *op, float limit, weft_activation activation) {
  REQUIRE(op, limit == 0.0f || (limit > 0.0f && activation == WEFT_SILU), "a limit is of SiLU and above 0");
  return check_has(device, op, limit == 0.0f || device->kernels->has_limits);
}

static weft_status check_gate(weft_device *device, const weft_gate_args *args) {
  REQUIRE("gate", args->g != NULL && args->u != NULL && args->y != NULL, "g, u or y is NULL");
  REQUIRE("gate", is_activation(args->activation) || args->activation == WEFT_SIGMOID, "activation");
  REQUIRE("gate", !args->one_g || args->activation == WEFT_SIGMOID, "one number gates a row by its sigmoid alone");
  REQUIRE("gate", rows_fit(args->n_rows, args->g_stride, args->one_g ? 1 : args->n_cols), "g_stride");
  REQUIRE("gate", rows_fit(args->n_rows, args->u_stride, args->n_cols), "u_stride");
  REQUIRE("gate", rows_fit(args->n_rows, args->y_stride, args->n_cols), "y_stride");
  return check_limit(device, "gate", args->limit, args->activation);
}

static weft_status check_router(weft_device *device, const weft_route_args *args) {
  weft_status status = check_weight(device, "route", args->router);
  if (status != WEFT_OK) return status;
  REQUIRE("route", args->router->n_mats == 1 && args->router->n_out == args->n_experts, "the router's shape");
  REQUIRE("route", args->x != NULL && rows_fit(args->n_rows, args->x_stride, args->router->n_in), "x or x_stride");
  return check_scratch("route", weft_route_scratch(device, args), args->scratch, args->scratch_bytes);
}

static weft_status check_route(weft_device *device, const weft_route_args *args) {
  REQUIRE("route", args->logits != NULL && args->ids != NULL && args->weights != NULL,
          "logits, ids or weights is NULL");
  REQUIRE("route", args->k > 0 && args->k <= args->n_experts, "k");
  REQUIRE("route", args->n_experts <= 65536, "n_experts");
  REQUIRE("route", rows_fit(args->n_rows, args->logits_stride, args->n_experts), "logits_stride");
  REQUIRE("route", args->router != NULL || args->router_bias == NULL, "a bias without a router");
  return args->router != NULL ? check_router(device, args) : WEFT_OK;
}

static weft_status check_expert_stack(weft_device *device, const weft_experts_args *args, const weft_weight *weight,
                                      uint64_t n_out) {
  weft_status status = check_weight(device, "experts", weight);
  if (status != WEFT_OK) return status;
  REQUIRE("experts", takes_form(device, weight, args->n_rows, args->x_form, WEFT_ROWS_TO_EXPERTS), "x_form");
  REQUIRE("experts", weight->n_mats == args->down->n_mats, "stacks differ in their number of experts");
  REQUIRE("experts", weight->n_in == args->down->n_out && weight->n_out == n_out, "shapes do not match");
  return WEFT_OK;
}

/* Checks the shared MLP as its two products, of which the second takes what the first makes. */
static weft_status check_shared(weft_device *device, const weft_experts_args *args) {
  weft_matmul_args in = parts_shared_in(args), out = parts_shared_out(args);
  weft_status status = check_matmul(device, &in);
  if (status == WEFT_OK) status = check_matmul(device, &out);
  if (status != WEFT_OK) return status;
  REQUIRE("experts", out.weight[0]->n_in == in.weight[0]->n_out, "shapes of the shared MLP do not match");
  return WEFT_OK;
}

static weft_status check_experts(weft_device *device, const weft_experts_args *args) {
  weft_status status = check_weight(device, "experts", args->down);
  if (status != WEFT_OK) return status;
  uint64_t n_ff = args->down->n_in;
  if (args->gate_up != NULL) {
    status = check_expert_stack(device, args, args->gate_up, 2 * n_ff);
  } else {
    status = check_expert_stack(device, args, args->gate, n_ff);
    if (status == WEFT_OK) status = check_expert_stack(device, args, args->up, n_ff);
  }
  if (status == WEFT_OK) status = check_limit(device, "experts", args->limit, args->activation);
  if (status != WEFT_OK) return status;
  REQUIRE("experts", args->x != NULL && args->y != NULL, "x or y is NULL");
  REQUIRE("experts", args->ids != NULL && args->weights != NULL, "ids or weights is NULL");
  REQUIRE("experts", args->n_experts <= INT32_MAX && args->first_expert <= INT32_MAX, "n_experts or first_expert");
  REQUIRE("experts", (uint64_t)args->first_expert + args->down->n_mats <= parts_experts_count(args),
          "the weights hold experts that do not exist");
  REQUIRE("experts", args->k > 0 && args->k <= parts_experts_count(args), "k");
  REQUIRE("experts", (uint64_t)args->n_rows * args->k <= INT32_MAX, "more than 2^31 pairs of a row and an expert");
  REQUIRE("experts", is_activation(args->activation), "activation");
  REQUIRE("experts", is_factor(args->activation) || args->shared.gate == NULL,
          "a shared MLP beside experts with a clamped gate");
  REQUIRE("experts", args->limit == 0.0f || args->shared.gate == NULL, "a shared MLP takes no limit");
  REQUIRE("experts", (args->gate_bias == NULL) == (args->down_bias == NULL), "gate_bias without down_bias");
  REQUIRE("experts", (args->up_bias == NULL) == (args->down_bias == NULL), "up_bias without down_bias");
  REQUIRE("experts", rows_fit(args->n_rows, args->x_stride, args->down->n_out), "x_stride");
  REQUIRE("experts", rows_fit(args->n_rows, args->y_stride, args->down->n_out), "y_stride");
  status = args->shared.gate != NULL ? check_shared(device, args) : WEFT_OK;
  if (status != WEFT_OK) return status;
  return check_scratch("experts", weft_experts_scratch(device, args), args->scratch, args->scratch_bytes);
}

static weft_status check_head_stats(weft_device *device, const weft_head_stats_args *args) {
  weft_status status = check_plain_weight(device, "head_stats", args->weight);
  if (status != WEFT_OK) return status;
  REQUIRE("head_stats", args->weight->n_mats == 1, "the weight is a stack");
  REQUIRE("head_stats", args->h != NULL && args->temperature != NULL && args->u != NULL, "h, temperature or u is NULL");
  bool draws = args->drawn != NULL, whole = (args->log_total != NULL) == draws && (args->entropy != NULL) == draws;
  REQUIRE("head_stats", args->argmax != NULL && args->top != NULL && args->bad != NULL, "an output is NULL");
  REQUIRE("head_stats", whole && (draws || args->soft == NULL), "some outputs of a draw are NULL");
  REQUIRE("head_stats", args->cap >= 0.0f && isfinite(args->cap), "cap");
  REQUIRE("head_stats", rows_fit(args->n_rows, args->h_stride, args->weight->n_in), "h_stride");
  REQUIRE("head_stats", args->soft == NULL || rows_fit(args->n_rows, args->soft_stride, args->weight->n_in),
          "soft_stride");
  REQUIRE("head_stats", args->logits == NULL || rows_fit(args->n_rows, args->logits_stride, args->weight->n_out),
          "logits_stride");
  return check_scratch("head_stats", weft_head_stats_scratch(device, args), args->scratch, args->scratch_bytes);
}

static weft_status check_head_rows(weft_device *device, const weft_head_rows_args *args) {
  weft_status status = check_plain_weight(device, "head_rows", args->weight);
  if (status != WEFT_OK) return status;
  REQUIRE("head_rows", args->weight->n_mats == 1, "the weight is a stack");
  REQUIRE("head_rows", args->logits != NULL && args->bad != NULL, "an output is NULL");
  REQUIRE("head_rows", args->cap >= 0.0f && isfinite(args->cap), "cap");
  REQUIRE("head_rows", args->h == NULL || rows_fit(args->n_rows, args->h_stride, args->weight->n_in), "h_stride");
  REQUIRE("head_rows", rows_fit(args->n_rows, args->logits_stride, args->weight->n_out), "logits_stride");
  return check_scratch("head_rows", weft_head_rows_scratch(device, args), args->scratch, args->scratch_bytes);
}

static weft_status check_head_groups(weft_device *device, const weft_head_groups_args *args) {
  const char *op = "head_groups";
  weft_status status = check_plain_weight(device, op, args->weight);
  if (status != WEFT_OK) return status;
  REQUIRE(op, args->weight->n_mats == 1, "the weight is a stack");
  REQUIRE(op, args->h != NULL && args->tokens != NULL && args->ids != NULL, "h, tokens or ids is NULL");
  REQUIRE(op, args->logits != NULL && args->n_rows <= WEFT_HEAD_GROUPS_ROWS, "logits is NULL, or too many rows");
  REQUIRE(op, args->k > 0 && args->k <= args->n_groups && args->size > 0, "k or size");
  REQUIRE(op, (uint64_t)args->n_groups * args->size <= args->weight->n_out, "more tokens in groups than there are");
  REQUIRE(op, (uint64_t)args->n_rows * args->k <= UINT32_MAX, "more than 2^32 pairs of a row and a group");
  REQUIRE(op, rows_fit(args->n_rows, args->h_stride, args->weight->n_in), "h_stride");
  REQUIRE(op, rows_fit(args->n_rows, args->logits_stride, args->weight->n_out), "logits_stride");
  return check_scratch(op, weft_head_groups_scratch(device, args), args->scratch, args->scratch_bytes);
}

uint32_t weft_head_first(uint32_t n_vocab, uint32_t n_parts, uint32_t part) {
  uint64_t n_chunks = ((uint64_t)n_vocab + WEFT_VOCAB_CHUNK - 1) / WEFT_VOCAB_CHUNK;
  uint64_t token = (n_chunks * part + n_parts - 1) / n_parts * WEFT_VOCAB_CHUNK;
  return token < n_vocab ? (uint32_t)token : n_vocab;
}

static weft_status check_head_part(weft_device *device, const weft_head_part_args *args) {
  weft_status status = check_plain_weight(device, "head_part", args->weight);
  if (status != WEFT_OK) return status;
  uint64_t end = (uint64_t)args->token + args->n_tokens;
  REQUIRE("head_part", args->weight->n_mats == 1, "the weight is a stack");
  REQUIRE("head_part", args->h != NULL && args->logits != NULL, "h or logits is NULL");
  REQUIRE("head_part", args->n_tokens > 0 && end <= args->n_vocab, "tokens");
  REQUIRE("head_part", (uint64_t)args->first + args->n_tokens <= args->weight->n_out, "the weight has no such rows");
  REQUIRE("head_part", args->first % WEFT_VOCAB_CHUNK == 0 && args->token % WEFT_VOCAB_CHUNK == 0, "part of a chunk");
  REQUIRE("head_part", args->n_tokens % WEFT_VOCAB_CHUNK == 0 || end == args->n_vocab, "part of a chunk");
  REQUIRE("head_part", args->chunks == NULL || args->temperature != NULL, "temperature is NULL");
  REQUIRE("head_part", args->cap >= 0.0f && isfinite(args->cap), "cap");
  REQUIRE("head_part", rows_fit(args->n_rows, args->h_stride, args->weight->n_in), "h_stride");
  REQUIRE("head_part", rows_fit(args->n_rows, args->logits_stride, args->n_tokens), "logits_stride");
  return check_scratch("head_part", weft_head_part_scratch(device, args), args->scratch, args->scratch_bytes);
}

static weft_status check_head_join(weft_device *device, const weft_head_join_args *args) {
  REQUIRE("head_join", args->n_parts > 0 && args->n_parts <= WEFT_DEVICES_MAX && args->token[0] == 0, "n_parts");
  REQUIRE("head_join", args->token[args->n_parts] > 0, "there are no tokens");
  for (uint32_t i = 0; i < args->n_parts; i++) {
    uint32_t first = args->token[i], end = args->token[i + 1];
    REQUIRE("head_join", first <= end && (first == end || first % WEFT_VOCAB_CHUNK == 0), "part of a chunk");
    REQUIRE("head_join", first == end || args->logits[i] != NULL, "logits of a part are NULL");
    REQUIRE("head_join", rows_fit(args->n_rows, args->logits_stride, end - first), "logits_stride");
  }
  REQUIRE("head_join", args->chunks != NULL && args->temperature != NULL && args->u != NULL,
          "chunks, temperature or u is NULL");
  REQUIRE("head_join", args->argmax != NULL && args->drawn != NULL && args->top != NULL, "an output is NULL");
  REQUIRE("head_join", args->log_total != NULL && args->entropy != NULL && args->bad != NULL, "an output is NULL");
  REQUIRE("head_join", args->cap >= 0.0f && isfinite(args->cap), "cap");
  return check_scratch("head_join", weft_head_join_scratch(device, args), args->scratch, args->scratch_bytes);
}

static weft_status check_soft(weft_device *device, const weft_soft_args *args) {
  weft_status status = check_plain_weight(device, "soft", args->weight);
  if (status != WEFT_OK) return status;
  REQUIRE("soft", args->weight->n_mats == 1, "the weight is a stack");
  REQUIRE("soft", args->logits != NULL && args->temperature != NULL && args->soft != NULL,
          "logits, temperature or soft is NULL");
  REQUIRE("soft", rows_fit(args->n_rows, args->logits_stride, args->weight->n_out), "logits_stride");
  REQUIRE("soft", rows_fit(args->n_rows, args->soft_stride, args->weight->n_in), "soft_stride");
  return check_scratch("soft", weft_soft_scratch(device, args), args->scratch, args->scratch_bytes);
}

static weft_status check_sample(weft_device *device, const weft_sample_args *args) {
  REQUIRE("sample", args->logits != NULL && args->row != NULL && args->out != NULL, "logits, row or out is NULL");
  REQUIRE("sample", args->n_vocab > 0 && args->n_vocab <= WEFT_SAMPLE_VOCAB_MAX, "n_vocab");
  REQUIRE("sample", rows_fit(args->n_rows, args->logits_stride, args->n_vocab), "logits_stride");
  return check_scratch("sample", weft_sample_scratch(device, args), args->scratch, args->scratch_bytes);
}

static weft_status check_classes(weft_device *device, const weft_classes_args *args) {
  REQUIRE("classes", args->logits != NULL && args->temperature != NULL, "logits or temperature is NULL");
  REQUIRE("classes", args->token != NULL && args->at != NULL && args->n_classes > 0, "there are no classes");
  REQUIRE("classes", args->best != NULL && args->log_sum != NULL, "best or log_sum is NULL");
  REQUIRE("classes", rows_fit(args->n_rows, args->logits_stride, 1), "logits_stride");
  return check_scratch("classes", weft_classes_scratch(device, args), args->scratch, args->scratch_bytes);
}

static weft_status check_canvas(weft_device *device, const weft_canvas_args *args) {
  REQUIRE("canvas", args->row != NULL && args->state != NULL && args->out != NULL, "row, state or out is NULL");
  REQUIRE("canvas", args->argmax != NULL && args->drawn != NULL && args->entropy != NULL && args->bad != NULL,
          "a statistic is NULL");
  REQUIRE("canvas", args->fresh != NULL && args->next != NULL && args->accepted != NULL,
          "fresh, next or accepted is NULL");
  REQUIRE("canvas", args->n > 0 && args->n <= WEFT_CANVAS_MAX, "n");
  return check_scratch("canvas", weft_canvas_scratch(device, args), args->scratch, args->scratch_bytes);
}

static weft_status check_move(weft_device *device, const weft_move_args *args) {
  (void)device;
  REQUIRE("move", args->to != NULL && args->from != NULL && args->from_at != NULL, "a pointer is NULL");
  return WEFT_OK;
}

/* ---- the delta rule ---- */

static weft_status check_run(const char *op, const weft_run_view *view, uint64_t n_bytes) {
  REQUIRE(op, view->base != NULL && view->unit_bytes == n_bytes, "a state's memory or the size of its units");
  REQUIRE(op, view->page_bytes % 4 == 0 && view->offset % 4 == 0, "a state is not aligned to its elements");
  REQUIRE(op, view->unit_bytes <= view->page_bytes, "a unit of a state is larger than a page");
  REQUIRE(op, view->offset % view->page_bytes <= view->page_bytes - view->unit_bytes, "a unit is cut by a page end");
  return WEFT_OK;
}

static weft_status check_delta_view(const weft_device *device, const char *op, const weft_delta_view *view) {
  if (device->kernels->delta_rule == NULL || device->kernels->delta_rows == NULL) {
    weft_log(WEFT_LOG_ERROR, "op %s: the %s backend does not have it", op, device->info.backend);
    return WEFT_E_UNSUPPORTED;
  }
  REQUIRE(op, view->type == WEFT_TYPE_F32 || view->type == WEFT_TYPE_BF16, "rows are of type F32 or BF16");
  REQUIRE(op, view->dim > 0 && view->dim % 8 == 0 && view->dim <= WEFT_DELTA_DIM_MAX,
          "dim is not a multiple of 8 up to 256");
  REQUIRE(op, view->n_k_heads > 0 && view->n_v_heads <= 4096 && view->n_v_heads % view->n_k_heads == 0,
          "n_v_heads is not a multiple of n_k_heads");
  REQUIRE(op, view->n_v_heads > 0, "n_v_heads is 0");
  REQUIRE(op, view->every >= WEFT_DELTA_TAPS && view->every <= WEFT_DELTA_EVERY_MAX, "every");
  REQUIRE(op, (view->every & (view->every - 1)) == 0, "every is not a power of two");
  REQUIRE(op, view->base != NULL && view->block_tokens > 0, "there are no pages for rows");
  REQUIRE(op, view->page_bytes % 4 == 0 && view->offset % 4 == 0, "rows are not aligned to their elements");
  uint64_t block = view->block_tokens * weft_delta_row_bytes(view);
  REQUIRE(op, view->offset <= view->page_bytes && block <= view->page_bytes - view->offset, "rows leave their page");
  uint64_t tail = (WEFT_DELTA_TAPS - 1) * 4ull * weft_delta_channels(view);
  weft_status status = check_run(op, &view->state, (uint64_t)view->dim * view->dim * 4);
  return status == WEFT_OK ? check_run(op, &view->tail, tail) : status;
}

static weft_status check_delta_segments(const char *op, const weft_delta_view *view, const weft_delta_segment *segment,
                                        uint32_t n_segments, uint32_t n_rows) {
  uint64_t end = 0;
  REQUIRE(op, segment != NULL && n_segments > 0, "there are no segments");
  for (uint32_t s = 0; s < n_segments; s++) {
    REQUIRE(op, segment[s].first_row == end && segment[s].n_rows > 0, "segments do not follow one another");
    end += segment[s].n_rows;
    REQUIRE(op, (uint64_t)segment[s].kv_len + segment[s].n_rows < (1u << 31), "kv_len");
    REQUIRE(op, segment[s].table != NULL, "a segment has no table");
    REQUIRE(op, (segment[s].state == NULL) == (segment[s].kv_len < view->every), "a segment without its state");
  }
  REQUIRE(op, end == n_rows, "segments do not cover the rows");
  return WEFT_OK;
}

static weft_status check_delta_rows(weft_device *device, const weft_delta_rows_args *args) {
  const char *op = "delta_rows";
  const weft_delta_view *view = &args->view;
  weft_status status = check_delta_view(device, op, view);
  if (status == WEFT_OK) status = check_delta_segments(op, view, args->segment, args->n_segments, args->n_rows);
  if (status != WEFT_OK) return status;
  uint64_t keys = (uint64_t)view->n_k_heads * view->dim, values = (uint64_t)view->n_v_heads * view->dim;
  REQUIRE(op, args->x != NULL && args->alpha != NULL && args->beta != NULL, "x, alpha or beta is NULL");
  REQUIRE(op, args->conv != NULL && args->a != NULL && args->dt != NULL, "conv, a or dt is NULL");
  REQUIRE(op, args->q != NULL && args->v != NULL, "q or v is NULL");
  REQUIRE(op, rows_fit(args->n_rows, args->x_stride, 2 * keys + values), "x_stride");
  REQUIRE(op, rows_fit(args->n_rows, args->alpha_stride, view->n_v_heads), "alpha_stride");
  REQUIRE(op, rows_fit(args->n_rows, args->beta_stride, view->n_v_heads), "beta_stride");
  REQUIRE(op, rows_fit(args->n_rows, args->q_stride, keys), "q_stride");
  REQUIRE(op, rows_fit(args->n_rows, args->v_stride, values), "v_stride");
  return WEFT_OK;
}

/* Writes ascend, and each is at a border that its segment reaches. */
static weft_status check_writes(const weft_delta_rule_args *args) {
  const char *op = "delta_rule";
  REQUIRE(op, args->write != NULL || args->n_writes == 0, "write is NULL");
  for (uint32_t i = 0; i < args->n_writes; i++) {
    const weft_delta_write *write = &args->write[i], *before = i == 0 ? NULL : write - 1;
    REQUIRE(op, write->segment < args->n_segments && write->pages != NULL, "a write without a segment or pages");
    const weft_delta_segment *segment = &args->segment[write->segment];
    REQUIRE(op, write->position % args->view.every == 0, "a write is not at a border");
    REQUIRE(op, write->position > segment->kv_len && write->position - segment->kv_len <= segment->n_rows,
            "a write is at a border that its segment does not reach");
    REQUIRE(op,
            before == NULL || before->segment < write->segment ||
                (before->segment == write->segment && before->position < write->position),
            "writes do not ascend");
  }
  return WEFT_OK;
}

static weft_status check_delta_rule(weft_device *device, const weft_delta_rule_args *args) {
  const char *op = "delta_rule";
  const weft_delta_view *view = &args->view;
  weft_status status = check_delta_view(device, op, view);
  if (status == WEFT_OK) status = check_delta_segments(op, view, args->segment, args->n_segments, args->n_rows);
  if (status == WEFT_OK) status = check_writes(args);
  if (status != WEFT_OK) return status;
  uint64_t keys = (uint64_t)view->n_k_heads * view->dim, values = (uint64_t)view->n_v_heads * view->dim;
  REQUIRE(op, args->q != NULL && args->v != NULL && args->beta != NULL, "q, v or beta is NULL");
  REQUIRE(op, args->z != NULL && args->norm != NULL && args->out != NULL, "z, norm or out is NULL");
  REQUIRE(op, args->eps >= 0.0f, "eps is negative");
  REQUIRE(op, rows_fit(args->n_rows, args->q_stride, keys), "q_stride");
  REQUIRE(op, rows_fit(args->n_rows, args->v_stride, values), "v_stride");
  REQUIRE(op, rows_fit(args->n_rows, args->beta_stride, view->n_v_heads), "beta_stride");
  REQUIRE(op, rows_fit(args->n_rows, args->z_stride, values), "z_stride");
  REQUIRE(op, rows_fit(args->n_rows, args->out_stride, values), "out_stride");
  return check_scratch(op, weft_delta_rule_scratch(device, args), args->scratch, args->scratch_bytes);
}

/* ---- streams, latent rows ---- */

static weft_status check_assign(weft_device *device, const weft_assign_args *args) {
  const char *op = "assign";
  weft_status status = check_has(device, op, device->kernels->assign != NULL);
  if (status != WEFT_OK) return status;
  REQUIRE(op, args->logits != NULL && args->ids != NULL && args->weights != NULL, "logits, ids or weights is NULL");
  REQUIRE(op, args->table == NULL || (args->tokens != NULL && args->n_groups == 0), "there are no tokens, or groups");
  REQUIRE(op, args->k > 0 && args->k <= args->n_experts && args->n_experts <= 65536, "k or n_experts");
  REQUIRE(op, isfinite(args->factor), "factor is not finite");
  REQUIRE(op, args->scores >= WEFT_SCORES_ROOT && args->scores <= WEFT_SCORES_SOFTMAX, "scores");
  REQUIRE(op, rows_fit(args->n_rows, args->logits_stride, args->n_experts), "logits_stride");
  uint32_t n = args->n_groups, least = args->scores == WEFT_SCORES_SOFTMAX ? 1 : 2;
  if (n == 0) return WEFT_OK;
  REQUIRE(op, n <= WEFT_ASSIGN_GROUPS_MAX && args->n_experts % n == 0 && args->n_experts / n >= least, "n_groups");
  REQUIRE(op, args->n_groups_used > 0 && args->n_groups_used <= n, "n_groups_used");
  REQUIRE(op, args->k <= args->n_groups_used * (args->n_experts / n), "the groups that are used have fewer than k");
  return WEFT_OK;
}

static weft_status check_mix(weft_device *device, const weft_mix_args *args) {
  const char *op = "mix";
  weft_status status = check_has(device, op, device->kernels->mix != NULL);
  if (status != WEFT_OK) return status;
  uint64_t n = args->n_streams, n_mixes = args->shares == NULL ? n : n * (2 + n);
  bool mixes = args->mixes != NULL;
  REQUIRE(op, n > 0 && n <= WEFT_STREAMS_MAX && args->n_cols > 0, "n_streams or n_cols");
  REQUIRE(op, args->x != NULL && args->y != NULL, "x or y is NULL");
  REQUIRE(op, mixes || (args->carry != NULL && args->shares == NULL), "there are neither mixes nor a carry alone");
  REQUIRE(op, !mixes || (args->base != NULL && args->scale != NULL), "base or scale is NULL");
  REQUIRE(op, !args->first || args->carry != NULL, "first without a carry");
  REQUIRE(op, args->carry == NULL || rows_fit(args->n_rows, args->carry_stride, n), "carry_stride");
  REQUIRE(op, args->shares == NULL || args->n_rounds > 0, "n_rounds is 0");
  REQUIRE(op, args->eps >= 0.0f && args->floor >= 0.0f, "eps or floor is negative");
  REQUIRE(op, rows_fit(args->n_rows, args->x_stride, n * args->n_cols), "x_stride");
  REQUIRE(op, rows_fit(args->n_rows, args->y_stride, args->n_cols), "y_stride");
  REQUIRE(op, !mixes || rows_fit(args->n_rows, args->mixes_stride, n_mixes), "mixes_stride");
  REQUIRE(op, args->shares == NULL || rows_fit(args->n_rows, args->shares_stride, n * (1 + n)), "shares_stride");
  return WEFT_OK;
}

static weft_status check_spread(weft_device *device, const weft_spread_args *args) {
  const char *op = "spread";
  weft_status status = check_has(device, op, device->kernels->spread != NULL);
  if (status != WEFT_OK) return status;
  uint64_t n = args->n_streams;
  REQUIRE(op, n > 0 && n <= WEFT_STREAMS_MAX && args->n_cols > 0, "n_streams or n_cols");
  REQUIRE(op, args->x != NULL && args->y != NULL && args->shares != NULL, "x, y or shares is NULL");
  REQUIRE(op, rows_fit(args->n_rows, args->x_stride, n * args->n_cols), "x_stride");
  REQUIRE(op, rows_fit(args->n_rows, args->y_stride, args->n_cols), "y_stride");
  REQUIRE(op, rows_fit(args->n_rows, args->shares_stride, n * (1 + n)), "shares_stride");
  return WEFT_OK;
}

/* planes: 1, or 2 where rows have scores beside their values. */
static weft_status check_latent_set(const char *op, const weft_latent_view *rows, uint32_t planes) {
  REQUIRE(op, rows->base != NULL && rows->block_tokens > 0, "there are no pages for rows");
  REQUIRE(op, rows->width > 0 && rows->width <= (planes == 2 ? 2 : 1) * WEFT_HEAD_DIM_MAX, "the width of rows");
  REQUIRE(op, weft_kv_row_fits(rows->type, rows->width), "rows are of type F32, BF16, or Q8_0 with multiples of 32");
  REQUIRE(op, planes == 1 || rows->type == WEFT_TYPE_F32, "pending rows are of type F32");
  REQUIRE(op, rows->positions > 0 && rows->positions <= WEFT_LATENT_RATIO_MAX, "positions");
  REQUIRE(op, rows->block_tokens % rows->positions == 0, "a block has no whole rows");
  uint64_t plane = rows->block_tokens / rows->positions * weft_kv_row_bytes(rows->type, rows->width);
  uint64_t align = weft_kv_row_align(rows->type), last = planes == 2 ? rows->scores_offset : rows->offset;
  REQUIRE(op, rows->page_bytes % align == 0 && rows->offset % align == 0 && last % align == 0, "rows are not aligned");
  REQUIRE(op, plane <= rows->page_bytes && rows->offset <= rows->page_bytes - plane && last <= rows->page_bytes - plane,
          "rows leave their page");
  return WEFT_OK;
}

/* sets: a bit for each set whose table is read. */
static weft_status check_latent_segments(const char *op, const weft_latent_segment *segment, uint32_t n_segments,
                                         uint32_t n_rows, uint32_t sets) {
  uint64_t end = 0;
  REQUIRE(op, segment != NULL && n_segments > 0, "there are no segments");
  for (uint32_t s = 0; s < n_segments; s++) {
    REQUIRE(op, segment[s].first_row == end && segment[s].n_rows > 0, "segments do not follow one another");
    end += segment[s].n_rows;
    REQUIRE(op, (uint64_t)segment[s].kv_len + segment[s].n_rows < (1u << 31), "kv_len");
    for (uint32_t i = 0; i < WEFT_LATENT_SETS; i++)
      REQUIRE(op, (sets >> i & 1) == 0 || segment[s].table[i] != NULL, "a segment has no table");
  }
  REQUIRE(op, end == n_rows, "segments do not cover the rows");
  return WEFT_OK;
}

static weft_status check_turn(const char *op, const weft_latent_turn *turn, uint32_t width) {
  REQUIRE(op, turn->n_rotated % 2 == 0 && turn->n_rotated <= width, "n_rotated");
  REQUIRE(op, turn->n_rotated == 0 || turn->inv_freq != NULL, "inv_freq is NULL");
  return WEFT_OK;
}

static weft_status check_latent_rows(weft_device *device, const weft_latent_rows_args *args) {
  const char *op = "latent_rows";
  weft_status status = check_has(device, op, device->kernels->latent_rows != NULL);
  if (status == WEFT_OK) status = check_latent_set(op, &args->near, 1);
  if (status == WEFT_OK) status = check_turn(op, &args->turn, args->near.width);
  if (status == WEFT_OK && args->index_q != NULL) status = check_turn(op, &args->turn, args->index_dim);
  if (status == WEFT_OK)
    status = check_latent_segments(op, args->segment, args->n_segments, args->n_rows, 1u << WEFT_LATENT_NEAR);
  if (status != WEFT_OK) return status;
  uint64_t n_index = (uint64_t)args->n_index_heads * args->index_dim;
  REQUIRE(op, args->near.positions == 1 && args->n_heads > 0, "a near row stands for several positions, or no heads");
  REQUIRE(op, args->q != NULL && args->kv != NULL && args->kv_norm != NULL, "q, kv or kv_norm is NULL");
  REQUIRE(op, args->eps >= 0.0f, "eps is negative");
  REQUIRE(op, !args->parted || args->turn.n_rotated < args->near.width, "all of a row rotates");
  REQUIRE(op, !args->parted || !args->plain_q, "queries are parted and plain");
  REQUIRE(op, rows_fit(args->n_rows, args->q_stride, (uint64_t)args->n_heads * args->near.width), "q_stride");
  REQUIRE(op, rows_fit(args->n_rows, args->kv_stride, args->near.width), "kv_stride");
  REQUIRE(op, args->index_q == NULL || rows_fit(args->n_rows, args->index_q_stride, n_index), "index_q_stride");
  return WEFT_OK;
}

static weft_status check_latent_press(weft_device *device, const weft_latent_press_args *args) {
  const char *op = "latent_press";
  bool pends = args->pending.base != NULL;
  uint32_t sets = (pends ? 1u << args->pending_set : 0) | 1u << args->out_set;
  weft_status status = check_has(device, op, device->kernels->latent_press != NULL);
  if (status == WEFT_OK && pends) status = check_latent_set(op, &args->pending, 2);
  if (status == WEFT_OK) status = check_latent_set(op, &args->out, 1);
  if (status == WEFT_OK) status = check_turn(op, &args->turn, args->out.width);
  if (status == WEFT_OK) status = check_latent_segments(op, args->segment, args->n_segments, args->n_rows, sets);
  if (status != WEFT_OK) return status;
  REQUIRE(op, args->x != NULL && args->norm != NULL && args->eps >= 0.0f, "x, norm or eps");
  REQUIRE(op, rows_fit(args->n_rows, args->x_stride, pends ? args->pending.width : args->out.width), "x_stride");
  if (!pends) return WEFT_OK;
  REQUIRE(op, args->pending.width == (args->overlaps ? 2 : 1) * args->out.width, "the widths of rows");
  REQUIRE(op, args->pending.positions == 1 && args->out.positions > 1, "positions");
  REQUIRE(op, args->scores != NULL && (args->ape != NULL || !args->overlaps), "scores or ape");
  REQUIRE(op, rows_fit(args->n_rows, args->scores_stride, args->pending.width), "scores_stride");
  return WEFT_OK;
}

static weft_status check_latent_choose(weft_device *device, const weft_latent_choose_args *args) {
  const char *op = "latent_choose";
  weft_status status = check_has(device, op, device->kernels->latent_choose != NULL);
  if (status == WEFT_OK) status = check_latent_set(op, &args->index, 1);
  if (status == WEFT_OK)
    status = check_latent_segments(op, args->segment, args->n_segments, args->n_rows, 1u << WEFT_LATENT_INDEX);
  if (status != WEFT_OK) return status;
  REQUIRE(op, args->q != NULL && args->weights != NULL && args->ids != NULL, "q, weights or ids is NULL");
  REQUIRE(op, args->n_heads > 0 && args->k > 0 && args->k <= 65536, "n_heads or k");
  REQUIRE(op, args->blocks != NULL || !args->makes_blocks, "blocks is NULL");
  REQUIRE(op, args->blocks == NULL || (args->n_blocks > 0 && args->block_rows > 0), "n_blocks or block_rows");
  REQUIRE(op, args->blocks == NULL || (args->n_blocks <= 65536 && args->block_rows <= 65536), "n_blocks or block_rows");
  REQUIRE(
      op,
      args->blocks == NULL || (uint64_t)args->n_blocks * args->block_rows >= (uint64_t)args->k + args->block_rows - 1,
      "the blocks have fewer than k rows");
  REQUIRE(op, rows_fit(args->n_rows, args->q_stride, (uint64_t)args->n_heads * args->index.width), "q_stride");
  REQUIRE(op, rows_fit(args->n_rows, args->weights_stride, args->n_heads), "weights_stride");
  return check_scratch(op, weft_latent_choose_scratch(device, args), args->scratch, args->scratch_bytes);
}

static weft_status check_latent_attend(weft_device *device, const weft_latent_attend_args *args) {
  const char *op = "latent_attend";
  bool has_far = args->far.base != NULL;
  uint32_t sets = 1u << WEFT_LATENT_NEAR | (has_far ? 1u << WEFT_LATENT_FAR : 0);
  weft_status status = check_has(device, op, device->kernels->latent_attend != NULL);
  if (status == WEFT_OK) status = check_latent_set(op, &args->near, 1);
  if (status == WEFT_OK && has_far) status = check_latent_set(op, &args->far, 1);
  if (status == WEFT_OK) status = check_turn(op, &args->turn, args->near.width);
  if (status == WEFT_OK) status = check_latent_segments(op, args->segment, args->n_segments, args->n_rows, sets);
  if (status != WEFT_OK) return status;
  uint64_t n_cols = (uint64_t)args->n_heads * args->near.width;
  REQUIRE(op, args->near.positions == 1 && args->window > 0, "a near row stands for several positions, or no window");
  REQUIRE(op, !has_far || args->far.width == args->near.width, "far rows");
  REQUIRE(op, args->ids == NULL || (has_far && args->k > 0), "ids without far rows");
  REQUIRE(op, args->q != NULL && args->out != NULL, "q or out is NULL");
  REQUIRE(op, args->n_values <= args->near.width - args->turn.n_rotated, "n_values");
  REQUIRE(op, args->n_heads > 0 && isfinite(args->scale), "n_heads or scale");
  REQUIRE(op, (uint64_t)args->n_rows * args->n_heads <= UINT32_MAX, "more than 2^32 pairs of a row and a head");
  REQUIRE(op, rows_fit(args->n_rows, args->q_stride, n_cols), "q_stride");
  if (args->n_values > 0) n_cols = (uint64_t)args->n_heads * args->n_values;
  REQUIRE(op, rows_fit(args->n_rows, args->out_stride, n_cols), "out_stride");
  return WEFT_OK;
}

static weft_status check_engram_rows(weft_device *device, const weft_engram_rows_args *args) {
  const char *op = "engram_rows";
  weft_status status = check_has(device, op, device->kernels->engram_rows != NULL);
  if (status == WEFT_OK) status = check_latent_set(op, &args->past, 1);
  if (status == WEFT_OK)
    status = check_latent_segments(op, args->segment, args->n_segments, args->n_rows, 1u << WEFT_LATENT_TOKENS);
  if (status != WEFT_OK) return status;
  REQUIRE(op, args->past.type == WEFT_TYPE_F32 && args->past.width == 1 && args->past.positions == 1, "past");
  REQUIRE(op, args->tokens != NULL && args->map != NULL && args->ids != NULL, "tokens, map or ids is NULL");
  REQUIRE(op, args->multiplier != NULL && args->prime != NULL && args->offset != NULL, "a constant is NULL");
  REQUIRE(op, args->n_tokens > 0 && args->n_grams >= 2 && args->n_grams <= WEFT_ENGRAM_GRAMS_MAX,
          "n_tokens or n_grams");
  REQUIRE(op, args->n_heads > 0 && args->n_heads <= WEFT_ENGRAM_HEADS_MAX, "n_heads");
  return WEFT_OK;
}

static weft_status check_engram_add(weft_device *device, const weft_engram_add_args *args) {
  const char *op = "engram_add";
  weft_status status = check_has(device, op, device->kernels->engram_add != NULL);
  if (status != WEFT_OK) return status;
  uint64_t n = args->n_streams;
  REQUIRE(op, n > 0 && n <= WEFT_STREAMS_MAX && args->n_cols > 0, "n_streams or n_cols");
  REQUIRE(op, args->x != NULL && args->read != NULL && args->weight != NULL, "x, read or weight is NULL");
  REQUIRE(op, args->eps >= 0.0f, "eps is negative");
  REQUIRE(op, rows_fit(args->n_rows, args->x_stride, n * args->n_cols), "x_stride");
  REQUIRE(op, rows_fit(args->n_rows, args->read_stride, (n + 1) * args->n_cols), "read_stride");
  return WEFT_OK;
}

static weft_status check_latent_heads(weft_device *device, const weft_latent_heads_args *args) {
  const char *op = "latent_heads";
  weft_status status = check_has(device, op, device->kernels->latent_heads != NULL);
  if (status != WEFT_OK) return status;
  const uint64_t n_heads = args->n_heads, n_rest = args->n_rest;
  REQUIRE(op, args->x != NULL && args->weight != NULL && args->y != NULL, "x, weight or y is NULL");
  REQUIRE(op, n_heads > 0 && args->n_in > 0 && args->n_out > 0, "there are no heads, or no numbers");
  REQUIRE(op, n_heads * args->n_rows <= UINT32_MAX, "more than 2^32 pairs of a row and a head");
  REQUIRE(op, rows_fit(args->n_rows, args->x_stride, n_heads * (args->n_in + n_rest)), "x_stride");
  REQUIRE(op, rows_fit(args->n_rows, args->y_stride, n_heads * (args->n_out + n_rest)), "y_stride");
  return WEFT_OK;
}

/* ---- dispatch ---- */

enum {
#define X(op) OP_##op,
  WEFT_OPS(X)
#undef X
};

static bool ask_watch(weft_device *device, const char *op, const void *args, bool done) {
  return device->watch == NULL || device->watch(device->watch_self, device->layer, op, args, done);
}

/* The functions of ops.h. A call without rows has nothing to do, whatever else its arguments say. */
#define X(op)                                                                                      \
  static weft_status run_##op(weft_device *device, const weft_##op##_args *args) {                 \
    const weft_kernels *kernels = device->kernels;                                                 \
    step_graphs *graphs = device->graphs;                                                          \
    if (graphs == NULL || graphs->mode == STEP_GRAPHS_RUN) return kernels->op(device, args);       \
    weft_##op##_args noted = *args;                                                                \
    CLEAR_PADDING(&noted);                                                                         \
    step_graphs_note(graphs, OP_##op, &noted, sizeof noted);                                       \
    if (graphs->mode == STEP_GRAPHS_CAPTURE) return kernels->op(device, args);                     \
    return kernels->op##_walk == NULL ? WEFT_OK : kernels->op##_walk(device, args);                \
  }                                                                                                \
  weft_status weft_##op(weft_device *device, const weft_##op##_args *args) {                       \
    if (device == NULL || args == NULL) return report_invalid(#op, "device or args is NULL");      \
    if (args->n_rows == 0) return WEFT_OK;                                                         \
    weft_status status = check_##op(device, args);                                                 \
    device_enter(device);                                                                          \
    if (status == WEFT_OK && ask_watch(device, #op, args, false)) status = run_##op(device, args); \
    device_note(device, status);                                                                   \
    if (status == WEFT_OK) (void)ask_watch(device, #op, args, true);                               \
    return status;                                                                                 \
  }                                                                                                \
  uint64_t weft_##op##_scratch(weft_device *device, const weft_##op##_args *args) {                \
    if (device == NULL || args == NULL || device->kernels->op##_scratch == NULL) return 0;         \
    if (args->n_rows == 0) return 0;                                                               \
    device_enter(device);                                                                          \
    return device->kernels->op##_scratch(device, args);                                            \
  }
WEFT_OPS(X)
#undef X
