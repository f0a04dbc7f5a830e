/* SPDX-License-Identifier: MIT */
/* The server that comes after this one: the same command line, started again.
 *
 * Law. What is started is the file that the command line names, as it is now: an upgrade replaces it first. It begins
 * in the folder in which this process began, with its environment and its standard streams. */
#ifndef WEFT_API_CLI_SUCCESSOR_H
#define WEFT_API_CLI_SUCCESSOR_H

#include "base/status.h"

typedef struct successor successor;

/* Remembers how this process was started. Before it goes to another folder. IO, NO_MEMORY, each with a line. */
weft_status successor_open(successor **out, weft_error *error);
void successor_close(successor *s); /* NULL is fine */
/* Starts it. *pid: its process; what becomes of it is not waited for. IO with a line. */
weft_status successor_start(const successor *s, int *pid, weft_error *error);

#endif
