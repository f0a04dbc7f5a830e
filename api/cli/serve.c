/* SPDX-License-Identifier: MIT */
/* weft serve: models behind HTTP until SIGTERM or SIGINT. The server says for a while that it leaves, if
 * --lame-duck-seconds asks for that, then drains; each further signal ends what it does now, and the last one cancels
 * what runs. SIGHUP reads the keys and the TLS certificate again and begins a new log; once the server leaves it does
 * nothing. With --take-over a server gives what it listens on to the next one (hand_over.h), which SIGUSR2 starts. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/cli/cli.h"
#include "api/events/kv_events.h"
#include "api/cli/hand_over.h"
#include "api/cli/notify.h"
#include "api/cli/start_lines.h"
#include "api/cli/successor.h"
#include "api/http/tls.h"
#include "api/json.h"
#include "api/runtime.h"
#include "api/server/descriptors.h"
#include "api/server/admin.h"
#include "api/server/server.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/path.h"

enum { LOOK_MS = 20, CANCEL_MS = 5000 };

/* Signals are told through a pipe, by their numbers; a handler can be given nothing but globals. */
static int signal_pipe[2] = {-1, -1};

static void on_signal(int number) {
  unsigned char byte = (unsigned char)number;
  int kept = errno;
  (void)!write(signal_pipe[1], &byte, 1); /* full: thousands are waiting already */
  errno = kept;
}

/* SIGHUP is caught before the models are read: one that comes before the server is ready must not end it. */
static int catch_signals(void) {
  static const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR2};
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, ignore = {.sa_handler = SIG_IGN};
  bool good = pipe2(signal_pipe, O_CLOEXEC | O_NONBLOCK) == 0 && sigaction(SIGPIPE, &ignore, NULL) == 0;
  for (size_t i = 0; good && i < sizeof numbers / sizeof *numbers; i++) {
    good = sigaction(numbers[i], &action, NULL) == 0;
  }
  return good ? 0 : weft_cli_fail(WEFT_EXIT_RUNTIME, "serve: %s", strerror(errno));
}

/* The number of a signal that came within ms, or 0. */
static int wait_signal(int ms) {
  unsigned char byte;
  struct pollfd wait = {.fd = signal_pipe[0], .events = POLLIN};
  if (poll(&wait, 1, ms) <= 0) return 0;
  return read(signal_pipe[0], &byte, 1) == 1 ? byte : 0;
}

/* A server that may be taken over. */
typedef struct line_of_servers {
  int link;         /* to the one before, until that has ended; -1: there is none */
  bool joined;      /* this one has told the one before that it is ready */
  weft_text estate; /* what the one before left, parts one a line, until the server has it */
  hand_over *next;  /* where the next one asks; NULL: nowhere */
  successor *self;  /* how to start it; NULL: --take-over was not given */
  char *path;       /* of --take-over, from the root */
  char where[320];  /* what both must be given */
  int taken_by;     /* its process, once it has taken over; 0: none has */
  weft_server *server;
  weft_runtime *runtime;
  int owner;         /* readable once the owner of mapped weights has ended; -1: none, or the log has said it */
  bool weights_gone; /* with their owner, and nothing may compute with them */
} line_of_servers;

/* What the server before leaves as its last requests end. */
static void hear_before(line_of_servers *line) {
  weft_error error = {{0}};
  weft_text part = {0};
  bool more = hand_over_hear_more(line->link, &part);
  if (part.n > 0 && weft_estate_take(line->server, part.bytes, part.n, &error) != WEFT_OK)
    weft_log(WEFT_LOG_WARN, "--take-over: %s", error.text);
  weft_text_free(&part);
  if (more && hand_over_want_more(line->link)) return;
  (void)close(line->link);
  line->link = -1;
}

/* When the owner of mapped weights has ended, the log says so, once. */
static void look_at_owner(line_of_servers *line) {
  struct pollfd look = {.fd = line->owner, .events = POLLIN};
  if (poll(&look, 1, 0) <= 0) return;
  (void)weft_degraded(line->runtime); /* writes the line */
  line->weights_gone = weft_unwell(line->runtime) != NULL;
  line->owner = -1;
}

/* While this server ends: the one before may still tell something, and the next one is told what came. */
static void turn_line(line_of_servers *line) {
  struct pollfd before = {.fd = line->link, .events = POLLIN};
  if (poll(&before, 1, 0) > 0) hear_before(line);
  hand_over_tell_more(line->next, false);
  look_at_owner(line);
}

