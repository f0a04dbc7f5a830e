/* SPDX-License-Identifier: MIT */
/* Two real cards: what one sends the other arrives whole, in the order that marks and follow give it, with access to one
 * another's memory and through the host.
 *
 * A ball of random size goes to and fro. Before a card sends, it makes the ball of what it got (a norm over many rows,
 * which takes far longer than a launch), so a copy that does not wait for the work before it, or work that does not wait
 * for the copy, gives other numbers. Both places are used again in every round: a card may only write into the other's
 * place when the work there has read it.
 *
 * Ends with code 77, skipped, where there are not two cards. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/random.h"
#include "kernels/ops.h"

enum { SKIPPED = 77, ROUNDS = 1000, ROWS = 512, COLS = 2816, ARRIVED = 0, READ = 1 };

typedef struct player {
  weft_device *device;
  float *got, *made; /* [ROWS][COLS] */
} player;

static void need(bool holds, const char *what, const char *text) {
  if (holds) return;
  (void)printf("FAILED: %s: %s\n", what, text);
  exit(1);
}

static void ok(weft_status status, const char *what) {
  need(status == WEFT_OK, what, weft_status_text(status));
}

static bool open_player(player *p, uint32_t card, bool no_peer) {
  const weft_device_config config = {.backend = "cuda", .index = card, .no_peer = no_peer};
  weft_error error = {{0}};
  if (weft_device_open(&config, &p->device, &error) != WEFT_OK) {
    (void)printf("skipped: %s\n", error.text);
    return false;
  }
  ok(weft_device_alloc(p->device, sizeof(float) * ROWS * COLS, (void **)&p->got), "memory");
  ok(weft_device_alloc(p->device, sizeof(float) * ROWS * COLS, (void **)&p->made), "memory");
  return true;
}

static void close_player(player *p) {
  weft_device_free(p->device, p->got);
  weft_device_free(p->device, p->made);
  weft_device_close(p->device);
}

/* made = the rows that came, plus themselves normed. */
static void make_ball(player *p, uint32_t n_rows) {
  weft_norm_args norm = {.x = p->got,
                         .add = p->got,
                         .y = p->made,
                         .n_rows = n_rows,
                         .n_cols = COLS,
                         .x_stride = COLS,
                         .add_stride = COLS,
                         .y_stride = COLS,
                         .eps = 1e-6f};
  ok(weft_norm(p->device, &norm), "norm");
}

static uint32_t rows_of_round(uint32_t round) {
  return 1 + (uint32_t)(weft_mix64(round) % ROWS);
}

/* The rounds on one card, or between two. */
static void play(player *a, player *b, const float *start, float *end) {
  ok(weft_device_upload(a->device, a->got, start, sizeof(float) * ROWS * COLS), "upload");
  ok(weft_device_upload(b->device, b->got, start, sizeof(float) * ROWS * COLS), "upload");
  ok(weft_device_sync(b->device), "sync"); /* its first content is no part of the game */
  for (uint32_t round = 0; round < ROUNDS; round++) {
    player *from = round % 2 == 0 ? a : b, *to = round % 2 == 0 ? b : a;
    uint32_t n_rows = rows_of_round(round);
    ok(weft_device_follow(from->device, to->device, ARRIVED), "follow");
    make_ball(from, n_rows);
    ok(weft_device_mark(from->device, READ), "mark");
    ok(weft_device_follow(from->device, to->device, READ), "follow"); /* it has read what lies where this goes */
    ok(weft_device_send(from->device, to->device, to->got, from->made, sizeof(float) * n_rows * COLS), "send");
    ok(weft_device_mark(from->device, ARRIVED), "mark");
  }
  ok(weft_device_follow(a->device, b->device, ARRIVED), "follow");
  ok(weft_device_download(a->device, end, a->got, sizeof(float) * ROWS * COLS), "download");
}

int main(void) {
  static float start[ROWS * COLS], wanted[ROWS * COLS], got[ROWS * COLS];
  weft_log_set_level(WEFT_LOG_ERROR);
  for (uint32_t i = 0; i < ROWS * COLS; i++) start[i] = (float)(weft_mix64(i) % 2001) / 1000.0f - 1.0f;
  for (uint32_t way = 0; way < 2; way++) {
    player one, other, a, b;
    if (!open_player(&a, 0, way == 1) || !open_player(&b, 1, way == 1)) return SKIPPED;
    need(open_player(&one, 0, false) && open_player(&other, 0, false), "one card", "it cannot be opened twice");
    play(&one, &other, start, wanted);
    memset(got, 0, sizeof got);
    play(&a, &b, start, got);
    need(memcmp(wanted, got, sizeof got) == 0, way == 0 ? "with peer access" : "through the host",
         "two cards give other numbers than one");
    close_player(&one);
    close_player(&other);
    close_player(&a);
    close_player(&b);
  }
  (void)printf("%d rounds of up to %d MiB, twice: the same numbers\n", ROUNDS, (int)(sizeof got >> 20));
  return 0;
}
