/* SPDX-License-Identifier: MIT */
/* Schemas as they are found: keywords that apply others, patterns of JavaScript, bounds with fractions. Of each schema
 * which texts are answers and which are not, byte by byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "model/formats/automaton.h"
#include "tests/support/grammar_sample.h"
#include "tests/support/refuse_each.h"

static grammar_world world;

static int open_world(void **state) {
  (void)state;
  return grammar_world_small(&world) ? 0 : -1;
}

static int close_world(void **state) {
  (void)state;
  grammar_world_close(&world);
  return 0;
}

/* Byte by byte: in this vocabulary a token of one byte has the byte's number. */
static bool takes(const weft_grammar *g, const char *text) {
  weft_matcher m;
  weft_matcher_begin(&m, g);
  for (; *text != 0; text++) {
    if (!weft_matcher_take(&m, world.scratch, (int32_t)(uint8_t)*text)) return false;
  }
  return weft_matcher_may_end(&m, world.scratch);
}

typedef struct schema_row {
  const char *schema, *in[6], *out[8];
} schema_row;

static void check_rows(const schema_row *row, size_t n) {
  for (size_t i = 0; i < n; i++) {
    weft_grammar *g;
    weft_error error;
    if (weft_grammar_compile(WEFT_GRAMMAR_JSON_SCHEMA, row[i].schema, strlen(row[i].schema), world.trie, &g, NULL,
                             &error) != WEFT_OK) {
      fail_msg("%s: %s", row[i].schema, error.text);
    }
    for (int k = 0; k < 6 && row[i].in[k] != NULL; k++) {
      if (!takes(g, row[i].in[k])) fail_msg("%s does not take %s", row[i].schema, row[i].in[k]);
    }
    for (int k = 0; k < 8 && row[i].out[k] != NULL; k++) {
      if (takes(g, row[i].out[k])) fail_msg("%s takes %s", row[i].schema, row[i].out[k]);
    }
    weft_grammar_unref(g);
  }
}

#define CHECK(rows) check_rows(rows, sizeof rows / sizeof *rows)
#define LEAP                                                                                                    \
  "((\\\\d\\\\d[2468][048]|\\\\d\\\\d[13579][26]|\\\\d\\\\d0[48]|[02468][048]00|[13579][26]00)-02-29|\\\\d{4}-" \
  "((0[13578]|1[02])-(0[1-9]|[12]\\\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\\\d|30)|(02)-(0[1-9]|1\\\\d|2[0-8])))"

