/* SPDX-License-Identifier: MIT */
#include "bench/doubles/fake_runner.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "bench/doubles/fake_flight.h"

/* ---- the runner ------------------------------------------------------------------------------ */

void fake_runner_note(fake_runner *f, const char *format, ...) {
  if (f->violation[0] != 0) return;
  va_list args;
  va_start(args, format);
  (void)vsnprintf(f->violation, sizeof f->violation, format, args);
  va_end(args);
}

/* ---- memory access through tables ------------------------------------------------------------ */

static cell *cell_at(fake_runner *f, uint32_t g, int64_t kv_slot) {
  weft_fake_store *store = f->config.store;
  uint32_t block_tokens = f->info.group[g].block_tokens;
  uint64_t page = (uint64_t)kv_slot / block_tokens;
  if (kv_slot < 0 || page >= store->n_open) {
    fake_runner_note(f, "group %u: slot %lld is outside the pool", g, (long long)kv_slot);
    page = 0;
  }
  return &store->cell[page * store->stride + (uint64_t)kv_slot % block_tokens];
}

/* Whether another request writes the page in this batch. */
static bool writes_another(const fake_runner *f, const fake_flight *b, uint32_t s, uint32_t page) {
  const weft_fake_store *store = f->config.store;
  const page_note *note = &store->note[page < store->n_open ? page : 0];
  return note->batch == store->n_batches && (note->slot != b->segment[s].slot || note->runner != f->config.id);
}

uint64_t fake_runner_cell(fake_runner *f, const fake_flight *b, uint32_t s, uint32_t g, uint32_t position) {
  weft_fake_store *store = f->config.store;
  uint32_t block_tokens = f->info.group[g].block_tokens;
  uint32_t page = b->table[b->table_at[s * f->info.n_groups + g] + position / block_tokens];
  if (page >= store->n_open) {
    fake_runner_note(f, "segment %u reads position %u of group %u through page %u", s, position, g, page);
    return 0;
  }
  if (writes_another(f, b, s, page)) {
    fake_runner_note(f, "segment %u reads page %u, which slot %u writes in the same batch", s, page,
                     store->note[page].slot);
  }
  const cell *c = cell_at(f, g, (int64_t)page * block_tokens + position % block_tokens);
  if (c->runner != f->config.id + 1 || c->group != g || c->position != position) {
    fake_runner_note(f, "segment %u reads position %u of group %u and finds position %u, group %u, runner %d", s,
                     position, g, c->position, c->group, (int)c->runner - 1);
  }
  return c->value;
}

static fake_state state_of(const fake_runner *f, uint32_t g, uint32_t border, const uint32_t *page) {
  return (fake_state){page, f->info.group[g].state_pages, g, border, f->config.id};
}

/* The state that the first row of the segment begins with. */
static uint64_t read_state(fake_runner *f, const fake_flight *b, uint32_t s, uint32_t g) {
  uint32_t every = f->info.group[g].block_tokens, at = b->table_at[s * f->info.n_groups + g];
  const uint32_t *page = at == WEFT_STATE_NONE ? NULL : b->table + at;
  fake_state state = state_of(f, g, b->segment[s].kv_len / every * every, page);
  uint64_t value = 0;
  bool good = (state.border == 0) == (page == NULL);
  if (good && state.border > 0) good = weft_fake_state_read(f->config.store, &state, &value);
  for (uint32_t i = 0; good && state.border > 0 && i < state.n_pages; i++)
    good = !writes_another(f, b, s, state.page[i]);
  if (!good) fake_runner_note(f, "segment %u, group %u: the state at %u is not there", s, g, state.border);
  return value;
}

/* Behind the row at position - 1 lies a border: there are new states, some of which the batch keeps. */
static void pass_border(fake_runner *f, const fake_flight *b, uint32_t s, uint32_t position, weft_fake_sums *sums) {
  const weft_fake_sums with_row = *sums;
  for (uint32_t g = f->n_plain; g < f->info.n_groups; g++) {
    if (position % f->info.group[g].block_tokens != 0) continue;
    sums->group[g] = weft_fake_state(&f->config.model, g, position, &with_row);
    for (uint32_t i = 0; i < b->n_states; i++) {
      const weft_state_write *w = &b->state[i];
      if (w->segment != s || w->group != g || w->position != position) continue;
      fake_state state = state_of(f, g, position, b->written + w->table_at);
      weft_fake_state_write(f->config.store, &state, sums->group[g]);
    }
  }
}

/* What the row at `position` sees before it. */
static weft_fake_sums gather_sums(fake_runner *f, const fake_flight *b, uint32_t s, uint32_t position) {
  weft_fake_sums sums = {{0}};
  for (uint32_t g = f->n_plain; g < f->info.n_groups; g++) sums.group[g] = read_state(f, b, s, g);
  for (uint32_t g = 0; g < f->n_plain; g++) {
    uint32_t first = weft_fake_first_visible(&f->info.group[g], position);
    for (uint32_t p = first; p < position; p++) sums.group[g] += fake_runner_cell(f, b, s, g, p);
  }
  return sums;
}

