/* SPDX-License-Identifier: MIT */
#include "bench/quality/saved_rows.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

static const char magic[16] = "weft saved row 1";

struct weft_saved_file {
  char *path;
  FILE *stream;
  weft_saved_header header;
  uint64_t row_bytes;
  uint32_t window, row; /* the next one */
  XXH3_state_t *sum;    /* of the window's rows so far */
  bool writing;
};

_Static_assert(sizeof(weft_saved_header) <= WEFT_SAVED_HEADER, "the header has room in the file");

static uint64_t sum_of_header(const weft_saved_header *header) {
  return XXH3_64bits(header, offsetof(weft_saved_header, checksum));
}

static uint64_t bytes_of_file(const weft_saved_header *h) {
  uint64_t window = (uint64_t)h->rows_per_window * weft_saved_row_bytes(h->n_vocab) + sizeof(uint64_t);
  return WEFT_SAVED_HEADER + h->n_windows * window;
}

static void free_file(weft_saved_file *f) {
  if (f->stream != NULL) (void)fclose(f->stream);
  (void)XXH3_freeState(f->sum);
  weft_free(f->path);
  weft_free(f);
}

static weft_status new_file(const char *path, const char *mode, weft_saved_file **out, weft_error *error) {
  weft_saved_file *f = weft_alloc(1, sizeof *f);
  *out = NULL;
  if (f == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "%s: no memory", path);
  f->path = weft_strdup(path);
  f->sum = XXH3_createState();
  if (f->path != NULL && f->sum != NULL) f->stream = fopen(path, mode);
  if (f->stream == NULL) {
    weft_status status = f->path == NULL || f->sum == NULL
                             ? weft_fail(error, WEFT_E_NO_MEMORY, "%s: no memory", path)
                             : weft_fail(error, WEFT_E_IO, "%s: %s", path, strerror(errno));
    free_file(f);
    return status;
  }
  (void)XXH3_64bits_reset(f->sum);
  *out = f;
  return WEFT_OK;
}

static weft_status fail_writing(const weft_saved_file *f, int why, weft_error *error) {
  return weft_fail(error, WEFT_E_IO, "%s: %s (the whole file has %" PRIu64 " MiB)", f->path, strerror(why),
                   bytes_of_file(&f->header) >> 20);
}

weft_status weft_saved_create(const char *path, const weft_saved_header *header, weft_saved_file **out,
                              weft_error *error) {
  union {
    weft_saved_header header;
    uint8_t bytes[WEFT_SAVED_HEADER];
  } head = {.bytes = {0}};
  weft_saved_file *f;
  *out = NULL;
  weft_status status = new_file(path, "wb", &f, error);
  if (status != WEFT_OK) return status;
  f->writing = true;
  f->header = *header;
  memcpy(f->header.magic, magic, sizeof magic);
  f->header.checksum = sum_of_header(&f->header);
  f->row_bytes = weft_saved_row_bytes(header->n_vocab);
  head.header = f->header;
  /* Only a disk that is too small is a reason to stop here: pipes and some file systems cannot set room aside. */
  int room = fallocate(fileno(f->stream), FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes_of_file(&f->header));
  bool refused = room != 0 && (errno == ENOSPC || errno == EFBIG || errno == EDQUOT);
  if (refused || fwrite(&head, sizeof head, 1, f->stream) != 1 || fflush(f->stream) != 0) {
    status = fail_writing(f, errno, error);
    free_file(f);
    return status;
  }
  *out = f;
  return WEFT_OK;
}

/* Counts a row; true: it was the last one of its window. */
static bool end_row(weft_saved_file *f, const weft_saved_row *row) {
  (void)XXH3_64bits_update(f->sum, row, f->row_bytes);
  if (++f->row < f->header.rows_per_window) return false;
  f->row = 0;
  f->window += 1;
  return true;
}

weft_status weft_saved_write(weft_saved_file *f, const weft_saved_row *row, weft_error *error) {
  if (fwrite(row, f->row_bytes, 1, f->stream) != 1) return fail_writing(f, errno, error);
  if (!end_row(f, row)) return WEFT_OK;
  uint64_t sum = XXH3_64bits_digest(f->sum);
  (void)XXH3_64bits_reset(f->sum);
  return fwrite(&sum, sizeof sum, 1, f->stream) == 1 ? WEFT_OK : fail_writing(f, errno, error);
}

static weft_status fail_short(const weft_saved_file *f, weft_error *error) {
  return weft_fail(error, WEFT_E_FORMAT, "%s ends early, in window %" PRIu32 " of %" PRIu32 ": save it again", f->path,
                   f->window + 1, f->header.n_windows);
}

static weft_status check_origin(const weft_saved_file *f, weft_error *error) {
  const weft_saved_header *h = &f->header;
  if (memcmp(h->magic, magic, sizeof magic) != 0) {
    return weft_fail(error, WEFT_E_FORMAT, "%s was not written by --save-logits of this version of weft", f->path);
  }
  if (h->checksum != sum_of_header(h) || memchr(h->model, 0, sizeof h->model) == NULL ||
      memchr(h->backend, 0, sizeof h->backend) == NULL) {
    return weft_fail(error, WEFT_E_FORMAT, "%s: its header is damaged: save it again", f->path);
  }
  return WEFT_OK;
}

