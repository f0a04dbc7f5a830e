/* SPDX-License-Identifier: MIT */
#include "bench/prove/contracts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/prove/answers.h"
#include "bench/prove/files.h"

enum { TOP = 8 };
static const double FARTHEST = 1e30; /* of what is no number */

/* ---- which suites ---------------------------------------------------------------------------------------------- */

prove_verdict prove_contract_fits(const json_t *contract, const json_t *suite, prove_outcome *outcome) {
  const char *kind = prove_text(contract, "kind", ""), *mode = prove_text(suite, "mode", "");
  bool canvas = strcmp(mode, "diffusion") == 0,
       greedy = json_number_value(json_object_get(suite, "temperature")) == 0.0;
  const char *wanted = NULL;
  if (strcmp(kind, "canvas_generation") == 0 && !canvas) wanted = "mode diffusion";
  if (strcmp(kind, "canvas_generation") != 0 && canvas) wanted = "mode autoregressive";
  if (strcmp(kind, "argmax_generation") == 0 && !greedy) wanted = "temperature 0";
  if (strcmp(kind, "sampled_generation") == 0 && greedy) wanted = "a temperature above 0";
  if (wanted == NULL) return PROVE_PROVEN;
  return prove_end(outcome, PROVE_BAD_FILE, "contract %s is about %s, which the suite does not ask for", kind, wanted);
}

bool prove_contract_scores(const json_t *contract) {
  return strcmp(prove_text(contract, "kind", ""), "logits_within") == 0;
}

/* ---- equal answers --------------------------------------------------------------------------------------------- */

static json_t *share_or_null(json_t *value) {
  return value != NULL ? json_incref(value) : json_null();
}

static json_t *begin_difference(size_t place, const json_t *answer, const char *what) {
  json_t *d = json_pack("{s:s, s:i, s:n, s:n, s:n, s:n, s:n, s:n}", "what", what, "place", (int)place, "position",
                        "baseline_token", "candidate_token", "canvases", "baseline_row", "candidate_row");
  const char *const names[] = {"prompt", "seed", "format", "repeat"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    json_t *value = json_object_get(answer, names[i]);
    if (value != NULL) (void)json_object_set(d, names[i], value); /* a missing one fails the report's schema */
  }
  return d;
}

static void set_tokens(json_t *difference, size_t position, json_t *baseline, json_t *candidate) {
  (void)json_object_set_new(difference, "position", json_integer((json_int_t)position));
  (void)json_object_set_new(difference, "baseline_token", share_or_null(baseline));
  (void)json_object_set_new(difference, "candidate_token", share_or_null(candidate));
}

/* The first place at which two lists differ, one of which may be shorter; their length where they do not. */
static size_t find_difference(const json_t *ours, const json_t *theirs) {
  size_t n = json_array_size(ours), n_theirs = json_array_size(theirs), i = 0;
  while (i < n && i < n_theirs && json_equal(json_array_get(ours, i), json_array_get(theirs, i))) i++;
  return i;
}

/* The first position of two canvases that has another token; none, where what was accepted or how sure the model was
 * differs alone. */
static void find_position(json_t *difference, const json_t *one, const json_t *other) {
  const json_t *ours = json_object_get(one, "token_ids"), *theirs = json_object_get(other, "token_ids");
  size_t i = find_difference(ours, theirs);
  if (i < json_array_size(ours) && i < json_array_size(theirs))
    set_tokens(difference, i, json_array_get(ours, i), json_array_get(theirs, i));
}

/* The first denoise step after which the canvases differ. */
static json_t *compare_canvases(size_t place, const json_t *a, const json_t *b) {
  const json_t *ours = json_object_get(a, "canvases"), *theirs = json_object_get(b, "canvases");
  size_t i = find_difference(ours, theirs);
  json_t *one = json_array_get(ours, i), *other = json_array_get(theirs, i);
  if (one == NULL && other == NULL) return NULL;
  json_t *d = begin_difference(place, a, "canvas");
  (void)json_object_set_new(d, "canvases",
                            json_pack("{s:o, s:o}", "baseline", share_or_null(one), "candidate", share_or_null(other)));
  find_position(d, one, other);
  return d;
}

