/* SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <string.h>

#include "bench/acceptance/acceptance.h"
#include "bench/lab/prose.h"

enum { SHOWN = 24, NORMAL = 1 /* tokenizer.ggml.token_type of an ordinary token */ };

/* Texts that tokenizers get wrong. What is no UTF-8 comes back repaired (weft_utf8_repair). */
static const struct {
  const char *name, *text;
} built_in[] = {
    {"English", "The quick brown fox doesn't jump over 13 lazy dogs; it's 09:45, isn't it?"},
    {"emoji",
     "\xf0\x9f\x98\x80 \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7 "
     "\xf0\x9f\x87\xa9\xf0\x9f\x87\xaa \xe2\x9d\xa4\xef\xb8\x8f \xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd"},
    {"Chinese, Japanese, Korean",
     "\xe6\x88\x91\xe4\xbb\xac\xe5\x9c\xa8\xe5\xad\xa6\xe4\xb9\xa0\xe3\x80\x82\xe6\x9d\xb1\xe4\xba\xac\xe3\x82\xbf\xe3"
     "\x83\xaf\xe3\x83\xbc\xe3\x81\xa8\xe5\xaf\xbf\xe5\x8f\xb8 \xed\x95\x9c\xea\xb5\xad\xec\x96\xb4 \xeb\xac\xb8\xec"
     "\x9e\xa5"},
    {"other scripts",
     "\xd0\x9f\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82 \xd8\xa7\xd9\x84\xd8\xb3\xd9\x84\xd8\xa7\xd9\x85 "
     "\xe0\xa4\xa8\xe0\xa4\xae\xe0\xa4\xb8\xe0\xa5\x8d\xe0\xa4\xa4\xe0\xa5\x87 \xe0\xb8\xaa\xe0\xb8\xa7\xe0\xb8\xb1"
     "\xe0\xb8\xaa\xe0\xb8\x94\xe0\xb8\xb5 e\xcc\x81\xcc\xa3"},
    {"code",
     "int main(void) {\n\tfor (int i = 0; i < 10; i++)\n\t\tprintf(\"%d\\n\", a[i] ^ 0x1F);\n\n\n\treturn 0;\n}"},
    {"white space", "  two  three   four    \t\ttabs\n\n\nlines \r\n end "},
    {"numbers and signs", "3.14159 1,000,000 -17 1e-9 50% a_b-c+d=e/f\\g|h&i~j`k @l #m $n ^o * (p) [q] {r} <s>"},
    {"broken UTF-8", "a\xff\xfe b\xc3( \xe2\x82 \xed\xa0\x80 \xc0\xaf \xf5\x80\x80\x80 end\xe2"},
};

/* Every byte that can stand in a text: ASCII with its control characters, all characters of two bytes, and one
 * character for each lead byte of three and four. */
static void write_every_byte(weft_text *out) {
  char bytes[4];
  for (uint32_t c = 0; c < 0x800; c++) weft_text_append(out, bytes, weft_utf8_encode(c, bytes));
  for (uint32_t c = 0x800; c < 0x10000; c += 0x800) {
    if (c < 0xd800 || c > 0xdfff) weft_text_append(out, bytes, weft_utf8_encode(c + 0x17, bytes));
  }
  for (uint32_t c = 0x10000; c < 0x110000; c += 0x10000)
    weft_text_append(out, bytes, weft_utf8_encode(c + 0x2345, bytes));
}

/* ---- round trips ---- */

typedef struct round_trip {
  uint32_t n_tokens;
  bool unknown; /* the vocabulary's unknown token stands for some of it */
  bool equal;
  size_t at; /* the first byte that differs */
} round_trip;

static weft_status go_round(const weft_tokenizer *t, const char *text, size_t n, round_trip *out, weft_error *error) {
  weft_text wanted = {0}, got = {0};
  weft_tokens tokens = {0};
  *out = (round_trip){.equal = false};
  weft_utf8_repair(text, n, &wanted);
  weft_status status = weft_tokenizer_encode(t, text, n, WEFT_ENCODE_PLAIN, &tokens, error);
  if (status == WEFT_OK) status = weft_tokenizer_decode(t, tokens.ids, tokens.n, false, &got);
  if (status == WEFT_OK) status = weft_text_status(&wanted);
  for (uint32_t i = 0; i < tokens.n; i++) out->unknown = out->unknown || tokens.ids[i] == weft_tokenizer_unk(t);
  while (out->at < wanted.n && out->at < got.n && wanted.bytes[out->at] == got.bytes[out->at]) out->at += 1;
  out->equal = out->at == wanted.n && out->at == got.n;
  out->n_tokens = tokens.n;
  weft_text_free(&wanted);
  weft_text_free(&got);
  weft_tokens_free(&tokens);
  return status;
}

