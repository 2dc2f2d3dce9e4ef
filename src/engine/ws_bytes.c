/* What a WebSocket says by itself (pongs) goes out between the bytes: wants_write shows it. */
#include "engine/ws_bytes.h"

#include "base/banned.h"
#include "base/err.h"
#include "engine/stream.h"
#include "engine/ws_stream.h"

struct ws_bytes {
    struct byte_stream stream;
    struct ws_stream *ws;
};

static struct ws_bytes *self(struct byte_stream *s)
{
    return (struct ws_bytes *)s;
}

static ssize_t bytes_read(struct byte_stream *s, void *out, size_t size)
{
    ssize_t n = ws_stream_read(self(s)->ws, out, size);
    s->wants_write = ws_stream_wants_write(self(s)->ws);
    return n;
}

static ssize_t bytes_write(struct byte_stream *s, const void *data, size_t len)
{
    ssize_t n = ws_stream_write(self(s)->ws, data, len);
    s->wants_write = ws_stream_wants_write(self(s)->ws);
    return n;
}

static int bytes_fd(const struct byte_stream *s)
{
    return ws_stream_fd(((const struct ws_bytes *)s)->ws);
}

static const char *bytes_words(const struct byte_stream *s)
{
    return ws_stream_farewell(((const struct ws_bytes *)s)->ws);
}

static void bytes_free(struct byte_stream *s)
{
    if (!s)
        return;
    ws_stream_free(self(s)->ws);
    free(s);
}

static const struct byte_stream_kind kind = {.read = bytes_read,
                                             .write = bytes_write,
                                             .fd = bytes_fd,
                                             .words = bytes_words,
                                             .free = bytes_free};

struct byte_stream *ws_bytes(struct ws_stream *s, struct pd_err *e)
{
    struct ws_bytes *b = calloc(1, sizeof *b);

    if (!b) {
        ws_stream_free(s);
        pd_fail(e, PD_CAPACITY, "no memory for a connection");
        return NULL;
    }
    *b = (struct ws_bytes){.stream = {.kind = &kind}, .ws = s};
    return &b->stream;
}