/* The row's own cells join, and what the next row no longer sees goes. */
static void write_row(fake_runner *f, const fake_flight *b, uint32_t s, uint32_t row, int32_t token,
                      weft_fake_sums *sums) {
  const weft_segment *segment = &b->segment[s];
  uint32_t position = segment->kv_len + (row - segment->first_row);
  weft_fake_sums before = *sums;
  for (uint32_t g = 0; g < f->n_plain; g++) {
    cell *c = cell_at(f, g, b->kv_slot[g][row]);
    c->value = weft_fake_cell(&f->config.model, g, token, position, &before);
    c->position = position;
    c->group = (uint16_t)g;
    c->runner = (uint16_t)(f->config.id + 1);
    sums->group[g] += fake_runner_cell(f, b, s, g, position); /* the table must lead to the same cell */
  }
}

static void forget_row(fake_runner *f, const fake_flight *b, uint32_t s, uint32_t position, weft_fake_sums *sums) {
  for (uint32_t g = 0; g < f->n_plain; g++) {
    const weft_layer_group *group = &f->info.group[g];
    uint32_t now = weft_fake_first_visible(group, position);
    uint32_t next = weft_fake_first_visible(group, position + 1);
    for (uint32_t p = now; p < next; p++) sums->group[g] -= fake_runner_cell(f, b, s, g, p);
  }
}

/* ---- segments -------------------------------------------------------------------------------- */

/* in_run: a row of a run up to which all drafts were right, or a row before the run. Only these must hold tokens of the
 * request. */
static int32_t row_token(fake_runner *f, const fake_flight *b, const weft_segment *segment, const fake_slot *slot,
                         uint32_t row, bool in_run) {
  uint32_t i = row - segment->first_row, position = segment->kv_len + i;
  switch (segment->token_source) {
    case WEFT_TOKENS_HOST:
      if (in_run && slot->params.draws && (position >= slot->n_tokens || slot->tokens[position] != b->token[row])) {
        fake_runner_note(f, "slot %u: the host's token at position %u is not the one of its history", segment->slot,
                         position);
      }
      return b->token[row];
    case WEFT_TOKENS_SAMPLED:
      if (position + 1 != slot->n_tokens) {
        fake_runner_note(f, "slot %u: the sampled token belongs to position %u, the row is at %u", segment->slot,
                         slot->n_tokens - 1, position);
      }
      return slot->last_token;
    case WEFT_TOKENS_ARGMAX:
      return slot->canvas.host.argmax[i];
    case WEFT_TOKENS_CANVAS:
      break;
  }
  fake_runner_note(f, "slot %u: a causal row with the tokens of a moving canvas", segment->slot);
  return 0;
}

/* Row i of the segment draws a token, when the row's own cells have joined what it sees. Whether the run goes on: the
 * next row holds what was drawn. */
static bool draw_token(fake_runner *f, fake_flight *b, const weft_segment *segment, uint32_t i,
                       const weft_fake_sums *seen, weft_segment_result *result) {
  fake_slot *slot = &f->slot[segment->slot];
  uint32_t end = segment->kv_len + i + 1;
  if (end != slot->n_tokens) {
    fake_runner_note(f, "slot %u: a token is wanted after %u tokens, its history has %u", segment->slot, end,
                     slot->n_tokens);
  }
  weft_sampled *drawn = &b->drawn[b->n_drawn++];
  *drawn = weft_fake_token(&f->config.model, seen, end, slot->params.sampling->seed, slot->params.sampling->choice);
  slot->last_token = drawn->token;
  if (end < f->info.context_length) slot->tokens[end] = slot->last_token;
  slot->n_tokens = end + 1; /* also where the row is bad: rows in flight stand on it */
  if (weft_fake_is_bad(&f->config.model, seen)) {
    result->bad = true;
    return false;
  }
  if (result->n_taken++ == 0) result->token = drawn;
  result->left_format = ++f->n_sampled == f->config.leave_format_at;
  return !result->left_format && i + 1 < segment->n_rows && b->token[segment->first_row + i + 1] == drawn->token;
}

/* One row of a prompt, when the row's own cells have joined what it sees. */
static void score_row(fake_runner *f, fake_flight *b, const weft_segment *segment, uint32_t i,
                      const weft_fake_sums *seen, weft_segment_result *result) {
  const fake_slot *slot = &f->slot[segment->slot];
  uint32_t next = segment->kv_len + i + 1;
  if (i < segment->first_output || i - segment->first_output >= weft_segment_n_scored(segment)) return;
  if (next >= slot->params.n_prompt) {
    fake_runner_note(f, "slot %u: the row before position %u is scored, the prompt has %u tokens", segment->slot, next,
                     slot->params.n_prompt);
    next = 0;
  }
  weft_scored *scored = &b->scored[b->n_scored++];
  if (result->scored == NULL) result->scored = scored;
  *scored = weft_fake_score(&f->config.model, seen, slot->tokens[next]);
  result->bad = result->bad || weft_fake_is_bad(&f->config.model, seen);
}

