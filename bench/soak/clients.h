/* SPDX-License-Identifier: MIT */
/* A client of the soak: one request after the other until the time is up, each drawn from the seed: kind, prompt
 * (shared or private), length, answers, priority, deadline, streamed or whole; every third one hangs up at a random
 * moment. */
#ifndef WEFT_BENCH_SOAK_CLIENTS_H
#define WEFT_BENCH_SOAK_CLIENTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { WEFT_SOAK_TENANTS = 4, WEFT_SOAK_MODELS = 4, WEFT_SOAK_CHOICES = 4 };

typedef struct weft_soak_model {
  char name[128];
  bool autoregressive, diffusion;
} weft_soak_model;

/* What the clients share; only the time is written while they run. */
typedef struct weft_soak_server {
  uint16_t port;
  uint64_t seed;
  _Atomic uint64_t until_us;
  uint32_t n_models;
  weft_soak_model model[WEFT_SOAK_MODELS];
} weft_soak_server;

typedef struct weft_soak_client {
  const weft_soak_server *server;
  uint32_t index;
  _Atomic uint64_t asked_us; /* when the request that is under way was sent; 0: none */
  uint64_t n_answered, n_left, n_refused, n_expired, n_failed;
} weft_soak_client;

/* The API key of a tenant; keys differ from names. */
const char *weft_soak_key(uint32_t tenant);
/* The thread of one client; self is a weft_soak_client. */
void *weft_soak_run_client(void *self);

#endif
