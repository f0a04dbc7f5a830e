/* SPDX-License-Identifier: MIT */
/* How a request samples: the one description that a client of weft.h fills in, the scheduler carries, and the ops
 * compute with. This header is installed beside weft.h.
 *
 * Law: a value that a comment calls "the model's" is filled in by weft_submit (api/answer_defaults.h): the request wins,
 * then what weft_open was given for all requests, then the model file (model/model.c reads its keys, of canvases
 * model/diffusion_gemma.c), and where the file has none temperature 1, top_p 1 and no top_k, of canvases
 * weft_entropy_bound_default of model/sampler.h. Below api/ no such number is left: 0 means 0. The WEFT_RANGE_ macros
 * are the one place where the default and the bounds of a number are written; weft_generate_defaults takes the defaults
 * from there, through the table of options. Tests and the laboratory begin with weft_sampling_neutral
 * (model/sampler.h), whose numbers change nothing. */
#ifndef WEFT_BASE_SAMPLING_H
#define WEFT_BASE_SAMPLING_H

#include <stdbool.h>
#include <stdint.h>

enum {
  WEFT_TOP_LOGPROBS_MAX = 20, /* most likely tokens that are reported beside the token drawn */
  WEFT_LOGIT_BIAS_MAX = 1024, /* entries of the logit bias of one request */
  WEFT_STABILITY_MAX = 8,     /* earlier argmax canvases that a canvas is compared with */
  WEFT_CANVAS_MAX = 1024      /* positions of one canvas */
};

/* Default, least and greatest value of each number, and whether the least value itself is refused: the members of a
 * weft_range (base/range.h). A default of -1 means the model's own value, and so does max_steps 0; what
 * 0 max_tokens and 0 canvases mean stands in api/weft.h. */
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
  int32_t token; /* < n_vocab; where a token occurs twice, both biases are added */
  float bias;    /* added to the token's logit */
} weft_logit_bias;

/* How an autoregressive request draws its next token. In brackets: the default of a member without a range above. */
typedef struct weft_sampling {
  float temperature;           /* -1: the model's; 0: greedy */
  int32_t top_k;               /* -1: the model's; 0: off */
  float top_p;                 /* -1: the model's */
  float min_p;                 /* 0: off */
  float repetition_penalty;    /* 1: off; counts tokens of the prompt and of the answer */
  float presence_penalty;      /* 0: off; counts tokens of the answer */
  float frequency_penalty;     /* 0: off; counts tokens of the answer */
  uint32_t penalty_window;     /* [0] penalties look at so many of the last tokens; 0: at all of them */
  uint64_t seed;               /* every random number, those of canvases too, follows from seed and choice */
  uint32_t choice;             /* which of the n answers of a request this is: each draws differently */
  bool logprobs;               /* [false] report each token's logprob, by the distribution before top_k */
  uint32_t n_top_logprobs;     /* [0] the same of this many most likely tokens; <= WEFT_TOP_LOGPROBS_MAX */
  const weft_logit_bias *bias; /* [none] copied by weft_submit */
  uint32_t n_bias;             /* <= WEFT_LOGIT_BIAS_MAX */
} weft_sampling;

/* Guesses at the next tokens of an answer that comes token by token (drafts): what they cost and gain is told by usage,
 * and they never change an answer. */
typedef enum weft_draft_kind {
  WEFT_DRAFT_DEFAULT = 0, /* as the runtime was told */
  WEFT_DRAFT_OFF = 1,
  WEFT_DRAFT_NGRAM = 2, /* what followed the same tokens earlier in the request */
  WEFT_DRAFT_KINDS = 3
} weft_draft_kind;

#define WEFT_RANGE_DRAFTS 0, 1, 32, false
#define WEFT_RANGE_NGRAM  0, 1, 16, false

typedef struct weft_draft {
  weft_draft_kind kind;
  uint32_t n_max;                   /* [8] most drafts of a step */
  uint32_t ngram_least, ngram_most; /* [2, 4] how many tokens must be the same */
  bool shadow; /* [false] to check: drafts are verified, and the answer is made row by row all the same and compared */
} weft_draft;

/* How a canvas is denoised: the entropy-bound rule (model/sampler.h). */
typedef struct weft_entropy_bound {
  uint32_t max_steps;        /* 0: the model's; most denoise steps of a canvas */
  float t_min, t_max;        /* -1: the model's; temperatures of the last and of the first step; t_min <= t_max */
  float entropy_bound;       /* -1: the model's; entropy in nats that the accepted positions of a step may add up to */
  int32_t stability;         /* -1: the model's; this many argmax canvases in a row must be equal for an early stop */
  float confidence;          /* -1: the model's; mean entropy in nats below which a stable canvas stops early */
  bool no_self_conditioning; /* [false] the soft embedding stays zero, for comparison */
  bool self_conditioning;    /* [false] it does not, although the default of weft_open is no_self_conditioning */
} weft_entropy_bound;

#endif
