/* SPDX-License-Identifier: MIT */
#include "api/server/origins.h"

#include <string.h>
#include <strings.h>

static const char host_letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._";

/* ---- hosts ---- */

/* The host of HOST[:PORT], without its port and the dot of a root. */
static size_t host_bytes(const char *host) {
  const char *end = host[0] == '[' ? strchr(host, ']') : NULL;
  size_t n = end != NULL ? (size_t)(end - host) + 1 : strcspn(host, ":");
  return n > 1 && host[n - 1] == '.' ? n - 1 : n;
}

bool origins_same_host(const char *a, const char *b) {
  size_t n = host_bytes(a);
  return host_bytes(b) == n && strncasecmp(a, b, n) == 0;
}

const char *origins_host(const char *origin) {
  const char *at = strstr(origin, "://");
  return at == NULL ? "" : at + 3;
}

/* One label without a dot, as containers call each other. No site of the web has such a name: those of two letters are
 * the countries', whose owners might, and what is made of digits is an address. */
static bool is_label(const char *host, size_t n) {
  bool digits = strspn(host, "0123456789") >= n || strncasecmp(host, "0x", 2) == 0;
  return n > 2 && memchr(host, '.', n) == NULL && !digits;
}

bool origins_host_is_local(const char *host) {
  /* RFC 6761, 6762, 7686, 8375 and 9476, and what ICANN keeps out of the root for private use */
  static const char *const suffixes[] = {"localhost", "local",   "internal", "test",    "home.arpa",
                                         "invalid",   "example", "onion",    "alt",     "lan",
                                         "home",      "corp",    "intranet", "private", "localdomain"};
  static const char *const addresses[] = {"[::1]", "[::]", "0.0.0.0"};
  size_t n = host_bytes(host);
  for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
    if (n == strlen(addresses[i]) && strncmp(host, addresses[i], n) == 0) return true;
  }
  if (n > 4 && strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.") >= n) return true;
  if (n == 0 || strspn(host, host_letters) < n) return false;
  if (is_label(host, n)) return true;
  for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
    size_t n_suffix = strlen(suffixes[i]);
    if (n < n_suffix || strncasecmp(host + n - n_suffix, suffixes[i], n_suffix) != 0) continue;
    if (n == n_suffix || host[n - n_suffix - 1] == '.') return true;
  }
  return false;
}

/* ---- patterns ---- */

/* Whether a host of n bytes is of a pattern's host. */
static bool fits_host(const char *pattern, size_t n_pattern, const char *host, size_t n) {
  if (n_pattern == 1 && pattern[0] == '*') return n > 0;
  if (n_pattern < 2 || strncmp(pattern, "*.", 2) != 0) return n == n_pattern && strncasecmp(pattern, host, n) == 0;
  size_t n_end = n_pattern - 1; /* with the dot */
  return n > n_end && strspn(host, host_letters) >= n && strncasecmp(host + n - n_end, pattern + 1, n_end) == 0;
}

bool origins_fit_host(const char *pattern, const char *host) {
  const char *of = origins_host(pattern);
  size_t n = host_bytes(of);
  bool any = n == 1 && of[0] == '*'; /* of an app's own scheme, whose hosts are none of the web */
  return !any && fits_host(of, n, host, host_bytes(host));
}

bool origins_fit(const char *pattern, const char *origin) {
  const char *of = origins_host(pattern), *host = origins_host(origin);
  size_t n_of = host_bytes(of), n = host_bytes(host);
  if (*host == 0 || of - pattern != host - origin || strncasecmp(pattern, origin, (size_t)(of - pattern)) != 0)
    return false;
  if (!fits_host(of, n_of, host, n)) return false;
  if (strcmp(of + n_of, ":*") == 0)
    return host[n] == 0 || (host[n] == ':' && strspn(host + n + 1, "0123456789") == strlen(host + n + 1));
  return strcasecmp(of + n_of, host + n) == 0;
}

weft_status origins_check(const char *pattern, weft_error *error) {
  const char *host = origins_host(pattern);
  size_t n = host_bytes(host), n_star = n >= 2 && strncmp(host, "*.", 2) == 0 ? 2 : 0;
  const char *port = host + n;
  bool web = strncasecmp(pattern, "http://", 7) == 0 || strncasecmp(pattern, "https://", 8) == 0;
  bool whole = n == 1 && host[0] == '*' && !web; /* an app's own scheme, in which hosts are not of the web */
  bool address = n > 2 && host[0] == '[' && strspn(host + 1, "0123456789abcdefABCDEF:.") == n - 2;
  bool fits = whole || address || (n > n_star && strspn(host + n_star, host_letters) >= n - n_star);
  if (*port == ':')
    fits = fits && (strcmp(port, ":*") == 0 || (port[1] != 0 && strspn(port + 1, "0123456789") == strlen(port + 1)));
  if (*port != 0 && *port != ':') fits = false;
  if (fits) return WEFT_OK;
  return weft_fail(
      error, WEFT_E_INVALID,
      "--allow-origin %s: an origin is SCHEME://HOST or SCHEME://HOST:PORT, where HOST may begin with *. and "
      "PORT may be *; all pages of all sites are not let in",
      pattern);
}
