/* SPDX-License-Identifier: MIT */
/* `weft weights` and its workers as processes: one load for all of them, the same bits as a server of its own, and what
 * is left of it when a worker or the owner is killed. */
#include <dirent.h>
#include <sys/stat.h>

#include "kernels/share.h"
#include "model/gguf/gguf.h"
#include "tests/support/amount.h"
#include "tests/support/child_program.h"

#define DRAFT_MODEL WEFT_SOURCE_DIR "/model/demo/weft-demo-draft.gguf"

static char folder[32], path[48], manifest[56], rest[16384];

static int open_folder(void **state) {
  (void)state;
  (void)snprintf(folder, sizeof folder, "/tmp/weft-owner-XXXXXX");
  assert_non_null(mkdtemp(folder));
  (void)snprintf(path, sizeof path, "%s/socket", folder);
  (void)snprintf(manifest, sizeof manifest, "%s.json", path);
  return 0;
}

static uint32_t count_files(void) {
  uint32_t n = 0;
  DIR *dir = opendir(folder);
  assert_non_null(dir);
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) n += entry->d_name[0] != '.';
  (void)closedir(dir);
  return n;
}

/* What a killed owner leaves is removed here, what one that ends leaves would be a fault. */
static int close_folder(void **state) {
  (void)state;
  char name[64];
  for (int i = 0; i < 2; i++) {
    (void)snprintf(name, sizeof name, "%s.%s.lock", path, i == 0 ? "target" : "drafter");
    (void)unlink(name);
  }
  (void)unlink(path);
  (void)unlink(manifest);
  assert_int_equal(rmdir(folder), 0);
  return 0;
}

#define MORE(...)         \
  (const char *const[]) { \
    __VA_ARGS__, NULL     \
  }

/* Reads events up to this one; the caller decrefs. */
static json_t *hear_event(const program *p, const char *wanted) {
  for (;;) {
    json_t *event = await_object(p);
    if (strcmp(text_at(event, "event"), wanted) == 0) return event;
    json_decref(event);
  }
}

static void await_event(const program *p, const char *wanted) {
  json_decref(hear_event(p, wanted));
}

/* It owns the weights when this returns. */
static program start_owner(const char *const *more) {
  program p =
      spawn_program(MORE("weights", "--socket", path, "--threads", "1", "--backend", "cpu", "--json", "-v"), more);
  await_event(&p, "ready");
  return p;
}

static program start_server(const char *const *more) {
  program p = spawn_program(MORE("serve", "--backend", "cpu", "--threads", "1", "--port", "0", "--json", "-v",
                                 "--kv-mib", "4", "--context", "256"),
                            more);
  json_t *root = await_object(&p);
  p.port = (uint16_t)int_at(root, "port");
  json_decref(root);
  return p;
}

static program start_worker(void) {
  return start_server(MORE("-m", DEMO_AR_MODEL, "--weights", path));
}

/* Ends with a code above 0 and one line, which is given. */
static const char *expect_refusal(const char *const *words, const char *const *more) {
  program p = spawn_program(words, more);
  int how = await_end(&p, 0, rest, sizeof rest);
  if (!WIFEXITED(how) || WEXITSTATUS(how) == 0) fail_msg("it was not refused: %s", rest);
  char *end = strchr(rest, '\n');
  if (end == NULL || end[1] != 0) fail_msg("that is not one line: %s", rest);
  return rest;
}

static void check_refused(const char *model, const char *const *more, const char *says) {
  const char *line = expect_refusal(MORE("serve", "--threads", "1", "--port", "0", "--kv-mib", "4", "--context", "256",
                                         "--weights", path, "-m", model),
                                    more);
  if (strstr(line, says) == NULL) fail_msg("'%s' is not said: %s", says, line);
}

