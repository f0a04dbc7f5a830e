/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/cli/plan.h"
#include "api/step_rows.h"
#include "base/nearest.h"
#include "pager/pager.h"
#include "scheduler/policy.h"

/* Of the figures of a card, what its ops come to at best: measured on an H200 (docs/performance.md). */
static const double memory_share = 0.854, product_share = 0.719;
/* How many times its floor a step took there: decode of one sequence, of 32 and more, a canvas step, a prompt. */
static const double decode_one = 3.1, decode_many = 1.45, canvas_times = 2.1, prefill_times = 2.3;

#define GB(x) ((uint64_t)((x)*1e9))

/* By their makers' data sheets: dense products of 16 bits. */
static const plan_card cards[] = {
    {"h100", "NVIDIA H100 SXM", GB(80), 3.35e12, 989e12, 90},
    {"h100-pcie", "NVIDIA H100 PCIe", GB(80), 2.0e12, 756e12, 90},
    {"h100-nvl", "NVIDIA H100 NVL", GB(94), 3.9e12, 835e12, 90},
    {"h200", "NVIDIA H200", GB(141), 4.8e12, 989e12, 90},
    {"gh200", "NVIDIA GH200 96 GB", GB(96), 4.0e12, 990e12, 90},
    {"gh200-144", "NVIDIA GH200 144 GB", GB(144), 4.9e12, 990e12, 90},
    {"a100", "NVIDIA A100 80 GB", GB(80), 2.04e12, 312e12, 80},
    {"a100-40", "NVIDIA A100 40 GB", GB(40), 1.56e12, 312e12, 80},
    {"a10", "NVIDIA A10", GB(24), 0.6e12, 125e12, 86},
    {"l4", "NVIDIA L4", GB(24), 0.3e12, 121e12, 89},
    {"l40s", "NVIDIA L40S", GB(48), 0.864e12, 362e12, 89},
    {"rtx-3090", "NVIDIA GeForce RTX 3090", GB(24), 0.936e12, 71e12, 86},
    {"rtx-4090", "NVIDIA GeForce RTX 4090", GB(24), 1.008e12, 165e12, 89},
    {"rtx-5090", "NVIDIA GeForce RTX 5090", GB(32), 1.792e12, 209e12, 120},
    {"b200", "NVIDIA B200", GB(180), 8.0e12, 2250e12, 100},
};
enum { N_CARDS = sizeof cards / sizeof *cards };

/* By its name or title as people write them, or by a part of the title that no other card has, as 4090. */
static const plan_card *match_card(const char *given) {
  char wanted[96], name[96], title[96];
  const plan_card *part = NULL;
  uint32_t n_parts = 0;
  weft_plain_name(given, wanted, sizeof wanted);
  for (int i = 0; i < N_CARDS && wanted[0] != 0; i++) {
    weft_plain_name(cards[i].name, name, sizeof name);
    weft_plain_name(cards[i].title, title, sizeof title);
    if (strcmp(name, wanted) == 0 || strcmp(title, wanted) == 0) return &cards[i];
    if (strstr(title, wanted) == NULL) continue;
    part = &cards[i];
    n_parts += 1;
  }
  return n_parts == 1 ? part : NULL;
}

const plan_card *plan_find_card(const char *given, weft_error *error) {
  char names[320] = "";
  size_t n = 0;
  weft_nearest nearest = weft_nearest_to(given, strlen(given));
  const plan_card *card = match_card(given);
  if (card != NULL) return card;
  for (int i = 0; i < N_CARDS; i++) {
    weft_nearest_try(&nearest, cards[i].name);
    n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i > 0 ? ", " : "", cards[i].name);
  }
  (void)weft_fail(error, WEFT_E_NOT_FOUND, "--card: '%.32s' is not in the table, which has %s%s%s%s", given, names,
                  nearest.best == NULL ? "" : ": did you mean ", nearest.best == NULL ? "" : nearest.best,
                  nearest.best == NULL ? "" : "?");
  return NULL;
}

/* ---- room ---- */

/* Pages of a sequence, and of one in the middle of a chunk of its prompt. */
static weft_status count_pages(const weft_file_facts *file, uint32_t n_tokens, uint32_t rows, uint32_t *each,
                               uint32_t *last, weft_error *error) {
  weft_pager_model model = {.n_groups = file->layout.n_groups};
  weft_pager *pager = NULL;
  memcpy(model.group, file->layout.group, sizeof model.group);
  const weft_pager_config config = {.n_pages = 64,
                                    .n_seqs = 1,
                                    .seq_tokens_max = n_tokens,
                                    .n_models = 1,
                                    .model = &model,
                                    .no_prefix_cache = true,
                                    .hash_seed = 1};
  weft_status status = weft_pager_open(&config, &pager, error);
  if (status != WEFT_OK) return status;
  *each = weft_pager_pages_for(pager, 0, n_tokens, 1);
  *last = weft_pager_pages_for(pager, 0, n_tokens, rows);
  weft_pager_close(pager);
  return WEFT_OK;
}

