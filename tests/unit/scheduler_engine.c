/* SPDX-License-Identifier: MIT */
/* The engine, one behaviour at a time: what submit refuses and with which words, what a step mixes,
 * how requests end, what the events say. */
#include "tests/support/engine_world.h"

/* ---- what submit refuses --------------------------------------------------------------------- */

static void submit_refuses_with_a_line(void **state) {
  (void)state;
  open_world();
  weft_request_params p = ask(false, 0, 5);
  refused(&p, WEFT_E_INVALID, "prompt is empty");
  p = ask(false, 4, 5);
  p.model = 2;
  refused(&p, WEFT_E_INVALID, "model number 2");
  p = ask(false, 4, 5);
  p.tenant = 3;
  refused(&p, WEFT_E_INVALID, "tenant number 3");
  p = ask(true, 4, 5);
  p.model = 1;
  refused(&p, WEFT_E_INVALID, "cannot answer by diffusion");
  p = ask(true, 4, 5);
  p.asked.sampling.logprobs = true;
  refused(&p, WEFT_E_INVALID, "logprobs is not defined for a canvas");
  p.asked.sampling.logprobs = false;
  p.asked.sampling.min_p = 0.1f;
  refused(&p, WEFT_E_INVALID, "min_p is not defined for a canvas");
  p = ask(true, 4, 5);
  p.grammar = (weft_grammar *)(void *)&w; /* it is not looked at: this runner cannot hold a canvas to any */
  refused(&p, WEFT_E_INVALID, "not supported on a canvas of");
  p = ask(false, 4, 5);
  p.asked.sampling.top_p = 0.0f;
  refused(&p, WEFT_E_INVALID, "top_p");
  p = ask(true, 4, 5);
  p.asked.entropy_bound.max_steps = 0;
  refused(&p, WEFT_E_INVALID, "steps");
  p = ask(false, 4, 5);
  p.n_stop_tokens = 5000;
  refused(&p, WEFT_E_INVALID, "stop tokens");
  w.prompt[2] = VOCAB;
  p = ask(false, 4, 5);
  refused(&p, WEFT_E_INVALID, "prompt token 2 is 64");
  w.prompt[2] = -1;
  refused(&p, WEFT_E_INVALID, "prompt token 2 is -1");
  w.prompt[2] = 3;
  p = ask(false, CONTEXT, 5);
  refused(&p, WEFT_E_TOO_LARGE, "it may have 95");
  p = ask(true, CONTEXT - CANVAS + 1, 5);
  refused(&p, WEFT_E_TOO_LARGE, "it may have 88");
}

static void open_refuses_with_a_line(void **state) {
  (void)state;
  open_world();
  weft_engine *none = NULL;
  weft_error error = {{0}};
  weft_engine_config bad = w.config;
  bad.rows_per_step = CANVAS - 1;
  assert_int_equal(weft_engine_open(&bad, &none, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "raise rows per step to 8"));
  bad = w.config;
  bad.n_tenants = 257;
  assert_int_equal(weft_engine_open(&bad, &none, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "n_tenants is 257"));
  bad = w.config;
  bad.running_max = 1 << 20;
  bad.seq_tokens_max = 1 << 24;
  assert_int_equal(weft_engine_open(&bad, &none, &error), WEFT_E_TOO_LARGE);
  assert_null(none);
}

static void the_queue_is_bounded(void **state) {
  (void)state;
  w.config.waiting_max = 3;
  w.config.running_max = 1;
  open_world();
  weft_request *r[4];
  weft_request_params p = ask(false, 4, 5);
  submit_all(&p, r, 4); /* one of them would start at once */
  refused(&p, WEFT_FULL, "the queue is full: there are 4 requests, and may be 4");
  step(1); /* one runs now: as many as before */
  refused(&p, WEFT_FULL, "the queue is full");
  weft_engine_drain(w.engine);
  refused(&p, WEFT_FULL, "draining");
  run_out();
  assert_true(stats().draining);
  all_end(r, 4, WEFT_FINISH_LENGTH);
}

/* ---- what a step holds ----------------------------------------------------------------------- */

