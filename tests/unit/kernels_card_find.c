/* SPDX-License-Identifier: MIT */
/* Cards by a fake driver: which one an opening gets, and the line where there is none: hidden, busy, gone, a slice,
 * older than the kernels, a driver older than the module. And whatever fails, at whatever call: a config that names no
 * backend gets the cpu, with that line as a warning in the log and as the reason of the choice. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "kernels/card_find.h"
#include "kernels/cuda/module.h"
#include "kernels/device_internal.h"

typedef struct fake_driver {
  card_driver calls;
  uint32_t cuda, n_cards, n_calls,
      fail_call; /* fail_call: the number of the call that fails, and all later ones; 0: none */
  card_answer fails_as;
  card_facts card[3];
  uint64_t host_free;
  bool entered;
} fake_driver;

static card_answer next_call(void *self) {
  fake_driver *f = self;
  f->n_calls += 1;
  return f->fail_call != 0 && f->n_calls >= f->fail_call ? f->fails_as : CARD_YES;
}

static card_answer fake_version(void *self, uint32_t *cuda) {
  *cuda = ((fake_driver *)self)->cuda; /* known even where nothing else is */
  return CARD_YES;
}

static card_answer fake_count(void *self, uint32_t *n) {
  card_answer answer = next_call(self);
  *n = answer == CARD_YES ? ((fake_driver *)self)->n_cards : 0;
  return answer;
}

static card_answer fake_describe(void *self, uint32_t index, card_facts *out) {
  card_answer answer = next_call(self);
  if (answer == CARD_YES) *out = ((fake_driver *)self)->card[index];
  return answer;
}

static card_answer fake_enter(void *self, uint32_t index) {
  (void)index;
  ((fake_driver *)self)->entered = true;
  return next_call(self);
}

static card_answer fake_memory(void *self, uint64_t *free_bytes, uint64_t *all_bytes) {
  *free_bytes = 700, *all_bytes = 800;
  return next_call(self);
}

static uint64_t fake_host_free(void *self) {
  return ((fake_driver *)self)->host_free;
}

static const char *fake_why(void *self) {
  (void)self;
  return "in the driver's words";
}

static fake_driver make_driver(void) {
  return (fake_driver){.calls = {.version = fake_version,
                                 .count = fake_count,
                                 .describe = fake_describe,
                                 .enter = fake_enter,
                                 .memory = fake_memory,
                                 .host_free = fake_host_free,
                                 .why = fake_why},
                       .cuda = 13000,
                       .n_cards = 3,
                       .fails_as = CARD_NO_ANSWER,
                       .card = {{.name = "NVIDIA A100", .capability = 80},
                                {.name = "NVIDIA GeForce RTX 5060 Ti", .capability = 120},
                                {.name = "NVIDIA GeForce RTX 2080", .capability = 75}}};
}

static const char module[] = "libweft-cuda-portable.so";

static weft_status find(fake_driver *f, uint32_t index, const char *architectures, card_found *out, weft_error *line) {
  const card_search search = {index, NULL, module, architectures, 13000};
  f->calls.self = f;
  line->text[0] = 0;
  weft_status status = card_find(&f->calls, &search, out, line);
  assert_null(strchr(line->text, '\n'));
  return status;
}

static void refused(fake_driver f, uint32_t index, const char *architectures, weft_status status, const char *line) {
  card_found found;
  weft_error error;
  assert_int_equal(find(&f, index, architectures, &found, &error), status);
  if (strcmp(error.text, line) != 0) fail_msg("the line is: %s", error.text);
  if (status == WEFT_E_UNSUPPORTED && f.fails_as != CARD_BUSY) assert_false(f.entered); /* nothing was begun on it */
}

static void each_generation_gets_its_card(void **state) {
  card_found found;
  weft_error line;
  fake_driver f = make_driver();
  (void)state;
  assert_int_equal(find(&f, 0, "80-virtual,120-real", &found, &line), WEFT_OK);
  assert_true(found.compiles_ptx && found.set == CARD_SET_PORTABLE && found.free_bytes == 700 &&
              found.all_bytes == 800);
  assert_string_equal(found.facts.name, "NVIDIA A100");
  assert_int_equal(find(&f, 1, "80-virtual,120-real", &found, &line), WEFT_OK);
  assert_false(found.compiles_ptx);
  assert_int_equal(found.facts.capability, 120);
  f.cuda = 0; /* it does not say: the code loads, or the driver says why not */
  assert_int_equal(find(&f, 0, "80-virtual", &found, &line), WEFT_OK);
}

