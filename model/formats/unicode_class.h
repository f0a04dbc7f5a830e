/* SPDX-License-Identifier: MIT */
/* Classes of characters by what Unicode says of them: \p{Letter}, \p{Script=Greek}, \p{White_Space}. Private to
 * model/formats.
 *
 * Law: what a class holds is what PCRE2 says, of the version of Unicode that it was built with. Characters that this
 * version has not assigned are in no class here, and perhaps in any, since other validators know other versions. */
#ifndef WEFT_MODEL_FORMATS_UNICODE_CLASS_H
#define WEFT_MODEL_FORMATS_UNICODE_CLASS_H

#include "model/formats/grammar_builder.h"

enum { UNICODE_NAME_MAX = 64, UNICODE_CLASSES_MAX = 64 };

typedef struct unicode_class {
  char name[UNICODE_NAME_MAX];
  uint32_t (*range)[2]; /* sorted; both ends included */
  uint32_t n;
} unicode_class;

/* Those that a grammar asked for: each is looked up once. */
typedef struct unicode_classes {
  unicode_class of[UNICODE_CLASSES_MAX];
  uint32_t n;
} unicode_classes;

void unicode_classes_close(unicode_classes *classes);
/* The class of a name as it stands between braces; the builder's. NULL: there is no such class, or the builder failed.
 * The name "Cn" is that of the characters that are not assigned. */
const unicode_class *unicode_class_of(grammar_builder *b, const char *name);

#endif
