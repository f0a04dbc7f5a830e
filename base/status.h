/* SPDX-License-Identifier: MIT */
/* What functions return, and the line that says why one of them failed.
 *
 * Law: a function that can fail in more than one way returns weft_status. Zero is success, positive values are expected
 * outcomes that are not the caller's fault, and negative values are errors. Where a person will read the reason, the
 * function also takes a weft_error and fills it with one line: what is wrong, where, and what to do. */
#ifndef WEFT_BASE_STATUS_H
#define WEFT_BASE_STATUS_H

#include <stdarg.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_STATUS_MAP(X)                                               \
  X(WEFT_OK, 0, "done")                                                  \
  X(WEFT_AGAIN, 1, "nothing to do now; call again later")                \
  X(WEFT_NO_BLOCKS, 2, "no free or evictable KV block")                  \
  X(WEFT_FULL, 3, "the queue is full")                                   \
  X(WEFT_QUOTA, 4, "the limit of KV blocks of this tenant is reached")   \
  X(WEFT_RATE_LIMIT, 5, "this tenant has used what it may in a minute")  \
  X(WEFT_CANCELLED, 6, "it was ended before it was done")                \
  X(WEFT_E_INVALID, -1, "the caller broke the contract")                 \
  X(WEFT_E_NO_MEMORY, -2, "out of memory")                               \
  X(WEFT_E_UNSUPPORTED, -3, "this build, model or backend cannot do it") \
  X(WEFT_E_FORMAT, -4, "malformed input")                                \
  X(WEFT_E_DEVICE, -5, "the device reported an error")                   \
  X(WEFT_E_IO, -6, "the system refused an input or output operation")    \
  X(WEFT_E_NOT_FOUND, -7, "no such thing")                               \
  X(WEFT_E_TOO_LARGE, -8, "larger than a limit that was set")            \
  X(WEFT_E_LIMIT, -9, "more than one request may ever take")

typedef enum weft_status {
#define X(name, value, text) name = value,
  WEFT_STATUS_MAP(X)
#undef X
} weft_status;

/* A status in words; never NULL. */
const char *weft_status_text(weft_status status);

/* One line for a person. The caller owns the struct; functions write to it only when they fail. */
typedef struct weft_error {
  char text[512];
} weft_error;

/* Formats the line into error, which may be NULL, and returns status, so that a caller can `return weft_fail(...)`. */
weft_status weft_fail(weft_error *error, weft_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#ifdef __cplusplus
}
#endif
#endif
