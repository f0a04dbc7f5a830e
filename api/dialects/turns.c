/* SPDX-License-Identifier: MIT */
#include "api/dialects/turns.h"

#include <stdio.h>
#include <string.h>

#include "api/dialects/tools.h"
#include "api/json.h"
#include "api/json_scan.h"
#include "model/text/json_steps.h"

enum { TURNS_MAX = 4096, CALLS_MAX = 128 };

weft_status turns_add(turn_list *list, const char *role, weft_refusal *why) {
  const char *field = list->at.list;
  if (list->n == TURNS_MAX) {
    return weft_refuse(why, 400, "invalid_value", field, "%s has more than %d turns", field, TURNS_MAX);
  }
  if (list->n == list->capacity) {
    uint32_t capacity = list->capacity == 0 ? 8 : 2 * list->capacity;
    weft_chat_turn *turn = weft_gen_alloc(list->gen, capacity, sizeof *turn);
    weft_turn_place *place = weft_gen_alloc(list->gen, capacity, sizeof *place);
    if (turn == NULL || place == NULL) return field_no_memory(why);
    if (list->n > 0) memcpy(turn, list->turn, list->n * sizeof *turn);
    if (list->n > 0) memcpy(place, list->place, list->n * sizeof *place);
    list->turn = turn;
    list->place = place;
    list->capacity = capacity;
  }
  list->place[list->n] = list->at;
  list->turn[list->n++] = (weft_chat_turn){.role = role, .content = ""};
  return WEFT_OK;
}

weft_status turns_check_arguments(const char *arguments, const char *field, weft_refusal *why) {
  const weft_json_size limits = {WEFT_JSON_DEPTH, UINT32_MAX, UINT32_MAX};
  weft_json_size size;
  size_t at;
  const char *what;
  if (arguments == NULL || weft_json_scan(arguments, strlen(arguments), &limits, &size, &at, &what)) return WEFT_OK;
  return weft_refuse(why, 400, "invalid_value", field,
                     "%s: arguments of a call have at most %d levels of lists and objects", field, WEFT_JSON_DEPTH);
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
  weft_status status = tools_called(list->gen, name, part, &call->name, why);
  turn->calls = calls;
  turn->n_calls += 1;
  return status == WEFT_OK ? turns_check_arguments(arguments, field, why) : status;
}

weft_status turns_text_arguments(weft_gen *gen, const char *text, const char **out, weft_refusal *why) {
  weft_text arguments = {0};
  weft_text_puts(&arguments, "{\"input\":");
  weft_json_words(&arguments, text);
  weft_text_puts(&arguments, "}");
  weft_status status = weft_dialect_keep(gen, &arguments, out, why);
  weft_text_free(&arguments);
  return status;
}

void turns_finish(const turn_list *list) {
  list->gen->turn_place = list->place;
  list->gen->prompt->turns = list->turn;
  list->gen->prompt->n_turns = list->n;
}

bool turns_end_with_answer(const turn_list *list) {
  return list->n > 0 && strcmp(list->turn[list->n - 1].role, "assistant") == 0;
}
