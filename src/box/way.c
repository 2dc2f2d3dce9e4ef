/* How this works: what a WebSocket has to say is in its `out` until the socket takes it; a frame is
 * made only when the one before is gone, so that buffer stays small. */
#include "box/way.h"

#include "base/banned.h"
#include "base/fd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

int way_open(struct way *w, int fd, const char *target)
{
    *w = (struct way){.fd = fd};
    if (!target)
        return 0;
    w->dialled = malloc(sizeof *w->dialled);
    if (!w->dialled) {
        way_close(w);
        return -1;
    }
    dialled_begin(w->dialled, target);
    return 0;
}

void way_close(struct way *w)
{
    fd_done(&w->fd);
    if (w->dialled)
        dialled_end(w->dialled);
    free(w->dialled);
    *w = (struct way){.fd = -1};
}

bool way_hear(struct way *w, uint8_t *room, size_t size)
{
    ssize_t n = recv(w->fd, room, size, 0);

    w->raw = room;
    w->len = n > 0 ? (size_t)n : 0;
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

int way_next(struct way *w, const uint8_t **ret, size_t *ret_len)
{
    size_t used = w->len;
    int r = w->len > 0;

    if (w->fd < 0 || !r)
        return 0;
    if (w->dialled) {
        r = dialled_next(w->dialled, w->raw, w->len, &used, ret, ret_len);
    } else {
        *ret = w->raw;
        *ret_len = w->len;
    }
    w->raw += used;
    w->len -= used;
    if (!way_flush(w))
        return -1;
    return r;
}

bool way_is_open(const struct way *w)
{
    return w->fd >= 0 && (!w->dialled || w->dialled->is_open);
}

bool way_waits(const struct way *w)
{
    return w->fd >= 0 && w->dialled && w->dialled->out.len;
}

bool way_flush(struct way *w)
{
    while (way_waits(w)) {
        struct buf *out = &w->dialled->out;
        ssize_t n = send(w->fd, out->data, out->len, MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        memmove(out->data, out->data + n, out->len - (size_t)n);
        out->len -= (size_t)n;
    }
    return true;
}

ssize_t way_say(struct way *w, const uint8_t *data, size_t len)
{
    if (!w->dialled) {
        ssize_t n = send(w->fd, data, len, MSG_NOSIGNAL);
        return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : n;
    }

    if (!way_flush(w))
        return -1;
    if (way_waits(w))
        return 0;
    size_t part = len < DIALLED_FRAME ? len : DIALLED_FRAME;
    if (dialled_say(w->dialled, data, part) < 0 || !way_flush(w))
        return -1;
    return (ssize_t)part;
}
