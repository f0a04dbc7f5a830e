/* SPDX-License-Identifier: MIT */
/* The Ollama dialect: /api/chat, /api/generate and what its programs ask of models.
 *
 * Law: answers are streams unless a request says otherwise: one JSON object a line, the last with "done": true and with
 * counts and durations. A request without messages or prompt loads a model there, so here it is answered at once. */
#ifndef WEFT_API_DIALECTS_OLLAMA_H
#define WEFT_API_DIALECTS_OLLAMA_H

#include "api/dialects/dialect.h"

/* gen->n_prompts 0: nothing is to be answered. */
weft_status weft_ollama_parse_chat(const char *body, size_t n, const weft_body_rules *rules, weft_gen *gen,
                                   weft_refusal *why);
weft_status weft_ollama_parse_generate(const char *body, size_t n, const weft_body_rules *rules, weft_gen *gen,
                                       weft_refusal *why);
extern const weft_dialect weft_ollama_chat, weft_ollama_generate;
/* A time as the dialect writes it, with its quotes. */
void weft_ollama_time(int64_t seconds, int64_t nanoseconds, weft_text *out);

#endif
