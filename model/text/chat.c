/* SPDX-License-Identifier: MIT */
/* A file's chat template, and prompts made by it. */
#include "model/text/chat.h"

#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/memory.h"
#include "model/text/token_trie.h"
#include "model/text/chat_internal.h"
#include "model/text/chat_messages.h"
#include "model/text/chat_parting.h"
#include "model/text/json_tree.h"

enum { MESSAGES_MAX = 1 << 16 };
/* What all ways of telling a conversation may cost together, and how many are tried whatever they cost. */
enum { ATTEMPTS_COST = 16 << 20, ATTEMPTS_LEAST = 8 };
static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
enum { N_ROLES = sizeof roles / sizeof *roles };

bool weft_chat_is_role(const char *role) {
  for (size_t i = 0; i < N_ROLES; i++) {
    if (strcmp(role, roles[i]) == 0) return true;
  }
  return false;
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool has_text(weft_bytes text, const char *word) {
  return memmem(text.data, text.n, word, strlen(word)) != NULL;
}

/* Markers that only these templates write. Without their tokens a prompt would be letters that the model never saw. */
static const char *const needed[] = {"<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|im_start|>", "<|im_end|>"};

static weft_status need_tokens(const weft_chat *chat, weft_bytes t, weft_error *error) {
  for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
    if (!has_text(t, needed[i]) || weft_tokenizer_find(chat->tokenizer, needed[i]) >= 0) continue;
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "%s: the chat template needs the token %s, which the vocabulary lacks; --chat-template FILE takes "
                     "another template",
                     chat->name, needed[i]);
  }
  return WEFT_OK;
}

/* By chat_thoughts. */
static const char *const thought_open[] = {NULL, "<|channel>", "<think>", NULL};
static const char *const thought_close[] = {NULL, "<channel|>", "</think>", NULL};

/* How this template's model marks its thinking. */
static void read_thoughts(weft_chat *chat, weft_bytes t) {
  chat->thought = chat->thought_end = -1;
  for (int k = CHAT_THOUGHTS_CHANNEL; k <= CHAT_THOUGHTS_TAGS; k++) {
    int32_t from = weft_tokenizer_find(chat->tokenizer, thought_open[k]),
            to = weft_tokenizer_find(chat->tokenizer, thought_close[k]);
    bool tokens = weft_token_trie_is_marker(chat->tokenizer, from) && weft_token_trie_is_marker(chat->tokenizer, to);
    if (!has_text(t, k == CHAT_THOUGHTS_CHANNEL ? thought_open[k] : thought_close[k])) continue;
    if (!tokens && k != CHAT_THOUGHTS_TAGS) continue;
    chat->thought_letters = !tokens;
    chat->thoughts = (chat_thoughts)k;
    if (tokens) chat->thought = from;
    if (tokens) chat->thought_end = to;
    break;
  }
  if (chat->thoughts == CHAT_THOUGHTS_NONE && chat_harmony_find(chat->tokenizer, t, &chat->harmony))
    chat->thoughts = CHAT_THOUGHTS_HARMONY;
  chat->lacks_switch = has_text(t, "<|think|>") && weft_tokenizer_find(chat->tokenizer, "<|think|>") < 0;
}

static void read_calls(weft_chat *chat, weft_bytes t) {
  chat->calls = weft_call_form_of(t.data, t.n);
  if (chat->thoughts == CHAT_THOUGHTS_HARMONY) chat->calls = WEFT_CALLS_HERMES; /* as which its stream gives them */
  for (uint32_t i = 0; i < WEFT_CALL_MARKERS; i++) {
    if (!weft_call_form_has(chat->calls, weft_call_markers[i])) continue; /* it says nothing here */
    int32_t id = weft_tokenizer_find(chat->tokenizer, weft_call_markers[i]);
    if (id >= 0) chat->call_marker[chat->n_call_markers++] = id;
  }
}

weft_call_form weft_chat_call_form(const weft_chat *chat) {
  return chat->calls;
}

bool weft_chat_tells_tools(const weft_chat *chat) {
  return chat->tells_tools;
}

const char *weft_chat_thought_open(const weft_chat *chat) {
  return thought_open[chat->thoughts];
}

