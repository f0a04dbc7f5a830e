/* SPDX-License-Identifier: MIT */
/* What the files of the HTTP server share: http.c (the loop: accepting, time, opening and closing), http_listen.c
 * (where it listens), http_connection.c (one connection from its first byte to its last), http_turns.c (which one makes
 * its answer next), http_wire.c (its bytes),
 * http_exchange.c (one request and its answer), http_jobs.c (workers) and http_share.c (how much one tenant or address
 * may hold).
 *
 * Law: connections belong to the network thread alone. An exchange belongs to the network thread too, except from
 * http_queue to the end of its handler: during that time its answer, its source and its body belong to the worker. The
 * network thread then reads only what the lock guards, and writes only `connection` and `cancelled`, which the worker
 * does not read, and `unwanted`, which it does. The lock is held for a few instructions; no
 * handler, source or callback runs under it. Callbacks of the engine take it (weft_exchange_wake), so in the order of
 * locks it comes after every lock of the engine, and before the lock of the workers. */
#ifndef WEFT_API_HTTP_HTTP_INTERNAL_H
#define WEFT_API_HTTP_HTTP_INTERNAL_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>

#include "api/http/http.h"
#include "api/http/http_parse.h"
#include "api/http/tls.h"
#include "api/http/workers.h"
#include "base/local_socket.h"

enum {
  HEADERS_MAX = 24,
  ID_BYTES_MAX = 128,
  CODE_LEFT = 499,
  TENANTS_MAX = 256,
  ADDRESSES_MAX = 1024, /* addresses are told apart by a seeded hash; two with the same hash have one share together */
  WHO_MAX = TENANTS_MAX + ADDRESSES_MAX,
  READ_BYTES = 65536,
  CONNECTION_BYTES = 4 * 65536, /* at most of one connection, in and out, with what growing texts leave unused */
  TLS_BYTES = 2 * 65536,        /* at most of the TLS session and the wire of one connection */
  SMALL_BODY_BYTES = 65536,     /* bodies up to this have memory of their own */
  SMALL_ANSWER_BYTES = 65536,   /* answers up to this are in CONNECTION_BYTES */
  ANSWERS_BYTES = 64 << 20,     /* of all larger finished answers that wait for their clients */
  TURN_WORK = 65536,
  LEAST_WORK = 256, /* of a turn in which nothing was there */
  ROUND_WORK = WEFT_HTTP_ROUND_WORK - TURN_WORK,
  ROUND_US = 1000,
  PING_US = 10 * 1000000 /* after which a stream that gave nothing says that it goes on */
};

typedef struct http_connection http_connection;

typedef enum answer_kind { ANSWER_NONE, ANSWER_WHOLE, ANSWER_STREAM, ANSWER_LATER } answer_kind;

/* Memory that clients share: of bodies that are being read, wait for a worker or are handled, or of finished answers
 * that wait for their clients; of[]: by tenant or address. */
typedef struct http_pool {
  uint64_t max, used, of[WHO_MAX];
  atomic_uint_fast64_t *total; /* what is used of all pools of this kind, for other threads */
  const char *word, *what;     /* for refusals */
} http_pool;

/* Connections of one tenant, or address, that wait for their turn at making answers. */
typedef struct http_line {
  http_connection *first, *last;
  uint32_t next; /* in the ring of lines */
  bool in_ring;
} http_line;

struct weft_exchange {
  weft_http *http;
  http_connection *connection; /* NULL: the client left while a worker had the request */
  weft_note note;
  uint32_t who; /* whose share it counts in: the tenant, or TENANTS_MAX + the address where there is one tenant */
  char *method, *path, *query;
  char id[ID_BYTES_MAX + 1];
  weft_trace_context trace;
  weft_refusal_form refusals; /* NULL: the common one */
  bool is_local, quick;
  bool active; /* read whole: counted by weft_http_active */
  bool busy;   /* holds a place of the share of `who` */

  weft_text body;  /* owned; filled by http_connection.c, freed by http_drop_body once the handler has returned */
  http_pool *pool; /* where the bytes of its body, later of its answer, are counted; NULL: nowhere */
  uint64_t n_charged;

  weft_source source;   /* pull NULL: none */
  bool told;            /* source.left was called */
  bool cancelled;       /* source.left is to be called once the worker has set the source */
  atomic_bool unwanted; /* the client has left, or all are cancelled: a handler that looks ends early */
  bool gives_back;      /* the worker's: the handler ends so that its worker is free for others, and is run again */
  answer_kind answer;
  bool begun; /* the head of the answer was appended to the connection's out */
  int code;
  const char *type;
  weft_text text;  /* ANSWER_WHOLE */
  size_t n_fed;    /* how much of it was copied to the connection's out */
  bool unpacks;    /* the client does */
  bool lacks_text; /* there was no memory for it: the answer is a short one that says so */
  struct {
    char *name, *value;
  } header[HEADERS_MAX];
  uint32_t n_headers;

