/* SPDX-License-Identifier: MIT */
/* Whatever text a conversation holds reaches the prompt, or the request is refused by name: conversations drawn by
 * chance under our own templates and under small ones with the habits of others', and each habit by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "model/text/chat_messages.h"
#include "tests/support/amount.h"
#include "tests/support/tokenizer_fixture.h"

/* Small templates, each with one habit of the world's. */
#define OPEN  "{% for m in messages %}"
#define CLOSE "{% endfor %}"
#define SAY   "[{{ m.role }}]{{ m.content | trim }}"
#define CALLS                                                                                        \
  "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}" \
  "{% endfor %}"
static const struct {
  const char *name, *text; /* text NULL: a file of tests/golden/chat */
  bool takes_all;          /* no conversation that alternates is refused */
} templates[] = {
    {"gemma4", NULL, true},
    {"qwen3", NULL, true},
    {"tools-hermes", NULL, true},
    {"tools-json", NULL, true},
    {"no-tools", NULL, false},
    {"every role", OPEN SAY CALLS CLOSE, true},
    {"roles that it knows",
     OPEN "{% if m.role in ['system', 'user', 'assistant', 'tool'] %}" SAY CALLS "{% endif %}" CLOSE, true},
    {"a system that begins",
     "{% if messages[0].role == 'system' %}"
     "[system]{{ messages[0].content }}{% endif %}" OPEN "{% if m.role in ['user', 'assistant', 'tool'] %}" SAY CALLS
     "{% endif %}" CLOSE,
     true},
    {"no system, in turn",
     "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
     "{% set n = namespace(user=0) %}" OPEN "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
     "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
     "{% if (m.role == 'user') != (n.user % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}{% "
     "endif %}"
     "{% set n.user = n.user + 1 %}{% endif %}" SAY CALLS CLOSE,
     true},
    {"calls or text, short ids, in turn",
     "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}"
     "{% else %}{% set rest = messages %}{% endif %}{% set n = namespace(i=0) %}"
     "{% for m in rest %}{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
     "{% if (m.role == 'user') != (n.i % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}"
     "{% set n.i = n.i + 1 %}{% endif %}{% endfor %}"
     "{% for m in rest %}{% if m.role == 'user' %}{% if loop.first and system is defined %}{{ system }} {% endif %}"
     "[INST]{{ m.content }}[/INST]{% elif m.tool_calls is defined and m.tool_calls is not none %}[TOOL_CALLS][{% for c "
     "in "
     "m.tool_calls %}{{ c.function | tojson }}{% if c.id is not defined or c.id | length != 9 %}"
     "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}{{ c.id }}"
     "{% endfor %}]{% elif m.role == 'assistant' %}{{ m.content }}{% elif m.role == 'tool' %}"
     "{% if m.tool_call_id | length != 9 %}{{ raise_exception('an id') }}{% endif %}"
     "[TOOL_RESULTS]{{ m.content }} {{ m.tool_call_id }}{% else %}{{ raise_exception('Only user and assistant') }}"
     "{% endif %}{% endfor %}",
     true},
    {"arguments are text",
     OPEN SAY "{% for c in m.tool_calls or [] %}"
              "{{ c.function.name + '\n```json\n' + c.function.arguments + '```' }}"
              "{% endfor %}" CLOSE,
     true},
    {"arguments are an object",
     OPEN SAY "{% for c in m.tool_calls or [] %}<f={{ c.function.name }}>"
              "{% for k, v in c.function.arguments.items() %}<p={{ k }}>{{ v if v is string else v | tojson }}{% "
              "endfor %}{% endfor %}" CLOSE,
     true},
    {"one call at once",
     OPEN
     "{% if m.tool_calls | default([]) | length > 1 %}{{ raise_exception('one call at once') }}{% endif %}" SAY CALLS
         CLOSE,
     true},
    {"a text that is cut", OPEN "{{ m.content[:7] }}" CALLS CLOSE, false},
    {"users only", OPEN "{% if m.role == 'user' %}{{ m.content }}{% endif %}{{ '' if m.tool_calls else '' }}" CLOSE,
     false},
    {"thoughts go", OPEN "{{ m.content.split('</think>')[-1] }}" CALLS CLOSE, false},
    {"ASCII, in capitals",
     OPEN "{{ m.content | tojson(ensure_ascii=true) }}{% for c in m.tool_calls or [] %}"
          "{{ c.function.name | upper }}{{ c.function.arguments }}{% endfor %}" CLOSE,
     true},
};
enum { N_TEMPLATES = sizeof templates / sizeof *templates };

