/* SPDX-License-Identifier: MIT */
/* Bytes of a hub, by libcurl. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "api/cli/hub.h"
#include "base/memory.h"

static bool begins_with(const char *text, const char *words) {
  return strncasecmp(text, words, strlen(words)) == 0;
}

/* The host of an address, with its port. */
static void read_host(const char *url, char *out, size_t n) {
  const char *at = strstr(url, "://");
  at = at == NULL ? url : at + 3;
  (void)snprintf(out, n, "%.*s", (int)strcspn(at, "/?#"), at);
}

static bool is_own_machine(const char *url) {
  char host[256];
  read_host(url, host, sizeof host);
  if (strchr(host, '@') != NULL) return false;
  size_t n = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
  host[n < sizeof host ? n : sizeof host - 1] = 0;
  return strcmp(host, "127.0.0.1") == 0 || strcmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0;
}

/* Whether bytes may come from there. */
static bool may_ask(const char *url) {
  return begins_with(url, "https://") || (begins_with(url, "http://") && is_own_machine(url));
}

weft_status hub_check_url(const char *url, weft_error *error) {
  if (may_ask(url)) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID, "--hub %.128s: write an address that begins with https://", url);
}

#ifdef WEFT_CURL
#include <curl/curl.h>

enum { REDIRECTS_MAX = 10, TRIES_MAX = 5, STALL_SECONDS = 60, LIST_BYTES_MAX = 64 << 20, READ_BYTES = 1 << 20 };

/* One request, and where its bytes go. */
typedef struct fetch {
  const hub_source *source;
  CURL *curl;
  weft_text *text;  /* into memory; NULL: into the file */
  int fd, fault;    /* fault: errno of a write; 0 */
  uint64_t at, end; /* bytes there are; of the whole file */
  uint64_t n_came;  /* in this try */
  bool too_long;    /* more came than the hub told */
  const char *label;
  int shown; /* percent on the terminal; -1: none yet */
} fetch;

static void show_progress(fetch *f) {
  enum { WIDTH = 30 };
  if (f->source->quiet || f->text != NULL || f->end == 0 || isatty(STDERR_FILENO) == 0) return;
  int percent = (int)(f->at * 100 / f->end);
  if (percent == f->shown) return;
  f->shown = percent;
  char bar[WIDTH + 1];
  for (int i = 0; i < WIDTH; i++) bar[i] = i < percent * WIDTH / 100 ? '#' : '.';
  bar[WIDTH] = 0;
  (void)fprintf(stderr, "\r%.60s [%s] %3d %% of %.2f GiB%s", f->label, bar, percent, (double)f->end / (double)(1 << 30),
                percent == 100 ? "\n" : "");
}

static size_t take_bytes(char *bytes, size_t size, size_t n, void *self) {
  fetch *f = self;
  long code = 0;
  (void)curl_easy_getinfo(f->curl, CURLINFO_RESPONSE_CODE, &code);
  if (code / 100 != 2) return n * size; /* the words of a refusal or of a redirect */
  n *= size;
  if (f->text != NULL) {
    weft_text_append(f->text, bytes, n);
    return weft_text_status(f->text) == WEFT_OK ? n : 0;
  }
  if (code == 200 && f->at > 0 && f->n_came == 0) { /* the hub gives no part: from the beginning */
    f->at = 0;
    if (lseek(f->fd, 0, SEEK_SET) < 0 || ftruncate(f->fd, 0) != 0) f->fault = errno;
    if (f->fault != 0) return 0;
  }
  if (f->at + n > f->end) {
    f->too_long = true;
    return 0;
  }
  for (size_t done = 0; done < n;) {
    ssize_t wrote = write(f->fd, bytes + done, n - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      f->fault = wrote < 0 ? errno : EIO;
      return 0;
    }
    done += (size_t)wrote;
    f->at += (uint64_t)wrote;
    f->n_came += (uint64_t)wrote;
  }
  show_progress(f);
  return n;
}

