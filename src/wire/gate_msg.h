/* gate_msg: what a gate and whoever it serves say to each other, in frames.
 *
 *   client -> gate   OPEN POLICY CLOSE SYNC
 *   gate -> client   DONE ERROR (msg.h), RECORD
 *   gate -> changer  LEND
 *   changer -> gate  MOVED BACK
 *
 * A gate has one client at a time; a new one takes the place of the last. The client tells it every
 * sandbox again (OPEN of one that it knows is a POLICY), then SYNC: the gate closes what it was not
 * told of. Records wait in the gate while it has no client.
 *
 * A connection to a host that has secrets is lent to the changer (src/change): it gets both
 * sockets, tells how much it has moved, and gives the connection back when it is at its end. */
#pragma once

#include "wire/frame.h"

struct pd_err;

#define GATE_ID_MAX   63u
#define GATE_TEXT_MAX (96u << 10)
/* What a gate holds for the changer and cannot read: base64. Fits a frame beside a policy. */
#define GATE_SEALED_MAX (24u << 10)
/* Connections that a changer has at once, at most. */
#define GATE_LOANS_MAX 8192u

enum gate_type {
    GATE_OPEN = 0x100, /* gate_open; fds: the sandbox's TCP listener, its socket for questions */
    GATE_POLICY,       /* gate_open, without descriptors */
    GATE_CLOSE,        /* gate_open, with an empty policy */
    GATE_SYNC,         /* no payload */
    GATE_RECORD,       /* gate_record; a frame of its own, answered by nobody */
    GATE_LEND,         /* gate_lend; fds: the sandbox's side, the host's side */
    GATE_MOVED,        /* gate_moved */
    GATE_BACK,         /* gate_moved: the last one */
};

struct gate_open {
    const char *id;     /* of the sandbox */
    const char *policy; /* gate/rules.h has the format */
    const char *sealed; /* its secrets, for the changer; "" or NULL: none */
};

/* What became of a connection or a question. */
enum gate_result {
    GATE_OK,      /* it was made, and both sides ended it */
    GATE_REFUSED, /* by the rules: `why` */
    GATE_FAILED,  /* the name or the address could not be reached */
    GATE_BROKEN,  /* one side broke it off */
    GATE_CUT,     /* the rules changed, a limit was reached, or the sandbox ended */
    GATE_RESULT_COUNT
};
enum gate_kind { GATE_DNS, GATE_TLS, GATE_HTTP, GATE_TCP, GATE_KIND_COUNT };

const char *gate_result_name(uint32_t r);
const char *gate_kind_name(uint32_t k);

struct gate_record {
    const char *id, *name, *address, *rule, *why; /* "" where there is none */
    uint32_t kind, result, port;
    uint64_t up, down; /* bytes, as the sandbox sees it */
    uint64_t usec;     /* from beginning to end */
    uint64_t time;     /* when it began, seconds since 1970 */
};

struct gate_lend {
    const char *id, *sealed; /* of the sandbox, as OPEN had them */
    const char *host;        /* that was dialled, normalised */
    uint64_t flow;           /* the gate's number for it */
    uint64_t rate;           /* bytes a second each way; 0: no limit */
    uint32_t port;           /* that the host is spoken to on */
    uint32_t is_tls;         /* the sandbox's side speaks TLS */
    uint32_t is_plain;       /* the host's side does not */
    const uint8_t *first;    /* what the sandbox has said already */
    size_t first_len;
};

/* `up` and `down` are since the last one. */
struct gate_moved {
    uint64_t flow, up, down;
    uint32_t result;
    const char *why;
};

void gate_open_encode(struct buf *b, const struct gate_open *m);
int gate_open_decode(const struct buf *b, struct gate_open *ret, struct pd_err *e);
void gate_record_encode(struct buf *b, const struct gate_record *m);
/* The strings point into the buffer, and may have any bytes but NUL. */
int gate_record_decode(const struct buf *b, struct gate_record *ret, struct pd_err *e);
void gate_lend_encode(struct buf *b, const struct gate_lend *m);
int gate_lend_decode(const struct buf *b, struct gate_lend *ret, struct pd_err *e);
void gate_moved_encode(struct buf *b, const struct gate_moved *m);
int gate_moved_decode(const struct buf *b, struct gate_moved *ret, struct pd_err *e);
