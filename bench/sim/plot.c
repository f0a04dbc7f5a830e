/* SPDX-License-Identifier: MIT */
#include "bench/sim/plot.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/inside.h"

enum { WIDTH = 860, HEIGHT = 400, LEFT = 70, RIGHT = 160, TOP = 36, BOTTOM = 48, TICKS = 5 };

typedef struct axis {
  double low, high; /* of the data; of its logarithm when log */
  double from, to;  /* pixels */
  bool log;
} axis;

static const char *const colors[WEFT_PLOT_LINES] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd",
                                                    "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f"};

static double place_value(const axis *a, double value) {
  double v = a->log ? log10(value) : value;
  return a->from + (v - a->low) / (a->high - a->low) * (a->to - a->from);
}

static bool shows_point(const axis *x, double at, double y) {
  return !isnan(y) && !(x->log && !(at > 0.0));
}

static void fit_axes(const weft_plot *plot, axis *x, axis *y) {
  *x = (axis){.low = INFINITY, .high = -INFINITY, .from = LEFT, .to = WIDTH - RIGHT, .log = plot->log_x};
  *y = (axis){.low = 0.0, .high = plot->y_max, .from = HEIGHT - BOTTOM, .to = TOP};
  for (uint32_t l = 0; l < plot->n_lines; l++) {
    const weft_plot_line *line = &plot->line[l];
    for (uint32_t i = 0; i < line->n; i++) {
      if (!shows_point(x, line->x[i], line->y[i])) continue;
      double v = x->log ? log10(line->x[i]) : line->x[i];
      x->low = fmin(x->low, v);
      x->high = fmax(x->high, v);
      if (plot->y_max <= 0.0) y->high = fmax(y->high, line->y[i]);
    }
  }
  if (!(x->low <= x->high)) x->low = x->high = 0.0; /* no point */
  if (x->log) {
    x->low = floor(x->low);
    x->high = ceil(x->high);
  } else {
    x->low = fmin(x->low, 0.0);
  }
  if (x->high <= x->low) x->high = x->low + 1.0;
  if (y->high <= 0.0) y->high = 1.0;
}

/* 1, 2 or 5 times a power of ten, so that about TICKS of them fit. */
static double round_step(double span) {
  double raw = span / TICKS, power = pow(10.0, floor(log10(raw))), x = raw / power;
  return (x < 1.5 ? 1.0 : x < 3.5 ? 2.0 : x < 7.5 ? 5.0 : 10.0) * power;
}

static void put_text(weft_text *out, double x, double y, const char *anchor, const char *text) {
  weft_text_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
  for (; *text != 0; text++) {
    const char *escaped = *text == '<' ? "&lt;" : *text == '&' ? "&amp;" : NULL;
    if (escaped != NULL) {
      weft_text_puts(out, escaped);
    } else {
      weft_text_append(out, text, 1);
    }
  }
  weft_text_puts(out, "</text>\n");
}

static void put_rule(weft_text *out, double x1, double y1, double x2, double y2) {
  weft_text_printf(out, "<path d=\"M%.1f %.1fL%.1f %.1f\" stroke=\"#ddd\"/>\n", x1, y1, x2, y2);
}

static void put_axes(weft_text *out, const weft_plot *plot, const axis *x, const axis *y) {
  char label[32];
  double step = x->log ? 1.0 : round_step(x->high - x->low);
  for (double v = x->low; v <= x->high + step * 1e-6; v += step) {
    double shown = x->log ? pow(10.0, v) : v, at = place_value(x, shown);
    (void)snprintf(label, sizeof label, "%g", shown);
    put_rule(out, at, y->from, at, y->to);
    put_text(out, at, y->from + 16, "middle", label);
  }
  step = round_step(y->high);
  for (double v = 0.0; v <= y->high + step * 1e-6; v += step) {
    (void)snprintf(label, sizeof label, "%g", v);
    put_rule(out, x->from, place_value(y, v), x->to, place_value(y, v));
    put_text(out, x->from - 6, place_value(y, v) + 4, "end", label);
  }
  put_text(out, (x->from + x->to) / 2, TOP - 16, "middle", plot->title);
  put_text(out, (x->from + x->to) / 2, HEIGHT - 10, "middle", plot->x_name);
  weft_text_printf(out, "<g transform=\"translate(16 %.1f) rotate(-90)\">\n", (y->from + y->to) / 2);
  put_text(out, 0, 0, "middle", plot->y_name);
  weft_text_puts(out, "</g>\n");
}

static void put_line(weft_text *out, const weft_plot *plot, uint32_t at, const axis *x, const axis *y) {
  const weft_plot_line *line = &plot->line[at];
  const char *pen = "M";
  weft_text_printf(out, "<path fill=\"none\" stroke-width=\"1.5\" stroke=\"%s\" d=\"", colors[at]);
  for (uint32_t i = 0; i < line->n; i++) {
    if (!shows_point(x, line->x[i], line->y[i])) continue;
    double height = fmin(line->y[i], y->high);
    weft_text_printf(out, "%s%.1f %.1f", pen, place_value(x, line->x[i]), place_value(y, height));
    pen = "L";
  }
  weft_text_puts(out, "\"/>\n");
  double top = TOP + 14 + 16.0 * at;
  weft_text_printf(out, "<path d=\"M%d %.1fh18\" stroke-width=\"3\" stroke=\"%s\"/>\n", WIDTH - RIGHT + 14, top - 4,
                   colors[at]);
  put_text(out, WIDTH - RIGHT + 38, top, "start", line->name);
}

int weft_plot_write(const weft_plot *plot, const char *path) {
  weft_text out = {0};
  axis x, y;
  fit_axes(plot, &x, &y);
  weft_text_printf(&out,
                   "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
                   "font-family=\"sans-serif\" font-size=\"12\">\n"
                   "<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n",
                   WIDTH, HEIGHT, WIDTH, HEIGHT);
  put_axes(&out, plot, &x, &y);
  for (uint32_t i = 0; i < plot->n_lines; i++) put_line(&out, plot, i, &x, &y);
  weft_text_puts(&out, "</svg>\n");
  FILE *file = weft_text_status(&out) == WEFT_OK ? fopen(path, "w") : NULL;
  bool ok = file != NULL && fwrite(out.bytes, 1, out.n, file) == out.n;
  if (file != NULL) ok = fclose(file) == 0 && ok;
  weft_text_free(&out);
  return ok ? 0 : weft_cli_fail(WEFT_EXIT_RUNTIME, "%s: %s", path, strerror(errno));
}
