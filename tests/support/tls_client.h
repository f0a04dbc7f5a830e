/* SPDX-License-Identifier: MIT */
/* The other side of TLS: certificates made here, and a client that sends and reads through OpenSSL, and can break off
 * wherever a test wants. */
#ifndef WEFT_TESTS_TLS_CLIENT_H
#define WEFT_TESTS_TLS_CLIENT_H

#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

#include "tests/support/http_conversation.h"

typedef struct tls_files {
  char folder[32], cert[64], key[64];
} tls_files;

/* A certificate that signs itself, for a host of this name, with a key on the curve P-256. */
static inline void tls_files_write(tls_files *f, const char *host) {
  EVP_PKEY *key = EVP_EC_gen("P-256");
  X509 *cert = X509_new();
  X509_NAME *name = X509_get_subject_name(cert);
  assert_non_null(key);
  assert_int_equal(X509_set_version(cert, 2), 1);
  assert_int_equal(ASN1_INTEGER_set(X509_get_serialNumber(cert), 1), 1);
  assert_non_null(X509_gmtime_adj(X509_getm_notBefore(cert), -86400));
  assert_non_null(X509_gmtime_adj(X509_getm_notAfter(cert), 10 * 86400));
  assert_int_equal(X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)host, -1, -1, 0), 1);
  assert_int_equal(X509_set_issuer_name(cert, name), 1);
  assert_int_equal(X509_set_pubkey(cert, key), 1);
  assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
  FILE *file = fopen(f->cert, "w");
  assert_non_null(file);
  assert_int_equal(PEM_write_X509(file, cert), 1);
  assert_int_equal(fclose(file), 0);
  file = fopen(f->key, "w");
  assert_non_null(file);
  assert_int_equal(PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL), 1);
  assert_int_equal(fclose(file), 0);
  X509_free(cert);
  EVP_PKEY_free(key);
}

static inline void tls_files_make(tls_files *f, const char *host) {
  (void)snprintf(f->folder, sizeof f->folder, "/tmp/weft-tls-XXXXXX");
  assert_non_null(mkdtemp(f->folder));
  (void)snprintf(f->cert, sizeof f->cert, "%s/cert.pem", f->folder);
  (void)snprintf(f->key, sizeof f->key, "%s/key.pem", f->folder);
  tls_files_write(f, host);
}

static inline void tls_files_remove(tls_files *f) {
  (void)unlink(f->cert);
  (void)unlink(f->key);
  (void)rmdir(f->folder);
}

typedef struct tls_talk {
  int fd;
  SSL_CTX *context;
  SSL *ssl;
} tls_talk;

/* Over a socket that is connected, whose owner it becomes. version: TLS1_2_VERSION or TLS1_3_VERSION. The handshake is
 * not begun. */
static inline tls_talk tls_begin(int fd, int version) {
  tls_talk t = {.fd = fd, .context = SSL_CTX_new(TLS_client_method())};
  assert_non_null(t.context);
  assert_int_equal(SSL_CTX_set_min_proto_version(t.context, version), 1);
  assert_int_equal(SSL_CTX_set_max_proto_version(t.context, version), 1);
  SSL_CTX_set_verify(t.context, SSL_VERIFY_NONE, NULL);
  t.ssl = SSL_new(t.context);
  assert_int_equal(SSL_set_fd(t.ssl, t.fd), 1);
  SSL_set_connect_state(t.ssl);
  return t;
}

static inline tls_talk tls_dial(uint16_t port, int version) {
  return tls_begin(talk_dial(port), version);
}

static inline tls_talk tls_connect(uint16_t port, int version) {
  tls_talk t = tls_dial(port, version);
  assert_int_equal(SSL_do_handshake(t.ssl), 1);
  return t;
}

/* Closes the socket; what TLS has for a goodbye is left out. */
static inline void tls_hang_up(tls_talk *t) {
  SSL_free(t->ssl);
  SSL_CTX_free(t->context);
  (void)close(t->fd);
}

static inline void tls_send(tls_talk *t, const char *method, const char *path, const char *headers, const char *body,
                            size_t n) {
  weft_text whole = {0};
  weft_text_printf(&whole, "%s %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %zu\r\n\r\n", method, path, headers,
                   n);
  weft_text_append(&whole, body, n);
  for (size_t sent = 0; sent < whole.n;) {
    int piece = SSL_write(t->ssl, whole.bytes + sent, (int)(whole.n - sent));
    assert_true(piece > 0);
    sent += (size_t)piece;
  }
  weft_text_free(&whole);
}

/* Reads until words came or the server ended the session; true: they came. */
static inline bool tls_read_until(tls_talk *t, weft_text *got, const char *words) {
  char piece[16384];
  for (int n; got->n == 0 || strstr(got->bytes, words) == NULL; weft_text_append(got, piece, (size_t)n)) {
    n = SSL_read(t->ssl, piece, sizeof piece);
    if (n <= 0) return false;
  }
  return true;
}

#endif
