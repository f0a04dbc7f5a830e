/* SPDX-License-Identifier: MIT */
/* weft bench arena: what the size of the arena's chunks costs in memory of a card, for the weights of a file.
 *
 * Law: the arena (kernels/arena.h) takes memory from a card that only counts, for every tensor of the file in its
 * order and as large as the file stores it, so the numbers are the same on every machine and need no card. Chunk
 * sizes double from 1 MiB to 1 GiB; then the largest one that takes at most a thousandth more than the best is
 * bisected, to the MiB, up to the next size: it needs the fewest calls of the driver. Chunks hold the small weights
 * where a card can map memory, and all of them where it cannot (or with --no-arena). */
#include <jansson.h>
#include <string.h>

#include "bench/speed/bench.h"

enum { SIZES = 11, GRAIN = 2 << 20 };

typedef struct counting_card {
  uint64_t next, n_calls; /* next: an address that nothing has */
} counting_card;

typedef struct arena_cost {
  uint64_t n_asked, n_taken, n_calls;
  uint32_t n_pieces;
} arena_cost;

static weft_status reserve_range(void *self, uint64_t n_bytes, void **address) {
  counting_card *c = self;
  *address = (void *)(uintptr_t)c->next;
  c->next += n_bytes;
  c->n_calls += 1;
  return WEFT_OK;
}
static void release_range(void *self, void *address, uint64_t n_bytes) {
  (void)self;
  (void)address;
  (void)n_bytes;
}
static weft_status map_range(void *self, void *address, uint64_t n_bytes) {
  (void)address;
  (void)n_bytes;
  ((counting_card *)self)->n_calls += 1;
  return WEFT_OK;
}
static void free_memory(void *self, void *memory) {
  (void)self;
  (void)memory;
}

static weft_status place_weights(const weft_gguf *gguf, bool plain, uint64_t chunk, arena_cost *out) {
  static const weight_arena_calls calls = {reserve_range, release_range, map_range,
                                           release_range, reserve_range, free_memory};
  counting_card card = {.next = (uint64_t)1 << 32};
  weight_arena arena;
  weft_status status = WEFT_OK;
  weight_arena_open(&arena, &calls, &card, plain ? 0 : GRAIN, 0);
  arena.chunk = chunk;
  for (uint32_t i = 0; i < weft_gguf_n_tensors(gguf) && status == WEFT_OK; i++) {
    void *at;
    status = weight_arena_take(&arena, weft_gguf_tensor_at(gguf, i)->n_bytes, &at);
  }
  *out = (arena_cost){
      .n_asked = arena.n_asked, .n_taken = arena.n_taken, .n_calls = card.n_calls, .n_pieces = arena.n_pieces};
  weight_arena_close(&arena);
  return status;
}

static uint64_t count_mib(uint64_t n) {
  return n << 20;
}

/* The largest chunk, in MiB, that takes at most `most`: low does, high does not. */
static weft_status bisect_chunk(const weft_gguf *gguf, bool plain, uint64_t most, uint64_t *low, uint64_t high) {
  while (high - *low > 1) {
    uint64_t middle = *low + (high - *low) / 2;
    arena_cost cost;
    weft_status status = place_weights(gguf, plain, count_mib(middle), &cost);
    if (status != WEFT_OK) return status;
    if (cost.n_taken <= most)
      *low = middle;
    else
      high = middle;
  }
  return WEFT_OK;
}

static json_t *cost_json(bool plain, uint64_t chunk_mib, const arena_cost *c, const char *what) {
  double over = c->n_asked == 0 ? 0.0 : 100.0 * ((double)c->n_taken / (double)c->n_asked - 1.0);
  return json_pack("{s:s, s:I, s:f, s:f, s:i, s:I, s:s}", "memory", plain ? "plain" : "mapped", "chunk_mib",
                   (json_int_t)chunk_mib, "taken_mib", (double)c->n_taken / 1048576.0, "over_percent", over, "pieces",
                   (int)c->n_pieces, "calls", (json_int_t)c->n_calls, "what", what);
}

static void print_cost(const weft_lab_config *config, const json_t *row) {
  const char *memory = json_string_value(json_object_get(row, "memory"));
  const char *what = json_string_value(json_object_get(row, "what"));
  long long chunk = (long long)json_integer_value(json_object_get(row, "chunk_mib"));
  double taken = json_number_value(json_object_get(row, "taken_mib"));
  double over = json_number_value(json_object_get(row, "over_percent"));
  int pieces = (int)json_integer_value(json_object_get(row, "pieces"));
  long long calls = (long long)json_integer_value(json_object_get(row, "calls"));
  if (config->csv)
    (void)printf("\"%s, %lld\",%.6g,%.4g,%d,%lld,%s\n", memory, chunk, taken, over, pieces, calls, what);
  else if (!config->product.json)
    (void)printf("%-7s chunks of %5lld MiB %12.1f MiB taken, %6.3f %% over the weights, %5d pieces, %5lld calls  %s\n",
                 memory, chunk, taken, over, pieces, calls, what);
}

/* Of one kind of memory. */
static weft_status measure_kind(const weft_lab_config *config, const weft_gguf *gguf, bool plain, json_t *out) {
  arena_cost cost[SIZES], found;
  uint64_t least = UINT64_MAX, now = plain ? WEIGHT_ARENA_PLAIN_CHUNK : WEIGHT_ARENA_CHUNK, at = 0;
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < SIZES && status == WEFT_OK; i++) {
    status = place_weights(gguf, plain, count_mib(1ull << i), &cost[i]);
    if (status == WEFT_OK && cost[i].n_taken < least) least = cost[i].n_taken;
    json_t *row = cost_json(plain, 1ull << i, &cost[i], count_mib(1ull << i) == now ? "the arena's own" : "");
    if (status == WEFT_OK) print_cost(config, row);
    (void)json_array_append_new(out, row);
  }
  if (status != WEFT_OK) return status;
  uint64_t most = least + least / 1000;
  for (uint32_t i = 0; i < SIZES; i++) at = cost[i].n_taken <= most ? i : at;
  uint64_t best = 1ull << at;
  if (at + 1 < SIZES) status = bisect_chunk(gguf, plain, most, &best, 2 * best);
  if (status == WEFT_OK) status = place_weights(gguf, plain, count_mib(best), &found);
  if (status != WEFT_OK) return status;
  json_t *row = cost_json(plain, best, &found, "the largest within a thousandth of the best");
  print_cost(config, row);
  (void)json_array_append_new(out, row);
  return WEFT_OK;
}

int weft_bench_arena(const weft_lab_config *config) {
  weft_gguf *gguf = NULL;
  weft_error error = {{0}};
  if (config->product.models.n != 1)
    return weft_cli_fail(WEFT_EXIT_USAGE, "bench arena: name one GGUF file with -m FILE");
  weft_status status = weft_gguf_open(config->product.models.item[0], &gguf, &error);
  if (status != WEFT_OK) return weft_cli_fail(WEFT_EXIT_LOAD, "%s", error.text);
  json_t *out = json_array();
  if (config->csv) (void)printf("chunks,taken_mib,over_percent,pieces,calls,what\n");
  for (uint32_t plain = 0; plain < 2 && status == WEFT_OK; plain++)
    status = measure_kind(config, gguf, plain == 1, out);
  if (config->product.json) weft_bench_print(out);
  json_decref(out);
  weft_gguf_close(gguf);
  return status == WEFT_OK ? 0 : weft_cli_fail(WEFT_EXIT_RUNTIME, "bench arena: %s", weft_status_text(status));
}
