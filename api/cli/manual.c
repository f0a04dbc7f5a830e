/* SPDX-License-Identifier: MIT */
#include "api/cli/manual.h"

#include <string.h>

#include "api/option_names.h"
#include "base/nearest.h"

/* ---- the tables ------------------------------------------------------------------------------ */

const weft_command *weft_manual_next(const weft_manual *manual, uint32_t *at) {
  uint32_t index = (*at)++;
  for (uint32_t i = 0; i < manual->n_lists; i++) {
    if (index < manual->list[i].n) return &manual->list[i].row[index];
    index -= manual->list[i].n;
  }
  return NULL;
}

const weft_command *weft_manual_find(const weft_manual *manual, const char *name) {
  uint32_t at = 0;
  for (const weft_command *c; (c = weft_manual_next(manual, &at)) != NULL;) {
    if (strcmp(c->name, name) == 0) return c;
  }
  return NULL;
}

int weft_manual_no_command(const weft_manual *manual, const char *name) {
  const char *foreign, *servers, *here;
  for (size_t i = 0; (foreign = weft_command_foreign_at(i, &servers, &here)) != NULL; i++) {
    if (strcmp(foreign, name) == 0)
      return weft_cli_fail(WEFT_EXIT_USAGE, "%s is a command of %s; here it is %s", name, servers, here);
  }
  uint32_t at = 0;
  weft_nearest nearest = weft_nearest_to(name, strlen(name));
  for (const weft_command *c; (c = weft_manual_next(manual, &at)) != NULL;) weft_nearest_try(&nearest, c->name);
  if (nearest.best == NULL)
    return weft_cli_fail(WEFT_EXIT_USAGE, "no command is named '%s': weft --help lists them", name);
  return weft_cli_fail(WEFT_EXIT_USAGE, "no command is named '%s': did you mean weft %s? weft --help lists them", name,
                       nearest.best);
}

static bool has_topic(const weft_option *o, const char *topic) {
  return strcmp(o->topic, topic) == 0;
}

static void read_topic(const weft_manual *manual, unsigned command, const char *topic,
                       const weft_manual_reader *reader) {
  uint32_t at = 0;
  bool begun = false;
  for (const weft_option *o; (o = weft_config_next(manual->more, command, &at)) != NULL;) {
    if (!has_topic(o, topic)) continue;
    if (!begun) reader->topic(reader->self, topic);
    begun = true;
    reader->option(reader->self, o);
  }
}

/* No earlier row of the command has the topic of this one. */
static bool leads_topic(const weft_manual *manual, unsigned command, const weft_option *row) {
  uint32_t at = 0;
  const weft_option *o;
  while ((o = weft_config_next(manual->more, command, &at)) != NULL && !has_topic(o, row->topic)) {
  }
  return o == row;
}

void weft_manual_read(const weft_manual *manual, unsigned command, const weft_manual_reader *reader) {
  uint32_t at = 0;
  for (const weft_option *o; (o = weft_config_next(manual->more, command, &at)) != NULL;) {
    if (has_topic(o, WEFT_TOPIC_OUTPUT) || !leads_topic(manual, command, o)) continue;
    read_topic(manual, command, o->topic, reader);
  }
  read_topic(manual, command, WEFT_TOPIC_OUTPUT, reader);
}

const char *weft_manual_default(const weft_option *o, char out[32]) {
  bool is_number = o->kind == WEFT_OPTION_U32 || o->kind == WEFT_OPTION_F32;
  out[0] = 0;
  if (is_number && strchr(o->help, '[') == NULL) (void)snprintf(out, 32, "%g", o->range.initial);
  if (o->text != NULL) (void)snprintf(out, 32, "%s", o->text);
  return out;
}

/* ---- the example configuration ----------------------------------------------------------------- */

static void put_example_topic(void *self, const char *topic) {
  weft_text_printf(self, "\n# ---- %s ----\n", topic);
}

/* A comment for people begins with `# `; behind a bare # stands a line that may be used. */
static void put_example_option(void *self, const weft_option *o) {
  char initial[32];
  if (!weft_config_is_lasting(o) || o->at == offsetof(weft_config, config_file)) return;
  weft_text_printf(self, "\n# %s\n#%s = ", o->help, o->name);
  if (o->kind == WEFT_OPTION_FLAG) {
    weft_text_puts(self, "on\n");
  } else {
    weft_text_printf(self, "%s\n", weft_manual_default(o, initial)[0] != 0 ? initial : o->argument);
  }
}

void weft_manual_example(const weft_manual *manual, weft_text *out) {
  const weft_manual only_product = {.list = manual->list, .n_lists = manual->n_lists};
  weft_text_printf(out,
                   "# Configuration of `weft serve` (weft %s): lines `name = value`. It is read from the file of\n"
                   "# --config, or else from weft/weft.conf in $XDG_CONFIG_HOME or ~/.config, or else from\n"
                   "# %s. The environment (WEFT_NAME) and the command line win over it. What is\n"
                   "# commented out has its default; a value in capitals says what belongs there.\n",
                   weft_version(), WEFT_CONFIG_OF_MACHINE);
  weft_manual_read(&only_product, WEFT_CMD_SERVE,
                   &(weft_manual_reader){.topic = put_example_topic, .option = put_example_option, .self = out});
}