/* A card whose memory is the host's: what the system would give up counts as free, and no more than there is. */
static void one_memory_is_counted_once(void **state) {
  static const struct {
    bool one;
    uint64_t host, free;
  } table[] = {{false, 790, 700}, {true, 790, 790}, {true, 4000, 800}, {true, 100, 700}, {true, 0, 700}};
  (void)state;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    card_found found;
    weft_error line;
    fake_driver f = make_driver();
    f.card[0].one_memory = table[i].one;
    f.host_free = table[i].host;
    assert_int_equal(find(&f, 0, "80", &found, &line), WEFT_OK);
    assert_int_equal(found.free_bytes, table[i].free);
    assert_int_equal(found.all_bytes, 800);
  }
}

static void what_is_compiled_is_said(void **state) {
  static const card_search search = {1, NULL, module, "80-virtual", 13000};
  static const struct {
    card_cache cache;
    const char *when;
  } table[] = {{{NULL, NULL}, "once: it keeps the code in ~/.nv/ComputeCache"},
               {{"0", ""}, "once: it keeps the code in ~/.nv/ComputeCache"},
               {{NULL, "/var/cache/nv"}, "once: it keeps the code in /var/cache/nv"},
               {{"1", "/var/cache/nv"}, "in every start, since CUDA_CACHE_DISABLE is 1"}};
  const card_found found = {.facts = {.name = "NVIDIA L4", .capability = 89}};
  (void)state;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    char line[512], wanted[512];
    card_tell_compiles(&search, &found, &table[i].cache, line, sizeof line);
    (void)snprintf(
        wanted, sizeof wanted,
        "cuda: card 1: libweft-cuda-portable.so has PTX for NVIDIA L4 (sm_89): the driver compiles each kernel "
        "when it is first used, so first answers are late, %s; a build with -DWEFT_CUDA_ARCHITECTURES=89-real "
        "has the code",
        table[i].when);
    assert_string_equal(line, wanted);
    for (size_t n = 1; n < sizeof line; n += 7) card_tell_compiles(&search, &found, &table[i].cache, line, n);
  }
}

static void what_is_hidden_or_not_there(void **state) {
  fake_driver none = make_driver(), hidden, one, slice, gone = make_driver();
  (void)state;
  none.n_cards = 0;
  hidden = none;
  refused(none, 0, "80", WEFT_E_UNSUPPORTED,
          "backend 'cuda': no usable NVIDIA card: none was found; nvidia-smi -L lists cards");
  none.fail_call = 1, none.fails_as = CARD_NONE;
  refused(none, 0, "80", WEFT_E_UNSUPPORTED,
          "backend 'cuda': no usable NVIDIA card: in the driver's words; nvidia-smi -L lists cards");
  static const char *const odd[] = {"", "-1", "GPU-0", "0,0"};
  for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
    char line[512];
    hidden.calls.visible = odd[i];
    (void)snprintf(
        line, sizeof line,
        "backend 'cuda': CUDA_VISIBLE_DEVICES is '%s', which leaves no card (none was found): unset it, name "
        "cards that nvidia-smi -L lists, or use --backend cpu",
        odd[i]);
    refused(hidden, 0, "80", WEFT_E_UNSUPPORTED, line);
  }
  one = make_driver();
  one.n_cards = 1, one.calls.visible = "GPU-5a";
  refused(
      one, 1, "80", WEFT_E_UNSUPPORTED,
      "backend 'cuda': there is no card 1; the last one is 0; CUDA_VISIBLE_DEVICES is 'GPU-5a', and cards are counted "
      "among those that it names");
  slice = one;
  slice.calls.visible = NULL;
  (void)snprintf(slice.card[0].name, sizeof slice.card[0].name, "NVIDIA A100-SXM4-80GB MIG 1g.10gb");
  refused(slice, 1, "80", WEFT_E_UNSUPPORTED,
          "backend 'cuda': there is no card 1; the last one is 0; of slices of cards (MIG) a program sees one");
  gone.fail_call = 1;
  refused(gone, 0, "80", WEFT_E_UNSUPPORTED,
          "backend 'cuda': no usable NVIDIA card: in the driver's words; nvidia-smi -L lists cards");
}

