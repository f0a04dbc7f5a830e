/* SPDX-License-Identifier: MIT */
/* What stands between an owner of weights and its workers: the manifest and every lie that is refused by name, the
 * words of the socket, the lock that ends with its process, memory that nobody can change. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/weights_lock.h"
#include "api/weights_talk.h"
#include "base/memory.h"
#include "kernels/share.h"
#include "kernels/shared_memory.h"
#include "tests/support/refuse_each.h"

/* ---- the manifest ---- */

static const weft_shelf_weight two[] = {
    {"blk.0.attn_q.weight", WEFT_USE_MATMUL, 0, WEFT_TYPE_Q8_0, 1, 64, 32, 1, 0, 0, 4096},
    {"token_embd.weight", WEFT_USE_MATMUL | WEFT_USE_EMBED, 0, WEFT_TYPE_F32, 1, 64, 100, 1, 1, 256, 1024},
};

static void add_model(weights_manifest *m, const char *file, uint64_t low, const weft_shelf_weight *list, uint32_t n) {
  weights_model *model = &m->model[m->n_models++];
  model->file = weft_strdup(file);
  model->fingerprint_low = low;
  model->fingerprint_high = ~low;
  assert_non_null(model->file);
  for (uint32_t i = 0; i < n; i++) assert_int_equal(weights_model_add(model, &list[i]), WEFT_OK);
}

static weights_manifest honest_manifest(void) {
  weights_manifest m = {.pid = 7,
                        .version = "1",
                        .backend = "cpu",
                        .card = {"host", "host"},
                        .n_devices = 1,
                        .n_shards = 1,
                        .transport = "memfd",
                        .scope = "both",
                        .products = 8,
                        .n_numerics = 1,
                        .numerics = {{WEFT_TYPE_Q8_0, "q8x32-i32"}},
                        .n_pieces = 2,
                        .first_piece = {0, 2}};
  m.socket = weft_strdup("/run/\"w\"");
  m.piece = weft_alloc(2, sizeof *m.piece);
  assert_true(m.socket != NULL && m.piece != NULL);
  m.piece[0] = m.piece[1] = 4096;
  add_model(&m, "/a.gguf", 5, two, 2);
  return m;
}

static weft_text written(const weights_manifest *m) {
  weft_text text = {0};
  weights_manifest_write(m, &text);
  assert_int_equal(weft_text_status(&text), WEFT_OK);
  return text;
}

static void comes_back_as_it_was_written(void **state) {
  (void)state;
  weights_manifest m = honest_manifest(), back;
  weft_error error = {{0}};
  m.model[0].drafts = m.integers = true;
  assert_int_equal(weights_manifest_check(&m, &error), WEFT_OK);
  weft_text text = written(&m);
  if (weights_manifest_read(text.bytes, text.n, &back, &error) != WEFT_OK) fail_msg("%s", error.text);
  weft_text again = written(&back);
  assert_string_equal(again.bytes, text.bytes);
  const weights_model *model = weights_manifest_find(&back, 5, ~5ull);
  assert_ptr_equal(model, &back.model[0]);
  assert_null(weights_manifest_find(&back, 5, 5));
  const weft_shelf_weight *w = weights_model_find(model, "token_embd.weight", WEFT_USE_MATMUL | WEFT_USE_EMBED, 0);
  assert_non_null(w);
  assert_memory_equal(w, &two[1], sizeof *w);
  assert_null(weights_model_find(model, "token_embd.weight", WEFT_USE_MATMUL, 0));
  assert_null(weights_model_find(model, "token_embd.weight", WEFT_USE_MATMUL | WEFT_USE_EMBED, 1));
  assert_null(weights_model_find(model, "output.weight", WEFT_USE_MATMUL, 0));
  assert_int_equal(weights_model_bytes(model), 5120);
  weft_text_free(&text);
  weft_text_free(&again);
  weights_manifest_free(&m);
  weights_manifest_free(&back);
}

/* What is put in place of words of an honest manifest, and words of the line that refuses it. */
typedef struct lie {
  const char *from, *to, *says;
} lie;

