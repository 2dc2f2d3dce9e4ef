/* kube_client: calls of the API of Kubernetes, each blocking with a deadline, and an exec in a pod
 * as a stream of bytes. */
#pragma once

#include "base/buf.h"
#include "base/clock.h"
#include "engine/http.h"
#include "engine/kube_config.h"

struct broker_config;
struct byte_stream;
struct pd_err;

#define KUBE_ANSWER_MAX (4u << 20)

struct kube {
    struct kube_config at;
    struct http *http;
    char namespace[64];
    struct buf header; /* "Authorization: Bearer ..."; or empty */
    deadline token_until;
    bool (*is_wanted)(void *context); /* or NULL */
    void *context;
};

/* Where the cluster is: the file of `kubernetes_config`, else KUBECONFIG, else the pod that this
 * runs in, else ~/.kube/config. Makes no call. */
int kube_open(struct kube *k, const struct broker_config *c, struct pd_err *e);
void kube_close(struct kube *k);

struct kube_call {
    const char *method;
    struct buf target, in, out; /* `target` behind the cluster's own path */
    const char *type;           /* of what is sent; NULL: application/json */
    deadline deadline;
    int status;
};
#define KUBE_CALL(m, t)                                                                            \
    ((struct kube_call){.method = (m),                                                             \
                        .target = BUF_INIT(8192),                                                  \
                        .in = BUF_INIT(65536),                                                     \
                        .out = BUF_INIT(KUBE_ANSWER_MAX),                                          \
                        .deadline = (t)})
void kube_call_done(struct kube_call *c);
#define auto_kube_call __attribute__((cleanup(kube_call_done))) struct kube_call

/* 0 when an answer came, whatever its status. */
int kube_ask(struct kube *k, struct kube_call *c, struct pd_err *e);
/* Fills *e from an answer that is none of those hoped for. Always -1. */
int kube_refused(const struct kube_call *c, const char *what, struct pd_err *e);

/* Runs `words` (up to a NULL) in a pod's container; what the stream carries is its standard input
 * and output. NULL, and in *ret_status what the cluster answered instead, 0 when nothing. */
struct byte_stream *kube_exec(struct kube *k, const char *pod, const char *container,
                              const char *const *words, deadline t, int *ret_status,
                              struct pd_err *e);
