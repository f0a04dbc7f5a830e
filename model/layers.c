/* SPDX-License-Identifier: MIT */
#include "model/layers.h"

#include "model/layers_args.h"

weft_matmul_args layers_product_of(const model_part *part, const float *x, uint32_t n_rows, uint32_t n_weights,
                                   const weft_weight *const *weight, float *const *y) {
  weft_matmul_args args = {
      .x = x,
      .n_rows = n_rows,
      .n_weights = n_weights,
      .x_stride = weight[0]->n_in,
      .scratch = part->scratch.work,
      .scratch_bytes = part->scratch.work_bytes,
  };
  for (uint32_t i = 0; i < n_weights; i++) {
    args.weight[i] = weight[i];
    args.y[i] = y[i];
    args.y_stride[i] = weight[i]->n_out;
  }
  return args;
}

weft_status layers_multiply(model_step *step, const weft_matmul_args *args) {
  return weft_matmul(step->part->device, args);
}

weft_status layers_matmul(model_step *step, const float *x, uint32_t n_rows, uint32_t n_weights,
                          const weft_weight *const *weight, float *const *y) {
  const weft_matmul_args args = layers_product_of(step->part, x, n_rows, n_weights, weight, y);
  return layers_multiply(step, &args);
}

weft_rows_form layers_form(const model_step *step, weft_rows_way way, uint32_t n_rows, uint32_t n_weights,
                           const weft_weight *const *weight) {
  weft_rows_form form = WEFT_ROWS_F32;
  bool any = false;
  for (uint32_t i = 0; i < n_weights; i++) {
    if (weight[i] == NULL) continue;
    weft_rows_form own = weft_device_rows_form(step->part->device, weight[i], n_rows, way);
    if (any && own != form) return WEFT_ROWS_F32;
    form = own;
    any = true;
  }
  return form;
}

/* The rows of the shard's own tokens, and zeros for all others, whose place in the range is that of any row. */
static weft_status embed_own(model_step *step, weft_embed_args *args) {
  const model_globals *globals = &step->model->globals;
  weft_device *device = step->part->device;
  float *share = step->part->scratch.t; /* which nothing else uses before the first layer, as what lies behind it */
  int32_t *row = (int32_t *)(void *)(share + args->n_rows);
  const int32_t *shares = (const int32_t *)(const void *)globals->own_share;
  const weft_move_args rows = {.to = row, .from = globals->own_row, .from_at = args->tokens, .n_rows = args->n_rows};
  const weft_move_args kept = {
      .to = (int32_t *)(void *)share, .from = shares, .from_at = args->tokens, .n_rows = args->n_rows};
  const weft_norm_args keep = {.x = args->y,
                               .y = args->y,
                               .row_scale = share,
                               .n_rows = args->n_rows,
                               .n_cols = step->model->hyper.n_hidden,
                               .plain = true,
                               .x_stride = args->y_stride,
                               .y_stride = args->y_stride};
  args->tokens = row;
  weft_status status = weft_move(device, &rows);
  if (status == WEFT_OK) status = weft_move(device, &kept);
  if (status == WEFT_OK) status = weft_embed(device, args);
  return status == WEFT_OK ? weft_norm(device, &keep) : status;
}

weft_status layers_embed(model_step *step) {
  weft_model *model = step->model;
  weft_embed_args args = {
      .weight = &model->globals.token_embd,
      .tokens = step->part->arrays.token,
      .y = step->x,
      .n_rows = step->n_rows,
      .scale = model->hyper.embed_scale,
      .y_stride = model->hyper.n_hidden,
  };
  return model->token_ranges ? embed_own(step, &args) : weft_embed(step->part->device, &args);
}

/* ---- rows that are shared out ---- */

/* Fewer rows are not shared out: every shard computes them all, and exchanges less often. */
enum { SHARED_ROWS_MIN = 32 /* for each shard */ };