static const lie lies[] = {
    {"{\"weft_weights\":3", "{\"weft_weights\":1", "its form is number 1, and this version of weft reads number 3"},
    {"{\"weft_weights\":3,", "{", "weft_weights"},
    {"\"pid\":7", "\"pid\":0", "pid"},
    {"\"pid\":7", "\"pid\":-7", "pid"},
    {"\"pid\":7", "\"pid\":7,\"more\":1", "members beside those of its form"},
    {"\"backend\":\"cpu\"", "\"backend\":8", "backend"},
    {"[\"host\"]", "[\"a card whose name is longer than any card's name\"]", "cards"},
    {"[\"host\"]", "[]", "cards"},
    {"[\"host\"]", "[\"host\",\"host\"]", "pieces"},
    {"\"shards\":1", "\"shards\":0", "shards"},
    {"\"shards\":1", "\"shards\":2", "shards"},
    {"\"first_layers\":[0]", "\"first_layers\":[0,1]", "models"},
    {"\"first_layers\":[0]", "\"first_layers\":[1]", "the parts of a model are in no order"},
    {"\"integers\":false", "\"integers\":0", "integers"},
    {"\"products\":8", "\"products\":\"8\"", "products"},
    {"[[4096,4096]]", "[]", "pieces"},
    {"[4096,4096]", "[4096,0]", "pieces"},
    {"[4096,4096]", "[4096]", "does not lie inside its piece of memory: token_embd.weight"},
    {"[4096,4096]", "[4095,4096]", "does not lie inside its piece of memory: blk.0.attn_q.weight"},
    {"[4096,4096]", "[4096,1.5]", "pieces"},
    {"\"fingerprint\":\"", "\"fingerprint\":\"0", "models"},
    {"\"fingerprint\":\"f", "\"fingerprint\":\"F", "models"},
    {"\"models\":[{", "\"models\":[],\"x\":[{", "members beside"},
    {"\"blk.0.attn_q.weight\",1,", "\"\",1,", "a type, a shape or uses"},
    {"\"blk.0.attn_q.weight\",1,", "\"blk.0.attn_q.weight\",8,", "a type, a shape or uses"},
    {"\"blk.0.attn_q.weight\",1,0,8,", "\"blk.0.attn_q.weight\",1,0,4444,", "a type, a shape or uses"},
    {"\"blk.0.attn_q.weight\",1,0,8,1,64,32", "\"blk.0.attn_q.weight\",1,0,8,1,64,0", "blk.0.attn_q.weight"},
    {"1,0,0,4096]", "1,2,0,4096]", "does not lie inside"},
    {"\"blk.0.attn_q.weight\",1,0,8,", "\"blk.0.attn_q.weight\",1,1,8,", "does not lie inside"}, /* on another device */
    {"1,0,0,4096]", "1,0,0,4096,1]", "weights"},
    {"1,0,0,4096]", "1,1,0,4096]", "two matrices share memory: token_embd.weight"},
    {"1,0,0,4096]", "1,0,1,4000]", "does not lie inside"},
    {"1,0,0,4096]", "1,0,18446744073709551615,4096]", "no JSON"},
    {"1,0,0,4096]", "1,0,4611686018427387840,4096]", "blk.0.attn_q.weight"},
    {"\"token_embd.weight\",5", "\"blk.0.attn_q.weight\",1", "a matrix comes twice: blk.0.attn_q.weight"},
    {"\"version\"", "\"socket\"", "no JSON"},
    {"]}]}", "]}", "no JSON"},
};