static void what_is_too_old(void **state) {
  fake_driver f = make_driver();
  (void)state;
  refused(f, 2, "80-virtual", WEFT_E_UNSUPPORTED,
          "backend 'cuda': there are no kernels for NVIDIA GeForce RTX 2080 (sm_75); there is hopper (sm_90), portable "
          "(sm_80 and later): use --backend cpu; card 0, NVIDIA A100, would do: --devices 0");
  refused(f, 0, "120-real", WEFT_E_UNSUPPORTED,
          "backend 'cuda': libweft-cuda-portable.so was built for the architectures 120-real, which have no code for "
          "NVIDIA A100 (sm_80): build it with -DWEFT_CUDA_ARCHITECTURES=80-real, or use --backend cpu; card 1, NVIDIA "
          "GeForce RTX "
          "5060 Ti, would do: --devices 1");
  f.cuda = 12080;
  static const char old[] =
      "backend 'cuda': the NVIDIA driver is of CUDA 12.8, and libweft-cuda-portable.so needs one of CUDA 13.0 or "
      "later: "
      "update the driver, build with the toolkit of CUDA 12.8, or use --backend cpu";
  refused(f, 0, "80-real", WEFT_E_UNSUPPORTED, old);
  f.fail_call = 1, f.fails_as = CARD_OLD_DRIVER; /* the toolkit's library says so before any card is seen */
  refused(f, 0, "80-real", WEFT_E_UNSUPPORTED, old);
  f.cuda = 0, f.calls.visible = "0"; /* and the same where it finds no library */
  refused(
      f, 0, "80-real", WEFT_E_UNSUPPORTED,
      "backend 'cuda': the NVIDIA driver is here, and its library libcuda.so.1 is not to be found: install it in the "
      "driver's version (Debian: libcuda1), in a container ask for the capability compute, or use --backend cpu");
}

static void what_is_taken_or_gone(void **state) {
  fake_driver f = make_driver();
  (void)state;
  f.card[0].prohibited = true;
  refused(
      f, 0, "80", WEFT_E_UNSUPPORTED,
      "backend 'cuda': card 0 NVIDIA A100 is in the compute mode that lets no program in: run nvidia-smi -c DEFAULT as "
      "root, or name another card (--devices)");
  f.card[0].prohibited = false;
  f.fail_call = 3, f.fails_as = CARD_BUSY;
  refused(
      f, 0, "80", WEFT_E_UNSUPPORTED,
      "backend 'cuda': card 0 NVIDIA A100 is busy (in the driver's words): another program has it for itself, or its "
      "mode lets none in: end that program, run nvidia-smi -c DEFAULT as root, or name another card (--devices)");
  static const char *const at[] = {"asked for its properties", "choosing it", "asked for its memory"};
  f.fails_as = CARD_NO_ANSWER;
  for (uint32_t i = 0; i < 3; i++) {
    char line[512];
    f.fail_call = 2 + i;
    (void)snprintf(line, sizeof line,
                   "backend 'cuda': card 0%s did not answer (%s: in the driver's words): look at nvidia-smi and at the "
                   "kernel's log (NVRM, Xid), name another card (--devices), or use --backend cpu",
                   i == 0 ? "" : " NVIDIA A100", at[i]);
    refused(f, 0, "80", WEFT_E_DEVICE, line);
  }
}

/* ---- the cpu takes over, and never in silence ---- */

static fake_driver driver;
static weft_status behind; /* what happens to a card that was found: memory, kernels that do not load */

static bool has_driver(void) {
  return true;
}

static weft_status open_card(const weft_device_config *config, weft_device **out, weft_error *error) {
  card_found found;
  weft_device_config as_ref = *config;
  weft_status status = find(&driver, config->index, "80", &found, error);
  if (status == WEFT_OK && behind != WEFT_OK) status = weft_fail(error, behind, "backend 'cuda': card 0 is full");
  as_ref.backend = "ref"; /* stands for a card */
  return status == WEFT_OK ? weft_device_open(&as_ref, out, error) : status;
}

static weft_status open_cpu(const weft_device_config *config, weft_device **out, weft_error *error) {
  weft_device_config cpu = *config;
  cpu.backend = "cpu";
  return weft_device_open(&cpu, out, error);
}

/* What the log says while a config without a backend is opened. */
static weft_device *open_best(const device_openers *openers, char *said, size_t n, weft_error *why) {
  weft_device_config config = {.n_threads = 1};
  weft_device *device = NULL;
  int kept = dup(STDERR_FILENO), file = memfd_create("log", MFD_CLOEXEC);
  assert_true(kept >= 0 && file >= 0 && dup2(file, STDERR_FILENO) >= 0);
  weft_status status = device_open_best(openers, &config, &device, why);
  assert_true(dup2(kept, STDERR_FILENO) >= 0);
  ssize_t n_said = pread(file, said, n - 1, 0);
  said[n_said < 0 ? 0 : n_said] = 0;
  assert_int_equal(close(kept) + close(file), 0);
  assert_int_equal(status, WEFT_OK);
  return device;
}

