/* SPDX-License-Identifier: MIT */
#include "api/cli/top_view.h"

#include <stdlib.h>
#include <string.h>

#include "api/json.h"
#include "base/memory.h"

enum {
  BAR = 40,
  NAME = 256,
  SHOWN = 2 * NAME,
  ROWS_MAX = 4096,
  COLUMNS_MAX = 8,
  NAME_COLUMNS = 32,
  NAME_LEAST = 8,
  INDENT = 10
};

static double current_value(const weft_top_view *v, const char *name) {
  return weft_reading_of(v->after, name, NULL, NULL);
}

static double value_rate(const weft_top_view *v, const char *name) {
  return weft_reading_rate(v->before, v->after, name, NULL, NULL);
}

static double percent_of(double part, double whole) {
  return whole > 0.0 ? 100.0 * part / whole : 0.0;
}

/* ---- tables of names ----------------------------------------------------------------------------- */

typedef enum column_kind {
  COLUMN_NOW,   /* the value now */
  COLUMN_RATE,  /* by how much it grows per second, times `scale` */
  COLUMN_SHARE, /* how much it grows in percent of what `of` grows */
  COLUMN_NONE   /* the end of a table */
} column_kind;

typedef struct table_column {
  char letter; /* sorts by it */
  const char *heading, *member;
  column_kind kind;
  const char *metric, *of;
  double scale;
  const char *format; /* of a number, in 10 columns */
} table_column;

typedef struct name_table {
  const char *heading, *member; /* of the names, and of the JSON list */
  const char *label, *names;    /* the metric whose lines have them all */
  table_column column[COLUMNS_MAX];
} name_table;

static const name_table tables[] = {
    {"MODEL",
     "models",
     "model_name",
     "weft_model_steps_total",
     {{'r', "running", "running", COLUMN_NOW, "weft_model_requests_running", NULL, 1, "%10.0f"},
      {'w', "waiting", "waiting", COLUMN_NOW, "weft_model_requests_waiting", NULL, 1, "%10.0f"},
      {'s', "steps/s", "steps_per_second", COLUMN_RATE, "weft_model_steps_total", NULL, 1, "%10.1f"},
      {'a', "rows/s", "rows_per_second", COLUMN_RATE, "weft_model_rows_total", NULL, 1, "%10.0f"},
      {'d', "device", "device_percent", COLUMN_RATE, "weft_model_busy_microseconds_total", NULL, 1e-4, "%9.0f%%"},
      {'e', "error", "error_percent", COLUMN_SHARE, "weft_model_step_error_microseconds_total",
       "weft_model_step_measured_microseconds_total", 1, "%9.0f%%"},
      {.kind = COLUMN_NONE}}},
    {"TENANT",
     "tenants",
     "tenant",
     "weft_tenant_requests_total",
     {{'r', "running", "running", COLUMN_NOW, "weft_tenant_requests_running", NULL, 1, "%10.0f"},
      {'w', "waiting", "waiting", COLUMN_NOW, "weft_tenant_requests_waiting", NULL, 1, "%10.0f"},
      {'a', "answer/s", "answer_tokens_per_second", COLUMN_RATE, "weft_tenant_completion_tokens_total", NULL, 1,
       "%10.0f"},
      {'p', "prompt/s", "prompt_tokens_per_second", COLUMN_RATE, "weft_tenant_prompt_tokens_total", NULL, 1, "%10.0f"},
      {'c', "cached/s", "cached_tokens_per_second", COLUMN_RATE, "weft_tenant_cached_tokens_total", NULL, 1, "%10.0f"},
      {'f', "ended/s", "ended_per_second", COLUMN_RATE, "weft_tenant_requests_total", NULL, 1, "%10.1f"},
      {'g', "pages", "pages", COLUMN_NOW, "weft_tenant_blocks", NULL, 1, "%10.0f"},
      {.kind = COLUMN_NONE}}}};
enum { N_TABLES = sizeof tables / sizeof *tables };

typedef struct table_row {
  char name[NAME];
  double value[COLUMNS_MAX];
  uint32_t number; /* in the server's order */
  uint32_t by;     /* the column that sorts; COLUMNS_MAX: the name; more: none */
  bool reversed;
} table_row;

enum { BY_NAME = COLUMNS_MAX, BY_NOTHING };

