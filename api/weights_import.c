/* SPDX-License-Identifier: MIT */
#include "api/weights_import.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "api/runtime.h"
#include "api/weights_talk.h"
#include "base/descriptors.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernels/ops.h"
#include "kernels/share.h"
#include "kernels/shared_memory.h"

enum { ANSWER_SECONDS = 60 };

/* A model that was looked up. */
typedef struct weights_place {
  weft_weights *weights;
  const weights_model *model;
  weft_shelf shelf;
} weights_place;

struct weft_weights {
  int fd; /* to the owner */
  weights_manifest manifest;
  weft_device *device[WEFT_DEVICES_MAX]; /* [n_devices] that pieces are mapped for; none: as memory of the host */
  uint32_t n_devices;
  const void **mapped; /* [n_pieces] NULL: not mapped */
  weights_place place[WEIGHTS_MODELS_MAX];
  uint64_t n_mapped; /* bytes of pieces */
  _Atomic bool lost;
  char lost_line[256];
};

/* ---- the owner ---- */

static weft_status connect_owner(const char *path, int *out, int *pid, weft_error *error) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  struct timeval patience = {.tv_sec = ANSWER_SECONDS};
  if (strlen(path) >= sizeof address.sun_path)
    return weft_fail(error, WEFT_E_INVALID, "the path of a socket has at most %zu bytes", sizeof address.sun_path - 1);
  memcpy(address.sun_path, path, strlen(path));
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0 &&
      setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0) {
    *out = fd;
    if (weft_peer_is_own(fd, pid)) return WEFT_OK;
    (void)close(fd); /* nothing was said */
    return weft_fail(error, WEFT_E_UNSUPPORTED, "another user's process answers there");
  }
  int fault = errno;
  if (fd >= 0) (void)close(fd); /* nothing was said */
  if (fault == ECONNREFUSED || fault == ENOENT)
    return weft_fail(error, WEFT_E_IO, "the manifest is stale: its owner has ended; start `weft weights` again");
  return weft_fail(error, WEFT_E_IO, "%s", strerror(fault));
}

static weft_status greet_owner(int fd, weights_digest read, int pid, const weights_manifest *m, weft_error *error) {
  weights_answer answer;
  weft_status status = weights_talk_ask(fd, WEIGHTS_ASK_DIGEST, 0, &answer, NULL, NULL, error);
  if (status != WEFT_OK) return status;
  if (answer.digest.low == read.low && answer.digest.high == read.high && (uint32_t)pid == m->pid) return WEFT_OK;
  return weft_fail(error, WEFT_E_UNSUPPORTED,
                   "the manifest is stale: process %d, which answers there, has written another one", pid);
}

