/* sigv4: AWS Signature Version 4, the form with headers. Pure.
 *
 * The signature covers method, path, query, the Host line, the given headers and the body. Service
 * "s3" has rules of its own: its paths are signed as they are sent, and the digest of the body is a
 * header. */
#pragma once

#include "base/buf.h"

#include <stdbool.h>
#include <time.h>

struct pd_err;

#define AWS_ID_MAX     128u
#define AWS_SECRET_MAX 256u
#define AWS_TOKEN_MAX  8192u

/* Credentials. token "" for those that last; expires 0 likewise. */
struct aws_keys {
    char id[AWS_ID_MAX + 1];
    char secret[AWS_SECRET_MAX + 1];
    char token[AWS_TOKEN_MAX + 1];
    time_t expires;
};

struct sigv4_request {
    const char *region, *service; /* "eu-west-1", "ecs" */
    const char *method;
    const char *host;           /* as the Host line has it: with the port unless that is usual */
    const char *target;         /* path and query as they are sent */
    const char *const *headers; /* "Name: value", up to a NULL: signed as well; or NULL */
    const void *body;
    size_t body_len;
    time_t now;
};

/* Lines that go with the request, beside the headers that it has. "" where there is none. */
struct sigv4_lines {
    char date[40];
    char digest[96]; /* s3 only */
    struct buf token, authorization;
};
#define SIGV4_LINES_INIT                                                                           \
    ((struct sigv4_lines){.token = BUF_INIT(AWS_TOKEN_MAX + 64), .authorization = BUF_INIT(4096)})

/* -1, PD_INVALID: a header without a name, too many headers, or a target that is none. */
int sigv4_sign(const struct aws_keys *keys, const struct sigv4_request *r, struct sigv4_lines *ret,
               struct pd_err *e);
/* Overwrites what it held. Fine on SIGV4_LINES_INIT. */
void sigv4_lines_done(struct sigv4_lines *l);

/* Steps of it, for tests: what is hashed, and names of the headers in it ("host;x-amz-date"). */
int sigv4_canonical(const struct aws_keys *keys, const struct sigv4_request *r, struct buf *out,
                    struct buf *names, struct pd_err *e);
