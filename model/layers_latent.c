/* SPDX-License-Identifier: MIT */
/* Layers with latent rows in place of keys and values (kernels/latent.h), the residual stream of several parts around
 * them (kernels/streams.h), and experts that are chosen by scores of their own. */
#include "model/layers_args.h"

/* ---- the stream ---- */

static weft_mix_args mix_of(const model_step *step, const layers_mix_args *args) {
  const model_hyper *hyper = &step->model->hyper;
  const model_scratch *s = &step->part->scratch;
  const uint32_t n = hyper->latent.n_streams;
  const uint64_t width = model_row_width(step->model);
  return (weft_mix_args){.x = step->x,
                         .mixes = args->mixes == NULL ? NULL : s->mixes,
                         .base = args->base,
                         .scale = args->scale,
                         .y = s->t,
                         .shares = args->shares,
                         .carry = hyper->latent.carries ? step->x + (uint64_t)n * hyper->n_hidden : NULL,
                         .first = args->first,
                         .n_rows = step->n_rows,
                         .n_cols = hyper->n_hidden,
                         .n_streams = n,
                         .n_rounds = hyper->latent.n_rounds,
                         .eps = hyper->eps,
                         .floor = hyper->latent.floor,
                         .x_stride = width,
                         .y_stride = hyper->n_hidden,
                         .mixes_stride = args->mixes == NULL ? 0 : args->mixes->n_out,
                         .shares_stride = (uint64_t)n * (1 + n),
                         .carry_stride = width};
}

/* The numbers that mix the parts of each row. */
static weft_status make_mixes(model_step *step, const weft_weight *mixes) {
  float *out = step->part->scratch.mixes;
  weft_matmul_args args = layers_product_of(step->part, step->x, step->n_rows, 1, &mixes, &out);
  args.x_stride = model_row_width(step->model);
  return layers_multiply(step, &args);
}

weft_status layers_mix(model_step *step, const layers_mix_args *args) {
  const model_scratch *s = &step->part->scratch;
  const weft_mix_args mix = mix_of(step, args);
  const layers_norm_args norm = {.x = s->t, .weight = args->norm, .y = args->out, .n_rows = step->n_rows};
  weft_status status = args->mixes == NULL ? WEFT_OK : make_mixes(step, args->mixes);
  if (status == WEFT_OK) status = weft_mix(step->part->device, &mix);
  return status == WEFT_OK ? layers_norm(step, &norm) : status;
}

weft_status layers_spread(model_step *step, const float *y) {
  const model_hyper *hyper = &step->model->hyper;
  const uint32_t n = hyper->latent.n_streams;
  const weft_spread_args args = {.x = step->x,
                                 .y = y,
                                 .shares = step->part->scratch.shares,
                                 .n_rows = step->n_rows,
                                 .n_cols = hyper->n_hidden,
                                 .n_streams = n,
                                 .x_stride = model_row_width(step->model),
                                 .y_stride = hyper->n_hidden,
                                 .shares_stride = (uint64_t)n * (1 + n)};
  return weft_spread(step->part->device, &args);
}

/* ---- what a layer keeps ---- */

uint32_t layers_latent_inputs(const weft_model *model, const model_part *part, uint32_t l, const weft_weight **weight,
                              float **y) {
  const model_latent_layer *layer = &model->layers[l].latent;
  const model_scratch *s = &part->scratch;
  const struct {
    const weft_weight *weight;
    float *y;
  } all[LAYERS_INPUTS_MAX] = {{&layer->q_a, s->low_q},
                              {&layer->kv, s->k},
                              {&layer->far_values, s->far_values},
                              {&layer->far_scores, s->far_scores},
                              {&layer->index_values, s->index_values},
                              {&layer->index_scores, s->index_scores},
                              {&layer->index_weights, s->index_weights}};
  uint32_t n = 0;
  for (uint32_t i = 0; i < LAYERS_INPUTS_MAX; i++) {
    if (all[i].weight->data == NULL) continue;
    weight[n] = all[i].weight;
    y[n++] = all[i].y;
  }
  return n;
}

static bool has_set(const weft_model *model, uint32_t l, weft_latent_set set) {
  return model_latent_has(&model->hyper.latent, l, set);
}

