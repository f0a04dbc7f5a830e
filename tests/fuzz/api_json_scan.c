/* SPDX-License-Identifier: MIT */
/* Any bytes before the JSON parser: of what the parser takes the scan counts exactly what the parser made, as long as no
 * name comes twice in an object; and whatever the limits are, it refuses if and only if a count is beyond one. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/json_scan.h"
#include "tests/support/fuzz_require.h"

static const weft_json_size no_limits = {UINT32_MAX, UINT32_MAX, UINT32_MAX};

static void count_tree(const json_t *value, uint32_t depth, weft_json_size *size) {
  size_t i;
  const char *name;
  json_t *item;
  if (json_is_array(value) || json_is_object(value)) {
    size->values += 1;
    depth += 1;
    if (depth > size->depth) size->depth = depth;
    json_array_foreach((json_t *)(uintptr_t)value, i, item) count_tree(item, depth, size);
    json_object_foreach((json_t *)(uintptr_t)value, name, item) {
      size->values += 1;
      count_tree(item, depth, size);
    }
  } else if (json_is_string(value)) {
    size->values += 1;
  } else {
    size->scalars += 1;
  }
}

static void check_limits(const char *bytes, size_t n, const weft_json_size *whole, const weft_json_size *limits) {
  weft_json_size size;
  size_t at = n;
  const char *what = NULL;
  bool fits = weft_json_scan(bytes, n, limits, &size, &at, &what);
  bool small = whole->depth <= limits->depth && whole->values <= limits->values && whole->scalars <= limits->scalars;
  REQUIRE(fits == small);
  REQUIRE(fits || (what != NULL && at < n));
  REQUIRE(size.depth <= whole->depth && size.values <= whole->values && size.scalars <= whole->scalars);
  if (!fits) REQUIRE(size.values <= limits->values + 1 && size.scalars <= limits->scalars + 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  const char *bytes = (const char *)data, *what = NULL;
  weft_json_size whole, tree = {0};
  size_t at;
  REQUIRE(weft_json_scan(bytes, n, &no_limits, &whole, &at, &what));
  json_t *root = n == 0 ? NULL : json_loadb(bytes, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL);
  if (root != NULL) {
    count_tree(root, 0, &tree);
    REQUIRE(tree.depth == whole.depth && tree.values == whole.values && tree.scalars == whole.scalars);
    json_decref(root);
  }
  for (uint32_t k = 0; k < 4; k++) {
    const weft_json_size limits = {whole.depth - (k == 1 && whole.depth > 0),
                                   whole.values - (k == 2 && whole.values > 0),
                                   whole.scalars - (k == 3 && whole.scalars > 0)};
    check_limits(bytes, n, &whole, &limits);
  }
  const weft_json_size honest = weft_json_limits(8192);
  check_limits(bytes, n, &whole, &honest);
  return 0;
}
