/* SPDX-License-Identifier: MIT */
/* The messages of a conversation as a chat template reads them, and the ways of telling them to templates that do not
 * take them as they came. Private to model/text/chat*.c and their tests.
 *
 * Law: whatever text a conversation holds reaches the prompt, or the request is refused by name. A way of telling moves
 * text to where a template prints it, and leaves none out. Whether it arrived is not believed but looked up, byte by
 * byte, in what the template printed (chat_messages_lost); only reasoning of earlier turns may be left out, as
 * templates do on purpose. Names of tools are looked up in the same way. Ids of calls are names and no text: where the
 * template's models have a form of their own for them, they are mapped to it, equal ids to equal ones. */
#ifndef WEFT_MODEL_TEXT_CHAT_MESSAGES_H
#define WEFT_MODEL_TEXT_CHAT_MESSAGES_H

#include <jansson.h>

#include "model/text/chat.h"
#include "model/text/jinja.h"

/* How messages of the system and of a developer are told. Each way but the first includes DEVELOPER. */
enum {
  CHAT_SYSTEM_AS_GIVEN,
  CHAT_SYSTEM_DEVELOPER, /* a developer's message is the system's */
  CHAT_SYSTEM_LATE,      /* those that do not begin the conversation are the user's; those that do are one */
  CHAT_SYSTEM_JOINED,    /* all are one at the beginning */
  CHAT_SYSTEM_USER,      /* all are the user's, where they stand */
  CHAT_SYSTEM_OPENS,     /* all are the user's, before the first message */
  CHAT_SYSTEM_WAYS
};
/* How the arguments of calls are told. */
enum {
  CHAT_ARGUMENTS_OBJECTS, /* as objects; what is the beginning of one is closed, what is none stays text */
  CHAT_ARGUMENTS_WRAPPED, /* the same, and what is none becomes the one member of an object */
  CHAT_ARGUMENTS_TEXTS,   /* as they were written */
  CHAT_ARGUMENTS_WAYS
};
/* How the text of a message that has calls is told. */
enum {
  CHAT_BESIDE_AS_GIVEN,
  CHAT_BESIDE_APART,  /* as a message of its own before the calls */
  CHAT_BESIDE_JOINED, /* at the end of the message before */
  CHAT_BESIDE_WAYS
};
/* How calls and their results are told. */
enum {
  CHAT_CALLS_AS_GIVEN,
  CHAT_CALLS_EACH,    /* each in a message of its own, with its result behind it */
  CHAT_CALLS_ORPHANS, /* results of calls that are not there are the user's */
  CHAT_CALLS_TEXT,    /* calls are text of the assistant, in JSON, and all results are the user's */
  CHAT_CALLS_WAYS
};
/* How the ids of calls are told. */
enum {
  CHAT_IDS_AS_GIVEN,
  CHAT_IDS_FUNCTIONS, /* functions.NAME:INDEX, where INDEX counts the calls of the conversation */
  CHAT_IDS_WAYS
};
/* How messages of one role in a row are told. */
enum {
  CHAT_ROWS_AS_GIVEN,
  CHAT_ROWS_JOINED, /* as one, for templates that want the user and the assistant in turn */
  CHAT_ROWS_WAYS
};
enum { CHAT_SYSTEM, CHAT_ARGUMENTS, CHAT_BESIDE, CHAT_CALLS, CHAT_IDS, CHAT_ROWS, CHAT_DIMENSIONS };

/* A level of each dimension. */
typedef struct chat_way {
  uint8_t level[CHAT_DIMENSIONS];
} chat_way;

/* The messages as they came, as a new list; arguments of calls as they were given. thinking: a further name of the member
 * that holds thinking, or NULL. INVALID, NO_MEMORY: with a line. */
weft_status chat_messages_read(const weft_chat_message *messages, uint32_t n, const char *thinking, json_t **out,
                               weft_error *error);
/* How much work it is to tell a value once: its bytes, and what each of its parts costs. */
uint64_t chat_messages_cost(const json_t *json);
/* Which levels of each dimension tell these messages in another way than the level 0 does. */
typedef bool chat_ways[CHAT_DIMENSIONS][CHAT_SYSTEM_WAYS];
void chat_messages_ways(const json_t *messages, chat_ways out);
/* A new list, told this way; short_ids: ids of calls are nine letters and digits. NULL: memory was refused. */
json_t *chat_messages_tell(const json_t *messages, chat_way way, bool short_ids);

/* Whether the id is functions.NAME:INDEX of this name. */
bool chat_messages_is_function_id(const char *id, const char *name);

typedef struct chat_lost {
  bool any, dimension[CHAT_DIMENSIONS]; /* whose text it is */
  bool other;                           /* some of it is no dimension's */
  uint32_t message;                     /* the first that lost text */
  const char *role, *what;              /* of that message; what: "its text", for example */
  const char *tool;                     /* the first tool whose name is not there; NULL: all names are */
} chat_lost;

/* What of the messages, and which tool (tools: a list, or NULL), is not in the text that a template printed of them.
 * The strings live as long as messages and tools. */
weft_status chat_messages_lost(const json_t *messages, const json_t *tools, const weft_jinja_text *text,
                               chat_lost *out);

#endif
