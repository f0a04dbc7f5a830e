/* SPDX-License-Identifier: MIT */
/* The scratch memory of the layers of a part. */
#include "base/check.h"
#include "model/layers_args.h"

static void at_least(uint64_t *most, uint64_t n) {
  if (n > *most) *most = n;
}

/* Products of a layer's input, as layers_project makes them. */
static uint64_t inputs_work(const weft_model *model, const model_part *part, uint32_t l) {
  const weft_weight *weight[LAYERS_INPUTS_MAX];
  float *y[LAYERS_INPUTS_MAX];
  uint32_t n = layers_inputs_of(model, part, l, weight, y);
  uint64_t most = 0;
  for (uint32_t first = 0; first < n; first += WEFT_MATMUL_MAX) {
    uint32_t n_now = n - first < WEFT_MATMUL_MAX ? n - first : WEFT_MATMUL_MAX;
    weft_matmul_args args = layers_product_of(part, NULL, model->limits.rows_max, n_now, weight + first, y + first);
    at_least(&most, weft_matmul_scratch(part->device, &args));
  }
  return most;
}

static uint64_t delta_work(const weft_model *model, const model_part *part, uint32_t l) {
  weft_delta_rule_args args = layers_delta_of(model, part, l, model->limits.rows_max);
  args.n_segments = model->limits.segments_max;
  return weft_delta_rule_scratch(part->device, &args);
}

static uint64_t matmul_work(const weft_model *model, const model_part *part, const weft_weight *a, const weft_weight *b,
                            const weft_weight *c) {
  const weft_weight *const weight[3] = {a, b, c};
  float *const y[3] = {NULL, NULL, NULL};
  if (a == NULL) return 0;
  weft_matmul_args args = layers_product_of(part, NULL, model->limits.rows_max,
                                            b == NULL   ? 1
                                            : c == NULL ? 2
                                                        : 3,
                                            weight, y);
  return weft_matmul_scratch(part->device, &args);
}

static uint64_t latent_work(const weft_model *model, const model_part *part, const model_latent_layer *layer) {
  const weft_latent_choose_args choose = layers_choose_of(model, part, model->limits.rows_max);
  uint64_t most = weft_latent_choose_scratch(part->device, &choose);
  const weft_weight *const weight[] = {&layer->q_b,
                                       layers_weight_of(&layer->index_q),
                                       &layer->out_a[0],
                                       &layer->attn_mixes,
                                       &layer->ffn_mixes,
                                       layers_weight_of(&model->globals.out_mixes),
                                       layers_weight_of(&layer->index_k),
                                       layers_weight_of(&layer->engram_kv)};
  for (size_t i = 0; i < sizeof weight / sizeof *weight; i++)
    at_least(&most, matmul_work(model, part, weight[i], NULL, NULL));
  return most;
}

static uint64_t route_work(const weft_model *model, const model_part *part, const model_layer *layer) {
  weft_route_args args = layers_route_of(model, part, layer, model->limits.rows_max);
  return weft_route_scratch(part->device, &args);
}

static uint64_t attention_work(const weft_model *model, const model_part *part, uint32_t l) {
  const model_hyper *hyper = &model->hyper;
  uint64_t cols = (uint64_t)hyper->n_heads * hyper->head_dim[l];
  weft_attention_args args = {
      .kv = {.type = model->info.kv_type,
             .block_tokens = 32,
             .n_kv_heads = hyper->n_kv_heads[l],
             .head_dim = hyper->head_dim[l]},
      .n_segments = model->limits.segments_max,
      .n_rows = model->limits.rows_max,
      .n_heads = hyper->n_heads,
      .window = hyper->window[l],
      .scale = hyper->attention_scale, /* it chooses kernels, and so does the type of keys */
      .q_stride = cols,
      .out_stride = cols,
      .sinks = model->layers[l].sinks,
  };
  return weft_attention_scratch(part->device, &args);
}