static void compute_causal(fake_runner *f, fake_flight *b, uint32_t s, weft_segment_result *result) {
  const weft_segment *segment = &b->segment[s];
  fake_slot *slot = &f->slot[segment->slot];
  uint32_t first_drawn = segment->n_rows - weft_segment_n_sampled(segment);
  bool in_run = true;
  uint32_t n_tokens = slot->n_tokens;
  int32_t last_token = slot->last_token;
  weft_fake_sums sums = gather_sums(f, b, s, segment->kv_len);
  for (uint32_t i = 0; i < segment->n_rows; i++) {
    uint32_t row = segment->first_row + i, position = segment->kv_len + i;
    write_row(f, b, s, row, row_token(f, b, segment, slot, row, in_run), &sums);
    score_row(f, b, segment, i, &sums, result);
    if (in_run && i >= first_drawn) in_run = draw_token(f, b, segment, i, &sums, result);
    if (f->n_plain < f->info.n_groups) pass_border(f, b, s, position + 1, &sums);
    if (i + 1 < segment->n_rows) forget_row(f, b, s, position, &sums);
  }
  if (segment->peeks) {
    slot->n_tokens = n_tokens;
    slot->last_token = last_token;
    weft_sampled *last = &b->drawn[b->n_drawn - 1];
    if (f->config.peeks_lie) last->token = (last->token + 1) % (int32_t)f->info.n_vocab;
  }
  if (segment->token_source == WEFT_TOKENS_ARGMAX && !slot->canvas.done) {
    fake_runner_note(f, "slot %u: a canvas that is not done is committed", segment->slot);
  }
}

static void copy_canvas_result(fake_runner *f, fake_flight *b, const weft_segment *segment, const fake_slot *slot,
                               weft_segment_result *result) {
  const weft_fake_canvas *c = &slot->canvas;
  uint32_t n = f->info.canvas_length;
  size_t n_bytes = (size_t)n * sizeof(int32_t);
  int32_t *rows[4];
  for (uint32_t i = 0; i < 4; i++) {
    rows[i] = b->canvas_rows + (size_t)i * f->info.rows_max + segment->first_row;
  }
  memcpy(rows[0], c->host.argmax, n_bytes);
  result->argmax = rows[0];
  if (!slot->params.trace) return;
  memcpy(rows[1], c->current, n_bytes);
  memcpy(rows[2], c->host.drawn, n_bytes);
  memcpy(rows[3], c->host.next, n_bytes);
  memcpy(b->entropy + segment->first_row, c->host.entropy, (size_t)n * sizeof(float));
  memcpy(b->accepted + segment->first_row, c->host.accepted, n);
  result->canvas_in = rows[1];
  result->drawn = rows[2];
  result->canvas_out = rows[3];
  result->entropy = b->entropy + segment->first_row;
  result->accepted = b->accepted + segment->first_row;
}

static void compute_canvas(fake_runner *f, fake_flight *b, uint32_t s, weft_segment_result *result) {
  const weft_segment *segment = &b->segment[s];
  fake_slot *slot = &f->slot[segment->slot];
  weft_fake_canvas *c = &slot->canvas;
  if (segment->step > 0 && segment->block == slot->block && c->done) {
    result->is_void = true;
    slot->next_step = segment->step + 1;
    return;
  }
  bool next_block = segment->step == 0;
  bool next_step = segment->block == slot->block && segment->step == slot->next_step;
  if (!next_block && !next_step) {
    fake_runner_note(f, "slot %u: step %u of canvas %u comes after step %u of canvas %u", segment->slot, segment->step,
                     segment->block, slot->next_step - 1, slot->block);
  }
  slot->block = segment->block;
  slot->next_step = segment->step + 1;
  weft_fake_sums sums = gather_sums(f, b, s, segment->kv_len);
  weft_fake_canvas_step(&f->config.model, c, &sums, segment->kv_len, slot->params.sampling, slot->params.entropy_bound,
                        segment->step);
  result->bad = weft_fake_is_bad(&f->config.model, &sums);
  result->done = c->done;
  result->stopped = c->stopped;
  result->n_accepted = c->n_accepted;
  result->temperature = c->temperature;
  result->mean_entropy = c->mean_entropy;
  copy_canvas_result(f, b, segment, slot, result);
}

/* ---- a batch --------------------------------------------------------------------------------- */