/* The number of the next signal, or 0: another server has taken over, or the weights are gone. */
static int wait_news(weft_runtime *rt, weft_server *server, line_of_servers *line) {
  int number = 0;
  while (number == 0 && line->taken_by == 0 && !line->weights_gone) {
    struct pollfd look[4] = {{.fd = signal_pipe[0], .events = POLLIN},
                             {.fd = line->owner, .events = POLLIN},
                             {.fd = hand_over_descriptor(line->next), .events = POLLIN},
                             {.fd = line->link, .events = POLLIN}};
    int pid;
    if (poll(look, 4, -1) > 0 && look[1].revents != 0) look_at_owner(line);
    if (look[3].revents != 0) hear_before(line);
    if (look[2].revents != 0 && hand_over_hear(line->next, rt, server, &pid)) line->taken_by = pid;
    number = wait_signal(0);
  }
  return number;
}

static bool ends_server(int number) {
  return number == SIGTERM || number == SIGINT;
}

/* True when a signal to end came, or the weights went. */
static bool wait_idle(weft_server *server, line_of_servers *line, uint64_t ms) {
  uint64_t until = weft_clock_us() + ms * 1000u;
  bool gone = line->weights_gone;
  while (!weft_server_idle(server) && weft_clock_us() < until) {
    int number = wait_signal(LOOK_MS);
    turn_line(line);
    if (ends_server(number) || line->weights_gone != gone) return true;
  }
  return false;
}

/* Routers look at /health now and then, and send requests until they saw that this server leaves. A signal to end makes
 * it short, as does the end of the weights; at_once: that signal has come. */
static void tell_leaving(const weft_config *config, weft_server *server, line_of_servers *line, bool at_once) {
  uint64_t until = weft_clock_us() + (uint64_t)config->lame_duck_seconds * 1000000u;
  bool gone = line->weights_gone;
  weft_server_leave(server);
  if (at_once) return;
  if (config->lame_duck_seconds > 0 && !config->quiet)
    weft_cli_say(
        STDERR_FILENO,
        "leaving: /health says so for %u s, and requests are answered; a second Ctrl-C or SIGTERM drains at once",
        config->lame_duck_seconds);
  while (weft_clock_us() < until) {
    int number = wait_signal(LOOK_MS);
    look_at_owner(line);
    if (ends_server(number) || line->weights_gone != gone) return;
  }
}

/* The object of --json. */
static void print_where(const weft_config *config, const weft_runtime *rt, uint32_t port, weft_text *names) {
  weft_text line = {0};
  weft_text_puts(&line, "{\"port\":");
  weft_text_printf(&line, "%u,\"host\":", port);
  weft_json_words(&line, config->host);
  weft_text_puts(&line, ",\"models\":[");
  for (uint32_t i = 0; i < weft_n_models(rt); i++) {
    const char *name = weft_model_at(rt, i).name;
    weft_text_printf(names, i == 0 ? "%s" : ", %s", name);
    if (i > 0) weft_text_puts(&line, ",");
    weft_json_words(&line, name);
  }
  weft_text_puts(&line, "]}\n");
  if (config->json && weft_text_status(&line) == WEFT_OK) {
    (void)fputs(line.bytes, stdout);
    (void)fflush(stdout); /* a reader that left is no reason to stop */
  }
  weft_text_free(&line);
}

/* to: where standard error was before the log took its place. */
static void say_where(const weft_config *config, const weft_runtime *rt, const weft_server *server, int to) {
  weft_text names = {0}, url = {0}, facts = {0};
  uint32_t port = weft_server_port(server);
  print_where(config, rt, port, &names);
  start_print_url(config, port, &url);
  if (weft_text_status(&names) == WEFT_OK && weft_text_status(&url) == WEFT_OK) {
    weft_cli_say(to, "serving %s on %s", names.bytes, url.bytes);
    start_print_facts(config, rt, url.bytes, !weft_server_is_loopback(server), &facts);
  }
  char *save = NULL;
  bool told = !config->quiet && weft_text_status(&facts) == WEFT_OK && facts.bytes != NULL;
  for (char *line = told ? strtok_r(facts.bytes, "\n", &save) : NULL; line != NULL; line = strtok_r(NULL, "\n", &save))
    weft_cli_say(to, "%s", line);
  weft_text_free(&names);
  weft_text_free(&url);
  weft_text_free(&facts);
}

