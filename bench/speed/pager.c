/* SPDX-License-Identifier: MIT */
/* Law: every number is measured on a real run of the public interface of the pager, at the size
 * named in the output (--n-parallel: prompts of 32 k tokens that fill the pool); nothing is
 * estimated. Each timing is processor time, the median of several rounds, since the machine may be
 * shared; what has to be prepared between rounds is not timed.
 *
 *   take_release_ns      reserve one block, trim it
 *   take_evict_ns        a block reserved while every page is an indexed block of an ended sequence
 *   match_32k_us         admit of a wholly cached 32 k-token prompt: hashing, comparing, pinning
 *   host_bytes_per_block all host memory of the pager for each 16-token block, index and tokens
 *                        included
 *   waste_percent, capacity_ratio_*: capacity.h */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "bench/lab/lab.h"
#include "bench/speed/bench.h"
#include "bench/speed/capacity.h"

enum {
  BLOCK = 16,
  PROMPT = 32768, /* tokens of one sequence */
  N_SEQS = 256,
  CHUNK = 512,    /* rows of one prefill step */
  N_TOGETHER = 8, /* sequences that prefill in turns, so that their nodes mix */
  N_VOCAB = 262144,
  ROUNDS_MAX = 64
};

typedef struct pager_bench {
  weft_pager *pager;
  int32_t *tokens; /* [N_TOGETHER][PROMPT] */
  uint32_t n_chains;
} pager_bench;

typedef struct pager_result {
  double take_release_ns, take_release_bulk_ns, take_evict_ns, match_32k_us, match_32k_best_us;
  double fill_ns, release_ns, host_bytes_per_block;
} pager_result;

static double now_ns(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* cannot fail for this clock */
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median_of(double *values, uint32_t n) {
  qsort(values, n, sizeof *values, compare_doubles);
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

static void make_prompt(int32_t *tokens, uint64_t chain) {
  for (uint32_t i = 0; i < PROMPT; i++) tokens[i] = (int32_t)(weft_mix64(chain * 0x9E3779B97F4A7C15ull + i) % N_VOCAB);
}

static weft_status admit_prompt(const pager_bench *b, const int32_t *tokens, weft_seq *seq, uint32_t *hit) {
  weft_admit args = {.domain = {1, 1}, .tokens = tokens, .n_tokens = PROMPT, .n_prompt = PROMPT};
  weft_seq waits_for = WEFT_SEQ_NONE;
  return weft_pager_admit(b->pager, &args, seq, hit, &waits_for);
}

/* Computes the chains [first, first + N_TOGETHER) in turns and ends them: their blocks are CACHED.
 */
static bool fill_some(const pager_bench *b, uint64_t first) {
  weft_seq seq[N_TOGETHER];
  uint32_t n_cached[N_TOGETHER];
  for (uint32_t i = 0; i < N_TOGETHER; i++) {
    make_prompt(b->tokens + (uint64_t)i * PROMPT, first + i);
    if (admit_prompt(b, b->tokens + (uint64_t)i * PROMPT, &seq[i], &n_cached[i]) != WEFT_OK) return false;
  }
  for (uint32_t at = 0; at < PROMPT; at += CHUNK) {
    for (uint32_t i = 0; i < N_TOGETHER; i++) {
      if (at < n_cached[i]) continue;
      if (weft_pager_reserve(b->pager, seq[i], CHUNK, CHUNK) != WEFT_OK) return false;
      weft_pager_commit(b->pager, seq[i], b->tokens + (uint64_t)i * PROMPT + at, CHUNK);
    }
  }
  for (uint32_t i = 0; i < N_TOGETHER; i++) weft_pager_release(b->pager, seq[i]);
  return true;
}

static bool fill_chains(const pager_bench *b, uint64_t generation) {
  for (uint32_t chain = 0; chain < b->n_chains; chain += N_TOGETHER)
    if (!fill_some(b, generation * b->n_chains + chain)) return false;
  return true;
}

/* What is timed stands in functions that keep their names, so that bench/instructions.sh can count them. */
#define TIMED static __attribute__((noinline))

TIMED bool take_one_by_one(const pager_bench *b, weft_seq seq, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    if (weft_pager_reserve(b->pager, seq, BLOCK, BLOCK) != WEFT_OK) return false;
    weft_pager_trim(b->pager, seq);
  }
  return true;
}

TIMED bool take_in_bulk(const pager_bench *b, weft_seq seq, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    if (weft_pager_reserve(b->pager, seq, PROMPT, PROMPT) != WEFT_OK) return false;
    weft_pager_trim(b->pager, seq);
  }
  return true;
}

