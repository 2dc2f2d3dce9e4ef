/* Errors: a code, an errno and a text. What each code is over HTTP, in Connect and as an exit
 * status stands in one table, PD_CODES in err.h. */
#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct code_row {
    const char *name;
    int http;
    const char *connect;
    int exit_status;
    int retryable;
};

static const struct code_row rows[PD_CODE_COUNT] = {
#define X(code, name, http, connect, exit_status, retryable)                                       \
    [code] = {name, http, connect, exit_status, retryable},
    PD_CODES(X)
#undef X
};

static enum pd_code code_of_errno(int sys)
{
    switch (sys) {
    case EPERM:
    case EACCES:
        return PD_DENIED;
    case ENOENT:
        return PD_NOT_FOUND;
    case EEXIST:
        return PD_CONFLICT;
    case ENOSPC:
    case EDQUOT:
        return PD_NO_SPACE;
    case EAGAIN:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
        return PD_CAPACITY;
    case ETIMEDOUT:
        return PD_TIMEOUT;
    case ENOSYS:
    case EOPNOTSUPP:
        return PD_UNSUPPORTED;
    default:
        return PD_INTERNAL;
    }
}

int pd_fail(struct pd_err *e, enum pd_code code, const char *fmt, ...)
{
    if (!e)
        return -1;

    va_list ap;
    va_start(ap, fmt);
    e->code = code;
    e->sys = 0;
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    return -1;
}

int pd_fail_sys(struct pd_err *e, const char *fmt, ...)
{
    int sys = errno;

    if (!e)
        return -1;

    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);

    e->code = code_of_errno(sys);
    e->sys = sys;
    if (n >= 0 && (size_t)n < sizeof e->msg)
        snprintf(e->msg + n, sizeof e->msg - (size_t)n, ": %s", strerror(sys));
    return -1;
}

int pd_wrap(struct pd_err *e, const char *fmt, ...)
{
    if (!e)
        return -1;

    char inner[sizeof e->msg];
    memcpy(inner, e->msg, sizeof inner);

    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);

    if (n >= 0 && (size_t)n < sizeof e->msg)
        snprintf(e->msg + n, sizeof e->msg - (size_t)n, ": %s", inner);
    return -1;
}

static const struct code_row *row_of(enum pd_code code)
{
    return &rows[(unsigned)code < PD_CODE_COUNT ? code : PD_INTERNAL];
}

const char *pd_code_name(enum pd_code code)
{
    return row_of(code)->name;
}

int pd_code_http(enum pd_code code)
{
    return row_of(code)->http;
}

const char *pd_code_connect(enum pd_code code)
{
    return row_of(code)->connect;
}

int pd_code_exit(enum pd_code code)
{
    return row_of(code)->exit_status;
}

int pd_code_retryable(enum pd_code code)
{
    return row_of(code)->retryable;
}
