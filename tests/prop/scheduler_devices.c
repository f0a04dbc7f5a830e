/* SPDX-License-Identifier: MIT */
/* Engine, runner and models of a wide shape (tests/support/wide_model.h) on two to sixteen devices: whatever the number
 * of parts and of shards, requests get the answers of one device, bit for bit, logprobs of answers and of prompts
 * included.
 *
 * On fake cards, which exchange in one call, each shard has a range of the vocabulary alone, of the embedding as of the
 * head, and no card has more bytes of weights than another, but for one chunk of these; products of rows
 * that need their logits are made in the step, and after it where there are more of them than logits have room. On
 * devices of the cpu, which send copies, shard 0 has both matrices. */
#include <math.h>

#include "tests/support/amount.h"
#include "tests/support/real_engine.h"
#include "tests/support/wide_model.h"

enum { REQUESTS = 8, PROMPT_MAX = 9, ANSWER_MAX = 4, CONTEXT = 48 };

static int32_t prompts[REQUESTS][PROMPT_MAX];
static weft_request_params requests[REQUESTS];

typedef struct answer {
  rig_answer is;
  uint64_t digest; /* of logprobs */
} answer;

static answer alone[REQUESTS], answers[REQUESTS];
static char label[120];

static uint32_t draw(uint64_t *state, uint32_t n) {
  return (uint32_t)((weft_mix64(++*state * 0x9E3779B97F4A7C15ull) >> 32) % n);
}

/* Greedy, by temperature, and twice with all that needs logits; two score their prompts. */
static void make_requests(void) {
  uint64_t state = 46;
  for (uint32_t i = 0; i < REQUESTS; i++) {
    weft_request_params *p = &requests[i];
    *p = (weft_request_params){.model = i % 2, .tenant = i % 3, .tokens = prompts[i]};
    p->domain = (weft_key128){p->tenant, 9};
    p->n_tokens = 3 + draw(&state, PROMPT_MAX - 2);
    for (uint32_t k = 0; k < p->n_tokens; k++) prompts[i][k] = (int32_t)draw(&state, WIDE_VOCAB);
    p->max_tokens = 2 + draw(&state, ANSWER_MAX - 1);
    p->asked.entropy_bound = weft_entropy_bound_default();
    weft_sampling *s = &p->asked.sampling;
    *s = weft_sampling_neutral();
    s->seed = i;
    s->temperature = i / 2 == 0 ? 0.0f : 0.8f;
    if (i / 2 < 2) continue;
    s->top_k = 40;
    s->presence_penalty = 0.3f;
    s->logprobs = true;
    s->n_top_logprobs = 3;
    p->asked.prompt_logprobs = i / 2 == 3;
    p->asked.n_prompt_top = 2;
  }
}

static void add(uint64_t *digest, const void *bytes, size_t n) {
  for (size_t i = 0; i < n; i++) *digest = (*digest ^ ((const uint8_t *)bytes)[i]) * 0x100000001B3ull;
}

static void add_logprobs(uint64_t *digest, const weft_logprob *l, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    add(digest, &l[i].token, sizeof l[i].token);
    add(digest, &l[i].logprob, sizeof l[i].logprob);
  }
}

static void collect(rig *r, weft_request **handle, answer *a) {
  weft_event event;
  while (*handle != NULL && weft_engine_poll(r->engine, *handle, &event) == WEFT_OK) {
    if (event.kind == WEFT_EVENT_TOKENS) {
      memcpy(a->is.tokens + event.first, event.tokens, event.n * sizeof *event.tokens);
      a->is.n = event.first + event.n;
      if (event.logprobs != NULL) add_logprobs(&a->digest, event.logprobs, event.n * (1 + event.n_top));
      continue;
    }
    a->is.finish = event.finish;
    rig_need(event.finish == WEFT_FINISH_LENGTH, label, event.error == NULL ? "another end" : event.error);
    weft_engine_release(r->engine, *handle);
    *handle = NULL;
  }
}

