/* SPDX-License-Identifier: MIT */
/* The two forms of the output matrix of a model with canvases (kernels/canvas_head.h). */
#include "kernels/canvas_head.h"

#include "tests/kernels/head.h"

static weft_weight upload_head(weft_device *device, const stored *s) {
  weft_weight weight = s->shape;
  const unsigned uses = (unsigned)WEFT_USE_EMBED | WEFT_USE_CANVASES;
  assert_int_equal(weft_device_weight(device, &weight, s->bytes, uses, NULL), WEFT_OK);
  return weight;
}

/* The plain form of an output matrix gives the numbers of the file, the form for canvases those of a product of 8 bits,
 * where the type has one. */
static void check_forms_of_ref(weft_device *plain, weft_device *eight, const head_case *c, const stored *s,
                               const inputs *in) {
  uint8_t bad[ROWS];
  head_case without_cap = *c;
  without_cap.cap = 0.0f;
  const bool has_two = c->type != WEFT_TYPE_F32 && c->type != WEFT_TYPE_IQ4_NL;
  weft_weight file = upload(plain, s), head = upload_head(eight, s), form = weft_canvas_head(&head);
  weft_weight product = upload(eight, s);
  assert_int_equal(form.layout != head.layout, has_two);
  buffer want = run_rows(plain, &without_cap, &file, in->h, 3, bad);
  buffer got = run_rows(eight, &without_cap, &head, in->h, 3, bad);
  assert_same("head_rows", "ref", "the file's numbers", got.data, want.data, got.n_bytes);
  buffer_free(&got);
  weft_matmul_args args = {.x = in->h, .n_rows = 3, .n_weights = 1, .x_stride = c->n_in};
  args.weight[0] = &product;
  args.y[0] = want.data;
  args.y_stride[0] = c->n_vocab;
  RUN_OP(matmul, eight, &args);
  got = run_rows(eight, &without_cap, &form, in->h, 3, bad);
  assert_same("head_rows", "ref", "a product of 8 bits", got.data, want.data, got.n_bytes);
  buffer_free(&got);
  buffer_free(&want);
  weft_device_weight_free(plain, &file);
  weft_device_weight_free(eight, &head);
  weft_device_weight_free(eight, &product);
}

/* A card has ref's logits in the form for canvases, few rows and many have the same bits, and the soft rows are those
 * of the op that is given these logits and the plain form. */
static void check_forms_of_card(weft_device *eight, const head_case *c, const stored *s, inputs *in,
                                weft_device *device, const char *name) {
  enum { MANY = ROWS_MAX - 3 };
  uint8_t bad[MANY];
  head_case without_cap = *c;
  without_cap.cap = 0.0f;
  weft_weight on_ref = upload_head(eight, s), ref_form = weft_canvas_head(&on_ref);
  weft_weight head = upload_head(device, s), form = weft_canvas_head(&head);
  memset(in->allowed, 0, sizeof in->allowed);
  buffer want = run_rows(eight, &without_cap, &ref_form, in->h, ROWS, bad);
  buffer got = run_rows(device, &without_cap, &form, in->h, ROWS, bad);
  if (form.layout != head.layout) assert_same("head_rows", name, "ref's", got.data, want.data, got.n_bytes);
  buffer_free(&want);
  buffer_free(&got);
  outputs few = run_stats(device, c, &form, in, 0, ROWS, NULL, true, NULL);
  outputs many = run_stats(device, c, &form, in, 0, MANY, NULL, true, NULL);
  for (uint32_t first = 0; first < MANY; first += ROWS) {
    uint32_t n = MANY - first < ROWS ? MANY - first : ROWS;
    assert_outputs(name, &many, first, &few, n, c->n_in, true);
  }
  buffer logits = run_rows(device, c, &form, in->h, ROWS, bad), soft = buffer_new((size_t)ROWS * c->n_in * 4);
  weft_soft_args args = {logits.data, in->temperature, &head, soft.data, ROWS, c->n_vocab, c->n_in, 1.5f, NULL, 0};
  RUN_OP(soft, device, &args);
  assert_same("soft", name, "head_stats' soft", soft.data, few.soft.data, soft.n_bytes);
  buffer_free(&soft);
  buffer_free(&logits);
  free_outputs(&few);
  free_outputs(&many);
  weft_device_weight_free(device, &head);
  weft_device_weight_free(eight, &on_ref);
}

static void test_canvas_forms(void **state) {
  static const uint32_t which[] = {0, 1, 2, 4, 6, 8, 10, 11, 18};
  fixture *f = *state;
  const weft_device_config config = {.backend = "ref", .products = 8};
  weft_device *eight = NULL;
  devices cards = {0};
  assert_int_equal(weft_device_open(&config, &eight, NULL), WEFT_OK);
  add_eight(&cards);
  for (size_t i = 0; i < sizeof which / sizeof *which; i++) {
    const head_case *c = &cases[which[i]];
    stored s = stored_new(c->type, 1, c->n_vocab, c->n_in, 3600 + i);
    inputs *in = make_inputs(c, 3700 + i);
    check_forms_of_ref(f->all.ref, eight, c, &s, in);
    for (uint32_t d = 0; d < cards.n; d++) check_forms_of_card(eight, c, &s, in, cards.cpu[d], cards.name[d]);
    memory_free(in);
    stored_free(&s);
  }
  for (uint32_t d = 0; d < cards.n; d++) weft_device_close(cards.cpu[d]);
  weft_device_close(eight);
}

/* So many tokens that integers are read for few hundred rows, and rows of the same tokens follow one another. */
static void test_wide_canvases(void **state) {
  enum { N_VOCAB = 66000, N_IN = 256, MANY = 400 };
  static const uint32_t n_rows[] = {1, 129, 193, MANY};
  static const head_case c = {WEFT_TYPE_Q4_K, N_VOCAB, N_IN, 30.0f, 0.1f};
  (void)state;
  if (memory_home == NULL || is_portable(memory_home)) return; /* only Hopper's set keeps integers */
  devices cards = {0};
  add_eight(&cards);
  uint8_t bad[MANY];
  stored s = stored_new(c.type, 1, N_VOCAB, N_IN, 3800);
  float *h = memory_new((size_t)MANY * N_IN, sizeof *h);
  fill_normal(h, (size_t)MANY * N_IN, 3801);
  weft_weight head[2], form[2];
  for (uint32_t d = 0; d < 2; d++) {
    head[d] = upload_head(cards.cpu[d], &s);
    form[d] = weft_canvas_head(&head[d]);
  }
  for (size_t i = 0; i < sizeof n_rows / sizeof *n_rows; i++) {
    buffer codes = run_rows(cards.cpu[0], &c, &form[0], h, n_rows[i], bad);
    buffer integers = run_rows(cards.cpu[1], &c, &form[1], h, n_rows[i], bad);
    assert_same("head_rows", "integers", "a logit from codes", integers.data, codes.data, codes.n_bytes);
    buffer_free(&codes);
    buffer_free(&integers);
  }
  for (uint32_t d = 0; d < 2; d++) {
    weft_device_weight_free(cards.cpu[d], &head[d]);
    weft_device_close(cards.cpu[d]);
  }
  stored_free(&s);
  memory_free(h);
}

int main(int argc, char **argv) {
  take_arguments(argc, argv);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_canvas_forms),
      cmocka_unit_test(test_wide_canvases),
  };
  return cmocka_run_group_tests(tests, setup_fixture, teardown_fixture);
}