void layers_own_rows(model_step *step) {
  const weft_model *model = step->model;
  uint32_t n = step->n_rows, n_shards = model->n_shards, end = n;
  step->owns_part = n_shards > 1 && n >= SHARED_ROWS_MIN * n_shards;
  step->own_first = 0;
  if (step->owns_part) {
    step->own_first = weft_shards_row(n_shards, n, model->shard);
    end = weft_shards_row(n_shards, n, model->shard + 1);
  }
  step->n_own = end - step->own_first;
}

static weft_status exchange_arrays(model_step *step, weft_shards_way way, const weft_shards_array *array,
                                   uint32_t n_arrays) {
  const weft_model *model = step->model;
  return weft_shards_exchange(step->part->exchanges, model->shard, way, array, n_arrays, step->n_rows);
}

weft_status layers_gather(model_step *step, float *x) {
  weft_shards_array array = {.x = x, .n_cols = (uint32_t)model_row_width(step->model)};
  return exchange_arrays(step, WEFT_SHARDS_ROWS, &array, 1);
}

/* The columns of all shards side by side, of the rows that the shard owns. */
static weft_status gather_columns(model_step *step, float *x, uint64_t n_cols, float *y) {
  weft_shards_array array = {.x = x, .y = y, .n_cols = (uint32_t)n_cols};
  return exchange_arrays(step, step->owns_part ? WEFT_SHARDS_COLUMNS_OWN : WEFT_SHARDS_COLUMNS, &array, 1);
}

uint64_t layers_exchange_floats(const weft_model *model) {
  const model_hyper *hyper = &model->hyper;
  uint64_t most = hyper->n_hidden + 2ull * hyper->n_experts_used;
  for (uint32_t l = 0; l < hyper->n_layers; l++) {
    uint64_t heads = (uint64_t)hyper->n_heads * hyper->head_dim[l], ff = hyper->n_ff[l] / model->n_shards;
    if (heads > most) most = heads;
    if (ff > most && !hyper->moe[l]) most = ff;
  }
  return most * model->limits.rows_max;
}

/* ---- norms ---- */

static float *row_at(float *x, uint64_t first, uint64_t n) {
  return x == NULL ? NULL : x + first * n;
}

weft_status layers_norm(model_step *step, const layers_norm_args *args) {
  uint32_t n = step->model->hyper.n_hidden, first = args->first_row;
  bool skips_add = args->add == NULL || args->add_is_row;
  weft_norm_args norm = {
      .x = row_at(args->x, first, n),
      .x2 = row_at(args->x2, first, n),
      .x_weight = args->x_weight,
      .x2_weight = args->x2_weight,
      .weight = args->weight,
      .add = skips_add ? args->add : args->add + (uint64_t)first * n,
      .row_scale = args->row_scale == NULL ? NULL : args->row_scale + first,
      .y = row_at(args->y, first, n),
      .n_rows = args->n_rows,
      .n_cols = n,
      .n_then = args->n_then,
      .plain = args->plain,
      .x_stride = n,
      .x2_stride = n,
      .add_stride = args->add_is_row ? 0 : n,
      .y_stride = n,
      .eps = step->model->hyper.eps,
  };
  for (uint32_t i = 0; i < args->n_then; i++) {
    norm.then_weight[i] = args->then_weight[i];
    norm.then[i] = row_at(args->then[i], first, n);
    norm.then_form[i] = args->then_form[i];
  }
  return weft_norm(step->part->device, &norm);
}

