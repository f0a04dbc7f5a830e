/* SPDX-License-Identifier: MIT */
#include "api/server/request_log.h"

#include <inttypes.h>
#include <string.h>

#include "api/dialects/stream.h"
#include "base/clock.h"

enum { WORD_MAX = 256 };

/* A client chose it: no blank in it may look like the end of the word. */
static void put_word(const char *word, weft_text *out) {
  for (size_t i = 0; word[i] != 0 && i < WORD_MAX; i++) {
    if (word[i] == ' ') {
      weft_text_puts(out, "%20");
    } else {
      weft_text_append(out, word + i, 1);
    }
  }
}

static void put_ms(const char *name, uint64_t us, weft_text *out) {
  weft_text_printf(out, " %s=%.1f", name, (double)us / 1000.0);
}

/* How its choices ended, each way once: stop,length. */
static void put_finish(const weft_answer *a, weft_text *out) {
  bool first = true;
  for (uint32_t i = 0; i < a->n; i++) {
    const char *finish = a->choice[i].ended ? a->choice[i].finish : "unread";
    bool told = false;
    for (uint32_t k = 0; k < i && !told; k++) {
      told = strcmp(a->choice[k].ended ? a->choice[k].finish : "unread", finish) == 0;
    }
    if (told) continue;
    weft_text_printf(out, "%s%s", first ? " finish=" : ",", finish);
    first = false;
  }
}

/* Tokens as its usage counts them; times of the choice that was first, and of the one that was last. */
static void put_answer(const weft_answer *a, weft_text *out) {
  weft_answer_usage sum = weft_answer_get_usage(a);
  uint64_t first_us = UINT64_MAX, queue_us = 0, n_preemptions = 0;
  for (uint32_t i = 0; i < a->n; i++) {
    const weft_usage_counts *u = &a->choice[i].usage;
    n_preemptions += u->preemptions;
    if (u->queue_us > queue_us) queue_us = u->queue_us;
    if (u->first_token_us > 0 && u->first_token_us < first_us) first_us = u->first_token_us;
  }
  weft_text_puts(out, " model=");
  put_word(a->model, out);
  weft_text_printf(out, " answers=%u", a->n);
  if (a->n_ended > 0) {
    weft_text_printf(out, " prompt=%" PRIu64 " cached=%" PRIu64 " completion=%" PRIu64, sum.prompt, sum.cached,
                     sum.completion);
    weft_text_printf(out, " canvases=%" PRIu64 " preemptions=%" PRIu64, sum.canvases, n_preemptions);
    put_ms("queue_ms", queue_us, out);
    if (first_us != UINT64_MAX) put_ms("first_ms", first_us, out);
  }
  put_finish(a, out);
}

void weft_request_line(const weft_server *s, weft_exchange *x, int code, bool left, weft_text *out) {
  const weft_note *note = weft_exchange_note(x);
  weft_text_printf(out, "%s %s ", weft_exchange_id(x), weft_exchange_method(x));
  put_word(weft_exchange_path(x), out);
  weft_text_printf(out, " code=%d", code);
  if (s->keys == NULL) weft_text_puts(out, " tenant=" WEFT_EVERYBODY);
  if (s->keys != NULL && note->has_tenant) weft_text_printf(out, " tenant=%s", weft_keys_tenant(s->keys, note->tenant));
  if (note->answer != NULL) put_answer(note->answer, out);
  if (note->begun_us > 0) put_ms("ms", weft_clock_us() - note->begun_us, out);
  if (left) weft_text_puts(out, " left");
}
