/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "bench/acceptance/acceptance.h"

enum { MESSAGES = 5 };

/* Words that no template writes by itself. */
#define SYSTEM "Zebrasystem"
#define FIRST  "Zebrafirst"
#define REPLY  "Zebrareply"
#define SECOND "Zebrasecond"
#define TOOL   "zebra_tool"
#define RESULT "Zebraresult"

typedef struct template_case {
  const char *what; /* what the template should be able to show the model */
  weft_chat_message message[MESSAGES];
  uint32_t n;
  const char *tools;
  bool thinking;
  const char *wanted[3]; /* each stands in the prompt */
  bool needed;           /* a template without it is of no use */
} template_case;

#define SAYS(who, text) \
  { .role = (who), .content = (text), .n_content = sizeof(text) - 1 }

static const char declared[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"" TOOL
    "\",\"description\":\"Finds a zebra.\",\"parameters\":"
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"}},\"required\":[\"name\"]}}}]";
static const char called[] =
    "{\"tool_calls\":[{\"id\":\"call12345\",\"type\":\"function\",\"function\":{\"name\":\"" TOOL
    "\",\"arguments\":{\"name\":\"Ann\"}}}]}";

static const template_case cases[] = {
    {"a question", {SAYS("user", FIRST)}, 1, NULL, false, {FIRST}, true},
    {"a system prompt", {SAYS("system", SYSTEM), SAYS("user", FIRST)}, 2, NULL, false, {SYSTEM, FIRST}, false},
    {"earlier turns",
     {SAYS("user", FIRST), SAYS("assistant", REPLY), SAYS("user", SECOND)},
     3,
     NULL,
     false,
     {FIRST, REPLY, SECOND},
     true},
    {"declared tools", {SAYS("user", FIRST)}, 1, declared, false, {TOOL, FIRST}, false},
    {"calls and results of tools",
     {SAYS("user", FIRST),
      {.role = "assistant", .content = "", .n_content = 0, .more = called},
      {.role = "tool",
       .content = RESULT,
       .n_content = sizeof RESULT - 1,
       .more = "{\"tool_call_id\":\"call12345\",\"name\":\"" TOOL "\"}"}},
     3,
     declared,
     false,
     {TOOL, RESULT, FIRST},
     false},
    {"thinking", {SAYS("user", FIRST)}, 1, NULL, true, {FIRST}, false},
};
enum { CASES = sizeof cases / sizeof *cases };

/* Whether the case is shown; else why not. specials: control tokens of the prompt. */
static bool render_case(const weft_chat *chat, const template_case *c, uint32_t *specials, weft_error *why) {
  const weft_chat_options options = {.thinking = c->thinking, .add_generation_prompt = true, .tools = c->tools};
  weft_chat_pieces pieces = {0};
  weft_text text = {0};
  if (c->thinking && !weft_chat_can_think(chat)) {
    *specials = 0;
    (void)weft_fail(why, WEFT_E_UNSUPPORTED, "it marks no thinking");
    return false;
  }
  weft_status status = weft_chat_split(chat, c->message, c->n, &options, &pieces, why);
  *specials = 0;
  for (uint32_t i = 0; i < pieces.n && status == WEFT_OK; i++) {
    *specials += pieces.pieces[i].token >= 0;
    weft_text_append(&text, pieces.pieces[i].text, pieces.pieces[i].n);
  }
  for (uint32_t i = 0; i < 3 && c->wanted[i] != NULL && status == WEFT_OK; i++) {
    if (text.n > 0 && strstr(text.bytes, c->wanted[i]) != NULL) continue;
    status = weft_fail(why, WEFT_E_NOT_FOUND, "%s is not in the prompt",
                       strcmp(c->wanted[i], SYSTEM) == 0 ? "the system prompt" : "what was said");
  }
  weft_text_free(&text);
  weft_chat_pieces_close(&pieces);
  return status == WEFT_OK;
}

static void check_cases(acceptance *a, const weft_chat *chat) {
  weft_text shown = {0};
  uint32_t n_specials = 0, specials;
  for (uint32_t i = 0; i < CASES; i++) {
    const template_case *c = &cases[i];
    weft_error why = {{0}};
    if (render_case(chat, c, &specials, &why)) {
      weft_text_printf(&shown, "%s%s", shown.n > 0 ? ", " : "", c->what);
      n_specials += specials;
      continue;
    }
    acceptance_add(&a->report, "template", c->needed ? ACCEPTANCE_BAD : ACCEPTANCE_LOOK,
                   c->needed
                       ? "Chat cannot work with this template: give another with --chat-template FILE."
                       : "Requests that need it are refused. If the model was taught it, give a newer template with "
                         "--chat-template FILE.",
                   "it does not show the model %s: %s", c->what, why.text);
    if (i == 0) a->chat = false;
  }
  if (a->chat && n_specials == 0)
    acceptance_add(&a->report, "template", ACCEPTANCE_LOOK,
                   "Turns are then marked by plain text, which anybody can write: look whether the vocabulary has the "
                   "template's markers as control tokens.",
                   "no control token stands in any prompt");
  if (shown.n > 0) acceptance_add(&a->report, "template", ACCEPTANCE_GOOD, NULL, "it shows the model %s", shown.bytes);
  weft_text_free(&shown);
}

void acceptance_check_template(acceptance *a) {
  char *name = served_names_of_file(a->config->product.models.item[0]);
  weft_served_model model = {.gguf = a->gguf, .tokenizer = a->tokenizer, .path = name, .file_name = name};
  const weft_open_options options = weft_config_open(&a->config->product);
  weft_error error = {{0}};
  if (a->tokenizer == NULL || name == NULL) {
    acceptance_add(&a->report, "template", ACCEPTANCE_LEFT_OUT, NULL, "it needs the tokenizer");
  } else if (chat_template_open(&options, &model, &error) != WEFT_OK) {
    acceptance_add(&a->report, "template", ACCEPTANCE_BAD, "Correct the template, or leave --chat-template out.", "%s",
                   error.text);
  } else if (model.chat == NULL && weft_gguf_find(a->gguf, "tokenizer.chat_template") < 0) {
    acceptance_add(
        &a->report, "template", ACCEPTANCE_LOOK,
        "A base model has none, and is asked by completions. If the model was taught conversations, give its "
        "template with --chat-template FILE.",
        "%s", model.no_chat.text);
  } else if (model.chat == NULL) {
    acceptance_add(&a->report, "template", ACCEPTANCE_BAD,
                   "Chat is off with this file: give another template with --chat-template FILE, and send this report.",
                   "%s", model.no_chat.text);
  } else {
    a->chat = true;
    check_cases(a, model.chat);
  }
  weft_chat_close(model.chat);
  weft_free(name);
}
