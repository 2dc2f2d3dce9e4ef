/* Any bytes as a stream of envelopes.
 *
 * Properties: what is told lies within the bytes and within the limit; fewer bytes never tell more
 * than "not yet" or the same refusal; a message written anew is the same bytes. */
#include "api/connect.h"
#include "api/e2b.h"

#include <stdlib.h>
#include <string.h>

#define MOST 4096u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static int read_one(const uint8_t *data, size_t len, uint8_t *flags, struct slice *m, size_t *used)
{
    struct pd_err e = {.msg = ""};
    int got = connect_envelope(data, len, MOST, flags, m, used, &e);
    require(got >= -1 && got <= 1);
    if (got < 0)
        require(e.msg[0] && (e.code == PD_INVALID || e.code == PD_TOO_LARGE));
    return got;
}

static void check_parts(const uint8_t *data, size_t len, int got)
{
    for (size_t part = 0; part < len; part++) {
        uint8_t flags;
        struct slice m;
        size_t used;
        int now = read_one(data, part, &flags, &m, &used);
        require(now == 0 || (now == -1 && got == -1 && part >= CONNECT_ENVELOPE_HEAD));
        /* The rest of the message changes nothing. */
        if (part == 64 && len > 128)
            part = len - 64;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (size_t at = 0; at <= size;) {
        uint8_t flags = 0;
        struct slice m = {NULL, 0};
        size_t used = 0;
        int got = read_one(data + at, size - at, &flags, &m, &used);
        check_parts(data + at, got > 0 ? used : size - at, got);

        if (got <= 0)
            break;
        require(used == CONNECT_ENVELOPE_HEAD + m.len && used <= size - at && m.len <= MOST);
        require((const uint8_t *)m.at == data + at + CONNECT_ENVELOPE_HEAD);
        require(!(flags & CONNECT_COMPRESSED));

        auto_buf again = BUF_INIT(2 * MOST);
        size_t place = connect_put_begin(&again, flags);
        buf_put(&again, m.at, m.len);
        connect_put_end(&again, place);
        require(again.len == used && !memcmp(again.data, data + at, used));
        at += used;
    }

    return 0;
}
