/* SPDX-License-Identifier: MIT */
/* weft bench experts: how many experts of a layer the rows of a step touch, where they are of one text, as those of a
 * run of drafts are, and where each is of another text, as those of sequences that decode are.
 *
 * Law: texts are pieces of bench/lab/prose.c, each computed as one prompt; what every row routes to is read back. Rows
 * of one text are n behind one another, rows of several the same place of n pieces; both are means over all places,
 * pieces and layers. Beside them stand both ends: rows that choose by chance, and rows that all choose the same.
 * Routers of synthetic files choose by chance, so only a trained file tells what text does. */
#include <math.h>
#include <string.h>

#include "bench/lab/prose.h"
#include "bench/speed/bench.h"
#include "bench/speed/measure.h"

enum { PIECE = 32, PIECES_MAX = 32, ROWS_MOST = 16 };

typedef struct experts_bench {
  weft_runtime *rt;
  int32_t *tokens; /* of the prose */
  int32_t *ids;    /* [n_pieces][n_layers][PIECE][n_used] */
  uint32_t n_pieces, n_layers, n_experts, n_used;
  uint32_t piece, layer; /* that is computed; layers of it that were seen */
  uint32_t n_counted;    /* layers of each piece */
  bool failed;
  uint8_t *seen; /* [n_experts] */
} experts_bench;

static int32_t *ids_at(const experts_bench *b, uint32_t piece, uint32_t layer, uint32_t row) {
  return b->ids + (((uint64_t)piece * b->n_layers + layer) * PIECE + row) * b->n_used;
}

/* On the engine's thread. A last layer that computes fewer rows is not counted. */
static bool take_routes(void *self, uint32_t layer, const char *op, const void *args, bool done) {
  experts_bench *b = self;
  const weft_experts_args *a = args;
  (void)layer;
  if (!done || strcmp(op, "experts") != 0 || a->n_rows != PIECE || a->k != b->n_used || b->layer == b->n_layers)
    return true;
  weft_status status = weft_device_download(b->rt->devices.device[0], ids_at(b, b->piece, b->layer, 0), a->ids,
                                            (uint64_t)PIECE * a->k * sizeof *b->ids);
  b->failed = b->failed || status != WEFT_OK;
  b->layer += 1;
  return true;
}