/* Text and logprobs: what differs by a bit in one weight differs here. */
static char *answer_of(uint16_t port) {
  json_t *root = talk_json(port, "/v1/completions",
                           "{\"prompt\":\"Sort from low to high: 41 7 23\",\"max_tokens\":24,\"ignore_eos\":true,"
                           "\"temperature\":0.8,\"seed\":5,\"logprobs\":5,\"mode\":\"autoregressive\"}");
  char *text = json_dumps(at(root, "choices"), JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
  json_decref(root);
  assert_non_null(text);
  return text;
}

static void check_answer(uint16_t port, const char *wanted) {
  char *text = answer_of(port);
  assert_string_equal(text, wanted);
  free(text);
}

static json_int_t count_of(const char *name) {
  weft_weights *w = NULL;
  char *text = NULL, error[256] = "";
  if (weft_weights_open(path, &w, error, sizeof error) != 0) fail_msg("%s", error);
  assert_int_equal(weft_weights_counts(w, &text, error, sizeof error), 0);
  json_t *root = json_loads(text, 0, NULL);
  json_int_t n = int_at(root, name);
  json_decref(root);
  weft_release(text);
  weft_weights_close(w);
  return n;
}

/* KiB of a field of the mappings of weights, as /proc says of the process. */
static uint64_t mapped_kib(pid_t pid, const char *field) {
  char name[64], line[512];
  uint64_t kib = 0;
  bool is_weights = false;
  size_t n = strlen(field);
  (void)snprintf(name, sizeof name, "/proc/%d/smaps", (int)pid);
  FILE *file = fopen(name, "re");
  assert_non_null(file);
  while (fgets(line, sizeof line, file) != NULL) {
    if (strchr(line, '-') != NULL && strchr(line, '-') < strchr(line, ' '))
      is_weights = strstr(line, "weft-weights") != NULL;
    if (is_weights && strncmp(line, field, n) == 0 && line[n] == ':') kib += strtoull(line + n + 1, NULL, 10);
  }
  (void)fclose(file);
  return kib;
}

/* ---- one load ---- */

static void one_load_for_all(void **state) {
  (void)state;
  enum { MOST = 8 };
  uint32_t n = test_amount(3, MOST, MOST);
  program worker[MOST];
  uint64_t began = weft_clock_us();
  program alone = start_server(MORE("-m", DEMO_AR_MODEL));
  char *wanted = answer_of(alone.port);
  uint64_t us_alone = weft_clock_us() - began, us_first = 0, pss = 0;
  assert_null(strstr((await_end(&alone, SIGTERM, rest, sizeof rest), rest), "mapped"));
  assert_int_equal(count_files(), 0); /* without --weights there is neither socket nor lock */
  program owner = start_owner(MORE("-m", DEMO_AR_MODEL));
  uint64_t n_bytes = (uint64_t)count_of("bytes");
  for (uint32_t i = 0; i < n; i++) {
    began = weft_clock_us();
    worker[i] = start_worker();
    check_answer(worker[i].port, wanted);
    if (i == 0) us_first = weft_clock_us() - began;
  }
  (void)printf("start and first answer: %.3f s, with --weights %.3f s\n", (double)us_alone * 1e-6,
               (double)us_first * 1e-6);
  for (uint32_t i = 0; i < n; i++) {
    assert_true(mapped_kib(worker[i].pid, "Rss") * 1024 > n_bytes / 2);
    pss += mapped_kib(worker[i].pid, "Pss");
  }
  assert_int_equal(mapped_kib(owner.pid, "Rss"), 0);
  (void)printf("weights of %u workers: %.2f MiB of memory for %.2f MiB\n", n, (double)pss / 1024.0,
               (double)n_bytes / 1048576.0);
  assert_in_range(pss * 1024, n_bytes / 2, n_bytes + n * 4096); /* Pss counts each page once, over all processes */
  weft_gguf *gguf = NULL;
  assert_int_equal(weft_gguf_open(DEMO_AR_MODEL, &gguf, NULL), WEFT_OK);
  uint64_t file_bytes = weft_gguf_file_bytes(gguf);
  weft_gguf_close(gguf);
  assert_in_range(count_of("read_bytes"), file_bytes / 2, file_bytes); /* once, however many map it */
  for (uint32_t i = 0; i < n; i++) {
    double read_mib = 1e9;
    end_program(&worker[i], SIGTERM, rest, sizeof rest);
    const char *at_line = strstr(rest, "weft-demo-ar.gguf: ");
    assert_true(at_line != NULL && sscanf(at_line, "weft-demo-ar.gguf: %lf MiB of weights", &read_mib) == 1);
    assert_true(read_mib * 1048576.0 < (double)file_bytes / 20); /* vectors, which are its own */
    assert_non_null(strstr(rest, "off      the arena of weights: --weights maps them"));
    assert_non_null(strstr(rest, "by memfd, for reading alone"));
  }
  end_program(&owner, SIGTERM, rest, sizeof rest);
  assert_non_null(strstr(rest, "weights: ended: {"));
  assert_int_equal(count_files(), 0);
  free(wanted);
}

/* ---- who is killed ---- */

static void a_killed_worker_harms_nobody(void **state) {
  (void)state;
  program owner = start_owner(MORE("-m", DEMO_AR_MODEL)), first = start_worker(), second = start_worker();
  char *wanted = answer_of(second.port);
  json_int_t before = count_of("disconnects");
  int how = await_end(&first, SIGKILL, rest, sizeof rest);
  assert_true(WIFSIGNALED(how));
  while (count_of("workers") > 2) (void)poll(NULL, 0, 1); /* the second, and who asks */
  assert_true(count_of("disconnects") > before);
  check_answer(second.port, wanted);
  program third = start_worker();
  check_answer(third.port, wanted);
  end_program(&second, SIGTERM, rest, sizeof rest);
  end_program(&third, SIGTERM, rest, sizeof rest);
  end_program(&owner, SIGTERM, rest, sizeof rest);
  free(wanted);
}

static void workers_outlive_a_killed_owner(void **state) {
  (void)state;
  char line[1024], error[256] = "";
  program owner = start_owner(MORE("-m", DEMO_AR_MODEL)), worker = start_worker();
  char *wanted = answer_of(worker.port);
  weft_weights *w = NULL;
  weft_weights_range range;
  const void *data = NULL;
  assert_int_equal(weft_weights_open(path, &w, error, sizeof error), 0);
  assert_int_equal(weft_weights_at(w, 0, 0, &range), 0);
  assert_int_equal(weft_weights_map(w, &range, &data, error, sizeof error), 0);
  talk_check(talk_ask(worker.port, "GET", "/health", ""), 200, "\"status\":\"ok\"");
  assert_true(weft_weights_alive(w));
  assert_true(WIFSIGNALED(await_end(&owner, SIGKILL, rest, sizeof rest)));
  do {
    read_line(worker.err, line, sizeof line);
  } while (line[0] != 0 && strstr(line, "the owner of the weights") == NULL);
  assert_non_null(strstr(line, "has ended: this process runs on with what it has mapped"));
  talk_check(talk_ask(worker.port, "GET", "/health", ""), 200, "\"status\":\"degraded\",\"message\":\"the owner of");
  check_answer(worker.port, wanted);
  assert_false(weft_weights_alive(w));
  uint64_t sum = 0;
  for (uint64_t i = 0; i < range.n_bytes; i++) sum += ((const uint8_t *)data)[i];
  assert_true(sum > 0); /* an import keeps the memory */
  check_refused(DEMO_AR_MODEL, MORE("--backend", "cpu"), "the manifest is stale: its owner has ended");
  owner = start_owner(MORE("-m", DEMO_AR_MODEL)); /* in the place of the killed one */
  program next = start_worker();
  check_answer(next.port, wanted);
  end_program(&next, SIGTERM, rest, sizeof rest);
  end_program(&worker, SIGTERM, rest, sizeof rest);
  end_program(&owner, SIGTERM, rest, sizeof rest);
  weft_weights_close(w);
  free(wanted);
}

/* By names (ipc) what is mapped ends with its owner: one line, /health says it, what runs ends, and the server with it.
 */
static void workers_by_name_end_with_a_killed_owner(void **state) {
  (void)state;
  char error[256] = "";
  program owner = start_owner(MORE("-m", DEMO_AR_MODEL, "--transport", "ipc"));
  program worker = start_server(MORE("-m", DEMO_AR_MODEL, "--weights", path, "--lame-duck-seconds", "600"));
  char *wanted = answer_of(worker.port);
  program alone = start_server(MORE("-m", DEMO_AR_MODEL));
  check_answer(alone.port, wanted);
  end_program(&alone, SIGTERM, rest, sizeof rest);
  weft_weights *w = NULL;
  int fd = -1;
  assert_int_equal(weft_weights_open(path, &w, error, sizeof error), 0);
  assert_true(weft_weights_descriptor(w, 0, &fd, error, sizeof error) < 0);
  assert_string_equal(error, "pieces that come by ipc have no descriptor");
  weft_weights_close(w);
  talk_check(talk_ask(worker.port, "GET", "/health", ""), 200, "\"status\":\"ok\"");
  int stream =
      talk_begin(worker.port, "/v1/completions",
                 "{\"prompt\":\"1 2\",\"max_tokens\":200,\"n\":4,\"ignore_eos\":true,\"mode\":\"autoregressive\"}");
  while (talk_metric(worker.port, "vllm:num_requests_running") < 1) (void)usleep(1000);
  assert_true(WIFSIGNALED(await_end(&owner, SIGKILL, rest, sizeof rest)));
  talk_answer a = talk_receive(stream);
  assert_int_equal(a.code, 503); /* it ended, and not with the tokens of weights that are gone */
  talk_answer_free(&a);
  (void)close(stream);
  talk_check(talk_ask(worker.port, "GET", "/health", ""), 503,
             "\"status\":\"unwell\",\"message\":\"the owner of the weights");
  talk_check(talk_ask(worker.port, "POST", "/v1/completions", "{\"prompt\":\"1\"}"), 503, "draining");
  assert_int_equal(kill(worker.pid, SIGTERM), 0); /* cuts the time short in which balancers see it */
  int how = await_end(&worker, 0, rest, sizeof rest);
  assert_true(WIFEXITED(how) && WEXITSTATUS(how) != 0);
  const char *last = strstr(rest, "weft: the owner of the weights");
  if (last == NULL || strstr(last, "holds no longer, so it ends") == NULL) fail_msg("%s", rest);
  check_refused(DEMO_AR_MODEL, MORE("--backend", "cpu"), "the manifest is stale: its owner has ended");
  free(wanted);
}

static void check_ended_unwell(program *p) {
  int how = await_end(p, 0, rest, sizeof rest);
  assert_true(WIFEXITED(how) && WEXITSTATUS(how) != 0);
  if (strstr(rest, "holds no longer, so it ends") == NULL) fail_msg("%s", rest);
}

/* One SIGTERM is enough, before the owner's end or in the same moment: nothing is left to wait for. */
static void told_to_end_and_without_weights(void **state) {
  (void)state;
  const char *const *how = MORE("-m", DEMO_AR_MODEL, "--weights", path, "--lame-duck-seconds", "600");
  program owner = start_owner(MORE("-m", DEMO_AR_MODEL, "--transport", "ipc"));
  program leaving = start_server(how), stopped = start_server(how);
  assert_int_equal(kill(leaving.pid, SIGTERM), 0);
  talk_answer a = talk_ask(leaving.port, "GET", "/readyz", "");
  for (; a.code == 200; a = talk_ask(leaving.port, "GET", "/readyz", "")) talk_answer_free(&a);
  talk_answer_free(&a);
  assert_int_equal(kill(stopped.pid, SIGSTOP), 0);
  assert_true(WIFSIGNALED(await_end(&owner, SIGKILL, rest, sizeof rest)));
  assert_int_equal(kill(stopped.pid, SIGTERM), 0);
  assert_int_equal(kill(stopped.pid, SIGCONT), 0);
  check_ended_unwell(&leaving);
  check_ended_unwell(&stopped);
}

/* Layers on each of several devices, and parts of each layer on all: the bits of one device. */
static void several_devices_have_one_owner(void **state) {
  (void)state;
  static const char *const split[] = {"layer", "tensor"};
  program alone = start_server(MORE("-m", DEMO_AR_MODEL));
  char *wanted = answer_of(alone.port);
  end_program(&alone, SIGTERM, rest, sizeof rest);
  for (int i = 0; i < 2; i++) {
    const char *ratio = i == 0 ? "--split-ratio" : NULL, *const devices[] = {"-m",  DEMO_AR_MODEL, "--devices",
                                                                             "0,1", "--split",     split[i],
                                                                             ratio, "3,1",         NULL};
    program owner = start_owner(devices);
    /* the worker takes the owner's cut, whatever it would have planned */
    program worker =
        start_server(MORE("-m", DEMO_AR_MODEL, "--devices", "0,1", "--split", split[i], "--weights", path));
    check_answer(worker.port, wanted);
    assert_int_equal(count_of("workers"), 2);
    assert_int_equal(mapped_kib(owner.pid, "Rss"), 0);
    assert_true(mapped_kib(worker.pid, "Rss") * 1024 > (uint64_t)count_of("bytes") / 2);
    check_refused(DEMO_AR_MODEL, MORE("--backend", "cpu"), "the weights lie on 2 device(s)");
    check_refused(DEMO_AR_MODEL, MORE("--backend", "cpu", "--devices", "0,1", "--split", split[1 - i]),
                  "give both the same --devices and --split");
    end_program(&worker, SIGTERM, rest, sizeof rest);
    assert_non_null(strstr(rest, "by memfd, for reading alone"));
    end_program(&owner, SIGTERM, rest, sizeof rest);
    assert_int_equal(count_files(), 0);
  }
  const char *line = expect_refusal(MORE("weights", "-m", DEMO_AR_MODEL, "--socket", path, "--backend", "cpu"),
                                    MORE("--devices", "0,1", "--split", "replicas"));
  assert_non_null(strstr(line, "each replica is a server with an owner of its own"));
  line = expect_refusal(MORE("weights", "-m", DEMO_AR_MODEL, "--socket", path), MORE("--transport", "shm"));
  assert_non_null(strstr(line, "--transport: 'shm' must be auto, fd or ipc"));
  free(wanted);
}

/* Of a manifest that is one's own, but another user's process answers. */
static void a_stranger_is_not_believed(void **state) {
  (void)state;
  program owner = start_owner(MORE("-m", DEMO_AR_MODEL));
  json_int_t before = count_of("refused");
  assert_int_equal(chmod(folder, 0777) | chmod(path, 0666), 0);
  assert_true(stranger_is_hung_up_on(path));
  assert_int_equal(count_of("refused"), before + (geteuid() == 0 ? 1 : 0));
  assert_true(WIFSIGNALED(await_end(&owner, SIGKILL, rest, sizeof rest)));
  assert_int_equal(unlink(path), 0);
  pid_t stranger = listen_as_stranger(path);
  check_refused(DEMO_AR_MODEL, MORE("--backend", "cpu"),
                stranger == 0 ? "the manifest is stale" : "another user's process answers there");
  end_stranger(stranger);
}

static void ends_with_its_parent(void **state) {
  (void)state;
  char number[16];
  int how;
  pid_t parent = fork();
  if (parent == 0) {
    for (;;) (void)pause();
  }
  (void)snprintf(number, sizeof number, "%d", (int)parent);
  program owner = start_owner(MORE("-m", DEMO_AR_MODEL, "--parent-pid", number));
  assert_int_equal(kill(parent, SIGKILL), 0);
  assert_int_equal(waitpid(parent, &how, 0), parent);
  end_program(&owner, 0, rest, sizeof rest);
  assert_int_equal(count_files(), 0);
  assert_non_null(
      strstr(expect_refusal(MORE("weights", "-m", DEMO_AR_MODEL, "--socket", path, "--parent-pid"), MORE(number)),
             "there is no such process"));
}

/* ---- what does not fit ---- */

static void copy_file(const char *from, const char *to) {
  char bytes[65536];
  FILE *in = fopen(from, "rbe"), *out = fopen(to, "wbe");
  assert_true(in != NULL && out != NULL);
  for (size_t n; (n = fread(bytes, 1, sizeof bytes, in)) > 0;) assert_int_equal(fwrite(bytes, 1, n, out), n);
  assert_int_equal(fclose(out), 0);
  (void)fclose(in);
}

/* Whether there are instructions that sum in another order than portable ones. */
static bool has_fast_sums(void) {
  weft_device_config config = {.backend = "cpu", .n_threads = 1};
  weft_device *device = NULL;
  assert_int_equal(weft_device_open(&config, &device, NULL), WEFT_OK);
  bool fast = strcmp(weft_device_get_info(device)->isa, "portable") != 0;
  weft_device_close(device);
  return fast;
}

static void what_does_not_fit_is_refused(void **state) {
  (void)state;
  char other[64];
  (void)snprintf(other, sizeof other, "%s/weft-demo-ar.gguf", folder);
  check_refused(DEMO_AR_MODEL, MORE("--backend", "cpu"), "`weft weights` writes it there when it is ready");
  program owner = start_owner(MORE("-m", DEMO_AR_MODEL));
  check_refused(DEMO_MODEL, MORE("--backend", "cpu"), "is none of the models whose weights lie there");
  check_refused(DEMO_AR_MODEL, MORE("--backend", "ref"), "laid out for backend 'cpu', and this process has 'ref'");
  if (has_fast_sums()) check_refused(DEMO_AR_MODEL, MORE("--backend", "cpu", "--isa", "portable"), "sums in the order");
  check_refused(DEMO_AR_MODEL, MORE("--backend", "cpu", "--devices", "0,1"),
                "the weights lie on 1 device(s), 1 of a part, and this process has 2, 1 of a part");
  check_refused(DEMO_AR_MODEL, MORE("--backend", "cpu", "--devices", "0,1", "--split", "replicas"),
                "each replica is a server of its own");
  copy_file(DEMO_MODEL, other); /* the file was replaced by another one of its name */
  check_refused(other, MORE("--backend", "cpu"), "is another file than the one whose weights lie there");
  assert_int_equal(unlink(other), 0);
  const char *line = expect_refusal(MORE("weights", "-m", DEMO_AR_MODEL, "--socket", path), MORE("--backend", "cpu"));
  assert_non_null(strstr(line, "owns the weights of the target models"));
  assert_int_equal(chmod(manifest, 0666), 0);
  check_refused(DEMO_AR_MODEL, MORE("--backend", "cpu"), "others may write to it");
  assert_int_equal(chmod(manifest, 0600), 0);
  FILE *file = fopen(manifest, "ae"); /* a byte that changes nothing but the hash */
  assert_non_null(file);
  (void)fputs("\n", file);
  assert_int_equal(fclose(file), 0);
  check_refused(DEMO_AR_MODEL, MORE("--backend", "cpu"), "the manifest is stale: process");
  end_program(&owner, SIGTERM, rest, sizeof rest);
  line = expect_refusal(MORE("weights", "-m", DEMO_AR_MODEL, "--socket", path), MORE("--scope", "drafter"));
  assert_non_null(strstr(line, "--scope drafter leaves no model"));
  line = expect_refusal(MORE("weights", "-m", DEMO_AR_MODEL, "--socket", path), MORE("--scope", "all"));
  assert_non_null(strstr(line, "must be target, drafter or both"));
  line = expect_refusal(MORE("weights", "-m", DEMO_AR_MODEL, "--socket", path), MORE("--reserve-mib", "16777216"));
  assert_non_null(strstr(line, "--reserve-mib 16777216 MiB beside them"));
  assert_int_equal(count_files(), 0);
}

static void a_dry_run_leaves_nothing(void **state) {
  (void)state;
  static const char *const reserves[] = {"0", "16777216"};
  for (int i = 0; i < 2; i++) {
    program p = spawn_program(MORE("weights", "-m", DEMO_AR_MODEL, "--socket", path, "--backend", "cpu", "--dry-run"),
                              MORE("--reserve-mib", reserves[i]));
    await_event(&p, "support");
    json_t *root = hear_event(&p, "preflight");
    assert_int_equal(json_is_true(at(root, "fits")), i == 0);
    assert_string_equal(text_at(root, "transport"), "memfd");
    assert_in_range(int_at(root, "need_bytes"), 1 << 20, 16 << 20);
    assert_int_equal(at(root, "reason") != NULL, i == 1);
    json_decref(root);
    end_program(&p, 0, rest, sizeof rest);
    assert_int_equal(count_files(), 0);
  }
}

static void events_tell_its_life(void **state) {
  (void)state;
  static const char *const names[] = {"guard",  "support", "lock",  "lock",   "plan",
                                      "upload", "broker",  "ready", "request"};
  char number[16];
  (void)snprintf(number, sizeof number, "%d", (int)getpid());
  program p = spawn_program(MORE("weights", "-m", DEMO_AR_MODEL, "--socket", path, "--json", "--backend", "cpu", "-q"),
                            MORE("--parent-pid", number));
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (i == 8) assert_in_range(count_of("requests"), 2, 2);
    json_t *event = await_object(&p);
    assert_string_equal(text_at(event, "event"), names[i]);
    if (i == 0) assert_int_equal(int_at(event, "parent"), getpid());
    if (i == 5) assert_in_range(int_at(event, "bytes"), 1 << 20, 16 << 20);
    if (i == 7) assert_string_equal(text_at(event, "manifest"), manifest);
    json_decref(event);
  }
  assert_int_equal(kill(p.pid, SIGTERM), 0);
  await_event(&p, "shutdown");
  end_program(&p, 0, rest, sizeof rest);
}