static void prompts_go_in_chunks(void **state) {
  (void)state;
  w.config.prefill_chunk = 8;
  open_world();
  weft_request_params p = ask(false, 20, 3);
  weft_request *r = submit(&p);
  step(1);
  assert_int_equal(stats().n_prefill_rows, 8);
  step(2);
  weft_engine_stats s = stats();
  assert_int_equal(s.n_prefill_rows, 20);
  assert_int_equal(s.n_answer_tokens, 1); /* the last chunk gives a token */
  weft_tenant_stats own;
  weft_engine_get_tenant_stats(w.engine, 0, &own);
  assert_int_equal(own.n_finished, 0);
  assert_int_equal(own.n_answer_tokens, 1); /* its tenant's, too, while it runs */
  step(2);
  s = stats();
  assert_int_equal(s.n_decode_rows, 2);
  assert_int_equal(s.n_steps, 5);
  assert_int_equal(s.n_finished[WEFT_FINISH_LENGTH], 1); /* the last token needs no row of its own */
  weft_engine_get_tenant_stats(w.engine, 0, &own);
  assert_int_equal(own.n_answer_tokens, 3);
  check_equal_solo(r, &p);
}

static void canvases_and_decodes_mix(void **state) {
  (void)state;
  open_world();
  weft_request_params tokens = ask(false, 6, 30), canvas = ask(true, 6, 3 * CANVAS);
  canvas.asked.entropy_bound.max_steps = 4;
  weft_request *a = submit(&tokens), *b = submit(&canvas);
  step(1);
  weft_engine_stats s = stats();
  assert_int_equal(s.n_prefill_rows, 12);
  assert_int_equal(s.n_canvas_rows, CANVAS); /* the first step shares the pass with the prompt's end */
  assert_int_equal(s.n_mixed_steps, 1);
  run_out();
  s = stats();
  assert_int_equal(s.n_commit_rows, 2 * CANVAS); /* the last canvas is never committed */
  assert_int_equal(s.n_canvases, 3);
  assert_int_equal(s.n_void_rows, 0);
  assert_true(s.n_denoise_steps <= 12);
  /* Commit and the next canvas's first step share a pass: no step more than the canvases have. */
  assert_int_equal(s.n_canvas_rows, s.n_denoise_steps * CANVAS);
  check_equal_solo(a, &tokens);
  check_equal_solo(b, &canvas);
}

static void commit_alone_when_rows_are_short(void **state) {
  (void)state;
  w.config.rows_per_step = CANVAS + 3; /* a commit and a step do not fit together */
  open_world();
  weft_request_params p = ask(true, 9, 3 * CANVAS);
  weft_request *r = submit(&p);
  run_out();
  assert_int_equal(stats().n_commit_rows, 2 * CANVAS);
  check_equal_solo(r, &p);
}

static void overlap_hides_the_gap(void **state) {
  (void)state;
  w.config.overlap = true;
  w.config.n_models = 2;
  open_world();
  weft_request_params p = ask(false, 6, 12);
  weft_request *r = submit(&p);
  step(1);
  assert_int_equal(stats().n_answer_tokens, 0); /* its results come one step late */
  step(1);
  assert_int_equal(stats().n_answer_tokens, 1);
  run_out();
  weft_engine_stats s = stats();
  assert_int_equal(s.n_steps, 12); /* no step without a row, none void: the limit is known in advance */
  assert_int_equal(s.n_void_rows, 0);
  check_equal_solo(r, &p);
}

static void overlap_counts_void_rows(void **state) {
  (void)state;
  w.config.overlap = true;
  open_world();
  weft_request_params p = ask(true, 6, CANVAS);
  weft_request *r = submit(&p); /* stops by its own rule before the step limit: one step was planned ahead */
  run_out();
  assert_int_equal(stats().n_void_rows, CANVAS);
  check_equal_solo(r, &p);
}

