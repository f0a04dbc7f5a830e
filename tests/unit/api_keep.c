/* SPDX-License-Identifier: MIT */
/* Prefixes that outlive their server: answers after a restart are those of before, and only what lies behind the kept
 * prefix is computed; whose prefixes are kept, and who finds them; files that are torn, flipped, foreign, another
 * model's, another key's; a process that is killed in the middle of it. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/runtime.h"
#include "api/weft.h"
#include "base/log.h"
#include "base/random.h"
#include "scheduler/draft_history.h"
#include "tests/support/amount.h"

enum { N_TOKENS = 200, ANSWER = 6, N_PROMPTS = 6 };

static char path[256], key_path[256], other_key[256];
static const char *const demo = WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf";
static const char *const demo_ar = WEFT_SOURCE_DIR "/model/demo/weft-demo-ar.gguf";
static const char *const red[] = {"red"}, *const both[] = {"red", "blue"};
static const weft_tenant_options tenants[] = {{.name = "red"}, {.name = "blue"}},
                                 turned[] = {{.name = "blue"}, {.name = "red"}}, one_gone[] = {{.name = "blue"}};

static weft_open_options options(void) {
  return (weft_open_options){.models = &demo,
                             .n_models = 1,
                             .backend = "cpu",
                             .threads = 1,
                             .kv_bytes = 4 << 20,
                             .host_bytes = 4 << 20,
                             .spill_file = path,
                             .spill_bytes = 16 << 20,
                             .keep = red,
                             .n_keep = 1,
                             .tenants = 2,
                             .tenant = tenants,
                             .context = 512,
                             .running = 8,
                             .quiet = true};
}

static weft_runtime *open_server(const weft_open_options *o) {
  weft_runtime *rt = NULL;
  char error[512] = "";
  if (weft_open(o, &rt, error, sizeof error) != 0) fail_msg("%s", error);
  return rt;
}

static void refused(const weft_open_options *o, const char *words) {
  weft_runtime *rt = NULL;
  char error[512] = "";
  assert_true(weft_open(o, &rt, error, sizeof error) != 0);
  assert_null(rt);
  if (strstr(error, words) == NULL || strchr(error, '\n') != NULL) fail_msg("'%s' lacks '%s'", error, words);
}

typedef struct answer {
  int32_t tokens[ANSWER];
  uint32_t n, n_cached;
} answer;

/* Prompt number `which` of a tenant, which repeats itself after so many tokens. */
static answer ask_of(weft_runtime *rt, uint32_t which, uint32_t tenant, const char *salt, uint32_t n_period) {
  int32_t tokens[N_TOKENS];
  weft_generate_params p;
  weft_generation *g = NULL;
  weft_delta d = {0};
  answer a = {.n = 0};
  char error[256] = "";
  for (uint32_t k = 0; k < N_TOKENS; k++) tokens[k] = (int32_t)(60 + weft_mix64(which * 1000 + k % n_period) % 300);
  weft_generate_defaults(&p);
  p.prompt.tokens = tokens;
  p.prompt.n_tokens = N_TOKENS;
  p.max_tokens = n_period < N_TOKENS ? 64 : ANSWER;
  p.ignore_eos = true;
  p.mode = WEFT_MODE_AUTOREGRESSIVE;
  p.tenant = tenant;
  p.cache_salt = salt;
  p.sampling.temperature = 0.0f;
  if (weft_submit(rt, &p, &g, error, sizeof error) != 0) fail_msg("%s", error);
  while (d.kind != WEFT_DELTA_END) {
    (void)weft_next(g, TEST_WAIT_MS, &d);
    for (uint32_t i = 0; d.kind == WEFT_DELTA_TEXT && i < d.n_tokens && a.n < ANSWER; i++)
      a.tokens[a.n++] = d.tokens[i];
  }
  a.n_cached = d.usage.cached_tokens;
  weft_generation_free(g);
  return a;
}

static answer ask(weft_runtime *rt, uint32_t which, uint32_t tenant, const char *salt) {
  return ask_of(rt, which, tenant, salt, N_TOKENS);
}

static void same(answer a, answer b) {
  assert_int_equal(a.n, ANSWER);
  assert_int_equal(b.n, ANSWER);
  assert_memory_equal(a.tokens, b.tokens, sizeof a.tokens);
}

