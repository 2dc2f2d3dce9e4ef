/* The body of a message as it comes from a connection: with a length, in chunks, or up to the end
 * of the connection. Bytes that came with the head lie in the inbox and are taken first. A body
 * that was cut short or that stopped coming is remembered as such, so that later reads fail the
 * same way. */
#include "net/body.h"

#include "base/err.h"

#include "base/banned.h"

void body_start(struct body *b, const struct http_head *h)
{
    *b = (struct body){.kind = h->body, .left = h->length};
    b->done = h->body == HTTP_BODY_NONE || (h->body == HTTP_BODY_LENGTH && h->length == 0);
}

/* Reads from the connection, as a body. */
static ssize_t read_more(struct body *b, struct conn *c, void *out, size_t size, deadline d,
                         struct pd_err *e)
{
    struct pd_err why;

    ssize_t n = conn_read(c, out, size, d, &why);
    if (n > 0)
        return n;

    if (n == 0 && b->kind == HTTP_BODY_TO_EOF) {
        b->done = 1;
        return 0;
    }
    if (n < 0 && why.code == PD_TIMEOUT) {
        b->error = BODY_STALLED;
        return pd_fail(e, PD_TIMEOUT, "the body of the message stopped coming");
    }

    b->error = BODY_CUT;
    return pd_fail(e, PD_LOST, "the body of the message ended too soon");
}

static ssize_t read_plain(struct body *b, struct inbox *in, struct conn *c, void *out, size_t size,
                          deadline d, struct pd_err *e)
{
    size_t here = in->len - in->pos;

    if (b->kind == HTTP_BODY_LENGTH && size > b->left)
        size = b->left;

    ssize_t n;
    if (here) {
        n = (ssize_t)(size < here ? size : here);
        memcpy(out, in->data + in->pos, (size_t)n);
        in->pos += (size_t)n;
    } else {
        n = read_more(b, c, out, size, d, e);
        if (n < 0)
            return -1;
    }

    if (b->kind == HTTP_BODY_LENGTH) {
        b->left -= (uint64_t)n;
        b->done = b->left == 0;
    }
    return n;
}

static ssize_t read_chunked(struct body *b, struct inbox *in, struct conn *c, void *out,
                            size_t size, deadline d, struct pd_err *e)
{
    for (;;) {
        if (in->pos == in->len) {
            in->pos = in->len = in->head_len;
            ssize_t n = read_more(b, c, in->data + in->len, sizeof in->data - in->len, d, e);
            if (n < 0)
                return -1;
            in->len += (size_t)n;
        }

        /* No more than `size` bytes are looked at, so the piece that is found fits. */
        size_t here = in->len - in->pos, used, found;
        const char *piece;
        if (http_chunks_next(&b->chunks, in->data + in->pos, here < size ? here : size, &used,
                             &piece, &found, e)) {
            b->error = BODY_MALFORMED;
            return -1;
        }

        if (found)
            memcpy(out, piece, found);
        in->pos += used;
        b->done = b->chunks.done;
        if (found || b->done)
            return (ssize_t)found;
    }
}

ssize_t body_read(struct body *b, struct inbox *in, struct conn *c, void *out, size_t size,
                  deadline d, struct pd_err *e)
{
    if (b->error == BODY_STALLED)
        b->error = BODY_GOOD;
    if (b->error)
        return pd_fail(e, PD_LOST, "the body of the message was broken off before");

    if (b->done || !size)
        return 0;
    return b->kind == HTTP_BODY_CHUNKED ? read_chunked(b, in, c, out, size, d, e)
                                        : read_plain(b, in, c, out, size, d, e);
}

ssize_t inbox_read(struct inbox *in, struct conn *c, void *out, size_t size, deadline d,
                   struct pd_err *e)
{
    size_t here = in->len - in->pos;
    if (!here)
        return conn_read(c, out, size, d, e);
    if (here > size)
        here = size;

    memcpy(out, in->data + in->pos, here);
    in->pos += here;
    return (ssize_t)here;
}