static void lanes_take_turns(void **state) {
  (void)state;
  w.config.slice_us = 3000; /* three steps of the fake device */
  open_world();
  weft_request_params p = ask(false, 4, 40);
  weft_request *a = submit(&p);
  p.model = 1;
  weft_request *b = submit(&p);
  step(24);
  assert_int_equal(stats().n_switches, 4); /* after 3 steps, then after 6 each: from behind to ahead */
  run_out();
  assert_int_equal(end_and_release(a), WEFT_FINISH_LENGTH);
  assert_int_equal(end_and_release(b), WEFT_FINISH_LENGTH);
}

/* Decoding canvases fill every step; a prompt still gets rows within a few of them. */
static void prompts_are_not_squeezed_out(void **state) {
  (void)state;
  w.config.rows_per_step = 2 * CANVAS;
  open_world();
  weft_request *canvas[2];
  for (uint32_t i = 0; i < 2; i++) {
    weft_request_params p = ask(true, 4 + i, 9 * CANVAS);
    p.asked.entropy_bound.confidence = 0.0f; /* never confident: all steps run */
    p.asked.entropy_bound.max_steps = 30;
    canvas[i] = submit(&p);
  }
  step(4);
  weft_request_params p = ask(false, 6, 2);
  weft_request *r = submit(&p);
  uint32_t n = 0;
  while (stats().n_finished[WEFT_FINISH_LENGTH] == 0) {
    step(1);
    assert_true(++n < 20);
  }
  check_equal_solo(r, &p);
  release_all(canvas, 2);
  run_out();
}

/* The most rows of a step until n more requests have ended. */
static uint64_t most_rows(uint64_t n) {
  uint64_t most = 0, n_all = n + stats().n_finished[WEFT_FINISH_LENGTH];
  while (stats().n_finished[WEFT_FINISH_LENGTH] < n_all) {
    uint64_t n_before = stats().n_rows;
    assert_int_equal(weft_engine_step(w.engine, ++w.now), WEFT_OK);
    if (stats().n_rows - n_before > most) most = stats().n_rows - n_before;
  }
  return most;
}

/* Prompts fill steps while nobody waits for a token or, of another tenant, for its prompt; else steps are short.
 * Canvases fill them, too. */
static void steps_are_short_where_somebody_waits(void **state) {
  weft_request *prompt[4], *stream;
  (void)state;
  w.config.rows_beside = 2 * CANVAS;
  w.config.overlap = true;
  open_world();
  weft_request_params p = ask_as(0, 20, 1), q = ask_as(0, 4, 60);
  submit_all(&p, prompt, 4);
  assert_int_equal(most_rows(4), 40); /* also those behind a prompt whose only token is in flight */
  assert_int_equal(stats().n_steps, 2);
  release_all(prompt, 4);
  for (q.model = 0; q.model < 2; q.model++) { /* a stream of the model, and of the other one */
    stream = submit(&q);
    step(3);
    submit_all(&p, prompt, 2);
    assert_in_range(most_rows(2), 2, 2 * CANVAS);
    weft_engine_cancel(w.engine, stream);
    run_out();
    release_all(prompt, 2);
    weft_engine_release(w.engine, stream);
  }
  prompt[0] = submit(&p);
  p.tenant = 1;
  prompt[1] = submit(&p);
  assert_int_equal(most_rows(2), 2 * CANVAS);
  release_all(prompt, 2);
  weft_request *canvas[5]; /* those of two tenants fill steps together once their prompts are there */
  p = ask(true, 4, CANVAS);
  submit_all(&p, canvas, 3);
  p.tenant = 1;
  submit_all(&p, canvas + 3, 2);
  assert_int_equal(most_rows(5), 5 * CANVAS);
  release_all(canvas, 5);
}

/* Steps of 16 rows, of which rows that decode for a tenant of a high class take nine: too few are left for a canvas. */
static void open_narrow(weft_request *decode[9], weft_request **canvas, uint32_t n_canvases) {
  static const weft_tenant_config tenant[3] = {{.priority_class = -1}, {0}, {.priority_class = 1}};
  w.config.rows_per_step = 2 * CANVAS;
  w.config.n_pages = 500;
  w.config.running_max = w.fake[0].n_slots = w.config.waiting_max = 24;
  w.config.tenant = tenant;
  open_world();
  weft_request_params p = ask(true, 4, 9 * CANVAS), q = ask(false, 4, 90);
  p.asked.entropy_bound.confidence = 0.0f; /* never confident: all steps run */
  p.asked.entropy_bound.max_steps = 30;
  q.tenant = 2;
  for (p.tenant = 0; p.tenant < n_canvases; p.tenant++) canvas[p.tenant] = submit(&p);
  step(4);
  submit_all(&q, decode, 9);
  step(6); /* their prompts */
}