static void lies_are_refused_by_name(void **state) {
  (void)state;
  weights_manifest m = honest_manifest(), back;
  weft_text text = written(&m);
  for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
    weft_text lying = {0};
    weft_error error = {{0}};
    const char *at = strstr(text.bytes, lies[i].from);
    if (at == NULL) fail_msg("'%s' does not stand in %s", lies[i].from, text.bytes);
    weft_text_append(&lying, text.bytes, (size_t)(at - text.bytes));
    weft_text_puts(&lying, lies[i].to);
    weft_text_puts(&lying, at + strlen(lies[i].from));
    weft_status status = weights_manifest_read(lying.bytes, lying.n, &back, &error);
    if (status == WEFT_OK || strstr(error.text, lies[i].says) == NULL)
      fail_msg("'%s' for '%s': %s: '%s'", lies[i].to, lies[i].from, weft_status_text(status), error.text);
    weights_manifest_free(&back);
    weft_text_free(&lying);
  }
  weft_text_free(&text);
  weights_manifest_free(&m);
}

static void no_file_comes_twice(void **state) {
  (void)state;
  static const weft_shelf_weight other = {"a", WEFT_USE_MATMUL, 0, WEFT_TYPE_F32, 1, 4, 4, 1, 1, 2048, 64};
  weights_manifest m = honest_manifest();
  weft_error error = {{0}};
  add_model(&m, "/b.gguf", 5, &other, 1);
  assert_int_equal(weights_manifest_check(&m, &error), WEFT_E_FORMAT);
  assert_non_null(strstr(error.text, "two models are the same file: /b.gguf"));
  m.model[1].fingerprint_low = 6;
  assert_int_equal(weights_manifest_check(&m, &error), WEFT_OK);
  m.model[1].weight[0].at = 1024; /* another file's matrix lies there */
  assert_int_equal(weights_manifest_check(&m, &error), WEFT_E_FORMAT);
  assert_non_null(strstr(error.text, "two matrices share memory"));
  weights_manifest_free(&m);
}

static weft_status read_again(void *self, weft_error *error) {
  const weft_text *text = self;
  weights_manifest back;
  weft_status status = weights_manifest_read(text->bytes, text->n, &back, error);
  weights_manifest_free(&back);
  return status;
}

static void memory_may_be_refused(void **state) {
  (void)state;
  weights_manifest m = honest_manifest();
  weft_text text = written(&m);
  assert_in_range(refuse_each(read_again, &text, true), 3, 100);
  weft_text_free(&text);
  weights_manifest_free(&m);
}

static void file_is_whole_and_ones_own(void **state) {
  (void)state;
  char folder[] = "/tmp/weft-weights-XXXXXX", path[64], link_path[64];
  weft_text text = {0}, back = {0};
  weft_error error = {{0}};
  struct stat about;
  assert_non_null(mkdtemp(folder));
  (void)snprintf(path, sizeof path, "%s/m.json", folder);
  (void)snprintf(link_path, sizeof link_path, "%s/link", folder);
  assert_int_equal(weights_manifest_load(path, &back, &error), WEFT_E_NOT_FOUND);
  weft_text_puts(&text, "words");
  for (int i = 0; i < 2; i++) { /* the second time in the place of the first */
    assert_int_equal(weights_manifest_save(path, &text, &error), WEFT_OK);
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    weft_text_clear(&back);
    assert_int_equal(weights_manifest_load(path, &back, &error), WEFT_OK);
    assert_string_equal(back.bytes, text.bytes);
    weft_text_puts(&text, " and more");
  }
  assert_int_equal(chmod(path, 0620), 0);
  assert_int_equal(weights_manifest_load(path, &back, &error), WEFT_E_UNSUPPORTED);
  assert_non_null(strstr(error.text, "others may write to it"));
  assert_int_equal(symlink(path, link_path), 0);
  assert_int_equal(weights_manifest_load(link_path, &back, &error), WEFT_E_IO);
  assert_int_equal(weights_manifest_load(folder, &back, &error), WEFT_E_FORMAT);
  assert_int_equal(weights_manifest_save("/nowhere/m.json", &text, &error), WEFT_E_IO);
  assert_int_equal(unlink(link_path), 0);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(rmdir(folder), 0); /* nothing else was left */
  weft_text_free(&text);
  weft_text_free(&back);
}

/* ---- the words of the socket ---- */