/* Those of the prompt, which are there until the request is released. */
static void take_scores(const weft_request *handle, uint32_t i, answer *a) {
  weft_prompt_logprobs got;
  if (handle == NULL || !requests[i].asked.prompt_logprobs || a->is.n_ends > 0) return;
  if (weft_engine_prompt_logprobs(handle, &got) != WEFT_OK) return;
  rig_need(got.n == requests[i].n_tokens - 1, label, "not all of the prompt was scored");
  for (uint32_t k = 0; k < got.n; k++) {
    add(&a->digest, &got.own[k].logprob, sizeof got.own[k].logprob);
    add(&a->digest, &got.own[k].rank, sizeof got.own[k].rank);
    add_logprobs(&a->digest, got.top + (size_t)k * got.n_top, got.n_top);
  }
  a->is.n_ends = 1; /* once */
}

static void play(rig *r) {
  weft_request *handle[REQUESTS] = {NULL};
  weft_error error = {{0}};
  uint32_t n_left = REQUESTS;
  memset(answers, 0, sizeof answers);
  for (uint32_t i = 0; i < REQUESTS; i++) {
    weft_request_params p = requests[i];
    rig_need(weft_engine_submit(r->engine, &p, r->now, &handle[i], &error) == WEFT_OK, label, error.text);
  }
  while (n_left > 0) {
    r->now += 1;
    weft_status status = weft_engine_step(r->engine, r->now);
    rig_need(status == WEFT_OK || status == WEFT_AGAIN, label, "a step failed");
    for (uint32_t i = 0; i < REQUESTS; i++) {
      if (handle[i] == NULL) continue;
      take_scores(handle[i], i, &answers[i]);
      collect(r, &handle[i], &answers[i]);
      n_left -= handle[i] == NULL;
    }
  }
  rig_check_pager(r);
}

/* Each card has what the others have, but for a chunk of the vocabulary, and experts that do not divide. */
static void check_bytes(const rig *r) {
  for (uint32_t m = 0; m < r->n_models; m++) {
    const weft_model_info *info = r->info[m];
    const uint32_t n = weft_split_shards(&r->split[m]), last = weft_split_last_place(&r->split[m]);
    uint64_t least = UINT64_MAX, most = 0, chunk = 512ull * WIDE_HIDDEN * sizeof(float);
    for (uint32_t i = 0; i < n; i++) {
      const weft_model_part_info *own = &info->part[i], *head = &info->part[last + i];
      uint64_t n_bytes = own->weight_bytes;
      if (n_bytes < least) least = n_bytes;
      if (n_bytes > most) most = n_bytes;
      rig_need(own->embed_first == (i == 0 ? 0 : info->part[i - 1].embed_end), label, "a gap in the embedding");
      rig_need(head->head_first == own->embed_first && head->head_end == own->embed_end, label, "another range");
      rig_need(own->embed_end - own->embed_first <= (WIDE_VOCAB + n - 1) / n + 512, label, "too long a range");
    }
    rig_need(info->part[n - 1].embed_end == WIDE_VOCAB, label, "tokens that nobody has");
    bool uneven = info->n_experts > 0 && (n & (n - 1)) != 0; /* experts are halved again and again */
    rig_need(uneven || most - least <= 2 * chunk, label, "a card has more than another");
  }
}