static void texts_fit_all_that_is_said_of_them(void **state) {
  static const schema_row rows[] = {
      /* what zod writes: a format and its pattern */
      {"{\"type\":\"string\",\"format\":\"email\",\"pattern\":\"^(?!\\\\.)(?!.*\\\\.\\\\.)([A-Za-z0-9_'+\\\\-\\\\.]*)["
       "A-Za-z0-9_"
       "+-]@([A-Za-z0-9][A-Za-z0-9\\\\-]*\\\\.)+[A-Za-z]{2,}$\"}",
       {"\"jo.doe@host.example\"", "\"a@b.co\""},
       {"\".jo@host.example\"", "\"jo..doe@host.example\"", "\"jo@host\"", "\"jo\""}},
      {"{\"type\":\"string\",\"format\":\"uuid\",\"pattern\":\"^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-["
       "89abAB][0-"
       "9a-fA-F]{3}-[0-9a-fA-F]{12}|00000000-0000-0000-0000-000000000000)$\"}",
       {"\"0f1e2d3c-4b5a-4987-8a6b-000011112222\"", "\"00000000-0000-0000-0000-000000000000\""},
       {"\"0f1e2d3c-4b5a-9987-8a6b-000011112222\"", "\"0f1e2d3c-4b5a-4987-7a6b-000011112222\""}},
      {"{\"type\":\"string\",\"format\":\"date\",\"pattern\":\"^" LEAP "$\"}",
       {"\"2024-06-30\"", "\"1999-12-31\""},
       {"\"2024-06-31\"", "\"2023-02-29\"", "\"2024-6-30\""}},
      {"{\"type\":\"string\",\"format\":\"date-time\",\"pattern\":\"^" LEAP
       "T([01]\\\\d|2[0-3]):[0-5]\\\\d(:[0-5]\\\\d(\\\\.\\\\d+)?)?(Z|([+-]([01]\\\\d|2[0-3]):[0-5]\\\\d))$\"}",
       {"\"2024-06-30T23:59:59Z\"", "\"2024-06-30T00:00:00.25+05:30\""},
       {"\"2024-06-30T23:59:59\"", "\"2024-06-30T24:00:00Z\"", "\"2024-06-30\""}},
      /* a format that no validator knows, and one that would leave nothing */
      {"{\"type\":\"string\",\"format\":\"color\",\"maxLength\":2}", {"\"ab\""}, {"\"abc\""}},
      {"{\"type\":\"string\",\"format\":\"uuid\",\"pattern\":\"^[A-F]+$\"}", {"\"ABF\""}, {"\"abf\""}},
      {"{\"type\":\"string\",\"pattern\":\"^[a-z]+$\",\"minLength\":2,\"maxLength\":4}",
       {"\"ab\"", "\"abcd\""},
       {"\"a\"", "\"abcde\"", "\"aB\""}},
      {"{\"allOf\":[{\"type\":\"string\",\"pattern\":\"^a\"},{\"pattern\":\"z$\"},{\"not\":{\"pattern\":\"m\"}}]}",
       {"\"az\"", "\"abz\""},
       {"\"amz\"", "\"a\"", "\"bz\""}},
      {"{\"type\":\"string\",\"not\":{\"enum\":[\"yes\",\"no\"]},\"maxLength\":3}",
       {"\"ye\"", "\"yet\""},
       {"\"yes\"", "\"no\""}},
      {"{\"enum\":[\"ab\",\"abc\",1,null],\"maxLength\":2}", {"\"ab\"", "1", "null"}, {"\"abc\""}},
      /* classes: what is beyond ASCII belongs to \W for some and not for others */
      {"{\"pattern\":\"^[^]{1,2}$\"}", {"\"\xC3\xA4\"", "\"\\n\""}, {"\"\"", "\"abc\""}},
      {"{\"pattern\":\"^[\\\\s\\\\S]$\"}", {"\"\xC3\xA4\"", "\"\\t\"", "\" \""}, {"\"\"", "\"ab\""}},
      {"{\"pattern\":\"^[\\\\w\\\\W]\\\\W$\"}", {"\"\xC3\xA4-\""}, {"\"-\xC3\xA4\"", "\"-a\""}},
      {"{\"pattern\":\"^\\\\D+$\"}", {"\"ab\""}, {"\"1\"", "\"\xD9\xA1\""}},
      {"{\"not\":{\"pattern\":\"\\\\W\"},\"type\":\"string\"}", {"\"ab\"", "\"\""}, {"\"a-\"", "\"\xC3\xA4\""}},
      {"{\"pattern\":\"^.$\"}", {"\"a\""}, {"\"\\n\"", "\"\\r\"", "\"\xE2\x80\xA8\""}},
      {"{\"pattern\":\"^\\\\u{1F600}\\\\uD83D\\\\uDE01$\"}",
       {"\"\xF0\x9F\x98\x80\xF0\x9F\x98\x81\""},
       {"\"\xF0\x9F\x98\x80\""}},
      /* borders, and what follows */
      {"{\"pattern\":\"\\\\bcat\\\\b\"}",
       {"\"cat\"", "\"a cat!\""},
       {"\"cats\"", "\"concat\"",
        "\"\xC3\xA4"
        "cat\""}},
      {"{\"pattern\":\"^a\\\\Bb$|x\\\\B-\"}", {"\"ab\""}, {"\"x-\"", "\"a\""}},
      {"{\"pattern\":\"^(?=.*[0-9])(?=.*[a-z]).{3,4}$\"}",
       {"\"ab1\"", "\"1abc\""},
       {"\"abc\"", "\"123\"", "\"a1\"", "\"abcd1\""}},
      {"{\"pattern\":\"^(?:(?!ab)[abc])+$\"}", {"\"acb\"", "\"bbaa\""}, {"\"ab\"", "\"cab\"", "\"\""}},
      {"{\"pattern\":\"^a(?!b|$)\"}", {"\"ac\"", "\"aab\""}, {"\"a\"", "\"ab\""}},
      {"{\"pattern\":\"x(^|y)z$\"}", {"\"xyz\"", "\"axyz\""}, {"\"xz\"", "\"xyza\""}},
  };
  (void)state;
  CHECK(rows);
}

static void numbers_fit_all_that_is_said_of_them(void **state) {
  static const schema_row rows[] = {
      {"{\"type\":\"number\",\"minimum\":0.25,\"maximum\":0.5}",
       {"0.25", "0.3", "0.499", "0.5", "0.50"},
       {"0", "0.2", "0.51", "1", "-0.3", "0.24999999999999"}},
      {"{\"type\":\"number\",\"exclusiveMinimum\":-1.5,\"exclusiveMaximum\":2.75}",
       {"-1.49", "0", "-1", "2.74", "2"},
       {"-1.5", "-1.50", "2.75", "3", "-2", "-0"}},
      {"{\"type\":\"number\",\"exclusiveMinimum\":999999}",
       {"999999.5", "1000000"},
       {"999999", "999999.000000000000001"}},
      {"{\"type\":\"number\",\"minimum\":1e-3,\"maximum\":1e20}", {"0.001", "7"}, {"0.0009", "0"}},
      {"{\"type\":\"integer\",\"minimum\":0.5,\"maximum\":2.5}", {"1", "2"}, {"0", "3", "1.5"}},
      {"{\"type\":\"number\",\"multipleOf\":0.01}", {"1.15", "-3.1", "20", "0.07"}, {"1.155", "0.001"}},
      {"{\"type\":\"integer\",\"multipleOf\":30,\"minimum\":25}", {"30", "240"}, {"0", "25", "31", "-30"}},
      {"{\"type\":\"integer\",\"multipleOf\":123457}", {"123457", "-246914", "0"}, {"123458", "1"}},
      {"{\"allOf\":[{\"type\":\"number\",\"multipleOf\":0.5},{\"multipleOf\":0.75}]}", {"1.5", "3"}, {"0.5", "0.75"}},
      {"{\"type\":\"number\",\"not\":{\"type\":\"integer\"},\"minimum\":1,\"maximum\":3}",
       {"1.5", "2.10"},
       {"1", "2.0", "3"}},
      {"{\"type\":\"number\",\"not\":{\"minimum\":2.5}}", {"2", "2.49", "-7"}, {"2.5", "3"}},
  };
  (void)state;
  CHECK(rows);
}

