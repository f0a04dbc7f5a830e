/* SPDX-License-Identifier: MIT */
/* What becomes of a card without code, of a module of another build and of a config that names no backend: the lines,
 * and what serves instead. No card is needed: the choice is a function of the card's capability and of what the
 * module has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "kernels/card_sets.h"
#include "kernels/cuda/module.h"

/* ---- machine code ---- */

static void code_runs_where_its_architecture_says(void **state) {
  (void)state;
  static const struct {
    const char *architectures;
    uint32_t capability;
    bool runs;
  } table[] = {
      {"90a-real", 90, true},
      {"90a-real", 80, false},
      {"90a-real", 100, false},
      {"90a-real", 89, false},
      {"90-real", 90, true},
      {"90-real", 100, false},
      {"80-real", 86, true},
      {"86-real", 80, false},
      {"80-real", 90, false},
      {"80", 90, true},
      {"80", 75, false},
      {"80-virtual", 120, true},
      {"90a", 100, false},
      {"90a-virtual", 90, true},
      {"100f-real", 103, true},
      {"100f-real", 120, false},
      {"100f", 120, false},
      {"80-real,90a-real", 90, true},
      {"80-real,90a-real", 89, true},
      {"80-real,90a-real", 100, false},
      {"", 90, false},
      {"native", 90, false},
      {"90b-real", 90, false},
      {"9", 90, false},
      {",90a-real,", 90, true},
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    if (card_has_code(table[i].architectures, table[i].capability) != table[i].runs)
      fail_msg("'%s' on a card of %u", table[i].architectures, table[i].capability);
  }
}

/* What the data sheets say of products, over multiprocessors and clock. */
static void products_are_those_of_the_data_sheets(void **state) {
  (void)state;
  static const struct {
    const char *name;
    uint32_t capability, multiprocessors;
    double hertz, products; /* a second */
  } table[] = {
      {"NVIDIA A100-SXM4-80GB", 80, 108, 1.41e9, 312e12},
      {"NVIDIA GeForce RTX 3090", 86, 82, 1.695e9, 71e12},
      {"NVIDIA RTX A6000", 86, 84, 1.8e9, 155e12},
      {"NVIDIA GeForce RTX 4090", 89, 128, 2.52e9, 165e12},
      {"NVIDIA L40S", 89, 142, 2.52e9, 366e12},
      {"NVIDIA H200", 90, 132, 1.83e9, 989e12},
      {"NVIDIA GeForce RTX 5090", 120, 170, 2.407e9, 209e12},
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    double products =
        2.0 * card_products_of(table[i].capability, table[i].name) * table[i].multiprocessors * table[i].hertz;
    if (products < 0.97 * table[i].products || products > 1.03 * table[i].products)
      fail_msg("%s: %g", table[i].name, products);
  }
  assert_int_equal(card_products_of(75, "NVIDIA GeForce RTX 2080"), 0);
}

static void ptx_is_no_machine_code(void **state) {
  (void)state;
  assert_true(card_has_machine_code("90a-real,80-virtual", 90));
  assert_false(card_has_machine_code("80-virtual", 80)); /* the driver compiles it */
  assert_true(card_has_machine_code("80", 86));
  assert_false(card_has_machine_code("80", 90));
  assert_true(card_has_machine_code("80-virtual,86-real", 89));
  assert_false(card_has_machine_code("90a-virtual", 90));
}

/* What -DWEFT_CUDA_ARCHITECTURES=all asks for. */
static void all_is_code_for_every_card(void **state) {
  (void)state;
  static const uint32_t with_code[] = {80, 86, 87, 89, 90, 100, 103, 120, 121}, by_ptx[] = {110, 130};
  for (size_t i = 0; i < sizeof with_code / sizeof *with_code; i++)
    assert_true(card_has_machine_code(WEFT_CARDS_ALL, with_code[i]));
  for (size_t i = 0; i < sizeof by_ptx / sizeof *by_ptx; i++) {
    assert_true(card_has_code(WEFT_CARDS_ALL, by_ptx[i]));
    assert_false(card_has_machine_code(WEFT_CARDS_ALL, by_ptx[i]));
  }
  assert_false(card_has_code(WEFT_CARDS_ALL, 75));
}

/* ---- drivers ---- */

static void an_old_driver_is_refused_with_what_to_do(void **state) {
  (void)state;
  static const char module[] = "libweft-cuda-portable.so";
  weft_error line;
  assert_int_equal(card_check_driver(module, 13000, 13000, false, &line), WEFT_OK);
  assert_int_equal(card_check_driver(module, 13010, 13000, false, &line), WEFT_OK);
  assert_int_equal(card_check_driver(module, 14000, 13000, true, &line), WEFT_OK);
  assert_int_equal(card_check_driver(module, 13000, 13020, true, &line), WEFT_OK); /* of the same major version */
  assert_int_equal(card_check_driver(module, 13000, 13020, false, &line), WEFT_E_UNSUPPORTED);
  assert_string_equal(
      line.text,
      "backend 'cuda': the NVIDIA driver is of CUDA 13.0, and libweft-cuda-portable.so needs one of "
      "CUDA 13.2 or later, since it has to compile PTX for this card: update the driver, build with the "
      "toolkit of CUDA 13.0, or use --backend cpu");
  assert_int_equal(card_check_driver(module, 12080, 13020, true, &line), WEFT_E_UNSUPPORTED);
  assert_string_equal(
      line.text,
      "backend 'cuda': the NVIDIA driver is of CUDA 12.8, and libweft-cuda-portable.so needs one of "
      "CUDA 13.0 or later: update the driver, build with the toolkit of CUDA 12.8, or use --backend cpu");
}

