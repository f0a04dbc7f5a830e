/* SPDX-License-Identifier: MIT */
#include "api/weights_owner.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/json.h"
#include "api/runtime.h"
#include "api/weights_lock.h"
#include "api/weights_talk.h"
#include "base/clock.h"
#include "base/descriptors.h"
#include "base/local_socket.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/path.h"
#include "kernels/ops.h"
#include "kernels/share.h"
#include "model/split_plan.h"

enum { WORKERS_MAX = 256, STOPS_MAX = 4, N_SCOPES = 2, EVENT_BYTES = 32768 };

typedef struct weights_worker {
  int fd, pid;
  uint8_t asked[sizeof(weights_ask)];
  uint32_t n_asked;
} weights_worker;

struct weights_owner {
  void (*tell)(void *self, const char *event);
  void *tell_self;
  weft_text event; /* that is being told */
  weft_runtime *runtime;
  uint32_t n_devices;
  weights_manifest manifest;
  weights_digest digest;
  weights_lock lock[WEFT_DEVICES_MAX][N_SCOPES];
  weft_local_socket socket;
  char *manifest_path;
  weights_worker worker[WORKERS_MAX];
  uint32_t n_workers;
  uint64_t n_read, n_placed, load_us; /* bytes of the files, bytes on the device, time for both */
  uint64_t n_connects, n_disconnects, n_requests, n_refused;
};

static const char *const scopes[N_SCOPES] = {"target", "drafter"};

static bool has_scope(const weights_owner_options *own, uint32_t scope) {
  return strcmp(own->scope, "both") == 0 || strcmp(own->scope, scopes[scope]) == 0;
}

/* ---- what will be loaded ---- */

static weft_device *device_at(const weights_owner *owner, uint32_t place) {
  return owner->runtime->devices.device[place];
}

/* --transport. */
static weft_share_by transport_of(const weights_owner_options *own) {
  if (own->transport == NULL || strcmp(own->transport, "auto") == 0) return WEFT_SHARE_AUTO;
  if (strcmp(own->transport, "ipc") == 0) return WEFT_SHARE_NAMES;
  return strcmp(own->transport, "fd") == 0 ? WEFT_SHARE_DESCRIPTORS : WEFT_SHARE_NOT;
}

static weft_status check_options(const weights_owner_options *own, weft_error *error) {
  if (transport_of(own) == WEFT_SHARE_NOT)
    return weft_fail(error, WEFT_E_INVALID, "--transport: '%.32s' must be auto, fd or ipc", own->transport);
  if (!has_scope(own, 0) && !has_scope(own, 1))
    return weft_fail(error, WEFT_E_INVALID, "--scope: '%.32s' must be target, drafter or both", own->scope);
  if (own->socket == NULL || own->socket[0] == 0)
    return weft_fail(error, WEFT_E_INVALID, "--socket PATH is missing: where workers find the weights");
  return WEFT_OK;
}

static bool is_in_scope(const weft_runtime *rt, const weights_owner_options *own, uint32_t model) {
  return has_scope(own, model < rt->n_served ? 0 : 1);
}

static uint32_t count_models(const weft_runtime *rt, const weights_owner_options *own) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < rt->n_models; i++) n += is_in_scope(rt, own, i);
  return n;
}

/* The files, and devices on which nothing is placed yet. */
static weft_status begin_owner(weights_owner *owner, const weft_open_options *options, const weights_owner_options *own,
                               weft_error *error) {
  weft_status status = check_options(own, error);
  owner->runtime = status == WEFT_OK ? weft_alloc(1, sizeof *owner->runtime) : NULL;
  if (status == WEFT_OK && owner->runtime == NULL) status = weft_fail(error, WEFT_E_NO_MEMORY, "no memory");
  if (status == WEFT_OK) status = weft_runtime_begin(owner->runtime, options, transport_of(own), error);
  if (status != WEFT_OK) return status;
  if (owner->runtime->devices.replicas)
    return weft_fail(error, WEFT_E_INVALID,
                     "--split replicas: each replica is a server with an owner of its own: start one for each of "
                     "--devices, with a socket of its own");
  owner->n_devices = owner->runtime->devices.n;
  if (count_models(owner->runtime, own) == 0)
    return weft_fail(error, WEFT_E_INVALID, "--scope %s leaves no model: name one with --draft model:FILE", own->scope);
  const char *first = weft_share_transport(device_at(owner, 0));
  for (uint32_t d = 0; d < owner->n_devices; d++) {
    const char *transport = weft_share_transport(device_at(owner, d));
    if (transport == NULL || first == NULL || strcmp(transport, first) != 0)
      return weft_fail(error, WEFT_E_UNSUPPORTED, "the %s backend cannot hand weights over here%s",
                       weft_device_get_info(device_at(owner, d))->backend,
                       transport_of(own) == WEFT_SHARE_AUTO ? "" : ": try another --transport");
  }
  return WEFT_OK;
}