/* Adds a line unless all is well; true: it is. lacking: names of texts that the vocabulary has no tokens for. */
static bool check_trip(acceptance *a, const char *name, const char *text, size_t n, round_trip *trip,
                       weft_text *lacking) {
  weft_error error = {{0}};
  weft_status status = go_round(a->tokenizer, text, n, trip, &error);
  if (status == WEFT_E_INVALID) {
    acceptance_add(&a->report, "round trip", ACCEPTANCE_LOOK,
                   "A vocabulary for all texts has a token for every byte; requests with such a text are refused.",
                   "%s: %s", name, error.text);
  } else if (status != WEFT_OK) {
    acceptance_add(&a->report, "round trip", ACCEPTANCE_BAD, "Send this report.", "%s: %s", name,
                   error.text[0] != 0 ? error.text : weft_status_text(status));
  } else if (!trip->equal && trip->unknown) {
    weft_text_printf(lacking, "%s%s", lacking->n > 0 ? ", " : "", name);
  } else if (!trip->equal) {
    acceptance_add(&a->report, "round trip", ACCEPTANCE_BAD,
                   "The vocabulary in the file is not the model's, or its kind is named wrongly (tokenizer.ggml.model, "
                   "tokenizer.ggml.pre): take a file of another converter, and send this report.",
                   "%s: text becomes other text from byte %zu on", name, trip->at);
  }
  return status == WEFT_OK && trip->equal;
}

static void check_trips(acceptance *a) {
  uint32_t n_all = sizeof built_in / sizeof *built_in + 1, n_good = 0;
  weft_text bytes = {0}, lacking = {0};
  round_trip trip;
  for (uint32_t i = 0; i + 1 < n_all; i++)
    n_good += check_trip(a, built_in[i].name, built_in[i].text, strlen(built_in[i].text), &trip, &lacking);
  write_every_byte(&bytes);
  n_good += weft_text_status(&bytes) == WEFT_OK && check_trip(a, "every byte", bytes.bytes, bytes.n, &trip, &lacking);
  weft_text_free(&bytes);
  if (n_good == n_all)
    acceptance_add(&a->report, "round trip", ACCEPTANCE_GOOD, NULL,
                   "all %" PRIu32 " built-in texts come back as they were", n_all);
  const char *text = a->text != NULL ? a->text : weft_lab_prose;
  size_t n = a->text != NULL ? a->n_text : strlen(weft_lab_prose);
  if (check_trip(a, a->text != NULL ? "the text of --text" : "the text of the laboratory", text, n, &trip, &lacking)) {
    acceptance_add(&a->report, "round trip", ACCEPTANCE_GOOD, NULL,
                   "the text of %zu bytes is %" PRIu32 " tokens, %.2f bytes each, and comes back", n, trip.n_tokens,
                   (double)n / (trip.n_tokens > 0 ? trip.n_tokens : 1));
    acceptance_figure(&a->report, "bytes_per_token", (double)n / (trip.n_tokens > 0 ? trip.n_tokens : 1));
  }
  if (lacking.n > 0)
    acceptance_add(
        &a->report, "round trip", ACCEPTANCE_LOOK,
        "A vocabulary for all texts has a token for every byte. This model does not see the characters that are "
        "lost.",
        "the vocabulary's unknown token stands for what it lacks in: %s", lacking.bytes);
  weft_text_free(&lacking);
}

/* ---- merges ---- */

typedef struct merges_seen {
  uint8_t *made;               /* [n_vocab]: a merge makes the token */
  uint64_t n_merges, n_orphan; /* merges; those whose result is no token */
  uint64_t n_lost;             /* ordinary tokens of several characters that neither a merge nor any text gives */
  char first_orphan[64], first_lost[64];
} merges_seen;

/* "left right" to the token that both make together; -1: there is none. */
static int32_t result_of(const weft_tokenizer *t, weft_bytes merge) {
  char joined[512];
  const char *space = merge.n > 1 ? memchr(merge.data + 1, ' ', merge.n - 1) : NULL;
  if (space == NULL || merge.n > sizeof joined) return -1;
  size_t left = (size_t)(space - merge.data), right = merge.n - left - 1;
  memcpy(joined, merge.data, left);
  memcpy(joined + left, space + 1, right);
  joined[left + right] = 0;
  return weft_tokenizer_find(t, joined);
}

static void find_made(const acceptance *a, merges_seen *m) {
  for (uint64_t i = 0; i < m->n_merges; i++) {
    weft_bytes merge;
    if (weft_gguf_string_at(a->gguf, "tokenizer.ggml.merges", i, &merge, NULL) != WEFT_OK) continue;
    int32_t id = result_of(a->tokenizer, merge);
    if (id >= 0) m->made[id] = 1;
    if (id >= 0 || m->n_orphan++ > 0) continue;
    (void)snprintf(m->first_orphan, sizeof m->first_orphan, "%.*s", (int)(merge.n < SHOWN ? merge.n : SHOWN),
                   merge.data);
  }
}

