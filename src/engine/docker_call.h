/* docker_call: one request of docker's API below the version's prefix; what the files of the client
 * share. */
#pragma once

#include "base/buf.h"
#include "engine/docker_client.h"
#include "engine/http.h"

#define DOCKER_ANSWER_MAX (4u << 20)

struct docker_call {
    const char *method;
    struct buf target, in, out;
    const char *const *headers;
    http_take *take;
    bool (*is_wanted)(void *context);
    void *context;
    deadline deadline;
    int status;
};
#define DOCKER_CALL(m, t)                                                                          \
    ((struct docker_call){.method = (m),                                                           \
                          .target = BUF_INIT(8192),                                                \
                          .in = BUF_INIT(65536),                                                   \
                          .out = BUF_INIT(DOCKER_ANSWER_MAX),                                      \
                          .deadline = (t)})
void docker_call_done(struct docker_call *c);
#define auto_call __attribute__((cleanup(docker_call_done))) struct docker_call

/* 0 when an answer came, whatever its status. */
int docker_ask(struct docker *d, struct docker_call *c, struct pd_err *e);
/* Fills *e from an answer that is none of those hoped for: `what` was tried. Always -1. */
int docker_refused(const struct docker_call *c, const char *what, struct pd_err *e);

/* Puts paddock-box into a container that has not begun. */
int docker_put_box(struct docker *d, const char *name, const struct docker_far *f, deadline t,
                   struct pd_err *e);