static void note_write(fake_runner *f, const weft_segment *segment, uint64_t page) {
  weft_fake_store *store = f->config.store;
  if (page >= store->n_open) return; /* shows when it is written */
  page_note *note = &store->note[page];
  if (note->batch == store->n_batches && note->slot != segment->slot) {
    fake_runner_note(f, "slots %u and %u both write page %llu", note->slot, segment->slot, (unsigned long long)page);
  }
  *note = (page_note){.batch = store->n_batches, .slot = segment->slot, .runner = f->config.id};
}

/* Notes which request writes which page, so that reads by others show. */
static void note_writes(fake_runner *f, const fake_flight *b) {
  f->config.store->n_batches += 1;
  for (uint32_t i = 0; i < b->n_states; i++) {
    const weft_state_write *w = &b->state[i];
    for (uint32_t k = 0; k < f->info.group[w->group].state_pages; k++)
      note_write(f, &b->segment[w->segment], b->written[w->table_at + k]);
  }
  for (uint32_t s = 0; s < b->n_segments; s++) {
    const weft_segment *segment = &b->segment[s];
    if (segment->stores != WEFT_STORES_POOL) continue;
    for (uint32_t g = 0; g < f->n_plain; g++) {
      for (uint32_t i = 0; i < segment->n_rows; i++) {
        int64_t kv_slot = b->kv_slot[g][segment->first_row + i];
        note_write(f, segment, kv_slot < 0 ? UINT64_MAX : (uint64_t)kv_slot / f->info.group[g].block_tokens);
      }
    }
  }
}

/* Without a store: a token is a hash of slot and position, a canvas is done at its last step. */
static void compute_light(fake_runner *f, fake_flight *b) {
  for (uint32_t s = 0; s < b->n_segments; s++) {
    const weft_segment *segment = &b->segment[s];
    if (segment->n_outputs == 0) continue;
    weft_segment_result *result = &b->result[b->n_results++];
    result->segment = s;
    result->is_void = result->bad = false;
    result->scored = b->scored;
    result->n_taken = 1;
    result->token = &b->drawn[s];
    if (segment->pass == WEFT_PASS_DECODER) {
      fake_slot *slot = &f->slot[segment->slot];
      result->done = segment->step + 1 == slot->params.entropy_bound->max_steps;
      result->argmax = b->canvas_rows + segment->first_row;
    } else {
      b->drawn[s].token = (int32_t)((segment->slot + segment->kv_len) % f->info.n_vocab);
    }
  }
}

static void compute_flight(fake_runner *f, fake_flight *b) {
  b->computed = true;
  b->n_results = b->n_scored = b->n_drawn = 0;
  if (f->config.store == NULL) {
    compute_light(f, b);
    return;
  }
  weft_fake_store_run_copies(f->config.store, b->copy, b->n_copies);
  if (f->broken) return; /* its copies belong to the pool */
  note_writes(f, b);
  for (uint32_t s = 0; s < b->n_segments; s++) {
    const weft_segment *segment = &b->segment[s];
    weft_segment_result result = {.segment = s};
    if (!f->slot[segment->slot].open) { /* closed in flight: the result is not read */
      result.is_void = true;
    } else if (segment->pass == WEFT_PASS_DECODER) {
      compute_canvas(f, b, s, &result);
    } else {
      compute_causal(f, b, s, &result);
    }
    if (segment->n_outputs > 0) b->result[b->n_results++] = result;
  }
}

/* Batches over one pool are computed in the order in which they were submitted, whichever runner computes
 * them. */
static void compute_until(weft_fake_store *store, const fake_flight *last) {
  uint32_t n = 0;
  while (n < store->n_pending) {
    pending *p = &store->pending[n++];
    compute_flight(p->runner, p->flight);
    if (p->flight == last) break;
  }
  store->n_pending -= n;
  memmove(store->pending, store->pending + n, store->n_pending * sizeof *store->pending);
}

void fake_runner_compute_all(weft_fake_store *store) {
  if (store->n_pending > 0) compute_until(store, store->pending[store->n_pending - 1].flight);
}

/* ---- submit ---------------------------------------------------------------------------------- */

static void check_outputs(fake_runner *f, uint32_t s, const weft_segment *segment) {
  uint32_t end = segment->first_output + segment->n_outputs, n_drawn = weft_segment_n_sampled(segment);
  if (end > segment->n_rows || (n_drawn > 0 && end != segment->n_rows)) {
    fake_runner_note(f, "segment %u: rows %u to %u have outputs of %u rows, of which %u draw a token", s,
                     segment->first_output, end, segment->n_rows, n_drawn);
  }
  bool knows = segment->token_source == WEFT_TOKENS_HOST || (n_drawn < 2 && weft_segment_n_scored(segment) == 0);
  if (segment->n_outputs > 0 && ((segment->ask == WEFT_ASK_CANVAS) != (segment->pass == WEFT_PASS_DECODER) || !knows)) {
    fake_runner_note(f, "segment %u: %u outputs are asked for %d", s, segment->n_outputs, (int)segment->ask);
  }
}

