/* SPDX-License-Identifier: MIT */
/* weft bench kernels [WORD...]: products, experts and the head on the cpu device, one line per case; with words only the
 * cases that hold each of them in their name or type (`types`: every stored type; `types IQ2`: some). --cpu-time
 * measures processor time per thread in place of the clock: for a machine that others use too.
 *
 * A floor is the larger of bytes / memory rate and products / arithmetic rate. The memory rate is
 * that of reading a large buffer with as many threads; the arithmetic rate is the best that a
 * product reaches here whose weights stay in the cache, so it says what loading, packing and
 * waiting cost, not what the instructions could do. Weights rotate through more copies than the
 * caches hold, as the layers of a model do. */
#include "bench/speed/bench.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "bench/inside.h"

enum {
  HIDDEN = 1024,
  EXPERTS = 64,
  TOP = 8,
  EXPERT_WIDTH = 256,
  VOCAB = 32768,
  COPIES_BYTES = 96 << 20,   /* of rotating weights */
  COPIES_PRODUCTS = 1 << 30, /* of one round over them: with many rows the weights need not come from memory */
  COPIES_MAX = 256,
  ROWS_MAX = 512,
  REPEATS = 7,
  THREADS_MAX = 256,
  CASES_MAX = 256
};

typedef enum work { WORK_MATMUL, WORK_EXPERTS, WORK_STATS, WORK_SOFT } work;

typedef struct kernel_case {
  const char *name;
  work work;
  weft_type type;
  uint32_t n_rows, n_in, n_out;
} kernel_case;

static const kernel_case cases[] = {
    {"product 1024 -> 2048", WORK_MATMUL, WEFT_TYPE_Q4_K, 1, HIDDEN, 2048},
    {"product 1024 -> 2048", WORK_MATMUL, WEFT_TYPE_Q4_K, 16, HIDDEN, 2048},
    {"product 1024 -> 2048", WORK_MATMUL, WEFT_TYPE_Q4_K, 512, HIDDEN, 2048},
    {"product 1024 -> 2048", WORK_MATMUL, WEFT_TYPE_Q6_K, 1, HIDDEN, 2048},
    {"product 1024 -> 2048", WORK_MATMUL, WEFT_TYPE_Q6_K, 512, HIDDEN, 2048},
    {"product 1024 -> 2048", WORK_MATMUL, WEFT_TYPE_Q8_0, 1, HIDDEN, 2048},
    {"product 1024 -> 2048", WORK_MATMUL, WEFT_TYPE_Q8_0, 512, HIDDEN, 2048},
    {"product 1024 -> 2048", WORK_MATMUL, WEFT_TYPE_BF16, 1, HIDDEN, 2048},
    {"product 1024 -> 2048", WORK_MATMUL, WEFT_TYPE_BF16, 512, HIDDEN, 2048},
    {"product 1024 -> 2048", WORK_MATMUL, WEFT_TYPE_F32, 512, HIDDEN, 2048},
    {"experts 64 x 256, top 8", WORK_EXPERTS, WEFT_TYPE_Q4_K, 1, HIDDEN, HIDDEN},
    {"experts 64 x 256, top 8", WORK_EXPERTS, WEFT_TYPE_Q4_K, 4, HIDDEN, HIDDEN},
    {"experts 64 x 256, top 8", WORK_EXPERTS, WEFT_TYPE_Q4_K, 16, HIDDEN, HIDDEN},
    {"experts 64 x 256, top 8", WORK_EXPERTS, WEFT_TYPE_Q4_K, 32, HIDDEN, HIDDEN},
    {"experts 64 x 256, top 8", WORK_EXPERTS, WEFT_TYPE_Q4_K, 256, HIDDEN, HIDDEN},
    {"experts 64 x 256, top 8", WORK_EXPERTS, WEFT_TYPE_Q4_K, 512, HIDDEN, HIDDEN},
    {"head 32768", WORK_STATS, WEFT_TYPE_Q4_K, 1, HIDDEN, VOCAB},
    {"head 32768", WORK_STATS, WEFT_TYPE_Q4_K, 32, HIDDEN, VOCAB},
    {"head 32768", WORK_STATS, WEFT_TYPE_Q4_K, 256, HIDDEN, VOCAB},
    {"head 32768 with soft", WORK_SOFT, WEFT_TYPE_Q4_K, 256, HIDDEN, VOCAB},
    {"head 32768 with soft", WORK_SOFT, WEFT_TYPE_Q6_K, 256, HIDDEN, VOCAB},
    {"head 32768 with soft", WORK_SOFT, WEFT_TYPE_F32, 32, HIDDEN, VOCAB},
};