static void say_what_is_open(const weft_config *config, uint32_t port, int to) {
  weft_cli_say(to,
               "warning: --host %s without API keys: whoever reaches port %u may use every model and read /metrics; "
               "/admin answers this machine alone",
               config->host, port);
}

/* Where this server's log and core files go, apart from those of others: opened before anything
 * else, so that a bad folder is told at once, entered when all other files are open. */
typedef struct workplace {
  int folder, log; /* -1: none */
} workplace;

static int open_log(int folder) {
  return openat(folder, "weft.log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

static int open_workplace(const char *directory, workplace *w) {
  *w = (workplace){-1, -1};
  if (directory == NULL) return 0;
  w->folder = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (w->folder >= 0) w->log = open_log(w->folder);
  if (w->log >= 0) return 0;
  return weft_cli_fail(WEFT_EXIT_USAGE, "--directory %s: %s", directory, strerror(errno));
}

static void close_workplace(workplace *w) {
  if (w->folder >= 0) (void)close(w->folder);
  if (w->log >= 0) (void)close(w->log); /* its copy is standard error */
}

static int enter_workplace(const workplace *w) {
  if (w->log < 0 || (fchdir(w->folder) == 0 && dup2(w->log, STDERR_FILENO) >= 0)) return 0;
  return weft_cli_fail(WEFT_EXIT_RUNTIME, "--directory: %s", strerror(errno));
}

/* A log that was moved away is begun again. */
static void reopen_log(workplace *w) {
  if (w->log < 0) return; /* standard error belongs to the process that started us */
  int log = open_log(w->folder);
  if (log < 0 || dup2(log, STDERR_FILENO) < 0) {
    weft_log(WEFT_LOG_ERROR, "weft.log cannot be opened again, the old one goes on: %s", strerror(errno));
    if (log >= 0) (void)close(log); /* nothing was written */
    return;
  }
  (void)close(w->log); /* its copies are closed too */
  w->log = log;
}

/* Files that are read again, by their names from the root: --directory changes the folder that a name begins in. NULL:
 * the option was not given. */
typedef struct read_again {
  weft_keys *keys;
  weft_keys_source keys_source; /* with the name below */
  char *keys_path, *tls_cert, *tls_key;
} read_again;

static void change_tenant(void *server, uint32_t tenant, const weft_tenant_options *options) {
  weft_server_change_tenant(server, tenant, options);
}

/* SIGHUP. */
static void reload_files(weft_server *server, const read_again *files, workplace *place) {
  weft_error error = {{0}};
  reopen_log(place);
  if (files->keys_path != NULL) {
    const weft_keys_listener listener = {.change = change_tenant, .self = server};
    weft_keys_news news;
    if (weft_keys_reload(files->keys, &files->keys_source, &listener, &news, &error) == WEFT_OK) {
      weft_log(WEFT_LOG_NOTICE, "SIGHUP: the keys of %s are in use now; tenants: %u new, %u changed, %u gone",
               files->keys_path, news.n_new, news.n_changed, news.n_gone);
    } else {
      weft_log(WEFT_LOG_ERROR, "SIGHUP: the old keys stay: %s", error.text);
    }
  }
  if (files->tls_cert == NULL) return;
  if (weft_server_renew(server, files->tls_cert, files->tls_key, &error) == WEFT_OK) {
    weft_log(WEFT_LOG_NOTICE, "SIGHUP: new connections are shown the certificate of %s", files->tls_cert);
  } else {
    weft_log(WEFT_LOG_ERROR, "SIGHUP: the old certificate stays: %s", error.text);
  }
}

/* A manager that is not there, or does not listen, is no reason to stop; who waits for READY=1 will say so. */
static void tell_manager(const char *lines) {
  if (notify_send(lines) < 0)
    weft_log(WEFT_LOG_WARN, "NOTIFY_SOCKET: the service manager could not be told '%s'", lines);
}

/* SIGUSR2. */
static void start_successor(const line_of_servers *line) {
  weft_error error = {{0}};
  int pid;
  if (line->self == NULL)
    weft_log(WEFT_LOG_WARN, "SIGUSR2: no server can take over: --take-over says where it would ask");
  else if (successor_start(line->self, &pid, &error) != WEFT_OK)
    weft_log(WEFT_LOG_ERROR, "SIGUSR2: %s", error.text);
  else
    weft_log(WEFT_LOG_NOTICE, "SIGUSR2: process %d starts, to take over", pid);
}

/* Another server accepts what comes. Connections that are open have their requests answered, each connection's last;
 * who sends nothing more holds this up as long as draining may take. */
static void answer_the_rest(const weft_config *config, weft_server *server, line_of_servers *line) {
  char lines[64];
  (void)snprintf(lines, sizeof lines, "MAINPID=%d", line->taken_by);
  tell_manager(lines);
  weft_log(WEFT_LOG_NOTICE, "process %d has taken over; this one answers what it has, and ends", line->taken_by);
  uint64_t until = weft_clock_us() + (uint64_t)config->drain_seconds * 1000000u;
  while (weft_server_connections(server) > 0 && (!weft_server_idle(server) || weft_clock_us() < until)) {
    if (ends_server(wait_signal(LOOK_MS)) || line->weights_gone) return;
    turn_line(line);
  }
}

static void drain_server(const weft_config *config, weft_server *server, line_of_servers *line) {
  weft_server_drain(server);
  if (weft_server_idle(server)) return;
  if (!config->quiet)
    weft_cli_say(STDERR_FILENO,
                 "draining: what runs has %u s to come to its end; a second Ctrl-C or SIGTERM cancels it",
                 config->drain_seconds);
  bool again = wait_idle(server, line, (uint64_t)config->drain_seconds * 1000u);
  if (weft_server_idle(server)) return;
  weft_log(WEFT_LOG_WARN, again ? "cancelling what is running" : "the time to drain is up: cancelling what is running");
  weft_server_cancel(server);
  (void)wait_idle(server, line, CANCEL_MS);
}

/* Without weights: what runs ends with an error, and what comes is refused. True when a signal to end came meanwhile:
 * nothing is left that could be waited for then. */
static bool end_all(weft_server *server, line_of_servers *line) {
  weft_server_drain(server);
  weft_server_cancel(server);
  bool asked = wait_idle(server, line, CANCEL_MS);
  if (asked) (void)wait_idle(server, line, CANCEL_MS);
  return asked;
}

static void serve_until_signal(const weft_config *config, weft_runtime *rt, weft_server *server,
                               const read_again *files, workplace *place, line_of_servers *line) {
  int number = 0;
  line->runtime = rt;
  line->owner = weft_runtime_owner(rt);
  tell_manager("READY=1");
  while (!ends_server(number) && line->taken_by == 0 && !line->weights_gone) {
    number = wait_news(rt, server, line);
    if (number == SIGUSR2) start_successor(line);
    if (number != SIGHUP) continue;
    (void)notify_reloading(); /* READY=1 says when it is over */
    reload_files(server, files, place);
    tell_manager("READY=1");
  }
  if (line->taken_by != 0) {
    answer_the_rest(config, server, line);
  } else {
    /* The signal that ended the wait may have come with the owner's end, or while all was ended. */
    bool at_once = line->weights_gone && (end_all(server, line) || ends_server(number));
    tell_manager("STOPPING=1");
    tell_leaving(config, server, line, at_once);
  }
  if (line->weights_gone) (void)end_all(server, line); /* maybe they went meanwhile */
  drain_server(config, server, line);
  hand_over_tell_more(line->next, true);
}

/* ---- the line of servers ---- */

/* What the server before leaves so far, and then what it listens on. */
static weft_status ask_before(line_of_servers *line, weft_server_options *where, weft_error *error) {
  if (line->link < 0 || where->has_listener) return WEFT_OK;
  weft_status status = hand_over_ask_estate(line->link, &line->estate, error);
  if (status == WEFT_OK) status = hand_over_ask_socket(line->link, &where->listener, error);
  where->has_listener = status == WEFT_OK;
  return status;
}

/* The one before ends first, so that its memory is free; clients wait in the socket meanwhile. A signal to end ends the
 * wait, too, and with it the line. */
static weft_status wait_for_before(const weft_config *config, line_of_servers *line, weft_server_options *where,
                                   weft_error *error) {
  weft_status status = ask_before(line, where, error);
  if (status == WEFT_OK) status = hand_over_tell_ready(line->link, error);
  line->joined = status == WEFT_OK;
  if (status == WEFT_OK && !config->quiet)
    weft_cli_say(STDERR_FILENO, "waiting for the server before to end: its memory is needed; clients wait meanwhile");
  bool more = status == WEFT_OK && hand_over_want_more(line->link), ended = status != WEFT_OK;
  while (!ended) {
    struct pollfd look[2] = {{.fd = line->link, .events = POLLIN}, {.fd = signal_pipe[0], .events = POLLIN}};
    if (poll(look, 2, -1) > 0 && look[1].revents != 0 && ends_server(wait_signal(0)))
      return weft_fail(error, WEFT_E_IO, "--take-over-after: ended by a signal before it served anybody");
    if (look[0].revents == 0) continue;
    if (!more) {
      ended = hand_over_has_ended(line->link);
      continue;
    }
    weft_text_puts(&line->estate, "\n");
    more = hand_over_hear_more(line->link, &line->estate) && hand_over_want_more(line->link);
  }
  if (line->link >= 0) (void)close(line->link); /* it has ended */
  line->link = -1;
  return status;
}

static weft_status begin_line(const weft_config *config, line_of_servers *line, weft_server_options *where,
                              weft_error *error) {
  *line = (line_of_servers){.link = -1, .owner = -1};
  if (config->take_over_after && config->take_over == NULL)
    return weft_fail(error, WEFT_E_INVALID, "--take-over-after: --take-over SOCKET says from whom");
  if (config->take_over == NULL) return WEFT_OK;
  if (config->kv_events != NULL)
    return weft_fail(error, WEFT_E_INVALID,
                     "--take-over and --kv-events: two servers cannot publish at one address: leave out one of both");
  (void)snprintf(line->where, sizeof line->where, "%.200s port %u", config->host, config->port);
  line->path = weft_path_from_root(config->take_over);
  if (line->path == NULL)
    return weft_fail(error, WEFT_E_IO, "--take-over %.200s: %s", config->take_over, strerror(errno));
  const struct sigaction ignore = {.sa_handler = SIG_IGN};
  (void)sigaction(SIGCHLD, &ignore, NULL); /* nobody asks what became of a successor */
  weft_status status = successor_open(&line->self, error);
  if (status == WEFT_OK) status = hand_over_greet(line->path, line->where, &line->link, error);
  if (status == WEFT_OK && line->link >= 0 && config->keep.n > 0) status = hand_over_ask_prefixes(line->link, error);
  if (status == WEFT_OK && line->link >= 0 && config->take_over_after)
    status = wait_for_before(config, line, where, error);
  return status;
}

/* This server answers requests: the one before need not any more, and the next one may come. Once it has taken over, a
 * fault here is no reason to end. */
static int join_line(line_of_servers *line, weft_server *server, uint32_t first_pin) {
  weft_error error = {{0}};
  bool took = line->link >= 0;
  line->server = server;
  line->joined = true;
  if (line->path == NULL) return 0;
  weft_text_free(&line->estate);
  if (took && hand_over_tell_ready(line->link, &error) != WEFT_OK) weft_log(WEFT_LOG_WARN, "%s", error.text);
  if (took && !hand_over_want_more(line->link)) {
    (void)close(line->link); /* the one before has ended */
    line->link = -1;
  }
  if (hand_over_open(line->path, line->where, first_pin, &line->next, &error) == WEFT_OK) return 0;
  hand_over_close(line->next);
  line->next = NULL;
  if (!took) return weft_cli_fail(WEFT_EXIT_USAGE, "%s", error.text);
  weft_log(WEFT_LOG_ERROR, "no server can take over from this one: %s", error.text);
  return 0;
}

static void close_line(line_of_servers *line) {
  if (line->link >= 0) (void)close(line->link);
  hand_over_close(line->next);
  successor_close(line->self);
  weft_text_free(&line->estate);
  weft_free(line->path);
}

static const weft_tenant_options everybody = {.name = WEFT_EVERYBODY};

static void say_plan(const weft_runtime *rt, const weft_server *server) {
  weft_text more = {0};
  weft_server_plan(server, &more);
  weft_cli_tell_plan(weft_plan(rt));
  if (weft_text_status(&more) == WEFT_OK) weft_cli_tell_plan(more.bytes);
  weft_text_free(&more);
}

/* So many connections that there are descriptors for all of them; 0: too few. */
static uint32_t fit_connections(uint32_t wanted) {
  uint32_t limit = descriptors_limit(), n = descriptors_room(limit, descriptors_open(), wanted);
  if (n > 0 && n < wanted) {
    weft_cli_say(
        STDERR_FILENO,
        "warning: the limit of %u file descriptors leaves room for %u connections, not %u: raise it (ulimit -n) "
        "or lower --connections",
        limit, n, wanted);
  } else if (n == 0) {
    (void)weft_cli_fail(0, "the limit of %u file descriptors leaves none for connections: raise it (ulimit -n)", limit);
  }
  return n;
}

static int open_events(const weft_config *config, weft_runtime *rt, kv_events **out) {
  const kv_events_options options = {.endpoint = config->kv_events,
                                     .replay = config->kv_events_replay,
                                     .socket_mode = weft_config_mode(config->socket_mode),
                                     .topic = config->kv_events_topic,
                                     .form = config->kv_events_form,
                                     .tokens = config->kv_events_tokens.item,
                                     .n_tokens = config->kv_events_tokens.n};
  bool more = options.replay != NULL || options.topic != NULL || options.form != NULL || options.n_tokens > 0;
  weft_error error = {{0}};
  if (config->kv_events == NULL && more)
    return weft_cli_fail(WEFT_EXIT_USAGE, "cache events are told where --kv-events says: give it, too");
  if (config->kv_events == NULL) return 0;
  if (kv_events_open(&options, rt, out, &error) != WEFT_OK) return weft_cli_fail(WEFT_EXIT_USAGE, "%s", error.text);
  if (!kv_events_is_local(*out))
    weft_cli_say(STDERR_FILENO,
                 "warning: --kv-events %s: whoever reaches it is told what is cached, without a key: let only routers "
                 "through",
                 config->kv_events);
  return 0;
}

/* The number that the next pin gets, after those of files. */
static uint32_t next_pin(weft_runtime *rt) {
  enum { PINS_MAX = 4096 };
  weft_pin_card *pin = weft_alloc(PINS_MAX, sizeof *pin);
  uint32_t n = pin == NULL ? 0 : weft_pins(rt, pin, PINS_MAX), next = n == 0 ? 1 : pin[n - 1].id + 1;
  weft_free(pin);
  return next;
}

static int serve_at_place(const weft_config *config, const read_again *files, workplace *place,
                          void (*opened)(weft_runtime *rt)) {
  weft_open_options options = weft_config_open(config);
  const weft_keys *keys = files->keys;
  weft_server_options where = {.host = config->host,
                               .port = config->port,
                               .socket_mode = weft_config_mode(config->socket_mode),
                               .tls_cert = config->tls_cert,
                               .tls_key = config->tls_key,
                               .body_mib = config->body_mib,
                               .connections = config->connections,
                               .keys = keys,
                               .origins = config->origins.item,
                               .n_origins = config->origins.n,
                               .no_page = config->no_page,
                               .public_metrics = config->public_metrics,
                               .strict_fields = config->strict_fields};
  weft_runtime *rt = NULL;
  weft_server *server = NULL;
  kv_events *events = NULL;
  weft_error error = {{0}};
  char text[512];
  line_of_servers line;
  if (begin_line(config, &line, &where, &error) != WEFT_OK) {
    close_line(&line);
    return weft_cli_fail(WEFT_EXIT_USAGE, "%s", error.text);
  }
  options.prefix_feed = config->kv_events != NULL;
  options.sampling = &config->sampling;
  if (config->has_seed) options.seed = &config->sampling.seed;
  options.entropy_bound = &config->entropy_bound;
  options.tenants = keys == NULL ? 1 : weft_keys_n_places(keys);
  options.tenant = keys == NULL ? &everybody : weft_keys_options(keys);
  int status = weft_open(&options, &rt, text, sizeof text);
  int code = status == 0 ? 0 : weft_cli_fail(weft_cli_open_code(status), "%s", text);
  if (code == 0 && opened != NULL) opened(rt);
  for (uint32_t i = 0; code == 0 && i < config->pin_files.n; i++) {
    if (weft_admin_pin_file(rt, keys, config->pin_files.item[i], &error) != WEFT_OK)
      code = weft_cli_fail(WEFT_EXIT_USAGE, "--pin %s", error.text);
  }
  uint32_t first_pin = code == 0 ? next_pin(rt) : 1;
  if (code == 0) code = open_events(config, rt, &events);
  where.events = events;
  if (code == 0 && (where.connections = fit_connections(where.connections)) == 0) code = WEFT_EXIT_LOAD;
  if (code == 0 && ask_before(&line, &where, &error) != WEFT_OK)
    code = weft_cli_fail(WEFT_EXIT_USAGE, "%s", error.text);
  where.estate = line.estate.bytes;
  where.n_estate = line.estate.n;
  if (code == 0 && (status = weft_server_open(&where, rt, &server, &error)) != WEFT_OK)
    code = weft_cli_fail(status == WEFT_E_NO_MEMORY ? WEFT_EXIT_LOAD : WEFT_EXIT_USAGE, "%s", error.text);
  if (code == 0) say_plan(rt, server);
  if (code == 0) {
    int to = place->log >= 0 ? dup(STDERR_FILENO) : STDERR_FILENO;
    code = enter_workplace(place); /* first, so that no request is logged elsewhere */
    if (code == 0) say_where(config, rt, server, to);
    if (code == 0 && keys == NULL && !weft_server_is_loopback(server))
      say_what_is_open(config, weft_server_port(server), to);
    if (to > STDERR_FILENO) (void)close(to);
  }
  if (code == 0) code = join_line(&line, server, first_pin);
  if (code == 0) serve_until_signal(config, rt, server, files, place, &line);
  if (line.weights_gone) code = weft_cli_fail(WEFT_EXIT_RUNTIME, "%s", weft_unwell(rt));
  if (code != 0 && server != NULL && line.link >= 0 && !line.joined)
    weft_server_pass_on(server); /* the one before has it still */
  close_line(&line);
  weft_server_close(server);
  kv_events_close(events);
  weft_close(rt);
  return code;
}

/* Before models are loaded, which may take minutes. */
static int check_tls(const weft_config *config) {
  tls_identity *identity = NULL;
  weft_error error = {{0}};
  if (config->tls_cert == NULL && config->tls_key == NULL) return 0;
  weft_status status = tls_identity_open(config->tls_cert, config->tls_key, &identity, &error);
  tls_identity_close(identity);
  return status == WEFT_OK ? 0 : weft_cli_fail(WEFT_EXIT_USAGE, "%s", error.text);
}

static char *name_from_root(const char *path, int *code) {
  if (path == NULL || *code != 0) return NULL;
  char *name = weft_path_from_root(path);
  if (name == NULL) *code = weft_cli_fail(WEFT_EXIT_RUNTIME, "%s: %s", path, strerror(errno));
  return name;
}

int weft_cli_serve_opened(const weft_config *config, void (*opened)(weft_runtime *rt)) {
  read_again files = {0};
  weft_error error = {{0}};
  if (weft_config_mode(config->socket_mode) == 0) {
    return weft_cli_fail(WEFT_EXIT_USAGE, "--socket-mode: '%s' must be three octal digits such as 660",
                         config->socket_mode);
  }
  if (config->models.n == 0 && config->models_dir == NULL && config->models_preset == NULL)
    return weft_cli_fail(WEFT_EXIT_USAGE, WEFT_NO_MODEL);
  files.keys_source =
      (weft_keys_source){.path = config->api_keys, .key = config->api_key.item, .n_keys = config->api_key.n};
  if (config->api_keys != NULL || config->api_key.n > 0) {
    weft_status status = weft_keys_open(&files.keys_source, &files.keys, &error);
    if (status != WEFT_OK) return weft_cli_fail(WEFT_EXIT_USAGE, "API keys: %s", error.text);
    if (config->api_keys != NULL) weft_keys_keep_places(files.keys, config->spare_tenants);
  }
  descriptors_raise();
  workplace place;
  int code = open_workplace(config->directory, &place);
  if (code == 0) code = check_tls(config);
  files.keys_path = name_from_root(config->api_keys, &code);
  files.keys_source.path = files.keys_path;
  files.tls_cert = name_from_root(config->tls_cert, &code);
  files.tls_key = name_from_root(config->tls_key, &code);
  if (code == 0) code = catch_signals();
  if (code == 0) code = serve_at_place(config, &files, &place, opened);
  close_workplace(&place);
  weft_keys_close(files.keys);
  weft_free(files.keys_path);
  weft_free(files.tls_cert);
  weft_free(files.tls_key);
  return code;
}

int weft_cli_serve(const weft_config *config) {
  return weft_cli_serve_opened(config, NULL);
}
