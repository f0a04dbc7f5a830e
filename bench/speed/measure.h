/* SPDX-License-Identifier: MIT */
/* What the speed commands measure, through the public API: the same path a request takes. */
#ifndef WEFT_BENCH_SPEED_MEASURE_H
#define WEFT_BENCH_SPEED_MEASURE_H

#include "bench/inside.h"

typedef struct weft_load {
  uint32_t n_prompt;   /* random tokens of each prompt */
  uint32_t n_generate; /* tokens, or denoise steps of each canvas */
  uint32_t n_parallel;
  bool diffusion;
  uint32_t n_blocks;   /* canvases of one answer, one after another; 0 means 1 */
  uint32_t n_canvases; /* beside n_parallel sequences that decode: canvases of n_steps steps */
  uint32_t n_steps;
  bool found;            /* prefixes are found and left: prompts of one seed share their beginning */
  const int32_t *tokens; /* [n_prompt] of every prompt; NULL: random ones */
  int32_t *answers;      /* [n_parallel][n_generate] where answers of tokens go; NULL: nowhere */
} weft_load;

typedef struct weft_measured {
  double prefill_s;                /* from the first submit to the last first token (or first denoise step) */
  double generate_s;               /* from there to the end */
  uint64_t n_tokens;               /* generated after the first ones, or denoise steps after the first ones */
  uint64_t all_from_us, all_to_us; /* of the clock: from the last first token to the first end, all of them decode */
} weft_measured;

/* Tokens a second after the first ones; 0 where that took no time. */
double weft_measured_rate(const weft_measured *measured);

/* Whether a step is planned and submitted before the one before it has landed. */
bool weft_measure_overlaps(const weft_runtime *runtime);

/* Submits request `index` of a load. tokens: [n_prompt], room for its prompt, which is not needed afterwards. */
int weft_measure_submit(weft_runtime *runtime, const weft_load *load, uint64_t seed, uint32_t index, int32_t *tokens,
                        weft_generation **out);

/* Runs one load. 0, or an exit code after one line. seed varies the prompts, so that no prefix is found. */
int weft_measure(weft_runtime *runtime, const weft_load *load, uint64_t seed, weft_measured *out);
/* The same: the median time in ms from one step to the next of those that held all of the load and nothing else,
 * and the time to the end of the first of them. On several devices that compute at once, n steps hold the load
 * together, and the time is that of n of them; of replicas, which hold parts of it at the same time, it is that of the
 * slowest. */
int weft_measure_steps(weft_runtime *runtime, const weft_load *load, uint64_t seed, double *step_ms, double *first_ms);

/* One sequence, step by step. */
typedef struct weft_answer_times {
  uint32_t n_computed;   /* tokens of the prompt that no cached prefix had */
  double prefill_s;      /* from submit until the prompt's last step had ended: the first token is there */
  double decode_s;       /* from there to the last token */
  double steady_s;       /* the same from the second token on: a first decode step may record a graph */
  uint32_t n_decoded;    /* tokens behind the first one, in decode_s; one less in steady_s */
  uint64_t kv_pages_max; /* the most pages that the request held */
} weft_answer_times;
/* Runs a load of one sequence, token by token, with n_generate >= 3 and no more steps than the engine records. */
int weft_measure_answer(weft_runtime *runtime, const weft_load *load, uint64_t seed, weft_answer_times *out);

/* One answer of n_blocks canvases: of each canvas the median time in ms of its denoise steps but the first, into
 * out[n_blocks]. */
int weft_measure_blocks(weft_runtime *runtime, const weft_load *load, uint64_t seed, double *out);

/* Sorts in place. */
double weft_median(double *values, uint32_t n);
/* The standard deviation of the values over their mean, in percent; NAN: of one value there is none. */
double weft_variation(const double *values, uint32_t n);
/* Writes it as text and returns out; of NAN that is empty in CSV, else a dash. */
enum { WEFT_VARIATION_TEXT = 16 };
const char *weft_variation_text(double variation, bool csv, char out[WEFT_VARIATION_TEXT]);
/* A token of a random prompt: one of the upper half of the vocabulary. */
int32_t weft_prompt_token(uint64_t seed, uint64_t prompt, uint64_t position, uint32_t n_vocab);

#endif
