/* SPDX-License-Identifier: MIT */
/* Dispatch: which kernel multiplies a dense matrix; GEMM from f32 rows; the matmul op. takes_gemv in moe/experts.cu
 * chooses between GEMV and grouped GEMM for experts. */
#include "kernels/cuda/gemm/gemm.h"

#include <string.h>

#include "kernels/cuda/gemm/call_tiles.cuh"
#include "kernels/cuda/gemm/w8a8_dense.h"
#include "kernels/cuda/weights/int8_weights.h"
#include "kernels/cuda/set.h"
#include "kernels/parts.h"

enum {
  SPLITS_MAX = 8, /* part of the numerics (gemm_set_shape) */
  MANY_ROWS = 128 /* most rows of a job */
};

/* Counts 16 bits for each number. Int8 numbers with their scales take no more, but for rows of up to 128 inputs,
 * which the 32 bytes for each eight rows are for. */
uint64_t gemm_rows_bytes(uint32_t n_rows, uint32_t n_in) {
  return (uint64_t)cuda_ceil(n_rows, 8) * (cuda_ceil(n_in, 128) * 2048 + 32);
}

uint64_t gemm_x_bytes(uint32_t n_rows, uint32_t n_in) {
  return gemm_unscale_at(n_rows, n_in) + cuda_align(4ull * n_rows);
}

/* Splits are whole multiples of 256 inputs. */
void gemm_set_split_k(gemm_args *args, uint32_t n_splits) {
  args->split_units = 2 * cuda_ceil(cuda_ceil(args->n_units, 2), n_splits);
  args->n_splits = cuda_ceil(args->n_units, args->split_units);
}

gemm_operand gemm_operand_of(const weft_weight *weight) {
  if (weight->type == WEFT_TYPE_F32) return OPERAND_F32;
  if (w8a8_has(weight->layout)) return OPERAND_INT8;
  return packed_is_bf16(weight->type) ? OPERAND_BF16 : OPERAND_F16;
}

void gemm_set_shape(gemm_args *args, const weft_weight *weight) {
  packed_dims dims = packed_dims_of(weight->type, weight->n_in, weight->n_out);
  args->type = weight->type;
  args->values = value_table_of(weight->type);
  args->is_w8a8 = gemm_operand_of(weight) == OPERAND_INT8;
  args->n_in = weight->n_in;
  args->n_units = dims.n_units;
  args->is_tail = dims.is_tail;
  args->tile_bytes = dims.tile_bytes;
  gemm_set_split_k(args, SPLITS_MAX);
}

prologue_args gemm_prologue_of(const weft_weight *weight, uint32_t n_rows) {
  packed_dims dims = packed_dims_of(weight->type, weight->n_in, 16);
  prologue_args rows;
  memset(&rows, 0, sizeof rows);
  rows.type = weight->type;
  rows.n_rows = n_rows;
  rows.n_in = weight->n_in;
  rows.n_units = dims.n_units;
  rows.is_tail = dims.is_tail;
  rows.n_tiles = cuda_ceil(n_rows, 8);
  return rows;
}

weft_status gemm_prologue(cuda_device *d, const weft_weight *weight, const prologue_args *rows) {
  return gemm_operand_of(weight) == OPERAND_INT8 ? w8a8_prologue(d, rows) : prologue_rows(d, rows);
}

bool gemm_is_tiled(uint32_t n_rows, uint32_t n_tiles) {
  return n_rows > (n_tiles <= GEMV_TILES ? GEMV_ROWS_NARROW : GEMV_ROWS);
}

/* Codes are made operands once per job. So the size of jobs is chosen such that most experts have one job with room to
 * spare, and not two. */
uint32_t gemm_job_rows(int type, uint64_t n_rows, uint64_t n_matrices) {
  uint64_t mean = (n_rows + n_matrices - 1) / n_matrices;
  uint32_t rows = mean <= 8 ? 16 : mean <= 20 ? 24 : MANY_ROWS;
  if (type == WEFT_TYPE_F32) rows = mean <= 1 ? 1 : mean <= 14 ? 8 : 64;
  return rows;
}

bool gemm_takes_raw(int type, uint32_t n_rows, uint32_t n_in) {
  bool has_warps = n_rows == 1 || n_in >= 512; /* for each row one: a block has a warp for each split */
  return type != WEFT_TYPE_F32 && n_rows <= GEMM_RAW_ROWS && has_warps && n_in % 8 == 0 &&
         (uint64_t)n_rows * (cuda_ceil(n_in, 128) * 256 + 16) <= GEMM_RAW_BYTES;
}

