/* SPDX-License-Identifier: MIT */
/* weft plan FILE: card, pool, streams and rate for a number of users, before anything is loaded. */
#include "api/cli/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "api/cli/cli.h"
#include "api/json.h"
#include "base/memory.h"

static double gib_of(uint64_t n_bytes) {
  return (double)n_bytes / (double)(1ull << 30);
}

/* What this machine would serve by. */
static weft_status find_own(const weft_config *config, plan_card *card, weft_error *error) {
  const weft_device_config wanted = {.backend = config->backend, .n_threads = config->threads, .isa = config->isa};
  weft_device *device = NULL;
  weft_status status = weft_device_open(&wanted, &device, error);
  if (status != WEFT_OK) return status;
  const weft_device_info *info = weft_device_get_info(device);
  plan_own_card(info, card);
  weft_device_close(device);
  return WEFT_OK;
}

static void write_rates(const weft_file_facts *f, const plan_card *card, const plan_need *need, const plan_result *r,
                        weft_text *out) {
  if (card->capability == 0) {
    weft_text_puts(out, "rate     not told of a processor: weft bench model sequences -m FILE measures it\n");
    return;
  }
  if (!r->has_kernels) return; /* the last line says so */
  if (r->decode_floor <= 0) {
    weft_text_puts(out, "rate     not told: the card does not say what it can do\n");
    return;
  }
  weft_text_printf(out,
                   "rate     token by token about %.0f tokens a second for all, %.0f for each; memory and products "
                   "alone allow %.0f\n",
                   r->exact.decode, r->exact.decode / need->users, r->decode_floor);
  if (r->set != CARD_SET_HOPPER)
    weft_text_printf(out, "         predicted: the %s set was measured on an H200 alone, and nothing on this card\n",
                     card_sets[r->set].name);
  if (f->canvas_length > 0)
    weft_text_printf(out, "         by diffusion about %.1f ms a step of %u canvases of %u, at most %u steps each\n",
                     r->exact.canvas_ms, need->users, f->canvas_length, f->canvas_steps);
  weft_text_printf(out, "         a prompt about %.1f s, the others waiting\n", need->n_prompt / r->exact.prefill);
  weft_text_printf(out, "8 bits   where the file allows them, or --precision fast: about %.0f tokens a second",
                   r->fast.decode);
  if (f->canvas_length > 0) weft_text_printf(out, ", %.1f ms a step of canvases", r->fast.canvas_ms);
  weft_text_printf(out, ", a prompt %.1f s\n", need->n_prompt / r->fast.prefill);
}

static void write_text(const char *path, const weft_file_facts *f, const plan_card *card, const plan_need *need,
                       const plan_result *r, weft_text *out) {
  uint64_t whole = r->weight_bytes + r->reserve_bytes + r->pool_bytes;
  char clean[512];
  (void)weft_utf8_clean(path, clean, sizeof clean);
  weft_text_printf(out, "file     %s: %s, %.2f GiB of weights, context %u\n", clean, f->arch, gib_of(f->weight_bytes),
                   f->context_length);
  weft_text_printf(out, "on       %s, %.1f GiB%s\n", card->title, gib_of(card->memory_bytes),
                   card->name == NULL ? " free" : "");
  const uint64_t on_host = card->capability > 0 ? f->table_bytes : 0, others = f->weight_bytes - on_host;
  if (on_host > 0)
    weft_text_printf(out, "host     %.2f GiB of these are tables, which stay in host memory\n", gib_of(on_host));
  if (r->weight_bytes > others + others / 50)
    weft_text_printf(out, "kept     as %.2f GiB there: codes of the file's types are written out\n",
                     gib_of(r->weight_bytes));
  weft_text_printf(out, "a user   %u tokens of prompt and %u of answer: %.1f MiB of keys and values\n", need->n_prompt,
                   need->n_answer, (double)r->user_bytes / (1 << 20));
  weft_text_printf(out,
                   "users    %u at once: --kv-mib %" PRIu64 "; with weights and about %.1f GiB for the rest %.2f GiB\n",
                   need->users, r->kv_mib, gib_of(r->reserve_bytes), gib_of(whole));
  if (card->capability > 0)
    weft_text_printf(out,
                     "rest     driver and code %.2f GiB, beside weights %.2f, activations of %u rows %.2f, slots and "
                     "head %.2f\n",
                     gib_of(r->reserve.driver), gib_of(r->reserve.between), r->rows, gib_of(r->reserve.steps),
                     gib_of(r->reserve.slots));
  if (r->rows > r->rows_beside)
    weft_text_printf(out, "steps    of %u rows beside streams, of %u while there are none: %.1f GiB of the rest\n",
                     r->rows_beside, r->rows, gib_of(r->rows_bytes));
  weft_text_printf(out, "streams  %u at once in what weights leave\n", r->streams);
  write_rates(f, card, need, r, out);
  if (!r->has_kernels) {
    weft_text_printf(out, "no       weft has no kernels for this card (sm_%u): a processor would serve the file\n",
                     card->capability);
  } else if (!r->fits) {
    weft_text_printf(out, "no       it lacks %.2f GiB: fewer users, shorter ones, a file of a smaller type, or %s\n",
                     gib_of(whole - card->memory_bytes), card->capability > 0 ? "several cards" : "more memory");
  } else {
    weft_text_printf(out, "so       weft serve -m %s --kv-mib %" PRIu64 " --context %u --running %u\n", clean,
                     r->kv_mib, need->n_prompt + need->n_answer, need->users);
  }
}

