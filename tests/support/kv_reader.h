/* SPDX-License-Identifier: MIT */
/* A router's side of cache events, for tests: two ZeroMQ sockets, and the index that the events alone make. It knows
 * nothing of the server; it reads bytes as MessagePack and fails on anything that is not as vLLM sends it. */
#ifndef WEFT_TESTS_KV_READER_H
#define WEFT_TESTS_KV_READER_H

#include <msgpack.h>
#include <string.h>
#include <zmq.h>

enum { READER_UNITS_MAX = 8192, READER_MS = 20000 };

typedef struct reader_unit {
  uint64_t name, before;
  bool has_before, has_tokens, has_keys;
  char medium[8];
  uint32_t n_tokens;
  int32_t token[256];
} reader_unit;

typedef struct kv_reader {
  void *context, *subscriber, *asker;
  reader_unit *unit;
  uint32_t n, n_cleared, n_stored, n_removed;
  uint64_t number, rank; /* of the last batch */
  bool has_number;
} kv_reader;

static inline kv_reader reader_open(const char *endpoint, const char *replay) {
  kv_reader r = {.context = zmq_ctx_new(), .unit = calloc(READER_UNITS_MAX, sizeof *r.unit)};
  int none = 0;
  r.subscriber = zmq_socket(r.context, ZMQ_SUB);
  r.asker = zmq_socket(r.context, ZMQ_DEALER);
  (void)zmq_setsockopt(r.subscriber, ZMQ_LINGER, &none, sizeof none);
  (void)zmq_setsockopt(r.asker, ZMQ_LINGER, &none, sizeof none);
  assert_int_equal(zmq_setsockopt(r.subscriber, ZMQ_SUBSCRIBE, "", 0), 0);
  if (endpoint != NULL) assert_int_equal(zmq_connect(r.subscriber, endpoint), 0);
  if (replay != NULL) assert_int_equal(zmq_connect(r.asker, replay), 0);
  return r;
}

static inline void reader_close(kv_reader *r) {
  (void)zmq_close(r->subscriber);
  (void)zmq_close(r->asker);
  (void)zmq_ctx_term(r->context);
  free(r->unit);
}

static inline reader_unit *reader_find(kv_reader *r, uint64_t name) {
  for (uint32_t i = 0; i < r->n; i++)
    if (r->unit[i].name == name) return &r->unit[i];
  return NULL;
}

static inline const msgpack_object *reader_member(const msgpack_object *map, const char *name) {
  for (uint32_t i = 0; i < map->via.map.size; i++) {
    const msgpack_object_kv *kv = &map->via.map.ptr[i];
    assert_int_equal(kv->key.type, MSGPACK_OBJECT_STR);
    if (kv->key.via.str.size == strlen(name) && memcmp(kv->key.via.str.ptr, name, strlen(name)) == 0) return &kv->val;
  }
  return NULL;
}

static inline bool reader_is(const msgpack_object *text, const char *word) {
  return text != NULL && text->type == MSGPACK_OBJECT_STR && text->via.str.size == strlen(word) &&
         memcmp(text->via.str.ptr, word, strlen(word)) == 0;
}

static inline void reader_store(kv_reader *r, const msgpack_object *event) {
  const msgpack_object_array *hashes = &reader_member(event, "block_hashes")->via.array;
  const msgpack_object_array *tokens = &reader_member(event, "token_ids")->via.array;
  const msgpack_object_array *keys = &reader_member(event, "extra_keys")->via.array;
  const msgpack_object *before = reader_member(event, "parent_block_hash"), *medium = reader_member(event, "medium");
  uint32_t size = (uint32_t)reader_member(event, "block_size")->via.u64;
  assert_true(size > 0 && size <= 256 && hashes->size > 0 && keys->size == hashes->size);
  assert_true(tokens->size == 0 || tokens->size == hashes->size * size);
  for (uint32_t i = 0; i < hashes->size; i++) {
    reader_unit u = {.name = hashes->ptr[i].via.u64, .n_tokens = tokens->size == 0 ? 0 : size};
    u.has_before = i > 0 || before->type != MSGPACK_OBJECT_NIL;
    u.before = i > 0 ? hashes->ptr[i - 1].via.u64 : u.has_before ? before->via.u64 : 0;
    u.has_tokens = tokens->size > 0;
    u.has_keys = keys->ptr[i].type != MSGPACK_OBJECT_NIL;
    memcpy(u.medium, medium->via.str.ptr, medium->via.str.size < 7 ? medium->via.str.size : 7);
    for (uint32_t k = 0; k < u.n_tokens; k++) u.token[k] = (int32_t)tokens->ptr[i * size + k].via.i64;
    if (u.has_before) assert_non_null(reader_find(r, u.before));
    reader_unit *to = reader_find(r, u.name);
    if (to == NULL) {
      assert_true(r->n < READER_UNITS_MAX);
      to = &r->unit[r->n++];
    }
    *to = u;
    r->n_stored += 1;
  }
}

static inline void reader_remove(kv_reader *r, const msgpack_object *event) {
  const msgpack_object_array *hashes = &reader_member(event, "block_hashes")->via.array;
  for (uint32_t i = 0; i < hashes->size; i++) {
    reader_unit *u = reader_find(r, hashes->ptr[i].via.u64);
    assert_non_null(u);
    if (reader_is(reader_member(event, "medium"), u->medium)) *u = r->unit[--r->n];
    r->n_removed += 1;
  }
}

/* is_live: before a listing has begun for this reader, batches for others may come that build on what it never
 * heard; these are passed over. */
