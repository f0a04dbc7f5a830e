/* SPDX-License-Identifier: MIT */
/* Names of files. */
#ifndef WEFT_BASE_PATH_H
#define WEFT_BASE_PATH_H

#ifdef __cplusplus
extern "C" {
#endif

/* The same file's name from the root, so that it is found again wherever the process works then. Links are not
 * followed: what they lead to when the file is opened counts. The caller frees it; NULL: no memory, or the working
 * folder is gone. */
char *weft_path_from_root(const char *path);

#ifdef __cplusplus
}
#endif
#endif