/* A canvas that found too few rows left has ended: prompts go first again when they are squeezed out. */
static void prompts_are_not_squeezed_out_after_a_canvas(void **state) {
  (void)state;
  weft_request *canvas, *decode[16];
  open_narrow(decode, &canvas, 1);
  for (uint32_t n_without = 0; n_without < 4;) { /* the next step would be its own */
    uint64_t n_before = stats().n_canvas_rows;
    step(1);
    n_without = stats().n_canvas_rows == n_before ? n_without + 1 : 0;
  }
  weft_engine_cancel(w.engine, canvas);
  weft_request_params p = ask(false, 4, 90);
  p.tenant = 2;
  submit_all(&p, decode + 9, 7);
  step(12);
  uint64_t n_before = stats().n_decode_rows;
  step(1);
  assert_int_equal(stats().n_decode_rows, n_before + 2 * CANVAS); /* they fill every step */
  p.max_tokens = 2;
  weft_request *r = submit(&p);
  uint32_t n = 0;
  while (stats().n_finished[WEFT_FINISH_LENGTH] == 0) {
    step(1);
    assert_true(++n < 20);
  }
  check_equal_solo(r, &p);
  assert_int_equal(end_and_release(canvas), WEFT_FINISH_CANCELLED);
  run_out();
  all_end(decode, 16, WEFT_FINISH_LENGTH);
}

static uint64_t charged_us(uint32_t tenant) {
  return tenant_stats(tenant).charged_us;
}

/* Of two canvases that find too few rows left, the one that is due first goes first, not the one that waited longest.
 */
static void a_narrowed_canvas_goes_first_when_it_is_due(void **state) {
  (void)state;
  weft_request *canvas[2], *decode[9];
  open_narrow(decode, canvas, 2); /* that of the low class is the older one */
  uint64_t low = charged_us(0), normal = charged_us(1);
  step(40);
  assert_int_equal(charged_us(0), low);
  assert_true(charged_us(1) > normal);
  w.now += 20000000; /* all classes are level now: clocks decide */
  step(60);
  assert_true(charged_us(0) > low);
  release_all(canvas, 2);
  run_out();
  all_end(decode, 9, WEFT_FINISH_LENGTH);
}

/* ---- how requests end ------------------------------------------------------------------------ */

static void cancel_within_a_step(void **state) {
  (void)state;
  w.config.running_max = 1;
  open_world();
  weft_request_params p = ask(false, 4, 50);
  weft_request *runs = submit(&p), *waits = submit(&p);
  step(3);
  weft_engine_cancel(w.engine, runs);
  weft_engine_cancel(w.engine, waits);
  step(1);
  assert_int_equal(finish_of(waits, NULL, NULL).finish, WEFT_FINISH_CANCELLED);
  assert_int_equal(end_and_release(runs), WEFT_FINISH_CANCELLED);
  weft_engine_cancel(w.engine, waits); /* after the end: nothing */
  weft_engine_release(w.engine, waits);
  run_out();
}

static void deadlines_expire(void **state) {
  (void)state;
  w.config.running_max = 1;
  open_world();
  weft_request_params p = ask(false, 4, 50);
  p.deadline_us = 1000;
  weft_request *runs = submit(&p);
  p.deadline_us = 900;
  weft_request *waits = submit(&p);
  step(3);
  w.now = 899;
  step(1);
  assert_int_equal(finish_of(waits, NULL, NULL).finish, WEFT_FINISH_DEADLINE);
  assert_int_equal(finish_of(runs, NULL, NULL).finish, WEFT_FINISH_NONE);
  w.now = 999;
  step(1);
  assert_int_equal(end_and_release(runs), WEFT_FINISH_DEADLINE);
  weft_engine_release(w.engine, waits);
  run_out();
}

