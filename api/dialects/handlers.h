/* SPDX-License-Identifier: MIT */
/* The endpoints of the dialects, for the table of the router.
 *
 * Law: a handler answers its exchange exactly once (api/http/http.h). */
#ifndef WEFT_API_DIALECTS_HANDLERS_H
#define WEFT_API_DIALECTS_HANDLERS_H

#include "api/dialects/context.h"

/* openai.c */
void weft_handle_chat(weft_server *server, weft_exchange *x);
void weft_handle_completions(weft_server *server, weft_exchange *x);
/* openai_render.c */
void weft_handle_render_chat(weft_server *server, weft_exchange *x);
void weft_handle_render_completions(weft_server *server, weft_exchange *x);
/* anthropic.c */
void weft_handle_messages(weft_server *server, weft_exchange *x);
void weft_handle_count_tokens(weft_server *server, weft_exchange *x);
void weft_anthropic_refusal(const weft_refusal *why, const char *id, weft_text *out);
/* ollama.c, ollama_models.c */
void weft_handle_ollama_chat(weft_server *server, weft_exchange *x);
void weft_handle_ollama_generate(weft_server *server, weft_exchange *x);
void weft_handle_ollama_tags(weft_server *server, weft_exchange *x);
void weft_handle_ollama_ps(weft_server *server, weft_exchange *x);
void weft_handle_ollama_show(weft_server *server, weft_exchange *x);
void weft_handle_ollama_version(weft_server *server, weft_exchange *x);
void weft_handle_ollama_not_here(weft_server *server, weft_exchange *x);
/* Name, size, digest and details of a model, as members of a JSON object. */
void weft_ollama_put_model(const weft_server *server, uint32_t model, const char *name, weft_text *out);
/* What the model can, in Ollama's words, as a member after others. */
void weft_ollama_put_capabilities(const weft_server *server, uint32_t model, weft_text *out);
void weft_ollama_refusal(const weft_refusal *why, const char *id, weft_text *out);
/* responses.c */
void weft_handle_responses(weft_server *server, weft_exchange *x);
void weft_handle_response(weft_server *server, weft_exchange *x);
void weft_handle_response_delete(weft_server *server, weft_exchange *x);

#endif
