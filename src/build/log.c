/* An entry is a line: time, level, step and text with tabs between them. Text has no control
 * characters, so a line is one entry; what comes from programs is made so here. */
#include "build/log.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void name_of(const char *id, char out[64])
{
    snprintf(out, 64, "log-%.40s", id);
}

int build_log_open(struct build_log *l, int dir, const char *id, struct pd_err *e)
{
    char name[64];
    name_of(id, name);
    *l = (struct build_log){
        .fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW | O_CLOEXEC,
                     0600)};
    return l->fd < 0 ? pd_fail_sys(e, "open the log of a build") : 0;
}

void build_log_done(struct build_log *l)
{
    fd_done(&l->fd);
}

void build_log_remove(int dir, const char *id)
{
    char name[64];
    name_of(id, name);
    (void)unlinkat(dir, name, 0);
}

static void put_line(struct build_log *l, const char *level, const char *step, const void *text,
                     size_t len)
{
    auto_buf line = BUF_INIT(BUILD_LINE_MAX + 128);
    const uint8_t *at = text;

    buf_printf(&line, "%ju\t%s\t%s\t", (uintmax_t)time_now_ms(), level, step);
    for (size_t i = 0; i < len && i < BUILD_LINE_MAX; i++)
        buf_putc(&line, at[i] < 0x20 || at[i] == 0x7f ? ' ' : (char)at[i]);
    buf_putc(&line, '\n');

    /* One write: a reader sees whole lines, but for the last one of a disk that is full. */
    if (!line.overflow && fd_write_all(l->fd, line.data, line.len) == 0) {
        l->bytes += line.len;
        l->entries++;
    }
}

void build_log_put(struct build_log *l, const char *level, const char *step, const void *text,
                   size_t len)
{
    static const char rest[] = "the rest of the log is left out: it is too long";
    if (l->full || l->fd < 0)
        return;
    if (l->bytes + len < BUILD_LOG_BYTES && l->entries < BUILD_LOG_ENTRIES - 1) {
        put_line(l, level, step, text, len);
        return;
    }
    l->full = 1;
    put_line(l, "warn", step, rest, sizeof rest - 1);
}

void build_log_printf(struct build_log *l, const char *level, const char *step, const char *fmt,
                      ...)
{
    char text[1024];
    va_list args;

    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n > 0)
        build_log_put(l, level, step, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

/* Splits a line in place. NULL: it is none. */
static char *next_part(char **at)
{
    char *part = *at, *end = part ? strchr(part, '\t') : NULL;
    *at = end ? end + 1 : NULL;
    if (end)
        *end = 0;
    return part;
}

unsigned build_log_read(int dir, const char *id, unsigned from, unsigned limit,
                        void (*each)(void *arg, uint64_t ms, const char *level, const char *step,
                                     const char *text),
                        void *arg)
{
    char name[64];
    auto_buf all = BUF_INIT(2 * BUILD_LOG_BYTES);
    unsigned number = 0, told = 0;

    name_of(id, name);
    auto_fd fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    for (ssize_t n = 1; fd >= 0 && n > 0;) {
        uint8_t *to = buf_reserve(&all, 65536);
        n = to ? read(fd, to, 65536) : 0;
        if (n > 0)
            all.len += (size_t)n;
    }
    if (!buf_cstr(&all))
        return 0;

    char *line = (char *)all.data, *end;
    for (; told < limit && (end = strchr(line, '\n')); line = end + 1, number++) {
        *end = 0;
        if (number < from)
            continue;
        char *at = line, *ms = next_part(&at), *level = next_part(&at), *step = next_part(&at);
        if (at)
            each(arg, strtoull(ms, NULL, 10), level, step, at);
        told += at != NULL;
    }
    return told;
}