const char *weft_chat_thought_close(const weft_chat *chat) {
  return thought_close[chat->thoughts];
}

bool weft_chat_can_think(const weft_chat *chat) {
  return chat->thoughts != CHAT_THOUGHTS_NONE && !chat->lacks_switch;
}

/* The text of a token that the file names for a purpose, "" when it names none. */
static char *named_text(const weft_tokenizer *tokenizer, int32_t id) {
  weft_text text = {0};
  if (id >= 0) (void)weft_tokenizer_piece(tokenizer, id, true, &text);
  char *copy = weft_text_status(&text) == WEFT_OK ? weft_strndup(text.n == 0 ? "" : text.bytes, text.n) : NULL;
  weft_text_free(&text);
  return copy;
}

static weft_status read_words(weft_chat *chat, weft_error *error) {
  const weft_tokenizer *t = chat->tokenizer;
  chat->bos = named_text(t, weft_tokenizer_bos(t));
  chat->eos = named_text(t, weft_tokenizer_eos(t));
  chat->pad = named_text(t, weft_tokenizer_pad(t));
  chat->unk = named_text(t, weft_tokenizer_unk(t));
  if (chat->bos != NULL && chat->eos != NULL && chat->pad != NULL && chat->unk != NULL) return WEFT_OK;
  return weft_fail(error, WEFT_E_NO_MEMORY, "out of memory while reading the chat template");
}

static weft_status read_template(weft_chat *chat, weft_bytes t, bool own, weft_error *error) {
  weft_error line = {{0}};
  weft_status status = own ? need_tokens(chat, t, error) : WEFT_OK;
  if (status != WEFT_OK) return status;
  read_thoughts(chat, t);
  read_calls(chat, t);
  status = weft_jinja_open(t.data, t.n, &chat->jinja, &line);
  if (status == WEFT_E_NO_MEMORY) return weft_fail(error, status, "%s", line.text);
  if (status != WEFT_OK) {
    return weft_fail(error, status, "%s: the chat template, %.300s%s", chat->name, line.text,
                     own ? "; --chat-template FILE takes another template" : "");
  }
  return read_words(chat, error);
}

static weft_status try_tools(weft_chat *chat, bool named, weft_error *error);

weft_status weft_chat_open(const weft_gguf *gguf, const weft_tokenizer *tokenizer, weft_bytes chat_template,
                           const char *name, weft_chat **out, weft_error *error) {
  bool own = chat_template.data == NULL;
  weft_status status = WEFT_OK;
  *out = NULL;
  if (own) {
    name = weft_gguf_path(gguf);
    status = weft_gguf_string(gguf, "tokenizer.chat_template", &chat_template, error);
    if (status == WEFT_E_NOT_FOUND) {
      return weft_fail(error, status, "%s has no chat template; --chat-template FILE takes one", name);
    }
    if (status != WEFT_OK) return status;
  }
  weft_chat *chat = weft_alloc(1, sizeof *chat);
  char *copy = weft_strdup(name);
  chat_told *told = weft_alloc(1, sizeof *told);
  if (chat == NULL || copy == NULL || told == NULL) {
    weft_free(chat);
    weft_free(told);
    weft_free(copy);
    return weft_fail(error, WEFT_E_NO_MEMORY, "out of memory while reading the chat template");
  }
  chat->tokenizer = tokenizer;
  chat->name = copy;
  chat->told = told;
  status = read_template(chat, chat_template, own, error);
  if (status == WEFT_OK) status = try_tools(chat, has_text(chat_template, "tools"), error);
  if (status == WEFT_OK) {
    *out = chat;
  } else {
    weft_chat_close(chat);
  }
  return status;
}

void weft_chat_close(weft_chat *chat) {
  if (chat == NULL) return;
  weft_jinja_close(chat->jinja);
  weft_free(chat->name);
  weft_free(chat->told);
  weft_free(chat->bos);
  weft_free(chat->eos);
  weft_free(chat->pad);
  weft_free(chat->unk);
  weft_free(chat);
}

