/* SPDX-License-Identifier: MIT */
/* The options of the program: every option is one row of a table. Its flag, environment name, file key, range, default
 * and help come from that row, and weft_open takes its defaults from it too. The product's rows are in config.c; the
 * laboratory has a table of its own (bench/lab/lab.c), which is handed over by main.
 *
 * Law: later wins: default, then the file of --config (lines `name = value`; `weft serve` only; without it
 * weft/weft.conf of the user's folder of configurations, else that of the machine), then the environment
 * (WEFT_NAME in capitals, dashes as underscores; every option of every command), then the command line. A list that a
 * later source gives replaces the earlier source's list; in the environment the items of a list are separated by
 * commas. An unknown name or a value out of range is one line and a failure, never a guess; it says what was
 * probably meant (api/option_names.h). In a name an underscore is a dash. No other file reads an
 * option from the environment. */
#ifndef WEFT_API_CONFIG_H
#define WEFT_API_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "api/weft.h"
#include "base/log.h"
#include "base/range.h"
#include "base/status.h"

enum { WEFT_LIST_MAX = 64 };

/* Where `weft serve` looks for its configuration when neither the command line nor the user's own folder has one. */
#define WEFT_CONFIG_OF_MACHINE "/etc/weft/weft.conf"

/* Where a value came from; the later ones win. */
typedef enum weft_option_source {
  WEFT_FROM_DEFAULT = 0,
  WEFT_FROM_FILE,
  WEFT_FROM_ENVIRONMENT,
  WEFT_FROM_COMMAND_LINE
} weft_option_source;

typedef struct weft_text_list {
  const char *item[WEFT_LIST_MAX];
  uint32_t n;
  weft_option_source source;
} weft_text_list;

/* Which commands an option belongs to: bits of an option's row. A command takes all rows that share a bit with it. */
enum {
  WEFT_FOR_GENERATE = 1 << 0,
  WEFT_FOR_CHAT = 1 << 1,
  WEFT_FOR_SERVE = 1 << 2,
  WEFT_FOR_TOKENIZE = 1 << 3,
  WEFT_FOR_DEMO = 1 << 4,
  WEFT_FOR_TRACE = 1 << 5,
  WEFT_FOR_TOP = 1 << 6,
  WEFT_FOR_PULL = 1 << 7,
  WEFT_FOR_MODELS = 1 << 8,  /* every command that opens a model file */
  WEFT_FOR_RUNTIME = 1 << 9, /* every command that opens a runtime with weft_open */
  WEFT_FOR_ENGINE = 1 << 10, /* these, and the simulation, which runs an engine without a model */
  WEFT_FOR_ALL = 1 << 11,    /* every command */
  WEFT_FOR_PLAN = 1 << 12,
  WEFT_FOR_WEIGHTS = 1 << 13,
  WEFT_FOR_LABORATORY = 1 << 16 /* from here on the bits belong to bench/lab/lab.h */
};

enum {
  WEFT_OPENS_MODEL = WEFT_FOR_MODELS | WEFT_FOR_ALL,
  WEFT_OPENS_RUNTIME = WEFT_OPENS_MODEL | WEFT_FOR_RUNTIME | WEFT_FOR_ENGINE,
  WEFT_CMD_GENERATE = WEFT_FOR_GENERATE | WEFT_OPENS_RUNTIME,
  WEFT_CMD_CHAT = WEFT_FOR_CHAT | WEFT_OPENS_RUNTIME,
  WEFT_CMD_SERVE = WEFT_FOR_SERVE | WEFT_OPENS_RUNTIME,
  WEFT_CMD_DEMO = WEFT_FOR_DEMO | WEFT_OPENS_RUNTIME,
  WEFT_CMD_INSPECT = WEFT_OPENS_MODEL,
  WEFT_CMD_FIELDS = WEFT_FOR_ALL,
  WEFT_CMD_TOKENIZE = WEFT_FOR_TOKENIZE | WEFT_OPENS_MODEL,
  WEFT_CMD_PLAN = WEFT_FOR_PLAN | WEFT_OPENS_MODEL,
  WEFT_CMD_PULL = WEFT_FOR_PULL | WEFT_FOR_ALL,
  WEFT_CMD_WEIGHTS = WEFT_FOR_WEIGHTS | WEFT_OPENS_MODEL,
  WEFT_CMD_TRACE = WEFT_FOR_TRACE | WEFT_FOR_ALL,
  WEFT_CMD_TOP = WEFT_FOR_TOP | WEFT_FOR_ALL
};

