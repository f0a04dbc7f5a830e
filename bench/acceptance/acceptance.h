/* SPDX-License-Identifier: MIT */
/* The parts of weft test-model, the run that somebody with a new model file makes first.
 *
 * Law: each part adds its lines to the report and never ends the run. One part serves the model, through the public
 * API, as a server would; another one loads it again to measure it. What a part needs of an earlier one stands in
 * the struct below. */
#ifndef WEFT_BENCH_ACCEPTANCE_ACCEPTANCE_H
#define WEFT_BENCH_ACCEPTANCE_ACCEPTANCE_H

#include "bench/acceptance/report.h"

typedef struct acceptance {
  const weft_lab_config *config;
  acceptance_report report;
  weft_gguf *gguf;           /* file */
  weft_tokenizer *tokenizer; /* tokenizer; NULL: it could not be opened */
  bool chat;                 /* template: a conversation can be rendered */
  bool answered;             /* answers: it answers questions, so its weights are a trained model's */
  char *text;                /* of --text, or NULL: bench/lab/prose.h */
  size_t n_text;
} acceptance;

/* The file itself: it opens, weft serves what it holds, and its numbers are ones that a model can have. False: weft
 * does not serve it. */
bool acceptance_check_file(acceptance *a);
/* Text to tokens and back: built-in texts, the one that was given, every byte; merges that do not make their tokens. */
void acceptance_check_tokenizer(acceptance *a);
/* The chat template: what a conversation needs, rendered, and whether it reaches the prompt. */
void acceptance_check_template(acceptance *a);
/* A served model: first answers by each way of writing, the same again, and what is left in memory. */
void acceptance_check_answers(acceptance *a);
/* How well the model foretells the text, by each way of writing that it has. */
void acceptance_check_prediction(acceptance *a);

#endif