/* Where in the geometry a set of a layer is (model_hyper_geometry); the layer has it. */
static uint32_t set_of(const weft_model *model, uint32_t l, weft_latent_set set) {
  uint32_t at = model->first_set[l];
  for (uint32_t s = 0; s < (uint32_t)set; s++) at += has_set(model, l, (weft_latent_set)s) ? 1 : 0;
  return at;
}

static weft_latent_view view_of(const model_step *step, uint32_t l, weft_latent_set set) {
  if (!has_set(step->model, l, set)) return (weft_latent_view){.base = NULL};
  return weft_kv_store_rows(step->args->kv, step->args->layout, set_of(step->model, l, set), step->model->shard);
}

void layers_latent_segments(const model_step *step, uint32_t l) {
  const weft_batch *batch = step->args->batch;
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    const weft_segment *from = &batch->segment[i];
    weft_latent_segment *to = &step->part->latent_segments[i];
    *to = (weft_latent_segment){.first_row = from->first_row, .n_rows = from->n_rows, .kv_len = from->kv_len};
    for (uint32_t set = 0; set < WEFT_LATENT_SETS; set++) {
      if (!has_set(step->model, l, (weft_latent_set)set)) continue;
      uint32_t group = step->args->layout->place[set_of(step->model, l, (weft_latent_set)set)].group;
      to->table[set] = step_arrays_table(&step->part->arrays, i, group);
    }
  }
}

/* Layers with far rows rotate at a pace of their own. */
static weft_latent_turn turn_of(const model_step *step, uint32_t l) {
  const model_latent *latent = &step->model->hyper.latent;
  const model_part *part = step->part;
  return (weft_latent_turn){.inv_freq = latent->ratio[l] > 0 ? part->inv_freq : part->inv_freq_window,
                            .n_rotated = latent->n_rotated};
}

/* ---- attention ---- */

weft_status layers_low_queries(model_step *step, const model_latent_layer *layer, float *q) {
  const model_scratch *s = &step->part->scratch;
  const uint32_t rank = step->model->hyper.latent.q_rank;
  const weft_weight *weight = &layer->q_b;
  const weft_norm_args norm = {.x = s->low_q,
                               .weight = layer->q_a_norm,
                               .y = s->low_q,
                               .n_rows = step->n_rows,
                               .n_cols = rank,
                               .x_stride = rank,
                               .y_stride = rank,
                               .eps = step->model->hyper.eps};
  weft_status status = weft_norm(step->part->device, &norm);
  return status == WEFT_OK ? layers_matmul(step, s->low_q, step->n_rows, 1, &weight, &q) : status;
}

static weft_status make_queries(model_step *step, const model_latent_layer *layer) {
  const model_scratch *s = &step->part->scratch;
  const weft_weight *index_q = &layer->index_q;
  float *index_out = s->index_q;
  weft_status status = layers_low_queries(step, layer, s->q);
  if (status != WEFT_OK || index_q->data == NULL) return status;
  return layers_matmul(step, s->low_q, step->n_rows, 1, &index_q, &index_out);
}

static weft_status store_near(model_step *step, uint32_t l) {
  const model_hyper *hyper = &step->model->hyper;
  const model_latent *latent = &hyper->latent;
  const model_latent_layer *layer = &step->model->layers[l].latent;
  const model_scratch *s = &step->part->scratch;
  bool has_index = latent->chooses[l];
  const weft_latent_rows_args args = {.near = view_of(step, l, WEFT_LATENT_NEAR),
                                      .q = s->q,
                                      .index_q = has_index ? s->index_q : NULL,
                                      .kv = s->k,
                                      .kv_norm = layer->kv_norm,
                                      .turn = turn_of(step, l),
                                      .segment = step->part->latent_segments,
                                      .n_segments = step->args->batch->n_segments,
                                      .n_rows = step->n_rows,
                                      .n_heads = hyper->n_heads,
                                      .n_index_heads = latent->n_index_heads,
                                      .index_dim = latent->index_dim,
                                      .q_stride = (uint64_t)hyper->n_heads * hyper->head_dim[l],
                                      .index_q_stride = (uint64_t)latent->n_index_heads * latent->index_dim,
                                      .kv_stride = hyper->head_dim[l],
                                      .eps = hyper->eps,
                                      .plain_q = latent->carries};
  return weft_latent_rows(step->part->device, &args);
}

