/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/server/keys.h"
#include "tests/support/refuse_each.h"

static uint32_t ticket; /* of the key that was found last */

static weft_keys *parse(const char *text) {
  weft_keys *keys;
  weft_error error = {{0}};
  if (weft_keys_parse(text, strlen(text), "file", &keys, &error) != WEFT_OK) fail_msg("%s", error.text);
  return keys;
}

static bool finds(const weft_keys *keys, const char *key, uint32_t tenant) {
  uint32_t found = 999;
  return weft_keys_find(keys, key, strlen(key), &found, &ticket) && found == tenant;
}

static void keys_name_tenants(void **state) {
  (void)state;
  weft_keys *keys = parse("# comment\n\nk1 red\nk2\tblue\r\n  k3   red  \nk4 green\nk5 operator");
  assert_int_equal(weft_keys_n_tenants(keys), 4);
  assert_false(weft_keys_is_operator(keys, 0));
  assert_true(weft_keys_is_operator(keys, 3));
  assert_false(weft_keys_is_operator(keys, 4));
  assert_string_equal(weft_keys_tenant(keys, 0), "red");
  assert_string_equal(weft_keys_tenant(keys, 1), "blue");
  assert_string_equal(weft_keys_tenant(keys, 2), "green");
  assert_string_equal(weft_keys_tenant(keys, 4), "");
  assert_true(finds(keys, "k1", 0));
  assert_true(finds(keys, "k2", 1));
  assert_true(finds(keys, "k3", 0));
  assert_true(finds(keys, "k4", 2));
  uint32_t tenant;
  static const char *const others[] = {"", "k", "k11", "K1", "k1 ", "# comment", "red"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    assert_false(weft_keys_find(keys, others[i], strlen(others[i]), &tenant, &ticket));
  }
  assert_false(weft_keys_find(keys, "k1\0", 3, &tenant, &ticket)); /* the padding is no part of a key */
  weft_keys_close(keys);
  weft_keys_close(NULL);
}

static void lines_say_what_a_tenant_may_do(void **state) {
  (void)state;
  weft_keys *keys = parse(
      "k1 red\nk2 blue weight=3 class=high\nk3 red running=8 queued=32 tokens-per-minute=60000 blocks=99\n"
      "- anybody class=low\n");
  const weft_tenant_options *o = weft_keys_options(keys);
  uint32_t tenant = 99;
  assert_string_equal(o[0].name, "red");
  assert_int_equal(o[0].weight, 0); /* the default */
  assert_int_equal(o[0].running, 8);
  assert_int_equal(o[0].queued, 32);
  assert_int_equal(o[0].tokens_per_minute, 60000);
  assert_int_equal(o[0].blocks, 99);
  assert_int_equal(o[0].priority_class, 0);
  assert_int_equal(o[1].weight, 3);
  assert_int_equal(o[1].priority_class, 1);
  assert_int_equal(o[1].running, 0);
  assert_int_equal(o[2].priority_class, -1);
  assert_true(weft_keys_find_none(keys, &tenant));
  assert_int_equal(tenant, 2);
  assert_false(weft_keys_find(keys, "-", 1, &tenant, &ticket)); /* sent, it is a key nobody has */
  weft_keys_close(keys);
  keys = parse("k1 red");
  assert_false(weft_keys_find_none(keys, &tenant));
  weft_keys_close(keys);
}

static void long_keys_compare_whole(void **state) {
  char text[400], key[200];
  uint32_t tenant;
  (void)state;
  memset(key, 'x', sizeof key);
  (void)snprintf(text, sizeof text, "%.128s t", key);
  weft_keys *keys = parse(text);
  assert_true(weft_keys_find(keys, key, 128, &tenant, &ticket));
  assert_false(weft_keys_find(keys, key, 127, &tenant, &ticket));
  assert_false(weft_keys_find(keys, key, 129, &tenant, &ticket)); /* the first 128 bytes are equal */
  key[127] = 'y';
  assert_false(weft_keys_find(keys, key, 128, &tenant, &ticket));
  weft_keys_close(keys);
}

