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

/* Soft rows of n rows of logits, by the op. */
static buffer soft_of(weft_device *device, const weft_weight *weight, const buffer *logits, const float *temperature,
                      uint32_t n) {
  buffer soft = buffer_new((size_t)n * weight->n_in * 4);
  weft_soft_args args = {logits->data, temperature, weight, soft.data, n, weight->n_out, weight->n_in, 1.5f, NULL, 0};
  RUN_OP(soft, device, &args);
  return soft;
}

static double largest_value(const stored *s) {
  double most = 0.0;
  for (uint64_t i = 0; i < (uint64_t)s->shape.n_out * s->shape.n_in; i++) most = fmax(most, fabs((double)s->value[i]));
  return most;
}

/* On ref: a row of 8 bits loses noise of rounding (512 tokens of a chunk, each off by 1 / 255 / sqrt(12) at most in the
 * mean, beside weights of one or more; numbers off by 1 / 254), and tokens below 1 / 510 of their chunk's likeliest. */
static void check_soft_of_ref(weft_device *eight, const weft_weight *head, const weft_weight *form,
                              const buffer *logits, const inputs *in, uint32_t n, const stored *s) {
  buffer plain = soft_of(eight, head, logits, in->temperature, n),
         got = soft_of(eight, form, logits, in->temperature, n);
  double off = distance(got.data, plain.data, n, head->n_in, head->n_in);
  assert_within("soft", "ref", off, 1.5 * 0.06 * largest_value(s));
  if (form->layout != head->layout) assert_true(off > 0.0);
  buffer_free(&plain);
  buffer_free(&got);
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
  check_soft_of_ref(eight, &head, &form, &got, in, 3, s);
  buffer_free(&got);
  buffer_free(&want);
  weft_device_weight_free(plain, &file);
  weft_device_weight_free(eight, &head);
  weft_device_weight_free(eight, &product);
}

/* Rows of few and of many at once have the same bits; of many, rows that are not wanted are left alone. */
static void check_rows_of_card(weft_device *device, const char *name, const head_case *c, const weft_weight *form,
                               inputs *in, const outputs *few) {
  enum { MANY = ROWS_MAX - 3 };
  uint8_t want[MANY] = {0};
  for (uint32_t r = 130; r < MANY; r++) want[r] = r % 3 == 0;
  outputs many = run_stats(device, c, form, in, 0, MANY, NULL, true, NULL);
  for (uint32_t first = 0; first < MANY; first += ROWS)
    assert_outputs(name, &many, first, few, MANY - first < ROWS ? MANY - first : ROWS, c->n_in, true);
  outputs some = run_stats(device, c, form, in, 0, MANY, want, true, NULL);
  assert_outputs(name, &some, 0, &many, MANY, c->n_in, false);
  buffer none = buffer_new((size_t)c->n_in * 4);
  for (uint32_t r = 0; r < MANY; r++) {
    const float *of = want[r] != 0 ? (const float *)many.soft.data + (size_t)r * c->n_in : none.data;
    assert_same("head_stats", name, "soft, where wanted", (float *)some.soft.data + (size_t)r * c->n_in, of,
                none.n_bytes);
  }
  buffer_free(&none);
  free_outputs(&some);
  free_outputs(&many);
}

/* A card has ref's logits in the form for canvases, and the soft rows of the op that is given these logits; they are
 * ref's but for a few weights that exponentials rounded to another integer. Sets that have no integers make them of the
 * plain form. */
static void check_forms_of_card(weft_device *eight, const head_case *c, const stored *s, inputs *in,
                                weft_device *device, const char *name) {
  uint8_t bad[ROWS];
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
  check_rows_of_card(device, name, c, &form, in, &few);
  buffer logits = run_rows(device, c, &form, in->h, ROWS, bad);
  buffer soft = soft_of(device, &form, &logits, in->temperature, ROWS);
  assert_same("soft", name, "head_stats' soft", soft.data, few.soft.data, soft.n_bytes);
  if (form.layout != head.layout && !is_portable(device)) {
    want = soft_of(eight, &ref_form, &logits, in->temperature, ROWS);
    double off = distance(soft.data, want.data, ROWS, c->n_in, c->n_in);
    assert_within("soft", name, off, 1.5 * (3.0 / 255.0 + 1e-4) * largest_value(s));
  } else {
    want = soft_of(device, &head, &logits, in->temperature, ROWS);
    assert_same("soft", name, "the plain form's", soft.data, want.data, soft.n_bytes);
  }
  buffer_free(&want);
  buffer_free(&soft);
  buffer_free(&logits);
  free_outputs(&few);
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

/* Soft rows over many parts of the vocabulary: the same with integers of the head and without, and near those of the
 * plain form. */
static void check_wide_soft(const devices *cards, const weft_weight *head, const weft_weight *form,
                            const buffer *logits, uint32_t n) {
  buffer temperature = buffer_new(n * sizeof(float));
  for (uint32_t r = 0; r < n; r++) ((float *)temperature.data)[r] = 0.3f + 0.01f * (float)(r % 100);
  buffer codes = soft_of(cards->cpu[0], &form[0], logits, temperature.data, n);
  buffer integers = soft_of(cards->cpu[1], &form[1], logits, temperature.data, n);
  buffer plain = soft_of(cards->cpu[1], &head[1], logits, temperature.data, n);
  assert_same("soft", "integers", "a soft row beside codes", integers.data, codes.data, codes.n_bytes);
  double most = distance(plain.data, memset(codes.data, 0, codes.n_bytes), n, head->n_in, head->n_in);
  double off = distance(integers.data, plain.data, n, head->n_in, head->n_in);
  assert_within("soft", "integers", off, 0.1 * most);
  buffer_free(&temperature);
  buffer_free(&codes);
  buffer_free(&integers);
  buffer_free(&plain);
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
    check_wide_soft(&cards, head, form, &integers, n_rows[i]);
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