/* About what the weights will take of a device: as in the files, and integers where they are kept. */
static uint64_t needed_bytes(const weights_owner *owner, const weights_owner_options *own, uint32_t device) {
  const weft_runtime *rt = owner->runtime;
  uint64_t all = 0;
  for (uint32_t i = 0; i < rt->n_models; i++) {
    uint64_t n_bytes = 0, n_integers = 0;
    if (!is_in_scope(rt, own, i)) continue;
    weft_split_weights(rt->model[i].gguf, device_at(owner, device), &n_bytes, &n_integers);
    all += n_bytes + n_integers;
  }
  return owner->n_devices == 1 ? all : (uint64_t)((double)all * devices_share(&rt->devices, device));
}

static weft_status check_room(const weights_owner *owner, const weights_owner_options *own, weft_error *error) {
  for (uint32_t d = 0; d < owner->n_devices; d++) {
    uint64_t needed = needed_bytes(owner, own, d), left = weft_device_memory_left(device_at(owner, d));
    if (left == 0 || (needed <= left && own->reserve_bytes <= left - needed)) continue;
    return weft_fail(error, WEFT_E_NO_MEMORY,
                     "the weights need %" PRIu64 " MiB of device %u and --reserve-mib %" PRIu64
                     " MiB beside them; %" PRIu64 " MiB are free: lower it, or take fewer bits",
                     needed >> 20, weft_device_get_info(device_at(owner, d))->index, own->reserve_bytes >> 20,
                     left >> 20);
  }
  return WEFT_OK;
}

/* ---- events ---- */

/* The memory for an event was taken at the start: none is lost for want of it. NULL: nobody is told. */
static weft_text *begin_event(weights_owner *owner) {
  weft_text_clear(&owner->event);
  return owner->tell == NULL ? NULL : &owner->event;
}

static void tell_event(weights_owner *owner) {
  weft_text_puts(&owner->event, "}");
  if (weft_text_status(&owner->event) == WEFT_OK) owner->tell(owner->tell_self, owner->event.bytes);
}

static void tell_words(weights_owner *owner, const char *event, const char *name, const char *words) {
  weft_text *text = begin_event(owner);
  if (text == NULL) return;
  weft_text_printf(text, "{\"event\":\"%s\",\"%s\":", event, name);
  weft_json_words(text, words);
  tell_event(owner);
}

static void tell_support(weights_owner *owner) {
  const weft_device_info *info = weft_device_get_info(device_at(owner, 0));
  weft_text *text = begin_event(owner);
  if (text == NULL) return;
  weft_text_printf(text,
                   "{\"event\":\"support\",\"backend\":\"%s\",\"devices\":%u,\"card\":\"%s\",\"transport\":\"%s\"",
                   info->backend, owner->n_devices, info->card, weft_share_transport(device_at(owner, 0)));
  tell_event(owner);
}