typedef struct world {
  tokenizer_fixture f;
  weft_chat *chat;
  weft_tokenizer *t;
} world;

static void world_open(world *w, const char *name, const char *text) {
  static const char *const specials[] = {"<|turn>",      "<turn|>",    "<|channel>", "<channel|>",
                                         "<|im_start|>", "<|im_end|>", "<bos>"};
  static char file[1 << 16];
  weft_error error = {{0}};
  memset(w, 0, sizeof *w);
  fixture_gpt2(&w->f, "qwen2");
  for (size_t i = 0; i < sizeof specials / sizeof *specials; i++)
    (void)fixture_token(&w->f, specials[i], FIXTURE_CONTROL);
  w->t = fixture_tokenizer(&w->f);
  if (text == NULL) {
    char path[512];
    (void)snprintf(path, sizeof path, WEFT_SOURCE_DIR "/tests/golden/chat/%s.jinja", name);
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    file[fread(file, 1, sizeof file - 1, in)] = 0;
    (void)fclose(in);
    text = file;
  }
  const weft_bytes bytes = {text, strlen(text)};
  if (weft_chat_open(w->f.gguf, w->t, bytes, name, &w->chat, &error) != WEFT_OK) fail_msg("%s: %s", name, error.text);
}

static void world_close(world *w) {
  weft_chat_close(w->chat);
  fixture_close(&w->f);
}

static uint32_t draw(uint64_t *state, uint32_t n) {
  *state += 1;
  return (uint32_t)(weft_mix64(weft_mix64(*state)) >> 32) % n;
}

/* ---- conversations by chance ---- */

enum { MESSAGES = 700, TEXTS = 5 * MESSAGES, WORD = 16 };
typedef struct conversation {
  weft_chat_message message[MESSAGES];
  uint32_t n, n_words;
  char word[TEXTS][WORD]; /* that must be in the prompt */
  weft_text bytes[2 * MESSAGES];
  uint32_t n_texts;
} conversation;

/* A word that no other text has. */
static const char *new_word(conversation *c, uint64_t *random) {
  static const char *const heads[] = {"w", "\xC3\xA9", "Q", "\xE6\xB2\xB3"};
  char *word = c->word[c->n_words];
  (void)snprintf(word, WORD, "%s%ux", heads[draw(random, 4)], c->n_words);
  c->n_words += 1;
  return word;
}

static weft_text *new_text(conversation *c) {
  return &c->bytes[c->n_texts++];
}

static void add_message(conversation *c, const char *role, uint64_t *random) {
  static const char *const around[] = {"", " ", "\n\n", "\"", "{", "\\", "it's ", "<|turn>", "</s>", "- "};
  weft_text *text = new_text(c);
  for (uint32_t i = 0, n = 1 + draw(random, 2); i < n; i++) {
    weft_text_printf(text, "%s%s%s", around[draw(random, 10)], new_word(c, random), around[draw(random, 10)]);
  }
  c->message[c->n++] = (weft_chat_message){.role = role, .content = text->bytes, .n_content = text->n};
}

/* Arguments as they may come back: an object, the beginning of one, an object in another style, and none. */
static void put_arguments(conversation *c, uint64_t *random, weft_text *out) {
  static const char *const forms[] = {"{\\\"k\\\":\\\"%s\\\"}",
                                      "{\\\"k\\\": [1, \\\"%s\\\"], \\\"n\\\": 2}",
                                      "{\\\"k\\\":\\\"%s",
                                      "{\\\"k\\\":\\\"%s\\\",",
                                      "{\\\"k\\\":[\\\"%s\\\", 1",
                                      "{'k': '%s', 'b': True}",
                                      "{\\\"%s\\\":",
                                      "%s",
                                      "[\\\"%s\\\"]",
                                      "\\\"%s\\\"",
                                      "{\\\"k\\\":\\\"%s\\\"} {}",
                                      "{\\\"k\\\":\\\"%s\\\",\\\"n\\\":99999999999999999999}"};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  weft_text_printf(out, forms[draw(random, sizeof forms / sizeof *forms)], new_word(c, random));
#pragma GCC diagnostic pop
}

