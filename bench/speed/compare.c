/* SPDX-License-Identifier: MIT */
/* weft bench compare A.csv B.csv: two results of the laboratory side by side, row by row and figure by figure.
 *
 * Law: files are what --csv prints: a line of names, then rows whose first cell names the row. Rows and figures that
 * both files have are compared; what only one has is said. A change within twice the variation of both runs is
 * called noise, where the files have that variation (columns NAME_cv in percent, or `spread` beside `median`). With
 * --plots each figure of both is a picture over the first column, where that has numbers. Exit code 1: no row is in
 * both. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/speed/bench.h"

enum { COLUMNS_MAX = 32, ROWS_MAX = 1024 };

typedef struct csv_file {
  const char *path;
  char *text; /* owned; cells point into it */
  char *name[COLUMNS_MAX];
  char *cell[ROWS_MAX][COLUMNS_MAX];
  uint32_t n_columns, n_rows;
} csv_file;

/* The next cell of a line, which may stand in quotes without quotes inside; NULL: there is none. */
static char *next_cell(char **line) {
  char *at = *line;
  if (at == NULL) return NULL;
  if (*at == '"') {
    char *end = strchr(at + 1, '"');
    if (end != NULL) {
      *end = 0;
      *line = end[1] == ',' ? end + 2 : NULL;
      return at + 1;
    }
  }
  *line = strchr(at, ',');
  if (*line != NULL) *(*line)++ = 0;
  return at;
}

static uint32_t split_line(char *line, char *cell[COLUMNS_MAX]) {
  uint32_t n = 0;
  line[strcspn(line, "\r")] = 0;
  for (char *rest = line; n < COLUMNS_MAX && (cell[n] = next_cell(&rest)) != NULL;) n += 1;
  return n;
}