/* The most scratch that any op of any layer of the part wants at the largest step. */
static uint64_t work_bytes(const weft_model *model, const model_part *part) {
  uint64_t most = 0;
  for (uint32_t l = part->first_layer; l < part->end_layer; l++) {
    const model_layer *layer = &model->layers[l];
    at_least(&most, inputs_work(model, part, l));
    at_least(&most, matmul_work(model, part, &layer->o, NULL, NULL));
    at_least(&most, matmul_work(model, part, layers_weight_of(&layer->gate), &layer->up, NULL));
    at_least(&most, matmul_work(model, part, layers_weight_of(&layer->down), NULL, NULL));
    at_least(&most, matmul_work(model, part, layers_weight_of(&layer->inp_gate), NULL, NULL));
    at_least(&most, matmul_work(model, part, layers_weight_of(&layer->proj), NULL, NULL));
    at_least(&most, matmul_work(model, part, layers_weight_of(&layer->shared_gate), NULL, NULL));
    at_least(&most, model->hyper.delta.layer[l]         ? delta_work(model, part, l)
                    : model->hyper.latent.n_streams > 0 ? latent_work(model, part, &layer->latent)
                    : model->hyper.mla.rank > 0
                        ? matmul_work(model, part, layers_weight_of(&layer->latent.q_b), NULL, NULL)
                        : attention_work(model, part, l));
    if (!model->hyper.moe[l]) continue;
    at_least(&most, route_work(model, part, layer));
    if (layers_joins_router(model, layer, &layer->shared_gate))
      at_least(&most, matmul_work(model, part, &layer->router, &layer->shared_gate, NULL));
    weft_experts_args args = layers_experts_of(model, part, layer);
    args.n_rows = model->limits.rows_max;
    at_least(&most, weft_experts_scratch(part->device, &args));
  }
  if (part->first_layer > 0) return most;
  const model_globals *globals = &model->globals;
  at_least(&most, matmul_work(model, part, layers_weight_of(&globals->self_cond_gate), &globals->self_cond_up, NULL));
  at_least(&most, matmul_work(model, part, layers_weight_of(&globals->self_cond_down), NULL, NULL));
  at_least(&most, matmul_work(model, part, layers_weight_of(&globals->per_layer_model_proj), NULL, NULL));
  at_least(&most, matmul_work(model, part, layers_weight_of(&globals->pre_projection), NULL, NULL));
  at_least(&most, matmul_work(model, part, layers_weight_of(&globals->post_projection), NULL, NULL));
  return most;
}

typedef struct widths {
  uint64_t q, kv, ff, z; /* z: of gates of what attention or the delta rule makes */
} widths;

static widths widest_rows(const model_hyper *hyper, const model_part *part) {
  widths most = {0, 0, 0, 0};
  const model_delta *delta = &hyper->delta;
  uint64_t keys = (uint64_t)delta->n_k_heads * delta->dim, values = (uint64_t)delta->n_v_heads * delta->dim;
  for (uint32_t l = part->first_layer; l < part->end_layer; l++) {
    if (delta->layer[l]) {
      at_least(&most.q, 2 * keys + values);
      at_least(&most.kv, keys > values ? keys : values);
    }
    if (delta->n_v_heads > 0) at_least(&most.z, values);
    if (delta->n_v_heads > 0) at_least(&most.z, (uint64_t)hyper->n_heads * hyper->head_dim[l]);
    at_least(&most.q, (uint64_t)hyper->n_heads * hyper->head_dim[l]);
    if (model_engram_index(&hyper->latent.engram, l) < hyper->latent.engram.n_layers) {
      at_least(&most.q, (uint64_t)model_engram_reads(&hyper->latent.engram) * hyper->latent.engram.dim);
      at_least(&most.q, (1ull + hyper->latent.n_streams) * hyper->n_hidden);
    }
    at_least(&most.q, (uint64_t)hyper->n_heads * hyper->mla.n_query);
    at_least(&most.q, (uint64_t)hyper->n_heads * hyper->mla.n_value);
    at_least(&most.kv, (uint64_t)hyper->n_kv_heads[l] * hyper->head_dim[l]);
    at_least(&most.ff, hyper->n_ff[l]);
  }
  return most;
}

/* Rows in the order of model_scratch; attention and feed-forward are never alive together and share
 * bytes. */