static double read_column(const weft_top_view *v, const name_table *t, const table_column *c, const char *name) {
  if (c->kind == COLUMN_NOW) return weft_reading_of(v->after, c->metric, t->label, name);
  double rate = weft_reading_rate(v->before, v->after, c->metric, t->label, name);
  if (c->kind == COLUMN_RATE) return rate * c->scale;
  return percent_of(rate, weft_reading_rate(v->before, v->after, c->of, t->label, name));
}

static uint32_t sorting_column(const name_table *t, char letter) {
  if (letter == 'n') return BY_NAME;
  for (uint32_t i = 0; t->column[i].kind != COLUMN_NONE; i++) {
    if (letter != 0 && t->column[i].letter == letter) return i;
  }
  return BY_NOTHING;
}

/* Numbers from the largest down, names from the first up. */
static int compare_rows(const void *a, const void *b) {
  const table_row *x = a, *y = b;
  int order = 0;
  if (x->by == BY_NAME) order = strcmp(x->name, y->name);
  if (x->by < BY_NAME) order = x->value[x->by] < y->value[x->by] ? 1 : x->value[x->by] > y->value[x->by] ? -1 : 0;
  if (x->reversed) order = -order;
  return order != 0 ? order : x->number < y->number ? -1 : 1;
}

/* The caller frees; *n: how many. NULL: none, or no memory. */
static table_row *read_rows(const weft_top_view *v, const name_table *t, uint32_t *n) {
  char name[NAME];
  *n = 0;
  while (*n < ROWS_MAX && weft_reading_label(v->after, t->names, t->label, *n, name, sizeof name)) *n += 1;
  table_row *rows = *n == 0 ? NULL : weft_alloc(*n, sizeof *rows);
  if (rows == NULL) *n = 0;
  for (uint32_t i = 0; i < *n; i++) {
    (void)weft_reading_label(v->after, t->names, t->label, i, rows[i].name, sizeof rows[i].name); /* it was there */
    rows[i].number = i;
    rows[i].by = sorting_column(t, v->sorted_by);
    rows[i].reversed = v->reversed;
    for (uint32_t k = 0; t->column[k].kind != COLUMN_NONE; k++)
      rows[i].value[k] = read_column(v, t, &t->column[k], rows[i].name);
  }
  if (*n > 1) qsort(rows, *n, sizeof *rows, compare_rows);
  return rows;
}

/* How wide names are, and how many columns of numbers have room beside them. */
static uint32_t fit_table(const name_table *t, const weft_terminal *terminal, int *name_width) {
  uint32_t n = 0;
  while (t->column[n].kind != COLUMN_NONE) n++;
  *name_width = NAME_COLUMNS;
  if (terminal->n_columns == 0) return n;
  uint32_t room = terminal->n_columns;
  if (room < NAME_COLUMNS + 11 * n) *name_width = room > NAME_LEAST + 11 * n ? (int)(room - 11 * n) : NAME_LEAST;
  uint32_t fits = room > (uint32_t)*name_width ? (room - (uint32_t)*name_width) / 11 : 0;
  return fits < n ? fits : n;
}

static void put_table(const weft_top_view *v, const name_table *t, const weft_terminal *terminal, weft_text *out) {
  int width;
  uint32_t n, n_shown = fit_table(t, terminal, &width);
  table_row *rows = read_rows(v, t, &n);
  weft_text_printf(out, "\n%s%-*.*s", weft_terminal_style(terminal, WEFT_BOLD), width, width, t->heading);
  for (uint32_t k = 0; k < n_shown; k++) weft_text_printf(out, " %10s", t->column[k].heading);
  weft_text_printf(out, "%s\n", weft_terminal_style(terminal, WEFT_PLAIN));
  for (uint32_t i = 0; i < n; i++) {
    char clean[SHOWN];
    size_t length = weft_utf8_clean(rows[i].name, clean, sizeof clean);
    bool cut = weft_terminal_columns(clean, length) > (size_t)width && terminal->n_columns > 0;
    while (cut && weft_terminal_columns(clean, length) >= (size_t)width)
      clean[length = weft_utf8_complete(clean, length - 1)] = 0;
    weft_text_puts(out, clean);
    if (cut) weft_text_puts(out, "~");
    for (size_t k = weft_terminal_columns(clean, length) + (cut ? 1 : 0); k < (size_t)width; k++)
      weft_text_puts(out, " ");
    for (uint32_t k = 0; k < n_shown; k++) {
      char number[32];
      (void)snprintf(number, sizeof number, t->column[k].format, rows[i].value[k]);
      weft_text_printf(out, " %s", number);
    }
    weft_text_puts(out, "\n");
  }
  weft_free(rows);
}

