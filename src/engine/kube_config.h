/* kube_config: where a cluster is and how this server shows who it is: from a kubeconfig, or from
 * what a pod is given by its cluster. Pure.
 *
 * Taken are a token, a file with one, and a client certificate. A program that gets credentials
 * (exec, auth-provider), passwords, impersonation, and a server whose certificate is not looked at
 * are refused, each with its remedy. */
#pragma once

#include "base/buf.h"

struct pd_err;

#define KUBE_PATH_MAX  512u
#define KUBE_PEM_MAX   (256u << 10)
#define KUBE_TOKEN_MAX (16u << 10)

struct kube_config {
    char server[300];   /* "https://HOST[:PORT]", without a path */
    char path[120];     /* what stands before each path, "" or "/k8s/clusters/x" */
    char namespace[64]; /* "" when it names none */
    char proxy[300];    /* "" for none */
    char ca_file[KUBE_PATH_MAX], cert_file[KUBE_PATH_MAX], key_file[KUBE_PATH_MAX];
    char
        token_file[KUBE_PATH_MAX]; /* read again from time to time: it is replaced before it ends */
    struct buf ca, cert, key;      /* PEM, instead of a file; or empty */
    struct buf token;              /* instead of a file; or empty */
};
#define KUBE_CONFIG_INIT                                                                           \
    ((struct kube_config){.ca = BUF_INIT(KUBE_PEM_MAX),                                            \
                          .cert = BUF_INIT(KUBE_PEM_MAX),                                          \
                          .key = BUF_INIT(KUBE_PEM_MAX),                                           \
                          .token = BUF_INIT(KUBE_TOKEN_MAX)})
/* Overwrites what is secret. */
void kube_config_done(struct kube_config *c);

/* Reads a kubeconfig. `context` "" is its current one; `dir` is its directory, below which relative
 * files are. PD_INVALID or PD_UNSUPPORTED, without any of its secrets. */
int kube_config_read(const char *text, size_t len, const char *context, const char *dir,
                     struct kube_config *ret, struct pd_err *e);
/* The place of a pod's own cluster: `host` and `port` are its variables KUBERNETES_SERVICE_*, `dir`
 * is where its service account's files are. */
int kube_config_in_cluster(const char *host, const char *port, const char *dir,
                           struct kube_config *ret, struct pd_err *e);
/* Is it a token that may stand in a header? */
int kube_check_token(const void *text, size_t len, struct pd_err *e);
/* Is it a name of a namespace (a DNS label)? */
int kube_check_namespace(const char *name, struct pd_err *e);