static json_t *compare_tokens(size_t place, const json_t *a, const json_t *b) {
  const json_t *ours = json_object_get(a, "tokens"), *theirs = json_object_get(b, "tokens");
  size_t i = find_difference(ours, theirs);
  json_t *one = json_array_get(ours, i), *other = json_array_get(theirs, i);
  if (one == NULL && other == NULL) return NULL;
  json_t *d = begin_difference(place, a, "token");
  set_tokens(d, i, one, other);
  return d;
}

static json_t *compare_answer(size_t place, const json_t *a, const json_t *b) {
  static const char *const more[] = {"prompt_tokens", "finish", "denoise_steps"};
  json_t *d = compare_canvases(place, a, b); /* before any token of it is part of the answer */
  if (d == NULL) d = compare_tokens(place, a, b);
  for (size_t i = 0; d == NULL && i < sizeof more / sizeof *more; i++) {
    if (!json_equal(json_object_get(a, more[i]), json_object_get(b, more[i]))) d = begin_difference(place, a, more[i]);
  }
  return d;
}

static void write_token(char *out, size_t n, const json_t *token) {
  if (json_is_integer(token)) (void)snprintf(out, n, "%" JSON_INTEGER_FORMAT, json_integer_value(token));
  if (!json_is_integer(token)) (void)snprintf(out, n, "the end");
}

static void tell_difference(const json_t *d, const char *who, prove_outcome *outcome) {
  char ours[32], theirs[32];
  const char *what = prove_text(d, "what", ""), *prompt = prove_text(d, "prompt", "");
  const json_t *canvas = json_object_get(json_object_get(d, "canvases"), "baseline");
  write_token(ours, sizeof ours, json_object_get(d, "baseline_token"));
  write_token(theirs, sizeof theirs, json_object_get(d, "candidate_token"));
  if (strcmp(what, "token") == 0) {
    (void)prove_end(outcome, PROVE_DIFFERS, "%s: prompt '%s', token %llu of the answer: %s against %s", who, prompt,
                    (unsigned long long)prove_number(d, "position", 0), ours, theirs);
  } else if (strcmp(what, "canvas") == 0) {
    char where[96] = "";
    if (json_is_integer(json_object_get(d, "position")))
      (void)snprintf(where, sizeof where, ", position %llu: %s against %s",
                     (unsigned long long)prove_number(d, "position", 0), ours, theirs);
    (void)prove_end(outcome, PROVE_DIFFERS, "%s: prompt '%s', canvas %llu after denoise step %llu%s", who, prompt,
                    (unsigned long long)prove_number(canvas, "block", 0),
                    (unsigned long long)prove_number(canvas, "step", 0), where);
  } else {
    (void)prove_end(outcome, PROVE_DIFFERS, "%s: prompt '%s': %s", who, prompt, what);
  }
}

json_t *prove_compare_answers(const json_t *baseline, const json_t *candidate, prove_outcome *outcome) {
  json_t *d = NULL;
  for (size_t i = 0; d == NULL && i < json_array_size(baseline); i++)
    d = compare_answer(i, json_array_get(baseline, i), json_array_get(candidate, i));
  if (d != NULL) tell_difference(d, "they differ", outcome);
  return d;
}

json_t *prove_compare_repeats(const json_t *answers, const char *whose, prove_outcome *outcome) {
  char who[128];
  json_t *d = NULL;
  const json_t *first = NULL;
  for (size_t i = 0; d == NULL && i < json_array_size(answers); i++) {
    const json_t *answer = json_array_get(answers, i);
    if (prove_number(answer, "repeat", 0) == 0) first = answer;
    d = compare_answer(i, first, answer);
  }
  (void)snprintf(who, sizeof who, "%s differs from itself", whose);
  if (d != NULL) tell_difference(d, who, outcome);
  return d;
}

/* ---- scores ---------------------------------------------------------------------------------------------------- */