/* A start, a prompt, an end, until the prompt was found. On a machine that is busy with something else a request may
 * compute what takes too long to come up from the file; it is kept again then. */
static answer find(const weft_open_options *o, uint32_t which, uint32_t tenant, const char *salt) {
  answer a = {.n = 0};
  for (int tries = 0; tries < 100 && a.n_cached == 0; tries++) {
    weft_runtime *rt = open_server(o);
    a = ask(rt, which, tenant, salt);
    weft_close(rt);
  }
  assert_true(a.n_cached > 0);
  return a;
}

/* Blocks that the start found. */
static uint32_t n_kept(weft_runtime *rt) {
  const char *line = strstr(weft_plan(rt), "\nkept ");
  assert_non_null(line);
  return (uint32_t)strtoul(line + 6, NULL, 10);
}

/* What the history of drafts has, by place; the kind and the model must be those of the only model here. */
static uint32_t learned_of(weft_runtime *rt, uint32_t tenant, weft_draft_learned *out, uint32_t max) {
  const weft_draft_history *history = weft_engine_draft_history(weft_replicas_at(rt->replicas, 0));
  weft_draft_learned d;
  uint32_t n = 0;
  assert_non_null(history);
  for (uint32_t i = 0; i < WEFT_DRAFT_TEXTS; i++) {
    if (!weft_draft_history_tell(history, i, &d) || !weft_key128_equal(d.domain, weft_runtime_domain(rt, tenant)))
      continue;
    assert_true(n < max);
    out[n++] = d;
  }
  return n;
}

static int by_text(const void *a, const void *b) {
  const weft_draft_learned *x = a, *y = b;
  return (x->text > y->text) - (x->text < y->text);
}

/* How often drafts of a text were right is known after a restart, of tenants that are kept, whatever their numbers. */
static void what_drafts_taught_is_kept(void **state) {
  enum { MAX = 16 };
  const char *const drafts[] = {"ngram:4"};
  weft_draft_learned before[MAX], after[MAX];
  (void)state;
  weft_open_options o = options();
  o.models = &demo_ar;
  o.drafts = drafts;
  o.n_drafts = 1;
  weft_runtime *rt = open_server(&o);
  for (uint32_t tenant = 0; tenant < 2; tenant++) (void)ask_of(rt, 7, tenant, NULL, 3);
  uint32_t n = learned_of(rt, 0, before, MAX);
  assert_true(n > 0);
  assert_int_equal(learned_of(rt, 1, after, MAX), n);
  weft_close(rt);
  o.tenant = turned;
  rt = open_server(&o);
  assert_int_equal(learned_of(rt, 0, after, MAX), 0); /* blue's are not kept */
  assert_int_equal(learned_of(rt, 1, after, MAX), n);
  qsort(before, n, sizeof *before, by_text);
  qsort(after, n, sizeof *after, by_text);
  for (uint32_t i = 0; i < n; i++) {
    assert_true(before[i].text == after[i].text && before[i].judged == after[i].judged);
    assert_true(before[i].model == after[i].model && before[i].kind == after[i].kind && before[i].judged >> 16 >= 8);
  }
  weft_close(rt);
}

static void answers_are_the_same_after_a_restart(void **state) {
  (void)state;
  weft_open_options o = options();
  answer before[N_PROMPTS];
  weft_runtime *rt = open_server(&o);
  for (uint32_t i = 0; i < N_PROMPTS; i++) before[i] = ask(rt, i, 0, NULL);
  for (uint32_t i = 0; i < N_PROMPTS; i++) assert_int_equal(before[i].n_cached, 0);
  weft_close(rt);
  rt = open_server(&o);
  assert_true(n_kept(rt) > N_PROMPTS * N_TOKENS / 32);
  for (uint32_t i = 0; i < N_PROMPTS; i++) same(ask(rt, i, 0, NULL), before[i]);
  weft_close(rt);
  answer a = find(&o, 3, 0, NULL);
  same(a, before[3]);
  assert_int_equal(a.n_cached, N_TOKENS / 32 * 32); /* what is behind the last whole block was computed, and no more */
}

