/* exchange: passes the requests of one connection on to one server, one after the other, and
 * changes headers of the requests and bytes of the answers on their way.
 *
 * Both sides are strangers. Requests and answers are read by the strict parsers and written anew,
 * so each has one meaning. Every request must be for the one host; what nobody could look into
 * (another protocol after an upgrade, an answer that is compressed) is refused. Blocks; for a
 * thread of its own. */
#pragma once

#include "net/client.h"

struct buf;

enum exchange_header { EXCHANGE_AS_IS, EXCHANGE_CHANGED, EXCHANGE_LEFT_OUT };

struct exchange {
    struct conn *near; /* the client's side */
    struct client *far;
    const char *host; /* that requests are for, in lower case */
    /* One header of a request; its other value is appended to `out`. */
    enum exchange_header (*header)(void *arg, const struct http_header *h, struct buf *out);
    /* Adds headers to a request; NULL: none. */
    int (*more)(void *arg, struct client *far, struct pd_err *e);
    /* Bytes of an answer, its head and then its body: as many are appended to `out`, now or later,
     * and by the `last` call of each all of them. NULL: answers go back as they are, compressed or
     * in parts where the client has asked for that. */
    void (*answer)(void *arg, const void *data, size_t len, int last, struct buf *out);
    /* So many bytes were passed on. Non-zero breaks it off. */
    int (*moved)(void *arg, uint64_t up, uint64_t down);
    void *arg;
};

/* 0 when one side has ended it between two requests. -1: it broke off; what was wrong with a
 * request or with the server was told to the client before, where that was possible. */
int exchange_run(const struct exchange *x, struct pd_err *e);