/* ---- models that draft ---- */

static void scopes_part_the_models(void **state) {
  (void)state;
  static const char *const names[] = {"target", "drafter", "both"};
  const char *const models[] = {"-m", DEMO_AR_MODEL, "--draft", "model:" DRAFT_MODEL, NULL};
  program alone = start_server(models);
  char *wanted = answer_of(alone.port);
  end_program(&alone, SIGTERM, rest, sizeof rest);
  for (int i = 0; i < 3; i++) {
    program owner = start_owner(MORE("-m", DEMO_AR_MODEL, "--draft", "model:" DRAFT_MODEL, "--scope", names[i]));
    assert_int_equal(count_of("models"), i == 2 ? 2 : 1);
    program worker = start_server(MORE("-m", DEMO_AR_MODEL, "--draft", "model:" DRAFT_MODEL, "--weights", path));
    json_int_t n_asked = count_of("requests");
    check_answer(worker.port, wanted);
    assert_int_equal(count_of("requests"), n_asked + 2); /* both counts: no piece is asked for by the first draft */
    end_program(&worker, SIGTERM, rest, sizeof rest);
    end_program(&owner, SIGTERM, rest, sizeof rest);
  }
  free(wanted);
}

/* Where it is asked for, weights that were laid out or are summed otherwise are loaded: with the answers of a server of
 * its own, and only where there is room. A stale manifest is refused as ever. */
