/* x509: the parts of a certificate that every one has; for those that make some. */
#pragma once

#include <openssl/x509.h>

struct buf;
struct pd_err;

/* A certificate and its key; either may be NULL. */
struct pair {
    X509 *cert;
    EVP_PKEY *key;
};
void pair_done(struct pair *p);
#define auto_pair __attribute__((cleanup(pair_done))) struct pair

/* Takes the oldest error of this thread's queue and empties it. Returns -1. */
int x509_fail(struct pd_err *e, const char *what);
/* A certificate with a serial number, times from an hour ago on, the key's public half and a
 * subject; it lacks its issuer, its extensions and its signature. NULL: out of memory. */
X509 *x509_begin(EVP_PKEY *key, const char *organisation, const char *common, long days);
/* As openssl's configuration writes it. `issuer` may be `x` itself. 0 or -1. */
int x509_extend(X509 *x, X509 *issuer, int nid, const char *value);
/* The three of a server's certificate that follow from its issuer. 0 or -1. */
int x509_extend_leaf(X509 *x, X509 *issuer);
/* Appends the one that is not NULL, as PEM. 0 or -1. */
int x509_put_pem(struct buf *out, const X509 *cert, const EVP_PKEY *key);
