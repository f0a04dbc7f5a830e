/* SPDX-License-Identifier: MIT */
/* The choice of the kernel that multiplies a dense matrix, dense products from f32 rows, and the matmul op. is_few in
 * experts.cu chooses the kernel that multiplies experts. */
#include "kernels/cuda/multiply.h"

#include <string.h>

#include "kernels/cuda/eight.h"
#include "kernels/cuda/integers.h"
#include "kernels/cuda/experts.h"
#include "kernels/parts.h"

enum {
  SEGMENTS_MAX = 8,     /* part of the numerics (multiply_shape) */
  FEW_ROWS = 8,         /* most rows for the kernel for few rows, */
  FEW_ROWS_NARROW = 16, /* and with at most FEW_TILES row tiles, which would give the other kernel too few blocks */
  FEW_TILES = 1024,
  MANY_ROWS = 128 /* most rows of a job */
};

/* Counts 16 bits for each number. Numbers of 8 bits with their scales take no more, but for rows of up to 128 inputs,
 * which the 32 bytes for each eight rows are for. */
uint64_t multiply_rows_bytes(uint32_t n_rows, uint32_t n_in) {
  return (uint64_t)cuda_ceil(n_rows, 8) * (cuda_ceil(n_in, 128) * 2048 + 32);
}

uint64_t multiply_x_bytes(uint32_t n_rows, uint32_t n_in) {
  return multiply_back_at(n_rows, n_in) + cuda_align(4ull * n_rows);
}

/* Segments are whole multiples of 256 inputs. */
void multiply_cut(multiply_args *args, uint32_t n_segments) {
  args->segment_units = 2 * cuda_ceil(cuda_ceil(args->n_units, 2), n_segments);
  args->n_segments = cuda_ceil(args->n_units, args->segment_units);
}

multiply_form multiply_form_of(const weft_weight *weight) {
  if (weight->type == WEFT_TYPE_F32) return FORM_F32;
  if (eight_has(weight->layout)) return FORM_EIGHT;
  return form_is_bf16(weight->type) ? FORM_BF16 : FORM_F16;
}

void multiply_shape(multiply_args *args, const weft_weight *weight) {
  form_cut cut = form_cut_of(weight->type, weight->n_in, weight->n_out);
  args->type = weight->type;
  args->values = value_table_of(weight->type);
  args->is_eight = multiply_form_of(weight) == FORM_EIGHT;
  args->n_in = weight->n_in;
  args->n_units = cut.n_units;
  args->is_tail = cut.is_tail;
  args->tile_bytes = cut.tile_bytes;
  multiply_cut(args, SEGMENTS_MAX);
}

prepare_args multiply_rows_of(const weft_weight *weight, uint32_t n_rows) {
  form_cut cut = form_cut_of(weight->type, weight->n_in, 16);
  prepare_args rows;
  memset(&rows, 0, sizeof rows);
  rows.type = weight->type;
  rows.n_rows = n_rows;
  rows.n_in = weight->n_in;
  rows.n_units = cut.n_units;
  rows.is_tail = cut.is_tail;
  rows.n_tiles = cuda_ceil(n_rows, 8);
  return rows;
}

weft_status multiply_prepare(cuda_device *d, const weft_weight *weight, const prepare_args *rows) {
  return multiply_form_of(weight) == FORM_EIGHT ? eight_prepare(d, rows) : prepare_rows(d, rows);
}

bool multiply_as_matrices(uint32_t n_rows, uint32_t n_tiles) {
  return n_rows > (n_tiles <= FEW_TILES ? FEW_ROWS_NARROW : FEW_ROWS);
}

/* Codes are made operands once per job. So the size of jobs is chosen such that most experts have one job with room to
 * spare, and not two. */
uint32_t multiply_job_rows(int type, uint64_t n_rows, uint64_t n_matrices) {
  uint64_t mean = (n_rows + n_matrices - 1) / n_matrices;
  uint32_t rows = mean <= 8 ? 16 : mean <= 20 ? 24 : MANY_ROWS;
  if (type == WEFT_TYPE_F32) rows = mean <= 1 ? 1 : mean <= 14 ? 8 : 64;
  return rows;
}

