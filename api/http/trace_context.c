/* SPDX-License-Identifier: MIT */
#include "api/http/trace_context.h"

#include <string.h>
#include <strings.h>

enum { PARENT_BYTES = 55, MEMBERS_MAX = 32, KEY_MAX = 256, VALUE_MAX = 256, TENANT_MAX = 241, SYSTEM_MAX = 14 };

static bool is_lower_hex(const char *text, size_t n) {
  return strspn(text, "0123456789abcdef") >= n;
}

static bool is_zero(const char *text, size_t n) {
  return strspn(text, "0") >= n;
}

/* version "-" trace-id "-" parent-id "-" flags. A text that ends too soon fails at its zero. */
static bool read_parent(const char *text, weft_trace_context *out) {
  const char *trace = text + 3, *parent = text + 36, *flags = text + 53;
  if (strlen(text) < PARENT_BYTES || !is_lower_hex(text, 2) || strncmp(text, "ff", 2) == 0) return false;
  if (text[2] != '-' || text[35] != '-' || text[52] != '-') return false;
  if (!is_lower_hex(trace, 32) || !is_lower_hex(parent, 16) || !is_lower_hex(flags, 2)) return false;
  if (is_zero(trace, 32) || is_zero(parent, 16)) return false;
  bool first_version = is_zero(text, 2);
  if (text[PARENT_BYTES] != 0 && (first_version || text[PARENT_BYTES] != '-')) return false;
  memcpy(out->trace_id, trace, 32);
  memcpy(out->parent_id, parent, 16);
  bool sampled = strchr("13579bdf", flags[1]) != NULL;
  memcpy(out->flags, sampled ? "01" : "00", 3);
  return true;
}

static bool is_key_part(const char *text, size_t n, size_t most, bool may_begin_with_digit) {
  static const char begins[] = "abcdefghijklmnopqrstuvwxyz0123456789";
  static const char goes_on[] = "abcdefghijklmnopqrstuvwxyz0123456789_-*/";
  if (n == 0 || n > most || memchr(begins, text[0], may_begin_with_digit ? 36 : 26) == NULL) return false;
  for (size_t i = 1; i < n; i++) {
    if (memchr(goes_on, text[i], sizeof goes_on - 1) == NULL) return false;
  }
  return true;
}

/* A name, or tenant@system. */
static bool is_key(const char *text, size_t n) {
  const char *at = memchr(text, '@', n);
  if (at == NULL) return is_key_part(text, n, KEY_MAX, false);
  size_t tenant = (size_t)(at - text);
  return is_key_part(text, tenant, TENANT_MAX, true) && is_key_part(at + 1, n - tenant - 1, SYSTEM_MAX, false);
}

static bool is_value(const char *text, size_t n) {
  if (n == 0 || n > VALUE_MAX) return false;
  for (size_t i = 0; i < n; i++) {
    if (text[i] < 0x20 || text[i] > 0x7E || text[i] == '=') return false;
  }
  return true;
}

/* Whether a member of the state so far has this key. */
static bool has_key(const char *state, const char *key, size_t n) {
  for (const char *member = state; *member != 0;) {
    if (strncmp(member, key, n) == 0 && member[n] == '=') return true;
    const char *comma = strchr(member, ',');
    if (comma == NULL) return false;
    member = comma + 1;
  }
  return false;
}

static bool add_member(const char *text, size_t n, uint32_t *n_members, weft_trace_context *out) {
  const char *sign = memchr(text, '=', n);
  size_t used = strlen(out->state), key = sign == NULL ? 0 : (size_t)(sign - text);
  if (sign == NULL || !is_key(text, key) || !is_value(sign + 1, n - key - 1) || has_key(out->state, text, key))
    return false;
  if (++*n_members > MEMBERS_MAX || used + n + (used > 0) > WEFT_TRACE_STATE_MAX) return false;
  if (used > 0) out->state[used++] = ',';
  memcpy(out->state + used, text, n);
  out->state[used + n] = 0;
  return true;
}

/* One field; several are one list. Members may be empty. */
static bool read_state(const char *text, uint32_t *n_members, weft_trace_context *out) {
  for (;;) {
    text += strspn(text, " \t");
    size_t length = strcspn(text, ","), n = length;
    while (n > 0 && (text[n - 1] == ' ' || text[n - 1] == '\t')) n--;
    if (n > 0 && !add_member(text, n, n_members, out)) return false;
    if (text[length] == 0) return true;
    text += length + 1;
  }
}

void weft_trace_context_read(const weft_http_head *head, weft_trace_context *out) {
  const char *parent = NULL;
  uint32_t n_parents = 0, n_members = 0;
  *out = (weft_trace_context){0};
  for (uint32_t i = 0; i < head->n_fields; i++) {
    if (strcasecmp(head->field[i].name, "traceparent") != 0) continue;
    parent = head->field[i].value;
    n_parents += 1;
  }
  if (n_parents != 1 || !read_parent(parent, out)) return;
  out->known = true;
  for (uint32_t i = 0; i < head->n_fields; i++) {
    if (strcasecmp(head->field[i].name, "tracestate") != 0) continue;
    if (read_state(head->field[i].value, &n_members, out)) continue;
    out->state[0] = 0;
    return;
  }
}
