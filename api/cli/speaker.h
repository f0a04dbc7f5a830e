/* SPDX-License-Identifier: MIT */
/* Who answers in `weft chat`: models that this process has open, or a server.
 *
 * * Law: an answer that ends, however it does, leaves the speaker so that it can be asked again; nothing that a
 * server sends or fails to send ends the program. */
#ifndef WEFT_API_CLI_SPEAKER_H
#define WEFT_API_CLI_SPEAKER_H

#include "api/cli/cli.h"
#include "api/cli/screen.h"

/* What a conversation is asked with. */
typedef struct weft_speaker_asks {
  const weft_chat_turn *turn;
  uint32_t n_turns;
  uint32_t model; /* its number, from 0 */
  weft_mode mode;
  float temperature; /* negative: the model's */
  bool canvases;     /* they are drawn */
} weft_speaker_asks;

/* What is told while an answer is made. */
typedef struct weft_listener {
  void (*text)(void *self, const char *text, size_t n, bool thinking);
  void (*canvas)(void *self, const weft_canvas_view *canvas);
  void (*plain)(void *self); /* no canvas will come; before the first text */
  void (*look)(void *self);  /* some ten times a second */
  bool (*stop)(void *self);  /* true: end the answer */
  void *self;
} weft_listener;

typedef enum weft_said {
  WEFT_SAID,          /* the whole answer */
  WEFT_SAID_LENGTH,   /* it ended because it was too long */
  WEFT_SAID_STOPPED,  /* it was told to end */
  WEFT_SAID_TOO_LONG, /* the conversation does not fit into the context; nothing was said */
  WEFT_SAID_REFUSED,  /* the request was refused, or failed; the error says why */
  WEFT_SAID_GONE      /* the server cannot be reached, or broke off; the error says so */
} weft_said;

typedef struct weft_speaker weft_speaker;
struct weft_speaker {
  const char *(*model_name)(const weft_speaker *s, uint32_t index); /* NULL: there are no more */
  /* What is to be known of a model, in a few words. */
  void (*describe)(const weft_speaker *s, uint32_t index, weft_text *out);
  weft_said (*ask)(weft_speaker *s, const weft_speaker_asks *asks, const weft_listener *listener, weft_error *why);
  void (*close)(weft_speaker *s); /* frees it */
};

/* Each 0, or an exit code after one line. */
int weft_speaker_open_local(const weft_config *config, weft_speaker **out);
/* The server of --url, with the key of --key-file. */
int weft_speaker_open_remote(const weft_config *config, weft_speaker **out);

#endif