static void what_was_made_otherwise_is_loaded(void **state) {
  (void)state;
  const char *const words[] = {"-m", DEMO_AR_MODEL, "--isa", "portable", NULL, NULL, NULL, NULL};
  const char *more[8];
  if (!has_fast_sums()) return;
  program alone = start_server(words);
  char *wanted = answer_of(alone.port);
  end_program(&alone, SIGTERM, rest, sizeof rest);
  program owner = start_owner(MORE("-m", DEMO_AR_MODEL));
  memcpy(more, words, sizeof more);
  more[4] = "--weights";
  more[5] = path;
  more[6] = "--else-anew";
  program own = start_server(more);
  check_answer(own.port, wanted);
  assert_int_equal(count_of("workers"), 1); /* who asks */
  assert_int_equal(mapped_kib(own.pid, "Rss"), 0);
  end_program(&own, SIGTERM, rest, sizeof rest);
  assert_non_null(strstr(rest, "; --else-anew: this process loads them"));
  assert_null(strstr(rest, "mapped"));
  own = spawn_program(MORE("serve", "-m", DEMO_AR_MODEL, "--backend", "cpu", "--port", "0", "--weights", path),
                      MORE("--isa", "portable", "--else-anew", "--device-mib", "1"));
  int how = await_end(&own, 0, rest, sizeof rest);
  assert_true(WIFEXITED(how) && WEXITSTATUS(how) != 0);
  assert_non_null(strstr(rest, "--else-anew: weights of 4 MiB are to be loaded on device 0, and 1 MiB are free there"));
  check_refused(DEMO_MODEL, MORE("--backend", "cpu", "--else-anew"), "is none of the models whose weights lie there");
  char *as_owner = answer_of((own = start_server(MORE("-m", DEMO_AR_MODEL, "--weights", path, "--else-anew"))).port);
  assert_true(mapped_kib(own.pid, "Rss") > 0); /* what fits is mapped all the same */
  end_program(&own, SIGTERM, rest, sizeof rest);
  end_program(&owner, SIGTERM, rest, sizeof rest);
  check_refused(DEMO_AR_MODEL, MORE("--backend", "cpu", "--else-anew"), "writes it there when it is ready");
  free(as_owner);
  free(wanted);
}