static void words_are_judged(void **state) {
  (void)state;
  const weights_ask good = {WEIGHTS_TALK_WORD, WEIGHTS_TALK_FORM, WEIGHTS_ASK_PIECE, 3};
  weights_ask ask = good, read;
  weights_answer answer = {.word = WEIGHTS_TALK_WORD, .form = WEIGHTS_TALK_FORM, .question = 2}, got;
  weft_error error = {{0}};
  assert_int_equal(weights_ask_read(&ask, &read), WEFT_OK);
  assert_int_equal(read.piece, 3);
  ask.question = 9;
  assert_int_equal(weights_ask_read(&ask, &read), WEFT_E_INVALID);
  ask.form = WEIGHTS_TALK_FORM + 1;
  assert_int_equal(weights_ask_read(&ask, &read), WEFT_E_UNSUPPORTED);
  ask.word = 0;
  assert_int_equal(weights_ask_read(&ask, &read), WEFT_E_FORMAT);
  assert_int_equal(weights_answer_read(&answer, 2, &got, &error), WEFT_OK);
  assert_int_equal(weights_answer_read(&answer, 1, &got, &error), WEFT_E_FORMAT);
  answer.n_text = WEIGHTS_TALK_TEXT;
  assert_int_equal(weights_answer_read(&answer, 2, &got, &error), WEFT_E_FORMAT);
  answer.form = 7;
  assert_int_equal(weights_answer_read(&answer, 2, &got, &error), WEFT_E_UNSUPPORTED);
  assert_non_null(strstr(error.text, "the owner speaks form 7"));
  answer.word = 0;
  assert_int_equal(weights_answer_read(&answer, 2, &got, &error), WEFT_E_FORMAT);
}

/* What an owner may say, sent before it is asked. */
static weft_status hear(uint32_t question, const void *bytes, size_t n, int *descriptor, char *text,
                        weft_error *error) {
  int pair[2], keep = -1;
  weights_answer answer;
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  if (descriptor != NULL) {
    keep = *descriptor;
    *descriptor = -1;
  }
  if (keep >= 0)
    assert_true(weights_answer_send(pair[1], bytes, (const char *)bytes + sizeof answer, keep));
  else
    assert_int_equal(send(pair[1], bytes, n, 0), n);
  assert_int_equal(shutdown(pair[1], SHUT_WR), 0);
  weft_status status = weights_talk_ask(pair[0], question, 0, &answer, text, descriptor, error);
  (void)close(pair[0]);
  (void)close(pair[1]);
  return status;
}

static void descriptors_come_where_they_are_asked_for(void **state) {
  (void)state;
  weights_answer answer = {.word = WEIGHTS_TALK_WORD, .form = WEIGHTS_TALK_FORM, .question = WEIGHTS_ASK_PIECE};
  weft_error error = {{0}};
  int open_before = open("/dev/null", O_RDONLY | O_CLOEXEC), fd = open_before;
  assert_int_equal(hear(WEIGHTS_ASK_PIECE, &answer, sizeof answer, &fd, NULL, &error), WEFT_OK);
  assert_true(fd >= 0 && fd != open_before);
  assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
  (void)close(fd);
  fd = -1; /* none came */
  assert_int_equal(hear(WEIGHTS_ASK_PIECE, &answer, sizeof answer, &fd, NULL, &error), WEFT_E_FORMAT);
  struct {
    weights_answer answer;
    char text[4];
  } named = {.answer = answer, .text = "2f70"};
  named.answer.n_text = sizeof named.text; /* a name came in its place */
  assert_int_equal(hear(WEIGHTS_ASK_PIECE, &named, sizeof named, &fd, NULL, &error), WEFT_OK);
  fd = open_before; /* one of both, and not both */
  assert_int_equal(hear(WEIGHTS_ASK_PIECE, &named, sizeof named, &fd, NULL, &error), WEFT_E_FORMAT);
  assert_int_equal(fd, -1);
  answer.question = WEIGHTS_ASK_DIGEST;
  fd = open_before; /* one came that nobody asked for, and is closed */
  int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
  (void)close(next);
  assert_int_equal(hear(WEIGHTS_ASK_DIGEST, &answer, sizeof answer, &fd, NULL, &error), WEFT_E_FORMAT);
  assert_int_equal(fd, -1);
  int after = open("/dev/null", O_RDONLY | O_CLOEXEC);
  assert_int_equal(after, next);
  (void)close(after);
  (void)close(open_before);
}

