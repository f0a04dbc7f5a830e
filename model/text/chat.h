/* SPDX-License-Identifier: MIT */
/* Chat templates: turns a conversation into a prompt, and splits an answer into thinking and text.
 *
 * Law: what is rendered is the text of tokenizer.chat_template, or of a template given in its place, by
 * model/text/jinja.h. A prompt is made of pieces: special tokens, which stand for bytes that the template wrote (or
 * the server's own word for a role), and text, which may come from any client and is encoded so that no special
 * token is found in it. Prompts of ordinary text have exactly the tokens that the reference gets by printing the
 * template and encoding the result; text of a request that spells special tokens stays text, in whatever field it
 * came. */
#ifndef WEFT_MODEL_TEXT_CHAT_H
#define WEFT_MODEL_TEXT_CHAT_H

#include "model/text/calls.h"
#include "model/text/detok.h"
#include "model/text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_chat weft_chat; /* immutable, any thread */

/* Who may speak in a message: the roles that templates are asked to render. */
#define WEFT_CHAT_ROLES "system, developer, user, assistant or tool"
bool weft_chat_is_role(const char *role);

typedef struct weft_chat_message {
  const char *role; /* one of WEFT_CHAT_ROLES */
  const char *content;
  size_t n_content;
  const char *thinking; /* of an assistant's message, where it is known apart from the content; else NULL */
  size_t n_thinking;
  const char *more; /* further members as a JSON object, for example {"tool_calls": [...]}; NULL: none */
} weft_chat_message;

typedef struct weft_chat_options {
  bool thinking;              /* let the model think (enable_thinking), for templates that have such a switch */
  bool add_generation_prompt; /* open the model's turn at the end */
  const char *tools;          /* a JSON list of declarations; NULL: none */
  bool calls_anyway;          /* the answer is held to calls, so that the model need not have been shown its tools */
  const char *variables;      /* further variables of the template as a JSON object; NULL: none */
} weft_chat_options;

/* A special token and its text where token >= 0; ordinary text where token == -1. */
typedef struct weft_chat_piece {
  int32_t token;
  const char *text;
  size_t n;
} weft_chat_piece;

typedef struct weft_chat_pieces {
  weft_chat_piece *pieces;
  uint32_t n;
  char *bytes; /* the whole prompt, into which the pieces' texts point */
  /* Pieces before the places where other prompts are likely to part from this one: before the first message that is no
   * instruction, and behind the last text that came with the request (chat_parting.h). 0: there is none. */
  uint32_t parting[2];
} weft_chat_pieces;

/* The tokenizer is borrowed until close. With chat_template.data NULL the file's own template is taken; name tells in
 * messages where another template comes from. NOT_FOUND: the file has no template. FORMAT, UNSUPPORTED, TOO_LARGE: the
 * template cannot be compiled; the line names the template's line and what is not supported. UNSUPPORTED also when the
 * file's own template needs a token that the file's vocabulary lacks. */
weft_status weft_chat_open(const weft_gguf *gguf, const weft_tokenizer *tokenizer, weft_bytes chat_template,
                           const char *name, weft_chat **out, weft_error *error);
void weft_chat_close(weft_chat *chat); /* NULL is fine */

/* The form in which the model writes calls of tools, which the template's text shows (model/text/calls.h); and
 * whether the template shows the model the tools that a request declares, which was tried when it was opened. */
weft_call_form weft_chat_call_form(const weft_chat *chat);
bool weft_chat_tells_tools(const weft_chat *chat);
/* Whether the template marks thinking, and the vocabulary has what it takes to turn it on. */
bool weft_chat_can_think(const weft_chat *chat);
/* The markers before and after what the model thinks; NULL: the template marks no thinking. */
const char *weft_chat_thought_open(const weft_chat *chat);
const char *weft_chat_thought_close(const weft_chat *chat);

/* Whether the token is a marker of calls in that form. */
bool weft_chat_is_call_marker(const weft_chat *chat, int32_t id);

/* The prompt as pieces; close with weft_chat_pieces_close. INVALID: no messages, a role that is not in the list of
 * roles, or a conversation that the template refuses. UNSUPPORTED: text of a message, or the name of a tool, is not in
 * what the template printed, or the model has no switch for thinking. TOO_LARGE: rendering takes too many steps or too
 * much memory. */
weft_status weft_chat_split(const weft_chat *chat, const weft_chat_message *messages, uint32_t n,
                            const weft_chat_options *options, weft_chat_pieces *out, weft_error *error);
void weft_chat_pieces_close(weft_chat_pieces *pieces);
/* The prompt as tokens, appended to *out. Where the template prints the bos token it is among them, so the caller adds
 * none. On failure *out keeps what it had. parting (may be NULL): how many tokens *out has before each place of
 * weft_chat_pieces.parting. */
weft_status weft_chat_render(const weft_chat *chat, const weft_chat_message *messages, uint32_t n,
                             const weft_chat_options *options, weft_tokens *out, uint32_t parting[2],
                             weft_error *error);
/* Whether a prompt of these tokens leaves the model inside its thinking. */
bool weft_chat_starts_thinking(const weft_chat *chat, const int32_t *tokens, uint32_t n);

/* Splits the tokens of an answer into text of the thinking and text of the answer, as they come. Markers of thinking
 * and the name of a Gemma channel are left out; newlines next to markers are left out too, except with
 * WEFT_DETOK_WHOLE_TOKENS, where the text is that of all tokens but markers and names. */
typedef struct weft_chat_stream {
  const weft_chat *chat; /* NULL: everything is answer */
  weft_detok detok;
  weft_text text;      /* scratch */
  weft_text name;      /* of the channel being opened */
  uint32_t n_newlines; /* held back, because a marker may follow, next to which newlines are left out */
  uint32_t state;
  bool skip_newlines, keeps_newlines;
  bool shows_calls; /* the caller sets it after open: markers of calls are printed even where they are control tokens */
  bool thinking;    /* the text that was given last is thinking */
} weft_chat_stream;

/* Takes n bytes of text, which is thinking or answer. */
typedef void (*weft_chat_take)(void *self, const char *text, size_t n, bool thinking);

/* starts_thinking: what weft_chat_starts_thinking says of the prompt. */
void weft_chat_stream_open(weft_chat_stream *stream, const weft_chat *chat, const weft_tokenizer *tokenizer,
                           unsigned detok_flags, bool starts_thinking);
void weft_chat_stream_close(weft_chat_stream *stream);
/* Takes one token; appends the text that became certain to out and says whether it is thinking or answer: one call
 * gives text of one of the two. *n_ids (may be NULL) as in weft_detok_push. */
weft_status weft_chat_stream_push(weft_chat_stream *stream, int32_t id, weft_text *out, bool *thinking,
                                  uint32_t *n_ids);
/* Takes at once all memory that weft_chat_stream_feed will need. From then on text is given as soon as it is certain,
 * also with WEFT_DETOK_WHOLE_TOKENS; the text in all is the same. */
weft_status weft_chat_stream_reserve(weft_chat_stream *stream);
/* The same as push, but each piece of text is given to a function. After reserve it allocates nothing, and its only
 * failure is INVALID: an id outside the vocabulary. */
weft_status weft_chat_stream_feed(weft_chat_stream *stream, int32_t id, weft_chat_take take, void *self);
weft_status weft_chat_stream_flush(weft_chat_stream *stream, weft_text *out, bool *thinking, uint32_t *n_ids);

#ifdef __cplusplus
}
#endif
#endif