static void write_json(const char *path, const weft_file_facts *f, const plan_card *card, const plan_need *need,
                       const plan_result *r, weft_text *out) {
  weft_text_puts(out, "{\"file\":");
  weft_json_words(out, path);
  weft_text_puts(out, ",\"card\":");
  weft_json_words(out, card->title);
  weft_text_printf(out,
                   ",\"memory_bytes\":%" PRIu64 ",\"weight_bytes\":%" PRIu64 ",\"host_bytes\":%" PRIu64
                   ",\"kept_bytes\":%" PRIu64 ",\"reserve_bytes\":%" PRIu64 ",\"driver_bytes\":%" PRIu64
                   ",\"between_bytes\":%" PRIu64 ",\"step_bytes\":%" PRIu64 ",\"slot_bytes\":%" PRIu64
                   ",\"user_bytes\":%" PRIu64 ",\"pool_bytes\":%" PRIu64 ",\"kv_mib\":%" PRIu64
                   ",\"context\":%u,\"rows\":%u,\"users\":%u,\"streams\":%u,\"kernels\":%s,\"fits\":%s,\"set\":",
                   card->memory_bytes, f->weight_bytes, card->capability > 0 ? f->table_bytes : 0, r->weight_bytes,
                   r->reserve_bytes, r->reserve.driver, r->reserve.between, r->reserve.steps, r->reserve.slots,
                   r->user_bytes, r->pool_bytes, r->kv_mib, need->n_prompt + need->n_answer, r->rows, need->users,
                   r->streams, r->has_kernels ? "true" : "false", r->fits ? "true" : "false");
  weft_json_words(out, r->set < CARD_SETS ? card_sets[r->set].name : "none");
  const struct {
    const char *name;
    double value;
  } rates[] = {{"decode_tokens_per_second", r->exact.decode},       {"decode_floor_tokens_per_second", r->decode_floor},
               {"prefill_tokens_per_second", r->exact.prefill},     {"canvas_step_ms", r->exact.canvas_ms},
               {"canvas_step_floor_ms", r->canvas_floor_ms},        {"fast_decode_tokens_per_second", r->fast.decode},
               {"fast_prefill_tokens_per_second", r->fast.prefill}, {"fast_canvas_step_ms", r->fast.canvas_ms}};
  for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
    weft_text_printf(out, ",\"%s\":", rates[i].name);
    if (rates[i].value > 0) weft_json_real(out, rates[i].value);
    if (!(rates[i].value > 0)) weft_text_puts(out, "null");
  }
  weft_text_puts(out, "}\n");
}

static void write_card(const weft_file_facts *f, const plan_card *card, const plan_need *need, const plan_result *r,
                       weft_text *out) {
  weft_text_printf(out, "%-34s %6.0f %-8s ", card->title, gib_of(card->memory_bytes), card_sets[r->set].name);
  if (!r->fits) {
    weft_text_puts(out, "does not fit\n");
    return;
  }
  weft_text_printf(out, "%8u", r->streams);
  const plan_rates *rates[] = {&r->exact, &r->fast};
  for (uint32_t i = 0; i < 2; i++) {
    weft_text_printf(out, " %9.0f", rates[i]->decode);
    if (f->canvas_length > 0) weft_text_printf(out, " %11.1f", rates[i]->canvas_ms);
    weft_text_printf(out, " %8.2f", need->n_prompt / rates[i]->prefill);
  }
  weft_text_puts(out, "\n");
}