static void tell_loaded(weights_owner *owner) {
  const weights_manifest *m = &owner->manifest;
  weft_text *text = NULL;
  for (uint32_t i = 0; i < m->n_models && (text = begin_event(owner)) != NULL; i++) {
    weft_text_puts(text, "{\"event\":\"plan\",\"file\":");
    weft_json_words(text, m->model[i].file);
    weft_text_printf(text, ",\"ranges\":%u,\"bytes\":%" PRIu64, m->model[i].n_weights,
                     weights_model_bytes(&m->model[i]));
    tell_event(owner);
  }
  if ((text = begin_event(owner)) == NULL) return;
  weft_text_printf(text, "{\"event\":\"upload\",\"bytes\":%" PRIu64 ",\"read_bytes\":%" PRIu64 ",\"seconds\":%.6f",
                   owner->n_placed, owner->n_read, (double)owner->load_us * 1e-6);
  tell_event(owner);
}

static void tell_ready(weights_owner *owner) {
  const weights_manifest *m = &owner->manifest;
  tell_words(owner, "broker", "socket", m->socket);
  weft_text *text = begin_event(owner);
  if (text == NULL) return;
  weft_text_printf(text, "{\"event\":\"ready\",\"backend\":\"%s\",\"scope\":\"%s\",\"bytes\":%" PRIu64 ",\"manifest\":",
                   m->transport, m->scope, owner->n_placed);
  weft_json_words(text, owner->manifest_path);
  tell_event(owner);
}

static void tell_request(weights_owner *owner, int pid, const weights_ask *ask) {
  weft_text *text = begin_event(owner);
  if (text == NULL) return;
  weft_text_printf(text, "{\"event\":\"request\",\"process\":%d,\"question\":%u,\"piece\":%u", pid, ask->question,
                   ask->piece);
  tell_event(owner);
}

static void tell_preflight(weights_owner *owner, const weights_owner_options *own, const char *why) {
  uint64_t need = 0, left = 0;
  weft_text *text = begin_event(owner);
  if (text == NULL) return;
  for (uint32_t d = 0; d < owner->n_devices; d++) {
    need += needed_bytes(owner, own, d);
    left += weft_device_memory_left(device_at(owner, d));
  }
  weft_text_printf(text, "{\"event\":\"preflight\",\"fits\":%s,\"transport\":\"%s\",\"models\":%u",
                   why == NULL ? "true" : "false", weft_share_transport(device_at(owner, 0)),
                   count_models(owner->runtime, own));
  weft_text_printf(text, ",\"need_bytes\":%" PRIu64 ",\"free_bytes\":%" PRIu64 ",\"reserve_bytes\":%" PRIu64, need,
                   left, own->reserve_bytes);
  if (why != NULL) weft_text_puts(text, ",\"reason\":");
  if (why != NULL) weft_json_words(text, why);
  tell_event(owner);
}

/* ---- the lock ---- */

static weft_status take_lock(weights_owner *owner, const weights_owner_options *own, uint32_t device, uint32_t scope,
                             weft_error *error) {
  const weft_device_info *info = weft_device_get_info(device_at(owner, device));
  weft_text path = {0}, what = {0};
  weft_text_printf(&what, "the %s models of card %s", scopes[scope], info->card);
  /* host memory is no card that only one may fill: there the socket is what two cannot share */
  if (info->host_memory)
    weft_text_printf(&path, "%s.%s.lock", own->socket, scopes[scope]);
  else
    weft_text_printf(&path, "/tmp/weft-weights-%s-%s.lock", info->card, scopes[scope]);
  bool good = weft_text_status(&path) == WEFT_OK && weft_text_status(&what) == WEFT_OK;
  weft_status status = good ? weights_lock_take(path.bytes, what.bytes, &owner->lock[device][scope], error)
                            : weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a lock");
  if (status == WEFT_OK) tell_words(owner, "lock", "path", path.bytes);
  weft_text_free(&path);
  weft_text_free(&what);
  return status;
}

static weft_status take_locks(weights_owner *owner, const weights_owner_options *own, weft_error *error) {
  weft_status status = WEFT_OK;
  uint32_t n = weft_device_get_info(device_at(owner, 0))->host_memory ? 1 : owner->n_devices;
  for (uint32_t d = 0; d < n; d++) {
    for (uint32_t s = 0; s < N_SCOPES && status == WEFT_OK; s++) {
      if (has_scope(own, s)) status = take_lock(owner, own, d, s, error);
    }
  }
  return status;
}

/* ---- loading ---- */