/* Numbers beyond what 64 bits hold are those of their digits. */
static void numbers_have_any_size(void **state) {
  static const schema_row rows[] = {
      {"{\"type\":\"integer\",\"minimum\":0,\"maximum\":18446744073709551615}",
       {"0", "999999999999999"},
       {"-1", "0.5"}},
      {"{\"type\":\"number\",\"minimum\":-1e400,\"exclusiveMaximum\":1e-400}",
       {"-3.5", "0"},
       {"0.00000000000001", "1"}},
      {"{\"type\":\"number\",\"exclusiveMinimum\":1e-400}", {"0.00000000000001", "1"}, {"0", "-1", "0.0"}},
      {"{\"type\":\"integer\",\"minimum\":18446744073709551614,\"maximum\":18446744073709551616}",
       {"18446744073709551614", "18446744073709551615", "18446744073709551616"},
       {"18446744073709551613", "18446744073709551617", "1", "-18446744073709551615"}},
      {"{\"type\":\"integer\",\"exclusiveMinimum\":-9223372036854775810,\"exclusiveMaximum\":-9223372036854775808}",
       {"-9223372036854775809"},
       {"-9223372036854775810", "-9223372036854775808", "9223372036854775809"}},
      {"{\"const\":1e400}", {"1e400"}, {"1", "null", "{}"}},
      {"{\"enum\":[18446744073709551616,-1e999,true],\"maximum\":0}", {"-1e999", "true"}, {"18446744073709551616"}},
      {"{\"enum\":[1e400,10e399,2],\"not\":{\"const\":100e398}}", {"2"}, {"1e400", "10e399"}},
      {"{\"allOf\":[{\"maximum\":18446744073709551616},{\"maximum\":9223372036854775807},{\"type\":\"number\"},"
       "{\"minimum\":9223372036854775806}]}",
       {"9223372036854775806", "9223372036854775807"},
       {"9223372036854775805", "9223372036854775808"}},
      {"{\"type\":\"number\",\"multipleOf\":1e400}", {"0"}, {"1", "10"}},
      {"{\"type\":\"number\",\"multipleOf\":1e-400,\"maximum\":2}", {"0.25", "1"}, {"3"}},
      {"{\"const\":36893488147419103230,\"multipleOf\":18446744073709551615}", {"36893488147419103230"}, {"0"}},
      {"{\"const\":1.15,\"multipleOf\":0.01}", {"1.15"}, {"1"}},
      {"{\"type\":\"string\",\"maxLength\":18446744073709551615}", {"\"\"", "\"abc\""}, {"1"}},
      {"{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"maxItems\":1e400,\"minItems\":1.0}", {"[null]"}, {"[]"}},
      {"{\"type\":\"boolean\",\"default\":1e400,\"x\":18446744073709551616}", {"true"}, {"1"}},
  };
  static const char *const refused[][2] = {
      {"{\"type\":\"number\",\"minimum\":1e400}", "no number that can be written fits"},
      {"{\"const\":18446744073709551615,\"maximum\":18446744073709551614}", "none of the values of enum or const"},
      {"{\"type\":\"string\",\"minLength\":18446744073709551615}", "minLength is 18446744073709551615"},
      {"{\"type\":\"string\",\"minLength\":-1e400}", "minLength must be a whole number from 0"},
      {"{\"type\":\"array\",\"items\":1e400}", "items must be a schema"},
      {"{\"properties\":{\"a\":1e400},\"type\":\"object\"}", "a schema must be an object, true or false"},
      {"{\"type\":1e400}", "type must be"},
  };
  (void)state;
  CHECK(rows);
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    weft_grammar *g = NULL;
    weft_error error = {{0}};
    weft_status status = weft_grammar_compile(WEFT_GRAMMAR_JSON_SCHEMA, refused[i][0], strlen(refused[i][0]),
                                              world.trie, &g, NULL, &error);
    if (status == WEFT_OK || strstr(error.text, refused[i][1]) == NULL) fail_msg("%s: %s", refused[i][0], error.text);
  }
}

