/* body: reads the body of a message from a conn, behind a head that was read. Private to net. */
#pragma once

#include "net/conn.h"
#include "net/http.h"

/* Room for the longest head and some of what follows. */
#define INBOX_SIZE (HTTP_HEAD_MAX + (16u << 10))

/* Bytes from the peer. The head, which slices point into, is [0, head_len) and stays; not used yet
 * are [pos, len). */
struct inbox {
    size_t head_len, pos, len;
    char data[INBOX_SIZE];
};

enum body_error { BODY_GOOD, BODY_STALLED, BODY_CUT, BODY_MALFORMED };

struct body {
    enum http_body kind;
    uint64_t left; /* of HTTP_BODY_LENGTH */
    struct http_chunks chunks;
    int done;
    enum body_error error; /* BODY_STALLED may be tried again */
};

void body_start(struct body *b, const struct http_head *h);
/* Bytes, 0 at the end, -1: PD_TIMEOUT, PD_LOST when the peer ends too soon, PD_INVALID when it is
 * malformed. */
ssize_t body_read(struct body *b, struct inbox *in, struct conn *c, void *out, size_t size,
                  deadline d, struct pd_err *e);
/* The connection without regard to bodies. */
ssize_t inbox_read(struct inbox *in, struct conn *c, void *out, size_t size, deadline d,
                   struct pd_err *e);