/* What was kept is found by its tenant alone, whatever number it has now. */
static void prefixes_are_their_tenants(void **state) {
  (void)state;
  weft_open_options o = options();
  weft_runtime *rt = open_server(&o);
  answer a = ask(rt, 0, 0, NULL);
  (void)ask(rt, 1, 1, NULL);
  weft_close(rt);
  o.tenant = turned;
  rt = open_server(&o);
  assert_int_equal(ask(rt, 0, 0, NULL).n_cached, 0); /* blue, asking what red asked */
  assert_int_equal(ask(rt, 1, 0, NULL).n_cached, 0); /* blue's are not kept */
  weft_close(rt);
  same(a, find(&o, 0, 1, NULL));
}

static void salts_keep_them_apart(void **state) {
  (void)state;
  weft_open_options o = options();
  o.keep = both;
  o.n_keep = 2;
  weft_runtime *rt = open_server(&o);
  (void)ask(rt, 0, 0, "sugar");
  weft_close(rt);
  o.tenant = turned;
  rt = open_server(&o);
  assert_int_equal(ask(rt, 0, 0, "sugar").n_cached, 0); /* blue */
  assert_int_equal(ask(rt, 0, 1, "pepper").n_cached, 0);
  assert_int_equal(ask(rt, 0, 1, NULL).n_cached, 0);
  weft_close(rt);
  (void)find(&o, 0, 1, "sugar");
  (void)find(&o, 0, 0, "sugar");
  (void)find(&o, 0, 1, "pepper");
  (void)find(&o, 0, 1, NULL);
}

/* A tenant that is gone, or is not named any more, loses its own; so does a server that drops its cache. */
static void what_is_dropped_stays_away(void **state) {
  (void)state;
  weft_open_options o = options();
  for (int way = 0; way < 3; way++) {
    weft_runtime *rt = open_server(&o);
    (void)ask(rt, 0, 0, NULL);
    if (way == 2) weft_reset_prefix_cache(rt);
    weft_close(rt);
    weft_open_options other = o;
    if (way == 0) other.tenants = 1, other.tenant = one_gone, other.keep = &both[1];
    if (way == 1) other.keep = &both[1];
    if (way < 2) {
      rt = open_server(&other);
      assert_non_null(strstr(weft_plan(rt), "kept     0 blocks of prefixes found again, "));
      assert_null(strstr(weft_plan(rt), ", 0 dropped"));
      weft_close(rt);
    }
    rt = open_server(&o);
    assert_int_equal(ask(rt, 0, 0, NULL).n_cached, 0);
    weft_reset_prefix_cache(rt);
    weft_close(rt);
  }
}

/* ---- files ------------------------------------------------------------------------------------------------ */

static void change_file(int64_t at, const char *bytes, size_t n) {
  int fd = open(path, O_WRONLY);
  struct stat about;
  assert_true(fd >= 0 && fstat(fd, &about) == 0);
  assert_int_equal(pwrite(fd, bytes, n, at < 0 ? about.st_size + at : at), n);
  (void)close(fd);
}

static void flip_byte(int64_t at) {
  int fd = open(path, O_RDWR);
  struct stat about;
  char byte;
  assert_true(fd >= 0 && fstat(fd, &about) == 0);
  if (at < 0) at += about.st_size;
  assert_int_equal(pread(fd, &byte, 1, at), 1);
  byte ^= 1;
  assert_int_equal(pwrite(fd, &byte, 1, at), 1);
  (void)close(fd);
}

static double metric(weft_runtime *rt, const char *name) {
  char line[128], *text = weft_metrics(rt);
  int n = snprintf(line, sizeof line, "\n%s ", name);
  const char *at = strstr(text, line);
  if (at == NULL) fail_msg("there is no %s", name);
  double value = strtod(at + n, NULL);
  weft_release(text);
  return value;
}

static answer ask_once(const weft_open_options *o) {
  weft_runtime *rt = open_server(o);
  answer a = ask(rt, 0, 0, NULL);
  weft_close(rt);
  return a;
}