static void what_the_owner_says_is_told(void **state) {
  (void)state;
  static const char why[] = "no\nroom";
  struct {
    weights_answer answer;
    char text[16];
  } said = {
      {.word = WEIGHTS_TALK_WORD, .form = WEIGHTS_TALK_FORM, .question = WEIGHTS_ASK_COUNTS, .n_text = sizeof why - 1},
      "no\nroom"};
  weft_error error = {{0}};
  char text[WEIGHTS_TALK_TEXT];
  size_t n = sizeof said.answer + sizeof why - 1;
  assert_int_equal(hear(WEIGHTS_ASK_COUNTS, &said, n, NULL, text, &error), WEFT_OK);
  assert_string_equal(text, why);
  said.answer.status = WEFT_E_NOT_FOUND;
  assert_int_equal(hear(WEIGHTS_ASK_COUNTS, &said, n, NULL, text, &error), WEFT_E_UNSUPPORTED);
  assert_non_null(strstr(error.text, "the owner of the weights refuses: no"));
  assert_null(strchr(error.text, '\n'));
  assert_int_equal(hear(WEIGHTS_ASK_COUNTS, &said, n - 1, NULL, text, &error), WEFT_E_IO); /* it ended in mid answer */
  assert_int_equal(hear(WEIGHTS_ASK_COUNTS, &said, 1, NULL, text, &error), WEFT_E_IO);
}

/* ---- the lock ---- */

static void lock_ends_with_its_process(void **state) {
  (void)state;
  char folder[] = "/tmp/weft-lock-XXXXXX", path[64], words[32];
  weights_lock lock, other;
  weft_error error = {{0}};
  int ready[2], how;
  char byte;
  assert_non_null(mkdtemp(folder));
  (void)snprintf(path, sizeof path, "%s/lock", folder);
  assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
  pid_t pid = fork();
  if (pid == 0) {
    byte = weights_lock_take(path, "card 1", &lock, &error) == WEFT_OK ? 'y' : 'n';
    (void)!write(ready[1], &byte, 1);
    for (;;) (void)pause();
  }
  assert_int_equal(read(ready[0], &byte, 1), 1);
  assert_int_equal(byte, 'y');
  assert_int_equal(weights_lock_take(path, "card 1", &other, &error), WEFT_E_UNSUPPORTED);
  (void)snprintf(words, sizeof words, "process %d owns", (int)pid);
  assert_non_null(strstr(error.text, words));
  assert_non_null(strstr(error.text, "card 1"));
  assert_int_equal(kill(pid, SIGKILL), 0);
  assert_int_equal(waitpid(pid, &how, 0), pid);
  assert_int_equal(access(path, F_OK), 0); /* the file was left behind, and locks nothing */
  assert_int_equal(weights_lock_take(path, "card 1", &other, &error), WEFT_OK);
  assert_int_equal(weights_lock_take(path, "card 1", &lock, &error), WEFT_E_UNSUPPORTED);
  weights_lock_give(&other);
  assert_int_equal(rmdir(folder), 0);
  assert_int_equal(weights_lock_take(path, "card 1", &other, &error), WEFT_E_IO);
  (void)close(ready[0]);
  (void)close(ready[1]);
}

/* ---- memory that nobody can change ---- */

