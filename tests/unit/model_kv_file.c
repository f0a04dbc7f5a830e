/* SPDX-License-Identifier: MIT */
/* The file behind host memory: pages come back as they went, on a disk that works, that is slow, that gives and takes
 * little at a time, that refuses, that loses or changes bytes; and files that cannot be made. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "model/kv_file.h"

enum { PAGE = 3000, HOST = 8, SLOTS = 32, MOVES = 16 };

static char host[HOST * PAGE];
static weft_kv_file *file;
static char path[256];

/* ---- a disk ---------------------------------------------------------------------------------------------- */

typedef struct disk {
  char bytes[SLOTS * PAGE];
  uint64_t most; /* bytes of a call; 0: all */
  int write_error, read_error;
  uint64_t end;    /* reads find nothing from here on; 0: all of it */
  uint64_t damage; /* this byte is read as something else; UINT64_MAX: none */
  bool interrupts; /* every other call */
  _Atomic uint32_t n_calls;
  _Atomic bool stands, takes_nothing; /* calls wait while it does; those that write */
  _Atomic uint32_t n_waiting;
} disk;

static disk *d;

static bool interrupted(bool writes) {
  d->n_waiting += 1;
  while (d->stands || (writes && d->takes_nothing)) (void)usleep(500);
  d->n_waiting -= 1;
  if (!d->interrupts || d->n_calls++ % 2 == 1) return false;
  errno = EINTR;
  return true;
}

static uint64_t part(uint64_t n) {
  return d->most > 0 && d->most < n ? d->most : n;
}

static int64_t disk_write(void *self, int fd, const void *from, uint64_t n, uint64_t at) {
  assert_ptr_equal(self, d);
  assert_true(fd >= 0 && at + n <= sizeof d->bytes);
  if (interrupted(true)) return -1;
  errno = d->write_error;
  if (d->write_error != 0) return d->write_error == -1 ? 0 : -1;
  memcpy(d->bytes + at, from, part(n));
  return (int64_t)part(n);
}

static int64_t disk_read(void *self, int fd, void *to, uint64_t n, uint64_t at) {
  assert_ptr_equal(self, d);
  assert_true(fd >= 0 && at + n <= sizeof d->bytes);
  if (interrupted(false)) return -1;
  errno = d->read_error;
  if (d->read_error != 0) return -1;
  if (d->end > 0 && at >= d->end) return 0;
  memcpy(to, d->bytes + at, part(n));
  if (d->damage >= at && d->damage < at + part(n)) ((char *)to)[d->damage - at] ^= 1;
  return (int64_t)part(n);
}

/* ---- short words ----------------------------------------------------------------------------------------- */

static void open_file(bool with_disk) {
  d = calloc(1, sizeof *d);
  d->damage = UINT64_MAX;
  weft_kv_file_io io = {.self = d, .write = disk_write, .read = disk_read};
  (void)snprintf(path, sizeof path, "%s/kv-file-%d", WEFT_BINARY_DIR, (int)getpid());
  const weft_kv_file_config config = {.path = path,
                                      .page_bytes = PAGE,
                                      .n_slots = SLOTS,
                                      .moves_max = MOVES,
                                      .host = host,
                                      .n_host = HOST,
                                      .io = with_disk ? &io : NULL};
  weft_error error;
  if (weft_kv_file_open(&config, &file, &error) != WEFT_OK) fail_msg("%s", error.text);
  assert_int_equal(access(path, F_OK), -1); /* nobody finds it */
}

static int close_file(void **state) {
  (void)state;
  if (d != NULL) d->stands = d->takes_nothing = false;
  weft_kv_file_close(file);
  file = NULL;
  free(d);
  d = NULL;
  return 0;
}

static void fill(uint32_t slot, uint64_t what) {
  for (uint32_t i = 0; i < PAGE; i++) host[slot * PAGE + i] = (char)weft_mix64(what * 7919 + i);
}

static bool holds(uint32_t slot, uint64_t what) {
  for (uint32_t i = 0; i < PAGE; i++)
    if (host[slot * PAGE + i] != (char)weft_mix64(what * 7919 + i)) return false;
  return true;
}

