/* SPDX-License-Identifier: MIT */
/* weft doctor: every fault that it knows is put in, and named with what to do. */
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/cli/doctor.h"

static doctor_report report;

/* A machine without a fault and with a card. */
static const doctor_facts sound = {.processor = "a processor",
                                   .isa = "avx2",
                                   .n_threads = 8,
                                   .n_on_bus = 1,
                                   .has_driver = true,
                                   .has_uvm = true,
                                   .version = "550.54.15",
                                   .card = {{"NVIDIA H200", "sm_90", 150ull << 30, 149ull << 30}},
                                   .n_cards = 1,
                                   .memory_bytes = 64ull << 30,
                                   .free_bytes = 60ull << 30,
                                   .n_descriptors = 4096,
                                   .n_open = 10,
                                   .threads_left = UINT64_MAX};

static weft_config options_of(int argc, const char *const *argv) {
  weft_config config;
  weft_error error = {{0}};
  if (weft_config_parse(&config, NULL, WEFT_CMD_SERVE, argc, (char **)(uintptr_t)argv, &error) != WEFT_OK)
    fail_msg("%s", error.text);
  return config;
}
#define OPTIONS(...) \
  options_of((int)(sizeof(const char *[]){__VA_ARGS__} / sizeof(const char *)), (const char *const[]){__VA_ARGS__})

/* The line of the topic with these words, in this state; else what there is instead. */
static void expect(const char *topic, doctor_state state, const char *words) {
  for (uint32_t i = 0; i < report.n; i++) {
    const doctor_line *line = &report.line[i];
    if (strcmp(line->topic, topic) == 0 && line->state == state && strstr(line->text, words) != NULL) return;
  }
  for (uint32_t i = 0; i < report.n; i++)
    print_message("%d %s %s\n", report.line[i].state, report.line[i].topic, report.line[i].text);
  fail_msg("no line of %s in state %d says '%s'", topic, state, words);
}

static uint32_t count_faults(void) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < report.n; i++) n += report.line[i].state != DOCTOR_OK;
  return n;
}

static void judge(const doctor_facts *facts, const weft_config *config) {
  report.n = 0;
  doctor_judge_machine(facts, config, &report);
}

static void judge_and_expect(const doctor_facts *facts, const weft_config *config, const char *topic,
                             doctor_state state, const char *words) {
  judge(facts, config);
  expect(topic, state, words);
}

static void a_sound_machine_has_no_fault(void **state) {
  (void)state;
  weft_config config = OPTIONS("-p", "0");
  judge(&sound, &config);
  assert_int_equal(count_faults(), 0);
  expect("card", DOCTOR_OK, "NVIDIA H200, sm_90, 149.0 of 150.0 GiB free");
  expect("driver", DOCTOR_OK, "550.54.15");
}

static void faults_of_the_processor(void **state) {
  (void)state;
  weft_config config = OPTIONS("-p", "0");
  doctor_facts f = sound;
  (void)snprintf(f.isa, sizeof f.isa, "portable");
  judge_and_expect(&f, &config, "processor", DOCTOR_LOOK, "neither AVX2 nor AVX-512");
  f = sound;
  f.quota = 2.0;
  judge_and_expect(&f, &config, "processor", DOCTOR_LOOK,
                   "allows 2.0 processors and 8 threads would share them: give --threads 2");
  (void)snprintf(f.no_cpu.text, sizeof f.no_cpu.text, "--isa avx512: this processor lacks it");
  judge_and_expect(&f, &config, "processor", DOCTOR_BAD, "lacks it");
}

static void faults_of_the_driver(void **state) {
  (void)state;
  weft_config config = OPTIONS("-p", "0"), card = OPTIONS("--backend", "cuda"), cpu = OPTIONS("--backend", "cpu");
  doctor_facts f = sound;
  f.has_driver = false;
  judge_and_expect(&f, &config, "driver", DOCTOR_BAD, "--gpus all");
  judge(&f, &cpu);
  assert_int_equal(count_faults(), 0); /* nobody asked for it */
  f.n_on_bus = 0;
  judge_and_expect(&f, &config, "driver", DOCTOR_OK, "no NVIDIA card is here: the cpu serves");
  judge_and_expect(&f, &card, "driver", DOCTOR_BAD, "leave out --backend cuda");
  f = sound;
  f.driver_fault = EACCES;
  judge_and_expect(&f, &config, "driver", DOCTOR_BAD, "Permission denied");
  f = sound;
  f.has_uvm = false;
  judge_and_expect(&f, &config, "driver", DOCTOR_BAD, "nvidia-modprobe -u");
  f.is_guest = true; /* WSL has neither file */
  judge(&f, &config);
  assert_int_equal(count_faults(), 0);
  f = sound;
  (void)snprintf(f.no_library, sizeof f.no_library, "libcuda.so.1: cannot open shared object file");
  judge_and_expect(&f, &config, "driver", DOCTOR_BAD, "libcuda1) in the version of the driver, 550.54.15");
}

