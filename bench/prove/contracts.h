/* SPDX-License-Identifier: MIT */
/* What has to hold between two servers' answers to the same requests.
 *
 * Law: argmax_generation, sampled_generation, speculative and canvas_generation want the same tokens, ends and, of
 * canvases, the same canvas after every denoise step; they differ in which suites they take, so that a proof says what
 * it proves. logits_within takes the baseline's answers as given and wants the log probabilities of their tokens, and
 * of the likeliest others, no farther apart than the file's bound. A difference is the first one, in the order of
 * requests and then of positions; of logits_within it is the largest one.
 *
 * A row of logits is told as log probabilities: logits less the logarithm of the sum of their exponentials, which is
 * what a server gives. */
#ifndef WEFT_BENCH_PROVE_CONTRACTS_H
#define WEFT_BENCH_PROVE_CONTRACTS_H

#include <jansson.h>

#include "bench/prove/verdict.h"

/* BAD_FILE where the suite does not ask for what the contract is about. */
prove_verdict prove_contract_fits(const json_t *contract, const json_t *suite, prove_outcome *outcome);
bool prove_contract_scores(const json_t *contract); /* it needs scores */

/* The first difference as an object of the report, and DIFFERS; NULL: there is none. */
json_t *prove_compare_answers(const json_t *baseline, const json_t *candidate, prove_outcome *outcome);
/* NULL: repeats of one request have the same answer. whose: for the line. */
json_t *prove_compare_repeats(const json_t *answers, const char *whose, prove_outcome *outcome);

/* For each of the answers (of its first repeat) the log probabilities of its tokens, computed by the server at port.
 * The caller owns the list; NULL with an outcome. */
json_t *prove_scores_ask(uint16_t port, const json_t *answers, uint64_t until_us, prove_outcome *outcome);
/* {largest, mean, tokens, bound, at}: at is a difference as above where the bound is passed, which is DIFFERS, else
 * null. */
json_t *prove_compare_scores(const json_t *contract, const json_t *answers, const json_t *baseline,
                             const json_t *candidate, prove_outcome *outcome);

/* The row that a server has where the difference is: {top: [{token, text, logprob}], baseline_token, candidate_token}
 * (their log probabilities; null where an answer had ended). answers: the baseline's. The caller owns it; NULL: the
 * difference has none, or an outcome. */
json_t *prove_row_ask(uint16_t port, const json_t *difference, const json_t *answers, uint64_t until_us,
                      prove_outcome *outcome);

#endif