static void sealed_memory_stays_as_it_is(void **state) {
  (void)state;
  shared_memory memory;
  weft_error error = {{0}};
  const void *mapped = NULL;
  assert_int_equal(shared_memory_open(&memory, 1 << 20, &error), WEFT_OK);
  char *first = shared_memory_take(&memory, 100), *second = shared_memory_take(&memory, 5000);
  assert_true(first != NULL && second == first + 256);
  assert_null(shared_memory_take(&memory, 1 << 20)); /* more than was reserved */
  assert_null(shared_memory_take(&memory, UINT64_MAX));
  memset(first, 'a', 100);
  memset(second, 'b', 5000);
  assert_int_equal(shared_memory_map(memory.fd, 5256, &mapped, &error), WEFT_E_FORMAT);
  assert_non_null(strstr(error.text, "no sealed memory"));
  assert_int_equal(shared_memory_seal(&memory, &error), WEFT_OK);
  assert_int_equal(shared_memory_seal(&memory, &error), WEFT_E_INVALID);
  assert_null(shared_memory_take(&memory, 1));
  assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd, 0), MAP_FAILED);
  assert_int_equal(ftruncate(memory.fd, 0), -1);
  assert_int_equal(pwrite(memory.fd, "x", 1, 0), -1);
  assert_int_equal(shared_memory_map(memory.fd, 5257, &mapped, &error), WEFT_E_FORMAT);
  assert_int_equal(shared_memory_map(memory.fd, 5256, &mapped, &error), WEFT_OK);
  shared_memory_close(&memory);
  assert_int_equal(((const char *)mapped)[99], 'a'); /* a mapping keeps the memory */
  assert_int_equal(((const char *)mapped)[256], 'b');
  assert_int_equal(mprotect((void *)(uintptr_t)mapped, 4096, PROT_READ | PROT_WRITE), -1);
  shared_memory_unmap(mapped, 5256);
  int plain = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600); /* a file that could be cut short under a reader */
  if (plain < 0) return;
  assert_int_equal(ftruncate(plain, 4096), 0);
  assert_int_equal(shared_memory_map(plain, 4096, &mapped, &error), WEFT_E_FORMAT);
  (void)close(plain);
}

/* A name is a path in /proc of memory that is sealed and has the owner's bytes. */
static void names_are_judged(weft_device *worker, const weft_share_handle *good, uint64_t n_bytes) {
  weft_share_handle bad = *good;
  weft_error error = {{0}};
  const void *mapped = NULL;
  assert_int_equal(weft_share_map(worker, good, n_bytes + 1, &mapped, &error), WEFT_E_FORMAT);
  bad.n_bytes = WEFT_SHARE_NAME_BYTES + 1;
  assert_int_equal(weft_share_map(worker, &bad, n_bytes, &mapped, &error), WEFT_E_FORMAT);
  assert_non_null(strstr(error.text, "no name of memory"));
  bad = (weft_share_handle){.fd = -1, .n_bytes = 9, .bytes = "/dev/zero"};
  assert_int_equal(weft_share_map(worker, &bad, n_bytes, &mapped, &error), WEFT_E_FORMAT);
  bad = (weft_share_handle){.fd = -1, .n_bytes = 12, .bytes = "/proc/self/x"};
  assert_int_equal(weft_share_map(worker, &bad, n_bytes, &mapped, &error), WEFT_E_FORMAT);
  bad = (weft_share_handle){.fd = -1, .n_bytes = 14, .bytes = "/proc/self/exe"}; /* a file that could be cut */
  assert_int_equal(weft_share_map(worker, &bad, n_bytes, &mapped, &error), WEFT_E_FORMAT);
  assert_null(mapped);
}

