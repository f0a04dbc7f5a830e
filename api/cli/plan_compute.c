/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "api/cli/plan.h"
#include "api/step_rows.h"
#include "api/step_times.h"
#include "base/memory.h"
#include "pager/pager.h"
#include "scheduler/policy.h"

/* ---- room ---- */

/* Pages of a request that grows to n_tokens, as the server itself counts them (scheduler/fit.c). */
static weft_status count_pages(const weft_file_facts *file, uint32_t n_tokens, uint32_t rows, weft_request_pages *each,
                               weft_error *error) {
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
  *each = (weft_request_pages){.peak = weft_pager_pages_for(pager, 0, n_tokens, 1),
                               .mean = weft_pager_pages_mean(pager, 0, n_tokens),
                               .prompt = weft_pager_pages_for(pager, 0, n_tokens, rows)};
  weft_pager_close(pager);
  return WEFT_OK;
}

enum { DRIVER_MIB = 640, HEAD_MIB = 192, CANVAS_HEAD_MIB = 512 };

/* A processor's steps, slots and program take about 1 GiB; those of a file that is smaller less. A card's are counted,
 * by what was measured on an H200 (bench/results/small-cards.json): a context alone took 527 MiB there, with the code
 * and the first graphs 592; a slot has a number for each token of the vocabulary, and for each token of its canvas
 * 11 KiB. Hopper's set also keeps an embedding of canvases as integers, and has statistics of three times as many
 * rows. */
static void set_reserve(const weft_file_facts *file, const plan_card *card, const plan_need *need, plan_result *r) {
  const uint64_t mib = (uint64_t)1 << 20, own = file->weight_bytes * 4, slot = 5ull * file->n_vocab;
  const bool canvases = file->canvas_length > 0, hopper = card->capability == 90;
  r->rows_bytes = (r->rows - r->rows_beside) * step_rows_bytes(file->n_hidden);
  if (card->capability == 0) {
    r->reserve_bytes = (own < 1024 * mib ? own : 1024 * mib) + r->rows_bytes;
    return;
  }
  r->reserve = (plan_reserve){.driver = DRIVER_MIB * mib,
                              .between = file->between_bytes,
                              .steps = r->rows * step_rows_bytes(file->n_hidden),
                              .slots = HEAD_MIB * mib + need->users * (slot + file->canvas_length * 11ull * 1024)};
  if (canvases) r->reserve.slots += CANVAS_HEAD_MIB * mib * (hopper ? 2 : 1);
  if (canvases && hopper) r->reserve.slots += (uint64_t)file->n_vocab * file->n_hidden;
  r->reserve_bytes = r->reserve.driver + r->reserve.between + r->reserve.steps + r->reserve.slots;
}

static weft_status plan_room(const weft_file_facts *file, const plan_card *card, const plan_need *need, plan_result *r,
                             weft_error *error) {
  weft_request_pages each;
  const bool host_memory = card->capability == 0;
  r->rows_beside = step_rows_choose(0, host_memory, 0, need->users).beside;
  weft_status status = count_pages(file, need->n_prompt + need->n_answer, r->rows_beside, &each, error);
  if (status != WEFT_OK) return status;
  r->page_bytes = file->layout.page_bytes;
  r->user_bytes = (uint64_t)each.peak * r->page_bytes;
  uint64_t n_pages = (uint64_t)(need->users - 1) * each.mean + each.prompt, margin = 0;
  if (n_pages < (uint64_t)need->users * each.peak) n_pages = (uint64_t)need->users * each.peak;
  while (n_pages + margin < UINT32_MAX &&
         weft_policy_room(&each, (uint32_t)(n_pages + margin), need->users) < need->users)
    margin++;
  r->pool_bytes = (n_pages + margin) * r->page_bytes;
  r->kv_mib = (r->pool_bytes + (1 << 20) - 1) >> 20;
  uint64_t used = file->weight_bytes + (r->kv_mib << 20);
  uint64_t left = card->memory_bytes > used ? card->memory_bytes - used : 0;
  r->rows = step_rows_choose(0, host_memory, left, need->users).most;
  set_reserve(file, card, need, r);
  uint64_t taken = file->weight_bytes + r->reserve_bytes;
  r->room_bytes = card->memory_bytes > taken ? card->memory_bytes - taken : 0;
  uint64_t n_room = r->room_bytes / r->page_bytes;
  enum { STREAMS_MAX = 8192 };
  r->streams = weft_policy_room(&each, n_room < UINT32_MAX ? (uint32_t)n_room : UINT32_MAX, STREAMS_MAX);
  r->fits = r->kv_mib << 20 <= r->room_bytes;
  return WEFT_OK;
}

