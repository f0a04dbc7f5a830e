/* SPDX-License-Identifier: MIT */
/* A circular doubly linked list whose links lie inside the elements. Not locked; owns nothing.
 *
 * Law. A link is in at most one list; a link in no list points to itself. To remove an element needs no pointer to the
 * list, so an element can leave whatever list it is in, also while a walk takes elements from the head of that list. */
#ifndef WEFT_SCHEDULER_LIST_H
#define WEFT_SCHEDULER_LIST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct weft_link {
  struct weft_link *prev, *next;
} weft_link;

#define WEFT_OF_LINK(link, type, member) ((type *)(void *)((char *)(link)-offsetof(type, member)))

static inline void weft_list_init(weft_link *list) {
  list->prev = list->next = list;
}

static inline bool weft_list_empty(const weft_link *list) {
  return list->next == list;
}

static inline void weft_list_insert_before(weft_link *at, weft_link *link) {
  link->prev = at->prev;
  link->next = at;
  at->prev->next = link;
  at->prev = link;
}

static inline void weft_list_push_back(weft_link *list, weft_link *link) {
  weft_list_insert_before(list, link);
}

static inline void weft_list_push_front(weft_link *list, weft_link *link) {
  weft_list_insert_before(list->next, link);
}

static inline void weft_list_remove(weft_link *link) {
  link->prev->next = link->next;
  link->next->prev = link->prev;
  weft_list_init(link);
}

/* NULL when empty. */
static inline weft_link *weft_list_pop_front(weft_link *list) {
  weft_link *link = list->next;
  if (link == list) return NULL;
  weft_list_remove(link);
  return link;
}

/* Moves all of `from` behind `at`, which is a link of a list or the list itself, in order; `from` is empty afterwards. */
static inline void weft_list_splice_behind(weft_link *at, weft_link *from) {
  if (weft_list_empty(from)) return;
  from->prev->next = at->next;
  at->next->prev = from->prev;
  at->next = from->next;
  from->next->prev = at;
  weft_list_init(from);
}

static inline void weft_list_splice_front(weft_link *list, weft_link *from) {
  weft_list_splice_behind(list, from);
}

static inline void weft_list_splice_back(weft_link *list, weft_link *from) {
  weft_list_splice_behind(list->prev, from);
}

#endif