static int read_csv(const char *path, csv_file *f) {
  size_t n;
  char *save = NULL;
  f->path = path;
  f->text = weft_cli_read(path, &n);
  if (f->text == NULL) return WEFT_EXIT_LOAD;
  for (char *line = strtok_r(f->text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
    if (f->n_columns == 0) {
      f->n_columns = split_line(line, f->name);
      continue;
    }
    if (f->n_rows == ROWS_MAX) return weft_cli_fail(WEFT_EXIT_USAGE, "%s: more than %d rows", path, ROWS_MAX);
    if (split_line(line, f->cell[f->n_rows]) != f->n_columns)
      return weft_cli_fail(WEFT_EXIT_USAGE, "%s: row %u has not as many cells as the first line has names", path,
                           f->n_rows + 1);
    f->n_rows += 1;
  }
  if (f->n_rows > 0 && f->n_columns > 1) return 0;
  return weft_cli_fail(WEFT_EXIT_USAGE, "%s: a line of names and a row at least, as --csv prints them", path);
}

static int32_t find_column(const csv_file *f, const char *name) {
  for (uint32_t c = 0; c < f->n_columns; c++) {
    if (strcmp(f->name[c], name) == 0) return (int32_t)c;
  }
  return -1;
}

static int32_t find_row(const csv_file *f, const char *key) {
  for (uint32_t r = 0; r < f->n_rows; r++) {
    if (strcmp(f->cell[r][0], key) == 0) return (int32_t)r;
  }
  return -1;
}

static bool read_number(const char *cell, double *value) {
  char *end;
  *value = strtod(cell, &end);
  return end != cell && *end == 0 && isfinite(*value);
}

/* The variation of a figure in percent; negative: the file does not say. */
static double variation_of(const csv_file *f, uint32_t row, uint32_t column, double value) {
  char name[64];
  double v;
  (void)snprintf(name, sizeof name, "%.50s_cv", f->name[column]);
  int32_t at = find_column(f, name);
  if (at >= 0 && read_number(f->cell[row][at], &v)) return v;
  at = strcmp(f->name[column], "median") == 0 ? find_column(f, "spread") : -1;
  if (at >= 0 && value > 0.0 && read_number(f->cell[row][at], &v)) return 100.0 * v / value;
  return -1.0;
}

static bool is_figure(const char *name) {
  size_t n = strlen(name);
  return !(n > 3 && strcmp(name + n - 3, "_cv") == 0) && strcmp(name, "spread") != 0 && strncmp(name, "n_", 2) != 0;
}

static uint32_t compare_row(const csv_file *a, uint32_t row_a, const csv_file *b, uint32_t row_b) {
  uint32_t n = 0;
  for (uint32_t c = 1; c < a->n_columns; c++) {
    int32_t other = find_column(b, a->name[c]);
    double x, y;
    if (other < 0 || !is_figure(a->name[c]) || !read_number(a->cell[row_a][c], &x) ||
        !read_number(b->cell[row_b][other], &y))
      continue;
    double va = variation_of(a, row_a, c, x), vb = variation_of(b, row_b, (uint32_t)other, y);
    double change = x != 0.0 ? 100.0 * (y / x - 1.0) : 0.0;
    const char *note = x == y ? "same" : va < 0.0 || vb < 0.0 ? "" : fabs(change) <= 2.0 * hypot(va, vb) ? "noise" : "";
    (void)printf("%-34s %-14s %14.6g %14.6g %+9.2f %%  %s\n", a->cell[row_a][0], a->name[c], x, y, change, note);
    n += 1;
  }
  return n;
}

static int compare_files(const csv_file *a, const csv_file *b) {
  uint32_t n = 0;
  (void)printf("%-34s %-14s %14s %14s %11s\n", a->name[0], "figure", "A", "B", "B to A");
  for (uint32_t r = 0; r < a->n_rows; r++) {
    int32_t other = find_row(b, a->cell[r][0]);
    if (other < 0) (void)printf("%-34s only in %s\n", a->cell[r][0], a->path);
    if (other >= 0) n += compare_row(a, r, b, (uint32_t)other);
  }
  for (uint32_t r = 0; r < b->n_rows; r++) {
    if (find_row(a, b->cell[r][0]) < 0) (void)printf("%-34s only in %s\n", b->cell[r][0], b->path);
  }
  if (n > 0) return 0;
  return weft_cli_fail(WEFT_EXIT_FAILED, "%s and %s have no row and figure in common", a->path, b->path);
}

/* ---- pictures ---- */

typedef struct plotted_line {
  double x[ROWS_MAX], y[ROWS_MAX];
  uint32_t n;
} plotted_line;

/* The rows of a file that have numbers in both columns, in the order of the file. */
static void take_line(const csv_file *f, uint32_t column, plotted_line *line) {
  line->n = 0;
  for (uint32_t r = 0; r < f->n_rows; r++) {
    if (read_number(f->cell[r][0], &line->x[line->n]) && read_number(f->cell[r][column], &line->y[line->n]))
      line->n += 1;
  }
}

/* The name of a file without its folder and what follows a dot. */
static const char *name_line(const csv_file *f, char out[48]) {
  const char *name = strrchr(f->path, '/') != NULL ? strrchr(f->path, '/') + 1 : f->path;
  (void)snprintf(out, 48, "%.*s", (int)(strcspn(name, ".") < 40 ? strcspn(name, ".") : 40), name);
  return out;
}

static int draw_figure(const weft_lab_config *config, const csv_file *file, uint32_t column, uint32_t other,
                       plotted_line *line, uint32_t *n_drawn) {
  const char *name = file[0].name[column];
  char svg[80], names[2][48];
  (void)snprintf(svg, sizeof svg, "%.60s.svg", name);
  weft_plot plot = {.title = name, .x_name = file[0].name[0], .y_name = name};
  take_line(&file[0], column, &line[0]);
  take_line(&file[1], other, &line[1]);
  if (line[0].n == 0 || line[1].n == 0 || strchr(name, '/') != NULL) return 0;
  for (uint32_t i = 0; i < 2; i++)
    plot.line[plot.n_lines++] =
        (weft_plot_line){.name = name_line(&file[i], names[i]), .x = line[i].x, .y = line[i].y, .n = line[i].n};
  *n_drawn += 1;
  return weft_bench_draw(config, &plot, svg);
}

static int draw_files(const weft_lab_config *config, const csv_file *file) {
  uint32_t n = 0;
  int code = 0;
  if (config->plots == NULL) return 0;
  plotted_line *line = weft_alloc(2, sizeof *line);
  if (line == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory");
  for (uint32_t c = 1; c < file[0].n_columns && code == 0; c++) {
    int32_t other = find_column(&file[1], file[0].name[c]);
    if (other > 0 && is_figure(file[0].name[c])) code = draw_figure(config, file, c, (uint32_t)other, line, &n);
  }
  weft_free(line);
  if (code != 0 || n > 0) return code;
  return weft_cli_fail(WEFT_EXIT_USAGE, "--plots: the first column, %s, has no numbers to draw over", file[0].name[0]);
}

int weft_bench_compare(const weft_lab_config *config) {
  const weft_text_list *words = &config->product.words;
  if (words->n != 3)
    return weft_cli_fail(WEFT_EXIT_USAGE,
                         "bench compare: name two files that --csv wrote, as bench compare a.csv b.csv");
  csv_file *file = weft_alloc(2, sizeof *file);
  if (file == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory");
  int code = read_csv(words->item[1], &file[0]);
  if (code == 0) code = read_csv(words->item[2], &file[1]);
  if (code == 0) code = compare_files(&file[0], &file[1]);
  if (code == 0) code = draw_files(config, file);
  weft_free(file[0].text);
  weft_free(file[1].text);
  weft_free(file);
  return code;
}