/* Whether the text of the tokens ends with the letters that begin thinking, and line ends. */
static bool ends_with_letters(const weft_chat *chat, const int32_t *tokens, uint32_t n) {
  enum { LAST = 32 }; /* tokens that are looked at: as many as the letters and a few blanks may be */
  const char *open = thought_open[chat->thoughts];
  size_t n_open = strlen(open);
  weft_text text = {0};
  for (uint32_t i = n > LAST ? n - LAST : 0; i < n; i++) {
    (void)weft_tokenizer_piece(chat->tokenizer, tokens[i], true, &text);
  }
  while (text.n > 0 && strchr(" \n", text.bytes[text.n - 1]) != NULL) text.n -= 1;
  bool ends = text.n >= n_open && memcmp(text.bytes + text.n - n_open, open, n_open) == 0;
  weft_text_free(&text);
  return ends;
}

/* The last marker decides: only the template's own bytes are markers. Markers of letters, which a user may have
 * written, too, count at the very end alone. */
bool weft_chat_starts_thinking(const weft_chat *chat, const int32_t *tokens, uint32_t n) {
  if (chat->thoughts == CHAT_THOUGHTS_NONE) return false;
  if (chat->thoughts == CHAT_THOUGHTS_HARMONY) return chat_harmony_starts_thinking(chat, tokens, n);
  if (chat->thought_letters) return ends_with_letters(chat, tokens, n);
  while (n > 0 && tokens[n - 1] != chat->thought && tokens[n - 1] != chat->thought_end) n -= 1;
  return n > 0 && tokens[n - 1] == chat->thought;
}

/* ---- the template's variables ---------------------------------------------------------------- */

static weft_status check_messages(const weft_chat *chat, const weft_chat_message *messages, uint32_t n,
                                  const weft_chat_options *options, weft_error *error) {
  if (n == 0) return weft_fail(error, WEFT_E_INVALID, "messages is empty; a conversation needs at least one");
  if (n > MESSAGES_MAX) {
    return weft_fail(error, WEFT_E_TOO_LARGE, "%u messages; a conversation has at most %d", n, MESSAGES_MAX);
  }
  for (uint32_t i = 0; i < n; i++) {
    if (weft_chat_is_role(messages[i].role)) continue;
    return weft_fail(error, WEFT_E_INVALID, "messages[%u].role is '%.32s'; it must be " WEFT_CHAT_ROLES, i,
                     messages[i].role);
  }
  if (options->thinking && chat->lacks_switch) {
    return weft_fail(error, WEFT_E_UNSUPPORTED, "this model cannot think: its vocabulary has no token <|think|>");
  }
  return WEFT_OK;
}

/* Takes value; false when memory was refused. */
static bool put_member(json_t *object, const char *name, json_t *value) {
  return json_object_set_new(object, name, value) == 0;
}

/* The JSON of a caller, as an object or a list; NULL with a line when it is none. */
static json_t *read_json(const char *text, bool object, const char *what, weft_error *error) {
  json_error_t why;
  json_t *json = weft_json_read(text, strlen(text), 0, &why);
  if (json != NULL && json_is_object(json) == object && json_is_array(json) == !object) return json;
  (void)weft_fail(error, WEFT_E_INVALID, "%s must be a JSON %s%s%s", what, object ? "object" : "list",
                  json == NULL ? ": " : "", json == NULL ? why.text : "");
  json_decref(json);
  return NULL;
}

static weft_status no_memory(weft_error *error) {
  return weft_fail(error, WEFT_E_NO_MEMORY, "out of memory while writing the prompt");
}

/* Names that a caller's variables may not take: what they say is decided elsewhere. */
static const char *const own_names[] = {"messages",  "tools",    "add_generation_prompt", "bos_token", "eos_token",
                                        "pad_token", "unk_token"};

static weft_status add_variables(json_t *values, const char *text, weft_error *error) {
  json_t *more = read_json(text, true, "chat_template_kwargs", error);
  if (more == NULL) return WEFT_E_INVALID;
  weft_status status = WEFT_OK;
  for (size_t i = 0; i < sizeof own_names / sizeof *own_names && status == WEFT_OK; i++) {
    if (json_object_get(more, own_names[i]) == NULL) continue;
    status = weft_fail(error, WEFT_E_INVALID, "chat_template_kwargs.%s is the server's own", own_names[i]);
  }
  if (status == WEFT_OK && json_object_update(values, more) != 0) status = no_memory(error);
  json_decref(more);
  return status;
}

