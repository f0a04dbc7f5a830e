/* SPDX-License-Identifier: MIT */
#include "api/call_plan.h"

#include "api/json.h"

static bool has_strict(const weft_generate_params *p) {
  for (uint32_t i = 0; i < p->prompt.n_tools; i++) {
    if (p->prompt.tools[i].strict) return true;
  }
  return false;
}

static weft_status check_plan(const weft_served_model *m, const weft_generate_params *p, bool held, bool canvas,
                              weft_error *error) {
  if (!held || !canvas || m->runner->ops->info(m->runner)->holds_canvases) return WEFT_OK;
  return weft_fail(
      error, WEFT_E_UNSUPPORTED,
      "%s is not supported by diffusion here: ask for \"mode\": \"autoregressive\", or leave the choice to "
      "the model, without strict and without a format",
      p->tool_choice != WEFT_TOOLS_AUTO ? "a tool_choice that asks for a call" : "a strict tool");
}

/* Where the model decides, only strict tools are held to their schema, others to any object; beside a format the
 * answer is held anyway, and all are. */
static void put_tool(const weft_generate_params *p, const weft_tool *t, bool first, weft_text *out) {
  weft_text_puts(out, first ? "{\"name\":" : ",{\"name\":");
  weft_json_words(out, t->name);
  if (t->parameters != NULL && (t->strict || p->tool_choice != WEFT_TOOLS_AUTO || p->format != WEFT_FORMAT_ANY)) {
    weft_text_puts(out, ",\"parameters\":");
    weft_text_puts(out, t->parameters);
    if (t->strict) weft_text_puts(out, ",\"strict\":true");
  }
  weft_text_puts(out, "}");
}

static void put_format(const weft_generate_params *p, weft_call_form form, weft_text *out) {
  bool named = p->tool_choice == WEFT_TOOLS_NAMED, several = !named && !p->one_call;
  bool free = p->tool_choice == WEFT_TOOLS_AUTO && p->format == WEFT_FORMAT_ANY;
  weft_text_printf(out, "{\"form\":\"%s\",\"free\":%s,\"several\":%s,\"tools\":[", weft_call_form_name(form),
                   free ? "true" : "false", several ? "true" : "false");
  for (uint32_t i = 0, n = 0; i < p->prompt.n_tools; i++) {
    if (!named || i == p->named_tool) put_tool(p, &p->prompt.tools[i], n++ == 0, out);
  }
  weft_text_puts(out, "]}");
}

weft_status call_plan_make(const weft_served_model *m, const weft_generate_params *p, bool canvas, call_plan *out,
                           weft_text *format, weft_error *error) {
  *out = (call_plan){0};
  if (p->prompt.n_tools == 0 || p->tool_choice == WEFT_TOOLS_NONE) return WEFT_OK;
  bool held = p->tool_choice != WEFT_TOOLS_AUTO || has_strict(p) || p->format != WEFT_FORMAT_ANY;
  weft_status status = check_plan(m, p, held, canvas, error);
  if (status != WEFT_OK) return status;
  *out = (call_plan){.read = true, .held = held, .form = weft_chat_call_form(m->chat)};
  if (!held) return WEFT_OK;
  put_format(p, out->form, format);
  return weft_text_status(format) == WEFT_OK ? WEFT_OK : weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the tools");
}

void call_plan_answer(const weft_served_model *m, const weft_generate_params *p, const call_plan *plan, bool thinks,
                      const weft_text *calls, weft_text *out) {
  bool formatted = p->format != WEFT_FORMAT_ANY && !(plan->held && p->tool_choice != WEFT_TOOLS_AUTO);
  weft_text_puts(out, "{\"thinking\":");
  const char *open = m->chat == NULL ? NULL : weft_chat_thought_open(m->chat);
  if (open != NULL && (thinks || p->prompt.thinking)) { /* a template without markers has no thinking that could end */
    weft_text_puts(out, "{\"open\":");
    weft_json_words(out, open);
    weft_text_puts(out, ",\"close\":");
    weft_json_words(out, weft_chat_thought_close(m->chat));
    weft_text_printf(out, ",\"begun\":%s}", thinks ? "true" : "false");
  } else {
    weft_text_puts(out, "null");
  }
  weft_text_puts(out, ",\"calls\":");
  if (plan->held) {
    weft_text_append(out, calls->bytes, calls->n);
  } else {
    weft_text_puts(out, "null");
  }
  if (formatted) {
    weft_text_printf(out, ",\"format\":{\"kind\":%d,\"text\":", (int)p->format);
    weft_json_string(out, p->format_text == NULL ? "" : p->format_text, p->n_format_text);
    weft_text_puts(out, "}");
  }
  weft_text_puts(out, "}");
}