static void add(uint32_t from, uint32_t to, bool up) {
  const weft_page_copy move = {from, to, up ? WEFT_FILE_TO_HOST : WEFT_HOST_TO_FILE};
  weft_kv_file_add(file, &move);
}

static void start(void) {
  weft_kv_file_start(file, weft_kv_file_n_added(file), false);
}

/* Waits for n ends; true: all went well. */
static bool wait_for(uint32_t n, weft_copy_end *out) {
  bool ok = true;
  for (uint32_t i = 0; i < n;) {
    uint32_t got = weft_kv_file_ended(file, out + i, n - i);
    for (uint32_t k = i; k < i + got; k++) ok = ok && out[k].ok;
    i += got;
    if (got == 0) (void)usleep(200);
  }
  return ok;
}

static bool move_one(uint32_t from, uint32_t to, bool up) {
  weft_copy_end end;
  add(from, to, up);
  start();
  bool ok = wait_for(1, &end);
  assert_int_equal(end.copy.from, from);
  assert_int_equal(end.copy.to, to);
  assert_int_equal(end.copy.kind, up ? WEFT_FILE_TO_HOST : WEFT_HOST_TO_FILE);
  return ok;
}

/* ---- tests ----------------------------------------------------------------------------------------------- */

/* Thousands of moves, several under way, on the system's disk and on one that gives and takes little at a time. */
static void pages_come_back_as_they_went(void **state) {
  (void)state;
  for (int way = 0; way < 3; way++) {
    uint64_t what[SLOTS] = {0}, random = 1;
    weft_copy_end end[MOVES];
    open_file(way > 0);
    d->most = way == 1 ? 700 : 0;
    d->interrupts = way == 2;
    for (uint32_t round = 1; round < 600; round++) {
      uint32_t n = 1 + (uint32_t)(weft_mix64(++random) % HOST), first = (uint32_t)(weft_mix64(++random) % SLOTS);
      for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = (first + i) % SLOTS;
        bool up = what[slot] != 0 && weft_mix64(++random) % 2 == 0;
        if (!up) fill(i, round * 100 + i);
        if (up) memset(host + i * PAGE, 0, PAGE);
        if (up) add(slot, i, true);
        if (!up) add(i, slot, false);
        if (weft_mix64(++random) % 3 == 0) start();
      }
      start();
      assert_true(wait_for(n, end));
      for (uint32_t i = 0; i < n; i++) {
        const weft_page_copy *copy = &end[i].copy;
        if (copy->kind == WEFT_FILE_TO_HOST)
          assert_true(holds(copy->to, what[copy->from]));
        else
          what[copy->to] = round * 100 + copy->from;
      }
    }
    weft_kv_file_counters c = weft_kv_file_get_counters(file);
    assert_true(c.n_bytes_written > 0 && c.n_bytes_read > 0 && c.n_bytes_read % PAGE == 0);
    assert_true(c.n_write_failed == 0 && c.n_read_failed == 0 && c.n_damaged == 0);
    (void)close_file(NULL);
  }
}

/* The disk is asked for several pages before it has given one; their moves together took no longer than what passed. */
static void several_pages_are_read_at_once(void **state) {
  (void)state;
  weft_copy_end end[8];
  open_file(true);
  for (uint32_t i = 0; i < 8; i++) {
    fill(i, i);
    assert_true(move_one(i, i, false));
  }
  memset(host, 0, sizeof host);
  d->stands = true;
  for (uint32_t i = 0; i < 8; i++) add(i, 7 - i, true);
  uint64_t began_us = weft_clock_us(), sum_us = 0;
  start();
  while (d->n_waiting < 4) (void)usleep(200);
  d->stands = false;
  assert_true(wait_for(8, end));
  uint64_t us = weft_clock_us() - began_us;
  for (uint32_t i = 0; i < 8; i++) {
    assert_int_equal(end[i].copy.from, i); /* told in their order */
    assert_true(holds(7 - i, i));
    sum_us += end[i].us;
  }
  assert_true(sum_us <= us);
}

