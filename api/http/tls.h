/* SPDX-License-Identifier: MIT */
/* TLS (OpenSSL): the server's certificate, and one connection's session over bytes that another file moves
 * (http_wire.c).
 *
 * Law: a session touches no socket. It is given the bytes that came from the peer and uses all of them up at once;
 * bytes that have to go out are appended to a text. So it never waits, no call takes longer than the bytes it was
 * given allow, and a session remembers of the peer's bytes no more than one record (16 KiB).
 *
 * TLS 1.2 and 1.3, no renegotiation, no compression, ALPN http/1.1. A session that ends without the peer's word (a cut
 * connection) is not the same as one that the peer ended.
 *
 * Threads: a session belongs to one thread; an identity may be used by all. */
#ifndef WEFT_API_HTTP_TLS_H
#define WEFT_API_HTTP_TLS_H

#include "base/status.h"
#include "base/text.h"

typedef struct tls_identity tls_identity; /* a certificate with its chain, and its key */
typedef struct tls_session tls_session;

typedef enum tls_state {
  TLS_GOES_ON,
  TLS_ENDED, /* the peer said that nothing more comes */
  TLS_BROKEN,
  TLS_IS_HTTP /* the peer's first bytes are a request in plain HTTP */
} tls_state;

/* Files in PEM. The refusal is one line that names the option; one without the other (NULL) is refused, too. */
weft_status tls_identity_open(const char *certificate, const char *key, tls_identity **out, weft_error *error);
void tls_identity_close(tls_identity *identity); /* sessions that began with it go on; NULL is fine */

/* Until when the certificate holds: seconds from now (negative: it is over), and as text for people. False: it does not
 * say. */
bool tls_identity_ends(const tls_identity *identity, int64_t *seconds, char *text, size_t n);

/* Opens a session on the server's side. NULL: no memory. */
tls_session *tls_open(const tls_identity *identity);
void tls_close(tls_session *session); /* NULL is fine */
/* The handshake is over. */
bool tls_is_ready(const tls_session *session);
/* Uses up n bytes that came from the peer. Plain bytes are appended to plain, bytes to be sent in reply to wire. *why:
 * where the session is broken, static words. */
tls_state tls_take(tls_session *session, const char *bytes, size_t n, weft_text *plain, weft_text *wire,
                   const char **why);
/* Encrypts n plain bytes and appends them to wire. False: there is no memory, or the session is not ready or is
 * broken. */
bool tls_say(tls_session *session, const char *bytes, size_t n, weft_text *wire);
/* Appends to wire the message that nothing more comes. */
void tls_end(tls_session *session, weft_text *wire);

#endif
