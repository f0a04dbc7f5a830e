/* SPDX-License-Identifier: MIT */
#include "api/http/pack.h"

#include <string.h>
#include <strings.h>
#include <zlib.h>

#include "base/memory.h"

/* ---- what a client wants ---- */

static bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

/* The q of an entry, "gzip;q=0.5": 1000 without one. */
static uint32_t read_quality(const char *at, const char *end) {
  while (at < end) {
    if (*at++ != ';') continue;
    while (at < end && is_blank(*at)) at++;
    if (end - at < 3 || (*at != 'q' && *at != 'Q') || at[1] != '=') continue;
    if (at[2] != '0') return 1000;
    uint32_t q = 0, scale = 100;
    for (const char *c = at + 4; at[3] == '.' && c < end && *c >= '0' && *c <= '9'; c++) {
      q += scale * (uint32_t)(*c - '0');
      scale /= 10;
    }
    return q;
  }
  return 1000;
}

uint32_t pack_wanted(const char *header, const char *name) {
  size_t n_name = strlen(name);
  for (const char *at = header; at != NULL && *at != 0;) {
    while (is_blank(*at) || *at == ',') at++;
    const char *end = at + strcspn(at, ",");
    size_t n = strcspn(at, ",; \t");
    if (n == n_name && strncasecmp(at, name, n) == 0) return read_quality(at, end);
    at = end;
  }
  return 0;
}

/* ---- packing ---- */

static void *take_memory(void *self, unsigned n, unsigned size) {
  (void)self;
  return weft_alloc(n, size);
}

static void give_memory(void *self, void *memory) {
  (void)self;
  weft_free(memory);
}

bool pack_gzip(const weft_text *plain, weft_text *packed) {
  enum { GZIP = 16, WINDOW_BITS = 15, LEVEL_MEMORY = 8, FASTEST = 1 };
  z_stream z = {.zalloc = take_memory, .zfree = give_memory};
  if (deflateInit2(&z, FASTEST, Z_DEFLATED, WINDOW_BITS + GZIP, LEVEL_MEMORY, Z_DEFAULT_STRATEGY) != Z_OK) return false;
  size_t most = deflateBound(&z, (uLong)plain->n);
  char *out = weft_alloc(most, 1);
  z.next_in = (Bytef *)(void *)plain->bytes;
  z.avail_in = (uInt)plain->n;
  z.next_out = (Bytef *)(void *)out;
  z.avail_out = (uInt)most;
  bool good = out != NULL && deflate(&z, Z_FINISH) == Z_STREAM_END;
  (void)deflateEnd(&z); /* says only that it ended early */
  if (good) {
    *packed = (weft_text){.bytes = out, .n = most - z.avail_out, .capacity = most};
  } else {
    weft_free(out);
  }
  return good;
}
