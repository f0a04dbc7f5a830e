/* SPDX-License-Identifier: MIT */
/* Drafts that a fake runner makes itself, as a drafter that reads the keys of its target does (model/runner/runner.h):
 * it reads what the row of the last token will see, through the tables of the batch, and foretells what the fake model
 * will draw there and behind it; of these tokens a given share is spoiled. Nothing is written. */
#include "base/random.h"
#include "bench/doubles/fake_flight.h"

enum { DRAFTS_MAX = 64, NONE_ONE_IN = 50 };

/* The text of one row, from its last token on. */
typedef struct draft_text {
  fake_runner *f;
  const fake_flight *flight;
  uint32_t segment, first; /* first: the position of the last token, from which on there are no keys */
  uint64_t cell[WEFT_GROUPS_MAX][DRAFTS_MAX];
} draft_text;

static uint64_t read_cell(const draft_text *t, uint32_t g, uint32_t position) {
  return position >= t->first ? t->cell[g][position - t->first]
                              : fake_runner_cell(t->f, t->flight, t->segment, g, position);
}

/* What the row at `position` sees, itself included. */
static weft_fake_sums add_row(draft_text *t, int32_t token, uint32_t position) {
  const weft_fake_model *model = &t->f->config.model;
  weft_fake_sums before = {{0}}, sums;
  for (uint32_t g = 0; g < model->n_groups; g++) {
    for (uint32_t p = weft_fake_first_visible(&model->group[g], position); p < position; p++)
      before.group[g] += read_cell(t, g, p);
  }
  sums = before;
  for (uint32_t g = 0; g < model->n_groups; g++) {
    t->cell[g][position - t->first] = weft_fake_cell(model, g, token, position, &before);
    sums.group[g] += t->cell[g][position - t->first];
  }
  return sums;
}

static void check_row(fake_runner *f, const weft_batch *batch, uint32_t i) {
  const weft_segment *segment = &batch->segment[i];
  const fake_slot *slot = &f->slot[segment->slot < f->info.n_slots ? segment->slot : 0];
  uint32_t last = segment->kv_len + 1;
  bool sound = segment->slot < f->info.n_slots && slot->open && segment->n_rows == 1 && segment->first_row == i &&
               batch->position[i] == (int32_t)last && slot->n_tokens == last + 1;
  if (sound && slot->tokens[last] == batch->token[i]) return;
  fake_runner_note(f, "drafts of slot %u: not the last token of its history", segment->slot);
}

static void draft_row(fake_runner *f, const fake_flight *b, const weft_batch *batch, uint32_t i, uint32_t n,
                      int32_t *out) {
  const weft_slot_params *params = &f->slot[batch->segment[i].slot].params;
  const int32_t n_vocab = (int32_t)f->info.n_vocab;
  draft_text text = {.f = f, .flight = b, .segment = i, .first = (uint32_t)batch->position[i]};
  int32_t token = batch->token[i];
  for (uint32_t k = 0; k < n; k++) {
    const weft_fake_sums seen = add_row(&text, token, text.first + k);
    uint64_t draws = weft_mix64(seen.group[0] ^ weft_mix64(f->config.model.salt + k));
    token =
        weft_fake_token(&f->config.model, &seen, text.first + k + 1, params->sampling->seed, params->sampling->choice)
            .token;
    out[k] = draws % 100 < f->config.drafts_right ? token : (token + 1) % n_vocab;
    if (draws >> 32 & 1 && draws % NONE_ONE_IN == 0) out[k] = -1;
  }
}

weft_status fake_runner_draft(weft_runner *runner, const weft_batch *batch, uint32_t n_drafts, int32_t *out) {
  fake_runner *f = (fake_runner *)runner;
  /* the arrays are only read */
  const fake_flight flight = {.n_segments = batch->n_segments,
                              .segment = (weft_segment *)(uintptr_t)batch->segment,
                              .table = (uint32_t *)(uintptr_t)batch->table,
                              .table_at = (uint32_t *)(uintptr_t)batch->table_at};
  if (++f->n_drafts == f->config.fail_draft_at) f->broken = true;
  if (f->broken) return WEFT_E_DEVICE;
  if (!f->info.drafts || n_drafts == 0 || n_drafts > DRAFTS_MAX || batch->n_segments != batch->n_rows)
    fake_runner_note(f, "%u drafts of %u rows", n_drafts, batch->n_rows);
  fake_runner_compute_all(f->config.store); /* what batches before it wrote, and copied, is there */
  f->config.store->n_batches += 1;
  for (uint32_t i = 0; i < batch->n_rows && f->violation[0] == 0; i++) {
    check_row(f, batch, i);
    if (f->violation[0] == 0) draft_row(f, &flight, batch, i, n_drafts, out + (size_t)i * n_drafts);
  }
  return f->violation[0] == 0 ? WEFT_OK : WEFT_E_INVALID;
}