uint32_t layers_inputs_of(const weft_model *model, const model_part *part, uint32_t l, const weft_weight **weight,
                          float **y) {
  if (model->hyper.latent.n_streams > 0) return layers_latent_inputs(model, part, l, weight, y);
  if (model->hyper.mla.rank > 0) return layers_mla_inputs(model, part, l, weight, y);
  const model_layer *layer = &model->layers[l];
  const model_scratch *s = &part->scratch;
  bool delta = model->hyper.delta.layer[l], keys = !delta && model->hyper.keys_of[l] == 0;
  const struct {
    const weft_weight *weight;
    float *y;
    bool is_read;
  } all[] = {{&layer->q, s->q, true},        {&layer->k, s->k, keys},          {&layer->v, s->v, keys},
             {&layer->out_gate, s->z, true}, {&layer->alpha, s->alpha, delta}, {&layer->beta, s->beta, delta}};
  uint32_t n = 0;
  for (uint32_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (!all[i].is_read || all[i].weight->data == NULL) continue;
    weight[n] = all[i].weight;
    y[n++] = all[i].y;
  }
  return n;
}

static weft_rows_form input_form(const model_step *step, uint32_t l) {
  const weft_weight *weight[LAYERS_INPUTS_MAX];
  float *y[LAYERS_INPUTS_MAX];
  uint32_t n_weights = layers_inputs_of(step->model, step->part, l, weight, y);
  return layers_form(step, WEFT_ROWS_TO_MATMUL, step->n_rows, n_weights, weight);
}

void layers_then_next(model_step *step, uint32_t l, layers_norm_args *norm) {
  const weft_model *model = step->model;
  bool is_last = l + 1 == model->hyper.n_layers, is_unread = model->shard > 0 && step->args->share == NULL;
  if (is_last && is_unread && !step->owns_part) return;   /* shard 0 gives the hidden rows out */
  if (!is_last && l + 1 == step->part->end_layer) return; /* the next part makes it */
  step->h_form = is_last || step->owns_part ? WEFT_ROWS_F32 : input_form(step, l + 1);
  step->h_is_part = step->owns_part;
  norm->then_form[norm->n_then] = step->h_form;
  norm->then_weight[norm->n_then] = is_last ? model->globals.output_norm : model->layers[l + 1].attn_norm;
  norm->then[norm->n_then] = is_last && model->shard == 0 ? step->args->hidden : step->h;
  norm->n_then += 1;
}

/* ---- attention ---- */

weft_status layers_project(model_step *step, uint32_t l) {
  const weft_weight *weight[LAYERS_INPUTS_MAX];
  float *y[LAYERS_INPUTS_MAX];
  uint32_t n_weights = layers_inputs_of(step->model, step->part, l, weight, y);
  weft_status status = step->h_is_part ? layers_gather(step, step->h) : WEFT_OK;
  step->h_is_part = false;
  for (uint32_t first = 0; first < n_weights && status == WEFT_OK; first += WEFT_MATMUL_MAX) {
    uint32_t n = n_weights - first < WEFT_MATMUL_MAX ? n_weights - first : WEFT_MATMUL_MAX;
    weft_matmul_args args = layers_product_of(step->part, step->h, step->n_rows, n, weight + first, y + first);
    args.x_form = step->h_form;
    status = layers_multiply(step, &args);
  }
  return status;
}

/* Queries get their bias, are normed and rotated; keys and values too, and stored, unless the layer reads another's. */
static weft_status store_keys(model_step *step, uint32_t l, const weft_kv_view *view) {
  weft_model *model = step->model;
  bool own_keys = model->hyper.keys_of[l] == 0;
  const model_hyper *hyper = &model->hyper;
  const model_layer *layer = &model->layers[l];
  model_scratch *s = &step->part->scratch;
  uint64_t kv_cols = (uint64_t)view->n_kv_heads * view->head_dim;
  bool has_values = layer->v.data != NULL; /* without a value matrix the raw keys are the values */
  weft_qkv_args args = {
      .q = s->q,
      .k = own_keys ? s->k : NULL,
      .v = !own_keys    ? NULL
           : has_values ? s->v
                        : s->k,
      .q_bias = layer->q_bias,
      .k_bias = layer->k_bias,
      .v_bias = has_values ? layer->v_bias : layer->k_bias,
      .q_norm = layer->q_norm,
      .k_norm = layer->k_norm,
      .inv_freq = hyper->window[l] > 0 ? step->part->inv_freq_window : step->part->inv_freq,
      .position = step->part->arrays.position,
      .slot = step->part->arrays.kv_slot[step->args->layout->place[model->first_set[l]].group],
      .kv = *view,
      .own_k = s->own_k,
      .own_v = s->own_v,
      .own_first = step->args->batch->n_stored,
      .n_rows = step->n_rows,
      .n_heads = hyper->n_heads,
      .q_stride = (uint64_t)hyper->n_heads * view->head_dim,
      .k_stride = kv_cols,
      .v_stride = kv_cols,
      .v_norm = hyper->v_norm,
      .eps = hyper->eps,
  };
  return weft_qkv(step->part->device, &args);
}