/* Classes by what Unicode says of characters, and looks at what stands before. */
static void classes_and_looks_behind(void **state) {
  static const schema_row rows[] = {
      {"{\"type\":\"string\",\"pattern\":\"^\\\\p{L}[\\\\p{Lu}\\\\p{Nd}_-]+$\"}",
       {"\"aB7\"", "\"\xC3\xA9\xC3\x89-\"", "\"\xCE\xB1\xD9\xA3\""},
       {"\"1B\"", "\"ab\"", "\"a\"", "\"\xE2\x82\xAC_\""}},
      {"{\"type\":\"string\",\"pattern\":\"^\\\\p{Script=Greek}\\\\p{gc=Uppercase_Letter}\\\\pN$\",\"maxLength\":9}",
       {"\"\xCE\xB1Z9\"", "\"\xCE\xA9\xCE\xA9\xC2\xBD\""},
       {"\"aZ9\"", "\"\xCE\xB1z9\"", "\"\xCE\xB1ZZ\""}},
      {"{\"type\":\"string\",\"pattern\":\"^[^\\\\p{L}]\\\\P{L}[\\\\P{L}x]$\"}",
       {"\"1-x\"", "\"  .\""},
       {"\"a-x\"", "\"1ax\"", "\"1-y\""}},
      {"{\"type\":\"object\",\"patternProperties\":{\"^\\\\p{Ll}+$\":{\"type\":\"null\"}},\"additionalProperties\":"
       "false}",
       {"{}", "{\"\xC3\xA9\":null}"},
       {"{\"A\":null}", "{\"a\":1}"}},
      {"{\"type\":\"string\",\"pattern\":\"(?<=x)y\"}", {"\"xy\"", "\"axyb\""}, {"\"y\"", "\"x y\""}},
      {"{\"type\":\"string\",\"pattern\":\"^[ab]+(?<!ab)$\"}", {"\"a\"", "\"abb\"", "\"aba\""}, {"\"ab\"", "\"aab\""}},
      {"{\"type\":\"string\",\"pattern\":\"(?<=^|,)b(?=,|$)\",\"maxLength\":4}",
       {"\"b\"", "\"a,b\"", "\"b,a\""},
       {"\"ab\"", "\"ba\"", "\"a,bc\""}},
      {"{\"type\":\"string\",\"pattern\":\"^.*(?<=\\\\.)(jpg|png)$\"}",
       {"\"a.jpg\"", "\".png\""},
       {"\"ajpg\"", "\"a.jpgx\""}},
      {"{\"type\":\"string\",\"not\":{\"pattern\":\"(?<!a)b\"},\"maxLength\":2}",
       {"\"ab\"", "\"a\""},
       {"\"b\"", "\"bb\""}},
  };
  static const char *const refused[][2] = {
      {"{\"pattern\":\"\\\\p{Foo}\"}", "there is no class \\p{Foo}"},
      {"{\"pattern\":\"\\\\p{L\"}", "there is no class"},
      {"{\"pattern\":\"(a)\\\\1\"}", "backward references are not supported"},
      {"{\"pattern\":\"(?<x>a)\\\\k<x>\"}", "backward references are not supported"},
      {"{\"pattern\":\"(?<=\\\\b)a\"}", "within (?<= and (?<! no assertion but ^"},
      {"{\"pattern\":\"(?=a(?<=a))a\"}", "not supported within (?="},
  };
  (void)state;
  CHECK(rows);
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    weft_grammar *g = NULL;
    weft_error error = {{0}};
    weft_status status = weft_grammar_compile(WEFT_GRAMMAR_JSON_SCHEMA, refused[i][0], strlen(refused[i][0]),
                                              world.trie, &g, NULL, &error);
    if (status == WEFT_OK || strstr(error.text, refused[i][1]) == NULL) fail_msg("%s: %s", refused[i][0], error.text);
  }
}

/* U+0000 in a constant, a name or a pattern is demanded as an escape; half of a pair is U+FFFD. */
static void zeros_are_escapes(void **state) {
  static const schema_row rows[] = {
      {"{\"const\":\"a\\u0000b\"}",
       {"\"a\\u0000b\""},
       {"\"a\xEF\xBF\xBD"
        "b\"",
        "\"ab\""}},
      {"{\"enum\":[\"\\u0000\",\"x\"],\"minLength\":1,\"pattern\":\"^[^x]$\"}", {"\"\\u0000\""}, {"\"x\"", "\"\""}},
      {"{\"type\":\"object\",\"properties\":{\"a\\u0000\":{\"enum\":[{\"\\u0000\":[\"\\u0000\"]}]}},\"required\":["
       "\"a\\u0000\"],"
       "\"additionalProperties\":{\"type\":\"null\"}}",
       {"{\"a\\u0000\":{\"\\u0000\":[\"\\u0000\"]}}"},
       {"{}", "{\"a\":{}}"}},
      {"{\"type\":\"string\",\"pattern\":\"^\\u0000\\\\u0000$\"}", {"\"\\u0000\\u0000\""}, {"\"\""}},
      {"{\"type\":\"string\",\"maxLength\":1,\"not\":{\"const\":\"\\u0000\"},\"pattern\":\"^\\u0000?$\"}",
       {"\"\""},
       {"\"\\u0000\""}},
      {"{\"const\":\"\\ud800\"}", {"\"\xEF\xBF\xBD\""}, {"\"\\ud800\""}},
  };
  (void)state;
  CHECK(rows);
}