static void foreign_files_are_refused(void **state) {
  (void)state;
  weft_open_options o = options(), other = o;
  weft_runtime *rt = open_server(&o);
  refused(&o, "another process keeps its prefixes there");
  answer a = ask(rt, 0, 0, NULL);
  weft_close(rt);
  other.models = &demo_ar;
  refused(&other, "its prefixes are of a model that is not served now");
  other = o;
  other.kv_8bit = &(const char *){"all"};
  other.n_kv_8bit = 1;
  refused(&other, "name another file");
  other = o;
  other.isa = "portable";
  refused(&other, "its prefixes were computed with 'instructions ");
  (void)chmod(path, 0640);
  refused(&o, "nobody else can read: chmod 600");
  (void)chmod(path, 0600);
  same(a, find(&o, 0, 0, NULL)); /* none of these refusals touched it */
  struct stat about;
  assert_true(stat(path, &about) == 0 && (about.st_mode & 0777) == 0600);

  assert_int_equal(truncate(path, 0), 0);
  change_file(0, "a letter to my aunt", 19);
  refused(&o, "no file of kept prefixes");
  char letter[20] = "";
  int fd = open(path, O_RDONLY);
  assert_int_equal(read(fd, letter, 19), 19);
  (void)close(fd);
  assert_string_equal(letter, "a letter to my aunt");
}

/* Where it is asked for, what was computed otherwise begins anew; what is another model's does not. */
static void what_was_computed_otherwise_begins_anew(void **state) {
  (void)state;
  weft_open_options o = options(), other = o;
  weft_runtime *rt = open_server(&o);
  answer a = ask(rt, 0, 0, NULL);
  weft_close(rt);
  other.else_anew = true;
  other.models = &demo_ar;
  refused(&other, "its prefixes are of a model that is not served now");
  other.isa = "portable"; /* nor what is computed otherwise besides */
  refused(&other, "its prefixes are of a model that is not served now");
  same(a, find(&o, 0, 0, NULL));
  other.models = &demo;
  rt = open_server(&other);
  assert_int_equal(n_kept(rt), 0);
  refused(&o, "another process keeps its prefixes there");
  a = ask(rt, 0, 0, NULL);
  assert_int_equal(a.n_cached, 0);
  weft_close(rt);
  same(a, find(&other, 0, 0, NULL));
  refused(&o, "its prefixes were computed with 'instructions portable'");
}

static void options_that_cannot_be_are_refused(void **state) {
  (void)state;
  weft_open_options o = options();
  o.spill_file = NULL;
  o.spill_bytes = 0;
  refused(&o, "--spill-file");
  o = options();
  o.keep = &(const char *){"green"};
  refused(&o, "--keep green: no tenant is named so");
  o = options();
  o.n_keep = 0;
  o.keep_key = key_path;
  refused(&o, "give --keep, too");
}

/* Pages and indexes that are torn, flipped or cut: answers stay, prefixes go. */
static void damage_costs_prefixes_and_no_answer(void **state) {
  (void)state;
  enum { HEADS = 8192, PAGE = 32768 };
  weft_open_options o = options();
  answer a = ask_once(&o);
  (void)find(&o, 0, 0, NULL);
  for (uint32_t slot = 0; slot < 512; slot++) flip_byte(HEADS + slot * PAGE + 999);
  weft_runtime *rt = open_server(&o);
  answer b = ask(rt, 0, 0, NULL);
  same(a, b);
  assert_int_equal(b.n_cached, 0);
  while (metric(rt, "weft_file_damaged_total") == 0) (void)usleep(1000);
  weft_close(rt);
  (void)find(&o, 0, 0, NULL);         /* computed again, kept again */
  flip_byte(HEADS + 512 * PAGE + 40); /* in the index, or beside it where the other one counts: both */
  flip_byte(-40);
  rt = open_server(&o);
  b = ask(rt, 0, 0, NULL);
  same(a, b);
  weft_close(rt);
  flip_byte(20);
  flip_byte(4096 + 20); /* both heads */
  b = ask_once(&o);
  same(a, b);
  assert_int_equal(b.n_cached, 0);
  (void)find(&o, 0, 0, NULL);
  assert_int_equal(truncate(path, HEADS + 100 * PAGE), 0);
  b = ask_once(&o);
  same(a, b);
  assert_int_equal(b.n_cached, 0);
}

static void write_key(const char *name, uint64_t seed, size_t n) {
  int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  char key[64];
  for (size_t i = 0; i < sizeof key; i++) key[i] = (char)weft_mix64(seed * 99 + i);
  assert_int_equal(write(fd, key, n), n);
  (void)close(fd);
}

