/* SPDX-License-Identifier: MIT */
#include "api/http/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"

enum {
  PIECE_BYTES = SSL3_RT_MAX_PLAIN_LENGTH, /* of one record */
  KEY_UPDATES_MAX = 64                    /* that a peer may send in a session; a client needs one in 2^24 records */
};

struct tls_identity {
  SSL_CTX *context;
};

struct tls_session {
  SSL *ssl;
  const char *from; /* what came and is not used up; only during tls_take */
  size_t n_from;
  weft_text *to; /* what is to be sent; only during a call */
  uint32_t n_key_updates;
};

/* ---- the bytes of a session ---- */

static int read_bytes(BIO *bio, char *out, int n) {
  tls_session *s = BIO_get_data(bio);
  BIO_clear_retry_flags(bio);
  if (s->n_from == 0) {
    BIO_set_retry_read(bio);
    return -1;
  }
  if ((size_t)n > s->n_from) n = (int)s->n_from;
  memcpy(out, s->from, (size_t)n);
  s->from += n;
  s->n_from -= (size_t)n;
  return n;
}

static int write_bytes(BIO *bio, const char *bytes, int n) {
  tls_session *s = BIO_get_data(bio);
  BIO_clear_retry_flags(bio);
  if (s->to == NULL) return -1;
  weft_text_append(s->to, bytes, (size_t)n);
  return weft_text_status(s->to) == WEFT_OK ? n : -1;
}

static long control_bytes(BIO *bio, int command, long number, void *pointer) {
  (void)bio;
  (void)number;
  (void)pointer;
  return command == BIO_CTRL_FLUSH; /* they are where they belong */
}

/* OpenSSL's word for these functions: one for the process, since sessions outlive identities. */
static BIO_METHOD *method;

static void make_method(void) {
  method = BIO_meth_new(BIO_TYPE_SOURCE_SINK | BIO_get_new_index(), "weft");
  bool good = method != NULL && BIO_meth_set_read(method, read_bytes) == 1 &&
              BIO_meth_set_write(method, write_bytes) == 1 && BIO_meth_set_ctrl(method, control_bytes) == 1;
  if (good) return;
  BIO_meth_free(method);
  method = NULL;
}

/* ---- the server's certificate ---- */

static weft_status fail_file(weft_error *error, const char *option, const char *path, const char *what) {
  unsigned long first = ERR_peek_error();
  const char *reason = ERR_SYSTEM_ERROR(first) ? strerror(ERR_GET_REASON(first)) : ERR_reason_error_string(first);
  ERR_clear_error();
  if (ERR_SYSTEM_ERROR(first)) return weft_fail(error, WEFT_E_INVALID, "%s %s: %s", option, path, reason);
  return weft_fail(error, WEFT_E_INVALID, "%s %s: the file holds no %s in PEM that OpenSSL takes (%s)", option, path,
                   what, reason == NULL ? "no reason given" : reason);
}

/* OpenSSL asks for the password of a key here; there is no terminal to ask on, so it is refused. */
static int refuse_to_ask(char *out, int n, int writing, void *self) {
  (void)out;
  (void)n;
  (void)writing;
  *(bool *)self = true;
  return -1;
}

static weft_status load_key(SSL_CTX *context, const char *key, weft_error *error) {
  bool asked = false;
  SSL_CTX_set_default_passwd_cb(context, refuse_to_ask);
  SSL_CTX_set_default_passwd_cb_userdata(context, &asked);
  bool loaded = SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) == 1;
  SSL_CTX_set_default_passwd_cb_userdata(context, NULL);
  SSL_CTX_set_default_passwd_cb(context, NULL);
  bool foreign = loaded || ERR_GET_LIB(ERR_peek_error()) == ERR_LIB_X509; /* it was compared with the certificate */
  if (loaded && SSL_CTX_check_private_key(context) == 1) return WEFT_OK;
  if (!asked && !foreign) return fail_file(error, "--tls-key", key, "private key");
  ERR_clear_error();
  return weft_fail(error, WEFT_E_INVALID, "--tls-key %s: %s", key,
                   asked ? "the key is encrypted: store it without a password"
                         : "this key does not belong to the certificate of --tls-cert");
}

/* Of what the client offers: HTTP/1.1. One that offers only other protocols would not understand the answers. */
static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *n_out, const unsigned char *offered,
                           unsigned int n_offered, void *self) {
  static const unsigned char ours[] = "\x08http/1.1";
  (void)ssl;
  (void)self;
  unsigned char *found = NULL;
  if (SSL_select_next_proto(&found, n_out, ours, sizeof ours - 1, offered, n_offered) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = found;
  return SSL_TLSEXT_ERR_OK;
}

static weft_status fill_context(SSL_CTX *context, const char *certificate, const char *key, weft_error *error) {
  (void)SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION); /* known to every OpenSSL that this compiles with */
  (void)SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  (void)SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  (void)SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF); /* clients hold their tickets */
  SSL_CTX_set_alpn_select_cb(context, choose_protocol, NULL);
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(context, certificate) != 1) {
    return fail_file(error, "--tls-cert", certificate, "certificate");
  }
  return load_key(context, key, error);
}