void weft_top_keys(weft_text *out) {
  char seen[64] = "n";
  weft_text_puts(out, "n name");
  for (uint32_t i = 0; i < N_TABLES; i++) {
    for (const table_column *c = tables[i].column; c->kind != COLUMN_NONE; c++) {
      if (strchr(seen, c->letter) != NULL) continue;
      seen[strlen(seen)] = c->letter;
      weft_text_printf(out, "  %c %s", c->letter, c->heading);
    }
  }
}

bool weft_top_sorts(char letter) {
  bool sorts = letter == 'n';
  for (uint32_t i = 0; i < N_TABLES; i++) sorts = sorts || sorting_column(&tables[i], letter) != BY_NOTHING;
  return sorts;
}

/* ---- lines of fields ----------------------------------------------------------------------------- */

void weft_top_fields(const weft_terminal *terminal, const char *topic, const weft_text *fields, weft_text *out) {
  size_t column = INDENT, n_columns = terminal->n_columns;
  weft_text_printf(out, "%s%-9s%s", weft_terminal_style(terminal, WEFT_BOLD), topic,
                   weft_terminal_style(terminal, WEFT_PLAIN));
  const char *at = weft_text_status(fields) == WEFT_OK && fields->bytes != NULL ? fields->bytes : "";
  for (bool first = true; *at != 0; first = false) {
    const char *gap = strstr(at, "  ");
    size_t n = gap == NULL ? strlen(at) : (size_t)(gap - at);
    if (n_columns > 0 && !first && column + 2 + n > n_columns) {
      weft_text_puts(out, "\n  ");
      column = 2;
    } else {
      weft_text_puts(out, first ? " " : "  ");
      column += first ? 0 : 2;
    }
    weft_text_append(out, at, n);
    column += n;
    at += n;
    while (*at == ' ') at++;
  }
  weft_text_puts(out, "\n");
}

static void list_requests(const weft_top_view *v, weft_text *f) {
  weft_text_printf(f, "running %.0f  waiting %.0f  ended %.1f/s  preempted %.1f/s  clients left %.1f/s",
                   current_value(v, "vllm:num_requests_running"), current_value(v, "vllm:num_requests_waiting"),
                   value_rate(v, "vllm:request_success_total"), value_rate(v, "vllm:num_preemptions_total"),
                   value_rate(v, "weft_http_clients_left_total"));
}

static void list_tokens(const weft_top_view *v, weft_text *f) {
  weft_text_printf(
      f, "prompt %.0f/s  answer %.0f/s  prefix cache %.0f %%", value_rate(v, "vllm:prompt_tokens_total"),
      value_rate(v, "vllm:generation_tokens_total"),
      percent_of(value_rate(v, "vllm:prefix_cache_hits_total"), value_rate(v, "vllm:prefix_cache_queries_total")));
}

static void list_steps(const weft_top_view *v, weft_text *f) {
  double steps = value_rate(v, "weft_steps_total"), rows = value_rate(v, "weft_rows_total");
  double step_us = value_rate(v, "weft_step_microseconds_total");
  weft_text_printf(f, "%.1f/s  %.2f ms each  planning %.1f %%  mixed %.0f %%  rows %.0f each:", steps,
                   steps > 0.0 ? step_us / steps / 1000.0 : 0.0,
                   percent_of(value_rate(v, "weft_plan_microseconds_total"), step_us),
                   percent_of(value_rate(v, "weft_steps_mixed_total"), steps), steps > 0.0 ? rows / steps : 0.0);
  static const char *const kinds[] = {"prefill", "decode", "canvas", "commit"};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    char metric[64];
    (void)snprintf(metric, sizeof metric, "weft_rows_%s_total", kinds[i]);
    weft_text_printf(f, "  %s %.0f %%", kinds[i], percent_of(value_rate(v, metric), rows));
  }
}

static void list_pool(const weft_top_view *v, weft_text *f) {
  double pages = current_value(v, "weft_pool_pages"), pinned = current_value(v, "weft_pool_pages_pinned");
  weft_text_printf(f, "# held %.0f %%  = cached %.0f %%  of %.0f pages  evicted %.1f/s", percent_of(pinned, pages),
                   percent_of(current_value(v, "weft_pool_pages_cached"), pages), pages,
                   value_rate(v, "weft_pool_evicted_total"));
}

