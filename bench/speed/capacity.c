/* SPDX-License-Identifier: MIT */
/* Law: sequences are filled through admit, reserve and commit in chunks, one after the other, until
 * the pager refuses; only those that hold all of their tokens are counted, and the one that was
 * refused counts for nothing. What they are compared with is counted in fractions of a sequence, so
 * no ratio gains from rounding. The prefix cache is on and no two prompts are alike, so what a
 * window dropped is taken again by eviction, as in a server.
 *
 * Geometry: the 26B models. A page of 640 KiB holds 16 tokens of five sliding layers (8 KiB a token
 * and layer, window 1024; there are five such groups) or 32 tokens of the five global layers (4
 * KiB). Pool: 80 GiB. */
#include "bench/speed/capacity.h"

#include <math.h>
#include <stdio.h>

#include "bench/inside.h"

enum {
  N_PAGES = 131072,
  PAGE_KIB = 640,
  N_GROUPS = 6,
  GLOBAL = 5, /* the group that keeps every token */
  WINDOW = 1024,
  RING = WINDOW - 1, /* what a row sees besides itself */
  LONGEST = 32768,
  SLIDING_KIB = 25 * 8, /* of one token, all sliding layers */
  GLOBAL_KIB = 5 * 4,
  CHUNK = 512,
  N_SEQS = 1024,
  N_VOCAB = 262144,
  MEAN = 4096,
  N_TENANTS = 32,
  SHARED = 1024,
  OWN = 64
};

typedef struct capacity_world {
  weft_pager *pager;
  weft_error *error;
  weft_seq seq[N_SEQS];
  uint32_t n_seqs;     /* that hold all of their tokens */
  uint32_t n_left;     /* tokens that the refused sequence had got */
  uint64_t sum_tokens; /* of those that hold all */
  int32_t *tokens;     /* [LONGEST] */
} capacity_world;

typedef uint32_t (*length_draw)(uint32_t index);

static double draw_length(uint32_t index, uint32_t which) {
  weft_draw_key key = {.seed = 26, .purpose = WEFT_DRAW_TEST, .position = index, .step = which};
  return ((double)(weft_draw_bits(&key) >> 11) + 0.5) * 0x1p-53; /* in (0, 1) */
}

/* A window and an exponential tail, mean 4096: no sequence is cheap by being shorter than the window. */
static uint32_t draw_served(uint32_t index) {
  double length = WINDOW - (MEAN - WINDOW) * log(draw_length(index, 0));
  return length > LONGEST ? LONGEST : (uint32_t)length;
}

/* Log-normal, median 400, 99th percentile 8000. */
static uint32_t draw_chat(uint32_t index) {
  double normal = sqrt(-2.0 * log(draw_length(index, 1))) * cos(6.283185307179586 * draw_length(index, 2));
  double length = 400.0 * exp(log(20.0) / 2.3263478740408408 * normal);
  return length > LONGEST ? LONGEST : length < 1.0 ? 1 : (uint32_t)length;
}

/* The longest context, its end anywhere in a block. */
static uint32_t draw_long(uint32_t index) {
  return LONGEST - (uint32_t)(32.0 * draw_length(index, 3));
}

