/* SPDX-License-Identifier: MIT */
/* The man pages, in the man macros that groff and mandoc both read. */
#include <string.h>

#include "api/cli/manual.h"
#include "api/option_names.h"

/* A line of text: no character of it is an instruction to roff. */
static void put_roff(weft_text *out, const char *words) {
  if (*words == '.' || *words == '\'') weft_text_puts(out, "\\&");
  for (const char *c = words; *c != 0; c++) {
    if (*c == '\\') {
      weft_text_puts(out, "\\e");
    } else if (*c == '-') {
      weft_text_puts(out, "\\-");
    } else if (*c == '`') {
      weft_text_puts(out, "\\(ga");
    } else if (*c == '\'') {
      weft_text_puts(out, "\\(aq");
    } else if (*c == '~') {
      weft_text_puts(out, "\\(ti");
    } else if (*c == '^') {
      weft_text_puts(out, "\\(ha");
    } else {
      weft_text_append(out, c, 1);
      if (*c == '\n' && (c[1] == '.' || c[1] == '\'')) weft_text_puts(out, "\\&");
    }
  }
}

static void put_line(weft_text *out, const char *words) {
  put_roff(out, words);
  weft_text_puts(out, "\n");
}

/* No date: a page of one version is the same whenever it was built. */
static void begin_page(weft_text *out, const char *name, const char *section, const char *help) {
  weft_text_puts(out, ".\\\" Written by `weft help --man` from the tables of commands and options.\n.TH \"");
  for (const char *c = name; *c != 0; c++) {
    char upper = *c >= 'a' && *c <= 'z' ? (char)(*c - 'a' + 'A') : *c;
    weft_text_append(out, &upper, 1);
  }
  weft_text_printf(out, "\" %s \"\" \"weft %s\"\n.SH NAME\n", section, weft_version());
  put_roff(out, name);
  weft_text_puts(out, " \\- ");
  put_line(out, help);
}

static void put_page_topic(void *self, const char *topic) {
  weft_text_puts(self, ".SS ");
  weft_text_puts(self, "\"");
  put_roff(self, topic);
  weft_text_puts(self, "\"\n");
}

static void put_words(weft_text *out, const weft_option *o) {
  char initial[32];
  put_roff(out, o->help);
  if (weft_manual_default(o, initial)[0] != 0) {
    weft_text_puts(out, " [");
    put_roff(out, initial);
    weft_text_puts(out, "]");
  }
  weft_text_puts(out, "\n");
}

static void put_page_option(void *self, const weft_option *o) {
  weft_text *out = self;
  weft_text_puts(out, ".TP\n\\fB");
  if (o->letter != 0) weft_text_printf(out, "\\-%c\\fR, \\fB", o->letter);
  weft_text_puts(out, "\\-\\-");
  put_roff(out, o->name);
  weft_text_puts(out, "\\fR");
  if (o->argument != NULL) {
    weft_text_puts(out, " \\fI");
    put_roff(out, o->argument);
    weft_text_puts(out, "\\fR");
  }
  weft_text_puts(out, "\n");
  put_words(out, o);
}

static void put_file_option(void *self, const weft_option *o) {
  weft_text *out = self;
  if (!weft_config_is_lasting(o) || o->at == offsetof(weft_config, config_file)) return;
  weft_text_puts(out, ".TP\n\\fB");
  put_roff(out, o->name);
  weft_text_puts(out, "\\fR = \\fI");
  put_roff(out, o->kind == WEFT_OPTION_FLAG ? "on|off" : o->argument);
  weft_text_puts(out, "\\fR\n");
  put_words(out, o);
}

/* The indent of examples in --help is none on a page. */
static void put_page_examples(weft_text *out, const char *examples) {
  weft_text_puts(out, ".SH EXAMPLES\n.nf\n");
  while (*examples != 0) {
    size_t n = strcspn(examples, "\n"), blanks = strspn(examples, " ");
    char line[256];
    if (blanks > n) blanks = n;
    (void)snprintf(line, sizeof line, "%.*s", (int)(n - blanks), examples + blanks);
    put_line(out, line);
    examples += n + (examples[n] == '\n');
  }
  weft_text_puts(out, ".fi\n");
}