/* As wide as the screen has room for. */
static void put_bar(const weft_top_view *v, const weft_terminal *terminal, weft_text *out) {
  double pages = current_value(v, "weft_pool_pages"), held = current_value(v, "weft_pool_pages_pinned");
  double cached = current_value(v, "weft_pool_pages_cached");
  uint32_t n = terminal->n_columns == 0 || terminal->n_columns >= BAR + INDENT + 2 ? BAR
               : terminal->n_columns > INDENT + 4                                  ? terminal->n_columns - INDENT - 2
                                                                                   : 2;
  weft_style before = WEFT_PLAIN;
  weft_text_puts(out, "          [");
  for (uint32_t i = 0; i < n; i++) {
    double at = (i + 0.5) / n * pages;
    weft_style style = at < held ? WEFT_CYAN : at < held + cached ? WEFT_DIM : WEFT_PLAIN;
    if (style != before)
      weft_text_printf(out, "%s%s", weft_terminal_style(terminal, WEFT_PLAIN),
                       style == WEFT_PLAIN ? "" : weft_terminal_style(terminal, style));
    before = style;
    weft_text_puts(out, at < held ? "#" : at < held + cached ? "=" : ".");
  }
  weft_text_printf(out, "%s]\n", weft_terminal_style(terminal, WEFT_PLAIN));
}

static void list_host(const weft_top_view *v, weft_text *f) {
  double host = current_value(v, "weft_host_pages");
  weft_text_printf(f, "%.0f %% of %.0f pages  out %.1f/s  back %.1f/s",
                   percent_of(current_value(v, "weft_host_pages_used"), host), host,
                   value_rate(v, "weft_spill_pages_out_total"), value_rate(v, "weft_spill_pages_back_total"));
}

static const struct {
  const char *words, *member, *histogram;
} latencies[] = {{"queue", "queue", "vllm:request_queue_time_seconds"},
                 {"first token", "first_token", "vllm:time_to_first_token_seconds"},
                 {"per token", "per_token", "vllm:request_time_per_output_token_seconds"},
                 {"whole", "whole", "vllm:e2e_request_latency_seconds"}};
enum { N_LATENCIES = sizeof latencies / sizeof *latencies };

static void list_latencies(const weft_top_view *v, weft_text *f) {
  for (uint32_t i = 0; i < N_LATENCIES; i++) {
    double median = weft_reading_quantile(v->before, v->after, latencies[i].histogram, 0.5);
    double tail = weft_reading_quantile(v->before, v->after, latencies[i].histogram, 0.99);
    weft_text_printf(f, i > 0 ? "  %s " : "%s ", latencies[i].words);
    if (median < 0.0) weft_text_puts(f, "-");
    if (median >= 0.0) weft_text_printf(f, "%.0f / %.0f", median * 1000.0, tail * 1000.0);
  }
}

static const struct {
  const char *topic;
  void (*list)(const weft_top_view *v, weft_text *fields);
} topics[] = {{"requests", list_requests}, {"tokens", list_tokens}, {"steps", list_steps},
              {"pool", list_pool},         {"host", list_host},     {"ms 50/99", list_latencies}};

void weft_top_lines(const weft_top_view *v, const weft_terminal *terminal, weft_text *out) {
  char name[160];
  bool well = current_value(v, "weft_well") > 0.0;
  weft_observe_name(v->config, name, sizeof name);
  weft_text_printf(out, "weft at %s  %s%s%s\n", name, weft_terminal_style(terminal, well ? WEFT_GREEN : WEFT_RED),
                   well ? "well" : "UNWELL", weft_terminal_style(terminal, WEFT_PLAIN));
  for (size_t i = 0; i < sizeof topics / sizeof *topics; i++) {
    weft_text fields = {0};
    if (topics[i].list == list_host && current_value(v, "weft_host_pages") == 0.0) continue;
    topics[i].list(v, &fields);
    weft_top_fields(terminal, topics[i].topic, &fields, out);
    if (topics[i].list == list_pool) put_bar(v, terminal, out);
    weft_text_free(&fields);
  }
  for (uint32_t i = 0; i < N_TABLES; i++) put_table(v, &tables[i], terminal, out);
}

/* ---- JSON ---------------------------------------------------------------------------------------- */

