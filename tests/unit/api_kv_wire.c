/* SPDX-License-Identifier: MIT */
/* Cache events as bytes: those that vLLM 0.33 sends for the same blocks, in both forms; names of blocks; numbers of
 * batches where they begin again; and a stream whose subscriber takes nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifndef WEFT_KV_EVENTS
int main(void) {
  puts("left out: built without libzmq and libmsgpack");
  return 77;
}
#else
#include <zmq.h>

#include "api/events/kv_stream.h"

static const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8};
static const kv_domain plain;

static void name_blocks(kv_name out[2]) {
  const kv_names names = {.n_told = 0};
  kv_names_next(&names, &plain, true, NULL, tokens, 4, &out[0]);
  kv_names_next(&names, &plain, false, &out[0], tokens + 4, 4, &out[1]);
}

static double time_of(uint64_t bits) {
  double time;
  memcpy(&time, &bits, sizeof time);
  return time;
}

static void check_bytes(kv_batch *batch, uint64_t time, const char *expected) {
  weft_text out = {0}, hex = {0};
  assert_int_equal(kv_batch_close(batch, time_of(time), 0, &out), WEFT_OK);
  for (size_t i = 0; i < out.n; i++) weft_text_printf(&hex, "%02x", (unsigned char)out.bytes[i]);
  assert_string_equal(hex.bytes, expected);
  weft_text_free(&out);
  weft_text_free(&hex);
}

static kv_chain chain_of(const kv_name name[2]) {
  return (kv_chain){.medium = WEFT_TIER_POOL,
                    .name = name,
                    .n = 2,
                    .tokens = tokens,
                    .unit_tokens = 4,
                    .domain = &plain,
                    .first = true};
}

static void test_bytes_of_vllm(void **state) {
  kv_name name[2];
  kv_batch batch = {.n = 0};
  (void)state;
  name_blocks(name);
  const kv_chain chain = chain_of(name);
  kv_batch_store(&batch, &chain);
  check_bytes(&batch, UINT64_C(0x41d954fc40000000),
              "93cb41d954fc40000000918ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cf84b146b151d55111"
              "cfd43b57df56b58fb1b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473980102030405060708aa626c6f63"
              "6b5f73697a6504a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797392c0c0"
              "a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e00");
  kv_batch_remove(&batch, WEFT_TIER_POOL, &name[1], 1);
  check_bytes(&batch, UINT64_C(0x41d954fc40400000),
              "93cb41d954fc404000009184a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cfd43b57df56b58f"
              "b1a66d656469756da3475055a967726f75705f6964780000");
  kv_batch_clear_all(&batch);
  check_bytes(&batch, UINT64_C(0x41d954fc40800000),
              "93cb41d954fc408000009181a474797065b0416c6c426c6f636b73436c656172656400");
  kv_batch_free(&batch);
}

/* The same values in the same order, the type first. */
static void test_arrays_and_bytes(void **state) {
  kv_name name[2];
  kv_batch batch = {.form = {.arrays = true, .bytes = true}};
  weft_text out = {0};
  (void)state;
  name_blocks(name);
  kv_chain chain = chain_of(name);
  chain.medium = WEFT_TIER_HOST;
  chain.before = &name[1];
  kv_batch_store(&batch, &chain);
  assert_int_equal(kv_batch_close(&batch, 0, 3, &out), WEFT_OK);
  static const char head[] =
      "\x93\xcb\0\0\0\0\0\0\0\0\x91\x9b\xab"
      "BlockStored\x92\xc4\x20";
  static const char tail[] =
      "\x98\1\2\3\4\5\6\7\x8\4\xc0\xa3"
      "CPU\xc0\x92\xc0\xc0\0\xae"
      "full_attention\3";
  assert_memory_equal(out.bytes, head, sizeof head - 1);
  assert_memory_equal(out.bytes + sizeof head - 1, name[0].bytes, KV_NAME_BYTES);
  assert_memory_equal(out.bytes + out.n - (sizeof tail - 1), tail, sizeof tail - 1);
  weft_text_free(&out);
  kv_batch_clear_all(&batch);
  assert_int_equal(kv_batch_close(&batch, 0, 0, &out), WEFT_OK);
  assert_memory_equal(out.bytes + 10,
                      "\x91\x91\xb0"
                      "AllBlocksCleared\0",
                      20);
  weft_text_free(&out);
  kv_batch_free(&batch);
}

/* A private block tells a salt and no tokens; its name is another one for another domain, another secret and in
 * vLLM. */