static inline void reader_apply(kv_reader *r, const void *bytes, size_t n, bool is_live) {
  msgpack_unpacked all;
  size_t at = 0;
  msgpack_unpacked_init(&all);
  assert_int_equal(msgpack_unpack_next(&all, bytes, n, &at), MSGPACK_UNPACK_SUCCESS);
  assert_int_equal(at, n);
  assert_true(all.data.type == MSGPACK_OBJECT_ARRAY && all.data.via.array.size == 3);
  const msgpack_object_array *events = &all.data.via.array.ptr[1].via.array;
  r->rank = all.data.via.array.ptr[2].via.u64;
  for (uint32_t i = 0; i < events->size; i++) {
    const msgpack_object *event = &events->ptr[i], *type = reader_member(event, "type");
    assert_ptr_equal(type, &event->via.map.ptr[0].val);
    if (reader_is(type, "AllBlocksCleared")) {
      r->n = 0;
      r->n_cleared += 1;
    } else if (is_live && r->n_cleared == 0) {
      continue;
    } else if (reader_is(type, "BlockStored")) {
      reader_store(r, event);
    } else {
      assert_true(reader_is(type, "BlockRemoved"));
      reader_remove(r, event);
    }
  }
  msgpack_unpacked_destroy(&all);
}

/* Frames of one message, up to four; NULL where there are fewer. Returns how many. */
static inline int reader_frames(void *socket, zmq_msg_t frame[4], int ms) {
  zmq_pollitem_t item = {.socket = socket, .events = ZMQ_POLLIN};
  int n = 0;
  if (zmq_poll(&item, 1, ms) <= 0) return 0;
  do {
    assert_true(n < 4);
    (void)zmq_msg_init(&frame[n]);
    assert_true(zmq_msg_recv(&frame[n], socket, 0) >= 0);
  } while (zmq_msg_more(&frame[n++]));
  return n;
}

static inline uint64_t reader_number(zmq_msg_t *frame) {
  uint64_t number = 0;
  assert_int_equal(zmq_msg_size(frame), 8);
  for (int i = 0; i < 8; i++) number = number << 8 | ((uint8_t *)zmq_msg_data(frame))[i];
  return number;
}

/* Takes the batches that come until none comes for so long. Returns how many. */
static inline uint32_t reader_follow(kv_reader *r, int ms) {
  zmq_msg_t frame[4];
  uint32_t n_batches = 0;
  for (int n; (n = reader_frames(r->subscriber, frame, ms)) > 0; n_batches++) {
    assert_int_equal(n, 3);
    uint64_t number = reader_number(&frame[1]), next = r->number == UINT64_MAX - 1 ? 0 : r->number + 1;
    bool had = r->has_number && r->number - number < UINT32_MAX; /* by a replay */
    if (r->has_number && !had) assert_int_equal(number, next);
    if (!had) {
      r->number = number;
      r->has_number = true;
      reader_apply(r, zmq_msg_data(&frame[2]), zmq_msg_size(&frame[2]), true);
    }
    for (int i = 0; i < n; i++) (void)zmq_msg_close(&frame[i]);
  }
  return n_batches;
}

static inline void reader_ask(kv_reader *r, uint64_t from) {
  uint8_t bytes[8];
  for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(from >> 8 * (7 - i));
  assert_int_equal(zmq_send(r->asker, "", 0, ZMQ_SNDMORE), 0);
  assert_int_equal(zmq_send(r->asker, bytes, sizeof bytes, 0), 8);
}

/* Applies a replay. Returns how many batches it had. */
static inline uint32_t reader_replay(kv_reader *r, uint64_t from) {
  zmq_msg_t frame[4];
  reader_ask(r, from);
  for (uint32_t n_batches = 0;; n_batches++) {
    if (reader_frames(r->asker, frame, READER_MS) != 4) fail_msg("a replay did not end");
    bool end = reader_number(&frame[2]) == UINT64_MAX;
    assert_int_equal(end, zmq_msg_size(&frame[3]) == 0);
    if (!end) {
      r->number = reader_number(&frame[2]);
      r->has_number = true;
      reader_apply(r, zmq_msg_data(&frame[3]), zmq_msg_size(&frame[3]), false);
    }
    for (int i = 0; i < 4; i++) (void)zmq_msg_close(&frame[i]);
    if (end) return n_batches;
  }
}

/* Whether both indexes have the same. */
static inline void reader_compare(kv_reader *a, kv_reader *b) {
  assert_int_equal(a->n, b->n);
  for (uint32_t i = 0; i < a->n; i++) {
    const reader_unit *u = reader_find(b, a->unit[i].name);
    assert_non_null(u);
    assert_string_equal(u->medium, a->unit[i].medium);
    assert_memory_equal(u->token, a->unit[i].token, sizeof u->token);
  }
}

/* The longest beginning of a prompt that the index has: by tokens, from the first units on, as a router walks it. */
static inline uint32_t reader_overlap(const kv_reader *r, const int32_t *tokens, uint32_t n) {
  uint32_t done = 0;
  uint64_t at = 0;
  for (bool found = true; found;) {
    found = false;
    for (uint32_t i = 0; i < r->n && !found; i++) {
      const reader_unit *u = &r->unit[i];
      if (!u->has_tokens || u->has_before != (done > 0) || (done > 0 && u->before != at) || done + u->n_tokens > n ||
          memcmp(u->token, tokens + done, u->n_tokens * sizeof *tokens) != 0)
        continue;
      done += u->n_tokens;
      at = u->name;
      found = true;
    }
  }
  return done;
}

#endif