static bool file_has(const char *words, size_t n) {
  FILE *file = fopen(path, "rb");
  static char bytes[1 << 20];
  bool found = false;
  for (size_t got; (got = fread(bytes, 1, sizeof bytes, file)) > 0;) found |= memmem(bytes, got, words, n) != NULL;
  (void)fclose(file);
  return found;
}

static void what_is_encrypted_says_nothing(void **state) {
  (void)state;
  weft_open_options o = options();
  (void)ask_once(&o);
  assert_true(file_has("red", 3));
  o.keep_key = key_path;
  refused(&o, "No such file");
  write_key(key_path, 1, 63);
  refused(&o, "a key is 64 bytes");
  write_key(key_path, 1, 64);
  refused(&o, "it is not encrypted: leave out --keep-key");
  (void)chmod(key_path, 0644);
  refused(&o, "others may read it");
  (void)chmod(key_path, 0600);
  (void)unlink(path);
  answer a = ask_once(&o);
  assert_int_equal(a.n_cached, 0);
  same(a, find(&o, 0, 0, NULL));
  assert_false(file_has("model ", 6));
  write_key(other_key, 2, 64);
  o.keep_key = other_key;
  refused(&o, "encrypted with another key");
  o.keep_key = NULL;
  refused(&o, "give --keep-key");
}

static void the_file_may_grow_and_shrink(void **state) {
  (void)state;
  weft_open_options o = options();
  answer a = ask_once(&o);
  o.spill_bytes = 40 << 20;
  same(a, find(&o, 0, 0, NULL));
  o.spill_bytes = 1 << 20;
  same(a, ask_once(&o));
  o.spill_bytes = 16 << 20;
  same(a, ask_once(&o));
}

/* ---- killed ------------------------------------------------------------------------------------------------ */

/* A child that asks, saves, and goes on asking in a pool so small that pages go down all the time. It is killed after
 * `n` words of it. */
static void run_and_kill(const weft_open_options *o, uint32_t n) {
  int line[2];
  char byte;
  assert_int_equal(pipe(line), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    weft_runtime *rt = NULL;
    if (weft_open(o, &rt, NULL, 0) != 0) _exit(1);
    for (uint32_t i = 0;; i++) {
      (void)ask(rt, i % 40, 0, NULL);
      if (i % 7 == 6 && weft_prefixes_save(rt, NULL, NULL, NULL, 0) != 0) _exit(2);
      if (write(line[1], "x", 1) != 1) _exit(3);
    }
  }
  (void)close(line[1]);
  for (uint32_t i = 0; i < n; i++) assert_int_equal(read(line[0], &byte, 1), 1);
  (void)kill(child, SIGKILL);
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status));
  (void)close(line[0]);
}

static void a_kill_costs_prefixes_and_no_answer(void **state) {
  (void)state;
  static const uint32_t words[] = {8, 45, 60};
  weft_open_options o = options(), plain = o;
  answer right[8];
  plain.spill_file = NULL;
  plain.spill_bytes = 0;
  plain.n_keep = 0;
  plain.no_prefix_cache = true;
  plain.host_bytes = 0;
  weft_runtime *rt = open_server(&plain);
  for (uint32_t i = 0; i < 8; i++) right[i] = ask(rt, i, 0, NULL);
  weft_close(rt);
  o.kv_bytes = 2 << 20;
  o.host_bytes = 2 << 20;
  o.spill_bytes = 8 << 20;
  for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
    run_and_kill(&o, words[k]);
    rt = open_server(&o);
    assert_true(n_kept(rt) > 0);
    for (uint32_t i = 0; i < 8; i++) same(ask(rt, i, 0, NULL), right[i]);
    weft_close(rt);
  }
}

/* ---- by name ------------------------------------------------------------------------------------------------ */

static void saved(weft_runtime *rt, const char *name) {
  weft_kept_counts counts;
  char error[256] = "";
  if (weft_prefixes_save(rt, name, &counts, error, sizeof error) != 0) fail_msg("%s", error);
  assert_true(counts.blocks > 0 && counts.bytes >= counts.blocks * 32768);
}