static void add_calls(conversation *c, uint64_t *random, bool text) {
  uint32_t n_calls = 1 + draw(random, 2);
  weft_text *more = new_text(c);
  if (text) {
    add_message(c, "assistant", random);
  } else {
    c->message[c->n++] = (weft_chat_message){.role = "assistant", .content = ""};
  }
  weft_chat_message *m = &c->message[c->n - 1];
  weft_text_puts(more, "{\"tool_calls\":[");
  for (uint32_t i = 0; i < n_calls; i++) {
    weft_text_printf(more,
                     "%s{\"id\":\"call_%u\",\"type\":\"function\",\"function\":{\"name\":\"f%ux\",\"arguments\":\"",
                     i > 0 ? "," : "", i, i);
    put_arguments(c, random, more);
    weft_text_puts(more, "\"}}");
  }
  weft_text_puts(more, "]}");
  m->more = more->bytes;
  for (uint32_t i = 0; i < n_calls; i++) {
    weft_text *id = new_text(c);
    add_message(c, "tool", random);
    weft_text_printf(id, "{\"tool_call_id\":\"call_%u\",\"name\":\"f%ux\"}", i, i);
    c->message[c->n - 1].more = id->bytes;
  }
}

/* Questions and answers in turn; now and then the system or a developer speaks, and calls are made. */
static void draw_conversation(conversation *c, uint64_t *random, uint32_t n_turns, bool calls) {
  c->n = c->n_words = c->n_texts = 0;
  for (uint32_t i = 0; i < n_turns; i++) {
    if (draw(random, i == 0 ? 2 : 5) == 0) add_message(c, draw(random, 3) == 0 ? "developer" : "system", random);
    add_message(c, "user", random);
    if (draw(random, 6) == 0) add_message(c, "system", random);
    if (calls && draw(random, 3) == 0) add_calls(c, random, draw(random, 2) == 0);
    if (draw(random, 8) == 0) add_message(c, "system", random);
    if (i + 1 < n_turns) add_message(c, "assistant", random);
  }
}

static void free_conversation(conversation *c) {
  for (uint32_t i = 0; i < c->n_texts; i++) weft_text_free(&c->bytes[i]);
}

static void join_pieces(const weft_chat_pieces *pieces, weft_text *out) {
  for (uint32_t i = 0; i < pieces->n; i++) weft_text_append(out, pieces->pieces[i].text, pieces->pieces[i].n);
  weft_text_puts(out, "");
}

/* Whether the word is in the prompt, as it is or in the escapes of JSON. */
static bool has_word(const char *prompt, const char *word) {
  char escaped[64];
  uint32_t c = 0;
  size_t n = weft_utf8_decode(word, strlen(word), &c);
  (void)snprintf(escaped, sizeof escaped, "\\u%04x%s", c, word + n);
  return strstr(prompt, word) != NULL || (c >= 128 && strstr(prompt, escaped) != NULL);
}

static void check_conversation(const world *w, const conversation *c, uint32_t k) {
  const weft_chat_options options = {.add_generation_prompt = true};
  weft_chat_pieces pieces;
  weft_error error = {{0}};
  weft_status status = weft_chat_split(w->chat, c->message, c->n, &options, &pieces, &error);
  if (status != WEFT_OK) {
    if (templates[k].takes_all) fail_msg("%s refuses: %s", templates[k].name, error.text);
    assert_non_null(strstr(error.text, "chat template"));
    return;
  }
  weft_text prompt = {0};
  join_pieces(&pieces, &prompt);
  for (uint32_t i = 0; i < c->n_words; i++) {
    if (!has_word(prompt.bytes, c->word[i])) fail_msg("%s loses %s: %s", templates[k].name, c->word[i], prompt.bytes);
  }
  weft_text_free(&prompt);
  weft_chat_pieces_close(&pieces);
}