static void run(const char *backend, uint32_t n_devices, uint32_t n_shards, uint64_t logits_bytes_max,
                const char *const path[2]) {
  rig r;
  rig_options o = {.backend = backend,
                   .path = {path[0], path[1]},
                   .n_models = 2,
                   .n_pages = 200,
                   .context = CONTEXT,
                   .rows = 64,
                   .running = REQUESTS,
                   .overlap = n_devices > 1,
                   .no_cache = true,
                   .logits_bytes_max = logits_bytes_max,
                   .n_devices = n_devices,
                   .n_shards = n_shards};
  (void)snprintf(label, sizeof label, "%s, %u devices, %u shards", backend, n_devices, n_shards);
  rig_open(&r, &o);
  if (n_shards > 1 && strcmp(backend, "cpu") != 0) check_bytes(&r);
  for (uint32_t p = 0; p < n_devices && strcmp(backend, "fake experts") == 0; p++)
    rig_need(weft_device_weights(r.split[1].device[p]).n_bytes_host > 0, label, "a card has all of its experts");
  play(&r);
  rig_close(&r);
  if (n_devices == 1) memcpy(alone, answers, sizeof alone);
  for (uint32_t i = 0; i < REQUESTS; i++) {
    const answer *a = &answers[i], *b = &alone[i];
    bool same = a->is.n == b->is.n && a->digest == b->digest &&
                memcmp(a->is.tokens, b->is.tokens, a->is.n * sizeof *a->is.tokens) == 0;
    rig_need(same, label, "an answer is not that of one device");
  }
  (void)printf("%s: as on one device\n", label);
}

/* On cards, as many as there are: test_prop_scheduler_devices --backend cuda. */
static void run_on_cards(const char *const path[2]) {
  static const uint32_t of[][2] = {{1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 4}, {4, 2}, {8, 1}, {8, 8}, {8, 4}};
  for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
    const weft_device_config last = {.backend = "cuda", .index = of[i][0] - 1};
    weft_device *device;
    if (weft_device_open(&last, &device, NULL) != WEFT_OK) {
      (void)printf("cuda: there are no %u cards\n", of[i][0]);
      return;
    }
    weft_device_close(device);
    for (uint64_t bytes = 0; bytes < (of[i][0] > 1 ? 2 : 1); bytes++) run("cuda", of[i][0], of[i][1], bytes, path);
  }
}

int main(int argc, char **argv) {
  static const struct {
    uint32_t n_devices, n_shards;
    uint64_t logits_bytes_max; /* 1: logits of one row at a time */
  } cards[] = {{3, 3, 0}, {6, 3, 1}, {12, 12, 1}, {16, 16, 0}, {16, 1, 0}},
    away[] = {{3, 3, 0}, {4, 2, 1}, {8, 8, 0}}, /* cards that leave two of three stacks of experts in host memory */
      hosts[] = {{2, 1, 0},  {3, 1, 0},  {5, 1, 0},  {7, 1, 0},   {8, 8, 0},  {9, 3, 0},  {10, 2, 0},
                 {11, 1, 0}, {13, 1, 0}, {14, 1, 0}, {16, 16, 0}, {15, 3, 0}, {16, 8, 0}, {4, 1, 0},
                 {6, 1, 0},  {8, 1, 0},  {9, 1, 0},  {10, 1, 0},  {12, 1, 0}, {15, 1, 0}, {4, 4, 0}};
  const char *const path[2] = {wide_model_file("tied", false, true), wide_model_file("experts", true, false)};
  make_requests();
  if (argc > 2 && strcmp(argv[1], "--backend") == 0 && strcmp(argv[2], "cuda") == 0) {
    run_on_cards(path);
    gguf_edit_clean();
    return 0;
  }
  run("ref", 1, 1, 0, path);
  for (size_t i = 0; i < sizeof cards / sizeof *cards; i += test_amount(3, 1, 1))
    run("fake graphs", cards[i].n_devices, cards[i].n_shards, cards[i].logits_bytes_max, path);
  for (size_t i = 0; i < sizeof away / sizeof *away; i += test_amount(3, 2, 1))
    run("fake experts", away[i].n_devices, away[i].n_shards, away[i].logits_bytes_max, path);
  run("cpu", 1, 1, 0, path);
  for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i += test_amount(6, 2, 1))
    run("cpu", hosts[i].n_devices, hosts[i].n_shards, 0, path);
  gguf_edit_clean();
  return 0;
}
