/* SPDX-License-Identifier: MIT */
/* What a shell completes behind `weft`: commands, the options of each, files where an option takes one, and the
 * words of an option that takes one of a few. */
#include <string.h>

#include "api/cli/manual.h"

static bool takes_file(const weft_option *o) {
  return o->argument != NULL && (strcmp(o->argument, "FILE") == 0 || strcmp(o->argument, "PATH") == 0);
}

static bool takes_folder(const weft_option *o) {
  return o->argument != NULL && strcmp(o->argument, "DIR") == 0;
}

/* exact|fast */
static bool takes_choice(const weft_option *o) {
  return o->argument != NULL && strchr(o->argument, '|') != NULL;
}

static void skip_topic(void *self, const char *topic) {
  (void)self;
  (void)topic;
}

static void read_options(const weft_manual *manual, const weft_command *c, void (*take)(void *, const weft_option *),
                         weft_text *out) {
  weft_manual_read(manual, c->options, &(weft_manual_reader){.topic = skip_topic, .option = take, .self = out});
}

/* Text with `from` before every character of `special`. */
static void put_escaped(weft_text *out, const char *text, const char *special, const char *escape) {
  for (const char *c = text; *c != 0; c++) {
    if (strchr(special, *c) != NULL) weft_text_puts(out, escape);
    weft_text_append(out, c, 1);
  }
}

static void put_choices(weft_text *out, const char *choices) {
  for (const char *c = choices; *c != 0; c++) weft_text_append(out, *c == '|' ? " " : c, 1);
}

static void put_names(const weft_manual *manual, weft_text *out) {
  uint32_t at = 0;
  weft_text_puts(out, "help");
  for (const weft_command *c; (c = weft_manual_next(manual, &at)) != NULL;) weft_text_printf(out, " %s", c->name);
}

/* ---- bash -------------------------------------------------------------------------------------- */

static void put_bash_word(void *self, const weft_option *o) {
  weft_text_printf(self, " --%s", o->name);
}

static void put_bash_kind(weft_text *out, const weft_option *o, const char *action) {
  weft_text_printf(out, "        --%s", o->name);
  if (o->letter != 0) weft_text_printf(out, " | -%c", o->letter);
  weft_text_printf(out, ") %s ;;\n", action);
}

static void put_bash_value(void *self, const weft_option *o) {
  if (o->kind == WEFT_OPTION_FLAG) return;
  if (takes_file(o)) {
    put_bash_kind(self, o, "words='' files=file");
  } else if (takes_folder(o)) {
    put_bash_kind(self, o, "words='' files=directory");
  } else if (takes_choice(o)) {
    weft_text action = {0};
    weft_text_puts(&action, "words='");
    put_choices(&action, o->argument);
    weft_text_puts(&action, "'");
    if (weft_text_status(&action) == WEFT_OK) put_bash_kind(self, o, action.bytes);
    weft_text_free(&action);
  } else {
    put_bash_kind(self, o, "words=''");
  }
}

static void put_bash(const weft_manual *manual, weft_text *out) {
  uint32_t at = 0;
  weft_text_puts(out,
                 "# bash completion for weft; written by `weft help --completions bash`\n"
                 "_weft() {\n"
                 "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words='' files=''\n"
                 "  COMPREPLY=()\n"
                 "  if [ \"$COMP_CWORD\" -eq 1 ] || [ \"${COMP_WORDS[1]}\" = help ]; then\n"
                 "    mapfile -t COMPREPLY < <(compgen -W '");
  put_names(manual, out);
  weft_text_puts(out,
                 " --help --version' -- \"$word\")\n"
                 "    return\n"
                 "  fi\n"
                 "  case ${COMP_WORDS[1]} in\n");
  for (const weft_command *c; (c = weft_manual_next(manual, &at)) != NULL;) {
    weft_text_printf(out, "    %s)\n      words='", c->name);
    read_options(manual, c, put_bash_word, out);
    weft_text_puts(out, "'\n      case $before in\n");
    read_options(manual, c, put_bash_value, out);
    weft_text_puts(out, "        *) case $word in -*) ;; *) words='' files=file ;; esac ;;\n      esac\n      ;;\n");
  }
  weft_text_puts(out,
                 "  esac\n"
                 "  mapfile -t COMPREPLY < <(compgen -W \"$words\" ${files:+-A \"$files\"} -- \"$word\")\n"
                 "  [ -z \"$files\" ] || compopt -o filenames 2>/dev/null\n"
                 "}\n"
                 "complete -F _weft weft\n");
}

/* ---- zsh --------------------------------------------------------------------------------------- */

