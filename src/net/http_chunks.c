/* The decoder of chunked bodies: a state machine over single bytes, so it does not matter how they
 * were cut into pieces. Data is not copied; the caller is told where it lies. */
#include "net/http.h"

#include "base/banned.h"
#include "base/err.h"
#include "net/http_chars.h"

/* The states of the chunk decoder: each says what the next byte belongs to. */
enum chunk_state {
    CHUNK_SIZE, /* zero, so that a zeroed struct starts here */
    CHUNK_SIZE_LF,
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    CHUNK_TRAILER, /* the start of a trailer line, or of the empty line at the end */
    CHUNK_TRAILER_NAME,
    CHUNK_TRAILER_VALUE,
    CHUNK_TRAILER_LF,
    CHUNK_END_LF,
    CHUNK_DONE,
    CHUNK_BAD
};

static int chunk_size_byte(struct http_chunks *c, char b)
{
    if (b == '\r' && c->digits)
        return CHUNK_SIZE_LF;
    /* 15 digits cannot overflow, and no body has 2^60 bytes. */
    if (!http_is_hex(b) || c->digits == 15)
        return CHUNK_BAD;

    c->digits++;
    c->left = c->left * 16 + (uint64_t)(http_is_digit(b) ? b - '0' : (b | 32) - 'a' + 10);
    return CHUNK_SIZE;
}

static int chunk_trailer_byte(struct http_chunks *c, char b)
{
    if (++c->trailer_bytes > HTTP_TRAILER_MAX)
        return CHUNK_BAD;

    switch (c->state) {
    case CHUNK_TRAILER:
        if (b == '\r')
            return CHUNK_END_LF;
        return http_is_token(b) ? CHUNK_TRAILER_NAME : CHUNK_BAD;
    case CHUNK_TRAILER_NAME:
        if (b == ':')
            return CHUNK_TRAILER_VALUE;
        return http_is_token(b) ? CHUNK_TRAILER_NAME : CHUNK_BAD;
    case CHUNK_TRAILER_VALUE:
        if (b == '\r')
            return CHUNK_TRAILER_LF;
        return http_is_text(b) ? CHUNK_TRAILER_VALUE : CHUNK_BAD;
    case CHUNK_TRAILER_LF:
        return b == '\n' ? CHUNK_TRAILER : CHUNK_BAD;
    default: /* CHUNK_END_LF */
        return b == '\n' ? CHUNK_DONE : CHUNK_BAD;
    }
}

/* The state after a byte that is no data. */
static int chunk_byte(struct http_chunks *c, char b)
{
    switch (c->state) {
    case CHUNK_SIZE:
        return chunk_size_byte(c, b);
    case CHUNK_SIZE_LF:
        c->digits = 0;
        if (b != '\n')
            return CHUNK_BAD;
        return c->left ? CHUNK_DATA : CHUNK_TRAILER;
    case CHUNK_DATA_CR:
        return b == '\r' ? CHUNK_DATA_LF : CHUNK_BAD;
    case CHUNK_DATA_LF:
        return b == '\n' ? CHUNK_SIZE : CHUNK_BAD;
    case CHUNK_BAD:
        return CHUNK_BAD;
    default:
        return chunk_trailer_byte(c, b);
    }
}

int http_chunks_next(struct http_chunks *c, const char *data, size_t len, size_t *ret_used,
                     const char **ret_body, size_t *ret_body_len, struct pd_err *e)
{
    size_t i = 0, body = 0;
    while (i < len && c->state < CHUNK_DONE && c->state != CHUNK_DATA)
        c->state = chunk_byte(c, data[i++]);
    if (c->state == CHUNK_BAD)
        return pd_fail(e, PD_INVALID, "the chunked body is malformed");

    c->done = c->state == CHUNK_DONE;
    if (c->state == CHUNK_DATA) {
        body = len - i < c->left ? len - i : (size_t)c->left;
        c->left -= body;
        if (!c->left)
            c->state = CHUNK_DATA_CR;
    }

    *ret_body = len ? data + i : data;
    *ret_body_len = body;
    *ret_used = i + body;
    return 0;
}