static void set_options(fetch *f, const char *url, char *why) {
  char hub[256], host[256];
  read_host(f->source->url, hub, sizeof hub);
  read_host(url, host, sizeof host);
  curl_easy_reset(f->curl);
  why[0] = 0;
  (void)curl_easy_setopt(f->curl, CURLOPT_URL, url); /* what an option refuses shows in the transfer */
  (void)curl_easy_setopt(f->curl, CURLOPT_ERRORBUFFER, why);
  (void)curl_easy_setopt(f->curl, CURLOPT_PROTOCOLS_STR, begins_with(url, "https://") ? "https" : "http");
  (void)curl_easy_setopt(f->curl, CURLOPT_FOLLOWLOCATION, 0L);
  (void)curl_easy_setopt(f->curl, CURLOPT_NOSIGNAL, 1L);
  (void)curl_easy_setopt(f->curl, CURLOPT_USERAGENT, "weft/" WEFT_VERSION);
  (void)curl_easy_setopt(f->curl, CURLOPT_CONNECTTIMEOUT, 30L);
  (void)curl_easy_setopt(f->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  (void)curl_easy_setopt(f->curl, CURLOPT_LOW_SPEED_TIME, (long)STALL_SECONDS);
  (void)curl_easy_setopt(f->curl, CURLOPT_WRITEFUNCTION, take_bytes);
  (void)curl_easy_setopt(f->curl, CURLOPT_WRITEDATA, f);
  if (is_own_machine(url)) (void)curl_easy_setopt(f->curl, CURLOPT_NOPROXY, "*");
  if (f->source->token != NULL && strcasecmp(hub, host) == 0) {
    (void)curl_easy_setopt(f->curl, CURLOPT_HTTPAUTH, (long)CURLAUTH_BEARER);
    (void)curl_easy_setopt(f->curl, CURLOPT_XOAUTH2_BEARER, f->source->token);
  }
  char range[32];
  (void)snprintf(range, sizeof range, "%" PRIu64 "-", f->at);
  if (f->text == NULL && f->at > 0) (void)curl_easy_setopt(f->curl, CURLOPT_RANGE, range); /* it is copied */
}

/* Follows redirects itself, so that every place is looked at before it is asked. */
static weft_status ask_once(fetch *f, const char *first, weft_error *error) {
  char why[CURL_ERROR_SIZE], url[2048];
  (void)snprintf(url, sizeof url, "%s", first);
  for (int i = 0; i <= REDIRECTS_MAX; i++) {
    const char *next = NULL;
    long code = 0;
    set_options(f, url, why);
    CURLcode result = curl_easy_perform(f->curl);
    (void)curl_easy_getinfo(f->curl, CURLINFO_RESPONSE_CODE, &code);
    (void)curl_easy_getinfo(f->curl, CURLINFO_REDIRECT_URL, &next);
    if (f->fault != 0)
      return weft_fail(error, WEFT_E_NO_MEMORY, "%.200s: %s: free some room, or choose another --cache", f->label,
                       strerror(f->fault));
    if (f->too_long) return weft_fail(error, WEFT_E_FORMAT, "%.200s: more bytes came than the hub told", f->label);
    if (result != CURLE_OK)
      return weft_fail(error, WEFT_E_IO, "%.200s: %s", f->label, why[0] != 0 ? why : curl_easy_strerror(result));
    if (code / 100 == 2) return WEFT_OK;
    if (code == 401 || code == 403)
      return weft_fail(
          error, WEFT_E_INVALID,
          "%.200s: the hub refuses it (%ld): it may want a token (--hub-token FILE or HF_TOKEN), or that you "
          "agree to its terms on its page",
          f->label, code);
    if (code == 404) return weft_fail(error, WEFT_E_NOT_FOUND, "%.200s: the hub has no such thing (404)", f->label);
    if (code / 100 != 3 || next == NULL)
      return weft_fail(error, WEFT_E_IO, "%.200s: the hub answers %ld", f->label, code);
    if (!may_ask(next))
      return weft_fail(error, WEFT_E_INVALID,
                       "%.200s: the hub leads to %.128s, which is not https: nothing is fetched there", f->label, next);
    if (strlen(next) >= sizeof url) return weft_fail(error, WEFT_E_IO, "%.200s: the hub leads too far", f->label);
    char kept[sizeof url]; /* next belongs to the handle that is about to be reset */
    (void)snprintf(kept, sizeof kept, "%s", next);
    (void)snprintf(url, sizeof url, "%s", kept);
  }
  return weft_fail(error, WEFT_E_IO, "%.200s: the hub leads on and on", f->label);
}

static weft_status open_curl(fetch *f, weft_error *error) {
  static bool begun;
  if (!begun) (void)curl_global_init(CURL_GLOBAL_DEFAULT); /* what it lacks shows in the transfer */
  begun = true;
  f->curl = curl_easy_init();
  return f->curl != NULL ? WEFT_OK : weft_fail(error, WEFT_E_NO_MEMORY, "no memory to fetch %.200s", f->label);
}

weft_status hub_get(const hub_source *source, const char *url, weft_text *out, weft_error *error) {
  fetch f = {.source = source, .text = out, .label = url};
  out->max = LIST_BYTES_MAX;
  weft_status status = open_curl(&f, error);
  if (status == WEFT_OK) status = ask_once(&f, url, error);
  curl_easy_cleanup(f.curl);
  return status;
}

/* ---- a file ---- */

static weft_status check_sum(const fetch *f, const hub_file *file, weft_error *error) {
  static const char digits[] = "0123456789abcdef";
  unsigned char hash[EVP_MAX_MD_SIZE];
  char text[2 * EVP_MAX_MD_SIZE + 1] = "";
  unsigned n_hash = 0;
  uint8_t *piece = weft_alloc(READ_BYTES, 1);
  EVP_MD_CTX *sum = EVP_MD_CTX_new();
  bool good = piece != NULL && sum != NULL && EVP_DigestInit_ex(sum, EVP_sha256(), NULL) == 1;
  if (!good) {
    weft_free(piece);
    EVP_MD_CTX_free(sum);
    return weft_fail(error, WEFT_E_NO_MEMORY, "no memory to check %.200s", f->label);
  }
  ssize_t n = 0;
  for (uint64_t at = 0; at < f->end && good; at += (uint64_t)n) {
    n = pread(f->fd, piece, READ_BYTES, (off_t)at);
    good = n > 0 && EVP_DigestUpdate(sum, piece, (size_t)n) == 1;
  }
  good = good && EVP_DigestFinal_ex(sum, hash, &n_hash) == 1;
  for (unsigned i = 0; i < n_hash && good; i++) {
    text[2 * i] = digits[hash[i] >> 4];
    text[2 * i + 1] = digits[hash[i] & 15];
  }
  weft_free(piece);
  EVP_MD_CTX_free(sum);
  if (!good) return weft_fail(error, WEFT_E_IO, "%.200s cannot be read back", f->label);
  if (strcmp(text, file->sha256) == 0) return WEFT_OK;
  return weft_fail(error, WEFT_E_FORMAT,
                   "%.128s: the sum of what came is %.16s... and the hub's %.16s...: it is removed, try again",
                   f->label, text, file->sha256);
}

static weft_status check_disk(const fetch *f, weft_error *error) {
  struct statvfs disk;
  if (fstatvfs(f->fd, &disk) != 0) return WEFT_OK; /* then writing will tell */
  uint64_t left = (uint64_t)disk.f_bavail * disk.f_frsize, wanted = f->end - f->at;
  if (left >= wanted) return WEFT_OK;
  return weft_fail(error, WEFT_E_NO_MEMORY,
                   "%.128s: %" PRIu64 " MiB are to come and %" PRIu64
                   " MiB of the disk are free: free some, or choose another --cache",
                   f->label, wanted >> 20, left >> 20);
}

/* Goes on while bytes come; a try that brings none counts, and is made again a while later. */
static weft_status fetch_rest(fetch *f, const char *url, weft_error *error) {
  weft_status status = WEFT_OK;
  for (int tries = 0; f->at < f->end && tries < TRIES_MAX;) {
    f->n_came = 0;
    if (lseek(f->fd, (off_t)f->at, SEEK_SET) < 0)
      return weft_fail(error, WEFT_E_IO, "%s: %s", f->label, strerror(errno));
    status = ask_once(f, url, error);
    if (status != WEFT_OK && status != WEFT_E_IO) return status;
    tries = f->n_came > 0 ? 0 : tries + 1;
    if (f->at < f->end && tries > 0 && tries < TRIES_MAX) (void)poll(NULL, 0, 200 << tries);
  }
  if (f->at == f->end) return WEFT_OK;
  if (status == WEFT_OK)
    return weft_fail(error, WEFT_E_IO, "%.200s: the hub ends it early, again and again: what came is kept", f->label);
  return status;
}

weft_status hub_fetch(const hub_source *source, const char *url, const hub_file *file, const char *place,
                      weft_error *error) {
  char part[1200];
  struct stat about;
  fetch f = {.source = source, .label = file->path, .end = file->n_bytes, .shown = -1};
  (void)snprintf(part, sizeof part, "%s.part", place);
  f.fd = open(part, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (f.fd < 0) return weft_fail(error, WEFT_E_IO, "%.256s: %s", part, strerror(errno));
  weft_status status = WEFT_OK;
  if (flock(f.fd, LOCK_EX | LOCK_NB) != 0)
    status = weft_fail(error, WEFT_E_IO, "%.256s: another program is fetching it", part);
  if (status == WEFT_OK && fstat(f.fd, &about) == 0) f.at = (uint64_t)about.st_size;
  if (f.at > f.end) f.at = 0; /* of another file */
  if (status == WEFT_OK && ftruncate(f.fd, (off_t)f.at) != 0)
    status = weft_fail(error, WEFT_E_IO, "%.256s: %s", part, strerror(errno));
  if (status == WEFT_OK) status = check_disk(&f, error);
  if (status == WEFT_OK) status = open_curl(&f, error);
  if (status == WEFT_OK) status = fetch_rest(&f, url, error);
  if (status == WEFT_OK && file->sha256[0] != 0) status = check_sum(&f, file, error);
  if (status == WEFT_E_FORMAT) (void)unlink(part);
  if (status == WEFT_OK && (fsync(f.fd) != 0 || rename(part, place) != 0))
    status = weft_fail(error, WEFT_E_IO, "%.256s: %s", place, strerror(errno));
  curl_easy_cleanup(f.curl);
  (void)close(f.fd); /* synced where it counts */
  return status;
}

#else

static weft_status refuse_fetch(weft_error *error) {
  return weft_fail(
      error, WEFT_E_UNSUPPORTED,
      "this build cannot fetch models, since libcurl was not there: install libcurl4-openssl-dev and build "
      "again, or fetch the file by other means and name it with -m");
}

weft_status hub_get(const hub_source *source, const char *url, weft_text *out, weft_error *error) {
  (void)source;
  (void)url;
  (void)out;
  return refuse_fetch(error);
}

weft_status hub_fetch(const hub_source *source, const char *url, const hub_file *file, const char *place,
                      weft_error *error) {
  (void)source;
  (void)url;
  (void)file;
  (void)place;
  return refuse_fetch(error);
}

#endif
