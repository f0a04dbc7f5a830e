/* SPDX-License-Identifier: MIT */
#include "api/json_scan.h"

#include "api/weft.h"
#include "model/text/json_steps.h"
#include "model/text/json_tree.h"

enum {
  DEPTH_HONEST = 16,     /* a call in a message lies 6 deep; what others send in fields of their own lies deeper */
  VALUES_HONEST = 65536, /* 4096 messages of 16 values each, or fewer messages of many parts */
  SCALARS_HONEST = 4096, /* besides token ids */
  SCALARS_MAX = 1 << 30,
  WRITTEN_VALUES = 3 /* an object, its member's name and its text */
};

weft_json_size weft_json_limits(uint32_t context) {
  uint64_t scalars = SCALARS_HONEST + (uint64_t)WEFT_ANSWERS_MAX * context;
  return (weft_json_size){.depth = DEPTH_HONEST + WEFT_JSON_DEPTH,
                          .values = 2 * VALUES_HONEST,
                          .scalars = scalars < SCALARS_MAX ? (uint32_t)scalars : SCALARS_MAX};
}

/* What follows a string's first quote, with its last one. */
static size_t string_length(const char *bytes, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (bytes[i] == '"') return i + 1;
    if (bytes[i] == '\\') i += 1;
  }
  return n;
}

static bool belongs_to_scalar(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '+' || c == '-' || c == '.';
}

static size_t scalar_length(const char *bytes, size_t n) {
  size_t length = 1;
  while (length < n && belongs_to_scalar(bytes[length])) length += 1;
  return length;
}

static const char *name_excess(const weft_json_size *size, uint32_t depth, const weft_json_size *limits) {
  if (depth > limits->depth) return "lists and objects inside each other";
  if (size->values > limits->values) return "lists, objects and strings";
  return size->scalars > limits->scalars ? "numbers" : NULL;
}

bool weft_json_scan(const char *bytes, size_t n, const weft_json_size *limits, weft_json_size *size, size_t *at,
                    const char **what) {
  uint32_t depth = 0;
  *size = (weft_json_size){0};
  for (size_t i = 0; i < n;) {
    char c = bytes[i];
    *at = i;
    i += 1;
    if (c == '"') {
      size->values += 1;
      i += string_length(bytes + i, n - i);
    } else if (c == '{' || c == '[') {
      size->values += 1;
      depth += 1;
      if (depth > size->depth) size->depth = depth;
    } else if (c == '}' || c == ']') {
      if (depth > 0) depth -= 1;
      continue;
    } else if (belongs_to_scalar(c)) {
      size->scalars += 1;
      i = *at + scalar_length(bytes + *at, n - *at);
      if (weft_json_is_written(bytes + *at, i - *at)) size->values += WRITTEN_VALUES;
    } else {
      continue;
    }
    *what = name_excess(size, depth, limits);
    if (*what != NULL) return false;
  }
  return true;
}