bool multiply_takes_raw(int type, uint32_t n_rows, uint32_t n_in) {
  bool has_warps = n_rows == 1 || n_in >= 512; /* for each row one: a block has a warp for each segment */
  return type != WEFT_TYPE_F32 && n_rows <= MULTIPLY_RAW_ROWS && has_warps && n_in % 8 == 0 &&
         (uint64_t)n_rows * (cuda_ceil(n_in, 128) * 256 + 16) <= MULTIPLY_RAW_BYTES;
}

weft_status multiply(cuda_device *d, const multiply_args *args) {
  if (d->lost) return WEFT_E_DEVICE;
  if (args->type == WEFT_TYPE_F32) return multiply_f32(d, args);
  bool few = args->jobs == NULL && (args->ids != NULL || !args->as_matrices);
  if (args->is_eight)
    return few ? eight_few(d, args) : integers_take(args) ? integers_multiply(d, args) : eight_multiply(d, args);
  if (args->jobs != NULL) return multiply_grouped(d, args);
  return few ? multiply_few(d, args) : multiply_many(d, args);
}

bool multiply_gates(const cuda_device *d, const multiply_args *args) {
  return args->is_eight && (integers_take(args) ? integers_gate(args) : eight_gates(d, args));
}

weft_status cuda_multiply_setup(cuda_device *d) {
  weft_status status = multiply_few_setup(d);
  if (status == WEFT_OK) status = experts_in_setup(d);
  if (status == WEFT_OK) status = experts_few_setup(d);
  if (status == WEFT_OK) status = multiply_grouped_setup(d);
  if (status == WEFT_OK) status = multiply_many_setup(d);
  if (status != WEFT_OK || !d->products_8) return status;
  status = eight_setup(d);
  if (status == WEFT_OK) status = integers_setup(d);
  return status == WEFT_OK ? eight_few_setup(d) : status;
}

/* ---- dense products from f32 rows ----------------------------------------------------------------------- */

multiply_weight multiply_weight_of(const weft_weight *w, float *y, uint64_t y_stride) {
  multiply_weight out;
  out.data = (const uint8_t *)w->data;
  out.scale = w->scale;
  out.y = y;
  out.y_stride = y_stride;
  out.n_out = w->n_out;
  out.n_tiles = cuda_ceil(w->n_out, 16);
  form_cut cut = form_cut_of(w->type, w->n_in, w->n_out);
  out.steps = out.data + eight_steps_at((uint64_t)w->n_mats * cut.n_tiles, cut.tile_bytes);
  out.integers = NULL;
  out.fine_steps = NULL;
  if (w->layout == INTEGERS_LAYOUT) {
    integers_place place = integers_place_of(w);
    out.integers = out.data + place.integers;
    out.fine_steps = (const float *)(const void *)(out.data + place.steps);
  }
  return out;
}

uint64_t multiply_dense_bytes(const weft_weight *weight, uint32_t n_rows) {
  return weight->type == WEFT_TYPE_F32 ? 0 : multiply_x_bytes(n_rows, weight->n_in);
}

/* multiply_as_matrices for products of 8 bits, whose kernel for few rows has no room for rows with many inputs. */
static bool eight_as_matrices(const weft_weight *weight, uint32_t n_rows, uint32_t n_tiles, bool gated) {
  return multiply_as_matrices(n_rows, n_tiles) || !eight_few_takes(weight->type, n_rows, weight->n_in, gated);
}

/* Whether the kernel that will multiply prepares its rows itself. */
static bool takes_raw(const cuda_device *d, const multiply_args *a, const float *x, uint64_t x_stride) {
  if (a->is_eight) return a->n_rows == 1 && !a->as_matrices;
  return (a->n_rows == 1 || !multiply_is_tall(d, a)) && multiply_takes_raw(a->type, a->n_rows, a->n_in) &&
         multiply_is_wide(x, x_stride);
}