/* All variables but the messages. */
static weft_status add_values(json_t *values, const weft_chat_options *options, weft_error *error) {
  json_t *tools = json_null();
  bool done = put_member(values, "documents", json_null()) &&
              put_member(values, "add_generation_prompt", json_boolean(options->add_generation_prompt)) &&
              put_member(values, "enable_thinking", json_boolean(options->thinking));
  weft_status status = done ? WEFT_OK : no_memory(error);
  if (status == WEFT_OK && options->tools != NULL) {
    tools = read_json(options->tools, false, "tools", error);
    if (tools == NULL) status = WEFT_E_INVALID;
  }
  if (status == WEFT_OK && !put_member(values, "tools", tools)) status = no_memory(error);
  if (status == WEFT_OK && options->variables != NULL) status = add_variables(values, options->variables, error);
  return status;
}

/* ---- rendering ------------------------------------------------------------------------------- */

/* The member of a message that holds its thinking, where the template has another name for it than others. */
static const char *thinking_member(const weft_chat *chat) {
  return chat->thoughts == CHAT_THOUGHTS_HARMONY ? "thinking" : NULL;
}

/* *steps: that all attempts together may still take. */
static weft_status print_prompt(const weft_chat *chat, const json_t *values, uint64_t *steps, weft_jinja_text *out,
                                weft_error *error) {
  const weft_jinja_word words[] = {
      {"bos_token", chat->bos}, {"eos_token", chat->eos}, {"pad_token", chat->pad}, {"unk_token", chat->unk}};
  weft_jinja_context context = {.values = values,
                                .words = words,
                                .n_words = sizeof words / sizeof *words,
                                .roles = roles,
                                .n_roles = N_ROLES,
                                .budget = weft_jinja_budget_default(),
                                .steps_left = steps};
  weft_error line = {{0}};
  time_t now = time(NULL);
  (void)localtime_r(&now, &context.now);
  context.budget.steps = *steps;
  weft_status status = weft_jinja_render(chat->jinja, &context, out, &line);
  if (status == WEFT_OK || status == WEFT_E_NO_MEMORY) return status == WEFT_OK ? status : no_memory(error);
  return weft_fail(error, status, "the chat template of %.120s, %s", chat->name, line.text);
}

/* That the model must know its tools, or that it need not. */
static weft_status tell_tools_lost(const weft_chat *chat, const chat_lost *lost, bool calls_anyway, weft_error *error) {
  enum { TOLD = 1u << 31 };
  if (!calls_anyway) {
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "the chat template of %.120s has no place for the tool '%.128s', so the model would not know it: "
                     "say tool_choice required or none, or serve the model with --chat-template",
                     chat->name, lost->tool);
  }
  if ((atomic_fetch_or(&chat->told->ways, TOLD) & TOLD) == 0) {
    weft_log(WEFT_LOG_WARN,
             "the chat template of %.200s has no place for the tool '%.128s': the model is not told of it, and its "
             "call is made because it must be; told once",
             chat->name, lost->tool);
  }
  return WEFT_OK;
}

/* What was found of one way of telling a conversation. */
typedef struct attempt {
  weft_status status; /* UNSUPPORTED: text is lost */
  chat_lost lost;
} attempt;

static weft_status tell_loss(const weft_chat *chat, const chat_lost *lost, weft_error *error) {
  if (strcmp(lost->role, "tool") == 0) {
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "message %u is a result of a tool, which the chat template of %.120s has no place for there: send "
                     "it behind the call that it answers, or serve the model with --chat-template",
                     lost->message, chat->name);
  }
  return weft_fail(error, WEFT_E_UNSUPPORTED,
                   "message %u, of the role %.16s: the chat template of %.120s leaves out %s, or a part of it: say it "
                   "in another message, or serve the model with --chat-template",
                   lost->message, lost->role, chat->name, lost->what);
}