/* Where far rows that have not rotated lie, behind the values that they are made of. */
static float *latents_of(const model_step *step, uint32_t l) {
  return step->part->scratch.far_values + (uint64_t)step->n_rows * step->model->hyper.head_dim[l];
}

/* Far rows that other layers read too, and of them the rows that they are chosen by. */
static weft_status press_shared(model_step *step, uint32_t l) {
  const model_latent_layer *layer = &step->model->layers[l].latent;
  const model_scratch *s = &step->part->scratch;
  const weft_weight *index_k = &layer->index_k;
  float *latent = latents_of(step, l), *keys = s->index_values;
  weft_latent_press_args args = {.pending = view_of(step, l, WEFT_LATENT_PENDING),
                                 .out = view_of(step, l, WEFT_LATENT_FAR),
                                 .pending_set = WEFT_LATENT_PENDING,
                                 .out_set = WEFT_LATENT_FAR,
                                 .x = s->far_values,
                                 .scores = s->far_scores,
                                 .norm = layer->far_norm,
                                 .latent = latent,
                                 .turn = turn_of(step, l),
                                 .segment = step->part->latent_segments,
                                 .n_segments = step->args->batch->n_segments,
                                 .n_rows = step->n_rows,
                                 .eps = step->model->hyper.eps};
  args.x_stride = args.scores_stride = args.out.width;
  weft_status status = weft_latent_press(step->part->device, &args);
  if (status == WEFT_OK) status = layers_matmul(step, latent, step->n_rows, 1, &index_k, &keys);
  args.pending = (weft_latent_view){.base = NULL};
  args.out = view_of(step, l, WEFT_LATENT_INDEX);
  args.out_set = WEFT_LATENT_INDEX;
  args.x = keys;
  args.norm = layer->index_norm;
  args.latent = NULL;
  args.x_stride = args.out.width;
  return status == WEFT_OK ? weft_latent_press(step->part->device, &args) : status;
}

/* Far rows, or with of_index the rows that they are chosen by. */
static weft_status press_rows(model_step *step, uint32_t l, bool of_index) {
  const model_latent_layer *layer = &step->model->layers[l].latent;
  const model_scratch *s = &step->part->scratch;
  weft_latent_set out = of_index ? WEFT_LATENT_INDEX : WEFT_LATENT_FAR;
  weft_latent_set pending = of_index ? WEFT_LATENT_PENDING_INDEX : WEFT_LATENT_PENDING;
  if (!has_set(step->model, l, out)) return WEFT_OK;
  weft_latent_press_args args = {.pending = view_of(step, l, pending),
                                 .out = view_of(step, l, out),
                                 .pending_set = pending,
                                 .out_set = out,
                                 .x = of_index ? s->index_values : s->far_values,
                                 .scores = of_index ? s->index_scores : s->far_scores,
                                 .ape = of_index ? layer->index_ape : layer->far_ape,
                                 .norm = of_index ? layer->index_norm : layer->far_norm,
                                 .turn = turn_of(step, l),
                                 .segment = step->part->latent_segments,
                                 .n_segments = step->args->batch->n_segments,
                                 .n_rows = step->n_rows,
                                 .overlaps = step->model->hyper.latent.ratio[l] == MODEL_LATENT_OVERLAPS,
                                 .eps = step->model->hyper.eps};
  args.x_stride = args.scores_stride = args.pending.width;
  return weft_latent_press(step->part->device, &args);
}