/* Every type that files have, at one row and at 256, beside Q4_K. */
static const char types_name[] = "types 1024 -> 2048";
static const uint32_t types_rows[] = {1, 256};

/* Everything a case reads and writes. */
typedef struct bench_room {
  weft_device *device;
  float *x, *y, *row_numbers;
  int32_t *ids, *tokens;
  float *rank_weights;
  uint8_t *flags;
  void *scratch;
  uint64_t scratch_bytes;
  weft_weight weight[COPIES_MAX], down[COPIES_MAX];
  uint32_t n_copies;
  uint32_t n_touched, n_threads; /* n_threads as asked for; then as they are */
  bool json, cpu_time;
  double read_rate, product_rate; /* per second */
} bench_room;

static double clock_s(clockid_t clock) {
  struct timespec t;
  (void)clock_gettime(clock, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now_s(const bench_room *room) {
  return room->cpu_time ? clock_s(CLOCK_PROCESS_CPUTIME_ID) / room->n_threads : clock_s(CLOCK_MONOTONIC);
}

static uint64_t random_bits(uint64_t position) {
  weft_draw_key key = {.seed = 1, .purpose = WEFT_DRAW_TEST, .position = position};
  return weft_draw_bits(&key);
}

/* ---- rates of the machine ---- */

typedef struct reader {
  pthread_t thread;
  const uint64_t *from;
  uint64_t n, sum;
} reader;

static void *read_all(void *arg) {
  reader *r = arg;
  uint64_t sum[8] = {0};
  for (uint64_t i = 0; i + 8 <= r->n; i += 8) {
    for (uint32_t j = 0; j < 8; j++) sum[j] += r->from[i + j];
  }
  for (uint32_t j = 0; j < 8; j++) r->sum += sum[j];
  return NULL;
}

/* Bytes per second that all threads read together, best of a few. */
static double measure_reading(const bench_room *room) {
  static reader readers[THREADS_MAX];
  uint32_t n_threads = room->n_threads;
  const uint64_t n_bytes = 128u << 20;
  if (n_threads > THREADS_MAX) n_threads = THREADS_MAX;
  uint64_t *memory = weft_alloc_aligned(n_bytes, 2 << 20);
  if (memory == NULL) return 0.0;
  weft_memory_prefer_huge(memory, n_bytes); /* as weights are */
  memset(memory, 1, n_bytes);
  double best = 0.0;
  for (uint32_t repeat = 0; repeat < REPEATS; repeat++) {
    uint64_t n = n_bytes / 8 / n_threads;
    double begin = now_s(room);
    uint32_t n_started = 0;
    for (uint32_t i = 0; i < n_threads; i++) {
      readers[i] = (reader){.from = memory + i * n, .n = n};
      if (weft_threads_start(&readers[i].thread, read_all, &readers[i], NULL) != WEFT_OK) break;
      n_started += 1;
    }
    for (uint32_t i = 0; i < n_started; i++) (void)pthread_join(readers[i].thread, NULL);
    double rate = (double)(n * 8 * n_started) / (now_s(room) - begin);
    if (rate > best) best = rate;
  }
  weft_free(memory);
  return best;
}

/* ---- cases ---- */

/* Where a block keeps its scale (others, and the pieces of one, may be any number: products take as long). */
static uint32_t scale_at(weft_type type) {
  return type == WEFT_TYPE_Q6_K ? 208 : type == WEFT_TYPE_Q2_K ? 80 : type == WEFT_TYPE_Q3_K ? 108 : 0;
}

/* Random codes under small, sane scales. */
static weft_status make_weight(bench_room *room, weft_weight *weight, weft_type type, uint32_t n_mats, uint32_t n_out,
                               uint32_t n_in) {
  const weft_type_info *info = weft_type_find((int32_t)type);
  *weight = (weft_weight){.type = type, .n_in = n_in, .n_out = n_out, .n_mats = n_mats};
  uint64_t n_bytes = (uint64_t)n_mats * n_out * weft_type_row_bytes(type, n_in);
  uint8_t *bytes = weft_alloc(n_bytes + 8, 1);
  if (bytes == NULL) return WEFT_E_NO_MEMORY;
  for (uint64_t i = 0; i < n_bytes; i += 8) {
    uint64_t bits = random_bits(i);
    memcpy(bytes + i, &bits, sizeof bits);
  }
  const uint16_t tiny = weft_f32_to_f16(1e-4f), bf16 = weft_f32_to_bf16(0.02f);
  const float f32 = 0.02f;
  for (uint64_t i = 0; i < n_bytes; i += info->n_bytes) {
    if (type == WEFT_TYPE_F32)
      memcpy(bytes + i, &f32, 4);
    else if (type == WEFT_TYPE_BF16)
      memcpy(bytes + i, &bf16, 2);
    else
      memcpy(bytes + i + scale_at(type), &tiny, 2);
    if (type == WEFT_TYPE_Q4_K) memcpy(bytes + i + 2, &tiny, 2);
  }
  weft_status status = weft_device_weight(room->device, weight, bytes, WEFT_USE_MATMUL, NULL);
  weft_free(bytes);
  return status;
}

static weft_status make_weights(bench_room *room, const kernel_case *c) {
  bool experts = c->work == WORK_EXPERTS;
  uint64_t used = 0;
  weft_status status = WEFT_OK;
  const uint64_t products = (uint64_t)c->n_rows * c->n_in * c->n_out;
  for (room->n_copies = 0; room->n_copies < COPIES_MAX && used < COPIES_BYTES && status == WEFT_OK; room->n_copies++) {
    if (room->n_copies > 0 && room->n_copies * products > COPIES_PRODUCTS) break;
    uint32_t i = room->n_copies;
    uint32_t n_out = experts ? 2 * EXPERT_WIDTH : c->n_out;
    status = make_weight(room, &room->weight[i], c->type, experts ? EXPERTS : 1, n_out, c->n_in);
    used += room->weight[i].n_bytes;
    if (!experts || status != WEFT_OK) continue;
    status = make_weight(room, &room->down[i], c->type, EXPERTS, c->n_in, EXPERT_WIDTH);
    used += room->down[i].n_bytes;
  }
  return status;
}

static void free_weights(bench_room *room) {
  for (uint32_t i = 0; i < room->n_copies; i++) {
    weft_device_weight_free(room->device, &room->weight[i]);
    weft_device_weight_free(room->device, &room->down[i]);
  }
  room->n_copies = 0;
}

static weft_status run_matmul(bench_room *room, const kernel_case *c, uint32_t copy, uint64_t *scratch_bytes) {
  weft_matmul_args args = {.x = room->x, .n_rows = c->n_rows, .n_weights = 1, .x_stride = c->n_in};
  args.weight[0] = &room->weight[copy];
  args.y[0] = room->y;
  args.y_stride[0] = c->n_out;
  args.scratch = room->scratch;
  args.scratch_bytes = room->scratch_bytes;
  if (scratch_bytes == NULL) return weft_matmul(room->device, &args);
  *scratch_bytes = weft_matmul_scratch(room->device, &args);
  return WEFT_OK;
}

static weft_status run_experts(bench_room *room, const kernel_case *c, uint32_t copy, uint64_t *scratch_bytes) {
  weft_experts_args args = {
      .x = room->x,
      .ids = room->ids,
      .weights = room->rank_weights,
      .gate_up = &room->weight[copy],
      .down = &room->down[copy],
      .y = room->y,
      .n_rows = c->n_rows,
      .k = TOP,
      .x_stride = c->n_in,
      .y_stride = c->n_in,
      .activation = WEFT_GELU_TANH,
      .scratch = room->scratch,
      .scratch_bytes = room->scratch_bytes,
      .n_touched = &room->n_touched,
  };
  room->n_touched = 0;
  if (scratch_bytes == NULL) return weft_experts(room->device, &args);
  *scratch_bytes = weft_experts_scratch(room->device, &args);
  return WEFT_OK;
}

static weft_status run_head(bench_room *room, const kernel_case *c, uint32_t copy, uint64_t *scratch_bytes) {
  weft_head_stats_args args = {
      .h = room->x,
      .weight = &room->weight[copy],
      .temperature = room->row_numbers,
      .u = room->row_numbers + ROWS_MAX,
      .soft = c->work == WORK_SOFT ? room->y : NULL,
      .argmax = room->tokens,
      .drawn = room->tokens + ROWS_MAX,
      .top = room->row_numbers + 2 * ROWS_MAX,
      .log_total = room->row_numbers + 3 * ROWS_MAX,
      .entropy = room->row_numbers + 4 * ROWS_MAX,
      .bad = room->flags,
      .n_rows = c->n_rows,
      .h_stride = c->n_in,
      .soft_stride = c->n_in,
      .cap = 30.0f,
      .soft_scale = 1.0f,
      .scratch = room->scratch,
      .scratch_bytes = room->scratch_bytes,
  };
  if (scratch_bytes == NULL) return weft_head_stats(room->device, &args);
  *scratch_bytes = weft_head_stats_scratch(room->device, &args);
  return WEFT_OK;
}

static weft_status run_once(bench_room *room, const kernel_case *c, uint32_t copy, uint64_t *scratch_bytes) {
  if (c->work == WORK_MATMUL) return run_matmul(room, c, copy, scratch_bytes);
  if (c->work == WORK_EXPERTS) return run_experts(room, c, copy, scratch_bytes);
  return run_head(room, c, copy, scratch_bytes);
}

/* Best seconds of one call. */
static weft_status time_case(bench_room *room, const kernel_case *c, double *best_s) {
  uint64_t wanted = 0;
  weft_status status = run_once(room, c, 0, &wanted);
  if (status != WEFT_OK) return status;
  if (wanted > room->scratch_bytes) {
    weft_free(room->scratch);
    room->scratch = weft_alloc_aligned(wanted, 64);
    room->scratch_bytes = room->scratch == NULL ? 0 : wanted;
    if (room->scratch == NULL) return WEFT_E_NO_MEMORY;
  }
  *best_s = 1e9;
  for (uint32_t repeat = 0; repeat <= REPEATS && status == WEFT_OK; repeat++) {
    double begin = now_s(room);
    for (uint32_t i = 0; i < room->n_copies && status == WEFT_OK; i++) status = run_once(room, c, i, NULL);
    double each = (now_s(room) - begin) / room->n_copies;
    if (repeat > 0 && each < *best_s) *best_s = each; /* the first warms up */
  }
  return status;
}

/* Bytes of weights read and products made by one call. */
static void count_work(const bench_room *room, const kernel_case *c, double *n_bytes, double *n_products) {
  const weft_weight *weight = &room->weight[0], *down = &room->down[0];
  if (c->work == WORK_EXPERTS) {
    double part = (double)room->n_touched / EXPERTS;
    *n_bytes = part * (double)(weight->n_bytes + down->n_bytes);
    *n_products = (double)c->n_rows * TOP * 3.0 * EXPERT_WIDTH * c->n_in;
  } else {
    *n_bytes = (double)weight->n_bytes;
    *n_products = (double)c->n_rows * c->n_in * c->n_out * (c->work == WORK_SOFT ? 2.0 : 1.0);
  }
}

static weft_status run_case(bench_room *room, const kernel_case *c, bool first) {
  double best_s = 0.0, n_bytes, n_products;
  weft_status status = make_weights(room, c);
  if (status == WEFT_OK) status = time_case(room, c, &best_s);
  count_work(room, c, &n_bytes, &n_products);
  free_weights(room);
  if (status != WEFT_OK) return status;
  double read_s = n_bytes / room->read_rate, product_s = n_products / room->product_rate;
  double floor_s = read_s > product_s ? read_s : product_s;
  const char *type = weft_type_find((int32_t)c->type)->name;
  if (room->json) {
    (void)printf(
        "%s{\"case\":\"%s\",\"type\":\"%s\",\"rows\":%u,\"us\":%.2f,\"mb\":%.3f,\"gb_s\":%.2f,"
        "\"gmac_s\":%.1f,\"floor_us\":%.2f,\"ratio\":%.3f}",
        first ? "" : ",\n", c->name, type, c->n_rows, 1e6 * best_s, n_bytes / 1e6, n_bytes / best_s / 1e9,
        n_products / best_s / 1e9, 1e6 * floor_s, best_s / floor_s);
  } else {
    (void)printf("%-24s %-7s %4u rows %10.1f us %8.2f MB %7.1f GB/s %7.1f GMAC/s  floor %9.1f us  x %.2f\n", c->name,
                 type, c->n_rows, 1e6 * best_s, n_bytes / 1e6, n_bytes / best_s / 1e9, n_products / best_s / 1e9,
                 1e6 * floor_s, best_s / floor_s);
  }
  (void)fflush(stdout);
  return WEFT_OK;
}

/* ---- the whole ---- */

static weft_status open_room(bench_room *room, const char *isa) {
  weft_device_config config = {.backend = "cpu", .isa = isa, .n_threads = room->n_threads};
  weft_error error = {{0}};
  weft_status status = weft_device_open(&config, &room->device, &error);
  if (status != WEFT_OK) {
    (void)weft_cli_fail(WEFT_EXIT_RUNTIME, "bench kernels: %s", error.text);
    return status;
  }
  room->n_threads = weft_device_get_info(room->device)->n_threads;
  room->x = weft_alloc((size_t)ROWS_MAX * HIDDEN, sizeof *room->x);
  room->y = weft_alloc((size_t)ROWS_MAX * 2048, sizeof *room->y);
  room->row_numbers = weft_alloc(5 * ROWS_MAX, sizeof *room->row_numbers);
  room->tokens = weft_alloc(2 * ROWS_MAX, sizeof *room->tokens);
  room->ids = weft_alloc(ROWS_MAX * TOP, sizeof *room->ids);
  room->rank_weights = weft_alloc(ROWS_MAX * TOP, sizeof *room->rank_weights);
  room->flags = weft_alloc(ROWS_MAX, 1);
  if (room->x == NULL || room->y == NULL || room->row_numbers == NULL || room->tokens == NULL || room->ids == NULL ||
      room->rank_weights == NULL || room->flags == NULL) {
    return WEFT_E_NO_MEMORY;
  }
  for (uint32_t i = 0; i < ROWS_MAX * HIDDEN; i++) {
    room->x[i] = (float)(random_bits(i) % 2001) * 0.001f - 1.0f;
  }
  for (uint32_t r = 0; r < ROWS_MAX; r++) {
    room->row_numbers[r] = 0.8f;
    room->row_numbers[ROWS_MAX + r] = (float)(random_bits(r) % 1000) * 0.001f;
    uint32_t e = (uint32_t)(random_bits(r + 7) % EXPERTS); /* eight different experts: an odd step around the ring */
    uint32_t step = 1 + 2 * (uint32_t)(random_bits(r + 9) % (EXPERTS / 2));
    for (uint32_t j = 0; j < TOP; j++, e = (e + step) % EXPERTS) {
      room->ids[r * TOP + j] = (int32_t)e;
      room->rank_weights[r * TOP + j] = 1.0f / TOP;
    }
  }
  return WEFT_OK;
}

static void close_room(bench_room *room) {
  void *all[] = {room->x,     room->y,      room->row_numbers, room->tokens, room->ids, room->rank_weights,
                 room->flags, room->scratch};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) weft_free(all[i]);
  weft_device_close(room->device);
}

/* The best arithmetic: weights small enough for the cache, rows enough to use them well. */
static weft_status measure_products(bench_room *room) {
  const kernel_case small = {"", WORK_MATMUL, WEFT_TYPE_Q4_K, 512, HIDDEN, 512};
  double best_s = 0.0;
  weft_status status = make_weight(room, &room->weight[0], small.type, 1, small.n_out, small.n_in);
  room->n_copies = 1;
  if (status == WEFT_OK) status = time_case(room, &small, &best_s);
  free_weights(room);
  if (status == WEFT_OK) room->product_rate = (double)small.n_rows * small.n_in * small.n_out / best_s;
  return status;
}

static bool is_wanted(const weft_text_list *words, const kernel_case *c) {
  for (uint32_t i = 1; i < words->n; i++) { /* the first is `kernels` */
    const char *word = words->item[i];
    if (strstr(c->name, word) == NULL && strstr(weft_type_find((int32_t)c->type)->name, word) == NULL) return false;
  }
  return true;
}

/* Writes the cases that hold all words; gives their number. */
static uint32_t choose_cases(const weft_text_list *words, kernel_case chosen[CASES_MAX]) {
  uint32_t n = 0;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    if (n < CASES_MAX && is_wanted(words, &cases[i])) chosen[n++] = cases[i];
  }
  for (int32_t id = 0; id < WEFT_TYPE_ID_HELD; id++) {
    if (weft_type_find(id) == NULL) continue;
    for (size_t i = 0; i < sizeof types_rows / sizeof types_rows[0]; i++) {
      const kernel_case c = {types_name, WORK_MATMUL, (weft_type)id, types_rows[i], HIDDEN, 2048};
      if (n < CASES_MAX && is_wanted(words, &c)) chosen[n++] = c;
    }
  }
  return n;
}

