/* SPDX-License-Identifier: MIT */
/* Experts in host memory on a real card: the same bits as with all of them on the card, call by call and in graphs.
 *
 * 1 and 40 rows fetch the chosen experts alone, 200 rows and more whole weights, unless many experts have places on the
 * card. Sizes make a wait that is missing visible every time. A copy of one weight takes milliseconds, and a product of
 * 200 rows begins microseconds after its call: without the wait for its copy it reads what was in the slot before.
 * Products of many rows, several of them with one weight, take longer than the copies of all slots: a copy that does
 * not wait for them writes over the weight that the later ones still read. A third device has a cache of experts, whose
 * places are exchanged while it runs; then gathers, whole copies and products read what was exchanged; in 8 bits it
 * multiplies codes, and the card that has all experts integers of them, and the processor computes some of what has no
 * place (kernels/cuda/moe/host_products.cu), in two pairs of types whose rows lie in its two orders.
 * kernels/expert_slots.h says what waits for what, and unit/kernels_expert_slots shows the same without a card;
 * bench/device.sh runs this program also on modules that lack one of the waits, where it must fail.
 *
 * Ends with code 77, skipped, where there is no card. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/host_experts.h"
#include "kernels/ops.h"

enum { SKIPPED = 77, LAYERS = 5, EXPERTS = 32, K = 8, N_IN = 2816, MANY = 8192, TIMES = 12 };

typedef struct experts_shape {
  weft_type in, down; /* of gate and up, and of down */
  uint32_t n_layers, n_ff;
} experts_shape;
static experts_shape shape = {WEFT_TYPE_Q8_0, WEFT_TYPE_Q8_0, LAYERS, 704};

typedef struct rig {
  weft_device *device;
  weft_weight gate_up[LAYERS], down[LAYERS];
  float *x, *weights, *y[LAYERS];
  int32_t *ids;
  void *scratch;
  uint64_t scratch_bytes;
} rig;

static void need(bool holds, const char *what, const char *text) {
  if (holds) return;
  (void)printf("FAILED: %s: %s\n", what, text);
  exit(1);
}

static void ok(weft_status status, const char *what) {
  need(status == WEFT_OK, what, weft_status_text(status));
}

/* ---- numbers -------------------------------------------------------------------------------------------- */

/* Blocks with a scale of about 2^-10, and codes; another layer has other codes everywhere. */
static void fill_weight(weft_type type, uint8_t *bytes, uint64_t n_bytes, uint32_t layer) {
  const uint32_t n_block = weft_type_find((int32_t)type)->n_bytes, n_scales = type == WEFT_TYPE_Q4_K ? 2 : 1;
  uint32_t state = 12345u + layer;
  for (uint64_t at = 0; at < n_bytes; at += n_block) {
    for (uint32_t i = 0; i < n_block; i++) bytes[at + i] = (uint8_t)((state = state * 1664525u + 1013904223u) >> 24);
    for (uint32_t i = 0; i < n_scales; i++) {
      bytes[at + 2 * i] = (uint8_t)(layer * 16);
      bytes[at + 2 * i + 1] = 0x14;
    }
  }
}

static weft_weight place(weft_device *device, weft_type type, uint32_t n_out, uint32_t n_in, uint32_t layer) {
  weft_weight w = {.type = type, .n_in = n_in, .n_out = n_out, .n_mats = EXPERTS};
  uint64_t n_bytes = (uint64_t)EXPERTS * n_out * weft_type_row_bytes(w.type, n_in);
  uint8_t *bytes = malloc(n_bytes);
  weft_error error = {{0}};
  need(bytes != NULL, "memory", "a weight");
  fill_weight(type, bytes, n_bytes, layer);
  weft_status status = weft_device_weight(device, &w, bytes, WEFT_USE_EXPERTS, &error);
  need(status == WEFT_OK, "placing a weight", error.text);
  free(bytes);
  return w;
}

static void *put(weft_device *device, const void *values, uint64_t n_bytes) {
  void *memory = NULL;
  ok(weft_device_alloc(device, n_bytes, &memory), "memory of the card");
  ok(weft_device_upload(device, memory, values, n_bytes), "an upload");
  return memory;
}

/* ---- a model of experts alone ------------------------------------------------------------------------------ */

static weft_experts_args args_of(const rig *r, uint32_t layer, uint32_t n_rows) {
  return (weft_experts_args){.x = r->x,
                             .ids = r->ids,
                             .weights = r->weights,
                             .gate_up = &r->gate_up[layer],
                             .down = &r->down[layer],
                             .y = r->y[layer],
                             .n_rows = n_rows,
                             .k = K,
                             .x_stride = N_IN,
                             .y_stride = N_IN,
                             .activation = WEFT_GELU_TANH,
                             .scratch = r->scratch,
                             .scratch_bytes = r->scratch_bytes};
}

