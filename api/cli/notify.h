/* SPDX-License-Identifier: MIT */
/* What the service manager is told: that the server is ready, reads its files again, or ends.
 *
 * Law: nothing is told where no manager waits (NOTIFY_SOCKET of sd_notify(3) is not set), and a manager that does not
 * listen delays nothing. The protocol is one datagram of lines to a unix socket, so no library is linked for it. */
#ifndef WEFT_API_CLI_NOTIFY_H
#define WEFT_API_CLI_NOTIFY_H

#include "base/status.h"

/* lines: NAME=VALUE, with line feeds between them. WEFT_AGAIN: nobody waits. Errors: INVALID (NOTIFY_SOCKET is no
 * address of a unix socket), IO. */
weft_status notify_send(const char *lines);
/* RELOADING=1 with the time that a manager of Type=notify-reload wants beside it. */
weft_status notify_reloading(void);

#endif