static bool same_levels(const weft_saved_header *a, const weft_saved_header *b) {
  for (uint32_t i = 0; i < WEFT_SAVED_LEVELS_MAX; i++) {
    if (a->level[i] != b->level[i]) return false;
  }
  return true;
}

static weft_status check_windows(const weft_saved_file *f, const weft_saved_header *w, weft_error *error) {
  const weft_saved_header *h = &f->header;
  if (h->n_vocab != w->n_vocab || h->vocabulary != w->vocabulary) {
    return weft_fail(error, WEFT_E_INVALID, "%s is of %s, whose vocabulary is not this model's", f->path, h->model);
  }
  if ((h->n_levels > 0) != (w->n_levels > 0)) {
    return weft_fail(error, WEFT_E_INVALID, "%s was saved with --mode %s", f->path,
                     h->n_levels > 0 ? "diffusion" : "autoregressive");
  }
  if (h->context != w->context || h->stride != w->stride) {
    return weft_fail(error, WEFT_E_INVALID, "%s was saved with -c %" PRIu32 " --stride %" PRIu32, f->path, h->context,
                     h->stride);
  }
  if (h->n_windows != w->n_windows) {
    return weft_fail(error, WEFT_E_INVALID, "%s has %" PRIu32 " windows, this run %" PRIu32 ": give --chunks", f->path,
                     h->n_windows, w->n_windows);
  }
  if (h->n_levels != w->n_levels || !same_levels(h, w) || h->seed != w->seed) {
    return weft_fail(error, WEFT_E_INVALID, "%s was saved with another --noise or --seed (seed %" PRIu64 ")", f->path,
                     h->seed);
  }
  if (h->text != w->text || h->rows_per_window != w->rows_per_window) {
    return weft_fail(error, WEFT_E_INVALID, "%s was saved over another text", f->path);
  }
  return WEFT_OK;
}

static weft_status check_size(const weft_saved_file *f, weft_error *error) {
  struct stat s;
  uint64_t wanted = bytes_of_file(&f->header);
  if (fstat(fileno(f->stream), &s) != 0 || !S_ISREG(s.st_mode) || (uint64_t)s.st_size == wanted) return WEFT_OK;
  return weft_fail(error, WEFT_E_FORMAT, "%s has %lld bytes, a whole file %" PRIu64 ": save it again", f->path,
                   (long long)s.st_size, wanted);
}

weft_status weft_saved_open(const char *path, const weft_saved_header *wanted, weft_saved_file **out,
                            weft_error *error) {
  uint8_t head[WEFT_SAVED_HEADER] = {0};
  weft_saved_file *f;
  *out = NULL;
  weft_status status = new_file(path, "rb", &f, error);
  if (status != WEFT_OK) return status;
  errno = 0;
  size_t n = fread(head, 1, sizeof head, f->stream);
  memcpy(&f->header, head, sizeof f->header);
  if (n < sizeof head && errno != 0) status = weft_fail(error, WEFT_E_IO, "%s: %s", path, strerror(errno));
  if (status == WEFT_OK) status = check_origin(f, error);
  if (status == WEFT_OK && n < sizeof head) status = fail_short(f, error);
  if (status == WEFT_OK) status = check_windows(f, wanted, error);
  if (status == WEFT_OK) status = check_size(f, error);
  if (status != WEFT_OK) {
    free_file(f);
    return status;
  }
  f->row_bytes = weft_saved_row_bytes(f->header.n_vocab);
  *out = f;
  return WEFT_OK;
}

const weft_saved_header *weft_saved_header_of(const weft_saved_file *file) {
  return &file->header;
}

weft_status weft_saved_read(weft_saved_file *f, weft_saved_row *row, weft_error *error) {
  uint64_t sum;
  uint32_t number = f->window + 1;
  if (fread(row, f->row_bytes, 1, f->stream) != 1) return fail_short(f, error);
  bool sound = weft_saved_row_is_sound(row, f->header.n_vocab);
  if (sound && end_row(f, row)) {
    if (fread(&sum, sizeof sum, 1, f->stream) != 1) return fail_short(f, error);
    sound = sum == XXH3_64bits_digest(f->sum);
    (void)XXH3_64bits_reset(f->sum);
  }
  if (sound) return WEFT_OK;
  return weft_fail(error, WEFT_E_FORMAT, "%s is damaged in window %" PRIu32 ": save it again", f->path, number);
}

weft_status weft_saved_close(weft_saved_file *f, weft_error *error) {
  if (f == NULL) return WEFT_OK;
  weft_status status = WEFT_OK;
  if (f->writing && fclose(f->stream) != 0) status = fail_writing(f, errno, error);
  if (f->writing) f->stream = NULL;
  free_file(f);
  return status;
}
