/* SPDX-License-Identifier: MIT */
#include "api/cli/demo_drafts.h"

#include <stdio.h>
#include <string.h>

#include "api/cli/cli.h"
#include "api/drafts.h"
#include "base/text.h"

static const char *const questions[] = {
    "Write this as a table: Ana 93 Dakar; Zoe 46 Lima; Sam 48 Seoul; Ida 24 Lima",
    "List all numbers from 34 to 49.",
    "Write a sentence with the words elk and hat. Use 6 to 9 words. End with .",
};
enum { N_QUESTIONS = sizeof questions / sizeof *questions, WAIT_MS = 60000 };

typedef struct drafted_answer {
  weft_text text;
  weft_usage_counts usage;
} drafted_answer;

static int ask_question(weft_runtime *rt, const char *question, weft_draft_kind kind, drafted_answer *out) {
  char error[512] = "the demo's model gave no answer in a minute";
  weft_generation *generation = NULL;
  weft_generate_params params;
  weft_generate_defaults(&params);
  weft_chat_turn turn = {.role = "user", .content = question};
  params.prompt.turns = &turn;
  params.prompt.n_turns = 1;
  params.mode = WEFT_MODE_AUTOREGRESSIVE;
  params.max_tokens = 96;
  params.sampling.temperature = 0.0f;
  params.draft.kind = kind;
  bool ended = false;
  if (weft_submit(rt, &params, &generation, error, sizeof error) == 0) {
    weft_delta d;
    while (!ended && weft_next(generation, WAIT_MS, &d) == 0) {
      if (d.kind == WEFT_DELTA_TEXT) weft_text_append(&out->text, d.text, d.n_text);
      ended = d.kind == WEFT_DELTA_END;
      if (ended) out->usage = d.usage;
    }
  }
  weft_generation_free(generation);
  bool whole = ended && weft_text_status(&out->text) == WEFT_OK;
  return whole ? 0 : weft_cli_fail(WEFT_EXIT_FAILED, "%s", error);
}

static int show_question(weft_runtime *rt, const char *question, uint32_t *n_right) {
  drafted_answer plain = {0}, drafted = {0};
  int code = ask_question(rt, question, WEFT_DRAFT_OFF, &plain);
  if (code == 0) code = ask_question(rt, question, WEFT_DRAFT_DEFAULT, &drafted);
  if (code == 0 && (plain.text.n != drafted.text.n || memcmp(plain.text.bytes, drafted.text.bytes, plain.text.n) != 0))
    code = weft_cli_fail(WEFT_EXIT_FAILED, "an answer with drafts is another one than without");
  if (code == 0) {
    const weft_usage_counts *u = &drafted.usage;
    for (size_t i = 0; i < drafted.text.n; i++) drafted.text.bytes[i] += drafted.text.bytes[i] == '\n' ? ' ' - '\n' : 0;
    (void)printf("  %s\n  %13s -> %s\n  %13s    %u tokens in %u steps, %u of %u guesses right\n", question, "",
                 drafted.text.bytes, "", u->completion_tokens, u->completion_tokens - u->accepted, u->accepted,
                 u->drafted);
    *n_right += u->accepted;
  }
  weft_text_free(&plain.text);
  weft_text_free(&drafted.text);
  return code;
}

int weft_demo_drafts(const char *file) {
  static const char *const how = "canvas:8";
  const weft_open_options options = {.models = &file,
                                     .n_models = 1,
                                     .kv_bytes = 16 << 20,
                                     .context = 1024,
                                     .drafts = &how,
                                     .n_drafts = 1,
                                     .quiet = true};
  char error[512];
  weft_runtime *rt = NULL;
  uint32_t n_right = 0;
  if (weft_open(&options, &rt, error, sizeof error) != 0) return weft_cli_fail(WEFT_EXIT_RUNTIME, "%s", error);
  drafts_force(rt);
  (void)printf(
      "\nDrafts: a canvas guesses the next tokens, the model draws its own at each of them (the same bytes as "
      "without):\n");
  int code = 0;
  for (uint32_t i = 0; i < N_QUESTIONS && code == 0; i++) code = show_question(rt, questions[i], &n_right);
  weft_close(rt);
  if (code == 0 && n_right == 0) code = weft_cli_fail(WEFT_EXIT_FAILED, "no guess of a canvas was right");
  return code;
}