/* ---- sets ---- */

/* What the module `module`, built for `architectures`, says of a card: the set's name, or NULL with the line in
 * `line`. */
static const char *choose(const char *module, const char *architectures, uint32_t capability, const char *set,
                          weft_error *line) {
  card_wish wish = {"NVIDIA Card", capability, module, architectures, set};
  uint32_t chosen = 99;
  weft_status status = card_choose_set(&wish, card_sets, CARD_SETS, &chosen, line);
  assert_true(status == WEFT_OK || status == WEFT_E_UNSUPPORTED);
  return status == WEFT_OK ? card_sets[chosen].name : NULL;
}

static const char first[] = "libweft-cuda.so", second[] = "libweft-cuda-portable.so";

static void a_module_takes_the_cards_that_its_set_fits(void **state) {
  (void)state;
  static const uint32_t later[] = {80, 86, 87, 89, 90, 100, 103, 120, 121};
  weft_error line;
  assert_string_equal(choose(first, "90a-real", 90, NULL, &line), "hopper");
  assert_string_equal(choose(first, "90a-real", 90, "hopper", &line), "hopper");
  for (size_t i = 0; i < sizeof later / sizeof *later; i++) {
    if (later[i] != 90) assert_null(choose(first, "90a-real", later[i], NULL, &line));
    assert_string_equal(choose(second, "80-virtual", later[i], NULL, &line), "portable");
  }
  assert_string_equal(choose(second, "80-virtual", 90, "portable", &line), "portable");
  assert_string_equal(choose(second, "80-virtual", 90, "portable@86,down=1", &line), "portable"); /* held to a family */
  assert_string_equal(choose(second, "86-real", 89, NULL, &line), "portable");
  assert_null(choose(first, "90a-real", 90, "portable", &line)); /* the other module is asked next */
  assert_null(choose(second, "80-virtual", 75, NULL, &line));
}

static void a_refusal_says_what_there_is(void **state) {
  (void)state;
  weft_error line;
  assert_null(choose(first, "90a-real", 86, NULL, &line));
  assert_string_equal(line.text,
                      "backend 'cuda': kernel set 'portable', for NVIDIA Card (sm_86), is in libweft-cuda-portable.so, "
                      "which is not there: build it with -DWEFT_CUDA_ARCHITECTURES=86-real, or use --backend cpu");
  assert_null(choose(second, "86-real", 80, NULL, &line));
  assert_string_equal(line.text,
                      "backend 'cuda': libweft-cuda-portable.so was built for the architectures 86-real, which have no "
                      "code for NVIDIA Card (sm_80): build it with -DWEFT_CUDA_ARCHITECTURES=80-real, or use --backend "
                      "cpu");
  assert_null(choose(second, "80-virtual", 90, "hopper", &line));
  assert_non_null(strstr(line.text, "'hopper', for NVIDIA Card (sm_90), is in libweft-cuda.so"));
  assert_non_null(strstr(line.text, "-DWEFT_CUDA_ARCHITECTURES=90a-real"));
  assert_null(choose(second, "80-virtual", 80, "hopper", &line));
  assert_non_null(strstr(line.text, "kernel set 'hopper' is not for NVIDIA Card (sm_80)"));
  assert_null(choose(first, "90a-real", 90, "hopper@86", &line)); /* Hopper's set has no families */
  assert_non_null(strstr(line.text, "kernel set 'hopper@86' is unknown"));
  assert_null(choose(second, "80-virtual", 90, "portables", &line));
  assert_non_null(strstr(line.text, "kernel set 'portables' is unknown"));
  assert_null(choose(second, "80-virtual", 75, NULL, &line));
  assert_string_equal(line.text,
                      "backend 'cuda': there are no kernels for NVIDIA Card (sm_75); there is hopper (sm_90), portable "
                      "(sm_80 and later): use --backend cpu");
  assert_null(choose(first, "90a-real", 90, "turing", &line));
  assert_non_null(
      strstr(line.text, "kernel set 'turing' is unknown; there is hopper (sm_90), portable (sm_80 and later)"));
  assert_null(choose(first, "90a-real", 80, NULL, NULL)); /* nobody wants the line */
}

static void a_list_of_ops_has_whole_names(void **state) {
  (void)state;
  assert_true(card_set_has_op(" matmul experts soft ", "matmul"));
  assert_true(card_set_has_op(" matmul experts soft ", "soft"));
  assert_false(card_set_has_op(" head_stats head_rows ", "head"));
  assert_false(card_set_has_op(" head_rows ", "rows"));
}