static weft_status open_weights(weft_weights *w, const char *socket, bool *otherwise, weft_error *error) {
  weft_text text = {0};
  int pid = 0;
  char *path = weights_manifest_path(socket);
  if (path == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a manifest");
  weft_status status = weights_manifest_load(path, &text, error);
  if (status == WEFT_OK) {
    weft_error inner = {{0}};
    status = weights_manifest_read(text.bytes, text.n, &w->manifest, &inner);
    *otherwise = status == WEFT_E_UNSUPPORTED; /* of another version */
    if (status != WEFT_OK) (void)weft_fail(error, status, "%s: %.300s", path, inner.text);
  }
  weft_free(path);
  if (status == WEFT_OK) status = connect_owner(socket, &w->fd, &pid, error);
  if (status == WEFT_OK)
    status = greet_owner(w->fd, weights_manifest_digest(text.bytes, text.n), pid, &w->manifest, error);
  weft_text_free(&text);
  if (status != WEFT_OK) return status;
  w->mapped = weft_alloc(w->manifest.n_pieces, sizeof *w->mapped);
  if (w->mapped == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a manifest");
  const char *then = weights_import_outlives(w) ? "this process runs on with what it has mapped; start `weft weights` "
                                                  "again before the next worker"
                                                : "what this process mapped of it (ipc) holds no longer, so it ends; "
                                                  "start `weft weights` and then this server again";
  (void)snprintf(w->lost_line, sizeof w->lost_line, "the owner of the weights (process %u) has ended: %s",
                 w->manifest.pid, then);
  return WEFT_OK;
}

bool weights_import_outlives(const weft_weights *w) {
  return weft_share_outlives(w->manifest.transport);
}

/* Every refusal names the socket. */
static weft_status open_named(const char *socket, weft_weights **out, bool *otherwise, weft_error *error) {
  weft_error inner = {{0}};
  *out = NULL;
  weft_weights *w = weft_alloc(1, sizeof *w);
  if (w == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for weights");
  w->fd = -1;
  weft_status status = open_weights(w, socket, otherwise, &inner);
  if (status == WEFT_OK) *out = w;
  if (status == WEFT_OK) return status;
  weft_weights_close(w);
  return weft_fail(error, status, "--weights %.200s: %.300s", socket, inner.text);
}

int weft_weights_open(const char *socket, weft_weights **out, char *error, size_t n_error) {
  weft_error why = {{0}};
  bool otherwise = false;
  weft_status status = open_named(socket, out, &otherwise, &why);
  return status == WEFT_OK ? 0 : weft_tell(&why, status, error, n_error);
}

void weft_weights_close(weft_weights *w) {
  if (w == NULL) return;
  for (uint32_t i = 0; w->mapped != NULL && i < w->manifest.n_pieces; i++) {
    if (w->mapped[i] == NULL) continue;
    if (w->n_devices > 0)
      weft_share_unmap(w->device[weights_piece_place(&w->manifest, i)], w->mapped[i], w->manifest.piece[i]);
    else
      shared_memory_unmap(w->mapped[i], w->manifest.piece[i]);
  }
  if (w->fd >= 0) (void)close(w->fd); /* the owner sees that we left */
  weft_free(w->mapped);
  weights_manifest_free(&w->manifest);
  weft_free(w);
}

const char *weights_import_lost(weft_weights *w) {
  char byte;
  if (atomic_load(&w->lost)) return w->lost_line;
  ssize_t n = recv(w->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))) return NULL;
  if (!atomic_exchange(&w->lost, true)) weft_log(WEFT_LOG_WARN, "%s", w->lost_line);
  return w->lost_line;
}

bool weft_weights_alive(weft_weights *w) {
  return weights_import_lost(w) == NULL;
}

int weights_import_descriptor(const weft_weights *w) {
  return w->fd;
}

/* ---- pieces ---- */

/* A name as the owner wrote it. */
static bool read_name(const char *digits, uint32_t n, weft_share_handle *out) {
  if (n % 2 != 0 || n / 2 > sizeof out->bytes) return false;
  for (uint32_t i = 0; i < n / 2; i++) {
    const char pair[3] = {digits[2 * i], digits[2 * i + 1], 0};
    char *end;
    if (strspn(pair, "0123456789abcdef") != 2) return false;
    out->bytes[i] = (uint8_t)strtoul(pair, &end, 16);
  }
  out->n_bytes = n / 2;
  return true;
}

static weft_status fetch_piece(weft_weights *w, uint32_t piece, weft_share_handle *out, weft_error *error) {
  weights_answer answer;
  char text[WEIGHTS_TALK_TEXT];
  *out = (weft_share_handle){.fd = -1};
  weft_status status = weights_talk_ask(w->fd, WEIGHTS_ASK_PIECE, piece, &answer, text, &out->fd, error);
  if (status != WEFT_OK) return status;
  if (out->fd < 0 && !read_name(text, answer.n_text, out))
    status = weft_fail(error, WEFT_E_FORMAT, "the owner gave no name of piece %u", piece);
  else if ((out->fd < 0) == weights_import_outlives(w))
    status = weft_fail(error, WEFT_E_FORMAT, "piece %u comes by another transport than the manifest says", piece);
  else if (answer.n_bytes != w->manifest.piece[piece])
    status = weft_fail(error, WEFT_E_FORMAT, "piece %u has %" PRIu64 " bytes, and the manifest says %" PRIu64, piece,
                       answer.n_bytes, w->manifest.piece[piece]);
  if (status != WEFT_OK && out->fd >= 0) (void)close(out->fd); /* of other memory */
  if (status != WEFT_OK) out->fd = -1;
  return status;
}

static weft_status map_piece(weft_weights *w, uint32_t piece, weft_error *error) {
  weft_share_handle handle;
  uint64_t n_bytes = w->manifest.piece[piece];
  if (w->mapped[piece] != NULL) return WEFT_OK;
  if (w->n_devices == 0 && strcmp(w->manifest.transport, "memfd") != 0)
    return weft_fail(error, WEFT_E_UNSUPPORTED, "only a device of weft maps what comes by %s", w->manifest.transport);
  weft_status status = fetch_piece(w, piece, &handle, error);
  if (status != WEFT_OK) return status;
  status = w->n_devices > 0 ? weft_share_map(w->device[weights_piece_place(&w->manifest, piece)], &handle, n_bytes,
                                             &w->mapped[piece], error)
                            : shared_memory_map(handle.fd, n_bytes, &w->mapped[piece], error);
  if (handle.fd >= 0) (void)close(handle.fd); /* the mapping keeps the memory */
  if (status == WEFT_OK) w->n_mapped += n_bytes;
  return status;
}

static weft_status find_weight(void *self, const char *name, uint32_t uses, uint32_t place_of_device,
                               const weft_shelf_weight **out, const void **data, weft_error *error) {
  weights_place *place = self;
  weft_weights *w = place->weights;
  *out = weights_model_find(place->model, name, uses, place_of_device);
  if (*out == NULL) return weft_fail(error, WEFT_E_NOT_FOUND, "the owner of the weights has no such matrix");
  weft_status status = map_piece(w, (*out)->piece, error);
  if (status == WEFT_OK) *data = (const uint8_t *)w->mapped[(*out)->piece] + (*out)->at;
  return status;
}

/* ---- for a runtime ---- */

static weft_status fail_word(const char *what, const char *owner, const char *own, weft_error *error) {
  return weft_fail(error, WEFT_E_UNSUPPORTED,
                   "the weights were laid out for %s '%.60s', and this process has '%.60s': give both the same options",
                   what, owner, own);
}

static weft_status check_device(const weights_manifest *m, uint32_t place, weft_device *device, weft_error *error) {
  const weft_device_info *info = weft_device_get_info(device);
  const char *set = info->set == NULL ? "" : info->set;
  if (strcmp(m->backend, info->backend) != 0) return fail_word("backend", m->backend, info->backend, error);
  if (strcmp(m->card[place], info->card) != 0) return fail_word("card", m->card[place], info->card, error);
  if (strcmp(m->set, set) != 0) return fail_word("kernel set", m->set, set, error);
  if (!weft_share_takes(device, m->transport)) return fail_word("transport", m->transport, "none such", error);
  if (m->products != info->products)
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "the weights were laid out for products of %u bits, and this process multiplies in %u: give both "
                     "the same --precision",
                     m->products, info->products);
  (void)weft_device_keep_integers(device, m->integers);
  if (weft_device_get_info(device)->integers != m->integers)
    return fail_word("integers", m->integers ? "yes" : "no", m->integers ? "no" : "yes", error);
  for (uint32_t i = 0; i < m->n_numerics; i++) {
    const char *own = weft_device_kernels(device)->numerics(device, m->numerics[i].type);
    if (strcmp(m->numerics[i].tag, own) != 0) return fail_word("sums in the order", m->numerics[i].tag, own, error);
  }
  return WEFT_OK;
}

