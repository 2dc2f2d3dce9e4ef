/* proxy: passes one request on to an HTTP server behind two pipes, and its answer back.
 *
 * The server behind is hostile: its head and its chunks are read by the strict parsers and written
 * anew, so that where an answer ends is never its word alone. Bodies flow both ways at once, so a
 * server may answer before it has read everything. Nothing is kept: one pair of pipes, one request.
 * After a WebSocket's 101 bytes go both ways as they are. */
#pragma once

#include "net/server.h"

struct proxy {
    int to, from; /* pipes to the server behind and from it; the caller's, made non-blocking */
    /* The request line and the headers, each with its CRLF, without the empty line and without what
     * says how long the body is. */
    const struct buf *head;
    /* Adds headers of the answer by reply_header. What belongs to one hop only is not for it to
     * decide: reply_header leaves it out. */
    void (*answer)(struct request *r, const struct http_head *answer, void *arg);
    /* Asked once a second; 0 breaks it off. NULL: always. */
    int (*may_go_on)(void *arg);
    void *arg;
    uint64_t idle_ns; /* without a byte in either direction */
};

/* 0: answered, or begun and broken off, so that the client notices. -1: nothing was answered:
 * PD_BAD_GATEWAY (it closed too early, or answers what is no HTTP), PD_TIMEOUT (it is silent, or
 * the client is: then the answer is 408), PD_LOST (the client has gone, or its body ended too
 * soon), PD_INVALID (the client's body is malformed). */
int proxy_pass(struct request *r, const struct proxy *p, struct pd_err *e);

/* Ends an upgraded connection so that what was written last arrives: a close with bytes unread
 * would take it back. Waits for the client to close, at most `ns`. */
void proxy_leave(struct request *r, uint64_t ns);
