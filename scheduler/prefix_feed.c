/* SPDX-License-Identifier: MIT */
#include "scheduler/prefix_feed.h"

#include <pthread.h>

#include "base/memory.h"

enum { CHANGES_MAX = 2048 }; /* of one turn */

enum { EMPTY, FULL };

struct weft_prefix_feed {
  _Atomic int state;      /* EMPTY: the engine's to fill; FULL: the reader's */
  _Atomic uint32_t asked; /* counts what the reader said; odd: it wants changes */
  _Atomic bool missed;    /* a turn had something to tell while the reader had the buffer */
  uint32_t heard;         /* the engine's: the `asked` that it told the pager */
  pthread_mutex_t mutex;  /* of wake and self */
  void (*wake)(void *self);
  void *self;
  weft_prefix_change *change; /* [CHANGES_MAX] */
  int32_t *tokens;
  weft_prefix_changes told;
};

weft_status weft_prefix_feed_open(const weft_pager *pager, weft_prefix_feed **out) {
  weft_prefix_feed *feed = weft_alloc(1, sizeof *feed);
  *out = NULL;
  if (feed == NULL) return WEFT_E_NO_MEMORY;
  (void)pthread_mutex_init(&feed->mutex, NULL); /* cannot fail with default attributes on this system */
  feed->change = weft_alloc(CHANGES_MAX, sizeof *feed->change);
  feed->tokens = weft_alloc((size_t)CHANGES_MAX * weft_pager_base_tokens(pager), sizeof *feed->tokens);
  if (feed->change == NULL || feed->tokens == NULL) {
    weft_prefix_feed_close(feed);
    return WEFT_E_NO_MEMORY;
  }
  *out = feed;
  return WEFT_OK;
}

void weft_prefix_feed_close(weft_prefix_feed *feed) {
  if (feed == NULL) return;
  (void)pthread_mutex_destroy(&feed->mutex);
  weft_free(feed->change);
  weft_free(feed->tokens);
  weft_free(feed);
}

void weft_prefix_feed_listen(weft_prefix_feed *feed, void (*wake)(void *self), void *self) {
  (void)pthread_mutex_lock(&feed->mutex);
  feed->wake = wake;
  feed->self = self;
  (void)pthread_mutex_unlock(&feed->mutex);
}

void weft_prefix_feed_want(weft_prefix_feed *feed, bool wanted) {
  uint32_t asked = atomic_load(&feed->asked);
  if ((asked & 1) != wanted) atomic_store(&feed->asked, asked + 1);
}

bool weft_prefix_feed_take(weft_prefix_feed *feed, weft_prefix_changes *out) {
  if (atomic_load(&feed->state) != FULL) return false;
  *out = feed->told;
  return true;
}

bool weft_prefix_feed_give_back(weft_prefix_feed *feed) {
  bool rest = feed->told.rest;
  atomic_store(&feed->state, EMPTY);
  return atomic_exchange(&feed->missed, false) || rest;
}

void weft_prefix_feed_fill(weft_prefix_feed *feed, weft_pager *pager) {
  uint32_t asked = atomic_load(&feed->asked);
  if (asked != feed->heard) {
    weft_pager_watch(pager, asked & 1);
    feed->heard = asked;
  }
  if (!weft_pager_has_changes(pager)) return;
  if (atomic_load(&feed->state) != EMPTY) {
    atomic_store(&feed->missed, true); /* first, so that who gives the buffer back now sees it, or is seen */
    if (atomic_load(&feed->state) != EMPTY) return;
  }
  feed->told = (weft_prefix_changes){.change = feed->change, .tokens = feed->tokens};
  feed->told.n =
      weft_pager_take_changes(pager, feed->change, feed->tokens, CHANGES_MAX, &feed->told.cleared, &feed->told.rest);
  atomic_store(&feed->state, FULL);
  (void)pthread_mutex_lock(&feed->mutex);
  if (feed->wake != NULL) feed->wake(feed->self);
  (void)pthread_mutex_unlock(&feed->mutex);
}