/* Activations of the largest step, slots, the program or the driver: docs/models.md says about 1 GiB. A file that is
 * smaller than that has smaller ones, too. */
static uint64_t reserve_of(const weft_file_facts *file, const plan_card *card) {
  uint64_t most = card->capability > 0 ? (uint64_t)3 << 29 : (uint64_t)1 << 30, own = file->weight_bytes * 4;
  return own < most ? own : most;
}

static weft_status plan_room(const weft_file_facts *file, const plan_card *card, const plan_need *need, plan_result *r,
                             weft_error *error) {
  uint32_t each, last, rows = card->capability > 0 ? STEP_ROWS_CARD : STEP_ROWS_HOST;
  weft_status status = count_pages(file, need->n_prompt + need->n_answer, rows, &each, &last, error);
  if (status != WEFT_OK) return status;
  r->page_bytes = file->layout.page_bytes;
  r->user_bytes = (uint64_t)each * r->page_bytes;
  uint64_t n_pages = (uint64_t)(need->users - 1) * each + last, margin = 0;
  while (n_pages + margin < UINT32_MAX &&
         weft_policy_room(each, last, (uint32_t)(n_pages + margin), need->users) < need->users)
    margin++;
  r->pool_bytes = (n_pages + margin) * r->page_bytes;
  r->kv_mib = (r->pool_bytes + (1 << 20) - 1) >> 20;
  r->reserve_bytes = reserve_of(file, card);
  uint64_t taken = file->weight_bytes + r->reserve_bytes;
  r->room_bytes = card->memory_bytes > taken ? card->memory_bytes - taken : 0;
  uint64_t n_room = r->room_bytes / r->page_bytes;
  enum { STREAMS_MAX = 8192 };
  r->streams = weft_policy_room(each, last, n_room < UINT32_MAX ? (uint32_t)n_room : UINT32_MAX, STREAMS_MAX);
  r->fits = r->kv_mib << 20 <= r->room_bytes;
  return WEFT_OK;
}

/* ---- rates ---- */

/* Seconds that a step of n_rows rows over `kv_bytes` of keys and values takes at least. Rows choose experts as if by
 * chance. */
static double floor_of(const weft_file_facts *f, const plan_card *card, double n_rows, double kv_bytes, bool canvas) {
  double share = f->n_experts > 0 ? (double)f->n_experts_used / f->n_experts : 1.0;
  double touched = f->n_experts > 0 ? 1.0 - pow(1.0 - share, n_rows) : 1.0;
  double others = (double)(f->weight_bytes - f->expert_bytes - f->embedding_bytes - (canvas ? 0 : f->canvas_bytes));
  double bytes = others + (double)f->expert_bytes * touched + kv_bytes;
  double operations = 2.0 * n_rows * ((double)f->n_other_weights + (double)f->n_expert_weights * share);
  return fmax(bytes / (memory_share * card->memory_rate), operations / (product_share * card->product_rate));
}

static void plan_rates(const weft_file_facts *file, const plan_card *card, const plan_need *need, plan_result *r) {
  double n = need->users, full = (double)r->user_bytes;
  double half = full * (need->n_prompt + need->n_answer / 2.0) / (need->n_prompt + need->n_answer);
  double far = n >= 32 ? 1.0 : log2(n) / 5.0;
  r->decode_floor = n / floor_of(file, card, n, n * half, false);
  r->decode_rate = r->decode_floor / (decode_one + (decode_many - decode_one) * far);
  r->prefill_rate = STEP_ROWS_CARD / (prefill_times * floor_of(file, card, STEP_ROWS_CARD, full, false));
  if (file->canvas_length == 0) return;
  r->canvas_floor_ms = 1e3 * floor_of(file, card, n * file->canvas_length, n * half, true);
  r->canvas_ms = canvas_times * r->canvas_floor_ms;
}

weft_status plan_compute(const weft_file_facts *file, const plan_card *card, const plan_need *need, plan_result *out,
                         weft_error *error) {
  *out = (plan_result){.has_kernels = card->capability == 0 || card->capability == 90};
  uint64_t n_tokens = (uint64_t)need->n_prompt + need->n_answer;
  if (n_tokens > file->context_length) {
    return weft_fail(error, WEFT_E_INVALID,
                     "a prompt of %u and an answer of %u are more than the model's context of %u", need->n_prompt,
                     need->n_answer, file->context_length);
  }
  weft_status status = plan_room(file, card, need, out, error);
  if (status == WEFT_OK && card->memory_rate > 0 && card->product_rate > 0 && out->has_kernels)
    plan_rates(file, card, need, out);
  return status;
}