weft_status tls_identity_open(const char *certificate, const char *key, tls_identity **out, weft_error *error) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, make_method); /* cannot fail with these arguments */
  *out = NULL;
  if (certificate == NULL || key == NULL) {
    return weft_fail(error, WEFT_E_INVALID, "a certificate and its key belong together: give --tls-cert and --tls-key");
  }
  tls_identity *identity = weft_alloc(1, sizeof *identity);
  if (identity != NULL) identity->context = SSL_CTX_new(TLS_server_method());
  weft_status status = identity == NULL || identity->context == NULL || method == NULL
                           ? weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the certificate")
                           : fill_context(identity->context, certificate, key, error);
  if (status == WEFT_OK) {
    *out = identity;
  } else {
    tls_identity_close(identity);
  }
  return status;
}

void tls_identity_close(tls_identity *identity) {
  if (identity == NULL) return;
  SSL_CTX_free(identity->context);
  weft_free(identity);
}

bool tls_identity_ends(const tls_identity *identity, int64_t *seconds, char *text, size_t n) {
  const X509 *certificate = SSL_CTX_get0_certificate(identity->context);
  const ASN1_TIME *end = certificate == NULL ? NULL : X509_get0_notAfter(certificate);
  struct tm day;
  int days, rest;
  if (end == NULL || ASN1_TIME_diff(&days, &rest, NULL, end) != 1 || ASN1_TIME_to_tm(end, &day) != 1) return false;
  *seconds = (int64_t)days * 86400 + rest;
  return strftime(text, n, "%Y-%m-%d %H:%M UTC", &day) > 0;
}

/* ---- one session ---- */

/* New keys cost the network thread far more than the bytes that ask for them: one peer too eager is read no further. */
static void count_key_updates(int is_ours, int version, int kind, const void *message, size_t n, SSL *ssl, void *self) {
  tls_session *s = self;
  (void)version;
  (void)ssl;
  if (is_ours != 0 || kind != SSL3_RT_HANDSHAKE || n == 0 || *(const uint8_t *)message != SSL3_MT_KEY_UPDATE) return;
  if (++s->n_key_updates > KEY_UPDATES_MAX) s->n_from = 0;
}

tls_session *tls_open(const tls_identity *identity) {
  tls_session *s = weft_alloc(1, sizeof *s);
  if (s == NULL) return NULL;
  BIO *bio = BIO_new(method);
  s->ssl = bio == NULL ? NULL : SSL_new(identity->context);
  if (s->ssl == NULL) {
    (void)BIO_free(bio); /* 1, or 0 for NULL */
    weft_free(s);
    return NULL;
  }
  BIO_set_data(bio, s);
  BIO_set_init(bio, 1);
  SSL_set_bio(s->ssl, bio, bio); /* takes it */
  SSL_set_accept_state(s->ssl);
  SSL_set_msg_callback(s->ssl, count_key_updates);
  SSL_set_msg_callback_arg(s->ssl, s);
  return s;
}

void tls_close(tls_session *s) {
  if (s == NULL) return;
  SSL_free(s->ssl);
  weft_free(s);
}

bool tls_is_ready(const tls_session *s) {
  return SSL_is_init_finished(s->ssl) == 1;
}

static tls_state explain_end(int code, const char **why) {
  unsigned long first = ERR_peek_error();
  const char *reason = ERR_reason_error_string(first);
  *why = reason == NULL ? "no reason given" : reason;
  ERR_clear_error();
  if (code == SSL_ERROR_WANT_READ) return TLS_GOES_ON;
  if (code == SSL_ERROR_ZERO_RETURN) return TLS_ENDED;
  bool http = ERR_GET_LIB(first) == ERR_LIB_SSL && ERR_GET_REASON(first) == SSL_R_HTTP_REQUEST;
  return http ? TLS_IS_HTTP : TLS_BROKEN;
}

tls_state tls_take(tls_session *s, const char *bytes, size_t n, weft_text *plain, weft_text *wire, const char **why) {
  char piece[PIECE_BYTES];
  int got;
  s->from = bytes;
  s->n_from = n;
  s->to = wire;
  ERR_clear_error();
  while ((got = SSL_read(s->ssl, piece, sizeof piece)) > 0) weft_text_append(plain, piece, (size_t)got);
  tls_state state = explain_end(SSL_get_error(s->ssl, got), why);
  s->n_from = 0;
  s->to = NULL;
  if (s->n_key_updates <= KEY_UPDATES_MAX) return state;
  *why = "too many key updates";
  return TLS_BROKEN;
}

bool tls_say(tls_session *s, const char *bytes, size_t n, weft_text *wire) {
  s->to = wire;
  ERR_clear_error();
  bool said = tls_is_ready(s);
  while (said && n > 0) {
    int piece = n < PIECE_BYTES ? (int)n : PIECE_BYTES;
    said = SSL_write(s->ssl, bytes, piece) == piece;
    bytes += piece;
    n -= (size_t)piece;
  }
  ERR_clear_error();
  s->to = NULL;
  return said;
}

void tls_end(tls_session *s, weft_text *wire) {
  if (!tls_is_ready(s)) return;
  s->to = wire;
  ERR_clear_error();
  (void)SSL_shutdown(s->ssl); /* what it cannot say the end of the connection does */
  ERR_clear_error();
  s->to = NULL;
}