static void all_text_arrives_or_is_refused(void **state) {
  static conversation c;
  (void)state;
  for (uint32_t k = 0; k < N_TEMPLATES; k++) {
    uint64_t random = 77;
    world w;
    world_open(&w, templates[k].name, templates[k].text);
    for (uint32_t round = 0, n = test_amount(20, 150, 3000); round < n; round++) {
      draw_conversation(&c, &random, 1 + draw(&random, 4), round % 2 == 0);
      check_conversation(&w, &c, k);
      free_conversation(&c);
    }
    draw_conversation(&c, &random, 160, true); /* more messages than a byte has numbers */
    check_conversation(&w, &c, k);
    free_conversation(&c);
    world_close(&w);
  }
}

/* ---- each habit ---- */

static weft_chat_message say(const char *role, const char *content) {
  return (weft_chat_message){.role = role, .content = content, .n_content = strlen(content)};
}

static weft_chat_message call(const char *content, const char *more) {
  weft_chat_message m = say("assistant", content);
  m.more = more;
  return m;
}

/* want NULL: it is refused, with these words. */
static void check_told(const char *text, const weft_chat_message *messages, uint32_t n, const char *want,
                       const char *words) {
  const weft_chat_options options = {0};
  world w;
  weft_error error = {{0}};
  weft_chat_pieces pieces;
  weft_text prompt = {0};
  world_open(&w, "here", text);
  weft_status status = weft_chat_split(w.chat, messages, n, &options, &pieces, &error);
  if (want == NULL) {
    assert_int_not_equal(status, WEFT_OK);
    if (strstr(error.text, words) == NULL) fail_msg("%s", error.text);
  } else {
    if (status != WEFT_OK) fail_msg("%s", error.text);
    join_pieces(&pieces, &prompt);
    assert_string_equal(prompt.bytes, want);
    weft_chat_pieces_close(&pieces);
  }
  weft_text_free(&prompt);
  world_close(&w);
}

static void the_systems_words_find_their_place(void **state) {
  const weft_chat_message m[] = {say("developer", "a"), say("system", "b"),    say("user", "c"),
                                 say("system", "d"),    say("assistant", "e"), say("user", "f")};
  (void)state;
  check_told(OPEN "[{{ m.role }}]{{ m.content }}" CLOSE, m, 6,
             "[developer]a[system]b[user]c[system]d[assistant]e[user]f", NULL);
  check_told(OPEN "{% if m.role != 'developer' %}[{{ m.role }}]{{ m.content }}{% endif %}" CLOSE, m, 6,
             "[system]a[system]b[user]c[system]d[assistant]e[user]f", NULL);
  check_told(
      OPEN "{% if loop.first or m.role not in ['system', 'developer'] %}[{{ m.role }}]{{ m.content }}{% endif %}" CLOSE,
      m, 6, "[system]a\n\nb[user]c\n\nd[assistant]e[user]f", NULL);
  check_told(OPEN
             "{% if m.role != 'developer' and (loop.first or m.role != 'system') and 'd' not in (m.content if m.role "
             "== 'user' else '') %}[{{ m.role }}]{{ m.content }}{% endif %}" CLOSE,
             m, 6, "[system]a\n\nb\n\nd[user]c[assistant]e[user]f", NULL);
  check_told(OPEN
             "{% if m.role == 'system' %}{{ raise_exception('none') }}{% endif %}{% if m.role != 'developer' %}"
             "[{{ m.role }}]{{ m.content }}{% endif %}" CLOSE,
             m, 6, "[user]a\n\nb\n\nc\n\nd[assistant]e[user]f", NULL);
  check_told(OPEN "{% if m.role == 'user' %}{{ m.content }}{% endif %}" CLOSE, m, 6, NULL,
             "message 4, of the role assistant: the chat template of here leaves out its text");
}

static void what_is_lost_is_named(void **state) {
  const weft_chat_message m[] = {say("user", "seven words and the last is gone"), say("assistant", "?"),
                                 say("user", " \n")};
  (void)state;
  check_told(OPEN "{{ m.content[:28] }}" CLOSE, m, 1, NULL, "message 0, of the role user: the chat template of here");
  check_told(OPEN "{{ m.content | replace('and', '&') }}" CLOSE, m, 1, NULL, "message 0");
  check_told(OPEN "{% if m.role == 'user' %}{{ m.content }}{% endif %}" CLOSE, m, 2, NULL, "message 1");
  check_told(OPEN "{% if not loop.last %}{{ m.content }}{% endif %}" CLOSE, m, 3, "seven words and the last is gone?",
             NULL);
  const weft_chat_message thought[] = {say("user", "a"), say("assistant", "<think>b</think>c"),
                                       say("user", "<think>d</think>e")};
  check_told(OPEN "{{ m.content.split('</think>')[-1] }}" CLOSE, thought, 2, "ac", NULL);
  check_told(OPEN "{{ m.content.split('</think>')[-1] }}" CLOSE, thought, 3, NULL, "message 2, of the role user");
  const weft_chat_message called[] = {
      say("user", "a"), call("", "{\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}")};
  check_told(OPEN "{{ m.content }}" CLOSE "{# tool_calls #}", called, 2, "a{\"name\":\"f\",\"arguments\":{}}", NULL);
  check_told(OPEN "{{ m.content[:20] }}" CLOSE, called, 2, NULL, "leaves out a call");
}