static uint32_t stop_after_two(void *self, const int32_t *tokens, uint32_t n) {
  (void)tokens;
  *(uint32_t *)self += 1;
  return n >= 3 ? 2 : n;
}

static void stop_rule_cuts(void **state) {
  (void)state;
  for (uint32_t canvas = 0; canvas < 2; canvas++) {
    plan_world();
    open_world();
    uint32_t n_calls = 0, n = 0;
    weft_request_params p = ask(canvas == 1, 4, 50);
    p.stop_rule = stop_after_two;
    p.stop_self = &n_calls;
    weft_request *r = submit(&p);
    run_out();
    assert_int_equal(finish_of(r, NULL, &n).finish, WEFT_FINISH_STOP);
    assert_int_equal(n, 2);
    assert_int_equal(n_calls, canvas == 1 ? 1 : 3);
    weft_engine_release(w.engine, r);
    (void)close_world(NULL);
  }
}

static void stop_tokens_end_the_answer(void **state) {
  (void)state;
  open_world();
  weft_request_params p = ask(false, 4, 60);
  solo_answer alone = solo_run(&w.fake[0].model, &p, CONTEXT);
  int32_t stop = alone.tokens[5];
  uint32_t first = 0;
  while (alone.tokens[first] != stop) first += 1;
  free(alone.tokens);
  p.stop_tokens = &stop;
  p.n_stop_tokens = 1;
  weft_request *r = submit(&p);
  p.n_stop_tokens = 0;
  weft_request *ignores = submit(&p);
  run_out();
  uint32_t n = 0;
  assert_int_equal(finish_of(r, NULL, &n).finish, WEFT_FINISH_STOP);
  assert_int_equal(n, first);
  check_equal_solo(ignores, &p);
  weft_engine_release(w.engine, r);
}

static void context_ends_the_answer(void **state) {
  (void)state;
  open_world();
  weft_request_params tokens = ask(false, CONTEXT - 3, 50), canvas = ask(true, CONTEXT - 3 * CANVAS + 2, 500);
  weft_request *a = submit(&tokens), *b = submit(&canvas);
  run_out();
  uint32_t n = 0;
  assert_int_equal(finish_of(a, NULL, &n).finish, WEFT_FINISH_LENGTH);
  assert_int_equal(n, 3);
  assert_int_equal(finish_of(b, NULL, &n).finish, WEFT_FINISH_LENGTH);
  assert_int_equal(n, 2 * CANVAS); /* whole canvases */
  weft_engine_release(w.engine, a);
  weft_engine_release(w.engine, b);
}

static void a_device_error_ends_its_own_requests(void **state) {
  (void)state;
  w.fake[0].fail_collect_at = 3;
  open_world();
  weft_request_params p = ask(false, 4, 30);
  weft_request *broken = submit(&p);
  p.model = 1;
  weft_request *well = submit(&p);
  run_out();
  weft_event end = finish_of(broken, NULL, NULL);
  assert_int_equal(end.finish, WEFT_FINISH_ERROR);
  assert_non_null(strstr(end.error, "both: the device reported an error"));
  assert_int_equal(stats().broken_runners, 1);
  p.model = 0;
  refused(&p, WEFT_E_DEVICE, "restart");
  p.model = 1;
  check_equal_solo(well, &p);
  weft_engine_release(w.engine, broken);
}

static void bad_logits_end_one_request(void **state) {
  (void)state;
  w.fake[0].model.bad_one_in = 12;
  open_world();
  weft_request *r[6];
  weft_request_params p[6];
  uint32_t n_bad = 0;
  for (uint32_t i = 0; i < 6; i++) {
    p[i] = ask(i % 2 == 1, 3 + i, 16);
    r[i] = submit(&p[i]);
  }
  run_out();
  n_bad = (uint32_t)stats().n_finished[WEFT_FINISH_ERROR];
  assert_in_range(n_bad, 1, 5);
  assert_int_equal(stats().broken_runners, 0);
  for (uint32_t i = 0; i < 6; i++) check_equal_solo(r[i], &p[i]);
}