typedef enum weft_option_kind {
  WEFT_OPTION_FLAG,
  WEFT_OPTION_U32,
  WEFT_OPTION_I32,
  WEFT_OPTION_U64,
  WEFT_OPTION_F32,
  WEFT_OPTION_TEXT,
  WEFT_OPTION_LIST
} weft_option_kind;

typedef struct weft_option {
  const char *name;
  char letter;
  const char *topic; /* heading of --help under which the option stands */
  unsigned commands; /* WEFT_FOR_... */
  weft_option_kind kind;
  size_t at;                   /* of the value in the struct that the table fills */
  size_t given;                /* of a bool there that says that the option was given; 0: none */
  weft_range range;            /* of a number */
  const char *text;            /* of a text: its default, NULL: none */
  const char *argument, *help; /* a default that is no plain number stands in the help in brackets */
} weft_option;

/* The kind, place and range of a row, for a table that fills a struct of this type. A range is the members of a
 * weft_range, of which `above` may be left out. */
#define WEFT_OPTION_IS_FLAG(type, field)          WEFT_OPTION_FLAG, offsetof(type, field), 0, WEFT_NO_RANGE, NULL
#define WEFT_OPTION_IS_TEXT(type, field)          WEFT_OPTION_IS_TEXT_OR(type, field, NULL)
#define WEFT_OPTION_IS_TEXT_OR(type, field, text) WEFT_OPTION_TEXT, offsetof(type, field), 0, WEFT_NO_RANGE, text
#define WEFT_OPTION_IS_LIST(type, field)          WEFT_OPTION_LIST, offsetof(type, field), 0, WEFT_NO_RANGE, NULL
#define WEFT_OPTION_IS_U64(type, field, given) \
  WEFT_OPTION_U64, offsetof(type, field), offsetof(type, given), WEFT_NO_RANGE, NULL
#define WEFT_OPTION_IS_U32(type, field, ...) \
  WEFT_OPTION_U32, offsetof(type, field), 0, WEFT_OPTION_RANGE(__VA_ARGS__, false, 0)
#define WEFT_OPTION_IS_I32(type, field, ...) \
  WEFT_OPTION_I32, offsetof(type, field), 0, WEFT_OPTION_RANGE(__VA_ARGS__, false, 0)
#define WEFT_OPTION_IS_F32(type, field, ...) \
  WEFT_OPTION_F32, offsetof(type, field), 0, WEFT_OPTION_RANGE(__VA_ARGS__, false, 0)
#define WEFT_OPTION_RANGE(initial, least, greatest, above, ...) /* the rest: what filled up */ \
  {initial, least, greatest, above}, NULL

/* Headings of --help that product and laboratory share. */
#define WEFT_TOPIC_FIRST      "What everybody needs first"
#define WEFT_TOPIC_DIFFUSION  "Diffusion"
#define WEFT_TOPIC_MEMORY     "Memory"
#define WEFT_TOPIC_SCHEDULING "Scheduling"
#define WEFT_TOPIC_DEVICE     "Device"
#define WEFT_TOPIC_OUTPUT     "Output"