static void objects_fit_all_that_is_said_of_them(void **state) {
  static const schema_row rows[] = {
      {"{\"propertyNames\":{\"pattern\":\"^[a-c]{1,2}$\"},\"additionalProperties\":{\"type\":\"null\"}}",
       {"{}", "{\"a\":null,\"bc\":null}"},
       {"{\"d\":null}", "{\"abc\":null}", "{\"a\":1}"}},
      {"{\"type\":\"object\",\"propertyNames\":{\"enum\":[\"x\",\"y\"]},\"properties\":{\"x\":{\"const\":1},\"z\":{"
       "\"const\":2}}}",
       {"{\"x\":1}", "{}"},
       {"{\"z\":2}"}},
      {"{\"patternProperties\":{\"^n_\":{\"type\":\"null\"},\"_b$\":{\"type\":[\"null\",\"boolean\"]}},"
       "\"additionalProperties\":false}",
       {"{\"n_a\":null,\"c_b\":true}", "{\"n_b\":null}", "{}"},
       {"{\"n_a\":true}", "{\"n_b\":true}", "{\"c\":null}"}},
      {"{\"properties\":{\"n_x\":{\"enum\":[1,null]}},\"patternProperties\":{\"^n_\":{\"type\":\"null\"}},"
       "\"additionalProperties\":"
       "{\"const\":0}}",
       {"{\"n_x\":null}", "{\"o\":0,\"n_y\":null}"},
       {"{\"n_x\":1}", "{\"n_y\":0}", "{\"o\":null}"}},
      {"{\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2},\"c\":{\"const\":3}},\"minProperties\":1,"
       "\"maxProperties\":2}",
       {"{\"a\":1}", "{\"b\":2,\"c\":3}"},
       {"{}", "{\"a\":1,\"b\":2,\"c\":3}"}},
      /* a name that comes twice is one property */
      {"{\"type\":\"object\",\"additionalProperties\":{\"const\":0},\"minProperties\":2}",
       {"{\"ab\":0,\"a\":0}"},
       {"{\"a\":0}", "{\"a\":0,\"a\":0}", "{\"ab\":0,\"ab\":0}", "{}"}},
      {"{\"type\":\"object\",\"properties\":{\"card\":{\"const\":1},\"to\":{\"const\":2}},\"dependentRequired\":{"
       "\"card\":[\"to\"]}}",
       {"{}", "{\"to\":2}", "{\"card\":1,\"to\":2}"},
       {"{\"card\":1}"}},
      {"{\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[\"p\",\"q\"]},\"v\":{}},\"required\":[\"k\",\"v\"],"
       "\"if\":{\"properties\":{\"k\":{\"const\":\"p\"}}},\"then\":{\"properties\":{\"v\":{\"type\":\"null\"}}},"
       "\"else\":{\"properties\":{\"v\":{\"type\":\"boolean\"}}}}",
       {"{\"k\":\"p\",\"v\":null}", "{\"k\":\"q\",\"v\":true}"},
       {"{\"k\":\"p\",\"v\":true}", "{\"k\":\"q\",\"v\":null}"}},
      {"{\"type\":\"object\",\"not\":{\"required\":[\"a\"]},\"additionalProperties\":{\"const\":0}}",
       {"{}", "{\"b\":0}"},
       {"{\"a\":0}"}},
      {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}},\"anyOf\":[{\"properties\":{\"b\":{\"const\":2}},"
       "\"required\":[\"b\"]},"
       "{\"properties\":{\"c\":{\"const\":3}},\"required\":[\"c\"]}],\"unevaluatedProperties\":false}",
       {"{\"a\":1,\"b\":2}", "{\"c\":3}"},
       {"{\"a\":1}", "{\"b\":2,\"d\":0}"}},
      /* what only a negation speaks of is not evaluated; cousins do not see one another */
      {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}},\"not\":{\"not\":{\"properties\":{\"b\":{\"const\":2}"
       "}}},"
       "\"unevaluatedProperties\":false}",
       {"{\"a\":1}", "{}"},
       {"{\"a\":1,\"b\":2}", "{\"b\":2}"}},
      {"{\"allOf\":[{\"properties\":{\"a\":true}},{\"unevaluatedProperties\":false}]}", {"{}"}, {"{\"a\":1}"}},
      /* a property that cannot be is left out, and null as a value of a keyword is one that is left out */
      {"{\"type\":\"object\",\"properties\":{\"a\":{\"allOf\":[{\"type\":\"null\"},{\"type\":\"string\"}]},\"b\":{"
       "\"const\":1}},"
       "\"additionalProperties\":null,\"required\":null,\"$comment\":\"kept\",\"x-order\":[1],\"whatever\":{\"type\":3}"
       "}",
       {"{}", "{\"b\":1}"},
       {"{\"a\":null}", "{\"b\":1,\"c\":1}"}},
      {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\",\"minimum\":2}]}", {"1", "2.5"}, {"3", "1.5"}},
      {"{\"const\":null}", {"null"}, {"1"}},
  };
  (void)state;
  CHECK(rows);
}