TIMED bool take_evicting(const pager_bench *b, const weft_seq *seq, uint32_t n_seqs) {
  for (uint32_t i = 0; i < n_seqs; i++)
    if (weft_pager_reserve(b->pager, seq[i], PROMPT, PROMPT) != WEFT_OK) return false;
  return true;
}

TIMED bool match_whole(const pager_bench *b, weft_seq *seq) {
  uint32_t n_cached;
  return admit_prompt(b, b->tokens, seq, &n_cached) == WEFT_OK && n_cached == PROMPT;
}

/* One block per call, then 2048 per call; on an empty pool. */
static bool bench_take_release(const pager_bench *b, pager_result *result) {
  double one[15], bulk[15];
  enum { N = 100000, N_BULK = 50 };
  weft_seq seq;
  uint32_t n_cached;
  make_prompt(b->tokens, 0);
  if (admit_prompt(b, b->tokens, &seq, &n_cached) != WEFT_OK) return false;
  for (uint32_t round = 0; round < 15; round++) {
    double start = now_ns();
    if (!take_one_by_one(b, seq, N)) return false;
    double middle = now_ns();
    if (!take_in_bulk(b, seq, N_BULK)) return false;
    one[round] = (middle - start) / N;
    bulk[round] = (now_ns() - middle) / ((double)N_BULK * PROMPT / BLOCK);
  }
  weft_pager_release(b->pager, seq);
  result->take_release_ns = median_of(one, 15);
  result->take_release_bulk_ns = median_of(bulk, 15);
  return true;
}

static bool bench_match(const pager_bench *b, pager_result *result) {
  double match[ROUNDS_MAX], release[ROUNDS_MAX];
  for (uint32_t round = 0; round < ROUNDS_MAX; round++) {
    make_prompt(b->tokens, weft_mix64(round) % b->n_chains);
    weft_seq seq;
    double start = now_ns();
    if (!match_whole(b, &seq)) return false;
    double middle = now_ns();
    weft_pager_release(b->pager, seq);
    match[round] = (middle - start) / 1e3;
    release[round] = (now_ns() - middle) / ((double)PROMPT / BLOCK);
  }
  result->match_32k_us = median_of(match, ROUNDS_MAX);
  result->match_32k_best_us = match[0];
  result->release_ns = median_of(release, ROUNDS_MAX);
  return true;
}

/* Sequences reserve until a quarter of the pool is theirs; each block was an indexed block before.
 */
static bool bench_evict(const pager_bench *b, pager_result *result) {
  double evict[5];
  for (uint32_t round = 0; round < 5; round++) {
    weft_seq seq[N_SEQS];
    uint32_t n_seqs = b->n_chains / 4 < N_SEQS ? b->n_chains / 4 : N_SEQS, n_cached;
    if (round > 0 && !fill_chains(b, round)) return false;
    weft_pager_stats before = weft_pager_get_stats(b->pager);
    for (uint32_t i = 0; i < n_seqs; i++) {
      make_prompt(b->tokens, UINT32_MAX - (round * N_SEQS + i)); /* never cached */
      weft_admit args = {.tokens = b->tokens, .n_tokens = PROMPT, .no_cache = true};
      weft_seq waits_for;
      if (weft_pager_admit(b->pager, &args, &seq[i], &n_cached, &waits_for) != WEFT_OK) return false;
    }
    double start = now_ns();
    if (!take_evicting(b, seq, n_seqs)) return false;
    evict[round] = (now_ns() - start) / ((double)n_seqs * PROMPT / BLOCK);
    weft_pager_stats after = weft_pager_get_stats(b->pager);
    if (after.n_evicted - before.n_evicted != after.n_taken - before.n_taken) return false;
    for (uint32_t i = 0; i < n_seqs; i++) weft_pager_release(b->pager, seq[i]);
  }
  result->take_evict_ns = median_of(evict, 5);
  return true;
}