static weft_status check_devices(const weights_manifest *m, const weft_devices *devices, bool *otherwise,
                                 weft_error *error) {
  uint32_t n_shards = devices->n_shards > 1 ? devices->n_shards : 1;
  weft_status status = WEFT_OK;
  if (devices->replicas)
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "--split replicas: each replica is a server of its own, with an owner of its own");
  if (m->n_devices != devices->n || m->n_shards != n_shards)
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "the weights lie on %u device(s), %u of a part, and this process has %u, %u of a part: give both "
                     "the same --devices and --split",
                     m->n_devices, m->n_shards, devices->n, n_shards);
  for (uint32_t i = 0; i < devices->n && status == WEFT_OK; i++) status = check_device(m, i, devices->device[i], error);
  *otherwise = status != WEFT_OK;
  return status;
}

weft_status weights_import_open(const char *socket, const weft_devices *devices, weft_weights **out, bool *otherwise,
                                weft_error *error) {
  weft_error inner = {{0}};
  weft_status status = open_named(socket, out, otherwise, error);
  if (status != WEFT_OK) return status;
  memcpy((*out)->device, devices->device, sizeof(*out)->device);
  (*out)->n_devices = devices->n;
  status = check_devices(&(*out)->manifest, devices, otherwise, &inner);
  if (status == WEFT_OK) return status;
  weft_weights_close(*out);
  *out = NULL;
  return weft_fail(error, status, "--weights %.150s: %.350s", socket, inner.text);
}

void weights_import_cut(const weft_weights *w, const weft_shelf *shelf, weft_split *split) {
  const weights_place *place = shelf->self;
  for (uint32_t p = 0; p < w->manifest.n_devices / w->manifest.n_shards; p++)
    split->first_layer[p] = place->model->first_layer[p];
}

/* A file that has the name of one that the owner loaded, and not its content. */
static bool was_replaced(const weights_manifest *m, const char *path) {
  for (uint32_t i = 0; i < m->n_models; i++) {
    const char *name = strrchr(m->model[i].file, '/'), *own = strrchr(path, '/');
    if (strcmp(name == NULL ? m->model[i].file : name + 1, own == NULL ? path : own + 1) == 0) return true;
  }
  return false;
}