static void open_rig(rig *r, weft_device *device) {
  float *x = malloc((uint64_t)MANY * N_IN * sizeof *x), weights[MANY * K];
  int32_t ids[MANY * K];
  need(x != NULL, "memory", "rows");
  for (uint64_t i = 0; i < (uint64_t)MANY * N_IN; i++) x[i] = (float)((i * 2654435761u >> 7) % 2001) / 1000.0f - 1.0f;
  for (uint32_t i = 0; i < MANY * K; i++) {
    ids[i] = (int32_t)((i / K * 5 + i % K * 3) % EXPERTS); /* different ones in a row: 3 K is less than EXPERTS */
    weights[i] = 1.0f / (float)(1 + i % K);
  }
  *r = (rig){.device = device};
  r->x = put(device, x, (uint64_t)MANY * N_IN * sizeof *x);
  r->ids = put(device, ids, sizeof ids);
  r->weights = put(device, weights, sizeof weights);
  for (uint32_t l = 0; l < shape.n_layers; l++) {
    r->y[l] = put(device, x, (uint64_t)MANY * N_IN * sizeof *x);
    r->gate_up[l] = place(device, shape.in, 2 * shape.n_ff, N_IN, l);
    r->down[l] = place(device, shape.down, N_IN, shape.n_ff, shape.n_layers + l);
  }
  free(x);
  static const uint32_t n_rows[] = {1, 40, 200, MANY};
  for (uint32_t i = 0; i < 4; i++) {
    weft_experts_args a = args_of(r, 0, n_rows[i]);
    uint64_t n = weft_experts_scratch(device, &a);
    r->scratch_bytes = n > r->scratch_bytes ? n : r->scratch_bytes;
  }
  ok(weft_device_alloc(device, r->scratch_bytes, &r->scratch), "scratch");
  ok(weft_device_sync(device), "the beginning");
}

static weft_status enqueue(const rig *r, uint32_t n_rows) {
  weft_status status = WEFT_OK;
  for (uint32_t l = 0; l < shape.n_layers && status == WEFT_OK; l++) {
    weft_experts_args a = args_of(r, l, n_rows);
    status = weft_device_zero(r->device, r->y[l], (uint64_t)n_rows * N_IN * sizeof(float));
    for (uint32_t i = 0; i < (n_rows == MANY ? TIMES : 1) && status == WEFT_OK; i++)
      status = weft_experts(r->device, &a);
  }
  return status;
}

/* The outputs of all layers, one after the other. */
static float *run(const rig *r, uint32_t n_rows) {
  weft_status status;
  uint64_t n = (uint64_t)n_rows * N_IN;
  float *y = malloc(shape.n_layers * n * sizeof *y);
  need(y != NULL, "memory", "outputs");
  weft_device_graph_begin(r->device, n_rows, NULL);
  do status = enqueue(r, n_rows);
  while (weft_device_graph_end(r->device, &status));
  ok(status, "the step");
  for (uint32_t l = 0; l < shape.n_layers; l++)
    ok(weft_device_download(r->device, y + l * n, r->y[l], n * sizeof *y), "a download");
  return y;
}

static void close_rig(rig *r) {
  for (uint32_t l = 0; l < shape.n_layers; l++) {
    weft_device_weight_free(r->device, &r->gate_up[l]);
    weft_device_weight_free(r->device, &r->down[l]);
    weft_device_free(r->device, r->y[l]);
  }
  weft_device_free(r->device, r->x);
  weft_device_free(r->device, r->ids);
  weft_device_free(r->device, r->weights);
  weft_device_free(r->device, r->scratch);
  weft_device_close(r->device);
}

static const char *cuda_set; /* from an argument "set=NAME" */

static weft_device *open_card(uint64_t weights_bytes_max, uint32_t products) {
  const weft_device_config config = {
      .backend = "cuda", .isa = cuda_set, .weights_bytes_max = weights_bytes_max, .products = products};
  weft_device *device = NULL;
  weft_error error = {{0}};
  if (weft_device_open(&config, &device, &error) == WEFT_OK) return device;
  (void)printf("skipped: %s\n", error.text);
  return NULL;
}

static void compare(const float *wanted, const float *got, uint64_t n, uint32_t n_rows, const char *how) {
  for (uint64_t i = 0; i < n; i++) {
    if (memcmp(&wanted[i], &got[i], sizeof *got) == 0) continue;
    (void)printf("FAILED: %u rows, %s: layer %llu gives %g where experts on the card give %g\n", n_rows, how,
                 (unsigned long long)(i / ((uint64_t)n_rows * N_IN)), (double)got[i], (double)wanted[i]);
    exit(1);
  }
}