static bool measure_pager(pager_bench *b, pager_result *result) {
  if (!bench_take_release(b, result)) return false;
  double start = now_ns();
  if (!fill_chains(b, 0)) return false;
  result->fill_ns = (now_ns() - start) / ((double)b->n_chains * PROMPT / BLOCK);
  if (!bench_match(b, result)) return false;
  if (!bench_evict(b, result)) return false;
  weft_pager_stats stats = weft_pager_get_stats(b->pager);
  result->host_bytes_per_block = (double)stats.host_bytes / stats.n_pages;
  return true;
}

static void print_json(const pager_result *r, const weft_capacity *c) {
  printf(
      "{\"take_release_ns\": %.2f, \"take_evict_ns\": %.2f, \"match_32k_us\": %.2f, "
      "\"host_bytes_per_block\": %.2f, \"waste_percent\": %.3f, "
      "\"capacity_ratio_contiguous\": %.3f, \"capacity_ratio_ring\": %.3f, "
      "\"capacity_ratio_sliding\": %.3f}\n",
      r->take_release_ns, r->take_evict_ns, r->match_32k_us, r->host_bytes_per_block, c->waste_percent,
      c->ratio_contiguous, c->ratio_ring, c->ratio_sliding);
}

static void print_pager(const pager_result *r, uint32_t n_pages) {
  printf("pager: %u pages of %d tokens, one group, %d sequences of up to %d tokens\n", n_pages, BLOCK, N_SEQS, PROMPT);
  printf("  take + release, one block per call     %8.2f ns\n", r->take_release_ns);
  printf("  take + release, %d blocks per call   %8.2f ns per block\n", PROMPT / BLOCK, r->take_release_bulk_ns);
  printf("  take that must evict an indexed block  %8.2f ns\n", r->take_evict_ns);
  printf("  longest match of a cached 32k prompt   %8.2f us (best %.2f)\n", r->match_32k_us, r->match_32k_best_us);
  printf("  admit, announce, commit, release       %8.2f ns per new block (making prompts included)\n", r->fill_ns);
  printf("  release of a published block           %8.2f ns\n", r->release_ns);
  printf("  host memory, all of it                 %8.2f bytes per block\n", r->host_bytes_per_block);
}

/* Capacity is measured here, when the memory of the timings is given back. */
static int report_pager(const pager_result *result, uint32_t n_pages, bool json) {
  weft_capacity capacity;
  weft_error error = {{0}};
  if (weft_capacity_measure(&capacity, &error) != WEFT_OK) {
    return weft_cli_fail(1, "bench pager: capacity: %s", error.text);
  }
  if (json) {
    print_json(result, &capacity);
    return 0;
  }
  print_pager(result, n_pages);
  weft_capacity_print(&capacity);
  return 0;
}

int weft_bench_pager(const weft_lab_config *config) {
  uint32_t n_chains = config->n_parallel > 0 ? config->n_parallel : 512;
  if (n_chains % N_TOGETHER != 0)
    return weft_cli_fail(WEFT_EXIT_USAGE, "bench pager: --n-parallel must be a multiple of %d", N_TOGETHER);
  uint32_t n_pages = n_chains * (PROMPT / BLOCK);
  weft_pager_model model = {.n_groups = 1, .group = {{.block_tokens = BLOCK}}};
  weft_pager_config pager = {
      .n_pages = n_pages, .n_seqs = N_SEQS, .seq_tokens_max = PROMPT, .n_models = 1, .model = &model, .hash_seed = 1};
  pager_bench bench = {.n_chains = n_chains};
  pager_result result = {0};
  weft_error error = {{0}};
  if (weft_pager_open(&pager, &bench.pager, &error) != WEFT_OK) {
    return weft_cli_fail(1, "bench pager: %s", error.text);
  }
  bench.tokens = weft_alloc((size_t)N_TOGETHER * PROMPT, sizeof *bench.tokens);
  bool good = bench.tokens != NULL && measure_pager(&bench, &result);
  if (!good) (void)weft_cli_fail(1, "bench pager: the pager refused a step of the benchmark; a bug");
  weft_free(bench.tokens);
  weft_pager_close(bench.pager);
  return good ? report_pager(&result, n_pages, config->product.json) : 1;
}