static void many_keys(void **state) {
  (void)state;
  char *text = malloc(1 << 20);
  size_t n = 0;
  for (int i = 0; i < WEFT_KEYS_MAX; i++)
    n += (size_t)snprintf(text + n, 64, "key-%d tenant-%d\n", i, i % WEFT_TENANTS_MAX);
  weft_keys *keys = parse(text);
  assert_int_equal(weft_keys_n_tenants(keys), WEFT_TENANTS_MAX);
  for (int i = 0; i < WEFT_KEYS_MAX; i += 97) {
    char key[32];
    (void)snprintf(key, sizeof key, "key-%d", i);
    assert_true(finds(keys, key, (uint32_t)(i % WEFT_TENANTS_MAX)));
  }
  weft_keys_close(keys);
  n += (size_t)snprintf(text + n, 64, "one-more t\n");
  weft_error error;
  assert_int_equal(weft_keys_parse(text, n, "file", &keys, &error), WEFT_E_TOO_LARGE);
  free(text);
}

/* Files as editors of other systems write them. */
static void marks_and_line_ends(void **state) {
  static const char *const texts[] = {"\xEF\xBB\xBFk1 red\nk2 blue\n", "\xEF\xBB\xBFk1 red\r\nk2 blue\r\n",
                                      "k1 red\r\nk2 blue", "\xEF\xBB\xBF# k\r\n\r\nk1\tred\r\nk2 blue weight=2\r\n"};
  static const char wide[] = "\xFF\xFEk\0001\0 \0r\0";
  weft_keys *keys = NULL;
  weft_error error = {{0}};
  (void)state;
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    uint32_t tenant = 9;
    keys = parse(texts[i]);
    assert_true(weft_keys_find(keys, "k1", 2, &tenant, &ticket));
    assert_string_equal(weft_keys_tenant(keys, tenant), "red");
    assert_true(weft_keys_find(keys, "k2", 2, &tenant, &ticket));
    assert_string_equal(weft_keys_tenant(keys, tenant), "blue");
    weft_keys_close(keys);
  }
  assert_int_equal(weft_keys_parse(wide, sizeof wide - 1, "file", &keys, &error), WEFT_E_FORMAT);
  assert_non_null(strstr(error.text, "file is written in UTF-16: save it as UTF-8"));
}

