/* SPDX-License-Identifier: MIT */
#include "bench/quality/judge.h"

#include <stdint.h>
#include <string.h>

enum { WORDS_MAX = 256, WORD_BYTES = 64 };

typedef struct word_list {
  char word[WORDS_MAX][WORD_BYTES];
  uint32_t n;
  bool overflow;
} word_list;

static void split_words(const char *text, word_list *list) {
  static const char *const spaces = " \t\n\r\f\v";
  list->n = 0;
  list->overflow = false;
  while (*(text += strspn(text, spaces)) != 0) {
    size_t n = strcspn(text, spaces);
    if (list->n == WORDS_MAX || n >= WORD_BYTES) {
      list->overflow = true;
      return;
    }
    memcpy(list->word[list->n], text, n);
    list->word[list->n++][n] = 0;
    text += n;
  }
}

static bool ends_with(const char *text, const char *end) {
  size_t n = strlen(text), k = strlen(end);
  return n >= k && strcmp(text + n - k, end) == 0;
}

static void strip_marks(const char *word, char *out) {
  static const char *const marks = ".,!?;:";
  word += strspn(word, marks);
  size_t n = strlen(word);
  while (n > 0 && strchr(marks, word[n - 1]) != NULL) n -= 1;
  memcpy(out, word, n);
  out[n] = 0;
}

static bool judge_json(json_t *validator, const char *text) {
  json_t *got = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
  bool good = got != NULL && json_is_object(got) && json_equal(got, json_object_get(validator, "fields"));
  json_decref(got);
  return good;
}

static bool list_has(json_t *list, const char *word) {
  size_t i;
  json_t *item;
  json_array_foreach(list, i, item) {
    if (json_is_string(item) && strcmp(json_string_value(item), word) == 0) return true;
  }
  return false;
}

static bool judge_items(json_t *validator, const word_list *words) {
  if ((json_int_t)words->n != json_integer_value(json_object_get(validator, "count"))) return false;
  for (uint32_t i = 0; i < words->n; i++) {
    if (!list_has(json_object_get(validator, "from"), words->word[i])) return false;
    for (uint32_t j = 0; j < i; j++) {
      if (strcmp(words->word[i], words->word[j]) == 0) return false;
    }
  }
  return true;
}

static bool judge_sentence(json_t *validator, const char *text, const word_list *words) {
  const char *end = json_string_value(json_object_get(validator, "end"));
  json_t *sentences = json_object_get(validator, "sentences"), *first = json_object_get(validator, "first");
  json_int_t n_wanted = sentences == NULL ? 1 : json_integer_value(sentences), n_ends = 0;
  if (end == NULL || !ends_with(text, end)) return false;
  if (words->n < json_integer_value(json_object_get(validator, "words_min"))) return false;
  if (words->n > json_integer_value(json_object_get(validator, "words_max"))) return false;
  char plain[WORD_BYTES];
  for (uint32_t i = 0; i < words->n; i++) n_ends += ends_with(words->word[i], end);
  if (n_ends != n_wanted) return false;
  if (json_is_string(first)) {
    strip_marks(words->word[0], plain);
    if (words->n == 0 || strcmp(plain, json_string_value(first)) != 0) return false;
  }
  size_t k;
  json_t *must;
  json_array_foreach(json_object_get(validator, "must"), k, must) {
    bool found = false;
    for (uint32_t i = 0; i < words->n && !found; i++) {
      strip_marks(words->word[i], plain);
      found = json_is_string(must) && strcmp(plain, json_string_value(must)) == 0;
    }
    if (!found) return false;
  }
  return true;
}

bool weft_judge(json_t *item, const char *text) {
  const char *answer = json_string_value(json_object_get(item, "answer"));
  if (answer != NULL) return strcmp(answer, text) == 0;
  json_t *validator = json_object_get(item, "validator");
  const char *kind = json_string_value(json_object_get(validator, "kind"));
  if (kind == NULL) return false;
  if (strcmp(kind, "json") == 0) return judge_json(validator, text);
  word_list words;
  split_words(text, &words);
  if (words.overflow) return false;
  if (strcmp(kind, "items") == 0) return judge_items(validator, &words);
  return strcmp(kind, "sentence") == 0 && judge_sentence(validator, text, &words);
}
