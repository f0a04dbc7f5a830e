/* SPDX-License-Identifier: MIT */
/* The store of responses: found by their own tenant alone, bounded in bytes and in number, and who keeps most gives
 * way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/dialects/responses_store.h"

static weft_responses *open_store(uint32_t n_tenants, uint64_t n_bytes) {
  weft_responses *store;
  assert_int_equal(weft_responses_open(n_tenants, n_bytes, &store), WEFT_OK);
  return store;
}

static void put(weft_responses *store, uint32_t tenant, const char *id, size_t n_bytes) {
  weft_text body = {0}, items = {0};
  for (size_t i = 0; i < n_bytes; i++) weft_text_puts(&body, "b");
  weft_text_puts(&items, id);
  weft_responses_put(store, tenant, id, &body, &items);
  weft_text_free(&body);
  weft_text_free(&items);
}

static bool has(weft_responses *store, uint32_t tenant, const char *id) {
  return weft_responses_get(store, tenant, id, NULL, NULL);
}

static void found_by_its_tenant_alone(void **state) {
  weft_text body = {0}, items = {0};
  (void)state;
  weft_responses *store = open_store(2, 0);
  put(store, 1, "resp_a", 5);
  assert_false(has(store, 0, "resp_a"));
  assert_false(weft_responses_delete(store, 0, "resp_a"));
  assert_false(has(store, 1, "resp_"));
  assert_true(weft_responses_get(store, 1, "resp_a", &body, &items));
  assert_string_equal(body.bytes, "bbbbb");
  assert_string_equal(items.bytes, "resp_a");
  assert_true(weft_responses_delete(store, 1, "resp_a"));
  assert_false(weft_responses_delete(store, 1, "resp_a"));
  assert_int_equal(weft_responses_bytes(store), 0);
  weft_text_free(&body);
  weft_text_free(&items);
  weft_responses_close(store);
}

/* The newest of an id is found; deleting it leaves none. */
static void an_id_given_twice(void **state) {
  weft_text body = {0};
  (void)state;
  weft_responses *store = open_store(1, 0);
  put(store, 0, "x", 3);
  put(store, 0, "y", 4);
  put(store, 0, "x", 5);
  assert_true(weft_responses_get(store, 0, "x", &body, NULL));
  assert_int_equal(body.n, 5);
  assert_true(weft_responses_delete(store, 0, "x"));
  assert_false(has(store, 0, "x"));
  assert_true(has(store, 0, "y"));
  weft_text_free(&body);
  weft_responses_close(store);
}

/* All of an id go at once, wherever they stand among others. */
static void an_id_given_often(void **state) {
  (void)state;
  weft_responses *store = open_store(2, 0);
  for (int i = 0; i < 1000; i++) {
    put(store, 0, i % 3 == 0 ? "other" : "x", 3);
    put(store, 1, "x", 3);
  }
  uint64_t all = weft_responses_bytes(store);
  assert_true(weft_responses_delete(store, 0, "x"));
  assert_false(weft_responses_delete(store, 0, "x"));
  assert_true(has(store, 0, "other"));
  assert_true(has(store, 1, "x"));
  assert_true(weft_responses_bytes(store) < all);
  assert_true(weft_responses_delete(store, 0, "other"));
  assert_true(weft_responses_delete(store, 1, "x"));
  assert_int_equal(weft_responses_bytes(store), 0);
  weft_responses_close(store);
}

static void who_keeps_most_gives_way(void **state) {
  char id[16];
  (void)state;
  weft_responses *store = open_store(3, 100000);
  put(store, 2, "small", 500);
  for (int i = 0; i < 50; i++) { /* a flood of one tenant drives out its own alone */
    (void)snprintf(id, sizeof id, "flood%d", i);
    put(store, 0, id, 2500);
    assert_true(weft_responses_bytes(store) <= 100000);
    assert_true(has(store, 2, "small"));
  }
  assert_true(has(store, 0, "flood49"));
  assert_false(has(store, 0, "flood0"));
  put(store, 1, "new", 3000); /* makes room at the cost of the flood */
  assert_true(has(store, 1, "new"));
  assert_true(has(store, 2, "small"));
  assert_true(has(store, 0, "flood49"));
  put(store, 1, "large", 3200); /* more than a 32nd of the room: nobody loses anything for it */
  assert_false(has(store, 1, "large"));
  assert_true(has(store, 1, "new"));
  weft_responses_close(store);
}

