/* SPDX-License-Identifier: MIT */
/* Calls of tools in the text of an answer. Each model family has its own way of writing calls, its form.
 *
 * Law. A reader is given the text of an answer in pieces and gives content, and calls: a name, and arguments as JSON
 * text in pieces. What it gives in all does not depend on how the text was cut. Markers are never content, whether they
 * came as special tokens or as letters; but within a string of the arguments the letters of a marker are part of the
 * string.
 *   A call begins when its head is whole: its marker, if the form has one, a name of 1 to 128 of A-Z a-z 0-9 _ - (the
 * name of a declared tool, where the form has no marker), and the beginning of its arguments. From then on the text is
 * a call, whatever follows, and its arguments are always JSON: an object where the call ends, the beginning of one
 * where the answer is cut. Arguments that are not written as JSON are mended (model/text/json_mend.h). A head that is
 * not written as JSON, or whose arguments are JSON inside of a string, is read once the whole call is there. Text
 * after a marker that turns out not to be a head is content, and the marker is not given.
 *   Blanks around calls are not given. A reader holds back only text that may still become a marker or a head, and the
 * blanks before such text. */
#ifndef WEFT_MODEL_TEXT_CALLS_H
#define WEFT_MODEL_TEXT_CALLS_H

#include "base/status.h"
#include "base/text.h"
#include "model/text/json_mend.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weft_call_form {
  /* {"name":...,"arguments":{...}} at the beginning, or a list of such objects; for templates of no other form */
  WEFT_CALLS_JSON = 0,
  WEFT_CALLS_HERMES,  /* <tool_call>{"name":...,"arguments":{...}}</tool_call> */
  WEFT_CALLS_QWEN,    /* <tool_call><function=NAME><parameter=KEY>text</parameter></function></tool_call> */
  WEFT_CALLS_GEMMA,   /* <|tool_call>call:NAME{key:<|"|>text<|"|>,n:3}<tool_call|> */
  WEFT_CALLS_LLAMA,   /* {"name":...,"parameters":{...}} at the beginning, or after <|python_tag|> */
  WEFT_CALLS_MISTRAL, /* [TOOL_CALLS] and a list, or [TOOL_CALLS]NAME[ARGS]{...} */
  WEFT_CALLS_DSML,    /* tags as QWEN has them, each name behind a marker, and types beside the names: weft_call_tags */
  WEFT_CALL_FORMS
} weft_call_form;

/* The form that the model writes whose chat template is these n bytes. */
weft_call_form weft_call_form_of(const char *chat_template, size_t n);
const char *weft_call_form_name(weft_call_form form);
/* The markers before and after a call; NULL: the form has none. */
const char *weft_call_form_open(weft_call_form form);
const char *weft_call_form_close(weft_call_form form);
/* How calls with tags are spelled. */
typedef struct weft_call_tags {
  const char *open, *open_end, *close;          /* around a function: open NAME open_end ... close */
  const char *argument, *argument_end, *behind; /* around an argument: argument KEY argument_end TEXT behind */
  bool typed; /* between the key and argument_end stands whether the text is a string; and the text has no line ends of
                 its own around it */
} weft_call_tags;
/* Of QWEN and DSML; forms without tags have those of QWEN, since their models write such calls now and then. */
const weft_call_tags *weft_call_form_tags(weft_call_form form);
/* What stands between the key and argument_end, where the text is a string, and where it is JSON. */
#define WEFT_CALL_STRING "\" string=\"true"
#define WEFT_CALL_VALUE  "\" string=\"false"
/* A special token that is only a part of DSML's markers. */
#define WEFT_CALL_INNER "\uFF5CDSML\uFF5C"
/* Whether calls of this form are written with this marker. */
bool weft_call_form_has(weft_call_form form, const char *marker);
/* Every marker of every form. */
enum { WEFT_CALL_MARKERS = 10 };
extern const char *const weft_call_markers[WEFT_CALL_MARKERS];

/* A tool that may be called: its name, and for forms with tags, whose text need not show whether a value is a
 * string, what weft_callable_types made of the schema of its arguments (NULL: all are strings). */
typedef struct weft_callable {
  const char *name, *types;
} weft_callable;

/* Appends which parameters of a function are not plain strings: a text of several zero bytes, no longer than the
 * schema, so that a schema is parsed once, however often its function is called. parameters: the JSON schema of the
 * function's arguments; NULL: there is none. */
weft_status weft_callable_types(const char *parameters, weft_text *out);
/* How the text of an argument is read: as a string; the same, but for the word null; as JSON, or as a string where it
 * is no JSON. types: what weft_callable_types made, or NULL; name: n bytes;
 * a name that types does not have is read as its entry for all others says. */
typedef enum weft_callable_kind {
  WEFT_CALLABLE_TEXT,
  WEFT_CALLABLE_TEXT_OR_NULL,
  WEFT_CALLABLE_VALUE
} weft_callable_kind;
weft_callable_kind weft_callable_reads(const char *types, const char *name, size_t n);

typedef struct weft_call_sink {
  void *self;
  void (*content)(void *self, const char *text, size_t n);
  void (*begin)(void *self, const char *name, size_t n);
  void (*arguments)(void *self, const char *text, size_t n);
  void (*end)(void *self, bool whole); /* whole: the arguments are a JSON object, else the beginning of one */
} weft_call_sink;

typedef struct weft_call_reader {
  weft_call_form form;
  const weft_callable *callable; /* borrowed */
  uint32_t n_callable;
  uint8_t state, inner; /* inner: where in the arguments the reader is, by numbers of each form's own */
  bool begun;           /* content that is not blank, or a call, was given */
  bool after_call;      /* only blanks came since a call ended */
  bool last;            /* no more text will come */
  weft_text held;       /* from `at` on: text that is not decided yet */
  size_t at, scanned;   /* scanned: bytes of held that were searched without a find */
  size_t mark, head;    /* offsets in held: where a possible call begins, and what follows its marker */
  json_mend mend;       /* of arguments that are one text, or of a value */
  bool tagged;          /* the call is written with tags, as QWEN and DSML do it */
  bool alone;           /* no object is around the arguments */
  bool first;           /* no parameter was given yet */
  const char *types;    /* of the function that is being called with tags */
  const weft_call_sink *sink;
} weft_call_reader;

void weft_call_reader_open(weft_call_reader *reader, weft_call_form form, const weft_callable *callable,
                           uint32_t n_callable);
void weft_call_reader_close(weft_call_reader *reader); /* all zero is fine */
/* Reads n more bytes of the answer and gives what is decided to the sink. NO_MEMORY: text was lost. */
weft_status weft_call_reader_push(weft_call_reader *reader, const char *text, size_t n, const weft_call_sink *sink);
/* Ends the answer: text that was held back is given, and a call that is still open ends. cut: the answer was cut off
 * here, and so the call is not whole; else the model ended it, and what it left open is closed. */
weft_status weft_call_reader_end(weft_call_reader *reader, bool cut, const weft_call_sink *sink);
/* Whether a call has begun whose arguments have not ended. */
bool weft_call_reader_in_call(const weft_call_reader *reader);
/* Makes *to a reader at the same place of the same text. On NO_MEMORY the caller still closes it. */
weft_status weft_call_reader_copy(const weft_call_reader *from, weft_call_reader *to);

#ifdef __cplusplus
}
#endif
#endif