static void check_segments(fake_runner *f, const weft_batch *batch) {
  uint32_t row = 0, n_scored = 0, n_drafts = 0;
  for (uint32_t s = 0; s < batch->n_segments; s++) {
    const weft_segment *segment = &batch->segment[s];
    bool ok = segment->slot < f->info.n_slots && f->slot[segment->slot].open;
    if (!ok) fake_runner_note(f, "segment %u: slot %u is not open", s, segment->slot);
    if (segment->first_row != row || segment->n_rows == 0) {
      fake_runner_note(f, "segment %u starts at row %u, not %u", s, segment->first_row, row);
    }
    bool decoder = segment->pass == WEFT_PASS_DECODER, scratch = segment->stores == WEFT_STORES_SCRATCH;
    if (scratch != (row >= batch->n_stored) || decoder != (row >= batch->n_encoder))
      fake_runner_note(f, "segment %u is out of order", s);
    if (decoder != scratch || decoder != (segment->mask == WEFT_MASK_WHOLE)) { /* the fake model has no other kinds */
      fake_runner_note(f, "segment %u: mask %d, stores %d, pass %d", s, segment->mask, segment->stores, segment->pass);
    }
    if (decoder && segment->n_rows != f->info.canvas_length) {
      fake_runner_note(f, "segment %u: a canvas of %u rows", s, segment->n_rows);
    }
    for (uint32_t i = 0; i < segment->n_rows && f->config.store != NULL; i++) {
      if (batch->position[row + i] != (int32_t)(segment->kv_len + i)) {
        fake_runner_note(f, "segment %u: row %u is at position %d", s, i, batch->position[row + i]);
      }
    }
    check_outputs(f, s, segment);
    uint32_t n_drawn = weft_segment_n_sampled(segment);
    row += segment->n_rows;
    n_scored += weft_segment_n_scored(segment);
    n_drafts += n_drawn > 0 ? n_drawn - 1 : 0;
  }
  if (n_scored > f->info.scored_rows_max) fake_runner_note(f, "%u rows are scored in one batch", n_scored);
  if (n_drafts > f->info.draft_rows_max) fake_runner_note(f, "%u drafts in one batch", n_drafts);
  if (row != batch->n_rows || row > f->info.rows_max || batch->n_segments > f->segments_max) {
    fake_runner_note(f, "%u rows in %u segments, the batch says %u", row, batch->n_segments, batch->n_rows);
  }
}

static void copy_tables(fake_runner *f, fake_flight *b, const weft_batch *batch) {
  uint32_t at = 0, n_groups = f->info.n_groups;
  for (uint32_t s = 0; s < batch->n_segments; s++) {
    const weft_segment *segment = &batch->segment[s];
    uint32_t end = segment->kv_len + (segment->stores == WEFT_STORES_POOL ? segment->n_rows : 0);
    for (uint32_t g = 0; g < n_groups; g++) {
      uint32_t block_tokens = f->info.group[g].block_tokens, is_state = g >= f->n_plain;
      uint32_t n = is_state ? f->info.group[g].state_pages : (end + block_tokens - 1) / block_tokens;
      b->table_at[s * n_groups + g] = WEFT_STATE_NONE;
      if (is_state && batch->table_at[s * n_groups + g] == WEFT_STATE_NONE) continue;
      memcpy(b->table + at, batch->table + batch->table_at[s * n_groups + g], n * sizeof *b->table);
      b->table_at[s * n_groups + g] = at;
      at += n;
    }
  }
}

static void copy_states(fake_runner *f, fake_flight *b, const weft_batch *batch) {
  uint32_t at = 0;
  b->n_states = batch->n_states;
  for (uint32_t i = 0; i < batch->n_states; i++) {
    uint32_t n = f->info.group[batch->state[i].group].state_pages;
    b->state[i] = batch->state[i];
    b->state[i].table_at = at;
    memcpy(b->written + at, batch->table + batch->state[i].table_at, n * sizeof *b->written);
    at += n;
  }
}

static void copy_batch(fake_runner *f, fake_flight *b, const weft_batch *batch) {
  b->number = batch->number;
  b->computed = false;
  b->n_segments = batch->n_segments;
  memcpy(b->segment, batch->segment, batch->n_segments * sizeof *b->segment);
  if (f->config.store == NULL) return;
  memcpy(b->token, batch->token, batch->n_rows * sizeof *b->token);
  for (uint32_t g = 0; g < f->n_plain; g++) {
    memcpy(b->kv_slot[g], batch->kv_slot[g], batch->n_rows * sizeof *b->kv_slot[g]);
  }
  copy_tables(f, b, batch);
  copy_states(f, b, batch);
  b->n_copies = batch->n_copies;
  if (batch->n_copies > COPIES_MAX) {
    fake_runner_note(f, "%u page copies in one batch", batch->n_copies);
    b->n_copies = 0;
  }
  memcpy(b->copy, batch->copy, b->n_copies * sizeof *b->copy);
  weft_fake_store_judge_copies(f->config.store, b->copy, b->n_copies);
}