  /* under the lock */
  bool working, in_ready; /* the workers have it, waiting or running; it is in the list http->ready */
  weft_exchange *next_ready;
  weft_job job; /* the workers' while `working` */
};

typedef enum http_phase {
  PHASE_HEAD,  /* between two requests, or in the head of one */
  PHASE_BODY,  /* in a body that will be handled */
  PHASE_SKIP,  /* in the rest of a small body whose request is answered already */
  PHASE_WORK,  /* the request is read, its answer is being made */
  PHASE_FLUSH, /* all of the answer is in out */
  PHASE_LINGER /* answered for the last time: what still comes is thrown away, so that the answer arrives */
} http_phase;

struct http_connection {
  weft_http *http;
  http_connection *next, *previous; /* of http->first */
  http_connection *next_pending, *next_in_line;
  uint32_t line; /* in which it is, while in_line */
  bool in_line;
  int fd;
  bool pending, readable, writable, hung_up, local, keep_alive, chunked;
  bool ended;       /* the peer said that nothing more comes: nothing more is read */
  bool waits, turn; /* the connection waits for its turn at the TLS handshake; its turn has come */
  tls_session *tls; /* NULL: bytes go as they are */
  weft_text wire;   /* with TLS: what the socket is given */
  size_t wire_sent; /* of wire */
  http_phase phase;
  uint64_t since_us;    /* in this phase */
  uint64_t deadline_us; /* of this phase; 0: none */
  uint64_t stall_us;    /* time by which the client must have taken some of what is in out; 0: out is empty */
  uint32_t address;     /* hash of the peer's address */
  weft_text in;         /* bytes that were read and not yet parsed */
  weft_head_scan scan;
  weft_chunks chunks;
  uint32_t minor;
  uint64_t length, n_read; /* of the body */
  weft_exchange *x;        /* NULL: between requests */
  bool bodiless;           /* the answer of HEAD: its head alone */
  uint64_t told_us;        /* when the last of a stream was given */
  weft_text out;           /* bytes to send */
  size_t sent;             /* how many of them were sent */
};

struct weft_http {
  weft_http_config config;
  int listener, epoll, wakes; /* wakes: an eventfd */
  uint32_t port;
  weft_local_socket local; /* of a unix socket: its file */
  bool listening;          /* the listener is watched; not while descriptors are short */
  _Atomic bool passed;     /* weft_http_pass_on: there is none any more */
  pthread_t network;
  bool has_network, loopback, told_of_http; /* told_of_http: the log says that a client spoke plain HTTP to TLS */
  uint32_t n_waiting;                       /* connections that wait for their turn at the handshake */
  http_connection *first, *pending, *last_pending;
  _Atomic uint32_t n_connections;
  uint32_t n_busy, n_busy_of[WHO_MAX];
  http_pool small, large, answers;
  http_line line[WHO_MAX];
  uint32_t ring_first, ring_last, n_in_line; /* WHO_MAX: none; connections in all lines */
  http_connection *turn;                     /* whose turn it is; NULL: nobody's */
  int64_t turn_work;                         /* what is left of it */
  uint64_t round_work;                       /* since the sockets were looked at */
  uint64_t seed, looked_us, date_s;
  char date[40];
  char scratch[READ_BYTES], head_bytes[WEFT_HEAD_BYTES_MAX + 1];
  weft_http_head head; /* of the request that begins */
  atomic_uint_fast64_t n_ended[WEFT_HTTP_ENDS];
  atomic_uint n_active;
  atomic_uint_fast64_t n_body_bytes, n_answer_bytes; /* in the pools of bodies; in that of answers */
  atomic_uint_fast64_t n_most_work;                  /* of a round */
  weft_workers *workers;

  pthread_mutex_t lock; /* guards what follows, and the fields of an exchange that say so */
  bool closing, workers_gone, cancel_asked, pass_asked;
  weft_exchange *ready, *last_ready;
  tls_identity *identity; /* NULL: plain HTTP; opened anew by weft_http_renew */
};

/* http.c */
uint64_t http_now(const weft_http *http);
uint64_t http_idle_us(const weft_http *http);
void http_poke(weft_http *http); /* wakes the network thread; any thread */
void http_count(weft_http *http, weft_http_end how);
/* Makes a place free by ending a connection that holds no whole request. False: there is no such connection. */
bool http_evict(weft_http *http);