/* All numbers of rows in turn, several times each, against a device that has all experts. */
static void run_all(const rig *on_card, const rig *streamed, uint32_t n_turns) {
  static const char *const ways[] = {"call by call", "captured as a graph", "launched again", "and again"};
  /* many first: call by call a missing wait is seen in the numbers */
  static const uint32_t n_rows[] = {MANY, 200, 1, 40};
  for (uint32_t i = 0; i < sizeof n_rows / sizeof *n_rows * n_turns; i++) {
    uint32_t n_own = n_rows[i % 4];
    uint64_t n = (uint64_t)shape.n_layers * n_own * N_IN;
    if (n_own == MANY && i > 0) continue; /* once is long enough */
    float *wanted = run(on_card, n_own);
    for (uint32_t w = 0; w < sizeof ways / sizeof *ways; w++) {
      float *got = run(streamed, n_own);
      compare(wanted, got, n, n_own, ways[w]);
      free(got);
    }
    free(wanted);
  }
  weft_graph_counters graphs = weft_device_graph_counters(streamed->device);
  need(graphs.launches >= 9, "graphs", "they were not launched");
  weft_weights_report w = weft_device_weights(streamed->device);
  weft_experts_report e = weft_device_experts(streamed->device);
  (void)printf(
      "%llu MiB of experts in host memory, %llu of them cached: the same bits, %llu graphs launched; %llu of %llu "
      "tokens went to cached experts\n",
      (unsigned long long)(w.n_bytes_host >> 20), (unsigned long long)(e.n_bytes_cached >> 20),
      (unsigned long long)graphs.launches, (unsigned long long)e.n_tokens_cached, (unsigned long long)e.n_tokens);
}

/* A device whose cache has places for n_mib of the experts. */
static void run_cached(const rig *on_card, uint32_t products, uint64_t n_mib, uint32_t n_turns) {
  static rig cached;
  weft_device *device = open_card(n_mib << 20, products);
  const uint64_t expert =
      2 * shape.n_ff * weft_type_row_bytes(shape.in, N_IN) + N_IN * weft_type_row_bytes(shape.down, shape.n_ff);
  weft_device_expect_experts(device, expert * shape.n_layers * EXPERTS);
  open_rig(&cached, device);
  weft_weights_report placed = weft_device_weights(device);
  need(placed.n_bytes_host > 0, "a device with a cache", "no experts lie in host memory");
  for (uint32_t i = 0; i < 100; i++) free(run(&cached, 1)); /* one row's experts come into the cache */
  run_all(on_card, &cached, n_turns);
  weft_experts_report e = weft_device_experts(device);
  need(e.n_bytes_cached >> 20 > n_mib / 4, "a device with a cache", "its places are few");
  need(e.n_tokens_cached > 0 && e.n_tokens_cached < e.n_tokens, "a device with a cache", "it was not used");
  need(e.n_exchanged > 0, "a device with a cache", "no expert came into it");
  (void)printf("%u threads computed experts for %llu tokens\n", e.n_threads, (unsigned long long)e.n_tokens_computed);
  need(e.n_threads > 0 || e.n_tokens_computed == 0, "the processor's share", "nobody is there to compute it");
  need(e.n_threads == 0 || products == 8, "the processor's share", "16 bits are not its");
  close_rig(&cached);
}

/* Products of 8 bits: from integers, where the set has them, and from codes that crossed. */
static int check_eight(void) {
  static rig on_card;
  weft_device *device = open_card(0, 8);
  need(weft_device_get_info(device)->products == 8, "products of 8 bits", "there are none");
  (void)weft_device_keep_integers(device, true);
  open_rig(&on_card, device);
  run_cached(&on_card, 8, 430, 1); /* the processor computes some, where it has cores enough */
  close_rig(&on_card);
  shape = (experts_shape){WEFT_TYPE_Q4_K, WEFT_TYPE_Q5_0, LAYERS, 704};
  open_rig(&on_card, open_card(0, 8));
  run_cached(&on_card, 8, 250, 1);
  close_rig(&on_card);
  shape = (experts_shape){WEFT_TYPE_Q8_0, WEFT_TYPE_Q8_0, 1, 4096}; /* so large that few rows have a share too */
  open_rig(&on_card, open_card(0, 8));
  run_cached(&on_card, 8, 700, 1);
  close_rig(&on_card);
  return 0;
}

int main(int argc, char **argv) {
  static rig on_card, streamed;
  weft_log_set_level(WEFT_LOG_ERROR);
  bool eight_alone = false; /* the argument "eight": products of 8 bits alone */
  for (int i = 1; i < argc; i++) {
    if (strncmp(argv[i], "set=", 4) == 0) cuda_set = argv[i] + 4;
    eight_alone = eight_alone || strcmp(argv[i], "eight") == 0;
  }
  weft_device *device = open_card(0, 16);
  if (device == NULL) return SKIPPED;
  if (eight_alone) {
    weft_device_close(device);
    return check_eight();
  }
  open_rig(&on_card, device);
  open_rig(&streamed, open_card(2 << 20, 16)); /* less than one weight */
  need(weft_device_weights(on_card.device).n_bytes_host == 0, "the first device", "experts lie in host memory");
  need(weft_device_weights(streamed.device).n_bytes == 0, "the second device", "experts lie on the card");
  run_all(&on_card, &streamed, 1);
  close_rig(&streamed);
  run_cached(&on_card, 16, 400, 2); /* fetches the chosen experts for any number of rows */
  run_cached(&on_card, 16, 200, 1); /* whole weights for many */
  close_rig(&on_card);
  return check_eight();
}