void weft_fake_store_resize(weft_fake_store *store, uint32_t n_pages) {
  WEFT_CHECK(n_pages <= store->n_pages);
  fake_runner_compute_all(store); /* of runners that broke; nothing else is pending */
  uint32_t from = n_pages < store->n_open ? n_pages : store->n_open;
  uint32_t to = n_pages < store->n_open ? store->n_open : n_pages;
  memset(store->cell + (uint64_t)from * store->stride, 0, (uint64_t)(to - from) * store->stride * sizeof *store->cell);
  store->n_open = n_pages;
}

static weft_status fake_submit(weft_runner *runner, const weft_batch *batch) {
  fake_runner *f = (fake_runner *)runner;
  f->n_submits += 1;
  if (f->n_submits == f->config.fail_submit_at) f->broken = true;
  if (f->broken && f->config.store != NULL) {
    fake_runner_compute_all(f->config.store);
    weft_fake_store_run_copies(f->config.store, batch->copy, batch->n_copies);
  }
  if (f->broken) return WEFT_E_DEVICE;
  if (f->n_flight == f->info.depth) {
    fake_runner_note(f, "more than %u batches in flight", f->info.depth);
    return WEFT_E_INVALID;
  }
  check_segments(f, batch);
  if (f->violation[0] != 0) return WEFT_E_INVALID;
  fake_flight *b = &f->flight[(f->first + f->n_flight) % (f->info.depth + 1)];
  copy_batch(f, b, batch);
  b->device_us = f->config.law == NULL ? 1000 : f->config.law(f->config.law_self, batch);
  f->n_flight += 1;
  weft_fake_store *store = f->config.store;
  if (store == NULL) {
    compute_flight(f, b);
    return WEFT_OK;
  }
  WEFT_CHECK(store->n_pending < PENDING_MAX);
  store->pending[store->n_pending++] = (pending){.runner = f, .flight = b};
  if (!f->config.lazy) compute_until(store, b);
  return WEFT_OK;
}

static weft_status fake_collect(weft_runner *runner, weft_step_result *result) {
  fake_runner *f = (fake_runner *)runner;
  f->n_collects += 1;
  if (f->n_collects == f->config.fail_collect_at) f->broken = true;
  if (f->broken) return WEFT_E_DEVICE;
  if (f->n_flight == 0) return WEFT_AGAIN;
  fake_flight *b = &f->flight[f->first];
  f->first = (f->first + 1) % (f->info.depth + 1);
  f->n_flight -= 1;
  if (!b->computed) compute_until(f->config.store, b);
  *result = (weft_step_result){.number = b->number,
                               .status = WEFT_OK,
                               .n_results = b->n_results,
                               .result = b->result,
                               .device_us = b->device_us};
  return WEFT_OK;
}

static uint32_t fake_copies_ended(weft_runner *runner, weft_copy_end *out, uint32_t max) {
  weft_fake_store *store = ((fake_runner *)runner)->config.store;
  return store == NULL ? 0 : weft_fake_store_copies_ended(store, out, max);
}

/* ---- slots ----------------------------------------------------------------------------------- */

static weft_status fake_slot_open(weft_runner *runner, uint32_t at, const weft_slot_params *params) {
  fake_runner *f = (fake_runner *)runner;
  f->n_slot_opens += 1;
  if (f->n_slot_opens == f->config.fail_slot_at) return WEFT_E_NO_MEMORY;
  if (f->broken) return WEFT_E_DEVICE;
  if (at >= f->info.n_slots || f->slot[at].open) {
    fake_runner_note(f, "slot %u is opened twice or does not exist", at);
    return WEFT_E_INVALID;
  }
  fake_slot *slot = &f->slot[at];
  slot->open = true;
  slot->params = *params;
  slot->n_tokens = params->n_tokens;
  slot->block = UINT32_MAX;
  slot->next_step = 0;
  if (f->config.store == NULL) return WEFT_OK;
  if (params->n_tokens > f->info.context_length) {
    fake_runner_note(f, "slot %u: %u tokens in a context of %u", at, params->n_tokens, f->info.context_length);
    return WEFT_E_INVALID;
  }
  memcpy(slot->tokens, params->tokens, params->n_tokens * sizeof *slot->tokens);
  if (f->info.canvas_length > 0) {
    weft_fake_canvas_open(&slot->canvas, slot->canvas_memory, f->info.canvas_length);
  }
  return WEFT_OK;
}