static void told(int status, const char *error, const char *words) {
  assert_true(status != 0);
  if (strstr(error, words) == NULL || strchr(error, '\n') != NULL) fail_msg("'%s' lacks '%s'", error, words);
}

/* A saved copy is taken into a server that dropped its own, and into one that has other prefixes. */
static void what_is_saved_by_name_is_loaded(void **state) {
  (void)state;
  weft_open_options o = options();
  weft_kept_counts counts;
  char error[256] = "", copy[300];
  weft_runtime *rt = open_server(&o);
  answer a = ask(rt, 0, 0, NULL);
  saved(rt, NULL);
  saved(rt, "monday");
  saved(rt, "monday");
  weft_reset_prefix_cache(rt);
  assert_int_equal(ask(rt, 0, 0, NULL).n_cached, 0);
  weft_reset_prefix_cache(rt);
  weft_close(rt);
  answer b = {.n = 0};
  for (int tries = 0; tries < 100 && b.n_cached == 0; tries++) {
    (void)unlink(path);
    rt = open_server(&o);
    (void)ask(rt, 1, 0, NULL);
    if (weft_prefixes_load(rt, "monday", &counts, error, sizeof error) != 0) fail_msg("%s", error);
    assert_true(counts.blocks > 0);
    b = ask(rt, 0, 0, NULL);
    weft_close(rt);
  }
  same(a, b);
  assert_true(b.n_cached > 0);
  rt = open_server(&o);
  told(weft_prefixes_load(rt, "tuesday", &counts, error, sizeof error), error, "No such file");
  told(weft_prefixes_load(rt, "../x", &counts, error, sizeof error), error, "begins with a letter");
  told(weft_prefixes_save(rt, "1", &counts, error, sizeof error), error, "begins with a letter");
  (void)snprintf(copy, sizeof copy, "%s.monday", path);
  assert_int_equal(truncate(copy, 9000), 0);
  assert_int_equal(weft_prefixes_load(rt, "monday", &counts, error, sizeof error) != 0 || counts.blocks == 0, 1);
  same(a, ask(rt, 0, 0, NULL));
  weft_close(rt);
  (void)unlink(copy);
  o.n_keep = 0;
  (void)unlink(path);
  rt = open_server(&o);
  told(weft_prefixes_save(rt, NULL, NULL, error, sizeof error), error, "start the server with --keep");
  weft_close(rt);
}

static int begin(void **state) {
  (void)state;
  (void)snprintf(path, sizeof path, "%s/kept-%d", WEFT_BINARY_DIR, (int)getpid());
  (void)snprintf(key_path, sizeof key_path, "%s/kept-%d.key", WEFT_BINARY_DIR, (int)getpid());
  (void)snprintf(other_key, sizeof other_key, "%s/kept-%d.other", WEFT_BINARY_DIR, (int)getpid());
  (void)unlink(path);
  return 0;
}

static int end(void **state) {
  (void)state;
  (void)unlink(path);
  (void)unlink(key_path);
  (void)unlink(other_key);
  return 0;
}

int main(void) {
  weft_log_set_level(WEFT_LOG_ERROR);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(answers_are_the_same_after_a_restart, begin, end),
      cmocka_unit_test_setup_teardown(what_drafts_taught_is_kept, begin, end),
      cmocka_unit_test_setup_teardown(prefixes_are_their_tenants, begin, end),
      cmocka_unit_test_setup_teardown(salts_keep_them_apart, begin, end),
      cmocka_unit_test_setup_teardown(what_is_dropped_stays_away, begin, end),
      cmocka_unit_test_setup_teardown(foreign_files_are_refused, begin, end),
      cmocka_unit_test_setup_teardown(what_was_computed_otherwise_begins_anew, begin, end),
      cmocka_unit_test_setup_teardown(options_that_cannot_be_are_refused, begin, end),
      cmocka_unit_test_setup_teardown(damage_costs_prefixes_and_no_answer, begin, end),
      cmocka_unit_test_setup_teardown(what_is_encrypted_says_nothing, begin, end),
      cmocka_unit_test_setup_teardown(the_file_may_grow_and_shrink, begin, end),
      cmocka_unit_test_setup_teardown(what_is_saved_by_name_is_loaded, begin, end),
      cmocka_unit_test_setup_teardown(a_kill_costs_prefixes_and_no_answer, begin, end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