static void arrays_fit_all_that_is_said_of_them(void **state) {
  static const schema_row rows[] = {
      {"{\"type\":\"array\",\"items\":{\"enum\":[\"r\",\"w\",\"x\"]},\"uniqueItems\":true,\"minItems\":1}",
       {"[\"r\"]", "[\"r\",\"x\"]", "[\"r\",\"w\",\"x\"]"},
       {"[]", "[\"r\",\"r\"]", "[\"x\",\"x\"]"}},
      {"{\"type\":\"array\",\"items\":{\"enum\":[1,2,3]},\"uniqueItems\":true,\"minItems\":2,\"maxItems\":2}",
       {"[1,2]", "[2,3]"},
       {"[1]", "[1,2,3]", "[2,2]"}},
      {"{\"prefixItems\":[{\"type\":\"boolean\"},{\"type\":\"boolean\"}],\"items\":false,\"uniqueItems\":true}",
       {"[true,false]", "[false]", "[]"},
       {"[true,true]"}},
      {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"contains\":{\"const\":7},\"maxContains\":1}",
       {"[7]", "[7,1]"},
       {"[]", "[1]", "[7,7]", "[7,1,7]"}},
      {"{\"prefixItems\":[{\"type\":\"null\"},true],\"items\":false,\"contains\":{\"type\":\"string\"}}",
       {"[null,\"a\"]"},
       {"[null,1]", "[\"a\"]", "[null]"}},
      {"{\"prefixItems\":[{\"const\":1}],\"allOf\":[{\"prefixItems\":[true,{\"const\":2}]}],\"unevaluatedItems\":"
       "false}",
       {"[1,2]", "[1]", "[]"},
       {"[1,3]", "[1,2,3]"}},
      {"{\"type\":\"array\",\"not\":{\"items\":{\"type\":\"null\"}},\"maxItems\":2}",
       {"[1]", "[1,null]"},
       {"[null]", "[]"}},
      {"{\"items\":[{\"const\":1},{\"const\":2}],\"additionalItems\":{\"type\":\"null\"},\"minItems\":3}",
       {"[1,2,null]"},
       {"[1,2]", "[1,2,3]"}},
  };
  (void)state;
  CHECK(rows);
}

static void references_lead_where_identifiers_say(void **state) {
  static const schema_row rows[] = {
      {"{\"$id\":\"http://weft.example/a/"
       "root.json\",\"$ref\":\"part.json\",\"$defs\":{\"p\":{\"$id\":\"part.json\",\"$ref\":"
       "\"#/$defs/q\",\"$defs\":{\"q\":{\"const\":1}}},\"q\":{\"const\":2}}}",
       {"1"},
       {"2"}},
      {"{\"$ref\":\"#here\",\"$defs\":{\"x\":{\"$anchor\":\"here\",\"const\":3}}}", {"3"}, {"4"}},
      {"{\"$ref\":\"urn:weft:q\",\"$defs\":{\"x\":{\"$id\":\"urn:weft:q\",\"const\":3},\"y\":{\"enum\":[{\"$id\":\"urn:"
       "weft:q\"}]}}}",
       {"3"},
       {"4"}},
      {"{\"$id\":\"http://weft.example/"
       "r\",\"$dynamicAnchor\":\"n\",\"const\":1,\"$defs\":{\"l\":{\"$id\":\"l\",\"$dynamicAnchor\":"
       "\"n\",\"const\":2,\"$defs\":{\"u\":{\"$anchor\":\"u\",\"items\":{\"$dynamicRef\":\"#n\"}}}}}}",
       {"1"},
       {"2"}},
      {"{\"properties\":{\"next\":{\"$ref\":\"#\"},\"v\":{\"const\":0}},\"required\":[\"v\"],\"unevaluatedProperties\":"
       "false}",
       {"{\"v\":0}", "{\"next\":{\"v\":0},\"v\":0}"},
       {"{\"next\":{\"v\":0,\"w\":1},\"v\":0}"}},
  };
  (void)state;
  CHECK(rows);
}