static void test_private_names(void **state) {
  kv_names names = {.secret = {1}}, others = {.secret = {2}};
  const kv_told_domain told = {{7, 7}, "red"};
  const weft_key128 a = {1, 1}, b = {2, 1};
  kv_name name[5], known[2];
  (void)state;
  names.told = &told;
  names.n_told = 1;
  name_blocks(known);
  const kv_domain of_a = kv_names_domain(&names, a), of_b = kv_names_domain(&names, b),
                  elsewhere = kv_names_domain(&others, a), red = kv_names_domain(&names, told.domain),
                  open = kv_names_domain(&names, WEFT_DOMAIN_PUBLIC);
  assert_true(of_a.is_private && of_b.is_private && elsewhere.is_private && !red.is_private && !open.is_private);
  assert_string_equal(red.salt, "red");
  assert_string_equal(open.salt, "");
  assert_int_equal(strlen(of_a.salt), 16);
  assert_string_not_equal(of_a.salt, of_b.salt);
  assert_string_not_equal(of_a.salt, elsewhere.salt);
  kv_names_next(&names, &of_a, true, NULL, tokens, 4, &name[0]);
  kv_names_next(&names, &of_b, true, NULL, tokens, 4, &name[1]);
  kv_names_next(&others, &elsewhere, true, NULL, tokens, 4, &name[2]);
  kv_names_next(&names, &red, true, NULL, tokens, 4, &name[3]);
  kv_names_next(&names, &open, true, NULL, tokens, 4, &name[4]);
  for (int i = 0; i < 5; i++)
    for (int k = 0; k < i; k++) assert_memory_not_equal(name[i].bytes, name[k].bytes, KV_NAME_BYTES);
  assert_memory_equal(name[4].bytes, known[0].bytes, KV_NAME_BYTES);
  /* a private block behind a public one is keyed, too */
  kv_name behind, guessed;
  kv_names_next(&names, &of_a, true, &known[0], tokens + 4, 4, &behind);
  kv_names_next(&names, &plain, false, &known[0], tokens + 4, 4, &guessed);
  assert_memory_not_equal(behind.bytes, guessed.bytes, KV_NAME_BYTES);
  kv_batch batch = {.n = 0};
  weft_text out = {0};
  kv_chain chain = chain_of(name);
  chain.tokens = NULL;
  chain.domain = &of_a;
  kv_batch_store(&batch, &chain);
  assert_int_equal(kv_batch_close(&batch, 0, 0, &out), WEFT_OK);
  assert_non_null(memmem(out.bytes, out.n,
                         "\xa9"
                         "token_ids\x90",
                         11));
  assert_non_null(memmem(out.bytes, out.n, of_a.salt, 16));
  weft_text_free(&out);
  kv_batch_free(&batch);
}

/* ---- numbers of batches ---- */

static void push(kv_replay *r, char letter) {
  weft_text batch = {0};
  weft_text_append(&batch, &letter, 1);
  kv_replay_push(r, &batch);
}

static void check_found(const kv_replay *r, uint64_t number, bool kept, uint64_t count) {
  uint64_t found;
  assert_int_equal(kv_replay_find(r, number, &found), kept);
  assert_int_equal(found, count);
}

static void test_numbers_begin_again(void **state) {
  kv_replay r;
  (void)state;
  assert_int_equal(kv_replay_open(&r, UINT64_MAX - 2), WEFT_OK);
  check_found(&r, 5, true, 0);
  check_found(&r, UINT64_MAX - 2, true, 0);
  static const uint64_t numbers[] = {UINT64_MAX - 2, UINT64_MAX - 1, 0, 1};
  for (int i = 0; i < 4; i++) {
    assert_int_equal(kv_replay_next(&r), numbers[i]);
    push(&r, (char)('a' + i));
  }
  for (uint64_t i = 0; i < 4; i++) {
    assert_int_equal(kv_replay_number(&r, i), numbers[i]);
    check_found(&r, numbers[i], true, i);
    assert_int_equal(kv_replay_at(&r, i)->bytes[0], 'a' + (int)i);
  }
  check_found(&r, 2, true, 4);               /* the next */
  check_found(&r, 3, true, 4);               /* not given yet */
  check_found(&r, UINT64_MAX, true, 4);      /* no number */
  check_found(&r, UINT64_MAX - 3, false, 0); /* of a server that ran before this one */
  check_found(&r, UINT64_MAX / 2 + 9, false, 0);
  check_found(&r, UINT64_MAX / 2 - 9, true, 4);
  kv_replay_push(&r, NULL);
  assert_null(kv_replay_at(&r, 4));
  for (int i = 0; i < KV_REPLAY_BATCHES; i++) push(&r, 'x');
  check_found(&r, 0, false, 5); /* it gave way */
  check_found(&r, 3, true, 5);
  kv_replay_close(&r);
}