static weft_status put_weight(void *self, const weft_shelf_weight *weight) {
  return weights_model_add(self, weight);
}

static weft_model_limits limits_of(const weft_runtime *rt) {
  return (weft_model_limits){
      .rows_max = 1, .canvas_rows_max = 1, .segments_max = 1, .unused_tensors = rt->options.unused_tensors};
}

static weft_status load_model(weights_owner *owner, uint32_t index, weft_error *error) {
  weft_runtime *rt = owner->runtime;
  weft_served_model *m = &rt->model[index];
  weights_model *kept = &owner->manifest.model[owner->manifest.n_models++];
  const weft_shelf shelf = {.put = put_weight, .self = kept};
  weft_model_limits limits = limits_of(rt);
  limits.shelf = &shelf;
  weft_split split;
  weft_split_reason reason;
  weft_model *model = NULL;
  uint64_t began = weft_clock_us();
  kept->file = weft_path_from_root(m->path);
  kept->drafts = index >= rt->n_served;
  weft_status status = kept->file == NULL ? weft_fail(error, WEFT_E_NO_MEMORY, "no memory for %s", m->path) : WEFT_OK;
  if (status == WEFT_OK) status = devices_split(&rt->devices, 0, m->gguf, &split, &reason, error);
  if (status == WEFT_OK) status = weft_model_open(m->gguf, &split, &limits, NULL, NULL, &model, error);
  if (status != WEFT_OK) return status;
  const weft_model_info *info = weft_model_get_info(model);
  memcpy(kept->first_layer, split.first_layer, sizeof kept->first_layer);
  uint64_t took = weft_clock_us() - began, placed = weights_model_bytes(kept);
  kept->fingerprint_low = info->fingerprint_low;
  kept->fingerprint_high = info->fingerprint_high;
  owner->n_read += info->read_bytes;
  owner->n_placed += placed;
  owner->load_us += took;
  weft_log(WEFT_LOG_NOTICE, "weights of %s: %.1f MiB read and %.1f MiB placed in %.2f s", m->path,
           (double)info->read_bytes / 1048576.0, (double)placed / 1048576.0, (double)took * 1e-6);
  weft_model_close(model); /* its matrices stay with the device */
  return WEFT_OK;
}

static void note_numerics(weights_owner *owner, weft_type type) {
  weights_manifest *m = &owner->manifest;
  for (uint32_t i = 0; i < m->n_numerics; i++) {
    if (m->numerics[i].type == type) return;
  }
  if (m->n_numerics == WEIGHTS_NUMERICS_MAX) return; /* there are fewer types */
  weights_numerics *one = &m->numerics[m->n_numerics++];
  one->type = type;
  (void)snprintf(one->tag, sizeof one->tag, "%s",
                 weft_device_kernels(device_at(owner, 0))->numerics(device_at(owner, 0), type));
}