/* A mask allows only tokens of the answer's format, so one that is none is a fault of the program. The answer ends there
 * with an error: it never goes on as if nothing held it. */
static void a_token_outside_of_the_format_ends_its_request(void **state) {
  (void)state;
  plan_world();
  w.fake[0].leave_format_at = 3;
  open_world();
  weft_request_params p = ask(false, 4, 30), q = p;
  q.model = 1;
  weft_request *r = submit(&p), *well = submit(&q);
  run_out();
  uint32_t n = 0;
  weft_event end = finish_of(r, NULL, &n);
  assert_int_equal(end.finish, WEFT_FINISH_ERROR);
  assert_non_null(strstr(end.error, "format"));
  assert_int_equal(n, 2); /* the tokens before it */
  assert_int_equal(stats().broken_runners, 0);
  check_equal_solo(well, &q);
  weft_engine_release(w.engine, r);
}

/* The end of an answer is no token of its format either. */
static void an_end_outside_of_the_format_is_an_end(void **state) {
  (void)state;
  plan_world();
  open_world();
  weft_request_params p = ask(false, 4, 60);
  solo_answer alone = solo_run(&w.fake[0].model, &p, CONTEXT);
  int32_t stop = alone.tokens[0];
  free(alone.tokens);
  (void)close_world(NULL);
  plan_world();
  w.fake[0].leave_format_at = 1;
  open_world();
  p.stop_tokens = &stop;
  p.n_stop_tokens = 1;
  weft_request *r = submit(&p);
  run_out();
  assert_int_equal(end_and_release(r), WEFT_FINISH_STOP);
}

/* What was asked is kept once, in the request: the client may change and free what it gave, and no pointer to it stays.
 */