/* Sets of texts by themselves: what two have, what one has and the other has not. */
static void automata_are_sets(void **state) {
  weft_error error;
  grammar_builder b = {.trie = world.trie, .error = &error};
  const char *const words[] = {"cat", "car", "dog"};
  (void)state;
  automaton short_ones = automaton_sized(&b, 0, 3), words_of = automaton_texts(&b, words, 3);
  automaton found = automaton_found(&b, "a", 1, REGEX_SURELY);
  automaton both = automaton_both(&b, &words_of, &found), others = automaton_without(&b, &short_ones, &both);
  assert_true(automaton_has(&b, &both, "cat", 3) && automaton_has(&b, &both, "car", 3));
  assert_false(automaton_has(&b, &both, "dog", 3) || automaton_has(&b, &both, "ca", 2));
  assert_true(automaton_has(&b, &others, "dog", 3) && automaton_has(&b, &others, "", 0));
  assert_false(automaton_has(&b, &others, "car", 3) || automaton_has(&b, &others, "dogs", 4));
  automaton none = automaton_both(&b, &others, &both);
  assert_true(automaton_is_empty(&none));
  automaton_close(&short_ones);
  automaton_close(&words_of);
  automaton_close(&found);
  automaton_close(&both);
  automaton_close(&others);
  automaton_close(&none);
  builder_close(&b);
}

/* What a tool that is not strict asks for and cannot be held is widened; of one that is strict it is refused. */
static void what_cannot_be_held_is_widened(void **state) {
  static const struct {
    const char *parameters, *in, *out;
  } rows[] = {
      {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"(x)\\\\1\"},\"b\":{\"const\":1}},"
       "\"required\":[\"a\",\"b\"]}",
       "{\"a\":\"any\",\"b\":1}", "{\"a\":\"any\",\"b\":2}"},
      {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"uniqueItems\":"
       "true}},"
       "\"required\":[\"a\"]}",
       "{\"a\":[\"x\",\"x\"]}", "{\"a\":[1]}"},
      {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"http://elsewhere.example/s\"}},\"required\":[\"a\"]}",
       "{\"a\":[1]}", "{\"b\":1}"},
      {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"text\",\"required\":true}},\"required\":[\"a\"]}",
       "{\"a\":\"x\"}", "{\"b\":1}"},
      {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"allOf\":[{\"type\":\"null\"}]}},\"required\":"
       "[\"a\"]}",
       "{\"a\":\"x\"}", "{\"a\":null}"},
      {"{\"type\":[],\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"]}", "{\"a\":1}", "{\"a\":2}"},
      {"{\"type\":\"text\"}", "{\"a\":[1]}", "[]"},
      {"{\"type\":\"string\",\"minLength\":\"3\"}", "{\"a\":[1]}", "\"abc\""},
      {"[\"no schema\"]", "{\"a\":[1]}", "1"},
      {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":[]},\"b\":{\"const\":1}},\"required\":[\"a\",\"b\"]}",
       "{\"a\":null,\"b\":1}", "{\"a\":null,\"b\":2}"},
      {"{\"type\":\"object\",\"properties\":{\"a\":{\"anyOf\":[]},\"b\":{\"const\":1}},\"required\":[\"a\",\"b\"]}",
       "{\"a\":null,\"b\":1}", "{\"a\":null,\"b\":2}"},
      {"{\"type\":\"object\",\"properties\":{\"a\":{\"allOf\":{}},\"b\":{\"const\":1}},\"required\":[\"a\",\"b\"]}",
       "{\"a\":null,\"b\":1}", "{\"a\":null,\"b\":2}"},
      {"{\"type\":\"object\",\"properties\":{\"a\":\"string\",\"b\":{\"const\":1}},\"required\":[\"a\",\"b\"]}",
       "{\"a\":null,\"b\":1}", "{\"a\":null,\"b\":2}"},
      {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"minLength\":1e400}},\"required\":[\"a\"]}",
       "{\"a\":\"\"}", "{\"a\":1}"},
      {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"object\",\"required\":[1]}},\"required\":[\"a\"]}",
       "{\"a\":{\"x\":1}}", "{\"a\":1}"},
      {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":7},\"b\":{\"type\":\"array\",\"contains\":true,"
       "\"minContains\":65}},\"required\":[\"a\",\"b\"]}",
       "{\"a\":null,\"b\":[]}", "{\"a\":null,\"b\":2}"},
      {"{\"$ref\":\"#\"}", "{\"a\":1}", "[]"},
      {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "{\"a\":1}", "[]"},
      {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":5,\"maximum\":1}},\"required\":["
       "\"a\"]}",
       "{\"a\":1}", "[]"},
      {"{\"type\":\"object\",\"maxProperties\":0,\"required\":[\"a\"]}", "{\"a\":1}", "[]"},
      {"{\"allOf\":[{\"$ref\":\"#/$defs/x\"}],\"$defs\":{\"x\":{\"allOf\":[{\"$ref\":\"#/$defs/x\"}]}}}", "{\"a\":1}",
       "[]"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    for (int strict = 0; strict < 2; strict++) {
      weft_grammar *g = NULL;
      weft_error error;
      weft_text text = {0};
      weft_text_printf(&text, "{\"form\":\"json\",\"tools\":[{\"name\":\"f\",\"parameters\":%s,\"strict\":%s}]}",
                       rows[i].parameters, strict ? "true" : "false");
      weft_status status = weft_grammar_compile(WEFT_GRAMMAR_CALLS, text.bytes, text.n, world.trie, &g, NULL, &error);
      weft_text_free(&text);
      if ((status == WEFT_OK) != (strict == 0)) fail_msg("%s, strict %d: %s", rows[i].parameters, strict, error.text);
      if (strict == 0) {
        weft_text_printf(&text, "{\"name\": \"f\", \"arguments\": %s}", rows[i].in);
        assert_true(takes(g, text.bytes));
        weft_text_clear(&text);
        weft_text_printf(&text, "{\"name\": \"f\", \"arguments\": %s}", rows[i].out);
        assert_false(takes(g, text.bytes));
      }
      weft_text_free(&text);
      weft_grammar_unref(g);
    }
  }
}