/* What a start reads to know the disk is read for nobody and not counted; what is damaged is told all the same. */
static void a_file_is_measured(void **state) {
  (void)state;
  open_file(true);
  const uint32_t slot[4] = {3, 9, 4, 5};
  assert_true(weft_kv_file_measure(file, slot, 4) == 0);
  uint64_t sum = weft_kv_page_sum(d->bytes, PAGE, 3);
  weft_kv_file_adopt(file, 3, sum);
  weft_kv_file_adopt(file, 4, sum); /* which is another one's */
  d->read_error = EIO;
  assert_true(weft_kv_file_measure(file, slot, 4) >= 0);
  d->read_error = 0;
  assert_true(weft_kv_file_measure(file, slot, 4) >= 0);
  weft_kv_file_counters c = weft_kv_file_get_counters(file);
  assert_true(c.n_bytes_read == 0 && c.n_read_failed == 2 && c.n_damaged == 1);
  assert_true(move_one(3, 1, true));
  assert_int_equal(weft_kv_file_get_counters(file).n_bytes_read, PAGE);
}

/* Only the one move fails, it is counted, and the next ones are as good as ever. */
static void a_disk_that_refuses(void **state) {
  (void)state;
  open_file(true);
  fill(0, 1);
  d->write_error = ENOSPC;
  assert_false(move_one(0, 3, false));
  d->write_error = -1; /* takes nothing */
  assert_false(move_one(0, 3, false));
  d->write_error = 0;
  assert_true(move_one(0, 3, false));
  d->read_error = EIO;
  assert_false(move_one(3, 1, true));
  d->read_error = 0;
  d->end = 3 * PAGE + 1000; /* somebody cut the file */
  d->most = 1000;
  assert_false(move_one(3, 1, true));
  d->end = 0;
  assert_true(move_one(3, 1, true));
  assert_true(holds(1, 1));
  weft_kv_file_counters c = weft_kv_file_get_counters(file);
  assert_int_equal(c.n_write_failed, 2);
  assert_int_equal(c.n_read_failed, 2);
  assert_int_equal(c.n_damaged, 0);
  assert_int_equal(c.n_bytes_written, PAGE);
  assert_int_equal(c.n_bytes_read, PAGE);
}

/* Every byte counts, and a page in the wrong place is a wrong page. */
static void what_comes_back_is_checked(void **state) {
  (void)state;
  open_file(true);
  fill(0, 1);
  fill(1, 2);
  assert_true(move_one(0, 5, false));
  assert_true(move_one(1, 6, false));
  for (uint64_t at = 0; at < PAGE; at += 777) {
    d->damage = 5 * PAGE + at;
    assert_false(move_one(5, 2, true));
  }
  d->damage = UINT64_MAX;
  assert_true(move_one(5, 2, true));
  memcpy(d->bytes + 5 * PAGE, d->bytes + 6 * PAGE, PAGE); /* a write that went astray */
  assert_false(move_one(5, 2, true));
  fill(3, 9);
  assert_true(move_one(3, 5, false));
  assert_true(move_one(5, 2, true));
  assert_true(holds(2, 9));
  assert_int_equal(weft_kv_file_get_counters(file).n_damaged, 5);
}

/* Nobody who adds, starts or asks waits for the disk; what comes up overtakes what goes down. */
static void a_disk_that_stands_still(void **state) {
  (void)state;
  weft_copy_end end[MOVES];
  open_file(true);
  fill(0, 1);
  assert_true(move_one(0, 7, false));
  d->takes_nothing = true;
  for (uint32_t i = 0; i < 4; i++) add(i, i, false); /* whoever waited here would wait for ever */
  start();
  while (d->n_waiting == 0) (void)usleep(200); /* the first is being written */
  add(7, 5, true);
  assert_int_equal(weft_kv_file_ended(file, end, MOVES), 0);
  add(4, 20, false);
  start();
  assert_true(wait_for(1, end));
  assert_int_equal(end[0].copy.kind, WEFT_FILE_TO_HOST);
  assert_true(holds(5, 1));
  assert_int_equal(d->n_waiting, 1); /* one is written at a time */
  d->takes_nothing = false;
  assert_true(wait_for(5, end));
  for (uint32_t i = 0; i < 5; i++) assert_int_equal(end[i].copy.from, i);
}