static void test_bytes_are_bounded(void **state) {
  kv_replay r;
  (void)state;
  assert_int_equal(kv_replay_open(&r, 0), WEFT_OK);
  for (int i = 0; i < 20; i++) {
    weft_text large = {0};
    weft_text_reserve(&large, KV_REPLAY_BYTES / 8);
    memset(large.bytes, 'y', KV_REPLAY_BYTES / 8);
    large.n = KV_REPLAY_BYTES / 8;
    kv_replay_push(&r, &large);
    assert_true(r.n_bytes <= KV_REPLAY_BYTES);
  }
  assert_int_equal(r.next - r.first, 8);
  kv_replay_close(&r);
}

/* ---- a subscriber that takes nothing, beside one that does ---- */

static void tell_nothing(void *self, kv_stream *stream) {
  (void)self, (void)stream;
}

static uint64_t number_in(void *subscriber) {
  uint8_t topic[8], bytes[8];
  char payload[256];
  uint64_t number = 0;
  assert_true(zmq_recv(subscriber, topic, sizeof topic, 0) >= 0);
  assert_int_equal(zmq_recv(subscriber, bytes, sizeof bytes, 0), 8);
  assert_true(zmq_recv(subscriber, payload, sizeof payload, 0) > 0);
  for (int i = 0; i < 8; i++) number = number << 8 | bytes[i];
  return number;
}

static void *subscribe(void *context, const char *endpoint) {
  void *s = zmq_socket(context, ZMQ_SUB);
  int few = 1, seconds = 20000, none = 0;
  assert_int_equal(zmq_setsockopt(s, ZMQ_RCVHWM, &few, sizeof few), 0);
  assert_int_equal(zmq_setsockopt(s, ZMQ_RCVTIMEO, &seconds, sizeof seconds), 0);
  assert_int_equal(zmq_setsockopt(s, ZMQ_LINGER, &none, sizeof none), 0);
  assert_int_equal(zmq_setsockopt(s, ZMQ_SUBSCRIBE, "", 0), 0);
  assert_int_equal(zmq_connect(s, endpoint), 0);
  return s;
}

static void test_slow_subscriber(void **state) {
  void *context = zmq_ctx_new();
  kv_stream s;
  weft_error error;
  (void)state;
  const kv_stream_config config = {.context = context, .endpoint = "tcp://127.0.0.1:*", .topic = "t", .start = 10};
  assert_int_equal(kv_stream_open(&config, &s, &error), WEFT_OK);
  void *slow = subscribe(context, s.endpoint), *quick = subscribe(context, s.endpoint);
  while (atomic_load(&s.counts.n_subscribers) < 2) {
    zmq_pollitem_t item = {.socket = s.publisher, .events = ZMQ_POLLIN};
    assert_true(zmq_poll(&item, 1, 20000) == 1);
    (void)kv_stream_hear(&s, 0);
  }
  uint64_t n = 0;
  for (; atomic_load(&s.counts.n_overruns) == 0; n++) {
    assert_true(n < 1000000);
    kv_batch_clear_all(&s.batch);
    kv_stream_flush(&s);                        /* never waits */
    assert_int_equal(number_in(quick), 10 + n); /* who takes what comes loses nothing */
  }
  assert_int_equal(atomic_load(&s.counts.n_batches), n);
  for (int i = 0; i < 100; i++, n++) {
    kv_batch_clear_all(&s.batch);
    kv_stream_flush(&s);
    assert_int_equal(number_in(quick), 10 + n);
  }
  uint64_t last = number_in(slow), n_gaps = 0;
  assert_int_equal(last, 10);
  for (uint64_t i = 0; n_gaps == 0; i++) { /* it finds out by itself */
    if (i % 256 == 0) {
      kv_batch_clear_all(&s.batch);
      kv_stream_flush(&s);
      n += 1;
      (void)number_in(quick);
    }
    uint64_t number = number_in(slow);
    n_gaps += number - last - 1;
    last = number;
  }
  assert_false(kv_stream_replay(&s, 0, tell_nothing, NULL));
  (void)zmq_close(slow);
  (void)zmq_close(quick);
  kv_stream_close(&s);
  (void)zmq_ctx_term(context);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bytes_of_vllm),     cmocka_unit_test(test_arrays_and_bytes),
      cmocka_unit_test(test_private_names),     cmocka_unit_test(test_numbers_begin_again),
      cmocka_unit_test(test_bytes_are_bounded), cmocka_unit_test(test_slow_subscriber)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