/* Whether the GEMV multiplies rows in 16 bits that come tiled. */
static bool gemv_takes_tiled(const gemm_args &a) {
#ifdef WEFT_CUDA_PORTABLE
  return a.n_rows <= 32 && tiles_of(a) <= GEMV_TILES;
#else
  (void)a;
  return false;
#endif
}

weft_status gemm(cuda_device *d, const gemm_args *args) {
  if (d->lost) return WEFT_E_DEVICE;
  if (args->type == WEFT_TYPE_F32) return gemm_f32(d, args);
  bool few = args->jobs == NULL && (args->ids != NULL || !args->is_tiled);
  if (args->is_w8a8)
    return (few ? d->set->w8a8_gemv : int8_gemm_takes(args) ? d->set->int8_gemm : d->set->w8a8_gemm)(d, args);
  if (args->jobs != NULL) return d->set->gemm_grouped(d, args);
  return few || gemv_takes_tiled(*args) ? d->set->gemv(d, args) : d->set->gemm_dense(d, args);
}

bool gemm_has_gated_epilogue(const cuda_device *d, const gemm_args *args) {
  return args->is_w8a8 &&
         (int8_gemm_takes(args) ? int8_gemm_has_gated_epilogue(args) : w8a8_has_gated_epilogue(d, args));
}

/* ---- dense products from f32 rows ----------------------------------------------------------------------- */

gemm_weight gemm_weight_of(const weft_weight *w, float *y, uint64_t y_stride) {
  gemm_weight out;
  out.header = out.data = (const uint8_t *)w->data;
  out.scale = w->scale;
  out.y = y;
  out.y_stride = y_stride;
  out.n_out = w->n_out;
  out.n_tiles = cuda_ceil(w->n_out, 16);
  packed_dims dims = packed_dims_of(w->type, w->n_in, w->n_out);
  out.steps = out.data + w8a8_steps_at((uint64_t)w->n_mats * dims.n_tiles, dims.tile_bytes);
  out.int8_weights = NULL;
  out.fine_steps = NULL;
  if (w->layout == INT8_LAYOUT) {
    int8_sections place = int8_sections_of(w);
    out.int8_weights = out.data + place.int8_weights;
    out.fine_steps = (const float *)(const void *)(out.data + place.steps);
  }
  return out;
}

uint64_t gemm_from_f32_bytes(const weft_weight *weight, uint32_t n_rows) {
  return weight->type == WEFT_TYPE_F32 ? 0 : gemm_x_bytes(n_rows, weight->n_in);
}

/* gemm_is_tiled for W8A8 products, whose GEMV kernel has no room for rows with many inputs. */
static bool w8a8_is_tiled(const weft_weight *weight, uint32_t n_rows, uint32_t n_tiles, bool gated) {
  return gemm_is_tiled(n_rows, n_tiles) || !w8a8_gemv_takes(weight->type, n_rows, weight->n_in, gated);
}

/* Whether the kernel that will multiply has a fused prologue. */
static bool takes_raw(const cuda_device *d, const gemm_args *a, const float *x, uint64_t x_stride) {
  if (!gemm_is_wide(x, x_stride)) return false;
  if (a->is_w8a8) return !a->is_tiled && w8a8_gemv_reads_raw(a);
  return (a->n_rows == 1 || !gemv_is_tall(d, a)) && gemm_takes_raw(a->type, a->n_rows, a->n_in);
}

weft_status gemm_from_f32(cuda_device *d, const weft_weight *weight, const float *x, uint64_t x_stride, uint32_t n_rows,
                          float *y, uint64_t y_stride, void *scratch) {
  return gemm_from_f32_part(d, weight, 0, weight->n_out, x, x_stride, n_rows, y, y_stride, scratch);
}

