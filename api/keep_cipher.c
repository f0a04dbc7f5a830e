/* SPDX-License-Identifier: MIT */
#include "api/keep_cipher.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

enum { KEY_BYTES = 64, TWEAK_BYTES = 16 };

struct keep_cipher {
  unsigned char key[KEY_BYTES];
  weft_kept_cipher kept;
};

static void put_tweak(uint64_t number, unsigned char tweak[TWEAK_BYTES]) {
  memset(tweak, 0, TWEAK_BYTES);
  for (int i = 0; i < 8; i++) tweak[i] = (unsigned char)(number >> (8 * i));
}

static bool pass_units(const keep_cipher *c, bool seals, uint64_t first, const void *from, void *to, uint64_t n_bytes) {
  EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
  bool good = context != NULL && EVP_CipherInit_ex(context, EVP_aes_256_xts(), NULL, c->key, NULL, seals) == 1;
  for (uint64_t at = 0; good && at < n_bytes; at += WEFT_KEPT_UNIT) {
    unsigned char tweak[TWEAK_BYTES];
    int n = 0;
    put_tweak(first + at / WEFT_KEPT_UNIT, tweak);
    good = EVP_CipherInit_ex(context, NULL, NULL, NULL, tweak, seals) == 1 &&
           EVP_CipherUpdate(context, (unsigned char *)to + at, &n, (const unsigned char *)from + at, WEFT_KEPT_UNIT) ==
               1 &&
           n == WEFT_KEPT_UNIT;
  }
  EVP_CIPHER_CTX_free(context);
  return good;
}

static bool seal_units(void *self, uint64_t first, const void *from, void *to, uint64_t n_bytes) {
  return pass_units(self, true, first, from, to, n_bytes);
}

static bool unseal_units(void *self, uint64_t first, const void *from, void *to, uint64_t n_bytes) {
  return pass_units(self, false, first, from, to, n_bytes);
}

/* The beginning of a unit of zeros, sealed by a number that no unit of a file has. */
static bool make_mark(keep_cipher *c) {
  unsigned char *unit = weft_alloc(WEFT_KEPT_UNIT, 1);
  bool good = unit != NULL && seal_units(c, UINT64_MAX, unit, unit, WEFT_KEPT_UNIT);
  if (good) memcpy(c->kept.mark, unit, sizeof c->kept.mark);
  weft_free(unit);
  return good;
}

static weft_status read_key(keep_cipher *c, const char *path, weft_error *error) {
  struct stat about;
  unsigned char more;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return weft_fail(error, WEFT_E_IO, "--keep-key %.200s: %s", path, strerror(errno));
  bool mine = fstat(fd, &about) == 0 && (about.st_mode & 077) == 0;
  bool whole = mine && read(fd, c->key, KEY_BYTES) == KEY_BYTES && read(fd, &more, 1) == 0;
  (void)close(fd); /* only read */
  if (!mine) return weft_fail(error, WEFT_E_INVALID, "--keep-key %.200s: others may read it: chmod 600", path);
  if (!whole || CRYPTO_memcmp(c->key, c->key + KEY_BYTES / 2, KEY_BYTES / 2) == 0)
    return weft_fail(error, WEFT_E_INVALID,
                     "--keep-key %.200s: a key is %d bytes drawn by chance: head -c %d /dev/urandom makes one", path,
                     KEY_BYTES, KEY_BYTES);
  return WEFT_OK;
}

weft_status keep_cipher_open(const char *path, keep_cipher **out, weft_error *error) {
  keep_cipher *c = *out = weft_alloc(1, sizeof *c);
  if (c == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for --keep-key");
  c->kept = (weft_kept_cipher){.self = c, .seal = seal_units, .unseal = unseal_units};
  weft_status status = read_key(c, path, error);
  if (status == WEFT_OK && !make_mark(c)) status = weft_fail(error, WEFT_E_NO_MEMORY, "no memory for --keep-key");
  return status;
}

const weft_kept_cipher *keep_cipher_of(const keep_cipher *cipher) {
  return cipher == NULL ? NULL : &cipher->kept;
}

void keep_cipher_close(keep_cipher *c) {
  if (c == NULL) return;
  OPENSSL_cleanse(c->key, sizeof c->key);
  weft_free(c);
}
