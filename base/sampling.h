/* SPDX-License-Identifier: MIT */
/* What a request may ask of sampling: the one description that a client of weft.h fills in, the scheduler carries, and
 * the ops compute with. This header is installed beside weft.h.
 *
 * Law: a value that a comment calls "the model's" is filled in by weft_submit (api/answer_defaults.h): the request wins,
 * then what weft_open was given for all requests, then the model file (model/model.c reads its keys, of canvases
 * model/diffusion_gemma.c), and where the file has none temperature 1, top_p 1 and no top_k, of canvases
 * weft_entropy_bound_default of model/sampler.h. Below api/ every value is resolved, and 0 or a negative number means
 * itself. WEFT_RANGE_... is the one place where the default and the bounds of a number are written;
 * weft_generate_defaults takes the defaults from there, through the table of options. model/sampler.h has other numbers
 * for tests and for the laboratory: those of a sampler that changes nothing.
 */
#ifndef WEFT_BASE_SAMPLING_H
#define WEFT_BASE_SAMPLING_H

#include <stdbool.h>
#include <stdint.h>

enum {
  WEFT_TOP_LOGPROBS_MAX = 20, /* most likely tokens that are reported beside the one drawn */
  WEFT_LOGIT_BIAS_MAX = 1024, /* entries of one request */
  WEFT_STABILITY_MAX = 8,     /* argmax canvases that are remembered */
  WEFT_CANVAS_MAX = 1024      /* positions of one canvas */
};

/* Default, least and greatest value of each number, and whether the least itself is refused: the members of a
 * weft_range (base/range.h). A default of -1, or of 0 where the least is 1, leaves the choice to the model. */
#define WEFT_RANGE_TEMPERATURE        -1, 0, 100, false
#define WEFT_RANGE_TOP_K              -1, 0, INT32_MAX, false
#define WEFT_RANGE_TOP_P              -1, 0, 1, true
#define WEFT_RANGE_MIN_P              0, 0, 1, false
#define WEFT_RANGE_REPETITION_PENALTY 1, 0, 100, true
#define WEFT_RANGE_PRESENCE_PENALTY   0, -2, 2, false
#define WEFT_RANGE_FREQUENCY_PENALTY  0, -2, 2, false
#define WEFT_RANGE_LOGIT_BIAS         0, -100, 100, false
#define WEFT_RANGE_TOP_LOGPROBS       0, 0, WEFT_TOP_LOGPROBS_MAX, false
#define WEFT_RANGE_MAX_TOKENS         0, 1, UINT32_MAX, false
#define WEFT_RANGE_CANVASES           0, 1, 65536, false
#define WEFT_RANGE_MAX_STEPS          0, 1, 4096, false
#define WEFT_RANGE_T_MIN              -1, 0, 100, true
#define WEFT_RANGE_T_MAX              -1, 0, 100, true
#define WEFT_RANGE_ENTROPY_BOUND      -1, 0, 1e9, false
#define WEFT_RANGE_STABILITY          -1, 0, WEFT_STABILITY_MAX, false
#define WEFT_RANGE_CONFIDENCE         -1, 0, 1e9, false

typedef struct weft_logit_bias {
  int32_t token; /* < n_vocab; a token may occur twice: both are added */
  float bias;
} weft_logit_bias;

/* How the next token is drawn, token by token. */
typedef struct weft_sampling {
  float temperature;           /* -1: the model's; 0: greedy */
  int32_t top_k;               /* -1: the model's; 0: off */
  float top_p;                 /* -1: the model's */
  float min_p;                 /* 0: off */
  float repetition_penalty;    /* 1: off; over prompt and answer */
  float presence_penalty;      /* 0: off; over the answer */
  float frequency_penalty;     /* 0: off; over the answer */
  uint64_t seed;               /* what is drawn follows from seed and choice, of a canvas too */
  uint32_t choice;             /* parallel answers of one request draw differently */
  bool logprobs;               /* [false] report the logprob of each token, under the distribution before top_k */
  uint32_t n_top_logprobs;     /* [0] and of this many of the most likely tokens; <= WEFT_TOP_LOGPROBS_MAX */
  const weft_logit_bias *bias; /* [none] copied by weft_submit */
  uint32_t n_bias;             /* <= WEFT_LOGIT_BIAS_MAX */
} weft_sampling;

/* How a canvas is denoised: the entropy-bound rule (model/sampler.h). */
typedef struct weft_entropy_bound {
  uint32_t max_steps;  /* 0: the model's; denoise steps of a canvas */
  float t_min, t_max;  /* -1: the model's; temperatures of the last and the first step; t_min <= t_max */
  float entropy_bound; /* -1: the model's; entropy that accepted tokens may add up to */
  int32_t stability;   /* -1: the model's; equal argmax canvases before an early stop; 0: a canvas is always stable */
  float confidence;    /* -1: the model's; mean entropy below which a canvas may stop */
  bool no_self_conditioning; /* [false] the soft embedding stays zero; for comparison */
} weft_entropy_bound;

#endif