static void fake_slot_close(weft_runner *runner, uint32_t at) {
  fake_runner *f = (fake_runner *)runner;
  if (at >= f->info.n_slots || !f->slot[at].open)
    fake_runner_note(f, "slot %u is closed twice", at);
  else
    f->slot[at].open = false;
}

/* The arrays of a canvas stay where they are: slot and place change theirs. */
static void swap_memory(fake_slot *slot, fake_save *save) {
  void *memory = slot->canvas_memory;
  slot->canvas_memory = save->memory;
  save->memory = memory;
}

static weft_status fake_slot_save(weft_runner *runner, uint32_t at, uint32_t where) {
  fake_runner *f = (fake_runner *)runner;
  if (f->broken) return WEFT_E_DEVICE;
  if (where >= f->info.n_saves || !f->slot[at].open) {
    fake_runner_note(f, "slot %u is not open, or there is no place %u", at, where);
    return WEFT_E_INVALID;
  }
  fake_slot *slot = &f->slot[at];
  fake_save *save = &f->save[where];
  swap_memory(slot, save);
  save->canvas = slot->canvas;
  save->block = slot->block;
  save->next_step = slot->next_step;
  save->full = true;
  return WEFT_OK;
}

static weft_status fake_slot_restore(weft_runner *runner, uint32_t at, uint32_t where) {
  fake_runner *f = (fake_runner *)runner;
  if (f->broken) return WEFT_E_DEVICE;
  if (where >= f->info.n_saves || !f->slot[at].open || !f->save[where].full) {
    fake_runner_note(f, "slot %u is not open, or place %u is empty", at, where);
    return WEFT_E_INVALID;
  }
  fake_slot *slot = &f->slot[at];
  fake_save *save = &f->save[where];
  swap_memory(slot, save);
  slot->canvas = save->canvas;
  slot->block = save->block;
  slot->next_step = save->next_step;
  save->full = false;
  return WEFT_OK;
}

uint32_t weft_fake_runner_open_slots(const weft_runner *runner) {
  const fake_runner *f = (const fake_runner *)runner;
  uint32_t n = 0;
  for (uint32_t i = 0; i < f->info.n_slots; i++) n += f->slot[i].open;
  return n;
}

void weft_fake_runner_break(weft_runner *runner) {
  ((fake_runner *)runner)->broken = true;
}

const char *weft_fake_runner_violation(const weft_runner *runner) {
  const fake_runner *f = (const fake_runner *)runner;
  return f->violation[0] == 0 ? NULL : f->violation;
}

static const weft_runner_info *fake_info(const weft_runner *runner) {
  return &((const fake_runner *)runner)->info;
}

/* ---- open, close ----------------------------------------------------------------------------- */

static void close_flight(fake_flight *b) {
  weft_free(b->segment);
  weft_free(b->token);
  for (uint32_t g = 0; g < WEFT_GROUPS_MAX; g++) weft_free(b->kv_slot[g]);
  weft_free(b->table);
  weft_free(b->table_at);
  weft_free(b->state);
  weft_free(b->written);
  weft_free(b->copy);
  weft_free(b->result);
  weft_free(b->scored);
  weft_free(b->drawn);
  weft_free(b->canvas_rows);
  weft_free(b->entropy);
  weft_free(b->accepted);
}

static void fake_close(weft_runner *runner) {
  fake_runner *f = (fake_runner *)runner;
  if (f->config.store != NULL) fake_runner_compute_all(f->config.store);
  for (uint32_t i = 0; f->slot != NULL && i < f->info.n_slots; i++) {
    weft_free(f->slot[i].tokens);
    weft_free(f->slot[i].canvas_memory);
  }
  for (uint32_t i = 0; f->flight != NULL && i <= f->info.depth; i++) close_flight(&f->flight[i]);
  for (uint32_t i = 0; f->save != NULL && i < f->info.n_saves; i++) weft_free(f->save[i].memory);
  weft_free(f->save);
  weft_free(f->slot);
  weft_free(f->flight);
  weft_free(f);
}

static const weft_runner_ops fake_ops = {WEFT_RUNNER_OPS_ALL(fake), .draft = fake_runner_draft};