/* Pieces count over all devices from here on. */
static weft_status list_pieces(weights_owner *owner, weft_error *error) {
  weights_manifest *m = &owner->manifest;
  m->n_devices = owner->n_devices;
  m->n_shards = owner->runtime->devices.n_shards > 1 ? owner->runtime->devices.n_shards : 1;
  for (uint32_t d = 0; d < m->n_devices; d++) {
    const char *card = weft_device_get_info(device_at(owner, d))->card;
    (void)snprintf(m->card[d], sizeof m->card[d], "%s", card);
    m->first_piece[d + 1] = m->first_piece[d] + weft_share_n_pieces(device_at(owner, d));
  }
  m->n_pieces = m->first_piece[m->n_devices];
  m->piece = weft_alloc(m->n_pieces, sizeof *m->piece);
  if (m->piece == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a manifest");
  for (uint32_t i = 0; i < m->n_pieces; i++) {
    uint32_t d = weights_piece_place(m, i);
    m->piece[i] = weft_share_piece_bytes(device_at(owner, d), i - m->first_piece[d]);
  }
  for (uint32_t i = 0; i < m->n_models; i++) {
    for (uint32_t k = 0; k < m->model[i].n_weights; k++)
      m->model[i].weight[k].piece += m->first_piece[m->model[i].weight[k].place];
  }
  return WEFT_OK;
}

static weft_status fill_manifest(weights_owner *owner, const weights_owner_options *own, weft_error *error) {
  weights_manifest *m = &owner->manifest;
  const weft_device_info *info = weft_device_get_info(device_at(owner, 0));
  m->pid = (uint32_t)getpid();
  (void)snprintf(m->version, sizeof m->version, "%s", weft_version());
  (void)snprintf(m->backend, sizeof m->backend, "%s", info->backend);
  (void)snprintf(m->set, sizeof m->set, "%s", info->set == NULL ? "" : info->set);
  (void)snprintf(m->transport, sizeof m->transport, "%s", weft_share_transport(device_at(owner, 0)));
  (void)snprintf(m->scope, sizeof m->scope, "%s", own->scope);
  m->products = info->products;
  m->integers = info->integers;
  m->socket = weft_path_from_root(own->socket);
  if (m->socket == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a manifest");
  weft_status status = list_pieces(owner, error);
  if (status != WEFT_OK) return status;
  for (uint32_t i = 0; i < m->n_models; i++) {
    for (uint32_t k = 0; k < m->model[i].n_weights; k++) note_numerics(owner, m->model[i].weight[k].type);
  }
  return weights_manifest_check(m, error);
}

static weft_status load_all(weights_owner *owner, const weights_owner_options *own, weft_error *error) {
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < owner->runtime->n_models && status == WEFT_OK; i++) {
    if (is_in_scope(owner->runtime, own, i)) status = load_model(owner, i, error);
  }
  for (uint32_t d = 0; d < owner->n_devices && status == WEFT_OK; d++)
    status = weft_share_seal(device_at(owner, d), error);
  return status == WEFT_OK ? fill_manifest(owner, own, error) : status;
}

/* The socket is ours from here on, so the manifest that is written is that of who answers there. A worker that reads it
 * a moment too early is told that it is stale, and may try again. */
static weft_status publish_manifest(weights_owner *owner, const weights_owner_options *own, weft_error *error) {
  weft_text text = {0};
  weft_status status = weft_local_socket_open("--socket ", own->socket, 0600, &owner->socket, error);
  weights_manifest_write(&owner->manifest, &text);
  if (status == WEFT_OK) owner->manifest_path = weights_manifest_path(owner->manifest.socket);
  if (status == WEFT_OK && (owner->manifest_path == NULL || weft_text_status(&text) != WEFT_OK))
    status = weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a manifest");
  if (status == WEFT_OK) owner->digest = weights_manifest_digest(text.bytes, text.n);
  if (status == WEFT_OK) status = weights_manifest_save(owner->manifest_path, &text, error);
  weft_text_free(&text);
  return status;
}

static weights_owner *make_owner(const weights_owner_options *own, weft_error *error) {
  weights_owner *owner = weft_alloc(1, sizeof *owner);
  if (owner != NULL) weft_text_reserve(&owner->event, EVENT_BYTES);
  if (owner == NULL || weft_text_status(&owner->event) != WEFT_OK) {
    weft_free(owner);
    (void)weft_fail(error, WEFT_E_NO_MEMORY, "no memory for an owner of weights");
    return NULL;
  }
  owner->tell = own->tell;
  owner->tell_self = own->tell_self;
  owner->socket = (weft_local_socket)WEFT_NO_LOCAL_SOCKET;
  for (uint32_t d = 0; d < WEFT_DEVICES_MAX; d++) {
    for (uint32_t s = 0; s < N_SCOPES; s++) owner->lock[d][s] = (weights_lock)WEIGHTS_NO_LOCK;
  }
  return owner;
}

weft_status weights_owner_open(const weft_open_options *options, const weights_owner_options *own, weights_owner **out,
                               weft_error *error) {
  *out = NULL;
  weights_owner *owner = make_owner(own, error);
  if (owner == NULL) return WEFT_E_NO_MEMORY;
  weft_status status = begin_owner(owner, options, own, error);
  if (status == WEFT_OK) tell_support(owner);
  if (status == WEFT_OK) status = take_locks(owner, own, error);
  if (status == WEFT_OK) status = check_room(owner, own, error);
  if (status == WEFT_OK) status = load_all(owner, own, error);
  if (status == WEFT_OK) tell_loaded(owner);
  if (status == WEFT_OK) status = publish_manifest(owner, own, error);
  if (status == WEFT_OK) tell_ready(owner);
  if (status == WEFT_OK) *out = owner;
  if (status != WEFT_OK) weights_owner_close(owner);
  return status;
}

weft_status weights_owner_judge(const weft_open_options *options, const weights_owner_options *own, weft_error *error) {
  weft_error why = {{0}};
  weights_owner *owner = make_owner(own, error);
  if (owner == NULL) return WEFT_E_NO_MEMORY;
  weft_status status = begin_owner(owner, options, own, error);
  if (status == WEFT_OK) {
    tell_support(owner);
    owner->tell = NULL; /* a lock that is given back at once is no news */
    bool fits = take_locks(owner, own, &why) == WEFT_OK && check_room(owner, own, &why) == WEFT_OK;
    owner->tell = own->tell;
    tell_preflight(owner, own, fits ? NULL : why.text);
  }
  weights_owner_close(owner);
  return status;
}

void weights_owner_close(weights_owner *owner) {
  if (owner == NULL) return;
  if (owner->manifest_path != NULL && owner->socket.fd >= 0) (void)unlink(owner->manifest_path); /* ours */
  weft_local_socket_close(&owner->socket);
  for (uint32_t i = 0; i < owner->n_workers; i++) (void)close(owner->worker[i].fd);
  weft_close(owner->runtime);
  weights_manifest_free(&owner->manifest);
  for (uint32_t d = 0; d < WEFT_DEVICES_MAX; d++) {
    for (uint32_t s = 0; s < N_SCOPES; s++) weights_lock_give(&owner->lock[d][s]);
  }
  weft_free(owner->manifest_path);
  weft_text_free(&owner->event);
  weft_free(owner);
}

/* ---- answering ---- */

void weights_owner_counts(const weights_owner *o, weft_text *out) {
  weft_text_printf(out,
                   "{\"pid\":%d,\"models\":%u,\"bytes\":%" PRIu64 ",\"read_bytes\":%" PRIu64 ",\"load_us\":%" PRIu64,
                   (int)getpid(), o->manifest.n_models, o->n_placed, o->n_read, o->load_us);
  weft_text_printf(out,
                   ",\"workers\":%u,\"connects\":%" PRIu64 ",\"disconnects\":%" PRIu64 ",\"requests\":%" PRIu64
                   ",\"refused\":%" PRIu64 "}",
                   o->n_workers, o->n_connects, o->n_disconnects, o->n_requests, o->n_refused);
}

uint64_t weights_owner_bytes(const weights_owner *owner) {
  return owner->n_placed;
}

static void drop_worker(weights_owner *owner, uint32_t i) {
  weights_worker *w = &owner->worker[i];
  (void)close(w->fd);
  owner->n_disconnects += 1;
  int pid = w->pid;
  *w = owner->worker[--owner->n_workers];
  weft_log(WEFT_LOG_INFO, "weights: process %d left; %u are connected", pid, owner->n_workers);
}

static void accept_worker(weights_owner *owner) {
  int pid = 0, fd = accept4(owner->socket.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return; /* it left again, or there are no descriptors: the next one is tried at the next look */
  bool own = weft_peer_is_own(fd, &pid);
  if (!own || owner->n_workers == WORKERS_MAX) {
    owner->n_refused += 1;
    weft_log(WEFT_LOG_WARN,
             own ? "weights: process %d is one worker too many" : "weights: process %d is another user's", pid);
    (void)close(fd);
    return;
  }
  owner->worker[owner->n_workers++] = (weights_worker){.fd = fd, .pid = pid};
  owner->n_connects += 1;
  weft_log(WEFT_LOG_INFO, "weights: process %d connected; %u are connected", pid, owner->n_workers);
}

/* A name goes over as text, in hexadecimal digits. */
static weft_status export_piece(weights_owner *owner, uint32_t piece, uint64_t *n_bytes, int *descriptor,
                                weft_text *text, weft_error *error) {
  weft_share_handle handle;
  uint32_t place = weights_piece_place(&owner->manifest, piece), own = piece - owner->manifest.first_piece[place];
  weft_status status = weft_share_export(device_at(owner, place), own, &handle, error);
  if (status != WEFT_OK) return status;
  *n_bytes = weft_share_piece_bytes(device_at(owner, place), own);
  *descriptor = handle.fd;
  for (uint32_t i = 0; i < handle.n_bytes; i++) weft_text_printf(text, "%02x", handle.bytes[i]);
  return WEFT_OK;
}

/* False: the worker is to be dropped. */
static bool answer_worker(weights_owner *owner, weights_worker *w) {
  weights_ask ask;
  weft_error why = {{0}};
  weft_text text = {.max = WEIGHTS_TALK_TEXT - 1};
  int descriptor = -1;
  weft_status known = weights_ask_read(w->asked, &ask), status = known;
  if (known == WEFT_E_FORMAT) {
    owner->n_refused += 1;
    return false; /* it speaks of something else */
  }
  weights_answer answer = {
      .word = WEIGHTS_TALK_WORD, .form = WEIGHTS_TALK_FORM, .question = ask.question, .digest = owner->digest};
  owner->n_requests += 1;
  tell_request(owner, w->pid, &ask);
  if (known == WEFT_OK && ask.question == WEIGHTS_ASK_COUNTS) weights_owner_counts(owner, &text);
  if (known == WEFT_OK && ask.question == WEIGHTS_ASK_PIECE)
    status = export_piece(owner, ask.piece, &answer.n_bytes, &descriptor, &text, &why);
  if (status != WEFT_OK) {
    owner->n_refused += 1;
    weft_text_puts(&text, why.text[0] != 0 ? why.text : weft_status_text(status));
  }
  answer.status = (int32_t)status;
  answer.n_text = weft_text_status(&text) == WEFT_OK ? (uint32_t)text.n : 0;
  bool sent = weights_answer_send(w->fd, &answer, text.bytes, descriptor);
  if (descriptor >= 0) (void)close(descriptor); /* the worker has its own */
  weft_text_free(&text);
  return sent && known != WEFT_E_UNSUPPORTED;
}

/* False: the worker has left, or is to be dropped. */
static bool hear_worker(weights_owner *owner, weights_worker *w) {
  ssize_t n = recv(w->fd, w->asked + w->n_asked, sizeof w->asked - w->n_asked, MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  w->n_asked += (uint32_t)n;
  if (n == 0) return false;
  if (w->n_asked < sizeof w->asked) return true;
  w->n_asked = 0;
  return answer_worker(owner, w);
}

weft_status weights_owner_run(weights_owner *owner, const int *stop, uint32_t n_stops, weft_error *error) {
  struct pollfd look[STOPS_MAX + 1 + WORKERS_MAX];
  if (n_stops > STOPS_MAX) return weft_fail(error, WEFT_E_INVALID, "too many reasons to stop");
  for (;;) {
    uint32_t n = 0, n_workers = owner->n_workers;
    for (uint32_t i = 0; i < n_stops; i++) look[n++] = (struct pollfd){.fd = stop[i], .events = POLLIN};
    look[n++] = (struct pollfd){.fd = owner->socket.fd, .events = POLLIN};
    for (uint32_t i = 0; i < n_workers; i++) look[n++] = (struct pollfd){.fd = owner->worker[i].fd, .events = POLLIN};
    if (poll(look, n, -1) < 0 && errno != EINTR)
      return weft_fail(error, WEFT_E_IO, "waiting for workers: %s", strerror(errno));
    for (uint32_t i = 0; i < n_stops; i++) {
      if (look[i].revents != 0) return WEFT_OK;
    }
    for (uint32_t i = n_workers; i > 0; i--) { /* from the last: who is dropped gives its place to a later one */
      if (look[n_stops + i].revents != 0 && !hear_worker(owner, &owner->worker[i - 1])) drop_worker(owner, i - 1);
    }
    if (look[n_stops].revents != 0) accept_worker(owner);
  }
}
