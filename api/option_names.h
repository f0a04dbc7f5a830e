/* SPDX-License-Identifier: MIT */
/* What a name that is no option probably meant: an option that has another name now, an option of another server, or a
 * slip of the hand. Commands of other servers, too.
 *
 * Law: whoever types the option or command of a server that they know gets ours in one line; every option named there
 * exists. */
#ifndef WEFT_API_OPTION_NAMES_H
#define WEFT_API_OPTION_NAMES_H

#include <stddef.h>

#include "base/status.h"

/* What the option is called now; NULL: it was never an option. name[0 .. n) is without dashes before it. */
const char *weft_option_retired(const char *name, size_t n);
/* The index-th name that was an option; NULL: there are no more. */
const char *weft_option_retired_at(size_t index);
/* What another server's option is here, in words that follow `here`; NULL: none has it. *servers: whose it is. */
const char *weft_option_foreign(const char *name, size_t n, const char **servers);
/* The same for a name of several letters behind one dash, as -ngl. */
const char *weft_option_foreign_short(const char *name, const char **servers);
/* The index-th server whose options are known; NULL: there are no more. */
const char *weft_option_server_at(size_t index);
/* The index-th row of the table of other servers' options; NULL: there are no more. *here: as above. */
const char *weft_option_foreign_at(size_t index, const char **here);
/* The index-th command of another server that is none of ours; NULL: there are no more. *servers: whose it is;
 * *here: what it is here, in words that follow `here it is`. */
const char *weft_command_foreign_at(size_t index, const char **servers, const char **here);
/* Fails with one line: name[0 .. n) is no option, and what was meant. nearest: the option of the command that is
 * nearest to the name; NULL: none is near. where: words before the line, as the place in a file; given: the word
 * as it was written. */
weft_status weft_option_unknown(const char *nearest, const char *where, const char *given, const char *name, size_t n,
                                weft_error *error);

#endif