/* Behind --name: [what it is]:ARGUMENT:action */
static void put_zsh_rest(weft_text *out, const weft_option *o) {
  weft_text_puts(out, "[");
  for (const char *c = o->help; *c != 0; c++) {
    if (strchr("[]:\\", *c) != NULL) weft_text_puts(out, "\\");
    weft_text_append(out, *c == '\'' ? "'\\''" : c, *c == '\'' ? 4 : 1);
  }
  weft_text_puts(out, "]");
  if (o->kind != WEFT_OPTION_FLAG) {
    weft_text_puts(out, ":");
    put_escaped(out, o->argument, ":", "\\");
    weft_text_puts(out, ":");
    if (takes_file(o)) weft_text_puts(out, "_files");
    if (takes_folder(o)) weft_text_puts(out, "_files -/");
    if (takes_choice(o)) {
      weft_text_puts(out, "(");
      put_choices(out, o->argument);
      weft_text_puts(out, ")");
    }
  }
  weft_text_puts(out, "' \\\n");
}

static void put_zsh_option(void *self, const weft_option *o) {
  const char *often = o->kind == WEFT_OPTION_LIST ? "*" : "", *value = o->kind == WEFT_OPTION_FLAG ? "" : "=";
  weft_text_printf(self, "        '%s--%s%s", often, o->name, value);
  put_zsh_rest(self, o);
  if (o->letter == 0) return;
  weft_text_printf(self, "        '%s-%c%s", often, o->letter, o->kind == WEFT_OPTION_FLAG ? "" : "+");
  put_zsh_rest(self, o);
}

static void put_zsh(const weft_manual *manual, weft_text *out) {
  uint32_t at = 0;
  weft_text_puts(out,
                 "#compdef weft\n"
                 "# zsh completion for weft; written by `weft help --completions zsh`\n"
                 "_weft() {\n"
                 "  if (( CURRENT == 2 )) || [[ ${words[2]} == help ]]; then\n"
                 "    compadd -- ");
  put_names(manual, out);
  weft_text_puts(out,
                 " --help --version\n"
                 "    return\n"
                 "  fi\n"
                 "  local command=${words[2]}\n"
                 "  shift words\n"
                 "  (( CURRENT-- ))\n"
                 "  case $command in\n");
  for (const weft_command *c; (c = weft_manual_next(manual, &at)) != NULL;) {
    weft_text_printf(out, "    %s)\n      _arguments \\\n", c->name);
    read_options(manual, c, put_zsh_option, out);
    weft_text_puts(out, "        '*:file:_files'\n      ;;\n");
  }
  weft_text_puts(out,
                 "  esac\n"
                 "}\n"
                 "if [[ ${funcstack[1]} == _weft ]]; then _weft \"$@\"; else compdef _weft weft; fi\n");
}

/* ---- fish -------------------------------------------------------------------------------------- */

static void put_fish_option(void *self, const weft_option *o) {
  weft_text *out = self;
  weft_text_printf(out, " -l %s", o->name);
  if (o->letter != 0) weft_text_printf(out, " -s %c", o->letter);
  if (o->kind != WEFT_OPTION_FLAG) weft_text_puts(out, takes_file(o) || takes_folder(o) ? " -r -F" : " -x");
  if (takes_choice(o)) {
    weft_text_puts(out, " -a '");
    put_choices(out, o->argument);
    weft_text_puts(out, "'");
  }
  weft_text_puts(out, " -d '");
  put_escaped(out, o->help, "\\'", "\\");
  weft_text_puts(out, "'\n");
}

typedef struct fish_writer {
  weft_text *out;
  const char *command;
} fish_writer;

static void put_fish_line(void *self, const weft_option *o) {
  const fish_writer *w = self;
  weft_text_printf(w->out, "complete -c weft -n '__fish_seen_subcommand_from %s'", w->command);
  put_fish_option(w->out, o);
}

static void put_fish(const weft_manual *manual, weft_text *out) {
  uint32_t at = 0;
  weft_text_puts(out,
                 "# fish completion for weft; written by `weft help --completions fish`\n"
                 "complete -c weft -n __fish_use_subcommand -f\n"
                 "complete -c weft -n __fish_use_subcommand -l version -d 'print the version'\n"
                 "complete -c weft -n __fish_use_subcommand -a help -d 'help of a command'\n"
                 "complete -c weft -n '__fish_seen_subcommand_from help' -f -a '");
  put_names(manual, out);
  weft_text_puts(out, "'\n");
  for (const weft_command *c; (c = weft_manual_next(manual, &at)) != NULL;) {
    weft_text_printf(out, "complete -c weft -n __fish_use_subcommand -a %s -d '", c->name);
    put_escaped(out, c->help, "\\'", "\\");
    weft_text_puts(out, "'\n");
    fish_writer writer = {.out = out, .command = c->name};
    weft_manual_read(manual, c->options,
                     &(weft_manual_reader){.topic = skip_topic, .option = put_fish_line, .self = &writer});
  }
}

bool weft_manual_completions(const weft_manual *manual, const char *shell, weft_text *out) {
  static const struct {
    const char *shell;
    void (*put)(const weft_manual *, weft_text *);
  } table[] = {{"bash", put_bash}, {"zsh", put_zsh}, {"fish", put_fish}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    if (strcmp(table[i].shell, shell) != 0) continue;
    table[i].put(manual, out);
    return true;
  }
  return false;
}
