/* SPDX-License-Identifier: MIT */
/* Prefixes that outlive their server: --keep.
 *
 * Law. The file behind the host memory is kept (model/kept_file.h), and its index is written at the end, when somebody
 * asks, and when the cache is dropped. Each replica has a file of its own. Prefixes are kept of the tenants that are
 * named, and public ones. After a start with the same models, types, layouts and numerics they are found again; a file
 * of others is refused, and nothing in it is changed. What comes up from the file is checked page by page, so a kill at
 * any moment costs prefixes and never an answer. A prefix is found by its tenant's name: a tenant that is not named any
 * more loses its own, and no other tenant finds them. */
#ifndef WEFT_API_KEEP_H
#define WEFT_API_KEEP_H

#include "api/weft.h"
#include "base/status.h"
#include "base/text.h"
#include "model/kept_file.h"

typedef struct weft_keep weft_keep;

/* Judges the options, opens the files and reads what they have. After the pool was planned, before stores are opened;
 * does nothing without --keep. */
weft_status keep_open(weft_runtime *runtime, const weft_open_options *options, weft_error *error);
/* The file of a replica; NULL: there is none. */
weft_kept_file *keep_file(const weft_keep *keep, uint32_t replica);
/* Takes what was read into the caches. After the engines were opened and tenants have names, before they are started.
 */
weft_status keep_take(weft_runtime *runtime, weft_error *error);
/* The cache was dropped: a start finds nothing of it. */
void keep_forget(weft_runtime *runtime);
/* Saves as at the end, and lets go of the files for another process; this one goes on without them. IO with a line. */
weft_status keep_let_go(weft_runtime *runtime, weft_error *error);
/* The end: what is cached goes down to the files, and their indexes are written. The engines have no thread any more.
 */
void keep_finish(weft_runtime *runtime);
void keep_close(weft_keep *keep); /* NULL is fine; after the stores */
/* The plan's line. */
void keep_print(const weft_runtime *runtime, weft_text *out);

#endif
