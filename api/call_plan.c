/* SPDX-License-Identifier: MIT */
#include "api/call_plan.h"

#include "api/json.h"

static bool is_held(const weft_generate_params *p) {
  bool held = p->tool_choice != WEFT_TOOLS_AUTO;
  for (uint32_t i = 0; i < p->prompt.n_tools; i++) held = held || p->prompt.tools[i].strict;
  return held;
}

/* Why the answer cannot be held to calls; NULL: it can. */
static const char *find_obstacle(const weft_served_model *m, const weft_generate_params *p, bool canvas, bool thinks) {
  if (canvas && !m->runner->ops->info(m->runner)->holds_canvases) {
    return "is not supported by diffusion here: ask for \"mode\": \"autoregressive\", or leave the choice to the "
           "model, "
           "without strict";
  }
  if (p->prompt.thinking || thinks) return "together with thinking is not supported: leave one out";
  return NULL;
}

static weft_status check_plan(const weft_served_model *m, const weft_generate_params *p, bool held, bool canvas,
                              bool thinks, weft_error *error) {
  if (p->format != WEFT_FORMAT_ANY) {
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "a format of the answer beside tools is not supported: leave one out, or say tool_choice none");
  }
  if (p->tool_choice == WEFT_TOOLS_AUTO && !weft_chat_tells_tools(m->chat)) {
    return weft_fail(
        error, WEFT_E_UNSUPPORTED,
        "the chat template of %s has no place for tools, so the model would not know them: say tool_choice "
        "required or none, or serve it with --chat-template",
        m->name);
  }
  weft_call_form form = weft_chat_call_form(m->chat);
  if (held && p->tool_choice == WEFT_TOOLS_AUTO && weft_call_form_held(form) != form) {
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "a strict tool is not supported with tool_choice auto for %s, which writes calls in the form %s: "
                     "leave strict out, or say tool_choice required",
                     m->name, weft_call_form_name(form));
  }
  const char *obstacle = held ? find_obstacle(m, p, canvas, thinks) : NULL;
  if (obstacle == NULL) return WEFT_OK;
  bool chosen = p->tool_choice != WEFT_TOOLS_AUTO;
  return weft_fail(error, WEFT_E_UNSUPPORTED, "%s %s", chosen ? "a tool_choice that asks for a call" : "a strict tool",
                   obstacle);
}

/* Where the model decides, only strict tools are held to their schema, others to any object. */
static void put_tool(const weft_generate_params *p, const weft_tool *t, bool first, weft_text *out) {
  weft_text_puts(out, first ? "{\"name\":" : ",{\"name\":");
  weft_json_words(out, t->name);
  if (t->parameters != NULL && (t->strict || p->tool_choice != WEFT_TOOLS_AUTO)) {
    weft_text_puts(out, ",\"parameters\":");
    weft_text_puts(out, t->parameters);
    if (t->strict) weft_text_puts(out, ",\"strict\":true");
  }
  weft_text_puts(out, "}");
}

static void put_format(const weft_generate_params *p, weft_call_form form, weft_text *out) {
  bool named = p->tool_choice == WEFT_TOOLS_NAMED, several = !named && !p->one_call;
  weft_text_printf(out, "{\"form\":\"%s\",\"free\":%s,\"several\":%s,\"tools\":[", weft_call_form_name(form),
                   p->tool_choice == WEFT_TOOLS_AUTO ? "true" : "false", several ? "true" : "false");
  for (uint32_t i = 0, n = 0; i < p->prompt.n_tools; i++) {
    if (!named || i == p->named_tool) put_tool(p, &p->prompt.tools[i], n++ == 0, out);
  }
  weft_text_puts(out, "]}");
}

weft_status call_plan_make(const weft_served_model *m, const weft_generate_params *p, bool canvas, bool thinks,
                           call_plan *out, weft_text *format, weft_error *error) {
  *out = (call_plan){0};
  if (p->prompt.n_tools == 0 || p->tool_choice == WEFT_TOOLS_NONE) return WEFT_OK;
  bool held = is_held(p);
  weft_status status = check_plan(m, p, held, canvas, thinks, error);
  if (status != WEFT_OK) return status;
  weft_call_form form = weft_chat_call_form(m->chat);
  *out = (call_plan){.read = true, .held = held, .form = held ? weft_call_form_held(form) : form};
  if (!held) return WEFT_OK;
  put_format(p, out->form, format);
  return weft_text_status(format) == WEFT_OK ? WEFT_OK : weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the tools");
}
