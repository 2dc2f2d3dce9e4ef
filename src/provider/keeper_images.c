/* Requests on the store of images: the keeper starts a process for each, which writes lines of JSON
 * into a pipe of ours (jail/keeper_images.c). The last line is what came of it, or an error; a pipe
 * that ends without either is a process that died. Closing our end stops it. */
#include "provider/keeper_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "wire/image_record.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define LINE_MAX_BYTES (4u * IMAGE_RECORD_MAX)
#define BEGIN_PATIENCE (10 * NS_PER_S)
#define LOOK_EVERY     (NS_PER_S / 4) /* whether it is still wanted */

static int begin(struct keeper_provider *p, const struct box_images *r, int out, struct pd_err *e)
{
    auto_buf payload = BUF_INIT(WIRE_PAYLOAD_MAX);
    int fds[2] = {out, r->file};
    struct waiter w;

    msg_images_encode(&payload, &r->what);
    waiter_begin(p, &w, wire_id_new(), NULL);
    if (tell_keeper(p, WIRE_IMAGES, w.id, &payload, fds, r->file >= 0 ? 2 : 1, e) < 0) {
        waiter_cancel(p, &w);
        return -1;
    }
    if (waiter_end(p, &w, deadline_in(BEGIN_PATIENCE), e) < 0)
        return -1;
    int failed = w.frame.head.type == WIRE_ERROR ? msg_error_raise(&w.frame, e) : 0;
    frame_done(&w.frame);
    return failed;
}

/* Gives away the whole lines in the buffer. */
static int give_lines(struct buf *b, const struct box_images *r, bool *any, struct pd_err *e)
{
    const char *text = (const char *)b->data;
    size_t at = 0;

    for (const char *end; at < b->len && (end = memchr(text + at, '\n', b->len - at));) {
        size_t len = (size_t)(end - text) - at;
        if (r->line(r->arg, text + at, len, e) < 0)
            return -1;
        at += len + 1;
        *any = true;
    }
    if (at)
        memmove(b->data, b->data + at, b->len -= at);
    return 0;
}

static int wait_for_more(int from, const struct box_images *r, deadline d, struct pd_err *e)
{
    struct pollfd f = {from, POLLIN, 0};

    for (;;) {
        if (r->is_unwanted && r->is_unwanted(r->arg))
            return pd_fail(e, PD_CONFLICT, "nobody waits for the image any more");
        if (deadline_passed(d))
            return pd_fail(e, PD_TIMEOUT, "the store of images was not ready in time");
        deadline look = deadline_in(LOOK_EVERY);
        int n = poll(&f, 1, deadline_poll_ms(look < d ? look : d));
        if (n < 0 && errno != EINTR)
            return pd_fail_sys(e, "wait for the store of images");
        if (n > 0)
            return 0;
    }
}

int keeper_images(struct provider *base, const struct box_images *r, deadline d, struct pd_err *e)
{
    auto_buf lines = BUF_INIT(LINE_MAX_BYTES);
    bool any = false;
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) < 0)
        return pd_fail_sys(e, "make a pipe");
    auto_fd near = ends[0], far = ends[1];
    if (begin(base->state, r, far, e) < 0)
        return -1;
    fd_done(&far);

    for (;;) {
        if (wait_for_more(near, r, d, e) < 0)
            return -1;
        uint8_t *to = buf_reserve(&lines, 16384);
        if (!to)
            return pd_fail(e, PD_PROTOCOL, "the store of images writes too long a line");
        ssize_t n = read(near, to, 16384);
        if (n < 0 && errno != EINTR)
            return pd_fail_sys(e, "read from the store of images");
        if (n == 0)
            break;
        lines.len += n > 0 ? (size_t)n : 0;
        if (give_lines(&lines, r, &any, e) < 0)
            return -1;
    }
    return any && !lines.len ? 0 : pd_fail(e, PD_LOST, "the store of images has died over it");
}