/* ---- the functions of weft.h ---- */

static void functions_find_and_map(void **state) {
  (void)state;
  static const char name[] = "blk.0.ffn_gate_inp.weight";
  program owner = start_owner(MORE("-m", DEMO_AR_MODEL, "-m", DEMO_MODEL));
  weft_device_config config = {.backend = "cpu", .n_threads = 1};
  weft_device *device = NULL;
  weft_gguf *gguf = NULL;
  weft_weights *w = NULL;
  weft_weights_range range, other;
  char error[256] = "";
  const void *data = NULL, *other_data = NULL;
  int fd = -1;
  if (weft_weights_open(path, &w, error, sizeof error) != 0) fail_msg("%s", error);
  assert_int_equal(weft_weights_models(w), 2);
  assert_string_equal(weft_weights_model(w, 0), DEMO_AR_MODEL);
  assert_null(weft_weights_model(w, 2));
  assert_int_equal(weft_weights_find(w, 0, name, &range), 0);
  assert_int_equal(weft_weights_find(w, 1, name, &other), 0); /* the same name of another file lies elsewhere */
  assert_true(range.at != other.at);
  assert_true(weft_weights_find(w, 0, "no such", &other) < 0);
  assert_true(weft_weights_at(w, 0, weft_weights_count(w, 0), &other) < 0);
  assert_int_equal(weft_weights_map(w, &range, &data, error, sizeof error), 0);
  assert_int_equal(weft_gguf_open(DEMO_AR_MODEL, &gguf, NULL), WEFT_OK);
  const weft_gguf_tensor *tensor = weft_gguf_tensor_find(gguf, name);
  weft_weight own = {.type = tensor->type,
                     .n_in = (uint32_t)tensor->ne[0],
                     .n_out = (uint32_t)tensor->ne[1],
                     .n_mats = (uint32_t)tensor->ne[2]};
  assert_int_equal(weft_device_open(&config, &device, NULL), WEFT_OK);
  assert_int_equal(weft_device_weight(device, &own, tensor->data, range.uses, NULL), WEFT_OK);
  assert_int_equal(own.n_bytes, range.n_bytes);
  assert_memory_equal(own.data, data, own.n_bytes);
  other = range;
  other.n_bytes = UINT64_MAX;
  assert_true(weft_weights_map(w, &other, &other_data, error, sizeof error) < 0);
  assert_int_equal(weft_weights_descriptor(w, range.piece, &fd, error, sizeof error), 0);
  assert_int_equal(pwrite(fd, "x", 1, 0), -1); /* sealed */
  (void)close(fd);
  assert_true(weft_weights_descriptor(w, 9, &fd, error, sizeof error) < 0);
  weft_device_weight_free(device, &own);
  weft_device_close(device);
  weft_gguf_close(gguf);
  weft_weights_close(w);
  end_program(&owner, SIGTERM, rest, sizeof rest);
}