static void calls_are_told_as_the_template_takes_them(void **state) {
#define MORE(arguments) \
  "{\"tool_calls\":[{\"id\":\"toolu_1\",\"function\":{\"name\":\"f\",\"arguments\":\"" arguments "\"}}]}"
  static const char one[] = OPEN
      "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }} {{ c.function.arguments | tojson }}{% "
      "endfor %}" CLOSE;
  static const char *const rows[][2] = {
      {MORE("{\\\"a\\\": 1}"), "f {\"a\": 1}"},
      {MORE("{\\\"a\\\":\\\"b"), "f {\"a\": \"b\"}"}, /* what max_tokens cut */
      {MORE("{\\\"a\\\":[1,{\\\"b\\\""), "f {\"a\": [1, {\"b\": null}]}"},
      {MORE("{'a': True,}"), "f {\"a\": true}"},
      {MORE("\\\"{\\\\\\\"a\\\\\\\": 1}\\\""), "f {\"a\": 1}"},
      {MORE(""), "f {}"},
      {MORE("now"), "f \"now\""},
      {MORE("[1]"), "f \"[1]\""},
      {MORE("{\\\"a\\\":18446744073709551616,\\\"b\\\":1e999,\\\"c\\\":-0.10}"),
       "f {\"a\": 18446744073709551616, \"b\": 1e999, \"c\": -0.1}"},
      {MORE("{\\\"a\\\":\\\"\\\\u0000\\\\ud800\\\"}"), "f {\"a\": \"\xEF\xBF\xBD\xEF\xBF\xBD\"}"}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const weft_chat_message m[] = {call("", rows[i][0])};
    check_told(one, m, 1, rows[i][1], NULL);
  }
  const weft_chat_message odd[] = {call("", MORE("now"))}, plain[] = {call("so", MORE("{\\\"a\\\": 1}"))};
  check_told(OPEN
             "{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}{{ c.function.name }} "
             "{{ k }}={{ v }}{% endfor %}{% endfor %}" CLOSE,
             odd, 1, "f arguments=now", NULL);
  check_told(
      OPEN
      "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name + c.function.arguments }}{% endfor %}" CLOSE,
      plain, 1, "sof{\"a\": 1}", NULL);
  check_told(OPEN "[{% if m.tool_calls %}{{ m.tool_calls[0].function }}{% else %}{{ m.content }}{% endif %}" CLOSE,
             plain, 1, "[so[{'name': 'f', 'arguments': {'a': 1}}", NULL);
  weft_chat_message two[] = {call("a",
                                  "{\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\"}},{\"id\":\"2\","
                                  "\"function\":{\"name\":\"g\"}}]}"),
                             say("tool", "r2"), say("tool", "r1"), say("tool", "r3")};
  two[1].more = "{\"tool_call_id\":\"2\"}";
  two[2].more = "{\"tool_call_id\":\"1\"}";
  check_told(
      OPEN
      "{{ m.content }}{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif "
      "%}{{ m.tool_calls[0].function.name }}{% endif %}" CLOSE,
      two, 4, "afr1gr2r3", NULL);
  const weft_chat_message asked[] = {say("user", "q"), plain[0]};
  check_told(OPEN
             "{% if m.role == 'user' %}{{ m.content }}{% elif m.tool_calls %}{{ m.tool_calls[0].function.name }}"
             "{{ m.tool_calls[0].function.arguments }}{% else %}{{ raise_exception('no') }}{% endif %}" CLOSE,
             asked, 2, "q\n\nsof{'a': 1}", NULL);
}