/* A move waits for its start; what the device lost is not written. */
static void moves_begin_when_the_device_is_done(void **state) {
  (void)state;
  weft_copy_end end[MOVES];
  open_file(true);
  fill(0, 1);
  add(0, 0, false);
  uint64_t first = weft_kv_file_n_added(file);
  add(0, 1, false);
  (void)usleep(3000);
  assert_int_equal(weft_kv_file_ended(file, end, MOVES), 0);
  weft_kv_file_start(file, first, false);
  assert_true(wait_for(1, end));
  (void)usleep(3000);
  assert_int_equal(weft_kv_file_ended(file, end, MOVES), 0);
  weft_kv_file_start(file, first + 1, true);
  assert_false(wait_for(1, end));
  assert_int_equal(weft_kv_file_get_counters(file).n_bytes_written, PAGE);
  assert_int_equal(weft_kv_file_get_counters(file).n_write_failed, 0);
}

static _Atomic uint32_t n_told;
static void count_one(void *self) {
  *(_Atomic uint32_t *)self += 1;
}

static void ends_are_told(void **state) {
  (void)state;
  open_file(false);
  weft_kv_file_watch(file, count_one, &n_told);
  assert_true(move_one(0, 0, false));
  assert_true(move_one(0, 0, true));
  assert_int_equal(n_told, 2);
  weft_kv_file_watch(file, NULL, NULL);
  assert_true(move_one(0, 0, true));
  assert_int_equal(n_told, 2);
}

/* The end does not wait for moves that have not begun. */
static void closing_leaves_moves_alone(void **state) {
  (void)state;
  open_file(true);
  d->stands = true;
  for (uint32_t i = 0; i < MOVES; i++) add(i % HOST, i, false);
  weft_kv_file_start(file, MOVES / 2, false);
  while (d->n_waiting == 0) (void)usleep(200);
  (void)close_file(NULL);
}

static void refused(const char *where, uint64_t page_bytes, uint32_t n_slots, const char *words) {
  const weft_kv_file_config config = {.path = where, .page_bytes = page_bytes, .n_slots = n_slots, .moves_max = 1};
  weft_error error = {{0}};
  assert_int_equal(weft_kv_file_open(&config, &file, &error), WEFT_E_IO);
  assert_null(file);
  if (strstr(error.text, words) == NULL || strstr(error.text, where) == NULL)
    fail_msg("'%s' lacks '%s'", error.text, words);
  assert_null(strchr(error.text, '\n'));
}

static void files_that_cannot_be_made(void **state) {
  (void)state;
  struct rlimit old, low = {.rlim_cur = 1 << 20};
  refused(WEFT_SOURCE_DIR "/README.md", PAGE, 1, "exists");
  refused(WEFT_BINARY_DIR, PAGE, 1, "exists");
  refused(WEFT_BINARY_DIR "/no/such/folder", PAGE, 1, "No such file");
  (void)snprintf(path, sizeof path, "%s/kv-file-%d", WEFT_BINARY_DIR, (int)getpid());
  refused(path, (uint64_t)1 << 38, (1 << 24) - 4, "no room");
  assert_int_equal(access(path, F_OK), -1);
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
  low.rlim_max = old.rlim_max;
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
  refused(path, 1 << 20, 2, "ulimit");
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
  assert_int_equal(access(path, F_OK), -1);
}

int main(void) {
  weft_log_set_level(WEFT_LOG_ERROR); /* disks fail on purpose here */
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(pages_come_back_as_they_went, close_file),
      cmocka_unit_test_teardown(several_pages_are_read_at_once, close_file),
      cmocka_unit_test_teardown(a_file_is_measured, close_file),
      cmocka_unit_test_teardown(a_disk_that_refuses, close_file),
      cmocka_unit_test_teardown(what_comes_back_is_checked, close_file),
      cmocka_unit_test_teardown(a_disk_that_stands_still, close_file),
      cmocka_unit_test_teardown(moves_begin_when_the_device_is_done, close_file),
      cmocka_unit_test_teardown(ends_are_told, close_file),
      cmocka_unit_test_teardown(closing_leaves_moves_alone, close_file),
      cmocka_unit_test(files_that_cannot_be_made),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
