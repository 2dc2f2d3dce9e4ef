/* Docker's rows among the backends. Its broker has its own way with the keeper's requests
 * (docker.c), because most of its boxes are on this machine; what it shares with the others is how
 * a box elsewhere is reached: by an exec of `paddock-box join`, whose stream has a head before each
 * piece (docker_frames.h). */
#include "engine/docker_remote.h"

#include "base/banned.h"
#include "base/err.h"
#include "engine/docker_client.h"
#include "engine/docker_far.h"
#include "engine/docker_frames.h"
#include "engine/http_stream.h"
#include "engine/stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PIECE (64u << 10)

struct docker_remote {
    struct remote remote;
    struct docker docker;
};

struct docker_stream {
    struct byte_stream stream;
    struct http_stream *http;
    struct docker_frames frames;
    uint8_t in[PIECE]; /* from the engine, with its frames */
    size_t in_at, in_len;
    const uint8_t *part; /* of `in`: the bytes of the link */
    size_t part_len;
    char words[160]; /* of the program that joins: why there is no link */
};

/* ---- the stream ---- */

static struct docker_stream *of(struct byte_stream *s)
{
    return (struct docker_stream *)s;
}

/* The next part of a frame of the link's; 0 when it is there. */
static ssize_t find_part(struct docker_stream *s)
{
    while (!s->part_len) {
        unsigned kind = 0;
        const uint8_t *part = NULL;
        size_t len = 0;
        struct pd_err e;

        if (s->in_at == s->in_len) {
            ssize_t n = http_stream_read(s->http, s->in, sizeof s->in);
            if (n <= 0)
                return n == 0 ? -EPIPE : n;
            s->in_at = 0;
            s->in_len = (size_t)n;
        }

        int used = docker_frames_next(&s->frames, s->in + s->in_at, s->in_len - s->in_at, &kind,
                                      &part, &len, &e);
        if (used < 0)
            return -EIO;
        s->in_at += (size_t)used;
        if (kind == DOCKER_STDOUT) {
            s->part = part;
            s->part_len = len;
        } else if (len) {
            byte_stream_note(s->words, sizeof s->words, part, len);
        }
    }
    return 0;
}

static ssize_t stream_read(struct byte_stream *base, void *out, size_t size)
{
    struct docker_stream *s = of(base);
    ssize_t r = find_part(s);

    if (r < 0)
        return r == -EPIPE ? 0 : r;
    size_t n = s->part_len < size ? s->part_len : size;
    memcpy(out, s->part, n);
    s->part += n;
    s->part_len -= n;
    return (ssize_t)n;
}

static ssize_t stream_write(struct byte_stream *base, const void *data, size_t len)
{
    return len ? http_stream_write(of(base)->http, data, len) : 0;
}

static int stream_fd(const struct byte_stream *base)
{
    return http_stream_fd(((const struct docker_stream *)base)->http);
}

static const char *stream_words(const struct byte_stream *base)
{
    return ((const struct docker_stream *)base)->words;
}

static void stream_free(struct byte_stream *base)
{
    http_stream_free(of(base)->http);
    free(base);
}

static const struct byte_stream_kind stream_kind = {.read = stream_read,
                                                    .write = stream_write,
                                                    .fd = stream_fd,
                                                    .words = stream_words,
                                                    .free = stream_free};

static struct byte_stream *reach(struct remote *r, const char *place, deadline t, struct pd_err *e)
{
    struct docker_stream *s = calloc(1, sizeof *s);

    if (!s) {
        pd_fail(e, PD_CAPACITY, "no memory for a stream");
        return NULL;
    }
    s->stream.kind = &stream_kind;
    s->http = docker_join(&((struct docker_remote *)r)->docker, place, t, e);
    if (s->http)
        return &s->stream;
    free(s);
    return NULL;
}

/* ---- the rows ---- */

static struct remote *open_docker(const struct broker_config *c, struct pd_err *e)
{
    struct docker_remote *r = calloc(1, sizeof *r);

    if (!r) {
        pd_fail(e, PD_CAPACITY, "no memory for an engine");
        return NULL;
    }
    if (docker_open(&r->docker, c, e) == 0)
        return &r->remote;
    free(r);
    return NULL;
}

static void close_docker(struct remote *r)
{
    if (r)
        docker_close(&((struct docker_remote *)r)->docker);
    free(r);
}

const struct remote_kind docker_remote = {.name = "docker",
                                          .rung = RUNG_BASIC,
                                          .needs_image = true,
                                          .open = open_docker,
                                          .close = close_docker,
                                          .reach = reach,
                                          .serve = docker_main,
                                          .tell = engine_check};
const struct remote_kind podman_remote = {.name = "podman",
                                          .rung = RUNG_BASIC,
                                          .needs_image = true,
                                          .open = open_docker,
                                          .close = close_docker,
                                          .reach = reach,
                                          .serve = docker_main,
                                          .tell = engine_check};