static void faults_of_module_and_card(void **state) {
  (void)state;
  weft_config config = OPTIONS("-p", "0");
  doctor_facts f = sound;
  f.n_cards = 0;
  (void)snprintf(f.no_card.text, sizeof f.no_card.text, "backend 'cuda': libweft-cuda.so is not beside the program");
  judge_and_expect(&f, &config, "module", DOCTOR_BAD, "not beside the program; until then the cpu serves");
  f = sound;
  f.card[0].free_bytes = 20ull << 30;
  judge_and_expect(&f, &config, "card", DOCTOR_LOOK, "20.0 of 150.0 GiB free: other programs hold the rest");
}

static void faults_of_memory_and_limits(void **state) {
  (void)state;
  weft_config config = OPTIONS("-p", "0");
  doctor_facts f = sound;
  f.free_bytes = 100ull << 20;
  f.no_huge_pages = true;
  judge_and_expect(&f, &config, "memory", DOCTOR_BAD, "100 MiB are free");
  expect("memory", DOCTOR_LOOK, "huge pages are off");
  f = sound;
  f.free_bytes = 0;
  judge_and_expect(&f, &config, "memory", DOCTOR_LOOK, "mount /proc");
  f = sound;
  f.n_descriptors = 256;
  judge_and_expect(&f, &config, "limits", DOCTOR_LOOK, "256 file descriptors leave room for 230 of 1024 connections");
  f.n_descriptors = 20;
  judge_and_expect(&f, &config, "limits", DOCTOR_BAD, "ulimit -n");
  f = sound;
  f.threads_left = 12;
  judge_and_expect(&f, &config, "limits", DOCTOR_BAD, "12 more threads are allowed and a server starts 24");
}

/* ---- what the system says, as files of a folder ---- */

static char folder[256];

static void put_file(const char *path, const char *text) {
  char whole[512];
  (void)snprintf(whole, sizeof whole, "%s%s", folder, path);
  for (char *at = whole + strlen(folder) + 1; (at = strchr(at, '/')) != NULL; at++) {
    *at = 0;
    (void)mkdir(whole, 0755);
    *at = '/';
  }
  FILE *file = fopen(whole, "w");
  assert_non_null(file);
  (void)fputs(text, file);
  (void)fclose(file);
}

static int make_folder(void **state) {
  (void)state;
  (void)snprintf(folder, sizeof folder, "/tmp/weft-doctor-XXXXXX");
  return mkdtemp(folder) == NULL;
}

static int drop_folder(void **state) {
  char command[300];
  (void)state;
  (void)snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command);
}

static void facts_are_read(void **state) {
  (void)state;
  weft_config config = OPTIONS("-p", "0");
  doctor_facts f;
  doctor_look(folder, &config, &f);
  assert_int_equal(f.n_on_bus, 0);
  assert_false(f.has_driver);
  assert_false(f.no_huge_pages);
  assert_true(f.quota == 0);
  put_file("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
  put_file("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
  put_file("/sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n"); /* its sound */
  put_file("/sys/bus/pci/devices/0000:01:00.1/class", "0x040300\n");
  put_file("/sys/bus/pci/devices/0000:02:00.0/vendor", "0x8086\n");
  put_file("/sys/bus/pci/devices/0000:02:00.0/class", "0x030000\n");
  put_file("/proc/driver/nvidia/version",
           "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n");
  put_file("/dev/nvidiactl", "");
  put_file("/sys/fs/cgroup/cpu.max", "150000 100000\n");
  put_file("/sys/fs/cgroup/pids.max", "100\n");
  put_file("/sys/fs/cgroup/pids.current", "90\n");
  put_file("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  doctor_look(folder, &config, &f);
  assert_int_equal(f.n_on_bus, 1);
  assert_true(f.has_driver);
  assert_false(f.has_uvm);
  assert_int_equal(f.driver_fault, 0);
  assert_string_equal(f.version, "550.54.15");
  assert_true(f.quota == 1.5);
  assert_int_equal(f.threads_left, 10);
  assert_true(f.no_huge_pages);
  assert_true(f.n_threads > 0 && f.free_bytes > 0 && f.n_descriptors > 0);
}

/* ---- what the options name ---- */

static void judge_options(weft_config *config) {
  report.n = 0;
  doctor_judge_options(&sound, config, &report);
  weft_config_free(config);
}

static void faults_of_the_address(void **state) {
  (void)state;
  struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t n = sizeof own;
  char port[16];
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&own, n), 0);
  assert_int_equal(listen(fd, 1), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&own, &n), 0);
  (void)snprintf(port, sizeof port, "%u", ntohs(own.sin_port));
  weft_config config = OPTIONS("--port", port);
  judge_options(&config);
  expect("address", DOCTOR_BAD, "is in use");
  (void)close(fd);
  config = OPTIONS("--port", "0", "--host", "192.0.2.1");
  judge_options(&config);
  expect("address", DOCTOR_BAD, "192.0.2.1");
  config = OPTIONS("--port", "0", "--host", "0.0.0.0");
  judge_options(&config);
  expect("address", DOCTOR_LOOK, "without API keys");
  config = OPTIONS("--port", "0", "--socket-mode", "rw");
  judge_options(&config);
  expect("address", DOCTOR_BAD, "three octal digits");
  char host[300];
  (void)snprintf(host, sizeof host, "unix:%s/socket", folder);
  config = OPTIONS("--host", host);
  judge_options(&config);
  expect("address", DOCTOR_OK, "is free");
  assert_int_not_equal(access(host + 5, F_OK), 0); /* nothing is left behind */
}

