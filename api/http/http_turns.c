/* SPDX-License-Identifier: MIT */
/* Turns at making answers: which connection may format next, and how much before the sockets are looked at again.
 *
 * Law: an answer that takes more than a few copied bytes is made in turns. One turn takes TURN_WORK, and one step of a
 * source beyond it; those who wait have turns one after the other (`who`: tenants, or addresses where there is one
 * tenant), and so have the connections of each. A round of turns ends with ROUND_WORK or after ROUND_US, whichever
 * comes first, and has one turn at least. So a connection that has something to read or to send, and a new one, waits
 * for a round at most, and an answer for one turn of each other tenant and each other answer of its own, however much
 * others ask for. */
#include "api/http/http_internal.h"
#include "base/check.h"
#include "base/clock.h"

void http_turns_open(weft_http *http) {
  http->ring_first = http->ring_last = WHO_MAX;
}

static void join_ring(weft_http *http, uint32_t who) {
  http_line *line = &http->line[who];
  if (line->in_ring) return;
  line->in_ring = true;
  line->next = WHO_MAX;
  if (http->ring_first == WHO_MAX) {
    http->ring_first = who;
  } else {
    http->line[http->ring_last].next = who;
  }
  http->ring_last = who;
}

void http_await_turn(http_connection *c) {
  weft_http *http = c->http;
  if (c->in_line) return;
  c->in_line = true;
  c->line = c->x->who;
  c->next_in_line = NULL;
  http_line *line = &http->line[c->line];
  if (line->last != NULL) line->last->next_in_line = c;
  if (line->first == NULL) line->first = c;
  line->last = c;
  http->n_in_line += 1;
  join_ring(http, c->line);
}

/* Its line stays in the ring until its turn comes, though nobody may be left in it. */
void http_leave_line(http_connection *c) {
  weft_http *http = c->http;
  if (http->turn == c) http->turn = NULL;
  if (!c->in_line) return;
  http_line *line = &http->line[c->line];
  http_connection *before = NULL;
  for (http_connection *at = line->first; at != c; at = at->next_in_line) before = at;
  if (before == NULL) line->first = c->next_in_line;
  if (before != NULL) before->next_in_line = c->next_in_line;
  if (line->last == c) line->last = before;
  c->in_line = false;
  http->n_in_line -= 1;
}

/* The first of the line whose turn it is, which goes to the end of the ring. */
static http_connection *next_in_turn(weft_http *http) {
  for (;;) {
    uint32_t who = http->ring_first;
    http_line *line = &http->line[who];
    WEFT_CHECK(who != WHO_MAX);
    http->ring_first = line->next;
    if (http->ring_first == WHO_MAX) http->ring_last = WHO_MAX;
    line->in_ring = false;
    http_connection *c = line->first;
    if (c == NULL) continue;
    http_leave_line(c);
    if (line->first != NULL) join_ring(http, who);
    return c;
  }
}

bool http_has_turn(const http_connection *c) {
  return c->http->turn == c && c->http->turn_work > 0;
}

static void take_turn(weft_http *http, http_connection *c) {
  http->turn = c;
  http->turn_work = TURN_WORK;
  http_drive(c); /* may free it */
  http->turn = NULL;
  http->round_work += (uint64_t)(TURN_WORK - http->turn_work) + LEAST_WORK;
}

void http_take_turns(weft_http *http) {
  uint64_t began_us = http->n_in_line == 0 ? 0 : weft_clock_us();
  while (http->n_in_line > 0 && http->round_work < ROUND_WORK) {
    take_turn(http, next_in_turn(http));
    if (weft_clock_us() - began_us >= ROUND_US) break;
  }
}

void http_end_round(weft_http *http) {
  if (http->round_work > atomic_load(&http->n_most_work)) atomic_store(&http->n_most_work, http->round_work);
  http->round_work = 0;
}

uint64_t weft_http_most_work(weft_http *http) {
  return atomic_load(&http->n_most_work);
}