static void write_head(const weft_file_facts *f, const plan_need *need, weft_text *out) {
  const char *canvases = f->canvas_length > 0 ? " ms/canvases" : "";
  weft_text_printf(out,
                   "%u users, %u tokens of prompt and %u of answer each; predicted but for sm_90; in 16 bits, then "
                   "in 8\n%-34s %6s %-8s %8s",
                   need->users, need->n_prompt, need->n_answer, "card", "GiB", "set", "streams");
  for (uint32_t i = 0; i < 2; i++) weft_text_printf(out, " %9s%s %8s", "tokens/s", canvases, "s/prompt");
  weft_text_puts(out, "\n");
}

/* All cards of the table, a line or a JSON object each. */
static weft_status write_all(const char *path, const weft_file_facts *f, const plan_need *need, bool json,
                             plan_result *r, weft_text *out, weft_error *error) {
  bool fits = false;
  weft_status status = WEFT_OK;
  if (!json) write_head(f, need, out);
  for (uint32_t i = 0; plan_card_at(i) != NULL && status == WEFT_OK; i++) {
    if (json) weft_text_puts(out, i == 0 ? "[" : ",");
    status = plan_compute(f, plan_card_at(i), need, r, error);
    fits = fits || r->fits;
    if (status == WEFT_OK && json) write_json(path, f, plan_card_at(i), need, r, out);
    if (status == WEFT_OK && !json) write_card(f, plan_card_at(i), need, r, out);
  }
  if (json) weft_text_puts(out, "]\n");
  r->fits = fits;
  return status;
}

/* The facts of the file that is named, which weft would serve. The caller frees. */
static weft_status read_facts(const char *path, weft_file_facts **facts, weft_error *error) {
  weft_gguf *gguf = NULL;
  weft_status status = weft_gguf_open(path, &gguf, error);
  if (status == WEFT_OK) status = weft_inspect_facts(gguf, facts, error);
  if (status == WEFT_OK && (*facts)->serves != WEFT_OK) {
    status = (*facts)->serves;
    *error = (*facts)->refusal;
  }
  weft_gguf_close(gguf);
  return status;
}

int weft_cli_plan(const weft_config *config) {
  weft_file_facts *facts = NULL;
  weft_error error = {{0}};
  weft_text text = {0};
  plan_card own = {0};
  plan_result result = {0};
  const plan_card *card = &own;
  const bool all = config->card != NULL && strcmp(config->card, "all") == 0;
  const plan_need need = {config->users, config->plan_prompt, config->plan_answer};
  if (config->models.n != 1) return weft_cli_fail(WEFT_EXIT_USAGE, "plan: name one GGUF file");
  const char *path = config->models.item[0];
  weft_status status = read_facts(path, &facts, &error);
  if (status == WEFT_OK && all) {
    status = write_all(path, facts, &need, config->json, &result, &text, &error);
  } else if (status == WEFT_OK && config->card != NULL) {
    card = plan_find_card(config->card, &error);
    if (card == NULL) status = WEFT_E_NOT_FOUND;
  } else if (status == WEFT_OK) {
    status = find_own(config, &own, &error);
  }
  if (status == WEFT_OK && !all) status = plan_compute(facts, card, &need, &result, &error);
  if (status == WEFT_OK && !all) (config->json ? write_json : write_text)(path, facts, card, &need, &result, &text);
  if (status == WEFT_OK) status = weft_text_status(&text);
  if (status == WEFT_OK) (void)fputs(text.bytes, stdout); /* a failure is seen by the flush in main */
  weft_text_free(&text);
  weft_free(facts);
  if (status != WEFT_OK)
    return weft_cli_fail(weft_cli_code(status), "%s", error.text[0] != 0 ? error.text : weft_status_text(status));
  return result.fits && result.has_kernels ? WEFT_EXIT_OK : WEFT_EXIT_FAILED;
}