/* What an answer that had to be a call was, comes back as text where the template knows of no calls. */
static void calls_are_told_as_text_where_none_are_known(void **state) {
  weft_chat_message m[] = {
      say("user", "q"),
      call("so",
           "{\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": \\\"b\\\"}\"}},"
           "{\"id\":\"2\",\"function\":{\"name\":\"g\",\"arguments\":\"{\\\"a\\\":\"}}]}"),
      say("tool", "r1"),
      say("tool", "r2"),
      say("user", "go"),
      say("assistant", "done"),
      say("user", "more")};
  (void)state;
  m[2].more = "{\"tool_call_id\":\"1\",\"name\":\"f\"}";
  m[3].more = "{\"tool_call_id\":\"2\"}";
  static const char want[] =
      "[user]q[assistant]so\n[{\"name\":\"f\",\"arguments\":{\"a\":\"b\"}}, "
      "{\"name\":\"g\",\"arguments\":{\"a\":null}}]"
      "[user]Result of f:\nr1\n\nResult:\nr2\n\ngo[assistant]done[user]more";
  check_told(OPEN "{% if m.role != 'tool' %}[{{ m.role }}]{{ m.content }}{% endif %}" CLOSE, m, 7, want, NULL);
  check_told(OPEN
             "{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no') }}{% endif %}"
             "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('in turn') }}{% endif %}"
             "[{{ m.role }}]{{ m.content }}" CLOSE,
             m, 7, want, NULL);
  /* calls that are known stay calls; only what has none before it becomes the user's */
  check_told(OPEN
             "{% if m.role == 'tool' and (loop.first or not (loop.previtem.tool_calls or loop.previtem.role == "
             "'tool')) %}{{ raise_exception('a result alone') }}{% endif %}[{{ m.role }}]{{ m.content }}" CALLS CLOSE,
             m + 2, 3, "[user]Result of f:\nr1\n\nResult:\nr2\n\ngo", NULL);
  check_told(OPEN
             "{% if m.role != 'tool' %}[{{ m.role }}]{{ m.content }}{% elif loop.previtem.tool_calls %}"
             "{{ m.content }}{% endif %}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
             "{{ c.function.arguments }}{% endfor %}" CLOSE,
             m + 1, 2, "[assistant]sof{'a': 'b'}g{'a': None}r1", NULL);
}

/* A client's notes, and answers in several items, make rows of one role; some templates want the two in turn. */
static void rows_of_one_role(void **state) {
  static const char in_turn[] = OPEN
      "{% if (m.role == 'user') != (loop.index0 % 2 == 0) or m.role not in ['user', 'assistant'] %}{{ "
      "raise_exception('in turn') "
      "}}{% endif %}"
      "[{{ m.role }}]{{ m.content }}" CLOSE;
  const weft_chat_message m[] = {say("user", "a"),      say("user", "b"),     say("user", "c"), say("assistant", "d"),
                                 say("assistant", "e"), say("assistant", ""), say("user", "f")};
  weft_chat_message called[] = {
      say("user", "a"),
      say("assistant", "b"),
      call("c", "{\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}"),
      say("tool", "r"),
      say("user", "d"),
      say("developer", "e"),
      say("user", "f")};
  (void)state;
  check_told(OPEN "[{{ m.role }}]{{ m.content }}" CLOSE, m, 7,
             "[user]a[user]b[user]c[assistant]d[assistant]e[assistant][user]f", NULL);
  check_told(in_turn, m, 7, "[user]a\n\nb\n\nc[assistant]d\n\ne[user]f", NULL);
  called[3].more = "{\"tool_call_id\":\"1\",\"name\":\"f\"}";
  check_told(in_turn, called, 7,
             "[user]a[assistant]b\n\nc\n{\"name\":\"f\",\"arguments\":{}}[user]Result of f:\nr\n\nd\n\ne\n\nf", NULL);
}