static const struct {
  const char *member;
  column_kind kind; /* NOW or RATE */
  const char *metric;
} numbers[] = {{"requests_running", COLUMN_NOW, "vllm:num_requests_running"},
               {"requests_waiting", COLUMN_NOW, "vllm:num_requests_waiting"},
               {"ended_per_second", COLUMN_RATE, "vllm:request_success_total"},
               {"preempted_per_second", COLUMN_RATE, "vllm:num_preemptions_total"},
               {"clients_left_per_second", COLUMN_RATE, "weft_http_clients_left_total"},
               {"prompt_tokens_per_second", COLUMN_RATE, "vllm:prompt_tokens_total"},
               {"answer_tokens_per_second", COLUMN_RATE, "vllm:generation_tokens_total"},
               {"sought_tokens_per_second", COLUMN_RATE, "vllm:prefix_cache_queries_total"},
               {"found_tokens_per_second", COLUMN_RATE, "vllm:prefix_cache_hits_total"},
               {"steps_per_second", COLUMN_RATE, "weft_steps_total"},
               {"mixed_steps_per_second", COLUMN_RATE, "weft_steps_mixed_total"},
               {"step_microseconds_per_second", COLUMN_RATE, "weft_step_microseconds_total"},
               {"plan_microseconds_per_second", COLUMN_RATE, "weft_plan_microseconds_total"},
               {"prefill_rows_per_second", COLUMN_RATE, "weft_rows_prefill_total"},
               {"decode_rows_per_second", COLUMN_RATE, "weft_rows_decode_total"},
               {"canvas_rows_per_second", COLUMN_RATE, "weft_rows_canvas_total"},
               {"commit_rows_per_second", COLUMN_RATE, "weft_rows_commit_total"},
               {"pages", COLUMN_NOW, "weft_pool_pages"},
               {"pages_held", COLUMN_NOW, "weft_pool_pages_pinned"},
               {"pages_cached", COLUMN_NOW, "weft_pool_pages_cached"},
               {"evicted_per_second", COLUMN_RATE, "weft_pool_evicted_total"},
               {"host_pages", COLUMN_NOW, "weft_host_pages"},
               {"host_pages_used", COLUMN_NOW, "weft_host_pages_used"}};

static void put_number(weft_text *out, const char *member, double value) {
  weft_text_printf(out, ",\"%s\":", member);
  weft_json_real(out, value);
}

static void put_latency(const weft_top_view *v, uint32_t i, weft_text *out) {
  static const struct {
    const char *suffix;
    double quantile;
  } of[] = {{"p50_ms", 0.5}, {"p99_ms", 0.99}};
  for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
    double seconds = weft_reading_quantile(v->before, v->after, latencies[i].histogram, of[k].quantile);
    weft_text_printf(out, ",\"%s_%s\":", latencies[i].member, of[k].suffix);
    if (seconds < 0.0) weft_text_puts(out, "null");
    if (seconds >= 0.0) weft_json_real(out, seconds * 1000.0);
  }
}

void weft_top_json(const weft_top_view *v, weft_text *out) {
  char name[160];
  weft_observe_name(v->config, name, sizeof name);
  weft_text_puts(out, "{\"server\":");
  weft_json_words(out, name);
  weft_text_printf(out, ",\"well\":%s", current_value(v, "weft_well") > 0.0 ? "true" : "false");
  put_number(out, "seconds", (double)(v->after->at_us - v->before->at_us) / 1e6);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    bool now = numbers[i].kind == COLUMN_NOW;
    put_number(out, numbers[i].member, now ? current_value(v, numbers[i].metric) : value_rate(v, numbers[i].metric));
  }
  for (uint32_t i = 0; i < N_LATENCIES; i++) put_latency(v, i, out);
  for (uint32_t i = 0; i < N_TABLES; i++) {
    uint32_t n;
    table_row *rows = read_rows(v, &tables[i], &n);
    weft_text_printf(out, ",\"%s\":[", tables[i].member);
    for (uint32_t r = 0; r < n; r++) {
      weft_text_puts(out, r > 0 ? ",{\"name\":" : "{\"name\":");
      weft_json_words(out, rows[r].name);
      for (uint32_t k = 0; tables[i].column[k].kind != COLUMN_NONE; k++)
        put_number(out, tables[i].column[k].member, rows[r].value[k]);
      weft_text_puts(out, "}");
    }
    weft_text_puts(out, "]");
    weft_free(rows);
  }
  weft_text_puts(out, "}\n");
}