/* Whatever is written, compiling ends within its steps. */
static void what_is_too_large_ends(void **state) {
  weft_text text = {0};
  (void)state;
  const char *const parts[][3] = {
      {"{\"allOf\":[", "{\"anyOf\":[{\"minLength\":1},{\"maxLength\":9},{\"pattern\":\"a\"}]},", "{}]}"},
      {"{\"not\":{\"anyOf\":[", "{\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2}}},", "false]}}"},
      {"{\"pattern\":\"^", "(?=.*a.{9})(?!.*b.{7}$)", "x\"}"},
      {"{\"pattern\":\"^", "(a|b)*a(a|b){9}", "\",\"maxLength\":200}"},
      {"{\"type\":\"object\",\"patternProperties\":{", "\"a.{7}b\":{},\"c.{9}d\":{},",
       "\"x\":{}},\"additionalProperties\":true}"},
      {"{\"type\":\"array\",\"allOf\":[", "{\"contains\":{\"minimum\":1}},{\"contains\":{\"type\":\"string\"}},",
       "{}]}"}};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    weft_grammar *g = NULL;
    weft_error error;
    weft_grammar_work work = {0};
    weft_text_clear(&text);
    weft_text_puts(&text, parts[i][0]);
    for (int k = 0; k < 12; k++) weft_text_puts(&text, parts[i][1]);
    weft_text_puts(&text, parts[i][2]);
    (void)weft_grammar_compile(WEFT_GRAMMAR_JSON_SCHEMA, text.bytes, text.n, world.trie, &g, &work, &error);
    assert_true(work.n_steps <= 2ull * GRAMMAR_COST_MAX);
    weft_grammar_unref(g);
  }
  weft_text_free(&text);
}

static weft_status compile_once(void *self, weft_error *error) {
  weft_grammar *g = NULL;
  const char *text = self;
  weft_status status = weft_grammar_compile(WEFT_GRAMMAR_JSON_SCHEMA, text, strlen(text), world.trie, &g, NULL, error);
  weft_grammar_unref(g);
  return status;
}

/* Without memory compiling ends with one line, wherever it was refused. */
static void memory_may_be_refused(void **state) {
  static char schema[] =
      "{\"$id\":\"http://weft.example/s\",\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#x\"},"
      "\"n\":{\"type\":\"number\",\"minimum\":0.5,\"maximum\":0.75},\"l\":{\"items\":{\"enum\":[1,2]},\"uniqueItems\":"
      "true}},"
      "\"patternProperties\":{\"^p\":{\"pattern\":\"(?=.*b)^[ab]{2}$\",\"maxLength\":2}},\"minProperties\":2,"
      "\"$defs\":{\"x\":{\"$anchor\":\"x\",\"not\":{\"const\":\"no\"},\"type\":\"string\",\"maxLength\":3}}}";
  (void)state;
  assert_true(refuse_each(compile_once, schema, true) > 100);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(texts_fit_all_that_is_said_of_them),
      cmocka_unit_test(numbers_fit_all_that_is_said_of_them),
      cmocka_unit_test(numbers_have_any_size),
      cmocka_unit_test(zeros_are_escapes),
      cmocka_unit_test(classes_and_looks_behind),
      cmocka_unit_test(objects_fit_all_that_is_said_of_them),
      cmocka_unit_test(arrays_fit_all_that_is_said_of_them),
      cmocka_unit_test(references_lead_where_identifiers_say),
      cmocka_unit_test(automata_are_sets),
      cmocka_unit_test(what_cannot_be_held_is_widened),
      cmocka_unit_test(what_is_too_large_ends),
      cmocka_unit_test(memory_may_be_refused),
  };
  return cmocka_run_group_tests(tests, open_world, close_world);
}