int weft_bench_kernels(const weft_lab_config *config) {
  static bench_room room;
  const weft_config *product = &config->product;
  room = (bench_room){.json = product->json, .cpu_time = config->cpu_time, .n_threads = product->threads};
  kernel_case chosen[CASES_MAX];
  uint32_t n_chosen = choose_cases(&product->words, chosen);
  if (n_chosen == 0) {
    return weft_cli_fail(WEFT_EXIT_USAGE, "bench kernels: no case holds the words given: 'types' or 'Q4_K' do");
  }
  weft_status status = open_room(&room, product->isa);
  if (status == WEFT_OK) status = measure_products(&room);
  if (status == WEFT_OK) {
    const weft_device_info *info = weft_device_get_info(room.device);
    room.read_rate = measure_reading(&room);
    (void)fprintf(stderr, "%s, %s, %u threads: reads %.1f GB/s, multiplies %.1f GMAC/s\n", info->name, info->isa,
                  info->n_threads, room.read_rate / 1e9, room.product_rate / 1e9);
  }
  if (room.json) (void)printf("[");
  for (uint32_t i = 0; i < n_chosen && status == WEFT_OK; i++) status = run_case(&room, &chosen[i], i == 0);
  if (room.json) (void)printf("]\n");
  if (room.device != NULL) close_room(&room);
  if (status == WEFT_OK) return WEFT_EXIT_OK;
  return weft_cli_fail(WEFT_EXIT_RUNTIME, "bench kernels: %s", weft_status_text(status));
}