/* What the response that is to come would make of its tenant counts, too. */
static void who_would_keep_most_gives_way(void **state) {
  char id[16];
  (void)state;
  weft_responses *store = open_store(2, 100000);
  for (int i = 0; i < 32; i++) { /* alternately, until there is no room */
    (void)snprintf(id, sizeof id, "r%d", i / 2);
    put(store, i % 2, id, 3000);
  }
  put(store, 1, "one_more", 3000);
  assert_true(has(store, 0, "r0"));
  assert_false(has(store, 1, "r0"));
  assert_true(has(store, 1, "one_more"));
  weft_responses_close(store);
}

/* Ten more small ones of the first tenant than there may be. */
static void put_many(weft_responses *store) {
  for (int i = 0; i < WEFT_RESPONSES + 10; i++) {
    char id[16];
    (void)snprintf(id, sizeof id, "r%d", i);
    put(store, 0, id, 1);
  }
}

/* Many small ones do not drive out another tenant's large one, although it has more bytes than they have together. */
static void many_drive_out_their_own(void **state) {
  (void)state;
  weft_responses *store = open_store(2, 0);
  put(store, 1, "large", 1 << 20);
  put_many(store);
  assert_true(has(store, 1, "large"));
  assert_false(has(store, 0, "r10"));
  assert_true(has(store, 0, "r11"));
  weft_responses_close(store);
}

static void bounded_in_number(void **state) {
  (void)state;
  weft_responses *store = open_store(1, 0);
  put_many(store);
  assert_false(has(store, 0, "r9"));
  assert_true(has(store, 0, "r10"));
  weft_responses_close(store);
}

/* The id of the next one after *number, with a minus where it was deleted; "": there is none. */
static const char *next_id(weft_responses *store, uint32_t tenant, uint64_t *number) {
  static char id[32];
  weft_response_copy copy;
  bool any = weft_responses_next(store, tenant, number, &copy);
  (void)snprintf(id, sizeof id, "%s%s", any && copy.deleted ? "-" : "", any ? copy.id.bytes : "");
  assert_true(!any || copy.deleted == (copy.body.n == 0));
  weft_text_free(&copy.id);
  weft_text_free(&copy.body);
  weft_text_free(&copy.items);
  return id;
}

/* In the order in which they came, each tenant's for itself; what is deleted is told from the first question on. */
static void told_to_another_server(void **state) {
  (void)state;
  uint64_t at = 0, other = 0;
  weft_responses *store = open_store(2, 0);
  put(store, 0, "a", 3);
  put(store, 1, "b", 4);
  put(store, 0, "c", 5);
  put(store, 0, "d", 5);
  assert_true(weft_responses_delete(store, 0, "c")); /* before anybody asked */
  assert_string_equal(next_id(store, 0, &at), "a");
  assert_string_equal(next_id(store, 0, &at), "d");
  assert_string_equal(next_id(store, 0, &at), "");
  assert_string_equal(next_id(store, 1, &other), "b");
  assert_true(weft_responses_delete(store, 0, "a"));
  put(store, 0, "e", 5);
  assert_true(weft_responses_delete(store, 0, "d"));
  assert_string_equal(next_id(store, 0, &at), "-a");
  assert_string_equal(next_id(store, 0, &at), "e");
  assert_string_equal(next_id(store, 0, &at), "-d");
  assert_int_equal(at, weft_responses_number(store));
  assert_string_equal(next_id(store, 0, &at), "");
  assert_string_equal(next_id(store, 1, &other), "");
  at = 0;
  weft_responses_forget(store);
  assert_string_equal(next_id(store, 0, &at), "e");
  assert_string_equal(next_id(store, 0, &at), "");
  weft_responses_close(store);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(found_by_its_tenant_alone),
                                     cmocka_unit_test(an_id_given_twice),
                                     cmocka_unit_test(an_id_given_often),
                                     cmocka_unit_test(who_keeps_most_gives_way),
                                     cmocka_unit_test(who_would_keep_most_gives_way),
                                     cmocka_unit_test(many_drive_out_their_own),
                                     cmocka_unit_test(bounded_in_number),
                                     cmocka_unit_test(told_to_another_server)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
