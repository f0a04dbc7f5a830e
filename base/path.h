/* SPDX-License-Identifier: MIT */
/* Names of files.
 *
 * Law: a name is changed as text alone; no file is opened. */
#ifndef WEFT_BASE_PATH_H
#define WEFT_BASE_PATH_H

#ifdef __cplusplus
extern "C" {
#endif

/* The absolute name of the file, so that the file is found again after the process changed its working folder. Symbolic
 * links are not resolved: where a link leads is decided when the file is opened. The caller frees the name; NULL: no
 * memory, or the working folder no longer exists. */
char *weft_path_from_root(const char *path);

#ifdef __cplusplus
}
#endif
#endif