/* Kimi's models know a call by its id alone, which has the function's name in it. */
static void ids_that_have_names(void **state) {
  static const char template[] = OPEN
      "{{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.id }}>{{ c.function.arguments | tojson }}{% endfor %}"
      "{% if m.role == 'tool' %}({{ m.tool_call_id }}){% endif %}" CLOSE;
  weft_chat_message m[] = {
      call(
          "",
          "{\"tool_calls\":[{\"id\":\"toolu_1\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}},{\"id\":\"call_g\","
          "\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}]}"),
      say("tool", "2"),
      say("tool", "1"),
      call("", "{\"tool_calls\":[{\"id\":\"functions.f:2\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}"),
      say("tool", "3"),
      call("", "{\"tool_calls\":[{\"function\":{\"name\":\"h\",\"arguments\":\"{}\"}}]}"),
      say("tool", "4")};
  (void)state;
  m[1].more = "{\"tool_call_id\":\"call_g\"}";
  m[2].more = "{\"tool_call_id\":\"toolu_1\"}";
  m[4].more = "{\"tool_call_id\":\"functions.f:2\"}";
  check_told(template, m, 7,
             "<functions.f:0>{}<functions.g:1>{}2(functions.g:1)1(functions.f:0)<functions.f:2>{}3(functions.f:2)"
             "<functions.h:3>{}4(functions.h:3)",
             NULL);
  check_told(template, m + 3, 2, "<functions.f:2>{}3(functions.f:2)", NULL); /* ids of this form stay */
}

/* Whether a template shows tools is tried, not looked for in its text; and it is looked up in each prompt. */
static void tools_are_shown_or_refused(void **state) {
#define TOOL(name) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"parameters\":{\"type\":\"object\"}}}"
  static const struct {
    const char *text;
    bool tells;
    const char *lost; /* of the tools find and seek; NULL: both are shown */
  } rows[] = {{OPEN SAY CLOSE "{{ tools }}", true, NULL},
              {"{% for t in tools or [] %}{{ t | tojson(indent=2) }}{% endfor %}" OPEN SAY CLOSE, true, NULL},
              {"{% for t in tools or [] %}{{ t.function.name | upper }}{% endfor %}" OPEN SAY CLOSE, true, NULL},
              {"{% if messages[0].role == 'user' %}{{ tools }}{% endif %}" OPEN SAY CLOSE, true, NULL},
              {"{% set tools = tools if tools is defined else none %}{{ tools }}" OPEN SAY CLOSE, true, NULL},
              {"{# tools #}" OPEN SAY CLOSE, false, "find"},
              {OPEN SAY CLOSE, false, "find"},
              {"{% if false %}{{ tools }}{% endif %}" OPEN SAY CLOSE, false, "find"},
              {"{% if tools is none %}{{ tools }}{% endif %}" OPEN SAY CLOSE, false, "find"},
              {"{% if tools %}you have tools{% endif %}" OPEN SAY CLOSE, false, "find"},
              {"{{ tools | length }}" OPEN SAY CLOSE, false, "find"},
              {"{% for t in tools or [] %}{{ t.name }}{% endfor %}" OPEN SAY CLOSE, false, "find"},
              {"{{ tools[0] }}" OPEN SAY CLOSE, true, "seek"},
              {"{% if messages | length > 1 and messages[0].role == 'system' %}{{ tools }}{% endif %}" OPEN SAY CLOSE,
               true, "find"},
              {"{{ raise_exception('never') if messages | length < 3 }}{{ tools }}" OPEN SAY CLOSE, true, NULL}};
  const weft_chat_message m[] = {say("user", "find and seek a"), say("assistant", "b"), say("user", "c")};
  weft_chat_options options = {.tools = "[" TOOL("find") "," TOOL("seek") "]"};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    world w;
    weft_error error = {{0}};
    weft_chat_pieces pieces;
    world_open(&w, "here", rows[i].text);
    if (weft_chat_tells_tools(w.chat) != rows[i].tells) fail_msg("%s", rows[i].text);
    for (int anyway = 0; anyway < 2; anyway++) {
      options.calls_anyway = anyway == 1;
      weft_status status = weft_chat_split(w.chat, m, 3, &options, &pieces, &error);
      if (rows[i].lost == NULL || anyway == 1) {
        if (status != WEFT_OK) fail_msg("%s: %s", rows[i].text, error.text);
        weft_chat_pieces_close(&pieces);
        continue;
      }
      char words[64];
      (void)snprintf(words, sizeof words, "has no place for the tool '%s'", rows[i].lost);
      if (status != WEFT_E_UNSUPPORTED || strstr(error.text, words) == NULL)
        fail_msg("%s: %s", rows[i].text, error.text);
    }
    world_close(&w);
  }
}

