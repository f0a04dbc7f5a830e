/* SPDX-License-Identifier: MIT */
/* weft fields: what the server does with every field of every body, which is docs/fields.md. */
#include <stdio.h>

#include "api/cli/cli.h"
#include "api/dialects/field_tables.h"

static const char head[] =
    "# Fields of bodies\n\n"
    "What the server does with each field that it knows, for each kind of object in a body. `weft fields` prints this\n"
    "page; the tables are those by which bodies are read (`api/dialects/fields.h`).\n\n"
    "- **read**: the field does what it says.\n"
    "- **holds**: what the field asks for holds here anyway, or it asks for nothing.\n"
    "- **passed over**: nothing is done with it, and it changes nothing in the answer. It is named in the log the "
    "first\n"
    "  time that it comes, and is a 400 with `--strict-fields`.\n"
    "- **refused**: it would change the answer and is not done: a 400 that names it, unless its value asks for "
    "nothing.\n\n"
    "A field that a table does not have is passed over. `null` counts as left out.\n";

/* What is done with a field, in the words of the page. */
static const char *name_of_kind(field_kind kind) {
  switch (kind) {
    case FIELD_MET:
      return "holds";
    case FIELD_PASSED:
      return "passed over";
    case FIELD_REFUSED:
      return "refused";
    default:
      return "read";
  }
}

int weft_cli_fields(const weft_config *config) {
  (void)config;
  (void)fputs(head, stdout); /* a failure is seen by the flush in main */
  for (size_t i = 0; i < n_field_tables; i++) {
    const field_table *table = field_tables[i];
    (void)printf("\n## %s\n\n| field | what is done | what it is |\n|---|---|---|\n", table->where);
    for (size_t k = 0; k < table->n_rows; k++) {
      const field_row *row = &table->rows[k];
      (void)printf("| `%s` | %s | %s |\n", row->name, name_of_kind(row->kind), row->what);
    }
  }
  return 0;
}