weft_latent_choose_args layers_choose_of(const weft_model *model, const model_part *part, uint32_t n_rows) {
  const model_latent *latent = &model->hyper.latent;
  const model_scratch *s = &part->scratch;
  return (weft_latent_choose_args){.q = s->index_q,
                                   .weights = s->index_weights,
                                   .ids = s->chosen,
                                   .blocks = latent->n_blocks > 0 ? s->blocks : NULL,
                                   .n_rows = n_rows,
                                   .n_heads = latent->n_index_heads,
                                   .k = latent->top_k,
                                   .n_blocks = latent->n_blocks,
                                   .block_rows = latent->block_rows,
                                   .makes_blocks = latent->n_blocks > 0,
                                   .q_stride = (uint64_t)latent->n_index_heads * latent->index_dim,
                                   .weights_stride = latent->n_index_heads,
                                   .scratch = s->work,
                                   .scratch_bytes = s->work_bytes};
}

static weft_status choose_far(model_step *step, uint32_t l) {
  const model_latent *latent = &step->model->hyper.latent;
  if (!latent->chooses[l]) return WEFT_OK;
  weft_latent_choose_args args = layers_choose_of(step->model, step->part, step->n_rows);
  if (latent->block_source == 0 || l + 1 < latent->block_source) args.blocks = NULL;
  args.makes_blocks = latent->block_source == l + 1;
  args.index = view_of(step, l, WEFT_LATENT_INDEX);
  args.segment = step->part->latent_segments;
  args.n_segments = step->args->batch->n_segments;
  return weft_latent_choose(step->part->device, &args);
}

static weft_status attend_rows(model_step *step, uint32_t l) {
  const model_hyper *hyper = &step->model->hyper;
  const model_scratch *s = &step->part->scratch;
  uint64_t cols = (uint64_t)hyper->n_heads * hyper->head_dim[l];
  const weft_latent_attend_args args = {.near = view_of(step, l, WEFT_LATENT_NEAR),
                                        .far = view_of(step, l, WEFT_LATENT_FAR),
                                        .q = s->q,
                                        .sinks = step->model->layers[l].sinks,
                                        .ids = has_set(step->model, l, WEFT_LATENT_INDEX) ? s->chosen : NULL,
                                        .out = step->a,
                                        .turn = turn_of(step, l),
                                        .segment = step->part->latent_segments,
                                        .n_segments = step->args->batch->n_segments,
                                        .n_rows = step->n_rows,
                                        .n_heads = hyper->n_heads,
                                        .k = hyper->latent.top_k,
                                        .window = hyper->window[l],
                                        .scale = hyper->attention_scale,
                                        .q_stride = cols,
                                        .out_stride = cols};
  return weft_latent_attend(step->part->device, &args);
}

/* The heads' results go through a matrix for each group of heads, then all of these through one. */
static weft_status multiply_groups(model_step *step, uint32_t l, float *y) {
  const model_hyper *hyper = &step->model->hyper;
  const model_layer *layer = &step->model->layers[l];
  const model_scratch *s = &step->part->scratch;
  const weft_weight *o = &layer->o;
  weft_status status = WEFT_OK;
  for (uint32_t g = 0; g < hyper->latent.n_groups && status == WEFT_OK; g++) {
    const weft_weight *group = &layer->latent.out_a[g];
    float *out = s->out_low + (uint64_t)g * group->n_out;
    weft_matmul_args args =
        layers_product_of(step->part, step->a + (uint64_t)g * group->n_in, step->n_rows, 1, &group, &out);
    args.x_stride = (uint64_t)hyper->n_heads * hyper->head_dim[l];
    args.y_stride[0] = o->n_in;
    status = layers_multiply(step, &args);
  }
  return status == WEFT_OK ? layers_matmul(step, s->out_low, step->n_rows, 1, &o, &y) : status;
}

weft_status layers_latent(model_step *step, uint32_t l, float *y) {
  layers_latent_segments(step, l);
  weft_status status = layers_project(step, l);
  const model_latent *latent = &step->model->hyper.latent;
  if (status == WEFT_OK) status = make_queries(step, &step->model->layers[l].latent);
  if (status == WEFT_OK) status = store_near(step, l);
  if (latent->carries) {
    if (status == WEFT_OK && latent->source[l] == l + 1) status = press_shared(step, l);
  } else {
    if (status == WEFT_OK) status = press_rows(step, l, false);
    if (status == WEFT_OK) status = press_rows(step, l, true);
  }
  if (status != WEFT_OK) return status;
  if (layers_end_here(step, l)) {
    step->n_rows = 0; /* rows in pages were all that was wanted */
    return WEFT_OK;
  }
  status = choose_far(step, l);
  if (status == WEFT_OK) status = attend_rows(step, l);
  if (status == WEFT_OK) status = multiply_groups(step, l, y);
  if (status == WEFT_OK) layers_tap(step, l, WEFT_STAGE_ATTENTION, y, step->model->hyper.n_hidden);
  return status;
}