weft_status gemm_from_f32_part(cuda_device *d, const weft_weight *whole, uint32_t first, uint32_t n_out, const float *x,
                               uint64_t x_stride, uint32_t n_rows, float *y, uint64_t y_stride, void *scratch) {
  if (n_out != whole->n_out && w8a8_has(whole->layout)) return WEFT_E_UNSUPPORTED;
  weft_weight part = *whole;
  const weft_weight *weight = &part;
  part.n_out = n_out;
  gemm_args a;
  memset(&a, 0, sizeof a);
  gemm_set_shape(&a, weight);
  a.weight[0] = gemm_weight_of(weight, y, y_stride);
  a.weight[0].data +=
      part.type == WEFT_TYPE_F32 ? (uint64_t)first * part.n_in * 4 : (uint64_t)first / 16 * a.tile_bytes;
  a.n_weights = 1;
  a.n_rows = n_rows;
  a.x = x;
  a.x_stride = x_stride;
  uint32_t n_tiles = a.weight[0].n_tiles;
  a.is_tiled = a.is_w8a8 ? w8a8_is_tiled(weight, n_rows, n_tiles, false) : gemm_is_tiled(n_rows, n_tiles);
  if (takes_raw(d, &a, x, x_stride)) {
    a.raw.x = x;
    a.raw.x_stride = x_stride;
  } else if (weight->type != WEFT_TYPE_F32) {
    prologue_args rows = gemm_prologue_of(weight, n_rows);
    rows.x = x;
    rows.x_stride = x_stride;
    rows.is_tiled = a.is_tiled;
    rows.out = (uint8_t *)scratch;
    rows.unscale = (float *)(void *)((uint8_t *)scratch + gemm_unscale_at(n_rows, weight->n_in));
    a.x = scratch;
    a.x_unscale = rows.unscale;
    a.x_tiles = rows.n_tiles;
    weft_status status = gemm_prologue(d, weight, &rows);
    if (status != WEFT_OK) return status;
  }
  return gemm(d, &a);
}

/* ---- the op --------------------------------------------------------------------------------------------- */

uint64_t cuda_matmul_scratch(weft_device *device, const weft_matmul_args *args) {
  (void)device;
  bool wanted[OPERAND_COUNT] = {};
  uint64_t bytes = 0;
  for (uint32_t w = 0; w < args->n_weights; w++) wanted[gemm_operand_of(args->weight[w])] = true;
  for (int operand = OPERAND_F16; operand < OPERAND_COUNT; operand++)
    if (wanted[operand]) bytes += gemm_x_bytes(args->n_rows, args->weight[0]->n_in);
  return bytes;
}

/* Whether two weights may be in one product. */
static bool goes_with(const weft_weight *a, const weft_weight *b, uint32_t n_rows) {
  bool int8_weights = a->layout == INT8_LAYOUT && n_rows >= INT8_MIN_ROWS; /* these have no type */
  return a->layout == b->layout && (a->type == b->type || int8_weights);
}

/* The arguments of one product with the weights from *w on that go together; *w moves on behind them. */
static gemm_args args_of_run(const weft_matmul_args *args, bool is_tiled, bool w8a8_tiled, uint32_t *w) {
  gemm_args a;
  memset(&a, 0, sizeof a);
  const weft_weight *first = args->weight[*w];
  gemm_set_shape(&a, first);
  a.n_rows = args->n_rows;
  a.is_tiled = a.is_w8a8 ? w8a8_tiled : is_tiled;
  for (; *w < args->n_weights && goes_with(first, args->weight[*w], args->n_rows); *w += 1)
    a.weight[a.n_weights++] = gemm_weight_of(args->weight[*w], args->y[*w], args->y_stride[*w]);
  return a;
}

/* How the rows of a matmul come: prologue done (x_form), or as act(g) * u from g in args->x and u, gate->up_at after
 * it. */
static prologue_args rows_of(const weft_matmul_args *args, const prologue_args *gate, const weft_weight *weight) {
  prologue_args rows = gemm_prologue_of(weight, args->n_rows);
  rows.x = args->x;
  rows.x_stride = args->x_stride;
  if (gate == NULL) return rows;
  rows.gated = true;
  rows.up_at = gate->up_at;
  rows.activation = gate->activation;
  return rows;
}

/* Multiplies by a run of weights and, where there is a kernel for both, by the one behind it too, which begins at *w
 * and has the same rows. */
static weft_status multiply_run(cuda_device *d, const weft_matmul_args *args, const gemm_args *a, bool is_tiled,
                                bool w8a8_tiled, uint32_t *w) {
  if (*w == args->n_weights) return gemm(d, a);
  uint32_t after = *w;
  gemm_args b = args_of_run(args, is_tiled, w8a8_tiled, &after);
  b.raw = a->raw;
  b.x = a->x;
  b.x_unscale = a->x_unscale;
  b.x_tiles = a->x_tiles;
  if (!w8a8_gemv_pairs(d, a, &b) || d->lost) return gemm(d, a);
  *w = after;
  return w8a8_gemv_pair(d, a, &b);
}