/* The rows of log probabilities of tokens [from, ..) of the text, each after those before it. */
static json_t *score_text(uint16_t port, json_t *text, size_t from, uint32_t top, uint64_t until_us,
                          prove_outcome *outcome) {
  json_t *root = json_pack("{s:O, s:i, s:i, s:i, s:s}", "prompt", text, "max_tokens", 1, "temperature", 0,
                           "prompt_logprobs", (int)top, "mode", "autoregressive");
  char *body = root == NULL ? NULL : json_dumps(root, JSON_COMPACT);
  json_t *rows = json_array();
  json_t *reply =
      body == NULL ? NULL
                   : prove_ask_json(port, "/v1/completions", body, until_us, "asking for log probabilities", outcome);
  json_t *list = json_object_get(json_array_get(json_object_get(reply, "choices"), 0), "prompt_logprobs");
  bool good = reply != NULL && json_array_size(list) == json_array_size(text);
  for (size_t i = from; good && i < json_array_size(list); i++)
    good = json_array_append(rows, json_array_get(list, i)) == 0;
  if (!good) (void)prove_end(outcome, PROVE_DIED, "log probabilities were asked for and did not come");
  json_decref(reply);
  json_decref(root);
  free(body);
  if (good) return rows;
  json_decref(rows);
  return NULL;
}

static json_t *join_text(const json_t *answer, size_t n_tokens) {
  json_t *text = json_array();
  (void)json_array_extend(text, json_object_get(answer, "prompt_tokens")); /* a shorter text is refused below */
  for (size_t i = 0; i < n_tokens; i++)
    (void)json_array_append(text, json_array_get(json_object_get(answer, "tokens"), i));
  return text;
}

json_t *prove_scores_ask(uint16_t port, const json_t *answers, uint64_t until_us, prove_outcome *outcome) {
  json_t *scores = json_array();
  for (size_t i = 0; scores != NULL && i < json_array_size(answers); i++) {
    const json_t *answer = json_array_get(answers, i);
    size_t n_prompt = json_array_size(json_object_get(answer, "prompt_tokens"));
    if (prove_number(answer, "repeat", 0) > 0) continue;
    json_t *text = join_text(answer, json_array_size(json_object_get(answer, "tokens")));
    json_t *rows = score_text(port, text, n_prompt, TOP, until_us, outcome);
    json_decref(text);
    if (json_array_append_new(scores, rows) != 0) {
      json_decref(scores);
      scores = NULL;
    }
  }
  return scores;
}

typedef struct score_sums {
  double at_least; /* of the baseline's log probability: rarer tokens are not compared */
  double largest, sum;
  uint64_t n;
  size_t place, position; /* of the largest */
} score_sums;

/* Log probabilities of tokens that both rows have, and that are not too rare. */
static void compare_rows(score_sums *sums, const json_t *ours, const json_t *theirs, size_t place, size_t position) {
  const char *token;
  json_t *entry;
  json_object_foreach((json_t *)(uintptr_t)ours, token, entry) {
    const json_t *other = json_object_get(theirs, token);
    double own = json_number_value(json_object_get(entry, "logprob"));
    if (other == NULL || own < sums->at_least) continue;
    double difference = fabs(own - json_number_value(json_object_get(other, "logprob")));
    sums->sum += difference;
    sums->n += 1;
    if (!(difference <= sums->largest)) sums->largest = difference, sums->place = place, sums->position = position;
  }
}

static size_t find_place(const json_t *answers, size_t score) {
  for (size_t i = 0, k = 0; i < json_array_size(answers); i++) {
    if (prove_number(json_array_get(answers, i), "repeat", 0) > 0) continue;
    if (k++ == score) return i;
  }
  return 0;
}

