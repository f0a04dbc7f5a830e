/* SPDX-License-Identifier: MIT */
/* A tool for tests/schemas/check.py: PROGRAM VOCABULARY.gguf KIND N < one grammar a line. It prints of each line the
 * time of compiling in microseconds and the shortest completion, then N random answers in hexadecimal; or why the
 * line was refused. How answers are made is a way: token by token, or by diffusion. */
#ifndef WEFT_TESTS_GRAMMAR_TOOL_H
#define WEFT_TESTS_GRAMMAR_TOOL_H

#include <stdio.h>

#include "base/clock.h"
#include "tests/support/grammar_sample.h"

typedef struct grammar_way {
  /* What is done after compiling, and refused if it fails. */
  weft_status (*prepare)(weft_grammar *g, weft_grammar_work *work, weft_error *error);
  /* A random answer of at most `room` tokens as text; why it went wrong, NULL: it did not. */
  const char *(*answer)(grammar_world *w, const weft_grammar *g, uint64_t seed, uint32_t room, weft_text *text,
                        uint32_t *n_tokens);
  /* Makes of an answer to the grammar of the line what is printed; why it went wrong. NULL: it is printed as it is. */
  const char *(*read)(const char *line, size_t n, weft_text *text);
} grammar_way;

typedef struct grammar_line {
  const char *text;
  size_t n;
  uint32_t number;
} grammar_line;

static inline void grammar_tool_answer(grammar_world *w, const weft_grammar *g, const grammar_way *way,
                                       const grammar_line *line, uint32_t i) {
  weft_text text = {0};
  uint32_t n_tokens = 0, shortest = weft_grammar_shortest(g);
  uint64_t seed = weft_mix64(line->number * 1000 + i), start = weft_clock_us();
  uint32_t room = shortest + (uint32_t)(seed % (8u << i % 6));
  const char *wrong = way->answer(w, g, seed, room == 0 ? 1 : room, &text, &n_tokens);
  if (wrong == NULL && way->read != NULL) wrong = way->read(line->text, line->n, &text);
  if (wrong != NULL) {
    (void)printf("failed %s after '%.*s'\n", wrong, (int)text.n, text.bytes == NULL ? "" : text.bytes);
  } else {
    (void)printf("answer %u %llu ", n_tokens, (unsigned long long)(weft_clock_us() - start));
    for (size_t k = 0; k < text.n; k++) (void)printf("%02x", (uint8_t)text.bytes[k]);
    (void)printf("\n");
  }
  weft_text_free(&text);
}

static inline void grammar_tool_line(grammar_world *w, weft_grammar_kind kind, const grammar_line *line,
                                     const grammar_way *way, uint32_t n_answers) {
  weft_grammar *g = NULL;
  weft_error error;
  weft_grammar_work work = {0};
  uint64_t start = weft_clock_us();
  weft_status status = weft_grammar_compile(kind, line->text, line->n, w->trie, &g, &work, &error);
  if (status == WEFT_OK) status = way->prepare(g, &work, &error);
  unsigned long long us = weft_clock_us() - start;
  if (status != WEFT_OK) {
    (void)printf("refused %llu %s\n", us, error.text);
  } else {
    (void)printf("compiled %llu %u %llu %llu\n", us, weft_grammar_shortest(g),
                 (unsigned long long)weft_grammar_bytes(g), (unsigned long long)work.n_steps);
    for (uint32_t i = 0; i < n_answers; i++) grammar_tool_answer(w, g, way, line, i);
  }
  weft_grammar_unref(g);
}

static inline int grammar_tool(int argc, char **argv, const grammar_way *way) {
  grammar_world w;
  char *line = NULL;
  size_t capacity = 0;
  ssize_t n;
  if (argc < 4 || !grammar_world_open(&w, argv[1])) return 1;
  weft_grammar_kind kind = (weft_grammar_kind)strtoul(argv[2], NULL, 10);
  uint32_t n_answers = (uint32_t)strtoul(argv[3], NULL, 10);
  for (uint32_t number = 0; (n = getline(&line, &capacity, stdin)) > 0; number++) {
    const grammar_line one = {line, (size_t)n - (line[n - 1] == '\n'), number};
    grammar_tool_line(&w, kind, &one, way, n_answers);
  }
  free(line);
  grammar_world_close(&w);
  return 0;
}

#endif
