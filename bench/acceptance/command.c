/* SPDX-License-Identifier: MIT */
/* weft test-model: is this model file sound, and does weft answer with it? The run that somebody makes first who has a
 * file that nobody here has seen. 0: all is good, or only worth a look; 1: something is bad. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench/acceptance/acceptance.h"

static void run_parts(acceptance *a) {
  bool served = acceptance_check_file(a);
  if (a->gguf == NULL) return;
  acceptance_check_tokenizer(a);
  acceptance_check_template(a);
  if (!served) {
    acceptance_add(&a->report, "loading", ACCEPTANCE_LEFT_OUT, NULL, "weft does not serve this file");
    return;
  }
  acceptance_check_answers(a);
  acceptance_check_prediction(a);
}

/* Where -o says, or with --json to standard output. */
static int write_report(acceptance *a) {
  const weft_config *c = &a->config->product;
  char *json = acceptance_json(&a->report);
  int code = json == NULL ? weft_cli_fail(WEFT_EXIT_RUNTIME, "no memory for the report") : 0;
  if (code == 0 && c->json) (void)printf("%s\n", json);
  if (code == 0 && c->output != NULL) {
    FILE *file = fopen(c->output, "wb");
    bool written = file != NULL && fprintf(file, "%s\n", json) > 0;
    if (file != NULL) written = fclose(file) == 0 && written;
    if (!written) code = weft_cli_fail(WEFT_EXIT_RUNTIME, "-o %s: %s", c->output, strerror(errno));
  }
  free(json); /* of jansson */
  return code;
}

static void print_end(const acceptance *a) {
  const acceptance_report *r = &a->report;
  static const char *const meaning[ACCEPTANCE_VERDICTS] = {"nothing is wrong with this file that weft can see", "",
                                                           "nothing is wrong for certain: read the lines marked look",
                                                           "something is wrong: read the lines marked bad"};
  (void)printf("\n%s: %s (%" PRIu32 " good, %" PRIu32 " to look at, %" PRIu32 " bad, %" PRIu32 " left out)\n",
               acceptance_word(acceptance_result(r)), meaning[acceptance_result(r)], r->n[ACCEPTANCE_GOOD],
               r->n[ACCEPTANCE_LOOK], r->n[ACCEPTANCE_BAD], r->n[ACCEPTANCE_LEFT_OUT]);
  if (a->config->product.output != NULL) (void)printf("the report to send in: %s\n", a->config->product.output);
}

int weft_lab_test_model(const weft_config *product) {
  acceptance a = {.config = weft_lab_of(product)};
  weft_error error = {{0}};
  if (product->models.n != 1) return weft_cli_fail(WEFT_EXIT_USAGE, "test-model: name one GGUF file with -m FILE");
  if (a.config->text != NULL) {
    a.text = weft_cli_read(a.config->text, &a.n_text);
    if (a.text == NULL) return WEFT_EXIT_LOAD;
  }
  int code = 0;
  if (acceptance_report_open(&a.report, product->json, product->models.item[0], &error) != WEFT_OK) {
    code = weft_cli_fail(WEFT_EXIT_RUNTIME, "%s", error.text);
  } else {
    run_parts(&a);
    if (!product->json) print_end(&a);
    code = write_report(&a);
    if (code == 0 && acceptance_result(&a.report) == ACCEPTANCE_BAD) code = WEFT_EXIT_FAILED;
  }
  acceptance_report_close(&a.report);
  weft_tokenizer_close(a.tokenizer);
  weft_gguf_close(a.gguf);
  weft_free(a.text);
  return code;
}