static void faults_of_files(void **state) {
  (void)state;
  char keys[300], spill[300], bad[300];
  (void)snprintf(keys, sizeof keys, "%s/keys", folder);
  (void)snprintf(spill, sizeof spill, "%s/none/spill", folder);
  (void)snprintf(bad, sizeof bad, "%s/cut.gguf", folder);
  put_file("/keys", "only-a-key\n");
  put_file("/cut.gguf", "GGUF\3\0\0\0");
  weft_config config = OPTIONS("--port", "0", "--api-keys", keys, "--spill-file", spill, "--directory", bad, "-m", bad,
                               "-m", "/no/such.gguf", "--tls-cert", keys, "--tls-key", keys);
  judge_options(&config);
  expect("keys", DOCTOR_BAD, "keys");
  expect("tls", DOCTOR_BAD, "--tls-cert");
  expect("spill", DOCTOR_BAD, "No such file");
  expect("directory", DOCTOR_BAD, "cut.gguf");
  expect("model", DOCTOR_BAD, "cut.gguf");
  expect("model", DOCTOR_BAD, "/no/such.gguf");
  (void)snprintf(spill, sizeof spill, "%s/spill", folder);
  config = OPTIONS("--port", "0", "--spill-file", spill, "--spill-mib", "67108864");
  judge_options(&config);
  expect("spill", DOCTOR_BAD, "lower --spill-mib");
  expect("model", DOCTOR_LOOK, "-m FILE");
}

static void faults_of_models(void **state) {
  (void)state;
  static const char demo[] = WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf";
  weft_config config = OPTIONS("--port", "0", "-m", demo);
  judge_options(&config);
  expect("model", DOCTOR_OK, "diffusion-gemma");
  doctor_facts f = sound;
  f.n_cards = 0;
  f.free_bytes = 1 << 20;
  report.n = 0;
  config = OPTIONS("--port", "0", "-m", demo);
  doctor_judge_options(&f, &config, &report);
  expect("model", DOCTOR_BAD, "more than the 0.00 GiB that are free");
  f = sound;
  f.card[0].free_bytes = 1 << 20;
  report.n = 0;
  doctor_judge_options(&f, &config, &report);
  expect("model", DOCTOR_LOOK, "7/8 of what is free on card 0");
  weft_config_free(&config);
}

/* A certificate whose time is over is as bad as none. */
static void faults_of_time(void **state) {
  (void)state;
  static const struct {
    const char *days, *words;
    doctor_state state;
  } cases[] = {{"1", "less than a week", DOCTOR_LOOK}, {"30", "holds until", DOCTOR_OK}};
  char cert[300], key[300], command[900];
  (void)snprintf(cert, sizeof cert, "%s/cert.pem", folder);
  (void)snprintf(key, sizeof key, "%s/key.pem", folder);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    (void)snprintf(command, sizeof command,
                   "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days %s -subj /CN=localhost "
                   "-keyout %s -out %s 2>/dev/null",
                   cases[i].days, key, cert);
    assert_int_equal(system(command), 0);
    weft_config config = OPTIONS("--port", "0", "--tls-cert", cert, "--tls-key", key);
    judge_options(&config);
    expect("tls", cases[i].state, cases[i].words);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_sound_machine_has_no_fault),
      cmocka_unit_test(faults_of_the_processor),
      cmocka_unit_test(faults_of_the_driver),
      cmocka_unit_test(faults_of_module_and_card),
      cmocka_unit_test(faults_of_memory_and_limits),
      cmocka_unit_test_setup_teardown(facts_are_read, make_folder, drop_folder),
      cmocka_unit_test_setup_teardown(faults_of_the_address, make_folder, drop_folder),
      cmocka_unit_test_setup_teardown(faults_of_files, make_folder, drop_folder),
      cmocka_unit_test(faults_of_models),
      cmocka_unit_test_setup_teardown(faults_of_time, make_folder, drop_folder),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