static void bad_files_name_the_line(void **state) {
  static const struct {
    const char *text, *words;
  } rows[] = {
      {"", "holds no key"},
      {"# only\n", "holds no key"},
      {"k1 red\nk2\n", "file:2: a line is `KEY TENANT`"},
      {"k1 red blue\n", "file:1: 'blue' is none of weight"},
      {"k1 red weight\n", "file:1: 'weight' is none of weight"},
      {"k1 red\nk2 red weight=0\n", "file:2: weight is a number from 1 to 1000"},
      {"k1 red weight=1001\n", "file:1: weight is"},
      {"k1 red running=-1\n", "file:1: running is"},
      {"k1 red running=4x\n", "file:1: running is"},
      {"k1 red queued=99999999999999999999\n", "file:1: queued is"},
      {"k1 red class=High\n", "file:1: class is low, normal or high"},
      {"k1 red weight=2\nk2 blue\nk3 red class=low\n", "file:3: what tenant red may do is in line 1"},
      {"- red\n- blue\n", "file:2: this key is there twice"},
      {"- operator\n", "file:1: who sends no key cannot be the operator"},
      {"k1 red\nk1 blue\n", "file:2: this key is there twice"},
      {"k1 r\"ed\n", "file:1: a tenant's name"},
      {"k1 r\xC3\xA9\n", "file:1: a tenant's name"},
      {"k1 red weight=1 weight=2\n", "file:1: weight is there twice"},
      {"k1 red class=low weight=1 running=3 class=low\n", "file:1: class is there twice"},
      {"k1 red\nk\xFF red\n", "file:2: byte 2 of the line is not UTF-8"},
      {"# \xC3\nk1 red\n", "file:1: byte 3 of the line is not UTF-8"},
      {"k1 red\nk\x01 red\n", "file:2: byte 2 of the line is a control character (01)"},
      {"k1\x7F red\n", "file:1: byte 3 of the line is a control character (7f)"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_keys *keys;
    weft_error error = {{0}};
    assert_true(weft_keys_parse(rows[i].text, strlen(rows[i].text), "file", &keys, &error) < 0);
    assert_null(keys);
    if (strstr(error.text, rows[i].words) == NULL) fail_msg("'%s' does not say '%s'", error.text, rows[i].words);
  }
  weft_keys *keys;
  weft_error error = {{0}};
  static const char zero[] = "k1 red\nk\0x red\n";
  assert_int_equal(weft_keys_parse(zero, sizeof zero - 1, "file", &keys, &error), WEFT_E_FORMAT);
  assert_non_null(strstr(error.text, "file:2: byte 2 of the line is a control character (00)"));
  assert_int_equal(weft_keys_open(&(weft_keys_source){.path = "/nowhere"}, &keys, &error), WEFT_E_IO);
  assert_non_null(strstr(error.text, "/nowhere"));
}

static weft_status parse_three(void *self, weft_error *error) {
  static const char text[] = "a t1\nb t2\nc t3\n";
  weft_keys *keys;
  (void)self;
  weft_status status = weft_keys_parse(text, strlen(text), "file", &keys, error);
  weft_keys_close(keys);
  return status;
}

static void refused_memory_is_an_error(void **state) {
  (void)state;
  (void)refuse_each(parse_three, NULL, false);
}

static uint32_t ticket_of(const weft_keys *keys, const char *key, uint32_t tenant) {
  assert_true(finds(keys, key, tenant));
  return ticket;
}

static void write_keys(const char *path, const char *text) {
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
  assert_int_equal(fclose(file), 0);
}

/* What began with a key learns that it was taken away: also where another key came in its place, or the same one leads
 * to another tenant now; a key that stays is held whatever else changes. */
static void tickets_stand_for_keys(void **state) {
  char path[] = "/tmp/weft-keys-XXXXXX";
  const weft_keys_source source = {.path = path};
  weft_error error = {{0}};
  weft_keys *keys = NULL;
  weft_keys_news news;
  (void)state;
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  (void)close(fd);
  write_keys(path, "k1 red\nk2 blue\nk3 red\n- blue\n");
  assert_int_equal(weft_keys_open(&source, &keys, &error), WEFT_OK);
  uint32_t k1 = ticket_of(keys, "k1", 0), k2 = ticket_of(keys, "k2", 1), k3 = ticket_of(keys, "k3", 0);
  assert_true(k1 != k2 && k2 != k3 && k1 != k3 && k1 != 0 && k2 != 0 && k3 != 0);
  assert_true(weft_keys_hold(keys, k1, 0) && weft_keys_hold(keys, 0, 1) && !weft_keys_hold(keys, 0, 0));
  assert_int_equal(weft_keys_n_reloads(keys), 0);
  write_keys(path, "k4 blue\nk3 red\nk2 red\n- red\n");
  assert_int_equal(weft_keys_reload(keys, &source, NULL, &news, &error), WEFT_OK);
  assert_int_equal(weft_keys_n_reloads(keys), 1);
  assert_true(weft_keys_hold(keys, k3, 0));
  assert_int_equal(ticket_of(keys, "k3", 0), k3);
  assert_false(weft_keys_hold(keys, k1, 0)); /* gone */
  assert_false(weft_keys_hold(keys, k2, 1)); /* another tenant's */
  assert_false(weft_keys_hold(keys, 0, 1));  /* who sends none is another one now */
  assert_true(weft_keys_hold(keys, 0, 0));
  write_keys(path, "k1 red\nk3 red\n");
  assert_int_equal(weft_keys_reload(keys, &source, NULL, &news, &error), WEFT_OK);
  assert_false(weft_keys_hold(keys, k1, 0)); /* it came back: what it began before has ended */
  assert_true(weft_keys_hold(keys, k3, 0));
  write_keys(path, "k1 green\n"); /* refused: nothing changes */
  assert_int_equal(weft_keys_reload(keys, &source, NULL, &news, &error), WEFT_FULL);
  assert_true(weft_keys_hold(keys, k3, 0));
  assert_int_equal(weft_keys_n_reloads(keys), 2);
  weft_keys_close(keys);
  (void)unlink(path);
}

/* ---- tenants that come, change and go ---- */

typedef struct heard {
  uint32_t n, tenant[8];
  weft_tenant_options options[8];
  char name[8][16];
} heard;

static void hear_change(void *self, uint32_t tenant, const weft_tenant_options *options) {
  heard *h = self;
  assert_true(h->n < 8);
  h->tenant[h->n] = tenant;
  h->options[h->n] = *options;
  (void)snprintf(h->name[h->n++], sizeof h->name[0], "%s", options->name);
}

typedef struct reload_world {
  char path[32];
  weft_keys_source source;
  weft_keys *keys;
  heard heard;
  weft_keys_news news;
  weft_error error;
} reload_world;

static void open_reload(reload_world *w, const char *text, uint32_t n_spare) {
  *w = (reload_world){.path = "/tmp/weft-keys-XXXXXX"};
  int fd = mkstemp(w->path);
  assert_true(fd >= 0);
  (void)close(fd);
  w->source.path = w->path;
  write_keys(w->path, text);
  assert_int_equal(weft_keys_open(&w->source, &w->keys, &w->error), WEFT_OK);
  weft_keys_keep_places(w->keys, n_spare);
}

static void close_reload(reload_world *w) {
  weft_keys_close(w->keys);
  (void)unlink(w->path);
}

static weft_status reload(reload_world *w, const char *text) {
  const weft_keys_listener listener = {.change = hear_change, .self = &w->heard};
  w->heard.n = 0;
  w->error = (weft_error){{0}};
  write_keys(w->path, text);
  return weft_keys_reload(w->keys, &w->source, &listener, &w->news, &w->error);
}

static void tenants_come_change_and_go(void **state) {
  reload_world w;
  uint32_t tenant;
  (void)state;
  open_reload(&w, "k1 red weight=2\nk2 blue\n", 2);
  assert_int_equal(weft_keys_n_places(w.keys), 4);
  assert_int_equal(weft_keys_n_tenants(w.keys), 2);
  assert_string_equal(weft_keys_options(w.keys)[3].name, "");
  assert_int_equal(reload(&w, "k1 red weight=3\nk3 green running=4\n"), WEFT_OK);
  assert_int_equal(w.heard.n, 2);
  assert_int_equal(w.heard.tenant[0], 0);
  assert_int_equal(w.heard.options[0].weight, 3);
  assert_int_equal(w.heard.tenant[1], 2);
  assert_int_equal(w.heard.options[1].running, 4);
  assert_string_equal(w.heard.name[1], "green");
  assert_true(w.news.n_new == 1 && w.news.n_changed == 1 && w.news.n_gone == 1);
  assert_true(finds(w.keys, "k1", 0) && finds(w.keys, "k3", 2) && !finds(w.keys, "k2", 1));
  assert_int_equal(weft_keys_get_options(w.keys, 0).weight, 3);
  assert_int_equal(weft_keys_get_options(w.keys, 3).weight, 0);
  assert_string_equal(weft_keys_tenant(w.keys, 1), "blue"); /* its requests may still run */
  assert_false(weft_keys_find_tenant(w.keys, "blue", &tenant));
  assert_true(weft_keys_find_tenant(w.keys, "green", &tenant) && tenant == 2);
  /* who comes back is who it was, and no other tenant ever gets its number */
  assert_int_equal(reload(&w, "k1 red weight=3\nk4 white\nk2 blue\n"), WEFT_OK);
  assert_true(finds(w.keys, "k4", 3) && finds(w.keys, "k2", 1) && !finds(w.keys, "k3", 2));
  assert_int_equal(w.heard.n, 1);
  assert_true(w.news.n_new == 1 && w.news.n_changed == 0 && w.news.n_gone == 1);
  assert_false(weft_keys_one_asks(w.keys));
  assert_int_equal(reload(&w, "k1 red weight=3\n"), WEFT_OK);
  assert_true(weft_keys_one_asks(w.keys));
  close_reload(&w);
}

static void a_bad_file_changes_nothing(void **state) {
  static const struct {
    const char *text, *words;
  } rows[] = {{"k9 red weight=5\nk2 blue\nk3 \n", ":3: a line is `KEY TENANT`"},
              {"k9 red weight=5\nk2 blue weight=0\n", ":2: weight is a number from 1 to 1000"},
              {"k9 red weight=5\nk9 blue\n", ":2: this key is there twice"},
              {"", "holds no key"},
              {"k9 red weight=5\n# all\nk3 green\nk4 white\n",
               ":4: there is no place for the new tenant white: the server has places for 3 tenants, 1 of them of "
               "tenants that this file no longer names; restart it, with a larger --spare-tenants"}};
  reload_world w;
  (void)state;
  open_reload(&w, "k1 red\nk2 blue\n", 1);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    assert_true(reload(&w, rows[i].text) != WEFT_OK);
    if (strstr(w.error.text, rows[i].words) == NULL) fail_msg("'%s' does not say '%s'", w.error.text, rows[i].words);
    assert_int_equal(w.heard.n, 0);
    assert_true(finds(w.keys, "k1", 0) && finds(w.keys, "k2", 1) && !finds(w.keys, "k9", 0));
    assert_int_equal(weft_keys_get_options(w.keys, 0).weight, 0);
    assert_int_equal(weft_keys_n_tenants(w.keys), 2);
    assert_int_equal(weft_keys_n_reloads(w.keys), 0);
  }
  close_reload(&w);
}