/* Prints a conversation, and finds what of it the template leaves out. */
static weft_status print_told(const weft_chat *chat, json_t *told, json_t *values, uint64_t *steps,
                              weft_jinja_text *out, chat_lost *lost, weft_error *error) {
  if (json_object_set(values, "messages", told) != 0) return no_memory(error);
  weft_status status = print_prompt(chat, values, steps, out, error);
  if (status != WEFT_OK) return status;
  status = chat_messages_lost(told, json_object_get(values, "tools"), out, lost);
  return status == WEFT_OK ? WEFT_OK : no_memory(error);
}

static attempt try_way(const weft_chat *chat, const json_t *messages, chat_way way, bool calls_anyway, json_t *values,
                       uint64_t *steps, weft_jinja_text *out, weft_error *error) {
  attempt a = {.status = WEFT_OK};
  json_t *told = chat_messages_tell(messages, way, chat->calls == WEFT_CALLS_MISTRAL);
  a.status = told == NULL ? no_memory(error) : print_told(chat, told, values, steps, out, &a.lost, error);
  if (a.status == WEFT_OK && a.lost.tool != NULL) a.status = tell_tools_lost(chat, &a.lost, calls_anyway, error);
  if (a.status == WEFT_OK && a.lost.any) a.status = tell_loss(chat, &a.lost, error);
  json_decref(told);
  if (a.status != WEFT_OK) weft_jinja_text_free(out);
  return a;
}

/* How many levels each dimension has. */
static const uint32_t levels[CHAT_DIMENSIONS] = {CHAT_SYSTEM_WAYS, CHAT_ARGUMENTS_WAYS, CHAT_BESIDE_WAYS,
                                                 CHAT_CALLS_WAYS,  CHAT_IDS_WAYS,       CHAT_ROWS_WAYS};

/* The log hears once of each way in which this template makes conversations be told. */
static void log_way(const weft_chat *chat, chat_way way) {
  static const char *const lines[CHAT_DIMENSIONS][CHAT_SYSTEM_WAYS] = {
      {NULL, "a message of the role developer is told as the system's",
       "messages of the system behind the first are told as the user's",
       "messages of the system are joined to one at the beginning", "messages of the system are told as the user's",
       "messages of the system are told before the user's first"},
      {NULL, "arguments of calls that are no object are told as the member of one",
       "arguments of calls are told as they were written"},
      {NULL, "text beside calls is told as a message before them",
       "text beside calls is told at the end of the message before"},
      {NULL, "several calls of a message are told one by one", "results without their calls are told as the user's",
       "calls are told as text of the assistant, and results as the user's"},
      {NULL, "ids of calls are told as functions.NAME:INDEX"},
      {NULL, "messages of one role in a row are told as one"}};
  for (uint32_t i = 0, at = 0; i < CHAT_DIMENSIONS; at += levels[i++]) {
    uint32_t bit = 1u << (at + way.level[i]);
    if (way.level[i] == 0 || (atomic_fetch_or(&chat->told->ways, bit) & bit) != 0) continue;
    weft_log(WEFT_LOG_WARN, "the chat template of %.200s does not take a conversation as it is: %s; told once",
             chat->name, lines[i][way.level[i]]);
  }
}

/* The next way after *way, those that change least first; false: there is none. */
static bool find_next_way(const chat_ways may, const bool known[CHAT_DIMENSIONS], chat_way *way) {
  uint32_t n = 1, at = 0, sum = 0, top = 0;
  for (uint32_t i = 0; i < CHAT_DIMENSIONS; i++) {
    at += n * way->level[i];
    n *= levels[i];
    sum += way->level[i];
    top += levels[i] - 1;
  }
  for (at += 1; sum <= top; sum++, at = 0) {
    for (; at < n; at++) {
      chat_way next;
      uint32_t rest = at, changes = 0;
      bool fits = true;
      for (uint32_t i = 0; i < CHAT_DIMENSIONS; rest /= levels[i++]) {
        next.level[i] = (uint8_t)(rest % levels[i]);
        changes += next.level[i];
        fits = fits && (next.level[i] == 0 || (known[i] && may[i][next.level[i]]));
      }
      if (!fits || changes != sum) continue;
      *way = next;
      return true;
    }
  }
  return false;
}

