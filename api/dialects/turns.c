/* SPDX-License-Identifier: MIT */
#include "api/dialects/turns.h"

#include <stdio.h>
#include <string.h>

enum { TURNS_MAX = 4096, CALLS_MAX = 128, TOOLS_MAX = 512 };

weft_status turns_add(turn_list *list, const char *role, const char *field, weft_refusal *why) {
  if (list->n == TURNS_MAX) {
    return weft_refuse(why, 400, "invalid_value", field, "%s has more than %d turns", field, TURNS_MAX);
  }
  if (list->n == list->capacity) {
    uint32_t capacity = list->capacity == 0 ? 8 : 2 * list->capacity;
    weft_chat_turn *turn = weft_gen_alloc(list->gen, capacity, sizeof *turn);
    if (turn == NULL) return field_no_memory(why);
    if (list->n > 0) memcpy(turn, list->turn, list->n * sizeof *turn);
    list->turn = turn;
    list->capacity = capacity;
  }
  list->turn[list->n++] = (weft_chat_turn){.role = role, .content = ""};
  return WEFT_OK;
}

weft_status turns_add_call(turn_list *list, const char *id, const json_t *name, const char *arguments,
                           const char *field, weft_refusal *why) {
  weft_chat_turn *turn = &list->turn[list->n - 1];
  char part[96];
  (void)snprintf(part, sizeof part, "%.80s.name", field);
  if (turn->n_calls == CALLS_MAX) {
    return weft_refuse(why, 400, "invalid_value", field, "%s: a turn has at most %d calls", field, CALLS_MAX);
  }
  weft_tool_call *calls = (weft_tool_call *)(uintptr_t)turn->calls;
  if ((turn->n_calls & (turn->n_calls - 1)) == 0) { /* full: what is left behind is freed with the request */
    calls = weft_gen_alloc(list->gen, turn->n_calls == 0 ? 1 : 2 * (size_t)turn->n_calls, sizeof *calls);
    if (calls == NULL) return field_no_memory(why);
    if (turn->n_calls > 0) memcpy(calls, turn->calls, turn->n_calls * sizeof *calls);
  }
  weft_tool_call *call = &calls[turn->n_calls];
  call->id = id;
  call->arguments = arguments;
  weft_status status = weft_openai_name(name, part, &call->name, why);
  turn->calls = calls;
  turn->n_calls += 1;
  return status;
}

void turns_finish(const turn_list *list) {
  list->gen->prompt->turns = list->turn;
  list->gen->prompt->n_turns = list->n;
}

bool turns_end_with_answer(const turn_list *list) {
  return list->n > 0 && strcmp(list->turn[list->n - 1].role, "assistant") == 0;
}

weft_status turns_tools(weft_gen *gen, const json_t *tools, tool_reader declare, weft_prompt *out, weft_refusal *why) {
  size_t n = json_array_size(tools);
  if (tools == NULL || json_is_null(tools)) return WEFT_OK;
  if (!json_is_array(tools)) return field_wrong(why, "tools", "a list of tools");
  if (n == 0) return WEFT_OK;
  if (n > TOOLS_MAX) {
    return weft_refuse(why, 400, "invalid_value", "tools", "tools has %zu entries; at most %d are read", n, TOOLS_MAX);
  }
  weft_tool *list = weft_gen_alloc(gen, n, sizeof *list);
  if (list == NULL) return field_no_memory(why);
  for (size_t i = 0; i < n; i++) {
    char field[40];
    (void)snprintf(field, sizeof field, "tools[%zu]", i);
    weft_status status = declare(gen, json_array_get(tools, i), field, &list[i], why);
    for (size_t k = 0; k < i && status == WEFT_OK; k++) {
      if (strcmp(list[k].name, list[i].name) != 0) continue;
      status = weft_refuse(why, 400, "invalid_value", field, "tools[%zu] and tools[%zu] have the same name, '%s'", k, i,
                           list[i].name);
    }
    if (status != WEFT_OK) return status;
  }
  out->tools = list;
  out->n_tools = (uint32_t)n;
  return WEFT_OK;
}
