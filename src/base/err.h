/* err: why something failed, held by the caller.
 *
 * A function that can fail takes a `struct pd_err *` as its last parameter and writes it only on
 * failure. It returns 0/-1, a descriptor/-1 or a pointer/NULL. Nothing here allocates, so an error
 * can be reported when memory is gone. NULL is accepted everywhere: then nobody wants to know. */
#pragma once

#include "base/banned.h"

/* One row per code: name, HTTP status, Connect code, exit status of the command line, retryable. */
#define PD_CODES(X)                                                                                \
    X(PD_INTERNAL, "internal", 500, "internal", 125, 0)                                            \
    X(PD_INVALID, "invalid", 400, "invalid_argument", 2, 0)                                        \
    X(PD_NOT_FOUND, "not_found", 404, "not_found", 125, 0)                                         \
    X(PD_CONFLICT, "conflict", 409, "already_exists", 125, 0)                                      \
    X(PD_UNAUTHENTICATED, "unauthenticated", 401, "unauthenticated", 125, 0)                       \
    X(PD_METHOD, "method_not_allowed", 405, "unimplemented", 125, 0)                               \
    X(PD_TOO_LARGE, "too_large", 413, "resource_exhausted", 125, 0)                                \
    X(PD_RATE, "rate_limited", 429, "resource_exhausted", 125, 1)                                  \
    X(PD_POLICY, "policy", 403, "permission_denied", 125, 0)                                       \
    X(PD_PAUSED, "paused", 409, "failed_precondition", 125, 0)                                     \
    X(PD_SESSION_LOST, "session_lost", 410, "unavailable", 125, 1)                                 \
    X(PD_SESSION_EXPIRED, "session_expired", 410, "not_found", 125, 1)                             \
    X(PD_BAD_GATEWAY, "bad_gateway", 502, "unavailable", 125, 1)                                   \
    X(PD_SHUTTING_DOWN, "shutting_down", 503, "unavailable", 125, 1)                               \
    X(PD_DENIED, "denied", 403, "permission_denied", 125, 0)                                       \
    X(PD_UNSUPPORTED, "unsupported", 501, "unimplemented", 125, 0)                                 \
    X(PD_ISOLATION, "isolation", 409, "failed_precondition", 125, 0)                               \
    X(PD_CAPACITY, "capacity", 503, "resource_exhausted", 125, 1)                                  \
    X(PD_NO_SPACE, "no_space", 507, "resource_exhausted", 125, 0)                                  \
    X(PD_TIMEOUT, "timeout", 504, "deadline_exceeded", 124, 1)                                     \
    X(PD_LOST, "lost", 410, "unavailable", 125, 1)                                                 \
    X(PD_PROTOCOL, "protocol", 502, "internal", 125, 0)                                            \
    X(PD_NO_COMMAND, "no_command", 400, "not_found", 127, 0)                                       \
    X(PD_NOT_EXECUTABLE, "not_executable", 400, "failed_precondition", 126, 0)

enum pd_code {
#define X(code, ...) code,
    PD_CODES(X)
#undef X
        PD_CODE_COUNT
};

struct pd_err {
    enum pd_code code;
    int sys; /* errno of the failed call, or 0 */
    char msg[240];
};

/* Sets *e. All three return -1, so that `return pd_fail(e, ...)` reads well. */
int pd_fail(struct pd_err *e, enum pd_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Like pd_fail, for a failed system call: keeps errno, appends its text, derives the code. */
int pd_fail_sys(struct pd_err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Puts context in front of an error that is already set. */
int pd_wrap(struct pd_err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The columns of the table. A number that is no code counts as PD_INTERNAL. */
const char *pd_code_name(enum pd_code code);
int pd_code_http(enum pd_code code);
const char *pd_code_connect(enum pd_code code);
int pd_code_exit(enum pd_code code);
int pd_code_retryable(enum pd_code code);