/* ---- the module's terms ---- */

static void every_struct_of_both_sides_is_compared(void **state) {
  (void)state;
  weft_cuda_module_terms ours = weft_cuda_module_our_terms(), other = ours;
  assert_null(weft_cuda_module_compare(&ours, &other));
  other.version[0] ^= 1;
  assert_string_equal(weft_cuda_module_compare(&ours, &other), "the version");
#define X(op)                                                       \
  other = ours, other.op##_args_bytes += 8;                         \
  assert_int_equal(ours.op##_args_bytes, sizeof(weft_##op##_args)); \
  assert_string_equal(weft_cuda_module_compare(&ours, &other), "weft_" #op "_args");
  WEFT_OPS(X)
#undef X
#define X(name)                                      \
  other = ours, other.name##_bytes -= 1;             \
  assert_int_equal(ours.name##_bytes, sizeof(name)); \
  assert_string_equal(weft_cuda_module_compare(&ours, &other), #name);
  WEFT_MODULE_STRUCTS(X)
#undef X
}

/* ---- a config that names no backend ---- */

static bool has_card, card_opens;
static uint32_t n_cards_asked;

static bool tell_has_card(void) {
  return has_card;
}

static weft_status open_card(const weft_device_config *config, weft_device **out, weft_error *error) {
  weft_device_config cpu = *config;
  cpu.backend = "ref"; /* stands for a card */
  n_cards_asked++;
  return card_opens ? weft_device_open(&cpu, out, error)
                    : weft_fail(error, WEFT_E_UNSUPPORTED, "no code for this card");
}

static weft_status open_cpu(const weft_device_config *config, weft_device **out, weft_error *error) {
  weft_device_config cpu = *config;
  cpu.backend = "cpu";
  return weft_device_open(&cpu, out, error);
}

static void expect_backend(const char *name, uint32_t asked, const char *why) {
  static const device_openers openers = {tell_has_card, open_card, open_cpu};
  weft_device_config config = {.n_threads = 1};
  weft_device *device = NULL;
  weft_error error = {{0}};
  n_cards_asked = 0;
  assert_int_equal(device_open_best(&openers, &config, &device, &error), WEFT_OK);
  assert_string_equal(error.text, why);
  assert_string_equal(weft_device_get_info(device)->backend, name);
  assert_int_equal(n_cards_asked, asked);
  weft_device_close(device);
}

static void the_cpu_serves_where_the_card_cannot(void **state) {
  (void)state;
  weft_log_set_level((weft_log_level)-1); /* the warning is the point of it, and no fault of this test */
  has_card = false, card_opens = true;
  expect_backend("cpu", 0, "no NVIDIA driver is visible here");
  has_card = true;
  expect_backend("ref", 1, "there is a card");
  card_opens = false;
  expect_backend("cpu", 1, "no code for this card");
}

/* ---- paths ---- */

static void each_op_has_one_path(void **state) {
  (void)state;
  static const char *const backends[] = {"cpu", "ref"};
  char paths[WEFT_PATHS_MAX];
  for (int i = 0; i < 2; i++) {
    for (int forced = 0; forced < 2; forced++) {
      weft_device_config config = {.backend = backends[i], .n_threads = 1, .isa = forced ? "portable" : NULL};
      weft_device *device = NULL;
      assert_int_equal(weft_device_open(&config, &device, NULL), WEFT_OK);
      weft_device_paths(device, paths, sizeof paths);
      assert_true(strlen(paths) + 1 < sizeof paths);
      assert_non_null(strstr(paths, forced && i == 0 ? "portable (forced):" : "(default):"));
#define X(op)                              \
  assert_non_null(strstr(paths, " " #op)); \
  assert_null(strstr(strstr(paths, " " #op) + 1, " " #op ","));
      WEFT_OPS(X)
#undef X
      weft_device_paths(device, paths, 20); /* too short for all: cut, and ended */
      assert_int_equal(strlen(paths), 19);
      weft_device_close(device);
    }
  }
  char lines[3 * WEFT_PATHS_MAX];
  weft_device_list_backends(lines, sizeof lines);
  assert_ptr_equal(strstr(lines, "cpu   "), lines);
  assert_non_null(strstr(lines, "\ncuda  "));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(code_runs_where_its_architecture_says),
      cmocka_unit_test(products_are_those_of_the_data_sheets),
      cmocka_unit_test(ptx_is_no_machine_code),
      cmocka_unit_test(all_is_code_for_every_card),
      cmocka_unit_test(an_old_driver_is_refused_with_what_to_do),
      cmocka_unit_test(a_module_takes_the_cards_that_its_set_fits),
      cmocka_unit_test(a_refusal_says_what_there_is),
      cmocka_unit_test(a_list_of_ops_has_whole_names),
      cmocka_unit_test(every_struct_of_both_sides_is_compared),
      cmocka_unit_test(the_cpu_serves_where_the_card_cannot),
      cmocka_unit_test(each_op_has_one_path),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