enum {
  ROW_INBOX,
  ROW_X = ROW_INBOX + MODEL_INBOXES,
  ROW_H,
  ROW_T,
  ROW_WORK,
  ROW_IDS,
  ROW_MIXES,
  ROW_SHARES,
  ROW_CHOSEN,
  ROW_BLOCKS,
  ROW_ENGRAM_IDS,
  ROW_PER_LAYER,
  ROW_PER_LAYER_LAST,
  ROW_PER_LAYER_PROJECTED,
  ROW_Q,
  ROW_A,
  ROW_ALL_A,
  ROW_K,
  ROW_V,
  ROW_Z,
  ROW_ALPHA,
  ROW_BETA,
  ROW_LOW_Q,
  ROW_FAR_VALUES,
  ROW_FAR_SCORES,
  ROW_INDEX_VALUES,
  ROW_INDEX_SCORES,
  ROW_INDEX_Q,
  ROW_INDEX_WEIGHTS,
  ROW_OUT_LOW,
  ROW_OWN_K,
  ROW_OWN_V,
  ROW_Y,
  ROW_R,
  ROW_G,
  ROW_U,
  ROW_LOGITS,
  ROW_WEIGHTS,
  ROW_GATED,
  ROW_SHARED_GATE,
  ROW_COUNT
};

/* What attention over latent rows needs. */
static void plan_latent(scratch_plan *plan, const model_hyper *hyper, uint64_t n) {
  const model_latent *latent = &hyper->latent;
  const uint64_t f = sizeof(float), far = latent->n_streams == 0 ? 0 : 2ull * hyper->head_dim[0];
  (void)scratch_plan_add(plan, "low queries", n, latent->q_rank * f);
  (void)scratch_plan_add(plan, "values of far rows", n, far * f);
  (void)scratch_plan_add(plan, "scores of far rows", n, far * f);
  (void)scratch_plan_add(plan, "values of index rows", n, 2 * latent->index_dim * f);
  (void)scratch_plan_add(plan, "scores of index rows", n, 2 * latent->index_dim * f);
  (void)scratch_plan_add(plan, "queries of the index", n, (uint64_t)latent->n_index_heads * latent->index_dim * f);
  (void)scratch_plan_add(plan, "weights of the index", n, latent->n_index_heads * f);
  (void)scratch_plan_add(plan, "groups of heads", n, (uint64_t)latent->n_groups * latent->out_rank * f);
}

weft_status layers_plan(const weft_model *model, model_part *part) {
  scratch_plan *plan = &part->plan;
  const model_hyper *hyper = &model->hyper;
  widths w = widest_rows(hyper, part);
  uint64_t n = model->limits.rows_max, f = sizeof(float);
  uint64_t own = weft_type_row_bytes(model->info.kv_type, w.kv);
  uint64_t n_streams = hyper->latent.n_streams;
  uint64_t chosen = (uint64_t)(part->end_layer - part->first_layer) * hyper->n_experts_used;
  uint64_t per_layer = hyper->n_per_layer * f, arriving = part->first_layer == 0 ? 0 : n;
  for (uint32_t i = 0; i < MODEL_INBOXES; i++) {
    (void)scratch_plan_add(plan, "inbox", arriving, model_row_width(model) * f + hyper->n_layers * per_layer);
  }
  (void)scratch_plan_add(plan, "residual", n, model_row_width(model) * f);
  (void)scratch_plan_add(plan, "normed", n, model_row_width(model) * f); /* takes the place of the stream at the end */
  (void)scratch_plan_add(plan, "branch", n, hyper->n_hidden * f);
  (void)scratch_plan_add(plan, "work of ops", part->scratch.work_bytes = work_bytes(model, part), 1);
  (void)scratch_plan_add(plan, "experts of rows", n, chosen * sizeof(int32_t));
  (void)scratch_plan_add(plan, "mixes", n, n_streams * (2 + n_streams) * f);
  (void)scratch_plan_add(plan, "shares", n, n_streams * (1 + n_streams) * f);
  (void)scratch_plan_add(plan, "chosen rows", n, hyper->latent.top_k * sizeof(int32_t));
  (void)scratch_plan_add(plan, "chosen blocks", n, hyper->latent.n_blocks * sizeof(int32_t));
  (void)scratch_plan_add(plan, "rows of tables", n, model_engram_reads(&hyper->latent.engram) * sizeof(int32_t));
  (void)scratch_plan_add(plan, "embeddings per layer", n, hyper->n_layers * per_layer);
  (void)scratch_plan_add(plan, "embeddings of the last layer", n, per_layer);
  uint64_t shared = plan->at;
  (void)scratch_plan_add(plan, "projection per layer", n, hyper->n_layers * per_layer);
  scratch_plan_rewind(plan, shared);
  (void)scratch_plan_add(plan, "queries", n, w.q * f);
  (void)scratch_plan_add(plan, "attention", n, w.q * f);
  (void)scratch_plan_add(plan, "attention of all shards", model->n_shards > 1 ? n : 0, w.q * model->n_shards * f);
  (void)scratch_plan_add(plan, "keys", n, w.kv * f);
  (void)scratch_plan_add(plan, "values", n, w.kv * f);
  (void)scratch_plan_add(plan, "gates", n, w.z * f);
  (void)scratch_plan_add(plan, "decays", n, hyper->delta.n_v_heads * f);
  (void)scratch_plan_add(plan, "betas", n, hyper->delta.n_v_heads * f);
  plan_latent(plan, hyper, n);
  (void)scratch_plan_add(plan, "canvas keys", model->limits.canvas_rows_max, own);
  (void)scratch_plan_add(plan, "canvas values", model->limits.canvas_rows_max, own);
  scratch_plan_rewind(plan, shared);
  (void)scratch_plan_add(plan, "experts", n, hyper->n_hidden * f);
  (void)scratch_plan_add(plan, "routed", n, hyper->n_hidden * f);
  (void)scratch_plan_add(plan, "gate", n, w.ff * f);
  (void)scratch_plan_add(plan, "up", n, w.ff * f);
  (void)scratch_plan_add(plan, "router", n, hyper->n_experts * f);
  (void)scratch_plan_add(plan, "expert weights", n, hyper->n_experts_used * f);
  (void)scratch_plan_add(plan, "gated embeddings", n, per_layer);
  (void)scratch_plan_add(plan, "gates of the shared MLP", n, f);
  WEFT_CHECK(plan->refused || plan->n_rows == ROW_COUNT);
  return plan->refused ? WEFT_E_TOO_LARGE : WEFT_OK;
}

