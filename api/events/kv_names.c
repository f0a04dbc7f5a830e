/* SPDX-License-Identifier: MIT */
#include "api/events/kv_names.h"

#include <errno.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* Of CBOR: the kinds of values (their high three bits), and how the number behind a kind is written. */
enum {
  CBOR_UNSIGNED = 0x00,
  CBOR_NEGATIVE = 0x20,
  CBOR_BYTES = 0x40,
  CBOR_TEXT = 0x60,
  CBOR_ARRAY = 0x80,
  CBOR_NULL = 0xF6,
  HEAD_BYTES = 5,
  BLOCK_BYTES = KV_NAME_BYTES + KV_SALT_BYTES + (WEFT_BLOCK_TOKENS_MAX + 6) * HEAD_BYTES
};

typedef struct cbor_text {
  uint8_t bytes[BLOCK_BYTES];
  size_t n;
} cbor_text;

static void put_head(cbor_text *out, uint8_t kind, uint32_t value) {
  uint32_t n_more = value < 24 ? 0 : value <= UINT8_MAX ? 1 : value <= UINT16_MAX ? 2 : 4;
  static const uint8_t word[] = {0, 24, 25, 0, 26};
  out->bytes[out->n++] = (uint8_t)(kind | (n_more == 0 ? value : word[n_more]));
  for (uint32_t i = n_more; i-- > 0;) out->bytes[out->n++] = (uint8_t)(value >> 8 * i);
}

static void put_bytes(cbor_text *out, uint8_t kind, const void *bytes, size_t n) {
  put_head(out, kind, (uint32_t)n);
  memcpy(out->bytes + out->n, bytes, n);
  out->n += n;
}

static void put_tokens(cbor_text *out, const int32_t *tokens, uint32_t n) {
  put_head(out, CBOR_ARRAY, n);
  for (uint32_t i = 0; i < n; i++) {
    bool negative = tokens[i] < 0;
    put_head(out, negative ? CBOR_NEGATIVE : CBOR_UNSIGNED,
             negative ? (uint32_t)(-1 - tokens[i]) : (uint32_t)tokens[i]);
  }
}

uint64_t kv_name_number(const kv_name *name) {
  uint64_t number = 0;
  for (int i = KV_NAME_BYTES - 8; i < KV_NAME_BYTES; i++) number = number << 8 | name->bytes[i];
  return number;
}

weft_status kv_names_draw(kv_names *names, weft_error *error) {
  if (getrandom(names->secret, sizeof names->secret, 0) == (ssize_t)sizeof names->secret) return WEFT_OK;
  return weft_fail(error, WEFT_E_IO, "the system gave no random bytes for the names of private blocks: %s",
                   strerror(errno));
}

static void hash_keyed(const kv_names *names, const void *bytes, size_t n, kv_name *out) {
  unsigned length = KV_NAME_BYTES;
  (void)HMAC(EVP_sha256(), names->secret, sizeof names->secret, bytes, n, out->bytes, &length);
}

kv_domain kv_names_domain(const kv_names *names, weft_key128 domain) {
  kv_domain out = {.is_private = true};
  if (weft_key128_equal(domain, WEFT_DOMAIN_PUBLIC)) return (kv_domain){.is_private = false};
  for (uint32_t i = 0; i < names->n_told; i++) {
    if (!weft_key128_equal(names->told[i].domain, domain)) continue;
    const char *salt = names->told[i].salt;
    out.is_private = false;
    (void)snprintf(out.salt, sizeof out.salt, "%s", salt == NULL ? "" : salt);
    return out;
  }
  kv_name name;
  hash_keyed(names, &domain, sizeof domain, &name);
  for (int i = 0; i < 8; i++) (void)snprintf(out.salt + 2 * i, 3, "%02x", name.bytes[i]);
  return out;
}

void kv_names_next(const kv_names *names, const kv_domain *domain, bool first, const kv_name *before,
                   const int32_t *tokens, uint32_t n, kv_name *out) {
  static const char none[] = "vllm-none-hash";
  bool keyed = domain->salt[0] != 0 && (first || domain->is_private);
  kv_name root;
  cbor_text text = {.n = 0};
  if (before == NULL) {
    put_bytes(&text, CBOR_TEXT, none, sizeof none - 1);
    (void)SHA256(text.bytes, text.n, root.bytes);
    text.n = 0;
    before = &root;
  }
  put_head(&text, CBOR_ARRAY, 3);
  put_bytes(&text, CBOR_BYTES, before->bytes, KV_NAME_BYTES);
  put_tokens(&text, tokens, n);
  if (keyed) {
    put_head(&text, CBOR_ARRAY, 1);
    put_bytes(&text, CBOR_TEXT, domain->salt, strlen(domain->salt));
  } else {
    text.bytes[text.n++] = CBOR_NULL;
  }
  if (domain->is_private)
    hash_keyed(names, text.bytes, text.n, out);
  else
    (void)SHA256(text.bytes, text.n, out->bytes);
}