static bool open_flight(const fake_runner *f, fake_flight *b) {
  size_t rows = f->info.rows_max, segments = f->segments_max;
  b->segment = weft_alloc(segments, sizeof *b->segment);
  b->result = weft_alloc(segments, sizeof *b->result);
  b->scored = weft_alloc(f->info.scored_rows_max, sizeof *b->scored);
  b->drawn = weft_alloc(segments + f->info.draft_rows_max, sizeof *b->drawn);
  b->canvas_rows = weft_alloc(rows * 4, sizeof *b->canvas_rows);
  b->entropy = weft_alloc(rows, sizeof *b->entropy);
  b->accepted = weft_alloc(rows, 1);
  bool ok = b->segment != NULL && b->result != NULL && b->scored != NULL && b->drawn != NULL &&
            b->canvas_rows != NULL && b->entropy != NULL && b->accepted != NULL;
  if (!ok || f->config.store == NULL) return ok;
  b->token = weft_alloc(rows, sizeof *b->token);
  b->table = weft_alloc(segments * f->table_stride, sizeof *b->table);
  b->table_at = weft_alloc(segments * f->info.n_groups, sizeof *b->table_at);
  b->copy = weft_alloc(COPIES_MAX, sizeof *b->copy);
  b->state = weft_alloc(rows * f->info.n_groups, sizeof *b->state);
  b->written = weft_alloc(rows * f->state_pages + 1, sizeof *b->written);
  ok = b->token != NULL && b->table != NULL && b->table_at != NULL && b->copy != NULL && b->state != NULL &&
       b->written != NULL;
  for (uint32_t g = 0; ok && g < f->info.n_groups; g++) {
    b->kv_slot[g] = weft_alloc(rows, sizeof *b->kv_slot[g]);
    ok = b->kv_slot[g] != NULL;
  }
  return ok;
}

static bool open_slots(fake_runner *f) {
  f->slot = weft_alloc(f->info.n_slots, sizeof *f->slot);
  if (f->slot == NULL) return false;
  for (uint32_t i = 0; f->config.store != NULL && i < f->info.n_slots; i++) {
    f->slot[i].tokens = weft_alloc(f->info.context_length, sizeof(int32_t));
    f->slot[i].canvas_memory = weft_alloc(1, weft_fake_canvas_bytes(f->info.canvas_length) + 16);
    if (f->slot[i].tokens == NULL || f->slot[i].canvas_memory == NULL) return false;
  }
  return true;
}

static bool open_saves(fake_runner *f) {
  f->save = weft_alloc(f->info.n_saves, sizeof *f->save);
  for (uint32_t i = 0; f->save != NULL && i < f->info.n_saves; i++) {
    f->save[i].memory = weft_alloc(1, weft_fake_canvas_bytes(f->info.canvas_length) + 16);
    if (f->save[i].memory == NULL) return false;
  }
  return f->save != NULL;
}

static void fill_info(fake_runner *f) {
  const weft_fake_config *c = &f->config;
  weft_runner_info *info = &f->info;
  (void)snprintf(info->name, sizeof info->name, "%s", c->name);
  (void)snprintf(info->arch, sizeof info->arch, "fake");
  info->fingerprint_low = c->model.salt;
  info->fingerprint_high = c->id;
  info->n_vocab = c->model.n_vocab;
  info->context_length = c->context_length;
  info->canvas_length = c->model.n_canvas;
  info->autoregressive = c->autoregressive;
  info->n_slots = c->n_slots;
  info->n_saves = c->store == NULL || c->model.n_canvas == 0 ? 0 : c->n_saves;
  info->rows_max = c->rows_max;
  info->scored_rows_max = c->scored_rows_max;
  info->draft_rows_max = c->store == NULL ? 0 : c->draft_rows_max;
  info->depth = c->depth;
  info->n_stages = c->n_stages == 0 ? 1 : c->n_stages;
  info->n_experts = c->n_experts;
  info->n_experts_used = c->n_experts_used;
  info->n_groups = c->model.n_groups;
  for (uint32_t g = 0; g < info->n_groups; g++) {
    info->group[g] = c->model.group[g];
    f->table_stride += c->context_length / info->group[g].block_tokens + 1 + info->group[g].state_pages;
    f->state_pages += info->group[g].state_pages;
    f->n_plain += info->group[g].state_pages == 0;
  }
  info->graphs = c->graphs;
  info->drafts = info->draft_rows_max > 0 && c->drafts && f->n_plain == info->n_groups;
  info->entropy_bound = weft_entropy_bound_default();
  f->segments_max = 2 * c->n_slots < c->rows_max ? 2 * c->n_slots : c->rows_max;
}

weft_status weft_fake_runner_open(const weft_fake_config *config, weft_runner **out) {
  *out = NULL;
  fake_runner *f = weft_alloc(1, sizeof *f);
  if (f == NULL) return WEFT_E_NO_MEMORY;
  f->head.ops = &fake_ops;
  f->config = *config;
  fill_info(f);
  bool ok = open_slots(f) && open_saves(f);
  if (ok) f->flight = weft_alloc(config->depth + 1, sizeof *f->flight);
  ok = ok && f->flight != NULL;
  for (uint32_t i = 0; ok && i <= config->depth; i++) ok = open_flight(f, &f->flight[i]);
  if (!ok) {
    fake_close(&f->head);
    return WEFT_E_NO_MEMORY;
  }
  *out = &f->head;
  return WEFT_OK;
}
