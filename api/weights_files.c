/* SPDX-License-Identifier: MIT */
/* The manifest as a file: written whole or not at all, and read only where nobody else could have written it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/weights_manifest.h"
#include "base/memory.h"

char *weights_manifest_path(const char *socket) {
  weft_text path = {0};
  weft_text_printf(&path, "%s.json", socket);
  if (weft_text_status(&path) == WEFT_OK) return path.bytes;
  weft_text_free(&path);
  return NULL;
}

static bool write_whole(int fd, const weft_text *text) {
  for (size_t at = 0; at < text->n;) {
    ssize_t n = write(fd, text->bytes + at, text->n - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += (size_t)n;
  }
  return true;
}

weft_status weights_manifest_save(const char *path, const weft_text *text, weft_error *error) {
  weft_text other = {0};
  weft_text_printf(&other, "%s.%d", path, (int)getpid());
  if (weft_text_status(&other) != WEFT_OK || weft_text_status(text) != WEFT_OK) {
    weft_text_free(&other);
    return weft_fail(error, WEFT_E_NO_MEMORY, "%s: no memory for the manifest", path);
  }
  (void)unlink(other.bytes); /* of a process of the same number that was killed here */
  int fd = open(other.bytes, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  bool good = fd >= 0 && write_whole(fd, text);
  int fault = errno;
  if (fd >= 0 && close(fd) != 0 && good) good = false, fault = errno;
  if (good && rename(other.bytes, path) != 0) good = false, fault = errno;
  if (!good && fd >= 0) (void)unlink(other.bytes); /* ours, and not whole */
  weft_text_free(&other);
  return good ? WEFT_OK : weft_fail(error, WEFT_E_IO, "%s: %s", path, strerror(fault));
}

static weft_status read_whole(int fd, const char *path, weft_text *out, weft_error *error) {
  char piece[16384];
  ssize_t n;
  out->max = WEIGHTS_MANIFEST_BYTES + sizeof piece; /* it may grow meanwhile: its reader judges the length again */
  while ((n = read(fd, piece, sizeof piece)) > 0) weft_text_append(out, piece, (size_t)n);
  if (n < 0) return weft_fail(error, WEFT_E_IO, "%s: %s", path, strerror(errno));
  weft_status status = weft_text_status(out);
  return status == WEFT_OK ? WEFT_OK : weft_fail(error, status, "%s: no memory for the manifest", path);
}

weft_status weights_manifest_load(const char *path, weft_text *out, weft_error *error) {
  struct stat about;
  int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return weft_fail(error, errno == ENOENT ? WEFT_E_NOT_FOUND : WEFT_E_IO,
                     "%s: %s: `weft weights` writes it there when it is ready", path, strerror(errno));
  weft_status status = WEFT_OK;
  if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
    status = weft_fail(error, WEFT_E_FORMAT, "%s is no file", path);
  } else if (about.st_size > WEIGHTS_MANIFEST_BYTES) {
    status = weft_fail(error, WEFT_E_FORMAT, "%s is too long", path);
  } else if (about.st_uid != geteuid() || (about.st_mode & 022) != 0) {
    status = weft_fail(error, WEFT_E_UNSUPPORTED,
                       "%s belongs to another user, or others may write to it: its weights are not used", path);
  } else {
    status = read_whole(fd, path, out, error);
  }
  (void)close(fd); /* only read */
  return status;
}