static int open_pieces(experts_bench *b) {
  const weft_model_info *info = weft_model_get_info(b->rt->model[0].model);
  weft_error error = {{0}};
  uint32_t n = 0;
  b->n_experts = info->n_experts;
  b->n_used = info->n_experts_used;
  b->n_layers = info->n_layers;
  if (b->n_experts == 0) return weft_cli_fail(WEFT_EXIT_USAGE, "bench experts: the model has no experts");
  if (b->rt->n_replicas > 1 || b->rt->devices.n > 1 || b->rt->options.rows < PIECE)
    return weft_cli_fail(WEFT_EXIT_USAGE, "bench experts: one device, and --rows of %d or more", PIECE);
  if (weft_tokenize(b->rt, NULL, weft_lab_prose, strlen(weft_lab_prose), true, false, &b->tokens, &n, error.text,
                    sizeof error.text) != 0)
    return weft_cli_fail(WEFT_EXIT_FAILED, "bench experts: %s", error.text);
  b->n_pieces = n / PIECE < PIECES_MAX ? n / PIECE : PIECES_MAX;
  b->ids = weft_alloc((uint64_t)b->n_pieces * b->n_layers * PIECE * b->n_used, sizeof *b->ids);
  b->seen = weft_alloc(b->n_experts, 1);
  if (b->ids == NULL || b->seen == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory");
  return 0;
}

static int compute_pieces(experts_bench *b) {
  int code = 0;
  weft_device_watch(b->rt->devices.device[0], take_routes, b);
  for (b->piece = 0; b->piece < b->n_pieces && code == 0; b->piece++) {
    const weft_load load = {
        .n_prompt = PIECE, .n_generate = 2, .n_parallel = 1, .tokens = b->tokens + (uint64_t)b->piece * PIECE};
    weft_measured unused;
    b->layer = 0;
    code = weft_measure(b->rt, &load, b->piece, &unused);
    if (b->piece > 0 && b->layer != b->n_counted) b->failed = true;
    b->n_counted = b->layer;
  }
  weft_device_watch(b->rt->devices.device[0], NULL, NULL);
  if (code == 0 && (b->failed || b->n_counted == 0))
    code = weft_cli_fail(WEFT_EXIT_FAILED, "bench experts: a prompt of %d tokens was not one step", PIECE);
  return code;
}

static void see_row(experts_bench *b, uint32_t piece, uint32_t layer, uint32_t row, uint32_t *n) {
  const int32_t *ids = ids_at(b, piece, layer, row);
  for (uint32_t i = 0; i < b->n_used; i++) {
    if (ids[i] < 0 || (uint32_t)ids[i] >= b->n_experts || b->seen[ids[i]] != 0) continue;
    b->seen[ids[i]] = 1;
    *n += 1;
  }
}

/* Means of distinct experts of n rows: of one text, and of several. */
static void count_rows(experts_bench *b, uint32_t n, double *of_one, double *of_several) {
  uint64_t n_one = 0, n_several = 0, n_cases = 0;
  for (uint32_t piece = 0; piece < b->n_pieces; piece++) {
    for (uint32_t layer = 0; layer < b->n_counted; layer++) {
      for (uint32_t row = 0; row + n <= PIECE; row++) {
        uint32_t one = 0, several = 0;
        memset(b->seen, 0, b->n_experts);
        for (uint32_t i = 0; i < n; i++) see_row(b, piece, layer, row + i, &one);
        memset(b->seen, 0, b->n_experts);
        for (uint32_t i = 0; i < n; i++) see_row(b, (piece + i) % b->n_pieces, layer, row, &several);
        n_one += one;
        n_several += several;
        n_cases += 1;
      }
    }
  }
  *of_one = (double)n_one / (double)n_cases;
  *of_several = (double)n_several / (double)n_cases;
}

static void print_rows(const experts_bench *b, const weft_lab_config *config, uint32_t n, double of_one,
                       double of_several, json_t *records) {
  double chance = b->n_experts * (1.0 - pow(1.0 - (double)b->n_used / b->n_experts, n));
  if (config->csv)
    (void)printf("%u,%.6g,%.6g,%.6g,%u\n", n, of_one, of_several, chance, b->n_used);
  else if (!config->product.json)
    (void)printf("%3u rows: of one text %6.2f of %u experts, of several %6.2f; by chance %6.2f, at least %u\n", n,
                 of_one, b->n_experts, of_several, chance, b->n_used);
  json_t *record = json_pack("{s:s, s:i, s:f, s:f, s:f, s:i, s:i}", "work", "experts", "rows", (int)n, "of_one_text",
                             of_one, "of_several", of_several, "by_chance", chance, "at_least", (int)b->n_used,
                             "n_experts", (int)b->n_experts);
  (void)json_array_append_new(records, record);
}

int weft_bench_experts(const weft_lab_config *config) {
  experts_bench b = {0};
  int code = weft_cli_open(&config->product, &b.rt);
  if (code != 0) return code;
  json_t *records = json_array();
  code = open_pieces(&b);
  if (code == 0) code = compute_pieces(&b);
  for (uint32_t n = 1; n <= ROWS_MOST && n <= b.n_pieces && code == 0; n *= 2) {
    double of_one, of_several;
    count_rows(&b, n, &of_one, &of_several);
    print_rows(&b, config, n, of_one, of_several, records);
  }
  if (code == 0 && config->product.json) weft_bench_print(records);
  json_decref(records);
  weft_release(b.tokens);
  weft_free(b.ids);
  weft_free(b.seen);
  weft_close(b.rt);
  return code;
}
