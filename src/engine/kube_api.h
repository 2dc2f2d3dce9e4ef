/* kube_api: what is said to the API of Kubernetes, and what its answers mean. Pure: no calls are
 * made here.
 *
 * The body of a pod is this file's template and nothing else: who asks for a sandbox names an image
 * and limits, never volumes, capabilities or privilege. It keeps the rules of the pod security
 * standard `restricted`. */
#pragma once

#include "base/buf.h"
#include "engine/remote.h"

#include <stdbool.h>

struct pd_err;

#define KUBE_LABEL_INSTANCE "paddock.dev/instance"
#define KUBE_LABEL_BOX      "paddock.dev/name"
#define KUBE_LABEL_NETWORK  "paddock.dev/network"
#define KUBE_NOTE_BOX       "paddock.dev/box"
#define KUBE_NOTE_LINK      "paddock.dev/link"
#define KUBE_POLICY         "paddock-network-none"
#define KUBE_CONTAINER      "sandbox"
#define KUBE_BOX            "/.paddock/box"
#define KUBE_UID            1000u

/* How pods are made, from the settings. */
struct kube_style {
    const char *box_image; /* which has /paddock-box */
    const char *pull;      /* imagePullPolicy */
    const char *pull_secret, *runtime_class, *service_account, *node_selector; /* or "" */
    const char *arch;  /* of nodes that can run our paddock-box */
    uint64_t disk;     /* bytes that a sandbox may write; 0: the cluster's own limit */
    uint64_t max_life; /* s; 0: none */
};
/* `node_selector` is KEY=VALUE,KEY=VALUE. PD_INVALID names the pair that is none. */
int kube_check_selector(const char *text, struct pd_err *e);

void kube_pod_body(struct buf *out, const struct remote_plan *p, const struct kube_style *s);
/* Denies every pod with the label `network: none` all traffic, both ways. */
void kube_policy_body(struct buf *out);
void kube_delete_body(struct buf *out, unsigned grace_s);
/* Asks whether one may do this. `sub`: such as "exec", or "". */
void kube_review_body(struct buf *out, const char *namespace, const char *group,
                      const char *resource, const char *sub, const char *verb);
/* 1 or 0; -1 when the answer is none. */
int kube_read_review(const void *json, size_t len, struct pd_err *e);
int kube_read_version(const void *json, size_t len, char *out, size_t size, struct pd_err *e);

/* A pod, as the API tells of it. */
struct kube_pod {
    char name[64], box[REMOTE_BOX_MAX], link[40], instance[40];
    char phase[16];     /* Pending, Running, Succeeded, Failed, Unknown */
    bool running;       /* the sandbox's container is */
    bool over;          /* it has ended, or will not begin any more */
    bool deleting;      /* somebody has deleted it */
    bool unschedulable; /* no node takes it, for now */
    char waiting[48];   /* why its container, or the one before it, does not begin */
    char words[160];    /* the message to that, or to unschedulable */
    char why[160];      /* why it has ended, in words; "" */
};
int kube_read_pod(const void *json, size_t len, struct kube_pod *ret, struct pd_err *e);

/* A list of pods, and where its next piece begins ("" behind the last). */
#define KUBE_CONTINUE_MAX 2048u
typedef int kube_each(void *context, const struct kube_pod *p, struct pd_err *e);
int kube_read_list(const void *json, size_t len, kube_each *each, void *context,
                   char ret_next[KUBE_CONTINUE_MAX], struct pd_err *e);

/* Will a container that waits for this reason never begin? */
bool kube_wait_is_final(const char *waiting);

/* Fills *e from an answer with an error status: `what` was tried. Always -1. */
int kube_fail(int status, const void *body, size_t len, const char *what, struct pd_err *e);