/* The products of a matmul. *gated: they were gated too, as their activation says. */
static weft_status run_products(cuda_device *d, const weft_matmul_args *args, const prologue_args *gate, bool *gated) {
  uint32_t n_in = args->weight[0]->n_in, n_tiles = 0;
  cuda_cutter cutter = {(uint8_t *)args->scratch, 0};
  void *prepared[OPERAND_COUNT] = {};
  float *unscale[OPERAND_COUNT] = {};
  *gated = false;
  if (d->lost) return WEFT_E_DEVICE;
  if (args->x_form != WEFT_ROWS_F32) {
    gemm_operand operand = args->x_form == CUDA_ROWS_W8A8 ? OPERAND_INT8 : OPERAND_F16;
    uint8_t *x = (uint8_t *)(uintptr_t)args->x; /* only read */
    prepared[operand] = x;
    unscale[operand] = (float *)(void *)(x + gemm_unscale_at(args->n_rows, n_in));
  }
  for (uint32_t w = 0; w < args->n_weights; w++) n_tiles += cuda_ceil(args->weight[w]->n_out, 16);
  bool is_tiled = gemm_is_tiled(args->n_rows, n_tiles), w8a8_tiled = false;
  for (uint32_t w = 0; w < args->n_weights; w++) /* all weights of W8A8 products use the same prepared rows */
    if (gemm_operand_of(args->weight[w]) == OPERAND_INT8)
      w8a8_tiled = w8a8_tiled || w8a8_is_tiled(args->weight[w], args->n_rows, n_tiles, args->activation != 0);
  /* Whether the kernel launched last has waited for what was launched before it, rows that came prepared among them. */
  bool is_there = d->choice != NULL && args->x_form != WEFT_ROWS_F32;
  for (uint32_t w = 0; w < args->n_weights;) {
    const weft_weight *first = args->weight[w];
    gemm_args a = args_of_run(args, is_tiled, w8a8_tiled, &w);
    gemm_operand operand = gemm_operand_of(first);
    const bool is_narrow = w8a8_is_narrow(d, &a);
    a.activation = args->activation;
    weft_status status = WEFT_OK;
    if (operand == OPERAND_F32) {
      a.x = args->x;
      a.x_stride = args->x_stride;
    } else if (takes_raw(d, &a, args->x, args->x_stride)) {
      a.raw.x = args->x;
      a.raw.x_stride = args->x_stride;
      a.raw.is_there = is_there;
    } else {
      if (prepared[operand] == NULL) {
        prologue_args rows = rows_of(args, gate, first);
        rows.is_tiled = a.is_tiled;
        prepared[operand] = rows.out = (uint8_t *)cuda_cut(&cutter, gemm_rows_bytes(args->n_rows, n_in));
        unscale[operand] = rows.unscale = (float *)cuda_cut(&cutter, 4ull * args->n_rows);
        status = gemm_prologue(d, first, &rows);
        is_there = false;
      }
      a.raw.is_there = is_there && is_narrow;
      a.x = prepared[operand];
      a.x_unscale = unscale[operand];
      a.x_tiles = cuda_ceil(args->n_rows, 8);
    }
    a.gated = *gated = args->activation != 0 && a.n_weights == 2 && operand != OPERAND_F32 &&
                       (!a.is_tiled || gemm_has_gated_epilogue(d, &a));
    is_there = a.raw.x != NULL || is_narrow; /* both wait for their rows before they let another start */
    if (status == WEFT_OK) status = multiply_run(d, args, &a, is_tiled, w8a8_tiled, &w);
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

weft_status gemm_mlp(weft_device *device, const weft_matmul_args *in, const weft_matmul_args *out) {
  cuda_device *d = cuda_of(device);
  bool gated = false, has_rows = out->n_rows > GEMM_RAW_ROWS && out->weight[0]->type != WEFT_TYPE_F32;
  weft_status status = run_products(d, in, NULL, &gated);
  if (status == WEFT_OK && !gated && !has_rows) status = gate_products(device, in);
  if (status != WEFT_OK || gated || !has_rows) return status == WEFT_OK ? cuda_matmul(device, out) : status;
  prologue_args gate;
  memset(&gate, 0, sizeof gate);
  gate.up_at = (int64_t)((intptr_t)in->y[1] - (intptr_t)in->y[0]) / (int64_t)sizeof(float);
  gate.activation = in->activation;
  return run_products(d, out, &gate, &gated);
}