static weft_status open_world(capacity_world *w, bool keeps_windows, weft_error *error) {
  weft_pager_model model = {.n_groups = N_GROUPS};
  for (uint32_t g = 0; g < N_GROUPS; g++) {
    model.group[g] =
        (weft_layer_group){.block_tokens = g == GLOBAL ? 32 : 16, .window = g == GLOBAL || keeps_windows ? 0 : WINDOW};
  }
  weft_pager_config config = {
      .n_pages = N_PAGES, .n_seqs = N_SEQS, .seq_tokens_max = LONGEST, .n_models = 1, .model = &model};
  *w = (capacity_world){.error = error};
  w->tokens = weft_alloc(LONGEST, sizeof *w->tokens);
  if (w->tokens == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a prompt");
  return weft_pager_open(&config, &w->pager, error);
}

static void close_world(capacity_world *w) {
  weft_pager_close(w->pager);
  weft_free(w->tokens);
}

/* WEFT_NO_BLOCKS: the pool is full; *n_valid tokens were held. */
static weft_status fill_one(capacity_world *w, uint32_t n_tokens, bool no_cache, weft_seq *seq, uint32_t *n_valid) {
  weft_admit args = {.domain = {1, 1},
                     .tokens = w->tokens,
                     .n_tokens = n_tokens,
                     .n_prompt = n_tokens,
                     .n_keep_rows = 1,
                     .no_cache = no_cache};
  weft_seq waits_for;
  weft_status status = weft_pager_admit(w->pager, &args, seq, n_valid, &waits_for);
  if (status != WEFT_OK) return weft_fail(w->error, status, "admit was refused");
  while (*n_valid < n_tokens) {
    uint32_t n = n_tokens - *n_valid < CHUNK ? n_tokens - *n_valid : CHUNK;
    status = weft_pager_reserve(w->pager, *seq, n, n);
    if (status != WEFT_OK) return status;
    weft_pager_commit(w->pager, *seq, w->tokens + *n_valid, n);
    *n_valid += n;
  }
  return WEFT_OK;
}

static weft_status fill_pool(capacity_world *w, length_draw length_of) {
  while (w->n_seqs < N_SEQS) {
    uint32_t n_tokens = length_of(w->n_seqs);
    for (uint32_t i = 0; i < n_tokens; i++) {
      w->tokens[i] = (int32_t)(weft_mix64(((uint64_t)w->n_seqs << 32) + i) % N_VOCAB);
    }
    weft_status status = fill_one(w, n_tokens, false, &w->seq[w->n_seqs], &w->n_left);
    if (status == WEFT_NO_BLOCKS) return WEFT_OK;
    if (status != WEFT_OK) return weft_fail(w->error, status, "a reserve failed");
    w->sum_tokens += n_tokens;
    w->n_seqs += 1;
  }
  return weft_fail(w->error, WEFT_FULL, "%d sequences did not fill the pool", N_SEQS);
}

/* Of the bytes that whole sequences hold, those without a token that the next row sees, in %. */
static double waste_of(const capacity_world *w) {
  uint64_t n_slots = 0, n_seen = 0; /* in 16 tokens of a sliding group = 32 of the global one */
  for (uint32_t s = 0; s < w->n_seqs; s++) {
    uint32_t n_valid = weft_pager_n_valid(w->pager, w->seq[s]);
    for (uint32_t g = 0; g < N_GROUPS; g++) {
      uint32_t n_entries, block = g == GLOBAL ? 32 : 16;
      uint32_t weight = 32 / block; /* a page weighs the same in every group */
      uint32_t first = g != GLOBAL && n_valid > RING ? n_valid - RING : 0;
      const weft_page *table = weft_pager_table(w->pager, w->seq[s], g, &n_entries);
      for (uint32_t i = 0; i < n_entries; i++) {
        if (table[i] == WEFT_PAGE_NONE) continue;
        uint32_t low = i * block > first ? i * block : first;
        uint32_t high = (i + 1) * block < n_valid ? (i + 1) * block : n_valid;
        n_slots += (uint64_t)block * weight;
        if (high > low) n_seen += (uint64_t)(high - low) * weight;
      }
    }
  }
  return n_slots == 0 ? 0.0 : 100.0 * (double)(n_slots - n_seen) / (double)n_slots;
}

static weft_status measure_served(weft_capacity *out, weft_error *error) {
  capacity_world w;
  weft_status status = open_world(&w, false, error);
  if (status == WEFT_OK) status = fill_pool(&w, draw_served);
  if (status == WEFT_OK) {
    double pool_kib = (double)N_PAGES * PAGE_KIB;
    double whole_kib = (double)LONGEST * (SLIDING_KIB + GLOBAL_KIB);
    double ring_kib = (double)LONGEST * GLOBAL_KIB + (double)RING * SLIDING_KIB;
    out->n_contiguous = w.n_seqs;
    out->mean_tokens = (double)w.sum_tokens / w.n_seqs;
    out->ratio_contiguous = w.n_seqs / (pool_kib / whole_kib);
    out->ratio_ring = w.n_seqs / (pool_kib / ring_kib);
  }
  close_world(&w);
  return status;
}

static weft_status measure_waste(weft_capacity *out, weft_error *error) {
  capacity_world w;
  weft_status status = open_world(&w, false, error);
  if (status == WEFT_OK) status = fill_pool(&w, draw_chat);
  if (status == WEFT_OK) {
    out->n_waste = w.n_seqs;
    out->mean_waste_tokens = (double)w.sum_tokens / w.n_seqs;
    out->waste_percent = waste_of(&w);
  }
  close_world(&w);
  return status;
}

static weft_status measure_sliding(weft_capacity *out, weft_error *error) {
  double kept = 0.0;
  for (uint32_t keeps = 0; keeps < 2; keeps++) {
    capacity_world w;
    weft_status status = open_world(&w, keeps == 1, error);
    if (status == WEFT_OK) status = fill_pool(&w, draw_long);
    if (status == WEFT_OK && keeps == 0) out->n_freed = w.n_seqs;
    if (status == WEFT_OK && keeps == 1) {
      out->n_kept = w.n_seqs;
      kept = w.n_seqs + (double)w.n_left / LONGEST;
    }
    close_world(&w);
    if (status != WEFT_OK) return status;
  }
  out->ratio_sliding = out->n_freed / kept;
  return WEFT_OK;
}

static weft_status measure_sharing(bool keeps_windows, double *ratio, weft_error *error) {
  uint32_t n_pinned[2] = {0, 0};
  for (uint32_t alone = 0; alone < 2; alone++) {
    capacity_world w;
    weft_status status = open_world(&w, keeps_windows, error);
    for (uint32_t t = 0; status == WEFT_OK && t < N_TENANTS; t++) {
      for (uint32_t i = 0; i < SHARED + OWN; i++) {
        uint64_t who = i < SHARED ? 0 : t + 1;
        w.tokens[i] = (int32_t)(weft_mix64((who << 32) + i) % N_VOCAB);
      }
      uint32_t n_valid;
      status = fill_one(&w, SHARED + OWN, alone == 1, &w.seq[t], &n_valid);
      if (status != WEFT_OK) (void)weft_fail(error, status, "tenant %u did not fit", t);
    }
    if (status == WEFT_OK) n_pinned[alone] = weft_pager_get_stats(w.pager).n_pinned;
    close_world(&w);
    if (status != WEFT_OK) return status;
  }
  *ratio = (double)n_pinned[1] / n_pinned[0];
  return WEFT_OK;
}

weft_status weft_capacity_measure(weft_capacity *out, weft_error *error) {
  *out = (weft_capacity){0};
  weft_status status = measure_served(out, error);
  if (status == WEFT_OK) status = measure_waste(out, error);
  if (status == WEFT_OK) status = measure_sliding(out, error);
  if (status == WEFT_OK) status = measure_sharing(false, &out->ratio_sharing, error);
  if (status == WEFT_OK) status = measure_sharing(true, &out->ratio_sharing_kept, error);
  return status;
}

void weft_capacity_print(const weft_capacity *c) {
  printf("capacity: 26B geometry, %d pages of %d KiB\n", N_PAGES, PAGE_KIB);
  printf("  sequences of 1024 + exponential tokens, mean %.0f, at most %d: %u held\n", c->mean_tokens, LONGEST,
         c->n_contiguous);
  printf("    against contiguous reservation       %8.2f x\n", c->ratio_contiguous);
  printf("    against that with a ring of %d     %8.2f x\n", RING, c->ratio_ring);
  printf("  32k contexts, windows freed or kept    %8.2f x (%u and %u held)\n", c->ratio_sliding, c->n_freed,
         c->n_kept);
  printf("  held without a token that can be seen  %8.2f %% (%u log-normal lengths, mean %.0f)\n", c->waste_percent,
         c->n_waste, c->mean_waste_tokens);
  printf("  %d tenants, %d tokens shared, %d own  %8.2f x less than without sharing\n", N_TENANTS, SHARED, OWN,
         c->ratio_sharing);
  printf("    the same where windows are kept      %8.2f x\n", c->ratio_sharing_kept);
}