/* The segment that a row belongs to; segments ascend and cover all rows. */
static uint32_t segment_of(const weft_batch *batch, uint32_t row) {
  uint32_t low = 0, high = batch->n_segments;
  while (high - low > 1) {
    uint32_t middle = low + (high - low) / 2;
    if (batch->segment[middle].first_row <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/* Last layer: what is left of each segment, from its first to its last output row; n_rows 0 where
 * there is none. A segment stays whole where its rows see one another's keys, or find their own in scratch. */
static void narrow_segments(const weft_forward_args *args, weft_attention_segment *segments) {
  const weft_batch *batch = args->batch;
  for (uint32_t i = 0; i < batch->n_segments; i++) segments[i].n_rows = 0;
  for (uint32_t i = 0; i < args->n_output; i++) {
    uint32_t row = args->output_row[i], s = segment_of(batch, row);
    weft_attention_segment *segment = &segments[s];
    uint32_t first = row, end = row + 1;
    if (segment->mask == WEFT_MASK_WHOLE || segment->stores == WEFT_STORES_SCRATCH) {
      segment->n_rows = batch->segment[s].n_rows;
      continue;
    }
    if (segment->n_rows > 0) {
      uint32_t old_end = segment->first_row + segment->n_rows;
      if (segment->first_row < first) first = segment->first_row;
      if (old_end > end) end = old_end;
    }
    segment->first_row = first;
    segment->n_rows = end - first;
    segment->kv_len = batch->segment[s].kv_len + (first - batch->segment[s].first_row);
  }
}

static uint32_t make_segments(const model_step *step, uint32_t l, bool is_last) {
  const weft_batch *batch = step->args->batch;
  weft_attention_segment *out = step->part->segments;
  uint32_t group = step->args->layout->place[step->model->first_set[l]].group, n = 0;
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    const weft_segment *from = &batch->segment[i];
    out[i] = (weft_attention_segment){
        .first_row = from->first_row,
        .n_rows = from->n_rows,
        .kv_len = from->kv_len,
        .mask = from->mask,
        .stores = from->stores,
        .table = step_arrays_table(&step->part->arrays, i, group),
        .n_old = step_arrays_old(&step->part->arrays, i, group),
    };
  }
  if (!is_last) return batch->n_segments;
  narrow_segments(step->args, out);
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    if (out[i].n_rows > 0) out[n++] = out[i];
  }
  return n;
}

/* The form in which attention leaves its result for `o` in h, which is free, where that has room. */
static weft_rows_form output_form(const model_step *step, const model_layer *layer, uint32_t cols) {
  const weft_weight *o = &layer->o;
  uint64_t room = sizeof(float) * (uint64_t)step->n_rows * step->model->hyper.n_hidden;
  weft_rows_form form = layers_form(step, WEFT_ROWS_FROM_ATTENTION, step->n_rows, 1, &o);
  if (step->model->n_shards > 1 || layer->out_gate.data != NULL) return WEFT_ROWS_F32;
  return weft_device_rows_bytes(step->part->device, form, step->n_rows, cols) <= room ? form : WEFT_ROWS_F32;
}

/* Rows as wide as the residual stream's parts. */
static void tap_of(const model_step *step, const model_layer *layer, weft_stage stage, const float *y) {
  layers_tap(step, (uint32_t)(layer - step->model->layers), stage, y, step->model->hyper.n_hidden);
}

weft_status layers_output(model_step *step, const model_layer *layer, float *y) {
  const weft_weight *o = &layer->o;
  const float *x = step->o_x;
  y = layers_own(step, y);
  weft_status status = WEFT_OK;
  if (step->model->n_shards > 1) {
    float *all = step->part->scratch.all_a;
    status = gather_columns(step, step->a, o->n_in / step->model->n_shards, all);
    x = all + (uint64_t)step->own_first * o->n_in;
  }
  weft_matmul_args args = layers_product_of(step->part, x, step->n_own, 1, &o, &y);
  args.x_form = step->o_form;
  if (status == WEFT_OK) status = layers_multiply(step, &args);
  if (status == WEFT_OK) tap_of(step, layer, WEFT_STAGE_ATTENTION, y);
  return status;
}

static weft_status attend_rows(model_step *step, uint32_t l, const weft_kv_view *view, bool is_last) {
  weft_model *model = step->model;
  model_scratch *s = &step->part->scratch;
  uint64_t cols = (uint64_t)model->hyper.n_heads * view->head_dim;
  step->o_form = is_last ? WEFT_ROWS_F32 : output_form(step, &model->layers[l], (uint32_t)cols);
  bool prepares = step->o_form != WEFT_ROWS_F32;
  step->o_x = prepares ? step->h : step->a;
  weft_attention_args args = {
      .q = s->q,
      .out = step->a,
      .prepared = prepares ? step->h : NULL,
      .prepared_form = step->o_form,
      .kv = *view,
      .own_k = s->own_k,
      .own_v = s->own_v,
      .own_first = step->args->batch->n_stored,
      .segment = step->part->segments,
      .n_segments = make_segments(step, l, is_last),
      .n_rows = step->n_rows,
      .n_heads = model->hyper.n_heads,
      .window = model->hyper.window[l],
      .scale = model->hyper.attention_scale,
      .q_stride = cols,
      .out_stride = cols,
      .scratch = s->work,
      .scratch_bytes = s->work_bytes,
      .sinks = model->layers[l].sinks,
  };
  return weft_attention(step->part->device, &args);
}

static weft_status move_rows(model_step *step, float *to, const float *from, uint64_t cols) {
  const uint32_t *row = step->args->output_row;
  uint32_t n = step->args->n_output;
  for (uint32_t i = 0, run; i < n; i += run) {
    for (run = 1; i + run < n && row[i + run] == row[i] + run;) run++;
    weft_status status =
        weft_device_copy(step->part->device, to + i * cols, from + row[i] * cols, run * cols * sizeof *to);
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}

static bool is_every_row(const weft_forward_args *args, uint32_t n_rows) {
  if (args->n_output != n_rows) return false;
  for (uint32_t i = 0; i < n_rows; i++) {
    if (args->output_row[i] != i) return false;
  }
  return true;
}

/* q is free after attention, h after the projections. */
weft_status layers_keep_output_rows(model_step *step, uint64_t cols) {
  weft_forward_args *args = step->args;
  if (is_every_row(args, step->n_rows)) return WEFT_OK;
  model_scratch *s = &step->part->scratch;
  weft_status status = step->owns_part ? layers_gather(step, step->x) : WEFT_OK;
  if (status == WEFT_OK) status = move_rows(step, s->q, step->a, cols);
  if (status == WEFT_OK) status = move_rows(step, step->h, step->x, model_row_width(step->model));
  float *x = step->x;
  step->x = step->h;
  step->h = x;
  step->o_x = step->a = s->q;
  uint32_t n_encoder = 0;
  while (n_encoder < args->n_output && args->output_row[n_encoder] < step->n_encoder) n_encoder++;
  step->n_rows = args->n_output;
  step->n_encoder = n_encoder;
  step->kept = args->output_row;
  layers_own_rows(step);
  return status;
}

bool layers_end_here(const model_step *step, uint32_t l) {
  const model_hyper *hyper = &step->model->hyper;
  for (uint32_t i = l + 1; i < hyper->n_layers; i++) {
    if (hyper->keys_of[i] == 0) return false;
  }
  return step->args->n_output == 0;
}

/* Attention's result times the sigmoid of its gate, in place. */
static weft_status gate_heads(model_step *step, const model_layer *layer) {
  const uint64_t cols = layer->out_gate.n_out;
  if (layer->out_gate.data == NULL) return WEFT_OK;
  weft_gate_args args = {.g = step->part->scratch.z,
                         .u = step->a,
                         .y = step->a,
                         .n_rows = step->n_rows,
                         .n_cols = (uint32_t)cols,
                         .g_stride = cols,
                         .u_stride = cols,
                         .y_stride = cols,
                         .activation = WEFT_SIGMOID};
  return weft_gate(step->part->device, &args);
}

weft_status layers_keys(model_step *step, uint32_t l) {
  const weft_kv_view view =
      weft_kv_store_view(step->args->kv, step->args->layout, step->model->first_set[l], step->model->shard);
  weft_status status = layers_project(step, l);
  return status == WEFT_OK ? store_keys(step, l, &view) : status;
}

weft_status layers_attention(model_step *step, uint32_t l) {
  weft_model *model = step->model;
  bool is_last = l + 1 == model->hyper.n_layers;
  weft_kv_view view = weft_kv_store_view(step->args->kv, step->args->layout, model->first_set[l], model->shard);
  weft_status status = layers_project(step, l);
  if (status == WEFT_OK) status = store_keys(step, l, &view);
  if (status != WEFT_OK) return status;
  if (layers_end_here(step, l)) {
    step->n_rows = 0; /* keys and values were all that was wanted */
    return WEFT_OK;
  }
  uint64_t cols = (uint64_t)model->hyper.n_heads * view.head_dim;
  layers_tap(step, l, WEFT_STAGE_QUERY, step->part->scratch.q, cols);
  status = attend_rows(step, l, &view, is_last);
  if (status == WEFT_OK) status = gate_heads(step, &model->layers[l]);
  return status == WEFT_OK && is_last ? layers_keep_output_rows(step, cols) : status;
}

/* ---- feed-forward ---- */

layers_mlp_args layers_mlp_of(const model_layer *layer, const float *x, weft_rows_form form, float *out,
                              uint32_t n_rows) {
  return (layers_mlp_args){.x = x,
                           .x_form = form,
                           .gate = &layer->gate,
                           .up = &layer->up,
                           .down = &layer->down,
                           .out = out,
                           .n_rows = n_rows};
}

/* act(gate x) * (up x), in scratch.g. */
static weft_status multiply_gated(model_step *step, const layers_mlp_args *args) {
  const model_scratch *s = &step->part->scratch;
  const weft_weight *const weight[2] = {args->gate, args->up};
  float *const y[2] = {s->g, s->u};
  weft_matmul_args gated = layers_product_of(step->part, args->x, args->n_rows, 2, weight, y);
  gated.x_form = args->x_form;
  gated.activation = step->model->hyper.activation;
  return layers_multiply(step, &gated);
}

weft_status layers_mlp(model_step *step, const layers_mlp_args *args) {
  weft_status status = multiply_gated(step, args);
  return status == WEFT_OK ? layers_matmul(step, step->part->scratch.g, args->n_rows, 1, &args->down, &args->out)
                           : status;
}

weft_rows_form layers_mlp_form(const model_step *step, uint32_t l) {
  const model_layer *layer = &step->model->layers[l];
  const weft_weight *in[2] = {&layer->gate, &layer->up};
  bool is_gathered = step->owns_part && !step->model->hyper.moe[l];
  return is_gathered ? WEFT_ROWS_F32 : layers_form(step, WEFT_ROWS_TO_MATMUL, step->n_own, 2, in);
}

/* Each shard computes some of gate's and up's columns, and then, from those of all, some of down's outputs. */
static weft_status dense_in_shards(model_step *step, const layers_mlp_args *args) {
  const model_scratch *s = &step->part->scratch;
  float *part = s->y;
  weft_shards_array columns = {.x = s->g, .y = s->u, .n_cols = args->gate->n_out};
  weft_status status = step->owns_part ? layers_gather(step, step->h) : WEFT_OK;
  if (status == WEFT_OK) status = multiply_gated(step, args);
  if (status == WEFT_OK) status = exchange_arrays(step, WEFT_SHARDS_COLUMNS, &columns, 1);
  if (status == WEFT_OK) status = layers_matmul(step, s->u, args->n_rows, 1, &args->down, &part);
  return status == WEFT_OK ? gather_columns(step, part, args->down->n_out, args->out) : status;
}

weft_status layers_dense(model_step *step, const model_layer *layer, weft_rows_form form, float *out) {
  layers_mlp_args mlp = layers_mlp_of(layer, step->h, form, out, step->n_rows);
  weft_status status = step->model->n_shards > 1 ? dense_in_shards(step, &mlp) : layers_mlp(step, &mlp);
  if (status == WEFT_OK) tap_of(step, layer, WEFT_STAGE_FFN, out);
  return status;
}

/* ---- experts ---- */

int32_t *layers_ids_of(const weft_model *model, const model_part *part, const model_layer *layer) {
  uint64_t own = (uint64_t)model->limits.rows_max * model->hyper.n_experts_used;
  uint32_t l = (uint32_t)(layer - model->layers);
  return part->scratch.ids + (l >= part->first_layer && l < part->end_layer ? l - part->first_layer : 0) * own;
}

weft_experts_args layers_experts_of(const weft_model *model, const model_part *part, const model_layer *layer) {
  const model_scratch *s = &part->scratch;
  return (weft_experts_args){
      .ids = layers_ids_of(model, part, layer),
      .weights = s->weights,
      .gate_up = layers_weight_of(&layer->gate_up_exps),
      .gate = layers_weight_of(&layer->gate_exps),
      .up = layers_weight_of(&layer->up_exps),
      .down = &layer->down_exps,
      .first_expert = model_first_expert(model, model->shard),
      .n_experts = model->hyper.n_experts,
      .k = model->hyper.n_experts_used,
      .x_stride = model->hyper.n_hidden,
      .y_stride = model->hyper.n_hidden,
      .activation = model->hyper.activation,
      .scratch = s->work,
      .scratch_bytes = s->work_bytes,
      .gate_bias = layer->gate_exps_bias,
      .up_bias = layer->up_exps_bias,
      .down_bias = layer->down_exps_bias,
      .limit = layer->latent.limit,
  };
}

weft_route_args layers_route_of(const weft_model *model, const model_part *part, const model_layer *layer,
                                uint32_t n_rows) {
  const model_scratch *s = &part->scratch;
  return (weft_route_args){
      .router = &layer->router,
      .logits = s->logits,
      .expert_scale = layer->expert_scale,
      .ids = layers_ids_of(model, part, layer),
      .weights = s->weights,
      .n_rows = n_rows,
      .n_experts = model->hyper.n_experts,
      .k = model->hyper.n_experts_used,
      .x_stride = model->hyper.n_hidden,
      .logits_stride = model->hyper.n_experts,
      .scratch = s->work,
      .scratch_bytes = s->work_bytes,
      .router_bias = layer->router_bias,
  };
}

/* The product has all rows, and a shard's router only those that it owns; a router with a bias, or whose scores are not
 * the product alone, is multiplied by its own op. */
bool layers_joins_router(const weft_model *model, const model_layer *layer, const weft_weight *weight) {
  return model->n_shards == 1 && model->hyper.choice.scores == 0 && layer->router_bias == NULL &&
         weight->data != NULL && weight->type == layer->router.type;
}

/* Chooses the experts of the rows that the shard owns. */
static weft_status route_rows(model_step *step, const model_layer *layer, const layers_experts_args *given) {
  const float *x = given->routed;
  if (step->model->hyper.choice.scores != 0) return layers_assign(step, layer, x);
  weft_route_args args = layers_route_of(step->model, step->part, layer, step->n_own);
  uint64_t first = step->own_first;
  if (given->with_router != NULL) {
    const weft_weight *const weight[2] = {&layer->router, given->with_router};
    float *const y[2] = {args.logits, given->with_router_out};
    weft_status status = layers_matmul(step, x, step->n_own, 2, weight, y);
    if (status != WEFT_OK) return status;
    args.router = NULL;
  }
  args.x = x + first * args.x_stride;
  args.ids += first * args.k;
  args.weights += first * args.k;
  return weft_route(step->part->device, &args);
}

weft_rows_form layers_experts_form(const model_step *step, const model_layer *layer) {
  const weft_weight *weight[3] = {layers_weight_of(&layer->gate_up_exps), layers_weight_of(&layer->gate_exps),
                                  layers_weight_of(&layer->up_exps)};
  return step->owns_part ? WEFT_ROWS_F32 : layers_form(step, WEFT_ROWS_TO_EXPERTS, step->n_rows, 3, weight);
}

static weft_status run_experts(model_step *step, const model_layer *layer, const layers_experts_args *given,
                               const layers_mlp_args *shared) {
  weft_model *model = step->model;
  weft_experts_args args = layers_experts_of(model, step->part, layer);
  args.x = given->x;
  args.x_form = given->x_form;
  args.y = given->out;
  if (shared != NULL) {
    args.shared = (weft_shared_args){.x = shared->x,
                                     .x_form = shared->x_form,
                                     .gate = shared->gate,
                                     .up = shared->up,
                                     .down = shared->down,
                                     .g = step->part->scratch.g,
                                     .u = step->part->scratch.u,
                                     .y = shared->out,
                                     .x_stride = model->hyper.n_hidden,
                                     .y_stride = model->hyper.n_hidden};
  }
  args.n_rows = step->n_rows;
  return weft_experts(step->part->device, &args);
}

/* Every shard needs the inputs and the choices of all rows for its experts. */
static weft_status gather_choices(model_step *step, const model_layer *layer, float *x) {
  const model_scratch *s = &step->part->scratch;
  uint32_t k = step->model->hyper.n_experts_used;
  const weft_shards_array arrays[3] = {
      {.x = x, .n_cols = step->model->hyper.n_hidden},
      {.x = (float *)(void *)layers_ids_of(step->model, step->part, layer), .n_cols = k},
      {.x = s->weights, .n_cols = k}};
  return exchange_arrays(step, WEFT_SHARDS_ROWS, arrays, 3);
}

weft_status layers_experts(model_step *step, const model_layer *layer, const layers_experts_args *args) {
  const layers_mlp_args *shared = args->shared;
  weft_shards_array sum = {.x = args->out, .n_cols = step->model->hyper.n_hidden};
  weft_status status = route_rows(step, layer, args);
  if (status == WEFT_OK && step->owns_part) status = gather_choices(step, layer, args->x);
  if (status == WEFT_OK && step->owns_part && shared != NULL) status = layers_mlp(step, shared);
  /* the router's product has read `routed` before the experts write `out` */
  if (status == WEFT_OK) status = run_experts(step, layer, args, step->owns_part ? NULL : shared);
  if (status == WEFT_OK && shared != NULL) tap_of(step, layer, WEFT_STAGE_FFN, shared->out);
  if (status == WEFT_OK) tap_of(step, layer, WEFT_STAGE_EXPERTS, args->out);
  if (status != WEFT_OK || step->model->n_shards == 1) return status;
  return exchange_arrays(step, step->owns_part ? WEFT_SHARDS_SUM_OWN : WEFT_SHARDS_SUM, &sum, 1);
}