/* Prints the conversation as it is; where the template refuses it or leaves text out, in the ways that may help, until
 * all of it is there, or as much work was done as one request may ask for. The line is that of the conversation as it
 * is, unless a way leaves nothing out but tools. */
static weft_status print_messages(const weft_chat *chat, const json_t *messages, bool calls_anyway, json_t *values,
                                  weft_jinja_text *out, weft_error *error) {
  uint64_t steps = weft_jinja_budget_default().steps;
  chat_way way = {{0}};
  attempt a = try_way(chat, messages, way, calls_anyway, values, &steps, out, error);
  weft_status first = a.status;
  bool known[CHAT_DIMENSIONS] = {false};
  chat_ways may = {{false}};
  if (first == WEFT_OK || a.lost.other) return first; /* no way moves it */
  chat_messages_ways(messages, may);
  uint64_t cost = chat_messages_cost(messages),
           left = cost < ATTEMPTS_COST / ATTEMPTS_LEAST ? ATTEMPTS_COST / cost : ATTEMPTS_LEAST;
  while (a.status == WEFT_E_INVALID || a.status == WEFT_E_UNSUPPORTED) {
    weft_error line = {{0}};
    for (uint32_t i = 0; i < CHAT_DIMENSIONS; i++) {
      known[i] = known[i] || a.status == WEFT_E_INVALID || a.lost.dimension[i];
    }
    if (left-- == 0 || !find_next_way(may, known, &way)) return first;
    a = try_way(chat, messages, way, calls_anyway, values, &steps, out, &line);
    bool tools_alone = a.status == WEFT_E_UNSUPPORTED && a.lost.tool != NULL && !a.lost.any; /* all else is there */
    if (a.status == WEFT_E_NO_MEMORY || tools_alone) *error = line;
    if (a.status == WEFT_E_NO_MEMORY || tools_alone) return a.status;
    if (a.status == WEFT_OK) log_way(chat, way);
  }
  return a.status == WEFT_OK ? WEFT_OK : first;
}

/* Whether a conversation of these messages shows a tool: what is only named in a template, in a comment or under a
 * condition that does not hold, shows nothing. *out is left as it was where the template refuses the conversation. */
static weft_status show_tool(const weft_chat *chat, const weft_chat_message *messages, uint32_t n, bool *out,
                             weft_error *error) {
  static const weft_chat_options options = {
      .tools =
          "[{\"type\":\"function\",\"function\":{\"name\":\"look_up\",\"description\":\"Looks up.\","
          "\"parameters\":{\"type\":\"object\",\"properties\":{\"key\":{\"type\":\"string\"}}}}}]",
      .add_generation_prompt = true};
  uint64_t steps = weft_jinja_budget_default().steps;
  json_t *values = json_object(), *list = NULL;
  weft_jinja_text text = {0};
  weft_error line = {{0}};
  chat_lost lost;
  weft_status status =
      values == NULL ? no_memory(error) : chat_messages_read(messages, n, thinking_member(chat), &list, error);
  if (status == WEFT_OK) status = add_values(values, &options, error);
  if (status == WEFT_OK) {
    weft_status printed = print_told(chat, list, values, &steps, &text, &lost, &line);
    if (printed == WEFT_OK) *out = lost.tool == NULL;
    if (printed == WEFT_E_NO_MEMORY) status = no_memory(error);
  }
  weft_jinja_text_free(&text);
  json_decref(values);
  json_decref(list);
  return status;
}

/* Whether the template shows tools. Where it refuses the conversations that are tried, its text is asked. */
static weft_status try_tools(weft_chat *chat, bool named, weft_error *error) {
  static const weft_chat_message messages[] = {{.role = "system", .content = "a", .n_content = 1},
                                               {.role = "user", .content = "b", .n_content = 1}};
  chat->tells_tools = named;
  weft_status status = named ? show_tool(chat, messages, 2, &chat->tells_tools, error) : WEFT_OK;
  bool alone = chat->tells_tools;
  if (named && status == WEFT_OK) status = show_tool(chat, messages + 1, 1, &alone, error);
  chat->tells_tools = chat->tells_tools || alone;
  return status;
}