weft_status multiply_dense(cuda_device *d, const weft_weight *weight, const float *x, uint64_t x_stride,
                           uint32_t n_rows, float *y, uint64_t y_stride, void *scratch) {
  multiply_args a;
  memset(&a, 0, sizeof a);
  multiply_shape(&a, weight);
  a.weight[0] = multiply_weight_of(weight, y, y_stride);
  a.n_weights = 1;
  a.n_rows = n_rows;
  a.x = x;
  a.x_stride = x_stride;
  uint32_t n_tiles = a.weight[0].n_tiles;
  a.as_matrices =
      a.is_eight ? eight_as_matrices(weight, n_rows, n_tiles, false) : multiply_as_matrices(n_rows, n_tiles);
  if (takes_raw(d, &a, x, x_stride)) {
    a.raw.x = x;
    a.raw.x_stride = x_stride;
  } else if (weight->type != WEFT_TYPE_F32) {
    prepare_args rows = multiply_rows_of(weight, n_rows);
    rows.x = x;
    rows.x_stride = x_stride;
    rows.as_matrices = a.as_matrices;
    rows.out = (uint8_t *)scratch;
    rows.back = (float *)(void *)((uint8_t *)scratch + multiply_back_at(n_rows, weight->n_in));
    a.x = scratch;
    a.x_back = rows.back;
    a.x_tiles = rows.n_tiles;
    weft_status status = multiply_prepare(d, weight, &rows);
    if (status != WEFT_OK) return status;
  }
  return multiply(d, &a);
}

/* ---- the op --------------------------------------------------------------------------------------------- */

uint64_t cuda_matmul_scratch(weft_device *device, const weft_matmul_args *args) {
  (void)device;
  bool wanted[FORM_COUNT] = {};
  uint64_t bytes = 0;
  for (uint32_t w = 0; w < args->n_weights; w++) wanted[multiply_form_of(args->weight[w])] = true;
  for (int form = FORM_F16; form < FORM_COUNT; form++)
    if (wanted[form]) bytes += multiply_x_bytes(args->n_rows, args->weight[0]->n_in);
  return bytes;
}

/* Whether two weights may be in one product. */
static bool goes_with(const weft_weight *a, const weft_weight *b, uint32_t n_rows) {
  bool integers = a->layout == INTEGERS_LAYOUT && n_rows >= INTEGERS_LEAST_ROWS; /* these have no type */
  return a->layout == b->layout && (a->type == b->type || integers);
}

/* The arguments of one product with the weights from *w on that go together; *w moves on behind them. */
static multiply_args args_of_run(const weft_matmul_args *args, bool as_matrices, bool eight_too, uint32_t *w) {
  multiply_args a;
  memset(&a, 0, sizeof a);
  const weft_weight *first = args->weight[*w];
  multiply_shape(&a, first);
  a.n_rows = args->n_rows;
  a.as_matrices = a.is_eight ? eight_too : as_matrices;
  for (; *w < args->n_weights && goes_with(first, args->weight[*w], args->n_rows); *w += 1)
    a.weight[a.n_weights++] = multiply_weight_of(args->weight[*w], args->y[*w], args->y_stride[*w]);
  return a;
}

/* How the rows of a matmul come: prepared (x_form), or as act(g) * u from g in args->x and u, gate->up_at after it. */
static prepare_args rows_of(const weft_matmul_args *args, const prepare_args *gate, const weft_weight *weight) {
  prepare_args rows = multiply_rows_of(weight, args->n_rows);
  rows.x = args->x;
  rows.x_stride = args->x_stride;
  if (gate == NULL) return rows;
  rows.gated = true;
  rows.up_at = gate->up_at;
  rows.activation = gate->activation;
  return rows;
}

