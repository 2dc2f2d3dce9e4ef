/* socks: asking a SOCKS5 proxy (RFC 1928) for a connection, with a user and a password (RFC 1929)
 * where it wants them. Pure: says what is to be sent, and reads what came.
 *
 *     socks_begin(&s, &to);
 *     do send s.out; while (socks_take(&s, data, socks_wants(&s)) == SOCKS_SAY or SOCKS_MORE)
 *
 * Never more is wanted than belongs to the proxy's answers: what follows them is the host's. */
#pragma once

#include "gate/address.h"

#include <stddef.h>

#define SOCKS_WORD_MAX 255u /* of a user, a password, a name */
#define SOCKS_OUT_MAX  (3u + 2u * SOCKS_WORD_MAX)
#define SOCKS_IN_MAX   (7u + SOCKS_WORD_MAX)

/* What the proxy is asked for. */
struct socks_target {
    const char *name; /* that the proxy looks up; NULL: the address */
    struct ip address;
    uint16_t port;
    const char *user, *password; /* NULL: without */
};

enum socks_step {
    SOCKS_MORE, /* of its answer */
    SOCKS_SAY,  /* out[0..out_len) is to be sent, then more is awaited */
    SOCKS_DONE, /* the connection is made */
    SOCKS_BAD   /* `why` */
};

struct socks {
    struct socks_target to;
    enum { SOCKS_METHOD, SOCKS_LOGIN, SOCKS_REPLY, SOCKS_OVER } stage;
    uint8_t out[SOCKS_OUT_MAX], in[SOCKS_IN_MAX];
    size_t out_len, in_len;
    const char *why;
};

/* The first words are in `out`. What `to` points to must stay. False: a word is too long. */
bool socks_begin(struct socks *s, const struct socks_target *to);
/* How many bytes must come next, and may be taken at once; 0 when it is over. */
size_t socks_wants(const struct socks *s);
/* At most so many have come. */
enum socks_step socks_take(struct socks *s, const void *data, size_t len);
