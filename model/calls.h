/* SPDX-License-Identifier: MIT */
/* Calls of tools in the text of an answer, each model family's own way of writing them.
 *
 * Law. A reader is given the text of an answer in pieces and gives content, and calls: a name, and arguments as JSON
 * text in pieces. What it gives in all does not depend on how the text was cut. Markers are never content, whether they
 * came as special tokens or as letters; inside of a string of the arguments their letters are a part of it.
 *   A call begins when its head is whole: its marker, if the form has one, a name of 1 to 64 of A-Z a-z 0-9 _ - (one
 * that was declared, where a form has no marker), and the beginning of its arguments. From then on it is a call,
 * whatever follows: arguments that turn out not to be what the form has are given as they were written, up to the mark
 * that ends the call, and its end says that it is not whole. What turns out to be no head is content, without its
 * marker.
 *   Blanks around calls are not given. A reader holds back only what may still become a marker, a head, or the
 * blanks before one. */
#ifndef WEFT_MODEL_CALLS_H
#define WEFT_MODEL_CALLS_H

#include <jansson.h>

#include "base/text.h"
#include "model/json_steps.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weft_call_form {
  /* {"name":...,"arguments":{...}} at the beginning, or a list of them: where the template shows no other form */
  WEFT_CALLS_JSON = 0,
  WEFT_CALLS_HERMES,  /* <tool_call>{"name":...,"arguments":{...}}</tool_call> */
  WEFT_CALLS_QWEN,    /* <tool_call><function=NAME><parameter=KEY>text</parameter></function></tool_call> */
  WEFT_CALLS_GEMMA,   /* <|tool_call>call:NAME{key:<|"|>text<|"|>,n:3}<tool_call|> */
  WEFT_CALLS_LLAMA,   /* {"name":...,"parameters":{...}} at the beginning, or after <|python_tag|> */
  WEFT_CALLS_MISTRAL, /* [TOOL_CALLS] and a list, or [TOOL_CALLS]NAME[ARGS]{...} */
  WEFT_CALL_FORMS
} weft_call_form;

/* The form that a model writes whose chat template this is. */
weft_call_form weft_call_form_of(const char *chat_template, size_t n);
const char *weft_call_form_name(weft_call_form form);
/* The form that a grammar makes the calls of a model have that writes this form: the same one where a grammar can
 * describe it, else JSON. */
weft_call_form weft_call_form_held(weft_call_form form);

/* The markers around a call; NULL: it has none. */
const char *weft_call_form_open(weft_call_form form);
const char *weft_call_form_close(weft_call_form form);
/* Every marker of every form. */
enum { WEFT_CALL_MARKERS = 9 };
extern const char *const weft_call_markers[WEFT_CALL_MARKERS];

/* What may be called: names, and schemas (JSON text, NULL: none) that say which values of a QWEN call are strings. */
typedef struct weft_callable {
  const char *name, *parameters;
} weft_callable;

typedef struct weft_call_sink {
  void *self;
  void (*content)(void *self, const char *text, size_t n);
  void (*begin)(void *self, const char *name, size_t n);
  void (*arguments)(void *self, const char *text, size_t n);
  void (*end)(void *self, bool whole); /* whole: the arguments are a JSON object */
} weft_call_sink;

typedef struct weft_call_reader {
  weft_call_form form;
  const weft_callable *callable; /* borrowed */
  uint32_t n_callable;
  uint8_t state, inner; /* inner: where in the arguments, each form has its own */
  bool begun;           /* content that is not blank, or a call, was given */
  bool after_call;      /* only blanks came since a call ended */
  bool last;            /* no more text will come */
  weft_text held;       /* from `at` on: what was not decided yet */
  size_t at, scanned;   /* scanned: bytes of held that were searched in vain */
  size_t mark, head;    /* of held: where what may be a call begins, and what follows its marker */
  json_steps steps;     /* JSON arguments */
  uint32_t depth;       /* GEMMA: objects and lists that are open */
  uint64_t objects;     /* bit d: level d is an object */
  bool first;           /* of an object or a list nothing was given yet */
  json_t *properties;   /* QWEN: of the function that is being called */
  const weft_call_sink *sink;
} weft_call_reader;

void weft_call_reader_open(weft_call_reader *reader, weft_call_form form, const weft_callable *callable,
                           uint32_t n_callable);
void weft_call_reader_close(weft_call_reader *reader); /* all zero is fine */
/* NO_MEMORY: text was lost. */
weft_status weft_call_reader_push(weft_call_reader *reader, const char *text, size_t n, const weft_call_sink *sink);
/* The end of the answer: what is held is given; a call that is still open ends. */
weft_status weft_call_reader_end(weft_call_reader *reader, const weft_call_sink *sink);
/* Another reader at the same place. */
weft_status weft_call_reader_copy(const weft_call_reader *from, weft_call_reader *to);

#ifdef __cplusplus
}
#endif
#endif
