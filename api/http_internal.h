/* SPDX-License-Identifier: MIT */
/* What http.c and http_exchange.c share.
 *
 * Locks, in order: http lock (the list of exchanges), then an exchange's lock (suspended, woken,
 * working, left, its source), then the workers' and the HTTP library's own. The watcher's lock
 * comes before an exchange's. No callback of the engine or of a source runs under an exchange's
 * lock. */
#ifndef WEFT_API_HTTP_INTERNAL_H
#define WEFT_API_HTTP_INTERNAL_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "api/http.h"
#include "api/watch.h"
#include "api/workers.h"

enum { HEADERS_MAX = 8, ID_BYTES_MAX = 128, CODE_LEFT = 499 };

typedef enum answer_kind { ANSWER_NONE, ANSWER_WHOLE, ANSWER_STREAM, ANSWER_LATER } answer_kind;

struct weft_exchange {
  weft_http *http;
  struct MHD_Connection *connection;
  weft_exchange *next, *previous; /* of http->first */
  weft_job job;
  weft_note note;
  char *method, *path;
  char id[ID_BYTES_MAX + 1];
  uint64_t n_read; /* bytes of the body, kept or not */
  weft_text body;
  bool quick, handed;

  pthread_mutex_t lock;
  bool suspended, woken, working, left, told;
  weft_source source; /* pull NULL: none */

  answer_kind answer;
  bool queued; /* the answer is the library's to send */
  int code;
  const char *type;
  weft_text text; /* ANSWER_WHOLE: all of it; ANSWER_STREAM: what was pulled and not yet sent */
  size_t sent;
  bool ended;
  struct {
    char *name, *value;
  } header[HEADERS_MAX];
  uint32_t n_headers;
  bool watched;
  uint64_t ticket;
};

struct weft_http {
  weft_http_config config;
  struct MHD_Daemon *daemon;
  weft_watch *watch;
  int listener;
  uint32_t port;
  atomic_bool abort; /* nothing may be suspended any more */
  atomic_uint_fast64_t n_body_bytes;
  pthread_mutex_t lock;
  pthread_cond_t idle;
  weft_workers *workers;
  uint32_t n_active;
  weft_exchange *first;
};

weft_exchange *http__exchange_open(weft_http *http, struct MHD_Connection *connection, const char *path,
                                   const char *method);
void http__exchange_close(weft_exchange *x);
/* Tells the source, once; by_client: the connection is of no use either. */
void http__tell_left(weft_exchange *x, bool by_client);
/* False: there is something to pull now. */
bool http__suspend(weft_exchange *x);
/* Works on an answer that comes later; false: the connection was suspended. */
bool http__settle(weft_exchange *x);
enum MHD_Result http__respond(weft_exchange *x);

#endif