/* A device that owns weights hands over what a device of its own would have made. */
static void owners_place_what_workers_expect(void **state) {
  (void)state;
  static const char *const backends[] = {"cpu", "ref"};
  enum { N_IN = 64, N_OUT = 33, N_BYTES = 4 * N_IN * N_OUT };
  static float values[N_IN * N_OUT], back[N_IN * N_OUT];
  for (int i = 0; i < N_IN * N_OUT; i++) values[i] = (float)i;
  for (int b = 0; b < 4; b++) {
    bool by_names = b % 2 == 1;
    weft_device_config config = {
        .backend = backends[b / 2], .n_threads = 1, .shares = by_names ? WEFT_SHARE_NAMES : WEFT_SHARE_AUTO};
    weft_device *owner = NULL, *worker = NULL;
    weft_error error = {{0}};
    weft_weight placed = {.type = WEFT_TYPE_F32, .n_in = N_IN, .n_out = N_OUT, .n_mats = 1}, expected = placed, own;
    uint32_t piece = 9;
    uint64_t at = 9;
    weft_share_handle handle;
    const void *mapped = NULL;
    assert_int_equal(weft_device_open(&config, &owner, &error), WEFT_OK);
    config.shares = WEFT_SHARE_NOT;
    assert_int_equal(weft_device_open(&config, &worker, &error), WEFT_OK);
    own = placed;
    assert_int_equal(weft_device_weight(owner, &placed, values, WEFT_USE_MATMUL, &error), WEFT_OK);
    assert_int_equal(weft_device_weight(worker, &own, values, WEFT_USE_MATMUL, &error), WEFT_OK);
    assert_int_equal(weft_share_expect(worker, &expected, WEFT_USE_MATMUL, &error), WEFT_OK);
    assert_true(expected.type == own.type && expected.layout == own.layout && expected.n_bytes == own.n_bytes);
    assert_true(placed.type == own.type && placed.layout == own.layout && placed.n_bytes == own.n_bytes);
    assert_true(weft_share_find(owner, placed.data, &piece, &at));
    assert_false(weft_share_find(owner, values, &piece, &at));
    assert_false(weft_share_find(worker, own.data, &piece, &at));
    assert_int_equal(weft_share_export(owner, piece, &handle, &error), WEFT_E_INVALID); /* not before all are placed */
    assert_int_equal(weft_share_seal(owner, &error), WEFT_OK);
    assert_int_equal(weft_share_seal(worker, &error), WEFT_E_INVALID);
    assert_int_equal(weft_share_export(owner, 1, &handle, &error), WEFT_E_NOT_FOUND);
    assert_int_equal(weft_share_export(owner, piece, &handle, &error), WEFT_OK);
    uint64_t n_bytes = weft_share_piece_bytes(owner, piece);
    assert_int_equal(weft_share_map(worker, &handle, n_bytes, &mapped, &error), WEFT_OK);
    assert_string_equal(weft_share_transport(owner), by_names ? "ipc" : "memfd");
    assert_null(weft_share_transport(worker));
    assert_int_equal(weft_share_outlives(weft_share_transport(owner)), !by_names);
    assert_true(weft_share_takes(worker, "memfd") && weft_share_takes(worker, "ipc"));
    assert_false(weft_share_takes(worker, "vmm"));
    assert_true(by_names ? handle.fd < 0 && handle.n_bytes > 0 : handle.fd >= 0 && handle.n_bytes == 0);
    if (by_names) names_are_judged(worker, &handle, n_bytes);
    if (!by_names) (void)close(handle.fd);
    weft_device_weight_free(owner, &placed);
    weft_device_close(owner);
    expected.data = (const uint8_t *)mapped + at;
    assert_memory_equal(expected.data, own.data, own.n_bytes);
    assert_int_equal(weft_device_weight_unpack(worker, &expected, back), WEFT_OK);
    assert_memory_equal(back, values, N_BYTES);
    weft_share_unmap(worker, mapped, n_bytes);
    weft_device_weight_free(worker, &own);
    weft_device_close(worker);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(comes_back_as_it_was_written),
      cmocka_unit_test(lies_are_refused_by_name),
      cmocka_unit_test(no_file_comes_twice),
      cmocka_unit_test(memory_may_be_refused),
      cmocka_unit_test(file_is_whole_and_ones_own),
      cmocka_unit_test(words_are_judged),
      cmocka_unit_test(descriptors_come_where_they_are_asked_for),
      cmocka_unit_test(what_the_owner_says_is_told),
      cmocka_unit_test(lock_ends_with_its_process),
      cmocka_unit_test(sealed_memory_stays_as_it_is),
      cmocka_unit_test(owners_place_what_workers_expect),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
