/* SPDX-License-Identifier: MIT */
/* How much one tenant, or one address, may hold of what all share: memory for bodies, memory for finished answers that
 * their clients have not taken, and places for requests. Network thread.
 *
 * Law: no tenant or address holds more than half of any. An eighth of the memory of bodies is for small ones alone. When
 * a pool of memory is full, the holder of most of it gives way to one that holds less: the largest body of that holder
 * that is still being read is refused, or its largest answer that is still being sent is broken off. Answers of the
 * engine are not counted here: they are in the memory of requests until their clients have them. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "api/http/http_internal.h"

enum { SMALL_SHARE = 8, RESERVE_SHARE = 8 };

void http_share_open(weft_http *http) {
  http->small.max = http->config.bodies_bytes_max / SMALL_SHARE;
  http->large.max = http->config.bodies_bytes_max - http->small.max;
  http->answers.max = ANSWERS_BYTES;
  http->small.total = http->large.total = &http->n_body_bytes;
  http->answers.total = &http->n_answer_bytes;
  http->small.word = http->large.word = "bodies_full";
  http->answers.word = "answers_full";
  http->small.what = http->large.what = "requests being read";
  http->answers.what = "answers that their clients have not taken";
  if (getrandom(&http->seed, sizeof http->seed, 0) != (ssize_t)sizeof http->seed) http->seed = http_now(http);
}

/* ---- addresses ---- */

static uint64_t mix_hash(uint64_t h) {
  h ^= h >> 32;
  h *= 0xD6E8FEB86659FD93ull;
  h ^= h >> 32;
  h *= 0xD6E8FEB86659FD93ull;
  return h ^ h >> 32;
}

/* Of an IPv6 address only the first half counts, since a client usually has all addresses of the second half. On a
 * unix socket the user takes the place of the address. */
uint32_t http_address_of(const weft_http *http, int fd, const struct sockaddr_storage *peer, bool *local) {
  uint64_t key = 0;
  *local = false;
  if (peer->ss_family == AF_INET) {
    const struct sockaddr_in *v4 = (const void *)peer;
    key = ntohl(v4->sin_addr.s_addr);
    *local = key >> 24 == IN_LOOPBACKNET;
  } else if (peer->ss_family == AF_INET6) {
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)peer)->sin6_addr;
    bool mapped = IN6_IS_ADDR_V4MAPPED(v6);
    memcpy(&key, v6->s6_addr + (mapped ? 8 : 0), sizeof key);
    *local = IN6_IS_ADDR_LOOPBACK(v6) || (mapped && v6->s6_addr[12] == IN_LOOPBACKNET);
  } else if (peer->ss_family == AF_UNIX) {
    struct ucred user = {0};
    socklen_t n = sizeof user;
    (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &n); /* cannot fail for such a socket */
    key = ~(uint64_t)user.uid;
    *local = true;
  }
  return (uint32_t)(mix_hash(key ^ http->seed) % ADDRESSES_MAX);
}

/* ---- memory ---- */

/* The connection whose body or answer gives way in this pool; NULL: none is being read into it or sent from it. */
static http_connection *holder_of_most(const weft_http *http, const http_pool *pool) {
  http_connection *most = NULL;
  for (http_connection *c = http->first; c != NULL; c = c->next) {
    if (c->x == NULL || c->x->pool != pool || (c->phase != PHASE_BODY && !c->x->begun)) continue;
    uint64_t share = pool->of[c->x->who], best = most == NULL ? 0 : pool->of[most->x->who];
    bool larger = most == NULL || share > best || (share == best && c->x->n_charged > most->x->n_charged);
    if (larger) most = c;
  }
  return most;
}

static bool refuse_half(weft_refusal *why, const http_pool *pool) {
  (void)weft_refuse(why, 429, pool->word, NULL, "your %s hold %llu MiB, half of what there is: try again", pool->what,
                    (unsigned long long)(pool->max / 2 >> 20));
  return false;
}

static bool refuse_all(weft_refusal *why, const http_pool *pool) {
  (void)weft_refuse(why, 503, "busy", NULL, "the memory for %s, %llu MiB, is taken: try again", pool->what,
                    (unsigned long long)(pool->max >> 20));
  return false;
}

static bool take_room(weft_exchange *x, http_pool *pool, uint64_t n, weft_refusal *why) {
  weft_http *http = x->http;
  uint64_t mine = pool->of[x->who] + n;
  if (mine > pool->max / 2) return refuse_half(why, pool);
  while (pool->used + n > pool->max) {
    http_connection *most = holder_of_most(http, pool);
    if (most == NULL || pool->of[most->x->who] <= mine) return refuse_all(why, pool);
    if (most->x->begun) {
      http_give_up_answer(most);
    } else {
      http_give_up_body(most, 503, "busy", "others need the memory that requests with your key hold: try again");
    }
  }
  atomic_fetch_add(pool->total, n);
  pool->used += n;
  pool->of[x->who] += n;
  x->pool = pool;
  x->n_charged += n;
  return true;
}

void http_discharge(weft_exchange *x) {
  if (x->pool == NULL) return;
  atomic_fetch_sub(x->pool->total, x->n_charged);
  x->pool->used -= x->n_charged;
  x->pool->of[x->who] -= x->n_charged;
  x->pool = NULL;
  x->n_charged = 0;
}

bool http_charge(weft_exchange *x, uint64_t n, weft_refusal *why) {
  weft_http *http = x->http;
  uint64_t known = x->connection->length > x->n_charged + n ? x->connection->length : x->n_charged + n;
  http_pool *pool = known <= SMALL_BODY_BYTES ? &http->small : &http->large;
  if (x->pool != NULL && x->pool != pool) { /* chunks that turned out to be many */
    n += x->n_charged;
    http_discharge(x);
  }
  return take_room(x, pool, n, why);
}

bool http_charge_answer(weft_exchange *x, weft_refusal *why) {
  bool counted = x->source.pull != NULL; /* its generations hold memory of requests until it is closed */
  if (counted || x->text.n <= SMALL_ANSWER_BYTES) return true;
  return take_room(x, &x->http->answers, x->text.n, why);
}

/* ---- places ---- */

bool http_take_place(weft_exchange *x, weft_refusal *why) {
  weft_http *http = x->http;
  uint32_t all = http->config.connections_max, reserve = all / RESERVE_SHARE > 0 ? all / RESERVE_SHARE : 1;
  uint32_t places = all > reserve ? all - reserve : 1;
  if (http->n_busy >= places) {
    (void)weft_refuse(why, 503, "busy", NULL, "the server answers %u requests, as many as it can: try again", places);
    return false;
  }
  if (http->n_busy_of[x->who] >= (places + 1) / 2) {
    (void)weft_refuse(why, 429, "too_many_requests", NULL,
                      "%u of your requests are being answered, half of what the server can: try again",
                      (places + 1) / 2);
    return false;
  }
  http->n_busy += 1;
  http->n_busy_of[x->who] += 1;
  x->busy = true;
  return true;
}

void http_give_place(weft_exchange *x) {
  if (!x->busy) return;
  x->http->n_busy -= 1;
  x->http->n_busy_of[x->who] -= 1;
  x->busy = false;
}