static weft_chat_piece *add_piece(weft_chat_pieces *out, uint32_t *capacity) {
  weft_chat_piece *pieces = weft_grow(out->pieces, out->n, capacity, 32, sizeof *pieces);
  if (pieces == NULL) return NULL;
  out->pieces = pieces;
  return &out->pieces[out->n++];
}

/* Special tokens are found in stretches of the template's own bytes alone; all that lies between two of them is one
 * text. */
static weft_status cut_pieces(const weft_chat *chat, const weft_jinja_text *text, weft_chat_pieces *out) {
  uint32_t capacity = 0;
  size_t from = 0, own = 0; /* the own bytes at `at` reach to `own` */
  for (size_t at = 0; at <= text->n;) {
    if (own < at) own = at;
    while (own < text->n && text->marks[own] == 1) own += 1;
    size_t length = 0;
    int32_t id = weft_tokenizer_special_at(chat->tokenizer, text->bytes + at, own - at, &length);
    if ((id >= 0 || at == text->n) && at > from) {
      weft_chat_piece *piece = add_piece(out, &capacity);
      if (piece == NULL) return WEFT_E_NO_MEMORY;
      *piece = (weft_chat_piece){-1, text->bytes + from, at - from};
    }
    if (id < 0) {
      at += 1;
      continue;
    }
    weft_chat_piece *piece = add_piece(out, &capacity);
    if (piece == NULL) return WEFT_E_NO_MEMORY;
    *piece = (weft_chat_piece){id, text->bytes + at, length};
    at += piece->n;
    from = at;
  }
  return WEFT_OK;
}

weft_status weft_chat_split(const weft_chat *chat, const weft_chat_message *messages, uint32_t n,
                            const weft_chat_options *options, weft_chat_pieces *out, weft_error *error) {
  *out = (weft_chat_pieces){0};
  weft_status status = check_messages(chat, messages, n, options, error);
  if (status != WEFT_OK) return status;
  weft_jinja_text text = {0};
  json_t *values = json_object(), *list = NULL;
  status = values == NULL ? no_memory(error) : chat_messages_read(messages, n, thinking_member(chat), &list, error);
  if (status == WEFT_OK) status = add_values(values, options, error);
  if (status == WEFT_OK) status = print_messages(chat, list, options->calls_anyway, values, &text, error);
  json_decref(values);
  json_decref(list);
  if (status != WEFT_OK) return status;
  status = cut_pieces(chat, &text, out);
  out->bytes = text.bytes;
  if (status == WEFT_OK) chat_parting_find(messages, n, &text, out);
  weft_free(text.marks);
  if (status == WEFT_OK) return WEFT_OK;
  weft_chat_pieces_close(out);
  return no_memory(error);
}

void weft_chat_pieces_close(weft_chat_pieces *pieces) {
  weft_free(pieces->pieces);
  weft_free(pieces->bytes);
  *pieces = (weft_chat_pieces){0};
}

weft_status weft_chat_render(const weft_chat *chat, const weft_chat_message *messages, uint32_t n,
                             const weft_chat_options *options, weft_tokens *out, uint32_t parting[2],
                             weft_error *error) {
  weft_chat_pieces pieces;
  weft_status status = weft_chat_split(chat, messages, n, options, &pieces, error);
  uint32_t before = out->n;
  for (uint32_t i = 0; i < pieces.n && status == WEFT_OK; i++) {
    const weft_chat_piece *piece = &pieces.pieces[i];
    if (piece->token < 0) {
      status = weft_tokenizer_encode(chat->tokenizer, piece->text, piece->n, WEFT_ENCODE_PLAIN, out, error);
    } else {
      status = weft_tokens_push(out, piece->token);
      if (status != WEFT_OK) (void)no_memory(error);
    }
    for (uint32_t k = 0; k < 2 && parting != NULL; k++)
      if (pieces.parting[k] == i + 1) parting[k] = out->n;
  }
  weft_chat_pieces_close(&pieces);
  if (status != WEFT_OK) out->n = before;
  return status;
}