/* What options of other servers are here. */
static void put_foreign(weft_text *out) {
  const char *name, *here, *servers;
  weft_text_puts(out, ".SH OPTIONS OF OTHER SERVERS\n");
  put_line(out, "They are no options here. Who gives one is told what it is here:");
  for (size_t i = 0; (name = weft_option_foreign_at(i, &here)) != NULL; i++) {
    (void)weft_option_foreign(name, strlen(name), &servers); /* it is in the table */
    weft_text_puts(out, ".TP\n\\fB");
    put_roff(out, name[0] == '-' ? "" : "--");
    put_roff(out, name);
    weft_text_puts(out, "\\fR (");
    put_roff(out, servers);
    weft_text_puts(out, ")\n");
    put_line(out, here);
  }
}

static void put_environment(weft_text *out) {
  weft_text_puts(out, ".SH ENVIRONMENT\n.TP\n\\fBWEFT_NAME\\fR\n");
  put_line(out,
           "The option --name, in capitals and with underscores for dashes; items of a list have commas between them. "
           "The command line wins over it.");
  weft_text_puts(out, ".TP\n\\fBNO_COLOR\\fR\n");
  put_line(out, "If it is set and not empty, nothing is coloured.");
}

static void put_exit_codes(weft_text *out) {
  static const struct {
    int code;
    const char *help;
  } codes[] = {{WEFT_EXIT_OK, "all went well"},
               {WEFT_EXIT_FAILED, "the command ran and the result is bad"},
               {WEFT_EXIT_USAGE, "the command line or an input is wrong"},
               {WEFT_EXIT_LOAD, "a model or a file could not be loaded"},
               {WEFT_EXIT_RUNTIME, "the run broke off: device, memory, input or output"},
               {WEFT_EXIT_STOPPED, "ended by Ctrl-C"}};
  weft_text_puts(out, ".SH EXIT STATUS\n");
  for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
    weft_text_printf(out, ".TP\n\\fB%d\\fR\n", codes[i].code);
    put_line(out, codes[i].help);
  }
}

static void put_program_page(const weft_manual *manual, weft_text *out) {
  begin_page(out, "weft", "1", "serve language models from one paged pool of KV memory");
  weft_text_puts(out, ".SH SYNOPSIS\n\\fBweft\\fR \\fICOMMAND\\fR [\\fIOPTION\\fR ...]\n");
  weft_text_puts(out, ".SH DESCRIPTION\n");
  put_line(out,
           "weft serves many tenants and several models from one pool of KV memory and one loop: text-diffusion "
           "canvases and sequences that are written token by token share its steps.");
  weft_text_puts(out, ".PP\n");
  put_line(out, "weft help COMMAND prints what the page of a command has.");
  weft_text_puts(out, ".SH COMMANDS\n");
  for (uint32_t i = 0; i < manual->n_lists; i++) {
    put_page_topic(out, manual->list[i].heading);
    for (uint32_t j = 0; j < manual->list[i].n; j++) {
      const weft_command *c = &manual->list[i].row[j];
      weft_text_puts(out, ".TP\n\\fBweft ");
      put_roff(out, c->name);
      weft_text_puts(out, "\\fR\n");
      put_roff(out, c->help);
      weft_text_puts(out, ": \\fBweft\\-");
      put_roff(out, c->name);
      weft_text_puts(out, "\\fR(1)\n");
    }
  }
  put_environment(out);
  weft_text_puts(out, ".SH FILES\n.TP\n\\fI~/.config/weft/weft.conf\\fR, \\fI" WEFT_CONFIG_OF_MACHINE "\\fR\n");
  weft_text_puts(out, "The configuration of \\fBweft\\-serve\\fR(1): \\fBweft.conf\\fR(5)\n");
  put_exit_codes(out);
}