/* Without a number, a file of several tenants has some places more and one of a single tenant has none. */
static void places_are_kept_where_there_are_several(void **state) {
  weft_keys *keys;
  weft_error error = {{0}};
  (void)state;
  assert_int_equal(weft_keys_parse("a red\n", 6, "file", &keys, &error), WEFT_OK);
  weft_keys_keep_places(keys, 0);
  assert_int_equal(weft_keys_n_places(keys), 1);
  weft_keys_keep_places(keys, 1000);
  assert_int_equal(weft_keys_n_places(keys), WEFT_TENANTS_MAX);
  weft_keys_close(keys);
  assert_int_equal(weft_keys_parse("a red\nb blue\n", 13, "file", &keys, &error), WEFT_OK);
  weft_keys_keep_places(keys, 0);
  assert_int_equal(weft_keys_n_places(keys), 2 + WEFT_TENANTS_SPARE);
  weft_keys_close(keys);
}

static weft_status reload_three(void *self, weft_error *error) {
  reload_world *w = self;
  const weft_keys_listener listener = {.change = hear_change, .self = &w->heard};
  w->heard.n = 0;
  weft_status status = weft_keys_reload(w->keys, &w->source, &listener, &w->news, error);
  if (status == WEFT_OK) return status;
  assert_int_equal(w->heard.n, 0);
  assert_int_equal(weft_keys_n_tenants(w->keys), 1);
  assert_true(finds(w->keys, "k1", 0));
  return status;
}

static void refused_memory_changes_nothing(void **state) {
  reload_world w;
  (void)state;
  open_reload(&w, "k1 red\n", 4);
  write_keys(w.path, "k5 red weight=2\nk6 blue\nk7 green\n");
  (void)refuse_each(reload_three, &w, false);
  assert_true(finds(w.keys, "k7", 2));
  close_reload(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(tenants_come_change_and_go),
                                     cmocka_unit_test(a_bad_file_changes_nothing),
                                     cmocka_unit_test(places_are_kept_where_there_are_several),
                                     cmocka_unit_test(refused_memory_changes_nothing),
                                     cmocka_unit_test(keys_name_tenants),
                                     cmocka_unit_test(lines_say_what_a_tenant_may_do),
                                     cmocka_unit_test(long_keys_compare_whole),
                                     cmocka_unit_test(many_keys),
                                     cmocka_unit_test(marks_and_line_ends),
                                     cmocka_unit_test(bad_files_name_the_line),
                                     cmocka_unit_test(refused_memory_is_an_error),
                                     cmocka_unit_test(tickets_stand_for_keys)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
