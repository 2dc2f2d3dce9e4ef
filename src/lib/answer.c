/* The way in and out of every call of the library: errors in the form of paddock.h,
 * structs that may be older or newer than the library (their member `size` says how much of them is
 * there), lists of strings, and a guard that keeps SIGPIPE from the program whose thread is
 * writing. */
#include "lib/lib.h"

#include "base/banned.h"

#include <errno.h>
#include <stdarg.h>
#include <time.h>

int lib_fail(struct paddock_error *e, const struct pd_err *why)
{
    if (!e)
        return -1;

    *e = (struct paddock_error){.retryable = pd_code_retryable(why->code), .sys = why->sys};
    snprintf(e->code, sizeof e->code, "%s", pd_code_name(why->code));
    snprintf(e->message, sizeof e->message, "%s", why->msg);
    return -1;
}

int lib_fail_or_cancelled(struct paddock_error *e, const struct pd_err *why,
                          const struct paddock_cancel *cancel)
{
    if (!lib_is_cancelled(cancel))
        return lib_fail(e, why);
    if (e) {
        *e = (struct paddock_error){.code = "cancelled"};
        snprintf(e->message, sizeof e->message, "the call was cancelled");
    }
    return -1;
}

int lib_refuse(struct paddock_error *e, enum pd_code code, const char *fmt, ...)
{
    struct pd_err why = {.code = code};
    va_list args;

    va_start(args, fmt);
    vsnprintf(why.msg, sizeof why.msg, fmt, args);
    va_end(args);
    return lib_fail(e, &why);
}

/* Nothing that anybody passes is larger: a size beyond this was never set. */
#define SIZE_SANE 65536u

int lib_take(void *to, size_t size, const void *from, const char *what, struct paddock_error *e)
{
    size_t given;

    memset(to, 0, size);
    if (!from)
        return 0;

    memcpy(&given, from, sizeof given);
    if (given < sizeof given || given > SIZE_SANE)
        return lib_refuse(e, PD_INVALID, "%s: `size` is %zu; set it to sizeof, and zero the rest",
                          what, given);

    memcpy(to, from, given < size ? given : size);
    return 0;
}

int lib_give(void *to, const void *from, size_t size, const char *what, struct paddock_error *e)
{
    size_t room;

    memcpy(&room, to, sizeof room);
    if (room < sizeof room || room > SIZE_SANE)
        return lib_refuse(e, PD_INVALID, "%s: `size` is %zu; set it to sizeof, and zero the rest",
                          what, room);

    size_t n = room < size ? room : size;
    memcpy((char *)to + sizeof room, (const char *)from + sizeof room, n - sizeof room);
    return 0;
}

static int is_name(const char *text, size_t len)
{
    if (!len || (text[0] >= '0' && text[0] <= '9'))
        return 0;

    for (size_t i = 0; i < len; i++)
        if (!((text[i] >= 'a' && text[i] <= 'z') || (text[i] >= 'A' && text[i] <= 'Z') ||
              (text[i] >= '0' && text[i] <= '9') || text[i] == '_'))
            return 0;
    return 1;
}

int lib_list(const char *const *list, const char *what, int pairs, struct msg_list_writer *ret,
             struct paddock_error *e)
{
    for (; list && *list; list++) {
        const char *equals = strchr(*list, '=');
        if (pairs && (!equals || !is_name(*list, (size_t)(equals - *list))))
            return lib_refuse(e, PD_INVALID, "%s: '%.60s' is not of the form NAME=VALUE", what,
                              *list);
        if (msg_list_add(ret, *list) < 0)
            return lib_refuse(e, PD_TOO_LARGE, "%s: together longer than %u bytes", what,
                              WIRE_PAYLOAD_MAX / 2);
    }
    return 0;
}

void pipe_guard_begin(struct pipe_guard *g)
{
    sigset_t pipe, pending;

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigpending(&pending);
    g->was_pending = sigismember(&pending, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &g->old);
}

/* SIGPIPE is sent to the thread that wrote, so it is this thread's to take away. */
void pipe_guard_end(struct pipe_guard *g)
{
    struct timespec now = {0};
    sigset_t pipe;
    int saved = errno;

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);

    if (!g->was_pending)
        while (sigtimedwait(&pipe, NULL, &now) < 0 && errno == EINTR)
            ;

    pthread_sigmask(SIG_SETMASK, &g->old, NULL);
    errno = saved;
}

void paddock_free(void *memory)
{
    free(memory);
}