void weft_manual_page(const weft_manual *manual, const weft_command *command, weft_text *out) {
  if (command == NULL) {
    put_program_page(manual, out);
    return;
  }
  char name[64];
  (void)snprintf(name, sizeof name, "weft-%s", command->name);
  begin_page(out, name, "1", command->help);
  weft_text_puts(out, ".SH SYNOPSIS\n\\fBweft ");
  put_roff(out, command->name);
  weft_text_puts(out, "\\fR ");
  put_roff(out, command->usage);
  weft_text_puts(out, "\n.SH OPTIONS\n");
  weft_manual_read(manual, command->options,
                   &(weft_manual_reader){.topic = put_page_topic, .option = put_page_option, .self = out});
  put_page_examples(out, command->examples);
  if ((command->options & WEFT_FOR_SERVE) != 0) put_foreign(out);
  put_environment(out);
  put_exit_codes(out);
  weft_text_puts(out, ".SH SEE ALSO\n\\fBweft\\fR(1)");
  if ((command->options & WEFT_FOR_SERVE) != 0) weft_text_puts(out, ", \\fBweft.conf\\fR(5)");
  weft_text_puts(out, "\n");
}

void weft_manual_page_of_file(const weft_manual *manual, weft_text *out) {
  const weft_manual only_product = {.list = manual->list, .n_lists = manual->n_lists};
  begin_page(out, "weft.conf", "5", "configuration of weft serve");
  weft_text_puts(out, ".SH DESCRIPTION\n");
  put_line(
      out,
      "A line is `name = value`; a line that begins with # is a comment. An option that may be repeated has a line "
      "for each value. An unknown name is refused with the number of its line. In a name an underscore is a dash.");
  weft_text_puts(out, ".PP\n");
  put_line(out,
           "The file is that of --config, or else weft/weft.conf in $XDG_CONFIG_HOME or ~/.config, or "
           "else " WEFT_CONFIG_OF_MACHINE
           ". The environment and the command line win over it. `weft help --example-config` "
           "prints a file with every option and its default.");
  weft_text_puts(out, ".SH OPTIONS\n");
  weft_manual_read(&only_product, WEFT_CMD_SERVE,
                   &(weft_manual_reader){.topic = put_page_topic, .option = put_file_option, .self = out});
  weft_text_puts(out, ".SH SEE ALSO\n\\fBweft\\-serve\\fR(1)\n");
}

/* Words with our options in code, each with its value where that is a placeholder or a number. */
static void put_code(weft_text *out, const char *words) {
  while (*words != 0) {
    size_t n = strncmp(words, "--", 2) == 0 ? 2 + strspn(words + 2, "abcdefghijklmnopqrstuvwxyz0123456789-") : 0;
    if (n == 0) {
      weft_text_append(out, words++, 1);
      continue;
    }
    bool value = words[n] == ' ' &&
                 ((words[n + 1] >= 'A' && words[n + 1] <= 'Z') || (words[n + 1] >= '0' && words[n + 1] <= '9'));
    if (value) n += 1 + strcspn(words + n + 1, " :`");
    if (words[n - 1] == ',') n--; /* the sentence's */
    weft_text_puts(out, "`");
    weft_text_append(out, words, n);
    weft_text_puts(out, "`");
    words += n;
  }
}

static void put_foreign_commands(weft_text *out, const char *server) {
  const char *name, *servers, *here;
  bool begun = false;
  for (size_t i = 0; (name = weft_command_foreign_at(i, &servers, &here)) != NULL; i++) {
    if (strstr(servers, server) == NULL) continue;
    if (!begun) weft_text_puts(out, "\n| its command | here |\n|---|---|\n");
    begun = true;
    weft_text_printf(out, "| `%s` | ", name);
    put_code(out, here);
    weft_text_puts(out, " |\n");
  }
}

void weft_manual_foreign(weft_text *out) {
  const char *server, *name, *here, *servers;
  for (size_t s = 0; (server = weft_option_server_at(s)) != NULL; s++) {
    weft_text_printf(out, "## %s\n\n| its option | here |\n|---|---|\n", server);
    for (size_t i = 0; (name = weft_option_foreign_at(i, &here)) != NULL; i++) {
      (void)weft_option_foreign(name, strlen(name), &servers); /* it is in the table */
      if (strstr(servers, server) == NULL) continue;
      weft_text_printf(out, "| `%s%s` | ", name[0] == '-' ? "" : "--", name);
      put_code(out, here);
      weft_text_puts(out, " |\n");
    }
    put_foreign_commands(out, server);
    weft_text_puts(out, weft_option_server_at(s + 1) == NULL ? "" : "\n");
  }
}