/* Equal ids stay equal, different ones different; one of the form that is wanted stays. */
static void ids_have_the_form_of_the_template(void **state) {
  static const char template[] =
      "{# [TOOL_CALLS] #}" OPEN
      "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.id }}={{ c.function.name }},{% endfor %}"
      "{% if m.role == 'tool' %}({{ m.tool_call_id }}){% endif %}" CLOSE;
  const weft_chat_message m[] = {
      call("",
           "{\"tool_calls\":[{\"id\":\"toolu_01AbC\",\"function\":{\"name\":\"f\"}},{\"id\":\"abcDEF123\",\"function\":"
           "{\"name\":\"g\"}},{\"function\":{\"name\":\"h\"}}]}"),
      {.role = "tool", .content = "1", .n_content = 1, .more = "{\"tool_call_id\":\"toolu_01AbC\"}"},
      {.role = "tool", .content = "2", .n_content = 1, .more = "{\"tool_call_id\":\"abcDEF123\"}"},
      {.role = "tool", .content = "3", .n_content = 1}};
  const weft_chat_options options = {0};
  world w;
  weft_error error = {{0}};
  weft_chat_pieces pieces;
  weft_text prompt = {0};
  char id[3][16], back[3][16];
  (void)state;
  world_open(&w, "here", template);
  if (weft_chat_split(w.chat, m, 4, &options, &pieces, &error) != WEFT_OK) fail_msg("%s", error.text);
  join_pieces(&pieces, &prompt);
  assert_int_equal(sscanf(prompt.bytes,
                          "%15[a-zA-Z0-9]=f,%15[a-zA-Z0-9]=g,%15[a-zA-Z0-9]=h,1(%15[a-zA-Z0-9])2(%15[a-zA-Z0-9])3("
                          "%15[a-zA-Z0-9])",
                          id[0], id[1], id[2], back[0], back[1], back[2]),
                   6);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(strlen(id[i]), 9);
    assert_string_equal(id[i], back[i]);
    assert_string_not_equal(id[i], id[(i + 1) % 3]);
  }
  assert_string_equal(id[1], "abcDEF123");
  weft_text_free(&prompt);
  weft_chat_pieces_close(&pieces);
  world_close(&w);
}

/* Memory may be refused anywhere on the way of a conversation that has to be retold. */
static void refused_memory_is_an_error(void **state) {
  const weft_chat_message m[] = {say("system", "a"), say("user", "b"), say("system", "c"),
                                 call("d", MORE("{\\\"k\\\":"))};
  const weft_chat_options options = {0};
  world w;
  (void)state;
  world_open(&w, "here",
             OPEN
             "{% if loop.first or m.role != 'system' %}{% if m.tool_calls %}{{ m.tool_calls[0].function.name + "
             "m.tool_calls[0].function.arguments }}{% else %}{{ m.content }}{% endif %}{% endif %}" CLOSE);
  uint64_t n = 0;
  for (weft_status status = WEFT_E_NO_MEMORY; status != WEFT_OK; n++) {
    weft_chat_pieces pieces;
    weft_error error = {{0}};
    (void)weft_memory_fail_at(n + 1);
    status = weft_chat_split(w.chat, m, 4, &options, &pieces, &error);
    (void)weft_memory_fail_at(0);
    if (status == WEFT_OK) {
      weft_chat_pieces_close(&pieces);
      break;
    }
    assert_int_equal(status, WEFT_E_NO_MEMORY);
    assert_true(n < 2000);
  }
  assert_true(n > 1);
  world_close(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_systems_words_find_their_place),
      cmocka_unit_test(what_is_lost_is_named),
      cmocka_unit_test(calls_are_told_as_the_template_takes_them),
      cmocka_unit_test(calls_are_told_as_text_where_none_are_known),
      cmocka_unit_test(ids_have_the_form_of_the_template),
      cmocka_unit_test(ids_that_have_names),
      cmocka_unit_test(rows_of_one_role),
      cmocka_unit_test(tools_are_shown_or_refused),
      cmocka_unit_test(refused_memory_is_an_error),
      cmocka_unit_test(all_text_arrives_or_is_refused),
  };
  weft_log_set_level((weft_log_level)-1);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