typedef struct weft_config {
  /* what is served and how */
  weft_text_list models, served_names, kv_8bit, chat_templates, drafts, load_tenants, keep;
  const char *models_dir, *models_preset, *take_over;
  const char *backend, *isa, *precision, *config_file, *spill_file, *keep_key, *devices, *device_mib, *split,
      *split_ratio;
  uint32_t models_mib, sleep_mib;
  int32_t keep_alive_seconds;
  uint32_t threads, kv_mib, host_mib, spill_mib, request_mib, context, running, queue, rows, pins;
  uint32_t tpot_ms, slice_ms;
  uint32_t saved_canvases;
  bool shared_cache, no_prefix_cache, no_overlap, no_graphs, no_arena, no_deterministic, no_peer_access, unused_tensors,
      quiet, verbose, json, help, version;
  const char *log_format, *log_level; /* checked by weft_config_parse */
  /* weights of another process, and that process */
  const char *weights, *socket, *scope, *transport;
  uint32_t reserve_mib, parent_pid;
  bool dry_run, counts;
  /* plan */
  const char *card;
  uint32_t users, plan_prompt, plan_answer;
  /* models by name */
  weft_text_list hub_models;
  const char *hub, *hub_token, *cache;
  /* the server */
  const char *host, *socket_mode, *tls_cert, *tls_key, *api_keys, *directory;
  weft_text_list api_key, pin_files, origins;
  const char *kv_events, *kv_events_replay, *kv_events_topic, *kv_events_form;
  weft_text_list kv_events_tokens;
  uint32_t port, spare_tenants, body_mib, connections, lame_duck_seconds, drain_seconds;
  bool no_page, take_over_after, else_anew;
  bool strict_fields, public_metrics;
  /* one generation */
  const char *prompt, *input, *tokens, *system, *mode, *trace;
  weft_text_list stop;
  bool chat, thinking, ignore_eos, no_live, special;
  uint32_t max_tokens, logprobs, canvases;
  weft_sampling sampling;
  weft_entropy_bound entropy_bound;
  bool has_seed;
  /* trace, top, chat with a server */
  const char *key_file, *output, *url;
  uint32_t frames;
  float interval;
  /* arguments that are not options */
  weft_text_list words;
  weft_option_source source; /* the one that is being read */
  const char *config_read;   /* the file that was read although nobody named one; NULL: none */
  bool no_colour;            /* NO_COLOR is set, or the terminal is dumb */
  bool terminal_is_dumb;     /* TERM says that it cannot move its cursor */
  /* texts of the --config file and lists of the environment, which the configuration owns */
  char *owned[2 * WEFT_LIST_MAX];
  uint32_t n_owned;
} weft_config;

struct weft_server_options;

/* Rows beside the product's own, which fill a struct of n_bytes that begins with a weft_config. */
typedef struct weft_option_table {
  const weft_option *row;
  uint32_t n;
  size_t n_bytes;
} weft_option_table;

/* Fills config, or what begins with it, for a command (WEFT_CMD_...): defaults first. more: NULL for none. argv[0
 * .. argc) is without the program's and the command's name; pointers into argv are kept. Free config after a failure
 * too. */
weft_status weft_config_parse(weft_config *config, const weft_option_table *more, unsigned command, int argc,
                              char **argv, weft_error *error);
/* Words of the command line that name files, or end in .gguf, are models, as if -m stood before each; other words stay.
 * After weft_config_parse. */
weft_status weft_config_take_models(weft_config *config, weft_error *error);
/* One more model; its path is copied. */
weft_status weft_config_add_model(weft_config *config, const char *path, weft_error *error);
/* The folder for models that are fetched, and the token for the hub that the environment has (HF_TOKEN); NULL: none.
 * The caller frees. */
char *weft_config_cache_folder(void);
char *weft_config_hub_token(void);
void weft_config_free(weft_config *config);
/* Where the program keeps what it remembers for the user: weft/NAME in $XDG_STATE_HOME or ~/.local/state. The
 * caller frees it with weft_free; NULL: there is no place, or no memory. */
char *weft_config_state_file(const char *name);
/* The next row that the command has, from *at on, which begins at 0; NULL: there are no more. A row of `more` takes the
 * place of the product's of the same name. */
const weft_option *weft_config_next(const weft_option_table *more, unsigned command, uint32_t *at);
/* The option makes sense in a file or in the environment: all but --help and --version do. */
bool weft_config_is_lasting(const weft_option *option);
/* One line of warning for the next variable WEFT_... of the environment that is the name of no option of any command,
 * from *at on, which begins at 0; false: there are no more. */
bool weft_config_stranger(const weft_option_table *more, uint32_t *at, char *line, size_t n_line);
/* Level and form of the log, as the options say. */
weft_log_settings weft_config_log(const weft_config *config);
/* Copies what the options say of sampling into params. */
void weft_config_answer(const weft_config *config, weft_generate_params *params);
/* Options of weft_open from the configuration. */
weft_open_options weft_config_open(const weft_config *config);
/* Every option, of the product and of `more` (NULL: none), has the default that it has for the command. */
void weft_config_defaults(weft_config *config, const weft_option_table *more, unsigned command);
/* Members that are 0 or NULL get the default of their option, where it has one. */
void weft_config_fill_open(weft_open_options *options);
/* The path of a host that is unix:PATH; NULL: it is another one. */
const char *weft_config_socket(const char *host);
/* The file mode that a text such as "660" means; 0: the text is not three octal digits. */
uint32_t weft_config_mode(const char *text);
/* The ids of a text such as "2,5,9"; the caller frees *ids. */
weft_status weft_config_ids(const char *text, const char *flag, int32_t **ids, uint32_t *n, weft_error *error);

#endif