/* Whether the token's own text is encoded as the token alone; true also where a part of a character cannot be. */
static bool comes_back(const weft_tokenizer *t, int32_t id) {
  weft_text text = {0};
  weft_tokens tokens = {0};
  weft_status status = weft_tokenizer_piece(t, id, true, &text);
  bool whole = status == WEFT_OK && text.n > 0 && weft_utf8_valid(text.bytes, text.n, NULL);
  if (whole) status = weft_tokenizer_encode(t, text.bytes, text.n, 0, &tokens, NULL);
  bool same = !whole || (status == WEFT_OK && tokens.n == 1 && tokens.ids[0] == id);
  weft_text_free(&text);
  weft_tokens_free(&tokens);
  return same;
}

static void find_lost(const acceptance *a, merges_seen *m) {
  uint32_t n_vocab = weft_tokenizer_n_vocab(a->tokenizer), code_point;
  for (uint32_t id = 0; id < n_vocab; id++) {
    uint64_t type = NORMAL;
    weft_bytes token = {0};
    (void)weft_gguf_u64_at(a->gguf, "tokenizer.ggml.token_type", id, &type, NULL);
    (void)weft_gguf_string_at(a->gguf, "tokenizer.ggml.tokens", id, &token, NULL);
    bool several = token.n > 1 && weft_utf8_decode(token.data, token.n, &code_point) < token.n;
    if (m->made[id] != 0 || type != NORMAL || !several || comes_back(a->tokenizer, (int32_t)id)) continue;
    if (m->n_lost++ > 0) continue;
    (void)snprintf(m->first_lost, sizeof m->first_lost, "%" PRIu32 ", %.*s", id,
                   (int)(token.n < SHOWN ? token.n : SHOWN), token.data);
  }
}

static void check_merges(acceptance *a) {
  merges_seen m = {.n_merges = weft_gguf_count(a->gguf, "tokenizer.ggml.merges")};
  if (m.n_merges == 0) {
    acceptance_add(&a->report, "merges", ACCEPTANCE_LEFT_OUT, NULL,
                   "the vocabulary has pieces with scores and no merges");
    return;
  }
  m.made = weft_alloc(weft_tokenizer_n_vocab(a->tokenizer), 1);
  if (m.made == NULL) {
    acceptance_add(&a->report, "merges", ACCEPTANCE_LEFT_OUT, NULL, "no memory for the list of tokens");
    return;
  }
  find_made(a, &m);
  find_lost(a, &m);
  weft_free(m.made);
  if (m.n_orphan > 0)
    acceptance_add(&a->report, "merges", ACCEPTANCE_LOOK,
                   "Merges and tokens are of two vocabularies, or one of the lists was cut: take another conversion.",
                   "%" PRIu64 " of %" PRIu64 " merges make no token, the first is '%s'", m.n_orphan, m.n_merges,
                   m.first_orphan);
  if (m.n_lost > 0)
    acceptance_add(
        &a->report, "merges", ACCEPTANCE_LOOK,
        "Texts with such a token are cut into other tokens than the model was taught. A few are normal in some "
        "vocabularies; if answers are poor, take another conversion.",
        "no merge makes %" PRIu64 " ordinary tokens, and their own text does not give them; the first is %s", m.n_lost,
        m.first_lost);
  if (m.n_orphan + m.n_lost == 0)
    acceptance_add(&a->report, "merges", ACCEPTANCE_GOOD, NULL,
                   "%" PRIu64 " merges: each makes a token, and every token of several characters is made", m.n_merges);
}

void acceptance_check_tokenizer(acceptance *a) {
  weft_error error = {{0}};
  weft_status status = weft_tokenizer_open(a->gguf, &a->tokenizer, &error);
  if (status != WEFT_OK) {
    acceptance_add(
        &a->report, "tokenizer", ACCEPTANCE_BAD,
        "The vocabulary is missing, contradicts itself or is of a kind that weft does not have: take another "
        "conversion, and send this report.",
        "%s", error.text);
    return;
  }
  uint32_t n_eog;
  (void)weft_tokenizer_eog(a->tokenizer, &n_eog);
  if (n_eog == 0)
    acceptance_add(&a->report, "tokenizer", ACCEPTANCE_BAD,
                   "Answers would never end by themselves: the file lacks tokenizer.ggml.eos_token_id; take another "
                   "conversion.",
                   "%" PRIu32 " tokens, none of which ends an answer", weft_tokenizer_n_vocab(a->tokenizer));
  else
    acceptance_add(&a->report, "tokenizer", ACCEPTANCE_GOOD, NULL,
                   "%" PRIu32 " tokens, %" PRIu32 " of which end an answer", weft_tokenizer_n_vocab(a->tokenizer),
                   n_eog);
  check_trips(a);
  check_merges(a);
}
