/* stream: bytes both ways between this machine and a box elsewhere, however a backend reaches it:
 * an exec of an engine's, a WebSocket, a connection. What carries a box's link (carrier.c) knows no
 * more than this.
 *
 * Nothing here waits. A backend embeds `struct byte_stream` as the first member of its own. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct byte_stream;

struct byte_stream_kind {
    /* How many bytes, 0 at the end of the stream, -EAGAIN or -EIO. There may be more than poll
     * knows of (TLS, frames): it is read until -EAGAIN. */
    ssize_t (*read)(struct byte_stream *s, void *out, size_t size);
    /* How many bytes were taken, -EAGAIN (poll for POLLOUT, then again) or -EIO. With no bytes at
     * all it only goes on with what the stream has still to say by itself (see below): 0 when that
     * is nothing. */
    ssize_t (*write)(struct byte_stream *s, const void *data, size_t len);
    int (*fd)(const struct byte_stream *s);
    /* Text that came beside the bytes and says why there are none, on one line; "" when there is
     * none. NULL: this kind has no such text. */
    const char *(*words)(const struct byte_stream *s);
    void (*free)(struct byte_stream *s);
};

struct byte_stream {
    const struct byte_stream_kind *kind;
    bool wants_write; /* it has something of its own to say, such as a pong: write it nothing */
};

static inline ssize_t byte_stream_read(struct byte_stream *s, void *out, size_t size)
{
    return s->kind->read(s, out, size);
}

static inline ssize_t byte_stream_write(struct byte_stream *s, const void *data, size_t len)
{
    return s->kind->write(s, data, len);
}

static inline const char *byte_stream_words(const struct byte_stream *s)
{
    return s->kind->words ? s->kind->words(s) : "";
}

/* Keeps of `data` what can be shown, behind what `words` has, as far as there is room. */
void byte_stream_note(char *words, size_t size, const void *data, size_t len);
