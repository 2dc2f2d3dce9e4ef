/* authority: the certificate authority of one sandbox, which its programs trust for the hosts that
 * it has secrets for, and for no other (docs/secrets.md).
 *
 * Everything follows from a seed, so nothing of it has to be kept: whoever has the seed can sign,
 * and the certificate that a sandbox has got stays good whoever made it. */
#pragma once

#include <stdint.h>

struct buf;
struct pd_err;

#define AUTHORITY_SEED_LEN  32
#define AUTHORITY_HOSTS_MAX 128u

/* Appends the authority's certificate, as PEM. It is limited to the hosts (critical name
 * constraints), whose names must be checked already. */
int authority_cert(const uint8_t seed[AUTHORITY_SEED_LEN], const char *const *hosts, unsigned count,
                   struct buf *pem, struct pd_err *e);
/* Appends a new key and the certificate for it that this authority signs for a host. */
int authority_leaf(const uint8_t seed[AUTHORITY_SEED_LEN], const char *host, struct buf *cert,
                   struct buf *key, struct pd_err *e);