/* ---- rates ---- */

static double floor_of(const weft_file_facts *f, const plan_card *card, double n_rows, double kv_bytes, bool canvas) {
  return step_floor(f, card->memory_rate, card->product_rate, n_rows, kv_bytes, canvas);
}

/* Products of 8 bits. */
static void predict_fast_rates(const weft_file_facts *file, const plan_card *card, double n, double full, double half,
                               plan_result *r) {
  const step_times_eight *t = step_times_eight_of(r->set);
  const double rate = step_integer_rate(card->title, card->product_rate), layers = 1e-6 * step_layers(file);
  double decode = step_floor(file, card->memory_rate, rate, n, n * half, false);
  r->fast.decode = n / (t->decode_layer_us * layers + t->decode_times * decode);
  step_parts prefill = step_parts_of(file, card->memory_rate, rate, STEP_ROWS_CARD, full, false);
  r->fast.prefill = STEP_ROWS_CARD /
                    fmax(prefill.memory, step_product_times(card->capability, t->prefill_products) * prefill.products);
  if (file->canvas_length == 0) return;
  step_parts canvas = step_parts_of(file, card->memory_rate, rate, n * file->canvas_length, n * half, true);
  double seconds = t->canvas_memory_times * canvas.memory +
                   step_product_times(card->capability, t->canvas_products) * canvas.products;
  r->fast.canvas_ms = 1e3 * fmax(seconds, t->decode_layer_us * layers);
}

static void predict_rates(const weft_file_facts *file, const plan_card *card, const plan_need *need, plan_result *r) {
  const step_times *t = step_times_of(r->set);
  double n = need->users, full = (double)r->user_bytes, layers = 1e-6 * step_layers(file);
  double half = full * (need->n_prompt + need->n_answer / 2.0) / (need->n_prompt + need->n_answer);
  double decode = floor_of(file, card, n, n * half, false);
  r->decode_floor = n / decode;
  r->exact.decode = n / (t->decode_layer_us * layers + t->decode_times * decode);
  r->exact.prefill = STEP_ROWS_CARD / (t->prefill_times * floor_of(file, card, STEP_ROWS_CARD, full, false));
  predict_fast_rates(file, card, n, full, half, r);
  if (file->canvas_length == 0) return;
  double canvas = floor_of(file, card, n * file->canvas_length, n * half, true);
  r->canvas_floor_ms = 1e3 * canvas;
  r->exact.canvas_ms = 1e3 * (t->canvas_layer_us * layers + t->canvas_times * canvas);
}

static weft_status plan_kept(const weft_file_facts *file, const plan_card *card, const plan_need *need,
                             plan_result *out, weft_error *error) {
  *out = (plan_result){.set = plan_set_of(card), .weight_bytes = file->weight_bytes};
  out->has_kernels = card->capability == 0 || out->set < CARD_SETS;
  uint64_t n_tokens = (uint64_t)need->n_prompt + need->n_answer;
  if (n_tokens > file->context_length) {
    return weft_fail(error, WEFT_E_INVALID,
                     "a prompt of %u and an answer of %u are more than the model's context of %u", need->n_prompt,
                     need->n_answer, file->context_length);
  }
  weft_status status = plan_room(file, card, need, out, error);
  if (status == WEFT_OK && card->memory_rate > 0 && card->product_rate > 0 && out->set < CARD_SETS)
    predict_rates(file, card, need, out);
  return status;
}

weft_status plan_compute(const weft_file_facts *file, const plan_card *card, const plan_need *need, plan_result *out,
                         weft_error *error) {
  const weft_more_bytes *more = card->capability > 0 ? &file->on_card : &file->on_host;
  weft_file_facts *kept = weft_alloc(1, sizeof *kept);
  if (kept == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "out of memory");
  *kept = *file;
  kept->weight_bytes += more->experts + more->others;
  kept->expert_bytes += more->experts;
  if (card->capability > 0) { /* it leaves tables in host memory */
    kept->weight_bytes -= file->table_bytes;
    kept->embedding_bytes -= file->table_bytes;
  }
  weft_status status = plan_kept(kept, card, need, out, error);
  weft_free(kept);
  return status;
}
