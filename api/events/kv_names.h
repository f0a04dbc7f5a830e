/* SPDX-License-Identifier: MIT */
/* What a block of the prefix cache is called outside, and what may be told of it.
 *
 * Law. Public prefixes, and the domains that the operator names, have the names that vLLM gives with sha256_cbor:
 *   SHA-256 of the canonical CBOR of [the name before it, or the SHA-256 of CBOR's "vllm-none-hash"; the tokens; the
 *   keys that belong to the block, or null]
 * so who has the tokens can compute them. The blocks of any other domain are named by a keyed hash, whose key is drawn
 * when the server starts and never leaves it: their names tell neither tokens nor whether two domains have the same.
 * Of an operator-named tenant among several the first block has the tenant's name as its key, as a request with that
 * cache_salt has in vLLM. */
#ifndef WEFT_API_EVENTS_KV_NAMES_H
#define WEFT_API_EVENTS_KV_NAMES_H

#include "base/status.h"
#include "pager/pager.h"

enum { KV_NAME_BYTES = 32, KV_SALT_BYTES = 72 };

typedef struct kv_name {
  uint8_t bytes[KV_NAME_BYTES];
} kv_name;

/* Low 64 bits, as vLLM gives a name in numbers. */
uint64_t kv_name_number(const kv_name *name);

/* A domain whose tokens may be told. */
typedef struct kv_told_domain {
  weft_key128 domain;
  const char *salt; /* key of its first block; NULL: none. Borrowed */
} kv_told_domain;

typedef struct kv_names {
  uint8_t secret[32];
  const kv_told_domain *told; /* [n_told], beside public prefixes. Borrowed */
  uint32_t n_told;
} kv_names;

/* What the blocks behind the beginning of a domain have in common. */
typedef struct kv_domain {
  bool is_private;
  char salt[KV_SALT_BYTES]; /* told as a key of blocks: of the first one, of a private domain of all; "": none */
} kv_domain;

/* Draws the secret. IO: the system gave no random bytes. */
weft_status kv_names_draw(kv_names *names, weft_error *error);
kv_domain kv_names_domain(const kv_names *names, weft_key128 domain);
/* The name of a block of n tokens behind `before` (NULL: the first of its chain). first: it is the first of its
 * domain. */
void kv_names_next(const kv_names *names, const kv_domain *domain, bool first, const kv_name *before,
                   const int32_t *tokens, uint32_t n, kv_name *out);

#endif