/* ---- the memory by tokens ---- */

static weft_status find_engram_rows(model_step *step, uint32_t l) {
  const model_engram *engram = &step->model->hyper.latent.engram;
  const model_latent_layer *layer = &step->model->layers[l].latent;
  const weft_engram_rows_args args = {.past = view_of(step, l, WEFT_LATENT_TOKENS),
                                      .tokens = step->part->arrays.token,
                                      .map = layer->engram_map,
                                      .multiplier = layer->engram_multiplier,
                                      .prime = layer->engram_prime,
                                      .offset = layer->engram_offset,
                                      .ids = step->part->scratch.engram_ids,
                                      .segment = step->part->latent_segments,
                                      .n_segments = step->args->batch->n_segments,
                                      .n_rows = step->n_rows,
                                      .n_tokens = step->model->hyper.n_vocab,
                                      .n_grams = engram->n_grams,
                                      .n_heads = engram->n_heads,
                                      .pad = engram->pad};
  return weft_engram_rows(step->part->device, &args);
}

weft_status layers_engram(model_step *step, uint32_t l) {
  const model_hyper *hyper = &step->model->hyper;
  const model_engram *engram = &hyper->latent.engram;
  const model_latent_layer *layer = &step->model->layers[l].latent;
  const model_scratch *s = &step->part->scratch;
  const weft_weight *kv = &layer->engram_kv;
  float *read = s->q; /* which are made later */
  const weft_embed_args embed = {.weight = &layer->engram_table,
                                 .tokens = s->engram_ids,
                                 .y = step->a,
                                 .n_rows = step->n_rows * model_engram_reads(engram),
                                 .scale = 1.0f,
                                 .y_stride = engram->dim};
  const weft_engram_add_args add = {.x = step->x,
                                    .read = read,
                                    .weight = layer->engram_weight,
                                    .n_rows = step->n_rows,
                                    .n_cols = hyper->n_hidden,
                                    .n_streams = hyper->latent.n_streams,
                                    .x_stride = model_row_width(step->model),
                                    .read_stride = kv->n_out,
                                    .eps = hyper->eps};
  layers_latent_segments(step, l);
  weft_status status = find_engram_rows(step, l);
  if (status == WEFT_OK) status = weft_embed(step->part->device, &embed);
  if (status == WEFT_OK) status = layers_matmul(step, step->a, step->n_rows, 1, &kv, &read);
  return status == WEFT_OK ? weft_engram_add(step->part->device, &add) : status;
}

/* ---- experts ---- */

weft_status layers_assign(model_step *step, const model_layer *layer, const float *x) {
  const model_hyper *hyper = &step->model->hyper;
  const model_scratch *s = &step->part->scratch;
  const weft_weight *router = &layer->router;
  float *logits = s->logits;
  const weft_assign_args args = {.logits = logits,
                                 .bias = layer->choice_bias,
                                 .table = layer->latent.experts_of,
                                 .tokens = step->part->arrays.token,
                                 .ids = layers_ids_of(step->model, step->part, layer),
                                 .weights = s->weights,
                                 .n_rows = step->n_rows,
                                 .n_experts = hyper->n_experts,
                                 .k = hyper->n_experts_used,
                                 .n_tokens = hyper->n_vocab,
                                 .logits_stride = hyper->n_experts,
                                 .factor = hyper->choice.factor,
                                 .scores = hyper->choice.scores,
                                 .as_scored = hyper->choice.as_scored,
                                 .n_groups = hyper->choice.n_groups,
                                 .n_groups_used = hyper->choice.n_groups_used};
  weft_status status = layers_matmul(step, x, step->n_rows, 1, &router, &logits);
  return status == WEFT_OK ? weft_assign(step->part->device, &args) : status;
}