/* One line, a warning, that says why. */
static void check_warning(const char *said, const char *why) {
  assert_true(why[0] != 0);
  assert_non_null(strstr(said, why));
  assert_non_null(strstr(said, "warning: "));
  assert_non_null(strstr(said, "; using the cpu"));
  assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
}

static void the_cpu_takes_over_with_a_line(void **state) {
  static const device_openers openers = {has_driver, open_card, open_cpu};
  static const card_answer answers[] = {CARD_NONE, CARD_OLD_DRIVER, CARD_BUSY, CARD_NO_ANSWER};
  char said[2048];
  weft_error why;
  (void)state;
  enum { CALLS = 4 }; /* count, describe, enter, memory; then what is behind */
  for (uint32_t call = 1; call <= CALLS + 2; call++) {
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
      driver = make_driver();
      driver.fail_call = call, driver.fails_as = answers[i];
      behind = call == CALLS + 1 ? WEFT_E_NO_MEMORY : WEFT_OK;
      weft_device *device = open_best(&openers, said, sizeof said, &why);
      bool serves = call == CALLS + 2;
      assert_string_equal(weft_device_get_info(device)->backend, serves ? "ref" : "cpu");
      if (serves)
        assert_string_equal(said, "");
      else
        check_warning(said, why.text);
      weft_device_close(device);
    }
  }
}

/* ---- modules that are no modules ---- */

static char folder[64]; /* ends in a slash */

static weft_status open_from_folder(const weft_device_config *config, weft_device **out, weft_error *error) {
  return cuda_module_open_from(folder, config, out, error);
}

/* The file of a name in the folder: with these bytes, or a copy of another file; neither: it goes. */
static void put_file(const char *name, const char *bytes, const char *like) {
  char path[128], piece[4096];
  (void)snprintf(path, sizeof path, "%s%s", folder, name);
  (void)unlink(path);
  if (bytes == NULL && like == NULL) return;
  FILE *to = fopen(path, "wbe"), *from = like == NULL ? NULL : fopen(like, "rbe");
  assert_true(to != NULL && (from != NULL || like == NULL));
  if (bytes != NULL) (void)fputs(bytes, to);
  for (size_t n; from != NULL && (n = fread(piece, 1, sizeof piece, from)) > 0;)
    assert_int_equal(fwrite(piece, 1, n, to), n);
  if (from != NULL) (void)fclose(from);
  assert_int_equal(fclose(to), 0);
}

static void a_module_that_is_none(void **state) {
  static const device_openers openers = {has_driver, open_from_folder, open_cpu};
  static const char first[] = "libweft-cuda.so", other[] = "libweft-cuda-portable.so";
  char said[2048], alien_line[128];
  weft_error why;
  Dl_info library;
  (void)state;
  assert_true(dladdr((const void *)(uintptr_t)&_cmocka_run_group_tests, &library) != 0);
  (void)snprintf(folder, sizeof folder, "/tmp/weft-modules-XXXXXX");
  assert_non_null(mkdtemp(folder));
  folder[strlen(folder)] = '/';
  (void)snprintf(alien_line, sizeof alien_line, "backend 'cuda': %s is not weft's", other);
  for (uint32_t i = 0; i < 4; i++) {
    const char *const lines[] = {"is neither beside the program nor in ", "backend 'cuda': /tmp/weft-modules-",
                                 alien_line, "libweft-cuda.so is not weft's"};
    if (i == 1) put_file(first, "no module", NULL);
    if (i == 2) put_file(first, NULL, NULL), put_file(other, NULL, library.dli_fname);
    if (i == 3) put_file(other, NULL, NULL), put_file(first, NULL, library.dli_fname);
    weft_device *device = open_best(&openers, said, sizeof said, &why);
    assert_string_equal(weft_device_get_info(device)->backend, "cpu");
    if (strstr(why.text, lines[i]) == NULL) fail_msg("the line is: %s", why.text);
    check_warning(said, why.text);
    weft_device_close(device);
  }
  put_file(first, NULL, NULL);
  assert_int_equal(rmdir(folder), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_generation_gets_its_card),
      cmocka_unit_test(one_memory_is_counted_once),
      cmocka_unit_test(what_is_compiled_is_said),
      cmocka_unit_test(what_is_hidden_or_not_there),
      cmocka_unit_test(what_is_too_old),
      cmocka_unit_test(what_is_taken_or_gone),
      cmocka_unit_test(the_cpu_takes_over_with_a_line),
      cmocka_unit_test(a_module_that_is_none),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