/* http_listen.c */
weft_status http_listen(weft_http *http, const char *host, weft_error *error);
void http_stop_listening(weft_http *http);
/* The same, but for the file of a unix socket, which another process has now. */
void http_pass_on(weft_http *http);
/* The file of a unix socket that was handed over is this server's from now on. */
weft_status http_adopt(weft_http *http, const char *host, weft_error *error);

/* http_wire.c: the network thread */
typedef enum wire_news { WIRE_SOME, WIRE_NOTHING, WIRE_OVER } wire_news;
/* False: no memory for a session. */
bool http_wire_open(http_connection *c);
void http_wire_close(http_connection *c);
/* Reads up to n_max bytes from the socket and appends the plain bytes to `in`. WIRE_SOME may have added none, where
 * the bytes belonged to a TLS handshake. */
wire_news http_receive(http_connection *c, size_t n_max);
/* The TLS handshake is not over. */
bool http_is_shaking(const http_connection *c);
/* Sends what is in `out`, as far as the peer takes it; `out` is empty when all is sent. False: the connection is
 * broken. */
bool http_send(http_connection *c);
/* Tells the peer that nothing more is sent. */
void http_say_end(http_connection *c);
/* Lets one connection that waits do the next step of its TLS handshake. */
void http_shake_one(weft_http *http);

/* http_connection.c: the network thread */
bool http_connection_open(weft_http *http, int fd, const struct sockaddr_storage *peer);
/* Goes on until it waits for the peer or for an answer. May free c. */
void http_drive(http_connection *c);
/* The connection is driven again before the thread sleeps. */
void http_postpone(http_connection *c);
void http_expire(http_connection *c);                 /* the deadline of the connection has passed */
void http_say_wait(http_connection *c, uint64_t now); /* where its stream gave nothing for PING_US */
void http_drop(http_connection *c); /* ends the connection now; its exchange learns that the client left */
/* The bytes that came are no request: answers with the fault and ends the connection. */
void http_refuse_head(http_connection *c, weft_http_end how, const weft_http_fault *fault);
/* Refuses the request of c, whose body is not all there; what else comes of the body is thrown away. */
void http_give_up_body(http_connection *c, int code, const char *word, const char *message);
/* Throws away what is left of a finished answer, and ends the connection before the thread sleeps. */
void http_give_up_answer(http_connection *c);

/* http_turns.c: the network thread */
void http_turns_open(weft_http *http);
void http_await_turn(http_connection *c); /* c has an exchange that no worker has */
void http_leave_line(http_connection *c); /* and gives up its turn */
bool http_has_turn(const http_connection *c);
void http_take_turns(weft_http *http);
void http_end_round(weft_http *http); /* the sockets are looked at */

/* http_exchange.c: the network thread */
weft_exchange *http_exchange_open(http_connection *c, const weft_http_head *head);
/* Frees the body and counts it no longer. */
void http_drop_body(weft_exchange *x);
/* Tells the source, once, that the client has left. */
void http_tell_left(weft_exchange *x);
/* Ends the exchange: reports it (done), closes its source and frees it. */
void http_finish(weft_exchange *x, bool left);
/* One pull of an answer that comes later. False: the answer is not there yet; if more can be pulled, the connection
 * waits for its next turn. */
bool http_settle(weft_exchange *x);
/* Appends the head of the answer to `out`, and of a whole answer the body, if that is small; http_feed appends a large
 * one, a part at a time. False: there is no more of it. */
void http_put_answer(http_connection *c);
bool http_feed(http_connection *c);
void http_put_fault(http_connection *c, const weft_http_fault *fault);

/* http_jobs.c */
weft_status http_jobs_open(weft_http *http, weft_error *error);
void http_jobs_close(weft_http *http); /* waits for running handlers; what waits is refused */
void http_refuse_closing(weft_exchange *x);
void http_queue(weft_exchange *x);   /* gives the exchange to the workers, whose it is until its handler ends */
bool http_unqueue(weft_exchange *x); /* true: no worker has the exchange, nor will have it */
weft_exchange *http_take_ready(weft_http *http);
void http_forget_ready(weft_exchange *x); /* takes it out of the list `ready`; its source must be closed */

/* http_share.c: the network thread */
void http_share_open(weft_http *http);
/* fd: the socket that has this peer. */
uint32_t http_address_of(const weft_http *http, int fd, const struct sockaddr_storage *peer, bool *local);
/* Counts n more bytes of a body; false: why says that there is no room. */
bool http_charge(weft_exchange *x, uint64_t n, weft_refusal *why);
/* Counts a whole answer that request_memory.h does not count; false as above. */
bool http_charge_answer(weft_exchange *x, weft_refusal *why);
void http_discharge(weft_exchange *x);
/* Counts one more request being answered. */
bool http_take_place(weft_exchange *x, weft_refusal *why);
void http_give_place(weft_exchange *x);

#endif