weft_status weights_import_shelf(weft_weights *w, const weft_gguf *gguf, bool drafts, const weft_shelf **out,
                                 weft_error *error) {
  const weights_manifest *m = &w->manifest;
  uint64_t low, high;
  const char *path = weft_gguf_path(gguf);
  weft_gguf_fingerprint(gguf, &low, &high);
  const weights_model *model = weights_manifest_find(m, low, high);
  *out = NULL;
  if (model == NULL && strcmp(m->scope, drafts ? "target" : "drafter") == 0) return WEFT_OK;
  if (model == NULL)
    return weft_fail(error, WEFT_E_UNSUPPORTED, "--weights %.150s: %.200s %s", m->socket, path,
                     was_replaced(m, path)
                         ? "is another file than the one whose weights lie there: start `weft weights` "
                           "again"
                         : "is none of the models whose weights lie there");
  weights_place *place = &w->place[model - m->model];
  *place = (weights_place){.weights = w, .model = model, .shelf = {.find = find_weight, .self = place}};
  *out = &place->shelf;
  return WEFT_OK;
}

void weights_import_print(const weft_weights *w, weft_text *out) {
  char path[512];
  (void)weft_utf8_clean(w->manifest.socket, path, sizeof path);
  weft_text_printf(out, "mapped   %.1f MiB of weights from process %u at %s, by %s, %s\n",
                   (double)w->n_mapped / 1048576.0, w->manifest.pid, path, w->manifest.transport,
                   weft_share_is_read_only(w->device[0]) ? "for reading alone" : "which a fault here could overwrite");
}

/* ---- for programs ---- */

uint32_t weft_weights_models(const weft_weights *w) {
  return w->manifest.n_models;
}

const char *weft_weights_model(const weft_weights *w, uint32_t model) {
  return model < w->manifest.n_models ? w->manifest.model[model].file : NULL;
}

uint32_t weft_weights_count(const weft_weights *w, uint32_t model) {
  return model < w->manifest.n_models ? w->manifest.model[model].n_weights : 0;
}

int weft_weights_at(const weft_weights *w, uint32_t model, uint32_t index, weft_weights_range *out) {
  if (index >= weft_weights_count(w, model)) return WEFT_E_NOT_FOUND;
  const weft_shelf_weight *one = &w->manifest.model[model].weight[index];
  *out = (weft_weights_range){.name = one->name,
                              .uses = one->uses,
                              .type = (uint32_t)one->type,
                              .layout = one->layout,
                              .n_in = one->n_in,
                              .n_out = one->n_out,
                              .n_mats = one->n_mats,
                              .piece = one->piece,
                              .device = one->place,
                              .at = one->at,
                              .n_bytes = one->n_bytes};
  return 0;
}

int weft_weights_find(const weft_weights *w, uint32_t model, const char *name, weft_weights_range *out) {
  for (uint32_t i = 0; i < weft_weights_count(w, model); i++) {
    if (strcmp(w->manifest.model[model].weight[i].name, name) == 0) return weft_weights_at(w, model, i, out);
  }
  return WEFT_E_NOT_FOUND;
}

int weft_weights_map(weft_weights *w, const weft_weights_range *range, const void **data, char *error, size_t n_error) {
  weft_error why = {{0}};
  *data = NULL;
  bool inside = range->piece < w->manifest.n_pieces && range->at <= w->manifest.piece[range->piece] &&
                range->n_bytes <= w->manifest.piece[range->piece] - range->at;
  if (!inside) (void)weft_fail(&why, WEFT_E_INVALID, "the range lies in no piece of these weights");
  weft_status status = inside ? map_piece(w, range->piece, &why) : WEFT_E_INVALID;
  if (status != WEFT_OK) return weft_tell(&why, status, error, n_error);
  *data = (const uint8_t *)w->mapped[range->piece] + range->at;
  return 0;
}

int weft_weights_descriptor(weft_weights *w, uint32_t piece, int *fd, char *error, size_t n_error) {
  weft_error why = {{0}};
  *fd = -1;
  weft_share_handle handle = {.fd = -1};
  weft_status status = piece >= w->manifest.n_pieces ? weft_fail(&why, WEFT_E_NOT_FOUND, "there is no piece %u", piece)
                       : weights_import_outlives(w)
                           ? fetch_piece(w, piece, &handle, &why)
                           : weft_fail(&why, WEFT_E_UNSUPPORTED, "pieces that come by ipc have no descriptor");
  *fd = handle.fd;
  return status == WEFT_OK ? 0 : weft_tell(&why, status, error, n_error);
}

int weft_weights_counts(weft_weights *w, char **json, char *error, size_t n_error) {
  weft_error why = {{0}};
  weights_answer answer;
  char text[WEIGHTS_TALK_TEXT];
  weft_status status = weights_talk_ask(w->fd, WEIGHTS_ASK_COUNTS, 0, &answer, text, NULL, &why);
  *json = status == WEFT_OK ? weft_strdup(text) : NULL;
  if (status == WEFT_OK && *json == NULL) status = WEFT_E_NO_MEMORY;
  return status == WEFT_OK ? 0 : weft_tell(&why, status, error, n_error);
}
