/* SPDX-License-Identifier: MIT */
/* Rows that need their logits: penalties, biases, cuts and logprobs. What is asked for goes to the device, tokens go to
 * the slots' cells, and results wait there to be sent. A token that the host does not know yet is taken from its
 * cell. A mask alone may need to know it: the forward pass is enqueued by then, and while the device computes it, the
 * host waits for the step before, which is about to end or has, and makes the masks. It also waits where penalties look
 * at more than one token that it does not know, since a cell holds one.
 *
 * A row of a run is asked for as if the drafts before it had been drawn: they stand behind the history of the slot,
 * without being counted in it, and its grammar goes on along them in a copy of the matcher. */
#include <string.h>

#include "base/check.h"
#include "model/runner/runner_internal.h"
#include "model/runner/runner_share.h"

enum { HEAP_WORDS = 1 << 16, ROW_WORDS = sizeof(weft_sample_row) / 4, BIAS_WORDS = sizeof(weft_logit_bias) / 4 };

static uint64_t rows_words(const device_runner *r) {
  return ((uint64_t)r->logit_rows_max * ROW_WORDS + 63) / 64 * 64;
}

uint64_t runner_asked_words(const device_runner *r) {
  uint64_t one = WEFT_LOGIT_BIAS_MAX * BIAS_WORDS + (uint64_t)r->config.seq_tokens_max + 1;
  return rows_words(r) + (one > HEAP_WORDS ? one : HEAP_WORDS);
}

/* What one call asks for: words of the heap, masks. */
typedef struct asked_size {
  uint64_t n_words;
  uint32_t n_masks;
} asked_size;

/* Whether the mask of a row needs every token before the row on the host. */
static bool mask_needs_tokens(const runner_slot *s) {
  const weft_token_rules *rules = s->params.rules;
  return s->params.grammar != NULL || (rules != NULL && weft_token_rules_waits(rules));
}

/* A row that draws a token: its place in its segment, and how many drafts of the run stand up to it. */
typedef struct drawing_row {
  const weft_segment *segment;
  runner_slot *slot;
  uint32_t at, n_drafts;
} drawing_row;

static drawing_row find_row(device_runner *r, const runner_step *step, uint32_t j) {
  const weft_segment *segment = &step->batch->segment[r->output_at[j]];
  uint32_t at = r->output_row[j] - segment->first_row, first = segment->n_rows - weft_segment_n_sampled(segment);
  drawing_row row = {.segment = segment, .slot = &r->slots[segment->slot], .at = at, .n_drafts = at - first};
  if (at > first) row.slot->history[row.slot->n_history + row.n_drafts - 1] = r->token[r->output_row[j]];
  return row;
}

/* Where the answer is in its grammar once the drafts up to the row were drawn, which are asked for one after another.
 * NULL: the grammar does not allow one of them, so it will not be drawn, and the row is void. */
static const weft_matcher *matcher_of(device_runner *r, const drawing_row *row) {
  const runner_slot *s = row->slot;
  if (row->n_drafts == 0) {
    r->n_matched = 0;
    return &s->matcher;
  }
  if (r->n_matched == 0) r->draft_matcher = s->matcher;
  while (r->n_matched < row->n_drafts) {
    int32_t token = s->history[s->n_history + r->n_matched++];
    if (!weft_matcher_take(&r->draft_matcher, r->grammar_scratch, token)) r->n_matched = UINT32_MAX;
  }
  return r->n_matched == UINT32_MAX ? NULL : &r->draft_matcher;
}

/* The tokens that the grammar or the rules of the answer allow. Of an answer that has ended meanwhile the row is void,
 * whatever its mask. */
static void ask_mask(device_runner *r, const drawing_row *drawing, weft_sample_row *row, asked_size *size) {
  const runner_slot *s = drawing->slot;
  uint32_t n_answer = s->n_history - s->params.n_prompt + drawing->n_drafts;
  uint32_t *mask = r->masks + (uint64_t)size->n_masks * r->mask_words;
  const weft_token_rules *rules = s->params.rules;
  WEFT_CHECK(s->n_pending == 0 || !mask_needs_tokens(s));
  if (rules != NULL) {
    weft_token_rules_mask(rules, s->history + s->params.n_prompt, n_answer + s->n_pending, mask);
  } else {
    const weft_matcher *matcher = matcher_of(r, drawing);
    if (matcher == NULL) return;
    weft_matcher_mask(matcher, r->grammar_scratch, s->params.max_tokens - n_answer, mask);
  }
  size->n_masks += 1;
  row->mask = size->n_masks;
}

