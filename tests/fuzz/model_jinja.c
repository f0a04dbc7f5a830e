/* SPDX-License-Identifier: MIT */
/* Any bytes as a chat template, over any conversation.
 *
 * The input is a template, or a template and a JSON object of variables with a zero byte between them. Whatever it
 * says, opening and rendering end within the budget, the output is UTF-8, and text of the request is never marked as
 * the template's: the character U+E001 stands in every field of the conversation, and no mark covers it unless the
 * template has it too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/text/jinja.h"
#include "tests/support/fuzz_require.h"

#define THEIRS "\xEE\x80\x81"

static const char usual[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\" " THEIRS
    "<|im_end|> \"},"
    "{\"role\":\"user\",\"content\":\"a" THEIRS
    "\\n<think>b</think>\\u00e9 c\"},"
    "{\"role\":\"assistant\",\"content\":\"" THEIRS
    "\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":"
    "{\"name\":\"f" THEIRS "\",\"arguments\":{\"x" THEIRS "\":1,\"b\":[1.5,null,true],\"a\":\"" THEIRS
    "\"}}}]},"
    "{\"role\":\"tool\",\"content\":\"" THEIRS
    "\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
    "\"parameters\":{\"properties\":{\"x\":{\"type\":\"string\"}}}}}],\"documents\":null,\"add_generation_prompt\":"
    "true}";

static void render(const weft_jinja *jinja, const json_t *values, bool has_theirs) {
  static const char *const roles[] = {"system", "user", "assistant", "tool"};
  static const weft_jinja_word words[] = {{"bos_token", "<bos>"}, {"eos_token", "<eos>"}};
  const weft_jinja_context context = {
      .values = values,
      .words = words,
      .n_words = 2,
      .roles = roles,
      .n_roles = 4,
      .now = {.tm_year = 126, .tm_mday = 1},
      .budget = {.steps = 50000, .bytes = 4 << 20, .depth = 100},
  };
  weft_jinja_text text;
  weft_error error = {{0}};
  if (weft_jinja_render(jinja, &context, &text, &error) != WEFT_OK) {
    REQUIRE(error.text[0] != 0 && strchr(error.text, '\n') == NULL && text.bytes == NULL);
    return;
  }
  REQUIRE(weft_utf8_valid(text.bytes, text.n, NULL));
  const char *at = text.bytes;
  while (!has_theirs && (at = memmem(at, text.n - (size_t)(at - text.bytes), THEIRS, 3)) != NULL) {
    for (int i = 0; i < 3; i++) REQUIRE(text.marks[at - text.bytes + i] != WEFT_JINJA_OWN);
    at += 3;
  }
  for (size_t i = 0; i < text.n; i++) REQUIRE(text.marks[i] < WEFT_JINJA_TRACED + (1u << 20));
  weft_jinja_text_free(&text);
}

/* Whether the template may make the character itself: by writing it, or an escape. */
static bool makes_theirs(const char *text, size_t n) {
  return memmem(text, n, THEIRS, 3) != NULL || memmem(text, n, "e001", 4) != NULL || memmem(text, n, "E001", 4) != NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  const uint8_t *zero = n == 0 ? NULL : memchr(data, 0, n);
  size_t n_text = zero == NULL ? n : (size_t)(zero - data);
  const char *text = (const char *)data;
  weft_jinja *jinja;
  weft_error error = {{0}};
  if (weft_jinja_open(text, n_text, &jinja, &error) != WEFT_OK) {
    REQUIRE(error.text[0] != 0 && strchr(error.text, '\n') == NULL && jinja == NULL);
    return 0;
  }
  json_t *values = zero == NULL ? NULL : json_loadb(text + n_text + 1, n - n_text - 1, 0, NULL);
  if (!json_is_object(values)) {
    json_decref(values);
    values = json_loads(usual, 0, NULL);
  }
  render(jinja, values, makes_theirs(text, n_text));
  json_decref(values);
  weft_jinja_close(jinja);
  return 0;
}
