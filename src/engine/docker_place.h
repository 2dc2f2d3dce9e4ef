/* docker_place: where an engine is, from the words of the settings and of docker's own variables.
 * Pure.
 *
 *   unix://PATH       on this machine
 *   tcp://HOST:PORT   elsewhere, by TLS with a client certificate: ca.pem, cert.pem and key.pem in
 *                     docker_cert_path (DOCKER_CERT_PATH; with DOCKER_TLS_VERIFY alone: ~/.docker).
 *                     Without certificates only on loopback: whoever reaches an engine's port is
 *                     root of its machine
 *   https://HOST      elsewhere; without a certificate of ours the system's authorities count
 *
 * The engine's certificate is always verified. */
#pragma once

#include <stdbool.h>

struct pd_err;

#define DOCKER_PATH_MAX 512u

struct docker_place {
    char socket[DOCKER_PATH_MAX]; /* "" when it is not on this machine */
    char base[288];               /* of its URLs; "" with a socket */
    char ca[DOCKER_PATH_MAX], cert[DOCKER_PATH_MAX], key[DOCKER_PATH_MAX]; /* or "" */
};

/* What docker_place_read is told: NULL or "" is what is not given. */
struct docker_words {
    const char *host;       /* of the engine */
    const char *cert_path;  /* directory of the certificates */
    const char *tls_verify; /* DOCKER_TLS_VERIFY */
    const char *home;
};

/* PD_INVALID names the value and the remedy. */
int docker_place_read(const struct docker_words *w, struct docker_place *ret, struct pd_err *e);
/* Not on this machine: it sees none of our directories. */
bool docker_place_is_far(const struct docker_place *p);
