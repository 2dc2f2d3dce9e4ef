/* cert: certificates for development.
 *
 * A directory has four files: ca.pem and ca.key, the certificate authority that clients are told to
 * trust; cert.pem and key.pem, what it says that this server is. The authority is made once and the
 * certificate as often as wanted. Whoever has ca.key can be any server for those who trust ca.pem:
 * keys are readable by their owner alone. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pd_err;

#define CERT_NAMES_MAX    64
#define CERT_NAME_MAX     253
#define CERT_DAYS_MAX     825 /* what clients accept of an authority that the user added */
#define CERT_DAYS_DEFAULT 365
#define CERT_PATH_SIZE    4096

/* The names that a certificate is for: host names in lower case, `*.` and such a name, or numeric
 * addresses. No name is there twice. */
struct cert_names {
    char items[CERT_NAMES_MAX][CERT_NAME_MAX + 1];
    unsigned count;
};
/* Adds a name; `what` is how the user knows it ("--name"). */
int cert_names_add(struct cert_names *n, const char *what, const char *name, struct pd_err *e);

struct cert_request {
    const char *dir; /* is there */
    const struct cert_names *names;
    unsigned days; /* 1 to CERT_DAYS_MAX */
    bool force;    /* replaces files that were not made here, too */
};

struct cert_result {
    bool made_ca; /* there was none before */
    char ca[CERT_PATH_SIZE], cert[CERT_PATH_SIZE], key[CERT_PATH_SIZE];
    char until[40]; /* YYYY-MM-DD: the certificate's end, or its authority's if that is sooner */
};

/* Makes what is missing, and the certificate anew. Files appear whole or not at all. PD_CONFLICT
 * for a file that is in the way: one that this authority did not sign. */
int cert_make(const struct cert_request *r, struct cert_result *ret, struct pd_err *e);