json_t *prove_compare_scores(const json_t *contract, const json_t *answers, const json_t *baseline,
                             const json_t *candidate, prove_outcome *outcome) {
  const json_t *bound = json_object_get(contract, "bound");
  score_sums sums = {.at_least = json_number_value(json_object_get(bound, "at_least"))};
  double largest = json_number_value(json_object_get(bound, "largest"));
  double mean_bound = json_number_value(json_object_get(bound, "mean"));
  for (size_t i = 0; i < json_array_size(baseline); i++) {
    const json_t *ours = json_array_get(baseline, i), *theirs = json_array_get(candidate, i);
    for (size_t k = 0; k < json_array_size(ours); k++)
      compare_rows(&sums, json_array_get(ours, k), json_array_get(theirs, k), i, k);
  }
  if (!isfinite(sums.largest) || !isfinite(sums.sum)) sums.largest = sums.sum = FARTHEST;
  double mean = sums.n > 0 ? sums.sum / (double)sums.n : 0.0;
  bool within = sums.largest <= largest && mean <= mean_bound;
  size_t place = find_place(answers, sums.place);
  const json_t *answer = json_array_get(answers, place);
  json_t *at = within ? json_null() : begin_difference(place, answer, "logits");
  json_t *token = json_array_get(json_object_get(answer, "tokens"), sums.position);
  if (!within) set_tokens(at, sums.position, token, token);
  if (sums.n == 0) (void)prove_end(outcome, PROVE_UNPROVEN, "no answer had a token: there is nothing to compare");
  if (!within)
    (void)prove_end(outcome, PROVE_DIFFERS,
                    "log probabilities are up to %.4g apart, %.4g in the mean, and %.4g and %.4g are allowed: prompt "
                    "'%s', token %zu of the answer",
                    sums.largest, mean, largest, mean_bound, prove_text(answer, "prompt", ""), sums.position);
  return json_pack("{s:f, s:f, s:I, s:O, s:o}", "largest", sums.largest, "mean", mean, "compared", (json_int_t)sums.n,
                   "bound", bound, "at", at);
}

/* ---- rows ------------------------------------------------------------------------------------------------------ */

static json_t *find_logprob(const json_t *row, const json_t *token) {
  char name[32];
  if (!json_is_integer(token)) return json_null();
  (void)snprintf(name, sizeof name, "%" JSON_INTEGER_FORMAT, json_integer_value(token));
  return share_or_null(json_object_get(json_object_get(row, name), "logprob"));
}

/* The likeliest first. */
static json_t *list_top(const json_t *row) {
  json_t *top = json_array(), *entry;
  const char *token;
  for (json_int_t rank = 1; rank <= TOP; rank++) {
    json_object_foreach((json_t *)(uintptr_t)row, token, entry) {
      if (json_integer_value(json_object_get(entry, "rank")) != rank) continue;
      (void)json_array_append_new(
          top, json_pack("{s:I, s:O, s:O}", "token", (json_int_t)strtoll(token, NULL, 10), "text",
                         json_object_get(entry, "decoded_token"), "logprob", json_object_get(entry, "logprob")));
    }
  }
  return top; /* one that is missing for want of memory is missing in the report alone */
}

json_t *prove_row_ask(uint16_t port, const json_t *difference, const json_t *answers, uint64_t until_us,
                      prove_outcome *outcome) {
  json_t *ours = json_object_get(difference, "baseline_token"),
         *theirs = json_object_get(difference, "candidate_token");
  bool canvas = strcmp(prove_text(difference, "what", ""), "canvas") == 0; /* its rows are gone with its step */
  if (canvas || !json_is_integer(json_object_get(difference, "position"))) return NULL;
  const json_t *answer = json_array_get(answers, prove_number(difference, "place", 0));
  size_t n = prove_number(difference, "position", 0);
  n += json_array_size(json_object_get(answer, "prompt_tokens"));
  json_t *token[2] = {ours, theirs}, *logprob[2] = {json_null(), json_null()}, *top = NULL;
  for (int i = 0; i < 2 && n > 0; i++) {
    if (!json_is_integer(token[i])) continue;
    json_t *text = join_text(answer, prove_number(difference, "position", 0));
    (void)json_array_append(text, token[i]); /* a shorter text gives no row */
    json_t *rows = score_text(port, text, n, TOP, until_us, outcome);
    json_t *row = json_array_get(rows, 0);
    logprob[i] = find_logprob(row, token[i]);
    if (top == NULL && row != NULL) top = list_top(row);
    json_decref(rows);
    json_decref(text);
  }
  if (top == NULL) return NULL;
  return json_pack("{s:o, s:o, s:o}", "top", top, "baseline_token", logprob[0], "candidate_token", logprob[1]);
}
