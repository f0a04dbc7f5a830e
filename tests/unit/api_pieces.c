/* SPDX-License-Identifier: MIT */
/* Text that is formatted a piece at a time: whatever the work of each read, what was read is what one would have
 * written at once, and a read costs little more than it may. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/dialects/pieces.h"
#include "api/json.h"
#include "base/memory.h"
#include "base/random.h"

enum { LONG = 30000, IDS = 9000 };

static char text[LONG];
static int32_t ids[IDS];

/* Characters of one to four bytes, what is escaped, and bytes that are no UTF-8. */
static int fill_texts(void **state) {
  static const char *const words[] = {"a", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\"", "\n", "\x01", "\xFF"};
  (void)state;
  size_t n = 0;
  for (uint32_t i = 0; n + 4 < LONG; i++) {
    const char *word = words[weft_mix64(i) % 8];
    memcpy(text + n, word, strlen(word));
    n += strlen(word);
  }
  memset(text + n, 'z', LONG - n);
  for (int32_t i = 0; i < IDS; i++) ids[i] = i % 3 == 0 ? -i : i * 37;
  return 0;
}

static void write_pieces(weft_pieces *out) {
  weft_text_puts(&out->text, "{\"a\":");
  weft_pieces_string(out, text, LONG);
  weft_text_puts(&out->text, ",\"b\":[");
  weft_pieces_refer(out, PIECE_IDS, ids, IDS);
  weft_text_puts(&out->text, "],\"c\":");
  weft_pieces_raw(out, text, LONG);
  weft_pieces_raw(out, text, 0);
  weft_pieces_string(out, "", 0);
  weft_text_puts(&out->text, "}");
}

static void write_at_once(weft_text *out) {
  weft_text_puts(out, "{\"a\":");
  weft_json_string(out, text, LONG);
  weft_text_puts(out, ",\"b\":");
  weft_json_ids(out, ids, IDS);
  weft_text_puts(out, ",\"c\":");
  weft_text_append(out, text, LONG);
  weft_text_puts(out, "\"\"}");
}

static void check_read(weft_pieces *pieces, const weft_text *wanted, int64_t each) {
  enum { MOST = 6 * PIECE_BYTES }; /* of one step: each byte escaped as six */
  weft_text got = {0};
  for (bool done = false; !done;) {
    int64_t work = each;
    size_t before = got.n;
    done = weft_pieces_read(pieces, &got, &work);
    assert_int_equal((int64_t)(got.n - before), each - work); /* it takes off what it gives */
    assert_true(got.n - before <= (size_t)each + MOST);
  }
  assert_int_equal(got.n, wanted->n);
  assert_memory_equal(got.bytes, wanted->bytes, wanted->n);
  weft_text_free(&got);
}

static void the_same_however_little_is_read_at_a_time(void **state) {
  weft_text wanted = {0};
  (void)state;
  write_at_once(&wanted);
  for (int copies = 0; copies < 2; copies++) {
    for (int64_t each = 1; each < 1 << 20; each *= 7) {
      weft_pieces pieces = {.copies = copies == 1};
      write_pieces(&pieces);
      check_read(&pieces, &wanted, each);
      write_pieces(&pieces); /* it is empty again */
      check_read(&pieces, &wanted, each);
      weft_pieces_free(&pieces);
    }
  }
  weft_text_free(&wanted);
}

static void one_is_put_into_another(void **state) {
  weft_text wanted = {0};
  weft_pieces part = {0}, all = {0};
  (void)state;
  write_pieces(&part);
  weft_text_puts(&all.text, "<");
  weft_pieces_add(&all, &part);
  weft_pieces_add(&all, &part);
  weft_text_puts(&all.text, ">");
  weft_text_puts(&wanted, "<");
  write_at_once(&wanted);
  write_at_once(&wanted);
  weft_text_puts(&wanted, ">");
  assert_true(weft_pieces_bytes(&all) <= wanted.n);
  check_read(&all, &wanted, 1000);
  weft_pieces_free(&part);
  weft_pieces_free(&all);
  weft_text_free(&wanted);
}

/* Wherever memory is refused, the reader's text says that something is missing. */
static void lost_memory_is_told(void **state) {
  (void)state;
  for (uint64_t at = 1;; at++) {
    weft_pieces pieces = {0}, all = {0};
    weft_text got = {0};
    int64_t work = INT64_MAX;
    (void)weft_memory_fail_at(at);
    write_pieces(&pieces);
    weft_pieces_add(&all, &pieces);
    (void)weft_pieces_read(&all, &got, &work);
    bool refused = weft_memory_fail_at(0) >= at;
    assert_int_equal(got.refused, refused);
    weft_pieces_free(&pieces);
    weft_pieces_free(&all);
    weft_text_free(&got);
    if (!refused) break;
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_however_little_is_read_at_a_time),
                                     cmocka_unit_test(one_is_put_into_another), cmocka_unit_test(lost_memory_is_told)};
  return cmocka_run_group_tests(tests, fill_texts, NULL);
}
