/* SPDX-License-Identifier: MIT */
/* A server that starts again in the middle of a proof, as its profile says: `again` is "restart" or "take_over".
 *
 * Law: of a restart the first process answers all requests, ends, and the second one has what the first left. Of an
 * upgrade requests are asked without a pause from before the second process starts until it is ready: each must be
 * answered, by whichever of the two it meets, and the first one ends by itself with the code 0. The server is that of
 * the second process afterwards. */
#ifndef WEFT_BENCH_PROVE_AGAIN_H
#define WEFT_BENCH_PROVE_AGAIN_H

#include "bench/prove/answers.h"
#include "bench/prove/server.h"

/* Nothing where the profile does not say `again`, or the server has started again already. *meanwhile: the answers of
 * an upgrade's last round of requests, of which some came before the second process was ready; NULL: of a restart. */
prove_verdict prove_again(prove_server *server, const json_t *requests, const prove_limits *limits, uint64_t seconds,
                          json_t **meanwhile, prove_outcome *outcome);

#endif
