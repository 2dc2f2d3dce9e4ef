/* aws_client: signed calls of AWS's APIs, each blocking with a deadline.
 *
 * Every call that is made here is safe to repeat (a task has a token, a target a name), so one
 * whose answer got lost, or that was throttled, is made again, up to three times and within its
 * deadline. Errors have AWS's words and a remedy, and no credentials. */
#pragma once

#include "base/buf.h"
#include "base/clock.h"
#include "engine/aws_chain.h"
#include "engine/ecs_api.h"

#include <stdbool.h>

struct http;
struct pd_err;

enum aws_service { AWS_ECS, AWS_ELB, AWS_SERVICES };

struct aws_client {
    struct aws_chain chain;
    char region[64];
    struct {
        struct http *http;
        char base[280], host[256];
    } at[AWS_SERVICES];
    long skew;                        /* s that AWS's clock is before ours */
    bool (*is_wanted)(void *context); /* or NULL: a call that nobody wants any more ends */
    void *context;
};

/* `region` "" is what the environment or the profile says; `endpoint` "" what the environment says
 * (AWS_ENDPOINT_URL_ECS, AWS_ENDPOINT_URL_ELASTIC_LOAD_BALANCING_V2, AWS_ENDPOINT_URL), else AWS
 * itself. No call is made. PD_INVALID. */
int aws_open(struct aws_client *c, const char *region, const char *endpoint, struct pd_err *e);
/* Overwrites the credentials. Fine on one that was never opened. */
void aws_close(struct aws_client *c);

/* Calls `action` ("RunTask"; of AWS_ELB the body names it) and collects the answer in `out`, which
 * is the caller's. -1: *e has it as aws_fail tells it; `ret` (or NULL) is the refusal, with code ""
 * when there was no answer. `what` is for people: "start a task". */
int aws_call(struct aws_client *c, enum aws_service service, const char *action,
             const struct buf *body, struct buf *out, struct aws_refusal *ret, const char *what,
             deadline t, struct pd_err *e);

/* The host of a base "https://host:443", as the Host line has it. Pure. */
void aws_host_of(const char *base, char *ret, size_t size);
/* Seconds from `now` to what a Date line of an answer says, or 0 when it says nothing. Pure. */
long aws_skew_of(const char *date, time_t now);
