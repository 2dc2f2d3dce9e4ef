/* rented: calls of the APIs of rented sandboxes, and the stream of a link that was dialled. */
#pragma once

#include "engine/http.h"
#include "engine/remote.h"
#include "engine/rented_text.h"
#include "engine/stream.h"
#include "engine/ws_stream.h"

#define RENTED_HEADERS    8u
#define RENTED_ANSWER_MAX (4u << 20)

/* Whose API it is, for all calls: where its credential is from, and what it is, for error texts. */
struct rented {
    const char *who, *remedy, *secret;
    const char *ca_file;   /* or "" */
    struct remote *remote; /* whether anybody waits for a box; or NULL */
};

struct rented_call {
    const char *method;
    struct buf target, in, out;
    const char *headers[RENTED_HEADERS + 1];
    unsigned header_count;
    deadline deadline;
    bool again; /* may be said twice: an answer that got lost, or is 502 to 504, is no answer */
    bool lost;  /* after a failure: nobody knows whether it was acted upon */
    int status;
    struct http_heads heads;
};
#define RENTED_CALL(m, t)                                                                          \
    ((struct rented_call){.method = (m),                                                           \
                          .target = BUF_INIT(8192),                                                \
                          .in = BUF_INIT(REMOTE_PROGRAM + 65536u),                                 \
                          .out = BUF_INIT(RENTED_ANSWER_MAX),                                      \
                          .deadline = (t)})
void rented_call_done(struct rented_call *c);
#define auto_rented __attribute__((cleanup(rented_call_done))) struct rented_call
/* Adds a header: borrowed. */
void rented_header(struct rented_call *c, const char *header);

/* 0 when an answer came, whatever its status; see http_ask. Who is told to wait (429) waits, up to
 * three times, when that is soon enough. */
int rented_ask(const struct rented *r, struct http *h, struct rented_call *c, struct pd_err *e);
/* Fills *e from the answer of a call. Always -1. */
int rented_call_refused(const struct rented *r, const struct rented_call *c, const char *what,
                        struct pd_err *e);

/* A server of this base. */
struct http *rented_server(const struct rented *r, const char *base, struct pd_err *e);
/* The link of a box behind this base: a WebSocket of /link/LINK. */
struct byte_stream *rented_dial(const struct rented *r, const struct rented_url *at,
                                const char *link, const char *const *headers, deadline t,
                                struct ws_refusal *refusal, struct pd_err *e);
/* The secret of an API: of a file, or of a variable of the environment. It is one word. `setting`
 * is the full name of the file's setting. */
int rented_secret(const char *setting, const char *file, const char *variable, char *out,
                  size_t size, struct pd_err *e);