static void what_was_asked_is_kept(void **state) {
  (void)state;
  open_world();
  weft_logit_bias bias = {3, 1.5f};
  char name[] = "a model";
  uint32_t retry_ms = 7;
  uint64_t retry_us = 7;
  weft_request_params p = ask(false, 4, 2);
  p.asked.sampling.bias = &bias;
  p.asked.sampling.n_bias = 1;
  p.asked.model = p.asked.cache_salt = p.asked.format_text = name;
  p.asked.prompt.text = name;
  p.asked.n_format_text = p.asked.prompt.n_text = sizeof name;
  p.asked.retry_ms = &retry_ms;
  p.asked.stop_self = &retry_ms;
  p.asked.priority = 5;
  p.asked.keep_stop = true;
  p.retry_us = &retry_us;
  weft_request *r = submit(&p);
  const weft_generate_params *asked = weft_engine_asked(r);
  bias = (weft_logit_bias){0};
  memset(&p, 0, sizeof p);
  static const weft_generate_params none;
  assert_memory_equal(asked, &none, offsetof(weft_generate_params, tenant));
  assert_true(asked->priority == 5 && asked->keep_stop && asked->sampling.n_bias == 1);
  assert_true(asked->sampling.bias != &bias && asked->sampling.bias->token == 3);
  run_out();
  assert_ptr_equal(weft_engine_asked(r), asked); /* until release */
  assert_int_equal(asked->priority, 5);
  weft_engine_release(w.engine, r);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void canvas_events_come_in_order(void **state) {
  (void)state;
  open_world();
  weft_request_params p = ask(true, 5, 2 * CANVAS);
  p.asked.trace = true;
  weft_request *r = submit(&p);
  run_out();
  weft_event event;
  int32_t out[CANVAS], argmax[CANVAS];
  uint32_t block = 0, next = 0, n_tokens = 0;
  while (weft_engine_poll(w.engine, r, &event) == WEFT_OK && event.kind != WEFT_EVENT_FINISHED) {
    if (event.kind == WEFT_EVENT_TOKENS) { /* after the last step of its canvas, and equal to its argmax */
      assert_int_equal(event.first, n_tokens);
      assert_int_equal(event.n, CANVAS);
      assert_memory_equal(event.tokens, argmax, sizeof argmax);
      n_tokens += event.n;
      block += 1;
      next = 0;
      continue;
    }
    assert_int_equal(event.block, block);
    assert_int_equal(event.step, next);
    assert_int_equal(event.n_canvas, CANVAS);
    if (next > 0) assert_memory_equal(event.canvas_in, out, sizeof out);
    memcpy(out, event.canvas_out, sizeof out);
    memcpy(argmax, event.argmax, sizeof argmax);
    assert_non_null(event.entropy);
    next += 1;
  }
  assert_int_equal(event.kind, WEFT_EVENT_FINISHED);
  assert_int_equal(n_tokens, 2 * CANVAS);
  assert_int_equal(event.usage.n_canvases, 2);
  weft_engine_release(w.engine, r);
}

static void logprobs_go_with_their_tokens(void **state) {
  (void)state;
  open_world();
  weft_request_params p = ask(false, 5, 10);
  p.asked.sampling.logprobs = true;
  weft_request *r = submit(&p);
  weft_event event;
  uint32_t n = 0;
  while (!weft_engine_idle(w.engine)) {
    step(1);
    while (weft_engine_poll(w.engine, r, &event) == WEFT_OK && event.kind == WEFT_EVENT_TOKENS) {
      for (uint32_t i = 0; i < event.n; i++) {
        assert_int_equal(event.logprobs[i * (1 + event.n_top)].token, event.tokens[i]);
        assert_true(event.logprobs[i * (1 + event.n_top)].logprob <= 0.0f);
      }
      n += event.n;
    }
  }
  assert_int_equal(n, 10);
  assert_int_equal(event.kind, WEFT_EVENT_FINISHED);
  weft_engine_release(w.engine, r);
}

static void times_are_the_callers(void **state) {
  (void)state;
  open_world();
  weft_request_params p = ask(false, 5, 3);
  w.now = 1000;
  weft_request *r = submit(&p); /* at 1001 */
  w.now = 4000;
  step(3);
  weft_usage u = finish_of(r, NULL, NULL).usage;
  assert_int_equal(u.submitted_us, 1001);
  assert_int_equal(u.started_us, 4001);
  assert_int_equal(u.first_token_us, 4001);
  assert_int_equal(u.finished_us, 4003);
  weft_engine_stats s = stats();
  assert_int_equal(s.ttft_sum_us, 3000);
  assert_int_equal(s.queue_us, 3000);
  assert_int_equal(s.e2e_sum_us, 3002);
  assert_int_equal(s.tpot_sum_us, 1);
  assert_int_equal(s.ttft[2], 1); /* 2.5 ms < 3 ms <= 5 ms */
  weft_engine_release(w.engine, r);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(submit_refuses_with_a_line),
                                     TEST(open_refuses_with_a_line),
                                     TEST(what_was_asked_is_kept),
                                     TEST(the_queue_is_bounded),
                                     TEST(prompts_go_in_chunks),
                                     TEST(canvases_and_decodes_mix),
                                     TEST(commit_alone_when_rows_are_short),
                                     TEST(overlap_hides_the_gap),
                                     TEST(overlap_counts_void_rows),
                                     TEST(lanes_take_turns),
                                     TEST(prompts_are_not_squeezed_out),
                                     TEST(prompts_are_not_squeezed_out_after_a_canvas),
                                     TEST(a_narrowed_canvas_goes_first_when_it_is_due),
                                     TEST(steps_are_short_where_somebody_waits),
                                     TEST(cancel_within_a_step),
                                     TEST(deadlines_expire),
                                     TEST(stop_rule_cuts),
                                     TEST(stop_tokens_end_the_answer),
                                     TEST(context_ends_the_answer),
                                     TEST(a_device_error_ends_its_own_requests),
                                     TEST(bad_logits_end_one_request),
                                     TEST(a_token_outside_of_the_format_ends_its_request),
                                     TEST(an_end_outside_of_the_format_is_an_end),
                                     TEST(canvas_events_come_in_order),
                                     TEST(logprobs_go_with_their_tokens),
                                     TEST(times_are_the_callers)};
  return cmocka_run_group_tests(tests, expect_broken_runners, NULL);
}