/* Words of another protocol, and of another form of this one, are no end of the owner. */
static void strange_words_end_a_connection_alone(void **state) {
  (void)state;
  program owner = start_owner(MORE("-m", DEMO_AR_MODEL));
  static const uint32_t other_form[] = {0x74776677, 99, 1, 0}, no_piece[] = {0x74776677, 2, 2, 77};
  weft_text said = {0};
  for (int i = 0; i < 3; i++) {
    int fd = talk_dial_named(path);
    weft_text_clear(&said);
    assert_true(talk_write(fd, i == 0 ? (const void *)"GET / HTTP/1.1\r\n" : i == 1 ? other_form : no_piece, 16));
    while (said.n < (i == 0 ? 1u : 48u) && talk_read(fd, &said, TALK_MS) > 0) continue;
    assert_int_equal(said.n >= 48, i > 0); /* nothing is said to the first */
    (void)close(fd);
  }
  weft_text_free(&said);
  assert_int_equal(count_of("refused"), 3);
  end_program(&owner, SIGTERM, rest, sizeof rest);
}

int main(void) {
  (void)signal(SIGPIPE, SIG_IGN);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(one_load_for_all, open_folder, close_folder),
      cmocka_unit_test_setup_teardown(a_killed_worker_harms_nobody, open_folder, close_folder),
      cmocka_unit_test_setup_teardown(workers_outlive_a_killed_owner, open_folder, close_folder),
      cmocka_unit_test_setup_teardown(workers_by_name_end_with_a_killed_owner, open_folder, close_folder),
      cmocka_unit_test_setup_teardown(told_to_end_and_without_weights, open_folder, close_folder),
      cmocka_unit_test_setup_teardown(several_devices_have_one_owner, open_folder, close_folder),
      cmocka_unit_test_setup_teardown(a_stranger_is_not_believed, open_folder, close_folder),
      cmocka_unit_test_setup_teardown(ends_with_its_parent, open_folder, close_folder),
      cmocka_unit_test_setup_teardown(what_does_not_fit_is_refused, open_folder, close_folder),
      cmocka_unit_test_setup_teardown(what_was_made_otherwise_is_loaded, open_folder, close_folder),
      cmocka_unit_test_setup_teardown(a_dry_run_leaves_nothing, open_folder, close_folder),
      cmocka_unit_test_setup_teardown(events_tell_its_life, open_folder, close_folder),
      cmocka_unit_test_setup_teardown(scopes_part_the_models, open_folder, close_folder),
      cmocka_unit_test_setup_teardown(functions_find_and_map, open_folder, close_folder),
      cmocka_unit_test_setup_teardown(strange_words_end_a_connection_alone, open_folder, close_folder),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
