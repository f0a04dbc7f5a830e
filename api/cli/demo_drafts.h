/* SPDX-License-Identifier: MIT */
/* The drafts of `weft demo`: answers token by token, of which a canvas of the same model guesses the next tokens.
 *
 * Law: each question is answered without drafts and then with as many as there are, whether they gain on this machine
 * or not; the answers must be the same bytes, and guesses must have been right. */
#ifndef WEFT_API_CLI_DEMO_DRAFTS_H
#define WEFT_API_CLI_DEMO_DRAFTS_H

/* Opens the file, which can do both kinds. 0, or an exit code after one line. */
int weft_demo_drafts(const char *file);

#endif