/* The products of a matmul. *gated: they were gated too, as their activation says. */
static weft_status run_products(cuda_device *d, const weft_matmul_args *args, const prepare_args *gate, bool *gated) {
  uint32_t n_in = args->weight[0]->n_in, n_tiles = 0;
  cuda_cutter cutter = {(uint8_t *)args->scratch, 0};
  void *prepared[FORM_COUNT] = {};
  float *back[FORM_COUNT] = {};
  *gated = false;
  if (d->lost) return WEFT_E_DEVICE;
  if (args->x_form != WEFT_ROWS_F32) {
    multiply_form form = args->x_form == WEFT_ROWS_EIGHT ? FORM_EIGHT : FORM_F16;
    uint8_t *x = (uint8_t *)(uintptr_t)args->x; /* only read */
    prepared[form] = x;
    back[form] = (float *)(void *)(x + multiply_back_at(args->n_rows, n_in));
  }
  for (uint32_t w = 0; w < args->n_weights; w++) n_tiles += cuda_ceil(args->weight[w]->n_out, 16);
  bool as_matrices = multiply_as_matrices(args->n_rows, n_tiles), eight_too = false;
  for (uint32_t w = 0; w < args->n_weights; w++) /* all weights of 8-bit products use the same prepared rows */
    if (multiply_form_of(args->weight[w]) == FORM_EIGHT)
      eight_too = eight_too || eight_as_matrices(args->weight[w], args->n_rows, n_tiles, args->activation != 0);
  bool is_there = false; /* the rows, for the next kernel */
  for (uint32_t w = 0; w < args->n_weights;) {
    const weft_weight *first = args->weight[w];
    multiply_args a = args_of_run(args, as_matrices, eight_too, &w);
    multiply_form form = multiply_form_of(first);
    weft_status status = WEFT_OK;
    if (form == FORM_F32) {
      a.x = args->x;
      a.x_stride = args->x_stride;
    } else if (takes_raw(d, &a, args->x, args->x_stride)) {
      a.raw.x = args->x;
      a.raw.x_stride = args->x_stride;
      a.raw.is_there = is_there;
    } else {
      if (prepared[form] == NULL) {
        prepare_args rows = rows_of(args, gate, first);
        rows.as_matrices = a.as_matrices;
        prepared[form] = rows.out = (uint8_t *)cuda_cut(&cutter, multiply_rows_bytes(args->n_rows, n_in));
        back[form] = rows.back = (float *)cuda_cut(&cutter, 4ull * args->n_rows);
        status = multiply_prepare(d, first, &rows);
      }
      a.x = prepared[form];
      a.x_back = back[form];
      a.x_tiles = cuda_ceil(args->n_rows, 8);
    }
    a.activation = args->activation;
    a.gated = *gated =
        args->activation != 0 && a.n_weights == 2 && form != FORM_F32 && (!a.as_matrices || multiply_gates(d, &a));
    is_there = a.raw.x != NULL && !a.is_eight; /* multiply_few waits for its rows before it lets another start */
    if (status == WEFT_OK) status = multiply(d, &a);
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}

static weft_status gate_products(weft_device *device, const weft_matmul_args *args) {
  weft_gate_args gate = parts_matmul_gate(args);
  return cuda_gate(device, &gate);
}

weft_status cuda_matmul(weft_device *device, const weft_matmul_args *args) {
  bool gated = false;
  weft_status status = run_products(cuda_of(device), args, NULL, &gated);
  return status == WEFT_OK && args->activation != 0 && !gated ? gate_products(device, args) : status;
}

weft_status multiply_mlp(weft_device *device, const weft_matmul_args *in, const weft_matmul_args *out) {
  cuda_device *d = cuda_of(device);
  bool gated = false, has_rows = out->n_rows > MULTIPLY_RAW_ROWS && out->weight[0]->type != WEFT_TYPE_F32;
  weft_status status = run_products(d, in, NULL, &gated);
  if (status == WEFT_OK && !gated && !has_rows) status = gate_products(device, in);
  if (status != WEFT_OK || gated || !has_rows) return status == WEFT_OK ? cuda_matmul(device, out) : status;
  prepare_args gate;
  memset(&gate, 0, sizeof gate);
  gate.up_at = (int64_t)((intptr_t)in->y[1] - (intptr_t)in->y[0]) / (int64_t)sizeof(float);
  gate.activation = in->activation;
  return run_products(d, out, &gate, &gated);
}
