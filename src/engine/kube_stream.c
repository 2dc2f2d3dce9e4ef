/* How this works: what a reader takes is the payload of messages of standard output; standard error
 * and how the exec ended are kept as words. What is written goes out as messages of standard input,
 * each with its first byte; a message that did not fit goes on with the same bytes. */
#include "engine/kube_stream.h"

#include "base/banned.h"
#include "base/err.h"
#include "engine/ws_stream.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define PIECE (64u << 10)

struct kube_stream {
    struct byte_stream stream;
    struct ws_stream *ws;
    const uint8_t *part; /* of the message that was read last */
    size_t part_len;
    bool over; /* the exec has ended */
    uint8_t out[1 + PIECE];
    char words[200];
};

static struct kube_stream *of(struct byte_stream *s)
{
    return (struct kube_stream *)s;
}

int kube_message(const uint8_t *data, size_t len, const uint8_t **ret, size_t *ret_len)
{
    if (!len || (data[0] > KUBE_RESIZE && data[0] != KUBE_CLOSE))
        return -1;
    *ret = data + 1;
    *ret_len = len - 1;
    return data[0];
}

void kube_read_end(const void *json, size_t len, char *words, size_t size)
{
    json_t *root = json_loadb(len ? json : "", len, 0, NULL);
    const char *status = json_string_value(json_object_get(root, "status"));
    const char *message = json_string_value(json_object_get(root, "message"));

    if ((!status || strcmp(status, "Success") != 0) && message)
        byte_stream_note(words, size, message, strlen(message));
    json_decref(root);
}

/* 1 when there are bytes for a reader, 0 at the end, else -EAGAIN or -EIO. */
static int find_part(struct kube_stream *s)
{
    while (!s->part_len && !s->over) {
        const uint8_t *message, *data;
        size_t len, data_len;
        int r = ws_stream_next(s->ws, &message, &len);
        if (r <= 0)
            return r;

        switch (kube_message(message, len, &data, &data_len)) {
        case KUBE_STDOUT:
            s->part = data;
            s->part_len = data_len;
            break;
        case KUBE_STDERR:
            byte_stream_note(s->words, sizeof s->words, data, data_len);
            break;
        case KUBE_ERROR:
            kube_read_end(data, data_len, s->words, sizeof s->words);
            s->over = true;
            break;
        case KUBE_CLOSE:
            s->over = data_len == 1 && data[0] == KUBE_STDOUT;
            break;
        default:
            return -EIO;
        }
    }
    return s->part_len ? 1 : 0;
}

static ssize_t stream_read(struct byte_stream *base, void *out, size_t size)
{
    struct kube_stream *s = of(base);
    int r = find_part(s);

    base->wants_write = ws_stream_wants_write(s->ws);
    if (r <= 0)
        return r;
    size_t n = s->part_len < size ? s->part_len : size;
    memcpy(out, s->part, n);
    s->part += n;
    s->part_len -= n;
    return (ssize_t)n;
}

static ssize_t stream_write(struct byte_stream *base, const void *data, size_t len)
{
    struct kube_stream *s = of(base);
    ssize_t n;

    if (len > PIECE)
        len = PIECE;
    if (len) {
        s->out[0] = KUBE_STDIN;
        memcpy(s->out + 1, data, len);
        n = ws_stream_write(s->ws, s->out, len + 1);
    } else {
        n = ws_stream_write(s->ws, NULL, 0);
    }
    base->wants_write = ws_stream_wants_write(s->ws);
    return n > 0 ? n - 1 : n;
}

static int stream_fd(const struct byte_stream *base)
{
    return ws_stream_fd(((const struct kube_stream *)base)->ws);
}

static const char *stream_words(const struct byte_stream *base)
{
    const struct kube_stream *s = (const struct kube_stream *)base;
    return s->words[0] ? s->words : ws_stream_farewell(s->ws);
}

static void stream_free(struct byte_stream *base)
{
    ws_stream_free(of(base)->ws);
    free(base);
}

static const struct byte_stream_kind kind = {.read = stream_read,
                                             .write = stream_write,
                                             .fd = stream_fd,
                                             .words = stream_words,
                                             .free = stream_free};

struct byte_stream *kube_stream_new(struct ws_stream *ws, struct pd_err *e)
{
    struct kube_stream *s = calloc(1, sizeof *s);

    if (!s) {
        ws_stream_free(ws);
        pd_fail(e, PD_CAPACITY, "no memory for a stream");
        return NULL;
    }
    *s = (struct kube_stream){.stream = {.kind = &kind}, .ws = ws};
    return &s->stream;
}