static void *memory_of(const model_part *part, uint32_t row) {
  return (char *)part->scratch_base + part->plan.row[row].offset;
}

void layers_place(model_part *part) {
  model_scratch *s = &part->scratch;
  for (uint32_t i = 0; i < MODEL_INBOXES; i++) part->inbox[i] = memory_of(part, ROW_INBOX + i);
  s->x = memory_of(part, ROW_X);
  s->h = memory_of(part, ROW_H);
  s->t = memory_of(part, ROW_T);
  s->work = memory_of(part, ROW_WORK);
  s->per_layer = memory_of(part, ROW_PER_LAYER);
  s->per_layer_last = memory_of(part, ROW_PER_LAYER_LAST);
  s->per_layer_projected = memory_of(part, ROW_PER_LAYER_PROJECTED);
  s->q = memory_of(part, ROW_Q);
  s->a = memory_of(part, ROW_A);
  s->all_a = memory_of(part, ROW_ALL_A);
  s->k = memory_of(part, ROW_K);
  s->v = memory_of(part, ROW_V);
  s->z = memory_of(part, ROW_Z);
  s->alpha = memory_of(part, ROW_ALPHA);
  s->beta = memory_of(part, ROW_BETA);
  s->mixes = memory_of(part, ROW_MIXES);
  s->shares = memory_of(part, ROW_SHARES);
  s->low_q = memory_of(part, ROW_LOW_Q);
  s->far_values = memory_of(part, ROW_FAR_VALUES);
  s->far_scores = memory_of(part, ROW_FAR_SCORES);
  s->index_values = memory_of(part, ROW_INDEX_VALUES);
  s->index_scores = memory_of(part, ROW_INDEX_SCORES);
  s->index_q = memory_of(part, ROW_INDEX_Q);
  s->index_weights = memory_of(part, ROW_INDEX_WEIGHTS);
  s->chosen = memory_of(part, ROW_CHOSEN);
  s->blocks = memory_of(part, ROW_BLOCKS);
  s->engram_ids = memory_of(part, ROW_ENGRAM_IDS);
  s->out_low = memory_of(part, ROW_OUT_LOW);
  s->own_k = memory_of(part, ROW_OWN_K);
  s->own_v = memory_of(part, ROW_OWN_V);
  s->y = memory_of(part, ROW_Y);
  s->r = memory_of(part, ROW_R);
  s->g = memory_of(part, ROW_G);
  s->u = memory_of(part, ROW_U);
  s->logits = memory_of(part, ROW_LOGITS);
  s->ids = memory_of(part, ROW_IDS);
  s->weights = memory_of(part, ROW_WEIGHTS);
  s->gated = memory_of(part, ROW_GATED);
  s->shared_gate = memory_of(part, ROW_SHARED_GATE);
}