/* One row: its biases and history go to the heap. false: there is no room, and nothing was done. */
static bool ask_row(device_runner *r, const drawing_row *drawing, uint32_t j, asked_size *size) {
  const runner_slot *s = drawing->slot;
  const weft_segment *segment = drawing->segment;
  const weft_sampling *p = s->params.sampling;
  weft_sample_row *row = (weft_sample_row *)(void *)(r->asked + (uint64_t)j * ROW_WORDS);
  int32_t *heap = r->asked + rows_words(r);
  uint32_t pending = s->n_pending > 0 ? 1 : 0, n_prompt = s->params.n_prompt;
  uint32_t n_known = s->n_history + drawing->n_drafts;
  uint32_t skip = weft_sampling_forgets(p, n_known + pending, n_prompt);
  uint32_t n_history = skip == UINT32_MAX ? 0 : n_known - skip;
  uint64_t need = (uint64_t)p->n_bias * BIAS_WORDS + n_history, bias_at = (size->n_words + 1) / 2 * 2;
  if (bias_at + need > r->asked_words - rows_words(r)) return false;
  weft_sampling_ask(p, (uint64_t)segment->kv_len + drawing->at + 1, row);
  if (s->params.logprobs) row->logprobs = 1, row->n_top = p->n_top_logprobs;
  row->cell = weft_segment_n_sampled(segment) > 1 ? -1 : (int32_t)segment->slot; /* the host knows all of a run */
  row->pending = skip != UINT32_MAX ? pending : 0;
  row->bias_at = (uint32_t)(bias_at / BIAS_WORDS);
  row->history_at = (uint32_t)(bias_at + (uint64_t)p->n_bias * BIAS_WORDS);
  row->n_history = n_history;
  row->n_prompt = skip < n_prompt ? n_prompt - skip : 0;
  if (p->n_bias > 0) memcpy(heap + bias_at, p->bias, p->n_bias * sizeof *p->bias);
  if (n_history > 0) memcpy(heap + row->history_at, s->history + skip, n_history * sizeof *heap);
  size->n_words = bias_at + need;
  if (s->params.grammar != NULL || s->params.rules != NULL) ask_mask(r, drawing, row, size);
  return true;
}

weft_status runner_make_logits(device_runner *r, const float *h, float *logits, uint32_t n) {
  const weft_weight *ranges = runner_share_ranges(r->share);
  if (h != NULL && ranges != NULL) {
    weft_status status = runner_share_logits(r->share, (uint32_t)((uint64_t)(h - r->d_hidden) / r->n_hidden), n);
    if (status != WEFT_OK) return status;
    h = NULL;
  }
  weft_head_rows_args rows = {.h = h,
                              .weight = ranges != NULL ? ranges : r->head,
                              .logits = logits,
                              .bad = r->d_bad,
                              .n_rows = n,
                              .h_stride = r->n_hidden,
                              .logits_stride = r->info.n_vocab,
                              .cap = r->cap,
                              .scratch = r->d_scratch,
                              .scratch_bytes = r->scratch_bytes};
  return weft_head_rows(r->last, &rows);
}

weft_sample_args runner_sample_args(const device_runner *r, weft_sample_result *out, uint32_t n) {
  return (weft_sample_args){.logits = r->d_logits,
                            .bad = r->d_bad,
                            .row = (const weft_sample_row *)(const void *)r->d_asked,
                            .out = out,
                            .n_rows = n,
                            .n_vocab = r->info.n_vocab,
                            .logits_stride = r->info.n_vocab,
                            .scratch = r->d_scratch,
                            .scratch_bytes = r->scratch_bytes};
}

/* Where shards have made the products already, those of all rows lie one behind the other. */
static weft_status sample_rows(device_runner *r, uint32_t first, uint32_t n, const asked_size *size) {
  weft_device *d = r->last;
  bool made = runner_share_made(r->share);
  const float *h = made ? NULL : r->d_hidden + (uint64_t)first * r->n_hidden;
  float *logits = made ? r->d_logits + (uint64_t)first * r->info.n_vocab : r->d_logits;
  const int32_t *heap = r->d_asked + rows_words(r);
  weft_sample_args sample = runner_sample_args(r, r->d_sampled + first, n);
  sample.logits = logits;
  sample.history = heap;
  sample.bias = (const weft_logit_bias *)(const void *)heap;
  sample.cells = r->d_cells;
  sample.allowed = r->allowed;
  sample.masks = r->d_masks;
  weft_status status = weft_device_upload(d, r->d_asked, r->asked, (rows_words(r) + size->n_words) * sizeof *r->asked);
  if (status == WEFT_OK && size->n_masks > 0) {
    status = weft_device_upload(d, r->d_masks, r->masks, (uint64_t)size->n_masks * r->mask_words * sizeof *r->masks);
  }
  if (status == WEFT_OK) status = runner_make_logits(r, h, logits, n);
  return status == WEFT_OK ? weft_sample(d, &sample) : status;
}

static bool needs_tokens(const runner_slot *s) {
  if (s->n_pending == 0) return false;
  if (mask_needs_tokens(s)) return true;
  return s->n_pending > 1 && weft_sampling_forgets(s->params.sampling, s->n_history, s->params.n_prompt) != UINT32_MAX;
}

/* Settles the flights before this one, the last, if a row needs tokens of theirs. */
static weft_status hear_tokens(device_runner *r, const runner_flight *f, const runner_step *step) {
  bool needs = false;
  for (uint32_t j = 0; j < f->outputs.n_logits; j++) {
    const runner_slot *s = &r->slots[step->batch->segment[r->output_at[j]].slot];
    needs = needs || needs_tokens(s);
  }
  if (needs) runner_settle_first(r, r->n_flights - 1);
  return r->broken ? WEFT_E_DEVICE : WEFT_OK;
}

weft_status runner_sample(device_runner *r, runner_flight *f, const runner_step *step) {
  weft_status status = hear_tokens(r, f, step);
  for (uint32_t first = 0, n; first < f->outputs.n_logits && status == WEFT_OK; first += n) {
    asked_size size = {0};
    for (n = 0; n < r->logit_rows_max && first + n < f->outputs.n_logits; n++) {
      const drawing_row row = find_row(r, step, first + n);
      if (!ask_row(r, &row, n, &size)) break;
    }
    status = sample_rows(r, first, n, &size);
  }
  return status;
}
